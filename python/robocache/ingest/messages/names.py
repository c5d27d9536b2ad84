"""Finds the texts and ids that name the elements of a message's arrays, and puts the elements of all messages in one order.

Messages may list the elements in different orders. So elements are taken by their names if the names are certain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ..methods import MOST_SUBJECTS, NO_SUBJECT
from .batches import Batch, Leaf

# The last word of a list that names elements, of texts or of whole numbers: "dof_names", "motorIds".
_NAMES = re.compile(r"(^|_|[a-z0-9](?=[NJ]))(names?|joints)$", re.IGNORECASE)
_IDS = re.compile(r"(^|_|[a-z0-9](?=I))ids?$", re.IGNORECASE)
# A field that names one of the messages of an array: "motor_name" of "motors[0].motor_name".
_NAME = re.compile(r"(\w*_)?(name|joint|id)|header\.frame_id", re.IGNORECASE)
_IN_LIST = re.compile(r"(.*)\[\d+\]")


@dataclass(eq=False)
class Named:
    """Arrays of a type that are indexed by the same names.

    path: the names' field: "dof_names", "motors[].motor_name".
    names: its leaves: a list, or a single text or number for each element.
    arrays: the named elements: an array, or single values, one for each element.
    records: lists of messages, texts or bytes, one for each element. They follow the names, but do not make them certain.
    unfit: arrays whose length differs from the number of names in some message, or that have several lists of names beside them.
    of_subject: whether messages with other names always belong to another subject, as with `joint_names`.
    splits: whether messages with other names become another subject. Ids of objects are too many for that.
    is_sure: whether each name occurred once in every message, and in few different lists.
    """

    path: str
    names: tuple[Leaf, ...]
    arrays: list[tuple[Leaf, ...]]
    records: list[Leaf] = field(default_factory=list)
    unfit: list[tuple[Leaf, ...]] = field(default_factory=list)
    of_subject: bool = False
    splits: bool = False
    is_sure: bool = True
    _lists: set[tuple[str, ...]] = field(default_factory=set)
    _sets: set[tuple[str, ...]] = field(default_factory=set)

    def lists(self, batch: Batch) -> list[tuple[str, ...]]:
        """Returns the names of each message."""
        first = self.names[0]
        if first.kind == "texts":
            return batch.text_lists(first)
        if first.kind == "text":
            return list(zip(*(batch.texts(leaf) for leaf in self.names), strict=True))
        word = re.sub(r"s$", "", _last(self.path))
        if first.kind == "numbers":
            values, offsets = batch.sequences(first)
            rows = [values[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]
        else:
            columns = [batch.numbers(leaf).reshape(len(batch), -1) for leaf in self.names]
            rows = np.concatenate(columns, axis=1).tolist()
        return [tuple(f"{word}_{value}" for value in row) for row in rows]

    def add(self, batch: Batch) -> None:
        """Records the names of messages, and whether they fit the arrays."""
        lists = self.lists(batch)
        lengths = np.array([len(names) for names in lists])
        for names in set(lists):
            self.is_sure &= len(names) > 0 and all(names) and len(set(names)) == len(names)
            if names and len(self._lists) <= MOST_SUBJECTS:
                self._lists.add(names)
            if len(self._sets) <= MOST_SUBJECTS:
                self._sets.add(tuple(sorted(names)))
        if not self.of_subject:
            self.is_sure &= len(self._sets) <= (MOST_SUBJECTS if self.splits else 1)
        for array in list(self.arrays):
            leaf = array[0]
            if len(array) > 1:
                fits = leaf.kind in ("number", "text")
            elif leaf.kind == "number":
                fits = bool((lengths == leaf.count).all())
            else:
                counts = batch.counts(leaf)
                fits = bool(((counts == lengths) | (counts == 0)).all())
            if not fits:
                self.arrays.remove(array)
                self.unfit.append(array)

        for leaf in list(self.records):
            counts = _counts(batch, leaf)
            if not ((counts == lengths) | (counts == 0)).all():
                self.records.remove(leaf)
                if leaf.kind == "records":
                    self.unfit.append((leaf,))

    @property
    def names_any(self) -> bool:
        """Whether it names elements. Names of messages alone make no streams of subjects."""
        return bool(self.arrays or (not self.splits and any(leaf.kind == "records" for leaf in self.records)))

    def has_array(self, leaf: Leaf) -> bool:
        """Whether it names the elements of the array `leaf`."""
        return any(len(array) == 1 and array[0].path == leaf.path for array in self.arrays)

    def by_index(self) -> list[Leaf]:
        """Returns the leaves that are taken by index although the names change."""
        if len(self._lists) < 2:
            return []
        if self.is_sure:
            return [leaf for array in self.unfit for leaf in array]
        records = [leaf for leaf in self.records if leaf.kind == "records"]
        return [leaf for array in self.unfit + self.arrays for leaf in array] + records


def named_arrays(leaves: Sequence[Leaf]) -> Iterator[Named]:
    """Yields the names of elements in a type, with the arrays that they name."""
    yield from _lists_of_names(leaves)
    parts: dict[str, dict[str, list[Leaf]]] = {}  # by an array of messages, "motors[", and a path in its messages
    for leaf in leaves:
        for end in re.finditer(r"\[\d+\]\.", leaf.path):
            parts.setdefault(leaf.path[: end.start() + 1], {}).setdefault(leaf.path[end.end() :], []).append(leaf)
    for start, fields in parts.items():
        names = [
            rest
            for rest, leaves_of_path in fields.items()
            if len(leaves_of_path) > 1 and _names_a_message(rest, leaves_of_path[0])
        ]
        if not names:
            continue
        chosen = min(names, key=lambda rest: fields[rest][0].kind != "text")
        arrays = [tuple(leaves_of_path) for rest, leaves_of_path in fields.items() if rest != chosen]
        yield Named(f"{start}].{chosen}", tuple(fields[chosen]), arrays, splits=fields[chosen][0].kind == "text")


def _lists_of_names(leaves: Sequence[Leaf]) -> Iterator[Named]:
    """Yields the lists of names beside arrays. If several are beside an array, the one whose name begins like the array's is its own."""
    lists: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        match = _IN_LIST.fullmatch(leaf.path)
        path = match[1] if match else leaf.path
        if leaf.kind == ("text" if match else "texts") and _NAMES.search(_last(path)):
            lists.setdefault(path, []).append(leaf)
    parents = {_parent(path) for path in lists}
    for leaf in leaves:
        is_list = leaf.is_whole and (leaf.kind == "numbers" or (leaf.kind == "number" and leaf.count))
        if is_list and _parent(leaf.path) not in parents and _is_id(_last(leaf.path)):
            lists[leaf.path] = [leaf]
    found = {path: Named(path, tuple(names), [], splits=_parent(path) in parents) for path, names in lists.items()}
    for leaf in leaves:
        is_array = (leaf.kind == "numbers" and leaf.dtype != np.uint8) or (leaf.kind == "number" and leaf.count)
        is_other = leaf.kind in ("texts", "numbers", "records")
        if not (is_array or is_other) or leaf.path in lists:
            continue
        beside = [path for path in lists if _parent(path) == _parent(leaf.path)]
        own = [path for path in beside if (stem := _NAMES.sub("", _last(path))) and _last(leaf.path).startswith(stem)]
        if len(own) == 1 or len(beside) == 1:
            named = found[(own if len(own) == 1 else beside)[0]]
            if is_array:
                named.arrays.append((leaf,))
            elif leaf.kind == "records" and not is_flat(leaf):  # a trajectory's points need not be one for each name
                named.unfit.append((leaf,))
            else:
                named.records.append(leaf)
        else:
            for path in beside if is_array or leaf.kind == "records" else ():
                found[path].unfit.append((leaf,))
    for named in found.values():
        named.splits &= bool(named.arrays)
        if named.arrays or named.records or named.unfit:
            yield named


