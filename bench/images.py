"""Cameras: JPEGs to pixels, pixels to a batch, whole batches from each tier, and a training step with its batches.

    python bench/images.py --device cuda
    python bench/images.py --device cpu --threads 2

Frames of 224x224 are JPEGs of quality 95 of about 18 KB each, like frames of real videos. A whole batch is a state of 14
features, 16 actions of 14 features and a frame of one or two cameras, normalised, in bfloat16. A peer is checked before it is
timed. Decoded pixels are libjpeg-turbo's, bit for bit.
"""

from __future__ import annotations

import io
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from contest import OURS, compare_with_copies, contest, largest_error_over_bound
from measure import batch_us, copy_timers, endless, input_sets, link_timers, median_us, queued_timer, shortest
from peers import loader_images, loader_numpy
from peers.libjpeg_turbo import Decoder
from peers.read_frames import Reader
from PIL import Image
from record import Report, arguments, temporary_folder
from residency import time_steps
from robocache.ops.decode_jpeg import ResidentJpegs

import robocache

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
NVJPEG, TURBO, READING = "nvJPEG by torchvision", "libjpeg-turbo alone", "reading alone"
TIERS = ["decoded", "device", "pinned", "mapped"]
PERIOD_S, CHUNK, FEATURES = 1 / 30, 16, 14
STEP_BATCH = 64  # the batch size of the training step


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    size: int
    crop: int | None = None  # the crop's size; None: the case decodes
    floats: bool = False  # whether the case decodes to float32, channels first

    def parameters(self) -> dict:
        return {"batch": self.batch, "height": self.size, "width": self.size, "crop": self.crop, "floats": self.floats}


CASES = {
    "cuda": [
        *(Case(f"decode, {batch} x 224x224", batch, 224) for batch in (64, 256, 1024)),
        *(Case(f"crop and normalise, {batch} x 256x256", batch, 256, 224) for batch in (64, 256, 1024)),
    ],
    "cpu": [
        Case("decode, 256 x 224x224", 256, 224),
        Case("decode to float32, 256 x 224x224", 256, 224, floats=True),
        Case("crop and normalise, 64 x 256x256", 64, 256, 224),
    ],
}
QUICK = {
    "cuda": [Case("decode, 4 x 48x48", 4, 48), Case("crop and normalise, 4 x 48x48", 4, 48, 40)],
    "cpu": [
        Case("decode, 4 x 48x48", 4, 48),
        Case("decode to float32, 4 x 48x48", 4, 48, floats=True),
        Case("crop and normalise, 4 x 48x48", 4, 48, 40),
    ],
}

