"""Statistics to normalise by: merged, read, written; and the affines that come of them, on arrays as in a batch."""

import itertools
import json
import math
import os
import pickle
import warnings
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from recordings import write
from reference import normalisation as oracle
from reference.arithmetic import fma, round_to
from reference.compare import assert_same_bits, to_numpy
from robocache.affine import Affine
from robocache.dataset import Stats

import robocache

ROUNDING = 2.0**-53
FIELDS = list(Stats._fields)


def parts_of(rng, count, features=5):
    """Rows of several datasets: other places, widths and numbers of rows; a constant and a rare feature."""
    parts = []
    for n in rng.integers(1, 400, count):
        rows = rng.standard_normal((n, features)) * np.exp2(rng.integers(-8, 8, features)) + rng.normal(0, 20, features)
        rows[:, 0] = 2.5
        rows[:, 1] = rng.random(n) < 0.02
        parts.append(rows)
    return parts


def feature(stats, d):
    return {field: float(np.asarray(stats[field]).reshape(-1)[d]) for field in FIELDS}


# ---- merging ----


def test_counts_ends_and_moments_are_those_of_all_rows(rng):
    for count in (2, 3, 17):
        parts = parts_of(rng, count)
        given = [oracle.stats_of(rows) for rows in parts]
        merged = robocache.merge_stats([{"x": stats} for stats in given])["x"]
        pooled = oracle.stats_of(np.concatenate(parts))
        for field in ("count", "min", "max"):
            np.testing.assert_array_equal(getattr(merged, field), pooled[field])
        for d in range(5):
            means = [stats["mean"][d] for stats in given]
            mean, variance = oracle.merged_moments([(s["count"][d], s["mean"][d], s["std"][d]) for s in given])
            largest = max(map(abs, means))
            assert abs(Fraction(merged.mean[d]) - mean) <= 4 * ROUNDING * largest
            std = math.sqrt(variance)  # of a fraction: within a rounding or two
            assert abs(merged.std[d] - std) <= 8 * ROUNDING * std + 8 * ROUNDING * largest
            assert abs(merged.mean[d] - pooled["mean"][d]) <= 1e-12 * largest
            assert abs(merged.std[d] - pooled["std"][d]) <= 1e-9 * (pooled["std"][d] + largest)


def test_a_quantile_lies_in_the_bracket_of_the_true_one(rng):
    narrower = 0
    for count in (2, 3, 9):
        parts = [rows for rows in parts_of(rng, count) if len(rows) > 1]
        given = [oracle.stats_of(rows) for rows in parts]
        merged = robocache.merge_stats([{"x": stats} for stats in given])["x"]
        pooled = np.concatenate(parts)
        for d, (field, percent) in itertools.product(range(5), list(oracle.PERCENTS.items())[1:-1]):
            low, high = oracle.quantile_bracket([feature(stats, d) for stats in given], percent)
            got = getattr(merged, field)[d]
            own = [stats[field][d] for stats in given]
            assert low <= got <= high
            assert low <= np.quantile(pooled[:, d], percent / 100) <= high
            assert min(own) <= got <= max(own)
            narrower += high - low < np.ptp(pooled[:, d]) / 2
    assert narrower > 20  # so the bracket says something


def test_quantiles_of_rows_that_lie_evenly_are_exact():
    a, b = np.linspace(0, 1, 10001), np.linspace(0.5, 2.5, 20001)
    merged = robocache.merge_stats([{"x": oracle.stats_of(a)}, {"x": oracle.stats_of(b)}])["x"]
    pooled = oracle.stats_of(np.concatenate([a, b]))
    for field in ("q01", "q10", "q50", "q90", "q99"):
        assert abs(getattr(merged, field) - pooled[field]) < 1e-3


def test_the_order_of_the_datasets_does_not_matter(rng):
    given = [{"x": oracle.stats_of(rows)} for rows in parts_of(rng, 5)]
    merged = [robocache.merge_stats(list(order))["x"] for order in itertools.permutations(given)]
    for field in FIELDS:
        for other in merged[1:]:
            assert_same_bits(getattr(other, field), getattr(merged[0], field), field)


