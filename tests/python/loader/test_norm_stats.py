"""Statistics for normalisation: merging, reading, writing."""

import itertools
import json
import math
import os
from fractions import Fraction

import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords
from recordings import no_warning, warnings_with, write
from reference import normalisation as oracle
from reference.compare import assert_same_bits
from robocache.dataset import Stats

import robocache

ROUNDING = 2.0**-53
FIELDS = list(Stats._fields)


def parts_of(rng, count, features=5):
    """Returns rows of several datasets with different means, spreads and lengths; one feature is constant, one rarely nonzero."""
    parts = []
    for n in rng.integers(1, 400, count):
        rows = rng.standard_normal((n, features)) * np.exp2(rng.integers(-8, 8, features)) + rng.normal(0, 20, features)
        rows[:, 0] = 2.5
        rows[:, 1] = rng.random(n) < 0.02
        parts.append(rows)
    return parts


def feature_stats(stats, d):
    return {field: float(np.asarray(stats[field]).reshape(-1)[d]) for field in FIELDS}


# ---- merging ----


def test_counts_ends_and_moments_equal_those_of_all_rows(rng):
    for count in (2, 3, 17):
        parts = parts_of(rng, count)
        part_stats = [oracle.stats_of(rows) for rows in parts]
        merged = robocache.merge_stats([{"x": stats} for stats in part_stats])["x"]
        pooled = oracle.stats_of(np.concatenate(parts))
        for field in ("count", "min", "max"):
            np.testing.assert_array_equal(getattr(merged, field), pooled[field])
        for d in range(5):
            means = [stats["mean"][d] for stats in part_stats]
            mean, variance = oracle.merged_moments([(s["count"][d], s["mean"][d], s["std"][d]) for s in part_stats])
            largest = max(map(abs, means))
            assert abs(Fraction(merged.mean[d]) - mean) <= 4 * ROUNDING * largest
            std = math.sqrt(variance)  # the variance is exact, so this has a rounding or two
            assert abs(merged.std[d] - std) <= 8 * ROUNDING * std + 8 * ROUNDING * largest
            assert abs(merged.mean[d] - pooled["mean"][d]) <= 1e-12 * largest
            assert abs(merged.std[d] - pooled["std"][d]) <= 1e-9 * (pooled["std"][d] + largest)


def test_a_merged_quantile_is_in_the_bracket_of_the_true_one(rng):
    narrow_brackets = 0
    for count in (2, 3, 9):
        parts = [rows for rows in parts_of(rng, count) if len(rows) > 1]
        part_stats = [oracle.stats_of(rows) for rows in parts]
        merged = robocache.merge_stats([{"x": stats} for stats in part_stats])["x"]
        pooled = np.concatenate(parts)
        for d, (field, percent) in itertools.product(range(5), list(oracle.PERCENTS.items())[1:-1]):
            low, high = oracle.quantile_bracket([feature_stats(stats, d) for stats in part_stats], percent)
            quantile = getattr(merged, field)[d]
            part_quantiles = [stats[field][d] for stats in part_stats]
            assert low <= quantile <= high
            assert low <= np.quantile(pooled[:, d], percent / 100) <= high
            assert min(part_quantiles) <= quantile <= max(part_quantiles)
            narrow_brackets += high - low < np.ptp(pooled[:, d]) / 2
    assert narrow_brackets > 20  # many brackets are narrow


def test_quantiles_of_evenly_spaced_rows_are_exact():
    a, b = np.linspace(0, 1, 10001), np.linspace(0.5, 2.5, 20001)
    merged = robocache.merge_stats([{"x": oracle.stats_of(a)}, {"x": oracle.stats_of(b)}])["x"]
    pooled = oracle.stats_of(np.concatenate([a, b]))
    for field in ("q01", "q10", "q50", "q90", "q99"):
        assert abs(getattr(merged, field) - pooled[field]) < 1e-3


def test_the_order_of_the_datasets_does_not_matter(rng):
    part_stats = [{"x": oracle.stats_of(rows)} for rows in parts_of(rng, 5)]
    merged = [robocache.merge_stats(list(order))["x"] for order in itertools.permutations(part_stats)]
    for field in FIELDS:
        for other in merged[1:]:
            assert_same_bits(getattr(other, field), getattr(merged[0], field), field)


