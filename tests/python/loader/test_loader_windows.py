"""A Loader's latency, causality, tolerance, ages, edges and given anchors, against the oracle and by brute force."""

import itertools
import re

import numpy as np
import pytest
import torch
from loaders_by_keywords import loader_by_keywords
from recordings import (
    ALL_WINDOWS,
    EPOCH_NS,
    FLOAT_STREAMS,
    STREAMS,
    anchors_of,
    assert_same_batches,
    batches_of,
    check,
    no_warning,
    oracle_batch,
    refused,
    small_loader,
    ticks_of,
    warnings_with,
    write,
)
from reference.compare import to_numpy
from reference.window_batch import assert_batch, window_batch
from soak import rounds

import robocache

INT64_MIN = -(2**63)
STEP_METHODS = ["nearest", "previous", "next"]
CURVE_METHODS = ["linear", "pchip", "akima", "angle"]


# ---- Options of windows, alone and together ----


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"offset_s": 0.0131},
        {"offset_s": -0.0131},
        {"offset_s": {"action": -0.04, "observation.imu": 0.0021, "mode": 0.3, "button": 1e-9}},
        {"causal": True},
        {"causal": True, "max_gap_s": 0.015},
        {"causal": {"action": True, "mode": False, "observation.imu": True}, "method": {"observation.imu": "pchip"}},
        {"causal": True, "method": "nearest", "tolerance_s": 0.012},
        {"max_gap_s": {"action": 0.021, "mode": 0.3, "observation.feature": 0}},
        *({"method": method, "tolerance_s": 0.004} for method in STEP_METHODS),
        *({"method": method, "tolerance_s": 0} for method in STEP_METHODS),
        {"tolerance_s": {"mode": 0.05, "action": 0.003, "ticks": 0}, "method": {"action": "nearest", "ticks": "next"}},
        {"method": "previous", "tolerance_s": 0.03, "max_gap_s": 0.03, "offset_s": 0.02, "causal": True},
        {"method": {"action": [(slice(0, 7), "pose"), (slice(7, 11), "slerp"), (slice(12, 14), "previous")]}},
        {
            "method": {"action": [(slice(3, 7), "slerp")]},
            "max_gap_s": 0.03,
            "offset_s": 0.004,
            "causal": {"mode": True},
        },
    ],
    ids=str,
)
def test_each_option_equals_the_oracle(dataset, recording, device, options):
    options = {"return_age": True, "anchor": "observation.state", "batch_size": 40, **options}
    check(dataset, recording, ALL_WINDOWS, device=device, batches=1, **options)


def random_options(rng):
    """Returns random options: a value for each stream, or one for all."""
    is_one_method = rng.random() < 0.3
    methods = rng.choice(STEP_METHODS) if is_one_method else {}
    options = {name: {} for name in ("offset_s", "causal", "tolerance_s", "max_gap_s")}
    for name in STREAMS:
        kinds = [*STEP_METHODS, *(CURVE_METHODS if name in FLOAT_STREAMS else [])]
        method = methods if is_one_method else rng.choice(kinds)
        if not is_one_method:
            methods[name] = str(method)
        if method != "next" and rng.random() < 0.5:
            options["causal"][name] = bool(rng.random() < 0.7)
        if method in STEP_METHODS and rng.random() < 0.5:
            options["tolerance_s"][name] = float(rng.choice([0, 0.003, 0.011, 0.05]))
        if rng.random() < 0.5:
            options["offset_s"][name] = float(rng.choice([-0.02, 0.0, 0.0073, 0.5]))
        if rng.random() < 0.5:
            options["max_gap_s"][name] = float(rng.choice([0.006, 0.022, 0.2]))
    return {
        **options,
        "method": str(methods) if is_one_method else methods,
        "snap_s": float(rng.choice([0, 1e-6, 0.002, 0.03])),
        "dtype": str(rng.choice(["float32", "float64", "float16", "bfloat16"])),
        "normalize": {name: "mean_std" for name in FLOAT_STREAMS if rng.random() < 0.3},
        "return_age": bool(rng.random() < 0.8),
        "anchor": str(rng.choice(["observation.state", "action", "ticks"])),
        "seed": int(rng.integers(1000)),
    }


@pytest.mark.parametrize("number", range(rounds(8)))
def test_all_options_together_equal_the_oracle(dataset, recording, device, number):
    rng = np.random.default_rng(number)
    deltas = {
        name: None if rng.random() < 0.2 else rng.choice([-0.3, -0.02, 0.0, 0.0, 0.0099, 0.02, 0.4], 4).tolist()
        for name in STREAMS
    }
    check(dataset, recording, deltas, device=device, batches=1, batch_size=30, **random_options(rng))


def test_none_is_the_anchor_without_a_step_axis(dataset, recording, device):
    deltas = {"action": None, "observation.feature": None, "button": None, "observation.imu": [-0.01, 0.0]}
    options = {"anchor": "action", "return_age": True, "device": device}
    batch = next(check(dataset, recording, deltas, **options))
    assert batch["action"].shape == (24, 17)
    assert batch["observation.feature"].shape == (24, 2, 3)
    for key in ("button", "action_is_pad", "action_age"):
        assert batch[key].shape == (24,)
    one_step = {name: [0.0] if offsets is None else offsets for name, offsets in deltas.items()}
    one_step_batch = next(  # the third batch: check() took two
        itertools.islice(loader_by_keywords(dataset, batch_size=24, delta_timestamps=one_step, **options), 2, 3)
    )
    for name in ("action", "observation.feature", "button"):
        for suffix in ("", "_is_pad", "_age"):
            np.testing.assert_array_equal(to_numpy(batch[name + suffix]), to_numpy(one_step_batch[name + suffix])[:, 0])


# ---- Latency, causality, tolerance and age by hand ----


def rows_at(time_ns):
    """Returns rows 0, 1, 2, ... at these times."""
    return np.array(time_ns, np.int64), np.arange(len(time_ns), dtype=np.float32)


