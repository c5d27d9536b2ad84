"""Demos of robomimic and similar datasets become episodes; their rate is declared or required."""

import json

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from hdf5_files import (
    assert_refused,
    make_demo,
    read_all,
    write_one_demo,
    write_robomimic,
)
from outcomes import ingest_and_open, reasons

import robocache


def test_demos_become_episodes(rng, tmp_path):
    demos = {f"demo_{number}": make_demo(rng, 5 + number) for number in (10, 0, 2)}
    path = write_robomimic(tmp_path / "low.hdf5", demos, masks={"train": ["demo_0", "demo_10"], "valid": ["demo_7"]})
    dataset, report = ingest_and_open(path, tmp_path / "cache", image_codec="png")
    assert report.format == "robomimic"
    assert dataset.episodes["name"].to_pylist() == ["demo_0", "demo_2", "demo_10"]
    assert dataset.episodes["filters"].to_pylist() == [["train"], [], ["train"]]
    assert dataset.episodes["num_samples"].to_pylist() == [5, 7, 15]
    assert {stream.clock for stream in dataset.streams.values()} == {"nominal"}
    for number, name in enumerate(("demo_0", "demo_2", "demo_10")):
        episode = dataset.episode(number)
        assert set(episode) == set(demos[name])
        for key, expected in demos[name].items():
            time_ns, values = episode[key]
            assert time_ns.tolist() == [k * 50_000_000 for k in range(len(expected))]
            if expected.ndim == 4:
                values = values[:]
            assert values.dtype == expected.dtype
            np.testing.assert_array_equal(values, expected)
    names = {omission.what for omission in report.left_out}
    assert names == {"next_obs", "attribute model_file", "mask/valid: demo_7"}
    (facts,) = dataset.provenance["robomimic"]["files"].values()
    assert (facts["rate_hz"], facts["rate_from"], facts["total"]) == (20, "env_args.env_kwargs.control_freq", 27)


def test_next_obs_without_obs_is_named(rng, tmp_path):
    demo = make_demo(rng, 5)
    demo |= {
        "obs/camera/depth": demo["states"],
        "next_obs/camera/mask": demo["states"],
        "next_obs/touch": demo["states"],
    }
    dataset, report = ingest_and_open(write_robomimic(tmp_path / "a.hdf5", {"demo_0": demo}), tmp_path / "cache")
    left_out = reasons(report.left_out)
    assert left_out["next_obs/touch"] == "not read, and obs/touch does not exist"
    assert left_out["next_obs/camera/mask"] == "not read, and obs/camera/mask does not exist"
    assert {name for name in left_out if name.startswith("next_obs")} == {
        *("next_obs", "next_obs/camera/mask", "next_obs/touch")
    }
    assert not any(name.startswith("next_obs") for name in dataset.streams)


@pytest.mark.parametrize("obs", ["none", "a dataset", "a broken link"])
def test_next_obs_beside_no_group_obs_is_named(obs, rng, tmp_path):
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": {"actions": rng.normal(size=(5, 2))}})
    with h5py.File(path, "r+") as file:
        file["data/demo_0/next_obs/touch"] = np.zeros((5, 2))
        if obs == "a dataset":
            file["data/demo_0/obs"] = np.zeros((5, 2))
        elif obs == "a broken link":
            file["data/demo_0/obs"] = h5py.SoftLink("/nothing")
    report = robocache.ingest(path, tmp_path / "cache", on_error="skip")
    assert reasons(report.left_out)["next_obs/touch"] == "not read, and obs/touch does not exist"
    assert report.episodes == 1


def test_files_with_the_same_demos_are_named(rng, tmp_path):
    demos = {f"demo_{number}": make_demo(rng, 5 + number) for number in range(2)}
    low = {name: {key: demo[key] for key in ("actions", "states")} for name, demo in demos.items()}
    write_robomimic(tmp_path / "in/image.hdf5", demos)
    write_robomimic(tmp_path / "in/low_dim.hdf5", low, compression="gzip")
    write_robomimic(tmp_path / "in/more.hdf5", {"demo_0": make_demo(rng, 5)})
    zeros = {"demo_0": {"actions": np.zeros((5, 7)), "states": np.ones((5, 2))}}
    write_robomimic(tmp_path / "in/zeros_0.hdf5", zeros)
    write_robomimic(tmp_path / "in/zeros_1.hdf5", zeros)
    for workers in (None, 2):
        report = robocache.ingest(tmp_path / "in", tmp_path / f"cache{workers}", workers=workers, on_error="skip")
        noted = {what: reason for what, reason in reasons(report.assumed).items() if what.startswith("demos of")}
        assert list(noted) == ["demos of low_dim.hdf5"]
        assert "image.hdf5, whose first has the same actions" in noted["demos of low_dim.hdf5"]


