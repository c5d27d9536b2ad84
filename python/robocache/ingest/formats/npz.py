"""Recognises NumPy's .npz files that hold a motion or an episode each."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from . import Format, RateOptions, has_suffix

# Names of scalar arrays that give the rate in Hz, or the period in seconds.
RATES = ("fps", "framerate", "frame_rate", "mocap_framerate", "mocap_frame_rate")
PERIODS = ("dt", "timestep")
# At most this many files are opened to find a rate.
_OPENED = 4


def is_npz(file: Path) -> bool:
    """Whether a file is named as .npz and is not hidden."""
    return has_suffix(file, ".npz")


def _find_motion(source: Path, files: Sequence[Path]) -> Path | None:
    candidates = [file for file in files if is_npz(file)][:_OPENED]
    return next((file for file in candidates if _has_rate(file)), None)


def _has_rate(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False
    return not names.isdisjoint((*RATES, *PERIODS))


FORMAT = Format(
    name="npz",
    title="motions and episodes, a .npz each",
    sign="*.npz with an array fps or dt",
    find_sign=_find_motion,
    options=RateOptions,
    reader="robocache.ingest.npz_files",
    install="pip install robocache",
)