def batch_at_anchors(path, device, recording, windows, **options):
    """Returns the batch of all anchors in order, with ages. The anchors are the rows of the stream `at`."""
    options = {"anchor": "at", "return_age": True, "shuffle": False, "device": device} | options
    count = sum(len(rows["at"][0]) for rows in recording)
    return next(loader_by_keywords(write(path, recording), batch_size=count, delta_timestamps=windows, **options))


def take_rows(tmp_path, device, rows_ns, anchors_ns, **options):
    """Rows 0, 1, 2, ... are at `rows_ns`. Returns [values, is_pad, age] at each of `anchors_ns`."""
    recording = [{"x": rows_at(EPOCH_NS + np.array(rows_ns)), "at": rows_at(EPOCH_NS + np.array(anchors_ns))}]
    batch = batch_at_anchors(tmp_path / "cache", device, recording, {"x": [0.0]}, **{"method": "previous"} | options)
    return [to_numpy(batch[key]).tolist() for key in ("x", "x_is_pad", "x_age")]


def test_rule_33_age_is_the_target_less_the_sample_used(tmp_path, device):
    # The anchors lie before the first row, on a row, after it, a little after and before one, and after the last.
    anchors = [400, 1000, 1400, 2003, 2997, 3500]
    values, is_pad, age = take_rows(tmp_path, device, [1000, 2000, 3000], anchors, snap_s=4e-9)
    assert values == [[0], [0], [0], [1], [2], [2]]
    assert is_pad == [[True], [False], [False], [False], [False], [True]]
    assert age == [[-600], [0], [400], [3], [-3], [500]]


@pytest.mark.parametrize(
    ("method", "value", "age"),
    [("previous", 0, 400), ("nearest", 0, 400), ("next", 1, -600), ("linear", 0.4, 400), ("akima", None, 400)],
)
def test_rule_33_age_of_every_kind_of_method(tmp_path, device, method, value, age):
    values, _, ages = take_rows(tmp_path, device, [1000, 2000, 3000], [1400], method=method, snap_s=0)
    assert ages == [[age]]
    if value is not None:
        assert values == [[np.float32(value)]]


def test_rule_33_age_without_a_sample_is_the_least_int64(tmp_path, device):
    values, is_pad, age = take_rows(tmp_path, device, [1000, 2000], [999, 1000, 1001], causal=True, snap_s=0)
    assert (values, is_pad, age) == ([[0], [0], [0]], [[True], [False], [False]], [[INT64_MIN], [0], [1]])
    recording = [{"at": rows_at([5]), "b": rows_at([7])}, {"at": rows_at([6])}]
    batch = batch_at_anchors(tmp_path / "lacking", device, recording, {"b": [0.0, 1e-9]})
    assert to_numpy(batch["b_age"]).tolist() == [[-2, -1], [INT64_MIN, INT64_MIN]]


def test_rule_23_ages_beyond_int64_saturate(tmp_path, device):
    largest = 2**63 - 1
    recording = [{"early": rows_at([INT64_MIN]), "late": rows_at([largest]), "at": rows_at([INT64_MIN, 0, largest])}]
    batch = batch_at_anchors(tmp_path / "cache", device, recording, {"early": None, "late": None})
    assert to_numpy(batch["early_age"]).tolist() == [0, largest, largest]
    assert to_numpy(batch["late_age"]).tolist() == [-largest, -largest, 0]


def test_rule_33_latency_moves_targets_not_anchors(tmp_path, device):
    # A row stamped t was measured at t - 300 ns, so the row stamped 1300 was measured at 1000.
    values, is_pad, age = take_rows(tmp_path, device, [1000, 1300, 2300], [1000, 2000, 2001], offset_s=300e-9, snap_s=0)
    assert values == [[1], [2], [2]]
    assert age == [[0], [0], [1]]
    assert is_pad == [[False], [False], [True]]
    values, _, _ = take_rows(tmp_path / "back", device, [1000, 1300, 2300], [1300], offset_s={"x": -300e-9}, snap_s=0)
    assert values == [[0]]


def test_rule_33_a_sample_at_the_tolerance_is_valid(tmp_path, device):
    anchors = [1299, 1300, 1301, 1699, 1700]
    for method, padded in {
        "previous": [False, False, True, True, True],
        "nearest": [False, False, True, True, False],
        "next": [True, True, True, True, False],
    }.items():
        options = {"method": method, "tolerance_s": 300e-9, "snap_s": 0}
        values, is_pad, age = take_rows(tmp_path / method, device, [1000, 2000], anchors, **options)
        assert [row[0] for row in is_pad] == padded
        assert [[abs(x[0]) > 300] for x in age] == is_pad
        assert [x[0] for x in values] == [float(a[0] < 0) for a in age]  # padded steps keep the value


def test_causal_uses_no_later_rows(dataset, recording, device):
    options = {"device": device, "causal": True, "snap_s": 0, "anchor": "mode", "batch_size": 20, "return_age": True}
    for method in ["linear", "nearest", "previous", "pchip"]:
        by_method = {"method": dict.fromkeys(FLOAT_STREAMS, method)}
        deltas = {name: [-0.1, 0.0, 0.1] for name in FLOAT_STREAMS}
        loader = check(dataset, recording, deltas, **options, **by_method)
        for batch in loader:
            for name in FLOAT_STREAMS:
                age = to_numpy(batch[name + "_age"])
                assert ((age >= 0) | (age == INT64_MIN)).all()


# ---- Nominal clocks ----


@pytest.fixture(scope="module")
def nominal(tmp_path_factory):
    """state and action share a nominal clock of 15 fps; arm has a recorded clock; slow has its own nominal clock."""
    time_ns = np.round(np.arange(60) * 1e9 / 15).astype(np.int64)
    values = np.arange(60, dtype=np.float32)[:, None]
    rows = {"state": (time_ns, values), "action": (time_ns, values), "count": (time_ns, np.arange(60))}
    rows |= {"arm": (time_ns + 1, values), "slow": (time_ns[::3], values[::3])}
    return write(tmp_path_factory.mktemp("nominal") / "cache", [rows] * 2, ["state", "action", "count", "slow"])


