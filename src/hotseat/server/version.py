"""The version of the package as clients see it."""

from __future__ import annotations

import hotseat

__all__ = ["fingerprint", "hotseat_version"]


def hotseat_version() -> str:
    """Return the version of the package."""
    return hotseat.__version__


def fingerprint() -> str:
    """Return what answers carry as ``system_fingerprint``."""
    return f"hotseat-{hotseat_version()}"