@pytest.mark.parametrize(
    ("controllers", "absolute"),
    [
        ({"type": "OSC_POSE", "control_delta": True}, False),
        ({"type": "OSC_POSE", "control_delta": False}, True),
        ({"type": "OSC_POSE", "control_delta": 0}, True),
        ({"type": "OSC_POSE", "control_delta": "False"}, True),
        ({"type": "OSC_POSE"}, False),  # robosuite's default
        ({"body_parts": {"right": {"type": "OSC_POSE", "input_type": "absolute"}}}, True),
        ([{"type": "OSC_POSE", "control_delta": True}, {"type": "OSC_POSE", "control_delta": False}], None),
        ({"type": "JOINT_VELOCITY"}, None),
    ],
)
def test_the_controllers_decide_whether_actions_are_relative(controllers, absolute, rng, tmp_path):
    args = {"env_kwargs": {"control_freq": 20, "controller_configs": controllers}}
    path = write_robomimic(tmp_path / "low.hdf5", {"demo_0": make_demo(rng, 5)}, env_args=args)
    streams = ingest_and_open(path, tmp_path / "cache")[0].streams
    assert streams["actions"].attributes.get("absolute") == absolute
    assert all("absolute" not in streams[name].attributes for name in streams if name != "actions")


@pytest.mark.parametrize(
    ("data_attributes", "demo_attributes", "task"),
    [
        ({"problem_info": json.dumps({"language_instruction": "turn on the stove"})}, {}, "turn on the stove"),
        ({"problem_info": json.dumps({"language_instruction": ["turn", "on"]})}, {}, "turn on"),
        ({"problem_info": json.dumps({"language_instruction": [*'"turn on"']})}, {}, "turn on"),
        ({}, {"ep_meta": json.dumps({"lang": "open the drawer", "layout_id": 3})}, "open the drawer"),
        ({"problem_info": json.dumps({"language_instruction": "x"})}, {"ep_meta": '{"lang": "y"}'}, "y"),
        ({"problem_info": json.dumps({"language_instruction": "x"})}, {"task": "mine"}, "mine"),
        ({"problem_info": json.dumps({"language_instruction": "x"})}, {"instruction": "mine"}, "mine"),
        ({"language_instruction": "open it"}, {}, "open it"),
        ({"task": "open it"}, {"ep_meta": '{"lang": "mine"}'}, "mine"),
        ({"instruction": "x"}, {"language_instruction": "mine"}, "mine"),
        ({"problem_info": "{"}, {"ep_meta": "[1]"}, None),
        ({"problem_info": json.dumps({"language_instruction": ""})}, {"ep_meta": '{"lang": null}'}, None),
    ],
)
def test_the_language_instruction_is_the_column_task(data_attributes, demo_attributes, task, rng, tmp_path):
    """LIBERO declares it for all demos of a file, RoboCasa for each demo."""
    attributes = {"data": data_attributes, "data/demo_0": demo_attributes}
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": make_demo(rng, 3)}, attributes=attributes)
    dataset, _ = ingest_and_open(path, tmp_path / "cache")
    (episode,) = dataset.episodes.to_pylist()
    names = ("task", "language_instruction", "instruction")
    assert next((episode[key] for key in names if key in episode), None) == task
    robocache.export(dataset, tmp_path / "out", to="lerobot", streams=["actions"])
    assert pq.read_table(tmp_path / "out/meta/tasks.parquet")["task"].to_pylist() == [task or ""]


