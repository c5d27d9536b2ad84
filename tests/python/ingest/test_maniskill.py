"""ManiSkill's trajectories, in the layout of its documentation and recorder."""

import json

import h5py
import numpy as np
import pytest
from hdf5_files import assert_refused, read_all
from outcomes import ingest_and_open, reasons

import robocache


def make_trajectory(rng, steps, size=16):
    return {
        "actions": rng.normal(size=(steps, 8)).astype(np.float32),
        "terminated": np.arange(steps) == steps - 1,
        "truncated": np.zeros(steps, bool),
        "success": np.arange(steps) >= steps - 2,
        "rewards": rng.normal(size=steps).astype(np.float32),
        "env_states/actors/cube": rng.normal(size=(steps + 1, 13)).astype(np.float32),
        "env_states/articulations/panda": rng.normal(size=(steps + 1, 31)).astype(np.float32),
        "obs/agent/qpos": rng.normal(size=(steps + 1, 9)).astype(np.float32),
        "obs/extra/is_grasped": rng.integers(0, 2, steps + 1) > 0,
        "obs/sensor_param/base_camera/intrinsic_cv": rng.normal(size=(steps + 1, 3, 3)).astype(np.float32),
        "obs/sensor_data/base_camera/rgb": rng.integers(0, 256, (steps + 1, size, size, 3), np.uint8),
        "obs/sensor_data/base_camera/depth": rng.integers(0, 3000, (steps + 1, size, size, 1), np.int16),
        "obs/sensor_data/base_camera/segmentation": rng.integers(0, 20, (steps + 1, size, size, 1), np.int16),
    }


