"""Use a model from Python, with no server: prompts in, texts out, in the caller's own thread.

    from hotseat import LLM, SamplingParams

    with LLM() as llm:
        for output in llm.generate(["The sky is", "Water is"], SamplingParams(temperature=0, max_tokens=20)):
            print(output.outputs[0].text)

Names and shapes are vLLM's.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from tqdm import tqdm

from hotseat import wiring
from hotseat.core.batch import TokenLogprobs
from hotseat.core.request import SamplingParams
from hotseat.errors import HotseatError, InvalidRequestError
from hotseat.generation import OfflineGenerator, OutputDelta, PromptRequest

if TYPE_CHECKING:
    from hotseat.text import Tokenizer

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput"]

logger = logging.getLogger(__name__)

Prompt: TypeAlias = str | Mapping[str, Any]  # text, {"prompt": text} or {"prompt_token_ids": [int, …]}
Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability of one token at one position; ``rank`` 1 is the most probable."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One of the ``n`` answers to a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None  # stop, length, abort, error, timeout
    stop_reason: str | int | None = None  # the stop string or stop token id that matched


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0


class LLM:
    """A model, ready to answer.

    ``model`` is a GGUF file, a Hugging Face directory or hub id; the default is a small model that is fetched once.
    ``options`` are the flags of ``hotseat serve`` that concern model, runner and scheduler, by their Python names:
    ``LLM(max_num_seqs=16, dtype="fp32", kv_cache_memory_bytes="1GiB")``.

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

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._components.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what is used when no sampling parameters are given: the model's own defaults."""
        return SamplingParams(**self.sampling_defaults)

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The fields of ``SamplingParams`` for which the model has defaults of its own."""
        return dict(self._components.sampling_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete ``prompts``, all at once as far as seats allow; outputs are in the order of the prompts.

        ``sampling_params`` and ``priority`` are one for all or one for each. ``use_tqdm`` may be a replacement for
        ``tqdm``. Ctrl-C, and any other exception, aborts all of them.

        Raises:
            InvalidRequestError: a prompt or its parameters do not fit the model; nothing has been run then.
        """
        is_one = isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable)
        many: Iterable[Any] = [prompts] if is_one else prompts
        return self._run([_read_prompt(prompt) for prompt in many], sampling_params, use_tqdm, priority, special=True)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        priority: Sequence[int] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, through the model's chat template; else as ``generate``."""
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        prompts: list[str | list[int]] = [
            self._components.chat_template.render(
                conversation,  # type: ignore[arg-type]
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        return self._run(prompts, sampling_params, use_tqdm, priority, special=False)

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
        priorities = [0] * len(prompts) if priority is None else list(priority)
        if len(priorities) != len(prompts):
            raise InvalidRequestError(f"{len(prompts)} prompts, but {len(priorities)} priorities", param="priority")
        requests = [
            PromptRequest(prompt=prompt, params=params, priority=level, add_special_tokens=special)
            for prompt, params, level in zip(prompts, all_params, priorities, strict=True)
        ]
        outputs = [_Output(self._next_id(), request, self._components.tokenizer) for request in requests]
        make_bar = use_tqdm if callable(use_tqdm) else tqdm
        with (
            closing(self._generator.generate(requests)) as steps,
            make_bar(total=len(requests), desc="Processed prompts", disable=not use_tqdm, dynamic_ncols=True) as bar,
        ):
            progress = _Progress(bar)
            for deltas in steps:
                for delta in deltas:
                    output = outputs[delta.prompt]
                    if output.add(delta):
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

    def _next_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests - 1)


def _read_prompt(prompt: object) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        if isinstance(text := prompt.get("prompt"), str):
            return text
        if isinstance(ids := prompt.get("prompt_token_ids"), Sequence):
            return list(ids)
    raise InvalidRequestError(
        "a prompt is a text, {'prompt': text} or {'prompt_token_ids': [integers]}", param="prompts"
    )


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


class _Output:
    """Collects the deltas of one prompt."""

    def __init__(self, request_id: str, request: PromptRequest, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        wants = request.params.logprobs is not None
        self._texts: list[list[str]] = [[] for _ in range(request.params.n)]
        self.result = RequestOutput(
            request_id=request_id,
            prompt=request.prompt if isinstance(request.prompt, str) else None,
            outputs=[
                CompletionOutput(index=index, logprobs=[] if wants else None, cumulative_logprob=0.0 if wants else None)
                for index in range(request.params.n)
            ],
        )

    def add(self, delta: OutputDelta) -> bool:
        """Take ``delta``; true when it was the last of the last answer."""
        result, output = self.result, self.result.outputs[delta.index]
        self._texts[delta.index].append(delta.text)
        output.token_ids += delta.token_ids
        if delta.logprobs is not None and output.logprobs is not None:
            output.logprobs += [self._logprobs(entry) for entry in delta.logprobs]
            output.cumulative_logprob = math.fsum(
                [output.cumulative_logprob or 0.0, *(entry.logprob for entry in delta.logprobs)]
            )
        if delta.prompt_token_ids is not None:
            result.prompt_token_ids = delta.prompt_token_ids
            if delta.prompt_logprobs is not None:
                result.prompt_logprobs = [None, *(self._logprobs(entry) for entry in delta.prompt_logprobs)]
        if delta.finish_reason is not None:
            output.text = "".join(self._texts[delta.index])
            output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason
            result.num_cached_tokens = max(result.num_cached_tokens, delta.num_cached_tokens)
            result.finished = all(other.finish_reason for other in result.outputs)
            if delta.error:
                logger.warning("request %s failed: %s", result.request_id, delta.error)
            return result.finished
        return False

    def _logprobs(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        text = self._tokenizer.token_text
        named = {token: Logprob(value, rank, text(token)) for rank, (token, value) in enumerate(entry.top, start=1)}
        return {entry.token_id: Logprob(entry.logprob, entry.rank, text(entry.token_id))} | named