def test_damaged_env_args_lose_only_their_own_facts(rng, tmp_path):
    demos = {f"demo_{number}": make_demo(rng, 4 + number) for number in (0, 1)}
    damaged = {"data": {"env_args": '{"env_name": "Lift", "env_kw'}}
    path = write_robomimic(tmp_path / "a.hdf5", demos, attributes=damaged)
    assert_refused(path, "attribute env_args: expected JSON", rate_hz=20)
    assert_refused(path, "name no rate", on_error="skip")
    dataset, report = ingest_and_open(path, tmp_path / "cache", rate_hz=20, on_error="skip")
    ((what, reason),) = reasons(report.skipped).items()
    assert what == "a.hdf5: data: attribute env_args" and "expected JSON" in reason
    for number, demo in enumerate(demos.values()):
        time_ns, rows = dataset.episode(number)["actions"]
        assert time_ns.tolist() == [k * 50_000_000 for k in range(4 + number)]
        np.testing.assert_array_equal(rows, demo["actions"])


@pytest.mark.parametrize(
    ("env_args", "fps", "rate_hz", "period_ns"),
    [
        ({"env_kwargs": {"control_freq": 20}}, None, None, 50_000_000),
        ({"env_kwargs": {"control_freq": 30}}, None, 30, 33_333_333),
        ({"env_name": "Isaac-Stack", "sim_args": {"dt": 0.005, "decimation": 4}}, None, None, 20_000_000),
        ({"env_name": "Isaac-Stack", "sim_args": {"dt": 0.01}, "decimation": 5}, None, None, 50_000_000),
        ({"env_kwargs": {"env_config": {"control_freq": 20}}}, None, None, 50_000_000),
        ({"env_kwargs": {"config": {"task": {"fps": 25}}}}, None, None, 40_000_000),
        ({"env_kwargs": {"control_freq": 20, "camera": {"fps": 30}}}, None, None, 50_000_000),
        ({"env_kwargs": {"robot": {"control_hz": 10}, "cameras": {"top": {"fps": 30}}}}, None, None, 100_000_000),
        ({"cfg": {"env": {"sim": {"dt": 0.005}, "decimation": 4}}}, None, None, 20_000_000),
        ({"env_name": "Isaac-Stack", "type": 2}, 60.0, None, 16_666_667),
        ({"env_name": "Isaac-Stack", "type": 2}, 0.0, 25, 40_000_000),
    ],
)
def test_the_rate_comes_from_the_file_or_the_user(env_args, fps, rate_hz, period_ns, rng, tmp_path):
    attributes = {} if fps is None else {"data": {"fps": fps}}
    demos = {"demo_0": make_demo(rng, 3)}
    path = write_robomimic(tmp_path / "a.hdf5", demos, env_args=env_args, attributes=attributes)
    [(_, streams)], _ = read_all(path, rate_hz=rate_hz)
    time_ns = streams["actions"][0].tolist()
    assert time_ns[:2] == [0, period_ns] and abs(time_ns[2] - 2 * period_ns) <= 1


def write_without_rate(tmp_path, rng, attributes):
    """Writes a demo of 3 rows whose env_args declare no rate."""
    return write_robomimic(tmp_path / "a.hdf5", {"demo_0": make_demo(rng, 3)}, None, attributes=attributes)


@pytest.mark.parametrize("group", ["/", "data", "data/demo_0"])
@pytest.mark.parametrize(("name", "value", "rate_hz"), [("control_freq", 20, 20), ("hz", 15.0, 15), ("dt", 0.1, 10)])
def test_the_rate_is_declared_anywhere(name, value, rate_hz, group, rng, tmp_path):
    path = write_without_rate(tmp_path, rng, {group: {name: value}})
    [(_, streams)], _ = read_all(path)
    assert streams["actions"][0].tolist() == [round(k * 1e9 / rate_hz) for k in range(3)]
    with h5py.File(path, "a") as file:
        file["data"].attrs["fps"] = 60.0
    assert_refused(path, f"{name} says {rate_hz} Hz", "fps says 60 Hz", "contradict each other")


