"""Services behind the endpoints: the engine and its surroundings, ready to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hotseat.engine import Engine
from hotseat.formats import OutputFormat, choose_format
from hotseat.generation import Generator
from hotseat.text import ChatTemplate, Tokenizer

__all__ = ["ModelInfo", "ServerServices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Public properties of the served model. The first of ``served_names`` is its proper one."""

    served_names: tuple[str, ...]
    max_model_len: int
    created: int  # seconds since 1970
    root: str = ""  # path or hub id that it was loaded from

    def __post_init__(self) -> None:
        assert self.served_names, "a model is served under at least one name"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerServices:
    """The objects behind the endpoints, wired elsewhere."""

    engine: Engine
    generator: Generator
    tokenizer: Tokenizer
    model: ModelInfo
    chat_template: ChatTemplate | None = None
    # What a request's omitted sampling fields become: the model's generation_config, by SamplingParams' names.
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    render_metrics: Callable[[], bytes] = bytes  # Prometheus text format
    honours_priority: bool = False  # whether the scheduling policy looks at a request's priority
    honours_deadline: bool = False  # the same of its deadline_ms
    max_num_seqs: int = 64  # seats
    max_num_queued_reqs: int | None = None  # sequences that may wait for a seat
    dtype: str = ""  # precision of the weights
    policy: str = ""  # name of the scheduling policy
    started_s: float | None = None  # when the process began, on the engine's clock
    determinism: Mapping[str, object] = field(default_factory=dict)  # what is promised about the bits of answers
    observe_loop_lag: Callable[[float], None] | None = None  # told how late the event loop was, many times a second
    tick: Callable[[float], None] | None = None  # told the time of the engine's clock about once a second
    tool_call_parser: str | None = None  # the format of calls, by name; None: by the chat template
    reasoning_parser: str | None = None  # the same of reasoning
    output_format: OutputFormat = field(init=False)
    has_special_markers: bool = field(init=False)  # markers of the format are special tokens

    def __post_init__(self) -> None:
        template = self.chat_template
        found = choose_format(
            template.source if template else "",
            partial(_render, template) if template else None,
            tool_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
        )
        markers = " ".join((*found.tools.markers, *(found.reasoning or ())))
        special = (token for token, id_ in self.tokenizer.added_tokens().items() if self.tokenizer.is_special(id_))
        object.__setattr__(self, "output_format", found)
        object.__setattr__(self, "has_special_markers", any(token in markers for token in special if token))


def _render(template: ChatTemplate, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    return template.render(messages, tools=tools, add_generation_prompt=False)
