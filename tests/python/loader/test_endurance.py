"""The loader over many batches and in many forks gives the same bytes, and leaks neither memory nor files."""

import concurrent.futures
import gc
import hashlib
import itertools
import os
import resource

import numpy as np
import pytest
import torch
from loaders_by_keywords import loader_by_keywords
from recordings import FORKS, forever, run_forked, write
from reference.compare import to_numpy
from soak import rounds

import robocache

pytestmark = [pytest.mark.soak, FORKS]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    rng = np.random.default_rng(0)
    state_ns, action_ns = np.arange(200) * 20_000_000, np.arange(120) * 33_333_333
    recording = [
        {"state": (state_ns, rng.normal(size=(200, 7))), "action": (action_ns, rng.normal(size=(120, 3)).astype("f4"))}
        for _ in range(5)
    ]
    return write(tmp_path_factory.mktemp("soak") / "cache", recording)


WINDOWS = {"state": [-0.05, 0.0], "action": [0.0, 0.03, 0.06]}


def loader_of(dataset, device="cpu", **options):
    options |= {"batch_size": 16, "delta_timestamps": WINDOWS, "seed": 3, "device": device}
    return loader_by_keywords(dataset, framework="numpy" if device == "cpu" else "torch", **options)


def reusing_loader_of(dataset, device="cpu"):
    return loader_of(dataset, device, residency={"state": "mapped"}, reuse_buffers=True)


def mixture_of(dataset, device="cpu", residency="auto"):
    """Returns a loader for rank 1 of 2, with three weighted sources and many options."""
    sources = [
        robocache.Source(dataset, weight=5, episodes=[0, 1, 2]),
        robocache.Source(dataset, weight=2, rename={"state": "action", "action": "state"}),
        robocache.Source(dataset, weight=0.1, episodes=[4], anchor="state"),
    ]
    options = {"edges": "drop", "drop_n_last": 3, "offset_s": 0.01, "causal": {"state": True}, "return_age": True}
    options |= {"pad_features": True, "samples_per_epoch": 700, "rank": 1, "world_size": 2}
    return loader_of(sources, device, residency=residency, **options)


def mapped_mixture_of(dataset, device="cpu"):
    return mixture_of(dataset, device, residency={"state": "mapped"})


def digest(batch):
    return hashlib.sha256(b"".join(to_numpy(batch[key]).tobytes() for key in sorted(batch))).hexdigest()


@pytest.mark.parametrize("make", [loader_of, mixture_of, mapped_mixture_of, reusing_loader_of])
def test_many_batches(dataset, device, make):
    loader = make(dataset, device)
    batches = forever(loader)
    first_digest = digest(next(batches))
    gc.collect()  # closes files that other tests left open
    open_files, memory_kib = len(os.listdir("/proc/self/fd")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    device_bytes = 0 if device == "cpu" else torch.cuda.memory_allocated()
    for number in range(rounds(2500)):
        state = loader.state_dict()
        batch = next(batches)
        if number % 500 == 0 and state["samples"] < loader.num_samples:
            new_loader = make(dataset, device)
            new_loader.load_state_dict(state)
            assert digest(next(new_loader)) == digest(batch) != first_digest
    del batch, new_loader  # `new_loader` holds batches made ahead
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= open_files
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kib < 32 << 10
    assert device == "cpu" or torch.cuda.memory_allocated() <= device_bytes


def test_loaders_in_threads(dataset, device):
    """Loaders in threads give the same batches as loaders that run one after another. All read one dataset."""
    makers, count = [loader_of, mixture_of, mixture_of, mapped_mixture_of], rounds(200)

    def digests(make):
        return [digest(batch) for batch in itertools.islice(forever(make(dataset, device)), count)]

    expected = [digests(make) for make in makers]
    with concurrent.futures.ThreadPoolExecutor(len(makers)) as pool:
        assert list(pool.map(digests, makers)) == expected


@pytest.mark.parametrize("make", [loader_of, mapped_mixture_of, reusing_loader_of])
def test_many_forks(dataset, make):
    """Parent and child both continue from the parent's position."""
    loader = make(dataset)
    batches = forever(loader)

    def digests():
        return [digest(next(batches)) for _ in range(5)]

    for _ in range(rounds(3)):
        next(batches)
        assert run_forked(digests) == digests()
