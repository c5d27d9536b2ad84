"""fuse_multimodal, rule by rule, bit for bit against the NumPy oracle, on the CPU and on CUDA."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.compare import OnlyDLPack, assert_same_bits, poisoned, to_numpy, to_torch
from reference.fuse import STREAM_OPTIONS, fused_work_type
from reference.fuse import fuse as oracle
from reference.random_streams import CLOCKS, EPOCH_NS, FLOATS, STEPS, WHOLE, random_targets, random_times, random_values

import robocache

torch = pytest.importorskip("torch")

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INT64 = np.iinfo(np.int64)
MOST_STREAMS = 112


def name_of(parameter):
    return parameter.name if isinstance(parameter, np.dtype) else None


def on(device, value):
    return to_torch(value, device) if isinstance(value, np.ndarray) else value


def fuse(streams, targets, device="cpu", *, options=None, **shared):
    """(out, valid, age) as NumPy arrays, of NumPy arrays that go through torch on `device`.

    `options` are one dict a stream, as the oracle takes them; here they become one list an option.
    """
    keywords = {name: on(device, value) for name, value in shared.items()}
    for name in (*STREAM_OPTIONS, "dtype"):
        if options and any(name in own for own in options):
            keywords[name] = [on(device, own.get(name, shared.get(name))) for own in options]
    out, valid, age = robocache.fuse_multimodal(
        [(to_torch(values, device), to_torch(times, device)) for values, times in streams],
        to_torch(targets, device),
        return_valid=True,
        return_age=True,
        **keywords,
    )
    outs = out if isinstance(out, list) else [out]
    assert {x.device.type for x in (*outs, valid, age)} == {device}
    return [to_numpy(x) for x in out] if isinstance(out, list) else to_numpy(out), to_numpy(valid), to_numpy(age)


def check(streams, targets, device="cpu", **options):
    """Compares values, validity and age with the oracle, by bits."""
    out, valid, age = fuse(streams, targets, device, **options)
    expected_out, expected_valid, expected_age = oracle(streams, targets, **options)
    assert_same_bits(valid, expected_valid, f"valid, {options}")
    assert_same_bits(age, expected_age, f"age, {options}")
    if isinstance(out, list):
        for place, (one, expected) in enumerate(zip(out, expected_out, strict=True)):
            assert_same_bits(one, expected, f"values of stream {place}, {options}")
    else:
        assert_same_bits(out, expected_out, f"values, {options}")


def clock_of(rng, shape, clock):
    """Times around 3 s on every clock, so that streams of different clocks overlap."""
    times = random_times(rng, *shape, clock)
    return times - EPOCH_NS + 3_000_000_000 if clock == np.int64 else times


def stream_of(rng, dtype, clock, *, batch=3, samples=17, features=5, special=True):
    return random_values(rng, (batch, samples, features), dtype, special), clock_of(rng, (batch, samples), clock)


def targets_of(rng, clock, *, batch=3, count=23):
    """Beside a clock of that kind: inside, outside, on samples, NaN and infinite."""
    return random_targets(rng, clock_of(rng, (batch, 17), clock), count)


def random_options(rng, dtype, clock, *, batch=3, samples=17, features=5, out=None):
    """Legal options of one stream."""
    method = rng.choice(["linear", *STEPS] if dtype in FLOATS else STEPS)
    causal = bool(rng.integers(2)) and method != "next"
    line = ["linear"] if method == "linear" and not causal else []
    options = {"method": str(method), "causal": causal, "extrapolate": str(rng.choice(["clamp", "nan", *line]))}

    def duration(most_ms):
        ns = int(rng.integers(0, most_ms * 1_000_000))
        return ns if clock == np.int64 else ns / 1e9

    if rng.integers(2):
        options["max_gap"] = duration(20)
    if rng.integers(2) and method != "linear":
        options["tolerance"] = duration(8)
    if rng.integers(2):
        options["offset"] = duration(30)
    if rng.integers(2):
        options["lengths"] = rng.integers(0, samples + 1, batch)
    if out is not None and out in FLOATS:
        work = fused_work_type(dtype)
        for name in ("scale", "shift"):
            options |= {
                0: {},
                1: {name: float(rng.normal())},
                2: {name: rng.normal(size=features).astype(work)},
            }[int(rng.integers(3))]
    return options


# ---- The whole of it against the oracle ----


@pytest.mark.parametrize("target_clock", CLOCKS, ids=name_of)
@pytest.mark.parametrize("round_", range(6))
def test_random_streams_give_the_oracles_bits(rng, device, target_clock, round_):
    """Streams of every dtype on every clock with every legal option, to every float type, in one call."""
    for dtype in FLOATS:
        streams, options = [], []
        for values_dtype in rng.permutation(FLOATS + WHOLE)[:7]:
            clock = CLOCKS[rng.integers(3)]
            samples, features = int(rng.integers(0, 20)), int(rng.integers(0, 9))
            streams.append(stream_of(rng, values_dtype, clock, samples=max(samples, 1), features=features))
            streams[-1] = tuple(x[:, :samples] for x in streams[-1])
            options.append(random_options(rng, values_dtype, clock, samples=samples, features=features, out=dtype))
        targets = targets_of(rng, target_clock)
        check(streams, targets, device, options=options, dtype=dtype)
        check(streams, targets, device, options=options, dtype=dtype, target_lengths=rng.integers(0, 24, 3))


@pytest.mark.parametrize("out", FLOATS, ids=name_of)
@pytest.mark.parametrize("dtype", FLOATS + WHOLE, ids=name_of)
def test_every_dtype_to_every_float_gives_the_oracles_bits(rng, device, dtype, out):
    """Hits, mixtures and what is absent, plain and scaled, with a row longer than any block."""
    for features, clock in itertools.product((1, 5, 130), CLOCKS):
        streams = [stream_of(rng, dtype, clock, features=features)]
        targets = targets_of(rng, clock)
        work = fused_work_type(dtype)
        for method in ["linear", "nearest"] if dtype in FLOATS else ["previous"]:
            check(streams, targets, device, method=method, dtype=out)
            scale, shift = rng.normal(size=features).astype(work), rng.normal(size=features).astype(work)
            check(streams, targets, device, method=method, dtype=out, scale=scale, shift=shift)
            check(streams, targets, device, method=method, dtype=out, scale=-1.7, extrapolate="nan")


@pytest.mark.parametrize("dtype", FLOATS + WHOLE, ids=name_of)
def test_streams_of_one_dtype_keep_it(rng, device, dtype):
    streams = [stream_of(rng, dtype, clock, features=d) for d, clock in zip((3, 1, 8), CLOCKS, strict=True)]
    for targets in (targets_of(rng, clock) for clock in CLOCKS):
        check(streams, targets, device, method="linear" if dtype in FLOATS else "next")


small_times = st.lists(st.integers(0, 6), min_size=0, max_size=7).map(sorted)


@given(data=st.data())
def test_any_small_streams_give_the_oracles_bits(device, data):
    target_clock = data.draw(st.sampled_from(CLOCKS))
    seconds = data.draw(st.lists(st.sampled_from(np.arange(-2, 18) / 4), max_size=6))
    targets = np.array(seconds)
    targets = (targets * 1e9).astype(np.int64) if target_clock == np.int64 else targets.astype(target_clock)
    streams, options = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        clock = data.draw(st.sampled_from(CLOCKS))
        unit = 1_000_000_000 if clock == np.int64 else 1
        times = (np.array(data.draw(small_times), np.int64) * unit).astype(clock)
        features = data.draw(st.integers(0, 3))
        values = np.array(data.draw(st.lists(st.floats(width=32), min_size=features, max_size=features)), np.float32)
        values = np.arange(len(times), dtype=np.float32)[:, None] * 3 + values
        streams.append((values.astype(np.float32), times))
        method = data.draw(st.sampled_from(["linear", *STEPS]))
        own = {
            "method": method,
            "causal": method != "next" and data.draw(st.booleans()),
            "extrapolate": data.draw(st.sampled_from(["clamp", "nan"])),
        }
        for name in ("offset", "max_gap"):
            if data.draw(st.booleans()):
                quarters = data.draw(st.integers(0, 12))
                own[name] = quarters * 250_000_000 if clock == np.int64 else quarters / 4
        if data.draw(st.booleans()):
            own["scale"] = data.draw(st.floats(width=32))
        options.append(own)
    check(streams, targets, device, options=options)


@pytest.mark.parametrize("count", [1, 2, 3, 32, MOST_STREAMS])
def test_rule_21_any_number_of_streams(rng, device, count):
    streams, options = [], []
    for place in range(count):
        dtype, clock = FLOATS[place % 4], CLOCKS[place % 3]
        samples = 1 + place % 29
        streams.append(stream_of(rng, dtype, clock, samples=samples, features=1 + place % 7))
        options.append(random_options(rng, dtype, clock, samples=samples, features=1 + place % 7, out=BFLOAT16))
    targets = targets_of(rng, np.dtype(np.float64))
    check(streams, targets, device, options=options, dtype=BFLOAT16)


def test_rule_21_no_stream_and_too_many_are_refused(rng, device):
    targets = to_torch(np.arange(3.0), device)
    with pytest.raises(robocache.ArgumentError, match=r"(?s)streams.*at least one"):
        robocache.fuse_multimodal([], targets)
    with pytest.raises(robocache.ArgumentError, match=r"(?s)streams.*at least one"):
        robocache.fuse_multimodal({}, targets)
    stream = torch.zeros(3, 2, device=device), targets
    robocache.fuse_multimodal([stream] * MOST_STREAMS, targets)
    with pytest.raises(robocache.ArgumentError, match=rf"(?s)streams.*{MOST_STREAMS}.*{MOST_STREAMS + 1}"):
        robocache.fuse_multimodal([stream] * (MOST_STREAMS + 1), targets)


def test_cpu_and_cuda_give_the_same_bits(rng, cuda):
    for dtype, target_clock in itertools.product(FLOATS, CLOCKS):
        streams, options = [], []
        for place, values_dtype in enumerate(FLOATS + WHOLE):
            clock = CLOCKS[(place + int(rng.integers(3))) % 3]
            streams.append(stream_of(rng, values_dtype, clock, batch=5, samples=300, features=1 + 11 * place))
            own = random_options(rng, values_dtype, clock, batch=5, samples=300, features=1 + 11 * place, out=dtype)
            options.append(own)
        targets = targets_of(rng, target_clock, batch=5, count=200)
        results = [fuse(streams, targets, place, options=options, dtype=dtype) for place in ("cpu", cuda)]
        for on_cpu, on_cuda in zip(*results, strict=True):
            assert_same_bits(on_cuda, on_cpu)


@pytest.mark.parametrize(
    ("batch", "samples", "count", "features"),
    [(70_000, 3, 2, 1), (1, 4, 70_001, 3), (2, 70_001, 50, 2), (1, 3, 5, 70_001)],
)
def test_any_dimension_may_pass_65535(rng, device, batch, samples, count, features):
    clock = np.dtype(np.float64)
    wide = stream_of(rng, np.dtype(np.float32), clock, batch=batch, samples=samples, features=features)
    small = stream_of(rng, np.dtype(np.float16), clock, batch=1, samples=5, features=2)
    small = np.broadcast_to(small[0], (batch, 5, 2)).copy(), small[1][0]
    # The oracle is slow: it looks at some rows alone, the others must equal the CPU's or not be NaN-poisoned.
    targets = np.sort(rng.uniform(3.0, 3.05, count))
    out, valid, age = fuse([wide, small], targets, device, dtype=np.float32)
    for rows in (slice(0, 1), slice(batch - 1, batch)):
        some = np.unique(np.r_[0 : min(count, 40), max(count - 40, 0) : count])
        few = [(v[rows], t[rows] if t.ndim == 2 else t) for v, t in (wide, small)]
        expected = oracle(few, targets[some], dtype=np.float32)
        for one, other in zip((out, valid, age), expected, strict=True):
            assert_same_bits(one[rows][:, some], other)


# ---- Time: rules 1, 2, 22, 23 ----


def ramp(samples=5, features=1, dtype=np.float32, clock=np.float64, unit=1):
    """values[s, d] = 10 s + d at the times 0, 1, 2, ... units"""
    values = (10 * np.arange(samples)[:, None] + np.arange(features)).astype(dtype)
    return values, (np.arange(samples) * unit).astype(clock)


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
    # What np.rint(t * 1e9) makes of a float64 t is the sample's own stamp: every target is a hit.
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
def test_rule_1_seconds_beyond_int64_are_its_ends(device, seconds, clock):
    stamps = np.array([INT64.min, -1, 0, 5, INT64.max])
    values = np.arange(5, dtype=np.float32)[:, None]
    with np.errstate(over="ignore"):
        targets = np.array([seconds, np.nan, 0], np.float64).astype(clock)
    for options in ({}, {"offset": 3}, {"offset": float("inf")}, {"method": "next"}):
        check([(values, stamps)], targets, device, **options)


@pytest.mark.parametrize("clock", ["float16", "int32", "uint64", "bool"])
def test_rule_1_other_clocks_are_refused_by_name(device, clock):
    values, times = (to_torch(x, device) for x in ramp())
    other = times.to(getattr(torch, clock))
    with pytest.raises(robocache.ArgumentTypeError, match=rf"streams\['b'\].times: expected float32.*{clock}"):
        robocache.fuse_multimodal({"a": (values, times), "b": (values, other)}, times)
    with pytest.raises(robocache.ArgumentTypeError, match=rf"target_times: expected float32.*{clock}"):
        robocache.fuse_multimodal([(values, times)], other)


@pytest.mark.parametrize("target_clock", CLOCKS, ids=name_of)
@pytest.mark.parametrize("clock", CLOCKS, ids=name_of)
def test_rule_2_durations_count_in_the_streams_own_unit(device, clock, target_clock):
    unit = 1_000_000_000 if clock == np.int64 else 1
    stream = ramp(clock=clock, unit=unit)
    quarters = np.arange(-2, 18)
    targets = quarters * 250_000_000 if target_clock == np.int64 else (quarters / 4).astype(target_clock)
    whole = (lambda x: int(x * unit)) if clock == np.int64 else float
    for options in (
        {"offset": whole(0.5)},
        {"max_gap": whole(1)},
        {"max_gap": whole(0.999)},
        {"method": "previous", "tolerance": whole(0.5)},
        {"causal": True, "max_gap": whole(0.25)},
    ):
        check([stream, stream], targets, device, **options)


@pytest.mark.parametrize("duration", ["max_gap", "tolerance", "offset"])
def test_rule_2_bad_durations_are_refused_by_stream_and_name(device, duration):
    seconds, ns = ramp(), ramp(clock=np.int64)
    targets = to_torch(seconds[1], device)
    streams = {"s": tuple(to_torch(x, device) for x in seconds), "ns": tuple(to_torch(x, device) for x in ns)}

    def call(**given):
        return robocache.fuse_multimodal(streams, targets, method="previous", **{duration: given})

    call(s=0.5, ns=1.0)
    for name, value, what in (
        ("s", -1, "-1"),
        ("s", -1e-9, "0 or more"),
        ("s", float("nan"), "nan"),
        ("ns", -1, "-1"),
        ("ns", 0.5, "whole nanoseconds"),
    ):
        with pytest.raises(robocache.ArgumentError, match=rf"streams\['{name}'\].{duration}: expected .*{what}"):
            call(**{name: value})
    with pytest.raises(robocache.ArgumentTypeError, match=rf"streams\['ns'\].{duration}: expected a number"):
        call(ns="1")


@pytest.mark.parametrize("target_clock", CLOCKS, ids=name_of)
def test_rule_22_the_offset_is_the_sensors_latency(device, target_clock):
    """A sample stamped 2 with a latency of 0.5 was taken at 1.5: a target at 1.5 is on it."""
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


def test_rule_22_offsets_end_where_int64_ends(device):
    stamps = np.array([INT64.min, 0, INT64.max])
    values = np.array([[1], [2], [3]], np.float32)
    targets = np.array([INT64.min, -5, 0, 5, INT64.max - 5, INT64.max])
    for offset in (0, 1, 5, INT64.max - 1, INT64.max, float("inf"), 2.0**70):
        for method in ("linear", *STEPS):
            check([(values, stamps)], targets, device, offset=offset, method=method)


def test_rule_22_an_infinite_offset_is_outside(device):
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
    """[target, then age of linear, nearest, previous, next]; samples at 0, 1, 2, 3, 4."""
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
    for scale, none, kind in ((1, nan, np.float64), (1, nan, np.float32), (10**9, INT64.min, np.int64)):
        rows = table if kind != np.int64 else table[:-1]
        targets = (rows[:, 0] * scale).astype(kind)
        _, _, age = fuse([ramp()] * 4, targets, device, options=[{"method": m} for m in methods])
        assert_same_bits(age, (rows[:, 1:] * scale).astype(kind))
        # Where no sample is used there is no age.
        _, valid, age = fuse([ramp()] * 2, targets, device, options=[{"extrapolate": "nan"}, {"causal": True}])
        assert_same_bits(age[0], np.full(2, none).astype(kind))
        assert not valid[0].any()
        _, _, age = fuse([(np.zeros((0, 1), np.float32), np.zeros(0))], targets, device)
        assert_same_bits(age, np.full((len(targets), 1), none).astype(kind))


def test_rule_23_linear_extrapolation_counts_from_the_earlier_of_the_end_bracket(device):
    _, _, age = fuse([ramp()], np.array([-1.0, 5.0]), device, extrapolate="linear")
    assert age[:, 0].tolist() == [-1.0, 2.0]


def test_rule_23_ages_beyond_int64_are_held(device):
    stamps = np.array([INT64.min, INT64.max])
    values = np.array([[1], [2]], np.float32)
    targets = np.array([INT64.min, INT64.min + 1, -2, 0, INT64.max - 1, INT64.max])
    for method in ("linear", *STEPS):
        check([(values, stamps)], targets, device, method=method)
    check([(values, np.array([-np.inf, np.inf]))], targets, device, method="nearest")
    check([(values, np.array([-1e300, 1e300]))], targets, device, method="next")


def test_rule_23_a_hit_on_infinity_is_0_old(device):
    stream = np.array([[1], [2]], np.float32), np.array([0, np.inf])
    for targets in (np.array([np.inf, 0.0]), np.array([np.inf, 0.0], np.float32)):
        _, valid, age = fuse([stream], targets, device)
        assert valid.all()
        assert not age.any()


# ---- Values: rules 3, 13, 22 ----


def test_rule_22_scale_and_shift_are_one_fma_before_the_only_rounding(device):
    # (1 + 2^-12)^2 - 1 = 2^-11 + 2^-24: a product rounded to float32 first, or a sum rounded to bfloat16 twice, differs.
    x = np.float32(1 + 2**-12)
    stream = np.full((2, 1), x, np.float32), np.arange(2.0)
    out, _, _ = fuse([stream], np.array([0.0, 0.5]), device, scale=float(x), shift=-1.0)
    assert out[:, 0].tolist() == [2**-11 + 2**-24] * 2
    # bfloat16 in, float64 of it out: nothing is rounded to bfloat16 on the way.
    values = np.array([[3.0], [5.0]], BFLOAT16)
    out, _, _ = fuse([(values, np.arange(2.0))], np.array([0.0, 0.25]), device, scale=1 / 3, dtype=np.float64)
    third = np.float32(1 / 3)
    assert out[:, 0].tolist() == [float(np.float32(3) * third), float(np.float32(3.5) * third)]


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_rule_22_float64_is_rounded_once(rng, device, dtype):
    """Values beside the middle of two 16-bit numbers, which a stop in float32 would round onto it."""
    base = rng.uniform(1, 2, 400).astype(dtype).astype(np.float64)
    ulp = {2: 2.0**-11, 4: 2.0**-24, 8: 0.0}[dtype.itemsize] if dtype != BFLOAT16 else 2.0**-8
    values = (base + ulp / 2 * rng.choice([-1, 1], 400) * (1 + rng.choice([-1, 1], 400) * 2.0**-40))[None]
    times = np.zeros(1)
    check([(values, times)], np.array([0.0, 1.0]), device, dtype=dtype)
    check([(values, times)], np.array([0.0, 1.0]), device, dtype=dtype, scale=1.0, shift=0.0)


@pytest.mark.parametrize("dtype", WHOLE, ids=name_of)
def test_rule_22_whole_numbers_come_out_as_floats_or_as_themselves(rng, device, dtype):
    streams = [stream_of(rng, dtype, np.dtype(np.float64))]
    targets = targets_of(rng, np.dtype(np.float64))
    check(streams, targets, device, method="previous")
    check(streams, targets, device, method="previous", dtype=dtype)
    for out in FLOATS:
        check(streams, targets, device, method="nearest", dtype=out)
        check(streams, targets, device, method="nearest", dtype=out, scale=1 / 255, shift=-0.5, extrapolate="nan")
    tensors = [tuple(to_torch(x, device) for x in streams[0])]
    other = "int16" if dtype != np.int16 else "int8"
    with pytest.raises(robocache.ArgumentTypeError, match=rf"streams\[0\].values.*{dtype.name}.*{other}"):
        robocache.fuse_multimodal(tensors, to_torch(targets, device), method="previous", dtype=other)
    with pytest.raises(robocache.ArgumentTypeError, match=r"streams\[0\].scale.*float type"):
        robocache.fuse_multimodal(tensors, to_torch(targets, device), method="previous", scale=2.0)
    with pytest.raises(robocache.ArgumentTypeError, match=r"streams\[0\].values.*'linear'.*previous"):
        robocache.fuse_multimodal(tensors, to_torch(targets, device), dtype="float32")


def test_rule_22_the_0_of_an_absent_integer_stays_0(device):
    stream = np.array([[7], [9]], np.int32), np.array([0.0, 1.0])
    targets = np.array([-1.0, 0.0, np.nan, 1.0])
    options = {"method": "previous", "causal": True, "scale": 2.0, "shift": 100.0}
    out, valid, _ = fuse([stream], targets, device, dtype=np.float32, **options)
    assert out[:, 0].tolist() == [0, 114, 0, 118]
    assert valid[:, 0].tolist() == [False, True, False, True]
    # A float's is NaN, whatever it is scaled by.
    out, _, _ = fuse([(stream[0].astype(np.float32), stream[1])], targets, device, **options)
    assert np.isnan(out[:, 0]).tolist() == [True, False, True, False]


def test_rule_22_scale_alone_and_shift_alone(rng, device):
    for dtype in FLOATS:
        streams = [stream_of(rng, dtype, np.dtype(np.float64))]
        targets = targets_of(rng, np.dtype(np.float64))
        for options in ({"scale": -2.5}, {"shift": 0.75}, {"scale": 0}, {"shift": 3}, {"scale": np.float32(1.5)}):
            check(streams, targets, device, **options)


def test_rule_22_scale_of_another_type_shape_or_place_is_refused(rng, device):
    stream = tuple(to_torch(x, device) for x in stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)))
    targets = stream[1]
    good = torch.ones(5, device=device)
    for name, error, array in (
        ("scale", robocache.ArgumentTypeError, good.double()),
        ("shift", robocache.ArgumentTypeError, good.half()),
        ("scale", robocache.ArgumentError, good[:4]),
        ("scale", robocache.ArgumentError, good[:1]),
        ("shift", robocache.ArgumentError, good[None]),
        ("shift", robocache.ArgumentError, torch.ones(10, device=device)[::2]),
        ("scale", robocache.ArgumentError, good[:1].expand(5)),
        ("scale", robocache.ArgumentTypeError, "2"),
        ("scale", robocache.ArgumentTypeError, True),
    ):
        with pytest.raises(error, match=rf"\b{name}\b"):
            robocache.fuse_multimodal({"arm": stream}, targets, **{name: {"arm": array}})
    with pytest.raises(robocache.ArgumentTypeError, match=r"streams\['arm'\].scale: expected float32, .*got float64"):
        robocache.fuse_multimodal({"arm": stream}, targets, scale={"arm": good.double()})


def test_rule_4_a_hit_is_its_sample_rounded_once(device):
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3.0, 65520.0, 1e-8])
    for dtype, out in itertools.product(FLOATS, FLOATS):
        with np.errstate(over="ignore"):
            values = np.array(list(itertools.product(special, repeat=3))).T.astype(dtype)
        times = np.array([5.0, 6, 9])
        got, valid, age = fuse([(values, times)], times, device, dtype=out, max_gap=0)
        assert valid.all()
        assert not age.any()
        with np.errstate(over="ignore"):
            assert_same_bits(got, values.astype(np.float64).astype(out) if dtype != np.float64 else got)
        check([(values, times)], times, device, dtype=out)


@pytest.mark.parametrize("method", ["linear", *STEPS])
def test_rule_14_bad_times_stay_within_their_row(rng, device, method):
    batch, samples = 4, 40
    times = clock_of(rng, (batch, samples), np.dtype(np.float64))
    times[rng.random(times.shape) < 0.3] = np.nan
    values = np.full((batch, samples, 3), 1, np.float32) * (1 + 10 * np.arange(batch, dtype=np.float32)[:, None, None])
    good = stream_of(rng, np.dtype(np.float32), np.dtype(np.int64), batch=batch, special=False)
    targets = rng.uniform(2.9, 3.5, (batch, 100))
    out, _, _ = fuse([(values, times), good], targets, device, method=method)
    bad = out[..., :3]
    assert (np.isnan(bad) | (bad == values[:, :1])).all()
    assert_same_bits(out[..., 3:], oracle([good], targets, method=method)[0])


# ---- Arguments: rules 15, 16 ----


@pytest.mark.parametrize("empty", ["batch", "samples", "targets", "features"])
def test_rule_15_empty_dimensions_are_fine(rng, device, empty):
    size = {"batch": 2, "samples": 4, "targets": 5, "features": 3} | {empty: 0}
    first = random_values(rng, (size["batch"], size["samples"], size["features"]), np.dtype(np.float32))
    streams = [
        (first, np.sort(rng.random((size["batch"], size["samples"])), 1)),
        (random_values(rng, (size["batch"], 3, 2), np.dtype(np.float32)), np.arange(3)),
    ]
    targets = rng.random((size["batch"], size["targets"]))
    check(streams, targets, device)
    check(streams, targets, device, output="dict")
    check(streams[:1], targets, device)
    if empty != "batch":
        check([(v[0], t[0] if t.ndim == 2 else t) for v, t in streams], targets[0], device)


def test_rule_15_a_clock_of_one_dimension_serves_every_row(rng, device):
    streams = [stream_of(rng, np.dtype(np.float32), clock) for clock in CLOCKS]
    targets = targets_of(rng, np.dtype(np.float64))
    check([(v, t[0]) for v, t in streams], targets, device)
    check(streams, targets[0], device)
    check([streams[0], (streams[1][0], streams[1][1][1]), streams[2]], targets[1], device)
    check([(v[0], t[0]) for v, t in streams], targets[0], device)
    check([(v[0], t[0]) for v, t in streams], targets[0], device, output="dict", target_lengths=np.array([7]))


def test_rule_15_strides_and_alignment_change_nothing(rng, device):
    streams = [
        stream_of(rng, dtype, np.dtype(np.float64), features=d) for dtype, d in zip(FLOATS, (3, 16, 8, 5), strict=True)
    ]
    targets = targets_of(rng, np.dtype(np.float64))
    expected = oracle(streams, targets, dtype=np.float32)

    def forms(tensor):
        yield tensor
        yield tensor.transpose(0, 1).contiguous().transpose(0, 1)
        yield tensor.transpose(-2, -1).contiguous().transpose(-2, -1)
        yield torch.repeat_interleave(tensor, 2, dim=-1)[..., ::2]
        for offset in (1, 3):
            view = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=tensor.device)[offset:]
            yield view.view(tensor.shape).copy_(tensor)

    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]
    for values_form, times_form, targets_form in zip(
        zip(*(forms(v) for v, _ in tensors), strict=True),
        zip(*(forms(t) for _, t in tensors), strict=True),
        forms(to_torch(targets, device)),
        strict=True,
    ):
        got = robocache.fuse_multimodal(
            list(zip(values_form, times_form, strict=True)),
            targets_form,
            dtype="float32",
            return_valid=True,
            return_age=True,
        )
        for one, other in zip(got, expected, strict=True):
            assert_same_bits(to_numpy(one), other)


def test_rule_15_stride_0_is_taken_as_it_is(rng, device):
    (values, times), targets = (
        stream_of(rng, np.dtype(np.float32), np.dtype(np.float64), batch=1),
        np.linspace(3, 3.2, 9),
    )
    one = to_torch(values, device), to_torch(times, device)
    many = one[0].expand(6, -1, -1), one[1].expand(6, -1)
    fused = robocache.fuse_multimodal([many, many], to_torch(targets, device))
    expected = oracle([(values, times)] * 2, targets)[0]
    for row in range(6):
        assert_same_bits(to_numpy(fused)[row], expected[0])


def test_more_short_rows_than_a_gpu_runs_at_once(rng, device):
    """Where a block takes several rows of a narrow stream, and the last block fewer."""
    clock, dtype = np.dtype(np.float32), np.dtype(np.float32)
    sizes = ((9, 64), (30, 3), (5, 8))
    streams = [stream_of(rng, dtype, clock, batch=301, samples=samples, features=d) for samples, d in sizes]
    check(streams, targets_of(rng, clock, batch=301, count=6), device)


def test_rule_15_output_offsets_pass_2_31(device):
    count, features = 70_001, 10_300
    values = torch.randint(0, 255, (1, 3, features), dtype=torch.uint8, device=device).expand(3, -1, -1)
    times = torch.tensor([0, 10, 20], dtype=torch.int64, device=device)
    targets = torch.arange(count, device=device) % 27 - 3
    fused = robocache.fuse_multimodal(
        [(values[..., :300], times), (values[..., 300:], times)], targets, method="previous"
    )
    assert fused.numel() > 2**31
    for row, k in itertools.product((0, 2), (0, 1, 12, 12345, count - 1)):
        used = min(max(int(targets[k]) // 10, 0), 2)
        assert torch.equal(fused[row, k], values[0, used]), (row, k)


def test_rule_15_lengths_and_target_lengths(rng, device):
    streams = [stream_of(rng, np.dtype(np.float32), clock) for clock in CLOCKS]
    targets = targets_of(rng, np.dtype(np.int64))
    lengths = np.array([0, 9, 17], np.int32)
    check(streams, targets, device, lengths=lengths)
    check(streams, targets, device, options=[{"lengths": lengths}, {}, {"lengths": np.array([17, 0, 1])}])
    for target_lengths in (np.array([0, 11, 23]), np.array([23, 1, 0], np.int32)):
        check(streams, targets, device, target_lengths=target_lengths)
        out, valid, age = fuse(streams, targets, device, target_lengths=target_lengths)
        for row, length in enumerate(target_lengths):
            assert np.isnan(out[row, length:]).all()
            assert not valid[row, length:].any()
            assert (age[row, length:] == INT64.min).all()


def test_rule_15_wrong_lengths_are_refused_by_name(rng, device):
    streams = [tuple(to_torch(x, device) for x in stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)))]
    targets = streams[0][1]
    for bad in (np.array([1, 2]), np.array([[1, 2, 3]])):
        with pytest.raises(robocache.ArgumentError, match=r"streams\[0\].lengths: expected \[3\]"):
            robocache.fuse_multimodal(streams, targets, lengths=to_torch(bad, device))
        with pytest.raises(robocache.ArgumentError, match=r"^target_lengths: expected \[3\]"):
            robocache.fuse_multimodal(streams, targets, target_lengths=to_torch(bad, device))
    with pytest.raises(robocache.ArgumentTypeError, match=r"target_lengths: expected int32 or int64, got float64"):
        robocache.fuse_multimodal(streams, targets, target_lengths=to_torch(np.ones(3), device))


@pytest.mark.parametrize("bad", [-1, 18, 2**40])
def test_rule_15_lengths_beyond_what_there_is_are_refused_on_the_cpu(rng, bad):
    streams = {"arm": stream_of(rng, np.dtype(np.float32), np.dtype(np.float64))}
    with pytest.raises(robocache.ArgumentError, match=rf"streams\['arm'\].lengths: .*\[0, 17\], got {bad} at 1"):
        robocache.fuse_multimodal(streams, streams["arm"][1], lengths=np.array([3, bad, 4]))
    with pytest.raises(robocache.ArgumentError, match=rf"^target_lengths: .*\[0, 17\], got {bad} at 1"):
        robocache.fuse_multimodal(streams, streams["arm"][1], target_lengths=np.array([3, bad, 4]))


def test_rule_15_lengths_beyond_what_there_is_are_cut_on_cuda(rng, cuda):
    streams = [stream_of(rng, np.dtype(np.float32), np.dtype(np.float64))]
    targets = targets_of(rng, np.dtype(np.float64))
    wild, tame = np.array([-5, 2**40, 4]), np.array([0, 17, 4])
    got = fuse(streams, targets, cuda, lengths=wild, target_lengths=wild)
    expected = oracle(streams, targets, lengths=tame, target_lengths=np.minimum(np.maximum(wild, 0), 23))
    for one, other in zip(got, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize(
    ("argument", "shapes", "match"),
    [
        ("values", {"b": ((5, 2), (5,))}, r"streams\['b'\].values: expected \[3, S, D\] like streams\['a'\].values"),
        ("batch", {"b": ((4, 5, 2), (5,))}, r"streams\['b'\].values: expected \[3, S, D\].*got \[4, 5, 2\]"),
        ("one row", {"b": ((1, 5, 2), (5,))}, r"streams\['b'\].values: expected \[3, S, D\].*got \[1, 5, 2\]"),
        ("rank", {"b": ((3, 5, 2, 2), (5,))}, r"streams\['b'\].values: expected \[B, S, D\] or \[S, D\]"),
        ("rank", {"a": ((5,), (5,))}, r"streams\['a'\].values: expected \[B, S, D\] or \[S, D\]"),
        ("samples", {"b": ((3, 5, 2), (3, 6))}, r"streams\['b'\].times: expected 5 samples like values, got 6"),
        ("hint", {"b": ((3, 5, 2), (1, 5))}, r"streams\['b'\].times: .*got \[1, 5\]; pass \[S\]"),
        ("times", {"b": ((3, 5, 2), (3, 5, 1))}, r"streams\['b'\].times: expected \[3, S\] or \[S\]"),
        ("targets", {"target_times": (2, 6)}, r"^target_times: expected \[3, T\] or \[T\], got \[2, 6\]"),
        ("hint", {"target_times": (1, 6)}, r"^target_times: .*pass \[T\]"),
        ("targets", {"target_times": ()}, r"^target_times: expected"),
    ],
)
def test_rule_15_wrong_shapes_are_refused_by_stream(device, argument, shapes, match):
    right = {"a": ((3, 4, 2), (3, 4)), "b": ((3, 5, 1), (5,)), "target_times": (3, 6)} | shapes
    zeros = {name: torch.zeros(shape, device=device) for name, shape in right.items() if name == "target_times"}
    streams = {name: tuple(torch.zeros(s, device=device) for s in right[name]) for name in ("a", "b")}
    with pytest.raises(robocache.ArgumentError, match=match):
        robocache.fuse_multimodal(streams, zeros["target_times"])
    with pytest.raises(robocache.ArgumentError, match=match.replace("'a'", "0").replace("'b'", "1")):
        robocache.fuse_multimodal(list(streams.values()), zeros["target_times"])


@pytest.mark.parametrize("output", ["concat", "dict"])
def test_rule_16_out_is_written_whole_and_returned(rng, device, output):
    streams = [
        stream_of(rng, np.dtype(np.float32), clock, features=d) for d, clock in zip((3, 16, 1), CLOCKS, strict=True)
    ]
    targets = targets_of(rng, np.dtype(np.float64))
    expected = oracle(streams, targets, output=output, extrapolate="nan")
    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]
    widths = [20] if output == "concat" else [3, 16, 1]

    def forms(width):
        gaps = poisoned((3, 23, width + 5), torch.float32, device)
        yield poisoned((3, 23, width), torch.float32, device), None
        yield gaps[..., 2 : width + 2], gaps
        yield poisoned((23, 3, width), torch.float32, device).transpose(0, 1), None
        yield poisoned((3, width, 23), torch.float32, device).transpose(1, 2), None

    for form in zip(*(forms(width) for width in widths), strict=True):
        outs = [out for out, _ in form]
        out = outs[0] if output == "concat" else outs
        options = {"output": output, "extrapolate": "nan", "out": out}
        assert robocache.fuse_multimodal(tensors, to_torch(targets, device), **options) is out
        returned, valid, age = robocache.fuse_multimodal(
            tensors, to_torch(targets, device), return_valid=True, return_age=True, **options
        )
        assert returned is out
        for one, other in zip(outs, [expected[0]] if output == "concat" else expected[0], strict=True):
            assert_same_bits(to_numpy(one), other)
        assert_same_bits(to_numpy(valid), expected[1])
        assert_same_bits(to_numpy(age), expected[2])
        for (_, gaps), width in zip(form, widths, strict=True):
            if gaps is not None:
                raw = gaps.cpu().contiguous().view(torch.uint8).view(3, 23, width + 5, -1)
                assert (torch.cat([raw[:, :, :2], raw[:, :, width + 2 :]], 2) == 0xA5).all()


def test_rule_16_out_as_a_dict_and_as_numpy(rng):
    streams = {
        "a": stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)),
        "b": stream_of(rng, BFLOAT16, np.dtype(np.int64)),
    }
    targets = targets_of(rng, np.dtype(np.float64))
    expected = oracle(list(streams.values()), targets, output="dict")[0]
    out = {"b": np.full((3, 23, 5), 7, BFLOAT16), "a": np.full((3, 23, 5), 7, np.float32)}
    assert robocache.fuse_multimodal(streams, targets, output="dict", out=out) is out
    assert_same_bits(out["a"], expected[0])
    assert_same_bits(out["b"], expected[1])
    out["b"].flags.writeable = False
    with pytest.raises(robocache.ArgumentError, match=r"(?s)\bout\b.*read-only"):
        robocache.fuse_multimodal(streams, targets, output="dict", out=out)


def test_rule_16_out_of_another_dtype_shape_or_form_is_refused(rng, device):
    stream = tuple(to_torch(x, device) for x in stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)))
    targets = to_torch(targets_of(rng, np.dtype(np.float64)), device)
    streams = {"a": stream, "b": stream}
    good = torch.zeros(3, 23, 10, device=device)
    half = torch.zeros(3, 23, 5, device=device)

    def call(out, output="concat", **options):
        return robocache.fuse_multimodal(streams, targets, out=out, output=output, **options)

    call(good), call({"a": half, "b": half.clone()}, "dict"), call(good.half(), dtype="float16")
    for error, out, output, match in (
        (robocache.ArgumentTypeError, good.double(), "concat", r"^out: expected float32, got float64"),
        (robocache.ArgumentTypeError, good.int(), "concat", r"^out: expected float32, got int32"),
        (robocache.ArgumentError, good[..., :9], "concat", r"^out: expected \[3, 23, 10\], got \[3, 23, 9\]"),
        (robocache.ArgumentError, good[0], "concat", r"^out: expected \[3, 23, 10\]"),
        (robocache.ArgumentTypeError, {"a": half, "b": half.half()}, "dict", r"streams\['b'\].out: expected float32"),
        (robocache.ArgumentError, {"a": half, "b": good}, "dict", r"streams\['b'\].out: expected \[3, 23, 5\]"),
        (robocache.ArgumentError, {"a": half, "b": half}, "dict", r"streams\['b'\].out: overlaps streams\['a'\].out"),
        (robocache.ArgumentTypeError, {"a": half}, "dict", r"\bout\b.*NoneType"),
        (robocache.ArgumentError, {"a": half, "c": half}, "dict", r"\bout\b.*'c'"),
        (robocache.ArgumentError, [half, half], "dict", r"\bout\b.*dict"),
        (robocache.ArgumentError, good, "dict", r"\bout\b.*dict"),
        (robocache.ArgumentError, good[..., :1].expand(-1, -1, 10), "concat", r"^out: .*stride 0"),
    ):
        with pytest.raises(error, match=match):
            call(out, output)
    with pytest.raises(robocache.ArgumentTypeError, match=r"^out: expected float16, got float32"):
        call(good, dtype="float16")


def test_rule_16_overlap_with_an_input_is_refused_by_name(device):
    storage = torch.zeros(4096, device=device)

    def piece(start, *shape):
        return storage[start : start + int(np.prod(shape))].view(shape)

    out = piece(1000, 4, 3)
    arrays = {
        "values": piece(0, 5, 2),
        "times": piece(20, 5),
        "target_times": piece(40, 4),
        "scale": piece(60, 2),
        "shift": piece(80, 2),
    }
    for name in (None, *arrays):
        given = dict(arrays)
        if name is not None:
            given[name] = piece(1000 - arrays[name].numel() + 1, *arrays[name].shape)
        streams = {"x": (piece(200, 5, 1), piece(220, 5)), "y": (given["values"], given["times"])}
        options = {name: {"y": given[name]} for name in ("scale", "shift")}
        if name is None:
            robocache.fuse_multimodal(streams, given["target_times"], out=out, **options)
            continue
        named = name if name == "target_times" else rf"streams\['y'\].{name}"
        with pytest.raises(robocache.ArgumentError, match=rf"^out: overlaps {named}"):
            robocache.fuse_multimodal(streams, given["target_times"], out=out, **options)


@pytest.mark.parametrize("elsewhere", ["values", "times", "target_times", "lengths", "target_lengths", "scale", "out"])
def test_rule_16_everything_is_on_one_device(cuda, elsewhere):
    tensors = {
        "values": torch.zeros(1, 4, 2, device=cuda),
        "times": torch.arange(4.0, device=cuda),
        "target_times": torch.arange(4.0, device=cuda),
        "lengths": torch.tensor([4], device=cuda),
        "target_lengths": torch.tensor([4], device=cuda),
        "scale": torch.ones(2, device=cuda),
        "out": torch.zeros(1, 4, 4, device=cuda),
    }
    first = tensors["values"], tensors["times"]
    tensors[elsewhere] = tensors[elsewhere].cpu()
    second = tensors.pop("values"), tensors.pop("times")
    tensors["lengths"], tensors["scale"] = [None, tensors["lengths"]], [None, tensors["scale"]]
    with pytest.raises(robocache.ArgumentError, match=rf"(?s)(?=.*\b{elsewhere}\b)(?=.*cpu)(?=.*cuda)"):
        robocache.fuse_multimodal([first, second], **tensors)


# ---- The form of a call: rules 17, 18, 21 ----


def test_rule_21_three_positional_streams(rng, device):
    streams = [
        stream_of(rng, np.dtype(np.float32), clock, features=d) for d, clock in zip((3, 2, 1), CLOCKS, strict=True)
    ]
    targets = targets_of(rng, np.dtype(np.float64))
    flat = [to_torch(x, device) for stream in streams for x in stream]
    fused, valid = robocache.fuse_multimodal(
        *flat, to_torch(targets, device), causal=[True, False, True], return_valid=True
    )
    expected = oracle(streams, targets, options=[{"causal": True}, {}, {"causal": True}])
    assert_same_bits(to_numpy(fused), expected[0])
    assert_same_bits(to_numpy(valid), expected[1])
    for wrong in (flat[:3], flat[:4], flat):
        with pytest.raises(robocache.ArgumentTypeError, match="positional arguments"):
            robocache.fuse_multimodal(*wrong)


def test_rule_21_dict_in_and_one_option_a_stream(rng, device):
    arm = stream_of(rng, np.dtype(np.float32), np.dtype(np.float64))
    camera = stream_of(rng, np.dtype(np.uint8), np.dtype(np.int64), features=4)
    imu = stream_of(rng, np.dtype(np.float16), np.dtype(np.float32), features=2)
    streams = {
        name: tuple(to_torch(x, device) for x in stream)
        for name, stream in zip(("arm", "camera", "imu"), (arm, camera, imu), strict=True)
    }
    targets = targets_of(rng, np.dtype(np.float64))
    own = [{"max_gap": 0.01}, {"method": "previous", "offset": 2_000_000, "scale": 1 / 255}, {"extrapolate": "nan"}]
    keywords = {
        "max_gap": {"arm": 0.01},
        "method": {"camera": "previous"},
        "offset": {"camera": 2_000_000},
        "scale": {"camera": 1 / 255, "arm": None},
        "extrapolate": {"imu": "nan"},
    }
    expected = oracle([arm, camera, imu], targets, options=own, dtype=np.float32)
    fused = robocache.fuse_multimodal(streams, to_torch(targets, device), dtype=torch.float32, **keywords)
    assert_same_bits(to_numpy(fused), expected[0])
    separate = robocache.fuse_multimodal(
        streams, to_torch(targets, device), output="dict", dtype={"camera": "float32"}, **keywords
    )
    assert list(separate) == ["arm", "camera", "imu"]
    kept = oracle([arm, camera, imu], targets, options=[own[0], own[1] | {"dtype": np.float32}, own[2]], output="dict")[
        0
    ]
    for one, other in zip(separate.values(), kept, strict=True):
        assert_same_bits(to_numpy(one), other)


def resampled(stream, targets, device, **options):
    values, times = (to_torch(x, device) for x in stream)
    return [
        to_numpy(x)
        for x in robocache.resample_trajectories(values, times, to_torch(targets, device), return_valid=True, **options)
    ]


@pytest.mark.parametrize("clock", CLOCKS, ids=name_of)
def test_rules_8_to_10_every_method_is_that_of_resample(rng, device, clock):
    """Curves and rotations are held to their oracles by the tests of resample; here they stand among other streams."""
    targets = targets_of(rng, clock)
    pose = stream_of(rng, np.dtype(np.float64), clock, features=9, special=False)
    arm = stream_of(rng, np.dtype(np.float32), clock, features=4, special=False)
    wheels = stream_of(rng, np.dtype(np.float32), clock, features=6, special=False)
    streams = {
        name: tuple(to_torch(x, device) for x in stream)
        for name, stream in (("pose", pose), ("arm", arm), ("wheels", wheels))
    }
    for curve, boundary in (("pchip", None), ("akima", None), ("cubic", None), ("cubic", "natural")):
        fused, valid, age = robocache.fuse_multimodal(
            streams,
            to_torch(targets, device),
            method={"pose": "nearest", "arm": "slerp", "wheels": curve},
            methods={"pose": [(slice(1, 8), "pose")]},
            extrapolate={"arm": "linear"},
            bc_type={"wheels": boundary},
            output="dict",
            return_valid=True,
            return_age=True,
        )
        options = [
            {"method": "nearest", "methods": [(slice(1, 8), "pose")]},
            {"method": "slerp", "extrapolate": "linear"},
            {"method": curve} | ({"bc_type": boundary} if boundary else {}),
        ]
        for place, (name, stream) in enumerate((("pose", pose), ("arm", arm), ("wheels", wheels))):
            out, its_valid = resampled(stream, targets, device, **options[place])
            assert_same_bits(to_numpy(fused[name]), out, name)
            assert_same_bits(to_numpy(valid)[..., place], its_valid, name)
        # A stream of several methods has one age: that of its first features.
        nearest = oracle([pose], targets, method="nearest")[2]
        line = oracle([wheels], targets)[2]
        assert_same_bits(to_numpy(age)[..., :1], nearest)
        assert_same_bits(to_numpy(age)[..., 2:], line)


def test_rule_10_several_cubic_streams_share_their_memory(rng, device):
    """An odd number of samples each, so that what follows a spline's memory is where it must be."""
    streams = [
        stream_of(rng, dtype, clock, samples=s, features=d, special=False)
        for dtype, clock, s, d in (
            (FLOATS[1], CLOCKS[0], 17, 5),
            (FLOATS[0], CLOCKS[1], 3, 1),
            (FLOATS[1], CLOCKS[2], 1, 3),
            (FLOATS[0], CLOCKS[2], 11, 2),
        )
    ]
    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]
    methods = [None, None, [(slice(1, 2), "linear")], None]
    for clock in CLOCKS:
        targets = targets_of(rng, clock)
        fused = robocache.fuse_multimodal(
            tensors, to_torch(targets, device), method="cubic", methods=methods, output="dict"
        )
        for place, (values, times) in enumerate(streams):
            if times.dtype == clock:
                expected, _ = resampled((values, times), targets, device, method="cubic", methods=methods[place])
                assert_same_bits(to_numpy(fused[place]), expected)