def test_equal_parts_merge_to_themselves(rng):
    stats = {"x": oracle.stats_of(parts_of(rng, 1)[0])}
    once, thrice = robocache.merge_stats([stats])["x"], robocache.merge_stats([stats] * 3)["x"]
    for field in FIELDS[:-1]:
        np.testing.assert_array_equal(getattr(once, field), stats["x"][field])
        np.testing.assert_allclose(getattr(thrice, field), stats["x"][field], rtol=1e-14)
    np.testing.assert_array_equal(thrice.count, 3 * stats["x"]["count"])


def test_parts_of_a_dataset_merge_to_its_statistics(rng, tmp_path):
    rows = rng.standard_normal((300, 4)).astype(np.float32)
    rows[:, 2] = np.nan  # a feature without numbers
    rows[:70, 3] = np.nan

    def statistics_of(name, part):
        return write(tmp_path / name, [{"x": (np.arange(len(part)) * 10**7, part)}]).stats

    merged = robocache.merge_stats(
        [statistics_of("a", rows[:70]), statistics_of("b", rows[70:120]), statistics_of("c", rows[120:])]
    )["x"]
    expected = statistics_of("whole", rows)["x"]
    for field in ("count", "min", "max"):
        np.testing.assert_array_equal(getattr(merged, field), getattr(expected, field))
    np.testing.assert_allclose(merged.mean, expected.mean, rtol=0, atol=1e-14)
    np.testing.assert_allclose(merged.std, expected.std, rtol=1e-14)
    assert merged.count[2] == 0 and np.isnan(merged.q50[2])
    assert np.isfinite(merged.q50[[0, 1, 3]]).all()


def test_merging_keeps_all_keys_and_common_fields(rng):
    a, b = (oracle.stats_of(rows) for rows in parts_of(rng, 2))
    fewer_fields = {field: b[field] for field in ("mean", "std", "q01", "q99", "count")}
    merged = robocache.merge_stats([{"x": a, "only": a}, {"x": fewer_fields}])
    np.testing.assert_array_equal(merged["only"].q50, a["q50"])
    assert [field for field in FIELDS if getattr(merged["x"], field) is not None] == list(fewer_fields)


@pytest.mark.parametrize("empty", [[], (), iter([])])
def test_statistics_of_no_dataset_are_refused(empty):
    """A pattern that matches no file gives such an empty list."""
    with pytest.raises(robocache.ArgumentError, match="stats: expected those of one dataset at least, got none"):
        robocache.merge_stats(empty)


def test_values_that_are_no_list_of_statistics_are_refused(dataset, tmp_path):
    with pytest.raises(robocache.ArgumentTypeError, match="stats: expected a list"):
        robocache.merge_stats(np.array(1.0))
    options = {"batch_size": 2, "delta_timestamps": {"action": [0.0]}, "normalize": "mean_std"}
    with pytest.raises(robocache.ArgumentError, match=r"norm_stats: expected statistics of .*, got of 5"):
        loader_by_keywords(dataset, norm_stats={5: {"mean": 0}}, **options)
    with pytest.raises(robocache.ArgumentError, match="path: expected UTF-8 that is not empty"):
        robocache.save_norm_stats("", dataset.stats)


def test_a_scalar_and_a_shape_of_1_are_equal():
    scalar, with_shape_1 = ({"mean": np.full(shape, 1.0), "count": 4} for shape in ((), (1,)))
    assert robocache.merge_stats([{"x": scalar}, {"x": with_shape_1}])["x"].mean == 1
    assert robocache.merge_stats([{"x": with_shape_1}, {"x": scalar}])["x"].count.shape == (1,)


def test_two_clusters_with_a_gap():
    low, high = ({"x": oracle.stats_of(np.full(10, value))} for value in (1.0, 2.0))
    merged = robocache.merge_stats([low, high, high])["x"]
    assert [float(getattr(merged, q)) for q in ("q01", "q10", "q50", "q90", "q99")] == [1, 1, 2, 2, 2]
    assert merged.min == 1 and merged.max == 2


