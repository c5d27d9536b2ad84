"""Encoding and decoding of frames against Pillow, which has its own libjpeg-turbo and PNG decoder."""

import io
import itertools
import os
import re
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest

import robocache
from robocache import frames

pytest.importorskip("PIL", reason="no Pillow to compare pixels with")
from pictures import SIZES, jpeg_file, picture, pillow_file, pillow_pixels, png_chunk, png_file
from PIL import Image


def decode_all(encoded, rows=None):
    rows = range(len(encoded.offsets) - 1) if rows is None else rows
    return frames.decode(encoded.codec, encoded.data, encoded.offsets, encoded.shape, encoded.dtype, rows)


def files_of(encoded):
    return [encoded.data[a:b].tobytes() for a, b in itertools.pairwise(encoded.offsets)]


# ---- encode ----


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_encoded_jpegs_equal_pillows(rng, height, width, channels, subsampling):
    pixels = np.stack([picture(rng, height, width, channels) for _ in range(2)])
    result = frames.encode(pixels, quality=90, subsampling=subsampling)
    assert (result.codec, result.color_space, result.dtype) == ("jpeg", "rgb" if channels == 3 else "gray", np.uint8)
    assert result.shape == (height, width, channels) and result.reencoded == {}
    for file, decoded, frame in zip(files_of(result), decode_all(result), pixels, strict=True):
        np.testing.assert_array_equal(decoded, pillow_pixels(file))
        pillows_file = pillow_file(frame, "JPEG", quality=90, subsampling=subsampling)
        np.testing.assert_array_equal(decoded, pillow_pixels(pillows_file))


@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, 1), (np.uint8, 3), (np.uint16, 1), (np.uint16, 3)])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_encoded_pngs_round_trip(rng, height, width, dtype, channels):
    pixels = np.stack([picture(rng, height, width, channels, dtype) for _ in range(2)])
    result = frames.encode(pixels, "png")
    assert (result.codec, result.dtype, result.shape) == ("png", dtype, (height, width, channels))
    assert result.color_space == ("rgb" if channels == 3 else "gray" if dtype == np.uint8 else "depth")
    np.testing.assert_array_equal(decode_all(result), pixels)
    if (dtype, channels) != (np.uint16, 3):  # Pillow cuts these to 8 bits
        np.testing.assert_array_equal(pillow_pixels(files_of(result)[0]), pixels[0])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_raw_frames_are_their_pixels(rng, dtype):
    pixels = (rng.random((5, 4, 6)) * 250).astype(dtype)
    result = frames.encode(pixels, "raw")
    assert (result.codec, result.shape, result.dtype, result.offsets.tolist()) == ("raw", (4, 6, 1), dtype, [])
    assert result.color_space == ("gray" if dtype == np.uint8 else "depth")
    assert result.data.tobytes() == pixels.tobytes()
    for offsets in (result.offsets, None):
        got = frames.decode("raw", result.data, offsets, result.shape, result.dtype, [4, 0, 4])
        np.testing.assert_array_equal(got, pixels[[4, 0, 4]][..., None])
    np.testing.assert_array_equal(frames.decode("raw", pixels, None, (4, 6, 1), dtype, [3])[0, ..., 0], pixels[3])


@pytest.mark.parametrize(("dtype", "codec"), [(">u2", "raw"), (">f4", "raw"), (">u2", "png")])
def test_pixels_of_the_other_byte_order_keep_their_values(dtype, codec):
    pixels = np.array([[[1, 2, 300], [4, 5, 6]]], dtype)
    encoded = frames.encode(pixels, codec)
    decoded = frames.decode(codec, encoded.data, encoded.offsets, encoded.shape, encoded.dtype, [0])
    np.testing.assert_array_equal(decoded[0, ..., 0], [[1, 2, 300], [4, 5, 6]])


def test_encode_takes_lists_and_arrays_with_gaps(rng):
    pixels = rng.integers(0, 255, (3, 20, 60, 3)).astype(np.uint8)
    encoded = frames.encode(pixels[::2, ::2, ::3])
    assert encoded.data.tobytes() == frames.encode(list(pixels[::2, ::2, ::3].copy())).data.tobytes()
    assert frames.encode(np.zeros((0, 8, 8, 3), np.uint8)).offsets.tolist() == [0]


