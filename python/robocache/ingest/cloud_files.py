"""Reads a cloud of points as columns from PLY, PCD, LAS, LAZ, the ``.bin`` of KITTI and nuScenes, NPY and NPZ.

A header's claims are compared with the size of the file before memory for them is allocated.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from ..errors import Error
from .laz import Unpacker
from .recording import Notes, SourceError

# Columns by name: ``[points]``, or ``[points, n]`` for a field of several values.
Columns = dict[str, np.ndarray]

# The most bytes of a header.
_HEADER = 1 << 16
# The most numbers in a point. An array with few rows that are longer than this may hold its points as columns.
_WIDEST = 16
# A compressed file may claim to hold this many bytes of points, or this many times its size.
_SMALL = 1 << 26
_MOST_PACKED = 100
# The lines of text that are read at once.
_LINES = 1 << 16
# The numbers of a point in KITTI's .bin; nuScenes' have the ring too.
_BIN_NAMES = ("x", "y", "z", "intensity", "ring")

_PLY_TYPES = {
    name: np.dtype(code)
    for names, code in (
        (("char", "int8"), "i1"),
        (("uchar", "uint8"), "u1"),
        (("short", "int16"), "i2"),
        (("ushort", "uint16"), "u2"),
        (("int", "int32"), "i4"),
        (("uint", "uint32"), "u4"),
        (("float", "float32"), "f4"),
        (("double", "float64"), "f8"),
    )
    for name in names
}
_PLY_ORDERS: dict[str, Literal["<", ">"] | None] = {
    "ascii": None,
    "binary_little_endian": "<",
    "binary_big_endian": ">",
}


def read_cloud(file: Path, bin_columns: int, notes: Notes) -> Columns:
    """Returns the points of a file; other contents are left out by name.

    Args:
        bin_columns: the numbers in a point of a ``.bin``.

    Raises:
        SourceError: the file is damaged, or holds no points.
        Error: laspy is missing.
    """
    suffix = file.suffix.lower()
    if suffix in (".las", ".laz"):
        return _read_las(file, notes)
    with file.open("rb") as opened:
        if suffix == ".bin":
            return _read_bin(file, opened, bin_columns)
        if suffix == ".npy":
            _check_size(file, os.fstat(opened.fileno()).st_size, _bytes_left(opened))
            return _array_columns(file, np.load(file, mmap_mode="r", allow_pickle=False))
        readers: dict[str, Callable[[Path, BinaryIO, Notes], Columns]]
        readers = {".ply": _read_ply, ".pcd": _read_pcd, ".npz": _read_npz}
        return readers[suffix](file, opened, notes)


def _bytes_left(opened: BinaryIO) -> int:
    """Returns how many bytes of a file are left to read."""
    return os.fstat(opened.fileno()).st_size - opened.tell()


def _check_size(file: Path, claimed: int, stored: int, packed: int = 1) -> None:
    """Refuses a file that claims more bytes of points than its `stored` bytes can hold. `packed` is the greatest ratio of compression."""
    if claimed > stored * packed and (packed == 1 or claimed > _SMALL):
        raise SourceError(f"{file}: claims {claimed} bytes of points, but has {stored}")


def _read_columns(file: Path, opened: BinaryIO, dtype: np.dtype[np.void], count: int) -> Columns:
    """Reads `count` binary points that lie one after another."""
    _check_size(file, count * dtype.itemsize, _bytes_left(opened))
    points = np.frombuffer(opened.read(count * dtype.itemsize), dtype, count)
    return {name: points[name].astype(points[name].dtype.newbyteorder("=")) for name in dtype.names or ()}


def _read_lines(file: Path, opened: BinaryIO, dtype: np.dtype[np.void], count: int) -> Columns:
    """Reads `count` points, a line each."""
    _check_size(file, 2 * count * len(dtype.descr) - 1, _bytes_left(opened))
    names = dtype.names or ()
    fields = [(name, dtype[name].base, int(np.prod(dtype[name].shape, dtype=int))) for name in names]
    width = sum(size for _, _, size in fields)
    columns = {name: np.empty((count, *dtype[name].shape), dtype[name].base) for name in names}
    for start in range(0, count, _LINES):
        stop = min(start + _LINES, count)
        lines = [line.split() for line in islice(opened, stop - start)]
        for row, line in enumerate(lines):
            if len(line) != width:
                raise SourceError(f"{file}: point {start + row}: expected {width} numbers, got {len(line)}")
        if len(lines) < stop - start:
            raise SourceError(f"{file}: expected {count} points, got {start + len(lines)}")
        cells = np.array(lines)
        column = 0
        for name, kind, size in fields:
            columns[name][start:stop] = _parse_numbers(file, cells[:, column : column + size], kind, start).reshape(
                columns[name][start:stop].shape
            )
            column += size
    return columns


def _parse_numbers(file: Path, cells: np.ndarray, kind: np.dtype[Any], first: int) -> np.ndarray:
    """Parses cells of text as numbers of the type `kind`. An integer type must hold each of them exactly.

    first: the number of the first cell's point, for errors.
    """
    try:
        if kind.kind == "f":
            return cells.astype(np.float64).astype(kind)
        numbers = np.array([[int(cell) for cell in row] for row in cells.tolist()], object)
        bounds = np.iinfo(kind)
        if numbers.size and not bounds.min <= numbers.min() <= numbers.max() <= bounds.max:
            raise ValueError(f"a number beyond {kind}")
        return numbers.astype(kind)
    except ValueError as error:
        raise SourceError(f"{file}: point {first} or one after it: {error}") from error


def _report_rest(opened: BinaryIO, notes: Notes) -> None:
    """Reports content behind the points, except padding."""
    if opened.read(_HEADER).strip(b"\0 \t\r\n"):
        notes.leave_out("bytes behind the points", "more of them than the headers of PLY or PCD files declare")


# ---- PLY ----


def _read_ply(file: Path, opened: BinaryIO, notes: Notes) -> Columns:
    magic, *lines, _ = _read_header(file, opened, "end_header")
    if magic != "ply":
        raise SourceError(f"{file}: expected 'ply' in its first line, got {magic!r:.40}")
    order: str | None = None
    elements: list[tuple[str, int, list[tuple[str, str]]]] = []
    for line in lines:
        match line.split():
            case ["format", kind, "1.0"] if kind in _PLY_ORDERS:
                order = kind
            case ["element", name, count] if count.isdecimal():
                elements.append((name, int(count), []))
            case ["property", "list", _, _, name] if elements:
                elements[-1][2].append((name, "list"))
            case ["property", type, name] if elements and type in _PLY_TYPES:
                elements[-1][2].append((name, type))
            case ["comment" | "obj_info", *_] | []:
                pass
            case _:
                raise SourceError(f"{file}: expected a line of a PLY header, got {line!r:.80}")
    if order is None:
        raise SourceError(f"{file}: expected a format among {', '.join(_PLY_ORDERS)}, got none")
    columns: Columns | None = None
    for name, points, properties in elements:
        if columns is None:  # elements after the points are not read
            if any(type == "list" for _, type in properties):
                raise SourceError(f"{file}: element {name!r} has lists, and is the points or comes before them")
            read = _read_columns if order != "ascii" else _read_lines
            dtype = _make_dtype(
                file, [(key, _PLY_TYPES[type], 1) for key, type in properties], _PLY_ORDERS[order] or "="
            )
            element = read(file, opened, dtype, points)
            if name == "vertex":
                columns = element
                continue
        notes.leave_out(f"element {name}", "no points: faces and the like are not kept")
    if columns is None:
        raise SourceError(f"{file}: expected an element vertex, found {', '.join(name for name, _, _ in elements)}")
    if elements[-1][0] == "vertex":
        _report_rest(opened, notes)
    return columns


def _make_dtype(
    file: Path, fields: list[tuple[str, np.dtype[Any], int]], order: Literal["<", ">", "="]
) -> np.dtype[np.void]:
    names = [name for name, _, _ in fields]
    if len(set(names)) < len(names) or not names:
        raise SourceError(f"{file}: expected fields of different names, got {', '.join(names) or 'none'}")
    kinds = [(name, kind.newbyteorder(order), (count,)) for name, kind, count in fields]
    return np.dtype([(name, kind) if shape == (1,) else (name, kind, shape) for name, kind, shape in kinds])


def _read_header(file: Path, opened: BinaryIO, end: str) -> list[str]:
    """Returns the lines of a header up to the line that begins with `end`, which is included."""
    lines: list[str] = []
    while opened.tell() < _HEADER and (line := opened.readline(_HEADER)):
        lines.append(line.decode(errors="backslashreplace").strip())
        if lines[-1].startswith(end):
            return lines
    raise SourceError(f"{file}: expected a header that ends with {end}, got {' / '.join(lines)!r:.80}")


# ---- PCD ----


def _read_pcd(file: Path, opened: BinaryIO, notes: Notes) -> Columns:
    header: dict[str, list[str]] = {}
    for line in _read_header(file, opened, "DATA"):
        key, *values = line.split() or [""]
        if key and not key.startswith("#"):
            header[key] = values
    try:
        names, sizes, types = header["FIELDS"], header["SIZE"], header["TYPE"]
        counts = [int(count) for count in header.get("COUNT", ["1"] * len(names))]
        width, height = int(header["WIDTH"][0]), int(header["HEIGHT"][0])
        points = int(header["POINTS"][0]) if "POINTS" in header else width * height
        (data,) = header["DATA"]
        kinds = [
            np.dtype(f"{ {'F': 'f', 'I': 'i', 'U': 'u'}[type] }{size}") for type, size in zip(types, sizes, strict=True)
        ]
        fields = list(zip(_number_padding(names), kinds, counts, strict=True))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise SourceError(f"{file}: a header that is no PCD: {type(error).__name__}: {error}") from error
    if width * height != points or points < 0 or not all(0 <= count < _HEADER for count in counts):
        raise SourceError(f"{file}: expected {width} x {height} points, COUNTs of 0 and more, got {points}, {counts}")
    fields = [field for field in fields if field[2]]  # some drivers write padding of COUNT 0
    dtype = _make_dtype(file, fields, "<")
    if data == "ascii":
        columns = _read_lines(file, opened, _make_dtype(file, fields, "="), points)
    elif data == "binary":
        columns = _read_columns(file, opened, dtype, points)
    elif data == "binary_compressed":
        columns = _read_packed(file, opened, dtype, points)
    else:
        raise SourceError(f"{file}: expected DATA ascii, binary or binary_compressed, got {data!r:.40}")
    _report_rest(opened, notes)
    if height > 1:
        notes.leave_out(f"the order of clouds in rows of {width}", "points stay in their order, row by row")
    viewpoint = header.get("VIEWPOINT", [])
    if viewpoint and [float(number) for number in viewpoint] != [0, 0, 0, 1, 0, 0, 0]:
        notes.leave_out("viewpoints", "the sensor's pose in VIEWPOINT: points stay as in the file, not moved by it")
    return {name: column for name, column in columns.items() if not name.startswith("_")}


def _number_padding(names: list[str]) -> list[str]:
    """Numbers the fields of padding, because PCL names all of them "_"."""
    return [f"_{number}" if name == "_" else name for number, name in enumerate(names)]


def _read_packed(file: Path, opened: BinaryIO, dtype: np.dtype[np.void], count: int) -> Columns:
    """Reads binary_compressed points: all values of the first field, then all of the next, compressed together."""
    sizes = np.frombuffer(opened.read(8), "<u4")
    if len(sizes) < 2:
        raise SourceError(f"{file}: ends before its points")
    packed, size = map(int, sizes)
    _check_size(file, packed, _bytes_left(opened))
    if size != count * dtype.itemsize or size > packed * _MOST_PACKED:
        raise SourceError(f"{file}: expected {count * dtype.itemsize} bytes of points, got {size} packed in {packed}")
    raw = _unpack_lzf(file, opened.read(packed), size)
    columns, offset = {}, 0
    for name in dtype.names or ():
        kind = dtype[name]
        columns[name] = np.frombuffer(raw, kind.base, count * int(np.prod(kind.shape, dtype=int)), offset).reshape(
            count, *kind.shape
        )
        offset += count * kind.itemsize
    return columns


def _unpack_lzf(file: Path, packed: bytes, size: int) -> bytearray:
    """Unpacks liblzf's format, in which runs of plain bytes alternate with references to earlier bytes."""
    raw = bytearray()
    offset, end = 0, len(packed)
    try:
        while offset < end:
            control = packed[offset]
            offset += 1
            if control < 32:
                raw += packed[offset : offset + control + 1]
                offset += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += packed[offset]
                offset += 1
            start = len(raw) - ((control & 31) << 8) - packed[offset] - 1
            offset += 1
            length += 2
            if start < 0:
                raise IndexError
            piece = raw[start : start + length]
            # A reference may be longer than the bytes that it refers to; these then repeat.
            raw += piece if len(piece) == length else (piece * (length // len(piece) + 1))[:length]
    except IndexError:
        raise SourceError(f"{file}: byte {offset} of its packed points: refers to bytes that do not exist") from None
    if offset != end or len(raw) != size:
        raise SourceError(f"{file}: expected {size} bytes of points, got {len(raw)}")
    return raw


# ---- arrays ----


def _read_bin(file: Path, opened: BinaryIO, columns: int) -> Columns:
    size = _bytes_left(opened)
    if size % (4 * columns):
        raise SourceError(f"{file}: expected points of {columns} float32, got {size} bytes")
    points = np.frombuffer(opened.read(), "<f4").reshape(-1, columns)
    return dict(zip(_BIN_NAMES, points.T, strict=False))


def _read_npz(file: Path, opened: BinaryIO, notes: Notes) -> Columns:
    with zipfile.ZipFile(opened) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        name = "points" if "points" in members else next(iter(members)) if len(members) == 1 else None
        if name is None:
            raise SourceError(
                f"{file}: expected an array 'points' or a single array, got {', '.join(members) or 'none'}"
            )
        _check_size(file, members[name].file_size, members[name].compress_size, packed=_MOST_PACKED)
        with archive.open(members[name]) as member:
            points = np.load(io.BytesIO(member.read()), allow_pickle=False)
    for other in members.keys() - {name}:
        notes.leave_out(other, "not the points")
    return _array_columns(file, points)


def _array_columns(file: Path, points: np.ndarray) -> Columns:
    """Returns x, y, z and further columns, or the fields of a structured array, in the machine's byte order."""
    points = points.astype(points.dtype.newbyteorder("="), copy=False)
    if points.dtype.names is not None and points.ndim == 1:
        return {name: np.array(points[name]) for name in points.dtype.names}
    if points.ndim != 2 or points.shape[1] < 3:
        raise SourceError(
            f"{file}: expected points [N, 3] and wider, or an array with fields, got {list(points.shape)}"
        )
    may_be_columns = len(points) in (3, 4, 6) or 4 * len(points) < points.shape[1]
    if len(points) > 2 and may_be_columns and points.shape[1] > _WIDEST:
        raise SourceError(
            f"{file}: expected a row for each point, got {list(points.shape)}: its points may be columns; transpose the array, points.T"
        )
    names = ["x", "y", "z", *(str(column) for column in range(3, points.shape[1]))]
    return dict(zip(names, np.array(points).T, strict=True))


# ---- LAS and LAZ ----


def _read_las(file: Path, notes: Notes) -> Columns:
    """Returns x, y, z as float64, with the header's scale and offset applied, and the other fields of points."""
    try:
        import laspy

        if file.suffix.lower() == ".laz":
            import lazrs  # noqa: F401  laspy needs it, and its error does not name it
    except ImportError as error:
        raise Error(f"{error}; pip install 'robocache[lidar]'") from error
    _check_las_header(file)
    with laspy.open(file, laz_backend=Unpacker(file)) as reader:
        header = reader.header
        stored = file.stat().st_size - int(header.offset_to_point_data)
        packed = _MOST_PACKED if header.are_points_compressed else 1
        _check_size(file, header.point_count * header.point_format.size, stored, packed)
        no_data = _las_no_data(header.vlrs, notes)
        parts = [_las_columns(points, no_data) for points in reader.chunk_iterator(1 << 18)]
        if not parts:
            parts = [_las_columns(reader.read_points(0), no_data)]
        for name, value in no_data.items():
            notes.assume(f"{name} of points", f"NaN where it is {value:g}, which means no measurement by the file")
        for record in header.vlrs:
            notes.leave_out(f"LAS record {record.user_id} {record.record_id}", "no points")
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if len(columns["x"]) != header.point_count:
        raise SourceError(f"{file}: expected {header.point_count} points, got {len(columns['x'])}")
    return columns


def _check_las_header(file: Path) -> None:
    """Refuses a header that claims more records or chunks than the file can hold: laspy would allocate every record, and lazrs ends the
    process if there is no memory for the table of chunks. Offsets and sizes are those of LAS 1.4 and of LAZ's table of chunks."""
    with file.open("rb") as opened:
        head = opened.read(375).ljust(375, b"\0")  # 375 bytes in LAS 1.4, 227 or more in earlier versions
        size, chunks = os.fstat(opened.fileno()).st_size, 0
        if file.suffix.lower() == ".laz":
            (start,) = struct.unpack_from("<I", head, 96)
            opened.seek(start)
            (table,) = struct.unpack("<q", opened.read(8).ljust(8, b"\0"))
            if table == -1:  # the writer could not seek back, so the offset of the table is at the file's end
                opened.seek(max(0, size - 8))
                (table,) = struct.unpack("<q", opened.read(8).ljust(8, b"\0"))
            if start < table <= size - 8:
                opened.seek(table)
                (chunks,) = struct.unpack("<4xI", opened.read(8))
    if head[:4] != b"LASF":
        raise SourceError(f"{file}: expected 'LASF' at its start, got {head[:4]!r}")
    length, points, records = struct.unpack_from("<HII", head, 94)
    extended_start, extended_records = struct.unpack_from("<QI", head, 235) if head[25] >= 4 else (size, 0)
    if not 227 <= length <= points <= size or records * 54 > points - length:
        raise SourceError(
            f"{file}: byte 94: a header of {length} bytes and {records} records before its points at byte {points} do not "
            f"fit into {size} bytes"
        )
    if chunks > size:
        raise SourceError(f"{file}: a table of {chunks} chunks, more than its {size} bytes can hold")
    if extended_records and (extended_start > size or extended_records * 60 > size - extended_start):
        raise SourceError(
            f"{file}: byte 235: {extended_records} records from byte {extended_start} on do not fit into {size} bytes"
        )


def _las_no_data(records: Iterable[Any], notes: Notes) -> dict[str, float]:
    """Returns for each extra field the raw value that means no measurement, as LAS 1.4's record of extra bytes declares it.

    The record has 192 bytes for each field: at 2 the type, at 3 the options (1: it has such a value), at 4 the name, at 40 the value.
    """
    no_data: dict[str, float] = {}
    for record in records:
        if (record.user_id, record.record_id) == ("LASF_Spec", 4):
            raw = record.record_data_bytes()
            for offset in range(0, len(raw) - 191, 192):
                kind, options = raw[offset + 2 : offset + 4]
                if options & 1 and 1 <= kind <= 10:
                    (value,) = struct.unpack_from(f"<{'d' if kind > 8 else 'Qq'[kind % 2 == 0]}", raw, offset + 40)
                    name = raw[offset + 4 : offset + 36].split(b"\0")[0].decode(errors="backslashreplace")
                    if kind in (7, 8):
                        notes.leave_out(
                            f"{name} of points: {value} as no measurement", "integers of 64 bits have no NaN"
                        )
                    else:
                        no_data[name] = value
    return no_data


def _las_columns(points: object, no_data: Mapping[str, float]) -> Columns:
    record: Any = points  # laspy declares no types
    columns = {name: np.array(record[name]) for name in ("x", "y", "z")}
    for name in record.point_format.dimension_names:
        if name not in ("X", "Y", "Z"):
            columns[name] = np.array(record[name])
            if name in no_data:
                columns[name] = np.where(record.array[name] == no_data[name], np.nan, columns[name])
    return columns
