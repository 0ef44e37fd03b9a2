"""A server on a runner that computes nothing: everything between HTTP and the runner is real."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from hotseat.core.batch import Batch, Chunk, NewRequest, SampledTokens, StepOutput, TokenLogprobs
from hotseat.core.config import SchedulerConfig
from hotseat.core.scheduler import Scheduler
from hotseat.engine import Engine
from hotseat.generation import Generator, ModelLimits, PromptRequest
from hotseat.server import ModelInfo, ServerConfig, ServerServices, create_app
from hotseat.text import ChatTemplate, Tokenizer

BOS, EOS = 256, 257
VOCAB_SIZE = 258
REPLY = "The quick brown fox jumps over the lazy dog. "
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# In the manner of Hermes and Qwen: it tells of its first tool.
HERMES = "{% if tools %}<tool_call>{{ tools[0].function.name }}{% endif %}" + TEMPLATE
TIMEOUT_S = 10.0


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose ids 0 to 255 are bytes, then BOS and EOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = {_byte_of(character): character for character in alphabet}
    backend = tokenizers.Tokenizer(models.BPE({spelled[byte]: byte for byte in range(256)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<eos>"])
    return Tokenizer(backend, {"bos_token": "<bos>", "eos_token": "<eos>"})


def _byte_of(character: str) -> int:
    """Return the byte that GPT-2's alphabet spells as ``character``."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    code = ord(character)
    return rest[code - 256] if code >= 256 else code


@dataclass
class _Seat:
    taken: NewRequest
    token_ids: list[int]


class FakeRunner:
    """Writes ``reply`` again and again, from a character that the seed chooses; greedy from its beginning.

    With ``ends`` it samples EOS after the reply. After ``hold`` it stands in its next step; ``step`` lets one step
    pass, ``release`` all. ``entered`` is set when it stands in a step that computes.
    """

    def __init__(self, *, reply: str = REPLY, ends: bool = False, fails: bool = False) -> None:
        self.reply = reply
        self.ends = ends
        self.fails = fails
        self.entered = threading.Event()
        self.released: queue.SimpleQueue[str] = queue.SimpleQueue()  # ids that left their seats
        self._seats: dict[int, _Seat] = {}
        self._masks: dict[int, int] = {}
        self._is_held = False
        self._permits = threading.Semaphore(0)

    def hold(self) -> None:
        self._is_held = True

    def step(self) -> None:
        self.entered.clear()
        self._permits.release()

    def release(self) -> None:
        self._is_held = False
        self._permits.release()

    async def until_entered(self) -> None:
        """Wait until the held runner stands in a step."""
        assert await asyncio.to_thread(self.entered.wait, TIMEOUT_S), "no step began"

    def prompt(self, seat: int) -> str:
        """Return the prompt of the last request that sat in ``seat``."""
        last = self._seats[seat]
        return bytes(last.token_ids[: last.taken.num_prompt_tokens]).decode()

    def close(self) -> None:
        """Nothing to close."""

    def execute(self, batch: Batch) -> StepOutput:
        for request_id in batch.released_ids:
            self.released.put(request_id)
        for seating in batch.new_requests:
            self._seats[seating.seat] = _Seat(seating, list(seating.token_ids))
        if batch.chunks:
            self.entered.set()
            if self._is_held:
                assert self._permits.acquire(timeout=TIMEOUT_S), "a held runner was never released"
        if self.fails:
            raise RuntimeError("the runner was told to fail")
        output = StepOutput(sampled=[])
        self._masks = {seat: int.from_bytes(words, "little") for seat, words, *_ in batch.token_masks}
        for chunk in batch.chunks:
            self._compute(chunk, output)
        return output

    def _compute(self, chunk: Chunk, output: StepOutput) -> None:
        seat = self._seats[chunk.seat]
        params = seat.taken.params
        if params.prompt_logprobs is not None:
            last = min(chunk.end, seat.taken.num_prompt_tokens - 1)
            output.prompt_logprobs[chunk.request_id] = [
                _logprobs(token_id, params.prompt_logprobs) for token_id in seat.token_ids[chunk.start + 1 : last + 1]
            ]
        if chunk.samples and seat.taken.pooling is not None:
            output.pooled[chunk.request_id] = np.array([len(seat.token_ids), seat.token_ids[0], 1], np.float32)
        if chunk.samples:
            token_id = self._masked(chunk.seat, self._next_token(seat))
            seat.token_ids.append(token_id)
            logprobs = None if params.logprobs is None else [_logprobs(token_id, params.logprobs)]
            output.sampled.append(SampledTokens(chunk.request_id, [token_id], logprobs))

    def _masked(self, seat: int, token_id: int) -> int:
        """Return ``token_id``, or the next one that the mask of ``seat`` allows."""
        mask = self._masks.get(seat)
        if mask is None:
            return token_id
        allowed = [other for other in range(VOCAB_SIZE) if mask >> other & 1]
        return next((other for other in allowed if other >= token_id), allowed[0])

    def _next_token(self, seat: _Seat) -> int:
        data = self.reply.encode()
        done = len(seat.token_ids) - seat.taken.num_prompt_tokens
        if self.ends and done >= len(data) and done >= seat.taken.params.min_tokens:
            return EOS
        start = 0 if seat.taken.params.temperature == 0 else seat.taken.seed
        return data[(start + done) % len(data)]


