"""Reads Zarr stores of episodes, as diffusion_policy's ReplayBuffer and UMI write them.

`data/<key>` are arrays ``[rows, ...]`` of the rows of all episodes, one after another; `meta/episode_ends` has each episode's end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import FileError
from ..feature_names import declares, declaring, may_name, own_units
from .declared import (
    FLAGS,
    PACKING,
    UNSIGNED,
    Depth,
    features_of,
    is_number,
    may_say_colors,
    say_colors,
    say_unapplied,
    unpacked,
)
from .files import list_files
from .formats.zarr import ZarrOptions, is_store
from .images import is_image_of_16_bits, store_pixels
from .methods import VECTOR_POSE
from .rate import SECONDS, compare_rates, exact_ns, find_rate, nominal_time_ns, refuse_no_seconds, said_rates
from .recording import Notes, Recording, Rows, Samples, SourceError, Texts, naming
from .zarr_store import Array, Contents, Store, Zip, find_contents, open_array, open_store, parts, read_json

_DATA, _META = "data/", "meta/"
# The attribute that xarray writes beside each array. Its arrays have _FillValue not as an attribute, but as zarr's fill_value.
_XARRAY = "_ARRAY_DIMENSIONS"
_ENDS = "meta/episode_ends"
# The columns that the reader and the cache add to the episodes table.
_COLUMNS = {"source_episode_index", "episode_index", "start_ns", "end_ns"}
_BYTES_AT_ONCE = 2**25
# The most feature names in a list of `meta`.
_MOST_NAMES = 4096
# The rate of this many first rows is compared with the declared one.
_CLOCK_ROWS = 1000
# So many first rows show whether an array of floats is a camera.
_CAMERA_ROWS = 16
# No more than int64 nanoseconds can hold.
_LARGEST_S = 9.2e9


def read(source: Path, options: ZarrOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every episode."""
    root = _find_root(source, notes)
    with closing(open_store(root)) as store:
        ends = _read_ends(store)
        episodes = list(zip([0, *ends.tolist()[:-1]], ends.tolist(), strict=True))
        attributes = _try_json(store, ".zattrs", notes)
        contents = find_contents(store, _try_json(store, ".zmetadata", notes))
        _report_losses(store, contents, notes)
        arrays = _open_arrays(store, contents.arrays, int(ends[-1]), options, notes)
        columns = _read_columns(store, contents.arrays, len(ends), notes)
        shared_columns = declaring({**attributes, **_try_json(store, "data/.zattrs", notes)})
        shared_columns |= _read_names(store, contents.arrays, len(ends), notes)
        clock = _find_clock(arrays, root, attributes, options, notes)
        if clock.stamps is not None:
            arrays.remove(clock.stamps)
            notes.leave_out(clock.stamps.key, "the clock, time_ns of every stream")
        if isinstance(store, Zip) and store.repeated:
            notes.leave_out(f"{root.name}: {store.repeated} members", "written anew behind them, as zarr does")
        notes.tell(root, attributes=attributes, rate_hz=clock.rate_hz, episodes=len(ends), rows=int(ends[-1]))
        cameras = [array.key for array in arrays if _is_camera_of_floats(array, root)]
        notes.total = len(ends)
        for number, (start, stop) in enumerate(episodes):
            what, where = f"episode {number}", f"{root}: episode {number}"
            metadata = {
                **shared_columns,
                "source_episode_index": number,
                **{name: column[number] for name, column in columns.items()},
            }
            streams = _read_episode(what, arrays, start, stop, clock, cameras, options, notes)
            yield Recording(what, where, metadata, streams)


def _try_json(store: Store, key: str, notes: Notes) -> dict[str, Any]:
    """Reads a JSON object. Returns {} if the file is missing or skipped."""
    content: dict[str, Any] = {}
    with notes.reading(key, store.where(key)):
        content = read_json(store, key) or {}
    return content


def _find_root(source: Path, notes: Notes) -> Path:
    """Returns the store's folder or zip file."""
    if not source.is_dir():
        return source
    listing = list_files(source)
    listing.note(source, notes)
    roots = {file if file.suffix.lower() == ".zip" else file.parents[2] for file in listing.files if is_store(file)}
    if len(roots) != 1:
        advice = "; ingest one of them: " + ", ".join(map(str, sorted(roots))) if roots else ""
        raise FileError(f"{source}: expected one zarr store with {_ENDS}{advice}")
    (root,) = roots
    outside = sorted({file.relative_to(source).parts[0] for file in listing.files if root not in (file, *file.parents)})
    for name in outside:
        notes.leave_out(name, "not in the store")
    return root


