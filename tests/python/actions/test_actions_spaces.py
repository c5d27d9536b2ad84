"""Actions relative to a state, steps and grippers against scipy's RigidTransform and numpy."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rotations_by_scipy import matrices, random_poses
from scipy.spatial.transform import Rotation

import robocache
from robocache.actions import (
    absolute,
    binarize_gripper,
    cumulate,
    reached_state,
    relative,
    rescale,
    step_delta,
)

POSES = ["se3", "mixed", "base_frame"]
ROTATIONS = ["quat_xyzw", "quat_wxyz", "matrix", "rot6d_rows", "rot6d_columns", "rotvec", "euler_xyz", "euler_ZYX"]


def by_matrices(kind, t, t0):
    """Returns the matrices t [..., T, 4, 4] relative to t0 [..., 4, 4]."""
    t0 = t0[..., None, :, :]
    result = np.linalg.inv(t0) @ t
    if kind == "se3":
        return result
    result = result.copy()
    result[..., :3, 3] = t[..., :3, 3] - t0[..., :3, 3]
    if kind == "base_frame":
        result[..., :3, :3] = t[..., :3, :3] @ t0[..., :3, :3].swapaxes(-1, -2)
    return result


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("kind", POSES)
def test_relative_poses_equal_products_of_matrices(arrays, rng, kind, rotation):
    x, base = random_poses(rng, (4, 6), rotation), random_poses(rng, (4,), rotation)
    for dtype, bound in (("float64", 1e-12), ("float32", 1e-5)):
        result = relative(arrays(x, dtype), arrays(base, dtype), kind, rotation=rotation)
        expected = by_matrices(kind, matrices(x, rotation), matrices(base, rotation))
        np.testing.assert_allclose(matrices(arrays.numpy(result), rotation), expected, atol=20 * bound)
        back = absolute(result, arrays(base, dtype), kind, rotation=rotation)
        np.testing.assert_allclose(
            matrices(arrays.numpy(back), rotation), matrices(x, rotation), atol=20 * bound, rtol=20 * bound
        )
        assert back.dtype == arrays(x, dtype).dtype


def test_se3_equals_scipys_rigid_transform(rng):
    RigidTransform = pytest.importorskip("scipy.spatial.transform").RigidTransform
    x, base = random_poses(rng, (1, 50), "quat_xyzw"), random_poses(rng, (1,), "quat_xyzw")
    expected = RigidTransform.from_matrix(matrices(base, "quat_xyzw")[0]).inv() * RigidTransform.from_matrix(
        matrices(x, "quat_xyzw")[0]
    )
    p, turn = expected.as_components()
    result = relative(x, base, "se3")[0]
    np.testing.assert_allclose(result[:, :3], p, atol=1e-13)
    np.testing.assert_allclose(result[:, 3:], turn.as_quat(canonical=True), atol=1e-13)


@pytest.mark.parametrize(("right", "wrong"), list(itertools.permutations(POSES, 2)))
def test_a_wrong_frame_gives_another_pose(rng, right, wrong):
    x, base = random_poses(rng, (200, 1), "quat_xyzw"), random_poses(rng, (200,), "quat_xyzw")
    result = absolute(relative(x, base, wrong), base, right)
    error = np.linalg.inv(matrices(result, "quat_xyzw")) @ matrices(x, "quat_xyzw")
    angles = Rotation.from_matrix(error[..., :3, :3].reshape(-1, 3, 3)).magnitude()
    assert np.median(angles) > 0.5 or np.median(np.linalg.norm(result[..., :3] - x[..., :3], axis=-1)) > 0.5


def test_golden_frames():
    """The base stands at x = 1, turned by 90 degrees about z; the action is a step ahead along the world's y, turned about x."""
    half = math.sqrt(0.5)
    base = np.array([1, 0, 0, 0, 0, half, half])
    x = np.array([[1, 1, 0, half, 0, 0, half]])
    about_x, about_z = Rotation.from_quat([half, 0, 0, half]), Rotation.from_quat([0, 0, half, half])
    for kind, p, turn in (
        ("se3", [1, 0, 0], about_z.inv() * about_x),  # the world's y is the base's own x
        ("mixed", [0, 1, 0], about_z.inv() * about_x),
        ("base_frame", [0, 1, 0], about_x * about_z.inv()),
    ):
        np.testing.assert_allclose(
            relative(x, base, kind)[0], [*p, *turn.as_quat(canonical=True)], atol=1e-15, err_msg=kind
        )


