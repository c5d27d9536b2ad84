"""Reads point clouds, ROS's PointCloud2 and Foxglove's PointCloud, as ragged rows. Each message describes the layout of its points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ...errors import Error
from ..recording import Ragged, Rows, Samples
from .batches import Batch, Leaf, bytes_of, offsets_of
from .known import Decoded, Origin


def _number_types(*names: str) -> dict[int, np.dtype[Any]]:
    """Returns the dtypes by their numbers, from 1."""
    return {number: np.dtype(name) for number, name in enumerate(names, 1)}


# The type numbers of ROS's PointField (those above 8 come from PCL's conversions) and of Foxglove's PackedElementField.
_ROS_TYPES = _number_types(
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64", "int64", "uint64", "bool"
)
_FOXGLOVE_TYPES = _number_types("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
_FOXGLOVE_WORDS = {dtype.name.upper(): number for number, dtype in _FOXGLOVE_TYPES.items()}
_COLOURS = ["r", "g", "b", "a"]
_POSE = [f"pose.{part}.{axis}" for part, axes in (("position", "xyz"), ("orientation", "xyzw")) for axis in axes]

# A field: its name, offset, type number and count. A cloud: its fields, the bytes of a point, whether it is big-endian, height, width, and
# the bytes of a row.
_Field = tuple[str, int, int, int]
_Cloud = tuple[tuple[_Field, ...], int, bool, int, int, int]


class Clouds:
    """Reads a topic of clouds in one recording. Its stream has one layout: that of an earlier recording, or else that of most clouds. A
    cloud without points may have another layout."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._seen: Counter[_Layout] = Counter()
        self._clouds = 0
        self._layouts: dict[Any, _Layout] = {}

    def survey(self, leaves: Mapping[str, Leaf], batch: Batch) -> None:
        """Counts the layouts of clouds in the first pass."""
        for cloud in _describe_clouds(leaves, batch, None):
            self._clouds += 1
            if cloud[3] * cloud[4]:
                try:
                    self._seen[self._layout(cloud, "point_stride" in leaves)] += 1
                except Error:  # the second pass reports the message
                    continue

    def absorb(self, other: Clouds) -> None:
        """Adds the counts of other clouds, whose messages become part of this stream."""
        self._seen.update(other._seen)
        self._clouds += other._clouds

    def settle(self) -> None:
        """Chooses the layout of the stream after the first pass."""
        notes, origin = self._origin.notes, self._origin
        if not self._seen:
            return
        counts = Counter[str]()
        for layout, count in self._seen.items():
            counts[layout.description] += count
        most = counts.most_common(1)[0][0]
        main = self._main or next(layout for layout in self._seen if layout.description == most)
        origin.known.facts.setdefault((origin.name, "points"), main)
        if main.description not in counts:
            return  # no cloud here has the stream's layout: the second pass refuses the clouds
        for other, count in counts.items():
            if other != main.description:
                notes.leave_out(
                    f"{origin.what}: {origin.name}: {count} of {self._clouds} clouds",
                    f"points of {other}, not of {main.description}",
                )

    @property
    def _main(self) -> _Layout | None:
        return cast("_Layout | None", self._origin.known.facts.get((self._origin.name, "points")))

    def _layout(self, cloud: _Cloud, is_foxglove: bool) -> _Layout:
        """Returns the layout of a cloud, without fields that cannot be read."""
        key = cloud[:3]
        if key not in self._layouts:
            fields, step, is_bigendian = key
            types = _FOXGLOVE_TYPES if is_foxglove else _ROS_TYPES
            known = [field for field in fields if field[2] in types and field[0]]
            for name, _, number, _ in set(fields) - set(known):
                why = f"its type has the number {number}, none of 1 to {len(types)}" if name else "it has no name"
                self._origin.notes.leave_out(f"{self._origin.name}: field {name!r}", why)
            # An exported cloud is the cache's rows, whose colours are not unpacked.
            may_be_packed = self._origin.exported is None
            self._layouts[key] = _Layout.of(known, types, step, is_bigendian, may_be_packed)
        return self._layouts[key]

    def read(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        """Yields the streams of the clouds in messages."""
        origin, leaves, batch, main = self._origin, messages.leaves, messages.batch, self._main
        data, starts, bad = bytes_of(batch, leaves["data"])
        clouds = list(_describe_clouds(leaves, batch, np.diff(starts).tolist()))
        if any(height > 1 for _, _, _, height, _, _ in clouds):
            origin.notes.leave_out(
                f"{origin.name}: height and width", "of clouds whose points are in rows like an image's"
            )
        if main is None:
            origin.notes.leave_out(f"{origin.what}: {origin.name}", "its clouds have no points that can be read")
            return
        lost: dict[int, object] = {int(messages.numbers[row]): why for row, why in bad.items()}
        was_reported = self._has_layout(main)  # then settle() reported the clouds of other layouts
        rows: list[int] = []
        sizes: list[int] = []
        runs: list[_Run] = []
        for row, cloud in enumerate(clouds):
            if row in bad:
                continue
            height, width, row_step = cloud[3:]
            size, used = int(starts[row + 1] - starts[row]), height * width * cloud[1]
            if size > (max(used, height * row_step) if used else 0):
                origin.notes.leave_out(
                    f"{origin.name}: bytes of points", "more of them than a cloud's height, width and row_step declare"
                )
            if size == used:
                # The points have no gaps, so row_step is ignored: some drivers set it to 0 or to all bytes.
                height, width, row_step = 1, height * width, 0
            try:
                if height * width:
                    layout = self._layout(cloud, "point_stride" in leaves)
                    if layout.description != main.description:
                        if was_reported:
                            continue
                        raise Error(f"points of {layout.description}, but of {main.description} before")
                    run = _Run(layout, int(starts[row]), int(starts[row + 1]), height, width, row_step)
                    if not runs or not runs[-1].extend(run):
                        runs.append(run)
                rows.append(row)
                sizes.append(height * width)
            except Error as error:
                lost[int(messages.numbers[row])] = error
        origin.lose(lost)
        if not rows:
            return
        pieces = [run.layout.cut(data[run.begin : run.end], run.height, run.width, run.row_step) for run in runs]
        if not pieces:
            pieces = [main.cut(data[:0], 1, 0, 0)]
        offsets, time_ns = offsets_of(np.array(sizes, np.int64)), messages.time_ns[rows]
        for field in pieces[0]:
            points = np.concatenate([piece[field] for piece in pieces]) if len(pieces) > 1 else pieces[0][field]
            stream = f"{origin.name}/{field}" if field else origin.name
            features = main.names if not field else _COLOURS if field in main.packed else None
            yield stream, Ragged(time_ns, points, offsets, features, attributes=messages.attributes)
        if all(path in leaves for path in _POSE):  # Foxglove's pose: where the points' origin lies in frame_id
            pose = np.stack([batch.numbers(leaves[path]) for path in _POSE], axis=1)[rows]
            names = [path.removeprefix("pose.") for path in _POSE]
            yield f"{origin.name}/pose", Rows(time_ns, pose, names, attributes=messages.attributes)

    def _has_layout(self, main: _Layout) -> bool:
        return any(layout.description == main.description for layout in self._seen)


def is_cloud(leaves: Mapping[str, Leaf]) -> bool:
    """Whether a type that has bytes in the field `data` describes points in these bytes."""
    fields = leaves.get("fields")
    if fields is None or fields.kind != "records":
        return False
    inner = {leaf.path for leaf in fields.fields}
    is_ros = {"height", "width", "point_step", "row_step", "is_bigendian"} <= leaves.keys() and "datatype" in inner
    return {"name", "offset"} <= inner and (is_ros or ("point_stride" in leaves and "type" in inner))


def _describe_clouds(leaves: Mapping[str, Leaf], batch: Batch, sizes: Sequence[int] | None) -> Iterator[_Cloud]:
    """Yields the description of each message's cloud. `sizes`: the bytes of each cloud, if they are known."""
    records, offsets = batch.records(leaves["fields"])
    inner = {leaf.path: leaf for leaf in leaves["fields"].fields}
    names = records.texts(inner["name"])
    numbers = [[1] * len(names)] * 3
    for i, path in enumerate(("offset", "type" if "type" in inner else "datatype", "count")):
        if path in inner and inner[path].kind == "text":  # protobuf's JSON has an enum's words
            numbers[i] = [_FOXGLOVE_WORDS.get(word, 0) for word in records.texts(inner[path])]
        elif path in inner:
            numbers[i] = records.numbers(inner[path]).astype(np.int64).tolist()
    fields = list(zip(names, *numbers, strict=True))
    if "point_stride" in leaves:
        steps = batch.numbers(leaves["point_stride"]).astype(np.int64).tolist()
        if sizes is None:
            sizes = (
                [len(text) for text in batch.texts(leaves["data"])]
                if leaves["data"].kind == "text"
                else batch.counts(leaves["data"]).tolist()
            )
        # The number of points is rounded up, so that a check fails if the bytes are not a whole number of points.
        shapes = [(step, False, 1, -(-size // max(1, step)), size) for step, size in zip(steps, sizes, strict=True)]
    else:
        paths = ("point_step", "is_bigendian", "height", "width", "row_step")
        shapes = list(zip(*(batch.numbers(leaves[path]).astype(np.int64).tolist() for path in paths), strict=True))
    for row, (step, is_bigendian, height, width, row_step) in enumerate(shapes):
        yield tuple(fields[offsets[row] : offsets[row + 1]]), step, bool(is_bigendian), height, width, row_step


@dataclass
class _Run:
    """Clouds in bytes [begin, end) that are read together: neighbouring clouds without gaps between clouds or points, or a single cloud
    with gaps."""

    layout: _Layout
    begin: int
    end: int
    height: int
    width: int
    row_step: int

    def __post_init__(self) -> None:
        self.layout.check(self.end - self.begin, self.height, self.width, self.row_step)

    def extend(self, run: _Run) -> bool:
        """Appends another run and returns True, if neither run has gaps and the other begins where this one ends; else returns False."""
        if not (self._is_dense and run._is_dense and self.end == run.begin and self.layout is run.layout):
            return False
        self.height, self.width, self.end = 1, self.height * self.width + run.height * run.width, run.end
        return True

    @property
    def _is_dense(self) -> bool:
        return self.end - self.begin == self.height * self.width * self.layout.dtype.itemsize


@dataclass(frozen=True, eq=False)
class _Layout:
    """The layout of a cloud's points in its bytes.

    dtype: the dtype of a point.
    names: the features of the main stream, which have one dtype, the one that holds x, y and z; these come first.
    main: the field of each feature, and the feature's index in it; None if the field has one number.
    separate: the fields that become other streams: those of another dtype, and those in `packed`.
    packed: the fields that hold a colour in one number of four bytes.
    description: the layout in words.
    """

    dtype: np.dtype[Any]
    names: list[str]
    main: list[tuple[str, int | None]]
    separate: list[str]
    packed: frozenset[str]
    description: str

    @classmethod
    def of(
        cls,
        fields: Sequence[_Field],
        types: Mapping[int, np.dtype[Any]],
        step: int,
        is_bigendian: bool,
        may_be_packed: bool,
    ) -> _Layout:
        typed_fields, offsets = [], []
        for name, offset, number, count in fields:
            dtype = types[number].newbyteorder(">" if is_bigendian else "<")
            count = max(1, count)  # some writers set the count to 0
            if offset + count * dtype.itemsize > step:
                raise Error(f"field {name!r} ends at {offset + count * dtype.itemsize} in points of {step} bytes")
            typed_fields.append((name, dtype, count))
            offsets.append(offset)
        names = [name for name, _, _ in typed_fields]
        if not names or len(set(names)) != len(names) or step > 1 << 16:
            raise Error(f"fields {names} in points of {step} bytes")
        dtypes = {name: dtype for name, dtype, _ in typed_fields}
        counts = {name: count for name, _, count in typed_fields}
        packed = {name for name in ("rgb", "rgba") if counts.get(name) == 1 and dtypes[name].itemsize == 4}
        if len(packed) == len(names) or not may_be_packed:
            packed = set()
        axes = [name for name in ("x", "y", "z") if name in dtypes]
        first = axes or [name for name in names if name not in packed][:1]
        main_dtype = np.result_type(*(dtypes[name] for name in first))
        if main_dtype.kind == "f" and any(dtypes[name].kind in "iu" and dtypes[name].itemsize == 8 for name in axes):
            raise Error(f"{', '.join(f'{name} {dtypes[name].name}' for name in axes)}: no type holds all of them")
        main_fields = [
            name
            for name in names
            if name in axes or (dtypes[name].newbyteorder("=") == main_dtype and name not in packed)
        ]
        main_fields.sort(key=lambda name: "xyz".index(name) if name in ("x", "y", "z") else 3)
        main = [(name, i if counts[name] > 1 else None) for name in main_fields for i in range(counts[name])]
        return cls(
            np.dtype(
                {
                    "names": names,
                    "formats": [(dtype, (count,)) if count > 1 else dtype for _, dtype, count in typed_fields],
                    "offsets": offsets,
                    "itemsize": step,
                }
            ),
            [name if i is None else f"{name}[{i}]" for name, i in main],
            main,
            [name for name in names if name not in main_fields],
            frozenset(packed),
            ", ".join(
                f"{name} {dtype.newbyteorder('=').name}{f' x {count}' * (count > 1)}"
                for name, dtype, count in typed_fields
            ),
        )

    def check(self, size: int, height: int, width: int, row_step: int) -> None:
        """Raises Error if `size` bytes cannot hold a cloud of that shape."""
        step = self.dtype.itemsize
        if height > 1 and row_step < width * step:
            raise Error(f"rows of {width} points of {step} bytes in {row_step} bytes")
        if size < (height * row_step if height > 1 else height * width * step):
            raise Error(f"expected {height}x{width} points of {step} bytes in rows of {row_step}, got {size} bytes")

    def cut(self, data: np.ndarray, height: int, width: int, row_step: int) -> dict[str, np.ndarray]:
        """Returns from the bytes of a checked cloud the main stream's points, under "", and the separate fields, under their names."""
        used = width * self.dtype.itemsize
        if height > 1 and row_step > used:
            data = data[: height * row_step].reshape(height, row_step)[:, :used].reshape(-1)
        points = np.ascontiguousarray(data[: used * height]).view(self.dtype)
        return {"": self._cut_main(points)} | {name: self._cut_separate(points, name) for name in self.separate}

    def _cut_separate(self, points: np.ndarray, name: str) -> np.ndarray:
        values = points[name]
        if name in self.packed:
            packed = _native(np.ascontiguousarray(values).view(f"{values.dtype.byteorder}u4"))
            return np.stack([packed >> 16 & 255, packed >> 8 & 255, packed & 255, packed >> 24], 1).astype(np.uint8)
        return values.view(np.uint8) != 0 if values.dtype == np.bool_ else _native(values)

    def _cut_main(self, points: np.ndarray) -> np.ndarray:
        dtype = self.dtype[self.main[0][0]].base
        size = dtype.itemsize
        is_table = all(self.dtype[name].base == dtype for name, _ in self.main)
        fields = cast(Any, self.dtype.fields)
        offsets = [fields[name][1] + (i or 0) * size for name, i in self.main]
        # If the fields have one dtype and all offsets are multiples of its size, the points are a table, whose columns are taken.
        if is_table and self.dtype.itemsize % size == 0 and all(offset % size == 0 for offset in offsets):
            flat = points.view(dtype).reshape(len(points), self.dtype.itemsize // size)
            start, columns = offsets[0] // size, [offset // size for offset in offsets]
            if columns == list(range(start, start + len(columns))):
                return _native(flat[:, start : start + len(columns)])
            return _native(flat[:, columns])
        return np.stack([_native(points[name] if i is None else points[name][:, i]) for name, i in self.main], axis=1)


def _native(values: np.ndarray) -> np.ndarray:
    """Returns values in the byte order of this machine."""
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))
