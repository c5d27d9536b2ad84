"""Records the rows of rings in a cache while the robot runs."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from .. import _lib, errors, frames
from .._check import real, whole
from .._printable import warn
from ..writer import EpisodeWriter, Writer
from .aligner import Ring

ARRIVAL = ".arrival_ns"  # follows a ring's name: the stream of its rows' arrivals
MOMENTS = "policy.moment_ns"
_LONGEST_WAIT_S = 0.1
_BYTES_AT_ONCE = 16 << 20
_COMMIT_SHARE = 10  # a commit that takes 1 s is not repeated within 10 s


class LostRowsWarning(UserWarning):
    """A ring forgot rows before the recorder took them, so the recording lacks them."""


class Recorder:
    """Writes the rows of rings to a cache, in its own thread, while sensors push and a policy reads.

    The thread takes a row once it is final (older than the ring's newest by more than its `lateness_s`), so a stream's rows are
    in the order of their stamps. At the end of an episode it takes all rows. Each ring becomes a stream of the same name, and
    ``<name>.arrival_ns`` has the arrival of each row at its stamp. Files of cameras are kept without loss, and each is decoded
    once to check it.

    The cache at `path` can be opened from the start. Every `commit_s` it gets the new rows, also of the open episode. If the
    process is killed, everything up to the last commit is there. A reader does not see later commits until it opens the cache
    again.

    Args:
        rings: ``{name: Ring}``: the rings to record.
        path: the cache to create.
        episode: metadata of an episode that begins at once: ``{"task": "pick the cup"}``. None: :meth:`start` begins one.
        streams: ``{name: {...}}``: arguments of :meth:`Writer.stream` for a stream, such as ``{"unit_m": 0.001}`` for a depth camera,
            or ``{"names": ..., "attributes": ...}`` of the cache that the policy was trained on: a Loader then uses the same methods.
        append: add episodes to the cache at `path`.
        commit_s: seconds between commits. A commit computes statistics of the whole cache; if it takes more than a tenth of
            `commit_s`, commits are farther apart.

    Attributes:
        counts: ``{name: {"kept", "lost", "bad_frames"}}``: rows in the recording; rows that the ring forgot before they were
            taken, because its `span_s` is too short or its clock was set back; frames that do not decode or do not fit the ring,
            which are left out.

    If a ring's clock is set back (``on_rewind="segment"``), the episode ends and the next one begins, with the same metadata.
    If several clocks are set back one after another, each begins an episode.

    Raises:
        FileError: as :class:`Writer`. If the error is in the thread, it warns at once, and the next call raises the error.
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.

    Warns:
        LostRowsWarning: when a ring first loses rows; and at the end, with the counts.

    Example:
        >>> with robocache.live.Recorder(rings, "recorded", episode={"task": "pick the cup"}) as recorder:
        ...     while running:
        ...         batch = aligner.latest()
        ...         recorder.saw(int(batch["time_ns"][0]))
        ...     recorder.stop(success=True)
    """

    def __init__(
        self,
        rings: Mapping[str, Ring],
        path: str | os.PathLike[str],
        *,
        episode: Mapping[str, Any] | None = None,
        streams: Mapping[str, Mapping[str, Any]] | None = None,
        append: bool = False,
        commit_s: float = 10.0,
    ) -> None:
        if not isinstance(rings, Mapping) or not rings or not all(isinstance(ring, Ring) for ring in rings.values()):
            raise errors.ArgumentTypeError(f"rings: expected {{name: Ring}}, got {rings!r}")
        self._rings = {_lib.text("rings", name): ring for name, ring in rings.items()}
        own_streams = [name + ARRIVAL for name in rings] + [MOMENTS]
        if reserved := [name for name in own_streams if name in rings]:
            raise errors.ArgumentError(f"rings: expected no name of the recorder's own streams, got {reserved[0]!r}")
        if unknown := [name for name in streams or () if name not in rings]:
            raise errors.ArgumentError(f"streams: expected names of rings, {', '.join(rings)}, got {unknown[0]!r}")
        self._commit_s = real("commit_s", commit_s)
        if not self._commit_s > 0:
            raise errors.ArgumentError(f"commit_s: expected above 0, got {commit_s!r}")
        self._counts = {name: {"kept": 0, "lost": 0, "bad_frames": 0} for name in rings}
        self._lock = threading.Lock()  # guards the members below
        self._numbers: dict[str, int] = {}  # for each ring, the number of the next row
        self._begins_ns: dict[str, int | None] = {}  # for each ring, the newest stamp when the episode began
        self._last_ns: dict[str, int] = {}  # for each stream, the last stamp in the episode
        self._moments: deque[tuple[int, int]] = deque()
        self._metadata: dict[str, Any] = {}
        self._episode: EpisodeWriter | None = None
        self._error: Exception | None = None
        self._closed = False
        self._writer = Writer(path, append=append)
        try:
            for name, description in (streams or {}).items():
                self._writer.stream(name, **description)
            if episode is not None:
                self._begin(dict(episode))
            self._commit()
        except BaseException:
            self._writer.abort()
            raise
        self._stop_requested = threading.Event()
        # A wait as long as a ring keeps a final row would lose rows.
        self._wait_s = min(_LONGEST_WAIT_S, *((ring.span_s - ring.lateness_s) / 4 for ring in rings.values()))
        self._thread = threading.Thread(target=self._run, name="robocache.live.Recorder", daemon=True)
        self._thread.start()

    def start(self, **metadata: Any) -> None:
        """Begins an episode with the rows that arrive from now on.

        Args:
            metadata: columns of the episodes table, as of :meth:`Writer.episode`.

        Raises:
            ArgumentError: an episode is open, or the recorder is closed.
        """
        with self._lock:
            self._check()
            if self._episode is not None:
                raise errors.ArgumentError("start: expected no open episode; stop() ends it")
            self._begin(metadata)

    def stop(self, **metadata: Any) -> None:
        """Ends the episode with all rows that have arrived, final or not. Returns once the episode is in the cache.

        Args:
            metadata: further columns, such as ``success=True``.

        Raises:
            ArgumentError: no episode is open, or the recorder is closed.
        """
        with self._lock:
            self._check()
            self._end(metadata)
            self._commit()

    def saw(self, time_ns: int, now_ns: int | None = None) -> None:
        """Records the moment of a batch for the policy, in the stream ``policy.moment_ns``, which ``robocache skew`` reads.

        Args:
            time_ns: the batch's moment, ``batch["time_ns"][0]``.
            now_ns: when the policy got the batch, by the clock of the arrivals. None: now.
        """
        moment = whole("time_ns", time_ns)
        self._moments.append((time.time_ns() if now_ns is None else whole("now_ns", now_ns), moment))

    def close(self) -> None:
        """Ends the recording, and the episode if one is open. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._stop_requested.set()
        self._thread.join()
        with self._lock:
            self._closed = True
            try:
                self._raise_error()
                if self._episode is not None:
                    self._end({})
                self._describe()
                self._writer.close()
            finally:
                self._writer.abort()
        for name, counts in self._counts.items():
            if counts["lost"] or counts["bad_frames"]:
                warn(
                    f"recorder: ring '{name}': {counts['kept']} rows kept, {counts['lost']} lost, "
                    f"{counts['bad_frames']} bad frames left out",
                    LostRowsWarning,
                )

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        with self._lock:
            return {name: dict(counts) for name, counts in self._counts.items()}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()  # also after an exception, so that the recording is kept

    def __repr__(self) -> str:
        return f"robocache.live.Recorder({self._writer.path!r}, {', '.join(self._rings)})"

    # ---- The thread ----

    def _run(self) -> None:
        while not self._stop_requested.wait(self._wait_s):
            with self._lock:
                if self._episode is None:
                    continue
                try:
                    self._take_all()
                    if time.monotonic() >= self._next_commit:
                        self._commit()
                except Exception as error:
                    self._error = error
                    warn(f"recorder: it has stopped: {error}")
                    return

    # ---- With the lock ----

    def _check(self) -> None:
        self._raise_error()
        if self._closed:
            raise errors.ArgumentError("the recorder is closed")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _begin(self, metadata: dict[str, Any]) -> None:
        for name, ring in self._rings.items():
            self._numbers[name] = ring.take(2**62, most=0).start  # the number after the ring's last row
            self._begins_ns[name] = ring.newest_ns
        self._moments.clear()
        self._open(metadata)

    def _open(self, metadata: dict[str, Any]) -> None:
        episode = self._writer.episode(**metadata)
        episode.__enter__()
        self._metadata, self._episode = metadata, episode
        self._last_ns.clear()

    def _end(self, metadata: dict[str, Any]) -> None:
        if self._episode is None:
            raise errors.ArgumentError("stop: expected an open episode; start() begins one")
        self._take_all(unsettled=True)
        self._episode.end(**metadata)
        self._episode = None

    def _commit(self) -> None:
        began = time.monotonic()
        self._describe()
        self._writer.commit()
        ended = time.monotonic()
        self._next_commit = ended + max(self._commit_s, _COMMIT_SHARE * (ended - began))

    def _describe(self) -> None:
        self._writer.provenance["live"] = {
            name: {
                "span_s": ring.span_s,
                "lateness_s": ring.lateness_s,
                "on_duplicate": ring.on_duplicate,
                "ring": ring.counts,
                "recorder": self._counts[name],
            }
            for name, ring in self._rings.items()
        }

    def _take_all(self, *, unsettled: bool = False) -> None:
        for name, ring in self._rings.items():
            size = int(np.prod(ring.shape)) * _lib.numpy_dtype(ring.dtype).itemsize
            most = max(1, _BYTES_AT_ONCE // max(1, size))
            while self._take_rows(name, ring, most, False):
                pass
            if unsettled:
                self._take_rows(name, ring, 2**62, True)
        moments = np.array([self._moments.popleft() for _ in range(len(self._moments))], np.int64).reshape(-1, 2)
        if len(moments):
            stamps = np.maximum.accumulate(moments[:, 0])
            self._append(MOMENTS, stamps, np.ascontiguousarray(moments[:, 1]))

    def _take_rows(self, name: str, ring: Ring, most: int, unsettled: bool) -> int:
        """Takes up to `most` rows of a ring. Returns their number."""
        taken = ring.take(self._numbers[name], most=most, unsettled=unsettled)
        if taken.start > self._numbers[name]:
            self._lose(name, taken.start - self._numbers[name])
        count = len(taken.time_ns)
        self._numbers[name] = taken.start + count
        if not count:
            return 0
        begins_ns = self._begins_ns[name]
        is_kept = np.ones(count, bool)
        # A late row from before the episode shifts the numbers, so stamps decide. Much older stamps come from a clock set back, and
        # then all later rows are new.
        if begins_ns is not None:
            is_set_back = np.logical_or.accumulate(taken.time_ns < begins_ns - round(1e9 * ring.lateness_s))
            is_kept = (taken.time_ns > begins_ns) | is_set_back
            if is_set_back[-1]:
                self._begins_ns[name] = None
        chosen = np.flatnonzero(is_kept)
        time_ns, arrival_ns, rows = taken.time_ns[chosen], taken.arrival_ns[chosen], taken.rows
        if ring.codec in (None, "raw"):
            self._append_rows(name, time_ns, arrival_ns, rows[chosen], ring.codec)
        else:
            self._append_files(name, ring, time_ns, arrival_ns, [rows[row] for row in chosen])
        return count

    def _append_files(
        self, name: str, ring: Ring, time_ns: np.ndarray, arrival_ns: np.ndarray, files: list[bytes]
    ) -> None:
        if not files:
            return
        try:
            encoded = frames.take(files)
        except errors.FrameError:
            encoded = None
        if encoded is not None and (encoded.codec, encoded.shape, encoded.dtype.name) == (
            ring.codec,
            ring.shape,
            ring.dtype,
        ):
            self._append_rows(name, time_ns, arrival_ns, encoded, None)
        elif len(files) > 1:  # some files do not decode or do not fit
            for row, file in enumerate(files):
                self._append_files(name, ring, time_ns[row : row + 1], arrival_ns[row : row + 1], [file])
        else:
            self._counts[name]["bad_frames"] += 1

    def _append_rows(
        self, name: str, time_ns: np.ndarray, arrival_ns: np.ndarray, rows: Any, codec: str | None
    ) -> None:
        if len(time_ns):
            self._append(name, time_ns, rows, codec)
            self._append(name + ARRIVAL, time_ns, arrival_ns)
            self._counts[name]["kept"] += len(time_ns)

    def _append(self, stream: str, time_ns: np.ndarray, rows: Any, codec: str | None = None) -> None:
        assert self._episode is not None
        if time_ns[0] < self._last_ns.get(stream, time_ns[0]):  # the clock was set back
            self._episode.end()
            self._open(self._metadata)
        self._episode.append(stream, time_ns, rows, codec=codec)
        self._last_ns[stream] = int(time_ns[-1])

    def _lose(self, name: str, rows: int) -> None:
        counts = self._counts[name]
        if not counts["lost"]:
            warn(
                f"recorder: ring '{name}' has forgotten {rows} rows before they were taken; "
                "give it a longer span_s, or check that the disk is fast enough; counts has the numbers",
                LostRowsWarning,
            )
        counts["lost"] += rows
