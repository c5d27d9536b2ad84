"""Windows that count a stream's own rows, against numpy."""

import itertools
import json
import pickle

import numpy as np
import pytest
from recordings import EPOCH_NS, STREAMS, anchors_of, batches_of, loader_of, warnings_with, write
from reference.compare import assert_same_bits, to_numpy

import robocache
from robocache import Anchors, Memory, Window, actions

pytestmark = pytest.mark.filterwarnings("ignore::robocache.LoaderWarning")

SNAP_NS = 1000
OFFSETS = [[0], [-2, -1, 0], list(range(16)), [5, -300, 0, 0, 2, 300, -1], [1, 2, 3, 7], [2**30, -(2**30)]]


def anchor_row(times, target, snap_ns=SNAP_NS):
    """Returns the last row at or before the target, or -1. The target first snaps to the nearest row closer than snap_ns."""
    before = int(np.searchsorted(times, target, "right")) - 1
    before_ns = target - int(times[before]) if before >= 0 else snap_ns
    after_ns = int(times[before + 1]) - target if before + 1 < len(times) else snap_ns
    if before_ns < snap_ns and before_ns <= after_ns:
        return before
    return int(np.searchsorted(times, int(times[before + 1]), "right")) - 1 if after_ns < snap_ns else before


def assert_rows(batch, key, recording, offsets, *, stream=None, offset_ns=0, tolerance_ns=None, causal=False):
    """Compares a key, neither normalised nor converted to another dtype, with numpy."""
    got = {name: to_numpy(batch[key + name]) for name in ("", "_is_pad", "_age")}
    for sample, (episode, time_ns) in enumerate(anchors_of([batch])):
        times, values = recording[episode].get(stream or key, ((), None))
        if not len(times):
            assert got["_is_pad"][sample].all() and not got[""][sample].any()
            assert (got["_age"][sample] == -(2**63)).all()
            continue
        target = time_ns + offset_ns
        row = anchor_row(times, target)
        rows = row + np.array(offsets)
        is_pad = (rows < 0) | (rows >= len(times))
        snapped = times[row] if abs(int(times[row]) - target) < SNAP_NS else target
        if tolerance_ns is not None and (row < 0 or snapped - times[row] > tolerance_ns):
            is_pad[:] = True
        clipped = np.clip(rows, 0, len(times) - 1)
        expected, ages = values[clipped].copy(), target - times[clipped]
        if causal:
            expected[rows < 0], ages[rows < 0] = 0, -(2**63)
        assert_same_bits(got[""][sample], expected, f"{key}, sample {sample}")
        np.testing.assert_array_equal(got["_is_pad"][sample], is_pad)
        np.testing.assert_array_equal(got["_age"][sample], ages)


@pytest.mark.parametrize("anchor", ["gripper", "observation.imu", "action"])
@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_every_stream_in_rows_equals_numpy(dataset, recording, device, anchor, offsets):
    dtypes = {name: None if dtype.kind in "iub" else dtype.name for name, (_, dtype, _) in STREAMS.items()}
    windows = {name: Window(offsets, rows=True, dtype=dtype) for name, dtype in dtypes.items()}
    loader = loader_of(dataset, windows, batch_size=61, anchors=anchor, return_age=True, device=device)
    for batch in itertools.islice(loader, 4):
        for name in STREAMS:
            assert_rows(batch, name, recording, offsets)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"offset_s": 0.011}, {"offset_s": -0.03, "causal": True}], ids=str
)
@pytest.mark.parametrize("tolerance_s", [None, 0, 0.004, 1.0])
@pytest.mark.parametrize("residency", ["auto", "mapped"])
def test_latency_tolerance_and_causality_apply_to_the_anchors_row(
    dataset, recording, device, options, tolerance_s, residency
):
    offsets = [-1, 0, 1, 2]
    loader = loader_of(
        dataset,
        {"action": Window(offsets, rows=True, **options)},
        batch_size=64,
        default=Window(tolerance_s=tolerance_s, method="previous"),
        anchors="observation.imu",
        return_age=True,
        memory=Memory(residency=residency),
        device=device,
    )
    limits = {"offset_ns": round(options.get("offset_s", 0) * 1e9), "causal": options.get("causal", False)}
    limits["tolerance_ns"] = None if tolerance_s is None else round(tolerance_s * 1e9)
    for batch in loader:
        assert_rows(batch, "action", recording, offsets, **limits)


