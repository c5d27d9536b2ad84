"""resample_trajectories, rule by rule, bit for bit against the NumPy oracle, on the CPU and on CUDA."""

import gc
import hashlib
import itertools
import os
import subprocess
import sys
import time
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.compare import OnlyDLPack, assert_same_bits, poisoned, to_numpy, to_torch
from reference.random_streams import CLOCKS, EPOCH_NS, FLOATS, STEPS, WHOLE, random_targets, random_times, random_values
from reference.resample import resample as oracle

import robocache

torch = pytest.importorskip("torch")


def name_of(parameter):
    return parameter.name if isinstance(parameter, np.dtype) else None


each_float = pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
each_whole = pytest.mark.parametrize("dtype", WHOLE, ids=name_of)
each_clock = pytest.mark.parametrize("clock", CLOCKS, ids=name_of)
each_step = pytest.mark.parametrize("step", STEPS)


def resample(values, times, targets, device="cpu", **options):
    """(out, valid) as NumPy arrays, of NumPy arrays that go through torch on `device`."""
    if isinstance(options.get("lengths"), np.ndarray):
        options["lengths"] = to_torch(options["lengths"], device)
    out, valid = robocache.resample_trajectories(
        to_torch(values, device), to_torch(times, device), to_torch(targets, device), return_valid=True, **options
    )
    assert out.device.type == valid.device.type == device
    return to_numpy(out), to_numpy(valid)


def check(values, times, targets, device="cpu", **options):
    """Compares values and validity with the oracle, by bits."""
    out, valid = resample(values, times, targets, device, **options)
    expected_out, expected_valid = oracle(values, times, targets, **options)
    assert_same_bits(valid, expected_valid, f"valid, {options}")
    assert_same_bits(out, expected_out, f"values, {options}")


def random_case(rng, dtype, clock, *, batch=3, samples=17, targets=37, features=5, special=True):
    times = random_times(rng, batch, samples, clock)
    return random_values(rng, (batch, samples, features), dtype, special), times, random_targets(rng, times, targets)


def ramp(samples=5, features=2, dtype=np.float32, clock=np.float32):
    """values[s, d] = 10 s + d at the times 0, 1, 2, ..."""
    values = (10 * np.arange(samples)[:, None] + np.arange(features)).astype(dtype)
    return values, np.arange(samples).astype(clock)


# ---- The whole of it against the oracle ----


def every_option(dtype, clock):
    """Every legal combination of method, extrapolate, causal, max_gap and tolerance."""
    duration = 12_000_000 if clock == np.int64 else 0.012
    for method in [*STEPS, "linear"] if dtype in FLOATS else STEPS:
        step = method != "linear"
        for extrapolate, causal, max_gap, tolerance in itertools.product(
            ["clamp", "nan"] if step else ["clamp", "nan", "linear"],
            [False] if method == "next" else [False, True],
            [None, duration],
            [None, duration // 3 if clock == np.int64 else duration / 3] if step else [None],
        ):
            if causal and extrapolate == "linear":
                continue
            yield {
                "method": method,
                "extrapolate": extrapolate,
                "causal": causal,
                "max_gap": max_gap,
                "tolerance": tolerance,
            }


@pytest.mark.parametrize("dtype", FLOATS + WHOLE, ids=name_of)
@each_clock
def test_every_option_gives_the_oracles_bits(rng, device, dtype, clock):
    for options in every_option(dtype, clock):
        check(*random_case(rng, dtype, clock), device, **options)
        values, times, targets = random_case(rng, dtype, clock)
        check(values, times, targets, device, lengths=rng.integers(0, 18, 3), **options)


@pytest.mark.parametrize("features", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 200, 257])
@each_float
def test_every_feature_count_gives_the_oracles_bits(rng, device, dtype, features):
    check(*random_case(rng, dtype, np.dtype(np.float32), batch=2, features=features), device)
    check(*random_case(rng, dtype, np.dtype(np.int64), batch=2, features=features), device, method="nearest")


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 31, 32, 33, 127, 128, 129, 1000, 5000, 20_000])
@each_clock
def test_every_sample_count_gives_the_oracles_bits(rng, device, clock, samples):
    case = random_case(rng, np.dtype(np.float32), clock, batch=2, samples=samples, features=3)
    check(*case, device)
    check(*case, device, method="previous", extrapolate="nan")


@pytest.mark.parametrize("targets", [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1025])
def test_every_target_count_gives_the_oracles_bits(rng, device, targets):
    case = random_case(rng, np.dtype(np.float16), np.dtype(np.float64), batch=2, targets=targets, features=12)
    check(*case, device)
    check(*case, device, method="next")


small_times = st.lists(st.integers(0, 6), min_size=0, max_size=8).map(sorted)
any_float = st.floats(width=32, allow_subnormal=True)


@given(data=st.data())
def test_any_small_row_gives_the_oracles_bits(device, data):
    clock = data.draw(st.sampled_from(CLOCKS))
    dtype = data.draw(st.sampled_from(FLOATS + WHOLE))
    features = data.draw(st.integers(0, 3))
    times = 2 * np.array(data.draw(small_times), np.int64)
    targets = np.array(data.draw(st.lists(st.integers(-2, 16), max_size=6)), np.int64)
    if clock == np.int64:
        times, targets = times + EPOCH_NS, targets + EPOCH_NS
    else:
        times, targets = (times / 2).astype(clock), (targets / 2).astype(clock)
    if dtype in FLOATS:
        element = any_float
    else:
        element = (
            st.booleans() if dtype.kind == "b" else st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        )
    count = len(times) * features
    values = np.array(data.draw(st.lists(element, min_size=count, max_size=count)))
    with np.errstate(over="ignore"):
        values = values.astype(dtype).reshape(len(times), features)
    options = data.draw(st.sampled_from(list(every_option(dtype, clock))))
    for name in ("max_gap", "tolerance"):
        if options[name] is not None:
            options[name] = data.draw(st.integers(0, 5))
    check(values, times, targets, device, **options)


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int32), np.dtype(bool)], ids=name_of)
@each_clock
def test_cpu_and_cuda_give_the_same_bits(rng, cuda, dtype, clock):
    for options in every_option(dtype, clock):
        case = random_case(rng, dtype, clock, batch=9, samples=300, targets=700, features=24)
        for cpu_array, cuda_array in zip(
            resample(*case, "cpu", **options), resample(*case, cuda, **options), strict=True
        ):
            assert_same_bits(cuda_array, cpu_array, str(options))


@pytest.mark.parametrize(
    ("batch", "samples", "targets", "features"),
    [(70_000, 3, 2, 1), (1, 4, 70_001, 3), (2, 70_001, 50, 2), (1, 3, 5, 70_001), (65_536, 2, 1, 2)],
)
def test_any_dimension_may_pass_65535(rng, device, batch, samples, targets, features):
    case = random_case(
        rng,
        np.dtype(np.float32),
        np.dtype(np.float64),
        batch=batch,
        samples=samples,
        targets=targets,
        features=features,
    )
    check(*case, device)


