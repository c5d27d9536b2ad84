"""A Loader's prefetched batches, reused buffers, and the meter of waiting time."""

import itertools
import time

import numpy as np
import pytest
import torch
from recordings import assert_same_batches, copied, forever, make_loader
from reference.compare import assert_same_bits, to_numpy

import robocache

FRAMEWORKS = ["torch", "numpy"]


def addresses(batch):
    return {key: x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr() for key, x in batch.items()}


def epochs(loader, count=3):
    """Returns copies of every batch of `count` epochs."""
    return [copied(batch) for _ in range(count) for batch in loader]


# ---- prefetch ----


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"rank": 1, "world_size": 3}])
@pytest.mark.parametrize("residency", ["device", "mapped"])
def test_prefetch_does_not_change_batches(dataset, device, residency, options):
    expected = epochs(make_loader(dataset, device, prefetch=0, **options))
    for prefetch in (1, 2, 7, 32):
        for reuse in (False, True):
            loader = make_loader(
                dataset, device, residency=residency, prefetch=prefetch, reuse_buffers=reuse, **options
            )
            assert_same_batches(epochs(loader), expected)


def test_jumps_with_prefetch(dataset, device, rng):
    without_prefetch = make_loader(dataset, device, prefetch=0)
    prefetching = make_loader(dataset, device, prefetch=3, residency="mapped")
    reusing = make_loader(dataset, device, prefetch=2, reuse_buffers=True)
    for _ in range(25):
        state = {"seed": int(rng.integers(3)), "epoch": int(rng.integers(4))}
        state["samples"] = int(rng.integers(without_prefetch.num_samples))
        for loader in (without_prefetch, prefetching, reusing):
            loader.load_state_dict(state)
        for _ in range(int(rng.integers(1, 4))):
            if without_prefetch.epoch == state["epoch"]:
                assert prefetching.state_dict() == reusing.state_dict() == without_prefetch.state_dict()
            try:
                expected = copied(next(without_prefetch))
            except StopIteration:
                for loader in (prefetching, reusing):
                    with pytest.raises(StopIteration):
                        next(loader)
                continue
            assert_same_batches([copied(next(prefetching)), copied(next(reusing))], [expected] * 2)


def test_gather_does_not_change_prefetched_batches(dataset, device):
    without_prefetch = make_loader(dataset, device, prefetch=0)
    prefetching = make_loader(dataset, device, prefetch=2, reuse_buffers=True)
    for _ in range(3):
        batch = next(prefetching)
        before = copied(batch)
        gathered = copied(prefetching.gather([3, 1, 2]))
        assert_same_batches([copied(batch), gathered], [before, copied(without_prefetch.gather([3, 1, 2]))])
        assert_same_batches([before], [copied(next(without_prefetch))])


# ---- reuse_buffers ----


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_batch_reuses_the_memory_of_an_earlier_one(dataset, framework, prefetch):
    expected = epochs(make_loader(dataset, framework=framework, prefetch=0))
    loader = make_loader(dataset, framework=framework, prefetch=prefetch, reuse_buffers=True)
    seen_addresses, batches = set(), []
    for index, batch in enumerate(itertools.islice(forever(loader), 3 * len(loader))):
        assert_same_batches([copied(batch)], [expected[index]])
        assert all(isinstance(x, np.ndarray) == (framework == "numpy") for x in batch.values())
        seen_addresses.add(tuple(addresses(batch).values()))
        batches.append(batch)
    assert index == len(expected) - 1
    assert len(seen_addresses) <= prefetch + 2
    # Each batch is a new dict, with views of reused memory.
    assert len({id(batch) for batch in batches}) == len(batches)
    first_addresses = addresses(batches[0])
    later_batches = [batch for batch in batches[1:] if addresses(batch) == first_addresses]
    assert later_batches
    # Both batches now show the later values.
    rows = len(later_batches[-1]["time_ns"])
    assert_same_bits(to_numpy(batches[0]["time_ns"])[:rows], to_numpy(later_batches[-1]["time_ns"]))


