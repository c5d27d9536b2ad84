"""Decodes messages as ROS 1 and ROS 2 (CDR) serialise them.

The offsets of a message's fields follow from its type and from the lengths of its sequences and texts. The fields of one message are
located one by one. All messages with the same lengths, often all messages of a topic, are then read together: a field is a column of
one array, whose rows are the messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

from ...errors import Error
from ..budget import check_decoded, check_size
from .bags import Payload, SameSize
from .batches import MAX_LEAVES, Leaf, offsets_of

_NUMBERS = {
    name: np.dtype(name)
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
} | {"octet": np.dtype(np.uint8), "char": np.dtype(np.uint8), "byte": np.dtype(np.uint8)}
# ROS 2 gives a message without fields this one field.
EMPTY = "structure_needs_at_least_one_member"
# Messages of up to this many bytes are copied whole into one array. From larger messages only the fields that are read are copied. A
# sequence of more bytes may be a message's large sequence, see _LargeSequence.
_SMALL = 4096
# At most this many layouts are remembered for messages of one length.
_REMEMBERED = 32

# Maps the name of each type to its fields, in the form that rosbags gives them.
Definitions = dict[str, Any]


# ---- types ----


@cache
def known_definitions(ros: int) -> dict[str, Definitions]:
    """Returns the definitions of each distribution of ROS 1 or 2, by the distribution's name; the newest comes first."""
    names = [store.name for store in Stores if store.name.startswith(f"ROS{ros}_")]
    return {
        name.partition("_")[2].lower(): {
            typename: fields for typename, (_, fields) in get_typestore(Stores[name]).fielddefs.items()
        }
        for name in reversed(names)
    }


