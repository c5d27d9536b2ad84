"""A call of an operation keeps no memory, runs beside calls in other threads, is queued on its stream, and can be captured."""

import gc
import os
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import robocache

torch = pytest.importorskip("torch")

GRID = {"grid_min": (-1.0, -1.0, -1.0), "voxel_size": 0.5, "grid_size": (4, 4, 4)}


@pytest.fixture(scope="module", autouse=True)
def no_earlier_objects():
    """Each test here collects garbage several times, which takes long among the objects of earlier tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def inputs(device):
    generator = torch.Generator().manual_seed(0)
    arrays = {
        "values": torch.randn(3, 9, 4, generator=generator),
        "times": torch.rand(3, 9, generator=generator).sort().values,
        "targets": torch.linspace(-0.1, 1.1, 7),
        "points": torch.randn(20, 3, generator=generator),
        "features": torch.randn(20, 2, generator=generator),
        "depth": 1 + torch.rand(6, 8, generator=generator),
        "pose": torch.eye(4, dtype=torch.float64),
        "camera": torch.tensor([8.0, 8.0, 3.5, 2.5]),
    }
    arrays = {name: array.to(device) for name, array in arrays.items()}
    # Torch records gradients of these copies.
    recorded = {f"recorded {name}": arrays[name].clone().requires_grad_() for name in ("values", "times", "features")}
    return arrays | recorded | {"numpy": np.ones((9, 4), np.float32), "numpy times": np.arange(9.0)}


def resample(inputs, values="values", **options):
    return robocache.resample_trajectories(inputs[values], inputs["times"], inputs["targets"], **options)


def fuse(inputs, values="values", **options):
    return robocache.fuse_multimodal([(inputs[values], inputs["times"])] * 3, inputs["targets"], **options)


def voxelize(inputs, features="features", mode="mean"):
    return robocache.voxelize_pointcloud(inputs["points"], inputs[features], mode=mode, **GRID)


def sparse(inputs, features="features", **options):
    result = robocache.voxelize_sparse(inputs["points"], inputs[features], voxel_size=0.5, **options)
    return tuple(array for array in result if array is not None)


def tsdf(inputs, measured="points", pose="pose", *camera):
    grid, weights = (torch.zeros(4, 4, 4, device=inputs["points"].device) for _ in range(2))
    space = {"grid_min": (-1.0, -1.0, -1.0), "voxel_size": 0.5, "truncation": 1.0}
    return robocache.integrate_tsdf(grid, weights, inputs[measured], inputs[pose], *camera, **space)


def gradient(call, inputs, name):
    return torch.autograd.grad(call(inputs, name).square().nansum(), inputs[name])


CALLS = {
    "resample": resample,
    "resample, valid": lambda inputs: resample(inputs, return_valid=True)[1],
    "resample, gradient": lambda inputs: gradient(resample, inputs, "recorded values"),
    "resample, gradient of times": lambda inputs: torch.autograd.grad(
        resample(inputs | {"times": inputs["recorded times"]}).square().nansum(), inputs["recorded times"]
    ),
    "resample, cubic": lambda inputs: resample(inputs, method="cubic"),
    "resample, slerp": lambda inputs: resample(inputs, method="slerp"),
    "resample, unused graph": lambda inputs: resample(inputs, "recorded values"),
    "resample, numpy": lambda inputs: robocache.resample_trajectories(
        inputs["numpy"], inputs["numpy times"], inputs["numpy times"]
    ),
    "fuse": fuse,
    "fuse, dict": lambda inputs: tuple(
        fuse(inputs, output="dict", scale=[None, 2.0, None], method=["linear", "next", None])
    ),
    "fuse, gradient": lambda inputs: gradient(fuse, inputs, "recorded values"),
    "voxelize": lambda inputs: voxelize(inputs, mode="max"),
    "voxelize, gradient": lambda inputs: gradient(voxelize, inputs, "recorded features"),
    "sparse": sparse,
    "sparse, gradient": lambda inputs: gradient(
        lambda inputs, name: sparse(inputs, name)[1], inputs, "recorded features"
    ),
    "sparse, points": lambda inputs: sparse(inputs, capacity=30, max_points_per_voxel=3, reduce=None),
    "sparse, morton": lambda inputs: sparse(inputs, capacity=30, max_points_per_voxel=40, order="morton"),
    "sparse, range": lambda inputs: sparse(
        inputs, capacity=9, reduce="max", order="linear", point_range=(-1, -1, -1, 1, 1, 1)
    ),
    "downsample": lambda inputs: robocache.voxel_downsample(inputs["points"], voxel_size=0.5),
    "tsdf": tsdf,
    "tsdf, depth": lambda inputs: tsdf(inputs, "depth", "pose", inputs["camera"]),
    "tsdf, many poses on the host": lambda inputs: tsdf(
        {"points": inputs["points"], "depth": inputs["depth"].expand(40, 6, 8), "pose": np.stack([np.eye(4)] * 40)},
        "depth",
        "pose",
        (8.0, 8.0, 3.5, 2.5),
    ),
    "tsdf, pose on the host": lambda inputs: tsdf(inputs | {"host": np.eye(4)}, "depth", "host", (8.0, 8.0, 3.5, 2.5)),
}
# These calls do not wait for the device.
QUEUED = [
    name
    for name in CALLS
    if name not in ("resample, numpy", "resample, unused graph", "sparse", "sparse, gradient", "downsample")
]
REFUSED = {
    "a clock too short": lambda inputs: robocache.resample_trajectories(
        inputs["values"], inputs["times"][:2], inputs["targets"]
    ),
    "no method": lambda inputs: resample(inputs, "recorded values", method="lineal"),
    "an object": lambda inputs: fuse(inputs, bc_type=inputs),
    "no array": lambda inputs: voxelize(inputs | {"features": object()}),
    "a graph and out": lambda inputs: resample(inputs, "recorded values", out=inputs["values"]),
}


def arrays_of(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", [*CALLS, *REFUSED])
def test_a_call_keeps_no_objects(inputs, case):
    def call():
        if case in REFUSED:
            with pytest.raises(robocache.Error):
                REFUSED[case](inputs)
            return []
        return [weakref.ref(array) for array in arrays_of(CALLS[case](inputs))]

    watched = *inputs.values(), None, True, torch.float32, np.float32

    def counts():
        gc.collect()
        return [sys.getrefcount(item) for item in watched]

    # Objects are freed without the collector. On CUDA torch's backward thread may free them a moment later.
    gc.disable()
    try:
        results, deadline = call(), time.monotonic() + 5
        while any(reference() is not None for reference in results) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert [reference() for reference in results] == [None] * len(results)
    finally:
        gc.enable()
    counts_before = counts()
    for _ in range(200):
        call()
    assert max(b - a for a, b in zip(counts_before, counts(), strict=True)) < 100


@pytest.mark.parametrize("case", ["resample", "resample, gradient", "fuse", "sparse", "downsample"])
def test_the_memory_of_a_result_is_freed_with_it(case):
    inputs = {
        "values": torch.ones(2, 1),
        "times": torch.arange(2.0),
        "targets": torch.zeros(1 << 20),
        "points": torch.rand(1 << 19, 3) * 1000,
        "features": torch.ones(1 << 19, 1),
    }
    inputs["recorded values"] = inputs["values"].clone().requires_grad_()

    def resident():
        for _ in range(12):
            CALLS[case](inputs)
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    before = resident()
    assert resident() - before < 30e6  # each call makes 4 MB or more


def test_threads_call_at_the_same_time(inputs):
    names = [name for name in CALLS if name != "resample, unused graph"]
    expected = {name: arrays_of(CALLS[name](inputs)) for name in names}
    errors = []

    def work(first):
        try:
            for step in range(60):
                name = names[(first + step) % len(names)]
                for a, b in zip(arrays_of(CALLS[name](inputs)), expected[name], strict=True):
                    np.testing.assert_array_equal(
                        *(np.asarray(x.cpu()) if isinstance(x, torch.Tensor) else x for x in (a, b))
                    )
                for refused in REFUSED.values():
                    with pytest.raises(robocache.Error):
                        refused(inputs)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(3 * first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


ON_CUDA = pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
CHANGED_INPUTS = "values", "recorded values", "features", "recorded features", "points", "depth"


@ON_CUDA
@pytest.mark.parametrize("case", QUEUED)
def test_work_is_queued_on_the_current_stream(inputs, case):
    expected = arrays_of(CALLS[case](inputs))
    late_inputs = {
        name: torch.full_like(inputs[name], torch.nan).requires_grad_(name.startswith("rec")) for name in CHANGED_INPUTS
    }
    CALLS[case](inputs | late_inputs)  # the first call of a kind loads code
    torch.cuda.synchronize()
    side_stream = torch.cuda.Stream()
    with torch.cuda.stream(side_stream):
        torch.cuda._sleep(200_000_000)
        with torch.no_grad():
            for name in CHANGED_INPUTS:
                late_inputs[name].copy_(inputs[name])
        result = arrays_of(CALLS[case](inputs | late_inputs))
        assert not side_stream.query()  # the call did not wait
    side_stream.synchronize()
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)  # sums over times vary


@ON_CUDA
@pytest.mark.parametrize("case", QUEUED)
def test_a_captured_call_reads_its_inputs_anew(inputs, case):
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        CALLS[case](inputs)
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = arrays_of(CALLS[case](inputs))
    for _ in range(2):
        with torch.no_grad():
            for name in CHANGED_INPUTS:
                inputs[name].normal_()
            inputs["pose"][:3, 3].uniform_(-0.1, 0.1)
        graph.replay()
        for a, b in zip(captured, arrays_of(CALLS[case](inputs)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)  # sums over times vary