def _read_ends(store: Store) -> np.ndarray:
    """Returns the number of rows up to the end of each episode, int64 ``[episodes]``."""
    try:
        if store.read(f"{_ENDS}/zarr.json", 2**24) is not None:
            raise SourceError(
                f"{store.where(_ENDS)}: a store of zarr v3, expected v2, as diffusion_policy and UMI write it"
            )
        array = open_array(store, _ENDS, fills=False)
        if isinstance(array, str) or len(array.shape) != 1 or array.dtype.kind not in "iu":
            raise SourceError(f"{store.where(_ENDS)}: expected whole numbers [episodes]")
        if not 1 <= array.shape[0] <= 2**24:
            raise SourceError(f"{array.where}: expected 1 to {2**24} episodes, got {array.shape[0]}")
        ends = array.rows(0, array.shape[0])
        if ends.max() > 2**62:
            raise SourceError(f"{array.where}: expected numbers of rows, got {ends.max()}")
        ends = ends.astype(np.int64)
    except SourceError as error:
        raise FileError(str(error)) from error  # no other file could be read instead
    decreasing = np.flatnonzero(np.diff(ends, prepend=0) < 0)
    if len(decreasing):
        row = decreasing[0]
        raise FileError(f"{array.where}: row {row}: {ends[row]} is before the end of the episode before it")
    return ends


def _report_losses(store: Store, contents: Contents, notes: Notes) -> None:
    for key, why in contents.lost.items():
        notes.skip(key, SourceError(f"{store.where(key)}: {why}"))
    for folder, count in contents.others.items():
        notes.leave_out(f"{folder or 'the store'}: {count} file{'s' * (count > 1)}", "no chunk of an array by name")


def _open_arrays(store: Store, keys: list[str], rows: int, options: ZarrOptions, notes: Notes) -> list[Array]:
    """Returns the arrays in `data` that become streams, and reports the others."""
    arrays: list[Array] = []
    for key in keys:
        if not key.startswith(_DATA):
            if not key.startswith(_META):
                notes.leave_out(key, "neither in data nor in meta")
            continue
        with notes.reading(key, store.where(key)):
            array = open_array(store, key, options.missing_chunks == "fill")
            if isinstance(array, str):
                notes.leave_out(key, array)
                continue
            array = replace(array, attributes=_read_attributes(store, array, notes))
            if array.shape[0] < rows:
                raise SourceError(f"{array.where}: expected {rows} rows, by {_ENDS}, got {array.shape[0]}")
            if array.shape[0] > rows:
                message = f"{array.where}: {array.shape[0]} rows, of which {_ENDS} gives {rows} to episodes"
                notes.skip(f"{key}: rows {rows}-{array.shape[0] - 1}", SourceError(message))
            arrays.append(array)
    return arrays


def _read_attributes(store: Store, array: Array, notes: Notes) -> dict[str, Any]:
    """Returns the attributes of an array whose meaning is known; reports the others."""
    attributes = read_json(store, f"{array.key}/.zattrs") or {}
    known = {
        name: value
        for name, value in attributes.items()
        if declares(name) or may_say_colors(name) or name in (*PACKING, *FLAGS, UNSIGNED)
    }
    if others := sorted(attributes.keys() - known.keys()):
        notes.leave_out(f"{array.key}: attributes", ", ".join(others))
    if _XARRAY in attributes and is_number(array.declared_fill) and array.dtype.kind in "iuf":
        if array.declared_fill:
            known.setdefault("_FillValue", array.declared_fill)
        elif "_FillValue" not in known:
            why = "kept, though xarray takes it for missing, as the fill_value in .zarray"
            notes.assume(f"the number 0 in {_stream_name(array)}", why, _stream_name(array))
    return known


def _stream_name(array: Array) -> str:
    return array.key.removeprefix(_DATA)


