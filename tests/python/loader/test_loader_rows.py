"""Loader: windows that count a stream's own rows, against numpy."""

import json
import pickle
import warnings

import numpy as np
import pytest
from recordings import EPOCH_NS, STREAMS, batches_of, write
from reference.compare import assert_same_bits, to_numpy

import robocache
from robocache import Anchors, Memory, Window, actions

pytestmark = pytest.mark.filterwarnings("ignore::robocache.LoaderWarning")

SNAP_NS = 1000
OFFSETS = [[0], [-2, -1, 0], list(range(16)), [5, -300, 0, 0, 2, 300, -1], [1, 2, 3, 7], [2**30, -(2**30)]]


def anchor_row(times, target, snap_ns=SNAP_NS):
    """The last row at or before the target, or -1. The target first snaps to the nearest row closer than snap_ns."""
    before = int(np.searchsorted(times, target, "right")) - 1
    left = target - int(times[before]) if before >= 0 else snap_ns
    right = int(times[before + 1]) - target if before + 1 < len(times) else snap_ns
    if left < snap_ns and left <= right:
        return before
    return int(np.searchsorted(times, int(times[before + 1]), "right")) - 1 if right < snap_ns else before


def assert_rows(batch, key, recording, offsets, *, stream=None, offset_ns=0, tolerance_ns=None, causal=False):
    """Compares a key, neither normalised nor converted to another dtype, with numpy."""
    got = {name: to_numpy(batch[key + name]) for name in ("", "_is_pad", "_age")}
    for sample, (episode, time_ns) in enumerate(
        zip(to_numpy(batch["episode_index"]).tolist(), to_numpy(batch["time_ns"]).tolist(), strict=True)
    ):
        times, values = recording[episode].get(stream or key, ((), None))
        if not len(times):
            assert got["_is_pad"][sample].all() and not got[""][sample].any()
            assert (got["_age"][sample] == -(2**63)).all()
            continue
        own = anchor_row(times, time_ns + offset_ns)
        rows = own + np.array(offsets)
        is_pad = (rows < 0) | (rows >= len(times))
        snapped = times[own] if abs(int(times[own]) - time_ns - offset_ns) < SNAP_NS else time_ns + offset_ns
        if tolerance_ns is not None and (own < 0 or snapped - times[own] > tolerance_ns):
            is_pad[:] = True
        used = np.clip(rows, 0, len(times) - 1)
        expected, ages = values[used].copy(), time_ns + offset_ns - times[used]
        if causal:
            expected[rows < 0], ages[rows < 0] = 0, -(2**63)
        assert_same_bits(got[""][sample], expected, f"{key}, sample {sample}")
        np.testing.assert_array_equal(got["_is_pad"][sample], is_pad)
        np.testing.assert_array_equal(got["_age"][sample], ages)


@pytest.mark.parametrize("anchor", ["gripper", "observation.imu", "action"])
@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_every_stream_in_rows_equals_numpy(dataset, recording, device, anchor, offsets):
    loader = robocache.Loader(
        dataset,
        batch_size=61,
        delta_timestamps={
            name: Window(offsets, rows=True, dtype=None if dtype.kind in "iub" else dtype.name)
            for name, (_, dtype, _) in STREAMS.items()
        },
        anchors=anchor,
        return_age=True,
        device=device,
    )
    for batch in loader:
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
    loader = robocache.Loader(
        dataset,
        batch_size=64,
        delta_timestamps={"action": Window(offsets, rows=True, **options)},
        default=Window(tolerance_s=tolerance_s, method="previous"),
        anchors="observation.imu",
        return_age=True,
        memory=Memory(residency=residency),
        device=device,
    )
    for batch in loader:
        assert_rows(
            batch,
            "action",
            recording,
            offsets,
            offset_ns=round(options.get("offset_s", 0) * 1e9),
            tolerance_ns=None if tolerance_s is None else round(tolerance_s * 1e9),
            causal=options.get("causal", False),
        )


def test_snapping_takes_the_nearest_row_or_the_earlier_of_two(tmp_path, device):
    times = EPOCH_NS + np.array([0, 10_000, 10_800, 10_800, 11_400, 30_000])
    values = np.arange(6, dtype=np.float32)[:, None]
    ticks = EPOCH_NS + np.arange(-2000, 33_000, 100)
    dataset = write(
        tmp_path / "cache", [{"x": (times, values), "tick": (ticks, np.zeros((len(ticks), 1), np.float32))}]
    )
    loader = robocache.Loader(
        dataset,
        batch_size=len(ticks),
        delta_timestamps={"x": Window([0, 1, -1], rows=True)},
        anchors="tick",
        return_age=True,
        device=device,
    )
    assert_rows(next(loader), "x", [{"x": (times, values)}], [0, 1, -1])


