"""Appending to a finished cache: the result equals one writer's cache; after a failure the old cache remains."""

import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords
from soak import rounds

import robocache

FORK = multiprocessing.get_context("fork")
GOLDEN = Path(__file__).parents[2] / "golden"

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


def add_episode(writer, e, between=None):
    """Writes episode e, with every kind of stream. If `between` is given, appends in parts and calls it after each."""
    rng = np.random.default_rng(e)
    rows = 4000 + e
    times, values = np.arange(rows) * 10 + rng.integers(0, 5, rows), rng.normal(size=(rows, 40))
    after_part = between or (lambda: None)
    with writer.episode(number=e, **({"late": 0.5 * e} if e > 2 else {})) as episode:
        for part in np.array_split(np.arange(rows), 3 if between else 1):
            episode.append("joint", times[part], values[part])
            after_part()
        for part in np.array_split(np.arange(3), 3 if between else 1):
            episode.append("camera", part, np.full((len(part), 8, 8, 3), e, np.uint8), codec="png")
            after_part()
        episode.append("depth", np.arange(2), np.full((2, 8, 8), e, np.uint8), codec="png")
        episode.append("raw", np.arange(1), np.full((1, 8, 8, 3), e, np.uint8), codec="raw")
        after_part()
        for row, points in ((0, e), (1, 300)) if between else ():
            episode.append("cloud", [row], np.full((points, 3), e, np.float32), offsets=[0, points])
            after_part()
        if not between:
            episode.append("cloud", [0, 1], np.full((e + 300, 3), e, np.float32), offsets=[0, e, e + 300])
        episode.append("said", [5], [f"ä{e}"])
        if e > 1:
            episode.append(f"since {e}", [0], [e])


def describe(writer):
    writer.stream("joint", attributes={"units": "rad"})
    writer.stream("depth", unit_m=0.001, intrinsics=np.eye(3))
    writer.stream("cloud", clock="nominal", names=["x", "y", "z"])


def write(path, episodes, **options):
    with robocache.Writer(path, **options) as writer:
        describe(writer)
        writer.provenance["by"] = "hand"
        for e in episodes:
            add_episode(writer, e)


def check(dataset):
    """Asserts that every episode of the dataset is complete."""
    dataset.verify()
    count = len(dataset)
    assert dataset.episodes["number"].to_pylist() == list(range(count))
    assert [name for name in dataset.streams if name.startswith("since")] == [f"since {e}" for e in range(2, count)]
    for e in range(count):
        rows = dataset.episode(e)
        assert len(rows["joint"][0]) == 4000 + e
        assert (rows["camera"][1][:] == e).all() and (rows["cloud"][1].values == e).all()
        assert rows["said"][1][:] == [f"ä{e}"]
    assert dataset.stats["joint"].count[0] == sum(4000 + e for e in range(count))


def contents(path):
    """Returns the bytes of every file but the manifest, by the file's name without the generation."""
    files = {}
    for file in Path(path).rglob("*"):
        if file.is_file() and file.name != "manifest.json":
            first, *_, last = file.name.split(".")
            files[str(file.relative_to(path).with_name(f"{first}.{last}"))] = file.read_bytes()
    return files


def names_in(path):
    return sorted(str(file.relative_to(path)) for file in Path(path).rglob("*"))


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [[[0], [1], [2, 3]], [[], [0, 1, 2, 3]], [[0, 1, 2, 3], []], [[0, 1], [], [2], [3]]])
def test_appended_episodes_equal_those_written_at_once(path, parts):
    write(path, parts[0])
    for part in parts[1:]:
        write(path, part, append=True)
    write(path.parent / "at once", [e for part in parts for e in part])
    dataset, written_at_once = robocache.open(path), robocache.open(path.parent / "at once")
    check(dataset)
    assert contents(path) == contents(path.parent / "at once")
    assert list(dataset.streams) == list(written_at_once.streams)
    for name, stream in dataset.streams.items():
        other = written_at_once.streams[name]
        assert (stream.findings, stream.attributes, stream.names) == (other.findings, other.attributes, other.names)
        assert (stream.clock, stream.kind, repr(stream.frames)) == (other.clock, other.kind, repr(other.frames))
    assert dataset.provenance == {"by": "hand"}
    generation = len(parts) - 1
    assert f"episodes.{generation}.jsonl" in names_in(path) and "writer.lock" not in names_in(path)
    assert "episodes.jsonl" not in names_in(path) and len(names_in(path)) == len(names_in(path.parent / "at once"))
    assert np.load(path / "streams/joint/values.npy").shape == dataset.streams["joint"].values.shape


