"""Files of every version of the format: today's reader reads all; today's writer writes the latest version byte for byte.

A new version of the format gets its own folder, and the old ones stay. To write its files:
``PYTHONPATH=tests python tests/python/cache/test_golden.py tests/golden/cache_v3``.
"""

import json
import pickle
import shutil
import sys
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cache_files import append_files

import robocache

GOLDEN = Path(__file__).parents[2] / "golden"
LATEST = GOLDEN / "cache_v3"

TIMES = np.array([1_700_000_000_123_456_789, 1_700_000_000_143_456_789, 1_700_000_000_163_456_790])
JOINTS = np.array([[0.25, -1.5, 3.0], [0.5, np.nan, 3.0], [-np.inf, 2.5, 3.0]], np.float32)

# 2 x 2: red, green, blue and (10, 20, 30).
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000002000000020802000000fdd49a73"
    "0000001649444154789c63f8cfc0c0f09f818181e13f97881c001a58033a82e0ab530000000049454e44ae426082"
)
PIXELS = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [10, 20, 30]]], np.uint8)


def jpeg(scan):
    """Returns a JPEG of 4 x 6 pixels of one grey, 40 or 200."""
    return bytes.fromhex(
        "ffd8ffe000104a46494600010100000100010000ffdb004300020101010101020101010202020202040302020202050404030406050606"
        "0605060606070908060709070606080b08090a0a0a0a0a06080b0c0b0a0c090a0a0affc0000b080004000601011100ffc4001400010000"
        f"0000000000000000000000000009ffc40014100100000000000000000000000000000000ffda0008010100003f00{scan}ffd9"
    )


JPEGS = {40: jpeg("27dfff"), 200: jpeg("481f")}
CLOUD = np.array([[0.5, 1, -2, 7], [0, np.nan, 3, 8], [1, 2, 3, 9]], np.float32)
DEPTH = np.array([[[0], [500], [1000]], [[1], [2], [65535]]], np.uint16)


def write(path):
    with robocache.Writer(path) as writer:
        writer.provenance["source"] = {"made by": "hand", "files": ["ä.csv", None, 3, 0.1]}
        writer.stream(
            "joint.position",
            names=["shoulder", "elbow", "wrist"],
            attributes={"units": "rad", "methods": [[0, 3, "angle"]], "limits": {"max": [1.5, None]}},
        )
        writer.stream(
            "lidar/points", names=["x", "y", "z", "intensity"], attributes={"frame_id": "lidar", "units": "m"}
        )
        writer.stream("said", clock="nominal")
        writer.stream("frame", clock="nominal")
        writer.stream("depth", unit_m=0.001, intrinsics=[[2.5, 0, 1.5], [0, 2.5, 1], [0, 0, 1]])
        writer.stream("top", clock="nominal", resized={"size": [4, 6], "fit": "pad", "from": [480, 640]})
        with writer.episode(task='pick the "cup"', success=True, score=1, tags=["a", "ü"]) as episode:
            episode.append("joint.position", TIMES, JOINTS)
            episode.append("frame", [0, 33_333_333], np.array([7, 8], np.int64))
        with writer.episode(task="place", success=False, score=0.5, tags=[], weights=[1, 0.25]) as episode:
            episode.append("joint.position", TIMES[:1], JOINTS[:1])
            episode.append("camera/left", [5], np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3))
            episode.append("contact", [5, 5], [True, False])
            episode.append("lidar/points", [5, 6, 7], CLOUD, offsets=[0, 2, 2, 3])
            episode.append("said", [5, 9], ["näher", ""])
            append_files(episode, "side", [5, 6], [PNG, PNG], shape=(2, 2, 3))
            append_files(episode, "top", [5], [JPEGS[40]], codec="jpeg", color_space="gray", shape=(4, 6, 1))
        with writer.episode():
            pass
        with writer.episode(task=None) as episode:
            episode.append("lidar/points", [1], CLOUD[1:], offsets=[0, 2])
            episode.append("said", [3], ['"stop"\n'])
            episode.append("force", [1, 2, 4], np.array([[1, 2], [3, 4], [5, 6.5]], ml_dtypes.bfloat16))
            append_files(
                episode, "top", [1, 3], [JPEGS[200], JPEGS[40]], codec="jpeg", color_space="gray", shape=(4, 6, 1)
            )
            append_files(
                episode,
                "depth",
                [2],
                [DEPTH.tobytes()],
                codec="raw",
                color_space="gray",
                shape=DEPTH.shape,
                dtype="uint16",
            )


