"""Reads LeRobot datasets v2.0, v2.1 and v3.0: Parquet tables of frames, JSON or Parquet tables of episodes and tasks.

A row belongs to the episode that its `episode_index` names, in whatever file it is; the path templates of info.json are not
used. The tables in meta/ declare the episodes and the numbers of their rows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, chain, compress, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .._printable import ranges
from ..errors import Error
from ..feature_words import as_flag
from ..tasks import NO_TEXT
from .depth import DepthCodes
from .files import Ahead, fingerprint, is_readable, list_files, read_whole
from .formats import CAMERA_OPTIONS
from .formats.lerobot import INDEX_COLUMNS, LeRobotOptions, folder_names
from .images import DepthImages, Images, Kinds
from .lerobot_tables import (
    Lost,
    NullError,
    as_scalars,
    count_nulls,
    find_videos,
    is_parquet,
    load_info,
    load_meta,
    open_parquet,
    read_columns,
    read_kinds,
    to_numpy,
    video_name,
    with_nan,
)
from .methods import declares_whole
from .rate import compare_rates
from .recording import Frames, Notes, Recording, Rows, SourceError, Texts, WiderError, naming

if TYPE_CHECKING:
    from .lerobot_videos import Videos

# Columns that become no streams, and where the cache has their content.
_BOOKKEEPING = {
    "timestamp": "the clock, time_ns of every stream",
    "frame_index": "the row's number in its episode",
    "episode_index": "the episode, source_episode_index of the episodes table",
    "index": "the row's number in the source",
}
# Arrow's names of the types of columns that become streams.
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_FLOATS = {"halffloat", "float", "double"}
_NUMERIC = {"bool", *_FLOATS, *_INTEGERS}
_TEXT = {"string", "large_string"}
# Columns whose numbers stand for texts, and the tables in meta/ with these texts.
_NUMBERED = {"task_index": "tasks", "subtask_index": "subtasks"}
# The beginning of the names of GR00T's columns of annotations, which have numbers of tasks.
_ANNOTATIONS = "annotation."
# Columns of lists of texts. The first has in each row all texts of the episode with their stamps, the second the events of the row.
_LANGUAGE = ("language_persistent", "language_events")
# Stamps are nominal if they differ from frame_index / fps by at most this share. Rounding to float32 makes an error of 6e-8, summing a
# truncated 1/fps one of up to 9.6e-7. A real clock jitters by more than this in an episode's first frames.
_NOMINAL_TOLERANCE = 2e-6
# The prefix under which rows whose number has no text are counted, by "NUMBER EPISODE".
_WITHOUT_TEXT = "without text: "
# The limit of stamps; int64 nanoseconds hold slightly more.
_LARGEST_S = 9.2e9


def read(source: Path, options: LeRobotOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every episode with its features of numbers and of text, and its cameras."""
    info = load_info(source)
    features = info.pop("features")
    for folder in folder_names(options.video):
        list_files(source / folder).refuse_outside(source, notes)
    notes.tell(source / "meta" / "info.json", **info)
    notes.tell(
        source,
        fingerprint=fingerprint(source, *folder_names(options.video)),
        index_columns=options.index_columns,
        video=options.video,
        frames=options.frames,
        images={name: getattr(options, name) for name in CAMERA_OPTIONS},
    )
    tables, episodes = load_meta(source, notes)
    columns, spans = _survey(source, notes, episodes)
    index_columns = [name for name in INDEX_COLUMNS if name in columns and options.index_columns]
    numbers = [name for name, kind in columns.items() if kind in _NUMERIC and name not in _BOOKKEEPING] + index_columns
    texts = [name for name, kind in columns.items() if kind in _TEXT and name not in _BOOKKEEPING]
    language = [name for name in _LANGUAGE if columns.get(name, "").startswith("struct")]
    with_rows = {span.episode: episodes.get(span.episode, {}) for span in spans}
    cameras = _find_cameras(source, features, with_rows)
    dtypes = {name: camera["dtype"] for name, camera in cameras.items() if options.video}
    images = [name for name, kind in dtypes.items() if kind == "image" and columns.get(name, "").startswith("struct")]
    videos: dict[str, DepthCodes | None] = {
        name: None for name, kind in dtypes.items() if kind == "video" and find_videos(source, name)
    }
    depth = {name: _camera_info(features[name]) for name in (*images, *videos) if _is_depth(features[name])}
    not_depth = _find_codes(source, {name: facts for name, facts in depth.items() if name in videos}, videos, notes)
    _leave_out(notes, features, columns, cameras, [*index_columns, *texts, *language, *images, *videos], not_depth)
    _report_unused(source, videos, with_rows | episodes, notes)
    if options.video:
        _report_undeclared(source, cameras, notes)
    notes.tell(source / "meta", **tables, cameras=cameras)
    numbered = _find_numbered(columns, features, tables)
    notes.total = len(spans)
    read_episodes = _read_rows(source, spans, episodes, [*numbers, *texts, *language, *images], info["fps"], notes)
    kinds = Kinds()
    opening = _open_videos(source, videos, episodes, info["fps"], options, kinds, notes) if videos else nullcontext()
    with opening as decoder:
        for episode in decoder.ahead(read_episodes) if decoder else read_episodes:
            if isinstance(episode, Lost):
                notes.skip(episode.what, episode.error)
                notes.position += episode.count
                continue
            yield Recording(
                episode.what,
                episode.where,
                episode.metadata,
                chain(
                    _read_numbers(episode, numbers, features, numbered, notes),
                    _read_texts(episode, texts),
                    _read_language(episode, language, notes),
                    _read_images(source, episode, images, depth, options, kinds, notes),
                    decoder.streams(episode) if decoder else (),
                ),
            )


