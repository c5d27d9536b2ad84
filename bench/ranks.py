"""Ranks: one loader per GPU, by torchrun on one host: batches alone, and a training loop of DistributedDataParallel.

    python bench/ranks.py --device cuda
    python bench/ranks.py --device cpu --threads 2

14 features at 50 Hz, 6 at 200 Hz and 64 at 30 Hz, float32, jittered. A sample is a window of 16 steps of 20 ms over all three,
interpolated. Before a rank is timed, all ranks' batches of an epoch are compared with those of a single process.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from inputs import write_cache
from measure import endless, wait_for_device
from record import Report, arguments, temporary_folder

import robocache

STREAMS = {"joint": (50, 14, "float32"), "wrench": (200, 6, "float32"), "feature": (30, 64, "float32")}
STEPS, PERIOD_S = 16, 0.02
SECONDS = 20.0
BATCH_SIZE = {"cuda": 4096, "cpu": 256}
# The width of the model's layers: on a GPU so wide that a step waits for the GPU instead of the host.
WIDTH = {"cuda": 4096, "cpu": 64}

AIMS = {f"{ranks} ranks": {"share_of_linear": 0.95, "trained_share_of_linear": 0.95} for ranks in (2, 4)}
# Written before the first measurement, of the loader alone and of this model.
PREDICTED = {
    "cuda": {"2 ranks": {"share_of_linear": 0.98, "trained_share_of_linear": 0.95}},
    "cpu": {"2 ranks": {"share_of_linear": 0.95}},
}


# ---- A rank ----


def make_loader(
    dataset: robocache.Dataset, batch_size: int, device: str, ranks: robocache.Ranks | None = None
) -> robocache.Loader:
    return robocache.Loader(
        dataset,
        batch_size=batch_size,
        delta_timestamps={name: [k * PERIOD_S for k in range(STEPS)] for name in STREAMS},
        anchors="feature",
        default=robocache.Window(normalize="mean_std"),
        device=device,
        framework="torch",
        seed=0,
        ranks=ranks,
    )


def verify(dataset: robocache.Dataset, batch_size: int, device: str) -> int:
    """Compares an epoch of all ranks, whose batches are gathered, with a single process's. Returns the number of samples.

    The anchors of each global batch are equal, in order, so no two ranks share one. A last batch too small for an even split is
    topped up with the epoch's first samples.
    """
    ranks = dist.get_world_size()
    single_process = iter(make_loader(dataset, ranks * batch_size, device, robocache.Ranks(rank=0, world_size=1)))
    compared, anchors_seen, first_expected = 0, [], None
    for batch in make_loader(dataset, batch_size, device):
        anchors = torch.stack([batch["episode_index"], batch["time_ns"]])
        anchors_by_rank = [torch.empty_like(anchors) for _ in range(ranks)]
        dist.all_gather(anchors_by_rank, anchors)
        expected = next(single_process)
        expected = torch.stack([expected["episode_index"], expected["time_ns"]])
        first_expected = expected if first_expected is None else first_expected
        count, drawn = expected.shape[1], torch.cat(anchors_by_rank, 1)
        repeated = drawn.shape[1] - count
        if not (
            torch.equal(drawn[:, :count], expected) and torch.equal(drawn[:, count:], first_expected[:, :repeated])
        ):
            raise AssertionError(f"{ranks} ranks: other samples than a single process's after {compared}")
        anchors_seen.append(expected)
        compared += count
    if next(single_process, None) is not None or compared != len(dataset.streams["feature"].time_ns):
        raise AssertionError(f"{ranks} ranks: the epoch ended after {compared} samples")
    if torch.unique(torch.cat(anchors_seen, 1), dim=1).shape[1] != compared:
        raise AssertionError(f"{ranks} ranks: an anchor was drawn twice in an epoch")
    return compared


def gather_seconds(works: dict[str, Callable[[], None]], count: int, rounds: int, device: str) -> dict[str, float]:
    """Returns the median seconds of one call of each work. All ranks begin together, and the slowest rank's time counts.

    The works take turns, round after round, so that a slow moment of the host affects all of them.
    """
    times_s: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        for _ in range(10):
            work()
    for _, (name, work) in itertools.product(range(rounds), works.items()):
        wait_for_device()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            work()
        wait_for_device()
        longest = torch.tensor((time.perf_counter() - start) / count, dtype=torch.float64, device=device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        times_s[name].append(longest.item())
    return {name: statistics.median(seconds) for name, seconds in times_s.items()}


def run_rank(options: argparse.Namespace) -> None:
    """Runs in each process of torchrun. Rank 0 writes the times of the slowest rank."""
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(options.threads)
    robocache.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high")
    device, batch_size, width = options.device, BATCH_SIZE[options.device], WIDTH[options.device]
    if device == "cuda":
        torch.cuda.set_device(local_rank)
        device = f"cuda:{local_rank}"
        dist.init_process_group("nccl", device_id=torch.device(device))
    else:
        dist.init_process_group("gloo")
    dataset = robocache.open(options.cache)
    result = {"batch_size": batch_size, "verified": verify(dataset, batch_size, device)}

    rounds, count = (2, 5) if options.quick else (9, 200 if options.device == "cuda" else 20)
    batches = endless(make_loader(dataset, batch_size, device))
    result |= gather_seconds({"batch_s": lambda: next(batches)}, 10 * count, rounds, device)

    features = STEPS * sum(size for _, size, _ in STREAMS.values())
    sizes = [features, width, width, width, STEPS * 14]
    layers = [layer for size in itertools.pairwise(sizes) for layer in (torch.nn.Linear(*size), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers[:-1]).to(device)
    model = torch.nn.parallel.DistributedDataParallel(
        model, device_ids=[local_rank] if options.device == "cuda" else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(batch: dict[str, torch.Tensor]) -> None:
        x = torch.cat([batch[name].flatten(1) for name in STREAMS], 1)
        loss = (model(x) - batch["joint"].flatten(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    same_batch = next(batches)
    steps = {"step_again_s": lambda: train(same_batch), "step_s": lambda: train(next(batches))}
    result |= gather_seconds(steps, count, rounds, device)
    if not all(torch.isfinite(parameter).all() for parameter in model.parameters()):
        raise AssertionError("the training diverged")
    if dist.get_rank() == 0:
        options.into.write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    # A thread of gloo may still release the barrier's tensor, which aborts the process while Python ends.
    os._exit(0)


# ---- All ranks ----


def find_free_port() -> int:
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_case(
    ranks: int, threads: int, options: argparse.Namespace, cache: Path, folder: Path, report: Report, case: dict
) -> None:
    into = folder / f"{ranks}.json"
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--nnodes=1"]
    command += ["--master-addr=127.0.0.1", f"--master-port={find_free_port()}", __file__, "--device", options.device]
    command += ["--threads", str(threads), "--cache", str(cache), "--into", str(into)]
    command += ["--quick"] if options.quick else []
    subprocess.run(command, check=True, timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"})
    result = json.loads(into.read_text())
    case["found"], case["parameters"]["batch_size"] = result, result["batch_size"]
    samples = ranks * result["batch_size"]
    figures = {"samples_per_s": samples / result["batch_s"], "trained_samples_per_s": samples / result["step_s"]}
    figures["trained_again_samples_per_s"] = samples / result["step_again_s"]
    one_rank = report.case("1 rank").get("figures", {}) if ranks > 1 else figures
    if one_rank:
        figures["share_of_linear"] = figures["samples_per_s"] / one_rank["samples_per_s"] / ranks
        figures["trained_share_of_linear"] = (
            figures["trained_samples_per_s"] / one_rank["trained_samples_per_s"] / ranks
        )
        share_again = figures["trained_again_samples_per_s"] / one_rank["trained_again_samples_per_s"]
        figures["trained_again_share_of_linear"] = share_again / ranks
    figures["grown_by"] = result["step_s"] / result["step_again_s"] - 1
    case["figures"] = figures
    print(f"  {figures}", flush=True)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--ranks", type=int, nargs="*", help="1, 2, 4 as far as there are GPUs; 1 and 2 on the CPU")
    parser.add_argument("--cache", type=Path, help="keep the recording in this folder, or use the one in it")
    parser.add_argument("--into", type=Path, help="for a rank: the file that rank 0 writes")
    options = parser.parse_args()
    if options.into is not None:
        run_rank(options)
        return 0
    max_ranks = torch.cuda.device_count() if options.device == "cuda" else 2
    report = Report("ranks", options, PREDICTED[options.device], AIMS)
    with temporary_folder() as folder:
        path = options.cache or folder / "cache"
        episodes, seconds = (9, 2.5) if options.quick else (options.episodes, SECONDS)
        if not path.exists():
            write_cache(path, STREAMS, episodes, seconds)
        parameters = {
            "episodes": episodes,
            "seconds": seconds,
            "steps": STEPS,
            "streams": {name: f"{features} {dtype} at {rate} Hz" for name, (rate, features, dtype) in STREAMS.items()},
        }
        rank_counts = options.ranks or [count for count in (1, 2, 4) if count <= max_ranks]
        threads = max(1, options.threads // max(rank_counts))  # for each rank, and as many for a single one
        for ranks in rank_counts:
            name = f"{ranks} rank{'s' if ranks > 1 else ''}"
            report.run(name, dict(parameters), partial(run_case, ranks, threads, options, path, folder, report))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
