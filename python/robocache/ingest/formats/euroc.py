"""Recognises EuRoC folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from . import CameraOptions, Format

# A folder with both files is a sensor.
LOG, CALIBRATION = "data.csv", "sensor.yaml"


@dataclass(frozen=True)
class EurocOptions(CameraOptions):
    """Adds no options, because a EuRoC folder describes itself."""

    title: ClassVar[str] = "EuRoC folder"


def find_sensors(source: Path, files: Sequence[Path]) -> list[Path]:
    """Returns the folders of sensors. `source` itself is not one, because it would be a CSV log."""
    calibrated = {file.parent for file in files if file.name == CALIBRATION}
    return [file.parent for file in files if file.name == LOG and file.parent in calibrated - {source}]


def _find_sensor(source: Path, files: Sequence[Path]) -> Path | None:
    sensors = find_sensors(source, files)
    return sensors[0] / CALIBRATION if sensors else None


FORMAT = Format(
    name="euroc",
    title="EuRoC folder",
    sign="mav0/*/sensor.yaml",
    find_sign=_find_sensor,
    options=EurocOptions,
    reader="robocache.ingest.euroc",
    install="pip install 'robocache[euroc]'",
    includes=("csv",),
)
