"""Which Hotseat this is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

__all__ = ["fingerprint", "hotseat_version"]


@cache
def hotseat_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("hotseat")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+source"


def fingerprint() -> str:
    """Return what answers carry as ``system_fingerprint``."""
    return f"hotseat-{hotseat_version()}"
