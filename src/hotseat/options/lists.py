"""Lists in one option: ``16,64,256`` as numbers, ``int8,bf16`` as names."""

from __future__ import annotations

from collections.abc import Sequence

from hotseat.errors import ConfigError

__all__ = ["counts", "names", "words"]


def words(option: str, text: str) -> list[str]:
    """Split ``text`` at its commas.

    Raises:
        ConfigError: a word is empty or occurs twice.
    """
    found = [word.strip() for word in text.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise ConfigError(f"{option} must list different words with commas between, not {text!r}")
    return found


def counts(option: str, text: str, low: int = 1, *, may_be_empty: bool = False) -> list[int]:
    """Read integers of at least ``low``.

    Raises:
        ConfigError: a word is none, or occurs twice.
    """
    if may_be_empty and not text.strip():
        return []
    found = words(option, text)
    if not all(word.isascii() and word.isdigit() and int(word) >= low for word in found):
        raise ConfigError(f"{option} must list integers of at least {low} with commas between, not {text!r}")
    return [int(word) for word in found]


def names(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Read some of the ``known`` names.

    Raises:
        ConfigError: a word is none of them or occurs twice.
    """
    found = words(option, text)
    if not set(found) <= set(known):
        raise ConfigError(f"{option} must list some of {', '.join(known)}, not {text!r}")
    return found
