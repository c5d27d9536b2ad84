"""Pictures declared rotated are stored as displayed: by a video's display matrix, by EXIF, by H.264's message."""

import io
import struct
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_files import BOOKKEEPING, Episode, write_lerobot
from PIL import Image, ImageOps
from robocache.frames import indices_of
from robocache.turns import Turn, turn_of_file
from ros_files import START, header, message, write_mcap
from test_ros_video import decode, encode, write_video_messages
from video_files import HEIGHT, WIDTH, image_bytes, picture, read_video, write_video

import robocache

TOP = "observation.images.top"
# (a, b, c, d) of QuickTime's x' = a x + c y and y' = b x + d y.
MATRICES = [
    (a, b, c, d)
    for first_sign in (1, -1)
    for second_sign in (1, -1)
    for a, b, c, d in ((first_sign, 0, 0, second_sign), (0, first_sign, second_sign, 0))
    if (a, b, c, d) != (1, 0, 0, 1)
]


def transform_frames(images, matrix):
    """Transforms frames ``[n, H, W, 3]`` by the matrix, pixel by pixel."""
    a, b, c, d = matrix
    y, x = np.mgrid[0 : images.shape[1], 0 : images.shape[2]]
    to_x, to_y = a * x + c * y, b * x + d * y
    to_x, to_y = to_x - to_x.min(), to_y - to_y.min()
    transformed = np.zeros((len(images), to_y.max() + 1, to_x.max() + 1, 3), np.uint8)
    transformed[:, to_y, to_x] = images
    return transformed


def write_matrix(path, matrix):
    """Writes a display matrix into an mp4's track."""
    file = bytearray(path.read_bytes())
    offset = file.index(b"tkhd") + 44
    a, b, c, d = (65536 * number for number in matrix)
    struct.pack_into(">9i", file, offset, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(file)


def write_set(root, rows, dtype="video"):
    features = {"action": {"dtype": "float32", "shape": [1], "names": None}, **BOOKKEEPING}
    features |= {TOP: {"dtype": dtype, "shape": [HEIGHT, WIDTH, 3], "names": None}}
    return write_lerobot(root, [Episode({"action": np.zeros(rows, np.float32)})], features=features)


def rotation_reasons(report):
    return [omission.reason for omission in report.left_out if "as stored in the" in omission.what]


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("options", [{}, {"bf": "2"}])
def test_a_videos_display_matrix(matrix, options, tmp_path):
    source = write_set(tmp_path / "source", 14)
    video = source / f"videos/chunk-000/{TOP}/episode_000000.mp4"
    write_video(video, range(14), codec="libx264" if options else "mpeg4", options=options)
    frames = read_video(video)[1]
    write_matrix(video, matrix)
    report = robocache.ingest(source, tmp_path / "cache", image_codec="raw", jobs=1)
    assert len(rotation_reasons(report)) == 1
    stream = robocache.open(tmp_path / "cache").streams[TOP]
    np.testing.assert_array_equal(stream.values[:], transform_frames(frames, matrix))


def test_a_video_not_rotated_by_quarter_turns_is_refused(tmp_path):
    source = write_set(tmp_path / "source", 3)
    video = write_video(source / f"videos/chunk-000/{TOP}/episode_000000.mp4", range(3))
    file = bytearray(video.read_bytes())
    struct.pack_into(">5i", file, file.index(b"tkhd") + 44, 40000, 40000, 0, -40000, 40000)
    video.write_bytes(file)
    with pytest.raises(robocache.FileError, match=r"episode_000000.mp4: .*quarter turn"):
        robocache.ingest(source, tmp_path / "cache", jobs=1)


def make_exif_image(format, orientation):
    data = Image.Exif()
    data[0x0112] = orientation
    return image_bytes(picture(77), format, exif=data, **({"quality": 95} if format == "JPEG" else {}))


def read_as_shown(file):
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))))


def write_csv(root, files, suffix):
    (root / "log").mkdir(parents=True)
    for k, file in enumerate(files):
        (root / "log" / f"{k}.{suffix}").write_bytes(file)
    rows = "".join(f"0.{k},{k}.{suffix}\n" for k in range(len(files)))
    (root / "log" / "cam.csv").write_text(f"t_s,filename\n{rows}")
    return root / "log", "cam.filename"


