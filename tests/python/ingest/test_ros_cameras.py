"""Images and point clouds in messages, compared with the written values."""

import base64
import io
import json
import re
import struct
import tracemalloc

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from PIL import Image
from robocache.ingest import convert, merge, plan
from robocache.ingest.messages.ros import RosDecoder
from robocache.ingest.recording import SourceError
from ros_files import (
    MS,
    PADDED,
    PLAIN,
    START,
    cloud,
    header,
    image,
    joints,
    message,
    random_points,
    read,
    write_channel,
    write_json,
    write_mcap,
)

import robocache

# ---- clouds ----


WITH_NORMALS = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4"), ("tag", "u1"), ("normal", "f4", (3,))])


@pytest.mark.parametrize(("codec", "is_noted"), [(None, True), ("png", False), ("jpeg:95", False)])
def test_pixels_stored_with_loss_are_noted(codec, is_noted, rng, tmp_path):
    topics = {
        topic: ("sensor_msgs/msg/Image", [(START, image(rng.integers(0, 255, (40, 48, channels), np.uint8), encoding))])
        for topic, encoding, channels in (("/cam", "rgb8", 3), ("/mono", "mono8", 1))
    }
    options = {} if codec is None else {"image_codec": codec}
    report = robocache.ingest(write_mcap(tmp_path / "a.mcap", topics), tmp_path / "cache", **options)
    assert [note.streams for note in report.assumed if note.what == "pixels"] == [["/cam", "/mono"]] * is_noted


@pytest.mark.parametrize(
    ("topic", "unit", "is_noted"),
    [
        ("/camera/depth/image_raw", 0.001, False),
        ("/camera/image_raw", 0.001, True),
        ("/flir_boson/image_raw", None, True),
        ("/cam/ir/image", None, True),
    ],
)
def test_16uc1_is_depth_by_rep_118_unless_the_topic_names_another_quantity(topic, unit, is_noted, rng, tmp_path):
    pixels = rng.integers(1, 4000, (6, 10, 1)).astype(np.uint16)
    topics = {topic: ("sensor_msgs/msg/Image", [(START, image(pixels, "16UC1"))])}
    report = robocache.ingest(write_mcap(tmp_path / "a.mcap", topics), tmp_path / "cache")
    stream = robocache.open(tmp_path / "cache")[topic]
    assert stream.frames.unit_m == unit
    np.testing.assert_array_equal(np.asarray(stream.values[0]).squeeze(), pixels.squeeze())
    assert [note.what for note in report.assumed] == ([topic] if is_noted else [])


