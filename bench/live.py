"""Live: how long a policy's batch of one takes while rows come.

    python bench/live.py --device cpu --threads 2

Twenty streams of 1 kHz are pushed by one thread, cameras at 30 Hz by another, in real time; the policy asks for `latest()` 200 times
a second and waits for it. The first batches are compared with the Loader's of the same rows, byte for byte.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from record import Report, arguments

import robocache
from robocache import ImageOptions, Window
from robocache.live import Aligner, Ring

STEPS, FEATURES, OTHERS = 16, 7, 17
ASKED_HZ = 200
# Written before the first measurement: us, at the 50th, 99th and 99.9th percentile.
PREDICTED = {
    "cpu": {
        "three numeric streams": {"p50_us": 6.0, "p99_us": 20.0, "p999_us": 80.0},
        "and two cameras kept at 224": {"p50_us": 60.0, "p99_us": 150.0, "p999_us": 300.0},
        "and two cameras resized from 640x480": {"p50_us": 1500.0, "p99_us": 2500.0, "p999_us": 4000.0},
    },
    "cuda": {
        "three numeric streams": {"p50_us": 30.0, "p99_us": 50.0, "p999_us": 100.0},
        "and two cameras kept at 224": {"p50_us": 100.0, "p99_us": 150.0, "p999_us": 300.0},
        "and two cameras resized from 640x480": {"p50_us": 1500.0, "p99_us": 2500.0, "p999_us": 4000.0},
    },
}
AIMS = {
    "cpu": {
        "three numeric streams": {"p50_us": 25.0, "p99_us": 35.0, "p999_us": 70.0},
        "and two cameras kept at 224": {"p50_us": 120.0, "p99_us": 220.0, "p999_us": 520.0},
    },
    "cuda": {
        "three numeric streams": {"p50_us": 32.0, "p99_us": 40.0, "p999_us": 70.0},
        "and two cameras kept at 224": {"p50_us": 65.0, "p99_us": 80.0, "p999_us": 120.0},
        "and two cameras resized from 640x480": {"p50_us": 150.0, "p99_us": 180.0, "p999_us": 270.0},
    },
}
CASES = {
    "three numeric streams": None,
    "and two cameras kept at 224": (224, 224),
    "and two cameras resized from 640x480": (480, 640),
}


def percentiles(seconds: list[float]) -> dict:
    at = {"p50_us": 50, "p99_us": 99, "p999_us": 99.9}
    return {name: float(np.percentile(seconds, q)) * 1e6 for name, q in at.items()}


def recorded(folder: Path, frames: tuple[int, int] | None) -> tuple[dict, robocache.Loader]:
    """Writes half a second of rows. Returns them by stream, and a loader on them."""
    rng = np.random.default_rng(0)
    start, streams = 10**18, {}
    for number in range(3):
        stamps = start + np.arange(1, 500) * 1_000_000 + rng.integers(0, 200_000, 499)
        streams[f"joint{number}"] = stamps, rng.standard_normal((499, FEATURES)).astype(np.float32)
    windows = {key: Window(np.arange(1 - STEPS, 1) / 500, normalize="mean_std") for key in streams}
    if frames:
        images = None if frames == (224, 224) else ImageOptions(size=(224, 224))
        for number in range(2):
            stamps = start + np.arange(1, 15) * 33_333_333
            streams[f"camera{number}"] = stamps, rng.integers(0, 256, (14, *frames, 3), dtype=np.uint8)
            windows[f"camera{number}"] = Window([0.0], images=images)
    with robocache.Writer(folder) as writer, writer.episode() as episode:
        for name, (stamps, rows) in streams.items():
            episode.append(name, stamps, rows, **({"codec": "raw"} if rows.ndim > 2 else {}))
    return streams, robocache.Loader(
        robocache.open(folder),
        batch_size=1,
        delta_timestamps=windows,
        anchors="joint0",
        shuffle=False,
        device="cpu",
        findings=None,
    )


def rings_of(streams: dict) -> dict[str, Ring]:
    return {
        name: Ring(rows.shape[1:], rows.dtype, span_s=0.6, lateness_s=0.002, codec="raw" if rows.ndim > 2 else None)
        for name, (_, rows) in streams.items()
    }


def compare(streams: dict, loader: robocache.Loader, device: str) -> None:
    rings = rings_of(streams)
    aligner = Aligner(loader.spec, rings, device=device)
    for name, (stamps, rows) in streams.items():
        for stamp, row in zip(stamps, rows, strict=True):
            rings[name].push(int(stamp), row, arrival_ns=int(stamp))
    compared = 0
    for index in range(200, loader.num_anchors, 10):
        expected = loader.gather([index])
        if int(expected["time_ns"][0]) > (aligner.frontier() or 0):
            break
        batch = aligner.at(int(expected["time_ns"][0]), settled=True)
        for key, array in expected.items():
            assert key not in batch or torch.equal(batch[key].cpu(), array), key
        compared += 1
    assert compared > 10


class Pusher(threading.Thread):
    """Pushes a row to each ring every `period_s`, and measures the processor time that this takes."""

    def __init__(self, rings: list[Ring], rows: list[np.ndarray], period_s: float, stop: threading.Event) -> None:
        super().__init__()
        self.rings, self.rows, self.period_s, self.stop = rings, rows, period_s, stop
        self.worked_s = self.wall_s = 0.0

    def run(self) -> None:
        begin, number = time.perf_counter(), 0
        while not self.stop.is_set():
            stamp = time.time_ns()
            for ring, rows in zip(self.rings, self.rows, strict=True):
                ring.push(stamp, rows[number % len(rows)], arrival_ns=stamp)
            number += 1
            time.sleep(max(0.0, begin + number * self.period_s - time.perf_counter()))
        self.worked_s, self.wall_s = time.thread_time(), time.perf_counter() - begin


def run_case(folder: Path, device: str, frames: tuple[int, int] | None, asked: int, case: dict) -> None:
    streams, loader = recorded(folder, frames)
    compare(streams, loader, device)
    rings = rings_of(streams)
    aligner = Aligner(loader.spec, rings, device=device)
    fast = [ring for name, ring in rings.items() if name.startswith("joint")]
    fast += [Ring((FEATURES,), "float32", span_s=0.6, lateness_s=0.002) for _ in range(OTHERS)]
    stop = threading.Event()
    pushers = [Pusher(fast, [streams["joint0"][1]] * len(fast), 0.001, stop)]
    cameras = [name for name in rings if name.startswith("camera")]
    if cameras:
        shown = [streams[name][1] for name in cameras]
        pushers.append(Pusher([rings[name] for name in cameras], shown, 1 / 30, stop))
    for pusher in pushers:
        pusher.start()
    try:
        time.sleep(0.5)
        seconds, ages = [], []
        for _ in range(asked):
            time.sleep(1 / ASKED_HZ)
            begin = time.perf_counter()
            batch = aligner.latest()
            if device == "cuda":
                torch.cuda.current_stream().synchronize()
            seconds.append(time.perf_counter() - begin)
            ages.append(int(batch["anchor_age_ns"][0]))
    finally:
        stop.set()
        for pusher in pushers:
            pusher.join()
    case["figures"] = percentiles(seconds[20:])
    case["figures"]["anchor_age_us"] = float(np.median(ages)) / 1e3
    case["figures"]["writer_share"] = pushers[0].worked_s / pushers[0].wall_s
    if device == "cuda":
        alone = percentiles(copies(asked)[20:])
        case["figures"] |= {f"copied_{name}": value for name, value in alone.items()}
    print(f"  {case['figures']}", flush=True)


def copies(count: int) -> list[float]:
    """Returns the times of small copies from pinned memory, as rare as batches: the least that a batch on the device costs."""
    source = torch.zeros(400, dtype=torch.uint8, pin_memory=True)
    into = torch.empty(400, dtype=torch.uint8, device="cuda")
    seconds = []
    for _ in range(count):
        time.sleep(1 / ASKED_HZ)
        begin = time.perf_counter()
        into.copy_(source, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    report = Report("live", options, PREDICTED[options.device], AIMS[options.device])
    folder = Path(tempfile.mkdtemp(prefix="robocache-bench-"))
    asked = 60 if options.quick else 4000
    try:
        for name, frames in CASES.items():
            parameters = {"steps": STEPS, "streams": 3, "pushed": "20 at 1 kHz", "frames": frames, "asked": asked}
            report.run(name, parameters, partial(run_case, folder / name, options.device, frames, asked))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