def test_files_do_not_depend_on_the_number_of_threads(rng, threads):
    pixels = np.stack([picture(rng, 40, 56) for _ in range(9)])
    result = {}
    for count in (1, 3):
        threads(count)
        jpeg = frames.encode(pixels)
        result[count] = (jpeg.data.tobytes(), jpeg.offsets.tolist(), decode_all(jpeg).tobytes())
    assert result[1] == result[3]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.zeros((8, 8), np.uint8),), robocache.ArgumentError, r"frames: expected \[n, H, W\]"),
        (([np.zeros((8, 8)), np.zeros((8, 9))],), robocache.ArgumentError, "frames: .* a list of arrays of one shape"),
        ((np.zeros((1, 8, 8), np.uint8), "jpeg", 2**32 + 95), robocache.ArgumentError, "quality"),
        ((np.zeros((1, 8, 8, 2), np.uint8),), robocache.ArgumentError, r"frames: expected sides .* \[8, 8, 2\]"),
        ((np.zeros((1, 8, 8, 2), np.uint8), "raw"), robocache.ArgumentError, r"frames: expected \[n, H, W, 1 or 3\]"),
        ((np.zeros((1, 0, 8), np.uint8),), robocache.ArgumentError, r"frames: expected sides"),
        ((np.zeros((1, 8, 8), np.uint16),), robocache.ArgumentTypeError, "frames: expected uint8 for jpeg, got uint16"),
        ((np.zeros((1, 8, 8), np.float32), "png"), robocache.ArgumentTypeError, "expected uint8 or uint16 for png"),
        ((np.zeros((1, 8, 8), np.float64), "raw"), robocache.ArgumentTypeError, "expected uint8, uint16 or float32"),
        ((np.zeros((1, 8, 8), np.uint8), "webp"), robocache.ArgumentError, "webp"),
        ((np.zeros((1, 8, 8), np.uint8), "jpeg", 0), robocache.ArgumentError, "quality: expected 1 to 100, got 0"),
        ((np.zeros((1, 8, 8), np.uint8), "jpeg", 9.5), robocache.ArgumentTypeError, "quality: expected a whole number"),
        ((np.zeros((1, 8, 8), np.uint8), "jpeg", 2**40), robocache.ArgumentError, "quality"),
        ((np.zeros((1, 8, 8), np.uint8), "jpeg", 90, "4:1:1"), robocache.ArgumentError, "subsampling: expected"),
        ((np.zeros((1, 8, 8), np.uint8), "jpeg", 90, None), robocache.ArgumentTypeError, "subsampling"),
    ],
)
def test_encode_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        frames.encode(*arguments)


# ---- take ----


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 95},
        {"quality": 40, "optimize": True},
        {"progressive": True},
        {"subsampling": "4:4:4"},
        {"subsampling": "4:2:2"},
        {"restart_marker_blocks": 5},
        {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"},  # turned by 90 degrees
    ],
)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_taken_jpegs_keep_every_pixel(rng, height, width, options):
    files = [pillow_file(picture(rng, height, width), "JPEG", **options) for _ in range(3)]
    taken = frames.take(files)
    assert (taken.codec, taken.color_space, taken.shape) == ("jpeg", "rgb", (height, width, 3))
    assert taken.reencoded == {}
    for file, pixels, taken_file in zip(files, decode_all(taken), files_of(taken), strict=True):
        np.testing.assert_array_equal(pixels, pillow_pixels(file))
        np.testing.assert_array_equal(pixels, pillow_pixels(taken_file))
        # A restart marker follows each MCU with 4:2:0, every second one otherwise.
        mcus = 2 if "subsampling" in options else 1
        assert b"\xff\xdd\x00\x04" + struct.pack(">H", mcus) in taken_file
        assert b"Exif" not in taken_file


