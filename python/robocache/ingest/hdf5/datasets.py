"""HDF5 files by h5py: what lies in a group, and its datasets as streams, in parts; for the readers of each layout.

No link, external file or virtual dataset leads out of a file, no declared size is believed before the bytes of it are there,
and whatever is not read is named.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from ...errors import FileError
from ..files import Listing, check_file, look_through
from ..formats import CameraOptions
from ..formats.hdf5 import is_hdf5
from ..images import Images, Kinds, Storage, encode
from ..rate import nominal_time_ns
from ..recording import Frames, Notes, Ragged, Rows, Samples, SourceError, Texts, naming

# What is read at once.
_PART_BYTES = 32 << 20
# Rows of which each has a size of its own that are read at once.
_ROWS_AT_ONCE = 512
# HDF5 decodes whole chunks: the largest that is taken, where the file is small; and of any file.
_CHUNK_BYTES = 64 << 20
_MOST_CHUNK_BYTES = 512 << 20
# Where texts and other rows of any length lie: signature and version of what holds them.
_HEAP = re.compile(rb"GCOL\x01\0\0\0")
_SIGNATURE = int.from_bytes(b"GCOL", "little")
_MOST_HEAP = 1 << 26
# What a dataset has of each of them.
_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("index", "<u4")])
_SCAN_BYTES = 1 << 20
# What a row of numbers may have at most: a cache keeps statistics of each.
_MOST_FEATURES = 1 << 14
# Of one camera in one recording.
_MOST_IMAGES = 1 << 22
# An attribute or scalar that becomes a column of the episodes table.
_FACT_BYTES = 1 << 16
_MOST_HOPS = 16
# Groups and datasets of a recording, by whatever names: each dataset becomes a stream.
_MOST_OBJECTS = 1 << 16
_IMAGE_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_RESERVED = ("episode_index", "start_ns", "end_ns")


# ---- files ----


def find_files(source: Path, notes: Notes) -> tuple[Path, Listing, list[Path]]:
    """The folder that names are relative to, all files, and those that are HDF5's by name, or all there is."""
    root, listing = look_through(source, notes)
    files = [file for file in listing.files if file == source or is_hdf5(file)]
    if not files:
        raise FileError(f"{source}: expected HDF5 files (*.hdf5, *.h5), found none")
    return root, listing, files


