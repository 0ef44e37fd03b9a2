"""A small least-squares fit with no coefficient below zero, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["nonnegative_fit"]

RIDGE = 1e-9  # keeps the equations solvable where a feature never varies


def nonnegative_fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the coefficients with the least squared relative errors, ``rows`` float[N, F] times them being ``values``.

    The most negative one is left out until none is.
    """
    size = len(rows[0])
    scales = [max(max(abs(row[i]) for row in rows), 1e-30) for i in range(size)]
    squares = [[0.0] * size for _ in range(size)]
    products = [0.0] * size
    for row, value in zip(rows, values, strict=True):
        x = [row[i] / scales[i] / value for i in range(size)]
        for i in range(size):
            if x[i]:
                products[i] += x[i]
                line = squares[i]
                for j in range(size):
                    line[j] += x[i] * x[j]
    used = [i for i in range(size) if squares[i][i] > 0]
    ridge = RIDGE * max(squares[i][i] for i in used)
    while True:
        found = _solve([[squares[i][j] + ridge * (i == j) for j in used] + [products[i]] for i in used])
        lowest = min(range(len(used)), key=found.__getitem__)
        if found[lowest] >= 0:
            break
        del used[lowest]
    coefficients = [0.0] * size
    for i, value in zip(used, found, strict=True):
        coefficients[i] = value / scales[i]
    return coefficients


def _solve(rows: list[list[float]]) -> list[float]:
    """Solve linear equations, each a row of coefficients and the right-hand side, with pivots; ``rows`` is used up."""
    size = len(rows)
    for k in range(size):
        best = max(range(k, size), key=lambda i: abs(rows[i][k]))
        rows[k], rows[best] = rows[best], rows[k]
        for row in rows[k + 1 :]:
            factor = row[k] / rows[k][k]
            row[k:] = [value - factor * other for value, other in zip(row[k:], rows[k][k:], strict=True)]
    solution = [0.0] * size
    for k in reversed(range(size)):
        known = math.fsum(rows[k][j] * solution[j] for j in range(k + 1, size))
        solution[k] = (rows[k][size] - known) / rows[k][k]
    return solution
