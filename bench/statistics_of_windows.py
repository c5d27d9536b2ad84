"""Statistics of windows: mean, std, min, max and five quantiles of relative actions, over every anchor of a dataset.

    python bench/statistics_of_windows.py --device cpu --threads 2

The action chunk of an anchor is 50 steps of 14 joints relative to the state at the anchor. Each round has the episodes in
another order, so that no round can reuse stored statistics. The first round also reads the files, and its time is not counted.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from record import Report, arguments, temporary_folder

import robocache
from robocache import Memory, Window, actions

ROWS, STEPS, JOINTS = 1000, 50, 14
CASES = {"pooled": False, "per step": True}
# Written before the first measurement.
PREDICTED = {"cpu": {"pooled": 1.5, "per step": 2.5}, "cuda": {"pooled": 0.1, "per step": 0.15}}
AIMS = {"cpu": dict.fromkeys(CASES, 2.0), "cuda": dict.fromkeys(CASES, 0.2)}


def write_dataset(path: Path, episodes: int) -> robocache.Dataset:
    rng = np.random.default_rng(0)
    times = np.arange(ROWS) * 20_000_000
    with robocache.Writer(path) as writer:
        for _ in range(episodes):
            state = rng.standard_normal((ROWS, JOINTS)).cumsum(0) * 0.02
            with writer.episode() as episode:
                episode.append("state", times, state.astype(np.float32))
                episode.append("action", times, (state + 0.1 * rng.standard_normal(state.shape)).astype(np.float32))
    return robocache.open(path)


def run_case(dataset: robocache.Dataset, episodes: int, per_step: bool, options, case: dict) -> None:
    window = Window(range(STEPS), rows=True, base="state", convert=[actions.Relative("joints", mask=[True] * JOINTS)])
    seconds, processor_s = [], []
    for number in range(2 if options.quick else 8):
        loader = robocache.Loader(
            dataset,
            batch_size=1,
            delta_timestamps={"action": window, "state": Window()},
            episodes=np.roll(np.arange(episodes), number + 100 * per_step),  # another order in each round of each case
            anchors="action",
            device=options.device,
            memory=Memory(prefetch=0),
            findings=None,
        )
        start, processor_start = time.perf_counter(), time.process_time()
        computed = dataset.statistics(loader, per_step=per_step)["action"]
        seconds.append(time.perf_counter() - start)
        processor_s.append(time.process_time() - processor_start)
        assert computed.count.sum() <= episodes * ROWS * STEPS * JOINTS
    case["figures"] = {
        "statistics_s": statistics.median(seconds[1:]),
        "processor_s": statistics.median(processor_s[1:]),
    }
    print(f"  {case['figures']}", flush=True)


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    predicted, aims = (
        {name: {"statistics_s": seconds} for name, seconds in by_device[options.device].items()}
        for by_device in (PREDICTED, AIMS)
    )
    report = Report("statistics_of_windows", options, predicted, aims)
    episodes = 10 if options.quick else 1000
    with temporary_folder() as folder:
        dataset = write_dataset(folder / "cache", episodes)
        parameters = {"anchors": episodes * ROWS, "steps": STEPS, "features": JOINTS}
        for name, per_step in CASES.items():
            report.run(name, parameters, partial(run_case, dataset, episodes, per_step, options))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
