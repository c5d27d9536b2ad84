"""Statistics and findings against NumPy on whole columns."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robocache

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def stats_and_findings(path, values):
    with robocache.Writer(path, overwrite=True) as writer, writer.episode() as episode:
        episode.append("x", np.arange(len(values)), values)
    ds = robocache.open(path)
    return ds.stats["x"], ds.streams["x"].findings


def assert_stats(stats, values):
    columns = values.astype(np.float64).reshape(len(values), int(np.prod(values.shape[1:])))
    for f, column in enumerate(columns.T):
        stored = {name: getattr(stats, name).reshape(-1)[f] for name in stats._fields}
        column = column[np.isfinite(column)]
        assert stored["count"] == len(column)
        if len(column) == 0:
            assert all(np.isnan(value) for name, value in stored.items() if name != "count")
            continue
        assert stored["min"] == column.min()
        assert stored["max"] == column.max()
        for name, q in QUANTILES.items():
            assert stored[name] == np.quantile(column, q), name
        # Each mean of n terms is off by at most n * 2^-53 of the largest term, so two means differ by at most twice as much.
        tolerance = np.abs(column).max() * len(column) * 2.0**-52
        assert abs(stored["mean"] - column.mean()) <= tolerance
        assert abs(stored["std"] - column.std()) <= tolerance


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 300),
    shape=st.lists(st.integers(1, 4), max_size=2),
    dtype=st.sampled_from([*"?bBhHiIlLefd", ml_dtypes.bfloat16]),
    missing=st.floats(0, 1),
)
def test_against_numpy(tmp_path_factory, seed, rows, shape, dtype, missing):
    rng = np.random.default_rng(seed)
    values = rng.normal(scale=50, size=(rows, *shape))
    dtype = np.dtype(dtype)
    if dtype.kind in "bu":
        values = np.abs(values) if dtype.kind == "u" else values > 0
    values = values.astype(dtype)
    if dtype.kind in "fV":
        values[rng.random(values.shape) < missing] = np.nan
        values[rng.random(values.shape) < missing / 4] = np.inf
        values[rng.random(values.shape) < missing / 4] = -np.inf
    stats, findings = stats_and_findings(tmp_path_factory.mktemp("stats") / "cache", values)
    assert stats.mean.shape == tuple(shape)
    assert_stats(stats, values)
    assert findings["nan_values"] == (np.isnan(values.astype(np.float64)).sum() if rows else 0)
    assert findings["infinite_values"] == (np.isinf(values.astype(np.float64)).sum() if rows else 0)


@pytest.mark.parametrize("columns", [1, 17, 64])
def test_many_rows(tmp_path, rng, columns):
    values = rng.normal(loc=1e6, size=(50_000, columns)).astype(np.float32)
    stats, _ = stats_and_findings(tmp_path / "cache", values)
    assert_stats(stats, values)
    np.testing.assert_allclose(stats.mean, values.astype(np.float64).mean(0), rtol=1e-14)
    np.testing.assert_allclose(stats.std, values.astype(np.float64).std(0), rtol=1e-9)


def test_sorted_repeated_and_constant_columns(tmp_path):
    n = 10_001
    values = np.stack([np.arange(n), np.arange(n)[::-1], np.arange(n) % 2, np.full(n, 0.1)], axis=1)
    stats, findings = stats_and_findings(tmp_path / "cache", values)
    assert_stats(stats, values[:, :3])
    assert (stats.mean[3], stats.std[3]) == (0.1, 0.0)
    assert findings["constant_features"] == [3]


def test_results_do_not_depend_on_the_number_of_threads(tmp_path, rng):
    values = rng.normal(size=(20_000, 40)).astype(np.float32)
    tables = []
    thread_count = robocache.num_threads()
    try:
        for threads in (1, 2, 5):
            robocache.set_num_threads(threads)
            tables.append(np.stack(stats_and_findings(tmp_path / "cache", values)[0]).tobytes())
    finally:
        robocache.set_num_threads(thread_count)
    assert len(set(tables)) == 1


@settings(max_examples=60)
@given(
    episodes=st.lists(
        st.lists(st.one_of(st.integers(0, 3), st.integers(0, 10**10)), max_size=12), min_size=1, max_size=4
    )
)
def test_findings_against_numpy(tmp_path_factory, episodes):
    path = tmp_path_factory.mktemp("findings") / "cache"
    clocks = [np.cumsum(np.array(steps, np.int64)) for steps in episodes]
    with robocache.Writer(path) as writer:
        for clock in clocks:
            with writer.episode() as episode:
                episode.append("x", clock, np.zeros(len(clock)))
    stream = robocache.open(path).streams["x"]
    periods = np.concatenate([np.diff(clock) for clock in clocks])
    findings = stream.findings
    assert findings["empty_episodes"] == sum(len(clock) == 0 for clock in clocks)
    if len(periods) == 0:
        assert stream.rate_hz == findings["period_ns"] == findings["gaps"] == 0
        return
    median = np.median(periods)
    gaps = periods > 1.5 * median if median > 0 else np.zeros(len(periods), bool)
    assert findings["period_ns"] == median
    if median > 0:
        assert abs(1e9 / stream.rate_hz - median) < 1
    else:
        assert stream.rate_hz == 0
    assert findings["min_period_ns"] == periods.min()
    assert findings["max_period_ns"] == periods.max()
    assert findings["duplicates"] == (periods == 0).sum()
    assert findings["gaps"] == gaps.sum()
    assert findings["jitter_ns"] == pytest.approx(np.sqrt(np.mean((periods[~gaps] - median) ** 2)), rel=1e-12)


def test_findings_of_many_stamps(tmp_path, rng):
    periods = rng.integers(900_000, 1_100_000, 299_999)
    periods[::1000] = 0
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("x", np.concatenate([[0], np.cumsum(periods)]), np.zeros(300_000, np.uint8))
    findings = robocache.open(tmp_path / "cache").streams["x"].findings
    assert findings["period_ns"] == np.median(periods)
    assert (findings["min_period_ns"], findings["max_period_ns"]) == (0, periods.max())
    assert findings["duplicates"] == 300


@pytest.mark.parametrize(
    ("period_ns", "rate_hz"),
    [
        (33_333_333, "30.0"),
        (33_333_334, "30.0"),
        (33_366_700, "29.97"),
        (16_666_667, "60.0"),
        (2_000_000, "500.0"),
        (1_999_990, "500.0025"),
        (10**10, "0.1"),
        (1, "1000000000.0"),
        (10**15, "1e-06"),
    ],
)
def test_a_rate_has_no_more_digits_than_its_period_needs(tmp_path, period_ns, rate_hz):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("x", [0, period_ns], [0, 1])
    assert str(robocache.open(tmp_path / "cache").streams["x"].rate_hz) == rate_hz
