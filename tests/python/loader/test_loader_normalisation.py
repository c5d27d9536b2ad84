"""A Loader's normalisation by the statistics of every row."""

import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords
from recordings import FLOAT_STREAMS, check, joined, small_loader, write
from reference.compare import assert_same_bits, to_numpy
from reference.normalisation import MODES, affine_of

import robocache

DELTAS = [-0.013, 0.0, 0.07]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_every_float_stream_is_normalised_alike(dataset, recording, device, mode, dtype):
    options = {"dtype": dtype, "normalize": dict.fromkeys(FLOAT_STREAMS, mode), "device": device}
    check(dataset, recording, dict.fromkeys(FLOAT_STREAMS, DELTAS), batches=1, **options)


def test_one_key_may_stay_unnormalised(tmp_path, device):
    values = np.arange(100, dtype=np.float32).reshape(50, 2)
    streams = {name: (np.arange(50) * 10**8, values) for name in ("x", "y")}
    windows = {"x": robocache.Window(), "y": robocache.Window(normalize="none")}
    options = {"batch_size": 50, "shuffle": False, "default": robocache.Window(normalize="mean_std"), "device": device}
    batch = next(robocache.Loader(write(tmp_path / "cache", [streams]), delta_timestamps=windows, **options))
    assert np.array_equal(to_numpy(batch["y"]), values) and abs(to_numpy(batch["x"]).mean()) < 1e-6


def test_a_constant_feature_is_normalised_to_a_finite_value(tmp_path, device):
    values = np.stack([np.full(50, 3.5), np.arange(50)], 1).astype(np.float32)
    dataset = write(tmp_path / "cache", [{"x": (np.arange(50) * 10**8, values)}])
    for mode in MODES:
        loader = loader_by_keywords(
            dataset, batch_size=50, delta_timestamps={"x": [0.0]}, normalize=mode, device=device
        )
        result = to_numpy(next(loader)["x"])
        assert np.isfinite(result).all()
        assert len(np.unique(result[..., 0])) == 1
        assert abs(result[0, 0, 0]) <= 1
        assert len(np.unique(result[..., 1])) == 50


@pytest.mark.parametrize("mode", MODES)
def test_the_statistics_are_those_of_every_row(dataset, recording, device, mode):
    """At a repeated time both anchors read the last of its rows. The bound covers float32's rounding of scale, shift and
    result, each at most 2^-24 of its term."""
    loader = small_loader(dataset, delta_timestamps={"action": None}, normalize=mode, device=device, shuffle=False)
    episodes = [episode["action"] for episode in recording if "action" in episode]
    rows = np.concatenate([values for _, values in episodes]).astype(np.float64)
    read_rows = np.concatenate([values[np.searchsorted(times, times, side="right") - 1] for times, values in episodes])
    read_rows = read_rows.astype(np.float64)
    centre, spread = affine_of(rows, mode)
    expected = (read_rows - centre) / spread
    bound = 2.0**-24 * (np.abs(read_rows / spread) + np.abs(centre / spread) + np.abs(expected)) * 1.001
    assert (np.abs(joined(loader)["action"] - expected) <= bound).all()


# ---- loader.normalize ----


def has_rows(dataset, batch, key):
    """Returns whether each sample's episode has rows of the stream; if not, the batch has zeros, normalised or not."""
    return np.diff(dataset.streams[key].row_offsets)[to_numpy(batch["episode_index"])] > 0


def assert_neighbours(result, batch, shift):
    """Rule 38: an array's value is the batch's or a neighbouring float; for float64 the product's rounding is added."""
    assert result.dtype == batch.dtype
    size = np.abs(batch.astype(np.float64))
    bound = float(np.finfo(batch.dtype).eps) * size + 2.0**-53 * (size + np.abs(shift).max())
    assert (np.abs(result.astype(np.float64) - batch.astype(np.float64)) <= bound).all()


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("constant", ["center", "lerobot", "openpi"])
@pytest.mark.parametrize("mode", MODES)
def test_normalize_of_a_raw_batch_equals_the_batch(dataset, device, mode, constant, framework):
    if framework == "numpy" and device == "cuda":
        pytest.skip("numpy is on the CPU")
    # The loader computes float64 streams in float64.
    keys = [key for key in FLOAT_STREAMS if key != "observation.imu"]
    for names, dtype in ((keys, "float32"), (["observation.imu"], "float64")):
        arguments = {"batch_size": 200, "delta_timestamps": dict.fromkeys(names, DELTAS), "seed": 8, "dtype": dtype}
        arguments |= {"device": device, "framework": framework}
        raw = next(loader_by_keywords(dataset, **arguments))
        loader = loader_by_keywords(dataset, normalize=mode, constant=constant, **arguments)
        batch = next(loader)
        for key in names:
            is_present = has_rows(dataset, batch, key)
            assert is_present.any()
            result = loader.normalize(key, raw[key])
            assert isinstance(result, type(batch[key]))
            assert_neighbours(
                to_numpy(result)[is_present], to_numpy(batch[key])[is_present], loader._affine_of[key].shift
            )
            assert not to_numpy(batch[key])[~is_present].any()
            unnormalized = to_numpy(loader.unnormalize(key, result)).astype(np.float64)
            np.testing.assert_allclose(unnormalized, to_numpy(raw[key]), rtol=1e-4, atol=1e-3)


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """Two datasets with the same streams in different scales."""
    rng, folder, result = np.random.default_rng(34), tmp_path_factory.mktemp("arms"), []
    for number in range(2):
        rows = {
            key: (np.arange(300) * 10**7, (rng.normal(size=(300, 4)) * 10**number + 5 * number).astype(np.float32))
            for key in ("state", "action", "force")
        }
        result.append(write(folder / str(number), [rows] * 2))
    return result


