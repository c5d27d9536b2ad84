"""Loader: every batch bit for bit against the NumPy oracle, the order of the samples, and resuming."""

import collections
import itertools
import json
import os

import ml_dtypes
import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy
from reference.window_batch import window_batch

import robocache

torch = pytest.importorskip("torch")

FLOATS = [np.dtype(name) for name in ("float64", "float32", "float16", ml_dtypes.bfloat16)]
EPOCH_NS = 1_700_000_000_123_456_789

# stream: (rate in Hz, dtype, shape of one sample)
STREAMS = {
    "observation.state": (50, np.dtype(np.float32), (7,)),
    "observation.imu": (200, np.dtype(np.float64), (6,)),
    "observation.feature": (30, np.dtype(np.float16), (2, 3)),
    "observation.tactile": (80, np.dtype(ml_dtypes.bfloat16), (5,)),
    "gripper": (10, np.dtype(np.float32), ()),
    "mode": (5, np.dtype(np.int16), (2,)),
    "button": (20, np.dtype(bool), ()),
    "ticks": (25, np.dtype(np.int64), (1,)),
    "action": (50, np.dtype(np.float32), (17,)),
}
FLOAT_STREAMS = [name for name, (_, dtype, _) in STREAMS.items() if dtype in FLOATS]


def random_values(rng, count, dtype, shape):
    if dtype.kind == "b":
        return rng.random((count, *shape)) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, (count, *shape), dtype, endpoint=True)
    scale = np.exp2(rng.integers(-3, 8, shape))
    return (rng.standard_normal((count, *shape)) * scale + scale).astype(dtype)


