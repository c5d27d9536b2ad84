"""Episodes: the time and memory to open a cache of many episodes, and to start a loader on it.

    python bench/episodes.py --device cpu --threads 2

An episode has two streams of two rows, and two columns of metadata. Each number is from a fresh process, which first opens a cache
of one episode and starts a loader on it, so that loading the library and the driver does not count.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
from record import Report, arguments, temporary_folder

import robocache

EPISODES = 10**6
AIMS = {"1,000,000 episodes": {"open_s": 2.0, "open_bytes": 200e6, "start_s": 3.0}}
# Written before the first measurement.
PREDICTED = {"1,000,000 episodes": {"open_s": 0.3, "open_bytes": 30e6, "start_s": 0.5}}

PROGRAM = """
import json, sys, time
import robocache

few, many, device, threads = sys.argv[1:]
robocache.set_num_threads(int(threads))

def memory():  # resident bytes
    with open("/proc/self/status") as status:
        return sum(int(line.split()[1]) for line in status if line.startswith(("RssAnon", "RssFile"))) * 1024

def start_loader(dataset):
    loader = robocache.Loader(dataset, batch_size=8, delta_timestamps={"action": [0.0]}, device=device)
    return loader, next(loader)

start_loader(robocache.open(few))
before, start = memory(), time.perf_counter()
dataset = robocache.open(many)
open_s, open_bytes = time.perf_counter() - start, memory() - before
before, start = memory(), time.perf_counter()
loader, batch = start_loader(dataset)
batch["time_ns"].tolist()  # waits until the batch is made
start_s, start_bytes = time.perf_counter() - start, memory() - before
assert len(dataset) == loader.num_samples // 2
print(json.dumps({"open_s": open_s, "open_bytes": open_bytes, "start_s": start_s, "start_bytes": start_bytes}))
"""


def write_cache(path: Path, episodes: int) -> None:
    times, values = np.array([0, 20_000_000]), np.ones((2, 7), np.float32)
    with robocache.Writer(path) as writer:
        for number in range(episodes):
            task = f"pick object {number % 100} and put it into the box"
            with writer.episode(task=task, success=number % 3 == 0) as episode:
                episode.append("action", times, values)
                episode.append("observation.state", times, values)


def run_case(folder: Path, episodes: int, device: str, threads: int, rounds: int, case: dict) -> None:
    write_cache(folder / "few", 1)
    write_cache(folder / "many", episodes)
    command = [sys.executable, "-c", PROGRAM, str(folder / "few"), str(folder / "many"), device, str(threads)]
    results = []
    for _ in range(rounds):
        completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        results.append(json.loads(completed.stdout))
    case["figures"] = {measure: statistics.median(result[measure] for result in results) for measure in results[0]}
    print(f"  {case['figures']}", flush=True)


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    episodes, rounds = (2_000, 1) if options.quick else (EPISODES, 3)
    report = Report("episodes", options, PREDICTED, AIMS)
    with temporary_folder() as folder:
        work = partial(run_case, folder, episodes, options.device, options.threads, rounds)
        report.run(f"{episodes:,} episodes", {"episodes": episodes, "rows": 2, "streams": 2}, work)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
