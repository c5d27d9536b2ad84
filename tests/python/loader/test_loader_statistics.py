"""Loader and Dataset: statistics of what is drawn, against numpy's of those rows; features that hardly change."""

import json
import os
import pickle
import subprocess
import sys
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest
from flat_options import flat_loader
from recordings import write

import robocache
from robocache import LoaderWarning, Source

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
MODES = "mean_std", "min_max", "q01_q99", "q10_q90"


def recording_of(rng, dtype=np.float32, episodes=10, broken=(9,), longest=300):
    """Episodes of any length, one of them empty; those that are broken hold a sensor's fault."""
    made = []
    for e in range(episodes):
        count = 0 if e == 3 else int(rng.integers(1, longest))
        values = rng.normal(size=(count, 3)) * [1, 5, 0.3] + [0, 100, 0]
        values[rng.random(values.shape) < 0.02] = np.nan
        values = np.full((count, 3), 4000.0) if e in broken else values
        streams = {"time": (np.arange(count) * 10**7, np.zeros((count, 1), np.float32))} if count else {}
        made.append({**streams, "action": (np.arange(count) * 10**7, values.astype(dtype))} if count else {})
    return made


@pytest.fixture
def recording(rng):
    return recording_of(rng)


@pytest.fixture
def dataset(recording, tmp_path):
    return write(tmp_path / "cache", recording)


def rows_of(recording, episodes):
    return np.concatenate([recording[e]["action"][1] for e in sorted(set(episodes)) if recording[e]]).astype(np.float64)


