"""The names under which the server may be called.

A web page may let its own name point to 127.0.0.1 (DNS rebinding). For a browser the server is then of the page's
origin, and CORS is never asked. Only the ``Host`` header gives such a page away.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

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

    def refused_origin(self, headers: Iterable[tuple[bytes, bytes]], allowed_origins: Collection[str]) -> str | None:
        """Return the web origin of a foreign page that sent the request; programs and the server's own page pass.

        CORS keeps such a page from reading answers, but not from asking. Schemes of programs that are made like pages
        (``vscode-webview:`` …) are not looked at.
        """
        fields = dict(headers)
        origin = fields.get(b"origin", b"").decode("latin-1")
        if self._allows_all or not origin or "*" in allowed_origins or origin in allowed_origins:
            return None
        scheme, name = _origin_parts(origin)
        own = _without_port(fields.get(b"host", b"").decode("latin-1").strip().lower())
        is_foreign = scheme in ("http", "https") and not (name == own or name in self._names or self._is_local(name))
        return origin[:200] if is_foreign or origin == "null" else None

    def _is_local(self, name: str) -> bool:
        return is_loopback(name) or name.endswith(self._suffixes)

    def _allows(self, host: str) -> bool:
        name = _without_port(host.strip().lower()).rstrip(".")
        return name == "localhost" or name in self._names or name.endswith(self._suffixes) or _is_address(name)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a server that listens on ``host``."""
    name = host.strip("[]").lower()
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def _origin_parts(origin: str) -> tuple[str, str]:
    try:
        parts = urlsplit(origin)
        return parts.scheme.lower(), (parts.hostname or "").rstrip(".")
    except ValueError:
        return "http", ""  # no browser writes so


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
