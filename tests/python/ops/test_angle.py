"""Rule 8, the method `angle`, in resample_trajectories and fuse_multimodal, on the CPU and on CUDA.

The oracle computes with integers (tests/reference/angle.py); the bound is rule 8.2's in docs/rules.md.
"""

import functools
import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import curve_calls
from reference.compare import assert_same_bits, assert_within, to_numpy, to_torch
from reference.curve_calls import each_clock, each_float, random_times
from reference.random_streams import CLOCKS, EPOCH_NS, FLOATS, random_targets
from reference.resample import resample as linear_oracle
from reference.resample import resample_curve

import robocache

torch = pytest.importorskip("torch")

PI = {dtype: np.array(np.pi).astype(dtype)[()] for dtype in FLOATS}
resample = functools.partial(curve_calls.resample, method="angle")


def check(values, times, targets, device="cpu", **options):
    out, valid = resample(values, times, targets, device, **options)
    expected = resample_curve(values, times, targets, method="angle", **options)
    assert_same_bits(valid, expected.valid, f"valid, {options}")
    interpolated = expected.bound > 0
    is_wrapped = np.abs(out.astype(np.float64)) <= float(PI[values.dtype])
    assert (is_wrapped | np.isnan(out.astype(np.float64)) | ~interpolated).all()
    if values.dtype.itemsize >= 4:
        assert not (interpolated & (out == PI[values.dtype])).any()
    # Angles are equal modulo 2 pi.
    with np.errstate(invalid="ignore"):
        turns = np.rint((out.astype(np.float64) - expected.exact) / (2 * np.pi))
    exact = np.where(interpolated & np.isfinite(turns), expected.exact + 2 * np.pi * turns, expected.exact)
    assert_within(out, expected._replace(exact=exact), f"values, {options}")


def random_angles(rng, shape, dtype):
    """Returns angles on the circle, at its seam, several turns away, and some NaN or infinite."""
    x = rng.uniform(-np.pi, np.pi, shape)
    seam = rng.choice([np.pi, -np.pi, np.pi / 2, -np.pi / 2, 0.0, 2 * np.pi], shape)
    seam = seam + rng.standard_normal(shape) * np.exp2(-rng.integers(5, 60, shape).astype(float))
    x = np.where(rng.random(shape) < 0.4, seam, x)
    x = np.where(rng.random(shape) < 0.3, x + rng.standard_normal(shape) * np.exp2(rng.integers(0, 16, shape)), x)
    x = np.where(rng.random(shape) < 0.02, rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e-41], shape), x)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def random_case(rng, dtype, clock, *, batch=3, samples=17, targets=37, features=5):
    times = random_times(rng, batch, samples, clock)
    return random_angles(rng, (batch, samples, features), dtype), times, random_targets(rng, times, targets)


# ---- Against the oracle ----


@each_float
@each_clock
def test_rule_8_every_option_is_within_the_bound(rng, device, dtype, clock):
    gap = 12_000_000 if clock == np.int64 else 0.012
    for extrapolate, causal, max_gap in itertools.product(["clamp", "nan", "linear"], [False, True], [None, gap]):
        options = {"extrapolate": extrapolate, "causal": causal, "max_gap": max_gap}
        case = random_case(rng, dtype, clock)
        check(*case, device, lengths=rng.integers(0, 18, 3), **options)
        check(*case, device, target_lengths=rng.integers(0, 38, 3), **options)


@each_float
@pytest.mark.parametrize("features", [1, 2, 3, 6, 7, 8, 12, 16, 64, 65])
def test_rule_8_every_feature_count_is_within_the_bound(rng, device, dtype, features):
    check(*random_case(rng, dtype, np.dtype(np.float64), batch=2, features=features), device)


any_angle = st.one_of(
    st.integers(-8, 8).map(lambda quarters: quarters * np.pi / 2), st.floats(-1e5, 1e5, width=32, allow_subnormal=False)
)


