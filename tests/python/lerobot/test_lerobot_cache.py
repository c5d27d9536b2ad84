"""The cache of a LeRobot dataset is made once, by one process, and made again when the dataset's files change."""

import multiprocessing
import re
import shutil
import subprocess
from pathlib import Path

import loaders_by_keywords
import numpy as np
import pyarrow as pa
import pytest
from lerobot_files import BOOKKEEPING, Episode, append_column, data_files, declare, rewrite, with_column, write_lerobot
from loaders_by_keywords import from_lerobot, lerobot_dataset
from robocache.lerobot import open_cache
from sets import made_at, open_together, write

import robocache

pytest.importorskip("av", reason="no PyAV: pip install av")
from video_files import image_bytes, number_of, picture


def change_actions(source):
    """Adds one to every action."""

    def change(table):
        rows = [[number + 1 for number in row] for row in table["action"].to_pylist()]
        return with_column("action", pa.array(rows, table["action"].type))(table)

    for file in data_files(source):
        rewrite(file, change)


def test_the_cache_is_in_the_users_folder_and_made_once(source, caches, monkeypatch):
    first = open_cache(source)
    time = made_at(first)
    cache, lock = sorted(caches.iterdir())
    assert first.path == str(cache)
    assert cache.name.startswith("source-")
    assert lock.name == f"{cache.name}.lock"
    assert made_at(open_cache(source)) == time
    monkeypatch.chdir(source.parent)
    assert made_at(open_cache("source")) == time

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(caches.parent / "home"))
    assert open_cache(source).path.startswith(str(caches.parent / "home" / ".cache" / "robocache"))


def test_two_datasets_of_one_name_have_two_caches(source, rng, tmp_path):
    other = write(tmp_path / "elsewhere" / "source", rng)
    assert open_cache(source).path != open_cache(other).path


def test_the_cache_is_made_again_when_files_change(source):
    before = open_cache(source)
    action = before.streams["action"].values[:].copy()
    change_actions(source)
    after = open_cache(source)
    assert after.path == before.path
    np.testing.assert_array_equal(after.streams["action"].values, action + 1)
    np.testing.assert_array_equal(before.streams["action"].values, action)  # an open dataset keeps its rows

    earlier = made_at(after)
    (source / "meta/info.json").touch()
    later = made_at(open_cache(source))
    assert later != earlier
    (source / "notes").mkdir()
    (source / "notes" / "notes.txt").write_text("this is not in the cache")
    assert made_at(open_cache(source)) == later


def test_the_cache_is_made_again_when_an_image_file_changes(tmp_path):
    name = "observation.images.top"
    cells = [{"bytes": None, "path": f"images/{name}/frame_{k}.png"} for k in range(3)]
    features = {name: {"dtype": "image", "shape": [48, 64, 3], "names": None}, **BOOKKEEPING}
    source = write_lerobot(tmp_path / "source", [Episode({"action": np.zeros((3, 2), np.float32)})], features=features)
    append_column(source, name, cells)
    for shown in (0, 7):
        for k, cell in enumerate(cells):
            (source / cell["path"]).parent.mkdir(parents=True, exist_ok=True)
            (source / cell["path"]).write_bytes(image_bytes(picture(shown + k)))
        stream = open_cache(source).streams[name]
        assert [number_of(stream.frame(row)) for row in range(3)] == [shown + k for k in range(3)]


def test_snapshots_of_the_hub_are_read_and_other_links_with_an_option(source, tmp_path):
    repo = tmp_path / "hub/datasets--robots--arm"
    (repo / "snapshots").mkdir(parents=True)
    (repo / "blobs").mkdir()
    snapshot = source.rename(repo / "snapshots/0123abcd")
    for number, file in enumerate(sorted(snapshot.rglob("*.*"))):
        file.rename(repo / f"blobs/{number}")
        file.symlink_to(repo / f"blobs/{number}")
    batch = next(from_lerobot(snapshot, batch_size=2, shuffle=False))
    moved = tmp_path / "elsewhere"
    snapshot.rename(moved)  # now the links lead out of a folder that is no snapshot
    for read in (open_cache, robocache.Loader.from_lerobot, robocache.LeRobotDataset):
        with pytest.raises(robocache.FileError, match=r"out of the source .--follow-links.$"):
            read(moved)
    linked_cache = open_cache(moved, follow_links=True)
    assert open_cache(moved).path == linked_cache.path  # the cache exists, so no file is read again
    linked = next(from_lerobot(moved, batch_size=2, shuffle=False, follow_links=True))
    assert linked["index"].tolist() == batch["index"].tolist() and linked["action"].equal(batch["action"])


