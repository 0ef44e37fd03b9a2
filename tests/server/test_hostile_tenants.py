"""Keys and tenants: each sees and ends its own requests alone, and no web page gets in by a name of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hotseat.errors import ConfigError
from hotseat.server import ServerConfig
from hotseat.server.auth import ApiKeys
from server.fakes import FakeServer, Reply, completion

TENANTS = ServerConfig(api_key=("alice=a-key", "bob=b-key"), admin_api_key=("root-key",))
ALICE, BOB, ADMIN = ({"authorization": f"Bearer {key}"} for key in ("a-key", "b-key", "root-key"))


async def while_alice_waits(server: FakeServer, ask: Callable[[str], None]) -> Reply:
    """Call ``ask`` with the id of an answer of Alice's that is being generated; return that answer."""
    server.runner.hold()
    exchange, task = server.start_post("/v1/completions", completion(max_tokens=100, stream=True), ALICE)
    await server.runner.until_entered()
    ((answer_id, _),) = server.in_flight.items()
    await ask(answer_id)  # type: ignore[func-returns-value]
    server.runner.release()
    await task
    return exchange.reply()


async def fetch(server: FakeServer, method: str, target: str, headers: dict[str, str], body: object = None) -> Reply:
    exchange, task = (
        server.start_post(target, body, headers) if method == "POST" else server._start("GET", target, b"", headers)
    )
    while not task.done():  # the engine looks at what was asked between two steps, and may just have begun one
        server.runner.step()
        await asyncio.wait([task], timeout=0.05)
    return exchange.reply()


def test_a_key_sees_its_own_requests_alone(start: Callable[..., FakeServer]) -> None:
    server = start(config=TENANTS)
    seen: dict[str, list[str]] = {}

    async def ask(answer_id: str) -> None:
        for name, key in (("alice", ALICE), ("bob", BOB), ("admin", ADMIN)):
            listed = (await fetch(server, "GET", "/v1/requests", key)).json()["data"]
            seen[name] = [entry["id"] for entry in listed]
            explained = await fetch(server, "GET", f"/v1/requests/{answer_id}/explain", key)
            assert explained.status == (404 if name == "bob" else 200), name

    reply = server.run(while_alice_waits(server, ask))
    answer_id = reply.events()[0]["id"]
    assert seen == {"alice": [answer_id], "bob": [], "admin": [answer_id]}


def test_a_request_that_has_ended_stays_its_owners(start: Callable[..., FakeServer]) -> None:
    server = start(config=TENANTS)
    answer = server.post("/v1/completions", completion(), ALICE).json()
    path = f"/v1/requests/{answer['id']}/explain"
    assert [server.get(path, key).status for key in (ALICE, BOB, ADMIN)] == [200, 404, 200]
    (sequence,) = server.get(path, ALICE).json()["sequences"]
    of_sequence = f"/v1/requests/{sequence['request_id']}/explain"
    assert [server.get(of_sequence, key).status for key in (ALICE, BOB, ADMIN)] == [200, 404, 200]


@pytest.mark.parametrize(("key", "is_found"), [(BOB, False), (ALICE, True), (ADMIN, True)])
def test_a_key_aborts_its_own_requests_alone(
    start: Callable[..., FakeServer], key: dict[str, str], is_found: bool
) -> None:
    server = start(config=TENANTS)

    async def ask(answer_id: str) -> None:
        reply = await fetch(server, "POST", "/abort_requests", key, {"request_ids": [answer_id]})
        assert reply.json()["aborted"] == ([answer_id] if is_found else [])

    reply = server.run(while_alice_waits(server, ask))
    reasons = [choice["finish_reason"] for event in reply.events() for choice in event["choices"]]
    assert reasons[-1] == ("abort" if is_found else "length")


