"""Messages as ROS 1 and ROS 2 (CDR) serialise them.

Where the fields of a message lie follows from its type and from the lengths in it. A message is walked through once; all others
that have the same lengths at the same places, mostly all of a topic, are then cut up together, as columns of one array.
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
from .bags import Alike, Payload
from .batches import MAX_LEAVES, Leaf, offsets_of

_NUMBERS = {
    name: np.dtype(name)
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
} | {"octet": np.dtype(np.uint8), "char": np.dtype(np.uint8), "byte": np.dtype(np.uint8)}
# ROS 2 gives a message without fields this one.
EMPTY = "structure_needs_at_least_one_member"
# Messages up to this many bytes are copied into one array; of larger ones their fields one by one.
_SMALL = 4096
# The number of layouts of messages of one length that are remembered.
_REMEMBERED = 32

Definitions = dict[str, Any]  # fields by the type's name, as rosbags has them


# ---- types ----


@cache
def known_definitions(ros: int) -> dict[str, Definitions]:
    """The messages that come with ROS 1 or 2, of each distribution by its name, the newest first."""
    names = [store.name for store in Stores if store.name.startswith(f"ROS{ros}_")]
    return {
        name.partition("_")[2].lower(): {
            typename: fields for typename, (_, fields) in get_typestore(Stores[name]).fielddefs.items()
        }
        for name in reversed(names)
    }


def parse_definition(name: str, text: str, encoding: str) -> Definitions:
    """The definition of a message and those that come with it.

    encoding: "ros1msg", "ros2msg" or "ros2idl".

    Raises:
        Error: it is none.
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
    """The .msg and .idl files in a folder and below: of each package a folder, as in a ROS workspace."""
    found: Definitions = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix == ".msg" and file.is_file():
            package = file.parent.parent.name if file.parent.name == "msg" else file.parent.name
            found.update(parse_definition(f"{package}/msg/{file.stem}", file.read_text(), "ros2msg"))
        elif file.suffix == ".idl" and file.is_file():
            found.update(parse_definition(file.stem, file.read_text(), "ros2idl"))
    return found


def leaves_of(name: str, definitions: Definitions, ros: int) -> tuple[Leaf, ...]:
    """The leaves of the type of that name.

    Raises:
        Error: a definition is missing, or none of a message.
    """
    return tuple(_leaves(name, "", definitions, ros, (), iter(range(MAX_LEAVES))))


def _leaves(
    name: str, prefix: str, definitions: Definitions, ros: int, inside: tuple[str, ...], messages: Iterator[int]
) -> list[Leaf]:
    """`messages`: runs out where there are too many in each other, be they without a leaf of their own or in sequences."""
    if name in inside:
        raise Error(f"the definition of {name} holds itself")
    if next(messages, None) is None:
        raise Error(f"more than {MAX_LEAVES} messages in messages, of which one is {name}")
    if name not in definitions:
        raise Error(f"no definition of {name}: name a folder of .msg files with definitions (--definitions)")
    leaves: list[Leaf] = []
    inside = (*inside, name)
    if not definitions[name] and ros == 2:
        leaves.append(Leaf(prefix + EMPTY, "number", np.dtype(np.uint8)))
    for field_name, (node, what) in definitions[name]:
        path = prefix + field_name
        if node == Nodetype.BASE:
            leaves.append(replace(_base(path, what[0], ros), of=name))
        elif node == Nodetype.NAME:
            leaves += _leaves(what, f"{path}.", definitions, ros, inside, messages)
        else:
            (inner, of), count = what
            if node == Nodetype.ARRAY:
                if inner == Nodetype.BASE and of[0] in _NUMBERS:
                    leaves.append(Leaf(path, "number", _base(path, of[0], ros).dtype, count))
                else:
                    for index in range(min(count, MAX_LEAVES + 1)):
                        place = f"{path}[{index}]"
                        if inner == Nodetype.BASE:
                            leaves.append(_base(place, of[0], ros))
                        else:
                            leaves += _leaves(of, f"{place}.", definitions, ros, inside, messages)
                        if len(leaves) > MAX_LEAVES:
                            break
            elif inner == Nodetype.BASE:
                base = _base(path, of[0], ros)
                leaves.append(Leaf(path, "texts" if base.kind == "text" else "numbers", base.dtype))
            else:
                leaves.append(Leaf(path, "records", fields=tuple(_leaves(of, "", definitions, ros, inside, messages))))
        if len(leaves) > MAX_LEAVES:
            raise Error(f"{name} has more than {MAX_LEAVES} fields")
    return leaves