AIMS = {
    "cuda": {
        "crop and normalise, 1024 x 256x256": {"frames_per_s": 6e6},
        "decode, 64 x 224x224": {"frames_per_s": 1e6, "faster_than": {NVJPEG: 20.0}},
        "decode, 256 x 224x224": {"frames_per_s": 2.8e6, "faster_than": {NVJPEG: 50.0}},
        "decode, 1024 x 224x224": {"frames_per_s": 4e6, "faster_than": {NVJPEG: 50.0}},
        "to a batch of 256, pinned": {"share_of_the_lesser": 0.8},
        "to a batch of 256, mapped, cold": {"share_of_reading": 0.8},
        **{
            f"batches of {batch}, {cameras}, {tier}": {"faster_than": {"torch DataLoader": 100.0}}
            for batch in (64, 256)
            for cameras in ("1 camera", "2 cameras")
            for tier in ("decoded", "device")
        },
        **{f"a step, {tier}": {"grown_by": 0.02} for tier in TIERS},
    },
    "cpu": {
        "decode, 256 x 224x224": {"share_of_libjpeg_turbo": 0.85},
        "decode to float32, 256 x 224x224": {"share_of_libjpeg_turbo": 0.7},
    },
}
# Written before the first measurement of each.
PREDICTED = {
    "cuda": {
        "decode, 64 x 224x224": {"frames_per_s": 0.8e6, "faster_than": {NVJPEG: 17}},
        "decode, 256 x 224x224": {"frames_per_s": 2.1e6, "faster_than": {NVJPEG: 45}},
        "decode, 1024 x 224x224": {"frames_per_s": 2.9e6, "faster_than": {NVJPEG: 60}},
        "crop and normalise, 256 x 256x256": {"frames_per_s": 5e6, "times_the_copy": 1.5},
        "crop and normalise, 1024 x 256x256": {"frames_per_s": 7.5e6, "times_the_copy": 1.3},
        "to a batch of 256, pinned": {"share_of_the_lesser": 0.75},
        "to a batch of 256, mapped, warm": {"frames_per_s": 0.35e6, "share_of_reading": 0.3},
        "to a batch of 256, mapped, cold": {"share_of_reading": 0.9},
        "batches of 256, 2 cameras, device": {"samples_per_s": 0.7e6, "faster_than": {"torch DataLoader": 100}},
        "batches of 256, 2 cameras, mapped": {"samples_per_s": 0.15e6, "faster_than": {"torch DataLoader": 25}},
        **{f"a step, {tier}": {"grown_by": 0.02} for tier in TIERS},
    },
    "cpu": {
        "decode, 256 x 224x224": {"share_of_libjpeg_turbo": 0.95, "faster_than": {"Pillow, on threads": 1.1}},
        "decode to float32, 256 x 224x224": {"share_of_libjpeg_turbo": 0.8},
        "crop and normalise, 64 x 256x256": {"times_the_copy": 2, "faster_than": {"torch eager": 5}},
        "batches of 64, 2 cameras, device": {"faster_than": {"torch DataLoader": 2}},
    },
}


def pictures(batch: int, size: int, seed: int) -> np.ndarray:
    """Returns uint8 [B, H, W, 3]: large soft patches with a camera's noise, 18 KB each as JPEG of quality 95 at 224x224."""
    rng = np.random.default_rng(seed)
    patches = torch.from_numpy(rng.uniform(0, 255, (batch, 3, 8, 8)))
    soft = torch.nn.functional.interpolate(patches, size=(size, size), mode="bilinear")
    noise = rng.normal(0, 2.6, (batch, size, size, 1))
    return np.ascontiguousarray((soft.permute(0, 2, 3, 1).numpy() + noise).clip(0, 255), np.uint8)


# ---- JPEGs to pixels ----


class Files:
    """A batch's JPEGs in memory: concatenated, as robocache takes them, and as separate bytes."""

    def __init__(self, case: Case, device: str, seed: int) -> None:
        encoded = robocache.frames.encode(pictures(case.batch, case.size, seed), quality=95)
        self.blobs, self.offsets = torch.from_numpy(encoded.data), torch.from_numpy(encoded.offsets)
        self.separate = [
            self.blobs[begin:end] for begin, end in zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True)
        ]
        self.shape = (case.batch, *encoded.shape)
        if device == "cuda":
            self.resident = ResidentJpegs(self.blobs, self.offsets, device=device)
            self.rows = torch.arange(case.batch, device=device)
        elif case.floats:
            self.batches = endless(self.loader(encoded))

    def loader(self, encoded: robocache.frames.Encoded) -> robocache.Loader:
        """Returns a loader that makes this batch again and again."""
        with temporary_folder() as folder:
            with robocache.Writer(folder / "cache") as writer, writer.episode() as episode:
                files = [file.numpy().tobytes() for file in self.separate]
                episode.append("camera", np.arange(len(files)) * 33_000_000, files)
            return robocache.Loader(
                robocache.open(folder / "cache"),
                batch_size=len(self.separate),
                delta_timestamps={"camera": None},
                memory=robocache.Memory(residency="device", prefetch=0, reuse_buffers=True),
                shuffle=False,
                device="cpu",
            )


def decode(files: Files) -> torch.Tensor:
    return robocache.decode_jpeg(files.blobs, files.offsets)


def decode_to_floats(files: Files) -> torch.Tensor:
    return next(files.batches)["camera"]


def decode_on_device(files: Files) -> torch.Tensor:
    out = torch.empty(files.shape, dtype=torch.uint8, device="cuda")
    files.resident.decode(files.rows, out, torch.empty(len(out), dtype=torch.int32, device="cuda"))
    return out