def test_this_is_the_documented_example(device):
    src = torch.randn(2, 10, 16, dtype=torch.bfloat16, device=device)
    src_t = torch.linspace(0, 1, 10, device=device).unsqueeze(0).expand(2, -1)
    tgt_t = torch.linspace(0, 1, 8, device=device).unsqueeze(0).expand(2, -1)
    out = robocache.resample_trajectories(src, src_t, tgt_t)
    assert out.shape == (2, 8, 16)
    assert out.dtype == torch.bfloat16
    assert out.device == src.device
    assert_same_bits(to_numpy(out), oracle(to_numpy(src), to_numpy(src_t), to_numpy(tgt_t))[0])


# ---- Time: rules 1 to 3 ----


@pytest.mark.parametrize("clock", ["float16", "int32", "uint64", "bool"])
def test_rule_1_other_clocks_are_refused(device, clock):
    values, times = (to_torch(x, device) for x in ramp())
    times = times.to(getattr(torch, clock))
    with pytest.raises(robocache.ArgumentTypeError, match=rf"(?s)times.*{clock}"):
        robocache.resample_trajectories(values, times, times)


def test_rule_1_times_and_targets_share_one_type(device):
    values, times = (to_torch(x, device) for x in ramp())
    with pytest.raises(
        robocache.ArgumentTypeError, match=r"(?s)target_times.*float32.*float64|target_times.*float64.*float32"
    ):
        robocache.resample_trajectories(values, times, times.double())


def test_rule_2_int64_durations_are_nanoseconds(device):
    values, times = ramp(clock=np.int64)
    times = EPOCH_NS + times * 1000
    check(values, times, times[:-1] + 500, device, max_gap=999)
    check(values, times, times[:-1] + 500, device, max_gap=1000)
    _, valid = resample(values, times, times[:-1] + 500, device, max_gap=1000.0)  # whole
    assert valid.all()


@pytest.mark.parametrize("duration", ["max_gap", "tolerance"])
def test_rule_2_a_broken_number_of_nanoseconds_is_refused(device, duration):
    values, times = ramp(clock=np.int64)
    with pytest.raises(robocache.Error, match=rf"(?s){duration}.*0\.5") as caught:
        resample(values, times, times, device, method="previous", **{duration: 0.5})
    assert isinstance(caught.value, ValueError | TypeError)


@pytest.mark.parametrize("duration", ["max_gap", "tolerance"])
@pytest.mark.parametrize("value", [-1, -1e-9, float("nan")])
@each_clock
def test_rule_2_a_negative_or_nan_duration_is_refused(device, clock, duration, value):
    values, times = ramp(clock=clock)
    with pytest.raises(robocache.ArgumentError, match=duration):
        resample(values, times, times, device, method="previous", **{duration: value})


@pytest.mark.parametrize("duration", ["max_gap", "tolerance"])
@pytest.mark.parametrize("value", ["1", [1.0], 1j])
def test_rule_2_a_duration_is_a_number(device, duration, value):
    values, times = ramp()
    with pytest.raises(robocache.ArgumentTypeError, match=duration):
        resample(values, times, times, device, method="previous", **{duration: value})


@pytest.mark.parametrize("value", [0, float("inf")])
def test_rule_2_zero_and_infinite_durations_are_durations(device, value):
    values, times = ramp()
    targets = np.array([0.5, 1.0, 2.25], np.float32)
    for options in ({"max_gap": value}, {"tolerance": value}):
        check(values, times, targets, device, method="nearest", **options)


def test_rule_2_a_duration_is_compared_in_the_clocks_type(device):
    # float32(0.1) is above 0.1: compared in float64 the equal bracket would be too long.
    values, times = ramp(samples=2)
    times = times * np.float32(0.1)
    _, valid = resample(values, times, np.array([0.05], np.float32), device, max_gap=0.1)
    assert valid.all()


@pytest.mark.parametrize("method", [*STEPS, "linear"])
def test_rule_2_int64_differences_of_2_63_and_more(device, method):
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    times = np.array([low, high], np.int64)
    targets = np.array([low, low + 1, -1, 0, 1, high - 1, high], np.int64)
    values = np.array([[-1.0], [1.0]], np.float64)
    check(values, times, targets, device, method=method)
    check(values, times, targets, device, method=method, max_gap=high)
    for middle in (-5, 0, 5):
        check(values[[0, 1, 1]], np.array([low, middle, high], np.int64), targets, device, method=method)


def test_rule_2_epoch_nanoseconds_are_exact_to_the_nanosecond(device):
    times = EPOCH_NS + np.array([0, 1, 2, 3, 1000], np.int64)
    values = np.arange(5, dtype=np.float32)[:, None]
    targets = np.arange(EPOCH_NS - 2, EPOCH_NS + 1003, dtype=np.int64)
    for method in [*STEPS, "linear"]:
        check(values, times, targets, device, method=method)
    out, _ = resample(values, times, targets[2:6], device, method="previous")
    assert out[:, 0].tolist() == [0, 1, 2, 3]


@each_float
@each_clock
def test_rule_3_one_division_one_fma_one_rounding(rng, device, dtype, clock):
    """Many weights between few samples of one magnitude: a reciprocal, an epsilon or a fused difference shows."""
    times = random_times(rng, 4, 9, clock, duplicates=False)
    targets = (times[:, :1] + rng.uniform(0, 1, (4, 2000)) * (times[:, -1:] - times[:, :1])).astype(clock)
    values = rng.uniform(-2, 2, (4, 9, 3)).astype(dtype)
    check(values, times, targets, device)
    check(values, times, targets, device, extrapolate="linear")


def test_rule_3_the_weight_of_float32_values_on_a_float64_clock_is_divided_in_float64(device):
    # 1/3 - 2^-26: float64 tells the times apart, float32 would not.
    times = np.array([0.0, 3.0])
    targets = np.array([1.0, 1.0 + 2.0**-24, 1.0 - 2.0**-24, 2.0 + 2.0**-30])
    check(np.array([[0.0], [3e6]], np.float32), times, targets, device)


# ---- Which sample: rules 4 to 7 ----


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("method", [*STEPS, "linear"])
@each_clock
def test_rule_4_a_hit_returns_its_sample_whatever_the_neighbours_hold(device, dtype, method, clock):
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3.0], np.float64)
    with np.errstate(over="ignore"):
        values = np.array(list(itertools.product(special, special, special)), np.float64).T.astype(dtype)
    times = np.array([5, 6, 9]).astype(clock)
    out, valid = resample(values, times, times, device, method=method, max_gap=0)
    assert valid.all()
    assert_same_bits(out, values)


@pytest.mark.parametrize("method", [*STEPS, "linear"])
def test_rule_4_minus_zero_hits_zero(device, method):
    values, times = ramp()
    out, valid = resample(values, times, np.array([-0.0], np.float32), device, method=method, extrapolate="nan")
    assert valid.all()
    assert_same_bits(out, values[:1])


def test_rule_5_only_the_last_sample_of_each_time_is_there(device):
    values = np.array([[1], [2], [3], [4], [5], [6]], np.float32)
    times = np.array([0, 0, 1, 1, 1, 2], np.float32)
    targets = np.array([-1, 0, 0.5, 1, 1.5, 2, 3], np.float32)
    out, _ = resample(values, times, targets, device)
    assert out[:, 0].tolist() == [2, 2, 3.5, 5, 5.5, 6, 6]
    out, _ = resample(values, times, targets, device, method="next")
    assert out[:, 0].tolist() == [2, 2, 5, 5, 6, 6, 6]
    out, _ = resample(values, times, targets, device, extrapolate="linear")
    assert out[:, 0].tolist() == [-1, 2, 3.5, 5, 5.5, 6, 7]


