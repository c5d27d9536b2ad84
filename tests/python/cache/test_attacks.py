"""Unforeseen events: killed processes, full disks, several writers of one path, forks, forged manifests.

The path always holds one complete cache; a cache that does not open says why. `./dev attack` runs more than the few
rounds of each test.
"""

import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import time

import numpy as np
import pytest
from cache_files import append_files, write_manifest
from robocache.dataset import EncodedFrames
from soak import rounds

import robocache

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


def write(path, value, streams=1, **options):
    with robocache.Writer(path, **options) as writer, writer.episode() as episode:
        for stream in range(streams):
            episode.append(f"x{stream}", [0], [value])


def value_of(path):
    """Returns the value that all streams of a cache have; asserts that the cache is complete."""
    dataset = robocache.open(path, verify=True)
    values = {float(stream.values[0]) for stream in dataset.streams.values()}
    assert len(values) == 1
    return values.pop()


FORK = multiprocessing.get_context("fork")  # starting a new interpreter would take longer than the test


def start(work, *arguments):
    """Starts a process that runs `work`, and returns it when the work has begun."""
    has_begun = FORK.Event()
    process = FORK.Process(target=work, args=(has_begun, *arguments))
    process.start()
    assert has_begun.wait(60)
    return process


def kill(process):
    process.kill()
    process.join()


def record_for_ever(has_begun, path):
    with robocache.Writer(path, overwrite=True) as writer, writer.episode() as episode:
        for i in itertools.count(0, 1000):
            episode.append("x0", np.arange(i, i + 1000), np.full((1000, 200), 9.0))
            if i == 5000:
                has_begun.set()


def replace_for_ever(has_begun, path, streams):
    has_begun.set()
    for value in itertools.count(2):
        write(path, value, streams, overwrite=True)


# ---- killed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_exists", [False, True])
def test_a_killed_writer_leaves_the_old_cache(path, cache_exists):
    if cache_exists:
        write(path, 1.0)
    process = start(record_for_ever, path)
    with pytest.raises(robocache.FileError, match="another writer is at work on it"):
        robocache.Writer(path, overwrite=True)
    kill(process)
    if cache_exists:
        assert value_of(path) == 1.0
    else:
        with pytest.raises(robocache.FileError):
            robocache.open(path)
    with pytest.raises(robocache.FileError):
        robocache.open(f"{path}.partial")
    write(path, 2.0, overwrite=True)
    assert value_of(path) == 2.0
    assert sorted(p.name for p in path.parent.iterdir()) == ["cache"]


def test_a_kill_at_any_moment_of_overwriting(path, rng):
    write(path, 1.0)
    for _ in range(rounds(10)):
        process = start(replace_for_ever, path, 2)
        time.sleep(rng.uniform(0, 0.06))
        kill(process)
        assert value_of(path) >= 1.0
    write(path, 0.0, overwrite=True)
    assert sorted(p.name for p in path.parent.iterdir()) == ["cache"]


# ---- simultaneous processes ------------------------------------------------------------------------------------------


def test_opening_during_a_replacement(path):
    """A reader gets all files of one version, though files of the old one are removed while it opens them."""
    write(path, 1.0, streams=24)
    process = start(replace_for_ever, path, 24)
    try:
        seen_values = set()
        for _ in range(rounds(300)):
            seen_values.add(value_of(path))
        while len(seen_values) < 3:  # may take long on a slow disk
            assert process.is_alive()
            seen_values.add(value_of(path))
        assert process.is_alive()
    finally:
        kill(process)


