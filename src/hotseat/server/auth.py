"""API keys, and what their holders may see and do."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hotseat.errors import ConfigError

__all__ = ["ApiKeys", "Caller"]

_logger = logging.getLogger(__name__)

_NAMED_KEY = re.compile(r"([A-Za-z0-9_.-]+)=(.*[^=].*)", re.DOTALL)
_RELOAD_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The holder of a key. ``account`` tells callers apart and is derived from the secret, which it does not reveal."""

    name: str = ""
    account: str = ""
    is_admin: bool = False

    def may_see(self, account: str) -> bool:
        """Tell whether requests of ``account`` may be listed, explained and aborted."""
        return self.is_admin or account == self.account


@dataclass(frozen=True, slots=True)
class _Key:
    digest: bytes
    caller: Caller


class ApiKeys:
    """The keys that open the server. A key is ``KEY`` or ``NAME=KEY``; trailing ``=`` belong to the key (base64).

    ``admin_keys`` may see and abort the requests of all, pause, resume and reset. A server that has a single key and
    no admin key has one tenant, who is its admin. ``file`` holds a key a line (``#`` begins a comment); it is read
    again when it changes, and what cannot be read changes nothing.

    Raises:
        ConfigError: ``file`` cannot be read or holds no key.
    """

    def __init__(self, keys: Iterable[str], admin_keys: Iterable[str] = (), file: Path | None = None) -> None:
        keys, admin_keys = list(keys), list(admin_keys)
        is_only = len(keys) == 1 and not admin_keys and file is None
        self._fixed = [_key(key, is_admin=is_only) for key in keys] + [_key(key, is_admin=True) for key in admin_keys]
        self._file = file
        self._from_file: list[_Key] = []
        self._stamp: tuple[int, int, int] | None = None  # of the file as it was read last
        self._looked_at = 0.0
        if file is not None:
            try:
                self._read_file(file)
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"api_key_file {str(file)!r} cannot be read: {error}") from None
            if not self._from_file:
                raise ConfigError(f"api_key_file {str(file)!r} holds no key")

    def __bool__(self) -> bool:
        return bool(self._fixed) or self._file is not None

    def caller(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return the holder of the key in ``headers``; ``None`` when no key fits."""
        self._reload()
        presented = _digest(_presented_key(headers))
        found = None
        # Digests of equal length, all of them compared, each in constant time: the time taken tells nothing.
        for key in (*self._fixed, *self._from_file):
            if hmac.compare_digest(presented, key.digest):
                found = key.caller
        return found

    def _reload(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._looked_at < _RELOAD_INTERVAL_S:
            return
        self._looked_at = now
        try:
            if _stamp(self._file) != self._stamp:
                self._read_file(self._file)
                _logger.info("read %d API keys from %s", len(self._from_file), self._file)
        except (OSError, UnicodeDecodeError) as error:
            _logger.warning("the API keys stay as they are: %s cannot be read: %s", self._file, error)

    def _read_file(self, file: Path) -> None:
        stamp = _stamp(file)
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        self._from_file = [_key(line, is_admin=False) for line in lines if line.strip("= ") and line[0] != "#"]
        self._stamp = stamp


def _key(text: str, *, is_admin: bool) -> _Key:
    named = _NAMED_KEY.fullmatch(text)
    name, secret = named.groups() if named else ("", text)
    digest = _digest(secret.encode())
    account = hashlib.sha256(b"account " + digest).hexdigest()[:16]
    return _Key(digest, Caller(name=name, account=account, is_admin=is_admin))


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _stamp(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _presented_key(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return token.strip()
    return headers.get(b"x-api-key", b"")
