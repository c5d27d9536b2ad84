"""Reads folders in the form of EuRoC's MAV datasets: a folder of sensors (``mav0``) is an episode, and each sensor a stream.

A sensor is a folder with ``data.csv``, read like other CSV logs with stamps in nanoseconds, and ``sensor.yaml``, its calibration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..errors import FileError
from .csv import Image, read_image, read_log, report_files, see_images, try_log
from .csv_begin import find_alike
from .files import look_through, natural
from .formats.csv import CsvOptions
from .formats.euroc import CALIBRATION, LOG, EurocOptions, find_sensors
from .images import Images, Kinds
from .rate import compare_rates, said_rates
from .recording import Frames, Notes, Recording, Rows, SourceError, Texts, naming
from .stamps import unit_in_name
from .yaml import read_yaml

# Stamps that on average are closer than this have another unit than nanoseconds: no sensor has so many rows a second.
_LEAST_PERIOD_NS = 50_000
# Matches the unit at the end of a column's name, such as "a_RS_S_x [m s^-2]".
_UNIT = re.compile(r"\s*\[(.*)\]$")


def read(source: Path, options: EurocOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every folder of sensors."""
    root, listing = look_through(source, notes)
    sensors = find_sensors(source, listing.files)
    if not sensors:
        raise FileError(f"{source}: expected folders with {LOG} and {CALIBRATION}, found none")
    sensors.sort(key=lambda folder: (natural(folder.parent), folder.parent, natural(folder)))
    calibrations: dict[Path, dict[str, Any]] = {}
    for folder in sensors:
        with notes.reading(str((folder / CALIBRATION).relative_to(root)), folder / CALIBRATION):
            calibrations[folder] = _read_calibration(folder / CALIBRATION)
    known = {folder / file for folder in sensors for file in (LOG, CALIBRATION)}
    for file in set(listing.files) - known:
        notes.count("others", file.suffix or file.name)
    reader = _Reader(root, sensors, options, notes, calibrations)
    notes.total = len({folder.parent for folder in sensors})
    by_recording: dict[str, dict[str, Any]] = {}
    recordings = []
    for parent, folders in groupby(sensors, key=lambda folder: folder.parent):
        name = parent.relative_to(root).as_posix() if parent != root else os.path.basename(os.path.abspath(source))
        recording_sensors = list(folders)
        by_recording[name] = {
            folder.name: calibrations[folder] for folder in recording_sensors if folder in calibrations
        }
        recordings.append((name, parent, recording_sensors))
    notes.tell(source, sensors=by_recording)
    for name, parent, recording_sensors in recordings:
        yield Recording(name, str(parent), {"name": name}, reader.read(recording_sensors))


def finish(source: Path, options: EurocOptions, notes: Notes) -> None:
    """Reports files that may have been cut off, and files that were not read."""
    report_files(notes, lambda suffix: "not of a sensor")


class _Reader:
    def __init__(
        self,
        root: Path,
        sensors: list[Path],
        options: EurocOptions,
        notes: Notes,
        calibrations: dict[Path, dict[str, Any]],
    ) -> None:
        self._root, self._options, self._notes = root, options, notes
        self._calibrations, self._common = calibrations, _find_common(calibrations, notes)
        self._kinds = Kinds()
        self._alike = find_alike([folder / LOG for folder in sensors], lambda file: file.parent.name)

    def read(self, folders: list[Path]) -> Iterator[tuple[str, Rows | Texts | Frames]]:
        for folder in folders:
            file = folder / LOG
            what = str(file.relative_to(self._root))
            with self._notes.reading(what, file):
                declared_unit = unit_in_name(_read_clock_name(file))
                options, alike = CsvOptions(time_unit=cast(Any, declared_unit or "ns")), self._alike[folder.name]
                read = partial(read_log, options=options, alike=alike)
                log = try_log(read, file, options, alike, what, folder.name, self._notes)
                layout, rows, time_ns, images, texts, assumed = log
                if not declared_unit:
                    _check_nanoseconds(file, time_ns)
                for subject, reason in assumed:
                    self._notes.assume(subject, reason, folder.name)
                calibration = self._common.get(folder.name, {})
                attributes = {"clock_source": "data.csv"} | ({"sensor": calibration} if calibration else {})
                declared = dict(said_rates(self._calibrations.get(folder, {}), f"{CALIBRATION}: "))
                compare_rates(f"clock of {folder.name}", time_ns, declared, self._notes)
                for column, reason in layout.left_out.items():
                    self._notes.leave_out(f"{folder.name}: {column}", reason)
                if rows is not None:
                    yield folder.name, _add_attributes(rows, attributes)
                for column, text in texts.items():
                    yield f"{folder.name}.{column}", replace(text, attributes={**attributes, **text.attributes})
                if images:
                    see_images(images, self._notes)
                    frames = self._read_camera(folder.name, what, file, time_ns, images, calibration)
                    if frames is not None:
                        yield folder.name, replace(frames, attributes=attributes)
                elif texts and rows is None:
                    kept = ", ".join(f"{folder.name}.{column}" for column in texts)
                    self._notes.leave_out(
                        folder.name,
                        f"no image that {what} names exists; its {len(time_ns)} rows are the text {kept}",
                    )
                elif rows is None:
                    self._notes.leave_out(what, "no column beside the clock")

    def _read_camera(
        self, name: str, what: str, file: Path, time_ns: np.ndarray, images: list[Image], calibration: dict[str, Any]
    ) -> Frames | None:
        read = partial(read_image, images)
        frames = Images(name, what, file, time_ns, "recorded", read).stored(self._options, self._kinds, self._notes)
        if frames is None or "intrinsics" not in calibration:
            return frames
        if not _is_pinhole(calibration):
            model = calibration.get("camera_model")
            why = f"of camera_model {model!r}: only fu, fv, cu, cv of pinhole are kept as a matrix"
            self._notes.leave_out(f"{name}: intrinsics", why)
            return frames
        if frames.resized is not None:
            self._notes.leave_out(f"{name}: intrinsics", "they are for the original size of the frames")
            return frames
        fu, fv, cu, cv = calibration["intrinsics"]
        return replace(frames, intrinsics=[[fu, 0.0, cu], [0.0, fv, cv], [0.0, 0.0, 1.0]])


