"""Reads all bags of recorded messages in two passes.

The first pass counts messages and examines stamps, lengths and names, so that decisions hold for the whole topic. The second pass
yields the rows, a few tens of MB at a time. A bag that is small when decompressed is read only once and held between the passes.
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
from ..files import natural
from ..formats.mcap import MessageOptions
from ..recording import Notes, Recording, Samples, SourceError, WiderError
from .bags import Bag, Channel, Faults, Messages, Part
from .batches import Decoder, Leaf
from .json import JsonDecoder
from .known import Known, Origin
from .metadata import BagMetadata
from .packed import messages_of
from .protobuf import ProtobufDecoder
from .ros import RosDecoder, known_definitions, leaves_of, parse_definition, read_definitions
from .streams import Topic
from .subjects import Subjects

# The bytes of messages that become rows together.
_AT_ONCE = 16 << 20
# The delays of topics from stamp to log time may differ by this much: slow detectors and networks take so long.
_MOST_DELAY_S = 0.5
# A bag of at most this size is held in memory between the passes.
_SMALL = 96 << 20


def read_bags(
    source: Path, bags: Sequence[tuple[str, Bag]], options: MessageOptions, notes: Notes
) -> Generator[Recording, None, None]:
    """Yields every bag as a recording of the given name, run_2 before run_10.

    bags: the names and the bags.

    Raises:
        FileError: there are no bags.
    """
    if not bags:
        raise FileError(f"{source}: expected recorded messages, found none")
    decoders = _Decoders(options.definitions, notes.wider.setdefault("json", {}))
    known = Known(options, notes)
    notes.total = len(bags)
    for what, bag in sorted(bags, key=lambda item: natural(item[0])):
        metadata: dict[str, Any] = {"name": what}
        yield Recording(what, str(bag.path), metadata, _read(what, bag, metadata, decoders, known, notes))


def finish(source: Path, options: MessageOptions, notes: Notes) -> None:
    """Records each topic's clock and type in the provenance."""
    notes.tell(source, stamp=options.stamp, **{table: notes.seen.get(table, {}) for table in ("clocks", "schemas")})
    if "texts" in notes.seen:
        notes.tell(source, texts=notes.seen["texts"])


