"""HDF5 recordings of robomimic's kind, ALOHA's and DROID's become caches: every number as h5py reads it, every stamp right."""

import io
import json
import os
import resource
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from damage import damage
from hdf5_files import (
    SERIALS,
    make_aloha,
    make_demo,
    make_droid,
    read_all,
    write_aloha,
    write_droid,
    write_robomimic,
)
from PIL import Image
from robocache.ingest.hdf5 import datasets
from soak import rounds
from video_files import number_of, write_video

import robocache
from robocache import frames


def left_out(notes):
    return {omission.what: omission.reason for omission in notes.left_out}


def skipped(notes):
    return {omission.what: omission.reason for omission in notes.skipped}


def refused(source, *words, **options):
    """Reading stops with a FileError that has these words."""
    with pytest.raises(robocache.FileError) as caught:
        read_all(source, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return str(caught.value)


def one_demo(tmp_path, write, rate=True):
    """A file of one demo with 4 actions, and what `write` puts beside them."""
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        if rate:
            data.attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": 10}})
        demo = data.create_group("demo_0")
        demo["actions"] = np.arange(8.0).reshape(4, 2)
        write(demo)
    return path


def pixels(encoded):
    """[n, H, W, C] of frames that are files."""
    return np.concatenate(
        [frames.decode(e.codec, e.data, e.offsets, e.shape, e.dtype, range(len(e.offsets) - 1)) for e in encoded]
    )


# ---- robomimic and its relatives ----


def test_demos_become_episodes(rng, tmp_path):
    demos = {f"demo_{number}": make_demo(rng, 5 + number) for number in (10, 0, 2)}
    path = write_robomimic(tmp_path / "low.hdf5", demos, masks={"train": ["demo_0", "demo_10"], "valid": ["demo_7"]})
    report = robocache.ingest(path, tmp_path / "cache", image_codec="png")
    dataset = robocache.open(tmp_path / "cache")
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
    told = {omission.what for omission in report.left_out}
    assert told == {"next_obs", "attribute model_file", "mask/valid: demo_7"}
    (facts,) = dataset.provenance["robomimic"]["files"].values()
    assert (facts["rate_hz"], facts["rate_from"], facts["total"]) == (20, "env_args.env_kwargs.control_freq", 27)


@pytest.mark.parametrize(
    ("env_args", "fps", "rate_hz", "period_ns"),
    [
        ({"env_kwargs": {"control_freq": 20}}, None, None, 50_000_000),
        ({"env_kwargs": {"control_freq": 30}}, None, 30, 33_333_333),
        ({"env_name": "Isaac-Stack", "sim_args": {"dt": 0.005, "decimation": 4}}, None, None, 20_000_000),
        ({"env_name": "Isaac-Stack", "sim_args": {"dt": 0.01}, "decimation": 5}, None, None, 50_000_000),
        ({"env_name": "Isaac-Stack", "type": 2}, 60.0, None, 16_666_667),
        ({"env_name": "Isaac-Stack", "type": 2}, 0.0, 25, 40_000_000),
    ],
)
def test_the_rate_comes_from_the_file_or_the_user(env_args, fps, rate_hz, period_ns, rng, tmp_path):
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": make_demo(rng, 3)}, env_args=env_args)
    if fps is not None:
        with h5py.File(path, "a") as file:
            file["data"].attrs["fps"] = fps
    [(_, streams)], _ = read_all(path, rate_hz=rate_hz)
    time_ns = streams["actions"][0].tolist()
    assert time_ns[:2] == [0, period_ns] and abs(time_ns[2] - 2 * period_ns) <= 1


def test_no_rate_is_guessed(rng, tmp_path):
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": make_demo(rng, 3)}, control_freq=None)
    refused(path, str(path), "no clock", "rate_hz", '"env_name": "Lift"')
    args = {"env_kwargs": {"control_freq": 20}, "sim_args": {"dt": 0.005, "decimation": 4}}
    path = write_robomimic(tmp_path / "b.hdf5", {"demo_0": make_demo(rng, 3)}, env_args=args)
    refused(path, "control_freq says 20 Hz", "decimation says 50 Hz: they contradict each other")
    path = write_robomimic(tmp_path / "c.hdf5", {"demo_0": make_demo(rng, 3)})
    refused(path, "control_freq says 20 Hz, rate_hz 30", rate_hz=30)


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
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": demo}, env_args=args, compression="gzip")
    with h5py.File(path, "a") as file:
        file["data/demo_0"].attrs["success"] = True
        file["data/demo_0"].attrs["seed"] = 42
    [(recording, streams)], notes = read_all(path)
    assert recording.metadata["success"] is True and recording.metadata["seed"] == 42
    assert set(streams) == set(demo)
    for key, expected in demo.items():
        np.testing.assert_array_equal(streams[key][1], expected)
    assert streams["initial_state/articulation/robot/joint_position"][0].tolist() == [0]
    assert not notes.skipped


def test_mimicgen_says_whence_an_episode_comes(rng, tmp_path):
    def write(demo):
        demo["src_demo_inds"] = [3, 1]
        demo["src_demo_labels"] = np.zeros((4, 1), np.int64)
        demo["datagen_info/eef_pose"] = rng.normal(size=(4, 4, 4))

    [(recording, streams)], _ = read_all(one_demo(tmp_path, write))
    assert recording.metadata["src_demo_inds"] == [3, 1]
    assert set(streams) == {"actions", "src_demo_labels", "datagen_info/eef_pose"}


def test_rows_that_are_not_as_many(rng, tmp_path):
    def write(demo):
        demo["obs/short"] = np.zeros((3, 2))
        demo["rewards"] = np.arange(4.0)

    path = one_demo(tmp_path, write)
    refused(path, f"{path}: /data/demo_0/obs/short: 3 rows, expected 4")
    [(_, streams)], notes = read_all(path, on_error="skip")
    assert set(streams) == {"actions", "rewards"}
    assert list(skipped(notes)) == ["demo_0: obs/short"]
    with h5py.File(path, "a") as file:
        file["data/demo_0"].attrs["num_samples"] = 5
    refused(path, "num_samples says 5, actions has 4 rows")
    assert read_all(path, on_error="skip")[0] == []


def test_a_demo_without_rows_and_what_lies_beside(rng, tmp_path):
    empty = {key: values[:0] for key, values in make_demo(rng, 3).items()}
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": empty, "demo_1": make_demo(rng, 3)})
    with h5py.File(path, "a") as file:
        file["notes"] = 1
        file["data/readme"] = np.arange(3)
        file["data"].attrs["total"] = 7
        file["data/demo_1/actions"].attrs["unit"] = "m"
    report = robocache.ingest(path, tmp_path / "cache")
    told = {omission.what: omission.reason for omission in report.left_out}
    assert report.episodes == 1 and told["demo_0"] == "nothing in it to keep"
    assert "says 7, the demos have 3 rows" in told["a.hdf5: data: attribute total"]
    assert {"notes", "data/readme", "actions: attributes"} < set(told)


def test_several_files_are_one_dataset(rng, tmp_path):
    for name in ("part_10", "part_9"):
        write_robomimic(tmp_path / f"set/{name}.hdf5", {"demo_0": make_demo(rng, 3)})
    (tmp_path / "set/readme.md").write_text("x")
    found, notes = read_all(tmp_path / "set")
    assert [recording.what for recording, _ in found] == ["part_9.hdf5: demo_0", "part_10.hdf5: demo_0"]
    assert left_out(notes)["*.md"] == "not read: 1 file"


# ---- what datasets hold ----


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "<i2", ">i2", ">u4", "<u8", "<f2", "<f4", ">f4", ">f8"])
@pytest.mark.parametrize("options", [{}, {"chunks": (3, 2), "compression": "gzip", "shuffle": True}])
def test_numbers_stay_as_they_are(dtype, options, rng, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_PART_BYTES", 64)  # many parts
    values = (rng.normal(size=(50, 3)) * 100).astype(dtype)
    path = one_demo(
        tmp_path, lambda demo: demo.parent.create_group("demo_1").create_dataset("actions", data=values, **options)
    )
    _, (_, streams) = read_all(path)[0]
    time_ns, read = streams["actions"]
    assert read.dtype == np.dtype(dtype).newbyteorder("=") and read.dtype.isnative
    np.testing.assert_array_equal(read, values)
    assert time_ns.tolist() == [k * 100_000_000 for k in range(50)]


def test_texts_and_rows_of_any_length(tmp_path):
    def write(demo):
        demo["instruction"] = ["pick", "naïve", "", "place"]
        demo["fixed"] = np.array([b"a", b"bc", b"\xff", b""], "S2")
        ragged = demo.create_dataset("contacts", (4,), h5py.vlen_dtype("f4"))
        ragged[:] = [np.arange(k, dtype=np.float32) for k in (2, 0, 3, 1)]
        demo["language"] = "stack the cubes"
        demo["goal"] = ["one text"]
        demo["weight"] = 2.5

    path = one_demo(tmp_path, write)
    [(recording, streams)], notes = read_all(path)
    assert streams["instruction"][1] == ["pick", "naïve", "", "place"]
    assert streams["fixed"][1] == ["a", "bc", "\\xff", ""]
    assert [row.tolist() for row in streams["contacts"][1]] == [[0, 1], [], [0, 1, 2], [0]]
    facts = {key: recording.metadata[key] for key in ("language", "goal", "weight")}
    assert facts == {"language": "stack the cubes", "goal": "one text", "weight": 2.5}
    assert "fixed: bytes that are no UTF-8" in left_out(notes)
    assert robocache.ingest(path, tmp_path / "cache").rows["contacts"] == 4


def test_what_is_neither_is_left_out_by_name(tmp_path):
    def write(demo):
        demo["compound"] = np.zeros(4, [("x", "f4"), ("y", "i4")])
        demo["complex"] = np.zeros(4, np.complex64)
        demo["opaque"] = np.zeros(4, "V5")
        demo["long"] = np.zeros(4, np.longdouble)
        demo.create_dataset("reference", (4,), h5py.ref_dtype)[:] = [demo.ref] * 4
        demo["empty"] = h5py.Empty("f4")
        demo["type"] = np.dtype("f8")
        demo["wide"] = np.zeros((4, datasets._MOST_FEATURES + 1), np.float32)
        demo.create_dataset("unwritten", (4, 2), "f4")
        demo["same"] = demo["actions"]
        demo.create_dataset("swapped", (4,), h5py.vlen_dtype(">f4"))[0] = np.ones(2, np.float32)

    [(_, streams)], notes = read_all(one_demo(tmp_path, write))
    told = left_out(notes)
    assert set(streams) == {"actions"}
    assert set(told) == {
        "compound",
        "complex",
        "opaque",
        "long",
        "reference",
        "empty",
        "type",
        "wide",
        "unwritten",
        "same",
        "swapped",
    }
    assert told["compound"] == "of type compounds of x, y" and told["same"] == "the same as actions"
    assert told["reference"] == "of type references to other objects" and "never written" in told["unwritten"]
    assert not notes.skipped


# ---- cameras ----


@pytest.mark.parametrize(
    ("dtype", "shape", "name", "codec", "first"),
    [
        (np.uint8, (16, 24, 3), "obs/image", "png", False),
        (np.uint8, (3, 16, 24), "obs/channels_first", "png", True),
        (np.uint8, (16, 24, 1), "obs/mask", None, False),
        (np.uint8, (32, 40), "obs/mask", None, False),
        (np.uint16, (16, 24, 1), "obs/depth", None, False),
        (np.float32, (16, 24, 1), "obs/agentview_depth", None, False),
    ],
)
def test_pixels_are_kept(dtype, shape, name, codec, first, rng, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_PART_BYTES", 5000)
    values = (rng.random((4, *shape)) * 255).astype(dtype)
    path = one_demo(tmp_path, lambda demo: demo.create_dataset(name, data=values))
    robocache.ingest(path, tmp_path / "cache", **({"image_codec": codec} if codec else {}))
    stream = robocache.open(tmp_path / "cache").streams[name]
    expected = np.moveaxis(values, 1, -1) if first else values.reshape(*values.shape[:3], -1)
    kept = stream.values[:]
    assert kept.dtype == dtype and stream.frames.codec == ("raw" if dtype == np.float32 else "png")
    np.testing.assert_array_equal(kept.reshape(expected.shape), expected)


def test_colour_is_jpeg_and_resized_where_asked(rng, tmp_path):
    smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8)).resize((40, 32), Image.BICUBIC))
    path = one_demo(tmp_path, lambda demo: demo.create_dataset("obs/image", data=np.stack([smooth] * 4)))
    assert robocache.ingest(path, tmp_path / "a").cameras["obs/image"]["codec"] == "jpeg"
    kept = robocache.open(tmp_path / "a").streams["obs/image"].values[:]
    as_pillow = np.asarray(Image.open(io.BytesIO(image_file(smooth, quality=95)))).astype(int)
    assert np.abs(kept[0] - as_pillow).max() <= 1
    robocache.ingest(path, tmp_path / "b", image_size="20x16", image_codec="png")
    stream = robocache.open(tmp_path / "b").streams["obs/image"]
    assert stream.frames.resized == {"size": [16, 20], "fit": "stretch", "from": [32, 40]}
    expected = np.asarray(Image.fromarray(smooth).resize((20, 16), Image.BILINEAR)).astype(int)
    assert np.abs(stream.values[:][0] - expected).max() <= 1


