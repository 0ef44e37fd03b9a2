"""A user's policy that raises: the engine says so once and goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from engine.fakes import StartedEngine, expected_tokens, make_request
from hotseat.core.config import SchedulerConfig
from hotseat.core.request import Request
from hotseat.core.scheduler import Scheduler


class Faulty:
    def key(self, request: Request, now: float) -> tuple[float, ...]:
        raise RuntimeError("no idea")


def test_a_policy_that_raises_is_replaced_and_named_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    config = SchedulerConfig(max_model_len=512, num_kv_blocks=256, max_num_batched_tokens=256)
    requests = [make_request(f"r{index}") for index in range(4)]
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}

    async def scenario(started: StartedEngine) -> None:
        for request in requests:
            async for updates in await started.engine.submit([request]):
                tokens[request.id] += [token_id for update in updates for token_id in update.new_token_ids]

    with caplog.at_level(logging.ERROR), StartedEngine(Scheduler(config, Faulty())) as started:
        asyncio.run(scenario(started))
    assert tokens == {request.id: expected_tokens(request) for request in requests}
    said = [entry.getMessage() for entry in caplog.records if "Faulty" in entry.getMessage()]
    assert said == ["Faulty.key raised RuntimeError: no idea; requests are now ordered as under fcfs"]
    assert started.engine.stats().policy_error == "Faulty.key raised RuntimeError: no idea"
