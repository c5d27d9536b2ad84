"""Live: how long a policy's batch of one takes while rows come.

    python bench/live.py --device cpu --threads 2

Twenty streams of 1 kHz are pushed by one thread, cameras at 30 Hz by another, in real time, both without Python as a ROS node does it
(live/topic.hpp); the C compiler `cc` makes them. The policy asks for `latest()` 200 times a second and waits for it. Between two calls it
keeps its core and the device at work, as a policy does, or it sleeps. Beside it: a copy of as many bytes out of pinned memory, at the same
pace. The first batches are compared with the Loader's of the same rows, byte for byte.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from record import Report, arguments
from robocache.live.topic import _topic_open, _topic_sink

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
        "three numeric streams": {"p50_us": 25.0, "p99_us": 40.0, "p999_us": 100.0},
        "and two cameras kept at 224": {"p50_us": 55.0, "p99_us": 80.0, "p999_us": 150.0},
        "and two cameras resized from 640x480": {"p50_us": 120.0, "p99_us": 160.0, "p999_us": 250.0},
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
AFTER_SLEEP = ", after 5 ms of sleep"
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


# Writers send two messages: a float32 vector, and an image of bytes.
NUMBERS = {"path": "row", "kind": "number", "dtype": "float32", "count": FEATURES, "to": [[0, 0]]}
IMAGE = [
    *({"path": name, "kind": "number", "dtype": "uint32", "use": name} for name in ("height", "width", "step")),
    {"path": "encoding", "kind": "text", "use": "encoding"},
    {"path": "data", "kind": "numbers", "dtype": "uint8", "use": "data"},
]
RGB8 = {"rgb8": {"dtype": "uint8", "channels": 3, "kept": [0, 1, 2]}}
WRITER = r"""
#include <stddef.h>
#include <stdint.h>
#include <time.h>
typedef void (*Sink)(void*, const uint8_t*, size_t, int64_t, uint64_t, uint64_t);
static int64_t now(clockid_t clock) {
  struct timespec at;
  clock_gettime(clock, &at);
  return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}