def record(rng, episodes=7):
    """Multi-rate, jittered, with dropouts, repeated stamps, streams missing or of one sample, each clock with an offset."""
    recording = []
    for number in range(episodes):
        start = EPOCH_NS + 10**12 * number
        duration = rng.uniform(0.4, 1.6)
        episode = {}
        for name, (rate, dtype, shape) in STREAMS.items():
            count = max(2, int(duration * rate))
            seconds = np.arange(count) / rate + rng.normal(0, 0.15 / rate, count) + rng.uniform(-0.05, 0.05)
            keep = rng.random(count) > 0.05
            if count > 12:
                keep[count // 3 : count // 3 + count // 8] = False  # a dropout
            seconds = np.sort(seconds[keep])
            if len(seconds) > 4:
                seconds[3] = seconds[2]
            time_ns = start + np.round(seconds * 1e9).astype(np.int64)
            episode[name] = (time_ns, random_values(rng, len(time_ns), dtype, shape))
        recording.append(episode)
    del recording[1]["observation.imu"], recording[1]["mode"], recording[4]["action"], recording[4]["gripper"]
    for name in ("observation.feature", "ticks"):
        time_ns, values = recording[2][name]
        recording[2][name] = (time_ns[:1], values[:1])
    return recording


def write(path, recording):
    with robocache.Writer(path) as writer:
        for number, streams in enumerate(recording):
            with writer.episode(task=f"task {number % 2}") as episode:
                for name, (time_ns, values) in streams.items():
                    episode.append(name, time_ns, values)
    return robocache.open(path)


@pytest.fixture(scope="module")
def recording():
    return record(np.random.default_rng(20))


@pytest.fixture(scope="module")
def dataset(recording, tmp_path_factory):
    return write(tmp_path_factory.mktemp("cache") / "cache", recording)


def expect(dataset, recording, batch, delta_timestamps, **options):
    anchors = list(zip(to_numpy(batch["episode_index"]).tolist(), to_numpy(batch["time_ns"]).tolist(), strict=True))
    dtype = options.pop("dtype", "float32")
    return window_batch(
        recording,
        anchors,
        delta_timestamps,
        dtypes={name: dtype for name, (_, dtype, _) in STREAMS.items()},
        shapes={name: shape for name, (_, _, shape) in STREAMS.items()},
        stats=dataset.stats,
        dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype,
        **options,
    )


def check(dataset, recording, delta_timestamps, *, batches=2, batch_size=24, device="cpu", **options):
    """The first batches of a loader against the oracle; gives the loader."""
    loader = robocache.Loader(
        dataset, batch_size=batch_size, delta_timestamps=delta_timestamps, device=device, **options
    )
    oracle_options = {
        name: value
        for name, value in options.items()
        if name in ("methods", "max_gap_s", "snap_s", "normalize", "dtype")
    }
    for batch in itertools.islice(loader, batches):
        expected = expect(dataset, recording, batch, delta_timestamps, **oracle_options)
        assert set(batch) == set(expected)
        for key in expected:
            assert batch[key].device.type == device
            assert_same_bits(to_numpy(batch[key]), expected[key], key)
    return loader


def anchors_of(loader):
    """(episode, time) of every sample of an epoch, in order."""
    found = []
    for batch in loader:
        found += zip(to_numpy(batch["episode_index"]).tolist(), to_numpy(batch["time_ns"]).tolist(), strict=True)
    return found


def ticks_of(recording, stream, episodes=None):
    chosen = range(len(recording)) if episodes is None else episodes
    return [(e, int(t)) for e in chosen for t in recording[e].get(stream, ([],))[0]]


EVERY = {name: [-0.21, -0.0333, 0.0, 0.0101, 0.35] for name in STREAMS}


# ---- Batches against the oracle ----


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_every_batch_is_the_oracles(dataset, recording, device, dtype):
    check(
        dataset,
        recording,
        EVERY,
        device=device,
        dtype=dtype,
        anchor="observation.state",
        methods={"gripper": "previous", "observation.tactile": "nearest", "mode": "next"},
        normalize={"observation.state": "mean_std", "action": "min_max", "observation.imu": "q01_q99"},
        max_gap_s=0.04,
        seed=3,
        batches=3,
    )


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "q01_q99"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_every_float_stream_is_normalised_alike(dataset, recording, device, mode, dtype):
    deltas = {name: [-0.013, 0.0, 0.07] for name in FLOAT_STREAMS}
    check(
        dataset, recording, deltas, device=device, dtype=dtype, normalize=dict.fromkeys(FLOAT_STREAMS, mode), batches=1
    )


@pytest.mark.parametrize("method", ["linear", "nearest", "previous", "next"])
def test_every_method(dataset, recording, device, method):
    names = FLOAT_STREAMS if method == "linear" else STREAMS
    deltas = {name: [-0.11, 0.0, 0.02] for name in names}
    check(dataset, recording, deltas, device=device, methods=dict.fromkeys(names, method), batches=1)


def test_whole_numbers_and_bool_keep_their_type_and_hold_the_previous(dataset, recording, device):
    names = ["mode", "button", "ticks"]
    deltas = {name: [-0.3, 0.0, 0.3] for name in names}
    loader = check(dataset, recording, deltas, device=device, dtype="bfloat16", anchor="button")
    batch = next(iter(loader))
    assert [to_numpy(batch[name]).dtype for name in names] == [np.int16, np.bool_, np.int64]


@pytest.mark.parametrize("offsets", [1, 2, 16, 33, 100])
@pytest.mark.parametrize("batch_size", [1, 3, 32, 129])
def test_every_window_length_and_batch_size(dataset, recording, device, offsets, batch_size):
    deltas = {
        "action": [0.01 * k for k in range(offsets)],
        "observation.imu": [-0.004 * k for k in range(offsets)],
        "mode": [0.0],
    }
    check(dataset, recording, deltas, device=device, batch_size=batch_size, normalize={"action": "mean_std"}, batches=1)


def test_offsets_of_any_order_and_size(dataset, recording, device):
    check(dataset, recording, {"action": [0.5, -0.5, 0.0, 0.0, 1e-9, -1e-9, 30.0, -1e5]}, device=device)


@pytest.mark.parametrize("snap_s", [0, 1e-9, 1e-6, 1e-3, 0.5])
def test_every_snap(dataset, recording, device, snap_s):
    deltas = {"action": [0.0, 0.02, 0.021], "observation.imu": [0.0, 0.005], "mode": [0.1]}
    check(dataset, recording, deltas, device=device, snap_s=snap_s, max_gap_s=0.03)


@pytest.mark.parametrize("max_gap_s", [0, 0.005, 0.021, 0.1, None])
def test_every_max_gap(dataset, recording, device, max_gap_s):
    loader = check(dataset, recording, EVERY, device=device, max_gap_s=max_gap_s)
    assert len(loader)


@pytest.mark.parametrize("features", [1, 2, 3, 7, 8, 16, 31, 64, 129])
@pytest.mark.parametrize("stored", FLOATS, ids=lambda dtype: dtype.name)
def test_every_width(rng, tmp_path, device, features, stored):
    time_ns = np.arange(60) * 20_000_000
    recording = [{"x": (time_ns, rng.standard_normal((60, features)).astype(stored))} for _ in range(2)]
    dataset = write(tmp_path / "cache", recording)
    deltas = {"x": [0.0, 0.0125, 0.1]}
    for dtype in ("bfloat16", "float32"):
        options = {"normalize": {"x": "mean_std"}, "dtype": dtype}
        loader = robocache.Loader(dataset, batch_size=16, delta_timestamps=deltas, device=device, **options)
        batch = next(iter(loader))
        anchors = zip(to_numpy(batch["episode_index"]).tolist(), to_numpy(batch["time_ns"]).tolist(), strict=True)
        expected = window_batch(
            recording,
            list(anchors),
            deltas,
            dtypes={"x": stored},
            shapes={"x": (features,)},
            normalize=options["normalize"],
            stats=dataset.stats,
            dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype,
        )
        for key in expected:
            assert_same_bits(to_numpy(batch[key]), expected[key], f"{key}, {dtype}")


def test_float64_becomes_bfloat16_in_one_rounding(tmp_path, device):
    # Just above the middle of two bfloat16 values: a stop at float32 would forget by how much.
    values = np.full((4, 1), 1.0 + 2.0**-8 + 2.0**-40)
    dataset = write(tmp_path / "cache", [{"x": (np.arange(4) * 10**9, values)}])
    loader = robocache.Loader(dataset, batch_size=4, delta_timestamps={"x": [0.0]}, dtype="bfloat16", device=device)
    assert (next(iter(loader))["x"].float() == 1.0 + 2.0**-7).all()


# ---- What a window holds ----


def test_the_keys_shapes_and_types_of_a_batch(dataset, device):
    deltas = {"action": [0.0, 0.02], "gripper": [0.0], "observation.feature": [-0.1, 0.0, 0.1]}
    loader = robocache.Loader(dataset, batch_size=5, delta_timestamps=deltas, dtype="bfloat16", device=device)
    batch = next(iter(loader))
    assert {key: (tuple(value.shape), value.dtype) for key, value in batch.items()} == {
        "action": ((5, 2, 17), torch.bfloat16),
        "action_is_pad": ((5, 2), torch.bool),
        "gripper": ((5, 1), torch.bfloat16),
        "gripper_is_pad": ((5, 1), torch.bool),
        "observation.feature": ((5, 3, 2, 3), torch.bfloat16),
        "observation.feature_is_pad": ((5, 3), torch.bool),
        "time_ns": ((5,), torch.int64),
        "episode_index": ((5,), torch.int64),
    }
    assert all(value.is_contiguous() for value in batch.values())


def test_a_recording_of_nominal_30_hz_gives_its_own_frames(tmp_path, device):
    """k/30 s rounded to nanoseconds falls 1 ns short of a frame two times in three."""
    frames = 90
    time_ns = np.round(np.arange(frames) * 1e9 / 30).astype(np.int64)
    values = np.arange(frames, dtype=np.float32)[:, None]
    dataset = write(tmp_path / "cache", [{"frame": (time_ns, values)}])
    deltas = {"frame": [k / 30 for k in range(-20, 21)]}
    options = {"batch_size": frames, "delta_timestamps": deltas, "shuffle": False, "device": device}
    for method in ("previous", "next", "nearest", "linear"):
        batch = next(iter(robocache.Loader(dataset, methods={"frame": method}, **options)))
        wanted = np.arange(frames)[:, None] + np.arange(-20, 21)
        np.testing.assert_array_equal(to_numpy(batch["frame"])[..., 0], wanted.clip(0, frames - 1))
        np.testing.assert_array_equal(to_numpy(batch["frame_is_pad"]), (wanted < 0) | (wanted >= frames))
    unsnapped = next(iter(robocache.Loader(dataset, methods={"frame": "previous"}, snap_s=0, **options)))
    assert (to_numpy(unsnapped["frame"])[30:60, :, 0] != wanted[30:60]).any()


def snapped(tmp_path, device, offsets_ns, **options):
    """The rows of stream b, one at each offset from an anchor in its middle, that "previous" gives for that anchor."""
    anchor = EPOCH_NS
    rows = np.array([-(10**9), *offsets_ns, 10**9]) + anchor
    recording = [
        {
            "a": (np.array([anchor]), np.zeros((1, 1), np.float32)),
            "b": (rows, np.arange(len(rows), dtype=np.float32)[:, None]),
        }
    ]
    dataset = write(tmp_path / "cache", recording)
    loader = robocache.Loader(
        dataset,
        batch_size=1,
        delta_timestamps={"b": [0.0]},
        anchor="a",
        methods={"b": "previous"},
        device=device,
        drop_last=False,
        **options,
    )
    return int(next(iter(loader))["b"].item())


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
    assert snapped(tmp_path, device, offsets_ns) == row


def test_no_snap(tmp_path, device):
    assert snapped(tmp_path, device, [1], snap_s=0) == 0


def test_outside_holds_the_edge_sample_and_is_padded(dataset, recording, device):
    deltas = {"observation.state": [-100.0, 0.0, 100.0]}
    loader = robocache.Loader(dataset, batch_size=16, delta_timestamps=deltas, device=device)
    for batch in itertools.islice(loader, 3):
        assert to_numpy(batch["observation.state_is_pad"]).tolist() == [[True, False, True]] * 16
        for row, episode in enumerate(to_numpy(batch["episode_index"])):
            values = recording[episode]["observation.state"][1]
            assert_same_bits(to_numpy(batch["observation.state"])[row, [0, 2]], values[[0, -1]])


def test_a_missing_stream_is_zero_after_normalisation(dataset, recording, device):
    deltas = {"observation.imu": [0.0], "mode": [0.0]}
    loader = robocache.Loader(
        dataset,
        batch_size=8,
        delta_timestamps=deltas,
        anchor="observation.state",
        episodes=[1],
        normalize={"observation.imu": "min_max"},
        device=device,
    )
    for batch in itertools.islice(loader, 2):
        for name in deltas:
            assert not to_numpy(batch[name]).any()
            assert to_numpy(batch[f"{name}_is_pad"]).all()


def test_a_nan_of_the_data_stays_in_its_own_entries(tmp_path, device):
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    values[4, 1] = np.nan
    recording = [{"x": (np.arange(10) * 10**8, values), "y": (np.arange(10) * 10**8, np.zeros((10, 1), np.float32))}]
    dataset = write(tmp_path / "cache", recording)
    deltas = {"x": [0.0, 0.05]}
    loader = robocache.Loader(dataset, batch_size=10, delta_timestamps=deltas, anchor="y", shuffle=False, device=device)
    found = np.argwhere(np.isnan(to_numpy(next(iter(loader))["x"]))).tolist()
    assert found == [[3, 1, 1], [4, 0, 1], [4, 1, 1]]


def test_a_constant_feature_is_normalised_to_a_finite_value(tmp_path, device):
    values = np.stack([np.full(50, 3.5), np.arange(50)], 1).astype(np.float32)
    dataset = write(tmp_path / "cache", [{"x": (np.arange(50) * 10**8, values)}])
    for mode in ("mean_std", "min_max", "q01_q99"):
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
        low, high = np.quantile(rows, {"min_max": [0, 1], "q01_q99": [0.01, 0.99]}[mode], axis=0)
        centre, spread = (low + high) / 2, (high - low) / 2
    expected = (seen - centre) / spread
    return got, expected, 2.0**-24 * (np.abs(seen / spread) + np.abs(centre / spread) + np.abs(expected)) * 1.001


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "q01_q99"])
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


