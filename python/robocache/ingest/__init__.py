"""Ingest makes caches of robot files: :func:`ingest` finds the format and writes the rows that the format's reader yields.

- `recording` is the contract: the types that a reader yields, and its notes. `registry` lists the formats. `formats` describes each
format without its reader, which is a file of that name here, or in `messages` (MCAP, bags), `hdf5` or `rlds`.
- `driver` writes the rows of readers: it applies a `mapping`, and `clocks` checks the order of stamps. `shards` ingests in parts,
`append` into a cache that exists.
- Shared by readers: `files` (which files may be opened), `options`, `rate` (rows without a clock), `images`, `video` (stamps
and frames, with `lerobot_videos` and `hdf5.droid_videos`), `npz`, `yaml`. `zarr_store`, `cloud_files` and `lerobot_tables` each
serve one format.

This module exports the names that a format of another package needs.
"""

from __future__ import annotations

from .driver import IngestReport, Preview, ingest, preview
from .files import check_file, list_files
from .formats import CameraOptions, Format, RateOptions
from .options import option
from .rate import find_rate, nominal_time_ns
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
    "find_rate",
    "ingest",
    "list_files",
    "load_plan",
    "merge",
    "nominal_time_ns",
    "option",
    "plan",
    "preview",
]
