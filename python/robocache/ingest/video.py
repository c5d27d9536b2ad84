"""Reads frames from video files with PyAV: finds the frame of each row, and decodes and encodes frames in processes.

A row's frame is found by presentation time: :func:`index_video` reads the stamps from the file's packets, without decoding, and
:func:`match` compares them with the rows' clock. The needed frames are divided into cuts (:class:`Cut`), which begin at keyframes
if possible. :class:`Decoders` decodes and encodes cuts in processes of its own, and returns them in the order of the requests. The
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

# A cut ends at the first keyframe after this many frames; if none comes before, at the most frames or bytes of a cut.
_FRAMES_PER_CUT = 64
_MOST_FRAMES_PER_CUT = 256
_BYTES_PER_CUT = 64 << 20
# The most by which a step of a regular video differs from whole periods, as a share of a period.
_MOST_OFF = 0.2
# A grid drifts by the median deviation of its last _LAST stamps. The most by which a stamp is off the drifted grid, as a share of a period.
_LAST = 9
_MOST_JITTER = 0.4
# The most bytes of frames that are decoded before they are encoded; the processor's cache holds no more.
_BYTES_AT_ONCE = 4 << 20
# The most files that a process keeps open; a robot has about that many cameras.
_OPEN_FILES = 4
# The most cuts that a process has: it decodes one while the other waits, so that it is never idle.
_CUTS_AT_ONCE = 2
# LeRobot needs PyAV before version 16. Before 17, PyAV starts no threads for colours.
_PYAV_17 = int(av.__version__.split(".")[0]) >= 17
# The most frames, in any codec, that are decoded before one that is shown earlier; before version 17, PyAV does not tell the number.
_MOST_REORDERED = 16
# libavutil's numbers of matrices (AVColorSpace) and ranges (AVColorRange).
_BT709, _UNSPECIFIED, _BT601 = 1, 2, 5
_LIMITED, _FULL = 1, 2
# The brightness of each luma of the limited range, 16 to 235.
_FULL_OF_LIMITED = np.rint((np.arange(256) - 16) * (255 / 219)).clip(0, 255).astype(np.uint8)


# ---- which frames a file has ----


@dataclass(frozen=True)
class Index:
    """The frames of a file, as its packets show them, in the order of presentation.

    time_ns: int64 ``[n]``: the presentation times, rounded to the nanosecond.
    pts: int64 ``[n]``: the same times in the file's unit.
    start: int64 ``[n]``: for each frame, the decoding stamp of the keyframe from which it can be decoded.
    height, width: of a frame as it is shown.
    declared: the number of frames by the file's header; 0 if the header does not say it.
    pixels, bits: FFmpeg's name of the pixel layout, and the bits of a pixel's first component.
    turn: how the file says that stored frames are turned to be shown; None if they are not.
    other_tracks: the number of videos in the file that are not read, without single pictures.
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
    other_tracks: int = 0

    def __len__(self) -> int:
        return len(self.pts)


