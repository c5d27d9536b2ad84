"""Finds the objects below a group of an HDF5 file by h5py, for the readers of all layouts.

Links, external files and virtual datasets that lead out of a file are refused. Everything that is not read is reported.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...errors import FileError
from ...feature_names import declares
from ..declared import FLAGS, PACKING, UNSIGNED, may_say_colors, unpacked
from ..files import Listing, check_file, look_through, natural, without_links_to_others
from ..formats.hdf5 import PROPRIO, TRAJECTORY, is_hdf5
from ..reader_process import ReaderProcess, reader_process
from ..recording import Notes, SourceError

# The most bytes of an attribute or scalar that becomes a column of the episodes table.
_FACT_BYTES = 1 << 16
# The most names that are followed in the soft links to an object.
_MOST_HOPS = 16
# The most groups and datasets of a recording: each dataset becomes a stream.
_MOST_OBJECTS = 1 << 16
# Columns that the cache itself adds to the episodes table.
_RESERVED = ("episode_index", "start_ns", "end_ns")


# ---- files ----


def find_files(source: Path, notes: Notes) -> tuple[Listing, dict[Path, str]]:
    """Returns the listing of a source, and its HDF5 files with their names, in natural order. If the source is a file, it is taken as
    HDF5, whatever its name."""
    root, listing = look_through(source, notes)
    files = [file for file in listing.files if file == source or is_hdf5(file)]
    files = without_links_to_others(files, root, notes)
    if not files:
        raise FileError(f"{source}: expected HDF5 files (*.hdf5, *.h5), found none")
    return listing, {file: str(file.relative_to(root)) for file in sorted(files, key=natural)}


@contextmanager
def open_file(path: Path) -> Iterator[h5py.File]:
    """Opens an HDF5 file for reading.

    Raises:
        SourceError: the file is not regular, HDF5 cannot open it, another program is writing it, or it has more objects than
            any recorder writes.
    """
    check_file(path)
    name = os.fsencode(path)
    with reader_process() as process:
        try:
            process.ask(path, "hdf5_open", os.fspath(path))
            # "best-effort", because some shared or read-only file systems have no locks.
            file = h5py.File(path, "r", locking="best-effort")
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"{path}: not an HDF5 file that can be read: {error}") from error
        with file:
            _processes.setdefault(name, []).append(process)
            try:
                check_links(path, file)
                _links(file)
                yield file
            finally:
                _processes[name].remove(process)  # only this process: the file may have been opened a second time
                if not _processes[name]:
                    del _processes[name]


# The reader processes of each open file, by the file's name. They open each object before this process does, and read attributes and
# rows of varying length. HDF5 keeps these in heaps, and never returns from reading some damaged heaps (1.x and 2.0).
_processes: dict[bytes, list[ReaderProcess]] = {}


def _ask(node: Any, function: str, *arguments: Any, what: str = "") -> Any:
    """Calls a function of the reader process for an object. `what` follows the object's name in errors."""
    name = h5py.h5i.get_name(node.id) or b"/"
    file = h5py.h5f.get_name(node.id)
    where = f"{os.fsdecode(file)}: {name.decode(errors='backslashreplace')}{what}"
    return _processes[file][-1].ask(where, function, name, *arguments)


def check_links(file: Path, group: h5py.Group, before: int = 0, most: int = _MOST_OBJECTS) -> int:
    """Returns the sum of `before` and the number of groups and datasets in this group. Call it before h5py loads all their names.

    Raises:
        SourceError: the sum is above `most`.
    """
    count = before + len(group)
    if count > most:
        raise SourceError(f"{location(file, group)}: expected at most {most} groups and datasets, got {count}")
    return count


def describe(group: h5py.Group) -> str:
    """Describes the contents of a group, for errors."""
    names = [escaped(name) for name in list(group)[:12]]
    more = len(group) - len(names)
    return (", ".join(names) or "nothing") + (f" and {more} more" if more > 0 else "")


def another_layout(path: Path, file: h5py.File, requested: str, expected: str) -> SourceError:
    """Returns the error about a file that does not have the requested layout."""
    hint = hint_of_layout(path, file, requested) or "; robocache.Writer makes a cache of the arrays of any file"
    return SourceError(f"{path}: expected {expected}, found {describe(file)}{hint}")


