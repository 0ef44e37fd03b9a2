"""The sampler, defined in NumPy for one row of logits; the native sampler follows it operation by operation.

All is float32 unless said otherwise, ``V`` is the vocabulary. In this order (vLLM's):

1.  Logits that are not all finite: the request fails. Log-probabilities are taken from the unmodified logits.
    Then the request's ``logits_processors``, if it has any (runner/logits_processors.py).
2.  ``allowed_ids``, and the ``mask`` of a grammar: all other logits become -inf.
3.  ``logit_bias`` is added; an id that is listed twice has both values added, in order.
4.  ``banned_ids`` (EOS and stop ids, while fewer than ``min_tokens`` were sampled) become -inf. Under a mask they stay
    where they are all that it leaves: the grammar is complete, and nothing but an end may follow.
5.  Penalties. Repetition, for each token in prompt or output: a positive logit is divided, any other is multiplied.
    Then for each token in the output: minus frequency_penalty * (float32 of its count), minus presence_penalty.
6.  Temperature below 1e-5: the largest logit, the lowest id among equals. The rest is skipped.
7.  ``x = logit / temperature``; ``w = exp(x - max(x))``, in [0, 1]. Both are rounded float32 operations.
8.  ``min_p``: keep ``w >= min_p`` (``w`` of the most probable token is 1); as in vLLM before top-k and top-p.
9.  ``top_k``: keep the k largest ``x``, lower ids first among equals (vLLM keeps all that equal the k-th).
10. ``top_p``: keep the fewest largest ``x`` whose weight reaches ``top_p`` times the weight of all that 8 and 9
    kept, lower ids first among equals; at least one.
11. Draw: walk the kept tokens and add up their weights until the sum exceeds ``u`` times the weight of all kept.
    The walk is by ascending id when neither top-k nor top-p nor min_p is on, else by descending ``x``, ascending id.

Weights in 10 and 11 are integers, ``round_half_to_even(w * 2**30)``, so that their sums are exact in whatever
order and with however many threads they are added; a token less than 2**-31 times as probable as the first is
never drawn. Thresholds are products in float64: ``sum >= float64(top_p) * float64(total)`` and
``sum > float64(u) * float64(total)``.

``u`` is ``(x0 >> 8) * 2**-24``, x0 the first word of Philox4x32-10 with the key (low, high half of the seed) and
the counter (position, 0, 0, 0), where ``position`` is the index in the sequence of the token to be sampled. A
draw thus depends on nothing but the seed and the position: not on the batch, chunks, preemption or threads.
Philox is from Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotseat.runner.results import LogprobRows, SampleStatus
from hotseat.runner.seats import Float32Array, Int32Array, SeatTable, UInt32Array

__all__ = [
    "RowSampling",
    "choose_token",
    "log_softmax",
    "penalize",
    "philox4x32",
    "rank_of",
    "sample_row",
    "store_logprobs",
    "top_logprobs",
    "uniform",
]

GREEDY_BELOW = np.float32(1e-5)
WEIGHT_SCALE = np.float32(2**30)

_MASK32 = 0xFFFFFFFF
_PHILOX_M0, _PHILOX_M1 = 0xD2511F53, 0xCD9E8D57
_PHILOX_W0, _PHILOX_W1 = 0x9E3779B9, 0xBB67AE85
_PHILOX_ROUNDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """The sampling options of one sequence's next token; the defaults are neutral."""

    prompt_ids: Int32Array  # [num_prompt_tokens]
    output_ids: Int32Array  # [tokens sampled so far]
    seed: int = 0  # unsigned, 64 bits
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    allowed_ids: Int32Array | None = None
    mask: UInt32Array | None = None  # [ceil(V / 32)]; token t is bit t % 32 of word t // 32
    banned_ids: Int32Array | None = None
    bias_ids: Int32Array | None = None
    bias_values: Float32Array | None = None  # parallel to bias_ids

    @staticmethod
    def of_seat(table: SeatTable, seat: int, num_drafts: int = 0) -> RowSampling:
        """Return what ``table`` knows of ``seat`` after so many of its drafts."""
        sampling = table.sampling[seat]
        num_prompt_tokens = int(table.num_prompt_tokens[seat])
        allowed_ids, _ = table.allowed_ids.of(seat)
        bias_ids, bias_values = table.logit_bias.of(seat)
        return RowSampling(
            prompt_ids=table.tokens[seat, :num_prompt_tokens],
            output_ids=table.tokens[seat, num_prompt_tokens : table.num_tokens[seat] + num_drafts],
            seed=int(sampling["seed"]),
            temperature=float(sampling["temperature"]),
            top_p=float(sampling["top_p"]),
            top_k=int(sampling["top_k"]),
            min_p=float(sampling["min_p"]),
            presence_penalty=float(sampling["presence_penalty"]),
            frequency_penalty=float(sampling["frequency_penalty"]),
            repetition_penalty=float(sampling["repetition_penalty"]),
            min_tokens=int(sampling["min_tokens"]),
            allowed_ids=allowed_ids if len(allowed_ids) else None,
            mask=table.token_masks[table.mask_row(seat, num_drafts)] if table.has_mask[seat] else None,
            banned_ids=table.banned_ids.of(seat)[0],
            bias_ids=bias_ids,
            bias_values=bias_values,
        )

    @property
    def position(self) -> int:
        """Index in the sequence of the token to be sampled."""
        return len(self.prompt_ids) + len(self.output_ids)