def test_parts_that_are_all_alike_stay_as_they_are(rng):
    stats = {"x": oracle.stats_of(parts_of(rng, 1)[0])}
    once, thrice = robocache.merge_stats([stats])["x"], robocache.merge_stats([stats] * 3)["x"]
    for field in FIELDS[:-1]:
        np.testing.assert_array_equal(getattr(once, field), stats["x"][field])
        np.testing.assert_allclose(getattr(thrice, field), stats["x"][field], rtol=1e-14)
    np.testing.assert_array_equal(thrice.count, 3 * stats["x"]["count"])


def test_datasets_that_are_split_merge_to_the_whole(rng, tmp_path):
    rows = rng.standard_normal((300, 4)).astype(np.float32)
    rows[:, 2] = np.nan  # nothing there
    rows[:70, 3] = np.nan

    def of(name, part):
        return write(tmp_path / name, [{"x": (np.arange(len(part)) * 10**7, part)}]).stats

    merged = robocache.merge_stats([of("a", rows[:70]), of("b", rows[70:120]), of("c", rows[120:])])["x"]
    whole = of("whole", rows)["x"]
    for field in ("count", "min", "max"):
        np.testing.assert_array_equal(getattr(merged, field), getattr(whole, field))
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=0, atol=1e-14)
    np.testing.assert_allclose(merged.std, whole.std, rtol=1e-14)
    assert merged.count[2] == 0 and np.isnan(merged.q50[2])
    assert np.isfinite(merged.q50[[0, 1, 3]]).all()


def test_a_key_of_one_dataset_and_fields_that_all_have(rng):
    a, b = (oracle.stats_of(rows) for rows in parts_of(rng, 2))
    few = {field: b[field] for field in ("mean", "std", "q01", "q99", "count")}
    merged = robocache.merge_stats([{"x": a, "only": a}, {"x": few}])
    np.testing.assert_array_equal(merged["only"].q50, a["q50"])
    assert [field for field in FIELDS if getattr(merged["x"], field) is not None] == [
        "mean",
        "std",
        "q01",
        "q99",
        "count",
    ]
    assert robocache.merge_stats([]) == {}


def test_one_number_is_one_number_by_either_shape():
    ours, lerobots = ({"mean": np.full(shape, 1.0), "count": 4} for shape in ((), (1,)))
    assert robocache.merge_stats([{"x": ours}, {"x": lerobots}])["x"].mean == 1
    assert robocache.merge_stats([{"x": lerobots}, {"x": ours}])["x"].count.shape == (1,)


def test_two_places_with_nothing_between():
    one, two = ({"x": oracle.stats_of(np.full(10, value))} for value in (1.0, 2.0))
    merged = robocache.merge_stats([one, two, two])["x"]
    assert [float(getattr(merged, q)) for q in ("q01", "q10", "q50", "q90", "q99")] == [1, 1, 2, 2, 2]
    assert merged.min == 1 and merged.max == 2