def hint_of_layout(path: Path, file: h5py.File, requested: str) -> str:
    """Returns a hint that names the format that reads the file; "" if that is the requested one, or none does."""
    names = set(file)
    if any(name.startswith("demo_") for name in _names_in(file, "data")):
        layout = "robomimic"
    elif path.name == TRAJECTORY and "timestamp" in _names_in(file, "observation"):
        layout = "droid"
    elif any(re.fullmatch(r"traj_\d+", name) for name in names):
        layout = "maniskill"
    elif path.name == PROPRIO and "timestamp" in names:
        layout = "agibot"
    elif "joint_action" in names:
        layout = "robotwin"
    elif "observations" in names or "action" in names:
        layout = "aloha"
    else:
        return ""
    return "" if layout == requested else f"; format={layout!r} reads that"


def _names_in(file: h5py.File, name: str) -> list[str]:
    node = child(file, name) if name in file and file.get(name, getlink=True).__class__ is h5py.HardLink else None
    return list(node) if isinstance(node, h5py.Group) else []


def location(file: Path, node: h5py.Group | h5py.Dataset) -> str:
    """Returns an object's file and path in it, with which errors about it begin."""
    return f"{file}: {(h5py.h5i.get_name(node.id) or b'?').decode(errors='backslashreplace')}"


def escaped(name: str) -> str:
    """Returns a name in UTF-8, with other bytes escaped."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


# ---- links ----


# The type of a link (h5py.h5l.TYPE_HARD or another), and for a hard link the object's address in the file.
Link = tuple[int, int]


def child(group: h5py.Group, name: str, link: Link | None = None) -> h5py.Group | Dataset | h5py.Datatype:
    """Returns the object of this name in a group. Follows links within the file.

    link: as in :func:`links`, if it is known.

    Raises:
        SourceError: the link leads out of the file, in a circle, or to nothing.
    """
    return _child_at(group, name.encode(errors="surrogateescape"), link)[0]


def _child_at(group: h5py.Group, name: bytes, link: Link | None = None) -> tuple[Any, int]:
    """Returns what :func:`child` returns, and the object's address in the file."""
    try:
        return _follow(group, name, [_MOST_HOPS], link)
    except SourceError as error:
        where = location(Path(group.file.filename), group).rstrip("/")
        raise SourceError(f"{where}/{name.decode(errors='backslashreplace')}: {error}") from error


def links(group: h5py.Group) -> dict[str, Link]:
    """Returns the names in a group, in the group's order, with their links, for :func:`child`."""
    return {name.decode(errors="surrogateescape"): link for name, link in _links(group)}


def _links(group: h5py.Group) -> list[tuple[bytes, Link]]:
    names_and_links: list[tuple[bytes, Link]] = _ask(group, "hdf5_links")
    return names_and_links


class Dataset:
    """A dataset that keeps its properties, which h5py would read from HDF5 each time.

    attributes: the attributes that give its features' names or units, or describe its values.
    above: such attributes of the groups above the dataset, the nearest first.
    """

    def __init__(self, identifier: h5py.h5d.DatasetID) -> None:
        self.id = identifier
        self.attributes: dict[str, Any] = {}
        self.above: tuple[dict[str, Any], ...] = ()

    def __getitem__(self, rows: Any) -> Any:
        return _ask(self, "hdf5_rows", rows) if self.dtype.hasobject else self.opened[rows]

    @cached_property
    def opened(self) -> h5py.Dataset:
        return h5py.Dataset(self.id, readonly=True)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape; None if the dataset is declared empty."""
        shape: tuple[int, ...] = self.id.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.id.dtype  # h5py keeps this property itself
        return dtype

    @property
    def is_one_piece(self) -> bool:
        """Whether the dataset's bytes are contiguous in this file."""
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
    """Returns the object to which a link leads, and its address. `hops` counts down the names that may still be followed."""
    if b"/" in name or name == b".":  # HDF5 would take the name for a path
        raise SourceError(f"a link named {name!r}, which HDF5 does not allow")
    if link is None:
        info = group.id.links.get_info(name)
        link = info.type, info.u
    kind, address = link
    if kind == h5py.h5l.TYPE_HARD:
        opened = h5py.h5o.open(group.id, name)
        if isinstance(opened, h5py.h5d.DatasetID):
            return Dataset(opened), address
        return (h5py.Group(opened) if isinstance(opened, h5py.h5g.GroupID) else h5py.Datatype(opened)), address
    if kind != h5py.h5l.TYPE_SOFT:
        raise SourceError(f"/{name.decode(errors='backslashreplace')} is a link out of the file, which is not followed")
    # The path is followed name by name, since HDF5 itself would follow an external link in it.
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
    """The objects below a group.

    base: the file and the group's path, with which errors about anything in the group begin.
    datasets: the datasets by their paths below the group, in order.
    facts: scalars and single texts, which hold for all rows.
    """

    base: str
    datasets: dict[str, Dataset] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def where(self, path: str) -> str:
        """Returns the file and path of a dataset, with which errors about it begin."""
        return f"{self.base}/{path}"


