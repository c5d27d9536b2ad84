"""resample_trajectories by curves, rotations and methods by feature blocks, rule by rule, on the CPU and on CUDA.

The oracle is scipy in float64 (tests/reference/resample.py); the bounds are those that docs/rules.md derives in
rules 8.1 and 10.1.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.compare import OnlyDLPack, assert_same_bits, assert_within, poisoned, to_numpy, to_torch
from reference.random_streams import CLOCKS, EPOCH_NS, FLOATS, STEPS, random_targets
from reference.resample import CURVES, Expected, resample_curve
from reference.resample import resample as oracle

import robocache

torch = pytest.importorskip("torch")

ROTATIONS = ["slerp", "pose"]
WIDTHS = {"slerp": 4, "pose": 7}


def name_of(parameter):
    return parameter.name if isinstance(parameter, np.dtype) else None


each_float = pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
each_clock = pytest.mark.parametrize("clock", CLOCKS, ids=name_of)
each_curve = pytest.mark.parametrize("method", CURVES)
each_method = pytest.mark.parametrize("method", [*CURVES, *ROTATIONS])
float32, float64 = FLOATS[1], FLOATS[0]


def resample(values, times, targets, device="cpu", **options):
    """(out, valid) as NumPy arrays, of NumPy arrays that go through torch on `device`, into poisoned memory."""
    for name in ("lengths", "target_lengths"):
        if isinstance(options.get(name), np.ndarray):
            options[name] = to_torch(options[name], device)
    values, times, targets = (to_torch(x, device) for x in (values, times, targets))
    out = poisoned((*values.shape[:-2], targets.shape[-1], values.shape[-1]), values.dtype, device)
    _, valid = robocache.resample_trajectories(values, times, targets, out=out, return_valid=True, **options)
    return to_numpy(out), to_numpy(valid)


def check(values, times, targets, device="cpu", **options):
    out, valid = resample(values, times, targets, device, **options)
    expected = resample_curve(values, times, targets, **options)
    assert_same_bits(valid, expected.valid, f"valid, {options}")
    assert_within(out, expected, f"values, {options}")


def random_times(rng, batch, samples, clock, duplicates=True):
    """Sorted, jittered, some twice or three times; whole multiples of 2^-17 s, so that differences are exact."""
    gaps = np.ceil(rng.uniform(0.2, 1.8, (batch, samples)) * 0.01 * 2**17) / 2**17
    if duplicates:
        gaps[rng.random((batch, samples)) < 0.2] = 0
    seconds = np.cumsum(gaps, axis=1)
    if clock == np.int64:
        return EPOCH_NS + np.round(seconds * 1e9).astype(np.int64)
    return (seconds + 3.0).astype(clock)


def random_values(rng, shape, dtype, special=True):
    """Of many sizes, with plateaus and straight stretches, where slopes are decided; now and then no number at all."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))
    x = np.where(rng.random(shape) < 0.3, np.round(x), x)
    kept = rng.random(shape) < 0.25
    for s in range(1, shape[-2]):
        x[..., s, :] = np.where(kept[..., s, :], x[..., s - 1, :], x[..., s, :])
    if special:
        extreme = np.array([np.nan, np.inf, 0.0, -0.0, 1e-41, 3e38, -3e38])
        x = np.where(rng.random(shape) < 0.02, rng.choice(extreme, shape), x)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def random_case(rng, dtype, clock, *, method="pchip", batch=3, samples=17, targets=37, features=5, special=True):
    times = random_times(rng, batch, samples, clock)
    values = random_values(rng, (batch, samples, WIDTHS.get(method, features)), dtype, special)
    return values, times, random_targets(rng, times, targets)


# ---- The whole of it against scipy ----


@each_method
@each_float
@each_clock
def test_every_option_is_within_the_bound_of_scipy(rng, device, method, dtype, clock):
    gap = 12_000_000 if clock == np.int64 else 0.012
    for extrapolate, causal, max_gap in itertools.product(["clamp", "nan", "linear"], [False, True], [None, gap]):
        options = {"method": method, "extrapolate": extrapolate, "causal": causal, "max_gap": max_gap}
        values, times, targets = random_case(rng, dtype, clock, method=method)
        check(values, times, targets, device, lengths=rng.integers(0, 18, 3), **options)
        check(values, times, targets, device, target_lengths=rng.integers(0, 38, 3), **options)


@each_curve
@pytest.mark.parametrize("samples", [2, 3, 4, 5, 6, 7, 100, 3000])
@each_clock
def test_every_sample_count_is_within_the_bound(rng, device, method, samples, clock):
    for dtype, features in ((float64, 5), (float32, 5), (float32, 16)):
        case = random_case(rng, dtype, clock, batch=2, samples=samples, targets=200, features=features, special=False)
        for extrapolate in ("clamp", "linear"):
            check(*case, device, method=method, extrapolate=extrapolate)


