"""Affines from statistics, and arrays normalised by them: their values equal a batch's."""

import pickle

import ml_dtypes
import numpy as np
import pytest
import torch
from reference import normalisation as oracle
from reference.arithmetic import fma
from reference.compare import assert_same_bits, to_numpy
from robocache.affine import Affine
from robocache.dataset import Stats

import robocache

FIELDS = list(Stats._fields)


# ---- affines: LeRobot's and openpi's numbers ----


def random_stats(rng, shape, dtype=np.float32):
    stats = oracle.stats_of(rng.standard_normal((200, *shape)).astype(dtype) * 3 + 1)
    return {field: np.asarray(array, dtype).astype(np.float64) for field, array in stats.items()}


@pytest.mark.parametrize("mode", oracle.MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("peer", ["lerobot", "openpi"])
def test_a_feature_with_spread_has_the_peers_numbers(rng, mode, dtype, peer):
    stats, x = random_stats(rng, (6,), dtype), rng.standard_normal((50, 4, 6)).astype(dtype)
    affine = Affine.of(stats, mode, shape=(6,), dtype=dtype, constant=peer)
    peer_function = getattr(oracle, peer)
    # A few roundings of terms up to |x| / spread and |centre| / spread.
    bound = 8 * np.finfo(dtype).eps * (1 + (np.abs(x) + np.abs(affine.centre)) / affine.spread)
    assert (np.abs(affine.normalize(x) - peer_function(x, stats, mode)) <= bound).all()
    # LeRobot adds its 1e-8 to std when it divides, but not when it multiplies.
    bound = 8 * np.finfo(dtype).eps * (np.abs(x) * affine.spread + np.abs(affine.centre)) + 1e-8 * np.abs(x)
    bound += 8 * np.finfo(dtype).eps * affine.spread
    assert (np.abs(affine.unnormalize(x) - peer_function(x, stats, mode, inverse=True)) <= bound).all()


@pytest.mark.parametrize("mode", oracle.MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("peer", ["lerobot", "openpi"])
def test_a_feature_without_spread_has_the_peers_number(rng, mode, dtype, peer):
    x = np.concatenate([[0, 1, 0.1, 3.5, -1e-12, 1e12, 1e30], rng.standard_normal(200)]).astype(dtype)
    stats = {field: np.float64(x) for field in FIELDS} | {"std": np.zeros(len(x)), "count": 3}
    affine = Affine.of(stats, mode, shape=x.shape, dtype=dtype, constant=peer)
    got, expected = affine.normalize(x), getattr(oracle, peer)(x, stats, mode)
    assert set(np.unique(expected)) == {0 if mode == "mean_std" else -1}
    assert (np.abs(got - expected) <= np.finfo(dtype).eps).all()
    unnormalized = affine.unnormalize(expected)
    bound = 2 * np.finfo(dtype).eps * (np.abs(x) + np.abs(affine.centre[0]).astype(np.float64))
    assert (np.abs(unnormalized.astype(np.float64) - x) <= bound).all()
    centred = Affine.of(stats, mode, shape=x.shape, dtype=dtype)
    assert (centred.normalize(x) == 0).all() and (centred.normalize(x[:1] + 1 + 0 * x) == 1 - x).all()


def test_statistics_without_an_affine_are_refused(rng):
    stats = random_stats(rng, (3,))
    fewer_fields = {field: stats[field] for field in ("mean", "std", "q01", "q99")}
    for message, arguments in {
        r"stats\['a'\]: 'q10_q90' expects q10 and q90, got mean, std, q01, q99": (fewer_fields, "q10_q90"),
        r"normalize: expected 'none', 'mean_std', .*, got 'zscore'": (stats, "zscore"),
    }.items():
        with pytest.raises(robocache.ArgumentError, match=message):
            Affine.of(*arguments, shape=(3,), name="stats['a']")
    with pytest.raises(robocache.ArgumentError, match=r"norm_stats.mean: expected 4 numbers, one a feature, got 3"):
        Affine.of(stats, "mean_std", shape=(4,))
    with pytest.raises(robocache.ArgumentError, match=r"norm_stats.mean: expected 2 numbers.*got 3"):
        Affine.of(stats, "mean_std", shape=(2,))
    with pytest.raises(robocache.ArgumentError, match="constant: expected 'center', 'lerobot' or 'openpi', got 'mean'"):
        Affine.of(stats, "mean_std", shape=(3,), constant="mean")


def test_statistics_padded_by_openpi_are_accepted(rng):
    stats = random_stats(rng, (7,))
    padded = {field: np.pad(stats[field], (0, 25)) for field in ("mean", "std", "q01", "q99")}
    for mode in ("mean_std", "q01_q99"):
        for part in ("scale", "shift", "spread", "centre"):
            got = getattr(Affine.of(padded, mode, shape=(7,), constant="openpi"), part)
            assert_same_bits(got, getattr(Affine.of(stats, mode, shape=(7,), constant="openpi"), part))


# ---- on arrays ----


def affine_of(scale, shift):
    return Affine(scale[None], shift[None], scale[None], shift[None])


def bound_of(x, y, expected, dtype):
    """Returns how far float64 arithmetic may be from one fma: a rounding more for float32, the product's for float64."""
    ulp = np.spacing(np.abs(expected.astype(dtype))).astype(np.float64)
    return ulp if dtype == "float32" else ulp + 2.0**-53 * np.abs(x * y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_array_is_normalised_within_a_rounding_of_the_batchs_fma(rng, dtype, device):
    sign, power = rng.choice([-1, 1], (3, 200_000)), rng.uniform(-20, 20, (3, 200_000))
    x, y, z = (sign * np.exp2(power)).astype(dtype)
    expected = fma(x, y, z, dtype)
    affine = affine_of(y, z)
    result = to_numpy(affine.normalize(torch.from_numpy(x).to(device)))
    assert (np.abs(result.astype(np.float64) - expected) <= bound_of(x, y, expected, dtype)).all()
    assert dtype == "float64" or (result == expected).mean() > 0.9999
    assert_same_bits(to_numpy(affine.unnormalize(torch.from_numpy(x).to(device))), result)
    if device == "cpu":
        assert_same_bits(affine.normalize(x), result)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_infinities_nan_and_the_ends_of_the_range(dtype, device):
    largest, smallest = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, largest, -largest, smallest, 0.1, 1e-3], dtype)
    x, y, z = (part.ravel() for part in np.meshgrid(special, special[np.isfinite(special)], special[:9]))
    is_finite = np.isfinite(z)
    x, y, z = x[is_finite], y[is_finite], z[is_finite]
    expected = fma(x, y, z, dtype)
    result = to_numpy(affine_of(y, z).normalize(torch.from_numpy(x).to(device)))
    with np.errstate(all="ignore"):
        overflows = np.isinf(x * y) & np.isfinite(expected) & (dtype == "float64")
        is_close = np.abs(result.astype(np.float64) - expected) <= bound_of(x, y, expected, dtype)
    assert (is_close | overflows | (result == expected) | (np.isnan(result) & np.isnan(expected))).all()
    assert (np.signbit(result) == np.signbit(expected))[(result == 0) & (expected == 0)].all()
    if device == "cpu":
        assert_same_bits(affine_of(y, z).normalize(x), result)


@pytest.mark.parametrize("constant", ["center", "lerobot", "openpi"])
@pytest.mark.parametrize("mode", oracle.MODES)
def test_normalisation_round_trips(rng, device, mode, constant):
    rows = rng.standard_normal((500, 40)) * np.exp2(rng.integers(-18, 10, 40)) + rng.normal(0, 2, 40)
    rows[:, ::8] = rows[0, ::8]
    for dtype in ("float32", "float64", "float16", ml_dtypes.bfloat16):
        x = rows.astype(dtype)
        exact = x.astype(np.float64)
        work_dtype = "float64" if dtype == "float64" else "float32"
        affine = Affine.of(oracle.stats_of(exact), mode, shape=(40,), dtype=work_dtype, constant=constant)
        tensor = torch.from_numpy(exact).to(device, getattr(torch, np.dtype(dtype).name))
        unnormalized = to_numpy(affine.unnormalize(affine.normalize(tensor)))
        assert unnormalized.dtype == x.dtype
        u, roundings = (2.0**-53, 6) if dtype == "float64" else (2.0**-24, 4)
        bound = roundings * u * (np.abs(exact) + np.abs(affine.centre.astype(np.float64))) * (1 + 8 * u)
        if dtype not in ("float32", "float64"):
            # Both results are rounded to the narrower type.
            eps = float(ml_dtypes.finfo(dtype).eps)
            y = np.abs(affine.normalize(x).astype(np.float64))
            bound += eps * (y * affine.spread + np.abs(exact))
            bound += float(ml_dtypes.finfo(dtype).tiny) * (affine.spread + 1)
            bound = np.where(np.isfinite(y), bound, np.inf)
        assert ((np.abs(unnormalized.astype(np.float64) - exact) <= bound) | (bound == np.inf)).all()


def test_each_row_is_normalised_by_its_source(rng, device):
    stats = [random_stats(rng, (5,)) for _ in range(3)]
    affine = Affine.of_sources([Affine.of(s, "mean_std", shape=(5,)) for s in stats])
    assert affine.scale.shape == (3, 5)
    x = rng.standard_normal((8, 4, 5)).astype(np.float32)
    index = np.array([0, 2, 1, 1, 0, 2, 2, 0])
    scale, shift = (np.broadcast_to(part[index][:, None], x.shape) for part in (affine.scale, affine.shift))
    expected = fma(x, scale, shift, np.float32)
    tensor, tensor_index = torch.from_numpy(x).to(device), torch.from_numpy(index).to(device)
    for rows in (tensor_index, index, index.tolist(), tensor_index.int()):
        assert_same_bits(to_numpy(affine.normalize(tensor, rows)), expected)
    assert_same_bits(affine.normalize(x, index), expected)
    assert_same_bits(affine.normalize(x[:, 0], index), expected[:, 0])
    assert_same_bits(affine.normalize(x[1], 2), expected[1])
    unpickled = pickle.loads(pickle.dumps(affine))
    assert_same_bits(to_numpy(unpickled.normalize(tensor, tensor_index)), expected)


def test_narrower_sources_leave_missing_features(rng):
    wide, narrow = random_stats(rng, (4,)), random_stats(rng, (2,))
    wide_affine, narrow_affine = Affine.of(wide, "min_max", shape=(4,)), Affine.of(narrow, "min_max", shape=(2,))
    affine = Affine.of_sources([wide_affine, narrow_affine, Affine.of(None, None, shape=(4,))])
    x = rng.standard_normal((3, 4)).astype(np.float32)
    y = affine.normalize(x, [0, 1, 2])
    assert_same_bits(y[1, 2:], x[1, 2:])
    assert_same_bits(y[2], x[2])
    assert_same_bits(y[1, :2], narrow_affine.normalize(x[1, :2]))
    same_twice = Affine.of_sources([wide_affine] * 2)
    assert_same_bits(same_twice.normalize(x), same_twice.normalize(x, [0, 1, 0]))
    scalars = Affine.of_sources([Affine.of({"mean": 1.0, "std": s}, "mean_std", shape=()) for s in (1.0, 2.0)])
    assert scalars.normalize(np.full((2, 3), 3, np.float32), [0, 1]).tolist() == [[2] * 3, [1] * 3]


def test_gradients_go_to_x(rng, device):
    affine = Affine.of_sources(
        [Affine.of(random_stats(rng, (3,), np.float64), "q10_q90", shape=(3,), dtype="float64") for _ in "ab"]
    )
    index = torch.tensor([0, 1], device=device)
    x = torch.tensor(rng.standard_normal((2, 4, 3)), device=device, requires_grad=True)
    for call in (affine.normalize, affine.unnormalize):
        assert torch.autograd.gradcheck(lambda x, call=call: call(x, index), x)
        assert torch.autograd.gradgradcheck(lambda x, call=call: call(x, index) ** 2, x)
    rounded = x.detach().bfloat16().requires_grad_()
    affine.unnormalize(rounded, index).sum().backward()
    assert rounded.grad.dtype == torch.bfloat16
    spread = torch.from_numpy(affine.spread).to(device)[:, None].expand(2, 4, 3)
    torch.testing.assert_close(rounded.grad, spread.bfloat16(), rtol=0, atol=0)
    by_row = torch.func.vmap(lambda row: affine.normalize(row, 0))(x.detach())
    torch.testing.assert_close(by_row, affine.normalize(x.detach(), 0), rtol=0, atol=0)


def test_invalid_arrays_are_refused_by_name(rng):
    affine = Affine.of_sources([Affine.of(random_stats(rng, (3,)), "mean_std", shape=(3,)) for _ in "ab"])
    x = np.zeros((2, 4, 3), np.float32)
    for message, call in {
        "x: expected a numpy array or a torch tensor, got list": lambda: affine.normalize([1.0, 2.0, 3.0], 0),
        "x: expected floats, got int64": lambda: affine.normalize(x.astype(np.int64), 0),
        "x: expected floats, got torch.int32": lambda: affine.normalize(torch.zeros(3, dtype=torch.int32), 0),
        r"x: expected \[..., 3\], got \(2, 4, 2\)": lambda: affine.normalize(x[..., :2], 0),
        r"x: expected \[..., 3\], got \(\)": lambda: affine.normalize(np.zeros((), np.float32), 0),
        "without a mask": lambda: affine.normalize(np.ma.masked_array(x), 0),
        "dataset_index: expected the source of each row, since 2": lambda: affine.normalize(x),
        r"dataset_index: expected in \[0, 2\), got 2": lambda: affine.normalize(x, 2),
        r"dataset_index: expected in \[0, 2\), got from -1 to 1": lambda: affine.normalize(x, [-1, 1]),
        r"dataset_index: expected in \[0, 2\), got from 0 to 2": lambda: affine.normalize(x, torch.tensor([0, 2])),
        r"dataset_index: expected \[B\] .*got \(3,\)": lambda: affine.normalize(x, [0, 1, 0]),
        "dataset_index: expected integers, got float64": lambda: affine.normalize(x, [0.0, 1.0]),
        "dataset_index: expected integers, got torch.bool": lambda: affine.normalize(x, torch.tensor([True, False])),
        "dataset_index: expected a whole number, got True": lambda: affine.normalize(x, True),
    }.items():
        with pytest.raises(robocache.Error, match=message):
            call()


def test_an_empty_batch_takes_an_empty_list_of_sources():
    affine = Affine.of(None, None, shape=(3,))
    assert affine.normalize(np.zeros((0, 3)), []).shape == (0, 3)
