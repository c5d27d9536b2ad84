"""fuse_multimodal: clocks, durations, offsets and ages; rules 1, 2, 22 and 23."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, name_of
from reference.fuse_calls import INT64, check, fuse, ramp
from reference.random_streams import CLOCKS, EPOCH_NS, STEPS

torch = pytest.importorskip("torch")


def test_rule_1_each_stream_has_its_own_clock(device):
    streams = [ramp(clock=np.float32), ramp(clock=np.float64), ramp(clock=np.int64, unit=1_000_000_000)]
    for targets in (
        np.array([0.5, 1.0, 3.75], np.float32),
        np.array([0.5, 1.0, 3.75], np.float64),
        np.array([500_000_000, 1_000_000_000, 3_750_000_000], np.int64),
    ):
        out, valid, age = fuse(streams, targets, device)
        assert out.tolist() == [[5.0] * 3, [10.0] * 3, [37.5] * 3]
        assert valid.all()
        expected = np.array([0.5, 0, 0.75])
        assert_same_bits(age[:, 0], (expected * 1e9 if targets.dtype == np.int64 else expected).astype(targets.dtype))
        check(streams, targets, device)


def test_rule_1_seconds_become_the_nearest_nanosecond(device):
    # np.rint(t * 1e9) of a float64 t is the sample's own stamp: every target is a hit.
    t = 1_700_000_000 + np.arange(400) / 30
    stamps = np.rint(t * 1e9).astype(np.int64)
    values = np.arange(400, dtype=np.float32)[:, None]
    out, valid, age = fuse([(values, stamps)], t, device, max_gap=0)
    assert_same_bits(out, values)
    assert valid.all()
    assert not age.any()
    # Ties to even: 2^-10 s is 976562.5 ns.
    stamps = np.array([976_562, 976_563, 2_929_687, 2_929_688])
    stream = np.arange(4, dtype=np.float32)[:, None], stamps
    out, valid, _ = fuse([stream], np.array([1, 3]) * 2.0**-10, device, max_gap=0)
    assert out[:, 0].tolist() == [0, 3]
    assert valid.all()


def test_rule_1_nanoseconds_become_seconds_as_numpy_divides(device):
    stamps = EPOCH_NS + np.arange(300) * 33_333_333
    values = np.arange(300, dtype=np.float64)[:, None]
    out, valid, age = fuse([(values, stamps / 1e9)], stamps, device, max_gap=0)
    assert_same_bits(out, values)
    assert valid.all()
    assert not age.any()


@pytest.mark.parametrize(
    "seconds", [np.inf, -np.inf, 1e300, -1e300, 9.3e9, -9.3e9, 9223372036.854775, -9223372036.854775]
)
@pytest.mark.parametrize("clock", [np.float32, np.float64])
def test_rule_1_seconds_beyond_int64_saturate(device, seconds, clock):
    stamps = np.array([INT64.min, -1, 0, 5, INT64.max])
    values = np.arange(5, dtype=np.float32)[:, None]
    with np.errstate(over="ignore"):
        targets = np.array([seconds, np.nan, 0], np.float64).astype(clock)
    for options in ({}, {"offset": 3}, {"offset": float("inf")}, {"method": "next"}):
        check([(values, stamps)], targets, device, **options)


@pytest.mark.parametrize("target_clock", CLOCKS, ids=name_of)
@pytest.mark.parametrize("clock", CLOCKS, ids=name_of)
def test_rule_2_durations_have_the_streams_unit(device, clock, target_clock):
    unit = 1_000_000_000 if clock == np.int64 else 1
    stream = ramp(clock=clock, unit=unit)
    quarters = np.arange(-2, 18)
    targets = quarters * 250_000_000 if target_clock == np.int64 else (quarters / 4).astype(target_clock)
    in_unit = (lambda x: int(x * unit)) if clock == np.int64 else float
    for options in (
        {"offset": in_unit(0.5)},
        {"max_gap": in_unit(1)},
        {"max_gap": in_unit(0.999)},
        {"method": "previous", "tolerance": in_unit(0.5)},
        {"causal": True, "max_gap": in_unit(0.25)},
    ):
        check([stream, stream], targets, device, **options)


@pytest.mark.parametrize("target_clock", CLOCKS, ids=name_of)
def test_rule_22_the_offset_is_the_sensors_latency(device, target_clock):
    """A sample stamped 2 with a latency of 0.5 was measured at 1.5: a target at 1.5 hits it."""
    seconds = [1.5, 1.75, -0.5, 3.5, 3.75]
    targets = np.array(seconds) * (1e9 if target_clock == np.int64 else 1)
    targets = targets.astype(target_clock)
    streams = [ramp(clock=np.float32), ramp(), ramp(clock=np.int64, unit=1_000_000_000)]
    options = [{"offset": 0.5}, {"offset": 0.5}, {"offset": 500_000_000}]
    out, valid, age = fuse(streams, targets, device, options=options)
    assert out.tolist() == [[20] * 3, [22.5] * 3, [0] * 3, [40] * 3, [40] * 3]
    assert valid.all(1).tolist() == [True, True, True, True, False]
    assert np.allclose(age[:, 0] / (1e9 if target_clock == np.int64 else 1), [0, 0.25, 0, 0, 0.25], rtol=0, atol=0)
    check(streams, targets, device, options=options)


def test_rule_22_offsets_saturate_at_int64(device):
    stamps = np.array([INT64.min, 0, INT64.max])
    values = np.array([[1], [2], [3]], np.float32)
    targets = np.array([INT64.min, -5, 0, 5, INT64.max - 5, INT64.max])
    for offset in (0, 1, 5, INT64.max - 1, INT64.max, float("inf"), 2.0**70):
        for method in ("linear", *STEPS):
            check([(values, stamps)], targets, device, offset=offset, method=method)


def test_rule_22_with_an_infinite_offset_targets_are_outside(device):
    check([ramp()], np.array([-np.inf, 0.0, 1.5, np.inf, np.nan]), device, offset=float("inf"))


def test_rule_22_epoch_nanoseconds_are_exact_to_the_nanosecond(device):
    stamps = EPOCH_NS + np.array([0, 1, 2, 3, 1000], np.int64)
    values = np.arange(5, dtype=np.float32)[:, None]
    targets = np.arange(EPOCH_NS - 8, EPOCH_NS + 1003, dtype=np.int64)
    for method in ["linear", *STEPS]:
        check([(values, stamps)] * 2, targets, device, options=[{"offset": 7}, {}], method=method)
    out, _, age = fuse([(values, stamps)], targets[1:5], device, method="previous", offset=7)
    assert out[:, 0].tolist() == [0, 1, 2, 3]
    assert not age.any()


def test_rule_23_age_of_every_case(device):
    """Cases are [target, age of linear, nearest, previous, next]; samples are at 0, 1, 2, 3, 4."""
    nan = np.nan
    table = np.array(
        [
            [-0.5, -0.5, -0.5, -0.5, -0.5],
            [0.0, 0.0, 0.0, 0.0, 0.0],
            [1.25, 0.25, 0.25, 0.25, -0.75],
            [1.5, 0.5, 0.5, 0.5, -0.5],
            [1.75, 0.75, -0.25, 0.75, -0.25],
            [4.5, 0.5, 0.5, 0.5, 0.5],
            [nan, nan, nan, nan, nan],
        ]
    )
    methods = ["linear", *STEPS]
    for scale, no_age, clock in ((1, nan, np.float64), (1, nan, np.float32), (10**9, INT64.min, np.int64)):
        rows = table if clock != np.int64 else table[:-1]
        targets = (rows[:, 0] * scale).astype(clock)
        _, _, age = fuse([ramp()] * 4, targets, device, options=[{"method": m} for m in methods])
        assert_same_bits(age, (rows[:, 1:] * scale).astype(clock))
        # Without a sample there is no age.
        _, valid, age = fuse([ramp()] * 2, targets, device, options=[{"extrapolate": "nan"}, {"causal": True}])
        assert_same_bits(age[0], np.full(2, no_age).astype(clock))
        assert not valid[0].any()
        _, _, age = fuse([(np.zeros((0, 1), np.float32), np.zeros(0))], targets, device)
        assert_same_bits(age, np.full((len(targets), 1), no_age).astype(clock))


def test_rule_23_ages_of_extrapolation_count_from_the_end_brackets_earlier_sample(device):
    _, _, age = fuse([ramp()], np.array([-1.0, 5.0]), device, extrapolate="linear")
    assert age[:, 0].tolist() == [-1.0, 2.0]


def test_rule_23_ages_beyond_int64_saturate(device):
    stamps = np.array([INT64.min, INT64.max])
    values = np.array([[1], [2]], np.float32)
    targets = np.array([INT64.min, INT64.min + 1, -2, 0, INT64.max - 1, INT64.max])
    for method in ("linear", *STEPS):
        check([(values, stamps)], targets, device, method=method)
    check([(values, np.array([-np.inf, np.inf]))], targets, device, method="nearest")
    check([(values, np.array([-1e300, 1e300]))], targets, device, method="next")


def test_rule_23_a_hit_on_infinity_has_age_0(device):
    stream = np.array([[1], [2]], np.float32), np.array([0, np.inf])
    for targets in (np.array([np.inf, 0.0]), np.array([np.inf, 0.0], np.float32)):
        _, valid, age = fuse([stream], targets, device)
        assert valid.all()
        assert not age.any()
