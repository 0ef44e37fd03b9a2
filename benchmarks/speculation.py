"""Throughput with speculation against plain decoding: rewritten texts, new texts, and drafts of a given quality.

python benchmarks/speculation.py --streams 1,8,32 --rounds 3 --save speculation-smollm2-int8

Each measurement runs the same requests without and with drafts, one after the other in turns, in one process; both must
give the same tokens. ``edit`` asks to write a given text again, ``prose`` asks for new text, and
``oracle`` drafts the answer itself, each token right with probability 0.9.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import saving
from hotseat import LLM, SamplingParams
from hotseat.core.request import Request
from hotseat.core.speculation import Speculation
from hotseat.speculation import SpeculativeConfig

ENGLISH = (Path(__file__).resolve().parent / "english.txt").read_text(encoding="utf-8")
PARAGRAPHS = [paragraph.replace("\n", " ") for paragraph in ENGLISH.split("\n\n") if 200 < len(paragraph) < 900]
NAMES = ("Anna", "Bruno", "Clara", "David")


class Oracle:
    """A drafter that knows all answers, and spoils each token with probability ``1 - rate``."""

    def __init__(self, rate: float) -> None:
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self._rate = rate
        self._random = Random(1)

    def propose(self, request: Request, num_tokens: int) -> Sequence[int]:
        """Return the next tokens, spoiled."""
        known = len(request.output_token_ids)
        true = self.answers.get(tuple(request.prompt_token_ids), [])[known : known + num_tokens]
        return [token_id if self._random.random() < self._rate else 0 for token_id in true]

    def ended(self, request: Request) -> None:
        """Nothing to forget."""


def edits(count: int) -> list[str]:
    """Return prompts whose answer is a given text, over and over: the text stands in the prompt twice."""
    prompts = []
    for i in range(count):
        text, name = PARAGRAPHS[i % len(PARAGRAPHS)], NAMES[i % len(NAMES)]
        prompts.append(f"{name} copies.\n\nOriginal: {text}\n\nCopy: {text}\n\nOriginal: {text}\n\nCopy:")
    return prompts


def prose(count: int) -> list[str]:
    """Return prompts whose answer is new."""
    return [f"{NAMES[i % len(NAMES)]} writes letter number {i}. Dear friend," for i in range(count)]


class Bench:
    """One model; speculation is exchanged between runs."""

    def __init__(self, options: argparse.Namespace) -> None:
        config = {"method": options.method}
        self.llm = LLM(options.model, max_num_seqs=64, speculative_config=config, dtype=options.dtype)
        self.num_tokens = options.tokens
        self._scheduler = self.llm._components.scheduler
        self._method = SpeculativeConfig.from_values(config)
        self._oracle = Oracle(0.9)

    def run(self, prompts: list[str], kind: str, temperature: float) -> tuple[float, list[list[int]]]:
        """Return the seconds of ``prompts``, which are in the prefix cache, and their tokens."""
        self._scheduler.speculation = self._speculation(kind)
        # Greedy answers of a small model end in loops, which are no prose.
        params = SamplingParams(temperature=temperature, seed=7, max_tokens=self.num_tokens, ignore_eos=True)
        start = time.perf_counter()
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        for output in outputs:
            self._oracle.answers[tuple(output.prompt_token_ids)] = list(output.outputs[0].token_ids)
        return seconds, [list(output.outputs[0].token_ids) for output in outputs]

    def _speculation(self, kind: str) -> Speculation | None:
        """Return drafts that know nothing of the runs before, so that no answer is copied from itself."""
        if kind == "plain":
            return None
        if kind == "oracle":
            return Speculation(self._oracle, num_tokens=8, max_num_drafts=64)
        return self._method.make(64, vocab_size=1 << 20)


def compare(bench: Bench, kind: str, prompts: list[str], rounds: int) -> dict[str, Any]:
    """Return the times of plain and drafted runs, which take turns."""
    temperature = 0.0 if prompts[0].endswith("Copy:") else 1.0
    bench.run(prompts, "plain", temperature)  # fills the prefix cache, and tells the oracle
    plain, drafted = [], []
    for _ in range(rounds):
        seconds, expected = bench.run(prompts, "plain", temperature)
        plain.append(seconds)
        seconds, tokens = bench.run(prompts, kind, temperature)
        drafted.append(seconds)
        if tokens != expected:
            sys.exit("the tokens with drafts are not those of the plain run")
    ratio = statistics.median(a / b for a, b in zip(plain, drafted, strict=True))
    return {"plain_s": plain, "drafted_s": drafted, "speedup": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--method", default="suffix")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    saving.add_option(parser)
    options = parser.parse_args()
    bench = Bench(options)
    results = []
    for streams in map(int, options.streams.split(",")):
        for text, kind in (("edit", "drafts"), ("prose", "drafts"), ("oracle", "oracle")):
            prompts = edits(streams) if text == "edit" else prose(streams)
            found = {"text": text, "streams": streams} | compare(bench, kind, prompts, options.rounds)
            results.append(found)
            sys.stdout.write(f"{streams:3} streams  {text:7} {found['speedup']:.2f} x plain\n")
            sys.stdout.flush()
    bench.llm.close()
    if options.save:
        saving.save(options.save, options, results=results)


if __name__ == "__main__":
    main()