def _names_a_message(path: str, leaf: Leaf) -> bool:
    is_name = leaf.kind == "text" or (leaf.kind == "number" and leaf.is_whole and leaf.count is None)
    return (
        is_name
        and _NAME.fullmatch(path) is not None
        and not NO_SUBJECT.search(path.lower().replace("header.frame_id", ""))
    )


def is_flat(leaf: Leaf) -> bool:
    """Whether the messages of a list have no lists of their own."""
    return all(inner.kind in ("number", "text") for inner in leaf.fields)


def _counts(batch: Batch, leaf: Leaf) -> np.ndarray:
    if leaf.kind == "texts":
        return np.array([len(texts) for texts in batch.text_lists(leaf)], np.int64)
    return batch.counts(leaf)


def _is_id(word: str) -> bool:
    return _IDS.search(word) is not None and not NO_SUBJECT.search(word.lower())


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _last(path: str) -> str:
    return path.rpartition(".")[2]


class Ordered:
    """A batch whose elements are in the order of the first message's names.

    orders: by the path of each leaf: its array, its index there, and for each message the indices of its elements in order.
    """

    def __init__(self, batch: Batch, orders: Mapping[str, tuple[tuple[Leaf, ...], int, np.ndarray]]) -> None:
        self._batch = batch
        self._orders = orders

    def __len__(self) -> int:
        return len(self._batch)

    def numbers(self, leaf: Leaf) -> np.ndarray:
        values = self._batch.numbers(leaf)
        if leaf.path not in self._orders:
            return values
        array, index, orders = self._orders[leaf.path]
        if len(array) == 1:
            return np.take_along_axis(values, orders, axis=1)
        columns = np.stack([self._batch.numbers(element) for element in array], axis=1)
        ordered: np.ndarray = columns[np.arange(len(self)), orders[:, index]]
        return ordered

    def counts(self, leaf: Leaf) -> np.ndarray:
        return self._batch.counts(leaf)

    def sequences(self, leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
        values, offsets = self._batch.sequences(leaf)
        if leaf.path in self._orders:
            _, _, orders = self._orders[leaf.path]
            rows = np.flatnonzero(np.diff(offsets))
            values = values[(offsets[rows][:, None] + orders[rows]).reshape(-1)]
        return values, offsets

    def texts(self, leaf: Leaf) -> list[str]:
        if leaf.path not in self._orders:
            return self._batch.texts(leaf)
        array, index, orders = self._orders[leaf.path]
        columns = [self._batch.texts(element) for element in array]
        return [columns[column][row] for row, column in enumerate(orders[:, index].tolist())]

    def text_lists(self, leaf: Leaf) -> list[tuple[str, ...]]:
        lists = self._batch.text_lists(leaf)
        if leaf.path not in self._orders:
            return lists
        _, _, orders = self._orders[leaf.path]
        return [
            tuple(names[index] for index in order) if names else ()
            for names, order in zip(lists, orders.tolist(), strict=True)
        ]

    def records(self, leaf: Leaf) -> tuple[Batch, np.ndarray]:
        """Returns the records of all messages in the source's order; :meth:`order_of` has the order of names."""
        return self._batch.records(leaf)

    def order_of(self, leaf: Leaf) -> np.ndarray | None:
        """Returns for each message the indices that put its elements in order; None if they have no names."""
        found = self._orders.get(leaf.path)
        return None if found is None else found[2]


def in_order(batch: Batch, groups: Sequence[Named], firsts: Mapping[str, tuple[str, ...]]) -> Batch:
    """Returns the batch with each group's elements in the order of the group's first names, which all messages have in some order."""
    orders: dict[str, tuple[tuple[Leaf, ...], int, np.ndarray]] = {}
    for named in groups:
        first = firsts[named.path]
        lists = named.lists(batch)
        if all(names == first for names in lists):
            continue
        indices_of = {names: [names.index(name) for name in first] for names in set(lists)}
        indices = np.array([indices_of[names] for names in lists], np.int64).reshape(len(lists), len(first))
        for array in named.arrays if named.of_subject else [*named.arrays, named.names]:
            orders |= {leaf.path: (array, index, indices) for index, leaf in enumerate(array)}
        orders |= {leaf.path: ((leaf,), 0, indices) for leaf in named.records}
    return Ordered(batch, orders) if orders else batch
