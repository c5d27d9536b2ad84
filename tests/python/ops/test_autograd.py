"""Rule 19: gradients of resample_trajectories, against finite differences and a naive oracle, on the CPU and on CUDA."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.gradients import slopes_of_linear, weights_of_samples

import robocache

torch = pytest.importorskip("torch")

# Of each floating type: half the distance of two neighbours around 1.
ROUNDING = {
    np.dtype(np.float64): 2.0**-53,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float16): 2.0**-11,
    np.dtype(ml_dtypes.bfloat16): 2.0**-8,
}
DTYPES = list(ROUNDING)
CLOCKS = [np.dtype(name) for name in ("float32", "float64", "int64")]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
each_clock = pytest.mark.parametrize("clock", CLOCKS, ids=lambda dtype: dtype.name)

# Every method with what it may be combined with.
CALLS = [
    {"method": method, "extrapolate": extrapolate, "causal": causal, "max_gap": max_gap}
    for method, extrapolate, causal, max_gap in itertools.product(
        ["linear", "nearest", "previous", "next"], ["clamp", "nan", "linear"], [False, True], [None, 0.015]
    )
    if not (method == "next" and causal) and not (method != "linear" and extrapolate == "linear")
]


def jittered(rng, batch, samples, targets, clock, *, duplicates=True, hits=True):
    """Times around 3 s, 10 ms apart and jittered, and targets in and around them in any order."""
    gaps = rng.uniform(0.2, 1.8, (batch, samples))
    if duplicates:
        gaps[rng.random((batch, samples)) < 0.2] = 0
    times = np.cumsum(gaps, axis=1) * 0.01 + 3
    first, last = times[:, :1], times[:, -1:]
    wanted = first + rng.uniform(-0.2, 1.2, (batch, targets)) * (last - first)
    if clock == np.int64:
        times, wanted = (np.round(x * 1e9).astype(np.int64) for x in (times, wanted))
    times, wanted = times.astype(clock), wanted.astype(clock)
    if hits:
        on_sample = np.take_along_axis(times, rng.integers(0, samples, (batch, targets)), axis=1)
        wanted = np.where(rng.random((batch, targets)) < 0.3, on_sample, wanted)
    return times, wanted


def in_clock(options, clock):
    """The options with durations in the clock's unit."""
    if clock != np.int64 or options.get("max_gap") is None:
        return options
    return options | {"max_gap": round(options["max_gap"] * 1e9)}


def gradients(device, values, times, targets, out_gradient, wanted=("values", "times", "target_times"), **options):
    """The gradients that are asked for, as NumPy arrays."""
    if isinstance(options.get("lengths"), np.ndarray):
        options["lengths"] = to_torch(options["lengths"], device)
    tensors = {
        name: to_torch(array, device).requires_grad_(name in wanted)
        for name, array in (("values", values), ("times", times), ("target_times", targets))
    }
    out = robocache.resample_trajectories(**tensors, **options)
    asked = [tensors[name] for name in wanted]
    made = torch.autograd.grad(out, asked, to_torch(out_gradient, device), allow_unused=False)
    for gradient, tensor in zip(made, asked, strict=True):
        assert gradient.dtype == tensor.dtype and gradient.shape == tensor.shape and gradient.device == tensor.device
    return [to_numpy(gradient) for gradient in made]


def random_gradient(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype)


# ---- To values ----


@each_dtype
@each_clock
def test_rule_19_gradient_of_values_is_what_each_sample_gave(rng, device, dtype, clock):
    """Bound: with the weights within 4 roundings of the work type, a product and a sum of n terms add n + 1 more; then one
    rounding to the type of the values."""
    batch, samples, targets, features = 3, 17, 41, 5
    work = ROUNDING[np.dtype(np.float64 if dtype == np.float64 and clock != np.float32 else np.float32)]
    for options in CALLS:
        options = in_clock(options, clock)
        times, wanted = jittered(rng, batch, samples, targets, clock)
        values = rng.standard_normal((batch, samples, features)).astype(dtype)
        out_gradient = random_gradient(rng, (batch, targets, features), dtype)
        lengths = rng.integers(0, samples + 1, batch)
        (made,) = gradients(device, values, times, wanted, out_gradient, ("values",), lengths=lengths, **options)
        weights = weights_of_samples(times, wanted, samples, lengths=lengths, **options)
        given = out_gradient.astype(np.float64)
        expected = np.einsum("bts,btd->bsd", weights, given)
        terms = np.count_nonzero(weights, axis=1)[..., None]
        # 1 - w is as far off as w: in units of the larger of both.
        size = np.einsum("bts,btd->bsd", np.where(weights != 0, np.maximum(1, np.abs(weights)), 0), np.abs(given))
        bound = (terms + 6) * work * size + ROUNDING[dtype] * np.abs(expected)
        if dtype == np.float16:
            bound += 2.0**-25  # the least subnormal's half
        assert (np.abs(made.astype(np.float64) - expected) <= bound).all(), options