def test_an_append_begins_with_the_provenance_of_the_cache(path):
    write(path, [0])
    with robocache.Writer(path, append=True) as writer:
        assert writer.provenance == {"by": "hand"}
        writer.provenance["more"] = [1]
        add_episode(writer, 1)
    assert robocache.open(path).provenance == {"by": "hand", "more": [1]}


def test_a_dropped_episode_leaves_no_rows(path):
    write(path, [0, 1])
    opened = robocache.open(path)
    with robocache.Writer(path, append=True) as writer:
        with pytest.raises(RuntimeError), writer.episode() as episode:
            episode.append("joint", np.arange(90_000), np.zeros((90_000, 40)))  # many blocks
            episode.append("new", [0], [1])
            raise RuntimeError
        check(opened)
        check(robocache.open(path))
        add_episode(writer, 2)
    check(opened)
    check(robocache.open(path))
    write(path.parent / "at once", [0, 1, 2])
    assert contents(path) == contents(path.parent / "at once")


def test_files_of_others_in_the_folder_stay(path):
    write(path, [0])
    foreign = ["README.txt", "streams/joint/notes.txt", "streams/joint/stats.old.npy", "episodes.first.jsonl"]
    for name in foreign:
        (path / name).write_text("foreign")
    write(path, [1], append=True)
    assert [(path / name).read_text() for name in foreign] == ["foreign"] * 4


def test_an_aborted_append_changes_no_byte(path):
    write(path, [0, 1])
    before, files = contents(path), names_in(path)
    manifest = (path / "manifest.json").read_bytes()
    with pytest.raises(RuntimeError), robocache.Writer(path, append=True) as writer:
        add_episode(writer, 2)
        add_episode(writer, 3)
        raise RuntimeError
    assert contents(path) == before and names_in(path) == files
    assert (path / "manifest.json").read_bytes() == manifest


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_rows_that_do_not_fit_existing_streams_are_refused(path):
    write(path, [0])
    with robocache.Writer(path, append=True) as writer, writer.episode(number=1) as episode:
        for stream, values, options, message in (
            ("joint", np.zeros((1, 40), np.float32), {}, "expected values of float64"),
            ("joint", np.zeros((1, 39)), {}, r"expected values of shape \[n, 40\]"),
            ("joint", np.zeros((1, 8, 8, 3), np.uint8), {"codec": "png"}, "expected numbers"),
            ("camera", np.zeros((1, 8, 8, 3), np.uint8), {"codec": "jpeg"}, "expected png frames of rgb"),
            ("camera", np.zeros((1, 9, 8, 3), np.uint8), {"codec": "png"}, "expected values of shape"),
            ("cloud", np.zeros((1, 4), np.float32), {"offsets": [0, 1]}, "expected values of shape"),
            ("said", np.zeros((1, 3)), {}, "expected text"),
        ):
            with pytest.raises(robocache.Error, match=f"stream '{stream}': {message}"):
                episode.append(stream, [0], values, **options)
        for stream, options, message in (
            (
                "cloud",
                {"names": ["x", "z", "y"]},
                r"expected the names that it has in .*, or none, got names\[1\] 'z' for 'y'; .* another cache in a list of Sources",
            ),
            ("cloud", {"names": ["x", "y"]}, r"expected the names .* got names\[2\] nothing for 'z'"),
            ("joint", {"attributes": {"units": "deg"}}, "expected the attributes that it has in .*rad.*deg"),
            ("depth", {"unit_m": 0.002, "intrinsics": np.eye(3)}, "expected unit_m, intrinsics and resized"),
            ("joint", {"unit_m": 0.002}, "expected frames, as it was described"),
        ):
            with pytest.raises(robocache.ArgumentError, match=f"stream '{stream}': {message}"):
                writer.stream(stream, **options)
        writer.stream("cloud", clock="nominal")
        writer.stream("joint", clock="nominal", attributes={"units": "rad"})  # a recorded clock stays recorded
        writer.stream("depth", unit_m=0.001, intrinsics=np.eye(3))
    streams = robocache.open(path, verify=True).streams
    assert (streams["cloud"].names, streams["cloud"].clock) == (["x", "y", "z"], "nominal")
    assert (streams["joint"].attributes, streams["joint"].clock) == ({"units": "rad"}, "recorded")


