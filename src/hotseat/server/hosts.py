"""The names under which the server may be called.

A web page may let its own name point to 127.0.0.1 (DNS rebinding). For a browser the server is then of the page's
origin, and CORS is never asked. Only the ``Host`` header gives such a page away.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

__all__ = ["AllowedHosts", "is_loopback"]


class AllowedHosts:
    """Names that a ``Host`` header may hold: ``localhost``, its subdomains, addresses, and those that are given.

    A name that begins with a dot stands for all its subdomains; ``*`` is any name. With ``is_open`` any name passes
    unless some are given.
    """

    def __init__(self, names: Iterable[str], *, is_open: bool) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._suffixes = (".localhost", *(name for name in self._names if name.startswith(".")))
        self._allows_all = "*" in self._names or (is_open and not self._names)

    def refused(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the name that is not allowed. A request without a ``Host`` comes from no browser and passes."""
        if self._allows_all:
            return None
        for field, value in headers:
            if field == b"host" and not self._allows(value.decode("latin-1")):
                return value.decode("latin-1")[:200]
        return None

    def _allows(self, host: str) -> bool:
        name = _without_port(host.strip().lower()).rstrip(".")
        return name == "localhost" or name in self._names or name.endswith(self._suffixes) or _is_address(name)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a server that listens on ``host``."""
    name = host.strip("[]").lower()
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