def test_jpegs_that_store_rgb_are_encoded_anew_and_counted(rng):
    pixels = [picture(rng, 24, 40) for _ in range(3)]
    files = [pillow_file(frame, "JPEG", quality=90, keep_rgb=n != 1) for n, frame in enumerate(pixels)]
    taken = frames.take(files)
    assert taken.reencoded == {"it stores RGB, not YCbCr": 2}
    expected = [pillow_pixels(file) for file in files]
    for n in (0, 2):
        reencoded_file = pillow_file(expected[n], "JPEG", quality=95, subsampling="4:4:4")
        np.testing.assert_array_equal(decode_all(taken)[n], pillow_pixels(reencoded_file))
    np.testing.assert_array_equal(decode_all(taken)[1], expected[1])


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16", "P", "1"])
def test_taken_pngs_are_kept_byte_for_byte(rng, mode):
    frame = picture(rng, 21, 34, 3 if mode in ("RGB", "P") else 1, np.uint16 if mode == "I;16" else np.uint8)
    file = pillow_file(frame, "PNG", None if mode == "I;16" else mode)
    taken = frames.take([file, file])
    assert files_of(taken) == [file, file]
    expected = pillow_pixels(file)
    if mode == "P":
        expected = np.asarray(Image.fromarray(frame).convert("P").convert("RGB"))
    elif mode == "1":
        expected = expected.astype(np.uint8) * 255
    np.testing.assert_array_equal(decode_all(taken)[1], expected)


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(
    ("depth", "color", "count"),
    [
        *((depth, 0, 1) for depth in (1, 2, 4, 8, 16)),
        *((depth, 3, 1) for depth in (1, 2, 4, 8)),
        *((depth, color, count) for depth in (8, 16) for color, count in ((2, 3), (4, 2), (6, 4))),
    ],
)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (8, 8), (19, 13)])
def test_every_kind_of_png(rng, height, width, depth, color, count, interlaced):
    samples = rng.integers(0, 2**depth, (height, width, count))
    expected = samples
    palette = None
    if color in (4, 6):
        samples[..., -1] = 2**depth - 1
        expected = samples[..., :-1]
    elif color == 3:
        palette = rng.integers(0, 256, (2**depth, 3))
        expected = palette[samples[..., 0]]
    elif depth < 8:
        expected = samples * 255 // (2**depth - 1)
    file = png_file(samples, depth, color, interlaced=interlaced, palette=palette, splits=3)
    if depth <= 8 and (color, depth) != (0, 2):  # Pillow reads all of these
        mode = "L" if color in (0, 4) else "RGB"
        np.testing.assert_array_equal(
            np.asarray(Image.open(io.BytesIO(file)).convert(mode)).reshape(expected.shape), expected
        )
    taken = frames.take([file])
    assert taken.dtype == (np.uint16 if depth == 16 else np.uint8)
    np.testing.assert_array_equal(decode_all(taken)[0], expected)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (png_file(np.full((2, 2, 4), 200), 8, 6), "row 0 has a pixel that is not opaque"),
        (png_file(np.full((2, 2, 2), 65534), 16, 4), "row 0 has a pixel that is not opaque"),
        (png_file(np.full((2, 2, 1), 3), 4, 3, palette=[(0, 0, 0)] * 3), "row 0 has a colour after the palette's last"),
        (png_file(np.full((2, 2, 1), 3), 4, 3), "expected a palette before IDAT"),
        (png_file(np.full((2, 2, 1), 3), 4, 3, palette=[(0, 0, 0)] * 257), "a palette of 771 bytes"),
        (png_file(np.zeros((2, 2, 3)), 8, 2, more=png_chunk(b"tRNS", b"123456")), "transparent colours"),
        (png_file(np.zeros((2, 2, 3)), 8, 2, more=png_chunk(b"ABCD", b"")), "unknown critical chunk ABCD"),
        (png_file(np.zeros((2, 2, 1)), 8, 1), "its header has values that PNG does not have"),
        (png_file(np.zeros((2, 2, 1)), 3, 0), "its header has values that PNG does not have"),
        (png_file(np.zeros((0, 2, 1)), 8, 0), r"expected sides of 1 to 65500, got \[0, 2, 1\] uint8"),
        (png_file(np.zeros((2, 2, 1)), 8, 0).replace(b"IEND", b"IEN\xff"), "no chunk"),
    ],
)
def test_take_refuses_damaged_pngs(file, text):
    with pytest.raises(robocache.FrameError, match=rf"frames\[0\]: PNG.*{text}"):
        frames.take([file])


