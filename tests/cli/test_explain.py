"""``hotseat explain``, against a server process."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from hotseat.cli import explain as command
from hotseat.cli import main
from hotseat.cli.explain import ExplainOptions, explain
from hotseat.errors import HotseatError, InvalidRequestError
from server.processes import TIMEOUT_S, Process


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process = Process("server.sockets", "0", "0")
    try:
        yield process.url
    finally:
        process.kill()


@pytest.fixture
def running(url: str) -> Iterator[str]:
    """Keep an answer under way and return the id that its client gave it."""
    headers = {"Content-Type": "application/json", "X-Request-Id": "mine"}
    body = b'{"prompt": "abc", "max_tokens": 4000, "stream": true}'
    request = urllib.request.Request(f"{url}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        response.readline()
        yield "mine"


def test_one_request_is_explained_in_words(url: str, running: str) -> None:
    said = explain(ExplainOptions(url=url, request_id=running))
    assert "running: " in said
    assert "3 prompt and" in said
    assert "tokens computed" in said


def test_without_an_id_all_requests_are_explained(url: str, running: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--url", f"{url}/v1"]) == 0
    assert f"({running})" in capsys.readouterr().out


def test_what_became_of_a_request_is_told_after_its_end(url: str) -> None:
    headers = {"Content-Type": "application/json", "X-Request-Id": "gone"}
    body = b'{"prompt": "abc", "max_tokens": 4}'
    urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body, headers), timeout=TIMEOUT_S).close()
    said = explain(ExplainOptions(url=url, request_id="gone"))
    assert " (gone)\n  finished: length, after 0." in said
    assert "\n  3 prompt and 4 output tokens\n  a seat after 0." in said
    assert ", the first token after 0." in said
    assert explain(ExplainOptions(url=url)) == "no request is running or waiting\n"


def test_drafts_are_counted_where_there_were_any(url: str, running: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = command.get_json(ExplainOptions(url=url), f"/v1/requests/{running}/explain")
    assert "drafted" not in explain(ExplainOptions(url=url, request_id=running))
    counts = {"num_draft_tokens": 9, "num_accepted_tokens": 4}
    answer["sequences"] = [one | counts for one in answer["sequences"]]
    monkeypatch.setattr(command, "get_json", lambda chosen, path: answer)
    assert "\n  4 of 9 drafted tokens accepted\n" in explain(ExplainOptions(url=url, request_id=running))


def test_an_unknown_request_is_an_error_that_names_it(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="nobody"):
        explain(ExplainOptions(url=url, request_id="nobody"))


def test_no_server_is_an_error_that_names_the_address() -> None:
    with pytest.raises(HotseatError, match=r"127\.0\.0\.1:9"):
        explain(ExplainOptions(url="http://127.0.0.1:9"))
