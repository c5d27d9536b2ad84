"""The sample that a Loader takes for a target between rows, outside, in gaps, and without rows, against the oracle."""

import ml_dtypes
import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords
from recordings import ALL_WINDOWS, EPOCH_NS, FLOATS, anchors_of, check, write
from reference.compare import to_numpy
from reference.window_batch import assert_batch, window_batch


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_every_batch_equals_the_oracles(dataset, recording, device, dtype):
    check(
        dataset,
        recording,
        ALL_WINDOWS,
        device=device,
        dtype=dtype,
        anchor="observation.state",
        method={"gripper": "previous", "observation.tactile": "nearest", "mode": "next"},
        normalize={"observation.state": "mean_std", "action": "min_max", "observation.imu": "q01_q99"},
        max_gap_s=0.04,
        seed=3,
        batches=3,
    )


@pytest.mark.parametrize("offsets", [1, 2, 16, 33, 100])
@pytest.mark.parametrize("batch_size", [1, 3, 32, 129])
def test_every_window_length_and_batch_size(dataset, recording, device, offsets, batch_size):
    deltas = {
        "action": [0.01 * k for k in range(offsets)],
        "observation.imu": [-0.004 * k for k in range(offsets)],
        "mode": [0.0],
    }
    check(dataset, recording, deltas, device=device, batch_size=batch_size, normalize={"action": "mean_std"}, batches=1)


def test_windows_of_more_than_512_steps(dataset, recording, device):
    offsets = [0.0003 * (k - 650) for k in range(1300)]
    deltas = {"action": offsets, "mode": offsets[:511], "observation.imu": offsets[:513], "gripper": [0.0, 0.4]}
    check(dataset, recording, deltas, device=device, batch_size=9, normalize={"observation.imu": "mean_std"}, batches=1)


def test_forty_streams(rng, tmp_path, device):
    names = [f"stream {k}" for k in range(40)]
    counts = {name: 8 + k % 9 for k, name in enumerate(names)}
    clocks = {name: np.arange(n) * (90 + k) * 10**5 for k, (name, n) in enumerate(counts.items())}
    recording = [{name: (clocks[name], rng.standard_normal((n, 1))) for name, n in counts.items()} for _ in range(2)]
    dataset = write(tmp_path / "cache", recording)
    deltas = {name: [0.001 * k] * (1 + k % 3) for k, name in enumerate(reversed(names))}
    batch = next(loader_by_keywords(dataset, batch_size=20, delta_timestamps=deltas, device=device, dtype="float64"))
    types = {"dtypes": dict.fromkeys(names, np.dtype(float)), "shapes": dict.fromkeys(names, (1,)), "dtype": "float64"}
    assert_batch(batch, window_batch(recording, anchors_of([batch]), deltas, **types))


def test_offsets_of_any_order_and_size(dataset, recording, device):
    check(dataset, recording, {"action": [0.5, -0.5, 0.0, 0.0, 1e-9, -1e-9, 30.0, -1e5]}, device=device)


@pytest.mark.parametrize("snap_s", [0, 1e-9, 1e-6, 1e-3, 0.5])
def test_every_snap(dataset, recording, device, snap_s):
    deltas = {"action": [0.0, 0.02, 0.021], "observation.imu": [0.0, 0.005], "mode": [0.1]}
    check(dataset, recording, deltas, device=device, snap_s=snap_s, max_gap_s=0.03)


@pytest.mark.parametrize("max_gap_s", [0, 0.005, 0.021, 0.1, None])
def test_every_max_gap(dataset, recording, device, max_gap_s):
    check(dataset, recording, ALL_WINDOWS, device=device, max_gap_s=max_gap_s)


@pytest.mark.parametrize("features", [1, 2, 3, 7, 8, 16, 31, 64, 129])
@pytest.mark.parametrize("stored_dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_every_width(rng, tmp_path, device, features, stored_dtype):
    time_ns = np.arange(60) * 20_000_000
    recording = [{"x": (time_ns, rng.standard_normal((60, features)).astype(stored_dtype))} for _ in range(2)]
    dataset = write(tmp_path / "cache", recording)
    deltas = {"x": [0.0, 0.0125, 0.1]}
    mean_std = {"normalize": {"x": "mean_std"}}
    oracle_options = {"dtypes": {"x": stored_dtype}, "shapes": {"x": (features,)}, "stats": dataset.stats, **mean_std}
    for dtype in (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)):
        options = {"dtype": dtype.name, "device": device, **mean_std}
        batch = next(loader_by_keywords(dataset, batch_size=16, delta_timestamps=deltas, **options))
        assert_batch(batch, window_batch(recording, anchors_of([batch]), deltas, dtype=dtype, **oracle_options))


