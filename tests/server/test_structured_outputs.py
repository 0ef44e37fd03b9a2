"""Answers of a real model, asked for in a form: OpenAI's client over a socket, the native runner, SmolLM2."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

from server.processes import TIMEOUT_S, Process

pytestmark = pytest.mark.model

OPTIONS = ("--port", "0", "--max-num-seqs", "8", "--threads", "2")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SAY = [{"role": "user", "content": "Invent a person. Answer in JSON."}]


def serve(model: Path, *options: str) -> Process:
    return Process("hotseat", "serve", str(model), "--served-model-name", "m", *OPTIONS, *options)


@pytest.fixture(scope="module")
def url(default_model_path: Path) -> Iterator[str]:
    process = serve(default_model_path, "--max-model-len", "1024")
    yield process.url
    process.kill()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="x", timeout=TIMEOUT_S, max_retries=0) as one:
        yield one


def chat(client: openai.OpenAI, *, stream: bool = False, **fields: Any) -> tuple[str, str]:
    """Return text and finish reason of an answer; fields that OpenAI does not know go along."""
    known = {name: fields.pop(name) for name in ("response_format", "n", "seed", "temperature", "stop") & fields.keys()}
    values: dict[str, Any] = {"model": "m", "messages": SAY, "max_tokens": 100, "temperature": 0, **known}
    values["max_tokens"] = fields.pop("max_tokens", 100)
    if not stream:
        choice = client.chat.completions.create(**values, extra_body=fields).choices[0]
        return choice.message.content or "", choice.finish_reason
    text, reason = "", ""
    for chunk in client.chat.completions.create(**values, extra_body=fields, stream=True):
        text += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    return text, reason


class Pet(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    legs: int = pydantic.Field(ge=0, le=8)
    kind: Literal["cat", "dog"]
    owner: str | None = pydantic.Field(default=None, max_length=12)
    toys: list[Literal["ball", "bone"]] = pydantic.Field(max_length=2)


def test_a_pydantic_model_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="m", messages=SAY, response_format=Pet, temperature=1, seed=3, max_tokens=300
    )
    message = answer.choices[0].message
    assert isinstance(message.parsed, Pet)
    assert answer.choices[0].finish_reason == "stop"
    assert message.content is not None
    assert message.content == message.content.strip()


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_object_is_an_object(client: openai.OpenAI, stream: bool) -> None:
    text, reason = chat(client, stream=stream, response_format={"type": "json_object"}, max_tokens=300, seed=1)
    if reason == "stop":
        assert isinstance(json.loads(text), dict)
    assert text.startswith("{")


def test_a_choice_is_one_of_them_whole_at_every_seed(client: openai.OpenAI) -> None:
    choices = ["yes", "no", "é😀"]
    found = {chat(client, temperature=2, seed=seed, structured_outputs={"choice": choices}) for seed in range(12)}
    assert {reason for _, reason in found} == {"stop"}
    assert {text for text, _ in found} <= set(choices)
    assert len(found) > 1


def test_a_regex_matches_whole_and_anchors_change_nothing(client: openai.OpenAI) -> None:
    plain = chat(client, structured_outputs={"regex": "[0-9]{3}-[0-9]{4}"})
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", plain[0])
    assert plain[1] == "stop"
    assert chat(client, structured_outputs={"regex": "^[0-9]{3}-[0-9]{4}$"}) == plain
    assert chat(client, stream=True, structured_outputs={"regex": "[0-9]{3}-[0-9]{4}"}) == plain


def test_gbnf_and_lark_give_equal_answers_in_either_field(client: openai.OpenAI) -> None:
    gbnf, lark = 'root ::= "I am " [0-9] [0-9] " years"', 'start: "I am " /[0-9][0-9]/ " years"'
    answers = {
        chat(client, grammar=gbnf),
        chat(client, structured_outputs={"grammar": gbnf}),
        chat(client, structured_outputs={"grammar": lark}),
    }
    assert len(answers) == 1
    assert re.fullmatch("I am [0-9]{2} years", answers.pop()[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"guided_json": PERSON}, {"json": PERSON}),
        ({"guided_regex": "[ab]{4}"}, {"regex": "[ab]{4}"}),
        ({"guided_choice": ["x", "y"]}, {"choice": ["x", "y"]}),
        ({"guided_grammar": 'root ::= "q" [0-9]'}, {"grammar": 'root ::= "q" [0-9]'}),
        ({"json_schema": PERSON}, {"json": json.dumps(PERSON)}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}},
            {"json": PERSON},
        ),
    ],
)
def test_other_names_give_the_same_answer(client: openai.OpenAI, old: dict[str, Any], new: dict[str, Any]) -> None:
    assert chat(client, temperature=1, seed=5, **old) == chat(client, temperature=1, seed=5, structured_outputs=new)


def test_what_cannot_be_held_to_is_refused_and_the_next_is_served(client: openai.OpenAI) -> None:
    for schema in ({"uniqueItems": True}, {"not": {}}, {"pattern": "(?=a)", "type": "string"}, {"$ref": "#"}):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, structured_outputs={"json": schema})
        assert caught.value.param == "structured_outputs"
    assert chat(client, structured_outputs={"choice": ["fine"]}) == ("fine", "stop")


def test_a_limit_cuts_a_value_and_says_so(client: openai.OpenAI) -> None:
    text, reason = chat(client, structured_outputs={"json": {"type": "string"}}, max_tokens=5)
    assert reason == "length"
    assert text.startswith('"')
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="m", messages=SAY, response_format=Pet, max_tokens=5)


TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 0, "maximum": 9},
                "below": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}},
            },
            "required": ["n", "below"],
            "additionalProperties": False,
        }
    },
}


def test_recursive_schemas_validate_at_many_seeds(client: openai.OpenAI) -> None:
    num_complete = 0
    for seed in range(4):
        text, reason = chat(client, temperature=1, seed=seed, structured_outputs={"json": TREE}, max_tokens=100)
        if reason == "stop":
            jsonschema.validate(json.loads(text), TREE)
            num_complete += 1
    assert num_complete > 0


def test_several_choices_have_a_grammar_each(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m",
        messages=SAY,
        n=4,
        seed=9,
        temperature=1,
        max_tokens=150,
        extra_body={"structured_outputs": {"json": PERSON}},
    )
    texts = [choice.message.content or "" for choice in answer.choices]
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    assert len(set(texts)) > 1
    assert chat(client, seed=9, temperature=1, structured_outputs={"json": PERSON}, max_tokens=150)[0] == texts[0]


@pytest.mark.parametrize("fields", [{"min_tokens": 50}, {"ignore_eos": True}, {"min_tokens": 50, "ignore_eos": True}])
def test_a_complete_form_ends_whatever_is_said_of_ends(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    assert chat(client, structured_outputs={"choice": ["yes"]}, **fields) == ("yes", "stop")


def test_min_tokens_holds_where_the_form_may_go_on(client: openai.OpenAI) -> None:
    text, reason = chat(client, structured_outputs={"regex": "[0-9]{1,200}"}, min_tokens=20, max_tokens=30)
    assert len(text) >= 20
    assert reason in ("stop", "length")


def test_a_stop_string_may_cut_a_form(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m",
        messages=SAY,
        stop=[","],
        temperature=0,
        max_tokens=100,
        extra_body={"structured_outputs": {"json": PERSON}},
    ).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content is not None
    assert "," not in answer.message.content
    assert answer.model_dump()["stop_reason"] == ","


def test_allowed_tokens_that_the_form_forbids_end_that_request_alone(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIError, match="structured_outputs"):
        chat(client, structured_outputs={"regex": "[0-9]+"}, allowed_token_ids=[1])
    assert chat(client, structured_outputs={"choice": ["fine"]}) == ("fine", "stop")


def test_logprobs_are_those_of_the_model(client: openai.OpenAI) -> None:
    prompt = "A person in JSON: "
    values: dict[str, Any] = {"model": "m", "temperature": 0}
    answer = client.completions.create(
        prompt=prompt, max_tokens=60, logprobs=3, extra_body={"structured_outputs": {"json": PERSON}}, **values
    ).choices[0]
    assert answer.logprobs is not None
    written = answer.logprobs.token_logprobs or []
    assert all(map(math.isfinite, written))
    ids = client.completions.create(
        prompt=prompt,
        max_tokens=60,
        extra_body={"structured_outputs": {"json": PERSON}, "return_token_ids": True},
        **values,
    ).choices[0]
    token_ids = ids.model_dump()["prompt_token_ids"] + ids.model_dump()["token_ids"]
    scored = client.completions.create(prompt=token_ids, max_tokens=0, logprobs=0, echo=True, **values).choices[0]
    assert scored.logprobs is not None
    again = (scored.logprobs.token_logprobs or [])[-len(written) :]
    assert again == pytest.approx(written, abs=2e-3)


def test_blanks_are_bounded(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Pretty-print a JSON person with many blank lines and deep indents."}]
    answer = client.chat.completions.create(
        model="m",
        messages=messages,
        temperature=1.5,
        seed=2,
        max_tokens=256,
        extra_body={"structured_outputs": {"json": PERSON}},
    ).choices[0]
    assert answer.finish_reason == "stop"
    assert not re.search(r"\s{9}", answer.message.content or "")


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_a_forced_call_is_valid_and_the_same_when_streamed(client: openai.OpenAI) -> None:
    values: dict[str, Any] = {"model": "m", "messages": SAY, "tools": [WEATHER], "temperature": 0, "max_tokens": 100}
    choice = client.chat.completions.create(tool_choice="required", **values).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
    with client.chat.completions.stream(tool_choice="required", **values) as stream:
        streamed = stream.get_final_completion().choices[0]
    (again,) = streamed.message.tool_calls or ()
    assert again.function.arguments == call.function.arguments
    assert streamed.finish_reason == "tool_calls"


async def crowd(url: str, requests: list[dict[str, Any]], *, alone: bool) -> list[tuple[str, str]]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", timeout=60, max_retries=0) as client:

        async def one(number: int, fields: dict[str, Any]) -> tuple[str, str]:
            answer = await client.completions.create(
                model="m", prompt=f"Guest {number} says: ", max_tokens=48, temperature=1, seed=number, extra_body=fields
            )
            return answer.choices[0].text, answer.choices[0].finish_reason

        if alone:
            return [await one(number, fields) for number, fields in enumerate(requests)]
        return await asyncio.gather(*(one(number, fields) for number, fields in enumerate(requests)))


def test_a_crowd_with_preemptions_gets_what_each_gets_alone(default_model_path: Path) -> None:
    requests: list[dict[str, Any]] = [{"ignore_eos": True} for _ in range(8)]
    requests[2] = {"structured_outputs": {"json": PERSON}}
    requests[5] = {"structured_outputs": {"regex": "([a-z]{3,8} ){10,20}"}}
    process = serve(default_model_path, "--num-kv-blocks", "16", "--max-model-len", "256")
    try:
        together = asyncio.run(crowd(process.url, requests, alone=False))
        alone = asyncio.run(crowd(process.url, requests, alone=True))
        metrics = _get(process.url + "/metrics")
    finally:
        process.kill()
    assert together == alone
    preempted = re.search(r"^vllm:num_preemptions_total\{.*\} (\S+)", metrics, re.MULTILINE)
    assert preempted is not None
    assert float(preempted[1]) > 0


def _get(url: str) -> str:
    import urllib.request

    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
        text: str = reply.read().decode()
        return text
