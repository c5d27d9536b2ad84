"""The loader over many batches and in many forks: the same bytes, and neither memory nor files that stay behind."""

import hashlib
import os
import resource

import numpy as np
import pytest
from soak import rounds

import robocache

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("soak") / "cache"
    rng = np.random.default_rng(0)
    with robocache.Writer(path) as w:
        for _ in range(5):
            with w.episode() as ep:
                ep.append("state", np.arange(200) * 20_000_000, rng.normal(size=(200, 7)))
                ep.append("action", np.arange(120) * 33_333_333, rng.normal(size=(120, 3)).astype(np.float32))
    return robocache.open(path)


def loader_of(dataset):
    windows = {"state": [-0.05, 0.0], "action": [0.0, 0.03, 0.06]}
    return robocache.Loader(dataset, batch_size=16, delta_timestamps=windows, seed=3, framework="numpy")


def digest(batch):
    return hashlib.sha256(b"".join(batch[key].tobytes() for key in sorted(batch))).hexdigest()


def forever(loader):
    while True:
        yield from loader


def test_many_batches(dataset):
    loader = loader_of(dataset)
    batches = forever(loader)
    next(batches)
    open_files, memory_kib = len(os.listdir("/proc/self/fd")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(rounds(2500)):
        state = loader.state_dict()
        batch = next(batches)
        if number % 500 == 0 and state["samples"] < loader.num_samples:
            fresh = loader_of(dataset)
            fresh.load_state_dict(state)
            assert digest(next(fresh)) == digest(batch)
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kib < 32 << 10


def test_many_forks(dataset):
    """A child goes on where its parent stood, and the parent with it."""
    loader = loader_of(dataset)
    batches = forever(loader)
    for _ in range(rounds(3)):
        next(batches)
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(write_end, "".join(digest(next(batches)) for _ in range(5)).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        expected = "".join(digest(next(batches)) for _ in range(5))
        with os.fdopen(read_end) as pipe:
            assert pipe.read() == expected
        os.waitpid(child, 0)
