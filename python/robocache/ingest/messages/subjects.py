"""Divides topics whose messages belong to several subjects, such as the joints of two drivers: each subject has its own streams.

A message shows its subject by its list of joints, in any order, or by the frame of its header and its child frame, or by a marker's
namespace and number. Messages whose frame has no name are a subject too. Fields that are ids by their names also show the subject, if
their values are few and take turns.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...feature_words import words_of
from ..methods import MOST_SUBJECTS, NO_SUBJECT, WORDS_OF_IDS, WORDS_OF_SUBJECTS, Ids
from ..recording import Samples
from .bags import Messages
from .batches import Batch, Decoder, Leaf
from .known import Origin
from .names import ElementNames, find_names
from .streams import FRAMES, IN_ORDER, Topic, joint_lists

# The decoded form of this many messages is kept for the second pass.
_WORTH_KEEPING = 2048
# The most letters of joints' names in a stream's name.
_MOST_LETTERS = 60

# A subject: its sorted joints; or the names of elements, the frames and marker, and the ids.
_Key = tuple[str, ...]


class Subjects:
    """One topic of one recording: a :class:`Topic` for each subject of its messages."""

    def __init__(self, origin: Origin, decoder: Decoder) -> None:
        self._origin = origin
        self._decoder = decoder
        self._topics: dict[_Key | None, Topic] = {}  # by subject; None before the first decoded message
        self._seen: Counter[_Key | None] = Counter()  # the messages of each subject
        self._read: set[_Key | None] = set()  # the subjects that are read
        self._rows = 0  # the messages so far in the second pass
        self._has_joints = False  # whether messages list joints
        self._ids: dict[str, Ids] | None = None  # by the paths of fields; None before the first messages
        self._orders: dict[_Key, Ids] = {}  # the orders in which messages list the same joints, by the sorted joints
        self._leaves: tuple[Leaf, ...] | None = None  # the type when :meth:`_see_names` last ran
        self._named: list[ElementNames] = []  # the names of elements that are certain so far
        self._unsure: list[ElementNames] = []  # those that are not
        self._is_one_subject = origin.exported is not None  # whether all messages belong to one subject
        # The topic's publishers, if the bag declares several that published at the same time.
        self.publishers: list[str] = []

    # ---- the first pass ----

    def survey(self, messages: Messages) -> None:
        """Examines messages in the first pass."""
        for topic, part, batch, bad, _ in self._parts(messages, is_first_pass=True):
            topic.survey(part, batch, bad)

    def settle(self) -> bool:
        """Names the subjects after the first pass. Returns False if there is nothing to read. One subject has the topic's name alone: that
        of an earlier recording, or else the one with the most messages."""
        facts, topic = self._origin.known.facts, self._origin.topic
        self._settle_ids()
        self._settle_publishers()
        self._settle_orders()
        self._settle_names()
        named: dict[_Key | None, str] = facts.setdefault((topic, "subjects"), {})
        main = facts.get((topic, "main subject"))
        count = len(self._lists())
        has_other_names = (
            count > 0 and main is not None and main[:count] not in {key[:count] for key in self._topics if key}
        )
        if not self._has_joints and main not in self._topics and not has_other_names:
            main = None
        if self._ids:  # the ids in another recording need not be the same
            main = None
        elif main is None:
            main = next((key for key, _ in self._seen.most_common() if key not in named), None)
            facts.setdefault((topic, "main subject"), main)
        for key, subject in self._topics.items():
            if key != main:
                subject.origin.subject = named.setdefault(key, self._label(key, [*self._topics, *named, main]))
        self._read = {key for key, subject in self._topics.items() if subject.settle()}
        return bool(self._read)

    @property
    def topics(self) -> list[Topic]:
        """The topics of the subjects that are read."""
        return [topic for key, topic in self._topics.items() if key in self._read]

    # ---- the second pass ----

    def samples(self, messages: Messages) -> Iterator[tuple[str, Samples]]:
        """Yields the rows of messages."""
        read = self.topics
        for topic, part, batch, bad, numbers in self._parts(messages, is_first_pass=False):
            if topic in read:
                yield from topic.samples(part, batch, bad, numbers)

    def rest(self) -> Iterator[tuple[str, Samples]]:
        """Yields, after the last message, what :meth:`Topic.rest` yields for each subject."""
        for topic in self.topics:
            yield from topic.rest()

    # ---- the subjects of messages ----

    def _parts(
        self, messages: Messages, is_first_pass: bool
    ) -> Iterator[tuple[Topic, Messages, Batch, dict[int, str], np.ndarray]]:
        """Yields for each subject its topic, its messages, the decoded ones, the errors of the others by index, and the numbers of the
        messages in the topic."""
        batch, bad = messages.decoded or self._decoder.decode(messages.payloads)
        if is_first_pass and self._decoder.may_keep_decoded and len(batch) >= _WORTH_KEEPING:
            messages.decoded = batch, bad
        numbers = np.arange(self._rows, self._rows + len(messages.payloads))
        self._rows = 0 if is_first_pass else self._rows + len(messages.payloads)
        if is_first_pass and not self._is_one_subject and len(batch):
            self._see_names(batch)
            self._see_ids(batch)
        keys: list[_Key | None] = [] if self._is_one_subject else list(self._find_keys(batch))
        if is_first_pass:
            for key in dict.fromkeys(keys):
                self._get_topic(key)
            self._seen.update(keys)
            self._see_orders(batch)
        subjects = {key if key in self._topics else None for key in keys}
        if self._is_one_subject or len(subjects) < 2:
            key = next(iter(subjects), None)
            topic = self._topics.get(key) or next(iter(self._topics.values()), None)
            if topic is None and is_first_pass:
                topic = self._get_topic(None)
            if topic is not None:
                yield topic, messages, batch, bad, numbers
            return
        decoded_keys = iter(keys)
        message_keys = [None if row in bad else next(decoded_keys) for row in range(len(messages.payloads))]
        main = next(iter(self._topics))
        for key, topic in self._topics.items():
            rows = [
                row
                for row, message_key in enumerate(message_keys)
                if (message_key if message_key in self._topics else main) == key
            ]
            if rows:
                logged, published, payloads = ([column[row] for row in rows] for column in _columns(messages))
                part = Messages(logged, published, payloads)
                yield topic, part, *self._decoder.decode(part.payloads), numbers[rows]

    def _get_topic(self, key: _Key | None) -> Topic:
        """Returns a subject's topic; a new subject gets a new one. A topic for messages that could not be decoded, whose key is None,
        becomes that of the next subject."""
        if None in self._topics and key is not None:
            self._topics[key] = self._topics.pop(None)
        if key not in self._topics:
            if not self._has_joints and len(self._topics) == MOST_SUBJECTS:
                self._join()
            if self._is_one_subject and self._topics:
                return next(iter(self._topics.values()))
            self._topics[key] = Topic(replace(self._origin), self._decoder)
        return self._topics[key]

    def _join(self) -> None:
        """Joins all subjects to one. If ids come again after others, rows are held, since nothing may be interpolated between two
        subjects."""
        for named in list(self._named):
            self._doubt(named)
        self._is_one_subject = True
        self._origin.is_held = any(ids.recur for ids in (self._ids or {}).values())
        next(iter(self._topics.values())).origin.is_held = self._origin.is_held
        (key, topic), *others = self._topics.items()
        for _, other in others:
            topic.absorb(other)
        self._topics = {key: topic}
        self._origin.notes.leave_out(
            f"{self._origin.what}: {self._origin.topic}: streams for frames of reference",
            f"more than {MOST_SUBJECTS}: all messages are taken as one subject",
        )

    def _find_keys(self, batch: Batch) -> Iterator[_Key]:
        """Yields the subject of each message."""
        leaves = {leaf.path: leaf for leaf in self._decoder.leaves}
        lists = self._joint_lists(batch)
        self._has_joints = self._has_joints or lists is not None
        if lists is not None:
            sorted_names: dict[_Key, _Key] = {}  # a list that has a name twice keeps its order
            for names in lists:
                if names not in sorted_names:
                    sorted_names[names] = tuple(sorted(names)) if len(set(names)) == len(names) else names
                yield sorted_names[names]
            return
        frames = [
            [frame.strip("/") for frame in batch.texts(leaves[path])]  # ROS 1's tf wrote "/map" for "map"
            for path in FRAMES
            if path in leaves and leaves[path].kind == "text"
        ]
        kinds = {path: leaves[path].kind for path in ("ns", "id") if path in leaves}
        if kinds == {"ns": "text", "id": "number"}:  # visualization_msgs/Marker
            numbers = batch.numbers(leaves["id"]).tolist()
            frames += [
                batch.texts(leaves["ns"]),
                [f"{number:g}" if isinstance(number, float) else str(number) for number in numbers],
            ]
        ids = [
            [f"{path.rpartition('.')[2]}_{value}" for value in _id_values(batch, leaves[path])]
            for path in self._ids or ()
        ]
        named = [["\0".join(sorted(names)) for names in named.lists(batch)] for named in self._lists()]
        for number, texts in enumerate(zip(*frames, strict=True) if frames else [()] * len(batch)):
            names_texts = (values[number] for values in named)
            yield (*names_texts, *filter(None, texts), *(values[number] for values in ids))

    # ---- names of elements ----

    def _lists(self) -> list[ElementNames]:
        """Returns the lists of names that divide messages between subjects."""
        return [] if self._has_joints else [named for named in self._named if named.split_subjects]

    def _see_names(self, batch: Batch) -> None:
        """Finds the names of elements in messages, and whether they are still certain."""
        if self._leaves is not self._decoder.leaves:
            self._find_names(batch, is_first=self._leaves is None)
            self._leaves = self._decoder.leaves
        for named in self._named + self._unsure:
            named.add(batch)
        for named in list(self._named):
            if not named.is_sure or not named.has_named_elements:
                self._doubt(named)

    def _find_names(self, batch: Batch, is_first: bool) -> None:
        """Finds names of elements in the type, which may grow with each message in JSON. `is_first`: whether these are the first messages."""
        joints = self._joint_lists(batch)
        before = {named.path: named for named in self._named + self._unsure}
        first_certain = self._origin.known.facts.get((self._origin.topic, "named"))  # in the first recording
        for named in find_names(self._decoder.leaves):
            if joints is not None and named.path in ("name", "joint_names"):
                # Topic puts the sequences of joints in order.
                named.arrays = [array for array in named.arrays if array[0].kind == "number"]
                named.other_lists = []
                named.unfit = [array for array in named.unfit if array[0].path not in IN_ORDER]
                named.are_joints = True
            named.split_subjects &= joints is None
            if named.path in before:
                known = before[named.path]
                paths = {array[0].path for array in known.arrays + known.unfit}
                known.arrays += [array for array in named.arrays if array[0].path not in paths]
            elif named.has_named_elements and is_first and (first_certain is None or named.path in first_certain):
                self._named.append(named)
                self._origin.named.append(named)
            else:
                named.is_sure = False
                self._unsure.append(named)

    def _doubt(self, named: ElementNames) -> None:
        """Takes elements by their indices, since their names are not certain."""
        lists = self._lists()
        named.is_sure = False
        self._named.remove(named)
        self._origin.named.remove(named)
        self._unsure.append(named)
        if named in lists:
            index = lists.index(named)
            self._regroup(lambda key: key[:index] + key[index + 1 :])

    def _settle_names(self) -> None:
        """Holds the rows of elements that are taken by their indices although their names change."""
        self._origin.known.facts.setdefault((self._origin.topic, "named"), [named.path for named in self._named])
        for named in self._named + self._unsure:
            if leaves := named.by_index():
                self._origin.by_index.update(leaf.path for leaf in leaves)
                paths = ", ".join([leaf.path for leaf in leaves][:4]) + ", ..." * (len(leaves) > 4)
                self._origin.notes.assume(
                    f"elements of {paths} by their indices",
                    f"{named.path} changes, but does not name each element once in every message, in at most {MOST_SUBJECTS} lists; "
                    "rows are held",
                    self._origin.topic,
                )

    # ---- ids ----

    def _see_ids(self, batch: Batch) -> None:
        """Counts the values of fields that may be ids. A field with too many values is no id."""
        leaves = {leaf.path: leaf for leaf in self._decoder.leaves}
        if self._ids is None:
            names = {leaf.path for named in self._named + self._unsure for leaf in named.names}
            has_joints = self._joint_lists(batch) is not None
            self._ids = {} if has_joints else {path: Ids() for path in _find_candidates(leaves) if path not in names}
        for path, ids in self._ids.items():
            ids.add(_id_values(batch, leaves[path]))
        self._keep_ids([path for path, ids in self._ids.items() if len(ids.seen) <= MOST_SUBJECTS])

    def _settle_ids(self) -> None:
        """Keeps the ids that take turns. If the values of other ids come again after others, rows are held, since neighbouring rows may
        belong to different subjects."""
        if not self._ids or self._is_one_subject:
            return
        recurring = [path for path, ids in self._ids.items() if _is_id(path) and ids.recur and not ids.take_turns]
        kept = [
            path
            for path, ids in self._ids.items()
            if (ids.take_turns if _may_name_subject(path) else ids.take_strict_turns)
        ]
        self._keep_ids(kept)
        for path in kept:
            self._origin.notes.assume(f"a stream for each {path}", "its values take turns", self._origin.topic)
        for topic in self._topics.values():
            topic.origin.is_held = bool(recurring)
        if recurring:
            what = f"{self._origin.what}: {self._origin.topic}: values between rows"
            self._origin.notes.leave_out(
                what, f"{', '.join(recurring)} shows that rows belong to several subjects: rows are held"
            )

    def _settle_publishers(self) -> None:
        """Holds the rows of a topic that has one subject but several publishers: nothing may be interpolated between two publishers."""
        if len(self.publishers) < 2 or len(self._topics) != 1:
            return
        (topic,) = self._topics.values()
        publishers = ", ".join(self.publishers[:4]) + ", ..." * (len(self.publishers) > 4)
        publishers = f"{len(self.publishers)} publishers ({publishers}) wrote to it at the same time"
        if topic.form == "transforms":  # most often each publisher publishes other frames
            what, why = "frames", f"{publishers}: each pair of frames is taken to have one publisher"
        else:
            topic.origin.is_held = True
            what, why = "one stream", f"{publishers}, and its messages do not name theirs: rows are held"
        self._origin.notes.assume(f"{what} of {self._origin.topic}", why, self._origin.topic)

    def _see_orders(self, batch: Batch) -> None:
        """Counts the orders in which messages list the same joints."""
        orders: dict[_Key, list[str]] = {}
        for names in self._joint_lists(batch) or () if self._has_joints and not self._is_one_subject else ():
            orders.setdefault(tuple(sorted(names)), []).append("\0".join(names))
        for joints, lists in orders.items():
            self._orders.setdefault(joints, Ids()).add(lists)

    def _settle_orders(self) -> None:
        """Holds the rows of joints if an order of them comes again after another order, as when each publisher has its own order."""
        for joints, ids in self._orders.items():
            if ids.recur and joints in self._topics:
                self._topics[joints].origin.is_held = True
                self._origin.notes.assume(
                    f"one stream of {self._origin.topic}",
                    f"its messages list the same joints in {len(ids.seen)} orders in turn, as several publishers do: rows are held",
                    self._origin.topic,
                )

    def _joint_lists(self, batch: Batch) -> list[tuple[str, ...]] | None:
        return joint_lists({leaf.path: leaf for leaf in self._decoder.leaves}, batch)

    def _keep_ids(self, kept: list[str]) -> None:
        """Keeps only the ids in `kept`, and joins subjects that only the others distinguished."""
        if self._ids is None or len(kept) == len(self._ids):
            return
        count = len(self._ids)
        kept_indices = [number - count for number, path in enumerate(self._ids) if path in kept]
        self._ids = {path: self._ids[path] for path in kept}
        self._regroup(lambda key: (*key[: len(key) - count], *(key[index] for index in kept_indices)))

    def _regroup(self, shorten: Callable[[_Key], _Key]) -> None:
        """Shortens the keys of all subjects, and joins subjects whose keys are then equal."""
        topics: dict[_Key | None, Topic] = {}
        seen: Counter[_Key | None] = Counter()
        for key, topic in self._topics.items():
            short_key = None if key is None else shorten(key)
            seen[short_key] += self._seen[key]
            if short_key in topics:
                topics[short_key].absorb(topic)
            else:
                topics[short_key] = topic
        self._topics, self._seen = topics, seen

    def _label(self, key: _Key | None, keys: Sequence[_Key | None]) -> str:
        """Returns the name of a subject, which follows the topic's name in its streams: the parts of its key that distinguish it from the
        other `keys`."""
        count = len(self._lists())
        if key and self._ids and len({other[: -len(self._ids)] for other in self._topics if other is not None}) == 1:
            key = key[-len(self._ids) :]
        elif key and count:
            others = [other for other in keys if other]
            if len({other[:count] for other in others}) == 1:
                key = key[count:]
            elif len({other[count:] for other in others}) == 1:
                key = key[:count]
        parts = [text.strip("/") for text in key or () if text.strip("/")]
        label = ("," if self._has_joints else "/").join(parts).replace("\0", ",")
        if (self._has_joints or count) and len(label) > _MOST_LETTERS:
            label = f"{parts[0]}..{parts[-1]}-{zlib.crc32(label.encode()):08x}"
        return label or "unnamed"


def _find_candidates(leaves: Mapping[str, Leaf]) -> list[str]:
    """Returns the fields that may name a message's subject: whole numbers, and texts beside floats."""
    numbers = [leaf for path, leaf in leaves.items() if leaf.kind in ("number", "numbers") and "header." not in path]
    has_floats = any(not leaf.is_whole for leaf in numbers)
    if {path: leaves[path].kind for path in ("ns", "id") if path in leaves} == {"ns": "text", "id": "number"}:
        return []  # a marker's namespace and id are part of its key already
    candidates = []
    for path, leaf in leaves.items():
        words = words_of(path.rpartition(".")[2])
        if path in FRAMES or "header." in path or any(map(NO_SUBJECT.fullmatch, words)):
            continue
        if (
            leaf.kind == "number"
            and leaf.count is None
            and leaf.dtype is not None
            and leaf.is_whole
            and _may_name_subject(path)
        ):
            candidates += [path] if leaf.dtype.kind != "b" and len(numbers) > 1 else []
        elif leaf.kind == "text" and has_floats:
            candidates.append(path)
    return candidates


def _is_id(path: str) -> bool:
    """Whether a field is an id, by its name."""
    return bool(words_of(path.rpartition(".")[2]) & (WORDS_OF_IDS | {"name"}))


def _may_name_subject(path: str) -> bool:
    """Whether a field may name a subject, by its name."""
    return _is_id(path) or bool(words_of(path.rpartition(".")[2]) & WORDS_OF_SUBJECTS)


def _id_values(batch: Batch, leaf: Leaf) -> list[str]:
    if leaf.kind == "text":
        return batch.texts(leaf)
    return [f"{value:.17g}" if isinstance(value, float) else str(value) for value in batch.numbers(leaf).tolist()]


def _columns(messages: Messages) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    return messages.log_ns, messages.publish_ns, messages.as_list()
