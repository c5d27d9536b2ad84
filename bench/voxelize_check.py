"""Checks voxels against NumPy in float64: equal bits if nothing is rounded, else within a derived bound."""

from __future__ import annotations

import numpy as np
import torch
from peers import voxelize_numpy

EXACT = ("occupancy", "count", "max")


class DenseCheck:
    """Checks the outputs of a call on one cloud: {mode: grid}, or the grid if there is one mode."""

    def __init__(
        self, grid: dict, modes: tuple[str, ...], points: np.ndarray, features: torch.Tensor, quantum: float | None
    ) -> None:
        size, self.device = grid["grid_size"], features.device
        cell, values = voxelize_numpy.cells(points, *grid.values()), features.cpu().numpy()
        count = voxelize_numpy.count(cell, size)
        by_mode = {
            "count": lambda: count,
            "occupancy": lambda: count > 0,
            "mean": lambda: voxelize_numpy.mean(cell, values, size),
            "max": lambda: voxelize_numpy.maximum(cell, values, size),
        }
        self.modes = modes
        self.expected = {mode: torch.from_numpy(by_mode[mode]()).to(self.device) for mode in modes}
        self.count = torch.from_numpy(count).to(self.device)[..., None]
        self.largest = float(features.abs().max()) if features.numel() else 0.0
        self.quantum = quantum

    def compare_with_numpy(self, ours: object) -> dict:
        """Compares our grids with NumPy's, whose sums of n numbers have n roundings of 2^-53."""
        return self._compare(ours, self.expected, self._bound(self.count * 2.0**-53), 0)

    def compare_with_peer(self, ours: object, theirs: object, max_wrong: int) -> dict:
        """Compares our grids with a peer's. A peer sums n values in float32 in any order: n roundings of at most 2^-24 of the
        sum of the magnitudes, and one rounding of the division. max_wrong: the number of voxels that may differ, since the
        peer's division may be approximate."""
        return self._compare(ours, theirs, self._bound((self.count + 2) * 2.0**-24), max_wrong)

    def _bound(self, their_roundings: torch.Tensor) -> torch.Tensor:
        """Returns the largest allowed difference of a mean, [X, Y, Z, 1]. Our error is half of a given quantum, or 2^(k - 62)
        of the largest value, where 2^k is at least the number n of the voxel's points and less than 2 n (fixed_point.hpp). Their error is
        `their_roundings` of the largest value. The bound includes the rounding to float32."""
        our_error = self.quantum / 2 if self.quantum else self.count * (2.0**-61 * self.largest)
        return our_error + their_roundings * self.largest

    def _compare(self, ours: object, theirs: object, bound: torch.Tensor, max_wrong: int) -> dict:
        worst = 0.0
        for mode in self.modes:
            our_grid, their_grid = (x[mode] if isinstance(x, dict) else x for x in (ours, theirs))
            their_grid = torch.as_tensor(their_grid).to(self.device)
            if mode in EXACT:
                is_wrong = our_grid != their_grid
            else:
                error = (our_grid.double() - their_grid.double()).abs()
                limit = bound + our_grid.double().abs() * 2.0**-24
                is_wrong = ~(error <= limit)
                worst = max(worst, float(torch.where(is_wrong | (error == 0), 0, error / limit).max()))
            if is_wrong.ndim == 4:
                is_wrong = is_wrong.any(-1)
            if (count := int(is_wrong.sum())) > max_wrong:
                raise AssertionError(f"{mode} differs from robocache in {count} voxels, {max_wrong} may")
        return {"largest_error_over_bound": worst}


def check_hard(ours: object, theirs: tuple) -> dict:
    """Checks that all voxels are equal, bit for bit. Our arrays also have unused rows, which are not compared."""
    coords, gathered, counts = (torch.as_tensor(x).to(ours.coords.device) for x in theirs)
    voxel_count = int(ours.num_voxels)
    if voxel_count != len(coords):
        raise AssertionError(f"{len(coords)} voxels where robocache has {voxel_count}")
    for name, our_values, their_values in (
        ("coords", ours.coords, coords),
        ("features", ours.features, gathered),
        ("counts", ours.counts, counts),
    ):
        if not torch.equal(our_values[:voxel_count], their_values.to(our_values.dtype)):
            raise AssertionError(f"{name} differ from robocache")
    return {"largest_error_over_bound": 0.0}


def check_centroids(
    ours: object, theirs: object, origin: tuple, voxel_m: float, max_wrong: int, points: torch.Tensor
) -> dict:
    """Compares centroids voxel by voxel, in any order, since a centroid lies in its voxel. A sum of n numbers in float32 has n
    roundings of 2^-24 of the largest number. max_wrong: the number of voxels in which a peer may differ, since its points have
    another dtype."""
    max_points = float(np.bincount(number_voxels(points.cpu().numpy(), origin, voxel_m)[1]).max())
    bound = (max_points + 4) * 2.0**-24 * float(points.abs().max())
    our_centroids, their_centroids = (
        np.asarray(torch.as_tensor(take_centroids(x)).cpu(), np.float64) for x in (ours, theirs)
    )
    cells = [number_voxels(x, origin, voxel_m)[0] for x in (our_centroids, their_centroids)]
    _, rows, other_rows = np.intersect1d(*cells, return_indices=True)
    errors = np.abs(our_centroids[rows] - their_centroids[other_rows]).max(1) / bound
    wrong_count = (len(our_centroids) - len(rows)) + (len(their_centroids) - len(rows)) + int((errors > 1).sum())
    if wrong_count > max_wrong:
        raise AssertionError(f"differs from robocache in {wrong_count} voxels, {max_wrong} may")
    return {"largest_error_over_bound": float(errors[errors <= 1].max(initial=0))}


def take_centroids(output: object) -> object:
    return output[0] if isinstance(output, tuple) else output


def number_voxels(points: np.ndarray, origin: tuple, voxel_m: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each point the number of its voxel, and the index of this voxel among the occupied voxels."""
    x, y, z = voxelize_numpy.coordinates(points, origin, (voxel_m,) * 3).astype(np.int64).T
    number = (x * 2**20 + y) * 2**20 + z
    return number, np.unique(number, return_inverse=True)[1]
