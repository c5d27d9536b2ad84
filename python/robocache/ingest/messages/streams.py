"""What becomes of a topic's messages: one stream of the numbers that stand alone, one each of what else there is.

The rules are in docs/ingest-ros.md. What a topic is, an image or a cloud, follows from the fields of its type, not from the type's
name, so that ROS 1, ROS 2, protobuf and JSON are read alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from ... import frames
from ...errors import Error
from ..formats.mcap import MessageOptions
from ..images import Images, Kinds, Storage, encode
from ..recording import Frames, Notes, Ragged, Rows, Samples, SourceError, Texts, ranges
from .bags import Messages
from .batches import Batch, Decoder, Leaf, offsets_of

# A header's stamp farther than this from the log time is of another clock, or of none.
_SANE_NS = 10_000_000_000
# Where a message's own time may stand.
_STAMPS = ("header.stamp", "stamp", "timestamp")
_SECONDS = ("sec", "secs", "seconds")
# Frames of reference: in the episodes table where they are the same in all messages of a recording.
_FRAMES = ("header.frame_id", "frame_id", "child_frame_id")
_NANOSECONDS = ("nanosec", "nsecs", "nsec", "nanos", "nanoseconds")
# A batch of images that are encoded at once.
_IMAGE_BYTES = 16 << 20

# What an encoding's pixels are: dtype, channels in the message, those that are kept and in which order.
_ENCODINGS: dict[str, tuple[Any, int, list[int]]] = {
    "rgb8": (np.uint8, 3, [0, 1, 2]),
    "bgr8": (np.uint8, 3, [2, 1, 0]),
    "rgba8": (np.uint8, 4, [0, 1, 2]),
    "bgra8": (np.uint8, 4, [2, 1, 0]),
    "mono8": (np.uint8, 1, [0]),
    "8UC1": (np.uint8, 1, [0]),
    "mono16": (np.uint16, 1, [0]),
    "16UC1": (np.uint16, 1, [0]),
    "32FC1": (np.float32, 1, [0]),
}
_UNITS_M = {"uint16": 0.001, "float32": 1.0}
# The numbers of PointField.
_POINT_TYPES = {
    number: np.dtype(name)
    for number, name in enumerate(("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"), 1)
}


@dataclass
class Known:
    """What holds for a topic in all recordings, by the first that has it.

    facts: by topic and what it is about.
    clocks: of each topic.
    streams: which topic each belongs to.
    """

    options: MessageOptions
    notes: Notes
    facts: dict[tuple[str, str], Any] = field(default_factory=dict)
    clocks: dict[str, str] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=Kinds)


@dataclass
class _Span:
    """The least and the greatest of what was met."""

    low: int | None = None
    high: int | None = None
    zeros: int = 0

    def add(self, numbers: np.ndarray) -> None:
        if len(numbers):
            low, high = int(numbers.min()), int(numbers.max())
            self.low = low if self.low is None else min(low, self.low)
            self.high = high if self.high is None else max(high, self.high)
            self.zeros += int((numbers == 0).sum())


class Topic:
    """One topic of one recording.

    Attributes:
        name, schema: of it.
        matrix: the intrinsics that its messages say, and the size of the image, where it is a CameraInfo.
    """

    def __init__(self, name: str, schema: str, decoder: Decoder, what: str, where: Path, known: Known) -> None:
        self.name = name
        self.schema = schema
        self.matrix: tuple[list[list[float]], int, int] | None = None
        self._decoder = decoder
        self._what = what
        self._where = where
        self._known = known
        self._notes = known.notes
        self._seen = self._bad = self._rows = 0
        self._lengths: dict[str, _Span] = {}
        self._constant: dict[str, str | None] = {}
        self._stamps, self._distance = _Span(), _Span()
        self._insane = 0
        self._clock = "log_time"
        self._joints: tuple[str, ...] | None = None
        self._camera: Topic | None = None
        self._refused: set[str] = set()
        self._leaves: tuple[Leaf, ...] | None = None
        self._look()

    # ---- the type ----

    def _look(self) -> None:
        """Takes in the type, to which messages in JSON may have added."""
        if self._leaves is self._decoder.leaves:
            return
        self._leaves = self._decoder.leaves
        self._by_path = {leaf.path: leaf for leaf in self._leaves}
        # Bytes are of any number, though in one recording they may be as many in each message.
        self._bytes = {leaf.path for leaf in self._leaves if leaf.dtype == np.uint8}
        self._form = self._find_form()
        self._stamp = next((path for path in _STAMPS if _stamp_leaves(self._leaves, path)), None)
        if self._stamp is None and self._form == "transforms":
            self._stamp = "transforms.header.stamp"

    def _leaf(self, path: str, kind: str | None = None) -> Leaf | None:
        leaf = self._by_path.get(path)
        return leaf if leaf is not None and kind in (None, leaf.kind) else None

    def _has(self, *paths: str) -> bool:
        return all(self._leaf(path) is not None for path in paths)

    def _find_form(self) -> str:
        """What the fields say it is."""
        data = self._leaf("data", "numbers")
        of_bytes = data is not None and data.dtype == np.uint8
        if of_bytes and self._has("height", "width", "encoding", "step"):
            return "image"
        if of_bytes and self._has("height", "width", "fields", "point_step", "row_step"):
            return "cloud"
        if of_bytes and self._leaf("format", "text"):
            return "compressed"
        if self._leaf("name", "texts") and all(
            self._leaf(path, "numbers") for path in ("position", "velocity", "effort")
        ):
            return "joints"
        transforms = self._leaf("transforms", "records")
        if transforms and {"child_frame_id", "transform.rotation.w"} <= {leaf.path for leaf in transforms.fields}:
            return "transforms"
        if data is not None and self._has("layout.dim", "layout.data_offset"):
            return "array"
        return "other"

    # ---- the first pass ----

    def survey(self, messages: Messages) -> None:
        """Looks at messages."""
        batch, bad = self._decoder.decode(messages.payloads)
        self._look()
        self._bad += len(bad)
        self._seen += len(messages.payloads)
        if not len(batch):
            return
        log_ns = np.array(messages.log_ns, np.int64)
        if bad:
            log_ns = np.delete(log_ns, list(bad))
        self._survey_stamps(batch, log_ns)
        for leaf in self._decoder.leaves:
            if leaf.kind in ("numbers", "records"):
                self._lengths.setdefault(leaf.path, _Span()).add(batch.counts(leaf))
            if leaf.kind == "records":
                self._survey_records(leaf, batch)
            if leaf.kind == "text" and leaf.path.split(".")[-1] in ("frame_id", "child_frame_id"):
                texts = set(batch.texts(leaf))
                first = self._constant.setdefault(leaf.path, next(iter(texts)))
                if texts != {first}:
                    self._constant[leaf.path] = None
        if self._form == "joints" and self._joints is None:
            names = cast(Leaf, self._leaf("name"))
            self._joints = self._known.facts.setdefault((self.name, "joints"), batch.text_lists(names)[0])
        matrix = self._leaf("k", "number") or self._leaf("K", "number")
        height, width = self._leaf("height", "number"), self._leaf("width", "number")
        if matrix and matrix.count == 9 and height and width and self.matrix is None:
            values = batch.numbers(matrix)[0].reshape(3, 3).tolist()
            self.matrix = values, int(batch.numbers(height)[0]), int(batch.numbers(width)[0])

    def _survey_stamps(self, batch: Batch, log_ns: np.ndarray) -> None:
        stamps = self._read_stamps(batch)
        if stamps is None and self._form == "transforms":
            leaf = self._leaf("transforms")
            assert leaf is not None
            records, offsets = batch.records(leaf)
            stamps = _stamps_of(records, leaf.fields, "header.stamp")
            log_ns = np.repeat(log_ns, np.diff(offsets))
        if stamps is None:
            return
        self._stamps.add(stamps)
        self._distance.add(stamps - log_ns)
        self._insane += int((np.abs(stamps - log_ns) > _SANE_NS).sum())

    def _survey_records(self, leaf: Leaf, batch: Batch) -> None:
        records, _ = batch.records(leaf)
        for inner in leaf.fields:
            if inner.kind == "numbers" and len(records):
                self._lengths.setdefault(f"{leaf.path}.{inner.path}", _Span()).add(records.counts(inner))

    # ---- between the passes ----

    def settle(self) -> bool:
        """Decides what the first pass is good for; False where there is nothing to read."""
        name, notes, known = self.name, self._notes, self._known
        if self._seen == self._bad and self._bad:
            # The second pass tells of every one.
            return True
        notes.see("schemas", name, self.schema)
        for path, reason in self._decoder.left_out.items():
            notes.leave_out(f"{name}: {path}", reason)
        if self._leaf("header.seq"):
            notes.leave_out(f"{name}: header.seq", "a counter of messages")
        try:
            self._settle_clock()
            for path, span in self._lengths.items():
                if not span.high or self._form == "joints" or self._leaf(path, "records"):
                    continue
                fixed = span.low if span.low == span.high and path not in self._bytes else None
                before = known.facts.setdefault((name, path), fixed)
                if before not in (None, fixed):
                    raise SourceError(
                        f"{self._where}: {name}: {path} has {span.low} to {span.high} values a message, "
                        f"but {before} in each before it"
                    )
        except SourceError as error:
            notes.skip(f"{self._what}: {name}", error)
            return False
        return True

    def _settle_clock(self) -> None:
        asked = self._known.options.stamp
        path = self._stamp
        clock = "publish_time" if asked == "publish" else "log_time"
        if path is not None and self._stamps.low is not None and asked in ("auto", "header"):
            clock = path
            wrong = []
            if self._stamps.zeros:
                wrong.append(f"zero in {self._stamps.zeros}")
            if self._insane - self._stamps.zeros > 0:
                assert self._distance.low is not None and self._distance.high is not None
                wrong.append(
                    f"more than {_SANE_NS // 10**9} s from the log time in {self._insane}, "
                    f"by {self._distance.low / 1e9:.6g} to {self._distance.high / 1e9:.6g} s"
                )
            if wrong and asked == "auto":
                clock = "log_time"
                self._notes.leave_out(
                    f"{self._what}: {self.name}: {path} as the clock",
                    f"{' and '.join(wrong)} of {self._seen} messages; log_time is it",
                )
        before = self._known.clocks.setdefault(self.name, clock)
        if before != clock and clock == "log_time":
            raise SourceError(
                f"{self._where}: {self.name}: {path} is no clock here, but was it in a recording before; "
                "stamp='log' takes the log times of all"
            )
        self._clock = clock = before
        self._notes.see("clocks", self.name, clock)
        if clock in (path, "transforms.header.stamp"):
            self._notes.leave_out("log and publish times", f"of topics whose clock is {_STAMPS[0]} or the like")

    def frame_ids(self) -> dict[str, str]:
        """The frames of reference that are the same in all its messages, by the streams that would have them otherwise."""
        found = {f"{self.name}/{path}": self._constant.get(path) for path in _FRAMES}
        return {stream: frame for stream, frame in found.items() if frame}

    def find_matrix(self, cameras: Sequence[Topic]) -> None:
        """Takes the intrinsics of the camera of this topic's namespace."""
        if self._form not in ("image", "compressed"):
            return
        place = self.name.split("/")
        if place[-1] in ("compressed", "compressedDepth"):
            place.pop()
        wanted = place[:-1]
        if place[-2:] == ["image", "data"]:  # librealsense's
            wanted = [*place[:-2], "info"]
        near = [camera for camera in cameras if camera.name.split("/")[:-1] == wanted]
        if len(near) == 1:
            self._camera = near[0]

    # ---- the second pass ----

    def samples(self, messages: Messages) -> Iterator[tuple[str, Samples]]:
        """The rows of messages."""
        batch, bad = self._decoder.decode(messages.payloads)
        self._look()
        if bad:
            rows = [self._rows + index for index in sorted(bad)]
            first = min(bad)
            self._notes.skip(
                f"{self._what}: {self.name}: messages {ranges(rows)}",
                SourceError(f"{self._where}: {self.name}: message {self._rows + first}: {self.schema}: {bad[first]}"),
            )
        first_row = self._rows
        self._rows += len(messages.payloads)
        if not len(batch):
            return
        times = messages.publish_ns if self._clock == "publish_time" else messages.log_ns
        time_ns = np.array(times, np.int64)
        if bad:
            time_ns = np.delete(time_ns, list(bad))
        stamps = self._read_stamps(batch)
        if stamps is not None and self._clock == self._stamp:
            time_ns = stamps
        forms: dict[str, Callable[[Batch, np.ndarray, int], Iterator[tuple[str, Samples]]]] = {
            "image": self._images,
            "compressed": self._compressed,
            "cloud": self._clouds,
            "joints": self._joint_states,
            "transforms": self._transforms,
        }
        for stream, samples in chain(
            self._beside(batch, time_ns), forms.get(self._form, self._fields)(batch, time_ns, first_row)
        ):
            owner = self._known.streams.setdefault(stream, self.name)
            if owner == self.name:
                yield stream, samples
            elif stream not in self._refused:
                self._refused.add(stream)
                clash = SourceError(
                    f"{self._where}: {self.name}: its stream {stream} has the name of one of topic {owner}"
                )
                self._notes.skip(f"{self._what}: {stream}", clash)

    def _read_stamps(self, batch: Batch) -> np.ndarray | None:
        path = self._stamp
        return None if path is None else _stamps_of(batch, self._decoder.leaves, path)

    def _attributes(self, **more: Any) -> dict[str, Any]:
        return {"schema": self.schema, "clock_source": self._clock, **more}

    def _spent(self) -> set[str]:
        """Paths of leaves that are told otherwise."""
        spent = {"header.seq"}
        for path in _STAMPS:
            found = _stamp_leaves(self._decoder.leaves, path)
            if found:
                spent.update(leaf.path for leaf in found)
                break
        return spent | set(_FRAMES)

    def _beside(self, batch: Batch, time_ns: np.ndarray) -> Iterator[tuple[str, Samples]]:
        """Stamps that are not the clock, and frames that change."""
        attributes = self._attributes()
        stamps, path = self._read_stamps(batch), self._stamp
        if stamps is not None and self._clock != path:
            yield f"{self.name}/{path}", Rows(time_ns, stamps, attributes={**attributes, "units": "ns"})
        for path in _FRAMES:
            leaf = self._leaf(path, "text")
            if leaf is not None and self._constant[path] is None:
                yield f"{self.name}/{path}", Texts(time_ns, batch.texts(leaf), attributes=attributes)

    def _fields(self, batch: Batch, time_ns: np.ndarray, first_row: int) -> Iterator[tuple[str, Samples]]:
        """Numbers that stand alone together, everything else by itself."""
        attributes = self._attributes()
        spent = self._spent()
        if self._form == "array":
            spent |= {leaf.path for leaf in self._decoder.leaves if leaf.path.startswith("layout.")}
            self._notes.leave_out(f"{self.name}: layout", "how the array was meant to be folded")
        leaves = [leaf for leaf in self._decoder.leaves if leaf.path not in spent]
        if not leaves:
            self._notes.leave_out(self.name, "its messages are empty")
        alone = len(leaves) == 1
        scalars = [leaf for leaf in leaves if leaf.kind == "number" and leaf.count is None]
        for group, dtype in _vectors(scalars):
            stream = self._stream(group, scalars, alone)
            columns = [batch.numbers(leaf).astype(dtype, copy=False) for leaf in group]
            names = [leaf.path for leaf in group]
            yield stream, Rows(time_ns, np.stack(columns, axis=1), names, attributes=attributes)
        for leaf in leaves:
            stream = self.name if alone else f"{self.name}/{leaf.path}"
            if leaf.kind == "number" and leaf.count is not None:
                if leaf.count == 0:
                    self._notes.leave_out(stream, "an array of no numbers")
                    continue
                yield stream, Rows(time_ns, batch.numbers(leaf), attributes=attributes)
            elif leaf.kind == "numbers":
                yield from self._sequence(stream, leaf, batch, time_ns, attributes)
            elif leaf.kind == "text":
                yield stream, Texts(time_ns, batch.texts(leaf), attributes=attributes)
            elif leaf.kind == "texts":
                texts = [json.dumps(texts, ensure_ascii=False) for texts in batch.text_lists(leaf)]
                yield stream, Texts(time_ns, texts, attributes={**attributes, "encoding": "json"})
            elif leaf.kind == "records":
                yield from self._records(stream, leaf, batch, time_ns, attributes)

    def _stream(self, group: list[Leaf], scalars: list[Leaf], alone: bool) -> str:
        """The name of a vector: the topic's, unless it is a wide integer beside others."""
        if alone or len(_vectors(scalars)) == 1 or len(group) > 1 or _is_first(group, scalars):
            return self.name
        return f"{self.name}/{group[0].path}"

    def _sequence(
        self, stream: str, leaf: Leaf, batch: Batch, time_ns: np.ndarray, attributes: dict[str, Any]
    ) -> Iterator[tuple[str, Samples]]:
        if not self._lengths[leaf.path].high:
            self._notes.leave_out(f"{self._what}: {stream}", "always empty")
            return
        values, offsets = batch.sequences(leaf)
        fixed = self._known.facts[self.name, leaf.path]
        if fixed is None:
            yield stream, Ragged(time_ns, values, offsets, attributes=attributes)
        else:
            yield stream, Rows(time_ns, values.reshape(len(batch), fixed), attributes=attributes)

    def _records(
        self, stream: str, leaf: Leaf, batch: Batch, time_ns: np.ndarray, attributes: dict[str, Any]
    ) -> Iterator[tuple[str, Samples]]:
        """A message's records: ragged."""
        if not self._lengths[leaf.path].high:
            self._notes.leave_out(f"{self._what}: {stream}", "always empty")
            return
        records, offsets = batch.records(leaf)
        scalars = [inner for inner in leaf.fields if inner.kind == "number" and inner.count is None]
        for group, dtype in _vectors(scalars):
            place = stream if len(group) > 1 or _is_first(group, scalars) else f"{stream}.{group[0].path}"
            columns = [records.numbers(inner).astype(dtype, copy=False) for inner in group]
            yield (
                place,
                Ragged(
                    time_ns, np.stack(columns, axis=1), offsets, [inner.path for inner in group], attributes=attributes
                ),
            )
        for inner in leaf.fields:
            place = f"{stream}.{inner.path}"
            if inner.kind == "number" and inner.count:
                yield place, Ragged(time_ns, records.numbers(inner), offsets, attributes=attributes)
            elif inner.kind == "numbers":
                key = f"{leaf.path}.{inner.path}"
                width = self._known.facts.get((self.name, key))
                if width is not None:
                    yield (
                        place,
                        Ragged(time_ns, records.sequences(inner)[0].reshape(-1, width), offsets, attributes=attributes),
                    )
                elif key in self._lengths and not self._lengths[key].high:
                    self._notes.leave_out(f"{self._what}: {place}", "always empty")
                else:
                    self._notes.leave_out(place, "sequences of several lengths in records")
            elif inner.kind in ("text", "texts"):
                items = records.texts(inner) if inner.kind == "text" else records.text_lists(inner)
                bounds = offsets.tolist()
                texts = [json.dumps(items[start:stop], ensure_ascii=False) for start, stop in pairwise(bounds)]
                yield place, Texts(time_ns, texts, attributes={**attributes, "encoding": "json"})
            elif inner.kind == "records":
                self._notes.leave_out(place, "records in records")

    # ---- joints ----

    def _joint_states(self, batch: Batch, time_ns: np.ndarray, first_row: int) -> Iterator[tuple[str, Samples]]:
        """Features in the order of the first message's names, whatever the order in others."""
        leaf = self._leaf("name")
        joints = self._joints
        assert leaf is not None and joints is not None
        lists = batch.text_lists(leaf)
        orders: dict[tuple[str, ...], np.ndarray] = {joints: np.arange(len(joints))}
        lost: dict[int, SourceError] = {}
        for row, names in enumerate(lists):
            if names not in orders:
                if sorted(names) == sorted(joints) and len(set(names)) == len(names):
                    orders[names] = np.array([names.index(joint) for joint in joints])
                    continue
                lost[row] = SourceError(
                    f"{self._where}: {self.name}: message {first_row + row}: joints {list(names)}, but {list(joints)} before "
                    "it: two publishers on one topic?"
                )
        numbers = {path: cast(Leaf, self._leaf(path)) for path in ("position", "velocity", "effort")}
        counts = {path: batch.counts(of) for path, of in numbers.items()}
        for path, count in counts.items():
            for row in np.flatnonzero((count != 0) & (count != len(joints))).tolist():
                message = f"{self._where}: {self.name}: message {first_row + row}"
                lost.setdefault(row, SourceError(f"{message}: {count[row]} of {path} for {len(joints)} joints"))
        self._lose(lost, first_row)
        kept = np.array([row not in lost for row in range(len(batch))])
        for path, of in numbers.items():
            span = self._lengths[path]
            if not span.high or span.zeros:
                empty = f"empty in {span.zeros} messages" if span.high else "always empty"
                self._notes.leave_out(f"{self._what}: {self.name}/{path}", empty)
            there = np.flatnonzero(kept & (counts[path] != 0))
            if not len(there):
                continue
            flat, offsets = batch.sequences(of)
            values = flat[offsets[there][:, None] + np.arange(len(joints))]
            if len(orders) > 1:
                values = np.take_along_axis(values, np.array([orders[lists[row]] for row in there]), axis=1)
            yield f"{self.name}/{path}", Rows(time_ns[there], values, list(joints), attributes=self._attributes())

    # ---- transforms ----

    def _transforms(self, batch: Batch, time_ns: np.ndarray, first_row: int) -> Iterator[tuple[str, Samples]]:
        """A stream for each pair of frames."""
        leaf = self._leaf("transforms")
        assert leaf is not None
        records, offsets = batch.records(leaf)
        if not len(records):
            return
        fields = {inner.path: inner for inner in leaf.fields}
        stamps = _stamps_of(records, leaf.fields, "header.stamp")
        times = np.repeat(time_ns, np.diff(offsets))
        if stamps is not None and self._clock == "transforms.header.stamp":
            times = stamps
        else:
            self._notes.leave_out(f"{self.name}: header.stamp", "of transforms, which is not the clock")
        pairs = list(
            zip(records.texts(fields["header.frame_id"]), records.texts(fields["child_frame_id"]), strict=True)
        )
        numbers = [inner for path, inner in fields.items() if path.startswith("transform.") and inner.kind == "number"]
        values = np.stack([records.numbers(inner) for inner in numbers], axis=1)
        names = [inner.path.removeprefix("transform.") for inner in numbers]
        rows: dict[tuple[str, str], list[int]] = {}
        for row, pair in enumerate(pairs):
            rows.setdefault(pair, []).append(row)
        for (parent, child), some in rows.items():
            attributes = {
                "schema": self.schema,
                "clock_source": self._clock,
                "frame_id": parent,
                "child_frame_id": child,
            }
            yield f"{self.name}/{parent}/{child}", Rows(times[some], values[some], names, attributes=attributes)

    # ---- clouds ----

    def _clouds(self, batch: Batch, time_ns: np.ndarray, first_row: int) -> Iterator[tuple[str, Samples]]:
        leaves = {leaf.path: leaf for leaf in self._decoder.leaves}
        data, starts = batch.sequences(leaves["data"])
        fields, offsets = batch.records(leaves["fields"])
        inner = {leaf.path: leaf for leaf in leaves["fields"].fields}
        names = fields.texts(inner["name"])
        columns = [fields.numbers(inner[path]).tolist() for path in ("offset", "datatype", "count")]
        described = list(zip(names, *columns, strict=True))
        paths = ("height", "width", "row_step", "point_step", "is_bigendian")
        sizes = list(zip(*(batch.numbers(leaves[path]).tolist() for path in paths), strict=True))
        if any(height > 1 for height, *_ in sizes):
            self._notes.leave_out(f"{self.name}: height and width", "of clouds whose points lie in rows as an image's")
        lost: dict[int, SourceError] = {}
        rows: list[int] = []
        clouds: list[dict[str, np.ndarray]] = []
        layouts: dict[Any, _Points] = {}
        points: _Points | None = None
        for row, (height, width, row_step, step, big) in enumerate(sizes):
            try:
                key = *described[offsets[row] : offsets[row + 1]], step, bool(big)
                if key not in layouts:
                    layouts[key] = self._layout(key[:-2], step, bool(big))
                points = layouts[key]
                clouds.append(points.cut(data[starts[row] : starts[row + 1]], height, width, row_step))
                rows.append(row)
            except Error as error:
                lost[row] = SourceError(f"{self._where}: {self.name}: message {first_row + row}: {error}")
        self._lose(lost, first_row)
        if points is None or not rows:
            return
        attributes = self._attributes()
        for part in clouds[0]:
            parts = [cloud[part] for cloud in clouds]
            bounds = offsets_of(np.array([len(some) for some in parts], np.int64))
            stream, features = (f"{self.name}/{part}", None) if part else (self.name, points.names)
            yield stream, Ragged(time_ns[rows], np.concatenate(parts), bounds, features, attributes=attributes)

    def _layout(self, fields: Sequence[tuple[str, int, int, int]], step: int, big: bool) -> _Points:
        """How points lie; their fields must be those of all clouds before."""
        points = _Points.of(fields, step, big)
        known = self._known.facts.setdefault((self.name, "points"), points.says)
        if points.says != known:
            raise Error(f"points of {points.says}, but of {known} before")
        return points

    def _lose(self, lost: dict[int, SourceError], first_row: int) -> None:
        if lost:
            rows = [first_row + row for row in sorted(lost)]
            self._notes.skip(f"{self._what}: {self.name}: messages {ranges(rows)}", lost[min(lost)])

    # ---- images ----

    def _images(self, batch: Batch, time_ns: np.ndarray, first_row: int) -> Iterator[tuple[str, Samples]]:
        leaves = {leaf.path: leaf for leaf in self._decoder.leaves}
        data, starts = batch.sequences(leaves["data"])
        said = [batch.numbers(leaves[path]).tolist() for path in ("height", "width", "step")]
        endian = batch.numbers(leaves["is_bigendian"]).tolist() if "is_bigendian" in leaves else [0] * len(batch)
        kinds = list(zip(*said, endian, batch.texts(leaves["encoding"]), np.diff(starts).tolist(), strict=True))
        storage = Storage.of(self._known.options)
        lost: dict[int, SourceError] = {}
        row = 0
        while row < len(batch):
            height, width, step, big, encoding, size = kinds[row]
            most = max(1, _IMAGE_BYTES // max(1, size))
            stop = row + 1
            while stop < len(batch) and stop - row < most and kinds[stop] == kinds[row]:
                stop += 1
            if encoding not in _ENCODINGS:
                self._notes.leave_out(self.name, f"images in {encoding!r}: only {', '.join(_ENCODINGS)} are read")
                row = stop
                continue
            try:
                pixels = _pixels(
                    data[starts[row] : starts[stop]].reshape(stop - row, size), height, width, step, bool(big), encoding
                )
                self._known.kinds.check(
                    self.name, f"{width}x{height} {encoding}", f"{self._where}: {self.name}: message {first_row + row}"
                )
            except Error as error:
                lost.update(
                    {
                        bad: SourceError(f"{self._where}: {self.name}: message {first_row + bad}: {error}")
                        for bad in range(row, stop)
                    }
                )
                row = stop
                continue
            if encoding in ("rgba8", "bgra8"):
                self._notes.leave_out(f"{self.name}: alpha", f"of {encoding}")
            unit = _UNITS_M.get(pixels.dtype.name)
            if unit is None:
                stored, resized = encode(pixels, storage), storage.resized(height, width)
            elif storage.size is not None:
                self._notes.leave_out(self.name, "depth is not resized; image_size='keep' takes it as it is")
                return
            else:
                raw = storage.codec == "raw" or pixels.dtype == np.float32
                stored, resized = frames.encode(pixels, codec="raw" if raw else "png"), None
            matrix = self._find_intrinsics(height, width, resized)
            yield (
                self.name,
                Frames(
                    [(time_ns[row:stop], stored)],
                    unit_m=unit,
                    intrinsics=matrix,
                    resized=resized,
                    attributes=self._attributes(),
                ),
            )
            row = stop
        self._lose(lost, first_row)

    def _find_intrinsics(self, height: int, width: int, resized: dict[str, Any] | None) -> list[list[float]] | None:
        key = self.name, "intrinsics"
        if self._camera is None or self._camera.matrix is None:
            return cast("list[list[float]] | None", self._known.facts.setdefault(key, None))
        matrix: list[list[float]] | None
        matrix, *size = self._camera.matrix
        why = None
        if size != [height, width]:
            why = f"are of {size[1]}x{size[0]}, frames of {width}x{height}"
        elif resized is not None:
            why = "are of frames that were not resized"
        elif not np.isfinite(matrix).all() or not np.any(matrix):
            why = "are not calibrated"
        if why is not None:
            self._notes.leave_out(f"{self.name}: intrinsics", f"those of {self._camera.name} {why}")
            matrix = None
        known = self._known.facts.setdefault(key, matrix)
        if known != matrix:
            self._notes.leave_out(f"{self._what}: {self.name}: intrinsics", f"{matrix}, but {known} before")
        return cast("list[list[float]] | None", known)

    def _compressed(self, batch: Batch, time_ns: np.ndarray, first_row: int) -> Iterator[tuple[str, Samples]]:
        leaves = {leaf.path: leaf for leaf in self._decoder.leaves}
        formats = batch.texts(leaves["format"])
        data, starts = batch.sequences(leaves["data"])
        depth = "compressedDepth" in formats[0]
        first = bytes(data[starts[0] : starts[1]][12 * depth :][:8])
        if not first.startswith((b"\xff\xd8", b"\x89PNG")) or (depth and "32FC1" in formats[0]):
            self._notes.leave_out(self.name, f"images in {formats[0]!r}: only JPEG and PNG are read")
            return

        def file(row: int) -> bytes:
            return bytes(data[starts[row] : starts[row + 1]][12 * depth :])

        images = Images(self.name, f"{self._what}: from message {first_row}", self._where, time_ns, "recorded", file)
        made = images.stored(self._known.options, self._known.kinds, self._notes)
        if made is None:
            return
        chunks = iter(made.chunks)
        time_of_first, stored = next(chunks)
        height, width = stored.shape[:2] if isinstance(stored, frames.Encoded) else (0, 0)
        if made.resized is not None:
            height, width = made.resized["from"]
        unit = 0.001 if isinstance(stored, frames.Encoded) and stored.dtype == np.uint16 else None
        yield (
            self.name,
            replace(
                made,
                chunks=chain([(time_of_first, stored)], chunks),
                unit_m=unit,
                intrinsics=self._find_intrinsics(height, width, made.resized),
                attributes=self._attributes(),
            ),
        )


# ---- stamps and vectors ----


def _stamp_leaves(leaves: Sequence[Leaf], path: str) -> tuple[Leaf, Leaf] | None:
    """Seconds and nanoseconds of the stamp of that path."""
    found = {leaf.path: leaf for leaf in leaves if leaf.path.startswith(f"{path}.") and leaf.dtype is not None}
    seconds = next((found[f"{path}.{name}"] for name in _SECONDS if f"{path}.{name}" in found), None)
    nanoseconds = next((found[f"{path}.{name}"] for name in _NANOSECONDS if f"{path}.{name}" in found), None)
    if seconds is None or nanoseconds is None or "f" in seconds.dtype.kind + nanoseconds.dtype.kind:  # type: ignore[union-attr]
        return None
    return seconds, nanoseconds


def _stamps_of(batch: Batch, leaves: Sequence[Leaf], path: str) -> np.ndarray | None:
    """The stamps as int64 nanoseconds; those that no clock shows are 0."""
    found = _stamp_leaves(leaves, path)
    if found is None or found[0].count is not None or found[1].count is not None:
        return None
    seconds, nanoseconds = (batch.numbers(leaf) for leaf in found)
    sane = (seconds >= 0) & (seconds < 9_000_000_000) & (nanoseconds >= 0) & (nanoseconds < 1_000_000_000)
    return np.where(sane, seconds, 0).astype(np.int64) * 10**9 + np.where(sane, nanoseconds, 0).astype(np.int64)


def _vectors(scalars: Sequence[Leaf]) -> list[tuple[list[Leaf], np.dtype[Any]]]:
    """Which numbers share a vector, and its dtype, which holds all of them exactly: an integer of 64 bits beside others has one
    of its own."""
    if not scalars:
        return []
    dtypes = [cast("np.dtype[Any]", leaf.dtype) for leaf in scalars]
    if len(set(dtypes)) == 1:
        return [(list(scalars), dtypes[0])]
    wide = [dtype.kind in "iu" and dtype.itemsize == 8 for dtype in dtypes]
    groups = [([leaf], dtype) for leaf, dtype, alone in zip(scalars, dtypes, wide, strict=True) if alone]
    others = [leaf for leaf, alone in zip(scalars, wide, strict=True) if not alone]
    if others:
        groups.insert(
            0, (others, np.result_type(*(dtype for dtype, alone in zip(dtypes, wide, strict=True) if not alone)))
        )
    return groups


def _is_first(group: list[Leaf], scalars: Sequence[Leaf]) -> bool:
    """Whether a vector takes its topic's name: the one that is no wide integer beside others."""
    groups = _vectors(scalars)
    narrow = groups[0][0][0].dtype
    return group == groups[0][0] and (
        len(groups) == 1 or narrow is None or not (narrow.kind in "iu" and narrow.itemsize == 8)
    )


# ---- points and pixels ----


@dataclass(frozen=True)
class _Points:
    """How a cloud's points lie in its bytes.

    dtype: of a point.
    names: of the features that share x's dtype: x, y and z first.
    own: fields of another dtype.
    says: the same in words.
    """

    dtype: np.dtype[Any]
    names: list[str]
    together: list[tuple[str, int | None]]
    own: list[str]
    says: str

    @classmethod
    def of(cls, fields: Sequence[tuple[str, int, int, int]], step: int, big: bool) -> _Points:
        described, offsets = [], []
        for name, offset, number, count in fields:
            if number not in _POINT_TYPES:
                raise Error(f"field {name!r} of type {number}, which is none of 1 to 8")
            dtype = _POINT_TYPES[number].newbyteorder(">" if big else "<")
            count = max(1, count)  # some writers say 0
            if offset + count * dtype.itemsize > step:
                raise Error(f"field {name!r} ends at {offset + count * dtype.itemsize} in points of {step} bytes")
            described.append((name, dtype, count))
            offsets.append(offset)
        names = [name for name, _, _ in described]
        if not names or len(set(names)) != len(names) or "" in names or step > 1 << 16:
            raise Error(f"fields {names} in points of {step} bytes")
        kinds = {name: (dtype, count) for name, dtype, count in described}
        main = kinds["x"][0] if "x" in kinds else described[0][1]
        same = [name for name in names if kinds[name][0] == main]
        same.sort(key=lambda name: "xyz".index(name) if name in ("x", "y", "z") else 3)
        together = [(name, i if kinds[name][1] > 1 else None) for name in same for i in range(kinds[name][1])]
        return cls(
            np.dtype(
                {
                    "names": names,
                    "formats": [(t, (c,)) if c > 1 else t for _, t, c in described],
                    "offsets": offsets,
                    "itemsize": step,
                }
            ),
            [name if i is None else f"{name}[{i}]" for name, i in together],
            together,
            [name for name in names if name not in same],
            ", ".join(
                f"{name} {dtype.newbyteorder('=').name}{f' x {count}' * (count > 1)}"
                for name, dtype, count in described
            ),
        )

    def cut(self, data: np.ndarray, height: int, width: int, row_step: int) -> dict[str, np.ndarray]:
        """The points of a cloud, and under their names the fields of other dtypes."""
        step = self.dtype.itemsize
        used = width * step
        if height > 1 and row_step < used:
            raise Error(f"rows of {width} points of {step} bytes in {row_step} bytes")
        whole = height * row_step if height > 1 else used * height
        if len(data) < whole:
            raise Error(
                f"expected {height}x{width} points of {step} bytes in rows of {row_step}, got {len(data)} bytes"
            )
        if height > 1 and row_step > used:
            data = data[:whole].reshape(height, row_step)[:, :used].reshape(-1)
        points = np.ascontiguousarray(data[: used * height]).view(self.dtype)
        main = self._main(points)
        return {"": main} | {name: _native(points[name]) for name in self.own}

    def _main(self, points: np.ndarray) -> np.ndarray:
        first = self.dtype[self.together[0][0]].base
        size = first.itemsize
        fields = cast(Any, self.dtype.fields)
        places = [fields[name][1] + (i or 0) * size for name, i in self.together]
        if self.dtype.itemsize % size == 0 and all(place % size == 0 for place in places):
            flat = points.view(first).reshape(len(points), self.dtype.itemsize // size)
            start, columns = places[0] // size, [place // size for place in places]
            if columns == list(range(start, start + len(columns))):
                return _native(flat[:, start : start + len(columns)])
            return _native(flat[:, columns])
        return np.stack(
            [_native(points[name] if i is None else points[name][:, i]) for name, i in self.together], axis=1
        )


def _native(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))


def _pixels(data: np.ndarray, height: int, width: int, step: int, big: bool, encoding: str) -> np.ndarray:
    """``[n, H, W, C]`` of bytes ``[n, size]``, without what is behind each row."""
    kind, channels, kept = _ENCODINGS[encoding]
    dtype = np.dtype(kind)
    used = width * channels * dtype.itemsize
    if not height or not width or step < used or data.shape[1] < height * step - (step - used):
        raise Error(f"expected {width}x{height} {encoding} in rows of {step} bytes, got {data.shape[1]} bytes")
    if data.shape[1] < height * step:
        data = np.pad(data, ((0, 0), (0, height * step - data.shape[1])))
    rows = data[:, : height * step].reshape(len(data), height, step)[:, :, :used]
    pixels = np.ascontiguousarray(rows).view(dtype.newbyteorder(">" if big else "<"))
    pixels = pixels.astype(dtype, copy=False).reshape(len(data), height, width, channels)
    return pixels if kept == list(range(channels)) else np.ascontiguousarray(pixels[..., kept])