def test_a_batch_is_not_written_over_by_the_next(dataset, device):
    loader = robocache.Loader(dataset, batch_size=16, delta_timestamps=EVERY, anchor="action", device=device)
    kept, copies = [], []
    for batch in loader:
        kept.append(batch)
        copies.append({key: to_numpy(value).copy() for key, value in batch.items()})
    for batch, copy in zip(kept, copies, strict=True):
        for key in copy:
            assert_same_bits(to_numpy(batch[key]), copy[key], key)


def test_the_loader_keeps_its_dataset(rng, tmp_path, device):
    recording = record(rng, episodes=5)
    loader = robocache.Loader(
        write(tmp_path / "cache", recording), batch_size=8, delta_timestamps={"action": [0.0]}, device=device
    )
    assert len(anchors_of(loader)) > 8


# ---- Anchors ----


def test_anchors_are_the_ticks_of_the_stream_named(dataset, recording, device):
    for stream in STREAMS:
        loader = robocache.Loader(
            dataset, batch_size=32, delta_timestamps={"action": [0.0]}, anchor=stream, drop_last=False, device=device
        )
        assert collections.Counter(anchors_of(loader)) == collections.Counter(ticks_of(recording, stream))


def test_the_default_anchor_is_the_slowest_stream_asked_for(dataset, recording):
    deltas = {"action": [0.0], "observation.feature": [0.0], "observation.imu": [0.0]}
    loader = robocache.Loader(dataset, batch_size=32, delta_timestamps=deltas, drop_last=False)
    assert sorted(anchors_of(loader)) == ticks_of(recording, "observation.feature")


