"""Dataset.statistics of a loader or a spec equal numpy's of the batches' values before normalisation."""

import functools
import itertools
import json
import pickle
import warnings
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordings import FORKS, joined, no_warning, run_forked
from recordings import write as write_recording
from reference import normalisation as oracle
from reference.compare import to_numpy
from reference.normalisation import affine_of

import robocache
from robocache import Anchors, Mixture, Normalization, Source, Window, actions, view, window_statistics

pytestmark = pytest.mark.filterwarnings("ignore::robocache.LoaderWarning")
HZ = 50
STEPS = [0, 1, 2, 5, 40]
OFFSETS = [step / HZ for step in STEPS]
RELATIVE = {"convert": [actions.Relative("joints", mask=[True, True, False])], "base": "state"}
assert_statistics = functools.partial(oracle.assert_statistics, rtol=1e-11)


def rows_of(rng, episodes=4, shortest=30, longest=120, dtype=np.float32):
    """Returns episodes of states that drift, and of actions near them."""
    result = []
    for _ in range(episodes):
        count = int(rng.integers(shortest, longest))
        state = rng.normal(size=(count, 3)).cumsum(0)
        result.append({"state": state.astype(dtype), "action": (state + rng.normal(size=(count, 3))).astype(dtype)})
    return result


