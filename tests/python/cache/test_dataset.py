"""Dataset: read-only views that keep the files mapped, and errors for names that do not exist."""

import copy
import gc
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords

import robocache


@pytest.fixture
def path(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer:
        for e in range(3):
            with writer.episode(task=f"task {e}") as episode:
                episode.append("joint.position", np.arange(4) * 20_000_000, np.full((4, 2), e, np.float32))
                if e:
                    episode.append("gripper", [5], [True])
    return tmp_path / "cache"


def test_attributes(path):
    ds = robocache.open(path)
    assert len(ds) == 3
    assert os.fspath(path) == ds.path
    assert ds.bytes == sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    stream = ds.streams["joint.position"]
    assert (stream.name, stream.dtype, stream.shape, stream.rows, stream.clock, stream.names) == (
        "joint.position",
        np.float32,
        (2,),
        12,
        "recorded",
        [],
    )
    assert stream.rate_hz == 50.0
    assert stream.time_ns.dtype == stream.row_offsets.dtype == np.int64
    assert stream.row_offsets.tolist() == [0, 4, 8, 12]
    assert stream.values.shape == (12, 2)
    assert stream.values.ctypes.data % 64 == 0
    assert ds.stats["joint.position"].mean.tolist() == [1, 1]
    assert ds.stats["joint.position"].count.tolist() == [12, 12]
    assert ds.stats["gripper"].max.shape == ()
    assert ds.streams["gripper"].rate_hz == 0.0
    assert ds.episodes.column("task").to_pylist() == ["task 0", "task 1", "task 2"]
    assert "joint.position" in repr(ds.streams) and "3 episodes" in repr(ds)


def test_one_episode(path):
    ds = robocache.open(path)
    time_ns, values = ds.episode(2)["joint.position"]
    assert time_ns.tolist() == [0, 20_000_000, 40_000_000, 60_000_000]
    assert values.tolist() == [[2, 2]] * 4
    assert values.base is not None
    assert len(ds.episode(0)["gripper"][0]) == 0
    assert ds.episode(-1)["gripper"][0].tolist() == [5]
    assert set(ds.episode(np.int64(1))) == {"joint.position", "gripper"}
    for index in (3, -4):
        with pytest.raises(robocache.ArgumentError, match=rf"index: expected an episode in \[-3, 3\), got {index}"):
            ds.episode(index)
    with pytest.raises(robocache.ArgumentTypeError, match="index: "):
        ds.episode("first")


def test_unknown_names_list_the_streams(path):
    ds = robocache.open(path)
    for mapping in (ds.streams, ds.stats, ds.episode(0)):
        assert "joints" not in mapping and mapping.get("joints") is None
        assert len(mapping) == 2 and list(mapping) == ["joint.position", "gripper"]
        with pytest.raises(robocache.MissingStreamError, match=r"^stream: "):
            mapping["joint.postion"]


def test_a_dataset_gives_its_streams_by_name(path):
    ds = robocache.open(path)
    assert ds["gripper"] is ds.streams["gripper"]
    assert ds["joint.position"][1].tolist() == [0, 0]
    assert "gripper" in ds and "grip" not in ds and 0 not in ds
    for kind in (robocache.MissingStreamError, robocache.ArgumentError, KeyError, ValueError):
        with pytest.raises(kind, match=r"expected one of 'joint.position', 'gripper', got 'grip'"):
            ds["grip"]
    with pytest.raises(robocache.ArgumentTypeError, match=r"stream: expected a name, got 0; ds\.episode\(0\) gives"):
        ds[0]
    with pytest.raises(robocache.ArgumentTypeError, match="stream: "):
        ds[:]
    error = pickle.loads(pickle.dumps(robocache.MissingStreamError("as it is, \x1b[2J escaped")))
    assert (type(error), str(error)) == (robocache.MissingStreamError, "as it is, \\x1b[2J escaped")


def test_a_dataset_is_not_iterable(path):
    """Python would iterate over 0, 1, ...: the dataset has a length, but its keys are names."""
    ds = robocache.open(path)
    assert len(ds) == 3 and bool(ds) and not isinstance(ds, Iterable)
    for use in (iter, list, tuple, lambda ds: [0 for _ in ds], lambda ds: 1 in [*ds], reversed):
        with pytest.raises(TypeError):
            use(ds)
    assert copy.copy(ds) is ds


def test_arrays_cannot_be_made_writeable(path):
    stream = robocache.open(path).streams["joint.position"]
    for array in (stream.values, stream.time_ns, stream.row_offsets, stream._stats.mean):
        with pytest.raises(ValueError):
            array[...] = 0
        with pytest.raises(ValueError):
            array.flags.writeable = True


def test_arrays_keep_the_files_mapped(path):
    values = robocache.open(path).streams["joint.position"].values
    stats = robocache.open(path).stats["joint.position"]
    shutil.rmtree(path)
    gc.collect()
    assert values.sum() == 24
    assert stats.max.tolist() == [2, 2]


def test_unpickling_opens_the_dataset_again(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    ds = robocache.open("cache")
    monkeypatch.chdir("/")
    reopened = pickle.loads(pickle.dumps(ds))
    assert reopened.path == ds.path == os.fspath(path)
    assert reopened.streams["joint.position"].rows == 12


@pytest.mark.parametrize("options", [{"append": True}, {"overwrite": True}], ids=["appended", "replaced"])
def test_a_pickle_of_a_changed_cache_is_refused(path, options):
    ds = robocache.open(path)
    loader_options = {"delta_timestamps": {"joint.position": [0.0]}, "batch_size": 2, "shuffle": False}
    loader = loader_by_keywords(ds, **loader_options, normalize="mean_std")
    saved = [pickle.dumps(ds), pickle.dumps(loader)]
    with robocache.Writer(path, **options) as writer, writer.episode() as episode:
        episode.append("joint.position", [0, 1], np.full((2, 2), 5, np.float32))
    episodes_now = len(robocache.open(path))
    for pickled in saved:
        with pytest.raises(robocache.FileError, match=rf"was pickled, of {len(ds)} .* of {episodes_now};"):
            pickle.loads(pickled)
    assert copy.deepcopy(ds) is copy.copy(ds) is ds
    assert len(copy.deepcopy(loader)) == len(loader)
    saved = pickle.dumps(robocache.open(path))
    robocache.doctor(path)  # stores its findings in the cache
    assert len(pickle.loads(saved)) == episodes_now


def test_a_pickle_accepts_the_same_rows_of_another_source(tmp_path):
    """Another machine has its own cache, made from a source with another path."""
    saved = None
    for origin in ("/a/pusht", "/elsewhere/pusht"):
        with robocache.Writer(tmp_path / "cache", overwrite=saved is not None) as writer:
            writer.provenance["source"] = origin
            with writer.episode() as episode:
                episode.append("x", [0, 1], [1.0, 2.0])
        saved = saved or pickle.dumps(robocache.open(tmp_path / "cache"))
    assert pickle.loads(saved).provenance == {"source": "/elsewhere/pusht"}


def test_bfloat16_without_ml_dtypes(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("x", [0], torch.ones(1, dtype=torch.bfloat16))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    stream = robocache.open(tmp_path / "cache").streams["x"]
    assert (stream.rows, stream.time_ns.tolist(), stream._stats.mean.tolist()) == (1, [0], 1)
    with pytest.raises(robocache.ArgumentTypeError, match="ml_dtypes"):
        _ = stream.values


def test_integers_beside_floats_become_float64(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer:
        for number, weights in ((0.5, [2**60]), (2**60, [0.5]), (None, [])):
            with writer.episode(number=number, weights=weights):
                pass
    table = robocache.open(tmp_path / "cache").episodes
    assert table["number"].to_pylist() == [0.5, 2.0**60, None]
    assert table["weights"].to_pylist() == [[2.0**60], [0.5], []]


def test_a_bfloat16_stream_loads_without_ml_dtypes(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("x", [0, 1], torch.ones(2, 3, dtype=torch.bfloat16))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    ds = robocache.open(tmp_path / "cache")
    loader = loader_by_keywords(ds, batch_size=2, delta_timestamps={"x": [0]}, normalize="min_max", framework="torch")
    assert next(loader)["x"].tolist() == [[[0, 0, 0]], [[0, 0, 0]]]


def test_only_the_table_needs_pyarrow(path):
    code = f"""
import sys
sys.modules["pyarrow"] = sys.modules["torch"] = None
import robocache
ds = robocache.open({os.fspath(path)!r}, verify=True)
assert ds.episode(1)["joint.position"][1].sum() == 8
with robocache.Writer({os.fspath(path) + "2"!r}) as w, w.episode() as ep:
    ep.append("x", [0], [1])
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_path_without_a_cache(tmp_path):
    with pytest.raises(robocache.FileError, match="none: "):
        robocache.open(tmp_path / "none")
    with pytest.raises(robocache.FileError, match=r"no cache: it has no manifest\.json; `robocache ingest` makes"):
        robocache.open(tmp_path)
    with pytest.raises(OSError):
        robocache.open(tmp_path)


# ---- close ----


def used_files(path):
    """Returns the files of a cache that this process maps or has open."""
    names = [line.split(maxsplit=5)[5:] for line in Path("/proc/self/maps").read_text().splitlines()]
    maps = {name[0].strip() for name in names if name and name[0].startswith(str(path))}
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return maps | {
        os.readlink(link) for link in links if os.path.exists(link) and os.readlink(link).startswith(str(path))
    }


@pytest.fixture
def mixed(tmp_path):
    """A cache with numbers, a camera, text and ragged rows."""
    with robocache.Writer(tmp_path / "mixed") as writer, writer.episode(task="a") as episode:
        stamps = np.arange(4) * 20_000_000
        episode.append("joint", stamps, np.ones((4, 2), np.float32))
        episode.append("camera", stamps, np.zeros((4, 8, 8, 3), np.uint8), codec="jpeg")
        episode.append("said", stamps, ["a", "b", "c", "d"])
        episode.append("cloud", stamps, np.ones((6, 3), np.float32), offsets=[0, 0, 1, 3, 6])
    return tmp_path / "mixed"


def use_all(ds):
    for stream in ds.streams.values():
        stream.time_ns, stream.row_offsets, stream[0], stream[:2], stream.offsets
    ds.episode(0)["camera"][1][0], ds.stats["joint"].mean, ds.episodes, ds.provenance, ds.statistics()["joint"]


def test_close_releases_the_files_at_once(mixed):
    gc.disable()  # closing must not need the garbage collector
    try:
        with robocache.open(mixed) as ds:
            use_all(ds)
            assert used_files(mixed)
        assert used_files(mixed) == set()
        ds.close()  # a second close does nothing
    finally:
        gc.enable()


def test_arrays_and_loaders_keep_the_files_of_a_closed_dataset(mixed):
    ds = robocache.open(mixed)
    values = ds["joint"].values
    frames = ds["camera"].values
    loader = robocache.Loader(ds, batch_size=2, delta_timestamps={"joint": [0.0]}, device="cpu")
    ds.close()
    assert used_files(mixed)
    assert values.tolist() == [[1, 1]] * 4 and frames[1:3].shape == (2, 8, 8, 3)
    assert next(iter(loader))["joint"].shape == (2, 1, 2)
    del values, frames, loader
    gc.collect()
    assert used_files(mixed) == set()


USES = {
    "time_ns": lambda ds, stream: stream.time_ns,
    "values": lambda ds, stream: stream.values,
    "row": lambda ds, stream: stream[0],
    "episode": lambda ds, stream: ds.episode(0)["joint"],
    "stats": lambda ds, stream: ds.stats["joint"],
    "statistics": lambda ds, stream: ds.statistics()["joint"],
    "episodes": lambda ds, stream: ds.episodes,
    "provenance": lambda ds, stream: ds.provenance,
    "verify": lambda ds, stream: ds.verify(),
    "no such stream": lambda ds, stream: ds["nothing"],
    "pickle": lambda ds, stream: pickle.dumps(ds),
    "loader": lambda ds, stream: robocache.Loader(ds, batch_size=2, delta_timestamps={"joint": [0.0]}, device="cpu"),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_dataset_is_refused(use, mixed):
    ds = robocache.open(mixed)
    stream = ds["joint"]
    ds.close()
    with pytest.raises(robocache.ArgumentError, match=r"mixed: expected an open dataset, got one"):
        USES[use](ds, stream)
    assert repr(ds) and len(ds) == 1 and list(ds.streams) == ["joint", "camera", "said", "cloud"]


def test_an_error_in_the_block_closes_the_dataset(mixed):
    with pytest.raises(ZeroDivisionError), robocache.open(mixed) as ds:
        ds["joint"].values[0] / (1 // 0)
    assert used_files(mixed) == set()
