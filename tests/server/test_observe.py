"""The endpoints to look in and to step in, and the page."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

from hotseat.server import ServerConfig
from server.fakes import FakeServer, chat, completion


def test_models_are_listed_and_shown_under_each_name(server: FakeServer) -> None:
    cards = server.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["fake", "org/fake"]
    assert all(card["max_model_len"] == 512 and card["object"] == "model" for card in cards)
    assert server.get("/v1/models/org/fake").json() == cards[1]
    missing = server.get("/v1/models/other")
    assert (missing.status, missing.error["param"]) == (404, "model")


def test_health_ready_version_and_metrics_answer(server: FakeServer) -> None:
    assert server.get("/health").json()["status"] == "ok"
    assert server.get("/ready").json()["status"] == "ready"
    assert server.get("/version").json()["version"]
    metrics = server.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert metrics.body == b"hotseat:seats 8\n"


def test_the_version_says_what_is_promised_about_bits(start: Callable[..., FakeServer]) -> None:
    promise = {"any_batch": True, "any_threads": False, "exceptions": ("sums",)}
    version = start(services={"determinism": promise}).get("/version").json()
    assert version["determinism"] == {"any_batch": True, "any_threads": False, "exceptions": ["sums"]}


def test_a_full_queue_leaves_the_server_healthy(start: Callable[..., FakeServer]) -> None:
    server = start(max_num_seqs=1, max_num_queued_reqs=1)

    async def crowd() -> tuple[int, int]:
        server.runner.hold()
        tasks = [server.start_post("/v1/completions", completion())[1] for _ in range(3)]
        await server.runner.until_entered()
        load, probe = await get(server, "/load"), await get(server, "/health")
        server.runner.release()
        await asyncio.gather(*tasks)
        return load["server_load"], probe["status"]

    num_answers, status = server.run(crowd())
    assert num_answers in (2, 3)  # the third is refused now, or when the engine looks up from its step
    assert status == "ok"


async def get(server: FakeServer, target: str) -> Any:
    exchange, task = server.start_get(target)
    await task
    return exchange.reply().json()


def test_steps_are_told_since_the_last_look(server: FakeServer) -> None:
    server.post("/v1/completions", completion(prompt="x" * 100, max_tokens=3))
    first = server.get("/v1/steps").json()
    prefill = first["steps"][0]["scheduled"][0]
    assert prefill["phase"] == "prefill"
    assert (prefill["start"], prefill["end"], prefill["total"], prefill["seat"]) == (0, 64, 100, 0)
    finished = [item for step in first["steps"] for item in step["finished"]]
    assert finished == [{"id": prefill["id"], "reason": "length"}]
    assert first["stats"]["max_num_seqs"] == 8
    assert first["stats"]["num_running"] == 0
    server.post("/v1/completions", completion(max_tokens=1))
    second = server.get(f"/v1/steps?since={first['next']}").json()
    assert second["steps"][0]["step"] > first["next"]
    later = server.get(f"/v1/steps?since={second['next']}").json()["steps"]
    assert [step for step in later if step["scheduled"]] == []  # one without work follows the last end
    assert len(server.get("/v1/steps?limit=1").json()["steps"]) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_request_is_explained_by_its_answers_id_and_its_sequences(server: FakeServer, count: int) -> None:
    async def ask() -> tuple[Any, Any]:
        server.runner.hold()
        _, task = server.start_post("/v1/completions", completion(prompt=["a", "b"][:count], n=2, max_tokens=400))
        await server.runner.until_entered()
        ((answer_id, _),) = server.in_flight.items()
        whole = await get(server, f"/v1/requests/{answer_id}/explain")
        own_id = whole["sequences"][0]["request_id"]
        single = await get(server, f"/v1/requests/{own_id}/explain")
        server.in_flight.get(answer_id).end(None)
        server.runner.release()
        await task
        return whole, single

    whole, single = server.run(ask())
    assert len(whole["sequences"]) == 2 * count
    assert len(single["sequences"]) == 1
    assert single["sequences"][0]["status"] == "running"
    assert single["sequences"][0]["reason"]


def test_answers_under_way_are_listed_and_explained_by_the_clients_id(start: Callable[..., FakeServer]) -> None:
    server = start(max_num_seqs=1)

    async def ask() -> tuple[Any, Any]:
        server.runner.hold()
        headers = {"x-request-id": "mine"}
        _, first = server.start_post("/v1/completions", completion(max_tokens=400))
        await server.runner.until_entered()
        _, second = server.start_post("/v1/completions", completion(max_tokens=2), headers=headers)
        while not (server.engine.stats().num_running and server.engine.stats().num_waiting):
            server.runner.step()
            await server.runner.until_entered()
        listed = await get(server, "/v1/requests")
        mine = await get(server, "/v1/requests/mine/explain")
        server.runner.release()
        await asyncio.gather(first, second)
        return listed["data"], mine["sequences"]

    listed, mine = server.run(ask())
    assert [entry["client_request_id"] for entry in listed] == [None, "mine"]
    assert [entry["sequences"][0]["status"] for entry in listed] == ["running", "waiting"]
    assert mine[0]["request_id"] == listed[1]["sequences"][0]["request_id"]
    assert "seat" in mine[0]["reason"]
    assert server.get("/v1/requests").json()["data"] == []


def test_a_step_that_is_being_computed_delays_no_answer_about_requests(start: Callable[..., FakeServer]) -> None:
    server = start(max_num_seqs=1)

    async def ask() -> tuple[Any, Any, Any, Any]:
        server.runner.hold()
        _, first = server.start_post("/v1/completions", completion(max_tokens=2))
        await server.runner.until_entered()
        _, second = server.start_post("/v1/completions", completion(max_tokens=2), headers={"x-request-id": "late"})
        while len(server.in_flight) < 2:
            await asyncio.sleep(0)
        # No step is let through: whatever waits for one would wait for ever.
        listed, explained = await get(server, "/v1/requests"), await get(server, "/v1/requests/late/explain")
        unknown = await get(server, "/v1/requests/nobody/explain")
        aborted = await post(server, "/abort_requests", {"request_ids": ["nobody"]})
        for target in ("/health", "/ready", "/load", "/metrics", "/v1/steps", "/v1/models"):
            exchange, task = server.start_get(target)
            await task
            assert exchange.status == 200
        server.runner.release()
        await asyncio.gather(first, second)
        return listed["data"], explained["sequences"], unknown["error"], aborted

    listed, explained, unknown, aborted = server.run(ask())
    assert [one["sequences"][0]["status"] for one in listed] == ["running", "waiting"]
    assert explained[0]["request_id"] == listed[1]["sequences"][0]["request_id"]
    assert unknown["code"] == 404
    assert aborted["not_found"] == ["nobody"]


def test_requests_come_in_pages(server: FakeServer) -> None:
    async def ask() -> list[Any]:
        server.runner.hold()
        posts = [server.start_post("/v1/completions", completion(max_tokens=400)) for _ in range(5)]
        await server.runner.until_entered()
        while server.engine.stats().num_running < 5:
            server.runner.step()
            await server.runner.until_entered()
        pages = []
        after = ""
        for _ in range(3):
            pages.append(await get(server, f"/v1/requests?limit=2&after={after}"))
            after = pages[-1]["next"]
        for _, entry in server.in_flight.items():
            entry.end(None)
        server.runner.release()
        await asyncio.gather(*(task for _, task in posts))
        return pages

    pages = server.run(ask())
    assert [len(page["data"]) for page in pages] == [2, 2, 1]
    assert pages[-1]["next"] is None
    assert len({one["id"] for page in pages for one in page["data"]}) == 5
    assert all(len(one["sequences"]) == 1 for page in pages for one in page["data"])
    assert server.get("/v1/requests?limit=0").status == 400
    assert server.get("/v1/requests?status=gone").status == 400


def test_requests_are_listed_by_status(start: Callable[..., FakeServer]) -> None:
    server = start(max_num_seqs=1)

    async def ask() -> dict[str, Any]:
        server.runner.hold()
        posts = [server.start_post("/v1/completions", completion(max_tokens=400)) for _ in range(4)]
        await server.runner.until_entered()
        while server.engine.stats().num_waiting < 3:
            server.runner.step()
            await server.runner.until_entered()
        found = {}
        for query in ("status=running", "status=waiting", "status=waiting&limit=2"):
            found[query] = await get(server, f"/v1/requests?{query}")
        for _, entry in server.in_flight.items():
            entry.end(None)
        server.runner.release()
        await asyncio.gather(*(task for _, task in posts))
        return found

    found = server.run(ask())
    ids = {query: [one["id"] for one in page["data"]] for query, page in found.items()}
    assert [len(listed) for listed in ids.values()] == [1, 3, 2]
    assert ids["status=waiting"][:2] == ids["status=waiting&limit=2"]
    assert found["status=waiting&limit=2"]["next"] == ids["status=waiting"][1]
    assert not set(ids["status=running"]) & set(ids["status=waiting"])


def test_what_became_of_a_request_can_be_asked_after_its_end(start: Callable[..., FakeServer]) -> None:
    server = start(max_num_seqs=1)

    async def ask() -> None:
        server.runner.hold()
        _, first = server.start_post("/v1/completions", completion(max_tokens=400))
        await server.runner.until_entered()
        ((first_id, _),) = server.in_flight.items()
        headers = {"x-request-id": "mine"}
        _, second = server.start_post("/v1/completions", completion(max_tokens=3, n=2), headers=headers)
        while server.engine.stats().num_waiting < 2:
            server.runner.step()
            await server.runner.until_entered()
        server.in_flight.get(first_id).end(None)
        server.runner.release()
        await asyncio.gather(first, second)

    server.run(ask())
    found = server.get("/v1/requests/mine/explain").json()
    assert (found["request_id"], found["client_request_id"]) == ("mine", "mine")
    for one in found["sequences"]:
        assert (one["status"], one["finish_reason"], one["num_output_tokens"]) == ("finished", "length", 3)
        # It arrived during a step, and waits in the queue from the end of that step on.
        assert 0 < sum(one["waited_s"].values()) <= one["admitted_at"] - one["arrived_at"] + 1e-6
        assert one["waited_s"]["seats"] > 0
        assert one["arrived_at"] < one["admitted_at"] < one["first_token_at"] < one["finished_at"]
        assert one["ttft_s"] == one["first_token_at"] - one["arrived_at"]
    single = server.get(f"/v1/requests/{one['request_id']}/explain").json()
    assert single["sequences"] == found["sequences"][1:]
    assert server.post("/abort_requests", {"request_ids": ["mine", one["request_id"]]}).json()["aborted"] == []


def test_the_last_256_answers_are_remembered(server: FakeServer) -> None:
    async def ask_all() -> list[str]:
        ids = []
        for _ in range(26):
            posts = [server.start_post("/v1/completions", completion(max_tokens=0)) for _ in range(10)]
            await asyncio.gather(*(task for _, task in posts))
            ids += [exchange.reply().json()["id"] for exchange, _ in posts]
        return ids

    ids = server.run(ask_all())
    known = [server.get(f"/v1/requests/{answer_id}/explain").status for answer_id in ids]
    assert sorted(known) == [200] * 256 + [404] * 4
    assert known[10:] == [200] * 250
    assert len(server.in_flight._recent) == len(server.engine.finished_ids()) == 256


async def step_until_done(server: FakeServer, question: Any) -> Any:
    """Let steps pass until the engine, which answers between two of them, has answered."""
    asked = asyncio.create_task(question)
    while not asked.done():
        server.runner.step()
        await server.runner.until_entered()
    return await asked


def test_an_unknown_request_cannot_be_explained(server: FakeServer) -> None:
    reply = server.get("/v1/requests/cmpl-nobody/explain")
    assert (reply.status, reply.error["param"]) == (404, "request_id")


def test_a_sequence_can_be_aborted_by_its_own_id(server: FakeServer) -> None:
    async def abort() -> Any:
        server.runner.hold()
        exchange, task = server.start_post("/v1/completions", completion(n=2, max_tokens=400))
        await server.runner.until_entered()
        server.runner.step()
        await server.runner.until_entered()
        steps = await get(server, "/v1/steps")
        own_id = steps["steps"][-1]["scheduled"][0]["id"]
        body = {"request_ids": [own_id]}
        assert (await post(server, "/abort_requests", body))["aborted"] == [own_id]
        server.runner.release()
        await task
        return exchange.reply().json()

    assert sorted(choice["finish_reason"] for choice in server.run(abort())["choices"]) == ["abort", "length"]


async def post(server: FakeServer, target: str, body: Any) -> Any:
    exchange, task = server.start_post(target, body)
    await task
    return exchange.reply().json()


def test_the_prefix_cache_is_reset_only_when_no_block_is_in_use(server: FakeServer) -> None:
    async def reset_while_busy() -> Any:
        server.runner.hold()
        _, task = server.start_post("/v1/completions", completion(max_tokens=400))
        await server.runner.until_entered()
        answer = await step_until_done(server, post(server, "/reset_prefix_cache", {}))
        server.runner.release()
        await task
        return answer

    assert server.run(reset_while_busy())["error"]["code"] == 409
    assert server.post("/reset_prefix_cache", {}).json() == {"reset": True}


def test_texts_become_tokens_and_tokens_texts(server: FakeServer) -> None:
    answer = server.post("/tokenize", {"prompt": "é!", "return_token_strs": True}).json()
    assert answer == {
        "count": 3,
        "max_model_len": 512,
        "tokens": [0xC3, 0xA9, 33],
        "token_strs": ["\\xc3", "\\xa9", "!"],
    }
    assert server.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "é!"}


def test_a_chat_is_tokenized_as_it_is_generated(server: FakeServer) -> None:
    tokens = server.post("/tokenize", {"messages": chat()["messages"]}).json()["tokens"]
    answer = server.post("/v1/chat/completions", chat(return_token_ids=True)).json()
    assert tokens == answer["prompt_token_ids"]


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": chat()["messages"]}, {"prompt": 5}, {"model": "x"}])
def test_a_tokenize_request_needs_one_text(server: FakeServer, body: dict[str, Any]) -> None:
    assert server.post("/tokenize", body).status in (400, 404)


@pytest.mark.parametrize("tokens", [[258], [-1], ["a"], None])
def test_tokens_outside_of_the_vocabulary_are_refused(server: FakeServer, tokens: object) -> None:
    reply = server.post("/detokenize", {"tokens": tokens})
    assert (reply.status, reply.error["param"]) == (400, "tokens")


def test_the_page_comes_with_its_files_and_loads_nothing_from_elsewhere(server: FakeServer) -> None:
    page = server.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in ("page.css", "page.js"):
        assert f"static/{name}".encode() in page.body
    names = [file.name for file in (files("hotseat.server") / "static").iterdir()]
    assert len(names) > 6
    for name in names:
        text = server.get(f"/static/{name}").body
        assert text
        assert b"https://" not in text
    assert server.get("/static/../app.py").status == 404
    assert server.get("/static/nothing.js").status == 404


def test_the_api_describes_itself(server: FakeServer) -> None:
    description = server.get("/openapi.json").json()
    assert "/v1/chat/completions" in description["paths"]
    body = description["paths"]["/v1/completions"]["post"]["requestBody"]
    reference = body["content"]["application/json"]["schema"]["$ref"]
    assert "prompt" in description["components"]["schemas"][reference.rpartition("/")[2]]["properties"]


def test_a_path_prefix_of_a_proxy_leaves_the_gate_shut(start: Callable[..., FakeServer]) -> None:
    server = start(config=ServerConfig(api_key=("k",)))
    assert server.get("/v1/models", root_path="/llm").status == 401
    assert server.get("/health", root_path="/llm").status == 200


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_gives_each_sequence_of_a_request_a_label_of_its_own() -> None:
    script = (files("hotseat.server") / "static" / "records.js").read_text()
    (short_id,) = re.findall(r"^export (const shortId = .*?^};)$", script, re.MULTILINE | re.DOTALL)
    ids = [f"cmpl-0123456789ab{tail}" for tail in (".4", ".4/0", ".4/1", "-p0.5/1", "-p12.6/1")]
    program = f"{short_id}\nconsole.log(JSON.stringify({json.dumps([*ids, 'r7'])}.map(shortId)))"
    labels = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(labels) == ["012345", "012345/0", "012345/1", "012345-p0/1", "012345-p12/1", "r7"]
