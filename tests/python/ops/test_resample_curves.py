"""resample_trajectories by curves and rotations, rule by rule, on the CPU and on CUDA."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.compare import assert_same_bits, poisoned, to_numpy, to_torch
from reference.curve_calls import (
    ROTATIONS,
    WIDTHS,
    check,
    each_clock,
    each_curve,
    each_float,
    each_method,
    float32,
    float64,
    random_case,
    random_times,
    random_values,
    resample,
)
from reference.random_streams import CLOCKS, EPOCH_NS, FLOATS, STEPS
from reference.resample import CURVES, resample_curve
from reference.resample import resample as oracle

import robocache

torch = pytest.importorskip("torch")


# ---- Against scipy ----


@each_method
@each_float
@each_clock
def test_every_option_is_within_the_bound_of_scipy(rng, device, method, dtype, clock):
    gap = 12_000_000 if clock == np.int64 else 0.012
    for extrapolate, causal, max_gap in itertools.product(["clamp", "nan", "linear"], [False, True], [None, gap]):
        options = {"method": method, "extrapolate": extrapolate, "causal": causal, "max_gap": max_gap}
        values, times, targets = random_case(rng, dtype, clock, method=method)
        check(values, times, targets, device, lengths=rng.integers(0, 18, 3), **options)
        check(values, times, targets, device, target_lengths=rng.integers(0, 38, 3), **options)


@each_curve
@pytest.mark.parametrize("samples", [2, 3, 4, 5, 6, 7, 100, 3000])
@each_clock
def test_every_sample_count_is_within_the_bound(rng, device, method, samples, clock):
    for dtype, features in ((float64, 5), (float32, 5), (float32, 16)):
        case = random_case(rng, dtype, clock, batch=2, samples=samples, targets=200, features=features, special=False)
        for extrapolate in ("clamp", "linear"):
            check(*case, device, method=method, extrapolate=extrapolate)


@each_curve
@each_float
@pytest.mark.parametrize("features", [1, 2, 3, 7, 8, 12, 14, 16, 63, 64, 65, 130, 257])
def test_every_feature_count_is_within_the_bound(rng, device, method, dtype, features):
    case = random_case(rng, dtype, np.dtype(np.float64), batch=2, features=features, special=False)
    check(*case, device, method=method)


@pytest.mark.parametrize("method", ["pchip", "akima", "cubic", "slerp"])
@pytest.mark.parametrize("targets", [1, 2, 31, 33, 127, 255, 256, 257, 1025])
def test_every_target_count_is_within_the_bound(rng, device, method, targets):
    case = random_case(rng, FLOATS[2], np.dtype(np.int64), method=method, batch=2, targets=targets)
    check(*case, device, method=method)


any_value = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6, width=32, allow_subnormal=False))


@each_method
@given(data=st.data())
def test_any_small_row_is_within_the_bound(device, method, data):
    clock, dtype = data.draw(st.sampled_from(CLOCKS)), data.draw(st.sampled_from(FLOATS[:2]))
    times = 2 * np.array(data.draw(st.lists(st.integers(0, 9), max_size=10).map(sorted)), np.int64)
    targets = np.array(data.draw(st.lists(st.integers(-3, 22), max_size=8)), np.int64)
    times, targets = (x + EPOCH_NS if clock == np.int64 else (x / 2).astype(clock) for x in (times, targets))
    features = WIDTHS.get(method, 2)
    drawn = data.draw(st.lists(any_value, min_size=len(times) * features, max_size=len(times) * features))
    values = np.array(drawn, np.float64).astype(dtype).reshape(len(times), features)
    check(
        values,
        times,
        targets,
        device,
        method=method,
        extrapolate=data.draw(st.sampled_from(["clamp", "nan", "linear"])),
    )


@each_method
@each_clock
def test_rule_10_cpu_and_cuda_agree_within_the_sum_of_their_bounds(rng, cuda, method, clock):
    for dtype in FLOATS:
        case = random_case(rng, dtype, clock, method=method, batch=9, samples=300, targets=700)
        expected = resample_curve(*case, method=method)
        on_cpu, on_cuda = (resample(*case, device, method=method)[0].astype(np.float64) for device in ("cpu", cuda))
        difference = np.abs(on_cpu - on_cuda)
        assert (np.isnan(difference) | (difference <= 2 * expected.bound)).all()


def test_a_pchip_does_not_overshoot(rng, device):
    values = np.cumsum(rng.integers(0, 2, (200, 9)) * rng.random((200, 9)), axis=0).astype(np.float32)
    times = random_times(rng, 1, 200, np.dtype(np.float64), duplicates=False)[0]
    targets = np.sort(rng.uniform(times[0], times[-1], 3000))
    out, _ = resample(values, times, targets, device, method="pchip")
    before = np.searchsorted(times, targets, side="right") - 1
    after = np.minimum(before + 1, 199)
    slack = 8 * np.finfo(np.float32).eps * np.abs(values[after])
    assert (out >= values[before] - slack).all()
    assert (out <= values[after] + slack).all()


@pytest.mark.parametrize("method", ["akima", "cubic"])
def test_a_straight_line_stays_straight(device, method):
    times = np.array([0, 1, 3, 4, 8, 9, 10], np.float64)
    values = np.stack([2 * times + 1, -times], axis=1)
    targets = np.linspace(-2, 12, 57)
    out, _ = resample(values, times, targets, device, method=method, extrapolate="linear")
    np.testing.assert_allclose(out, np.stack([2 * targets + 1, -targets], axis=1), rtol=0, atol=1e-14)


# ---- Which sample: rules 4 to 7 ----


any_method = pytest.mark.parametrize("method", [*STEPS, "linear", "angle", *CURVES, *ROTATIONS])


def extrapolations(method):
    return ["clamp", "nan"] if method in STEPS else ["clamp", "nan", "linear"]


@any_method
@each_float
@each_clock
def test_rule_4_hits_and_held_samples_keep_every_bit(device, dtype, method, clock):
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3.0, 100.0])
    if method in ROTATIONS:
        values = special[np.arange(6 * WIDTHS[method]).reshape(6, -1) % 8]
    else:
        values = np.array(list(itertools.product(special, repeat=3))).T[[0, 1, 2, 1, 0, 2]]
    with np.errstate(over="ignore"):
        values = values.astype(dtype)
    times = np.array([5, 6, 9, 11, 12, 20]).astype(clock)
    for extrapolate in extrapolations(method):
        out, valid = resample(values, times, times, device, method=method, max_gap=0, extrapolate=extrapolate)
        assert valid.all()
        assert_same_bits(out, values)
    out, valid = resample(values, times, np.array([1, 30]).astype(clock), device, method=method)
    assert_same_bits(out, values[[0, -1]])
    assert not valid.any()


@any_method
@each_clock
def test_rule_5_removing_the_duplicates_changes_nothing(rng, device, method, clock):
    values, times, targets = random_case(rng, float64, clock, method=method, batch=1, samples=60, special=False)
    is_last = np.append(times[0, 1:] != times[0, :-1], True)
    for extrapolate in extrapolations(method):
        options = {"method": method, "extrapolate": extrapolate}
        with_duplicates = resample(values, times, targets, device, **options)
        without_duplicates = resample(values[:, is_last], times[:, is_last], targets, device, **options)
        for array, expected_array in zip(with_duplicates, without_duplicates, strict=True):
            assert_same_bits(array, expected_array)


@each_method
def test_rule_5_many_samples_of_one_time(rng, device, method):
    times = np.repeat([1.0, 2.0, 4.0, 5.0, 7.0], [300, 1, 500, 2, 100])[None]
    values = random_values(rng, (1, times.size, WIDTHS.get(method, 3)), float64, special=False)
    check(values, times, np.linspace(0, 8, 100)[None], device, method=method, extrapolate="linear")


@each_method
@each_float
def test_rule_7_causal_equals_previous(rng, device, method, dtype):
    values, times, targets = random_case(rng, dtype, np.dtype(np.int64), method=method)
    for extrapolate in ("clamp", "nan"):
        options = {"causal": True, "max_gap": 8_000_000, "extrapolate": extrapolate}
        out, valid = resample(values, times, targets, device, method=method, **options)
        expected, expected_valid = oracle(values, times, targets, method="previous", **options)
        assert_same_bits(out, expected)
        assert_same_bits(valid, expected_valid)


# ---- NaN: rule 10 ----


@each_float
def test_rule_10_a_nan_stays_in_its_stencil_and_its_feature(rng, device, dtype):
    times = np.arange(12, dtype=np.float64)
    targets = np.arange(11) + 0.5
    reach = {"pchip": 1, "akima": 2, "cubic": 12}
    for method, nan_row in itertools.product(CURVES, range(12)):
        values = rng.standard_normal((12, 2)).astype(dtype)
        values[nan_row, 1] = np.nan
        out, _ = resample(values, times, np.concatenate([targets, times]), device, method=method)
        left = np.arange(11)
        is_nan = (left - reach[method] <= nan_row) & (nan_row <= left + 1 + reach[method])
        assert (np.isnan(out[:11, 1]) == is_nan).all(), (method, nan_row)
        assert not np.isnan(out[:, 0]).any()
        assert_same_bits(out[11:], values)


@pytest.mark.parametrize("method", ROTATIONS)
@each_float
def test_rule_10_a_nan_changes_only_its_rotation(rng, device, method, dtype):
    values = rng.standard_normal((6, WIDTHS[method])).astype(dtype)
    values[2, -1] = np.nan
    out, _ = resample(values, np.arange(6.0), np.arange(5) + 0.5, device, method=method)
    is_nan = np.isnan(out)
    assert is_nan[1:3, -4:].all()
    assert not is_nan[[0, 3, 4]].any()
    assert not is_nan[:, :-4].any()


# ---- Outside, gaps, no samples: rules 11 to 14 ----


@each_method
@each_float
@each_clock
def test_rule_11_extrapolation_is_straight(rng, device, method, dtype, clock):
    values, times, _ = random_case(rng, dtype, clock, method=method, special=False)
    unit = 1_000_000 if clock == np.int64 else 2.0**-10
    steps = np.array([-1000, -20, -1, 1, 20, 1000]) * unit
    targets = np.where(steps < 0, times[:, :1], times[:, -1:]) + steps.astype(times.dtype)
    for extrapolate in ("clamp", "nan", "linear"):
        check(values, times, targets.astype(times.dtype), device, method=method, extrapolate=extrapolate)


@any_method
@pytest.mark.parametrize("samples", [0, 1, 3])
def test_rule_11_a_row_of_one_time_has_no_bracket(rng, device, method, samples):
    values = rng.standard_normal((samples, WIDTHS.get(method, 3))).astype(np.float32)
    times, targets = np.full(samples, 7, np.float32), np.array([6, 7, 8], np.float32)
    for extrapolate in extrapolations(method):
        out, valid = resample(values, times, targets, device, method=method, extrapolate=extrapolate)
        assert valid.tolist() == [False, samples > 0, False]
        last_values = values[-1] if samples else np.full(values.shape[1], np.nan, np.float32)
        outside_values = np.full_like(last_values, np.nan) if extrapolate == "nan" else last_values
        assert_same_bits(out, np.stack([outside_values, last_values, outside_values]))


@each_method
@each_clock
def test_rule_12_a_bracket_longer_than_max_gap_is_invalid(rng, device, method, clock):
    values, times, targets = random_case(rng, float32, clock, method=method)
    gaps = np.diff(times[0])
    for max_gap in (gaps.max(), gaps.min(), np.sort(gaps)[len(gaps) // 2]):
        for extrapolate in ("clamp", "nan"):
            check(values, times, targets, device, method=method, max_gap=max_gap.item(), extrapolate=extrapolate)


@pytest.mark.parametrize("method", ["linear", "nearest", *CURVES, *ROTATIONS])
@each_float
@each_clock
def test_rule_13_past_target_lengths_values_are_absent(rng, device, method, dtype, clock):
    values, times, targets = random_case(rng, dtype, clock, method=method, batch=4)
    for lengths_dtype in (np.int32, np.int64):
        lengths = np.array([0, 5, 37, 20], lengths_dtype)
        out, valid = resample(values, times, targets, device, method=method, target_lengths=lengths)
        unlimited, unlimited_valid = resample(values, times, targets, device, method=method)
        is_within_length = np.arange(37) < lengths[:, None]
        assert_same_bits(valid, unlimited_valid & is_within_length)
        assert_same_bits(out, np.where(is_within_length[..., None], unlimited, np.nan).astype(dtype))


@pytest.mark.parametrize("dtype", ["int16", "bool"])
def test_rule_13_past_target_lengths_integers_are_0(device, dtype):
    values = np.ones((1, 3, 2), dtype)
    out, valid = resample(
        values, np.arange(3.0), np.arange(3.0), device, method="nearest", target_lengths=np.array([1])
    )
    assert out[0].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert valid.tolist() == [[True, False, False]]


def test_rule_15_target_lengths_outside_the_targets_are_cut_on_cuda(cuda):
    values = np.ones((2, 3, 1))
    out, _ = resample(values, np.arange(3.0), np.arange(3.0), cuda, target_lengths=np.array([-1, 9]))
    assert np.isnan(out[0]).all() and (out[1] == 1).all()


@each_method
@each_clock
def test_rule_14_unsorted_and_nan_times_stay_inside_their_row(rng, device, method, clock):
    """The rows before and after are NaN: a value read outside the row would show."""
    width = WIDTHS.get(method, 3)
    for samples in (1, 2, 3, 5, 17, 300):
        values = np.full((5, samples, width), np.nan, np.float32)
        values[[1, 3]] = rng.uniform(0.5, 1, (2, samples, width))
        times = rng.permutation(random_times(rng, 5, samples, clock), axis=1)
        if clock != np.int64:
            times[rng.random(times.shape) < 0.3] = np.nan
        targets = rng.choice(np.concatenate([times.ravel(), times.ravel()[::-1]]), (5, 64)).astype(clock)
        for extrapolate in ("clamp", "linear"):
            resample(values, times, targets, device, method=method, extrapolate=extrapolate)


# ---- Arguments: rule 15 ----


@each_method
@each_float
def test_rule_15_any_strides(rng, device, method, dtype):
    values, times, targets = random_case(rng, dtype, np.dtype(np.float64), method=method, batch=4)
    expected, expected_valid = resample(values, times, targets, device, method=method)
    spread = to_torch(np.repeat(np.repeat(values, 2, axis=2), 3, axis=1), device)[:, ::3, ::2]
    permuted = to_torch(np.ascontiguousarray(values.transpose(2, 0, 1)), device).permute(1, 2, 0)
    padded = poisoned((4, 17, values.shape[2] + 1), spread.dtype, device)
    padded[..., 1:] = to_torch(values, device)
    for form in (spread, permuted, padded[..., 1:]):
        out, valid = robocache.resample_trajectories(
            form, to_torch(times, device), to_torch(targets, device), method=method, return_valid=True
        )
        assert_same_bits(to_numpy(out), expected)
        assert_same_bits(to_numpy(valid), expected_valid)
    row = to_torch(values[:1], device).expand(4, -1, -1)
    out = robocache.resample_trajectories(row, to_torch(times[0], device), to_torch(targets, device), method=method)
    repeated, _ = resample(np.repeat(values[:1], 4, axis=0), times[0], targets, device, method=method)
    assert_same_bits(to_numpy(out), repeated)


@each_method
def test_a_gap_of_a_nanosecond_beside_one_of_a_month(device, method):
    times = EPOCH_NS + np.array([0, 1, 2, 2_592_000_000_000_000, 2_592_000_000_000_001, 2_592_000_000_000_100])
    values = np.random.default_rng(3).standard_normal((6, WIDTHS.get(method, 3)))
    targets = EPOCH_NS + np.array([10**9, 10**15, 2_592_000_000_000_050])
    for dtype in (float64, float32):
        check(values.astype(dtype), times, targets, device, method=method)