@pytest.mark.parametrize("version", [1, 2, 3])
def test_todays_reader_reads_numbers(version, tmp_path):
    shutil.copytree(GOLDEN / f"cache_v{version}", tmp_path / "cache")  # a copy, since reading may store statistics
    ds = robocache.open(tmp_path / "cache", verify=True)
    assert len(ds) == 4
    assert [name for name, stream in ds.streams.items() if stream.kind == "numbers"] == [
        "joint.position",
        "frame",
        "camera/left",
        "contact",
        "force",
    ]
    assert ds.provenance == {"source": {"made by": "hand", "files": ["ä.csv", None, 3, 0.1]}}
    assert ds.episodes.to_pydict() == {
        "episode_index": [0, 1, 2, 3],
        "start_ns": [0, 5, None, 1],
        "end_ns": [int(TIMES[2]), int(TIMES[0]), None, 4],
        "task": ['pick the "cup"', "place", None, None],
        "success": [True, False, None, None],
        "score": [1.0, 0.5, None, None],
        "tags": [["a", "ü"], [], None, None],
        "weights": [None, [1.0, 0.25], None, None],
    }

    joints = ds.streams["joint.position"]
    assert (joints.dtype, joints.shape, joints.clock) == (np.float32, (3,), "recorded")
    assert joints.names == ["shoulder", "elbow", "wrist"]
    attributes = {"units": "rad", "methods": [[0, 3, "angle"]], "limits": {"max": [1.5, None]}}
    assert joints.attributes == (attributes if version > 2 else {})
    assert joints.row_offsets.tolist() == [0, 3, 4, 4, 4]
    np.testing.assert_array_equal(ds.episode(0)["joint.position"][0], TIMES)
    np.testing.assert_array_equal(ds.episode(0)["joint.position"][1], JOINTS)
    assert joints.findings == {
        "period_ns": 20000000.5,
        "jitter_ns": 0.5,
        "min_period_ns": 20000000,
        "max_period_ns": 20000001,
        "gaps": 0,
        "duplicates": 0,
        "empty_episodes": 2,
        "nan_values": 1,
        "infinite_values": 1,
        "constant_features": [2],
    }
    stats = ds.stats["joint.position"]
    # The stored statistics count the infinity; the reader's do not.
    assert np.load(tmp_path / "cache/streams/joint.position/stats.npy")[2, 0] == -np.inf
    np.testing.assert_allclose(stats.mean, [1 / 3, -1 / 6, 3], rtol=1e-15)
    np.testing.assert_array_equal(stats.min, [0.25, -1.5, 3])
    np.testing.assert_array_equal(stats.q50, [0.25, -1.5, 3])
    np.testing.assert_array_equal(stats.count, [3, 3, 4])
    np.testing.assert_array_equal(stats.std[2], 0)
    assert "statistics" not in [finding.code for finding in robocache.doctor(ds.path).findings]
    assert pickle.loads(pickle.dumps(ds)).path == ds.path

    assert ds.streams["frame"].clock == "nominal"
    assert ds.streams["frame"].rate_hz == 30
    assert ds.episode(1)["camera/left"][1].tolist() == np.arange(12).reshape(1, 2, 2, 3).tolist()
    assert ds.episode(1)["contact"][1].tolist() == [True, False]
    assert ds.streams["contact"].findings["duplicates"] == 1
    assert ds.streams["force"].dtype == ml_dtypes.bfloat16
    assert ds.episode(3)["force"][1].tolist() == [[1, 2], [3, 4], [5, 6.5]]


