"""Writes LeRobot datasets with a feature of every kind, and makes windows over them."""

import json
import os

import numpy as np
import pyarrow.parquet as pq
from lerobot_files import BOOKKEEPING, Episode, write_lerobot
from robocache.lerobot import open_cache

FPS = 30


def write(root, rng, version="v3.0", lengths=(23, 1, 40, 12), fps=FPS):
    """Writes a dataset as LeRobot does, where a feature of one number is no list."""
    episodes = []
    for number, n in enumerate(lengths):
        state = rng.normal(size=(n, 3)).astype(np.float32)
        state[n // 2, 1] = np.nan
        episodes.append(
            Episode(
                {
                    "observation.state": state,
                    "action": rng.normal(size=(n, 2)),
                    "observation.touch": rng.normal(size=(n, 2, 4)).astype(np.float32),
                    "observation.count": rng.integers(-(2**62), 2**62, n),
                    "observation.level": rng.integers(0, 256, n).astype(np.uint8),
                    "observation.code": rng.integers(-(2**15), 2**15, (n, 2)).astype(np.int16),
                    "next.reward": rng.normal(size=n).astype(np.float32),
                    "next.done": np.arange(n) == n - 1,
                },
                tasks=[f"task {number % 2}"],
            )
        )
    return write_lerobot(root, episodes, version, fps)


def windows(source):
    """Returns windows for some keys. They reach beyond both ends of an episode; that of the action is longer than an episode."""
    info = json.loads((source / "meta/info.json").read_text())
    steps = {"observation.state": [-1, 0], "action": [*range(-3, 16), -500, 500], "next.done": [0]}
    return {key: [step / info["fps"] for step in steps[key]] for key in steps if key in info["features"]}


def write_low_dimensional(root, rng, lengths=(60, 45, 70), fps=FPS):
    """Writes a dataset, with its statistics, on which LeRobot's Diffusion and ACT can train without a camera."""
    episodes = [
        Episode(
            {
                "observation.state": rng.normal(size=(n, 3)).astype(np.float32),
                "observation.environment_state": rng.normal(size=(n, 4)).astype(np.float32),
                "action": rng.normal(size=(n, 2)).astype(np.float32),
            }
        )
        for n in lengths
    ]
    root = write_lerobot(root, episodes, "v3.0", fps)
    stats = {}
    for key in episodes[0].columns:
        rows = np.concatenate([episode.columns[key] for episode in episodes]).astype(np.float64)
        quantiles = {f"q{q:02}": np.quantile(rows, q / 100, axis=0) for q in (1, 10, 50, 90, 99)}
        stats[key] = {"mean": rows.mean(0), "std": rows.std(0), "min": rows.min(0), "max": rows.max(0), **quantiles}
        stats[key] = {name: value.tolist() for name, value in stats[key].items()} | {"count": [len(rows)]}
    (root / "meta/stats.json").write_text(json.dumps(stats))
    return root


def write_as_v3(root, source):
    """Writes a real dataset of version 2 as v3.0, which LeRobot now requires. The episodes are numbered anew."""
    features = json.loads((source / "meta/info.json").read_text())["features"]
    episodes = []
    for file in sorted(source.glob("data/*/*.parquet")):
        table = pq.read_table(file)
        columns = {
            key: np.array(table[key].to_pylist(), features[key]["dtype"])
            for key in table.column_names
            if key in features and key not in BOOKKEEPING
        }
        episodes.append(Episode(columns))
    return write_lerobot(root, episodes, "v3.0", json.loads((source / "meta/info.json").read_text())["fps"])


def made_at(dataset):
    """Returns the time at which the cache was made, which changes when it is made again."""
    return os.stat(os.path.join(dataset.path, "manifest.json")).st_mtime_ns


def open_together(source, barrier, results):
    """Opens the cache when all processes are ready, and sends the time at which it was made. It runs in a process of its own."""
    barrier.wait()
    results.put(made_at(open_cache(source)))
