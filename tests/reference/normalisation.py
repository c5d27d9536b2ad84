"""Naive oracles of normalisation: LeRobot's and openpi's formulas, statistics of pooled rows, merged moments by fractions."""

from fractions import Fraction

import numpy as np

ENDS = {"min_max": ("min", "max"), "q01_q99": ("q01", "q99"), "q10_q90": ("q10", "q90")}
MODES = ["mean_std", *ENDS]
PERCENTS = {"min": 0, "q01": 1, "q10": 10, "q50": 50, "q90": 90, "q99": 99, "max": 100}


def lerobot(x, stats, mode, *, inverse=False):
    """LeRobot's NormalizerProcessorStep, or with `inverse` its UnnormalizerProcessorStep; eps is 1e-8 in x's dtype."""
    eps = x.dtype.type(1e-8)
    if mode == "mean_std":
        mean, std = (np.asarray(stats[field], x.dtype) for field in ("mean", "std"))
        return x * std + mean if inverse else (x - mean) / (std + eps)
    low, high = (np.asarray(stats[field], x.dtype) for field in ENDS[mode])
    denom = np.where(high == low, eps, high - low)
    return (x + 1) / 2 * denom + low if inverse else 2 * (x - low) / denom - 1


def openpi(x, stats, mode, *, inverse=False):
    """openpi's Normalize, or with `inverse` its Unnormalize, for mean_std and q01_q99; other ranges have the same formula."""
    eps = x.dtype.type(1e-6)
    if mode == "mean_std":
        mean, std = (np.asarray(stats[field], x.dtype) for field in ("mean", "std"))
        return x * (std + eps) + mean if inverse else (x - mean) / (std + eps)
    low, high = (np.asarray(stats[field], x.dtype) for field in ENDS[mode])
    return (x + 1) / 2 * (high - low + eps) + low if inverse else (x - low) / (high - low + eps) * 2 - 1


def stats_of(rows):
    """Returns all fields of a Stats, of rows [n, ...], ignoring NaN."""
    rows = np.asarray(rows, np.float64)
    quantiles = {field: np.nanquantile(rows, percent / 100, axis=0) for field, percent in PERCENTS.items()}
    return {
        "mean": np.nanmean(rows, 0),
        "std": np.nanstd(rows, 0),
        **quantiles,
        "count": (~np.isnan(rows)).sum(0).astype(np.float64),
    }


def parse_percent(field):
    return PERCENTS[field] if field in PERCENTS else float(field[1:])


def affine_of(rows, mode):
    """Returns (centre, spread) of "mean_std", "min_max" or two quantiles such as "q02_q98", for rows [n, ...], ignoring NaN."""
    if mode == "mean_std":
        return np.nanmean(rows, 0), np.nanstd(rows, 0)
    low, high = np.nanquantile(rows, [parse_percent(field) / 100 for field in mode.split("_")], axis=0)
    return (low + high) / 2, (high - low) / 2


def assert_statistics(stats, rows, *, rtol=1e-12):
    """Compares a Stats with numpy's statistics of rows [n, ...], ignoring NaN; NaN where all rows are NaN."""
    rows = np.asarray(rows, np.float64)
    count = (~np.isnan(rows)).sum(0)
    np.testing.assert_array_equal(stats.count, count)
    rows = np.where(count > 0, rows, 0)
    for field, array in stats._asdict().items():
        if field == "count" or array is None:
            continue
        moment = {"mean": np.nanmean, "std": np.nanstd}.get(field)
        expected = moment(rows, axis=0) if moment else np.nanquantile(rows, parse_percent(field) / 100, axis=0)
        tolerance = {"rtol": 0} if field in ("min", "max") else {"rtol": rtol, "atol": 1e-12}
        np.testing.assert_allclose(array, np.where(count > 0, expected, np.nan), **tolerance, err_msg=field)


def merged_moments(parts):
    """Returns (mean, variance) of one feature as fractions, from (count, mean, std) of each part."""
    parts = [tuple(map(Fraction, part)) for part in parts]
    total = sum(n for n, _, _ in parts)
    mean = sum(n * m for n, m, _ in parts) / total
    return mean, sum(n * (s * s + (m - mean) ** 2) for n, m, s in parts) / total


def quantile_bracket(parts, percent):
    """Returns the least and greatest possible value of a quantile of all rows of a feature, from each part's PERCENTS.

    numpy interpolates a part's quantile, so the number of its rows at or below that quantile is known within one row. The bracket
    allows one row for each part.
    """
    knots = sorted({float(part[field]) for part in parts for field in PERCENTS})
    total, slack = sum(float(part["count"]) for part in parts), len(parts)

    def rows_at_or_below(value, surely):
        rows = 0
        for part in parts:
            percents_reached = [p for field, p in PERCENTS.items() if part[field] <= value]
            percents_after = [p for field, p in PERCENTS.items() if part[field] > value]
            share = (
                max(percents_reached, default=0) if surely or not percents_reached else min(percents_after, default=100)
            )
            rows += float(part["count"]) * share / 100
        return rows + (-slack if surely else slack)

    rank = total * percent / 100
    possible = [value for value in knots if rows_at_or_below(value, surely=False) >= rank]
    certain = [value for value in knots if rows_at_or_below(value, surely=True) >= rank]
    return min(possible, default=knots[-1]), min(certain, default=knots[-1])
