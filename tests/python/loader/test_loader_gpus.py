"""A Loader on the second GPU, and in several processes on the GPUs of one host: the order over ranks, a DDP step, resuming
in one process, and shared memory."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from loaders_by_keywords import loader_by_keywords
from recordings import ALL_WINDOWS, assert_same_batches, batches_of, small_loader, write, write_one_stream
from reference.mixture import draw

import robocache


def needs_gpus(count):
    if (gpu_count := torch.cuda.device_count()) < count:
        pytest.skip(f"NOT TESTED: several GPUs, {gpu_count} of {count} found")


@pytest.fixture
def two_gpus(cuda):
    needs_gpus(2)


@pytest.fixture(params=[("nccl", 2), ("nccl", 4), ("gloo", 4)], ids="{0[0]}-{0[1]}".format)
def ranks(request, cuda):
    """(backend, number of processes): with NCCL each has its own GPU, with gloo they share the GPUs."""
    backend, count = request.param
    if backend == "nccl":
        needs_gpus(count)
    return backend, count


@pytest.fixture(scope="module")
def one_stream(tmp_path_factory):
    return write_one_stream(tmp_path_factory.mktemp("nccl") / "cache", [500, 1, 600, 1010], np.float32)


def torchrun(tmp_path, ranks, program, *arguments):
    """Runs `program` by torchrun, and returns `results` of rank 0."""
    backend, count = ranks
    script, out = tmp_path / "train.py", tmp_path / "results.json"
    script.write_text(f"{BEGIN}\n{program}\n{END}")
    with contextlib.closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={count}"]
    command += ["--master-addr=127.0.0.1", f"--master-port={port}", str(script), backend, str(out)]
    command += map(str, arguments)
    paths = os.pathsep.join([str(Path(robocache.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        environment.pop(name, None)
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert process.returncode == 0, (process.stdout + process.stderr)[-4000:]
    return json.loads(out.read_text())


BEGIN = """
import json, os, sys
import torch
import torch.distributed as dist
import robocache

backend, out, path = sys.argv[1:]
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
results = {}

def gather_ranks(x):
    x = x if backend == "nccl" else x.cpu()
    parts = [torch.empty_like(x) for _ in range(ranks)]
    dist.all_gather(parts, x)
    return [part.to(device) for part in parts]
"""

END = """
if rank == 0:
    json.dump(results, open(out, "w"))
dist.barrier()
dist.destroy_process_group()
"""

# Trains for one epoch and three batches of the next, and returns the state.
TRAIN = """
loader = robocache.Loader(robocache.open(path), batch_size=128 // ranks, delta_timestamps={"x": [0.0, 1e-6]}, seed=4)
assert (loader.rank, loader.world_size, loader.device) == (rank, ranks, str(device))
torch.manual_seed(0)
model = torch.nn.Linear(3, 3, dtype=torch.float64, device="cuda")
reference = torch.nn.Linear(3, 3, dtype=torch.float64, device="cuda")  # as trained by one process with the whole batch
reference.load_state_dict(model.state_dict())
initial = torch.cat([p.detach().flatten() for p in reference.parameters()])
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (model, reference)]
results = {"times": [], "differences": []}
for epoch in range(2):
    for batch in loader:
        results["times"].append([times.tolist() for times in gather_ranks(batch["time_ns"])])
        x = batch["x"].double()
        all_x = torch.cat(gather_ranks(x))
        for module, values in ((model, x), (reference, all_x)):
            (module(values[:, 0]) - values[:, 1]).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        reference_flat = torch.cat([p.detach().flatten() for p in reference.parameters()])
        assert all(torch.equal(other, flat) for other in gather_ranks(flat))
        results["differences"].append((flat - reference_flat).abs().max().item())
        if epoch == 1 and len(results["times"]) == len(loader) + 3:
            break