def finish(source: Path, options: LeRobotOptions, notes: Notes) -> None:
    """Reports the clocks, numbers without a text, nulls, and frames that belong to no row."""
    clocks = notes.counts.get("clocks", {})
    notes.tell(source, episodes_by_clock=clocks)
    if rounded := clocks.get("nominal_of_rounded"):
        why = f"in {rounded} episodes its type is too coarse to tell rows apart; frame_index / fps is the clock there"
        notes.leave_out("timestamp as recorded", why)
    for table, counts in notes.counts.items():
        if table.startswith(_WITHOUT_TEXT):
            numbers, episodes = zip(*(map(int, key.split()) for key in counts), strict=True)
            rows = f"{sum(counts.values())} rows of episodes {ranges(sorted({*episodes}), 10)}"
            what = f"{table.removeprefix(_WITHOUT_TEXT)}: texts of {ranges(sorted({*numbers}), 10)}"
            notes.leave_out(what, f"the table in meta/ has no such numbers; {rows}")
    for what, count in notes.counts.get("nulls", {}).items():
        name, _, replacement = what.rpartition(": ")
        notes.leave_out(f"{name}: values of {count} rows", f"null: {replacement} there")
    for name, count in notes.counts.get("replaced texts", {}).items():
        notes.leave_out(f"{name}: {count} texts", "a row has one text of a stream: others of the same row replace them")
    used = notes.counts.get("frames used", {})
    frames = Counter[str]()
    for camera, count in notes.seen.get("video files", {}).values():
        frames[camera] += count
    for camera, count in frames.items():
        if used.get(camera, 0) < count:
            notes.leave_out(f"{camera}: frames", f"{count - used.get(camera, 0)} of {count} are no row's")


class _Table:
    """The rows of a file. A column is made an array once, for all episodes in the file.

    rows: the file's table; empty if the file's episodes are read in another process.
    """

    def __init__(self, rows: pa.Table | None = None) -> None:
        self.rows = pa.table({}) if rows is None else rows
        self._arrays: dict[str, np.ndarray | None] = {}

    def array(self, name: str) -> np.ndarray | None:
        """Returns the whole column as [rows, ...]; None if that fails. Reading an episode then raises the error."""
        if name not in self._arrays:
            try:
                self._arrays[name] = to_numpy(self.rows, name, name)
            except SourceError:
                self._arrays[name] = None
        return self._arrays[name]