@each_curve
@each_float
@pytest.mark.parametrize("features", [1, 2, 3, 7, 8, 12, 14, 16, 63, 64, 65, 130, 257])
def test_every_feature_count_is_within_the_bound(rng, device, method, dtype, features):
    case = random_case(rng, dtype, np.dtype(np.float64), batch=2, features=features, special=False)
    check(*case, device, method=method)


@pytest.mark.parametrize("method", ["pchip", "akima", "cubic", "slerp"])
@pytest.mark.parametrize("targets", [1, 2, 31, 33, 127, 255, 256, 257, 1025])
def test_every_target_count_is_within_the_bound(rng, device, method, targets):
    case = random_case(rng, FLOATS[2], np.dtype(np.int64), method=method, batch=2, targets=targets)
    check(*case, device, method=method)


values_of = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6, width=32, allow_subnormal=False))


@each_method
@given(data=st.data())
def test_any_small_row_is_within_the_bound(device, method, data):
    clock, dtype = data.draw(st.sampled_from(CLOCKS)), data.draw(st.sampled_from(FLOATS[:2]))
    times = 2 * np.array(data.draw(st.lists(st.integers(0, 9), max_size=10).map(sorted)), np.int64)
    targets = np.array(data.draw(st.lists(st.integers(-3, 22), max_size=8)), np.int64)
    times, targets = (x + EPOCH_NS if clock == np.int64 else (x / 2).astype(clock) for x in (times, targets))
    features = WIDTHS.get(method, 2)
    drawn = data.draw(st.lists(values_of, min_size=len(times) * features, max_size=len(times) * features))
    values = np.array(drawn, np.float64).astype(dtype).reshape(len(times), features)
    check(
        values,
        times,
        targets,
        device,
        method=method,
        extrapolate=data.draw(st.sampled_from(["clamp", "nan", "linear"])),
    )


@each_method
@each_clock
def test_rule_10_cpu_and_cuda_agree_within_the_sum_of_their_bounds(rng, cuda, method, clock):
    for dtype in FLOATS:
        case = random_case(rng, dtype, clock, method=method, batch=9, samples=300, targets=700)
        expected = resample_curve(*case, method=method)
        on_cpu, on_cuda = (resample(*case, device, method=method)[0].astype(np.float64) for device in ("cpu", cuda))
        off = np.abs(on_cpu - on_cuda)
        assert (np.isnan(off) | (off <= 2 * expected.bound)).all()


def test_a_pchip_does_not_overshoot(rng, device):
    values = np.cumsum(rng.integers(0, 2, (200, 9)) * rng.random((200, 9)), axis=0).astype(np.float32)
    times = random_times(rng, 1, 200, np.dtype(np.float64), duplicates=False)[0]
    targets = np.sort(rng.uniform(times[0], times[-1], 3000))
    out, _ = resample(values, times, targets, device, method="pchip")
    before = np.searchsorted(times, targets, side="right") - 1
    after = np.minimum(before + 1, 199)
    slack = 8 * np.finfo(np.float32).eps * np.abs(values[after])
    assert (out >= values[before] - slack).all()
    assert (out <= values[after] + slack).all()


@pytest.mark.parametrize("method", ["akima", "cubic"])
def test_a_straight_line_stays_one(device, method):
    times = np.array([0, 1, 3, 4, 8, 9, 10], np.float64)
    values = np.stack([2 * times + 1, -times], axis=1)
    targets = np.linspace(-2, 12, 57)
    out, _ = resample(values, times, targets, device, method=method, extrapolate="linear")
    np.testing.assert_allclose(out, np.stack([2 * targets + 1, -targets], axis=1), rtol=0, atol=1e-14)


# ---- Which sample: rules 4 to 7 ----


@each_method
@each_float
@each_clock
def test_rule_4_a_hit_returns_its_sample_whatever_the_neighbours_hold(device, dtype, method, clock):
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3.0]
    width = WIDTHS.get(method, 3)
    with np.errstate(over="ignore"):
        values = np.array(special, np.float64)[np.arange(6 * width).reshape(6, width) % 7].astype(dtype)
    times = np.array([5, 6, 9, 11, 12, 20]).astype(clock)
    for extrapolate in ("clamp", "nan", "linear"):
        out, valid = resample(values, times, times, device, method=method, max_gap=0, extrapolate=extrapolate)
        assert valid.all()
        assert_same_bits(out, values)


