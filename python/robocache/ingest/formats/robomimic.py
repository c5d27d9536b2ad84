"""Recognises robomimic's HDF5 files, which MimicGen and Isaac Lab write too."""

from __future__ import annotations

from . import Format, RateOptions
from .hdf5 import finder

FORMAT = Format(
    "robomimic",
    "robomimic dataset (MimicGen's and Isaac Lab's too)",
    "*.hdf5 of demos",
    finder("robomimic"),
    RateOptions,
    "robocache.ingest.hdf5.robomimic",
    "pip install 'robocache[hdf5]'",
)
