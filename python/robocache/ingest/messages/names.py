"""Finds the texts and ids that name the elements of a message's arrays, and puts the elements of all messages in one order.

Messages may list the same elements in different orders. Elements are therefore found by their names, if it is certain that they are
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ..methods import MOST_SUBJECTS, NO_SUBJECT
from .batches import Batch, Leaf

# Match the end of the name of a list of texts, or of whole numbers, that names elements: "dof_names", "motorIds".
_NAMES = re.compile(r"(^|_|[a-z0-9](?=[NJ]))(names?|joints)$", re.IGNORECASE)
_IDS = re.compile(r"(^|_|[a-z0-9](?=I))ids?$", re.IGNORECASE)
# Matches a field that names one message of an array: "motor_name" in "motors[0].motor_name".
_NAME = re.compile(r"(\w*_)?(name|joint|id)|header\.frame_id", re.IGNORECASE)
# Matches an element of an array, "joints[0]"; its group is the array's path.
_IN_LIST = re.compile(r"(.*)\[\d+\]")


@dataclass(eq=False)
class Named:
    """Arrays of a type whose elements have the same names.

    path: the field with the names: "dof_names", "motors[].motor_name".
    names: the leaves of that field: a list, or a single text or number for each element.
    arrays: the named arrays of numbers: each is one leaf, or a leaf for each element.
    records: lists of messages, texts or bytes with an item for each element. Their items are named too, but such lists do not show that
        the names are names of elements.
    unfit: arrays whose length differs from the number of names in some message, or that have several lists of names beside them.
    of_subject: whether messages with other names always belong to another subject, as with `joint_names`.
    splits: whether messages with other names become another subject. They do not if the names are ids of objects, which are too many.
    is_sure: whether the names are certain: no message has a name twice, and the messages have few different lists of names.
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
        """Returns the names in each message; a number becomes a name such as "id_3"."""
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
        """Whether the names are those of elements. Names of messages alone make no streams of subjects."""
        return bool(self.arrays or (not self.splits and any(leaf.kind == "records" for leaf in self.records)))

    def has_array(self, leaf: Leaf) -> bool:
        """Whether the elements of the array `leaf` have these names."""
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
    """Yields the fields of a type that name elements, with the arrays of these elements."""
    yield from _find_lists_of_names(leaves)
    by_array: dict[str, dict[str, list[Leaf]]] = {}  # by an array of messages, "motors[", and a path in its messages
    for leaf in leaves:
        for index in re.finditer(r"\[\d+\]\.", leaf.path):
            by_array.setdefault(leaf.path[: index.start() + 1], {}).setdefault(leaf.path[index.end() :], []).append(
                leaf
            )
    for array, fields in by_array.items():
        names = [path for path, elements in fields.items() if len(elements) > 1 and _names_a_message(path, elements[0])]
        if not names:
            continue
        chosen = min(names, key=lambda path: fields[path][0].kind != "text")
        arrays = [tuple(elements) for path, elements in fields.items() if path != chosen]
        yield Named(f"{array}].{chosen}", tuple(fields[chosen]), arrays, splits=fields[chosen][0].kind == "text")


def _find_lists_of_names(leaves: Sequence[Leaf]) -> Iterator[Named]:
    """Yields the lists of names beside arrays. If several lists are beside an array, it takes that whose name begins like its own."""
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
    by_path = {path: Named(path, tuple(names), [], splits=_parent(path) in parents) for path, names in lists.items()}
    for leaf in leaves:
        is_array = (leaf.kind == "numbers" and leaf.dtype != np.uint8) or (leaf.kind == "number" and leaf.count)
        is_list = leaf.kind in ("texts", "numbers", "records")
        if not (is_array or is_list) or leaf.path in lists:
            continue
        beside = [path for path in lists if _parent(path) == _parent(leaf.path)]
        same_stem = [
            path for path in beside if (stem := _NAMES.sub("", _last(path))) and _last(leaf.path).startswith(stem)
        ]
        if len(same_stem) == 1 or len(beside) == 1:
            named = by_path[(same_stem if len(same_stem) == 1 else beside)[0]]
            if is_array:
                named.arrays.append((leaf,))
            elif leaf.kind == "records" and not is_flat(leaf):
                # The names are not those of such messages, as of the points of a trajectory.
                named.unfit.append((leaf,))
            else:
                named.records.append(leaf)
        else:
            for path in beside if is_array or leaf.kind == "records" else ():
                by_path[path].unfit.append((leaf,))
    for named in by_path.values():
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
    """Whether the messages in a list contain no lists."""
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

    orders: by the path of each leaf: the leaves of its array, its index among these, and for each message the indices that put its
        elements in order, ``[n, elements]``.
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
        """Returns the records of all messages in the source's order. :meth:`order_of` returns the order of the names."""
        return self._batch.records(leaf)

    def order_of(self, leaf: Leaf) -> np.ndarray | None:
        """Returns for each message the indices that put its elements in order; None if they need not be reordered."""
        order = self._orders.get(leaf.path)
        return None if order is None else order[2]


def in_order(batch: Batch, groups: Sequence[Named], firsts: Mapping[str, tuple[str, ...]]) -> Batch:
    """Returns the batch with the elements of each group in the order of the group's first names. All messages must have these names, in
    any order.

    firsts: the first names, by the path of the group.
    """
    orders: dict[str, tuple[tuple[Leaf, ...], int, np.ndarray]] = {}
    for named in groups:
        first = firsts[named.path]
        lists = named.lists(batch)
        if all(names == first for names in lists):
            continue
        by_names = {names: [names.index(name) for name in first] for names in set(lists)}
        indices = np.array([by_names[names] for names in lists], np.int64).reshape(len(lists), len(first))
        for array in named.arrays if named.of_subject else [*named.arrays, named.names]:
            orders |= {leaf.path: (array, index, indices) for index, leaf in enumerate(array)}
        orders |= {leaf.path: ((leaf,), 0, indices) for leaf in named.records}
    return Ordered(batch, orders) if orders else batch
