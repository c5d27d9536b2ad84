"""Reads frames from video files with PyAV: finds the frame of each row, and decodes and encodes frames in processes.

A row's frame is found by presentation time: :func:`index_video` reads the stamps from the file's packets, without decoding, and
:func:`match` compares them with the rows' clock. The needed frames are split into pieces (:class:`Cut`), which begin at keyframes
if possible. :class:`Decoders` decodes and encodes cuts in its own processes, and returns them in the order of the requests. The
number of processes does not change the result.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar, cast

import av
import numpy as np
from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import VideoFrame

from .._printable import ranges
from ..frames import Encoded
from ..installation import set_num_threads
from ..turns import Turn, turn_of_matrix
from .depth import DepthCodes
from .files import check_file
from .formats import VideoOptions
from .h264 import FrameNumbers
from .images import Kinds, Storage, encode
from .python_process import start
from .recording import Notes, SourceError, naming

# A cut ends at the first keyframe after this many frames; if none comes, at the limits of what a process may hold.
_FRAMES_PER_CUT = 64
_MOST_FRAMES_PER_CUT = 256
_BYTES_PER_CUT = 64 << 20
# In an even video, steps differ from whole periods by at most this share of a period.
_MOST_OFF = 0.2
# Single stamps may differ by the first, a share of a period, from the median of this many stamps before.
_MOST_JITTER, _LAST = 0.4, 9
# Bytes of frames that are decoded before they are encoded: the processor's cache holds no more.
_BYTES_AT_ONCE = 4 << 20
# Files that a process keeps open: one for each of a robot's cameras.
_OPEN_FILES = 4
# Cuts that a process has at once: it decodes one, and another one waits, so that it never idles.
_CUTS_AT_ONCE = 2
# LeRobot needs a PyAV before 16. Before 17, PyAV starts no threads for colours, and does not tell how many frames can be decoded
# before one that is shown earlier: in every codec at most this many.
_PYAV_17 = int(av.__version__.split(".")[0]) >= 17
_MOST_REORDERED = 16
# Numbers of libavutil: matrices (AVColorSpace) and ranges (AVColorRange).
_BT709, _UNSPECIFIED, _BT601 = 1, 2, 5
_LIMITED, _FULL = 1, 2


# ---- which frames a file has ----


@dataclass(frozen=True)
class Index:
    """The frames of a file by its packets, in the order of presentation.

    time_ns: int64 ``[n]``: their presentation times, rounded to the nanosecond.
    pts: int64 ``[n]``: the same in the file's own unit.
    start: int64 ``[n]``: the decoding stamp of the keyframe at or before each, from which it can be decoded.
    height, width: of a frame as it is shown.
    turn: how stored frames are turned to be shown, as the file declares; None: not at all.
    declared: the number of frames in the file's header; 0 if the header has none.
    pixels, bits: FFmpeg's name of the pixel layout, and the bits of a pixel's first component.
    """

    path: Path
    time_ns: np.ndarray
    pts: np.ndarray
    start: np.ndarray
    height: int
    width: int
    declared: int
    pixels: str
    bits: int
    turn: Turn | None = None

    def __len__(self) -> int:
        return len(self.pts)


def index_video(path: Path, *, deep_gray: bool = False) -> Index:
    """Reads a file's stamps. Decodes only the first frame, which has the file's display matrix.

    deep_gray: accept grey of more than 8 bits: the source declares its meaning.

    Raises:
        SourceError: the file is not regular, has no video, or is in a codec that PyAV does not decode.
    """
    check_file(path)
    try:
        with av.open(str(path)) as container:
            stream = _video_stream(container, path)
            stream.codec_context.thread_count = 1
            packets, first = [], None
            for packet in container.demux(stream):
                if packet.pts is not None and packet.dts is not None and not packet.is_discard:
                    packets.append((packet.pts, packet.dts, packet.is_keyframe))
                with suppress(FFmpegError):  # the reader of the frame reports that it does not decode
                    first = first or next(iter(packet.decode()), None)
            unit, codec, declared = stream.time_base, stream.codec_context, stream.frames
            height, width, pixels = codec.height, codec.width, codec.format
    except FFmpegError as error:
        raise SourceError(f"{path}: not a video that can be read: {error.strerror or error}") from error
    if not packets or not height or not width:
        raise SourceError(f"{path}: a video without frames")
    bits = 0 if pixels is None else pixels.components[0].bits
    if pixels is not None and len(pixels.components) == 1 and bits > 8 and not deep_gray:
        raise SourceError(f"{path}: frames in {pixels.name}, as of depth: expected colour, or grey of 8 bits")
    packets.sort()
    pts, dts, is_keyframe = (np.array(column) for column in zip(*packets, strict=True))
    # Frames before the first keyframe depend on one that is missing; decoding from the first reports them as lost.
    keyframes = np.maximum.accumulate(np.where(is_keyframe, np.arange(len(pts)), 0))
    scale, divisor = unit.numerator * 2_000_000_000, unit.denominator * 2
    time_ns = np.array([(stamp * scale + unit.denominator) // divisor for stamp in pts.tolist()], np.int64)
    name = "unknown" if pixels is None else pixels.name
    with naming(path):
        turn = None if first is None else turn_of_frame(first)
    if turn is not None and turn.exchanged:
        height, width = width, height
    return Index(path, time_ns, pts, dts[keyframes], height, width, declared, name, bits, turn)


def _video_stream(container: Any, path: Path) -> Any:
    if not container.streams.video:
        raise SourceError(f"{path}: no video in it")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise SourceError(f"{path}: in a codec that PyAV {av.__version__} does not decode")
    return stream


def turn_of_frame(frame: VideoFrame) -> Turn | None:
    """Returns the turn in a decoded frame's display matrix; None without a matrix or a turn."""
    matrices = (bytes(data) for data in frame.side_data if data.type.name == "DISPLAYMATRIX")
    matrix = next(matrices, None)
    return None if matrix is None else turn_of_matrix(matrix)


