"""A scheduler, a fake runner and a clock in one hand."""

from __future__ import annotations

from typing import Any

from core.fake_runner import FakeRunner, LightRunner, expected_output
from hotseat.core.batch import Batch, RequestUpdate
from hotseat.core.config import SchedulerConfig
from hotseat.core.policy import Policy
from hotseat.core.request import FinishReason, Request, RequestId, SamplingParams
from hotseat.core.scheduler import Scheduler
from hotseat.core.speculation import Speculation


def make_config(**options: Any) -> SchedulerConfig:
    """Return a configuration with plenty of room unless told otherwise."""
    defaults = {"max_model_len": 4096, "num_kv_blocks": 1000, "block_size": 16, "max_num_batched_tokens": 1024}
    return SchedulerConfig(**(defaults | options))


class World:
    """Runs steps one at a time; each takes a second of its own clock."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        is_light: bool = False,
        speculation: Speculation | None = None,
        **options: Any,
    ) -> None:
        self.config = make_config(**options)
        self.scheduler = Scheduler(self.config, policy, speculation)
        self.runner = FakeRunner(self.config.num_kv_blocks, self.config.block_size, self.config.kv_layout)
        self.is_light = is_light
        self.now = 0.0
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}
        self.updates: dict[str, list[RequestUpdate]] = {}
        self.batches: list[Batch] = []
        self.num_made = 0

    def add(
        self, prompt: int | list[int], request_id: str | None = None, *, max_tokens: int | None = 4, **options: Any
    ) -> Request:
        """Add a request; a number stands for a prompt of so many tokens that nobody else has."""
        self.num_made += 1
        if isinstance(prompt, int):
            prompt = [self.num_made * 100_000 + index for index in range(prompt)]
        fields = Request.__dataclass_fields__
        own = {name: value for name, value in options.items() if name in fields}
        params = {name: value for name, value in options.items() if name not in fields}
        request = Request(
            id=RequestId(request_id or f"r{self.num_made}"),
            prompt_token_ids=prompt,
            params=SamplingParams(max_tokens=max_tokens, **params),
            **({"arrived_at": self.now} | own),
        )
        self.scheduler.add(request, self.now)
        self.requests[request.id] = request
        self.outputs[request.id] = []
        self.updates[request.id] = []
        return request

    def step(self) -> Batch:
        """Run one step and check all books before and after it, unless this is a light world."""
        batch = self.scheduler.schedule(self.now)
        if not self.is_light:
            self.scheduler.check_invariants()
        output = (LightRunner() if self.is_light else self.runner).execute(batch)
        self.now += 1.0
        updates = self.scheduler.update(batch, output, self.now)
        if not self.is_light:
            self.scheduler.check_invariants()
        assert len({update.request_id for update in updates}) == len(updates)
        for update in [*batch.ended, *updates]:
            self.note(update)
        self.batches.append(batch)
        return batch

    def note(self, update: RequestUpdate | None) -> None:
        """Write down what an update says."""
        if update is None:
            return
        assert update.request_id not in self.ends, f"{update.request_id} gets news after its end"
        self.outputs[update.request_id] += update.new_token_ids
        self.updates[update.request_id].append(update)
        if update.finish_reason is not None:
            self.ends[update.request_id] = update.finish_reason

    def run(self, max_steps: int = 10_000) -> None:
        """Run steps until nothing is left to do."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            batch = self.step()
            assert batch.chunks or batch.ended, "a step with work outstanding did nothing"
        raise AssertionError("this does not end")

    def assert_answers_are_right(self) -> None:
        """Assert that every output is what its request gets when it is alone."""
        for request_id, output in self.outputs.items():
            assert output == expected_output(self.requests[request_id].prompt_token_ids, len(output)), request_id

    def sizes(self, batch: Batch) -> dict[str, int]:
        """Return how many tokens a batch computes of each request."""
        return {chunk.request_id: chunk.end - chunk.start for chunk in batch.chunks}
