"""A Loader's one order for any number of ranks, batch size and threads; its loops; stopping, killing and resuming."""

import collections
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from loaders_by_keywords import loader_by_keywords
from recordings import (
    ALL_WINDOWS,
    anchors_of,
    assert_same_batches,
    batches_of,
    forever,
    joined,
    position_of,
    small_loader,
    write,
    write_one_stream,
)
from reference.compare import to_numpy
from reference.mixture import draw
from soak import rounds
from torch.utils.data import DataLoader, DistributedSampler

import robocache


@pytest.fixture(autouse=True)
def single_rank(monkeypatch):
    """Removes the launcher's variables: each test is rank 0 of 1."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def rank_batches(count, start, batch_size, rank, world_size, drop_last):
    """Yields the positions of each batch of a rank, from position `start` on, by rule 36."""
    while start < count:
        samples = min(batch_size, -(-(count - start) // world_size))
        if drop_last and count - start < batch_size * world_size:
            return
        yield [(start + rank * samples + i) % count for i in range(samples)]
        start += world_size * samples


def indices_of(loader, ticks):
    """Returns, for each remaining batch of the epoch, the indices of its anchors among `ticks`."""
    index_of = {tick: index for index, tick in enumerate(ticks)}
    return [[index_of[tick] for tick in anchors_of([batch])] for batch in loader]


def all_indices_of(loader, ticks):
    return list(itertools.chain.from_iterable(indices_of(loader, ticks)))


@pytest.fixture(scope="module")
def one_stream(tmp_path_factory):
    return write_one_stream(tmp_path_factory.mktemp("ranks") / "cache", [50, 1, 60, 2, 98])


def loader_of(one_stream, **options):
    return small_loader(one_stream[0], **{"delta_timestamps": {"x": [-1e-6, 0.0]}, **options})


# ---- Ranks ----


@functools.cache
def anchor_at(position, seed=0, epoch=0):
    """Returns the index of the anchor at a position of an epoch of `one_stream`."""
    return draw(position, [211], seed=seed, epoch=epoch)[1]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 8, 30])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_rule_36_each_rank_has_a_slice_of_the_global_batch(one_stream, device, world_size, batch_size, drop_last):
    _, ticks = one_stream
    count, options = len(ticks), {"seed": 9, "batch_size": batch_size, "drop_last": drop_last, "device": device}
    for rank in range(world_size):
        loader = loader_of(one_stream, rank=rank, world_size=world_size, **options)
        assert (loader.rank, loader.world_size, loader.num_samples) == (rank, world_size, count)
        for epoch in range(2):
            batches = rank_batches(count, 0, batch_size, rank, world_size, drop_last)
            expected = [[anchor_at(position, 9, epoch) for position in batch] for batch in batches]
            assert len(loader) == len(expected)
            assert indices_of(loader, ticks) == expected


@pytest.mark.parametrize("batch_size", [1, 5, 64])
@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
@pytest.mark.parametrize("rows", [3, 64, 211])
def test_rule_36_an_epoch_is_filled_up_like_torchs_distributed_sampler(tmp_path, device, rows, world_size, batch_size):
    recording = [{"x": (np.arange(rows), np.zeros(rows))}]
    dataset = write(tmp_path / "cache", recording)
    our_counts, torch_counts = collections.Counter(), collections.Counter()
    for rank in range(world_size):
        options = {"batch_size": batch_size, "delta_timestamps": {"x": None}, "snap_s": 0, "device": device}
        options |= {"shuffle": False, "rank": rank, "world_size": world_size}
        loader = loader_by_keywords(dataset, **options)
        sampler = DistributedSampler(range(rows), world_size, rank, shuffle=False)
        torch_batches = list(DataLoader(range(rows), batch_size, sampler=sampler))
        batches = [to_numpy(batch["time_ns"]).tolist() for batch in loader]
        assert [len(batch) for batch in batches] == [len(batch) for batch in torch_batches]
        assert len(loader) == len(torch_batches)
        our_counts.update(itertools.chain(*batches))
        torch_counts.update(torch.cat(torch_batches).tolist())
        if rows >= batch_size * world_size:
            sampler = DistributedSampler(range(rows), world_size, rank, drop_last=True)
            torch_batches = DataLoader(range(rows), batch_size, sampler=sampler, drop_last=True)
            assert len(loader_by_keywords(dataset, drop_last=True, **options)) == len(torch_batches)
    assert our_counts == torch_counts


def test_rule_36_no_byte_depends_on_ranks_batch_size_threads_prefetch_or_tier(dataset, device, threads):
    """One epoch of every kind of stream is split in several ways."""
    options = {"delta_timestamps": ALL_WINDOWS, "anchor": "gripper", "seed": 2}
    options |= {"device": device, "normalize": "mean_std"}

    def epoch(world_size, batch_size, thread_count, **more_options):
        threads(thread_count)
        more_options |= {"world_size": world_size, "batch_size": batch_size}
        ranks = [small_loader(dataset, rank=r, **options, **more_options) for r in range(world_size)]
        return joined(itertools.chain(*zip(*ranks, strict=True)))

    expected = epoch(1, 1000, 1)
    count = len(expected["time_ns"])
    tiers = {"action": "mapped", "observation.imu": "pinned", "mode": "mapped"}
    for world_size, batch_size, thread_count, more_options in [
        (1, 7, 3, {"prefetch": 0}),
        (2, 5, 1, {"prefetch": 7}),
        (3, 4, 2, {"residency": "mapped"}),
        (4, 1, 2, {"residency": tiers, "prefetch": 1}),
    ]:
        got = epoch(world_size, batch_size, thread_count, **more_options)
        assert_same_batches([{key: rows[:count] for key, rows in got.items()}], [expected])


@pytest.mark.parametrize("batches", [0, 1, 3])
@pytest.mark.parametrize(("ranks_before", "batch_before"), [(4, 16), (4, 8), (1, 64)])
@pytest.mark.parametrize(("ranks_after", "batch_after"), [(2, 16), (2, 4), (1, 5), (7, 3)])
def test_rule_36_a_state_resumes_with_other_ranks_and_batch_size(
    one_stream, device, ranks_before, batch_before, ranks_after, batch_after, batches
):
    """No rank draws again what any rank has drawn; the rest keeps its order."""
    _, ticks = one_stream
    options = {"seed": 6, "device": device}
    states = []
    for rank in range(ranks_before):
        loader = loader_of(one_stream, rank=rank, world_size=ranks_before, batch_size=batch_before, **options)
        loader.set_epoch(3)
        loop = iter(loader)
        for _ in range(batches):
            next(loop)
        states.append(loader.state_dict())
    samples = min(batches * ranks_before * batch_before, len(ticks))
    assert position_of(loader) == {"seed": 6, "epoch": 3, "samples": samples}
    assert states == states[:1] * ranks_before
    for rank in range(ranks_after):
        loader = loader_of(one_stream, rank=rank, world_size=ranks_after, batch_size=batch_after, device=device)
        loader.load_state_dict(json.loads(json.dumps(states[0])))
        for epoch, start in ((3, samples), (4, 0)):
            batches = rank_batches(len(ticks), start, batch_after, rank, ranks_after, drop_last=False)
            expected = [[anchor_at(position, 6, epoch) for position in batch] for batch in batches]
            assert indices_of(loader, ticks) == expected


@pytest.mark.parametrize("step", [0, 1, 3, 4, 10**6])
def test_rule_36_a_former_state_with_steps_loads(one_stream, step):
    options = {"batch_size": 16, "rank": 1, "world_size": 4}
    old, new = loader_of(one_stream, **options), loader_of(one_stream, **options)
    old.load_state_dict({"seed": 3, "epoch": 2, "step": step})
    assert position_of(old) == {"seed": 3, "epoch": 2, "samples": min(step * 64, 211)}
    new.load_state_dict(old.state_dict())
    assert_same_batches(batches_of(old, 20), batches_of(new, 20))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"rank": 1}, "ranks: expected both"),
        ({"world_size": 2}, "ranks: expected both"),
        ({"rank": 2, "world_size": 2}, r"rank: expected in \[0, 2\), got 2"),
        ({"rank": -1, "world_size": 2}, r"rank: .*got -1"),
        ({"rank": 0, "world_size": 0}, "world_size: .*got 0"),
        ({"rank": 0, "world_size": 2**62}, "world_size: .*got 4611686018427387904"),
        ({"rank": 0.5, "world_size": 2}, "rank: .*0.5"),
        ({"rank": 0, "world_size": 200, "batch_size": 2, "drop_last": True}, "batch_size: expected at most the 1 "),
    ],
)
def test_invalid_ranks_are_refused(one_stream, options, part):
    with pytest.raises(robocache.Error, match=part):
        loader_of(one_stream, **options)


def test_the_environment_sets_the_rank(one_stream, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert (loader_of(one_stream).rank, loader_of(one_stream).world_size) == (0, 1)  # the number of ranks is unknown
    monkeypatch.setenv("WORLD_SIZE", "8")
    loader = loader_of(one_stream)
    assert (loader.rank, loader.world_size) == (3, 8)
    assert (loader_of(one_stream, rank=0, world_size=2).world_size) == 2
    monkeypatch.setenv("RANK", "8")
    with pytest.raises(robocache.ArgumentError, match=r"rank: expected in \[0, 8\), got 8"):
        loader_of(one_stream)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(robocache.ArgumentError, match=r"RANK: .*'first'"):
        loader_of(one_stream)


def test_torch_distributed_precedes_the_environment(one_stream, monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        loader = loader_of(one_stream)
    finally:
        torch.distributed.destroy_process_group()
    assert (loader.rank, loader.world_size) == (0, 1)


TRAIN = """
import json, os, sys
import torch
import torch.distributed as dist
import robocache

