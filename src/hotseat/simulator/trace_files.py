"""Read requests files: our own lines, the Azure traces, the Mooncake traces. The content says which it is.

own        {"id": "r1", "arrival_s": 0.5, "prompt_len": 100, "output_len": 20, …}      one JSON object a line
Azure      TIMESTAMP,ContextTokens,GeneratedTokens                                      CSV
Mooncake   {"timestamp": 500, "input_length": 100, "output_length": 20, "hash_ids": […]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hotseat.errors import HotseatError
from hotseat.simulator.arrivals import Arrival, rescaled

__all__ = ["TraceError", "read_arrivals"]

AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
OWN_FIELDS = (
    *("id", "arrival_s", "prompt_len", "output_len", "max_tokens", "priority", "tenant", "deadline_ms"),
    *("prefix_ids", "abort_at_s", "added_s"),
)
MOONCAKE_BLOCK = 512  # tokens that a hash id stands for
CONTENT_BLOCKS = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)  # what else may be in a file of that format
MAX_TOKENS = 2**31 - 1


class TraceError(HotseatError):
    """A requests file cannot be read; the message names file, line, field and value."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One line and where it is from."""

    path: str
    number: int
    text: str

    def error(self, message: str) -> TraceError:
        return TraceError(f"{self.path}, line {self.number}: {message}")


def read_arrivals(
    path: str | Path,
    *,
    block_size: int,
    content_block: int | None = None,
    speedup: float = 1.0,
    limit: int | None = None,
) -> list[Arrival]:
    """Return the requests of a file by arrival, ``speedup`` times as fast, at most the first ``limit``.

    One content id stands for ``content_block`` tokens. Left open, it is ``block_size`` in our own lines, and what the
    lengths say in a Mooncake trace.

    Raises:
        TraceError: the file cannot be read, or a line is wrong.
    """
    lines = list(_lines(str(path)))
    if not lines:
        raise TraceError(f"{path} holds no requests")
    arrivals = _reader(lines[0])(lines, block_size, content_block)
    if not arrivals:
        raise TraceError(f"{path} holds no requests")
    arrivals.sort(key=lambda arrival: arrival.due_s)
    return rescaled(arrivals[:limit], speedup)


def _lines(path: str) -> Iterator[_Line]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, text in enumerate(file, 1):
                if stripped := text.strip():
                    yield _Line(path, number, stripped)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from None


_Reader = Callable[[Sequence[_Line], int, int | None], list[Arrival]]


def _reader(first: _Line) -> _Reader:
    """Return what reads the format that the first line shows."""
    if first.text.startswith("{"):
        return _read_mooncake if "input_length" in _object(first) else _read_own
    if first.text.split(",") == AZURE_COLUMNS:
        return _read_azure
    raise first.error(
        f"this is none of the known formats: a JSON object a line (own: {', '.join(OWN_FIELDS[:4])} …; Mooncake: "
        f"timestamp, input_length, output_length, hash_ids) or CSV with the header {','.join(AZURE_COLUMNS)}"
    )


# Our own lines


def _read_own(lines: Sequence[_Line], block_size: int, content_block: int | None) -> list[Arrival]:
    seen: dict[str, int] = {}
    arrivals = []
    for line in lines:
        arrival = _own_arrival(line, content_block or block_size)
        if arrival.id in seen:
            raise line.error(f"id {arrival.id!r} was used in line {seen[arrival.id]} already")
        seen[arrival.id] = line.number
        arrivals.append(arrival)
    return arrivals