def test_infinities_make_no_exception():
    a = oracle.stats_of(np.array([1.0, 2.0, 3.0]))
    b = {**a, "mean": np.inf, "std": np.nan, "max": np.inf, "q99": np.inf}
    merged = robocache.merge_stats([{"x": a}, {"x": b}, {"x": {**b, "mean": -np.inf, "min": -np.inf}}])["x"]
    assert merged.max == np.inf and merged.min == -np.inf and np.isnan(merged.mean) and np.isnan(merged.std)
    assert 1 <= merged.q50 <= 3


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        ({"x": {}}, "stats: expected a list"),
        ([3], r"stats\[0\]: expected \{key: statistics\}, such as dataset.stats, got int"),
        ([{"x": 3}], r"stats\[0\]\['x'\]: expected statistics, a dict of arrays, got int"),
        ([{"x": {"median": 3}}], r"stats\[0\]\['x'\]: expected some of mean, .*, got median"),
        ([{"x": {"mean": "high"}}], r"stats\[0\]\['x'\].mean: expected an array of numbers"),
        ([{"x": {"mean": [[1], [2, 3]]}}], r"stats\[0\]\['x'\].mean: expected an array of numbers"),
        (
            [{"x": {"mean": [1, 2], "std": [1]}}],
            r"stats\[0\]\['x'\].std: expected the shape \(2,\) of mean, got \(1,\)",
        ),
        ([{"x": {"mean": [1, 2], "count": [1, 2, 3]}}], r"stats\[0\]\['x'\].count: expected one number or"),
        ([{"x": {"mean": 1, "count": -1}}], r"stats\[0\]\['x'\].count: expected numbers of rows, got -1"),
        (
            [{"x": {"mean": [1.0], "count": 2}}, {"x": {"mean": [1.0], "std": [2.0]}}],
            r"stats\[1\]\['x'\]: expected count, the number of rows, .*got mean, std",
        ),
        (
            [{"x": {"mean": [1.0], "count": 2}}, {"x": {"mean": [1.0, 2.0], "count": 2}}],
            r"stats\[1\]\['x'\]: expected the shape \(1,\) of stats\[0\]\['x'\], got \(2,\)",
        ),
    ],
)
def test_what_cannot_be_merged_is_refused_by_name(stats, words):
    with pytest.raises(robocache.Error, match=words):
        robocache.merge_stats(stats)


# ---- files ----


def test_lerobots_file_comes_back_bit_for_bit(dataset, tmp_path):
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


def test_openpis_file_comes_back_bit_for_bit(dataset, tmp_path):
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
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(robocache.load_norm_stats(path, keys={"observation.state": "state"})) == ["observation.state"]


def test_openpis_without_quantiles(tmp_path):
    path = tmp_path / "norm_stats.json"
    robocache.save_norm_stats(path, {"state": {"mean": [1.0], "std": [2.0]}}, "openpi")
    assert json.loads(path.read_text())["norm_stats"]["state"]["q01"] is None
    assert robocache.load_norm_stats(path)["state"].q01 is None


def test_episodes_stats_are_merged_as_lerobot_does(rng, tmp_path):
    episodes = parts_of(rng, 6)
    (tmp_path / "meta").mkdir()
    lines = []
    for number, rows in enumerate(episodes):
        of = oracle.stats_of(rows)
        stats = {field: of[field].tolist() for field in ("min", "max", "mean", "std")} | {"count": [len(rows)]}
        image = {"mean": [[[0.5]], [[0.25]], [[number]]], "std": [[[0.1]], [[0.0]], [[1]]], "count": [100 + number]}
        stats["names"] = "a line separator \u2028 within a line"
        of_episode = {"action": stats, "observation.images.top": image}
        lines.append(json.dumps({"episode_index": number, "stats": of_episode}, ensure_ascii=False))
    (tmp_path / "meta" / "episodes_stats.jsonl").write_text("\n".join(lines) + "\n")
    loaded = robocache.load_norm_stats(tmp_path)
    pooled = oracle.stats_of(np.concatenate(episodes))
    for field in ("min", "max", "count"):
        np.testing.assert_array_equal(getattr(loaded["action"], field), pooled[field])
    np.testing.assert_allclose(loaded["action"].mean, pooled["mean"], rtol=1e-12)
    np.testing.assert_allclose(loaded["action"].std, pooled["std"], rtol=1e-9, atol=1e-13)
    assert loaded["observation.images.top"].mean.shape == (3, 1, 1)
    weights = 100 + np.arange(6)
    assert loaded["observation.images.top"].mean[2, 0, 0] == pytest.approx(
        (weights * np.arange(6)).sum() / weights.sum()
    )
    # One line is one object, not a file of keys.
    (tmp_path / "meta" / "episodes_stats.jsonl").write_text(lines[0])
    assert list(robocache.load_norm_stats(tmp_path)) == ["action", "observation.images.top"]