@pytest.mark.parametrize("features", [1, 2, 7, 31, 64, 65, 128, 129, 300])
@pytest.mark.parametrize(("samples", "targets"), [(1, 3), (2, 1), (700, 1500)])
def test_rule_19_any_shape(rng, device, features, samples, targets):
    times, wanted = jittered(rng, 2, samples, targets, np.dtype(np.float64))
    values = rng.standard_normal((2, samples, features))
    out_gradient = rng.integers(-8, 9, (2, targets, features)).astype(np.float64)
    made = gradients(device, values, times, wanted, out_gradient, method="nearest")
    weights = weights_of_samples(times, wanted, samples, method="nearest")
    assert_same_bits(made[0], np.einsum("bts,btd->bsd", weights, out_gradient))  # whole numbers: exact
    assert not made[1].any() and not made[2].any()


@pytest.mark.parametrize("shape", [(0, 5, 4, 3), (2, 0, 4, 3), (2, 5, 0, 3), (2, 5, 4, 0)])
def test_rule_19_empty_dimensions(device, shape):
    batch, samples, targets, features = shape
    values = np.ones((batch, samples, features))
    times, wanted = np.ones((batch, samples)), np.ones((batch, targets))
    for gradient in gradients(device, values, times, wanted, np.ones((batch, targets, features))):
        assert not gradient.any()


def test_rule_19_of_samples_with_one_time_the_last_takes_all(device):
    values, times = np.zeros((4, 1)), np.array([0.0, 1.0, 1.0, 2.0])
    wanted = np.array([0.25, 1.0, 1.5])
    (made,) = gradients(device, values, times, wanted, np.ones((3, 1)), ("values",))
    assert made.ravel().tolist() == [0.75, 0, 0.25 + 1 + 0.5, 0.5]


def test_rule_19_held_samples_take_the_gradient_and_absent_targets_give_none(device):
    values, times = np.zeros((3, 1)), np.array([0.0, 1.0, 2.0])
    wanted = np.array([-1.0, 5.0, np.nan, np.inf])
    given = np.array([[1.0], [2.0], [4.0], [8.0]])
    (made,) = gradients(device, values, times, wanted, given, ("values",))
    assert made.ravel().tolist() == [1, 0, 2 + 8]
    (made,) = gradients(device, values, times, wanted, given, ("values",), extrapolate="nan")
    assert made.ravel().tolist() == [0, 0, 0]


# ---- To times ----