@each_method
@each_clock
def test_rule_5_removing_the_duplicates_changes_nothing(rng, device, method, clock):
    values, times, targets = random_case(rng, float64, clock, method=method, batch=1, samples=60, special=False)
    last = np.append(times[0, 1:] != times[0, :-1], True)
    for extrapolate in ("clamp", "nan", "linear"):
        options = {"method": method, "extrapolate": extrapolate}
        with_duplicates = resample(values, times, targets, device, **options)
        without = resample(values[:, last], times[:, last], targets, device, **options)
        for one, other in zip(with_duplicates, without, strict=True):
            assert_same_bits(one, other)


@each_method
def test_rule_5_a_time_many_times_over(rng, device, method):
    times = np.repeat([1.0, 2.0, 4.0, 5.0, 7.0], [300, 1, 500, 2, 100])[None]
    values = random_values(rng, (1, times.size, WIDTHS.get(method, 3)), float64, special=False)
    check(values, times, np.linspace(0, 8, 100)[None], device, method=method, extrapolate="linear")


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "bool"])
@each_method
def test_rule_6_integers_take_the_steps_alone(device, dtype, method):
    values = np.zeros((5, WIDTHS.get(method, 3)), dtype)
    with pytest.raises(robocache.ArgumentTypeError, match=rf"(?s)values.*'(linear|{method})'.*{dtype}.*nearest"):
        resample(values, np.arange(5.0), np.arange(5.0), device, method=method)


@each_method
@each_float
def test_rule_7_causal_is_previous(rng, device, method, dtype):
    values, times, targets = random_case(rng, dtype, np.dtype(np.int64), method=method)
    for extrapolate in ("clamp", "nan"):
        options = {"causal": True, "max_gap": 8_000_000, "extrapolate": extrapolate}
        out, valid = resample(values, times, targets, device, method=method, **options)
        expected, expected_valid = oracle(values, times, targets, method="previous", **options)
        assert_same_bits(out, expected)
        assert_same_bits(valid, expected_valid)


# ---- Rotations: rule 8 ----


def turned(axis, degrees):
    half = np.radians(degrees) / 2
    return np.append(np.sin(half) * np.asarray(axis, np.float64), np.cos(half))


@each_float
def test_rule_8_slerp_turns_at_an_even_rate(device, dtype):
    values = np.stack([turned([0, 0, 1], 10), turned([0, 0, 1], 110)]).astype(dtype)
    targets = np.linspace(0, 1, 11)
    out, _ = resample(values, np.array([0.0, 1.0]), targets, device, method="slerp")
    expected = np.stack([turned([0, 0, 1], 10 + 100 * t) for t in targets])
    np.testing.assert_allclose(
        out.astype(np.float64), expected, rtol=0, atol=4 * 2.0 ** {8: -53, 4: -23}.get(dtype.itemsize, -8)
    )


def test_rule_8_the_shortest_arc_in_the_earlier_samples_hemisphere(device):
    a, b = turned([0, 0, 1], 0), turned([0, 0, 1], 60)
    for sign_a, sign_b in itertools.product([1, -1], [1, -1]):
        out, _ = resample(
            np.stack([sign_a * a, sign_b * b]), np.array([0.0, 1.0]), np.array([0.5]), device, method="slerp"
        )
        np.testing.assert_allclose(out[0], sign_a * turned([0, 0, 1], 30), rtol=0, atol=1e-15)


def test_rule_8_the_order_of_components_does_not_matter(rng, device):
    values, times, targets = random_case(rng, float32, np.dtype(np.float64), method="slerp", special=False)
    out, _ = resample(values, times, targets, device, method="slerp")
    order = [3, 0, 1, 2]
    moved, _ = resample(values[..., order], times, targets, device, method="slerp")
    np.testing.assert_allclose(moved, out[..., order], rtol=0, atol=128 * 2.0**-24)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=name_of)
