"""A server process, from the ready line to its exit, and OpenAI's own client against it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from hotseat.errors import ConfigError
from hotseat.server import ServerConfig, ServerServices, run_app
from hotseat.server.lifecycle import listening_socket
from server.fakes import REPLY
from server.processes import TIMEOUT_S, Process


@contextmanager
def running(shutdown_timeout_s: float = 10.0) -> Iterator[Process]:
    process = Process("server.sockets", "0", str(shutdown_timeout_s))
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as process:
        yield process.url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def text(num_tokens: int) -> str:
    return "".join(REPLY[at % len(REPLY)] for at in range(num_tokens))


def test_openais_client_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake", "org/fake"]
    assert client.models.retrieve("org/fake").id == "org/fake"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_openais_client_completes(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="fake", prompt=["a", "b"], max_tokens=8, temperature=0, logprobs=2, n=2, seed=1, echo=True
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == "a" + text(8)
    assert answer.choices[0].logprobs.tokens == list("a" + text(8))
    assert answer.usage.completion_tokens == 32
    assert answer._request_id == answer.id


def test_openais_client_chats(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(
        model="fake", messages=messages, max_completion_tokens=8, temperature=0, n=3, logprobs=True, top_logprobs=2
    )
    assert [choice.message.content for choice in answer.choices] == [text(8)] * 3
    content = answer.choices[2].logprobs.content
    assert bytes(byte for entry in content for byte in entry.bytes).decode() == text(8)
    assert len(content[0].top_logprobs) == 2


def test_openais_client_streams(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=20,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text(20)
    assert len(chunks) > 10
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 20


def test_openais_client_meets_its_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-9", prompt="a")
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="fake", prompt="a", temperature=-1, stream=True)
    assert bad.value.param == "temperature"
    assert bad.value.request_id


def test_a_client_that_closes_its_stream_frees_its_seat(client: openai.OpenAI) -> None:
    with client.completions.create(model="fake", prompt="a", max_tokens=4000, stream=True) as stream:
        answer_id = next(iter(stream)).id
    deadline = time.monotonic() + 5  # 4000 tokens take four times as long
    while is_under_way(client, answer_id):
        assert time.monotonic() < deadline, "the request outlived its client"


def is_under_way(client: openai.OpenAI, answer_id: str) -> bool:
    (sequence,) = client.get(f"/requests/{answer_id}/explain", cast_to=object)["sequences"]
    return sequence["status"] != "finished"


def test_clients_that_vanish_hurt_no_other(url: str, client: openai.OpenAI) -> None:
    streams = [start_stream(url, 60) for _ in range(8)]
    for connection, reader in streams[::2]:
        reader.close()
        connection.close()
    for connection, reader in streams[1::2]:
        body = b"".join(iter(reader.readline, b"0\r\n"))
        assert b'"finish_reason":"length"' in body
        reader.close()
        connection.close()
    load = client.with_options(base_url=url).get("/load", cast_to=object)
    assert (load["num_requests_running"], load["num_requests_waiting"]) == (0, 0)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_client_that_sends_requests_ahead_and_leaves_frees_its_seat(
    url: str, client: openai.OpenAI, at_once: bool
) -> None:
    """HTTP allows to send the next request before the answer to the last one."""
    load = client.with_options(base_url=url)
    request = written(max_tokens=4000, stream=False)
    with connect(url) as connection:
        connection.sendall(request * 3 if at_once else request)
        while not load.get("/load", cast_to=object)["num_requests_running"]:
            pass
        if not at_once:
            connection.sendall(request)
            load.get("/load", cast_to=object)
    deadline = time.monotonic() + 5  # 4000 tokens take four times as long
    while load.get("/load", cast_to=object)["num_requests_running"]:
        assert time.monotonic() < deadline, "the request outlived its client"


def test_requests_that_are_sent_ahead_are_answered_in_their_order(url: str) -> None:
    with connect(url) as connection, connection.makefile("rb") as reader:
        for count in range(1, 41):
            connection.sendall(written(max_tokens=count, stream=False))
        for count in range(1, 41):
            length = 0
            while (line := reader.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert json.loads(reader.read(length))["usage"]["completion_tokens"] == count


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def written(**fields: Any) -> bytes:
    """Return a request as it goes over the wire."""
    body = json.dumps({"prompt": "a", "temperature": 0, **fields}).encode()
    headers = ["host: localhost", "content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join(["POST /v1/completions HTTP/1.1", *headers, "", ""]).encode() + body


@pytest.mark.parametrize("path", ["/", "/health", "/ready"])
def test_head_answers_as_get_without_a_body(url: str, path: str) -> None:
    with urllib.request.urlopen(url + path, timeout=TIMEOUT_S) as response:
        wanted = (response.status, response.headers["content-type"], response.headers["content-length"])
    with urllib.request.urlopen(urllib.request.Request(url + path, method="HEAD"), timeout=TIMEOUT_S) as response:
        assert (response.status, response.headers["content-type"], response.headers["content-length"]) == wanted
        assert response.read() == b""


@pytest.mark.parametrize(("host", "keys", "warns"), [("0.0.0.0", [], 1), ("0.0.0.0", ["k"], 0), ("127.0.0.1", [], 0)])
def test_a_server_that_is_open_to_all_says_so(host: str, keys: list[str], warns: int) -> None:
    process = Process("server.sockets", "0", "1", host, *keys)
    try:
        process.signal()
        assert process.wait() == 0
    finally:
        process.kill()
    assert sum("anybody who can reach this machine" in line for line in process.log) == warns


def test_the_clock_ticks_while_it_serves() -> None:
    with running() as process:
        deadline = time.monotonic() + TIMEOUT_S
        while sum("tick 1" in line for line in process.log) < 2:
            assert time.monotonic() < deadline, "it does not tick"
            select.select([], [], [], 0.01)
        process.signal()
        assert process.wait() == 0


def start_stream(url: str, max_tokens: int) -> tuple[socket.socket, Any]:
    """Begin a stream by hand and return when its first event is there."""
    connection = connect(url)
    connection.sendall(written(max_tokens=max_tokens, stream=True))
    reader = connection.makefile("rb")
    while not reader.readline().startswith(b"data:"):
        pass
    return connection, reader


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish_and_exits_with_0(number: int) -> None:
    with running() as process:
        connection, reader = start_stream(process.url, 100)
        process.signal(number)
        rest = reader.read()
        assert b'"finish_reason":"length"' in rest
        assert b"data: [DONE]\n\n" in rest
        reader.close()
        connection.close()
        assert process.wait() == 0
        assert "Traceback" not in "".join(process.log)


def test_while_it_drains_newcomers_are_told_to_come_later() -> None:
    with running(shutdown_timeout_s=1000.0) as process:
        connection, reader = start_stream(process.url, 4000)
        process.signal()
        while not any("Shutting down" in line for line in process.log):
            reader.readline()
        with openai.OpenAI(base_url=f"{process.url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S) as newcomer:
            with pytest.raises(openai.APIStatusError) as refused:
                newcomer.completions.create(model="fake", prompt="a")
            assert (refused.value.status_code, refused.value.response.headers["retry-after"].isdigit()) == (503, True)
            with pytest.raises(openai.APIStatusError) as not_ready:
                newcomer.with_options(base_url=process.url).get("/ready", cast_to=object)
            assert not_ready.value.status_code == 503
            assert newcomer.with_options(base_url=process.url).get("/health", cast_to=object)["status"] == "ok"
            reader.close()
            connection.close()  # the last running request has left
            assert process.wait() == 0
        assert not any("Aborted" in line for line in process.log)


def test_a_stream_that_was_read_to_its_end_is_completed_in_the_log() -> None:
    with running() as process:
        with openai.OpenAI(base_url=f"{process.url}/v1", api_key="any", timeout=TIMEOUT_S) as client:
            for _ in range(20):
                list(client.completions.create(model="fake", prompt="a", max_tokens=3, stream=True))
        process.signal()
        assert process.wait() == 0
        lines = [line for line in process.log if "POST /v1/completions" in line]
        assert len(lines) == 20
        assert all("completed" in line for line in lines)


@pytest.mark.parametrize("signals", [1, 2])
def test_what_outlasts_the_time_is_told_so(signals: int) -> None:
    """One signal with no time to drain, or a second one while draining."""
    with running(shutdown_timeout_s=0.0 if signals == 1 else 1000.0) as process:
        connection, reader = start_stream(process.url, 4000)
        process.signal()
        if signals == 2:
            while not any("Shutting down" in line for line in process.log):
                reader.readline()
            process.signal()
        rest = reader.read()
        assert b'"message":"The server is shutting down."' in rest
        assert b"data: [DONE]\n\n" in rest
        reader.close()
        connection.close()
        assert process.wait() == 0


def test_a_client_that_never_reads_does_not_hold_up_a_shutdown() -> None:
    request = written(prompt=["a" * 4000] * 4, max_tokens=1, n=16, logprobs=20, echo=True, stream=True)  # much to read
    with running(shutdown_timeout_s=0.0) as process, connect(process.url) as connection:
        connection.sendall(request)
        with openai.OpenAI(base_url=process.url, api_key="any", timeout=TIMEOUT_S) as client:
            assert connection.recv(1)
            while client.get("/load", cast_to=object)["num_requests_running"]:
                pass
            assert client.get("/load", cast_to=object)["server_load"] == 1, "it waits for its client"
        process.signal()
        assert process.wait() == 0
        assert "Traceback" not in "".join(process.log)


def test_what_is_written_is_sent_at_once() -> None:
    """With Nagle's algorithm a token waits for the client to acknowledge the last one, 40 ms on Linux."""
    with listening_socket(ServerConfig(port=0)) as listener, socket.create_connection(listener.getsockname()[:2]):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_costs_no_model_load() -> None:
    def load() -> ServerServices:
        raise AssertionError("the model was loaded")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"^cannot listen on 127\.0\.0\.1 port {port}: Address already in use by process {os.getpid()} \(.*\)$"
        with pytest.raises(ConfigError, match=said):
            run_app(load, ServerConfig(port=port))


def test_an_address_that_is_none_is_named() -> None:
    with (
        pytest.raises(ConfigError, match=r"^cannot listen on no\.such\.host\.invalid port 0: \w.*$"),
        listening_socket(ServerConfig(host="no.such.host.invalid", port=0)),
    ):
        pass