def test_float64_becomes_bfloat16_in_one_rounding(tmp_path, device):
    # Just above the middle of two bfloat16 values: rounding to float32 first would drop the difference.
    values = np.full((4, 1), 1.0 + 2.0**-8 + 2.0**-40)
    dataset = write(tmp_path / "cache", [{"x": (np.arange(4) * 10**9, values)}])
    loader = loader_by_keywords(dataset, batch_size=4, delta_timestamps={"x": [0.0]}, dtype="bfloat16", device=device)
    assert (next(iter(loader))["x"].float() == 1.0 + 2.0**-7).all()


def test_a_recording_of_nominal_30_hz_gives_its_own_frames(tmp_path, device):
    """k/30 s rounded to nanoseconds is 1 ns before a frame two times in three."""
    frames = 90
    time_ns = np.round(np.arange(frames) * 1e9 / 30).astype(np.int64)
    values = np.arange(frames, dtype=np.float32)[:, None]
    dataset = write(tmp_path / "cache", [{"frame": (time_ns, values)}])
    deltas = {"frame": [k / 30 for k in range(-20, 21)]}
    options = {"batch_size": frames, "delta_timestamps": deltas, "shuffle": False, "device": device}
    for method in ("previous", "next", "nearest", "linear"):
        batch = next(iter(loader_by_keywords(dataset, method={"frame": method}, **options)))
        expected = np.arange(frames)[:, None] + np.arange(-20, 21)
        np.testing.assert_array_equal(to_numpy(batch["frame"])[..., 0], expected.clip(0, frames - 1))
        np.testing.assert_array_equal(to_numpy(batch["frame_is_pad"]), (expected < 0) | (expected >= frames))
    unsnapped = next(iter(loader_by_keywords(dataset, method={"frame": "previous"}, snap_s=0, **options)))
    assert (to_numpy(unsnapped["frame"])[30:60, :, 0] != expected[30:60]).any()


def previous_row(tmp_path, device, offsets_ns, **options):
    """Returns the row that "previous" takes at an anchor. Rows are 1 s before it, `offsets_ns` from it, and 1 s after it."""
    times = EPOCH_NS + np.array([-(10**9), *offsets_ns, 10**9])
    recording = [{"a": (np.array([EPOCH_NS]), np.zeros(1)), "b": (times, np.arange(len(times), dtype=np.float32))}]
    dataset = write(tmp_path / "cache", recording)
    options |= {"batch_size": 1, "anchor": "a", "method": "previous", "device": device}
    return int(next(loader_by_keywords(dataset, delta_timestamps={"b": [0.0]}, **options))["b"].item())


@pytest.mark.parametrize(
    ("offsets_ns", "row"),
    [
        ([999], 1),
        ([1000], 0),
        ([1001], 0),
        ([1], 1),
        ([-999, 998], 2),
        ([-500, 500], 1),
        ([-1000, 1000], 1),
        ([0, 1], 1),
    ],
)
def test_a_target_closer_than_snap_is_the_nearest_sample(tmp_path, device, offsets_ns, row):
    assert previous_row(tmp_path, device, offsets_ns) == row
    expected = sum(offset <= 0 for offset in offsets_ns)
    assert previous_row(tmp_path / "exact", device, offsets_ns, snap_s=0) == expected


def test_a_nan_of_the_data_stays_in_its_entries(tmp_path, device):
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    values[4, 1] = np.nan
    recording = [{"x": (np.arange(10) * 10**8, values), "y": (np.arange(10) * 10**8, np.zeros((10, 1), np.float32))}]
    dataset = write(tmp_path / "cache", recording)
    deltas = {"x": [0.0, 0.05]}
    loader = loader_by_keywords(
        dataset, batch_size=10, delta_timestamps=deltas, anchor="y", shuffle=False, device=device
    )
    indices = np.argwhere(np.isnan(to_numpy(next(iter(loader))["x"]))).tolist()
    assert indices == [[3, 1, 1], [4, 0, 1], [4, 1, 1]]


def test_targets_beyond_int64_saturate(tmp_path, device):
    """Rule 24: a target must not wrap around."""
    minimum, maximum = -(2**63), 2**63 - 1
    for times in ([maximum - 10**9, maximum - 5], [minimum + 5, minimum + 10**9], [minimum, 0, maximum]):
        recording = [{"x": (np.array(times), np.arange(len(times), dtype=np.float32)[:, None])}]
        dataset = write(tmp_path / str(times[0]), recording)
        deltas, options = {"x": [-4e9, -1e-9, 0.0, 1e-9, 4e9]}, {"method": "previous", "snap_s": 0}
        loader = loader_by_keywords(
            dataset, batch_size=3, delta_timestamps=deltas, device=device, shuffle=False, **options
        )
        types = {"dtypes": {"x": np.float32}, "shapes": {"x": (1,)}}
        assert_batch(next(loader), window_batch(recording, [(0, t) for t in times], deltas, **types, **options))