def write_trajectories(path, trajectories, kwargs=None, with_json=True, control_mode="pd_joint_pos"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for number, datasets in trajectories.items():
            for key, values in datasets.items():
                file.create_dataset(f"traj_{number}/{key}", data=values, compression="gzip", compression_opts=5)
    if with_json:
        episodes = [
            {
                "episode_id": number,
                "episode_seed": 7 + number,
                "control_mode": control_mode,
                "control_freq": None,
                "elapsed_steps": len(datasets["actions"]),
                "reset_kwargs": {"seed": 7 + number},
                "success": bool(number % 2),
                "fail": False,
                "info": {"is_robot_static": [True]},
            }
            for number, datasets in trajectories.items()
        ]
        info = {"env_id": "PickCube-v1", "max_episode_steps": 50, "env_kwargs": kwargs or {"obs_mode": "rgbd"}}
        content = {"env_info": info, "episodes": episodes, "source_type": "motionplanning"}
        path.with_suffix(".json").write_text(json.dumps(content, indent=2))
    return trajectories


@pytest.mark.parametrize(
    ("mode", "is_relative"),
    [("pd_ee_delta_pose", True), ("pd_joint_pos", False), ("pd_joint_delta", True), ("pdEeDeltaPose", True)],
)
def test_actions_are_declared_relative_by_the_control_mode(mode, is_relative, rng, tmp_path):
    write_trajectories(
        tmp_path / "t.h5", {0: make_trajectory(rng, 6)}, {"sim_config": {"control_freq": 20}}, control_mode=mode
    )
    attributes = ingest_and_open(tmp_path / "t.h5", tmp_path / "cache")[0].streams["actions"].attributes
    assert attributes.get("absolute") == (False if is_relative else None)


def test_two_files_of_trajectories(rng, tmp_path):
    files = {
        "PickCube-v1/motionplanning/trajectory.h5": {
            0: make_trajectory(rng, 6),
            2: make_trajectory(rng, 5),
            10: make_trajectory(rng, 7),
        },
        "PickCube-v1/rl/trajectory.rgbd.pd_joint_pos.h5": {1: make_trajectory(rng, 4)},
    }
    kwargs = {"sim_config": {"sim_freq": 100, "control_freq": 20}}
    for name, trajectories in files.items():
        write_trajectories(tmp_path / "demos" / name, trajectories, kwargs)
    dataset, report = ingest_and_open(tmp_path / "demos", tmp_path / "cache", image_codec="png")
    assert (report.format, report.episodes, report.skipped) == ("maniskill", 4, [])
    expected = [trajectory for trajectories in files.values() for trajectory in trajectories.values()]
    assert dataset.episodes["name"].to_pylist() == ["traj_0", "traj_2", "traj_10", "traj_1"]
    assert dataset.episodes["success"].to_pylist() == [False, False, False, True]
    assert dataset.episodes["elapsed_steps"].to_pylist() == [6, 5, 7, 4]
    assert dataset.episodes["task"].to_pylist() == ["PickCube-v1"] * 4
    assert dataset.episodes["control_mode"].to_pylist() == ["pd_joint_pos"] * 4
    assert dataset.episodes["episode_seed"].to_pylist() == [7, 9, 17, 8]
    for index, trajectory in enumerate(expected):
        for key, values in trajectory.items():
            time_ns, values_read = dataset.episode(index)[key]
            np.testing.assert_array_equal(values_read[:], values)
            assert time_ns.tolist() == [k * 50_000_000 for k in range(len(values))], key
    depth = dataset.streams["obs/sensor_data/base_camera/depth"].frames
    assert (depth.codec, depth.unit_m) == ("png", 0.001)
    assert dataset.streams["obs/sensor_data/base_camera/segmentation"].frames.unit_m is None
    facts = dataset.provenance["maniskill"]["files"]["PickCube-v1/rl/trajectory.rgbd.pd_joint_pos.h5"]
    assert facts["rate_hz"] == 20 and facts["rate_from"] == "env_info.env_kwargs.sim_config.control_freq"


def test_an_undeclared_rate_is_required(rng, tmp_path):
    write_trajectories(tmp_path / "trajectory.h5", {0: make_trajectory(rng, 4)})
    assert_refused(tmp_path / "trajectory.h5", "no clock", "control_freq", "rate_hz")
    [(_, streams)], _ = read_all(tmp_path / "trajectory.h5", rate_hz=10)
    assert streams["actions"][0].tolist() == [k * 10**8 for k in range(4)]
    write_trajectories(
        tmp_path / "trajectory.h5",
        {0: make_trajectory(rng, 4)},
        {"control_freq": 20, "sim_config": {"control_freq": 50}},
    )
    assert_refused(tmp_path / "trajectory.h5", "20 Hz", "50 Hz", "contradict")


def test_a_file_without_its_json_is_read_without_columns(rng, tmp_path):
    write_trajectories(tmp_path / "run.h5", {0: make_trajectory(rng, 4), 1: make_trajectory(rng, 3)}, with_json=False)
    recordings, notes = read_all(tmp_path / "run.h5", rate_hz=20, on_error="skip")
    assert [len(streams["obs/agent/qpos"][0]) for _, streams in recordings] == [5, 4]
    assert list(reasons(notes.skipped)) == ["run.h5: metadata"]


def test_all_or_no_observations_have_a_last_step(rng, tmp_path):
    trajectory = make_trajectory(rng, 6)
    short = {key: values[:6] if key.startswith("obs/") else values for key, values in trajectory.items()}
    write_trajectories(tmp_path / "all.h5", {0: short})
    [(_, streams)], _ = read_all(tmp_path / "all.h5", rate_hz=20)
    assert len(streams["obs/agent/qpos"][0]) == 6 and len(streams["env_states/actors/cube"][0]) == 7
    trajectory["obs/agent/qpos"] = trajectory["obs/agent/qpos"][1:]
    write_trajectories(tmp_path / "one.h5", {0: trajectory})
    [(_, streams)], notes = read_all(tmp_path / "one.h5", rate_hz=20, on_error="skip")
    assert "obs/agent/qpos" not in streams and len(streams["obs/extra/is_grasped"][0]) == 7
    assert any(
        "obs/agent/qpos" in what and "6 rows, expected 7" in reason for what, reason in reasons(notes.skipped).items()
    )


@pytest.mark.parametrize("damaged_key", ["actions", "obs/agent/qpos", "rewards"])
def test_damaged_parts_are_named_and_the_rest_kept(damaged_key, rng, tmp_path):
    first, second = make_trajectory(rng, 8), make_trajectory(rng, 8)
    first[damaged_key] = first[damaged_key][:-2]
    write_trajectories(tmp_path / "trajectory.h5", {0: first, 1: second}, {"control_freq": 20})
    content = json.loads((tmp_path / "trajectory.json").read_text())
    content["episodes"][0]["elapsed_steps"] = 8
    (tmp_path / "trajectory.json").write_text(json.dumps(content))
    assert_refused(tmp_path / "trajectory.h5", damaged_key, "rows, expected")
    recordings, notes = read_all(tmp_path / "trajectory.h5", on_error="skip")
    assert [len(streams) for _, streams in recordings] == [12, 13] and list(reasons(notes.skipped)) == [
        f"traj_0: {damaged_key}"
    ]
    content["episodes"][1]["elapsed_steps"] = 9
    (tmp_path / "trajectory.json").write_text(json.dumps(content))
    recordings, notes = read_all(tmp_path / "trajectory.h5", on_error="skip")
    assert len(recordings) == 1 and "says 9 steps, got 8" in reasons(notes.skipped)["traj_1"]


@pytest.mark.parametrize(
    ("camera", "metres", "dtype"),
    [
        ("obs/image/hand_camera/depth", 1 / 1024, np.uint16),  # ManiSkill2
        ("obs/sensor_data/hand_camera/depth", 0.001, np.uint16),
        ("obs/sensor_data/hand_camera/depth", 0.001, np.int16),
        ("obs/image/hand_camera/depth", 1, np.float32),
    ],
)
def test_the_unit_of_depth(camera, metres, dtype, rng, tmp_path):
    numbers = rng.integers(0, 3000, (5, 16, 16, 1)).astype(dtype)
    write_trajectories(tmp_path / "demos" / "trajectory.h5", {0: {"actions": np.zeros((4, 2)), camera: numbers}})
    dataset = robocache.open(robocache.ingest(tmp_path / "demos", tmp_path / "cache", rate_hz=20).cache)
    loader = robocache.Loader(dataset, delta_timestamps={camera: [0.0]}, batch_size=5, shuffle=False, device="cpu")
    (batch,) = loader
    np.testing.assert_allclose(batch[camera][:, 0, 0], numbers[..., 0] * metres, rtol=1e-6)


def test_negative_depth_is_no_depth(rng, tmp_path):
    trajectory = make_trajectory(rng, 4)
    trajectory["obs/sensor_data/base_camera/depth"][2, 0, 0, 0] = -1
    write_trajectories(tmp_path / "trajectory.h5", {0: trajectory}, {"control_freq": 20})
    [(_, streams)], notes = read_all(tmp_path / "trajectory.h5", on_error="skip")
    assert "obs/sensor_data/base_camera/depth" not in streams and "obs/sensor_data/base_camera/rgb" in streams
    assert any("depth" in what for what in reasons(notes.skipped))