def test_merging_with_infinities():
    a = oracle.stats_of(np.array([1.0, 2.0, 3.0]))
    b = {**a, "mean": np.inf, "std": np.nan, "max": np.inf, "q99": np.inf}
    merged = robocache.merge_stats([{"x": a}, {"x": b}, {"x": {**b, "mean": -np.inf, "min": -np.inf}}])["x"]
    assert merged.max == np.inf and merged.min == -np.inf and np.isnan(merged.mean) and np.isnan(merged.std)
    assert 1 <= merged.q50 <= 3 and np.isnan(merged.q99)


MEANS = {"x": {"mean": [1.0], "count": 2}}


@pytest.mark.parametrize(
    ("stats", "message"),
    [
        ({"x": {}}, "stats: expected a list"),
        ([3], r"stats\[0\]: expected \{key: statistics\}, such as dataset.stats, got int"),
        ([{"x": 3}], r"stats\[0\]\['x'\]: expected statistics, a dict of arrays, got int"),
        ([{"x": {"median": 3}}], r"stats\[0\]\['x'\]: expected some of mean, .*, got median"),
        ([{"x": {"mean": "high"}}], r"stats\[0\]\['x'\].mean: expected an array of numbers"),
        ([{"x": {"mean": [[1], [2, 3]]}}], r"stats\[0\]\['x'\].mean: expected an array of numbers"),
        ([{"x": {"mean": [1, 2], "std": [1]}}], r"stats\[0\]\['x'\].std: expected the shape \(2,\) of mean"),
        ([{"x": {"mean": [1, 2], "count": [1, 2, 3]}}], r"stats\[0\]\['x'\].count: expected one number or"),
        ([{"x": {"mean": 1, "count": -1}}], r"stats\[0\]\['x'\].count: expected numbers of rows, got -1"),
        ([{"x": {"std": [1, -2], "count": 1}}], r"stats\[0\]\['x'\].std: expected 0 or more, got -2"),
        ([MEANS, {"x": {"mean": [1.0], "std": [2.0]}}], r"stats\[1\]\['x'\]: expected count, .*got mean, std"),
        (
            [MEANS, {"x": {"mean": [1.0, 2.0], "count": 2}}],
            r"stats\[1\]\['x'\]: expected the shape \(1,\) of stats\[0\]",
        ),
    ],
)
def test_statistics_that_cannot_be_merged_are_refused_by_name(stats, message):
    with pytest.raises(robocache.Error, match=message):
        robocache.merge_stats(stats)


# ---- files ----


def test_lerobots_file_round_trips(dataset, tmp_path):
    path = tmp_path / "stats.json"
    robocache.save_norm_stats(path, dataset.stats)
    assert os.listdir(tmp_path) == ["stats.json"]
    loaded = robocache.load_norm_stats(path)
    assert list(loaded) == list(dataset.stats)
    for key, stats in dataset.stats.items():
        for field in FIELDS:
            assert_same_bits(getattr(loaded[key], field), np.atleast_1d(getattr(stats, field)), f"{key} {field}")
    raw = json.loads(path.read_text())
    assert raw["action"]["count"] == [int(dataset.stats["action"].count[0])]
    assert np.shape(raw["observation.feature"]["mean"]) == (2, 3)


def test_openpis_file_round_trips(dataset, tmp_path):
    path = tmp_path / "norm_stats.json"
    keys = {"action": "actions", "observation.state": "state"}
    robocache.save_norm_stats(path, dataset.stats, "openpi", keys=keys)
    raw = json.loads(path.read_text())
    assert list(raw) == ["norm_stats"] and list(raw["norm_stats"]) == ["actions", "state"]
    assert list(raw["norm_stats"]["state"]) == ["mean", "std", "q01", "q99"]
    with pytest.warns(robocache.NormStatsWarning, match=r"norm_stats.json: .*'actions'.*DeltaActions"):
        loaded = robocache.load_norm_stats(tmp_path, keys=keys)
    for key in keys:
        for field in ("mean", "std", "q01", "q99"):
            assert_same_bits(getattr(loaded[key], field), getattr(dataset.stats[key], field))
        assert loaded[key].min is None and loaded[key].count is None
    with no_warning(Warning):
        assert list(robocache.load_norm_stats(path, keys={"observation.state": "state"})) == ["observation.state"]