@pytest.mark.parametrize("group", ["/", "data", "data/demo_0"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hz", "20 Hz"),
        ("fps", np.bytes_(b"20fps")),
        ("FPS", np.array([20], np.float32)),
        ("frequency", "20"),
        ("dt", "0.05"),
        ("config", json.dumps({"control_freq": "20 Hz", "dt": 0.002})),
        ("config", json.dumps({"env": {"kwargs": {"control_freq": 20}}})),
        ("config", json.dumps({"timestep": 0.01, "frame_skip": 5, "mic": {"sample_rate": 16000}})),
        ("config", json.dumps({"decimation": 10, "sim": {"dt": 0.005}})),
        ("config", json.dumps({"Decimation": 10, "sim": {"simDt": 0.005}})),
        ("config", json.dumps({"timeStep": 0.01, "frameSkip": 5, "handCamera": {"fps": 60}})),
        ("config", json.dumps({"controlFreq": 20, "DT": 0.002})),
        ("sample_rate", 20),
    ],
)
def test_the_rate_is_declared_by_any_name(name, value, group, rng, tmp_path):
    path = write_without_rate(tmp_path, rng, {group: {name: value}})
    [(_, streams)], _ = read_all(path)
    assert streams["actions"][0].tolist() == [0, 50_000_000, 100_000_000]
    assert_refused(path, "20 Hz", "rate_hz 30", rate_hz=30)


@pytest.mark.parametrize("value", [20, [20]])
def test_a_scalar_dataset_declares_the_rate(value, rng, tmp_path):
    path = write_without_rate(tmp_path, rng, {})
    with h5py.File(path, "a") as file:
        file["data/demo_0/fps"] = value
    [(_, streams)], _ = read_all(path)
    assert streams["actions"][0].tolist() == [0, 50_000_000, 100_000_000]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dt", 5),
        ("dt", "50"),
        ("hz", "fast"),
        ("config", '{"fps": 1'),
        ("fps", 0),
        ("sample_rate", 16000),
        ("sampling_rate", "44100 Hz"),
        ("frequency", 2.4e5),
        ("mic/sample_rate", 800),
        ("config", '{"mic": {"sample_rate": 16000}}'),
        ("config", '{"audio": {"fps": 100}}'),
        ("config", '{"sensors": {"imu": {"hz": 200}}}'),
        ("config", '{"audio": {"mic": {"sampling_rate": 500}}}'),
        ("sim_dt", 0.005),
        ("fps", 16000),
        ("config", '{"camera": {"fps": 30}}'),
        ("config", '{"cameras": {"front": {"fps": 30}}}'),
        ("config", '{"control": {"timestep": 0.002, "n_substeps": 25}}'),
        ("config", '{"sim": {"dt": 0.005}}'),
        ("config", '{"realsense": {"fps": 30}}'),
        ("config", '{"stereo_left": {"fps": 30}}'),
        ("config", '{"viewer": {"fps": 60}}'),
        ("display/hz", 60),
        ("rendering/fps", 25),
    ],
)
def test_other_numbers_are_not_taken_as_a_rate(name, value, rng, tmp_path):
    assert_refused(write_without_rate(tmp_path, rng, {"data": {name: value}}), "rate_hz (--rate-hz)")


def test_demos_may_have_different_rates(rng, tmp_path):
    demos = {f"demo_{k}": make_demo(rng, 3) for k in range(3)}
    rates = {f"data/demo_{number}": {"fps": rate_hz} for number, rate_hz in enumerate((10, 20, 30))}
    rates["data/demo_1"]["frequency"] = 25
    path = write_robomimic(tmp_path / "a.hdf5", demos, control_freq=None, attributes=rates)
    recordings, notes = read_all(path, on_error="skip")
    assert [streams["actions"][0][1] for _, streams in recordings] == [100_000_000, 33_333_333]
    assert list(reasons(notes.skipped)) == ["demo_1"]


def test_scalars_of_a_demo_are_columns(rng, tmp_path):
    demo = make_demo(rng, 12) | {"camera_shape": np.int32([84, 84, 3]), "goal": rng.normal(size=(1, 7))}
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": demo})
    [(recording, streams)], notes = read_all(path)
    assert recording.metadata["camera_shape"] == [84, 84, 3] and len(recording.metadata["goal"]) == 7
    assert "goal" not in streams and "obs/robot0_eef_pos" in streams and not notes.skipped


def test_a_rate_is_never_guessed(rng, tmp_path):
    path = write_without_rate(tmp_path, rng, {})
    assert_refused(path, str(path), "no clock", "rate_hz", '"env_name": "Lift"')
    args = {"env_kwargs": {"control_freq": 20}, "sim_args": {"dt": 0.005, "decimation": 4}}
    path = write_robomimic(tmp_path / "b.hdf5", {"demo_0": make_demo(rng, 3)}, env_args=args)
    assert_refused(path, "control_freq says 20 Hz", "decimation says 50 Hz: they contradict each other")
    path = write_robomimic(tmp_path / "c.hdf5", {"demo_0": make_demo(rng, 3)})
    assert_refused(path, "control_freq says 20 Hz, rate_hz 30", rate_hz=30)


