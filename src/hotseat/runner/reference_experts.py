"""The routing of a mixture of experts, in NumPy: it defines which experts a row gets and with which weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotseat.models.spec import ExpertsSpec
from hotseat.runner.reference_ops import Array

__all__ = ["route", "sigmoid"]


def route(
    logits: Array,  # [T, num_experts]
    experts: ExpertsSpec,
    selection_bias: Array | None,  # [num_experts]
) -> Array:  # [T, num_experts]
    """Return the weight of each expert in each row, NaN for those that are not chosen."""
    relative = np.exp(logits - logits.max(axis=1, keepdims=True)) if experts.scoring == "softmax" else sigmoid(logits)
    total = relative.sum(axis=1, keepdims=True) if experts.scoring == "softmax" else np.float32(1)
    choice = logits if experts.scoring == "softmax" and selection_bias is None else relative / total
    if selection_bias is not None:
        choice = choice + selection_bias
    chosen = _highest(_in_best_groups(choice, experts), experts.per_token)
    if experts.renormalize:
        total = np.where(chosen, relative, np.float32(0)).sum(axis=1, keepdims=True)
    weights: Array = relative / np.maximum(total, np.float32(1e-20)) * np.float32(experts.scale)
    return np.where(chosen, weights, np.float32(np.nan))


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + e^-x)."""
    with np.errstate(over="ignore"):  # of a very negative number: inf, and the quotient 0
        return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def _highest(values: Array, count: int) -> NDArray[np.bool_]:  # both [T, N]
    """Mark the ``count`` highest values of each row, of equal ones the first."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    marks: NDArray[Any] = np.zeros(values.shape, np.bool_)
    np.put_along_axis(marks, order, True, axis=1)
    return marks


def _in_best_groups(choice: Array, experts: ExpertsSpec) -> Array:  # both [T, num_experts]
    """Return ``choice``, minus infinity where the expert's group is not among the best."""
    if experts.num_groups == experts.groups_per_token:
        return choice
    groups = choice.reshape(len(choice), experts.num_groups, -1)
    best_two = np.sort(groups, axis=2)[:, :, -2:].sum(axis=2)
    is_best = _highest(best_two, experts.groups_per_token)[:, :, None]
    return np.where(is_best, groups, np.float32(-np.inf)).reshape(choice.shape)
