"""Residency: batches from the device's memory, the host's pinned memory and the cache's files.

    python bench/residency.py --device cuda
    python bench/residency.py --device cpu --threads 2

The recording has a stream of 14 features at 50 Hz in float32, and a wide stream of 768 features at 30 Hz in float16, as an
encoder makes them. The clocks are jittered, and episodes last 20 s. A sample is a window of 16 steps, in bfloat16, with its
padding mask. A recording in files is four times the memory budget. Cold means that the files were dropped from the page cache
before.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import math
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from contest import OURS, compare_with_copies, fail, largest_error_over_bound
from inputs import write_cache
from measure import (
    COLD,
    LAST_CACHE_BYTES,
    batch_us,
    call_timer,
    copy_timers,
    endless,
    graph_timer,
    link_timers,
    median_us,
    queueing_timer,
    shortest,
    wall_timer,
)
from peers import loader_numpy
from record import Report, arguments, temporary_folder

import robocache

STREAMS = {"joint": (50, 14, "float32"), "vision": (30, 768, "float16")}
SECONDS = 20.0
STEPS = 16
# The windows of a stream: the steps' distance, and the method.
WINDOWS = {"between rows": (20_000_000, "linear"), "rows": (33_333_333, "previous")}
BATCH_SIZE = 1024
FILES_BATCH_SIZE = 256  # for batches from files: the pool's workers make 64 ahead, and few cold batches may be read
STEP_MS = 8.0
READS_AT_ONCE = 64
READS_ALONE = f"reads alone, {READS_AT_ONCE} at once"

AIMS = {
    **{f"pinned, {window}": {"share_of_the_link": 0.7} for window in WINDOWS},
    **{f"mapped, {state}": {"faster_than": {"torch DataLoader": 10.0}} for state in ("warm", "cold")},
    **{f"a step, mapped, {state}": {"grown_by": 0.02} for state in ("warm", "cold")},
    f"a step, mapped, warm, batch {BATCH_SIZE}": {"grown_by": 0.02},
}
# Written before the first measurement.
PREDICTED = {
    "cuda": {
        **{f"pinned, {window}": {"share_of_the_link": 0.8} for window in WINDOWS},
        "mapped, warm": {"samples_per_s": 1e6, "faster_than": {"torch DataLoader": 12.0}},
        "mapped, cold": {"samples_per_s": 1e5, "faster_than": {"torch DataLoader": 2.0}},
        "a step, mapped, warm": {"grown_by": 0.01},
        "a step, mapped, cold": {"grown_by": 0.05},
    },
    "cpu": {"mapped, warm": {"samples_per_s": 1e5, "faster_than": {"torch DataLoader": 20.0}}},
}


class Files:
    """The measured recording, as a cache."""

    def __init__(self, path: Path, gigabytes: float) -> None:
        rate, features, dtype = STREAMS["vision"]
        episode_bytes = int(rate * SECONDS) * features * np.dtype(dtype).itemsize
        episodes = max(4, round(gigabytes * 1e9 / episode_bytes))
        if not path.exists():
            write_cache(path, STREAMS, episodes, SECONDS)
            for file in self._files(path):
                with open(file, "rb") as opened:
                    os.fsync(opened.fileno())
        self.path, self.dataset = path, robocache.open(path)
        self.bytes = sum(stream.values.nbytes for stream in self.dataset.streams.values())

    @staticmethod
    def _files(path: Path) -> list[Path]:
        return [file for file in path.rglob("*") if file.is_file()]

    def drop_from_page_cache(self) -> None:
        """Drops the files from the page cache, except pages that a process has mapped."""
        for file in self._files(self.path):
            with open(file, "rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read_into_page_cache(self) -> None:
        for file in self._files(self.path):
            with open(file, "rb", buffering=0) as opened:
                while opened.read(16 << 20):
                    pass

    def cached_share(self) -> float | None:
        """Returns the share of the wide stream in the page cache, or None if the system refuses to tell."""
        with (
            open(self.path / "streams/vision/values.npy", "rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            pages = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
            memory = np.frombuffer(mapped, np.uint8)
            address, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(len(memory))
            del memory
            if ctypes.CDLL(None, use_errno=True).mincore(address, size, ctypes.c_void_p(pages.ctypes.data)) != 0:
                return None
        return float((pages & 1).mean())

    def loader(self, device: str, window: str = "between rows", batch_size: int = FILES_BATCH_SIZE, **options):
        period_ns, method = WINDOWS[window]
        offsets = [k * period_ns / 1e9 for k in range(STEPS)]
        options.setdefault("delta_timestamps", dict.fromkeys(STREAMS, offsets))
        return robocache.Loader(
            self.dataset,
            batch_size=batch_size,
            default=robocache.Window(method=method, dtype="bfloat16"),
            anchors="vision",
            device=device,
            framework="torch",
            snap_s=0,
            **options,
        )

    def wide_loader(self, device: str, window: str, tier: str):
        """Returns a loader of the wide stream alone, in large batches."""
        offsets = [k * WINDOWS[window][0] / 1e9 for k in range(STEPS)]
        return self.loader(
            device, window, BATCH_SIZE, delta_timestamps={"vision": offsets}, memory=robocache.Memory(residency=tier)
        )

    def loader_over_budget(self, device: str, batch_size: int = FILES_BATCH_SIZE):
        """Returns a loader with a budget of a quarter of the recording's memory."""
        kinds = ("device", "host") if device == "cuda" else ("host",)
        budget = {kind: self.bytes // 4 // len(kinds) for kind in kinds}
        loader = self.loader(device, batch_size=batch_size, memory=robocache.Memory(budget=budget))
        tiers = {placement.key: placement.tier for placement in loader.explain()}
        if tiers["vision"] != "mapped":
            raise AssertionError(f"expected the wide stream to stay in its file, got {tiers}")
        return loader

    def peer_windows(self) -> loader_numpy.Windows:
        """Returns the peer's input: the same files, mapped by NumPy."""
        streams, affine = {}, {}
        for name in STREAMS:
            folder = self.path / "streams" / name
            time_ns, offsets = np.load(folder / "time_ns.npy"), np.load(folder / "row_offsets.npy")
            streams[name] = time_ns, np.load(folder / "values.npy", mmap_mode="r"), offsets
            affine[name] = np.float32(1), np.float32(0)
        delta_ns = np.arange(STEPS) * WINDOWS["between rows"][0]
        return loader_numpy.Windows(streams, delta_ns, affine, "vision", snap_ns=1)

    def read_alone(self, window_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
        """Reads as many random windows of the wide stream as a batch has samples, by threads, and yields an empty batch."""
        path, rng = self.path / "streams/vision/values.npy", np.random.default_rng(0)
        with open(path, "rb", buffering=0) as opened, ThreadPoolExecutor(READS_AT_ONCE) as threads:
            last_begin = path.stat().st_size - window_bytes

            def read(begins: np.ndarray) -> None:
                for begin in begins.tolist():
                    if len(os.pread(opened.fileno(), window_bytes, begin)) != window_bytes:
                        raise AssertionError(f"{path}: a read at byte {begin} was short")

            while True:
                begins = rng.integers(0, last_begin, FILES_BATCH_SIZE)
                list(threads.map(read, np.array_split(begins, READS_AT_ONCE)))
                yield {}

    def bytes_read(self, batch: dict[str, torch.Tensor], window: str) -> int:
        """Returns the bytes of the wide stream's rows that a batch uses, counted once per sample."""
        stream, (period_ns, method) = self.dataset.streams["vision"], WINDOWS[window]
        row_bytes, rows = stream.values[:1].nbytes, 0
        for episode, anchor_ns in zip(batch["episode_index"].tolist(), batch["time_ns"].tolist(), strict=True):
            clock = stream.time_ns[stream.row_offsets[episode] : stream.row_offsets[episode + 1]]
            right = np.searchsorted(clock, anchor_ns + np.arange(STEPS) * period_ns, side="right")
            left = (right - 1).clip(0)
            used_rows = left if method == "previous" else np.union1d(left, right.clip(max=len(clock) - 1))
            rows += len(np.unique(used_rows))
        return rows * row_bytes


def assert_same(batch: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for key, x in expected.items():
        if not torch.equal(batch[key].cpu().view(torch.uint8), x.view(torch.uint8)):
            raise AssertionError(f"{key} differs from the CPU's result from the files")


def verify(batch: dict[str, torch.Tensor], windows: loader_numpy.Windows) -> dict:
    """Compares a peer's samples of the batch's first anchors: the masks exactly, the values within the bound of rounding."""
    first_samples = {key: x[:64].cpu() for key, x in batch.items()}
    anchors = zip(first_samples["episode_index"].tolist(), first_samples["time_ns"].tolist(), strict=True)
    peer_batch = loader_numpy.collate([windows.window(*anchor) for anchor in anchors])
    errors = []
    for name in STREAMS:
        if not torch.equal(first_samples[f"{name}_is_pad"], peer_batch[f"{name}_is_pad"]):
            raise AssertionError(f"{name}_is_pad differs")
        largest = 8.0  # above all of these normally distributed numbers
        compared = largest_error_over_bound(first_samples[name], peer_batch[name], largest)
        errors.append(compared["largest_error_over_bound"])
    return {"largest_error_over_bound": max(errors)}


# ---- The wide stream, tier by tier, on a GPU ----


def run_wide(files: Files, tier: str, window: str, quick: bool, case: dict) -> None:
    loader = files.wide_loader("cuda", window, tier)
    batches = endless(loader)
    batch = next(batches)
    assert_same(batch, next(files.wide_loader("cpu", window, "mapped")))
    bytes_read = files.bytes_read(batch, window)
    case["bytes_read"] = bytes_read
    case["bytes"] = bytes_read if tier == "pinned" else bytes_read + sum(x.nbytes for x in batch.values())
    case["explained"] = str(loader.explain())
    # A replay repeats the captured batches, so a graph has so many batches that the cache cannot hold their rows.
    graph_batches = 2 if quick else max(8, math.ceil(COLD * LAST_CACHE_BYTES["cuda"] / bytes_read))
    calls, rounds, count = [partial(next, batches)], 3 if quick else 31, 10 if quick else 50
    floors = link_timers(bytes_read) if tier == "pinned" else copy_timers(case["bytes"], "cuda")
    times_us = median_us({OURS: graph_timer(calls, least_calls=graph_batches)} | floors, rounds)
    ours = {
        "gpu_us": times_us.pop(OURS),
        "wall_us": median_us({OURS: wall_timer(calls, count)}, rounds)[OURS],
        "host_us": median_us({OURS: queueing_timer(calls, count)}, rounds)[OURS],
    }
    ours |= {"samples_per_s": BATCH_SIZE / ours["wall_us"] * 1e6, "read_bytes_per_s": bytes_read / ours["gpu_us"] * 1e6}
    case["contenders"], case["failures"], case["faster_than"] = {OURS: ours}, {}, {}
    if tier == "pinned":
        case["share_of_the_link"] = shortest(times_us, "copy") / ours["gpu_us"]
        try:
            case["contenders"]["a reading kernel"] = {"gpu_us": shortest(times_us, "read")}
            case["faster_than"]["a reading kernel"] = shortest(times_us, "read") / ours["gpu_us"]
        except ValueError as error:
            fail(case, "a reading kernel", error)
    compare_with_copies(case, ours["gpu_us"], times_us)


# ---- From files, compared with a pool of workers ----


def run_files(files: Files, state: str, options: argparse.Namespace, case: dict) -> None:
    device, workers = options.device, options.workers
    loader = (
        files.loader_over_budget(device)
        if state != "in memory"
        else files.loader(device, memory=robocache.Memory(residency="device"))
    )
    case["explained"] = str(loader.explain())
    windows, batch = files.peer_windows(), next(loader)
    verified = verify(batch, windows)
    bytes_read = files.bytes_read(batch, "between rows")
    case["bytes"] = sum(x.nbytes for x in batch.values()) + (bytes_read if device == "cpu" else 0)
    case["bytes_read"] = bytes_read

    warm_up_batches, rounds, seconds, max_batches = 4 * max(1, workers), 3, 0.2 if options.quick else 1.0, 1 << 30
    if state == "mapped, cold":  # with so few batches, hardly any row is read twice
        max_batches = max(5, files.bytes // 4 // bytes_read - warm_up_batches)
    names = [OURS] if state == "in memory" else [OURS, f"torch DataLoader, {workers} workers"]
    if state == "mapped, cold":
        names.append(READS_ALONE)
    times_us: dict[str, list[float]] = {name: [] for name in names}
    case["cached_before"] = []
    for name, _ in itertools.product(names, range(1 if options.quick else rounds)):
        if state == "mapped, cold":
            files.drop_from_page_cache()
        elif state == "mapped, warm":
            files.read_into_page_cache()
        case["cached_before"].append(files.cached_share())
        if name == OURS:
            batches = endless(loader)
        elif name == READS_ALONE:
            batches = files.read_alone(bytes_read // FILES_BATCH_SIZE)
        else:
            batches = iter(loader_numpy.dataloader(windows, FILES_BATCH_SIZE, workers, pin_memory=device == "cuda"))
        times_us[name].append(batch_us(batches, warm_up_batches, max_batches, seconds, device))
        del batches  # ends the workers, whose maps would keep pages in the cache
    case["contenders"], case["failures"] = {}, {}
    for name in names:
        wall_us = statistics.median(times_us[name])
        case["contenders"][name] = {
            **(verified if name != READS_ALONE else {}),
            "wall_us": wall_us,
            "slowest_us": max(times_us[name]),
            "samples_per_s": FILES_BATCH_SIZE / wall_us * 1e6,
            "read_bytes_per_s": bytes_read / wall_us * 1e6,
        }
    over_the_link = device == "cuda" and state != "in memory"
    floors = (
        link_timers(case["bytes"])
        if over_the_link
        else copy_timers(case["bytes"], device, sets=2 if options.quick else None)
    )
    ours = case["contenders"][OURS]["wall_us"]
    case["faster_than"] = {name: case["contenders"][name]["wall_us"] / ours for name in names[1:]}
    compare_with_copies(case, ours, median_us(floors, 5))


# ---- Beside a training step ----


class Step:
    """A stand-in for a training step: products of matrices, the first with the batch, that keep the GPU busy for a while."""

    def __init__(self, ms: float) -> None:
        make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        # Divided by the root of the rows, so that a product has the deviation of its factor.
        self.weight, self.square = make(768, 256) / 28, make(4096, 4096) / 64
        self.scratch = torch.empty_like(self.square)
        self.products = 100
        x = make(FILES_BATCH_SIZE, STEPS, 768)
        for _ in range(20):  # until the GPU's clock is steady
            self(x)
        timer = call_timer([lambda: (self(x), torch.cuda.synchronize())])
        self.products = max(1, round(self.products * ms * 1e3 / statistics.median(timer() for _ in range(9))))

    def __call__(self, x: torch.Tensor) -> None:
        x.reshape(-1, 768) @ self.weight
        for _ in range(self.products):
            torch.mm(self.square, self.square, out=self.scratch)


def measure_steps_us(step: Step, batches: Iterator, count: int) -> float:
    """Returns the microseconds per step. The host is at most two steps ahead, as if the loss were read now and then."""
    end_events: list[torch.cuda.Event] = []
    step(next(batches)["vision"])
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step(next(batches)["vision"])
        end_events.append(torch.cuda.current_stream().record_event())
        if len(end_events) > 2:
            end_events.pop(0).synchronize()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / count


def time_steps(
    batches: Iterator, quick: bool, case: dict, count: int, prepare: Callable[[], None] = lambda: None
) -> None:
    """Fills in the time of a step on one batch again and again, and on the loader's batches. `prepare` is called before each
    measurement on the loader's batches."""
    step, same_batch = Step(1.0 if quick else STEP_MS), itertools.repeat(next(batches))
    case["taken_us"] = times_us = {"alone": [], "fed": []}
    for _ in range(2 if quick else 7):
        times_us["alone"].append(measure_steps_us(step, same_batch, 5 if quick else count))
        prepare()
        times_us["fed"].append(measure_steps_us(step, batches, 5 if quick else count))
    alone, fed = (statistics.median(times_us[name]) for name in ("alone", "fed"))
    case["figures"] = {"step_us": alone, "fed_step_us": fed, "grown_by": fed / alone - 1}
    print(f"  {case['figures']}", flush=True)


def run_steps(files: Files, tier: str, batch_size: int, quick: bool, case: dict) -> None:
    if tier.startswith("mapped"):
        loader = files.loader_over_budget("cuda", batch_size)
    else:
        loader = files.loader("cuda", batch_size=batch_size, memory=robocache.Memory(residency=tier))
    case["cached_before"] = []

    def prepare() -> None:
        if tier == "mapped, cold":
            files.drop_from_page_cache()
        elif tier == "mapped, warm":
            files.read_into_page_cache()
        case["cached_before"].append(files.cached_share())

    time_steps(endless(loader), quick, case, 60, prepare)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, help="size of the recording; 4 beside a GPU, else 1")
    parser.add_argument("--workers", type=int, help="DataLoader workers; 16 beside a GPU, else 2")
    parser.add_argument("--cache", type=Path, help="keep the recording in this folder, or use the one in it")
    options = parser.parse_args()
    if options.workers is None:
        options.workers = 16 if options.device == "cuda" and not options.quick else 2
    if options.gigabytes is None:
        options.gigabytes = 4.0 if options.device == "cuda" else 1.0
    report = Report("residency", options, PREDICTED[options.device], AIMS)

    with temporary_folder() as folder:
        start = time.perf_counter()
        files = Files(options.cache or folder / "cache", 0.005 if options.quick else options.gigabytes)
        report.content["recorded_s"] = time.perf_counter() - start
        print(f"  {files.bytes / 1e9:.2f} GB in {report.content['recorded_s']:.1f} s", flush=True)
        parameters = {
            "steps": STEPS,
            "gigabytes": files.bytes / 1e9,
            "streams": {name: f"{features} {dtype} at {rate} Hz" for name, (rate, features, dtype) in STREAMS.items()},
            "dtype": "bfloat16",
        }
        wide_parameters = {**parameters, "batch_size": BATCH_SIZE}
        narrow_parameters = {**parameters, "batch_size": FILES_BATCH_SIZE, "workers": options.workers}
        works: dict[str, tuple[dict, Callable[[dict], None]]] = {}
        if options.device == "cuda":
            for tier, window in (("device", "rows"), *(("pinned", window) for window in WINDOWS)):
                works[f"{tier}, {window}"] = wide_parameters, partial(run_wide, files, tier, window, options.quick)
        for state in ("in memory", "mapped, warm", "mapped, cold"):
            works[state] = narrow_parameters, partial(run_files, files, state, options)
        if options.device == "cuda":
            work = partial(run_steps, files, "mapped, warm", BATCH_SIZE, options.quick)
            works[f"a step, mapped, warm, batch {BATCH_SIZE}"] = wide_parameters, work
            for tier in ("device", "pinned", "mapped, warm", "mapped, cold"):
                works[f"a step, {tier}"] = (
                    narrow_parameters,
                    partial(run_steps, files, tier, FILES_BATCH_SIZE, options.quick),
                )
        for name, (case_parameters, work) in works.items():
            report.run(name, case_parameters, work)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
