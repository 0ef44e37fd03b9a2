"""Measure what --target-itl-ms does: gaps between tokens of short streams while long prompts keep arriving.

A closed loop of short chats runs beside a client that sends one long prompt after the other. The same load meets a
server with a fixed token budget and one with the target; runs alternate.

python benchmarks/latency_target.py --target-itl-ms 60 --save latency-target
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise

from hotseat.loadgen.http_client import HttpClient
from hotseat.loadgen.stream import EventSplitter
from saving import add_option, save
from server_process import running_server

WORDS = ("harbour", "bread", "engine", "winter", "letter", "mountain", "quiet", "number", "window", "river", "stone")


@dataclass(slots=True)
class Observed:
    """Gaps and times of all streams of a run, in seconds."""

    gaps: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_prompt_tokens: int = 0


def text(num_words: int, rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=num_words)) + "."


async def stream(client: HttpClient, prompt: str, max_tokens: int, seen: Observed, *, is_short: bool) -> None:
    splitter, instants = EventSplitter(), []

    def on_body(data: bytes, now: float) -> None:
        for event in splitter.feed(data):
            if event == b"[DONE]":
                continue
            chunk = json.loads(event)
            if chunk["choices"]:
                instants.append(now)
            elif chunk.get("usage"):
                seen.num_tokens += chunk["usage"]["completion_tokens"]
                seen.num_prompt_tokens += chunk["usage"]["prompt_tokens"]

    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body |= {
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }  # a chunk for tokens without text, too
    response = await client.post("/v1/completions", json.dumps(body).encode(), on_body)
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {response.body[:300]!r}")
    if is_short:
        seen.gaps += [b - a for a, b in pairwise(instants)]


async def load(url: str, chosen: argparse.Namespace) -> dict[str, float]:
    seen, ends_at, started_at = Observed(), time.monotonic() + chosen.duration_s, time.monotonic()

    async def keep_asking(number: int, num_words: int, max_tokens: int, *, is_short: bool) -> None:
        rng, client = random.Random(number), HttpClient(url)
        while time.monotonic() < ends_at:
            await stream(client, text(num_words, rng), max_tokens, seen, is_short=is_short)
        client.close()

    short = [keep_asking(i, 100, 120, is_short=True) for i in range(chosen.streams)]
    long = [keep_asking(1000 + i, chosen.long_words, 8, is_short=False) for i in range(chosen.long_streams)]
    await asyncio.gather(*short, *long)
    elapsed = time.monotonic() - started_at
    percentiles = statistics.quantiles(seen.gaps, n=100)
    return {
        "itl_p50_ms": 1000 * percentiles[49],
        "itl_p99_ms": 1000 * percentiles[98],
        "itl_max_ms": 1000 * max(seen.gaps),
        "tokens_per_s": (seen.num_tokens + seen.num_prompt_tokens) / elapsed,
        "output_tokens_per_s": seen.num_tokens / elapsed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-itl-ms", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--long-streams", type=int, default=1)
    parser.add_argument("--long-words", type=int, default=2500)
    parser.add_argument("--duration-s", type=float, default=15.0, help="no request is sent after it")
    parser.add_argument("--runs", type=int, default=3, help="of each kind")
    add_option(parser)
    parser.add_argument("options", nargs="*", help="options of both servers, after --")
    chosen = parser.parse_args()
    kinds = {"fixed": [], "target": ["--target-itl-ms", str(chosen.target_itl_ms)]}
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(chosen.runs):
        for kind, options in kinds.items():
            with running_server([*options, "--no-enable-prefix-caching", *chosen.options]) as server:
                runs[kind].append(asyncio.run(load(server.url, chosen)))
    sys.stdout.write(
        "| budget | ITL p50 ms | p99 ms | max ms | all tokens/s | output tokens/s |\n" + "|---" * 6 + "|\n"
    )
    for kind, rows in runs.items():
        median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        sys.stdout.write(f"| {kind} | " + " | ".join(f"{value:.1f}" for value in median.values()) + " |\n")
    if chosen.save:
        save(chosen.save, chosen, runs=runs)


if __name__ == "__main__":
    main()
