"""RoboTwin's episodes, in its writer's layout."""

import io
import json

import h5py
import numpy as np
import pytest
from hdf5_files import assert_refused, encode_image, read_all
from outcomes import ingest_and_open, reasons
from PIL import Image

import robocache


def make_smooth_images(rng, rows):
    """Makes JPEGs that lose little if they are decoded and encoded again, as an exchange of red and blue does."""
    small = [Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8)) for _ in range(rows)]
    return [encode_image(np.asarray(image.resize((32, 24), Image.BICUBIC))) for image in small]


def write_episode(path, rng, rows, instructions=None, **extra_datasets):
    """Writes one file, and its instructions to `instructions/`, beside the folder that holds the file. Returns the datasets, and the
    JPEGs of each camera."""
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets = {
        "joint_action/left_arm": rng.normal(size=(rows, 6)),
        "joint_action/left_gripper": rng.normal(size=rows),
        "joint_action/right_arm": rng.normal(size=(rows, 6)),
        "joint_action/right_gripper": rng.normal(size=rows),
        "joint_action/vector": rng.normal(size=(rows, 14)),
        "endpose/left_endpose": rng.normal(size=(rows, 7)),
        "endpose/left_gripper": rng.normal(size=rows),
        "observation/head_camera/intrinsic_cv": rng.normal(size=(rows, 3, 3)).astype(np.float32),
        "observation/head_camera/cam2world_gl": rng.normal(size=(rows, 4, 4)).astype(np.float32),
        "pointcloud": np.zeros((rows, 0)),
        **extra_datasets,
    }
    files = {name: make_smooth_images(rng, rows) for name in ("head_camera", "left_camera")}
    with h5py.File(path, "w") as file:
        for key, values in datasets.items():
            file[key] = values
        for camera, blobs in files.items():
            file.create_dataset(f"observation/{camera}/rgb", data=blobs, dtype=f"S{max(map(len, blobs))}")
    if instructions is not None:
        folder = path.parent.parent / "instructions"
        folder.mkdir(exist_ok=True)
        (folder / f"{path.stem}.json").write_text(json.dumps(instructions))
    return datasets, files


def test_two_episodes(rng, tmp_path):
    root = tmp_path / "beat_block_hammer/demo_clean"
    texts = {"seen": ["Hit the block.", "Strike it."], "unseen": ["Beat the red block."]}
    written = {
        number: write_episode(root / f"data/episode{number}.hdf5", rng, 5 + number % 7, texts) for number in (2, 10)
    }
    (root / "scene_info.json").write_text("{}")
    (root / "seed.txt").write_text("1 2")
    message = assert_refused(root, "no clock", "save_freq", "rate_hz")
    assert "episode2.hdf5" in message
    dataset, report = ingest_and_open(root, tmp_path / "cache", rate_hz=25)
    assert (report.format, report.skipped) == ("robotwin", [])
    columns = {name: dataset.episodes[name].to_pylist() for name in ("name", "task", "task_name", "task_config")}
    assert columns == {
        "name": ["episode2", "episode10"],
        "task": ["Hit the block."] * 2,
        "task_name": ["beat_block_hammer"] * 2,
        "task_config": ["demo_clean"] * 2,
    }
    assert dataset.episodes["instructions_unseen"].to_pylist() == [["Beat the red block."]] * 2
    for index, (datasets, files) in enumerate(written.values()):
        episode = dataset.episode(index)
        for key, values in datasets.items():
            if key != "pointcloud":
                time_ns, values_read = episode[key]
                np.testing.assert_array_equal(values_read, values)
                assert time_ns.tolist() == [k * 40_000_000 for k in range(len(values))]
        for camera, blobs in files.items():
            values_read = episode[f"observation/{camera}/rgb"][1][:]
            np.testing.assert_array_equal(values_read, [np.asarray(Image.open(io.BytesIO(blob))) for blob in blobs])
    left_out = reasons(report.left_out)
    assert "no values" in left_out["pointcloud"]
    assert 'channels = "bgr"' in left_out["red and blue"]  # a note, not a dataset
    assert {"*.json", "*.txt"} < left_out.keys()
    assert dataset.provenance["robotwin"] == {"rate_hz": 25, "rate_from": "rate_hz"}


def test_a_mapping_exchanges_red_and_blue(rng, tmp_path):
    write_episode(tmp_path / "t/c/data/episode0.hdf5", rng, 4)
    stream = "observation/head_camera/rgb"
    for name, channels in (("as they are", "rgb"), ("exchanged", "bgr")):
        mapping = {"streams": {stream: {"channels": channels}}}
        robocache.ingest(tmp_path / "t", tmp_path / name, rate_hz=25, mapping=mapping)
    as_stored, exchanged = (
        robocache.open(tmp_path / name).episode(0)[stream][1][:] for name in ("as they are", "exchanged")
    )
    # The exchanged JPEGs were encoded once more.
    assert np.abs(as_stored[..., ::-1].astype(int) - exchanged).mean() < 6


def test_damaged_parts_are_named_and_the_rest_kept(rng, tmp_path):
    root = tmp_path / "t/c"
    write_episode(root / "data/episode0.hdf5", rng, 6, **{"joint_action/extra": np.zeros((5, 2))})
    (root / "instructions").mkdir()
    (root / "instructions/episode0.json").write_text("{")
    write_episode(root / "data/episode1.hdf5", rng, 6)
    (root / "data/episode2.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n")
    recordings, notes = read_all(root, format="robotwin", rate_hz=10, on_error="skip")
    # 9 datasets and 2 cameras: the empty pointcloud and the short dataset are left out.
    assert [len(streams) for _, streams in recordings] == [11, 11]
    assert set(reasons(notes.skipped)) == {
        "data/episode0.hdf5: instructions",
        "data/episode0.hdf5: joint_action/extra",
        "data/episode2.hdf5",
    }


@pytest.mark.parametrize("requested", ["aloha", "robomimic", "droid"])
def test_other_formats_name_this_one(requested, rng, tmp_path):
    write_episode(tmp_path / "t/c/data/episode0.hdf5", rng, 4)
    source = tmp_path / "t/c/data/episode0.hdf5"
    assert_refused(
        source, "format='robotwin' reads that", format=requested, **({} if requested == "droid" else {"rate_hz": 10})
    )
