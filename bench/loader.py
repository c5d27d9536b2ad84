"""Loader: training batches of three ragged streams, against a torch DataLoader and careful torch code.

    python bench/loader.py --device cuda
    python bench/loader.py --device cpu --threads 2

14 features at 50 Hz, 6 at 200 Hz and 64 at 30 Hz, float32, jittered; 2000 episodes of 20 s. A sample is a window of 16
steps of 20 ms over all three, interpolated, normalised to mean 0 and std 1, in bfloat16, with its padding mask.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measure import copy_timers, cpu_timer, endless, graph_timer, host_timer, median_us, wall_timer
from peers import loader_numpy, loader_torch
from record import Report, arguments

import robocache

STREAMS = {"joint": (50, 14), "wrench": (200, 6), "feature": (30, 64)}  # Hz, features
ANCHOR = "feature"
STEPS, PERIOD_NS = 16, 20_000_000
SNAP_NS = 1000
MIXED = "robocache, mixture of 8"
JITTER = 0.2  # in periods, to either side, so no gap is shorter than 0.6 periods
BATCH_SIZES = {"cuda": [64, 1024, 4096, 16384], "cpu": [64, 256, 1024, 4096]}

# Written before the first measurement.
PREDICTED = {
    "cuda": {
        "batch 64": {"gpu_us": 5.5, "host_us": 10},
        "batch 1024": {
            "gpu_us": 15,
            "samples_per_s": 65e6,
            "faster_than": {"torch DataLoader": 550, "torch eager": 25},
        },
        "batch 4096": {"gpu_us": 47, "samples_per_s": 85e6},
        "batch 16384": {"gpu_us": 175, "samples_per_s": 93e6},
    },
    "cpu": {"batch 1024": {"samples_per_s": 600e3, "faster_than": {"torch DataLoader": 40, "torch eager": 10}}},
}


def write_cache(path: Path, episodes: int, seconds: float) -> None:
    rng = np.random.default_rng(0)
    with robocache.Writer(path) as writer:
        for number in range(episodes):
            start = 1_700_000_000_000_000_000 + number * 60 * 10**9
            with writer.episode() as episode:
                for name, (rate, features) in STREAMS.items():
                    rows = int(rate * seconds)
                    ticks = (np.arange(rows) + rng.uniform(-JITTER, JITTER, rows)) * (1e9 / rate)
                    episode.append(
                        name, start + ticks.astype(np.int64), rng.standard_normal((rows, features), np.float32)
                    )


def make_loader(dataset: robocache.Dataset | list[robocache.Source], batch_size: int, device: str) -> robocache.Loader:
    return robocache.Loader(
        dataset,
        batch_size=batch_size,
        delta_timestamps={name: [k * PERIOD_NS / 1e9 for k in range(STEPS)] for name in STREAMS},
        anchors=ANCHOR,
        default=robocache.Window(normalize="mean_std", dtype="bfloat16"),
        normalization=robocache.Normalization(stats_of="dataset"),  # as the peers, also in the mixture
        device=device,
        framework="torch",
        seed=0,
    )


def mixture(dataset: robocache.Dataset) -> list[robocache.Source]:
    """Returns eight sources of different weights, each with an eighth of the episodes."""
    parts = np.array_split(np.arange(len(dataset)), 8)
    return [robocache.Source(dataset, weight=4 + i, episodes=part.tolist()) for i, part in enumerate(parts)]


def peer_arguments(dataset: robocache.Dataset) -> tuple:
    streams, affine = {}, {}
    for name in STREAMS:
        stream, stats = dataset.streams[name], dataset.stats[name]
        streams[name] = tuple(np.array(x) for x in (stream.time_ns, stream.values, stream.row_offsets))
        affine[name] = tuple(np.float32(x) for x in (1 / stats.std, -stats.mean / stats.std))
    return streams, np.arange(STEPS) * PERIOD_NS, affine, ANCHOR, SNAP_NS


def bytes_moved(windows: loader_numpy.Windows, batch: dict[str, torch.Tensor]) -> int:
    """Returns the fewest bytes that move: the rows and stamps beside each sample's targets, once per sample, and the batch."""
    anchors = list(zip(batch["episode_index"].tolist(), batch["time_ns"].tolist(), strict=True))[:256]
    read = 0
    for episode, anchor_ns in anchors:
        for time_ns, values, offsets in windows.streams.values():
            clock = time_ns[offsets[episode] : offsets[episode + 1]]
            right = np.searchsorted(clock, anchor_ns + windows.delta_ns, side="right").clip(1, len(clock) - 1)
            read += len(np.union1d(right - 1, right)) * (values.shape[1] * values.itemsize + time_ns.itemsize)
    return read * len(batch["time_ns"]) // len(anchors) + sum(x.nbytes for x in batch.values())