def grey_png(*parts, between=b""):
    """Returns a grey PNG of 3 x 2 whose IDAT chunks hold `parts`; `between` stands after the first IDAT chunk."""
    file = png_file(np.zeros((2, 3, 1)), 8, 0)
    chunks = [png_chunk(b"IDAT", part) for part in parts]
    return file[: file.index(b"IDAT") - 4] + between.join(chunks[:2]) + b"".join(chunks[2:]) + png_chunk(b"IEND", b"")


ROWS = b"\0abc\0def"


def deflate_rows(**options):
    deflate = zlib.compressobj(**options)
    return deflate.compress(ROWS) + deflate.flush()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (grey_png(), "does not inflate"),
        (grey_png(b""), "does not inflate"),
        (grey_png(zlib.compress(ROWS)[:-1]), "does not inflate"),  # all rows are complete, their checksum is cut
        (grey_png(zlib.compress(ROWS)[:-5]), "does not inflate"),
        (grey_png(zlib.compress(ROWS)[:-4] + b"\0\0\0\0"), "does not inflate"),
        (grey_png(deflate_rows(zdict=ROWS)), "does not inflate"),
        (grey_png(deflate_rows(wbits=-15)), "does not inflate"),
        (grey_png(zlib.compress(ROWS) + b"\0"), "bytes after the end of the data"),
        (grey_png(zlib.compress(ROWS), b"\0"), "bytes after the end of the data"),
        (grey_png(zlib.compress(ROWS[:-1])), "expected 8 bytes of pixels, got 7"),
        (grey_png(zlib.compress(ROWS + b"\0")), "more pixels than its header says"),
        (grey_png(zlib.compress(ROWS + bytes(10**6))), "more pixels than its header says"),
        (grey_png(*(zlib.compress(ROWS)[i : i + 9] for i in (0, 9)), between=png_chunk(b"teXt", b"")), "another IDAT"),
    ],
)
def test_take_refuses_pngs_with_other_data_than_one_zlib_stream_of_all_rows(file, text):
    with pytest.raises(robocache.FrameError, match=rf"frames\[0\]: PNG.*{text}.*, at byte \d+"):
        frames.take([file])


def test_data_may_be_cut_into_chunks_anywhere():
    packed = zlib.compress(ROWS)
    for cut in range(len(packed) + 1):
        taken = frames.take([grey_png(packed[:cut], packed[cut:], b"")])
        np.testing.assert_array_equal(decode_all(taken)[0, ..., 0], [list(b"abc"), list(b"def")])


def test_unknown_ancillary_chunks_are_skipped():
    pixels = np.arange(12).reshape(2, 2, 3)
    taken = frames.take([png_file(pixels, 8, 2, more=png_chunk(b"teXt", b"words"))])
    np.testing.assert_array_equal(decode_all(taken)[0], pixels)


def test_take_names_a_frame_that_differs_from_the_first(rng):
    jpeg, png = pillow_file(picture(rng, 8, 9), "JPEG"), pillow_file(picture(rng, 8, 9), "PNG")
    other_shape = pillow_file(picture(rng, 9, 8), "JPEG")
    for files, text in [
        ([jpeg, jpeg, png], r"frames\[2\]: expected jpeg like frames\[0\], got png"),
        ([jpeg, other_shape], r"frames\[1\]: expected \[8, 9, 3\] uint8 like frames\[0\], got \[9, 8, 3\] uint8"),
        ([jpeg, b""], r"frames\[1\]: expected a JPEG \(ff d8 ff\) or a PNG"),
        ([b"GIF89a"], r"frames\[0\]: expected a JPEG .* got 6 bytes that begin with 47 49 46 38"),
        ([jpeg, jpeg[:-30]], r"frames\[1\]: JPEG of \d+ bytes: .*near byte \d+"),
        ([pillow_file(picture(rng, 8, 9), "JPEG", "CMYK")], r"frames\[0\]: JPEG .*got CMYK"),
    ]:
        with pytest.raises(robocache.FrameError, match=text) as raised:
            frames.take(files)
        assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("blobs", "error", "message"),
    [
        ([], robocache.ArgumentError, "frames: expected at least one, got none"),
        (b"abc", robocache.ArgumentTypeError, "frames: expected a sequence of bytes, got bytes"),
        ([b"abc", "abc"], robocache.ArgumentTypeError, r"frames\[1\]: expected bytes, got str"),
        (5, robocache.ArgumentTypeError, "frames: expected a sequence of bytes, got int"),
    ],
)
def test_take_refuses_other_types_than_bytes(blobs, error, message):
    with pytest.raises(error, match=message):
        frames.take(blobs)


