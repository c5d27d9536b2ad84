"""Live: the time of a policy's batch of one sample while rows arrive.

    python bench/live.py --device cpu --threads 2

One thread pushes twenty streams at 1 kHz, another pushes cameras at 30 Hz, in real time. Both run without Python, like a ROS
node (live/topic.hpp); the C compiler `cc` builds them. The policy calls `latest()` and waits for the batch. For 2.5 ms between
two calls the policy keeps its core and the device busy, or sleeps. Its thread is an ordinary thread or, like a robot's control
thread, has its own core and, if the system allows it, real-time priority. On a GPU, the time is compared with a copy of as many
bytes from pinned memory. The first batches are compared with the Loader's batches of the same rows, byte for byte.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import Report, arguments, temporary_folder
from robocache.live.topic import _topic_open, _topic_sink

import robocache
from robocache import ImageOptions, Window
from robocache.live import Aligner, Ring

STEPS, FEATURES = 16, 7
UNREAD_STREAMS = 17  # pushed like the three numeric streams, but not in the batch
REST_S = 0.0025
CORES = os.sched_getaffinity(0)
# Written before the first measurement: us at the 50th, 99th and 99.9th percentile.
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
# How the policy runs, as the end of a case's name. Without one, it keeps its core busy as an ordinary thread.
AFTER_SLEEP, REAL_TIME, PINNED = ", after 2.5 ms of sleep", ", pinned, real time", ", pinned"
CASES = {  # the cameras' height and width, if there are cameras
    "three numeric streams": None,
    "and two cameras kept at 224": (224, 224),
    "and two cameras resized from 640x480": (480, 640),
}


def compute_percentiles(seconds: list[float]) -> dict:
    ranks = {"p50_us": 50, "p99_us": 99, "p999_us": 99.9}
    return {name: float(np.percentile(seconds, rank)) * 1e6 for name, rank in ranks.items()}


def record_rows(folder: Path, frames: tuple[int, int] | None) -> tuple[dict, robocache.Loader]:
    """Writes half a second of rows. Returns the rows by stream, and a loader of them."""
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


def make_rings(streams: dict) -> dict[str, Ring]:
    return {
        name: Ring(rows.shape[1:], rows.dtype, span_s=0.6, lateness_s=0.002, codec="raw" if rows.ndim > 2 else None)
        for name, (_, rows) in streams.items()
    }


def compare_batches(streams: dict, loader: robocache.Loader, device: str) -> None:
    """Pushes all rows and compares the aligner's batches with the loader's."""
    rings = make_rings(streams)
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
void write_rows(const Sink* sinks, void* const* topics, const uint8_t* const* messages, size_t count, size_t bytes,
                   int64_t period_ns, const volatile int* stop) {
  int64_t next = now(CLOCK_MONOTONIC);
  while (!*stop) {
    const int64_t stamp = now(CLOCK_REALTIME);
    for (size_t i = 0; i < count; ++i) sinks[i](topics[i], messages[i], bytes, stamp, 0, UINT64_MAX);
    next += period_ns;
    const struct timespec until = {next / 1000000000, next % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
  }
}
"""


def encode_message(row: np.ndarray) -> bytes:
    """Returns a row as CDR, by IMAGE or NUMBERS."""
    if row.ndim == 1:
        return b"\0\1\0\0" + row.tobytes()
    height, width, _ = row.shape
    head = np.array([height, width, 3 * width, 5], np.uint32).tobytes() + b"rgb8\0"
    return b"\0\1\0\0" + head + b"\0" * (-len(head) % 4) + np.uint32(row.size).tobytes() + row.tobytes()


class Writer(threading.Thread):
    """Pushes a row to each ring every `period_s`, without Python."""

    def __init__(self, library: ctypes.CDLL, rings: list[Ring], row: np.ndarray, period_s: float) -> None:
        super().__init__()
        fields = [NUMBERS] if row.ndim == 1 else IMAGE
        plan = {"fields": fields, "rows": [{"names": []}], "encodings": RGB8, "quality": 95}
        self.topics = [_topic_open(json.dumps(plan), ring._handle) for ring in rings]
        addresses = [json.loads(_topic_sink(topic)) for topic in self.topics]
        message, count = encode_message(row), len(rings)
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
        self.library = library

    def run(self) -> None:
        self.library.write_rows(*self.arguments)

    def end(self) -> None:
        self.stop.value = 1
        self.join()


def build_writer(folder: Path) -> ctypes.CDLL:
    source, library = folder / "writer.c", folder / "writer.so"
    source.write_text(WRITER)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.write_rows.restype = None
    return loaded


class Policy:
    """Times calls. Between two calls it keeps its core and the device busy, or sleeps."""

    def __init__(self, device: str, sleeps: bool) -> None:
        self.sleeps = sleeps
        self.number = torch.zeros(1, device=device)
        self.wait = torch.cuda.current_stream().synchronize if device == "cuda" else (lambda: None)

    def rest(self) -> None:
        until = time.perf_counter() + REST_S
        if self.sleeps:
            time.sleep(REST_S)
        while time.perf_counter() < until:
            self.number.add_(1)
            self.wait()

    def time_call(self, call: Callable[[], Any]) -> tuple[float, float, Any]:
        """Returns the seconds of the call, the seconds until its queued work was done, and its result."""
        self.rest()
        begin = time.perf_counter()
        result = call()
        returned = time.perf_counter()
        self.wait()
        return returned - begin, time.perf_counter() - begin, result


