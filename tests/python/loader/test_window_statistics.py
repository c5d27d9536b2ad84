"""Dataset.statistics of a loader or a spec: numpy's of what the batches hold before normalisation."""

import os
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import robocache
from robocache import Anchors, Mixture, Normalization, Source, Window, actions

pytestmark = pytest.mark.filterwarnings("ignore::robocache.LoaderWarning")
HZ = 50
STEPS = [0, 1, 2, 5, 40]
OFFSETS = [step / HZ for step in STEPS]
RELATIVE = {"convert": [actions.Relative("joints", mask=[True, True, False])], "base": "state"}
QUANTILES = {"q01": 0.01, "q02": 0.02, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q98": 0.98, "q99": 0.99}


def rows_of(rng, episodes=4, shortest=30, longest=120, dtype=np.float32):
    """Actions that wander from the states, by episode."""
    made = []
    for _ in range(episodes):
        count = int(rng.integers(shortest, longest))
        state = rng.normal(size=(count, 3)).cumsum(0)
        made.append({"state": state.astype(dtype), "action": (state + rng.normal(size=(count, 3))).astype(dtype)})
    return made


def write(path, episodes):
    with robocache.Writer(path) as writer:
        for streams in episodes:
            with writer.episode() as episode:
                for name, values in streams.items():
                    episode.append(name, np.arange(len(values)) * (10**9 // HZ), values)
    return robocache.open(path)


def loader_of(dataset, action=None, *, state=None, **options):
    windows = {"action": Window(OFFSETS, **(RELATIVE if action is None else action)), "state": state or Window()}
    return robocache.Loader(
        dataset, delta_timestamps=windows, **{"batch_size": 64, "device": "cpu", "framework": "numpy"} | options
    )


def drawn(loader, key):
    """float64 [anchors, steps, features] of the loader's batches, NaN where they are padding."""
    batches = list(loader)
    values = np.concatenate([np.asarray(batch[key]) for batch in batches]).astype(np.float64)
    pad = np.concatenate([batch[f"{key}_is_pad"] for batch in batches])
    if pad.ndim == 1:
        values, pad = values[:, None], pad[:, None]
    values[pad] = np.nan
    return values.reshape(*pad.shape, -1)


def relative_rows(episodes, steps=STEPS):
    """The same of joints relative to the state, out of the rows."""
    made = []
    for episode in episodes:
        action, state = episode["action"], episode["state"]
        for t in range(len(action)):
            window = np.full((len(steps), 3), np.nan, np.float64)
            for k, step in enumerate(steps):
                if t + step < len(action):
                    window[k] = action[t + step] - np.where([True, True, False], state[t], 0).astype(state.dtype)
            made.append(window)
    return np.array(made)


def assert_statistics(stats, values):
    """Those of values [n, ...] along the first axis, by numpy."""
    there = ~np.isnan(values)
    np.testing.assert_array_equal(stats.count, there.sum(0))
    filled = np.where(there.any(0), values, 0)
    unseen = ~there.any(0)
    want = {"mean": np.nanmean(filled, 0), "std": np.nanstd(filled, 0), "min": np.nanmin(filled, 0)}
    want |= {"max": np.nanmax(filled, 0)} | {name: np.nanquantile(filled, q, axis=0) for name, q in QUANTILES.items()}
    for name, array in want.items():
        if getattr(stats, name, None) is not None:
            exact = {"rtol": 0, "atol": 0} if name in ("min", "max") else {"rtol": 1e-12, "atol": 1e-12}
            np.testing.assert_allclose(getattr(stats, name), np.where(unseen, np.nan, array), **exact, err_msg=name)


def assert_both(dataset, loader, values):
    """Of one key `action`: pooled and a step each."""
    pooled = dataset.statistics(loader, quantiles=(0.02, 0.98))["action"]
    assert pooled.q02.shape == values.shape[2:]
    assert_statistics(pooled, values.reshape(-1, values.shape[-1]))
    each = dataset.statistics(loader, per_step=True, quantiles=(0.02, 0.98))["action"]
    assert each.mean.shape == values.shape[1:]
    assert_statistics(each, values)
    return pooled, each


# ---- The numbers ----


def test_of_relative_joints(tmp_path, rng):
    episodes = rows_of(rng)
    dataset = write(tmp_path / "c", episodes)
    loader = loader_of(dataset)
    values = relative_rows(episodes)
    np.testing.assert_array_equal(np.sort(drawn(loader, "action"), 0), np.sort(values, 0))
    pooled, each = assert_both(dataset, loader, values)
    assert (each.std[-1, :2] > 2 * each.std[0, :2]).all() and (each.std[0, :2] < pooled.std[:2]).all()
    assert_statistics(dataset.statistics(loader)["state"], np.concatenate([e["state"] for e in episodes]).astype(float))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_of_every_dtype(tmp_path, rng, dtype):
    """Values before they are rounded to the batch's dtype."""
    stored = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    dataset = write(tmp_path / "c", rows_of(rng, dtype=stored))
    work = "float64" if dtype == "float64" else "float32"
    values = drawn(loader_of(dataset, RELATIVE | {"dtype": work}), "action")
    wanted, _ = assert_both(dataset, loader_of(dataset), values)
    for narrow in ("float16", "float32", "float64"):
        got = dataset.statistics(loader_of(dataset, RELATIVE | {"dtype": narrow}))["action"]
        assert got.of == wanted.of
        np.testing.assert_array_equal(got, wanted[: len(got)])


@pytest.mark.parametrize(
    "options",
    [
        {"episodes": [0, 2], "shuffle": True, "seed": 3, "drop_last": True},
        {"anchors": Anchors(edges="drop"), "batch_size": 7},
        {"anchors": Anchors(rate_hz=33.0)},
        {"anchors": Anchors(rate_hz=33.0, edges="drop", drop_n_last=3)},
        {"anchors": "state", "snap_s": 1e-3},
    ],
)
def test_of_the_anchors_that_are_drawn(tmp_path, rng, options):
    episodes = rows_of(rng)
    for episode in episodes[1:]:
        episode["state"] = episode["state"][:-5]
    dataset = write(tmp_path / "c", episodes)
    window = RELATIVE | {"method": "linear", "offset_s": 0.003, "max_gap_s": 0.1}
    state = Window(None, method="previous")
    values = drawn(loader_of(dataset, window, state=state, **options | {"drop_last": False}), "action")
    assert_both(dataset, loader_of(dataset, window, state=state, **options), values)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    steps=st.lists(st.integers(-3, 60), min_size=1, max_size=5),
    kind=st.sampled_from(["constant", "nan", "whole", "huge", "plain"]),
    seed=st.integers(0, 9),
)
def test_of_any_sizes(tmp_path_factory, lengths, steps, kind, seed):
    rng = np.random.default_rng(seed)
    episodes = [{name: rng.normal(size=(n, 3)).astype(np.float32) for name in ("action", "state")} for n in lengths]
    for rows in (rows for episode in episodes for rows in episode.values()):
        if kind == "constant":
            rows[:, 1:] = 0.1
        if kind == "nan":
            rows[rng.random(rows.shape) < 0.3] = np.nan
        if kind == "whole":
            rows[:] = rng.integers(-2, 3, rows.shape)
        if kind == "huge":
            rows *= np.float32(1e30) ** rng.uniform(-1, 1, rows.shape)
    dataset = write(tmp_path_factory.mktemp("c") / "c", episodes)
    windows = {"action": Window([step / HZ for step in steps], **RELATIVE), "state": Window()}
    loader = robocache.Loader(dataset, batch_size=5, delta_timestamps=windows, device="cpu", framework="numpy")
    values = relative_rows(episodes, steps) if min(steps) >= 0 else drawn(loader, "action")
    assert_both(dataset, loader, values)


def test_of_integers_and_of_what_is_not_converted(tmp_path, rng):
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
    loader = robocache.Loader(dataset, batch_size=9, delta_timestamps=windows, device="cpu", framework="numpy")
    found = dataset.statistics(loader, per_step=True)
    assert list(found) == ["count", "flag", "pose"]
    for name in found:
        assert_statistics(found[name], drawn(loader, name).reshape(60, 3, *dataset[name].shape))


def test_of_a_spec(tmp_path, rng):
    """A file says what they are of; the moments are the ticks of all episodes, or of those asked for."""
    dataset = write(tmp_path / "c", rows_of(rng))
    window = RELATIVE | {"normalize": "min_max", "causal": True, "offset_s": 0.01, "max_gap_s": 0.5}
    window["base"] = ("state", [2, 0, 1])
    loader = loader_of(dataset, window)
    loader.save_spec(tmp_path / "spec.json")
    spec = robocache.Spec.load(tmp_path / "spec.json")
    for options in ({}, {"episodes": [1, 3]}):
        wanted = dataset.statistics(loader_of(dataset, window, **options))
        got = dataset.statistics(spec, **options)
        for key in ("action", "state"):
            np.testing.assert_array_equal(got[key], wanted[key])
            assert got[key].of == wanted[key].of
    with pytest.raises(robocache.ArgumentError, match=r"no stream 'action'"):
        write(tmp_path / "d", [{"state": np.zeros((3, 3), np.float32)}]).statistics(spec)


def test_of_windows_in_rows(tmp_path, rng):
    episodes = rows_of(rng)
    dataset = write(tmp_path / "c", episodes)
    rows = {"action": Window(STEPS, rows=True, **RELATIVE), "state": Window([-2, 0], rows=True)}
    loader = robocache.Loader(dataset, batch_size=64, delta_timestamps=rows, device="cpu")
    _, each = assert_both(dataset, loader, relative_rows(episodes))
    of_spec = dataset.statistics(loader.spec, per_step=True, quantiles=(0.02, 0.98))
    np.testing.assert_array_equal(of_spec["action"], each)
    assert of_spec["action"].of == each.of
    of_seconds = dataset.statistics(loader_of(dataset), quantiles=(0.02, 0.98))["action"]
    assert of_seconds.of != each.of


def test_of_each_source_of_a_mixture(tmp_path, rng):
    wide, narrow = (rows_of(rng, episodes=n) for n in (2, 3))
    sets = [write(tmp_path / str(n), episodes) for n, episodes in enumerate((wide, narrow))]
    loader = loader_of(Mixture([Source(sets[0], weight=3), Source(sets[1], weight=1, episodes=[0, 2])]))
    found = [dataset.statistics(loader)["action"] for dataset in sets]
    assert_statistics(found[0], relative_rows(wide).reshape(-1, 3))
    assert_statistics(found[1], relative_rows([narrow[0], narrow[2]]).reshape(-1, 3))
    merged = robocache.merge_stats([{"action": stats} for stats in found])["action"]
    assert merged.of == found[0].of
    both = np.concatenate([relative_rows(wide), relative_rows([narrow[0], narrow[2]])]).reshape(-1, 3)
    np.testing.assert_allclose(merged.mean, np.nanmean(both, 0), rtol=1e-12)
    np.testing.assert_allclose(merged.std, np.nanstd(both, 0), rtol=1e-12)
    with pytest.raises(robocache.ArgumentError, match=r"of: expected a Loader one of whose sources draws from"):
        write(tmp_path / "other", rows_of(rng)).statistics(loader)


def test_ranks_with_episodes_of_their_own_have_those_of_all(tmp_path, rng):
    dataset = write(tmp_path / "c", rows_of(rng, episodes=5))
    wanted = dataset.statistics(loader_of(dataset))["action"]
    for rank in (0, 1):
        ranks = robocache.Ranks(rank=rank, world_size=2, shard_episodes=True)
        np.testing.assert_array_equal(dataset.statistics(loader_of(dataset, ranks=ranks))["action"], wanted)


# ---- Where they are kept ----


def test_they_are_kept_with_the_dataset_and_forgotten_when_it_changes(tmp_path, rng):
    episodes = rows_of(rng)
    dataset = write(tmp_path / "c", episodes)
    first = dataset.statistics(loader_of(dataset))["action"]
    kept = set((tmp_path / "c" / "statistics").iterdir())
    code = (
        "import pickle, sys, robocache; dataset, loader = pickle.load(sys.stdin.buffer);"
        "sys.stdout.buffer.write(pickle.dumps(dataset.statistics(loader)['action']))"
    )
    given = pickle.dumps((dataset, loader_of(dataset)))
    environment = os.environ | {"ROBOCACHE_NUM_THREADS": "3"}
    again = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True, env=environment)
    np.testing.assert_array_equal(pickle.loads(again.stdout), first)
    assert set((tmp_path / "c" / "statistics").iterdir()) == kept
    for file in kept:
        file.unlink()
    again = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True, env=environment)
    np.testing.assert_array_equal(pickle.loads(again.stdout), first)  # of three threads
    more = rows_of(rng, episodes=1)
    with robocache.Writer(tmp_path / "c", append=True) as writer, writer.episode() as episode:
        for name, values in more[0].items():
            episode.append(name, np.arange(len(values)) * (10**9 // HZ), values)
    dataset = robocache.open(tmp_path / "c")
    assert_statistics(dataset.statistics(loader_of(dataset))["action"], relative_rows(episodes + more).reshape(-1, 3))


def test_a_dataset_that_cannot_be_written(tmp_path, rng):
    dataset = write(tmp_path / "c", rows_of(rng))
    (tmp_path / "c" / "statistics").write_text("no folder")
    assert_statistics(
        dataset.statistics(loader_of(dataset))["action"], drawn(loader_of(dataset), "action").reshape(-1, 3)
    )


# ---- Normalising by them ----


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "q10_q90"])
def test_a_converted_key_is_normalised_by_what_its_windows_give(tmp_path, rng, mode):
    episodes = rows_of(rng)
    dataset = write(tmp_path / "c", episodes)
    options = {"episodes": [0, 2, 3], "shuffle": False}
    values = relative_rows([episodes[e] for e in options["episodes"]])
    loader = loader_of(dataset, RELATIVE | {"normalize": mode}, **options)
    flat = values.reshape(-1, 3)
    if mode == "mean_std":
        centre, spread = np.nanmean(flat, 0), np.nanstd(flat, 0)
    else:
        low, high = np.nanquantile(flat, (0, 1) if mode == "min_max" else (0.1, 0.9), axis=0)
        centre, spread = (low + high) / 2, (high - low) / 2
    normalised = drawn(loader, "action")
    np.testing.assert_allclose(normalised, (values - centre) / spread, atol=2e-6)
    np.testing.assert_allclose(loader.unnormalize("action", normalised), values, atol=1e-5)
    given = Normalization(norm_stats=dataset.statistics(loader))
    same = loader_of(dataset, RELATIVE | {"normalize": mode}, normalization=given, **options)
    assert same.spec == loader.spec
    whole = loader_of(
        dataset, RELATIVE | {"normalize": mode}, normalization=Normalization(stats_of="dataset"), **options
    )
    assert whole.spec == loader_of(dataset, RELATIVE | {"normalize": mode}).spec != loader.spec