def test_four_writers_of_one_path(path):
    """Each writer writes the whole cache, or is refused because another one writes."""
    written = FORK.Value("i", 0)

    def work(has_begun, value):
        has_begun.set()
        for _ in range(rounds(20)):
            try:
                write(path, value, streams=4, overwrite=True)
                with written.get_lock():
                    written.value += 1
            except robocache.FileError as error:
                assert "at work on it" in str(error) or "keep coming and going" in str(error), error

    processes = [start(work, float(value)) for value in range(4)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert written.value > 0
    assert value_of(path) in range(4)
    assert sorted(p.name for p in path.parent.iterdir()) == ["cache"]


def test_forks_cannot_harm_the_writer_or_the_dataset(path):
    write(path, 7.0)
    dataset = robocache.open(path)
    with robocache.Writer(path.parent / "forked") as writer, writer.episode() as episode:
        for i in range(rounds(20)):
            episode.append("x", [i], [1.0])
            child = os.fork()
            if child == 0:
                status = 0 if dataset.streams["x0"].values.tolist() == [7.0] else 1
                dataset.verify()
                try:
                    episode.append("x", [i], [2.0])
                    status = 1
                except robocache.ArgumentError:
                    pass
                del episode, writer  # the child's copies must not end the parent's episode or writer
                os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
    assert robocache.open(path.parent / "forked", verify=True).streams["x"].values.tolist() == [1.0] * rounds(20)


# ---- full disks ------------------------------------------------------------------------------------------------------


def test_a_full_disk_at_any_byte_keeps_the_old_cache(path, rng):
    """A limit on the size of files imitates the full disk."""
    write(path, 1.0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    values = rng.normal(size=(300_000, 2))
    try:
        for _ in range(rounds(10)):
            limit = int(rng.choice([rng.integers(0, 2000), rng.integers(0, values.nbytes)]))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            refused = pytest.raises(robocache.FileError, match="File too large")
            with refused, robocache.Writer(path, overwrite=True) as writer, writer.episode() as episode:
                episode.append("x", np.arange(len(values)), values)
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert value_of(path) == 1.0
            assert sorted(p.name for p in path.parent.iterdir()) == ["cache"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def small_disk(tmp_path):
    """A folder with room for 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"NOT RUN: no file system of 1 MiB: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_small_disk_that_fills_up_keeps_the_old_cache(small_disk, tmp_path, rng):
    too_many_rows = np.arange(200_000) * 100_000_000, rng.normal(size=200_000)
    write(small_disk / "cache", 1.0)
    for options in ({"overwrite": True}, {"append": True}):
        refused = pytest.raises(robocache.FileError, match=r"cache(\.partial)?/.*: .*No space left on device")
        with refused, robocache.Writer(small_disk / "cache", **options) as writer, writer.episode() as episode:
            episode.append("x0", *too_many_rows)
        assert value_of(small_disk / "cache") == 1.0
    with robocache.Writer(tmp_path / "large") as writer, writer.episode() as episode:
        episode.append("x0", *too_many_rows)
    (tmp_path / "logs").mkdir()
    rows = np.column_stack([np.arange(60_000) / 100, rng.normal(size=(60_000, 3))])
    np.savetxt(tmp_path / "logs/imu.csv", rows, delimiter=",")
    for fill in (
        lambda: robocache.export(tmp_path / "large", small_disk / "mcap", to="mcap"),
        lambda: robocache.export(tmp_path / "large", small_disk / "set", to="lerobot", fps=10, methods="nearest"),
        lambda: robocache.ingest(tmp_path / "logs", small_disk / "ingested"),
    ):
        with pytest.raises(robocache.FileError, match="No space left on device"):
            fill()
    assert sorted(path.name for path in small_disk.iterdir()) == ["cache"]
    robocache.open(small_disk / "cache", verify=True)


# ---- forged manifests ------------------------------------------------------------------------------------------------

JUNK = [None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64, 1e300, -0.5]
JUNK += ["", "x", "../../x", "\0", [], {}, [[]], {"a": 1}]


def json_items(value, items):
    """Appends every (container, key) of a JSON value to `items`, and returns them."""
    for key in value if isinstance(value, dict) else range(len(value)):
        items.append((value, key))
        if isinstance(value[key], dict | list):
            json_items(value[key], items)
    return items


def test_forged_manifests_with_right_checksums(path):
    """Numbers and names that contradict the files or each other are refused by name, or read without harm."""
    with robocache.Writer(path) as writer:
        writer.stream("camera", names=list("abcdefghijkl"))
        writer.stream("encoded", intrinsics=np.eye(3), resized={"size": [2, 3]})
        writer.stream("cloud", attributes={"units": ["m", "m"], "frame_id": "base"})
        for number in range(2):
            with writer.episode(task="a", tags=["b"]) as episode:
                episode.append("joint", np.arange(20), np.zeros((20, 3), np.float32))
                episode.append("camera", np.arange(3), np.full((3, 2, 2, 3), number, np.uint8))
                append_files(episode, "encoded", np.arange(2), [b"x" * 40, bytes([number])])
                episode.append("cloud", np.arange(3), np.full((5, 2), 2, np.int16), offsets=[0, 4, 4, 5])
                episode.append("said", np.arange(2), ["left", "to the right"])
    manifest = path / "manifest.json"
    content = manifest.read_text()
    rng = random.Random(0)
    opened = 0
    for _ in range(rounds(500)):
        forged = json.loads(content)
        for _ in range(rng.randint(1, 3)):
            container, key = rng.choice(json_items(forged, []))
            change = rng.choice(["junk", "remove", "copy", "swap"])
            other, other_key = rng.choice(json_items(forged, []))
            if change == "junk":
                container[key] = rng.choice(JUNK)
            elif change == "remove":
                del container[key]
            elif change == "copy":
                container[key] = json.loads(json.dumps(other[other_key]))
            # A swap must not put a container into itself.
            elif not any(item in (container[key], other[other_key]) for item in (container, other)):
                container[key], other[other_key] = other[other_key], container[key]
        write_manifest(path, forged)
        try:
            dataset = robocache.open(path, verify=True)
            assert len(dataset.episodes) == len(dataset) == len(dataset.select({}))
        except robocache.FileError as error:
            assert str(error).startswith(str(path))
            continue
        opened += 1
        for stream in dataset.streams.values():
            assert stream.rows == len(stream.time_ns) == stream.row_offsets[-1]
            if stream.ragged is not None:
                assert stream.offsets[[0, -1]].tolist() == [0, len(stream.values)]
                assert len(stream[:]) == stream.rows and len(stream.attributes) >= 0
                continue
            assert len(stream.values) == stream.rows
            if isinstance(stream.values, EncodedFrames):
                assert stream.values.data.sum() == 2 * 40 * ord("x") + 1
                assert stream.values.offsets[[0, -1]].tolist() == [0, len(stream.values.data)]
            else:
                assert np.isfinite(stream.values).all()
        assert len(repr(dataset)) and len(dataset.provenance) >= 0
    assert opened > 0
    manifest.write_text(content)
    assert robocache.open(path, verify=True).streams["camera"].values.ravel().tolist() == [0] * 36 + [1] * 36
