"""Frames of cameras: JPEGs to pixels against Pillow, random crops normalised against torch, and both against a copy.

python bench/images.py --device cuda
python bench/images.py --device cpu --threads 2
"""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from contest import contest, largest_error_over_bound
from measure import rotations
from PIL import Image
from record import Report, arguments
from robocache.ops.decode_jpeg import ResidentJpegs

import robocache

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    size: int
    crop: int | None  # of a case that crops; else it decodes

    def parameters(self) -> dict:
        return {"batch": self.batch, "height": self.size, "width": self.size, "crop": self.crop}


CASES = [
    Case("decode, 64 x 224x224", 64, 224, None),
    Case("decode, 256 x 224x224", 256, 224, None),
    Case("crop and normalise, 64 x 256x256", 64, 256, 224),
    Case("crop and normalise, 256 x 256x256", 256, 256, 224),
]
QUICK = [Case("decode, 4 x 48x48", 4, 48, None), Case("crop and normalise, 4 x 48x48", 4, 48, 40)]

# Written before the first measurement.
PREDICTED = {
    "cuda": {"crop and normalise, 256 x 256x256": {"times_the_copy": 1.5, "faster_than": {"torch eager": 8}}},
    "cpu": {
        "decode, 64 x 224x224": {"faster_than": {"Pillow": 1.8, "Pillow, on threads": 1.0}},
        "crop and normalise, 64 x 256x256": {"times_the_copy": 2, "faster_than": {"torch eager": 5}},
    },
}


def pictures(case: Case, seed: int) -> np.ndarray:
    """uint8 [B, H, W, 3]: large soft patches under a camera's noise, 18 KB each as JPEG of quality 95 at 224x224."""
    rng = np.random.default_rng(seed)
    patches = torch.from_numpy(rng.uniform(0, 255, (case.batch, 3, 8, 8)))
    soft = torch.nn.functional.interpolate(patches, size=(case.size, case.size), mode="bilinear")
    noise = rng.normal(0, 3, (case.batch, case.size, case.size, 1))
    return np.ascontiguousarray((soft.permute(0, 2, 3, 1).numpy() + noise).clip(0, 255), np.uint8)


# ---- JPEGs to pixels ----


class Files:
    """A batch's JPEGs, in memory: as robocache takes them, and as bytes each."""

    def __init__(self, case: Case, device: str, seed: int) -> None:
        encoded = robocache.frames.encode(pictures(case, seed), quality=95)
        self.blobs, self.offsets = torch.from_numpy(encoded.data), torch.from_numpy(encoded.offsets)
        self.each = [
            encoded.data[begin:end].tobytes()
            for begin, end in zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True)
        ]
        self.shape = (case.batch, *encoded.shape)
        if device == "cuda":
            self.resident = ResidentJpegs(self.blobs, self.offsets, device=device)
            self.rows = torch.arange(case.batch, device=device)


def decode(files: Files) -> torch.Tensor:
    return robocache.decode_jpeg(files.blobs, files.offsets)


def decode_on_device(files: Files) -> torch.Tensor:
    out = torch.empty(files.shape, dtype=torch.uint8, device="cuda")
    files.resident.decode(files.rows, out, torch.empty(len(out), dtype=torch.int32, device="cuda"))
    return out


def by_pillow(mapped: Callable, files: Files) -> torch.Tensor:
    """Each frame into its place of the batch."""
    out = np.empty(files.shape, np.uint8)

    def decode_one(place: int) -> None:
        out[place] = Image.open(io.BytesIO(files.each[place]))

    list(mapped(decode_one, range(len(out))))
    return torch.from_numpy(out)


def equal(ours: torch.Tensor, theirs: torch.Tensor) -> dict:
    """Refuses a peer that has other pixels."""
    if not torch.equal(ours.cpu(), theirs):
        raise AssertionError("has other pixels than robocache")
    return {"largest_error_over_bound": 0.0}


# ---- pixels to a batch ----


class Frames:
    """Decoded frames, which of them a batch takes, and the corners of their crops: peers need draw none."""

    def __init__(self, case: Case, device: str, seed: int) -> None:
        self.frames = torch.from_numpy(pictures(case, seed)).to(device)
        self.rows = torch.randperm(case.batch, generator=torch.Generator().manual_seed(seed)).to(device)
        self.options = {"crop": (case.crop, case.crop), "seed": seed}
        row, column = torch.meshgrid(*[torch.arange(case.size, dtype=torch.uint8)] * 2, indexing="ij")
        places = torch.stack([row, column, column], -1)[None].repeat(case.batch, 1, 1, 1).to(device)
        cropped = robocache.image_batch(places, self.rows, dtype="uint8", layout="hwc", **self.options)
        self.corners = cropped[:, 0, 0, :2].long()
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.mean, self.std = (torch.tensor(x, device=device) for x in (MEAN, STD))


def batch(frames: Frames) -> torch.Tensor:
    return robocache.image_batch(
        frames.frames, frames.rows, mean="imagenet", std="imagenet", dtype=frames.dtype, **frames.options
    )


def torch_batch(frames: torch.Tensor, rows: torch.Tensor, corners: torch.Tensor, mean, std, crop: int, dtype):
    """[B, 3, crop, crop]"""
    steps = torch.arange(crop, device=frames.device)
    row, column = (corners[:, axis, None] + steps for axis in (0, 1))
    taken = frames[rows[:, None, None], row[:, :, None], column[:, None, :]]
    return ((taken.float() / 255 - mean) / std).permute(0, 3, 1, 2).to(dtype).contiguous()


def by_torch(call: Callable, frames: Frames) -> torch.Tensor:
    crop = frames.options["crop"][0]
    return call(frames.frames, frames.rows, frames.corners, frames.mean, frames.std, crop, frames.dtype)


# ---- cases ----


def run_case(case: Case, device: str, quick: bool, filled: dict) -> None:
    torch._dynamo.reset()
    if case.crop is None:
        first = Files(case, device, seed=0)
        made, ours, verify = Files, decode_on_device if device == "cuda" else decode, equal
        filled["bytes"] = len(first.blobs) + case.batch * case.size**2 * 3
        filled["bytes_a_frame"] = len(first.blobs) / case.batch
        pool = ThreadPoolExecutor(robocache.num_threads())
        peers = {"Pillow": partial(by_pillow, map), "Pillow, on threads": partial(by_pillow, pool.map)}
        waiting = set(peers)
    else:
        made, ours, waiting = Frames, batch, set()
        first = Frames(case, device, seed=0)
        filled["bytes"] = case.batch * case.crop**2 * 3 * (1 + first.dtype.itemsize)
        verify = partial(largest_error_over_bound, largest=1 / min(STD))
        peers = {"torch eager": partial(by_torch, torch_batch)}
        if not quick:
            peers["torch.compile"] = partial(by_torch, torch.compile(torch_batch, dynamic=False))
    count = 2 if quick else rotations(filled["bytes"], device, most=64)
    inputs = [(first,), *((made(case, device, seed),) for seed in range(1, count))]
    contest(filled, inputs, ours, peers, verify, device, quick, waiting)


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    report = Report("images", options, PREDICTED[options.device])
    for case in QUICK if options.quick else CASES:
        report.run(case.name, case.parameters(), partial(run_case, case, options.device, options.quick))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
