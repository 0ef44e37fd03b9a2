"""From a prompt to streams of text, for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

from hotseat.core.explain import Explanation, FinishedRequest
from hotseat.core.request import RequestId, SamplingParams
from hotseat.engine import Engine
from hotseat.generation.choices import Choices
from hotseat.generation.grammars import Grammars
from hotseat.generation.prompts import ModelLimits, PromptReader, RequestFactory, RequestOptions
from hotseat.generation.sequence import OutputDelta
from hotseat.text import Tokenizer

__all__ = ["Generator"]

# Characters. Below this, tokenizing takes less time than the way to another thread and back.
INLINE_PROMPT_LENGTH = 256
NUM_TOKENIZER_THREADS = 2
NUM_ENDED = 256  # generations that can be asked about after their end


class Generator:
    """Tokenize, check, run in ``engine`` and detokenize."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, limits: ModelLimits) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._reader = PromptReader(tokenizer, limits.max_model_len)
        self._requests = RequestFactory(limits)
        self._grammars = Grammars(tokenizer, limits)
        self._pool = ThreadPoolExecutor(NUM_TOKENIZER_THREADS, thread_name_prefix="hotseat-tokenizer")
        self._running: dict[str, list[RequestId]] = {}  # the engine's ids by the caller's
        self._ended: dict[str, list[RequestId]] = {}  # the same for the last that ended, oldest first

    async def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        request_id: str = "request",
        priority: int = 0,
        tenant: str = "",
        deadline_ms: float | None = None,
        cache_salt: str = "",
        add_special_tokens: bool = True,
    ) -> AsyncGenerator[list[OutputDelta]]:
        """Yield the deltas of the ``params.n`` sequences, one list for each engine step that brought any.

        A slow reader finds several steps in one list, still with one delta for each sequence. Closing the iterator
        aborts what has not ended.

        Raises:
            InvalidRequestError: prompt or parameters do not fit the model, or the form that is asked of the answer
                cannot be held to; before anything is yielded.
            QueueFullError: the waiting queue is at its limit.
            EngineStoppedError: the engine takes no requests.
        """
        arrived_at = self._engine.clock.now()
        prompt_ids = await self._tokenize(prompt, add_special_tokens)
        options = RequestOptions(priority=priority, tenant=tenant, deadline_ms=deadline_ms, cache_salt=cache_salt)
        grammar = await self._grammars.get_async(params, request_id, arrived_at)
        requests = self._requests.build(
            prompt_ids, params, request_id=request_id, arrived_at=arrived_at, options=options, grammar=grammar
        )
        choices = Choices(requests, self._tokenizer, self._engine.finish)
        ids = [request.id for request in requests]
        stream = await self._engine.submit(requests)
        self._enter(request_id, ids)
        try:
            async for updates in stream:
                deltas = [delta for update in updates if (delta := choices.feed(update)) is not None]
                if deltas:
                    yield deltas
                if not choices.num_open:
                    return
        finally:
            stream.close()
            self._leave(request_id, ids)

    async def explain(self, request_id: str) -> list[Explanation | FinishedRequest]:
        """Say where the sequences of the caller's ``request_id`` are, or what became of the last that ended."""
        ids = self._running.get(request_id) or self._ended.get(request_id, [])
        explanations = await asyncio.gather(*(self._explain(own_id) for own_id in ids))
        compiling = self._grammars.explain(request_id, self._engine.clock.now(), self._engine.stats())
        return [explanation for explanation in (*explanations, *compiling) if explanation is not None]

    async def _explain(self, own_id: RequestId) -> Explanation | FinishedRequest | None:
        return self._engine.finished(own_id) or await self._engine.explain(own_id) or self._engine.finished(own_id)

    def close(self) -> None:
        """Release the tokenizer's threads; idempotent. The engine is somebody else's."""
        self._pool.shutdown(wait=False)
        self._grammars.close()

    async def _tokenize(self, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        if len(prompt) <= INLINE_PROMPT_LENGTH:
            return self._reader.read(prompt, add_special_tokens)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._reader.read, prompt, add_special_tokens)

    def _enter(self, request_id: str, ids: list[RequestId]) -> None:
        self._running.setdefault(request_id, []).extend(ids)

    def _leave(self, request_id: str, ids: list[RequestId]) -> None:
        self._ended.pop(request_id, None)
        self._ended[request_id] = ids
        if len(self._ended) > NUM_ENDED:
            del self._ended[next(iter(self._ended))]
        left = [own_id for own_id in self._running[request_id] if own_id not in ids]
        if left:
            self._running[request_id] = left
        else:
            del self._running[request_id]
