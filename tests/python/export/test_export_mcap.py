"""Exports to MCAP hold every bit of a cache, as read by the mcap package and its ROS 2 decoder."""

import json
import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest

import robocache

reader = pytest.importorskip("mcap.reader")
decoder = pytest.importorskip("mcap_ros2.decoder")

DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)
CODES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}


def read(path):
    """Returns ({topic: [(log_time, message)]}, {topic: channel}, the metadata)."""
    messages, channels = {}, {}
    with path.open("rb") as opened:
        result = reader.make_reader(opened, validate_crcs=True, decoder_factories=[decoder.DecoderFactory()])
        for _, channel, message, decoded in result.iter_decoded_messages():
            assert message.publish_time == message.log_time
            channels[channel.topic] = channel
            messages.setdefault(channel.topic, []).append((message.log_time, decoded))
        metadata = {record.name: record.metadata for record in result.iter_metadata()}
    return messages, channels, metadata


def bits(values):
    return np.ascontiguousarray(values).tobytes()


@pytest.fixture
def cache(rng, tmp_path):
    """A cache with streams of all kinds, each with its own clock; values include NaN and infinity."""
    path = tmp_path / "cache"
    with robocache.Writer(path) as writer:
        for number in range(2):
            with writer.episode(task="pick", success=bool(number)) as episode:
                for rate, dtype in enumerate(DTYPES, 1):
                    count = 4 + rate + number
                    values = (rng.normal(size=(count, 3)) * 100).astype(dtype)
                    if values.dtype.kind == "f":
                        values[0] = np.nan, np.inf, -0.0
                    elif dtype != "bool":
                        values[0] = np.iinfo(dtype).min, np.iinfo(dtype).max, 0
                    episode.append(f"of/{dtype}", 10**18 + np.arange(count) * rate * 1_000_003, values)
                t = np.arange(4) * 10**9
                episode.append("scalar", t + 1, np.arange(4.0))
                episode.append("table", t, rng.normal(size=(4, 2, 3)))
                episode.append("text", t, ["", "ü\n", "a\0b", "x" * 300])
                offsets = np.array([0, 3, 3, 7, 9])
                episode.append("cloud", t, rng.normal(size=(9, 4)).astype("f4"), offsets=offsets)
                episode.append("contacts", t, rng.integers(0, 9, (9, 2)), offsets=offsets)
                for codec in ("jpeg", "png", "raw"):
                    pixels = rng.integers(0, 255, (4, 6, 5, 3)).astype(np.uint8)
                    episode.append(f"camera.{codec}", t, pixels, codec=codec)
                episode.append("depth", t, rng.normal(size=(4, 6, 5, 1)).astype("f4"), codec="raw")
        writer.stream("cloud", names=["x", "y", "z", "i"], attributes={"frame_id": "lidar"})
        writer.stream("depth", unit_m=1.0)
        writer.provenance["source"] = "here"
    return path


def test_every_number_is_exported_exactly(cache, tmp_path):
    report = robocache.export(cache, tmp_path / "out", to="mcap")
    opened = robocache.open(cache)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["episode_000000.mcap", "episode_000001.mcap"]
    assert report.rows == {name: stream.rows for name, stream in opened.streams.items()}
    for number in range(2):
        messages, channels, metadata = read(tmp_path / f"out/episode_{number:06d}.mcap")
        assert messages.keys() == opened.streams.keys()
        assert json.loads(metadata["robocache"]["episode"]) == opened.episodes.to_pylist()[number]
        assert json.loads(metadata["robocache"]["provenance"])["source"] == "here"
        for name, (time_ns, values) in opened.episode(number).items():
            stream = opened.streams[name]
            times, exported = zip(*messages[name], strict=True)
            assert list(times) == time_ns.tolist(), name
            facts = {key: json.loads(value) for key, value in channels[name].metadata.items()}
            assert facts["robocache.dtype"] == str(stream.dtype)
            assert facts["robocache.shape"] == list(stream.shape)
            assert facts["robocache.names"] == list(stream.names)
            assert facts["robocache.attributes"] == stream.attributes
            for row, message in enumerate(exported):
                check_row(name, stream, values, row, message)


