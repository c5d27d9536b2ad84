"""Finds the texts and ids that name the elements of a message's arrays, and puts the elements of all messages in one order.

Messages may list the same elements in different orders. An element is therefore found by its name. If it is not certain that the texts
or ids are names, elements are taken by their indices, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ...feature_words import words_of
from ..methods import MOST_SUBJECTS, NO_SUBJECT
from .batches import Batch, Leaf

# Matches where a word of a name begins: before "dof" and before "names" in "dof_names", "dofNames", "DOFNames", "dofnames" and "dof1names",
# but not before the "names" of "filenames". Without a sign of a new word it matches only after some nouns, as in "jointnames".
_WORD_BEGIN = (
    r"(?:^|_|(?<=\d)|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    r"|(?i:(?<=joint)|(?<=dof)|(?<=motor)|(?<=servo)|(?<=actuator)|(?<=link)|(?<=body)|(?<=marker)|(?<=object)|(?<=tag)))"
)
# Match the last word of a field's name if it may name elements: _NAMES_WORD of a list of texts, "dof_names"; _IDS_WORD of a list of whole
# numbers, "motorIds".
_NAMES_WORD = re.compile(rf"{_WORD_BEGIN}(?i:names?|joints)$")
_IDS_WORD = re.compile(rf"{_WORD_BEGIN}(?i:ids?)$")
# Matches the whole path of a field, inside the messages of an array, that names its message: "motor_name" in "motors[0].motor_name".
_NAMING_PATH = re.compile(rf"\w*?{_WORD_BEGIN}(?i:name|joint|id)|(?i:header\.frame_id)")
# Matches the path of one element of an array, "joints[0]"; its group is the array's path, "joints".
_IN_LIST = re.compile(r"(.*)\[\d+\]")


@dataclass(eq=False)
class ElementNames:
    """A field of a type with the names of elements, and the arrays of these elements.

    path: the field with the names: "dof_names", "motors[].motor_name".
    names: the leaves of that field: a list, or a single text or number for each element.
    arrays: the arrays whose elements have these names, mostly of numbers: each is one leaf, or a leaf for each element.
    other_lists: lists of messages, texts or bytes with an item for each name. The items are put in order like the elements of arrays. Such a
        list alone does not always show that the names belong to elements, see `has_named_elements`.
    unfit: arrays that in some message are not empty and have another length than the names, or that have several lists of names beside them.
    are_joints: whether the names are a message's joints. :class:`Topic` puts these in order; any number of different sets is allowed.
    split_subjects: whether messages with another set of names are about another subject, which gets its own streams. Ids do not split
        subjects, since they may number many objects.
    is_sure: whether the names are certain: each message has at least one name, none is empty, none comes twice in a message, and the
        number of different sets is small enough.
    _lists_seen: the different lists of names in messages so far, up to a limit.
    _sets_seen: the same lists, each sorted, so that lists that differ only in order count once.
    """

    path: str
    names: tuple[Leaf, ...]
    arrays: list[tuple[Leaf, ...]]
    other_lists: list[Leaf] = field(default_factory=list)
    unfit: list[tuple[Leaf, ...]] = field(default_factory=list)
    are_joints: bool = False
    split_subjects: bool = False
    is_sure: bool = True
    _lists_seen: set[tuple[str, ...]] = field(default_factory=set)
    _sets_seen: set[tuple[str, ...]] = field(default_factory=set)

    def lists(self, batch: Batch) -> list[tuple[str, ...]]:
        """Returns the list of names of each message. A number becomes a name such as "motor_id_3"."""
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
        """Looks at the names in a batch: updates `is_sure`, and moves arrays of other lengths to `unfit`."""
        lists = self.lists(batch)
        lengths = np.array([len(names) for names in lists])
        for names in set(lists):
            self.is_sure &= len(names) > 0 and all(names) and len(set(names)) == len(names)
            if names and len(self._lists_seen) <= MOST_SUBJECTS:
                self._lists_seen.add(names)
            if len(self._sets_seen) <= MOST_SUBJECTS:
                self._sets_seen.add(tuple(sorted(names)))
        if not self.are_joints:
            self.is_sure &= len(self._sets_seen) <= (MOST_SUBJECTS if self.split_subjects else 1)
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
        for leaf in list(self.other_lists):
            counts = _counts(batch, leaf)
            if not ((counts == lengths) | (counts == 0)).all():
                self.other_lists.remove(leaf)
                if leaf.kind == "records":
                    self.unfit.append((leaf,))

    @property
    def has_named_elements(self) -> bool:
        """Whether some array has an element for each name. Names that split subjects need such an array in `arrays`; for other names a list
        of messages is enough."""
        return bool(
            self.arrays or (not self.split_subjects and any(leaf.kind == "records" for leaf in self.other_lists))
        )

    def has_array(self, leaf: Leaf) -> bool:
        """Whether the elements of the array `leaf` have these names."""
        return any(len(array) == 1 and array[0].path == leaf.path for array in self.arrays)

    def by_index(self) -> list[Leaf]:
        """Returns the leaves whose elements are taken by their indices although the names change."""
        if len(self._lists_seen) < 2:
            return []
        if self.is_sure:
            return [leaf for array in self.unfit for leaf in array]
        records = [leaf for leaf in self.other_lists if leaf.kind == "records"]
        return [leaf for array in self.unfit + self.arrays for leaf in array] + records


def find_names(leaves: Sequence[Leaf]) -> Iterator[ElementNames]:
    """Yields the fields of a type that name elements, with the arrays of these elements."""
    yield from _find_lists_of_names(leaves)
    # For each array of messages, "motors[]", and each path inside its messages, "q": the leaves "motors[0].q", "motors[1].q", ...
    by_array: dict[str, dict[str, list[Leaf]]] = {}
    for leaf in leaves:
        for index in re.finditer(r"\[\d+\]\.", leaf.path):
            fields = by_array.setdefault(f"{leaf.path[: index.start()]}[]", {})
            fields.setdefault(leaf.path[index.end() :], []).append(leaf)
    for array, fields in by_array.items():
        names = [path for path, elements in fields.items() if len(elements) > 1 and _names_a_message(path, elements[0])]
        if not names:
            continue
        chosen = min(names, key=lambda path: fields[path][0].kind != "text")
        arrays = [tuple(elements) for path, elements in fields.items() if path != chosen]
        is_text = fields[chosen][0].kind == "text"
        yield ElementNames(f"{array}.{chosen}", tuple(fields[chosen]), arrays, split_subjects=is_text)


def _find_lists_of_names(leaves: Sequence[Leaf]) -> Iterator[ElementNames]:
    """Yields the lists of names, with the arrays beside them in the same message. If several lists are beside an array, the list with the
    same stem names its elements: "dof_names" those of "dof_positions". If not exactly one has it, the array is unfit for each list."""
    lists: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        match = _IN_LIST.fullmatch(leaf.path)
        path = match[1] if match else leaf.path
        if leaf.kind == ("text" if match else "texts") and _NAMES_WORD.search(_last(path)):
            lists.setdefault(path, []).append(leaf)
    parents = {_parent(path) for path in lists}
    for leaf in leaves:
        has_ids = _has_id_dtype(leaf) and (leaf.kind == "numbers" or (leaf.kind == "number" and leaf.count))
        if has_ids and _parent(leaf.path) not in parents and _has_id_name(_last(leaf.path)):
            lists[leaf.path] = [leaf]
    by_path = {
        path: ElementNames(path, tuple(names), [], split_subjects=_parent(path) in parents)
        for path, names in lists.items()
    }
    for leaf in leaves:
        is_array = (leaf.kind == "numbers" and leaf.dtype != np.uint8) or (leaf.kind == "number" and leaf.count)
        is_list = leaf.kind in ("texts", "numbers", "records")
        if not (is_array or is_list) or leaf.path in lists:
            continue
        beside = [path for path in lists if _parent(path) == _parent(leaf.path)]
        same_stem = [
            path for path in beside if (stem := _NAMES_WORD.sub("", _last(path))) and _last(leaf.path).startswith(stem)
        ]
        if len(same_stem) == 1 or len(beside) == 1:
            named = by_path[(same_stem if len(same_stem) == 1 else beside)[0]]
            if is_array:
                named.arrays.append((leaf,))
            elif leaf.kind == "records" and not is_flat(leaf):
                # Messages with lists inside, such as a trajectory's points, are not one for each name.
                named.unfit.append((leaf,))
            else:
                named.other_lists.append(leaf)
        else:
            for path in beside if is_array or leaf.kind == "records" else ():
                by_path[path].unfit.append((leaf,))
    for named in by_path.values():
        named.split_subjects &= bool(named.arrays)
        if named.arrays or named.other_lists or named.unfit:
            yield named


def _names_a_message(path: str, leaf: Leaf) -> bool:
    """Whether a field inside the messages of an array, such as "motor_name", may name the message that has it."""
    is_name = leaf.kind == "text" or (leaf.kind == "number" and _has_id_dtype(leaf) and leaf.count is None)
    is_frame = path.lower() == "header.frame_id"
    return is_name and _NAMING_PATH.fullmatch(path) is not None and (is_frame or not _names_no_subject(path))


def is_flat(leaf: Leaf) -> bool:
    """Whether the messages in a list contain no lists."""
    return all(inner.kind in ("number", "text") for inner in leaf.fields)


def _counts(batch: Batch, leaf: Leaf) -> np.ndarray:
    """Returns how many items the list has in each message."""
    if leaf.kind == "texts":
        return np.array([len(texts) for texts in batch.text_lists(leaf)], np.int64)
    return batch.counts(leaf)


def _has_id_name(name: str) -> bool:
    """Whether a list of whole numbers with this name may have the ids of elements."""
    return _IDS_WORD.search(name) is not None and not _names_no_subject(name)


def _names_no_subject(name: str) -> bool:
    """Whether a word in the name shows that its ids are those of something else, such as modes or frames."""
    return any(map(NO_SUBJECT.fullmatch, words_of(name)))


def _has_id_dtype(leaf: Leaf) -> bool:
    """Whether the type is one of ids: whole numbers, but not bools."""
    return leaf.is_whole and (leaf.dtype is None or leaf.dtype.kind != "b")


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _last(path: str) -> str:
    return path.rpartition(".")[2]


class Ordered:
    """A batch in which the elements of each message are in the order of the first message's names.

    orders: for each leaf, by its path: the leaves of its array, the leaf's index among them, and the order, ``[n, elements]``: for each
        message the indices of its elements, in the order of the first message's names.
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
        """Returns the records of all messages as they are in the source. :meth:`order_of` gives the order to put them in."""
        return self._batch.records(leaf)

    def order_of(self, leaf: Leaf) -> np.ndarray | None:
        """Returns the order of the leaf's elements, see `orders`; None if they need no other order."""
        order = self._orders.get(leaf.path)
        return None if order is None else order[2]


def in_order(batch: Batch, all_names: Sequence[ElementNames], firsts: Mapping[str, tuple[str, ...]]) -> Batch:
    """Returns the batch with the elements of each message in the order of the first message's names. Each message must have the names of
    the first, in any order.

    all_names: the fields with names, and the arrays to put in order.
    firsts: the names in the first message, by the path of the field.
    """
    orders: dict[str, tuple[tuple[Leaf, ...], int, np.ndarray]] = {}
    for named in all_names:
        first = firsts[named.path]
        lists = named.lists(batch)
        if all(names == first for names in lists):
            continue
        by_names = {names: [names.index(name) for name in first] for names in set(lists)}
        indices = np.array([by_names[names] for names in lists], np.int64).reshape(len(lists), len(first))
        # The names of joints stay as they are in each message: Topic puts the joints' sequences in order by them.
        for array in named.arrays if named.are_joints else [*named.arrays, named.names]:
            orders |= {leaf.path: (array, index, indices) for index, leaf in enumerate(array)}
        orders |= {leaf.path: ((leaf,), 0, indices) for leaf in named.other_lists}
    return Ordered(batch, orders) if orders else batch
