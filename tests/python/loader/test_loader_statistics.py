"""Loader and Dataset: statistics of the drawn rows, against numpy's; features that hardly change."""

import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
import zlib

import ml_dtypes
import numpy as np
import pytest
from cache_files import sign
from flat_options import flat_loader
from recordings import write

import robocache
from robocache import LoaderWarning, Source

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
MODES = "mean_std", "min_max", "q01_q99", "q10_q90"


def recording_of(rng, dtype=np.float32, episodes=10, broken=(9,), longest=300):
    """Episodes of any length, one empty; those in `broken` have a sensor's fault."""
    result = []
    for e in range(episodes):
        count = 0 if e == 3 else int(rng.integers(1, longest))
        values = rng.normal(size=(count, 3)) * [1, 5, 0.3] + [0, 100, 0]
        values[rng.random(values.shape) < 0.02] = np.nan
        values = np.full((count, 3), 4000.0) if e in broken else values
        streams = {"time": (np.arange(count) * 10**7, np.zeros((count, 1), np.float32))} if count else {}
        result.append({**streams, "action": (np.arange(count) * 10**7, values.astype(dtype))} if count else {})
    return result


@pytest.fixture
def recording(rng):
    return recording_of(rng)


@pytest.fixture
def dataset(recording, tmp_path):
    return write(tmp_path / "cache", recording)


def rows_of(recording, episodes):
    return np.concatenate([recording[e]["action"][1] for e in sorted(set(episodes)) if recording[e]]).astype(np.float64)


def assert_statistics(stats, rows):
    """Compares with numpy's statistics."""
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
def test_rule_49_statistics_of_episodes_equal_numpys(rng, tmp_path, dtype, episodes):
    recording = recording_of(rng, dtype)
    dataset = write(tmp_path / "cache", recording)
    assert_statistics(dataset.statistics(episodes)["action"], rows_of(recording, episodes))


def test_rule_49_statistics_of_a_selection_equal_those_of_a_cache_of_it(rng, tmp_path):
    """Blocks of sums cross episodes, and many rows are read in parts."""
    recording = recording_of(rng, episodes=60, broken=(), longest=3000)
    chosen = [e for e in range(60) if e % 3]
    alone = write(tmp_path / "alone", [recording[e] for e in chosen])
    some = write(tmp_path / "all", recording).statistics(chosen)
    for name in ("action", "time"):
        for got, wanted in zip(some[name], alone.stats[name], strict=True):
            np.testing.assert_array_equal(got.view(np.int64), wanted.view(np.int64))


def test_rule_49_statistics_of_all_no_and_conditional_episodes(dataset, recording):
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
def test_rule_49_a_loader_normalises_by_its_drawn_rows(dataset, recording, mode, selected):
    loader = windowed(dataset, normalize=mode, **selected)
    drawn = [0, 2, 4, 6, 8] if isinstance(selected["episodes"], dict) else list(selected["episodes"])
    stats = dataset.statistics(drawn)["action"]
    assert_statistics(stats, rows_of(recording, drawn))
    rows = np.concatenate([recording[e]["action"][1] for e in drawn if recording[e]])
    assert_normalised_by(loader, stats, mode, rows)


def test_rule_49_statistics_of_the_dataset_or_given_ones_on_request(dataset, recording):
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
    with pytest.raises(robocache.ArgumentError, match="stats_of: expected a Window"):
        windowed(dataset, stats_of="dataset")


def test_rule_49_each_source_normalises_by_its_selection(dataset, recording):
    sources = [Source(dataset, episodes=[0, 1]), Source(dataset, episodes={"task": "task 0"}), Source(dataset)]
    loader = windowed(sources, normalize="mean_std")
    batch = next(loader)
    for index, episodes in enumerate(([0, 1], [0, 2, 4, 6, 8], range(10))):
        stats = dataset.statistics(episodes)["action"]
        assert_statistics(stats, rows_of(recording, episodes))
        rows = rows_of(recording, episodes)
        got = np.asarray(batch["action"])[np.asarray(batch["dataset_index"]) == index]
        np.testing.assert_allclose(got, (rows - stats.mean) / stats.std, rtol=1e-5, atol=1e-5)
        x = np.float32([[0.5, 99, 0.1]])
        np.testing.assert_allclose(
            loader.normalize("action", x, index), (x - stats.mean) / stats.std, rtol=1e-5, atol=1e-5
        )
    merged = robocache.merge_stats([dataset.statistics(range(4)), dataset.statistics(range(4, 9))])["action"]
    np.testing.assert_allclose(merged.std, dataset.statistics(range(9))["action"].std, rtol=1e-12)