path, out = sys.argv[1:]
options = dict(batch_size=8, delta_timestamps={"x": None}, device="cpu", seed=4)
by_environment = robocache.Loader(robocache.open(path), **options)
dist.init_process_group("gloo")
loader = robocache.Loader(robocache.open(path), **options)
rank, ranks = dist.get_rank(), dist.get_world_size()
assert (loader.rank, loader.world_size) == (by_environment.rank, by_environment.world_size) == (rank, ranks)
times = []
for epoch in range(2):
    for batch, other in zip(loader, by_environment, strict=True):
        assert torch.equal(batch["time_ns"], other["time_ns"])
        parts = [torch.empty_like(batch["time_ns"]) for _ in range(ranks)]
        dist.all_gather(parts, batch["time_ns"])  # hangs or fails where ranks have batches of different sizes
        times.append([part.tolist() for part in parts])
assert (loader.seed, loader.epoch, loader.samples) == (4, 2, 0)
if rank == 0:
    json.dump(times, open(out, "w"))
dist.destroy_process_group()
"""


def environment(**variables):
    # Child processes import the package that runs here, installed or not.
    paths = f"{Path(robocache.__file__).parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables}


def test_torchrun_of_two_processes_shares_all_samples(one_stream, tmp_path):
    dataset, ticks = one_stream
    script, out = tmp_path / "train.py", tmp_path / "times.json"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = subprocess.run(
        [*command, str(script), dataset.path, str(out)], env=environment(), capture_output=True, text=True, timeout=1800
    )
    assert process.returncode == 0, process.stderr[-3000:]
    batches = json.loads(out.read_text())
    assert len(batches) == 2 * -(-len(ticks) // 16)
    index_of = {t: number for number, (_, t) in enumerate(ticks)}
    for epoch in range(2):
        epoch_batches = batches[epoch * len(batches) // 2 :][: len(batches) // 2]
        drawn = [index_of[t] for ranks in epoch_batches for rank in ranks for t in rank]
        first = drawn[0]
        assert sorted(drawn[: len(ticks)]) == list(range(len(ticks)))  # disjoint and complete
        assert drawn[len(ticks) :] == [first]  # 211 is odd: the first sample is repeated


# ---- Loops ----


def test_rule_36_break_ends_an_epoch(one_stream, device):
    _, ticks = one_stream
    loader = loader_of(one_stream, device=device)
    expected = [[anchor_at(p, 0, epoch) for p in range(211)] for epoch in range(5)]
    for epoch in range(2):
        for _ in loader:
            assert position_of(loader) == {"seed": 0, "epoch": epoch, "samples": 16}
            break
    assert all_indices_of(loader, ticks) == expected[2]
    assert all_indices_of(itertools.islice(loader, 3), ticks) == expected[3][:48]
    assert all_indices_of(itertools.islice(loader, 3), ticks) == expected[4][:48]


def test_rule_36_the_loop_after_a_state_is_the_rest_of_its_epoch(one_stream, device):
    _, ticks = one_stream
    loader = loader_of(one_stream, device=device)
    expected = [[anchor_at(p, 0, epoch) for p in range(211)] for epoch in range(9)]
    for _ in loader:
        break
    loader.load_state_dict(loader.state_dict())
    assert all_indices_of(loader, ticks) == expected[0][16:]
    loader.set_epoch(7)
    assert position_of(loader) == {"seed": 0, "epoch": 7, "samples": 0}
    assert all_indices_of(loader, ticks) == expected[7]
    assert all_indices_of(loader, ticks) == expected[8]
    loader.set_epoch(1)  # before each epoch, as with a DistributedSampler
    loader.set_epoch(1)
    assert all_indices_of(loader, ticks) == expected[1]
    for _ in loader:
        loader.set_epoch(5)  # in the middle of a loop: ends the loop
        inner = list(loader)
        break
    assert len(inner) == len(loader)


def test_rule_36_next_before_a_loop_takes_from_its_epoch(one_stream, device):
    _, ticks = one_stream
    loader = loader_of(one_stream, device=device)
    expected = [[anchor_at(p, 0, epoch) for p in range(211)] for epoch in range(2)]
    first = all_indices_of([next(loader), next(loader)], ticks)
    assert first + all_indices_of(loader, ticks) == expected[0]
    remaining = []
    with pytest.raises(StopIteration):
        while True:
            remaining.append(next(loader))
    assert all_indices_of(remaining, ticks) == expected[1]
    assert position_of(loader) == {"seed": 0, "epoch": 2, "samples": 0}


def test_a_sanity_check_skips_no_epoch(one_stream, device):
    """A trainer runs two batches of validation, then epochs of training, each followed by the whole validation."""
    _, ticks = one_stream
    train, validation = loader_of(one_stream, device=device, seed=1), loader_of(one_stream, device=device, seed=2)
    sanity = iter(validation)
    next(sanity), next(sanity)
    epochs = {"train": [], "validation": []}
    for _ in range(3):
        epochs["train"].append(all_indices_of(train, ticks))
        epochs["validation"].append(all_indices_of(iter(validation), ticks))
    del sanity
    for name, orders in epochs.items():
        assert all(sorted(epoch) == list(range(211)) for epoch in orders), name
        assert orders[0] != orders[1] != orders[2]
    assert epochs["train"][0] == [anchor_at(p, 1) for p in range(211)]


# ---- Stopping and resuming ----

TO_BE_KILLED = """
import json, os, sys
sys.modules["torch"] = None  # importing torch would take most of the time
import robocache