@each_dtype
@pytest.mark.parametrize("clock", CLOCKS[:2], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("extrapolate", ["clamp", "nan", "linear"])
@pytest.mark.parametrize("max_gap", [None, 0.015])
def test_rule_19_gradients_of_times_of_linear(rng, device, dtype, clock, extrapolate, max_gap):
    """Bound: the weight is within 4 roundings of the work type or of the clock's type and the gap within 1; sums are in
    float64; then one rounding to the clock's type."""
    batch, samples, targets, features = 3, 17, 41, 5
    if max_gap is not None:
        max_gap = float(clock.type(max_gap))
    times, wanted = jittered(rng, batch, samples, targets, clock)
    values = rng.standard_normal((batch, samples, features)).astype(dtype)
    out_gradient = random_gradient(rng, (batch, targets, features), dtype)
    lengths = rng.integers(0, samples + 1, batch)
    options = {"extrapolate": extrapolate, "max_gap": max_gap, "lengths": lengths}
    made = gradients(device, values, times, wanted, out_gradient, ("times", "target_times"), **options)
    *expected, size_of_times, size_of_targets = slopes_of_linear(values, times, wanted, out_gradient, **options)
    work = max(ROUNDING[clock], ROUNDING[np.dtype(np.float64 if dtype == np.float64 else np.float32)])
    for gradient, right, size in zip(made, expected, (size_of_times, size_of_targets), strict=True):
        bound = 8 * work * size + ROUNDING[clock] * np.abs(right) + targets * features * 2.0**-53 * size
        assert (np.abs(gradient.astype(np.float64) - right) <= bound).all()


def test_rule_19_a_hit_moves_with_the_bracket_after_it(device):
    values, times = np.array([[0.0], [10.0], [40.0]]), np.array([0.0, 1.0, 2.0])
    of_times, of_targets = gradients(
        device, values, times, np.array([0.0, 1.0, 2.0]), np.ones((3, 1)), ("times", "target_times")
    )
    assert of_targets.tolist() == [10, 30, 30]  # the last by the bracket before it
    assert of_times.tolist() == [-10, -30, -30]


@pytest.mark.parametrize("options", [{"method": "nearest"}, {"causal": True}, {"method": "next"}], ids=str)
def test_rule_19_what_holds_a_sample_does_not_move_with_times(rng, device, options):
    times, wanted = jittered(rng, 2, 9, 12, np.dtype(np.float64))
    made = gradients(device, rng.standard_normal((2, 9, 3)), times, wanted, np.ones((2, 12, 3)), **options)
    assert made[0].any() and not made[1].any() and not made[2].any()


def test_rule_19_int64_clocks_leave_the_gradient_to_values(rng, device):
    times, wanted = jittered(rng, 2, 9, 12, np.dtype(np.int64))
    (made,) = gradients(device, rng.standard_normal((2, 9, 3)), times, wanted, np.ones((2, 12, 3)), ("values",))
    assert made.sum() == pytest.approx(2 * 12 * 3)  # every target's weights add up to 1


# ---- Everything at once, by finite differences ----


@pytest.mark.parametrize("options", CALLS, ids=lambda o: "-".join(str(v) for v in o.values()))
@pytest.mark.parametrize("layout", ["rows", "shared clocks", "one row"])
def test_rule_19_gradcheck(rng, device, options, layout):
    """No hits and no repeated times: there is no derivative there to take differences of."""
    batch, samples, targets, features = 3, 7, 9, 2
    times, wanted = jittered(rng, batch, samples, targets, np.dtype(np.float64), duplicates=False, hits=False)
    times, wanted = times * 100, wanted * 100  # seconds apart: a difference of 1e-6 crosses nothing
    options = options | {"max_gap": None if options["max_gap"] is None else 1.5}
    lengths = torch.tensor([7, 4, 1], device=device) if layout != "one row" else None
    values = rng.standard_normal((batch, samples, features))
    if layout != "rows":
        times, wanted = times[0], wanted[0]
    if layout == "one row":
        values = values[0]
    inputs = [to_torch(x, device).requires_grad_() for x in (values, times, wanted)]

    def call(*tensors):
        out = robocache.resample_trajectories(*tensors, lengths=lengths, **options)
        return torch.nan_to_num(out, nan=0.0)

    # On CUDA sums over times come in any order.
    assert torch.autograd.gradcheck(call, inputs, nondet_tol=1e-12 if device == "cuda" else 0)


def test_rule_19_duplicates_by_finite_differences_of_values(rng, device):
    times, wanted = jittered(rng, 2, 9, 15, np.dtype(np.float64))
    values = to_torch(rng.standard_normal((2, 9, 2)), device).requires_grad_()
    times, wanted = to_torch(times, device), to_torch(wanted, device)
    assert torch.autograd.gradcheck(lambda v: robocache.resample_trajectories(v, times, wanted), (values,))


# ---- Curves and rotations ----

CURVES = [
    {"method": method, "extrapolate": extrapolate}
    for method in ("pchip", "akima", "cubic", "slerp", "pose")
    for extrapolate in ("clamp", "nan", "linear")
] + [{"method": "cubic", "extrapolate": "linear", "bc_type": "natural"}]
each_curve = pytest.mark.parametrize("options", CURVES, ids=lambda o: "-".join(o.values()))


def width(options):
    return {"slerp": 4, "pose": 7}.get(options["method"], 3)


@each_curve
@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 9])
def test_rule_19_gradcheck_of_curves(rng, device, options, samples):
    times, wanted = jittered(rng, 2, samples, 12, np.dtype(np.float64), duplicates=False, hits=False)
    values = rng.standard_normal((2, samples, width(options)))
    inputs = [to_torch(x, device).requires_grad_() for x in (values, times * 100, wanted * 100)]

    def call(*tensors):
        return torch.nan_to_num(robocache.resample_trajectories(*tensors, **options), nan=0.0)

    assert torch.autograd.gradcheck(call, inputs, nondet_tol=1e-12 if device == "cuda" else 0)


