"""Whole batches with cameras, compared with LeRobot's own dataset in a DataLoader, from the same files.

    python bench/lerobot_batches.py --device cpu --threads 2

It needs an environment with LeRobot (pip install 'lerobot==0.4.4'). The source is a LeRobot dataset v2.x with a camera. It is
linked as v3.0, which LeRobot reads, and ingested once, as by `robocache ingest`. A batch is the state, 16 actions and one or
two cameras resized to 224x224, from 0 to 1, in float32; the second camera has the first one's file. LeRobot's batches are
compared first: numbers must be equal, frames within the loss of JPEG of quality 95. torchcodec needs FFmpeg's libraries. Those
of PyAV's wheel work, if LD_LIBRARY_PATH has links with their plain names (libavutil.so.59, ...). `--backends pyav` leaves
torchcodec out.
"""

from __future__ import annotations

import os
import statistics
from functools import partial
from pathlib import Path

import numpy as np
import torch
from contest import OURS
from linked_lerobot import link_as_v3
from measure import batch_us, endless
from record import Report, arguments, temporary_folder

import robocache

SIZE, CHUNK = 224, 16
LEAST_DB = 35.0  # the least PSNR of our frames, which were encoded again as JPEGs of quality 95
TIERS = {"cpu": ["decoded", "device", "mapped"], "cuda": ["decoded", "device", "pinned", "mapped"]}
AIMS = {"cpu": 20.0, "cuda": 100.0}
# Written before the first measurement.
PREDICTED = {"cpu": {"device": 20.0, "decoded": 60.0}, "cuda": {"device": 300.0, "decoded": 400.0}}


class Source:
    """A dataset of version 2, linked as v3.0, and robocache's cache of it."""

    def __init__(self, folder: Path, dataset: Path, jobs: int) -> None:
        self.root, self.cameras = folder / "source", ["observation.images.first", "observation.images.second"]
        self.fps, self.starts = link_as_v3(self.root, dataset, self.cameras)
        robocache.ingest(self.root, folder / "cache", jobs=jobs, follow_links=True)
        self.dataset = robocache.open(folder / "cache")

    def windows(self) -> dict[str, list[float]]:
        return {"action": [step / self.fps for step in range(CHUNK)]}

    def our_loader(self, device: str, tier: str, batch_size: int, cameras: int) -> robocache.Loader:
        return robocache.Loader(
            self.dataset,
            batch_size=batch_size,
            delta_timestamps={
                **dict.fromkeys(self.cameras[:cameras]),
                "observation.state": None,
                **self.windows(),
            },
            default=robocache.Window(images=robocache.ImageOptions(size=(SIZE, SIZE))),
            memory=robocache.Memory(residency=dict.fromkeys(self.cameras[:cameras], tier)),
            device=device,
            framework="torch",
        )

    def lerobot_dataset(self, backend: str, cameras: int) -> torch.utils.data.Dataset:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
        from torchvision.transforms.v2 import Resize

        dataset = LeRobotDataset(
            "robocache/bench",
            root=self.root,
            delta_timestamps=self.windows(),
            image_transforms=Resize((SIZE, SIZE), antialias=True),
            video_backend=backend,
        )
        for key in self.cameras[cameras:]:
            dataset.meta.info["features"].pop(key, None)
        return dataset

    def verify(self, batch: dict[str, torch.Tensor], dataset: torch.utils.data.Dataset, cameras: int) -> dict:
        """Compares a batch's first samples with LeRobot's. A worker process reads LeRobot's samples, because later workers
        would inherit a decoder that this process had opened."""
        rows = [
            int(self.starts[episode]) + round(time_ns * self.fps / 1e9)
            for episode, time_ns in zip(batch["episode_index"].tolist(), batch["time_ns"].tolist(), strict=True)
        ][:8]
        subset = torch.utils.data.Subset(dataset, rows)
        theirs = next(iter(torch.utils.data.DataLoader(subset, batch_size=len(rows), num_workers=1)))
        ours = {key: value[: len(rows)].cpu() for key, value in batch.items()}
        for key in ("observation.state", "action", "action_is_pad"):
            if not torch.equal(theirs[key].double(), ours[key].double()):
                raise AssertionError(f"{key} differs")
        least_db = np.inf
        for key in self.cameras[:cameras]:
            mean_square = (theirs[key].double() - ours[key].double()).square().mean((1, 2, 3)).max().item()
            least_db = min(least_db, -10 * np.log10(max(mean_square, 1e-10)))
        if least_db < LEAST_DB:
            raise AssertionError(f"frames are {least_db:.1f} dB from LeRobot's")
        return {"least_db": least_db}


