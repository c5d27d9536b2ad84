"""Cameras in a cache: frames are read back as they were appended, encoded or raw; other values are refused."""

import io
import os
import pickle
import resource
import shutil
import signal

import numpy as np
import pytest
from cache_files import append_files
from PIL import Image
from robocache.dataset import EncodedFrames

import robocache
from robocache import ArgumentError, ArgumentTypeError, FrameError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


def pictures(rng, n, height=24, width=32, channels=3):
    """Returns n pictures without sharp edges, sums of a few waves: uint8 [n, H, W, C]."""
    y, x = np.mgrid[0:height, 0:width][..., None] / 8.0
    phase = rng.uniform(0, 6, (n, 1, 1, channels))
    return (127 + 60 * np.sin(x + phase) + 60 * np.sin(y - 2 * phase)).astype(np.uint8)


def encode(picture, **options):
    buffer = io.BytesIO()
    Image.fromarray(picture.squeeze()).save(buffer, **options)
    return buffer.getvalue()


def decode_with_pillow(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def write(path, values, *, time_ns=None, describe=None, **options):
    with robocache.Writer(path) as writer:
        if describe:
            writer.stream("cam", **describe)
        with writer.episode() as episode:
            episode.append("cam", np.arange(len(values)) if time_ns is None else time_ns, values, **options)
    return robocache.open(path, verify=True).streams["cam"]


# ---- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "dtype"),
    [("png", np.uint8), ("png", np.uint16), ("raw", np.uint8), ("raw", np.uint16), ("raw", np.float32)],
)
@pytest.mark.parametrize("channels", [None, 1, 3])
def test_lossless_codecs_round_trip(path, rng, codec, dtype, channels):
    shape = (5, 7, 9) if channels is None else (5, 7, 9, channels)
    values = rng.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), shape, np.uint32).astype(dtype)
    stream = write(path, values, codec=codec)
    assert stream.shape == (7, 9, channels or 1) and stream.rows == 5 and stream.dtype == dtype
    assert np.array_equal(stream[:], values.reshape(5, 7, 9, -1))
    assert np.array_equal(np.asarray(stream.values), values.reshape(5, 7, 9, -1))
    expected = {1: "gray" if dtype == np.uint8 else "depth", 3: "rgb"}[channels or 1]
    assert stream.frames == (codec, 7, 9, channels or 1, expected, None, None, None)
    assert isinstance(stream.values, EncodedFrames) == (codec == "png")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4"])
def test_pillow_decodes_jpeg_rows(path, rng, channels, subsampling):
    values = pictures(rng, 4, channels=channels)
    stream = write(path, values, codec="jpeg", quality=90, subsampling=subsampling)
    assert stream.frames[:5] == ("jpeg", 24, 32, channels, "rgb" if channels == 3 else "gray")
    for row in range(4):
        begin, end = stream.values.offsets[row : row + 2]
        by_pillow = decode_with_pillow(stream.values.data[begin:end].tobytes()).reshape(24, 32, channels)
        assert np.array_equal(stream.frame(row), by_pillow)
        error = stream.frame(row).astype(float) - values[row]
        assert 10 * np.log10(255**2 / np.mean(error**2)) > 30
    worse = write(path.parent / "worse", values, codec="jpeg", quality=20)
    assert len(worse.values.data) < len(stream.values.data)


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_appended_files_keep_their_bytes(path, rng, format):
    files = [encode(picture, format=format) for picture in pictures(rng, 3)]
    stream = write(path, files)
    assert stream.frames.codec == format.lower()
    for row, file in enumerate(files):
        assert np.array_equal(stream.frame(row), decode_with_pillow(file))
    if format == "PNG":
        assert stream.values.data.tobytes() == b"".join(files)


