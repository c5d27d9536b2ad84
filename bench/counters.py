"""The calls whose kernels Nsight Compute looks at, each twice: the second is the one that counts.

ncu --clock-control none -k 'regex:tile|curve|interpolate' --csv --page raw --metrics ... python bench/counters.py

The whole command, with its metrics, stands in bench/results/counters/.
"""

from __future__ import annotations

from collections.abc import Callable

import fuse
import torch
from inputs import make_clock, make_targets

import robocache


def resample(batch: int, samples: int, targets: int, features: int, **options: object) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    values = torch.randn(batch, samples, features, device="cuda", generator=generator).to(torch.bfloat16)
    times = make_clock("50% jitter", batch, samples, torch.float32, generator, "cuda")
    wanted = make_targets(batch, targets, torch.float32, "cuda")
    twice(robocache.resample_trajectories, values, times, wanted, **options)


def twice(call: Callable, *arguments: object, **options: object) -> None:
    torch.cuda.synchronize()
    for _ in range(2):
        call(*arguments, **options)
    torch.cuda.synchronize()


def main() -> None:
    resample(256, 500, 250, 32)
    resample(256, 500, 250, 7)
    resample(1024, 2048, 1024, 7)
    resample(1024, 2048, 1024, 64, method="pchip")
    resample(1024, 2048, 1024, 64, method="akima")
    resample(1024, 2048, 1024, 64, methods=[(slice(d, d + 4), "slerp") for d in range(0, 64, 4)])
    for batch in (64, 512):
        twice(robocache.fuse_multimodal, *fuse.make_inputs(batch, "cuda", seed=0))


if __name__ == "__main__":
    main()
