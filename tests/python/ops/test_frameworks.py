"""Rule 18: arrays of other frameworks, the caller's stream and the caller's allocator."""

import importlib.util
import os
import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from reference.compare import OnlyDLPack, assert_same_bits, poisoned, to_numpy, to_torch
from reference.resample import resample as oracle

import robocache

torch = pytest.importorskip("torch")


def random_case(rng, dtype=np.float32, *, batch=3, samples=17, targets=23, features=5):
    times = np.cumsum(rng.uniform(0.1, 1, (batch, samples)), axis=1)
    target_times = rng.uniform(-0.5, times.max() + 0.5, (batch, targets))
    return rng.standard_normal((batch, samples, features)).astype(dtype), times, target_times


# ---- Frameworks ----


class Array(OnlyDLPack):
    """An array of an unknown framework, with DLPack and a namespace."""

    def __array_namespace__(self, api_version=None):
        return types.SimpleNamespace(from_dlpack=lambda other: Array(torch.from_dlpack(other)))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_rule_18_a_framework_with_a_namespace_gets_its_arrays(rng, device, dtype):
    arrays = random_case(rng, dtype)
    out, valid = robocache.resample_trajectories(*(Array(to_torch(x, device)) for x in arrays), return_valid=True)
    assert isinstance(out, Array) and isinstance(valid, Array)
    assert out.array.device.type == valid.array.device.type == device
    expected, expected_valid = oracle(*arrays)
    assert_same_bits(to_numpy(out.array), expected)
    assert_same_bits(to_numpy(valid.array).astype(bool), expected_valid)


def test_rule_18_the_result_has_the_framework_of_values(rng, device):
    values, times, target_times = random_case(rng)
    expected = oracle(values, times, target_times)[0]
    tensors = [to_torch(x, device) for x in (values, times, target_times)]
    out = robocache.resample_trajectories(tensors[0], Array(tensors[1]), Array(tensors[2]))
    assert_same_bits(to_numpy(out), expected)
    out = robocache.resample_trajectories(Array(tensors[0]), tensors[1], tensors[2])
    assert_same_bits(to_numpy(out.array), expected)


def test_rule_18_torch_parameters_give_torch_tensors(rng, device):
    values, times, target_times = (to_torch(x, device) for x in random_case(rng))
    parameter = torch.nn.Parameter(values)
    with torch.no_grad():
        out = robocache.resample_trajectories(parameter, times, target_times)
    assert type(out) is torch.Tensor and not out.requires_grad
    assert robocache.resample_trajectories(parameter, times, target_times).requires_grad


def test_rule_18_a_framework_reads_its_result_on_a_stream_of_its_own(cuda):
    times = torch.arange(64.0, device=cuda)
    values = torch.zeros(64, 256, device=cuda)
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
    values.fill_(3)
    out = robocache.resample_trajectories(Array(values), Array(times), Array(times)).array
    with torch.cuda.stream(torch.cuda.Stream()):  # this stream waits for no other
        assert (out == 3).all()


def test_rule_18_out_may_have_another_framework(rng, device):
    arrays = random_case(rng)
    out = Array(poisoned((3, 23, 5), torch.float32, device))
    result = robocache.resample_trajectories(*(Array(to_torch(x, device)) for x in arrays), out=out)
    assert result is out
    assert_same_bits(to_numpy(out.array), oracle(*arrays)[0])


def run_with_jax(program, *arguments):
    """Runs `program` in a new process, since jax starts threads, and other tests fork."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    program = (
        "import jax, numpy as np, ml_dtypes, robocache, sys\njax.config.update('jax_enable_x64', True)\n" + program
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    process = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_rule_18_jax(rng, tmp_path, dtype):
    values, times, target_times = random_case(rng, np.float32)
    lengths = np.array([17, 3, 0])
    np.savez(tmp_path / "in.npz", values, times, target_times, lengths)
    run_with_jax(
        """
values, times, target_times, lengths = (jax.numpy.asarray(x) for x in np.load(sys.argv[1]).values())
values = values.astype(sys.argv[3])
out, valid = robocache.resample_trajectories(values, times, target_times, lengths=lengths, return_valid=True)
assert isinstance(out, jax.Array) and isinstance(valid, jax.Array)
assert out.dtype == values.dtype and valid.dtype == bool
twice = np.asarray(out + out)  # jax can compute with it
np.savez(sys.argv[2], np.asarray(out.astype("float64")), np.asarray(valid), twice.astype("float64"))
""",
        tmp_path / "in.npz",
        tmp_path / "out.npz",
        dtype,
    )
    out, valid, twice = np.load(tmp_path / "out.npz").values()
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    expected, expected_valid = oracle(values.astype(dtype), times, target_times, lengths=lengths)
    assert_same_bits(out, expected.astype(np.float64))
    assert_same_bits(twice, 2 * expected.astype(np.float64))
    assert_same_bits(valid, expected_valid)


def test_rule_18_a_call_inside_jax_jit_is_refused_by_name():
    run_with_jax("""
times = jax.numpy.arange(4.0)
try:
    jax.jit(lambda values: robocache.resample_trajectories(values, times, times))(jax.numpy.ones((4, 1)))
except TypeError as error:
    assert "traced" in str(error)
else:
    raise AssertionError("not refused")