def test_robosuites_scale(rng):
    """OSC_POSE: p + 0.05 a[:3], Rotation(0.5 a[3:]) R, for actions in [-1, 1]."""
    a = rng.uniform(-1, 1, (8, 1, 6))
    base = random_poses(rng, (8,), "rotvec")
    t0 = matrices(base, "rotvec")
    result = absolute(a, base, "base_frame", rotation="rotvec", scale=(0.05, 0.5))
    got = matrices(result, "rotvec")[:, 0]
    np.testing.assert_allclose(got[:, :3, 3], t0[:, :3, 3] + 0.05 * a[:, 0, :3], atol=1e-14)
    turn = Rotation.from_rotvec(0.5 * a[:, 0, 3:]).as_matrix()
    np.testing.assert_allclose(got[:, :3, :3], turn @ t0[:, :3, :3], atol=1e-14)
    back = relative(result, base, "base_frame", rotation="rotvec", scale=(0.05, 0.5))
    np.testing.assert_allclose(back, a, atol=1e-12)


@pytest.mark.parametrize("kind", POSES)
def test_two_arms_with_grippers_by_a_mask(arrays, rng, kind):
    left, right = random_poses(rng, (3, 5), "rot6d_rows"), random_poses(rng, (3, 5), "rot6d_rows")
    grippers = rng.uniform(0, 1, (3, 5, 2))
    x = np.concatenate([left, grippers[..., :1], right, grippers[..., 1:]], -1)
    mask = [True] * 9 + [False] + [True] * 9 + [False]
    result = arrays.numpy(relative(arrays(x), arrays(x[:, 0]), kind, mask=mask, rotation="rot6d_rows"))
    for part, features in ((left, slice(0, 9)), (right, slice(10, 19))):
        expected = relative(part, part[:, 0], kind, rotation="rot6d_rows")
        np.testing.assert_allclose(result[..., features], expected, atol=1e-14)
    assert (result[..., [9, 19]] == grippers).all()
    back = absolute(arrays(result), arrays(x[:, 0]), kind, mask=mask, rotation="rot6d_rows")
    np.testing.assert_allclose(arrays.numpy(back), x, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_joints_are_subtracted_and_rounded_once(arrays, rng, dtype):
    x, base = rng.standard_normal((3, 7, 4)).astype(dtype), rng.standard_normal((3, 4)).astype(dtype)
    mask = np.array([True, True, False, True])
    work = np.float64 if dtype == "float64" else np.float32
    difference = (x.astype(work) - base.astype(work)[:, None]).astype(dtype)
    result = arrays.numpy(relative(arrays(x, dtype), arrays(base, dtype), "joints", mask=mask))
    assert (result == np.where(mask, difference, x)).all()
    back = arrays.numpy(absolute(arrays(result, dtype), arrays(base, dtype), "joints", mask=mask))
    assert (back == np.where(mask, (result.astype(work) + base.astype(work)[:, None]).astype(dtype), x)).all()


def test_arithmetic_has_the_wider_dtype(arrays):
    result = relative(arrays([[1.0]], "float32"), arrays([2**-30], "float64"), "joints")
    assert arrays.numpy(result) == np.float32(1 - 2**-30) and result.dtype == arrays([1], "float32").dtype


@given(a=st.floats(-3.14, 3.14), b=st.floats(-3.14, 3.14), turns=st.integers(-3, 3))
def test_angles_go_the_shorter_way(a, b, turns):
    x, base = np.array([[a + 2 * math.pi * turns]]), np.array([b])
    result = relative(x, base, "joints", angles=[True])
    expected = math.remainder(a - b, 2 * math.pi)
    assert -math.pi <= result[0, 0] < math.pi
    assert abs(math.remainder(result[0, 0] - expected, 2 * math.pi)) < 1e-14 * (1 + abs(turns) * 8)
    back = absolute(result, base, "joints", angles=[True])
    assert abs(math.remainder(back[0, 0] - a, 2 * math.pi)) < 1e-13
    assert (relative(x, base, "joints") == x - base).all()


def test_padding_of_an_argument_is_padding_of_the_result(arrays, rng):
    x, base = random_poses(rng, (2, 3), "quat_xyzw"), random_poses(rng, (2,), "quat_xyzw")
    x[0, 1], base[1, 0] = np.nan, np.nan
    for kind in POSES:
        for function in (relative, absolute):
            result = arrays.numpy(function(arrays(x), arrays(base), kind))
            assert np.isnan(result).all(-1).tolist() == [[False, True, False], [True] * 3]
            assert not np.isnan(result[0, [0, 2]]).any()
    result = arrays.numpy(relative(arrays(x), arrays(base), "joints", mask=[True] * 3 + [False] * 4))
    assert np.isnan(result[1]).any(0).tolist() == [True] + [False] * 6
    with_one_nan = x.copy()
    with_one_nan[0, 0, 2] = np.nan
    assert np.isnan(relative(with_one_nan, base, "mixed")[0, 0]).all()


def test_steps_and_their_sum(arrays, rng):
    x, first = rng.standard_normal((3, 9, 4)), rng.standard_normal((3, 4))
    for dtype in ("float64", "float32", "float16"):
        inputs, start = arrays(x, dtype), arrays(first, dtype)
        work = np.float64 if dtype == "float64" else np.float32
        rows = np.concatenate([arrays.numpy(start)[:, None], arrays.numpy(inputs)], 1).astype(work)
        result = step_delta(inputs, start)
        assert (arrays.numpy(result) == np.diff(rows, axis=1).astype(dtype)).all()
        expected = np.cumsum(arrays.numpy(result), 1) + arrays.numpy(start)[:, None]
        back = arrays.numpy(cumulate(result, start))
        np.testing.assert_allclose(back, expected, rtol=np.finfo(dtype).eps)
        assert np.abs(back - arrays.numpy(inputs)).max() < 9 * 8 * np.finfo(dtype).eps


def test_a_long_sum_in_float16_does_not_drift(arrays):
    steps = np.full((2000, 1), 0.01, np.float16)
    result = arrays.numpy(cumulate(arrays(steps, "float16"), arrays([0.0], "float16")))
    expected = np.arange(1, 2001)[:, None] * np.float64(np.float16(0.01))
    assert (np.abs(result - expected) <= np.spacing(expected.astype(np.float16)) / 2).all()
    assert np.cumsum(steps, 0, dtype=np.float16)[-1] < 0.98 * expected[-1]  # a sum in float16 would drift


def test_steps_of_padding_masks_and_angles(arrays):
    x = np.array([[1, 3.0, 5], [2, -3.0, 6], [np.nan, 3.1, 7], [4, -3.1, 8]])
    options = {"mask": [True, True, False], "angles": [False, True, False]}
    result = arrays.numpy(step_delta(arrays(x), arrays([0, 3.0, 9]), **options))
    wrapped = 2 * math.pi - 6
    np.testing.assert_allclose(
        result, [[1, 0, 5], [1, wrapped, 6], [np.nan, 6.1 - 2 * math.pi, 7], [np.nan, 2 * math.pi - 6.2, 8]], atol=1e-14
    )
    back = arrays.numpy(cumulate(arrays(result), arrays([0, 3.0, 9]), **options))
    np.testing.assert_allclose(back[:, 1:], x[:, 1:], atol=1e-14)
    assert np.isnan(back[:, 0]).tolist() == [False, False, True, True]


def test_the_reached_state_is_the_next_row_and_the_last_is_nan(arrays, rng):
    s = rng.standard_normal((2, 5, 3))
    result = arrays.numpy(reached_state(arrays(s)))
    assert (result[:, :-1] == s[:, 1:]).all() and np.isnan(result[:, -1]).all()
    deltas = arrays.numpy(step_delta(reached_state(arrays(s)), arrays(s[:, 0])))
    assert (deltas[:, :-1] == np.diff(s, axis=1)).all() and np.isnan(deltas[:, -1]).all()


def hysteresis(g, low, high):
    """Returns, for each step, the first later value below low or above high, as 0 or 1; NaN if there is none."""
    result = []
    for t in range(len(g)):
        decided = [v for v in g[t:] if v < low or v > high]
        result.append(float(decided[0] > high) if decided else math.nan)
    return result


@given(
    g=st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.5, 0.95, 0.96, 1.0]), min_size=1, max_size=12),
    at_end=st.sampled_from(["nan", "hold", "last_value"]),
)
def test_undecided_grippers_take_the_next_decided_value(g, at_end):
    expected = hysteresis(g, 0.05, 0.95)
    decided = [v for v in expected if not math.isnan(v)]
    end = {"nan": math.nan, "hold": decided[-1] if decided else math.nan, "last_value": g[-1]}[at_end]
    expected = [end if math.isnan(v) else v for v in expected]
    for x in (np.array(g)[:, None], torch.tensor(g, dtype=torch.float64)[:, None]):
        result = binarize_gripper(x, low=0.05, high=0.95, at_end=at_end)
        np.testing.assert_array_equal(np.asarray(result)[:, 0], expected)


