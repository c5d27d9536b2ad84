"""Faults of a GPU: full memory, and a context after a failed kernel. Each is an error, and the process continues."""

import os
import subprocess
import sys

import numpy as np
import pytest

import robocache

pytestmark = pytest.mark.cuda


def write(path, rows=50_000):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        episode.append("x", np.arange(rows) * 10, np.arange(4 * rows, dtype=np.float32).reshape(rows, 4))
    return path


def loader_of(path):
    return robocache.Loader(
        path,
        batch_size=4096,
        delta_timestamps={"x": [0.0, 1e-8]},
        device="cuda",
        memory=robocache.Memory(residency="device"),
    )


def test_full_memory_is_an_error_and_the_loader_continues(cuda, tmp_path):
    import torch

    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("NOT TESTED: other processes use this device's memory, too")
    path, large = write(tmp_path / "cache"), write(tmp_path / "large", 2_000_000)
    expected = next(loader_of(path))["x"].cpu()
    loader = loader_of(path)
    torch.cuda.empty_cache()
    blocks = []
    size = 1 << 34
    while size >= 1 << 12:
        try:
            blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    failures = (robocache.DeviceError, torch.OutOfMemoryError, MemoryError)
    with pytest.raises(failures):
        loader_of(large)
    with pytest.raises(failures):
        robocache.resample_trajectories(
            torch.ones(64, 4096, 32, device="cuda"),
            torch.arange(4096.0, device="cuda"),
            torch.arange(4096.0, device="cuda"),
        )
    for _ in range(3):
        with pytest.raises(failures):
            next(loader)
    del blocks
    torch.cuda.empty_cache()
    loader.load_state_dict({"seed": 0, "epoch": 0, "samples": 0})
    assert torch.equal(next(loader)["x"].cpu(), expected)
    assert torch.isfinite(next(loader_of(large))["x"]).all()


PROGRAM = """
import sys, torch, robocache
loader = robocache.Loader(sys.argv[1], batch_size=64, delta_timestamps={"x": [0.0]}, device="cuda")
next(loader)
values, times = torch.ones(1, 8, 2, device="cuda"), torch.arange(8.0, device="cuda")[None]
torch.zeros(4, device="cuda")[torch.tensor([1 << 40], device="cuda")]  # the kernel's assertion destroys the CUDA context
for call in (lambda: next(loader), lambda: robocache.resample_trajectories(values, times, times),
             lambda: robocache.voxelize_pointcloud(values[0, :, [0, 1, 1]], grid_min=(0, 0, 0), voxel_size=1.0, grid_size=(2, 2, 2)),
             lambda: robocache.Loader(sys.argv[1], batch_size=64, delta_timestamps={"x": [0.0]}, device="cuda")):
    try:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        print("no error")
    except robocache.DeviceError as error:
        print("DeviceError", error)
    except Exception as error:
        print("torch", type(error).__name__)  # an error of its allocation or its index
print("on the CPU", robocache.resample_trajectories(values.new_ones(1, 8, 2, device="cpu"), torch.arange(8.0)[None], torch.arange(8.0)[None]).sum().item())
"""


def test_a_failed_launch_is_an_error(cuda, tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, write(tmp_path / "cache")], capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, (process.returncode, process.stderr[-2000:])
    *lines, last_line = process.stdout.splitlines()
    assert len(lines) == 4 and last_line == "on the CPU 16.0", process.stdout
    assert all(line.startswith(("DeviceError ", "torch ")) for line in lines), process.stdout
    assert any(line.startswith("DeviceError ") for line in lines), process.stdout