@pytest.mark.parametrize("version", [2, 3])
def test_todays_reader_reads_frames(version):
    ds = robocache.open(GOLDEN / f"cache_v{version}", verify=True)
    side, top, depth = (ds.streams[name] for name in ("side", "top", "depth"))
    assert side.frames == ("png", 2, 2, 3, "rgb", None, None, None)
    assert top.frames == ("jpeg", 4, 6, 1, "gray", None, None, {"size": [4, 6], "fit": "pad", "from": [480, 640]})
    assert depth.frames[:6] == ("raw", 2, 3, 1, "depth", 0.001)
    assert depth.frames.intrinsics.tolist() == [[2.5, 0, 1.5], [0, 2.5, 1], [0, 0, 1]]
    assert (top.clock, side.clock) == ("nominal", "recorded")
    assert top.row_offsets.tolist() == [0, 0, 1, 1, 3]
    assert top.values.data.tobytes() == JPEGS[40] + JPEGS[200] + JPEGS[40]
    assert top.values.offsets.tolist() == np.cumsum([0, *(len(JPEGS[grey]) for grey in (40, 200, 40))]).tolist()
    assert side.values.data.tobytes() == PNG + PNG
    assert np.array_equal(depth.values, DEPTH[None])
    assert set(ds.stats) == {"joint.position", "frame", "camera/left", "contact", "force"}

    assert np.array_equal(side[:], [PIXELS, PIXELS])
    assert [np.unique(top.frame(row)).tolist() for row in range(3)] == [[40], [200], [40]]


def test_todays_reader_reads_ragged_rows_and_text():
    ds = robocache.open(GOLDEN / "cache_v3", verify=True)
    cloud, texts = ds.streams["lidar/points"], ds.streams["said"]
    assert (cloud.ragged, cloud.dtype, cloud.shape, cloud.rows, cloud.kind) == ("array", np.float32, (4,), 4, "arrays")
    assert cloud.names == ["x", "y", "z", "intensity"]
    assert cloud.attributes == {"frame_id": "lidar", "units": "m"}
    assert cloud.offsets.tolist() == [0, 2, 2, 3, 5] and cloud.row_offsets.tolist() == [0, 0, 3, 3, 4]
    np.testing.assert_array_equal(cloud.values, np.concatenate([CLOUD, CLOUD[1:]]))
    assert (texts.ragged, texts.clock, texts.attributes, texts.kind) == ("text", "nominal", {}, "text")
    assert texts[:] == ["näher", "", '"stop"\n']
    assert cloud.findings["max_period_ns"] == 1 and cloud.findings["nan_values"] == 0


def test_todays_writer_writes_the_same_bytes(tmp_path):
    write(tmp_path / "cache")
    golden = {p.relative_to(LATEST): p.read_bytes() for p in LATEST.rglob("*") if p.is_file()}
    written = {
        p.relative_to(tmp_path / "cache"): p.read_bytes() for p in (tmp_path / "cache").rglob("*") if p.is_file()
    }
    assert set(written) == set(golden)
    manifest = Path("manifest.json")
    # Only the version of robocache may differ.
    versions = [json.loads(files[manifest])["robocache_version"].encode() for files in (golden, written)]
    text = golden[manifest].replace(
        b'"robocache_version": "%s"' % versions[0], b'"robocache_version": "%s"' % versions[1]
    )
    text = text[: text.rindex(b'  "crc32"')]
    # The golden statistics of column 0 count its infinity, today's do not. The other columns are equal.
    stats_name = Path("streams/joint.position/stats.npy")
    tables = [np.frombuffer(files[stats_name][128:]).reshape(10, 3)[:, 1:] for files in (golden, written)]
    np.testing.assert_array_equal(*tables)
    crcs = [b"%08x" % zlib.crc32(files[stats_name]) for files in (golden, written)]
    text, golden[stats_name] = text.replace(*crcs), written[stats_name]
    golden[manifest] = text + b'  "crc32": "%08x"\n}\n' % zlib.crc32(text)
    for name, content in written.items():
        assert content == golden[name], name


if __name__ == "__main__":
    write(sys.argv[1])