def decode_by_pillow(map_rows: Callable, files: Files) -> torch.Tensor:
    """Decodes each frame into its row of the batch."""
    out = np.empty(files.shape, np.uint8)

    def decode_one(row: int) -> None:
        out[row] = Image.open(io.BytesIO(files.separate[row].numpy()))

    list(map_rows(decode_one, range(len(out))))
    return torch.from_numpy(out)


def decode_by_nvjpeg(files: Files) -> torch.Tensor:
    """Returns one [3, H, W] per frame, not stacked, as programs use them."""
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg(files.separate, ImageReadMode.RGB, device="cuda")


def decode_by_turbo(decoder: Decoder, files: Files) -> torch.Tensor:
    return decoder(files.blobs, files.offsets, files.shape)


def check_pixels(ours: torch.Tensor, theirs: torch.Tensor | list[torch.Tensor]) -> dict:
    """Refuses a peer with different pixels. nvJPEG upsamples chroma in its own way, and may be off by 8 in the mean."""
    if isinstance(theirs, list):
        their_pixels = torch.stack(theirs).permute(0, 2, 3, 1).float()
        difference = (their_pixels - ours.to(their_pixels.device).float()).abs().mean().item()
        if difference > 8:
            raise AssertionError(f"pixels differ from robocache's by {difference:.2f} in the mean")
        return {"largest_error_over_bound": difference / 8, "mean_difference": difference}
    if ours.dtype.is_floating_point:
        ours = (ours * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    if not torch.equal(ours.cpu(), theirs):
        raise AssertionError("its pixels differ from robocache's")
    return {"largest_error_over_bound": 0.0}


# ---- pixels to a batch ----


class Frames:
    """Decoded frames, the rows of a batch, and the corners of their crops, so that peers need not draw them."""

    def __init__(self, case: Case, device: str, seed: int) -> None:
        self.frames = torch.from_numpy(pictures(case.batch, case.size, seed)).to(device)
        self.rows = torch.randperm(case.batch, generator=torch.Generator().manual_seed(seed)).to(device)
        self.crop, self.seed = case.crop, seed
        row, column = torch.meshgrid(*[torch.arange(case.size, dtype=torch.int16).to(torch.uint8)] * 2, indexing="ij")
        coordinates = torch.stack([row, column, column], -1)[None].repeat(case.batch, 1, 1, 1).to(device)
        crop = (case.crop, case.crop)
        cropped = robocache.image_batch(coordinates, self.rows, crop=crop, seed=seed, dtype="uint8", layout="hwc")
        self.corners = cropped[:, 0, 0, :2].long()
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.options = robocache.ImageOptions(crop=crop, mean="imagenet", std="imagenet", dtype=self.dtype)
        self.mean, self.std = (torch.tensor(x, device=device) for x in (MEAN, STD))


def make_batch(frames: Frames) -> torch.Tensor:
    return robocache.image_batch(frames.frames, frames.rows, options=frames.options, seed=frames.seed)


def torch_batch(frames: torch.Tensor, rows: torch.Tensor, corners: torch.Tensor, mean, std, crop: int, dtype):
    """Returns [B, 3, crop, crop]."""
    steps = torch.arange(crop, device=frames.device)
    row, column = (corners[:, axis, None] + steps for axis in (0, 1))
    pixels = frames[rows[:, None, None], row[:, :, None], column[:, None, :]]
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2).to(dtype).contiguous()


def make_batch_by_torch(call: Callable, frames: Frames) -> torch.Tensor:
    return call(frames.frames, frames.rows, frames.corners, frames.mean, frames.std, frames.crop, frames.dtype)


# ---- a case of CASES ----


