"""fuse_multimodal, every option and size, bit for bit against the NumPy oracle, on the CPU and on CUDA."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.compare import assert_same_bits, name_of, to_torch
from reference.fuse import fuse as oracle
from reference.fuse import fused_work_type
from reference.fuse_calls import BFLOAT16, MOST_STREAMS, check, fuse, random_options, stream_of, targets_of
from reference.random_streams import CLOCKS, FLOATS, STEPS, WHOLE

import robocache

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("target_clock", CLOCKS, ids=name_of)
@pytest.mark.parametrize("round_", range(6))
def test_random_streams_give_the_oracles_bits(rng, device, target_clock, round_):
    """One call fuses streams of every dtype on every clock with every legal option to a float type."""
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


@pytest.mark.parametrize("out_dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("dtype", FLOATS + WHOLE, ids=name_of)
def test_every_dtype_to_every_float_gives_the_oracles_bits(rng, device, dtype, out_dtype):
    """Rows have hits, interpolated and absent values, plain and scaled; 130 features are more than any block has."""
    for features, clock in itertools.product((1, 5, 130), CLOCKS):
        streams = [stream_of(rng, dtype, clock, features=features)]
        targets = targets_of(rng, clock)
        work_type = fused_work_type(dtype)
        for method in ["linear", "nearest"] if dtype in FLOATS else ["previous"]:
            check(streams, targets, device, method=method, dtype=out_dtype)
            scale, shift = rng.normal(size=features).astype(work_type), rng.normal(size=features).astype(work_type)
            check(streams, targets, device, method=method, dtype=out_dtype, scale=scale, shift=shift)
            check(streams, targets, device, method=method, dtype=out_dtype, scale=-1.7, extrapolate="nan")


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
        stream_options = {
            "method": method,
            "causal": method != "next" and data.draw(st.booleans()),
            "extrapolate": data.draw(st.sampled_from(["clamp", "nan"])),
        }
        for name in ("offset", "max_gap"):
            if data.draw(st.booleans()):
                quarters = data.draw(st.integers(0, 12))
                stream_options[name] = quarters * 250_000_000 if clock == np.int64 else quarters / 4
        if data.draw(st.booleans()):
            stream_options["scale"] = data.draw(st.floats(width=32))
        options.append(stream_options)
    check(streams, targets, device, options=options)


@pytest.mark.parametrize("count", [1, 2, 3, 32, MOST_STREAMS])
def test_rule_21_any_number_of_streams(rng, device, count):
    streams, options = [], []
    for index in range(count):
        dtype, clock = FLOATS[index % 4], CLOCKS[index % 3]
        samples = 1 + index % 29
        streams.append(stream_of(rng, dtype, clock, samples=samples, features=1 + index % 7))
        options.append(random_options(rng, dtype, clock, samples=samples, features=1 + index % 7, out=BFLOAT16))
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
        for index, values_dtype in enumerate(FLOATS + WHOLE):
            clock = CLOCKS[(index + int(rng.integers(3))) % 3]
            streams.append(stream_of(rng, values_dtype, clock, batch=5, samples=300, features=1 + 11 * index))
            stream_options = random_options(
                rng, values_dtype, clock, batch=5, samples=300, features=1 + 11 * index, out=dtype
            )
            options.append(stream_options)
        targets = targets_of(rng, target_clock, batch=5, count=200)
        results = [fuse(streams, targets, device, options=options, dtype=dtype) for device in ("cpu", cuda)]
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
    # The oracle is slow, so it checks the first and the last row at some targets.
    targets = np.sort(rng.uniform(3.0, 3.05, count))
    out, valid, age = fuse([wide, small], targets, device, dtype=np.float32)
    for rows in (slice(0, 1), slice(batch - 1, batch)):
        checked = np.unique(np.r_[0 : min(count, 40), max(count - 40, 0) : count])
        row_streams = [(v[rows], t[rows] if t.ndim == 2 else t) for v, t in (wide, small)]
        expected = oracle(row_streams, targets[checked], dtype=np.float32)
        for array, expected_array in zip((out, valid, age), expected, strict=True):
            assert_same_bits(array[rows][:, checked], expected_array)


def test_any_number_of_streams_is_one_launch(rng, cuda):
    tensors = [tuple(to_torch(x, cuda) for x in stream_of(rng, FLOATS[i % 4], CLOCKS[i % 3])) for i in range(40)]
    targets = to_torch(targets_of(rng, np.dtype(np.float64)), cuda)
    options = {"dtype": "float32", "method": ["linear", "nearest"] * 20, "scale": 2.0}
    out = robocache.fuse_multimodal(tensors, targets, **options)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        robocache.fuse_multimodal(tensors, targets, out=out, **options)
        torch.cuda.synchronize()
    kernels = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 1, kernels


def test_this_is_the_documented_example():
    imu = np.array([[0.0], [10.0]]), np.array([0.0, 1.0])
    gripper = np.array([[1.0], [0.0]]), np.array([0, 250_000_000])
    fused = robocache.fuse_multimodal(
        {"imu": imu, "gripper": gripper}, np.array([0.125, 0.5]), method={"gripper": "previous"}
    )
    assert fused.tolist() == [[1.25, 1.0], [5.0, 0.0]]