def test_windows_in_seconds_beside_rows_keep_their_bits(dataset, device):
    seconds = {"action": Window([-0.02, 0.0, 0.013]), "observation.imu": Window([k / 200 for k in range(20)])}
    rows = {"observation.state": Window(range(-1, 5), rows=True), "ticks": Window([0, 3], rows=True)}
    shared = {"batch_size": 40, "anchors": "action", "device": device, "return_age": True}
    alone = [robocache.Loader(dataset, delta_timestamps=part, **shared) for part in (seconds, rows)]
    both = robocache.Loader(dataset, delta_timestamps=seconds | rows, **shared)
    for one, other, together in zip(*map(batches_of, (*alone, both)), strict=True):
        for name, array in together.items():
            assert_same_bits(array, (one | other)[name], name)


def test_normalisation_and_dtypes_equal_those_of_seconds(tmp_path, device):
    """On an even clock rows correspond to seconds."""
    values = np.random.default_rng(3).standard_normal((50, 7)).astype(np.float32)
    dataset = write(tmp_path / "cache", [{"x": (np.arange(50) * 20_000_000, values)}] * 2)
    for options in ({}, {"normalize": "mean_std"}, {"dtype": "bfloat16", "normalize": "min_max"}):
        rows, seconds = (
            robocache.Loader(dataset, batch_size=100, delta_timestamps={"x": window}, return_age=True, device=device)
            for window in (
                Window(range(-3, 30), rows=True, **options),
                Window.steps(50, history=4, horizon=30, **options),
            )
        )
        (one,), (other,) = batches_of(rows), batches_of(seconds)
        inside = ~other["x_is_pad"]
        assert_same_bits(one["x"], other["x"], "x")
        np.testing.assert_array_equal(one["x_is_pad"], other["x_is_pad"])
        np.testing.assert_array_equal((one["x_age"] + np.arange(-3, 30) * 20_000_000)[inside], other["x_age"][inside])


def test_without_offsets_the_value_is_the_anchors_row(dataset, device):
    one, other = (
        next(
            robocache.Loader(
                dataset, batch_size=50, delta_timestamps={"action": window}, anchors="ticks", device=device
            )
        )
        for window in (Window(rows=True), Window([0], rows=True))
    )
    assert one["action"].shape == (50, 17)
    assert_same_bits(to_numpy(one["action"]), to_numpy(other["action"])[:, 0], "action")