def write(path, episodes, **options):
    """Writes [{stream: values}] with HZ rows a second."""
    recording = [
        {name: (np.arange(len(values)) * (10**9 // HZ), values) for name, values in streams.items()}
        for streams in episodes
    ]
    return write_recording(path, recording, **options)


def loader_with(dataset, windows, **options):
    options = {"batch_size": 64, "device": "cpu", "framework": "numpy"} | options
    return robocache.Loader(dataset, delta_timestamps=windows, **options)


def loader_of(dataset, action=None, *, state=None, **options):
    windows = {"action": Window(OFFSETS, **(RELATIVE if action is None else action)), "state": state or Window()}
    return loader_with(dataset, windows, **options)


def batch_values(loader, key):
    """Returns the key's values in the loader's batches, float64 [anchors, steps, features], NaN for padding."""
    batch = joined(loader)
    values, pad = batch[key].astype(np.float64), batch[f"{key}_is_pad"]
    if pad.ndim == 1:
        values, pad = values[:, None], pad[:, None]
    values[pad] = np.nan
    return values.reshape(*pad.shape, -1)


def relative_rows(episodes, steps=STEPS):
    """Returns what `batch_values` does for actions as in RELATIVE, but computed from the rows."""
    result = []
    for episode in episodes:
        action, state = episode["action"], episode["state"]
        for t in range(len(action)):
            window = np.full((len(steps), 3), np.nan, np.float64)
            for k, step in enumerate(steps):
                if t + step < len(action):
                    window[k] = action[t + step] - np.where([True, True, False], state[t], 0).astype(state.dtype)
            result.append(window)
    return np.array(result)


# Statistics are stored for a set of quantiles: with other sets each device computes its own.
QUANTILES_OF = {"cpu": (0.02, 0.98), "cuda": (0.02, 0.3, 0.98)}


def assert_pooled_and_per_step(dataset, loader, values):
    """Checks the statistics of the key `action`, pooled and per step."""
    requested = QUANTILES_OF[loader.device.split(":")[0]]
    pooled = dataset.statistics(loader, quantiles=requested)["action"]
    assert pooled.q02.shape == values.shape[2:]
    assert_statistics(pooled, values.reshape(-1, values.shape[-1]))
    by_step = dataset.statistics(loader, per_step=True, quantiles=requested)["action"]
    assert by_step.mean.shape == values.shape[1:]
    assert_statistics(by_step, values)
    return pooled, by_step


# ---- The numbers ----


def test_statistics_of_relative_joints(tmp_path, rng):
    episodes = rows_of(rng)
    dataset = write(tmp_path / "c", episodes)
    loader = loader_of(dataset)
    values = relative_rows(episodes)
    np.testing.assert_array_equal(np.sort(batch_values(loader, "action"), 0), np.sort(values, 0))
    pooled, by_step = assert_pooled_and_per_step(dataset, loader, values)
    assert (by_step.std[-1, :2] > 2 * by_step.std[0, :2]).all() and (by_step.std[0, :2] < pooled.std[:2]).all()
    assert_statistics(dataset.statistics(loader)["state"], np.concatenate([e["state"] for e in episodes]).astype(float))


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "q02_q98"])
def test_infinite_actions_and_states_are_ignored(tmp_path, rng, mode):
    """Statistics, pooled and for each step, are those of the finite values, and normalise these."""
    episodes = rows_of(rng)
    episodes[0]["action"][7, 0], episodes[1]["state"][9, 1], episodes[2]["action"][5:9, 2] = np.inf, -np.inf, np.inf
    dataset = write(tmp_path / "c", episodes)
    values = relative_rows(episodes)
    assert np.isinf(values).sum((0, 1)).all()
    finite = np.where(np.isfinite(values), values, np.nan)
    assert_pooled_and_per_step(dataset, loader_of(dataset), finite)
    with no_warning():
        loader = loader_of(dataset, RELATIVE | {"normalize": mode}, shuffle=False)
    centre, spread = affine_of(finite.reshape(-1, 3), mode)
    np.testing.assert_allclose(batch_values(loader, "action"), (values - centre) / spread, atol=2e-6)


@pytest.mark.filterwarnings("default::robocache.LoaderWarning")
def test_constant_and_infinite_results_of_conversions_are_named(tmp_path, rng):
    episodes = rows_of(rng)
    episodes[0]["action"][7, 0] = 1e6
    dataset = write(tmp_path / "c", episodes)
    window = RELATIVE | {"normalize": "q10_q90", "dtype": "float16"}
    with pytest.warns(robocache.LoaderWarning, match=r"beyond float16, 1 in all: 'action'\[0\] up to"):
        loader = loader_of(dataset, window)
    assert np.isinf(batch_values(loader, "action")).any((0, 1)).tolist() == [True, False, False]
    stats = dataset.statistics(loader)["action"]
    given = stats._asdict() | {"q90": stats.q90 * [1, np.nan, 1], "count": stats.count * [1, 0, 1]}
    with pytest.warns(robocache.LoaderWarning, match=r"not scaled, .* 1 in all: 'action'\[1\] q10 .* and q90 nan"):
        loader_of(dataset, window, normalization=Normalization(norm_stats={"action": given}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_statistics_of_every_dtype(tmp_path, rng, dtype):
    """Statistics are of values before rounding to the batch's dtype."""
    stored_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    dataset = write(tmp_path / "c", rows_of(rng, dtype=stored_dtype))
    work_dtype = "float64" if dtype == "float64" else "float32"
    values = batch_values(loader_of(dataset, RELATIVE | {"dtype": work_dtype}), "action")
    expected, _ = assert_pooled_and_per_step(dataset, loader_of(dataset), values)
    for batch_dtype in ("float16", "float32", "float64"):
        got = dataset.statistics(loader_of(dataset, RELATIVE | {"dtype": batch_dtype}))["action"]
        assert got.of == expected.of
        np.testing.assert_array_equal(got, expected[: len(got)])


@pytest.mark.parametrize(
    "options",
    [
        {"episodes": [0, 2], "shuffle": True, "seed": 3, "drop_last": True},
        {"anchors": Anchors(edges="drop"), "batch_size": 7},
        {"anchors": Anchors(rate_hz=33.0)},
        {"anchors": Anchors(rate_hz=33.0, edges="drop", drop_n_last=3)},
        {"anchors": "state", "snap_s": 1e-3},
        {"anchors": Anchors(where=pc.field("state[0]") > 0.5)},
        {"anchors": Anchors(where=pc.field("state[0]") <= 0.5, every=2)},
        {"anchors": Anchors(last=7)},
        {"anchors": Anchors(first=7)},
    ],
)
def test_statistics_of_drawn_anchors(tmp_path, rng, options):
    episodes = rows_of(rng)
    for episode in episodes[1:]:
        episode["state"] = episode["state"][:-5]
    dataset = write(tmp_path / "c", episodes)
    window = RELATIVE | {"method": "linear", "offset_s": 0.003, "max_gap_s": 0.1}
    state = Window(None, method="previous")
    values = batch_values(loader_of(dataset, window, state=state, **options | {"drop_last": False}), "action")
    assert_pooled_and_per_step(dataset, loader_of(dataset, window, state=state, **options), values)


@pytest.mark.parametrize("rows", [(40, 90), (70_000, 70_010)], ids=str)
def test_an_anchor_of_weight_0_does_not_count(tmp_path, rng, rows):
    """Rule 35.1: weight 0 means no anchor. The others count once with any weight."""
    episodes = rows_of(rng, 2, *rows)
    for episode in episodes:
        episode["weight"] = rng.choice([0, 0.5, 2], len(episode["state"])).astype(np.float32)
        episode["action"][episode["weight"] == 0] = 1e6  # like damaged rows
    dataset = write(tmp_path / "c", episodes)
    is_drawn = np.concatenate([episode["weight"] for episode in episodes]) > 0
    windows = {"action": Window([0.0], normalize="mean_std", **RELATIVE), "state": Window()}
    loader = loader_with(Source(dataset, weight_by="weight"), windows, batch_size=4096)
    values = relative_rows(episodes, [0])[is_drawn]
    stats, _ = assert_pooled_and_per_step(dataset, loader, values)
    unnormalized = next(loader)["action"] * stats.std + stats.mean
    assert np.abs(unnormalized).max() <= np.abs(values).max() * 1.0001 < 1e4


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    steps=st.lists(st.integers(-3, 60), min_size=1, max_size=5),
    kind=st.sampled_from(["constant", "nan", "infinite", "whole", "huge", "plain"]),
    seed=st.integers(0, 9),
)
def test_statistics_of_any_sizes(tmp_path_factory, device, lengths, steps, kind, seed):
    rng = np.random.default_rng(seed)
    episodes = [{name: rng.normal(size=(n, 3)).astype(np.float32) for name in ("action", "state")} for n in lengths]
    for rows in (rows for episode in episodes for rows in episode.values()):
        if kind == "constant":
            rows[:, 1:] = 0.1
        if kind == "nan":
            rows[rng.random(rows.shape) < 0.3] = np.nan
        if kind == "infinite":
            rows[rng.random(rows.shape) < 0.3] = np.inf
        if kind == "whole":
            rows[:] = rng.integers(-2, 3, rows.shape)
        if kind == "huge":
            rows *= np.float32(1e30) ** rng.uniform(-1, 1, rows.shape)
    dataset = write(tmp_path_factory.mktemp("c") / "c", episodes)
    windows = {"action": Window([step / HZ for step in steps], **RELATIVE), "state": Window()}
    loader = loader_with(dataset, windows, batch_size=5, device=device, framework="torch")
    with np.errstate(invalid="ignore"):
        values = relative_rows(episodes, steps) if min(steps) >= 0 else batch_values(loader, "action")
    values[~np.isfinite(values)] = np.nan
    assert_pooled_and_per_step(dataset, loader, values)


@pytest.mark.parametrize("kind", ["wanders", "in one bin", "steps", "of all sizes"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_statistics_of_many_values(tmp_path, rng, device, kind, dtype):
    """There are too many values to keep for a selection, so they are counted by their leading bits."""
    action = rng.normal(size=(6000, 3)).cumsum(0)
    if kind == "in one bin":
        action = 1 + rng.uniform(0, 2**-9, (6000, 3))
    if kind == "steps":
        action = np.repeat(rng.integers(-2, 3, (60, 3)), 100, axis=0)
    if kind == "of all sizes":
        action = rng.choice([-1, 1], (6000, 3)) * 10.0 ** rng.uniform(-30, 30, (6000, 3))
    dataset = write(tmp_path / "c", [{"action": action.astype(dtype), "state": np.zeros((6000, 3), dtype)}])
    window = Window([step / HZ for step in range(0, 100, 2)], dtype=dtype, **RELATIVE)
    windows = {"action": window, "state": Window()}
    loader = loader_with(dataset, windows, batch_size=512, device=device, framework="torch")
    values = batch_values(loader, "action")
    assert_statistics(dataset.statistics(loader, quantiles=QUANTILES_OF[device])["action"], values.reshape(-1, 3))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("features", "steps"), [(1, 3), (14, 50)])
def test_a_device_gives_the_same_bits(tmp_path, cuda, rng, dtype, features, steps):
    """The rows are read in parts that end within blocks of sums, with padding, NaN and infinity."""
    count = 150_000 // features + 60_000
    streams = {}
    for name in ("state", "action"):
        streams[name] = rng.normal(size=(count, features)).astype(dtype)
        streams[name][rng.random(count) < 0.01] = np.nan
    streams["action"][rng.random(count) < 0.01] = np.inf
    cut = count // 3
    episodes = [{name: x[rows] for name, x in streams.items()} for rows in (slice(cut), slice(cut, None))]
    dataset = write(tmp_path / "c", episodes)
    window = Window(range(steps), rows=True, convert=[actions.Relative("joints", mask=[True] * features)], base="state")
    for per_step in (False, True):
        stats = {}
        for name in ("cpu", cuda):
            windows = {"action": window, "state": Window()}
            loader = loader_with(dataset, windows, anchors="action", device=name, framework="torch")
            stats[name] = dataset.statistics(loader, per_step=per_step, quantiles=QUANTILES_OF[name])["action"]
        assert stats["cpu"].count.max() > 0.9 * count
        for field in ("mean", "std", "min", "max", "q02", "q98", "count"):
            on_cpu, on_cuda = getattr(stats["cpu"], field), getattr(stats[cuda], field)
            np.testing.assert_array_equal(on_cpu.view(np.int64), on_cuda.view(np.int64), err_msg=field)


def test_slow_statistics_show_a_bar(tmp_path, rng, monkeypatch):
    bars = []

    @contextmanager
    def bar():
        bars.append([])
        yield lambda *progress: bars[-1].append(progress)

    monkeypatch.setattr(view, "progress_bar", bar)
    dataset = write(tmp_path / "c", rows_of(rng, shortest=20_000, longest=30_000))
    dataset.statistics(loader_of(dataset))
    assert bars == []
    monkeypatch.setattr(window_statistics, "_SHOWN_AFTER_S", -1)
    dataset.statistics(loader_of(dataset), per_step=True)
    anchors = int(dataset.stats["action"].count[0])
    action_calls = next(calls for calls in bars if "'action'" in calls[0][2])
    assert len(action_calls) > 2 and action_calls[0][:2] == (0, anchors)
    assert all(0 <= done < total == anchors for done, total, _ in action_calls)


def test_statistics_of_integers_and_unconverted_keys(tmp_path, rng):
    count = rng.integers(-(2**40), 2**40, (60, 2))
    flag = rng.random((60, 1)) < 0.3
    image = np.zeros((60, 4, 4, 3), np.uint8)
    with robocache.Writer(tmp_path / "c") as writer, writer.episode() as episode:
        for name, values in {"count": count, "flag": flag, "pose": rng.normal(size=(60, 2, 3))}.items():
            episode.append(name, np.arange(60) * 10**7, values)
        episode.append("camera", np.arange(60) * 10**7, image, codec="raw")
    dataset = robocache.open(tmp_path / "c")
    windows = {name: Window([0.0, 0.01, 0.3]) for name in ("count", "flag")}
    windows |= {"pose": Window([0.0, 0.01, 0.3], dtype="float64"), "camera": Window()}
    loader = loader_with(dataset, windows, batch_size=9)
    stats = dataset.statistics(loader, per_step=True)
    assert list(stats) == ["count", "flag", "pose"]
    for name in stats:
        assert_statistics(stats[name], batch_values(loader, name).reshape(60, 3, *dataset[name].shape))


def test_statistics_of_a_spec(tmp_path, rng):
    """The spec defines the values; the anchors are the ticks of all episodes, or of the requested ones."""
    dataset = write(tmp_path / "c", rows_of(rng))
    window = RELATIVE | {"normalize": "min_max", "causal": True, "offset_s": 0.01, "max_gap_s": 0.5}
    window["base"] = ("state", [2, 0, 1])
    loader = loader_of(dataset, window)
    loader.save_spec(tmp_path / "spec.json")
    spec = robocache.Spec.load(tmp_path / "spec.json")
    for options in ({}, {"episodes": [1, 3]}):
        expected = dataset.statistics(loader_of(dataset, window, **options))
        got = dataset.statistics(spec, **options)
        for key in ("action", "state"):
            np.testing.assert_array_equal(got[key], expected[key])
            assert got[key].of == expected[key].of
    with pytest.raises(robocache.ArgumentError, match=r"no stream 'action'"):
        write(tmp_path / "d", [{"state": np.zeros((3, 3), np.float32)}]).statistics(spec)


def test_statistics_of_windows_in_rows(tmp_path, rng):
    episodes = rows_of(rng)
    dataset = write(tmp_path / "c", episodes)
    rows = {"action": Window(STEPS, rows=True, **RELATIVE), "state": Window([-2, 0], rows=True)}
    loader = loader_with(dataset, rows)
    _, by_step = assert_pooled_and_per_step(dataset, loader, relative_rows(episodes))
    spec_stats = dataset.statistics(loader.spec, per_step=True, quantiles=(0.02, 0.98))
    np.testing.assert_array_equal(spec_stats["action"], by_step)
    assert spec_stats["action"].of == by_step.of
    seconds_stats = dataset.statistics(loader_of(dataset), quantiles=(0.02, 0.98))["action"]
    assert seconds_stats.of != by_step.of


def test_statistics_of_each_source_of_a_mixture(tmp_path, rng):
    first, second = (rows_of(rng, episodes=n) for n in (2, 3))
    datasets = [write(tmp_path / str(n), episodes) for n, episodes in enumerate((first, second))]
    loader = loader_of(Mixture([Source(datasets[0], weight=3), Source(datasets[1], weight=1, episodes=[0, 2])]))
    parts = [dataset.statistics(loader)["action"] for dataset in datasets]
    assert_statistics(parts[0], relative_rows(first).reshape(-1, 3))
    assert_statistics(parts[1], relative_rows([second[0], second[2]]).reshape(-1, 3))
    merged = robocache.merge_stats([{"action": stats} for stats in parts])["action"]
    assert merged.of == parts[0].of
    values = np.concatenate([relative_rows(first), relative_rows([second[0], second[2]])]).reshape(-1, 3)
    np.testing.assert_allclose(merged.mean, np.nanmean(values, 0), rtol=1e-12)
    np.testing.assert_allclose(merged.std, np.nanstd(values, 0), rtol=1e-12)
    with pytest.raises(robocache.ArgumentError, match=r"of: expected a Loader one of whose sources draws from"):
        write(tmp_path / "other", rows_of(rng)).statistics(loader)


def test_statistics_of_a_weighted_mixture(tmp_path, rng):
    """Merged statistics are those of each source's values, repeated as often as the mixture draws them."""
    episodes = rows_of(rng, episodes=5)
    for episode in episodes[3:]:
        episode["action"] = episode["action"] * 4 + 9
    dataset = write(tmp_path / "c", episodes)
    sources = [Source(dataset, weight=3, episodes=[0, 1, 2]), Source(dataset, weight=1, episodes=[3, 4])]
    mixture = loader_of(Mixture(sources))
    with pytest.raises(robocache.ArgumentError, match=r"of: .*got one with 2; make a Loader for each source"):
        dataset.statistics(mixture)
    parts = [dataset.statistics(loader_of(dataset, episodes=source.episodes)) for source in sources]
    merged = robocache.merge_stats(parts, weights=[3, 1])["action"]
    values = [relative_rows([episodes[e] for e in source.episodes]).reshape(-1, 3) for source in sources]
    values = [x[~np.isnan(x).any(1)] for x in values]
    repeated = np.concatenate(
        [np.repeat(x, n, 0) for x, n in zip(values, (3 * len(values[1]), len(values[0])), strict=True)]
    )
    np.testing.assert_allclose(merged.mean, repeated.mean(0), rtol=1e-6)
    np.testing.assert_allclose(merged.std, repeated.std(0), rtol=1e-6)
    np.testing.assert_array_equal(merged.min, repeated.min(0))
    for name, percent in (("q01", 1), ("q10", 10), ("q50", 50), ("q90", 90), ("q99", 99)):
        # The merged quantile is between the knots of the parts on both sides of the true quantile.
        fields = ("min", "q01", "q10", "q50", "q90", "q99", "max")
        knots = np.sort([getattr(part["action"], field) for part in parts for field in fields], axis=0)
        true_quantile = np.quantile(repeated, percent / 100, axis=0, method="inverted_cdf")
        for d in range(3):
            knot = np.searchsorted(knots[:, d], true_quantile[d])
            low, high = knots[max(knot - 1, 0), d], knots[min(knot + 1, len(knots) - 1), d]
            assert low <= getattr(merged, name)[d] <= high
    options = {"normalization": robocache.Normalization(norm_stats={"action": merged})}
    normalised = loader_of(Mixture(sources, samples_per_epoch=4096), RELATIVE | {"normalize": "mean_std"}, **options)
    x = np.concatenate([batch["action"][~batch["action_is_pad"]] for batch in normalised])
    np.testing.assert_allclose(x.mean(0), 0, atol=0.06)
    np.testing.assert_allclose(x.std(0), 1, atol=0.06)
    for weights in ([1], [1, -1], [0, 0], [1, np.nan], [np.inf, 1]):
        with pytest.raises(robocache.ArgumentError, match=r"weights"):
            robocache.merge_stats(parts, weights=weights)
    with pytest.raises(robocache.ArgumentTypeError, match=r"^weights: expected a list of numbers, got 3"):
        robocache.merge_stats(parts, weights=3)


def test_ranks_with_their_own_episodes_have_the_statistics_of_all(tmp_path, rng):
    dataset = write(tmp_path / "c", rows_of(rng, episodes=5))
    expected = dataset.statistics(loader_of(dataset))["action"]
    for rank in (0, 1):
        ranks = robocache.Ranks(rank=rank, world_size=2, shard_episodes=True)
        np.testing.assert_array_equal(dataset.statistics(loader_of(dataset, ranks=ranks))["action"], expected)


# ---- Stored statistics ----


@FORKS
def test_statistics_are_stored_until_the_dataset_changes(tmp_path, rng, threads):
    episodes = rows_of(rng)
    dataset = write(tmp_path / "c", episodes)

    def compute(number_of_threads):
        threads(number_of_threads)
        return dataset.statistics(loader_of(dataset))["action"]

    first = run_forked(lambda: compute(1))  # this process remembers none
    files = {file: file.stat().st_ino for file in (tmp_path / "c" / "statistics").iterdir()}
    assert files
    np.testing.assert_array_equal(run_forked(lambda: compute(1)), first)
    assert {file: file.stat().st_ino for file in (tmp_path / "c" / "statistics").iterdir()} == files
    for file in files:
        file.unlink()
    np.testing.assert_array_equal(compute(3), first)
    appended = rows_of(rng, episodes=1)
    dataset = write(tmp_path / "c", appended, append=True)
    stats = dataset.statistics(loader_of(dataset))["action"]
    assert_statistics(stats, relative_rows(episodes + appended).reshape(-1, 3))


def test_stored_statistics_are_of_the_same_anchors_and_goals(tmp_path, rng):
    """Only what a key's rows do not show differs: anchors between equal ends, the last tick, and the tasks."""
    rows, end_ns = 20, 19 * 10**8
    times = np.arange(rows) * 10**8
    states = [rng.normal(size=(rows, 3)).cumsum(0) for _ in range(4)]
    jitter = [np.sort(np.concatenate([[0], rng.integers(1, end_ns, rows - 2), [end_ns]])) for _ in range(2)]

    def dataset_of(tasks):
        ticks = {"ticks": jitter[0], "other ticks": jitter[1], "short": times[: rows // 2]}
        clocks = {name: (stamps, np.zeros((len(stamps), 1))) for name, stamps in ticks.items()}
        recording = [{"state": (times, state), **clocks} for state in states]
        return write_recording(tmp_path / tasks, recording, columns=[{"task": task} for task in tasks])

    def assert_own(dataset, window, *others, **anchors):
        windows = {"state": Window(), "key": window, **dict.fromkeys(others)}
        loader = loader_with(dataset, windows, anchors=Anchors(**anchors), shuffle=False, batch_size=100)
        values = batch_values(loader, "key").reshape(-1, 3)
        assert_statistics(dataset.statistics(loader)["key"], values)
        return values

    relative = {"convert": [actions.Relative("joints")], "base": "state", "stream": "state", "dtype": "float64"}
    dataset = dataset_of("aabb")
    for window, first, second in (
        (Window([0.05], **relative), {"stream": "ticks"}, {"stream": "other ticks"}),
        (Window.last(**relative), {"stream": "ticks", "first": 1}, {"stream": "other ticks", "first": 1}),
        (Window.geometric(0.9, **relative), {"stream": "ticks", "first": 1}, {"stream": "other ticks", "first": 1}),
    ):
        assert_own(dataset, window, **first)
        assert_own(dataset, window, **second)
    goal = Window.last(**relative)
    ends = [assert_own(dataset, goal, key, rate_hz=10.0, first=1) for key in ("ticks", "short")]
    assert not np.array_equal(*ends)
    for tasks in ("aabb", "abab", "abba"):
        relabelled = dataset if tasks == "aabb" else dataset_of(tasks)
        assert_own(relabelled, Window.other(**relative), stream="state")


def test_a_dataset_without_room_for_statistics(tmp_path, rng):
    dataset = write(tmp_path / "c", rows_of(rng))
    (tmp_path / "c" / "statistics").write_text("no folder")
    stats = dataset.statistics(loader_of(dataset))["action"]
    assert_statistics(stats, batch_values(loader_of(dataset), "action").reshape(-1, 3))


# ---- Normalisation ----


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "q10_q90"])
def test_a_converted_key_is_normalised_by_its_converted_values(tmp_path, rng, mode):
    episodes = rows_of(rng)
    dataset = write(tmp_path / "c", episodes)
    options = {"episodes": [0, 2, 3], "shuffle": False}
    values = relative_rows([episodes[e] for e in options["episodes"]])
    loader = loader_of(dataset, RELATIVE | {"normalize": mode}, **options)
    centre, spread = affine_of(values.reshape(-1, 3), mode)
    normalised = batch_values(loader, "action")
    np.testing.assert_allclose(normalised, (values - centre) / spread, atol=2e-6)
    np.testing.assert_allclose(loader.unnormalize("action", normalised), values, atol=1e-5)
    normalization = Normalization(norm_stats=dataset.statistics(loader))
    equal_loader = loader_of(dataset, RELATIVE | {"normalize": mode}, normalization=normalization, **options)
    assert equal_loader.spec == loader.spec
    by_dataset = loader_of(
        dataset, RELATIVE | {"normalize": mode}, normalization=Normalization(stats_of="dataset"), **options
    )
    assert by_dataset.spec == loader_of(dataset, RELATIVE | {"normalize": mode}).spec != loader.spec


def test_statistics_of_other_values_are_refused(tmp_path, rng):
    dataset = write(tmp_path / "c", rows_of(rng))
    converted = RELATIVE | {"normalize": "mean_std"}

    def loader_normalised_by(stats, action=None):
        if not isinstance(stats, Normalization):
            stats = Normalization(norm_stats={"action": stats})
        return loader_of(dataset, action or converted, normalization=stats)

    message = r"norm_stats\['action'\]: expected statistics of what this window gives after its conversions, got "
    remedy = r".*dataset\.statistics\(loader\)\['action'\] makes them"
    for stats in (dataset.stats, dataset.statistics([0, 1]), robocache.merge_stats([dataset.stats, dataset.stats])):
        with pytest.raises(robocache.ArgumentError, match=message + "those of recorded values" + remedy):
            loader_normalised_by(stats["action"])
        assert loader_normalised_by(stats["action"], {"normalize": "mean_std"})
    with pytest.raises(robocache.ArgumentError, match=message):
        loader_of(Mixture([Source(dataset, norm_stats=dataset.stats)]), converted)
    other_windows = {
        "offsets_ns": Window([0.0, 0.1], **RELATIVE),
        "convert": Window(OFFSETS, **RELATIVE | {"convert": [actions.Relative("joints")]}),
        "base": Window(OFFSETS, **RELATIVE),
        "offset_ns": Window(OFFSETS, **RELATIVE, offset_s=0.01),
        "rows": Window(OFFSETS, **RELATIVE, method="previous"),
    }
    for field, window in other_windows.items():
        state = Window(offset_s=0.02) if field == "base" else Window()
        windows = {"action": window, "state": state}
        other = loader_with(dataset, windows)
        stats = dataset.statistics(other)["action"]
        with pytest.raises(robocache.ArgumentError, match=f"{message}others: {field}: expected .*, got .*{remedy}"):
            loader_normalised_by(stats)
        with pytest.raises(robocache.ArgumentError, match=message):
            loader_normalised_by(pickle.loads(pickle.dumps(stats)))
        with pytest.raises(robocache.ArgumentError, match=r"expected statistics of values that are not converted"):
            loader_normalised_by(stats, {"normalize": "mean_std"})
    matching = dataset.statistics(loader_of(dataset))["action"]
    half, full = (
        loader_normalised_by(matching, converted | {"dtype": dtype}).spec.keys["action"]["rows"]["affine"]
        for dtype in ("float16", "float32")
    )
    assert half == full
    unknown = {"mean": np.zeros(3), "std": np.ones(3)}  # they do not say which values they describe
    assert loader_normalised_by(unknown)
    with pytest.raises(
        robocache.ArgumentError, match=r"stats\[1\]\['action'\]: expected statistics of .*, as in stats"
    ):
        robocache.merge_stats([{"action": matching}, dataset.stats])


def test_invalid_arguments_are_refused(tmp_path, rng):
    dataset = write(tmp_path / "c", rows_of(rng))
    loader = loader_of(dataset)
    for arguments, match in [
        ({"per_step": True}, "per_step: goes with a Loader or a Spec"),
        ({"quantiles": [0.02, 0.020000000001]}, "quantiles: expected percents of at most 4 decimals"),
        ({"of": loader, "episodes": [0]}, "episodes, where: a Loader has its own"),
        ({"of": loader, "where": {"a": 1}}, "where: "),
        ({"of": [0], "episodes": [0]}, "episodes: expected them once"),
        ({"of": loader, "quantiles": [1.5]}, "quantiles: expected numbers from 0 to 1, got 1.5"),
        ({"of": loader, "quantiles": [float("nan")]}, "quantiles: expected numbers from 0 to 1"),
    ]:
        with pytest.raises(robocache.ArgumentError, match=match):
            dataset.statistics(**arguments)
    for quantiles in (["q02"], 0.02, None):
        with pytest.raises(robocache.ArgumentTypeError, match="quantiles"):
            dataset.statistics(loader, quantiles=quantiles)
    with_key_and_array = (loader.normalize, loader.unnormalize, loader.spec.unnormalize)
    calls = [(call, (np.zeros(3), "action")) for call in with_key_and_array]
    calls += [(call, (np.zeros(3), "action", {})) for call in (loader.to_absolute, loader.spec.to_absolute)]
    for call, in_wrong_order in calls:
        with pytest.raises(robocache.ArgumentTypeError, match=r"^key: "):
            call(*in_wrong_order)


# ---- Statistics for each step, any quantiles, clipping ----


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "q02_q98", "q10_q90"])
@pytest.mark.parametrize("converted", [True, False])
@pytest.mark.parametrize("method", [None, "pchip", "previous"])
def test_statistics_for_each_step(tmp_path, rng, device, mode, converted, method):
    """Batches, arrays and the spec are normalised by each step's own statistics."""
    dataset = write(tmp_path / "c", rows_of(rng, shortest=60))
    window = (RELATIVE if converted else {}) | {"method": method, "offset_s": 0.007 if method == "pchip" else 0.0}
    options = {"shuffle": False, "device": device, "framework": "torch"}
    values = batch_values(loader_of(dataset, window, **options), "action")
    stats = dataset.statistics(loader_of(dataset, window), per_step=True, quantiles=(0.02, 0.98))
    normalization = Normalization(norm_stats={"action": stats["action"]})
    loader = loader_of(dataset, window | {"normalize": mode}, normalization=normalization, **options)
    centre, spread = affine_of(values, mode)
    assert centre.shape == (len(STEPS), 3)
    got = batch_values(loader, "action")
    np.testing.assert_allclose(got, (values - centre) / spread, atol=1e-5)
    if converted:
        by_first_step = (values - centre[0]) / spread[0]
        assert not np.allclose(got[..., :2], by_first_step[..., :2], atol=0.1, equal_nan=True)
    if method == "previous":  # arrays have the numbers of the batch
        np.testing.assert_array_equal(loader.normalize("action", values.astype(np.float32)), got.astype(np.float32))
    np.testing.assert_allclose(loader.unnormalize("action", got), values, atol=1e-5)
    assert robocache.Spec(loader.spec.to_json()) == loader.spec != loader_of(dataset, window | {"normalize": mode}).spec
    if converted:
        batch = next(loader)
        raw = next(loader_of(dataset, {"method": method, "offset_s": window["offset_s"]}, **options))
        for converter in (loader, loader.spec):
            result = converter.to_absolute("action", batch["action"], batch)
            is_present = ~batch["action_is_pad"].cpu().numpy()
            np.testing.assert_allclose(result.cpu()[is_present], raw["action"].cpu()[is_present], atol=1e-5)
    with pytest.raises(robocache.ArgumentError, match=r"x: expected \[..., 5, 3\]"):
        loader.normalize("action", np.zeros((7, 3)))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_statistics_for_each_step_of_wide_rows_and_blocks_of_methods(tmp_path, rng, device, dtype):
    """Features fill several vector registers, a slice of them only a part; rows are read from memory and from files."""
    rows = rng.normal(size=(90, 45)).astype(np.float32).astype(dtype)
    dataset = write(tmp_path / "c", [{"action": rows}])
    stats = {"mean": rng.normal(size=(4, 45)), "std": rng.uniform(0.5, 2, (4, 45))}
    normalization = Normalization(norm_stats={"action": stats})
    blocks = [(slice(0, 9), "previous"), (slice(9, 45), "linear")]
    for method, residency in itertools.product((blocks, "linear"), ("device", "mapped")):
        memory = robocache.Memory(residency=residency)
        options = {"device": device, "framework": "torch", "shuffle": False, "memory": memory}
        window = {"offsets": [0.0, 0.004, 0.02, 0.3], "method": method, "dtype": "float64"}
        options |= {"anchors": Anchors(edges="drop"), "batch_size": 50}
        values = batch_values(loader_with(dataset, {"action": Window(**window)}, **options), "action")
        normalised = {"action": Window(normalize="mean_std", **window)}
        got = batch_values(loader_with(dataset, normalised, normalization=normalization, **options), "action")
        tolerance = 1e-12 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(got, (values - stats["mean"]) / stats["std"], atol=tolerance)


def test_statistics_for_each_step_in_mixtures(tmp_path, rng, device):
    """One source has statistics for each step, the other pooled ones."""
    datasets = [write(tmp_path / str(n), rows_of(rng, episodes=2)) for n in range(2)]
    by_step = datasets[0].statistics(loader_of(datasets[0]), per_step=True)["action"]
    pooled = datasets[1].statistics(loader_of(datasets[1]))["action"]
    sources = [Source(datasets[0], norm_stats={"action": by_step}), Source(datasets[1], norm_stats={"action": pooled})]
    options = {"device": device, "framework": "torch", "batch_size": 4096, "shuffle": False}
    for action in (RELATIVE, None):
        window = action if action else {"convert": None}
        if not action:  # not declared as statistics of converted values
            sources = [Source(s.dataset, norm_stats={"action": s.norm_stats["action"]._asdict()}) for s in sources]
        loader = loader_of(Mixture(sources), window | {"normalize": "mean_std"}, **options)
        batch, raw = next(loader), next(loader_of(Mixture(sources), window, **options))
        source_of, values, got = (to_numpy(x) for x in (batch["dataset_index"], raw["action"], batch["action"]))
        is_present = ~to_numpy(batch["action_is_pad"])
        for source, stats in ((0, by_step), (1, pooled)):
            steps = is_present & (source_of == source)[:, None]
            expected = (values - stats.mean) / stats.std
            np.testing.assert_allclose(got[steps], expected[steps], atol=1e-5)
        unnormalized = to_numpy(loader.unnormalize("action", batch["action"], batch["dataset_index"]))
        np.testing.assert_allclose(unnormalized[is_present], values[is_present], atol=1e-5)


def test_statistics_of_another_number_of_steps_are_refused(tmp_path, rng):
    dataset = write(tmp_path / "c", rows_of(rng))
    by_step = dataset.statistics(loader_of(dataset), per_step=True)["action"]
    too_few = {name: array[:-1] for name, array in by_step._asdict().items()}
    normalised = RELATIVE | {"normalize": "mean_std"}
    match = r"norm_stats\['action'\]: expected statistics for each of the window's 5 steps, .* got them for 4"
    for window in (normalised, {"normalize": "mean_std"}):
        with pytest.raises(robocache.ArgumentError, match=match):
            loader_of(dataset, window, normalization=Normalization(norm_stats={"action": too_few}))
    unconverted = dataset.statistics(loader_of(dataset, {"convert": None}), per_step=True)["action"]
    other = {"action": Window([0.0, 0.1, 0.2, 0.3, 0.4], normalize="mean_std")}
    with pytest.raises(robocache.ArgumentError, match=r"norm_stats\['action'\]: .*offsets_ns: expected .*, got "):
        loader_with(dataset, other, normalization=Normalization(norm_stats={"action": unconverted}))


def test_the_batch_has_each_steps_statistics_of_scalars(tmp_path, rng):
    dataset = write(tmp_path / "c", [{"x": rng.normal(size=50).cumsum()}])
    window = {"offsets": [0.0, 0.1, 0.2], "dtype": "float64"}
    loader = loader_with(dataset, {"x": Window(**window)}, shuffle=False)
    stats = dataset.statistics(loader, per_step=True)
    assert stats["x"].mean.shape == (3,)
    normalised = {"x": Window(normalize="mean_std", **window)}
    normalising = loader_with(dataset, normalised, normalization=Normalization(norm_stats=stats), shuffle=False)
    values = batch_values(loader, "x")
    expected = (values - np.nanmean(values, 0)) / np.nanstd(values, 0)
    np.testing.assert_allclose(batch_values(normalising, "x"), expected, atol=1e-9)


@pytest.mark.parametrize("mode", ["q02_q98", "q00.5_q99.5", "q25_q75", "q07_q100"])
def test_any_two_quantiles(tmp_path, rng, mode):
    """Quantiles are of a key's rows, or of its windows if it is converted; numpy gives the same numbers."""
    episodes = rows_of(rng)
    dataset = write(tmp_path / "c", episodes)
    low, high = (float(name[1:]) / 100 for name in mode.split("_"))
    for options in ({}, {"episodes": [1, 2]}):
        drawn_from = [episodes[e] for e in options.get("episodes", range(4))]
        loader = loader_of(dataset, {"normalize": mode}, **options)
        rows = np.concatenate([episode["action"] for episode in drawn_from]).astype(float)
        converted = loader_of(dataset, RELATIVE | {"normalize": mode}, **options)
        for normalising, values in ((loader, rows), (converted, relative_rows(drawn_from).reshape(-1, 3))):
            quantiles = np.nanquantile(values, (low, high), axis=0)
            affine = normalising.spec.keys["action"]["rows"]["affine"]
            np.testing.assert_allclose(affine["centre"], quantiles.mean(0), rtol=1e-12)
            np.testing.assert_allclose(affine["spread"], (quantiles[1] - quantiles[0]) / 2, rtol=1e-12)
        stats = dataset.statistics(options.get("episodes"), quantiles=(low, high))
        normalization = Normalization(norm_stats=stats)
        assert loader_of(dataset, {"normalize": mode}, normalization=normalization, **options).spec == loader.spec
    with pytest.raises(robocache.ArgumentError, match=rf"'{mode}' expects {mode.split('_')[0]} and .*, got mean, std"):
        loader_of(dataset, {"normalize": mode}, normalization=Normalization(norm_stats=dataset.stats))


def test_invalid_modes_are_refused(tmp_path, rng):
    dataset = write(tmp_path / "c", rows_of(rng))
    for mode in ("q99_q01", "q1_q99", "q01", "q01_q01", "min_q99", "qab_q99", "q01_q101", "q01_q99_", "q01.q99"):
        with pytest.raises(robocache.ArgumentError, match=r"normalize: expected 'none', .* or two quantiles,"):
            loader_of(dataset, {"normalize": mode})


@pytest.mark.parametrize("mode", ["q10_q90", "min_max", "mean_std"])
@pytest.mark.parametrize("method", ["pchip", "linear"])
def test_clipping(tmp_path, rng, device, mode, method):
    """Ranges clip values; mean and std do not."""
    episodes = rows_of(rng)
    episodes[0]["action"][3] = np.nan
    dataset = write(tmp_path / "c", episodes)
    for window in (RELATIVE, {"convert": None}):
        for dtype in ("float32", "bfloat16"):
            window_options = window | {"normalize": mode, "dtype": dtype, "method": method}
            options = {"shuffle": False, "device": device, "framework": "torch"}
            unclipped = loader_of(dataset, window_options, **options)
            loader = loader_of(dataset, window_options, normalization=Normalization(clip=True), **options)
            got, expected = (joined(batches)["action"].astype(np.float32) for batches in (loader, unclipped))
            clip = (lambda x: x) if mode == "mean_std" else (lambda x: np.clip(x, -1, 1))
            np.testing.assert_array_equal(got, clip(expected))
            assert np.isnan(got).any() and (mode != "q10_q90" or (expected > 1).any())
            assert loader.spec.keys["action"]["rows"]["clip"] == (mode != "mean_std")
            assert robocache.Spec(loader.spec.to_json()) == loader.spec
            x = np.linspace(-50, 50, 33 * 3).reshape(-1, 3).astype(np.float32)
            np.testing.assert_array_equal(loader.normalize("action", x), clip(unclipped.normalize("action", x)))
            np.testing.assert_array_equal(loader.unnormalize("action", x), unclipped.unnormalize("action", x))
    with pytest.raises(robocache.ArgumentError, match=r"normalization\.clip: expected a Window with normalize="):
        loader_of(dataset, RELATIVE, normalization=Normalization(clip=True))


# ---- Files of other libraries ----


@pytest.mark.parametrize("form", ["lerobot", "openpi", "groot"])
@pytest.mark.parametrize("per_step", [False, True])
def test_files_of_other_libraries(tmp_path, rng, form, per_step):
    """Statistics normalise alike after a round trip. A file does not declare which values it describes, so the caller does."""
    dataset = write(tmp_path / "c", rows_of(rng))
    stats = dataset.statistics(loader_of(dataset), per_step=per_step, quantiles=[0.02])
    file, keys = tmp_path / "stats.json", {"action": "actions"}
    if form == "openpi" and per_step:
        with pytest.raises(robocache.ArgumentError, match=r"stats\['action'\]: expected one dimension for openpi"):
            robocache.save_norm_stats(file, stats, form, keys)
        return
    robocache.save_norm_stats(file, stats, form, keys)
    written = json.loads(file.read_text())
    fields = (written["norm_stats"] if form == "openpi" else written)["actions"]
    expected_fields = {"openpi": ["mean", "std", "q01", "q99"], "groot": ["mean", "std", "min", "max", "q01", "q99"]}
    assert form == "lerobot" or sorted(fields) == sorted(expected_fields[form])
    assert np.shape(fields["mean"]) == ((len(STEPS), 3) if per_step else (3,))
    with warnings.catch_warnings():
        warnings.simplefilter("error" if form != "openpi" else "ignore", robocache.NormStatsWarning)
        reloaded = robocache.load_norm_stats(file, keys)
    assert reloaded["action"].of is None
    for mode in ("mean_std", "q01_q99"):
        window = RELATIVE | {"normalize": mode}
        specs = [loader_of(dataset, window, normalization=Normalization(norm_stats=x)).spec for x in (stats, reloaded)]
        assert specs[0] == specs[1]
    with pytest.raises(robocache.ArgumentError, match=r"expected mean.* for "):
        robocache.save_norm_stats(file, {"action": {"min": [0.0]}}, "groot" if form == "groot" else "openpi")


def test_groots_own_statistics(tmp_path, rng):
    """GR00T's relative_stats.json has, for each step, numpy's statistics over every complete window of an episode."""
    episodes = rows_of(rng, shortest=60)
    dataset = write(tmp_path / "c", episodes)
    chunks = []
    for episode in episodes:
        for t in range(len(episode["action"]) - 15):
            chunks.append(episode["action"][t : t + 16] - episode["state"][t])
    groot_stats = {name: getattr(np, name)(chunks, axis=0) for name in ("mean", "std", "min", "max")}
    groot_stats |= {"q01": np.quantile(chunks, 0.01, axis=0), "q99": np.quantile(chunks, 0.99, axis=0)}
    file = tmp_path / "relative_stats.json"
    file.write_text(json.dumps({"single_arm": {name: array.tolist() for name, array in groot_stats.items()}}))
    loaded = robocache.load_norm_stats(file, {"action": "single_arm"})
    action = Window.steps(HZ, horizon=16, base="state", convert=[actions.Relative("joints")])
    windows, options = {"state": Window(), "action": action}, {"anchors": Anchors(edges="drop")}
    ours = dataset.statistics(loader_with(dataset, windows, **options), per_step=True)["action"]
    for name in groot_stats:
        np.testing.assert_allclose(getattr(ours, name), getattr(loaded["action"], name), rtol=2e-6, atol=2e-6)
    options |= {"default": Window(normalize="min_max"), "normalization": Normalization(norm_stats=loaded, clip=True)}
    assert np.abs(next(loader_with(dataset, windows, **options))["action"]).max() <= 1


def test_merging_any_quantiles(tmp_path, rng):
    both = rng.normal(size=(2, 400, 2))
    parts = []
    for x in both:
        quantiles = {f"q{p:02d}": np.quantile(x, p / 100, axis=0) for p in (2, 50, 98)}
        parts.append({"x": {"count": len(x), "min": x.min(0), "max": x.max(0), **quantiles}})
    merged = robocache.merge_stats(parts)["x"]
    values = np.concatenate(both)
    for name, p in (("q02", 2), ("q50", 50), ("q98", 98)):
        np.testing.assert_allclose(getattr(merged, name), np.quantile(values, p / 100, axis=0), atol=0.2)
    assert merged.mean is None and "q02" in merged._asdict()
