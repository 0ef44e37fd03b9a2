"""Send the requests of a run, at their times and within the concurrency; collect the results."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import msgspec
from tqdm import tqdm

from hotseat.errors import ConfigError, HotseatError
from hotseat.loadgen.config import BenchConfig
from hotseat.loadgen.http_client import HttpClient
from hotseat.loadgen.measure import Measurement, RequestResult, Summary, summarize
from hotseat.loadgen.report import format_errors, format_table, write_json
from hotseat.loadgen.stream import ChunkReader
from hotseat.loadgen.workload import Prompt, arrival_times, make_prompts
from hotseat.machine import describe_machine

__all__ = ["measure", "run"]

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def run(config: BenchConfig, *, command: str) -> int:
    """Measure, print the table, write the JSON file if one is wanted; return the exit status.

    ``command`` is the command line that the report quotes.
    """
    measurement = asyncio.run(measure(config, show_progress=sys.stderr.isatty()))
    machine, summary = describe_machine(), measurement.summary
    if summary.completed:
        sys.stdout.write(format_table(config, measurement, machine))
    else:
        sys.stderr.write(f"all requests to {measurement.model} at {config.url} failed:\n{format_errors(summary)}")
    if config.output_json:
        write_json(config, measurement, machine, command)
        sys.stdout.write(f"written to {config.output_json}\n")
    return 0 if summary.failed == 0 else 1


async def measure(config: BenchConfig, *, show_progress: bool = False) -> Measurement:
    """Put the load of ``config`` on its server.

    Raises:
        HotseatError: the server cannot be reached, or has no model.
    """
    client = HttpClient(config.url, api_key=config.api_key)
    try:
        model = config.model or await _first_model(client, config.url)
        server = await _server_version(client)
        started_at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        prompts = make_prompts(
            config.dataset,
            config.input_lengths,
            config.output_lengths,
            config.num_prompts + config.num_warmups,
            config.seed,
        )
        bodies = [_body(config, model, prompt) for prompt in prompts]
        warmups, measured = bodies[config.num_prompts :], bodies[: config.num_prompts]
        if warmups:
            await _Load(config, client, warmups, [0.0] * len(warmups), show_progress=False).run()
        arrivals = arrival_times(len(measured), config.request_rate, config.seed)
        load = _Load(config, client, measured, arrivals, show_progress=show_progress)
        await load.run()
        return Measurement(
            model=model, server=server, started_at=started_at, results=load.results, summary=load.summary()
        )
    finally:
        client.close()


class _Load:
    """Requests on their way: each waits for its arrival, then for a free place, then goes out."""

    def __init__(
        self,
        config: BenchConfig,
        client: HttpClient,
        bodies: Sequence[bytes],
        arrivals: Sequence[float],
        *,
        show_progress: bool,
    ) -> None:
        self.results = [RequestResult(index=index) for index in range(len(bodies))]
        self._path = PATHS[config.endpoint]
        self._timeout_s = config.timeout_s
        self._client = client
        self._bodies = bodies
        self._arrivals = arrivals
        self._places = asyncio.Semaphore(config.max_concurrency or len(bodies))
        self._progress = tqdm(total=len(bodies), unit="request", disable=not show_progress)
        self._begin = 0.0

    async def run(self) -> None:
        self._begin = time.perf_counter()
        with self._progress:
            async with asyncio.TaskGroup() as group:
                for index, result in enumerate(self.results):
                    group.create_task(self._one(index, result))

    def summary(self) -> Summary:
        sent = [result.sent_at for result in self.results if result.sent_at]
        ends = [result.chunk_times[-1] for result in self.results if result.chunk_times]
        return summarize(self.results, max(ends, default=0.0) - min(sent, default=0.0) if ends else 0.0)

    async def _one(self, index: int, result: RequestResult) -> None:
        wait_s = self._begin + self._arrivals[index] - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        async with self._places:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._send(self._bodies[index], result)
            except TimeoutError:
                result.error = f"no complete answer within {self._timeout_s:g} s"
            except (OSError, ConnectionError) as error:
                result.error = str(error) or type(error).__name__
            self._progress.update()

    async def _send(self, body: bytes, result: RequestResult) -> None:
        reader = ChunkReader(result)
        result.sent_at = time.perf_counter()
        response = await self._client.post(self._path, body, reader.feed)
        if response.status != 200:
            result.error = f"HTTP {response.status}: {_error_message(response.body)}"
            return
        reader.finish()


def _body(config: BenchConfig, model: str, prompt: Prompt) -> bytes:
    fields: dict[str, object] = {
        "model": model,
        "max_tokens": prompt.max_tokens,
        "temperature": config.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if config.endpoint == "chat":
        fields["messages"] = [{"role": "user", "content": prompt.text}]
    else:
        fields["prompt"] = prompt.text
    if config.ignore_eos:
        fields["ignore_eos"] = True
    return msgspec.json.encode(fields | config.extra_fields())


def _error_message(body: bytes) -> str:
    """Return OpenAI's error message, or the start of whatever else the body is."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])[:200]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


async def _first_model(client: HttpClient, url: str) -> str:
    try:
        response = await client.get("/v1/models")
    except OSError as error:
        raise HotseatError(f"no server answers at {url}: {error}") from None
    if response.status != 200:
        raise HotseatError(f"{url}/v1/models answers HTTP {response.status}: {_error_message(response.body)}")
    try:
        return str(msgspec.json.decode(response.body)["data"][0]["id"])
    except (msgspec.MsgspecError, KeyError, TypeError, IndexError):
        raise ConfigError(f"{url}/v1/models lists no model; name one with --model") from None


async def _server_version(client: HttpClient) -> dict[str, object]:
    """Return what ``/version`` says; many servers have no such path."""
    try:
        response = await client.get("/version")
        value = msgspec.json.decode(response.body) if response.status == 200 else None
    except (OSError, msgspec.MsgspecError):
        return {}
    return value if isinstance(value, dict) else {}