@each_curve
def test_rule_19_gradcheck_of_curves_over_repeated_times_and_hits(rng, device, options):
    times, wanted = jittered(rng, 2, 12, 15, np.dtype(np.float64))
    values = to_torch(rng.standard_normal((2, 12, width(options))), device).requires_grad_()
    times, wanted = to_torch(times * 100, device), to_torch(wanted * 100, device)

    def call(values):
        out = robocache.resample_trajectories(values, times, wanted, max_gap=1.5, **options)
        return torch.nan_to_num(out, nan=0.0)

    assert torch.autograd.gradcheck(call, (values,))


@pytest.mark.parametrize("method", ["pchip", "akima", "cubic"])
def test_rule_19_a_hit_moves_with_the_slope_of_the_curve(rng, device, method):
    """At a sample a curve has one slope: what finite differences on either side of it come to."""
    times, _ = jittered(rng, 2, 9, 1, np.dtype(np.float64), duplicates=False)
    times = times * 100
    values = rng.standard_normal((2, 9, 3))
    given = rng.standard_normal((2, 7, 3))
    hits = times[:, 1:-1]
    made = gradients(device, values, times, hits, given, method=method)
    tensors = [to_torch(x, device) for x in (values, times)]

    def central(step):
        after, before = (
            robocache.resample_trajectories(*tensors, to_torch(hits + move, device), method=method)
            for move in (step, -step)
        )
        return (to_numpy(after - before) * given).sum(2) / (2 * step)

    # The second derivative jumps at a sample, which is an error of the first order in the step: two steps cancel it.
    slope = 2 * central(0.5e-5) - central(1e-5)
    np.testing.assert_allclose(made[2], slope, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(made[1][:, 1:-1], -slope, rtol=1e-5, atol=1e-5)
    assert_same_bits(made[0][:, 1:-1], given)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda dtype: dtype.name)
@each_curve
def test_rule_19_curves_of_other_types_have_the_gradients_of_float64(rng, device, options, dtype):
    """Bound: derivatives are in float64 of the values as they are, so what differs is the weight's rounding to float32,
    which a derivative of magnitude below 32 takes to 32 roundings, each sum's, and the last one's."""
    times, wanted = jittered(rng, 2, 9, 21, np.dtype(np.float64))
    values = rng.standard_normal((2, 9, width(options))).astype(dtype)
    given = rng.standard_normal((2, 21, width(options))).astype(dtype)
    made = gradients(device, values, times, wanted, given, ("values",), **options)
    exact = gradients(
        device, values.astype(np.float64), times, wanted, given.astype(np.float64), ("values",), **options
    )
    size = np.abs(given.astype(np.float64)).sum(axis=(1, 2), keepdims=True)
    bound = (32 + 21) * 32 * 2.0**-24 * size + ROUNDING[dtype] * np.abs(exact[0])
    assert (np.abs(made[0].astype(np.float64) - exact[0]) <= bound).all()


def test_rule_19_each_block_of_features_has_the_gradient_of_its_method(rng, device):
    times, wanted = jittered(rng, 2, 9, 12, np.dtype(np.float64))
    values, given = rng.standard_normal((2, 9, 15)), rng.standard_normal((2, 12, 15))
    blocks = [
        (slice(0, 3), "pchip"),
        (slice(3, 7), "slerp"),
        (slice(7, 11), "slerp"),
        (slice(11, 12), "nearest"),
        (slice(12, 14), "cubic"),
        (slice(14, 15), "linear"),
    ]
    made = gradients(device, values, times, wanted, given, methods=blocks[:-1])
    alone = [
        gradients(device, values[..., features], times, wanted, given[..., features], method=method)
        for features, method in blocks
    ]
    np.testing.assert_allclose(made[0], np.concatenate([one[0] for one in alone], axis=2), rtol=1e-12, atol=1e-12)
    for place in (1, 2):
        np.testing.assert_allclose(made[place], sum(one[place] for one in alone), rtol=1e-9, atol=1e-9)