def test_a_mixture_counts_the_rows_of_each_source(tmp_path, device):
    recordings = [
        [{"action": (EPOCH_NS + np.arange(40) * 10**9 // hz, np.arange(40, dtype=np.float32)[:, None] + 100 * hz)}] * 2
        for hz in (20, 30)
    ]
    sources = [robocache.Source(write(tmp_path / str(i), recording)) for i, recording in enumerate(recordings)]
    loader = robocache.Loader(
        sources,
        batch_size=160,
        delta_timestamps={"action": Window(range(16), rows=True)},
        return_age=True,
        device=device,
    )
    batch = {key: to_numpy(value) for key, value in next(loader).items()}
    for source, recording in enumerate(recordings):
        of_source = {key: value[batch["dataset_index"] == source] for key, value in batch.items()}
        assert len(of_source["time_ns"]) == 80
        assert_rows(of_source, "action", recording, range(16))
    assert robocache.Loader(
        sources, batch_size=8, delta_timestamps={"action": Window(range(16), rows=True)}, anchors=Anchors(edges="drop")
    ).num_anchors == 2 * 2 * (40 - 15)


@pytest.mark.parametrize("offsets", [[0], [1], [3, 5], [-1], [-4, -2], [-2, 3], [-50], [50]], ids=str)
@pytest.mark.parametrize("offset_s", [0.0, 0.017, -0.04])
def test_edges_drop_anchors_with_padding(dataset, recording, offsets, offset_s):
    """Anchors also lie between the rows and outside."""
    shared = {"batch_size": 5000, "shuffle": False}
    for stream, anchor in (("action", "observation.imu"), ("gripper", "observation.state"), ("action", "action")):
        windows = {stream: Window(offsets, rows=True, offset_s=offset_s)}
        padded = batches_of(robocache.Loader(dataset, delta_timestamps=windows, anchors=anchor, **shared))[0]
        whole = ~padded[f"{stream}_is_pad"].any(axis=1)
        kept = {"delta_timestamps": windows, "anchors": Anchors(stream=anchor, edges="drop")}
        if not whole.any():
            with pytest.raises(robocache.ArgumentError, match="edges"):
                robocache.Loader(dataset, **kept, **shared)
            continue
        dropped = batches_of(robocache.Loader(dataset, **kept, **shared))[0]
        for key in ("time_ns", "episode_index", stream):
            assert_same_bits(dropped[key], padded[key][whole], key)


@pytest.mark.parametrize("residency", ["auto", "mapped"])
def test_frames_in_rows(filmed, filmed_dataset, device, residency):
    """Compared with the batch's frame at each row's stamp."""
    shared = {"shuffle": False, "device": device, "memory": Memory(residency=residency)}
    frames = batches_of(
        robocache.Loader(filmed_dataset, batch_size=100, delta_timestamps={"top": [0.0]}, anchors="top", **shared)
    )[0]["top"][:, 0]
    loader = robocache.Loader(
        filmed_dataset,
        batch_size=100,
        delta_timestamps={"top": Window([-1, 0, 2], rows=True)},
        anchors="joint",
        return_age=True,
        **shared,
    )
    stamped, first = [], 0
    for episode in filmed.episodes:
        times = episode["top"][0]
        stamped.append({"top": (times, frames[first : first + len(times)])})
        first += len(times)
    for batch in batches_of(loader, None):
        assert_rows(batch, "top", stamped, [-1, 0, 2])


def test_converted_keys_and_their_base(tmp_path, device):
    """The base is the row at the anchor."""
    rng = np.random.default_rng(5)
    times = EPOCH_NS + np.cumsum(rng.integers(10**7, 4 * 10**7, 40))
    recording = [{name: (times, rng.standard_normal((40, 3)).astype(np.float32)) for name in ("state", "action")}]
    loader = robocache.Loader(
        write(tmp_path / "cache", recording),
        batch_size=40,
        delta_timestamps={
            "state": Window([-2, -1], rows=True),
            "action": Window(range(5), rows=True, convert=[actions.Relative("joints")], base="state"),
        },
        shuffle=False,
        device=device,
    )
    batch = batches_of(loader)[0]
    rows = np.arange(40)[:, None] + np.arange(5)
    state = recording[0]["state"][1]
    np.testing.assert_array_equal(batch["action_base"], state)
    expected = recording[0]["action"][1][np.minimum(rows, 39)] - state[:, None]
    np.testing.assert_array_equal(batch["action"][rows < 40], expected[rows < 40])
    np.testing.assert_array_equal(batch["action_is_pad"], rows >= 40)


def test_check_tolerance_checks_the_anchors_row(dataset):
    def make(tolerance_s):
        windows = {"gripper": Window([0, 500], rows=True, tolerance_s=tolerance_s)}
        return robocache.Loader(dataset, batch_size=8, delta_timestamps=windows, anchors="observation.imu")

    make(10.0).check_tolerance()
    with pytest.raises(robocache.ArgumentError, match=r"delta_timestamps\['gripper'\].tolerance_s: expected a sample"):
        make(0.001).check_tolerance()


def test_the_spec_with_rows_round_trips(dataset, tmp_path):
    loader = robocache.Loader(
        dataset, batch_size=8, delta_timestamps={"action": Window([0, 2], rows=True, offset_s=0.01), "mode": [0.0, 0.1]}
    )
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


@pytest.mark.parametrize(
    ("window", "match"),
    [
        (Window([0, 0.5], rows=True), r"delta_timestamps\['action'\]: expected whole numbers of rows.*got 0.5"),
        (Window([float("nan")], rows=True), "expected whole numbers of rows"),
        (Window([2**30 + 1], rows=True), "at most 2\\^30"),
        (Window([0], rows=True, method="linear"), r"\.method: expected none with rows=True.*got 'linear'"),
        (Window([0], rows=True, method="nearest"), r"\.method: expected none with rows=True"),
        (Window([0], rows=True, method=[(slice(0, 2), "linear")]), r"\.method: expected none with rows=True.*slices"),
        (Window([0], rows=True, max_gap_s=0.1), r"\.max_gap_s: expected none with rows=True.*tolerance_s"),
        (Window([0], rows=True, tolerance_s=-1), r"\.tolerance_s: expected 0 or more"),
        (Window([0], rows=1), r"\.rows: expected True or False"),
        (Window([], rows=True), "expected at least one offset"),
    ],
    ids=str,
)
def test_invalid_rows_are_refused(dataset, window, match):
    with pytest.raises((robocache.ArgumentError, robocache.ArgumentTypeError), match=match):
        robocache.Loader(dataset, batch_size=8, delta_timestamps={"action": window})


def test_a_default_with_rows_is_refused_and_its_method_is_for_others(dataset):
    with pytest.raises(robocache.ArgumentError, match="default: expected no offsets or rows"):
        robocache.Loader(dataset, batch_size=8, delta_timestamps={"action": [0]}, default=Window(rows=True))
    windows = {"action": Window([0, 1], rows=True), "gripper": Window([0.0])}
    spec = robocache.Loader(
        dataset, batch_size=8, delta_timestamps=windows, default=Window(method="nearest", max_gap_s=0.1)
    ).spec
    assert spec.keys["action"]["rows"]["methods"] == [[0, 17, "previous"]]
    assert (spec.keys["action"]["max_gap_ns"], spec.keys["gripper"]["max_gap_ns"]) == (None, 100_000_000)


def test_seconds_that_look_like_rows_are_warned_of(dataset):
    with pytest.warns(robocache.LoaderWarning, match=r"offsets are seconds, not rows, which Window\(..., rows=True\)"):
        robocache.Loader(dataset, batch_size=8, delta_timestamps={"action": range(16)})
    with pytest.warns(robocache.LoaderWarning, match=r"the offsets are 0 to 900 rows and the episodes last"):
        robocache.Loader(dataset, batch_size=8, delta_timestamps={"action": Window(range(0, 901, 300), rows=True)})


def test_rows_are_in_pickles_and_the_windows_repr(dataset):
    assert repr(Window(range(3), rows=True)) == "Window(offsets=range(0, 3), rows=True)"
    loader = robocache.Loader(dataset, batch_size=8, delta_timestamps={"action": Window([0, 1], rows=True)})
    again = pickle.loads(pickle.dumps(loader))
    assert again.spec == loader.spec


# ---- episodes of several rates ----


def write_rates(folder, rates, clock="nominal", gap_s=0.0):
    with robocache.Writer(folder) as writer:
        writer.stream("x", clock=clock)
        for rate in rates:
            time_ns = np.rint(np.arange(60) * 1e9 / rate).astype(np.int64)
            time_ns[30:] += round(gap_s * 1e9)
            with writer.episode() as episode:
                episode.append("x", time_ns, np.arange(60.0))
    return robocache.open(folder)


def rate_notes(dataset, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        robocache.Loader(dataset, batch_size=2, device="cpu", framework="numpy", **options)
    return [str(warning.message) for warning in caught if "rows a second" in str(warning.message)]


@pytest.mark.parametrize(
    ("rates", "gap_s", "words"),
    [
        ((60, 60, 10), 0.0, "1 of 3 episodes have 10 rows a second or little more, the fastest 60"),
        ((60, 60, 50), 0.0, None),
        ((60, 60), 30.0, None),
    ],
)
@pytest.mark.parametrize("episodes", [None, [0, 1]])
def test_rows_of_episodes_of_several_rates_are_warned_of(rates, gap_s, words, episodes, tmp_path):
    dataset = write_rates(tmp_path / "cache", rates, "recorded")
    if gap_s:
        dataset = write_rates(tmp_path / "gaps", rates, "recorded", gap_s)
    found = rate_notes(dataset, delta_timestamps={"x": robocache.Window(range(4), rows=True)}, episodes=episodes)
    assert len(found) == (words is not None and episodes is None)
    assert all(words in one for one in found)


@pytest.mark.parametrize(("rare", "words"), [(25, "in 1 of 31 episodes, of 25 rows a second"), (20, None)])
def test_offsets_between_the_rows_of_a_rare_nominal_rate_are_warned_of(rare, words, tmp_path):
    """The rate is too rare for the anchors that the loader checks."""
    dataset = write_rates(tmp_path / "cache", [60] * 30 + [rare])
    offsets = [0, 3 / 60] if words is None else [0, 1 / 60]
    try:
        found = rate_notes(dataset, delta_timestamps={"x": offsets})
    except robocache.ArgumentError:  # a checked anchor had this rate
        return
    assert len(found) == (words is not None) and all(words in one for one in found)