def write_images(root, files, suffix):
    source = write_set(root / "set", len(files), dtype="image")
    (file,) = source.glob("data/chunk-000/*.parquet")
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells = pa.array([{"bytes": image, "path": None} for image in files], kind)
    pq.write_table(pq.read_table(file).append_column(TOP, cells), file)
    return source, TOP


def write_bag(root, files, suffix):
    name = "sensor_msgs/msg/CompressedImage"
    format = f"rgb8; {suffix} compressed bgr8"
    messages = [
        (START + k, message(name, header=header(START + k), format=format, data=np.frombuffer(file, np.uint8)))
        for k, file in enumerate(files)
    ]
    return write_mcap(root / "bag" / "run.mcap", {"/cam": (name, messages)}), "/cam"


@pytest.mark.parametrize("write", [write_csv, write_images, write_bag])
@pytest.mark.parametrize(("format", "suffix"), [("JPEG", "jpeg"), ("PNG", "png")])
def test_exif_orientations(write, format, suffix, tmp_path):
    for orientations in ((2, 3, 4, 1), (5, 6, 7, 8)):
        files = [make_exif_image(format, orientation) for orientation in orientations]
        source, camera = write(tmp_path / str(orientations[0]), files, suffix)
        cache = tmp_path / f"cache{orientations[0]}"
        report = robocache.ingest(source, cache)
        assert rotation_reasons(report)
        pixels = robocache.open(cache).streams[camera].values[:]
        difference = np.abs(pixels.astype(int) - [read_as_shown(file) for file in files]).mean(axis=(1, 2, 3))
        assert (difference <= (2 if format == "JPEG" else 0)).all()  # a rotated JPEG is encoded again


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_a_writer_stores_rotated_files_unchanged_with_a_warning(format, tmp_path):
    files = [make_exif_image(format, orientation) for orientation in (1, 3, 6)]
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        with pytest.warns(UserWarning, match="'top': 1 files are turned by 180 degrees clockwise, as"):
            episode.append("top", [0, 1], files[:2])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            episode.append("other", [0], files[:1])
    stored = robocache.open(tmp_path / "cache")["top"].frame(1)
    np.testing.assert_array_equal(stored, np.asarray(Image.open(io.BytesIO(files[1]))))


def test_exif_without_an_orientation_or_cut_off_keeps_the_file(tmp_path):
    file = make_exif_image("JPEG", 6)
    offset = file.index(b"Exif\0\0")
    size = int.from_bytes(file[offset - 2 : offset], "big")
    for content in (
        make_exif_image("JPEG", 1),
        make_exif_image("JPEG", 9),
        file[: offset + 6] + file[offset + 6 : offset + 10] + b"\xff" * (size - 12) + file[offset + size - 2 :],
    ):
        source, camera = write_csv(tmp_path / str(len(list(tmp_path.iterdir()))), [content], "jpeg")
        report = robocache.ingest(source, tmp_path / "cache", overwrite=True)
        assert not rotation_reasons(report)
        assert robocache.open(tmp_path / "cache").streams[camera].values[:].shape == (1, HEIGHT, WIDTH, 3)


def test_h264_display_orientation(tmp_path):
    """H.264's message 47, D.1.27: not cancelled, not mirrored, a quarter turn counter-clockwise, repeated."""
    bits = "0" + "00" + f"{0x4000:016b}" + "1" + "0" + "1"
    payload = int(bits.ljust(24, "0"), 2).to_bytes(3, "big")
    plain = encode(range(3), gop=1)
    packets = [b"\0\0\0\1\x06\x2f\x03" + payload + b"\x80" + packet for packet in plain]
    source = write_video_messages(tmp_path / "bag" / "run.mcap", packets)
    report = robocache.ingest(source, tmp_path / "cache", image_codec="raw")
    assert rotation_reasons(report) == ["turned by 270 degrees clockwise, as the video says"]
    pixels = robocache.open(tmp_path / "cache").streams["/cam/video"].values[:]
    np.testing.assert_array_equal(pixels, np.rot90(decode(plain, "h264"), axes=(1, 2)))


@pytest.mark.parametrize("bits", [8, 4])
def test_the_indices_of_a_palette_keep_their_orientation(bits):
    data = Image.Exif()
    data[0x0112] = 6
    image = Image.new("P", (3, 2))
    image.putpalette(bytes(3 * 2**bits))
    file = io.BytesIO()
    image.save(file, "PNG", bits=bits, exif=data)
    assert turn_of_file(indices_of(file.getvalue())) == Turn(True, False, True)
