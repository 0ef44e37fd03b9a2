"""Chat templates: a chat as the prompt that a model was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from hotseat.errors import InvalidRequestError, ModelError
from hotseat.text.chat_messages import join_parts, plain_messages, plain_value, second_attempts
from hotseat.text.plain_contents import ContentMarker, MarkedPrompt
from hotseat.text.template_sandbox import TemplateLimitError, metered, template_environment

__all__ = ["ChatTemplate"]

_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "
_CALLS = [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}]
_USER, _ANSWER = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
# What stands before and after the message with parts when a template is tried, by its role.
_TRIALS: dict[str, tuple[tuple[list[dict[str, Any]], list[dict[str, Any]]], ...]] = {
    "user": (([], []), ([_USER, _ANSWER], [])),
    "system": (([], [_USER]),),
    "developer": (([], [_USER]),),
    "assistant": (([_USER], [_USER]), ([_USER], [])),
    "tool": (([_USER, {"role": "assistant", "content": "", "tool_calls": _CALLS}], []),),
}
_MAX_ROLES = 16  # that are remembered: a client can invent any number
_OWN_NAMES = ("messages", "tools", "documents", "add_generation_prompt")


class ChatTemplate:
    """A model's chat template, compiled once and rendered as transformers renders it.

    A template is code that comes with a model. It runs in Jinja's sandbox, so it reaches no Python internals, no files
    and no modules; it sees copies made of plain JSON values and cannot change the caller's; it is stopped with an error
    beyond ``max_steps`` passes, calls and filters, or ``max_chars`` of text. Messages are data: nothing in them is run.
    """

    __slots__ = (
        "_compiled",
        "_has_developer",
        "_marker",
        "_max_chars",
        "_max_steps",
        "_special_tokens",
        "_takes_parts",
        "source",
    )

    def __init__(
        self,
        source: str | None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        special_tokens: Mapping[str, str] | None = None,
        max_chars: int = 8_000_000,
        max_steps: int = 5_000_000,
        plain_tokens: Iterable[str] = (),
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile ``source``; ``None`` stands for a model without a template.

        ``special_tokens`` are more names of the same kind (``unk_token``, ``pad_token`` …), ``now`` is the clock of
        templates that write today's date. ``plain_tokens`` are control tokens that stay text where a request spells
        them: ``render`` returns a ``MarkedPrompt`` then, for their tokenizer. Raises ModelError when the template is
        not valid Jinja.
        """
        named = {"bos_token": bos_token, "eos_token": eos_token}
        self._special_tokens = {**(special_tokens or {}), **{k: v for k, v in named.items() if v is not None}}
        self.source = source or ""
        self._max_chars = max_chars
        self._max_steps = max_steps
        self._takes_parts: dict[str, bool] = {}  # by role
        self._marker = ContentMarker(plain) if (plain := tuple(plain_tokens)) else None
        self._compiled: jinja2.Template | None = None
        if source is not None:
            try:
                self._compiled = template_environment(now).from_string(source)
            except jinja2.TemplateSyntaxError as error:
                raise ModelError(f"the chat template is broken in line {error.lineno}: {error.message}") from error
        self._has_developer = source is not None and "developer" in source and self._shows("developer", "Aq1")

    def with_source(self, source: str) -> ChatTemplate:
        """Return another template for the same model. Raises ModelError when it is not valid Jinja."""
        other = ChatTemplate(
            source, special_tokens=self._special_tokens, max_chars=self._max_chars, max_steps=self._max_steps
        )
        other._marker = self._marker
        return other

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> str:
        """Return the prompt for ``messages``; encode it without adding special tokens, it has them all.

        ``add_generation_prompt`` ends it with the opening of the assistant's turn; ``continue_final_message`` leaves
        the last message open instead, so that the model goes on with it. ``template_kwargs`` are further names that
        the template may read. Raises InvalidRequestError whose ``param`` points at what is wrong.
        """
        if self._compiled is None:
            raise InvalidRequestError(
                "this model has no chat template, so it cannot chat; use /v1/completions, or give a template",
                param="messages",
            )
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        values = _template_values(messages, tools, documents, template_kwargs)
        if self._marker is not None:
            values = {name: self._marker.mark(value) for name, value in values.items()}
        values["add_generation_prompt"] = add_generation_prompt
        chat = self._shape(values.pop("messages"))
        final = _open_final(chat) if continue_final_message else None
        rendered = self._run_until_it_fits(self._compiled, chat, values)
        if final is not None:
            rendered = _cut_at_mark(rendered, final)
        return rendered if self._marker is None else MarkedPrompt(rendered)

    def _shape(self, chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Bring roles and contents into the form that this template reads."""
        if not self._has_developer:
            chat = [{**message, "role": "system"} if message["role"] == "developer" else message for message in chat]
        return join_parts(chat, self._reads_parts)

    def _reads_parts(self, role: str) -> bool:
        """Tell whether the template reads the parts of a content itself, by trying it once for each role."""
        if role not in self._takes_parts:
            if len(self._takes_parts) >= _MAX_ROLES:
                return False
            # The mark shows in the prompt when parts are written as they are, instead of their texts.
            parts = [{"type": "text", "text": text, "mark": "Wq3"} for text in ("Aq1", "Zq2")]
            self._takes_parts[role] = self._shows(role, parts)
        return self._takes_parts[role]

    def _shows(self, role: str, content: str | list[dict[str, str]]) -> bool:
        """Try the template on a message; return whether its text is in the prompt, and nothing but its text."""
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        further = {"tool_call_id": _CALLS[0]["id"], "name": "f"} if role == "tool" else {}
        if self._compiled is None:
            return False
        for before, after in _TRIALS.get(role, _TRIALS["user"]):
            chat = [*before, {"role": role, "content": content, **further}, *after]
            try:
                rendered = self._run(self._compiled, {"messages": chat, "tools": None, "add_generation_prompt": False})
            except InvalidRequestError:
                continue
            return "Wq3" not in rendered and all(text in rendered for text in texts)
        return False

    def _run_until_it_fits(self, template: jinja2.Template, chat: list[dict[str, Any]], values: dict[str, Any]) -> str:
        try:
            return self._run(template, {**values, "messages": chat})
        except InvalidRequestError:
            for other in second_attempts(chat):
                try:
                    return self._run(template, {**values, "messages": other})
                except InvalidRequestError:
                    pass
            raise

    def _run(self, template: jinja2.Template, values: Mapping[str, Any]) -> str:
        chunks = []
        size = 0
        try:
            for chunk in metered(
                template, {**self._special_tokens, **values}, self._max_steps, 2 * self._max_chars + 1000
            ):
                size += len(chunk)
                if size > self._max_chars:
                    break
                chunks.append(chunk)
        except Exception as error:  # a template can raise anything
            raise InvalidRequestError(_in_plain_words(error), param="messages") from error
        if size > self._max_chars:
            raise InvalidRequestError(
                f"the chat is longer than {self._max_chars} characters once rendered", param="messages"
            )
        return "".join(chunks)


def _template_values(messages: object, tools: object, documents: object, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Check everything that the template will see, and copy it."""
    for name in _OWN_NAMES:
        if name in extra:
            raise InvalidRequestError(f"{name} is not a free name of chat templates", param="chat_template_kwargs")
    try:
        return {
            **{name: plain_value(value, f"chat_template_kwargs.{name}") for name, value in extra.items()},
            "messages": plain_messages(messages),
            "tools": plain_value(tools, "tools"),
            "documents": plain_value(documents, "documents"),
        }
    except RecursionError as error:
        raise InvalidRequestError("the messages are nested too deeply", param="messages") from error


def _open_final(chat: list[dict[str, Any]]) -> str:
    """Put a mark at the end of the final message's text, in place; return the text without it."""
    content = chat[-1].get("content")
    if isinstance(content, list) and content:
        part = content[-1] = dict(content[-1])
        final = part["text"]
        part["text"] = final + _CONTINUE_HERE
    elif isinstance(content, str):
        final = content
        chat[-1]["content"] = final + _CONTINUE_HERE
    else:
        raise InvalidRequestError("the final message has no content to continue", param="messages")
    return str(final)


def _cut_at_mark(rendered: str, final: str) -> str:
    """Cut a rendered chat where the text of its final message ends."""
    mark = _CONTINUE_HERE.strip()
    if final.strip() not in rendered or mark not in rendered:
        raise InvalidRequestError(
            "this model's chat template does not write the final message as it is, so it cannot be continued",
            param="continue_final_message",
        )
    at = rendered.rindex(mark)
    if rendered[at : at + len(_CONTINUE_HERE)] == _CONTINUE_HERE:
        return rendered[:at]
    return rendered[:at].rstrip()  # the template trims its messages


def _in_plain_words(error: Exception) -> str:
    if isinstance(error, SecurityError):
        return f"the chat template did something that is not allowed: {error}"
    if isinstance(error, TemplateLimitError):
        return f"the chat template was stopped: {error}"
    if isinstance(error, jinja2.UndefinedError):
        return f"the chat template needs something that the messages lack: {error}"
    if isinstance(error, jinja2.TemplateError):
        return f"the chat template refuses the messages: {error}"  # raise_exception: the template's own words
    return f"the chat template fails on these messages: {type(error).__name__}: {error}"