@dataclass(frozen=True)
class Episode:
    """An episode whose rows are read.

    position: the episode's index among the source's recordings.
    number: its episode_index in the source.
    what, where, metadata: as in :class:`Recording`.
    table, start, length: its rows are the `length` rows of the table that begin at `start`.
    """

    position: int
    number: int
    what: str
    where: str
    metadata: dict[str, Any]
    table: _Table
    start: int
    length: int
    fps: float

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def rows(self) -> pa.Table:
        return self.table.rows.slice(self.start, self.length)

    def array(self, name: str) -> np.ndarray:
        """Returns a column as [rows, ...]; raises SourceError."""
        all_rows = self.table.array(name)
        if all_rows is None:
            return to_numpy(self.rows, name, self.where)
        return all_rows[self.start : self.start + self.length]

    def scalars(self, name: str) -> np.ndarray:
        """Returns a column with one number in each row as [rows]; raises SourceError."""
        return as_scalars(self.array(name), name, self.where)

    @cached_property
    def _clock(self) -> tuple[np.ndarray, str]:
        columns = self.table.rows.column_names
        frame_index = self.scalars("frame_index") if "frame_index" in columns else np.arange(len(self))
        timestamp = self.scalars("timestamp") if "timestamp" in columns else None
        return _read_clock(frame_index, timestamp, self.fps, self.where)

    @property
    def time_ns(self) -> np.ndarray:
        """Returns int64 nanoseconds ``[rows]``; raises SourceError."""
        return self._clock[0]

    @property
    def clock(self) -> Literal["recorded", "nominal"]:
        return "recorded" if self.kind_of_clock == "recorded" else "nominal"

    @property
    def kind_of_clock(self) -> str:
        """The kind of the clock, one of those that `_read_clock` lists."""
        return self._clock[1]


def _read_rows(
    source: Path,
    spans: list[_Span],
    episodes: dict[int, dict[str, Any]],
    columns: list[str],
    fps: float,
    notes: Notes,
) -> Iterator[Episode | Lost]:
    """Yields all episodes in order. The rows of episodes that are read in another process are empty."""
    files = [(file, list(group)) for file, group in groupby(spans, key=lambda span: span.file)]
    starts = list(accumulate((len(file_spans) for _, file_spans in files), initial=0))
    wanted_files = [
        file for start, (file, file_spans) in zip(starts, files, strict=False) if notes.wants(start, len(file_spans))
    ]
    with Ahead(partial(_read_table, columns=columns), wanted_files) as tables:
        for start, (file, file_spans) in zip(starts, files, strict=False):
            file_name, table = str(file.relative_to(source)), _Table()
            try:
                if notes.wants(start, len(file_spans)):
                    table = tables.read(file)
            except SourceError as error:
                yield Lost(file_name, error, len(file_spans))
                continue
            for position, span in enumerate(file_spans, start):
                number, what = span.episode, f"episode {span.episode}"
                metadata = {
                    **episodes.get(number, {}),
                    "source_episode_index": number,
                    "source_file": file_name,
                }
                where = f"{file}: {what}"
                yield Episode(position, number, what, where, metadata, table, span.start, span.length, fps)


def _read_table(file: Path, columns: list[str]) -> _Table:
    with naming(file):
        return _Table(read_columns(open_parquet(file), file, list({*columns, *_BOOKKEEPING})))


def _read_numbers(
    episode: Episode,
    columns: list[str],
    features: dict[str, Any],
    numbered: dict[str, tuple[dict[str, Any], np.ndarray]],
    notes: Notes,
) -> Iterator[tuple[str, Rows]]:
    """Yields an episode's streams of numbers. Then counts and checks its clock.

    numbered: as :func:`_find_numbered` returns it.
    """
    for name in columns:
        values: np.ndarray | None
        if name in INDEX_COLUMNS:
            values = episode.scalars(name).astype(INDEX_COLUMNS[name])
        else:
            values = _read_values(episode, name, name in numbered, notes)
        if values is None:
            continue
        names = _feature_names(name, features.get(name, {}).get("names"), values[0].size, notes)
        attributes, numbers_with_text = numbered.get(name, ({}, None))
        if numbers_with_text is not None and values.dtype.kind == "f":
            values = _as_whole(values, name, episode.where)
        had_nulls = notes.wider.get("nulls", {}).get(name) == "float"
        if values.dtype.kind == "f" and (had_nulls or declares_whole(features.get(name, {}).get("dtype"))):
            attributes = {**attributes, "methods": [[0, values[0].size, "previous"]]}
        if numbers_with_text is not None:
            without_text = values[~np.isin(values, numbers_with_text) & (values != NO_TEXT)]
            for number, count in zip(*np.unique(without_text, return_counts=True), strict=True):
                notes.count(f"{_WITHOUT_TEXT}{name}", f"{number} {episode.number}", int(count))
        yield name, Rows(episode.time_ns, values, names, episode.clock, attributes)
    notes.count("clocks", episode.kind_of_clock)
    if episode.kind_of_clock == "recorded":
        compare_rates("clock timestamp", episode.time_ns, {"meta/info.json": episode.fps}, notes)