def test_openpis_file_without_quantiles(tmp_path):
    path = tmp_path / "norm_stats.json"
    robocache.save_norm_stats(path, {"state": {"mean": [1.0], "std": [2.0]}}, "openpi")
    assert json.loads(path.read_text())["norm_stats"]["state"]["q01"] is None
    assert robocache.load_norm_stats(path)["state"].q01 is None


def test_episodes_stats_are_merged_like_lerobots(rng, tmp_path):
    episodes = parts_of(rng, 6)
    (tmp_path / "meta").mkdir()
    lines = []
    for number, rows in enumerate(episodes):
        computed = oracle.stats_of(rows)
        stats = {field: computed[field].tolist() for field in ("min", "max", "mean", "std")} | {"count": [len(rows)]}
        image = {"mean": [[[0.5]], [[0.25]], [[number]]], "std": [[[0.1]], [[0.0]], [[1]]], "count": [100 + number]}
        stats["names"] = "a line separator \u2028 within a line"
        episode_stats = {"action": stats, "observation.images.top": image}
        lines.append(json.dumps({"episode_index": number, "stats": episode_stats}, ensure_ascii=False))
    # An older line of the last episode, which the later line replaces.
    older = json.loads(lines[-1])
    older["stats"]["action"]["mean"] = (np.array(older["stats"]["action"]["mean"]) + 1000).tolist()
    replaced = json.dumps(older, ensure_ascii=False)
    (tmp_path / "meta" / "episodes_stats.jsonl").write_text("\n".join([replaced, *lines]) + "\n")
    loaded = robocache.load_norm_stats(tmp_path)
    pooled = oracle.stats_of(np.concatenate(episodes))
    for field in ("min", "max", "count"):
        np.testing.assert_array_equal(getattr(loaded["action"], field), pooled[field])
    np.testing.assert_allclose(loaded["action"].mean, pooled["mean"], rtol=1e-12)
    np.testing.assert_allclose(loaded["action"].std, pooled["std"], rtol=1e-9, atol=1e-13)
    assert loaded["observation.images.top"].mean.shape == (3, 1, 1)
    weights = 100 + np.arange(6)
    expected = (weights * np.arange(6)).sum() / weights.sum()
    assert loaded["observation.images.top"].mean[2, 0, 0] == pytest.approx(expected)
    # A file of one line is also valid JSON, but its object does not map keys to statistics.
    (tmp_path / "meta" / "episodes_stats.jsonl").write_text(lines[0])
    assert list(robocache.load_norm_stats(tmp_path)) == ["action", "observation.images.top"]


def test_a_folder_with_statistics_of_other_rows_in_two_files_is_refused(rng, tmp_path):
    (rows,) = parts_of(rng, 1)
    fields = {field: x.tolist() for field, x in oracle.stats_of(rows).items() if field in ("min", "max", "mean", "std")}
    (tmp_path / "meta").mkdir()
    episodes_file, dataset_file = tmp_path / "meta/episodes_stats.jsonl", tmp_path / "meta/stats.json"
    episodes_file.write_text(json.dumps({"episode_index": 0, "stats": {"action": fields | {"count": [len(rows)]}}}))
    dataset_file.write_text(json.dumps({"action": fields}))
    np.testing.assert_array_equal(robocache.load_norm_stats(tmp_path)["action"].mean, fields["mean"])
    shifted = {field: (np.array(x) + (1000 if field != "std" else 0)).tolist() for field, x in fields.items()}
    dataset_file.write_text(json.dumps({"action": shifted}))
    with pytest.raises(robocache.FileError, match=r"different ones in stats\.json and episodes_stats\.jsonl \(action:"):
        robocache.load_norm_stats(tmp_path, keys={"ours": "action"})
    np.testing.assert_array_equal(robocache.load_norm_stats(dataset_file)["action"].mean, shifted["mean"])
    np.testing.assert_array_equal(robocache.load_norm_stats(episodes_file)["action"].mean, fields["mean"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "stats.json: .*JSON"),
        ("[1]", r"stats.json: expected an object by key, got \[1\]"),
        ('{"action": 3}', r"stats.json: 'action': expected statistics, a dict of arrays, got int"),
        ('{"action": {"mean": [1, null]}}', r"stats.json: 'action'.mean: expected an array of numbers"),
        ('{"norm_stats": [1]}', r"stats.json: norm_stats: expected an object by key, got \[1\]"),
        ('{"stats": {}}\n{"stats": 3}', r"stats.json: line 2: stats: expected an object by key, got 3"),
        ('{"stats": {}}\n{"stats": ', r"stats.json: line 2: .*"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:57\n", "stats.json: a Git LFS pointer"),
    ],
)
def test_a_file_without_statistics_is_refused_by_name(tmp_path, text, message):
    (tmp_path / "stats.json").write_text(text)
    with pytest.raises(robocache.FileError, match=message):
        robocache.load_norm_stats(tmp_path / "stats.json")


