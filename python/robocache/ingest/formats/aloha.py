"""ALOHA's and ACT's HDF5, an episode a file: the sign and the options."""

from __future__ import annotations

from . import Format, RateOptions
from .hdf5 import finder

FORMAT = Format(
    "aloha",
    "folder of ALOHA or ACT episodes",
    "episode_*.hdf5",
    finder("aloha"),
    RateOptions,
    "robocache.ingest.hdf5.aloha",
    "pip install 'robocache[hdf5]'",
)
