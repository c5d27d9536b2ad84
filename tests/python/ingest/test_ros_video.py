"""Video in messages of one frame each: every frame has the stamp of its message, and lost frames are named."""

import re
from fractions import Fraction

import av
import numpy as np
import pytest
from damage import damage
from mcap.writer import Writer
from robocache.ingest.h264 import FrameNumbers
from robocache.ingest.messages import cameras, videos
from ros_files import ROS2, START, header, message, write_mcap
from rosbags.typesys import get_types_from_msg
from soak import rounds
from video_files import number_of, picture, restored_scheduling
from yields import Yields, pixels

import robocache

MS = 1_000_000
PACKET = """std_msgs/Header header
int32 width
int32 height
string encoding
uint64 pts
uint8 flags
bool is_bigendian
uint8[] data
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
"""


@restored_scheduling()
def encode(numbers, codec="libx264", gop=8, size=(48, 64), options=None):
    """Pictures of these numbers as packets of one frame, in decoding order."""
    context = av.CodecContext.create(codec, "w")
    context.height, context.width, context.pix_fmt, context.gop_size = *size, "yuv420p", gop
    context.framerate, context.time_base = Fraction(30), Fraction(1, 30)
    context.options = options or {"tune": "zerolatency"}
    packets = []
    for k, number in enumerate(numbers):
        frame = av.VideoFrame.from_ndarray(picture(number, *size), format="rgb24")
        frame.pts = k
        packets += map(bytes, context.encode(frame))
    return packets + [bytes(packet) for packet in context.encode(None)]


def decode(packets, codec):
    """Returns the frames, decoded by PyAV."""
    context = av.CodecContext.create(codec, "r")
    frames = [frame for packet in packets for frame in context.decode(av.Packet(packet))] + context.decode(None)
    return np.stack([frame.to_ndarray(format="rgb24") for frame in frames])


def write_video_messages(path, packets, format="h264", topic="/cam/video"):
    name = "sensor_msgs/msg/CompressedImage"
    messages = [
        (
            START + k * MS,
            message(name, header=header(START + k * MS), format=format, data=np.frombuffer(data, np.uint8)),
        )
        for k, data in enumerate(packets)
        if data is not None
    ]
    info = message("sensor_msgs/msg/CameraInfo", header=header(START), height=48, width=64, k=np.eye(3).reshape(-1))
    infos = ("sensor_msgs/msg/CameraInfo", [(START, info)])
    return write_mcap(path, {topic: (name, messages), "/cam/camera_info": infos})