path, state, log = sys.argv[1:]
sources = [robocache.Source(robocache.open(path), weight=w, episodes=e) for w, e in ((2, [0, 1, 2]), (1, [4]))]
loader = robocache.Loader(robocache.Mixture(sources, samples_per_epoch=100), batch_size=8, delta_timestamps={"x": [0.0]},
                          seed=5, ranks=robocache.Ranks(rank=1, world_size=2), framework="numpy", device="cpu")
with open(log, "w") as lines:
    number = 0
    while True:
        for batch in loader:
            number += 1
            lines.write(json.dumps([batch["dataset_index"].tolist(), batch["x"].tolist()]) + "\\n")
            lines.flush()
            if number % 3 == 0:
                with open(state + ".part", "w") as out:
                    json.dump([number, loader.state_dict()], out)
                os.replace(state + ".part", state)
"""


def test_a_killed_run_resumes_exactly(one_stream, tmp_path):
    """After SIGKILL at any moment, the next run draws the same samples from the last saved state on."""
    state, log = tmp_path / "state.json", tmp_path / "log"
    sources = [
        robocache.Source(one_stream[0], weight=2, episodes=[0, 1, 2]),
        robocache.Source(one_stream[0], weight=1, episodes=[4]),
    ]
    options = {"batch_size": 8, "delta_timestamps": {"x": [0.0]}, "samples_per_epoch": 100, "framework": "numpy"}
    options |= {"rank": 1, "world_size": 2}

    def batches_from(loader, count):
        batches = itertools.islice(forever(loader), count)
        return [[batch["dataset_index"].tolist(), batch["x"].tolist()] for batch in batches]

    for _ in range(rounds(1)):
        state.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", TO_BE_KILLED, one_stream[0].path, str(state), str(log)], env=environment()
        )
        try:
            while process.poll() is None and not (state.exists() and json.loads(state.read_text())[0] >= 12):
                time.sleep(0.001)
        finally:
            process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        number, saved = json.loads(state.read_text())
        expected = batches_from(loader_by_keywords(sources, seed=5, **options), number + 40)
        records = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        assert number <= len(records)
        assert records[: len(expected)] == expected[: len(records)]
        resumed = loader_by_keywords(sources, **options)
        resumed.load_state_dict(saved)
        assert batches_from(resumed, 40) == expected[number:]


RANK_PROGRAM = """
import sys
sys.modules["torch"] = None
import robocache

