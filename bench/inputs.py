"""Synthetic streams like those of robots, and the bytes that must move to resample them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

import robocache

# The smallest unit that memory transfers: a sector on a GPU, a cache line on a CPU.
SECTOR_BYTES = {"cuda": 32, "cpu": 64}
EPOCH_NS = 1_700_000_000 * 10**9
ROW_JITTER = 0.2  # the most periods between a row of a cache and its tick
SPAN_NS = 10**9  # every clock spans one second, over which `make_targets` is even


def write_cache(path: Path, streams: dict[str, tuple[float, int, str]], episodes: int, seconds: float) -> None:
    """Writes a cache of streams {name: (Hz, features, dtype)}. An episode's rows are a random fifth of a stock of
    random rows, since drawing new rows would take longer than writing them."""
    rng = np.random.default_rng(0)
    stock = {}
    for name, (rate, features, dtype) in streams.items():
        rows = int(rate * seconds)
        stock[name] = rng.standard_normal((5 * rows, features), np.float32).astype(dtype)
    with robocache.Writer(path) as writer:
        for number in range(episodes):
            with writer.episode() as episode:
                for name, (rate, _, _) in streams.items():
                    rows = len(stock[name]) // 5
                    begin = int(rng.integers(0, 4 * rows + 1))
                    ticks = (np.arange(rows) + rng.uniform(-ROW_JITTER, ROW_JITTER, rows)) * (1e9 / rate)
                    time_ns = EPOCH_NS + number * 10**12 + ticks.astype(np.int64)
                    episode.append(name, time_ns, stock[name][begin : begin + rows])


# The distances between samples, in periods.
JITTERS = {
    "uniform": "one period",
    "30% jitter": "each sample up to 0.3 periods beside its tick",
    "50% jitter": "0.5 to 1.5 periods, evenly distributed",
    "bursts": "eight samples at once, 0.01 periods apart, then a pause",
    "random": "exponentially distributed, as in a Poisson process",
}


def make_clock(
    jitter: str, batch: int, samples: int, dtype: torch.dtype, generator: torch.Generator, device: str
) -> torch.Tensor:
    """Returns ascending times [B, S] over one second: float seconds from 0, or int64 nanoseconds since 1970."""

    def draw_uniform() -> torch.Tensor:
        return torch.rand(batch, samples, generator=generator, device=device, dtype=torch.float64)

    index = torch.arange(samples, device=device, dtype=torch.float64).expand(batch, samples)
    if jitter == "uniform":
        ticks = index
    elif jitter == "30% jitter":
        ticks = index + 0.6 * draw_uniform() - 0.3
    elif jitter == "50% jitter":
        ticks = (draw_uniform() + 0.5).cumsum(1)
    elif jitter == "bursts":
        ticks = index // 8 * 8 + index % 8 * 0.01
    else:
        ticks = -(1 - draw_uniform()).log().cumsum(1)
    elapsed = ticks - ticks[:, :1]
    return convert_to_clock(elapsed / elapsed[:, -1:].clamp(min=1e-9), dtype)


def make_targets(batch: int, targets: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Returns evenly spaced times [B, T] over the clocks' second."""
    return convert_to_clock(torch.linspace(0, 1, targets, device=device, dtype=torch.float64), dtype).repeat(batch, 1)


