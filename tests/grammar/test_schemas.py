"""Nothing wrong is accepted: what grammars of many schemas let through validates against them.

HOTSEAT_SCHEMAS is the number of schemas (``make schemas`` takes 200), HOTSEAT_SCHEMA_SEEDS the answers for each.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import jsonschema
import pytest

from grammar.schemas import UNSUPPORTED, schema
from hotseat.core.structured_outputs import StructuredOutputsParams
from hotseat.errors import InvalidRequestError
from hotseat.grammar import GrammarCompiler
from server.fakes import EOS, VOCAB_SIZE, byte_tokenizer

NUM_SCHEMAS = int(os.environ.get("HOTSEAT_SCHEMAS", "44"))
NUM_SEEDS = int(os.environ.get("HOTSEAT_SCHEMA_SEEDS", "2"))
MAX_BYTES = 3000
ENDS = b'"}],'


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = byte_tokenizer()
    return GrammarCompiler(tokenizer.to_json, vocab_size=VOCAB_SIZE, eos_token_ids={EOS})


def answer(compiler: GrammarCompiler, wanted: dict[str, Any], draw: random.Random) -> str | None:
    """Return what a model with hardly any preference writes; ``None`` when it comes to no end."""
    constraint = compiler.compile(StructuredOutputsParams.from_values({"json": wanted})).constraint()
    written: list[int] = []
    while len(written) < MAX_BYTES:
        mask = int.from_bytes(constraint.mask(), "little")
        allowed = [token for token in range(VOCAB_SIZE) if mask >> token & 1]
        if EOS in allowed and (len(allowed) == 1 or draw.random() < 0.5):
            return bytes(written).decode()
        allowed = [token for token in allowed if token != EOS]
        ends = [token for token in allowed if token in ENDS]
        token = draw.choice(ends if ends and draw.random() < 0.5 else allowed)
        constraint.accept(token)
        written.append(token)
    return None


@pytest.mark.parametrize("number", range(NUM_SCHEMAS))
def test_what_is_let_through_validates(compiler: GrammarCompiler, number: int) -> None:
    wanted = schema(number)
    validator = jsonschema.validators.validator_for(wanted, jsonschema.Draft202012Validator)(wanted)
    for seed in range(NUM_SEEDS):
        text = answer(compiler, wanted, random.Random(f"{number} {seed}"))
        if text is not None:
            validator.validate(json.loads(text))


def test_most_schemas_come_to_an_end(compiler: GrammarCompiler) -> None:
    texts = [answer(compiler, schema(number), random.Random(number)) for number in range(33)]
    assert sum(text is not None for text in texts) >= 30


@pytest.mark.parametrize("keyword", UNSUPPORTED)
def test_a_keyword_that_cannot_be_held_to_is_named(compiler: GrammarCompiler, keyword: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        compiler.compile(StructuredOutputsParams.from_values({"json": UNSUPPORTED[keyword]}))
    assert keyword in str(caught.value)