def test_snapping_takes_the_nearest_row_or_the_earlier_of_two(tmp_path, device):
    times = EPOCH_NS + np.array([0, 10_000, 10_800, 10_800, 11_400, 30_000])
    values = np.arange(6, dtype=np.float32)[:, None]
    ticks = EPOCH_NS + np.arange(-2000, 33_000, 100)
    recording = [{"x": (times, values), "tick": (ticks, np.zeros(len(ticks)))}]
    options = {"batch_size": len(ticks), "anchors": "tick", "return_age": True, "device": device}
    loader = loader_of(write(tmp_path / "cache", recording), {"x": Window([0, 1, -1], rows=True)}, **options)
    assert_rows(next(loader), "x", recording, [0, 1, -1])


def test_windows_in_seconds_beside_rows_keep_their_bits(dataset, device):
    seconds = {"action": Window([-0.02, 0.0, 0.013]), "observation.imu": Window([k / 200 for k in range(20)])}
    rows = {"observation.state": Window(range(-1, 5), rows=True), "ticks": Window([0, 3], rows=True)}
    shared = {"batch_size": 40, "anchors": "action", "device": device, "return_age": True}
    separate = [loader_of(dataset, part, **shared) for part in (seconds, rows)]
    combined = loader_of(dataset, seconds | rows, **shared)
    for seconds_batch, rows_batch, combined_batch in zip(*map(batches_of, (*separate, combined)), strict=True):
        for name, array in combined_batch.items():
            assert_same_bits(array, (seconds_batch | rows_batch)[name], name)


def test_normalisation_and_dtypes_equal_those_of_seconds(tmp_path, device):
    """On an even clock rows correspond to seconds."""
    values = np.random.default_rng(3).standard_normal((50, 7)).astype(np.float32)
    dataset = write(tmp_path / "cache", [{"x": (np.arange(50) * 20_000_000, values)}] * 2)
    for options in ({}, {"normalize": "mean_std"}, {"dtype": "bfloat16", "normalize": "min_max"}):
        rows, seconds = Window(range(-3, 30), rows=True, **options), Window.steps(50, history=4, horizon=30, **options)
        (by_rows,), (by_seconds,) = (
            batches_of(loader_of(dataset, {"x": window}, batch_size=100, return_age=True, device=device))
            for window in (rows, seconds)
        )
        is_inside = ~by_seconds["x_is_pad"]
        assert_same_bits(by_rows["x"], by_seconds["x"], "x")
        np.testing.assert_array_equal(by_rows["x_is_pad"], by_seconds["x_is_pad"])
        np.testing.assert_array_equal(
            (by_rows["x_age"] + np.arange(-3, 30) * 20_000_000)[is_inside], by_seconds["x_age"][is_inside]
        )


def test_without_offsets_the_value_is_the_anchors_row(dataset, device):
    without_offsets, with_offset = (
        next(loader_of(dataset, {"action": window}, batch_size=50, anchors="ticks", device=device))
        for window in (Window(rows=True), Window([0], rows=True))
    )
    assert without_offsets["action"].shape == (50, 17)
    assert_same_bits(to_numpy(without_offsets["action"]), to_numpy(with_offset["action"])[:, 0], "action")


