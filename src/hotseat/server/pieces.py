"""JSON of long lists, in pieces: no single call keeps the interpreter from other threads for long."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec

__all__ = ["encode_list"]

PIECE = 1024  # entries

_encode = msgspec.json.Encoder().encode


def encode_list(items: Iterable[Any]) -> msgspec.Raw:
    """Return the JSON list of ``items``, which may be made as they are asked for."""
    source = iter(items)
    pieces = []
    while piece := list(islice(source, PIECE)):
        pieces.append(_encode(piece)[1:-1])
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")