def check_row(name, stream, values, row, message):
    if name == "text":
        assert message.data == values[row]
    elif name == "cloud":
        points = np.frombuffer(message.data, CODES[message.fields[0].datatype]).reshape(message.width, 4)
        assert bits(points) == bits(values[row])
        assert [(f.name, f.offset) for f in message.fields] == [("x", 0), ("y", 4), ("z", 8), ("i", 12)]
        assert (message.header.frame_id, message.point_step, message.is_dense) == ("lidar", 16, True)
    elif stream.frames is not None and stream.frames.codec == "raw":
        assert bits(np.frombuffer(message.data, stream.dtype)) == bits(values[row])
        assert (message.height, message.width, message.step) == (6, 5, 5 * stream.shape[2] * stream.dtype.itemsize)
        assert message.encoding == {3: "rgb8", 1: "32FC1"}[stream.shape[2]]
    elif stream.frames is not None:
        assert bytes(message.data) == bits(values.file(row))
        assert message.format == stream.frames.codec
    elif name == "scalar":
        assert message.value == values[row]
    else:
        dtype = np.dtype("float32") if stream.dtype == np.float16 else stream.dtype
        is_bytes = isinstance(message.values, bytes)  # the decoder gives bytes for 8-bit values
        numbers = np.frombuffer(message.values, dtype) if is_bytes else np.array(message.values, dtype)
        assert bits(numbers) == bits(np.asarray(values[row]).astype(dtype))
    if hasattr(message, "header"):
        assert message.header.stamp.sec == row


def test_messages_are_in_the_order_of_time(cache, tmp_path):
    robocache.export(cache, tmp_path / "out", to="mcap")
    with (tmp_path / "out/episode_000000.mcap").open("rb") as opened:
        times = [m.log_time for _, _, m in reader.make_reader(opened).iter_messages(log_time_order=False)]
    assert times == sorted(times) and len(times) > 100


def test_frames_of_reference_of_bags_are_in_the_messages(rng, tmp_path):
    points = rng.normal(size=(5, 3)).astype(np.float32)
    declared_frames = [
        {"/lidar/header.frame_id": "roof", "/camera/frame_id": "eye"},
        {"/lidar/header.frame_id": "mast"},
        "of another program's",
    ]
    with robocache.Writer(tmp_path / "cache") as writer:
        writer.stream("/lidar", names=["x", "y", "z"])
        writer.stream("/base", names=["x", "y", "z"], attributes={"frame_id": "base"})
        for frames in declared_frames:
            with writer.episode(frame_ids=frames if isinstance(frames, str) else json.dumps(frames)) as episode:
                for name in ("/lidar", "/base"):
                    episode.append(name, [1, 2], points, offsets=[0, 2, 5])
                episode.append("/camera", [1], np.zeros((1, 4, 4, 3), np.uint8), codec="png")
    robocache.export(tmp_path / "cache", tmp_path / "out", to="mcap")
    frames_by_episode = []
    for number in range(3):
        with (tmp_path / f"out/episode_{number:06d}.mcap").open("rb") as opened:
            messages = reader.make_reader(opened, decoder_factories=[decoder.DecoderFactory()]).iter_decoded_messages()
            frames_by_episode.append({channel.topic: message.header.frame_id for _, channel, _, message in messages})
    assert frames_by_episode == [
        {"/lidar": "roof", "/base": "base", "/camera": "eye"},
        {"/lidar": "mast", "/base": "base", "/camera": ""},
        {"/lidar": "", "/base": "base", "/camera": ""},
    ]


