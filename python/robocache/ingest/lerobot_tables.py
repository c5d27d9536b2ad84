"""Reads the tables of a LeRobot dataset: info.json, the tables in meta/ as JSON or Parquet, and columns of Parquet as arrays."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import FileError
from .budget import FILE_BYTES, Budget
from .files import check_file, list_files, read_whole
from .recording import Notes, SourceError, naming

# Matches columns of v3.0's episodes table that describe the source's files and statistics.
_LOCATORS = re.compile(r"(stats|data|meta)/|dataset_(from|to)_index$")
# The bytes of a value of each of Parquet's types of fixed width.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "INT96": 12}
# The bytes counted for a value that becomes a Python object.
_VALUE_BYTES = 40


# ---- meta/ ----


def load_info(source: Path) -> dict[str, Any]:
    """Returns the content of info.json, after checking the facts that every reader needs.

    Raises:
        FileError: the file cannot be read, or lacks such a fact.
    """
    path = source / "meta" / "info.json"
    try:
        info = _parse_json(read_whole(path))
        version, fps, features = info["codebase_version"], info.get("fps"), info.get("features")
    except SourceError as error:
        raise FileError(str(error)) from error  # without info.json nothing can be read, so it cannot be skipped
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        got = "none" if isinstance(error, KeyError) else repr(error)
        raise FileError(f"{path}: expected JSON with codebase_version, got {got}") from error
    if not str(version).startswith(("v2.", "v3.")):
        raise FileError(f"{path}: expected codebase_version v2.0, v2.1 or v3.0, got {version!r}; convert with LeRobot")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not fps > 0:
        raise FileError(f"{path}: expected a positive number as fps, got {fps!r}")
    if not (isinstance(features, dict) and all(isinstance(feature, dict) for feature in features.values())):
        raise FileError(f"{path}: expected an object of objects as features, got {features!r:.60}")
    return dict(info)


def load_meta(source: Path, notes: Notes) -> tuple[dict[str, dict[str, str | None]], dict[int, dict[str, Any]]]:
    """Returns the tables of texts, "tasks" and perhaps "subtasks", and the metadata of each episode. Skipped tables are empty."""
    tables: dict[str, dict[str, str | None]] = {"tasks": {}}
    episodes: dict[int, dict[str, Any]] = {}
    with notes.reading("meta/tasks", source / "meta"):
        tables["tasks"] = _load_texts(source, "task", notes)
    if any(os.path.lexists(source / "meta" / f"subtasks{suffix}") for suffix in ("", ".parquet", ".jsonl")):
        with notes.reading("meta/subtasks", source / "meta"):
            tables["subtasks"] = _load_texts(source, "subtask", notes)
    with notes.reading("meta/episodes", source / "meta"):
        rows = _load_table(source, "episodes", "episode_index")
        for index, count in Counter(row["episode_index"] for row in rows).items():
            if count > 1:
                raise SourceError(f"{source}/meta: episode {index} is listed twice")
        for row in rows:
            episode = {key: _finite_or_none(value) for key, value in row.items() if _is_plain(value)}
            episodes[episode.pop("episode_index")] = episode
            for key in sorted(row.keys() - episode.keys() - {"episode_index"}):
                notes.leave_out(f"episodes.{key}", "neither a scalar nor a list of scalars")
    return tables, episodes


def _load_texts(source: Path, name: str, notes: Notes) -> dict[str, str | None]:
    """Returns the text of each number in meta/tasks or meta/subtasks. In v3.0 the texts are the index of a table of pandas, whose name may
    be any.

    name: "task" or "subtask".
    """
    rows = _load_table(source, f"{name}s", f"{name}_index")
    column = next((usual for usual in (name, "__index_level_0__") if any(usual in row for row in rows)), None)
    if column is None:
        others = sorted({key for row in rows for key, value in row.items() if isinstance(value, str)})
        if len(others) != 1:
            raise SourceError(f"{source}/meta: {name}s: expected texts as {name}, got {', '.join(others) or 'none'}")
        (column,) = others
        notes.assume(f"meta/{name}s", f"its texts are those of {column}: it has no {name}")
    texts: dict[str, str | None] = {}
    for row in rows:
        index, text = str(row[f"{name}_index"]), row.get(column)
        if not isinstance(text, str | None):
            raise SourceError(f"{source}/meta: expected text for {name} {index}, got {text!r:.60}")
        if (first := texts.setdefault(index, text)) != text:
            raise SourceError(
                f"{source}/meta: expected one text for {name} {index}, got {first!r:.60} and {text!r:.60}"
            )
    return texts


def load_stats(source: Path, version: str) -> tuple[dict[str, dict[str, np.ndarray]], bool]:
    """Returns the statistics that a dataset has for each feature, as LeRobot of that version reads them; {} if it has none.

    Also returns whether they were merged from statistics of episodes. Then they have no quantiles, which cannot be merged.

    Raises:
        FileError: the statistics cannot be read.
    """
    meta = source / "meta"
    dataset_file, episodes_file = meta / "stats.json", meta / "episodes_stats.jsonl"
    try:
        if version.startswith("v2.1") and episodes_file.exists():
            # LeRobot keeps the last line of an episode, since an episode may be recorded again.
            by_episode = {row["episode_index"]: row["stats"] for row in _read_json_lines(episodes_file)}
            return _merge_stats(list(by_episode.values())), True
        if dataset_file.exists():
            stats = json.loads(read_whole(dataset_file).decode("utf-8-sig"))
            return {
                feature: {name: _as_array(value) for name, value in values.items()} for feature, values in stats.items()
            }, False
        files = list(filter(is_parquet, list_files(meta / "episodes").files))
        return _merge_stats([stats for file in files for stats in _read_stats(file)]), True
    except (SourceError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        where = "" if str(meta) in str(error) else f"{meta}: expected statistics as LeRobot writes them: "
        raise FileError(f"{where}{error}") from error


def _read_stats(file: Path) -> list[dict[str, dict[str, Any]]]:
    """Returns each episode's statistics in a table of v3.0, from its columns stats/FEATURE/NAME."""
    parquet = open_parquet(file)
    columns = [name for name in parquet.schema_arrow.names if name.startswith("stats/")]
    episodes: list[dict[str, dict[str, Any]]] = []
    for row in read_columns(parquet, file, columns).to_pylist():
        stats: dict[str, dict[str, Any]] = {}
        for column, value in row.items():
            feature, name = column.removeprefix("stats/").rsplit("/", 1)
            if value is not None:
                stats.setdefault(feature, {})[name] = value
        episodes.append(stats)
    return episodes


