"""Soak: runs every part of RoboCache again and again, and finds leaks.

    python bench/soak.py --minutes 60 --device cuda

After each part of a round it measures memory, descriptors, mappings, threads, child processes, shared memory, files and GPU
memory. At the end a line is fitted to each measure over the rounds. If a measure grows in both halves of the run, in the
second at least half as fast as in the first, the run fails, and the part with the most growth is named. Growth that slows down
more is a warm-up; a leak behind one shows in a longer run. With a GPU and 16 cores, memory settles only after some 100 rounds,
so a run of three minutes there can fail without a leak. A part also fails if its result differs from that of the first round.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import torch
from record import describe_machine, find_commit
from robocache.self_test import self_test

import robocache
from robocache import Anchors, ImageOptions, Memory, Mixture, Source, Window, live

# The largest allowed growth of a measure over all rounds, by the fitted line. A longer run finds smaller leaks.
LIMITS = {
    "memory_bytes": 4 << 20,
    "descriptors": 2,
    "mappings": 8,
    "threads": 2,
    "processes": 1,
    "shared_memory_files": 2,
    "files": 2,
    "gpu_bytes": 4 << 20,
}
MS = 1_000_000


# ---- Measures ----


def measure(folder: Path, device: str, identities: set[str]) -> dict[str, int]:
    """Measures this process after releasing unused memory.

    `identities` collects the identities of this run's files. The memory that ranks share is named by device and inode of its
    file, so other programs' shared memory is not counted.
    """
    gc.collect()
    pyarrow.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    gpu = 0
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        gpu = total - free
    files = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
    identities.update(f"robocache-{os.geteuid()}-{file.st_dev}-{file.st_ino}-" for file in map(os.stat, files))
    return {
        "memory_bytes": anonymous_bytes(),
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # minus the descriptor of this listing
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "threads": len(os.listdir("/proc/self/task")),
        "processes": count_children(),
        "shared_memory_files": sum(name.startswith(tuple(identities)) for name in os.listdir("/dev/shm")),
        "files": len(files),
        "gpu_bytes": gpu,
    }


def anonymous_bytes() -> int:
    """Returns the resident bytes that are not pages of files, or all resident bytes if the kernel does not separate them."""
    with contextlib.suppress(OSError):
        sizes = re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)
        if sizes:
            return sum(map(int, sizes)) << 10
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def count_children() -> int:
    count = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            count += int(status.read_text().rpartition(")")[2].split()[1]) == os.getpid()
    return count


def fit_slope(values: np.ndarray) -> float:
    """Returns the median slope of all pairs of points (Theil and Sen): single jumps do not count."""
    rounds = np.unique(np.linspace(0, len(values) - 1, 200).astype(int))
    first, second = np.triu_indices(len(rounds), 1)
    rises = values[rounds[second]] - values[rounds[first]]
    return float(np.median(rises / (rounds[second] - rounds[first]))) if len(rises) else 0.0


def judge(values: Sequence[int], limit: int) -> dict[str, Any]:
    """Returns a measure's value after the warm-up (a third of the rounds) and at the end, its slope a round (the smaller of both
    halves, since memory that is kept once is no leak), and whether that is growth beyond `limit`: at an even rate, as a leak, or
    ever slower, as a warm-up that lasts for longer than a third of the rounds."""
    after = np.array(values[len(values) // 3 :], np.float64)
    early, late = map(fit_slope, (after[: len(after) // 2], after[len(after) // 2 :]))
    rate = min(early, late)
    is_beyond, slows = rate * len(after) > limit, late < early / 2
    return {
        "first": values[len(values) // 3],
        "last": values[-1],
        "a_round": round(rate, 3),
        "grows": is_beyond and not slows,
        "slows": is_beyond and slows,
    }


# ---- Parts ----


@dataclass
class Stage:
    folder: Path
    device: str
    round: int = 0
    temporary: list[Path] = field(default_factory=list)  # removed after the part; other files are measured

    def new(self, name: str) -> Path:
        self.temporary.append(self.folder / name)
        return self.temporary[-1]

    def loader(self, dataset: Any = None, batch_size: int = 24, windows: Any = None, **options: Any) -> Any:
        images = ImageOptions(size=(40, 48), crop=(32, 32), brightness=0.2, hue=0.05)
        windows = windows or {
            "state": Window([-0.1, -0.033, 0.0], normalize="mean_std"),
            "action": Window([0.0, 0.05, 0.1, 0.3]),
            "camera": Window([-0.1, 0.0], images=images),
        }
        options = {"device": self.device} | options
        return robocache.Loader(
            dataset or self.folder / "cache", batch_size=batch_size, delta_timestamps=windows, **options
        )


Part = Callable[[Stage], Any]


def write_recording(path: Path, episodes: int = 4, append: bool = False) -> None:
    rng = np.random.default_rng(episodes)
    rates = {"state": (50, 7, "float32"), "action": (30, 5, "float64"), "mode": (5, 1, "int16")}
    with robocache.Writer(path, append=append) as writer:
        for number in range(episodes):
            start = 1_700_000_000_000_000_000 + 10**12 * number
            with writer.episode(task=f"task {number % 2}") as episode:
                for name, (rate, features, dtype) in rates.items():
                    stamps = start + np.arange(2 * rate) * (1_000_000_000 // rate)
                    episode.append(name, stamps, (30 * rng.normal(size=(2 * rate, features))).astype(dtype))
                pixels = rng.integers(0, 40, (20, 48, 64, 3)) + np.linspace(0, 200, 64, dtype=np.int64)[:, None]
                stamps = start + np.arange(20) * 100 * MS
                episode.append("camera", stamps, pixels.astype(np.uint8), codec="jpeg")
                episode.append("depth", stamps, pixels[..., :1].astype(np.uint16), codec="png")


def digest(batches: Any) -> str:
    """Hashes batches: dicts of arrays and of lists of str."""
    result = hashlib.sha256()
    for batch in batches:
        for key in sorted(batch):
            value = batch[key].cpu().numpy() if hasattr(batch[key], "cpu") else batch[key]
            result.update(key.encode() + (value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()))
    return result.hexdigest()


def first_batches(loader: Any, count: int) -> list[Any]:
    """Returns the first `count` batches, over several epochs if one has fewer."""
    return list(itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), count))


def run_self_test(stage: Stage) -> None:
    if failures := self_test().failures:
        raise AssertionError(f"self-test: {failures}")


def compute_gradients(stage: Stage) -> str:
    rng = np.random.default_rng(1)
    times = torch.from_numpy(np.cumsum(rng.uniform(0.5, 1.5, (4, 60)), axis=1)).to(stage.device)
    values = torch.from_numpy(rng.normal(size=(4, 60, 7)).astype(np.float32)).to(stage.device).requires_grad_()
    results = []
    for method in ("linear", "pchip", "cubic"):
        resampled = robocache.resample_trajectories(values, times, times[:, 5:50] + 0.1, method=method)
        (gradient,) = torch.autograd.grad(resampled.square().sum(), values)
        results.append({"resampled": resampled.detach(), "gradient": gradient})
    return digest(results)


def draw_batches(stage: Stage) -> list[str]:
    """Draws from every residency, with and without prefetch and reused buffers. Some loops end in the middle of an epoch."""
    results = []
    for residency, prefetch in itertools.product(("device", "pinned", "mapped"), (0, 2)):
        memory = Memory(residency=residency, prefetch=prefetch, reuse_buffers=prefetch == 2 and residency == "mapped")
        loader = stage.loader(memory=memory, task_text=True)
        results.append(digest(itertools.islice(loader, 3)))
        loader.load_state_dict(loader.state_dict())
        results.append(digest([next(loader)]))
    memory = Memory(residency="decoded" if stage.device == "cuda" else "auto")
    anchors = Anchors(stream="state", edges="drop")
    return [*results, digest(first_batches(stage.loader(windows={"camera": None}, memory=memory, anchors=anchors), 6))]


def draw_from_mixtures(stage: Stage) -> str:
    shares = (("first", 3, [0, 1]), ("second", 1, [2, 3]))
    sources = [
        Source(stage.folder / "cache", weight=weight, episodes=episodes, name=name) for name, weight, episodes in shares
    ]
    loader = stage.loader(Mixture(sources, samples_per_epoch=500))
    batches = first_batches(loader, 4)
    loader.set_weights({"first": 1, "second": 2})
    return digest([*batches, *first_batches(loader, 4)])


RANK = """
import hashlib, sys
cache, device, rank = sys.argv[1:]
if device == "cpu":
    sys.modules["torch"] = None  # its import takes most of the time