@pytest.mark.parametrize("hz", [1.0, 10, 29.97, 1000])
def test_anchors_of_a_clock(dataset, recording, device, hz):
    """Ticks k / hz within the span that all the streams cover."""
    deltas = {"action": [0.0], "observation.imu": [0.0]}
    loader = robocache.Loader(
        dataset,
        batch_size=32,
        delta_timestamps=deltas,
        anchor_hz=hz,
        shuffle=False,
        drop_last=False,
        device=device,
    )
    found = collections.defaultdict(list)
    for episode, time_ns in anchors_of(loader):
        found[episode].append(time_ns)
    assert sorted(found) == list(range(len(recording)))
    for episode, times in found.items():
        clocks = [recording[episode][name][0] for name in deltas if name in recording[episode]]
        first, last = max(int(clock[0]) for clock in clocks), min(int(clock[-1]) for clock in clocks)
        assert times[0] == first
        assert last - 1e9 / hz - 1 <= times[-1] <= last
        np.testing.assert_allclose(np.array(times) - first, np.arange(len(times)) * 1e9 / hz, atol=1)


def test_anchors_of_a_clock_give_the_oracles_batches(dataset, recording, device):
    deltas = {"action": [0.0, 0.1], "mode": [0.0], "observation.imu": [-0.01, 0.0]}
    check(dataset, recording, deltas, device=device, anchor_hz=30)