def test_rule_19_targets_past_their_length_give_nothing(rng, device):
    times, wanted = jittered(rng, 2, 9, 12, np.dtype(np.float64))
    values, given = rng.standard_normal((2, 9, 3)), rng.standard_normal((2, 12, 3))
    lengths = torch.tensor([5, 0], device=device)
    made = gradients(device, values, times, wanted, given, target_lengths=lengths)
    given[0, 5:] = given[1] = 0
    for gradient, expected in zip(made, gradients(device, values, times, wanted, given), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-12)


@each_dtype
def test_rule_19_values_gradient_has_the_same_bits_on_cpu_and_cuda(rng, cuda, dtype):
    times, wanted = jittered(rng, 5, 300, 700, np.dtype(np.float32))
    values = rng.standard_normal((5, 300, 24)).astype(dtype)
    out_gradient = random_gradient(rng, (5, 700, 24), dtype)
    # Rotations apart: sines differ by an ulp.
    curves = [options for options in CURVES if options["method"] in ("pchip", "akima", "cubic")]
    for options in CALLS + curves:
        arrays = values, times, wanted, out_gradient, ("values",)
        assert_same_bits(gradients(cuda, *arrays, **options)[0], gradients("cpu", *arrays, **options)[0], str(options))


# ---- Layouts ----


def test_rule_19_strides_are_free(rng, device):
    times, wanted = jittered(rng, 4, 9, 12, np.dtype(np.float64))
    values, given = rng.standard_normal((4, 9, 6)), rng.standard_normal((4, 12, 6))
    expected = gradients(device, values, times, wanted, given)

    backwards = to_torch(values.transpose(2, 0, 1), device).requires_grad_()
    every_other = to_torch(np.repeat(times, 2, axis=1), device).requires_grad_()
    targets = to_torch(wanted.T, device).requires_grad_()
    out = robocache.resample_trajectories(backwards.permute(1, 2, 0), every_other[:, ::2], targets.T)
    out.backward(to_torch(given.transpose(1, 2, 0), device).permute(2, 0, 1))
    assert_same_bits(to_numpy(backwards.grad).transpose(1, 2, 0), expected[0])
    np.testing.assert_allclose(to_numpy(every_other.grad)[:, ::2], expected[1], rtol=1e-12, atol=1e-9)
    assert not to_numpy(every_other.grad)[:, 1::2].any()
    np.testing.assert_allclose(to_numpy(targets.grad).T, expected[2], rtol=1e-12, atol=1e-9)


def test_rule_19_what_is_expanded_sums_its_gradients(rng, device):
    times, wanted = jittered(rng, 1, 9, 12, np.dtype(np.float64))
    row = to_torch(rng.standard_normal((9, 3)), device).requires_grad_()
    clock = to_torch(times[0], device).requires_grad_()
    targets = to_torch(wanted[0], device).requires_grad_()
    out = robocache.resample_trajectories(row.expand(5, -1, -1), clock.expand(5, -1), targets.expand(5, -1))
    expanded = torch.autograd.grad(out.sum(), (row, clock, targets))
    shared = torch.autograd.grad(
        robocache.resample_trajectories(row.expand(5, -1, -1), clock, targets).sum(), (row, clock, targets)
    )
    single = torch.autograd.grad(robocache.resample_trajectories(row, clock, targets).sum(), (row, clock, targets))
    for a, b, c in zip(expanded, shared, single, strict=True):
        torch.testing.assert_close(a, 5 * c, rtol=1e-12, atol=1e-9)
        torch.testing.assert_close(b, 5 * c, rtol=1e-12, atol=1e-9)


def test_rule_19_views_whose_sign_torch_has_not_applied_yet(device):
    values = torch.complex(torch.zeros(4, 2), torch.ones(4, 2)).to(device).requires_grad_()
    times = torch.arange(4.0, device=device)
    out = robocache.resample_trajectories(values.conj().imag, times, times)
    assert out.tolist() == [[-1, -1]] * 4
    (made,) = torch.autograd.grad(out.sum(), values)
    assert made.imag.tolist() == [[-1, -1]] * 4