def loader_on_clock(nominal, device, deltas, **options):
    return loader_by_keywords(
        nominal, batch_size=8, delta_timestamps=deltas, device=device, **{"anchor": "state", **options}
    )


@pytest.mark.parametrize("key", ["action", "state", "count"])
def test_rule_33_offsets_off_a_nominal_clock_are_refused(nominal, device, key):
    for offsets in ([k / 50 for k in range(16)], robocache.Window.steps(50, horizon=4)):
        with refused(f"delta_timestamps['{key}']", "0.02", "0.0666", "nominal", "method="):
            loader_on_clock(nominal, device, {key: offsets})


def test_rule_33_offsets_on_a_nominal_clock_are_rows(nominal, device):
    deltas = {"action": [k / 15 for k in range(-8, 9)], "count": [1 / 15 + 0.9e-4, -1 / 15 - 0.9e-4, 0.0]}
    batch = next(loader_on_clock(nominal, device, deltas, shuffle=False, edges="drop", snap_s=2e-4))
    rows = to_numpy(batch["count"])[:, 2]
    np.testing.assert_array_equal(to_numpy(batch["action"])[..., 0], rows[:, None] + np.arange(-8, 9))
    np.testing.assert_array_equal(to_numpy(batch["count"]), rows[:, None] + [1, -1, 0])
    with pytest.raises(robocache.ArgumentError, match="nominal"):
        loader_on_clock(nominal, device, {"count": [1 / 15 + 1.1e-4]})


@pytest.mark.parametrize(
    ("deltas", "options"),
    [
        ({"action": [0.02]}, {"method": "linear"}),
        ({"action": [0.02]}, {"method": {"action": "previous"}}),
        ({"action": [0.02]}, {"method": {"action": [(slice(0, 1), "nearest")]}}),
        ({"action": [0.02]}, {"anchor_hz": 15, "anchor": None, "method": "nearest"}),
        ({"action": [0.02]}, {"anchor": "slow", "method": {"action": "linear"}}),
        ({"action": [0.0]}, {"offset_s": 0.02, "method": "linear"}),
        ({"action": [0.0]}, {"offset_s": 0.02, "causal": True}),
        ({"count": [0.0]}, {"offset_s": 0.02}),
        ({"arm": [0.02]}, {}),
        ({"count": [0.02]}, {"anchor_hz": 50, "anchor": None}),
    ],
    ids=str,
)
def test_rule_33_values_between_rows_need_a_method(nominal, device, deltas, options):
    next(loader_on_clock(nominal, device, deltas, **options))


def test_rule_33_a_method_for_another_stream_does_not_count(nominal, device):
    with pytest.raises(robocache.ArgumentError, match=r"delta_timestamps\['action'\].*nominal"):
        loader_on_clock(nominal, device, {"action": [0.02], "state": [0.0]}, method={"state": "nearest"})


def test_rule_33_a_nominal_clock_of_one_source_is_enough(nominal, dataset, device):
    sources = [robocache.Source(dataset, rename={"observation.imu": "arm"}), robocache.Source(nominal, anchor="state")]
    deltas = {"action": [0.0], "arm": [0.02]}
    loader_on_clock(sources, device, deltas, anchor=None, pad_features=True)
    with pytest.raises(robocache.ArgumentError, match=r"delta_timestamps\['action'\].*nominal"):
        loader_on_clock(sources, device, deltas | {"action": [0.02]}, anchor=None, pad_features=True)


# ---- Edges ----


def anchors_at_rate(recording, streams, hz):
    """Returns the anchors of a rate in each episode, from the latest first row of the streams to the earliest last row."""
    ticks = []
    for episode, rows in enumerate(recording):
        clocks = [rows[name][0] for name in streams if name in rows]
        first, last = max(int(clock[0]) for clock in clocks), min(int(clock[-1]) for clock in clocks)
        for k in itertools.count():
            stamp = first + round(k * (1e9 / hz))
            if stamp > last:
                break
            ticks.append((episode, stamp))
    return ticks


def expected_anchors(recording, ticks, deltas, *, edges="pad", drop_n_last=0, offset_s=0.0, snap_s=1e-6):
    """Returns the anchors of each episode that are drawn, found by checking every target of every stream."""
    snap_ns = round(snap_s * 1e9)

    def is_complete(episode, anchor):
        for name, requested in deltas.items():
            if name not in recording[episode]:
                return False
            time_ns = recording[episode][name][0]
            for delta in requested:
                target = anchor + round(delta * 1e9) + round(offset_s * 1e9)
                first, last = int(time_ns[0]), int(time_ns[-1])
                if not (first <= target <= last or min(abs(target - first), abs(target - last)) < snap_ns):
                    return False
        return True

    result = []
    for episode in dict.fromkeys(episode for episode, _ in ticks):
        complete = [tick for tick in ticks if tick[0] == episode and (edges == "pad" or is_complete(*tick))]
        result += complete[: max(len(complete) - drop_n_last, 0)]
    return result


WINDOWS = {
    "observation.state": [-0.04, 0.0],
    "action": [0.1, -0.02, 0.0, 0.3],
    "observation.imu": [-0.0101],
}


@pytest.mark.parametrize("drop_n_last", [0, 1, 7, 40])
@pytest.mark.parametrize("edges", ["pad", "drop"])
@pytest.mark.parametrize("anchor", ["action", "gripper", "ticks", 17.3])
def test_rule_34_drawn_anchors_equal_brute_force(dataset, recording, device, anchor, edges, drop_n_last):
    if isinstance(anchor, float):
        options, ticks = {"anchor_hz": anchor}, anchors_at_rate(recording, WINDOWS, anchor)
    else:
        options, ticks = {"anchor": anchor}, ticks_of(recording, anchor)
    expected = expected_anchors(recording, ticks, WINDOWS, edges=edges, drop_n_last=drop_n_last)
    options |= {"edges": edges, "drop_n_last": drop_n_last, "delta_timestamps": WINDOWS, "device": device}
    if not expected:
        with pytest.raises(robocache.ArgumentError, match=r"anchor: .*edges, drop_n_last"):
            small_loader(dataset, shuffle=False, **options)
        return
    loader = small_loader(dataset, shuffle=False, **options)
    assert anchors_of(loader) == expected
    assert loader.num_anchors == loader.num_samples == len(expected)
    assert sorted(anchors_of(small_loader(dataset, **options))) == expected
    if edges == "drop":
        for batch in loader:
            assert not any(to_numpy(batch[name + "_is_pad"]).any() for name in WINDOWS)


