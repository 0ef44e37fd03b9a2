"""``LLM``: prompts in, texts out, in the caller's own thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, TypeAlias

from tqdm import tqdm

from hotseat import wiring
from hotseat.core.request import SamplingParams
from hotseat.errors import HotseatError, InvalidRequestError
from hotseat.generation import OfflineGenerator, PromptRequest, embedding_of
from hotseat.llm.chat_tokenizer import ChatTokenizer
from hotseat.llm.outputs import EmbeddingOutput, EmbeddingRequestOutput, OutputCollector, RequestOutput
from hotseat.llm.prompts import Prompt, read_prompts, refuse_lora

__all__ = ["LLM"]

Message: TypeAlias = Mapping[str, Any]

# vLLM's methods that are not there, and what does the same.
_NOT_HERE = {
    "beam_search": "beam search is not supported; SamplingParams(n=...) gives several answers",
    "classify": "models that classify are not supported",
    "encode": "pooling models are not supported",
    "llm_engine": "there is no engine to step by hand; AsyncLLM takes requests one by one",
    "reward": "reward models are not supported",
    "start_profile": "measure with `hotseat bench step`",
    "stop_profile": "measure with `hotseat bench step`",
    "sleep": "close the LLM and make another",
    "wake_up": "close the LLM and make another",
    "collective_rpc": "one process computes",
}


class LLM:
    """A model, ready to answer.

    ``model`` is a GGUF file, a Hugging Face directory or hub id; the default is a small model that is fetched once.
    ``options`` are the flags of ``hotseat serve`` that concern model, runner and scheduler, by their Python names:
    ``LLM(max_num_seqs=16, dtype="fp32", kv_cache_memory_bytes="1GiB")``. vLLM's own options are taken where they
    change no answer, with a warning where they have no effect, and refused otherwise (docs/from-vllm.md).

    Raises:
        ConfigError: an option is unknown or wrong.
        ModelError: the model cannot be loaded.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        values: dict[str, Any] = {"cache_dir": wiring.default_cache_dir(os.environ)} | options
        self._components = wiring.make_components(wiring.EngineArgs.from_values(values | {"model": model}, "for LLM"))
        self._loop = self._components.make_step_loop()
        self._generator = OfflineGenerator(self._loop, self._components.tokenizer, self._components.limits)
        self._num_requests = 0

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the runner's threads and memory; idempotent."""
        self._loop.close()

    def __getattr__(self, name: str) -> Any:
        why = f": {_NOT_HERE[name]}" if name in _NOT_HERE else ""
        raise AttributeError(f"LLM has no attribute {name!r}{why}")

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self._components.model.name

    def get_tokenizer(self) -> ChatTokenizer:
        """Return the model's tokenizer, which also renders chats."""
        return ChatTokenizer(self._components.tokenizer, self._components.chat_template)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; false when requests are running."""
        return self._components.scheduler.reset_prefix_cache()

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what is used when no sampling parameters are given: the model's own defaults."""
        return SamplingParams(**self.sampling_defaults)

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The fields of ``SamplingParams`` for which the model has defaults of its own."""
        return dict(self._components.sampling_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        *,
        priority: Sequence[int] | None = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
    ) -> list[RequestOutput]:
        """Complete ``prompts``, all at once as far as seats allow; outputs are in the order of the prompts.

        A prompt is a text, a list of token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``.
        ``sampling_params`` and ``priority`` are one for all or one for each. ``use_tqdm`` may be a replacement for
        ``tqdm``. Ctrl-C, and any other exception, aborts all of them.

        Raises:
            InvalidRequestError: a prompt or its parameters do not fit the model; nothing has been run then.
        """
        refuse_lora(lora_request)
        return self._run(read_prompts(prompts, prompt_token_ids), sampling_params, use_tqdm, priority, special=True)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        *,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, through the model's chat template; else as ``generate``.

        ``tools`` are shown to the model; its calls are in the text, as the model writes them. ``chat_template``
        replaces the model's own.
        """
        refuse_lora(lora_request)
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        template = self._components.chat_template
        if chat_template is not None:
            template = template.with_source(chat_template)
        prompts: list[str | list[int]] = [
            template.render(
                conversation,  # type: ignore[arg-type]
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        return self._run(prompts, sampling_params, use_tqdm, priority, special=False)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        pooling: str = "last",
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """Embed ``prompts``, each in one vector: the final hidden state of its last token, or the ``mean`` of all.

        ``dimensions`` keeps the first ones; vectors have the length 1 unless ``normalize`` is false.

        Raises:
            InvalidRequestError: a prompt does not fit the model, or an argument is wrong.
            HotseatError: the model could not compute a prompt.
        """
        params = SamplingParams(max_tokens=0)
        requests = [PromptRequest(prompt=prompt, params=params, pooling=pooling) for prompt in read_prompts(prompts)]
        make_bar = use_tqdm if callable(use_tqdm) else tqdm
        outputs: dict[int, EmbeddingRequestOutput] = {}
        with (
            closing(self._generator.generate(requests)) as steps,
            make_bar(total=len(requests), desc="Embedded prompts", disable=not use_tqdm, dynamic_ncols=True) as bar,
        ):
            for delta in (delta for deltas in steps for delta in deltas):
                if delta.pooled is None:
                    raise HotseatError(f"prompt {delta.prompt} failed: {delta.error}")
                values = embedding_of(delta.pooled, dimensions, normalize=normalize)
                outputs[delta.prompt] = EmbeddingRequestOutput(
                    request_id=self._next_id(),
                    outputs=EmbeddingOutput(embedding=values),
                    prompt_token_ids=delta.prompt_token_ids or [],
                )
                bar.update(1)
        return [outputs[number] for number in range(len(requests))]

    def stream(self, prompt: str, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Complete one prompt piece by piece; leaving early aborts it.

        Raises:
            HotseatError: the request failed.
        """
        return self._stream(prompt, sampling_params, special=True)

    def stream_chat(self, messages: Sequence[Message], sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Answer one conversation piece by piece; else as ``stream``."""
        return self._stream(self._components.chat_template.render(messages), sampling_params, special=False)

    def _stream(self, prompt: str, sampling_params: SamplingParams | None, *, special: bool) -> Iterator[str]:
        params = sampling_params or self.get_default_sampling_params()
        if params.n != 1:
            raise InvalidRequestError(f"one answer can be streamed, not {params.n}", param="n")
        with closing(
            self._generator.generate([PromptRequest(prompt=prompt, params=params, add_special_tokens=special)])
        ) as steps:
            for deltas in steps:
                for delta in deltas:
                    if delta.finish_reason == "error":
                        raise HotseatError(f"the request failed: {delta.error}")
                    if delta.text:
                        yield delta.text

    def _run(
        self,
        prompts: Sequence[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool | Callable[..., Any],
        priority: Sequence[int] | None,
        *,
        special: bool,
    ) -> list[RequestOutput]:
        all_params = self._params_for_each(sampling_params, len(prompts))
        priorities = self._priorities(priority, len(prompts))
        requests = [
            PromptRequest(prompt=prompt, params=params, priority=level, add_special_tokens=special)
            for prompt, params, level in zip(prompts, all_params, priorities, strict=True)
        ]
        outputs = [OutputCollector(self._next_id(), request, self._components.tokenizer) for request in requests]
        make_bar = use_tqdm if callable(use_tqdm) else tqdm
        with (
            closing(self._generator.generate(requests)) as steps,
            make_bar(total=len(requests), desc="Processed prompts", disable=not use_tqdm, dynamic_ncols=True) as bar,
        ):
            progress = _Progress(bar)
            for deltas in steps:
                now = self._loop.clock.now()
                for delta in deltas:
                    output = outputs[delta.prompt]
                    if output.add(delta, now):
                        progress.finished(output.result)
        return [output.result for output in outputs]

    def _params_for_each(
        self, sampling_params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        if isinstance(sampling_params, SamplingParams):
            return [sampling_params] * count
        if len(sampling_params) != count:
            raise InvalidRequestError(
                f"{count} prompts, but {len(sampling_params)} sampling parameters", param="sampling_params"
            )
        return sampling_params

    def _priorities(self, priority: Sequence[int] | None, count: int) -> list[int]:
        if priority is None:
            return [0] * count
        if len(priority) != count:
            raise InvalidRequestError(f"{count} prompts, but {len(priority)} priorities", param="priority")
        if any(priority) and not self._components.scheduler.policy.uses_priority:
            policy = self._components.scheduler_config.scheduling_policy
            raise InvalidRequestError(
                f'the policy {policy} does not look at priority; say LLM(scheduling_policy="priority")',
                param="priority",
            )
        return list(priority)

    def _next_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests - 1)


class _Progress:
    """The bar, with the speed so far."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._began_at = time.perf_counter()
        self._num_input = self._num_output = 0

    def finished(self, result: RequestOutput) -> None:
        self._num_input += len(result.prompt_token_ids)
        self._num_output += sum(len(output.token_ids) for output in result.outputs)
        seconds = max(time.perf_counter() - self._began_at, 1e-9)
        self._bar.set_postfix_str(
            f"est. speed input: {self._num_input / seconds:.2f} toks/s, "
            f"output: {self._num_output / seconds:.2f} toks/s",
            refresh=False,
        )
        self._bar.update(1)
