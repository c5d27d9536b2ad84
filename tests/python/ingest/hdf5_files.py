"""Writes HDF5 recordings in the layout of each recorder, and reads them."""

import io
import json

import h5py
import numpy as np
import pytest
from outcomes import assert_words
from PIL import Image
from yields import Yields

import robocache

IMAGE = (24, 32)
SERIALS = {"wrist": "13062452", "ext1": "20036094", "ext2": "25455306"}


def write_hdf5(path, datasets, attributes=None):
    """Writes {path: values} and the attributes {path of a group or dataset: {name: value}}."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, values in datasets.items():
            file[key] = values
        for key, attrs in (attributes or {}).items():
            file[key].attrs.update(attrs)
    return path


def make_demo(rng, rows, image=IMAGE):
    return {
        "actions": rng.normal(size=(rows, 7)),
        "rewards": rng.normal(size=rows),
        "dones": np.arange(rows) == rows - 1,
        "states": rng.normal(size=(rows, 32)),
        "obs/robot0_eef_pos": rng.normal(size=(rows, 3)),
        "obs/robot0_gripper_qpos": rng.normal(size=(rows, 2)).astype(np.float32),
        "obs/agentview_image": rng.integers(0, 256, (rows, *image, 3), np.uint8),
    }


def write_robomimic(path, demos, control_freq=20, masks=None, env_args=None, attributes=None, **options):
    """demos: {name: {path in the demo: array}}. attributes: {path of a group: {name: value}}. `options` apply to the datasets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(len(demo.get("actions", [])) for demo in demos.values())
        kwargs = {"control_freq": control_freq, "robots": "Panda"} if control_freq else {}
        args = {"env_name": "Lift", "type": 1, "env_kwargs": kwargs} if env_args is None else env_args
        data.attrs["env_args"] = json.dumps(args)
        for name, demo in demos.items():
            group = data.create_group(name)
            group.attrs["num_samples"] = len(demo.get("actions", []))
            group.attrs["model_file"] = "<mujoco/>"
            for key, values in demo.items():
                group.create_dataset(key, data=values, **options)
                if key.startswith("obs/"):
                    group.create_dataset(f"next_{key}", data=np.roll(values, -1, axis=0))
        for name, demo_names in (masks or {}).items():
            file[f"mask/{name}"] = np.array(demo_names, dtype="S")
        for key, attrs in (attributes or {}).items():
            file[key].attrs.update(attrs)
    return path


