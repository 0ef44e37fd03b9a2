"""A runner that computes nothing: it lets the clock run on and says the tokens that were known beforehand."""

from __future__ import annotations

from collections.abc import Callable

from hotseat.core.batch import Batch, SampledTokens, StepOutput
from hotseat.core.request import RequestId
from hotseat.engine import VirtualClock
from hotseat.simulator.arrivals import FILLER, Script

__all__ = ["SimulatedRunner"]

_new_tuple = tuple.__new__  # twice as fast as SampledTokens(…), and it is paid for every running request in every step


class SimulatedRunner:
    """Advances ``clock`` by what ``cost`` says of each batch."""

    def __init__(self, clock: VirtualClock, cost: Callable[[Batch], float]) -> None:
        self._clock = clock
        self._cost = cost
        self.num_sequences = 0  # in the last step
        self._scripts: dict[RequestId, Script] = {}
        self._special: dict[RequestId, Script] = {}  # those of which a decode samples something else than the filler

    def learn(self, request_id: RequestId, script: Script) -> None:
        """Take in what a request will say."""
        self._scripts[request_id] = script
        if not script.has_plain_decodes:
            self._special[request_id] = script

    def forget(self, request_id: RequestId) -> None:
        """Let go of a request that ended."""
        self._scripts.pop(request_id, None)
        self._special.pop(request_id, None)

    def execute(self, batch: Batch) -> StepOutput:
        """Let time pass and return a token for each chunk that samples."""
        self._clock.advance(self._cost(batch))
        self.num_sequences = len(batch.chunks)
        decodes, prefills = batch.chunks[: batch.num_decodes], batch.chunks[batch.num_decodes :]
        special, sampled = self._special, []
        if special:
            for _, request_id, _, end, _, _ in decodes:
                token_id = special[request_id].token_at(end) if request_id in special else FILLER
                sampled.append(SampledTokens(request_id, [token_id]))
        else:
            sampled = [_new_tuple(SampledTokens, (chunk[1], [FILLER], None)) for chunk in decodes]
        for chunk in prefills:
            if chunk.samples:
                sampled.append(SampledTokens(chunk.request_id, [self._scripts[chunk.request_id].token_at(chunk.end)]))
        return StepOutput(sampled=sampled)

    def close(self) -> None:
        """Nothing to release."""
