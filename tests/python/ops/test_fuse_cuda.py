"""fuse_multimodal on CUDA: one launch, graphs."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.fuse import fuse as oracle
from reference.fuse_calls import stream_of, targets_of
from reference.random_streams import CLOCKS, FLOATS

import robocache

torch = pytest.importorskip("torch")


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
