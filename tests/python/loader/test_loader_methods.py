"""A Loader's curves, angles and rotations, methods of slices, and clocks that streams share."""

import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords
from recordings import EPOCH_NS, FLOATS, anchors_of, check, write
from reference.compare import assert_same_bits, to_numpy
from reference.window_batch import assert_batch, window_batch

DELTAS = {"action": [-0.21, -0.0333, 0.0, 0.0101, 0.35], "observation.imu": [-0.02, 0.0, 0.0031]}


@pytest.mark.parametrize("method", ["pchip", "akima", "angle"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_curves_and_angles_equal_the_oracles(dataset, recording, device, method, dtype):
    deltas = DELTAS | {"observation.feature": [-0.01, 0.0], "observation.tactile": [0.004], "gripper": [0.03]}
    options = {"dtype": dtype, "method": dict.fromkeys(deltas, method), "max_gap_s": 0.04, "device": device}
    options["normalize"] = {"action": "mean_std", "observation.imu": "q01_q99"}
    check(dataset, recording, deltas, batches=1, **options)


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
    deltas = DELTAS | {"observation.feature": [-0.01, 0.0], "mode": [-0.1, 0.0], "gripper": [0.0, 0.01]}
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


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_rotations_of_every_type(rng, tmp_path, device, dtype):
    times = EPOCH_NS + np.cumsum(rng.integers(0, 40, 50)) * 10**6  # some stamps twice
    quaternions = rng.standard_normal((50, 8)).astype(dtype)
    quaternions[7, :4] = 0  # this quaternion has no direction
    recording = [{"x": (times, quaternions)}]
    dataset = write(tmp_path / "cache", recording)
    deltas = {"x": [-0.011, 0.0, 0.0023, 0.5]}
    methods = {"x": [(slice(0, 4), "slerp"), (slice(4, 8), "slerp")]}
    options = {"method": methods, "dtype": "float64"}
    loader = loader_by_keywords(
        dataset, batch_size=50, delta_timestamps=deltas, device=device, shuffle=False, **options
    )
    batch = next(loader)
    types = {"dtypes": {"x": dtype}, "shapes": {"x": (8,)}}
    assert_batch(batch, window_batch(recording, [(0, int(t)) for t in times], deltas, **types, **options))
    rotations = to_numpy(batch["x"])[:, 2, 4:]
    interpolated = (rotations[:, None] != quaternions[None, :, 4:].astype(np.float64)).any(-1).all(1)
    assert interpolated.sum() > 20
    np.testing.assert_allclose(np.linalg.norm(rotations[interpolated], axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("method", ["pchip", "akima", "angle"])
def test_values_at_or_outside_the_stamps_are_samples(rng, tmp_path, device, method):
    times = np.arange(6) * 10**9
    values = (100 * rng.standard_normal((6, 3))).astype(np.float32)
    dataset = write(tmp_path / "cache", [{"x": (times, values)}])
    options = {"batch_size": 6, "method": method, "device": device, "shuffle": False}
    batch = next(loader_by_keywords(dataset, delta_timestamps={"x": [-100.0, 0.0, 100.0]}, **options))
    assert_same_bits(to_numpy(batch["x"]), np.stack([values[[0] * 6], values, values[[5] * 6]], 1))
    assert to_numpy(batch["x_is_pad"]).tolist() == [[True, False, True]] * 6


@pytest.mark.parametrize("batch_size", [1, 33])
def test_curves_at_130_offsets(dataset, recording, device, batch_size):
    deltas = {name: [0.001 * k for k in range(130)] for name in ("action", "observation.imu", "observation.tactile")}
    methods = {"action": "akima", "observation.imu": [(slice(1, 3), "pchip")]}
    check(dataset, recording, deltas, device=device, method=methods, batch_size=batch_size, batches=1)


# ---- Streams of one clock ----


def on_one_clock(rng):
    """Returns episodes in which a, b and c share a clock. d has the same stamps, but not in the last episode."""
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
    options = {"method": methods, "snap_s": snap_s, "max_gap_s": 0.03}
    batch = next(loader_by_keywords(dataset, batch_size=90, delta_timestamps=deltas, device=device, **options))
    types = {"dtypes": {name: values.dtype for name, (_, values) in recording[0].items()}}
    types["shapes"] = {name: values.shape[1:] for name, (_, values) in recording[0].items()}
    assert_batch(batch, window_batch(recording, anchors_of([batch]), deltas, **types, **options))


def test_a_stream_gives_the_same_bytes_alone_and_with_others_of_its_clock(rng, tmp_path, device):
    dataset = write(tmp_path / "cache", on_one_clock(rng))
    deltas = {"a": [0.0, 0.011], "b": [-0.02, 0.011], "c": [0.011]}
    options = {"batch_size": 40, "anchor": "c", "seed": 3, "device": device}
    with_others = next(loader_by_keywords(dataset, delta_timestamps=deltas, **options))
    for name in deltas:
        alone = next(loader_by_keywords(dataset, delta_timestamps={name: deltas[name]}, **options))
        for key in alone:
            assert_same_bits(to_numpy(alone[key]), to_numpy(with_others[key]), key)