def test_grippers_of_a_batch_and_padding(arrays):
    g = np.array([[[0.0, 1], [0.5, np.nan], [1, 0.5]], [[0.5, 0.5], [0.5, 0.5], [0.5, np.nan]]])
    result = arrays.numpy(binarize_gripper(arrays(g, "float32"), low=0.05, high=0.95, at_end="hold"))
    nan = np.nan
    np.testing.assert_array_equal(result, [[[0, 1], [1, nan], [1, 1]], [[nan, nan], [nan, nan], [nan, nan]]])
    assert tuple(binarize_gripper(arrays(np.zeros((2, 0, 1))), low=0, high=1).shape) == (2, 0, 1)


def test_rescale_inverts_and_clips(arrays):
    g = np.array([-0.5, 0.0, 0.25, 1.0, np.nan])
    for x, expected in ((rescale(arrays(g), (0, 1), (1, 0)), 1 - g), (rescale(arrays(g), (0, 1), (-1, 1)), 2 * g - 1)):
        np.testing.assert_array_equal(arrays.numpy(x), expected)
    clipped = arrays.numpy(rescale(arrays(g), (1, 0), (0, 1), clip=True))
    np.testing.assert_array_equal(clipped, [1, 1, 0.75, 0, np.nan])
    np.testing.assert_allclose(rescale(rescale(g, (0.1, 0.7), (5, -3)), (5, -3), (0.1, 0.7)), g, atol=1e-15)