def _read_columns(store: Store, keys: list[str], episodes: int, notes: Notes) -> dict[str, list[Any]]:
    """Returns the arrays in `meta`, except the episodes' ends, as columns."""
    columns: dict[str, list[Any]] = {}
    for key in keys:
        if not key.startswith(_META) or key == _ENDS:
            continue
        with notes.reading(key, store.where(key)):
            array = open_array(store, key, fills=False)
            if _lists_names(key, array, episodes):
                continue
            if not isinstance(array, str) and array.shape != (episodes,):
                array = f"expected one value for each episode, got {list(array.shape)}"
            if isinstance(array, str):
                notes.leave_out(key, array)
                continue
            if key.removeprefix(_META) in _COLUMNS:
                notes.leave_out(key, "the episodes table has a column of that name")
                continue
            attributes = _read_attributes(store, array, notes)
            cells, _ = unpacked(key.removeprefix(_META), array.rows(0, episodes), attributes, notes)
            if cells.dtype.kind == "f":
                columns[key.removeprefix(_META)] = [float(cell) if np.isfinite(cell) else None for cell in cells]
            else:
                columns[key.removeprefix(_META)] = _to_texts(cells) if cells.dtype.kind in "US" else cells.tolist()
    return columns


def _lists_names(key: str, array: Array | str, episodes: int) -> bool:
    """Whether an array in `meta` is a list of feature names for all episodes."""
    is_list = not isinstance(array, str) and array.dtype.kind in "US" and len(array.shape) == 1
    return is_list and may_name(key) and array.shape != (episodes,)  # type: ignore[union-attr]


def _read_names(store: Store, keys: list[str], episodes: int, notes: Notes) -> dict[str, list[str]]:
    """Returns the lists of feature names in `meta`."""
    names: dict[str, list[str]] = {}
    for key in keys:
        if not key.startswith(_META) or not may_name(key):
            continue
        with notes.reading(key, store.where(key)):
            array = open_array(store, key, fills=False)
            if not isinstance(array, str) and _lists_names(key, array, episodes) and 0 < array.shape[0] <= _MOST_NAMES:
                names[key.removeprefix(_META)] = _to_texts(array.rows(0, array.shape[0]))
    return names


# ---- the clock ----


@dataclass(frozen=True)
class _Clock:
    """The clock of all streams: an array of seconds, or a rate."""

    stamps: Array | None
    rate_hz: float | None

    @property
    def kind(self) -> Literal["recorded", "nominal"]:
        return "nominal" if self.stamps is None else "recorded"

    def time_ns(self, start: int, stop: int, begin: int) -> np.ndarray:
        """Returns the times of these rows, int64 nanoseconds. Their episode begins at row `begin`."""
        if self.stamps is None:
            assert self.rate_hz is not None
            return nominal_time_ns(start - begin, stop - begin, self.rate_hz)
        seconds = self.stamps.rows(start, stop).reshape(-1)
        bad = np.flatnonzero(~(np.abs(seconds) < _LARGEST_S))
        if len(bad):
            raise SourceError(f"{self.stamps.where}: row {start + bad[0]} is {seconds[bad[0]]}, expected seconds")
        refuse_no_seconds(seconds, self.stamps.where)
        return exact_ns(seconds, 10**9)


def _find_clock(
    arrays: list[Array], root: Path, attributes: dict[str, Any], options: ZarrOptions, notes: Notes
) -> _Clock:
    """Returns the user's rate; without it `data/timestamp`; without that the rate in the root's attributes."""
    if options.rate_hz is None:
        for array in arrays:
            if array.key == "data/timestamp" and array.dtype.str[1:] == "f8" and array.shape[1:] in ((), (1,)):
                units = own_units(array.attributes, 1).get("units")
                if units and not SECONDS.match(str(units)):
                    hint = "rate_hz (--rate-hz) takes rows at a rate instead"
                    raise FileError(f"{array.where}: attribute units: expected seconds, got {units!r}; {hint}")
                notes.assume("clock 'data/timestamp'", f"seconds, by its {'units' if units else 'name'}")
                seconds = array.rows(0, min(_CLOCK_ROWS, array.shape[0])).reshape(-1)
                rates = dict(said_rates(attributes, "attribute "))
                try:
                    compare_rates("clock 'data/timestamp'", seconds * 1e9, rates, notes, root)
                except SourceError as error:
                    raise FileError(str(error)) from error
                return _Clock(array, None)
    why = "no data/timestamp (float64, seconds) is its clock, and no attribute of the root says a rate"
    try:
        return _Clock(None, find_rate(options.rate_hz, root, why, dict(said_rates(attributes, "attribute ")), notes)[0])
    except SourceError as error:
        raise FileError(str(error)) from error  # all episodes need the clock


