"""The form that an answer must have, as callers may and may not state it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hotseat.core.structured_outputs import MAX_CHOICES, MAX_GRAMMAR_BYTES, StructuredOutputsParams
from hotseat.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("values", "name", "kept"),
    [
        ({"json": {"type": "string"}}, "json", '{"type": "string"}'),
        ({"json": '{"type": "string"}'}, "json", '{"type": "string"}'),
        ({"regex": "[a-z]+", "json": None}, "regex", "[a-z]+"),
        ({"choice": ["yes", " "]}, "choice", ("yes", " ")),
        ({"grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"json_object": True, "whitespace_pattern": " ?"}, "json_object", True),
        ({"structural_tag": {"structures": []}}, "structural_tag", '{"structures": []}'),
    ],
)
def test_each_kind_is_taken_as_it_is_stated(values: dict[str, Any], name: str, kept: object) -> None:
    assert getattr(StructuredOutputsParams.from_values(values), name) == kept


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "must be an object"),
        ({}, "not none"),
        ({"regexp": "a"}, "has no field 'regexp'"),
        ({"param": "x"}, "has no field 'param'"),
        ({"regex": "a", "choice": ["b"]}, "not regex and choice"),
        ({"regex": " \n"}, "regex must be text that is not empty"),
        ({"regex": 5}, "regex must be text that is not empty"),
        ({"regex": "\ud800"}, "regex holds a lone surrogate"),
        ({"regex": "a\0"}, "regex must not hold the character NUL"),
        ({"grammar": "x" * (MAX_GRAMMAR_BYTES + 1)}, f"has {MAX_GRAMMAR_BYTES + 1} bytes"),
        ({"json": {"minimum": math.nan}}, "json is not JSON"),
        ({"json_object": False}, "json_object must be true"),
        ({"choice": []}, "choice must be a list"),
        ({"choice": "yes"}, "choice must be a list"),
        ({"choice": ["a", ""]}, "choice must be text that is not empty"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, f"at most {MAX_CHOICES} strings"),
        ({"choice": ["x" * MAX_GRAMMAR_BYTES, "y"]}, f"choice has {MAX_GRAMMAR_BYTES + 1} characters"),
        ({"regex": "a", "whitespace_pattern": ""}, "whitespace_pattern must be text"),
        ({"regex": "a", "disable_any_whitespace": 1}, "disable_any_whitespace must be true or false"),
    ],
)
def test_what_states_no_form_is_refused_with_the_clients_name_of_the_field(values: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        StructuredOutputsParams.from_values(values, "response_format")
    assert caught.value.param == "response_format"
    assert "response_format" in str(caught.value)