@contextmanager
def open_file(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file, to read.

    Raises:
        SourceError: no regular file, or none that HDF5 opens; one that another program is writing, or with more in it
            than any recorder puts there.
    """
    check_file(path)
    _check_heaps(path)
    try:
        # Where a file system knows no locks, as some that are shared or read-only, there are none to heed.
        file = h5py.File(path, "r", locking="best-effort")
    except Exception as error:
        raise SourceError(f"{path}: not an HDF5 file that can be read: {error}") from error
    with file:
        check_links(path, file)
        yield file


def check_links(file: Path, group: h5py.Group, before: int = 0, most: int = _MOST_OBJECTS) -> int:
    """How many groups and datasets there are with those of this group; before h5py holds all their names.

    Raises:
        SourceError: more than `most`.
    """
    count = before + len(group)
    if count > most:
        raise SourceError(f"{place(file, group)}: expected at most {most} groups and datasets, got {count}")
    return count


def _check_heaps(path: Path) -> None:
    """Refuses heaps of texts in which a run of zeros lies: HDF5 (1.x and 2.0) would read them for ever.

    They are found by their signature, so the whole file is read: what HDF5 reads next lies in memory then.
    """
    with naming(path), path.open("rb", buffering=0) as file:
        left = os.fstat(file.fileno()).st_size + _MOST_HEAP  # beside what looks like one and is none
        for offset in _find_heaps(file):
            file.seek(offset)
            header = file.read(16)
            size = int.from_bytes(header[8:], "little")
            heap = file.read(min(size, _MOST_HEAP) - 16) if size > 16 else b""
            left -= len(heap)
            if left < 0:
                raise SourceError(
                    f"{path}: at byte {offset}: heaps of texts that lie in each other: the file is damaged"
                )
            at = 0
            while at + 16 <= len(heap):
                index, _, length = struct.unpack_from("<HxxiQ", heap, at)
                if index == 0 and length == 0:
                    raise SourceError(
                        f"{path}: at byte {offset + 16 + at}: zeros within a heap of texts: the file is damaged"
                    )
                at += 16 + -(-length // 8) * 8 if index else length


def _find_heaps(file: io.FileIO) -> list[int]:
    """Where in the file they begin. NumPy looks for four of their bytes in half the time that `re` takes."""
    found: list[int] = []
    block = bytearray(8 + _SCAN_BYTES)  # what is read, behind the last bytes before it
    words = [np.frombuffer(block, "<u4", 1 + _SCAN_BYTES // 4, shift) for shift in range(4)]
    start = -8
    while read := file.readinto(memoryview(block)[8:]):
        if any((word == _SIGNATURE).any() for word in words):
            found += [start + heap.start() for heap in _HEAP.finditer(block, 1, 8 + read)]
        block[:8] = block[read : read + 8]
        start += read
    return found


def describe(group: h5py.Group) -> str:
    """What lies in a group, in words: for messages that say what was found instead."""
    names = [escaped(name) for name in list(group)[:12]]
    more = len(group) - len(names)
    return (", ".join(names) or "nothing") + (f" and {more} more" if more > 0 else "")


def place(file: Path, node: h5py.Group | h5py.Dataset) -> str:
    """Begins the message of what is wrong with it."""
    return f"{file}: {(h5py.h5i.get_name(node.id) or b'?').decode(errors='backslashreplace')}"


def escaped(name: str) -> str:
    """A name in UTF-8; bytes that are none are shown escaped."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


# ---- links ----


Link = tuple[int, int]


def child(group: h5py.Group, name: str, link: Link | None = None) -> h5py.Group | Dataset | h5py.Datatype:
    """What a link leads to, within this file.

    link: as of :func:`links`, where it is known.

    Raises:
        SourceError: it leads out of the file, in a circle, or to nothing.
    """
    return _child_at(group, name.encode(errors="surrogateescape"), link)[0]


def _child_at(group: h5py.Group, name: bytes, link: Link | None = None) -> tuple[Any, int]:
    """The same, and its address in the file."""
    try:
        return _follow(group, name, [_MOST_HOPS], link)
    except SourceError as error:
        where = place(Path(group.file.filename), group).rstrip("/")
        raise SourceError(f"{where}/{name.decode(errors='backslashreplace')}: {error}") from error


def links(group: h5py.Group) -> dict[str, Link]:
    """The names in a group, in its order, and of each link its kind and what it says, which :func:`child` would ask for."""
    return {name.decode(errors="surrogateescape"): link for name, link in _links(group)}


def _links(group: h5py.Group) -> list[tuple[bytes, Link]]:
    found: list[tuple[int, bytes, Link]] = []

    def add(name: bytes, info: Any) -> None:
        found.append((info.corder if info.corder_valid else 0, name, (info.type, info.u)))

    group.id.links.iterate(add, info=True)
    return [(name, link) for _, name, link in sorted(found, key=itemgetter(0))]


class Dataset:
    """A dataset, of which HDF5 is asked once what h5py asks each time."""

    def __init__(self, identifier: h5py.h5d.DatasetID) -> None:
        self.id = identifier

    def __getitem__(self, rows: Any) -> Any:
        return self.opened[rows]

    @cached_property
    def opened(self) -> h5py.Dataset:
        return h5py.Dataset(self.id, readonly=True)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """None where there is no data space."""
        shape: tuple[int, ...] = self.id.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.id.dtype  # which keeps it
        return dtype

    @property
    def is_one_piece(self) -> bool:
        """Whether its bytes lie one behind the other, in this file."""
        return self.id.get_offset() is not None

    @cached_property
    def properties(self) -> h5py.h5p.PropDCID:
        return self.id.get_create_plist()

    @cached_property
    def chunks(self) -> tuple[int, ...] | None:
        is_chunked = not self.is_one_piece and self.properties.get_layout() == h5py.h5d.CHUNKED
        chunks: tuple[int, ...] | None = self.properties.get_chunk() if is_chunked else None
        return chunks


def _follow(group: h5py.Group, name: bytes, hops: list[int], link: Link | None = None) -> tuple[Any, int]:
    if b"/" in name or name == b".":  # HDF5 takes it for a path
        raise SourceError(f"a link named {name!r}, which HDF5 does not allow")
    if link is None:
        info = group.id.links.get_info(name)
        link = info.type, info.u
    kind, says = link
    if kind == h5py.h5l.TYPE_HARD:
        opened = h5py.h5o.open(group.id, name)
        if isinstance(opened, h5py.h5d.DatasetID):
            return Dataset(opened), says
        return (h5py.Group(opened) if isinstance(opened, h5py.h5g.GroupID) else h5py.Datatype(opened)), says
    if kind != h5py.h5l.TYPE_SOFT:
        raise SourceError(f"/{name.decode(errors='backslashreplace')} is a link out of the file, which is not followed")
    # Step by step: HDF5 itself would follow an external link that lies on the way.
    target = group.id.links.get_val(name)
    node: Any = h5py.Group(h5py.h5g.open(group.file.id, b"/")) if target.startswith(b"/") else group
    address = _address(node)
    for part in target.split(b"/"):
        if part in (b"", b"."):
            continue
        hops[0] -= 1
        if hops[0] < 0 or not isinstance(node, h5py.Group) or not node.id.links.exists(part):
            raise SourceError(f"a link to {target.decode(errors='backslashreplace')}, which leads to nothing")
        node, address = _follow(node, part, hops)
    return node, address


@dataclass
class Tree:
    """What lies below a group.

    base: begins the message of what is wrong with anything in it.
    datasets: by their paths below it, in order.
    facts: scalars and single texts: what is the same for all rows.
    """

    base: str
    datasets: dict[str, Dataset] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def where(self, path: str) -> str:
        """Begins the message of what is wrong with that dataset."""
        return f"{self.base}/{path}"


def walk(file: Path, group: h5py.Group, what: str, notes: Notes, leave_out: Mapping[str, str] | None = None) -> Tree:
    """Everything below `group`, each object once; names whatever it does not give.

    what: the recording's name.
    leave_out: groups and datasets directly in `group` that are not wanted, and why.

    Raises:
        SourceError: more groups and datasets than any recording has.
    """
    tree = Tree(place(file, group).rstrip("/"))
    met: dict[int, str] = {_address(group): "itself"}
    stack = [(group, "")]
    objects = 0
    while stack:
        parent, prefix = stack.pop()
        groups = []
        objects = check_links(file, parent, objects)
        for name, link in _links(parent):
            path = prefix + name.decode(errors="backslashreplace")
            if leave_out and path in leave_out:
                notes.leave_out(path, leave_out[path])
                continue
            with notes.reading(f"{what}: {path}", tree.where(path)):
                node, address = _child_at(parent, name, link)
                if isinstance(node, h5py.Datatype):
                    notes.leave_out(path, "a type, no data")
                    continue
                same = met.setdefault(address, path)
                if same is not path:
                    notes.leave_out(path, f"the same as {same}")
                elif isinstance(node, h5py.Group):
                    _leave_out_attributes(path, node, notes)
                    groups.append((node, f"{path}/"))
                else:
                    _sort_in(tree, path, node, notes)
        stack += reversed(groups)
    return tree


def _address(node: Any) -> int:
    """In the file, as links to it have it."""
    address: int = h5py.h5o.get_info(node.id).addr
    return address


def _sort_in(tree: Tree, path: str, dataset: Dataset, notes: Notes) -> None:
    # Before anything is asked of it: to tell a virtual dataset's size, HDF5 opens the files that it names.
    if not dataset.is_one_piece:
        properties = dataset.properties
        if properties.get_layout() == h5py.h5d.VIRTUAL:
            raise SourceError(f"{tree.where(path)}: a virtual dataset, made of others that may lie in other files")
        if properties.get_external_count():
            other = os.fsdecode(properties.get_external(0)[0])
            raise SourceError(f"{tree.where(path)}: its data lie in another file ({other}), which is not read")
    _leave_out_attributes(path, dataset, notes)
    try:
        dtype, shape = dataset.dtype, dataset.shape
    except TypeError as error:
        notes.leave_out(path, f"of a type that NumPy does not have: {error}")
        return
    if shape is None:
        notes.leave_out(path, "declared empty")
    elif shape == () or (shape == (1,) and h5py.check_string_dtype(dtype)):
        if dtype.itemsize > _FACT_BYTES:
            notes.leave_out(path, f"{dtype.itemsize} bytes that are no rows")
        else:
            _take_fact(tree.facts, path, dataset[0] if shape else dataset[()], notes)
    else:
        tree.datasets[path] = dataset


# ---- facts ----


def attributes(node: h5py.Group, notes: Notes, leave_out: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The attributes that the episodes table or the provenance can hold; the others are named."""
    facts: dict[str, Any] = {}
    for name in _attribute_names(node):
        shown = name.decode(errors="backslashreplace")
        if leave_out and shown in leave_out:
            notes.leave_out(f"attribute {shown}", leave_out[shown])
            continue
        attribute = h5py.h5a.open(node.id, name)
        kind = attribute.get_type()
        if kind.get_class() == h5py.h5t.VLEN:  # no fact; and of a damaged kind HDF5 dies
            notes.leave_out(f"attribute {shown}", "a list of any length")
            continue
        if attribute.get_storage_size() > 16 * _FACT_BYTES:
            notes.leave_out(f"attribute {shown}", f"more than {16 * _FACT_BYTES} bytes")
            continue
        try:
            value = _read_attribute(node, name, attribute, kind.dtype)
        except Exception as error:
            raise SourceError(
                f"{node.file.filename}: {escaped(node.name or '?')}: attribute {shown}: {error}"
            ) from error
        _take_fact(facts, shown, value, notes)
    return facts


def _attribute_names(node: h5py.Group | Dataset) -> list[bytes]:
    """In h5py's order, for which it takes as long as for all else: of one there is none."""
    count = h5py.h5a.get_num_attrs(node.id)
    if count > 1:
        return [name.encode(errors="surrogateescape") for name in h5py.AttributeManager(node)]
    return [h5py.h5a.open(node.id, index=0).name] if count else []


def _read_attribute(node: h5py.Group, name: bytes, attribute: Any, dtype: np.dtype[Any]) -> Any:
    """As h5py gives it; of a plain number without opening it again."""
    if attribute.shape != () or dtype.kind not in "iuf" or dtype.metadata:
        return node.attrs[name]
    value = np.empty((), dtype)
    attribute.read(value, _memory_type(dtype))
    return value[()]


@lru_cache(maxsize=256)
def _memory_type(dtype: np.dtype[Any]) -> h5py.h5t.TypeID:
    """HDF5's name for it, which takes h5py as long as a small dataset's reading."""
    return h5py.h5t.py_create(dtype)


def _leave_out_attributes(path: str, node: h5py.Group | Dataset, notes: Notes) -> None:
    if names := _attribute_names(node):
        notes.leave_out(f"{path}: attributes", ", ".join(name.decode(errors="backslashreplace") for name in names))


def _take_fact(facts: dict[str, Any], name: str, value: Any, notes: Notes) -> None:
    plain = _plain(value)
    if plain is not None:
        facts[f"source_{name}" if name in _RESERVED else name] = plain
    elif not isinstance(value, h5py.Empty) and not (
        isinstance(value, float | np.floating) and not math.isfinite(value)
    ):
        notes.leave_out(name, f"neither a scalar nor a list of scalars: {type(value).__name__}")


def _plain(value: Any) -> Any:
    """As JSON has it: a scalar, a text, a list of numbers or texts; None for everything else."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, str):
        return escaped(value)
    if (
        isinstance(value, np.ndarray)
        and value.ndim == 1
        and value.nbytes <= _FACT_BYTES
        and value.dtype.kind in "iufSO"
    ):
        items = [_plain(item) for item in value.tolist()]
        return items if items and len({type(item) for item in items}) == 1 and items[0] is not None else None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else None


# ---- clocks ----


@dataclass(frozen=True)
class Clock:
    """The stamps of a recording's rows.

    rows: how many there are.
    time_ns: of the rows from one up to another, int64.
    kind, attributes: as of :class:`Rows`.
    """

    rows: int
    time_ns: Callable[[int, int], np.ndarray]
    kind: Literal["recorded", "nominal"]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def nominal(rows: int, rate_hz: float) -> Clock:
    """Row k at k / `rate_hz`."""
    return Clock(rows, partial(nominal_time_ns, rate_hz=rate_hz), "nominal")


# ---- datasets ----


class Column:
    """A dataset whose first dimension counts rows, as a stream.

    Args:
        stream, what: its name, and its recording's.
        where: begins the message of what is wrong with it.
    """

    def __init__(self, stream: str, what: str, where: str, dataset: Dataset, clock: Clock, notes: Notes) -> None:
        self.stream = stream
        self.what = what
        self.where = where
        self.dataset = dataset
        self.clock = clock
        self.notes = notes
        self._type = dataset.dtype
        element, inside = self._type.subdtype or (self._type, ())
        self._dtype: np.dtype[Any] = element.newbyteorder("=")  # of an element
        self._shape = (*dataset.shape[1:], *inside)  # of a row

    def samples(self, options: CameraOptions, kinds: Kinds) -> Iterator[tuple[str, Samples]]:
        """It in parts, each of which is read when its turn comes; nothing where it is left out, skipped, or has no rows."""
        with self.notes.reading(f"{self.what}: {self.stream}", self.where):
            rows = self.dataset.shape[0]
            if rows != self.clock.rows:
                raise SourceError(f"{self.where}: {rows} rows, expected {self.clock.rows}")
            if rows == 0:
                return
            if not self._is_written():
                self.notes.leave_out(self.stream, "declared, never written")
                return
            yield from self._samples(options, kinds)

    def _read(self, start: int, stop: int) -> np.ndarray:
        """Rows from one up to another, as h5py gives them; all of plain numbers without its detours for other types."""
        dtype, dataset = self._type, self.dataset
        if start > 0 or stop < dataset.shape[0] or dtype.kind not in "iuf" or dtype.metadata:
            rows: np.ndarray = dataset[start:stop]
            return rows
        values = np.empty(dataset.shape, dtype)
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values, _memory_type(dtype))
        return values

    def _is_written(self) -> bool:
        """Whether the file has bytes of it; raises SourceError where it lacks some, or HDF5 cannot read it in parts."""
        dataset = self.dataset
        stored = dataset.id.get_storage_size()
        if self.dataset.chunks is None:
            expected = math.prod(dataset.shape) * self._type.itemsize
            if 0 < stored < expected and not h5py.check_string_dtype(self._type):
                raise SourceError(f"{self.where}: {stored} bytes, its shape wants {expected}")
            return bool(stored or not expected)
        expected = math.prod(-(-side // chunk) for side, chunk in zip(dataset.shape, self.dataset.chunks, strict=True))
        if not expected:
            return True
        chunk_bytes = math.prod(self.dataset.chunks) * self._type.itemsize
        if stored and chunk_bytes > _CHUNK_BYTES:
            most = min(_MOST_CHUNK_BYTES, max(_CHUNK_BYTES, 8 * dataset.opened.file.id.get_filesize()))
            if chunk_bytes > most:
                raise SourceError(f"{self.where}: chunks of {chunk_bytes} bytes, expected at most {most}")
        written = dataset.id.get_num_chunks() if stored else 0
        if 0 < written < expected:
            raise SourceError(f"{self.where}: {written} of {expected} chunks were written")
        return bool(written)

    def _check_lengths(self) -> None:
        """Refuses rows of any length that claim to be longer than the file: HDF5 takes memory for them first."""
        offset, file = self.dataset.id.get_offset(), Path(self.dataset.opened.file.filename)
        count = math.prod(self.dataset.shape)
        if offset is None or self.dataset.id.get_storage_size() != count * _REFERENCE.itemsize:
            return  # in chunks, which have no offset
        with file.open("rb") as opened:
            opened.seek(offset)
            lengths = np.fromfile(opened, _REFERENCE, count)["length"]
            most = os.fstat(opened.fileno()).st_size
        bad = np.flatnonzero(lengths > most)
        if len(bad):
            raise SourceError(f"{self.where}: element {bad[0]} has {lengths[bad[0]]} values, the file {most} bytes")

    def _samples(self, options: CameraOptions, kinds: Kinds) -> Iterator[tuple[str, Samples]]:
        dtype, shape = self._dtype, self._shape
        if dtype.kind == "O":
            self._check_lengths()
        if self._has_images():
            yield from self._images(options, kinds)
        elif h5py.check_string_dtype(self._type) and shape == ():
            yield from self._texts()
        elif h5py.check_vlen_dtype(self._type) and shape == ():
            yield from self._ragged()
        elif dtype.kind not in "biuf" or dtype.itemsize > 8:
            self.notes.leave_out(self.stream, f"of type {_type_name(self._type)}")
        elif (found := _layout_of_frames(dtype, shape, self.stream)) is not None:
            frames = self._frames(*found, options, kinds)
            if frames is not None:
                yield self.stream, frames
        elif math.prod(shape) > _MOST_FEATURES:
            rows = f"rows of {list(shape)} {dtype}"
            self.notes.leave_out(self.stream, f"{rows}: neither frames nor at most {_MOST_FEATURES} numbers")
        else:
            for start, stop, values in self._parts():
                yield (
                    self.stream,
                    Rows(self._time_ns(start, stop), values, None, self.clock.kind, self.clock.attributes),
                )

    def _time_ns(self, start: int, stop: int) -> np.ndarray:
        return self.clock.time_ns(start, stop)

    def _parts(self, most: int = 1 << 62) -> Iterator[tuple[int, int, np.ndarray]]:
        """Rows from one up to another, and their values; a part that cannot be read is skipped by its rows."""
        row_bytes = max(1, math.prod(self._shape) * self._dtype.itemsize)
        if row_bytes > 8 * _PART_BYTES:
            raise SourceError(f"{self.where}: rows of {row_bytes} bytes")
        step = max(1, min(most, _PART_BYTES // row_bytes))
        if self.dataset.chunks and self.dataset.chunks[0] < step:
            step -= step % self.dataset.chunks[0]  # a chunk that is cut is decoded twice
        rows = self.clock.rows
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            values = None
            span = f"rows {start}-{stop - 1}" if stop > start + 1 else f"row {start}"
            with self.notes.reading(f"{self.what}: {self.stream}: {span}", f"{self.where}: {span}"):
                values = self._read(start, stop)
            if values is None:
                continue
            if values.dtype == bool:
                values = values.view(np.uint8) != 0  # any byte may lie in the file
            yield start, stop, values.astype(values.dtype.newbyteorder("="), copy=False)

    def _texts(self) -> Iterator[tuple[str, Samples]]:
        for start, stop, values in self._parts(_ROWS_AT_ONCE):
            texts = [text if isinstance(text, bytes) else str(text).encode(errors="surrogateescape") for text in values]
            decoded = [text.decode(errors="backslashreplace") for text in texts]
            if any(text.encode() != raw for text, raw in zip(decoded, texts, strict=True)):
                self.notes.leave_out(f"{self.stream}: bytes that are no UTF-8", "shown escaped")
            yield self.stream, Texts(self._time_ns(start, stop), decoded, self.clock.kind, self.clock.attributes)

    def _ragged(self) -> Iterator[tuple[str, Samples]]:
        element = np.dtype(h5py.check_vlen_dtype(self._type))
        if element.kind not in "biuf" or element.itemsize > 8:
            self.notes.leave_out(self.stream, f"rows of any length of type {_type_name(element)}")
            return
        if not element.isnative:  # h5py (3.16) gives their bytes unswapped
            self.notes.leave_out(self.stream, f"rows of any length of {element.str}, big-endian")
            return
        for start, stop, values in self._parts(_ROWS_AT_ONCE):
            rows = [np.asarray(row, element) for row in values]
            offsets = np.zeros(len(rows) + 1, np.int64)
            np.cumsum([len(row) for row in rows], out=offsets[1:])
            time_ns = self._time_ns(start, stop)
            elements = np.concatenate(rows)
            yield self.stream, Ragged(time_ns, elements, offsets, None, self.clock.kind, self.clock.attributes)

    # ---- cameras ----

    def _has_images(self) -> bool:
        """Whether a row is a JPEG or PNG file, as the first one shows; behind it zeros, so that all are of one length."""
        if self._shape and not (
            len(self._shape) == 1 and self._shape[0] > len(_IMAGE_MAGIC[1]) and self._dtype == np.uint8
        ):
            return False
        if not self._shape and self._dtype.kind not in "OSV":
            return False
        if self._dtype.kind == "V" and self._dtype.names:
            return False
        if math.prod(self._shape) * self._dtype.itemsize > _PART_BYTES:
            return False
        return _to_bytes(self.dataset[0]).startswith(_IMAGE_MAGIC)

    def _images(self, options: CameraOptions, kinds: Kinds) -> Iterator[tuple[str, Samples]]:
        if self.clock.rows > _MOST_IMAGES:
            raise SourceError(f"{self.where}: {self.clock.rows} images, expected at most {_MOST_IMAGES}")
        time_ns = self._time_ns(0, self.clock.rows)
        images = Images(self.stream, self.what, self.where, time_ns, self.clock.kind, _Blobs(self.dataset).read).stored(
            options, kinds, self.notes
        )
        if images is not None:
            yield self.stream, replace(images, attributes=self.clock.attributes)

    def _frames(self, depth: bool, channels_first: bool, options: CameraOptions, kinds: Kinds) -> Frames | None:
        """Its pixels as they are stored; None where none can be read."""
        height, width, channels = (*self._shape, 1)[:3]
        if channels_first:
            channels, height, width = height, width, channels
        kinds.check(self.stream, f"{width}x{height} {channels} {self._dtype}", self.where)
        storage = Storage.of(options)
        # Masks and depth are what they are in every pixel.
        if depth or (channels == 1 and options.image_codec is None):
            storage = replace(storage, codec="raw" if self._dtype == np.float32 else "png")
        if depth and storage.size is not None:
            self.notes.leave_out(f"{self.stream}: image_size", "depth keeps its size")
            storage = replace(storage, size=None)

        def chunks() -> Iterator[tuple[np.ndarray, Any]]:
            for start, stop, values in self._parts():
                pixels = np.moveaxis(values, 1, -1) if channels_first else values
                pixels = pixels.reshape(stop - start, height, width, channels)
                yield self._time_ns(start, stop), encode(np.ascontiguousarray(pixels), storage)

        found = chunks()
        first = next(found, None)
        if first is None:
            return None
        return Frames(
            chain([first], found),
            resized=storage.resized(height, width),
            clock=self.clock.kind,
            attributes=self.clock.attributes,
        )


def _layout_of_frames(dtype: np.dtype[Any], shape: tuple[int, ...], stream: str) -> tuple[bool, bool] | None:
    """Whether rows are depth, and whether their channels come first; None where they are no frames."""
    if len(shape) == 3 and min(shape[:2]) >= 8 and shape[2] in (1, 3):
        channels, channels_first = shape[2], False
    elif len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 8:
        channels, channels_first = shape[0], True
    elif len(shape) == 2 and min(shape) >= 32:
        channels, channels_first = 1, False
    else:
        return None
    if dtype == np.uint8:
        return False, channels_first
    if channels == 1 and (dtype == np.uint16 or (dtype == np.float32 and "depth" in stream.lower())):
        return True, channels_first
    return None


def _type_name(dtype: np.dtype[Any]) -> str:
    if h5py.check_ref_dtype(dtype):
        return "references to other objects"
    if dtype.names:
        return f"compounds of {', '.join(dtype.names)}"
    return str(dtype)


def _to_bytes(row: Any) -> bytes:
    """An image's file: no JPEG or PNG ends with zeros."""
    if isinstance(row, str):
        row = row.encode(errors="surrogateescape")
    return bytes(row if isinstance(row, bytes) else np.asarray(row).tobytes()).rstrip(b"\0")


class _Blobs:
    """Rows that are files, a few of them read at once."""

    _AT_ONCE = 16

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._start = 0
        self._rows: list[bytes] = []

    def read(self, row: int) -> bytes:
        if not self._start <= row < self._start + len(self._rows):
            self._start, self._rows = row, []
            try:
                self._rows = [_to_bytes(blob) for blob in self._dataset[row : row + self._AT_ONCE]]
            except OSError:  # which of them it is, each says by itself
                return _to_bytes(self._dataset[row])
        return self._rows[row - self._start]
