"""Grammars take what they should and nothing else, and what cannot be held to is refused with its reason."""

import json
from collections.abc import Iterable

import numpy as np
import pytest
import tokenizers

from hotseat.core.structured_outputs import StructuredOutputsParams
from hotseat.errors import GrammarError, InvalidRequestError
from hotseat.grammar import GrammarCompiler
from hotseat.text import Tokenizer

EOS, CALL = 256, 257
VOCAB = 300  # rows of logits: more than tokens


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level vocabulary: token i is byte i, then an end and an added token."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in plain}
    spelled |= {byte: chr(256 + n) for n, byte in enumerate(b for b in range(256) if b not in spelled)}
    assert set(spelled.values()) == set(alphabet)
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({spelled[byte]: byte for byte in range(256)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    backend.add_tokens(["<tool_call>"])
    return Tokenizer(backend, {"eos_token": "<end>"})


TOKENIZER = byte_tokenizer()
COMPILER = GrammarCompiler(
    TOKENIZER.to_json, vocab_size=VOCAB, eos_token_ids=[EOS], added_tokens=TOKENIZER.added_tokens
)


def takes(text: str | Iterable[int], **values: object) -> bool:
    """Tell whether ``text``, as bytes or tokens, is an answer that may end there; masks and steps must agree."""
    constraint = COMPILER.compile(StructuredOutputsParams.from_values(values)).constraint()
    for token in [*(text.encode() if isinstance(text, str) else text), EOS]:
        words = np.frombuffer(constraint.mask(), np.uint32)
        assert len(words) == (VOCAB + 31) // 32
        is_set = bool(words[token // 32] >> (token % 32) & 1)
        assert token == EOS or is_set == (constraint.num_valid([token]) == 1)
        if not is_set:
            with pytest.raises(GrammarError):
                constraint.accept(token)
            return False
        constraint.accept(token)
    return True


def refusal(**values: object) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        COMPILER.compile(StructuredOutputsParams.from_values(values, param="guided_json"))
    assert caught.value.param == "guided_json"
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "good", "bad"),
    [
        ({"regex": "[0-9]{3}-[0-9]{4}"}, ["555-0123"], ["555-012", "5555-0123", ""]),
        ({"regex": "^[0-9]{2}$"}, ["12"], ["1", "^12$"]),
        ({"choice": ["yes", "no", "é😀", 'a"b\\']}, ["yes", "no", "é😀", 'a"b\\'], ["ye", "yesno", "é"]),
        ({"json_object": True}, ["{}", '{"a": [1, "ü"]}'], ["[1]", "1", " {}", "{} ", "{" + " " * 9 + "}"]),
        ({"json": {"type": "integer"}}, ["-3"], ["3.5", '"3"']),
        ({"json": '{"type": "string"}'}, ['"</tool_call> \\n"'], ["x"]),
        ({"json": {"type": "string", "format": "password"}}, ['"x"'], ["1"]),
        ({"json": True}, ["1", "[]"], ["x"]),
        ({"json": {"type": "array"}, "disable_any_whitespace": True}, ["[1,2]"], ["[1, 2]"]),
        ({"json": {"type": "array"}, "whitespace_pattern": "[ ]?"}, ["[1, 2]"], ["[1,  2]"]),
        ({"grammar": 'root ::= "a" [0-9]+ | "b"'}, ["a12", "b"], ["a", "c"]),
        ({"grammar": 'start: "a" /[0-9]+/ | "b"'}, ["a12", "b"], ["a", "c"]),
        (
            {"json": {"type": "object", "properties": {"a": {}}}, "disable_additional_properties": True},
            ['{"a":1}', "{}"],
            ['{"b":1}'],
        ),
    ],
)
def test_an_answer_is_taken_exactly_when_it_has_the_form(
    values: dict[str, object], good: list[str], bad: list[str]
) -> None:
    for text in good:
        assert takes(text, **values), text
    for text in bad:
        assert not takes(text, **values), text


RECURSIVE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["n", "below"],
            "additionalProperties": False,
        }
    },
}