def test_streams_are_chosen_and_existing_files_stay(cache, tmp_path):
    report = robocache.export(cache, tmp_path / "out", to="mcap", streams=["scalar"])
    assert report.rows == {"scalar": 8}
    assert "cloud" in {omission.what for omission in report.left_out}
    with pytest.raises(robocache.FileError, match="exists"):
        robocache.export(cache, tmp_path / "out", to="mcap")
    for options, message in (
        ({"streams": ["x"]}, "no stream 'x'"),
        ({"fps": 3}, "only for LeRobot"),
        ({"to": "bag"}, "expected one of lerobot, mcap"),
    ):
        with pytest.raises(robocache.ArgumentError, match=message):
            robocache.export(cache, tmp_path / "other", **{"to": "mcap"} | options)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_times_before_0_are_refused_and_leave_no_file(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("a", [-5, 0], [1.0, 2.0])
    with pytest.raises(robocache.FileError, match="a: a stamp of -5 ns"):
        robocache.export(tmp_path / "cache", tmp_path / "out", to="mcap")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


# ---- round trips ----


def facts_of(stream):
    frames = stream.frames and (stream.frames.codec, stream.frames.color_space, stream.frames.unit_m)
    intrinsics = stream.frames and stream.frames.intrinsics is not None and stream.frames.intrinsics.tolist()
    description = (
        stream.kind,
        str(stream.dtype),
        stream.shape,
        stream.clock,
        stream.names,
        stream.attributes,
        stream.ragged,
    )
    return *map(str, description), frames, intrinsics


def row_bits(values, row):
    if hasattr(values, "file"):
        return bits(values.file(row))
    return values[row] if isinstance(values[row], str) else bits(values[row])


def round_trip(cache, tmp_path, **options):
    robocache.export(cache, tmp_path / "out", to="mcap")
    report = robocache.ingest(tmp_path / "out", tmp_path / "back", **options)
    return robocache.open(cache), robocache.open(tmp_path / "back"), report


def test_streams_of_all_kinds_round_trip(cache, rng, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    t, offsets = np.arange(4) * 10**9 + 17, np.array([0, 3, 6, 9, 12])
    with robocache.Writer(cache, append=True) as writer:
        writer.stream(
            "vector", names=["a", "b"], attributes={"units": ["m", "rad"], "frame_id": "base"}, clock="nominal"
        )
        writer.stream("colours", names=["x", "y", "z", "rgb"])
        writer.stream("millimetres", unit_m=0.0005, intrinsics=np.diag([5.0, 6, 1]), attributes={"maker": "x"})
        with writer.episode(task="place", success=None, score=0.5, tags=["a", "b"]) as episode:
            episode.append("one", t, rng.normal(size=(4, 1)))
            episode.append("scalar", t, np.array([np.nan, -0.0, np.inf, 1]))
            episode.append("brain", t, rng.normal(size=(4, 2)).astype(ml_dtypes.bfloat16))
            episode.append("flag", t, np.array([True, False, True, True]))
            episode.append("mask", t, rng.integers(0, 2, (4, 2, 2)) > 0)
            episode.append("vector", t, rng.normal(size=(4, 2)))
            episode.append("empty texts", t, ["", "", "", ""])
            episode.append("bytes", t, rng.integers(0, 9, 12).astype(np.uint8), offsets=offsets)
            episode.append("halves", t, rng.normal(size=(12, 2)).astype(np.float16), offsets=offsets)
            # PCL's names of packed colours: ingest unpacks them in a bag, but here they are numbers.
            episode.append("colours", t, rng.normal(size=(12, 4)).astype(np.float32), offsets=offsets)
            episode.append("nothing", t, np.zeros((0, 3), np.int16), offsets=np.zeros(5, np.int64))
            episode.append("millimetres", t, rng.integers(0, 999, (4, 8, 8)).astype(np.uint16), codec="png")
    before, after, report = round_trip(cache, tmp_path)
    assert after.streams.keys() == before.streams.keys()
    for name, stream in before.streams.items():
        assert facts_of(after.streams[name]) == facts_of(stream), name
        for number in range(3):
            (time_ns, values), (after_ns, after_values) = before.episode(number)[name], after.episode(number)[name]
            assert after_ns.tolist() == time_ns.tolist(), name
            assert [row_bits(after_values, row) for row in range(len(after_values))] == [
                row_bits(values, row) for row in range(len(values))
            ], name
    columns = [{key: value for key, value in row.items() if key != "name"} for row in after.episodes.to_pylist()]
    assert columns == before.episodes.to_pylist()
    assert {omission.reason for omission in report.left_out} == {"no messages"}


def test_colours_of_16_bits_come_back_and_rows_that_no_message_holds_are_left_out(rng, tmp_path):
    pixels = rng.integers(0, 1 << 16, (2, 6, 5, 3)).astype(np.uint16)
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("wide", np.arange(2), pixels, codec="raw")
        episode.append("none", np.arange(2), np.zeros((2, 0)))
        episode.append("normals", np.arange(2), rng.normal(size=(2, 6, 5, 3)).astype(np.float32), codec="raw")
    written = robocache.export(tmp_path / "cache", tmp_path / "out", to="mcap")
    left_out = {omission.what: omission.reason for omission in written.left_out}
    assert "ROS has no arrays" in left_out["none"] and "3 channels of float32" in left_out["normals"]
    messages, _, _ = read(tmp_path / "out/episode_000000.mcap")
    assert list(messages) == ["wide"]
    for (_, message), picture in zip(messages["wide"], pixels, strict=True):
        assert message.encoding == "rgb16" and bits(np.frombuffer(message.data, "<u2")) == bits(picture)
    robocache.ingest(tmp_path / "out", tmp_path / "back")
    back = robocache.open(tmp_path / "back").streams["wide"]
    assert [bits(back.frame(row)) for row in range(2)] == [bits(picture) for picture in pixels]


def test_frames_may_have_another_codec_after_a_round_trip(cache, tmp_path):
    _, after, _ = round_trip(cache, tmp_path, image_codec="png", image_size="10x8")
    frames = after.streams["camera.raw"].frames
    assert (frames.codec, frames.height, frames.width, frames.resized["from"]) == ("png", 8, 10, [6, 5])


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [4]},
        {"shape": [0]},
        {"kind": "arrays"},
        {"dtype": "float16"},
        {"shape": [-3]},
        {"shape": "[3]"},
        {"clock": "mine"},
        {"names": [1]},
        {"attributes": []},
        {"intrinsics": [[1]]},
        {"resized": 3},
    ],
)
def test_metadata_that_contradict_the_messages_are_ignored(changes, tmp_path):
    from mcap.writer import Writer

    facts = {
        "kind": "numbers",
        "dtype": "float32",
        "shape": [3],
        "clock": "nominal",
        "names": [],
        "attributes": {},
    } | changes
    values = np.array([0.1, 0.2, 0.3], np.float32)
    with (tmp_path / "a.mcap").open("wb") as opened:
        writer = Writer(opened)
        writer.start()
        schema = writer.register_schema("robocache/msg/Float32x3", "ros2msg", b"float32[3] values\n")
        metadata = {f"robocache.{key}": json.dumps(value) for key, value in facts.items()}
        channel = writer.register_channel("a", "cdr", schema, metadata)
        writer.add_metadata("robocache", {"episode": "[1"})
        for row in range(3):
            writer.add_message(channel, 10**18 + row, b"\0\1\0\0" + values.tobytes(), 10**18 + row)
        writer.finish()
    robocache.ingest(tmp_path / "a.mcap", tmp_path / "cache")
    stream = robocache.open(tmp_path / "cache").streams["a"]
    assert (stream.dtype, stream.shape, stream.clock) == (np.float32, (3,), "recorded")
    assert bits(stream.values) == bits(np.tile(values, (3, 1)))


