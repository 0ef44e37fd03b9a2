"""Fields of any size: refused with the limit, or kept as a digest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hotseat.generation import PromptRequest
from hotseat.server import ServerConfig
from server.fakes import FakeServer, chat, completion


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("stop", "x" * 1025, "1024"),
        ("stop", ["a", "x" * 1025], "1024"),
        ("stop", ["a"] * 17, "16"),
        ("stop_token_ids", [1] * 16_385, "16384"),
        ("allowed_token_ids", [1] * 16_385, "16384"),
        ("logit_bias", {str(number): 1.0 for number in range(16_385)}, "16384"),
    ],
)
def test_a_field_above_its_limit_is_refused_with_the_limit(
    server: FakeServer, field: str, value: Any, limit: str
) -> None:
    for path, body in (("/v1/completions", completion()), ("/v1/chat/completions", chat())):
        reply = server.post(path, body | {field: value})
        assert (reply.status, reply.error["param"]) == (400, field)
        assert limit in reply.error["message"]


def prompts_of(server: FakeServer, *bodies: dict[str, Any]) -> list[PromptRequest]:
    """Return what the generator is given for ``bodies``."""
    given: list[PromptRequest] = []
    generate = server.generator.generate

    def spy(prompts: list[PromptRequest], *, request_id: str) -> object:
        given.extend(prompts)
        return generate(prompts, request_id=request_id)

    server.generator.generate = spy  # type: ignore[method-assign, assignment]
    for body in bodies:
        assert server.post("/v1/completions", body).status == 200
    return given


def test_a_cache_salt_of_any_length_is_kept_as_sixteen_bytes(server: FakeServer) -> None:
    salts = ["a" * 1_000_000, "a" * 1_000_001, "a", None]
    kept = [prompt.cache_salt for prompt in prompts_of(server, *(completion(cache_salt=salt) for salt in salts))]
    assert len(set(kept)) == 4, "different salts share nothing"
    assert [len(salt) for salt in kept] == [32, 32, 32, 0]


def test_the_salt_of_one_key_is_not_that_of_another(start: Callable[..., FakeServer]) -> None:
    config = ServerConfig(api_key=("a=1", "b=2"), isolate_prefix_cache=True)
    server = start(config=config)
    given: list[PromptRequest] = []
    generate = server.generator.generate

    def spy(prompts: list[PromptRequest], *, request_id: str) -> object:
        given.extend(prompts)
        return generate(prompts, request_id=request_id)

    server.generator.generate = spy  # type: ignore[method-assign, assignment]
    for key in ("1", "2"):
        for salt in (None, "s"):
            server.post("/v1/completions", completion(cache_salt=salt), {"authorization": f"Bearer {key}"})
    assert len({prompt.cache_salt for prompt in given}) == 4


def test_a_long_user_is_kept_as_sixteen_bytes(server: FakeServer) -> None:
    users = ["u" * 1_000_000, "u" * 1_000_001, "bob"]
    tenants = [prompt.tenant for prompt in prompts_of(server, *(completion(user=user) for user in users))]
    assert [len(tenant) for tenant in tenants] == [32, 32, 3]
    assert len(set(tenants)) == 3


def test_a_reset_that_is_no_json_request_is_refused(server: FakeServer) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):  # what any web page may send
        assert server.call("POST", "/reset_prefix_cache", b"", {"content-type": kind}).status == 400
    assert server.call("POST", "/reset_prefix_cache", b"", {}).status == 400
    assert server.post("/reset_prefix_cache", {}).json() == {"reset": True}


def test_stop_strings_are_bounded_over_all_sequences(server: FakeServer) -> None:
    stops = ["".join(pair) for pair in zip("abcdefghijklmnop", "ponmlkjihgfedcba", strict=True)]
    reply = server.post("/v1/completions", completion(prompt=["a"] * 9, n=128, stop=stops))
    assert (reply.status, reply.error["param"]) == (400, "stop")
    assert "16384" in reply.error["message"]
    assert str(9 * 128 * 16) in reply.error["message"]