@pytest.mark.parametrize("episodes", [[0], [5, 2], [1, 4, 6], [6]])
def test_episodes_selects(dataset, recording, device, episodes):
    loader = robocache.Loader(
        dataset,
        batch_size=8,
        delta_timestamps={"observation.state": [0.0]},
        episodes=episodes,
        drop_last=False,
        device=device,
    )
    assert sorted(anchors_of(loader)) == ticks_of(recording, "observation.state", sorted(episodes))


def test_episodes_without_the_anchor_stream_have_no_anchors(dataset, recording):
    loader = robocache.Loader(
        dataset, batch_size=8, delta_timestamps={"gripper": [0.0]}, anchor="action", episodes=[4, 5], drop_last=False
    )
    assert {episode for episode, _ in anchors_of(loader)} == {5}


# ---- delta_timestamps said another way ----


def batches_of(loader, count=3):
    return [{key: to_numpy(value) for key, value in batch.items()} for batch in itertools.islice(loader, count)]


def assert_same_batches(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert set(a) == set(b)
        for key in a:
            assert_same_bits(a[key], b[key], key)


@pytest.mark.parametrize("rate_hz", [20, 7.5, 500])
def test_history_ends_and_horizon_starts_at_the_anchor(dataset, rate_hz):
    said = robocache.Loader(
        dataset, batch_size=8, rate_hz=rate_hz, history={"observation.state": 3, "mode": 1}, horizon={"action": 4}
    )
    meant = robocache.Loader(
        dataset,
        batch_size=8,
        delta_timestamps={
            "observation.state": [-2 / rate_hz, -1 / rate_hz, 0.0],
            "mode": [0.0],
            "action": [k / rate_hz for k in range(4)],
        },
    )
    assert_same_batches(batches_of(said), batches_of(meant))


def test_whole_numbers_give_actions_the_horizon_and_the_rest_the_history(dataset):
    loader = robocache.Loader(dataset, batch_size=4, rate_hz=10, history=2, horizon=5)
    batch = next(iter(loader))
    for name, (_, _, shape) in STREAMS.items():
        assert batch[name].shape == (4, 5 if name.split(".")[0] == "action" else 2, *shape)


# ---- The order ----


def small(dataset, **options):
    options = {"batch_size": 16, "delta_timestamps": {"action": [0.0]}, "device": "cpu"} | options
    return robocache.Loader(dataset, **options)


def test_an_epoch_holds_every_anchor_once(dataset, recording, device):
    loader = small(dataset, drop_last=False, device=device)
    wanted = collections.Counter(ticks_of(recording, "action"))
    epochs = [anchors_of(loader) for _ in range(3)]
    for epoch in epochs:
        assert collections.Counter(epoch) == wanted
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 255, 256, 257, 1000, 4099])
def test_the_order_is_a_bijection_for_any_number_of_anchors(tmp_path, device, rows):
    recording = [{"x": (np.arange(rows) * 1000, np.zeros((rows, 1), np.float32))}]
    loader = robocache.Loader(
        write(tmp_path / "cache", recording),
        batch_size=64,
        delta_timestamps={"x": [0.0]},
        drop_last=False,
        device=device,
    )
    for _ in range(3):
        assert sorted(anchors_of(loader)) == ticks_of(recording, "x")


