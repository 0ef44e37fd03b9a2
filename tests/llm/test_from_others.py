"""The tables of docs/from-vllm.md, from-ollama.md and from-llama-cpp.md, run row by row."""

import json
import logging
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hotseat
from hotseat import LLM, SamplingParams
from hotseat.cli.commands import COMMANDS
from hotseat.core.request import SamplingParams as Params
from hotseat.errors import HotseatError, InvalidRequestError
from hotseat.options import command_line
from hotseat.server.sampling import chat_sampling
from hotseat.server.schema import ChatCompletionRequest
from hotseat.server.unsupported import refuse_unsupported
from hotseat.wiring.vllm_options import VllmOptions

DOCS = Path(__file__).resolve().parents[2] / "docs"
CELL = r"`([^`]+)`"
VLLM_ROWS = re.findall(rf"^\| {CELL} \| (works|no effect|refused) \|", (DOCS / "from-vllm.md").read_text(), re.M)
COMMAND_ROWS: list[str] = []
FIELD_ROWS: list[tuple[str, str]] = []
for name in ("from-ollama.md", "from-llama-cpp.md"):
    text = (DOCS / name).read_text()
    COMMAND_ROWS += re.findall(r"^\| `[^{`][^`]*` \| `(hotseat [^`]+)` \|$", text, re.MULTILINE)
    FIELD_ROWS += re.findall(r"^\| `(\{[^`]+\})` \| `(\{[^`]+\})` \|$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def names(tiny_model: str) -> Iterator[dict[str, Any]]:
    """What the expressions of the tables are made of; answers are short."""
    make = partial(LLM, tiny_model, runner="reference")
    with make(dtype="fp32") as llm:
        yield {name: getattr(hotseat, name) for name in hotseat.__all__} | {"LLM": make, "llm": llm, "setattr": setattr}


@pytest.mark.parametrize(("expression", "outcome"), VLLM_ROWS)
def test_a_row_from_vllm_does_what_it_says(
    names: dict[str, Any], expression: str, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    try:
        value = eval(expression, dict(names))  # our own documentation
        if isinstance(value, LLM):
            value.close()
        found = "no effect" if "has no effect" in caplog.text else "works"
    except (HotseatError, AttributeError):
        found = "refused"
    assert found == outcome


def test_the_rows_name_what_a_vllm_user_writes() -> None:
    text = (DOCS / "from-vllm.md").read_text()
    unnamed = {field.name for field in fields(VllmOptions) if f"{field.name}=" not in text}
    assert unnamed <= {  # of rarer use; the table in wiring/vllm_options.py says what happens
        *("async_scheduling", "config_format", "disable_async_output_proc", "disable_cascade_attn"),
        *("disable_custom_all_reduce", "disable_sliding_window", "enable_expert_parallel", "guided_decoding_backend"),
        *("limit_mm_per_prompt", "logits_processors", "max_lora_rank", "max_loras", "max_parallel_loading_workers"),
        *("num_scheduler_steps", "preemption_mode", "rope_theta", "skip_tokenizer_init", "tokenizer_revision"),
        "use_v2_block_manager",
    }
    assert len(VLLM_ROWS) > 70


@pytest.mark.parametrize("line", COMMAND_ROWS)
def test_a_command_is_one(line: str) -> None:
    _, *words = shlex.split(line)
    name = next(" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in COMMANDS)
    command = COMMANDS[name]
    given = command_line.read(
        name, "", command.known(), words[len(name.split()) :], {}, positional=command.positional, prefix=command.prefix
    )
    assert given or not words[1:]


@pytest.mark.parametrize(("theirs", "ours"), FIELD_ROWS)
def test_a_field_of_theirs_is_refused_and_ours_is_taken(theirs: str, ours: str) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(InvalidRequestError) as caught:
        refuse_unsupported(ChatCompletionRequest.model_validate(chat | json.loads(theirs)))
    assert caught.value.param == next(iter(json.loads(theirs)))
    body = ChatCompletionRequest.model_validate(chat | json.loads(ours))
    refuse_unsupported(body)
    unknown = set(body.model_extra or {})
    assert isinstance(chat_sampling(body, {}), Params)
    assert not unknown


def test_the_tables_have_rows() -> None:
    assert len(COMMAND_ROWS) > 20
    assert len(FIELD_ROWS) > 12


def test_an_unknown_option_gets_a_suggestion_only_when_one_is_near(tiny_model: str) -> None:
    with pytest.raises(HotseatError) as near:
        LLM(tiny_model, max_num_seq=3)
    assert "did you mean max_num_seqs" in str(near.value)
    with pytest.raises(HotseatError) as far:
        LLM(tiny_model, colour="red")
    assert "did you mean" not in str(far.value)


def test_a_default_answer_is_short_enough_for_these_tests(names: dict[str, Any]) -> None:
    (output,) = names["llm"].generate("a", use_tqdm=False)
    assert len(output.outputs[0].token_ids) <= SamplingParams().max_tokens
