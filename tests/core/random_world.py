"""Random requests in tiny worlds, and what must be true of every answer; shared by the state machine and the walk."""

from __future__ import annotations

from random import Random
from typing import Any

from core.drafters import OracleDrafter, fake_answer
from core.fake_runner import VOCABULARY_SIZE, expected_output
from core.worlds import World
from hotseat.core.batch import Batch
from hotseat.core.kv_layout import KvLayout
from hotseat.core.policies import BUILT_IN
from hotseat.core.request import FinishReason, Request, RequestStatus
from hotseat.core.speculation import Speculation
from hotseat.errors import PromptTooLongError, QueueFullError

POLICIES = tuple(BUILT_IN)
EOS_TOKEN_IDS = frozenset(range(0, VOCABULARY_SIZE, 11))


def random_options(random: Random) -> dict[str, Any]:
    """Return a configuration in which everything is short."""
    max_num_seqs = random.randint(1, 6)
    layout = random.choice([KvLayout(), KvLayout(1, random.randint(1, 3), random.randint(1, 9)), KvLayout(2, 1, 6)])
    return {
        "kv_layout": layout,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + random.randint(0, 12),
        "num_kv_blocks": random.randint(3, 16) * (layout.num_full + layout.num_window),
        "capacity_policy": random.choice(["max-utilization"] * 4 + ["no-evict"]),
        "block_size": random.randint(1, 4),
        "max_model_len": random.randint(16, 60),
        "scheduling_policy": random.choice(POLICIES),
        "aging_s": random.choice([None, 3.0]),
        "default_deadline_ms": random.choice([500.0, 5000.0]),
        "long_prefill_token_threshold": random.choice([0, 0, 3]),
        "short_prefill_share": random.choice([0.0, 0.25, 0.5]),
        "enable_prefix_caching": random.random() < 0.8,
        "watermark": random.choice([0.0, 0.01, 0.1]),
        "max_times_passed": random.choice([0, 2, 32]),
        "target_itl_ms": random.choice([None, None, 900.0]),
        "queue_timeout_s": random.choice([None, None, 20.0]),
        "request_timeout_s": random.choice([None, None, 40.0]),
        "max_num_queued_reqs": random.choice([None, 6]),
    }


def random_speculation(random: Random) -> Speculation | None:
    """Return a drafter that is right always, often or never, or none."""
    rate = random.choice([None, None, 0.0, 0.5, 0.9, 1.0])
    if rate is None:
        return None
    drafter = OracleDrafter(fake_answer, rate, seed=random.randint(0, 1000))
    max_num_drafts = random.randint(1, 20)
    return Speculation(
        drafter, num_tokens=random.randint(1, 9), max_num_drafts=max_num_drafts, is_adaptive=random.random() < 0.3
    )