int64_t write_rows(const Sink* sinks, void* const* topics, const uint8_t* const* messages, size_t count, size_t bytes,
                   int64_t period_ns, const volatile int* stop) {
  int64_t next = now(CLOCK_MONOTONIC);
  while (!*stop) {
    const int64_t stamp = now(CLOCK_REALTIME);
    for (size_t i = 0; i < count; ++i) sinks[i](topics[i], messages[i], bytes, stamp, 0, UINT64_MAX);
    next += period_ns;
    const struct timespec until = {next / 1000000000, next % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
  }
  return now(CLOCK_THREAD_CPUTIME_ID);
}
"""


def message_of(row: np.ndarray) -> bytes:
    """Returns a row as CDR, as IMAGE or NUMBERS says."""
    if row.ndim == 1:
        return b"\0\1\0\0" + row.tobytes()
    height, width, _ = row.shape
    head = np.array([height, width, 3 * width, 5], np.uint32).tobytes() + b"rgb8\0"
    return b"\0\1\0\0" + head + b"\0" * (-len(head) % 4) + np.uint32(row.size).tobytes() + row.tobytes()


class Writer(threading.Thread):
    """Pushes a row to each ring every `period_s`, without Python, and measures the processor time that this takes."""

    def __init__(self, library: ctypes.CDLL, rings: list[Ring], row: np.ndarray, period_s: float) -> None:
        super().__init__()
        fields = [NUMBERS] if row.ndim == 1 else IMAGE
        plan = {"fields": fields, "rows": [{"names": []}], "encodings": RGB8, "quality": 95}
        self.topics = [_topic_open(json.dumps(plan), ring._handle) for ring in rings]
        addresses = [json.loads(_topic_sink(topic)) for topic in self.topics]
        message, count = message_of(row), len(rings)
        pointers = ctypes.c_void_p * count
        self.stop = ctypes.c_int(0)
        self.arguments = (
            pointers(*(function for function, _ in addresses)),
            pointers(*(context for _, context in addresses)),
            (ctypes.c_char_p * count)(*[message] * count),
            ctypes.c_size_t(count),
            ctypes.c_size_t(len(message)),
            ctypes.c_int64(round(1e9 * period_s)),
            ctypes.byref(self.stop),
        )
        self.library, self.worked_s, self.wall_s = library, 0.0, 0.0

    def run(self) -> None:
        begin = time.perf_counter()
        self.worked_s = self.library.write_rows(*self.arguments) / 1e9
        self.wall_s = time.perf_counter() - begin

    def end(self) -> None:
        self.stop.value = 1
        self.join()


def writers(folder: Path) -> ctypes.CDLL:
    source, library = folder / "writer.c", folder / "writer.so"
    source.write_text(WRITER)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.write_rows.restype = ctypes.c_int64
    return loaded


class Policy:
    """Waits until the next call is due."""

    def __init__(self, device: str, sleeps: bool) -> None:
        self.sleeps = sleeps
        self.number = torch.zeros(1, device=device)
        self.wait = torch.cuda.current_stream().synchronize if device == "cuda" else (lambda: None)

    def rest(self) -> None:
        until = time.perf_counter() + 1 / ASKED_HZ
        if self.sleeps:
            time.sleep(1 / ASKED_HZ)
        while time.perf_counter() < until:
            self.number.add_(1)
            self.wait()


def run_case(folder: Path, device: str, frames: tuple[int, int] | None, sleeps: bool, asked: int, case: dict) -> None:
    streams, loader = recorded(folder / "cache", frames)
    compare(streams, loader, device)
    rings = rings_of(streams)
    aligner = Aligner(loader.spec, rings, device=device)
    fast = [ring for name, ring in rings.items() if name.startswith("joint")]
    fast += [Ring((FEATURES,), "float32", span_s=0.6, lateness_s=0.002) for _ in range(OTHERS)]
    library = writers(folder)
    threads = [Writer(library, fast, streams["joint0"][1][0], 0.001)]
    cameras = [name for name in rings if name.startswith("camera")]
    if cameras:
        threads.append(Writer(library, [rings[name] for name in cameras], streams[cameras[0]][1][0], 1 / 30))
    for thread in threads:
        thread.start()
    try:
        seconds, queued, ages, policy = [], [], [], Policy(device, sleeps)
        warm = time.perf_counter() + 1.5  # the rings grow until their span is full
        while len(seconds) < asked:
            policy.rest()
            begin = time.perf_counter()
            batch = aligner.latest()
            came = time.perf_counter()
            policy.wait()
            end = time.perf_counter()
            if begin < warm:
                continue
            seconds.append(end - begin)
            queued.append(came - begin)
            if device == "cpu":
                ages.append(int(batch["anchor_age_ns"][0]))
    finally:
        for thread in threads:
            thread.end()
    case["figures"] = percentiles(seconds)
    if ages:
        case["figures"]["anchor_age_us"] = float(np.median(ages)) / 1e3
    case["figures"]["writer_share"] = threads[0].worked_s / threads[0].wall_s
    if device == "cuda":
        case["figures"]["queued_us"] = 1e6 * float(np.median(queued))
        of_frames = sum(rows[0].nbytes for _, rows in streams.values() if rows.ndim > 2)
        alone = percentiles(copies(asked // 2, 400 + of_frames, sleeps))
        case["figures"] |= {f"copied_{name}": value for name, value in alone.items()}
    print(f"  {case['figures']}", flush=True)


def copies(count: int, size: int, sleeps: bool) -> list[float]:
    """Returns the times of copies from pinned memory, as rare as batches: the least that a batch on the device costs."""
    source = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    into = torch.empty(size, dtype=torch.uint8, device="cuda")
    seconds = []
    policy = Policy("cuda", sleeps)
    for _ in range(count + 20):
        policy.rest()
        begin = time.perf_counter()
        into.copy_(source, non_blocking=True)
        policy.wait()
        seconds.append(time.perf_counter() - begin)
    return seconds[20:]


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    report = Report("live", options, PREDICTED[options.device], AIMS[options.device])
    folder = Path(tempfile.mkdtemp(prefix="robocache-bench-"))
    asked = 60 if options.quick else 2000
    try:
        for sleeps in (False, True):
            for name, frames in CASES.items():
                parameters = {"steps": STEPS, "streams": 3, "pushed": "20 at 1 kHz", "frames": frames, "asked": asked}
                of_case = folder / f"{name} {sleeps}"
                of_case.mkdir()
                work = partial(run_case, of_case, options.device, frames, sleeps, asked)
                report.run(name + (AFTER_SLEEP if sleeps else ""), parameters, work)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
