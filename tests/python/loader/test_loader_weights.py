"""How often a Loader draws anchors: by a column of weights, by balance between a column's values, and by weights of sources,
which may change."""

import collections
import itertools
import json
import pickle
import threading

import numpy as np
import pyarrow.compute as pc
import pytest
from recordings import anchors_of, assert_same_batches, batches_of, joined, write
from reference.compare import to_numpy
from reference.mixture import changed_draws, shares
from soak import rounds

import robocache
from robocache import Source

BLOCK = 65_536
TASKS = ["pick", "place", "pick", "wipe", "pick"]
SKILLS = ["reach", "grasp", "lift", "reach"]


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
                episode.append("skill", times[:: rows // 3], [SKILLS[k] for k in range(len(times[:: rows // 3]))])
    return robocache.open(path)


def loader_of(sources, **options):
    options = {"batch_size": BLOCK, "delta_timestamps": {"arm": None}, "anchors": "arm", "device": "cpu"} | options
    return robocache.Loader(sources, **options)


def draw_block(loader):
    """Returns (source, episode, row) of each draw of a block."""
    anchors = anchors_of([next(loader)], "dataset_index")
    assert len(anchors) == BLOCK
    return [(source, episode, time_ns // 10**7) for source, episode, time_ns in anchors]


def mixture(*sources):
    return robocache.Mixture(list(sources), samples_per_epoch=4 * BLOCK)


def test_rule_35_1_an_anchor_is_drawn_in_proportion_to_its_weight(dataset, device):
    weights = {(e, r): r % 4 for e, n in enumerate([20, 30, 40, 50, 60]) for r in range(n)}
    loader = loader_of(mixture(Source(dataset, weight_by="weight")), device=device)
    assert loader.num_anchors == sum(w > 0 for w in weights.values())
    for _ in range(3):
        counts = collections.Counter((e, r) for _, e, r in draw_block(loader))
        for number in range(4):
            class_anchors = [key for key, weight in weights.items() if weight == number]
            share = BLOCK * number * len(class_anchors) / sum(weights.values())
            assert abs(sum(counts[key] for key in class_anchors) - share) < 1
            # A class draws all its anchors once before it repeats one.
            assert all(abs(counts[key] - share / len(class_anchors)) <= 2 for key in class_anchors)


def test_weights_from_a_column_of_the_episodes(dataset, device):
    loader = loader_of(mixture(Source(dataset, weight_by="quality")), device=device)
    counts = collections.Counter(e for _, e, _ in draw_block(loader))
    total = sum(e * (20 + 10 * e) for e in range(5))
    assert set(counts) == {1, 2, 3, 4}
    assert all(abs(counts[e] - BLOCK * e * (20 + 10 * e) / total) < 1 for e in range(5))


def test_more_weights_than_classes_are_proportional(tmp_path):
    rows = 3000
    weights = np.random.default_rng(0).uniform(0.5, 8, rows)
    times = np.arange(rows) * 10**7
    dataset = write(tmp_path / "cache", [{"arm": (times, np.zeros((rows, 2))), "w": (times, weights)}])
    loader = loader_of(mixture(Source(dataset, weight_by="w")))
    counts = sum(np.bincount([row for _, _, row in draw_block(loader)], minlength=rows) for _ in range(4))
    expected_draws = 4 * BLOCK * weights / weights.sum()
    assert (abs(counts - expected_draws) <= 0.03 * expected_draws + 2).all()


@pytest.mark.parametrize(
    ("column", "value_of"),
    [
        ("task", lambda e, r: TASKS[e]),
        ("skill", lambda e, r: SKILLS[r // ((20 + 10 * e) // 3)]),
    ],
)
def test_rule_35_2_each_value_has_the_same_share(dataset, device, column, value_of):
    loader = loader_of(mixture(Source(dataset, balance=column)), device=device)
    all_anchors = [(e, r) for e in range(5) for r in range(20 + 10 * e)]
    assert loader.num_anchors == len(all_anchors)
    sizes = collections.Counter(value_of(e, r) for e, r in all_anchors)
    for _ in range(2):
        drawn = [(e, r) for _, e, r in draw_block(loader)]
        counts = collections.Counter(value_of(e, r) for e, r in drawn)
        assert max(counts.values()) - min(counts.values()) <= 1
        draws_of = collections.Counter(drawn)
        assert all(abs(draws_of[key] - counts[value_of(*key)] / sizes[value_of(*key)]) <= 2 for key in all_anchors)


def test_rule_35_2_zeros_of_either_sign_are_one_value(tmp_path, device):
    signs = np.array([0.0, -0.0, 1.0] * 20)
    cache = write(tmp_path / "cache", [{"arm": (np.arange(60) * 10**7, signs[:, None])}])
    loader = loader_of(mixture(Source(cache, balance="arm")), device=device)
    drawn = to_numpy(next(loader)["arm"]).ravel()
    assert abs(int((drawn == 1).sum()) - BLOCK // 2) <= 1


def test_sources_keep_their_shares_and_indices(dataset, device):
    sources = mixture(
        Source(dataset, 0.25, balance="task"),
        Source(dataset, 0.5, anchors=robocache.Anchors(where=pc.field("arm[0]") >= 1000)),
        Source(dataset, 0.25, weight_by="weight", episodes=[0, 3]),
    )
    loader = loader_of(sources, device=device)
    drawn = draw_block(loader)
    assert collections.Counter(source for source, _, _ in drawn) == {0: BLOCK // 4, 1: BLOCK // 2, 2: BLOCK // 4}
    assert {e for source, e, _ in drawn if source == 1} == {1, 2, 3, 4}
    assert {e for source, e, _ in drawn if source == 2} == {0, 3}
    assert all(r % 4 for source, _, r in drawn if source == 2)
    batch = next(loader)
    assert_same_batches(batches_of([loader.gather(batch["anchor_index"])]), batches_of([batch]))


def test_ranks_share_weighted_draws_and_resume(dataset, device):
    def loader_at(rank=0, world_size=1, batch_size=64, column="weight"):
        sources = [Source(dataset, weight_by=column), Source(dataset, balance="task")]
        ranks = robocache.Ranks(rank=rank, world_size=world_size)
        mixture = robocache.Mixture(sources, samples_per_epoch=640)
        return loader_of(mixture, batch_size=batch_size, ranks=ranks, seed=3, device=device)

    def drawn_indices(batches):
        batch = joined(batches)
        return list(zip(batch["dataset_index"].tolist(), batch["anchor_index"].tolist(), strict=True))

    all_indices = drawn_indices(loader_at())
    assert len(all_indices) == 640
    ranks = [loader_at(rank, 2, 32) for rank in range(2)]
    assert drawn_indices(itertools.chain(*zip(*ranks, strict=True))) == all_indices
    first = loader_at()
    for _ in range(4):
        next(first)
    resumed = loader_at(batch_size=48)
    resumed.load_state_dict(first.state_dict())
    assert drawn_indices(resumed) == all_indices[256:]
    assert drawn_indices(pickle.loads(pickle.dumps(first))) == all_indices[256:]
    with pytest.raises(robocache.ArgumentError, match=r"^state: "):
        loader_at(column="fine").load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"weight_by": "nope"}, r"weight_by: .*'nope'.*weight, fine"),
        ({"weight_by": "skill"}, r"weight_by: .*string"),
        ({"weight_by": "bad"}, r"weight_by: .*None.*episode 0 at 0 ns"),
        ({"weight_by": "bad", "episodes": [2]}, r"weight_by: .*-2.*episode 2 at 0 ns"),
        ({"weight_by": "quality", "episodes": [0]}, r"weight_by: .*above 0"),
        ({"weight_by": 3}, r"weight_by: .*int"),
        ({"balance": "nope"}, r"balance: .*'nope'.*skill"),
        ({"balance": "task", "weight_by": "weight"}, r"weight_by, balance: .*both"),
    ],
    ids=str,
)
def test_invalid_weights_are_refused_by_name(dataset, options, match):
    with pytest.raises(robocache.Error, match=rf"^sources\[0\].{match}"):
        loader_of([Source(dataset, **options)])


# ---- Weights that change ----

NAMES = ["kitchen", "garage", "yard"]
START_WEIGHTS = [0.5, 0.2, 0.3]
EPISODES = [[0, 1], [2, 3], [4]]
ANCHOR_COUNTS = [50, 90, 60]
SAMPLES = 1000


def loader_of_three(dataset, *, rank=0, world_size=1, samples=SAMPLES, weights=START_WEIGHTS, **options):
    sources = [
        Source(dataset, weight, episodes=episodes, name=name)
        for name, weight, episodes in zip(NAMES, weights, EPISODES, strict=True)
    ]
    options = {"batch_size": 48, "seed": 5} | options
    ranks = robocache.Ranks(rank=rank, world_size=world_size)
    return loader_of(robocache.Mixture(sources, samples_per_epoch=samples), ranks=ranks, **options)


def by_name(weights):
    return dict(zip(NAMES, weights, strict=True))


def draws_of_batch(batch):
    """Returns (source, anchor's index in the source) of each sample."""
    first_index = np.cumsum([0, *ANCHOR_COUNTS])
    source, index = (to_numpy(batch[name]) for name in ("dataset_index", "anchor_index"))
    return list(zip(source.tolist(), (index - first_index[source]).tolist(), strict=True))


def draws_of(batches):
    return [draw for batch in batches for draw in draws_of_batch(batch)]


def expected_draws(count, changes, **options):
    return changed_draws(count, ANCHOR_COUNTS, [(0, START_WEIGHTS), *changes], seed=5, **options)


def random_weights(rng):
    weights = np.round(np.exp(rng.uniform(-3, 3, 3)), 3) * (rng.uniform(size=3) < 0.7)
    return weights.tolist() if weights.any() else [0.0, 0.0, 1.0]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_rule_35_3_changed_weights_equal_counting_one_by_one(dataset, device, prefetch, shuffle):
    rng = np.random.default_rng(prefetch)
    for _ in range(rounds(2)):
        memory = robocache.Memory(prefetch=prefetch)
        loader, changes, draws = loader_of_three(dataset, memory=memory, shuffle=shuffle, device=device), [], []
        for _ in range(4):
            for batch in loader:
                draws += draws_of_batch(batch)
                if rng.uniform() < 0.2:
                    changes.append((min(len(draws), SAMPLES * (loader.epoch + 1)), random_weights(rng)))
                    loader.set_weights(by_name(changes[-1][1]))
        assert len(changes) > 5
        assert draws == expected_draws(4 * SAMPLES, changes, shuffle=shuffle)


@pytest.mark.parametrize("start", [65_536, 98_304, 150_000])
def test_changes_across_blocks_keep_shares_and_sequences(dataset, device, start):
    """A block after the change has the new shares; each source still draws the same sequence of anchors."""
    batch_size, new_weights = 2**15 if start % 2**15 == 0 else 50_000, [1.0, 0.0, 2.0]
    options = {"samples": 4 * BLOCK, "batch_size": batch_size, "delta_timestamps": {"arm": None}, "device": device}
    loader = loader_of_three(dataset, **options)
    draws = draws_of(next(loader) for _ in range(start // batch_size))
    loader.set_weights(by_name(new_weights))
    draws += draws_of(next(loader) for _ in range(2))
    draws += draws_of(loader)[: 4 * BLOCK - len(draws)]
    begin, end = start - 1000, start + 1000
    assert draws[begin:end] == expected_draws(end, [(start, new_weights)], begin=begin)
    first_block = -(-start // BLOCK) * BLOCK
    for begin in range(first_block, 4 * BLOCK, BLOCK):
        counts = collections.Counter(source for source, _ in draws[begin : begin + BLOCK])
        assert [counts[source] for source in range(3)] == shares(new_weights)
    unchanged_draws = draws_of(loader_of_three(dataset, **options))
    for source in range(3):
        changed, unchanged = ([anchor for k, anchor in drawn if k == source] for drawn in (draws, unchanged_draws))
        assert changed[: len(unchanged)] == unchanged[: len(changed)]
        count = len(changed) // ANCHOR_COUNTS[source] * ANCHOR_COUNTS[source]
        sorted_rounds = np.sort(np.reshape(changed[:count], (-1, ANCHOR_COUNTS[source])))
        assert (sorted_rounds == np.arange(ANCHOR_COUNTS[source])).all()


def test_the_same_weights_again_change_nothing(dataset, device):
    loader, other = loader_of_three(dataset, device=device), loader_of_three(dataset, device=device)
    batches = []
    for batch in loader:
        loader.set_weights(by_name([5, 2, 3]))  # ten times START_WEIGHTS
        batches.append(batch)
    assert draws_of(batches) == draws_of(other)


def test_a_source_of_weight_0_pauses(dataset, device):
    loader, draws = loader_of_three(dataset, device=device, samples=4800), []
    for weights in (START_WEIGHTS, [1, 0, 1], [0, 0, 1], [1, 1, 0]):
        if weights is not START_WEIGHTS:
            loader.set_weights(by_name(weights))
        draws.append(draws_of(next(loader) for _ in range(7)))
        assert {source for source, _ in draws[-1]} == {k for k in range(3) if weights[k]}
    garage = [anchor for source, anchor in itertools.chain(*draws) if source == 1]
    assert len(garage) > 90
    assert sorted(garage[:90]) == list(range(90))


def test_several_calls_make_a_schedule_of_epochs(dataset, device):
    schedule = {3: [1, 1, 0], 1: [0, 1, 2], 6: [1, 2, 3]}
    changes = [(epoch * SAMPLES, weights) for epoch, weights in sorted(schedule.items())]
    expected = expected_draws(8 * SAMPLES, changes)
    for order in (list(schedule), sorted(schedule)):
        loader = loader_of_three(dataset, device=device)
        for epoch in order:
            loader.set_weights(by_name(schedule[epoch]), epoch=epoch)
        assert [draw for _ in range(8) for draw in draws_of(loader)] == expected
    loader.set_epoch(2)  # an earlier epoch, and the next one
    assert draws_of(loader) == expected[2000:3000]
    assert draws_of(loader) == expected[3000:4000]


def test_weights_set_now_hold_until_the_next_scheduled_epoch(dataset, device):
    loader = loader_of_three(dataset, device=device)
    loader.set_weights(by_name([1, 0, 0]), epoch=1)
    loader.set_weights(by_name([0, 1, 0]), epoch=2)
    loader.set_weights(by_name([0, 0, 1]), epoch=2)
    draws = draws_of(next(loader) for _ in range(2))
    loader.set_weights(by_name([0, 1, 1]))
    loader.set_weights(by_name([0, 1, 0]))
    draws += [draw for _ in range(3) for draw in draws_of(loader)]
    changes = [(96, [0, 1, 0]), (1000, [1, 0, 0]), (2000, [0, 0, 1])]
    assert draws == expected_draws(3000, changes)
    assert loader.state_dict()["weights"] == [
        {"epoch": epoch, "samples": samples, "weights": by_name(weights)}
        for epoch, samples, weights in [(0, 96, [0, 1, 0]), (1, 0, [1, 0, 0]), (2, 0, [0, 0, 1])]
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_any_number_of_ranks_draws_the_same_and_resumes_any_state(dataset, device, world_size):
    """With 144 samples a global batch, the state after each batch resumes with other ranks and batch sizes."""
    changes = [(144, [3, 0, 1]), (432, [1, 1, 1]), (1000, [0, 2, 5]), (1288, [1, 0, 0])]
    immediate, scheduled = {144: [3, 0, 1], 432: [1, 1, 1], 1288: [1, 0, 0]}, [0, 2, 5]
    expected = expected_draws(2000, changes)
    ranks = [
        loader_of_three(dataset, rank=r, world_size=world_size, batch_size=144 // world_size, device=device)
        for r in range(world_size)
    ]
    draws, states = [], []
    for loader in ranks:
        loader.set_weights(by_name(scheduled), epoch=1)
    for epoch in range(2):
        for parts in zip(*ranks, strict=True):
            draws += draws_of(parts)
            del draws[(epoch + 1) * SAMPLES :]  # samples that fill up the last batch
            for loader in ranks:
                if len(draws) in immediate:
                    loader.set_weights(by_name(immediate[len(draws)]))
            assert len({json.dumps(loader.state_dict()) for loader in ranks}) == 1
            states.append((len(draws), json.loads(json.dumps(ranks[0].state_dict()))))
    assert draws == expected
    for position, state in states:
        ranks_now = 1 + (world_size + position) % 3
        resumed = [
            loader_of_three(dataset, rank=r, world_size=ranks_now, batch_size=30, device=device)
            for r in range(ranks_now)
        ]
        for loader in resumed:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
        resumed_draws = [draw for parts in zip(*resumed, strict=True) for draw in draws_of(parts)]
        end = min(end for end in (1000, 2000) if end >= position)
        # The state has the changes up to its position, and the one scheduled for epoch 1.
        expected = expected_draws(2000, [change for change in changes if change[0] <= position or change[0] == 1000])
        assert resumed_draws[: end - position] == expected[position:end]
        if end == 1000:  # the next epoch has the weights in the state
            resumed_draws = [draw for parts in zip(*resumed, strict=True) for draw in draws_of(parts)]
            assert resumed_draws[:1000] == expected[1000:]


def test_a_copy_continues_and_a_state_of_another_seed_has_its_weights(dataset, device):
    loader = loader_of_three(dataset, device=device)
    next(loader)
    loader.set_weights(by_name([1, 3, 0]))
    copied = pickle.loads(pickle.dumps(loader))
    loader.load_state_dict(loader.state_dict() | {"seed": 6})
    expected = changed_draws(1000, ANCHOR_COUNTS, [(0, START_WEIGHTS), (48, [1, 3, 0])], seed=6)
    assert draws_of(loader) == expected[48:]
    assert draws_of(copied) == expected_draws(1000, [(48, [1, 3, 0])])[48:]


def test_a_state_without_weights_keeps_them_and_a_state_with_weights_sets_them(dataset, device):
    loader = loader_of_three(dataset, device=device)
    state = loader.state_dict()
    assert state["weights"] == []
    without_weights = {name: value for name, value in state.items() if name != "weights"}
    loader.load_state_dict(without_weights)
    assert draws_of(loader) == expected_draws(1000, [])
    loader.set_weights(by_name([1, 0, 0]))
    loader.load_state_dict(without_weights | {"epoch": 1})
    assert {source for source, _ in draws_of(loader)} == {0}
    loader.load_state_dict(state)
    assert draws_of(loader) == expected_draws(1000, [])
    assert draws_of(loader) == expected_draws(2000, [])[1000:]
    single = loader_of([Source(dataset)], batch_size=8)
    assert "weights" not in single.state_dict()


def test_prefetched_batches_are_made_again_after_a_change(dataset, device):
    """In each loop the texts still belong to the samples."""
    memory = robocache.Memory(prefetch=2, reuse_buffers=device == "cpu")
    loader = loader_of_three(dataset, task_text=True, memory=memory, device=device)
    changes = 0
    for _ in range(2):
        for number, batch in enumerate(loader):
            assert batch["task"] == [TASKS[e] for e in to_numpy(batch["episode_index"]).tolist()]
            if number == 3:
                inner = iter(loader)
                for _ in range(2):
                    inner_batch = next(inner)
                    assert inner_batch["task"] == [TASKS[e] for e in to_numpy(inner_batch["episode_index"]).tolist()]
                    loader.set_weights(by_name([changes % 2, 1, changes + 1]))
                    changes += 1
                del inner
    assert changes == 4


@pytest.mark.parametrize("residency", ["pinned", "mapped"])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_prefetched_frames_belong_to_the_samples(filmed_dataset, device, residency, prefetch):
    """Copies of frames to a GPU begin one batch earlier."""
    if device == "cpu" or filmed_dataset.streams["top"].frames.codec == "png":
        residency = "mapped"
    sources = [Source(filmed_dataset, 1, episodes=[k], name=name) for k, name in enumerate("abc")]
    memory = robocache.Memory(residency=residency, prefetch=prefetch)
    loader = robocache.Loader(
        robocache.Mixture(sources, samples_per_epoch=60),
        batch_size=5,
        delta_timestamps={"top": [-0.05, 0.0]},
        anchors="top",
        memory=memory,
        device=device,
    )
    for step in range(24):
        weights = [step % 3, (step + 1) % 3, step % 2 + 1]
        if step % 2:
            loader.set_weights(dict(zip("abc", weights, strict=True)))
        batch = {name: to_numpy(x).copy() for name, x in next(loader).items()}
        assert step % 2 == 0 or all(weights[k] for k in batch["dataset_index"].tolist())
        gathered = loader.gather(batch["anchor_index"])
        for name, x in batch.items():
            np.testing.assert_array_equal(x, to_numpy(gathered[name]), name)
        if loader.samples == 60:
            loader.set_epoch(loader.epoch + 1)


def test_the_prefetched_batch_of_a_stream_is_made_again(dataset, cuda):
    import torch

    loader = loader_of_three(dataset, memory=robocache.Memory(stream=torch.cuda.Stream()), device=cuda)
    draws = []
    for weights in ([1, 0, 0], [0, 1, 0], [0, 0, 1]):
        loader.set_weights(by_name(weights))
        draws += draws_of(next(loader) for _ in range(2))
    assert draws == expected_draws(288, [(0, [1, 0, 0]), (96, [0, 1, 0]), (192, [0, 0, 1])])


def test_threads_that_share_a_loop_get_each_sample_once(dataset, device):
    loader, draws = loader_of_three(dataset, samples=4800, device=device), []
    lock, barrier = threading.Lock(), threading.Barrier(2)

    def run(weights):
        loop = iter(loader)
        barrier.wait()
        for number, batch in enumerate(loop):
            with lock:
                draws.append(draws_of_batch(batch))
            if number % 3 == 0:
                loader.set_weights(by_name(weights))

    threads = [threading.Thread(target=run, args=(weights,)) for weights in ([1, 2, 3], [3, 0, 1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(map(len, draws)) == 4800
    for source in range(3):
        counts = collections.Counter(anchor for drawn, anchor in itertools.chain(*draws) if drawn == source)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_changes_with_columns_of_weights_and_balance(dataset, device):
    sources = [Source(dataset, 1, weight_by="weight", name="a"), Source(dataset, 1, balance="task", name="b")]
    loader = loader_of(robocache.Mixture(sources, samples_per_epoch=4 * BLOCK), device=device)
    anchors = to_numpy(next(loader)["anchor_index"]).tolist()
    loader.set_weights({"a": 0, "b": 1})
    batch = next(loader)
    assert set(to_numpy(batch["dataset_index"]).tolist()) == {1}
    anchors += to_numpy(batch["anchor_index"]).tolist()
    counts = collections.Counter(TASKS[e] for e in to_numpy(batch["episode_index"]).tolist())
    assert max(counts.values()) - min(counts.values()) <= 1
    loader.set_weights({"a": 3, "b": 1})
    batch = next(loader)
    anchors += to_numpy(batch["anchor_index"]).tolist()
    assert np.bincount(to_numpy(batch["dataset_index"])).tolist() == [3 * BLOCK // 4, BLOCK // 4]
    # Within a class the numbers of draws of two anchors differ by at most 1.
    draws_of_anchor = collections.Counter(anchors)
    class_counts = collections.defaultdict(list)
    for first in range(0, loader.num_anchors, 100):
        part = loader.gather(list(range(first, min(first + 100, loader.num_anchors))))
        rows = to_numpy(part["time_ns"]) // 10**7
        for k, source in enumerate(to_numpy(part["dataset_index"]).tolist()):
            episode = int(to_numpy(part["episode_index"])[k])
            class_counts[source, TASKS[episode] if source else int(rows[k]) % 4].append(draws_of_anchor[first + k])
    assert all(max(counts) - min(counts) <= 1 for counts in class_counts.values())
    with pytest.raises(robocache.ArgumentError, match=r"^weights\['a'\]: .*classes.* 1 of 65536 draws, got 3"):
        loader.set_weights({"a": 1e-4, "b": 10})


def test_ranks_with_their_own_episodes_change_weights(dataset, device):
    def rank_loader(rank, batch_size=20):
        sources = [
            Source(dataset, 1, episodes=[0, 1, 2], name="few"),
            Source(dataset, 1, episodes=[3, 4, 0], name="many"),
        ]
        ranks = robocache.Ranks(rank=rank, world_size=2, shard_episodes=True)
        mixture = robocache.Mixture(sources, samples_per_epoch=400)
        return loader_of(mixture, batch_size=batch_size, ranks=ranks, device=device, seed=2)

    for rank in range(2):
        loader = rank_loader(rank)
        batches = [next(loader) for _ in range(4)]
        state = loader.state_dict()
        loader.set_weights({"few": 1, "many": 3})
        batches += list(loader)
        sources, anchors = (joined(batches)[name] for name in ("dataset_index", "anchor_index"))
        assert abs(int((sources[80:] == 0).sum()) - 30) <= 5  # a quarter of 120 draws
        for source in range(2):
            source_anchors = anchors[sources == source]
            size = len(set(source_anchors.tolist()))
            assert sorted(source_anchors[:size].tolist()) == sorted(set(source_anchors.tolist()))
        resumed = rank_loader(rank, batch_size=10)
        resumed.load_state_dict(state)
        resumed.set_weights({"few": 1, "many": 3})
        assert joined(resumed)["anchor_index"].tolist() == anchors[80:].tolist()


def test_an_uneven_last_batch_is_filled_up(dataset, device):
    loaders = [
        loader_of_three(dataset, rank=r, world_size=3, samples=200, batch_size=16, device=device) for r in range(3)
    ]
    for loader in loaders:
        for _ in range(4):
            next(loader)
        loader.set_weights(by_name([0, 0, 1]))
    last = [next(loader) for loader in loaders]
    assert [len(batch["time_ns"]) for batch in last] == [3, 3, 3]
    assert draws_of(last)[:8] == expected_draws(200, [(192, [0, 0, 1])])[192:]
    assert {source for source, _ in draws_of(last)} == {2}


@pytest.mark.parametrize(
    ("weights", "options", "match"),
    [
        ({"kitchen": 1, "garage": 1}, {}, "^weights: .*'yard'.*none"),
        (by_name([1, 1, 1]) | {"attic": 1}, {}, "^weights: .*'garage', 'kitchen', 'yard'.*'attic'"),
        (by_name([1, -1, 1]), {}, r"^weights\['garage'\]: .*-1"),
        (by_name([1, float("nan"), 1]), {}, r"^weights\['garage'\]: .*nan"),
        (by_name([1, 1, float("inf")]), {}, r"^weights\['yard'\]: .*inf"),
        (by_name([0, 0, 0]), {}, "^weights: .*0 for all"),
        (by_name([1, 1, 1e-9]), {}, r"^weights\['yard'\]: .*one draw of 65536"),
        (by_name([1, 1, "much"]), {}, r"^weights\['yard'\]: .*'much'"),
        (by_name([1, True, 1]), {}, r"^weights\['garage'\]: .*True"),
        ([1, 1, 1], {}, r"^weights: .*name.*\[1, 1, 1\]"),
        ({1: 1}, {}, "^weights: .*str.*int"),
        (by_name([1, 1, 1]), {"epoch": 0}, "^epoch: .*1 or later.*got 0"),
        (by_name([1, 1, 1]), {"epoch": -1}, "^epoch: .*got -1"),
        (by_name([1, 1, 1]), {"epoch": 1.5}, "^epoch: .*1.5"),
    ],
    ids=str,
)
def test_invalid_weights_are_refused_and_change_nothing(dataset, weights, options, match):
    loader = loader_of_three(dataset)
    next(loader)
    loader.set_weights(by_name([1, 2, 3]))
    before = loader.state_dict()
    with pytest.raises(robocache.Error, match=match):
        loader.set_weights(weights, **options)
    assert loader.state_dict() == before
    assert draws_of(loader) == expected_draws(1000, [(48, [1, 2, 3])])[48:]


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ("much", "^weights: .*state_dict"),
        ([{"epoch": 0}], "^weights: .*state_dict"),
        ([{"epoch": 0, "samples": 0, "weights": {"kitchen": 1}}], "^weights: .*'garage'"),
        ([{"epoch": -1, "samples": 0, "weights": by_name([1, 1, 1])}], "^epoch: .*-1"),
        ([{"epoch": 0, "samples": 1001, "weights": by_name([1, 1, 1])}], "^samples: .*1001"),
        ([{"epoch": e, "samples": 5, "weights": by_name([1, 1, 1])} for e in (1, 0)], "^weights: .*order"),
    ],
    ids=str,
)
def test_a_state_of_other_weights_is_refused_and_changes_nothing(dataset, weights, match):
    loader = loader_of_three(dataset)
    next(loader)
    before = loader.state_dict()
    with pytest.raises(robocache.Error, match=match):
        loader.load_state_dict({"seed": 9, "epoch": 3, "samples": 0, "weights": weights})
    assert loader.state_dict() == before


def test_names_of_sources_are_given_or_their_folders(dataset, tmp_path):
    folder = tmp_path / "cache"
    folder.symlink_to(dataset.path)
    sources = [Source(dataset, 1), Source(folder, 1)]
    with pytest.raises(robocache.ArgumentError, match=r"^sources\[1\].name: .*'cache'"):
        loader_of(sources).set_weights({"cache": 1})
    for path in (folder, f"{folder}/", f"{folder}/."):
        loader = loader_of([Source(dataset, 1, name="kitchen"), Source(path, 1)])
        loader.set_weights({"cache": 0, "kitchen": 1})
        assert not to_numpy(next(loader)["dataset_index"]).any()
    with pytest.raises(robocache.ArgumentTypeError, match=r"^sources\[0\].name: "):
        loader_of([Source(dataset, 1, name=3)])


@pytest.mark.parametrize("source", [lambda dataset: dataset, lambda dataset: [Source(dataset, name="a")]])
def test_sources_without_weights_cannot_change_them(dataset, source):
    with pytest.raises(robocache.ArgumentError, match=r"^weights: .*sources have weights"):
        loader_of(source(dataset)).set_weights({"a": 1})