@pytest.mark.parametrize("method", [*STEPS, "linear"])
@each_clock
def test_rule_5_removing_the_duplicates_changes_nothing(rng, device, method, clock):
    values, times, targets = random_case(rng, np.dtype(np.float64), clock, batch=1, samples=60, special=False)
    last = np.append(times[0, 1:] != times[0, :-1], True)
    for extrapolate in ("clamp", "nan") if method in STEPS else ("clamp", "nan", "linear"):
        options = {"method": method, "extrapolate": extrapolate}
        with_duplicates = resample(values, times, targets, device, **options)
        without = resample(values[:, last], times[:, last], targets, device, **options)
        for one, other in zip(with_duplicates, without, strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("method", [*STEPS, "linear"])
@pytest.mark.parametrize("extrapolate", ["clamp", "nan", "linear"])
def test_rule_5_a_row_of_one_time_is_a_row_of_one_sample(device, method, extrapolate):
    if method in STEPS and extrapolate == "linear":
        return
    values = np.array([[1], [2], [3]], np.float32)
    check(
        values,
        np.full(3, 7, np.float32),
        np.array([6, 7, 8], np.float32),
        device,
        method=method,
        extrapolate=extrapolate,
    )


def test_rule_6_midway_nearest_is_the_earlier(device):
    values, times = ramp(features=1)
    targets = np.array([0.5, np.nextafter(np.float32(0.5), np.float32(1)), 1.5, 3.5], np.float32)
    out, _ = resample(values, times, targets, device, method="nearest")
    assert out[:, 0].tolist() == [0, 10, 10, 30]


def test_rule_6_previous_is_at_or_before_and_next_at_or_after(device):
    values, times = ramp(features=1)
    targets = np.array([0.0, 0.01, 0.99, 1.0, 3.999], np.float32)
    assert resample(values, times, targets, device, method="previous")[0][:, 0].tolist() == [0, 0, 0, 10, 30]
    assert resample(values, times, targets, device, method="next")[0][:, 0].tolist() == [0, 10, 10, 10, 40]


@each_whole
def test_rule_6_whole_numbers_and_bool_take_the_steps_alone(rng, device, dtype):
    values = random_values(rng, (4, 3), dtype)
    times = np.arange(4, dtype=np.float32)
    for step in STEPS:
        check(values, times, np.array([-1, 0.4, 0.5, 0.6, 2, 9], np.float32), device, method=step)
    with pytest.raises(robocache.ArgumentTypeError, match=rf"(?s)(?=.*linear)(?=.*{dtype.name})(?=.*previous)"):
        resample(values, times, times, device, method="linear")
    with pytest.raises(robocache.ArgumentTypeError, match=r"(?s)linear"):
        resample(values, times, times, device)  # the default is linear


@pytest.mark.parametrize("method", ["linear", "nearest", "previous"])
@each_clock
def test_rule_7_causal_never_looks_ahead(rng, device, method, clock):
    values, times, targets = random_case(rng, np.dtype(np.float32), clock, special=False)
    out, _ = resample(values, times, targets, device, method=method, causal=True)
    for row, column in np.ndindex(targets.shape):
        future = values.copy()
        future[row, times[row] > targets[row, column]] = np.nan
        later, _ = resample(future, times, targets, device, method=method, causal=True)
        assert_same_bits(later[row, column], out[row, column])


def test_rule_7_causal_holds_like_previous_and_is_absent_before_the_first(device):
    values, times = ramp(features=1)
    targets = np.array([-0.5, 0, 0.9, 4, 4.5], np.float32)
    for method in ("linear", "nearest", "previous"):
        out, valid = resample(values, times, targets, device, method=method, causal=True)
        assert_same_bits(out[:, 0], np.array([np.nan, 0, 0, 40, 40], np.float32))
        assert valid.tolist() == [False, True, True, True, False]
    whole, valid = resample(values.astype(np.int32), times, targets, device, method="previous", causal=True)
    assert whole[:, 0].tolist() == [0, 0, 0, 40, 40]
    assert not valid[0]


def test_rule_7_causal_refuses_next(device):
    values, times = ramp()
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*causal)(?=.*next)"):
        resample(values, times, times, device, method="next", causal=True)


def test_rule_7_causal_max_gap_is_the_age_of_the_sample_used(device):
    values, times = ramp(features=1)
    times = times * 10
    targets = np.array([1, 2, 2.5, 10, 13], np.float32)
    _, valid = resample(values, times, targets, device, causal=True, max_gap=2)
    assert valid.tolist() == [True, True, False, True, False]


# ---- Outside, gaps, nothing there: rules 11 to 14 ----


def test_rule_11_outside_is_never_valid(device):
    values, times = ramp(features=1)
    targets = np.array([-1, -1e-6, 0, 4, 4.000001, 5], np.float32)
    for extrapolate, expected in {
        "clamp": [0, 0, 0, 40, 40, 40],
        "nan": [np.nan, np.nan, 0, 40, np.nan, np.nan],
    }.items():
        for method in [*STEPS, "linear"]:
            out, valid = resample(values, times, targets, device, method=method, extrapolate=extrapolate)
            assert_same_bits(out[:, 0], np.array(expected, np.float32))
            assert valid.tolist() == [False, False, True, True, False, False]


def test_rule_11_linear_goes_straight_on_with_the_end_bracket(device):
    values = np.array([[0], [1], [10], [30]], np.float64)
    times = np.array([0, 1, 2, 3], np.float64)
    out, valid = resample(values, times, np.array([-2, -1, 4, 4.5]), device, extrapolate="linear")
    assert out[:, 0].tolist() == [-2, -1, 50, 60]
    assert not valid.any()


@each_step
def test_rule_11_the_steps_refuse_linear_extrapolation(device, step):
    values, times = ramp()
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*extrapolate)(?=.*linear)(?=.*step)"):
        resample(values, times, times, device, method=step, extrapolate="linear")


@pytest.mark.parametrize("method", [*STEPS, "linear"])
def test_rule_11_one_sample_is_held_or_nan_elsewhere(device, method):
    values, times = np.array([[7]], np.float32), np.array([2], np.float32)
    targets = np.array([1, 2, 3], np.float32)
    out, valid = resample(values, times, targets, device, method=method)
    assert out[:, 0].tolist() == [7, 7, 7]
    assert valid.tolist() == [False, True, False]
    out, valid = resample(values, times, targets, device, method=method, extrapolate="nan")
    assert_same_bits(out[:, 0], np.array([np.nan, 7, np.nan], np.float32))
    assert valid.tolist() == [False, True, False]


