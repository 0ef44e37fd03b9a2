"""A real model behind the unmodified clients of three APIs, over a socket: SmolLM2 and the native runner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from server.processes import TIMEOUT_S, Process

pytestmark = pytest.mark.model

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ASK: Any = [{"role": "user", "content": "What is the weather in Rome?"}]


@pytest.fixture(scope="module")
def url(default_model_path: Path) -> Iterator[str]:
    options = ("--served-model-name", "m", "--port", "0", "--max-num-seqs", "8", "--threads", "2")
    process = Process("hotseat", "serve", str(default_model_path), *options, "--max-model-len", "1024")
    yield process.url
    process.kill()


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="x", timeout=TIMEOUT_S, max_retries=0) as one:
        yield one


@pytest.fixture
def openai_client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="x", timeout=TIMEOUT_S, max_retries=0) as one:
        yield one


def test_a_message_is_the_same_streamed_whole_and_as_a_chat(
    client: anthropic.Anthropic, openai_client: openai.OpenAI
) -> None:
    fields: Any = {"model": "m", "max_tokens": 20, "messages": ASK, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    chat = openai_client.chat.completions.create(model="m", messages=ASK, temperature=0, max_tokens=20)
    answer = openai_client.responses.create(model="m", input=ASK, temperature=0, max_output_tokens=20)
    texts = {whole.content[0].text, streamed.content[0].text, chat.choices[0].message.content, answer.output_text}
    assert len(texts) == 1
    assert chat.usage is not None
    counted = client.messages.count_tokens(model="m", messages=ASK).input_tokens
    assert counted == chat.usage.prompt_tokens
    assert counted == streamed.usage.input_tokens + (streamed.usage.cache_read_input_tokens or 0)


def test_a_tool_is_called_in_both_apis(client: anthropic.Anthropic, openai_client: openai.OpenAI) -> None:
    tool: Any = {"name": "weather", "description": "Tell the weather", "input_schema": PARAMETERS}
    message = client.messages.create(model="m", max_tokens=60, messages=ASK, tools=[tool], tool_choice={"type": "any"})
    assert message.stop_reason == "tool_use"
    (block,) = message.content
    assert block.input["city"] in ("Oslo", "Rome")
    function: Any = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}
    with openai_client.responses.stream(model="m", input=ASK, tools=[function], tool_choice="required") as stream:
        response = stream.get_final_response()
    (call,) = response.output
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")


def test_embeddings_are_the_same_alone_and_in_a_crowd(openai_client: openai.OpenAI, url: str) -> None:
    texts = [f"Guest {number} sits down" * (1 + number % 3) for number in range(12)]
    alone = [openai_client.embeddings.create(model="m", input=text).data[0].embedding for text in texts]

    async def crowd() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", timeout=TIMEOUT_S) as many:
            chat = many.chat.completions.create(model="m", messages=ASK, max_tokens=30)
            return await asyncio.gather(*(many.embeddings.create(model="m", input=text) for text in texts), chat)

    assert [result.data[0].embedding for result in asyncio.run(crowd())[:-1]] == alone