def verify(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], streams: dict, affine: dict) -> dict:
    """Compares the masks exactly, and the values within the bound of their arithmetic.

    A peer rounds the weight, the product, the sums and the scaling in float32: together below 2^-18 of the largest
    |scale * value|. It interpolates up to 1 us beside a sample where robocache takes the sample: below
    2 * largest * 1000 ns / shortest gap. The last rounding may then differ by one bfloat16 ulp, 2^-7.
    """
    worst = 0.0
    for name, (rate, _) in STREAMS.items():
        mask, peer_mask = ours[f"{name}_is_pad"], theirs[f"{name}_is_pad"].to(ours[name].device)
        if not torch.equal(mask, peer_mask):
            raise AssertionError(f"{name}_is_pad differs in {int((mask != peer_mask).sum())} entries")
        largest = float(np.abs(streams[name][1]).max()) * float(np.abs(affine[name][0]).max())
        shortest_gap_ns = (1 - 2 * JITTER) * 1e9 / rate
        y, peer_y = ours[name].double(), theirs[name].to(ours[name].device).double()
        bound = 2.0**-7 * y.abs() + largest * (2.0**-18 + 2 * SNAP_NS / shortest_gap_ns)
        ratio = float(((y - peer_y).abs() / bound).max())
        if not ratio <= 1:
            raise AssertionError(f"{name} differs from robocache by {ratio:.3g} times the bound")
        worst = max(worst, ratio)
    return {"largest_error_over_bound": worst}


def dataloader_us(windows: loader_numpy.Windows, batch_size: int, workers: int, device: str, seconds: float) -> float:
    """Returns the microseconds per batch, including the copy to the device, after the batches made ahead are used up."""
    batches = iter(loader_numpy.dataloader(windows, batch_size, workers, pin_memory=device == "cuda"))

    def take() -> None:
        for x in next(batches).values():
            x.to(device, non_blocking=True)

    ahead = max(2, 2 * workers)
    for _ in range(2 * ahead):
        take()
    if device == "cuda":
        torch.cuda.synchronize()
    start, count = time.perf_counter(), 0
    while count < ahead or time.perf_counter() - start < seconds:
        take()
        count += 1
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e6