def test_a_camera_of_another_size_is_named(rng, tmp_path):
    demos = {"demo_0": make_demo(rng, 3), "demo_1": make_demo(rng, 3, (16, 16))}
    path = write_robomimic(tmp_path / "a.hdf5", demos)
    refused(path, "/data/demo_1/obs/agentview_image", "16x16", "32x24")
    _, (_, streams) = read_all(path, on_error="skip")[0]
    assert "obs/agentview_image" not in streams and "actions" in streams


# ---- nothing outside of the file, and no more than is in it ----


def outside(tmp_path):
    with h5py.File(tmp_path / "secret.dat", "w") as file:
        file["x"] = np.full((4, 2), 7.0)
    return tmp_path / "secret.dat"


def external_link(demo, secret):
    demo["obs/bad"] = h5py.ExternalLink(str(secret), "/x")


def soft_link_through_an_external_one(demo, secret):
    demo.file["way"] = h5py.ExternalLink(str(secret), "/")
    demo["obs/bad"] = h5py.SoftLink("/way/x")


def virtual_dataset(demo, secret):
    layout = h5py.VirtualLayout((4, 2), "f8")
    layout[:] = h5py.VirtualSource(str(secret), "x", (4, 2))
    demo.create_group("obs").create_virtual_dataset("bad", layout)


