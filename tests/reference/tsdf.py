"""Naive oracle of `robocache.integrate_tsdf`: tests every ray with every voxel, and every voxel with every image.

It does not walk along rays: a ray passes a voxel if it leaves later than it enters. numpy rounds each float64
operation once, so every comparison has the library's result.
"""

import math

import numpy as np


def integrate_points(grid, weights, points, T_world_sensor, **options):
    """Returns new (grid, weights) after points [N,3] or [K,N,3]."""
    total = Total(grid.shape, **options)
    for cloud, pose in _pairs_with_poses(points, T_world_sensor, 2):
        rotation, origin = pose[:3, :3], pose[:3, 3]
        for p in cloud.astype(np.float64):
            if np.isfinite(p).all():
                total.add(*_along_ray(rotation, origin, p, total))
    return total.update(grid, weights)


def integrate_depth(grid, weights, depth, T_world_sensor, intrinsics, *, depth_scale=1.0, **options):
    """Returns new (grid, weights) after depth [H,W] or [K,H,W]."""
    total = Total(grid.shape, **options)
    intrinsics = np.asarray(intrinsics, np.float64)
    if intrinsics.shape[-2:] == (3, 3):
        intrinsics = np.stack([intrinsics[..., i, j] for i, j in ((0, 0), (1, 1), (0, 2), (1, 2))], -1)
    for index, (image, pose) in enumerate(_pairs_with_poses(depth, T_world_sensor, 2)):
        camera = intrinsics if intrinsics.ndim == 1 else intrinsics[index]
        total.add(*_on_image(pose[:3, :3], pose[:3, 3], image.astype(np.float64) * depth_scale, camera, total))
    return total.update(grid, weights)


def _pairs_with_poses(measured, poses, ndim):
    poses = np.asarray(poses, np.float64)
    return [(measured, poses)] if measured.ndim == ndim else list(zip(measured, poses, strict=True))


class Total:
    """The measurements of one call: sums in quanta, as exact integers, and counts."""

    def __init__(self, shape, *, grid_min, voxel_size, truncation, max_weight=None, space_carving=False):
        self.lower = np.asarray(grid_min, np.float64)
        self.size = np.broadcast_to(np.asarray(voxel_size, np.float64), 3)
        self.truncation, self.max_weight, self.carving = truncation, max_weight, space_carving
        self.quantum = 2.0**-200
        while self.quantum * 2**31 < truncation:
            self.quantum *= 2
        index = np.indices(shape)
        self.lower_plane, self.upper_plane, self.centre = (
            [self.lower[axis] + (index[axis] + part) * self.size[axis] for axis in range(3)] for part in (0, 1, 0.5)
        )
        self.sums = np.zeros(shape, np.int64)
        self.counts = np.zeros(shape, np.int64)

    def add(self, measured, sdf):
        """Adds sdf where `measured` is true."""
        with np.errstate(invalid="ignore"):
            measured = measured & (sdf >= -self.truncation)
            if not self.carving:
                measured &= sdf <= self.truncation
        quanta = np.rint(np.minimum(sdf[measured], self.truncation) / self.quantum)
        self.sums[measured] += quanta.astype(np.int64)
        self.counts[measured] += 1

    def update(self, grid, weights):
        grid, weights = grid.copy(), weights.copy()
        for voxel in np.argwhere(self.counts):
            voxel = tuple(voxel)
            old_weight = np.float64(weights[voxel])
            measured = np.float64(int(self.sums[voxel])) * self.quantum
            if old_weight > 0:
                measured = np.float64(grid[voxel]) * old_weight + measured
            else:
                old_weight = np.float64(0)
            total = old_weight + np.float64(int(self.counts[voxel]))
            grid[voxel] = measured / total
            weights[voxel] = total if self.max_weight is None else min(total, self.max_weight)
        return grid, weights


def _along_ray(rotation, origin, p, total):
    """Returns a mask of the voxels that the ray to p passes through, and their sdf."""
    no_voxel = np.zeros(total.sums.shape, bool)
    ray = [(rotation[i, 0] * p[0] + rotation[i, 1] * p[1]) + rotation[i, 2] * p[2] for i in range(3)]
    length = math.sqrt((ray[0] * ray[0] + ray[1] * ray[1]) + ray[2] * ray[2])
    if length == 0:
        return no_voxel, np.zeros(no_voxel.shape)
    d = [x / length for x in ray]
    enters, leaves = np.zeros(no_voxel.shape), np.full(no_voxel.shape, np.inf)
    is_inside = ~no_voxel
    for axis in range(3):
        near, far = total.lower_plane[axis], total.upper_plane[axis]
        if d[axis] == 0:
            is_inside &= (near <= origin[axis]) & (origin[axis] < far)
            continue
        if d[axis] < 0:
            near, far = far, near
        with np.errstate(over="ignore"):
            enters = np.maximum(enters, (near - origin[axis]) / d[axis])
            leaves = np.minimum(leaves, (far - origin[axis]) / d[axis])
    along = [(total.centre[axis] - origin[axis]) * d[axis] for axis in range(3)]
    return is_inside & (enters < leaves), length - ((along[0] + along[1]) + along[2])


def _on_image(rotation, origin, depth, camera, total):
    """Returns a mask of the voxels that a pixel measures, and their sdf."""
    fx, fy, cx, cy = camera
    d = [total.centre[axis] - origin[axis] for axis in range(3)]
    x, y, z = ((rotation[0, i] * d[0] + rotation[1, i] * d[1]) + rotation[2, i] * d[2] for i in range(3))
    with np.errstate(all="ignore"):
        column, row = np.rint(fx * x / z + cx), np.rint(fy * y / z + cy)
        measured = (z > 0) & (column >= 0) & (column < depth.shape[1]) & (row >= 0) & (row < depth.shape[0])
        pixel = np.zeros(z.shape)
        pixel[measured] = depth[row[measured].astype(int), column[measured].astype(int)]
        measured &= (pixel > 0) & np.isfinite(pixel)
        return measured, (pixel - z) * np.sqrt((x * x + y * y) + z * z) / z
