"""Answers of a real model in forms of many kinds validate.

HOTSEAT_SCHEMAS is the number of schemas, HOTSEAT_SCHEMA_SEEDS the answers for each.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from grammar.schemas import schema
from server.processes import Process

pytestmark = pytest.mark.model

NUM_SCHEMAS = int(os.environ.get("HOTSEAT_SCHEMAS", "11"))
NUM_SEEDS = int(os.environ.get("HOTSEAT_SCHEMA_SEEDS", "1"))


@pytest.fixture(scope="module")
def url(default_model_path: Path) -> Iterator[str]:
    options = ("--port", "0", "--max-num-seqs", "16", "--threads", "2", "--max-model-len", "512")
    process = Process("hotseat", "serve", str(default_model_path), "--served-model-name", "m", *options)
    yield process.url
    process.kill()


async def answers(url: str, pairs: list[tuple[int, int]]) -> list[tuple[str, str]]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", timeout=600, max_retries=0) as client:

        async def one(number: int, seed: int) -> tuple[str, str]:
            answer = await client.completions.create(
                model="m",
                prompt="A guest in JSON: ",
                max_tokens=96,
                temperature=1,
                seed=seed,
                extra_body={"structured_outputs": {"json": schema(number)}},
            )
            return answer.choices[0].text, answer.choices[0].finish_reason

        return await asyncio.gather(*(one(number, seed) for number, seed in pairs))


def test_what_a_model_writes_in_a_form_validates(url: str) -> None:
    pairs = [(number, seed) for number in range(NUM_SCHEMAS) for seed in range(NUM_SEEDS)]
    num_complete = 0
    for (number, _), (text, reason) in zip(pairs, asyncio.run(answers(url, pairs)), strict=True):
        wanted: dict[str, Any] = schema(number)
        if reason == "stop":
            validator = jsonschema.validators.validator_for(wanted, jsonschema.Draft202012Validator)
            validator(wanted).validate(json.loads(text))
            num_complete += 1
    assert num_complete >= len(pairs) // 2