def external_storage(demo, secret):
    demo.create_group("obs").create_dataset("bad", (4, 2), "f8", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])


def dangling_link(demo, secret):
    demo["obs/bad"] = h5py.SoftLink("/data/nothing")


def circle_of_links(demo, secret):
    demo["obs/bad"] = h5py.SoftLink("other")
    demo["obs/other"] = h5py.SoftLink("bad")


@pytest.mark.parametrize(
    "write",
    [
        external_link,
        soft_link_through_an_external_one,
        virtual_dataset,
        external_storage,
        dangling_link,
        circle_of_links,
    ],
)
def test_nothing_leads_out_of_the_file(write, rng, tmp_path):
    secret = outside(tmp_path)
    path = one_demo(
        tmp_path, lambda demo: (write(demo, secret), demo.create_dataset("obs/good", data=np.zeros((4, 1))))
    )
    refused(path, f"{path}: /data/demo_0/obs/", "bad")
    [(_, streams)], notes = read_all(path, on_error="skip")
    assert set(streams) == {"actions", "obs/good"}
    assert "demo_0: obs/bad" in skipped(notes)


def test_links_within_the_file_are_followed(tmp_path):
    def write(demo):
        demo.file["store/x"] = np.arange(4.0)
        demo["obs/absolute"] = h5py.SoftLink("/store/x")
        demo["obs/relative"] = h5py.SoftLink("deep/y")
        demo["obs/deep/y"] = np.arange(4.0) + 1
        demo["loop"] = demo.parent  # a hard link upwards

    [(_, streams)], notes = read_all(one_demo(tmp_path, write))
    assert streams["obs/absolute"][1].tolist() == [0, 1, 2, 3]
    assert ("obs/relative" in streams) != ("obs/deep/y" in streams)  # one object, once
    assert left_out(notes).get("loop/demo_0") == "the same as itself"