@pytest.mark.parametrize("dtype", [PADDED, PLAIN, WITH_NORMALS], ids=["padded", "plain", "odd"])
@pytest.mark.parametrize("big_endian", [False, True])
def test_clouds_of_every_layout(dtype, big_endian, rng, tmp_path):
    counts = [6, 0, 600, 600, 12, 602, 3000]
    all_points = [random_points(rng, dtype, n) for n in counts]
    messages = [
        (
            START + k,
            cloud(
                points,
                height=2 if k == 4 else 1,
                row_padding=8 if k == 4 else 0,
                big_endian=big_endian,
                time_ns=START + k,
            ),
        )
        for k, points in enumerate(all_points)
    ]
    streams = read(write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", messages)})).only
    names = {
        PADDED: ["x", "y", "z", "intensity"],
        PLAIN: ["x", "y", "z", "intensity"],
        WITH_NORMALS: ["x", "y", "z", "normal[0]", "normal[1]", "normal[2]"],
    }
    assert streams["/points"].names == names[dtype]
    for row, points in zip(streams["/points"].rows, all_points, strict=True):
        columns = [
            points[name.split("[")[0]] if "[" not in name else points["normal"][:, int(name[-2])]
            for name in names[dtype]
        ]
        assert row.dtype == np.float32
        assert row.tobytes() == np.stack(columns, axis=1).tobytes()  # NaN payloads too
    others = {PADDED: ["t", "ring"], PLAIN: [], WITH_NORMALS: ["tag"]}[dtype]
    assert set(streams) == {"/points", *(f"/points/{name}" for name in others)}
    for name in others:
        for row, points in zip(streams[f"/points/{name}"].rows, all_points, strict=True):
            assert row.dtype == points[name].dtype and row.tobytes() == points[name].tobytes()


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize(
    ("types", "expected", "beside"),
    [
        ("f4 f4 f8 f4", np.float64, ["intensity"]),
        ("f8 f4 f4 f8", np.float64, []),
        ("i2 i2 f4 f4", np.float32, []),
        ("u1 i2 i2 u1", np.int16, ["intensity"]),
        ("i4 i4 f4 f4", np.float64, ["intensity"]),
    ],
)
def test_axes_of_different_types_are_one_stream(types, expected, beside, big_endian, rng, tmp_path):
    names = ["x", "y", "z", "intensity"]
    points = np.zeros(9, list(zip(names, types.split(), strict=True)))
    for name in names:
        points[name] = rng.integers(0, 100, 9)
    msg = cloud(points, big_endian=big_endian)
    streams = read(write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", [(START, msg)])})).only
    features = [name for name in names if name not in beside]
    assert streams["/points"].names == features
    (row,) = streams["/points"].rows
    assert row.dtype == expected
    for column, name in enumerate(features):
        np.testing.assert_array_equal(row[:, column], points[name])
    for name in beside:
        np.testing.assert_array_equal(streams[f"/points/{name}"].rows[0], points[name])


def test_axes_that_no_type_holds_are_refused(tmp_path):
    msg = cloud(np.zeros(3, [("x", "f8"), ("y", "f4"), ("z", "f4")]))
    msg.fields[0].datatype = 9  # int64
    readout = read(write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", [(START, msg)])}))
    assert "no points that can be read" in readout.left_out["a.mcap: /points"]


@pytest.mark.parametrize(
    ("height", "width", "row_step", "kept", "is_noted"),
    [
        (1, 4, 64, 4, False),
        (1, 4, 0, 4, False),
        (1, 3, 48, 3, True),
        (1, 3, 64, 3, False),
        (0, 4, 64, 0, True),
        (1, 0, 0, 0, True),
        (1, 0, 64, 0, True),
        (2, 1, 16, 2, True),
        (2, 1, 32, 2, False),
    ],
)
def test_points_that_a_cloud_does_not_declare_are_named(height, width, row_step, kept, is_noted, tmp_path):
    """The data of all clouds have four points; row_step may include padding."""
    points = np.zeros(4, PLAIN)
    points["x"] = range(4)
    whole, msg = cloud(points), cloud(points)
    msg.height, msg.width, msg.row_step = height, width, row_step
    topics = {"/points": ("sensor_msgs/msg/PointCloud2", [(START, whole), (START + 1, msg)])}
    readout = read(write_mcap(tmp_path / "a.mcap", topics))
    assert [len(row) for row in readout.only["/points"].rows] == [4, kept]
    assert ("/points: bytes of points" in readout.left_out) == is_noted


@pytest.mark.parametrize(("height", "padding", "is_noted"), [(6, 0, False), (6, 5, False), (4, 0, True), (1, 5, True)])
def test_pixels_that_an_image_does_not_declare_are_named(height, padding, is_noted, rng, tmp_path):
    pixels = rng.integers(0, 255, (6, 10, 3)).astype(np.uint8)
    msg = image(pixels, "rgb8", padding=padding)
    msg.height = height
    path = write_mcap(tmp_path / "a.mcap", {"/cam": ("sensor_msgs/msg/Image", [(START, msg)])})
    readout = read(path, image_codec="png")
    np.testing.assert_array_equal(readout.only["/cam"].rows[0], pixels[:height])
    assert ("/cam: bytes of images" in readout.left_out) == is_noted


WIDER = np.dtype({"names": list(PLAIN.names), "formats": ["f4"] * 4, "offsets": [0, 4, 8, 12], "itemsize": 32})


def test_clouds_of_different_layouts_in_one_topic(rng, tmp_path):
    """One cloud has bytes after its points, two have a wider step, one message is lost."""
    dtypes = [PLAIN, PLAIN, PLAIN, WIDER, WIDER, PLAIN, PLAIN, PLAIN, PLAIN]
    all_points = [random_points(rng, dtype, 8 + 2 * (k % 3)) for k, dtype in enumerate(dtypes)]
    messages = [(START + k, cloud(points, time_ns=START + k)) for k, points in enumerate(all_points)]
    messages[1][1].data = np.concatenate([messages[1][1].data, np.full(16, 7, np.uint8)])
    messages[6][1].width += 1
    readout = read(
        write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", messages)}), on_error="skip"
    ).only["/points"]
    kept_rows = [0, 1, 2, 3, 4, 5, 7, 8]
    assert readout.time_ns == [START + k for k in kept_rows]
    for row, k in zip(readout.rows, kept_rows, strict=True):
        expected = np.stack([all_points[k][name] for name in PLAIN.names], axis=1)
        assert row.tobytes() == expected.tobytes(), k


def test_clouds_with_too_few_bytes_are_skipped_by_message(rng, tmp_path):
    messages = [(START + k, cloud(random_points(rng, PLAIN, 10), time_ns=START + k)) for k in range(5)]
    messages[1][1].width = 11
    messages[2][1].fields[0].offset = 14
    messages[3][1].fields[0].name = "w"
    path = write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", messages)})
    with pytest.raises(SourceError, match=r"a.mcap: /points: message 1: expected 1x11 points of 16 bytes"):
        read(path)
    readout = read(path, on_error="skip")
    assert readout.only["/points"].time_ns == [START, START + 4]
    assert list(readout.skipped) == ["a.mcap: /points: messages 1-2"]
    reason = readout.left_out["a.mcap: /points: 1 of 5 clouds"]
    assert reason.startswith("points of w float32, y float32") and "not of x float32" in reason


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("kind", ["f4", "u4", "i4"])
@pytest.mark.parametrize("name", ["rgb", "rgba"])
def test_a_colour_packed_into_one_number_is_its_bytes(name, kind, big_endian, rng, tmp_path):
    colours = rng.integers(0, 256, (50, 4), np.uint8)  # r, g, b, a
    points = np.zeros(50, [("x", "f4"), ("y", "f4"), ("z", "f4"), (name, "u4"), ("intensity", "f4")])
    points["x"], points["intensity"] = np.arange(50), 0.5
    channels = colours.astype(np.uint32)
    points[name] = channels[:, 3] << 24 | channels[:, 0] << 16 | channels[:, 1] << 8 | channels[:, 2]
    renamed_points = points.view([(n, kind if n == name else "f4") for n in points.dtype.names])
    msg = cloud(points, big_endian=big_endian)
    msg.fields = cloud(renamed_points).fields
    topics = {"/points": ("sensor_msgs/msg/PointCloud2", [(START, msg)])}
    streams = read(write_mcap(tmp_path / "a.mcap", topics)).only
    assert streams["/points"].names == ["x", "y", "z", "intensity"]
    np.testing.assert_array_equal(streams["/points"].rows[0][:, 3], points["intensity"])
    assert streams[f"/points/{name}"].names == ["r", "g", "b", "a"]
    np.testing.assert_array_equal(streams[f"/points/{name}"].rows[0], colours)


@pytest.mark.parametrize("big_endian", [False, True])
def test_fields_of_pcls_further_types_and_of_unknown_ones(big_endian, rng, tmp_path):
    order = ">" if big_endian else "<"
    points = np.zeros(
        6,
        [(n, order + t) for n, t in (("x", "f4"), ("y", "f4"), ("z", "f4"), ("i", "i8"), ("t", "u8"))]
        + [("b", "?"), ("odd", "u1")],
    )
    points["x"], points["i"], points["t"], points["b"] = (
        np.arange(6),
        -(2**62),
        2**63 + np.arange(6, dtype=np.uint64),
        [1, 0] * 3,
    )
    msg = cloud(np.zeros(6, PLAIN))
    numbers = {"x": 7, "y": 7, "z": 7, "i": 9, "t": 10, "b": 11, "odd": 12}
    msg.fields = [
        message("sensor_msgs/msg/PointField", name=n, offset=points.dtype.fields[n][1], datatype=number, count=1)
        for n, number in numbers.items()
    ]
    msg.point_step, msg.row_step, msg.is_bigendian = points.dtype.itemsize, points.nbytes, big_endian
    msg.data = points.view(np.uint8).reshape(-1)
    readout = read(write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", [(START, msg)])}))
    assert set(readout.only) == {"/points", "/points/i", "/points/t", "/points/b"}
    for name, dtype in {"i": np.int64, "t": np.uint64, "b": np.bool_}.items():
        assert readout.only[f"/points/{name}"].rows[0].dtype == dtype
        np.testing.assert_array_equal(readout.only[f"/points/{name}"].rows[0], points[name])
    assert "number 12" in readout.left_out["/points: field 'odd'"]


@pytest.mark.parametrize("empty_first", [True, False])
def test_empty_clouds_with_any_fields_are_empty_rows(empty_first, rng, tmp_path):
    messages = [(START + k, cloud(random_points(rng, PADDED, 5), time_ns=START + k)) for k in range(6)]
    without_fields = message("sensor_msgs/msg/PointCloud2", header=header(START))
    with_other_fields = cloud(random_points(rng, PLAIN, 0))
    for k, msg in (
        ((0, without_fields), (1, with_other_fields)) if empty_first else ((2, without_fields), (5, with_other_fields))
    ):
        msg.header = header(START + k)
        messages[k] = START + k, msg
    readout = read(write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", messages)}))
    for stream in ("/points", "/points/t", "/points/ring"):
        assert [len(row) for row in readout.only[stream].rows] == [5 * (len(msg.data) > 0) for _, msg in messages]
    assert readout.only["/points"].names == ["x", "y", "z", "intensity"] and not readout.skipped


def test_clouds_have_the_fields_that_most_of_them_have(rng, tmp_path):
    messages = [
        (START + k, cloud(random_points(rng, PLAIN if k in (0, 4) else PADDED, 5), time_ns=START + k)) for k in range(7)
    ]
    readout = read(write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", messages)}))
    assert readout.only["/points"].time_ns == [START + k for k in (1, 2, 3, 5, 6)]
    assert "a.mcap: /points: 2 of 7 clouds" in readout.left_out and not readout.skipped


@pytest.mark.parametrize(("height", "width"), [(1, 12), (3, 4), (12, 1)])
@pytest.mark.parametrize("steps", ["0", "all", "wider"])
def test_dense_points_are_read_with_a_wrong_row_step(steps, height, width, rng, tmp_path):
    """Drivers set row_step to 0, or to the bytes of the whole cloud."""
    points = random_points(rng, PADDED, 12)
    msg = cloud(points)
    msg.height, msg.width = height, width
    msg.row_step = {"0": 0, "all": points.nbytes, "wider": width * points.itemsize + 8}[steps]
    readout = read(write_mcap(tmp_path / "a.mcap", {"/points": ("sensor_msgs/msg/PointCloud2", [(START, msg)])}))
    for column, name in enumerate(("x", "y", "z")):
        np.testing.assert_array_equal(readout.only["/points"].rows[0][:, column], points[name])


@pytest.mark.parametrize("encoding", ["rgb8", "mono8", "16UC1", "yuyv"])
@pytest.mark.parametrize("step", [0, 100])
def test_dense_pixels_are_read_with_a_wrong_step(step, encoding, rng, tmp_path):
    """For example, the step was copied from an image of another encoding."""
    channels = {"rgb8": 3, "yuyv": 2}.get(encoding, 1)
    dtype = np.uint16 if encoding == "16UC1" else np.uint8
    dense, with_wrong_step = (image(rng.integers(0, 255, (6, 10, channels)).astype(dtype), encoding) for _ in range(2))
    with_wrong_step.data, with_wrong_step.step = dense.data, step
    path = write_mcap(
        tmp_path / "a.mcap", {"/cam": ("sensor_msgs/msg/Image", [(START, dense), (START + 1, with_wrong_step)])}
    )
    readout = read(path, image_codec="raw", stamp="log")
    np.testing.assert_array_equal(readout.only["/cam"].rows[0], readout.only["/cam"].rows[1])
    assert len(readout.only["/cam"].rows) == 2


# ---- images ----


@pytest.mark.parametrize("padding", [0, 12])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize(
    ("encoding", "dtype", "channels", "channel_order", "unit"),
    [
        ("rgb8", np.uint8, 3, [0, 1, 2], None),
        ("bgr8", np.uint8, 3, [2, 1, 0], None),
        ("bgra8", np.uint8, 4, [2, 1, 0], None),
        ("mono8", np.uint8, 1, [0], None),
        ("16UC1", np.uint16, 1, [0], 0.001),
        ("32FC1", np.float32, 1, [0], None),
    ],
)
def test_images_keep_their_pixels(encoding, dtype, channels, channel_order, unit, big_endian, padding, rng, tmp_path):
    pictures = [rng.integers(0, 255, (6, 10, channels)).astype(dtype) for _ in range(5)]
    messages = [
        (START + k, image(picture, encoding, padding, big_endian, START + k)) for k, picture in enumerate(pictures)
    ]
    matrix = [500.0, 0, 5, 0, 501, 3, 0, 0, 1]
    info = message("sensor_msgs/msg/CameraInfo", header=header(START), height=6, width=10, k=matrix)
    topics = {
        "/cam/image_raw": ("sensor_msgs/msg/Image", messages),
        "/cam/camera_info": ("sensor_msgs/msg/CameraInfo", [(START, info)]),
    }
    streams = read(write_mcap(tmp_path / "a.mcap", topics), image_codec="raw").only
    stream = streams["/cam/image_raw"]
    np.testing.assert_array_equal(stream.rows, np.array(pictures)[..., channel_order])
    assert stream.rows[0].dtype == dtype and stream.time_ns == [START + k for k in range(5)]
    assert stream.part.unit_m == unit
    assert stream.part.intrinsics == [matrix[:3], matrix[3:6], matrix[6:]]
    np.testing.assert_array_equal(streams["/cam/camera_info/k"].rows, [matrix])


@pytest.mark.parametrize("size", [(6, 10), (7, 5), (2, 2)])
@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_mosaic_colours_are_the_mean_of_neighbours(pattern, size, rng, tmp_path):
    mosaic = rng.integers(0, 256, (*size, 1)).astype(np.uint8)
    messages = [(START + k, image(mosaic, f"bayer_{pattern}8", time_ns=START + k)) for k in range(2)]
    readout = read(write_mcap(tmp_path / "a.mcap", {"/cam": ("sensor_msgs/msg/Image", messages)}), image_codec="png")
    height, width = size
    padded = np.pad(mosaic[..., 0].astype(int), 1, "reflect")
    for y in range(height):
        for x in range(width):
            for channel, colour in enumerate("rgb"):
                neighbours = {
                    (u, v): padded[y + u + 1, x + v + 1]
                    for u in (-1, 0, 1)
                    for v in (-1, 0, 1)
                    if pattern[(y + u) % 2 * 2 + (x + v) % 2] == colour
                }
                expected = [neighbours[0, 0]] if (0, 0) in neighbours else list(neighbours.values())
                assert readout.only["/cam"].rows[1][y, x, channel] == int(np.mean(expected) + 0.5), (y, x, colour)
    assert f"of bayer_{pattern}8: " in readout.left_out["/cam: the mosaic"]


def test_intrinsics_of_other_frames_are_left_out(rng, tmp_path):
    picture = rng.integers(0, 255, (6, 10, 3)).astype(np.uint8)
    info = message("sensor_msgs/msg/CameraInfo", header=header(START), height=12, width=20, k=np.eye(3).reshape(-1))
    topics = {
        "/cam/image_raw": ("sensor_msgs/msg/Image", [(START, image(picture, "rgb8"))]),
        "/cam/camera_info": ("sensor_msgs/msg/CameraInfo", [(START, info)]),
    }
    readout = read(write_mcap(tmp_path / "a.mcap", topics))
    assert readout.only["/cam/image_raw"].part.intrinsics is None
    assert readout.left_out["/cam/image_raw: intrinsics"] == "those of /cam/camera_info are of 20x12, frames of 10x6"


@pytest.mark.parametrize(
    ("fields", "is_whole"),
    [
        ({"width": 10, "height": 6}, True),
        ({"x_offset": 2, "y_offset": 3, "width": 10, "height": 6}, False),
        ({"width": 5, "height": 6}, False),
        ({"binning_x": 2, "binning_y": 2}, False),
        ({"binning_x": 1, "binning_y": 1}, True),
    ],
)
def test_intrinsics_of_a_part_of_the_sensor_are_left_out(fields, is_whole, rng, tmp_path):
    """REP 104: K describes the whole sensor; roi and binning make images smaller. Drivers also set them with images of full size."""
    picture = rng.integers(0, 255, (6, 10, 3)).astype(np.uint8)
    binning = {name: value for name, value in fields.items() if "binning" in name}
    roi = message("sensor_msgs/msg/RegionOfInterest", **{k: v for k, v in fields.items() if k not in binning})
    info = {"header": header(START), "height": 6, "width": 10, "k": np.array(RAW), "roi": roi, **binning}
    topics = {
        "/cam/image_raw": ("sensor_msgs/msg/Image", [(START, image(picture, "rgb8"))]),
        "/cam/camera_info": ("sensor_msgs/msg/CameraInfo", [(START, message("sensor_msgs/msg/CameraInfo", **info))]),
    }
    readout = read(write_mcap(tmp_path / "a.mcap", topics))
    assert readout.only["/cam/image_raw"].part.intrinsics == ([RAW[:3], RAW[3:6], RAW[6:]] if is_whole else None)
    assert ("roi or binning" in readout.left_out.get("/cam/image_raw: intrinsics", "")) != is_whole


RAW, PROJECTION = [500.0, 0, 5, 0, 501, 3, 0, 0, 1], [400.0, 0, 4, -40, 0, 401, 2, 0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("topic", "projection", "expected"),
    [
        ("image_raw", PROJECTION, [RAW[:3], RAW[3:6], RAW[6:]]),
        ("image_rect", PROJECTION, [[400, 0, 4], [0, 401, 2], [0, 0, 1]]),
        ("image_rect_color", PROJECTION, [[400, 0, 4], [0, 401, 2], [0, 0, 1]]),
        ("rectified", PROJECTION, [[400, 0, 4], [0, 401, 2], [0, 0, 1]]),
        ("imageRect", PROJECTION, [[400, 0, 4], [0, 401, 2], [0, 0, 1]]),
        ("imageRectColor", PROJECTION, [[400, 0, 4], [0, 401, 2], [0, 0, 1]]),
        ("imageDirect", PROJECTION, [RAW[:3], RAW[3:6], RAW[6:]]),
        ("image_direct", PROJECTION, [RAW[:3], RAW[3:6], RAW[6:]]),
        ("image_rect", [0] * 12, None),
    ],
)
def test_intrinsics_of_rectified_images_are_from_p(topic, projection, expected, rng, tmp_path):
    """sensor_msgs/CameraInfo: K describes raw images, the left part of P rectified ones."""
    picture = rng.integers(0, 255, (6, 10, 3)).astype(np.uint8)
    fields = {"height": 6, "width": 10, "k": np.array(RAW), "p": np.array(projection, float)}
    topics = {
        f"/left/{topic}": ("sensor_msgs/msg/Image", [(START, image(picture, "rgb8"))]),
        "/left/camera_info": (
            "sensor_msgs/msg/CameraInfo",
            [(START, message("sensor_msgs/msg/CameraInfo", header=header(START), **fields))],
        ),
    }
    readout = read(write_mcap(tmp_path / "a.mcap", topics))
    assert readout.only[f"/left/{topic}"].part.intrinsics == expected
    assert (f"/left/{topic}: intrinsics" in readout.left_out) == (expected is None)


@pytest.mark.parametrize("changes_at", [None, 1, 2000])
def test_intrinsics_that_change_within_a_recording_are_left_out(changes_at, rng, tmp_path):
    """With a zoom, the first message's intrinsics would be wrong for later frames."""
    picture = rng.integers(0, 255, (6, 10, 3)).astype(np.uint8)
    matrices = [np.diag([400.0 if k == changes_at else 500.0, 500, 1]).reshape(-1) for k in range(2001)]
    infos = [
        (
            START + k * MS,
            message("sensor_msgs/msg/CameraInfo", header=header(START + k * MS), height=6, width=10, k=matrix),
        )
        for k, matrix in enumerate(matrices)
    ]
    topics = {
        "/cam/image_raw": ("sensor_msgs/msg/Image", [(START, image(picture, "rgb8"))]),
        "/cam/camera_info": ("sensor_msgs/msg/CameraInfo", infos),
    }
    readout = read(write_mcap(tmp_path / "a.mcap", topics, chunk_size=1 << 14))
    camera = readout.only["/cam/image_raw"].part
    if changes_at is None:
        assert camera.intrinsics == matrices[0].reshape(3, 3).tolist()
    else:
        assert camera.intrinsics is None
        assert "/cam/camera_info change within the recording" in readout.left_out["/cam/image_raw: intrinsics"]
    np.testing.assert_array_equal(readout.only["/cam/camera_info/k"].rows, matrices)


@pytest.mark.parametrize(
    "focal_lengths", [(500, 500), (500, None), (None, 500), (500, 400, 500), (500, None, 500), (None, None)]
)
def test_intrinsics_that_differ_between_recordings_are_left_out(focal_lengths, rng, tmp_path):
    """A stream has one matrix: that of the first recording would be wrong for the others, as for one without CameraInfo."""
    matrices = [None if f is None else np.diag([f, f, 1.0]) for f in focal_lengths]
    picture = rng.integers(0, 255, (6, 10, 3)).astype(np.uint8)
    for number, matrix in enumerate(matrices):
        topics = {"/cam/image_raw": ("sensor_msgs/msg/Image", [(START, image(picture, "rgb8"))])}
        if matrix is not None:
            info = message("sensor_msgs/msg/CameraInfo", header=header(START), height=6, width=10, k=matrix.reshape(-1))
            topics["/cam/camera_info"] = ("sensor_msgs/msg/CameraInfo", [(START, info)])
        (tmp_path / "bags").mkdir(exist_ok=True)
        write_mcap(tmp_path / f"bags/{number}.mcap", topics)
    report = robocache.ingest(tmp_path / "bags", tmp_path / "cache", image_codec="png")
    for shards in (1, len(matrices)):
        planned = plan(tmp_path / "bags", tmp_path / f"plan{shards}", shards=shards, image_codec="png")
        for shard in range(shards):
            convert(planned, shard)
        merge(planned.folder, tmp_path / f"merged{shards}")
    caches = [robocache.open(tmp_path / name) for name in ("cache", "merged1", f"merged{len(matrices)}")]
    reasons = [note.reason for note in report.left_out if note.what == "/cam/image_raw: intrinsics"]
    for cache in caches:
        found = cache.streams["/cam/image_raw"].frames.intrinsics
        assert len(cache) == len(matrices)
        if len(set(focal_lengths)) == 1:
            assert reasons == [] and (found is None if matrices[0] is None else np.array_equal(found, matrices[0]))
        else:
            assert found is None
            assert "/cam/image_raw: intrinsics" in [note["what"] for note in cache.provenance["left_out"]]
            (reason,) = reasons
            groups = {f: [f"{i}.mcap" for i, other in enumerate(focal_lengths) if other == f] for f in focal_lengths}
            parts = [
                f"{'none' if f is None else matrices[focal_lengths.index(f)].tolist()} in {', '.join(groups[f])}"
                for f in sorted(groups, key=lambda f: f is not None)
            ]
            advice = "A cache for each matrix, in a list of Sources, keeps them"
            assert reason == f"differ between recordings: {'; '.join(parts)}. {advice}"


def test_appended_recordings_have_the_intrinsics_of_the_cache(rng, tmp_path):
    picture = rng.integers(0, 255, (6, 10, 3)).astype(np.uint8)
    for name, matrix in {"a": np.eye(3), "b": None, "c": np.diag([2.0, 2, 1]), "d": np.eye(3)}.items():
        topics = {"/cam/image_raw": ("sensor_msgs/msg/Image", [(START, image(picture, "rgb8"))])}
        if matrix is not None:
            info = message("sensor_msgs/msg/CameraInfo", header=header(START), height=6, width=10, k=matrix.reshape(-1))
            topics["/cam/camera_info"] = ("sensor_msgs/msg/CameraInfo", [(START, info)])
        write_mcap(tmp_path / f"{name}.mcap", topics)
    robocache.ingest(tmp_path / "a.mcap", tmp_path / "with")
    with pytest.raises(robocache.FileError, match="frames without intrinsics, those in the cache have intrinsics"):
        robocache.ingest(tmp_path / "b.mcap", tmp_path / "with", append=True)
    with pytest.raises(robocache.FileError, match="expected unit_m, intrinsics and resized that it has"):
        robocache.ingest(tmp_path / "c.mcap", tmp_path / "with", append=True)
    robocache.ingest(tmp_path / "d.mcap", tmp_path / "with", append=True)
    assert len(robocache.open(tmp_path / "with")) == 2
    robocache.ingest(tmp_path / "b.mcap", tmp_path / "without")
    report = robocache.ingest(tmp_path / "a.mcap", tmp_path / "without", append=True)
    assert robocache.open(tmp_path / "without").streams["/cam/image_raw"].frames.intrinsics is None
    assert "but none in the cache" in {note.what: note.reason for note in report.left_out}["/cam/image_raw: intrinsics"]


def test_unsupported_images_are_named(rng, tmp_path):
    picture = rng.integers(0, 255, (6, 10, 1)).astype(np.uint8)
    short = image(picture, "mono8")
    short.height = 7
    topics = {
        "/wide": ("sensor_msgs/msg/Image", [(START, image(picture, "rgba16"))]),
        "/short": ("sensor_msgs/msg/Image", [(START, image(picture, "mono8")), (START + 1, short)]),
    }
    path = write_mcap(tmp_path / "a.mcap", topics)
    with pytest.raises(SourceError, match="/short: message 1: expected 10x7 mono8 in rows of 10 bytes, got 60 bytes"):
        read(path)
    readout = read(path, on_error="skip")
    assert "rgba16" in readout.left_out["/wide"]
    assert len(readout.only["/short"].rows) == 1 and list(readout.skipped) == ["a.mcap: /short: messages 1"]


@pytest.mark.parametrize("kind", ["image", "cloud", "compressed", "joints"])
def test_messages_after_an_undecodable_one_keep_their_numbers(kind, rng, tmp_path, monkeypatch):
    picture = rng.integers(0, 255, (6, 10, 1)).astype(np.uint8)
    make_message = {
        "image": lambda: image(picture, "mono8"),
        "cloud": lambda: cloud(random_points(rng, PLAIN, 10)),
        "compressed": lambda: compressed_image(np.repeat(picture, 3, 2), "jpeg", "JPEG"),
        "joints": lambda: joints(1),
    }[kind]
    messages = [(START + k, make_message()) for k in range(4)]
    if kind == "image":
        messages[3][1].height = 7
    elif kind == "cloud":
        messages[3][1].width = 11
    elif kind == "compressed":
        messages[3][1].data = messages[3][1].data[:40]
    else:
        messages[3][1].position = np.array([1.0, 2.0])
    path = write_mcap(tmp_path / "a.mcap", {"/t": (messages[0][1].__msgtype__, messages)})
    decode = RosDecoder.decode

    def decode_with_one_cut(self, payloads):
        """Cuts the second message off."""
        return decode(self, [payload[:-8] if i == 1 else payload for i, payload in enumerate(payloads)])

    monkeypatch.setattr(RosDecoder, "decode", decode_with_one_cut)
    readout = read(path, on_error="skip")
    assert len(next(iter(readout.only.values())).rows) == 2
    skips = [f"{what} {reason}" for what, reason in readout.skipped.items()]
    assert [re.findall(r"(?:messages?|rows?) (\d)", skip)[0] for skip in skips] == ["1", "3"], skips


def test_depth_that_is_not_resized_hides_no_damage(rng, tmp_path):
    messages = [(START + k, image(rng.integers(0, 9, (6, 10, 1)).astype(np.uint16), "16UC1")) for k in range(3)]
    messages[0][1].height = 7
    path = write_mcap(tmp_path / "a.mcap", {"/depth": ("sensor_msgs/msg/Image", messages)})
    readout = read(path, on_error="skip", image_size="20x20")
    assert (
        list(readout.skipped) == ["a.mcap: /depth: messages 0"] and "depth is not resized" in readout.left_out["/depth"]
    )


def compressed_image(picture, format, kind, prefix=b""):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, kind)
    data = np.frombuffer(prefix + file.getvalue(), np.uint8)
    return message("sensor_msgs/msg/CompressedImage", header=header(START), format=format, data=data)


@pytest.mark.parametrize("kind", ["png", "jpeg"])
@pytest.mark.parametrize(
    ("format", "is_exchanged"),
    [
        ("bgr8; {} compressed", True),
        ("rgb8; {} compressed ", True),
        ("bgra8; {} compressed", True),
        ("rgb8; {}", True),
        ("rgb8; {} compressed rgb8", True),
        ("bgr8; {} compressed bgr8", False),
        ("rgb8; {} compressed bgr8", False),
        ("{}", False),
        ("mono8; {} compressed ", False),
    ],
)
def test_red_and_blue_of_a_file_follow_its_format(format, is_exchanged, kind, tmp_path):
    """compressed_image_transport's subscriber exchanges red and blue unless the format has "compressed bgr"."""
    picture = np.tile(np.array([200, 90, 30], np.uint8), (16, 24, 1))
    messages = [(START + k, compressed_image(picture, format.format(kind), kind)) for k in range(2)]
    readout = read(write_mcap(tmp_path / "a.mcap", {"/c": ("sensor_msgs/msg/CompressedImage", messages)}))
    stored = np.array(Image.open(io.BytesIO(bytes(messages[0][1].data)))).astype(int)
    expected = stored[..., ::-1] if is_exchanged else stored
    assert np.abs(np.array(readout.only["/c"].rows) - expected).max() <= (3 if is_exchanged and kind == "jpeg" else 0)
    assert is_exchanged == any("red and blue" in what for what in readout.left_out)


def test_a_grey_file_has_no_red_and_blue(rng, tmp_path):
    picture = rng.integers(0, 255, (16, 24)).astype(np.uint8)
    messages = [(START, compressed_image(picture, "bgr8; png compressed", "png"))]
    readout = read(write_mcap(tmp_path / "a.mcap", {"/c": ("sensor_msgs/msg/CompressedImage", messages)}))
    np.testing.assert_array_equal(readout.only["/c"].rows[0][..., 0], picture)


def test_jpeg_and_png_keep_their_bytes(rng, tmp_path):
    picture = rng.integers(0, 255, (16, 24, 3)).astype(np.uint8)
    depth = rng.integers(0, 65535, (16, 24)).astype(np.uint16)
    name = "sensor_msgs/msg/CompressedImage"
    topics = {
        "/a/compressed": (
            name,
            [(START + k, compressed_image(picture, "rgb8; jpeg compressed bgr8", "jpeg")) for k in range(2)],
        ),
        "/b/compressed": (name, [(START, compressed_image(picture, "png", "png"))]),
        "/c/compressedDepth": (
            name,
            [(START, compressed_image(depth, "16UC1; compressedDepth png", "png", bytes(12)))],
        ),
        "/d/compressed": (
            name,
            [(START, message(name, header=header(START), format="theora", data=[0, 0, 0, 1, 9, 9]))],
        ),
    }
    readout = read(write_mcap(tmp_path / "a.mcap", topics))
    jpeg = np.array(Image.open(io.BytesIO(bytes(topics["/a/compressed"][1][0][1].data))))
    np.testing.assert_array_equal(readout.only["/a/compressed"].rows, [jpeg] * 2)
    np.testing.assert_array_equal(readout.only["/b/compressed"].rows, [picture])
    np.testing.assert_array_equal(readout.only["/c/compressedDepth"].rows[0][..., 0], depth)
    assert readout.only["/c/compressedDepth"].part.unit_m == 0.001
    assert "theora" in readout.left_out["/d/compressed"]


def test_a_single_row_may_have_any_step(rng, tmp_path):
    """A step of 4 GB in a small message does not matter when there is one row."""
    msg = image(rng.integers(0, 256, (1, 2, 3), np.uint8), "rgb8")
    msg.step = 2**32 - 1
    tracemalloc.start()
    streams = read(
        write_mcap(tmp_path / "a.mcap", {"/cam": ("sensor_msgs/msg/Image", [(START, msg)])}), image_codec="raw"
    ).only
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert streams["/cam"].rows[0].tobytes() == msg.data.tobytes() and peak < 16 << 20


# ---- images that differ from others of their topic ----


def test_a_topic_has_the_size_and_encoding_of_most_images(rng, tmp_path):
    """An empty image, one of another size and one of another encoding are left out and counted; all others are kept."""
    pictures = rng.integers(0, 255, (9, 6, 10, 3)).astype(np.uint8)
    messages = [(START + k, image(picture, "rgb8", time_ns=START + k)) for k, picture in enumerate(pictures)]
    messages[0][1].__dict__.update(height=0, width=0, step=0, encoding="", data=np.zeros(0, np.uint8))
    messages[3] = START + 3, image(pictures[3][:4], "rgb8", time_ns=START + 3)
    messages[5] = START + 5, image(pictures[5][..., :1], "odd", time_ns=START + 5)
    files = [(START + k, compressed_image(picture, "jpeg", "PNG")) for k, picture in enumerate(pictures)]
    files[0][1].data = np.zeros(0, np.uint8)
    files[4] = START + 4, compressed_image(pictures[4][:4], "png", "PNG")
    files[6] = START + 6, compressed_image(pictures[6], "jpeg", "JPEG")
    for k, (_, msg) in enumerate(files):
        msg.header = header(START + k)
    topics = {"/a": ("sensor_msgs/msg/Image", messages), "/b": ("sensor_msgs/msg/CompressedImage", files)}
    readout = read(write_mcap(tmp_path / "a.mcap", topics), image_codec="png")
    kept_rows = {"/a": [1, 2, 4, 6, 7, 8], "/b": [1, 2, 3, 5, 7, 8]}
    for topic, rows in kept_rows.items():
        assert readout.only[topic].time_ns == [START + k for k in rows]
        np.testing.assert_array_equal(readout.only[topic].rows, pictures[rows])
    # Images of a topic that are left out in the same number share one name, with a reason each.
    reasons = [(omission.what, omission.reason) for omission in readout.notes.left_out if "images" in omission.what]
    assert ("a.mcap: /a: 1 of 9 images", "empty, not 10x6 rgb8") in reasons
    assert ("a.mcap: /a: 1 of 9 images", "10x4 rgb8, not 10x6 rgb8") in reasons
    assert ("a.mcap: /a: 1 of 9 images", "10x6 odd, not 10x6 rgb8") in reasons
    assert {what for what, _ in reasons} == {"a.mcap: /a: 1 of 9 images", "a.mcap: /b: 1 of 9 images"}
    assert len(reasons) == 6 and not readout.skipped


def test_topics_of_only_empty_or_cut_images_are_named(rng, tmp_path):
    picture = rng.integers(0, 255, (16, 24, 3)).astype(np.uint8)
    cut = compressed_image(picture, "jpeg", "JPEG")
    cut.data = cut.data[:10]
    empty = message("sensor_msgs/msg/CompressedImage", header=header(START), format="jpeg")
    name = "sensor_msgs/msg/CompressedImage"
    path = write_mcap(tmp_path / "a.mcap", {"/empty": (name, [(START, empty)]), "/cut": (name, [(START, cut)])})
    readout = read(path, on_error="skip")
    assert readout.only == {} and readout.left_out["a.mcap: /empty"] == "its images are empty"
    assert list(readout.skipped) == ["a.mcap: /cut: rows 0"]


# ---- encodings ----


def test_16_bit_brightness_has_no_unit_and_opencv_types_are_bgr(rng, tmp_path):
    brightness = rng.integers(0, 65535, (6, 10, 1)).astype(np.uint16)
    colours = rng.integers(0, 255, (6, 10, 4)).astype(np.uint8)
    name = "sensor_msgs/msg/CompressedImage"
    topics = {
        "/thermal": ("sensor_msgs/msg/Image", [(START, image(brightness, "mono16", big_endian=True))]),
        "/three": ("sensor_msgs/msg/Image", [(START, image(colours[..., :3], "8UC3"))]),
        "/four": ("sensor_msgs/msg/Image", [(START, image(colours, "8UC4"))]),
        "/plain": (name, [(START, compressed_image(brightness[..., 0], "mono16; png compressed ", "png"))]),
        "/depth": (name, [(START, compressed_image(brightness[..., 0], "16UC1; png compressed ", "png"))]),
    }
    readout = read(write_mcap(tmp_path / "a.mcap", topics), image_codec="png")
    for topic in ("/thermal", "/plain", "/depth"):
        np.testing.assert_array_equal(readout.only[topic].rows[0], brightness)
        assert readout.only[topic].part.unit_m == (0.001 if topic == "/depth" else None)
    for topic in ("/three", "/four"):
        np.testing.assert_array_equal(readout.only[topic].rows[0], colours[..., [2, 1, 0]])
        assert "blue, green, red" in readout.left_out[f"{topic}: the order of channels"]


@pytest.mark.parametrize("transport", ["raw", "png", "png with a head", "rvl"])
@pytest.mark.parametrize(
    ("topic", "unit_m"),
    [
        ("/tof/depth", 0.001),
        ("/stereo/disparity", None),
        ("/depth/confidence", None),
        ("/tof/amplitude", None),
        ("/lwir", None),
    ],
)
def test_16uc1_has_metres_only_if_its_topic_is_depth(topic, unit_m, transport, rng, tmp_path):
    pixels = rng.integers(500, 9000, (16, 24, 1)).astype(np.uint16)
    name = "sensor_msgs/msg/CompressedImage"
    if transport == "raw":
        topics = {topic: ("sensor_msgs/msg/Image", [(START, image(pixels, "16UC1"))])}
    elif transport == "png":
        topics = {topic: (name, [(START, compressed_image(pixels[..., 0], "16UC1; png compressed ", "png"))])}
    elif transport == "rvl":
        file = bytes(12) + rvl(pixels[..., 0])
        msg = message(name, header=header(START), format="16UC1; compressedDepth rvl", data=list(file))
        topics = {f"{topic}/compressedDepth": (name, [(START, msg)])}
    else:
        topics = {
            f"{topic}/compressedDepth": (
                name,
                [(START, compressed_image(pixels[..., 0], "16UC1; compressedDepth png", "png", bytes(12)))],
            )
        }
    ((_, stream),) = read(write_mcap(tmp_path / "a.mcap", topics)).only.items()
    np.testing.assert_array_equal(stream.rows[0], pixels)
    assert stream.part.unit_m == unit_m


@pytest.mark.parametrize("big_endian", [False, True])
def test_colours_of_16_bits(big_endian, rng, tmp_path):
    pixels = rng.integers(0, 65535, (6, 10, 3)).astype(np.uint16)
    topics = {
        f"/{encoding}": ("sensor_msgs/msg/Image", [(START, image(pixels, encoding, big_endian=big_endian))])
        for encoding in ("rgb16", "bgr16")
    }
    readout = read(write_mcap(tmp_path / "a.mcap", topics))
    np.testing.assert_array_equal(readout.only["/rgb16"].rows[0], pixels)
    np.testing.assert_array_equal(readout.only["/bgr16"].rows[0], pixels[..., ::-1])
    assert readout.only["/rgb16"].part.unit_m is None


def yuv(rng, encoding, height, width, padding):
    """Returns an image's bytes, the bytes of a row, and Y, U and V at every pixel, all by the formats' descriptions. Planes of
    odd size are like FFmpeg's."""
    subsampling = (1, 2) if encoding not in _PLANES else (1, 1) if encoding == "nv24" else (2, 2)
    y = rng.integers(0, 256, (height, width), np.uint8)
    u, v = rng.integers(0, 256, (2, -(-height // subsampling[0]), -(-width // subsampling[1])), np.uint8)
    rows = []
    if encoding not in _PLANES:
        order = "YUYV" if encoding in ("yuyv", "yuv422_yuy2") else "UYVY"
        for r in range(height):
            line = []
            for c in range(0, width, 2):
                luma = iter([*y[r, c : c + 2], 77])  # 77 is no pixel: the last pair of an odd row has only one
                line += [{"U": u, "V": v}[x][r, c // 2] if x in "UV" else next(luma) for x in order]
            rows.append(bytes(line) + bytes(padding))
    else:
        rows = [bytes(line) + bytes(padding) for line in y]
        if encoding == "i420":
            row_bytes = (width + padding + 1) // 2
            rows += [bytes(line).ljust(row_bytes, b"-") for plane in (u, v) for line in plane]
        else:
            first_plane, second_plane = (v, u) if encoding == "nv21" else (u, v)
            row_padding = 0 if encoding == "nv24" else padding
            row_bytes = max(2 * u.shape[1], width + row_padding)
            rows += [
                np.stack(pair, axis=1).tobytes().ljust(row_bytes, b"-")
                for pair in zip(first_plane, second_plane, strict=True)
            ]
    full = (plane.repeat(subsampling[0], 0).repeat(subsampling[1], 1)[:height, :width] for plane in (u, v))
    return b"".join(rows), len(rows[0]), (y, *full)


_PLANES = ("nv12", "nv21", "nv24", "i420")


@pytest.mark.parametrize("size", [(6, 10), (5, 7), (5, 10), (6, 9), (1, 1)])
@pytest.mark.parametrize("padding", [0, 4])
@pytest.mark.parametrize("encoding", ["yuv422", "uyvy", "yuv422_yuy2", "yuyv", *_PLANES])
def test_luma_and_chroma_are_rgb_by_bt_601(encoding, padding, size, rng, tmp_path):
    messages, expected = [], []
    for k in range(3):
        data, step, (y, u, v) = yuv(rng, encoding, *size, padding)
        y, u, v = (plane.astype(np.float64) for plane in (y, u, v))
        y = 255 / 219 * np.maximum(y - 16, 0)
        u, v = 255 / 224 * (u - 128), 255 / 224 * (v - 128)
        # ITU-R BT.601: red weighs 0.299, green 0.587, blue 0.114.
        red, blue = y + 2 * (1 - 0.299) * v, y + 2 * (1 - 0.114) * u
        green = y - 2 * (1 - 0.299) * 0.299 / 0.587 * v - 2 * (1 - 0.114) * 0.114 / 0.587 * u
        expected.append(np.clip(np.stack([red, green, blue], -1), 0, 255))
        msg = image(np.zeros((*size, 1), np.uint8), encoding, time_ns=START + k)
        msg.step, msg.data = step, np.frombuffer(data, np.uint8)
        messages.append((START + k, msg))
    readout = read(write_mcap(tmp_path / "a.mcap", {"/cam": ("sensor_msgs/msg/Image", messages)}), image_codec="png")
    assert np.abs(np.array(readout.only["/cam"].rows) - np.array(expected)).max() < 1.01
    assert "BT.601" in readout.left_out["/cam: luma and chroma"]
    messages[1][1].data = messages[1][1].data[: -2 - padding]
    path = write_mcap(tmp_path / "b.mcap", {"/cam": ("sensor_msgs/msg/Image", messages)})
    assert list(read(path, on_error="skip").skipped) == ["b.mcap: /cam: messages 1"]


@pytest.mark.parametrize(("encoding", "ffmpeg"), [("i420", "yuv420p"), ("nv12", "nv12"), ("nv24", "nv24")])
def test_planes_of_odd_sizes_equal_ffmpegs(encoding, ffmpeg, rng):
    """FFmpeg pads rows of a plane to 32 bytes; without padding a row has `width` times the bytes of its pixel."""
    av = pytest.importorskip("av")
    planes = av.VideoFrame(7, 5, ffmpeg).planes
    data, _, _ = yuv(rng, encoding, 5, 7, 0)
    pixel_bytes = 1 + (encoding != "i420")
    assert len(data) == 5 * 7 + sum(plane.height * plane.width * pixel_bytes for plane in planes[1:])


@pytest.mark.parametrize("big_endian", [False, True])
def test_a_16_bit_mosaic_becomes_8_bits(big_endian, rng, tmp_path):
    small = rng.integers(0, 256, (6, 8, 1)).astype(np.uint8)
    topics = {
        "/wide": (
            "sensor_msgs/msg/Image",
            [(START, image(small.astype(np.uint16) * 257, "bayer_rggb16", big_endian=big_endian))],
        ),
        "/small": ("sensor_msgs/msg/Image", [(START, image(small, "bayer_rggb8"))]),
    }
    readout = read(write_mcap(tmp_path / "a.mcap", topics), image_codec="png")
    np.testing.assert_array_equal(readout.only["/wide"].rows, readout.only["/small"].rows)
    assert "bayer_rggb16" in readout.left_out["/wide: the lower 8 bits"]


# ---- depth in files ----


def rvl(depth):
    """Compresses depth by RVL (Wilson, 2017): runs of zeros and of other values, zigzag differences, nibbles with a continuation bit."""
    nibbles = []

    def put(value):
        while True:
            nibbles.append(value & 7 | (8 if value > 7 else 0))
            value >>= 3
            if not value:
                return

    values, index, previous = depth.reshape(-1).astype(int).tolist(), 0, 0
    while index < len(values):
        zeros = index
        while zeros < len(values) and values[zeros] == 0:
            zeros += 1
        put(zeros - index)
        others = zeros
        while others < len(values) and values[others]:
            others += 1
        put(others - zeros)
        for value in values[zeros:others]:
            put((value - previous) * 2 if value >= previous else (previous - value) * 2 - 1)
            previous = value
        index = others
    nibbles += [0] * (-len(nibbles) % 8)
    words = [int("".join(f"{n:x}" for n in nibbles[i : i + 8]), 16) for i in range(0, len(nibbles), 8)]
    return struct.pack("<II", depth.shape[1], depth.shape[0]) + struct.pack(f"<{len(words)}I", *words)


def make_quantised_depth(rng):
    """Returns depth quantised as by the transport: (the bytes of its parameters, integers, metres)."""
    a, b = np.float32(100 * 101), np.float32(1 - 100 * 101 / 10)
    integers = rng.integers(1, 4000, (16, 24)).astype(np.uint16)
    integers[rng.random(integers.shape) < 0.3] = 0
    with np.errstate(divide="ignore"):
        metres = np.where(integers == 0, np.nan, float(a) / (integers.astype(float) - float(b)))
    return struct.pack("<iff", 1, a, b), integers, metres


@pytest.mark.parametrize("codec", ["png", "rvl"])
def test_compressed_depth(codec, rng, tmp_path):
    name = "sensor_msgs/msg/CompressedImage"
    parameters, integers, metres = make_quantised_depth(rng)

    def depth_message(k, type, header_bytes):
        if codec == "png":
            msg = compressed_image(integers, f"{type}; compressedDepth png", "png", header_bytes)
        else:
            data = np.frombuffer(header_bytes + rvl(integers), np.uint8)
            msg = message(name, format=f"{type}; compressedDepth rvl", data=data)
        msg.header = header(START + k)
        return START + k, msg

    topics = {
        "/float/compressedDepth": (name, [depth_message(k, "32FC1", parameters) for k in range(3)]),
        "/int/compressedDepth": (name, [depth_message(k, "16UC1", bytes(12)) for k in range(3)]),
    }
    readout = read(write_mcap(tmp_path / "a.mcap", topics))
    stream = readout.only["/float/compressedDepth"]
    assert stream.part.unit_m is None and stream.rows[0].dtype == np.float32
    for row in stream.rows:
        np.testing.assert_allclose(row[..., 0], metres, rtol=1e-6)
    stream = readout.only["/int/compressedDepth"]
    assert stream.part.unit_m == 0.001 and len(stream.rows) == 3
    np.testing.assert_array_equal(stream.rows[1][..., 0], integers)


@pytest.mark.parametrize("how", ["raw", "transport"])
def test_float_depth_is_in_metres_in_a_batch(how, rng, tmp_path):
    parameters, integers, metres = make_quantised_depth(rng)
    if how == "raw":
        topic, kind = "/depth", "sensor_msgs/msg/Image"
        metres = rng.uniform(0.3, 20, (6, 10))
        metres[0, :2] = np.nan, np.inf
        messages = [
            (START + k, image(metres[..., None].astype(np.float32), "32FC1", time_ns=START + k)) for k in range(3)
        ]
    else:
        topic, kind = "/depth/compressedDepth", "sensor_msgs/msg/CompressedImage"
        msg = compressed_image(integers, "32FC1; compressedDepth png", "png", parameters)
        msg.header = header(START)
        messages = [(START, msg)]
    robocache.ingest(write_mcap(tmp_path / "a.mcap", {topic: (kind, messages)}), tmp_path / "cache", progress=False)
    loader = robocache.Loader(
        tmp_path / "cache", batch_size=1, delta_timestamps={topic: None}, framework="numpy", device="cpu"
    )
    np.testing.assert_allclose(next(loader)[topic][0, 0], metres, rtol=1e-6)


def test_depth_without_the_transports_header_and_invalid_depth(rng, tmp_path):
    parameters, integers, metres = make_quantised_depth(rng)
    without_header = compressed_image(integers, "16UC1; compressedDepth png", "png", b"")
    invalid = compressed_image(integers, "32FC1; compressedDepth png", "png", bytes(12))
    valid = compressed_image(integers, "32FC1; compressedDepth png", "png", parameters)
    topics = {"/bare": [without_header, without_header], "/float": [invalid, valid]}
    for messages in topics.values():
        for k, msg in enumerate(messages):
            msg.header = header(START + k)
    name = "sensor_msgs/msg/CompressedImage"
    rows = {topic: (name, [(START + k, msg) for k, msg in enumerate(messages)]) for topic, messages in topics.items()}
    rows["/bare"] = (name, [(START, without_header)])
    readout = read(write_mcap(tmp_path / "a.mcap", rows), on_error="skip")
    stream = readout.only["/bare"]
    assert stream.part.unit_m == 0.001
    np.testing.assert_array_equal(stream.rows[0][..., 0], integers)
    np.testing.assert_allclose(readout.only["/float"].rows[0][..., 0], metres, rtol=1e-6)
    assert list(readout.skipped) == ["a.mcap: /float: messages 0"]


@pytest.mark.parametrize(
    ("format", "lossy_quantity"),
    [
        ("bayer_rggb8; jpeg compressed ", "colours"),
        ("16UC1; jpeg compressed ", "depth"),
        ("mono8; jpeg compressed ", None),
        ("16UC1; png compressed ", None),
    ],
)
def test_depth_in_8_bits_is_noted_as_lossy(format, lossy_quantity, rng, tmp_path):
    dtype = np.uint16 if "png" in format else np.uint8
    msg = compressed_image(
        rng.integers(0, 255, (16, 16)).astype(dtype), format, "png" if "png" in format else "jpeg", b""
    )
    msg.header = header(START)
    readout = read(write_mcap(tmp_path / "a.mcap", {"/c": ("sensor_msgs/msg/CompressedImage", [(START, msg)])}))
    assert len(readout.only["/c"].rows) == 1
    assert {key for key in readout.left_out if key.startswith("/c: ")} == (
        {f"/c: {lossy_quantity}"} if lossy_quantity else set()
    )


def test_damaged_rvl_is_skipped_by_message(rng, tmp_path):
    name = "sensor_msgs/msg/CompressedImage"
    _, integers, _ = make_quantised_depth(rng)
    valid = bytes(12) + rvl(integers)
    head = valid[:20]
    files = [valid, valid[:40], head, head + b"\xff" * 400, head + bytes(4), valid]
    messages = [
        (START + k, message(name, header=header(START + k), format="16UC1; compressedDepth rvl", data=list(file)))
        for k, file in enumerate(files)
    ]
    readout = read(write_mcap(tmp_path / "a.mcap", {"/d": (name, messages)}), on_error="skip")
    assert readout.only["/d"].time_ns == [START, START + 5] and list(readout.skipped) == ["a.mcap: /d: messages 1-4"]


# ---- Foxglove's messages in JSON and protobuf ----


STAMP = {"sec": START // 10**9, "nsec": START % 10**9}


def encode_base64(data):
    return base64.b64encode(data).decode()


def test_images_in_json_are_images(rng, tmp_path):
    pictures = rng.integers(0, 255, (4, 6, 10, 3)).astype(np.uint8)
    raw = [
        {"timestamp": STAMP, "frame_id": "cam", "width": 10, "height": 6, "encoding": "bgr8", "step": 30}
        | {"data": encode_base64(picture.tobytes())}
        for picture in pictures
    ]
    raw[2]["data"] = "no base64!"
    path = write_json(tmp_path / "raw.mcap", raw, "foxglove.RawImage")
    with pytest.raises(SourceError, match=r"data: message 2: "):
        read(path)
    readout = read(path, on_error="skip", image_codec="png")
    np.testing.assert_array_equal(readout.only["data"].rows, pictures[[0, 1, 3]][..., ::-1])
    files = [
        {"timestamp": STAMP, "frame_id": "cam", "format": "png"}
        | {"data": encode_base64(bytes(compressed_image(picture, "png", "PNG").data))}
        for picture in pictures
    ]
    readout = read(write_json(tmp_path / "files.mcap", files, "foxglove.CompressedImage"))
    np.testing.assert_array_equal(readout.only["data"].rows, pictures)
    note = {"format": "markdown", "data": "aGVsbG8="}
    assert read(write_json(tmp_path / "words.mcap", [note], "Note")).only["data/data"].rows == ["aGVsbG8="]


FOXGLOVE_POINT = np.dtype(
    [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("intensity", "u1"), ("ring", "<i2"), ("rgba", "<u4")]
)
FOXGLOVE_FIELDS = [("x", 0, 7), ("y", 4, 7), ("z", 8, 7), ("intensity", 12, 1), ("ring", 13, 4), ("rgba", 15, 5)]


def foxglove_cloud():
    """Returns the message class foxglove.PointCloud, with a pose, and its descriptors."""
    file = descriptor_pb2.FileDescriptorProto(name="foxglove/PointCloud.proto", package="foxglove", syntax="proto3")
    Field = descriptor_pb2.FieldDescriptorProto

    def add(name, /, **fields):
        msg = file.message_type.add(name=name)
        for number, (field, (type, is_repeated)) in enumerate(fields.items(), 1):
            label = Field.LABEL_REPEATED if is_repeated else Field.LABEL_OPTIONAL
            if isinstance(type, str):
                field_type = Field.TYPE_ENUM if type.endswith("NumericType") else Field.TYPE_MESSAGE
                msg.field.add(name=field, number=number, type=field_type, label=label, type_name=f".foxglove.{type}")
            else:
                msg.field.add(name=field, number=number, type=type, label=label)
        return msg

    double = (Field.TYPE_DOUBLE, False)
    add("Time", seconds=(Field.TYPE_INT64, False), nanos=(Field.TYPE_INT32, False))
    add("Vector3", x=double, y=double, z=double)
    add("Quaternion", x=double, y=double, z=double, w=double)
    add("Pose", position=("Vector3", False), orientation=("Quaternion", False))
    element = add(
        "PackedElementField", name=(Field.TYPE_STRING, False), offset=(Field.TYPE_FIXED32, False),
        type=("PackedElementField.NumericType", False),
    )  # fmt: skip
    numbers = element.enum_type.add(name="NumericType")
    for number, name in enumerate(
        ["UNKNOWN", "UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32", "FLOAT64"]
    ):
        numbers.value.add(name=name, number=number)
    add(
        "PointCloud", timestamp=("Time", False), frame_id=(Field.TYPE_STRING, False), pose=("Pose", False),
        point_stride=(Field.TYPE_FIXED32, False), fields=("PackedElementField", True), data=(Field.TYPE_BYTES, False),
    )  # fmt: skip
    pool = DescriptorPool()
    pool.Add(file)
    msg = GetMessageClass(pool.FindMessageTypeByName("foxglove.PointCloud"))
    return msg, descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


@pytest.mark.parametrize(("encoding", "with_enum_names"), [("protobuf", False), ("json", False), ("json", True)])
def test_foxgloves_clouds(encoding, with_enum_names, rng, tmp_path):
    """The JSON of protobuf has names of enumerations instead of their numbers."""
    counts = [0, 5, 7, 3, 6]
    clouds = [random_points(rng, FOXGLOVE_POINT, n) for n in counts]
    payloads = []
    PointCloud, descriptors = foxglove_cloud()
    for k, points in enumerate(clouds):
        stride = FOXGLOVE_POINT.itemsize
        data = points.tobytes() + b"odd" * (k == 3)
        if encoding == "json":
            fields = [dict(zip(("name", "offset", "type"), field, strict=True)) for field in FOXGLOVE_FIELDS]
            types = PointCloud.DESCRIPTOR.fields_by_name["fields"].message_type.enum_types_by_name["NumericType"]
            name_of = {value.number: value.name for value in types.values}
            fields = [field | {"type": name_of[field["type"]]} for field in fields] if with_enum_names else fields
            pose = {"position": {"x": k + 0.5, "y": 0, "z": 0}, "orientation": {"x": 0, "y": 0, "z": 0, "w": 1}}
            point_cloud = {
                "timestamp": STAMP,
                "frame_id": "lidar",
                "pose": pose,
                "point_stride": stride,
                "fields": fields,
            }
            payloads.append((START + k, json.dumps(point_cloud | {"data": encode_base64(data)}).encode()))
        else:
            point_cloud = PointCloud(frame_id="lidar", point_stride=stride, data=data)
            point_cloud.timestamp.seconds, point_cloud.timestamp.nanos = divmod(START, 10**9)
            point_cloud.pose.position.x, point_cloud.pose.orientation.w = k + 0.5, 1
            for name, offset, type in FOXGLOVE_FIELDS:
                point_cloud.fields.add(name=name, offset=offset, type=type)
            payloads.append((START + k, point_cloud.SerializeToString()))
    schema = {"json": ("foxglove.PointCloud", "jsonschema", b"{}")}
    schema["protobuf"] = ("foxglove.PointCloud", "protobuf", descriptors)
    path = write_channel(tmp_path / "a.mcap", encoding, schema[encoding], payloads)
    with pytest.raises(SourceError, match=r"data: message 3: expected 1x4 points of 19 bytes"):
        read(path)
    readout = read(path, on_error="skip")
    assert readout.only["data"].names == ["x", "y", "z"]
    kept_clouds = [clouds[k] for k in (0, 1, 2, 4)]
    for row, points in zip(readout.only["data"].rows, kept_clouds, strict=True):
        assert row.tobytes() == np.stack([points[name] for name in "xyz"], axis=1).tobytes()
    for name in ("intensity", "ring"):
        for row, points in zip(readout.only[f"data/{name}"].rows, kept_clouds, strict=True):
            np.testing.assert_array_equal(row, points[name])
    for row, points in zip(readout.only["data/rgba"].rows, kept_clouds, strict=True):
        packed = points["rgba"]
        colours = np.stack([packed >> 16 & 255, packed >> 8 & 255, packed & 255, packed >> 24], axis=1)
        np.testing.assert_array_equal(row, colours)
    assert np.array(readout.only["data/pose"].rows)[:, [0, 6]].tolist() == [[k + 0.5, 1] for k in (0, 1, 2, 4)]


def test_realsense_depth_has_its_sensors_unit(rng, tmp_path):
    """RealSense's recorder declares depth as mono16."""
    pixels = rng.integers(0, 65535, (6, 10, 1)).astype(np.uint16)
    unit = message("std_msgs/msg/Float32", data=0.00025)
    topics = {
        "/device_0/sensor_0/Depth_0/image/data": ("sensor_msgs/msg/Image", [(START, image(pixels, "mono16"))]),
        "/device_0/sensor_0/Infrared_1/image/data": ("sensor_msgs/msg/Image", [(START, image(pixels, "mono16"))]),
        "/device_0/sensor_0/option/Depth_Units/value": ("std_msgs/msg/Float32", [(START, unit)]),
    }
    streams = read(write_mcap(tmp_path / "a.mcap", topics)).only
    assert streams["/device_0/sensor_0/Depth_0/image/data"].part.unit_m == 0.00025
    assert streams["/device_0/sensor_0/Infrared_1/image/data"].part.unit_m is None