def _read(
    what: str, bag: Bag, metadata: dict[str, Any], decoders: _Decoders, known: Known, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    with closing(bag):
        yield from _streams(what, bag, metadata, decoders, known, notes)


def _streams(
    what: str, bag: Bag, metadata: dict[str, Any], decoders: _Decoders, known: Known, notes: Notes
) -> Iterator[tuple[str, Samples]]:
    """Yields a bag's streams. Before the first, reads the whole bag in the first pass, and adds facts to `metadata`."""
    faults = Faults(what, notes.skip)
    bag.open(faults)
    metadata.update(bag.columns)
    for name, table in bag.texts.items():
        notes.see("texts", name, table)
        if notes.seen.get("texts", {}).get(name, table) != table:
            raise SourceError(
                f"{bag.path}: its texts {name} differ from those of the recordings before it; ingest it separately"
            )
    held: deque[Part] | None = deque()  # the parts of a small bag; None for others
    size = 0
    topics: dict[int, Subjects | None] = {}  # by the channel's number; None if the channel is skipped
    types: dict[str, str] = {}  # by topic
    choices: dict[int, _Choice | None] = {}  # by the channel's number; None if there is no decoder

    def survey(number: int, choice: _Choice) -> None:
        if number not in topics:
            topics[number] = _make_topic(what, bag, choice, types, known, notes)
        topic = topics[number]
        for messages in choice.take_waiting():
            if topic is not None:
                topic.survey(messages)

    for part in messages_of(bag, faults):
        size += part.size
        if held is not None:
            held.append(part)
            held = held if size <= _SMALL else None
        for number, messages in part.messages.items():
            if number not in choices:
                choices[number] = _choose(bag, bag.channels[number], decoders, notes)
            choice = choices[number]
            if choice is not None:
                choice.add(messages)
                if choice.decoder is not None:
                    survey(number, choice)
    for number, choice in choices.items():
        if choice is None or number in topics:
            continue
        try:
            choice.end()
        except Error as error:
            notes.leave_out(choice.channel.topic, f"{choice.channel.schema}: {error}")
        else:
            survey(number, choice)
    for number in topics:
        channel, decoder = bag.channels[number], choices[number].decoder  # type: ignore[union-attr]
        if isinstance(decoder, JsonDecoder) and (floats := decoder.no_longer_whole()):
            decoders.floats.setdefault(channel.topic, set()).update(floats)
            raise WiderError(
                f"{bag.path}: {channel.topic}: {', '.join(sorted(floats))}: whole numbers in the recordings before it, not here"
            )
    for content, reason in bag.left_out.items():
        notes.leave_out(f"{what}: {content}", reason)
    for number, channel in enumerate(bag.channels):
        if number not in choices:
            notes.leave_out(f"{what}: {channel.topic}", "no messages")
    for number, topic in topics.items():
        if topic is not None:
            topic.publishers = bag.publishers_at_once(number)
    read = {number: topic for number, topic in topics.items() if topic is not None and topic.settle()}
    subjects = [subject for topic in read.values() for subject in topic.topics]
    _report_delays(subjects, notes)
    intrinsics = [subject.intrinsics for subject in subjects if subject.intrinsics is not None]
    units = dict(subject.depth_unit for subject in subjects if subject.depth_unit is not None)
    for subject in subjects:
        subject.find_intrinsics(intrinsics, units)
    if frame_ids := {stream: frame for subject in subjects for stream, frame in subject.frame_ids().items()}:
        metadata["frame_ids"] = json.dumps(frame_ids, ensure_ascii=False)

    for number, (count, most_ns) in bag.out_of_order.items():
        notes.leave_out(
            f"{what}: {bag.channels[number].topic}: the order in the file",
            f"{count} messages were logged up to {most_ns / 1e9:.9g} s before an earlier message: sorted by log time",
        )
    pending = Part()  # messages that become rows together
    for part in _drain(held) if held is not None else messages_of(bag, Faults(what, None)):
        if part.run != pending.run:
            yield from _make_samples(pending, read)
            for topic in read.values():
                yield from _with_run(pending.run, topic.rest())
            pending = Part(part.run)
        if all(messages.decoded is not None for messages in part.messages.values()):
            yield from _make_samples(pending, read)
            yield from _make_samples(part, read)
            pending = Part(part.run)
            continue
        pending.extend(part)
        if pending.size >= _AT_ONCE:
            yield from _make_samples(pending, read)
            pending = Part(part.run)
    yield from _make_samples(pending, read)
    for topic in read.values():
        yield from _with_run(pending.run, topic.rest())


def _report_delays(topics: Sequence[Topic], notes: Notes) -> None:
    """Reports topics whose delay from stamp to log time varies much, or differs much from that of the other topics: the clocks of several
    machines may differ, or stamps may lack digits."""
    for topic in topics:
        if (delays_s := topic.clock.delays_s) is not None and delays_s[1] - delays_s[0] > _MOST_DELAY_S:
            notes.assume(
                f"clock of {topic.name}",
                f"its header's stamps, although logged {delays_s[0]:.3f} to {delays_s[1]:.3f} s after them: stamps may lack digits, or their "
                "clock drifts; --stamp log takes the log times",
                topic.name,
            )
    delays = {topic.name: delay for topic in topics if (delay := topic.clock.delay_s) is not None}
    if not delays:
        return
    usual = sorted(delays.values())[(len(delays) - 1) // 2]
    for name, delay in delays.items():
        if abs(delay - usual) > _MOST_DELAY_S:
            notes.assume(
                f"clock of {name}",
                f"its header's stamps, although logged {delay:.3f} s after them (median), and the other topics {usual:.3f} s: the clocks "
                "of two machines may differ; --stamp log takes the log times",
                name,
            )


def _drain(parts: deque[Part]) -> Iterator[Part]:
    """Yields the parts, and frees each one's memory."""
    while parts:
        yield parts.popleft()


def _make_samples(part: Part, topics: dict[int, Subjects]) -> Iterator[tuple[str, Samples]]:
    for number, messages in part.messages.items():
        if number in topics:
            yield from _with_run(part.run, topics[number].samples(messages))


def _with_run(run: int, streams: Iterator[tuple[str, Samples]]) -> Iterator[tuple[str, Samples]]:
    """Yields samples with `run`: how often the log clock was set back before them."""
    for stream, samples in streams:
        yield stream, replace(samples, run=run) if run else samples


def _choose(bag: Bag, channel: Channel, decoders: _Decoders, notes: Notes) -> _Choice | None:
    """Returns the choice of a decoder for a channel's messages; None, with a report, if no decoder reads them."""
    try:
        return decoders.of(channel, bag.metadata)
    except Error as error:
        schema = bag.metadata.complete(channel).schema
        notes.leave_out(channel.topic, f"{schema or 'messages'}: {error}")
        return None


class _Choice:
    """Chooses the decoder of a channel's messages.

    A bag may lack the definition of a type, and the type may differ between distributions of ROS. The definition is then that of the
    bag's distribution, or else the one that fits the most messages. Messages that fit several definitions equally, such as empty ones,
    wait until others decide.

    decoders: at least one, keyed by the names of the distributions that have its definition.
    named: whether the bag names the distribution of the first decoder.
    """

    def __init__(self, channel: Channel, decoders: dict[str, Decoder], named: bool) -> None:
        self.channel = channel
        self.decoder = next(iter(decoders.values())) if len(decoders) == 1 else None
        self._decoders = decoders
        self._fitting = dict.fromkeys(decoders, 0)  # how many messages each decoder decodes
        self._named = named
        self._waiting: list[Messages] = []

    def add(self, messages: Messages) -> None:
        """Takes messages, and tries the decoders on them until one is chosen."""
        self._waiting.append(messages)
        if self.decoder is not None:
            return
        for name, decoder in self._decoders.items():
            self._fitting[name] += len(decoder.decode(messages.payloads)[0])
        best = self._best()
        if best and (len(best) == 1 or (self._named and best[0] == next(iter(self._decoders)))):
            self.decoder = self._decoders[best[0]]

    def _best(self) -> list[str]:
        most = max(self._fitting.values())
        return [name for name, count in self._fitting.items() if count == most > 0]

    def end(self) -> None:
        """Chooses a decoder after the last messages, if none is chosen.

        Raises:
            Error: the messages fit several definitions equally.
        """
        if self.decoder is None and (best := self._best()):
            raise Error(
                f"its definition differs between distributions of ROS, and the messages fit those of {' and '.join(best)}; "
                "name a folder of .msg files with definitions (--definitions)"
            )
        self.decoder = self.decoder or next(iter(self._decoders.values()))

    def take_waiting(self) -> list[Messages]:
        """Returns the messages that arrived since the last call."""
        messages, self._waiting = self._waiting, []
        return messages


def _make_topic(
    what: str,
    bag: Bag,
    choice: _Choice,
    types: dict[str, str],
    known: Known,
    notes: Notes,
) -> Subjects | None:
    """Returns the reader of a channel's messages; None, with a report, if another channel of the topic has another type.

    types: the type of each topic that has a reader.
    """
    channel, name = choice.channel, choice.channel.topic
    assert choice.decoder is not None
    if name in types:
        error = SourceError(
            f"{bag.path}: {name}: messages of {channel.schema}, but others of {types[name]} on the same topic"
        )
        notes.skip(f"{what}: {name}: messages of {channel.schema}", error)
        return None
    types[name] = channel.schema
    return Subjects(Origin(name, channel.schema, what, bag.path, known, channel.exported), choice.decoder)


class _Decoders:
    """Makes decoders, one for each type of channel, or for each topic in JSON, whose type follows from the topic's messages.

    definitions: the user's folder of definitions.
    floats: for topics in JSON, the fields that are not whole numbers.
    """

    def __init__(self, definitions: str | None, floats: dict[str, set[str]]) -> None:
        self.floats = floats
        self._user_definitions = {} if definitions is None else read_definitions(Path(definitions))
        self._by_type: dict[tuple[Channel, str], dict[str, Decoder]] = {}

    def of(self, channel: Channel, metadata: BagMetadata) -> _Choice:
        """Returns the choice among the decoders for a channel of a bag with this metadata.

        Raises:
            Error: there is no decoder.
        """
        channel = metadata.complete(channel)
        type_channel = channel if channel.encoding == "json" else replace(channel, topic="", exported=None)
        key = (type_channel, "" if channel.definition else metadata.distro)
        if key not in self._by_type:
            self._by_type[key] = self._make(channel, metadata.distro)
        decoders = self._by_type[key]
        return _Choice(channel, decoders, metadata.distro in next(iter(decoders)).split(", "))

    def _make(self, channel: Channel, distro: str) -> dict[str, Decoder]:
        if channel.encoding in ("cdr", "ros1"):
            ros = 1 if channel.encoding == "ros1" else 2
            return {
                names: RosDecoder(leaves, cdr=ros == 2)
                for names, leaves in self._find_leaves(channel, ros, distro).items()
            }
        if channel.encoding == "json":
            return {"": JsonDecoder(channel.definition, self.floats.get(channel.topic, ()))}
        if channel.encoding == "protobuf" and channel.definition_encoding == "protobuf":
            return {"": ProtobufDecoder(channel.schema, channel.definition)}
        raise Error(f"messages in {channel.encoding!r}, expected cdr, ros1, json or protobuf")

    def _find_leaves(self, channel: Channel, ros: int, distro: str) -> dict[str, tuple[Leaf, ...]]:
        """Returns the leaves of the type, by the definitions in the bag, in the user's folder and of ROS. Each different definition of ROS has
        an entry, keyed by the names of its distributions: first that of the bag's distribution, then that of the newest.

        Raises:
            Error: there is no definition.
        """
        if not channel.schema:
            raise Error("its channel has no schema, and no metadata.yaml names its type")
        package, _, rest = channel.schema.partition("/")
        name = channel.schema if "/" in rest or not rest else f"{package}/msg/{rest}"
        definitions = self._user_definitions
        if channel.definition:
            encoding = channel.definition_encoding or f"ros{ros}msg"
            if encoding not in ("ros1msg", "ros2msg", "ros2idl"):
                raise Error(f"a definition in {encoding!r}, expected ros1msg, ros2msg or ros2idl")
            definitions = definitions | parse_definition(name, channel.definition.decode(errors="replace"), encoding)
        known = known_definitions(ros)
        leaves_by_definition: dict[tuple[Leaf, ...], list[str]] = {}
        errors: list[Error] = []
        for distribution in sorted(known, key=lambda distribution: distribution != distro):
            try:
                leaves = leaves_of(name, known[distribution] | definitions, ros)
            except Error as error:
                errors.append(error)
            else:
                leaves_by_definition.setdefault(leaves, []).append(distribution)
        if not leaves_by_definition:
            raise errors[0]
        return {", ".join(names): leaves for leaves, names in leaves_by_definition.items()}
