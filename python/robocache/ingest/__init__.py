"""Robot files in, a cache out: :func:`ingest` finds the format, and writes what that format's reader yields.

`registry` knows the formats, `recording` says what a reader yields and notes, each format's module reads its files, `driver`
writes what they yield, and `shards` shares that out. What a format of another package needs is exported here.
"""

from __future__ import annotations

from .driver import IngestReport, Preview, ingest, preview
from .files import check_file, list_files
from .formats import CameraOptions, Format, RateOptions
from .options import option
from .recording import Frames, Notes, Omission, Ragged, Recording, Rows, ShardsError, SourceError, Texts
from .registry import FORMATS
from .shards import Plan, convert, load_plan, merge, plan

__all__ = [
    "FORMATS",
    "CameraOptions",
    "Format",
    "Frames",
    "IngestReport",
    "Notes",
    "Omission",
    "Plan",
    "Preview",
    "Ragged",
    "RateOptions",
    "Recording",
    "Rows",
    "ShardsError",
    "SourceError",
    "Texts",
    "check_file",
    "convert",
    "ingest",
    "list_files",
    "load_plan",
    "merge",
    "option",
    "plan",
    "preview",
]
