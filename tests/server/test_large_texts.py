"""Texts of megabytes at every door of a server process: they are refused, and the others do not wait."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from server.processes import TIMEOUT_S, Process

LARGE = "The quick brown fox jumps over the lazy dog. " * 85_000  # 3.8 MB
MAX_SILENCE_S = 0.5  # a tenth of it on an idle machine; seconds when one thread holds the interpreter


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process("server.sockets", "0", "5")
    try:
        yield process
    finally:
        process.kill()


class Prober:
    """Asks for /health again and again, beside the test, and notes the longest answer."""

    def __init__(self, url: str) -> None:
        self.longest_s = 0.0
        self.num_answers = 0
        self._url = f"{url}/health"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_at = time.monotonic()
            with urllib.request.urlopen(self._url, timeout=TIMEOUT_S) as reply:
                assert reply.status == 200
            self.longest_s = max(self.longest_s, time.monotonic() - began_at)
            self.num_answers += 1


def post(url: str, body: dict[str, Any]) -> tuple[int, str]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LARGE}]}),
        ("/v1/completions", {"prompt": LARGE}),
        ("/tokenize", {"prompt": LARGE}),
        ("/tokenize", {"messages": [{"role": "user", "content": LARGE}]}),
    ],
    ids=["chat", "completion", "tokenize", "tokenize chat"],
)
def test_a_text_of_megabytes_is_refused_by_its_head_and_silences_no_other(
    process: Process, path: str, body: dict[str, Any]
) -> None:
    with Prober(process.url) as prober:
        status, message = post(process.url + path, body)
    assert status == 400
    assert "max_model_len" in message
    assert prober.num_answers > 0
    assert prober.longest_s < MAX_SILENCE_S
