"""Decodes video whose frames are single messages, such as foxglove.CompressedVideo and those of ffmpeg_image_transport, by PyAV.

No other module of recorded messages needs PyAV.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import av
import numpy as np
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from ...errors import Error
from ...frames import Encoded
from ..h264 import FrameNumbers
from ..images import Storage, encode
from ..video import to_rgb, turn_of_frame
from .known import Origin

# The pixels that are encoded at once, and the most pixels of a frame; a larger frame counts as damaged.
_AT_ONCE, _MOST_PIXELS = 4 << 20, 1 << 25
# Decoders whose names differ from their codecs': FFmpeg's own decoder of AV1 works only with hardware.
_DECODERS = {"av1": "libdav1d"}
# Codecs whose decoders do not notice that a frame before another is missing, and the step between stamps, in median steps, from which
# one may be.
_UNNUMBERED, _GAP = ("av1", "vp8", "vp9"), 1.5


class TopicVideo:
    """The video of one topic in one recording."""

    def __init__(self, origin: Origin, codec: str) -> None:
        self._origin = origin
        self._storage = Storage.of(origin.known.options, origin.name)
        try:
            context = av.CodecContext.create(_DECODERS.get(codec, codec), "r")
        except (ValueError, FFmpegError) as error:
            raise Error(f"video in {codec}, which PyAV {av.__version__} does not decode") from error
        assert isinstance(context, VideoCodecContext)
        context.thread_count = 1  # with more threads, the decoder holds more frames back
        context.options = {"max_pixels": str(_MOST_PIXELS)}
        self._codec, self._context = codec, context
        self._numbers = FrameNumbers() if codec == "h264" else None
        self._missing: int | None = None  # the first message after a missing one, until its frame comes
        self._waiting: dict[int, int] = {}  # the stamps of frames that are still to come, by their messages' numbers
        self._stamps: dict[int, int] = {}  # the stamps of all messages, by their numbers
        self._keyframes: set[int] = set()  # the messages that are keyframes
        self._broken: str | None = None  # why frames are dropped, until the next keyframe
        # The messages before the first keyframe, with the reason why each gave no frame; None from that keyframe on.
        self._before: dict[int, str] | None = {}

    def read(
        self, files: Sequence[bytes], rows: Sequence[int], time_ns: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Encoded, tuple[int, int]]]:
        """Yields stamps, frames as they are stored, and their original size (height, width). `rows`: the messages' numbers."""
        yield from self._encode_frames(self._decode(zip(files, rows, time_ns.tolist(), strict=True)))

    def rest(self) -> Iterator[tuple[np.ndarray, Encoded, tuple[int, int]]]:
        """Yields, after the last message, the frames that the decoder held back."""
        yield from self._encode_frames(self._drain())
        self._origin.lose({**(self._before or {}), **dict.fromkeys(self._waiting, "it gave no frame")})
        self._waiting.clear()
        if self._codec in _UNNUMBERED and len(self._stamps) > 2:
            self._report_gaps()

    def _report_gaps(self) -> None:
        """Reports gaps of the stamps at which a message may be missing. Frames after a missing one are wrong up to the next keyframe."""
        rows, steps = list(self._stamps)[1:], np.diff(list(self._stamps.values()))
        gaps = [(rows[i], steps[i]) for i in np.flatnonzero(steps > _GAP * np.median(steps))]
        gaps = [(row, step) for row, step in gaps if row not in self._keyframes]
        if gaps:
            row, step = gaps[0]
            why = (
                f"complete, though its stamps have gaps ({len(gaps)}, the first of {step / 1e9:.3g} s before message {row}): {self._codec} "
                "does not show whether frames are missing, and those from a gap to the next keyframe would be wrong"
            )
            self._origin.notes.assume(f"{self._origin.what}: {self._origin.name}: video", why, self._origin.name)

    def _decode(self, messages: Iterator[tuple[bytes, int, int]]) -> Iterator[tuple[int, VideoFrame]]:
        lost: dict[int, str] = {}
        for file, row, time_ns in messages:
            self._waiting[row] = self._stamps[row] = time_ns
            packet = Packet(file)
            packet.pts = row
            if self._numbers is not None and self._numbers.lacks(file) and self._missing is None:
                self._missing = row
            try:
                if not file:
                    raise Error("it is empty")
                frames = self._context.decode(packet)
            except (FFmpegError, Error) as error:
                self._waiting.pop(row)
                self._broken = f"a frame before it does not decode: {error}"
                (lost if self._before is None else self._before)[row] = str(error)
                continue
            for frame in frames:
                yield from self._check_frame(frame, lost)
        self._origin.lose(lost)

    def _drain(self) -> Iterator[tuple[int, VideoFrame]]:
        lost: dict[int, str] = {}
        try:
            for frame in self._context.decode(None):
                yield from self._check_frame(frame, lost)
        except FFmpegError as error:
            self._broken = str(error)
        self._origin.lose(lost)

    def _check_frame(self, frame: VideoFrame, lost: dict[int, str]) -> Iterator[tuple[int, VideoFrame]]:
        """Yields the frame and its time; or adds to `lost` why it cannot be used."""
        time_ns = self._waiting.pop(frame.pts, None) if frame.pts is not None else None
        if time_ns is None or frame.pts is None:
            return
        if frame.key_frame:
            self._keyframes.add(frame.pts)
        if frame.is_corrupt:
            self._broken = "it or a frame before it is damaged"
        elif frame.key_frame:
            self._broken = None
            self._report_before()
        elif self._missing is not None and frame.pts >= self._missing:
            self._broken = "a message that it depends on is missing"
        if self._missing is not None and frame.pts >= self._missing:
            self._missing = None
        if self._before is not None:
            self._before[frame.pts] = self._broken or "no keyframe before it"
        elif self._broken is not None:
            lost[frame.pts] = self._broken
        else:
            yield time_ns, frame

    def _report_before(self) -> None:
        """Reports messages before the first keyframe. They are no error, since a recording may begin in the middle of a video."""
        if self._before:
            what = f"{self._origin.what}: {self._origin.name}: messages up to {max(self._before)}"
            self._origin.notes.leave_out(what, "before the first keyframe of the video")
        self._before = None

    def _encode_frames(
        self, decoded: Iterator[tuple[int, VideoFrame]]
    ) -> Iterator[tuple[np.ndarray, Encoded, tuple[int, int]]]:
        times: list[int] = []
        pixels: list[np.ndarray] = []
        for time_ns, frame in decoded:
            picture = to_rgb(frame)
            if turn := turn_of_frame(frame):
                picture = turn.apply(picture)
                what = f"{self._origin.name}: frames as stored in the video"
                self._origin.notes.leave_out(what, f"{turn}, as the video says")
            if pixels and (pixels[0].shape != picture.shape or len(pixels) * pixels[0].size > _AT_ONCE):
                yield self._encode(times, pixels)
                times, pixels = [], []
            times.append(time_ns)
            pixels.append(picture)
        if pixels:
            yield self._encode(times, pixels)

    def _encode(self, times: list[int], pixels: list[np.ndarray]) -> tuple[np.ndarray, Encoded, tuple[int, int]]:
        origin = self._origin
        height, width = pixels[0].shape[:2]
        origin.known.kinds.check(origin.name, f"{width}x{height} video", f"{origin.where}: {origin.name}")
        return np.array(times, np.int64), encode(np.stack(pixels), self._storage), (height, width)