# ---- What a gradient of 0 keeps out ----


def test_rule_19_what_a_mask_took_out_brings_no_nan_back(device):
    values = np.array([[1.0], [np.nan], [3.0], [4.0]])
    times, wanted = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.5, 1.5, 2.5])
    given = np.array([[0.0], [0.0], [1.0]])
    of_values, of_times, of_targets = gradients(device, values, times, wanted, given)
    assert of_values.ravel().tolist() == [0, 0, 0.5, 0.5]
    assert of_times.tolist() == [0, 0, -0.5, -0.5]
    assert of_targets.tolist() == [0, 0, 1]


@pytest.mark.parametrize("method", ["pchip", "akima", "slerp"])
def test_rule_19_curves_take_no_nan_from_where_the_gradient_is_0(rng, device, method):
    times = np.arange(12.0)
    wanted = rng.uniform(0, 11, 40)
    values = rng.standard_normal((12, 4))
    values[3] = np.nan
    given = rng.standard_normal((40, 4))
    given[wanted < 6] = 0  # whatever may look at sample 3
    poisoned_values = gradients(device, values, times, wanted, given, method=method)
    values[3] = 7
    for a, b in zip(poisoned_values, gradients(device, values, times, wanted, given, method=method), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_rule_19_a_hit_takes_its_gradient_whatever_its_neighbours_hold(device):
    values, times = np.array([[1.0], [2.0], [np.nan], [4.0]]), np.array([0.0, 1.0, 2.0, 3.0])
    for method in ("linear", "pchip", "akima", "nearest"):
        (made,) = gradients(device, values, times, times[[1, 3]], np.array([[1.0], [2.0]]), ("values",), method=method)
        assert made.ravel().tolist() == [0, 1, 0, 2]


# ---- Determinism: rules 19 and 20 ----


def test_rule_19_the_cpu_gives_the_same_bits_on_any_number_of_threads(rng):
    import os

    times, wanted = jittered(rng, 16, 200, 300, np.dtype(np.float32))
    values = rng.standard_normal((16, 200, 33)).astype(np.float32)
    given = rng.standard_normal((16, 300, 33)).astype(np.float32)
    try:
        made = []
        for threads in (1, 2, 7):
            robocache.set_num_threads(threads)
            made.append(gradients("cpu", values, times, wanted, given))
        for other in made[1:]:
            for a, b in zip(made[0], other, strict=True):
                assert_same_bits(b, a)
    finally:
        robocache.set_num_threads(os.cpu_count())


# ---- fuse_multimodal ----


def streams_of(rng, device, targets=9):
    """Streams of every kind of method, each with its own clock, and what they are fused with."""
    widths = {"arm": 3, "hand": 2, "head": 4, "wheels": 2, "base": 7}
    streams = {}
    for name, width in widths.items():
        times, _ = jittered(rng, 2, 8, 1, np.dtype(np.float64), duplicates=False)
        values = rng.standard_normal((2, 8, width))
        streams[name] = tuple(to_torch(x, device).requires_grad_() for x in (values, times * 100))
    first, last = (max(float(times.min()) for _, times in streams.values()) + shift for shift in (-0.5, 7))
    wanted = to_torch(rng.uniform(first, last, (2, targets)), device).requires_grad_()
    options = {
        "method": {"hand": "pchip", "head": "slerp", "wheels": "cubic", "base": "pose"},
        "scale": {"arm": torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64, device=device), "hand": 3.0},
        "shift": {"arm": 1.0},
        "offset": {"hand": 0.25},
        "lengths": {"arm": torch.tensor([5, 8], device=device)},
        "extrapolate": {"arm": "linear", "wheels": "linear"},
    }
    return streams, wanted, options


@pytest.mark.parametrize("output", ["concat", "dict"])
def test_rule_19_gradcheck_of_fuse(rng, device, output):
    streams, wanted, options = streams_of(rng, device)
    names = list(streams)

    def call(wanted, *arrays):
        pairs = zip(arrays[::2], arrays[1::2], strict=True)
        made = robocache.fuse_multimodal(dict(zip(names, pairs, strict=True)), wanted, output=output, **options)
        return tuple(made.values()) if output == "dict" else made

    inputs = (wanted, *itertools.chain.from_iterable(streams.values()))
    assert torch.autograd.gradcheck(call, inputs, nondet_tol=1e-12 if device == "cuda" else 0)


