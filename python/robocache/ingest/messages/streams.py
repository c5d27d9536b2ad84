"""Turns a topic's messages into streams: a stream of all single numbers, and one for each other field.

docs/ingest-ros.md has the rules. The fields of a type, not its name, show whether messages are images or clouds, so ROS 1, ROS 2,
protobuf and JSON are read alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from math import prod
from typing import Any, cast

import numpy as np

from ...feature_words import QUATERNION, rotations_of, says
from ..methods import BEYOND_LIMITS, PX4_WORDS, has_limits, px4_of_several, ros_angles, with_held, with_others
from ..recording import Ragged, Rows, Samples, SourceError, Texts
from .bags import Messages
from .batches import Batch, Decoder, Leaf
from .cameras import Camera, Intrinsics, depth_unit
from .clocks import OF_TRANSFORMS, TopicClock, stamps_of_transforms
from .known import Decoded, Origin, Span
from .names import Ordered, find_names, in_order, is_flat
from .points import Clouds, is_cloud

# In types that list their joints: fields with an element for each joint.
_JOINT_FIELDS = ("transforms", "twist", "wrench")
# In types that list their joints: lists of messages that each have a number for each joint.
IN_ORDER = ("points", "interface_values")
# Matches types whose field `data` is a file.
_FILES = re.compile(r"Compressed(Image|Video)$")
# Arrays whose first number is -1 if the quantity is not provided (sensor_msgs/Imu).
_UNKNOWN_COVARIANCES = ("orientation_covariance", "angular_velocity_covariance", "linear_acceleration_covariance")
# Fields that name frames of reference. They become a column of the episodes table if they are the same in all messages of a recording.
FRAMES = ("header.frame_id", "frame_id", "parent_frame_id", "child_frame_id")


class Topic:
    """One topic of one recording.

    Attributes:
        form: what its messages are, by the fields of their type: "image", "cloud", "compressed", "joints", "dynamic joints",
            "transforms", "array" or "other".
        intrinsics: the calibration in its messages, if they are CameraInfo.
        depth_unit: a sensor and its metres per unit of depth, if the messages give them.
    """

    def __init__(self, origin: Origin, decoder: Decoder) -> None:
        self.intrinsics: Intrinsics | None = None
        self.depth_unit: tuple[str, float] | None = None
        self.origin = origin
        self._exported = origin.exported
        self._known = origin.known
        self._notes = origin.notes
        self._decoder = decoder
        self.clock = TopicClock(origin)
        self._camera = Camera(origin)
        self._clouds = Clouds(origin)
        self._seen = self._bad = 0
        self._lengths: dict[str, Span] = {}  # of sequences, by path
        self._constant: dict[str, str | None] = {}  # the text of fields that is the same in all messages, else None
        self._joints: tuple[str, ...] | None = None
        self._firsts: dict[str, tuple[str, ...]] = {}  # the first message's names, by the paths of `origin.named`
        self._refused: set[str] = set()  # streams whose names belong to another topic
        self._leaves: tuple[Leaf, ...] | None = None
        self._update_type()

    # ---- the type ----

    def _update_type(self) -> None:
        """Reads the type again if messages in JSON have added fields to it."""
        if self._leaves is self._decoder.leaves:
            return
        self._leaves = self._decoder.leaves
        self._by_path = {leaf.path: leaf for leaf in self._leaves}
        # Bytes have no fixed length: it may vary, even if all messages of one recording have the same.
        self._bytes = {leaf.path for leaf in self._leaves if leaf.dtype == np.uint8}
        # Elements that other fields name are not those of joints, even if there are as many.
        self._named_otherwise = {
            leaf.path
            for named in find_names(self._leaves)
            if named.path not in ("name", "joint_names")
            for leaf in [*named.names, *chain(*named.arrays), *named.other_lists]
        }
        self.form = self._find_form()
        self.clock.look(self._leaves, self.form == "transforms")

    def _leaf(self, path: str, kind: str | None = None) -> Leaf | None:
        leaf = self._by_path.get(path)
        return leaf if leaf is not None and kind in (None, leaf.kind) else None

    def _has(self, *paths: str) -> bool:
        return all(self._leaf(path) is not None for path in paths)

    def _find_form(self) -> str:
        """Returns the form of the messages, by their fields."""
        data = self._leaf("data", "numbers")
        is_bytes = data is not None and data.dtype == np.uint8
        # In JSON, bytes and words are both text; only the type's name shows which of them a text is.
        may_be_base64 = self._leaf("data", "text") is not None
        if (is_bytes or may_be_base64) and self._has("height", "width", "encoding", "step"):
            return "image"
        if (is_bytes or may_be_base64) and is_cloud(self._by_path):
            return "cloud"
        if (is_bytes or (may_be_base64 and _FILES.search(self.origin.schema))) and (
            self._leaf("format", "text") or (self._leaf("encoding", "text") and self._has("pts", "flags"))
        ):
            return "compressed"
        if _is_joint_state(self._by_path):
            return "joints"
        if _is_dynamic(self._by_path):
            return "dynamic joints"
        transforms = self._leaf("transforms", "records")
        inner = {leaf.path for leaf in transforms.fields} if transforms else set()
        if "child_frame_id" in inner and not inner.isdisjoint({"transform.rotation.w", "rotation.w"}):
            return "transforms"
        if data is not None and self._has("layout.dim", "layout.data_offset"):
            return "array"
        return "other"

    # ---- the first pass ----

    @property
    def name(self) -> str:
        """The name of the topic's stream, or the first part of the names of its streams."""
        return self.origin.name

    def survey(self, messages: Messages, batch: Batch, bad: Mapping[int, str]) -> None:
        """Examines messages in the first pass. `batch` has those that were decoded, `bad` the indices of the others, with the reasons."""
        self._update_type()
        self._bad += len(bad)
        self._seen += len(messages.payloads)
        if not len(batch):
            return
        log_ns = np.array(messages.log_ns, np.int64)
        if bad:
            log_ns = np.delete(log_ns, list(bad))
        self.clock.survey(batch, log_ns, self._leaf("transforms") if self.form == "transforms" else None)
        for leaf in self._decoder.leaves:
            if leaf.kind in ("numbers", "records"):
                self._lengths.setdefault(leaf.path, Span()).add(batch.counts(leaf))
            if leaf.kind == "records":
                self._survey_records(leaf, batch)
            if leaf.kind == "text" and leaf.path.split(".")[-1] in ("frame_id", "child_frame_id"):
                texts = set(batch.texts(leaf))
                first = self._constant.setdefault(leaf.path, next(iter(texts)))
                if texts != {first}:
                    self._constant[leaf.path] = None
        if self.form in ("image", "compressed"):
            self._camera.survey(self._by_path, batch)
        if self.form == "cloud":
            self._clouds.survey(self._by_path, batch)
        if self._joints is None:
            self._joints = next(iter(joint_lists(self._by_path, batch) or ()), None)
        for named in self.origin.named:
            if named.path not in self._firsts:
                self._firsts[named.path] = named.lists(batch)[0]
        intrinsics = Intrinsics.of(self.name, self._by_path, batch)
        self.intrinsics = intrinsics if self.intrinsics is None else self.intrinsics.join(intrinsics)
        self.depth_unit = self.depth_unit or depth_unit(self.name, self._by_path, batch)

    def absorb(self, other: Topic) -> None:
        """Adds the counts of another subject's topic, whose messages become part of these streams."""
        self._seen += other._seen
        self._bad += other._bad
        for path, span in other._lengths.items():
            self._lengths.setdefault(path, Span()).join(span)
        for path, text in other._constant.items():
            if self._constant.setdefault(path, text) != text:
                self._constant[path] = None
        self.clock.absorb(other.clock)
        self._camera.absorb(other._camera)
        self._clouds.absorb(other._clouds)
        self.intrinsics = self.intrinsics.join(other.intrinsics) if self.intrinsics else other.intrinsics

    def _survey_records(self, leaf: Leaf, batch: Batch) -> None:
        records, _ = batch.records(leaf)
        for inner in leaf.fields:
            if inner.kind in ("numbers", "records") and len(records):
                self._lengths.setdefault(f"{leaf.path}.{inner.path}", Span()).add(records.counts(inner))

    # ---- between the passes ----

    def settle(self) -> bool:
        """Decides, after the first pass, how to read the topic. Returns False if there is nothing to read."""
        name, notes, known = self.name, self._notes, self._known
        if self._seen == self._bad and self._bad:
            # The second pass reports each bad message.
            return True
        notes.see("schemas", name, self.origin.schema)
        for path, reason in self._decoder.left_out.items():
            notes.leave_out(f"{name}: {path}", reason)
        if self._leaf("header.seq"):
            notes.leave_out(f"{name}: header.seq", "a counter of messages")
        if self._joints is not None:
            self._joints = known.facts.setdefault((name, "joints"), self._joints)
        self._camera.settle()
        self._clouds.settle()
        try:
            self._settle_names()
            self.clock.settle(self._seen)
            for path, span in self._lengths.items():
                if not span.high or self.form == "joints" or self._leaf(path, "records"):
                    continue
                fixed = span.low if span.low == span.high and path not in self._bytes else None
                if self._exported is not None and self._exported.kind == "arrays":
                    fixed = None
                first = known.facts.setdefault((name, path), fixed)
                if first not in (None, fixed):
                    raise SourceError(
                        f"{self.origin.where}: {name}: {path} has {span.low} to {span.high} values a message, "
                        f"but {first} in each before it"
                    )
        except SourceError as error:
            notes.skip(f"{self.origin.what}: {name}", error)
            return False
        return True

    def _settle_names(self) -> None:
        """Takes the names of elements, in order, from the first recording.

        Raises:
            SourceError: this recording has other names.
        """
        for named in self.origin.named:
            names = self._firsts[named.path]
            first = self._known.facts.setdefault((self.name, f"order of {named.path}"), names)
            if sorted(first) != sorted(names):
                raise SourceError(
                    f"{self.origin.where}: {self.name}: {named.path} is {list(names)}, but {list(first)} before it"
                )
            self._firsts[named.path] = first

    def frame_ids(self) -> dict[str, str]:
        """Returns the frames of reference that are the same in all messages, keyed by the streams that would hold them if they changed. An
        exported stream has none: its attributes or its episode's columns have them."""
        if self._exported is not None:
            return {}
        frames = {f"{self.name}/{path}": self._constant.get(path) for path in FRAMES}
        return {stream: frame for stream, frame in frames.items() if frame}

    def find_intrinsics(self, calibrations: Sequence[Intrinsics], units: Mapping[str, float]) -> None:
        """Finds the intrinsics and the unit of depth of images, among the calibrations and units in the bag."""
        if self.form in ("image", "compressed"):
            self._camera.find_intrinsics(calibrations)
            self._camera.find_unit(units)

    # ---- the second pass ----

    def samples(
        self, messages: Messages, batch: Batch, bad: Mapping[int, str], numbers: np.ndarray
    ) -> Iterator[tuple[str, Samples]]:
        """Yields the rows of messages. `batch` has the decoded ones, `bad` the indices of the others, with the reasons. `numbers`: the
        number of each message in the topic."""
        self._update_type()
        self.origin.lose({int(numbers[i]): f"{self.origin.schema}: {why}" for i, why in bad.items()})
        if not len(batch):
            return
        time_ns = self.clock.times(batch, messages, bad)
        batch = in_order(batch, self.origin.named, self._firsts)
        decoded = Decoded(self._by_path, batch, time_ns, np.delete(numbers, list(bad)), self._attributes())
        yield from self._finish_streams(chain(self._read_stamps_and_frames(batch, time_ns), self._read(decoded)))

    def rest(self) -> Iterator[tuple[str, Samples]]:
        """Yields, after the last message, the frames of a video that its decoder held back."""
        yield from self._finish_streams(self._camera.rest())

    def _finish_streams(self, streams: Iterable[tuple[str, Samples]]) -> Iterator[tuple[str, Samples]]:
        """Yields the streams as they are written; skips and reports those whose names belong to another topic."""
        for stream, samples in streams:
            owner = self._known.streams.setdefault(stream, self.name)
            if owner == self.name:
                yield stream, self._as_exported(stream, self._hold_subjects(samples))
            elif stream not in self._refused:
                self._refused.add(stream)
                error = SourceError(
                    f"{self.origin.where}: {self.name}: its stream {stream} has the name of a stream of topic {owner}"
                )
                self._notes.skip(f"{self.origin.what}: {stream}", error)

    def _hold_subjects(self, samples: Samples) -> Samples:
        """Gives rows that belong to several subjects the method "previous": nothing may be interpolated between two subjects."""
        if not self.origin.is_held or not isinstance(samples, Rows | Ragged) or samples.values.dtype.kind in "biu":
            return samples
        methods = [[0, prod(samples.values.shape[1:]), "previous"]]
        return replace(samples, attributes={**samples.attributes, "methods": methods})

    def _as_exported(self, stream: str, samples: Samples) -> Samples:
        """Returns the rows of an exported stream as the exported cache had them; other rows unchanged."""
        if self._exported is None or stream != self.name:
            return samples
        restored = self._exported.restore(samples)
        if restored is None:
            self._notes.leave_out(f"{stream}: its description by the export", "does not fit the messages")
        return restored or samples

    def _read(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        forms: dict[str, Callable[[Decoded], Iterator[tuple[str, Samples]]]] = {
            "image": self._camera.raw,
            "compressed": self._camera.compressed,
            "cloud": self._clouds.read,
            "joints": self._read_joint_states,
            "dynamic joints": self._read_dynamic_joints,
            "transforms": self._read_transforms,
        }
        return forms.get(self.form, self._read_fields)(messages)

    def _attributes(self, **added: Any) -> dict[str, Any]:
        return {"schema": self.origin.schema, "clock_source": self.clock.source, **added}

    def _read_stamps_and_frames(self, batch: Batch, time_ns: np.ndarray) -> Iterator[tuple[str, Samples]]:
        """Yields the stamps if they are not the clock, and the names of frames of reference that change. For an exported stream it
        yields nothing, since the cache had them as other streams."""
        if self._exported is not None:
            return
        attributes = self._attributes()
        stamps, path = self.clock.stamps(batch), self.clock.path
        if stamps is not None and self.clock.source != path:
            yield f"{self.name}/{path}", Rows(time_ns, stamps, attributes={**attributes, "units": "ns"})
        for path in FRAMES:
            leaf = self._leaf(path, "text")
            if leaf is not None and self._constant.get(path, "") is None:
                yield f"{self.name}/{path}", Texts(time_ns, batch.texts(leaf), attributes=attributes)

    def _value_leaves(self) -> list[Leaf]:
        """Returns the fields with values: not stamps, names of frames, or layouts."""
        spent = {"header.seq", *FRAMES} | self.clock.spent()
        if self.form == "array":
            spent |= {leaf.path for leaf in self._decoder.leaves if leaf.path.startswith("layout.")}
        return [leaf for leaf in self._decoder.leaves if leaf.path not in spent]

    def vectors(self) -> Iterator[tuple[str, list[Leaf], np.dtype[Any]]]:
        """Yields the streams whose rows are made of single numbers: their names, fields and dtypes."""
        leaves = self._value_leaves()
        scalars = [leaf for leaf in leaves if leaf.kind == "number" and leaf.count is None]
        for path, group, dtype in _group_scalars(scalars):
            yield f"{self.name}/{path}" if path else self.name, group, dtype

    def others(self) -> Iterator[tuple[str, Leaf]]:
        """Yields the streams of the other fields: their names and fields."""
        leaves = self._value_leaves()
        for leaf in leaves:
            if leaf.kind != "number" or leaf.count is not None:
                yield self.name if len(leaves) == 1 else f"{self.name}/{leaf.path}", leaf

    def _read_fields(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        """Yields a stream of all single numbers, and one for each other field."""
        batch, time_ns = messages.batch, messages.time_ns
        attributes = self._attributes()
        if self.form == "array":
            self._notes.leave_out(f"{self.name}: layout", "the shape that the array was meant to have")
            if batch.numbers(self._by_path["layout.data_offset"]).any():
                self._notes.leave_out(
                    f"{self.name}: layout.data_offset", "not applied: each row begins with so many elements of padding"
                )
        if not self._value_leaves():
            self._notes.leave_out(self.name, "its messages are empty")
        absent = self._find_absent(batch)
        for stream, group, dtype in self.vectors():
            columns = [batch.numbers(leaf).astype(dtype, copy=False) for leaf in group]
            names = [leaf.path for leaf in group]
            for column, path in enumerate(names if absent and dtype.kind == "f" else ()):
                rows = next((rows for prefix, rows in absent.items() if path.startswith(prefix)), None)
                if rows is not None:
                    columns[column] = np.where(rows, np.nan, columns[column]).astype(dtype, copy=False)
            with_methods = self._add_methods(attributes, dtype, group, [len(group)])
            yield stream, Rows(time_ns, np.stack(columns, axis=1), names, attributes=with_methods)
        for stream, leaf in self.others():
            if leaf.kind == "number":
                if not leaf.count:
                    self._notes.leave_out(stream, "an array of no numbers")
                    continue
                with_methods = self._add_methods(attributes, cast("np.dtype[Any]", leaf.dtype), (leaf,), [leaf.count])
                yield stream, Rows(time_ns, batch.numbers(leaf), self._element_names(leaf), attributes=with_methods)
            elif leaf.kind == "numbers":
                yield from self._read_sequence(stream, leaf, batch, time_ns, attributes)
            elif leaf.kind == "text":
                yield stream, Texts(time_ns, batch.texts(leaf), attributes=attributes)
            elif leaf.kind == "texts":
                lists = batch.text_lists(leaf)
                # A list with a text for each joint gets the same order as the joints' values.
                if "." not in leaf.path and (orders := self._find_orders(batch, leaf)) is not None:
                    lists = [
                        tuple(names[index] for index in order) if len(names) == len(order) else names
                        for names, order in zip(lists, orders.tolist(), strict=True)
                    ]
                texts = [json.dumps(texts, ensure_ascii=False) for texts in lists]
                yield stream, Texts(time_ns, texts, attributes={**attributes, "encoding": "json"})
            elif leaf.kind == "records":
                yield from self._read_records(stream, leaf, batch, time_ns, attributes)

    def _find_absent(self, batch: Batch) -> dict[str, np.ndarray]:
        """Returns which rows do not provide fields, bool ``[n]``, by the beginnings of the fields' paths."""
        absent: dict[str, np.ndarray] = {}
        for path, (quantity, prefixes) in says_absent(self._by_path).items():
            values, rows = _first_numbers(batch, self._by_path[path])
            is_absent = np.zeros(len(batch), bool)
            is_absent[rows] = values == -1
            if is_absent.any():
                absent |= dict.fromkeys(prefixes, is_absent)
                self._notes.leave_out(
                    f"{self.name}: {quantity}", f"NaN where {path} begins with -1, which means that it is unknown"
                )
        return absent

    def _add_methods(
        self,
        attributes: dict[str, Any],
        dtype: np.dtype[Any],
        leaves: Sequence[Leaf],
        shape: Sequence[int],
    ) -> dict[str, Any]:
        """Returns the attributes of a stream of these fields, with `words` of enumerations, and `methods` for rotations, which the types of
        messages declare, and for fields that are held."""
        if enum_words := {leaf.path: dict(leaf.words) for leaf in leaves if leaf.words}:
            attributes = {**attributes, "words": enum_words}
        package, _, name = self.origin.schema.partition("/msg/")
        if package == "px4_msgs" and px4_of_several(name):
            return attributes if dtype.kind in "biu" else {**attributes, "methods": [[0, prod(shape), "previous"]]}
        names = []
        for leaf in leaves:
            stem, dot, name = leaf.path.rpartition(".")
            names.append(f"{stem}{dot}quaternion.{name}" if says(leaf.of, QUATERNION) else leaf.path)
        words = {"words": PX4_WORDS} if self.origin.schema.startswith("px4_msgs/") else {}
        # The name of a single field says more than the stream's, which may be the topic's.
        array_name = names[0] if len(names) == 1 else ""
        if dtype.kind in "biu":
            return attributes
        size = prod(shape) // len(leaves)
        limited = {leaf.path for leaf in leaves if has_limits(leaf.path, self._by_path)}
        for path in sorted(limited):
            self._notes.leave_out(f"{self.name}: {path} between rows", BEYOND_LIMITS)
        is_held = [leaf.path in self.origin.by_index | limited for leaf in leaves for _ in range(size)]
        rotations = [
            block for block in rotations_of(array_name, names, shape, **words) if not any(is_held[slice(*block[:2])])
        ]
        is_whole = [leaf.is_whole for leaf in leaves for _ in range(size)]
        methods = with_held(rotations, [held or whole for held, whole in zip(is_held, is_whole, strict=True)])
        angles = [i for i, leaf in enumerate(leaves) if ros_angles(leaf.of, leaf.path.rpartition(".")[2])]
        methods = with_others(methods, [[i * size, (i + 1) * size, "angle"] for i in angles])
        return {**attributes, "methods": methods} if methods else attributes

    def _span(self, path: str) -> Span:
        """Returns the range of a sequence's lengths. It is empty if no message of this subject has the field, as may be in JSON."""
        return self._lengths.get(path) or Span()

    def _read_sequence(
        self, stream: str, leaf: Leaf, batch: Batch, time_ns: np.ndarray, attributes: dict[str, Any]
    ) -> Iterator[tuple[str, Samples]]:
        if not self._span(leaf.path).high and self._exported is None:
            self._notes.leave_out(f"{self.origin.what}: {stream}", "always empty")
            return
        values, offsets = batch.sequences(leaf)
        values = self._in_order(values, offsets, self._find_orders(batch, leaf))
        fixed = self._known.facts.get((self.name, leaf.path))
        if fixed is None:
            yield stream, Ragged(time_ns, values, offsets, attributes=attributes)
        else:
            names = self._element_names(leaf) or self._joint_names(fixed)
            with_methods = self._add_methods(attributes, values.dtype, (leaf,), [fixed])
            yield stream, Rows(time_ns, values.reshape(len(batch), fixed), names, attributes=with_methods)

    def _read_records(
        self, stream: str, leaf: Leaf, batch: Batch, time_ns: np.ndarray, attributes: dict[str, Any]
    ) -> Iterator[tuple[str, Samples]]:
        """Yields the records in a field as ragged rows: a row for each message, an element for each record."""
        if not self._span(leaf.path).high:
            self._notes.leave_out(f"{self.origin.what}: {stream}", "always empty")
            return
        records, offsets = batch.records(leaf)
        joint_orders = self._find_orders(batch, leaf)
        span = self._span(leaf.path)
        joint_count = len(self._joints or ())
        has_one_a_joint = (
            "." not in leaf.path and is_flat(leaf) and span.high == joint_count and span.low in (0, joint_count)
        )
        if leaf.path in _JOINT_FIELDS or (joint_orders is not None and has_one_a_joint):
            record_orders = joint_orders
        else:
            record_orders = batch.order_of(leaf) if isinstance(batch, Ordered) else None
        scalars = [inner for inner in leaf.fields if inner.kind == "number" and inner.count is None]
        for path, group, dtype in _group_scalars(scalars):
            name = f"{stream}.{path}" if path else stream
            columns = [records.numbers(inner).astype(dtype, copy=False) for inner in group]
            with_methods = self._add_methods(attributes, dtype, group, [len(group)])
            names = [inner.path for inner in group]
            elements = self._in_order(np.stack(columns, axis=1), offsets, record_orders)
            yield name, Ragged(time_ns, elements, offsets, names, attributes=with_methods)
        for inner in leaf.fields:
            name = f"{stream}.{inner.path}"
            if inner.kind == "number" and inner.count:
                elements = self._in_order(records.numbers(inner), offsets, record_orders)
                yield name, Ragged(time_ns, elements, offsets, attributes=attributes)
            elif inner.kind == "numbers":
                key = f"{leaf.path}.{inner.path}"
                width = self._known.facts.get((self.name, key))
                if width is not None:
                    values, value_offsets = records.sequences(inner)
                    if joint_orders is not None and leaf.path == "points":  # each point has a number for each joint
                        values = self._in_order(
                            values, value_offsets, np.repeat(joint_orders, np.diff(offsets), axis=0)
                        )
                    elements = self._in_order(values.reshape(-1, width), offsets, record_orders)
                    joints = self._joint_names(width) if leaf.path == "points" else None
                    yield name, Ragged(time_ns, elements, offsets, joints, attributes=attributes)
                elif not self._span(key).high:
                    self._notes.leave_out(f"{self.origin.what}: {name}", "always empty")
                else:
                    self._notes.leave_out(name, "sequences in records, of varying lengths")
            elif inner.kind in ("text", "texts"):
                items = records.texts(inner) if inner.kind == "text" else records.text_lists(inner)
                order = self._in_order(np.arange(len(items)), offsets, record_orders).tolist()
                texts = [
                    json.dumps([items[i] for i in order[start:stop]], ensure_ascii=False)
                    for start, stop in pairwise(offsets.tolist())
                ]
                yield name, Texts(time_ns, texts, attributes={**attributes, "encoding": "json"})
            elif inner.kind == "records":
                point_orders = (
                    np.repeat(joint_orders, np.diff(offsets), axis=0)
                    if joint_orders is not None and leaf.path == "points"
                    else None
                )
                yield from self._read_nested(
                    name, f"{leaf.path}.{inner.path}", inner, records, offsets, point_orders, time_ns, attributes
                )

    def _read_nested(
        self,
        name: str,
        key: str,
        leaf: Leaf,
        records: Batch,
        offsets: np.ndarray,
        orders: np.ndarray | None,
        time_ns: np.ndarray,
        attributes: dict[str, Any],
    ) -> Iterator[tuple[str, Samples]]:
        """Yields lists in records, such as the transforms in a trajectory's points, if all have one length: the features of a list's items
        become features of the record, side by side.

        key: the path of the field, under which its lengths are known.
        orders: for each record, the indices that put the list's items in the order of the joints; None if they are not those of joints.
        """
        width = self._known.facts.get((self.name, key))
        if not self._span(key).high:
            self._notes.leave_out(f"{self.origin.what}: {name}", "always empty")
            return
        if width is None:
            self._notes.leave_out(name, "lists in records, of varying lengths")
            return
        nested, nested_offsets = records.records(leaf)
        scalars = [field for field in leaf.fields if field.kind == "number" and field.count is None]
        for field in leaf.fields:
            if field not in scalars:
                self._notes.leave_out(f"{name}.{field.path}", "not a single number, in lists in records")
        joints = self._joint_names(width) if orders is not None else None
        for path, group, dtype in _group_scalars(scalars):
            stream = f"{name}.{path}" if path else name
            columns = [nested.numbers(field).astype(dtype, copy=False) for field in group]
            elements = self._in_order(np.stack(columns, axis=1), nested_offsets, orders)
            elements = elements.reshape(-1, width * len(group))
            names = [f"{item}.{field.path}" for item in joints or range(width) for field in group]
            with_methods = self._add_methods(attributes, dtype, group, [len(group)])
            if blocks := with_methods.get("methods"):
                starts = [number * len(group) for number in range(width)]
                with_methods = {
                    **with_methods,
                    "methods": [
                        [start + begin, start + end, method] for start in starts for begin, end, method in blocks
                    ],
                }
            yield stream, Ragged(time_ns, elements, offsets, names, attributes=with_methods)

    # ---- joints ----

    def _find_orders(self, batch: Batch, leaf: Leaf | None = None) -> np.ndarray | None:
        """Returns for each message the indices of its joints in the order of the first message, ``[n, joints]``; None for types without
        joints, and for a field `leaf` whose elements another field names."""
        lists = joint_lists(self._by_path, batch)
        if lists is None or self._joints is None or (leaf is not None and leaf.path in self._named_otherwise):
            return None
        orders = {names: self._find_order(names) for names in set(lists)}
        return np.array([orders[names] for names in lists], np.int64).reshape(len(lists), len(self._joints))

    def _find_order(self, names: tuple[str, ...]) -> list[int]:
        joints = self._joints or ()
        if names == joints or sorted(names) != sorted(joints):
            return list(range(len(joints)))
        return [names.index(joint) for joint in joints]

    def _in_order(self, values: np.ndarray, offsets: np.ndarray, orders: np.ndarray | None) -> np.ndarray:
        """Returns the values with those of each message, or record, in the given order, if it has as many values as the order has indices.
        Message i has the values ``offsets[i]:offsets[i + 1]``."""
        if orders is None or not orders.size or (orders == np.arange(orders.shape[1])).all():
            return values
        rows = np.flatnonzero(np.diff(offsets) == orders.shape[1])
        index = np.arange(len(values))
        index[offsets[rows][:, None] + np.arange(orders.shape[1])] = offsets[rows][:, None] + orders[rows]
        return values[index]

    def _element_names(self, leaf: Leaf) -> list[str] | None:
        """Returns the names of an array's elements; None if there are none that are certain."""
        for named in self.origin.named:
            if named.has_array(leaf):
                return list(self._firsts[named.path])
        return None

    def _joint_names(self, width: int) -> list[str] | None:
        """Returns the joints as the names of `width` features; None if they are not as many, or not unique."""
        joints = self._joints or ()
        return list(joints) if len(joints) == width == len(set(filter(None, joints))) else None

    def _read_dynamic_joints(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        """Yields rows with a feature for each interface of each joint."""
        batch, joints = messages.batch, self._joints
        lists, orders = joint_lists(self._by_path, batch), self._find_orders(batch)
        assert joints is not None and lists is not None and orders is not None
        records, starts = batch.records(self._by_path["interface_values"])
        (leaf,) = (inner for inner in self._by_path["interface_values"].fields if inner.path == "values")
        values, value_offsets = records.sequences(leaf)
        offsets = value_offsets[starts]
        counts = np.diff(offsets)
        incomplete = np.flatnonzero(counts != len(joints)).tolist()
        self.origin.lose(
            {int(messages.numbers[row]): f"{counts[row]} values for {len(lists[row])} interfaces" for row in incomplete}
        )
        complete = np.flatnonzero(counts == len(joints))
        if len(complete) and joints:
            rows = values[offsets[complete][:, None] + orders[complete]]
            attributes = self._attributes()
            yield (
                self.name,
                Rows(messages.time_ns[complete], rows, self._joint_names(len(joints)), attributes=attributes),
            )

    def _read_joint_states(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        """Yields positions, velocities and efforts with a feature for each joint, in the order of the first message's names."""
        batch, time_ns = messages.batch, messages.time_ns
        lists, joints = joint_lists(self._by_path, batch), self._joints
        assert lists is not None and joints is not None
        orders: dict[tuple[str, ...], np.ndarray] = {joints: np.arange(len(joints))}
        lost: dict[int, str] = {}  # by the row in the batch
        for row, names in enumerate(lists):
            if names not in orders:
                if sorted(names) == sorted(joints) and len(set(names)) == len(names):
                    orders[names] = np.array([names.index(joint) for joint in joints])
                    continue
                lost[row] = f"joints {list(names)}, but {list(joints)} before it: two publishers on one topic?"
        numbers = {path: cast(Leaf, self._leaf(path)) for path in ("position", "velocity", "effort")}
        counts = {path: batch.counts(leaf) for path, leaf in numbers.items()}
        for path, count in counts.items():
            for row in np.flatnonzero((count != 0) & (count != len(joints))).tolist():
                lost.setdefault(row, f"{count[row]} of {path} for {len(joints)} joints")
        self.origin.lose({int(messages.numbers[row]): why for row, why in lost.items()})
        kept = np.array([row not in lost for row in range(len(batch))])
        for path, leaf in numbers.items():
            span = self._span(path)
            if not span.high or span.zeros:
                empty = f"empty in {span.zeros} messages" if span.high else "always empty"
                self._notes.leave_out(f"{self.origin.what}: {self.name}/{path}", empty)
            rows = np.flatnonzero(kept & (counts[path] != 0))
            if not len(rows):
                continue
            flat, offsets = batch.sequences(leaf)
            values = flat[offsets[rows][:, None] + np.arange(len(joints))]
            if len(orders) > 1:
                values = np.take_along_axis(values, np.array([orders[lists[row]] for row in rows]), axis=1)
            if not all(joints):
                self._notes.leave_out(f"{self.name}: names of joints", f"one of them is empty: {list(joints)}")
            features = list(joints) if all(joints) else None
            yield f"{self.name}/{path}", Rows(time_ns[rows], values, features, attributes=self._attributes())

    # ---- transforms ----

    def _read_transforms(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        """Yields a stream for each pair of frames of reference."""
        batch, time_ns = messages.batch, messages.time_ns
        leaf = self._leaf("transforms")
        assert leaf is not None
        records, offsets = batch.records(leaf)
        if not len(records):
            return
        fields = {inner.path: inner for inner in leaf.fields}
        stamps = stamps_of_transforms(records, leaf.fields)
        times = np.repeat(time_ns, np.diff(offsets))
        if stamps is not None and self.clock.source == OF_TRANSFORMS:
            times = stamps
        else:
            self._notes.leave_out(f"{self.name}: header.stamp", "of transforms; it is not the clock")
        parents = fields[
            "header.frame_id" if "header.frame_id" in fields else "parent_frame_id"
        ]  # of ROS, or of Foxglove
        frames = (
            [frame.strip("/") for frame in records.texts(frame_leaf)]
            for frame_leaf in (parents, fields["child_frame_id"])
        )
        pairs = list(zip(*frames, strict=True))
        parts = ("translation.", "rotation.")
        numbers = [
            inner
            for path, inner in fields.items()
            if path.removeprefix("transform.").startswith(parts) and inner.kind == "number"
        ]
        values = np.stack([records.numbers(inner) for inner in numbers], axis=1)
        names = [inner.path.removeprefix("transform.") for inner in numbers]
        rows: dict[tuple[str, str], list[int]] = {}
        for row, pair in enumerate(pairs):
            rows.setdefault(pair, []).append(row)
        # A static transform is valid until it is sent again, so it is held between rows.
        is_static = self.origin.name.rpartition("/")[2] == "tf_static"
        methods = {"methods": [[0, len(numbers), "previous"]]} if is_static else {}
        for (parent, child), pair_rows in rows.items():
            attributes = self._attributes(frame_id=parent, child_frame_id=child, **methods)
            yield (
                f"{self.name}/{parent}/{child}",
                Rows(times[pair_rows], values[pair_rows], names, attributes=attributes),
            )


def says_absent(leaves: Mapping[str, Leaf]) -> dict[str, tuple[str, list[str]]]:
    """Returns the fields whose first number is -1 if a quantity is absent: by the field's path, the quantity's name, and the beginnings of
    the paths of the quantity's fields. In ROS these are an Imu's covariances and the status of a NavSatFix."""
    quantities: dict[str, tuple[str, list[str]]] = {}
    for path, leaf in leaves.items():
        stem = path.partition("_covariance")[0]
        if path.endswith(_UNKNOWN_COVARIANCES) and leaf.kind in ("number", "numbers") and leaf.count != 0:
            quantities[path] = stem, [f"{stem}."]
        elif (
            path.endswith("status.status")
            and f"{path.removesuffix('status.status')}latitude" in leaves
            and leaf.kind == "number"
        ):
            prefix = path.removesuffix("status.status")
            quantities[path] = (
                f"{prefix}position",
                [f"{prefix}{name}" for name in ("latitude", "longitude", "altitude")],
            )
    return quantities


def _first_numbers(batch: Batch, leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first number of each message's array, and the indices of the messages whose array has one."""
    if leaf.kind == "number":
        return batch.numbers(leaf).reshape(len(batch), -1)[:, 0], np.arange(len(batch))
    values, offsets = batch.sequences(leaf)
    rows = np.flatnonzero(np.diff(offsets))
    return values[offsets[rows]], rows


def joint_lists(leaves: Mapping[str, Leaf], batch: Batch) -> list[tuple[str, ...]] | None:
    """Returns the names of the joints in each message; None if the type lists no joints."""
    field = "joint_names" if "joint_names" in leaves else "name" if _is_joint_state(leaves) else ""
    if not field or leaves[field].kind != "texts":
        return None
    lists = batch.text_lists(leaves[field])
    if field == "name":  # a JointState may have numbers but no names
        counts = np.max([batch.counts(leaves[path]) for path in ("position", "velocity", "effort")], axis=0)
        return [names or ("",) * count for names, count in zip(lists, counts.tolist(), strict=True)]
    if not _is_dynamic(leaves):
        return lists
    records, offsets = batch.records(leaves["interface_values"])
    (leaf,) = (inner for inner in leaves["interface_values"].fields if inner.path == "interface_names")
    interfaces = records.text_lists(leaf)
    return [
        tuple(f"{joint}/{name}" for joint, names in zip(joints, interfaces[start:stop], strict=False) for name in names)
        for joints, (start, stop) in zip(lists, pairwise(offsets.tolist()), strict=True)
    ]


def _is_dynamic(leaves: Mapping[str, Leaf]) -> bool:
    """Whether the type is like control_msgs' DynamicJointState, which has for each joint the names and values of its interfaces."""
    values = leaves.get("interface_values")
    inner = {leaf.path: leaf.kind for leaf in values.fields} if values is not None and values.kind == "records" else {}
    has_names = "joint_names" in leaves and leaves["joint_names"].kind == "texts"
    return has_names and inner.get("interface_names") == "texts" and inner.get("values") == "numbers"


def _is_joint_state(leaves: Mapping[str, Leaf]) -> bool:
    kinds = {"name": "texts", "position": "numbers", "velocity": "numbers", "effort": "numbers"}
    return all(path in leaves and leaves[path].kind == kind for path, kind in kinds.items())


# ---- vectors ----


def _group_scalars(scalars: Sequence[Leaf]) -> list[tuple[str, list[Leaf], np.dtype[Any]]]:
    """Groups single numbers to vectors. Returns for each vector a path, the fields, and a dtype that holds all of them exactly. If types
    differ, each 64-bit integer is a vector, with the field's path; the vector of all others has the path ""."""
    dtypes = {leaf.path: cast("np.dtype[Any]", leaf.dtype) for leaf in scalars}
    if len(set(dtypes.values())) < 2:
        return [("", list(scalars), dtype) for dtype in set(dtypes.values())]
    wide = {path for path, dtype in dtypes.items() if dtype.kind in "iu" and dtype.itemsize == 8}
    others = [leaf for leaf in scalars if leaf.path not in wide]
    vectors = [("", others, np.result_type(*(dtypes[leaf.path] for leaf in others)))] if others else []
    return vectors + [(leaf.path, [leaf], dtypes[leaf.path]) for leaf in scalars if leaf.path in wide]
