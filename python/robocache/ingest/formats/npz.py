"""Motions and episodes as NumPy's .npz files, one each: the sign and the options."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from . import Format, RateOptions

# Arrays of one number that say the rate in Hz, and those that say the period in seconds.
RATES = ("fps", "framerate", "frame_rate", "mocap_framerate", "mocap_frame_rate")
PERIODS = ("dt", "timestep")
# Files that are opened in search of one that says its rate.
_LOOKED_AT = 4


def is_npz(file: Path) -> bool:
    """Whether a file is taken for one, by its name."""
    return file.suffix.lower() == ".npz" and not file.name.startswith(".")


def _find_motion(source: Path, files: Sequence[Path]) -> Path | None:
    candidates = [file for file in files if is_npz(file)][:_LOOKED_AT]
    return next((file for file in candidates if _says_its_rate(file)), None)


def _says_its_rate(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False
    return not names.isdisjoint((*RATES, *PERIODS))


FORMAT = Format(
    "npz",
    "motions and episodes, a .npz each",
    "*.npz with an array fps or dt",
    _find_motion,
    RateOptions,
    "robocache.ingest.npz_files",
    "pip install robocache",
)
