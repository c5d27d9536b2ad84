"""Fuses streams in NumPy: resamples each, then concatenates them."""

import numpy as np

from peers import resample_numpy


def fuse(streams: list[tuple[np.ndarray, np.ndarray]], targets: np.ndarray) -> np.ndarray:
    """[(values [B,S,D], times [B,S])], targets [B,T] -> [B,T,sum of D]. A target beyond an episode's times gets its first or last
    sample."""
    return np.concatenate([resample_numpy.resample(values, times, targets) for values, times in streams], -1)
