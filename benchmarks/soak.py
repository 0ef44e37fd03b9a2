"""Check under load that no request hurts another, through HTTP.

Distinct requests (greedy and seeded, short and long, shared beginnings, n = 2, log-probabilities) are first answered
alone. Then many of them run at once, at a concurrency that keeps changing, streamed or not, while some clients hang up
in mid-stream. Every answer that was not cut off must equal its solo run, token ids and log-probabilities included, and
when all is over no seat and no block may be in use. Exit status 1 otherwise.

python benchmarks/soak.py --requests 10000 --distinct 300 --save soak-int8
python benchmarks/soak.py --requests 1000 -- --dtype fp32 --num-kv-blocks 600
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hotseat.loadgen.http_client import HttpClient
from hotseat.loadgen.stream import EventSplitter
from saving import add_option, save
from server_process import running_server

QUIET_S = 1.0  # after which everything must be free
STARTS = (
    "The harbour at the end of the line was",
    "Explain to a child why bread rises.",
    "List the months and their weather, one by one:",
    "def schedule(now):\n    ",
    "Once upon a time, in a kitchen that never closed,",
)

Answer = list[dict[str, Any]]  # by choice index: token ids, logprobs, finish reason


@dataclass(slots=True)
class Tally:
    compared: int = 0
    cut_off: int = 0
    different: int = 0
    failed: int = 0


def distinct_requests(count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Return bodies of completions that have little in common but some beginnings."""
    bodies = []
    for i in range(count):
        words = [rng.choice(STARTS).split()[0].lower() for _ in range(rng.choice((0, 3, 40, 400)))]
        body: dict[str, Any] = {
            "prompt": rng.choice(STARTS) + " " + " ".join(words) + (f" {i}" if rng.random() < 0.7 else ""),
            "max_tokens": rng.choice((1, 4, 16, 48, 96)),
            "temperature": rng.choice((0.0, 0.0, 0.8, 1.3)),
            "seed": i,
            "logprobs": rng.choice((None, None, 0, 3)),
            "n": rng.choice((1, 1, 1, 2)),
            "ignore_eos": rng.random() < 0.5,
            "return_token_ids": True,
        }
        if rng.random() < 0.3:
            body |= {"top_p": 0.9, "top_k": 50, "presence_penalty": 0.5, "repetition_penalty": 1.1}
        bodies.append(body)
    return bodies


def collect(choices: dict[int, dict[str, Any]], chunk: dict[str, Any]) -> None:
    for choice in chunk["choices"]:
        entry = choices.setdefault(choice["index"], {"text": "", "ids": [], "logprobs": [], "finish": None})
        entry["text"] += choice.get("text") or ""
        entry["ids"] += choice.get("token_ids") or []
        if choice.get("logprobs"):
            entry["logprobs"] += choice["logprobs"]["token_logprobs"]
        entry["finish"] = choice.get("finish_reason") or entry["finish"]


async def ask(client: HttpClient, body: dict[str, Any], *, stream: bool) -> Answer:
    """Return the answer; raises ``ConnectionError`` on anything but a complete one."""
    choices: dict[int, dict[str, Any]] = {}
    splitter, pieces = EventSplitter(), []

    def on_body(data: bytes, _: float) -> None:
        if not stream:
            pieces.append(data)
            return
        for event in splitter.feed(data):
            if event != b"[DONE]":
                chunk = json.loads(event)
                if "error" in chunk:
                    raise ConnectionError(str(chunk["error"]))
                collect(choices, chunk)

    message = json.dumps(body | {"stream": stream}).encode()
    response = await client.post("/v1/completions", message, on_body)
    if response.status != 200:
        raise ConnectionError(f"status {response.status}: {response.body[:300]!r}")
    if not stream:
        collect(choices, json.loads(b"".join(pieces)))
    return [choices[index] for index in sorted(choices)]


async def worker(
    url: str, bodies: list[dict[str, Any]], solo: list[Answer], picks: list[int], hang_ups: float, seed: int
) -> Tally:
    rng, tally, client = random.Random(seed), Tally(), HttpClient(url)
    for pick in picks:
        task = asyncio.create_task(ask(client, bodies[pick], stream=rng.random() < 0.7))
        if rng.random() < hang_ups:
            await asyncio.wait([task], timeout=rng.random() * 0.5)
        if not task.done() and rng.random() < hang_ups:
            task.cancel()
            await asyncio.wait([task])
            tally.cut_off += 1
            continue
        try:
            answer = await task
        except ConnectionError as error:
            sys.stderr.write(f"request {pick} failed: {error}\n")
            tally.failed += 1
            continue
        tally.compared += 1
        if answer != solo[pick]:
            tally.different += 1
            sys.stderr.write(
                f"request {pick} differs:\n  body {bodies[pick]}\n  alone {solo[pick]}\n  now   {answer}\n"
            )
    client.close()
    return tally


async def in_use(client: HttpClient) -> dict[str, float]:
    """Return running and waiting requests and the share of used blocks."""
    wanted = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    found = {}
    for line in (await client.get("/metrics")).body.decode().splitlines():
        name = line.partition("{")[0]
        if name in wanted:
            found[name] = float(line.rpartition(" ")[2])
    assert set(found) == set(wanted), f"/metrics lacks {set(wanted) - set(found)}"
    return found


async def soak(url: str, chosen: argparse.Namespace) -> dict[str, Any]:
    rng, client = random.Random(chosen.seed), HttpClient(url)
    bodies = distinct_requests(chosen.distinct, rng)
    solo = [await ask(client, body, stream=False) for body in bodies]
    total, started_at, left, wave = Counter[str](), time.monotonic(), chosen.requests, 0
    while left > 0 and time.monotonic() - started_at < chosen.max_s:
        concurrency = rng.choice((2, 7, 16, 32, 64))
        each = min(4, -(-left // concurrency))
        workers = [
            worker(url, bodies, solo, rng.choices(range(len(bodies)), k=each), chosen.hang_ups, rng.getrandbits(32))
            for _ in range(concurrency)
        ]
        for tally in await asyncio.gather(*workers):
            total.update(compared=tally.compared, different=tally.different, cut_off=tally.cut_off, failed=tally.failed)
        left -= each * concurrency
        wave += 1
    await asyncio.sleep(QUIET_S)
    usage = await in_use(client)
    client.close()
    return {
        **{name: total[name] for name in ("compared", "different", "failed", "cut_off")},
        "num_waves": wave,
        "elapsed_s": time.monotonic() - started_at,
        "in_use_after_the_end": usage,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--distinct", type=int, default=60)
    parser.add_argument("--hang-ups", type=float, default=0.3, help="share of clients that may hang up")
    parser.add_argument("--max-s", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=0)
    add_option(parser)
    parser.add_argument("options", nargs="*", help="options of the server, after --")
    chosen = parser.parse_args()
    with running_server(chosen.options) as server:
        outcome = asyncio.run(soak(server.url, chosen))
    sys.stdout.write(f"{json.dumps(outcome)}\n")
    if chosen.save:
        save(chosen.save, chosen, outcome=outcome)
    sys.exit(1 if outcome["different"] or outcome["failed"] or any(outcome["in_use_after_the_end"].values()) else 0)


if __name__ == "__main__":
    main()
