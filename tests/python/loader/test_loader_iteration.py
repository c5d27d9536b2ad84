"""Nested, simultaneous and abandoned loops of a Loader; and states of another dataset, selection or order."""

import copy
import itertools
import json
import pickle
import threading

import numpy as np
import pytest
import torch
from loaders_by_keywords import loader_by_keywords
from recordings import anchors_of, position_of, ticks_of, write
from reference.compare import to_numpy
from reference.mixture import draw
from torch.utils.data import DataLoader, TensorDataset

import robocache

ROWS = [50, 1, 60, 2, 98]
COUNT, BATCH = sum(ROWS), 16
STEPS = -(-COUNT // BATCH)
MEMORY_OPTIONS = [
    {"prefetch": 0},
    {"prefetch": 3},
    {"prefetch": 2, "residency": "mapped"},
    {"prefetch": 0, "reuse_buffers": True},
    {"prefetch": 2, "reuse_buffers": True},
]


def recording_of(rng, rows=ROWS, offset_ns=0):
    return [{"x": (10**9 * e + offset_ns + np.arange(n) * 1000, rng.normal(size=(n, 3)))} for e, n in enumerate(rows)]


@pytest.fixture(scope="module")
def recording():
    return recording_of(np.random.default_rng(3))


@pytest.fixture(scope="module")
def dataset(recording, tmp_path_factory):
    return write(tmp_path_factory.mktemp("iteration") / "cache", recording)


@pytest.fixture
def make(dataset, device):
    def make(dataset=dataset, **options):
        options = {"batch_size": BATCH, "delta_timestamps": {"x": [0.0]}, "device": device} | options
        return loader_by_keywords(dataset, **options)

    return make


@pytest.fixture
def numbers_of(recording):
    """Returns a function from a batch to its anchors' indices among all ticks; it also checks the batch's values."""
    index_of = {tick: index for index, tick in enumerate(ticks_of(recording, "x"))}
    values = np.concatenate([streams["x"][1] for streams in recording]).astype(np.float32)

    def numbers_of(batch):
        numbers = [index_of[tick] for tick in anchors_of([batch])]
        np.testing.assert_array_equal(to_numpy(batch["x"])[:, 0], values[numbers])
        return numbers

    return numbers_of


def order_of(epoch, seed=0):
    return [draw(position, [COUNT], seed=seed, epoch=epoch)[1] for position in range(COUNT)]


def flatten(batches):
    return list(itertools.chain.from_iterable(batches))


# ---- Loops inside loops ----

INNER_LOOPS = {
    "one batch": lambda loader: next(iter(loader)),
    "an epoch": lambda loader: [0 for _ in loader],
    "three batches": lambda loader: list(itertools.islice(loader, 3)),
    "a loop left early": lambda loader: next(True for step, _ in enumerate(loader) if step == 2),
    "two epochs": lambda loader: [0 for _ in range(2) for _ in loader],
    "a loop with a loop in it": lambda loader: [next(iter(loader)) for _ in loader],
}


@pytest.mark.parametrize("options", MEMORY_OPTIONS)
@pytest.mark.parametrize("inner_loop", INNER_LOOPS.values(), ids=INNER_LOOPS)
def test_rule_36_an_inner_loop_does_not_change_the_outer(make, numbers_of, inner_loop, options):
    """The inner loop runs at the beginning, in the middle, or after the last batch; torch's DataLoader does the same."""
    dataloader = DataLoader(TensorDataset(torch.zeros(COUNT)), batch_size=BATCH)
    for inner_steps in ({0}, {5}, {STEPS - 1}, {0, 5, 6}):
        loader, numbers, steps = make(**options), [], 0
        for step, batch in enumerate(loader):
            if step in inner_steps:
                position = {"seed": 0, "epoch": 0, "samples": min(COUNT, (step + 1) * BATCH)}
                assert position_of(loader) == position
                inner_loop(loader)
                assert position_of(loader) == position
            numbers += numbers_of(batch)  # the inner loop has not overwritten it
        for step, _ in enumerate(dataloader):
            steps += 1
            if step in inner_steps:
                inner_loop(dataloader)
        assert len(numbers) == COUNT and steps == STEPS
        assert numbers == order_of(0)


@pytest.mark.parametrize("options", MEMORY_OPTIONS)
def test_rule_36_zip_of_a_loader_and_itself(make, numbers_of, options):
    loader = make(**options)
    numbers = [(numbers_of(a), numbers_of(b)) for a, b in zip(loader, loader, strict=True)]
    assert [flatten(part) for part in zip(*numbers, strict=True)] == [order_of(0), order_of(1)]
    assert flatten(map(numbers_of, loader)) == order_of(2)


@pytest.mark.parametrize("options", MEMORY_OPTIONS)
def test_rule_36_iterators_in_any_order(make, numbers_of, options):
    rng = np.random.default_rng(5)
    loader = make(**options)
    loops = [iter(loader) for _ in range(4)]
    numbers, last, alive = [[] for _ in loops], {}, set(range(4))
    while alive:
        index = int(rng.choice(sorted(alive)))
        try:
            batch = next(loops[index])
        except StopIteration:
            alive.remove(index)
            continue
        numbers[index] += numbers_of(batch)
        last[index] = batch, numbers[index][-len(batch["time_ns"]) :]
        for batch, expected in last.values():  # the last batch of each loop still has its values
            assert numbers_of(batch) == expected
    assert numbers == [order_of(epoch) for epoch in range(4)]
    assert next(loops[0], None) is None
    assert position_of(loader) == {"seed": 0, "epoch": 4, "samples": 0}


def test_reuse_buffers_has_constant_memory(make):
    loader = make(reuse_buffers=True, prefetch=2)
    addresses = set()
    for _ in range(6):
        for step, batch in enumerate(loader):
            addresses.add(batch["x"].data_ptr())
            if step == 3:
                addresses.add(next(iter(loader))["x"].data_ptr())
    assert len(addresses) <= 5  # the buffers of the outer loop, and one of the inner


def test_rule_36_the_state_is_that_of_the_oldest_living_iterator(make, numbers_of):
    loader = make()
    first, second = iter(loader), iter(loader)
    for _ in range(3):
        next(second)
    assert position_of(loader) == {"seed": 0, "epoch": 0, "samples": 0}
    next(first)
    assert position_of(loader) == {"seed": 0, "epoch": 0, "samples": BATCH}
    assert (loader.seed, loader.epoch, loader.samples) == (0, 0, BATCH)
    del first
    assert position_of(loader) == {"seed": 0, "epoch": 1, "samples": 3 * BATCH}
    third = iter(loader)
    next(third)
    assert position_of(loader) == {"seed": 0, "epoch": 1, "samples": 3 * BATCH}
    del second, third
    # No iterator is alive, so this is the newest iterator's state.
    assert position_of(loader) == {"seed": 0, "epoch": 2, "samples": BATCH}
    assert flatten(map(numbers_of, loader)) == order_of(3)


@pytest.mark.parametrize("step", [0, 4, STEPS - 1])
def test_rule_36_a_state_from_an_inner_loop_resumes_the_outer(make, numbers_of, step):
    loader, states = make(), []
    for outer, _ in enumerate(loader):
        if outer == step:
            for _ in loader:
                states.append(json.dumps(loader.state_dict()))
    assert len(states) == STEPS and len(set(states)) == 1
    resumed = make(batch_size=7, prefetch=0)
    resumed.load_state_dict(json.loads(states[0]))
    assert flatten(map(numbers_of, resumed)) == order_of(0)[(step + 1) * BATCH :]
    assert flatten(map(numbers_of, resumed)) == order_of(1)
    for loader_copy in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert position_of(loader_copy) == position_of(loader)


@pytest.mark.parametrize("inner_loop", INNER_LOOPS.values(), ids=INNER_LOOPS)
def test_rule_36_a_state_after_a_loop_begins_the_next(make, numbers_of, inner_loop):
    loader = make()
    for step, _ in enumerate(loader):
        if step == 2:
            inner_loop(loader)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert flatten(map(numbers_of, resumed)) == flatten(map(numbers_of, loader)) == order_of(resumed.epoch - 1)


def test_rule_36_a_copy_within_a_loop_continues_there(make, numbers_of):
    loader, numbers = make(), []
    for step, batch in enumerate(loader):
        if step == 3:
            numbers = flatten(map(numbers_of, copy.deepcopy(loader)))
        last_numbers = numbers_of(batch)
    assert numbers == order_of(0)[4 * BATCH :]
    assert last_numbers == order_of(0)[-len(last_numbers) :]


@pytest.mark.parametrize(
    "jump", [lambda x: x.set_epoch(7), lambda x: x.load_state_dict({"seed": 0, "epoch": 7, "samples": 0})]
)
def test_rule_36_a_jump_ends_every_loop(make, numbers_of, jump):
    loader, steps = make(), 0
    earlier = iter(loader)
    next(earlier)
    for outer, _ in enumerate(loader):
        for inner, _ in enumerate(loader):
            steps += 1
            if (outer, inner) == (1, 2):
                jump(loader)
    assert steps == STEPS + 3
    assert next(earlier, None) is None
    assert flatten(map(numbers_of, loader)) == order_of(7)


# ---- next(loader) and for ----


def test_no_batch_is_taken_while_set_epoch_moves(make, monkeypatch):
    """A batch taken after set_epoch has looked at the position would be lost."""
    loader, taken = make(), []
    load = loader.load_state_dict
    thread = threading.Thread(target=lambda: taken.append(next(loader)))

    def load_beside_a_thread(state):
        thread.start()
        thread.join(0.2)
        assert not taken
        load(state)

    monkeypatch.setattr(loader, "load_state_dict", load_beside_a_thread)
    loader.set_epoch(3)
    thread.join()
    assert position_of(loader) == {"seed": 0, "epoch": 3, "samples": BATCH}


@pytest.mark.parametrize("drop_last", [False, True])
def test_rule_36_a_loop_after_the_last_next_is_the_next_epoch(make, numbers_of, drop_last):
    loader = make(drop_last=drop_last)
    numbers = flatten(numbers_of(next(loader)) for _ in range(len(loader)))
    count = len(loader) * BATCH if drop_last else COUNT
    assert numbers == order_of(0)[:count]
    assert position_of(loader) == {"seed": 0, "epoch": 0, "samples": count}
    assert flatten(map(numbers_of, loader)) == order_of(1)[:count]
    # A state at the end of an epoch: nothing is left of that epoch.
    loader.load_state_dict({"seed": 0, "epoch": 4, "samples": count})
    assert list(loader) == []
    assert flatten(map(numbers_of, loader)) == order_of(5)[:count]


def test_rule_36_next_continues_the_newest_loop(make, numbers_of):
    loader = make()
    numbers = []
    for step, batch in enumerate(loader):
        numbers += numbers_of(batch)
        if step == 2:
            numbers += numbers_of(next(loader))  # this loop is the newest
        if step == 4:
            inner = iter(loader)
            inner_numbers = numbers_of(next(inner)) + numbers_of(next(loader)) + flatten(map(numbers_of, inner))
            assert inner_numbers == order_of(1)
            assert numbers_of(next(loader)) == order_of(2)[:BATCH]
    assert numbers == order_of(0)
    assert flatten(map(numbers_of, loader)) == order_of(2)[BATCH:]
    for _ in loader:
        break
    assert numbers_of(next(loader)) == order_of(3)[BATCH : 2 * BATCH]
    assert flatten(map(numbers_of, loader)) == order_of(4)


def test_rule_36_an_unused_iterator_skips_no_epoch(make, numbers_of):
    loader = make()
    iter(loader)
    assert flatten(map(numbers_of, loader)) == order_of(0)
    loader.load_state_dict({"seed": 0, "epoch": 3, "samples": 2 * BATCH})
    iter(loader)
    assert flatten(map(numbers_of, loader)) == order_of(3)[2 * BATCH :]


def test_rule_36_an_abandoned_generator_blocks_nothing(make, numbers_of):
    loader = make(reuse_buffers=True)

    def batches():
        yield from loader

    generator = batches()
    next(generator)
    for epoch in range(1, 4):
        assert flatten(map(numbers_of, loader)) == order_of(epoch)
        assert position_of(loader) == {"seed": 0, "epoch": 0, "samples": BATCH}  # the generator may still continue
    assert numbers_of(next(generator)) == order_of(0)[BATCH : 2 * BATCH]
    generator.close()
    assert position_of(loader) == {"seed": 0, "epoch": 4, "samples": 0}


def test_the_meter_counts_the_batches_of_all_loops(make):
    loader = make()
    for _ in loader:
        for _ in itertools.islice(loader, 2):
            pass
    assert loader.meter.batches == STEPS * 3


# ---- Threads ----


@pytest.mark.parametrize("options", MEMORY_OPTIONS[:3])
def test_rule_36_threads_share_an_epoch_and_may_have_inner_loops(make, numbers_of, options):
    """One thread also runs an inner loop: it gets another epoch, and the shared epoch continues."""
    loader = make(**options, batch_size=3)
    barrier, numbers, inner_numbers = threading.Barrier(3), [[] for _ in range(3)], []

    def loop(index):
        batches = iter(loader)
        barrier.wait()
        for step, batch in enumerate(batches):
            numbers[index] += numbers_of(batch)
            if index == 0 and step == 2:
                inner_numbers.extend(flatten(map(numbers_of, loader)))

    threads = [threading.Thread(target=loop, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(flatten(numbers)) == list(range(COUNT))
    # There are none if the other threads finished the epoch before the third batch of this thread.
    assert inner_numbers in ([], order_of(1))


# ---- Other arrays with a batch's memory ----


def test_reuse_buffers_overwrites_views_of_a_batch(make):
    """numpy by DLPack shares the memory, as jax.device_put does on the CPU."""
    loader = make(framework="numpy", device="cpu", reuse_buffers=True, shuffle=False)
    batch = next(loader)
    alias, copied = np.from_dlpack(batch["x"]), np.array(batch["x"], copy=True)
    assert np.shares_memory(alias, batch["x"])
    for _ in range(len(loader) - 1):
        next(loader)
    assert not np.array_equal(alias, copied)
    loader.load_state_dict({"seed": 0, "epoch": 0, "samples": 0})
    np.testing.assert_array_equal(next(loader)["x"], copied)
    without_reuse = make(framework="numpy", device="cpu", shuffle=False)
    views = [np.from_dlpack(batch["x"]) for batch in without_reuse]  # each batch has its own memory
    next_epoch = [batch["x"] for batch in without_reuse]
    assert all(map(np.array_equal, views, next_epoch))


# ---- In a DataLoader ----


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": None}, {"batch_size": 4}, {"batch_size": None, "num_workers": 1}]
)
def test_a_loader_needs_no_dataloader(make, options):
    with pytest.raises(TypeError, match="a Loader gives whole batches and needs no DataLoader"):
        next(iter(DataLoader(make(device="cpu"), **options)))
    with pytest.raises(robocache.ArgumentTypeError, match=r"for batch in loader"):
        make()[0]


# ---- States of other loaders ----


def test_rule_36_a_state_does_not_depend_on_windows_and_transforms(make, dataset):
    state = make(seed=4).state_dict()
    for options in (
        {"batch_size": 5},
        {"delta_timestamps": {"x": [-1e-6, 0.0, 0.5]}, "method": "previous"},
        {"rank": 1, "world_size": 3},
        {"residency": "mapped", "prefetch": 0},
        {"dtype": "float16", "normalize": "mean_std", "framework": "numpy", "device": "cpu"},
        {"drop_last": True, "reuse_buffers": True},
        {"episodes": range(5)},
        {"dataset": [robocache.Source(dataset)]},
        {"dataset": [robocache.Source(dataset, rename={"x": "y"})], "delta_timestamps": {"y": None}},
    ):
        loader = make(**options)
        loader.load_state_dict(state)
        assert loader.state_dict() == state, options


# name: (options, part of the message)
OTHER_SELECTIONS = {
    "episodes": ({"episodes": [1, 2, 3, 4]}, "another dataset or selection: 211 anchors then, 161 now"),
    "the order of episodes": ({"episodes": [2, 1, 0, 3, 4]}, "selection, though both have 211 anchors"),
    "drop_n_last": ({"drop_n_last": 1}, "another dataset or selection: 211 anchors then, 206 now"),
    "edges": ({"delta_timestamps": {"x": [0.0, 1e-6]}, "edges": "drop"}, "selection: 211 anchors then, 206 now"),
    "a rate": ({"anchor_hz": 1e6}, "another dataset or selection, though both have 211 anchors"),
    "shuffle": ({"shuffle": False}, "another order of the same 211 anchors; compare shuffle, weights"),
}


@pytest.mark.parametrize(("options", "part"), OTHER_SELECTIONS.values(), ids=OTHER_SELECTIONS)
def test_rule_36_a_state_of_another_selection_or_order_is_refused(make, options, part):
    first = make(seed=5)
    next(first), next(first)
    other = make(**options)
    next(other)
    state = other.state_dict()
    with pytest.raises(robocache.ArgumentError, match=f"^state: .*{part}"):
        other.load_state_dict(first.state_dict())
    assert other.state_dict() == state
    other.load_state_dict({key: x for key, x in first.state_dict().items() if key != "fingerprint"})
    assert other.seed == 5
    equal_loader = make(**options)
    equal_loader.load_state_dict(state)
    assert equal_loader.state_dict() == state


def test_rule_36_selections_of_equal_size_are_distinguished(tmp_path, make):
    """Twelve episodes of one length and the same stamps: each selection of two has its own fingerprint."""
    rng = np.random.default_rng(8)
    times = np.arange(20) * 1000
    dataset = write(tmp_path / "cache", [{"x": (times, rng.normal(size=(20, 3)))} for _ in range(12)])
    pairs = itertools.permutations(range(12), 2)
    assert len({make(dataset, episodes=pair).state_dict()["fingerprint"] for pair in pairs}) == 12 * 11


def test_rule_36_a_state_of_another_dataset_is_refused(tmp_path, make, recording):
    state = make().state_dict()
    rng = np.random.default_rng(9)
    equal_loader = make(write(tmp_path / "same", recording))
    equal_loader.load_state_dict(state)  # the same rows at another path
    for name, other, message in (
        ("values", recording_of(rng), "another dataset, whose 211 anchors lie at the same times"),
        ("stamps", recording_of(np.random.default_rng(3), offset_ns=1), "though both have 211 anchors"),
        ("rows", recording_of(rng, [50, 1, 60, 2, 98, 4]), "211 anchors then, 215 now"),
        ("other rows", recording_of(rng, [50, 1, 61, 2, 97]), "though both have 211 anchors"),
    ):
        loader = make(write(tmp_path / name, other))
        with pytest.raises(robocache.ArgumentError, match=message):
            loader.load_state_dict(state)


@pytest.mark.parametrize("episode", [0, 700, 1499])
def test_rule_36_a_state_of_other_stamps_amid_an_episode_is_refused(tmp_path, make, episode):
    """The number of rows, the first and the last stamp of each episode, and the values are the same."""

    def record(name, moved):
        times = [np.arange(5) * 1000 + number for number in range(1500)]
        if moved:
            times[episode] = times[episode] + [0, 0, 1, 0, 0]
        return write(tmp_path / name, [{"x": (stamps, np.ones((5, 3)))} for stamps in times])

    before, after = record("before", moved=False), record("after", moved=True)
    state = make(before).state_dict()
    make(record("same", moved=False)).load_state_dict(state)
    with pytest.raises(robocache.ArgumentError, match="though both have 7500 anchors"):
        make(after).load_state_dict(state)
    for options in ({"anchors": robocache.Anchors(every=2)}, {"edges": "drop"}):
        with pytest.raises(robocache.ArgumentError, match="though both have"):
            make(after, **options).load_state_dict(make(before, **options).state_dict())


def test_rule_36_a_state_from_before_an_append(tmp_path, make, recording):
    """The same episodes keep their order; a loader of all episodes now has more."""
    dataset = write(tmp_path / "cache", recording)
    earlier = make(dataset)
    next(earlier)
    grown = write(tmp_path / "cache", [{"x": (np.arange(30) * 1000, np.ones((30, 3)))}], append=True)
    assert len(grown) == 6
    with pytest.raises(robocache.ArgumentError, match=r"211 anchors then, 241 now; .*if `robocache append` was run"):
        make(grown).load_state_dict(earlier.state_dict())
    loader = make(grown, episodes=range(5))
    loader.load_state_dict(earlier.state_dict())
    assert loader.state_dict() == earlier.state_dict()


def test_rule_36_a_state_of_another_mixture_is_refused(dataset, make):
    def mixture(*weights, **options):
        selections = zip(weights, ([0, 1], [2], [4]), strict=False)
        return make([robocache.Source(dataset, weight=w, episodes=e) for w, e in selections], **options)

    state = mixture(2, 1, 1).state_dict()
    mixture(4, 2, 2, batch_size=3).load_state_dict(state)  # the same shares
    others = mixture(1, 1, 1), mixture(1, 1, 2), mixture(2, 1, 1, samples_per_epoch=50), mixture(None, None, None)
    for other in others:
        with pytest.raises(robocache.ArgumentError, match="another order of the same 209 anchors"):
            other.load_state_dict(state)
    state_at_2 = mixture(None, None, None, temperature=2.0).state_dict()
    with pytest.raises(robocache.ArgumentError, match="another order"):
        mixture(None, None, None, temperature=3.0).load_state_dict(state_at_2)
    with pytest.raises(robocache.ArgumentError, match="dataset or selection"):
        mixture(2, 1).load_state_dict(state)


def test_rule_36_states_with_episodes_for_each_rank(make):
    """One rank saves, all load; another number of ranks has another order."""
    ranks = [make(shard_episodes=True, world_size=2, rank=rank, batch_size=4) for rank in range(2)]
    state = ranks[0].state_dict()
    assert ranks[1].state_dict() == state
    ranks[1].load_state_dict(state)
    with pytest.raises(robocache.ArgumentError, match=r"shard_episodes"):
        make().load_state_dict(state)


@pytest.mark.parametrize("fingerprint", [None, 3, "", "1-2-3", "a", b"1-2-3-4"])
def test_an_invalid_fingerprint_is_refused(make, fingerprint):
    with pytest.raises(robocache.ArgumentError, match="fingerprint: expected a result of state_dict"):
        make().load_state_dict({"seed": 0, "epoch": 0, "samples": 0, "fingerprint": fingerprint})