def _merge_stats(episodes: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, np.ndarray]]:
    """Merges the min, max, mean, std and count of each episode into those of all rows. Leaves out features that an episode lacks."""
    merged = {}
    for feature in dict.fromkeys(feature for stats in episodes for feature in stats):
        parts = [stats.get(feature, {}) for stats in episodes]
        if not all({"min", "max", "mean", "std", "count"} <= part.keys() for part in parts):
            continue
        least, most, mean, std = (
            np.stack([_as_array(part[name]).astype(np.float64) for part in parts])
            for name in ("min", "max", "mean", "std")
        )
        counts = np.array([np.ravel(part["count"])[0] for part in parts])
        weights = counts.reshape(-1, *[1] * (mean.ndim - 1)) / counts.sum()
        merged_mean = (weights * mean).sum(0)
        merged_std = np.sqrt((weights * (std**2 + (mean - merged_mean) ** 2)).sum(0))
        merged[feature] = {"min": least.min(0), "max": most.max(0), "mean": merged_mean, "std": merged_std}
        merged[feature]["count"] = np.array([counts.sum()])
    return merged


def _as_array(value: Any) -> np.ndarray:
    return np.atleast_1d(np.array(value))


def _load_table(source: Path, name: str, key: str) -> list[dict[str, Any]]:
    """Returns the rows of meta/NAME.jsonl (v2), meta/NAME.parquet or meta/NAME/**.parquet (v3.0). Each row has a whole number at `key`."""
    meta = source / "meta"
    listing = list_files(meta / name)
    for folder, error in listing.unreadable.items():
        with naming(folder):
            raise error
    parquet = [meta / f"{name}.parquet", *filter(is_parquet, listing.files)]
    for alternatives in (parquet, [meta / f"{name}.jsonl"]):
        files = [file for file in alternatives if os.path.lexists(file)]
        if files:
            break
    if not files:
        raise SourceError(f"{meta}: neither {name}.jsonl (v2) nor Parquet files of {name} (v3.0)")
    rows: list[dict[str, Any]] = []
    for file in files:
        with naming(file):
            rows += _read_parquet_rows(file) if is_parquet(file) else _read_json_lines(file)
    if not rows:
        raise SourceError(f"{files[0]}: empty")
    if not all(isinstance(row, dict) and isinstance(row.get(key), int) for row in rows):
        raise SourceError(f"{files[0]}: expected a whole number as {key} in every row")
    return rows


def _read_parquet_rows(file: Path) -> list[dict[str, Any]]:
    parquet = open_parquet(file)
    columns = [column for column in parquet.schema_arrow.names if not _LOCATORS.match(column)]
    values = sum(chunk.num_values for chunk in _list_chunks(parquet, columns))
    Budget(file).take("its values", values * _VALUE_BYTES)
    rows: list[dict[str, Any]] = read_columns(parquet, file, columns).to_pylist()
    return rows


