"""Write a chat as the prompt that a model was trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from hotseat.errors import InvalidRequestError, ModelError
from hotseat.text.chat_messages import plain_messages, plain_value

__all__ = ["ChatTemplate"]

_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "
_OWN_NAMES = ("messages", "tools", "documents", "add_generation_prompt")


class ChatTemplate:
    """A model's chat template, compiled once and rendered as transformers renders it.

    A template is code that comes with a model. What is guarded: it runs in Jinja's sandbox, so it reaches no Python
    internals, no files and no modules; it sees copies made of plain JSON values and cannot change the caller's; it
    cannot loop over a ``range`` of more than 100,000; its output is cut off with an error beyond ``max_chars``. What is
    not guarded: time and memory. Nested loops can run for ever and values can be doubled until memory is full, and
    nothing in Python can interrupt that. So templates are taken from the model or the operator, never from a request.
    Messages are data: nothing in them is ever run.
    """

    __slots__ = ("_compiled", "_max_chars", "_special_tokens")

    def __init__(
        self,
        source: str | None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        special_tokens: Mapping[str, str] | None = None,
        max_chars: int = 8_000_000,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile ``source``; ``None`` stands for a model without a template.

        ``special_tokens`` are more names of the same kind (``unk_token``, ``pad_token`` …), ``now`` is the clock of
        templates that write today's date. Raises ModelError when the template is not valid Jinja.
        """
        named = {"bos_token": bos_token, "eos_token": eos_token}
        self._special_tokens = {**(special_tokens or {}), **{k: v for k, v in named.items() if v is not None}}
        self._max_chars = max_chars
        self._compiled: jinja2.Template | None = None
        if source is not None:
            try:
                self._compiled = _environment(now).from_string(source)
            except jinja2.TemplateSyntaxError as error:
                raise ModelError(f"the chat template is broken in line {error.lineno}: {error.message}") from error

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
        values["add_generation_prompt"] = add_generation_prompt
        if not continue_final_message:
            return self._run(self._compiled, values)
        chat = values["messages"]
        final = chat[-1].get("content")
        if not isinstance(final, str):
            raise InvalidRequestError("the final message has no content to continue", param="messages")
        chat[-1]["content"] = final + _CONTINUE_HERE
        return _cut_at_mark(self._run(self._compiled, values), final)

    def _run(self, template: jinja2.Template, values: Mapping[str, Any]) -> str:
        chunks = []
        size = 0
        try:
            for chunk in template.generate({**self._special_tokens, **values}):
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
    if isinstance(error, jinja2.UndefinedError):
        return f"the chat template needs something that the messages lack: {error}"
    if isinstance(error, jinja2.TemplateError):
        return f"the chat template refuses the messages: {error}"  # raise_exception: the template's own words
    return f"the chat template fails on these messages: {type(error).__name__}: {error}"


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """Return the Jinja environment that transformers gives to chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    environment.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
    environment.globals["namespace"] = _GuardedNamespace
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _GuardedNamespace(Namespace):
    """Jinja's ``namespace()`` without attributes that begin with an underscore, which could shadow Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_free(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_free(name)
        super().__setitem__(name, value)


def _check_free(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}")


class _GenerationTag(Extension):
    """``{% generation %} … {% endgeneration %}`` marks what the assistant wrote, for training; here it is just text."""

    tags = {"generation"}  # noqa: RUF012  (Jinja reads it from the class)

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the tag as a block with a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Macro) -> str:
        return caller()
