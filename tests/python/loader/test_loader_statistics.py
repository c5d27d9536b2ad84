"""Statistics of the rows that a Loader draws and of a Dataset, against numpy's; features that hardly change."""

import pickle
import threading
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cache_files import sign
from loaders_by_keywords import loader_by_keywords
from recordings import FORKS, no_warning, run_forked, warnings_with, write
from reference.normalisation import MODES, affine_of, assert_statistics

import robocache
from robocache import LoaderWarning, Source

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def recording_of(rng, dtype=np.float32, episodes=10, wrong_episodes=(9,), longest=300):
    """Returns episodes of random lengths, of which episode 3 is empty. Those in `wrong_episodes` have wrong, constant values."""
    result = []
    for e in range(episodes):
        count = 0 if e == 3 else int(rng.integers(1, longest))
        values = rng.normal(size=(count, 3)) * [1, 5, 0.3] + [0, 100, 0]
        values[rng.random(values.shape) < 0.02] = np.nan
        values = np.full((count, 3), 4000.0) if e in wrong_episodes else values
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


def loader_of(dataset, **options):
    return loader_by_keywords(
        dataset,
        **{"batch_size": 4096, "delta_timestamps": {"action": None}, "shuffle": False, "device": "cpu", **options},
    )


def assert_normalised(loader, mode, rows, pooled_rows, source=None):
    """Checks that a batch of the recorded `rows`, and an array, are normalised by the statistics of `pooled_rows`."""
    centre, spread = affine_of(pooled_rows, mode)
    batch = next(loader)
    samples = slice(None) if source is None else np.asarray(batch["dataset_index"]) == source
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(np.asarray(batch["action"])[samples], (rows - centre) / spread, **tolerance)
    x = np.float32([[0.5, 99, 0.1]])
    y = loader.normalize("action", x, source)
    np.testing.assert_allclose(y, (x - centre) / spread, **tolerance)
    np.testing.assert_allclose(loader.unnormalize("action", y, source), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("episodes", [[0, 1, 2, 3, 4, 5, 6, 7, 8], [7, 2, 2, 5], [4], [9, 0]], ids=str)
def test_rule_49_statistics_of_episodes_equal_numpys(rng, tmp_path, dtype, episodes):
    recording = recording_of(rng, dtype)
    dataset = write(tmp_path / "cache", recording)
    assert_statistics(dataset.statistics(episodes)["action"], rows_of(recording, episodes))


def test_rule_49_statistics_of_a_selection_equal_those_of_its_own_cache(rng, tmp_path):
    """Blocks of sums cross episodes, and many rows are read in parts."""
    recording = recording_of(rng, episodes=60, wrong_episodes=(), longest=3000)
    chosen = [e for e in range(60) if e % 3]
    own_cache = write(tmp_path / "own_cache", [recording[e] for e in chosen])
    selection_stats = write(tmp_path / "all", recording).statistics(chosen)
    for name in ("action", "time"):
        for result, expected in zip(selection_stats[name], own_cache.stats[name], strict=True):
            np.testing.assert_array_equal(result.view(np.int64), expected.view(np.int64))


def test_rule_49_statistics_of_all_no_and_conditional_episodes(dataset, recording):
    for result, expected in zip(dataset.statistics()["action"], dataset.stats["action"], strict=True):
        np.testing.assert_array_equal(result, expected)
    assert (dataset.statistics([])["action"].count == 0).all()
    assert np.isnan(dataset.statistics([3])["action"].mean).all()
    assert_statistics(dataset.statistics(where={"task": "task 0"})["action"], rows_of(recording, [0, 2, 4, 6, 8]))
    assert_statistics(dataset.statistics([1, 2, 4], where={"task": "task 0"})["action"], rows_of(recording, [2, 4]))
    with pytest.raises(robocache.ArgumentError, match=r"episodes: expected indices in \[0, 10\), got 10"):
        dataset.statistics([10])
    with pytest.raises(robocache.ArgumentError, match="expected one of"):
        dataset.statistics([0])["nothing"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("selected", [range(9), {"task": "task 0"}, [8, 1, 1, 4]], ids=str)
def test_rule_49_a_loader_normalises_by_its_drawn_rows(dataset, recording, mode, selected):
    drawn = [0, 2, 4, 6, 8] if isinstance(selected, dict) else selected
    rows = np.concatenate([recording[e]["action"][1] for e in drawn if recording[e]])
    loader = loader_of(dataset, normalize=mode, episodes=selected)
    assert_normalised(loader, mode, rows, rows_of(recording, drawn))


def test_rule_49_statistics_of_the_dataset_or_given_ones_on_request(dataset, recording):
    for options, episodes in (
        ({"stats_of": "dataset"}, range(10)),
        ({"norm_stats": dataset.stats}, range(10)),
        ({"norm_stats": dataset.statistics(range(9))}, range(9)),
    ):
        loader = loader_of(dataset, normalize="mean_std", episodes=[0], **options)
        assert_normalised(loader, "mean_std", recording[0]["action"][1], rows_of(recording, episodes))
    with pytest.raises(robocache.ArgumentError, match="stats_of: expected 'selection' or 'dataset', got 'all'"):
        loader_of(dataset, normalize="mean_std", stats_of="all")
    with pytest.raises(robocache.ArgumentError, match="stats_of: expected a Window"):
        loader_of(dataset, stats_of="dataset")


def test_rule_49_each_source_normalises_by_its_selection(dataset, recording):
    sources = [Source(dataset, episodes=[0, 1]), Source(dataset, episodes={"task": "task 0"}), Source(dataset)]
    for index, episodes in enumerate(([0, 1], [0, 2, 4, 6, 8], range(10))):
        rows = rows_of(recording, episodes)
        assert_normalised(loader_of(sources, normalize="mean_std"), "mean_std", rows, rows, index)
    merged = robocache.merge_stats([dataset.statistics(range(4)), dataset.statistics(range(4, 9))])["action"]
    np.testing.assert_allclose(merged.std, dataset.statistics(range(9))["action"].std, rtol=1e-12)


def test_rule_49_episodes_dropped_by_missing_do_not_count(rng, tmp_path):
    recording = recording_of(rng)
    del recording[9]["time"]  # from the episode with wrong values
    dataset = write(tmp_path / "cache", recording)
    windows = {"action": None, "time": None}
    loader = loader_of(dataset, normalize="mean_std", missing="drop", delta_timestamps=windows, min_spread=0)
    rows = rows_of(recording, range(9))
    assert_normalised(loader, "mean_std", rows, rows)


def test_rule_49_ranks_with_their_own_episodes_and_copies_agree(dataset):
    options = {"normalize": "min_max", "episodes": range(9), "shard_episodes": True, "batch_size": 8, "world_size": 2}
    x = np.float32([[0.5, 99, 0.1]])
    expected = loader_of(dataset, normalize="min_max", episodes=range(9)).normalize("action", x)
    for rank in range(2):
        loader = loader_of(dataset, rank=rank, **options)
        np.testing.assert_array_equal(loader.normalize("action", x), expected)
        copy = pickle.loads(pickle.dumps(loader))
        np.testing.assert_array_equal(copy.normalize("action", x), expected)
        np.testing.assert_array_equal(np.asarray(next(copy)["action"]), np.asarray(next(loader)["action"]))


# ---- stored statistics ----


def stored_files(dataset):
    return sorted(Path(dataset.path).glob("statistics/*"))


def compute_in_a_child(dataset, episodes):
    """Computes the statistics of actions in a forked child, so that this process does not remember them."""
    return np.array(run_forked(lambda: tuple(dataset.statistics(episodes)["action"])))


@FORKS
def test_rule_49_statistics_are_stored_and_the_cache_stays_valid(dataset, recording):
    table = compute_in_a_child(dataset, range(9))
    (file,) = stored_files(dataset)
    np.testing.assert_array_equal(np.load(file), table)
    robocache.open(dataset.path, verify=True)
    inode = file.stat().st_ino
    rows = rows_of(recording, range(9))
    assert_normalised(loader_of(dataset, normalize="mean_std", episodes=range(9)), "mean_std", rows, rows)
    loader_of(dataset, normalize="mean_std")  # the manifest has these statistics
    assert [(path, path.stat().st_ino) for path in stored_files(dataset)] == [(file, inode)]


@FORKS
@pytest.mark.parametrize("damage", ["byte", "cut", "empty", "folder"])
def test_rule_49_damaged_stored_statistics_are_computed_anew(dataset, damage):
    expected = compute_in_a_child(dataset, [0, 1])
    (file,) = stored_files(dataset)
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.unlink()
    if damage == "folder":
        file.mkdir()
    else:
        file.write_bytes({"byte": content, "cut": content[:100], "empty": b""}[damage])
    np.testing.assert_array_equal(np.array(dataset.statistics([0, 1])["action"]), expected)
    if damage != "folder":
        np.testing.assert_array_equal(np.load(file), expected)


def test_rule_49_a_read_only_folder_is_not_changed(dataset, recording):
    folder = Path(dataset.path) / "statistics"
    folder.write_text("taken")  # a file instead of the folder, since root ignores permissions
    assert_statistics(dataset.statistics([0, 1])["action"], rows_of(recording, [0, 1]))
    assert folder.read_text() == "taken"


def test_rule_49_a_changed_cache_has_new_statistics(rng, recording, tmp_path):
    path = tmp_path / "cache"
    dataset = write(path, recording)
    stats_before = dataset.statistics([0, 1])["action"]
    new_episode = {"action": (np.arange(50) * 10**7, np.full((50, 3), 7, np.float32))}
    grown = write(path, [new_episode], append=True)
    np.testing.assert_array_equal(np.array(grown.statistics([0, 1])["action"]), np.array(stats_before))
    rows = np.concatenate([rows_of(recording, [0]), np.full((50, 3), 7.0)])
    assert_statistics(grown.statistics([0, 10])["action"], rows)
    robocache.open(path, verify=True)
    other_recording = recording_of(rng)
    overwritten = write(path, other_recording, overwrite=True)
    assert_statistics(overwritten.statistics([0, 1])["action"], rows_of(other_recording, [0, 1]))


def test_rule_49_simultaneous_requests(rng, tmp_path):
    recording = recording_of(rng, episodes=40, wrong_episodes=(), longest=2000)
    dataset = write(tmp_path / "cache", recording)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(np.array(dataset.statistics(range(30))["action"])))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for table in results:
        np.testing.assert_array_equal(table, results[0])
    assert [path.suffix for path in stored_files(dataset)] == [".npy"]


# ---- features that hardly change ----


def write_flickering(rng, tmp_path, spreads, dtype=np.float32, centre=0.3, names=None):
    values = (centre + rng.normal(size=(500, len(spreads))) * spreads).astype(dtype)
    rows = {"state": (np.arange(500) * 10**7, values)}
    return write(tmp_path / "flickering", [rows], streams={"state": {"names": names}}), values


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("constant", ["center", "lerobot", "openpi"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rule_38_a_spread_below_min_spread_is_not_scaled(rng, tmp_path, mode, constant, dtype, device):
    dataset, values = write_flickering(rng, tmp_path, [1e-7, 2e-5, 1.0], dtype, names=["wrist", "elbow", "base"])
    options = {"batch_size": 500, "delta_timestamps": {"state": None}, "shuffle": False, "device": device}
    with pytest.warns(LoaderWarning) as warned:
        loader = loader_by_keywords(dataset, normalize=mode, constant=constant, dtype="float64", **options)
    assert len(warned) == 1
    for part in ("min_spread", "2 in all", "'state'[0] (wrist)", "'state'[1] (elbow)", "below 0.0001", "min_spread=0"):
        assert part in str(warned[0].message)
    assert "base" not in str(warned[0].message)
    result = np.asarray(next(loader)["state"].cpu())[:, :2]
    centre, spread = affine_of(values.astype(np.float64), mode)
    expected = values - centre if mode == "mean_std" or constant == "center" else values - (centre - spread) - 1
    np.testing.assert_allclose(result, expected[:, :2], atol=1e-6)
    array = np.asarray([[0.31, 0.31, 0.31]], dtype)
    normalised = loader.normalize("state", array)
    assert np.abs(normalised[:, :2]).max() < 1.02
    np.testing.assert_allclose(loader.unnormalize("state", normalised), array, atol=1e-6)


def test_rule_38_min_spread_of_0_scales_all_without_a_warning(rng, tmp_path):
    dataset, values = write_flickering(rng, tmp_path, [1e-5], np.float64)
    with no_warning():
        options = {"batch_size": 500, "delta_timestamps": {"state": None}, "normalize": "mean_std", "shuffle": False}
        result = np.asarray(
            next(loader_by_keywords(dataset, min_spread=0, dtype="float64", device="cpu", **options))["state"]
        )
        loader_by_keywords(dataset, min_spread=0.9e-5, **options)
    np.testing.assert_allclose(result, (values - values.mean(0)) / values.std(0), atol=1e-6)
    with pytest.warns(LoaderWarning, match=r"below 0.5"):
        loader_by_keywords(dataset, min_spread=0.5, **options)


def test_rule_38_constants_and_given_statistics_have_the_same_rule(rng, tmp_path):
    dataset, _ = write_flickering(rng, tmp_path, [0.0, 1.0])
    options = {"batch_size": 8, "delta_timestamps": {"state": None}, "normalize": "mean_std"}
    with no_warning():
        loader_by_keywords(dataset, **options)
    norm_stats = {"state": {"mean": [0.0, 0.0], "std": [1.0, 1e-6]}}
    with pytest.warns(LoaderWarning, match=r"'state'\[1\] 1e-06"):
        loader = loader_by_keywords(dataset, norm_stats=norm_stats, **options)
    assert loader.normalize("state", np.float32([[0, 0.5]]))[0, 1] == 0.5


@pytest.mark.parametrize("min_spread", [-1, float("nan"), float("inf")])
def test_rule_38_an_invalid_min_spread_is_refused(rng, tmp_path, min_spread):
    dataset, _ = write_flickering(rng, tmp_path, [1.0])
    options = {"batch_size": 8, "delta_timestamps": {"state": None}}
    with pytest.raises(robocache.ArgumentError, match="min_spread: expected a finite number"):
        loader_by_keywords(dataset, normalize="mean_std", min_spread=min_spread, **options)
    with pytest.raises(robocache.ArgumentError, match="min_spread: expected a Window"):
        loader_by_keywords(dataset, min_spread=0.0, **options)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("infinities", [[np.inf], [-np.inf], [np.inf, -np.inf]])
@pytest.mark.parametrize("mode", MODES)
def test_infinities_are_ignored(tmp_path, rng, dtype, infinities, mode):
    """Statistics of a dataset, a selection and a window equal numpy's of the finite numbers."""
    times = np.arange(200) * 10**7
    episodes = []
    for _ in range(3):
        values = rng.normal(100, 20, (200, 2)).astype(dtype)
        values[50 : 50 + len(infinities), 1] = infinities
        values[70, 0] = np.nan
        episodes.append({"scan": (times, values)})
    dataset = write(tmp_path / "cache", episodes)
    columns = [episode["scan"][1].astype(np.float64) for episode in episodes]
    for chosen in (None, [0, 2]):
        rows = np.concatenate(columns if chosen is None else [columns[e] for e in chosen])
        finite = np.where(np.isfinite(rows), rows, np.nan)
        stats = dataset.stats if chosen is None else dataset.statistics(episodes=chosen)
        assert_statistics(stats["scan"], finite)
        with no_warning():
            loader = loader_of(
                dataset, delta_timestamps={"scan": None}, episodes=chosen, normalize=mode, dtype="float32"
            )
        centre, spread = affine_of(finite, mode)
        np.testing.assert_allclose(np.asarray(next(loader)["scan"]), (rows - centre) / spread, rtol=1e-4, atol=1e-4)
        assert_statistics(dataset.statistics(loader)["scan"], finite)


def test_a_feature_of_infinities_alone_has_no_statistics(tmp_path):
    values = np.array([[1.0, np.inf], [2.0, -np.inf], [3.0, np.nan]])
    dataset = write(tmp_path / "cache", [{"scan": (np.arange(3), values)}])
    assert dataset.stats["scan"].count.tolist() == [3, 0] and np.isnan(dataset.stats["scan"].mean[1])
    assert dataset.streams["scan"].findings["constant_features"] == [1]


def write_former(file, rows):
    """Writes statistics of an older version, which ignored only NaN, into a file with or without a checksum."""
    content = file.read_bytes()
    header = content[: content.index(b"\n") + 1]
    with np.errstate(all="ignore"):
        quantiles = np.nanquantile(rows, list(QUANTILES.values()), axis=0)
        table = [np.nanmean(rows, 0), np.nanstd(rows, 0), np.nanmin(rows, 0), np.nanmax(rows, 0), *quantiles]
    written = header + np.array([*table, (~np.isnan(rows)).sum(0)], np.float64).tobytes()
    # A file beside the cache ends with a checksum; one in the cache has its checksum in the manifest.
    file.write_bytes(written + zlib.crc32(written).to_bytes(4, "little") * (len(content) > len(written)))


@FORKS
@pytest.mark.parametrize("selected", [None, [0, 2]])
@pytest.mark.parametrize("mode", ["mean_std", "min_max", "q10_q90", "q02_q98"])
def test_statistics_that_count_infinities_are_computed_anew(tmp_path, rng, mode, selected):
    """This holds for statistics stored in the cache and beside it."""
    episodes = [{"scan": (np.arange(100) * 10**7, rng.normal(size=(100, 2)))} for _ in range(3)]
    for episode in episodes:
        episode["scan"][1][::7, 1] = np.inf
    path = tmp_path / "cache"
    write(path, episodes)
    rows = [episodes[e]["scan"][1] for e in selected or range(3)]
    write_former(path / "streams/scan/stats.npy", np.concatenate([episode["scan"][1] for episode in episodes]))
    sign(path, "streams/scan/stats.npy")
    if selected:
        run_forked(lambda: tuple(robocache.open(path).statistics(selected)["scan"]))
        (file,) = (path / "statistics").iterdir()
        write_former(file, np.concatenate(rows))
    dataset = robocache.open(path)
    rows = np.concatenate(rows)
    finite = np.where(np.isfinite(rows), rows, np.nan)
    with no_warning():
        loader = loader_of(dataset, delta_timestamps={"scan": None}, episodes=selected, normalize=mode)
    centre, spread = affine_of(finite, mode)
    np.testing.assert_allclose(np.asarray(next(loader)["scan"]), (rows - centre) / spread, rtol=1e-5, atol=1e-5)
    assert_statistics((dataset.statistics(selected) if selected else dataset.stats)["scan"], finite)
    assert robocache.doctor(path).findings[0].code == "infinite-value"
    assert "statistics" not in [finding.code for finding in robocache.doctor(path).findings]


SCAN = {"delta_timestamps": {"scan": None}}


def write_scan(tmp_path, rng, dtype=np.float64, scale=1.0):
    values = rng.normal(100, 20, (200, 3)).astype(dtype) * dtype(scale)
    return write(tmp_path / "cache", [{"scan": (np.arange(200) * 10**7, values)}]), values


@pytest.mark.parametrize(
    ("mode", "stats", "message"),
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
def test_given_statistics_without_a_scale_are_named(tmp_path, rng, mode, stats, message):
    dataset, _ = write_scan(tmp_path, rng, np.float32)
    with pytest.warns(LoaderWarning, match=rf"not scaled, .* 'scan'\[1\] {message}; "):
        loader_of(dataset, normalize=mode, norm_stats={"scan": stats}, **SCAN)


@pytest.mark.parametrize("constant", ["center", "lerobot", "openpi"])
def test_given_statistics_of_a_constant_beyond_float32_are_named(tmp_path, rng, constant):
    dataset, _ = write_scan(tmp_path, rng, np.float32)
    stats = {"mean": [0.0, 1e39, 0.0], "std": [1.0, 0.0, 1.0]}
    with pytest.warns(LoaderWarning, match=r"'scan'\[1\] mean 1e\+39 and std 0"):
        loader_of(dataset, normalize="mean_std", norm_stats={"scan": stats}, constant=constant, **SCAN)


def test_features_without_numbers_and_constants_are_not_named(tmp_path, rng):
    values = rng.normal(size=(50, 4))
    values[:, 1], values[:, 2], values[:, 3] = np.nan, np.inf, 7
    dataset = write(tmp_path / "cache", [{"scan": (np.arange(50) * 10**7, values)}])
    for constant in ("center", "lerobot", "openpi"):
        for stats in (None, dataset.stats):
            with no_warning():
                loader_of(dataset, normalize="mean_std", norm_stats=stats, constant=constant, **SCAN)


def test_numbers_whose_sums_overflow_are_named(tmp_path, rng):
    dataset, values = write_scan(tmp_path, rng, np.float64, 1e200)
    with np.errstate(over="ignore"):
        assert np.isinf(np.std(values, 0)).all()
    options = {"dtype": "float64", **SCAN}
    with pytest.warns(LoaderWarning, match=r"3 in all: 'scan'\[0\] mean .*e\+202 and std inf"):
        loader_of(dataset, normalize="mean_std", **options)
    got = np.asarray(next(loader_of(dataset, normalize="q10_q90", **options))["scan"])
    centre, spread = affine_of(values, "q10_q90")
    np.testing.assert_allclose(got, (values - centre) / spread, rtol=1e-9, atol=1e-9)


def test_numbers_near_the_largest_float32_are_normalised(tmp_path, rng):
    dataset, values = write_scan(tmp_path, rng, np.float32, 1e36)
    with no_warning():
        loader = loader_of(dataset, normalize="mean_std", **SCAN)
    exact = values.astype(np.float64)
    expected = (exact - exact.mean(0)) / exact.std(0)
    np.testing.assert_allclose(np.asarray(next(loader)["scan"]), expected, rtol=1e-4, atol=1e-4)


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
        expected = rf"beyond {dtype}, 1 in all: 'scan'\[0\] up to " if name == "beyond" else None
        with warnings_with("infinite", expected):
            loader_of(dataset, default=robocache.Window(dtype=dtype), **SCAN)


def test_normalised_numbers_beyond_the_dtype_are_named(tmp_path, rng):
    values = rng.normal(size=(1000, 2))
    values[500, 1] = 1e6
    dataset = write(tmp_path / "cache", [{"scan": (np.arange(1000) * 10**7, values)}])
    options = {"dtype": "float16", "normalize": "q10_q90", **SCAN}
    with pytest.warns(LoaderWarning, match=r"beyond float16, 1 in all: 'scan'\[1\] up to"):
        loader = loader_of(dataset, **options)
    assert np.isinf(np.asarray(next(loader)["scan"])[500, 1])
    with no_warning():
        loader_of(dataset, normalization=robocache.Normalization(clip=True), **options)
        loader_of(dataset, **{**options, "normalize": "min_max"})


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_given_statistics_that_are_infinite_are_refused(dataset, infinity):
    stats = {"mean": [0.0, 0, 0], "std": [1.0, 1, 1], "min": [0.0, -2, 0], "max": [5.0, infinity, 5]}
    with pytest.raises(robocache.ArgumentError, match=r"norm_stats\['action'\].max: .*inf for feature 1; compute"):
        loader_of(dataset, normalize="min_max", norm_stats={"action": stats})
    with pytest.raises(robocache.ArgumentError, match=r"sources\[0\].*norm_stats\['action'\].max: .*inf for feature 1"):
        loader_of([Source(dataset, norm_stats={"action": stats}), Source(dataset)], normalize="min_max")
    loader_of(dataset, normalize="mean_std", norm_stats={"action": stats})
