"""Batches of whole episodes and of segments of unequal lengths: content, order, ranks and resuming."""

import itertools
import json
import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from filmed import write_frames
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import write
from reference.compare import to_numpy

import robocache
from robocache import EpisodeLoader, Mixture, Ranks, Source, Window

LENGTHS = [5, 12, 3, 40, 0, 1, 17, 8, 9]
STEP = 10**7
pytestmark = pytest.mark.filterwarnings("ignore:.*(missing|anchors|padding|min_steps):robocache.LoaderWarning")


def _value(episode, row):
    return 1000.0 * episode + row


def _write(path, lengths=LENGTHS, width=2):
    """Writes rows whose value encodes episode and row. Episodes without rows have rows of another stream."""
    recording = []
    for episode, length in enumerate(lengths):
        start = (50 - episode) * 10**12
        rows = {"other": ([start], np.zeros(1, np.float32))}
        if length:
            values = _value(episode, np.arange(length, dtype=np.float32))[:, None] + np.zeros(width, np.float32)
            rows["state"] = start + np.arange(length) * STEP, values
            rows["said"] = [start, start + 3 * STEP], [f"begin {episode}", f"go on {episode}"]
        recording.append(rows)
    return write(path, recording, columns=[{}] * len(lengths))


@pytest.fixture
def dataset(tmp_path):
    return _write(tmp_path / "cache")


def _loader(dataset, **options):
    windows = options.pop("windows", {"state": Window()})
    options = {"batch_size": 3, "anchors": "state", "device": "cpu"} | options
    return EpisodeLoader(dataset, delta_timestamps=windows, **options)


def _segments(batch):
    """Returns (episode, row of the first step, steps) of each segment of a batch, decoded from the values."""
    states = to_numpy(batch["state"])[..., 0]
    lengths = to_numpy(batch["lengths"]).tolist()
    if "offsets" in batch:
        offsets = to_numpy(batch["offsets"]).tolist()
        assert offsets == np.cumsum([0, *lengths]).tolist()
        rows = [states[begin:end] for begin, end in itertools.pairwise(offsets)]
    else:
        rows = [row[:length] for row, length in zip(states, lengths, strict=True)]
    segments = []
    for row, episode, length in zip(rows, to_numpy(batch["episode_index"]).tolist(), lengths, strict=True):
        first_row = int(row[0]) % 1000
        assert row.tolist() == [_value(episode, first_row + step) for step in range(length)]
        segments.append((episode, first_row, length))
    return segments


def _flat(epoch):
    return [segment for batch in epoch for segment in batch]


def _next_epoch(loader):
    return [_segments(batch) for batch in loader]


EPISODES = [(episode, 0, length) for episode, length in enumerate(LENGTHS) if length]


