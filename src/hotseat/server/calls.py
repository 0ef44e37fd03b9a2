"""Tools and reasoning in chats: what a request asks for, and the shapes of calls in its answer."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hotseat.core.request import SamplingParams, StructuredOutputsParams
from hotseat.core.structured_outputs import Preamble
from hotseat.errors import InvalidRequestError
from hotseat.formats import AnswerParser, CallDelta, OutputFormat, calls_after_text, either, forced_calls, make_parser
from hotseat.generation import OutputDelta
from hotseat.server.schema import ChatCompletionRequest
from hotseat.server.tool_history import with_history, with_tools
from hotseat.server.tools import ToolChoice, tool_choice

__all__ = ["ChatForm", "chat_form", "parsed_deltas", "parsed_message"]

MAX_CHOICES_BESIDE_CALLS = 256  # of an answer that may be a call instead


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatForm:
    """The tools and the reasoning of a chat request."""

    output_format: OutputFormat
    choice: ToolChoice = field(default_factory=ToolChoice)
    may_reason: bool = True  # False: the request forbids it
    continued: str | None = None  # the text that the answer goes on with

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """Return the tools to be shown to the template."""
        return self.choice.shown if self.output_format.template_has_tools else ()

    @property
    def has_named_tool(self) -> bool:
        """Tell whether the request names the tool that is to be called."""
        return self.choice.is_named

    @property
    def is_parsed(self) -> bool:
        """Tell whether answers are split."""
        found = self.output_format
        return bool(self.choice.callable) or found.reasoning is not None or found.is_harmony

    def messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages as the template can show them; where it shows no tools, one tells of them."""
        messages = with_history(messages, self.output_format)
        if not self.choice.shown or self.output_format.template_has_tools:
            return messages
        return with_tools(messages, self.choice.shown, self.output_format)

    def constrained(self, params: SamplingParams, prompt: str, *, shows_special: bool = False) -> SamplingParams:
        """Return ``params`` that hold the answer to its form, after the reasoning if there is any.

        ``shows_special``: some markers are special tokens, which the parser must see.

        Raises:
            InvalidRequestError: a call is forced and another form is asked for, or a tool has no form.
        """
        if shows_special and self.is_parsed and params.skip_special_tokens:
            params = replace(params, skip_special_tokens=False)
        form = params.structured_outputs
        if self.choice.is_forced and form is not None:
            raise InvalidRequestError("A forced call and another form exclude each other.", param="tool_choice")
        calls = self._calls_form(form)
        form = calls or form
        if form is None:
            return params
        preamble = self._preamble(prompt, is_answer=calls is None)
        return replace(params, structured_outputs=replace(form, preamble=preamble))

    def parser(self, prompt: str) -> Callable[[], AnswerParser] | None:
        """Return what makes the parsers of the answers to ``prompt``, as it was rendered."""
        if not self.is_parsed:
            return None
        found, choice, in_reasoning = self.output_format, self.choice, self._is_in_reasoning(prompt)
        max_calls = 1 if choice.is_single else None
        return lambda: make_parser(
            found, tools=choice.callable, prompt=prompt, in_reasoning=in_reasoning, max_calls=max_calls
        )

    def _calls_form(self, form: StructuredOutputsParams | None) -> StructuredOutputsParams | None:
        """Return the form of an answer with calls, where they are held to one."""
        choice, found = self.choice, self.output_format
        answer = None if form is None else _node(form)
        if not choice.callable or not (choice.is_forced or answer or (choice.is_restricted and form is None)):
            return None
        try:
            if choice.is_forced:
                # Small models that were never trained to call go on calling: one is enough for them.
                several = not choice.is_single and found.template_has_tools
                node = forced_calls(found, choice.callable, several=several)
            elif answer is not None:
                calls = forced_calls(found, choice.callable, several=not choice.is_single)
                node = either(calls, answer, found)
            else:
                node = calls_after_text(found, choice.callable, several=not choice.is_single)
        except ValueError as error:
            raise InvalidRequestError(f"`tools` cannot be used: {error}", param="tools") from None
        made = StructuredOutputsParams.from_values({"structural_tag": {"format": node}}, "tools")
        if form is None:
            return made
        return replace(
            made,
            whitespace_pattern=form.whitespace_pattern,
            disable_any_whitespace=form.disable_any_whitespace,
            param=form.param,
        )

    def _preamble(self, prompt: str, *, is_answer: bool) -> Preamble | None:
        """Return the reasoning that stands before the form."""
        found = self.output_format
        answer_open = found.answer_open if is_answer else ""
        opened, closed = found.reasoning or ("", "")
        if not closed or not self.may_reason or prompt.rstrip().endswith(closed) or self._has_answer_begun(prompt):
            opened = closed = ""
        elif self._is_in_reasoning(prompt):
            opened = ""
        return Preamble(opened, closed, answer_open) if closed or answer_open else None

    def _is_in_reasoning(self, prompt: str) -> bool:
        """Tell whether the prompt has opened the reasoning and not closed it."""
        if self.output_format.reasoning is None:
            return False
        opened, closed = self.output_format.reasoning
        if self.continued is not None:
            return self.continued.rfind(opened) > self.continued.rfind(closed)
        return prompt.rstrip().endswith(opened.rstrip())

    def _has_answer_begun(self, prompt: str) -> bool:
        return self.continued is not None and not self._is_in_reasoning(prompt)