def convert_to_clock(seconds: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int64:
        return EPOCH_NS + (seconds * SPAN_NS).round().long()
    return seconds.to(dtype)


# The number of samples that a method reads on either side, beyond the two beside a target; None: the whole row.
REACH = {"pchip": 1, "akima": 2, "cubic": None}


def count_moved_bytes(values: torch.Tensor, times: torch.Tensor, targets: torch.Tensor, method: str = "linear") -> int:
    """Returns the fewest bytes that move: the sectors of the samples that the method reads, counted once; the stamps that a binary
    search reads, or the whole clock if it has fewer; the targets; and the output."""
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
    stamps_read = min(samples, targets.shape[1] * math.ceil(math.log2(samples) + 1))
    read = sectors * sector + batch * stamps_read * times.element_size() + targets.nbytes
    return read + targets.numel() * row_bytes


# ---- Clouds of points ----

CLOUDS = {
    "uniform": "evenly over the grid, in no order",
    "gaussian": "around the middle of the grid, sigma an eighth of its extent, in no order",
    "lidar": "of a spinning lidar, in the order of the scan",
    "spread": "evenly over 20 m around the grid",
}
SPREAD_M = 20.0
SWEEPS_PER_S, AZIMUTHS, BEAMS = 10, 2048, 128  # the lidar's
YARD_M, WALL_M, LIDAR_M = 63.0, 12.0, 1.8  # the yard's side, its walls' height, the lidar's height
BOXES = 24


def make_cloud(
    kind: str,
    points: int,
    corner: tuple[float, ...],
    extent: tuple[float, ...],
    generator: torch.Generator,
    device: str,
) -> torch.Tensor:
    """Returns float32 points [N, 3] of a kind of CLOUDS, for a grid that begins at `corner` and has an `extent` in metres.

    Every point is in the grid, except for "spread". For the lidar the grid must contain its yard: YARD_M around x = y = 0, from
    z = 0 to WALL_M.
    """
    low = torch.tensor(corner, device=device)
    size = torch.tensor(extent, device=device)
    if kind == "lidar":
        return spinning_lidar(points, generator, device)
    if kind == "gaussian":
        unit = torch.empty(points, 3, device=device)
        torch.nn.init.trunc_normal_(unit, 0.5, 1 / 8, 0, 1, generator=generator)
    else:
        unit = torch.rand(points, 3, generator=generator, device=device)
    if kind == "spread":
        return low + size / 2 + (unit - 0.5) * SPREAD_M
    return low + unit.clamp(2**-16, 1 - 2**-16) * size  # a point rounded onto the far face would be outside


def spinning_lidar(points: int, generator: torch.Generator, device: str) -> torch.Tensor:
    """Returns float32 points [N, 3] in metres like a robot's lidar: ten turns per second, column after column of 128 beams from
    25 degrees down to 10 up, dense on the ground and on near objects, sparse on the walls, with 2 cm of range noise (sigma).

    The yard is a square of YARD_M with walls and BOXES boxes in it; the robot drives a circle of 5 m at 1.5 m/s and the
    points of all turns are in the yard's frame, x, y on the ground and z up.
    """
    index = torch.arange(points, device=device)
    column, beam = index // BEAMS, index % BEAMS
    heading = 1.5 / 5.0 * column.double() / (SWEEPS_PER_S * AZIMUTHS)
    eye = torch.stack([5 * heading.cos(), 5 * heading.sin(), torch.full_like(heading, LIDAR_M)], 1).float()
    azimuth = (column % AZIMUTHS + 0.5) * (-2 * math.pi / AZIMUTHS)  # never along an axis
    elevation = torch.deg2rad(-25 + 35 / (BEAMS - 1) * beam.float())
    ray = torch.stack([elevation.cos() * azimuth.cos(), elevation.cos() * azimuth.sin(), elevation.sin()], 1)

    half = YARD_M / 2
    far = torch.tensor([half, half, math.inf], device=device)
    # The distance from the eye along each ray to the nearest wall, the ground or a box.
    hit_m = torch.minimum((torch.where(ray < 0, -far, far) - eye) / ray, torch.tensor(math.inf, device=device)).amin(1)
    hit_m = torch.where(ray[:, 2] < 0, torch.minimum(hit_m, -eye[:, 2] / ray[:, 2]), hit_m)
    box_numbers = torch.rand(BOXES, 5, generator=generator, device=device).cpu()  # the boxes' positions and sizes
    for angle, distance, *size in box_numbers.tolist():
        angle, distance = 2 * math.pi * angle, 9 + 18 * distance
        sides = torch.tensor([0.3 + 1.7 * size[0], 0.3 + 1.7 * size[1], 0.5 + 3 * size[2]], device=device)
        foot = torch.tensor([distance * math.cos(angle), distance * math.sin(angle), 0.0], device=device)
        low, high = (foot - sides - eye) / ray, (foot + sides - eye) / ray
        enter, leave = torch.minimum(low, high).amax(1), torch.maximum(low, high).amin(1)
        hit_m = torch.where((enter > 0) & (enter < leave), torch.minimum(hit_m, enter), hit_m)
    hit_m += 0.02 * torch.randn(points, generator=generator, device=device)
    return eye + hit_m[:, None] * ray