def test_rule_49_episodes_dropped_by_missing_do_not_count(rng, tmp_path):
    recording = recording_of(rng)
    del recording[9]["time"]  # from the broken episode
    dataset = write(tmp_path / "cache", recording)
    loader = windowed(
        dataset, normalize="mean_std", missing="drop", delta_timestamps={"action": None, "time": None}, min_spread=0
    )
    assert_normalised_by(loader, dataset.statistics(range(9))["action"], "mean_std", rows_of(recording, range(9)))


def test_rule_49_ranks_with_their_own_episodes_and_copies_agree(dataset):
    options = {"normalize": "min_max", "episodes": range(9), "shard_episodes": True, "batch_size": 8, "world_size": 2}
    x = np.float32([[0.5, 99, 0.1]])
    alone = windowed(dataset, normalize="min_max", episodes=range(9)).normalize("action", x)
    for rank in range(2):
        loader = windowed(dataset, rank=rank, **options)
        np.testing.assert_array_equal(loader.normalize("action", x), alone)
        copy = pickle.loads(pickle.dumps(loader))
        np.testing.assert_array_equal(copy.normalize("action", x), alone)
        np.testing.assert_array_equal(np.asarray(next(copy)["action"]), np.asarray(next(loader)["action"]))


# ---- stored statistics ----


def kept(dataset):
    folder = os.path.join(dataset.path, "statistics")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder)) if os.path.isdir(folder) else []


def in_a_new_process(path, episodes):
    """Computes them in a new process, without this one's memory."""
    code = (
        "import sys, json; sys.modules['torch'] = None; import robocache; "
        "s = robocache.open(sys.argv[1]).statistics(json.loads(sys.argv[2]))['action']; "
        "print(json.dumps([x.tolist() for x in s]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, path, json.dumps(episodes)], capture_output=True, text=True, check=True
    )
    return np.array(json.loads(process.stdout))


def test_rule_49_statistics_are_stored_and_the_cache_stays_valid(dataset):
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
def test_rule_49_damaged_stored_statistics_are_computed_anew(dataset, damage):
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


def test_rule_49_a_read_only_folder_is_not_changed(dataset, recording):
    with open(os.path.join(dataset.path, "statistics"), "w") as file:  # no folder: root ignores permissions
        file.write("taken")
    assert_statistics(dataset.statistics([0, 1])["action"], rows_of(recording, [0, 1]))
    with open(os.path.join(dataset.path, "statistics")) as file:
        assert file.read() == "taken"


def test_rule_49_a_changed_cache_has_new_statistics(rng, recording, tmp_path):
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


def test_rule_49_simultaneous_requests(rng, tmp_path):
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
    with pytest.warns(LoaderWarning) as warned:
        loader = flat_loader(dataset, normalize=mode, constant=constant, dtype="float64", **options)
    assert len(warned) == 1
    for part in ("min_spread", "2 in all", "'state'[0] (wrist)", "'state'[1] (elbow)", "below 0.0001", "min_spread=0"):
        assert part in str(warned[0].message)
    assert "base" not in str(warned[0].message)
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