@given(data=st.data())
def test_rule_8_any_small_row_is_within_the_bound(device, data):
    clock, dtype = data.draw(st.sampled_from(CLOCKS)), data.draw(st.sampled_from(FLOATS[:2]))
    times = 2 * np.array(data.draw(st.lists(st.integers(0, 9), max_size=10).map(sorted)), np.int64)
    targets = np.array(data.draw(st.lists(st.integers(-3, 22), max_size=8)), np.int64)
    times, targets = (x + EPOCH_NS if clock == np.int64 else (x / 2).astype(clock) for x in (times, targets))
    drawn = data.draw(st.lists(any_angle, min_size=len(times), max_size=len(times)))
    values = np.array(drawn, np.float64).astype(dtype).reshape(len(times), 1)
    check(values, times, targets, device, extrapolate=data.draw(st.sampled_from(["clamp", "nan", "linear"])))


@each_float
@each_clock
def test_rule_8_the_same_bits_on_cpu_and_cuda(rng, cuda, dtype, clock):
    for extrapolate, features in itertools.product(["clamp", "linear"], [1, 7, 8, 64]):
        case = random_case(rng, dtype, clock, batch=9, samples=300, targets=700, features=features)
        on_cpu, on_cuda = (resample(*case, device, extrapolate=extrapolate)[0] for device in ("cpu", cuda))
        assert_same_bits(on_cuda, on_cpu)


# ---- The direction, and the range of results ----


@each_float
@each_clock
def test_rule_8_without_wraps_angle_equals_linear(rng, device, dtype, clock):
    times = random_times(rng, 3, 17, clock)
    values = rng.uniform(-1.5, 1.5, (3, 17, 6)).astype(dtype)
    targets = random_targets(rng, times, 60)
    for extrapolate in ("clamp", "nan"):
        out, valid = resample(values, times, targets, device, extrapolate=extrapolate)
        expected, expected_valid = linear_oracle(values, times, targets, extrapolate=extrapolate)
        assert_same_bits(out, expected)
        assert_same_bits(valid, expected_valid)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda dtype: dtype.name)
