"""Robot files in, a cache out: :func:`ingest` finds the format, and writes what that format's reader yields.

- `recording` is the contract: what a reader yields and notes. `registry` knows the formats; `formats` describes each
  without its reader: a file of that name here, or in `messages` (MCAP, bags), `hdf5` or `rlds`, imported when needed.
- `driver` writes the rows of readers: by a `mapping`, in an order that `clocks` checks. `shards` does it in parts, `append` to a
  cache that exists.
- Shared by readers: `files` (what may be opened), `options`, `rate` (rows without a clock), `images`, `video` (stamps
  and frames, with `lerobot_videos` and `hdf5.droid_videos`), `npz`, `yaml`;
  `zarr_store`, `cloud_files` and `lerobot_tables` are files of one format.

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