def match(row_ns: np.ndarray, frame_ns: np.ndarray, within_ns: float) -> np.ndarray:
    """Returns the index of the frame nearest to each row, int64 ``[rows]``; the earlier of two equally near ones.

    -1 if none is at most `within_ns` away. Both clocks are int64 ns and do not decrease.
    """
    if len(frame_ns) == 0:
        return np.full(len(row_ns), -1)
    after = np.searchsorted(frame_ns, row_ns)
    before, after = np.maximum(after - 1, 0), np.minimum(after, len(frame_ns) - 1)
    nearest = np.where(np.abs(row_ns - frame_ns[before]) <= np.abs(frame_ns[after] - row_ns), before, after)
    return np.where(np.abs(row_ns - frame_ns[nearest]) <= within_ns, nearest, -1)


@dataclass(frozen=True)
class ByIndex:
    """The frame of each row, matched by order.

    frames: int64 ``[rows]``: the index of each row's frame, or -1.
    holes: int64 ``[n]``: the frames before holes for which there are too few rows; then row k has frame k.
    undecided: the number of rows without a frame, if it is unknown which rows these are; else 0.
    """

    frames: np.ndarray
    holes: np.ndarray
    undecided: int


def match_by_index(row_ns: np.ndarray, frame_ns: np.ndarray, start_ns: int | None = None) -> ByIndex:
    """Gives frame k to row k, but skips the rows of frames that the video lost.

    Times of frames have a hole where a step is two periods or more. Frames after a hole belong to the rows of their times, if all
    these rows exist; the rows' own clock may have the same holes. A first frame later than `start_ns` means that frames before it
    are missing, if there are enough rows. Without `start_ns`, a video's times begin anywhere, and its last frame may be missing; if
    more rows lack a frame, it is unknown whether they are the first or the last.

    start_ns: the first row's time on the clock of `frame_ns`.
    """
    count = min(len(row_ns), len(frame_ns))
    found = np.full(len(row_ns), -1)
    found[:count] = np.arange(count)
    numbers, period_ns = _number(frame_ns[:count])
    late = (frame_ns[0] - (start_ns or 0)) / period_ns if len(frame_ns) and period_ns else 0.0
    holes = np.flatnonzero(np.diff(numbers) > 1)
    row_numbers, _ = _number(row_ns)
    for first in dict.fromkeys((max(0, round(late)), 0)):
        if not first and not len(holes):
            continue
        rows = np.searchsorted(row_numbers, numbers + first)
        if rows[-1] < len(row_ns) and np.array_equal(row_numbers[rows], numbers + first):
            found[:] = -1
            found[rows] = np.arange(count)
            holes = holes[:0]
            break
    behind = len(row_ns) - 1 - int(np.flatnonzero(found >= 0)[-1]) if count else 0
    is_decided = (period_ns > 0 or count < 3) and (start_ns is not None or behind < 2)
    return ByIndex(found, holes, 0 if is_decided else int((found < 0).sum()))


