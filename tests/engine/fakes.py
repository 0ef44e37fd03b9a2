"""A runner that computes nothing, but checks what it is told and can be held, broken and watched."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from hotseat.core.batch import Batch, Chunk, NewRequest, RequestUpdate, SampledTokens, StepOutput, TokenLogprobs
from hotseat.core.config import SchedulerConfig
from hotseat.core.events import StepRecord
from hotseat.core.request import Request, RequestId, SamplingParams
from hotseat.core.scheduler import Scheduler
from hotseat.engine import Engine

WAIT_S = 20.0  # for a thread that should come at once: only a broken test waits so long


def token_at(position: int) -> int:
    """The token that the fake runner puts at ``position``, whatever stands before it."""
    return 100 + position % 800


class FakeRunner:
    """Samples what ``script`` says, by request and position; keeps the seats as a real runner does and asserts that
    batches make sense.

    ``fails`` is asked before each step that computes and returns what to raise. While ``hold`` is on, a step waits for
    ``let``.
    """

    def __init__(
        self,
        fails: Callable[[Batch], BaseException | None] = lambda batch: None,
        script: Callable[[RequestId, int], int] = lambda request_id, position: token_at(position),
    ) -> None:
        self.seats: dict[RequestId, int] = {}
        self._seatings: dict[RequestId, NewRequest] = {}
        self._script = script
        self.num_steps = 0
        self.is_closed = False
        self.entered = threading.Semaphore(0)  # released as a step enters while held
        self._fails = fails
        self._turns: threading.Semaphore | None = None

    def hold(self) -> None:
        """Make every step wait for ``let``."""
        self._turns = threading.Semaphore(0)

    def let(self, num_steps: int) -> None:
        """Allow ``num_steps`` held steps."""
        assert self._turns is not None
        self._turns.release(num_steps)

    def let_go(self) -> None:
        """Hold no more."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.release(10_000)

    def execute(self, batch: Batch) -> StepOutput:
        turns = self._turns
        if turns is not None:
            self.entered.release()
            assert turns.acquire(timeout=WAIT_S), "the test never let this step go"
        self.num_steps += 1
        error = self._fails(batch) if batch.chunks else None
        if error is not None:
            raise error
        for request_id in batch.released_ids:
            self.seats.pop(request_id, None)
            self._seatings.pop(request_id, None)
        for seating in batch.new_requests:
            assert seating.seat not in self.seats.values(), f"seat {seating.seat} is taken"
            self.seats[seating.request_id] = seating.seat
            self._seatings[seating.request_id] = seating
        for chunk in batch.chunks:
            assert self.seats[chunk.request_id] == chunk.seat, "a chunk sits where its request was seated"
        return StepOutput(
            sampled=[self._sample(chunk.request_id, chunk.end) for chunk in batch.chunks if chunk.samples],
            prompt_logprobs={
                chunk.request_id: [_logprobs(token_id) for token_id in wanted]
                for chunk in batch.chunks
                if (wanted := self._prompt_tokens(chunk))
            },
        )

    def close(self) -> None:
        self.is_closed = True

    def _sample(self, request_id: RequestId, position: int) -> SampledTokens:
        token_id = self._script(request_id, position)
        return SampledTokens(request_id, [token_id], [_logprobs(token_id)])

    def _prompt_tokens(self, chunk: Chunk) -> list[int]:
        """Return the prompt tokens whose log-probabilities this chunk tells."""
        seating = self._seatings[chunk.request_id]
        if seating.params.prompt_logprobs is None:
            return []
        return seating.token_ids[chunk.start + 1 : min(chunk.end + 1, seating.num_prompt_tokens)]


def _logprobs(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -0.5, 1, [(token_id, -0.5)])