def test_isaac_lab_nests_its_groups(rng, tmp_path):
    rows = 6
    demo = {
        "actions": rng.normal(size=(rows, 7)).astype(np.float32),
        "processed_actions": rng.normal(size=(rows, 8)).astype(np.float32),
        "obs/joint_pos": rng.normal(size=(rows, 9)).astype(np.float32),
        "obs/datagen_info/object_pose/cube_1": rng.normal(size=(rows, 4, 4)).astype(np.float32),
        "initial_state/articulation/robot/joint_position": rng.normal(size=(1, 9)).astype(np.float32),
        "states/articulation/robot/joint_position": rng.normal(size=(rows, 9)).astype(np.float32),
        "states/rigid_object/cube_1/root_pose": rng.normal(size=(rows, 7)).astype(np.float32),
    }
    args = {"env_name": "Isaac-Stack-Cube-Franka-v0", "type": 2, "sim_args": {"dt": 0.01, "decimation": 5}}
    attributes = {"data/demo_0": {"success": True, "seed": 42}}
    path = write_robomimic(
        tmp_path / "a.hdf5", {"demo_0": demo}, env_args=args, attributes=attributes, compression="gzip"
    )
    [(recording, streams)], notes = read_all(path)
    assert recording.metadata["success"] is True and recording.metadata["seed"] == 42
    assert set(streams) == set(demo)
    for key, expected in demo.items():
        np.testing.assert_array_equal(streams[key][1], expected)
    assert streams["initial_state/articulation/robot/joint_position"][0].tolist() == [0]
    assert not notes.skipped


def test_mimicgens_source_demo_is_a_column(rng, tmp_path):
    def write(demo):
        demo["src_demo_inds"] = [3, 1]
        demo["src_demo_labels"] = np.zeros((4, 1), np.int64)
        demo["datagen_info/eef_pose"] = rng.normal(size=(4, 4, 4))

    [(recording, streams)], _ = read_all(write_one_demo(tmp_path, write))
    assert recording.metadata["src_demo_inds"] == [3, 1]
    assert set(streams) == {"actions", "src_demo_labels", "datagen_info/eef_pose"}


def test_datasets_of_other_lengths_are_refused_or_skipped(rng, tmp_path):
    def write(demo):
        demo["obs/short"] = np.zeros((3, 2))
        demo["rewards"] = np.arange(4.0)

    path = write_one_demo(tmp_path, write)
    assert_refused(path, f"{path}: /data/demo_0/obs/short: 3 rows, expected 4")
    [(_, streams)], notes = read_all(path, on_error="skip")
    assert set(streams) == {"actions", "rewards"}
    assert list(reasons(notes.skipped)) == ["demo_0: obs/short"]
    with h5py.File(path, "a") as file:
        file["data/demo_0"].attrs["num_samples"] = 5
    assert_refused(path, "num_samples says 5, actions has 4 rows")
    assert read_all(path, on_error="skip")[0] == []


def test_a_demo_without_rows_and_groups_beside_demos(rng, tmp_path):
    empty = {key: values[:0] for key, values in make_demo(rng, 3).items()}
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": empty, "demo_1": make_demo(rng, 3)})
    with h5py.File(path, "a") as file:
        file["notes"] = 1
        file["data/readme"] = np.arange(3)
        file["data"].attrs["total"] = 7
        file["data/demo_1/actions"].attrs["origin"] = "m"
    report = robocache.ingest(path, tmp_path / "cache")
    left_out = reasons(report.left_out)
    assert report.episodes == 1 and left_out["demo_0"] == "nothing in it to keep"
    assert "says 7, the demos have 3 rows" in left_out["a.hdf5: data: attribute total"]
    assert {"notes", "data/readme", "actions: attributes"} < set(left_out)