@pytest.mark.parametrize("method", [*STEPS, "linear"])
def test_rule_12_a_longer_bracket_is_invalid_and_an_equal_one_valid(device, method):
    values = np.array([[0], [1], [2], [3]], np.float32)
    times = np.array([0, 1, 3, 3.5], np.float32)
    targets = np.array([0.25, 1, 1.25, 3, 3.25], np.float32)
    for max_gap, expected in {
        2: [True] * 5,
        1.999: [True, True, False, True, True],
        0.5: [False, True, False, True, True],
        0.25: [False, True, False, True, False],
        0: [False, True, False, True, False],
    }.items():
        out, valid = resample(values, times, targets, device, method=method, max_gap=max_gap)
        assert valid.tolist() == expected
        kept, _ = resample(values, times, targets, device, method=method)
        assert_same_bits(out, kept)  # under clamp the value stays the method's
        out, _ = resample(values, times, targets, device, method=method, max_gap=max_gap, extrapolate="nan")
        assert np.isnan(out[:, 0]).tolist() == [not v for v in expected]


@pytest.mark.parametrize(
    ("step", "expected"),
    [("previous", [True, True, False, False]), ("next", [False, True, True, True]), ("nearest", [True] * 4)],
)
def test_rule_12_tolerance_is_the_distance_to_the_sample_used(device, step, expected):
    values, times = ramp(features=1)
    targets = np.array([1.25, 2, 2.75, 3.875], np.float32)
    out, valid = resample(values, times, targets, device, method=step, tolerance=0.25)
    assert valid.tolist() == expected
    out, _ = resample(values, times, targets, device, method=step, tolerance=0.25, extrapolate="nan")
    assert np.isnan(out[:, 0]).tolist() == [not v for v in expected]


def test_rule_12_linear_refuses_tolerance(device):
    values, times = ramp()
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*tolerance)(?=.*linear)"):
        resample(values, times, times, device, tolerance=1)


@pytest.mark.parametrize("method", [*STEPS, "linear"])
@pytest.mark.parametrize("extrapolate", ["clamp", "nan"])
@each_clock
def test_rule_13_no_samples_no_value(rng, device, method, extrapolate, clock):
    times = random_times(rng, 3, 6, clock)
    targets = random_targets(rng, times, 8)
    for lengths in (np.array([0, 6, 1]), np.array([0, 0, 0])):
        for dtype in (np.dtype(np.float16), *([np.dtype(np.int16), np.dtype(bool)] if method in STEPS else [])):
            values = random_values(rng, (3, 6, 4), dtype, special=False)
            check(values, times, targets, device, method=method, extrapolate=extrapolate, lengths=lengths)
            out, valid = resample(values, times, targets, device, method=method, lengths=lengths)
            assert not valid[0].any()
            assert np.isnan(out[0]).all() if dtype == np.float16 else not out[0].any()


@pytest.mark.parametrize("clock", [np.float32, np.float64])
def test_rule_13_a_nan_target_has_no_value(device, clock):
    values, times = ramp(clock=clock)
    targets = np.array([np.nan, 1, np.nan], clock)
    out, valid = resample(values, times, targets, device)
    assert valid.tolist() == [False, True, False]
    assert np.isnan(out[[0, 2]]).all()
    out, valid = resample(values.astype(np.uint8), times, targets, device, method="next")
    assert not out[[0, 2]].any()


@pytest.mark.parametrize("method", [*STEPS, "linear"])
@pytest.mark.parametrize("disorder", ["reversed", "shuffled", "nan", "all_nan", "infinite"])
@pytest.mark.parametrize("samples", [50, 5000])
def test_rule_14_bad_times_stay_within_their_row(rng, device, method, disorder, samples):
    """Any value from the row (or between two of them) or NaN will do; a neighbouring row's would be far off."""
    batch, count = 6, 300
    times = random_times(rng, batch, samples, np.dtype(np.float64))
    if disorder == "reversed":
        times = times[:, ::-1].copy()
    elif disorder == "shuffled":
        times = rng.permuted(times, axis=1)
    elif disorder == "nan":
        times[rng.random(times.shape) < 0.3] = np.nan
    elif disorder == "all_nan":
        times[:] = np.nan
    else:
        times[:, : samples // 3], times[:, -samples // 3 :] = -np.inf, np.inf
    values = (
        rng.uniform(0, 1, (batch, samples, 4)).astype(np.float32)
        + 10 * np.arange(batch, dtype=np.float32)[:, None, None]
    )
    targets = rng.uniform(2, 4 + 0.01 * samples, (batch, count))
    out, _ = resample(values, times, targets, device, method=method)
    inside = (out >= values.min((1, 2), keepdims=True) - 1e-5) & (out <= values.max((1, 2), keepdims=True) + 1e-5)
    if method == "linear" and disorder == "shuffled":
        inside |= True  # a weight beyond [0, 1] leaves the row's range without leaving the row
    assert (inside | np.isnan(out)).all()


def test_rule_14_check_times_accepts_sorted_times(rng, device):
    for clock in CLOCKS:
        times = random_times(rng, 3, 20, clock)
        robocache.check_times(to_torch(times, device))
        robocache.check_times(to_torch(times[0], device))
        robocache.check_times(to_torch(times[:, :0], device))
        robocache.check_times(times)


@each_clock
def test_rule_14_check_times_names_row_and_index_of_the_first_bad_time(device, clock):
    times = np.tile(np.arange(100, dtype=clock), (300, 1))
    times[123, 45] = 43
    times[123, 77] = 0
    times[200, 1] = -1
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*times)(?=.*row 123\b)(?=.*\b45\b)"):
        robocache.check_times(to_torch(times, device))


@pytest.mark.parametrize("clock", [np.float32, np.float64])
@pytest.mark.parametrize("index", [0, 1, 99])
def test_rule_14_check_times_finds_nan(device, clock, index):
    times = np.tile(np.arange(100, dtype=clock), (3, 1))
    times[2, index] = np.nan
    with pytest.raises(robocache.ArgumentError, match=rf"(?si)(?=.*nan)(?=.*row 2\b)(?=.*\b{index}\b)"):
        robocache.check_times(to_torch(times, device))


def test_rule_14_check_times_looks_at_the_lengths(device):
    times = np.tile(np.arange(10, dtype=np.float32), (2, 1))
    times[1, 6:] = 0
    robocache.check_times(to_torch(times, device), lengths=to_torch(np.array([10, 6]), device))
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*row 1\b)(?=.*\b6\b)"):
        robocache.check_times(to_torch(times, device), lengths=to_torch(np.array([10, 7]), device))


# ---- Arguments: rule 15 ----


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_rule_15_other_value_types_are_refused(device, dtype):
    times = torch.arange(3, dtype=torch.float32, device=device)
    with pytest.raises(robocache.ArgumentTypeError, match=r"(?s)values.*complex"):
        robocache.resample_trajectories(torch.zeros(3, 2, dtype=dtype, device=device), times, times)


