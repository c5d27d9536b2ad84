"""fuse_multimodal: scale, shift and types; rules 3, 4, 13, 14 and 22."""

import itertools

import numpy as np
import pytest
from reference.compare import assert_same_bits, name_of, to_torch
from reference.fuse import fuse as oracle
from reference.fuse_calls import BFLOAT16, check, clock_of, fuse, stream_of, targets_of
from reference.random_streams import FLOATS, STEPS, WHOLE

import robocache

torch = pytest.importorskip("torch")


def test_rule_22_scale_and_shift_are_one_fma_and_one_rounding(device):
    # (1 + 2^-12)^2 - 1 = 2^-11 + 2^-24 shows a product rounded to float32 first, and a sum rounded to bfloat16 twice.
    x = np.float32(1 + 2**-12)
    stream = np.full((2, 1), x, np.float32), np.arange(2.0)
    out, _, _ = fuse([stream], np.array([0.0, 0.5]), device, scale=float(x), shift=-1.0)
    assert out[:, 0].tolist() == [2**-11 + 2**-24] * 2
    # float64 from bfloat16: no intermediate value is rounded to bfloat16.
    values = np.array([[3.0], [5.0]], BFLOAT16)
    out, _, _ = fuse([(values, np.arange(2.0))], np.array([0.0, 0.25]), device, scale=1 / 3, dtype=np.float64)
    third = np.float32(1 / 3)
    assert out[:, 0].tolist() == [float(np.float32(3) * third), float(np.float32(3.5) * third)]


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_rule_22_float64_is_rounded_once(rng, device, dtype):
    """Values close to the middle of two 16-bit numbers: rounding to float32 first would move them onto it."""
    base = rng.uniform(1, 2, 400).astype(dtype).astype(np.float64)
    ulp = {2: 2.0**-11, 4: 2.0**-24, 8: 0.0}[dtype.itemsize] if dtype != BFLOAT16 else 2.0**-8
    values = (base + ulp / 2 * rng.choice([-1, 1], 400) * (1 + rng.choice([-1, 1], 400) * 2.0**-40))[None]
    times = np.zeros(1)
    check([(values, times)], np.array([0.0, 1.0]), device, dtype=dtype)
    check([(values, times)], np.array([0.0, 1.0]), device, dtype=dtype, scale=1.0, shift=0.0)


@pytest.mark.parametrize("dtype", WHOLE, ids=name_of)
def test_rule_22_integers_become_floats_or_stay_integers(rng, device, dtype):
    streams = [stream_of(rng, dtype, np.dtype(np.float64))]
    targets = targets_of(rng, np.dtype(np.float64))
    check(streams, targets, device, method="previous")
    check(streams, targets, device, method="previous", dtype=dtype)
    for out_dtype in FLOATS:
        check(streams, targets, device, method="nearest", dtype=out_dtype)
        check(streams, targets, device, method="nearest", dtype=out_dtype, scale=1 / 255, shift=-0.5, extrapolate="nan")
    tensors = [tuple(to_torch(x, device) for x in streams[0])]
    other_dtype = "int16" if dtype != np.int16 else "int8"
    with pytest.raises(robocache.ArgumentTypeError, match=rf"streams\[0\].values.*{dtype.name}.*{other_dtype}"):
        robocache.fuse_multimodal(tensors, to_torch(targets, device), method="previous", dtype=other_dtype)
    with pytest.raises(robocache.ArgumentTypeError, match=r"streams\[0\].scale.*float dtype"):
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
    # An absent float is NaN, scaled or not.
    out, _, _ = fuse([(stream[0].astype(np.float32), stream[1])], targets, device, **options)
    assert np.isnan(out[:, 0]).tolist() == [True, False, True, False]


def test_rule_22_scale_alone_and_shift_alone(rng, device):
    for dtype in FLOATS:
        streams = [stream_of(rng, dtype, np.dtype(np.float64))]
        targets = targets_of(rng, np.dtype(np.float64))
        for options in ({"scale": -2.5}, {"shift": 0.75}, {"scale": 0}, {"shift": 3}, {"scale": np.float32(1.5)}):
            check(streams, targets, device, **options)


@pytest.mark.parametrize("name", ["scale", "shift"])
def test_rule_22_a_scale_must_be_contiguous(rng, device, name):
    stream = tuple(to_torch(x, device) for x in stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)))
    for array in (torch.ones(10, device=device)[::2], torch.ones(1, device=device).expand(5)):
        with pytest.raises(robocache.ArgumentError, match=rf"^streams\['arm'\].{name}: "):
            robocache.fuse_multimodal({"arm": stream}, stream[1], **{name: {"arm": array}})


def test_rule_4_a_hit_is_its_sample_rounded_once(device):
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3.0, 65520.0, 1e-8])
    for dtype, out_dtype in itertools.product(FLOATS, FLOATS):
        with np.errstate(over="ignore"):
            values = np.array(list(itertools.product(special, repeat=3))).T.astype(dtype)
        times = np.array([5.0, 6, 9])
        out, valid, age = fuse([(values, times)], times, device, dtype=out_dtype, max_gap=0)
        assert valid.all()
        assert not age.any()
        with np.errstate(over="ignore"):
            assert_same_bits(out, values.astype(np.float64).astype(out_dtype) if dtype != np.float64 else out)
        check([(values, times)], times, device, dtype=out_dtype)


@pytest.mark.parametrize("method", ["linear", *STEPS])
def test_rule_14_bad_times_stay_within_their_row(rng, device, method):
    batch, samples = 4, 40
    times = clock_of(rng, (batch, samples), np.dtype(np.float64))
    times[rng.random(times.shape) < 0.3] = np.nan
    values = np.full((batch, samples, 3), 1, np.float32) * (1 + 10 * np.arange(batch, dtype=np.float32)[:, None, None])
    finite_stream = stream_of(rng, np.dtype(np.float32), np.dtype(np.int64), batch=batch, special=False)
    targets = rng.uniform(2.9, 3.5, (batch, 100))
    out, _, _ = fuse([(values, times), finite_stream], targets, device, method=method)
    first_stream = out[..., :3]
    assert (np.isnan(first_stream) | (first_stream == values[:, :1])).all()
    assert_same_bits(out[..., 3:], oracle([finite_stream], targets, method=method)[0])