def test_missing_files_and_keys(dataset, tmp_path):
    with pytest.raises(robocache.FileError, match=f"{tmp_path}/none.json: No such file"):
        robocache.load_norm_stats(tmp_path / "none.json")
    with pytest.raises(robocache.FileError, match=f"{tmp_path}: expected a file of statistics, or a folder with one"):
        robocache.load_norm_stats(tmp_path)
    path = tmp_path / "stats.json"
    robocache.save_norm_stats(path, dataset.stats, keys={"action": "actions"})
    with pytest.raises(robocache.ArgumentError, match=r"keys\['action'\]: expected one of actions of .*, got 'action'"):
        robocache.load_norm_stats(path, keys={"action": "action"})
    with pytest.raises(robocache.ArgumentTypeError, match=r"keys: expected \{ours: theirs\}"):
        robocache.load_norm_stats(path, keys=["action"])
    before = path.read_bytes()
    for argument, stats in [
        ({"format": "numpy"}, dataset.stats),
        ({"format": ["openpi"]}, dataset.stats),
        ({"format": "openpi"}, dataset.stats),  # observation.feature is [2, 3]
        ({"format": "openpi"}, {"x": {"min": [1.0]}}),
        ({"keys": {"nothing": "x"}}, dataset.stats),
        ({"keys": {"action": "x", "gripper": "x"}}, dataset.stats),
        ({}, [1]),
    ]:
        with pytest.raises(robocache.Error):
            robocache.save_norm_stats(path, stats, **argument)
    assert path.read_bytes() == before
    with pytest.raises(robocache.FileError, match=r"nowhere/stats.json: No such file"):
        robocache.save_norm_stats(tmp_path / "nowhere" / "stats.json", dataset.stats)
    assert os.listdir(tmp_path) == ["stats.json"]


# ---- real datasets ----


@pytest.fixture
def real_folder(real_data):
    return real_data("lerobot_v2")


def test_statistics_of_a_real_v2_0_dataset_equal_ours_within_float32(real_folder, tmp_path):
    source = real_folder / "gr00t_gr1_pnp_sim"
    robocache.ingest(source, tmp_path / "cache", video=False)
    ours = robocache.open(tmp_path / "cache").stats
    keys = {key: key for key in ("observation.state", "action")}
    for key, theirs in robocache.load_norm_stats(source, keys).items():
        assert theirs.q50 is None and theirs.count is None
        largest = np.maximum(np.abs(ours[key].min), np.abs(ours[key].max))
        for field in ("min", "max", "q01", "q99"):
            assert (np.abs(getattr(theirs, field) - getattr(ours[key], field)) <= 2.0**-22 * largest).all()
        for field in ("mean", "std"):  # a sum of 2096 rows
            assert (np.abs(getattr(theirs, field) - getattr(ours[key], field)) <= 2096 * 2.0**-24 * largest).all()


