"""DROID's raw recordings, a folder an episode: the sign and the options."""

from __future__ import annotations

from . import Format, VideoOptions
from .hdf5 import TRAJECTORY, finder

FORMAT = Format(
    "droid",
    "folder of raw DROID episodes",
    TRAJECTORY,
    finder("droid"),
    VideoOptions,
    "robocache.ingest.hdf5.droid",
    "pip install 'robocache[hdf5]'",
)