def run_case(case: Case, device: str, quick: bool, threads: int, result: dict) -> None:
    torch._dynamo.reset()
    peers: dict[str, Callable] = {}
    if case.crop is None:
        first = Files(case, device, seed=0)
        make_input, verify = Files, check_pixels
        if device == "cuda":
            ours, peers[NVJPEG] = decode_on_device, decode_by_nvjpeg
        else:
            ours = decode_to_floats if case.floats else decode
            peers[TURBO] = partial(decode_by_turbo, Decoder(threads))
        result["bytes"] = len(first.blobs) + case.batch * case.size**2 * 3 * (4 if case.floats else 1)
        result["bytes_a_frame"] = len(first.blobs) / case.batch
        pool = ThreadPoolExecutor(threads)
        result["same_as_libjpeg_turbo"] = check_pixels(ours(first), decode_by_pillow(pool.map, first))
        peers["Pillow, on threads"] = partial(decode_by_pillow, pool.map)
        waiting = set(peers)
    else:
        make_input, ours, waiting = Frames, make_batch, set()
        first = Frames(case, device, seed=0)
        result["bytes"] = case.batch * case.crop**2 * 3 * (1 + first.dtype.itemsize)
        verify = partial(largest_error_over_bound, largest=1 / min(STD))
        peers["torch eager"] = partial(make_batch_by_torch, torch_batch)
        if not quick:
            peers["torch.compile"] = partial(make_batch_by_torch, torch.compile(torch_batch, dynamic=False))
    count = 2 if quick else input_sets(result["bytes"], device, most=64)
    inputs = [(first,), *((make_input(case, device, seed),) for seed in range(1, count))]
    contest(result, inputs, ours, peers, verify, device, quick, waiting, count=max(10, min(100, 4096 // case.batch)))
    measured = result["contenders"][OURS]
    measured["frames_per_s"] = case.batch / measured["gpu_us" if device == "cuda" else "wall_us"] * 1e6
    if TURBO in result["contenders"]:
        result["share_of_libjpeg_turbo"] = result["faster_than"][TURBO]


# ---- a tier to batches and steps ----


class Recording:
    """A cache with an episode of two cameras, state and actions on one clock. Pictures repeat, but each row has its own
    file."""

    def __init__(self, folder: Path, rows: int, size: int) -> None:
        self.folder, self.size = folder, size
        rng = np.random.default_rng(7)
        self.time_ns = np.round(np.arange(rows) * PERIOD_S * 1e9).astype(np.int64)
        with robocache.Writer(folder) as writer, writer.episode() as episode:
            for name in ("state", "action"):
                episode.append(name, self.time_ns, rng.standard_normal((rows, FEATURES), np.float32))
            for camera in range(2):
                encoded = robocache.frames.encode(pictures(min(rows, 1024), size, seed=camera), quality=95)
                blobs, offsets = encoded.data.tobytes(), encoded.offsets
                picture_indices = rng.permutation(rows) % (len(offsets) - 1)
                files = [blobs[offsets[i] : offsets[i + 1]] for i in picture_indices]
                episode.append(f"camera_{camera}", self.time_ns, files)
        self.dataset = robocache.open(folder)
        self.frame_bytes = int(self.dataset.streams["camera_0"].values.offsets[-1]) / rows

    def loader(self, device: str, tier: str, batch_size: int, cameras: int, **options) -> robocache.Loader:
        windows = {f"camera_{i}": None for i in range(cameras)}
        windows |= {"state": None, "action": [k * PERIOD_S for k in range(CHUNK)]}
        images = {"mean": "imagenet", "std": "imagenet", **options.pop("images", {})}
        return robocache.Loader(
            self.dataset,
            batch_size=batch_size,
            delta_timestamps=options.pop("windows", windows),
            default=robocache.Window(images=robocache.ImageOptions(**images), dtype="bfloat16"),
            memory=robocache.Memory(residency={f"camera_{i}": tier for i in range(cameras)}),
            device=device,
            framework="torch",
            **options,
        )

    def peer_rows(self, cameras: int) -> loader_images.Rows:
        return loader_images.Rows(self.folder, [f"camera_{i}" for i in range(cameras)], CHUNK, MEAN, STD)

    def find_rows(self, batch: dict[str, torch.Tensor]) -> np.ndarray:
        """Returns the row of each sample of a batch."""
        return np.searchsorted(self.time_ns, batch["time_ns"].cpu().numpy())

    def drop_from_page_cache(self) -> None:
        """Drops the files from the page cache, so that they are read from the disk."""
        for file in self.folder.rglob("*.npy"):
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_to_batch(recording: Recording, tier: str, threads: int, quick: bool, report: Report, case: dict) -> None:
    """Times batches of a camera's frames, cropped at random and normalised, from a tier. Compares them with what bounds the tier:
    the link and the decoding, or reading the files."""
    size = 4 if quick else 256
    crop = recording.size * 13 // 14 // 8 * 8
    only_frames = {"windows": {"camera_0": None}, "images": {"crop": (crop, crop)}}
    loader = recording.loader("cuda", tier.split(",")[0], size, 1, **only_frames)
    case["explained"] = str(loader.explain())
    batches = endless(loader)
    expected = next(endless(recording.loader("cpu", "device", size, 1, **only_frames)))
    if not torch.equal(next(batches)["camera_0"].cpu(), expected["camera_0"]):
        raise AssertionError("the pixels differ from those of the CPU")
    case["bytes_read"] = int(size * recording.frame_bytes)
    case["bytes"] = case["bytes_read"] + size * 3 * crop**2 * 2
    case["contenders"], case["failures"] = {OURS: {}}, {}
    rounds = 3 if quick else 9
    if not tier.startswith("mapped"):
        case["copies_us"] = link_us = median_us(link_timers(case["bytes_read"]), rounds, seconds=0.3)
        gpu_us = median_us({OURS: queued_timer([partial(next, batches)] * (4 if quick else 64))}, rounds)[OURS]
        case["contenders"][OURS] = {"gpu_us": gpu_us, "frames_per_s": size / gpu_us * 1e6}
        if tier == "pinned":
            bounds = {"the link": shortest(link_us, "copy")}
            resident = report.case("to a batch of 256, device")
            if resident and "commit" not in resident:
                bounds["decoding"] = resident["contenders"][OURS]["gpu_us"]
                case["share_of_the_lesser"] = max(bounds.values()) / gpu_us
            case["bounds_us"] = bounds
        print(f"  {case['contenders'][OURS]}, {case.get('share_of_the_lesser')}", flush=True)
        return
    reader = Reader(recording.folder / "streams" / "camera_0", threads)
    order = np.random.default_rng(3).permutation(len(recording.time_ns)).reshape(-1, size)
    batch_count = max(4, len(order) // 2)
    times: dict[str, list[float]] = {OURS: [], READING: []}
    for _ in range(2 if quick else 5):
        if tier == "mapped, cold":
            recording.drop_from_page_cache()
        start = time.perf_counter()
        read_bytes = reader(order[:batch_count].ravel())
        times[READING].append((time.perf_counter() - start) / batch_count * 1e6)
        if read_bytes < batch_count * size * 0.9 * recording.frame_bytes:
            raise AssertionError(f"read {read_bytes} bytes")
        if tier == "mapped, cold":
            recording.drop_from_page_cache()
            batches = endless(recording.loader("cuda", "mapped", size, 1, **only_frames))
            next(batches)
        times[OURS].append(batch_us(batches, 2, batch_count, 1.0, "cuda"))
    for name, times_us in times.items():
        wall_us = statistics.median(times_us)
        case["contenders"][name] = {
            "wall_us": wall_us,
            "slowest_us": max(times_us),
            "frames_per_s": size / wall_us * 1e6,
        }
    case["share_of_reading"] = case["contenders"][READING]["wall_us"] / case["contenders"][OURS]["wall_us"]
    print(f"  reading alone takes {case['share_of_reading']:.2f} of our time", flush=True)


def verify(ours: dict[str, torch.Tensor], recording: Recording, cameras: int) -> dict:
    """Compares a peer's samples with the batch's first rows, within the bound of rounding."""
    rows = recording.peer_rows(cameras)
    theirs = loader_images.collate([rows[row] for row in recording.find_rows(ours)[:16]])
    errors = [largest_error_over_bound(ours[key][:16].cpu(), x, largest=8.0) for key, x in theirs.items()]
    return max(errors, key=lambda error: error["largest_error_over_bound"])


def run_batches(
    recording: Recording, tier: str, batch_size: int, cameras: int, options, peer_us: dict, case: dict
) -> None:
    device, workers, quick = options.device, options.workers, options.quick
    loader = recording.loader(device, tier, batch_size, cameras)
    case["explained"] = str(loader.explain())
    batches = endless(loader)
    ours = next(batches)
    verified = verify(ours, recording, cameras)
    case["bytes"] = int(sum(x.nbytes for x in ours.values()) + batch_size * cameras * recording.frame_bytes)
    peer = f"torch DataLoader, {workers} workers"
    seconds = 0.2 if quick else 1.0
    # On the CPU, frames are decoded when they are first drawn.
    warm_up_batches = len(loader) if tier == "decoded" and device == "cpu" else 4
    times_us = {
        OURS: statistics.median(
            batch_us(batches, warm_up_batches, 1 << 30, seconds, device) for _ in range(1 if quick else 3)
        )
    }
    if (batch_size, cameras) not in peer_us:
        theirs = iter(
            loader_numpy.dataloader(
                recording.peer_rows(cameras), batch_size, workers, device == "cuda", loader_images.collate
            )
        )
        peer_us[batch_size, cameras] = batch_us(theirs, 4 * workers, 1 << 30, 2 * seconds, device)
        del theirs
    times_us[peer] = peer_us[batch_size, cameras]
    case["decoder_of_the_peer"] = loader_images.decoder_name()
    case["contenders"], case["failures"] = {}, {}
    for name, us in times_us.items():
        case["contenders"][name] = {
            **verified,
            "wall_us": us,
            "samples_per_s": batch_size / us * 1e6,
            "frames_per_s": batch_size * cameras / us * 1e6,
        }
    case["faster_than"] = {peer: times_us[peer] / times_us[OURS]}
    copies = median_us(copy_timers(case["bytes"], device, sets=2 if quick else None), 5, seconds=0.2)
    compare_with_copies(case, times_us[OURS], copies)


def run_step(recording: Recording, tier: str, quick: bool, case: dict) -> None:
    """Times a training step on the same batch again and again, and on the loader's batches of two cameras."""
    loader = recording.loader("cuda", tier, 4 if quick else STEP_BATCH, 2)
    case["explained"] = str(loader.explain())
    time_steps(({"vision": batch["camera_0"]} for batch in endless(loader)), quick, case, 40)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, help="frames of each camera; 20480 beside a GPU, else 2048")
    parser.add_argument("--workers", type=int, help="DataLoader workers; 16 beside a GPU, else 2")
    options = parser.parse_args()
    cuda, quick = options.device == "cuda", options.quick
    if options.workers is None:
        options.workers = 16 if cuda and not quick else 2
    if options.rows is None:
        options.rows = 64 if quick else 20480 if cuda else 2048
    report = Report("images", options, PREDICTED[options.device], AIMS[options.device])
    for case in (QUICK if quick else CASES)[options.device]:
        work = partial(run_case, case, options.device, quick, options.threads)
        report.run(case.name, case.parameters(), work)

    with temporary_folder() as folder:
        recording = Recording(folder / "cache", options.rows, 48 if quick else 224)
        report.content["bytes_a_frame"] = recording.frame_bytes
        parameters = {"rows": options.rows, "height": recording.size, "bytes_a_frame": recording.frame_bytes}
        if cuda:
            for tier in ("decoded", "device", "pinned", "mapped, warm", "mapped, cold"):
                work = partial(run_to_batch, recording, tier, options.threads, quick, report)
                report.run(f"to a batch of 256, {tier}", {**parameters, "batch": 256}, work)
        peer_us: dict = {}
        for batch_size in (4,) if quick else (64, 256):
            for cameras in (1, 2):
                for tier in TIERS if cuda else ("decoded", "device", "mapped"):
                    work = partial(run_batches, recording, tier, batch_size, cameras, options, peer_us)
                    name = f"batches of {batch_size}, {cameras} camera{'s' * (cameras > 1)}, {tier}"
                    report.run(name, {**parameters, "batch": batch_size, "workers": options.workers}, work)
        if cuda:
            for tier in TIERS:
                report.run(f"a step, {tier}", parameters, partial(run_step, recording, tier, quick))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
