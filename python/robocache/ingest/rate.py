"""Stamps of rows that have no clock of their own: a row's number divided by a rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import FileError


def require_rate(rate_hz: float | None, source: Path, why: str) -> float:
    """The rate that the user gave.

    Raises:
        FileError: none was given; says `why` it is needed.
    """
    if rate_hz is None:
        raise FileError(f"{source}: {why}; say how many rows a second there are with rate_hz (--rate-hz)")
    return rate_hz


def nominal_time_ns(start: int, stop: int, rate_hz: float) -> np.ndarray:
    """int64 nanoseconds of the rows ``start`` to ``stop - 1``, row 0 at 0."""
    stamps: np.ndarray = np.rint(np.arange(start, stop) * 1e9 / rate_hz).astype(np.int64)
    return stamps
