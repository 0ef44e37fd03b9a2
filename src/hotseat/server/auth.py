"""Who may come in, and whose requests they are."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping

__all__ = ["ApiKeys"]

_NAMED_KEY = re.compile(r"([A-Za-z0-9_.-]+)=(.*[^=].*)", re.DOTALL)


class ApiKeys:
    """The keys that open the server. A key is ``KEY`` or ``NAME=KEY``; trailing ``=`` belong to the key (base64)."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._names: list[tuple[bytes, str]] = []
        for key in keys:
            named = _NAMED_KEY.fullmatch(key)
            name, secret = named.groups() if named else ("", key)
            self._names.append((secret.encode(), name))

    def __bool__(self) -> bool:
        return bool(self._names)

    def owner(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the name of the key in ``headers``, which may be empty; ``None`` when no key fits."""
        presented = _presented_key(headers)
        owner = None
        # All keys are compared, each in constant time, so that the time taken tells nothing.
        for secret, name in self._names:
            if hmac.compare_digest(presented, secret):
                owner = name
        return owner


def _presented_key(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return token.strip()
    return headers.get(b"x-api-key", b"")