def test_many_appends_are_one_stream(path, rng):
    values = pictures(rng, 12)
    with robocache.Writer(path) as writer:
        for number in range(3):
            with writer.episode() as episode:
                for row in range(4 * number, 4 * number + 4, 2):
                    episode.append("cam", [row, row], values[row : row + 2], codec="png")
    ds = robocache.open(path, verify=True)
    assert np.array_equal(ds.streams["cam"][:], values)
    assert ds.streams["cam"].row_offsets.tolist() == [0, 4, 8, 12]
    assert ds.streams["cam"].findings["duplicates"] == 6
    time_ns, frames = ds.episode(1)["cam"]
    assert time_ns.tolist() == [4, 4, 6, 6]
    assert frames.shape == (4, 24, 32, 3) and np.array_equal(frames[1:3], values[5:7])
    assert np.array_equal(frames, values[4:8])


def test_rows_are_indexed_like_an_array(path, rng):
    values = pictures(rng, 6)
    stream = write(path, values, codec="png")
    mask = np.zeros(6, bool)
    mask[[1, 5]] = True
    for rows in (0, -1, np.int64(3), slice(1, 4), slice(None, None, -2), [4, 0, 4], np.array([-1, 2]), mask, ...):
        assert np.array_equal(stream[rows], values[rows]), rows
    assert stream[[]].shape == (0, 24, 32, 3)
    for row in (6, -7):
        with pytest.raises(IndexError):
            stream[row]
        with pytest.raises(IndexError):
            stream[[row]]
    assert [frame.shape for frame in stream.values] == [(24, 32, 3)] * 6
    assert np.asarray(stream.values, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="copy: expected True or None"):
        stream.values.__array__(copy=False)
    assert repr(stream) == "Stream('cam', [6, 24, 32, 3] uint8 png rgb, 1e+09 Hz)"
    assert repr(stream.values) == "EncodedFrames([6, 24, 32, 3] uint8, 'cam')"


def test_attributes_of_a_camera_are_kept(path, rng):
    matrix = [[300.5, 0, 160], [0, 300, 120], [0, 0, 1]]
    resized = {"size": [24, 32], "fit": "pad", "from": [480, 640]}
    options = {"clock": "nominal", "unit_m": 0.001, "intrinsics": matrix, "resized": resized}
    stream = write(path, pictures(rng, 2, channels=1), codec="png", describe=options)
    assert stream.frames[:6] == ("png", 24, 32, 1, "depth", 0.001)
    assert stream.frames.intrinsics.dtype == np.float64 and stream.frames.intrinsics.tolist() == matrix
    assert stream.frames.resized == resized and stream.clock == "nominal"


def test_an_array_without_a_codec_is_a_stream_of_numbers(path, rng):
    values = pictures(rng, 3)
    stream = write(path, values)
    assert stream.frames is None and np.array_equal(stream.values, values)
    with pytest.raises(ArgumentError, match="stream 'cam': "):
        stream.frame(0)


def test_a_camera_has_no_statistics(path, rng):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("cam", [0, 1], pictures(rng, 2), codec="raw")
        episode.append("x", [0], [1.5])
    ds = robocache.open(path)
    assert list(ds.stats) == ["x"] and "cam" not in ds.stats
    with pytest.raises(ArgumentError, match="stream 'cam': expected rows of numbers of one shape; cameras"):
        ds.stats["cam"]
    with pytest.raises(ArgumentError, match="stream: "):
        ds.stats["y"]
    assert list(robocache.merge_stats([ds.stats, ds.stats])) == ["x"]
    assert ds.select({}) == [0] and ds.split({"train": 1.0}) == {"train": [0]}
    assert np.array_equal(pickle.loads(pickle.dumps(ds)).streams["cam"][:], ds.streams["cam"][:])


# ---- refused ---------------------------------------------------------------------------------------------------------