class Witness:
    """An event sink that remembers everything."""

    def __init__(self) -> None:
        self.arrived: list[Request] = []
        self.rejected: list[tuple[Request, Exception]] = []
        self.records: list[StepRecord] = []
        self.finished: list[tuple[Request, RequestUpdate]] = []

    def on_arrived(self, request: Request, now: float) -> None:
        self.arrived.append(request)

    def on_rejected(self, request: Request, error: Exception, now: float) -> None:
        self.rejected.append((request, error))

    def on_step(self, record: StepRecord, updates: Sequence[RequestUpdate]) -> None:
        self.records.append(record)

    def on_finished(self, request: Request, update: RequestUpdate, now: float) -> None:
        self.finished.append((request, update))

    @property
    def ends(self) -> dict[str, str]:
        """Reason by id; fails when a request ended twice."""
        ids = [request.id for request, _ in self.finished]
        assert len(ids) == len(set(ids)), "a request ends once"
        return {request.id: update.finish_reason.value for request, update in self.finished if update.finish_reason}


def make_scheduler(**options: object) -> Scheduler:
    values: dict[str, object] = {"max_model_len": 512, "num_kv_blocks": 256, "max_num_batched_tokens": 256}
    return Scheduler(SchedulerConfig(**(values | options)))  # type: ignore[arg-type]


def make_request(request_id: str, prompt: Iterable[int] | int = 5, **params: object) -> Request:
    """A greedy request; ``prompt`` may be a length: then no two requests share a block."""
    if isinstance(prompt, int):
        offset = zlib.crc32(request_id.encode()) % 90_000
        prompt = range(1000 + offset, 1000 + offset + prompt)
    values: dict[str, object] = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
    return Request(
        id=RequestId(request_id),
        prompt_token_ids=list(prompt),
        params=SamplingParams(**(values | params)),  # type: ignore[arg-type]
        arrived_at=0.0,
    )


def expected_tokens(request: Request) -> list[int]:
    """What the fake runner gives to ``request`` when it ends by length."""
    start = len(request.prompt_token_ids)
    return [token_at(position) for position in range(start, start + (request.params.max_tokens or 0))]


async def in_thread(wait: threading.Semaphore) -> None:
    """Wait for another thread without blocking the event loop."""
    assert await asyncio.to_thread(wait.acquire, timeout=WAIT_S), "what was waited for never came"


async def step_over(engine: Engine) -> None:
    """Return once the engine has done a step, or found that there is none to do, with all that was sent before."""
    for _ in range(2):  # the first answer comes before a step, the second one behind it
        await engine.reset_prefix_cache()


def assert_all_free(scheduler: Scheduler) -> None:
    """No seat, no block and no request is left."""
    scheduler.check_invariants()
    assert scheduler.num_running == scheduler.num_waiting == 0
    assert scheduler.reset_prefix_cache(), "no block is in use"


class StartedEngine:
    """An engine that is stopped at the end of the ``with`` block."""

    def __init__(self, scheduler: Scheduler | None = None, runner: FakeRunner | None = None, **options: object) -> None:
        self.scheduler = scheduler or make_scheduler()
        self.runner = runner or FakeRunner()
        self.witness = Witness()
        self.engine = Engine(self.scheduler, self.runner, sinks=[self.witness], **options)  # type: ignore[arg-type]

    def __enter__(self) -> StartedEngine:
        self.engine.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.runner.let_go()
        self.engine.stop()

    def run(self, scenario: Callable[..., Coroutine[Any, Any, object]], *more: object) -> StartedEngine:
        """Start, run ``scenario`` with this and ``more``, stop."""
        with self:
            asyncio.run(scenario(self, *more))
        return self


async def read(engine: Engine, request: Request) -> tuple[list[int], RequestUpdate]:
    """Return all tokens of ``request`` and its last update."""
    tokens: list[int] = []
    last: RequestUpdate | None = None
    async for (update,) in await engine.submit([request]):
        assert last is None or last.finish_reason is None, "nothing comes after the end"
        tokens += update.new_token_ids
        last = update
    assert last is not None
    return tokens, last