def _as_whole(values: np.ndarray, name: str, where: object) -> np.ndarray:
    """Converts numbers of texts, which are stored as floats, to int64; NaN becomes NO_TEXT."""
    numbers = np.where(np.isnan(values), NO_TEXT, values)
    if len(invalid := np.flatnonzero(~np.isfinite(numbers) | (numbers != np.rint(numbers)))):
        raise SourceError(
            f"{where}: column {name}: row {invalid[0]} is {numbers.flat[invalid[0]]}, expected the number of a text"
        )
    return numbers.astype(np.int64)


def _read_values(episode: Episode, name: str, is_numbered: bool, notes: Notes) -> np.ndarray | None:
    """Returns a column of an episode; None if the episode has no rows of this stream. A null becomes NaN, or NO_TEXT in a column of
    numbers of texts.

    The stream has one type in all episodes. If whole numbers or bools have a null in any episode, the type is float64. If float64 does
    not hold the numbers, they keep their type, and an episode with a null has no rows of the stream.

    Raises:
        WiderError: earlier episodes were read in another type, so the ingest begins anew.
    """
    handling_by_column = notes.wider.setdefault("nulls", {})
    handling = handling_by_column.get(name)
    try:
        if handling != "float":
            return episode.array(name)
    except NullError as error:
        column = episode.rows[name]
        if is_numbered:
            notes.count("nulls", f"{name}: -1", column.null_count)
            return np.asarray(pc.fill_null(column, NO_TEXT).to_numpy())
        if handling == "as it is":
            notes.count("nulls", f"{name}: no rows in its episode", count_nulls(column))
            return None
        if not _has_floats(column.type):
            handling_by_column[name] = "float"
            raise WiderError(str(error)) from error
    try:
        values = with_nan(episode.rows, name, episode.where)
    except NullError as error:
        handling_by_column[name] = "as it is"
        raise WiderError(str(error)) from error
    if count := count_nulls(episode.rows[name]):
        notes.count("nulls", f"{name}: NaN", count)
    return values


def _has_floats(type: pa.DataType) -> bool:
    """Whether a column's values, or the elements of its lists, are floats."""
    while hasattr(type, "value_type"):
        type = type.value_type
    return bool(pa.types.is_floating(type))


def _report_unused(
    source: Path, cameras: Iterable[str], episodes: Mapping[int, Mapping[str, Any]], notes: Notes
) -> None:
    """Reports the cameras' video files that belong to no episode."""
    for camera in cameras:
        used = {video_name(camera, number, metadata) for number, metadata in episodes.items()}
        unused = [paths for name, paths in find_videos(source, camera).items() if name not in used]
        if names := sorted(str(path.relative_to(source)) for path in chain(*unused)):
            notes.leave_out(f"{camera}: video files", f"no episode points to {', '.join(names)}")


def _report_undeclared(source: Path, cameras: dict[str, Any], notes: Notes) -> None:
    """Reports video files that belong to no camera of info.json."""
    known = {path for name in cameras for paths in find_videos(source, name).values() for path in paths}
    files = [file for folder in ("videos", "video") for file in list_files(source / folder).files]
    if others := [str(file.relative_to(source)) for file in files if file.suffix == ".mp4" and file not in known]:
        why = f"{len(others)}, such as {others[0]}: info.json names no such camera"
        notes.leave_out("video files of no feature", why)