def walk(file: Path, group: h5py.Group, what: str, notes: Notes, leave_out: Mapping[str, str] | None = None) -> Tree:
    """Returns the objects below `group`, each once, and reports everything that it leaves out.

    what: the recording's name.
    leave_out: the groups and datasets to leave out, by their paths below `group`, with the reason.

    Raises:
        SourceError: there are more groups and datasets than any recording has.
    """
    tree = Tree(location(file, group).rstrip("/"))
    paths: dict[int, str] = {_address(group): "itself"}
    stack: list[tuple[Any, str, tuple[dict[str, Any], ...]]] = [(group, "", ())]
    objects = 0
    while stack:
        parent, prefix, above = stack.pop()
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
                first_path = paths.setdefault(address, path)
                if first_path is not path:
                    notes.leave_out(path, f"the same as {first_path}")
                elif isinstance(node, h5py.Group):
                    declared = _declaring_attributes(path, node, notes)
                    groups.append((node, f"{path}/", (declared, *above) if declared else above))
                else:
                    node.above = above
                    _add_dataset(tree, path, node, notes)
        stack += reversed(groups)
    return tree


def _address(node: Any) -> int:
    """Returns an object's address in the file, which is also in each hard link to the object."""
    address: int = h5py.h5o.get_info(node.id).addr
    return address


def _add_dataset(tree: Tree, path: str, dataset: Dataset, notes: Notes) -> None:
    # The first check comes before other properties are read: to find a virtual dataset's size, HDF5 opens the files that it names.
    if not dataset.is_one_piece:
        properties = dataset.properties
        if properties.get_layout() == h5py.h5d.VIRTUAL:
            raise SourceError(f"{tree.where(path)}: a virtual dataset, made of others that may lie in other files")
        if properties.get_external_count():
            other = os.fsdecode(properties.get_external(0)[0])
            raise SourceError(f"{tree.where(path)}: its data lie in another file ({other}), which is not read")
    dataset.attributes = _declaring_attributes(path, dataset, notes)
    try:
        dtype, shape = dataset.dtype, dataset.shape
    except TypeError as error:
        notes.leave_out(path, f"of a type that NumPy does not have: {error}")
        return
    if shape is None:
        notes.leave_out(path, "declared empty")
    elif shape == () and h5py.check_ref_dtype(dtype):
        notes.leave_out(path, "a reference to another object")
    elif shape == () or (shape == (1,) and h5py.check_string_dtype(dtype)):
        if dtype.itemsize > _FACT_BYTES:
            notes.leave_out(path, f"{dtype.itemsize} bytes that are no rows")
        else:
            report_words(path, dtype, notes)
            value = dataset[0] if shape else dataset[()]
            if isinstance(value, np.generic):
                (value,) = unpacked(path, np.array([value]), dataset.attributes, notes)[0]
            _add_fact(tree.facts, path, value, notes)
    else:
        tree.datasets[path] = dataset


# ---- facts ----


