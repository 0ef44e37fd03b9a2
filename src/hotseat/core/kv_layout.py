"""The blocks that hold a token's keys and values: of all layers alike, or of two groups of layers.

Layers that see only a window of tokens need no block that lies wholly behind it. So they form a group of their own,
with its own block table, whose blocks go back to the pool. All blocks of the pool have the same size: that of
``block_size`` tokens in as many layers as divide both groups. A logical block of a group is as many as it needs::

    24 layers, 20 of them with a window    blocks of 4 layers: KvLayout(num_full=1, num_window=5, window=512)
    no layer with a window                 blocks of all layers: KvLayout()
"""

from __future__ import annotations

from dataclasses import dataclass

from hotseat.errors import ConfigError

__all__ = ["KvLayout"]


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The number of pool blocks for ``block_size`` tokens in each of the two groups of layers."""

    num_full: int = 1  # layers that see all tokens, or all layers where nothing is given back
    num_window: int = 0  # layers with a window; 0: there is no such group
    window: int = 0  # tokens that a query of the second group sees, its own included

    def __post_init__(self) -> None:
        is_valid = self.num_full >= 1 and self.num_window >= 0 and (self.window >= 1 or not self.num_window)
        if not is_valid:
            raise ConfigError(
                "kv_layout must be the blocks of full layers (from 1), of layers with a window (from 0) and the window "
                f"in tokens (from 1), not {self}"
            )

    def __str__(self) -> str:
        """Return what ``parse`` reads."""
        return f"{self.num_full},{self.num_window},{self.window}"

    @classmethod
    def parse(cls, text: str) -> KvLayout:
        """Read ``FULL,WINDOW,TOKENS``, such as ``1,5,512``.

        Raises:
            ConfigError: it is not of this form, or a number is out of range.
        """
        try:
            num_full, num_window, window = (int(part) for part in text.split(","))
        except ValueError:
            raise ConfigError(f"kv_layout must be three numbers such as 1,5,512, not {text!r}") from None
        return cls(num_full, num_window, window)

    def first_seen(self, position: int, block_size: int) -> int:
        """Return the index of the first block of the second group that queries from ``position`` on see."""
        return max(0, position - self.window + 1) // block_size

    def most_held(self, max_chunk: int, block_size: int) -> int:
        """Return how many logical blocks of the second group are seen by at most ``max_chunk`` queries in a row."""
        return (self.window - 1 + max_chunk + block_size - 2) // block_size + 1

    def num_blocks(self, num_tokens: int, block_size: int, max_chunk: int) -> int:
        """Return how many blocks a sequence of ``num_tokens`` holds at most, computed in chunks of ``max_chunk``."""
        length = -(-num_tokens // block_size)
        held = min(length, self.most_held(max_chunk, block_size)) if self.num_window else 0
        return length * self.num_full + held * self.num_window

    def max_tokens(self, num_blocks: int, block_size: int, max_chunk: int) -> int:
        """Return the longest sequence that ``num_blocks`` hold."""
        length = num_blocks // (self.num_full + self.num_window)
        if self.num_window and length >= (most := self.most_held(max_chunk, block_size)):
            length = (num_blocks - most * self.num_window) // self.num_full
        return length * block_size
