"""Voxels in torch, without avoidable waits for the device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Grid:
    """A grid with its bounds on the device: torch divides by a Python number by multiplying with its reciprocal, which rounds
    differently."""

    minimum: torch.Tensor  # [3], in the points' dtype
    voxel_size: torch.Tensor
    shape: tuple[int, int, int]


def make_grid(points: torch.Tensor, grid_min: tuple, voxel_size: tuple, grid_size: tuple) -> Grid:
    return Grid(points.new_tensor(grid_min), points.new_tensor(voxel_size), tuple(grid_size))


def compute_cells(points: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Returns the index of each point's voxel, int64 [N]. A point outside the grid gets the index behind the last voxel,
    nx * ny * nz."""
    x, y, z = torch.floor((points[:, :3] - grid.minimum) / grid.voxel_size).unbind(1)
    nx, ny, nz = grid.shape
    is_inside = (x >= 0) & (x < nx) & (y >= 0) & (y < ny) & (z >= 0) & (z < nz)
    return ((x.long() * ny + y.long()) * nz + z.long()).masked_fill_(~is_inside, nx * ny * nz)


def count_points(cell: torch.Tensor, grid_size: tuple) -> torch.Tensor:
    grid = torch.zeros(math.prod(grid_size) + 1, dtype=torch.int32, device=cell.device)
    increment = torch.ones((), dtype=torch.int32, device=cell.device)
    return grid.scatter_add_(0, cell, increment.expand(len(cell)))[:-1].view(grid_size)


def fill_occupancy(cell: torch.Tensor, grid_size: tuple) -> torch.Tensor:
    grid = torch.zeros(math.prod(grid_size) + 1, dtype=torch.bool, device=cell.device)
    return grid.scatter_(0, cell, True)[:-1].view(grid_size)


def compute_mean(cell: torch.Tensor, features: torch.Tensor, grid_size: tuple) -> torch.Tensor:
    """Returns [X, Y, Z, F], 0 in voxels without points."""
    grid = features.new_zeros(math.prod(grid_size) + 1, features.shape[1])
    sums = grid.index_add_(0, cell, features)[:-1].view(*grid_size, -1)
    return sums / count_points(cell, grid_size).clamp(min=1)[..., None]


def compute_maximum(cell: torch.Tensor, features: torch.Tensor, grid_size: tuple) -> torch.Tensor:
    """Returns [X, Y, Z, F], 0 in voxels without points."""
    grid = features.new_zeros(math.prod(grid_size) + 1, features.shape[1])
    index = cell[:, None].expand_as(features)
    return grid.scatter_reduce_(0, index, features, "amax", include_self=False)[:-1].view(*grid_size, -1)


def gather_hard_voxels(points: torch.Tensor, grid: Grid, max_points: int) -> tuple[torch.Tensor, ...]:
    """Returns the voxels in the order of their first points, with at most `max_points` points of each: coords [M, 3] as x, y, z,
    points [M, max_points, 3 + F] padded with zeros, counts [M]. This call waits for the device, since M depends on the data."""
    cell = compute_cells(points, grid)
    is_inside = cell < math.prod(grid.shape)
    points, cell = points[is_inside], cell[is_inside]
    sorted_cells, order = torch.sort(cell, stable=True)
    occupied, counts = torch.unique_consecutive(sorted_cells, return_counts=True)
    start = counts.cumsum(0) - counts
    by_first_point = torch.argsort(order[start])
    rank = torch.empty_like(by_first_point)
    rank[by_first_point] = torch.arange(len(occupied), device=cell.device)
    voxel = torch.repeat_interleave(torch.arange(len(occupied), device=cell.device), counts)
    index_in_voxel = torch.arange(len(cell), device=cell.device) - start[voxel]
    is_kept = index_in_voxel < max_points
    gathered = points.new_zeros(len(occupied), max_points, points.shape[1])
    gathered[rank[voxel[is_kept]], index_in_voxel[is_kept]] = points[order[is_kept]]
    occupied = occupied[by_first_point]
    _, ny, nz = grid.shape
    coords = torch.stack([occupied // (ny * nz), occupied // nz % ny, occupied % nz], 1).int()
    return coords, gathered, counts[by_first_point].clamp(max=max_points)


def compute_centroids(points: torch.Tensor, origin: torch.Tensor, voxel_size: torch.Tensor) -> torch.Tensor:
    """Returns the mean of each voxel's points, [M, 3], in the order of the voxels' indices. The call waits for the device, since M
    depends on the data."""
    coords = torch.floor((points - origin) / voxel_size).long()
    coords -= coords.amin(0)
    _, ny, nz = (coords.amax(0) + 1).unbind()
    _, voxel, counts = torch.unique(
        (coords[:, 0] * ny + coords[:, 1]) * nz + coords[:, 2], return_inverse=True, return_counts=True
    )
    return points.new_zeros(len(counts), 3).index_add_(0, voxel, points) / counts[:, None]