def parse_definition(name: str, text: str, encoding: str) -> Definitions:
    """Returns the definition of a type, and the definitions of the types inside it that follow in the text.

    encoding: "ros1msg", "ros2msg" or "ros2idl".

    Raises:
        Error: the text is not a definition that rosbags can read.
    """
    try:
        if encoding == "ros2idl":
            parts = text.split("=" * 80 + "\n")
            bodies = [part.partition("\n")[2] if part.startswith("IDL: ") else part for part in parts if part.strip()]
            types = {}
            for body in bodies:
                types.update(get_types_from_idl(body))
        else:
            types = get_types_from_msg(text, name)
    except Exception as error:
        raise Error(f"the definition of {name} cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
    return {typename: fields for typename, (_, fields) in types.items()}


def read_definitions(folder: Path) -> Definitions:
    """Returns the definitions in the .msg and .idl files below a folder. Each package has a folder, as in a ROS workspace."""
    definitions: Definitions = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix == ".msg" and file.is_file():
            package = file.parent.parent.name if file.parent.name == "msg" else file.parent.name
            definitions.update(parse_definition(f"{package}/msg/{file.stem}", file.read_text(), "ros2msg"))
        elif file.suffix == ".idl" and file.is_file():
            definitions.update(parse_definition(file.stem, file.read_text(), "ros2idl"))
    return definitions


def leaves_of(name: str, definitions: Definitions, ros: int) -> tuple[Leaf, ...]:
    """Returns the leaves of the type `name`. `ros` is 1 or 2.

    Raises:
        Error: a definition is missing or contains itself, a field's type cannot be read, or there are too many fields or nested messages.
    """
    return tuple(_leaves(name, "", definitions, ros, (), iter(range(MAX_LEAVES))))


def _leaves(
    name: str, prefix: str, definitions: Definitions, ros: int, inside: tuple[str, ...], budget: Iterator[int]
) -> list[Leaf]:
    """Returns the leaves of the type `name`, whose paths begin with `prefix`.

    inside: the types that contain it.
    budget: an iterator that all calls for one type share. Each message, also an empty one, takes one item; when none is left, the type is
        refused.
    """
    if name in inside:
        raise Error(f"the definition of {name} contains itself")
    if next(budget, None) is None:
        raise Error(f"more than {MAX_LEAVES} nested messages, such as {name}")
    if name not in definitions:
        raise Error(f"no definition of {name}: name a folder of .msg files with definitions (--definitions)")
    leaves: list[Leaf] = []
    inside = (*inside, name)
    if not definitions[name] and ros == 2:
        leaves.append(Leaf(prefix + EMPTY, "number", np.dtype(np.uint8)))
    for field_name, (node, field_type) in definitions[name]:
        path = prefix + field_name
        if node == Nodetype.BASE:
            leaves.append(replace(_make_leaf(path, field_type[0], ros), of=name))
        elif node == Nodetype.NAME:
            leaves += _leaves(field_type, f"{path}.", definitions, ros, inside, budget)
        else:
            (inner, inner_type), count = field_type
            if node == Nodetype.ARRAY:
                if inner == Nodetype.BASE and inner_type[0] in _NUMBERS:
                    leaves.append(Leaf(path, "number", _make_leaf(path, inner_type[0], ros).dtype, count))
                else:
                    for index in range(min(count, MAX_LEAVES + 1)):
                        element = f"{path}[{index}]"
                        if inner == Nodetype.BASE:
                            leaves.append(_make_leaf(element, inner_type[0], ros))
                        else:
                            leaves += _leaves(inner_type, f"{element}.", definitions, ros, inside, budget)
                        if len(leaves) > MAX_LEAVES:
                            break
            elif inner == Nodetype.BASE:
                element_leaf = _make_leaf(path, inner_type[0], ros)
                leaves.append(Leaf(path, "texts" if element_leaf.kind == "text" else "numbers", element_leaf.dtype))
            else:
                leaves.append(
                    Leaf(path, "records", fields=tuple(_leaves(inner_type, "", definitions, ros, inside, budget)))
                )
        if len(leaves) > MAX_LEAVES:
            raise Error(f"{name} has more than {MAX_LEAVES} fields")
    return leaves


def _make_leaf(path: str, name: str, ros: int) -> Leaf:
    """Returns the leaf of a field that is a single text or number, by the name of its type."""
    if name == "string":
        return Leaf(path, "text")
    if name == "byte" and ros == 1:
        name = "int8"
    if name not in _NUMBERS:
        raise Error(f"field {path} is a {name}, which cannot be read")
    return Leaf(path, "number", _NUMBERS[name])


# ---- the offsets of fields ----


@dataclass
class _Layout:
    """Where the fields of a message, or of a record in a message, lie in the payload.

    extents: for each leaf of the kind number, numbers or text: the offset of its first byte, and the count of its numbers or of its bytes.
    lists: for each list of texts, the offset and the size in bytes of each text.
    runs: for each list of records, its runs of equally spaced records: (count, bytes from one record to the next, layout of the first).
    """

    extents: dict[str, tuple[int, int]] = field(default_factory=dict)
    lists: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    runs: dict[str, list[tuple[int, int, _Layout]]] = field(default_factory=dict)


@dataclass(frozen=True)
class _LargeSequence:
    """The last large sequence of a message, such as an image's bytes. Its length may differ in other messages of the same layout.

    path: the field.
    length_offset: the offset of the sequence's length.
    end_offset: the offset after the sequence.
    count: the number of its elements.
    element_bytes: the size of an element.
    """

    path: str
    length_offset: int
    end_offset: int
    count: int
    element_bytes: int


# Memory in bytes that is budgeted for one text of a list, one record located alone, and one of a run of equally spaced records.
_TEXT_BYTES, _RECORD_BYTES, _SPACED_RECORD_BYTES = 200, 1000, 24


class _Walk:
    """Locates the fields of one payload. Raises struct.error or ValueError if the payload does not fit the type.

    order: the byte order, "<" or ">".
    offset: the offset of the next byte to read.
    lengths: the lengths of the sequences and texts read so far, by the offset of each length in the payload.
    large: the last large sequence read so far.
    """

    def __init__(self, payload: Payload, cdr: bool) -> None:
        self.order, self._start = "<", 0
        if cdr:
            if len(payload) < 4 or payload[0] != 0 or payload[1] > 1:
                raise ValueError(f"expected CDR, which begins with 00 00 or 00 01, got {bytes(payload[:4]).hex(' ')!r}")
            self.order, self._start = "<>"[payload[1] == 0], 4
        self._cdr = cdr
        self._payload = payload
        self._length = struct.Struct(f"{self.order}I")
        self.offset = self._start
        self.lengths: dict[int, int] = {}
        self.large: _LargeSequence | None = None

    def _align(self, size: int) -> None:
        """Skips the padding before a number of `size` bytes. Only CDR has padding."""
        if self._cdr:
            self.offset += -(self.offset - self._start) % size

    def _skip(self, size: int) -> int:
        """Skips `size` bytes, and returns the offset of the first one."""
        start = self.offset
        self.offset += size
        if self.offset > len(self._payload):
            raise ValueError(
                f"the message has {len(self._payload)} bytes, but a field of its type ends at byte {self.offset}"
            )
        return start

    def _read_count(self, least_size: int) -> int:
        """Reads and returns the length of a sequence or text whose elements have at least `least_size` bytes each."""
        self._align(4)
        length_offset = self._skip(4)
        (count,) = self._length.unpack_from(self._payload, length_offset)
        if count * least_size > len(self._payload) - self.offset:
            raise ValueError(
                f"the message has {len(self._payload)} bytes, but the length at byte {length_offset} is {count}"
            )
        self.lengths[length_offset] = count
        return int(count)

    def _locate_text(self) -> tuple[int, int]:
        """Returns the offset and the size of a text."""
        count = self._read_count(1)
        start = self._skip(count)
        return start, max(0, count - 1) if self._cdr else count  # without its NUL

    def locate(self, leaves: Sequence[Leaf], is_whole: bool = False) -> _Layout:
        """Returns the offsets of the fields of a whole message, or of the next record in it."""
        layout = _Layout()
        for leaf in leaves:
            if leaf.kind == "number" or leaf.kind == "numbers":
                assert leaf.dtype is not None
                size = leaf.dtype.itemsize
                fixed_count = 1 if leaf.count is None else leaf.count
                count = self._read_count(size) if leaf.kind == "numbers" else fixed_count
                if count:
                    self._align(size)
                layout.extents[leaf.path] = self._skip(count * size), count
                if is_whole and leaf.kind == "numbers" and count * size > _SMALL:
                    self.large = _LargeSequence(leaf.path, list(self.lengths)[-1], self.offset, count, size)
            elif leaf.kind == "text":
                layout.extents[leaf.path] = self._locate_text()
            elif leaf.kind == "texts":
                count = self._read_count(4)
                check_decoded(f"{leaf.path}: {count} texts", count * _TEXT_BYTES)
                layout.lists[leaf.path] = [self._locate_text() for _ in range(count)]
            else:
                count = self._read_count(1)
                if not leaf.fields or any(inner.kind != "number" for inner in leaf.fields):
                    check_decoded(f"{leaf.path}: {count} records", count * _RECORD_BYTES)
                layout.runs[leaf.path] = self._locate_records(leaf, count)
        return layout

    def _locate_records(self, leaf: Leaf, count: int) -> list[tuple[int, int, _Layout]]:
        """Returns the runs of records. Records that have only numbers are equally spaced and form one run; but the first may be a run of its
        own, since its fields may be aligned differently. A record that has more than numbers is a run of its own."""
        has_only_numbers = all(inner.kind == "number" for inner in leaf.fields)
        runs: list[tuple[int, int, _Layout]] = []
        for index in range(count):
            layout = self.locate(leaf.fields)
            if has_only_numbers and runs:
                previous = runs[-1][2].extents
                steps = {layout.extents[path][0] - previous[path][0] for path in previous}
                if len(steps) == 1:
                    step = steps.pop()
                    runs[-1] = (count - index + 1, step, runs[-1][2])
                    self._skip((count - index - 1) * step)
                    break
            runs.append((1, 0, layout))
        return runs

    def undescribed_bytes(self) -> int:
        """Returns the number of bytes behind the fields of a ROS 1 message, which ROS 1 ignores. Returns 0 for CDR, where such bytes are
        padding.

        Raises:
            ValueError: there are more than 3 such bytes in CDR, or more than 8 in ROS 1, which shows that the payload is of another type.
        """
        rest = len(self._payload) - self.offset
        if rest > (3 if self._cdr else 8):
            raise ValueError(f"the message has {len(self._payload)} bytes, but its type ends at byte {self.offset}")
        return 0 if self._cdr else rest


# ---- many messages ----


class _Payloads:
    """Payloads whose fields have equal offsets, except behind a large sequence, whose length may differ.

    stacked: the payloads as rows of one array; None if they are large.
    end: the offset after the large sequence in the payload whose layout all share.
    shifts: how many bytes longer each payload's large sequence is than in that payload: fields from `end` on lie `shifts[i]` bytes
        further in payload i. None if no length differs.
    """

    def __init__(
        self, payloads: Sequence[Payload], stacked: np.ndarray | None, end: int = 0, shifts: list[int] | None = None
    ) -> None:
        self._payloads = payloads
        self._stacked = stacked
        self._end = end
        self.shifts = shifts

    def __len__(self) -> int:
        return len(self._payloads)

    def cut(self, start: int, size: int, times: int, step: int) -> np.ndarray:
        """Returns `times` pieces of `size` bytes from each payload, uint8 ``[payloads * times, size]``. The first piece begins at `start`,
        each next piece `step` bytes later."""
        span = (times - 1) * step + size
        if self._stacked is not None:
            part = self._stacked[:, start : start + span]
        elif len(self) == 1 and self.shifts is None:
            part = np.frombuffer(self._payloads[0], np.uint8, span, start)[None]
        else:
            if self.shifts is not None and start >= self._end:
                pairs = zip(self._payloads, self.shifts, strict=True)
                joined = b"".join([payload[start + shift : start + shift + span] for payload, shift in pairs])
            else:
                joined = b"".join([payload[start : start + span] for payload in self._payloads])
            part = np.frombuffer(joined, np.uint8).reshape(len(self), span)
        if times == 1:
            return part
        strides = (part.strides[0], step, 1)
        return np.lib.stride_tricks.as_strided(part, (len(self), times, size), strides).reshape(-1, size)

    def cut_large(self, start: int, size: int) -> np.ndarray:
        """Returns the large sequence of each payload, which begins at `start` and has `size` bytes plus the payload's shift; concatenated."""
        assert self.shifts is not None
        pairs = zip(self._payloads, self.shifts, strict=True)
        return np.frombuffer(b"".join([payload[start : start + size + shift] for payload, shift in pairs]), np.uint8)


@dataclass
class _Group:
    """Rows of a batch whose fields have equal offsets. A payload gives one row, or `times` rows: its equally spaced records.

    order: the byte order, "<" or ">".
    layout: the offsets of the row's fields; of the first record, if a payload gives several rows.
    rows: the rows' indices in the batch; None if they are all rows of the batch, in order.
    step: the bytes from a record to the next.
    large: the large sequence, whose length may differ.
    """

    payloads: _Payloads
    order: str
    layout: _Layout
    rows: np.ndarray | None
    times: int = 1
    step: int = 0
    large: _LargeSequence | None = None

    def count(self, path: str) -> Any:
        """Returns the number of elements of a sequence: one number if it is the same in all rows, else an array with a number for each
        row."""
        count = self.layout.extents[path][1]
        if self.payloads.shifts is None or self.large is None or self.large.path != path:
            return count
        return count + np.array(self.payloads.shifts) // self.large.element_bytes

    def sequences(self, leaf: Leaf) -> np.ndarray:
        """Returns the numbers of a sequence in all rows, concatenated."""
        assert leaf.dtype is not None
        start, count = self.layout.extents[leaf.path]
        if self.payloads.shifts is None or self.large is None or self.large.path != leaf.path:
            return self.cut(start, count, leaf.dtype).reshape(-1)
        return self._numbers(self.payloads.cut_large(start, count * leaf.dtype.itemsize), leaf.dtype)

    def __len__(self) -> int:
        return len(self.payloads) * self.times

    def cut(self, start: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Returns the values ``[rows, count]`` at offset `start`."""
        raw = self.payloads.cut(start, count * dtype.itemsize, self.times, self.step)
        if count == 0:
            return np.empty((len(self), 0), dtype)
        return self._numbers(raw, dtype)

    def _numbers(self, raw: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        if dtype == np.bool_:
            return np.asarray(raw != 0)
        values: np.ndarray = raw.view(dtype.newbyteorder(">" if self.order == ">" else "<"))
        return values.astype(dtype, copy=False)

    def texts(self, start: int, size: int) -> list[str]:
        """Returns the text of `size` bytes at offset `start` of all rows."""
        cut = self.cut(start, size, np.dtype(np.uint8))
        if len(cut) and (cut == cut[0]).all():
            return [cut[0].tobytes().decode(errors="backslashreplace")] * len(cut)
        return [row.tobytes().decode(errors="backslashreplace") for row in cut]


class _Messages:
    """A batch of decoded messages."""

    def __init__(self, groups: list[_Group], rows: int) -> None:
        self._groups = groups
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def numbers(self, leaf: Leaf) -> np.ndarray:
        assert leaf.dtype is not None
        shape = (self._rows,) if leaf.count is None else (self._rows, leaf.count)
        if len(self._groups) == 1 and self._groups[0].rows is None:
            group = self._groups[0]
            return group.cut(*group.layout.extents[leaf.path], leaf.dtype).reshape(shape)
        out = np.empty(shape, leaf.dtype)
        for group in self._groups:
            values = group.cut(*group.layout.extents[leaf.path], leaf.dtype)
            out[_index(group.rows)] = values.reshape(len(group), *shape[1:])
        return out

    def counts(self, leaf: Leaf) -> np.ndarray:
        out = np.empty(self._rows, np.int64)
        for group in self._groups:
            if leaf.kind == "records":
                out[_index(group.rows)] = sum(run[0] for run in group.layout.runs[leaf.path])
            else:
                out[_index(group.rows)] = group.count(leaf.path)
        return out

    def sequences(self, leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
        assert leaf.dtype is not None
        counts = self.counts(leaf)
        offsets = offsets_of(counts)
        parts = [group.sequences(leaf) for group in self._groups]
        if len(parts) == 1 and self._groups[0].rows is None:
            return parts[0], offsets
        out = np.empty(int(offsets[-1]), leaf.dtype)
        for group, part in zip(self._groups, parts, strict=True):
            rows = np.arange(self._rows) if group.rows is None else group.rows
            width = len(part) // len(rows)
            # A slice for each row costs less than an index for each number if rows are long, and is needed if their lengths differ.
            if group.payloads.shifts is not None or width > 256:
                ends = np.cumsum(counts[rows])
                for row, end in zip(rows.tolist(), ends.tolist(), strict=True):
                    out[offsets[row] : offsets[row + 1]] = part[end - counts[row] : end]
            else:
                out[offsets[rows][:, None] + np.arange(width)] = part.reshape(len(rows), width)
        return out, offsets

    def texts(self, leaf: Leaf) -> list[str]:
        return self._scatter([group.texts(*group.layout.extents[leaf.path]) for group in self._groups])

    def text_lists(self, leaf: Leaf) -> list[tuple[str, ...]]:
        lists: list[list[tuple[str, ...]]] = []
        for group in self._groups:
            columns = [group.texts(*extent) for extent in group.layout.lists[leaf.path]]
            lists.append(list(zip(*columns, strict=True)) if columns else [()] * len(group))
        return self._scatter(lists)

    def _scatter(self, parts: list[list[Any]]) -> list[Any]:
        """Returns the values of all rows in order. `parts`: the values of each group's rows."""
        if len(parts) == 1 and self._groups[0].rows is None:
            return parts[0]
        out: list[Any] = [None] * self._rows
        for group, part in zip(self._groups, parts, strict=True):
            for row, value in zip(range(self._rows) if group.rows is None else group.rows, part, strict=True):
                out[row] = value
        return out

    def records(self, leaf: Leaf) -> tuple[_Messages, np.ndarray]:
        offsets = offsets_of(self.counts(leaf))
        check_size(leaf.path, f"{offsets[-1]} records", int(offsets[-1]) * _SPACED_RECORD_BYTES)
        groups: list[_Group] = []
        for group in self._groups:
            starts = offsets[:-1][_index(group.rows)]
            for times, step, layout in group.layout.runs[leaf.path]:
                rows = (starts[:, None] + np.arange(times)).reshape(-1)
                starts = starts + times
                if group.times > 1:
                    raise AssertionError("equally spaced records contain no records")
                groups.append(_Group(group.payloads, group.order, layout, rows, times, step))
        return _Messages(groups, int(offsets[-1])), offsets


def _index(rows: np.ndarray | None) -> Any:
    return slice(None) if rows is None else rows


def _stack(payloads: Sequence[Payload], size: int) -> np.ndarray:
    """Returns payloads of one size as rows, uint8 ``[n, size]``."""
    return np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), size)