def test_rule_22_scale_and_shift_meet_the_features_of_their_method(rng, device):
    pose = stream_of(rng, np.dtype(np.float32), np.dtype(np.float64), features=9, special=False)
    targets = targets_of(rng, np.dtype(np.float64))
    values, times = (to_torch(x, device) for x in pose)
    scale, shift = (rng.normal(size=9).astype(np.float32) for _ in range(2))
    methods = [(slice(1, 3), "nearest"), (slice(4, None), "previous")]
    fused = robocache.fuse_multimodal(
        [(values, times)],
        to_torch(targets, device),
        methods=methods,
        scale=to_torch(scale, device),
        shift=to_torch(shift, device),
    )
    for features, method in ((slice(0, 1), "linear"), (slice(3, 4), "linear"), *methods):
        part = pose[0][..., features], pose[1]
        expected = oracle([part], targets, method=method, scale=scale[features], shift=shift[features])[0]
        assert_same_bits(to_numpy(fused)[..., features], expected, method)


def test_rule_9_methods_are_for_all_streams_or_one_a_stream(rng, device):
    streams = [stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)) for _ in range(2)]
    targets = targets_of(rng, np.dtype(np.float64))
    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]

    def call(methods, form=list):
        given = tensors if form is list else dict(zip("ab", tensors, strict=True))
        return to_numpy(robocache.fuse_multimodal(given, to_torch(targets, device), methods=methods))

    blocks = [(slice(0, 2), "previous"), (slice(-1, None), "nearest")]
    plain, steps = (oracle(streams, targets, method=m)[0] for m in ("linear", "previous"))
    nearest = oracle(streams, targets, method="nearest")[0]
    both = plain.copy()
    for first in (0, 5):
        both[..., first : first + 2] = steps[..., first : first + 2]
        both[..., first + 4] = nearest[..., first + 4]
    only_second = np.concatenate([plain[..., :5], both[..., 5:]], -1)
    assert_same_bits(call(blocks), both)
    assert_same_bits(call(blocks, dict), both)
    assert_same_bits(call([None, blocks]), only_second)
    assert_same_bits(call({"b": blocks}, dict), only_second)
    assert_same_bits(call([]), plain)
    with pytest.raises(robocache.ArgumentError, match=r"streams\[1\].methods: .*overlap"):
        call([None, [(slice(0, 2), "next"), (slice(1, 3), "nearest")]])
    with pytest.raises(robocache.ArgumentError, match=r"streams\['b'\].methods: .*cubicle"):
        call({"b": [(slice(0, 2), "cubicle")]}, dict)
    with pytest.raises(robocache.ArgumentError, match=r"methods: expected one for each of the 2 streams"):
        call([blocks])
    with pytest.raises(robocache.ArgumentTypeError, match=r"methods: expected a slice"):
        call([(3, "nearest")])


