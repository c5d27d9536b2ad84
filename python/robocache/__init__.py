"""RoboCache: the GPU data engine for robot foundation models.

Robot recordings go in once (:func:`ingest`, or a :class:`Writer`); aligned training batches come out of a
:class:`Loader`, one kernel launch each; :func:`doctor` says what is wrong with them. The same kernels are plain functions: :func:`resample_trajectories`,
:func:`fuse_multimodal`, :func:`voxelize_pointcloud`, :func:`voxelize_sparse`, :func:`voxel_downsample`,
:func:`integrate_tsdf`, :func:`image_batch`.
"""

from __future__ import annotations

from . import _lib, actions, live
from .dataset import Dataset, open
from .doctor import DoctorWarning, doctor
from .episode_batches import EpisodeLoader
from .errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    Error,
    FileError,
    FrameError,
    MissingStreamError,
    StaleError,
)
from .export import export
from .image_options import ImageOptions
from .ingest import ingest
from .installation import check_installation, num_threads, set_num_threads
from .lerobot import LeRobotDataset
from .loader import Loader, LoaderWarning
from .norm_stats import NormStatsWarning, load_norm_stats, merge_stats, save_norm_stats
from .ops.decode_jpeg import decode_jpeg
from .ops.fuse import fuse_multimodal
from .ops.image_batch import image_batch
from .ops.integrate_tsdf import integrate_tsdf
from .ops.resample import check_times, resample_trajectories
from .ops.voxel_downsample import voxel_downsample
from .ops.voxelize import voxelize_pointcloud
from .ops.voxelize_sparse import SparseVoxels, voxelize_sparse
from .options import Anchors, Memory, Normalization, Ranks, Window
from .sources import Mixture, Source
from .spec import Spec
from .writer import ReencodedWarning, Writer

__all__ = [
    "Anchors",
    "ArgumentError",
    "ArgumentTypeError",
    "Dataset",
    "DeviceError",
    "DoctorWarning",
    "EpisodeLoader",
    "Error",
    "FileError",
    "FrameError",
    "ImageOptions",
    "LeRobotDataset",
    "Loader",
    "LoaderWarning",
    "Memory",
    "MissingStreamError",
    "Mixture",
    "NormStatsWarning",
    "Normalization",
    "Ranks",
    "ReencodedWarning",
    "Source",
    "SparseVoxels",
    "Spec",
    "StaleError",
    "Window",
    "Writer",
    "actions",
    "check_installation",
    "check_times",
    "decode_jpeg",
    "doctor",
    "export",
    "fuse_multimodal",
    "image_batch",
    "ingest",
    "integrate_tsdf",
    "live",
    "load_norm_stats",
    "merge_stats",
    "num_threads",
    "open",
    "resample_trajectories",
    "save_norm_stats",
    "set_num_threads",
    "voxel_downsample",
    "voxelize_pointcloud",
    "voxelize_sparse",
]

__version__: str = _lib.function("version")()
