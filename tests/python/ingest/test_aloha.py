"""Episodes of ALOHA, with images as pixels or as files."""

import io

import h5py
import numpy as np
import pytest
from hdf5_files import assert_refused, encode_image, make_aloha, read_all, write_aloha, write_hdf5
from outcomes import ingest_and_open, reasons
from PIL import Image

import robocache


def test_aloha_episodes(rng, tmp_path):
    episodes = {number: make_aloha(rng, 4 + number) for number in (10, 0, 2)}
    for number, episode in episodes.items():
        write_aloha(tmp_path / f"set/episode_{number}.hdf5", episode, sim=number == 0)
    message = assert_refused(tmp_path / "set", "no clock", "rate_hz", "50 Hz")
    assert message.startswith(str(tmp_path / "set"))
    dataset, report = ingest_and_open(tmp_path / "set", tmp_path / "cache", rate_hz=50, image_codec="png")
    assert dataset.episodes["name"].to_pylist() == ["episode_0", "episode_2", "episode_10"]
    assert dataset.episodes["sim"].to_pylist() == [True, False, False]
    assert (report.format, report.left_out, report.skipped) == ("aloha", [], [])
    for index, number in enumerate((0, 2, 10)):
        for key, expected in episodes[number].items():
            time_ns, values = dataset.episode(index)[key]
            assert time_ns.tolist() == [k * 20_000_000 for k in range(4 + number)]
            if expected.ndim == 2:
                expected = expected.astype(np.float32)
            np.testing.assert_array_equal(values[:], expected)
    assert dataset.provenance["aloha"] == {"rate_hz": 50, "rate_from": "rate_hz"}


@pytest.mark.parametrize("how", ["padded", "any length", "opaque"])
def test_image_files_keep_their_bytes(how, rng, tmp_path):
    smooth = [rng.integers(0, 256, (3, 4, 3), np.uint8) for _ in range(40)]
    files = [encode_image(np.asarray(Image.fromarray(small).resize((32, 24), Image.BICUBIC))) for small in smooth]
    depth = [encode_image(rng.integers(0, 5000, (24, 32)).astype(np.uint16), "PNG") for _ in files]
    episode = {"action": rng.normal(size=(40, 14))}
    if how == "padded":
        episode |= {"observations/images/cam": files, "observations/images_depth/cam": depth}
    path = write_aloha(
        tmp_path / "episode_0.hdf5", episode, lengths=[list(map(len, files))] if how == "padded" else None
    )
    if how != "padded":
        with h5py.File(path, "a") as file:
            if how == "opaque":
                length = max(map(len, files))
                file["observations/images/cam"] = np.array([np.void(file.ljust(length, b"\0")) for file in files])
            else:
                cam = file.create_dataset("observations/images/cam", (40,), h5py.vlen_dtype(np.uint8))
                cam[:] = [np.frombuffer(file, np.uint8) for file in files]
    dataset, report = ingest_and_open(path, tmp_path / "cache", rate_hz=50)
    frames = dataset.episode(0)["observations/images/cam"][1]
    expected = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])
    np.testing.assert_array_equal(frames[:], expected)
    assert dataset.streams["observations/images/cam"].frames.codec == "jpeg"
    if how == "padded":
        depths = dataset.episode(0)["observations/images_depth/cam"][1][:]
        np.testing.assert_array_equal(depths[..., 0], [np.asarray(Image.open(io.BytesIO(file))) for file in depth])
        assert [omission.what for omission in report.left_out] == ["compress_len"]
        [(_, streams)], _ = read_all(path, rate_hz=50)
        (stored,) = streams["observations/images_depth/cam"][1]
        assert stored.data.tobytes() == b"".join(depth)  # without the padding after each file


def test_a_damaged_image_is_named_by_its_row(rng, tmp_path):
    files = [encode_image(rng.integers(0, 256, (16, 16, 3), np.uint8)) for _ in range(5)]
    files[3] = files[3][:60]
    path = write_aloha(
        tmp_path / "episode_0.hdf5", {"action": rng.normal(size=(5, 14)), "observations/images/cam": files}
    )
    [(_, streams)], notes = read_all(path, rate_hz=50, on_error="skip")
    assert list(reasons(notes.skipped)) == ["episode_0.hdf5: observations/images/cam: rows 3"]
    assert streams["observations/images/cam"][0].tolist() == [0, 20_000_000, 40_000_000, 80_000_000]


# ---- the number of rows ----


def test_most_datasets_decide_the_number_of_rows(tmp_path):
    """RoboMIND's layout: no actions or joint positions under ALOHA's names, but datasets of the episode beside them."""
    path = write_hdf5(
        tmp_path / "episode_0.hdf5",
        {
            "a_first": np.zeros((1, 1, 768), np.float32),
            "camera/shape": np.int32([480, 640, 3]),
            "camera/intrinsics": np.eye(3),
            "camera/offsets": np.arange(40.0),
            "label": np.array([b"left", b"right"]),
            "master/joint_position": np.arange(160.0).reshape(20, 8),
            "puppet/joint_position": np.arange(160.0).reshape(20, 8) + 1,
            "puppet/force": np.arange(20.0),
            "settled_at": np.array([[0.25, 0.5]]),
        },
    )
    [(recording, streams)], notes = read_all(path, rate_hz=20)
    assert set(streams) == {"master/joint_position", "puppet/joint_position", "puppet/force"}
    np.testing.assert_array_equal(streams["puppet/joint_position"][1], np.arange(160.0).reshape(20, 8) + 1)
    assert recording.metadata["camera/shape"] == [480, 640, 3]
    assert recording.metadata["camera/offsets"] == np.arange(40.0).tolist()
    assert recording.metadata["label"] == ["left", "right"] and recording.metadata["settled_at"] == [0.25, 0.5]
    left_out = reasons(notes.left_out)
    assert set(left_out) == {"a_first", "camera/intrinsics"} and "[1, 1, 768]" in left_out["a_first"]
    assert not notes.skipped