def test_a_cache_path_of_the_caller(source, tmp_path, caches):
    dataset = open_cache(source, cache=tmp_path / "mine" / "cache")
    assert dataset.path == str(tmp_path / "mine" / "cache")
    assert not caches.exists()
    time = made_at(dataset)
    shutil.move(source, tmp_path / "moved")  # the same files at another path
    assert made_at(open_cache(tmp_path / "moved", cache=dataset.path)) == time


def test_a_cache_of_another_source_is_not_replaced(source, rng, tmp_path):
    other = write(tmp_path / "other", rng)
    time = made_at(open_cache(other, cache=tmp_path / "cache"))
    with pytest.raises(
        robocache.FileError, match=r"expected a cache of .*source, got one of another dataset, 'other'; pass"
    ):
        open_cache(source, cache=tmp_path / "cache")
    with robocache.Writer(tmp_path / "written") as writer, writer.episode() as episode:
        episode.append("action", [0, 1], np.zeros((2, 3)))
    with pytest.raises(
        robocache.FileError, match="expected a cache made from a LeRobot dataset, got one of other data;"
    ):
        open_cache(source, cache=tmp_path / "written")
    (tmp_path / "notes").mkdir()
    with pytest.raises(robocache.FileError, match="notes"):
        open_cache(source, cache=tmp_path / "notes")
    assert made_at(robocache.open(tmp_path / "cache")) == time
    assert list((tmp_path / "notes").iterdir()) == []


def test_a_cache_of_robocache_ingest_is_used(source, tmp_path, caches):
    robocache.ingest(source, tmp_path / "cache", index_columns=True)
    time = made_at(robocache.open(tmp_path / "cache"))
    loader = from_lerobot(source, cache=tmp_path / "cache", batch_size=4)
    assert {"index", "frame_index", "timestamp"} <= next(loader).keys()
    assert len(lerobot_dataset(source, cache=tmp_path / "cache")) == 76
    assert made_at(robocache.open(tmp_path / "cache")) == time
    assert not caches.exists() and not (tmp_path / "cache.lock").exists()


def test_a_cache_without_index_columns_warns_of_missing_keys(source, tmp_path):
    robocache.ingest(source, tmp_path / "cache")
    time = made_at(robocache.open(tmp_path / "cache"))
    with pytest.warns(UserWarning, match="without the columns timestamp, frame_index, index, so batches") as warned:
        loader = from_lerobot(source, cache=tmp_path / "cache", batch_size=76, shuffle=False)
    assert warned[0].filename == loaders_by_keywords.__file__
    complete = from_lerobot(source, batch_size=76, shuffle=False)
    (batch,), (complete_batch,) = loader, complete
    assert complete_batch.keys() - batch.keys() == {"index", "frame_index", "timestamp"}
    for key, values in batch.items():
        assert np.array_equal(values, complete_batch[key], equal_nan=values.is_floating_point())
    with pytest.raises(robocache.FileError, match=r"`robocache ingest .*source CACHE --index-columns` keeps them"):
        lerobot_dataset(source, cache=tmp_path / "cache")
    assert made_at(robocache.open(tmp_path / "cache")) == time


@pytest.mark.parametrize(
    "options", [{}, {"index_columns": True}, {"mapping": {"exclude": ["action"]}}, {"offsets": {"action": 0.1}}]
)
@pytest.mark.filterwarnings("ignore:.*batches lack them")
def test_files_of_others_are_never_replaced(source, tmp_path, options):
    robocache.ingest(source, tmp_path / "cache", **options)
    time = made_at(open_cache(source, cache=tmp_path / "cache"))
    change_actions(source)
    words = r"cache: files of .*source have changed since the cache was made; from_lerobot\(\) did not make it, so it stays unchanged: `robocache ingest .*`"
    with pytest.raises(robocache.FileError, match=words):
        open_cache(source, cache=tmp_path / "cache")
    assert made_at(robocache.open(tmp_path / "cache")) == time


def test_files_that_replaced_our_cache_are_not_replaced(source, tmp_path):
    open_cache(source, cache=tmp_path / "cache")
    robocache.ingest(source, tmp_path / "cache", overwrite=True, index_columns=True)
    time = made_at(open_cache(source, cache=tmp_path / "cache"))
    change_actions(source)
    with pytest.raises(robocache.FileError, match="did not make it"):
        open_cache(source, cache=tmp_path / "cache")
    assert made_at(robocache.open(tmp_path / "cache")) == time
    default = Path(open_cache(source).path)
    shutil.copytree(default, tmp_path / "copy")
    change_actions(source)
    with pytest.raises(robocache.FileError, match="did not make it"):
        open_cache(source, cache=tmp_path / "copy")
    assert len(open_cache(source)) == 4  # the cache in the default folder is made again