def test_without_reuse_batches_keep_their_values(dataset, device):
    loader = make_loader(dataset, device)
    batches = list(itertools.islice(forever(loader), 40))
    expected = epochs(make_loader(dataset, device, prefetch=0), 1 + 40 // len(loader))[:40]
    assert_same_batches([copied(batch) for batch in batches], expected)
    assert len({tuple(addresses(batch).values()) for batch in batches}) == 40


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_smaller_last_batch_uses_the_same_memory(dataset, device, prefetch):
    loader = make_loader(dataset, device, prefetch=prefetch, reuse_buffers=True)
    last_size = loader.num_samples % loader.batch_size
    assert last_size
    for _ in range(3):
        sizes = [{len(x) for x in batch.values()} for batch in loader]
        assert sizes == [{24}] * (len(sizes) - 1) + [{last_size}]
    # The epoch continues at a sample that is no multiple of the batch size.
    loader.load_state_dict({"seed": 0, "epoch": 9, "samples": loader.num_samples - 25})
    assert [len(batch["time_ns"]) for batch in loader] == [24, 1]


def test_changes_of_a_batchs_dict_do_not_affect_the_next(dataset, device):
    loader = make_loader(dataset, device, prefetch=0, reuse_buffers=True)
    next(loader).clear()
    batch = next(loader)
    batch["action"] = None
    assert set(next(loader)) == set(next(make_loader(dataset, device)))


def test_a_batch_outlives_its_loader(dataset, device):
    for reuse in (False, True):
        loader = make_loader(dataset, device, reuse_buffers=reuse)
        next(loader)
        batch = next(loader)
        before = copied(batch)
        del loader
        assert_same_batches([copied(batch)], [before])


# ---- stream ----


def test_a_stream_needs_cuda_and_excludes_reuse_buffers(dataset, cuda):
    stream = torch.cuda.Stream()
    with pytest.raises(robocache.ArgumentError, match=r"^memory.stream: expected one of cpu, got one of cuda:0"):
        make_loader(dataset, "cpu", stream=stream)
    with pytest.raises(robocache.ArgumentError, match=r"^memory.stream: goes without reuse_buffers"):
        make_loader(dataset, cuda, stream=stream, reuse_buffers=True)


@pytest.mark.parametrize("residency", ["device", "pinned", "mapped", {"action": "mapped"}])
def test_batches_on_a_stream_are_the_same(dataset, cuda, residency):
    expected = epochs(make_loader(dataset, "cpu"))
    loader = make_loader(dataset, cuda, stream=torch.cuda.Stream(), residency=residency)
    assert_same_batches(epochs(loader), expected)
    loader.load_state_dict({"seed": 0, "epoch": 1, "samples": 24})
    assert_same_batches([copied(next(loader))], [expected[len(loader) + 1]])


def test_a_batch_on_a_stream_waits_for_readers_of_its_memory(dataset, cuda):
    """While the current stream still reads a batch, torch gives its memory to later batches."""
    expected = epochs(make_loader(dataset, "cpu"))
    loader = make_loader(dataset, cuda, stream=torch.cuda.Stream())
    work = torch.zeros(64 << 20, device=cuda)
    clones = []
    for batch in itertools.islice(forever(loader), 3 * len(loader)):
        work.add_(1)
        clones.append({key: x.clone() for key, x in batch.items()})
        del batch
    assert_same_batches([copied(batch) for batch in clones], expected)


# ---- The meter ----


def test_the_meter_has_the_loops_waiting_time(dataset):
    loader = make_loader(dataset)
    assert (loader.meter.batches, loader.meter.waited_s, loader.meter.elapsed_s, loader.meter.share) == (0, 0, 0, 0)
    assert str(loader.meter) == "0 batches: 0.000 of 0.000 s waited for data (0.0%)"
    assert repr(loader.meter) == f"robocache.Meter({loader.meter})"
    start = time.perf_counter()
    for _ in itertools.islice(loader, 5):
        time.sleep(0.01)
    loop_s = time.perf_counter() - start
    meter = loader.meter
    assert meter.batches == 5
    assert 0 < meter.waited_s < meter.elapsed_s - 0.04 + 1e-3
    assert 0.04 <= meter.elapsed_s < loop_s - 0.009  # time after the last batch is not counted yet
    assert meter.share == meter.waited_s / meter.elapsed_s
    assert str(meter) == (
        f"5 batches: {meter.waited_s:.3f} of {meter.elapsed_s:.3f} s waited for data ({meter.share:.1%})"
    )
    meter.reset()
    assert (meter.batches, meter.waited_s, meter.elapsed_s) == (0, 0, 0)
    next(loader)
    assert str(meter).startswith("1 batch: ")


def test_the_meter_counts_transforms_and_the_wait_for_another_threads_batch(dataset, monkeypatch):
    class SlowLock:
        """A lock that another thread holds for 50 ms."""

        def __enter__(self):
            time.sleep(0.05)

        def __exit__(self, *_):
            pass

    loader, slow = make_loader(dataset), make_loader(dataset)
    complete = slow._complete
    monkeypatch.setattr(slow, "_complete", lambda *arguments: (time.sleep(0.05), complete(*arguments))[1])
    monkeypatch.setattr(loader, "_lock", SlowLock())
    for each in (slow, loader):
        next(each)
        assert 0.05 <= each.meter.waited_s <= each.meter.elapsed_s


def test_the_meter_counts_only_batches_of_loops(dataset):
    loader = make_loader(dataset)
    for _ in range(2):
        for _ in loader:
            pass
    assert loader.meter.batches == 2 * len(loader)
    loader.gather([0])
    loader.load_state_dict({"seed": 0, "epoch": 0, "samples": loader.num_samples})
    with pytest.raises(StopIteration):
        next(loader)
    assert loader.meter.batches == 2 * len(loader)
