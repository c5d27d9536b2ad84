"""Rule 8 of slerp and pose in resample_trajectories, on the CPU and on CUDA."""

import itertools

import numpy as np
import pytest
from reference.compare import assert_same_bits, name_of
from reference.curve_calls import check, each_clock, each_float, float32, random_case, resample
from reference.random_streams import FLOATS
from reference.resample import resample as oracle

pytest.importorskip("torch")


def quaternion(axis, degrees):
    half = np.radians(degrees) / 2
    return np.append(np.sin(half) * np.asarray(axis, np.float64), np.cos(half))


@each_float
def test_rule_8_slerp_has_a_constant_rate(device, dtype):
    values = np.stack([quaternion([0, 0, 1], 10), quaternion([0, 0, 1], 110)]).astype(dtype)
    targets = np.linspace(0, 1, 11)
    out, _ = resample(values, np.array([0.0, 1.0]), targets, device, method="slerp")
    expected = np.stack([quaternion([0, 0, 1], 10 + 100 * t) for t in targets])
    np.testing.assert_allclose(
        out.astype(np.float64), expected, rtol=0, atol=4 * 2.0 ** {8: -53, 4: -23}.get(dtype.itemsize, -8)
    )


def test_rule_8_slerp_takes_the_shortest_arc(device):
    a, b = quaternion([0, 0, 1], 0), quaternion([0, 0, 1], 60)
    for sign_a, sign_b in itertools.product([1, -1], [1, -1]):
        out, _ = resample(
            np.stack([sign_a * a, sign_b * b]), np.array([0.0, 1.0]), np.array([0.5]), device, method="slerp"
        )
        np.testing.assert_allclose(out[0], sign_a * quaternion([0, 0, 1], 30), rtol=0, atol=1e-15)


def test_rule_8_the_order_of_components_does_not_matter(rng, device):
    values, times, targets = random_case(rng, float32, np.dtype(np.float64), method="slerp", special=False)
    out, _ = resample(values, times, targets, device, method="slerp")
    order = [3, 0, 1, 2]
    reordered, _ = resample(values[..., order], times, targets, device, method="slerp")
    np.testing.assert_allclose(reordered, out[..., order], rtol=0, atol=128 * 2.0**-24)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=name_of)
@pytest.mark.parametrize("length", [1e-40, 1e-30, 1e-19, 1e-3, 7.0, 1e19, 1e30, 3e38])
def test_rule_8_inputs_of_any_length_are_normalised(rng, device, dtype, length):
    unit = rng.standard_normal((6, 4))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    values = (unit * length).astype(dtype)
    targets = np.linspace(0.1, 4.9, 40)
    check(values, np.arange(6.0), targets, device, method="slerp")
    out, _ = resample(values, np.arange(6.0), targets, device, method="slerp")
    is_between = targets != np.round(targets)
    np.testing.assert_allclose(np.linalg.norm(out[is_between].astype(np.float64), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=name_of)
@pytest.mark.parametrize("degrees", [0, 1e-12, 1e-8, 1e-6, 1e-4, 1e-2, 1, 90, 179, 179.99, 181, 270, 359, 359.9999])
def test_rule_8_tiny_and_near_opposite_angles(rng, device, dtype, degrees):
    axis = rng.standard_normal(3)
    values = np.stack([quaternion([0, 0, 1], 0), quaternion(axis / np.linalg.norm(axis), degrees)]).astype(dtype)
    targets = np.linspace(0, 1, 33)
    for signed in (values, values * np.array([[1], [-1]], dtype)):
        check(signed, np.array([0.0, 1.0]), targets, device, method="slerp")
        check(signed, np.array([0.0, 1.0]), np.linspace(-3, 3, 33), device, method="slerp", extrapolate="linear")


def test_rule_8_a_small_turn_keeps_its_digits(device):
    # 1e-6 rad: a float32 arc cosine would give 0.
    values = np.array([[0, 0, 0, 1], [5e-7, 0, 0, 1]], np.float32)
    out, _ = resample(values, np.array([0.0, 1.0]), np.array([0.25]), device, method="slerp")
    np.testing.assert_allclose(out[0, 0], 1.25e-7, rtol=1e-5)


@each_float
def test_rule_8_a_zero_quaternion_is_nan_between_and_itself_on_a_hit(device, dtype):
    values = np.array([[0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]], np.float64).astype(dtype)
    out, valid = resample(values, np.arange(4.0), np.array([0.5, 1.0, 1.5, 2.0, 2.5]), device, method="slerp")
    out = out.astype(np.float64)
    assert np.isnan(out[[0, 2]]).all()
    assert not np.isnan(out[[1, 3, 4]]).any()
    assert (out[1] == 0).all()
    assert valid.all()


@each_float
def test_rule_8_two_zero_quaternions_give_zero(device, dtype):
    """Some sensors send zeros for a rotation that they do not measure: a batch has these zeros, not NaN."""
    values = np.array([[0, 0, 0, 0], [0, 0, 0, -0.0], [0, 0, 0, 1]], np.float64).astype(dtype)
    out, valid = resample(values, np.arange(3.0), np.array([0.25, 0.5, 1.5]), device, method="slerp")
    out = out.astype(np.float64)
    assert (out[:2] == 0).all() and np.isnan(out[2]).all()
    assert valid.all()


@each_float
@each_clock
def test_rule_8_pose_is_a_linear_position_and_a_slerp(rng, device, dtype, clock):
    values, times, targets = random_case(rng, dtype, clock, method="pose")
    for extrapolate in ("clamp", "nan", "linear"):
        out, valid = resample(values, times, targets, device, method="pose", extrapolate=extrapolate)
        position, position_valid = oracle(values[..., :3], times, targets, extrapolate=extrapolate)
        rotation, _ = resample(values[..., 3:], times, targets, device, method="slerp", extrapolate=extrapolate)
        assert_same_bits(out[..., :3], position)
        assert_same_bits(out[..., 3:], rotation)
        assert_same_bits(valid, position_valid)