def _find_numbered(
    columns: dict[str, str], features: dict[str, Any], tables: dict[str, dict[str, str | None]]
) -> dict[str, tuple[dict[str, Any], np.ndarray]]:
    """Returns the columns whose numbers stand for texts, each with its stream's attributes and the numbers that have a text."""
    numbered: dict[str, tuple[dict[str, Any], np.ndarray]] = {}
    for name, kind in columns.items():
        table = "tasks" if name.startswith(_ANNOTATIONS) else _NUMBERED.get(name, "")
        # pandas stores whole numbers as floats if a number is missing.
        is_whole = name in _NUMBERED or declares_whole(features.get(name, {}).get("dtype"))
        if (kind in _INTEGERS or (kind in _FLOATS and is_whole)) and tables.get(table):
            attributes = {"texts": f"lerobot.{table}"} | ({"task": True} if name == "task_index" else {})
            numbered[name] = attributes, np.array([int(number) for number in tables[table]])
    return numbered


def _read_texts(episode: Episode, texts: list[str]) -> Iterator[tuple[str, Texts]]:
    """Yields an episode's streams of text; lists become JSON. A null gives no row, but after a text it gives "", which ends the text."""
    for name in texts:
        cells = episode.rows[name].to_pylist()
        is_text = [cell is not None for cell in cells]
        is_kept = [has_text or had_text for had_text, has_text in pairwise([False, *is_text])]
        kept = ["" if cell is None else cell for cell in compress(cells, is_kept)]
        kept = [cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False) for cell in kept]
        yield name, Texts(episode.time_ns[is_kept], kept, episode.clock)


def _read_language(episode: Episode, columns: list[str], notes: Notes) -> Iterator[tuple[str, Texts]]:
    """Yields the texts of LeRobot's language columns: a stream for each style and camera, such as "language_persistent/subtask", or for each
    style, role and camera if users and assistants have texts of the same style. Tool calls are JSON. A text with a stamp holds from the
    first row at or after the stamp, an event only in its row. If a row has several texts of a stream, the last is kept and the others
    are counted."""
    stamps = episode.scalars("timestamp").astype(np.float32) if columns else np.zeros(0)
    for column in columns:
        texts_by_kind: dict[tuple[str | None, str | None, str | None], dict[tuple[int, str], None]] = {}
        for row, entries in enumerate(episode.rows[column].to_pylist()):
            for entry in entries or ():
                text = entry.get("content")
                if text is None:
                    text = json.dumps(entry.get("tool_calls"), ensure_ascii=False)
                seconds = entry.get("timestamp")
                first_row = row if seconds is None else int(np.searchsorted(stamps, np.float32(seconds)))
                kind = entry.get("style"), entry.get("role"), entry.get("camera")
                if first_row < len(episode):
                    texts_by_kind.setdefault(kind, {})[first_row, text] = None
        roles = Counter((style, camera) for style, _, camera in texts_by_kind)
        for (style, role, camera), texts in texts_by_kind.items():
            names_role = not style or roles[style, camera] > 1
            name = "/".join(filter(None, (column, style, role if names_role else None, camera)))
            by_row = dict(sorted(texts, key=lambda text: text[0]))
            if len(by_row) < len(texts):
                notes.count("replaced texts", name, len(texts) - len(by_row))
            if column == "language_events":
                ends = [row + 1 for row in by_row if row + 1 not in by_row and row + 1 < len(episode)]
                by_row = dict(sorted((by_row | dict.fromkeys(ends, "")).items()))
            yield name, Texts(episode.time_ns[[*by_row]], [*by_row.values()], episode.clock)


def _read_images(
    source: Path,
    episode: Episode,
    images: list[str],
    depth: dict[str, dict[str, Any]],
    options: LeRobotOptions,
    kinds: Kinds,
    notes: Notes,
) -> Iterator[tuple[str, Frames]]:
    """Yields an episode's cameras whose images are in the episode's rows, or in files that the rows name."""
    for name in images:
        read = partial(_read_image, source, episode.rows[name])
        arguments = name, episode.what, episode.where, episode.time_ns, episode.clock, read
        if name in depth:
            frames = DepthImages(*arguments, depth[name]).stored(kinds, notes)
            if frames is not None and options.image_size != "keep":
                notes.leave_out(name, "depth is not resized; image_size='keep' (--image-size keep) takes it as it is")
        else:
            frames = Images(*arguments).stored(options, kinds, notes)
        if frames is not None:
            yield name, frames