@pytest.mark.parametrize("length", [1e-40, 1e-30, 1e-19, 1e-3, 7.0, 1e19, 1e30, 3e38])
def test_rule_8_inputs_of_any_length_are_normalised(rng, device, dtype, length):
    unit = rng.standard_normal((6, 4))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    values = (unit * length).astype(dtype)
    targets = np.linspace(0.1, 4.9, 40)
    check(values, np.arange(6.0), targets, device, method="slerp")
    out, _ = resample(values, np.arange(6.0), targets, device, method="slerp")
    between = targets != np.round(targets)
    np.testing.assert_allclose(np.linalg.norm(out[between].astype(np.float64), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=name_of)
@pytest.mark.parametrize("degrees", [0, 1e-12, 1e-8, 1e-6, 1e-4, 1e-2, 1, 90, 179, 179.99, 181, 270, 359, 359.9999])
def test_rule_8_tiny_and_near_opposite_angles(rng, device, dtype, degrees):
    axis = rng.standard_normal(3)
    values = np.stack([turned([0, 0, 1], 0), turned(axis / np.linalg.norm(axis), degrees)]).astype(dtype)
    targets = np.linspace(0, 1, 33)
    for values_of_sign in (values, values * np.array([[1], [-1]], dtype)):
        check(values_of_sign, np.array([0.0, 1.0]), targets, device, method="slerp")
        check(
            values_of_sign, np.array([0.0, 1.0]), np.linspace(-3, 3, 33), device, method="slerp", extrapolate="linear"
        )


def test_rule_8_a_small_turn_keeps_its_digits(device):
    # 1e-6 rad: an arc cosine of float32 would find no angle at all.
    values = np.array([[0, 0, 0, 1], [5e-7, 0, 0, 1]], np.float32)
    out, _ = resample(values, np.array([0.0, 1.0]), np.array([0.25]), device, method="slerp")
    np.testing.assert_allclose(out[0, 0], 1.25e-7, rtol=1e-5)


@each_float
def test_rule_8_length_zero_is_nan_between_and_itself_on_a_hit(device, dtype):
    values = np.array([[0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]], np.float64).astype(dtype)
    out, valid = resample(values, np.arange(4.0), np.array([0.5, 1.0, 1.5, 2.0, 2.5]), device, method="slerp")
    out = out.astype(np.float64)
    assert np.isnan(out[[0, 2]]).all()
    assert not np.isnan(out[[1, 3, 4]]).any()
    assert (out[1] == 0).all()
    assert valid.all()


@each_float
@each_clock
def test_rule_8_pose_is_a_linear_position_and_a_slerp(rng, device, dtype, clock):
    values, times, targets = random_case(rng, dtype, clock, method="pose")
    for extrapolate in ("clamp", "nan", "linear"):
        out, valid = resample(values, times, targets, device, method="pose", extrapolate=extrapolate)
        position, position_valid = oracle(values[..., :3], times, targets, extrapolate=extrapolate)
        rotation, _ = resample(values[..., 3:], times, targets, device, method="slerp", extrapolate=extrapolate)
        assert_same_bits(out[..., :3], position)
        assert_same_bits(out[..., 3:], rotation)
        assert_same_bits(valid, position_valid)


@pytest.mark.parametrize(("method", "width"), [("slerp", 3), ("slerp", 8), ("slerp", 0), ("pose", 6), ("pose", 14)])
def test_rule_8_slerp_is_4_wide_and_pose_7(device, method, width):
    with pytest.raises(
        robocache.ArgumentError, match=rf"method: '{method}' expects {WIDTHS[method]} features, got {width}"
    ):
        resample(np.zeros((3, width)), np.arange(3.0), np.arange(3.0), device, method=method)
    if width:
        with pytest.raises(robocache.ArgumentError, match=rf"methods: '{method}' expects"):
            resample(np.zeros((3, 20)), np.arange(3.0), np.arange(3.0), device, methods=[(slice(0, width), method)])


# ---- Methods by feature blocks: rule 9 ----


def expected_by_blocks(values, times, targets, blocks, **options):
    parts = []
    for features, method in blocks:
        part = values[..., features]
        if method in (*STEPS, "linear"):
            out, valid = oracle(part, times, targets, method=method, **options)
            parts.append(Expected(out, out.astype(np.float64), np.zeros(out.shape), valid))
        else:
            parts.append(resample_curve(part, times, targets, method=method, **options))
    return Expected(*(np.concatenate([part[i] for part in parts], axis=-1) for i in range(3)), parts[0].valid)


@each_float
@each_clock
def test_rule_9_each_block_has_its_method(rng, device, dtype, clock):
    values, times, targets = random_case(rng, dtype, clock, features=26)
    named = [
        (slice(19, 23), "slerp"),
        (slice(0, 7), "pose"),
        (slice(8, 10), "previous"),
        (slice(-3, None), "pchip"),
        (slice(15, 19), "slerp"),
        (slice(10, 13), "akima"),
    ]
    whole = [
        *named[1:2],
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
        out, valid = resample(values, times, targets, device, method="nearest", methods=named, **options)
        expected = expected_by_blocks(values, times, targets, whole, **options)
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
    named = [(slice(d, d + 1), "nearest") for d in range(0, 110, 2)]
    out, _ = resample(values, times, targets, device, methods=named)
    linear, nearest = (oracle(values, times, targets, method=method)[0] for method in ("linear", "nearest"))
    stepped = np.zeros(200, bool)
    stepped[:110:2] = True
    assert_same_bits(out, np.where(stepped, nearest, linear))
    with pytest.raises(robocache.ArgumentError, match="methods: expected at most 112 runs"):
        resample(values, times, targets, device, methods=[(slice(d, d + 1), "nearest") for d in range(0, 200, 2)])


@pytest.mark.parametrize("whole", ["int32", "uint8", "bool"])
def test_rule_9_integers_by_several_steps(rng, device, whole):
    values = rng.integers(0, 2, (2, 9, 6)).astype(whole)
    times = random_times(rng, 2, 9, np.dtype(np.float64))
    targets = random_targets(rng, times, 50)
    out, _ = resample(values, times, targets, device, method="next", methods=[(slice(1, 4), "previous")])
    expected = expected_by_blocks(
        values, times, targets, [(slice(0, 1), "next"), (slice(1, 4), "previous"), (slice(4, 6), "next")]
    )
    assert_same_bits(out, expected.out)
    with pytest.raises(robocache.ArgumentTypeError, match=rf"'pchip'.*{whole}"):
        resample(values, times, targets, device, method="next", methods=[(slice(1, 4), "pchip")])


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([(slice(0, 3), "pchip"), (slice(2, 5), "akima")], r"methods: slice\(0, 3\) and slice\(2, 5\) overlap"),
        ([(slice(2, 5), "akima"), (slice(0, 3), "akima")], r"methods: .* overlap"),
        ([(slice(8, 11), "akima")], r"methods: .*\[0, 10\), got slice\(8, 11\)"),
        ([(slice(-11, 3), "akima")], r"methods: .*got slice\(-11, 3\)"),
        ([(slice(3, 3), "akima")], r"methods: .*got slice\(3, 3\)"),
        ([(slice(5, 2), "akima")], r"methods: .*got slice\(5, 2\)"),
        ([(slice(0, 4, 2), "akima")], r"methods: .*step 1"),
        ([(slice(0, 4), "spline")], r"methods: expected 'linear', .*'spline'"),
    ],
)
def test_rule_9_blocks_that_cannot_be_are_refused(device, methods, message):
    with pytest.raises(robocache.ArgumentError, match=message):
        resample(np.zeros((3, 10)), np.arange(3.0), np.arange(3.0), device, methods=methods)


