"""Reads JSON files beside HDF5 files, and finds the lists of stamps beside videos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..files import check_file
from ..recording import SourceError

_MOST_JSON = 1 << 28


def read_json(path: Path) -> Any:
    """Returns the contents of a JSON file; NaN and infinities, which JSON does not have, become None.

    Raises:
        SourceError: the file does not exist, or is no JSON.
    """
    check_file(path)
    if path.stat().st_size > _MOST_JSON:
        raise SourceError(f"{path}: expected at most {_MOST_JSON} bytes, got {path.stat().st_size}")
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"), parse_constant=lambda _: None)
        json.dumps(content, ensure_ascii=False).encode()  # raises if a text has half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON: {error}") from error
    return content


def find_stamps(video: Path) -> Path:
    """Returns the path at which DROID keeps a camera's list of stamps; there may be no such file."""
    return video.with_name(video.stem.removesuffix("-stereo") + "_timestamps.json")