def sample_row(logits: Float32Array, row: RowSampling) -> tuple[SampleStatus, int]:
    """Choose the next token from ``logits`` float32[V]; the id is 0 where the status is not OK."""
    if not np.isfinite(logits).all():
        return SampleStatus.NOT_FINITE, 0
    return choose_token(logits, row)


def choose_token(logits: Float32Array, row: RowSampling) -> tuple[SampleStatus, int]:
    """Choose the next token from ``logits`` float32[V], finite or -inf; the id is 0 where the status is not OK."""
    adjusted = _adjust(logits, row)
    best = int(np.argmax(adjusted))
    if np.isneginf(adjusted[best]):
        return SampleStatus.NO_CANDIDATE, 0
    if np.float32(row.temperature) < GREEDY_BELOW:
        return SampleStatus.OK, best
    return SampleStatus.OK, _draw(adjusted / np.float32(row.temperature), row)


def _adjust(logits: Float32Array, row: RowSampling) -> Float32Array:
    """Return a copy of ``logits`` float32[V] with masks, biases and penalties applied."""
    if row.allowed_ids is None:
        adjusted = logits.copy()
    else:
        adjusted = np.full_like(logits, -np.inf)
        adjusted[row.allowed_ids] = logits[row.allowed_ids]
    if row.mask is not None:
        is_masked = np.unpackbits(row.mask.view(np.uint8), bitorder="little")[: len(adjusted)] == 0
        adjusted[is_masked] = -np.inf
    if row.bias_ids is not None and row.bias_values is not None:
        np.add.at(adjusted, row.bias_ids, row.bias_values)
    if row.banned_ids is not None and len(row.output_ids) < row.min_tokens:
        adjusted = _ban(adjusted, row.banned_ids, spares_last=row.mask is not None)
    penalize(adjusted, row)
    return adjusted


def _ban(logits: Float32Array, ids: Int32Array, *, spares_last: bool) -> Float32Array:
    """Return a copy of ``logits`` float32[V] without ``ids``; with them, if ``spares_last`` and they are all."""
    banned = logits.copy()
    banned[ids] = -np.inf
    return logits if spares_last and np.isneginf(banned).all() else banned


def penalize(logits: Float32Array, row: RowSampling) -> None:
    """Apply the three penalties to ``logits`` float32[V], in place."""
    output_ids, counts = np.unique(row.output_ids, return_counts=True)
    if row.repetition_penalty != 1:
        penalty = np.float32(row.repetition_penalty)
        seen = np.union1d(row.prompt_ids, output_ids)
        values = logits[seen]
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if row.frequency_penalty != 0:
        logits[output_ids] -= np.float32(row.frequency_penalty) * counts.astype(np.float32)
    if row.presence_penalty != 0:
        logits[output_ids] -= np.float32(row.presence_penalty)