def test_episodes_statistics_of_a_real_v2_1_dataset_merge_to_those_of_its_rows(real_folder, tmp_path):
    source = real_folder / "unitree_g1_real"
    robocache.ingest(source, tmp_path / "cache", on_error="skip", video=False)
    ds = robocache.open(tmp_path / "cache")
    recorded = set(ds.episodes["source_episode_index"].to_pylist())  # 22 of 100
    lines = (source / "meta" / "episodes_stats.jsonl").read_text().splitlines()
    (tmp_path / "some.jsonl").write_text("\n".join(x for x in lines if json.loads(x)["episode_index"] in recorded))
    merged = robocache.load_norm_stats(tmp_path / "some.jsonl")
    for key in ("observation.state", "action"):
        ours = ds.stats[key]
        for field in ("min", "max", "count"):
            np.testing.assert_array_equal(getattr(merged[key], field), getattr(ours, field))
        largest = np.maximum(np.abs(ours.min), np.abs(ours.max))
        for field in ("mean", "std"):  # LeRobot sums an episode in float32
            assert (np.abs(getattr(merged[key], field) - getattr(ours, field)) <= 500 * 2.0**-24 * largest).all()
    assert (robocache.load_norm_stats(source)["action"].count == 35965).all()
    with pytest.raises(robocache.FileError, match="Git LFS pointer"):
        robocache.load_norm_stats(real_folder / "lfs_pointers_only")


@pytest.mark.parametrize("name", ["gr00t_gr1_pnp_sim", "unitree_g1_real"])
def test_merged_quantiles_of_real_episodes_are_closer_than_their_average(real_folder, tmp_path, name):
    robocache.ingest(real_folder / name, tmp_path / "cache", on_error="skip", video=False)
    ds = robocache.open(tmp_path / "cache")
    for key in ("observation.state", "action"):
        parts = [oracle.stats_of(ds.episode(episode)[key][1]) for episode in range(len(ds))]
        merged, expected = robocache.merge_stats([{key: part} for part in parts])[key], ds.stats[key]
        is_moving = expected.std > 0
        for field in ("q01", "q99"):
            average = np.average([part[field] for part in parts], axis=0, weights=[part["count"][0] for part in parts])
            merged_error, average_error = (
                np.median(np.abs(quantiles - getattr(expected, field))[is_moving] / expected.std[is_moving])
                for quantiles in (getattr(merged, field), average)
            )
            assert merged_error < 0.1 and average_error > 0.25, (key, field)


# ---- statistics that contradict the rows ----


def write_episodes(path, parts):
    return write(path, [{"x": (np.arange(len(part)) * 10**7, part)} for part in parts])


def assert_warning(expected, dataset, norm_stats, episodes=None, **window):
    """Asserts that the loader's warning of these statistics matches `expected`, or that None is given and it does not warn."""
    windows = {"x": robocache.Window(**({"normalize": "min_max"} | window))}
    normalization = robocache.Normalization(norm_stats={"x": norm_stats})
    source = dataset if episodes is None else robocache.Source(dataset, episodes=episodes)
    with warnings_with("norm_stats['x']", expected):
        robocache.Loader(source, batch_size=2, delta_timestamps=windows, normalization=normalization, device="cpu")


def test_a_loader_warns_of_statistics_that_contradict_the_rows(rng, tmp_path):
    parts = [rng.uniform(-1, 1, (50, 2)), rng.uniform(-1, 1, (50, 2)) + np.array([0, 100])]
    dataset = write_episodes(tmp_path / "cache", parts)

    def statistics_of(rows, *fields):
        stats = oracle.stats_of(rows)
        return {name: stats[name] for name in fields or ("mean", "std", "min", "max", "q01", "q99")}

    rows = np.concatenate(parts)
    assert_warning("rows: feature 1: the rows go from.*leave 'x' out of norm_stats", dataset, statistics_of(parts[0]))
    for fitting in (
        statistics_of(rows),
        statistics_of(rows * 1.2),
        statistics_of(rows, "mean", "std"),
        statistics_of(rows, "q01", "q99"),
    ):
        mode = "mean_std" if "mean" in fitting else "q01_q99"
        assert_warning(None, dataset, fitting, normalize=mode)
    assert_warning(None, dataset, statistics_of(parts[0]), episodes=[0])  # the outlier's episode is not drawn
    assert_warning(None, dataset, statistics_of(rng.uniform(-1, 1, (20, 2))), episodes=[0])  # like a validation set's
    assert_warning("", dataset, statistics_of(parts[0]), episodes=[1])
    assert_warning("mean and std", dataset, statistics_of(parts[0], "mean", "std"), normalize="mean_std")
    assert_warning("q01 and q99", dataset, statistics_of(parts[0] - 1000, "q01", "q99"), normalize="q01_q99")
    padded = {
        name: np.concatenate([x, np.zeros(30)]) for name, x in statistics_of(rows, "mean", "std", "q01", "q99").items()
    }
    assert_warning(None, dataset, padded, normalize="q01_q99")
    convert = [robocache.actions.StepDelta()]
    assert_warning(None, dataset, statistics_of(parts[0] - 1000), offsets=[0.0, 0.01], convert=convert, base="x")


