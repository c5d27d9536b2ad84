"""RoboCache: the GPU data engine for robot foundation models.

Robot recordings go in once (:func:`ingest`, or a :class:`Writer`); aligned training batches come out of a
:class:`Loader`, one kernel launch each. The same kernels are plain functions: :func:`resample_trajectories`.
"""

from __future__ import annotations

from .errors import ArgumentError, ArgumentTypeError, DeviceError, Error, FileError
from .installation import check_installation, num_threads, set_num_threads
from .ops import check_times, resample_trajectories

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "DeviceError",
    "Error",
    "FileError",
    "check_installation",
    "check_times",
    "num_threads",
    "resample_trajectories",
    "set_num_threads",
]