@pytest.mark.parametrize(
    ("text", "words"),
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
def test_a_file_of_something_else_is_refused_by_name(tmp_path, text, words):
    (tmp_path / "stats.json").write_text(text)
    with pytest.raises(robocache.FileError, match=words):
        robocache.load_norm_stats(tmp_path / "stats.json")


def test_files_and_keys_that_are_not_there(dataset, tmp_path):
    with pytest.raises(robocache.FileError, match=f"{tmp_path}/none.json: No such file"):
        robocache.load_norm_stats(tmp_path / "none.json")
    with pytest.raises(
        robocache.FileError, match=f"{tmp_path}: expected a file of statistics, or a folder with one of"
    ):
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


# ---- real sets ----


@pytest.fixture
def real():
    data = os.environ.get("ROBOCACHE_TEST_DATA")
    if not data:
        pytest.skip("ROBOCACHE_TEST_DATA is not set")
    return Path(data) / "lerobot_v2"


def test_the_statistics_of_a_real_v2_0_set_are_ours_but_for_float32(real, tmp_path):
    source = real / "gr00t_gr1_pnp_sim"
    robocache.ingest(source, tmp_path / "cache")
    ours = robocache.open(tmp_path / "cache").stats
    for key, theirs in robocache.load_norm_stats(
        source, {"observation.state": "observation.state", "action": "action"}
    ).items():
        assert theirs.q50 is None and theirs.count is None
        largest = np.maximum(np.abs(ours[key].min), np.abs(ours[key].max))
        for field in ("min", "max", "q01", "q99"):
            assert (np.abs(getattr(theirs, field) - getattr(ours[key], field)) <= 2.0**-22 * largest).all()
        for field in ("mean", "std"):  # a sum of 2096 rows
            assert (np.abs(getattr(theirs, field) - getattr(ours[key], field)) <= 2096 * 2.0**-24 * largest).all()


def test_the_episodes_statistics_of_a_real_v2_1_set_merge_to_those_of_its_rows(real, tmp_path):
    source = real / "unitree_g1_real"
    robocache.ingest(source, tmp_path / "cache", on_error="skip")
    ds = robocache.open(tmp_path / "cache")
    there = set(ds.episodes["source_episode_index"].to_pylist())  # 22 of 100
    lines = (source / "meta" / "episodes_stats.jsonl").read_text().splitlines()
    (tmp_path / "some.jsonl").write_text("\n".join(x for x in lines if json.loads(x)["episode_index"] in there))
    merged = robocache.load_norm_stats(tmp_path / "some.jsonl")
    for key in ("observation.state", "action"):
        ours = ds.stats[key]
        for field in ("min", "max", "count"):
            np.testing.assert_array_equal(getattr(merged[key], field), getattr(ours, field))
        largest = np.maximum(np.abs(ours.min), np.abs(ours.max))
        for field in ("mean", "std"):  # LeRobot's of an episode are sums in float32
            assert (np.abs(getattr(merged[key], field) - getattr(ours, field)) <= 500 * 2.0**-24 * largest).all()
    assert (robocache.load_norm_stats(source)["action"].count == 35965).all()
    with pytest.raises(robocache.FileError, match="Git LFS pointer"):
        robocache.load_norm_stats(real / "lfs_pointers_only")


@pytest.mark.parametrize("name", ["gr00t_gr1_pnp_sim", "unitree_g1_real"])
def test_quantiles_of_real_episodes_merge_nearer_to_the_truth_than_their_average(real, tmp_path, name):
    robocache.ingest(real / name, tmp_path / "cache", on_error="skip")
    ds = robocache.open(tmp_path / "cache")
    for key in ("observation.state", "action"):
        parts = [oracle.stats_of(ds.episode(episode)[key][1]) for episode in range(len(ds))]
        merged, truth = robocache.merge_stats([{key: part} for part in parts])[key], ds.stats[key]
        moves = truth.std > 0
        for field in ("q01", "q99"):
            average = np.average([part[field] for part in parts], axis=0, weights=[part["count"][0] for part in parts])
            off, averages = (
                np.median(np.abs(got - getattr(truth, field))[moves] / truth.std[moves])
                for got in (getattr(merged, field), average)
            )
            assert off < 0.1 and averages > 0.25, (key, field)


# ---- affines: LeRobot's and openpi's numbers ----


def random_stats(rng, shape, dtype=np.float32):
    stats = oracle.stats_of(rng.standard_normal((200, *shape)).astype(dtype) * 3 + 1)
    return {field: np.asarray(array, dtype).astype(np.float64) for field, array in stats.items()}


@pytest.mark.parametrize("mode", oracle.MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("peer", ["lerobot", "openpi"])
def test_a_feature_with_spread_has_the_peers_numbers(rng, mode, dtype, peer):
    stats, x = random_stats(rng, (6,), dtype), rng.standard_normal((50, 4, 6)).astype(dtype)
    affine = Affine.of(stats, mode, shape=(6,), dtype=dtype, constant=peer)
    theirs = getattr(oracle, peer)
    # A few roundings of terms of at most |x| / spread and |centre| / spread.
    bound = 8 * np.finfo(dtype).eps * (1 + (np.abs(x) + np.abs(affine.centre)) / affine.spread)
    assert (np.abs(affine.normalize(x) - theirs(x, stats, mode)) <= bound).all()
    # LeRobot takes its 1e-8 to divide by std and not to multiply with it again.
    bound = 8 * np.finfo(dtype).eps * (np.abs(x) * affine.spread + np.abs(affine.centre)) + 1e-8 * np.abs(x)
    bound += 8 * np.finfo(dtype).eps * affine.spread
    assert (np.abs(affine.unnormalize(x) - theirs(x, stats, mode, inverse=True)) <= bound).all()


@pytest.mark.parametrize("mode", oracle.MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("peer", ["lerobot", "openpi"])
def test_a_feature_without_spread_has_the_peers_number(rng, mode, dtype, peer):
    x = np.concatenate([[0, 1, 0.1, 3.5, -1e-12, 1e12, 1e30], rng.standard_normal(200)]).astype(dtype)
    stats = {field: np.float64(x) for field in FIELDS} | {"std": np.zeros(len(x)), "count": 3}
    affine = Affine.of(stats, mode, shape=x.shape, dtype=dtype, constant=peer)
    got, theirs = affine.normalize(x), getattr(oracle, peer)(x, stats, mode)
    assert set(np.unique(theirs)) == {0 if mode == "mean_std" else -1}
    assert (np.abs(got - theirs) <= np.finfo(dtype).eps).all()
    back = affine.unnormalize(theirs)
    bound = 2 * np.finfo(dtype).eps * (np.abs(x) + np.abs(affine.centre[0]).astype(np.float64))
    assert (np.abs(back.astype(np.float64) - x) <= bound).all()
    centred = Affine.of(stats, mode, shape=x.shape, dtype=dtype)
    assert (centred.normalize(x) == 0).all() and (centred.normalize(x[:1] + 1 + 0 * x) == 1 - x).all()


def test_what_an_affine_cannot_be_made_of_is_refused(rng):
    stats = random_stats(rng, (3,))
    few = {field: stats[field] for field in ("mean", "std", "q01", "q99")}
    for words, arguments in {
        r"stats\['a'\]: 'q10_q90' expects q10 and q90, got mean, std, q01, q99": (few, "q10_q90"),
        r"normalize: expected 'mean_std', .*, got 'zscore'": (stats, "zscore"),
    }.items():
        with pytest.raises(robocache.ArgumentError, match=words):
            Affine.of(*arguments, shape=(3,), name="stats['a']")
    with pytest.raises(robocache.ArgumentError, match=r"norm_stats.mean: expected 4 numbers, one a feature, got 3"):
        Affine.of(stats, "mean_std", shape=(4,))
    with pytest.raises(robocache.ArgumentError, match=r"norm_stats.mean: expected 2 numbers.*got 3"):
        Affine.of(stats, "mean_std", shape=(2,))
    with pytest.raises(robocache.ArgumentError, match="constant: expected 'center', 'lerobot' or 'openpi', got 'mean'"):
        Affine.of(stats, "mean_std", shape=(3,), constant="mean")


def test_statistics_that_openpi_padded_fit(rng):
    stats = random_stats(rng, (7,))
    padded = {field: np.pad(stats[field], (0, 25)) for field in ("mean", "std", "q01", "q99")}
    for mode in ("mean_std", "q01_q99"):
        for part in ("scale", "shift", "spread", "centre"):
            got = getattr(Affine.of(padded, mode, shape=(7,), constant="openpi"), part)
            assert_same_bits(got, getattr(Affine.of(stats, mode, shape=(7,), constant="openpi"), part))


# ---- on arrays ----


def hard(rng, count, dtype):
    """x, y and z, of which half have x y + z next to the middle of two numbers, closer than float64 tells for float32."""
    dtype = np.dtype(dtype)
    digits = np.finfo(dtype).nmant
    unit = np.exp2(-float(digits))
    x, y, z = (rng.choice([-1, 1], count) * np.exp2(rng.uniform(-20, 20, count)) for _ in "xyz")
    half = count // 2
    powers = np.exp2(rng.integers(-20, 20, (2, half)))
    x[:half] = powers[0] * (1 + rng.integers(-3, 4, half) * unit)
    y[:half] = powers[1] * (1 + rng.integers(-3, 4, half) * unit)
    z[:half] = powers[0] * powers[1] * 2.0 ** (digits + 1) * (1 + rng.integers(0, 2**digits, half) * unit)
    sign = rng.choice([-1, 1], (3, count))
    return ((sign * (x, y, z)).astype(dtype)[part] for part in range(3))


def affine_of(scale, shift):
    return Affine(scale[None], shift[None], scale[None], shift[None])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_array_is_normalised_by_one_fma(rng, dtype, device):
    x, y, z = hard(rng, 200_000, dtype)
    expected = fma(x, y, z, dtype)
    separately = x * y + z
    with np.errstate(all="ignore"):
        by_float64 = (x.astype(np.float64) * y + z).astype(dtype)
    assert (separately != expected).mean() > 0.02
    if dtype == "float32":
        assert (by_float64 != expected).any()  # so rounding twice would have been seen
    affine = affine_of(y, z)
    if device == "cpu":
        assert_same_bits(affine.normalize(x), expected)
    assert_same_bits(to_numpy(affine.normalize(torch.from_numpy(x).to(device))), expected)
    assert_same_bits(to_numpy(affine.unnormalize(torch.from_numpy(x).to(device))), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_infinities_nan_and_the_ends_of_the_range(dtype, device):
    largest, smallest = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, largest, -largest, smallest, 0.1, 1e-3], dtype)
    if dtype == "float64":
        special = special[special != smallest]  # whose products have no digits left
    x, y, z = (part.ravel() for part in np.meshgrid(special, special[np.isfinite(special)], special[:9]))
    finite = np.isfinite(z)
    x, y, z = x[finite], y[finite], z[finite]
    expected = fma(x, y, z, dtype)
    assert_same_bits(to_numpy(affine_of(y, z).normalize(torch.from_numpy(x).to(device))), expected)
    if device == "cpu":
        assert_same_bits(affine_of(y, z).normalize(x), expected)


@pytest.mark.parametrize("mode", oracle.MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("stream", ["action", "observation.imu", "observation.feature", "gripper"])
def test_what_the_loader_gives_raw_becomes_what_it_gives_normalised(dataset, device, mode, dtype, stream):
    recorded = dataset.streams[stream]
    arguments = {
        "batch_size": 64,
        "delta_timestamps": {stream: [-0.013, 0.0, 0.07]},
        "device": device,
        "methods": "nearest",
    }
    raw = next(robocache.Loader(dataset, dtype=str(recorded.dtype), **arguments))
    batch = next(robocache.Loader(dataset, dtype=dtype, normalize={stream: mode}, **arguments))
    affine = Affine.of(dataset.stats[stream], mode, shape=recorded.shape, dtype=str(recorded.dtype))
    work = torch.float64 if recorded.dtype == np.float64 else torch.float32
    made = to_numpy(affine.normalize(raw[stream].to(work)))
    wanted, there = to_numpy(batch[stream]), ~to_numpy(batch[f"{stream}_is_pad"])
    assert there.sum() > 20
    assert_same_bits(round_to(made, wanted.dtype)[there], wanted[there])


@pytest.mark.parametrize("constant", ["center", "lerobot", "openpi"])
@pytest.mark.parametrize("mode", oracle.MODES)
def test_there_and_back(rng, device, mode, constant):
    rows = rng.standard_normal((500, 40)) * np.exp2(rng.integers(-18, 10, 40)) + rng.normal(0, 2, 40)
    rows[:, ::8] = rows[0, ::8]
    for dtype in ("float32", "float64", "float16", ml_dtypes.bfloat16):
        x = rows.astype(dtype)
        wide = x.astype(np.float64)
        work = "float64" if dtype == "float64" else "float32"
        affine = Affine.of(oracle.stats_of(wide), mode, shape=(40,), dtype=work, constant=constant)
        tensor = torch.from_numpy(wide).to(device, getattr(torch, np.dtype(dtype).name))
        back = to_numpy(affine.unnormalize(affine.normalize(tensor)))
        assert back.dtype == x.dtype
        u = 2.0**-53 if dtype == "float64" else 2.0**-24
        bound = 4 * u * (np.abs(wide) + np.abs(affine.centre.astype(np.float64))) * (1 + 8 * u)
        if dtype not in ("float32", "float64"):
            # Both results are rounded to the narrower type.
            narrow = float(ml_dtypes.finfo(dtype).eps)
            y = np.abs(affine.normalize(x).astype(np.float64))
            bound += narrow * (y * affine.spread + np.abs(wide)) + float(ml_dtypes.finfo(dtype).tiny) * (
                affine.spread + 1
            )
            fits = np.isfinite(affine.normalize(x).astype(np.float64))
        else:
            fits = True
        assert ((np.abs(back.astype(np.float64) - wide) <= bound) | ~np.asarray(fits)).all()


def test_each_row_by_its_source(rng, device):
    stats = [random_stats(rng, (5,)) for _ in range(3)]
    affine = Affine.of_sources([Affine.of(s, "mean_std", shape=(5,)) for s in stats])
    assert affine.scale.shape == (3, 5)
    x = rng.standard_normal((8, 4, 5)).astype(np.float32)
    index = np.array([0, 2, 1, 1, 0, 2, 2, 0])
    expected = np.stack(
        [
            fma(row, *np.broadcast_arrays(affine.scale[i], affine.shift[i], row)[:2], np.float32)
            for i, row in zip(index, x, strict=True)
        ]
    )
    tensor, tensor_index = torch.from_numpy(x).to(device), torch.from_numpy(index).to(device)
    for rows in (tensor_index, index, index.tolist(), tensor_index.int()):
        assert_same_bits(to_numpy(affine.normalize(tensor, rows)), expected)
    assert_same_bits(affine.normalize(x, index), expected)
    assert_same_bits(affine.normalize(x[:, 0], index), expected[:, 0])
    assert_same_bits(affine.normalize(x[1], 2), expected[1])
    again = pickle.loads(pickle.dumps(affine))
    assert_same_bits(to_numpy(again.normalize(tensor, tensor_index)), expected)


def test_sources_that_are_narrower_leave_what_they_lack(rng):
    wide, narrow = random_stats(rng, (4,)), random_stats(rng, (2,))
    affine = Affine.of_sources(
        [
            Affine.of(wide, "min_max", shape=(4,)),
            Affine.of(narrow, "min_max", shape=(2,)),
            Affine.of(None, None, shape=(4,)),
        ]
    )
    x = rng.standard_normal((3, 4)).astype(np.float32)
    y = affine.normalize(x, [0, 1, 2])
    assert_same_bits(y[1, 2:], x[1, 2:])
    assert_same_bits(y[2], x[2])
    assert_same_bits(y[1, :2], Affine.of(narrow, "min_max", shape=(2,)).normalize(x[1, :2]))
    alike = Affine.of_sources([Affine.of(wide, "min_max", shape=(4,))] * 2)
    assert_same_bits(alike.normalize(x), alike.normalize(x, [0, 1, 0]))
    scalars = Affine.of_sources([Affine.of({"mean": 1.0, "std": s}, "mean_std", shape=()) for s in (1.0, 2.0)])
    assert scalars.normalize(np.full((2, 3), 3, np.float32), [0, 1]).tolist() == [[2] * 3, [1] * 3]


def test_gradients_go_to_x(rng, device):
    affine = Affine.of_sources(
        [Affine.of(random_stats(rng, (3,), np.float64), "q10_q90", shape=(3,), dtype="float64") for _ in "ab"]
    )
    index = torch.tensor([0, 1], device=device)
    x = torch.randn(2, 4, 3, dtype=torch.float64, device=device, requires_grad=True)
    for call in (affine.normalize, affine.unnormalize):
        assert torch.autograd.gradcheck(lambda x, call=call: call(x, index), x)
        assert torch.autograd.gradgradcheck(lambda x, call=call: call(x, index) ** 2, x)
    half = x.detach().bfloat16().requires_grad_()
    affine.unnormalize(half, index).sum().backward()
    assert half.grad.dtype == torch.bfloat16
    spread = torch.from_numpy(affine.spread).to(device)[:, None].expand(2, 4, 3)
    torch.testing.assert_close(half.grad, spread.bfloat16(), rtol=0, atol=0)
    each = torch.func.vmap(lambda row: affine.normalize(row, 0))(x.detach())
    torch.testing.assert_close(each, affine.normalize(x.detach(), 0), rtol=0, atol=0)


def test_what_cannot_be_normalised_is_refused_by_name(rng):
    affine = Affine.of_sources([Affine.of(random_stats(rng, (3,)), "mean_std", shape=(3,)) for _ in "ab"])
    x = np.zeros((2, 4, 3), np.float32)
    for words, call in {
        "x: expected a numpy array or a torch tensor, got list": lambda: affine.normalize([1.0, 2.0, 3.0], 0),
        "x: expected floats, got int64": lambda: affine.normalize(x.astype(np.int64), 0),
        "x: expected floats, got torch.int32": lambda: affine.normalize(torch.zeros(3, dtype=torch.int32), 0),
        r"x: expected \[..., 3\], got \(2, 4, 2\)": lambda: affine.normalize(x[..., :2], 0),
        r"x: expected \[..., 3\], got \(\)": lambda: affine.normalize(np.zeros((), np.float32), 0),
        "without a mask": lambda: affine.normalize(np.ma.masked_array(x), 0),
        "dataset_index: expected the source of each row, since 2": lambda: affine.normalize(x),
        r"dataset_index: expected in \[0, 2\), got 2": lambda: affine.normalize(x, 2),
        r"dataset_index: expected in \[0, 2\), got from -1 to 1": lambda: affine.normalize(x, [-1, 1]),
        r"dataset_index: expected in \[0, 2\), got from 0 to 2": lambda: affine.normalize(x, torch.tensor([0, 2])),
        r"dataset_index: expected \[B\] .*got \(3,\)": lambda: affine.normalize(x, [0, 1, 0]),
        "dataset_index: expected integers, got float64": lambda: affine.normalize(x, [0.0, 1.0]),
        "dataset_index: expected integers, got torch.bool": lambda: affine.normalize(x, torch.tensor([True, False])),
        "dataset_index: expected a whole number, got True": lambda: affine.normalize(x, True),
    }.items():
        with pytest.raises(robocache.Error, match=words):
            call()
