"""Ingest: robocache.ingest of every format, compared with the format's own library, which only reads the same files.

    python -m bench ingest
    python bench/ingest.py --only 'MCAP, clouds' --gigabytes 10

Library and ingest use one process each. Files are warm, in the page cache. The cache is written beside them, in TMPDIR, and made
durable. Library, ingest and doctor take turns with a writer that only writes as many bytes as the cache has and makes them
durable. Memory is the peak of a separate process that ingests, including mapped files.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sources
from record import Report, arguments, temporary_folder

import robocache


@dataclass(frozen=True)
class Case:
    """write: makes a source with as many rows (messages, steps, clouds) as its argument says. quick: the rows for a smoke run."""

    name: str
    write: Callable[[Path, int], sources.Source]
    rows: int
    quick: int = 20


LARGE = "MCAP, clouds"
LARGE_ROWS_A_GIGABYTE = 3_814
CASES = [
    Case("LeRobot v3.0, 819,200 x 32", sources.lerobot, 819_200, 2_000),
    Case("robomimic, numbers", sources.robomimic, 400_000, 500),
    Case("robomimic, frames", sources.robomimic_frames, 8_000, 500),
    Case("ALOHA, JPEG", sources.aloha, 800),
    Case("DROID, numbers", sources.droid, 2_000),
    Case("RLDS, numbers", sources.rlds, 200_000, 500),
    Case("RLDS, JPEG", sources.rlds_frames, 2_000),
    Case("CALVIN", sources.calvin, 500),
    Case("zarr, numbers", sources.zarr_numbers, 400_000, 500),
    Case("zarr, frames", sources.zarr_frames, 6_000, 500),
    Case("NPZ, motions", sources.npz, 200_000, 500),
    Case("MCAP, Imu", sources.mcap, 100_000),
    Case(LARGE, sources.mcap_clouds, LARGE_ROWS_A_GIGABYTE * 6 // 10),
    Case("MCAP, JPEG", sources.mcap_jpeg, 300),
    Case("ROS 2 bag, Imu", sources.rosbag2, 100_000),
    Case("ROS 1 bag, Imu", sources.rosbag1, 100_000),
    Case("ULog", sources.ulog, 1_500_000),
    Case("EuRoC", sources.euroc, 8_000),
    Case("clouds, KITTI", sources.clouds, 100, 2),
    Case("clouds, LAS", sources.clouds_las, 5, 2),
    Case("CSV", sources.csv, 600_000),
]

AIMS = {case.name: {"share_of_library": 0.5, "doctor_adds": 0.25, "peak_bytes": 1e9} for case in CASES}
AIMS["LeRobot v3.0, 819,200 x 32"]["ingest_s"] = 10.0
AIMS[LARGE]["ingested_bytes_per_s"] = 300e6

# Written before the first measurement.
PREDICTED = {
    "LeRobot v3.0, 819,200 x 32": {"ingest_s": 2.0, "share_of_library": 0.15, "peak_bytes": 400e6},
    "robomimic, numbers": {"share_of_library": 0.15},
    "robomimic, frames": {"share_of_library": 0.4},
    "ALOHA, JPEG": {"share_of_library": 0.3},
    "DROID, numbers": {"share_of_library": 0.5},
    "RLDS, numbers": {"share_of_library": 0.3},
    "RLDS, JPEG": {"share_of_library": 0.5},
    "CALVIN": {"share_of_library": 0.5},
    "zarr, numbers": {"share_of_library": 0.25},
    "zarr, frames": {"share_of_library": 0.5},
    "NPZ, motions": {"share_of_library": 0.2},
    "MCAP, Imu": {"share_of_library": 0.6},
    LARGE: {"ingested_bytes_per_s": 400e6, "share_of_library": 0.5},
    "MCAP, JPEG": {"share_of_library": 0.1},
    "ROS 2 bag, Imu": {"share_of_library": 0.6},
    "ROS 1 bag, Imu": {"share_of_library": 0.7},
    "ULog": {"share_of_library": 3},
    "EuRoC": {"share_of_library": 0.3},
    "clouds, KITTI": {"share_of_library": 0.2},
    "clouds, LAS": {"share_of_library": 0.4},
    "CSV": {"share_of_library": 0.3},
}

PROGRAM = """
import sys
import robocache

