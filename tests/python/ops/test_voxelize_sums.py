"""Rules 28 and 29: sums and means in fixed point have the same bits in every order."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from reference.compare import assert_same_bits
from reference.random_clouds import GRID
from reference.random_streams import random_values
from reference.voxel_checks import check, each_float, in_one_voxel, random_case, voxelize
from reference.voxelize import cells, nearest

import robocache

pytest.importorskip("torch")


# ---- Sums: rule 28 ----


@each_float
@pytest.mark.parametrize("quantum", [1.0, 2.0**-7, 2.0**10])
def test_rule_28_a_given_quantum(rng, device, dtype, quantum):
    points, features = random_case(rng, dtype, count=200)
    check(points, features, device, quantum=quantum, mode=["sum", "mean", "count"])


@pytest.mark.parametrize("quantum", [None, 2.0**-10, 2.0**-24], ids=["own", "coarse", "fine"])
@pytest.mark.parametrize("count", [4, 12])
@each_float
def test_rule_28_features_that_can_be_summed_four_at_once(rng, device, dtype, count, quantum):
    """Some voxels have few rows, others many; in some, one feature needs more than float32."""
    sizes = [1, 2, 5, 9, 31, 32, 100, 256, 257, 600]
    outliers = [None, 0.0, np.nan, np.inf, 1e-41, 3e38, 65504.0]
    cells_of_points = np.repeat(np.arange(len(sizes) * len(outliers)), np.repeat(sizes, len(outliers)))
    features = random_values(rng, (len(cells_of_points), count), dtype, special=False)
    for cell in range(len(sizes) * len(outliers)):
        rows = np.flatnonzero(cells_of_points == cell)
        value = outliers[cell % len(outliers)]
        if value == 0:
            features[rows] = 0
        elif value is not None:
            with np.errstate(over="ignore"):
                features[rng.choice(rows), rng.integers(count)] = np.asarray(value).astype(dtype)
    order = rng.permutation(len(cells_of_points))
    points = np.stack([cells_of_points + 0.5, *np.full((2, len(cells_of_points)), 0.5)], 1).astype(np.float32)
    grid = {"grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (len(sizes) * len(outliers), 1, 3)}
    check(points[order], features[order], device, mode=["sum", "mean", "count"], quantum=quantum, **grid)


@pytest.mark.parametrize("quantum", [None, 2.0**-10], ids=["own", "given"])
@pytest.mark.parametrize("count", [128, 132])
def test_rule_28_more_features_than_threads(rng, device, count, quantum):
    """An exact sum that only the last feature needs does not add the first features twice."""
    points, features, grid = in_one_voxel(random_values(rng, (600, count), np.dtype(np.float32), special=False))
    features[::100, -1] = [np.nan, 3e38, 0, 1e-30, np.inf, 1]
    check(points, features, device, mode=["sum", "mean"], quantum=quantum, **grid)


@each_float
def test_rule_28_quanta_at_the_ends_of_the_dtype(rng, device, dtype):
    least, greatest = {"float64": (-1074, 1023), "float32": (-149, 127), "float16": (-24, 15), "bfloat16": (-133, 127)}[
        dtype.name
    ]
    points, features = random_case(rng, dtype, count=100)
    for exponent in (least, greatest):
        check(points, features, device, quantum=2.0**exponent, mode=["sum", "mean"])
    for quantum in (2.0 ** (least - 1), 2.0**greatest * 2 if dtype != np.float64 else float("inf")):
        with pytest.raises(robocache.ArgumentError, match="quantum"):
            voxelize(points, features, device, quantum=quantum, mode=["sum"], **GRID)


def test_rule_28_overflow_depends_on_the_true_sum_alone(rng, device):
    """In any order: twice 2^62 quanta overflow int64, unless a negative value brings the sum back."""
    big = 2.0**62
    for column, expected in [
        ([big, big], np.nan),
        ([big, big, -big], big),
        ([-big, -big], -2 * big),  # the least int64
        ([-big, -big, -1.0], np.nan),
        ([big, big, -big, -big, big], big),
        ([2 * big], np.nan),
        ([2 * big, -2 * big], np.nan),
        ([-2 * big], -2 * big),
    ]:
        for order in itertools.islice(itertools.permutations(column), 6):
            points, features, grid = in_one_voxel(np.array(order)[:, None])
            out, _ = check(points, features, device, mode=["sum", "mean"], quantum=1.0, **grid)
            np.testing.assert_array_equal(out["sum"].ravel(), [expected])


def test_rule_28_sums_of_int64_wrap_and_their_mean_is_nan(device):
    points, features, grid = in_one_voxel(np.array([[2**62, 1], [2**62, 2], [2**62, 4]]))
    out, _ = check(points, features, device, mode=["sum", "mean"], **grid)
    assert out["sum"].ravel().tolist() == [3 * 2**62 - 2**64, 7]
    assert np.isnan(out["mean"].ravel()[0])


@pytest.mark.parametrize("outlier", [2.1e9, 1e15, 1e30, np.inf, np.nan])
def test_rule_28_an_outlier_stays_in_its_voxel(rng, device, outlier):
    points, features = random_case(rng, count=300, special=False)
    voxel, inside = cells(points, **GRID)
    row = np.flatnonzero(inside)[0]
    with_outlier = features.copy()
    with_outlier[row, 1] = outlier
    before, _ = voxelize(points, features, device, mode=["sum", "mean", "max"], **GRID)
    after, _ = voxelize(points, with_outlier, device, mode=["sum", "mean", "max"], **GRID)
    for name in before:
        is_unchanged = np.ones(before[name].shape, bool)
        is_unchanged[(*voxel[row], 1)] = False
        assert_same_bits(after[name][is_unchanged], before[name][is_unchanged], name)
    check(points, with_outlier, device)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_rule_28_errors_are_within_2_to_minus_31_of_the_largest(rng, device, dtype):
    """Before the last rounding, a sum's error is at most n * 2^(k - 62) of the voxel's largest value, so at most n * 2^-31."""
    for count in (1, 2, 3, 1000):
        spread = np.exp2(rng.uniform(-90, 0, (count, 4)))
        points, features, grid = in_one_voxel((rng.standard_normal((count, 4)) * spread).astype(dtype))
        out, _ = voxelize(points, features, device, mode=["sum", "mean"], **grid)
        for f in range(4):
            exact = [Fraction(float(x)) for x in features[:, f]]
            largest, k = max(map(abs, exact)), (count - 1).bit_length()
            bound = count * largest * Fraction(2) ** (k - 62)
            assert bound <= count * largest / 2**31
            # Rounding is monotonic: a sum within the bound rounds to a value between the rounded ends.
            total = sum(exact)
            low, high = nearest(total - bound, dtype), nearest(total + bound, dtype)
            assert low <= out["sum"].ravel()[f] <= high
            low, high = nearest((total - bound) / count, dtype), nearest((total + bound) / count, dtype)
            assert low <= out["mean"].ravel()[f] <= high


def test_rule_28_float16_sums_are_exact(rng, device):
    points, features, grid = in_one_voxel(random_values(rng, (3000, 3), np.dtype(np.float16), special=False))
    features[::7] = np.float16(6e-8)
    out, _ = voxelize(points, features, device, mode=["sum", "mean"], **grid)
    for f in range(3):
        total = sum(Fraction(float(x)) for x in features[:, f])
        assert_same_bits(out["sum"].ravel()[f], nearest(total, np.float16))
        assert_same_bits(out["mean"].ravel()[f], nearest(total / 3000, np.float16))


@each_float
def test_rule_28_sums_with_nan_and_infinities(device, dtype):
    inf, nan = np.inf, np.nan
    columns = [[inf, 1], [-inf, 1], [inf, inf], [inf, -inf], [nan, inf], [nan, 1], [1, 2]]
    points, features, grid = in_one_voxel(np.array(columns, np.float64).T.astype(dtype))
    out, _ = check(points, features, device, **grid)
    sums = out["sum"].ravel().astype(np.float64)
    np.testing.assert_array_equal(sums, [inf, -inf, inf, nan, nan, nan, 3])


@each_float
def test_rule_28_sums_beyond_the_dtype_are_infinite_and_their_means_are_not(device, dtype):
    largest = float(ml_dtypes.finfo(dtype).max)
    points, features, grid = in_one_voxel(np.full((3, 1), largest).astype(dtype))
    out, _ = check(points, features, device, **grid)
    assert np.isinf(out["sum"].astype(np.float64)).all()
    assert_same_bits(out["mean"].ravel(), features[0])


# ---- Bits: rule 29 ----


@pytest.mark.parametrize("count", [70_000, 300_000])
def test_rule_29_many_blocks_of_rows_keep_their_order(rng, device, count):
    """Half of all points lie in one voxel; its first and last points are far apart in the order."""
    grid = {"grid_min": (0, 0, 0), "voxel_size": 1, "grid_size": (3, 2, 2)}
    points = rng.uniform(0, (3, 2, 2), (count, 3)).astype(np.float32)
    points[count // 2 :] = 0.5
    features = np.arange(count, dtype=np.int32)[:, None]
    out, _ = voxelize(points, features, device, mode=["first", "last", "count"], **grid)
    voxel, _ = cells(points, **grid)
    voxel_index = np.ravel_multi_index(tuple(voxel.T), (3, 2, 2))
    first = np.full(12, count, np.int32)
    np.minimum.at(first, voxel_index, features[:, 0])
    last = np.zeros(12, np.int32)
    np.maximum.at(last, voxel_index, features[:, 0])
    assert_same_bits(out["first"].ravel(), first)
    assert_same_bits(out["last"].ravel(), last)
    assert_same_bits(out["count"].ravel(), np.bincount(voxel_index, minlength=12).astype(np.int32))