def test_the_order_is_well_mixed(tmp_path):
    rows = 20_000
    recording = [{"x": (np.arange(rows), np.zeros((rows, 1), np.float32))}]
    loader = robocache.Loader(
        write(tmp_path / "cache", recording), batch_size=1000, delta_timestamps={"x": [0.0]}, snap_s=0
    )
    orders = [np.array([t for _, t in anchors_of(loader)]) for _ in range(2)]
    for order in orders:
        # Of a random permutation of n: mean |position - value| is n/3, neighbours are uncorrelated (std 1/sqrt(n)).
        assert abs(np.abs(order - np.arange(rows)).mean() / rows - 1 / 3) < 0.01
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.04
        per_batch = np.sort(order.reshape(-1, 1000), axis=1)
        assert np.diff(per_batch, axis=1).max() < 400  # every batch reaches into every part
    assert abs(np.corrcoef(*orders)[0, 1]) < 0.04


def test_without_shuffle_the_order_is_that_of_the_recording(dataset, recording, device):
    loader = small(dataset, shuffle=False, drop_last=False, device=device)
    assert anchors_of(loader) == ticks_of(recording, "action")
    assert anchors_of(loader) == ticks_of(recording, "action")


def test_the_order_depends_on_seed_and_epoch_alone(dataset, recording):
    first = small(dataset, seed=7, drop_last=False)
    again = small(dataset, seed=7, drop_last=False, delta_timestamps={"mode": [0.0]}, anchor="action", batch_size=5)
    for _ in range(2):
        assert anchors_of(first) == anchors_of(again)
    other = small(dataset, seed=8, drop_last=False)
    assert anchors_of(other) != anchors_of(small(dataset, seed=7, drop_last=False))


def test_same_bytes_on_any_number_of_threads(dataset):
    options = {"batch_size": 64, "delta_timestamps": EVERY, "anchor": "action", "normalize": {"action": "mean_std"}}
    results = []
    try:
        for threads in (1, 2, 5, 16):
            robocache.set_num_threads(threads)
            results.append(batches_of(robocache.Loader(dataset, **options)))
    finally:
        robocache.set_num_threads(os.cpu_count())
    for result in results[1:]:
        assert_same_batches(results[0], result)


def test_same_bytes_on_cpu_and_cuda(dataset, cuda):
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        options = {
            "batch_size": 64,
            "delta_timestamps": EVERY,
            "anchor": "action",
            "dtype": dtype,
            "normalize": dict.fromkeys(FLOAT_STREAMS, "mean_std"),
            "seed": 5,
        }
        one, other = (batches_of(robocache.Loader(dataset, device=device, **options)) for device in ("cpu", cuda))
        assert_same_batches(one, other)


def test_len_and_drop_last(dataset, recording, device):
    anchors = len(ticks_of(recording, "action"))
    for batch_size in (1, 16, anchors - 1, anchors):
        loader = small(dataset, batch_size=batch_size, drop_last=True, device=device)
        assert len(loader) == anchors // batch_size
        sizes = [len(batch["time_ns"]) for batch in loader]
        assert sizes == [batch_size] * (anchors // batch_size)
        loader = small(dataset, batch_size=batch_size, drop_last=False, device=device)
        assert len(loader) == -(-anchors // batch_size)
        sizes = [len(batch["time_ns"]) for batch in loader]
        assert len(sizes) == len(loader)
        assert sum(sizes) == anchors
        assert set(sizes[:-1]) <= {batch_size}


def test_a_last_batch_that_is_not_full_is_the_oracles(dataset, recording, device):
    check(dataset, recording, EVERY, device=device, batches=100, drop_last=False, anchor="gripper", batch_size=50)


# ---- Resuming ----


@pytest.mark.parametrize("done", [0, 1, 3])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_state_resumes_in_the_middle_of_an_epoch(dataset, device, done, epoch):
    options = {"seed": 11, "device": device, "drop_last": False, "batch_size": 40}
    first = small(dataset, **options)
    for _ in range(epoch):
        anchors_of(first)
    iterator = iter(first)
    for _ in range(done):
        next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    rest = batches_of(iterator, 100) + batches_of(first, 100)

    resumed = small(dataset, **options)
    resumed.load_state_dict(state)
    assert_same_batches(batches_of(resumed, 100) + batches_of(resumed, 100), rest)


def test_a_state_is_seed_epoch_and_step(dataset):
    loader = small(dataset, seed=4)
    assert loader.state_dict() == {"seed": 4, "epoch": 0, "step": 0}
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert loader.state_dict() == {"seed": 4, "epoch": 0, "step": 2}
    for _ in iterator:
        pass
    assert loader.state_dict() == {"seed": 4, "epoch": 1, "step": 0}


def test_a_state_brings_its_seed(dataset):
    first, other = small(dataset, seed=1), small(dataset, seed=2)
    other.load_state_dict(first.state_dict())
    assert anchors_of(first) == anchors_of(other)


def test_any_epoch_is_reached_at_once(dataset):
    loader = small(dataset, seed=1)
    loader.load_state_dict({"seed": 1, "epoch": 10**12, "step": 2})
    assert loader.state_dict() == {"seed": 1, "epoch": 10**12, "step": 2}
    assert len(batches_of(loader, 1000)) == len(loader) - 2


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"seed": 1, "epoch": 0},
        {"seed": 1, "epoch": -1, "step": 0},
        {"seed": 1, "epoch": 0, "step": -1},
        {"seed": 1, "epoch": 0, "step": 10**9},
        {"seed": 1, "epoch": "0", "step": 0},
        {"seed": 1, "epoch": 0.5, "step": 0},
        None,
        [1, 0, 0],
    ],
)
def test_a_state_that_fits_no_loader_is_refused(dataset, state):
    loader = small(dataset, seed=3)
    with pytest.raises(robocache.Error, match=r"(?i)state|seed|epoch|step"):
        loader.load_state_dict(state)
    assert loader.state_dict() == {"seed": 3, "epoch": 0, "step": 0}


