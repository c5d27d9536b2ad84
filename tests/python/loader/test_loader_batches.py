"""A batch's arrays, frameworks, device and memory."""

import ml_dtypes
import numpy as np
import pytest
import torch
from loaders_by_keywords import loader_by_keywords
from recordings import (
    ALL_WINDOWS,
    FLOAT_STREAMS,
    anchors_of,
    assert_same_batches,
    batches_of,
    oracle_batch,
    record,
    write,
)
from reference.compare import assert_same_bits, to_numpy

import robocache


def test_the_keys_shapes_and_types_of_a_batch(dataset, device):
    deltas = {"action": [0.0, 0.02], "gripper": [0.0], "observation.feature": [-0.1, 0.0, 0.1]}
    loader = loader_by_keywords(dataset, batch_size=5, delta_timestamps=deltas, dtype="bfloat16", device=device)
    batch = next(iter(loader))
    assert {key: (tuple(value.shape), value.dtype) for key, value in batch.items()} == {
        "action": ((5, 2, 17), torch.bfloat16),
        "action_is_pad": ((5, 2), torch.bool),
        "gripper": ((5, 1), torch.bfloat16),
        "gripper_is_pad": ((5, 1), torch.bool),
        "observation.feature": ((5, 3, 2, 3), torch.bfloat16),
        "observation.feature_is_pad": ((5, 3), torch.bool),
        "time_ns": ((5,), torch.int64),
        "episode_index": ((5,), torch.int64),
        "anchor_index": ((5,), torch.int64),
    }
    assert all(value.is_contiguous() for value in batch.values())


def test_the_loader_keeps_its_dataset(rng, tmp_path, device):
    dataset = write(tmp_path / "cache", record(rng, episodes=5))
    loader = loader_by_keywords(dataset, batch_size=8, delta_timestamps={"action": [0.0]}, device=device)
    del dataset
    assert len(anchors_of(loader)) > 8


def test_same_bytes_on_cpu_and_cuda(dataset, cuda):
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        options = {"batch_size": 64, "delta_timestamps": ALL_WINDOWS, "anchor": "action", "dtype": dtype, "seed": 5}
        options["normalize"] = dict.fromkeys(FLOAT_STREAMS, "mean_std")
        expected = batches_of(loader_by_keywords(dataset, device="cpu", **options))
        assert_same_batches(batches_of(loader_by_keywords(dataset, device=cuda, **options)), expected)


def test_torch_by_default_and_numpy_on_request(dataset):
    options = {"batch_size": 8, "delta_timestamps": ALL_WINDOWS, "anchor": "action"}
    by_default = next(iter(loader_by_keywords(dataset, **options)))
    assert all(isinstance(value, torch.Tensor) for value in by_default.values())
    as_torch = next(iter(loader_by_keywords(dataset, framework="torch", **options)))
    as_numpy = next(iter(loader_by_keywords(dataset, framework="numpy", **options)))
    assert all(type(value) is np.ndarray for value in as_numpy.values())
    for key, value in as_numpy.items():
        assert_same_bits(value, to_numpy(as_torch[key]), key)
        value[...] = 0  # the array owns its memory, which is writable


def test_numpy_bfloat16(dataset, recording):
    windows = {"action": [0.0, 0.011]}
    batch = next(
        loader_by_keywords(dataset, batch_size=8, delta_timestamps=windows, dtype="bfloat16", framework="numpy")
    )
    assert batch["action"].dtype == ml_dtypes.bfloat16
    expected = oracle_batch(dataset, recording, batch, windows, dtype="bfloat16")
    assert_same_bits(batch["action"], expected["action"])


def test_a_batch_is_one_kernel_launch(dataset, cuda):
    loader = loader_by_keywords(dataset, batch_size=64, delta_timestamps=ALL_WINDOWS, anchor="action", device=cuda)
    iterator = iter(loader)
    next(iterator)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(4):
            next(iterator)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    if not kernels:
        pytest.skip("the profiler sees no device activity on this machine")
    assert len(kernels) == 4, [event.name for event in kernels]


def test_batches_are_queued_on_the_callers_stream(dataset, recording, cuda):
    loader = loader_by_keywords(dataset, batch_size=64, delta_timestamps=ALL_WINDOWS, anchor="action", device=cuda)
    iterator = iter(loader)
    next(iterator)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        batch = next(iterator)
        assert not stream.query(), "next(loader) waited for the device"
    stream.synchronize()
    expected = oracle_batch(dataset, recording, batch, ALL_WINDOWS)
    for key in expected:
        assert_same_bits(to_numpy(batch[key]), expected[key], key)


# ---- The device ----


def test_the_default_device_is_the_gpu(dataset):
    options = {"batch_size": 8, "delta_timestamps": {"action": [0.0]}}
    loader = loader_by_keywords(dataset, **options)
    cuda_is_usable = robocache.check_installation()["cuda"]["reason"] is None and torch.cuda.is_available()
    assert loader.device == (f"cuda:{torch.cuda.current_device()}" if cuda_is_usable else "cpu")
    assert str(next(loader)["action"].device) == loader.device
    assert loader_by_keywords(dataset, framework="numpy", **options).device == "cpu"
    for cpu in (torch.device("cpu"), torch.device("cpu", 0)):
        assert loader_by_keywords(dataset, device=cpu, **options).device == "cpu"