def stats_of(mean, std):
    return {"mean": np.full(4, mean), "std": np.full(4, std)}


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_norm_stats_of_a_source_precede_those_of_the_loader_and_the_cache(arms, device, framework):
    if framework == "numpy" and device == "cuda":
        pytest.skip("numpy is on the CPU")
    arguments = {"batch_size": 128, "delta_timestamps": {key: [0.0, 0.004] for key in ("state", "action", "force")}}
    arguments |= {"device": device, "framework": framework, "anchor": "state"}
    source_stats = {"state": stats_of(1.0, 2.0)}
    loader_stats = {"state": stats_of(-3.0, 4.0), "action": stats_of(7.0, 0.5)}
    sources = [robocache.Source(arms[0], norm_stats=source_stats), robocache.Source(arms[1])]
    raw = next(loader_by_keywords(sources, **arguments))
    loader = loader_by_keywords(sources, normalize="mean_std", norm_stats=loader_stats, **arguments)
    batch = next(loader)
    index = to_numpy(batch["dataset_index"])
    assert set(index.tolist()) == {0, 1}
    expected_stats = {
        "state": [source_stats["state"], loader_stats["state"]],
        "action": [loader_stats["action"]] * 2,
        "force": [{"mean": arm.stats["force"].mean, "std": arm.stats["force"].std} for arm in arms],
    }
    for key, stats in expected_stats.items():
        recorded = to_numpy(raw[key])
        expected = np.empty(recorded.shape)
        for source in (0, 1):
            expected[index == source] = (recorded[index == source] - stats[source]["mean"]) / stats[source]["std"]
        np.testing.assert_allclose(to_numpy(batch[key]), expected, rtol=1e-5, atol=1e-5)
        result = loader.normalize(key, raw[key], dataset_index=batch["dataset_index"])
        assert_same_bits(to_numpy(result), to_numpy(batch[key]), key)
        unnormalized = loader.unnormalize(key, result, dataset_index=batch["dataset_index"])
        np.testing.assert_allclose(to_numpy(unnormalized), recorded, rtol=1e-4, atol=1e-4)
    # dataset_index may be left out only if all sources are normalised alike.
    assert_same_bits(to_numpy(loader.normalize("action", raw["action"])), to_numpy(batch["action"]))
    for key in ("state", "force"):
        with pytest.raises(robocache.ArgumentError, match=r"^dataset_index: "):
            loader.normalize(key, raw[key])


@pytest.mark.parametrize(
    ("options", "error", "part"),
    [
        ({"norm_stats": {"actions": stats_of(0, 1)}}, robocache.ArgumentError, "norm_stats: .* actions"),
        ({"norm_stats": 3}, robocache.ArgumentTypeError, "norm_stats: "),
        ({"norm_stats": {"action": 3}}, robocache.ArgumentTypeError, r"norm_stats\['action'\]: "),
        ({"norm_stats": {"action": {"mean": [0.0] * 4}}}, robocache.ArgumentError, r"norm_stats\['action'\].* std"),
        ({"norm_stats": {"action": {"mean": [0.0], "std": [1.0]}}}, robocache.ArgumentError, r"norm_stats\['action'\]"),
        ({"constant": "zero"}, robocache.ArgumentError, "constant: expected 'center', 'lerobot' or 'openpi'"),
        ({"constant": None}, robocache.ArgumentTypeError, "constant: "),
        ({"normalize": "std"}, robocache.ArgumentError, "normalize: "),
    ],
)
def test_invalid_statistics_are_refused_by_name(arms, options, error, part):
    options = {"normalize": "mean_std", **options}
    with pytest.raises(error, match=part):
        small_loader(arms[0], **options)


def test_an_unnormalised_key_stays_and_an_unknown_one_is_refused(arms, device):
    windows = {"action": [0.0], "state": [0.0]}
    loader = small_loader(arms[0], delta_timestamps=windows, normalize={"action": "min_max"}, device=device)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert_same_bits(loader.normalize("state", x), x)
    assert not np.array_equal(loader.normalize("action", x), x)
    for key in ("force", "action_is_pad", "time_ns"):
        with pytest.raises(robocache.ArgumentError, match=r"^key: expected one of action, state, got "):
            loader.normalize(key, x)
    with pytest.raises(robocache.ArgumentTypeError, match=r"^key: expected a str, got int"):
        loader.normalize(3, x)


def test_unused_statistics_are_refused(dataset):
    for options in ({"norm_stats": dataset.stats}, {"constant": "lerobot"}):
        with pytest.raises(robocache.ArgumentError, match="expected a Window"):
            small_loader(dataset, **options)