def test_values_that_are_no_frames_are_refused_and_add_nothing(path, rng):
    values = pictures(rng, 3)
    png, jpeg = encode(values[0], format="PNG"), encode(values[0], format="JPEG")
    other = encode(values[0, :8], format="PNG")
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("cam", [0], [png])
        episode.append("x", [0], [1.0])
        for error, match, arguments in [
            (ArgumentError, "'cam': expected png frames of rgb as in its first rows", ([1], [jpeg])),
            (ArgumentError, r"'cam': expected values of shape \[n, 24, 32, 3\]", ([1], [other])),
            (ArgumentError, "'cam': expected one offset more than the 2 png frames", ([1, 2], [png])),
            (ArgumentError, "'cam': expected times that do not decrease", ([-1], [png])),
            (ArgumentTypeError, "'cam': expected times in int64", ([1.5], [png])),
            (FrameError, "'cam': ", ([1], [b""])),
            (FrameError, "'cam': ", ([1], [png[:-30]])),
            (FrameError, "'cam': ", ([1, 2], [png, other])),
            (ArgumentTypeError, "'cam': ", ([1, 2], [png, 3])),
        ]:
            with pytest.raises(error, match=f"^stream {match}"):
                episode.append("cam", *arguments)
        for error, match, stream, frames, options in [
            (ArgumentError, "codec: expected 'png'", "cam", [png], {"codec": "jpeg"}),
            (ArgumentError, "expected png frames of rgb as in its first rows", "cam", values[:1], {}),
            (ArgumentError, "expected numbers as in its first rows", "x", [png], {}),
            (ArgumentError, "", "new", values[:1], {"codec": "gif"}),
            (ArgumentError, "", "new", values[:1], {"codec": "jpeg", "quality": 101}),
            (ArgumentError, "", "new", values[:1], {"codec": "jpeg", "subsampling": "4:1:1"}),
            (ArgumentError, "", "new", values[0, 0], {"codec": "raw"}),
            (ArgumentError, "", "new", values[:1, ..., :2], {"codec": "raw"}),
            (robocache.Error, "", "new", values.astype(np.float64), {"codec": "raw"}),
            (robocache.Error, "", "new", values.astype(np.uint16), {"codec": "jpeg"}),
        ]:
            with pytest.raises(error, match=f"^stream '{stream}': {match}"):
                episode.append(stream, np.arange(len(frames)) + 1, frames, **options)
    ds = robocache.open(path, verify=True)
    assert set(ds.streams) == {"cam", "x"}
    assert ds.streams["cam"].rows == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"unit_m": 0.0}, "expected a unit_m above 0"),
        ({"unit_m": -1}, "expected a unit_m above 0"),
        ({"unit_m": "mm"}, "unit_m: expected"),
        ({"intrinsics": [1, 2, 3]}, "intrinsics: "),
        ({"intrinsics": np.full((3, 3), np.nan)}, "intrinsics: "),
        ({"intrinsics": "K"}, "intrinsics: "),
        ({"resized": 3}, "resized: "),
        ({"resized": {"size": {1}}}, "resized 'size': expected str, int"),
    ],
)
def test_invalid_camera_options_are_refused(path, rng, options, match):
    with (
        pytest.raises((ArgumentError, ArgumentTypeError), match=f"^stream 'cam': {match}"),
        robocache.Writer(path) as writer,
    ):
        writer.stream("cam", **options)
        with writer.episode() as episode:
            episode.append("cam", [0], pictures(rng, 1, channels=1), codec="raw")
    assert not path.exists()


def test_appended_frames_keep_their_unit_and_intrinsics(path, rng):
    depth = rng.integers(0, 5000, (2, 8, 8)).astype(np.uint16)
    with robocache.Writer(path) as writer:
        writer.stream("depth", unit_m=0.01)
        writer.stream("depth", unit_m=0.001)  # no frame has the other unit
        for _ in range(2):
            with writer.episode() as episode:
                episode.append("depth", [0, 1], depth, codec="png")
            for options in ({"unit_m": 0.0001}, {"intrinsics": np.eye(3)}, {"resized": {"size": [4, 4]}}):
                with pytest.raises(ArgumentError, match=r"^stream 'depth': expected unit_m.*its appended frames have"):
                    writer.stream("depth", **{"unit_m": 0.001} | options)
            writer.stream("depth", unit_m=0.001)
    assert robocache.open(path).streams["depth"].frames.unit_m == 0.001


def test_numbers_are_no_camera(path):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("x", [0], [1.0])
        with pytest.raises(ArgumentError, match="stream 'x': "):
            writer.stream("x", intrinsics=np.eye(3))