@pytest.mark.parametrize("rows", [19, 21, 15])
@pytest.mark.parametrize("deviating", ["action", "observations/qpos", "z"])
def test_a_dataset_of_another_length_is_skipped_by_name(deviating, rows, rng, tmp_path):
    names = ("action", "observations/qpos", "observations/qvel", "z")
    datasets = {name: rng.normal(size=(rows if name == deviating else 20, 4)) for name in names}
    path = write_hdf5(tmp_path / "episode_0.hdf5", datasets)
    assert_refused(path, f"/{deviating}: {rows} rows, expected 20", format="aloha", rate_hz=20)
    [(_, streams)], notes = read_all(path, format="aloha", on_error="skip", rate_hz=20)
    assert set(streams) == {*names} - {deviating}
    assert list(reasons(notes.skipped)) == [f"episode_0.hdf5: {deviating}"]


@pytest.mark.parametrize("unsupported", ["compound", "reference", "opaque", "regions"])
def test_a_dataset_of_unsupported_type_does_not_decide_the_number_of_rows(unsupported, tmp_path):
    """The unsupported dataset is the first of the file and has another number of rows."""
    path = tmp_path / "episode_0.hdf5"
    with h5py.File(path, "w") as file:
        if unsupported == "compound":
            file["a"] = np.zeros(30, [("x", "f4"), ("y", "i4")])
        elif unsupported == "opaque":
            file["a"] = np.array([np.void(b"abc")] * 30)
        else:
            kind = h5py.ref_dtype if unsupported == "reference" else h5py.regionref_dtype
            file.create_dataset("a", (30,), kind)
        file["action"], file["observations/qpos"] = np.ones((10, 2)), np.ones((10, 2))
    [(_, streams)], notes = read_all(path, rate_hz=20)
    assert set(streams) == {"action", "observations/qpos"}
    assert [omission.what for omission in notes.left_out] == ["a"]


# ---- the rate ----


@pytest.mark.parametrize(
    ("attributes", "rate_hz"),
    [
        ({"fps": 30}, 30),
        ({"frequency": np.float32(15)}, 15),
        ({"hz": "25"}, 25),
        ({"control_freq": [10]}, 10),
        ({"dt": 0.02}, 50),
        ({"dt": 0.005, "decimation": 4}, 50),
        ({"fps": 30, "control_freq": 30.0}, 30),
    ],
)
def test_a_declared_rate_is_used(attributes, rate_hz, rng, tmp_path):
    path = write_hdf5(tmp_path / "episode_0.hdf5", {"action": np.zeros((4, 2)), "observations/qpos": np.zeros((4, 2))})
    for where in ("attributes", "dataset"):
        with h5py.File(path, "a") as file:
            file.attrs.clear()
            if where == "attributes":
                file.attrs.update(attributes)
            else:
                for name, value in attributes.items():
                    file[f"info/{name}"] = value if np.ndim(value) == 0 else value[0]
        [(_, streams)], _ = read_all(path)
        assert streams["action"][0].tolist() == [round(k * 1e9 / rate_hz) for k in range(4)]
    assert_refused(path, "contradict each other", rate_hz=rate_hz + 1)


def test_rates_that_disagree_are_refused_by_name(tmp_path):
    datasets = {"action": np.zeros((4, 2)), "observations/qpos": np.zeros((4, 2))}
    for number, rates in enumerate(({"fps": 30, "control_freq": 20}, {"fps": 30}, {"fps": 15})):
        write_hdf5(tmp_path / f"set/episode_{number}.hdf5", datasets, {"/": rates})
    assert_refused(tmp_path / "set", "episode_0.hdf5", "fps says 30 Hz", "control_freq says 20 Hz", "contradict")
    report = robocache.ingest(tmp_path / "set", tmp_path / "cache", on_error="skip")
    assert [omission.what for omission in report.skipped] == ["episode_0.hdf5"]
    dataset = robocache.open(tmp_path / "cache")
    assert [dataset.episode(index)["action"][0][1] for index in range(2)] == [33_333_333, 66_666_667]
    assert dataset.provenance["aloha"] == {"rates": {"30 Hz, fps": 1, "15 Hz, fps": 1}}


@pytest.mark.parametrize("kinds", [("text", "numbers"), ("numbers", "text")])
def test_text_and_numbers_of_one_name_are_refused_by_kind(kinds, tmp_path):
    notes = {"text": np.array([b"grasp"] * 20), "numbers": np.arange(20.0)}
    for number, kind in enumerate(kinds):
        write_hdf5(tmp_path / f"s/episode_{number}.hdf5", {"action": np.zeros((20, 7)), "note": notes[kind]})
    with pytest.raises(robocache.Error, match=f"'note': expected {kinds[0]} as in its first rows, got {kinds[1]}"):
        robocache.ingest(tmp_path / "s", tmp_path / "cache", format="aloha", rate_hz=50)