def test_rule_21_list_in_list_out_and_the_order_of_the_answers(rng, device):
    streams = [stream_of(rng, dtype, np.dtype(np.float64)) for dtype in FLOATS]
    targets = targets_of(rng, np.dtype(np.float64))
    check(streams, targets, device, output="dict")
    check(streams, targets, device, output="dict", dtype=BFLOAT16)
    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]
    expected = dict(zip(("out", "valid", "age"), oracle(streams, targets, dtype=np.float32), strict=True))
    for valid, age in itertools.product((False, True), repeat=2):
        got = robocache.fuse_multimodal(
            tensors, to_torch(targets, device), dtype="float32", return_valid=valid, return_age=age
        )
        asked = ["out"] + ["valid"] * valid + ["age"] * age
        got = got if isinstance(got, tuple) else (got,)
        assert len(got) == len(asked)
        for name, one in zip(asked, got, strict=True):
            assert_same_bits(to_numpy(one), expected[name], name)
    separate, valid = robocache.fuse_multimodal(tensors, to_torch(targets, device), output="dict", return_valid=True)
    assert isinstance(separate, list)
    assert valid.shape == (3, 23, 4)


def test_rule_21_a_dtype_must_be_given_where_the_streams_differ(rng, device):
    streams = {
        "a": stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)),
        "b": stream_of(rng, BFLOAT16, np.dtype(np.float64)),
    }
    tensors = {name: tuple(to_torch(x, device) for x in stream) for name, stream in streams.items()}
    targets = tensors["a"][1]
    with pytest.raises(
        robocache.ArgumentTypeError,
        match=r"dtype: expected to be given.*streams\['a'\].values is float32.*streams\['b'\].values is bfloat16",
    ):
        robocache.fuse_multimodal(tensors, targets)
    for dtype in (torch.bfloat16, "bfloat16", BFLOAT16):
        assert robocache.fuse_multimodal(tensors, targets, dtype=dtype).dtype == torch.bfloat16
    whole = {"a": (tensors["a"][0].int(), targets), "b": (tensors["b"][0].to(torch.int8), targets)}
    with pytest.raises(robocache.ArgumentTypeError, match=r"dtype: expected to be given"):
        robocache.fuse_multimodal(whole, targets, method="previous")
    for dtype in ("int32", "int64"):
        with pytest.raises(robocache.ArgumentTypeError, match=rf"streams\['.'\].values.*got dtype {dtype}"):
            robocache.fuse_multimodal(whole, targets, method="previous", dtype=dtype)
    with pytest.raises(robocache.ArgumentTypeError, match=r"streams\['a'\].values.*a float type, got dtype int32"):
        robocache.fuse_multimodal(tensors, targets, dtype="int32")
    with pytest.raises(robocache.ArgumentError, match=r"dtype: .*'concat'"):
        robocache.fuse_multimodal(tensors, targets, dtype={"a": "float32", "b": "float32"})
    with pytest.raises(robocache.ArgumentError, match=r"dtype.*float9"):
        robocache.fuse_multimodal(tensors, targets, dtype="float9")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"method": "cubicle"}, ["method", "cubicle", "nearest"]),
        ({"method": {"b": "cubicle"}}, ["streams['b'].method", "cubicle", "nearest"]),
        ({"extrapolate": {"a": "hold"}}, ["streams['a'].extrapolate", "hold", "clamp"]),
        ({"method": {"c": "linear"}}, ["method", "'a', 'b'", "'c'"]),
        ({"method": ["linear", "linear"]}, ["method", "dict", "list"]),
        ({"output": "tuple"}, ["output", "'concat' or 'dict'", "tuple"]),
        ({"tolerance": 1.0}, ["streams['a'].tolerance", "linear"]),
        ({"method": {"b": "next"}, "causal": True}, ["streams['b'].causal", "next"]),
        ({"method": {"b": "next"}, "extrapolate": "linear"}, ["streams['b'].extrapolate", "linear", "step"]),
    ],
)
def test_rule_17_errors_name_stream_and_argument(device, options, parts):
    stream = tuple(to_torch(x, device) for x in ramp())
    with pytest.raises(robocache.ArgumentError) as caught:
        robocache.fuse_multimodal({"a": stream, "b": stream}, stream[1], **options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"method": ["linear"]}, ["method", "2 streams", "got 1"]),
        ({"max_gap": (1, 2, 3)}, ["max_gap", "2 streams", "got 3"]),
        ({"scale": {"a": 2.0}}, ["scale", "list", "dict"]),
        ({"causal": [True, 3]}, ["streams[1].causal", "True or False"]),
        ({"method": None}, ["method", "str"]),
        ({"return_age": 1}, ["return_age", "True or False"]),
    ],
)
def test_rule_17_errors_name_the_place_in_a_list(device, options, parts):
    stream = tuple(to_torch(x, device) for x in ramp())
    with pytest.raises(robocache.Error) as caught:
        robocache.fuse_multimodal([stream, stream], stream[1], **options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("value", [None, "abc", 3, object(), [[1.0], [2.0]]], ids=lambda v: type(v).__name__)
def test_rule_17_what_is_no_array_is_refused_by_name(value):
    values, times = ramp()
    for streams, named in (
        ({"imu": (value, times)}, r"streams\['imu'\].values"),
        ([(values, times), (values, value)], r"streams\[1\].times"),
    ):
        with pytest.raises(robocache.ArgumentTypeError, match=named):
            robocache.fuse_multimodal(streams, times)
    with pytest.raises(robocache.ArgumentTypeError, match=r"^target_times"):
        robocache.fuse_multimodal([(values, times)], value)
    for streams, named in (
        (values, "streams: expected"),
        ([values, times], r"streams\[0\]"),
        ({"a": times}, r"streams\['a'\]"),
    ):
        with pytest.raises(robocache.ArgumentTypeError, match=named):
            robocache.fuse_multimodal(streams, times)


def test_rule_17_nothing_is_written_by_a_refused_call(rng, device):
    streams = [tuple(to_torch(x, device) for x in stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)))] * 2
    out = poisoned((3, 17, 10), torch.float32, device)
    before = out.clone()
    with pytest.raises(robocache.ArgumentError, match=r"streams\[1\].max_gap"):
        robocache.fuse_multimodal(streams, streams[0][1], out=out, max_gap=[1.0, -1.0])
    assert torch.equal(out.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("output", ["concat", "dict"])
def test_rule_18_numpy_in_numpy_out(rng, output):
    for dtype in FLOATS:
        streams = [stream_of(rng, dtype, clock) for clock in CLOCKS]
        targets = targets_of(rng, np.dtype(np.float64))
        for array in (*itertools.chain(*streams), targets):
            array.flags.writeable = False
        scale = np.full(5, 2, fused_work_type(dtype))
        fused, valid, age = robocache.fuse_multimodal(
            streams, targets, output=output, scale=scale, return_valid=True, return_age=True
        )
        expected = oracle(streams, targets, output=output, scale=scale)
        for one, other in zip(
            fused if output == "dict" else [fused], expected[0] if output == "dict" else [expected[0]], strict=True
        ):
            assert isinstance(one, np.ndarray)
            assert_same_bits(one, other)
            one[...] = 0  # its own, writable memory
        assert_same_bits(valid, expected[1])
        assert_same_bits(age, expected[2])


def test_rule_18_only_dlpack_in_dlpack_out(rng, device):
    streams = [stream_of(rng, np.dtype(np.float32), np.dtype(np.float64))] * 2
    targets = targets_of(rng, np.dtype(np.float64))
    wrapped = [tuple(OnlyDLPack(to_torch(x, device)) for x in stream) for stream in streams]
    got = robocache.fuse_multimodal(wrapped, OnlyDLPack(to_torch(targets, device)), return_valid=True, return_age=True)
    for one, other in zip(got, oracle(streams, targets), strict=True):
        assert not isinstance(one, np.ndarray | torch.Tensor)
        back = torch.from_dlpack(one)
        assert back.device.type == device
        assert_same_bits(to_numpy(back).astype(other.dtype), other)


def test_rule_18_the_framework_is_that_of_the_first_streams_values(rng):
    first, second = (stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)) for _ in range(2))
    targets = targets_of(rng, np.dtype(np.float64))
    expected = oracle([first, second], targets)
    as_torch = tuple(to_torch(x) for x in second)
    for streams, kind in (([first, as_torch], np.ndarray), ([as_torch, first], torch.Tensor)):
        want = expected if kind is np.ndarray else oracle([second, first], targets)
        got = robocache.fuse_multimodal(streams, targets, return_valid=True, return_age=True)
        for one, other in zip(got, want, strict=True):
            assert isinstance(one, kind)
            assert_same_bits(to_numpy(one), other)