def test_schemas_may_be_recursive() -> None:
    tree = {"n": 1, "below": [{"n": 2, "below": []}, {"n": 3, "below": [{"n": 4, "below": []}]}]}
    assert takes(json.dumps(tree), json=RECURSIVE)
    assert not takes('{"n": 1, "below": [{"n": 2}]}', json=RECURSIVE)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"not": {"type": "string"}}}, "not"),
        ({"json": {"$ref": "http://127.0.0.1:1/x"}}, "http://127.0.0.1:1/x"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 1}}, "minimum (5) is greater than maximum (1)"),
        ({"json": {"$ref": "#"}}, "nothing can ever match"),
        ({"json": {"type": "integer", "minimum": 10**30}}, "not JSON serializable"),
        ({"json": [1]}, "object"),
        ({"json": "{"}, "not JSON"),
        ({"json": "[" * 10_000}, "json"),
        ({"json": "[" * 70 + "]" * 70}, "64 deep"),
        ({"regex": "("}, "unclosed group"),
        ({"regex": r"[^\s\S]"}, "nothing can ever match"),
        ({"grammar": 'root ::= "a'}, "grammar"),
        ({"grammar": 'start: "a" | b'}, "unknown name"),
        ({"grammar": "start: x\nx[max_tokens=5]: /a+/"}, "max_tokens"),
        ({"structural_tag": {"x": 1}}, "structures"),
        ({"structural_tag": {"format": {"type": "odd"}}}, "odd"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({}, "none"),
        ({"choice": []}, "not empty"),
        ({"json_object": False}, "true"),
        ({"regex": "a\0"}, "NUL"),
        ({"regex": "\ud800"}, "surrogate"),
        ({"regex": "a" * 300_000}, "262144"),
        ({"choice": ["a"] * 10_001}, "10000"),
        ({"regexp": "a"}, "regexp"),
    ],
)
def test_what_cannot_be_held_to_is_refused_with_its_reason(values: dict[str, object], words: str) -> None:
    assert words in refusal(**values)


def test_after_a_refusal_others_are_compiled() -> None:
    refusal(regex="(")
    assert takes("1", regex="1")


CALL_TAG = {
    "structures": [{"begin": "<tool_call>", "schema": {"type": "object"}, "end": "</tool_call>"}],
    "triggers": ["<tool_call>"],
}


def test_a_structural_tag_holds_to_its_schema_after_the_trigger_alone() -> None:
    good = [*b"Hi { ", CALL, *b'{"a": "</tool_call>"}</tool_call> done']
    assert takes(good, structural_tag=CALL_TAG)
    assert takes("no call at all", structural_tag=CALL_TAG)
    assert not takes([CALL, *b"[1]</tool_call>"], structural_tag=CALL_TAG)
    tree = {"type": "tag", "begin": "[", "content": {"type": "regex", "pattern": "a/b+"}, "end": "]"}
    nested = {"format": {"type": "sequence", "elements": [tree, {"type": "const_string", "value": "!"}]}}
    assert takes("[a/bb]!", structural_tag=nested)
    assert not takes("[a/]!", structural_tag=nested)


def test_a_plain_trigger_is_found_within_text() -> None:
    tag = {
        "format": {
            "type": "triggered_tags",
            "triggers": ["<fn="],
            "tags": [
                {
                    "begin": "<fn=f>",
                    "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
                    "end": "</fn>",
                }
            ],
        }
    }
    assert takes("a <b <fn=f>12</fn> c", structural_tag=tag)
    assert takes("a <f", structural_tag=tag)
    assert not takes("a <fn=g>12</fn>", structural_tag=tag)
    assert not takes('<fn=f>"12"</fn>', structural_tag=tag)


def test_each_answer_has_a_copy_and_can_go_back() -> None:
    grammar = COMPILER.compile(StructuredOutputsParams(regex="ab|ac"))
    one, other = grammar.constraint(), grammar.constraint()
    one.accept(ord("a"))
    with pytest.raises(GrammarError):
        other.accept(ord("b"))
    one.accept(ord("b"))
    assert one.is_complete
    one.rollback(1)
    assert not one.is_complete
    one.accept(ord("c"))
    assert one.is_complete


def test_a_grammar_is_compiled_once() -> None:
    params = StructuredOutputsParams(regex="[a-f]{4}")
    assert COMPILER.cached(params) is None
    grammar = COMPILER.compile(params)
    again = StructuredOutputsParams(regex="[a-f]{4}", param="guided_regex")
    assert COMPILER.compile(again) is COMPILER.cached(params) is grammar


def test_the_cache_is_bounded() -> None:
    compiler = GrammarCompiler(TOKENIZER.to_json, vocab_size=VOCAB, eos_token_ids=[EOS])
    all_params = [StructuredOutputsParams(choice=(f"c{i}",)) for i in range(300)]
    for params in all_params:
        compiler.compile(params)
    assert compiler.cached(all_params[0]) is None
    assert compiler.cached(all_params[-1]) is not None


def test_fuel_ends_an_answer_and_not_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotseat.grammar.compiler.MAX_LEXER_STATES", 300)
    compiler = GrammarCompiler(TOKENIZER.to_json, vocab_size=VOCAB, eos_token_ids=[EOS])
    constraint = compiler.compile(StructuredOutputsParams(regex="(a|b)*a(a|b){20}c")).constraint()
    rng = np.random.default_rng(1)

    def write() -> None:
        for token in rng.choice([ord("a"), ord("b")], 1000).tolist():
            constraint.mask()
            constraint.accept(token)

    with pytest.raises(GrammarError, match="the grammar cannot go on"):
        write()
