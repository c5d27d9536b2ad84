"""Streams as robots record them, made up, and the bytes that must move to bring them to other times."""

from __future__ import annotations

import math

import torch

# What memory moves at least: a sector of a GPU's, a cache line of a CPU's.
SECTOR_BYTES = {"cuda": 32, "cpu": 64}
EPOCH_NS = 1_700_000_000 * 10**9
SPAN_NS = 10**9  # every clock runs over one second, of which `make_targets` asks evenly

# How far apart samples are, in periods.
JITTERS = {
    "uniform": "one period",
    "30% jitter": "each sample up to 0.3 periods beside its tick",
    "50% jitter": "0.5 to 1.5 periods, evenly distributed",
    "bursts": "eight samples at once, 0.01 periods apart, then a pause",
    "random": "exponentially distributed, as of a Poisson process",
}


def make_clock(
    jitter: str, batch: int, samples: int, dtype: torch.dtype, generator: torch.Generator, device: str
) -> torch.Tensor:
    """Ascending times [B, S] over one second: float seconds from 0, or int64 nanoseconds since 1970."""

    def uniform() -> torch.Tensor:
        return torch.rand(batch, samples, generator=generator, device=device, dtype=torch.float64)

    index = torch.arange(samples, device=device, dtype=torch.float64).expand(batch, samples)
    if jitter == "uniform":
        ticks = index
    elif jitter == "30% jitter":
        ticks = index + 0.6 * uniform() - 0.3
    elif jitter == "50% jitter":
        ticks = (uniform() + 0.5).cumsum(1)
    elif jitter == "bursts":
        ticks = index // 8 * 8 + index % 8 * 0.01
    else:
        ticks = -(1 - uniform()).log().cumsum(1)
    since = ticks - ticks[:, :1]
    return on_clock(since / since[:, -1:].clamp(min=1e-9), dtype)


def make_targets(batch: int, targets: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Evenly spaced times [B, T] over the clocks' second."""
    return on_clock(torch.linspace(0, 1, targets, device=device, dtype=torch.float64), dtype).repeat(batch, 1)


def on_clock(seconds: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int64:
        return EPOCH_NS + (seconds * SPAN_NS).round().long()
    return seconds.to(dtype)


# How many samples beyond the two beside a target a method looks at, to either side; None: at the whole row.
REACH = {"pchip": 1, "akima": 2, "cubic": None}


def bytes_moved(values: torch.Tensor, times: torch.Tensor, targets: torch.Tensor, method: str = "linear") -> int:
    """At least: the samples that the method looks at, in whole sectors, each once; of every clock what a binary search
    looks at, or all of it where that is less; the targets; and the output."""
    batch, samples, features = values.shape
    row_bytes, sector = features * values.element_size(), SECTOR_BYTES[values.device.type]
    touched = torch.zeros(batch, samples, dtype=torch.bool, device=values.device)
    reach = REACH.get(method, 0)
    if reach is None:
        touched[:] = True
    else:
        right = torch.searchsorted(times, targets, right=True).clamp(1, max(1, samples - 1))
        for step in range(-1 - reach, reach + 1):
            touched.scatter_(1, (right + step).clamp(0, samples - 1), True)
    rows = touched.view(-1).nonzero().squeeze(1)
    first, last = rows * row_bytes // sector, ((rows + 1) * row_bytes - 1) // sector
    sectors = int((last - first + 1).sum() - (first[1:] == last[:-1]).sum())
    looked_at = min(samples, targets.shape[1] * math.ceil(math.log2(samples) + 1))
    read = sectors * sector + batch * looked_at * times.element_size() + targets.nbytes
    return read + targets.numel() * row_bytes
