"""The binding refuses arrays and values that would make a native step read or write beside them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("hotseat.runner._native", reason="the extension is not built")

from hotseat.core.batch import Chunk
from hotseat.core.request import RequestId
from hotseat.runner import _native, native
from hotseat.runner.native import NativeRunner
from hotseat.runner.seats import SEAT_SAMPLING, SeatTable
from runner.hand_batches import HandScheduler, memory_weights, tiny_spec
from runner.native_cases import native_config
from tiny_models import TinyLlama

MODEL = TinyLlama()


def _seated() -> tuple[NativeRunner, SeatTable]:
    config = native_config()
    runner = NativeRunner(tiny_spec(MODEL), memory_weights(MODEL), config)
    scheduler = HandScheduler(runner, config)
    scheduler.seat("me", [1, 2, 3, 4])
    scheduler.step({"me": 4})
    return runner, runner._table


def _set(array: str, value: int) -> Callable[[SeatTable], None]:
    def spoil(table: SeatTable) -> None:
        (getattr(table, array) if hasattr(table, array) else table.sampling[array])[0] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_set("tokens", MODEL.vocab_size), f"a token id is {MODEL.vocab_size}, must be from 0 to"),
        (_set("tokens", -1), "a token id is -1"),
        (_set("block_tables", 200), "a block id is 200, must be from 0 to 199"),
        (_set("block_tables", -1), "a block id is -1"),
        (_set("num_tokens", 642), "a seat's number of tokens is 642, must be from 0 to 641"),
        (_set("num_prompt_tokens", 9), "a seat's number of prompt tokens is 9, must be from 0 to 5"),
        (_set("num_logprobs", 1 << 20), "a seat's number of logprobs is 1048576"),
        (_set("num_prompt_logprobs", 1 << 20), "a seat's number of prompt logprobs is 1048576"),
        (_set("top_k", -2), "top_k is -2"),
    ],
)
def test_a_step_refuses_a_seat_that_refers_to_what_is_not_there(
    spoil: Callable[[SeatTable], None], reason: str
) -> None:
    runner, table = _seated()
    spoil(table)
    with pytest.raises(ValueError, match=reason):
        runner._decoder.step([Chunk(0, RequestId("me"), 0, 5, True, True)])


@pytest.mark.parametrize(("seat", "start", "end"), [(-1, 0, 1), (1 << 20, 0, 1), (0, -1, 2), (0, 0, 641), (0, 0, 6)])
def test_a_step_refuses_a_chunk_outside_of_its_sequence(seat: int, start: int, end: int) -> None:
    runner, _ = _seated()
    with pytest.raises(ValueError, match="chunk"):
        runner._decoder.step([Chunk(seat, RequestId("me"), start, end, True, True)])


def test_penalties_read_tokens_of_the_whole_sequence_so_all_are_checked() -> None:
    runner, table = _seated()
    table.sampling["has_penalties"][0] = 1
    table.tokens[0, 0] = MODEL.vocab_size
    with pytest.raises(ValueError, match="a token id is"):
        runner._decoder.step([Chunk(0, RequestId("me"), 4, 5, True, True)])


@pytest.mark.parametrize(
    ("offsets", "ids", "values", "reason"),
    [
        ([0], [], [], "offsets has 1 entries in dimension 0, needs"),
        ([1], [5], [0.0], "the first offset is 1"),
        ([0, 2], [5], [0.0], "an offset is 2, must be from 0 to 1"),
        ([0, 1, 0], [5], [0.0], "an offset is 0, must be from 1 to 1"),
        ([0, 1], [1 << 20], [0.0], "a token id is 1048576"),
        ([0, 1], [5], [], "values has 0 entries in dimension 0, needs 1"),
    ],
)
def test_lists_of_token_ids_are_checked(offsets: list[int], ids: list[int], values: list[float], reason: str) -> None:
    runner, table = _seated()
    seats = len(table.num_tokens)
    padded = offsets if len(offsets) == 1 and not offsets[0] else offsets + offsets[-1:] * (seats + 1 - len(offsets))
    arrays = {
        "offsets": np.array(padded, np.int32),
        "ids": np.array(ids, np.int32),
        "values": np.array(values, np.float32),
    }
    with pytest.raises(ValueError, match=reason):
        runner._decoder.set_sampler_lists(arrays, arrays, arrays)


def test_bind_refuses_arrays_that_are_short_absent_or_of_another_type() -> None:
    runner, table = _seated()
    whole = table.num_tokens
    cases: list[tuple[NDArray[Any], str]] = [
        (whole[:-1].copy(), "num_tokens has .* needs"),
        (whole.astype(np.int64), "num_tokens is no contiguous array"),
        (np.zeros((len(whole), 2), np.int32), "num_tokens is no contiguous array"),
    ]
    for wrong, reason in cases:
        table.num_tokens = wrong
        with pytest.raises(ValueError, match=reason):
            runner._bind()
    table.num_tokens = whole
    runner._bind()


def test_bind_refuses_sampling_parameters_in_another_layout() -> None:
    runner, table = _seated()
    fields = {name: SEAT_SAMPLING.fields[name][0] for name in SEAT_SAMPLING.names}
    cases = [
        (fields | {"top_p": np.float64}, "sampling has not the fields of SeatSampling"),
        (fields | {"top_p": np.int32}, "sampling has another type of top_p"),
        ({name: fields[name] for name in reversed(fields)}, "sampling has seed at another place"),
        ({"other" if name == "top_k" else name: type_ for name, type_ in fields.items()}, "no field top_k"),
    ]
    for wrong, reason in cases:
        table.sampling = np.zeros(len(table.num_tokens), np.dtype(list(wrong.items()), align=True))
        with pytest.raises(ValueError, match=reason):
            runner._bind()
    table.sampling = np.zeros(len(table.num_tokens) - 1, SEAT_SAMPLING)
    with pytest.raises(ValueError, match=r"sampling has .* needs"):
        runner._bind()


def test_logits_of_rows_that_did_not_sample_are_refused() -> None:
    runner, _ = _seated()
    with pytest.raises(ValueError, match="num_rows is 2, must be from 0 to 1"):
        runner._decoder.logits(2)


def _decoder() -> Any:
    return NativeRunner(tiny_spec(MODEL), memory_weights(MODEL), native_config())._decoder


def _bytes(rows: int, row_bytes: int) -> NDArray[np.uint8]:
    return np.zeros((rows, row_bytes), np.uint8)


HIDDEN, INNER, VOCABULARY = MODEL.hidden_size, MODEL.intermediate_size, MODEL.vocab_size
Q, KV = MODEL.num_heads * MODEL.true_head_dim, MODEL.num_kv_heads * MODEL.true_head_dim
ROW = 4 * HIDDEN  # of float32


@pytest.mark.parametrize(
    ("set_it", "reason"),
    [
        (
            lambda d: d.set_embedding("F32", _bytes(VOCABULARY - 1, ROW)),
            f"{VOCABULARY - 1} rows, must have {VOCABULARY}",
        ),
        (lambda d: d.set_embedding("F16", _bytes(VOCABULARY, ROW)), f"rows of {ROW} bytes, but {HIDDEN} values"),
        (lambda d: d.set_embedding("Q4_K", _bytes(VOCABULARY, 144)), "rows of 144 bytes, but 64 values .* have -1"),
        (lambda d: d.set_output("F32", _bytes(VOCABULARY, ROW - 4)), f"output has rows of {ROW - 4} bytes"),
        (lambda d: d.set_output("F32", _bytes(VOCABULARY + 1, ROW)), f"output has {VOCABULARY + 1} rows"),
        (lambda d: d.set_qkv(0, "F32", _bytes(Q, ROW), "F32", _bytes(KV - 1, ROW), "F32", _bytes(KV, ROW)), "k has"),
        (lambda d: d.set_attention_output(0, "F32", _bytes(HIDDEN, 4 * Q + 4)), "attention_output has rows of"),
        (lambda d: d.set_gate_up(0, "F32", _bytes(INNER, ROW), "F32", _bytes(INNER // 2, ROW)), "gate or up has"),
        (lambda d: d.set_down(0, "F32", _bytes(HIDDEN, 4)), "down has rows of 4 bytes"),
        (lambda d: d.set_router(0, _bytes(3, ROW)), "router has 3 rows"),
        (lambda d: d.set_vector(-1, "output_norm", np.ones(HIDDEN - 1, np.float32)), "output_norm has 63 values"),
        (lambda d: d.set_vector(0, "attention_norm", np.ones(1, np.float32)), "attention_norm has 1 values"),
        (lambda d: d.set_vector(0, "q_bias", np.ones(Q + 1, np.float32)), f"q_bias has {Q + 1} values, must have {Q}"),
        (lambda d: d.set_vector(0, "gate_bias", np.ones(HIDDEN, np.float32)), f"gate_bias .* must have {INNER}"),
        (lambda d: d.set_vector(9, "q_bias", np.ones(Q, np.float32)), "range"),
        (lambda d: d.set_position_embedding(np.ones(HIDDEN, np.float32)), "position_embedding has 64 values"),
    ],
)
def test_weights_of_a_wrong_size_are_refused(set_it: Callable[[Any], None], reason: str) -> None:
    with pytest.raises((ValueError, IndexError), match=reason):
        set_it(_decoder())


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("layer_ropes", [0, 1], "layer_ropes is 1, must be from -1 to 0"),
        ("layer_ropes", [0], "the number of layer_ropes is 1, must be from 2 to 2"),
        ("layer_windows", [0, -1], "layer_windows is -1"),
        ("layer_windows", [], "the number of layer_windows is 0"),
        ("ropes", [([1.0], 1.0)], "the number of a rope's frequencies is 1, must be from 8 to 8"),
    ],
)
def test_indices_of_layers_are_checked(name: str, value: Any, reason: str) -> None:
    config = native_config()
    shape = native._shape(tiny_spec(MODEL), config) | {name: value}
    with pytest.raises(ValueError, match=reason):
        _native.Decoder(shape, native._limits(config), "fp32", "scalar", threads=1)


def test_a_probe_refuses_a_matrix_without_a_kind_and_of_a_wrong_width() -> None:
    with pytest.raises(ValueError, match="each matrix has a kind"):
        _native.LinearProbe("scalar", "fp32", 64, ["F32"], [], "store", 1, 1, 1)
    with pytest.raises(ValueError, match="rows of 252 bytes, but 64 values of its type have 256"):
        _native.LinearProbe("scalar", "fp32", 64, ["F32"], [_bytes(8, 252)], "store", 1, 1, 1)
