"""Loader: training batches of three ragged streams, compared with a torch DataLoader and with torch code without loops.

    python bench/loader.py --device cuda
    python bench/loader.py --device cpu --threads 2

14 features at 50 Hz, 6 at 200 Hz and 64 at 30 Hz, float32, jittered; 2000 episodes of 20 s. A sample is a window of 16
steps of 20 ms over all three, interpolated, normalised to mean 0 and std 1, in bfloat16, with its padding mask.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from contest import compare_with_copies, fail, make_timers
from inputs import ROW_JITTER, write_cache
from measure import (
    batch_us,
    call_timer,
    copy_timers,
    endless,
    graph_timer,
    input_sets,
    median_us,
    queueing_timer,
    wall_timer,
)
from peers import loader_numpy, loader_torch
from record import Report, arguments, temporary_folder

import robocache

STREAMS = {"joint": (50, 14, "float32"), "wrench": (200, 6, "float32"), "feature": (30, 64, "float32")}
ANCHOR = "feature"
STEPS, PERIOD_NS = 16, 20_000_000
SNAP_NS = 1000
MIXED = "robocache, mixture of 8"
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
    """Returns the fewest bytes that move: each sample's rows and stamps beside its targets, counted once, and the batch."""
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

    A peer rounds the weight, the product, the sums and the scaling in float32: together below 2^-18 of `largest`, the largest
    |scale * value|. At a target within SNAP_NS of a sample, robocache takes the sample and the peer interpolates: below
    2 * largest * SNAP_NS / shortest gap. The last rounding may then differ by one bfloat16 ulp, 2^-7.
    """
    worst = 0.0
    for name, (rate, _, _) in STREAMS.items():
        mask, peer_mask = ours[f"{name}_is_pad"], theirs[f"{name}_is_pad"].to(ours[name].device)
        if not torch.equal(mask, peer_mask):
            raise AssertionError(f"{name}_is_pad differs in {int((mask != peer_mask).sum())} entries")
        largest = float(np.abs(streams[name][1]).max()) * float(np.abs(affine[name][0]).max())
        shortest_gap_ns = (1 - 2 * ROW_JITTER) * 1e9 / rate
        y, peer_y = ours[name].double(), theirs[name].to(ours[name].device).double()
        bound = 2.0**-7 * y.abs() + largest * (2.0**-18 + 2 * SNAP_NS / shortest_gap_ns)
        ratio = float(((y - peer_y).abs() / bound).max())
        if not ratio <= 1:
            raise AssertionError(f"{name} differs from robocache by {ratio:.3g} times the bound")
        worst = max(worst, ratio)
    return {"largest_error_over_bound": worst}


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
    peers = {"torch eager": resident.align}
    if not quick:
        peers["torch.compile"] = torch.compile(resident.align, dynamic=False)
    calls = {"robocache": [partial(next, batches)]}

    def align_with(align, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        episode, time_ns = batch["episode_index"], batch["time_ns"]
        return align(episode, time_ns + resident.shift_ns[episode])

    mixed_batches = endless(make_loader(mixture(dataset), batch_size, device))
    mixture_batch = next(mixed_batches)
    case["contenders"][MIXED] = verify(
        mixture_batch, align_with(resident.align, mixture_batch), windows.streams, windows.affine
    )
    calls[MIXED] = [partial(next, mixed_batches)]
    for name, align in peers.items():
        try:
            case["contenders"][name] = verify(batch, align_with(align, batch), windows.streams, windows.affine)
            calls[name] = [lambda align=align: align(*resident.draw(batch_size))]
        except Exception as error:
            fail(case, name, error)
    first_samples = {key: x[:64] for key, x in batch.items()}
    samples = [
        windows.window(*anchor)
        for anchor in zip(first_samples["episode_index"].tolist(), first_samples["time_ns"].tolist(), strict=True)
    ]
    verified = verify(first_samples, loader_numpy.collate(samples), windows.streams, windows.affine)

    rounds = 3 if quick else {"cuda": 31, "cpu": 301}[device]
    if device == "cuda":
        # Every replay makes the same batches. There are so many that their data do not stay in the cache from replay to replay.
        graph_batches = 8 if quick else max(8, input_sets(case["bytes"], device, most=128))
        measures = {
            "wall_us": partial(wall_timer, count=10 if quick else 200),
            "host_us": partial(queueing_timer, count=10 if quick else 200),
            "gpu_us": partial(graph_timer, least_calls=graph_batches),
        }
    else:
        measures = {"wall_us": call_timer}
    for measure, timer_of in measures.items():
        names = ["robocache", MIXED] if measure == "host_us" else calls
        timers = make_timers(case, measure, timer_of, {name: calls[name] for name in names})
        times_us = median_us(timers, rounds, apart=device == "cpu" and not quick)
        for name in timers:
            case["contenders"][name][measure] = times_us[name]
        del timers
    copies = median_us(copy_timers(case["bytes"], device, sets=2 if quick else None), rounds)
    if device == "cuda":
        torch.cuda.empty_cache()

    for count in workers:
        name = f"torch DataLoader, {count} workers"
        try:
            peer = iter(loader_numpy.dataloader(windows, batch_size, count, pin_memory=device == "cuda"))
            wall_us = batch_us(peer, 4 * max(1, count), 1 << 30, 0.2 if quick else 4, device)
            case["contenders"][name] = {**verified, "wall_us": wall_us}
        except Exception as error:
            fail(case, name, error)

    for contender in case["contenders"].values():
        if "wall_us" in contender:
            contender["samples_per_s"] = batch_size / contender["wall_us"] * 1e6
        if "gpu_us" in contender:
            contender["gpu_samples_per_s"] = batch_size / contender["gpu_us"] * 1e6
    ours = case["contenders"]["robocache"]
    case["faster_than"] = {
        name: contender["wall_us"] / ours["wall_us"]
        for name, contender in case["contenders"].items()
        if name not in ("robocache", MIXED) and "wall_us" in contender
    }
    measure = "gpu_us" if "gpu_us" in ours else "wall_us"
    case["mixture_costs"] = case["contenders"][MIXED][measure] / ours[measure]
    compare_with_copies(case, ours[measure], copies)


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

    with temporary_folder() as folder:
        path = options.cache or folder / "cache"
        if not path.exists():
            start = time.perf_counter()
            write_cache(path, STREAMS, episodes, options.seconds)
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
                "streams": {name: f"{features} features at {rate} Hz" for name, (rate, features, _) in STREAMS.items()},
                "dtype": "bfloat16",
            }
            work = partial(run_case, dataset, windows, resident, batch_size, workers, options.device, options.quick)
            report.run(f"batch {batch_size}", parameters, work)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