def _node(form: StructuredOutputsParams) -> dict[str, Any] | None:
    """Return ``form`` as a node of a structural tag; ``None`` where it is a grammar, which none can hold."""
    if form.json is not None and not form.disable_additional_properties:
        try:
            return {"type": "json_schema", "json_schema": json.loads(form.json)}
        except (ValueError, RecursionError):
            return None  # the compiler tells what is wrong with it
    if form.json_object:
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if form.choice is not None and len(form.choice) <= MAX_CHOICES_BESIDE_CALLS:
        return {"type": "or", "elements": [{"type": "const_string", "value": one} for one in form.choice]}
    return {"type": "regex", "pattern": form.regex} if form.regex is not None else None


def chat_form(body: ChatCompletionRequest, output_format: OutputFormat) -> ChatForm:
    """Return what ``body`` asks for, checked.

    Raises:
        InvalidRequestError: tools or tool_choice are wrong; ``param`` names the field.
    """
    options = body.chat_template_kwargs or {}
    may_reason = options.get("enable_thinking", options.get("thinking")) is not False
    last = body.messages[-1].content
    return ChatForm(
        output_format=output_format,
        choice=tool_choice(body),
        may_reason=may_reason and body.reasoning_effort != "none",
        continued=last if body.continue_final_message and isinstance(last, str) else None,
    )


def parsed_message(
    text: str, reasoning: Sequence[str], calls: Sequence[CallDelta], *, shows_reasoning: bool
) -> dict[str, Any]:
    """Return the fields of a message that was parsed; the content of nothing but calls is null."""
    message: dict[str, Any] = {"content": text or None if calls or reasoning else text}
    if shows_reasoning:
        message["reasoning"] = message["reasoning_content"] = "".join(reasoning) or None
    if calls:
        shaped: list[dict[str, Any]] = []
        for call in calls:
            if call.name is not None:
                shaped.append({"id": _new_id(), "type": "function", "function": {"name": call.name, "arguments": ""}})
            shaped[call.number]["function"]["arguments"] += call.arguments
        message["tool_calls"] = shaped
    return message


def parsed_deltas(delta: OutputDelta, *, shows_reasoning: bool) -> list[dict[str, Any]]:
    """Return the ``delta`` objects of a chunk each; id and name of a call come once, with the first of it."""
    parts: list[dict[str, Any]] = []
    if delta.reasoning and shows_reasoning:
        parts.append({"reasoning": delta.reasoning, "reasoning_content": delta.reasoning})
    if delta.text:
        parts.append({"content": delta.text})
    for call in delta.calls or ():
        shaped: dict[str, Any] = {"index": call.number, "function": {"arguments": call.arguments}}
        if call.name is not None:
            shaped |= {"id": _new_id(), "type": "function"}
            shaped["function"] = {"name": call.name, "arguments": call.arguments}
        parts.append({"tool_calls": [shaped]})
    return parts


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
