"""Loader: normalisation by the statistics of every row."""

import numpy as np
import pytest
from recordings import FLOAT_STREAMS, check, random_values, write
from reference.compare import to_numpy
from reference.normalisation import ENDS, MODES, PERCENTS

import robocache


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_every_float_stream_is_normalised_alike(dataset, recording, device, mode, dtype):
    deltas = {name: [-0.013, 0.0, 0.07] for name in FLOAT_STREAMS}
    check(
        dataset, recording, deltas, device=device, dtype=dtype, normalize=dict.fromkeys(FLOAT_STREAMS, mode), batches=1
    )


def test_a_constant_feature_is_normalised_to_a_finite_value(tmp_path, device):
    values = np.stack([np.full(50, 3.5), np.arange(50)], 1).astype(np.float32)
    dataset = write(tmp_path / "cache", [{"x": (np.arange(50) * 10**8, values)}])
    for mode in MODES:
        loader = robocache.Loader(
            dataset, batch_size=50, delta_timestamps={"x": [0.0]}, normalize={"x": mode}, device=device
        )
        got = to_numpy(next(iter(loader))["x"])
        assert np.isfinite(got).all()
        assert len(np.unique(got[..., 0])) == 1
        assert abs(got[0, 0, 0]) <= 1
        assert len(np.unique(got[..., 1])) == 50


def normalised_rows(dataset, recording, mode, device):
    """(what the loader gives at every tick of the action, the same in float64 from the recording alone, the bound).

    The statistics are those of every row. At a time that is there twice both anchors see the last of its rows. The bound
    is on float32's rounding of scale, shift and result, each by at most 2^-24 of its term.
    """
    loader = robocache.Loader(
        dataset,
        batch_size=32,
        delta_timestamps={"action": [0.0]},
        normalize={"action": mode},
        device=device,
        shuffle=False,
        drop_last=False,
    )
    got = np.concatenate([to_numpy(batch["action"])[:, 0] for batch in loader]).astype(np.float64)
    present = [episode["action"] for episode in recording if "action" in episode]
    rows = np.concatenate([values for _, values in present]).astype(np.float64)
    seen = np.concatenate([values[np.searchsorted(times, times, side="right") - 1] for times, values in present])
    seen = seen.astype(np.float64)
    if mode == "mean_std":
        centre, spread = rows.mean(0), rows.std(0)
    else:
        low, high = np.quantile(rows, [PERCENTS[end] / 100 for end in ENDS[mode]], axis=0)
        centre, spread = (low + high) / 2, (high - low) / 2
    expected = (seen - centre) / spread
    return got, expected, 2.0**-24 * (np.abs(seen / spread) + np.abs(centre / spread) + np.abs(expected)) * 1.001


@pytest.mark.parametrize("mode", MODES)
def test_the_statistics_are_those_of_every_row(dataset, recording, device, mode):
    got, expected, bound = normalised_rows(dataset, recording, mode, device)
    assert got.shape == expected.shape
    assert (np.abs(got - expected) <= bound).all()


def test_mean_std_gives_mean_0_and_std_1_and_the_ranges_minus_1_to_1(rng, tmp_path, device):
    recording = []
    for start in range(3):  # no time twice: every row is seen once
        values = random_values(rng, 200 + start, np.dtype(np.float32), (17,))
        recording.append({"action": (start * 10**12 + np.arange(len(values)) * 20_000_000, values)})
    dataset = write(tmp_path / "cache", recording)
    x, _, bound = normalised_rows(dataset, recording, "mean_std", device)
    assert (np.abs(x.mean(0)) <= bound.max(0)).all()
    assert (np.abs(x.std(0) - 1) <= bound.max(0)).all()
    x, _, bound = normalised_rows(dataset, recording, "min_max", device)
    assert (np.abs(x.min(0) + 1) <= bound.max(0)).all()
    assert (np.abs(x.max(0) - 1) <= bound.max(0)).all()
    x, _, bound = normalised_rows(dataset, recording, "q01_q99", device)
    inside = (np.abs(x) <= 1 + bound).mean(0)
    assert (np.abs(inside - 0.98) <= 2 / len(x)).all()  # of n rows, 1% lie beyond either end, to a row