def test_rule_19_fuse_has_the_gradients_of_its_streams_one_by_one(rng, device):
    streams, wanted, _ = streams_of(rng, device)
    given = to_torch(rng.standard_normal((2, 9, 5)), device)
    arm, hand = streams["arm"], streams["hand"]
    fused = robocache.fuse_multimodal([arm, hand], wanted, method=["linear", "akima"])
    made = torch.autograd.grad(fused, (*arm, *hand, wanted), given)
    alone = [
        torch.autograd.grad(robocache.resample_trajectories(*stream, wanted, method=method), (*stream, wanted), part)
        for stream, method, part in ((arm, "linear", given[..., :3]), (hand, "akima", given[..., 3:]))
    ]
    expected = *alone[0][:2], *alone[1][:2], alone[0][2] + alone[1][2]
    for a, b in zip(made, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-9)


def test_rule_19_fuse_gradients_count_in_each_clocks_own_unit(device):
    """Seconds as targets of a stream in nanoseconds: 10 per second is 10 per second."""
    values = torch.tensor([[0.0], [10.0]], dtype=torch.float64, device=device)
    stamps = torch.tensor([0, 1_000_000_000], device=device)
    wanted = torch.tensor([0.25], dtype=torch.float64, device=device, requires_grad=True)
    robocache.fuse_multimodal([(values, stamps)], wanted).sum().backward()
    assert wanted.grad.tolist() == [10]

    times = torch.tensor([0.0, 1.0], dtype=torch.float64, device=device, requires_grad=True)
    wanted = torch.tensor([250_000_000], device=device)
    robocache.fuse_multimodal([(values, times)], wanted).sum().backward()
    assert times.grad.tolist() == [-7.5, -2.5]


def test_rule_19_fuse_of_other_types_rounds_once(rng, device):
    """16-bit values, a float32 clock, int32 counts scaled to a float: each gradient has the type of what it is of."""
    values = to_torch(rng.standard_normal((2, 8, 3)), device).to(torch.bfloat16).requires_grad_()
    counts = torch.arange(8, dtype=torch.int32, device=device)[:, None].expand(2, 8, 1)
    times = torch.arange(8.0, device=device).requires_grad_()
    wanted = torch.tensor([0.5, 2.25, 6.75], dtype=torch.float64, device=device, requires_grad=True)
    fused = robocache.fuse_multimodal(
        [(values, times), (counts, times)], wanted, method=["linear", "previous"], scale=[None, 0.5], dtype="float32"
    )
    made = torch.autograd.grad(fused.sum(), (values, times, wanted))
    assert [x.dtype for x in made] == [torch.bfloat16, torch.float32, torch.float64]
    expected = torch.zeros(8, device=device)
    for left, w in ((0, 0.5), (2, 0.25), (6, 0.75)):
        expected[left] += 1 - w
        expected[left + 1] += w
    assert torch.equal(made[0].float(), expected[None, :, None].expand(2, 8, 3))


def test_rule_19_fuse_carries_no_gradient_where_it_cannot(rng, device):
    streams, wanted, _ = streams_of(rng, device)
    (values, times), wanted = streams["arm"], wanted.detach()
    out, valid, age = robocache.fuse_multimodal([(values, times)], wanted, return_valid=True, return_age=True)
    assert out.requires_grad and not valid.requires_grad and not age.requires_grad
    scale = torch.ones(3, dtype=torch.float64, device=device, requires_grad=True)
    with pytest.raises(robocache.ArgumentError, match=r"scale: .*gradients"):
        robocache.fuse_multimodal([(values, times)], wanted, scale=scale)
    with pytest.raises(robocache.ArgumentError, match=r"out: .*gradients"):
        robocache.fuse_multimodal([(values, times)], wanted, out=torch.empty_like(out))
    with torch.no_grad():
        assert not robocache.fuse_multimodal([(values, times)], wanted, scale=scale).requires_grad
    (gradient,) = torch.autograd.grad(out.square().sum(), values, create_graph=True)
    with pytest.raises(robocache.ArgumentError, match="first derivatives"):
        gradient.sum().backward()


# ---- torch's graph ----