def test_groups_linked_again_and_again_are_read_once(tmp_path):
    def write(demo):
        group = demo
        for _ in range(40):  # 2 ** 40 paths
            below = group.create_group("a")
            group["b"] = below
            group = below
        group["x"] = np.arange(4.0)

    started = time.perf_counter()
    [(_, streams)], _ = read_all(one_demo(tmp_path, write))
    assert len(streams) == 2 and time.perf_counter() - started < 2


def test_declared_sizes_are_not_believed(tmp_path):
    def write(demo):
        demo.create_dataset("obs/huge", (10**12, 10), "f4", chunks=(1000, 10), compression="gzip")
        some = demo.create_dataset("obs/some", (4, 10**6), "f8", chunks=(1, 1000))
        some[0, :1000] = 1
        bomb = demo.create_dataset("obs/bomb", (4, 5 * 10**6), "f8", chunks=(4, 5 * 10**6), compression="gzip")
        bomb[:] = 0
        demo.create_dataset("obs/wide", (4, 2**40), "u1", chunks=(4, 1000))

    path = one_demo(tmp_path, write)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    [(_, streams)], notes = read_all(path, on_error="skip")
    told = skipped(notes)
    assert set(streams) == {"actions"}
    assert "1000000000000 rows, expected 4" in told["demo_0: obs/huge"]
    assert "1 of 4000 chunks were written" in told["demo_0: obs/some"]
    assert "chunks of 160000000 bytes" in told["demo_0: obs/bomb"]
    assert left_out(notes)["obs/wide"] == "declared, never written"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB
    assert time.perf_counter() - started < 2


