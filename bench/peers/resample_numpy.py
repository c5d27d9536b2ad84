"""Linear resampling in NumPy as in a data pipeline: for each episode a searchsorted, two gathers and a lerp."""

import numpy as np


def resample(values: np.ndarray, times: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """values [B,S,D], times [B,S], targets [B,T] -> [B,T,D]. A target beyond an episode's times gets its first or last sample."""
    out = np.empty((values.shape[0], targets.shape[1], values.shape[2]), values.dtype)
    for row in range(values.shape[0]):
        right = np.searchsorted(times[row], targets[row], side="right").clip(1, times.shape[1] - 1)
        left = right - 1
        start = times[row, left]
        weight = ((targets[row] - start) / (times[row, right] - start)).clip(0, 1)
        a = values[row, left]
        out[row] = a + weight[:, None] * (values[row, right] - a)
    return out
