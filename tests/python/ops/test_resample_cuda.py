"""resample_trajectories on CUDA: streams, graphs, no synchronisation."""

import time

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.resample import resample as oracle
from reference.resample_calls import random_case

import robocache

torch = pytest.importorskip("torch")


def test_work_runs_on_the_callers_stream(cuda):
    times = torch.arange(64.0, device=cuda)
    values = torch.zeros(64, 256, device=cuda)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        values.fill_(3)
        out = robocache.resample_trajectories(values, times, times + 0.5)
    stream.synchronize()
    assert (out == 3).all()


def test_a_call_neither_synchronises_nor_allocates_beyond_its_outputs(cuda):
    times = torch.arange(64.0, device=cuda)
    values = torch.rand(8, 64, 32, device=cuda)
    out = torch.empty(8, 64, 32, device=cuda)
    robocache.resample_trajectories(values, times, times, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda._sleep(200_000_000)
    start = time.perf_counter()
    robocache.resample_trajectories(values, times, times, out=out)
    waited = time.perf_counter() - start
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    torch.cuda.synchronize()
    assert waited < (time.perf_counter() - start) / 4, "the call waited for the device"


@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_a_call_is_captured_in_a_cuda_graph(rng, cuda, method):
    first, second = (random_case(rng, np.dtype(np.float16), np.dtype(np.float32)) for _ in range(2))
    inputs = [to_torch(x, cuda) for x in first]
    robocache.resample_trajectories(*inputs, method=method)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, valid = robocache.resample_trajectories(*inputs, method=method, return_valid=True)
    for case in (second, first):
        for tensor, array in zip(inputs, case, strict=True):
            tensor.copy_(to_torch(array, cuda))
        graph.replay()
        expected, expected_valid = oracle(*case, method=method)
        assert_same_bits(to_numpy(out), expected)
        assert_same_bits(to_numpy(valid), expected_valid)
