"""Measure what one hostile client does to others: the gaps in eight plain streams, and memory afterwards.

For each kind of hostile client (``hostile_clients.ATTACKS``) the gaps between the tokens of eight plain streams (ITL)
are measured beside it, and then beside as many ordinary requests as it had got seats, which is what it may cost. Before
and after, the server's resident memory is read. The hostile client is a process of its own.

python benchmarks/hurt.py --save hurt
python benchmarks/hurt.py --seconds 5 --settle-s 5 --only "slow header" "deep JSON" -- --kv-cache-memory-bytes 256MiB
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hostile_clients import ATTACKS
from hotseat.loadgen.http_client import HttpClient
from hotseat.loadgen.stream import EventSplitter
from saving import add_option, save
from server_process import running_server

NUM_STREAMS = 8
MAX_RATIO = 1.5
MAX_GROWTH_MIB = 64.0

_numbers = itertools.count()


async def plain_stream(url: str, give_up_at: float, gaps: list[float], tokens: int) -> None:
    """Stream answer after answer, and note the seconds between two tokens of one answer."""
    client = HttpClient(url)
    while (now := time.perf_counter()) < give_up_at:
        splitter, last = EventSplitter(), [0.0]

        def on_body(data: bytes, now: float, splitter: EventSplitter = splitter, last: list[float] = last) -> None:
            for event in splitter.feed(data):
                if event != b"[DONE]":
                    if last[0] and now < give_up_at:
                        gaps.append(now - last[0])
                    last[0] = now

        body = {"prompt": f"Story {next(_numbers)}: the sea", "max_tokens": tokens, "stream": True, "ignore_eos": True}
        request = client.post("/v1/completions", json.dumps(body).encode(), on_body)
        try:
            await asyncio.wait_for(request, give_up_at - now)
        except TimeoutError:
            gaps.append(give_up_at - (last[0] or now))  # silence up to the end counts as a gap
        except OSError:
            await asyncio.sleep(0.1)
    client.close()


async def ordinary(url: str, seconds: float, count: int) -> None:
    """Keep ``count`` more streams of the same kind under way."""
    give_up_at, unused = time.perf_counter() + seconds, list[float]()
    await asyncio.gather(*(plain_stream(url, give_up_at, unused, 200) for _ in range(count)))


async def watch(url: str, seconds: float) -> list[float]:
    """Return the numbers of running sequences that ``/metrics`` showed meanwhile, and stop at the end."""
    client, seen, give_up_at = HttpClient(url), list[float](), time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        try:
            text = (await asyncio.wait_for(client.get("/metrics"), seconds)).body.decode()
            seen += [float(line.rpartition(" ")[2]) for line in text.splitlines() if "num_requests_running{" in line]
        except (TimeoutError, OSError):
            pass
        await asyncio.sleep(0.2)
    client.close()
    return seen


async def measure(url: str, chosen: argparse.Namespace, *, hostile: str | None, others: int = 0) -> dict[str, Any]:
    """Return p99 and longest gap of the plain streams beside a hostile client, or ``others``, or nothing."""
    seconds, gaps = chosen.seconds, list[float]()
    process = None
    if hostile:
        command = [sys.executable, __file__, "--attack", hostile, "--url", url, "--seconds", str(seconds)]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    give_up_at = time.perf_counter() + seconds
    streams = [plain_stream(url, give_up_at, gaps, chosen.tokens) for _ in range(NUM_STREAMS)]
    watching = watch(url, seconds)
    results = await asyncio.gather(watching, ordinary(url, seconds, others), *streams)
    answers = {}
    if process:
        output, _ = await asyncio.wait_for(process.communicate(), seconds + 60)
        answers = json.loads(output or b"{}")
    gaps.sort()
    running = sorted(results[0])
    return {
        "itl_p99_ms": 1e3 * gaps[int(0.99 * len(gaps))] if gaps else None,
        "longest_gap_ms": 1e3 * gaps[-1] if gaps else None,
        "num_tokens": len(gaps),
        "num_running": running[len(running) // 2] if running else None,
        "answers": answers,
    }


async def quiet(url: str, settle_s: float) -> None:
    """Wait until nothing runs or waits any more, and then ``settle_s``."""
    client, give_up_at = HttpClient(url), time.monotonic() + 120
    while time.monotonic() < give_up_at:
        load = json.loads((await client.get("/v1/steps?limit=1")).body)["stats"]
        if not load["num_running"] and not load["num_waiting"]:
            break
        await asyncio.sleep(0.5)
    client.close()
    await asyncio.sleep(settle_s)


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the server is gone")


async def examine(url: str, pid: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """Try every kind, one after another, on one server."""
    alone = await measure(url, chosen, hostile=None)
    kinds: dict[str, Any] = {}
    for name in chosen.only or ATTACKS:
        await quiet(url, 0.5)
        before = resident_mib(pid)
        beside = await measure(url, chosen, hostile=name)
        await quiet(url, chosen.settle_s)
        after = resident_mib(pid)
        seats = max(0, round(beside["num_running"] or 0) - NUM_STREAMS)
        allowed = await measure(url, chosen, hostile=None, others=seats) if seats else alone
        kinds[name] = {
            "alone": alone,
            "beside_ordinary": allowed,
            "beside_hostile": beside,
            "hostile_seats": seats,
            "rss_before_mib": before,
            "rss_after_mib": after,
            "ratio": (beside["itl_p99_ms"] or float("inf")) / allowed["itl_p99_ms"],
        }
        sys.stdout.write(row(name, kinds[name]) + "\n")
        sys.stdout.flush()
    return kinds


HEADER = (
    "| hostile client | seats | ITL p99 ms, alone | beside as many ordinary ones | beside it | ratio | longest gap ms "
    "| memory MiB, before | after | answers |\n|---|" + "---:|" * 8 + "---|"
)


def row(name: str, kind: dict[str, Any]) -> str:
    hostile = kind["beside_hostile"]
    numbers = [kind["alone"]["itl_p99_ms"], kind["beside_ordinary"]["itl_p99_ms"], hostile["itl_p99_ms"]]
    cells = [name, str(kind["hostile_seats"]), *("-" if n is None else f"{n:.0f}" for n in numbers)]
    cells += [f"{kind['ratio']:.2f}", f"{hostile['longest_gap_ms'] or 0:.0f}"]
    cells += [f"{kind['rss_before_mib']:.0f}", f"{kind['rss_after_mib']:.0f}"]
    answers = ", ".join(f"{count} x {answer}" for answer, count in hostile["answers"].items())
    return "| " + " | ".join([*cells, answers]) + " |"


def is_harmless(kind: dict[str, Any]) -> bool:
    growth = kind["rss_after_mib"] - kind["rss_before_mib"]
    return bool(kind["ratio"] <= MAX_RATIO and growth <= MAX_GROWTH_MIB)


def attack(chosen: argparse.Namespace) -> None:
    answers = Counter[str]()

    async def bounded() -> None:
        try:
            await asyncio.wait_for(ATTACKS[chosen.attack](chosen.url, chosen.seconds, answers), chosen.seconds + 5)
        except (TimeoutError, OSError) as error:
            answers[type(error).__name__] += 1

    asyncio.run(bounded())
    sys.stdout.write(json.dumps(answers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each measurement")
    parser.add_argument("--settle-s", type=float, default=60.0, help="after which memory is read again")
    parser.add_argument("--tokens", type=int, default=64, help="of each plain stream's answers")
    parser.add_argument("--only", nargs="+", choices=ATTACKS, metavar="KIND", help="of: " + "; ".join(ATTACKS))
    add_option(parser)
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)  # be the hostile client
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*", help="options of the server, after --")
    chosen = parser.parse_args()
    if chosen.attack:
        attack(chosen)
        return
    sys.stdout.write(HEADER + "\n")
    with running_server(chosen.options) as server:
        kinds = asyncio.run(examine(server.url, server.pid, chosen))
    if chosen.save:
        save(chosen.save, chosen, kinds=kinds)
    hurt = [name for name, kind in kinds.items() if not is_harmless(kind)]
    sys.stdout.write(f"hurt by: {'; '.join(hurt) or 'none'} (limits: {MAX_RATIO} x ITL p99, {MAX_GROWTH_MIB:g} MiB)\n")
    sys.exit(1 if hurt else 0)


if __name__ == "__main__":
    main()
