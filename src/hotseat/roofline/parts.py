"""The time of steps by parts, beside the time at the machine's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hotseat.core.batch import Batch
from hotseat.models.spec import DecoderSpec
from hotseat.roofline.limits import Limits, Work, arithmetic_of
from hotseat.roofline.shapes import attention_operations, kv_bytes_per_token, linear_shapes, num_experts
from hotseat.runner.config import KvDtype, WeightDtype

__all__ = ["Path", "Sample", "StepPoint", "StepSize", "step_size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """The work of one step."""

    num_rows: int
    num_samples: int
    num_kv_positions: int  # whose keys and values are read at least once
    num_pairs: int  # of a row and a position that it sees
    num_experts: int = 0  # whose weights are read, over all layers


def step_size(batch: Batch, num_experts: int = 0) -> StepSize:
    """Return the size of a step."""
    return StepSize(
        num_rows=sum(chunk.end - chunk.start for chunk in batch.chunks),
        num_samples=sum(chunk.samples for chunk in batch.chunks),
        num_kv_positions=sum(chunk.end for chunk in batch.chunks),
        num_pairs=sum(chunk.num_pairs for chunk in batch.chunks),
        num_experts=num_experts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A model as it is computed: its limits follow from this."""

    spec: DecoderSpec
    dtype: WeightDtype
    kv_dtype: KvDtype
    isa: str
    weight_bytes: int

    def work(self, size: StepSize) -> tuple[Work, ...]:
        """Return the pieces of a step that follow each other: layers, output head, attention."""
        *layers, head = linear_shapes(self.spec)
        stored = head.num_weights + sum(shape.num_weights * shape.count for shape in layers)
        head_bytes = self.weight_bytes * head.num_weights // stored
        # Experts that no row has chosen are not read.
        of_experts = sum(shape.num_weights * shape.count for shape in layers if shape.used < 1)
        unread = of_experts * (1 - size.num_experts / max(1, num_experts(self.spec)))
        used_by_row = sum(shape.num_weights * shape.count * shape.used for shape in layers)
        pieces = [
            Work(
                num_bytes=int(self.weight_bytes * (1 - unread / stored)) - head_bytes,
                num_operations=int(2 * used_by_row * size.num_rows),
                dtype=arithmetic_of(self.dtype),
            ),
            Work(
                num_bytes=size.num_kv_positions * kv_bytes_per_token(self.spec, self.kv_dtype),
                num_operations=attention_operations(self.spec, size.num_pairs),
                dtype=self.kv_dtype,
            ),
        ]
        if size.num_samples:
            operations = head.num_operations(size.num_samples)
            pieces.append(Work(num_bytes=head_bytes, num_operations=operations, dtype=arithmetic_of(self.dtype)))
        return tuple(pieces)

    def limit_s(self, limits: Limits, sizes: Sequence[StepSize], bytes_per_s: float) -> float:
        """Return the least time of some steps, one after the other, when memory gives ``bytes_per_s``."""
        return sum(limits.least_seconds(work, self.isa, bytes_per_s) for size in sizes for work in self.work(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Seconds by part of one decode step, or of all steps of a prefill."""

    total_s: float
    scheduling_s: float  # schedule and update
    runner_s: float  # the runner's Python
    native_s: dict[str, float]  # by kind of work
    sizes: tuple[StepSize, ...]  # of its steps
    bytes_per_s: float  # that memory gave just before

    @property
    def loop_s(self) -> float:
        """The rest: scheduler, records, results."""
        return self.total_s - self.scheduling_s - self.runner_s - sum(self.native_s.values())


@dataclass(slots=True, kw_only=True)
class StepPoint:
    """One kind of work: some requests that decode, or one prompt."""

    kind: str  # decode, prefill
    size: int  # requests, or tokens of the prompt
    context: int  # mean length of the sequences
    path: Path
    samples: list[Sample] = field(default_factory=list)

    def chosen(self, statistic: str) -> Sample:
        """Return the sample of the median total, or of the least."""
        ordered = sorted(self.samples, key=lambda sample: sample.total_s)
        return ordered[0] if statistic == "best" else ordered[len(ordered) // 2]

    def tokens_per_s(self, statistic: str) -> float:
        """Return the rate: of new tokens when decoding, else of prompt tokens."""
        return self.size / self.chosen(statistic).total_s

    def limit_s(self, limits: Limits, statistic: str) -> float:
        """Return the time of the chosen sample at the machine's limits."""
        chosen = self.chosen(statistic)
        return self.path.limit_s(limits, chosen.sizes, chosen.bytes_per_s)