@pytest.mark.parametrize("offset", [-0.03, 0.05])
@pytest.mark.parametrize("snap_s", [0, 1e-6, 0.011])
def test_rule_34_edges_include_latency_and_snap(dataset, recording, device, offset, snap_s):
    options = {"edges": "drop", "drop_n_last": 2, "offset_s": offset, "snap_s": snap_s}
    expected = expected_anchors(recording, ticks_of(recording, "action"), WINDOWS, **options)
    loader = small_loader(dataset, delta_timestamps=WINDOWS, anchor="action", shuffle=False, device=device, **options)
    assert anchors_of(loader) == expected


@pytest.mark.parametrize("off_ns", [-1001, -1000, -999, -1, 0, 1, 999, 1000, 1001])
def test_rule_34_edges_snap_to_the_nanosecond(tmp_path, device, off_ns):
    """Anchors are at 1 to 4 s, rows at 1 s + off_ns to 4 s - off_ns: windows at the ends are complete if they snap to rows."""
    anchors = np.arange(1, 5) * 10**9
    recording = [{"at": rows_at(anchors), "x": rows_at([10**9 + off_ns, 2 * 10**9, 4 * 10**9 - off_ns])}]
    batch = batch_at_anchors(tmp_path / "cache", device, recording, {"x": None}, edges="drop")
    assert anchors_of([batch]) == [(0, int(t)) for t in (anchors if off_ns < 1000 else anchors[1:3])]


def test_rule_34_episodes_keep_their_order_and_drop_at_each_end(dataset, recording, device):
    episodes = [5, 0, 3, 5]
    edges = {"edges": "drop", "drop_n_last": 3}
    ticks = [ticks_of(recording, "action", [episode]) for episode in episodes]
    expected = [anchor for part in ticks for anchor in expected_anchors(recording, part, WINDOWS, **edges)]
    options = {"episodes": episodes, "delta_timestamps": WINDOWS, "anchor": "action", **edges}
    assert anchors_of(small_loader(dataset, shuffle=False, device=device, **options)) == expected


# ---- check_tolerance ----


def first_too_far(recording, ticks, deltas, tolerance_s, method):
    """Returns (stream, episode, target, distance) of the first sample beyond the tolerance, or None."""
    for name, requested in deltas.items():
        for episode, anchor in ticks:
            if name not in recording[episode]:
                continue
            times = [int(t) for t in recording[episode][name][0]]
            for delta in requested:
                target = anchor + round(delta * 1e9)
                if not times[0] <= target <= times[-1]:
                    continue
                before, after = max(t for t in times if t <= target), min(t for t in times if t >= target)
                time_used = {
                    "previous": before,
                    "next": after,
                    "nearest": before if target - before <= after - target else after,
                }[method]
                if abs(time_used - target) > round(tolerance_s * 1e9):
                    return name, episode, target, abs(time_used - target)
    return None


@pytest.mark.parametrize("method", STEP_METHODS)
@pytest.mark.parametrize("tolerance_s", [0.0, 0.004, 0.019, 0.04, 10.0])
def test_check_tolerance_names_the_first(dataset, recording, device, method, tolerance_s):
    deltas = {"observation.imu": [-0.01, 0.0], "observation.state": [0.0, 0.033]}
    ticks = ticks_of(recording, "action")
    options = {"method": method, "tolerance_s": tolerance_s, "snap_s": 0, "delta_timestamps": deltas}
    loader = small_loader(dataset, anchor="action", device=device, **options)
    first = first_too_far(recording, ticks, deltas, tolerance_s, method)
    assert (first is None) == (tolerance_s > 1)
    if first is None:
        loader.check_tolerance()
        return
    name, episode, target, distance = first
    with pytest.raises(robocache.ArgumentError) as caught:
        loader.check_tolerance()
    message = str(caught.value)
    assert f"delta_timestamps['{name}'].tolerance_s" in message
    assert f"in episode {episode} at {target} ns" in message
    distance_s = float(re.search(r"got one ([^ ]+) s away", message).group(1))
    np.testing.assert_allclose(distance_s, distance / 1e9, rtol=1e-5)


def test_check_tolerance_checks_all_anchors_of_the_requested_keys(tmp_path, device):
    rows = np.concatenate([np.arange(20_000), 20_000 + 5 + np.arange(5000)]) * 1000
    dataset = write(tmp_path / "cache", [{"x": rows_at(rows), "at": rows_at(np.arange(25_000) * 1000)}])
    options = {"anchor": "at", "batch_size": 8, "delta_timestamps": {"x": [0.0]}, "method": "previous", "snap_s": 0}
    options["device"] = device
    loader_by_keywords(dataset, **options).check_tolerance()  # no tolerance is set
    loader_by_keywords(dataset, tolerance_s=5e-6, **options).check_tolerance()
    with pytest.raises(robocache.ArgumentError, match=r"2e-06 s away in episode 0 at 20001000 ns"):
        loader_by_keywords(dataset, tolerance_s=1e-6, **options).check_tolerance()
    sources = [robocache.Source(dataset), robocache.Source(dataset, anchor="x")]
    with pytest.raises(robocache.ArgumentError, match=r"^sources\[0\]\.delta_timestamps\['x'\].tolerance_s"):
        loader_by_keywords(sources, tolerance_s=1e-6, **options).check_tolerance()
    options.pop("anchor")
    loader_by_keywords(dataset, tolerance_s=0, anchor="x", **options).check_tolerance()


