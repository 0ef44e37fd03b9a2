"""Grammars for requests, compiled beside the event loop while other requests go on."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from hotseat.core.events import SchedulerStats
from hotseat.core.explain import Explanation, explain_compiling
from hotseat.core.request import RequestId, SamplingParams
from hotseat.generation.prompts import ModelLimits
from hotseat.grammar import Grammar, GrammarCompiler
from hotseat.text import Tokenizer

__all__ = ["Grammars"]


class Grammars:
    """Gives each request the grammar that it asks for.

    A grammar is compiled before its request enters the engine: what cannot be held to is refused before it is queued,
    and what takes its time takes no seat and no blocks meanwhile.
    """

    def __init__(self, tokenizer: Tokenizer, limits: ModelLimits) -> None:
        self._compiler = GrammarCompiler(
            tokenizer.to_json,
            vocab_size=limits.vocab_size,
            eos_token_ids=limits.eos_token_ids,
            added_tokens=tokenizer.added_tokens,
        )
        # One thread: grammars take milliseconds, and the slowest ones wait for each other.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hotseat-grammar")
        self._compiling: dict[str, list[float]] = {}  # the caller's ids of those that wait, and since when

    def get(self, params: SamplingParams) -> Grammar | None:
        """Return the grammar that ``params`` ask for, if any.

        Raises:
            InvalidRequestError: it cannot be held to.
        """
        wanted = params.structured_outputs
        return None if wanted is None else self._compiler.compile(wanted)

    async def get_async(self, params: SamplingParams, request_id: str, arrived_at: float) -> Grammar | None:
        """Return the grammar that ``params`` ask for, if any; unless it is cached, from another thread.

        Raises:
            InvalidRequestError: it cannot be held to.
        """
        wanted = params.structured_outputs
        if wanted is None:
            return None
        cached = self._compiler.cached(wanted)
        if cached is not None:
            return cached
        self._compiling.setdefault(request_id, []).append(arrived_at)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._compiler.compile, wanted)
        finally:
            self._compiling[request_id].remove(arrived_at)
            if not self._compiling[request_id]:
                del self._compiling[request_id]

    def explain(self, request_id: str, now: float, stats: SchedulerStats) -> list[Explanation]:
        """Explain the requests of the caller's ``request_id`` whose grammars are being compiled."""
        return [
            explain_compiling(RequestId(request_id), now - arrived_at, stats)
            for arrived_at in self._compiling.get(request_id, ())
        ]

    def close(self) -> None:
        """Release the thread; idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)
