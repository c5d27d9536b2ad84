"""Loader: how often anchors are drawn: by a column of weights, and each value of a column as often as any other."""

import collections
import pickle
import re

import numpy as np
import pyarrow.compute as pc
import pytest
from recordings import write
from reference.compare import to_numpy

import robocache
from robocache import Source

BLOCK = 65_536
TASKS = ["pick", "place", "pick", "wipe", "pick"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "cache"
    with robocache.Writer(path) as writer:
        for number, task in enumerate(TASKS):
            rows = 20 + 10 * number
            times = np.arange(rows) * 10**7
            with writer.episode(task=task, quality=number, bad=-number if number else None) as episode:
                episode.append("arm", times, np.arange(rows * 2.0).reshape(rows, 2) + 1000 * number)
                episode.append("weight", times, (np.arange(rows) % 4).astype(np.int32))
                episode.append("fine", times, np.random.default_rng(number).gamma(1.0, size=rows))
                episode.append(
                    "skill",
                    times[:: rows // 3],
                    [["reach", "grasp", "lift", "reach"][k % 4] for k in range(len(times[:: rows // 3]))],
                )
    return robocache.open(path)


def opened(sources, **options):
    options = {"batch_size": BLOCK, "delta_timestamps": {"arm": None}, "anchors": "arm", "device": "cpu"} | options
    return robocache.Loader(sources, **options)


def block(loader):
    """(source, episode, row) of each draw of a block."""
    batch = next(loader)
    names = ("dataset_index", "episode_index", "time_ns")
    source, episode, time_ns = (to_numpy(batch[name]) for name in names)
    assert len(source) == BLOCK
    return list(zip(source.tolist(), episode.tolist(), (time_ns // 10**7).tolist(), strict=True))


def mixture(*sources):
    return robocache.Mixture(list(sources), samples_per_epoch=4 * BLOCK)


def test_rule_35_1_an_anchor_is_drawn_in_proportion_to_its_weight(dataset, device):
    weights = {(e, r): r % 4 for e, n in enumerate([20, 30, 40, 50, 60]) for r in range(n)}
    loader = opened(mixture(Source(dataset, weight_by="weight")), device=device)
    assert loader.num_anchors == sum(w > 0 for w in weights.values())
    for _ in range(3):
        counts = collections.Counter((e, r) for _, e, r in block(loader))
        for number in range(4):
            of_class = [key for key, weight in weights.items() if weight == number]
            share = BLOCK * number * len(of_class) / sum(weights.values())
            assert abs(sum(counts[key] for key in of_class) - share) < 1
            # Each round of the class has each of its anchors once.
            assert all(abs(counts[key] - share / len(of_class)) <= 2 for key in of_class)


def test_a_column_of_the_episodes_weighs(dataset, device):
    counts = collections.Counter(
        e for _, e, _ in block(opened(mixture(Source(dataset, weight_by="quality")), device=device))
    )
    total = sum(e * (20 + 10 * e) for e in range(5))
    assert set(counts) == {1, 2, 3, 4}
    assert all(abs(counts[e] - BLOCK * e * (20 + 10 * e) / total) < 1 for e in range(5))


def test_more_weights_than_classes_stay_in_proportion(tmp_path):
    rows = 3000
    weights = np.random.default_rng(0).uniform(0.5, 8, rows)
    dataset = write(
        tmp_path / "cache",
        [{"arm": (np.arange(rows) * 10**7, np.zeros((rows, 2))), "w": (np.arange(rows) * 10**7, weights)}],
    )
    loader = opened(mixture(Source(dataset, weight_by="w")))
    counts = sum(np.bincount([row for _, _, row in block(loader)], minlength=rows) for _ in range(4))
    expected = 4 * BLOCK * weights / weights.sum()
    assert (abs(counts - expected) <= 0.03 * expected + 2).all()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("task", lambda e, r: TASKS[e]),
        ("skill", lambda e, r: ["reach", "grasp", "lift", "reach"][r // ((20 + 10 * e) // 3)]),
    ],
)
def test_rule_35_2_each_value_has_the_same_share(dataset, device, column, value):
    loader = opened(mixture(Source(dataset, balance=column)), device=device)
    every = [(e, r) for e in range(5) for r in range(20 + 10 * e)]
    assert loader.num_anchors == len(every)
    of_value = collections.Counter(value(e, r) for e, r in every)
    for _ in range(2):
        drawn = [(e, r) for _, e, r in block(loader)]
        counts = collections.Counter(value(e, r) for e, r in drawn)
        assert max(counts.values()) - min(counts.values()) <= 1
        each = collections.Counter(drawn)
        assert all(abs(each[key] - counts[value(*key)] / of_value[value(*key)]) <= 2 for key in every)


def test_sources_keep_their_own_shares_and_numbers(dataset, device):
    sources = mixture(
        Source(dataset, 0.25, balance="task"),
        Source(dataset, 0.5, anchors=robocache.Anchors(where=pc.field("arm[0]") >= 1000)),
        Source(dataset, 0.25, weight_by="weight", episodes=[0, 3]),
    )
    loader = opened(sources, device=device)
    drawn = block(loader)
    assert collections.Counter(source for source, _, _ in drawn) == {0: BLOCK // 4, 1: BLOCK // 2, 2: BLOCK // 4}
    assert {e for source, e, _ in drawn if source == 1} == {1, 2, 3, 4}
    assert {e for source, e, _ in drawn if source == 2} == {0, 3}
    assert all(r % 4 for source, _, r in drawn if source == 2)
    batch = next(loader)
    again = loader.gather(batch["anchor_index"])
    for name in batch:
        assert (to_numpy(batch[name]) == to_numpy(again[name])).all(), name


def test_ranks_share_and_a_run_goes_on_in_the_middle(dataset, device):
    def at(rank=0, world_size=1, batch_size=64, **options):
        sources = robocache.Mixture(
            [Source(dataset, weight_by="weight"), Source(dataset, balance="task")], samples_per_epoch=640
        )
        ranks = robocache.Ranks(rank=rank, world_size=world_size)
        return opened(sources, batch_size=batch_size, ranks=ranks, seed=3, device=device, **options)

    def moments(batches):
        return [
            tuple(x)
            for b in batches
            for x in zip(*(to_numpy(b[n]).tolist() for n in ("dataset_index", "anchor_index")), strict=True)
        ]

    alone = moments(at())
    assert len(alone) == 640
    ranks = [list(at(rank, 2, 32)) for rank in range(2)]
    assert moments(b for pair in zip(*ranks, strict=True) for b in pair) == alone
    first = at()
    for _ in range(4):
        next(first)
    resumed = at(batch_size=48)
    resumed.load_state_dict(first.state_dict())
    assert moments(resumed) == alone[256:]
    assert moments(pickle.loads(pickle.dumps(first))) == alone[256:]
    other = robocache.Mixture(
        [Source(dataset, weight_by="fine"), Source(dataset, balance="task")], samples_per_epoch=640
    )
    with pytest.raises(robocache.ArgumentError, match=r"^state: "):
        opened(other, batch_size=64).load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"weight_by": "nope"}, ["^sources\\[0\\].weight_by: ", "'nope'", "weight, fine"]),
        ({"weight_by": "skill"}, ["^sources\\[0\\].weight_by: ", "string"]),
        ({"weight_by": "bad"}, ["^sources\\[0\\].weight_by: ", "None", "episode 0 at 0 ns"]),
        ({"weight_by": "bad", "episodes": [2]}, ["^sources\\[0\\].weight_by: ", "-2", "episode 2 at 0 ns"]),
        ({"weight_by": "quality", "episodes": [0]}, ["^sources\\[0\\].weight_by: ", "above 0"]),
        ({"weight_by": 3}, ["^sources\\[0\\].weight_by: ", "int"]),
        ({"balance": "nope"}, ["^sources\\[0\\].balance: ", "'nope'", "skill"]),
        ({"balance": "task", "weight_by": "weight"}, ["^sources\\[0\\].weight_by, balance: ", "both"]),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(dataset, options, parts):
    with pytest.raises(robocache.Error) as caught:
        opened([Source(dataset, **options)])
    for part in parts:
        assert re.search(part, str(caught.value)), str(caught.value)