def attributes(node: h5py.Group, notes: Notes, leave_out: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the attributes that the episodes table or the provenance can hold; reports the others."""
    facts: dict[str, Any] = {}
    for name in _attribute_names(node):
        text = name.decode(errors="backslashreplace")
        if leave_out and text in leave_out:
            notes.leave_out(f"attribute {text}", leave_out[text])
        else:
            _add_attribute(facts, node, name, f"attribute {text}", notes)
    return facts


def _declaring_attributes(path: str, node: h5py.Group | Dataset, notes: Notes) -> dict[str, Any]:
    """Returns the attributes of a group or dataset that give features' names or units, or describe values; reports the others."""
    facts: dict[str, Any] = {}
    others = []
    value_attributes = (*PACKING, *FLAGS, UNSIGNED) if isinstance(node, Dataset) else ()
    for name in _attribute_names(node):
        text = name.decode(errors="backslashreplace")
        if declares(text) or may_say_colors(text) or text in value_attributes:
            _add_attribute(facts, node, name, f"{path}: attribute {text}", notes)
        else:
            others.append(text)
    if "MATLAB_class" in others:
        why = "MATLAB wrote it, and writes dimensions in reverse order: read as it is stored, though the steps may be its last dimension"
        notes.assume(f"steps of {path}", why, path)
    if others:
        notes.leave_out(f"{path}: attributes", ", ".join(others))
    return facts


def _add_attribute(facts: dict[str, Any], node: h5py.Group | Dataset, name: bytes, what: str, notes: Notes) -> None:
    attribute = h5py.h5a.open(node.id, name)
    stored_type = attribute.get_type()
    # No format needs a list of any length as an attribute, and a damaged one ends the process in HDF5.
    if stored_type.get_class() == h5py.h5t.VLEN:
        notes.leave_out(what, "a list of any length")
    elif h5py.check_ref_dtype(stored_type.dtype):
        notes.leave_out(what, "references to other objects")
    elif attribute.get_storage_size() > 16 * _FACT_BYTES:
        notes.leave_out(what, f"more than {16 * _FACT_BYTES} bytes")
    else:
        text = name.decode(errors="backslashreplace")
        try:
            value = _read_attribute(node, name, attribute, stored_type.dtype)
        except SourceError:
            raise
        except Exception as error:
            file = Path(os.fsdecode(h5py.h5f.get_name(node.id)))
            raise SourceError(f"{location(file, node)}: attribute {text}: {error}") from error
        report_words(what, stored_type.dtype, notes)
        _add_fact(facts, text, value, notes)


def _attribute_names(node: h5py.Group | Dataset) -> list[bytes]:
    """Returns the names of the attributes in h5py's order. h5py takes long for that, so it is asked only if there are several."""
    count = h5py.h5a.get_num_attrs(node.id)
    if count > 1:
        return [name.encode(errors="surrogateescape") for name in h5py.AttributeManager(node)]
    return [h5py.h5a.open(node.id, index=0).name] if count else []


def _read_attribute(node: h5py.Group | Dataset, name: bytes, attribute: Any, dtype: np.dtype[Any]) -> Any:
    """Returns an attribute as h5py does. A plain number is read from `attribute`, which is open; h5py would open it a second time."""
    if dtype.hasobject:
        return read_attribute(node, name.decode(errors="surrogateescape"))
    if attribute.shape != () or dtype.kind not in "iuf" or dtype.metadata:
        return h5py.AttributeManager(node)[name]
    value = np.empty((), dtype)
    attribute.read(value, memory_type(dtype))
    return value[()]


def read_attribute(node: h5py.Group | Dataset, name: str) -> Any:
    """Returns an attribute of any type, such as a text of varying length. The reader process reads it."""
    return _ask(node, "hdf5_attribute", name, what=f": attribute {escaped(name)}")


@lru_cache(maxsize=256)
def memory_type(dtype: np.dtype[Any]) -> h5py.h5t.TypeID:
    """Returns HDF5's type for a dtype. The result is kept, since h5py takes as long for it as for reading a small dataset."""
    return h5py.h5t.py_create(dtype)


def _add_fact(facts: dict[str, Any], name: str, value: Any, notes: Notes) -> None:
    fact = plain(value)
    is_missing = isinstance(value, h5py.Empty) or (isinstance(value, float | np.floating) and not math.isfinite(value))
    if fact is not None:
        facts[f"source_{name}" if name in _RESERVED else name] = fact
    elif not is_missing:
        notes.leave_out(name, f"neither a scalar nor a list of scalars: {type(value).__name__}")


def enum_words(dtype: np.dtype[Any]) -> dict[str, int]:
    """Returns the words of an enumeration with their numbers; an empty dict for other types."""
    element = h5py.check_vlen_dtype(dtype) or dtype.base
    words = {escaped(word): int(number) for word, number in (h5py.check_enum_dtype(element) or {}).items()}
    return dict(sorted(words.items(), key=lambda item: item[1]))


def report_words(name: str, dtype: np.dtype[Any], notes: Notes) -> None:
    """Reports the words of an enumeration of which only a number is kept, as a column."""
    if words := enum_words(dtype):
        notes.leave_out(
            f"{name}: words", f"its number is kept: {', '.join(f'{number} {word}' for word, number in words.items())}"
        )


def plain(value: Any) -> Any:
    """Returns a value as JSON can hold it: a scalar, a text, or a list of numbers or of texts; None for everything else."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iufSO":
        items = [plain(item) for item in value.tolist()] if value.nbytes <= _FACT_BYTES else []
        return items if len({type(item) for item in items}) == 1 and items[0] is not None else None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else None