def memory_forms(tensor):
    """The same values under other strides: (name, tensor)."""
    yield "contiguous", tensor.contiguous()
    if tensor.ndim == 3:
        yield "batch and time swapped", tensor.transpose(0, 1).contiguous().transpose(0, 1)
        yield "time and feature swapped", tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if tensor.ndim > 1:
        wide = torch.empty(*tensor.shape[:-1], 2 * tensor.shape[-1] + 1, dtype=tensor.dtype, device=tensor.device)
        wide.copy_(torch.cat([tensor, tensor, tensor[..., :1]], -1).flip(-1))
        wide[..., : tensor.shape[-1]] = tensor
        yield "gaps between rows", wide[..., : tensor.shape[-1]]
    spread = torch.repeat_interleave(tensor, 2, dim=-1)
    yield "every second element", spread[..., ::2]
    for offset in (1, 2, 3):
        flat = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=tensor.device)
        view = flat[offset:].view(tensor.shape)
        view.copy_(tensor)
        yield f"misaligned by {offset} elements", view


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.uint8)], ids=name_of)
@pytest.mark.parametrize("features", [3, 16])
def test_rule_15_strides_and_alignment_change_nothing(rng, device, dtype, features):
    values, times, targets = random_case(rng, dtype, np.dtype(np.float64), features=features)
    method = "linear" if dtype in FLOATS else "nearest"
    expected, expected_valid = oracle(values, times, targets, method=method)
    tensors = [to_torch(x, device) for x in (values, times, targets)]
    for position in range(3):
        for name, form in memory_forms(tensors[position]):
            arguments = [*tensors[:position], form, *tensors[position + 1 :]]
            out, valid = robocache.resample_trajectories(*arguments, method=method, return_valid=True)
            assert_same_bits(to_numpy(out), expected, name)
            assert_same_bits(to_numpy(valid), expected_valid, name)


def test_rule_15_stride_0_is_taken_as_it_is(rng, device):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float32), batch=1)
    one = [to_torch(x, device) for x in (values, times, targets)]
    out, valid = robocache.resample_trajectories(*(x.expand(6, *x.shape[1:]) for x in one), return_valid=True)
    expected, expected_valid = oracle(values, times, targets)
    for row in range(6):
        assert_same_bits(to_numpy(out)[row], expected[0])
        assert_same_bits(to_numpy(valid)[row], expected_valid[0])
    time_constant = one[0][:, :1].expand(-1, values.shape[1], -1)
    feature_constant = one[0][..., :1].expand(-1, -1, 4)
    for form in (time_constant, feature_constant):
        out = robocache.resample_trajectories(form, *one[1:])
        assert_same_bits(to_numpy(out), oracle(to_numpy(form), times, targets)[0])


def test_rule_15_a_stride_0_batch_is_not_copied(device):
    """Half a TiB of values if it were."""
    values = torch.rand(1, 1024, 1024, device=device).expand(2**17, -1, -1)
    times = torch.arange(1024, dtype=torch.float32, device=device)
    out = robocache.resample_trajectories(values, times, times[:1] + 0.5)
    assert out.shape == (2**17, 1, 1024)
    assert torch.equal(out[0], out[-1])


def test_rule_15_negative_strides(rng):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    out = robocache.resample_trajectories(values[::-1, :, ::-1], times[::-1], targets[::-1])
    assert_same_bits(out, oracle(values[::-1, :, ::-1], times[::-1], targets[::-1])[0])


@each_clock
@pytest.mark.parametrize("samples", [7, 100])
def test_more_short_rows_than_a_gpu_runs_at_once(rng, device, clock, samples):
    """Where a block takes several rows, and the last block fewer."""
    for features, count in ((3, 5), (8, 2)):
        case = random_case(
            rng, np.dtype(np.float32), clock, batch=2117, samples=samples, targets=count, features=features
        )
        check(*case, device)


def test_rule_15_output_offsets_pass_2_31(device):
    samples, count, features = 3, 70_001, 10_300
    values = torch.randint(0, 255, (1, samples, features), dtype=torch.uint8, device=device).expand(3, -1, -1)
    times = torch.tensor([0, 10, 20], dtype=torch.int64, device=device)
    targets = torch.arange(count, device=device) % 27 - 3
    out = robocache.resample_trajectories(values, times, targets, method="previous")
    assert out.numel() > 2**31
    for row in (0, 2):
        for k in (0, 1, 2, 12, 12345, count - 1):
            used = min(max(int(targets[k]) // 10, 0), 2)
            assert torch.equal(out[row, k], values[0, used]), (row, k)


def test_rule_15_input_offsets_pass_2_31(tmp_path):
    samples, features = 300_000, 16_384
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(samples * features)
    values = np.memmap(path, np.uint8, "r+", shape=(samples, features))
    for s in (0, 131_072, 262_145, samples - 1):
        values[s] = np.arange(features) * (s + 1) % 251
    targets = np.array([0, 131_072, 262_145, samples - 1, samples + 5])
    out = robocache.resample_trajectories(values, np.arange(samples), targets, method="nearest")
    for k, s in enumerate([0, 131_072, 262_145, samples - 1, samples - 1]):
        np.testing.assert_array_equal(out[k], values[s])


@pytest.mark.parametrize("empty", ["batch", "samples", "targets", "features"])
@pytest.mark.parametrize("method", ["linear", "previous"])
def test_rule_15_empty_dimensions_are_fine(rng, device, empty, method):
    shape = {"batch": 2, "samples": 4, "targets": 5, "features": 3} | {empty: 0}
    values = random_values(
        rng, (shape["batch"], shape["samples"], shape["features"]), np.dtype(np.float32), special=False
    )
    times = np.sort(rng.random((shape["batch"], shape["samples"])), axis=1)
    targets = rng.random((shape["batch"], shape["targets"]))
    check(values, times, targets, device, method=method)
    if empty != "batch":
        check(values[0], times[0], targets[0], device, method=method)


def test_rule_15_a_shared_clock_has_one_dimension(rng, device):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    check(values, times[0], targets, device)
    check(values, times, targets[0], device)
    check(values, times[0], targets[0], device)
    check(values[0], times[0], targets[0], device)
    assert resample(values[0], times[0], targets[0], device)[0].shape == (37, 5)


@pytest.mark.parametrize("argument", ["times", "target_times"])
def test_rule_15_a_clock_of_one_row_for_many_is_refused_with_a_hint(device, argument):
    arrays = {"values": np.zeros((4, 5, 2), np.float32), "times": np.zeros((4, 5)), "target_times": np.zeros((4, 6))}
    arrays[argument] = arrays[argument][:1]
    letter = {"times": "S", "target_times": "T"}[argument]
    with pytest.raises(robocache.ArgumentError, match=rf"(?s)(?=.*{argument})(?=.*\[{letter}\])"):
        resample(*arrays.values(), device)
    # For one row it is one row.
    resample(arrays["values"][:1], arrays["times"][:1], arrays["target_times"][:1], device)


SHAPES = {"values": (4, 5, 2), "times": (4, 5), "target_times": (4, 6), "lengths": (4,)}


@pytest.mark.parametrize(
    ("argument", "shape"),
    [
        ("values", (5,)),
        ("values", ()),
        ("values", (1, 4, 5, 2)),
        ("times", (4, 6)),
        ("times", (3, 5)),
        ("times", (6,)),
        ("times", ()),
        ("times", (4, 5, 1)),
        ("target_times", (3, 6)),
        ("target_times", ()),
        ("target_times", (4, 6, 1)),
        ("lengths", (3,)),
        ("lengths", (4, 1)),
    ],
)
def test_rule_15_wrong_shapes_are_refused_by_name(device, argument, shape):
    arrays = {name: np.zeros(SHAPES[name], np.int64 if name == "lengths" else np.float32) for name in SHAPES}
    arrays[argument] = np.zeros(shape, arrays[argument].dtype)
    with pytest.raises(robocache.ArgumentError, match=rf"\b{argument}\b"):
        resample(arrays["values"], arrays["times"], arrays["target_times"], device, lengths=arrays["lengths"])


def test_rule_15_values_of_two_dimensions_take_clocks_of_one(device):
    values, times = ramp()
    with pytest.raises(robocache.ArgumentError, match="times"):
        resample(values, times[None], times, device)
    with pytest.raises(robocache.ArgumentError, match="target_times"):
        resample(values, times, times[None], device)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rule_15_lengths(rng, device, dtype):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64), batch=4)
    check(values, times, targets, device, lengths=np.array([0, 1, 16, 17], dtype))


