"""Reads images in messages, as pixels or as files, and finds their intrinsics, which come in other messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ... import frames
from ...errors import Error
from ...feature_words import in_snake_case
from ..images import Images, Storage, encode, exchange_red_and_blue
from ..recording import Frames, Samples
from .batches import Batch, Leaf, bytes_of
from .depth import describe_size, has_colours, read_depth
from .known import Decoded, Origin

if TYPE_CHECKING:
    from .videos import TopicVideo

# The bytes of images that are encoded at once.
_IMAGE_BYTES = 16 << 20

# For each encoding: its dtype, the number of channels in the message, and the channels that are kept, in order. OpenCV's names of types
# (8UC3) give no order of channels: they are taken as blue, green, red.
ENCODINGS: dict[str, tuple[Any, int, list[int]]] = {
    "rgb8": (np.uint8, 3, [0, 1, 2]),
    "bgr8": (np.uint8, 3, [2, 1, 0]),
    "8UC3": (np.uint8, 3, [2, 1, 0]),
    "rgba8": (np.uint8, 4, [0, 1, 2]),
    "bgra8": (np.uint8, 4, [2, 1, 0]),
    "8UC4": (np.uint8, 4, [2, 1, 0]),
    "rgb16": (np.uint16, 3, [0, 1, 2]),
    "bgr16": (np.uint16, 3, [2, 1, 0]),
    "mono8": (np.uint8, 1, [0]),
    "8UC1": (np.uint8, 1, [0]),
    "mono16": (np.uint16, 1, [0]),
    "16UC1": (np.uint16, 1, [0]),
    "32FC1": (np.float32, 1, [0]),
    **{f"bayer_{mosaic}8": (np.uint8, 1, [0]) for mosaic in ("rggb", "bggr", "gbrg", "grbg")},
    **{f"bayer_{mosaic}16": (np.uint16, 1, [0]) for mosaic in ("rggb", "bggr", "gbrg", "grbg")},
}
# Encodings of luma and chroma, by ROS's and Foxglove's names: the order of Y, U and V in the four bytes of two pixels, or the order of
# U and V after the plane of luma ("U V": in planes of their own).
_PAIRS = {"yuv422": "UYVY", "uyvy": "UYVY", "yuv422_yuy2": "YUYV", "yuyv": "YUYV"}
_PLANES = {"nv12": "UV", "nv21": "VU", "nv24": "UV", "i420": "U V"}
# All encodings that are read.
_READ = (*ENCODINGS, *_PAIRS, *_PLANES)
# Patterns of a message's format or encoding, with the codec of video. Names of encoders, such as libx264 and h264_nvenc, match too.
_VIDEO = {"[hx]264": "h264", "[hx]265|hevc": "hevc", "av1": "av1", "vp9": "vp9", "vp8": "vp8"}
# Matches a format by which the file has red and blue exchanged. compressed_image_transport writes the encoding, then the codec, and
# compresses BGR, which it says by "compressed bgr8". Early versions compressed RGB as BGR and did not say so; the transport's subscriber
# exchanges red and blue for these.
_EXCHANGED = re.compile(r"(?i)(rgb|bgr)a?(8|16);(?!.*compressed bgr)")
# Matches topics of rectified images, as image_proc and drivers name them: "/left/image_rect_color".
_RECTIFIED = re.compile(r"(?<![a-z])rect(ified)?(?![a-z])")
# librealsense writes depth as mono16. The topic's name shows that it is depth; a topic of the sensor's options gives the metres per unit.
_REALSENSE_DEPTH = re.compile(r"(/device_\d+/sensor_\d+)/Depth_\d+/image/data")
_REALSENSE_UNIT = re.compile(r"(/device_\d+/sensor_\d+)/option/Depth_Units/value")


class _Kind(NamedTuple):
    """An image's properties without its pixels. A stream holds images of one kind.

    how: how the image is read, such as "pixels", "file" or "video"; "other" if it cannot be.
    description: its size and encoding, in words.
    """

    how: str
    description: str


_EMPTY, _DAMAGED = _Kind("empty", "empty"), _Kind("damaged", "damaged")


@dataclass(frozen=True)
class Intrinsics:
    """The content of a topic of CameraInfo: matrices ``[3, 3]`` in pixels, for images of `height` and `width`.

    topic: the topic's name.
    raw: the matrix K, for images as the lens projects them.
    rectified: the left part of the matrix P, for rectified images; zeros if the messages have no P.
    is_changed: whether the matrices or sizes differ between messages.
    is_partial: whether a message declares that images are binned or a window of the sensor; K and P are for the whole sensor.
    """

    topic: str
    raw: list[list[float]]
    rectified: list[list[float]]
    height: int
    width: int
    is_changed: bool = False
    is_partial: bool = False

    @classmethod
    def of(cls, topic: str, leaves: Mapping[str, Leaf], batch: Batch) -> Intrinsics | None:
        """Returns the calibration of the first message; None if the type has none."""
        height, width = _number(leaves, "height"), _number(leaves, "width")
        raw = _matrices(leaves.get("k") or leaves.get("K"), 9, batch)
        if raw is None or height is None or width is None:
            return None
        projections = _matrices(leaves.get("p") or leaves.get("P"), 12, batch)
        rectified = np.zeros((1, 3, 3)) if projections is None else projections[..., :3]
        heights, widths = batch.numbers(height), batch.numbers(width)
        is_changed = any(
            not np.array_equal(values, np.broadcast_to(values[:1], values.shape), equal_nan=True)
            for values in (raw, rectified)
        )
        is_changed = is_changed or bool(np.ptp(heights)) or bool(np.ptp(widths))
        is_partial = _declares_part(leaves, batch, heights, widths)
        return cls(
            topic, raw[0].tolist(), rectified[0].tolist(), int(heights[0]), int(widths[0]), is_changed, is_partial
        )

    def join(self, other: Intrinsics | None) -> Intrinsics:
        """Returns this calibration, with `is_changed` set if `other`, that of later messages, differs."""
        if other is None or (not other.is_changed and replace(other, is_changed=self.is_changed) == self):
            return self
        return replace(self, is_changed=True)


class Camera:
    """A topic of images in one recording."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._intrinsics: Intrinsics | None = None
        self._unit_m: float | None = None
        self._video: TopicVideo | None = None
        self._attributes: Mapping[str, Any] = {}
        self._kinds: Counter[_Kind] = Counter()
        self._main: _Kind | None = None

    def survey(self, leaves: Mapping[str, Leaf], batch: Batch) -> None:
        """Counts the kinds of images in the first pass, without reading their pixels."""
        if "step" in leaves:
            self._kinds.update(kind for _, kind in _raw_kinds(leaves, batch))
        else:
            data, starts, _ = bytes_of(batch, leaves["data"])
            self._kinds.update(_file_kinds(_formats(leaves, batch), data, starts))

    def absorb(self, other: Camera) -> None:
        """Adds the counts of another camera, whose messages become part of this stream."""
        self._kinds.update(other._kinds)

    def settle(self) -> None:
        """Chooses, after the first pass, the kind of images that the stream keeps: that of an earlier recording, or the most common one.
        Reports the others."""
        origin, facts, key = self._origin, self._origin.known.facts, (self._origin.name, "images")
        candidates = [kind for kind, _ in self._kinds.most_common() if kind not in (_EMPTY, _DAMAGED)]
        # The sort is stable, so the most common kind that can be read comes first.
        candidates.sort(key=lambda kind: kind.how == "other")
        if not candidates:
            if self._kinds[_DAMAGED]:
                self._main = _DAMAGED  # the second pass reports each image
            elif self._kinds[_EMPTY]:
                origin.notes.leave_out(f"{origin.what}: {origin.name}", "its images are empty")
            return
        earlier = facts.get(key)
        self._main = earlier if earlier in candidates else candidates[0]
        facts.setdefault(key, self._main)
        if self._main.how == "other":
            return  # the second pass reports the topic
        accepted = (self._main, _DAMAGED, *([_EMPTY] if self._main.how == "video" else ()))
        for kind in self._kinds:
            if kind not in accepted:
                origin.notes.leave_out(
                    f"{origin.what}: {origin.name}: {self._kinds[kind]} of {self._kinds.total()} images",
                    f"{kind.description}, not {self._main.description}",
                )

    def find_intrinsics(self, calibrations: Sequence[Intrinsics]) -> None:
        """Takes the calibration in the topic's namespace, if there is exactly one."""
        parts = self._origin.topic.split("/")
        if parts[-1] in ("compressed", "compressedDepth"):
            parts.pop()
        namespace = parts[:-1]
        if parts[-2:] == ["image", "data"]:  # as librealsense names topics
            namespace = [*parts[:-2], "info"]
        candidates = [intrinsics for intrinsics in calibrations if intrinsics.topic.split("/")[:-1] == namespace]
        if len(candidates) == 1:
            self._intrinsics = candidates[0]

    def find_unit(self, units: Mapping[str, float]) -> None:
        """Takes the metres per unit of this topic's sensor, from the units by sensor that :func:`depth_unit` found."""
        if match := _REALSENSE_DEPTH.fullmatch(self._origin.topic):
            self._unit_m = units.get(match[1], 0.001)

    def _unit_of_16uc1(self) -> float | None:
        """Returns the metres per unit of depth in the encoding 16UC1, which REP 118 defines as millimetres; None if the topic's name says
        that it is not depth. If the name does not show it, reports an assumption, since thermal cameras also use this encoding."""
        camera = self._origin.name.removesuffix("/compressedDepth")
        is_depth = frames.says_depth(camera)
        if is_depth is False:
            return None
        if is_depth is None and camera == self._origin.name:
            why = "depth in millimetres, as REP 118 has 16UC1; its name does not say depth"
            self._origin.notes.assume(self._origin.name, why, self._origin.name)
        return 0.001

    def raw(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        """Yields images that messages hold as pixels."""
        origin, leaves, batch, time_ns = self._origin, messages.leaves, messages.batch, messages.time_ns
        data, starts, bad = bytes_of(batch, leaves["data"])
        kinds = list(_raw_kinds(leaves, batch, np.diff(starts).tolist()))
        storage = Storage.of(origin.known.options, origin.name)
        if origin.exported is not None and origin.known.options.image_codec is None:
            storage = replace(storage, codec="raw")  # as in the cache that was exported
        lost: dict[int, object] = {int(messages.numbers[row]): why for row, why in bad.items()}
        row = 0
        while row < len(batch):
            (height, width, step, is_bigendian, encoding, size), kind = kinds[row]
            most = max(1, _IMAGE_BYTES // max(1, size))
            stop = row + 1
            while stop < len(batch) and stop - row < most and kinds[stop] == kinds[row] and stop not in bad:
                stop += 1
            rows, row = slice(row, stop), stop
            if rows.start in bad or kind not in (self._main, _DAMAGED):
                continue
            if encoding not in _READ:
                origin.notes.leave_out(origin.name, f"images in {encoding!r}: only {', '.join(_READ)} are read")
                continue
            try:
                raw = data[starts[rows.start] : starts[stop]].reshape(-1, size)
                pixels = _read_pixels(raw, height, width, step, bool(is_bigendian), encoding)
                origin.known.kinds.check(
                    origin.name,
                    f"{width}x{height} {encoding}",
                    f"{origin.where}: {origin.name}: message {messages.numbers[rows.start]}",
                )
            except Error as error:
                lost |= dict.fromkeys(messages.numbers[rows].tolist(), error)
                continue
            if size > max(_least_bytes(height, width, step, encoding), height * step):
                why = f"more of them than {width}x{height} {encoding} in rows of {step} bytes has"
                origin.notes.leave_out(f"{origin.name}: bytes of images", why)
            pixels = self._convert_colours(pixels, encoding)
            unit = None
            if encoding in ("16UC1", "mono16") and not storage.has_labels:
                unit = self._unit_m if encoding == "mono16" else self._unit_of_16uc1()
            if pixels.dtype == np.uint8:
                if storage.codec == "jpeg" and origin.known.options.image_codec is None:
                    storage.report_loss(origin.name, origin.notes)
                stored, resized = encode(pixels, storage), storage.resized(height, width)
            elif storage.size is not None:
                content = "depth" if unit else encoding
                origin.notes.leave_out(
                    origin.name, f"{content} is not resized; image_size='keep' (--image-size keep) takes it as it is"
                )
                continue
            else:
                stored, resized = self._encode_exactly(pixels, storage), None
            matrix = self._find_matrix(height, width, resized)
            chunks = [(time_ns[rows], stored)]
            yield (
                origin.name,
                Frames(chunks, unit_m=unit, intrinsics=matrix, resized=resized, attributes=messages.attributes),
            )
        origin.lose(lost)

    def _convert_colours(self, pixels: np.ndarray, encoding: str) -> np.ndarray:
        """Returns the pixels as they are stored, and reports what they lose by that."""
        origin = self._origin
        if encoding in ("rgba8", "bgra8", "8UC4"):
            origin.notes.leave_out(f"{origin.name}: alpha", f"of {encoding}")
        if encoding in ("8UC3", "8UC4"):
            why = f"{encoding} declares none; taken as blue, green, red, as in OpenCV"
            origin.notes.leave_out(f"{origin.name}: the order of channels", why)
        if encoding in _PAIRS or encoding in _PLANES:
            origin.notes.leave_out(
                f"{origin.name}: luma and chroma", f"of {encoding}: kept as RGB by BT.601, as OpenCV converts it"
            )
        if not encoding.startswith("bayer_"):
            return pixels
        origin.notes.leave_out(
            f"{origin.name}: the mosaic",
            f"of {encoding}: a colour that a pixel lacks is the mean of its neighbours",
        )
        if pixels.dtype == np.uint16:
            origin.notes.leave_out(f"{origin.name}: the lower 8 bits", f"of {encoding}: 65535 is 255")
            pixels = ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
        return _demosaic(pixels[..., 0], encoding.removeprefix("bayer_")[:4])

    def _encode_exactly(self, pixels: np.ndarray, storage: Storage) -> frames.Encoded:
        is_raw = storage.codec == "raw" or pixels.dtype == np.float32
        return frames.encode(pixels, codec="raw" if is_raw else "png")

    def compressed(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        """Yields images that messages hold as JPEG or PNG files, as depth, or as frames of a video."""
        origin, leaves, batch = self._origin, messages.leaves, messages.batch
        formats = _formats(leaves, batch)
        data, starts, bad = bytes_of(batch, leaves["data"])
        origin.lose({int(messages.numbers[row]): why for row, why in bad.items()})
        kinds = _file_kinds(formats, data, starts)
        main = self._main
        if main is None:
            return
        # A video's decoder must be given empty and damaged frames too: a missing frame changes the frames after it.
        accepted = (main, _DAMAGED, *([_EMPTY] if main.how == "video" else ()))
        rows = [row for row, kind in enumerate(kinds) if kind in accepted and row not in bad]
        if not rows:
            return
        if main.how == "other":
            origin.notes.leave_out(
                origin.name, f"images in {formats[rows[0]]!r}: only JPEG, PNG, compressedDepth and video are read"
            )
            return
        files = [bytes(data[starts[row] : starts[row + 1]]) for row in rows]
        numbers, time_ns = messages.numbers[rows].tolist(), messages.time_ns[rows]
        if main.how == "video":
            self._attributes = messages.attributes
            yield from self._decode_video(main.description.split()[-1], files, numbers, time_ns)
        elif main.how not in ("file", "exchanged file", "depth", "damaged"):
            yield from self._decode_depth(main.how, files, numbers, time_ns, messages.attributes)
        else:
            has_depth_header = main.how == "depth"
            self._report_lost_content(formats[rows[0]], main.description)
            images = Images(
                origin.name,
                origin.what,
                origin.where,
                time_ns,
                "recorded",
                lambda row: files[row][_header_bytes(files[row]) * has_depth_header :],
                numbers,
            )
            declares_depth = has_depth_header or formats[rows[0]].startswith("16UC1")
            for stream, samples in self._keep_files(images, declares_depth, messages.attributes):
                has_indices = "colour type 3" in main.description and frames.is_labels(origin.name)
                if main.how == "exchanged file" and not has_indices:
                    why = f"{formats[rows[0]].strip()!r}: exchanged back, as compressed_image_transport does; channels = 'bgr' in a mapping undoes it"
                    origin.notes.leave_out(f"{origin.name}: the files' order of red and blue", why)
                    where = f"{origin.where}: {origin.name}"
                    samples = replace(samples, chunks=exchange_red_and_blue(samples, where))
                yield stream, samples

    def _report_lost_content(self, format: str, description: str) -> None:
        """Reports what the original images lost when they were compressed to files of one channel."""
        origin = self._origin
        if "JPEG of 1 channel" not in description and "colour type 0" not in description:
            return
        if format.startswith("bayer_"):
            why = f"{format.strip()!r}: the mosaic itself was compressed; its pixels are kept as brightness"
            origin.notes.leave_out(f"{origin.name}: colours", why)
        elif format.startswith(("16UC1", "32FC1")) and "of 16 bits" not in description:
            why = f"{format.strip()!r} has 8 bits a pixel, which are not distances; kept as brightness"
            origin.notes.leave_out(f"{origin.name}: depth", why)

    def _keep_files(
        self, images: Images, declares_depth: bool, attributes: Mapping[str, Any]
    ) -> Iterator[tuple[str, Frames]]:
        """Yields JPEGs and PNGs, which stay as they are unless the options say otherwise. `declares_depth`: whether their format does."""
        origin = self._origin
        stored = images.stored(origin.known.options, origin.known.kinds, origin.notes)
        if stored is None:
            return
        chunks = iter(stored.chunks)
        first_ns, first = next(chunks)
        height, width = first.shape[:2] if isinstance(first, frames.Encoded) else (0, 0)
        if stored.resized is not None:
            height, width = stored.resized["from"]
        is_depth = declares_depth and not frames.is_labels(origin.name)
        has_16_bits = isinstance(first, frames.Encoded) and first.dtype == np.uint16
        yield (
            origin.name,
            replace(
                stored,
                chunks=chain([(first_ns, first)], chunks),
                unit_m=self._unit_of_16uc1() if has_16_bits and is_depth else None,
                intrinsics=self._find_matrix(height, width, stored.resized),
                attributes=attributes,
            ),
        )

    def _decode_depth(
        self, how: str, files: list[bytes], numbers: list[int], time_ns: np.ndarray, attributes: Mapping[str, Any]
    ) -> Iterator[tuple[str, Samples]]:
        """Yields depth that compressed_depth_image_transport quantised or compressed by RVL."""
        origin = self._origin
        storage = Storage.of(origin.known.options, origin.name)
        if storage.size is not None:
            origin.notes.leave_out(
                origin.name, "depth is not resized; image_size='keep' (--image-size keep) takes it as it is"
            )
            return
        unit = None if "quantised" in how else self._unit_of_16uc1()
        lost: dict[int, object] = {}
        for file, number, stamp in zip(files, numbers, time_ns, strict=True):
            try:
                pixels = read_depth(file, is_rvl="RVL" in how, is_quantised="quantised" in how)
                height, width = pixels.shape
                where = f"{origin.where}: {origin.name}: message {number}"
                origin.known.kinds.check(origin.name, f"{width}x{height} depth of {pixels.dtype}", where)
            except Error as error:
                lost[number] = error
                continue
            yield (
                origin.name,
                Frames(
                    [(np.array([stamp]), self._encode_exactly(pixels[None, ..., None], storage))],
                    unit_m=unit,
                    intrinsics=self._find_matrix(height, width, None),
                    attributes=attributes,
                ),
            )
        origin.lose(lost)

    def rest(self) -> Iterator[tuple[str, Samples]]:
        """Yields, after the last message, the frames of a video that its decoder held back."""
        video, self._video = self._video, None
        if video is not None:
            yield from self._as_frames(video.rest())

    def _decode_video(
        self, codec: str, files: Sequence[bytes], rows: Sequence[int], time_ns: np.ndarray
    ) -> Iterator[tuple[str, Samples]]:
        origin = self._origin
        if self._video is None:
            try:
                from .videos import TopicVideo
            except ImportError as error:
                if (error.name or "").startswith("robocache"):
                    raise
                origin.notes.leave_out(origin.name, f"video in {codec}: {error}; pip install av")
                return
            try:
                self._video = TopicVideo(origin, codec)
            except Error as error:
                origin.notes.leave_out(origin.name, str(error))
                return
        yield from self._as_frames(self._video.read(files, rows, time_ns))

    def _as_frames(
        self, pieces: Iterator[tuple[np.ndarray, frames.Encoded, tuple[int, int]]]
    ) -> Iterator[tuple[str, Samples]]:
        for time_ns, stored, (height, width) in pieces:
            resized = Storage.of(self._origin.known.options, self._origin.name).resized(height, width)
            matrix = self._find_matrix(height, width, resized)
            yield (
                self._origin.name,
                Frames([(time_ns, stored)], intrinsics=matrix, resized=resized, attributes=self._attributes),
            )

    def _find_matrix(self, height: int, width: int, resized: dict[str, Any] | None) -> list[list[float]] | None:
        """Returns this recording's intrinsics of images of that size, or None."""
        origin, intrinsics = self._origin, self._intrinsics
        if intrinsics is None:
            return None
        is_rectified = _RECTIFIED.search(in_snake_case(origin.topic)) is not None
        matrix: list[list[float]] = intrinsics.rectified if is_rectified else intrinsics.raw
        if intrinsics.is_changed:
            why = "change within the recording; see the topic's streams"
        elif (intrinsics.height, intrinsics.width) != (height, width):
            why = f"are of {intrinsics.width}x{intrinsics.height}, frames of {width}x{height}"
        elif resized is not None:
            why = "are of frames that were not resized"
        elif intrinsics.is_partial:
            why = "are of the whole sensor, but roi or binning shows that images are binned or a part of it"
        elif not np.isfinite(cast(Any, matrix)).all() or not np.any(matrix):
            why = "are not calibrated" if not is_rectified else "have no P, which rectified images need"
        else:
            return matrix
        origin.notes.leave_out(f"{origin.name}: intrinsics", f"those of {intrinsics.topic} {why}")
        return None


def depth_unit(topic: str, leaves: Mapping[str, Leaf], batch: Batch) -> tuple[str, float] | None:
    """Returns a sensor and its metres per unit of depth, if the topic is librealsense's option for them; else None."""
    match, value = _REALSENSE_UNIT.fullmatch(topic), _number(leaves, "data")
    if not match or value is None:
        return None
    return match[1], float(str(batch.numbers(value)[0]))  # through a text, so that float32's rounding of 0.001 is 0.001


def _matrices(leaf: Leaf | None, size: int, batch: Batch) -> np.ndarray | None:
    """Returns a field of `size` numbers as ``[messages, 3, size / 3]``; None if it is missing, or has another size in a message."""
    if leaf is None:
        return None
    if leaf.kind == "number" and leaf.count == size:
        return batch.numbers(leaf).reshape(-1, 3, size // 3)
    if leaf.kind == "numbers" and (batch.counts(leaf) == size).all():  # as in protobuf and JSON
        return batch.sequences(leaf)[0].reshape(-1, 3, size // 3)
    return None


def _declares_part(leaves: Mapping[str, Leaf], batch: Batch, heights: np.ndarray, widths: np.ndarray) -> bool:
    """Whether a CameraInfo declares images to be binned, or a window of the sensor (REP 104). A window of size 0 is the whole sensor."""

    def values_of(path: str) -> np.ndarray:
        leaf = _number(leaves, path)
        return np.zeros(len(batch)) if leaf is None else batch.numbers(leaf)

    height, width = values_of("roi.height"), values_of("roi.width")
    is_window = (values_of("roi.x_offset") != 0) | (values_of("roi.y_offset") != 0)
    is_window |= ((height != 0) & (height != heights)) | ((width != 0) & (width != widths))
    return bool((is_window | (values_of("binning_x") > 1) | (values_of("binning_y") > 1)).any())


def _number(leaves: Mapping[str, Leaf], path: str) -> Leaf | None:
    leaf = leaves.get(path)
    return leaf if leaf is not None and leaf.kind == "number" else None


def _formats(leaves: Mapping[str, Leaf], batch: Batch) -> list[str]:
    """Returns the field `format` of each message, or `encoding` if the type has no such field."""
    return batch.texts(leaves["format"] if "format" in leaves else leaves["encoding"])


# A message's declaration of its pixels, and their number of bytes: height, width, step, is_bigendian, encoding, size.
_Raw = tuple[int, int, int, int, str, int]


def _raw_kinds(
    leaves: Mapping[str, Leaf], batch: Batch, sizes: Sequence[int] | None = None
) -> Iterator[tuple[_Raw, _Kind]]:
    """Yields what each message declares of its pixels, and the image's kind. `sizes`: the bytes of each image, if they are known."""
    declared = [batch.numbers(leaves[path]).astype(np.int64).tolist() for path in ("height", "width", "step")]
    bigendian = batch.numbers(leaves["is_bigendian"]).tolist() if "is_bigendian" in leaves else [0] * len(batch)
    if sizes is None and leaves["data"].kind == "text":  # base64
        sizes = [len(text) // 4 * 3 - text[-2:].count("=") for text in batch.texts(leaves["data"])]
    elif sizes is None:
        sizes = batch.counts(leaves["data"]).tolist()
    columns = (*declared, bigendian, batch.texts(leaves["encoding"]), sizes)
    for height, width, step, is_bigendian, encoding, size in zip(*columns, strict=True):
        kind = _Kind("pixels" if encoding in _READ else "other", f"{width}x{height} {encoding}")
        if encoding in _READ and encoding not in _PLANES and size == height * _row_bytes(width, encoding):
            step = size // max(1, height)  # the bytes are just the pixels of the rows, so the declared step is wrong
        if not height * width and not size:
            kind = _EMPTY
        elif encoding in _READ and size < _least_bytes(height, width, step, encoding):
            kind = _DAMAGED
        yield (height, width, step, int(is_bigendian), encoding, size), kind


def _file_kinds(formats: Sequence[str], data: np.ndarray, starts: np.ndarray) -> list[_Kind]:
    """Returns the kind of each image that is a file or a frame of a video."""
    kinds = []
    for format, (start, stop) in zip(formats, pairwise(starts.tolist()), strict=True):
        codec = next((codec for pattern, codec in _VIDEO.items() if re.search(pattern, format.lower())), None)
        is_depth = "compressedDepth" in format
        file = data[start:stop]
        if is_depth:
            file = file[_header_bytes(file[:4].tobytes()) :]
        how = "file" if not is_depth else "quantised depth" if "32FC1" in format else "depth"
        size = describe_size(file)
        if not is_depth and size and has_colours(size) and _EXCHANGED.match(format):
            how = "exchanged file"
        if start == stop:
            kinds.append(_EMPTY)
        elif codec is not None:
            kinds.append(_Kind("video", f"video in {codec}"))
        elif is_depth and "rvl" in format.lower():
            kinds.append(
                _Kind(f"{how} in RVL", "x".join(map(str, file[:8].copy().view("<u4"))) if len(file) >= 8 else "")
            )
        elif size is None:
            kinds.append(_Kind("other", f"images in {format!r}"))
        else:
            kinds.append(_Kind(how, size) if size else _DAMAGED)
    return kinds


def _header_bytes(file: bytes) -> int:
    """Returns how many bytes compressed_depth_image_transport's header has before a PNG; some writers omit the header if depth is not
    quantised."""
    return 0 if file.startswith(b"\x89PNG") else 12


def _least_bytes(height: int, width: int, step: int, encoding: str) -> int:
    """Returns the least bytes that an image of this size has: its last row needs no bytes after its pixels."""
    if encoding in _PLANES:
        rows, row = _chroma(height, width, step, encoding)
        return step * height + rows * row
    used = _row_bytes(width, encoding)
    return height * step - (step - used) if height > 1 else used


def _row_bytes(width: int, encoding: str) -> int:
    """Returns the bytes of the pixels in a row; if an encoding has planes, those of the luma in a row."""
    if encoding in _PLANES:
        return width
    if encoding in _PAIRS:
        return 4 * ((width + 1) // 2)
    kind, channels, _ = ENCODINGS[encoding]
    return width * channels * int(np.dtype(kind).itemsize)


def _chroma(height: int, width: int, step: int, encoding: str) -> tuple[int, int]:
    """Returns the number of rows of chroma after the luma, and the bytes of each row. Two pixels share a chroma, but in an odd size the
    last pixel has its own."""
    if encoding == "nv24":
        return height, 2 * width
    rows, columns = (height + 1) // 2, (width + 1) // 2
    return (2 * rows, (step + 1) // 2) if encoding == "i420" else (rows, max(step, 2 * columns))


def _read_pixels(data: np.ndarray, height: int, width: int, step: int, is_bigendian: bool, encoding: str) -> np.ndarray:
    """Returns pixels ``[n, H, W, C]`` from bytes ``[n, size]``, without the bytes after the pixels of a row."""
    used = _row_bytes(width, encoding)
    if height < 1 or width < 1 or step < used or data.shape[1] < _least_bytes(height, width, step, encoding):
        raise Error(f"expected {width}x{height} {encoding} in rows of {step} bytes, got {data.shape[1]} bytes")
    if encoding in _PLANES:
        return _from_planes(data, height, width, step, encoding)
    if height == 1:  # a single row may lack the bytes after its pixels that the step declares
        step = used
    if data.shape[1] < height * step:
        data = np.pad(data, ((0, 0), (0, height * step - data.shape[1])))
    rows = data[:, : height * step].reshape(len(data), height, step)[:, :, :used]
    if encoding in _PAIRS:
        order = _PAIRS[encoding]
        pairs = rows.reshape(len(data), height, -1, 4)
        luma = pairs[..., [i for i in range(4) if order[i] == "Y"]].reshape(len(data), height, -1)
        chroma = (np.repeat(pairs[..., order.index(letter)], 2, axis=2)[..., :width] for letter in "UV")
        return _rgb(luma[..., :width], *chroma)
    kind, channels, kept = ENCODINGS[encoding]
    dtype = np.dtype(kind)
    pixels = np.ascontiguousarray(rows).view(dtype.newbyteorder(">" if is_bigendian else "<"))
    pixels = pixels.astype(dtype, copy=False).reshape(len(data), height, width, channels)
    return pixels if kept == list(range(channels)) else np.ascontiguousarray(pixels[..., kept])


def _from_planes(data: np.ndarray, height: int, width: int, step: int, encoding: str) -> np.ndarray:
    """Returns RGB ``[n, H, W, 3]`` from bytes ``[n, size]``: a plane of luma, then U and V in pairs or in planes."""
    n, luma_bytes = len(data), height * step
    luma = data[:, :luma_bytes].reshape(n, height, step)[:, :, :width]
    count, row_bytes = _chroma(height, width, step, encoding)
    rows = data[:, luma_bytes : luma_bytes + count * row_bytes].reshape(n, count, row_bytes)
    if encoding == "i420":
        planes = rows.reshape(n, 2, count // 2, row_bytes).transpose(1, 0, 2, 3)
    else:
        pairs = rows[..., : row_bytes // 2 * 2].reshape(n, count, -1, 2)
        planes = pairs.transpose(3, 0, 1, 2)[:: -1 if encoding == "nv21" else 1]
    if encoding != "nv24":
        planes = planes.repeat(2, axis=2).repeat(2, axis=3)
    return _rgb(luma, *(plane[:, :height, :width] for plane in planes))


def _rgb(luma: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Returns RGB from luma of 16 to 235 and chroma of 16 to 240, by ITU-R BT.601, in OpenCV's fixed-point numbers of 20 bits."""
    y = np.maximum(luma.astype(np.int32) - 16, 0) * 1220542 + (1 << 19)
    u, v = u.astype(np.int32) - 128, v.astype(np.int32) - 128
    channels = y + 1673527 * v, y - 852492 * v - 409993 * u, y + 2116026 * u
    return np.stack([np.clip(channel >> 20, 0, 255) for channel in channels], axis=-1).astype(np.uint8)


def _demosaic(mosaic: np.ndarray, pattern: str) -> np.ndarray:
    """Returns RGB ``[n, H, W, 3]`` from a mosaic ``[n, H, W]``. `pattern` names the colours of each 2 x 2 pixels, such as "rggb". A colour
    that a pixel lacks is the mean over those of its eight neighbours that have it; edges are mirrored."""
    padded = np.pad(mosaic, ((0, 0), (1, 1), (1, 1)), "reflect").astype(np.uint16)
    rgb = np.empty((*mosaic.shape, 3), np.uint8)
    for channel, colour in enumerate("rgb"):
        plane = np.zeros_like(padded)
        for index in (index for index, letter in enumerate(pattern) if letter == colour):
            cells = (slice(None), slice(1 - index // 2, None, 2), slice(1 - index % 2, None, 2))
            plane[cells] = padded[cells]
        upright = plane[:, :-2] + plane[:, 2:]
        sides = upright[:, :, 1:-1] + plane[:, 1:-1, :-2] + plane[:, 1:-1, 2:]
        total = 4 * plane[:, 1:-1, 1:-1] + sides
        if colour != "g":
            # Half of the pixels are green, so four neighbours beside a pixel are. Of red or blue it has two beside it, or four at corners.
            total += sides + upright[:, :, :-2] + upright[:, :, 2:]
        rgb[..., channel] = (total + 2) >> 2
    return rgb
