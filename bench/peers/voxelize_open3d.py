"""Computes the centroids of voxels by Open3D, on the CPU."""

import numpy as np
import open3d


def make_cloud(points: np.ndarray) -> "open3d.geometry.PointCloud":
    return open3d.geometry.PointCloud(open3d.utility.Vector3dVector(points.astype(np.float64)))


def compute_centroids(points: "open3d.geometry.PointCloud", voxel_size: float) -> np.ndarray:
    """Returns float64 [M, 3], in no order. Open3D's voxels begin half a voxel below the least point."""
    return np.asarray(points.voxel_down_sample(voxel_size).points)