def test_rows_by_the_thousand_billion_take_nothing(tmp_path):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/x"] = np.zeros(1)  # makes the groups
        del file["data/demo_0/x"]
        file.create_dataset("data/demo_0/actions", (10**12, 7), "f4", chunks=(1000, 7))
    found, notes = read_all(path, rate_hz=10)
    assert found[0][1] == {} and left_out(notes) == {"actions": "declared, never written"}


def test_a_chunk_that_is_damaged_is_named_by_its_rows(rng, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_PART_BYTES", 160)
    values = rng.normal(size=(4, 20))
    path = one_demo(tmp_path, lambda demo: demo.create_dataset("x", data=values, chunks=(1, 20), compression="gzip"))
    with h5py.File(path) as file:
        offset = file["data/demo_0/x"].id.get_chunk_info(2).byte_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 8] = b"\xff" * 8
    path.write_bytes(content)
    refused(path, f"{path}: /data/demo_0/x: row 2")
    [(_, streams)], notes = read_all(path, on_error="skip")
    assert list(skipped(notes)) == ["demo_0: x: row 2"]
    assert streams["x"][0].tolist() == [0, 100_000_000, 300_000_000]
    np.testing.assert_array_equal(streams["x"][1], values[[0, 1, 3]])


def test_zeros_among_texts_are_found_before_hdf5_runs_in_a_circle(tmp_path):
    path = one_demo(tmp_path, lambda demo: demo.create_dataset("note", data=[f"text {k}" for k in range(4)]))
    content = bytearray(path.read_bytes())
    at = content.index(b"text 2")
    content[at - 16 : at + 200] = bytes(216)
    path.write_bytes(content)
    refused(path, f"{path}: at byte {at - 16}", "zeros within a heap of texts")


