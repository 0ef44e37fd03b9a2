"""The number of connections is bounded: silent ones make room, busy ones do not."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from hotseat.server.connections import ConnectionTable
from server.processes import TIMEOUT_S, Process

LIMIT = 8


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process("server.sockets", "0", "5", "127.0.0.1", f"--max-connections={LIMIT}")
    try:
        yield process
    finally:
        process.kill()


def ask(connection: socket.socket, method: str, path: str, body: bytes = b"") -> None:
    fields = b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    connection.sendall(f"{method} {path} HTTP/1.1\r\n".encode() + fields + body)


def is_closed(connection: socket.socket) -> bool:
    """Wait for the server's end of ``connection``; only a broken test waits for long."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_the_longest_silent_connection_makes_room(process: Process) -> None:
    silent = [process.connect() for _ in range(LIMIT + 3)]
    assert all(is_closed(connection) for connection in silent[:3])
    ask(silent[3], "GET", "/health")  # the others are as they were
    assert silent[3].recv(12) == b"HTTP/1.1 200"
    for connection in silent:
        connection.close()


def test_a_connection_that_stays_after_its_answer_makes_room(process: Process) -> None:
    parts = urlsplit(process.url)
    kept = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=TIMEOUT_S)
    kept.request("GET", "/health")
    assert kept.getresponse().read()
    assert kept.sock is not None
    others = [process.connect() for _ in range(LIMIT)]
    assert is_closed(kept.sock)
    kept.close()
    for connection in others:
        connection.close()


def test_busy_connections_stay_and_one_more_is_told_so(process: Process) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 3000, "stream": True, "ignore_eos": True}).encode()
    busy = [process.connect() for _ in range(LIMIT)]
    for connection in busy:
        ask(connection, "POST", "/v1/completions", body)
        assert connection.recv(12) == b"HTTP/1.1 200"
    with process.connect() as late:
        answer = late.recv(65536)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"max_connections" in answer
    for connection in busy:
        assert connection.recv(100)  # goes on
        connection.close()


class Recorder:
    def __init__(self) -> None:
        self.end = ""

    def drop(self) -> None:
        self.end = "dropped"

    def refuse_busy(self, num_open: int) -> None:
        self.end = f"refused beside {num_open}"


def test_a_connection_is_spared_while_it_is_answered() -> None:
    table = ConnectionTable(2)
    first, second, third, fourth, fifth = (Recorder() for _ in range(5))
    table.enter(first)
    table.enter(second)
    table.note_busy(first)
    table.enter(third)
    assert (first.end, second.end) == ("", "dropped")
    table.leave(second)
    table.note_busy(third)
    table.enter(fourth)
    assert fourth.end == "refused beside 2"
    table.leave(fourth)
    table.note_waiting(third)
    table.enter(fifth)
    assert (first.end, third.end, fifth.end) == ("", "dropped", "")
