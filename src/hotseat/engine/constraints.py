"""The requests with a grammar: masks for what they may sample, and the tokens that they sampled under them."""

from __future__ import annotations

from collections.abc import Sequence

from hotseat.core.batch import Batch, StepOutput, TokenMask
from hotseat.core.request import Request, RequestId
from hotseat.core.structured_outputs import TokenConstraint
from hotseat.errors import GrammarError

__all__ = ["ConstrainedRequests"]


class ConstrainedRequests:
    """Hands a mask to the runner for each constrained request that samples, and moves its grammar on by the token.

    A grammar that fails ends its own request, and never lets it go on unmasked. A grammar has seen the tokens that its
    request has, so it survives a preemption as it is.
    """

    def __init__(self) -> None:
        self._constraints: dict[RequestId, TokenConstraint] = {}
        self._failed: dict[RequestId, str] = {}  # in the present step

    def __bool__(self) -> bool:
        return bool(self._constraints)

    def add(self, request: Request) -> None:
        """Take in an accepted request."""
        if request.constraint is not None:
            self._constraints[request.id] = request.constraint

    def remove(self, request: Request) -> None:
        """Forget a request that ended."""
        if request.constraint is not None:
            self._constraints.pop(request.id, None)

    def mask(self, batch: Batch) -> None:
        """Add the masks of ``batch``."""
        self._failed = {}
        constraints = self._constraints
        drafts = {draft.seat: draft.token_ids for draft in batch.drafts}
        for chunk in batch.chunks:
            if not chunk.samples or (constraint := constraints.get(chunk.request_id)) is None:
                continue
            try:
                if chunk.seat in drafts:
                    batch.token_masks += _masks_along(chunk.seat, constraint, drafts[chunk.seat])
                else:
                    batch.token_masks.append(TokenMask(chunk.seat, constraint.mask()))
            except GrammarError as error:
                self._failed[chunk.request_id] = str(error)  # what it samples in this step is thrown away

    def accept(self, output: StepOutput) -> None:
        """Move the grammars on by what was sampled; requests whose grammar fails become failed ones of ``output``."""
        constraints, failed = self._constraints, self._failed
        for request_id, token_ids, _ in output.sampled:
            constraint = constraints.get(request_id)
            if constraint is None or request_id in failed:
                continue
            try:
                for token_id in token_ids:
                    constraint.accept(token_id)
            except GrammarError as error:
                failed[request_id] = str(error)
        for request_id in constraints.keys() & output.failed.keys():
            output.failed[request_id] += (
                "; it has a grammar (structured_outputs), maybe none of whose tokens is allowed"
            )
        if failed:
            output.failed.update(failed)
            output.sampled = [one for one in output.sampled if one.request_id not in failed]


def _masks_along(seat: int, constraint: TokenConstraint, drafts: Sequence[int]) -> list[TokenMask]:
    """Return the masks of the rows of a draft, up to the first token that may not come; no row behind it counts."""
    masks: list[TokenMask] = []
    for num_drafts, token_id in enumerate([*drafts, None]):
        words = bytes(constraint.mask())
        masks.append(TokenMask(seat, words, num_drafts))
        if token_id is None or not words[token_id // 8] >> token_id % 8 & 1:
            break
        constraint.accept(token_id)
    constraint.rollback(len(masks) - 1)
    return masks