def _read_json_lines(file: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(read_whole(file).splitlines(), 1):
        with naming(f"{file}: line {number}"):
            rows += [_parse_json(line)] if line.strip() else []
    return rows


def _parse_json(text: bytes) -> Any:
    """Parses JSON that a cache can hold: UTF-8, int64, finite numbers.

    Raises:
        ValueError, RecursionError: the text is no JSON, or JSON that a cache cannot hold.
    """

    def parse_int(digits: str) -> int:
        if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
            raise ValueError(f"expected whole numbers within int64, got {digits:.30}")
        return int(digits)

    def parse_float(digits: str) -> float:
        if not math.isfinite(float(digits)):
            raise ValueError(f"expected finite numbers, got {digits:.30}")
        return float(digits)

    # Python writes NaN and infinities, which are no JSON: they become None.
    parsed = json.loads(
        text.decode("utf-8-sig"), parse_constant=lambda _: None, parse_int=parse_int, parse_float=parse_float
    )
    if b"\\u" in text:
        json.dumps(parsed, ensure_ascii=False).encode()  # raises if an escape is half a pair of surrogates
    return parsed


def _is_plain(value: Any) -> bool:
    """Whether the episodes table can hold the value."""
    if isinstance(value, list):
        return all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in value)
    return value is None or isinstance(value, str | int | float)


def _finite_or_none(value: Any) -> Any:
    """Returns None for NaN, by which pandas marks a missing number, and for infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- Parquet ----


def is_parquet(file: Path) -> bool:
    return file.suffix == ".parquet"


def open_parquet(file: Path) -> pq.ParquetFile:
    check_file(file)
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{file}: not a Parquet file that can be read: {error}") from error


def read_columns(parquet: pq.ParquetFile, file: Path, columns: list[str]) -> pa.Table:
    """Returns columns of a file.

    Raises:
        SourceError: the file is damaged, or a few of its bytes would take far more memory.
    """
    size, most_text_bytes, longest_text = 0, 0, 1
    for chunk in _list_chunks(parquet, columns):
        if width := _WIDTHS.get(chunk.physical_type):
            size += chunk.num_values * width
        else:  # a dictionary stores a text once, but every row may have that text
            size += chunk.total_uncompressed_size
            most_text_bytes += chunk.num_values * chunk.total_uncompressed_size
            longest_text = max(longest_text, chunk.total_uncompressed_size)
    Budget(file).take("its columns", size)
    budget = Budget(file)
    try:
        if most_text_bytes <= FILE_BYTES:
            table = parquet.read(columns)
        else:
            batches = []
            for batch in parquet.iter_batches(max(1, FILE_BYTES // 4 // longest_text), columns=columns):
                budget.take("its texts", batch.nbytes)
                batches.append(batch)
            table = pa.Table.from_batches(batches).combine_chunks()
        decoded = [pa.field(field.name, _decoded_type(field.type), field.nullable) for field in table.schema]
        return table.cast(pa.schema(decoded)) if any(map(pa.types.is_dictionary, table.schema.types)) else table
    except SourceError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{file}: damaged: {error}") from error


def _list_chunks(parquet: pq.ParquetFile, columns: list[str]) -> Iterator[Any]:
    """Yields the metadata of the chunks of these columns and of the columns nested in them."""
    metadata = parquet.metadata
    for index in range(metadata.num_columns):
        path = metadata.schema.column(index).path
        if any(path == name or path.startswith(f"{name}.") for name in columns):
            yield from (metadata.row_group(group).column(index) for group in range(metadata.num_row_groups))


def read_kinds(parquet: pq.ParquetFile, file: Path) -> dict[str, str]:
    """Returns the kind of each column, as `_kind` describes it."""
    names = parquet.schema_arrow.names
    if len(set(names)) < len(names):
        (name, _), *_ = Counter(names).most_common(1)
        raise SourceError(f"{file}: two columns are named {name}")
    return {field.name: _kind(_decoded_type(field.type)) for field in parquet.schema_arrow}


def _decoded_type(dtype: pa.DataType) -> pa.DataType:
    """Returns the type of the values if a dictionary encodes them, as in pandas' categories; else the type itself."""
    return dtype.value_type if pa.types.is_dictionary(dtype) else dtype


def _kind(dtype: pa.DataType) -> str:
    """Returns the name of a column's Arrow type; for lists, that of their elements."""
    while True:
        if isinstance(dtype, pa.BaseExtensionType):
            dtype = dtype.storage_type
        elif pa.types.is_fixed_size_list(dtype) and dtype.list_size == 0:
            return "lists of no numbers"  # pyarrow writes such columns but cannot read them
        elif _is_list(dtype):
            dtype = dtype.value_type
        else:
            return str(dtype)


def _is_list(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype))


class NullError(SourceError):
    """A row of a column has no value, and the column's type has no NaN."""


