"""Rule 10: the two ends of a cubic in resample_trajectories, on the CPU and on CUDA."""

from fractions import Fraction

import numpy as np
import pytest
from reference.compare import assert_within
from reference.curve_calls import (
    check,
    each_clock,
    each_float,
    expected_by_blocks,
    float32,
    float64,
    random_case,
    resample,
)
from reference.resample import Expected, resample_curve

pytest.importorskip("torch")


@pytest.mark.parametrize("bc_type", ["natural", "not-a-knot"])
@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 6, 40, 1000])
@each_float
@each_clock
def test_rule_10_both_ends_of_a_cubic(rng, device, dtype, clock, samples, bc_type):
    values, times, targets = random_case(rng, dtype, clock, batch=2, samples=samples, targets=100, special=False)
    for extrapolate in ("clamp", "linear"):
        options = {"method": "cubic", "bc_type": bc_type, "extrapolate": extrapolate}
        check(values, times, targets, device, **options)
        check(values, times, targets, device, lengths=rng.integers(0, samples + 1, 2), **options)


def test_rule_10_gaps_of_many_lengths_under_a_cubic(rng, device):
    for bc_type in ("natural", "not-a-knot"):
        times = np.cumsum(np.exp2(rng.integers(-10, 11, (4, 40)).astype(np.float64)), axis=1)
        values = rng.standard_normal((4, 40, 9))
        targets = np.round(rng.uniform(times[:, :1], times[:, -1:], (4, 500)) * 2**20) / 2**20
        for dtype in (float64, float32):
            check(values.astype(dtype), times, targets, device, method="cubic", bc_type=bc_type)


def exact_slopes(x, y, bc_type):
    """Returns the spline's slopes, in rational arithmetic. h: gaps; m: slopes of the chords; a: the equations, to be solved."""
    n = len(x)
    h = [x[i + 1] - x[i] for i in range(n - 1)]
    m = [(y[i + 1] - y[i]) / h[i] for i in range(n - 1)]
    a = [[Fraction(0)] * n + [Fraction(0)] for _ in range(n)]
    for i in range(1, n - 1):
        a[i][i - 1 : i + 2] = h[i], 2 * (h[i - 1] + h[i]), h[i - 1]
        a[i][n] = 3 * (h[i] * m[i - 1] + h[i - 1] * m[i])
    for row, end, near, far in ((0, 0, 1, 2), (n - 1, n - 1, n - 2, n - 3)):  # g, k: the end's gaps; p, q: their slopes
        g, k = (h[0], h[1]) if row == 0 else (h[-1], h[-2])
        p, q = (m[0], m[1]) if row == 0 else (m[-1], m[-2])
        if bc_type == "natural":
            a[row][end], a[row][near], a[row][n] = 2, 1, 3 * p
        else:  # equal third derivatives on both sides of the neighbour
            a[row][end], a[row][near], a[row][far] = k * k, k * k - g * g, -g * g
            a[row][n] = 2 * (k * k * p - g * g * q)
    for i in range(n):
        pivot = next(r for r in range(i, n) if a[r][i])
        a[i], a[pivot] = a[pivot], a[i]
        for r in range(n):
            if r != i and a[r][i]:
                factor = a[r][i] / a[i][i]
                a[r] = [u - factor * v for u, v in zip(a[r], a[i], strict=True)]
    return [a[i][n] / a[i][i] for i in range(n)]


@pytest.mark.parametrize("bc_type", ["natural", "not-a-knot"])
def test_rule_10_a_cubic_in_exact_arithmetic(rng, device, bc_type):
    """Gaps have very different lengths, where scipy loses digits."""
    for samples in (4, 5, 9):
        for _ in range(10):
            times = np.cumsum(np.exp2(rng.integers(-8, 9, samples).astype(np.float64)))
            values = rng.standard_normal((samples, 1))
            targets = (times[1:] + times[:-1]) / 2
            x, y = [Fraction(t) for t in times], [Fraction(v) for v in values[:, 0]]
            slopes = exact_slopes(x, y, bc_type)
            midpoints = [
                float((y[i] + y[i + 1]) / 2 + (x[i + 1] - x[i]) * (slopes[i] - slopes[i + 1]) / 8)
                for i in range(samples - 1)
            ]
            out, _ = resample(values, times, targets, device, method="cubic", bc_type=bc_type)
            gaps = np.diff(times)
            norm = max(2, 1 + gaps[0] / gaps[1], 1 + gaps[-1] / gaps[-2])
            if samples == 4 and bc_type == "not-a-knot":  # the two ends amplify each other's errors: rule 10.1
                norm *= (gaps[0] + gaps[1]) * (gaps[1] + gaps[2]) / (gaps[1] * gaps.sum())
            size = np.abs(values).max() + gaps.max() * max(abs(float(s)) for s in slopes)
            np.testing.assert_allclose(out[:, 0], midpoints, rtol=0, atol=16 * 2.0**-53 * norm * size)


def test_rule_10_several_cubics_in_one_row(rng, device):
    values, times, targets = random_case(rng, float32, np.dtype(np.float64), features=12)
    blocks = [(slice(0, 3), "cubic"), (slice(5, 10), "cubic")]
    all_blocks = [blocks[0], (slice(3, 5), "linear"), blocks[1], (slice(10, 12), "linear")]
    out, _ = resample(values, times, targets, device, methods=blocks, bc_type="natural")
    parts = [
        resample_curve(values[..., d], times, targets, method=method, bc_type="natural")
        if method == "cubic"
        else expected_by_blocks(values, times, targets, [(d, method)])
        for d, method in all_blocks
    ]
    assert_within(
        out, Expected(*(np.concatenate([part[i] for part in parts], axis=-1) for i in range(3)), parts[0].valid)
    )
