"""ROS 2 bags with compressed files, as written by `ros2 bag record --compression-mode file`."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import zstandard
from damage import damage
from robocache.ingest.messages import packed
from robocache.ingest.recording import SourceError
from ros_files import START, header, message, write_database, write_mcap, write_metadata
from soak import rounds
from yields import Yields

import robocache


def imus(first, n):
    rows = range(first, first + n)
    return "sensor_msgs/msg/Imu", [
        (START + k, message("sensor_msgs/msg/Imu", header=header(START + k), orientation_covariance=np.arange(9) + k))
        for k in rows
    ]


def pack(file, **options):
    packed_file = file.with_name(f"{file.name}.zstd")
    packed_file.write_bytes(zstandard.ZstdCompressor(**options).compress(file.read_bytes()))
    file.unlink()
    return packed_file


def write_packed(folder, kind="db3", files=2, **options):
    """Writes a bag of `files` files with three rows each."""
    write = {"db3": write_database, "mcap": write_mcap}[kind]
    packed_files = [pack(write(folder / f"bag_{k}.{kind}", {"/imu": imus(3 * k, 3)}), **options) for k in range(files)]
    write_metadata(folder, [file.name for file in packed_files], {"/imu": 3 * files}, mode="FILE")
    return packed_files


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Asserts after each test that no decompressed file is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(packed.tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("kind", ["db3", "mcap"])
def test_compressed_files_are_read_like_plain_ones(kind, is_small, tmp_path, monkeypatch):
    from robocache.ingest.messages import passes

    if not is_small:
        monkeypatch.setattr(passes, "_SMALL", 1)  # both passes read the files
    write_packed(tmp_path / "bag", kind)
    yields = Yields(None, tmp_path / "bag")
    assert yields.only()["/imu"][0].tolist() == [START + k for k in range(6)]
    assert yields.only()["/imu/orientation_covariance"][1][:, 0].tolist() == list(range(6))
    assert not yields.skipped and not any("zstd" in what for what in yields.left_out)


def test_a_compressed_real_bag_is_the_same(real_data, tmp_path):
    source = Path(real_data("rosbag2/ros2_wbag_split_sqlite"))
    (tmp_path / "bag").mkdir()
    names = []
    for file in sorted(source.glob("*.db3")):
        (tmp_path / "bag" / file.name).write_bytes(file.read_bytes())
        names.append(pack(tmp_path / "bag" / file.name).name)
    content = (source / "metadata.yaml").read_text()
    for name in names:
        content = content.replace(name.removesuffix(".zstd"), name)
    (tmp_path / "bag/metadata.yaml").write_text(content.replace('compression_mode: ""', "compression_mode: FILE"))
    robocache.ingest(source, tmp_path / "a")
    robocache.ingest(tmp_path / "bag", tmp_path / "b")
    plain, compressed = (robocache.open(tmp_path / cache) for cache in "ab")
    assert list(plain.streams) == list(compressed.streams) and len(plain.streams) > 3
    for name, stream in plain.streams.items():
        assert np.array_equal(stream.time_ns, compressed.streams[name].time_ns)


def test_faults_name_the_compressed_file(tmp_path):
    """One file is cut off, one is no zstd, one decompresses to no database; the others are read."""
    first, second = write_packed(tmp_path / "bag")
    original = second.read_bytes()
    for content, message_part in (
        (original[: len(original) // 2], "cut off: "),
        (b"SQLite format 3\0", "zstd|Unknown|frame"),
        (b"", ": "),
        (zstandard.compress(b"no database at all"), "expected an SQLite database"),
        (zstandard.compress(bytes(200 << 20)), "damaged"),
    ):
        second.write_bytes(content)
        with pytest.raises(SourceError, match=message_part) as caught:
            Yields("rosbag2", tmp_path / "bag")
        assert str(caught.value).startswith(str(second)), caught.value
        yields = Yields("rosbag2", tmp_path / "bag", on_error="skip")
        assert yields.only()["/imu"][0].tolist() == [START + k for k in range(3)]
        assert any(str(second) in reason for reason in yields.skipped.values())
    first.unlink()
    second.write_bytes(b"")
    assert not Yields("rosbag2", tmp_path / "bag", on_error="skip").episodes


def test_a_temporary_folder_without_room_is_named(tmp_path, monkeypatch, temporary):
    write_packed(tmp_path / "bag")

    def open_without_room(self, mode="r", *arguments, **options):
        if "w" in mode:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return path_open(self, mode, *arguments, **options)

    path_open = Path.open
    monkeypatch.setattr(Path, "open", open_without_room)
    with pytest.raises(robocache.FileError, match=r"No space left on device, while .*bag_0\.db3\.zstd was unpacked"):
        Yields("rosbag2", tmp_path / "bag", on_error="skip")


def test_damaged_compressed_files_are_refused_or_read(tmp_path, rng):
    (file,) = write_packed(tmp_path / "bag", files=1)
    content = file.read_bytes()
    for _ in range(rounds(20)):
        file.write_bytes(damage(content, rng))
        yields = Yields("rosbag2", tmp_path / "bag", on_error="skip")
        assert yields.episodes or yields.skipped


@pytest.mark.parametrize("suffix", [".zstd", ".zst"])
@pytest.mark.parametrize("kind", ["db3", "mcap"])
def test_a_compressed_file_without_metadata_is_read(kind, suffix, tmp_path):
    write = {"db3": write_database, "mcap": write_mcap}[kind]
    file = pack(write(tmp_path / f"bags/a.{kind}", {"/imu": imus(0, 3)}))
    file = file.rename(file.with_suffix(suffix))
    for source in (file, tmp_path / "bags"):
        yields = Yields(None, source)
        assert yields.only()["/imu"][0].tolist() == [START + k for k in range(3)]
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(SourceError) as caught:
        Yields(None, file)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("kind", ["db3", "mcap"])
def test_a_file_beside_its_compressed_copy_is_one_recording(kind, tmp_path):
    """`zstd` without --rm leaves both files."""
    write = {"db3": write_database, "mcap": write_mcap}[kind]
    pack(write(tmp_path / f"bags/a.{kind}", {"/imu": imus(0, 3)}))
    write(tmp_path / f"bags/a.{kind}", {"/imu": imus(0, 3)})
    yields = Yields(None, tmp_path / "bags")
    assert yields.only()["/imu"][0].tolist() == [START + k for k in range(3)]
    assert "not compressed" in yields.left_out[f"a.{kind}.zstd"]


@pytest.mark.parametrize("names_in_metadata", ["packed", "plain", "as they are"])
@pytest.mark.parametrize("kind", ["db3", "mcap"])
def test_a_bag_with_some_compressed_files(kind, names_in_metadata, tmp_path):
    """A killed recorder leaves its last file uncompressed, under the compressed name in metadata.yaml."""
    write = {"db3": write_database, "mcap": write_mcap}[kind]
    first = pack(write(tmp_path / f"bag/a.{kind}", {"/imu": imus(0, 3)}))
    second = write(tmp_path / f"bag/b.{kind}", {"/imu": imus(3, 3)})
    names = {
        "packed": [first.name, f"{second.name}.zstd"],
        "plain": [first.stem, second.name],
        "as they are": [first.name, second.name],
    }
    write_metadata(tmp_path / "bag", names[names_in_metadata], {"/imu": 6}, mode="FILE")
    yields = Yields(None, tmp_path / "bag")
    assert yields.only()["/imu"][0].tolist() == [START + k for k in range(6)]
    assert not yields.skipped