def _read_clock_name(file: Path) -> str:
    """Returns the name of the first column, such as "timestamp [ns]"; without a header its first cell, a number."""
    with file.open("rb") as opened:
        return re.split("[,;\t]", opened.readline(4096).decode(errors="replace"))[0].strip("\ufeff#% \r\n")


def _check_nanoseconds(file: Path, time_ns: np.ndarray) -> None:
    """Raises if stamps without a declared unit cannot be nanoseconds."""
    rows, span_ns = len(time_ns), int(time_ns[-1]) - int(time_ns[0])
    if rows > 2 and 0 <= span_ns < (rows - 1) * _LEAST_PERIOD_NS:
        raise SourceError(
            f"{file}: its {rows} rows lie within {span_ns} ns, if its stamps are nanoseconds as EuRoC's are; if they are in another unit, "
            "name it in the header, as in #timestamp [us]"
        )


def _add_attributes(rows: Rows, attributes: dict[str, Any]) -> Rows:
    """Adds attributes, and moves the units from the names of features to them."""
    attributes = {**rows.attributes, **attributes}
    if rows.names is None:
        return replace(rows, attributes=attributes)
    matches = [_UNIT.search(name) for name in rows.names]
    if all(matches):
        attributes["units"] = [match[1] for match in matches if match]
    return replace(rows, names=[_UNIT.sub("", name) for name in rows.names], attributes=attributes)


# ---- calibration ----


def _read_calibration(file: Path) -> dict[str, Any]:
    """Returns the contents of sensor.yaml as JSON can hold them; matrices are lists of rows."""
    with naming(file):
        return {str(key): _as_json(value) for key, value in read_yaml(file).items()}


def _as_json(value: Any) -> Any:
    """Returns a value as JSON can hold it."""
    if isinstance(value, dict):
        if value.keys() == {"rows", "cols", "data"}:
            return np.array(value["data"], np.float64).reshape(value["rows"], value["cols"]).tolist()
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return value
    return value if isinstance(value, float) and np.isfinite(value) else str(value)


def _is_pinhole(calibration: dict[str, Any]) -> bool:
    """Whether a camera's intrinsics are fu, fv, cu, cv."""
    numbers = calibration.get("intrinsics")
    return (
        str(calibration.get("camera_model")).strip().lower() == "pinhole"
        and isinstance(numbers, list)
        and len(numbers) == 4
        and all(isinstance(number, int | float) for number in numbers)
    )


def _find_common(calibrations: dict[Path, dict[str, Any]], notes: Notes) -> dict[str, dict[str, Any]]:
    """Returns for each sensor the part of its calibration that is equal in all recordings, since a stream has one set of attributes."""
    common: dict[str, dict[str, Any]] = {}
    for folder, calibration in calibrations.items():
        known = common.setdefault(folder.name, calibration)
        common[folder.name] = {key: value for key, value in known.items() if calibration.get(key) == value}
    for folder, calibration in calibrations.items():
        for key in sorted(calibration.keys() - common[folder.name].keys()):
            notes.leave_out(f"{folder.name}: {key}", "differs between recordings; the provenance has the value of each")
    return common