@pytest.mark.parametrize(
    "methods", [[(3, "akima")], ["akima"], [(slice(0, 2), "akima", 1)], [(slice(0, 2), 1)], [(slice(0.5, 2), "akima")]]
)
def test_rule_9_blocks_of_the_wrong_type_are_refused(device, methods):
    with pytest.raises(robocache.ArgumentTypeError, match="methods"):
        resample(np.zeros((3, 10)), np.arange(3.0), np.arange(3.0), device, methods=methods)


def test_rule_9_what_one_method_refuses_its_block_refuses(device):
    values, times = np.zeros((3, 10)), np.arange(3.0)
    step, curve = [(slice(0, 2), "nearest")], [(slice(0, 2), "pchip")]
    for options, argument in (
        ({"methods": step, "extrapolate": "linear"}, "extrapolate"),
        ({"methods": curve, "method": "nearest", "extrapolate": "linear"}, "extrapolate"),
        ({"methods": curve, "method": "nearest", "tolerance": 1.0}, "tolerance"),
        ({"methods": step, "method": "previous", "tolerance": 1.0}, "tolerance"),
        ({"methods": [(slice(0, 2), "next")], "causal": True}, "causal"),
    ):
        with pytest.raises(robocache.ArgumentError, match=argument):
            resample(values, times, times, device, **options)


def test_rule_9_only_dlpack(rng):
    case = random_case(rng, float64, np.dtype(np.float64), features=8, special=False)
    out = robocache.resample_trajectories(*map(OnlyDLPack, case), methods=[(slice(-4, None), "slerp")])
    rotation = robocache.resample_trajectories(case[0][..., 4:], *case[1:], method="slerp")
    assert_same_bits(np.from_dlpack(out)[..., 4:], rotation)


# ---- NaN: rule 10 ----


@each_float
def test_rule_10_a_nan_stays_in_its_stencil_and_its_feature(rng, device, dtype):
    times = np.arange(12, dtype=np.float64)
    targets = np.arange(11) + 0.5
    reach = {"pchip": 1, "akima": 2, "cubic": 12}
    for method, bad in itertools.product(CURVES, range(12)):
        values = rng.standard_normal((12, 2)).astype(dtype)
        values[bad, 1] = np.nan
        out, _ = resample(values, times, np.concatenate([targets, times]), device, method=method)
        left = np.arange(11)
        spoilt = (left - reach[method] <= bad) & (bad <= left + 1 + reach[method])
        assert (np.isnan(out[:11, 1]) == spoilt).all(), (method, bad)
        assert not np.isnan(out[:, 0]).any()
        assert_same_bits(out[11:], values)


@pytest.mark.parametrize("method", ROTATIONS)
@each_float
def test_rule_10_a_nan_spoils_its_rotation_alone(rng, device, method, dtype):
    values = rng.standard_normal((6, WIDTHS[method])).astype(dtype)
    values[2, -1] = np.nan
    out, _ = resample(values, np.arange(6.0), np.arange(5) + 0.5, device, method=method)
    nan = np.isnan(out)
    assert nan[1:3, -4:].all()
    assert not nan[[0, 3, 4]].any()
    assert not nan[:, :-4].any()