def _read_image(source: Path, column: pa.ChunkedArray, row: int) -> bytes:
    cell = column[row].as_py() or {}
    image: bytes | None = cell.get("bytes")
    if image is not None:
        return image
    if not cell.get("path"):
        raise Error("neither bytes nor a path")
    path = Path(cell["path"])
    if path.is_absolute() or ".." in path.parts:
        raise Error(f"expected a path inside the dataset, got {cell['path']!r}")
    return read_whole(source / path)


def _camera_info(feature: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts of a camera in info.json, such as its codec; early v2 datasets have them as video_info."""
    info: dict[str, Any] = {}
    for name in ("video_info", "info"):
        info |= feature[name] if isinstance(feature.get(name), dict) else {}
    return info


def _is_depth(feature: dict[str, Any]) -> bool:
    info = _camera_info(feature)
    return any(as_flag(info.get(name)) for name in ("is_depth_map", "video.is_depth_map"))


def _find_codes(
    source: Path, depth: dict[str, dict[str, Any]], videos: dict[str, DepthCodes | None], notes: Notes
) -> dict[str, str]:
    """Sets in `videos` the scale of the codes of each depth video. Removes videos whose scale is unknown, and returns the reasons."""
    reasons: dict[str, str] = {}
    for name, info in depth.items():
        try:
            videos[name], missing = DepthCodes.of(info)
            format, bits = _find_pixels(source, name) or ("", DepthCodes.BITS)
            if bits != DepthCodes.BITS:
                raise Error(f"its frames are in {format}: expected codes of {DepthCodes.BITS} bits")
        except Error as error:
            reasons[name] = f"depth, as info.json says; {error}"
            del videos[name]
        else:
            if missing:
                notes.leave_out(f"{name}: {', '.join(missing)}", "info.json lacks it: LeRobot's default is taken")
    return reasons


def _find_pixels(source: Path, camera: str) -> tuple[str, int] | None:
    """Returns the pixel format of a camera's videos, and its bits; None if it cannot be found."""
    try:
        from .lerobot_videos import find_pixels
    except ImportError:  # `_open_videos` raises the error
        return None
    return find_pixels(source, camera)


def _open_videos(
    source: Path,
    cameras: Mapping[str, DepthCodes | None],
    episodes: dict[int, dict[str, Any]],
    fps: float,
    options: LeRobotOptions,
    kinds: Kinds,
    notes: Notes,
) -> Videos:
    try:
        from .lerobot_videos import Videos
    except ImportError as error:
        if (error.name or "").startswith("robocache"):
            raise
        raise Error(
            f"{', '.join(cameras)}: {error}; pip install av, or leave cameras out with video=False (--no-video)"
        ) from error
    return Videos(source, cameras, episodes, fps, options, kinds, notes)


def _feature_names(stream: str, names: Any, features: int, notes: Notes) -> list[str] | None:
    """Returns the names of a stream's features; None, with a report, if there is not one name for each feature."""
    if isinstance(names, dict) and len(names) == 1:  # {"motors": [...]}
        (names,) = names.values()
    if isinstance(names, list) and len(names) == 1 and isinstance(names[0], list):  # [["shoulder", "elbow"]]
        (names,) = names
    if isinstance(names, list) and len(names) == features and all(isinstance(name, str) and name for name in names):
        return names
    if names:
        why = f"expected {features} that are not empty, got {json.dumps(names):.60}"
        notes.leave_out(f"{stream}: names of its features", why)
    return None


# ---- data/ ----


@dataclass(frozen=True)
class _Span:
    """The rows of one episode: the `length` rows of `file` that begin at `start`."""

    episode: int
    file: Path
    start: int
    length: int


def _survey(source: Path, notes: Notes, episodes: dict[int, dict[str, Any]]) -> tuple[dict[str, str], list[_Span]]:
    """Finds the rows of every episode, and compares them with meta/ before anything is written.

    Returns the kind of each column (see :func:`read_kinds`), which must be the same in all files, and the spans in the files' order.
    """
    columns: dict[str, str] = {}
    spans: dict[int, _Span] = {}
    first = None
    refused = set()
    listing = list_files(source / "data")
    listing.note(source, notes)
    for file in sorted(filter(is_parquet, listing.files), key=_number_key):
        with notes.reading(str(file.relative_to(source)), file):
            parquet = open_parquet(file)
            kinds = read_kinds(parquet, file)
            first_kinds = kinds if first is None else columns
            for name in sorted(kinds.keys() | first_kinds.keys()):
                kind, first_kind = kinds.get(name, "missing"), first_kinds.get(name, "missing")
                if name in _BOOKKEEPING and kind not in {"missing", *(_NUMERIC if name == "timestamp" else _INTEGERS)}:
                    raise SourceError(f"{file}: column {name} is {kind}, expected numbers")
                if name not in _BOOKKEEPING and kind != first_kind:
                    raise SourceError(f"{file}: column {name} is {kind}, but {first_kind} in {first}")
            file_spans = _find_spans(parquet, file)
            if first is None:
                first, columns = file, kinds
            for span in file_spans:
                length = episodes.get(span.episode, {}).get("length", span.length)
                if span.episode in spans:
                    problem = f"is in {spans[span.episode].file} too"
                elif episodes and span.episode not in episodes:
                    problem = f"is not listed in {source}/meta"
                elif length != span.length:
                    problem = f"has {span.length} rows, {source}/meta says {length}"
                else:
                    spans[span.episode] = span
                    continue
                refused.add(span.episode)
                notes.skip(f"episode {span.episode}", SourceError(f"{file}: episode {span.episode} {problem}"))
    missing = sorted(episodes.keys() - spans.keys() - refused)
    if missing:
        counted = f"{len(missing)} of the {len(episodes)} episodes that {source}/meta lists have no rows in data/"
        notes.skip(f"episodes {ranges(missing)}", SourceError(f"{counted}: {ranges(missing)}"))
    return columns, list(spans.values())


def _find_spans(parquet: pq.ParquetFile, file: Path) -> list[_Span]:
    """Returns the spans of rows with the same episode_index. In v2, where a file is an episode, the file's name must have that number."""
    count = parquet.metadata.num_rows
    if count == 0:
        raise SourceError(f"{file}: no rows")
    name_match = re.fullmatch(r"episode_(\d+)", file.stem)
    if "episode_index" in parquet.schema_arrow.names:
        column = to_numpy(read_columns(parquet, file, ["episode_index"]), "episode_index", file)
        index = as_scalars(column, "episode_index", file).astype(np.int64)
    elif name_match:
        index = np.full(count, int(name_match[1]))
    else:
        raise SourceError(f"{file}: no column episode_index")
    starts = np.flatnonzero(np.concatenate([[True], index[1:] != index[:-1]]))
    lengths = np.diff(starts, append=count)
    if name_match and (len(starts) > 1 or index[0] != int(name_match[1])):
        raise SourceError(f"{file}: episode_index says {ranges(sorted(set(index.tolist())))}, the file's name does not")
    return [
        _Span(int(index[start]), file, int(start), int(length)) for start, length in zip(starts, lengths, strict=True)
    ]


def _read_clock(
    frame_index: np.ndarray, timestamp: np.ndarray | None, fps: float, where: object
) -> tuple[np.ndarray, str]:
    """Returns time_ns of an episode's rows, and the kind of clock:

    - "nominal": `timestamp` is only frame_index / fps, or missing. The clock is the exact round(frame_index * 1e9 / fps).
    - "nominal_from_1": `timestamp` is (frame_index + 1) / fps, which some exporters write though the video starts at 0. The clock is as
      for "nominal".
    - "nominal_of_rounded": the type of `timestamp` cannot distinguish two rows, such as float32 seconds since 1970. The clock is as for
      "nominal".
    - "recorded": the clock is `timestamp`, rounded to the nanosecond.
    """
    frame = frame_index.astype(np.int64)
    not_after = np.flatnonzero(np.diff(frame) <= 0)
    if len(not_after):
        row = not_after[0] + 1
        raise SourceError(f"{where}: column frame_index: row {row} is {frame[row]} after {frame[row - 1]}")
    if not np.abs(frame[[0, -1]].astype(np.float64)).max() / fps < _LARGEST_S:
        raise SourceError(f"{where}: frames {frame[0]} to {frame[-1]} at {fps} Hz do not fit int64 nanoseconds")
    exact = np.rint(frame * 1e9 / fps).astype(np.int64)
    if timestamp is None:
        return exact, "nominal"
    seconds = timestamp.astype(np.float64)
    bad = np.flatnonzero(~(np.abs(seconds) < _LARGEST_S))
    if len(bad):
        raise SourceError(f"{where}: column timestamp: row {bad[0]} is {seconds[bad[0]]}, expected seconds")
    for clock, first in (("nominal", 0), ("nominal_from_1", 1)):
        nominal = (frame + first) / fps
        if np.all(np.abs(seconds - nominal) <= _NOMINAL_TOLERANCE * np.maximum(nominal, 1 / fps)):
            return exact, clock
    if len(frame) > 1 and (ratio := fps * float(np.median(np.diff(seconds) / np.diff(frame)))) > 3:
        units = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9, "numbers of frames": fps}
        for unit, factor in units.items():
            if abs(ratio / factor - 1) < 0.02:
                raise SourceError(
                    f"{where}: column timestamp: expected seconds; its steps are {ratio:g} times 1 / {fps:g} s, fps of meta/info.json: "
                    f"they look like {unit}"
                )
    # The steps of the type: of floats at the largest stamp; whole numbers that repeat are whole seconds.
    repeats = bool((np.diff(seconds) == 0).any())
    step = float(np.spacing(np.abs(timestamp).max())) if timestamp.dtype.kind == "f" else float(repeats)
    if step > 0.5 / fps:
        if np.any(np.abs(seconds - seconds[0] - (frame - frame[0]) / fps) > step):
            raise SourceError(
                f"{where}: column timestamp: {timestamp.dtype} of {seconds[0]:.16g} has steps of {step:g} s, and its rows are not "
                f"1 / {fps:g} s apart: expected seconds since the episode's beginning"
            )
        return exact, "nominal_of_rounded"
    return np.rint(seconds * 1e9).astype(np.int64), "recorded"


