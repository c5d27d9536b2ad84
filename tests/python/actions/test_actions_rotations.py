"""actions.convert_rotation against scipy's Rotation, golden matrices, and the edges of each representation."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays
from rotations_by_scipy import as_rotation, by_scipy
from scipy.spatial.transform import Rotation

import robocache
from robocache.actions import convert_rotation

AXES = ["".join(axes) for axes in itertools.product("xyz", repeat=3) if axes[0] != axes[1] != axes[2]]
EULER = [f"euler_{cased}" for axes in AXES for cased in (axes, axes.upper())]
PLAIN = ["quat_xyzw", "quat_wxyz", "matrix", "rot6d_rows", "rot6d_columns", "rot6d_interleaved", "rotvec"]
SOME = [*PLAIN, "euler_xyz", "euler_XYZ", "euler_ZXZ"]


def angle_between(a, b):
    return (a * b.inv()).magnitude()


@pytest.mark.parametrize("target", [*PLAIN, *EULER])
@pytest.mark.parametrize("source", SOME)
def test_all_pairs_of_representations_equal_scipy(rng, source, target):
    rotation = Rotation.random(200, rng=rng)
    x = by_scipy(rotation, source)
    for dtype, bound in (("float64", 1e-12), ("float32", 1e-5)):
        result = convert_rotation(x.astype(dtype), source, target)
        assert result.dtype == dtype
        assert angle_between(as_rotation(result.astype(np.float64), target), rotation).max() < 20 * bound
        away_from_lock = np.ones(len(x), bool)
        if target.startswith("euler_"):
            middle = by_scipy(rotation, target)[:, 1]
            # The axes lock at a middle angle of 0 and pi if the first and last are one, else at +-pi/2; an outer angle of almost pi
            # has either sign.
            first, _, last = target.removeprefix("euler_").lower()
            away_from_lock = np.abs(np.sin(middle) if first == last else np.cos(middle)) > 0.1
            away_from_lock &= np.abs(by_scipy(rotation, target)[:, [0, 2]]).max(-1) < 3.1
        assert np.abs(result - by_scipy(rotation, target))[away_from_lock].max() < 100 * bound


def test_frameworks_devices_and_types_agree(arrays, rng):
    rotation = Rotation.random(50, rng=rng)
    for source, target in itertools.product(SOME, SOME):
        x = by_scipy(rotation, source).reshape(5, 10, -1)
        for dtype, bound in (("float64", 1e-12), ("float32", 1e-5), ("float16", 2e-2), ("bfloat16", 1e-1)):
            if arrays.device is None and dtype == "bfloat16":
                pytest.importorskip("ml_dtypes")
            given_x = arrays(x, dtype)
            result = convert_rotation(given_x, source, target, normalize=True)
            assert result.dtype == given_x.dtype and result.shape[:2] == (5, 10)
            got = as_rotation(arrays.numpy(result).reshape(50, -1), target)
            if target == "matrix" and dtype.endswith("16"):
                continue  # scipy takes the rotation nearest to the rounded numbers
            assert angle_between(got, rotation).max() < 20 * bound, (source, target, dtype)


def test_sums_and_products_have_the_same_bits_everywhere(arrays, rng):
    """All formulas but those of rotation vectors and Euler angles round alike on every device."""
    for source, target in itertools.product(PLAIN[:-1], PLAIN[:-1]):
        x = by_scipy(Rotation.random(500, rng=rng), source).astype(np.float32)
        expected = convert_rotation(x, source, target)
        assert (arrays.numpy(convert_rotation(arrays(x, "float32"), source, target)) == expected).all()


# Matrices of three rotations, row after row, and below the six numbers of each in every order.
GOLDEN = {
    "x_to_y_to_z": [[0, 0, 1], [1, 0, 0], [0, 1, 0]],
    "about_x": [[1, 0, 0], [0, 0, -1], [0, 1, 0]],
    "about_z": [[0, -1, 0], [1, 0, 0], [0, 0, 1]],
}
SIX = {
    "x_to_y_to_z": {"rows": [0, 0, 1, 1, 0, 0], "columns": [0, 1, 0, 0, 0, 1], "interleaved": [0, 0, 1, 0, 0, 1]},
    "about_x": {"rows": [1, 0, 0, 0, 0, -1], "columns": [1, 0, 0, 0, 0, 1], "interleaved": [1, 0, 0, 0, 0, 1]},
    "about_z": {"rows": [0, -1, 0, 1, 0, 0], "columns": [0, 1, 0, -1, 0, 0], "interleaved": [0, -1, 1, 0, 0, 0]},
}


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("order", ["rows", "columns", "interleaved"])
def test_golden_matrices_of_each_6d_order(arrays, name, order):
    matrix, six = np.reshape(GOLDEN[name], 9), SIX[name][order]
    assert arrays.numpy(convert_rotation(arrays(matrix), "matrix", f"rot6d_{order}")).tolist() == six
    assert arrays.numpy(convert_rotation(arrays(six), f"rot6d_{order}", "matrix")).tolist() == matrix.tolist()
    q = Rotation.from_matrix(np.array(GOLDEN[name])).as_quat(canonical=True)
    np.testing.assert_allclose(
        arrays.numpy(convert_rotation(arrays(six), f"rot6d_{order}", "quat_xyzw")), q, atol=1e-15
    )


def test_golden_quaternions_and_angles():
    about_z = np.array([0, 0, math.sqrt(0.5), math.sqrt(0.5)])
    np.testing.assert_allclose(convert_rotation(about_z, "quat_xyzw", "rotvec"), [0, 0, math.pi / 2], atol=1e-15)
    assert convert_rotation(about_z, "quat_xyzw", "quat_wxyz").tolist() == about_z[[3, 0, 1, 2]].tolist()
    # First about x, then about the fixed z: the x axis ends on y. About axes that turn along, the result differs.
    angles = np.array([math.pi / 2, 0, math.pi / 2])
    extrinsic = convert_rotation(angles, "euler_xyz", "matrix").reshape(3, 3)
    intrinsic = convert_rotation(angles, "euler_XYZ", "matrix").reshape(3, 3)
    np.testing.assert_allclose(extrinsic, [[0, 0, 1], [1, 0, 0], [0, 1, 0]], atol=1e-15)
    np.testing.assert_allclose(intrinsic, [[0, -1, 0], [0, 0, -1], [1, 0, 0]], atol=1e-15)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("rot6d_rows", "rot6d_columns"),
        ("rot6d_rows", "rot6d_interleaved"),
        ("rot6d_columns", "rot6d_interleaved"),
        ("quat_xyzw", "quat_wxyz"),
        ("euler_xyz", "euler_XYZ"),
        ("euler_xyz", "euler_zyx"),
    ],
)
def test_a_wrong_representation_gives_another_rotation(rng, right, wrong):
    rotation = Rotation.random(200, rng=rng)
    result = convert_rotation(by_scipy(rotation, right), wrong, "matrix")
    assert np.median(angle_between(as_rotation(result, "matrix"), rotation)) > 0.2


@pytest.mark.parametrize("name", [*PLAIN, *EULER])
@settings(max_examples=20)
@given(q=numpy_arrays(np.float64, (8, 4), elements=st.floats(-1, 1)))
def test_round_trips_keep_the_rotation(name, q):
    length = np.linalg.norm(q, axis=1, keepdims=True)
    q = np.where(length < 1e-3, [0.0, 0.0, 0.0, 1.0], q / np.maximum(length, 1e-3))
    converted = convert_rotation(q, "quat_xyzw", name)
    back = convert_rotation(converted, name, "quat_xyzw")
    assert np.abs(np.abs((back * q).sum(-1)) - 1).max() < 1e-12
    by_float32 = convert_rotation(converted.astype(np.float32), name, "quat_xyzw")
    assert 1 - np.abs((by_float32 * q).sum(-1)).min() < 1e-6


HALVES = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0.6, 0.8, 0, 0], [0, -0.6, 0.8, 0], [-0.6, 0, 0, 0.8]])


@pytest.mark.parametrize("name", [*PLAIN, *EULER])
def test_half_turns_by_q_and_minus_q_are_the_same(arrays, name):
    for q in (HALVES, -HALVES):
        result = arrays.numpy(convert_rotation(arrays(q), "quat_xyzw", name))
        assert angle_between(as_rotation(result, name), Rotation.from_quat(q)).max() < 1e-7
        back = arrays.numpy(convert_rotation(arrays(result), name, "quat_xyzw"))
        assert np.abs(np.abs((back * q).sum(-1)) - 1).max() < 1e-12
    if name not in ("quat_xyzw", "quat_wxyz"):
        results = [arrays.numpy(convert_rotation(arrays(q), "quat_xyzw", name)) for q in (HALVES[-1:], -HALVES[-1:])]
        np.testing.assert_allclose(*results, atol=1e-12)


@pytest.mark.parametrize("name", EULER)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_euler_angles_at_gimbal_lock_are_the_same_rotation(rng, name, dtype):
    axes = name.removeprefix("euler_")
    is_proper = axes[0] == axes[2]
    for middle in (0, math.pi) if is_proper else (-math.pi / 2, math.pi / 2):
        for offset in (0, 1e-9, 1e-6, 1e-4):
            angles = rng.uniform(-3, 3, (50, 3))
            angles[:, 1] = middle + offset * (1 if middle <= 0 else -1)
            q = convert_rotation(angles, name, "quat_xyzw").astype(dtype)
            result = convert_rotation(q, "quat_xyzw", name)
            error = angle_between(as_rotation(result.astype(np.float64), name), Rotation.from_quat(q)).max()
            assert error < (1e-5 if dtype == "float32" else 1e-6)
            if offset == 0 and dtype == "float64":
                assert (result[:, 2] == 0).all()


def test_tiny_turns_keep_their_digits():
    for size in (1e-30, 1e-12, 1e-5, 0.9e-4, 1.1e-4, 1e-2):
        v = np.array([0.6, -0.8, 0]) * size
        for dtype, bound in ((np.float64, 1e-15), (np.float32, 5e-7)):
            q = convert_rotation(v.astype(dtype), "rotvec", "quat_xyzw")
            np.testing.assert_allclose(convert_rotation(q, "quat_xyzw", "rotvec"), v, rtol=4 * bound)
            np.testing.assert_allclose(q[:3], v / 2 * np.sinc(size / 2 / np.pi), rtol=4 * bound)


@given(six=numpy_arrays(np.float64, (7, 6), elements=st.floats(-10, 10)))
def test_6d_of_noise_is_orthonormalised(six):
    a, b = six[:, :3], six[:, 3:]
    sizes = np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1)
    six = six[(np.linalg.norm(np.cross(a, b), axis=-1) > 1e-2 * sizes[0] * sizes[1]) & (np.minimum(*sizes) > 1e-2)]
    result = convert_rotation(six, "rot6d_rows", "matrix").reshape(-1, 3, 3)
    np.testing.assert_allclose(result @ result.transpose(0, 2, 1), np.broadcast_to(np.eye(3), result.shape), atol=1e-14)
    np.testing.assert_allclose(result, as_rotation(six, "rot6d_rows").as_matrix() if len(six) else result, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_6d_of_any_size_or_almost_parallel_is_orthonormalised(dtype):
    for size in (1e-25, 1.0, 1e25):
        for tilt in (1, 1e-3, 3e-6):
            six = np.array([[size, 0, 0, size, tilt * size, 0]], dtype)
            result = convert_rotation(six, "rot6d_rows", "matrix")
            np.testing.assert_allclose(result.reshape(3, 3), np.eye(3), atol=1e-6)


def test_rows_with_nan_are_nan_and_others_are_not(arrays, rng):
    for source, target in itertools.product(SOME, SOME):
        x = by_scipy(Rotation.random(6, rng=rng), source).reshape(2, 3, -1)
        x[0, 1, -1] = np.nan
        result = arrays.numpy(convert_rotation(arrays(x), source, target))
        assert np.isnan(result).any(-1).tolist() == [[False, True, False], [False] * 3]
        if not {source, target} <= {"quat_xyzw", "quat_wxyz"}:
            assert np.isnan(result[0, 1]).all()


@pytest.mark.parametrize(
    ("source", "row", "texts"),
    [
        ("quat_xyzw", [0, 0, 0, 1.0011], ["length 1.0011", "normalize=True"]),
        ("quat_wxyz", [0.9985, 0, 0, 0], ["length 0.9985", "normalize=True"]),
        ("quat_xyzw", [0, 0, 0, 0], ["length 0"]),
        ("quat_xyzw", [0, 0, 0, np.inf], ["length inf"]),
        ("matrix", [1, 0, 0, 0, 1, 0, 0, 0, 1.01], ["normalize=True"]),
        ("matrix", [1, 0, 0, 0, 1, 0, 0, 0, -1], ["determinant", "-1"]),
        ("rot6d_rows", [0, 0, 0, 1, 0, 0], ["not parallel"]),
        ("rot6d_columns", [1, 2, 3, 2, 4, 6], ["not parallel"]),
        ("rot6d_interleaved", [1, 2, 2, 4, 3, 6], ["not parallel"]),
        ("rotvec", [0, np.inf, 0], ["finite"]),
        ("euler_xyz", [0, -np.inf, 0], ["finite"]),
    ],
)
def test_a_row_that_is_no_rotation_is_refused(arrays, source, row, texts):
    good = by_scipy(Rotation.identity(12), source).reshape(3, 4, -1)
    good[2, 1] = row
    with pytest.raises(robocache.ArgumentError, match=r"^x: .*row \(2, 1\)") as error:
        convert_rotation(arrays(good), source, "quat_xyzw")
    assert all(text in str(error.value) for text in texts)
    if "normalize=True" in texts:
        convert_rotation(arrays(good), source, "quat_xyzw", normalize=True)
    else:
        with pytest.raises(robocache.ArgumentError, match=r"row \(2, 1\)"):
            convert_rotation(arrays(good), source, "quat_xyzw", normalize=True)


def test_a_length_within_a_thousandth_is_accepted_and_normalised():
    result = convert_rotation(np.array([0.6, 0, 0, 0.8]) * 1.0009, "quat_xyzw", "matrix").reshape(3, 3)
    np.testing.assert_allclose(result @ result.T, np.eye(3), atol=1e-15)


def test_normalize_takes_any_length(arrays):
    q = np.array([0.6, 0, 0, 0.8])
    for size in (1e-30, 0.5, 1e30):
        result = arrays.numpy(convert_rotation(arrays(q * size, "float32"), "quat_xyzw", "quat_wxyz", normalize=True))
        np.testing.assert_allclose(result, [0.8, 0.6, 0, 0], rtol=1e-6)
    m = Rotation.from_quat(q).as_matrix()
    m[1] = 3 * m[1] + 0.1 * m[0]
    result = convert_rotation(m.reshape(9), "matrix", "quat_xyzw", normalize=True)
    np.testing.assert_allclose(result, q, atol=1e-15)


@pytest.mark.parametrize(
    "name", ["quat", "euler", "euler_xxy", "euler_xYz", "euler_xy", "rot6d", "XYZ", "", "euler_xyz\n"]
)
def test_unknown_names_are_refused(name):
    with pytest.raises(robocache.ArgumentError, match=r"quat_wxyz.*rot6d_interleaved.*euler_XYZ") as error:
        convert_rotation(np.zeros(3), name, "rotvec")
    assert str(error.value).startswith("source: ")
    with pytest.raises(robocache.ArgumentError, match=r"^target: "):
        convert_rotation(np.zeros(3), "rotvec", name)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.zeros((2, 5)), robocache.ArgumentError, r"x: expected \[\.\.\., 4\].*\[2, 5\]"),
        (np.array(1.0), robocache.ArgumentError, r"x: expected \[\.\.\., 4\]"),
        (np.zeros((2, 4), int), robocache.ArgumentTypeError, "x: expected float64.*int64"),
        (np.zeros((2, 4), np.longdouble), robocache.ArgumentTypeError, "x: expected float64"),
        ([0, 0, 0, 1.0], robocache.ArgumentTypeError, "x: expected a numpy array or a torch tensor, got list"),
        (np.ma.masked_array(np.zeros((2, 4))), robocache.ArgumentTypeError, "mask"),
        (torch.zeros(2, 4, dtype=torch.int64), robocache.ArgumentTypeError, "x: expected float64"),
    ],
)
def test_invalid_arrays_are_refused(x, error, message):
    with pytest.raises(error, match=message):
        convert_rotation(x, "quat_xyzw", "matrix")


@pytest.mark.parametrize("value", [1, "yes", None, np.bool_(True)])
def test_normalize_is_true_or_false(value):
    with pytest.raises(robocache.ArgumentTypeError, match="normalize"):
        convert_rotation(np.array([0, 0, 0, 1.0]), "quat_xyzw", "matrix", normalize=value)


@pytest.mark.parametrize("source", SOME)
def test_empty_arrays_give_empty_arrays(arrays, source):
    width = by_scipy(Rotation.from_rotvec([[0.1, 0.2, 0.3]]), source).shape[-1]
    assert tuple(convert_rotation(arrays(np.zeros((3, 0, width))), source, "rot6d_rows").shape) == (3, 0, 6)


@pytest.mark.parametrize("target", SOME)
@pytest.mark.parametrize("source", SOME)
def test_gradients_equal_finite_differences(rng, device, source, target):
    x = torch.as_tensor(by_scipy(Rotation.random(3, rng=rng), source), device=device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: convert_rotation(x, source, target, normalize=True), x, atol=1e-4)


@pytest.mark.parametrize("target", SOME)
def test_gradients_are_finite_at_identity_gimbal_lock_and_nan(target):
    q = torch.tensor([[0, 0, 0, 1.0], [0, math.sqrt(0.5), 0, math.sqrt(0.5)], [1, 0, 0, 0], [math.nan] * 4])
    q.requires_grad_()
    result = convert_rotation(q, "quat_xyzw", target, normalize=True)
    result.nan_to_num().sum().backward()
    assert q.grad.isfinite().all() and (q.grad[3] == 0).all()
    v = torch.zeros(2, 3, requires_grad=True)
    convert_rotation(v, "rotvec", target).sum().backward()
    assert v.grad.isfinite().all()


def test_compiled_and_mapped_calls_give_nan_where_others_refuse(device):
    q = torch.tensor([[0.6, 0, 0, 0.8], [0.5, 0, 0, 0.5], [0, 0, 0, 0]], device=device)

    def convert(q):
        return convert_rotation(q, "quat_xyzw", "rot6d_rows")

    expected = convert(q[:1])
    for call in (torch.compile(convert, backend="eager", fullgraph=True), torch.vmap(convert)):
        result = call(q)
        torch.testing.assert_close(result[:1], expected)
        assert result[1:].isnan().all()