def test_rule_15_samples_past_the_length_are_not_read(rng, device):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64), batch=4, special=False)
    lengths = np.array([3, 9, 1, 17])
    expected = resample(values, times, targets, device, lengths=lengths)
    for row, length in enumerate(lengths):
        values[row, length:], times[row, length:] = np.nan, -1e9
    for one, other in zip(resample(values, times, targets, device, lengths=lengths), expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("bad", [-1, 18, 2**40])
def test_rule_15_lengths_beyond_the_samples_are_refused_on_the_cpu(rng, bad):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    with pytest.raises(robocache.ArgumentError, match=rf"(?s)(?=.*lengths)(?=.*{bad})(?=.*17)"):
        resample(values, times, targets, lengths=np.array([3, bad, 4]))


def test_rule_15_lengths_beyond_the_samples_are_cut_on_cuda(rng, cuda):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    cut = resample(values, times, targets, cuda, lengths=np.array([-5, 2**40, 4]))
    expected = oracle(values, times, targets, lengths=np.array([0, 17, 4]))
    for one, other in zip(cut, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_rule_15_lengths_are_integers(device, dtype):
    values, times = (to_torch(x, device) for x in ramp())
    with pytest.raises(robocache.ArgumentTypeError, match="lengths"):
        robocache.resample_trajectories(values[None], times, times, lengths=torch.ones(1, dtype=dtype, device=device))


# ---- out=: rule 16 ----


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int32), np.dtype(bool)], ids=name_of)
@pytest.mark.parametrize("features", [3, 16])
def test_rule_16_out_is_written_whole_and_returned(rng, device, dtype, features):
    method = "linear" if dtype in FLOATS else "previous"
    case = random_case(rng, dtype, np.dtype(np.float64), features=features)
    expected, expected_valid = oracle(*case, method=method, extrapolate="nan", causal=True)
    tensors = [to_torch(x, device) for x in case]
    shape = (3, 37, features)
    kind = tensors[0].dtype
    gaps = poisoned((3, 37, features + 5), kind, device)
    for out in (
        poisoned(shape, kind, device),
        gaps[..., 2 : features + 2],
        poisoned((37, 3, features), kind, device).transpose(0, 1),
        poisoned((3, 2 * 37, features), kind, device)[:, ::2],
    ):
        options = {"method": method, "extrapolate": "nan", "causal": True}
        assert robocache.resample_trajectories(*tensors, out=out, **options) is out
        assert_same_bits(to_numpy(out), expected)
        returned, valid = robocache.resample_trajectories(*tensors, out=out, return_valid=True, **options)
        assert returned is out
        assert_same_bits(to_numpy(valid), expected_valid)
    raw = gaps.cpu().contiguous().view(torch.uint8).view(3, 37, features + 5, -1)
    untouched = torch.cat([raw[:, :, :2], raw[:, :, features + 2 :]], 2)
    assert (untouched == 0xA5).all(), "the gaps between out's rows were written"


def test_rule_16_out_as_numpy(rng):
    case = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    out = np.full((3, 37, 5), 77, np.float32)
    assert robocache.resample_trajectories(*case, out=out) is out
    assert_same_bits(out, oracle(*case)[0])
    wide = np.full((3, 37, 9), 77, np.float32)
    robocache.resample_trajectories(*case, out=wide[..., 2:7])
    assert_same_bits(wide[..., 2:7], oracle(*case)[0])
    assert (wide[..., :2] == 77).all()
    assert (wide[..., 7:] == 77).all()


def test_rule_16_out_of_two_dimensions(device):
    values, times = ramp()
    tensors = [to_torch(x, device) for x in (values, times, times + np.float32(0.5))]
    out = poisoned((5, 2), torch.float32, device)
    robocache.resample_trajectories(*tensors, out=out)
    assert_same_bits(to_numpy(out), oracle(values, times, times + np.float32(0.5))[0])


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((3, 37, 5), torch.float64, robocache.ArgumentTypeError),
        ((3, 37, 5), torch.int32, robocache.ArgumentTypeError),
        ((3, 37, 6), torch.float32, robocache.ArgumentError),
        ((3, 36, 5), torch.float32, robocache.ArgumentError),
        ((37, 5), torch.float32, robocache.ArgumentError),
        ((1, 3, 37, 5), torch.float32, robocache.ArgumentError),
    ],
)
def test_rule_16_out_of_another_dtype_or_shape_is_refused(rng, device, shape, dtype, expected):
    tensors = [to_torch(x, device) for x in random_case(rng, np.dtype(np.float32), np.dtype(np.float64))]
    with pytest.raises(expected, match=r"\bout\b"):
        robocache.resample_trajectories(*tensors, out=torch.zeros(shape, dtype=dtype, device=device))


def test_rule_16_overlap_with_an_input_is_refused(device):
    storage = torch.zeros(4096, device=device)
    times = torch.arange(8, dtype=torch.float32, device=device)
    values = storage[:32].view(8, 4)
    for start in (0, 1, 31):
        with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*\bout\b)(?=.*overlap)"):
            robocache.resample_trajectories(values, times, times, out=storage[start : start + 32].view(8, 4))
    robocache.resample_trajectories(values, times, times, out=storage[32:64].view(8, 4))  # next to it is fine
    clock_storage = torch.arange(64, dtype=torch.float32, device=device)
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*\bout\b)(?=.*overlap)"):
        robocache.resample_trajectories(values, clock_storage[:8], times, out=clock_storage[4:36].view(8, 4))
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*\bout\b)(?=.*overlap)"):
        robocache.resample_trajectories(values, times, clock_storage[:8], out=clock_storage[4:36].view(8, 4))


def test_rule_16_out_must_be_writable():
    values, times = ramp()
    out = np.zeros((5, 2), np.float32)
    out.flags.writeable = False
    with pytest.raises(robocache.ArgumentError, match=r"(?s)\bout\b.*(read-only|writ)"):
        robocache.resample_trajectories(values, times, times, out=out)


def test_rule_16_out_must_not_lie_over_itself(device):
    values, times = (to_torch(x, device) for x in ramp())
    with pytest.raises(robocache.ArgumentError, match=r"\bout\b"):
        robocache.resample_trajectories(values, times, times, out=torch.zeros(1, 2, device=device).expand(5, 2))