def _own_arrival(line: _Line, content_block: int) -> Arrival:
    fields = {name: value for name, value in _object(line).items() if value is not None}
    for name in fields:
        if name not in OWN_FIELDS:
            near = get_close_matches(name, OWN_FIELDS, n=1)
            raise line.error(f"unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    request_id, tenant = fields.get("id", f"line-{line.number}"), fields.get("tenant", "")
    if not isinstance(request_id, str | int) or isinstance(request_id, bool):
        raise line.error(f"id must be a text or an integer, not {request_id!r}")
    if not isinstance(tenant, str):
        raise line.error(f"tenant must be a text, not {tenant!r}")
    arrival_s = _number(line, fields, "arrival_s", 0)
    arrival = Arrival(
        id=str(request_id),
        arrival_s=arrival_s,
        prompt_len=_integer(line, fields, "prompt_len", 1),
        output_len=_integer(line, fields, "output_len", 0),
        max_tokens=_integer(line, fields, "max_tokens", 0) if "max_tokens" in fields else None,
        priority=_integer(line, fields, "priority", -MAX_TOKENS) if "priority" in fields else 0,
        tenant=tenant,
        deadline_ms=_number(line, fields, "deadline_ms", 0) if "deadline_ms" in fields else None,
        content_ids=_ids(line, fields, "prefix_ids"),
        content_block=content_block,
        abort_at_s=_number(line, fields, "abort_at_s", arrival_s) if "abort_at_s" in fields else None,
        abort_rank=line.number,  # our lines are in the order of the ends
        added_s=_number(line, fields, "added_s", arrival_s) if "added_s" in fields else None,
    )
    return _checked(line, arrival)


def _checked(line: _Line, arrival: Arrival) -> Arrival:
    asked, said = arrival.max_tokens, arrival.output_len
    if asked is not None and (asked < said or (asked > said == 0)):
        raise line.error(f"max_tokens must be at least output_len ({said}), and 0 if that is 0, not {asked}")
    length, num_ids = arrival.prompt_len + said, len(arrival.content_ids)
    if num_ids > math.ceil(length / arrival.content_block):
        raise line.error(
            f"prefix_ids holds {num_ids} ids of {arrival.content_block} tokens each, but the whole sequence has "
            f"{length} tokens; if an id stands for another number of tokens, say so with --content-block"
        )
    return arrival


# Others' traces


def _read_azure(lines: Sequence[_Line], block_size: int, content_block: int | None) -> list[Arrival]:
    arrivals: list[Arrival] = []
    begin: datetime | None = None
    for line in lines[1:]:
        cells = line.text.split(",")
        if len(cells) != len(AZURE_COLUMNS):
            raise line.error(f"{len(AZURE_COLUMNS)} cells are wanted, not {len(cells)}: {line.text!r}")
        fields = {name: _from_cell(cell) for name, cell in zip(AZURE_COLUMNS, cells, strict=True)}
        whole, _, fraction = cells[0].partition(".")
        try:
            instant = datetime.fromisoformat(whole)
            fraction_s = float(f"0.{fraction or 0}")
        except ValueError:
            raise line.error(f"TIMESTAMP must be like 2023-11-16 18:15:46.6805900, not {cells[0]!r}") from None
        begin = begin or instant
        arrivals.append(
            Arrival(
                id=f"line-{line.number}",
                arrival_s=(instant - begin).total_seconds() + fraction_s,
                prompt_len=_integer(line, fields, "ContextTokens", 1),
                output_len=_integer(line, fields, "GeneratedTokens", 0),
            )
        )
    return _from_zero(arrivals)


def _from_cell(cell: str) -> object:
    return int(cell) if cell.isascii() and cell.isdigit() else cell


def _read_mooncake(lines: Sequence[_Line], block_size: int, content_block: int | None) -> list[Arrival]:
    arrivals = []
    for line in lines:
        fields = _object(line)
        arrivals.append(
            Arrival(
                id=f"line-{line.number}",
                arrival_s=_number(line, fields, "timestamp", 0) / 1000,
                prompt_len=_integer(line, fields, "input_length", 1),
                output_len=_integer(line, fields, "output_length", 0),
                content_ids=_ids(line, fields, "hash_ids"),
                content_block=content_block or MOONCAKE_BLOCK,
                content_is_prompt=True,
            )
        )
    if content_block is None:
        found = _content_block(arrivals)
        if found is None:
            raise TraceError(
                f"{lines[0].path}: hash_ids fit the lengths for no usual number of tokens each; "
                "say it with --content-block"
            )
        arrivals = [replace(arrival, content_block=found) for arrival in arrivals]
    return _from_zero(arrivals)


def _content_block(arrivals: Sequence[Arrival]) -> int | None:
    """Return how many tokens an id stands for: with it, ids and prompts are equally long, but for the last block."""
    for size in CONTENT_BLOCKS:
        if all(
            arrival.prompt_len // size <= len(arrival.content_ids) <= math.ceil(arrival.prompt_len / size)
            for arrival in arrivals
            if arrival.content_ids
        ):
            return size
    return None


def _from_zero(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Let the first request of a trace arrive at 0."""
    begin = min((arrival.arrival_s for arrival in arrivals), default=0.0)
    return [replace(arrival, arrival_s=arrival.arrival_s - begin) for arrival in arrivals]


# Fields


def _object(line: _Line) -> dict[str, Any]:
    try:
        fields = json.loads(line.text)
    except ValueError as error:
        raise line.error(f"this is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise line.error(f"a JSON object is wanted, not {line.text[:80]}")
    return fields


def _integer(line: _Line, fields: dict[str, Any], name: str, low: int) -> int:
    value = fields.get(name)
    if name not in fields:
        raise line.error(f"{name} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_TOKENS:
        bound = f" of at least {low}" if low > -MAX_TOKENS else ""
        raise line.error(f"{name} must be an integer{bound}, not {value!r}")
    return value


def _number(line: _Line, fields: dict[str, Any], name: str, low: float) -> float:
    value = fields.get(name)
    if name not in fields:
        raise line.error(f"{name} is missing")
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value < math.inf:
        what = f"at least {low:g}" + (" (arrival_s)" if name in ("abort_at_s", "added_s") else "")
        raise line.error(f"{name} must be a number of {what}, not {value!r}")
    return float(value)


def _ids(line: _Line, fields: dict[str, Any], name: str) -> tuple[int, ...]:
    value = fields.get(name, [])
    if not isinstance(value, list):
        raise line.error(f"{name} must be a list of integers, not {value!r}")
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise line.error(f"{name} must hold integers of at least 0, not {item!r}")
    return tuple(value)