def test_a_mixture_counts_the_rows_of_each_source(tmp_path, device):
    recordings = [
        [{"action": (EPOCH_NS + np.arange(40) * 10**9 // hz, np.arange(40, dtype=np.float32)[:, None] + 100 * hz)}] * 2
        for hz in (20, 30)
    ]
    sources = [robocache.Source(write(tmp_path / str(i), recording)) for i, recording in enumerate(recordings)]
    windows = {"action": Window(range(16), rows=True)}
    (batch,) = batches_of(loader_of(sources, windows, batch_size=160, return_age=True, device=device))
    for source, recording in enumerate(recordings):
        samples = {key: value[batch["dataset_index"] == source] for key, value in batch.items()}
        assert len(samples["time_ns"]) == 80
        assert_rows(samples, "action", recording, range(16))
    assert loader_of(sources, windows, anchors=Anchors(edges="drop")).num_anchors == 2 * 2 * (40 - 15)


@pytest.mark.parametrize("offsets", [[0], [1], [3, 5], [-1], [-4, -2], [-2, 3], [-50], [50]], ids=str)
@pytest.mark.parametrize("offset_s", [0.0, 0.017, -0.04])
def test_edges_drop_anchors_with_padding(dataset, recording, offsets, offset_s):
    """Some anchors lie between the rows, and some outside them."""
    shared = {"batch_size": 5000, "shuffle": False}
    for stream, anchor in (("action", "observation.imu"), ("gripper", "observation.state"), ("action", "action")):
        windows = {stream: Window(offsets, rows=True, offset_s=offset_s)}
        padded = batches_of(loader_of(dataset, windows, anchors=anchor, **shared))[0]
        is_complete = ~padded[f"{stream}_is_pad"].any(axis=1)
        dropping = {"anchors": Anchors(stream=anchor, edges="drop"), **shared}
        if not is_complete.any():
            with pytest.raises(robocache.ArgumentError, match="edges"):
                loader_of(dataset, windows, **dropping)
            continue
        dropped = batches_of(loader_of(dataset, windows, **dropping))[0]
        for key in ("time_ns", "episode_index", stream):
            assert_same_bits(dropped[key], padded[key][is_complete], key)


@pytest.mark.parametrize("residency", ["auto", "mapped"])
def test_frames_in_rows(filmed, filmed_dataset, device, residency):
    """A row's frame is the frame of a batch whose anchor is the row."""
    shared = {"shuffle": False, "device": device, "memory": Memory(residency=residency), "batch_size": 100}
    frames = batches_of(loader_of(filmed_dataset, {"top": None}, anchors="top", **shared))[0]["top"]
    windows = {"top": Window([-1, 0, 2], rows=True)}
    loader = loader_of(filmed_dataset, windows, anchors="joint", return_age=True, **shared)
    recording, first_row = [], 0
    for episode in filmed.episodes:
        times = episode["top"][0]
        recording.append({"top": (times, frames[first_row : first_row + len(times)])})
        first_row += len(times)
    for batch in batches_of(loader, None):
        assert_rows(batch, "top", recording, [-1, 0, 2])


def test_converted_keys_and_their_base(tmp_path, device):
    """The base is the row at the anchor."""
    rng = np.random.default_rng(5)
    times = EPOCH_NS + np.cumsum(rng.integers(10**7, 4 * 10**7, 40))
    recording = [{name: (times, rng.standard_normal((40, 3)).astype(np.float32)) for name in ("state", "action")}]
    relative = {"convert": [actions.Relative("joints")], "base": "state"}
    windows = {"state": Window([-2, -1], rows=True), "action": Window(range(5), rows=True, **relative)}
    dataset = write(tmp_path / "cache", recording)
    batch = batches_of(loader_of(dataset, windows, batch_size=40, shuffle=False, device=device))[0]
    rows = np.arange(40)[:, None] + np.arange(5)
    state = recording[0]["state"][1]
    np.testing.assert_array_equal(batch["action_base"], state)
    expected = recording[0]["action"][1][np.minimum(rows, 39)] - state[:, None]
    np.testing.assert_array_equal(batch["action"][rows < 40], expected[rows < 40])
    np.testing.assert_array_equal(batch["action_is_pad"], rows >= 40)


def test_check_tolerance_checks_the_anchors_row(dataset):
    def make_loader(tolerance_s):
        windows = {"gripper": Window([0, 500], rows=True, tolerance_s=tolerance_s)}
        return loader_of(dataset, windows, anchors="observation.imu")

    make_loader(10.0).check_tolerance()
    with pytest.raises(robocache.ArgumentError, match=r"delta_timestamps\['gripper'\].tolerance_s: expected a sample"):
        make_loader(0.001).check_tolerance()


def test_the_spec_with_rows_round_trips(dataset, tmp_path):
    loader = loader_of(dataset, {"action": Window([0, 2], rows=True, offset_s=0.01), "mode": [0.0, 0.1]})
    keys = loader.spec.keys
    assert (keys["action"]["offsets_ns"], keys["action"]["offsets_rows"]) == ([], [0, 2])
    assert (keys["mode"]["offsets_ns"], keys["mode"]["offsets_rows"]) == ([0, 100_000_000], [])
    loader.save_spec(tmp_path / "spec.json")
    assert robocache.Spec.load(tmp_path / "spec.json") == loader.spec
    assert "action [2, 17] float32" in repr(loader.spec)
    for field, value, match in (
        ("offsets_rows", [2**30 + 1], "at most 2\\^30 rows"),
        ("offsets_ns", [0], "goes without offsets_ns"),
        ("max_gap_ns", 5, "goes without offsets_ns and max_gap_ns"),
    ):
        spec = json.loads(loader.spec.to_json())
        spec["keys"][0][field] = value
        with pytest.raises(robocache.ArgumentError, match=match):
            robocache.Spec(json.dumps(spec))


def test_a_default_with_rows_is_refused_and_its_method_is_for_others(dataset):
    with pytest.raises(robocache.ArgumentError, match="default: expected no offsets or rows"):
        loader_of(dataset, {"action": [0]}, default=Window(rows=True))
    windows = {"action": Window([0, 1], rows=True), "gripper": Window([0.0])}
    spec = loader_of(dataset, windows, default=Window(method="nearest", max_gap_s=0.1)).spec
    assert spec.keys["action"]["rows"]["methods"] == [[0, 17, "previous"]]
    assert (spec.keys["action"]["max_gap_ns"], spec.keys["gripper"]["max_gap_ns"]) == (None, 100_000_000)


def test_seconds_that_look_like_rows_are_warned_of(dataset):
    with pytest.warns(robocache.LoaderWarning, match=r"offsets are seconds, not rows, which Window\(..., rows=True\)"):
        loader_of(dataset, {"action": range(16)})
    with pytest.warns(robocache.LoaderWarning, match=r"the offsets are 0 to 900 rows and the episodes last"):
        loader_of(dataset, {"action": Window(range(0, 901, 300), rows=True)})


def test_rows_are_in_pickles_and_the_windows_repr(dataset):
    assert repr(Window(range(3), rows=True)) == "Window(offsets=range(0, 3), rows=True)"
    loader = loader_of(dataset, {"action": Window([0, 1], rows=True)})
    assert pickle.loads(pickle.dumps(loader)).spec == loader.spec


# ---- episodes of several rates ----


def write_rates(path, rates, clock="nominal", gap_s=0.0):
    """Writes 60 rows of `x` an episode on this clock, and of `tick`, 1 ns later, on a recorded one; both pause for gap_s."""
    recording = []
    for rate in rates:
        time_ns = np.rint(np.arange(60) * 1e9 / rate).astype(np.int64)
        time_ns[30:] += round(gap_s * 1e9)
        recording.append({"x": (time_ns, np.arange(60.0)), "tick": (time_ns + 1, np.arange(60.0))})
    return write(path, recording, streams={"x": {"clock": clock}})


@pytest.mark.parametrize(
    ("rates", "gap_s", "message"),
    [
        ((60, 60, 10), 0.0, "1 of 3 episodes have at most 10 rows a second, the fastest 60"),
        ((60, 60, 30, 10), 0.0, "2 of 4 episodes have at most 30 rows a second, the fastest 60"),
        ((60, 60, 50), 0.0, None),
        ((60, 60), 30.0, None),
    ],
)
@pytest.mark.parametrize("episodes", [None, [0, 1]])
def test_rows_of_episodes_of_several_rates_are_warned_of(rates, gap_s, message, episodes, tmp_path):
    dataset = write_rates(tmp_path / "cache", rates, "recorded", gap_s)
    with warnings_with("rows a second", None if episodes else message):
        loader_of(dataset, {"x": Window(range(4), rows=True)}, episodes=episodes)


@pytest.mark.parametrize(("rare_rate", "message"), [(25, "in 1 of 31 episodes, of 25 rows a second"), (20, None)])
def test_offsets_between_the_rows_of_a_rare_nominal_rate_are_warned_of(rare_rate, message, tmp_path):
    """The anchors have another clock; on the stream's own clock these offsets are refused."""
    dataset = write_rates(tmp_path / "cache", [60] * 30 + [rare_rate])
    with warnings_with("rows a second", message):
        loader_of(dataset, {"x": [0, 3 / 60] if message is None else [0, 1 / 60]}, anchors="tick")