def test_check_tolerance_names_the_first_on_any_number_of_threads(tmp_path, device, threads):
    """Samples of anchors from index 4090 on are too far. A thread with later anchors finds one sooner; the first is named."""
    rows = np.append(np.arange(4090), 10**6) * 1000
    recording = [{"x": rows_at(rows), "at": rows_at(np.arange(12_000) * 1000)}]
    options = {"delta_timestamps": {"x": [0.0] * 64}, "anchor": "at", "method": "previous", "tolerance_s": 5e-7}
    loader = small_loader(write(tmp_path / "cache", recording), snap_s=0, device=device, **options)
    threads(4)
    for _ in range(5):
        with pytest.raises(robocache.ArgumentError, match="in episode 0 at 4090000 ns"):
            loader.check_tolerance()


# ---- gather ----


def test_gather_gives_the_requested_anchors_in_order(dataset, recording, device):
    options = {"delta_timestamps": ALL_WINDOWS, "anchor": "action", "edges": "pad"}
    options |= {"device": device, "return_age": True}
    loader = small_loader(dataset, batch_size=64, **options)
    ticks = ticks_of(recording, "action")
    assert loader.num_anchors == len(ticks)
    next(loader)
    state = loader.state_dict()
    rng = np.random.default_rng(1)
    for indices in (
        [0],
        [len(ticks) - 1, 0, 0, 5, len(ticks) - 1],
        rng.integers(0, len(ticks), 64).tolist(),
        np.arange(7, 20, dtype=np.int32),
        range(3),
    ):
        batch = loader.gather(indices)
        assert anchors_of([batch]) == [ticks[i] for i in indices]
        assert_batch(batch, oracle_batch(dataset, recording, batch, ALL_WINDOWS, return_age=True))
        assert {array.device.type for array in batch.values()} == {device}
    assert loader.state_dict() == state
    in_order = small_loader(dataset, batch_size=64, shuffle=False, **options)
    assert_same_batches(batches_of(in_order, 1), batches_of([loader.gather(range(64))]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_gather_accepts_arrays_and_tensors_of_any_integers(dataset, device, dtype):
    loader = small_loader(dataset, device=device)
    indices = np.array([3, 0, 127, 3], dtype)
    expected = batches_of([loader.gather(indices.tolist())])
    tensor = torch.tensor(indices.tolist(), dtype=getattr(torch, dtype))
    swapped = indices.astype(indices.dtype.newbyteorder(">"))
    strided = np.repeat(indices, 2)[::2]
    for form in (indices, swapped, strided, tensor, tensor.to(device), tuple(indices), list(indices), iter(tensor)):
        assert_same_batches(expected, batches_of([loader.gather(form)]))


@pytest.mark.parametrize("rate_hz", [None, 33.0])
@pytest.mark.parametrize("weight", [None, 2.0])
def test_anchor_index_is_the_index_for_gather(dataset, recording, device, weight, rate_hz):
    sources = [robocache.Source(dataset, weight and weight * k, episodes=[5, k]) for k in (1, 2, 3)]
    options = {"batch_size": 64, "delta_timestamps": ALL_WINDOWS, "device": device, "return_age": True}
    anchors = {"anchor": "action"} if rate_hz is None else {"anchor_hz": rate_hz}
    for drawn_from in (dataset, sources):
        loader = loader_by_keywords(drawn_from, **options, **anchors, rank=1, world_size=2)
        anchor_indices = [to_numpy(batch["anchor_index"]).tolist() for batch in loader]
        if not (weight and drawn_from is sources):
            assert len({*itertools.chain(*anchor_indices)}) == sum(map(len, anchor_indices))
        for batch in itertools.islice(loader, 2):
            assert_same_batches(batches_of([loader.gather(batch["anchor_index"])]), batches_of([batch]))
    loader = small_loader(dataset, batch_size=32, shuffle=False, device=device, **anchors)
    assert [i for batch in loader for i in to_numpy(batch["anchor_index"]).tolist()] == list(range(loader.num_anchors))


def test_gather_of_nothing_is_an_empty_batch(dataset, device):
    batch = small_loader(dataset, device=device).gather([])
    assert {key: tuple(array.shape) for key, array in batch.items()} == {
        "action": (0, 1, 17),
        "action_is_pad": (0, 1),
        "time_ns": (0,),
        "episode_index": (0,),
        "anchor_index": (0,),
    }


@pytest.mark.parametrize(
    ("indices", "parts"),
    [
        ([0, -1], ["indices[1]", "-1"]),
        ([10**9], ["indices[0]", str(10**9)]),
        ([2**63 - 1], ["indices[0]"]),
        (range(17), ["indices", "batch_size", "16", "17"]),
        ([0.5], ["indices", "0.5"]),
        ([True], ["indices", "True"]),
        (["1"], ["indices", "'1'"]),
        (3, ["indices", "3"]),
        (None, ["indices", "None"]),
        ("12", ["indices", "'12'"]),
        ([2**70], ["indices"]),
        (np.array([2**63], np.uint64), ["indices", str(2**63)]),
        (np.array([0.0, 0.5]), ["indices", "0.0"]),
        (np.array([True]), ["indices", "True"]),
        (np.array([[0], [1]]), ["indices", "[0]"]),
        (np.ma.array([0, 1], mask=[False, True]), ["indices", "masked"]),
        (np.array(3), ["indices", "3"]),
        (torch.tensor([0, -1]), ["indices[1]", "-1"]),
        (torch.tensor([1.0]), ["indices", "1.0"]),
        (torch.tensor([0.5], dtype=torch.bfloat16), ["indices", "0.5"]),
        (torch.tensor([False]), ["indices", "False"]),
        (torch.tensor([[0], [1]]), ["indices", "[0]"]),
        (torch.tensor(3), ["indices", "3"]),
    ],
    ids=str,
)
def test_gather_refuses_invalid_indices(dataset, device, indices, parts):
    loader = small_loader(dataset, device=device)
    with refused(*parts):
        loader.gather(indices)
    assert loader.gather([0])["action"].shape == (1, 1, 17)


def test_the_last_row_of_a_time_counts(tmp_path, device):
    """Rule 5 holds with every option: targets lie on both sides of rows with equal stamps."""
    time_ns = EPOCH_NS + np.array([0, 0, 10, 10, 10, 20, 30, 30]) * 1000
    recording = [{"x": (time_ns, np.arange(8, dtype=np.float32))}]
    dataset = write(tmp_path / "cache", recording)
    deltas = {"x": [-1e-5, -4e-6, -5e-6, 0.0, 4e-6, 5e-6, 6e-6, 1e-5]}
    for method, causal in itertools.product([*STEP_METHODS, "linear"], [False, True]):
        if method == "next" and causal:
            continue
        options = {"method": method, "causal": causal, "max_gap_s": 1e-5, "return_age": True, "snap_s": 0}
        if method in STEP_METHODS:
            options["tolerance_s"] = 5e-6
        loader = loader_by_keywords(
            dataset, batch_size=8, delta_timestamps=deltas, shuffle=False, device=device, **options
        )
        expected = window_batch(
            recording, [(0, int(t)) for t in time_ns], deltas, dtypes={"x": np.float32}, shapes={"x": ()}, **options
        )
        assert_batch(next(loader), expected)


# An unsorted window uses the slower path for all its steps.
@pytest.mark.parametrize("code_steps", [[-2, -1, 0], [3, 0, -2]])
def test_rows_on_the_frames_of_one_clock(tmp_path, device, rng, code_steps):
    """Windows of consecutive rows have the same values beside any other key of their clock: at the ends, at a repeated
    stamp, and at stamps near a frame."""
    period, rows = 20_000_000, 120
    times = np.arange(rows) * period
    times[60] = times[59]  # row 59 no longer counts, and row 60's frame is between rows
    times[80:90] += rng.integers(-900, 900, 10)  # within snap_s
    times[101] = times[100] + 700  # both are closer to a frame than snap_s
    state, action, code = rng.normal(size=(rows, 3)), rng.normal(size=(rows, 2)), rng.integers(0, 99, rows)
    recording = [{"state": (times, state), "action": (times, action), "code": (times, code)}]
    steps = {"state": [-1, 0], "action": [*range(10)], "code": code_steps}
    loader = loader_by_keywords(
        write(tmp_path / "cache", recording),
        batch_size=64,
        delta_timestamps={name: [k * period / 1e9 for k in key_steps] for name, key_steps in steps.items()},
        method={"state": [(slice(0, 1), "linear")], "code": "previous"},
        anchor="state",
        dtype="float64",
        shuffle=False,
        return_age=True,
        device=device,
    )
    is_last = np.append(times[1:] != times[:-1], True)  # whether a row is the last of its time
    distinct, last_rows = times[is_last], np.flatnonzero(is_last)
    for batch in batches_of(loader, None):
        for name, key_steps in steps.items():
            target = batch["time_ns"][:, None] + np.array(key_steps) * period
            nearest = np.abs(target[..., None] - distinct).argmin(-1)
            on_row = np.abs(target - distinct[nearest]) < 1000
            snapped = np.where(on_row, distinct[nearest], target)
            np.testing.assert_array_equal(batch[f"{name}_is_pad"], (snapped < distinct[0]) | (snapped > distinct[-1]))
            before = np.maximum(np.searchsorted(distinct, snapped, side="right") - 1, 0)
            np.testing.assert_array_equal(batch[f"{name}_age"], target - distinct[before])
            if name == "code":
                np.testing.assert_array_equal(batch[name], code[last_rows[before]])
                continue
            values = {"state": state, "action": action}[name][last_rows]
            expected = np.stack([np.interp(snapped, distinct, column) for column in values.T], -1)
            np.testing.assert_array_equal(batch[name][on_row], expected[on_row])
            np.testing.assert_allclose(batch[name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("deltas", "options", "parts"),
    [
        ({"action": None}, {"anchor_hz": 10}, ["anchors.rate_hz: ticks of 10 Hz", "'action'", "0.06667 s", "method="]),
        ({"action": [0.02]}, {"anchor_hz": 15}, ["anchors.rate_hz", "'action'"]),
        ({"action": [0.0]}, {"anchor_hz": 15, "offset_s": 0.01}, ["anchors.rate_hz", "'action'"]),
        ({"action": [0.0, 0.02]}, {"anchor": "slow"}, ["anchors.stream: the rows of 'slow'", "'action'", "method="]),
        ({"slow": [0.0]}, {"anchor": "state"}, ["anchors.stream: the rows of 'state'", "'slow'", "0.2 s"]),
        ({"action": [0.0]}, {"anchor": "state", "offset_s": 0.013}, ["delta_timestamps['action']", "0.013 s"]),
        ({"action": [0.0]}, {"anchor_hz": 15, "causal": False, "max_gap_s": 1, "offset_s": -0.03}, ["anchors.rate_hz"]),
    ],
    ids=str,
)
def test_rule_33_anchors_between_rows_of_a_nominal_clock_are_refused(nominal, device, deltas, options, parts):
    with refused(*parts):
        loader_by_keywords(nominal, batch_size=8, delta_timestamps=deltas, device=device, **options)


@pytest.mark.parametrize(
    ("deltas", "options", "step"),
    [
        ({"action": [0.0, 1 / 15]}, {"anchor_hz": 15}, 1),
        ({"action": [0.0, 1 / 15]}, {"anchor_hz": 5}, 3),
        ({"action": [0.0, 1 / 15]}, {"anchor": "slow"}, 3),
        ({"action": [0.0, 1 / 15]}, {"anchor": "state", "offset_s": 2 / 15}, 1),
    ],
    ids=str,
)
def test_rule_33_ticks_on_the_rows_of_a_nominal_clock_are_rows(nominal, device, deltas, options, step):
    loader = loader_by_keywords(
        nominal, batch_size=8, delta_timestamps=deltas, device=device, shuffle=False, snap_s=1e-5, **options
    )
    shift = 2 if "offset_s" in options else 0
    rows = np.arange(8)[:, None] * step + np.arange(2) + shift
    np.testing.assert_array_equal(to_numpy(next(loader)["action"])[..., 0], rows)


def test_rule_33_a_rate_with_some_ticks_between_rows_is_refused(tmp_path, device):
    """30 Hz anchors on a nominal clock of 20 Hz: every second tick is a row."""
    count = 20 * 60
    rows = {"a": (np.arange(count) * 50_000_000, np.arange(count, dtype=np.float32)[:, None])}
    rows["b"] = (np.round(np.arange(30 * 60) * 1e9 / 30).astype(np.int64), np.zeros((30 * 60, 1), np.float32))
    dataset = write(tmp_path / "cache", [rows], nominal=["a", "b"])
    options = {"batch_size": 8, "delta_timestamps": {"a": None, "b": None}, "device": device}
    for anchors in ({"anchor_hz": 30}, {"anchor": "b"}):
        with pytest.raises(robocache.ArgumentError, match=r"not on the rows of 'a', 0.05 s \(20 Hz\) apart"):
            loader_by_keywords(dataset, **options, **anchors)
    with pytest.raises(robocache.ArgumentError, match=r"the rows of 'a', 0.05 s \(20 Hz\) apart, are not on the rows"):
        loader_by_keywords(dataset, **options)
    loader_by_keywords(dataset, method="previous", **options)


def write_at_rates(path, *rates):
    """Writes one episode for each rate, on a nominal clock, with equal numbers of rows."""
    episodes = []
    for hz in rates:
        index = np.arange(120)
        episodes.append({"state": (np.round(index * 1e9 / hz).astype(np.int64), index[:, None].astype(np.float32))})
    return write(path, episodes, nominal=["state"])


@pytest.mark.parametrize(
    ("rates", "offset", "message"),
    [
        ((30, 60), 1 / 60, "of 'state' 0.01667 s (60 Hz) in 1 episode, of 'state' 0.03333 s (30 Hz) in 1 episode"),
        ((30, 60, 60), 1 / 60, "of 'state' 0.01667 s (60 Hz) in 2 episodes, of 'state' 0.03333 s (30 Hz) in 1 episode"),
        ((30, 50), 1 / 30, "0.02 s (50 Hz) in 1 episode, of 'state' 0.03333 s (30 Hz)"),
        ((30, 60), 1 / 30, None),  # a multiple of both
        ((30, 50), 0.1, None),
        ((30, 30), 1 / 60, "of 'state' 0.03333 s (30 Hz);"),
    ],
    ids=str,
)
def test_rule_33_offsets_must_fit_the_rate_of_each_drawn_episode(tmp_path, device, rates, offset, message):
    dataset = write_at_rates(tmp_path / "cache", *rates)
    options = {"batch_size": 8, "delta_timestamps": {"state": [0.0, offset]}, "device": device}
    if message is None:
        steps = to_numpy(next(loader_by_keywords(dataset, shuffle=False, snap_s=1e-5, **options))["state"])[..., 0]
        np.testing.assert_array_equal(steps[:, 1] - steps[:, 0], round(offset * rates[0]))
        return
    with pytest.raises(robocache.ArgumentError, match="not a multiple") as caught:
        loader_by_keywords(dataset, **options)
    assert message in str(caught.value), str(caught.value)
    assert "45 Hz" not in str(caught.value)  # the mean rate, which no episode has
    fitting = [e for e, hz in enumerate(rates) if abs(offset * hz - round(offset * hz)) < 1e-9]
    if fitting:
        loader_by_keywords(dataset, episodes=fitting, **options)


def test_rule_33_sources_of_two_rates_are_named_with_their_rates(tmp_path, device):
    sources = [robocache.Source(write_at_rates(tmp_path / str(hz), hz)) for hz in (30, 60)]
    with pytest.raises(robocache.ArgumentError, match="rows=True") as caught:
        loader_by_keywords(sources, batch_size=8, delta_timestamps={"state": [0.0, 1 / 60]}, device=device)
    assert "of 'state' of sources[0] 0.03333 s (30 Hz), of 'state' of sources[1] 0.01667 s (60 Hz)" in str(caught.value)
    loader_by_keywords(sources, batch_size=8, delta_timestamps={"state": [0.0, 1 / 30]}, device=device)


def test_rule_33_missing_rows_of_a_nominal_clock_are_no_other_rate(tmp_path, device):
    index = np.delete(np.arange(900), [1, 2, 40, 41, 500])
    rows = {"state": (np.round(index * 1e9 / 30).astype(np.int64), index[:, None].astype(np.float32))}
    dataset = write(tmp_path / "cache", [rows, {"state": tuple(x[:50] for x in rows["state"])}], nominal=["state"])
    with pytest.raises(robocache.ArgumentError, match=r"not a multiple of the period of 'state' 0.03333 s \(30 Hz\);"):
        loader_by_keywords(dataset, batch_size=8, delta_timestamps={"state": [0.0, 1 / 60]}, device=device)
    with pytest.raises(robocache.ArgumentError, match=r"between rows that are 0.1 s apart"):
        loader_by_keywords(dataset, batch_size=8, delta_timestamps={"state": [0.0, 1 / 30]}, device=device)


@pytest.mark.parametrize(
    ("gap_s", "options", "warning_text"),
    [
        (4.2, {}, "'x' has 2 gaps of up to 4.2 s between rows that are 0.01 s apart; max_gap_s= of a Window"),
        (0.3, {}, None),  # shorter than half a second
        (4.2, {"max_gap_s": 0.05}, None),
        (4.2, {"method": "previous"}, None),
        (4.2, {"causal": True}, None),
        (4.2, {"anchor": "x"}, None),  # all values are rows
    ],
    ids=str,
)
def test_long_gaps_that_windows_interpolate_are_named_once(tmp_path, device, gap_s, options, warning_text):
    time_ns = np.arange(400) * 10_000_000 + 1
    time_ns[100:] += 200_000_000
    time_ns[200:] += round(gap_s * 1e9) - 10_000_000
    rows = {"x": (time_ns, np.arange(400, dtype=np.float32)[:, None])}
    rows["tick"] = (np.arange(30) * 37_000_000 + 5_000_000, np.zeros((30, 1), np.float32))
    dataset = write(tmp_path / "cache", [rows])
    options = {"anchor": "tick"} | options
    with warnings_with("gaps of any length", warning_text):
        loader_by_keywords(dataset, batch_size=8, delta_timestamps={"x": [0.0]}, device=device, **options)


def test_mostly_repeated_stamps_have_no_gaps(tmp_path, device):
    rows = {"x": (np.arange(400) // 4 * 10**9, np.arange(400, dtype=np.float32)[:, None])}  # stamps in whole seconds
    rows["tick"] = (np.arange(30) * 370_000_000 + 5_000_000, np.zeros((30, 1), np.float32))
    dataset = write(tmp_path / "cache", [rows])
    with warnings_with("gaps of any length", None):
        loader_by_keywords(dataset, batch_size=8, delta_timestamps={"x": [0.0]}, device=device, anchor="tick")


@pytest.mark.parametrize(
    ("low", "offset", "warning_text"),
    [
        (0.0, 0.02, "'x' has 0 to 6.2 in feature 1, so that one direction has two numbers"),
        (0.0, 0.0, None),  # all values are rows
        (-np.pi, 0.02, None),
    ],
    ids=str,
)
def test_stored_angles_beyond_half_a_turn_are_named(tmp_path, device, low, offset, warning_text):
    """A heading of 3.5 on a row is -2.78 between two rows."""
    time_ns = np.arange(400) * 50_000_000
    heading = (0.1 * np.arange(400).astype(np.float64)) % 6.25 + low
    streams = {"x": {"attributes": {"methods": [[1, 2, "angle"]]}}}
    rows = {"x": (time_ns, np.stack([np.full(400, 9.0), heading], 1))}
    dataset = write(tmp_path / "cache", [rows], streams=streams)
    with warnings_with("'angle' gives", warning_text):
        loader_by_keywords(dataset, batch_size=8, delta_timestamps={"x": [offset]}, device=device)


def turning_angle(unit, dtype=np.float64):
    """Returns an angle in [-turn / 2, turn / 2) that wraps twice, beside a number that does not."""
    full_turn = {"rad": 2 * np.pi, "deg": 360.0}[unit]
    angle = (np.linspace(0.1, 2.3, 400) * full_turn + full_turn / 2) % full_turn - full_turn / 2
    return np.stack([np.linspace(-3, 3, 400), angle], 1).astype(dtype)


@pytest.mark.parametrize(
    ("values", "options", "warning_text"),
    [
        (turning_angle("rad"), {}, r"'x' feature 1 \(yaw\) goes from 3.1\d+ to -3.1\d+ at row \d+ of episode 0;"),
        (turning_angle("deg", np.float32), {}, r"goes from 17\d\S* to -17\d\S* at row"),
        (turning_angle("rad"), {"method": "pchip"}, "'x' feature 1"),
        (turning_angle("rad") + np.array([0, np.pi]), {}, r"goes from 6.2\d+ to 0.0\d+"),
        (turning_angle("rad"), {"method": {"x": [(slice(1, 2), "angle")]}}, None),
        (turning_angle("rad"), {"method": "previous"}, None),
        (turning_angle("rad"), {"episodes": [1]}, None),
        (np.unwrap(turning_angle("rad"), axis=0), {}, None),
        (np.random.default_rng(0).uniform(-np.pi, np.pi, (400, 2)), {}, None),  # noise crosses half a turn as often
        (np.where(np.arange(400) % 40 < 20, 2.5, -2.5)[:, None] * [1, 1], {}, None),  # a switch
    ],
)
def test_wrapping_angles_interpolated_as_numbers_are_named(tmp_path, device, values, options, warning_text):
    time_ns = np.arange(400) * 50_000_000
    recording = [{"x": (time_ns, values)}, {"x": (time_ns[:20], values[:20])}]
    dataset = write(tmp_path / "cache", recording, streams={"x": {"names": ["x", "yaw"]}})
    for offset, expected in ((0.02, warning_text), (0.0, None)):  # with 0 all values are rows
        with warnings_with("jump by a turn", expected):
            loader_by_keywords(dataset, batch_size=8, delta_timestamps={"x": [offset]}, device=device, **options)


def test_rule_33_declared_rotations_are_no_requested_method(tmp_path, device):
    rows = {"action": (np.arange(40) * 50_000_000, np.tile(np.float32([0, 0, 0, 1, 5]), (40, 1)))}
    streams = {"action": {"clock": "nominal", "attributes": {"methods": [[0, 4, "slerp"]]}}}
    dataset = write(tmp_path / "cache", [rows], streams=streams)
    with pytest.raises(robocache.ArgumentError, match=r"ticks of 15 Hz .*\[\(slice\(0, 4\), 'slerp'\)\]"):
        loader_by_keywords(dataset, batch_size=8, delta_timestamps={"action": None}, anchor_hz=15, device=device)
    with pytest.raises(robocache.ArgumentError, match=r"0.02 s is not a multiple.*\[\(slice\(0, 4\), 'slerp'\)\]"):
        loader_by_keywords(dataset, batch_size=8, delta_timestamps={"action": [0.02]}, device=device)


def test_rule_33_values_of_a_nominal_clock_at_recorded_anchors_are_warned_of(nominal, device):
    options = {"batch_size": 8, "delta_timestamps": {"action": [0.02], "arm": [0.0]}, "anchor": "arm", "device": device}
    with pytest.warns(robocache.LoaderWarning, match=r"delta_timestamps\['action'\].method: 100% of the values"):
        loader_by_keywords(nominal, **options)
    with no_warning():
        loader_by_keywords(nominal, method={"action": "linear"}, **options)
        loader_by_keywords(nominal, **options | {"delta_timestamps": {"action": [1 / 15 - 1e-9]}})
