"""From prompts to streams of text, for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing

from hotseat.core.explain import Explanation, FinishedRequest
from hotseat.core.request import Request, RequestId
from hotseat.engine import Engine
from hotseat.generation.grammars import Grammars
from hotseat.generation.prompts import ModelLimits, PromptReader, PromptRequest
from hotseat.generation.sequence import OutputDelta, SequenceOutputs
from hotseat.generation.threads import TokenizerThreads
from hotseat.grammar import Grammar
from hotseat.text import Tokenizer

__all__ = ["Generator"]

SEQUENCE_SIZE = 32  # what a sequence costs before it is queued, in characters to tokenize


class Generator:
    """Tokenize, check, run in ``engine`` and detokenize."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, limits: ModelLimits) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._reader = PromptReader(tokenizer, limits)
        self._grammars = Grammars(tokenizer, limits)
        self._threads = TokenizerThreads()
        self._running: dict[str, list[RequestId]] = {}  # the engine's ids by the caller's
        self._leaving: dict[str, list[RequestId]] = {}  # the same of those that left and have not ended, oldest first

    async def generate(
        self, prompts: Sequence[PromptRequest], *, request_id: str = "request"
    ) -> AsyncGenerator[list[OutputDelta]]:
        """Yield the deltas of all sequences of ``prompts``, one list for each engine step that brought any.

        A slow reader finds several steps in one list, still with one delta for each sequence. Closing the iterator
        aborts what has not ended.

        Raises:
            InvalidRequestError: prompt or parameters do not fit the model, or the form that is asked of the answer
                cannot be held to; before anything is yielded.
            QueueFullError: the waiting queue is at its limit.
            EngineStoppedError: the engine takes no requests.
        """
        arrived_at = self._engine.clock.now()
        grammars = [await self._grammars.get_async(prompt.params, request_id, arrived_at) for prompt in prompts]
        size = sum(len(prompt.prompt) + SEQUENCE_SIZE * prompt.params.n for prompt in prompts)

        def prepare() -> tuple[list[list[Request]], SequenceOutputs]:
            made = self._requests(prompts, grammars, request_id, arrived_at)
            return made, SequenceOutputs(made, self._tokenizer, self._engine.finish, prompts)

        requests, outputs = await self._threads.run(size, prepare)
        everything = [request for siblings in requests for request in siblings]
        ids = [request.id for request in everything]
        self._running.setdefault(request_id, []).extend(ids)
        try:
            with closing(await self._engine.submit(everything)) as stream:
                async for updates in stream:
                    deltas = outputs.feed(updates)
                    if deltas:
                        yield deltas
                    if not outputs.num_open:
                        return
        finally:
            self._forget(request_id, set(ids))

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``, on the path of the prompts that are generated from.

        Raises:
            PromptTooLongError: its head alone has twice the tokens that the model can hold.
            InvalidRequestError: it holds what is no character.
        """
        return await self._threads.run(len(text), lambda: self._reader.read(text, add_special_tokens))

    def abort(self, request_id: str) -> None:
        """End the sequences of ``request_id`` now; nothing happens when there are none."""
        for own_id in tuple(self._running.get(request_id, ())):
            self._engine.abort(own_id)

    async def explain(self, request_id: str) -> list[Explanation | FinishedRequest]:
        """Return the states of the sequences of ``request_id``, or the histories of those that ended lately.

        Answers at once, also while a step is computed.
        """
        compiling = self._grammars.explain(request_id, self._engine.clock.now(), self._engine.stats())
        ids = self._running.get(request_id)
        if not ids:
            ids = sorted({*self._finished(request_id), *self._leaving.get(request_id, ())}, key=_position)
        explanations = await asyncio.gather(*(self._explain(own_id) for own_id in ids))
        return [explanation for explanation in (*explanations, *compiling) if explanation is not None]

    def _finished(self, request_id: str) -> list[RequestId]:
        """Return the ids of its sequences among the last that ended."""
        return [own_id for own_id in self._engine.finished_ids() if _is_of(own_id, request_id)]

    async def _explain(self, own_id: RequestId) -> Explanation | FinishedRequest | None:
        return self._engine.finished(own_id) or await self._engine.explain(own_id) or self._engine.finished(own_id)

    def close(self) -> None:
        """Release the tokenizer's threads; idempotent. The engine belongs to the caller."""
        self._threads.close()
        self._grammars.close()

    def _requests(
        self, prompts: Sequence[PromptRequest], grammars: Sequence[Grammar | None], request_id: str, arrived_at: float
    ) -> list[list[Request]]:
        names = [request_id] if len(prompts) == 1 else [f"{request_id}-p{number}" for number in range(len(prompts))]
        return [
            self._reader.requests(prompt, name, arrived_at, grammar)
            for prompt, name, grammar in zip(prompts, names, grammars, strict=True)
        ]

    def _forget(self, request_id: str, ids: set[RequestId]) -> None:
        self._note_leaving(request_id, [own_id for own_id in ids if self._engine.is_known(own_id)])
        left = [own_id for own_id in self._running[request_id] if own_id not in ids]
        if left:
            self._running[request_id] = left
        else:
            del self._running[request_id]

    def _note_leaving(self, request_id: str, ids: list[RequestId]) -> None:
        """Remember sequences that end with the present step, and forget those that have ended with an earlier one."""
        while self._leaving:
            oldest = next(iter(self._leaving))
            if any(map(self._engine.is_known, self._leaving[oldest])):
                break
            del self._leaving[oldest]
        if ids:
            self._leaving.setdefault(request_id, []).extend(ids)


def _position(own_id: RequestId) -> tuple[int, int]:
    serial, _, index = own_id.rpartition(".")[2].partition("/")
    return int(serial), int(index or 0)


def _is_of(own_id: RequestId, request_id: str) -> bool:
    """Tell whether a sequence's id, ``request.serial/index`` or ``request-pN.serial/index``, is of ``request_id``."""
    name = own_id.rpartition(".")[0]
    return request_id in (name, name.rpartition("-p")[0])
