"""Integrates depth images into a grid of distances by Open3D's UniformTSDFVolume, on the CPU."""

import numpy as np
import open3d


def make_volume(cells: int, voxel_size: float, corner: tuple, truncation: float) -> "UniformTSDFVolume":  # noqa: F821
    integration = open3d.pipelines.integration
    return integration.UniformTSDFVolume(
        length=cells * voxel_size,
        resolution=cells,
        sdf_trunc=truncation,
        color_type=integration.TSDFVolumeColorType.NoColor,
        origin=np.array(corner, np.float64),
    )


def make_images(depth: np.ndarray) -> "open3d.geometry.RGBDImage":
    colour = open3d.geometry.Image(np.zeros((*depth.shape, 3), np.uint8))
    return open3d.geometry.RGBDImage.create_from_color_and_depth(
        colour, open3d.geometry.Image(depth), depth_scale=1.0, depth_trunc=1e3, convert_rgb_to_intensity=False
    )


def make_camera(shape: tuple, numbers: tuple) -> "open3d.camera.PinholeCameraIntrinsic":
    return open3d.camera.PinholeCameraIntrinsic(shape[1], shape[0], *numbers)


def read_distances(volume, cells: int, truncation: float) -> np.ndarray:
    """Returns [cells, cells, cells] in metres. Open3D stores distances divided by the truncation."""
    return np.asarray(volume.extract_volume_tsdf())[:, 0].reshape(cells, cells, cells) * truncation