# ---- decode ----


def test_decode_takes_rows_in_any_order_from_mapped_memory(rng, tmp_path):
    pixels = np.stack([picture(rng, 16, 24) for _ in range(6)])
    result = frames.encode(pixels)
    result.data.tofile(tmp_path / "data")
    mapped = np.memmap(tmp_path / "data", np.uint8, "r")
    rows = np.array([5, 0, 0, 3], np.int32)
    got = frames.decode("jpeg", mapped, result.offsets.tolist(), result.shape, "uint8", rows)
    np.testing.assert_array_equal(got, decode_all(result)[rows])
    assert frames.decode("jpeg", mapped, result.offsets, result.shape, np.uint8, []).shape == (0, 16, 24, 3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rows": [2]}, robocache.ArgumentError, "rows: expected at least 0 and less than 2, got 2"),
        ({"rows": [-1]}, robocache.ArgumentError, "rows: expected at least 0 and less than 2, got -1"),
        ({"rows": [0.5]}, robocache.ArgumentTypeError, r"rows: expected whole numbers \[n\], got \[1\] float64"),
        ({"rows": 1}, robocache.ArgumentTypeError, r"rows: expected whole numbers \[n\]"),
        ({"offsets": None}, robocache.ArgumentError, r"offsets: expected \[n \+ 1\] for jpeg frames"),
        ({"offsets": [0, 10**9, 10**9]}, robocache.ArgumentError, "offsets: expected to ascend from 0"),
        ({"offsets": [50, 20, 30]}, robocache.ArgumentError, "offsets: expected to ascend from 0"),
        ({"shape": (16, 16, 3)}, robocache.FrameError, r"row 0: JPEG: expected \[16, 16, 3\] uint8, got \[8, 8, 3\]"),
        ({"dtype": "uint16"}, robocache.FrameError, r"row 0: JPEG: expected \[8, 8, 3\] uint16, got \[8, 8, 3\] uint8"),
        ({"codec": "png"}, robocache.FrameError, "row 0: PNG of .* no signature"),
        ({"codec": "gif"}, robocache.ArgumentError, "gif"),
    ],
)
def test_decode_refuses(rng, changes, error, message):
    result = frames.encode(np.stack([picture(rng, 8, 8), picture(rng, 8, 8)]))
    arguments = {
        "codec": "jpeg",
        "data": result.data,
        "offsets": result.offsets,
        "shape": result.shape,
        "dtype": "uint8",
    }
    with pytest.raises(error, match=message):
        frames.decode(**{**arguments, "rows": [0], **changes})


# ---- real frames ----


def jpegs_of_records(path):
    """Returns the JPEGs of a file of TFRecords, found by their first and last markers."""
    return re.findall(rb"\xff\xd8\xff.*?\xff\xd9", path.read_bytes(), re.DOTALL)


def test_real_jpegs_of_a_robot_keep_every_pixel(real_data):
    shards = sorted(real_data("rlds/octo_bridge_debug").rglob("*.tfrecord*"))
    jpegs = [file for file in jpegs_of_records(shards[0]) if len(file) > 1000][:40]
    assert len(jpegs) == 40
    by_shape = {}
    for file in jpegs:
        by_shape.setdefault(pillow_pixels(file).shape, []).append(file)
    for shape, files in by_shape.items():
        taken = frames.take(files)
        assert taken.shape == shape and taken.reencoded == {}
        np.testing.assert_array_equal(decode_all(taken), [pillow_pixels(file) for file in files])


@pytest.mark.parametrize("folder", ["logs_csv/euroc_micro/mav0/cam0/data", "depth/nvblox_human"])
def test_real_pngs_keep_every_pixel(real_data, folder):
    files = [path.read_bytes() for path in sorted(real_data(folder).glob("*.png"))]
    assert files
    taken = frames.take(files)
    expected = np.stack([pillow_pixels(file) for file in files])
    np.testing.assert_array_equal(decode_all(taken), expected.astype(taken.dtype))
    encoded = frames.encode(expected.astype(taken.dtype), "png")
    np.testing.assert_array_equal(decode_all(encoded), expected)


