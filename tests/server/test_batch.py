"""Batches: a line of output for each of input, whatever is in it, and no line run twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotseat.errors import ConfigError, EngineStoppedError
from hotseat.server.batch import BatchFiles, run_batch
from server.fakes import FakeServer, chat, completion


def line(custom_id: Any, body: Any, url: str = "/v1/chat/completions", **fields: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **fields})


def run(server: FakeServer, folder: Path, lines: list[str]) -> dict[Any, Any]:
    """Run a batch of ``lines`` and return the whole output by custom_id."""
    source, output = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("\n".join(lines) + "\n")
    noted: list[bool] = []
    files = BatchFiles(source, output)
    num_left = files.num_lines - files.num_answered
    num_failed = server.run(run_batch(server.app, files, 4, noted.append))
    assert (len(noted), noted.count(False)) == (num_left, num_failed)
    answers = [json.loads(text) for text in output.read_text().splitlines()]
    found = {answer["custom_id"] or answer["line"]: answer for answer in answers}
    assert len(found) == len(answers), "no line is answered twice"
    return found


def test_each_line_is_answered_or_told_why_not(server: FakeServer, tmp_path: Path) -> None:
    found = run(
        server,
        tmp_path,
        [
            line("a", chat()),
            line("b", completion(), "/v1/completions"),
            line("c", {"input": "hot"}, "/v1/embeddings"),
            line("d", {"input": "hot", "max_output_tokens": 5}, "/v1/responses"),
            "",
            "{not json",
            line("e", chat(stream=True)),
            line("f", chat(temperature=-1)),
            line("g", chat(model="other")),
            line("h", chat(), "/abort_requests"),
            line("i", [1]),
            line(7, chat()),
            line("a", chat()),
            line("j", chat(), method="GET"),
        ],
    )
    good = {name for name, answer in found.items() if answer["error"] is None}
    assert good == {"a", "b", "c", "d"}
    assert found["a"]["response"]["body"]["choices"][0]["message"]["content"] == server.text(8)
    assert found["a"]["response"]["status_code"] == 200
    assert found["f"]["response"]["status_code"] == 400
    assert "temperature" in found["f"]["error"]["message"]
    assert found["g"]["error"]["code"] == "404"
    for name, words in {
        6: "JSON",
        "e": "stream",
        "h": "url",
        "i": "body",
        12: "custom_id",
        13: "'a'",
        "j": "GET",
    }.items():
        assert found[name]["response"] is None
        assert words in found[name]["error"]["message"]


def test_a_second_run_goes_on_where_the_first_ended(server: FakeServer, tmp_path: Path) -> None:
    lines = [line(name, chat()) for name in "abc"] + ["{"]
    first = run(server, tmp_path, [*lines[:2], "{"])
    output = tmp_path / "out.jsonl"
    with output.open("a") as file:
        file.write('{"id": "batch_req_cut of')  # a run that was killed while it wrote
    second = run(server, tmp_path, [*lines[:2], "{", lines[2]])
    assert {name: second[name] for name in first} == first
    assert second.keys() == {"a", "b", 3, "c"}


def test_no_more_lines_are_in_flight_than_were_asked_for(start: Callable[..., FakeServer], tmp_path: Path) -> None:
    server = start(max_num_seqs=2, max_num_queued_reqs=1)  # fewer than four: the others try again
    most = 0
    enter = server.in_flight.enter

    def note(*args: Any) -> None:
        nonlocal most
        enter(*args)
        most = max(most, len(server.in_flight))

    server.in_flight.enter = note  # type: ignore[method-assign]
    found = run(server, tmp_path, [line(str(number), chat()) for number in range(12)])
    assert all(answer["error"] is None for answer in found.values())
    assert 1 < most <= 4


def test_an_engine_that_died_ends_the_run(server: FakeServer, tmp_path: Path) -> None:
    server.engine.stop()
    with pytest.raises(EngineStoppedError):
        run(server, tmp_path, [line("a", chat())])
    assert (tmp_path / "out.jsonl").read_text() == ""


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    with pytest.raises(ConfigError, match=r"in\.jsonl"):
        BatchFiles(source, tmp_path / "out.jsonl")
    source.write_text("{}\n")
    with pytest.raises(ConfigError, match="itself"):
        BatchFiles(source, source)
    (tmp_path / "out.jsonl").write_text("a file of something else\n")
    with pytest.raises(ConfigError, match="not the output of a batch"):
        BatchFiles(source, tmp_path / "out.jsonl")