def test_steps_hide_the_sequences_of_others(start: Callable[..., FakeServer]) -> None:
    server = start(config=TENANTS)
    answer_id = server.post("/v1/completions", completion(), ALICE).json()["id"]
    for key, is_shown in ((ALICE, True), (BOB, False), (ADMIN, True)):
        reply = server.get("/v1/steps", key)
        assert (answer_id in reply.body.decode()) is is_shown
        ids = {item["id"] for step in reply.json()["steps"] for item in step["scheduled"]}
        assert len(ids) == 1  # the same name in each step
        assert (answer_id in ids.pop()) is is_shown


def test_only_an_admin_resets_the_prefix_cache(start: Callable[..., FakeServer]) -> None:
    server = start(config=TENANTS)
    statuses = [server.post("/reset_prefix_cache", {}, key).status for key in (ALICE, BOB, ADMIN)]
    assert statuses == [403, 403, 200]
    assert server.post("/reset_prefix_cache", {}, ALICE).error["type"] == "PermissionDeniedError"


def test_the_only_key_of_a_server_is_its_admin(start: Callable[..., FakeServer]) -> None:
    server = start(config=ServerConfig(api_key=("k",)))
    assert server.post("/reset_prefix_cache", {}, {"x-api-key": "k"}).status == 200


def test_without_keys_the_machines_own_users_are_admins_and_others_are_not(start: Callable[..., FakeServer]) -> None:
    assert start().post("/reset_prefix_cache", {}).status == 200
    assert start(config=ServerConfig(host="0.0.0.0")).post("/reset_prefix_cache", {}).status == 403


def cached_tokens(server: FakeServer, key: dict[str, str], **fields: object) -> int:
    reply = server.post("/v1/completions", completion(prompt="x" * 100, **fields), key)
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_an_isolated_prefix_cache_is_shared_within_one_key_alone(start: Callable[..., FakeServer]) -> None:
    keys = {"api_key": ("a-key", "b-key")}
    shared, isolated = (start(config=ServerConfig(isolate_prefix_cache=flag, **keys)) for flag in (False, True))
    assert cached_tokens(shared, ALICE) == 0
    assert cached_tokens(shared, BOB) > 0
    assert cached_tokens(isolated, ALICE) == 0
    assert cached_tokens(isolated, BOB) == 0
    assert cached_tokens(isolated, BOB, cache_salt="another") == 0
    assert cached_tokens(isolated, ALICE) > 0


REBOUND = {"host": "attacker.example:8000", "origin": "http://attacker.example:8000"}


@pytest.mark.parametrize(
    "path", ["/", "/health", "/metrics", "/v1/models", "/v1/requests", "/v1/steps", "/openapi.json"]
)
def test_a_page_whose_name_points_to_this_machine_is_shut_out(server: FakeServer, path: str) -> None:
    reply = server.get(path, REBOUND)
    assert reply.status == 403
    assert "attacker.example" in reply.error["message"]


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://evil.example:8443", "http://6.6.6.6", "null", "http://["]
)
def test_a_foreign_page_may_not_ask(server: FakeServer, origin: str) -> None:
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/abort_requests")):
        reply = server.call(method, path, b"{}", {"host": "127.0.0.1:8000", "origin": origin})
        assert reply.status == 403
        assert origin in reply.error["message"]


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:8000",
        "http://localhost:3000",
        "http://app.localhost",
        "http://[::1]:1",
        "http://192.168.1.7:8000",
        "vscode-webview://abc",
        "app://obsidian.md",
        "",
    ],
)
def test_pages_of_this_machine_and_of_this_server_may_ask(server: FakeServer, origin: str) -> None:
    assert server.get("/v1/models", {"host": "192.168.1.7:8000", "origin": origin}).status == 200


def test_a_foreign_page_may_ask_where_it_is_allowed(start: Callable[..., FakeServer]) -> None:
    foreign = {"host": "localhost", "origin": "https://chat.example"}
    for options in ({"allowed_origins": ("https://chat.example",)}, {"allowed_hosts": ("chat.example",)}):
        assert start(config=ServerConfig(**options)).get("/v1/models", foreign).status == 200
    behind_keys = start(config=ServerConfig(api_key=("k",)))
    assert behind_keys.get("/v1/models", foreign | {"authorization": "Bearer k"}).status == 200


