"""RoboCache: the GPU data engine for robot foundation models.

:func:`ingest`, or a :class:`Writer`, stores robot recordings in a cache once. A :class:`Loader` makes aligned training batches
of it, each with one kernel launch, or a few with cameras. :func:`doctor` finds faults in recordings. The kernels are plain
functions too:
:func:`resample_trajectories`, :func:`fuse_multimodal`, :func:`voxelize_pointcloud`, :func:`voxelize_sparse`,
:func:`voxel_downsample`, :func:`integrate_tsdf`, :func:`image_batch`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import _lib

if TYPE_CHECKING:
    from . import actions, live
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

# The names of each module. A name is imported when it is first used, so that `import robocache` is fast.
_NAMES = {
    "dataset": "Dataset open",
    "doctor": "DoctorWarning doctor",
    "episode_batches": "EpisodeLoader",
    "errors": "ArgumentError ArgumentTypeError DeviceError Error FileError FrameError MissingStreamError StaleError",
    "export": "export",
    "image_options": "ImageOptions",
    "ingest": "ingest",
    "installation": "check_installation num_threads set_num_threads",
    "lerobot": "LeRobotDataset",
    "loader": "Loader LoaderWarning",
    "norm_stats": "NormStatsWarning load_norm_stats merge_stats save_norm_stats",
    "ops.decode_jpeg": "decode_jpeg",
    "ops.fuse": "fuse_multimodal",
    "ops.image_batch": "image_batch",
    "ops.integrate_tsdf": "integrate_tsdf",
    "ops.resample": "check_times resample_trajectories",
    "ops.voxel_downsample": "voxel_downsample",
    "ops.voxelize": "voxelize_pointcloud",
    "ops.voxelize_sparse": "SparseVoxels voxelize_sparse",
    "options": "Anchors Memory Normalization Ranks Window",
    "sources": "Mixture Source",
    "spec": "Spec",
    "writer": "ReencodedWarning Writer",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF:
            globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
            return globals()[name]
        if not name.startswith("_"):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """A package whose functions `doctor`, `export` and `ingest` are not replaced when the subpackages of these names are
    imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _MODULE_OF:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the package as an import, since Ray and Dask pickle the modules that a script's functions use."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