def test_rule_38_min_spread_of_0_scales_all_without_a_warning(rng, tmp_path):
    dataset, values = flickering(rng, tmp_path, [1e-5], np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        options = {"batch_size": 500, "delta_timestamps": {"state": None}, "normalize": "mean_std", "shuffle": False}
        got = np.asarray(next(flat_loader(dataset, min_spread=0, dtype="float64", device="cpu", **options))["state"])
        flat_loader(dataset, min_spread=0.9e-5, **options)
    np.testing.assert_allclose(got, (values - values.mean(0)) / values.std(0), atol=1e-6)
    with pytest.warns(LoaderWarning, match=r"below 0.5"):
        flat_loader(dataset, min_spread=0.5, **options)


def test_rule_38_constants_and_given_statistics_have_the_same_rule(rng, tmp_path):
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
def test_rule_38_an_invalid_min_spread_is_refused(rng, tmp_path, wrong):
    dataset, _ = flickering(rng, tmp_path, [1.0])
    options = {"batch_size": 8, "delta_timestamps": {"state": None}}
    with pytest.raises(robocache.ArgumentError, match="min_spread: expected a finite number"):
        flat_loader(dataset, normalize="mean_std", min_spread=wrong, **options)
    with pytest.raises(robocache.ArgumentError, match="min_spread: expected a Window"):
        flat_loader(dataset, min_spread=0.0, **options)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("beam", [[np.inf], [-np.inf], [np.inf, -np.inf]])
@pytest.mark.parametrize("mode", MODES)
def test_infinities_are_ignored(tmp_path, rng, dtype, beam, mode):
    """Statistics of a dataset, a selection and a window equal numpy's of the finite numbers."""
    times = np.arange(200) * 10**7
    episodes = []
    for _ in range(3):
        values = rng.normal(100, 20, (200, 2)).astype(dtype)
        values[50 : 50 + len(beam), 1] = beam
        values[70, 0] = np.nan
        episodes.append({"scan": (times, values)})
    dataset = write(tmp_path / "cache", episodes)
    columns = [episode["scan"][1].astype(np.float64) for episode in episodes]
    for chosen in (None, [0, 2]):
        rows = np.concatenate(columns if chosen is None else [columns[e] for e in chosen])
        finite = np.where(np.isfinite(rows), rows, np.nan)
        stats = dataset.stats if chosen is None else dataset.statistics(episodes=chosen)
        assert_statistics(stats["scan"], finite)
        with warnings.catch_warnings():
            warnings.simplefilter("error", LoaderWarning)
            loader = robocache.Loader(
                dataset,
                batch_size=8,
                device="cpu",
                shuffle=False,
                episodes=chosen,
                delta_timestamps={"scan": [0.0]},
                default=robocache.Window(normalize=mode, dtype="float32"),
            )
        got = next(iter(loader))["scan"][:, 0].numpy()
        first, second = {
            "mean_std": (np.nanmean(finite, 0), np.nanstd(finite, 0)),
            "min_max": (np.nanmin(finite, 0), np.nanmax(finite, 0)),
        }.get(mode) or np.nanquantile(finite, [QUANTILES[mode[:3]], QUANTILES[mode[4:]]], axis=0)
        expected = (rows - first) / second if mode == "mean_std" else 2 * (rows - first) / (second - first) - 1
        np.testing.assert_allclose(got, expected[:8], rtol=1e-4, atol=1e-4)
        assert_statistics(dataset.statistics(loader)["scan"], finite)


def test_a_feature_of_infinities_alone_has_no_statistics(tmp_path):
    values = np.array([[1.0, np.inf], [2.0, -np.inf], [3.0, np.nan]])
    dataset = write(tmp_path / "cache", [{"scan": (np.arange(3), values)}])
    assert dataset.stats["scan"].count.tolist() == [3, 0] and np.isnan(dataset.stats["scan"].mean[1])
    assert dataset.streams["scan"].findings["constant_features"] == [1]


def count_infinities(file, rows):
    """Writes statistics of an older version, which ignored only NaN, into a file with or without a checksum."""
    content = file.read_bytes()
    head = content[: content.index(b"\n") + 1]
    with np.errstate(all="ignore"):
        quantiles = np.nanquantile(rows, list(QUANTILES.values()), axis=0)
        table = [np.nanmean(rows, 0), np.nanstd(rows, 0), np.nanmin(rows, 0), np.nanmax(rows, 0), *quantiles]
    written = head + np.array([*table, (~np.isnan(rows)).sum(0)], np.float64).tobytes()
    file.write_bytes(written + zlib.crc32(written).to_bytes(4, "little") * (len(content) > len(written)))


@pytest.mark.parametrize("selected", [None, [0, 2]])
@pytest.mark.parametrize("mode", ["mean_std", "min_max", "q10_q90", "q02_q98"])
def test_statistics_that_count_infinities_are_computed_anew(tmp_path, rng, mode, selected):
    """Statistics in the cache, and those stored beside it."""
    episodes = [{"scan": (np.arange(100) * 10**7, rng.normal(size=(100, 2)))} for _ in range(3)]
    for episode in episodes:
        episode["scan"][1][::7, 1] = np.inf
    path = tmp_path / "cache"
    write(path, episodes)
    rows = [episodes[e]["scan"][1] for e in selected or range(3)]
    count_infinities(path / "streams/scan/stats.npy", np.concatenate([episode["scan"][1] for episode in episodes]))
    sign(path, "streams/scan/stats.npy")
    if selected:
        code = "import sys; sys.modules['torch'] = None; import robocache; robocache.open(sys.argv[1]).statistics([0, 2])['scan']"
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
        (file,) = (path / "statistics").iterdir()
        count_infinities(file, np.concatenate(rows))
    dataset = robocache.open(path)
    finite = np.where(np.isfinite(np.concatenate(rows)), np.concatenate(rows), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        loader = windowed(
            dataset, delta_timestamps={"scan": [0.0]}, episodes=selected, normalize=mode, stats_of="selection"
        )
    first, second = {
        "mean_std": lambda: (np.nanmean(finite, 0), np.nanstd(finite, 0)),
        "min_max": lambda: (np.nanmin(finite, 0), np.nanmax(finite, 0)),
    }.get(mode, lambda: np.nanquantile(finite, [int(mode[1:3]) / 100, int(mode[5:7]) / 100], axis=0))()
    expected = (rows[0] - first) / second if mode == "mean_std" else 2 * (rows[0] - first) / (second - first) - 1
    np.testing.assert_allclose(np.asarray(next(loader)["scan"])[:100, 0], expected, rtol=1e-5, atol=1e-5)
    assert_statistics((dataset.statistics(selected) if selected else dataset.stats)["scan"], finite)
    assert robocache.doctor(path).findings[0].code == "infinite-value"
    assert "statistics" not in [finding.code for finding in robocache.doctor(path).findings]


def scan(tmp_path, rng, dtype=np.float64, scale=1.0):
    values = rng.normal(100, 20, (200, 3)).astype(dtype) * dtype(scale)
    return write(tmp_path / "cache", [{"scan": (np.arange(200) * 10**7, values)}]), values


@pytest.mark.parametrize(
    ("mode", "given", "words"),
    [
        ("mean_std", {"mean": [0.0, np.nan, 0.0], "std": [1.0, np.nan, 1.0]}, "mean nan and std nan"),
        ("mean_std", {"mean": [0.0, np.nan, 0.0], "std": [1.0, np.nan, 1.0], "count": 0}, "mean nan and std nan"),
        ("mean_std", {"mean": [0.0, 2.0, 0.0], "std": [1.0, np.nan, 1.0]}, "mean 2 and std nan"),
        ("mean_std", {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1e39, 1.0]}, r"mean 0 and std 1e\+39"),
        ("mean_std", {"mean": [0.0, 1e39, 0.0], "std": [1.0, 1.0, 1.0]}, r"mean 1e\+39 and std 1"),
        ("mean_std", {"mean": [0.0, 1e39, 0.0], "std": [1.0, 1e-6, 1.0]}, r"mean 1e\+39 and std 1e-06"),
        ("min_max", {"min": [0.0, 3.0, 0.0], "max": [1.0, 1.0, 1.0]}, "min 3 and max 1"),
        ("q01_q99", {"q01": [0.0, np.nan, 0.0], "q99": [1.0, 1.0, 1.0]}, "q01 nan and q99 1"),
    ],
)
def test_given_statistics_without_a_scale_are_named(tmp_path, rng, mode, given, words):
    dataset, _ = scan(tmp_path, rng, np.float32)
    with pytest.warns(LoaderWarning, match=rf"not scaled, .* 'scan'\[1\] {words}; "):
        windowed(dataset, delta_timestamps={"scan": [0.0]}, normalize=mode, norm_stats={"scan": given})


@pytest.mark.parametrize("constant", ["center", "lerobot", "openpi"])
def test_given_statistics_of_a_constant_beyond_float32_are_named(tmp_path, rng, constant):
    dataset, _ = scan(tmp_path, rng, np.float32)
    given = {"mean": [0.0, 1e39, 0.0], "std": [1.0, 0.0, 1.0]}
    with pytest.warns(LoaderWarning, match=r"'scan'\[1\] mean 1e\+39 and std 0"):
        windowed(
            dataset,
            delta_timestamps={"scan": [0.0]},
            normalize="mean_std",
            norm_stats={"scan": given},
            constant=constant,
        )


def test_features_without_numbers_and_constants_are_not_named(tmp_path, rng):
    values = rng.normal(size=(50, 4))
    values[:, 1], values[:, 2], values[:, 3] = np.nan, np.inf, 7
    dataset = write(tmp_path / "cache", [{"scan": (np.arange(50) * 10**7, values)}])
    for constant in ("center", "lerobot", "openpi"):
        for stats in (None, dataset.stats):
            with warnings.catch_warnings():
                warnings.simplefilter("error", LoaderWarning)
                windowed(
                    dataset,
                    delta_timestamps={"scan": [0.0]},
                    normalize="mean_std",
                    norm_stats=stats,
                    constant=constant,
                )


def test_numbers_whose_sums_overflow_are_named(tmp_path, rng):
    dataset, values = scan(tmp_path, rng, np.float64, 1e200)
    with np.errstate(over="ignore"):
        assert np.isinf(np.std(values, 0)).all()
    options = {"delta_timestamps": {"scan": [0.0]}, "dtype": "float64"}
    with pytest.warns(LoaderWarning, match=r"3 in all: 'scan'\[0\] mean .*e\+202 and std inf"):
        windowed(dataset, normalize="mean_std", **options)
    got = np.asarray(next(windowed(dataset, normalize="q10_q90", **options))["scan"])[:, 0]
    low, high = np.quantile(values, [0.1, 0.9], axis=0)
    np.testing.assert_allclose(got, 2 * (values - low) / (high - low) - 1, rtol=1e-9, atol=1e-9)


def test_numbers_near_the_largest_float32_are_normalised(tmp_path, rng):
    dataset, values = scan(tmp_path, rng, np.float32, 1e36)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        loader = windowed(dataset, delta_timestamps={"scan": [0.0]}, normalize="mean_std")
    wide = values.astype(np.float64)
    expected = (wide - wide.mean(0)) / wide.std(0)
    np.testing.assert_allclose(np.asarray(next(loader)["scan"])[:, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "largest", "beyond"),
    [("float16", 65519.0, 65520.0), ("bfloat16", 3.3895e38, 3.39618e38), ("float32", 3.40282e38, 3.4028236e38)],
)
def test_numbers_beyond_the_dtype_are_named(tmp_path, rng, dtype, largest, beyond):
    """Numbers become infinite exactly where a cast by numpy or ml_dtypes makes them infinite."""
    for name, number in (("fits", largest), ("beyond", beyond)):
        values = np.array([[1.0, np.inf], [-number, 2.0]])
        with np.errstate(over="ignore"):
            cast = np.float64(np.array(-number).astype(getattr(ml_dtypes, dtype, None) or dtype))
        assert np.isinf(cast) == (name == "beyond")
        dataset = write(tmp_path / name, [{"scan": (np.arange(2) * 10**7, values)}])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            windowed(dataset, delta_timestamps={"scan": [0.0]}, default=robocache.Window(dtype=dtype))
        texts = [str(warning.message) for warning in caught if "infinite" in str(warning.message)]
        assert len(texts) == (name == "beyond"), texts
        assert all(f"beyond {dtype}, 1 in all: 'scan'[0] up to " in text for text in texts)


def test_normalised_numbers_beyond_the_dtype_are_named(tmp_path, rng):
    values = rng.normal(size=(1000, 2))
    values[500, 1] = 1e6
    dataset = write(tmp_path / "cache", [{"scan": (np.arange(1000) * 10**7, values)}])
    options = {"delta_timestamps": {"scan": [0.0]}, "dtype": "float16", "normalize": "q10_q90"}
    with pytest.warns(LoaderWarning, match=r"beyond float16, 1 in all: 'scan'\[1\] up to"):
        loader = windowed(dataset, **options)
    assert np.isinf(np.asarray(next(loader)["scan"])[500, 0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderWarning)
        windowed(dataset, normalization=robocache.Normalization(clip=True), **options)
        windowed(dataset, **{**options, "normalize": "min_max"})


@pytest.mark.parametrize("wrong", [np.inf, -np.inf])
def test_given_statistics_that_are_infinite_are_refused(dataset, wrong):
    given = {"mean": [0.0, 0, 0], "std": [1.0, 1, 1], "min": [0.0, -2, 0], "max": [5.0, wrong, 5]}
    with pytest.raises(robocache.ArgumentError, match=r"norm_stats\['action'\].max: .*inf for feature 1; compute"):
        windowed(dataset, normalize="min_max", norm_stats={"action": given})
    with pytest.raises(robocache.ArgumentError, match=r"sources\[0\].*norm_stats\['action'\].max: .*inf for feature 1"):
        windowed([Source(dataset, norm_stats={"action": given}), Source(dataset)], normalize="min_max")
    windowed(dataset, normalize="mean_std", norm_stats={"action": given})