def test_a_key_without_a_name_is_one_tenant_whatever_its_holder_says(start: Callable[..., FakeServer]) -> None:
    def tenants(config: ServerConfig, *keys: str) -> list[str]:
        server = start(config=config)
        given = server.watch_tenants()
        for key in keys:
            for user in ("ann", "bob"):
                headers = {"authorization": f"Bearer {key}"}
                assert server.post("/v1/completions", completion(max_tokens=1, user=user), headers).status == 200
        return given

    first, again, other, _ = tenants(ServerConfig(api_key=("1", "2")), "1", "2")
    assert first == again != other
    assert tenants(ServerConfig(api_key=("team=1", "2")), "1") == ["team", "team"]
    assert tenants(ServerConfig(api_key=("1",)), "1") == ["ann", "bob"]  # of its only key's holder: all are his users
    assert tenants(ServerConfig(), "none") == ["ann", "bob"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LOCALHOST",
        "a.localhost:1",
        "127.0.0.1:8000",
        "[::1]:8000",
        "192.168.1.7",
        "localhost.",
    ],
)
def test_names_of_this_machine_and_addresses_pass(server: FakeServer, host: str) -> None:
    assert server.get("/health", {"host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    ["", ":8000", "localhost.evil.example", "evillocalhost", "127.0.0.1.evil.example", "[evil", "127.1", "0x7f.1"],
)
def test_names_that_look_like_this_machines_do_not_pass(server: FakeServer, host: str) -> None:
    assert server.get("/health", {"host": host}).status == 403


def test_more_names_can_be_allowed(start: Callable[..., FakeServer]) -> None:
    server = start(config=ServerConfig(allowed_hosts=("llm.example", ".lan")))
    statuses = [server.get("/health", {"host": host}).status for host in ("LLM.example:80", "box.lan", "evil.example")]
    assert statuses == [200, 200, 403]
    assert start(config=ServerConfig(allowed_hosts=("*",))).get("/health", REBOUND).status == 200


def test_a_server_for_others_or_with_keys_takes_any_name_unless_names_are_given(
    start: Callable[..., FakeServer],
) -> None:
    assert start(config=ServerConfig(host="0.0.0.0")).get("/health", REBOUND).status == 200
    assert start(config=ServerConfig(api_key=("k",))).get("/health", REBOUND).status == 200
    named = start(config=ServerConfig(host="0.0.0.0", allowed_hosts=("llm.example",)))
    assert named.get("/health", REBOUND).status == 403


def test_keys_of_a_file_are_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotseat.server.auth._RELOAD_INTERVAL_S", 0.0)
    file = tmp_path / "keys"
    file.write_text("# tenants\nalice=old\n\n")
    keys = ApiKeys((), file=file)

    def name(secret: bytes) -> str | None:
        caller = keys.caller({b"x-api-key": secret})
        return caller and caller.name

    assert (name(b"old"), name(b"new"), name(b""), name(b"# tenants")) == ("alice", None, None, None)
    (tmp_path / "next").write_text("bob=new\n")
    os.replace(tmp_path / "next", file)
    assert (name(b"old"), name(b"new")) == (None, "bob")
    file.unlink()
    assert name(b"new") == "bob"  # what cannot be read changes nothing


@pytest.mark.parametrize("content", [None, "", "# nothing\n\n", "="])
def test_a_key_file_without_a_key_ends_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="api_key_file"):
        ApiKeys((), file=file)


def test_a_body_that_is_packed_and_chunked_is_refused_by_the_name_of_its_coding(server: FakeServer) -> None:
    reply = server.post("/v1/completions", completion(), {"transfer-encoding": "gzip, chunked"})
    assert reply.status == 501
    assert "gzip, chunked" in reply.error["message"]
    assert server.post("/v1/completions", completion(), {"transfer-encoding": "Chunked"}).status == 200


def test_metrics_answer_head(server: FakeServer) -> None:
    assert server.call("HEAD", "/metrics", b"", {}).status == 200