source, cache, threads, options = sys.argv[1:]
robocache.set_num_threads(int(threads))
robocache.ingest(source, cache, **eval(options))
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")))
"""


def time_call(work: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    value = work()
    return time.perf_counter() - start, value


def write_durably(path: Path, size: int) -> None:
    """Writes `size` bytes to one file, in pieces of 4 MiB."""
    piece = bytes(range(256)) * (1 << 14)
    with path.open("wb", buffering=0) as file:
        for begin in range(0, size, len(piece)):
            file.write(memoryview(piece)[: size - begin])
        os.fsync(file.fileno())
    path.unlink()


def run_case(case: Case, rows: int, rounds: int, threads: int, with_memory: bool, result: dict) -> None:
    with temporary_folder() as folder:
        (folder / "source").mkdir()
        source = case.write(folder / "source", rows)
        cache = folder / "cache"
        times_s: dict[str, list[float]] = {"library": [], "ingest": [], "doctor": [], "writing": []}
        for _ in range(rounds):
            shutil.rmtree(cache, ignore_errors=True)
            library_s, library_rows = time_call(source.read)
            ingest_s, report = time_call(partial(robocache.ingest, source.path, cache, **source.options))
            doctor_s, _ = time_call(partial(robocache.doctor, cache, save=False))
            size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
            writing_s, _ = time_call(partial(write_durably, folder / "written", size))
            if report.skipped or report.rows.get(source.stream) != library_rows:
                raise AssertionError(
                    f"the library read {library_rows} rows of {source.stream}, ingest reports {report.rows}"
                )
            for seconds, times in zip((library_s, ingest_s, doctor_s, writing_s), times_s.values(), strict=True):
                times.append(seconds)
        library_s, ingest_s, doctor_s, writing_s = (statistics.median(seconds) for seconds in times_s.values())
        result["bytes"] = source.bytes
        result["taken_s"] = times_s
        result["figures"] = {
            "ingest_s": ingest_s,
            "ingested_bytes_per_s": source.bytes / ingest_s,
            "library_bytes_per_s": source.bytes / library_s,
            "share_of_library": library_s / ingest_s,
            "share_of_writing": writing_s / ingest_s,
            "writing_of_library": library_s / writing_s,
            "doctor_adds": doctor_s / ingest_s,
        }
        if with_memory:
            shutil.rmtree(cache)
            command = [sys.executable, "-c", PROGRAM, str(source.path), str(cache), str(threads), repr(source.options)]
            peak = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            result["figures"]["peak_bytes"] = int(peak)
        if source.decode is not None:
            result["figures"]["share_of_decoding"] = time_call(source.decode)[0] / ingest_s
    print("  " + ", ".join(f"{name} {value:.3g}" for name, value in result["figures"].items()), flush=True)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=0.6, help=f"the size of {LARGE!r} (default 0.6)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender runs (default 3)")
    parser.set_defaults(device="cpu")
    options = parser.parse_args()
    options.device = "cpu"  # no GPU is used
    report = Report("ingest", options, PREDICTED, AIMS)
    for case in CASES:
        rows = case.quick if options.quick else case.rows
        if case.name == LARGE and not options.quick:
            rows = int(LARGE_ROWS_A_GIGABYTE * options.gigabytes)
        parameters = {"rows": rows, "source": case.write.__doc__ or ""}
        with_memory = not options.quick or case == CASES[0]  # separate processes take most of a smoke run
        work = partial(run_case, case, rows, 1 if options.quick else options.rounds, options.threads, with_memory)
        report.run(case.name, parameters, work)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
