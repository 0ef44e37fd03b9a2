"""What cannot be honoured is refused by name, and a refusal names the limit or the choices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from server.fakes import FakeServer, chat, completion

OF_OTHERS: dict[str, Any] = {
    "lora_path": "/adapters/a",
    "lora_request": {"lora_name": "a"},
    "format": "json",
    "structural_tag": {"triggers": ["<"]},
    "repeat_penalty": 1.2,
    "typical_p": 0.5,
    "mirostat": 2,
    "max_new_tokens": 5,
    "num_predict": 5,
    "stop_sequences": ["a"],
    "negative_prompt": "no",
    "xtc_probability": 0.5,
    "options": {"temperature": 0},
    "no_repeat_ngram_size": 3,
}


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_field_of_another_server_is_refused_by_its_name(server: FakeServer, name: str) -> None:
    for path, body in (("/v1/completions", completion()), ("/v1/chat/completions", chat())):
        reply = server.post(path, body | {name: OF_OTHERS[name]})
        assert reply.status == 400
        assert reply.error["param"] == name
        assert f"`{name}`" in reply.error["message"]
    assert server.post("/v1/completions", completion(**{name: None})).status == 200


@pytest.mark.parametrize(("field", "honours"), [("priority", "honours_priority"), ("deadline_ms", "honours_deadline")])
def test_a_wish_that_the_policy_ignores_is_refused_by_name(
    start: Callable[..., FakeServer], field: str, honours: str
) -> None:
    refused = start().post("/v1/completions", completion(**{field: 5}))
    assert refused.status == 400
    assert refused.error["param"] == field
    assert start(services={honours: True}).post("/v1/completions", completion(**{field: 5})).status == 200


@pytest.mark.parametrize(
    ("bounds", "limit"),
    [({"queue_timeout_s": 0.01}, "queue_timeout_s = 0.01"), ({"request_timeout_s": 0.01}, "request_timeout_s = 0.01")],
)
def test_a_request_that_ran_out_of_time_is_told_which_limit_ended_it(
    start: Callable[..., FakeServer], bounds: dict[str, float], limit: str
) -> None:
    server = start(max_num_seqs=1, **bounds)

    async def crowd() -> list[Any]:
        server.runner.hold()
        first, running = server.start_post("/v1/completions", completion(max_tokens=400))
        await server.runner.until_entered()
        second, queued = server.start_post("/v1/completions", completion(prompt="second"))
        await asyncio.sleep(0.05)  # longer than either limit
        server.runner.release()
        await asyncio.gather(running, queued)
        return [first.reply(), second.reply()]

    late = [reply for reply in server.run(crowd()) if reply.status == 504]
    assert late
    assert all(limit in reply.error["message"] for reply in late)


def test_an_unknown_model_is_told_which_there_are(server: FakeServer) -> None:
    for reply in (
        server.post("/v1/chat/completions", chat(model="gpt-9")),
        server.post("/tokenize", {"model": "gpt-9", "prompt": "x"}),
        server.get("/v1/models/gpt-9"),
    ):
        assert reply.status == 404
        assert "`fake`, `org/fake`" in reply.error["message"]
