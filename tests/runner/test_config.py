import dataclasses

import pytest

from hotseat.errors import ConfigError
from hotseat.runner import RunnerConfig, kv_bytes_per_block, resolve_dtype, resolve_kv_cache_dtype
from runner.hand_batches import small_config, tiny_spec
from tiny_models import TinyLlama


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dtype", "int4"),
        ("kv_cache_dtype", "int8"),
        ("isa", "avx1024"),
        ("threads", 0),
        ("threads", -2),
        ("block_size", 0),
        ("block_size", 12),
        ("block_size", 2048),
        ("num_kv_blocks", 0),
        ("max_num_seqs", True),
        ("max_num_batched_tokens", 1.5),
        ("max_model_len", -1),
    ],
)
def test_wrong_option_is_refused_with_its_name_and_value(option: str, value: object) -> None:
    with pytest.raises(ConfigError) as error:
        small_config(**{option: value})
    assert option in str(error.value)
    assert str(value) in str(error.value)


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype", "expected"),
    [
        ("auto", "auto", ("int8", "bf16")),
        ("int8", "auto", ("int8", "bf16")),
        ("bf16", "auto", ("bf16", "bf16")),
        ("fp32", "auto", ("fp32", "fp32")),
        ("fp32", "bf16", ("fp32", "bf16")),
        ("auto", "fp32", ("int8", "fp32")),
    ],
)
def test_auto_precisions_are_resolved(dtype: str, kv_cache_dtype: str, expected: tuple[str, str]) -> None:
    config = small_config(dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    assert (config.weight_dtype, config.kv_dtype) == expected
    assert (resolve_dtype(dtype), resolve_kv_cache_dtype(dtype, kv_cache_dtype)) == expected


def test_every_option_has_help() -> None:
    assert all(field.metadata.get("help") for field in dataclasses.fields(RunnerConfig))


def test_block_table_is_wide_enough_for_the_longest_sequence() -> None:
    assert small_config(block_size=16, max_model_len=33).max_blocks_per_seq == 3
    assert small_config(block_size=16, max_model_len=32).max_blocks_per_seq == 2


def test_bytes_of_a_block_count_keys_and_values_of_every_layer() -> None:
    spec = tiny_spec(TinyLlama(num_layers=3, num_kv_heads=2, head_dim=10))
    assert kv_bytes_per_block(spec, "bf16", 16) == 2 * 3 * 2 * 10 * 16 * 2
    assert kv_bytes_per_block(spec, "fp32", 16) == 2 * kv_bytes_per_block(spec, "bf16", 16)
