"""A user's policy that raises: answers come all the same, and /health tells."""

from __future__ import annotations

from collections.abc import Callable

from hotseat.core.request import Request
from server.fakes import FakeServer, completion


class Faulty:
    def key(self, request: Request, now: float) -> tuple[float, ...]:
        raise RuntimeError("no idea")


def test_health_names_the_fault_of_a_policy_and_stays_green(start: Callable[..., FakeServer]) -> None:
    server = start(policy=Faulty())
    assert server.get("/health").json()["policy_error"] is None
    assert server.post("/v1/completions", completion(max_tokens=3)).status == 200
    health = server.get("/health")
    assert health.status == 200
    assert health.json()["policy_error"] == "Faulty.key raised RuntimeError: no idea"
