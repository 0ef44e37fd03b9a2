"""Prompts, lengths and arrivals, all drawn from one seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

from hotseat.errors import ConfigError
from hotseat.loadgen.corpus import SENTENCES, TASKS, WORDS

__all__ = ["DATASETS", "LengthDistribution", "Prompt", "arrival_times", "make_prompts"]


class Dataset(NamedTuple):
    """A kind of prompt text, and the lengths that it has unless others are asked for."""

    input_len: str
    output_len: str
    tokens_per_word: float  # of common English tokenizers on this text
    overhead: int  # tokens that chat templates add, roughly


NUM_FIRST_WORDS = 4

# Measured with the tokenizer of the default model; the report shows what the server really counted.
DATASETS = {
    "standard": Dataset("160~0.6", "117~0.6", 1.107, 30),
    "text": Dataset("256", "128", 1.107, 0),
    "random": Dataset("256", "128", 1.0, 0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution:
    """Lengths in tokens: all ``low`` (``low == high``), uniform in [low, high], or log-normal around ``mean``."""

    low: int
    high: int
    mean: float
    sigma: float | None = None

    @classmethod
    def parse(cls, option: str, text: str) -> LengthDistribution:
        """Read ``128``, ``32-512`` or ``160~0.5``.

        Raises:
            ConfigError: it is none of these, or a length is below 1.
        """
        try:
            if "~" in text:
                mean, sigma = (float(part) for part in text.split("~"))
                low, high = max(1, round(mean / 10)), round(mean * 6)
                result = cls(low=low, high=high, mean=mean, sigma=sigma)
            else:
                first, _, last = text.partition("-")
                low, high = int(first), int(last or first)
                result = cls(low=low, high=high, mean=(low + high) / 2)
        except (ValueError, OverflowError):
            raise ConfigError(f"{option} must look like 128, 32-512 or 160~0.5, not {text!r}") from None
        if not (1 <= result.low <= result.high and result.mean >= 1 and (result.sigma is None or result.sigma > 0)):
            raise ConfigError(f"{option} must hold lengths of 1 or more, smaller first, not {text!r}")
        return result

    def draw(self, generator: random.Random) -> int:
        if self.sigma is None:
            return generator.randint(self.low, self.high)
        mu = math.log(self.mean) - self.sigma**2 / 2  # so that the mean of the draws is self.mean
        return min(self.high, max(self.low, round(generator.lognormvariate(mu, self.sigma))))


class Prompt(NamedTuple):
    text: str
    max_tokens: int


def make_prompts(
    dataset: str, input_lengths: LengthDistribution, output_lengths: LengthDistribution, count: int, seed: int
) -> list[Prompt]:
    """Draw ``count`` prompts; the same arguments give the same prompts, and a longer list begins with a shorter one."""
    kind = DATASETS[dataset]
    write = _random_words if dataset == "random" else _passage
    prompts = []
    for index in range(count):
        generator = random.Random(f"{dataset}/{seed}/{index}")
        num_words = round((input_lengths.draw(generator) - kind.overhead) / kind.tokens_per_word)
        prompts.append(Prompt(write(generator, max(1, num_words)), output_lengths.draw(generator)))
    return prompts


def _random_words(generator: random.Random, num_words: int) -> str:
    """Return words in no order: nothing for a prefix cache to find."""
    return " ".join(generator.choice(WORDS) for _ in range(num_words))


def _passage(generator: random.Random, num_words: int) -> str:
    """Return words in no order, a few sentences, and then what to do with them.

    The first words differ from prompt to prompt, so a prefix cache finds no more than the head of the chat template.
    """
    head = [generator.choice(WORDS) for _ in range(NUM_FIRST_WORDS)][:num_words]
    task = generator.choice(TASKS).split()[: num_words - len(head)]
    words = head
    while len(words) < num_words - len(task):
        words += generator.choice(SENTENCES).split()
    return " ".join(words[: num_words - len(task)] + task)


def arrival_times(count: int, request_rate: float, seed: int) -> list[float]:
    """Return seconds from the start at which requests are sent: a Poisson process, or all at 0 for an infinite rate."""
    if math.isinf(request_rate):
        return [0.0] * count
    generator = random.Random(f"arrivals/{seed}")
    instants, now = [], 0.0
    for _ in range(count):
        instants.append(now)
        now += generator.expovariate(request_rate)
    return instants
