"""Integrates depth images into a grid of distances in torch: projects every voxel to its pixel, in float32."""

import torch


def integrate(grid, weights, depth, pose, camera, carving, grid_min, voxel_size, truncation):
    """Updates grid and weights, and returns grid. pose is T_world_camera, a tensor on the same device."""
    fx, fy, cx, cy = camera
    height, width = depth.shape
    axes = [
        grid_min[axis] - pose[axis, 3] + (torch.arange(grid.shape[axis], device=grid.device) + 0.5) * voxel_size
        for axis in range(3)
    ]
    dx, dy, dz = axes[0][:, None, None], axes[1][:, None], axes[2]
    x, y, z = (pose[0, i] * dx + pose[1, i] * dy + pose[2, i] * dz for i in range(3))
    column, row = torch.round(fx * x / z + cx), torch.round(fy * y / z + cy)
    is_inside = (z > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    pixel = torch.where(is_inside, row * width + column, 0).long()
    depth_of_voxel = depth.reshape(-1)[pixel]
    sdf = (depth_of_voxel - z) * torch.sqrt(x * x + y * y + z * z) / z
    measured = is_inside & (depth_of_voxel > 0) & torch.isfinite(depth_of_voxel) & (sdf >= -truncation)
    if not carving:
        measured = measured & (sdf <= truncation)
    total = weights + measured
    mean = (grid * weights + sdf.clamp(max=truncation)) / total
    grid.copy_(torch.where(measured, mean, grid))
    weights.copy_(total)
    return grid