# ---- Frameworks ----


def test_torch_where_it_is_and_numpy_where_asked(dataset):
    options = {"batch_size": 8, "delta_timestamps": EVERY, "anchor": "action"}
    by_default = next(iter(robocache.Loader(dataset, **options)))
    assert all(isinstance(value, torch.Tensor) for value in by_default.values())
    as_torch = next(iter(robocache.Loader(dataset, framework="torch", **options)))
    as_numpy = next(iter(robocache.Loader(dataset, framework="numpy", **options)))
    assert all(type(value) is np.ndarray for value in as_numpy.values())
    for key, value in as_numpy.items():
        assert_same_bits(value, to_numpy(as_torch[key]), key)
        value[...] = 0  # its own, writable memory


def test_numpy_bfloat16(dataset, recording):
    loader = robocache.Loader(
        dataset, batch_size=8, delta_timestamps={"action": [0.0, 0.011]}, dtype="bfloat16", framework="numpy"
    )
    batch = next(iter(loader))
    assert batch["action"].dtype == ml_dtypes.bfloat16
    expected = expect(dataset, recording, batch, {"action": [0.0, 0.011]}, dtype="bfloat16")
    assert_same_bits(batch["action"], expected["action"])


# ---- CUDA ----


def test_a_batch_is_one_kernel_launch(dataset, cuda):
    loader = robocache.Loader(dataset, batch_size=64, delta_timestamps=EVERY, anchor="action", device=cuda)
    iterator = iter(loader)
    next(iterator)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(4):
            next(iterator)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    if not kernels:
        pytest.skip("the profiler sees no device activity on this machine")
    assert len(kernels) == 4, [event.name for event in kernels]


def test_batches_run_on_the_callers_stream_and_do_not_wait(dataset, recording, cuda):
    loader = robocache.Loader(dataset, batch_size=64, delta_timestamps=EVERY, anchor="action", device=cuda)
    iterator = iter(loader)
    next(iterator)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        batch = next(iterator)
        assert not stream.query(), "next(loader) waited for the device"
    stream.synchronize()
    expected = expect(dataset, recording, batch, EVERY)
    for key in expected:
        assert_same_bits(to_numpy(batch[key]), expected[key], key)


