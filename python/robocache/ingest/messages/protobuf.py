"""Decodes protobuf messages by the descriptors that the recording holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from ...errors import Error
from ..budget import check_decoded
from .bags import Payload
from .batches import MAX_LEAVES, Leaf, Trees

_NUMBERS = {
    FieldDescriptor.CPPTYPE_BOOL: np.bool_,
    FieldDescriptor.CPPTYPE_DOUBLE: np.float64,
    FieldDescriptor.CPPTYPE_ENUM: np.int32,
    FieldDescriptor.CPPTYPE_FLOAT: np.float32,
    FieldDescriptor.CPPTYPE_INT32: np.int32,
    FieldDescriptor.CPPTYPE_INT64: np.int64,
    FieldDescriptor.CPPTYPE_UINT32: np.uint32,
    FieldDescriptor.CPPTYPE_UINT64: np.uint64,
}


# Messages of at most _SMALL bytes are decoded without checking how much memory they take. A decoded field takes about _FIELD_BYTES.
_SMALL, _FIELD_BYTES = 1 << 16, 300


class ProtobufDecoder:
    """Decodes messages of one type.

    A plain field that a message lacks has protobuf's default: 0, or empty. For some fields protobuf distinguishes absence from the
    default (``optional``, a message, a member of a oneof). If such a field is absent, a float is NaN, and `left_out` names the field.

    Raises:
        Error: the descriptors do not describe the type.
    """

    may_keep_decoded = False

    def __init__(self, name: str, descriptors: bytes) -> None:
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
            pool = descriptor_pool.DescriptorPool()
            waiting = {file.name: file for file in files.file}
            while waiting:
                ready = [file for file in waiting.values() if not any(name in waiting for name in file.dependency)]
                if not ready:
                    raise Error(f"files that need each other: {', '.join(waiting)}")
                for file in ready:
                    pool.Add(file)
                    del waiting[file.name]
            descriptor = pool.FindMessageTypeByName(name)
            self._class = message_factory.GetMessageClass(descriptor)
        except Exception as error:
            raise Error(f"its descriptors cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
        self.left_out: dict[str, str] = {}
        self._messages = iter(range(MAX_LEAVES))  # runs out if the type has too many nested messages
        self.leaves = tuple(self._find_leaves(descriptor, (), ()))
        self._absent: set[str] = set()
        self._readers = [_Reader(leaf, descriptor, "", self._absent) for leaf in self.leaves]

    def _find_leaves(self, descriptor: Descriptor, path: tuple[str, ...], inside: tuple[str, ...]) -> list[Leaf]:
        """Returns the leaves of a message at `path`. `inside`: the types that contain it."""
        leaves: list[Leaf] = []
        inside = (*inside, descriptor.full_name)
        if next(self._messages, None) is None:  # counts also messages without a leaf, and lists of messages
            raise Error(f"more than {MAX_LEAVES} nested messages, such as {descriptor.full_name}")
        for field in descriptor.fields:
            name = ".".join((*path, field.name))
            is_repeated = field.is_repeated
            if field.cpp_type in _NUMBERS:
                kind: Any = "numbers" if is_repeated else "number"
                words = tuple((word.name, word.number) for word in field.enum_type.values) if field.enum_type else ()
                dtype = np.dtype(_NUMBERS[field.cpp_type])
                leaves.append(Leaf(name, kind, dtype, of=descriptor.full_name, words=words))
            elif field.type == FieldDescriptor.TYPE_STRING:
                leaves.append(Leaf(name, "texts" if is_repeated else "text"))
            elif field.type == FieldDescriptor.TYPE_BYTES and not is_repeated:
                leaves.append(Leaf(name, "numbers", np.dtype(np.uint8)))
            elif (
                field.message_type is None
                or field.message_type.full_name in inside
                or field.message_type.GetOptions().map_entry
            ):
                self.left_out[name] = "a map, a message that contains itself, or a list of bytes"
            elif is_repeated:
                inner = [leaf for leaf in self._find_leaves(field.message_type, (), inside) if leaf.kind != "records"]
                leaves.append(Leaf(name, "records", fields=tuple(inner)))
            else:
                leaves += self._find_leaves(field.message_type, (*path, field.name), inside)
            if len(leaves) > MAX_LEAVES:
                raise Error(f"more than {MAX_LEAVES} fields")
        return leaves

    def decode(self, payloads: Sequence[Payload]) -> tuple[Trees, dict[int, str]]:
        """Implements :class:`Decoder`."""
        bad: dict[int, str] = {}
        trees: list[dict[str, Any]] = []
        for index, payload in enumerate(payloads):
            try:
                if len(payload) > _SMALL:
                    _check_size(bytes(payload))
                message = self._class.FromString(bytes(payload))
                trees.append({reader.leaf.path: reader(message) for reader in self._readers})
            except (DecodeError, ValueError) as error:
                bad[index] = f"no such message: {error}"
        why = "absent in some messages: a float is NaN there, any other field 0 or empty"
        self.left_out |= dict.fromkeys(self._absent, why)
        return Trees(trees), bad


def _check_size(payload: bytes) -> None:
    """Refuses a message that would take too much memory when decoded.

    A large field of bytes may be a message. So it is parsed too, until it turns out to be none.
    """
    fields = 0
    stack = [(0, len(payload))]
    while stack:
        offset, end = stack.pop()
        inner: list[tuple[int, int]] = []
        try:
            while offset < end:
                tag, offset = _read_varint(payload, offset)
                kind = tag & 7  # protobuf's wire type
                if kind == 0:
                    _, offset = _read_varint(payload, offset)
                elif kind == 2:
                    size, offset = _read_varint(payload, offset)
                    inner.append((offset, min(offset + size, end)))
                    offset += size
                elif kind in (1, 5):
                    offset += 8 if kind == 1 else 4
                else:
                    break  # not a message
                fields += 1
                if not fields % 65536:
                    check_decoded(f"{fields} fields", fields * _FIELD_BYTES)
        except IndexError:  # not a message
            continue
        if offset == end:
            stack += [(begin, stop) for begin, stop in inner if stop - begin > _SMALL]


def _read_varint(payload: bytes, offset: int) -> tuple[int, int]:
    """Returns the number at an offset, and the offset after it."""
    value = shift = 0
    while True:
        byte = payload[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7


class _Reader:
    """Reads a leaf of a message.

    Args:
        descriptor: the descriptor of the message's type.
        prefix: the path of the message, with a dot at its end.
        absent: receives the paths of fields that messages lack, if protobuf distinguishes absence from the default for them.
    """

    def __init__(self, leaf: Leaf, descriptor: Descriptor, prefix: str, absent: set[str]) -> None:
        self.leaf = leaf
        self._absent = absent
        self._steps: list[tuple[str, str, bool]] = []  # name, path, whether it may be absent
        for name in leaf.path.split("."):
            field, path = descriptor.fields_by_name[name], f"{prefix}{name}"
            self._steps.append((name, path, field.has_presence and not field.has_default_value))
            descriptor, prefix = field.message_type, f"{path}."
        self._inner = [_Reader(inner, descriptor, prefix, absent) for inner in leaf.fields]
        self._is_float = leaf.kind == "number" and leaf.dtype is not None and leaf.dtype.kind == "f"

    def __call__(self, message: Any) -> Any:
        for name, path, may_be_absent in self._steps:
            if may_be_absent and not message.HasField(name):
                self._absent.add(path)
                if self._is_float:
                    return math.nan
            message = getattr(message, name)
        if self.leaf.kind == "records":
            return [{reader.leaf.path: reader(record) for reader in self._inner} for record in message]
        return message
