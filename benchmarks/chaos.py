"""Minutes of chaos against a server of our own: nothing that a client does may hurt another or leave a trace.

64 clients ask, hang up in mid-stream, abort, send broken and large bodies and broken HTTP, look around and reset the
prefix cache, on a pool that is too small for them, under several policies one after another (a server each). Then a
signal ends each server under load. Exit status 1 unless

- every answer came within a minute and was one that may be: no 5xx but 503 and 504;
- every finished answer equals its solo run, token ids and log-probabilities included;
- afterwards nothing runs or waits, no block is used, and the metrics count as many ends as accepted requests;
- memory is within 5 % of what it was after warm-up, open files and threads are as many as then;
- SIGTERM under load ends every stream and the process with exit status 0, in time.

python benchmarks/chaos.py --seconds 600 --save chaos
python benchmarks/chaos.py --seconds 60 -- --dtype fp32
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hotseat.loadgen.http_client import HttpClient, Response
from hotseat.loadgen.stream import EventSplitter
from saving import add_option, save
from server_process import Server, running_server
from soak import Answer, ask, distinct_requests

NUM_CLIENTS = 64
NUM_DISTINCT = 24
ROUND_S = 30.0  # at least, for each policy
HANG_S = 60.0
QUIET_S = 20.0  # after which everything must be free
END_S = 20.0  # from SIGTERM to the end of the process, whose running requests get 3 s
WARM_UP = 0.4  # of a round, after which memory, files and threads are taken as normal
MAX_GROWTH = 0.05
POLICIES = ("fcfs", "priority", "fair", "deadline", "sjf")
BOUNDS = ("--num-kv-blocks", "300", "--max-num-seqs", "16", "--max-model-len", "1024", "--max-num-queued-reqs", "96")
SHUTDOWN = ("--shutdown-timeout-s", "3")

BROKEN_BODIES = (
    *(b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"prompt": NaN}', b'{"prompt": "\\ud800"}', b"[" * 5000),
    *(b'{"prompt": 1}', b'{"prompt": []}', b'{"prompt": [[]]}', b'{"prompt": ["a", 1]}', b'{"prompt": [1, -1]}'),
    *(b'{"prompt": "x", "n": 0}', b'{"prompt": "x", "n": 1e9}', b'{"prompt": "x", "temperature": 1e999}'),
    *(
        b'{"prompt": "x", "max_tokens": 99999999}',
        b'{"prompt": "x", "logit_bias": {"a": 1}}',
        b'{"prompt": "x", "stop": 1}',
    ),
    *(b'{"messages": []}', b'{"messages": [{"role": 1}]}', b'{"messages": [{}]}', b'{"prompt": "x", "best_of": 9}'),
)
LARGE_BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "the sea " * 300_000, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "x", "stop": "s" * 2_000_000, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "x", "cache_salt": "s" * 4_000_000, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "x", "user": "u" * 4_000_000, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "x", "allowed_token_ids": list(range(1000)) * 50, "max_tokens": 1}),
    ("/v1/completions", {"prompt": ["x"] * 1000, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "x", "n": 64, "max_tokens": 3}),
    ("/v1/completions", {"prompt": "x", "more": "m" * 9_000_000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the sea " * 50_000}], "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 2000, "max_tokens": 1}),
    ("/tokenize", {"prompt": "the sea " * 50_000}),
    ("/abort_requests", {"request_ids": [f"cmpl-{i}" for i in range(2000)]}),
)
BROKEN_HTTP = (
    *(b"\r\n\r\n", b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\n"),
    b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50,
    b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000,
)
PLACES = (
    "/health",
    "/metrics",
    "/load",
    "/v1/requests",
    "/v1/steps",
    "/v1/models",
    "/nowhere",
    "/v1/requests/x/explain",
)


class Chaos:
    """One round: what was seen, and what should not have been."""

    def __init__(self, server: Server, bodies: list[dict[str, Any]], solo: list[Answer], seed: int) -> None:
        self.server = server
        self.bodies, self.solo = bodies, solo
        self.rng = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.problems: list[str] = []
        self.large = [(path, json.dumps(body).encode()) for path, body in LARGE_BODIES]

    async def run(self, seconds: float) -> None:
        """Let the clients loose for so long, and wait for the last of them."""
        give_up_at = time.monotonic() + seconds
        rngs = [random.Random(self.rng.getrandbits(32)) for _ in range(NUM_CLIENTS)]
        await asyncio.gather(*(self._client(rng, give_up_at) for rng in rngs))

    async def warm_up(self, seconds: float) -> None:
        """As ``run``, after every large body was sent at once: what they need is part of the server's normal memory."""
        client = HttpClient(self.server.url)
        sends = [client.post(path, message, lambda data, now: None) for path, message in self.large]
        await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), HANG_S)
        client.close()
        await self.run(seconds)

    async def _client(self, rng: random.Random, give_up_at: float) -> None:
        client = HttpClient(self.server.url)
        actions = (self._ask, self._hang_up, self._abort, self._send_broken, self._send_large, self._look, self._babble)
        weights = (50, 14, 8, 8, 3, 14, 3)
        while time.monotonic() < give_up_at:
            (action,) = rng.choices(actions, weights)
            name = action.__name__.removeprefix("_")
            try:
                await asyncio.wait_for(action(rng, client), HANG_S)
                self.seen[name] += 1
            except TimeoutError:
                self.problems.append(f"{name}: no answer in {HANG_S:g} s")
            except OSError as error:
                await self._judge_failure(name, error)
            if self.server.process.poll() is not None:
                self.problems.append(f"the server ended with {self.server.process.returncode} after {name}")
                break
        client.close()

    async def _judge_failure(self, name: str, error: OSError) -> None:
        text = str(error)
        if "status 503" in text or "status 504" in text or "overloaded" in text:
            self.seen["overloaded"] += 1
            await asyncio.sleep(0.05)
        else:
            self.problems.append(f"{name}: {type(error).__name__} {text[:300]}")

    async def _ask(self, rng: random.Random, client: HttpClient) -> None:
        pick = rng.randrange(len(self.bodies))
        answer = await ask(client, self.bodies[pick], stream=rng.random() < 0.7)
        self.seen["compared"] += 1
        if answer != self.solo[pick]:
            self.problems.append(f"request {pick} differs: {answer} instead of {self.solo[pick]}")

    async def _hang_up(self, rng: random.Random, client: HttpClient) -> None:
        task = asyncio.create_task(ask(client, rng.choice(self.bodies), stream=rng.random() < 0.7))
        await asyncio.wait([task], timeout=rng.random() * 0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _abort(self, rng: random.Random, client: HttpClient) -> None:
        """Abort an answer by its id once it has begun; it must end all the same."""
        splitter, reasons, started = EventSplitter(), set[str](), asyncio.Event()
        ids = set[str]()

        def on_body(data: bytes, _: float) -> None:
            for event in splitter.feed(data):
                if event != b"[DONE]":
                    chunk = json.loads(event)
                    ids.add(chunk.get("id", ""))
                    reasons.update(choice["finish_reason"] or "" for choice in chunk.get("choices", ()))
                    started.set()

        body = {"prompt": "The sea", "max_tokens": 300, "ignore_eos": True, "stream": True}
        task = asyncio.create_task(client.post("/v1/completions", json.dumps(body).encode(), on_body))
        waits = [task, asyncio.create_task(started.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if ids:
            await self._post(HttpClient(self.server.url), "/abort_requests", {"request_ids": list(ids)}, closes=True)
        response = await task
        waits[1].cancel()
        if response.status == 200 and not reasons & {"abort", "length"}:
            self.problems.append(f"an aborted answer ended with {reasons}")
        self._judge("abort", response)

    async def _send_broken(self, rng: random.Random, client: HttpClient) -> None:
        path = rng.choice(("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/abort_requests"))
        body = rng.choice(BROKEN_BODIES)
        response = await client.post(path, body, lambda data, now: None)
        self._judge("broken body", response)
        if response.status == 200 and path not in ("/tokenize", "/detokenize"):
            self.problems.append(f"{path} took {body[:80]!r}")

    async def _send_large(self, rng: random.Random, client: HttpClient) -> None:
        path, message = rng.choice(self.large)
        try:
            self._judge("large body", await client.post(path, message, lambda data, now: None))
        except ConnectionError:
            self.seen["large body cut off"] += 1  # a server may hang up on what it will not read

    async def _look(self, rng: random.Random, client: HttpClient) -> None:
        if rng.random() < 0.1:
            await self._post(client, "/reset_prefix_cache", {})
        else:
            self._judge("look", await client.get(rng.choice(PLACES)))

    async def _babble(self, rng: random.Random, client: HttpClient) -> None:
        host, _, port = self.server.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(rng.choice(BROKEN_HTTP))
            await asyncio.wait_for(reader.read(1000), rng.random())
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _post(self, client: HttpClient, path: str, body: dict[str, Any], *, closes: bool = False) -> None:
        self._judge(path, await client.post(path, json.dumps(body).encode(), lambda data, now: None))
        if closes:
            client.close()

    def _judge(self, name: str, response: Response) -> None:
        self.seen[f"{name} {response.status}"] += 1
        if response.status >= 500 and response.status not in (501, 503, 504):
            self.problems.append(f"{name}: status {response.status} {response.body[:300]!r}")


class Footprint:
    """Memory, files and tasks of a process."""

    def __init__(self, pid: int) -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = {line.partition(":")[0]: line.partition(":")[2].split() for line in status.splitlines()}
        self.rss_mib = int(fields["VmRSS"][0]) / 1024
        self.num_threads = int(fields["Threads"][0])
        self.num_files = len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def settle(url: str) -> list[str]:
    """Wait until nothing is under way; return what is wrong when that does not come, and with the metrics."""
    give_up_at = time.monotonic() + QUIET_S
    while True:
        client = HttpClient(url)
        load = json.loads((await client.get("/load")).body)
        text = (await client.get("/metrics")).body.decode()
        client.close()
        ended, accepted = total(text, "request_success_total"), total(text, "requests_accepted_total")
        state = {
            "answers under way": load["server_load"],
            "running": load["num_requests_running"],
            "waiting": load["num_requests_waiting"],
            "used blocks": total(text, "blocks_used"),
            "accepted minus ended": accepted - ended,
        }
        left = [f"after the end: {name} {value:g}" for name, value in state.items() if value]
        if not left or time.monotonic() > give_up_at:
            await asyncio.sleep(0.5)  # for the server to close the connections of clients that have left
            return left
        await asyncio.sleep(0.2)


def total(text: str, name: str) -> float:
    """Return the sum of a metric's samples."""
    lines = [line for line in text.splitlines() if line.partition("{")[0].rpartition(":")[2] == name]
    assert lines, f"/metrics lacks {name}"
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def end_under_load(server: Server) -> list[str]:
    """Send SIGTERM while streams run: each must end, and the process with status 0."""
    problems = []

    async def stream() -> bool:
        client, pieces = HttpClient(server.url), list[bytes]()
        body = {"prompt": "The sea", "max_tokens": 900, "ignore_eos": True, "stream": True}
        try:
            await client.post("/v1/completions", json.dumps(body).encode(), lambda data, now: pieces.append(data))
        except OSError:
            return False
        finally:
            client.close()
        return b"".join(pieces).rstrip().endswith(b"data: [DONE]")

    tasks = [asyncio.create_task(stream()) for _ in range(12)]
    await asyncio.sleep(1.5)
    server.process.send_signal(signal.SIGTERM)
    try:
        ended = await asyncio.wait_for(asyncio.gather(*tasks), END_S)
        if not all(ended):
            problems.append(f"SIGTERM: {ended.count(False)} of {len(ended)} streams were cut off")
        status = await asyncio.to_thread(server.process.wait, END_S)
        if status != 0:
            problems.append(f"SIGTERM: exit status {status}")
    except Exception as error:
        problems.append(f"SIGTERM: no end in {END_S:g} s ({type(error).__name__})")
    return problems


async def one_round(server: Server, seconds: float, bodies: list[dict[str, Any]], solo: list[Answer], seed: int) -> Any:
    if not solo:
        client = HttpClient(server.url)
        solo += [await ask(client, body, stream=False) for body in bodies]
        client.close()
    chaos = Chaos(server, bodies, solo, seed)
    await chaos.warm_up(WARM_UP * seconds)
    chaos.problems += await settle(server.url)
    warm = Footprint(server.pid)
    await chaos.run((1 - WARM_UP) * seconds)
    chaos.problems += await settle(server.url)
    end = Footprint(server.pid)
    if end.rss_mib > (1 + MAX_GROWTH) * warm.rss_mib:
        chaos.problems.append(f"memory grew from {warm.rss_mib:.0f} to {end.rss_mib:.0f} MiB")
    for name in ("num_files", "num_threads"):
        before, after = getattr(warm, name), getattr(end, name)
        if after > before:
            chaos.problems.append(f"{name} grew from {before} to {after}")
    chaos.problems += await end_under_load(server)
    return {"seen": chaos.seen, "problems": chaos.problems, "warm": vars(warm), "end": vars(end)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    add_option(parser)
    parser.add_argument("options", nargs="*", help="options of the servers, after --")
    chosen = parser.parse_args()
    policies = POLICIES[: max(1, min(len(POLICIES), int(chosen.seconds / ROUND_S)))]
    bodies, solo, rounds = distinct_requests(NUM_DISTINCT, random.Random(chosen.seed)), list[Answer](), {}
    for number, policy in enumerate(policies):
        options = [*BOUNDS, *SHUTDOWN, "--scheduling-policy", policy, *chosen.options]
        with running_server(options) as server:
            work = one_round(server, chosen.seconds / len(policies), bodies, solo, chosen.seed + number)
            rounds[policy] = asyncio.run(work)
        sys.stdout.write(f"{policy}: {json.dumps(rounds[policy])}\n")
    if chosen.save:
        save(chosen.save, chosen, rounds=rounds)
    sys.exit(1 if any(one["problems"] for one in rounds.values()) else 0)


if __name__ == "__main__":
    main()
