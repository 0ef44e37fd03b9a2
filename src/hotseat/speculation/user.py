"""A user's drafter, whose faults hurt no answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from hotseat.core.request import Request

__all__ = ["UserDrafter"]

logger = logging.getLogger(__name__)


class UserDrafter:
    """Any object with ``propose(token_ids, k)``, which returns at most k ids that may follow.

    One that raises, or returns what is no token, is not asked again, and that is logged.
    """

    def __init__(self, drafter: Any, vocab_size: int) -> None:
        self._drafter = drafter
        self._vocab_size = vocab_size
        self.error: str | None = None

    def propose(self, request: Request, num_tokens: int) -> Sequence[int]:
        """Return what the user's object proposes."""
        if self.error is not None:
            return ()
        try:
            token_ids = [int(token_id) for token_id in self._drafter.propose(request.token_ids(), num_tokens)]
            if not all(0 <= token_id < self._vocab_size for token_id in token_ids):
                raise ValueError(f"it proposed ids that are not in 0 to {self._vocab_size - 1}")
        except Exception as error:  # whatever a user's class raises
            self.error = f"{type(error).__name__}: {error}"
            logger.exception("the drafter %s failed and is not asked any more", type(self._drafter).__name__)
            return ()
        return token_ids[:num_tokens]

    def ended(self, request: Request) -> None:
        """Tell the user's object, if it wants to know, by the request's id."""
        tell = getattr(self._drafter, "ended", None)
        if tell is None or self.error is not None:
            return
        try:
            tell(request.id)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            logger.exception("the drafter %s failed and is not asked any more", type(self._drafter).__name__)
