"""Ids, keys, errors of routing, and the line in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from hotseat.server import ServerConfig
from server.fakes import FakeServer, completion

KEYS = ServerConfig(api_key=("plain-key", "alice=her-key", "c2VjcmV0=="))


def test_every_response_carries_a_request_id(server: FakeServer) -> None:
    replies = [
        server.get("/health"),
        server.get("/nowhere"),
        server.post("/v1/completions", b"{"),
        server.post("/v1/completions", completion()),
    ]
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert len(set(ids)) == len(ids)
    assert all(ids)


def test_the_clients_id_is_echoed_and_never_becomes_the_answers(server: FakeServer) -> None:
    replies = [server.post("/v1/completions", completion(), {"x-request-id": "batch_1"}) for _ in range(2)]
    assert [reply.headers["x-request-id"] for reply in replies] == ["batch_1", "batch_1"]
    assert replies[0].json()["id"] != replies[1].json()["id"]


def test_without_an_id_of_the_clients_the_answers_is_sent(server: FakeServer) -> None:
    for stream in (False, True):
        reply = server.post("/v1/completions", completion(stream=stream))
        answer = reply.events()[0] if stream else reply.json()
        assert reply.headers["x-request-id"] == answer["id"]


@pytest.mark.parametrize("client_id", ["", "line\nbreak", "x" * 500, "sp ace"])
def test_an_id_that_is_no_token_is_replaced(server: FakeServer, client_id: str) -> None:
    assert server.get("/health", {"x-request-id": client_id}).headers["x-request-id"] != client_id


@pytest.mark.parametrize("key", ["plain-key", "her-key", "c2VjcmV0=="])
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_a_key_opens_the_server(start: Callable[..., FakeServer], key: str, header: str) -> None:
    server = start(config=KEYS)
    value = f"Bearer {key}" if header == "authorization" else key
    assert server.get("/v1/models", {header: value}).status == 200


@pytest.mark.parametrize("value", [None, "Bearer wrong", "Bearer ", "plain-key", "Bearer alice=her-key", "Basic x"])
def test_without_a_key_nothing_is_told(start: Callable[..., FakeServer], value: str | None) -> None:
    server = start(config=KEYS)
    headers = {} if value is None else {"authorization": value}
    for method, path in [
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/steps"),
        ("POST", "/tokenize"),
        ("GET", "/openapi.json"),
        ("POST", "/abort_requests"),
        ("GET", "/nowhere"),
    ]:
        reply = server.call(method, path, b"{}", {"content-type": "application/json", **headers})
        assert reply.status == 401
        assert reply.error["code"] == "invalid_api_key"
        assert reply.headers["www-authenticate"] == "Bearer"


def test_probes_and_the_page_need_no_key(start: Callable[..., FakeServer]) -> None:
    server = start(config=KEYS)
    for path in ("/health", "/ready", "/version", "/metrics", "/", "/static/page.js"):
        assert server.get(path).status == 200, path


def test_metrics_can_be_protected(start: Callable[..., FakeServer]) -> None:
    server = start(config=ServerConfig(api_key=("k",), protect_metrics=True))
    assert server.get("/metrics").status == 401
    assert server.get("/metrics", {"authorization": "Bearer k"}).status == 200


def test_the_tenant_is_the_keys_name_else_the_key(start: Callable[..., FakeServer]) -> None:
    server = start(config=KEYS)
    tenants = server.watch_tenants()
    for key in ("her-key", "plain-key"):
        server.post("/v1/completions", completion(user="bob"), {"authorization": f"Bearer {key}"})
    alice, unnamed = tenants
    assert alice == "alice"
    assert unnamed.startswith("key ")  # and not the user, whom a client may call as it likes


def test_wrong_paths_and_methods_get_openais_errors(server: FakeServer) -> None:
    missing = server.get("/v1/nothing")
    assert (missing.status, missing.error["type"], missing.error["code"]) == (404, "NotFoundError", 404)
    wrong = server.get("/v1/completions")
    assert (wrong.status, wrong.error["type"], wrong.error["code"]) == (405, "MethodNotAllowedError", 405)
    assert wrong.headers["allow"] == "POST"
    bad = server.get("/v1/steps?since=yesterday")
    assert (bad.status, bad.error["param"]) == (400, "since")


def test_an_exception_of_ours_is_500_and_keeps_its_secrets(start: Callable[..., FakeServer]) -> None:
    def broken() -> bytes:
        raise RuntimeError("/home/secret/path")

    server = start(services={"render_metrics": broken})
    reply = server.get("/metrics")
    assert reply.status == 500
    assert reply.error["type"] == "InternalServerError"
    assert "secret" not in reply.error["message"]
    assert reply.headers["x-request-id"]
    assert server.get("/health").status == 200


def test_foreign_pages_are_let_in_only_when_configured(start: Callable[..., FakeServer]) -> None:
    origin = {"origin": "https://app.example"}
    assert "access-control-allow-origin" not in start().get("/v1/models", origin).headers
    server = start(config=ServerConfig(allowed_origins=("https://app.example",), api_key=("k",)))
    preflight = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    assert server.call("OPTIONS", "/v1/completions", b"", preflight).status == 200
    reply = server.get("/v1/models", {**origin, "authorization": "Bearer k"})
    assert reply.headers["access-control-allow-origin"] == "https://app.example"


def test_each_request_leaves_one_line_in_the_log(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="hotseat.server.middleware"):
        answer = server.post("/v1/completions", completion()).json()
        server.get("/health")
        server.get("/no%0Awhere")
    completed, missing = [record.getMessage() for record in caplog.records]
    assert completed.startswith("POST /v1/completions 200 ")
    assert f" {answer['id']} completed prompt=13 cached=0 output=8" in completed
    assert missing.startswith("GET /no\\nwhere 404 ")


def test_the_log_can_be_switched_off(start: Callable[..., FakeServer], caplog: pytest.LogCaptureFixture) -> None:
    server = start(config=ServerConfig(disable_access_log=True))
    with caplog.at_level(logging.INFO, logger="hotseat.server.middleware"):
        server.get("/nowhere")
    assert not caplog.records