def test_jpegs_encoded_anew_are_counted(path, rng):
    files = [encode(picture, format="JPEG", keep_rgb=True) for picture in pictures(rng, 2)]
    with pytest.warns(robocache.ReencodedWarning, match="stream 'cam': 2 JPEGs ") as warned:
        stream = write(path, files)
    assert warned[0].filename == __file__
    assert np.abs(stream.frame(0).astype(int) - decode_with_pillow(files[0])).mean() < 3


def test_reading_a_frame_that_does_not_decode_names_it(path):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        append_files(episode, "cam", [0, 1], [b"one", b"two"], codec="png")
    stream = robocache.open(path, verify=True).streams["cam"]
    with pytest.raises(FrameError, match=r"^stream 'cam': .*1"):
        stream.frame(1)


# ---- many frames, and failures ---------------------------------------------------------------------------------------


def test_a_hundred_thousand_frames(path, rng):
    sizes = rng.integers(0, 60, 100_000)
    data = rng.bytes(int(sizes.sum()))
    file_ends = np.cumsum(sizes)
    files = [data[end - size : end] for end, size in zip(file_ends, sizes, strict=True)]
    with robocache.Writer(path) as writer:
        for number in range(100):
            with writer.episode() as episode:
                for begin in range(1000 * number, 1000 * number + 1000, 125):
                    append_files(episode, "cam", np.arange(begin, begin + 125), files[begin : begin + 125])
    stream = robocache.open(path, verify=True).streams["cam"]
    assert np.array_equal(stream.values.offsets, [0, *file_ends])
    assert stream.values.data.tobytes() == data
    assert np.array_equal(stream.time_ns, np.arange(100_000))
    assert np.array_equal(stream.row_offsets, np.arange(0, 100_001, 1000))


def test_a_dropped_episode_leaves_no_frames(path, rng):
    values = pictures(rng, 4)
    with robocache.Writer(path) as writer:
        with writer.episode() as episode:
            episode.append("cam", [0, 1], values[:2], codec="png")
        with pytest.raises(RuntimeError), writer.episode() as episode:
            episode.append("cam", [5], values[2:3], codec="png")
            append_files(episode, "cam", [6], [bytes(3_000_000)], shape=(24, 32, 3))
            episode.append("other", [5], values[2:3], codec="jpeg")
            raise RuntimeError
        with writer.episode() as episode:
            episode.append("cam", [3], values[3:], codec="png")
    ds = robocache.open(path, verify=True)
    assert list(ds.streams) == ["cam"]
    assert np.array_equal(ds.streams["cam"][:], values[[0, 1, 3]])


def test_a_full_disk_loses_one_episode(path, rng):
    """A limit on the size of files imitates the full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with robocache.Writer(path) as writer:
            with writer.episode() as episode:
                append_files(episode, "cam", [0], [b"first"])
            resource.setrlimit(resource.RLIMIT_FSIZE, (2_500_000, before[1]))
            refused = pytest.raises(robocache.FileError, match=r"cam/values.npy: writing at byte .*: File too large")
            with refused, writer.episode() as episode:
                append_files(episode, "cam", [1], [b"second"])
                for row in range(2, 100):  # the error is reported after some frames were queued for the disk
                    append_files(episode, "cam", [row], [rng.bytes(1_000_000)])
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            with writer.episode() as episode:
                append_files(episode, "cam", [2], [b"third"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    stream = robocache.open(path, verify=True).streams["cam"]
    assert stream.values.data.tobytes() == b"firstthird"
    assert stream.values.offsets.tolist() == [0, 5, 10]


def test_a_cache_of_version_1_can_be_overwritten(path):
    shutil.copytree(os.path.join(os.path.dirname(__file__), "..", "..", "golden", "cache_v1"), path)
    with robocache.Writer(path, overwrite=True) as writer, writer.episode() as episode:
        append_files(episode, "cam", [0], [b"frame"])
    assert robocache.open(path, verify=True).streams["cam"].values.data.tobytes() == b"frame"
