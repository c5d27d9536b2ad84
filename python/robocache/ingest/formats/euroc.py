"""EuRoC's folders: the sign and the options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from . import CameraOptions, Format

# A sensor is a folder with both.
LOG, CALIBRATION = "data.csv", "sensor.yaml"


@dataclass(frozen=True)
class EurocOptions(CameraOptions):
    """A EuRoC folder says everything itself."""

    title: ClassVar[str] = "EuRoC folder"


def find_sensors(source: Path, files: Sequence[Path]) -> list[Path]:
    """The folders of sensors; `source` itself is none, it is a CSV log then."""
    calibrated = {file.parent for file in files if file.name == CALIBRATION}
    return [file.parent for file in files if file.name == LOG and file.parent in calibrated - {source}]


def _find_sensor(source: Path, files: Sequence[Path]) -> Path | None:
    sensors = find_sensors(source, files)
    return sensors[0] / CALIBRATION if sensors else None


FORMAT = Format(
    "euroc",
    "EuRoC folder",
    "mav0/*/sensor.yaml",
    _find_sensor,
    EurocOptions,
    "robocache.ingest.euroc",
    "pip install 'robocache[euroc]'",
    includes=("csv",),
)
