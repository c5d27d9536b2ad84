"""Lists of conversions, and the presets against the formulas of the code that they name, written again here in numpy."""

import doctest
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rotations_by_scipy import matrices, poses, random_poses

import robocache
from robocache import actions
from robocache.actions import BinarizeGripper, Relative, Rescale, Rotate, StepDelta, convert, presets, revert

# ---- openpi and LeRobot: action - state by a mask ----


def make_bool_mask(*dims):
    """Returns the mask as openpi's function does: make_bool_mask(2, -1) is [True, True, False]."""
    return [dim > 0 for dim in dims for _ in range(abs(dim))]


@pytest.mark.parametrize("dims", [(6, -1, 6, -1), (7, -1), (6,)])
def test_openpi(rng, dims):
    mask = make_bool_mask(*dims)
    for features in (len(mask), len(mask) + 3):
        state, x = rng.standard_normal((4, features)), rng.standard_normal((4, 50, features))
        used = len(mask)
        expected = x.copy()
        expected[..., :used] -= np.expand_dims(np.where(mask, state[..., :used], 0), -2)
        conversions = presets.openpi(mask, features)
        assert (convert(x, state, conversions) == expected).all()
        expected[..., :used] += np.expand_dims(np.where(mask, state[..., :used], 0), -2)
        assert (revert(convert(x, state, conversions), state, conversions) == expected).all()
    with pytest.raises(robocache.ArgumentError, match="mask: expected at most 5 bools"):
        presets.openpi(mask, 5)


def test_lerobot(rng):
    names = ["shoulder_pan.pos", "elbow_flex.pos", "wrist_roll.pos", "Gripper.pos"]
    for exclude, factors in (
        ((), [1, 1, 1, 1]),
        (("gripper",), [1, 1, 1, 0]),
        (("ELBOW", "wrist_roll.pos", ""), [1, 0, 0, 1]),
    ):
        state = torch.tensor(rng.standard_normal((3, 4)), dtype=torch.float32)
        x = torch.tensor(rng.standard_normal((3, 8, 4)), dtype=torch.float32)
        conversions = presets.lerobot(names, exclude)
        offset = (state * torch.tensor(factors, dtype=torch.float32)).unsqueeze(-2)
        assert torch.equal(convert(x, state, conversions), x - offset)
        assert torch.equal(revert(x, state, conversions), x + offset)


# ---- GR00T and UMI: inv(T0) T ----


@pytest.mark.parametrize(("name", "rotation"), [("xyz+rotvec", "rotvec"), ("xyz+rot6d", "rot6d_rows")])
def test_groot_end_effectors(rng, name, rotation):
    x, state = random_poses(rng, (4, 16), rotation), random_poses(rng, (4,), rotation)
    t0 = matrices(state, rotation)[:, None]
    conversions = presets.groot("relative", "eef", name)
    result = convert(x, state, conversions)
    np.testing.assert_allclose(result, poses(np.linalg.inv(t0) @ matrices(x, rotation), rotation), atol=1e-9)
    np.testing.assert_allclose(
        matrices(revert(result, state, conversions), rotation), matrices(x, rotation), atol=1e-12
    )
    noisy = result + 0.1 * rng.standard_normal(result.shape)  # a policy's output
    back = matrices(revert(noisy, state, conversions), rotation)
    np.testing.assert_allclose(back, t0 @ matrices(noisy, rotation), atol=1e-12)


def test_groot_joints_and_unchanged_features(rng):
    x, state = rng.standard_normal((16, 7)), rng.standard_normal(7)
    assert (convert(x, state, presets.groot("relative", "non_eef", "default")) == x - state).all()
    for rep in ("absolute", "delta"):
        assert presets.groot(rep, "eef", "default") == []
    for arguments in (("relative", "eef", "default"), ("relative", "non_eef", "xyz+rot6d")):
        with pytest.raises(robocache.ArgumentError, match="format: "):
            presets.groot(*arguments)
    for arguments, name in (
        (("RELATIVE", "eef", "default"), "rep"),
        (("relative", "pose", "default"), "type"),
        (("relative", "eef", "rot6d"), "format"),
    ):
        with pytest.raises(robocache.ArgumentError, match=f"{name}: expected .*'"):
            presets.groot(*arguments)


