"""A straight line through points, with what is known of its slope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LineFit:
    """y = intercept + slope · x by least squares.

    Attributes:
        slope: y per x.
        intercept: y at x = 0.
        slope_error: standard error of the slope (residual scatter alone), in its unit.
        r_squared: share of the variance explained.
    """

    slope: float
    intercept: float
    slope_error: float
    r_squared: float


def fit_line(x: Sequence[float], y: Sequence[float]) -> LineFit | None:
    """The line of least squares; ``None`` below three points or where all have the same x."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(xs) < 3 or np.ptp(xs) == 0:
        return None
    centred = xs - xs.mean()
    square = float(np.sum(centred**2))
    slope = float(np.sum(centred * (ys - ys.mean()))) / square
    intercept = float(ys.mean() - slope * xs.mean())
    residual = float(np.sum((ys - intercept - slope * xs) ** 2))
    variance = float(np.sum((ys - ys.mean()) ** 2))
    error = (residual / (len(xs) - 2) / square) ** 0.5
    return LineFit(slope, intercept, error, 1 - residual / variance if variance else 1.0)