results["moved"] = (reference_flat - initial).abs().max().item()
results["state"] = loader.state_dict()
results["steps"] = len(loader)
"""


def test_ranks_share_an_epoch_train_alike_and_resume_in_one_process(one_stream, ranks, tmp_path):
    dataset, ticks = one_stream
    _, rank_count = ranks
    results = torchrun(tmp_path, ranks, TRAIN, dataset.path)
    numbers = {t: number for number, (_, t) in enumerate(ticks)}
    drawn = [numbers[t] for batch in results["times"] for times in batch for t in times]
    count = len(ticks)
    padded_count = count + -count % rank_count
    epochs = [[draw(p, [count], seed=4, epoch=epoch)[1] for p in range(count)] for epoch in range(2)]
    assert drawn[:count] == epochs[0]
    assert drawn[count:padded_count] == epochs[0][: padded_count - count]
    assert drawn[padded_count:] == epochs[1][: 3 * 128]
    assert results["steps"] == -(-count // 128)

    # All ranks have equally many samples, so the mean of their gradients is the whole batch's, within float64's last digits.
    assert max(results["differences"]) <= 1e-12
    assert results["moved"] > 0.01

    fingerprint = results["state"].pop("fingerprint")
    assert results["state"] == {"seed": 4, "epoch": 1, "samples": 3 * 128}
    resumed = small_loader(dataset, batch_size=50, delta_timestamps={"x": None}, device="cuda", rank=0, world_size=1)
    resumed.load_state_dict({**results["state"], "fingerprint": fingerprint})
    resumed_numbers = [numbers[t] for batch in resumed for t in batch["time_ns"].tolist()]
    assert resumed_numbers == epochs[1][3 * 128 :]


PINNED = """
import glob
import hashlib

def shared_file_bytes():
    return sum(os.stat(file).st_blocks * 512 for file in glob.glob("/dev/shm/robocache-*"))

def host_shared_bytes():
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))

dist.barrier()
host_before, files_before = host_shared_bytes(), shared_file_bytes()
dist.barrier()
dataset = robocache.open(path)
options = dict(batch_size=64, delta_timestamps={"x": [0.0]}, seed=4)
loader = robocache.Loader(dataset, memory=robocache.Memory(residency="pinned"), **options)
batch = next(loader)
torch.cuda.synchronize()
dist.barrier()
taken = [host_shared_bytes() - host_before, shared_file_bytes() - files_before]
dist.barrier()
assert torch.equal(batch["x"], next(robocache.Loader(dataset, memory=robocache.Memory(residency="device"), **options))["x"])
results = {"taken": taken, "explained": str(loader.explain()), "tiers": [p.tier for p in loader.explain()]}
results["distinct"] = len(torch.cat(gather_ranks(batch["time_ns"])).unique())
del loader
"""


def test_ranks_of_one_host_share_one_pinned_copy(ranks, tmp_path):
    rows = np.random.default_rng(0).random((2**16, 512), np.float32)
    dataset = write(tmp_path / "cache", [{"x": (np.arange(2**16) * 10**6, rows)}])
    if os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize < 2 * rows.nbytes:
        pytest.skip("NOT TESTED: ranks that share memory, /dev/shm is too small")
    results = torchrun(tmp_path, ranks, PINNED, dataset.path)
    assert results["tiers"] == ["pinned"], results["explained"]
    _, rank_count = ranks
    assert results["distinct"] == 64 * rank_count
    host_bytes, file_bytes = results["taken"]
    assert rows.nbytes <= file_bytes < 1.1 * rows.nbytes, results["explained"]
    assert host_bytes < 1.5 * rows.nbytes  # the rest is other shared memory of the host
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"robocache-{os.getuid()}-")]


@pytest.mark.parametrize("residency", ["device", "pinned", "mapped"])
def test_the_second_gpu_gives_the_same_bytes(dataset, two_gpus, residency):
    options = {"delta_timestamps": ALL_WINDOWS, "anchor": "gripper", "batch_size": 7}
    options |= {"seed": 2, "normalize": "mean_std"}
    expected = batches_of(small_loader(dataset, device="cpu", **options))
    current = torch.cuda.current_device()
    loaders = [small_loader(dataset, device=f"cuda:{number}", residency=residency, **options) for number in range(2)]
    assert [next(loader)["time_ns"].device.index for loader in loaders] == [0, 1]
    for loader in loaders:
        loader.set_epoch(0)
    results = [[], []]
    for _ in expected:  # the two loaders alternate
        for batches, loader in zip(results, loaders, strict=True):
            batches += batches_of([next(loader)])
    for batches in results:
        assert_same_batches(batches, expected)
    assert torch.cuda.current_device() == current
    assert loader_by_keywords(dataset, batch_size=2, delta_timestamps={"action": [0.0]}).device == f"cuda:{current}"