@pytest.mark.parametrize("kind", ["joints", *POSES])
def test_gradients_equal_finite_differences(rng, device, kind):
    options = {"mask": [True] * 9 + [False], "rotation": "rot6d_rows"}
    x = np.concatenate([random_poses(rng, (2, 3), "rot6d_rows"), rng.uniform(0, 1, (2, 3, 1))], -1)
    x, base = (torch.as_tensor(array, device=device).requires_grad_() for array in (x, x[:, 0] + 0.1))
    for function in (relative, absolute):
        assert torch.autograd.gradcheck(lambda x, base, f=function: f(x, base, kind, **options), (x, base), atol=1e-4)
    for function in (step_delta, cumulate):
        assert torch.autograd.gradcheck(lambda x, base, f=function: f(x, base), (x, base))
    assert torch.autograd.gradcheck(lambda x: rescale(x, (0, 2), (1, 0)), x)


def test_gradients_beside_padding_have_no_nan(device, rng):
    x = torch.as_tensor(random_poses(rng, (2, 3), "quat_xyzw"), device=device)
    base = x[:, 0].clone().requires_grad_()
    x[0, 1] = torch.nan
    relative(x.requires_grad_(), base, "se3", normalize=True).nan_to_num().sum().backward()
    assert x.grad.isfinite().all() and base.grad.isfinite().all() and (x.grad[0, 1] == 0).all()


def test_compiled_and_mapped_calls_agree(device, rng):
    x = torch.as_tensor(random_poses(rng, (2, 3), "quat_xyzw"), device=device)

    def round_trips(x, base):
        return absolute(relative(x, base, "se3"), base, "base_frame"), cumulate(step_delta(x, base), base)

    expected = round_trips(x, x[:, 1])
    for call in (torch.compile(round_trips, backend="eager", fullgraph=True), torch.vmap(round_trips)):
        torch.testing.assert_close(call(x, x[:, 1]), expected)


X, BASE = np.zeros((2, 3, 7)), np.zeros((2, 7))
X[..., 6] = BASE[..., 6] = 1
NO_TURN = X[..., :6], BASE[..., :6]  # poses with a rotation vector


def changed(x, index, value):
    x = x.copy()
    x[index] = value
    return x


