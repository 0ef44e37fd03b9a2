"""A runner's promise about the bits of its answers; docs/decisions/003 says how the promise is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hotseat.core.batch import Runner

__all__ = ["Determinism", "ModelRunner", "native_determinism", "reference_determinism"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism:
    """When a request is answered with the same bits; ``exceptions`` says of each claim that does not hold why not."""

    any_batch: bool  # alone or beside others, in chunks of any size, cached, preempted
    any_threads: bool
    any_isa: bool
    exceptions: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the promise as the end of a sentence about answers."""
        claims = {
            "in any batch": self.any_batch,
            "with any number of threads": self.any_threads,
            "on any instruction set": self.any_isa,
        }
        *kept, last = [claim for claim, holds in claims.items() if holds] or ["in no case"]
        promise = f"the same to the bit {', '.join(kept)}{' and ' if kept else ''}{last}"
        return f"{promise}, but {'; '.join(self.exceptions)}" if self.exceptions else promise


class ModelRunner(Runner, Protocol):
    """A runner that says what it promises."""

    @property
    def determinism(self) -> Determinism: ...


def native_determinism() -> Determinism:
    """Return what the C++ kernels promise: sums are integers or have one order, whatever computes them.

    An instruction set whose results differ is found at start and rejected, see ``_native.rejected_isas``.
    """
    return Determinism(any_batch=True, any_threads=True, any_isa=True)


def reference_determinism() -> Determinism:
    """Return what NumPy promises: rows are multiplied one by one, but its BLAS adds as it likes."""
    return Determinism(
        any_batch=True,
        any_threads=False,
        any_isa=False,
        exceptions=("the order of NumPy's sums may depend on its BLAS, its threads and the instruction set",),
    )
