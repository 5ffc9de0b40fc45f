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
        largest_residual: how far the point farthest from the line lies from it, in y.
        count: how many points.
    """

    slope: float
    intercept: float
    slope_error: float
    r_squared: float
    largest_residual: float
    count: int


def fit_line(x: Sequence[float], y: Sequence[float]) -> LineFit | None:
    """The line of least squares; ``None`` below three points or where all have the same x."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(xs) < 3 or np.ptp(xs) == 0:
        return None
    centred = xs - xs.mean()
    square = float(np.sum(centred**2))
    slope = float(np.sum(centred * (ys - ys.mean()))) / square
    intercept = float(ys.mean() - slope * xs.mean())
    residuals = ys - intercept - slope * xs
    residual = float(np.sum(residuals**2))
    variance = float(np.sum((ys - ys.mean()) ** 2))
    error = (residual / (len(xs) - 2) / square) ** 0.5
    explained = 1 - residual / variance if variance else 1.0
    return LineFit(slope, intercept, error, explained, float(np.max(np.abs(residuals))), len(xs))