def _base(path: str, name: str, ros: int) -> Leaf:
    if name == "string":
        return Leaf(path, "text")
    if name == "byte" and ros == 1:
        name = "int8"
    if name not in _NUMBERS:
        raise Error(f"field {path} is a {name}, which is not read")
    return Leaf(path, "number", _NUMBERS[name])


# ---- where fields lie ----


@dataclass
class _Layout:
    """The offsets of the fields of a message, or of a record in it, in the payload.

    places: of each leaf its first byte, and how many numbers or bytes it has.
    lists: of texts, first byte and size of each.
    runs: of records, (how many, bytes from one to the next, layout of the first), one behind the other.
    """

    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    lists: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    runs: dict[str, list[tuple[int, int, _Layout]]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Large:
    """The last sequence of a message that is large, as an image's bytes: it may be longer or shorter in others.

    length: where its length stands.
    end: the byte behind it.
    """

    path: str
    length: int
    end: int
    count: int
    size: int


# Memory in bytes of a text in a list, of a record whose offset must be searched for, and of a record in even steps.
_TEXT_BYTES, _RECORD_BYTES, _EVEN_RECORD_BYTES = 200, 1000, 24


class _Walk:
    """A way through one payload; where it does not fit the type, struct.error or ValueError."""

    def __init__(self, payload: Payload, cdr: bool) -> None:
        self.order, self._start = "<", 0
        if cdr:
            if len(payload) < 4 or payload[0] != 0 or payload[1] > 1:
                raise ValueError(
                    f"expected CDR, of which the first bytes are 00 00 or 00 01, got {bytes(payload[:4]).hex(' ')!r}"
                )
            self.order, self._start = "<>"[payload[1] == 0], 4
        self._cdr = cdr
        self._payload = payload
        self._length = struct.Struct(f"{self.order}I")
        self.at = self._start
        self.lengths: dict[int, int] = {}  # by their place
        self.large: _Large | None = None

    def _align(self, size: int) -> None:
        if self._cdr:
            self.at += -(self.at - self._start) % size

    def _skip(self, size: int) -> int:
        start = self.at
        self.at += size
        if self.at > len(self._payload):
            raise ValueError(f"{len(self._payload)} bytes, but a field that ends at {self.at}")
        return start

    def _count(self, smallest: int) -> int:
        self._align(4)
        (count,) = self._length.unpack_from(self._payload, self._skip(4))
        if count * smallest > len(self._payload) - self.at:
            raise ValueError(f"{len(self._payload)} bytes, but at {self.at} a length of {count}")
        self.lengths[self.at - 4] = count
        return int(count)

    def _text(self) -> tuple[int, int]:
        count = self._count(1)
        start = self._skip(count)
        return start, max(0, count - 1) if self._cdr else count  # without its NUL

    def message(self, leaves: Sequence[Leaf], whole: bool = False) -> _Layout:
        """The offsets of a message's fields, or, if not `whole`, of the fields of a record in one."""
        layout = _Layout()
        for leaf in leaves:
            if leaf.kind == "number" or leaf.kind == "numbers":
                assert leaf.dtype is not None
                size = leaf.dtype.itemsize
                always = 1 if leaf.count is None else leaf.count
                count = self._count(size) if leaf.kind == "numbers" else always
                if count:
                    self._align(size)
                layout.places[leaf.path] = self._skip(count * size), count
                if whole and leaf.kind == "numbers" and count * size > _SMALL:
                    self.large = _Large(leaf.path, list(self.lengths)[-1], self.at, count, size)
            elif leaf.kind == "text":
                layout.places[leaf.path] = self._text()
            elif leaf.kind == "texts":
                count = self._count(4)
                check_decoded(f"{leaf.path}: {count} texts", count * _TEXT_BYTES)
                layout.lists[leaf.path] = [self._text() for _ in range(count)]
            else:
                count = self._count(1)
                if not leaf.fields or any(of.kind != "number" for of in leaf.fields):
                    check_decoded(f"{leaf.path}: {count} records", count * _RECORD_BYTES)
                layout.runs[leaf.path] = self._records(leaf, count)
        return layout

    def _records(self, leaf: Leaf, count: int) -> list[tuple[int, int, _Layout]]:
        """Records of numbers alone lie in even steps, but for the first, which may be aligned otherwise."""
        even = all(of.kind == "number" for of in leaf.fields)
        runs: list[tuple[int, int, _Layout]] = []
        for index in range(count):
            layout = self.message(leaf.fields)
            if even and runs:
                before = runs[-1][2].places
                steps = {layout.places[path][0] - before[path][0] for path in before}
                if len(steps) == 1:
                    step = steps.pop()
                    runs[-1] = (count - index + 1, step, runs[-1][2])
                    self._skip((count - index - 1) * step)
                    break
            runs.append((1, 0, layout))
        return runs

    def end(self) -> int:
        """Returns the number of bytes left. CDR may be padded, and ROS 1 ignores what follows a message."""
        rest = len(self._payload) - self.at
        if rest > (3 if self._cdr else 8):
            raise ValueError(f"{len(self._payload)} bytes, but its type ends at {self.at}")
        return 0 if self._cdr else rest


# ---- many of them ----


class _Payloads:
    """Payloads in which fields lie at the same places, or, behind `end`, so many bytes farther on."""

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
        """uint8 ``[payloads * times, size]``: so many bytes from `start` on, `times` times in steps of `step`."""
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
        """uint8: what begins at `start` and ends at `end`, in the first; longer or shorter in the others."""
        assert self.shifts is not None
        pairs = zip(self._payloads, self.shifts, strict=True)
        return np.frombuffer(b"".join([payload[start : start + size + shift] for payload, shift in pairs]), np.uint8)


@dataclass
class _Group:
    """Rows of a batch whose fields lie at the same places: the same in each payload, or records in even steps in each.

    rows: which they are; None where they are all, in order.
    """

    payloads: _Payloads
    order: str
    layout: _Layout
    rows: np.ndarray | None
    times: int = 1
    step: int = 0
    large: _Large | None = None

    def count(self, path: str) -> Any:
        """Returns the number of elements of a sequence: one for all rows, or one for each."""
        count = self.layout.places[path][1]
        if self.payloads.shifts is None or self.large is None or self.large.path != path:
            return count
        return count + np.array(self.payloads.shifts) // self.large.size

    def sequences(self, leaf: Leaf) -> np.ndarray:
        """The numbers of all rows one behind the other."""
        assert leaf.dtype is not None
        start, count = self.layout.places[leaf.path]
        if self.payloads.shifts is None or self.large is None or self.large.path != leaf.path:
            return self.cut(start, count, leaf.dtype).reshape(-1)
        return self._numbers(self.payloads.cut_large(start, count * leaf.dtype.itemsize), leaf.dtype)

    def __len__(self) -> int:
        return len(self.payloads) * self.times

    def cut(self, start: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
        """``[rows, count]``."""
        taken = self.payloads.cut(start, count * dtype.itemsize, self.times, self.step)
        if count == 0:
            return np.empty((len(self), 0), dtype)
        return self._numbers(taken, dtype)

    def _numbers(self, taken: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        if dtype == np.bool_:
            return np.asarray(taken != 0)
        values: np.ndarray = taken.view(dtype.newbyteorder(">" if self.order == ">" else "<"))
        return values.astype(dtype, copy=False)

    def texts(self, start: int, size: int) -> list[str]:
        cut = self.cut(start, size, np.dtype(np.uint8))
        if len(cut) and (cut == cut[0]).all():
            return [cut[0].tobytes().decode(errors="backslashreplace")] * len(cut)
        return [row.tobytes().decode(errors="backslashreplace") for row in cut]


class _Messages:
    """A batch of them."""

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
            return group.cut(*group.layout.places[leaf.path], leaf.dtype).reshape(shape)
        out = np.empty(shape, leaf.dtype)
        for group in self._groups:
            values = group.cut(*group.layout.places[leaf.path], leaf.dtype)
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
            # An index a number costs more than a slice a row where rows are long.
            if group.payloads.shifts is not None or width > 256:
                ends = np.cumsum(counts[rows])
                for row, end in zip(rows.tolist(), ends.tolist(), strict=True):
                    out[offsets[row] : offsets[row + 1]] = part[end - counts[row] : end]
            else:
                out[offsets[rows][:, None] + np.arange(width)] = part.reshape(len(rows), width)
        return out, offsets

    def texts(self, leaf: Leaf) -> list[str]:
        return self._scatter([group.texts(*group.layout.places[leaf.path]) for group in self._groups])

    def text_lists(self, leaf: Leaf) -> list[tuple[str, ...]]:
        lists: list[list[tuple[str, ...]]] = []
        for group in self._groups:
            columns = [group.texts(*place) for place in group.layout.lists[leaf.path]]
            lists.append(list(zip(*columns, strict=True)) if columns else [()] * len(group))
        return self._scatter(lists)

    def _scatter(self, parts: list[list[Any]]) -> list[Any]:
        if len(parts) == 1 and self._groups[0].rows is None:
            return parts[0]
        out: list[Any] = [None] * self._rows
        for group, part in zip(self._groups, parts, strict=True):
            for row, value in zip(range(self._rows) if group.rows is None else group.rows, part, strict=True):
                out[row] = value
        return out

    def records(self, leaf: Leaf) -> tuple[_Messages, np.ndarray]:
        offsets = offsets_of(self.counts(leaf))
        check_size(leaf.path, f"{offsets[-1]} records", int(offsets[-1]) * _EVEN_RECORD_BYTES)
        groups: list[_Group] = []
        for group in self._groups:
            starts = offsets[:-1][_index(group.rows)]
            for times, step, layout in group.layout.runs[leaf.path]:
                rows = (starts[:, None] + np.arange(times)).reshape(-1)
                starts = starts + times
                if group.times > 1:
                    raise AssertionError("records in even steps hold no records")
                groups.append(_Group(group.payloads, group.order, layout, rows, times, step))
        return _Messages(groups, int(offsets[-1])), offsets


def _index(rows: np.ndarray | None) -> Any:
    return slice(None) if rows is None else rows


def _stack(payloads: Sequence[Payload], size: int) -> np.ndarray:
    """Payloads of one size: uint8 ``[n, size]``."""
    return np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), size)


@dataclass
class _Met:
    """A layout that was met, and the lengths it follows from."""

    order: str
    layout: _Layout
    places: np.ndarray
    lengths: np.ndarray
    pairs: list[tuple[int, int]]
    length: struct.Struct
    size: int
    large: _Large | None


class RosDecoder:
    """Decodes messages of one type.

    leaves: the type, from :func:`leaves_of`.
    cdr: whether they are CDR, as ROS 2's, or ROS 1's.
    """

    is_light = True

    def __init__(self, leaves: tuple[Leaf, ...], cdr: bool) -> None:
        self.leaves = leaves
        self.left_out: dict[str, str] = {}
        self._cdr = cdr
        self._met: dict[tuple[int, bytes], list[_Met]] = {}

    def decode(self, payloads: Sequence[Payload]) -> tuple[_Messages, dict[int, str]]:
        """As of :class:`Decoder`."""
        bad: dict[int, str] = {}
        found: list[tuple[_Met, _Payloads, np.ndarray]] = []
        if (one := self._alike(payloads)) is not None:
            self._group(*one, np.arange(len(payloads)), payloads, found, bad)
        else:
            alike: dict[tuple[int, bytes], list[int]] = {}
            heads = [bytes(payload[:2]) for payload in payloads] if self._cdr else [b""] * len(payloads)
            for index, key in enumerate(zip(map(len, payloads), heads, strict=True)):
                alike.setdefault(key if key[0] <= _SMALL else (-1, key[1]), []).append(index)
            for key, indices in alike.items():
                some = list(payloads) if len(alike) == 1 else [payloads[index] for index in indices]
                stacked = _stack(some, key[0]) if key[0] >= 0 else None
                self._group(key, stacked, np.array(indices), some, found, bad)
        rows = len(payloads) - len(bad)
        kept = np.ones(len(payloads), bool)
        kept[list(bad)] = False
        numbers = np.cumsum(kept) - 1
        groups = [
            _Group(some, met.order, met.layout, None if len(some) == rows else numbers[indices], large=met.large)
            for met, some, indices in found
        ]
        return _Messages(groups, rows), bad

    def _alike(self, payloads: Sequence[Payload]) -> tuple[tuple[int, bytes], np.ndarray] | None:
        """Their length and beginning, and all of them as rows; None where they are large, or not all have the same."""
        sizes = {payloads.size} if isinstance(payloads, Alike) else set(map(len, payloads))
        size = sizes.pop() if len(sizes) == 1 else 0
        if not 2 <= size <= _SMALL:
            return None
        stacked = payloads.rows if isinstance(payloads, Alike) else _stack(payloads, size)
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
        found: list[tuple[_Met, _Payloads, np.ndarray]],
        bad: dict[int, str],
    ) -> None:
        """Cuts payloads of one length, or large ones, into those of one layout each."""
        remembered = self._met.setdefault(key, [])
        number = begin = 0  # of the layouts and the payloads that are still to be looked at
        while begin < len(indices):
            if number < len(remembered):
                met = remembered[number]
                number += 1
            else:
                try:
                    met = self._walk(payloads[begin])
                except (ValueError, struct.error) as error:
                    bad[int(indices[begin])] = str(error)
                    begin += 1
                    continue
                if len(remembered) < _REMEMBERED:
                    remembered.append(met)
                    number += 1
            if begin:
                payloads, indices, begin = payloads[begin:], indices[begin:], 0
                stacked = None if stacked is None else stacked[-len(indices) :]
            same, shifts = self._same(met, payloads, stacked)
            if not same.any():
                continue
            if same.all():
                found.append((met, _Payloads(payloads, stacked, met.large.end if met.large else 0, shifts), indices))
                return
            some = list(compress(payloads, same))
            found.append(
                (
                    met,
                    _Payloads(
                        some, None if stacked is None else stacked[same], met.large.end if met.large else 0, shifts
                    ),
                    indices[same],
                )
            )
            payloads, indices = list(compress(payloads, ~same)), indices[~same]
            stacked = None if stacked is None else stacked[~same]

    def _walk(self, payload: Payload) -> _Met:
        walk = _Walk(payload, self._cdr)
        layout = walk.message(self.leaves, whole=True)
        if rest := walk.end():
            self.left_out["bytes behind its end"] = f"{rest} bytes that its type does not describe"
        places, lengths = np.array(list(walk.lengths), np.int64), np.array(list(walk.lengths.values()), np.int64)
        length = struct.Struct(f"{walk.order}I")
        return _Met(walk.order, layout, places, lengths, list(walk.lengths.items()), length, len(payload), walk.large)

    def _same(
        self, met: _Met, payloads: Sequence[Payload], stacked: np.ndarray | None
    ) -> tuple[np.ndarray, list[int] | None]:
        """Returns which payloads have the same lengths at the same offsets, apart from the large sequence; and by how many bytes
        each of them is longer, if any is."""
        if stacked is not None:
            if not met.pairs:
                return np.ones(len(payloads), bool), None
            words = np.ascontiguousarray(stacked[:, (met.places[:, None] + np.arange(4)).reshape(-1)])
            return np.asarray((words.view(f"{met.order}u4") == met.lengths).all(axis=1)), None
        read, large = met.length.unpack_from, met.large
        same, shifts = np.zeros(len(payloads), bool), []
        for number, payload in enumerate(payloads):
            shift = len(payload) - met.size
            if shift and (large is None or shift % 8):  # what is behind it may be aligned otherwise
                continue
            if len(payload) < (0 if large is None else large.length + 4):
                continue
            if large is not None and (read(payload, large.length)[0] - large.count) * large.size != shift:
                continue
            if all(
                read(payload, at if large is None or at < large.end else at + shift)[0] == count
                for at, count in met.pairs
                if large is None or at != large.length
            ):
                same[number] = True
                shifts.append(shift)
        return same, shifts if any(shifts) else None