# ---- The spline's ends: rule 10 ----


@pytest.mark.parametrize("bc_type", ["natural", "not-a-knot"])
@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 6, 40, 1000])
@each_float
@each_clock
def test_rule_10_both_ends_of_a_cubic(rng, device, dtype, clock, samples, bc_type):
    values, times, targets = random_case(rng, dtype, clock, batch=2, samples=samples, targets=100, special=False)
    for extrapolate in ("clamp", "linear"):
        options = {"method": "cubic", "bc_type": bc_type, "extrapolate": extrapolate}
        check(values, times, targets, device, **options)
        check(values, times, targets, device, lengths=rng.integers(0, samples + 1, 2), **options)


def test_rule_10_gaps_of_many_lengths_under_a_cubic(rng, device):
    for bc_type in ("natural", "not-a-knot"):
        times = np.cumsum(np.exp2(rng.integers(-10, 11, (4, 40)).astype(np.float64)), axis=1)
        values = rng.standard_normal((4, 40, 9))
        targets = np.round(rng.uniform(times[:, :1], times[:, -1:], (4, 500)) * 2**20) / 2**20
        for dtype in (float64, float32):
            check(values.astype(dtype), times, targets, device, method="cubic", bc_type=bc_type)


def exact_slopes(x, y, bc_type):
    """The spline's slopes in rational arithmetic."""
    n = len(x)
    h = [x[i + 1] - x[i] for i in range(n - 1)]
    m = [(y[i + 1] - y[i]) / h[i] for i in range(n - 1)]
    a = [[Fraction(0)] * n + [Fraction(0)] for _ in range(n)]
    for i in range(1, n - 1):
        a[i][i - 1 : i + 2] = h[i], 2 * (h[i - 1] + h[i]), h[i - 1]
        a[i][n] = 3 * (h[i] * m[i - 1] + h[i - 1] * m[i])
    for row, end, near, far in ((0, 0, 1, 2), (n - 1, n - 1, n - 2, n - 3)):
        g, k = (h[0], h[1]) if row == 0 else (h[-1], h[-2])
        p, q = (m[0], m[1]) if row == 0 else (m[-1], m[-2])
        if bc_type == "natural":
            a[row][end], a[row][near], a[row][n] = 2, 1, 3 * p
        else:  # equal third derivatives on both sides of the neighbour
            a[row][end], a[row][near], a[row][far] = k * k, k * k - g * g, -g * g
            a[row][n] = 2 * (k * k * p - g * g * q)
    for i in range(n):
        pivot = next(r for r in range(i, n) if a[r][i])
        a[i], a[pivot] = a[pivot], a[i]
        for r in range(n):
            if r != i and a[r][i]:
                factor = a[r][i] / a[i][i]
                a[r] = [u - factor * v for u, v in zip(a[r], a[i], strict=True)]
    return [a[i][n] / a[i][i] for i in range(n)]


@pytest.mark.parametrize("bc_type", ["natural", "not-a-knot"])
def test_rule_10_a_cubic_in_exact_arithmetic(rng, device, bc_type):
    """Gaps of very different lengths, where scipy itself loses digits."""
    for samples in (4, 5, 9):
        for _ in range(10):
            times = np.cumsum(np.exp2(rng.integers(-8, 9, samples).astype(np.float64)))
            values = rng.standard_normal((samples, 1))
            targets = (times[1:] + times[:-1]) / 2
            x, y = [Fraction(t) for t in times], [Fraction(v) for v in values[:, 0]]
            slopes = exact_slopes(x, y, bc_type)
            middle = [
                float((y[i] + y[i + 1]) / 2 + (x[i + 1] - x[i]) * (slopes[i] - slopes[i + 1]) / 8)
                for i in range(samples - 1)
            ]
            out, _ = resample(values, times, targets, device, method="cubic", bc_type=bc_type)
            gaps = np.diff(times)
            norm = max(2, 1 + gaps[0] / gaps[1], 1 + gaps[-1] / gaps[-2])
            size = np.abs(values).max() + gaps.max() * max(abs(float(s)) for s in slopes)
            np.testing.assert_allclose(out[:, 0], middle, rtol=0, atol=128 * 2.0**-53 * norm * size)


