"""The calls whose kernels Nsight Compute looks at, each twice: the second is the one that counts.

ncu --clock-control none -k 'regex:tile|curve|interpolate|deal|count|crowd|merged' --csv --page raw --metrics ... python bench/counters.py B64 B256 B512 B1024
ncu --clock-control none --csv --page raw --metrics ... python bench/counters.py 'count, 10M uniform'

Those with one of the arguments in their names, or all. A whole command, with its metrics, stands in bench/results/counters/.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import fuse
import torch
import voxelize
from inputs import CLOUDS, make_clock, make_targets

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


def fusion(batch: int) -> None:
    twice(robocache.fuse_multimodal, *fuse.make_inputs(batch, "cuda", seed=0))


def voxels(case: voxelize.Case) -> None:
    twice(voxelize.ours(case), voxelize.Cloud(case, "cuda", seed=0))


CALLS = {
    "resample B256 S500 T250 D32": partial(resample, 256, 500, 250, 32),
    "resample B256 S500 T250 D7": partial(resample, 256, 500, 250, 7),
    "resample B1024 S2048 T1024 D7": partial(resample, 1024, 2048, 1024, 7),
    "pchip B1024 S2048 T1024 D64": partial(resample, 1024, 2048, 1024, 64, method="pchip"),
    "akima B1024 S2048 T1024 D64": partial(resample, 1024, 2048, 1024, 64, method="akima"),
    "slerp B1024 S2048 T1024 D64": partial(
        resample, 1024, 2048, 1024, 64, methods=[(slice(d, d + 4), "slerp") for d in range(0, 64, 4)]
    ),
    **{f"fuse B{batch}": partial(fusion, batch) for batch in (64, 512)},
    **{case.name: partial(voxels, case) for case in voxelize.CASES["cuda"] if case.cloud in CLOUDS},
}


def main() -> None:
    for name, call in CALLS.items():
        if len(sys.argv) == 1 or any(part in name for part in sys.argv[1:]):
            print(name, flush=True)
            call()


if __name__ == "__main__":
    main()