# ---- video ----


def _find_cameras(source: Path, features: dict[str, Any], episodes: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Returns the cameras for the provenance: each one's type, its shape, and how many of `episodes` have a video of it."""
    cameras = {}
    for key, feature in features.items():
        if feature.get("dtype") not in ("video", "image"):
            continue
        cameras[key] = {"dtype": feature["dtype"], "shape": feature.get("shape")}
        if feature["dtype"] == "video":
            files = {name: list(filter(is_readable, paths)) for name, paths in find_videos(source, key).items()}
            names = (video_name(key, number, metadata) for number, metadata in episodes.items())
            with_video = sum(bool(files.get(name or "")) for name in names)
            cameras[key].update(
                files=sum(map(len, files.values())),
                episodes_found=with_video,
                episodes_missing=len(episodes) - with_video,
            )
    return cameras


# ---- reports ----


def _leave_out(
    notes: Notes,
    features: dict[str, Any],
    columns: dict[str, str],
    cameras: dict[str, Any],
    kept: list[str],
    not_depth: dict[str, str],
) -> None:
    for name, camera in cameras.items():
        if name in kept:
            continue
        if name in not_depth:
            notes.leave_out(name, not_depth[name])
        elif camera["dtype"] == "image":
            notes.leave_out(name, f"images; {columns.get(name, 'in no data file')}")
        else:
            total = camera["episodes_found"] + camera["episodes_missing"]
            notes.leave_out(name, f"video; files for {camera['episodes_found']} of {total} episodes")
    for name in sorted((columns.keys() | features.keys()) - cameras.keys() - set(kept)):
        if name in _BOOKKEEPING and name in columns:
            notes.leave_out(name, _BOOKKEEPING[name])
        elif name not in columns and name not in _BOOKKEEPING:
            notes.leave_out(name, "declared in info.json, in no data file")
        elif columns.get(name, "bool") not in _NUMERIC:
            notes.leave_out(name, f"not numeric: {columns[name]}")


def _number_key(file: Path) -> tuple[list[int], str]:
    """Returns a key that sorts files by the numbers in their paths."""
    path = file.as_posix()
    return [int(number) for number in re.findall(r"\d+", path)], path
