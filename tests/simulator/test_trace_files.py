"""Reading requests files of every format, and refusing broken ones by line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotseat.simulator import read_arrivals
from hotseat.simulator.trace_files import TraceError

GOOD: dict[str, Any] = {"id": "r1", "arrival_s": 0.5, "prompt_len": 100, "output_len": 20}


def written(tmp_path: Path, *lines: str | dict[str, Any], newline: str = "\n") -> Path:
    path = tmp_path / "requests"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_bytes("".join(text + newline for text in texts).encode())
    return path


def test_own_lines_are_read_by_arrival(tmp_path: Path) -> None:
    full = GOOD | {
        "id": "full",
        "arrival_s": 0.25,
        "priority": -1,
        "tenant": "acme",
        "deadline_ms": 800,
        "prefix_ids": [3, 4],
        "abort_at_s": 1.5,
        "max_tokens": 64,
    }
    first, second = read_arrivals(written(tmp_path, GOOD, "", full), block_size=16)
    assert (first.id, first.arrival_s, first.priority, first.tenant, first.deadline_ms) == (
        "full",
        0.25,
        -1,
        "acme",
        800,
    )
    assert (first.content_ids, first.content_block, first.abort_at_s, first.max_tokens) == ((3, 4), 16, 1.5, 64)
    assert (second.id, second.prompt_len, second.output_len, second.content_ids) == ("r1", 100, 20, ())


def test_null_is_as_good_as_left_out_and_an_id_may_be_a_number(tmp_path: Path) -> None:
    (one,) = read_arrivals(written(tmp_path, GOOD | {"id": 7, "tenant": None, "abort_at_s": None}), block_size=16)
    assert (one.id, one.tenant, one.abort_at_s) == ("7", "", None)


def test_a_line_without_an_id_is_called_by_its_number(tmp_path: Path) -> None:
    without = {name: value for name, value in GOOD.items() if name != "id"}
    arrivals = read_arrivals(written(tmp_path, GOOD, without, without | {"id": None}), block_size=16)
    assert [one.id for one in arrivals] == ["r1", "line-2", "line-3"]
    with pytest.raises(TraceError, match="id 'line-2' was used in line 1 already"):
        read_arrivals(written(tmp_path, GOOD | {"id": "line-2"}, without), block_size=16)


def test_requests_that_arrive_together_keep_the_order_of_the_file(tmp_path: Path) -> None:
    lines = [GOOD | {"id": name, "arrival_s": at} for name, at in (("b", 1), ("a", 1), ("c", 0))]
    assert [one.id for one in read_arrivals(written(tmp_path, *lines), block_size=16)] == ["c", "b", "a"]


def test_an_azure_trace_is_read_as_it_is(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 23:59:59.6805900,374,44",
        "2023-11-17 00:00:01.0000001,396,109",
        newline="\r\n",
    )
    first, second = read_arrivals(path, block_size=16)
    assert (first.arrival_s, first.prompt_len, first.output_len) == (0.0, 374, 44)
    assert second.arrival_s == pytest.approx(1.3194101, abs=1e-9)
    assert first.id != second.id


def test_a_mooncake_trace_is_read_as_it_is(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 3000, "input_length": 1025, "output_length": 50, "hash_ids": [0, 1, 2]},
        {"timestamp": 4500, "input_length": 512, "output_length": 5, "hash_ids": [0]},
    ]
    first, second = read_arrivals(written(tmp_path, *lines), block_size=16)
    assert (first.arrival_s, first.content_ids, first.content_block) == (0.0, (0, 1, 2), 512)
    assert (second.arrival_s, second.prompt_len, second.output_len) == (1.5, 512, 5)


def test_a_trace_of_that_format_with_smaller_blocks_is_recognized_by_its_lengths(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0.5, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 0.5, "input_length": 47, "output_length": 5, "hash_ids": [0, 1]},  # without the cut block
    ]
    assert {one.content_block for one in read_arrivals(written(tmp_path, *lines), block_size=16)} == {16}
    assert {one.content_block for one in read_arrivals(written(tmp_path, *lines), block_size=16, content_block=8)} == {
        8
    }


def test_lengths_that_fit_no_block_ask_for_it(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1, 2, 3, 4, 5]}
    with pytest.raises(TraceError, match="say it with --content-block"):
        read_arrivals(written(tmp_path, line), block_size=16)


def test_speedup_and_limit_take_the_first_to_arrive(tmp_path: Path) -> None:
    lines = [GOOD | {"id": f"r{at}", "arrival_s": at} for at in (4, 2, 8)]
    arrivals = read_arrivals(written(tmp_path, *lines), block_size=16, speedup=2.0, limit=2)
    assert [(one.id, one.arrival_s) for one in arrivals] == [("r2", 1.0), ("r4", 2.0)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_len": "12"}, "prompt_len must be an integer of at least 1, not '12'"),
        ({"prompt_len": 0}, "prompt_len must be an integer of at least 1, not 0"),
        ({"prompt_len": True}, "prompt_len must be an integer of at least 1, not True"),
        ({"prompt_len": 1.5}, "prompt_len must be an integer of at least 1, not 1.5"),
        ({"output_len": -1}, "output_len must be an integer of at least 0, not -1"),
        ({"output_len": None}, "output_len is missing"),
        ({"arrival_s": -0.5}, "arrival_s must be a number of at least 0, not -0.5"),
        ({"arrival_s": float("nan")}, "arrival_s must be a number of at least 0, not nan"),
        ({"id": True}, "id must be a text or an integer, not True"),
        ({"id": ["x"]}, "id must be a text or an integer, not ['x']"),
        ({"priority": "high"}, "priority must be an integer, not 'high'"),
        ({"tenant": 5}, "tenant must be a text, not 5"),
        ({"deadline_ms": "soon"}, "deadline_ms must be a number of at least 0, not 'soon'"),
        ({"prefix_ids": 5}, "prefix_ids must be a list of integers, not 5"),
        ({"prefix_ids": [1, "x"]}, "prefix_ids must hold integers of at least 0, not 'x'"),
        ({"prefix_ids": [-1]}, "prefix_ids must hold integers of at least 0, not -1"),
        ({"prefix_ids": list(range(9))}, "prefix_ids holds 9 ids of 16 tokens each, but the whole sequence has 120"),
        ({"abort_at_s": 0.25}, "abort_at_s must be a number of at least 0.5 (arrival_s), not 0.25"),
        ({"max_tokens": 5}, "max_tokens must be at least output_len (20)"),
        ({"prio": 1}, "unknown field 'prio'; did you mean 'priority'?"),
        ({"id": "ok"}, "id 'ok' was used in line 1 already"),
    ],
)
def test_a_bad_line_is_named_with_file_line_field_and_value(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, GOOD | {"id": "ok"}, GOOD | change)
    with pytest.raises(TraceError) as caught:
        read_arrivals(path, block_size=16)
    assert str(caught.value).startswith(f"{path}, line 2: {message}")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["hello"], "line 1: this is none of the known formats"),
        (["{broken"], "line 1: this is not JSON"),
        ([json.dumps(GOOD), "[1]"], r"line 2: a JSON object is wanted, not \[1\]"),
        (
            ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.68,374"],
            "line 2: 3 cells are wanted, not 2",
        ),
        (
            ["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,374,44"],
            "line 2: TIMESTAMP must be like .* not 'yest",
        ),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6x,3,4"], "line 2: TIMESTAMP must be like"),
        (
            ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.68,many,44"],
            "line 2: ContextTokens must be an integer of at least 1, not 'many'",
        ),
        (["TIMESTAMP,ContextTokens,GeneratedTokens"], "holds no requests"),
        ([], "holds no requests"),
        (['{"input_length": 5, "timestamp": 0}'], "line 1: output_length is missing"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_arrivals(written(tmp_path, *lines), block_size=16)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nothing\.jsonl cannot be read"):
        read_arrivals(tmp_path / "nothing.jsonl", block_size=16)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(TraceError, match="picture cannot be read"):
        read_arrivals(path, block_size=16)