def assert_statistics(stats, rows):
    """numpy's."""
    np.testing.assert_array_equal(stats.count, (~np.isnan(rows)).sum(0))
    np.testing.assert_allclose(stats.mean, np.nanmean(rows, 0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(stats.std, np.nanstd(rows, 0), rtol=1e-12)
    np.testing.assert_array_equal(stats.min, np.nanmin(rows, 0))
    np.testing.assert_array_equal(stats.max, np.nanmax(rows, 0))
    for name, q in QUANTILES.items():
        np.testing.assert_allclose(getattr(stats, name), np.nanquantile(rows, q, axis=0), rtol=1e-12, atol=1e-12)


def spread_of(stats, mode):
    if mode == "mean_std":
        return stats.mean, stats.std
    low, high = {"min_max": ("min", "max"), "q01_q99": ("q01", "q99"), "q10_q90": ("q10", "q90")}[mode]
    low, high = getattr(stats, low), getattr(stats, high)
    return (low + high) / 2, (high - low) / 2


def windowed(dataset, **options):
    return flat_loader(
        dataset,
        **{"batch_size": 4096, "delta_timestamps": {"action": None}, "shuffle": False, "device": "cpu", **options},
    )


def assert_normalised_by(loader, stats, mode, rows):
    centre, spread = spread_of(stats, mode)
    np.testing.assert_allclose(np.asarray(next(loader)["action"]), (rows - centre) / spread, rtol=1e-5, atol=1e-5)
    x = np.float32([[0.5, 99, 0.1]])
    np.testing.assert_allclose(loader.normalize("action", x), (x - centre) / spread, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(loader.unnormalize("action", loader.normalize("action", x)), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("episodes", [[0, 1, 2, 3, 4, 5, 6, 7, 8], [7, 2, 2, 5], [4], [9, 0]], ids=str)
def test_rule_49_statistics_of_episodes_are_numpys(rng, tmp_path, dtype, episodes):
    recording = recording_of(rng, dtype)
    dataset = write(tmp_path / "cache", recording)
    assert_statistics(dataset.statistics(episodes)["action"], rows_of(recording, episodes))


def test_rule_49_they_have_the_bits_of_a_cache_of_these_episodes_alone(rng, tmp_path):
    """Blocks of the sums run across episodes, and many rows are looked at in parts."""
    recording = recording_of(rng, episodes=60, broken=(), longest=3000)
    chosen = [e for e in range(60) if e % 3]
    alone = write(tmp_path / "alone", [recording[e] for e in chosen])
    some = write(tmp_path / "all", recording).statistics(chosen)
    for name in ("action", "time"):
        for got, wanted in zip(some[name], alone.stats[name], strict=True):
            np.testing.assert_array_equal(got.view(np.int64), wanted.view(np.int64))


def test_rule_49_statistics_of_all_of_none_and_of_a_condition(dataset, recording):
    for got, wanted in zip(dataset.statistics()["action"], dataset.stats["action"], strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert (dataset.statistics([])["action"].count == 0).all()
    assert np.isnan(dataset.statistics([3])["action"].mean).all()
    assert_statistics(dataset.statistics(where={"task": "task 0"})["action"], rows_of(recording, [0, 2, 4, 6, 8]))
    assert_statistics(dataset.statistics([1, 2, 4], where={"task": "task 0"})["action"], rows_of(recording, [2, 4]))
    with pytest.raises(robocache.ArgumentError, match=r"episodes: expected indices in \[0, 10\), got 10"):
        dataset.statistics([10])
    with pytest.raises(robocache.ArgumentError, match="expected one of"):
        dataset.statistics([0])["nothing"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "selected",
    [
        {"episodes": range(9)},
        {"episodes": {"task": "task 0"}},
        {"episodes": [8, 1, 1, 4]},
    ],
    ids=str,
)
def test_rule_49_a_loader_normalises_by_what_it_draws(dataset, recording, mode, selected):
    loader = windowed(dataset, normalize=mode, **selected)
    drawn = [0, 2, 4, 6, 8] if isinstance(selected["episodes"], dict) else list(selected["episodes"])
    stats = dataset.statistics(drawn)["action"]
    assert_statistics(stats, rows_of(recording, drawn))
    rows = np.concatenate([recording[e]["action"][1] for e in drawn if recording[e]])
    assert_normalised_by(loader, stats, mode, rows)


def test_rule_49_the_dataset_or_given_statistics_where_asked(dataset, recording):
    rows = recording[0]["action"][1]
    for options, stats in (
        ({"stats_of": "dataset"}, dataset.stats),
        ({"norm_stats": dataset.stats}, dataset.stats),
        ({"norm_stats": dataset.statistics(range(9))}, dataset.statistics(range(9))),
    ):
        loader = windowed(dataset, normalize="mean_std", episodes=[0], **options)
        assert_normalised_by(loader, stats["action"], "mean_std", rows)
    with pytest.raises(robocache.ArgumentError, match="stats_of: expected 'selection' or 'dataset', got 'all'"):
        windowed(dataset, normalize="mean_std", stats_of="all")
    with pytest.raises(robocache.ArgumentError, match="stats_of: goes with a Window"):
        windowed(dataset, stats_of="dataset")


def test_rule_49_sources_normalise_each_by_its_own_selection(dataset, recording):
    sources = [Source(dataset, episodes=[0, 1]), Source(dataset, episodes={"task": "task 0"}), Source(dataset)]
    loader = windowed(sources, normalize="mean_std")
    batch = next(loader)
    for place, episodes in enumerate(([0, 1], [0, 2, 4, 6, 8], range(10))):
        stats = dataset.statistics(episodes)["action"]
        assert_statistics(stats, rows_of(recording, episodes))
        rows = rows_of(recording, episodes)
        got = np.asarray(batch["action"])[np.asarray(batch["dataset_index"]) == place]
        np.testing.assert_allclose(got, (rows - stats.mean) / stats.std, rtol=1e-5, atol=1e-5)
        x = np.float32([[0.5, 99, 0.1]])
        np.testing.assert_allclose(
            loader.normalize("action", x, place), (x - stats.mean) / stats.std, rtol=1e-5, atol=1e-5
        )
    merged = robocache.merge_stats([dataset.statistics(range(4)), dataset.statistics(range(4, 9))])["action"]
    np.testing.assert_allclose(merged.std, dataset.statistics(range(9))["action"].std, rtol=1e-12)


def test_rule_49_episodes_that_missing_drops_do_not_count(rng, tmp_path):
    recording = recording_of(rng)
    del recording[9]["time"]  # of the one that is broken
    dataset = write(tmp_path / "cache", recording)
    loader = windowed(
        dataset, normalize="mean_std", missing="drop", delta_timestamps={"action": None, "time": None}, min_spread=0
    )
    assert_normalised_by(loader, dataset.statistics(range(9))["action"], "mean_std", rows_of(recording, range(9)))


def test_rule_49_ranks_with_episodes_of_their_own_and_copies_agree(dataset):
    options = {"normalize": "min_max", "episodes": range(9), "shard_episodes": True, "batch_size": 8, "world_size": 2}
    x = np.float32([[0.5, 99, 0.1]])
    alone = windowed(dataset, normalize="min_max", episodes=range(9)).normalize("action", x)
    for rank in range(2):
        loader = windowed(dataset, rank=rank, **options)
        np.testing.assert_array_equal(loader.normalize("action", x), alone)
        copy = pickle.loads(pickle.dumps(loader))
        np.testing.assert_array_equal(copy.normalize("action", x), alone)
        np.testing.assert_array_equal(np.asarray(next(copy)["action"]), np.asarray(next(loader)["action"]))


# ---- what is kept ----


def kept(dataset):
    folder = os.path.join(dataset.path, "statistics")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder)) if os.path.isdir(folder) else []


def in_a_new_process(path, episodes):
    """Nothing that this one has in memory."""
    code = (
        "import sys, json, robocache; "
        "s = robocache.open(sys.argv[1]).statistics(json.loads(sys.argv[2]))['action']; "
        "print(json.dumps([x.tolist() for x in s]))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, path, json.dumps(episodes)], capture_output=True, text=True, check=True
    )
    return np.array(json.loads(made.stdout))


def test_rule_49_statistics_are_kept_beside_the_cache_and_the_cache_stays_whole(dataset):
    assert not kept(dataset)
    windowed(dataset, normalize="mean_std", episodes=range(9))
    (file,) = kept(dataset)
    table = np.load(file)
    for got, wanted in zip(table, dataset.statistics(range(9))["action"], strict=True):
        np.testing.assert_array_equal(got, wanted)
    robocache.open(dataset.path, verify=True)
    np.testing.assert_array_equal(in_a_new_process(dataset.path, list(range(9))), table)
    assert kept(dataset) == [file]
    windowed(dataset, normalize="mean_std")
    assert kept(dataset) == [file]


@pytest.mark.parametrize("damage", ["byte", "cut", "empty", "folder"])
def test_rule_49_what_is_kept_and_damaged_is_made_anew(dataset, damage):
    wanted = np.array(dataset.statistics([0, 1])["action"])
    (file,) = kept(dataset)
    with open(file, "rb") as opened:
        content = bytearray(opened.read())
    content[-20] ^= 1
    os.unlink(file)
    if damage == "folder":
        os.mkdir(file)
    else:
        with open(file, "wb") as opened:
            opened.write({"byte": content, "cut": content[:100], "empty": b""}[damage])
    np.testing.assert_array_equal(in_a_new_process(dataset.path, [0, 1]), wanted)
    if damage != "folder":
        np.testing.assert_array_equal(np.load(file), wanted)


def test_rule_49_a_folder_that_cannot_be_written_is_left_as_it_is(dataset, recording):
    with open(os.path.join(dataset.path, "statistics"), "w") as file:  # root writes to what it may not
        file.write("taken")
    assert_statistics(dataset.statistics([0, 1])["action"], rows_of(recording, [0, 1]))
    with open(os.path.join(dataset.path, "statistics")) as file:
        assert file.read() == "taken"


def test_rule_49_a_cache_that_grew_or_was_written_anew_has_statistics_of_its_own(rng, recording, tmp_path):
    path = tmp_path / "cache"
    dataset = write(path, recording)
    before = dataset.statistics([0, 1])["action"]
    with robocache.Writer(path, append=True) as writer, writer.episode(task="more") as episode:
        episode.append("action", np.arange(50) * 10**7, np.full((50, 3), 7, np.float32))
    grown = robocache.open(path)
    np.testing.assert_array_equal(np.array(grown.statistics([0, 1])["action"]), np.array(before))
    more = np.concatenate([rows_of(recording, [0]), np.full((50, 3), 7.0)])
    assert_statistics(grown.statistics([0, 10])["action"], more)
    robocache.open(path, verify=True)
    other = recording_of(rng)
    with robocache.Writer(path, overwrite=True) as writer:
        for streams in other:
            with writer.episode() as episode:
                for name, (time_ns, values) in streams.items():
                    episode.append(name, time_ns, values)
    assert_statistics(robocache.open(path).statistics([0, 1])["action"], rows_of(other, [0, 1]))


def test_rule_49_many_ask_at_once(rng, tmp_path):
    recording = recording_of(rng, episodes=40, broken=(), longest=2000)
    dataset = write(tmp_path / "cache", recording)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(np.array(dataset.statistics(range(30))["action"])))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for got in found:
        np.testing.assert_array_equal(got, found[0])
    assert [name.endswith(".npy") for name in kept(dataset)] == [True]


# ---- features that hardly change ----


def flickering(rng, tmp_path, spreads, dtype=np.float32, centre=0.3, names=None):
    values = (centre + rng.normal(size=(500, len(spreads))) * spreads).astype(dtype)
    with robocache.Writer(tmp_path / "flickering") as writer:
        if names:
            writer.stream("state", names=names)
        with writer.episode() as episode:
            episode.append("state", np.arange(500) * 10**7, values)
    return robocache.open(tmp_path / "flickering"), values


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("constant", ["center", "lerobot", "openpi"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rule_38_a_spread_below_min_spread_is_not_scaled(rng, tmp_path, mode, constant, dtype, device):
    dataset, values = flickering(rng, tmp_path, [1e-7, 2e-5, 1.0], dtype, names=["wrist", "elbow", "base"])
    options = {"batch_size": 500, "delta_timestamps": {"state": None}, "shuffle": False, "device": device}
    with pytest.warns(LoaderWarning) as said:
        loader = flat_loader(dataset, normalize=mode, constant=constant, dtype="float64", **options)
    assert len(said) == 1
    for part in ("min_spread", "2 in all", "'state'[0] (wrist)", "'state'[1] (elbow)", "below 0.0001", "min_spread=0"):
        assert part in str(said[0].message)
    assert "base" not in str(said[0].message)
    got = np.asarray(next(loader)["state"].cpu())[:, :2]
    stats = dataset.stats["state"]
    ranges = {"min_max": stats.min, "q01_q99": stats.q01, "q10_q90": stats.q10}
    if mode == "mean_std":
        wanted = values - stats.mean
    elif constant == "center":
        wanted = values - spread_of(stats, mode)[0]
    else:
        wanted = values - ranges[mode] - 1
    np.testing.assert_allclose(got, wanted[:, :2], atol=1e-6)
    field = np.asarray([[0.31, 0.31, 0.31]], dtype)
    normalised = loader.normalize("state", field)
    assert np.abs(normalised[:, :2]).max() < 1.02
    np.testing.assert_allclose(loader.unnormalize("state", normalised), field, atol=1e-6)


def test_rule_38_min_spread_of_0_scales_what_there_is_and_says_nothing(rng, tmp_path):
    dataset, values = flickering(rng, tmp_path, [1e-5], np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        options = {"batch_size": 500, "delta_timestamps": {"state": None}, "normalize": "mean_std", "shuffle": False}
        got = np.asarray(next(flat_loader(dataset, min_spread=0, dtype="float64", device="cpu", **options))["state"])
        flat_loader(dataset, min_spread=0.9e-5, **options)
    np.testing.assert_allclose(got, (values - values.mean(0)) / values.std(0), atol=1e-6)
    with pytest.warns(LoaderWarning, match=r"below 0.5"):
        flat_loader(dataset, min_spread=0.5, **options)


def test_rule_38_what_is_constant_or_given_by_others_is_judged_alike(rng, tmp_path):
    dataset, _ = flickering(rng, tmp_path, [0.0, 1.0])
    options = {"batch_size": 8, "delta_timestamps": {"state": None}, "normalize": "mean_std"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        flat_loader(dataset, **options)
    given = {"state": {"mean": [0.0, 0.0], "std": [1.0, 1e-6]}}
    with pytest.warns(LoaderWarning, match=r"'state'\[1\] 1e-06"):
        loader = flat_loader(dataset, norm_stats=given, **options)
    assert loader.normalize("state", np.float32([[0, 0.5]]))[0, 1] == 0.5


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_rule_38_a_min_spread_that_is_none_is_refused(rng, tmp_path, wrong):
    dataset, _ = flickering(rng, tmp_path, [1.0])
    options = {"batch_size": 8, "delta_timestamps": {"state": None}}
    with pytest.raises(robocache.ArgumentError, match="min_spread: expected a finite number"):
        flat_loader(dataset, normalize="mean_std", min_spread=wrong, **options)
    with pytest.raises(robocache.ArgumentError, match="min_spread: goes with a Window"):
        flat_loader(dataset, min_spread=0.0, **options)
