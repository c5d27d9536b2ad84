"""Events around a running Loader: files that change, Ctrl-C, forks, threads, and an end at any moment."""

import gc
import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords
from recordings import FORKS, assert_same_batches, copied, forever, make_loader, position_of, record, run_forked, write
from reference.compare import to_numpy
from soak import rounds

import robocache

pytestmark = FORKS

MEMORY_OPTIONS = [
    {"prefetch": 0},
    {"prefetch": 2},
    {"prefetch": 3, "residency": "mapped"},
    {"prefetch": 2, "residency": {"action": "mapped"}, "reuse_buffers": True},
]


def take(loader, count=12):
    """Returns copies of the next `count` batches, also beyond the end of an epoch."""
    return [copied(batch) for batch in itertools.islice(forever(loader), count)]


# ---- Files that change ----


@pytest.fixture
def changeable(tmp_path):
    """A dataset whose files the test may damage."""
    return write(tmp_path / "cache", record(np.random.default_rng(21)))


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("residency", ["device", "pinned", "mapped"])
def test_a_file_that_is_cut_short_under_a_loader(changeable, device, residency, prefetch):
    dataset = changeable
    without_prefetch = make_loader(dataset, device, residency="device", prefetch=0)
    loader = make_loader(dataset, device, residency=residency, prefetch=prefetch)
    assert_same_batches(take(loader, 2), take(without_prefetch, 2))
    for file in ("values", "time_ns"):
        path = Path(dataset.path) / "streams" / "action" / f"{file}.npy"
        os.truncate(path, path.stat().st_size * 2 // 3)
    failed = 0
    for epoch in range(4):
        for samples in range(0, loader.num_samples, 24):
            state = {"seed": 0, "epoch": epoch, "samples": samples}
            for each_loader in (loader, without_prefetch):
                each_loader.load_state_dict(state)
            expected = copied(next(without_prefetch))
            try:
                batch = copied(next(loader))
            except robocache.FileError as error:
                assert "streams/action/values.npy: at byte " in str(error)
                assert "it was cut short" in str(error)
                assert position_of(loader) == state  # drawing again raises again
                with pytest.raises(robocache.FileError):
                    next(loader)
                failed += 1
            else:
                assert_same_batches([batch], [expected])
    assert (failed > 0) == (residency == "mapped")
    with pytest.raises(robocache.FileError, match=r"(time_ns|values)\.npy"):
        make_loader(robocache.open(dataset.path), device)


@pytest.mark.parametrize("replacement", ["writer", "rename", "removed"])
@pytest.mark.parametrize("residency", ["device", "mapped"])
def test_a_cache_that_is_replaced_under_a_loader(changeable, tmp_path, device, residency, replacement):
    dataset = changeable
    expected = take(make_loader(dataset, device, prefetch=0), 20)
    loader = make_loader(dataset, device, residency=residency)
    assert_same_batches(take(loader, 5), expected[:5])
    loader.load_state_dict({"seed": 0, "epoch": 0, "samples": 5 * 24})
    other_recording = record(np.random.default_rng(22))
    if replacement == "writer":
        write(dataset.path, other_recording, overwrite=True)
    elif replacement == "rename":
        write(tmp_path / "other_recording", other_recording)
        os.rename(dataset.path, tmp_path / "away")
        os.rename(tmp_path / "other_recording", dataset.path)
        shutil.rmtree(tmp_path / "away")
    else:
        shutil.rmtree(dataset.path)
    assert_same_batches(take(loader, 15), expected[5:])
    # A loader of the dataset opened before still has the old rows.
    assert_same_batches(take(make_loader(dataset, device, residency=residency), 20), expected)


# ---- Ctrl-C ----


def test_ctrl_c_ends_a_wait_at_once(tmp_path, threads):
    threads(1)
    times = np.arange(400) * 10**7
    poses = np.concatenate([np.ones((400, 4)), np.zeros((400, 3))], axis=1) + np.linspace(0, 1, 400)[:, None]
    dataset = write(tmp_path / "cache", [{"pose": (times, poses)}])

    def slow_loader(prefetch, batch_size):
        windows = {"pose": robocache.Window(np.linspace(0, 1, 8000), method="pose")}
        options = {"batch_size": batch_size, "prefetch": prefetch, "device": "cpu", "framework": "numpy"}
        return loader_by_keywords(dataset, delta_timestamps=windows, **options)

    def wait_and_rest_s(batch_size):
        """Interrupts the wait for the second batch: seconds from the signal to the exception, and then to the batch.

        None where the signal comes when the batch is there.
        """
        without_prefetch = slow_loader(0, batch_size)
        next(without_prefetch)
        expected = next(without_prefetch)
        loader = slow_loader(1, batch_size)
        next(loader)  # the loader also begins to make the next batch
        state = loader.state_dict()
        signal_times = []

        def send_ctrl_c():
            signal_times.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

        batch = None
        timer = threading.Timer(0.05, send_ctrl_c)
        timer.start()
        try:
            batch = next(loader)
            timer.join()
            time.sleep(0.1)  # if the signal comes too late
        except KeyboardInterrupt:
            interrupted_at = time.perf_counter()
            if loader.state_dict() == state:
                batch = next(loader)
                seconds = interrupted_at - signal_times[0], time.perf_counter() - interrupted_at
                assert_same_batches([batch], [expected])
                return seconds
        if batch is not None:  # None: the signal came between the wait and the assignment
            assert_same_batches([batch], [expected])
        return None

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # Other programs may delay the wait's end, but not by as much as a larger batch takes.
        attempts = (wait_and_rest_s(batch_size) for batch_size in (200, 400, 800, 1600, 3200))
        assert any(attempt is not None and attempt[0] < attempt[1] for attempt in attempts)
    finally:
        signal.signal(signal.SIGINT, handler)


# ---- Forks and other processes ----


@pytest.mark.parametrize("options", MEMORY_OPTIONS)
def test_parent_and_child_continue_after_a_fork(dataset, options):
    expected = take(make_loader(dataset, prefetch=0), 40)
    batches = forever(make_loader(dataset, **options))
    position = 0

    def check_next(count):
        nonlocal position
        for _ in range(count):
            assert_same_batches([copied(next(batches))], [expected[position]])
            position += 1
        return position

    check_next(5)
    for number in range(3):
        assert run_forked(lambda: check_next(6)) == 11 + 5 * number
        assert run_forked(lambda: check_next(2) and run_forked(lambda: check_next(3))) == 10 + 5 * number
        check_next(5)


def next_batches(loaders):
    return [batch for loader in loaders for batch in take(loader, 4)]


@pytest.mark.parametrize(("method", "count"), [("fork", 2), ("spawn", 1)])
def test_processes_of_multiprocessing_continue_from_the_parents_position(dataset, method, count):
    loaders = [make_loader(dataset, framework="numpy", **options) for options in MEMORY_OPTIONS[1:]]
    for loader in loaders:
        for _ in range(3):
            next(loader)
    with multiprocessing.get_context(method).Pool(count) as pool:
        results = pool.map(next_batches, [loaders] * count, chunksize=1)
    without_prefetch = make_loader(dataset, framework="numpy", prefetch=0)
    without_prefetch.load_state_dict({"seed": 0, "epoch": 0, "samples": 3 * 24})
    expected = take(without_prefetch, 4) * len(loaders)
    for result in [*results, next_batches(loaders)]:
        assert_same_batches(result, expected)


SCRIPT = """
import hashlib, itertools, sys
sys.modules["torch"] = None  # importing torch would take most of the time
import numpy as np
import robocache

dataset = robocache.open(sys.argv[1])
windows = {"observation.state": [-0.05, 0.0], "action": [0.0, 0.021], "mode": None}
loader = robocache.Loader(dataset, batch_size=24, delta_timestamps=windows, anchors="action", device="cpu", framework="numpy",
                          memory=robocache.Memory(residency=sys.argv[2], prefetch=3))
digest = hashlib.sha256()
for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), int(sys.argv[3])):
    for key in sorted(batch):
        digest.update(batch[key].tobytes())
print(digest.hexdigest())
"""


def run(dataset, residency, batches, ending="", **environment):
    process = subprocess.run(
        [sys.executable, "-W", "ignore::UserWarning", "-c", SCRIPT + ending, dataset.path, residency, str(batches)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert not process.stderr
    return process.stdout.strip()


ENDINGS = {
    "global": "",
    "cycle": "cycle = [loader]; cycle.append(cycle); del loader, cycle",
    "daemon": "import threading; threading.Thread(target=lambda: [list(loader) for _ in range(10**6)], daemon=True).start(); "
    "import time; time.sleep(0.02)",
    "leaked": "import ctypes; ctypes.pythonapi.Py_IncRef(ctypes.py_object(loader))",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_a_process_can_end_while_batches_are_made(dataset, ending):
    for _ in range(rounds(1)):
        run(dataset, "mapped", 3, "\n" + ending)


# ---- Deletion ----


def test_a_loader_can_be_deleted_at_any_moment(dataset, device):
    for number in range(rounds(150)):
        loader = make_loader(dataset, device, **MEMORY_OPTIONS[number % 4])
        batches = [next(loader) for _ in range(number % 3)]
        if number % 5 == 0:
            loader.load_state_dict({"seed": 1, "epoch": 2, "samples": number % loader.num_samples})
            batches.append(next(loader))
        if number % 7 == 0:
            loader.itself = loader  # a cycle, which only the collector frees
        del loader
        if number % 49 == 0:
            gc.collect()
        for batch in batches:
            assert np.isfinite(to_numpy(batch["action"])).all()