@pytest.mark.parametrize("pose_repr", ["relative", "abs"])
def test_umi(rng, pose_repr):
    x, state = random_poses(rng, (4, 16), "rotvec"), random_poses(rng, (4,), "rotvec")
    t0 = np.eye(4) if pose_repr == "abs" else matrices(state, "rotvec")[:, None]
    conversions = presets.umi(pose_repr, rotation="rotvec")
    result = convert(x, state, conversions)
    np.testing.assert_allclose(result, poses(np.linalg.inv(t0) @ matrices(x, "rotvec"), "rot6d_rows"), atol=1e-12)
    noisy = result + 0.1 * rng.standard_normal(result.shape)
    back = matrices(revert(noisy, state, conversions), "rotvec")
    np.testing.assert_allclose(back, t0 @ matrices(noisy, "rot6d_rows"), atol=1e-12)


def test_umis_rel_is_relative_in_the_base_frame(rng):
    x, state = random_poses(rng, (1, 5), "rotvec"), random_poses(rng, (1,), "rotvec")
    t, t0 = matrices(x, "rotvec"), matrices(state, "rotvec")[:, None]
    result = matrices(convert(x, state, [Relative("base_frame", rotation="rotvec")]), "rotvec")
    np.testing.assert_allclose(result[..., :3, 3], t[..., :3, 3] - t0[..., :3, 3], atol=1e-12)
    np.testing.assert_allclose(result[..., :3, :3], t[..., :3, :3] @ np.linalg.inv(t0[..., :3, :3]), atol=1e-12)
    with pytest.raises(robocache.ArgumentError, match="pose_repr: expected 'relative' or 'abs', got 'rel'"):
        presets.umi("rel", "rotvec")


# ---- OpenVLA ----


def test_openvlas_bridge_gripper_and_movement(rng):
    x = np.concatenate([rng.standard_normal((40, 6)), rng.choice([0.0, 0.3, 0.7, 1.0], (40, 1))], -1)
    for last in (0.0, 0.3):  # decided, and undecided
        x[-1, 6] = last
        is_open, is_closed = x[:, 6] > 0.95, x[:, 6] < 0.05
        expected, carry = np.empty(40), x[-1, 6]
        for i in reversed(range(40)):
            carry = carry if not (is_open[i] or is_closed[i]) else float(is_open[i])
            expected[i] = carry
        result = convert(x, None, presets.openvla("bridge_orig"))
        assert (result[:, 6] == expected).all() and (result[:, :6] == x[:, :6]).all()
    state = rng.standard_normal((40, 7))
    movement = state[1:, :6] - state[:-1, :6]
    result = actions.step_delta(actions.reached_state(state), state[0])
    assert (result[:-1, :6] == movement).all() and np.isnan(result[-1]).all()


def test_openvlas_libero_gripper_and_its_inverse(rng):
    x = np.concatenate([rng.standard_normal((9, 6)), [[-1.0], [1], [0], [-1], [0.3], [1], [-0.2], [1.2], [1]]], -1)
    result = convert(x, None, presets.openvla("libero"))
    assert (result[:, 6] == 1 - np.clip(x[:, 6], 0, 1)).all() and (result[:, :6] == x[:, :6]).all()
    # At deployment a policy's g in [0, 1] becomes sign(2 g - 1), and that times -1.
    output = rng.uniform(0, 1, (9, 7))
    expected = np.sign(2 * output[:, 6] - 1) * -1.0
    result = np.sign(actions.rescale(revert(output, None, presets.openvla("libero")), (0, 1), (-1, 1)))
    assert (result[:, 6] == expected).all()
    with pytest.raises(robocache.ArgumentError, match="dataset: expected 'bridge_orig', 'libero', got 'droid'"):
        presets.openvla("droid")


# ---- Lists ----


def test_a_list_is_undone_in_reverse(arrays, rng):
    x, state = random_poses(rng, (3, 5), "rotvec"), random_poses(rng, (3,), "rotvec")
    gripper = rng.uniform(0, 1, (3, 5, 1))
    x, state = np.concatenate([x, gripper], -1), np.concatenate([state, gripper[:, 0]], -1)
    conversions = [
        Relative("se3", mask=[True] * 6 + [False], rotation="rotvec"),
        Rotate(3, "rotvec", "rot6d_columns"),
        Rescale(slice(9, 10), (0, 1), (1, -1)),
        Rescale(slice(0, 3), (-0.05, 0.05), (-1, 1)),
    ]
    result = convert(arrays(x), arrays(state), conversions)
    assert tuple(result.shape) == (3, 5, 10)
    np.testing.assert_allclose(arrays.numpy(result)[..., 9], 1 - 2 * gripper[..., 0], atol=1e-15)
    back = arrays.numpy(revert(result, arrays(state), conversions))
    np.testing.assert_allclose(back[..., [0, 1, 2, 6]], x[..., [0, 1, 2, 6]], atol=1e-12)
    np.testing.assert_allclose(matrices(back[..., :6], "rotvec"), matrices(x[..., :6], "rotvec"), atol=1e-12)