from robocache import Loader, Memory, Ranks
windows = {"state": [-0.1, 0.0], "action": [0.0, 0.05], "camera": [0.0]}
memory, ranks = Memory(residency="pinned"), Ranks(rank=int(rank), world_size=2)
result = hashlib.sha256()
for batch in Loader(cache, batch_size=16, delta_timestamps=windows, device=device, seed=1, memory=memory, ranks=ranks):
    for key in sorted(batch):
        result.update((batch[key].cpu().numpy() if device == "cuda" else batch[key]).tobytes())
print(result.hexdigest())
"""


def run_ranks(stage: Stage) -> list[str]:
    """Runs two processes that share the batches of an epoch, every third round."""
    if stage.round % 3:
        return []
    command = [sys.executable, "-c", RANK, str(stage.folder / "cache"), stage.device]
    sharing = os.environ | {"LOCAL_WORLD_SIZE": "2"}  # torchrun's sign that ranks of one host may share memory
    processes = [subprocess.Popen([*command, rank], stdout=subprocess.PIPE, text=True, env=sharing) for rank in "01"]
    results = [process.communicate(timeout=300)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise AssertionError(f"ranks ended with {[process.returncode for process in processes]}")
    return results


def open_datasets(stage: Stage) -> None:
    for number in range(20):
        with robocache.open(stage.folder / "cache", verify=number % 5 == 0) as dataset:
            frame = dataset.episode(number % 4)["camera"][1][0]
        if frame.shape != (48, 64, 3):
            raise AssertionError(f"a frame of another shape: {frame.shape}")


def append_episodes(stage: Stage) -> None:
    path = stage.new("growing")
    for number in range(3):
        write_recording(path, 1, append=number > 0)
        with robocache.open(path, verify=True) as dataset:
            if len(dataset) != number + 1:
                raise AssertionError(f"{len(dataset)} episodes after {number} appends")


def ingest_recordings(stage: Stage) -> list[Any]:
    source, rng = stage.new("source"), np.random.default_rng(2)
    for number in range(3):
        (source / f"csv/run_{number}").mkdir(parents=True)
        table = np.column_stack([np.arange(200) / 100, rng.normal(size=(200, 6))])
        np.savetxt(source / f"csv/run_{number}/imu.csv", table, fmt="%.9f", delimiter=",")
    with h5py.File(source / "demos.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"], demo["obs/joint_pos"] = rng.normal(size=(50, 7)), rng.normal(size=(50, 9))
        demo["obs/agentview_image"] = rng.integers(0, 255, (50, 32, 32, 3), dtype=np.uint8)
    workers = 2 if stage.round % 3 == 0 else 1
    return [
        ingest_again(stage, source / "csv", format="csv", workers=workers),
        ingest_again(stage, source / "demos.hdf5", format="robomimic", rate_hz=20),
    ]


def export_cache(stage: Stage) -> list[Any]:
    """Exports a cache to LeRobot and to MCAP, and reads both again."""
    streams, results = {"state": "linear", "action": "linear", "camera": "nearest"}, []
    for to, options in (("lerobot", {"fps": 20, "methods": streams}), ("mcap", {})):
        exported = stage.new(to)
        robocache.export(stage.folder / "cache", exported, to=to, streams=list(streams), **options)
        results.append(ingest_again(stage, exported))
    return results


def ingest_again(stage: Stage, source: Path, **options: Any) -> Any:
    path = stage.new("read")
    report = robocache.ingest(source, path, overwrite=True, progress=None, **options)
    return report.episodes, report.rows, robocache.doctor(path).summary


def record_live(stage: Stage) -> None:
    """Pushes rows to rings, some of them late, twice or too late, while an aligner reads them and a recorder writes them."""
    options = {"span_s": 8.0, "lateness_s": 0.02}
    rings = {
        "state": live.Ring((7,), "float32", **options),
        "action": live.Ring((5,), "float64", **options, on_rewind="segment"),
        "camera": live.Ring((48, 64, 3), "uint8", **options, codec="jpeg"),
    }
    dataset = robocache.open(stage.folder / "cache")
    frame = dataset["camera"].values.file(0).tobytes()
    aligner = live.Aligner(stage.loader(dataset, batch_size=1, device="cpu").spec, rings, device=stage.device)
    pushed = dict.fromkeys(rings, 0)
    rng = np.random.default_rng(stage.round)

    def push() -> None:
        begin = time.time_ns() - 30_000 * MS
        for tick in range(1000):
            if tick % 10 == 0:
                time.sleep(0.002)  # lets the aligner and the recorder run
            for name, period_ticks in (("state", 1), ("action", 2), ("camera", 10)):
                if tick % period_ticks:
                    continue
                # on time, late by 6 and 15 ms, too late, ahead of its arrival, a rewind
                late_ms = int(rng.choice([0, 6, 15, 200, -60_000, 20_000], p=[0.8, 0.1, 0.05, 0.04, 0.005, 0.005]))
                row = frame if name == "camera" else np.zeros(rings[name].shape, rings[name].dtype)
                rings[name].push(begin + (2 * tick - late_ms) * MS, row)
                pushed[name] += 1

    recorder = live.Recorder(rings, stage.new("recorded"), episode={"task": "soak"}, commit_s=0.2)
    thread = threading.Thread(target=push)
    thread.start()
    while thread.is_alive():
        with contextlib.suppress(robocache.StaleError):  # a rewind puts one ring behind the others
            aligner.latest()
    thread.join()
    recorder.close()
    with robocache.open(stage.folder / "recorded", verify=True) as recorded:
        for name, ring in rings.items():
            counts, rows = ring.counts, len(recorded[name].time_ns)
            counted = sum(counts[outcome] for outcome in ("kept", "reordered", "too_late", "refused", "segments"))
            if not counted == counts["pushed"] == pushed[name] or rows != recorder.counts[name]["kept"]:
                raise AssertionError(
                    f"{name}: pushed {pushed[name]}, {counts}, {recorder.counts[name]}, {rows} in the cache"
                )


PARTS: dict[str, Part] = {
    "operations": run_self_test,
    "gradients": compute_gradients,
    "loaders": draw_batches,
    "mixtures": draw_from_mixtures,
    "ranks": run_ranks,
    "datasets": open_datasets,
    "appends": append_episodes,
    "ingests": ingest_recordings,
    "exports": export_cache,
    "live": record_live,
}


# ---- The run ----


class Soak:
    """Runs rounds of parts and finds leaks."""

    def __init__(self, parts: Mapping[str, Part], folder: Path, device: str) -> None:
        self.parts, self.stage = parts, Stage(folder, device)
        self.results: dict[str, Any] = {}
        self.failures: list[str] = []
        self.values: dict[str, list[int]] = {name: [] for name in LIMITS}  # at the end of each round
        # for each part, the sum of its additions since the first round
        self.added: dict[str, dict[str, list[int]]] = {part: {name: [] for name in LIMITS} for part in parts}
        self._identities: set[str] = set()
        self._before = measure(folder, device, self._identities)

    def run(self) -> None:
        """Runs a round."""
        for name, part in self.parts.items():
            try:
                result = part(self.stage)
                if result not in (None, []) and result != (first := self.results.setdefault(name, result)):
                    self.failures.append(f"{name}: round {self.stage.round} gave {result}, the first {first}")
            except Exception as error:
                self.failures.append(f"{name}: round {self.stage.round}: {type(error).__name__}: {error}")
            while self.stage.temporary:
                shutil.rmtree(self.stage.temporary.pop(), ignore_errors=True)
            after = measure(self.stage.folder, self.stage.device, self._identities)
            for quantity, values in self.added[name].items():
                values.append((values[-1] if values else 0) + after[quantity] - self._before[quantity])
            self._before = after
        for quantity, values in self.values.items():
            values.append(self._before[quantity])
        if self.stage.round == 0:
            gc.freeze()  # the collector need not traverse the objects of imports again
        self.stage.round += 1

    def growth(self) -> dict[str, dict[str, Any]]:
        """Returns for each measure what :func:`judge` says, and the part with the most growth after the warm-up."""
        warm_up_rounds, growth_of_measures = self.stage.round // 3, {}
        for quantity, values in self.values.items():
            by_part = {
                name: fit_slope(np.array(added[quantity][warm_up_rounds:], np.float64))
                for name, added in self.added.items()
            }
            steepest = max(by_part, key=by_part.__getitem__)
            growth_of_measures[quantity] = judge(values, LIMITS[quantity]) | {"steepest": steepest}
        return growth_of_measures


def run(parts: Mapping[str, Part], minutes: float, device: str, least_rounds: int = 12) -> dict[str, Any]:
    """Soaks for some minutes and returns the content of the result file."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="robocache-soak-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", robocache.LoaderWarning)
        warnings.simplefilter("ignore", live.LostRowsWarning)  # rows before a rewind
        write_recording(Path(folder) / "cache")
        soak = Soak(parts, Path(folder), device)
        while soak.stage.round < least_rounds or time.monotonic() - start < 60 * minutes:
            soak.run()
            if len(soak.failures) > 20:
                break
    growth_of_measures, seconds = soak.growth(), round(time.monotonic() - start, 1)
    failures = soak.failures + [
        f"{growth['steepest']}: {measure} grows by {growth['a_round']} a round, from {growth['first']} to {growth['last']}"
        for measure, growth in growth_of_measures.items()
        if growth["grows"]
    ]
    return {
        "rounds": soak.stage.round,
        "seconds": seconds,
        "parts": list(parts),
        "growth": growth_of_measures,
        "failures": failures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--json", type=Path, help="writes the result to this file")
    options = parser.parse_args()
    options.threads, options.machine = os.cpu_count(), None
    description = {
        "bench": "soak",
        "machine": describe_machine(options),
        "commit": os.environ.get("ROBOCACHE_COMMIT") or find_commit(),
    }
    description |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "device": options.device}
    result = run({name: PARTS[name] for name in options.parts}, options.minutes, options.device)
    for measure, growth in result["growth"].items():
        print(f"{measure:20s} {growth['first']:>12,} -> {growth['last']:>12,}   {growth['a_round']:+,.3f} a round")
        if growth["slows"]:
            print(f"  {measure} rises ever slower: soak for longer to tell a warm-up from a leak behind one")
    print(f"{result['rounds']} rounds of {len(result['parts'])} parts in {result['seconds']:.0f} s on {options.device}")
    for failure in result["failures"]:
        print(f"FAILED {failure}")
    if options.json:
        options.json.write_text(json.dumps(description | result, indent=1) + "\n")
    return bool(result["failures"])


if __name__ == "__main__":
    raise SystemExit(main())