def test_rule_20_the_number_of_threads_changes_nothing(rng):
    streams = [stream_of(rng, dtype, np.dtype(np.float64), batch=8, samples=50, features=40) for dtype in FLOATS]
    targets = targets_of(rng, np.dtype(np.float64), batch=8, count=100)
    before = robocache.num_threads()
    answers = []
    try:
        for threads in (1, 2, 5):
            robocache.set_num_threads(threads)
            answers.append(fuse(streams, targets, dtype=np.float32))
    finally:
        robocache.set_num_threads(before)
    for other in answers[1:]:
        for one, two in zip(answers[0], other, strict=True):
            assert_same_bits(one, two)


# ---- CUDA: one launch, streams, graphs ----


def test_one_launch_whatever_the_number_of_streams(rng, cuda):
    tensors = [tuple(to_torch(x, cuda) for x in stream_of(rng, FLOATS[i % 4], CLOCKS[i % 3])) for i in range(40)]
    targets = to_torch(targets_of(rng, np.dtype(np.float64)), cuda)
    options = {"dtype": "float32", "method": ["linear", "nearest"] * 20, "scale": 2.0}
    out = robocache.fuse_multimodal(tensors, targets, **options)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        robocache.fuse_multimodal(tensors, targets, out=out, **options)
        torch.cuda.synchronize()
    kernels = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 1, kernels