def test_steps_in_a_list(rng):
    x, state = rng.standard_normal((3, 5, 4)), rng.standard_normal((3, 4))
    conversions = [StepDelta(mask=[True, True, True, False])]
    result = convert(x, state, conversions)
    assert (result[..., :3] == np.diff(np.concatenate([state[:, None], x], 1), axis=1)[..., :3]).all()
    np.testing.assert_allclose(revert(result, state, conversions), x, atol=1e-14)


def test_a_policys_quaternions_have_any_length(rng):
    x = np.array([[1.0, 2, 3, 0, 0, 0, 2]])
    state = np.array([0, 0, 0, 0, 0, math.sqrt(0.5), math.sqrt(0.5)])
    np.testing.assert_allclose(revert(x, state, [Relative("se3")]), [[-2, 1, 3, *state[3:]]], atol=1e-15)
    with pytest.raises(robocache.ArgumentError, match="length 2"):
        convert(x, state, [Relative("se3")])
    assert revert(x, None, [Rotate(3, "rotvec", "quat_xyzw")]).shape == (1, 6)


X = np.zeros((2, 3, 6))


@pytest.mark.parametrize(
    ("base", "conversions", "error", "message"),
    [
        (X[:, 0], [Rotate(3, "rotvec", "quat_xyzw"), Relative("se3")], "ArgumentError", "Relative first.*after Rotate"),
        (
            X[:, 0],
            [Rescale(slice(0, 3), (0, 1), (0, 2)), StepDelta()],
            "ArgumentError",
            "StepDelta first.*after Rescale",
        ),
        (X[:, 0], [Relative("joints"), StepDelta()], "ArgumentError", "StepDelta first.*after Relative"),
        (None, [Relative("joints")], "ArgumentError", "base: expected the state, which Relative needs"),
        (None, ["se3"], "ArgumentTypeError", "conversions: expected those of robocache.actions, got 'se3'"),
        (None, Rotate(3, "rotvec", "matrix"), "ArgumentTypeError", "conversions: expected a list, got Rotate"),
        (
            None,
            [Rotate(4, "rotvec", "matrix")],
            "ArgumentError",
            "start: expected '(rotvec|matrix)' within 6 features, got 4",
        ),
        (None, [Rotate(-3, "rotvec", "matrix")], "ArgumentError", "start: "),
        (None, [Rescale(slice(6, 7), (0, 1), (1, 0))], "ArgumentError", "features: expected consecutive features of 6"),
        (None, [BinarizeGripper(slice(None, None, 2), 0, 1)], "ArgumentError", "features: "),
    ],
)
def test_invalid_lists_are_refused(base, conversions, error, message):
    # The inverse leaves a binarised gripper as it is.
    functions = (convert,) if message == "features: " else (convert, revert)
    for function in functions:
        with pytest.raises(getattr(robocache, error), match=message):
            function(X, base, conversions)


def test_a_rescaling_without_an_inverse_is_refused():
    with pytest.raises(robocache.ArgumentError, match="target: expected two different numbers"):
        Rescale(slice(0, 1), (0, 1), (1, 1))


# ---- Documented ----


def test_the_examples_of_the_page_and_the_docstrings_run():
    page = Path(__file__).parents[3] / "docs/actions.md"
    names = {name: getattr(actions, name) for name in actions.__all__} | {"np": np}
    texts = [page.read_text().replace("```", ""), *(value.__doc__ for value in names.values() if callable(value))]
    examples = [text for text in texts if ">>>" in text]
    assert len(examples) >= 4
    for text in examples:
        test = doctest.DocTestParser().get_doctest(text, dict(names), "actions", None, 0)
        assert doctest.DocTestRunner().run(test).failed == 0
