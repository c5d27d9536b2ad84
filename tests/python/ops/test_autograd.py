"""Rule 19: gradients of resample_trajectories, against finite differences and a naive oracle, on the CPU and on CUDA."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_torch
from reference.gradient_calls import (
    CALLS,
    FLOAT_CLOCKS,
    ROUNDING,
    each_clock,
    each_dtype,
    gradients,
    in_clock,
    jittered_clocks,
    random_gradient,
)
from reference.gradients import slopes_of_linear, weights_of_samples

import robocache

torch = pytest.importorskip("torch")


@each_dtype
@each_clock
def test_rule_19_gradient_of_values_is_the_sum_of_weights(rng, device, dtype, clock):
    """Bound: a weight w is within 4 roundings of the work type, and 1 - w within 5; the product adds one, and the sum of n terms
    n - 1; then one rounding to the type of the values."""
    batch, samples, targets, features = 3, 17, 41, 5
    rounding = ROUNDING[np.dtype(np.float64 if dtype == np.float64 and clock != np.float32 else np.float32)]
    for options in CALLS:
        options = in_clock(options, clock)
        times, target_times = jittered_clocks(rng, batch, samples, targets, clock)
        values = rng.standard_normal((batch, samples, features)).astype(dtype)
        out_gradient = random_gradient(rng, (batch, targets, features), dtype)
        lengths = rng.integers(0, samples + 1, batch)
        (result,) = gradients(
            device, values, times, target_times, out_gradient, ("values",), lengths=lengths, **options
        )
        weights = weights_of_samples(times, target_times, samples, lengths=lengths, **options)
        upstream = out_gradient.astype(np.float64)
        expected = np.einsum("bts,btd->bsd", weights, upstream)
        terms = np.count_nonzero(weights, axis=1)[..., None]
        # The error of a weight is in roundings of max(1, |w|), because 1 - w is computed from w.
        size = np.einsum("bts,btd->bsd", np.where(weights != 0, np.maximum(1, np.abs(weights)), 0), np.abs(upstream))
        bound = (terms + 5) * rounding * size + ROUNDING[dtype] * np.abs(expected)
        if dtype == np.float16:
            bound += 2.0**-25  # half the least subnormal
        assert (np.abs(result.astype(np.float64) - expected) <= bound).all(), options


@pytest.mark.parametrize("features", [1, 2, 7, 31, 64, 65, 128, 129, 300])
@pytest.mark.parametrize(("samples", "targets"), [(1, 3), (2, 1), (700, 1500)])
def test_rule_19_any_shape(rng, device, features, samples, targets):
    times, target_times = jittered_clocks(rng, 2, samples, targets, np.dtype(np.float64))
    values = rng.standard_normal((2, samples, features))
    out_gradient = rng.integers(-8, 9, (2, targets, features)).astype(np.float64)
    result = gradients(device, values, times, target_times, out_gradient, method="nearest")
    weights = weights_of_samples(times, target_times, samples, method="nearest")
    assert_same_bits(result[0], np.einsum("bts,btd->bsd", weights, out_gradient))  # integers: exact
    assert not result[1].any() and not result[2].any()


@pytest.mark.parametrize("shape", [(0, 5, 4, 3), (2, 0, 4, 3), (2, 5, 0, 3), (2, 5, 4, 0)])
def test_rule_19_empty_dimensions(device, shape):
    batch, samples, targets, features = shape
    values = np.ones((batch, samples, features))
    times, target_times = np.ones((batch, samples)), np.ones((batch, targets))
    for gradient in gradients(device, values, times, target_times, np.ones((batch, targets, features))):
        assert not gradient.any()


def test_rule_19_the_last_of_equal_times_takes_the_gradient(device):
    values, times = np.zeros((4, 1)), np.array([0.0, 1.0, 1.0, 2.0])
    target_times = np.array([0.25, 1.0, 1.5])
    (result,) = gradients(device, values, times, target_times, np.ones((3, 1)), ("values",))
    assert result.ravel().tolist() == [0.75, 0, 0.25 + 1 + 0.5, 0.5]


def test_rule_19_held_samples_take_gradients_and_absent_targets_give_none(device):
    values, times = np.zeros((3, 1)), np.array([0.0, 1.0, 2.0])
    target_times = np.array([-1.0, 5.0, np.nan, np.inf])
    upstream = np.array([[1.0], [2.0], [4.0], [8.0]])
    (result,) = gradients(device, values, times, target_times, upstream, ("values",))
    assert result.ravel().tolist() == [1, 0, 2 + 8]
    (result,) = gradients(device, values, times, target_times, upstream, ("values",), extrapolate="nan")
    assert result.ravel().tolist() == [0, 0, 0]


@each_dtype
@pytest.mark.parametrize("clock", FLOAT_CLOCKS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("extrapolate", ["clamp", "nan", "linear"])
@pytest.mark.parametrize("max_gap", [None, 0.015])
def test_rule_19_gradients_of_times_by_linear(rng, device, dtype, clock, extrapolate, max_gap):
    """Bound: the weight is within 4 roundings of the work type or the clock's type, the gap within 1; sums are in
    float64; then one rounding to the clock's type."""
    batch, samples, targets, features = 3, 17, 41, 5
    if max_gap is not None:
        max_gap = float(clock.type(max_gap))
    times, target_times = jittered_clocks(rng, batch, samples, targets, clock)
    values = rng.standard_normal((batch, samples, features)).astype(dtype)
    out_gradient = random_gradient(rng, (batch, targets, features), dtype)
    lengths = rng.integers(0, samples + 1, batch)
    options = {"extrapolate": extrapolate, "max_gap": max_gap, "lengths": lengths}
    result = gradients(device, values, times, target_times, out_gradient, ("times", "target_times"), **options)
    *expected, size_of_times, size_of_targets = slopes_of_linear(values, times, target_times, out_gradient, **options)
    rounding = max(ROUNDING[clock], ROUNDING[np.dtype(np.float64 if dtype == np.float64 else np.float32)])
    for gradient, exact, size in zip(result, expected, (size_of_times, size_of_targets), strict=True):
        bound = 5 * rounding * size + ROUNDING[clock] * np.abs(exact) + targets * features * 2.0**-53 * size
        assert (np.abs(gradient.astype(np.float64) - exact) <= bound).all()


