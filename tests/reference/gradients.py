"""A naive oracle of the gradients of `robocache.resample_trajectories`."""

import numpy as np

from .resample import only_last_of_each_time, resample


def weights_of_samples(times, target_times, samples, **options):
    """Returns the weight [B, T, S] of each sample in each target, for methods that are linear in the values.

    It is the forward oracle in float64 on unit vectors; absent targets have weights 0.
    """
    batch = times.shape[0]
    units = np.broadcast_to(np.eye(samples), (batch, samples, samples))
    weights, _ = resample(units, times, target_times, **options)
    return np.nan_to_num(weights, nan=0.0)


def slopes_of_linear(values, times, target_times, out_gradient, *, lengths=None, extrapolate="clamp", max_gap=None):
    """Returns the gradients of linear with respect to times [B, S] and target_times [B, T], and for each the sum of the magnitudes
    of its terms. float64; one target after the other."""
    values, out_gradient = values.astype(np.float64), out_gradient.astype(np.float64)
    times_gradient, times_magnitude = np.zeros(times.shape), np.zeros(times.shape)
    targets_gradient, targets_magnitude = np.zeros(target_times.shape), np.zeros(target_times.shape)
    for row, targets in enumerate(target_times):
        length = times.shape[1] if lengths is None else int(lengths[row])
        clock, position = only_last_of_each_time(times[row, :length], np.arange(length))
        clock = clock.astype(np.float64)
        for k, t in enumerate(targets.astype(np.float64)):
            if np.isnan(t) or len(clock) < 2:
                continue
            right = int(np.searchsorted(clock, t, side="right"))  # the first sample after the target
            hit = right > 0 and clock[right - 1] == t
            outside = not hit and right in (0, len(clock))
            if outside and extrapolate != "linear":
                continue
            # A target on a sample has the bracket after it; on the last sample, the one before.
            right = min(max(right, 1), len(clock) - 1)
            left = right - 1
            gap = clock[right] - clock[left]
            if not hit and not outside and max_gap is not None and gap > max_gap and extrapolate == "nan":
                continue
            w = (t - clock[left]) / gap
            step = values[row, position[right]] - values[row, position[left]]
            terms = np.where(out_gradient[row, k] == 0, 0, out_gradient[row, k] * step) / gap
            slope, size = terms.sum(), np.abs(terms).sum()
            targets_gradient[row, k] += slope
            targets_magnitude[row, k] += size
            for index, share in ((left, 1 - w), (right, w)):
                times_gradient[row, position[index]] -= share * slope
                times_magnitude[row, position[index]] += (1 + abs(share)) * size
    return times_gradient, targets_gradient, times_magnitude, targets_magnitude
