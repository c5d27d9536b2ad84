"""Recognises RoboTwin's HDF5 files, one episode a file."""

from __future__ import annotations

from . import Format, RateOptions
from .hdf5 import finder

FORMAT = Format(
    "robotwin",
    "folder of RoboTwin episodes",
    "episode*.hdf5 with joint_action",
    finder("robotwin"),
    RateOptions,
    "robocache.ingest.hdf5.robotwin",
    "pip install 'robocache[hdf5]'",
)
