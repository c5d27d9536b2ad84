"""Conversions of recorded joints, bodies' poses and their rotations, and their inverses."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import robocache
from robocache import Window
from robocache.actions import Relative, StepDelta, absolute, convert_rotation, relative


@pytest.mark.parametrize("conversion", [Relative("joints", mask=[True] * 14 + [False] * 12), StepDelta()])
def test_joints_round_trip(tmp_path, real_data, conversion):
    robocache.ingest(real_data("lerobot_v2/unitree_g1_real"), tmp_path / "cache", on_error="skip", video=False)
    dataset = robocache.open(tmp_path / "cache")
    offsets = {"offsets": range(16), "rows": True}
    options = {"batch_size": 256, "device": "cpu", "findings": None, "anchors": "action"}
    result, plain = (
        robocache.Loader(dataset, delta_timestamps={"observation.state": Window(), "action": window}, **options)
        for window in (Window(**offsets, convert=[conversion], base="observation.state"), Window(**offsets))
    )
    batch, recorded = next(result), next(plain)["action"]
    assert not np.allclose(batch["action"], recorded, atol=1e-3)
    np.testing.assert_allclose(result.to_absolute("action", batch["action"], batch), recorded, atol=1e-5)


@pytest.fixture
def bodies(real_data):
    """[N, 24, 3] rotation vectors of a person's joints, and [N, 3] the person's positions."""
    paths = sorted(real_data("motion/unitree_g1_lerobot").rglob("*.npz"))
    files = [np.load(path) for path in paths]
    motion = next(candidate for candidate in files if "pose_aa" in candidate)
    return motion["pose_aa"].reshape(-1, 24, 3).astype(np.float64), motion["transl"].astype(np.float64)


NAMES = ["quat_xyzw", "quat_wxyz", "matrix", "rot6d_rows", "rot6d_columns", "rot6d_interleaved", "euler_ZYX"]


@pytest.mark.parametrize("name", NAMES)
def test_a_bodys_rotations_round_trip(bodies, name):
    rotvecs, _ = bodies
    converted = convert_rotation(rotvecs, "rotvec", name)
    back = convert_rotation(converted, name, "rotvec")
    difference = Rotation.from_rotvec(rotvecs.reshape(-1, 3)).inv() * Rotation.from_rotvec(back.reshape(-1, 3))
    assert difference.magnitude().max() < 1e-7


@pytest.mark.parametrize("kind", ["se3", "mixed", "base_frame"])
def test_a_bodys_poses_round_trip(bodies, kind):
    rotvecs, positions = bodies
    pose = np.concatenate([positions, rotvecs[:, 0]], -1)
    rows = np.arange(len(pose) - 16)
    windows, base = pose[rows[:, None] + np.arange(16)], pose[rows]
    result = relative(windows, base, kind, rotation="rotvec")
    # By scipy, in the base's frame or in the world.
    target, start = Rotation.from_rotvec(windows[:, 7, 3:]), Rotation.from_rotvec(base[:, 3:])
    expected = target * start.inv() if kind == "base_frame" else start.inv() * target
    assert (Rotation.from_rotvec(result[:, 7, 3:]).inv() * expected).magnitude().max() < 1e-7
    back = absolute(result, base, kind, rotation="rotvec")
    np.testing.assert_allclose(back[..., :3], windows[..., :3], atol=1e-9)
    expected_back, rotation_back = (Rotation.from_rotvec(x[..., 3:].reshape(-1, 3)) for x in (windows, back))
    assert (rotation_back.inv() * expected_back).magnitude().max() < 1e-7