def _number(time_ns: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the number of periods from the first time to each, int64 ``[n]``, and the period. If the times are on no grid of periods,
    returns 0, 1, 2, ... and 0."""
    steps = np.diff(time_ns)
    numbers = np.arange(len(time_ns))
    if not len(steps) or (median := np.sort(steps)[(len(steps) - 1) // 2]) <= 0:
        return numbers, 0.0
    # The mean of single steps is more precise than their median: some files have times in whole milliseconds.
    period = float(steps[steps < 1.5 * median].mean())
    whole = np.rint(steps / period).astype(np.int64)
    if whole.min() >= 1 and np.abs(steps / period - whole).max() <= _MOST_OFF:
        return np.concatenate([[0], np.cumsum(whole)]), period
    # Stamps that jitter more may still be on a grid. The last ones show how far it has drifted.
    off = [0.0]
    for index, time in enumerate(((time_ns - time_ns[0]) / period).tolist()[1:], 1):
        drift = float(np.median(off[-_LAST:]))
        numbers[index] = round(time - drift)
        off.append(time - int(numbers[index]))
        if numbers[index] <= numbers[index - 1] or abs(off[-1] - drift) > _MOST_JITTER:
            return np.arange(len(time_ns)), 0.0
    return numbers, period


# ---- decoding ----


@dataclass(frozen=True)
class Cut:
    """Frames of one file that a process decodes together.

    frames: int64 ``[n]``: their indices in the order of presentation, not decreasing; a frame may occur twice.
    pts: int64 ``[n]``: their stamps.
    start: the decoding stamp of the keyframe from which the first can be decoded.
    height, width, turn: as in :class:`Index`.
    depth: the meaning of pixels that are depth.
    """

    path: str
    frames: np.ndarray
    pts: np.ndarray
    start: int
    height: int
    width: int
    storage: Storage
    turn: Turn | None = None
    depth: DepthCodes | None = None


@dataclass
class Decoded:
    """The result for a cut.

    parts: the indices in the cut, int64 ``[m]``, of decoded frames, and the frames.
    lost: the indices of frames that did not decode, each with the reason.
    """

    parts: list[tuple[np.ndarray, Encoded]] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)


def cut_up(index: Index, frames: np.ndarray, storage: Storage, depth: DepthCodes | None = None) -> list[Cut]:
    """Returns cuts of these frames in their order. `frames` is int64 ``[n]``, not decreasing."""
    # The bound for an encoded frame is a quarter of its pixels' bytes, more than a JPEG of quality 95 has.
    frame_bytes = storage.frame_bytes(index.height, index.width)
    most = max(1, min(_MOST_FRAMES_PER_CUT, _BYTES_PER_CUT // frame_bytes))
    few = min(_FRAMES_PER_CUT, most)
    starts = index.start[frames]
    ends = [0]
    for i in range(1, len(frames) + 1):
        size = i - ends[-1]
        if i == len(frames) or size >= most or (size >= few and starts[i] != starts[i - 1]):
            ends.append(i)
    return [
        Cut(
            str(index.path),
            frames[begin:end],
            index.pts[frames[begin:end]],
            int(starts[begin]),
            index.height,
            index.width,
            storage,
            index.turn,
            depth,
        )
        for begin, end in pairwise(ends)
    ]


class _Video:
    """An open file, read forwards. It seeks only if that spares decoding."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        self._container = av.open(self._path)
        self._stream = self._container.streams.video[0]
        self._stream.codec_context.thread_count = 1  # the processes share the cores already
        self._restart()

    def close(self) -> None:
        self._container.close()

    def pick(self, cut: Cut) -> Iterator[tuple[int, VideoFrame | str]]:
        """Yields each index in the cut with its frame, or with the reason why there is none."""
        first = int(cut.pts[0])
        size = cut.width, cut.height
        if cut.turn is not None and cut.turn.exchanged:
            size = cut.height, cut.width
        if self._frame is None or not cut.start <= self._frame.pts <= first:
            self._seek(cut.start, first)
        for index, pts in enumerate(cut.pts.tolist()):
            while self._frame is not None and self._frame.pts < pts:
                self._advance()
            frame = self._frame
            damage = self._damage_of(pts)
            if frame is None or frame.pts != pts:
                yield index, damage or "it gave no frame"
            elif damage is not None:
                yield index, damage
            elif (frame.width, frame.height) != size:
                yield index, f"it is {frame.width}x{frame.height}, in a file of {size[0]}x{size[1]}"
            else:
                yield index, frame

    def _seek(self, start: int, first: int) -> None:
        """Goes to the keyframe of decoding stamp `start`; to the beginning if a file's index leads past `first`."""
        with suppress(FFmpegError):  # a container that cannot seek
            self._container.seek(start, stream=self._stream)
            self._restart()
            self._advance()
            if self._frame is not None and self._frame.pts <= first:
                return
        self.close()
        self._open()
        self._advance()

    def _restart(self) -> None:
        self._frame: VideoFrame | None = None  # the last decoded one; None before the first and after the last
        self._packets = self._container.demux(self._stream)
        self._decoded: deque[VideoFrame] = deque()
        # For each presentation stamp: a packet's number in the order of decoding, and the first packet that it may depend on.
        self._depends_on: dict[int | None, tuple[int, int]] = {}
        self._keyframes = [(0, -math.inf)] * 2  # the last two: number and presentation stamp
        self._damages: list[tuple[int, str]] = []  # numbers of packets that did not decode, rising, and why
        context = self._stream.codec_context
        self._numbers = FrameNumbers(context.extradata or b"") if context.name == "h264" else None

    def _advance(self) -> None:
        """Goes to the next frame; passes over packets that do not decode."""
        # A frame is returned only when frames that are shown later but decoded earlier have come: if they are damaged, so is it.
        reordered = self._stream.codec_context.reorder_depth if _PYAV_17 else _MOST_REORDERED
        while len(self._decoded) <= reordered + 1:
            packet = next(self._packets, None)
            if packet is None:
                break
            number = self._note(packet)
            if self._numbers is not None and self._numbers.lacks(bytes(packet)):
                insort(self._damages, (number, "a frame before it is missing"))
            try:
                for frame in packet.decode():
                    if frame.pts is not None:
                        self._decoded.append(frame)
                        if frame.is_corrupt:
                            insort(self._damages, (self._depends_on.get(frame.pts, (number, 0))[0], "it is damaged"))
            except FFmpegError as error:
                insort(self._damages, (number, error.strerror or str(error)))
        self._frame = self._decoded.popleft() if self._decoded else None

    def _note(self, packet: Packet) -> int:
        """Records which packets a packet's frame may depend on; returns the packet's number."""
        number = len(self._depends_on)
        if packet.pts is not None:
            if packet.is_keyframe:
                self._keyframes = [self._keyframes[1], (number, packet.pts)]
            # A frame that is decoded after a keyframe but shown before it may depend on frames of the keyframe before.
            before, last = self._keyframes
            self._depends_on[packet.pts] = number, (last if packet.pts >= last[1] else before)[0]
        return number

    def _damage_of(self, pts: int) -> str | None:
        """Returns why a frame is not as recorded: it or one that it may depend on did not decode. None if it is."""
        number, first = self._depends_on.get(pts, (-1, 0))
        index = bisect_left(self._damages, (first, ""))
        if index == len(self._damages) or self._damages[index][0] > number:
            return None
        damaged, reason = self._damages[index]
        return reason if damaged == number else f"a frame that it depends on does not: {reason}"


class _Decoder:
    """Decodes cuts one after another; keeps the files of the last ones open."""

    def __init__(self) -> None:
        self._videos: dict[str, _Video] = {}

    def decode(self, cut: Cut) -> Decoded:
        decoded = Decoded()
        try:
            self._decode(cut, decoded)
        except Exception as error:  # an error loses only the frames of this cut
            done = {*decoded.lost, *(index for indices, _ in decoded.parts for index in indices.tolist())}
            reason = f"{type(error).__name__}: {error}"
            decoded.lost.update((index, reason) for index in range(len(cut.pts)) if index not in done)
        return decoded

    def _decode(self, cut: Cut, decoded: Decoded) -> None:
        at_once = max(1, _BYTES_AT_ONCE // (cut.height * cut.width * 3))
        shape = (min(at_once, len(cut.pts)), cut.height, cut.width, 3 if cut.depth is None else 1)
        frames, indices = np.empty(shape, np.uint8 if cut.depth is None else np.uint16), list[int]()
        millimetres = None if cut.depth is None else cut.depth.millimetres()

        def encode_them() -> None:
            nonlocal frames
            decoded.parts.append((np.array(indices), encode(frames[: len(indices)], cut.storage)))
            if cut.storage.codec == "raw":
                frames = np.empty_like(frames)  # the appended part may still use the old array
            indices.clear()

        for index, frame in self._video(cut.path).pick(cut):
            if isinstance(frame, str):
                decoded.lost[index] = frame
                continue
            pixels = to_rgb(frame) if millimetres is None else _to_depth(frame, millimetres)
            frames[len(indices)] = pixels if cut.turn is None else cut.turn.apply(pixels)
            indices.append(index)
            if len(indices) == len(frames):
                encode_them()
        if indices:
            encode_them()

    def _video(self, path: str) -> _Video:
        video = self._videos.pop(path, None) or _Video(path)
        self._videos[path] = video  # keeps the order of use: the last used is last
        if len(self._videos) > _OPEN_FILES:
            self._videos.pop(next(iter(self._videos))).close()
        return video


def to_rgb(frame: VideoFrame) -> np.ndarray:
    """Returns the pixels ``[H, W, 3]``, by the matrix and the range that the video declares, by default BT.601 and limited.

    Both are passed by name, since PyAV before 17 ignores the frame's. No copy is made, and libswscale starts no threads, since waiting
    for them would take longer than the work.
    """
    options: dict[str, Any] = {"threads": 1} if _PYAV_17 else {}
    if not frame.format.is_rgb and len(frame.format.components) >= 3:
        matrix = int(frame.colorspace)
        matrix = _BT601 if matrix == _UNSPECIFIED else matrix
        is_full = int(frame.color_range) == _FULL or frame.format.name.startswith("yuvj")
        # If both matrices are equal, PyAV before 17 drops the given one; RGB has none.
        other = _BT601 if matrix != _BT601 else _BT709
        options |= {
            "src_colorspace": matrix,
            "dst_colorspace": other,
            "src_color_range": _FULL if is_full else _LIMITED,
        }
    rgb = frame.reformat(format="rgb24", **options)
    plane = rgb.planes[0]
    lines = np.frombuffer(cast(Any, plane), np.uint8).reshape(rgb.height, plane.line_size)
    return lines[:, : 3 * rgb.width].reshape(rgb.height, rgb.width, 3)


def _to_depth(frame: VideoFrame, millimetres: np.ndarray) -> np.ndarray:
    """Returns the luma's codes of 12 bits as millimetres, ``[H, W, 1]``."""
    plane = frame.planes[0]
    lines = np.frombuffer(cast(Any, plane), "<u2").reshape(-1, plane.line_size // 2)
    depth: np.ndarray = millimetres[lines[: frame.height, : frame.width, None] & (len(millimetres) - 1)]
    return depth


# ---- processes ----


def work(file_descriptor: int) -> None:
    """The program of a decoding process: receives cuts from a socket and sends back the results, until the other end is closed."""
    set_num_threads(1)
    decoder = _Decoder()
    with Connection(file_descriptor) as parent:
        try:
            while True:
                parent.send(decoder.decode(parent.recv()))
        except (EOFError, ConnectionError):
            return


@dataclass(eq=False)
class Ticket:
    """A requested cut, and its result when it is there."""

    cut: Cut
    decoded: Decoded | None = None


class _Process:
    """A decoding process, and the cuts that it was sent."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._popen = start(work, theirs.fileno(), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
            self.connection = Connection(ours.detach())
        self.tickets: deque[Ticket] = deque()

    def begin(self, ticket: Ticket) -> None:
        self.tickets.append(ticket)
        with suppress(ConnectionError):  # it has died, which `receive` reports
            self.connection.send(ticket.cut)

    def receive(self) -> bool:
        """Receives a result; returns False if the process has died."""
        try:
            decoded = self.connection.recv()
        except (EOFError, ConnectionError):
            return False
        self.tickets.popleft().decoded = decoded
        return True

    def end(self) -> int:
        """Ends the process in any case; returns its exit code."""
        self.connection.close()
        self._popen.kill()
        return self._popen.wait()


class Decoders:
    """Decodes cuts in `jobs` processes, or in this one if that is 1.

    Cuts begin in the order of the requests, and their results are taken in the same order. Cuts that are begun and not yet taken
    are at most as many as the processes may have at once.
    """

    def __init__(self, jobs: int | None) -> None:
        self._jobs = jobs or len(os.sched_getaffinity(0))
        self._here = _Decoder()
        self._processes: list[_Process] = []
        self._waiting: deque[Ticket] = deque()
        self._held: set[Ticket] = set()  # begun and not yet taken

    def ask(self, cut: Cut) -> Ticket:
        """Requests a cut; processes begin with it as soon as they can."""
        ticket = Ticket(cut)
        self._waiting.append(ticket)
        if self._jobs > 1:
            self._begin(None)
        return ticket

    def take(self, ticket: Ticket) -> Decoded:
        """Waits for a cut's result and returns it. Each ticket is taken once."""
        if self._jobs == 1:
            self._waiting.remove(ticket)
            return self._here.decode(ticket.cut)
        while ticket.decoded is None:
            self._begin(ticket)
            self._receive()
        decoded, ticket.decoded = ticket.decoded, None  # a caller that keeps the ticket keeps no frames
        self._held.discard(ticket)
        self._begin(None)
        return decoded

    def drop(self, ticket: Ticket) -> None:
        """Cancels a request whose result is not needed."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        self._held.discard(ticket)

    def _begin(self, wanted: Ticket | None) -> None:
        """Sends waiting cuts to processes that can take them."""
        while self._waiting and (len(self._held) < _CUTS_AT_ONCE * self._jobs or self._waiting[0] is wanted):
            idle = min(self._processes, key=lambda process: len(process.tickets), default=None)
            if idle is None or (idle.tickets and len(self._processes) < self._jobs):
                idle = _Process()
                self._processes.append(idle)
            self._held.add(self._waiting[0])
            idle.begin(self._waiting.popleft())

    def _receive(self) -> None:
        """Waits until a process has sent a result, or died."""
        busy = {process.connection: process for process in self._processes if process.tickets}
        for connection in wait(list(busy)):
            process = busy[connection]  # type: ignore[index]
            if process.receive():
                continue
            self._processes.remove(process)
            died = process.tickets.popleft()
            reason = f"the process that decoded it died ({process.end()})"
            died.decoded = Decoded(lost=dict.fromkeys(range(len(died.cut.pts)), reason))
            # The cuts that waited after it did not kill the process.
            self._held.difference_update(process.tickets)
            self._waiting.extendleft(reversed(process.tickets))

    def close(self) -> None:
        """Ends the processes in any case."""
        for process in self._processes:
            process.end()
        self._processes.clear()


# ---- shared by readers ----

_Frames = TypeVar("_Frames", bound="VideoFrames")


class VideoFrames:
    """Decodes the frames of rows. A context manager, which ends the decoding processes."""

    def __init__(self, options: VideoOptions, kinds: Kinds, notes: Notes) -> None:
        self._storage = partial(Storage.of, options)  # takes the camera's name
        self._kinds = kinds
        self._notes = notes
        self._decoders = Decoders(options.jobs)

    def __enter__(self: _Frames) -> _Frames:
        return self

    def __exit__(self, *raised: object) -> None:
        self._decoders.close()

    def index(self, camera: str, path: Path, *, deep_gray: bool = False) -> Index:
        """Indexes a camera's file by :func:`index_video`; notes if its frames are turned."""
        index = index_video(path, deep_gray=deep_gray)
        if index.turn is not None:
            self._notes.leave_out(f"{camera}: frames as stored in the file", f"{index.turn}, as the file says")
        return index

    def match_by_index(
        self,
        camera: str,
        what: str,
        index: Index,
        row_ns: np.ndarray,
        frame_ns: np.ndarray,
        start_ns: int | None = None,
    ) -> np.ndarray:
        """Returns the frames of :func:`match_by_index`; reports holes that the number of rows leaves no room for.

        Raises:
            SourceError: rows lack frames, and it is unknown which rows.
        """
        found = match_by_index(row_ns, frame_ns, start_ns)
        both = f"{len(row_ns)} rows and {len(frame_ns)} frames"
        if found.undecided and index.declared <= len(index):  # if the file was cut off, the last rows lack frames
            raise SourceError(
                f"{index.path}: {both}: {found.undecided} rows have none, and no time, hole or list of stamps shows which: any frame "
                "may belong to another row"
            )
        if len(found.holes):
            self._notes.assume(
                f"{what}: {camera}",
                f"row k has frame k, but the times of {index.path.name} have holes ({len(found.holes)}, the first after frame "
                f"{found.holes[0]}), for which {both} leave no room: rows after a hole may have the frame of a later row",
                camera,
            )
        return found.frames

    def chunks(
        self, what: str, path: Path, tickets: list[Ticket], time_ns: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Encoded]]:
        """Yields the frames of the tickets, cut by cut, for rows at `time_ns`; names frames that do not decode."""
        first = 0
        for ticket in tickets:
            decoded = self._decoders.take(ticket)
            times = time_ns[first : first + len(ticket.cut.frames)]
            first += len(times)
            for indices, frames in decoded.parts:
                yield times[indices], frames
            if decoded.lost:
                lost = ticket.cut.frames[sorted(decoded.lost)].tolist()
                reason = f"frame {lost[0]} does not decode: {decoded.lost[min(decoded.lost)]}"
                self._notes.skip(f"{what}: frames {ranges(lost)}", SourceError(f"{path}: {reason}"))