@pytest.mark.parametrize("name", ["contacts", "note"])
def test_lengths_beyond_the_file_are_not_believed(name, tmp_path):
    def write(demo):
        demo["note"] = ["a", "bb", "ccc", "dddd"]
        contacts = demo.create_dataset("contacts", (4,), h5py.vlen_dtype("f4"))
        contacts[:] = [np.arange(k + 1, dtype=np.float32) for k in range(4)]
        lists = np.empty(1, object)
        lists[0] = np.arange(3.0)
        demo.attrs.create("list", lists, dtype=h5py.vlen_dtype("f8"))

    path = one_demo(tmp_path, write)
    with h5py.File(path) as file:
        offset = file[f"data/demo_0/{name}"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[offset + 16 + 3] = 0x20  # the second row has half a thousand million values
    path.write_bytes(content)
    refused(path, f"{path}: /data/demo_0/{name}: element 1 has 536870914 values")
    _, notes = read_all(path, on_error="skip")
    assert left_out(notes)["attribute list"] == "a list of any length"


# ---- ALOHA ----


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


def image_file(image, format="JPEG", **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, format, **options)
    return file.getvalue()


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


# ---- DROID ----


def test_droid_has_real_clocks(rng, tmp_path):
    trajectory = make_droid(rng, 9)
    folder = write_droid(tmp_path / "raw/AUTOLab/success/2023-07-22/Sat_Jul_22_13:08:00_2023", trajectory)
    [(recording, streams)], notes = read_all(tmp_path / "raw")
    assert recording.what == "AUTOLab/success/2023-07-22/Sat_Jul_22_13:08:00_2023"
    stamps = {key.rsplit("/", 1)[1]: trajectory[key] * 1_000_000 for key in trajectory if "/timestamp/" in key}
    for key, clock in {
        "observation/robot_state/joint_positions": "read_end",
        "observation/camera_extrinsics/wrist_left": "read_end",
        "action/cartesian_position": "control_start",
        "action/robot_state/joint_positions": "control_start",
        "observation/controller_info/success": "step_start",
        "observation/timestamp/cameras/ext2_frame_received": "step_start",
    }.items():
        assert streams[key][0].tolist() == stamps[clock].tolist(), key
    for key, expected in trajectory.items():
        name = key
        for role, serial in SERIALS.items():
            name = name.replace(serial, role)
        np.testing.assert_array_equal(streams[name][1], expected)
        assert streams[name][1].dtype == expected.dtype
    assert len(streams) == len(trajectory)
    metadata = recording.metadata
    assert (metadata["success"], metadata["current_task"]) == (True, "put the marker in the cup")
    assert (metadata["building"], metadata["wrist_cam_serial"]) == ("lab", SERIALS["wrist"])
    assert metadata["wrist_cam_extrinsics"] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert not notes.left_out and not notes.skipped
    robocache.ingest(folder, tmp_path / "cache")
    dataset = robocache.open(tmp_path / "cache")
    action = dataset.streams["action/gripper_position"]
    assert action.clock == "recorded"
    assert action.attributes == {"clock_source": "observation/timestamp/control/control_start"}


def test_droid_cameras_are_told_apart_without_metadata(rng, tmp_path):
    folder = write_droid(tmp_path / "raw/a", make_droid(rng, 3), metadata=False)
    [(recording, streams)], notes = read_all(folder)
    assert {f"observation/camera_type/{role}" for role in SERIALS} < set(streams)
    assert recording.metadata["success"] is True  # the file's own
    assert "a: metadata" in left_out(notes)


def droid_video(rng, tmp_path, frames, rows=6, name=SERIALS["ext1"], listed=None, **options):
    trajectory = make_droid(rng, rows)
    folder = write_droid(tmp_path / "a", trajectory)
    write_video(folder / f"recordings/MP4/{name}.mp4", frames, fps=60)
    if listed is not None:
        received = trajectory[f"observation/timestamp/cameras/{SERIALS['ext1']}_frame_received"]
        stamps = [int(received[row]) if row >= 0 else 1 for row in listed]
        (folder / f"recordings/MP4/{SERIALS['ext1']}_timestamps.json").write_text(json.dumps(stamps))
    found, notes = read_all(folder, jobs=1, **options)
    captured = trajectory[f"observation/timestamp/cameras/{SERIALS['ext1']}_estimated_capture"] * 1_000_000
    return found[0][1], notes, captured.tolist()


def shown(stream):
    time_ns, encoded = stream
    return time_ns.tolist(), [number_of(image) for image in pixels(encoded)]


def test_droid_frame_k_is_row_k(rng, tmp_path):
    streams, notes, captured = droid_video(rng, tmp_path, [3, 1, 4, 1, 5, 9])
    assert shown(streams["observation/image/ext1"]) == (captured, [3, 1, 4, 1, 5, 9])
    assert not notes.left_out and not notes.skipped


def test_droid_both_eyes_have_their_own_stream(rng, tmp_path):
    streams, _, captured = droid_video(rng, tmp_path, range(6), name=f"{SERIALS['ext1']}-stereo")
    assert shown(streams["observation/image/ext1_stereo"]) == (captured, list(range(6)))


def test_droid_the_export_ends_a_frame_early(rng, tmp_path):
    streams, notes, captured = droid_video(rng, tmp_path, range(5))
    assert shown(streams["observation/image/ext1"]) == (captured[:5], [0, 1, 2, 3, 4])
    assert "one less" in left_out(notes)["observation/image/ext1: last rows"] and not notes.skipped


def test_droid_more_frames_than_rows_are_counted(rng, tmp_path):
    streams, notes, captured = droid_video(rng, tmp_path, range(8))
    assert shown(streams["observation/image/ext1"]) == (captured, list(range(6)))
    assert left_out(notes)["a: observation/image/ext1: frames"].startswith("2 are no row's")


def test_droid_frames_that_lack_are_named(rng, tmp_path):
    with pytest.raises(robocache.FileError, match="6 rows and 3 frames"):
        droid_video(rng, tmp_path, range(3))
    streams, notes, captured = droid_video(rng, tmp_path, range(3), on_error="skip")
    assert shown(streams["observation/image/ext1"]) == (captured[:3], [0, 1, 2])
    assert list(skipped(notes)) == ["a: observation/image/ext1: rows 3-5"]


def test_droid_a_list_of_stamps_says_whose_a_frame_is(rng, tmp_path):
    streams, notes, captured = droid_video(rng, tmp_path, range(7), listed=[-1, 0, 1, 2, 4, 5, -1], on_error="skip")
    assert shown(streams["observation/image/ext1"]) == ([captured[row] for row in (0, 1, 2, 4, 5)], [1, 2, 3, 4, 5])
    assert list(skipped(notes)) == ["a: observation/image/ext1: rows 3"]
    assert left_out(notes)["a: observation/image/ext1: frames"].startswith("2 are no row's")
    assert "*.json" not in left_out(notes)  # the list was read


def test_droid_without_video(rng, tmp_path):
    streams, notes, _ = droid_video(rng, tmp_path, range(6), video=False)
    assert "observation/image/ext1" not in streams
    assert left_out(notes)["observation/image/ext1"] == "video; left out with video=False"


def test_droid_faults_are_named(rng, tmp_path):
    trajectory = make_droid(rng, 4)
    folder = write_droid(tmp_path / "raw/a", trajectory)
    (metadata,) = folder.glob("metadata_*")
    good = metadata.read_text()
    for bad in ("{", "[]", '{"a": "\\ud800"}', "[" * 100_000, "\xff"):
        metadata.write_bytes(bad.encode("latin-1"))
        refused(folder, str(metadata))
    metadata.write_text(json.dumps(json.loads(good) | {"trajectory_length": 9, "nested": {}, "mixed": [1, None]}))
    _, notes = read_all(folder)
    assert {"metadata: nested", "metadata: mixed", "a: trajectory_length"} == set(left_out(notes))
    metadata.write_text(good)
    step = "observation/timestamp/control/control_start"
    write_droid(folder, trajectory | {step: trajectory[step] // 1000})
    refused(folder, f"/{step}", "expected milliseconds since 1970")
    write_droid(folder, trajectory | {"action/cartesian_position": np.zeros((3, 6))})
    refused(folder, "/action/cartesian_position: 3 rows, expected 4")
    write_droid(folder, {key: values for key, values in trajectory.items() if "/timestamp/" not in key})
    refused(folder, "no stamps for")


# ---- which layout ----


def test_layouts_are_told_apart_without_h5py(rng, tmp_path):
    write_robomimic(tmp_path / "r/episode_0.hdf5", {"demo_0": make_demo(rng, 2)})  # named as ALOHA's are
    write_aloha(tmp_path / "a/run.h5", make_aloha(rng, 2))
    write_droid(tmp_path / "d/x", make_droid(rng, 2))
    (tmp_path / "r/episode_0.hdf5").rename(tmp_path / "single")  # by content alone
    code = (
        "import sys, pathlib\nsys.modules['torch'] = None\nfrom robocache.ingest import registry\n"
        f"print(*(registry.find_format(pathlib.Path({str(tmp_path)!r}, name)).name for name in ('single', 'a', 'd', 'd/x/trajectory.h5')))\n"
        "print('h5py' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["robomimic", "aloha", "droid", "droid", "False"]


def test_a_layout_that_is_not_the_one_asked_for(rng, tmp_path):
    robomimic = write_robomimic(tmp_path / "r.hdf5", {"demo_0": make_demo(rng, 2)})
    aloha = write_aloha(tmp_path / "episode_0.hdf5", make_aloha(rng, 2))
    droid = write_droid(tmp_path / "d", make_droid(rng, 2)) / "trajectory.h5"
    refused(aloha, str(aloha), "action, observations", "format='aloha'", format="robomimic")
    refused(robomimic, str(robomimic), "found data", "format='robomimic'", format="aloha", rate_hz=50)
    refused(robomimic, "found data", "format='robomimic'", format="droid")
    refused(droid, "format='droid'", format="robomimic")
    refused(tmp_path, "robomimic", "aloha", "droid", "say which with format")
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["weights/layer"] = [1.0]
    refused(tmp_path / "other.hdf5", "expected a group data with demos in it, found weights")


@pytest.mark.parametrize(
    "content", [b"", b"\x89HDF\r\n\x1a\n", b"version https://git-lfs.github.com/spec/v1\n", b"PK\3\4" * 50]
)
@pytest.mark.parametrize("name", ["a.hdf5", "episode_0.hdf5", "trajectory.h5"])
def test_files_that_are_no_hdf5(content, name, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_bytes(content)
    options = {"rate_hz": 50} if name.startswith("episode") else {}
    refused(tmp_path / "set", str(tmp_path / "set" / name), **options)


def test_a_block_before_the_file(rng, tmp_path):
    plain = write_robomimic(tmp_path / "plain.hdf5", {"demo_0": make_demo(rng, 2)})
    (tmp_path / "blocked").write_bytes(b"")
    with h5py.File(plain) as source, h5py.File(tmp_path / "blocked", "w", userblock_size=512) as file:
        source.copy("data", file)
    assert "actions" in read_all(tmp_path / "blocked")[0][0][1]


def test_a_file_that_may_only_be_read(rng, tmp_path):
    path = write_robomimic(tmp_path / "a.hdf5", {"demo_0": make_demo(rng, 2)})
    path.chmod(0o444)
    os.chmod(tmp_path, 0o555)
    try:
        assert len(read_all(path)[0]) == 1
    finally:
        os.chmod(tmp_path, 0o755)


# ---- damage ----


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["robomimic", "compressed", "aloha", "droid"])
def test_damaged_at_random(kind, rng, tmp_path):
    options = {"rate_hz": 50} if kind == "aloha" else {}
    if kind == "aloha":
        path = write_aloha(tmp_path / "episode_0.hdf5", make_aloha(rng, 4, (16, 16)))
    elif kind == "droid":
        path = write_droid(tmp_path / "a", make_droid(rng, 4)) / "trajectory.h5"
    else:
        demos = {f"demo_{number}": make_demo(rng, 4, (16, 16)) for number in range(2)}
        compressed = {"compression": "gzip", "fletcher32": True} if kind == "compressed" else {}
        path = write_robomimic(tmp_path / "a.hdf5", demos, masks={"train": ["demo_0"]}, **compressed)
    content = path.read_bytes()
    format = "robomimic" if kind == "compressed" else kind
    for number in range(rounds(12)):
        path.write_bytes(damage(content, rng))
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        on_error = ("stop", "skip")[number % 2]
        try:
            if number % 6 < 4:  # a cache takes most of the time
                _, notes = read_all(path, format=format, on_error=on_error, **options)
                assert number % 2 or not notes.skipped
            else:
                robocache.ingest(path, tmp_path / "cache", format=format, on_error=on_error, overwrite=True, **options)
                robocache.open(tmp_path / "cache").verify()
        except robocache.Error as error:
            assert str(tmp_path) in str(error)
        assert time.process_time() - started < 2
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KB
