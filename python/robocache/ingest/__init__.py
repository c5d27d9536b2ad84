"""Robot files in, a cache out: :func:`ingest` finds the format, and writes what that format's reader yields.

`registry` knows the formats, `recording` says what a reader yields and notes, each format's module reads its files, and
`driver` writes what they yield.
"""

from __future__ import annotations

from .driver import IngestReport, Preview, ingest, preview
from .recording import Omission, SourceError
from .registry import FORMATS
from .shards import convert, load_plan, merge, plan

__all__ = [
    "FORMATS",
    "IngestReport",
    "Omission",
    "Preview",
    "SourceError",
    "convert",
    "ingest",
    "load_plan",
    "merge",
    "plan",
    "preview",
]