@pytest.mark.parametrize("name", ["lerobot_v2/gr00t_gr1_pnp_sim", "lerobot_v2/unitree_g1_real"])
def test_frames_of_real_video_at_quality_95(real_data, name):
    av = pytest.importorskip("av", reason="no PyAV to read videos with")
    video = sorted(real_data(name).rglob("*.mp4"))[0]
    with av.open(str(video)) as container:
        pixels = np.stack(
            [frame.to_ndarray(format="rgb24") for frame in itertools.islice(container.decode(video=0), 8)]
        )
    result = frames.encode(pixels)
    got = decode_all(result)
    np.testing.assert_array_equal(got, [pillow_pixels(file) for file in files_of(result)])
    noise = np.mean((got.astype(np.float64) - pixels) ** 2)
    assert 10 * np.log10(255**2 / noise) > 37  # dB: the usual value of quality 95 with 4:2:0


def blocks_of_any_range(rng, count=300):
    """Returns grey JPEGs of one block each, and their pixels by the inverse DCT in float64, less 128.

    Some blocks have values as in pictures, others far larger values.
    """
    files, exact = [], []
    basis = np.cos((2 * np.arange(8)[:, None] + 1) * np.arange(8) * np.pi / 16) * np.where(
        np.arange(8) == 0, 8**-0.5, 0.5
    )
    for _ in range(count):
        steps = rng.choice([np.full(64, rng.choice([1, 16, 255])), rng.integers(1, 256, 64)])
        indices = rng.choice(64, rng.choice([1, 2, 5, 20, 64]), replace=False)
        values = np.zeros(64)
        values[indices] = rng.dirichlet(np.ones(len(indices))) * rng.choice([-1, 1], len(indices))
        values *= rng.choice([500, 1500, 2500, 5000, 10_000, 40_000, 200_000])
        block = np.clip(np.round(values / steps), -1000, 1000).astype(int)
        files.append(jpeg_file(block.reshape(1, 1, 64), steps))
        exact.append(basis @ (block * steps).reshape(8, 8) @ basis.T)
    return files, np.array(exact)


def test_jpegs_on_which_decoders_differ_are_refused(rng, tmp_path):
    files, exact = blocks_of_any_range(rng)
    accepted = []
    for number, file in enumerate(files):
        try:
            frames.take([file])
            accepted.append(number)
        except robocache.errors.FrameError as error:
            assert "inverse DCT" in str(error)
    assert len(files) // 5 < len(accepted) < len(files) * 4 // 5
    largest = np.abs(exact).max(axis=(1, 2))
    assert largest[accepted].max() < 513
    assert set(np.flatnonzero(largest < 500)) <= set(accepted)

    # On accepted files libjpeg-turbo's C code, its vector code and the transform in float64 agree.
    accepted_frames = frames.take([files[number] for number in accepted])
    np.savez(tmp_path / "kept.npz", blobs=accepted_frames.data, offsets=accepted_frames.offsets)
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, robocache; kept = np.load(sys.argv[1]); "
        "np.save(sys.argv[2], robocache.decode_jpeg(kept['blobs'], kept['offsets']))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "kept.npz"), str(tmp_path / "plain.npy")]
    subprocess.run(command, env=os.environ | {"JSIMD_FORCENONE": "1"}, check=True)
    pixels = decode_all(accepted_frames)
    np.testing.assert_array_equal(pixels, np.load(tmp_path / "plain.npy"))
    expected = np.clip(np.round(exact[accepted] + 128), 0, 255)
    assert np.abs(pixels[..., 0] - expected).max() <= 1


def test_a_cache_refuses_a_frame_on_which_decoders_differ(rng, tmp_path):
    files, exact = blocks_of_any_range(rng)
    largest = np.abs(exact).max(axis=(1, 2))
    extreme, ordinary = files[int(np.argmax(largest))], files[int(np.argmin(largest))]
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        with pytest.raises(robocache.errors.FrameError, match=r"top.*\b1\b.*inverse DCT"):
            episode.append("top", [0, 1, 2], [ordinary, extreme, ordinary])
        episode.append("joint", [0], np.zeros((1, 1), np.float32))