class RandomWorld(World):
    """A world whose requests share beginnings, end in all ways, and are all accounted for."""

    def __init__(self, random: Random, **options: Any) -> None:
        super().__init__(speculation=random_speculation(random), **(random_options(random) | options))
        self.random = random
        self.in_flight: Batch | None = None
        self.ended_outside: set[str] = set()

    def arrive(self) -> None:
        """Add a request; it may be refused, but only for a reason."""
        random = self.random
        stem = [random.choice([1, 2])] * random.randint(0, 12)
        prompt = (stem + [random.randint(1, 3) for _ in range(random.randint(0, 8))]) or [1]
        max_tokens = random.choice([0, 1, 2, 5, 20, None])
        try:
            self.add(
                prompt,
                max_tokens=max_tokens,
                min_tokens=random.randint(0, max_tokens or 0),
                stop_token_ids=(random.randint(0, VOCABULARY_SIZE),),
                ignore_eos=random.random() < 0.3,
                prompt_logprobs=random.choice([None, None, None, 2]),
                eos_token_ids=EOS_TOKEN_IDS,
                priority=random.randint(0, 2),
                tenant=random.choice(["", "a", "b"]),
                deadline_at=random.choice([None, self.now + 4]),
                cache_salt=random.choice(["", "", "salt"]),
            )
        except QueueFullError:
            assert self.scheduler.num_waiting >= (self.config.max_num_queued_reqs or 0)
        except PromptTooLongError:
            num_slots = self.config.max_cached_tokens
            assert len(prompt) + (max_tokens != 0) > min(num_slots, self.config.max_model_len)

    def anybody(self) -> str | None:
        """Return the id of a request that has not ended."""
        alive = [request_id for request_id in self.requests if request_id not in self.ends]
        return self.random.choice(alive) if alive else None

    def abort(self, request_id: str) -> None:
        self.note(self.scheduler.abort(self.requests[request_id].id, self.now))
        assert self.scheduler.abort(self.requests[request_id].id, self.now) is None

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request as the text layer does."""
        self.note(self.scheduler.finish(self.requests[request_id].id, reason, self.now))
        self.ended_outside.add(request_id)

    def schedule(self) -> None:
        """Run the first half of a step."""
        had_work = self.scheduler.has_work
        batch = self.in_flight = self.scheduler.schedule(self.now)
        for update in batch.ended:
            self.note(update)
        self.check_step(batch, had_work)

    def update(self) -> None:
        """Run the second half of a step; some requests may have been aborted between the two."""
        batch, self.in_flight = self.in_flight, None
        assert batch is not None
        output = self.runner.execute(batch)
        self.now += 1.0
        updates = self.scheduler.update(batch, output, self.now)
        assert len({update.request_id for update in updates}) == len(updates)
        for update in updates:
            self.note(update)

    def check_step(self, batch: Batch, had_work: bool) -> None:
        """Assert what must hold of every batch."""
        assert batch.num_tokens <= max(batch.budget, batch.num_decodes)
        assert batch.chunks or batch.ended or not had_work or self.config.batching != "continuous", "no progress"
        is_for_blocks = any(cause.startswith("blocks") for _, cause in batch.preempted)
        assert not (self.config.reserves_all and is_for_blocks), "preempted for blocks, though all were reserved"
        told = {chunk.request_id for chunk in batch.chunks} | {request_id for request_id, _ in batch.deferred}
        for request in self.requests.values():
            if request.status is RequestStatus.RUNNING:
                assert request.id in told, f"{request.id} runs and was silently skipped"
        drafts = {draft.seat: len(draft.token_ids) for draft in batch.drafts}
        decodes = batch.chunks[: batch.num_decodes]
        assert all(chunk.end - chunk.start == 1 + drafts.pop(chunk.seat, 0) for chunk in decodes)
        assert not drafts, "drafts of a request that does not decode"

    def wind_up(self) -> None:
        """Let everybody finish and assert that every answer is right and nothing is left."""
        if self.in_flight is not None:
            self.update()
        for _ in range(5000):
            if not self.scheduler.has_work:
                break
            self.scheduler.flush()
            self.schedule()
            self.update()
        assert not self.scheduler.has_work, "this does not end"
        self.schedule()
        self.update()
        assert self.runner.seats == {}
        assert self.ends.keys() == self.requests.keys()
        for request in self.requests.values():
            self.check_answer(request)
        self.scheduler.check_invariants()
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_queued_tokens, stats.blocks_used) == (0, 0, 0, 0)
        assert self.scheduler.reset_prefix_cache()
        assert self.scheduler.stats().blocks_cached == 0

    def check_answer(self, request: Request) -> None:
        """Assert that an answer is what the request gets when it is alone, cut where it should be."""
        output, params, reason = self.outputs[request.id], request.params, self.ends[request.id]
        assert output == expected_output(request.prompt_token_ids, len(output))
        assert output == request.output_token_ids
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else EOS_TOKEN_IDS)
        for length, token_id in enumerate(output[:-1], 1):
            assert token_id not in stops or length < params.min_tokens, "it went on after a stop"
        is_stopped = bool(output) and output[-1] in stops and len(output) >= params.min_tokens
        assert (reason is FinishReason.STOP) == is_stopped or request.id in self.ended_outside
        if reason is FinishReason.LENGTH:
            num_slots = self.config.max_cached_tokens
            assert request.num_tokens == request.end_at or request.num_tokens == num_slots + 1
        if params.prompt_logprobs is not None and output:
            first = self.updates[request.id][0].prompt_logprobs
            assert first is not None
            assert [entry.token_id for entry in first] == request.prompt_token_ids[1:]
