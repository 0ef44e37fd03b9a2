"""Requests made from the API's own description: no server error, and no answer that is not described.

More of them: ``HOTSEAT_TEST_EXAMPLES=2000 pytest tests/server/test_hostile_schema.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from server.fakes import FakeServer, completion

schemathesis = pytest.importorskip("schemathesis")
GenerationMode = pytest.importorskip("schemathesis.generation").GenerationMode

EXAMPLES = int(os.environ.get("HOTSEAT_TEST_EXAMPLES", "40"))


@pytest.fixture(scope="module")
def one_server() -> Iterator[FakeServer]:
    server = FakeServer(max_model_len=64, num_kv_blocks=16)
    yield server
    server.close()


def described_operations() -> dict[str, Any]:
    server = FakeServer(starts=False)
    description = server.get("/openapi.json").json()
    server.close()
    operations = [one.ok() for one in schemathesis.openapi.from_dict(description).get_all_operations()]
    return {operation.label: operation for operation in operations}


OPERATIONS = described_operations()


def forbids_something(label: str) -> bool:
    """Tell whether a request can be wrong; any text will do as a part of a path."""
    definition = OPERATIONS[label].definition.raw
    return "requestBody" in definition or any(one["in"] != "path" for one in definition.get("parameters", ()))


def send(server: FakeServer, case: Any) -> Any:
    sent = case.as_transport_kwargs(base_url="http://localhost")
    body = sent["data"] if sent.get("data") is not None else json.dumps(sent["json"]) if "json" in sent else b""
    data = body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass")
    headers = {str(name): str(value) for name, value in (sent.get("headers") or {}).items()}
    query = "&".join(f"{name}={value}" for name, value in (sent.get("params") or {}).items())
    target = sent["url"].removeprefix("http://localhost") + (f"?{query}" if query else "")
    return server.call(sent["method"], target, data, headers)


def check(server: FakeServer, label: str, mode: Any) -> None:
    operation = OPERATIONS[label]
    described = set(operation.definition.raw["responses"])

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def is_described(case: Any) -> None:
        reply = send(server, case)
        assert reply.status < 500, (reply.status, reply.body, case.body)
        assert str(reply.status) in described, (reply.status, reply.body, case.body)

    is_described()
    assert server.post("/v1/completions", completion()).json()["choices"][0]["text"] == server.text(8)


@pytest.mark.parametrize("label", OPERATIONS)
def test_what_the_description_allows_gets_an_answer_that_it_names(one_server: FakeServer, label: str) -> None:
    check(one_server, label, GenerationMode.POSITIVE)


@pytest.mark.parametrize("label", [label for label in OPERATIONS if forbids_something(label)])
def test_what_the_description_forbids_gets_an_answer_that_it_names(one_server: FakeServer, label: str) -> None:
    check(one_server, label, GenerationMode.NEGATIVE)


def test_every_body_and_every_error_is_described(one_server: FakeServer) -> None:
    description = one_server.get("/openapi.json").json()
    text = json.dumps(description)
    assert "$defs" not in text  # references that lead nowhere
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            assert "422" not in operation["responses"], path
            assert {"400", "401", "403", "503"} <= set(operation["responses"]), path
            assert method != "post" or path == "/reset_prefix_cache" or "requestBody" in operation, path
