"""Reads JSON files beside HDF5 files, and finds the lists of stamps beside videos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..files import read_whole
from ..recording import SourceError


def read_json(path: Path) -> Any:
    """Returns the contents of a JSON file; NaN and infinities, which JSON does not have, become None.

    Raises:
        SourceError: the file does not exist, or is no JSON.
    """
    text = read_whole(path)
    try:
        content = json.loads(text.decode("utf-8-sig"), parse_constant=lambda _: None)
        json.dumps(content, ensure_ascii=False).encode()  # raises if a text has half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON: {error}") from error
    return content


def find_stamps(video: Path) -> Path:
    """Returns the path at which DROID keeps a camera's list of stamps; there may be no such file."""
    return video.with_name(video.stem.removesuffix("-stereo") + "_timestamps.json")
