"""What runners promise about the bits of their answers."""

import pytest

from hotseat.runner import ReferenceRunner
from hotseat.runner.determinism import Determinism
from runner.hand_batches import memory_weights, small_config, tiny_spec
from tiny_models import TinyLlama

MODEL = TinyLlama()


def test_a_whole_promise_reads_as_a_sentence() -> None:
    promise = Determinism(any_batch=True, any_threads=True, any_isa=True)
    text = "the same to the bit in any batch, with any number of threads and on any instruction set"
    assert str(promise) == text


def test_what_does_not_hold_is_left_out_and_explained() -> None:
    promise = Determinism(any_batch=True, any_threads=True, any_isa=False, exceptions=("rounding differs",))
    assert str(promise) == "the same to the bit in any batch and with any number of threads, but rounding differs"


def test_numpy_promises_batches_alone() -> None:
    promise = ReferenceRunner(tiny_spec(MODEL), memory_weights(MODEL), small_config()).determinism
    assert (promise.any_batch, promise.any_threads, promise.any_isa) == (True, False, False)
    assert "BLAS" in str(promise)


@pytest.mark.parametrize("dtype", ["int8", "bf16", "fp32", "gguf"])
def test_a_native_runner_promises_all(dtype: str) -> None:
    native = pytest.importorskip("hotseat.runner.native")
    config = small_config(dtype=dtype, block_size=16)
    promise = native.NativeRunner(tiny_spec(MODEL), memory_weights(MODEL), config).determinism
    assert promise == Determinism(any_batch=True, any_threads=True, any_isa=True)
