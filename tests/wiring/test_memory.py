import pytest

from hotseat.errors import ConfigError
from hotseat.wiring.memory import Capacity, parse_bytes, parse_length, plan_capacity

MIB = 2**20


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("1GiB", 2**30),
        ("1gib", 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("512MB", 512_000_000),
        ("512M", 512_000_000),
        ("2Ki", 2048),
        ("1TB", 10**12),
        ("7b", 7),
    ],
)
def test_sizes_are_read(text: int | str, size: int) -> None:
    assert parse_bytes("x", text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "GiB", "1XB", "1 G i B", "lots", 0])
def test_a_wrong_size_is_named(text: int | str) -> None:
    with pytest.raises(ConfigError, match="kv_cache_memory_bytes must be a size"):
        parse_bytes("kv_cache_memory_bytes", text)


@pytest.mark.parametrize(("text", "length"), [(100, 100), ("8192", 8192), ("8k", 8192), ("1.5K", 1536), ("1m", 2**20)])
def test_lengths_are_read(text: int | str, length: int) -> None:
    assert parse_length("x", text) == length


@pytest.mark.parametrize("text", ["", "k", "0", "-8", "8kb", 0])
def test_a_wrong_length_is_named(text: int | str) -> None:
    with pytest.raises(ConfigError, match="max_model_len must be a number of tokens"):
        parse_length("max_model_len", text)


def planned(**changes: object) -> Capacity:
    options: dict[str, object] = {
        "model_max_len": 1024,
        "max_model_len": None,
        "num_kv_blocks": None,
        "kv_cache_memory_bytes": None,
        "block_size": 16,
        "bytes_per_block": MIB,
        "max_num_seqs": 4,
        "memory_bytes": 4000 * MIB,
    }
    return plan_capacity(**(options | changes))


def test_the_cache_is_no_larger_than_all_seats_can_use() -> None:
    assert planned() == Capacity(max_model_len=1024, num_kv_blocks=4 * 64)


def test_the_cache_takes_a_quarter_of_free_memory_at_most() -> None:
    assert planned(max_num_seqs=1000) == Capacity(max_model_len=1024, num_kv_blocks=1000)


def test_a_size_in_bytes_is_kept_exactly() -> None:
    assert planned(kv_cache_memory_bytes="1GiB", max_num_seqs=1).num_kv_blocks == 1024


@pytest.mark.parametrize("asked", [{"kv_cache_memory_bytes": "1TiB"}, {"num_kv_blocks": 4001}])
def test_more_than_the_free_memory_is_refused_with_both_sizes(asked: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(asked))} .* but 4000 MiB of memory are free"):
        planned(**asked)


def test_a_number_of_blocks_wins_over_bytes() -> None:
    assert planned(kv_cache_memory_bytes="1GiB", num_kv_blocks=70).num_kv_blocks == 70


def test_length_shrinks_to_a_small_cache_when_nobody_asked_for_it() -> None:
    assert planned(num_kv_blocks=10).max_model_len == 160
    assert planned(num_kv_blocks=10, max_model_len="auto").max_model_len == 160


def test_a_length_that_was_asked_for_stays_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert planned(num_kv_blocks=10, max_model_len=512).max_model_len == 512
    assert "holds 160 tokens" in caplog.text


def test_a_length_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_model_len is 2048, but the model was made for at most 1024"):
        planned(max_model_len="2k")


def test_memory_for_less_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="no block"):
        planned(kv_cache_memory_bytes="1KiB")
