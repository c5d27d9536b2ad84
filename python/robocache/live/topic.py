"""Turns serialised ROS 2 messages into rows of rings, for any transport."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import numpy as np

from .. import _lib, errors
from .._check import whole
from .aligner import Ring

_topic_open = _lib.function("topic_open")
_topic_take = _lib.function("topic_take")
_topic_counts = _lib.function("topic_counts")
_topic_refusal = _lib.function("topic_refusal")
_topic_latencies_ns = _lib.function("topic_latencies_ns")
_topic_sink = _lib.function("topic_sink")


class Topic:
    """Turns the serialised messages of a ROS 2 topic into rows of rings, by the rules of ingest.

    Rows have the same numbers as after ingest: joints are found by name, in any order; an ``Imu`` without an orientation gives
    NaN; images are RGB. A message that does not fit is refused and counted.

    Args:
        topic: the topic's name, ``"/joint_states"``.
        schema: the topic's type, ``"sensor_msgs/msg/JointState"``.
        rings: ``{stream: Ring}``, by the streams' names in a cache: ``"/joint_states/position"``. Only this topic pushes to them.
        names: ``{stream: names}``: the names of a row's features, as in a spec's ``rows``. Joints need them. Without names a
            vector has all its fields.
        definition: the type's definition, in the form that a bag holds. None: the definition of the ROS distribution in
            ``ROS_DISTRO``, or of the newest.
        stamp: ``"auto"``: the message's own stamp, if its type has one; ``"log"``: the arrival.
        quality: the quality of JPEGs, if the topic sends pixels and a ring takes JPEGs. Use ingest's.

    Attributes:
        counts: ``{"received", "taken", "refused", "lost"}``: the numbers of messages; `lost` counts the sequence numbers that are
            missing between the messages of a publisher.
        refusal: why the last refused message was refused; ``""`` before the first.
        latencies_ns: int64, for the last 4,096 messages: the time from the stamp until the row was in its ring.

    Raises:
        ArgumentError, ArgumentTypeError: the topic does not have a stream, a ring's rows differ from the stream's, or names
            have another order than a ring's. The message names the argument.

    Example:
        >>> names = spec.keys["/joint_states/position"]["rows"]["names"]
        >>> topic = robocache.live.Topic("/joint_states", "sensor_msgs/msg/JointState", {"/joint_states/position": ring},
        ...                              names={"/joint_states/position": names})
        >>> topic.take(message)
    """

    def __init__(
        self,
        topic: str,
        schema: str,
        rings: Mapping[str, Ring],
        *,
        names: Mapping[str, Sequence[str]] | None = None,
        definition: str | None = None,
        stamp: str = "auto",
        quality: int = 95,
    ) -> None:
        try:
            from ..ingest.messages.plan import make_plan
        except ModuleNotFoundError as error:
            raise errors.Error(f"{error}; pip install 'robocache[ros]'") from error
        if not isinstance(rings, Mapping) or not rings or not all(isinstance(ring, Ring) for ring in rings.values()):
            raise errors.ArgumentTypeError(f"rings: expected {{stream: Ring}}, got {rings!r}")
        names = {} if names is None else names
        unknown = [stream for stream in names if stream not in rings]
        if unknown:
            raise errors.ArgumentError(f"names: expected streams of rings, got {unknown}")
        if stamp not in ("auto", "log"):
            raise errors.ArgumentError(f"stamp: expected 'auto' or 'log', got {stamp!r}")
        for stream, features in names.items():
            rings[stream]._set_names(f"names[{stream!r}]", features)
        self.topic, self.schema, self.rings = _lib.text("topic", topic), _lib.text("schema", schema), dict(rings)
        plan = make_plan(
            self.topic,
            self.schema,
            {stream: (ring.shape, ring.dtype, ring.codec) for stream, ring in rings.items()},
            names,
            definition=definition,
            stamp=stamp,
            quality=whole("quality", quality),
        )
        self._handle = _topic_open(json.dumps(plan), *(ring._handle for ring in rings.values()))

    def take(
        self, message: bytes, arrival_ns: int | None = None, *, publisher: int = 0, sequence: int | None = None
    ) -> None:
        """Takes a message.

        Args:
            message: the serialised bytes (CDR).
            arrival_ns: when the message came. None: now.
            publisher: a number for each publisher. Each publisher counts its own messages.
            sequence: the message's sequence number. None: the transport gives none, and `lost` does not count.
        """
        arrival = time.time_ns() if arrival_ns is None else arrival_ns
        array = _lib.from_numpy(np.frombuffer(message, np.uint8))
        _topic_take(self._handle, array, arrival, publisher, -1 if sequence is None else sequence)

    @property
    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = json.loads(_topic_counts(self._handle))
        return counts

    @property
    def refusal(self) -> str:
        return str(_topic_refusal(self._handle))

    @property
    def latencies_ns(self) -> np.ndarray:
        return np.array(json.loads(_topic_latencies_ns(self._handle)), np.int64)

    @property
    def sink(self) -> tuple[int, int]:
        """The address of a C function that takes messages without Python, and of its first argument (``live/topic.hpp``). They are
        valid as long as this object lives."""
        function, context = json.loads(_topic_sink(self._handle))
        return function, context

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        return f"robocache.live.Topic({self.topic!r}, {self.schema!r}, {counts or 'no messages'})"