def set_threads(mode: str, writers: Sequence[Writer] = ()) -> None:
    """Gives this thread its own core, and with REAL_TIME a real-time priority. The writers get a higher priority, or they would
    wait for their core."""
    os.sched_setaffinity(0, {max(CORES)} if mode in (PINNED, REAL_TIME) else CORES)
    is_real_time = mode == REAL_TIME
    policy = os.SCHED_FIFO if is_real_time else os.SCHED_OTHER
    os.sched_setscheduler(0, policy, os.sched_param(40 if is_real_time else 0))
    for writer in writers:
        os.sched_setscheduler(writer.native_id, policy, os.sched_param(41 if is_real_time else 0))


def choose_control_mode() -> str:
    """Returns REAL_TIME, or PINNED if the system refuses the priority."""
    try:
        set_threads(REAL_TIME)
    except PermissionError:
        return PINNED
    finally:
        set_threads("")
    return REAL_TIME


class Sensors:
    """Rings that get rows, and an aligner on them whose first batches are compared."""

    def __init__(self, folder: Path, device: str, frames: tuple[int, int] | None) -> None:
        streams, loader = record_rows(folder / "cache", frames)
        compare_batches(streams, loader, device)
        rings = make_rings(streams)
        self.aligner = Aligner(loader.spec, rings, device=device)
        fast_rings = [ring for name, ring in rings.items() if name.startswith("joint")]
        fast_rings += [Ring((FEATURES,), "float32", span_s=0.6, lateness_s=0.002) for _ in range(UNREAD_STREAMS)]
        library = build_writer(folder)
        self.threads = [Writer(library, fast_rings, streams["joint0"][1][0], 0.001)]
        cameras = [name for name in rings if name.startswith("camera")]
        if cameras:
            self.threads.append(Writer(library, [rings[name] for name in cameras], streams[cameras[0]][1][0], 1 / 30))
        # About 400 bytes of numbers, and the frames.
        self.bytes = 400 + sum(rows[0].nbytes for _, rows in streams.values() if rows.ndim > 2)
        for thread in self.threads:
            thread.start()
        time.sleep(1.5)  # the rings grow until their span is full

    def end(self) -> None:
        for thread in self.threads:
            thread.end()


def run_case(sensors: Sensors, device: str, mode: str, calls: int, case: dict) -> None:
    latest_s, queued_s, copied_s, ages_ns = [], [], [], []
    source = torch.zeros(sensors.bytes, dtype=torch.uint8, pin_memory=device == "cuda")
    target = torch.empty(sensors.bytes, dtype=torch.uint8, device=device)
    policy = Policy(device, mode == AFTER_SLEEP)
    writer_clock = time.pthread_getcpuclockid(sensors.threads[0].ident)
    set_threads(mode, sensors.threads)
    try:
        for _ in range(20):
            policy.time_call(sensors.aligner.latest)
        start, writer_cpu_s = time.perf_counter(), time.clock_gettime(writer_clock)
        for _ in range(calls):
            returned_s, finished_s, batch = policy.time_call(sensors.aligner.latest)
            queued_s.append(returned_s)
            latest_s.append(finished_s)
            if device == "cpu":
                ages_ns.append(int(batch["anchor_age_ns"][0]))
            else:
                copied_s.append(policy.time_call(partial(target.copy_, source, non_blocking=True))[1])
        writer_cpu_s, wall_s = time.clock_gettime(writer_clock) - writer_cpu_s, time.perf_counter() - start
    finally:
        set_threads("", sensors.threads)
    case["figures"] = figures = compute_percentiles(latest_s) | {"writer_share": writer_cpu_s / wall_s}
    if device == "cpu":
        figures["anchor_age_us"] = float(np.median(ages_ns)) / 1e3
    else:
        figures["queued_us"] = 1e6 * float(np.median(queued_s))
        figures |= {f"copied_{name}": value for name, value in compute_percentiles(copied_s).items()}
    print(f"  {figures}", flush=True)


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    control = choose_control_mode()
    aims = {name + mode: aim for name, aim in AIMS[options.device].items() for mode in ("", control)}
    report = Report("live", options, PREDICTED[options.device], aims)
    calls = 60 if options.quick else 2000
    for name, frames in CASES.items():
        with temporary_folder() as folder:
            sensors = Sensors(folder, options.device, frames)
            try:
                for mode, count in (("", calls), (control, calls), (AFTER_SLEEP, calls // 4)):
                    parameters = {
                        "steps": STEPS,
                        "streams": 3,
                        "pushed": "20 at 1 kHz",
                        "frames": frames,
                        "asked": count,
                    }
                    report.run(name + mode, parameters, partial(run_case, sensors, options.device, mode, count))
            finally:
                sensors.end()
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
