"""``AsyncLLM``: requests one by one, from coroutines, in vLLM's shapes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any

from hotseat import wiring
from hotseat.core.request import SamplingParams
from hotseat.core.sampling_params import RequestOutputKind
from hotseat.errors import InvalidRequestError
from hotseat.generation import Generator, PromptRequest
from hotseat.llm.chat_tokenizer import ChatTokenizer
from hotseat.llm.outputs import OutputCollector, RequestOutput
from hotseat.llm.prompts import Prompt, read_prompt, refuse_lora

__all__ = ["AsyncLLM", "EngineArgs"]


class EngineArgs:
    """The options of an engine by name, to be handed on."""

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self.model = model
        self.options = options


class AsyncLLM:
    """A model that takes requests at any time and runs them together, in a thread of its own.

    ``model`` and ``options`` are those of ``LLM``.

    Raises:
        ConfigError: an option is unknown or wrong.
        ModelError: the model cannot be loaded.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        values: dict[str, Any] = {"cache_dir": wiring.default_cache_dir(os.environ)} | options
        self._components = wiring.make_components(
            wiring.EngineArgs.from_values(values | {"model": model}, "for AsyncLLM")
        )
        self._engine = self._components.make_engine()
        self._generator = Generator(self._engine, self._components.tokenizer, self._components.limits)
        self._engine.start()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        """Return an engine with these options."""
        return cls(engine_args.model, **engine_args.options)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.shutdown)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str = "request",
        lora_request: None = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Complete one prompt and yield its output after each step that brought something.

        Each output is the whole so far, unless ``sampling_params.output_kind`` says otherwise; the last one is
        ``finished``. Closing the iterator, or cancelling its reader, aborts the request.

        Raises:
            InvalidRequestError: prompt or parameters do not fit the model.
            QueueFullError: the waiting queue is at its limit.
            EngineStoppedError: it was shut down.
        """
        refuse_lora(lora_request)
        if priority and not self._components.scheduler.policy.uses_priority:
            policy = self._components.scheduler_config.scheduling_policy
            raise InvalidRequestError(f"the policy {policy} does not look at priority", param="priority")
        params = sampling_params or self.get_default_sampling_params()
        request = PromptRequest(prompt=read_prompt(prompt), params=params, priority=priority)
        output = OutputCollector(request_id, request, self._components.tokenizer)
        kind = params.output_kind
        async with aclosing(self._generator.generate([request], request_id=request_id)) as steps:
            async for deltas in steps:
                now = self._engine.clock.now()
                for delta in deltas:
                    output.add(delta, now)
                has_finished = output.result.finished
                if kind is RequestOutputKind.DELTA:
                    yield output.take()
                elif kind is RequestOutputKind.CUMULATIVE or has_finished:
                    yield output.snapshot()

    async def abort(self, request_id: str) -> None:
        """End a request now; its iterator gives a last output with ``finish_reason`` abort."""
        self._generator.abort(request_id)

    async def get_tokenizer(self) -> ChatTokenizer:
        """Return the model's tokenizer, which also renders chats."""
        return ChatTokenizer(self._components.tokenizer, self._components.chat_template)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached content; false when requests are running."""
        return await self._engine.reset_prefix_cache()

    async def check_health(self) -> None:
        """Return while requests are taken and make progress.

        Raises:
            RuntimeError: they are not; the message says why.
        """
        health = self._engine.health()
        if not health.alive:
            raise RuntimeError(health.reason)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what is used when no sampling parameters are given: the model's own defaults."""
        return SamplingParams(**self._components.sampling_defaults)  # type: ignore[arg-type]

    def shutdown(self) -> None:
        """Abort what runs and release threads and memory; idempotent. Blocks until it is done."""
        self._engine.stop()
        self._generator.close()
