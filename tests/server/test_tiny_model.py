"""A real model, if a tiny one, behind OpenAI's client: a crowd gets what each would get alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from server.processes import TIMEOUT_S, Process
from tiny_models import write_tiny_hf_model

OPTIONS = ("--port", "0", "--runner", "reference", "--max-num-seqs", "8", "--num-kv-blocks", "200")
PROMPTS = [f"Guest number {number} sits down at table {number * 7}" for number in range(16)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = write_tiny_hf_model(tmp_path_factory.mktemp("model") / "tiny")
    process = Process("hotseat", "serve", str(model), *OPTIONS)
    yield process.url
    process.kill()


async def stream(client: openai.AsyncOpenAI, number: int, *, leaves: bool = False) -> tuple[str, str | None]:
    """Return text and finish reason of one seeded stream; a client that leaves closes it after its second chunk."""
    text, reason = "", None
    async with await client.completions.create(
        model="tiny", prompt=PROMPTS[number], max_tokens=8 + 3 * number, seed=number, temperature=1, stream=True
    ) as chunks:
        count = 0
        async for chunk in chunks:
            text += chunk.choices[0].text
            reason = chunk.choices[0].finish_reason or reason
            count += 1
            if leaves and count == 2:
                break
    return text, reason


def test_a_crowd_that_half_leaves_gets_what_each_gets_alone(url: str) -> None:
    async def talk() -> tuple[list[Any], list[Any], Any]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S) as client:
            crowd = await asyncio.gather(
                *(stream(client, number, leaves=number % 2 == 1) for number in range(len(PROMPTS)))
            )
            alone = [await stream(client, number) for number in range(0, len(PROMPTS), 2)]
            load = await client.with_options(base_url=url).get("/load", cast_to=object)
            return crowd[::2], alone, load

    crowd, alone, load = asyncio.run(talk())
    assert crowd == alone
    assert all(reason in ("stop", "length") for _, reason in crowd)
    assert (load["num_requests_running"], load["num_requests_waiting"], load["server_load"]) == (0, 0, 0)


def test_streamed_and_whole_answers_are_the_same_text(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S) as client:
        fields: Any = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "🙂 Köln"}],
            "max_tokens": 40,
            "seed": 3,
        }
        whole = client.chat.completions.create(**fields, n=2)
        pieces = ["", ""]
        for chunk in client.chat.completions.create(**fields, n=2, stream=True):
            choice = chunk.choices[0]
            pieces[choice.index] += choice.delta.content or ""
    assert pieces == [choice.message.content for choice in whole.choices]


def test_scoring_a_text_sums_up_its_own_logprobs(url: str) -> None:
    """Token for token, what echo says of a generated text is what was said when it was generated."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S) as client:
        fields: Any = {"model": "tiny", "temperature": 0, "logprobs": 1}
        generated = client.completions.create(
            **fields, prompt=[5, 6, 7], max_tokens=6, extra_body={"return_token_ids": True, "ignore_eos": True}
        ).choices[0]
        ids = [5, 6, 7, *generated.token_ids]
        scored = client.completions.create(**fields, prompt=ids, echo=True, max_tokens=0).choices[0]
    assert len(scored.logprobs.token_logprobs) == len(ids)
    assert scored.logprobs.token_logprobs[0] is None
    assert scored.logprobs.token_logprobs[3:] == pytest.approx(generated.logprobs.token_logprobs, abs=1e-3)