def make_dataloader(
    dataset: torch.utils.data.Dataset, batch_size: int, workers: int, cuda: bool
) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=cuda,
        persistent_workers=workers > 0,
    )


def select_tensors(batches):
    """Yields the part of each batch that is copied to the device."""
    for batch in batches:
        yield {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}


def run_batches(source: Source, tier: str, batch_size: int, cameras: int, options, peers: dict, case: dict) -> None:
    device, quick = options.device, options.quick
    loader = source.our_loader(device, tier, batch_size, cameras)
    case["explained"] = str(loader.explain())
    ours = next(loader)
    case["contenders"], case["failures"], times_us = {}, {}, {}
    seconds = 0.2 if quick else 2.0
    batches = endless(loader)
    warm_up_batches = len(loader) if tier == "decoded" and not quick else 4  # frames are decoded when first drawn
    times_us[OURS] = statistics.median(
        batch_us(batches, warm_up_batches, 1 << 30, seconds, device) for _ in range(1 if quick else 3)
    )
    verified = {}
    for backend in options.backends:
        name = f"LeRobot, {backend}, {options.workers} workers"
        if name not in peers.setdefault((batch_size, cameras), {}):
            dataset = source.lerobot_dataset(backend, cameras)
            verified[name] = source.verify(ours, dataset, cameras)
            peer = select_tensors(endless(make_dataloader(dataset, batch_size, options.workers, device == "cuda")))
            # Workers begin and end together, so the time covers whole cycles of all workers.
            batch_count = 6 if quick else max(6, options.workers)
            peers[batch_size, cameras][name] = verified[name], batch_us(peer, options.workers, batch_count, 60, device)
            del peer
        verified[name], times_us[name] = peers[batch_size, cameras][name]
    for name, us in times_us.items():
        case["contenders"][name] = {
            **verified.get(name, {}),
            "wall_us": us,
            "samples_per_s": batch_size / us * 1e6,
            "frames_per_s": batch_size * cameras / us * 1e6,
        }
    case["faster_than"] = {name: us / times_us[OURS] for name, us in times_us.items() if name != OURS}
    print(f"  faster than {case['faster_than']}", flush=True)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    source = Path(os.environ.get("ROBOCACHE_TEST_DATA", "")) / "lerobot_v2/gr00t_gr1_pnp_sim"
    parser.add_argument("--source", type=Path, default=source, help="a LeRobot dataset v2.x with a camera")
    parser.add_argument("--workers", type=int, help="DataLoader workers; 16 beside a GPU, else 2")
    parser.add_argument("--backends", nargs="+", default=["torchcodec", "pyav"])
    options = parser.parse_args()
    cuda = options.device == "cuda"
    if options.workers is None:
        options.workers = 16 if cuda else 2
    names = {
        f"batches of {batch}, {cameras} camera{'s' * (cameras > 1)}, {tier}": (tier, batch, cameras)
        for batch in ((8,) if options.quick else (64, 256))
        for cameras in (1, 2)
        for tier in TIERS[options.device]
    }
    lerobots = [f"LeRobot, {backend}, {options.workers} workers" for backend in options.backends]
    aims = {
        name: {"faster_than": dict.fromkeys(lerobots, AIMS[options.device])}
        for name, (tier, _, _) in names.items()
        if tier in ("decoded", "device")
    }
    predicted = {
        name: {"faster_than": dict.fromkeys(lerobots, PREDICTED[options.device][tier])}
        for name, (tier, _, _) in names.items()
        if tier in PREDICTED[options.device]
    }
    report = Report("lerobot_batches", options, predicted, aims)
    with temporary_folder() as folder:
        source = Source(folder, options.source, max(1, options.threads))
        report.content["source"] = options.source.name
        peers: dict = {}
        for name, (tier, batch, cameras) in names.items():
            work = partial(run_batches, source, tier, batch, cameras, options, peers)
            report.run(name, {"batch": batch, "cameras": cameras, "workers": options.workers}, work)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
