"""Loader: rows of one nominal clock on the CPU, with and without prefetch, compared with one torch gather per stream.

    python bench/loader_one_clock.py --threads 2

The dataset has 14 features of state and 7 of action at 50 Hz in float32, in 200 episodes of 1000 rows. A sample is 2 steps of
state that end at its row and 16 steps of action that begin at its row, with padding masks. Nothing is interpolated, so the
gather returns the same bytes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from contest import compare_with_copies
from measure import call_timer, copy_timers, endless, median_us
from peers.loader_gather import GatheredWindows
from record import Report, arguments, temporary_folder

import robocache

STREAMS = {"state": (14, range(-1, 1)), "action": (7, range(16))}  # features, steps
RATE_HZ = 50
BATCH_SIZES = [64, 256, 1024]
OPTIONS = {
    "robocache": {},
    "robocache, prefetch 0": {"memory": robocache.Memory(prefetch=0)},
    "robocache, reuse_buffers": {"memory": robocache.Memory(reuse_buffers=True)},
}

AIMS = {f"batch {size}": {"faster_than": {"torch gather": 3}} for size in (64, 256)}


def write_cache(path: Path, episodes: int, rows: int) -> None:
    rng = np.random.default_rng(0)
    with robocache.Writer(path) as writer:
        for name in STREAMS:
            writer.stream(name, clock="nominal")
        for _ in range(episodes):
            with writer.episode() as episode:
                for name, (features, _) in STREAMS.items():
                    values = rng.standard_normal((rows, features), np.float32)
                    episode.append(name, np.arange(rows) * (10**9 // RATE_HZ), values)


def verify(batch: dict[str, torch.Tensor], windows: GatheredWindows, rows: int) -> None:
    anchors = batch["episode_index"] * rows + batch["time_ns"] * RATE_HZ // 10**9
    for name, expected in windows.gather(anchors).items():
        if not torch.equal(batch[name], expected):
            raise AssertionError(f"{name} differs")


def run_case(dataset: robocache.Dataset, batch_size: int, rows: int, quick: bool, case: dict) -> None:
    streams = {name: torch.from_numpy(np.array(dataset.streams[name].values)) for name in STREAMS}
    row_offsets = torch.from_numpy(np.array(dataset.streams["state"].row_offsets))
    windows = GatheredWindows(streams, row_offsets, {name: steps for name, (_, steps) in STREAMS.items()})
    timers, batch = {}, {}
    for name, options in OPTIONS.items():
        delta_timestamps = {key: [step / RATE_HZ for step in steps] for key, (_, steps) in STREAMS.items()}
        loader = robocache.Loader(
            dataset, batch_size=batch_size, delta_timestamps=delta_timestamps, device="cpu", drop_last=True, **options
        )
        batches = endless(loader)
        for _ in range(3):
            batch = next(batches)
            verify(batch, windows, rows)
        timers[name] = call_timer([partial(next, batches)])
    timers["torch gather"] = call_timer([lambda: windows.gather(windows.draw(batch_size))])
    rounds = 5 if quick else 1001
    times_us = median_us(timers, rounds, apart=not quick)
    case["contenders"] = {
        name: {"wall_us": us, "samples_per_s": batch_size / us * 1e6} for name, us in times_us.items()
    }
    case["faster_than"] = {"torch gather": times_us["torch gather"] / times_us["robocache"]}
    case["bytes"] = sum(x.nbytes * (2 if name in STREAMS else 1) for name, x in batch.items())
    copies = median_us(copy_timers(case["bytes"], "cpu", sets=2 if quick else None), rounds)
    compare_with_copies(case, times_us["robocache"], copies)


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    options.device = "cpu"  # also if the other benchmarks run on a GPU
    report = Report("loader_one_clock", options, {}, AIMS)
    episodes, rows = (4, 100) if options.quick else (200, 1000)
    with temporary_folder() as folder:
        write_cache(folder / "cache", episodes, rows)
        dataset = robocache.open(folder / "cache")
        for batch_size in [16] if options.quick else BATCH_SIZES:
            parameters = {"batch_size": batch_size, "episodes": episodes, "rows": rows, "rate_hz": RATE_HZ}
            work = partial(run_case, dataset, batch_size, rows, options.quick)
            report.run(f"batch {batch_size}", parameters, work)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
