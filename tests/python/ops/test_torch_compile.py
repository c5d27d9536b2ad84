"""resample_trajectories inside torch.compile, torch.export and torch.func, on the CPU and on CUDA."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from reference.compare import assert_same_bits, poisoned, to_numpy, to_torch

import robocache

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("fresh_compiler")

resample = robocache.resample_trajectories

# Half of all combinations; any three options still have all combinations of their values.
CALLS = [
    {"method": method, "extrapolate": extrapolate, "causal": causal, "return_valid": return_valid}
    for method, extrapolate, causal, return_valid in itertools.product(
        ["linear", "nearest"], ["clamp", "nan"], [False, True], [False, True]
    )
    if ((method == "linear") + (extrapolate == "clamp") + causal + return_valid) % 2
] + [
    {"extrapolate": "linear"},
    {"method": "next"},
    {"method": "previous", "tolerance": 0.25},
    {"max_gap": 0.5, "return_valid": True},
]


def random_case(rng, device, *, batch=3, samples=7, targets=9, features=2, dtype=torch.float32, clock=torch.float64):
    times = np.cumsum(rng.uniform(0.1, 1, (batch, samples)), axis=1)
    target_times = rng.uniform(-0.5, times.max() + 0.5, (batch, targets))
    values = to_torch(rng.standard_normal((batch, samples, features)), device).to(dtype)
    return values, to_torch(times, device).to(clock), to_torch(target_times, device).to(clock)


def assert_equal(actual, expected):
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (actual, expected)), strict=True):
        assert_same_bits(to_numpy(a), to_numpy(b))


@pytest.mark.parametrize("options", CALLS, ids=lambda o: "-".join(map(str, o.values())))
def test_one_graph_gives_the_bits_of_the_eager_call(rng, device, options):
    compiled = torch.compile(lambda *arrays, **o: resample(*arrays, **o), fullgraph=True, backend="aot_eager")
    arrays = random_case(rng, device)
    assert_equal(compiled(*arrays, **options), resample(*arrays, **options))
    lengths = torch.tensor([7, 3, 0], device=device)
    assert_equal(compiled(*arrays, lengths=lengths, **options), resample(*arrays, lengths=lengths, **options))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("clock", [torch.float32, torch.int64], ids=str)
def test_every_kind_of_array(rng, device, dtype, clock):
    compiled = torch.compile(resample, fullgraph=True, backend="aot_eager")
    arrays = random_case(rng, device, dtype=dtype, clock=clock)
    duration = 1 if clock == torch.int64 else 0.5
    assert_equal(
        compiled(*arrays, method="nearest", max_gap=duration), resample(*arrays, method="nearest", max_gap=duration)
    )


def test_inductor_with_operations_around_the_call(rng, device):
    def model(values, times, targets, weight):
        return torch.relu(resample(values * 2, times, targets + 0.25) @ weight)

    values, times, targets = random_case(rng, device)
    weight = to_torch(rng.standard_normal((2, 4)), device).float()
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(values, times, targets, weight), model(values, times, targets, weight))


def test_gradients_through_a_compiled_call(rng, device):
    def loss(values, times, targets):
        return resample(values.sin(), times, targets, extrapolate="linear").square().sum()

    tensors = [x.requires_grad_() for x in random_case(rng, device, dtype=torch.float64)]
    expected = torch.autograd.grad(loss(*tensors), tensors)
    result = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*tensors), tensors)
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_torchs_graphs_on_disk_depend_on_the_code(tmp_path):
    """A gradient is traced from Python code; torch would not notice that this code has changed."""
    package = Path(robocache.__file__).parent
    shutil.copytree(package, tmp_path / "robocache", ignore=shutil.ignore_patterns("__pycache__"))
    program = "import robocache._torch, torch; print(torch.compiler.config.cache_key_tag)"
    tags = []
    for source in (None, "ops/_streams.py"):
        if source is not None:
            with (tmp_path / "robocache" / source).open("a") as file:
                file.write("# changed\n")
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "ROBOCACHE_LIBRARY": str(robocache._lib.path)}
        process = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        tags.append(process.stdout)
    assert "robocache" in tags[0] and tags[0] != tags[1]


def test_one_graph_serves_other_sizes(rng, device):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(resample, fullgraph=True, dynamic=True, backend=backend)
    for batch, samples, targets, features in [(3, 7, 9, 2), (5, 11, 4, 3), (2, 30, 8, 6)]:
        arrays = random_case(rng, device, batch=batch, samples=samples, targets=targets, features=features)
        assert_equal(compiled(*arrays, return_valid=True), resample(*arrays, return_valid=True))
    assert len(graphs) == 1


def test_sizes_read_from_the_result_are_symbolic(rng, device):
    def model(values, times, targets):
        out = resample(values, times, targets)
        return out.reshape(out.shape[0], out.shape[1] * out.shape[2]) + targets.shape[1]

    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for batch, targets in [(3, 9), (4, 2)]:
        arrays = random_case(rng, device, batch=batch, targets=targets)
        assert_equal(compiled(*arrays), model(*arrays))


def test_out_is_written_by_a_compiled_call(rng, device):
    def model(values, times, targets, out):
        result, valid = resample(values, times, targets, out=out, return_valid=True)
        return result + 1, valid

    values, times, targets = random_case(rng, device)
    expected, expected_valid = resample(values, times, targets, return_valid=True)
    out = poisoned((3, 9, 2), torch.float32, device)
    result, valid = torch.compile(model, fullgraph=True)(values, times, targets, out)
    assert_equal((out, valid, result), (expected, expected_valid, expected + 1))


def test_a_compiled_call_raises_typed_errors(rng, device):
    values, times, targets = random_case(rng, device)
    compiled = torch.compile(resample, fullgraph=True, backend="aot_eager")
    with pytest.raises(robocache.ArgumentError, match="max_gap"):
        compiled(values, times, targets, max_gap=-1.0)


def test_export_keeps_the_operator(rng, device):
    class Model(torch.nn.Module):
        def forward(self, values, times, targets):
            return resample(values, times, targets)

    arrays = random_case(rng, device)
    program = torch.export.export(Model(), arrays)
    assert "robocache.resample_trajectories" in str(program.graph)
    assert_equal(program.module()(*arrays), resample(*arrays))


def test_a_compiled_call_runs_in_cuda_graphs(rng, cuda):
    compiled = torch.compile(lambda *arrays: resample(*arrays) * 2, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        arrays = random_case(rng, cuda)
        assert_equal(compiled(*arrays).clone(), resample(*arrays) * 2)


# ---- The operators themselves ----


def operator_arguments(values, times, target_times, with_lengths):
    from robocache import _torch
    from robocache.ops.resample import _resample

    lengths = torch.tensor([7, 3, 1], device=values.device) if with_lengths else None
    options = {"values": values, "times": times, "target_times": target_times, "max_gap": 0.5, "lengths": lengths}
    return _torch._spread(_resample, _resample.call(options | {"methods": [(slice(0, 1), "nearest")]}))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("return_valid", [False, True])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_opcheck(rng, device, requires_grad, return_valid, with_lengths):
    arrays = [x.requires_grad_(requires_grad) for x in random_case(rng, device, dtype=torch.float64)]
    arguments = *operator_arguments(*arrays, with_lengths), [True, return_valid]
    torch.library.opcheck(torch.ops.robocache.resample_trajectories.default, arguments, **opcheck_bounds(device))


@pytest.mark.parametrize("with_lengths", [False, True])
def test_opcheck_of_out_and_backward(rng, device, with_lengths):
    arguments = operator_arguments(*random_case(rng, device, dtype=torch.float64), with_lengths)
    out = torch.empty(3, 9, 2, dtype=torch.float64, device=device)
    operators = torch.ops.robocache
    torch.library.opcheck(operators.resample_trajectories_out.default, (*arguments, [True, False], [out]))
    for needs_gradient in ([True, True, True], [False, True, False]):
        backward = *arguments, torch.ones_like(out), needs_gradient
        torch.library.opcheck(operators.resample_trajectories_backward.default, backward, **opcheck_bounds(device))


def opcheck_bounds(device):
    """On CUDA the order of sums over times varies."""
    return {"rtol": 1e-9, "atol": 1e-9} if device == "cuda" else {}


def test_fake_tensors_give_fake_tensors(device):
    values = torch.empty(2, 5, 3, device="meta", dtype=torch.bfloat16)
    times = torch.empty(5, device="meta")
    out, valid = resample(values, times, torch.empty(2, 7, device="meta"), return_valid=True)
    assert (out.shape, out.dtype, out.device.type) == ((2, 7, 3), torch.bfloat16, "meta")
    assert (valid.shape, valid.dtype, valid.device.type) == ((2, 7), torch.bool, "meta")

    with torch._subclasses.FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in (torch.ones(4, 2, device=device), torch.ones(4, device=device))]
    out = resample(fake[0], fake[1], fake[1])  # outside the mode that made the fake tensors
    assert out.shape == (4, 2) and out.device.type == device


# ---- fuse_multimodal ----


def fused_case(rng, device):
    arm, hand, count = (
        random_case(rng, device, features=n, samples=s, dtype=torch.float64) for n, s in ((3, 7), (2, 11), (1, 5))
    )
    streams = {"arm": arm[:2], "hand": hand[:2], "count": ((count[0] * 8).to(torch.int16), count[1])}
    options = {
        "method": {"hand": "pchip", "count": "previous"},
        "scale": {"hand": torch.tensor([2.0, 0.5], dtype=torch.float64, device=device)},
        "offset": {"arm": 0.125},
        "lengths": {"hand": torch.tensor([3, 11, 0], device=device)},
        "dtype": torch.float32,
    }
    return streams, arm[2], options


@pytest.mark.parametrize("output", ["concat", "dict"])
@pytest.mark.parametrize("extra", [{}, {"return_valid": True}, {"return_valid": True, "return_age": True}], ids=len)
def test_one_graph_of_fuse_gives_the_bits_of_the_eager_call(rng, device, output, extra):
    streams, targets, options = fused_case(rng, device)

    def call(streams, targets):
        result = robocache.fuse_multimodal(streams, targets, output=output, **options, **extra)
        result = result if extra else (result,)
        return (*result[0].values(), *result[1:]) if output == "dict" else result

    assert_equal(torch.compile(call, fullgraph=True, backend="aot_eager")(streams, targets), call(streams, targets))


def test_gradients_through_a_compiled_fuse(rng, device):
    streams, targets, options = fused_case(rng, device)
    del streams["count"], options["method"]["count"], options["dtype"]
    tensors = [x.requires_grad_() for pair in streams.values() for x in pair] + [targets.requires_grad_()]

    def loss(*tensors):
        fused = robocache.fuse_multimodal({"arm": tensors[:2], "hand": tensors[2:4]}, tensors[4], **options)
        return torch.nan_to_num(fused, nan=0.0).square().sum()

    expected = torch.autograd.grad(loss(*tensors), tensors)
    result = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*tensors), tensors)
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_out_is_written_by_a_compiled_fuse(rng, device):
    streams, targets, options = fused_case(rng, device)
    expected, expected_valid = robocache.fuse_multimodal(streams, targets, return_valid=True, **options)
    out = poisoned((3, 9, 6), torch.float32, device)

    def call(streams, targets, out):
        return robocache.fuse_multimodal(streams, targets, out=out, return_valid=True, **options)

    _, valid = torch.compile(call, fullgraph=True)(streams, targets, out)
    assert_equal((out, valid), (expected, expected_valid))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck_of_fuse(rng, device, requires_grad):
    from robocache import _torch
    from robocache.ops.fuse import _fuse

    values, times, targets = random_case(rng, device, dtype=torch.float64)
    tensors = [x.requires_grad_(requires_grad) for x in (values, times, targets)]
    scale = torch.tensor([2.0, 3.0], dtype=torch.float64, device=device)

    def arguments(values, times, targets):
        options = {name: [default] * 2 for name, kind, default in _fuse.fields if kind.endswith("[]")}
        options |= {"streams": ["arm", "hand"], "values": values, "times": times, "target_times": targets}
        options |= {"method": ["linear", "pchip"], "max_gap": [0.5] * 2, "scale": [scale] * 2, "shift": [1.0] * 2}
        return _torch._spread(_fuse, _fuse.call(options | {"methods": [[], []]}))

    hand_values = values.detach().flip(1).requires_grad_(requires_grad)
    with_gradients = arguments([tensors[0], hand_values], [tensors[1], tensors[1]], tensors[2])
    close = opcheck_bounds(device)
    operators = torch.ops.robocache
    torch.library.opcheck(operators.fuse_multimodal.default, (*with_gradients, [True] * 3), **close)
    detached = torch.utils._pytree.tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, with_gradients)
    out = torch.empty(3, 9, 4, dtype=torch.float64, device=device)
    torch.library.opcheck(operators.fuse_multimodal_out.default, (*detached, [True, False, False], [out]))
    needs_gradient = [True, False, True, True, True]
    backward = (*detached, [torch.ones_like(out)], [], needs_gradient)
    torch.library.opcheck(operators.fuse_multimodal_backward.default, backward, **close)


def test_vmap_of_fuse_equals_a_loop_over_calls(rng, device):
    cases = [fused_case(rng, device) for _ in range(3)]
    options = cases[0][2]

    def call(streams, targets, lengths):
        row_options = options | {"lengths": {"hand": lengths}}
        return robocache.fuse_multimodal(streams, targets, return_valid=True, return_age=True, **row_options)

    lengths = torch.tensor([[3, 11, 0], [1, 1, 5], [11, 2, 3]], device=device)
    expected = [call(*case[:2], n) for case, n in zip(cases, lengths, strict=True)]
    streams, targets = torch.utils._pytree.tree_map(lambda *x: torch.stack(x), *(case[:2] for case in cases))
    expected = tuple(torch.stack(x) for x in zip(*expected, strict=True))
    assert_equal(torch.vmap(call)(streams, targets, lengths), expected)
    compiled = torch.compile(torch.vmap(call), fullgraph=True, backend="aot_eager")
    assert_equal(compiled(streams, targets, lengths), expected)


def test_gradients_of_every_row_of_fuse_by_vmap(rng, device):
    streams, targets, options = fused_case(rng, device)
    streams = {name: streams[name] for name in ("arm", "hand")}
    options = {"method": {"hand": "akima"}, "scale": {"hand": 2.0}}

    def loss(streams, targets):
        return robocache.fuse_multimodal(streams, targets, **options).square().sum()

    by_row = torch.vmap(torch.func.grad(loss))(streams, targets)
    unmapped = torch.func.grad(loss)(streams, targets)
    for name in streams:
        for a, b in zip(by_row[name], unmapped[name], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


# ---- torch.func ----


def test_vmap_equals_a_loop_over_calls(rng, device):
    calls = [random_case(rng, device) for _ in range(4)]
    values, times, targets = (torch.stack(x) for x in zip(*calls, strict=True))
    lengths = torch.tensor([[7, 1, 0], [3, 3, 3], [7, 7, 7], [2, 5, 6]], device=device)

    def call(v, t, q, n):
        return resample(v, t, q, lengths=n, return_valid=True)

    expected = [call(v, t, q, n) for (v, t, q), n in zip(calls, lengths, strict=True)]
    assert_equal(
        torch.vmap(call)(values, times, targets, lengths), tuple(torch.stack(x) for x in zip(*expected, strict=True))
    )


@pytest.mark.parametrize(
    "in_dims", [(0, None, None), (None, 0, None), (None, None, 0), (2, 0, 1), (0, 1, None)], ids=str
)
@pytest.mark.parametrize("layout", ["rows", "shared clocks", "one row"])
def test_vmap_over_any_argument_and_dimension(rng, device, in_dims, layout):
    calls = [random_case(rng, device) for _ in range(4)]
    if layout != "rows":
        calls = [(v, t[0], q[0]) for v, t, q in calls]
    if layout == "one row":
        calls = [(v[0], t, q) for v, t, q in calls]
    batched, single = [], []
    for index, dim in enumerate(in_dims):
        arrays = [call[index] for call in calls]
        dim = None if dim is None else min(dim, arrays[0].ndim)
        in_dims = (*in_dims[:index], dim, *in_dims[index + 1 :])
        batched.append(arrays[0] if dim is None else torch.stack(arrays, dim))
        single.append(arrays if dim is not None else arrays[:1] * 4)
    expected = torch.stack([resample(*arrays) for arrays in zip(*single, strict=True)])
    assert_equal(torch.vmap(resample, in_dims)(*batched), expected)


def test_vmap_in_vmap_and_in_a_graph(rng, device):
    values, times, targets = random_case(rng, device, batch=6)
    values, times, targets = values.reshape(2, 3, 7, 2), times.reshape(2, 3, 7), targets.reshape(2, 3, 9)
    nested = torch.vmap(torch.vmap(resample))
    expected = resample(values.flatten(0, 1), times.flatten(0, 1), targets.flatten(0, 1)).reshape(2, 3, 9, 2)
    assert_equal(nested(values, times, targets), expected)
    assert_equal(torch.compile(nested, fullgraph=True, backend="aot_eager")(values, times, targets), expected)


def test_gradients_of_every_row_by_vmap(rng, device):
    values, times, targets = random_case(rng, device, dtype=torch.float64)

    def loss(v, t, q):
        return resample(v, t, q, extrapolate="linear").square().sum()

    by_row = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(values, times, targets)
    tensors = [x.clone().requires_grad_() for x in (values, times, targets)]
    for a, b in zip(by_row, torch.autograd.grad(loss(*tensors), tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_jacobian_of_a_linear_method_is_its_weights(rng, device):
    values, times, targets = (x[0] for x in random_case(rng, device, features=1, dtype=torch.float64))
    jacobian = torch.func.jacrev(lambda v: resample(v[:, None], times, targets)[:, 0])(values[:, 0])
    torch.testing.assert_close(jacobian @ values, resample(values, times, targets), rtol=1e-12, atol=1e-12)


def test_batched_backward_passes(rng, device):
    """torch batches the backward passes of a call that was not batched."""
    values, times, targets = random_case(rng, device, features=1, dtype=torch.float64)

    def call(values):
        return resample(values, times, targets)

    one_by_one = torch.autograd.functional.jacobian(call, values)
    vectorized = torch.autograd.functional.jacobian(call, values, vectorize=True)
    torch.testing.assert_close(vectorized, one_by_one, rtol=1e-12, atol=1e-12)