# ---- an episode ----


def _read_episode(
    what: str,
    arrays: list[Array],
    start: int,
    stop: int,
    clock: _Clock,
    cameras: list[str],
    options: ZarrOptions,
    notes: Notes,
) -> Iterator[tuple[str, Samples]]:
    """Yields an episode's streams, large ones in parts. The rows of a part that cannot be read are skipped."""
    # Raises before any stream is written if a stamp cannot be read.
    for first, last in parts(start, stop, 8, _BYTES_AT_ONCE):
        clock.time_ns(first, last, start)
    # In data of diffusion_policy's real robots, actions are poses with a rotation vector, as robot_eef_pose is.
    has_poses = any(array.key == "data/robot_eef_pose" for array in arrays)
    for array in arrays:
        is_pose = has_poses and array.key == "data/action" and array.shape[1:] == (6,)
        for first, last in parts(start, stop, array.row_bytes, _BYTES_AT_ONCE):
            with notes.reading(f"{what}: {_stream_name(array)}: rows {first - start}-{last - 1 - start}", array.where):
                rows, time_ns = array.rows(first, last), clock.time_ns(first, last, start)
                samples = _make_samples(array, rows, first, time_ns, clock.kind, cameras, options, notes)
                if is_pose:
                    samples = replace(samples, attributes={**samples.attributes, "methods": VECTOR_POSE})
                yield _stream_name(array), samples


def _make_samples(
    array: Array,
    rows: np.ndarray,
    first: int,
    time_ns: np.ndarray,
    clock: Literal["recorded", "nominal"],
    cameras: list[str],
    options: ZarrOptions,
    notes: Notes,
) -> Samples:
    """Returns the samples of rows, the first of which is row `first` of the array."""
    if rows.dtype.kind in "US":
        return Texts(time_ns, _to_texts(rows.reshape(-1)), clock)
    if array.key in cameras:
        pixels = _to_pixels(rows)
        if pixels is None:
            bad = first + next(row for row in range(len(rows)) if _to_pixels(rows[row]) is None)
            raise SourceError(f"{array.where}: row {bad}: expected whole numbers 0 to 255, as in the first rows")
        rows = pixels
    name = _stream_name(array)
    is_image = rows.ndim == 4 and (rows.dtype.name, rows.shape[3]) in (("uint8", 3), ("uint16", 1))
    if is_image and (rows.dtype == np.uint8 or is_image_of_16_bits(name, rows.shape[1:3])):
        say_colors([name], array.attributes, notes)
        if rows.dtype == np.uint8:
            say_unapplied(name, array.attributes, "images of 8 bits a channel", notes)
            return store_pixels(name, time_ns, rows, options, clock, notes)
        depth = Depth.of(name, rows.dtype, array.attributes, (), array.where, notes)
        images = store_pixels(name, time_ns, depth.pixels(name, rows, notes), options, clock, notes)
        return images if depth.to_metres else replace(images, unit_m=depth.unit_m)
    names, units = features_of(name, rows.shape[1:], array.attributes, (), notes)
    values, more = unpacked(name, rows, array.attributes, notes)
    return Rows(time_ns, values, names, clock, units | more)


def _to_texts(cells: np.ndarray) -> list[str]:
    return [cell.decode(errors="backslashreplace") if isinstance(cell, bytes) else cell for cell in cells.tolist()]


def _is_camera_of_floats(array: Array, root: Path) -> bool:
    """Whether an array's rows are pictures that are stored as floats, whole numbers from 0 to 255, as in PushT."""
    if array.dtype.kind != "f" or len(array.shape) != 4 or array.shape[3] != 3 or not array.shape[0]:
        return False
    try:
        with naming(root):
            rows = array.rows(0, min(_CAMERA_ROWS, array.shape[0]))
    except SourceError:  # reported when the episode is read
        return False
    return _to_pixels(rows) is not None and bool(rows.max() > 1)


def _to_pixels(rows: np.ndarray) -> np.ndarray | None:
    """Returns the rows as uint8; None if uint8 does not hold them exactly."""
    if not (rows.min(initial=0) >= 0 and rows.max(initial=0) <= 255):  # NaN does not pass either
        return None
    pixels = rows.astype(np.uint8)
    return pixels if np.array_equal(pixels, rows) else None
