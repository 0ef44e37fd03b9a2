"""The cost of answers in a given form: throughput of 32 streams, none of them or half of them constrained, in turns.

Both kinds of runs have the same prompts and write the same number of tokens, and they alternate, so that what else the
machine does hits both. Told are the throughput of each kind, their ratio over the pairs of neighbours, and the time
that the masks took. Exit status 1 when the median ratio is below ``--min-ratio``.

python benchmarks/structured.py --rounds 5 --save structured
python benchmarks/structured.py --model MODEL --streams 32 --tokens 64 --threads 2
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from hotseat import LLM, SamplingParams
from hotseat.core.request import StructuredOutputsParams
from hotseat.engine.constraints import ConstrainedRequests
from saving import add_option, save

# Answers in this form end with max_tokens alone, so that all streams write the same number of tokens.
FORM = StructuredOutputsParams(
    json={
        "type": "array",
        "minItems": 500,
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "kind": {"enum": ["guest", "host", "waiter"]},
                "tags": {"type": "array", "maxItems": 4, "items": {"type": "string", "maxLength": 16}},
            },
            "required": ["name", "age", "kind", "tags"],
            "additionalProperties": False,
        },
    }
)


class MaskTimer:
    """Adds up the seconds that the engine's thread spends on masks and on following the grammars."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def install(self) -> None:
        """Measure from now on, in this process."""
        for name in ("mask", "accept"):
            setattr(ConstrainedRequests, name, self._timed(getattr(ConstrainedRequests, name)))

    def _timed(self, work: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            began_at = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                self.seconds += time.perf_counter() - began_at

        return timed


def measure(llm: LLM, num_constrained: int, options: argparse.Namespace, seed: int) -> float:
    """Return the tokens a second of one run."""
    prompts = [f"Guest {number} of {options.streams} arrives. As JSON: " for number in range(options.streams)]
    params = [
        SamplingParams(
            max_tokens=options.tokens,
            ignore_eos=True,
            temperature=1.0,
            seed=seed * 1000 + number,
            # Every second stream, so that the constrained ones are spread over the seats.
            structured_outputs=FORM if number % 2 == 1 and number // 2 < num_constrained else None,
        )
        for number in range(options.streams)
    ]
    began_at = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - began_at
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert num_tokens == options.streams * options.tokens, "a stream ended early"
    return num_tokens / seconds


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run and report; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="by default the default model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs")
    parser.add_argument("--threads", type=int, default=0, help="of the kernels; 0: as many as the engine chooses")
    parser.add_argument("--min-ratio", type=float, default=0.95)
    add_option(parser)
    options = parser.parse_args()
    further = {"threads": options.threads} if options.threads else {}
    llm = LLM(**({"model": options.model} if options.model else {}), max_num_seqs=options.streams, **further)
    timer = MaskTimer()
    timer.install()
    measure(llm, options.streams // 2, options, seed=0)  # warm-up: compiles the form, fills the caches
    free, half, shares = [], [], []
    for number in range(1, options.rounds + 1):
        free.append(measure(llm, 0, options, seed=number))
        timer.seconds, began_at = 0.0, time.perf_counter()
        half.append(measure(llm, options.streams // 2, options, seed=number))
        shares.append(timer.seconds / (time.perf_counter() - began_at))
        say(f"round {number}: {free[-1]:7.1f} tok/s free, {half[-1]:7.1f} half constrained, masks {shares[-1]:.2%}")
    ratio = statistics.median(one / other for one, other in zip(half, free, strict=True))
    say(f"median ratio {ratio:.3f}, masks take {statistics.median(shares):.2%} of the time")
    if options.save:
        save(
            options.save,
            options,
            free_tokens_per_s=free,
            half_constrained_tokens_per_s=half,
            median_ratio=ratio,
            mask_time_share=shares,
        )
    return 0 if ratio >= options.min_ratio else 1


if __name__ == "__main__":
    sys.exit(main())
