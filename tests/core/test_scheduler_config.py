"""Which configurations are refused, and how."""

from __future__ import annotations

from typing import Any

import pytest

from core.worlds import make_config
from hotseat.core.config import parse_tenant_weights
from hotseat.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", 0),
        ("num_kv_blocks", 0),
        ("block_size", 0),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("long_prefill_token_threshold", -1),
        ("short_prefill_share", 1.0),
        ("short_prefill_share", -0.1),
        ("watermark", 1.0),
        ("target_itl_ms", 0.0),
        ("target_itl_ms", float("nan")),
        ("aging_s", 0.0),
        ("queue_timeout_s", -1.0),
        ("request_timeout_s", float("inf")),
        ("default_deadline_ms", 0.0),
        ("max_delay_ms", -1.0),
        ("max_num_queued_reqs", 0),
        ("max_num_queued_tokens", 0),
        ("max_times_passed", -1),
        ("batching", "sometimes"),
        ("batch_size", 0),
        ("batch_size", 65),
        ("tenant_weights", ("a=0",)),
    ],
)
def test_value_out_of_range_is_refused_with_option_and_value(name: str, value: Any) -> None:
    shown = value[0] if isinstance(value, tuple) else value
    with pytest.raises(ConfigError, match=rf"^{name} must .*, not {shown!r}$"):
        make_config(**{name: value})


def test_budget_must_hold_a_token_for_every_seat() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens must be at least max_num_seqs = 64"):
        make_config(max_num_batched_tokens=63)
    assert make_config(max_num_batched_tokens=64).max_num_batched_tokens == 64


@pytest.mark.parametrize("text", ["a", "=2", "a=", "a=x", "a=-1", "a=inf"])
def test_tenant_weights_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="tenant_weights must be NAME=WEIGHT"):
        parse_tenant_weights((text,))


def test_tenant_weights_are_read() -> None:
    assert parse_tenant_weights(("a=2", "b=c=0.5")) == {"a": 2.0, "b=c": 0.5}


def test_every_option_has_a_help_text() -> None:
    fields = type(make_config()).__dataclass_fields__
    assert all(field.metadata["help"] for field in fields.values())
