"""The duration of a simulated step."""

from __future__ import annotations

import pytest

from hotseat.core.batch import Batch, Chunk
from hotseat.core.request import RequestId
from hotseat.errors import ConfigError
from hotseat.simulator import StepCost


def batch(*ranges: tuple[int, int], num_decodes: int = 0) -> Batch:
    chunks = [Chunk(seat, RequestId(f"r{seat}"), start, end, True) for seat, (start, end) in enumerate(ranges)]
    num_tokens = sum(chunk.end - chunk.start for chunk in chunks)
    return Batch(step=0, chunks=chunks, num_tokens=num_tokens, num_decodes=num_decodes)


def test_a_step_costs_its_base_its_tokens_and_what_they_attend_to() -> None:
    assert StepCost.parse("0.5,0,0")(batch((0, 7))) == 0.5
    assert StepCost.parse("0,0.25,0")(batch((4, 5), (0, 7), num_decodes=1)) == 2.0
    # The decode at position 4 attends to 5 positions; rows 2, 3 and 4 of the chunk to 3, 4 and 5.
    assert StepCost.parse("0,0,1")(batch((4, 5), (2, 5), num_decodes=1)) == 5 + 12


def test_a_step_that_computes_nothing_takes_no_time() -> None:
    assert StepCost.parse("1,1,1")(batch()) == 0.0


@pytest.mark.parametrize("text", ["", "1", "1,2", "1,2,3,4", "a,b,c", "1,-2,3", "1,nan,3", "1,inf,3", "0,0,0"])
def test_a_wrong_cost_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match="step_cost must be base_s,per_token_s,per_context_token_s") as caught:
        StepCost.parse(text)
    assert repr(text) in str(caught.value)


def test_a_cost_is_written_as_it_is_read() -> None:
    cost = StepCost.parse("0.004, 0.0003, 1e-7")
    assert StepCost.parse(str(cost)) == cost