def test_a_graph_of_a_call_replays_on_new_values(rng, cuda):
    streams = [stream_of(rng, np.dtype(np.float32), clock) for clock in CLOCKS]
    targets = targets_of(rng, np.dtype(np.float64))
    tensors = [tuple(to_torch(x, cuda) for x in stream) for stream in streams]
    target_tensor = to_torch(targets, cuda)
    out = robocache.fuse_multimodal(tensors, target_tensor)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        robocache.fuse_multimodal(tensors, target_tensor, out=out, scale=-2.0)
    fresh = [stream_of(rng, np.dtype(np.float32), clock) for clock in CLOCKS]
    for tensor, (values, _) in zip(tensors, fresh, strict=True):
        tensor[0].copy_(to_torch(values, cuda))
    graph.replay()
    expected = oracle([(v, t) for (v, _), (_, t) in zip(fresh, streams, strict=True)], targets, scale=-2.0)[0]
    assert_same_bits(to_numpy(out), expected)


def test_this_is_the_documented_example():
    imu = np.array([[0.0], [10.0]]), np.array([0.0, 1.0])
    gripper = np.array([[1.0], [0.0]]), np.array([0, 250_000_000])
    fused = robocache.fuse_multimodal(
        {"imu": imu, "gripper": gripper}, np.array([0.125, 0.5]), method={"gripper": "previous"}
    )
    assert fused.tolist() == [[1.25, 1.0], [5.0, 0.0]]
