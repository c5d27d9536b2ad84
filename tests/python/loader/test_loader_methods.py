"""Loader: curves, angles and rotations, methods of slices, and clocks that streams share."""

import numpy as np
import pytest
from flat_options import flat_loader
from recordings import EPOCH_NS, FLOATS, check, small, write
from reference.compare import assert_same_bits, to_numpy
from reference.window_batch import assert_batch, window_batch

import robocache

WIDE = {"action": [-0.21, -0.0333, 0.0, 0.0101, 0.35], "observation.imu": [-0.02, 0.0, 0.0031]}


@pytest.mark.parametrize("method", ["pchip", "akima", "angle"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_curves_and_angles_equal_the_oracles(dataset, recording, device, method, dtype):
    deltas = WIDE | {"observation.feature": [-0.01, 0.0], "observation.tactile": [0.004], "gripper": [0.03]}
    check(
        dataset,
        recording,
        deltas,
        device=device,
        dtype=dtype,
        method=dict.fromkeys(deltas, method),
        normalize={"action": "mean_std", "observation.imu": "q01_q99"},
        max_gap_s=0.04,
        batches=1,
    )


def test_slices_of_every_method_side_by_side(dataset, recording, device):
    methods = {
        "action": [
            (slice(13, 17), "slerp"),
            (slice(0, 2), "pchip"),
            (slice(2, 3), "previous"),
            (slice(3, 10), "pose"),
            (slice(11, 12), "angle"),
        ],
        "observation.imu": [(slice(None, -4), "akima"), (slice(-4, None), "slerp")],
        "observation.feature": [(slice(0, 4), "slerp")],  # the shape is [2, 3], row-major
        "mode": [(slice(0, 1), "nearest")],
    }
    deltas = WIDE | {"observation.feature": [-0.01, 0.0], "mode": [-0.1, 0.0], "gripper": [0.0, 0.01]}
    check(
        dataset,
        recording,
        deltas,
        device=device,
        method=methods,
        normalize={"action": "min_max", "observation.feature": "mean_std"},
        anchor="observation.state",
        max_gap_s=0.04,
    )


@pytest.mark.parametrize("stored", FLOATS, ids=lambda dtype: dtype.name)
def test_rotations_of_every_type(rng, tmp_path, device, stored):
    times = EPOCH_NS + np.cumsum(rng.integers(0, 40, 50)) * 10**6  # some stamps twice
    quaternions = rng.standard_normal((50, 8)).astype(stored)
    quaternions[7, :4] = 0  # has no direction
    recording = [{"x": (times, quaternions)}]
    dataset = write(tmp_path / "cache", recording)
    deltas = {"x": [-0.011, 0.0, 0.0023, 0.5]}
    methods = {"x": [(slice(0, 4), "slerp"), (slice(4, 8), "slerp")]}
    loader = flat_loader(
        dataset, batch_size=50, delta_timestamps=deltas, method=methods, dtype="float64", device=device, shuffle=False
    )
    batch = next(loader)
    anchors = [(0, int(t)) for t in times]
    expected = window_batch(
        recording, anchors, deltas, dtypes={"x": stored}, shapes={"x": (8,)}, method=methods, dtype=np.float64
    )
    assert_batch(batch, expected)
    turned = to_numpy(batch["x"])[:, 2, 4:]
    between = (turned[:, None] != quaternions[None, :, 4:].astype(np.float64)).any(-1).all(1)
    assert between.sum() > 20
    np.testing.assert_allclose(np.linalg.norm(turned[between], axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("method", ["pchip", "akima", "angle"])
def test_hits_and_values_outside_are_samples(rng, tmp_path, device, method):
    times = np.arange(6) * 10**9
    values = (100 * rng.standard_normal((6, 3))).astype(np.float32)
    dataset = write(tmp_path / "cache", [{"x": (times, values)}])
    loader = flat_loader(
        dataset, batch_size=6, delta_timestamps={"x": [-100.0, 0.0, 100.0]}, method=method, device=device, shuffle=False
    )
    batch = next(loader)
    assert_same_bits(to_numpy(batch["x"]), np.stack([values[[0] * 6], values, values[[5] * 6]], 1))
    assert to_numpy(batch["x_is_pad"]).tolist() == [[True, False, True]] * 6


@pytest.mark.parametrize("batch_size", [1, 33])
def test_many_curves_in_several_groups(dataset, recording, device, batch_size):
    deltas = {name: [0.001 * k for k in range(130)] for name in ("action", "observation.imu", "observation.tactile")}
    methods = {"action": "akima", "observation.imu": [(slice(1, 3), "pchip")]}
    check(dataset, recording, deltas, device=device, method=methods, batch_size=batch_size, batches=1)


# ---- Streams of one clock ----


def on_one_clock(rng):
    """Streams a, b and c on one clock; d on the same times in other episodes."""
    recording = []
    for number in range(3):
        times = EPOCH_NS + number * 10**12 + np.cumsum(rng.integers(5, 40, 30)) * 10**6
        episode = {
            "a": (times, rng.standard_normal((30, 7)).astype(np.float32)),
            "b": (times, rng.standard_normal((30, 4))),
            "c": (times, rng.integers(0, 99, (30, 2), np.int32)),
        }
        if number < 2:
            episode["d"] = (times, rng.standard_normal((30, 1)).astype(np.float16))
        recording.append(episode)
    return recording


@pytest.mark.parametrize("snap_s", [0, 1e-6, 0.01])
def test_streams_of_one_clock_have_their_own_methods(rng, tmp_path, device, snap_s):
    recording = on_one_clock(rng)
    dataset = write(tmp_path / "cache", recording)
    deltas = {"a": [0.0, -0.013, 0.02, 0.02], "b": [0.02, 0.0], "c": [-0.013, 0.0, 0.5], "d": [0.02, -0.013]}
    methods = {"a": [(slice(0, 2), "next")], "b": "slerp", "c": "nearest"}
    loader = flat_loader(
        dataset, batch_size=90, delta_timestamps=deltas, method=methods, snap_s=snap_s, max_gap_s=0.03, device=device
    )
    batch = next(loader)
    expected = window_batch(
        recording,
        list(zip(to_numpy(batch["episode_index"]).tolist(), to_numpy(batch["time_ns"]).tolist(), strict=True)),
        deltas,
        dtypes={name: values.dtype for name, (_, values) in recording[0].items()},
        shapes={name: values.shape[1:] for name, (_, values) in recording[0].items()},
        method=methods,
        snap_s=snap_s,
        max_gap_s=0.03,
    )
    assert_batch(batch, expected)


def test_a_stream_gives_the_same_bytes_alone_and_with_others_of_its_clock(rng, tmp_path, device):
    dataset = write(tmp_path / "cache", on_one_clock(rng))
    deltas = {"a": [0.0, 0.011], "b": [-0.02, 0.011], "c": [0.011]}
    options = {"batch_size": 40, "anchor": "c", "seed": 3, "device": device}
    together = next(flat_loader(dataset, delta_timestamps=deltas, **options))
    for name in deltas:
        alone = next(flat_loader(dataset, delta_timestamps={name: deltas[name]}, **options))
        for key in alone:
            assert_same_bits(to_numpy(alone[key]), to_numpy(together[key]), key)


# ---- Refusals ----


@pytest.mark.parametrize(
    ("methods", "parts"),
    [
        ("cubic", ["delta_timestamps['action'].method", "cubic", "akima"]),
        ({"action": [(slice(0, 3), "cubic")]}, ["delta_timestamps['action'].method", "cubic"]),
        (
            {"action": [(slice(0, 3), "pchip"), (slice(2, 5), "akima")]},
            ["delta_timestamps['action'].method", "overlap"],
        ),
        ({"action": [(slice(0, 18), "pchip")]}, ["delta_timestamps['action'].method", "slice(0, 18)"]),
        ({"action": [(slice(0, 6, 2), "pchip")]}, ["delta_timestamps['action'].method", "step 1", "slice(0, 6, 2)"]),
        ({"action": [(slice(0, 3), "slerp")]}, ["delta_timestamps['action'].method", "slerp", "4", "3"]),
        ({"action": [(slice(0, 3), "cubicle")]}, ["delta_timestamps['action'].method", "cubicle", "linear"]),
        ({"action": "slerp"}, ["delta_timestamps['action'].method", "slerp", "17"]),
        ({"action": [("0:3", "pchip")]}, ["delta_timestamps['action'].method", "slice", "0:3"]),
        ({"action": ["pchip"]}, ["delta_timestamps['action'].method", "pchip"]),
        ({"action": 3}, ["delta_timestamps['action'].method", "int"]),
    ],
)
def test_invalid_methods_are_refused_by_name(dataset, methods, parts):
    with pytest.raises(robocache.Error) as caught:
        small(dataset, method=methods)
    assert isinstance(caught.value, (ValueError, TypeError))
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_integers_take_step_methods_alone(dataset):
    options = {"delta_timestamps": {"mode": [0.0]}}
    for methods in ("angle", {"mode": [(slice(0, 1), "pchip")]}):
        with pytest.raises(robocache.ArgumentTypeError, match=r"delta_timestamps\['mode'\].method.*int16"):
            small(dataset, method=methods, **options)
