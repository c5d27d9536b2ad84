"""Turns ROS 2 topics into the batches that a policy was trained on.

    node = robocache_ros2.Node("spec.json", {"joint": robocache_ros2.Stream(
        "/joint_states", "sensor_msgs/msg/JointState", "position", span_s=5.0, lateness_s=0.006)})
    aligner = robocache.live.Aligner(node.spec, node.rings)
    node.wait(10.0)
    batch = aligner.latest()

A thread takes serialised messages from rcl without Python, and :class:`robocache.live.Topic` turns them into rows. The process does
not use rclpy.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from robocache.errors import ArgumentError, Error, StaleError
from rosbags.typesys import Stores, get_typestore

import robocache
from robocache.live import Ring, Topic

__all__ = ["Node", "Stream"]

_DIAGNOSTICS = "diagnostic_msgs/msg/DiagnosticArray"
_RELIABILITY, _DURABILITY = ("best_effort", "reliable"), ("volatile", "transient_local")
_TAKE_VALUE = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char, ctypes.c_char_p)
_LATEST = 1000  # the messages whose latencies a report has


@dataclass(frozen=True)
class Stream:
    """The source of a key's rows. The parameters of a node have the same fields.

    Args:
        topic, type: such as ``"/joint_states"`` and ``"sensor_msgs/msg/JointState"``.
        field: a field of the message that ingest makes a stream of: ``"position"`` for ``/joint_states/position``. ``""`` stands for
            the stream with the topic's name.
        span_s, lateness_s, on_rewind, on_duplicate: as in :class:`robocache.live.Ring`.
        reliability: ``"best_effort"`` takes messages from every publisher; ``"reliable"`` only from reliable publishers, which send
            lost messages again.
        durability: ``"volatile"``, or ``"transient_local"``, which also takes earlier messages that the publisher keeps.
        depth: how many messages may wait for the thread. If there are more, the oldest are lost.
        stamp, quality: as in :class:`robocache.live.Topic`.
    """

    topic: str
    type: str
    field: str = ""
    span_s: float = 5.0
    lateness_s: float = 0.0
    on_rewind: str = "refuse"
    on_duplicate: str = "keep"
    reliability: str = "best_effort"
    durability: str = "volatile"
    depth: int = 100
    stamp: str = "auto"
    quality: int = 95

    def __post_init__(self) -> None:
        for name, known in (("reliability", _RELIABILITY), ("durability", _DURABILITY)):
            if getattr(self, name) not in known:
                raise ArgumentError(f"{name}: expected {' or '.join(map(repr, known))}, got {getattr(self, name)!r}")
        if self.depth < 1:
            raise ArgumentError(f"depth: expected 1 or more, got {self.depth}")

    @property
    def _subscription(self) -> tuple[Any, ...]:
        """Returns the fields that all streams of a subscription share."""
        return self.topic, self.type, self.reliability, self.durability, self.depth, self.stamp, self.quality


@dataclass
class _Group:
    """The streams of one subscription.

    rings, names: the rings by the names of their streams, and the features of those that have names.
    streams: for each ring, its Stream and the description of its rows in the spec.
    """

    name: str
    stream: Stream
    rings: dict[str, Ring]
    names: dict[str, list[str]]
    streams: dict[str, tuple[Stream, Any]]

    def fits(self, name: str, stream: Stream, rows: Any) -> bool:
        """Whether the group has a ring for these rows, or can get one."""
        if self.stream._subscription != stream._subscription:
            return False
        if name not in self.streams:
            return True
        known_stream, known_rows = self.streams[name]
        are_equal = all(known_rows[field] == rows[field] for field in ("shape", "dtype", "codec", "names"))
        return known_stream == stream and are_equal


class Node:
    """A ROS 2 node that fills the rings of a spec.

    Args:
        spec: a :class:`robocache.Spec`, or the path of its file. By default the parameter ``spec`` is the path.
        streams: a Stream for each key of the spec that has a topic. By default the parameter ``streams`` lists the keys, and
            ``<key>.topic`` and so on are the fields of their Streams.
        name, namespace: the node's name and namespace.
        args: a command line, by default that of the process. Only the part after ``--ros-args`` counts (remappings,
            ``--params-file``).
        diagnostics_s: the period with which ``/diagnostics`` is published; 0 for never.

    Attributes:
        spec: the spec.
        rings: the ring of each key, for an :class:`robocache.live.Aligner`.
        topics: the :class:`robocache.live.Topic` of each subscription, by the topic's name; a second subscription of a topic is named
            ``"<topic> (<key>)"``.
        parameters: this node's parameters, from the command line and its files.

    Raises:
        ArgumentError: the spec does not have a key, a topic does not have a stream, or rows have another shape or dtype. The
            message names the argument or the parameter.
        Error: ROS is not installed, or reports an error.
    """

    def __init__(
        self,
        spec: robocache.Spec | str | os.PathLike[str] | None = None,
        streams: Mapping[str, Stream] | None = None,
        *,
        name: str = "robocache",
        namespace: str = "",
        args: Sequence[str] | None = None,
        diagnostics_s: float = 1.0,
    ) -> None:
        self._library = _load()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        argv = [arg.encode() for arg in (sys.argv if args is None else args)]
        error = ctypes.create_string_buffer(1024)
        self._node = self._library.robocache_ros2_open(
            name.encode(), namespace.encode(), len(argv), (ctypes.c_char_p * len(argv))(*argv), error, len(error)
        )
        if not self._node:
            raise Error(f"node {name!r}: {error.value.decode(errors='replace')}")
        atexit.register(self.close)  # its thread ends before the process does
        try:
            self.parameters = self._read_parameters()
            spec = self.parameters.get("spec") if spec is None else spec
            if spec is None:
                raise ArgumentError("spec: expected a Spec or a path, or the parameter 'spec', got none")
            self.spec = spec if isinstance(spec, robocache.Spec) else robocache.Spec.load(spec)
            self._streams = _from_parameters(self.parameters) if streams is None else dict(streams)
            self._make_rings_and_topics()
            if diagnostics_s:
                self._call("advertise", b"/diagnostics", _DIAGNOSTICS.encode())
            self._call("start")
        except BaseException:
            self.close()
            raise
        if diagnostics_s:
            thread = threading.Thread(target=self._diagnose, args=(name, diagnostics_s), daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout_s: float) -> None:
        """Waits until every ring has a row.

        Raises:
            StaleError: a ring has no row after `timeout_s`. The message gives the reason for each such ring: no publisher, a
                publisher with another QoS or type, or refused messages, such as messages without a joint.
        """
        end = time.monotonic() + timeout_s
        while empty := [key for key, ring in self.rings.items() if ring.newest_ns is None]:
            self._check()
            if time.monotonic() > end:
                reasons = "; ".join(f"{key!r}: {self._explain_no_rows(key)}" for key in empty)
                raise StaleError(f"rings: expected a row of each within {timeout_s} s, got none of {reasons}")
            time.sleep(0.005)

    def report(self) -> dict[str, dict[str, Any]]:
        """Returns for each topic its counts and last refusal, the rows that its rings dropped, ``rows_too_late`` and ``rows_refused``, the
        ``frames_repeated``, which have the bytes of the frame before, the number of ``publishers`` and of those that are ``matched``, and ``latency_p50_ms`` and ``latency_p99_ms``, from stamp to
        row, of the last 1,000 messages."""
        reports: dict[str, dict[str, Any]] = {}
        for number, (name, topic) in enumerate(self.topics.items()):
            counts = (ctypes.c_int64 * 2)()
            self._call("publishers", number, counts)
            rings = [ring.counts for ring in topic.rings.values()]
            dropped = {f"rows_{why}": sum(ring[why] for ring in rings) for why in ("too_late", "refused")}
            cameras = [ring for ring in topic.rings.values() if ring.codec is not None]
            reports[name] = {
                **topic.counts,
                **dropped,
                "frames_repeated": sum(ring.counts["repeated"] for ring in cameras),
                "publishers": counts[0],
                "matched": counts[1],
                "refusal": topic.refusal,
            }
            if len(latencies := topic.latencies_ns[-_LATEST:]):
                for percent in (50, 99):
                    reports[name][f"latency_p{percent}_ms"] = float(np.percentile(latencies, percent)) / 1e6
        return reports

    def close(self) -> None:
        """Ends the node. The rings keep their rows."""
        atexit.unregister(self.close)
        self._closed.set()
        for thread in self._threads:
            thread.join()
        if self._node:
            self._library.robocache_ros2_close(self._node)
        self._node = None

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- construction ----

    def _read_parameters(self) -> dict[str, Any]:
        parsers = {"b": "true".__eq__, "i": int, "d": float, "s": str}
        values: dict[str, Any] = {}
        lists: dict[str, list[Any]] = {}

        def take(name: bytes, kind: bytes, text: bytes) -> None:
            letter = kind.decode()
            value = parsers[letter.lower()](text.decode(errors="replace"))
            if letter.isupper():  # an element of an array
                lists.setdefault(name.decode(), []).append(value)
            else:
                values[name.decode()] = value

        self._call("parameters", _TAKE_VALUE(take))
        return values | lists

    def _make_rings_and_topics(self) -> None:
        """Makes the rings and the topics. Keys with the same rows of a stream share a ring; keys with other rows, such as the joints
        of another arm, have a subscription of their own."""
        rows = {key: spec["rows"] for key, spec in self.spec.keys.items() if spec["rows"] is not None}
        self.rings: dict[str, Ring] = {}
        self.topics: dict[str, Topic] = {}
        groups: list[_Group] = []
        self._group_of: dict[str, str] = {}
        for key, stream in self._streams.items():
            if key not in rows:
                raise ArgumentError(
                    f"streams: expected keys of the spec, which are {', '.join(map(repr, rows))}, got {key!r}"
                )
            key_rows, path = rows[key], f"{stream.topic}/{stream.field}".rstrip("/")
            group = next((group for group in groups if group.fits(path, stream, key_rows)), None)
            if group is None:
                name = stream.topic if stream.topic not in self._group_of.values() else f"{stream.topic} ({key})"
                group = _Group(name, stream, {}, {}, {})
                groups.append(group)
            self._group_of[key] = group.name
            if path not in group.rings:
                group.streams[path] = stream, key_rows
                group.rings[path] = Ring(
                    key_rows["shape"],
                    key_rows["dtype"],
                    codec=key_rows["codec"],
                    span_s=stream.span_s,
                    lateness_s=stream.lateness_s,
                    on_rewind=stream.on_rewind,
                    on_duplicate=stream.on_duplicate,
                )
                if key_rows["names"]:
                    group.names[path] = key_rows["names"]
            self.rings[key] = group.rings[path]
        for group in groups:
            stream = group.stream
            self.topics[group.name] = Topic(
                stream.topic,
                stream.type,
                group.rings,
                names=group.names,
                definition=_find_definition(stream.type),
                stamp=stream.stamp,
                quality=stream.quality,
            )
        for group in groups:
            stream = group.stream
            qos = stream.reliability.encode(), stream.durability.encode(), stream.depth
            sink = self.topics[group.name].sink
            self._call("subscribe", stream.topic.encode(), stream.type.encode(), *qos, *sink)

    def _call(self, function: str, *arguments: Any) -> None:
        error = ctypes.create_string_buffer(1024)
        if getattr(self._library, f"robocache_ros2_{function}")(self._node, *arguments, error, len(error)):
            raise Error(error.value.decode(errors="replace"))

    # ---- reports ----

    def _check(self) -> None:
        self._call("broken")

    def _explain_no_rows(self, key: str) -> str:
        topic = self._group_of[key]
        report = self.report()[topic]
        if report["refused"]:
            return (
                f"{topic}: {report['refused']} of {report['received']} messages refused, the last: {report['refusal']}"
            )
        if report["received"]:
            counts = {name: count for name, count in self.rings[key].counts.items() if count}
            return f"{topic}: {report['received']} messages, of whose rows the ring has {counts or 'none'}"
        if report["publishers"] > report["matched"]:
            return (
                f"{topic}: {report['publishers']} publishers, none of which fits {self._streams[key].type} and the QoS"
            )
        return f"{topic}: no message of {report['publishers']} publishers"

    def _diagnose(self, name: str, period_s: float) -> None:
        store = get_typestore(Stores.ROS2_JAZZY)
        before: dict[str, dict[str, Any]] = {}
        while not self._closed.wait(period_s):
            try:
                self._check()
                broken = ""
            except Error as error:
                broken = str(error)
            report = self.report()
            message = diagnostics(store, name, report, before, broken)
            self._call("publish", message, len(message))
            before = report


def diagnostics(
    store: Any, name: str, report: Mapping[str, Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]], broken: str
) -> bytes:
    """Returns a DiagnosticArray with a status for each topic.

    The status is an error if the thread has ended or if all messages since the last report were refused, stale if there were none, and
    a warning if some were refused or lost, rows were dropped for their stamps, or frames had the bytes of the frame before.
    """
    types = store.types
    statuses = []
    for topic, facts in report.items():
        counts = ("received", "refused", "lost", "rows_too_late", "rows_refused", "frames_repeated")
        new = {count: facts[count] - before.get(topic, {}).get(count, 0) for count in counts}
        if broken:
            level, text = 2, f"the thread has ended: {broken}"
        elif not new["received"]:
            level, text = 3, f"no message of {facts['publishers']} publishers, of which {facts['matched']} match"
        elif new["refused"]:
            level, text = 1 + (new["refused"] == new["received"]), f"{new['refused']} refused: {facts['refusal']}"
        else:
            problems = [f"{new[count]} {count.replace('_', ' ')}" for count in counts[2:] if new[count]]
            level, text = int(bool(problems)), ", ".join(problems) or "all taken"
        values = [types["diagnostic_msgs/msg/KeyValue"](key, str(value)) for key, value in facts.items()]
        statuses.append(types["diagnostic_msgs/msg/DiagnosticStatus"](level, f"{name}: {topic}", text, "", values))
    stamp = types["builtin_interfaces/msg/Time"](*divmod(time.time_ns(), 10**9))
    header = types["std_msgs/msg/Header"](stamp, "")
    return bytes(store.serialize_cdr(types[_DIAGNOSTICS](header, statuses), _DIAGNOSTICS))


def _from_parameters(parameters: Mapping[str, Any]) -> dict[str, Stream]:
    keys = parameters.get("streams")
    if not keys:
        raise ArgumentError("streams: expected {key: Stream}, or the parameter 'streams', got none")
    names = {field.name for field in fields(Stream)}
    streams = {}
    for key in keys:
        values = {
            name.removeprefix(f"{key}."): value for name, value in parameters.items() if name.startswith(f"{key}.")
        }
        if not {"topic", "type"} <= set(values) <= names:
            raise ArgumentError(
                f"parameters of {key!r}: expected topic, type and any of {', '.join(sorted(names))}, got {', '.join(values)}"
            )
        streams[key] = Stream(**values)
    return streams


def _installed_folders() -> list[Path]:
    return [Path(prefix) for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(":") if prefix]


def _load() -> ctypes.CDLL:
    file = os.environ.get("ROBOCACHE_ROS2_LIBRARY")
    installed = (folder / "lib" / "librobocache_ros2.so" for folder in _installed_folders())
    file = file or next((str(path) for path in installed if path.exists()), "librobocache_ros2.so")
    try:
        library = ctypes.CDLL(file)
    except OSError as error:
        raise Error(f"{error}; build integrations/ros2 with colcon, and source install/setup.bash") from error
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    error_text = [text, size]
    signatures: dict[str, list[Any]] = {
        "open": [text, text, ctypes.c_int, pointer, *error_text],
        "subscribe": [pointer, text, text, text, text, ctypes.c_int64, pointer, pointer, *error_text],
        "advertise": [pointer, text, text, *error_text],
        "publish": [pointer, text, size, *error_text],
        "start": [pointer, *error_text],
        "publishers": [pointer, size, pointer, *error_text],
        "parameters": [pointer, _TAKE_VALUE, *error_text],
        "broken": [pointer, *error_text],
        "close": [pointer],
    }
    for name, arguments in signatures.items():
        getattr(library, f"robocache_ros2_{name}").argtypes = arguments
    library.robocache_ros2_open.restype = pointer
    library.robocache_ros2_close.restype = None
    return library


def _find_definition(name: str) -> str | None:
    """Returns the definition of a type, and of the types in it, from this installation of ROS; None if a .msg file is missing."""
    definitions: dict[str, str] = {}
    pending = [name]
    while pending:
        type_name = pending.pop()
        package, _, rest = type_name.partition("/msg/")
        files = (folder / "share" / package / "msg" / f"{rest}.msg" for folder in _installed_folders())
        file = next((file for file in files if file.exists()), None)
        if file is None:
            return None
        definitions[type_name] = file.read_text()
        for line in definitions[type_name].splitlines():
            match = re.match(r"\s*([A-Za-z]\w*(?:/\w+)?)(?:<=\d+)?(?:\[.*?\])?\s+\w+", line)
            inner = match[1] if match else "bool"
            if inner == "Header":
                inner = "std_msgs/Header"
            if inner[0].isupper():
                inner = f"{package}/{inner}"
            inner = inner.replace("/", "/msg/")
            if "/" in inner and inner not in definitions:
                pending.append(inner)
    own, *others = definitions
    parts = [f"{'=' * 80}\nMSG: {other.replace('/msg/', '/')}\n{definitions[other]}" for other in others]
    return "\n".join([definitions[own], *parts])