""")


def test_rule_18_cupy(rng, cuda):
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    arrays = random_case(rng)
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            out, valid = robocache.resample_trajectories(*(cupy.asarray(x) for x in arrays), return_valid=True)
            assert isinstance(out, cupy.ndarray) and isinstance(valid, cupy.ndarray)
            expected, expected_valid = oracle(*arrays)
            assert_same_bits(cupy.asnumpy(out), expected)
            assert_same_bits(cupy.asnumpy(valid), expected_valid)


# ---- The caller's allocator ----


def allocated_by(function):
    """Returns (result, bytes that it keeps of torch's CUDA allocator, the peak of these bytes during the call)."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    return result, torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before


def test_only_outputs_come_from_torchs_allocator(rng, cuda):
    tensors = [to_torch(x, cuda) for x in random_case(rng, targets=4096, features=64)]
    out, bytes_kept, peak = allocated_by(lambda: robocache.resample_trajectories(*tensors))
    assert bytes_kept == peak == out.numel() * 4  # 3 MiB, a multiple of the allocator's 512 bytes
    free, total = torch.cuda.mem_get_info()
    for _ in range(50):
        robocache.resample_trajectories(*tensors, out=out)
    assert torch.cuda.mem_get_info() == (free, total)


def test_outputs_come_from_the_callers_pool(rng, cuda):
    tensors = [to_torch(x, cuda) for x in random_case(rng, targets=4096, features=64)]
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        out = robocache.resample_trajectories(*tensors)
    segments = torch.cuda.memory_snapshot(pool.id)
    assert any(s["address"] <= out.data_ptr() < s["address"] + s["total_size"] for s in segments)


# ---- The caller's stream ----


def test_a_call_waits_for_no_other_stream(cuda):
    times = torch.arange(64.0, device=cuda)
    values = torch.ones(64, 256, device=cuda)
    out = torch.zeros(64, 256, device=cuda)
    robocache.resample_trajectories(values, times, times)
    busy_stream, own_stream = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(busy_stream):
        torch.cuda._sleep(500_000_000)
        event = torch.cuda.Event()
        event.record()
    with torch.cuda.stream(own_stream):
        robocache.resample_trajectories(values, times, times, out=out)
    own_stream.synchronize()
    assert not event.query(), "the call waited for another stream"
    assert (out == 1).all()
    torch.cuda.synchronize()


@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_a_replayed_call_reads_its_buffers_anew(rng, cuda, method):
    """Values, clocks, lengths and `out` are read and written at replay, at the addresses of the capture."""
    cases = [random_case(rng, np.float16) for _ in range(3)]
    lengths = [rng.integers(0, 18, 3) for _ in cases]
    buffers = [to_torch(x, cuda) for x in cases[0]]
    length = to_torch(lengths[0], cuda)
    out = poisoned((3, 23, 5), torch.float16, cuda)
    options = {"method": method, "lengths": length, "out": out}
    robocache.resample_trajectories(*buffers, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        robocache.resample_trajectories(*buffers, **options)
    for arrays, rows in zip(cases[1:], lengths[1:], strict=True):
        for buffer, array in zip((*buffers, length), (*arrays, rows), strict=True):
            buffer.copy_(to_torch(array, cuda))
        out.view(torch.uint8).fill_(0xA5)
        graph.replay()
        assert_same_bits(to_numpy(out), oracle(*arrays, method=method, lengths=rows)[0])


# ---- Tensors without dense memory ----


LAYOUTS = {
    "sparse": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x[0].to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_rule_17_tensors_without_dense_memory_are_refused(rng, layout, requires_grad):
    values, times, target_times = map(torch.from_numpy, random_case(rng, np.float64))
    special = LAYOUTS[layout](values)
    times.requires_grad_(requires_grad)
    with pytest.raises(robocache.ArgumentTypeError, match=r"^values: "):
        robocache.resample_trajectories(special, times, target_times)
    with pytest.raises(robocache.ArgumentTypeError, match=r"streams\[0\].values: "):
        robocache.fuse_multimodal([(special, times), (values, times)], target_times)


@pytest.mark.parametrize("argument", ["values", "times", "target_times", "lengths"])
def test_rule_17_one_meta_tensor_among_others_is_refused(rng, argument):
    values, times, target_times = map(torch.from_numpy, random_case(rng))
    arguments = {"values": values, "times": times, "target_times": target_times, "lengths": torch.tensor([1, 2, 3])}
    arguments[argument] = arguments[argument].to("meta")
    with pytest.raises(robocache.ArgumentError, match=f"expected on meta like {argument}, got on cpu"):
        robocache.resample_trajectories(**arguments)


def test_rule_17_check_times_needs_times_with_memory():
    with pytest.raises(robocache.ArgumentError, match=r"^times: "):
        robocache.check_times(torch.zeros(3, device="meta"))


@pytest.mark.parametrize("lengths", [np.array([1, 2, 3]), [1, 2, 3]], ids=lambda x: type(x).__name__)
def test_rule_17_recording_gradients_needs_torch_arrays(rng, lengths):
    values, times, target_times = map(torch.from_numpy, random_case(rng))
    with pytest.raises(robocache.ArgumentTypeError, match=r"^lengths: "):
        robocache.resample_trajectories(values.requires_grad_(), times, target_times, lengths=lengths)