def _logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    top = [((token_id + rank) % 256, -0.25 * (rank + 1)) for rank in range(num_top)]
    return TokenLogprobs(token_id, -0.25, 1, top)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json()["error"]

    def events(self) -> list[Any]:
        """Return the events of a stream; the last one must be [DONE], which is left out."""
        events = [
            event.removeprefix("data: ") for event in self.body.decode().split("\n\n") if event.startswith("data: ")
        ]
        assert events[-1] == "[DONE]", "every stream ends with [DONE]"
        return [json.loads(event) for event in events[:-1]]


class Exchange:
    """One request at the ASGI interface; the test decides when the client goes away."""

    def __init__(self, method: str, target: str, body: bytes, headers: Mapping[str, str], root_path: str = "") -> None:
        parts = urlsplit(target)
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": root_path + unquote(parts.path),
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": root_path,
            "scheme": "http",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.num_writes = 0
        self.left = asyncio.Event()
        self.written = asyncio.Event()
        self._request = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive(self) -> dict[str, Any]:
        if self._request:
            return self._request.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert not self.status, "a response starts once"
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        assert self.status, "the headers come first"
        self.body += message["body"]
        self.num_writes += 1
        self.written.set()
        if not message.get("more_body", False):
            self.left.set()

    def reply(self) -> Reply:
        return Reply(self.status, self.headers, self.body)


class FakeServer:
    """The application and an event loop to call it in."""

    def __init__(
        self, *, config: ServerConfig | None = None, runner: FakeRunner | None = None, **overrides: Any
    ) -> None:
        services_overrides = overrides.pop("services", {})
        starts = overrides.pop("starts", True)
        policy = overrides.pop("policy", None)
        self.runner = runner or FakeRunner()
        bounds = {"max_model_len": 512, "num_kv_blocks": 256, "max_num_seqs": 8, "max_num_batched_tokens": 64}
        self.scheduling = SchedulerConfig(**{**bounds, **overrides})
        self.engine = Engine(Scheduler(self.scheduling, policy), self.runner)
        self.tokenizer = byte_tokenizer()
        limits = ModelLimits(
            max_model_len=self.scheduling.max_model_len, vocab_size=VOCAB_SIZE, eos_token_ids=frozenset({EOS})
        )
        self.generator = Generator(self.engine, self.tokenizer, limits)
        self.services = ServerServices(
            **{
                "engine": self.engine,
                "generator": self.generator,
                "tokenizer": self.tokenizer,
                "model": ModelInfo(
                    served_names=("fake", "org/fake"), max_model_len=self.scheduling.max_model_len, created=1
                ),
                "chat_template": ChatTemplate(TEMPLATE),
                "max_num_seqs": self.scheduling.max_num_seqs,
                "max_num_queued_reqs": self.scheduling.max_num_queued_reqs,
                "render_metrics": lambda: b"hotseat:seats 8\n",
                **services_overrides,
            }
        )
        self.app = create_app(self.services, config or ServerConfig())
        self.in_flight = self.app.state.context.in_flight
        self._loop = asyncio.Runner()
        if starts:
            self.engine.start()

    def close(self) -> None:
        self.runner.release()
        self.engine.stop()
        self.generator.close()
        self._loop.close()

    def watch_tenants(self) -> list[str]:
        """Return a list that gets the tenant of each prompt from now on."""
        tenants: list[str] = []
        generate = self.generator.generate

        def spy(prompts: list[PromptRequest], *, request_id: str) -> object:
            tenants.extend(prompt.tenant for prompt in prompts)
            return generate(prompts, request_id=request_id)

        self.generator.generate = spy  # type: ignore[method-assign, assignment]
        return tenants

    def run(self, work: Any) -> Any:
        """Run a coroutine in the server's event loop."""
        return self._loop.run(asyncio.wait_for(work, TIMEOUT_S))

    def get(self, target: str, headers: Mapping[str, str] | None = None, root_path: str = "") -> Reply:
        return self.call("GET", target, b"", headers or {}, root_path)

    def post(self, target: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """Post ``body`` as JSON; bytes go as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.call("POST", target, data, {"content-type": "application/json", **(headers or {})})

    def call(self, method: str, target: str, body: bytes, headers: Mapping[str, str], root_path: str = "") -> Reply:
        async def exchange() -> Reply:
            one = Exchange(method, target, body, headers, root_path)
            await self.app(one.scope, one.receive, one.send)
            return one.reply()

        return self.run(exchange())

    def start_post(
        self, target: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> tuple[Exchange, asyncio.Task[None]]:
        """Begin a request from inside the event loop."""
        return self._start("POST", target, json.dumps(body).encode(), headers or {})

    def start_get(self, target: str) -> tuple[Exchange, asyncio.Task[None]]:
        return self._start("GET", target, b"", {})

    def _start(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[Exchange, asyncio.Task[None]]:
        one = Exchange(method, target, body, {"content-type": "application/json", **headers})
        return one, asyncio.create_task(self.app(one.scope, one.receive, one.send))

    def text(self, num_tokens: int, start: int = 0) -> str:
        """Return what the runner writes greedily."""
        reply = self.runner.reply
        return "".join(reply[(start + at) % len(reply)] for at in range(num_tokens))


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": "Say something", "temperature": 0, "max_tokens": 8, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Say something"}
    return {"model": "fake", "messages": [message], "temperature": 0, "max_tokens": 8, **fields}


def texts_by_choice(events: Sequence[dict[str, Any]], pick: Callable[[dict[str, Any]], str]) -> dict[int, str]:
    """Concatenate what a stream's events bring for each choice."""
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + pick(choice)
    return texts