def test_rule_10_several_cubics_in_one_row(rng, device):
    values, times, targets = random_case(rng, float32, np.dtype(np.float64), features=12)
    blocks = [(slice(0, 3), "cubic"), (slice(5, 10), "cubic")]
    whole = [blocks[0], (slice(3, 5), "linear"), blocks[1], (slice(10, 12), "linear")]
    out, _ = resample(values, times, targets, device, methods=blocks, bc_type="natural")
    parts = [
        resample_curve(values[..., d], times, targets, method=method, bc_type="natural")
        if method == "cubic"
        else expected_by_blocks(values, times, targets, [(d, method)])
        for d, method in whole
    ]
    assert_within(
        out, Expected(*(np.concatenate([part[i] for part in parts], axis=-1) for i in range(3)), parts[0].valid)
    )


def test_rule_10_what_the_ends_may_be(device):
    for options, message in (
        ({"method": "cubic", "bc_type": "clamped"}, "bc_type: expected 'not-a-knot' or 'natural', got 'clamped'"),
        ({"method": "pchip", "bc_type": "natural"}, "bc_type: goes with 'cubic', got 'natural' with 'pchip'"),
    ):
        with pytest.raises(robocache.ArgumentError, match=message):
            resample(np.zeros((3, 2)), np.arange(3.0), np.arange(3.0), device, **options)


# ---- Outside, gaps, nothing there: rules 11 to 14 ----


@each_method
@each_float
@each_clock
def test_rule_11_straight_on_outside(rng, device, method, dtype, clock):
    values, times, _ = random_case(rng, dtype, clock, method=method, special=False)
    unit = 1_000_000 if clock == np.int64 else 2.0**-10
    steps = np.array([-1000, -20, -1, 1, 20, 1000]) * unit
    targets = np.where(steps < 0, times[:, :1], times[:, -1:]) + steps.astype(times.dtype)
    for extrapolate in ("clamp", "nan", "linear"):
        check(values, times, targets.astype(times.dtype), device, method=method, extrapolate=extrapolate)


@each_method
@pytest.mark.parametrize("extrapolate", ["clamp", "nan", "linear"])
@pytest.mark.parametrize("samples", [0, 1, 3])
def test_rule_11_a_row_of_one_time_has_no_bracket(rng, device, method, extrapolate, samples):
    values = rng.standard_normal((samples, WIDTHS.get(method, 3))).astype(np.float32)
    times, targets = np.full(samples, 7, np.float32), np.array([6, 7, 8], np.float32)
    out, valid = resample(values, times, targets, device, method=method, extrapolate=extrapolate)
    assert valid.tolist() == [False, samples > 0, False]
    held = values[-1] if samples else np.full(values.shape[1], np.nan, np.float32)
    outside = np.full_like(held, np.nan) if extrapolate == "nan" else held
    assert_same_bits(out, np.stack([outside, held, outside]))