@dataclass
class _KnownLayout:
    """The layout of a payload, and the lengths from which it follows. Payloads with the same lengths at the same offsets share it.

    order: the byte order, "<" or ">".
    offsets, lengths: where the lengths of all sequences and texts lie in the payload, and the lengths; `pairs` has (offset, length).
    length_format: the format of a length, a uint32.
    size: the payload's bytes.
    large: the payload's last large sequence, whose length may differ in other payloads of this layout.
    """

    order: str
    layout: _Layout
    offsets: np.ndarray
    lengths: np.ndarray
    pairs: list[tuple[int, int]]
    length_format: struct.Struct
    size: int
    large: _LargeSequence | None


class RosDecoder:
    """Decodes messages of one type, see :class:`Decoder`.

    leaves: the fields of the type, from :func:`leaves_of`.
    cdr: whether messages are CDR, as in ROS 2, or serialised as in ROS 1.
    """

    may_keep_decoded = True

    def __init__(self, leaves: tuple[Leaf, ...], cdr: bool) -> None:
        self.leaves = leaves
        self.left_out: dict[str, str] = {}
        self._cdr = cdr
        self._known: dict[tuple[int, bytes], list[_KnownLayout]] = {}

    def decode(self, payloads: Sequence[Payload]) -> tuple[_Messages, dict[int, str]]:
        """Implements :class:`Decoder`."""
        bad: dict[int, str] = {}
        groups: list[tuple[_KnownLayout, _Payloads, np.ndarray]] = []
        if (stack := self._stack_same_size(payloads)) is not None:
            self._group(*stack, np.arange(len(payloads)), payloads, groups, bad)
        else:
            by_size: dict[tuple[int, bytes], list[int]] = {}  # indices of payloads, by the key of `_group`
            heads = [bytes(payload[:2]) for payload in payloads] if self._cdr else [b""] * len(payloads)
            for index, key in enumerate(zip(map(len, payloads), heads, strict=True)):
                by_size.setdefault(key if key[0] <= _SMALL else (-1, key[1]), []).append(index)
            for key, indices in by_size.items():
                chosen = list(payloads) if len(by_size) == 1 else [payloads[index] for index in indices]
                stacked = _stack(chosen, key[0]) if key[0] >= 0 else None
                self._group(key, stacked, np.array(indices), chosen, groups, bad)
        rows = len(payloads) - len(bad)
        is_good = np.ones(len(payloads), bool)
        is_good[list(bad)] = False
        row_numbers = np.cumsum(is_good) - 1
        row_groups = [
            _Group(
                chosen,
                known.order,
                known.layout,
                None if len(chosen) == rows else row_numbers[indices],
                large=known.large,
            )
            for known, chosen, indices in groups
        ]
        return _Messages(row_groups, rows), bad

    def _stack_same_size(self, payloads: Sequence[Payload]) -> tuple[tuple[int, bytes], np.ndarray] | None:
        """Returns the payloads' key, see `_group`, and the payloads as rows of an array; None if they are large, or their lengths or first
        bytes differ."""
        sizes = {payloads.size} if isinstance(payloads, SameSize) else set(map(len, payloads))
        size = sizes.pop() if len(sizes) == 1 else 0
        if not 2 <= size <= _SMALL:
            return None
        stacked = payloads.rows if isinstance(payloads, SameSize) else _stack(payloads, size)
        if not self._cdr:
            return (size, b""), stacked
        heads = stacked[:, :2]
        return ((size, heads[0].tobytes()), stacked) if (heads == heads[0]).all() else None

    def _group(
        self,
        key: tuple[int, bytes],
        stacked: np.ndarray | None,
        indices: np.ndarray,
        payloads: Sequence[Payload],
        groups: list[tuple[_KnownLayout, _Payloads, np.ndarray]],
        bad: dict[int, str],
    ) -> None:
        """Groups payloads of one length, or large ones, by their layouts.

        key: the payloads' length, or -1 for large ones; and their first two bytes, which give CDR's byte order, or none for ROS 1.
        stacked: the payloads as rows of one array; None if they are large.
        indices: the payloads' indices in the batch.
        groups: receives the groups, with the indices of their payloads.
        bad: receives the reasons why payloads cannot be decoded, by their indices.
        """
        remembered = self._known.setdefault(key, [])
        number = begin = 0  # the next layout to compare, and the first payload that is left
        while begin < len(indices):
            if number < len(remembered):
                known = remembered[number]
                number += 1
            else:
                try:
                    known = self._walk(payloads[begin])
                except (ValueError, struct.error) as error:
                    bad[int(indices[begin])] = str(error)
                    begin += 1
                    continue
                if len(remembered) < _REMEMBERED:
                    remembered.append(known)
                    number += 1
            if begin:
                payloads, indices, begin = payloads[begin:], indices[begin:], 0
                stacked = None if stacked is None else stacked[-len(indices) :]
            fits, shifts = self._compare(known, payloads, stacked)
            if not fits.any():
                continue
            if fits.all():
                groups.append(
                    (known, _Payloads(payloads, stacked, known.large.end_offset if known.large else 0, shifts), indices)
                )
                return
            chosen = list(compress(payloads, fits))
            groups.append(
                (
                    known,
                    _Payloads(
                        chosen,
                        None if stacked is None else stacked[fits],
                        known.large.end_offset if known.large else 0,
                        shifts,
                    ),
                    indices[fits],
                )
            )
            payloads, indices = list(compress(payloads, ~fits)), indices[~fits]
            stacked = None if stacked is None else stacked[~fits]

    def _walk(self, payload: Payload) -> _KnownLayout:
        walk = _Walk(payload, self._cdr)
        layout = walk.locate(self.leaves, is_whole=True)
        if count := walk.undescribed_bytes():
            self.left_out["bytes after its end"] = f"{count} bytes that its type does not describe"
        offsets, lengths = np.array(list(walk.lengths), np.int64), np.array(list(walk.lengths.values()), np.int64)
        length_format = struct.Struct(f"{walk.order}I")
        return _KnownLayout(
            walk.order, layout, offsets, lengths, list(walk.lengths.items()), length_format, len(payload), walk.large
        )

    def _compare(
        self, known: _KnownLayout, payloads: Sequence[Payload], stacked: np.ndarray | None
    ) -> tuple[np.ndarray, list[int] | None]:
        """Returns which payloads fit the layout: they have its lengths at its offsets, except for the length of the large sequence. Also
        returns how many bytes longer than `known.size` each of these is, negative if shorter; None if all have that size."""
        if stacked is not None:
            if not known.pairs:
                return np.ones(len(payloads), bool), None
            words = np.ascontiguousarray(stacked[:, (known.offsets[:, None] + np.arange(4)).reshape(-1)])
            return np.asarray((words.view(f"{known.order}u4") == known.lengths).all(axis=1)), None
        read, large = known.length_format.unpack_from, known.large
        fits, shifts = np.zeros(len(payloads), bool), []
        for number, payload in enumerate(payloads):
            shift = len(payload) - known.size
            if shift and (large is None or shift % 8):  # with another shift, later fields may be aligned differently
                continue
            if len(payload) < (0 if large is None else large.length_offset + 4):
                continue
            if (
                large is not None
                and (read(payload, large.length_offset)[0] - large.count) * large.element_bytes != shift
            ):
                continue
            if all(
                read(payload, offset if large is None or offset < large.end_offset else offset + shift)[0] == count
                for offset, count in known.pairs
                if large is None or offset != large.length_offset
            ):
                fits[number] = True
                shifts.append(shift)
        return fits, shifts if any(shifts) else None
