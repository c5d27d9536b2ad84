"""What bags of recorded messages have in common: two passes over each.

The first pass counts, and looks at stamps, lengths and names, so that what is said of a topic holds for all of it; the second
gives the rows, a few tens of MB at a time. A bag that is small when it is decompressed is read once.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import Error, FileError
from ..formats.mcap import MessageOptions
from ..recording import Notes, Recording, Samples, SourceError
from .bags import Bag, Channel, Faults, Part
from .batches import Decoder
from .json import JsonDecoder
from .known import Known, Origin
from .protobuf import ProtobufDecoder
from .ros import Definitions, RosDecoder, known_definitions, leaves_of, parse_definition, read_definitions
from .streams import Topic

# Messages that become rows together.
_AT_ONCE = 16 << 20
# A bag of no more than this is held between the passes.
_SMALL = 96 << 20


def read_bags(
    source: Path, bags: Sequence[tuple[str, Bag]], options: MessageOptions, notes: Notes
) -> Generator[Recording, None, None]:
    """Yields every bag, which goes by that name.

    Raises:
        FileError: there is none.
    """
    if not bags:
        raise FileError(f"{source}: expected recorded messages, found none")
    decoders = _Decoders(options.definitions)
    known = Known(options, notes)
    notes.total = len(bags)
    for what, bag in bags:
        metadata: dict[str, Any] = {"name": what}
        yield Recording(what, str(bag.path), metadata, _read(what, bag, metadata, decoders, known, notes))


def finish(source: Path, options: MessageOptions, notes: Notes) -> None:
    """Tells each topic's clock and type."""
    notes.tell(source, stamp=options.stamp, **{table: notes.seen.get(table, {}) for table in ("clocks", "schemas")})


def _read(
    what: str, bag: Bag, metadata: dict[str, Any], decoders: _Decoders, known: Known, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    with closing(bag):
        yield from _streams(what, bag, metadata, decoders, known, notes)


def _streams(
    what: str, bag: Bag, metadata: dict[str, Any], decoders: _Decoders, known: Known, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    """Adds what the first pass found out to the metadata."""
    faults = Faults(what, notes.skip)
    bag.open(faults)
    metadata.update(bag.columns)
    kept: deque[Part] | None = deque()
    size = 0
    topics: dict[int, Topic | None] = {}
    types: dict[str, str] = {}  # of each topic
    for part in bag.parts(faults):
        size += part.size
        if kept is not None:
            kept.append(part)
            kept = kept if size <= _SMALL else None
        for number, messages in part.messages.items():
            if number not in topics:
                topics[number] = _topic(what, bag, bag.channels[number], types, decoders, known, notes)
            topic = topics[number]
            if topic is not None:
                topic.survey(messages)
    for thing, reason in bag.left_out.items():
        notes.leave_out(f"{what}: {thing}", reason)
    for number, channel in enumerate(bag.channels):
        if number not in topics:
            notes.leave_out(f"{what}: {channel.topic}", "no messages")
    read = {number: topic for number, topic in topics.items() if topic is not None and topic.settle()}
    intrinsics = [topic.intrinsics for topic in read.values() if topic.intrinsics is not None]
    for topic in read.values():
        topic.find_intrinsics(intrinsics)
    if frame_ids := {stream: frame for topic in read.values() for stream, frame in topic.frame_ids().items()}:
        metadata["frame_ids"] = json.dumps(frame_ids, ensure_ascii=False)

    pending = Part()
    for part in _drain(kept) if kept is not None else bag.parts(Faults(what, None)):
        if all(messages.decoded is not None for messages in part.messages.values()):
            yield from _samples(pending, read)
            yield from _samples(part, read)
            pending = Part()
            continue
        pending.extend(part)
        if pending.size >= _AT_ONCE:
            yield from _samples(pending, read)
            pending = Part()
    yield from _samples(pending, read)
    for topic in read.values():
        yield from topic.rest()


def _drain(parts: deque[Part]) -> Iterator[Part]:
    while parts:
        yield parts.popleft()


def _samples(part: Part, topics: dict[int, Topic]) -> Iterator[tuple[str, Samples]]:
    for number, messages in part.messages.items():
        if number in topics:
            yield from topics[number].samples(messages)


def _topic(
    what: str,
    bag: Bag,
    channel: Channel,
    others: dict[str, str],
    decoders: _Decoders,
    known: Known,
    notes: Notes,
) -> Topic | None:
    """What reads the messages of a channel, or None where nothing can."""
    name = channel.topic
    try:
        decoder = decoders.of(channel)
    except Error as error:
        notes.leave_out(name, f"{channel.schema or 'messages'}: {error}")
        return None
    if name in others:
        clash = SourceError(
            f"{bag.path}: {name}: messages of {channel.schema}, but others of {others[name]} on the same topic"
        )
        notes.skip(f"{what}: {name}: messages of {channel.schema}", clash)
        return None
    others[name] = channel.schema
    return Topic(Origin(name, channel.schema, what, bag.path, known, channel.exported), decoder)


class _Decoders:
    """By the channel's type; in JSON a topic's messages say themselves what it is."""

    def __init__(self, definitions: str | None) -> None:
        self._own = {} if definitions is None else read_definitions(Path(definitions))
        self._given: dict[int, Definitions] = {}
        self._made: dict[Channel, Decoder] = {}

    def of(self, channel: Channel) -> Decoder:
        """What decodes its messages.

        Raises:
            Error: nothing does.
        """
        key = channel if channel.encoding == "json" else replace(channel, topic="", exported=None)
        if key not in self._made:
            self._made[key] = self._make(channel)
        return self._made[key]

    def _make(self, channel: Channel) -> Decoder:
        if channel.encoding in ("cdr", "ros1"):
            ros = 1 if channel.encoding == "ros1" else 2
            return RosDecoder(leaves_of(*self._definitions(channel, ros), ros), cdr=ros == 2)
        if channel.encoding == "json":
            return JsonDecoder()
        if channel.encoding == "protobuf" and channel.definition_encoding == "protobuf":
            return ProtobufDecoder(channel.schema, channel.definition)
        raise Error(f"messages in {channel.encoding!r}, which is none of cdr, ros1, json and protobuf")

    def _definitions(self, channel: Channel, ros: int) -> tuple[str, Definitions]:
        """The type's name in ROS 2's style, and what it is made of: what comes with the bag, what the user has, what ROS has."""
        package, _, rest = channel.schema.partition("/")
        name = channel.schema if "/" in rest or not rest else f"{package}/msg/{rest}"
        if ros not in self._given:
            self._given[ros] = known_definitions(ros)
        definitions = self._given[ros] | self._own
        if channel.definition:
            encoding = channel.definition_encoding or f"ros{ros}msg"
            if encoding not in ("ros1msg", "ros2msg", "ros2idl"):
                raise Error(f"a definition in {encoding!r}, which is none of ros1msg, ros2msg and ros2idl")
            definitions |= parse_definition(name, channel.definition.decode(errors="replace"), encoding)
        return name, definitions