def test_rule_8_interpolation_crosses_the_seam(device, dtype):
    values = np.array([[3.0, -3.0, 170.0], [-3.0, 3.0, -170.0]]).astype(dtype)
    values[:, 2] = np.radians(values[:, 2])
    out, _ = resample(values, np.array([0.0, 1.0]), np.array([0.25, 0.5, 0.75]), device)
    step = 2 * np.pi - 6
    expected = np.array(
        [
            [3 + step / 4, -3 - step / 4, np.radians(175)],
            [-np.pi, -np.pi, -np.pi],
            [-3 - step / 4, 3 + step / 4, -np.radians(175)],
        ]
    )
    error = np.abs(out - expected)
    assert (np.minimum(error, 2 * np.pi - error) < 8 * np.finfo(dtype).eps).all()
    assert np.sign(out[[0, 2]]).tolist() == np.sign(expected[[0, 2]]).tolist()


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda dtype: dtype.name)
def test_rule_8_half_a_turn_is_interpolated_like_numbers(device, dtype):
    pi = PI[dtype]
    values = np.array([[0, 0, -pi / 2, pi / 2], [pi, -pi, pi / 2, -pi / 2]], dtype)
    out, _ = resample(values, np.array([0.0, 1.0]), np.array([0.25, 0.5]), device)
    np.testing.assert_allclose(out, [[pi / 4, -pi / 4, -pi / 4, pi / 4], [pi / 2, -pi / 2, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda dtype: dtype.name)
def test_rule_8_pi_becomes_minus_pi(device, dtype):
    pi = PI[dtype]
    values = np.array([[0.75 * pi, -0.75 * pi], [1.25 * pi, -1.25 * pi]], dtype)
    out, _ = resample(values, np.array([0.0, 1.0]), np.array([0.5]), device)
    assert_same_bits(out, np.full((1, 2), -pi))


@pytest.mark.parametrize("dtype", FLOATS[2:], ids=lambda dtype: dtype.name)
def test_rule_8_16_bits_may_round_to_their_own_pi(device, dtype):
    assert float(PI[dtype]) < np.pi
    values = np.array([[3.125], [-3.125]]).astype(dtype)
    out, _ = resample(values, np.array([0.0, 1.0]), np.linspace(0, 1, 65), device)
    assert set(np.abs(out.astype(np.float64)).ravel()) <= {3.125, 3.126953125, *np.arange(3.125, 3.141, 2.0**-9)}
    assert (np.abs(out.astype(np.float64)) < np.pi).all()
    assert PI[dtype] in out


@each_float
def test_rule_8_whole_turns_do_not_matter(rng, device, dtype):
    """An encoder that counts turns and a wrapped one agree within the sum of their bounds."""
    angle = np.cumsum(rng.uniform(-0.4, 0.4, 50)) + np.linspace(0, 40, 50)
    unwrapped = angle[:, None].astype(dtype)
    wrapped = np.angle(np.exp(1j * unwrapped.astype(np.float64))).astype(dtype)
    targets = np.linspace(0, 49, 333)[1:-1]
    check(unwrapped, np.arange(50.0), targets, device)
    by_unwrapped, by_wrapped = (
        resample(x, np.arange(50.0), targets, device)[0].astype(np.float64) for x in (unwrapped, wrapped)
    )
    rounding = {8: 2.0**-53, 4: 2.0**-24}.get(dtype.itemsize, 2.0**-11 if dtype == np.float16 else 2.0**-8)
    is_between = targets != np.round(targets)
    error = np.abs(np.angle(np.exp(1j * (by_unwrapped - by_wrapped))))[is_between]
    assert (error <= 150 * rounding).all()


def test_rule_8_a_non_finite_sample_gives_nan_in_its_feature_alone(device):
    values = np.array([[0, 1, 2, 3], [np.nan, np.inf, -np.inf, 3.1], [0, 1, 2, 3]], np.float32)
    out, valid = resample(values, np.arange(3.0), np.array([0.5, 1.5]), device)
    assert np.isnan(out).tolist() == [[True, True, True, False]] * 2
    assert valid.all()


def test_rule_11_linear_extrapolates_around_the_circle(device):
    values, times = np.array([[0.0], [1.0], [3.0], [-3.0]]), np.array([0.0, 1.0, 2.0, 2.5])
    targets = np.array([-1.0, -4.0, 3.0, 20.0])
    out, valid = resample(values, times, targets, device, extrapolate="linear")
    rate = (2 * np.pi - 6) / 0.5
    expected = np.angle(np.exp(1j * np.array([[-1.0], [-4.0], [-3 + rate / 2], [-3 + rate * 17.5]])))
    np.testing.assert_allclose(out, expected, atol=1e-13)
    assert not valid.any()


# ---- Arguments ----


def test_rule_9_angles_beside_other_methods(rng, device):
    values, times, targets = random_case(rng, FLOATS[1], np.dtype(np.int64), features=9)
    methods = [(slice(3, 6), "angle"), (slice(-1, None), "nearest")]
    out, _ = resample(values, times, targets, device, method="linear", methods=methods)
    angles, _ = resample(values[..., 3:6], times, targets, device)
    assert_same_bits(out[..., 3:6], angles)
    assert_same_bits(out[..., :3], linear_oracle(values[..., :3], times, targets)[0])
    assert_same_bits(out[..., 8:], linear_oracle(values[..., 8:], times, targets, method="nearest")[0])


@each_clock
def test_fused_angles_equal_resample_scaled_before_rounding(rng, device, clock):
    values, times, targets = random_case(rng, FLOATS[1], clock)
    speeds = rng.standard_normal((3, 17, 2)).astype(np.float32)
    streams = {
        "yaw": (to_torch(values, device), to_torch(times, device)),
        "v": (to_torch(speeds, device), to_torch(times, device)),
    }
    target_times = to_torch(targets, device)
    angles, valid = resample(values, times, targets, device)
    out, valids = robocache.fuse_multimodal(streams, target_times, method={"yaw": "angle"}, return_valid=True)
    assert_same_bits(to_numpy(out)[..., :5], angles)
    assert_same_bits(to_numpy(valids)[..., 0], valid)
    degrees = robocache.fuse_multimodal(
        streams, target_times, method={"yaw": "angle"}, scale={"yaw": 180 / np.pi}, dtype=torch.float16, output="dict"
    )["yaw"]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (angles * np.float32(180 / np.pi) + np.float32(0)).astype(np.float16)
    assert_same_bits(to_numpy(degrees), expected)


# ---- Gradients: rule 19 ----


def gradients(device, values, times, targets, out_gradient, **options):
    tensors = [to_torch(x, device).requires_grad_() for x in (values, times, targets)]
    out = robocache.resample_trajectories(*tensors, method="angle", **options)
    return [to_numpy(x) for x in torch.autograd.grad(out, tensors, to_torch(out_gradient, device))]


@pytest.mark.parametrize("extrapolate", ["clamp", "nan", "linear"])
def test_rule_19_gradients_equal_those_of_unwrapped_values(rng, device, extrapolate):
    """Derivatives of wrapped and unwrapped values are the same."""
    line = np.cumsum(rng.uniform(-2.5, 2.5, (2, 12, 3)), axis=1)
    circle = np.angle(np.exp(1j * line))
    times = np.cumsum(rng.uniform(0.5, 1.5, (2, 12)), axis=1)
    targets = np.concatenate([rng.uniform(0, 14, (2, 20)), times[:, ::3]], axis=1)  # with targets on rows
    out_gradient = rng.standard_normal((2, 24, 3))
    result = gradients(device, circle, times, targets, out_gradient, extrapolate=extrapolate)
    tensors = [to_torch(x, device).requires_grad_() for x in (line, times, targets)]
    out = robocache.resample_trajectories(*tensors, method="linear", extrapolate=extrapolate)
    expected = torch.autograd.grad(out, tensors, to_torch(out_gradient, device))
    for gradient, expected_gradient in zip(result, expected, strict=True):
        np.testing.assert_allclose(gradient, to_numpy(expected_gradient), rtol=1e-12, atol=1e-12)


def test_rule_19_gradcheck_of_angles(rng, device):
    values = rng.uniform(-3, 3, (2, 9, 3))
    times = np.cumsum(rng.uniform(0.5, 1.5, (2, 9)), axis=1)
    targets = rng.uniform(0, 10, (2, 15))
    inputs = [to_torch(x, device).requires_grad_() for x in (values, times, targets)]

    def call(*tensors):  # sine and cosine do not jump at the seam
        out = robocache.resample_trajectories(*tensors, method="angle", extrapolate="linear")
        return torch.stack([out.sin(), out.cos()])

    assert torch.autograd.gradcheck(call, inputs, nondet_tol=1e-12 if device == "cuda" else 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rule_19_the_gradient_of_values_equals_linears(rng, device, dtype):
    times = np.cumsum(rng.uniform(0.5, 1.5, (2, 9)), axis=1)
    targets = rng.uniform(0, 10, (2, 15))
    values = rng.uniform(-3, 3, (2, 9, 3)).astype(dtype)
    out_gradient = rng.standard_normal((2, 15, 3)).astype(dtype)
    result = gradients(device, values, times, targets, out_gradient)[0]
    tensor = to_torch(values, device).requires_grad_()
    out = robocache.resample_trajectories(tensor, to_torch(times, device), to_torch(targets, device))
    assert_same_bits(result, to_numpy(torch.autograd.grad(out, tensor, to_torch(out_gradient, device))[0]))