@pytest.mark.parametrize("elsewhere", ["times", "target_times", "lengths", "out"])
def test_rule_16_everything_is_on_one_device(cuda, elsewhere):
    tensors = {
        "values": torch.zeros(1, 4, 2, device=cuda),
        "times": torch.arange(4.0, device=cuda),
        "target_times": torch.arange(4.0, device=cuda),
        "lengths": torch.tensor([4], device=cuda),
        "out": torch.zeros(1, 4, 2, device=cuda),
    }
    tensors[elsewhere] = tensors[elsewhere].cpu()
    with pytest.raises(robocache.Error, match=rf"(?s)(?=.*{elsewhere})(?=.*cpu)(?=.*cuda)") as caught:
        robocache.resample_trajectories(**tensors)
    assert isinstance(caught.value, ValueError | TypeError)


# ---- Errors: rule 17 ----


def test_rule_17_the_error_classes():
    assert issubclass(robocache.ArgumentError, robocache.Error)
    assert issubclass(robocache.ArgumentError, ValueError)
    assert issubclass(robocache.ArgumentTypeError, robocache.Error)
    assert issubclass(robocache.ArgumentTypeError, TypeError)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"method": "cubicle"}, ["method", "cubicle", "linear", "nearest", "previous", "next"]),
        ({"extrapolate": "hold"}, ["extrapolate", "hold", "clamp", "nan", "linear"]),
        ({"method": ""}, ["method"]),
    ],
)
def test_rule_17_unknown_words_are_answered_with_the_known_ones(device, options, parts):
    values, times = ramp()
    with pytest.raises(robocache.ArgumentError) as caught:
        resample(values, times, times, device, **options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("option", ["method", "extrapolate"])
@pytest.mark.parametrize("value", [3, None, b"linear"])
def test_rule_17_words_are_strings(option, value):
    values, times = ramp()
    with pytest.raises(robocache.ArgumentTypeError, match=option):
        robocache.resample_trajectories(values, times, times, **{option: value})


@pytest.mark.parametrize("argument", ["values", "times", "target_times"])
@pytest.mark.parametrize("value", [None, "abc", 3, object(), [[1.0], [2.0]]], ids=lambda v: type(v).__name__)
def test_rule_17_what_is_no_array_is_refused_by_name(argument, value):
    values, times = ramp()
    arguments = {"values": values, "times": times, "target_times": times} | {argument: value}
    with pytest.raises(robocache.ArgumentTypeError, match=rf"\b{argument}\b"):
        robocache.resample_trajectories(**arguments)


@pytest.mark.parametrize(
    "values",
    [np.array([["a"], ["b"]]), np.array([[None], [None]]), np.zeros((2, 1), "M8[ns]"), np.zeros((2, 1), "i4,f4")],
)
def test_rule_17_arrays_of_other_things_are_refused(values):
    times = np.arange(2.0)
    with pytest.raises(robocache.ArgumentTypeError, match="values"):
        robocache.resample_trajectories(values, times, times, method="previous")


def test_rule_17_options_are_keywords():
    values, times = ramp()
    with pytest.raises(TypeError):
        robocache.resample_trajectories(values, times, times, "linear")
    with pytest.raises(TypeError):
        robocache.resample_trajectories(values, times, times, methd="linear")


def test_rule_17_an_error_leaves_the_next_call_alone(device):
    values, times = ramp()
    for _ in range(3):
        with pytest.raises(robocache.ArgumentError):
            resample(values, times, times, device, method="cubicle")
        check(values, times, times, device)


# ---- Frameworks: rule 18 ----


def test_rule_18_numpy_in_numpy_out(rng):
    for dtype in FLOATS:
        case = random_case(rng, dtype, np.dtype(np.int64))
        out, valid = robocache.resample_trajectories(*case, return_valid=True)
        assert isinstance(out, np.ndarray)
        assert isinstance(valid, np.ndarray)
        expected, expected_valid = oracle(*case)
        assert_same_bits(out, expected)
        assert_same_bits(valid, expected_valid)
        out[...] = 0  # its own, writable memory


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=name_of)
def test_rule_18_read_only_numpy(rng, dtype):
    case = random_case(rng, dtype, np.dtype(np.float64))
    expected = oracle(*case, method="nearest")[0]
    for array in case:
        array.flags.writeable = False
    assert_same_bits(robocache.resample_trajectories(*case, method="nearest"), expected)
    lengths = np.array([17, 17, 17])
    lengths.flags.writeable = False
    assert_same_bits(robocache.resample_trajectories(*case, method="nearest", lengths=lengths), expected)
    robocache.check_times(case[1])


def test_rule_18_memory_mapped_numpy(rng, tmp_path):
    case = random_case(rng, np.dtype(np.float32), np.dtype(np.int64))
    mapped = []
    for i, array in enumerate(case):
        np.save(tmp_path / f"{i}.npy", array)
        mapped.append(np.load(tmp_path / f"{i}.npy", mmap_mode="r"))
    out = robocache.resample_trajectories(*mapped)
    assert type(out) is np.ndarray
    assert_same_bits(out, oracle(*case)[0])


def test_rule_18_numpy_of_odd_layout_is_taken_or_refused_with_a_word(rng):
    """Bytes in the other order, fields of a record, unaligned buffers."""
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64), batch=1)
    values, times, targets = values[0], times[0], targets[0]
    expected = oracle(values, times, targets)[0]
    record = np.zeros(17, [("flag", "u1"), ("values", "f4", 5)])
    record["values"] = values
    unaligned = np.frombuffer(b"x" + times.tobytes(), np.float64, offset=1)
    for odd in ((record["values"], times), (values.astype(">f4"), times), (values, unaligned)):
        try:
            out = robocache.resample_trajectories(*odd, targets)
        except robocache.Error as error:
            assert str(error)
        else:
            assert_same_bits(out, expected)


def test_rule_18_only_dlpack_in_dlpack_out(rng):
    case = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    out, valid = robocache.resample_trajectories(*(OnlyDLPack(x) for x in case), return_valid=True)
    for array in (out, valid):
        assert not isinstance(array, np.ndarray | torch.Tensor)
        assert hasattr(array, "__dlpack__")
        assert hasattr(array, "__dlpack_device__")
    expected, expected_valid = oracle(*case)
    assert_same_bits(np.from_dlpack(out), expected)
    assert_same_bits(np.from_dlpack(valid).astype(bool), expected_valid)


def test_rule_18_only_dlpack_on_any_device(rng, device):
    case = random_case(rng, np.dtype(ml_dtypes.bfloat16), np.dtype(np.float64))
    out = robocache.resample_trajectories(*(OnlyDLPack(to_torch(x, device)) for x in case))
    back = torch.from_dlpack(out)
    assert back.device.type == device
    assert_same_bits(to_numpy(back), oracle(*case)[0])


def test_rule_18_the_output_outlives_its_inputs(rng, device):
    case = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    expected = oracle(*case)[0]
    arrays = [to_torch(x, device) for x in case]
    alive = weakref.ref(arrays[0])
    out = robocache.resample_trajectories(*arrays)
    del arrays
    gc.collect()
    assert alive() is None, "the inputs are kept alive after the call"
    poisoned((1 << 20,), torch.uint8, device)  # reuse the freed memory
    assert_same_bits(to_numpy(out), expected)