# ---- the folder --------------------------------------------------------------------------------------------------------


def test_the_folders_modes_follow_the_umask(cache, tmp_path):
    for mask, mode in ((0o077, 0o700), (0o027, 0o750)):
        previous_mask = os.umask(mask)
        try:
            robocache.export(cache, tmp_path / f"{mode}", to="mcap")
        finally:
            os.umask(previous_mask)
        assert stat.S_IMODE((tmp_path / f"{mode}").stat().st_mode) == mode


KILLED = """
import os, signal, sys
sys.modules["torch"] = None  # importing torch takes most of the time, and the script does not need it
import robocache
robocache.export(sys.argv[1], sys.argv[2], to="mcap", progress=lambda done, total, what: os.kill(os.getpid(), {signal}))
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_export_removes_files_of_a_killed_export(signal_number, cache, tmp_path):
    out = tmp_path / "out"
    program = KILLED.format(signal=int(signal_number))
    killed = subprocess.run([sys.executable, "-c", program, str(cache), str(out)], timeout=600)
    assert killed.returncode == -signal_number
    (leftover,) = tmp_path.glob(".robocache-export-*")
    others = [".robocache-export-of-somebody", ".robocache-exporter-12345678"]
    for other in others:
        (tmp_path / other).mkdir()
    robocache.export(cache, out, to="mcap")
    assert not leftover.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [*others, "cache", "out"]


def test_a_running_export_keeps_its_files(cache, tmp_path):
    """An export to the path of a running export is refused."""

    def export_again(done, total, what):
        if done == 1:
            robocache.export(cache, tmp_path / "out", to="mcap", streams=["of/float64"])

    with pytest.raises(robocache.FileError, match="out: "):
        robocache.export(cache, tmp_path / "out", to="mcap", progress=export_again)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out"]
    assert len(list((tmp_path / "out").iterdir())) == 2
