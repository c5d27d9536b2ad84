"""Rule 9, methods by feature blocks, in resample_trajectories, on the CPU and on CUDA."""

import numpy as np
import pytest
from reference.compare import OnlyDLPack, assert_same_bits, assert_within
from reference.curve_calls import (
    each_clock,
    each_float,
    expected_by_blocks,
    float32,
    float64,
    random_case,
    random_times,
    resample,
)
from reference.random_streams import random_targets
from reference.resample import resample as oracle

import robocache

pytest.importorskip("torch")


@each_float
@each_clock
def test_rule_9_each_block_has_its_method(rng, device, dtype, clock):
    values, times, targets = random_case(rng, dtype, clock, features=26)
    blocks = [
        (slice(19, 23), "slerp"),
        (slice(0, 7), "pose"),
        (slice(8, 10), "previous"),
        (slice(-3, None), "pchip"),
        (slice(15, 19), "slerp"),
        (slice(10, 13), "akima"),
    ]
    all_blocks = [  # in order, with the default method for the features between the blocks
        (slice(0, 7), "pose"),
        (slice(7, 8), "nearest"),
        (slice(8, 10), "previous"),
        (slice(10, 13), "akima"),
        (slice(13, 15), "nearest"),
        (slice(15, 19), "slerp"),
        (slice(19, 23), "slerp"),
        (slice(23, 26), "pchip"),
    ]
    gap = 12_000_000 if clock == np.int64 else 0.012
    for options in ({}, {"extrapolate": "nan"}, {"max_gap": gap}, {"lengths": np.array([17, 0, 9])}, {"causal": True}):
        out, valid = resample(values, times, targets, device, method="nearest", methods=blocks, **options)
        expected = expected_by_blocks(values, times, targets, all_blocks, **options)
        assert_same_bits(valid, expected.valid)
        assert_within(out, expected, str(options))


@each_float
def test_rule_9_sixteen_quaternions_in_one_row(rng, device, dtype):
    values, times, targets = random_case(rng, dtype, np.dtype(np.int64), features=64, special=False)
    blocks = [(slice(d, d + 4), "slerp") for d in range(0, 64, 4)]
    out, _ = resample(values, times, targets, device, methods=blocks)
    assert_within(out, expected_by_blocks(values, times, targets, blocks))


def test_rule_9_a_hundred_blocks(rng, device):
    values, times, targets = random_case(rng, float32, np.dtype(np.float64), features=200)
    blocks = [(slice(d, d + 1), "nearest") for d in range(0, 110, 2)]
    out, _ = resample(values, times, targets, device, methods=blocks)
    linear, nearest = (oracle(values, times, targets, method=method)[0] for method in ("linear", "nearest"))
    is_nearest = np.zeros(200, bool)
    is_nearest[:110:2] = True
    assert_same_bits(out, np.where(is_nearest, nearest, linear))
    with pytest.raises(robocache.ArgumentError, match="methods: "):
        resample(values, times, targets, device, methods=[(slice(d, d + 1), "nearest") for d in range(0, 200, 2)])


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_rule_9_integers_by_several_methods(rng, device, dtype):
    values = rng.integers(0, 2, (2, 9, 6)).astype(dtype)
    times = random_times(rng, 2, 9, np.dtype(np.float64))
    targets = random_targets(rng, times, 50)
    out, _ = resample(values, times, targets, device, method="next", methods=[(slice(1, 4), "previous")])
    expected = expected_by_blocks(
        values, times, targets, [(slice(0, 1), "next"), (slice(1, 4), "previous"), (slice(4, 6), "next")]
    )
    assert_same_bits(out, expected.out)
    with pytest.raises(robocache.ArgumentTypeError, match=rf"'pchip'.*{dtype}"):
        resample(values, times, targets, device, method="next", methods=[(slice(1, 4), "pchip")])


def test_rule_9_only_dlpack(rng):
    case = random_case(rng, float64, np.dtype(np.float64), features=8, special=False)
    out = robocache.resample_trajectories(*map(OnlyDLPack, case), methods=[(slice(-4, None), "slerp")])
    rotation = robocache.resample_trajectories(case[0][..., 4:], *case[1:], method="slerp")
    assert_same_bits(np.from_dlpack(out)[..., 4:], rotation)
