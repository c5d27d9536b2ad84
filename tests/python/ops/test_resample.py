"""resample_trajectories, every option and size, bit for bit against the NumPy oracle, on the CPU and on CUDA."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.compare import assert_same_bits, name_of, to_numpy
from reference.random_streams import CLOCKS, EPOCH_NS, FLOATS, WHOLE
from reference.resample import resample as oracle
from reference.resample_calls import check, each_clock, each_float, every_option, random_case, resample

import robocache

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", FLOATS + WHOLE, ids=name_of)
@each_clock
def test_every_option_gives_the_oracles_bits(rng, device, dtype, clock):
    for options in every_option(dtype, clock):
        check(*random_case(rng, dtype, clock), device, **options)
        values, times, targets = random_case(rng, dtype, clock)
        check(values, times, targets, device, lengths=rng.integers(0, 18, 3), **options)


@pytest.mark.parametrize("features", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 200, 257])
@each_float
def test_every_feature_count_gives_the_oracles_bits(rng, device, dtype, features):
    check(*random_case(rng, dtype, np.dtype(np.float32), batch=2, features=features), device)
    check(*random_case(rng, dtype, np.dtype(np.int64), batch=2, features=features), device, method="nearest")


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 31, 32, 33, 127, 128, 129, 1000, 5000, 20_000])
@each_clock
def test_every_sample_count_gives_the_oracles_bits(rng, device, clock, samples):
    case = random_case(rng, np.dtype(np.float32), clock, batch=2, samples=samples, features=3)
    check(*case, device)
    check(*case, device, method="previous", extrapolate="nan")


@pytest.mark.parametrize("targets", [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1025])
def test_every_target_count_gives_the_oracles_bits(rng, device, targets):
    case = random_case(rng, np.dtype(np.float16), np.dtype(np.float64), batch=2, targets=targets, features=12)
    check(*case, device)
    check(*case, device, method="next")


@pytest.mark.parametrize("kind", ["linear", "nearest", "previous", "next"])
def test_values_between_samples_equal_scipys(rng, device, kind):
    interpolate = pytest.importorskip("scipy.interpolate")
    values, times = rng.standard_normal((40, 3)), np.sort(rng.uniform(0, 10, 40))
    targets = rng.uniform(times[0], times[-1], 200)
    (out,), _ = resample(values[None], times[None], targets[None], device, method=kind)
    np.testing.assert_allclose(out, interpolate.interp1d(times, values, kind, axis=0)(targets), rtol=0, atol=1e-14)


small_times = st.lists(st.integers(0, 6), min_size=0, max_size=8).map(sorted)
any_float = st.floats(width=32, allow_subnormal=True)


@given(data=st.data())
def test_any_small_row_gives_the_oracles_bits(device, data):
    clock = data.draw(st.sampled_from(CLOCKS))
    dtype = data.draw(st.sampled_from(FLOATS + WHOLE))
    features = data.draw(st.integers(0, 3))
    times = 2 * np.array(data.draw(small_times), np.int64)
    targets = np.array(data.draw(st.lists(st.integers(-2, 16), max_size=6)), np.int64)
    if clock == np.int64:
        times, targets = times + EPOCH_NS, targets + EPOCH_NS
    else:
        times, targets = (times / 2).astype(clock), (targets / 2).astype(clock)
    if dtype in FLOATS:
        element = any_float
    else:
        element = (
            st.booleans() if dtype.kind == "b" else st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        )
    count = len(times) * features
    values = np.array(data.draw(st.lists(element, min_size=count, max_size=count)))
    with np.errstate(over="ignore"):
        values = values.astype(dtype).reshape(len(times), features)
    options = data.draw(st.sampled_from(list(every_option(dtype, clock))))
    for name in ("max_gap", "tolerance"):
        if options[name] is not None:
            options[name] = data.draw(st.integers(0, 5))
    check(values, times, targets, device, **options)


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int32), np.dtype(bool)], ids=name_of)
@each_clock
def test_cpu_and_cuda_give_the_same_bits(rng, cuda, dtype, clock):
    for options in every_option(dtype, clock):
        case = random_case(rng, dtype, clock, batch=9, samples=300, targets=700, features=24)
        for cpu_array, cuda_array in zip(
            resample(*case, "cpu", **options), resample(*case, cuda, **options), strict=True
        ):
            assert_same_bits(cuda_array, cpu_array, str(options))


@pytest.mark.parametrize(
    ("batch", "samples", "targets", "features"),
    [(65_536, 2, 1, 2), (1, 4, 70_001, 3), (2, 70_001, 50, 2), (1, 3, 5, 70_001)],
)
def test_any_dimension_may_pass_65535(rng, device, batch, samples, targets, features):
    case = random_case(
        rng,
        np.dtype(np.float32),
        np.dtype(np.float64),
        batch=batch,
        samples=samples,
        targets=targets,
        features=features,
    )
    check(*case, device)


def test_this_is_the_documented_example(device):
    src = torch.randn(2, 10, 16, dtype=torch.bfloat16, device=device)
    src_t = torch.linspace(0, 1, 10, device=device).unsqueeze(0).expand(2, -1)
    tgt_t = torch.linspace(0, 1, 8, device=device).unsqueeze(0).expand(2, -1)
    out = robocache.resample_trajectories(src, src_t, tgt_t)
    assert out.shape == (2, 8, 16)
    assert out.dtype == torch.bfloat16
    assert out.device == src.device
    assert_same_bits(to_numpy(out), oracle(to_numpy(src), to_numpy(src_t), to_numpy(tgt_t))[0])
