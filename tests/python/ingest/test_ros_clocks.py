"""The clocks of messages, and the properties that a topic must have in all recordings."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from robocache.ingest import convert, load_plan, merge, plan
from robocache.ingest.recording import SourceError
from ros_files import (
    MS,
    START,
    header,
    image,
    imu,
    imus,
    message,
    read,
    strings,
    write_mcap,
)

import robocache


def imus_with_stamps(*pairs):
    return "sensor_msgs/msg/Imu", [(log, imu(stamp, 0)) for log, stamp in pairs]


@pytest.mark.parametrize(
    ("stamps", "clock", "message_part"),
    [
        ([0, 1, 2], "header.stamp", None),
        ([-9 * 10**9, 0, 9 * 10**9], "header.stamp", None),
        ([0, None, 2], "log_time", "of a second or more, beyond int64), in 1 of 3 messages"),
        ([0, -START - 10**9, 2], "log_time", "more than 10 s from the log time in 1"),  # before 1970
        ([0, 11 * 10**9, 2], "log_time", "more than 10 s from the log time in 1, by 0 to 11 s of 3 messages"),
    ],
)
def test_a_plausible_header_stamp_is_the_clock(stamps, clock, message_part, tmp_path):
    logs = [START + k for k in range(3)]
    pairs = [(log, 0 if stamp is None else log + stamp) for log, stamp in zip(logs, stamps, strict=True)]
    path = write_mcap(tmp_path / "a.mcap", {"/imu": imus_with_stamps(*pairs)})
    readout = read(path)
    assert readout.only["/imu"].attributes["clock_source"] == clock
    assert readout.only["/imu"].time_ns == [stamp if clock == "header.stamp" else log for log, stamp in pairs]
    reasons = [reason for what, reason in readout.left_out.items() if "as the clock" in what]
    assert (reasons == []) if message_part is None else message_part in reasons[0]
    if clock == "log_time":  # nothing is lost
        assert np.array(readout.only["/imu/header.stamp"].rows).tolist() == [stamp for _, stamp in pairs]
    assert read(path, stamp="header").only["/imu"].time_ns == [stamp for _, stamp in pairs]
    assert read(path, stamp="log").only["/imu"].time_ns == logs
    assert read(path, stamp="publish").only["/imu"].time_ns == [log - 5 for log in logs]
    assert read(path, stamp="publish").only["/imu"].attributes["clock_source"] == "publish_time"


@pytest.mark.parametrize("nanoseconds", [2**32 - 1000, 2**32 - 1, 2**31, 1_000_000_001])
def test_a_second_or_more_of_nanoseconds_is_no_stamp(nanoseconds, tmp_path):
    """Some drivers write a negative number into the unsigned field: the stamp would be up to 4.3 s late, and near the log time."""
    messages = [(START + k * 10**7, imu(START + k * 10**7, 0)) for k in range(3)]
    messages[1][1].header.stamp.nanosec = nanoseconds
    readout = read(write_mcap(tmp_path / "a.mcap", {"/imu": ("sensor_msgs/msg/Imu", messages)}))
    assert readout.only["/imu"].time_ns == [log for log, _ in messages]
    assert readout.only["/imu"].attributes["clock_source"] == "log_time"
    assert "nanoseconds of a second or more" in readout.left_out["a.mcap: /imu: header.stamp as the clock"]
    messages[1][1].header.stamp.nanosec = 10**9  # some writers round up to a whole second, which is unambiguous
    messages[1] = (messages[2][0], messages[1][1])
    readout = read(write_mcap(tmp_path / "b.mcap", {"/imu": ("sensor_msgs/msg/Imu", [messages[0], messages[1]])}))
    assert readout.only["/imu"].time_ns[1] == (START // 10**9 + 1) * 10**9


def test_a_topic_has_one_clock_in_all_recordings(tmp_path):
    valid, invalid = (
        imus_with_stamps((START, START), (START + 1, START + 1)),
        imus_with_stamps((START, 0), (START + 1, START + 1)),
    )
    for name, topics in {"a": valid, "b": invalid, "c": valid}.items():
        write_mcap(tmp_path / f"bags/{name}.mcap", {"/imu": topics})
    with pytest.raises(SourceError, match=r"b.mcap: /imu: header.stamp is no clock here, .* stamp='log'"):
        read(tmp_path / "bags")
    readout = read(tmp_path / "bags", on_error="skip")
    assert [len(streams) for streams in readout.recordings.values()] == [4, 0, 4]
    assert list(readout.skipped) == ["b.mcap: /imu"]
    (tmp_path / "bags/a.mcap").unlink()
    readout = read(tmp_path / "bags")
    assert {streams["/imu"].attributes["clock_source"] for streams in readout.recordings.values()} == {"log_time"}
    assert np.array(readout.recordings["c.mcap"]["/imu/header.stamp"].rows).tolist() == [START, START + 1]


def test_refused_stamps_are_kept_beside_frames(rng, tmp_path):
    picture = rng.integers(0, 255, (6, 10, 1)).astype(np.uint8)
    messages = [(START + k, image(picture, "mono8", time_ns=0)) for k in range(2)]
    streams = read(write_mcap(tmp_path / "a.mcap", {"/cam": ("sensor_msgs/msg/Image", messages)})).only
    assert np.array(streams["/cam/header.stamp"].rows).tolist() == [0, 0]
    assert streams["/cam"].time_ns == [START, START + 1]


def test_frame_ids_that_count_messages_are_a_stream_of_text(tmp_path):
    messages = [(START + k, imu(START + k, k, frame=f"frame {k}")) for k in range(40)]
    readout = read(write_mcap(tmp_path / "a.mcap", {"/imu": ("sensor_msgs/msg/Imu", messages)}))
    assert readout.only["/imu/header.frame_id"].rows == [f"frame {k}" for k in range(40)]
    assert np.array(readout.only["/imu"].rows)[:, 4].tolist() == [k + 0.25 for k in range(40)]
    assert "more than 32" in readout.left_out["a.mcap: /imu: streams for frames of reference"]


def write_two_bags(folder, second):
    """Writes two bags with /imu, `second` in the second bag; each bag also has its own topic."""
    write_mcap(folder / "a.mcap", {"/imu": imus(4, frame="a"), "/first": strings("x")})
    write_mcap(folder / "b.mcap", {"/imu": second, "/second": strings("y")})
    return folder


def ingest_in_shards(source, folder, **options):
    planned = plan(source, folder / "plan", shards=2, **options)
    for shard in range(2):
        convert(load_plan(planned.folder), shard)
    return merge(planned.folder, folder / "merged")


def test_differences_between_bags_are_noted_alike_with_any_shards(tmp_path):
    source = write_two_bags(tmp_path / "bags", imus(4, frame="b"))
    robocache.ingest(source, tmp_path / "one")
    ingest_in_shards(source, tmp_path)
    single, merged = robocache.open(tmp_path / "one"), robocache.open(tmp_path / "merged")
    frames = [json.loads(column) for column in single.episodes["frame_ids"].to_pylist()]
    assert frames == [{"/imu/header.frame_id": "a"}, {"/imu/header.frame_id": "b"}]
    assert merged.episodes.equals(single.episodes)
    assert merged.provenance["mcap"] == single.provenance["mcap"]
    assert single.provenance["mcap"]["clocks"].keys() == {"/imu", "/first", "/second"}


@pytest.mark.parametrize(("lag", "clock"), [(0, "header.stamp"), (-60 * 10**9, "log_time")])
def test_shards_with_different_clocks_are_not_merged(lag, clock, tmp_path):
    other = ({"header.stamp", "log_time"} - {clock}).pop()
    write_mcap(tmp_path / "bags/a.mcap", {"/imu": imus(4, lag=lag)})
    write_mcap(tmp_path / "bags/b.mcap", {"/imu": imus(4, lag=-60 * 10**9 - lag)})
    with pytest.raises(robocache.FileError, match=f"clocks '/imu' is {other}, but before it {clock}"):
        ingest_in_shards(tmp_path / "bags", tmp_path)
    assert ingest_in_shards(tmp_path / "bags", tmp_path / "log", stamp="log").episodes == 2


def test_shards_with_different_lengths_are_not_merged(tmp_path):
    def arrays(count):
        name = "std_msgs/msg/Float64MultiArray"
        return name, [(START + k, message(name, data=np.arange(count + 0.0))) for k in range(3)]

    write_mcap(tmp_path / "bags/a.mcap", {"/a": arrays(3)})
    write_mcap(tmp_path / "bags/b.mcap", {"/a": arrays(4)})
    with pytest.raises(robocache.FileError, match=r"b.mcap: /a: data has 4 to 4 values a message, but 3"):
        robocache.ingest(tmp_path / "bags", tmp_path / "cache")
    with pytest.raises(robocache.FileError, match=r"does not fit the other shards: .*/a"):
        ingest_in_shards(tmp_path / "bags", tmp_path)


@settings(max_examples=15)
@given(order=st.permutations(range(40)))
def test_messages_are_in_order_of_log_time(order, tmp_path):
    """The chunks overlap, and the order in the file does not matter."""
    topics = {"/a": strings(*map(str, range(20))), "/b": strings(*map(str, range(20)))}
    path = write_mcap(tmp_path / "a.mcap", topics, chunk_size=150, order=order)
    streams = read(path).only
    assert streams["/a"].rows == streams["/b"].rows == list(map(str, range(20)))
    assert streams["/a"].time_ns == [START + k for k in range(20)]


def write_delayed(path, delays):
    """Writes one topic for each list of delays: seconds from a header's stamp to its log time."""
    kind, topics = "geometry_msgs/msg/PointStamped", {}
    for topic, (delay, count) in delays.items():
        times = [START + k * 50 * MS for k in range(count)]
        topics[topic] = (kind, [(t, message(kind, header=header(t - int(delay * 1e9)))) for t in times])
    return write_mcap(path, topics)