def test_columns_keep_their_types(path):
    write(path, [0])
    with robocache.Writer(path, append=True) as writer:
        with pytest.raises(robocache.ArgumentError, match="'number': "):
            writer.episode(number="one").__enter__()
        add_episode(writer, 1)


def test_paths_that_are_no_cache_are_refused(path):
    for prepare in (lambda: None, path.mkdir, lambda: (path / "manifest.json").write_text("{}")):
        prepare()
        with pytest.raises(robocache.FileError, match=f"{path}: expected a cache to append to, got none"):
            robocache.Writer(path, append=True)
    with pytest.raises(robocache.ArgumentError, match="append: "):
        robocache.Writer(path, append=True, overwrite=True)
    shutil.rmtree(path)
    shutil.copytree(GOLDEN / "cache_v1", path)
    with pytest.raises(robocache.FileError, match=r"manifest.json: "):
        robocache.Writer(path, append=True)
    assert contents(path) == contents(GOLDEN / "cache_v1") and "writer.lock" not in names_in(path)


def test_a_cache_of_version_2_becomes_one_of_the_latest_version(path):
    shutil.copytree(GOLDEN / "cache_v2", path)
    opened = robocache.open(path)
    with robocache.Writer(path, append=True) as writer, writer.episode(task="more") as episode:
        episode.append("joint.position", [1], np.ones((1, 3), np.float32))
        episode.append("said", [1], ["more"])
    dataset = robocache.open(path, verify=True)
    assert '"schema_version": 3' in (path / "manifest.json").read_text()
    assert len(opened) == 4 and len(dataset) == 5
    assert dataset.streams["joint.position"].rows == 5 and dataset.streams["top"].frames == opened.streams["top"].frames
    assert dataset.streams["joint.position"].names == ["shoulder", "elbow", "wrist"]
    opened.verify()


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        # The last block, which append continues, would get a new checksum.
        *((name, -3) for name in ("joint/values.npy", "cloud/blob_offsets.npy", "camera/values.npy")),
        # New statistics of all rows would hide damage in the first block.
        *((name, 130) for name in ("joint/values.npy", "joint/time_ns.npy", "camera/time_ns.npy")),
    ],
)
def test_damage_of_files_that_append_reads_is_refused(path, name, offset):
    write(path, [0, 1])
    file = path / "streams" / name
    content = bytearray(file.read_bytes())
    assert name != "joint/values.npy" or len(content) > 2 << 20  # several blocks
    content[offset] ^= 1
    file.write_bytes(content)
    with pytest.raises(robocache.FileError, match=f"{file}: at byte .* expected CRC-32"):
        robocache.Writer(path, append=True)
    assert file.read_bytes() == content


def test_a_cache_of_the_largest_generation_is_not_appended_to(path):
    write(path, [0])
    largest = 2**63 - 1
    for name in ("episodes.jsonl", "row_offsets.npy", "stats.npy"):
        for file in list(path.rglob(name)):
            file.rename(file.with_name(name.replace(".", f".{largest}.")))
    body = (path / "manifest.json").read_text().rpartition('  "crc32": "')[0]
    body = body.replace('"generation": 0', f'"generation": {largest}')
    for name in ("episodes.jsonl", "row_offsets.npy", "stats.npy"):
        body = body.replace(name, name.replace(".", f".{largest}."))
    manifest = body + f'  "crc32": "{zlib.crc32(body.encode()):08x}"\n}}\n'
    (path / "manifest.json").write_text(manifest)
    robocache.open(path, verify=True)
    with pytest.raises(robocache.FileError, match="in 'generation': expected one that another can follow"):
        robocache.Writer(path, append=True)
    assert (path / "manifest.json").read_text() == manifest
    robocache.open(path, verify=True)


def test_one_writer_at_a_time(path):
    write(path, [0])
    first = robocache.Writer(path, append=True)
    with pytest.raises(robocache.FileError, match="another writer is at work on it"):
        robocache.Writer(path, append=True)
    other = robocache.Writer(path, overwrite=True)
    with other.episode() as episode:
        episode.append("other", [0], [0])
    with pytest.raises(robocache.FileError, match="another writer is at work on it"):
        other.close()
    add_episode(first, 1)
    first.close()
    check(robocache.open(path))
    other.close()
    assert list(robocache.open(path).streams) == ["other"]


def append_for_a_second(path, count):
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            with robocache.Writer(path, append=True) as writer, writer.episode() as episode:
                episode.append("joint", [0, 1], [0.0, 1.0])
        except robocache.FileError as error:
            assert str(error) == f"{path}: another writer is at work on it", error
        else:
            with count.get_lock():
                count.value += 1


