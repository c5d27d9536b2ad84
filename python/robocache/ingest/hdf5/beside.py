"""What lies beside HDF5 files: JSON and the videos of cameras."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ...errors import Error
from ..files import check_file
from ..formats import VideoOptions
from ..images import Kinds
from ..recording import Notes, SourceError

_MOST_JSON = 1 << 28


def read_json(path: Path) -> Any:
    """What a JSON file says; NaN and infinities, which JSON does not have, are None.

    Raises:
        SourceError: no such file, or not JSON.
    """
    check_file(path)
    if path.stat().st_size > _MOST_JSON:
        raise SourceError(f"{path}: expected at most {_MOST_JSON} bytes, got {path.stat().st_size}")
    try:
        said = json.loads(path.read_bytes().decode("utf-8-sig"), parse_constant=lambda _: None)
        json.dumps(said, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON: {error}") from error
    return said


def open_videos(
    root: Path, has_videos: bool, options: VideoOptions, kinds: Kinds, notes: Notes
) -> AbstractContextManager[Any]:
    """A decoder of the videos; None where there are none, or none are wanted."""
    if not options.video or not has_videos:
        return nullcontext()
    try:
        from .droid_videos import Videos
    except ImportError as error:
        if (error.name or "").startswith("robocache"):
            raise
        raise Error(f"{root}: {error}; pip install av, or leave cameras out with video=False (--no-video)") from error
    return Videos(options, kinds, notes)
