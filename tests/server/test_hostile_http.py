"""Bytes on a real connection that no HTTP library would send: bounds of header and time, HTTP/1.0, no HTTP at all."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from server.processes import TIMEOUT_S, Process

BODY = json.dumps({"prompt": "a", "max_tokens": 8, "temperature": 0, "stream": True}).encode()


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    process = Process("server.sockets", "0", "5")
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="module")
def impatient() -> Iterator[Process]:
    """A server that gives half a second for a request."""
    process = Process("server.sockets", "0", "5", "127.0.0.1", "--receive-timeout-s=0.5")
    try:
        yield process
    finally:
        process.kill()


def send(process: Process, *parts: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send ``parts``, read until the server closes, and return status, header and body."""
    with process.connect() as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has answered already
        return read(connection)


def read(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while part := connection.recv(65536):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    return int(status.split()[1]), dict(field.lower().split(": ", 1) for field in fields), body


def message(body: bytes) -> str:
    error: dict[str, Any] = json.loads(body)["error"]
    return str(error["message"])


def test_a_header_of_many_fields_is_answered_with_431(process: Process) -> None:
    fields = b"".join(b"x-%d: %s\r\n" % (number, b"y" * 1000) for number in range(80))
    status, _, body = send(process, b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + fields + b"\r\n")
    assert status == 431
    assert "65536 bytes" in message(body)


def test_a_header_that_never_ends_is_answered_with_431(process: Process) -> None:
    with process.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-endless: " + b"y" * 70_000)
        status, _, body = read(connection)
    assert status == 431
    assert "65536 bytes" in message(body)


def test_the_bytes_of_a_large_body_are_no_header(process: Process) -> None:
    """However they arrive, also where the last ones of a body come as one large piece."""
    parts = urlsplit(process.url)
    client = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=TIMEOUT_S)
    body = json.dumps({"prompt": "a", "max_tokens": 1, "temperature": 0}).encode() + b" " * 200_000
    for _ in range(8):
        client.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = client.getresponse()
        assert (answer.status, bool(answer.read())) == (200, True)
    client.close()


def test_bytes_that_are_no_http_get_the_apis_error(process: Process) -> None:
    status, header, body = send(process, b"\x16\x03\x01 hello\r\n\r\n")
    assert (status, header["content-type"]) == (400, "application/json")
    assert "Invalid HTTP" in message(body)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"GET /health HTTP/1.1\r\nhost: local"],
        [b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"],
        [
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n",
            b"content-length: 100\r\n\r\n{",
        ],
    ],
    ids=["silence", "half a header", "no end of the header", "half a body"],
)
def test_a_request_that_is_not_complete_in_time_is_answered_with_408(impatient: Process, parts: list[bytes]) -> None:
    began_at = time.monotonic()
    status, _, body = send(impatient, *parts)
    assert status == 408
    assert "receive_timeout_s" in message(body)
    assert time.monotonic() - began_at >= 0.4


def test_an_answer_may_take_longer_than_the_time_for_a_request(impatient: Process) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 200, "temperature": 0, "stream": True}).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    )
    status, _, answer = send(impatient, head + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert status == 200
    assert b"data: [DONE]" in answer


def test_http_1_0_gets_a_stream_without_chunk_sizes(process: Process) -> None:
    head = b"POST /v1/completions HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    status, header, body = send(process, head + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
    assert status == 200
    assert "transfer-encoding" not in header
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")
    assert all(line.startswith(b"data: ") for line in body.split(b"\n\n") if line)


def test_http_1_0_gets_json_with_its_length(process: Process) -> None:
    status, header, body = send(process, b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n")
    assert status == 200
    assert int(header["content-length"]) == len(body)