@pytest.mark.parametrize(
    ("x", "base", "kind", "options", "error", "message"),
    [
        (X, BASE, "SE3", {}, ValueError, "kind: expected 'joints', 'se3', 'mixed', 'base_frame', got 'SE3'"),
        (X, BASE[:, :6], "joints", {}, ValueError, r"base: expected \[2, 7\].*got \[2, 6\]"),
        (X, BASE[0], "joints", {}, ValueError, r"base: expected \[2, 7\].*got \[7\]"),
        (X, BASE[:, None], "joints", {}, ValueError, r"base: expected \[2, 7\]"),
        (X[0, 0], BASE, "joints", {}, ValueError, r"x: expected \[\.\.\., T, D\]"),
        (X, BASE, "joints", {"mask": [True] * 6}, ValueError, "mask: expected 7 bools.*got 6"),
        (X, BASE, "se3", {"mask": [True] * 8}, ValueError, "mask: expected 7 bools.*got 8"),
        (X, BASE, "joints", {"mask": [1] * 7}, TypeError, "mask: expected bools, got 1"),
        (X, BASE, "joints", {"mask": True}, TypeError, "mask: expected 7 bools"),
        (X, BASE, "joints", {"mask": "1111111"}, TypeError, "mask: expected 7 bools"),
        (X, BASE, "joints", {"angles": [True]}, ValueError, "angles: expected 7 bools"),
        (X, BASE, "se3", {"angles": [True] * 7}, ValueError, "angles: expected only with kind='joints'"),
        (X, BASE, "se3", {"rotation": "rotvec"}, ValueError, "x: expected poses of 6 features.*got 7.*mask="),
        (X, BASE, "se3", {"mask": [True] * 6 + [False]}, ValueError, "mask: expected poses of 7 features.*got 6"),
        (X, BASE, "se3", {"mask": [False] * 7}, ValueError, "mask: expected poses of 7 features.*got 0"),
        (X, BASE, "se3", {"rotation": "quat"}, ValueError, "rotation: expected .*quat_xyzw"),
        (X, BASE, "se3", {"scale": (1, 1)}, ValueError, "scale: expected only with kind='base_frame'"),
        (*NO_TURN, "base_frame", {"rotation": "rotvec", "scale": (0, 1)}, ValueError, "scale: .*above 0"),
        (*NO_TURN, "base_frame", {"rotation": "rotvec", "scale": 1}, TypeError, "scale: "),
        (X, BASE.astype(int), "joints", {}, TypeError, "base: expected float64.*int64"),
        (X, torch.zeros(2, 7), "joints", {}, TypeError, "base: expected an array of numpy like x, got Tensor"),
        (changed(X, (1, 2, 6), 0), BASE, "mixed", {}, ValueError, r"x: expected quat.*length 0.*row \(1, 2\)"),
        (X, changed(BASE, (1, 6), 1.1), "mixed", {}, ValueError, r"base: expected quaternions.*length 1.1.*row 1"),
        (X[0], changed(BASE, (1, 6), 1.1)[1], "mixed", {}, ValueError, "base: expected quaternions.*the one row"),
    ],
)
def test_invalid_arguments_are_refused(x, base, kind, options, error, message):
    for function in (relative, absolute):
        with pytest.raises(error, match=message) as caught:
            function(x, base, kind, **options)
        assert isinstance(caught.value, robocache.Error)


def test_other_functions_refuse_invalid_arguments():
    for function in (step_delta, cumulate):
        with pytest.raises(robocache.ArgumentError, match=r"first: expected \[2, 7\]"):
            function(X, BASE[:1])
        with pytest.raises(robocache.ArgumentError, match="mask: expected 7 bools"):
            function(X, BASE, mask=[True])
    for options, message in (
        ({"low": 1, "high": 0}, "low: expected at most high"),
        ({"low": 0, "high": 1, "at_end": "last"}, "at_end: expected 'nan', 'hold', 'last_value', got 'last'"),
        ({"low": math.nan, "high": 1}, "low: "),
    ):
        with pytest.raises(robocache.ArgumentError, match=message):
            binarize_gripper(X, **options)
    with pytest.raises(robocache.ArgumentError, match="source: expected two different numbers"):
        rescale(X, (1, 1), (0, 1))
    with pytest.raises(robocache.ArgumentTypeError, match="target: expected two numbers"):
        rescale(X, (0, 1), 5)
    with pytest.raises(robocache.ArgumentError, match="target: expected finite numbers"):
        rescale(X, (0, 1), (0, math.inf))
    with pytest.raises(robocache.ArgumentError, match=r"states: expected \[\.\.\., T, D\]"):
        reached_state(X[0, 0])