@pytest.mark.parametrize("form", ["padded", "packed"])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_whole_episodes(dataset, device, form, framework):
    device = "cpu" if framework == "numpy" else device
    loader = _loader(dataset, form=form, device=device, framework=framework)
    assert len(loader) == 3 and loader.num_samples == 8
    epochs = [_next_epoch(loader) for _ in range(3)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [3, 3, 2]
        assert sorted(_flat(epoch)) == EPISODES
    assert len({str(epoch) for epoch in epochs}) == 3
    in_order = _loader(dataset, form=form, shuffle=False, device=device, framework=framework)
    assert _flat(_next_epoch(in_order)) == EPISODES


def test_a_padded_batch(dataset, device):
    windows = {"state": Window([0.0, 0.02]), "said": None, "other": Window()}
    loader = _loader(dataset, windows=windows, shuffle=False, batch_size=4, device=device, return_age=True)
    batch = next(iter(loader))
    lengths = [5, 12, 3, 40]
    is_pad = np.arange(40) >= np.array(lengths)[:, None]
    assert np.array_equal(to_numpy(batch["is_pad"]), is_pad) and batch["lengths"].tolist() == lengths
    assert batch["episode_index"].tolist() == [0, 1, 2, 3]
    expected = np.zeros((4, 40, 2, 2), np.float32)
    masks = np.ones((4, 40, 2), bool)
    texts = [[None] * 40 for _ in range(4)]
    for episode, length in enumerate(lengths):
        for row in range(length):
            expected[episode, row] = _value(episode, np.minimum([row, row + 2], length - 1))[:, None]
            masks[episode, row] = [False, row + 2 >= length]
            texts[episode][row] = f"{'begin' if row < 3 else 'go on'} {episode}"
    assert np.array_equal(to_numpy(batch["state"]), expected)
    assert np.array_equal(to_numpy(batch["state_is_pad"]), masks)
    assert batch["said"] == texts
    assert (to_numpy(batch["state_age"])[is_pad] == -(2**63)).all() and (to_numpy(batch["time_ns"])[is_pad] == 0).all()
    assert (to_numpy(batch["anchor_index"])[is_pad] == -1).all()
    assert to_numpy(batch["anchor_index"])[~is_pad].tolist() == list(range(60))
    assert {x.device.type for x in batch.values() if torch.is_tensor(x)} == {device}


def test_a_packed_batch(dataset, device):
    windows = {"state": Window(normalize="mean_std"), "said": Window(texts="indices")}
    loader = _loader(dataset, windows=windows, shuffle=False, batch_size=4, form="packed", device=device)
    batch = next(iter(loader))
    rows = np.concatenate([_value(episode, np.arange(length)) for episode, length in enumerate([5, 12, 3, 40])])
    raw = to_numpy(loader.loader.unnormalize("state", batch["state"]))
    assert raw.shape == (60, 2) and np.allclose(raw[:, 0], rows, atol=2e-3)
    table = loader.loader.texts["said"]
    assert [table[i] for i in batch["said"].tolist()][:5] == ["begin 0"] * 3 + ["go on 0"] * 2
    assert batch["time_ns"].shape == (60,) and batch["episode_index"].tolist() == [0, 1, 2, 3]
    nested = torch.nested.nested_tensor_from_jagged(batch["state"], batch["offsets"])
    assert [len(part) for part in nested.unbind()] == batch["lengths"].tolist() == [5, 12, 3, 40]
    assert torch.equal(nested.unbind()[3], batch["state"][20:])


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_converted_and_normalised_keys(tmp_path, device, form):
    """The loader of the steps inverts its windows' conversions, without the steps of padding."""
    convert = [robocache.actions.Relative("joints")]
    action = Window([0.0, 0.01], convert=convert, base="state", normalize="min_max", dtype="float64")
    rows = np.arange(6.0)[:, None] * [1.0, 3.0]
    times = np.arange(6) * STEP
    recording = [{"state": (times[:n], rows[:n]), "action": (times[:n], rows[:n] + 0.5)} for n in (4, 6)]
    windows = {"state": Window(dtype="float64"), "action": action}
    loader = _loader(write(tmp_path / "two", recording), windows=windows, form=form, shuffle=False, device=device)
    (batch,) = loader
    if form == "padded":
        batch = {name: batch[name][~batch["is_pad"]] for name in ("action", "action_base")}
    expected = np.concatenate([rows[:4], rows]) + 0.5
    assert to_numpy(batch["action"]).min() >= -1.001 and to_numpy(batch["action"]).max() <= 1.001
    absolute = to_numpy(loader.loader.to_absolute("action", batch["action"], batch))
    assert np.allclose(absolute[:, 0], expected, atol=1e-9)


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_segments_contain_each_step_once_an_epoch(dataset, device, form):
    loader = _loader(dataset, min_steps=3, max_steps=7, form=form, device=device)
    cuts = set()
    for _ in range(6):
        segments = sorted(_flat(_next_epoch(loader)))
        cuts.add(str(segments))
        assert len(segments) == loader.num_samples
        assert all(3 <= length <= 7 for _, _, length in segments)
        steps = [(episode, first_row + step) for episode, first_row, length in segments for step in range(length)]
        assert steps == [(e, row) for e, length in enumerate(LENGTHS) if length >= 3 for row in range(length)]
    assert len(cuts) == 6
    unshuffled = _loader(dataset, min_steps=3, max_steps=7, form=form, device=device, shuffle=False)
    assert _next_epoch(unshuffled) == _next_epoch(unshuffled)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    limits=st.none() | st.tuples(st.integers(1, 9), st.integers(0, 20)),
    batch_size=st.integers(1, 5),
    bucket=st.none() | st.integers(1, 4),
    world_size=st.integers(1, 3),
    packed=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_lengths(tmp_path_factory, lengths, limits, batch_size, bucket, world_size, packed, seed):
    dataset = _write(tmp_path_factory.mktemp("any") / "cache", lengths, width=1)
    options = {"batch_size": batch_size, "bucket": bucket, "seed": seed, "form": "packed" if packed else "padded"}
    min_steps = 1
    if limits is not None:
        min_steps = limits[0]
        options |= {"min_steps": min_steps, "max_steps": 2 * min_steps - 1 + limits[1]}
    if max(lengths) < min_steps:
        with pytest.raises(robocache.ArgumentError, match=r"state|min_steps: .* expected an episode to draw"):
            _loader(dataset, **options)
        return
    epochs = []
    for rank in range(world_size):
        loader = _loader(dataset, ranks=Ranks(rank=rank, world_size=world_size), **options)
        epochs.append(_next_epoch(loader))
        assert len(epochs[-1]) == len(loader)
    sizes = [[len(batch) for batch in epoch] for epoch in epochs]
    assert all(rank_sizes == sizes[0] for rank_sizes in sizes)
    drawn = [segment for epoch in epochs for batch in epoch for segment in batch]
    assert 0 <= len(drawn) - loader.num_samples < world_size  # repeats fill up an uneven last batch
    assert len({*drawn}) == loader.num_samples
    steps = sorted((episode, first_row + step) for episode, first_row, length in {*drawn} for step in range(length))
    assert steps == [(e, row) for e, length in enumerate(lengths) if length >= min_steps for row in range(length)]
    if limits is not None:
        assert all(min_steps <= length <= options["max_steps"] for _, _, length in drawn)


def test_batches_of_a_bucket_have_similar_lengths_in_random_order(tmp_path, rng):
    lengths = rng.integers(1, 200, 96).tolist()
    dataset = _write(tmp_path / "cache", lengths, width=1)
    loader = _loader(dataset, batch_size=8, bucket=12)
    epochs = [_next_epoch(loader) for _ in range(2)]
    for epoch in epochs:
        means = [np.mean([length for _, _, length in batch]) for batch in epoch]
        ordered = sorted(epoch, key=lambda batch: np.mean([length for _, _, length in batch]))
        assert [length for batch in ordered for _, _, length in batch] == sorted(lengths)
        assert means != sorted(means)
    assert epochs[0] != epochs[1]
    padded_steps = {}
    for bucket in (None, 3):
        batches = _next_epoch(_loader(dataset, batch_size=8, bucket=bucket))
        padded_steps[bucket] = sum(8 * max(n for _, _, n in batch) for batch in batches)
    assert padded_steps[3] < 0.8 * padded_steps[None]


@pytest.mark.parametrize("bucket", [None, 2])
def test_a_state_resumes(dataset, device, bucket):
    options = {"min_steps": 2, "max_steps": 9, "bucket": bucket, "device": device, "seed": 4}
    uninterrupted = _loader(dataset, **options)
    first_epoch, second_epoch = _next_epoch(uninterrupted), _next_epoch(uninterrupted)
    loader = _loader(dataset, **options)
    iterator = iter(loader)
    assert [_segments(next(iterator)) for _ in range(2)] == first_epoch[:2]
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["samples"] == 6
    copies = [pickle.loads(pickle.dumps(loader)), _loader(dataset, **options | {"seed": 9})]
    copies[1].load_state_dict(state)
    for copy in copies:
        assert _next_epoch(copy) == first_epoch[2:]
        assert _next_epoch(copy) == second_epoch
    assert [_segments(batch) for batch in iterator] == first_epoch[2:]  # copies do not advance the original
    assert _next_epoch(loader) == second_epoch
    if bucket is None:  # the order does not depend on the batch size
        other = _loader(dataset, **options | {"batch_size": 5})
        other.load_state_dict(state)
        assert _flat(_next_epoch(other)) == _flat(first_epoch[2:])


def test_break_ends_an_epoch(dataset):
    loader = _loader(dataset)
    epochs = [_next_epoch(loader) for _ in range(3)]
    loader = _loader(dataset)
    for _ in loader:
        break
    outer = iter(loader)
    assert _segments(next(outer)) == epochs[1][0]
    assert _next_epoch(loader) == epochs[2]  # a loop inside a loop runs the next epoch
    assert [_segments(batch) for batch in outer] == epochs[1][1:]
    loader.set_epoch(1)
    assert _next_epoch(loader) == epochs[1]


def test_ranks_share_each_epoch(dataset):
    ranks = [_loader(dataset, batch_size=2, ranks=Ranks(rank=rank, world_size=2), bucket=2) for rank in range(2)]
    epochs = [_next_epoch(rank) for rank in ranks]
    assert [[len(batch) for batch in epoch] for epoch in epochs] == [[2, 2]] * 2
    assert sorted(_flat(epochs[0]) + _flat(epochs[1])) == EPISODES
    assert ranks[0].state_dict() == ranks[1].state_dict()
    dropping = _loader(dataset, batch_size=3, drop_last=True, ranks=Ranks(rank=1, world_size=2))
    assert len(dropping) == 1 and [len(batch) for batch in _next_epoch(dropping)] == [3]


def test_steps_are_the_drawn_anchors(dataset, device):
    anchors = robocache.Anchors(stream="state", drop_n_last=2)
    loader = _loader(dataset, anchors=anchors, shuffle=False, device=device)
    assert _flat(_next_epoch(loader)) == [(episode, 0, length - 2) for episode, _, length in EPISODES if length > 2]
    at_50_hz = _loader(dataset, anchors=robocache.Anchors(rate_hz=50.0), shuffle=False, device=device, batch_size=8)
    (batch,) = at_50_hz  # every second row
    assert batch["lengths"].tolist() == [(length + 1) // 2 for length in LENGTHS if length]


def test_an_episode_of_filtered_anchors_is_one_segment(dataset, device):
    """A filter leaves gaps, and the steps around a gap are neighbours in the segment. An episode listed twice gives two segments."""
    keep = [{"episode": e, "start_row": begin, "end_row": end} for e in (1, 3) for begin, end in ((2, 4), (7, 9))]
    anchors = robocache.Anchors(stream="state", keep=keep)
    (batch,) = _loader(dataset, anchors=anchors, episodes=[1, 3, 3], shuffle=False, form="packed", device=device)
    rows = [2, 3, 4, 7, 8, 9]
    assert batch["lengths"].tolist() == [6, 6, 6] and batch["episode_index"].tolist() == [1, 3, 3]
    assert to_numpy(batch["state"])[:, 0].tolist() == [_value(episode, row) for episode in (1, 3, 3) for row in rows]


def test_a_mixture(dataset, tmp_path, device):
    other = _write(tmp_path / "other", [4, 6])
    sources = [Source(dataset, episodes=[2, 0, 2]), Source(other)]
    loader = _loader(sources, shuffle=False, batch_size=5, device=device)
    (batch,) = loader
    assert batch["dataset_index"].tolist() == [0, 0, 0, 1, 1] and batch["episode_index"].tolist() == [2, 0, 2, 0, 1]
    assert _segments(batch) == [(2, 0, 3), (0, 0, 5), (2, 0, 3), (0, 0, 4), (1, 0, 6)]


def test_all_steps_of_a_segment_have_the_same_text(tmp_path):
    rows = {"state": (np.arange(6) * STEP, np.zeros(6, np.float32))}
    dataset = write(tmp_path / "cache", [rows] * 30, columns=[{"tasks": ["a", "b", "c"]}] * 30)
    windows = {"state": Window(), "task": Window(texts="drawn_text")}
    (batch,) = _loader(dataset, windows=windows, batch_size=30)
    assert all(len({*texts}) == 1 for texts in batch["task"])
    assert {texts[0] for texts in batch["task"]} == {"a", "b", "c"}


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_cameras(tmp_path, device, codec, rng):
    frames = [rng.integers(0, 256, (length, 8, 8, 3), np.uint8) for length in (4, 2, 7)]
    recording = [{"camera": (np.arange(len(images)) * STEP, images)} for images in frames]
    dataset = write_frames(tmp_path / "cache", recording, codec)
    windows = {"camera": Window(images=robocache.ImageOptions(dtype="uint8"))}
    options = {"windows": windows, "anchors": "camera", "shuffle": False, "device": device}
    (padded,), (packed,) = (_loader(dataset, form=form, **options) for form in ("padded", "packed"))
    stored = np.stack([dataset.streams["camera"].frame(row) for row in range(13)]).transpose(0, 3, 1, 2)
    assert np.array_equal(to_numpy(packed["camera"]), stored)
    for episode, (begin, end) in enumerate([(0, 4), (4, 6), (6, 13)]):
        assert np.array_equal(to_numpy(padded["camera"])[episode, : end - begin], stored[begin:end])
        assert not to_numpy(padded["camera"])[episode, end - begin :].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "nested"}, "form: expected 'padded' or 'packed', got 'nested'"),
        ({"batch_size": 0}, "batch_size: expected 1 or more, got 0"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number, got 2.5"),
        ({"min_steps": 0}, "min_steps: expected 1 or more"),
        ({"min_steps": 41}, "min_steps: 8 of 8 episodes have fewer than 41 steps"),
        ({"max_steps": 4, "min_steps": 3}, "max_steps: expected at least 2 * min_steps - 1, 5, got 4"),
        ({"shuffle": "no"}, "shuffle: expected True or False, got 'no'"),
        ({"ranks": 2}, "ranks: expected a Ranks, got 2"),
        ({"bucket": 0}, "bucket: expected 1 or more"),
        ({"batch_size": 9, "drop_last": True}, "batch_size: with drop_last expected at most 8, "),
        ({"ranks": Ranks(shard_episodes=True)}, "ranks.shard_episodes: goes with Loader"),
        ({"windows": {"nothing": None}}, "no stream 'nothing'"),
        ({"seed": -1}, "seed: expected an int in [0, 9223372036854775807], got -1"),
    ],
    ids=str,
)
def test_invalid_options_are_refused_by_name(dataset, options, message):
    with pytest.raises(robocache.Error, match=re.escape(message)):
        _loader(dataset, **options)