path, rank = sys.argv[1:]
loader = robocache.Loader(path, batch_size=8, delta_timestamps={"x": [0.0]}, seed=5, framework="numpy", device="cpu",
                          memory=robocache.Memory(residency="pinned"),
                          ranks=robocache.Ranks(rank=int(rank), world_size=2))
while True:
    for batch in loader:
        print(batch["x"].tolist(), flush=True)
        sys.stdin.readline()
"""


def test_a_killed_rank_does_not_affect_others(one_stream):
    """A Loader waits for no other rank: the remaining rank gives the same batches in time."""
    options = {"batch_size": 8, "delta_timestamps": {"x": [0.0]}, "seed": 5, "framework": "numpy", "world_size": 2}
    batches = forever(loader_by_keywords(one_stream[0], rank=0, **options))
    expected = [batch["x"].tolist() for batch in itertools.islice(batches, 40)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_PROGRAM, one_stream[0].path, str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for rank in range(2)
    ]
    records = []
    try:
        for number in range(40):
            records.append(json.loads(running[0].stdout.readline()))
            print(file=running[0].stdin, flush=True)
            if number == 5:
                assert running[1].stdout.readline()  # the process has begun
                running[1].kill()
                killed_at = time.monotonic()
        assert time.monotonic() - killed_at < 30
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert records == expected