def _draw(x: Float32Array, row: RowSampling) -> int:
    """Draw an id from ``x`` float32[V], logits already divided by the temperature."""
    w: Float32Array = np.exp(x - x.max())
    weights: NDArray[np.int64] = np.rint(w * WEIGHT_SCALE).astype(np.int64)
    is_filtered = 0 < row.top_k < len(x) or row.top_p < 1 or row.min_p > 0
    ids = _filter(x, w, weights, row) if is_filtered else np.arange(len(x))
    cumulative = np.cumsum(weights[ids])
    target = np.float64(uniform(row.seed, row.position)) * np.float64(cumulative[-1])
    return int(ids[np.searchsorted(cumulative, target, side="right")])


def _filter(
    x: Float32Array, w: Float32Array, weights: NDArray[np.int64], row: RowSampling
) -> NDArray[np.int64]:  # [number kept]
    """Return the ids that min_p, top_k and top_p keep, the most probable first."""
    ids: NDArray[np.int64] = np.flatnonzero(w >= np.float32(row.min_p))
    ids = ids[np.argsort(-x[ids], kind="stable")]
    if row.top_k > 0:
        ids = ids[: row.top_k]
    if row.top_p < 1:
        cumulative = np.cumsum(weights[ids])
        threshold = np.float64(np.float32(row.top_p)) * np.float64(cumulative[-1])
        ids = ids[: max(1, int(np.searchsorted(cumulative, threshold, side="left")) + 1)]
    return ids


def uniform(seed: int, position: int) -> float:
    """Return the draw for ``position`` of the sequence, in [0, 1), a multiple of 2**-24."""
    x0 = philox4x32((position & _MASK32, 0, 0, 0), (seed & _MASK32, (seed >> 32) & _MASK32))[0]
    return float((x0 >> 8) * 2.0**-24)


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the four 32-bit words of Philox4x32-10 at ``counter``."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_PHILOX_ROUNDS):
        high0, low0 = divmod(_PHILOX_M0 * c0, 1 << 32)
        high1, low1 = divmod(_PHILOX_M1 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _PHILOX_W0) & _MASK32, (k1 + _PHILOX_W1) & _MASK32
    return c0, c1, c2, c3


def log_softmax(logits: Float32Array) -> Float32Array:
    """Return natural log-probabilities of ``logits`` float32[V]: ``(x - max) - log(sum of exp(x - max))``.

    The exponentials are float32, their sum and its logarithm float64, the difference is rounded to float32
    once. A row that is not finite gives NaNs.
    """
    if not np.isfinite(logits).all():
        return np.full_like(logits, np.nan)
    shifted = logits - logits.max()
    log_sum = np.log(np.exp(shifted).sum(dtype=np.float64))
    result: Float32Array = (shifted.astype(np.float64) - log_sum).astype(np.float32)
    return result


def rank_of(logits: Float32Array, token_id: int) -> int:
    """Return 1 plus the number of tokens with a larger logit."""
    return 1 + int(np.count_nonzero(logits > logits[token_id]))


def top_logprobs(logprobs: Float32Array, count: int) -> Int32Array:
    """Return the ids of the ``count`` (at most V) most probable tokens, lower ids first among equals."""
    return np.argsort(-logprobs, kind="stable")[:count].astype(np.int32)


def store_logprobs(rows: LogprobRows, index: int, logits: Float32Array, token_id: int, num_top: int) -> None:
    """Write one entry of ``rows``: the token's log-probability and rank in ``logits`` float32[V], and the top ones."""
    logprobs = log_softmax(logits)
    rows.logprob[index] = logprobs[token_id]
    rows.rank[index] = rank_of(logits, token_id)
    top_ids = top_logprobs(logprobs, num_top)
    rows.top_ids[index, :num_top] = top_ids
    rows.top_logprobs[index, :num_top] = logprobs[top_ids]