def with_nan(table: pa.Table, name: str, where: object) -> np.ndarray:
    """Returns a column as [rows, ...], with NaN in rows and elements of lists that are null; whole numbers and bools become float64."""
    is_valid = table[name].is_valid()
    valid = table.filter(is_valid)
    try:
        values = to_numpy(valid, name, where)
    except NullError:
        column = valid[name]
        try:
            column = column.cast(_with_floats(column.type))
        except pa.ArrowInvalid as error:
            raise NullError(
                f"{where}: column {name}: null beside numbers that float64 does not hold: {error}"
            ) from error
        values = to_numpy(pa.table({name: column}), name, where)
    if not len(values) and _is_list(table[name].type):
        raise SourceError(f"{where}: column {name}: all rows are null")
    floats = values if values.dtype.kind == "f" else values.astype(np.float64)
    if floats.dtype != values.dtype and (floats.astype(values.dtype) != values).any():
        raise NullError(f"{where}: column {name}: null beside whole numbers beyond 2^53, which float64 does not hold")
    filled = np.full((len(table), *values.shape[1:]), np.nan, floats.dtype)
    filled[is_valid.to_numpy()] = floats
    return filled


def _with_floats(dtype: pa.DataType) -> pa.DataType:
    """Returns the type of a column with float64 as its values, or as the elements of its lists."""
    if isinstance(dtype, pa.BaseExtensionType):
        dtype = dtype.storage_type
    if pa.types.is_fixed_size_list(dtype):
        return pa.list_(_with_floats(dtype.value_type), dtype.list_size)
    if pa.types.is_large_list(dtype):
        return pa.large_list(_with_floats(dtype.value_type))
    return pa.list_(_with_floats(dtype.value_type)) if pa.types.is_list(dtype) else pa.float64()


def count_nulls(column: pa.ChunkedArray) -> int:
    """Returns how many rows of a column are null or have a null in their list."""
    array = column.combine_chunks()
    rows = np.arange(len(array))
    has_null = np.zeros(len(array), bool)
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        has_null[rows[np.asarray(array.is_null())]] = True
        if not _is_list(array.type):
            return int(has_null.sum())
        rows = np.repeat(rows, pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False))
        array = array.flatten()


def to_numpy(table: pa.Table, name: str, where: object) -> np.ndarray:
    """Returns a column as [rows, ...]. A null among floats becomes NaN; pandas writes NaN as null."""
    column = table[name]
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    shape = [len(array)]
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        row_size = max(1, int(np.prod(shape[1:])))
        if array.null_count and not pa.types.is_floating(array.type):
            row = np.flatnonzero(array.is_null())[0] // row_size
            raise NullError(f"{where}: column {name}: row {row} is null")
        if not _is_list(array.type):
            return np.asarray(array.to_numpy(zero_copy_only=False)).reshape(shape)
        lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        different = np.flatnonzero(lengths != lengths[:1])
        if len(different):
            row, length = different[0] // row_size, lengths[different[0]]
            raise SourceError(f"{where}: column {name}: row {row} has {length} values, row 0 has {lengths[0]}")
        shape.append(int(lengths[0]) if len(lengths) else 0)
        array = array.flatten()


def as_scalars(values: np.ndarray, name: str, where: object) -> np.ndarray:
    """Returns a column with one number in each row, perhaps as a list of one, as [rows]."""
    if values.size != len(values):
        raise SourceError(f"{where}: column {name}: expected one number a row, got rows of shape {values.shape[1:]}")
    return values.reshape(len(values))


# ---- files ----


@dataclass(frozen=True)
class Lost:
    """A file that cannot be read.

    count: how many episodes the file has.
    """

    what: str
    error: SourceError
    count: int


def find_videos(source: Path, camera: str) -> dict[str, list[Path]]:
    """Returns a camera's files, also unreadable ones, by the names that :func:`video_name` gives. Several files, such as a backup in
    another folder, may have the same name."""
    videos: dict[str, list[Path]] = {}
    for folder in ("videos", "video"):
        for file in list_files(source / folder).files:
            # The path below the source counts, since a folder above it may have a camera's name.
            if file.suffix == ".mp4" and camera in file.relative_to(source).parts[1:-1]:
                name = file.stem if file.stem.startswith("episode_") else f"{file.parent.name}/{file.stem}"
                videos.setdefault(name, []).append(file)
    return videos


def video_name(camera: str, episode: int, metadata: Mapping[str, Any]) -> str | None:
    """Returns the name of an episode's video file, without its suffix; None if the metadata do not give it."""
    if f"videos/{camera}/file_index" in metadata:  # v3.0: a file has many episodes
        chunk, file = metadata.get(f"videos/{camera}/chunk_index"), metadata[f"videos/{camera}/file_index"]
        return f"chunk-{chunk:03d}/file-{file:03d}" if isinstance(chunk, int) and isinstance(file, int) else None
    return f"episode_{episode:06d}"
