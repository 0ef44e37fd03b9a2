"""The form that an answer must have, as a client states it, and what the scheduler's side asks of a grammar."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

from hotseat.errors import InvalidRequestError

__all__ = ["MAX_CHOICES", "MAX_GRAMMAR_BYTES", "Preamble", "StructuredOutputsParams", "TokenConstraint"]

MAX_GRAMMAR_BYTES = 256 * 1024  # of any one schema, expression or grammar
MAX_CHOICES = 10_000

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class TokenConstraint(Protocol):
    """A grammar on its way through one answer. It is a function of the tokens accepted so far, and of nothing else."""

    ends_answer: bool  # whether it says where the answer ends, as a grammar does and a list of words does not

    def mask(self) -> Any:
        """Return which tokens may come next, a buffer as ``TokenMask.words``; valid until the next call.

        Raises:
            GrammarError: the grammar ran out of its fuel.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Go on by one token.

        Raises:
            GrammarError: it cannot come here.
        """
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens, as after a draft."""
        ...


class Preamble(NamedTuple):
    """The reasoning before an answer in a form: free text from ``open`` to ``close``, then ``answer_open``.

    Without ``open`` the prompt has opened it. Where the model opens it, it may also go without.
    """

    open: str
    close: str
    answer_open: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an answer. Names and meanings are vLLM's; exactly one of the first six must be set.

    ``json`` is a JSON schema, as text or as an object; ``regex`` must match the whole answer (Rust's syntax);
    ``choice`` lists the possible answers; ``grammar`` is GBNF or Lark; ``json_object`` asks for any JSON object;
    ``structural_tag`` lets free text go on until a trigger, then holds to a schema until the tag's end.
    Between the tokens of JSON at most eight blanks may stand, or what ``whitespace_pattern`` matches, or none.

    Raises:
        InvalidRequestError: none or several are set, or a value is empty or too large; ``param`` names the field.
    """

    json: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    preamble: Preamble | None = None  # set by the server, never by clients
    param: str = field(default="structured_outputs", compare=False)  # the client's name of it, for errors

    def __post_init__(self) -> None:
        for name in ("json", "structural_tag"):
            _set(self, name, self._as_text(name))
        choice: Any = self.choice
        if isinstance(choice, list):
            _set(self, "choice", tuple(choice))
        chosen = [name for name in _KINDS if getattr(self, name) is not None]
        if len(chosen) != 1:
            found = " and ".join(chosen) if chosen else "none"
            raise self.error(f"takes exactly one of {', '.join(_KINDS)}, not {found}")
        self._check_value(chosen[0], getattr(self, chosen[0]))
        if self.whitespace_pattern is not None:
            self._check_text("whitespace_pattern", self.whitespace_pattern)
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise self.error(f"{name} must be true or false")

    @classmethod
    def from_values(cls, values: Any, param: str = "structured_outputs") -> StructuredOutputsParams:
        """Return what the object ``values`` says; unknown keys are refused.

        Raises:
            InvalidRequestError: as the class does.
        """
        if not isinstance(values, dict):
            raise InvalidRequestError(f"{param} must be an object", param=param)
        known = {one.name for one in fields(cls)} - {"param", "preamble"}
        for name in values:
            if name not in known:
                raise InvalidRequestError(f"{param} has no field {str(name)[:60]!r}", param=param)
        given = {name: value for name, value in values.items() if value is not None}
        return cls(**given, param=param)

    def error(self, text: str) -> InvalidRequestError:
        """Return an error that names the client's field."""
        return InvalidRequestError(f"{self.param}: {text}", param=self.param)

    def _as_text(self, name: str) -> str | None:
        value: Any = getattr(self, name)
        if value is None or isinstance(value, str):
            return value
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.error(f"{name} is not JSON: {error}") from None

    def _check_value(self, name: str, value: Any) -> None:
        if name == "json_object":
            if value is not True:
                raise self.error("json_object must be true when it is sent")
        elif name == "choice":
            self._check_choice(value)
        else:
            self._check_text(name, value)

    def _check_choice(self, value: Any) -> None:
        if not isinstance(value, tuple) or not value:
            raise self.error("choice must be a list of strings that is not empty")
        if len(value) > MAX_CHOICES:
            raise self.error(f"choice takes at most {MAX_CHOICES} strings, not {len(value)}")
        for one in value:
            self._check_text("choice", one)
        total = sum(map(len, value))
        if total > MAX_GRAMMAR_BYTES:
            raise self.error(f"choice has {total} characters, at most {MAX_GRAMMAR_BYTES} are taken")

    def _check_text(self, name: str, value: Any) -> None:
        if not isinstance(value, str) or not value.strip(" \t\r\n" if name != "choice" else ""):
            raise self.error(f"{name} must be text that is not empty")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise self.error(f"{name} holds a lone surrogate, which is no character") from None
        if size > MAX_GRAMMAR_BYTES:
            raise self.error(f"{name} has {size} bytes, at most {MAX_GRAMMAR_BYTES} are taken")
        if "\0" in value:
            raise self.error(f"{name} must not hold the character NUL")


def _set(params: StructuredOutputsParams, name: str, value: object) -> None:
    object.__setattr__(params, name, value)  # the dataclass is frozen, and this is still its construction