def test_simultaneous_writers_add_or_are_refused(path):
    with robocache.Writer(path):
        pass
    count = FORK.Value("i", 0)
    writers = [FORK.Process(target=append_for_a_second, args=(path, count)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(robocache.open(path, verify=True)) == count.value > 0
    assert sorted(file.name for file in path.iterdir()) == [f"episodes.{count.value}.jsonl", "manifest.json", "streams"]


# ---- readers meanwhile -----------------------------------------------------------------------------------------------


def run_in_another_process(work):
    process = FORK.Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("residency", ["device", "mapped"])
def test_a_loader_continues_its_epoch_during_an_append(path, residency):
    write(path, [0, 1])
    options = {
        "delta_timestamps": {"joint": [-1e-8, 0.0], "camera": [0.0]},
        "batch_size": 512,
        "device": "cpu",
        "framework": "numpy",
        "anchor": "joint",
        "residency": residency,
    }
    expected = [
        {key: array.copy() for key, array in b.items()} for b in loader_by_keywords(robocache.open(path), **options)
    ]
    loader = loader_by_keywords(robocache.open(path), **options)
    batches = iter(loader)
    got = [next(batches)]
    for e in range(2, 5):
        run_in_another_process(lambda e=e: write(path, [e], append=True))
        got.append(next(batches))
    got.extend(batches)
    assert len(got) == len(expected) > 10
    for batch, expected_batch in zip(got, expected, strict=True):
        assert all(np.array_equal(batch[key], expected_batch[key]) for key in expected_batch)
    check(loader.dataset)
    assert len(loader.dataset) == 2 and len(robocache.open(path)) == 5
    # As docs/loader.md says: to resume in another process, name the episodes that existed before.
    resumed = loader_by_keywords(robocache.open(path), **options, episodes=range(2))
    resumed.load_state_dict({"seed": 0, "epoch": 0, "samples": 4 * len(expected[0]["time_ns"])})
    for batch, expected_batch in zip(resumed, expected[4:], strict=True):
        assert all(np.array_equal(batch[key], expected_batch[key]) for key in expected_batch)
    check(robocache.open(path))


def append_until_seen(path, has_begun, seen_lengths):
    """Appends eleven episodes, then more until the reader has seen four lengths: on a busy machine it may be slow."""
    has_begun.set()
    for e in itertools.count(1):
        if e > 11 and seen_lengths.value > 3:
            return
        write(path, [e], append=True)


@pytest.mark.soak
def test_opening_during_an_append(path):
    """A reader sees the episodes from before or after an append, and later appends change nothing for it."""
    write(path, [0])
    has_begun, seen_lengths = FORK.Event(), FORK.Value("i", 0)
    process = FORK.Process(target=append_until_seen, args=(path, has_begun, seen_lengths))
    process.start()
    assert has_begun.wait(60)
    readers, length = {}, 0  # one reader for each length, since the number of mappings of a process is limited
    while process.is_alive():
        opened = robocache.open(path)
        assert len(opened) >= length
        length = len(opened)
        check(opened)
        readers.setdefault(length, opened)
        seen_lengths.value = len(readers)
    assert process.exitcode == 0 and len(robocache.open(path)) >= 12
    assert len(readers) > 3
    for dataset in readers.values():
        check(dataset)


# ---- killed, and full disks ------------------------------------------------------------------------------------------


def append_for_ever(path, has_begun, first):
    has_begun.set()
    for e in range(first, 10_000):
        write(path, [e], append=True)


@pytest.mark.soak
def test_a_kill_at_any_moment_of_an_append(path):
    rng = random.Random(0)
    write(path, [0])
    start = time.perf_counter()
    write(path, [1], append=True)
    append_s = time.perf_counter() - start
    readers = [robocache.open(path)]
    for _ in range(rounds(20)):
        if len(readers[-1]) > 25:  # begins again, because each append reads the whole cache
            shutil.rmtree(path)
            write(path, [0])
            readers = [robocache.open(path)]
        before = len(readers[-1])
        has_begun = FORK.Event()
        process = FORK.Process(target=append_for_ever, args=(path, has_begun, before))
        process.start()
        assert has_begun.wait(60)
        time.sleep(rng.uniform(0, 2.5 * append_s))
        process.kill()
        process.join()
        readers.append(robocache.open(path))
        assert len(readers[-1]) >= before
        check(readers[-1])
    check(readers[0])
    count = len(readers[-1])
    write(path, [count], append=True)
    check(robocache.open(path))
    write(path.parent / "at once", range(count + 1))
    assert contents(path) == contents(path.parent / "at once")
    assert len(names_in(path)) == len(names_in(path.parent / "at once"))


@pytest.mark.soak
def test_a_full_disk_at_any_byte_leaves_the_old_cache(path):
    """A limit on the size of files imitates the full disk."""
    rng = random.Random(1)
    write(path, [0])
    before, files = contents(path), names_in(path)
    values_bytes = os.path.getsize(path / "streams/joint/values.npy")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for _ in range(rounds(10)):
            limit = rng.choice([rng.randint(0, 3000), rng.randint(values_bytes, 2 * values_bytes)])
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
            try:
                with pytest.raises(robocache.FileError, match="File too large"):
                    write(path, [1], append=True)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            check(robocache.open(path))
            assert names_in(path) == files
            assert contents(path) == before
    finally:
        signal.signal(signal.SIGXFSZ, handler)
    write(path, [1], append=True)
    check(robocache.open(path))


def test_close_can_be_repeated_after_a_failure(path):
    write(path, [0])
    writer = robocache.Writer(path, append=True)
    add_episode(writer, 1)
    (path / "manifest.json.new").mkdir()
    with pytest.raises(robocache.FileError, match=r"manifest\.json\.new"):
        writer.close()
    check(robocache.open(path))
    assert len(robocache.open(path)) == 1
    (path / "manifest.json.new").rmdir()
    writer.close()
    assert len(robocache.open(path)) == 2
    check(robocache.open(path))


# ---- commits of one writer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("append", [False, True])
def test_a_cache_with_commits_equals_one_without(path, append):
    if append:
        write(path, [0])
    readers = []
    with robocache.Writer(path, append=append) as writer:

        def commit():
            writer.commit()
            dataset = robocache.open(path, verify=True)
            joint = dataset.streams["joint"]
            readers.append((dataset, np.array(joint.values), joint.row_offsets.tolist(), len(dataset)))

        describe(writer)
        writer.provenance["by"] = "hand"
        for e in range(append, 4):  # an append adds to episode 0
            add_episode(writer, e, commit)
            commit()
        with pytest.raises(robocache.FileError, match="writer"):
            robocache.Writer(path, append=True)
    write(path.parent / "at once", range(4))
    check(robocache.open(path))
    assert contents(path) == contents(path.parent / "at once") and "writer.lock" not in names_in(path)
    lengths = [len(values) for _, values, _, _ in readers]
    assert lengths == sorted(lengths) and len(set(lengths)) > 8
    for dataset, values, offsets, episodes in readers:  # each keeps the rows from when it was opened
        np.testing.assert_array_equal(dataset.streams["joint"].values, values)
        assert dataset.streams["joint"].row_offsets.tolist() == offsets and len(dataset) == episodes


def test_rows_after_the_last_commit_are_dropped(path):
    with pytest.raises(KeyError), robocache.Writer(path) as writer:
        with writer.episode(number=0) as episode:
            episode.append("a", [0, 1], [0.0, 1.0])
            writer.commit()
            episode.append("a", [2], [2.0])
            episode.end(good=True)
        with pytest.raises(ZeroDivisionError), writer.episode(number=1) as episode:
            episode.append("a", [0], [7.0])
            episode.append("b", [0], [7.0])
            raise ZeroDivisionError
        with (
            pytest.raises(ZeroDivisionError),
            writer.episode(number=2) as episode,
        ):  # the committed part of the episode remains
            episode.append("a", [0], [8.0])
            writer.commit()
            episode.append("a", [1], [9.0])
            raise ZeroDivisionError
        writer.commit()
        with writer.episode(number=3) as episode:
            episode.append("a", [0], [10.0])
            episode.append("c", [0], [10.0])
        raise KeyError
    dataset = robocache.open(path, verify=True)
    assert list(dataset.streams) == ["a"] and dataset["a"].values.tolist() == [0, 1, 2, 8, 9]
    assert dataset["a"].row_offsets.tolist() == [0, 3, 5]
    assert dataset.episodes.to_pydict() == {
        "episode_index": [0, 1], "start_ns": [0, 0], "end_ns": [2, 1], "number": [0, 2], "good": [True, None],
    }  # fmt: skip
    assert "writer.lock" not in names_in(path)
    robocache.Writer(path, append=True).abort()
    assert robocache.open(path, verify=True)["a"].rows == 5
