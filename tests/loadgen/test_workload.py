import itertools
import random
import statistics

import pytest

from hotseat.errors import ConfigError
from hotseat.loadgen import BenchConfig
from hotseat.loadgen.workload import DATASETS, LengthDistribution, arrival_times, make_prompts


def lengths(text: str) -> LengthDistribution:
    return LengthDistribution.parse("input_len", text)


@pytest.mark.parametrize("dataset", list(DATASETS))
def test_a_seed_fixes_the_prompts_and_another_changes_them(dataset: str) -> None:
    def make(seed: int, count: int = 8) -> list:
        return make_prompts(dataset, lengths("20-60"), lengths("5-9"), count, seed)

    assert make(1) == make(1)
    assert make(1) != make(2)
    assert make(1, 12)[:8] == make(1), "a longer list begins with the shorter one"


@pytest.mark.parametrize("dataset", ["text", "random"])
def test_prompts_are_as_long_as_asked_for(dataset: str) -> None:
    (prompt,) = make_prompts(dataset, lengths("240"), lengths("7"), 1, 0)
    assert len(prompt.text.split()) == round(240 / DATASETS[dataset].tokens_per_word)
    assert prompt.max_tokens == 7


@pytest.mark.parametrize("dataset", list(DATASETS))
def test_prompts_do_not_begin_alike_under_any_seed(dataset: str) -> None:
    """A benchmark measures prefills: a prefix cache finds nothing of one prompt in another, nor in an earlier run."""
    prompts = [
        prompt for seed in range(3) for prompt in make_prompts(dataset, lengths("64-200"), lengths("1"), 300, seed)
    ]
    assert len({" ".join(prompt.text.split()[:4]) for prompt in prompts}) == 900


def test_standard_outputs_have_the_stated_mean() -> None:
    config = BenchConfig(num_prompts=4000)
    prompts = make_prompts("standard", config.input_lengths, config.output_lengths, 4000, 0)
    assert statistics.mean(prompt.max_tokens for prompt in prompts) == pytest.approx(117, rel=0.05)
    assert min(prompt.max_tokens for prompt in prompts) >= 1


@pytest.mark.parametrize(("text", "low", "high", "mean"), [("128", 128, 128, 128), ("32-512", 32, 512, 272)])
def test_length_distributions_are_read(text: str, low: int, high: int, mean: float) -> None:
    distribution = lengths(text)
    assert (distribution.low, distribution.high, distribution.mean) == (low, high, mean)
    assert low <= distribution.draw(random.Random(0)) <= high


@pytest.mark.parametrize("text", ["", "x", "0", "9-3", "-5", "100~", "100~0", "~1", "1-2-3", "nan~1", "inf~1"])
def test_wrong_length_distributions_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="input_len"):
        lengths(text)


def test_poisson_arrivals_have_the_asked_for_rate() -> None:
    instants = arrival_times(5000, 20.0, seed=3)
    gaps = [later - sooner for sooner, later in itertools.pairwise(instants)]
    assert instants[0] == 0
    assert statistics.mean(gaps) == pytest.approx(1 / 20, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(1 / 20, rel=0.1), "exponential: the deviation is the mean"
    assert arrival_times(5000, 20.0, seed=3) == instants


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrival_times(3, float("inf"), seed=0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_prompts", 0),
        ("num_warmups", -1),
        ("request_rate", 0.0),
        ("max_concurrency", 0),
        ("endpoint", "responses"),
        ("dataset", "sharegpt"),
        ("url", "localhost:8000"),
        ("extra_body", "[1]"),
        ("extra_body", "{"),
        ("output_len", "many"),
        ("timeout_s", 0.0),
    ],
)
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=option):
        BenchConfig(**{option: value})