def test_statistics_of_other_values_are_refused(tmp_path, rng):
    dataset = write(tmp_path / "c", rows_of(rng))
    converted = RELATIVE | {"normalize": "mean_std"}

    def normalised(stats, action=None):
        if not isinstance(stats, Normalization):
            stats = Normalization(norm_stats={"action": stats})
        return loader_of(dataset, action or converted, normalization=stats)

    recorded = r"norm_stats\['action'\]: expected statistics of what this window gives after its conversions, got "
    way = r".*dataset\.statistics\(loader\)\['action'\] makes them"
    for stats in (dataset.stats, dataset.statistics([0, 1]), robocache.merge_stats([dataset.stats, dataset.stats])):
        with pytest.raises(robocache.ArgumentError, match=recorded + "those of recorded values" + way):
            normalised(stats["action"])
        assert normalised(stats["action"], {"normalize": "mean_std"})
    with pytest.raises(robocache.ArgumentError, match=recorded):
        Source(dataset, norm_stats=dataset.stats) and loader_of(
            Mixture([Source(dataset, norm_stats=dataset.stats)]), converted
        )
    others = {
        "offsets_ns": Window([0.0, 0.1], **RELATIVE),
        "convert": Window(OFFSETS, **RELATIVE | {"convert": [actions.Relative("joints")]}),
        "base": Window(OFFSETS, **RELATIVE),
        "offset_ns": Window(OFFSETS, **RELATIVE, offset_s=0.01),
        "rows": Window(OFFSETS, **RELATIVE, method="previous"),
    }
    for field, window in others.items():
        state = Window(offset_s=0.02) if field == "base" else Window()
        windows = {"action": window, "state": state}
        other = robocache.Loader(dataset, batch_size=4, delta_timestamps=windows, device="cpu", framework="numpy")
        stats = dataset.statistics(other)["action"]
        with pytest.raises(robocache.ArgumentError, match=f"{recorded}others: {field}: expected .*, got .*{way}"):
            normalised(stats)
        with pytest.raises(robocache.ArgumentError, match=recorded):
            normalised(pickle.loads(pickle.dumps(stats)))
        with pytest.raises(robocache.ArgumentError, match=r"expected statistics of values that are not converted"):
            normalised(stats, {"normalize": "mean_std"})
    right = dataset.statistics(loader_of(dataset))["action"]
    bits16 = normalised(right, converted | {"dtype": "float16"})
    assert bits16.spec.keys["action"]["rows"]["affine"] == normalised(right).spec.keys["action"]["rows"]["affine"]
    unknown = {"mean": np.zeros(3), "std": np.ones(3)}  # nobody says what they are of
    assert normalised(unknown)
    with pytest.raises(
        robocache.ArgumentError, match=r"stats\[1\]\['action'\]: expected statistics of the same values"
    ):
        robocache.merge_stats([{"action": right}, dataset.stats])


def test_arguments(tmp_path, rng):
    dataset = write(tmp_path / "c", rows_of(rng))
    loader = loader_of(dataset)
    for words, match in [
        ({"per_step": True}, "per_step, quantiles: go with a Loader or a Spec"),
        ({"quantiles": [0.02]}, "per_step, quantiles: go with a Loader or a Spec"),
        ({"of": loader, "episodes": [0]}, "episodes, where: a Loader has its own"),
        ({"of": loader, "where": {"a": 1}}, "where: "),
        ({"of": [0], "episodes": [0]}, "episodes: expected them once"),
        ({"of": loader, "quantiles": [1.5]}, "quantiles: expected numbers from 0 to 1, got 1.5"),
        ({"of": loader, "quantiles": [float("nan")]}, "quantiles: expected numbers from 0 to 1"),
    ]:
        with pytest.raises(robocache.ArgumentError, match=match):
            dataset.statistics(**words)
    with pytest.raises(robocache.ArgumentTypeError, match="quantiles"):
        dataset.statistics(loader, quantiles=["q02"])