def test_several_files_are_one_dataset(rng, tmp_path):
    for name in ("part_10", "part_9"):
        write_robomimic(tmp_path / f"set/{name}.hdf5", {"demo_0": make_demo(rng, 3)})
    (tmp_path / "set/readme.md").write_text("x")
    recordings, notes = read_all(tmp_path / "set")
    assert [recording.what for recording, _ in recordings] == ["part_9.hdf5: demo_0", "part_10.hdf5: demo_0"]
    assert reasons(notes.left_out)["*.md"] == "not read: 1 file"


def test_streams_and_attributes_are_in_order_of_creation(tmp_path):
    """Unless the file keeps that order, HDF5 lists them in the order of their names."""
    for ordered in (False, True):
        path = tmp_path / f"{ordered}.hdf5"
        with h5py.File(path, "w", track_order=ordered) as file:
            demo = file.create_group("data/demo_0", track_order=ordered)
            demo.attrs["zeal"], demo.attrs["age"] = 1, 2
            for name in ("obs", "actions", "also"):
                demo[name] = np.arange(6.0).reshape(3, 2)
        dataset, _ = ingest_and_open(path, tmp_path / "cache", rate_hz=20, overwrite=True)
        names = ["obs", "actions", "also"]
        assert list(dataset.streams) == (names if ordered else sorted(names))
        columns = [name for name in dataset.episodes.column_names if name in ("zeal", "age")]
        assert columns == (["zeal", "age"] if ordered else ["age", "zeal"])


@pytest.mark.parametrize("convention", ["opengl", "opencv", None])
def test_bottom_up_pictures_are_noted(convention, rng, tmp_path):
    attributes = {"data": {"macros_image_convention": convention} if convention else {}}
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": make_demo(rng, 5)}, attributes=attributes)
    _, notes = read_all(path)
    assert ("cameras: pictures the right way up" in reasons(notes.left_out)) == (convention == "opengl")


@pytest.mark.parametrize(
    ("dtype", "units", "unit_m", "metres"),
    [
        ("float32", "mm", None, 1.5),
        ("float32", "Millimeters", None, 1.5),
        ("float32", "m", None, 1500.0),
        ("float32", None, None, 1500.0),
        ("uint16", "mm", 0.001, 1.5),
        ("uint16", "cm", 0.01, 15.0),
    ],
)
def test_depth_has_its_declared_unit(dtype, units, unit_m, metres, tmp_path):
    def write(demo):
        depth = demo.create_dataset("obs/cam_depth", data=np.full((4, 8, 8, 1), 1500, dtype))
        if units is not None:
            depth.attrs["units"] = units

    dataset, report = ingest_and_open(write_one_demo(tmp_path, write), tmp_path / "cache")
    assert dataset.streams["obs/cam_depth"].frames.unit_m == unit_m
    batch = next(robocache.Loader(dataset, batch_size=2, delta_timestamps={"obs/cam_depth": None}, device="cpu"))
    np.testing.assert_allclose(np.asarray(batch["obs/cam_depth"]), metres, rtol=1e-6)
    names = [note["what"] for note in report.to_dict()["assumed"]]
    assert ("obs/cam_depth: depth in float32" in names) == (units is None)


def test_depth_of_an_unknown_unit_is_refused_by_name(tmp_path):
    def write(demo):
        demo.create_dataset("obs/cam_depth", data=np.ones((4, 8, 8, 1), np.float32)).attrs["units"] = "disparity"

    with pytest.raises(robocache.Error, match="expected m, cm or mm of depth, got 'disparity'"):
        robocache.ingest(write_one_demo(tmp_path, write), tmp_path / "cache")


@pytest.mark.parametrize(
    ("low", "high", "expected_text"),
    [(0.98, 0.99, "OpenGL's depth buffer"), (-1.5, 2.0, "negative"), (0.4, 0.99, None), (1.1, 3.0, None)],
)
def test_float_depth_that_cannot_be_metres_is_noted(low, high, expected_text, tmp_path):
    def write(demo):
        pixels = np.linspace(low, high, 4 * 64, dtype=np.float32).reshape(4, 8, 8, 1)
        demo.create_dataset("obs/cam_depth", data=pixels).attrs["units"] = "m"

    report = robocache.ingest(write_one_demo(tmp_path, write), tmp_path / "cache")
    reasons = [note["reason"] for note in report.to_dict()["assumed"] if note["what"] == "obs/cam_depth"]
    assert len(reasons) == (1 if expected_text is not None else 0) and all(
        expected_text in reason for reason in reasons
    )