@pytest.mark.parametrize("episodes", [1, 3, 40])
def test_the_mean_of_few_episodes_may_deviate_and_of_many_may_not(episodes, tmp_path):
    """Each episode stays near its own position. Training's positions had a std of 1; these are 1.5 from their mean."""
    positions = 1.5 + 0.5 * np.linspace(-1, 1, episodes) * (episodes > 1)
    moves = 0.1 * np.sin(np.arange(50))[:, None] * [1, 0.5]
    dataset = write_episodes(tmp_path / "cache", [position + moves for position in positions])
    norm_stats = {"mean": np.zeros(2), "std": np.ones(2)}
    assert_warning("the rows' mean is 1.5" if episodes == 40 else None, dataset, norm_stats, normalize="mean_std")
    assert_warning("", dataset, norm_stats | {"mean": np.full(2, 60.0)}, normalize="mean_std")


@pytest.mark.parametrize(
    ("factor", "message"), [(57.3, "and std 5"), (1 / 57.3, "times that of the statistics, or less"), (1.5, None)]
)
def test_statistics_in_another_unit_are_recognised_by_the_std(factor, message, rng, tmp_path):
    rows = rng.normal(0, 1, (4, 50, 3))
    norm_stats = {"mean": rows.mean((0, 1)), "std": rows.std((0, 1))}
    assert_warning(message, write_episodes(tmp_path / "cache", rows * factor), norm_stats, normalize="mean_std")


@pytest.mark.parametrize(
    ("rename", "mean", "expected"),
    [
        ({"q": "command"}, 0.0, "the rows' mean is 5"),
        ({"q": "command", "command": "other"}, 0.0, "the rows' mean is 5"),
        ({"q": "command", "command": "other"}, 5.0, None),
    ],
)
def test_statistics_of_a_renamed_stream_are_compared_with_its_rows(tmp_path, rename, mean, expected):
    streams = {"q": (np.arange(4), np.full(4, 5.0))}
    if "command" in rename:
        streams["command"] = np.arange(4), np.zeros(4)
    norm_stats = {"command": {"mean": [mean], "std": [1.0]}}
    source = robocache.Source(write(tmp_path / "cache", [streams]), rename=rename, norm_stats=norm_stats)
    windows = {"command": robocache.Window(normalize="mean_std")}
    with warnings_with("do not fit the rows", expected):
        robocache.Loader([source], batch_size=2, delta_timestamps=windows, device="cpu")


@pytest.mark.parametrize("largest", [1e308, 1e-320])
def test_weights_may_be_of_any_size(largest):
    parts = [{"x": {"mean": [m], "std": [1.0], "q01": [m - 2], "q99": [m + 2], "count": 5}} for m in (0.0, 4.0)]
    merged = robocache.merge_stats(parts, weights=[largest, largest])["x"]
    expected = robocache.merge_stats(parts, weights=[1, 1])["x"]
    for field in ("mean", "std", "q01", "q99"):
        np.testing.assert_array_equal(getattr(merged, field), getattr(expected, field))


def test_refused_counts_and_stds_are_those_that_came():
    with pytest.raises(robocache.ArgumentError, match=r"count: expected numbers of rows, got inf"):
        robocache.merge_stats([{"x": {"mean": [0.0, 1.0], "count": [5, math.inf]}}])
    with pytest.raises(robocache.ArgumentError, match=r"std: expected 0 or more, got -1"):
        robocache.merge_stats([{"x": {"std": [math.nan, -1.0]}}])