def test_rule_18_no_memory_is_lost(rng):
    case = random_case(rng, np.dtype(np.float32), np.dtype(np.float64), batch=16, targets=2000, features=64)

    def resident_bytes():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    forms = [case, [to_torch(x) for x in case], [OnlyDLPack(x) for x in case]]
    for arrays in forms:
        for _ in range(5):
            robocache.resample_trajectories(*arrays)
        before = resident_bytes()
        for _ in range(40):  # 8 MB each
            robocache.resample_trajectories(*arrays, return_valid=True)
        assert resident_bytes() - before < 64e6


# ---- CUDA: streams and graphs ----


def test_work_runs_on_the_callers_stream(cuda):
    times = torch.arange(64.0, device=cuda)
    values = torch.zeros(64, 256, device=cuda)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        values.fill_(3)
        out = robocache.resample_trajectories(values, times, times + 0.5)
    stream.synchronize()
    assert (out == 3).all()


def test_a_call_neither_synchronises_nor_allocates_beyond_its_outputs(cuda):
    times = torch.arange(64.0, device=cuda)
    values = torch.rand(8, 64, 32, device=cuda)
    out = torch.empty(8, 64, 32, device=cuda)
    robocache.resample_trajectories(values, times, times, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda._sleep(200_000_000)
    start = time.perf_counter()
    robocache.resample_trajectories(values, times, times, out=out)
    waited = time.perf_counter() - start
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    torch.cuda.synchronize()
    assert waited < (time.perf_counter() - start) / 4, "the call waited for the device"


@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_a_call_is_captured_in_a_cuda_graph(rng, cuda, method):
    first, second = (random_case(rng, np.dtype(np.float16), np.dtype(np.float32)) for _ in range(2))
    inputs = [to_torch(x, cuda) for x in first]
    robocache.resample_trajectories(*inputs, method=method)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, valid = robocache.resample_trajectories(*inputs, method=method, return_valid=True)
    for case in (second, first):
        for tensor, array in zip(inputs, case, strict=True):
            tensor.copy_(to_torch(array, cuda))
        graph.replay()
        expected, expected_valid = oracle(*case, method=method)
        assert_same_bits(to_numpy(out), expected)
        assert_same_bits(to_numpy(valid), expected_valid)


# ---- Threads and processes: rule 20 ----


def big_case(rng):
    return random_case(rng, np.dtype(np.float32), np.dtype(np.float64), batch=64, samples=400, targets=500, features=33)


def test_rule_20_no_result_depends_on_the_number_of_threads(rng):
    cases = [big_case(rng), random_case(rng, np.dtype(np.float16), np.dtype(np.int64), batch=1, targets=20_000)]
    try:
        for case in cases:
            results = []
            for threads in (1, 2, 3, 8, 64):
                robocache.set_num_threads(threads)
                results.append(resample(*case, extrapolate="nan"))
            for out, valid in results[1:]:
                assert_same_bits(out, results[0][0])
                assert_same_bits(valid, results[0][1])
    finally:
        robocache.set_num_threads(os.cpu_count())


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_rule_20_the_environment_sets_the_number_of_threads(threads):
    program = (
        "import hashlib, numpy as np, robocache\n"
        "values = np.sin(np.arange(32 * 400 * 33, dtype=np.float32)).reshape(32, 400, 33)\n"
        "out = robocache.resample_trajectories(values, np.arange(400.0), np.linspace(-1, 401, 700))\n"
        "count = sum('Threads' in line and int(line.split()[1]) for line in open('/proc/self/status'))\n"
        "print(hashlib.sha256(out.tobytes()).hexdigest(), count)\n"
    )
    # OpenBLAS, which numpy starts, has threads of its own.
    environment = os.environ | {"ROBOCACHE_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    digest, count = done.stdout.split()
    values = np.sin(np.arange(32 * 400 * 33, dtype=np.float32)).reshape(32, 400, 33)
    out = robocache.resample_trajectories(values, np.arange(400.0), np.linspace(-1, 401, 700))
    assert digest == hashlib.sha256(out.tobytes()).hexdigest()
    assert int(count) <= int(threads) + 1


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", None])
def test_rule_20_a_number_of_threads_is_a_whole_number_above_zero(threads):
    with pytest.raises(robocache.Error, match=r"(?i)thread"):
        robocache.set_num_threads(threads)


def run_in_fork(function, seconds=60):
    """Calls `function` in a forked child; True where it returned, an error text where it raised, died or hung."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            function()
            os.write(write_end, b"ok")
        except BaseException as error:
            os.write(write_end, repr(error).encode()[:4000])
        os._exit(0)
    os.close(write_end)
    deadline = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail(f"the forked child still ran after {seconds} s")
        time.sleep(0.005)
    with os.fdopen(read_end, "rb") as pipe:
        word = pipe.read().decode()
    return word == "ok" or word or "the forked child died"


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_use_after_fork(rng):
    robocache.set_num_threads(4)
    case = big_case(rng)
    expected = robocache.resample_trajectories(*case)

    def use():
        assert_same_bits(robocache.resample_trajectories(*case), expected)

    def fork_again():
        use()
        assert run_in_fork(use) is True

    for _ in range(5):
        assert run_in_fork(use) is True
    assert run_in_fork(fork_again) is True
    use()  # and the parent's threads still work
    robocache.set_num_threads(os.cpu_count())


class Resampled(torch.utils.data.Dataset):
    def __init__(self, case):
        self.case = case

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return robocache.resample_trajectories(*(x[index : index + 4] for x in self.case))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_use_in_forked_dataloader_workers(rng):
    case = [to_torch(x) for x in big_case(rng)]
    dataset = Resampled(case)
    expected = [dataset[i] for i in range(len(dataset))]  # the parent's pool runs before the workers start
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    for got, want in zip(loader, expected, strict=True):
        assert_same_bits(to_numpy(got), to_numpy(want))


def test_use_from_many_threads_at_once(rng):
    from concurrent.futures import ThreadPoolExecutor

    case = big_case(rng)
    expected = robocache.resample_trajectories(*case)
    with ThreadPoolExecutor(8) as executor:
        for out in executor.map(lambda _: robocache.resample_trajectories(*case), range(40)):
            assert_same_bits(out, expected)


def test_numpy_values_beside_torch_tensors_give_numpy():
    torch = pytest.importorskip("torch")
    times = torch.arange(4.0)
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    out, valid = robocache.resample_trajectories(values, times, times + 0.5, return_valid=True)
    assert isinstance(out, np.ndarray) and isinstance(valid, np.ndarray)
    assert out.tolist() == [[1, 2], [3, 4], [5, 6], [6, 7]]
    assert valid.tolist() == [True, True, True, False]


def test_a_view_that_torch_has_not_negated_yet_is_refused():
    torch = pytest.importorskip("torch")
    values = torch.complex(torch.zeros(4, 2), torch.ones(4, 2)).conj().imag
    times = torch.arange(4.0)
    with pytest.raises(robocache.ArgumentError, match="values"):
        robocache.resample_trajectories(values, times, times)
    assert robocache.resample_trajectories(values.resolve_neg(), times, times).tolist() == [[-1, -1]] * 4