def test_rule_19_a_target_on_a_sample_has_the_slope_after_it(device):
    values, times = np.array([[0.0], [10.0], [40.0]]), np.array([0.0, 1.0, 2.0])
    times_gradient, targets_gradient = gradients(
        device, values, times, np.array([0.0, 1.0, 2.0]), np.ones((3, 1)), ("times", "target_times")
    )
    assert targets_gradient.tolist() == [10, 30, 30]  # the last hit has only the bracket before it
    assert times_gradient.tolist() == [-10, -30, -30]


@pytest.mark.parametrize("options", [{"method": "nearest"}, {"causal": True}, {"method": "next"}], ids=str)
def test_rule_19_held_values_have_no_gradient_of_times(rng, device, options):
    times, target_times = jittered_clocks(rng, 2, 9, 12, np.dtype(np.float64))
    result = gradients(device, rng.standard_normal((2, 9, 3)), times, target_times, np.ones((2, 12, 3)), **options)
    assert result[0].any() and not result[1].any() and not result[2].any()


def test_rule_19_with_int64_clocks_only_values_have_gradients(rng, device):
    times, target_times = jittered_clocks(rng, 2, 9, 12, np.dtype(np.int64))
    (result,) = gradients(device, rng.standard_normal((2, 9, 3)), times, target_times, np.ones((2, 12, 3)), ("values",))
    assert result.sum() == pytest.approx(2 * 12 * 3)  # every target's weights add up to 1


@pytest.mark.parametrize("options", CALLS, ids=lambda o: "-".join(str(v) for v in o.values()))
@pytest.mark.parametrize("layout", ["own clocks", "shared clocks", "one row"])
def test_rule_19_gradcheck(rng, device, options, layout):
    """Inputs have no hits and no repeated times, where no derivative exists."""
    batch, samples, targets, features = 3, 7, 9, 2
    times, target_times = jittered_clocks(
        rng, batch, samples, targets, np.dtype(np.float64), duplicates=False, hits=False
    )
    times, target_times = times * 100, target_times * 100  # far apart: a step of 1e-6 reaches no sample
    options = options | {"max_gap": None if options["max_gap"] is None else 1.5}
    lengths = torch.tensor([7, 4, 1], device=device) if layout != "one row" else None
    values = rng.standard_normal((batch, samples, features))
    if layout != "own clocks":
        times, target_times = times[0], target_times[0]
    if layout == "one row":
        values = values[0]
    inputs = [to_torch(x, device).requires_grad_() for x in (values, times, target_times)]

    def call(*tensors):
        out = robocache.resample_trajectories(*tensors, lengths=lengths, **options)
        return torch.nan_to_num(out, nan=0.0)

    # On CUDA the order of sums over times varies.
    assert torch.autograd.gradcheck(call, inputs, nondet_tol=1e-12 if device == "cuda" else 0)


def test_rule_19_duplicates_by_finite_differences_of_values(rng, device):
    times, target_times = jittered_clocks(rng, 2, 9, 15, np.dtype(np.float64))
    values = to_torch(rng.standard_normal((2, 9, 2)), device).requires_grad_()
    times, target_times = to_torch(times, device), to_torch(target_times, device)
    assert torch.autograd.gradcheck(lambda v: robocache.resample_trajectories(v, times, target_times), (values,))