def index_video(path: Path, *, deep_gray: bool = False) -> Index:
    """Reads a file's stamps. Decodes only the first frame, which has the file's display matrix.

    deep_gray: whether to accept grey of more than 8 bits, because the source declares what it means.

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
                with suppress(FFmpegError):  # reported when the frame is read
                    first = first or next(iter(packet.decode()), None)
            unit, codec, declared = stream.time_base, stream.codec_context, stream.frames
            height, width, pixels = codec.height, codec.width, codec.format
            other_tracks = sum(other.frames > 1 for other in container.streams.video[1:])
    except FFmpegError as error:
        raise SourceError(f"{path}: not a video that can be read: {error.strerror or error}") from error
    if not packets or not height or not width:
        raise SourceError(f"{path}: a video without frames")
    bits = 0 if pixels is None else pixels.components[0].bits
    if pixels is not None and len(pixels.components) == 1 and bits > 8 and not deep_gray:
        raise SourceError(f"{path}: frames in {pixels.name}, as of depth: expected colour, or grey of 8 bits")
    packets.sort()
    pts, dts, is_keyframe = (np.array(column) for column in zip(*packets, strict=True))
    # Frames before the first keyframe depend on one that is missing. They count to the first, and decoding reports them as lost.
    keyframes = np.maximum.accumulate(np.where(is_keyframe, np.arange(len(pts)), 0))
    # Rounded in whole numbers: half of the divisor is added before the division.
    scale, divisor = unit.numerator * 2_000_000_000, unit.denominator * 2
    time_ns = np.array([(stamp * scale + unit.denominator) // divisor for stamp in pts.tolist()], np.int64)
    name = "unknown" if pixels is None else pixels.name
    with naming(path):
        turn = None if first is None else turn_of_frame(first)
    if turn is not None and turn.exchanged:
        height, width = width, height
    return Index(path, time_ns, pts, dts[keyframes], height, width, declared, name, bits, turn, other_tracks)


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
    """Returns the index of the frame nearest to each row, int64 ``[rows]``; the earlier one if two are equally near.

    The index is -1 if no frame is within `within_ns` of the row. Both clocks are int64 ns and do not decrease.
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

    frames: int64 ``[rows]``: the index of each row's frame; -1 if it has none.
    holes: int64 ``[n]``: the frame before each hole, if there are too few rows for the holes; then row k has frame k.
    undecided: the number of rows without a frame if it is unknown which rows these are; else 0.
    """

    frames: np.ndarray
    holes: np.ndarray
    undecided: int


def match_by_index(row_ns: np.ndarray, frame_ns: np.ndarray, start_ns: int | None = None) -> ByIndex:
    """Gives frame k to row k, but skips the rows of frames that the video lost.

    The times of frames have a hole where a step is two periods or more. Frames after a hole belong to the rows of their times if all
    these rows exist; the clock of the rows may have the same holes. If the first frame is later than `start_ns` and there are enough
    rows, the frames before it are missing. Without `start_ns`, a video's times may begin anywhere, and its last frame may be missing;
    if more rows lack a frame, it is unknown whether they are the first or the last.

    start_ns: the first row's time on the clock of `frame_ns`.
    """
    count = min(len(row_ns), len(frame_ns))
    frames = np.full(len(row_ns), -1)
    frames[:count] = np.arange(count)
    numbers, period_ns = _number(frame_ns[:count])
    missing_at_start = (frame_ns[0] - (start_ns or 0)) / period_ns if len(frame_ns) and period_ns else 0.0
    holes = np.flatnonzero(np.diff(numbers) > 1)
    row_numbers, _ = _number(row_ns)
    for first in dict.fromkeys((max(0, round(missing_at_start)), 0)):
        if not first and not len(holes):
            continue
        rows = np.searchsorted(row_numbers, numbers + first)
        if rows[-1] < len(row_ns) and np.array_equal(row_numbers[rows], numbers + first):
            frames[:] = -1
            frames[rows] = np.arange(count)
            holes = holes[:0]
            break
    missing_at_end = len(row_ns) - 1 - int(np.flatnonzero(frames >= 0)[-1]) if count else 0
    is_decided = (period_ns > 0 or count < 3) and (start_ns is not None or missing_at_end < 2)
    return ByIndex(frames, holes, 0 if is_decided else int((frames < 0).sum()))


def _number(time_ns: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the number of periods from the first time to each, int64 ``[n]``, and the period; if the times are on no grid of periods,
    0, 1, 2, ... and 0."""
    steps = np.diff(time_ns)
    numbers = np.arange(len(time_ns))
    if not len(steps) or (median := np.sort(steps)[(len(steps) - 1) // 2]) <= 0:
        return numbers, 0.0
    # The mean of the steps of one period is more precise than the median: some files have times in whole milliseconds.
    period = float(steps[steps < 1.5 * median].mean())
    periods = np.rint(steps / period).astype(np.int64)
    if periods.min() >= 1 and np.abs(steps / period - periods).max() <= _MOST_OFF:
        return np.concatenate([[0], np.cumsum(periods)]), period
    # Stamps with more jitter may still be on a grid, which drifts slowly; the last few show how far it has drifted.
    deviations = [0.0]
    for index, time in enumerate(((time_ns - time_ns[0]) / period).tolist()[1:], 1):
        drift = float(np.median(deviations[-_LAST:]))
        numbers[index] = round(time - drift)
        deviations.append(time - int(numbers[index]))
        if numbers[index] <= numbers[index - 1] or abs(deviations[-1] - drift) > _MOST_JITTER:
            return np.arange(len(time_ns)), 0.0
    return numbers, period


# ---- decoding ----


@dataclass(frozen=True)
class Cut:
    """Frames of one file that a process decodes together.

    frames: int64 ``[n]``: their indices in the order of presentation, not decreasing. A frame may occur more than once.
    pts: int64 ``[n]``: their stamps.
    start: the decoding stamp of the keyframe from which the first frame can be decoded.
    height, width, turn: as in :class:`Index`.
    depth: what the codes of the pixels mean, if they are depth.
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
    """The result for a cut. Indices are those of frames in the cut.

    parts: decoded frames, with their indices, int64 ``[m]``.
    lost: the index of each frame that did not decode, with the reason.
    """

    parts: list[tuple[np.ndarray, Encoded]] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)


def cut_up(index: Index, frames: np.ndarray, storage: Storage, depth: DepthCodes | None = None) -> list[Cut]:
    """Divides frames into cuts, and returns these in order. `frames` is int64 ``[n]``, not decreasing."""
    # An encoded frame counts as a quarter of its pixels' bytes, which is more than a JPEG of quality 95 has.
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
    """An open file, which is read forwards. It seeks only if that saves decoding."""

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
        """Yields the index in the cut and the frame, for each frame of the cut; in place of a lost frame, the reason."""
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
            damage = self._find_damage(pts)
            if frame is None or frame.pts != pts:
                yield index, damage or "it gave no frame"
            elif damage is not None:
                yield index, damage
            elif (frame.width, frame.height) != size:
                yield index, f"it is {frame.width}x{frame.height}, in a file of {size[0]}x{size[1]}"
            else:
                yield index, frame

    def _seek(self, start: int, first: int) -> None:
        """Goes to the keyframe with the decoding stamp `start`; to the beginning if the file's index leads past `first`."""
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
        self._frame: VideoFrame | None = None  # the current frame; None before the first and after the last
        self._packets = self._container.demux(self._stream)
        self._decoded: deque[VideoFrame] = deque()
        # By presentation stamp: a packet's number in the order of decoding, and the number of the first one that it may depend on.
        self._depends_on: dict[int | None, tuple[int, int]] = {}
        self._keyframes = [(0, -math.inf)] * 2  # the numbers and presentation stamps of the last two
        self._damages: list[tuple[int, str]] = []  # the numbers of packets that did not decode, sorted, and why
        context = self._stream.codec_context
        self._numbers = FrameNumbers(context.extradata or b"") if context.name == "h264" else None

    def _advance(self) -> None:
        """Goes to the next frame, and skips packets that do not decode."""
        # A frame may depend on frames that are shown later. They are decoded first, so that their damage is known.
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
        """Notes on which packets a packet's frame may depend, and returns the packet's number."""
        number = len(self._depends_on)
        if packet.pts is not None:
            if packet.is_keyframe:
                self._keyframes = [self._keyframes[1], (number, packet.pts)]
            # A frame that is decoded after a keyframe but shown before it may depend on frames since the keyframe before that.
            before, last = self._keyframes
            self._depends_on[packet.pts] = number, (last if packet.pts >= last[1] else before)[0]
        return number

    def _find_damage(self, pts: int) -> str | None:
        """Returns why a frame is not as it was recorded: it, or one that it may depend on, did not decode. None if it is."""
        number, first = self._depends_on.get(pts, (-1, 0))
        index = bisect_left(self._damages, (first, ""))
        if index == len(self._damages) or self._damages[index][0] > number:
            return None
        damaged, reason = self._damages[index]
        return reason if damaged == number else f"a frame that it depends on does not: {reason}"


class _Decoder:
    """Decodes cuts one after another, and keeps the last files open."""

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

        def encode_decoded() -> None:
            nonlocal frames
            decoded.parts.append((np.array(indices), encode(frames[: len(indices)], cut.storage)))
            if cut.storage.codec == "raw":
                frames = np.empty_like(frames)  # the appended part uses the old array
            indices.clear()

        for index, frame in self._video(cut.path).pick(cut):
            if isinstance(frame, str):
                decoded.lost[index] = frame
                continue
            pixels = to_rgb(frame) if millimetres is None else _to_depth(frame, millimetres)
            frames[len(indices)] = pixels if cut.turn is None else cut.turn.apply(pixels)
            indices.append(index)
            if len(indices) == len(frames):
                encode_decoded()
        if indices:
            encode_decoded()

    def _video(self, path: str) -> _Video:
        video = self._videos.pop(path, None) or _Video(path)
        self._videos[path] = video  # keeps the order of use: the last used is last
        if len(self._videos) > _OPEN_FILES:
            self._videos.pop(next(iter(self._videos))).close()
        return video


def to_rgb(frame: VideoFrame) -> np.ndarray:
    """Returns a frame's pixels, ``[H, W, 3]``, by the matrix and the range that the video declares, or by BT.601 and the limited range.

    Grey is in the full range unless it declares the limited one. Matrix and range are passed as arguments, because PyAV before 17 ignores
    the frame's own. Makes no copy, except of limited grey, which libswscale takes as full. Starts no threads of libswscale,
    because waiting for them would take longer than the conversion.
    """
    options: dict[str, Any] = {"threads": 1} if _PYAV_17 else {}
    if not frame.format.is_rgb and len(frame.format.components) >= 3:
        matrix = int(frame.colorspace)
        matrix = _BT601 if matrix == _UNSPECIFIED else matrix
        is_full = int(frame.color_range) == _FULL or frame.format.name.startswith("yuvj")
        # PyAV before 17 ignores the matrix if that of the result is equal; RGB has no matrix, so any other will do.
        other = _BT601 if matrix != _BT601 else _BT709
        options |= {
            "src_colorspace": matrix,
            "dst_colorspace": other,
            "src_color_range": _FULL if is_full else _LIMITED,
        }
    rgb = frame.reformat(format="rgb24", **options)
    plane = rgb.planes[0]
    lines = np.frombuffer(cast(Any, plane), np.uint8).reshape(rgb.height, plane.line_size)
    pixels = lines[:, : 3 * rgb.width].reshape(rgb.height, rgb.width, 3)
    is_grey = frame.format.name.startswith(("gray", "ya"))
    return _FULL_OF_LIMITED[pixels] if is_grey and int(frame.color_range) == _LIMITED else pixels


def _to_depth(frame: VideoFrame, millimetres: np.ndarray) -> np.ndarray:
    """Returns a frame's depth in millimetres, ``[H, W, 1]``, which its luma holds as codes of 12 bits."""
    plane = frame.planes[0]
    lines = np.frombuffer(cast(Any, plane), "<u2").reshape(-1, plane.line_size // 2)
    depth: np.ndarray = millimetres[lines[: frame.height, : frame.width, None] & (len(millimetres) - 1)]
    return depth


# ---- processes ----


def work(file_descriptor: int) -> None:
    """The program of a decoding process. It receives cuts from a socket and sends the results back until the other end is closed."""
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
    """A requested cut, and its result as soon as there is one."""

    cut: Cut
    decoded: Decoded | None = None


class _Process:
    """A decoding process, and the cuts that it has."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._popen = start(work, theirs.fileno(), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
            self.connection = Connection(ours.detach())
        self.tickets: deque[Ticket] = deque()

    def begin(self, ticket: Ticket) -> None:
        self.tickets.append(ticket)
        with suppress(ConnectionError):  # the process has died, and `receive` reports that
            self.connection.send(ticket.cut)

    def receive(self) -> bool:
        """Receives a result. Returns False if the process has died."""
        try:
            decoded = self.connection.recv()
        except (EOFError, ConnectionError):
            return False
        self.tickets.popleft().decoded = decoded
        return True

    def end(self) -> int:
        """Ends the process, even amid its work, and returns its exit code."""
        self.connection.close()
        self._popen.kill()
        return self._popen.wait()


class Decoders:
    """Decodes cuts in `jobs` processes; if `jobs` is 1, in this process.

    Cuts are begun in the order of the requests, and their results are taken in the same order. The cuts that are begun and not yet
    taken are never more than the processes may have at once.
    """

    def __init__(self, jobs: int | None) -> None:
        self._jobs = jobs or len(os.sched_getaffinity(0))
        self._here = _Decoder()
        self._processes: list[_Process] = []
        self._waiting: deque[Ticket] = deque()
        self._held: set[Ticket] = set()  # begun and not yet taken

    def ask(self, cut: Cut) -> Ticket:
        """Requests a cut. A process begins it as soon as it can."""
        ticket = Ticket(cut)
        self._waiting.append(ticket)
        if self._jobs > 1:
            self._begin(None)
        return ticket

    def take(self, ticket: Ticket) -> Decoded:
        """Waits for a cut's result, and returns it. Each ticket is taken once."""
        if self._jobs == 1:
            self._waiting.remove(ticket)
            return self._here.decode(ticket.cut)
        while ticket.decoded is None:
            self._begin(ticket)
            self._receive()
        decoded, ticket.decoded = ticket.decoded, None  # so that a caller who keeps the ticket does not keep the frames
        self._held.discard(ticket)
        self._begin(None)
        return decoded

    def drop(self, ticket: Ticket) -> None:
        """Cancels a request whose result is not needed."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        self._held.discard(ticket)

    def _begin(self, wanted: Ticket | None) -> None:
        """Sends waiting cuts to processes, as many as these can take; `wanted` is sent in any case when its turn comes."""
        while self._waiting and (len(self._held) < _CUTS_AT_ONCE * self._jobs or self._waiting[0] is wanted):
            process = min(self._processes, key=lambda process: len(process.tickets), default=None)
            if process is None or (process.tickets and len(self._processes) < self._jobs):
                process = _Process()
                self._processes.append(process)
            self._held.add(self._waiting[0])
            process.begin(self._waiting.popleft())

    def _receive(self) -> None:
        """Waits until a process has sent a result or died."""
        busy = {process.connection: process for process in self._processes if process.tickets}
        for connection in wait(list(busy)):
            process = busy[connection]  # type: ignore[index]
            if process.receive():
                continue
            self._processes.remove(process)
            ticket = process.tickets.popleft()
            reason = f"the process that decoded it died ({process.end()})"
            ticket.decoded = Decoded(lost=dict.fromkeys(range(len(ticket.cut.pts)), reason))
            # The cuts behind this one did not kill the process, so they wait for another.
            self._held.difference_update(process.tickets)
            self._waiting.extendleft(reversed(process.tickets))

    def close(self) -> None:
        """Ends the processes, even amid their work."""
        for process in self._processes:
            process.end()
        self._processes.clear()


# ---- shared by readers ----

_Frames = TypeVar("_Frames", bound="VideoFrames")


class VideoFrames:
    """Decodes the frames of rows. As a context manager, it ends the decoding processes."""

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
        """Calls :func:`index_video` for a camera's file, and notes if its frames are turned, or if it has other videos."""
        index = index_video(path, deep_gray=deep_gray)
        if index.other_tracks:
            why = "of several in the file the first is read; files of one video each give all"
            self._notes.leave_out(f"{camera}: video tracks", why)
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
        """Returns the frames that :func:`match_by_index` finds, and reports holes for which there are too few rows.

        Raises:
            SourceError: rows lack frames, and it is unknown which rows.
        """
        matched = match_by_index(row_ns, frame_ns, start_ns)
        counts = f"{len(row_ns)} rows and {len(frame_ns)} frames"
        # If the file was cut off, the last rows lack frames.
        is_cut_off = index.declared > len(index)
        if matched.undecided and not is_cut_off:
            raise SourceError(
                f"{index.path}: {counts}: {matched.undecided} rows have none, and no time, hole or list of stamps shows which: any frame "
                "may belong to another row"
            )
        if len(matched.holes):
            self._notes.assume(
                f"{what}: {camera}",
                f"row k has frame k, but the times of {index.path.name} have holes ({len(matched.holes)}, the first after frame "
                f"{matched.holes[0]}), for which {counts} leave no room: rows after a hole may have the frame of a later row",
                camera,
            )
        return matched.frames

    def chunks(
        self, what: str, path: Path, tickets: list[Ticket], time_ns: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Encoded]]:
        """Yields the times of rows and their frames, part by part, and skips frames that do not decode.

        tickets: their cuts have the frames of all rows, in order.
        time_ns: the times of the rows.
        """
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