# ---- Errors ----


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"delta_timestamps": {"acton": [0.0]}}, ["acton", "action"]),
        ({"delta_timestamps": {}}, ["delta_timestamps"]),
        ({"delta_timestamps": {"action": []}}, ["delta_timestamps", "action"]),
        ({"delta_timestamps": {"action": [float("nan")]}}, ["delta_timestamps", "action"]),
        ({"delta_timestamps": {"action": [1e12]}}, ["delta_timestamps", "action"]),
        ({"delta_timestamps": {"action": 0.0}}, ["delta_timestamps", "action"]),
        ({"delta_timestamps": None}, ["delta_timestamps"]),
        ({"methods": {"action": "cubicle"}}, ["method", "action", "cubicle", "linear", "previous"]),
        ({"methods": {"action": "pchip"}}, ["method", "action", "pchip", "linear", "previous"]),
        ({"methods": {"nothing": "linear"}}, ["methods", "nothing"]),
        ({"methods": {"mode": "linear"}, "delta_timestamps": {"mode": [0.0]}}, ["mode", "linear", "int16"]),
        ({"normalize": {"action": "zscore"}}, ["normalize", "action", "zscore", "mean_std", "min_max", "q01_q99"]),
        ({"normalize": {"nothing": "mean_std"}}, ["normalize", "nothing"]),
        ({"normalize": {"mode": "mean_std"}, "delta_timestamps": {"mode": [0.0]}}, ["normalize", "mode", "int16"]),
        ({"batch_size": 0}, ["batch_size", "0"]),
        ({"batch_size": -3}, ["batch_size", "-3"]),
        ({"batch_size": 2.5}, ["batch_size"]),
        ({"dtype": "int32"}, ["dtype", "int32"]),
        ({"dtype": "float8"}, ["dtype", "float8"]),
        ({"device": "tpu"}, ["device", "tpu"]),
        ({"anchor": "acton"}, ["anchor", "acton"]),
        ({"anchor": "action", "anchor_hz": 10}, ["anchor", "anchor_hz"]),
        ({"anchor_hz": 0}, ["anchor_hz"]),
        ({"anchor_hz": -1.0}, ["anchor_hz"]),
        ({"anchor_hz": float("nan")}, ["anchor_hz"]),
        ({"rate_hz": 10, "history": 2}, ["rate_hz", "delta_timestamps"]),
        ({"rate_hz": 0, "history": 2, "delta_timestamps": None}, ["rate_hz"]),
        ({"rate_hz": 10, "delta_timestamps": None}, ["history"]),
        ({"rate_hz": 10, "history": 0, "horizon": 2, "delta_timestamps": None}, ["history"]),
        ({"rate_hz": 10, "history": {"acton": 1}, "delta_timestamps": None}, ["history", "acton"]),
        ({"episodes": [7]}, ["episodes", "7"]),
        ({"episodes": [-1]}, ["episodes", "-1"]),
        ({"episodes": []}, ["episodes"]),
        ({"episodes": [4], "anchor": "action"}, ["anchor"]),
        ({"snap_s": -1e-6}, ["snap_s"]),
        ({"snap_s": float("nan")}, ["snap_s"]),
        ({"max_gap_s": -1}, ["max_gap_s"]),
        ({"max_gap_s": float("nan")}, ["max_gap_s"]),
        ({"framework": "jacks"}, ["framework", "jacks", "numpy", "torch"]),
        ({"seed": "one"}, ["seed"]),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused_by_name(dataset, options, parts):
    options = {"batch_size": 8, "delta_timestamps": {"action": [0.0]}} | options
    with pytest.raises(robocache.Error) as caught:
        robocache.Loader(dataset, **options)
    assert isinstance(caught.value, (ValueError, TypeError))
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize("dataset_argument", ["a path", None, 3])
def test_a_loader_needs_a_dataset(dataset_argument):
    with pytest.raises(robocache.ArgumentTypeError, match=r"(?i)dataset"):
        robocache.Loader(dataset_argument, batch_size=8, delta_timestamps={"action": [0.0]})


def test_a_missing_gpu_is_said_plainly(dataset):
    if robocache.check_installation()["cuda"]["reason"] is None:
        pytest.skip("this machine has a GPU")
    with pytest.raises(robocache.Error, match=r"(?i)cuda"):
        robocache.Loader(dataset, batch_size=8, delta_timestamps={"action": [0.0]}, device="cuda")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"delta_timestamps": ["x"]}, "delta_timestamps"),
        ({"delta_timestamps": {"x": "abc"}}, "delta_timestamps"),
        ({"rate_hz": "5", "history": 2}, "rate_hz"),
        ({"rate_hz": 5, "history": 2.0}, "history"),
        ({"delta_timestamps": {"x": [0]}, "episodes": [0.5]}, "episodes"),
        ({"delta_timestamps": {"x": [0]}, "dtype": object()}, "dtype"),
        ({"delta_timestamps": {"x": [0]}, "methods": object()}, "options"),
    ],
)
def test_arguments_of_another_type_are_refused_as_such(options, name, tmp_path):
    with robocache.Writer(tmp_path / "cache") as w, w.episode() as ep:
        ep.append("x", np.arange(4), np.zeros(4))
    dataset = robocache.open(tmp_path / "cache")
    with pytest.raises(robocache.ArgumentTypeError, match=name):
        robocache.Loader(dataset, batch_size=2, **options)
    with pytest.raises(robocache.ArgumentTypeError, match="dataset"):
        robocache.Loader(str(tmp_path / "cache"), batch_size=2, **options)


def test_numbers_of_numpy_are_numbers(tmp_path):
    with robocache.Writer(tmp_path / "cache") as w, w.episode() as ep:
        ep.append("x", np.arange(4), np.zeros(4))
    dataset = robocache.open(tmp_path / "cache")
    robocache.Loader(
        dataset, batch_size=2, delta_timestamps={"x": [0]}, max_gap_s=np.float32(0.5), episodes=np.array([0])
    )