@pytest.mark.parametrize(
    ("delays", "named"),
    [
        ({"/a": (0.001, 20), "/b": (4.0, 20), "/c": (0.002, 20)}, ["/b"]),
        ({"/a": (0.001, 20), "/b": (-0.6, 20), "/c": (0.002, 20)}, ["/b"]),
        ({"/a": (0.001, 20), "/b": (0.4, 20)}, []),
        ({"/a": (0.001, 20), "/b": (4.0, 2)}, []),  # latched
        ({"/a": (4.0, 20), "/b": (4.0, 20)}, []),
    ],
)
def test_headers_of_another_machines_clock_are_named(delays, named, tmp_path):
    source = write_delayed(tmp_path / "a.mcap", delays)
    report = robocache.ingest(source, tmp_path / "cache")
    assert [note.streams for note in report.assumed] == [[name] for name in named]
    for assumption in report.assumed:
        (name,) = assumption.streams
        assert (
            f"{delays[name][0]:.3f} s" in assumption.reason
            and "--stamp log" in assumption.reason
            and name in assumption.what
        )
    assert robocache.ingest(source, tmp_path / "logged", stamp="log").assumed == []


@pytest.mark.parametrize(
    ("stamp_of", "is_named"),
    [
        (lambda t: t - 300 * MS * (t // MS % 2), False),  # a slow network
        (lambda t: t // 10**9 * 10**9 + t % 10**9 // 1000, True),  # microseconds written as nanoseconds
        (lambda t: t // 10**9 * 10**9, True),
        (lambda t: START, True),
    ],
)
def test_headers_whose_delay_changes_are_named(stamp_of, is_named, tmp_path):
    kind = "geometry_msgs/msg/PointStamped"
    messages = [(t, message(kind, header=header(stamp_of(t)))) for t in range(START, START + 3 * 10**9, 51 * MS)]
    source = write_mcap(tmp_path / "a.mcap", {"/a": (kind, messages)})
    report = robocache.ingest(source, tmp_path / "cache", repair="sort")
    assert [note.what for note in report.assumed] == (["clock of /a"] if is_named else [])
    assert not is_named or "--stamp log" in report.assumed[0].reason


def test_transforms_ahead_of_time_are_not_named(tmp_path):
    """A localisation stamps its transform a second ahead, so that it is valid until the next one."""

    def transform(t, child):
        return message("geometry_msgs/msg/TransformStamped", header=header(t, "map"), child_frame_id=child)

    messages = []
    for k in range(40):
        t = START + k * 50 * MS
        transforms = [transform(t + 10**9, "odom")] if k % 2 else [transform(t, "base")]
        messages.append((t, message("tf2_msgs/msg/TFMessage", transforms=transforms)))
    source = write_mcap(tmp_path / "a.mcap", {"/tf": ("tf2_msgs/msg/TFMessage", messages)})
    assert [note.what for note in robocache.ingest(source, tmp_path / "cache").assumed] == ["rotation.x to rotation.w"]