def rows_and_numbers(yields, topic="/cam/video"):
    """Returns (indices of messages, numbers that their frames show)."""
    time_ns, chunks = yields.only()[topic]
    return ((time_ns - START) // MS).tolist(), [number_of(image) for image in pixels(chunks)]


# Options by which an encoder gives a packet for each picture at once.
LIVE = {
    "libvpx": {"lag-in-frames": "0"},
    "libvpx-vp9": {"lag-in-frames": "0"},
    "libsvtav1": {"preset": "10", "svtav1-params": "pred-struct=1:rtc=1"},
}


@pytest.mark.parametrize(
    ("codec", "format"),
    [("libx264", "h264"), ("libx265", "h265"), ("libvpx-vp9", "vp9"), ("libvpx", "vp8"), ("libsvtav1", "av1")],
)
def test_every_frame_has_its_messages_stamp(codec, format, tmp_path):
    numbers = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
    packets = encode(numbers, codec, options=LIVE.get(codec))
    assert len(packets) == len(numbers)
    yields = Yields("mcap", write_video_messages(tmp_path / "a.mcap", packets, format), image_codec="raw")
    assert rows_and_numbers(yields) == (list(range(20)), numbers)
    expected = decode(packets, {"h265": "hevc", "av1": "libdav1d"}.get(format, format))
    np.testing.assert_array_equal(pixels(yields.only()["/cam/video"][1]), expected)
    assert yields.facts["/cam/video"]["intrinsics"] == np.eye(3).tolist()
    assert yields.facts["/cam/video"]["attributes"]["clock_source"] == "header.stamp"
    assert not yields.skipped and "/cam/video" not in yields.left_out
    resized = Yields("mcap", tmp_path / "a.mcap", image_size="32x24")
    assert resized.facts["/cam/video"]["resized"] == {"size": [24, 32], "fit": "stretch", "from": [48, 64]}
    assert rows_and_numbers(resized) == (list(range(20)), numbers)


def test_frames_delayed_by_the_decoder_are_read_at_the_end(tmp_path, monkeypatch):
    """Presentation order differs from decoding order; the stream is read in parts."""
    monkeypatch.setattr(videos, "_AT_ONCE", 3 * 48 * 64 * 3)
    numbers = list(range(30))
    packets = encode(numbers, options={"tune": "film", "bf": "2", "b-adapt": "0"})
    yields = Yields("mcap", write_video_messages(tmp_path / "a.mcap", packets))
    rows, numbers_shown = rows_and_numbers(yields)
    assert len(yields.only()["/cam/video"][1]) > 5
    assert sorted(rows) == numbers and sorted(numbers_shown) == numbers


def test_packets_of_ffmpeg_image_transport(tmp_path):
    types = get_types_from_msg(PACKET.split("=====")[0], "ffmpeg_image_transport_msgs/msg/FFMPEGPacket")
    ROS2.register(types) if "ffmpeg_image_transport_msgs/msg/FFMPEGPacket" not in ROS2.types else None
    name = "ffmpeg_image_transport_msgs/msg/FFMPEGPacket"
    with (tmp_path / "a.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema(name.replace("/msg", ""), "ros2msg", PACKET.encode())
        channel = writer.register_channel("/cam", "cdr", schema)
        for k, data in enumerate(encode(range(12))):
            msg = message(name, header=header(START + k * MS), encoding="libx264", data=np.frombuffer(data, np.uint8))
            writer.add_message(channel, START + k * MS, bytes(ROS2.serialize_cdr(msg, name)), 0)
        writer.finish()
    assert rows_and_numbers(Yields("mcap", tmp_path / "a.mcap"), "/cam") == (list(range(12)), list(range(12)))


def test_lost_frames_are_named(tmp_path):
    """One recording begins between keyframes, one has an empty packet, on which later packets depend, and one has no video."""
    packets = encode(range(24))
    yields = Yields("mcap", write_video_messages(tmp_path / "middle.mcap", packets[3:]), on_error="stop")
    assert rows_and_numbers(yields) == (list(range(5, 21)), list(range(8, 24)))
    assert yields.left_out["middle.mcap: /cam/video: messages up to 4"] == "before the first keyframe of the video"
    packets[10] = b""
    path = write_video_messages(tmp_path / "empty.mcap", packets)
    with pytest.raises(robocache.FileError, match=r"empty.mcap: /cam/video: message 10: "):
        Yields("mcap", path)
    yields = Yields("mcap", path, on_error="skip")
    rows, numbers_shown = rows_and_numbers(yields)
    assert rows == numbers_shown and 10 not in rows and set(range(10)) | set(range(16, 24)) <= set(rows)
    assert all(what.startswith("empty.mcap: /cam/video: messages ") for what in yields.skipped)
    yields = Yields("mcap", write_video_messages(tmp_path / "none.mcap", [b"no video"] * 3), on_error="skip")
    assert "/cam/video" not in yields.only() and list(yields.skipped) == ["none.mcap: /cam/video: messages 0-2"]


H264 = {
    "zerolatency": {"tune": "zerolatency"},
    "B-frames": {"bf": "3", "x264-params": "b-pyramid=normal:ref=4"},
    "open GOP": {"x264-params": "open-gop=1:bframes=2:keyint=8:scenecut=0"},
    "slices": {"tune": "zerolatency", "slices": "3"},
    "interlaced": {"x264-params": "interlaced=1:bframes=0"},
    "4:4:4": {"profile": "high444", "x264-params": "cqm=jvt:bframes=0"},
}


@pytest.mark.parametrize("kind", H264)
def test_a_missing_reference_picture_of_h264_is_noticed(kind):
    """The decoder silently shows other pictures instead of those after the missing one."""
    packets = encode(range(40), options=H264[kind])
    assert not any(map(FrameNumbers().lacks, packets))
    intact = decode(packets, "h264")
    for lost in (2, 5, 17):
        remaining = packets[:lost] + packets[lost + 1 :]
        numbers = FrameNumbers()
        missing = [k for k, packet in enumerate(remaining) if numbers.lacks(packet)]
        if not all(any(np.array_equal(one, other) for other in intact) for one in decode(remaining, "h264")):
            assert missing[:1] == [lost], (kind, lost)


def test_frames_after_a_lost_message_are_lost_until_the_next_keyframe(tmp_path):
    packets = encode(range(24))
    for lost, lost_rows in ((4, {4, 5, 6, 7}), (8, set(range(8, 16))), (7, {7}), (23, {23})):
        path = write_video_messages(tmp_path / f"{lost}.mcap", packets[:lost] + packets[lost + 1 :])
        yields = Yields("mcap", path, on_error="skip")
        assert rows_and_numbers(yields)[1] == [k for k in range(24) if k not in lost_rows], lost
        if len(lost_rows) > 1:
            with pytest.raises(robocache.FileError, match="a message that it depends on is missing"):
                Yields("mcap", path)


@pytest.mark.parametrize(("codec", "format"), [("libvpx", "vp8"), ("libvpx-vp9", "vp9"), ("libsvtav1", "av1")])
def test_a_gap_in_video_that_does_not_show_missing_frames_is_noted(codec, format, tmp_path):
    """The decoder gives frames after a missing one from the wrong reference, without an error."""
    packets = encode(range(24), codec, options=LIVE[codec])
    whole = Yields("mcap", write_video_messages(tmp_path / "whole.mcap", packets, format), image_codec="raw")
    assert not whole.notes.assumed
    packets[4] = packets[12] = None
    path = write_video_messages(tmp_path / "lost.mcap", packets, format)
    yields = Yields("mcap", path, image_codec="raw")
    rows = rows_and_numbers(yields)[0]
    assert rows == [k for k in range(24) if packets[k]]
    recorded = pixels(whole.only()["/cam/video"][1])[rows]
    assert not np.array_equal(pixels(yields.only()["/cam/video"][1]), recorded)
    (note,) = yields.notes.assumed
    assert note.what == "lost.mcap: /cam/video: video" and note.streams == ["/cam/video"]
    assert "gaps (2, the first of 0.002 s before message 4)" in note.reason
    # A gap before a keyframe changes nothing.
    packets = encode(range(24), codec, options=LIVE[codec])
    packets[7] = None
    path = write_video_messages(tmp_path / "keyframe.mcap", packets, format)
    assert not Yields("mcap", path, image_codec="raw").notes.assumed


@pytest.mark.parametrize("lost", [2, 5, 11])
def test_b_frames_after_a_lost_message_are_never_wrong(lost, tmp_path):
    packets = encode(range(24), options=H264["B-frames"])
    number_of_row = dict(
        zip(*rows_and_numbers(Yields("mcap", write_video_messages(tmp_path / "whole.mcap", packets))), strict=True)
    )
    remaining = Yields(
        "mcap", write_video_messages(tmp_path / "left.mcap", packets[:lost] + packets[lost + 1 :]), on_error="skip"
    )
    rows, numbers_shown = rows_and_numbers(remaining)
    assert [number_of_row[row + (row >= lost)] for row in rows] == numbers_shown


def test_without_pyav_or_the_codec_video_is_left_out_by_name(tmp_path, monkeypatch):
    path = write_video_messages(tmp_path / "a.mcap", encode(range(3)))
    monkeypatch.setitem(cameras._VIDEO, "[hx]264", "none_such")
    assert "which PyAV" in Yields("mcap", path).left_out["/cam/video"]
    monkeypatch.undo()
    import sys

    monkeypatch.setitem(sys.modules, "robocache.ingest.messages.videos", None)
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "robocache.ingest.messages.videos")
    yields = Yields("mcap", path)
    assert re.match(r"video in h264: .*pip install av", yields.left_out["/cam/video"])
    assert "/cam/camera_info/k" in yields.only()


def test_damaged_packets_are_read_or_skipped(tmp_path, rng):
    packets = encode(range(16))
    for _ in range(rounds(15)):
        changed = list(packets)
        for k in rng.integers(len(changed), size=3):
            changed[k] = damage(changed[k], rng)
        yields = Yields("mcap", write_video_messages(tmp_path / "a.mcap", changed), on_error="skip")
        if "/cam/video" in yields.only():
            time_ns, chunks = yields.only()["/cam/video"]
            assert len(time_ns) == len(pixels(chunks)) <= 16
