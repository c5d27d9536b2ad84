"""Linear resampling by SciPy's interp1d, episode by episode, in float64 as always in interp1d."""

import numpy as np
from scipy.interpolate import interp1d


def resample(values: np.ndarray, times: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """values [B,S,D], times [B,S], targets [B,T] -> [B,T,D]. A target beyond an episode's times gets its first or last sample."""
    out = np.empty((values.shape[0], targets.shape[1], values.shape[2]), values.dtype)
    for row, (samples, clock) in enumerate(zip(values, times, strict=True)):
        line = interp1d(clock, samples, axis=0, bounds_error=False, fill_value=(samples[0], samples[-1]))
        out[row] = line(targets[row])
    return out
