"""Interpolates angles the shorter way in integers: units of 2^-256 rad, and pi to the same precision."""

import numpy as np

BITS = 256


def _arc_tangent_of_inverse(n):
    """Returns atan(1 / n), by its series."""
    term = total = (1 << (BITS + 32)) // n
    for k in range(1, BITS):
        term //= -n * n
        total += term // (2 * k + 1)
    return total


HALF_TURN = (16 * _arc_tangent_of_inverse(5) - 4 * _arc_tangent_of_inverse(239)) >> 32  # Machin's formula
TURN = 2 * HALF_TURN


def _in_units(x):
    numerator, denominator = float(x).as_integer_ratio()
    return (numerator << BITS) // denominator


def _on_circle(angle):
    return (angle + HALF_TURN) % TURN - HALF_TURN


def angles_between(a, b, w, u):
    """Returns (exact, bound) [N, D] of the angle at the share `w` [N] of the shorter way from `a` to `b` [N, D]. `exact`
    is in [-pi, pi), and correct modulo 2 pi; `bound` is that of rule 8.2 in docs/rules.md."""
    exact, bound = np.full(a.shape, np.nan), np.zeros(a.shape)
    for i, share in enumerate(w):
        if not np.isfinite(share):
            bound[i] = np.inf
            continue
        numerator, denominator = float(share).as_integer_ratio()
        for d in range(a.shape[1]):
            x, y = a[i, d], b[i, d]
            if not (np.isfinite(x) and np.isfinite(y)):
                continue
            way = _on_circle(_in_units(y) - _in_units(x))
            exact[i, d] = _on_circle(_in_units(x) + way * numerator // denominator) / (1 << BITS)
            distance = abs(float(y) - float(x))
            # Wrapping has an error of 2.5 u: 2 u of the fma, u / 2 of 2 pi times the turns. The way adds u (2.5 + |b - a|) |w|,
            # the weight u pi |w|, the fma u pi (1 + |w|), the last wrapping 2.5 u, and -pi in place of y u (2 pi (1 + |w|) + 5).
            bound[i, d] = u * (20 + abs(share) * (distance + 16)) + 2.0**-53 * (4 + 16 * abs(share))
            if HALF_TURN - abs(way) <= _in_units(4 * u * (distance + 1)):
                bound[i, d] = np.pi  # both ways are equally long
            if max(abs(x), abs(y)) > 2.0 ** (24 if u > 2.0**-30 else 53):
                bound[i, d] = np.inf
    return exact, bound
