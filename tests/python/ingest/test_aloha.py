"""ALOHA's episodes, whose images are pixels or files."""

import io

import h5py
import numpy as np
import pytest
from hdf5_files import (
    image_file,
    make_aloha,
    read_all,
    refused,
    skipped,
    write_aloha,
)
from PIL import Image

import robocache


def test_aloha_episodes(rng, tmp_path):
    episodes = {number: make_aloha(rng, 4 + number) for number in (10, 0, 2)}
    for number, episode in episodes.items():
        write_aloha(tmp_path / f"set/episode_{number}.hdf5", episode, sim=number == 0)
    message = refused(tmp_path / "set", "no clock", "rate_hz", "50 Hz")
    assert message.startswith(str(tmp_path / "set"))
    report = robocache.ingest(tmp_path / "set", tmp_path / "cache", rate_hz=50, image_codec="png")
    dataset = robocache.open(tmp_path / "cache")
    assert dataset.episodes["name"].to_pylist() == ["episode_0", "episode_2", "episode_10"]
    assert dataset.episodes["sim"].to_pylist() == [True, False, False]
    assert (report.format, report.left_out, report.skipped) == ("aloha", [], [])
    for place, number in enumerate((0, 2, 10)):
        for key, expected in episodes[number].items():
            time_ns, values = dataset.episode(place)[key]
            assert time_ns.tolist() == [k * 20_000_000 for k in range(4 + number)]
            if expected.ndim == 2:
                expected = expected.astype(np.float32)
            np.testing.assert_array_equal(values[:], expected)
    assert dataset.provenance["aloha"] == {"rate_hz": 50, "rate_from": "rate_hz"}


@pytest.mark.parametrize("how", ["padded", "any length", "opaque"])
def test_images_that_are_files_stay_as_they_are(how, rng, tmp_path):
    smooth = [rng.integers(0, 256, (3, 4, 3), np.uint8) for _ in range(40)]
    files = [image_file(np.asarray(Image.fromarray(small).resize((32, 24), Image.BICUBIC))) for small in smooth]
    depth = [image_file(rng.integers(0, 5000, (24, 32)).astype(np.uint16), "PNG") for _ in files]
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
    report = robocache.ingest(path, tmp_path / "cache", rate_hz=50)
    dataset = robocache.open(tmp_path / "cache")
    kept = dataset.episode(0)["observations/images/cam"][1]
    expected = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])
    np.testing.assert_array_equal(kept[:], expected)
    assert dataset.streams["observations/images/cam"].frames.codec == "jpeg"
    if how == "padded":
        depths = dataset.episode(0)["observations/images_depth/cam"][1][:]
        np.testing.assert_array_equal(depths[..., 0], [np.asarray(Image.open(io.BytesIO(file))) for file in depth])
        assert [omission.what for omission in report.left_out] == ["compress_len"]
        [(_, streams)], _ = read_all(path, rate_hz=50)
        (stored,) = streams["observations/images_depth/cam"][1]
        assert stored.data.tobytes() == b"".join(depth)  # without what is behind each


def test_an_image_that_is_damaged_is_named_by_its_row(rng, tmp_path):
    files = [image_file(rng.integers(0, 256, (16, 16, 3), np.uint8)) for _ in range(5)]
    files[3] = files[3][:60]
    path = write_aloha(
        tmp_path / "episode_0.hdf5", {"action": rng.normal(size=(5, 14)), "observations/images/cam": files}
    )
    [(_, streams)], notes = read_all(path, rate_hz=50, on_error="skip")
    assert list(skipped(notes)) == ["episode_0.hdf5: observations/images/cam: rows 3"]
    assert streams["observations/images/cam"][0].tolist() == [0, 20_000_000, 40_000_000, 80_000_000]