def write_aloha(path, episode, sim=False, lengths=None):
    """episode: {path: array}. Image files of a list are padded to one length, as in Mobile ALOHA. lengths: the values of the dataset compress_len."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", rdcc_nbytes=1 << 21) as root:
        root.attrs["sim"] = sim
        for key, values in episode.items():
            if isinstance(values, list):
                padded = np.zeros((len(values), max(map(len, values)) + 5), np.uint8)
                for row, file in enumerate(values):
                    padded[row, : len(file)] = np.frombuffer(file, np.uint8)
                root.create_dataset(key, data=padded, chunks=(1, padded.shape[1]))
            elif values.ndim == 4:
                root.create_dataset(key, data=values, chunks=(1, *values.shape[1:]))
            else:
                root.create_dataset(key, data=values.astype(np.float32))  # the default type of create_dataset
        if lengths is not None:
            root.create_dataset("compress_len", data=np.array(lengths, np.float32))
    return path


def make_aloha(rng, rows, image=IMAGE):
    return {
        "observations/qpos": rng.normal(size=(rows, 14)),
        "observations/qvel": rng.normal(size=(rows, 14)),
        "observations/effort": rng.normal(size=(rows, 14)),
        "observations/images/cam_high": rng.integers(0, 256, (rows, *image, 3), np.uint8),
        "action": rng.normal(size=(rows, 14)),
    }


def make_droid(rng, rows, start_ms=1_690_000_000_000):
    """Returns the datasets of a trajectory, {key: values}; its stamps have jitter."""
    step = start_ms + np.cumsum(rng.integers(60, 75, rows))
    trajectory = {
        "action/cartesian_position": rng.normal(size=(rows, 6)),
        "action/gripper_position": rng.normal(size=rows),
        "action/robot_state/joint_positions": rng.normal(size=(rows, 7)),
        "observation/robot_state/joint_positions": rng.normal(size=(rows, 7)),
        "observation/robot_state/gripper_position": rng.normal(size=rows),
        "observation/robot_state/prev_command_successful": rng.integers(0, 2, rows) > 0,
        "observation/controller_info/success": np.arange(rows) == rows - 1,
        "observation/timestamp/skip_action": rng.integers(0, 2, rows) > 0,
        "observation/timestamp/robot_state/read_start": step + 1,
        "observation/timestamp/robot_state/read_end": step + 3,
        "observation/timestamp/robot_state/robot_timestamp_seconds": step // 1000,
        "observation/timestamp/robot_state/robot_timestamp_nanos": step % 1000 * 1_000_000,
        "observation/timestamp/control/step_start": step,
        "observation/timestamp/control/policy_start": step + 20,
        "observation/timestamp/control/control_start": step + 30,
        "observation/timestamp/control/step_end": step + 40,
    }
    for role, serial in SERIALS.items():
        trajectory |= {
            f"observation/camera_type/{serial}": np.full(rows, 0 if role == "wrist" else 1),
            f"observation/camera_extrinsics/{serial}_left": rng.normal(size=(rows, 6)),
            f"observation/camera_intrinsics/{serial}_left": rng.normal(size=(rows, 3, 3)),
            f"observation/timestamp/cameras/{serial}_read_start": step + 4,
            f"observation/timestamp/cameras/{serial}_read_end": step + 12,
            f"observation/timestamp/cameras/{serial}_frame_received": step + 10,
            f"observation/timestamp/cameras/{serial}_estimated_capture": step + 10 - 41,  # ms of latency
        }
    return trajectory


def write_droid(folder, trajectory, metadata=True):
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "trajectory.h5", "w") as file:
        file.attrs["success"] = True
        file.attrs["building"] = "lab"
        for key, values in trajectory.items():
            dataset = file.create_dataset(key, (1, *values.shape[1:]), values.dtype, maxshape=(None, *values.shape[1:]))
            dataset.resize(len(values), axis=0)
            dataset[:] = values
    if metadata:
        attributes = {
            "uuid": "AUTOLab+0d4edc83+2023-07-22",
            "success": True,
            "current_task": "put the marker in the cup",
            "trajectory_length": len(trajectory["action/cartesian_position"]),
            **{f"{role}_cam_serial": serial for role, serial in SERIALS.items()},
            "wrist_cam_extrinsics": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
        }
        (folder / "metadata_AUTOLab+0d4edc83+2023-07-22.json").write_text(json.dumps(attributes))
    return folder


def read_all(source, format=None, on_error="stop", **options):
    """Returns ([(recording, {stream: (time_ns, values)})], notes)."""
    yields = Yields(format, source, on_error, **options)
    return list(zip(yields.recordings, yields.episodes.values(), strict=True)), yields.notes


def assert_refused(source, *words, **options):
    """Asserts that reading raises a FileError with these words."""
    with pytest.raises(robocache.FileError) as caught:
        read_all(source, **options)
    assert_words(caught, words)
    return str(caught.value)


def write_one_demo(tmp_path, write, rate=True):
    """Writes a file with one demo of 4 actions, to which `write` adds datasets."""
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        if rate:
            data.attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": 10}})
        demo = data.create_group("demo_0")
        demo["actions"] = np.arange(8.0).reshape(4, 2)
        write(demo)
    return path


def encode_image(image, format="JPEG", **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, format, **options)
    return file.getvalue()