@each_method
@each_clock
def test_rule_12_a_bracket_longer_than_max_gap_is_invalid(rng, device, method, clock):
    values, times, targets = random_case(rng, float32, clock, method=method)
    gaps = np.diff(times[0])
    for max_gap in (gaps.max(), gaps.min(), np.sort(gaps)[len(gaps) // 2]):
        for extrapolate in ("clamp", "nan"):
            check(values, times, targets, device, method=method, max_gap=max_gap.item(), extrapolate=extrapolate)


@each_method
def test_rule_12_tolerance_is_for_the_steps(device, method):
    with pytest.raises(robocache.ArgumentError, match="tolerance"):
        resample(
            np.zeros((3, WIDTHS.get(method, 3))), np.arange(3.0), np.arange(3.0), device, method=method, tolerance=1.0
        )


@pytest.mark.parametrize("method", ["linear", "nearest", *CURVES, *ROTATIONS])
@each_float
@each_clock
def test_rule_13_past_target_lengths_there_is_nothing(rng, device, method, dtype, clock):
    values, times, targets = random_case(rng, dtype, clock, method=method, batch=4)
    for kind in (np.int32, np.int64):
        there = np.array([0, 5, 37, 20], kind)
        out, valid = resample(values, times, targets, device, method=method, target_lengths=there)
        whole, whole_valid = resample(values, times, targets, device, method=method)
        exists = np.arange(37) < there[:, None]
        assert_same_bits(valid, whole_valid & exists)
        assert_same_bits(out, np.where(exists[..., None], whole, np.nan).astype(dtype))


@pytest.mark.parametrize("whole", ["int16", "bool"])
def test_rule_13_past_target_lengths_integers_are_0(device, whole):
    values = np.ones((1, 3, 2), whole)
    out, valid = resample(
        values, np.arange(3.0), np.arange(3.0), device, method="nearest", target_lengths=np.array([1])
    )
    assert out[0].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert valid.tolist() == [[True, False, False]]


@pytest.mark.parametrize("lengths", [[-1, 0], [0, 4]])
def test_rule_15_target_lengths_outside_the_targets_are_refused_on_the_cpu(lengths):
    with pytest.raises(robocache.ArgumentError, match=r"target_lengths: expected values in \[0, 3\]"):
        resample(np.zeros((2, 3, 1)), np.arange(3.0), np.arange(3.0), target_lengths=np.array(lengths))


def test_rule_15_target_lengths_outside_the_targets_are_cut_on_cuda(cuda):
    values = np.ones((2, 3, 1))
    out, _ = resample(values, np.arange(3.0), np.arange(3.0), cuda, target_lengths=np.array([-1, 9]))
    assert np.isnan(out[0]).all() and (out[1] == 1).all()


@pytest.mark.parametrize(("lengths", "error"), [(np.zeros(2), TypeError), (np.zeros(3, np.int64), ValueError)])
def test_rule_15_target_lengths_are_whole_and_one_a_row(device, lengths, error):
    with pytest.raises(robocache.Error, match="target_lengths") as caught:
        resample(np.zeros((2, 3, 1)), np.arange(3.0), np.arange(3.0), device, target_lengths=lengths)
    assert isinstance(caught.value, error)


@each_method
@each_clock
def test_rule_14_unsorted_and_nan_times_stay_inside_their_row(rng, device, method, clock):
    """The neighbours of each row are NaN: a value read outside it would show."""
    width = WIDTHS.get(method, 3)
    for samples in (1, 2, 3, 5, 17, 300):
        values = np.full((5, samples, width), np.nan, np.float32)
        values[[1, 3]] = rng.uniform(0.5, 1, (2, samples, width))
        times = rng.permutation(random_times(rng, 5, samples, clock), axis=1)
        if clock != np.int64:
            times[rng.random(times.shape) < 0.3] = np.nan
        targets = rng.choice(np.concatenate([times.ravel(), times.ravel()[::-1]]), (5, 64)).astype(clock)
        for extrapolate in ("clamp", "linear"):
            resample(values, times, targets, device, method=method, extrapolate=extrapolate)


# ---- Arguments: rule 15 ----


@each_method
@each_float
def test_rule_15_strides_are_free(rng, device, method, dtype):
    values, times, targets = random_case(rng, dtype, np.dtype(np.float64), method=method, batch=4)
    expected, expected_valid = resample(values, times, targets, device, method=method)
    spread = to_torch(np.repeat(np.repeat(values, 2, axis=2), 3, axis=1), device)[:, ::3, ::2]
    turned_round = to_torch(np.ascontiguousarray(values.transpose(2, 0, 1)), device).permute(1, 2, 0)
    padded = poisoned((4, 17, values.shape[2] + 1), spread.dtype, device)
    padded[..., 1:] = to_torch(values, device)
    for form in (spread, turned_round, padded[..., 1:]):
        out, valid = robocache.resample_trajectories(
            form, to_torch(times, device), to_torch(targets, device), method=method, return_valid=True
        )
        assert_same_bits(to_numpy(out), expected)
        assert_same_bits(to_numpy(valid), expected_valid)
    one = to_torch(values[:1], device).expand(4, -1, -1)
    out = robocache.resample_trajectories(one, to_torch(times[0], device), to_torch(targets, device), method=method)
    repeated, _ = resample(np.repeat(values[:1], 4, axis=0), times[0], targets, device, method=method)
    assert_same_bits(to_numpy(out), repeated)


@each_method
def test_rule_15_empty_dimensions(device, method):
    width = WIDTHS.get(method, 3)
    for batch, samples, targets in itertools.product([0, 2], [0, 3], [0, 4]):
        out, valid = resample(
            np.zeros((batch, samples, width)),
            np.arange(float(samples)),
            np.arange(float(targets)),
            device,
            method=method,
        )
        assert out.shape == (batch, targets, width)
        assert valid.shape == (batch, targets)


@each_method
def test_a_gap_of_a_nanosecond_beside_one_of_a_month(device, method):
    times = EPOCH_NS + np.array([0, 1, 2, 2_592_000_000_000_000, 2_592_000_000_000_001, 2_592_000_000_000_100])
    values = np.random.default_rng(3).standard_normal((6, WIDTHS.get(method, 3)))
    targets = EPOCH_NS + np.array([10**9, 10**15, 2_592_000_000_000_050])
    for dtype in (float64, float32):
        check(values.astype(dtype), times, targets, device, method=method)


@each_method
def test_a_call_is_captured_in_a_cuda_graph(rng, cuda, method):
    first, second = (random_case(rng, float32, np.dtype(np.float64), method=method, special=False) for _ in range(2))
    inputs = [to_torch(x, cuda) for x in first]
    robocache.resample_trajectories(*inputs, method=method)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = robocache.resample_trajectories(*inputs, method=method)
    for case in (second, first):
        for tensor, array in zip(inputs, case, strict=True):
            tensor.copy_(to_torch(array, cuda))
        graph.replay()
        assert_within(to_numpy(out), resample_curve(*case, method=method))