def ramp(device):
    values = torch.arange(10.0, device=device, dtype=torch.float64).reshape(5, 2).requires_grad_()
    return values, torch.arange(5.0, device=device, dtype=torch.float64)


def test_no_graph_is_made_where_gradients_are_off(device):
    values, times = ramp(device)
    with torch.no_grad():
        assert not robocache.resample_trajectories(values, times, times).requires_grad
    with torch.inference_mode():
        assert not robocache.resample_trajectories(values, times, times).requires_grad
    assert not robocache.resample_trajectories(values.detach(), times, times).requires_grad


def test_valid_has_no_gradient(device):
    values, times = ramp(device)
    out, valid = robocache.resample_trajectories(values, times, times + 0.5, return_valid=True)
    assert out.requires_grad and not valid.requires_grad
    assert valid.tolist() == [True] * 4 + [False]
    out.sum().backward()
    assert values.grad is not None and times.grad is None


def test_integers_with_a_clock_that_wants_a_gradient_have_none(device):
    values = torch.arange(5, device=device)[:, None]
    times = torch.arange(5.0, device=device).requires_grad_()
    assert not robocache.resample_trajectories(values, times, times, method="nearest").requires_grad


def test_a_tensor_changed_after_the_call_is_noticed(device):
    values, times = ramp(device)
    times = times.clone()
    out = robocache.resample_trajectories(values, times, times + 0.5)
    times += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_second_derivative_is_refused(device):
    values, times = ramp(device)
    (gradient,) = torch.autograd.grad(
        robocache.resample_trajectories(values, times, times).square().sum(), values, create_graph=True
    )
    with pytest.raises(robocache.ArgumentError, match="first derivatives"):
        gradient.sum().backward()


def test_forward_mode_is_refused(device):
    values, times = ramp(device)
    values = values.detach()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(values, values)
        with pytest.raises(NotImplementedError, match="forward mode"):
            robocache.resample_trajectories(dual, times, times)


def test_out_carries_no_gradient(device):
    values, times = ramp(device)
    out = torch.empty_like(values, requires_grad=False)
    with pytest.raises(robocache.ArgumentError, match=r"out: .*gradients"):
        robocache.resample_trajectories(values, times, times, out=out)
    with torch.no_grad():
        robocache.resample_trajectories(values, times, times, out=out)
    assert torch.equal(out, values)


def test_arrays_of_another_framework_carry_no_gradient(device):
    times = torch.arange(4.0, dtype=torch.float64, requires_grad=True)
    with pytest.raises(robocache.ArgumentTypeError, match=r"values: .*torch"):
        robocache.resample_trajectories(np.zeros((4, 2)), times, times)


def test_errors_name_the_argument_where_gradients_are_on(device):
    values, times = ramp(device)
    with pytest.raises(robocache.ArgumentError, match="method"):
        robocache.resample_trajectories(values, times, times, method="cubicle")
    with pytest.raises(robocache.ArgumentError, match="times"):
        robocache.resample_trajectories(values, times[:3], times)


def test_the_backward_pass_leaves_nothing_on_the_default_stream(cuda):
    """Forward and backward on a side stream, the gradient arriving late there."""
    times = torch.arange(64.0, device=cuda)
    values = torch.ones(64, 256, device=cuda, requires_grad=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = robocache.resample_trajectories(values, times, times)
        given = torch.zeros_like(out)
        torch.cuda._sleep(50_000_000)
        given.fill_(3)
        (made,) = torch.autograd.grad(out, values, given)
    stream.synchronize()
    assert (made == 3).all()


def test_forward_and_backward_are_captured_in_a_cuda_graph(rng, cuda):
    times, wanted = jittered(rng, 2, 9, 12, np.dtype(np.float64))
    tensors = [to_torch(x, cuda).requires_grad_() for x in (rng.standard_normal((2, 9, 3)), times, wanted)]
    given = torch.ones(2, 12, 3, device=cuda, dtype=torch.float64)

    def step():
        return torch.autograd.grad(robocache.resample_trajectories(*tensors), tensors, given)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(2):
        with torch.no_grad():
            tensors[0].copy_(to_torch(rng.standard_normal((2, 9, 3)), cuda))
            given.copy_(to_torch(rng.standard_normal((2, 12, 3)), cuda))
        graph.replay()
        for made, expected in zip(captured, step(), strict=True):
            torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-9)
