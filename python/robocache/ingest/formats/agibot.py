"""Recognises AgiBot World datasets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from . import Format, RateOptions, VideoOptions
from .hdf5 import PROPRIO, finder


@dataclass(frozen=True)
class AgibotOptions(VideoOptions, RateOptions):
    """The stamps of simulated episodes may be missing."""

    title: ClassVar[str] = "AgiBot World"


FORMAT = Format(
    "agibot",
    "AgiBot World",
    PROPRIO,
    finder("agibot"),
    AgibotOptions,
    "robocache.ingest.hdf5.agibot",
    "pip install 'robocache[hdf5]'",
)
