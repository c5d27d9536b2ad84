"""Videos of real robots: the size and the loss of their frames in a cache, and the speed of ingest beside decoding alone.

    python bench/videos.py --threads 2

The videos are in ROBOCACHE_TEST_DATA. Frames are resized to 224x224, stored as JPEG of quality 95, 4:2:0, with restart markers,
and decoded again. Decibels are computed from the mean square error over all frames. For decoding alone, PyAV decodes to RGB on
one thread. Ingest is `robocache ingest` of the whole video in several processes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from functools import partial
from pathlib import Path

import av
import numpy as np
from linked_lerobot import link_as_v3
from record import Report, arguments, temporary_folder

import robocache

VIDEOS = {
    "a simulated humanoid, h264 256x256": "lerobot_v2/gr00t_gr1_pnp_sim/videos",
    "a real humanoid, AV1 640x480": "lerobot_v2/unitree_g1_real/videos",
    "a camera on a table, h264": "mcap/depthai_recording",
}
AV1_DATASET, AV1_CAMERA = "lerobot_v2/unitree_g1_real", "observation.images.cam_high"
INGEST = "ingest of AV1 640x480"
SIZE, FRAMES_PER_VIDEO = 224, 100
DECODING_RATE = 400  # frames/s of the video of AV1_DATASET on one core
AIMS = {INGEST: {"share_of_decoding_alone": 0.7, "frames_per_s": 0.7 * DECODING_RATE * 2}}
# Written before the first measurement.
PREDICTED = {
    INGEST: {"share_of_decoding_alone": 0.75},
    **{name: {"decibels": 40.0, "bytes_a_frame": 17e3} for name in VIDEOS},
}


def decode_frames(file: Path, max_frames: int | None = None):
    """Yields frames, uint8 [H, W, 3], decoded on this thread: all frames, or about `max_frames`, evenly spaced."""
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "NONE", 1
        stride = max(1, (stream.frames or 1) // max_frames) if max_frames else 1
        for number, frame in enumerate(container.decode(stream)):
            if number % stride == 0:
                yield frame.to_ndarray(format="rgb24")


def measure_stored_frames(folder: Path, quick: bool, case: dict) -> None:
    file = sorted(folder.rglob("*.mp4"))[0]
    decoded = np.stack(list(decode_frames(file, 8 if quick else FRAMES_PER_VIDEO)))
    frames = robocache.image_batch(decoded, size=(SIZE, SIZE), dtype="uint8", layout="hwc")
    encoded = robocache.frames.encode(frames, quality=95)
    decoded_again = robocache.decode_jpeg(encoded.data, encoded.offsets)
    error = np.mean((decoded_again.astype(np.float64) - frames) ** 2)
    case["parameters"] |= {"frames": len(frames), "of": list(decoded.shape[1:])}
    case["figures"] = {
        "bytes_a_frame": len(encoded.data) / len(frames),
        "decibels": float(10 * np.log10(255**2 / error)),
    }
    print("  {bytes_a_frame:.0f} bytes a frame, {decibels:.1f} dB".format(**case["figures"]), flush=True)


def run_ingest(data: Path, repeats: int, rounds: int, jobs: int, case: dict) -> None:
    with temporary_folder() as folder:
        link_as_v3(folder / "source", data / AV1_DATASET, [AV1_CAMERA], repeats)
        files = sorted((folder / "source").rglob("*.mp4"))
        seconds: dict[str, list[float]] = {"decoding": [], "ingest": []}
        frames = stored_frames = 0
        for _ in range(rounds):
            start = time.perf_counter()
            frames = sum(1 for file in files for _ in decode_frames(file))
            seconds["decoding"].append((time.perf_counter() - start) / frames)
            start = time.perf_counter()
            report = robocache.ingest(folder / "source", folder / "cache", jobs=jobs, follow_links=True)
            stored_frames = report.rows[AV1_CAMERA]
            seconds["ingest"].append((time.perf_counter() - start) / stored_frames)
            shutil.rmtree(folder / "cache")
        decoding, ingest = (statistics.median(series) for series in seconds.values())
        case["taken_s_a_frame"] = seconds
        case["parameters"] |= {"frames": stored_frames, "processes": jobs}
        case["figures"] = {
            "frames_per_s": 1 / ingest,
            "decoded_per_s_a_core": 1 / decoding,
            "share_of_decoding_alone": decoding / ingest / jobs,
        }
    print("  " + ", ".join(f"{name} {value:.3g}" for name, value in case["figures"].items()), flush=True)


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    options.device = "cpu"  # no GPU is used
    data = Path(os.environ.get("ROBOCACHE_TEST_DATA", ""))
    report = Report("videos", options, PREDICTED, AIMS)
    for name, folder in VIDEOS.items():
        report.run(name, {}, partial(measure_stored_frames, data / folder, options.quick))
    work = partial(run_ingest, data, 1 if options.quick else 6, 1 if options.quick else 3, options.threads)
    report.run(INGEST, {}, work)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