def test_an_appended_cache_is_not_replaced(source, rng, tmp_path):
    robocache.ingest(source, tmp_path / "cache")
    robocache.ingest(write(tmp_path / "other", rng), tmp_path / "cache", append=True)
    episodes = len(robocache.open(tmp_path / "cache"))
    with pytest.raises(robocache.FileError, match="several episodes share a number, since it was appended to"):
        open_cache(source, cache=tmp_path / "cache")
    assert len(robocache.open(tmp_path / "cache")) == episodes


def test_one_error_has_all_differences_of_an_existing_cache(source, tmp_path):
    (source / "data/chunk-000/file-001.parquet").unlink()
    declare(source, {"observation.images.top": {"dtype": "video", "shape": [8, 8, 3], "names": None}})
    robocache.ingest(source, tmp_path / "cache", on_error="skip", video=False)
    with pytest.raises(robocache.FileError) as error:
        open_cache(source, cache=tmp_path / "cache")
    for words in (
        "its cameras were left out; video=False",
        "1 things were skipped (episodes 2-3, ...); on_error='skip'",
    ):
        assert words in str(error.value)
    assert len(open_cache(source, cache=tmp_path / "cache", on_error="skip", video=False)) == 2


def test_an_unreadable_file_is_an_error_with_the_option_to_skip_it(source):
    (source / "data/chunk-000/file-001.parquet").write_bytes(b"damaged")
    for make in (open_cache, robocache.LeRobotDataset):
        with pytest.raises(
            robocache.FileError, match=r"file-001\.parquet.*; on_error='skip' leaves out what cannot be read"
        ):
            make(source)


def test_skipped_files_are_tried_again(source):
    (source / "data/chunk-000/file-001.parquet").unlink()
    with pytest.raises(robocache.FileError, match="2 of the 4 episodes"):
        open_cache(source)
    assert len(open_cache(source, on_error="skip")) == 2
    with pytest.raises(robocache.FileError, match="2 of the 4 episodes"):
        open_cache(source)
    assert len(open_cache(source, on_error="skip")) == 2


def test_a_missing_dataset(tmp_path, monkeypatch, caches):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(robocache.FileError, match="hf download lerobot/pusht"):
        from_lerobot("lerobot/pusht", batch_size=1)
    with pytest.raises(robocache.ArgumentTypeError, match="path"):
        from_lerobot(3, batch_size=1)
    assert not caches.exists()


def test_a_damaged_cache_of_the_users_cache_folder(source, tmp_path):
    default = Path(open_cache(source).path)
    shutil.copytree(default, tmp_path / "cache")
    for cache in (default, tmp_path / "cache"):
        (cache / "manifest.json").write_text("{}")
    with pytest.raises(robocache.FileError, match=r"cache/manifest\.json: at byte 1: expected") as error:
        open_cache(source, cache=tmp_path / "cache")
    assert "rm -r" not in str(error.value)  # the path may be anything
    with pytest.raises(robocache.FileError, match=r"manifest\.json: at byte 1: expected.*; `rm -r") as error:
        open_cache(source)
    (command,) = re.findall("`(.*)`", str(error.value))
    subprocess.run(command, shell=True, check=True)
    assert len(open_cache(source)) == 4


def test_a_folder_that_is_no_lerobot_dataset(source, tmp_path, caches):
    robocache.ingest(source, tmp_path / "cache")
    for path in (source / "meta", source / "meta/info.json", tmp_path / "cache"):
        with pytest.raises(robocache.FileError, match="expected the folder of a LeRobot dataset, which") as error:
            from_lerobot(path, batch_size=1)
        assert str(error.value).startswith(f"{path}: ")
        assert ("robocache.open" in str(error.value)) == (path.name == "cache")
    assert not caches.exists()


def test_a_cache_folder_that_cannot_be_created(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(robocache.FileError, match="pass cache= with another path"):
        open_cache(source, cache=tmp_path / "file" / "cache")


def test_one_of_several_processes_makes_the_cache(source):
    context = multiprocessing.get_context("fork")  # a new interpreter would import for two seconds
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=open_together, args=(source, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    times = {results.get(timeout=300) for _ in processes}
    for process in processes:
        process.join()
    assert len(times) == 1