def run_case(
    dataset: robocache.Dataset,
    windows: loader_numpy.Windows,
    resident: loader_torch.ResidentWindows,
    batch_size: int,
    workers: list[int],
    device: str,
    quick: bool,
    case: dict,
) -> None:
    torch._dynamo.reset()
    batches = endless(make_loader(dataset, batch_size, device))
    batch = next(batches)
    case["bytes"] = bytes_moved(windows, batch)
    case["contenders"], case["failures"] = {"robocache": {}}, {}
    draw_and_align = {"torch eager": lambda: resident.align(*resident.draw(batch_size))}
    if not quick:
        compiled = torch.compile(resident.align, dynamic=False)
        draw_and_align["torch.compile"] = lambda: compiled(*resident.draw(batch_size))
    calls = {"robocache": [partial(next, batches)]}

    def aligned_by(peer, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        episode, time_ns = batch["episode_index"], batch["time_ns"]
        return peer(episode, time_ns + resident.shift_ns[episode])

    mixed_batches = endless(make_loader(mixture(dataset), batch_size, device))
    mixed = next(mixed_batches)
    case["contenders"][MIXED] = verify(mixed, aligned_by(resident.align, mixed), windows.streams, windows.affine)
    calls[MIXED] = [partial(next, mixed_batches)]
    for name in draw_and_align:
        try:
            peer = resident.align if name == "torch eager" else compiled
            case["contenders"][name] = verify(batch, aligned_by(peer, batch), windows.streams, windows.affine)
            calls[name] = [draw_and_align[name]]
        except Exception as error:
            case["failures"][name] = f"{type(error).__name__}: {error}"
            print(f"  {name} failed: {error}", flush=True)
    few = {key: x[:64] for key, x in batch.items()}
    samples = [windows.window(*at) for at in zip(few["episode_index"].tolist(), few["time_ns"].tolist(), strict=True)]
    verified = verify(few, loader_numpy.collate(samples), windows.streams, windows.affine)

    rounds = 3 if quick else 31 if device == "cuda" else 301
    if device == "cuda":
        # Captured batches are the same at every replay, so there are enough of them that their data are not in the cache.
        fresh = 8 if quick else int(max(8, min(128, 4 * (60 << 20) // case["bytes"])))
        measures = {
            "wall_us": partial(wall_timer, count=10 if quick else 200),
            "host_us": partial(host_timer, count=10 if quick else 200),
            "gpu_us": partial(graph_timer, least_calls=fresh),
        }
    else:
        measures = {"wall_us": cpu_timer}
    for measure, timer_of in measures.items():
        timers = {}
        for name in ["robocache", MIXED] if measure == "host_us" else calls:
            try:
                timers[name] = timer_of(calls[name])
            except Exception as error:
                case["failures"][f"{name}, {measure}"] = f"{type(error).__name__}: {error}"
                print(f"  {name}, {measure} failed: {error}", flush=True)
        taken = median_us(timers, rounds, apart=device == "cpu" and not quick)
        for name in timers:
            case["contenders"][name][measure] = taken[name]
        del timers
    copies = median_us(copy_timers(case["bytes"], device, sets=2 if quick else None), rounds)
    case["copies_us"], case["floor_us"] = copies, min(copies.values())
    if device == "cuda":
        torch.cuda.empty_cache()

    for count in workers:
        name = f"torch DataLoader, {count} workers"
        try:
            wall_us = dataloader_us(windows, batch_size, count, device, seconds=0.2 if quick else 4)
            case["contenders"][name] = {**verified, "wall_us": wall_us}
        except Exception as error:
            case["failures"][name] = f"{type(error).__name__}: {error}"
            print(f"  {name} failed: {error}", flush=True)

    for contender in case["contenders"].values():
        if "wall_us" in contender:
            contender["samples_per_s"] = batch_size / contender["wall_us"] * 1e6
        if "gpu_us" in contender:
            contender["gpu_samples_per_s"] = batch_size / contender["gpu_us"] * 1e6
    ours = case["contenders"]["robocache"]
    case["times_the_copy"] = ours.get("gpu_us", ours["wall_us"]) / case["floor_us"]
    case["faster_than"] = {
        name: measures["wall_us"] / ours["wall_us"]
        for name, measures in case["contenders"].items()
        if name not in ("robocache", MIXED) and "wall_us" in measures
    }
    measure = "gpu_us" if "gpu_us" in ours else "wall_us"
    case["mixture_costs"] = case["contenders"][MIXED][measure] / ours[measure]
    print(f"  {case['times_the_copy']:.2f} times the copy; faster than {case['faster_than']}", flush=True)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of an episode")
    parser.add_argument("--workers", type=int, nargs="*", help="DataLoader workers; 16 beside a GPU, else 0 and 2")
    parser.add_argument("--cache", type=Path, help="keep the recording in this folder, or use the one in it")
    options = parser.parse_args()
    workers = options.workers if options.workers is not None else ([16] if options.device == "cuda" else [0, 2])
    episodes = 8 if options.quick else options.episodes
    report = Report("loader", options, PREDICTED[options.device])

    folder = None if options.cache else Path(tempfile.mkdtemp(prefix="robocache-bench-"))
    try:
        path = options.cache or folder / "cache"
        if not path.exists():
            start = time.perf_counter()
            write_cache(path, episodes, options.seconds)
            report.content["write_s"] = time.perf_counter() - start
            print(f"  cache written in {report.content['write_s']:.1f} s", flush=True)
        dataset = robocache.open(path)
        peers = peer_arguments(dataset)
        windows = loader_numpy.Windows(*peers)
        resident = loader_torch.ResidentWindows(*peers, device=options.device)
        for batch_size in [16] if options.quick else BATCH_SIZES[options.device]:
            parameters = {
                "batch_size": batch_size,
                "steps": STEPS,
                "episodes": len(dataset),
                "seconds": options.seconds,
                "streams": {name: f"{features} features at {rate} Hz" for name, (rate, features) in STREAMS.items()},
                "dtype": "bfloat16",
            }
            work = partial(run_case, dataset, windows, resident, batch_size, workers, options.device, options.quick)
            report.run(f"batch {batch_size}", parameters, work)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