def test_weights_and_foreign_states_are_refused(dataset, tmp_path):
    with pytest.raises(robocache.ArgumentError, match=r"sources\[0\].weight: expected none"):
        _loader([Source(dataset, weight=1)])
    with pytest.raises(robocache.ArgumentError, match="samples_per_epoch: expected none"):
        _loader(Mixture([Source(dataset)], samples_per_epoch=9))
    loader = _loader(dataset)
    state = loader.state_dict()
    _loader(dataset, shuffle=np.True_).load_state_dict(state)
    for other in (_loader(dataset, bucket=2), _loader(dataset, episodes=[0, 1]), _loader(dataset, max_steps=5)):
        with pytest.raises(robocache.ArgumentError, match=r"fingerprint: expected .* the state is of another dataset"):
            other.load_state_dict(state)
        assert other.state_dict()["samples"] == 0
    with pytest.raises(robocache.ArgumentError, match=r"^state: expected one of a Loader, got one of an EpisodeLoader"):
        loader.loader.load_state_dict(state)
    with pytest.raises(robocache.ArgumentError, match=r"^state: expected one of an EpisodeLoader, got one of a Loader"):
        loader.load_state_dict(loader.loader.state_dict())
    for invalid in ({**state, "samples": 9}, {"seed": 1}, {**state, "epoch": -1}):
        with pytest.raises(robocache.Error, match=r"samples|epoch"):
            loader.load_state_dict(invalid)
    with pytest.raises(robocache.ArgumentTypeError, match="state: expected a result of state_dict"):
        loader.load_state_dict([1])
    named = write(tmp_path / "named", [{"lengths": ([0, 1], np.zeros(2, np.float32))}])
    with pytest.raises(robocache.ArgumentError, match="the batch's key 'lengths'"):
        _loader(named, windows={"lengths": None}, anchors="lengths")


def test_short_episodes_are_named_in_one_warning(dataset):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = _loader(dataset, min_steps=5, episodes=[0, 1, 2, 5])
    (warning,) = caught
    assert str(warning.message) == "min_steps: 2 of 4 episodes have fewer than 5 steps and are not drawn"
    assert warning.category is robocache.LoaderWarning and warning.filename == __file__
    assert sorted(_flat(_next_epoch(loader))) == [(0, 0, 5), (1, 0, 12)]


def test_an_iterator_of_episodes_is_read_once(dataset):
    assert _loader(dataset, episodes=iter([0, 1])).num_samples == 2
