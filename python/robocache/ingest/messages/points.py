"""Reads point clouds, ROS's PointCloud2 and Foxglove's PointCloud, into ragged rows. Their fields describe the bytes."""

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


def _numbered(*names: str) -> dict[int, np.dtype[Any]]:
    return {number: np.dtype(name) for number, name in enumerate(names, 1)}


# The type numbers of ROS's PointField (those above 8 come from PCL's conversions) and of Foxglove's PackedElementField.
_ROS_TYPES = _numbered(
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64", "int64", "uint64", "bool"
)
_FOXGLOVE_TYPES = _numbered("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
_FOXGLOVE_WORDS = {dtype.name.upper(): number for number, dtype in _FOXGLOVE_TYPES.items()}
_COLOURS = ["r", "g", "b", "a"]
_POSE = [f"pose.{part}.{axis}" for part, axes in (("position", "xyz"), ("orientation", "xyzw")) for axis in axes]

# A field is (name, offset, type number, count). A cloud is (fields, bytes of a point, is big-endian, height, width, bytes of a row).
_Field = tuple[str, int, int, int]
_Cloud = tuple[tuple[_Field, ...], int, bool, int, int, int]


class Clouds:
    """A topic of clouds in one recording. A stream has one set of fields: that of an earlier recording, or else that of most clouds.
    A cloud without points may have other fields."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._seen: Counter[_Layout] = Counter()
        self._clouds = 0
        self._layouts: dict[Any, _Layout] = {}

    def survey(self, leaves: Mapping[str, Leaf], batch: Batch) -> None:
        """Counts the layouts of clouds."""
        for cloud in _described(leaves, batch, None):
            self._clouds += 1
            if cloud[3] * cloud[4]:
                try:
                    self._seen[self._layout(cloud, "point_stride" in leaves)] += 1
                except Error:  # the second pass names the message
                    continue

    def absorb(self, other: Clouds) -> None:
        """Adds the counts of another instance."""
        self._seen.update(other._seen)
        self._clouds += other._clouds

    def settle(self) -> None:
        """Chooses the layout of the stream."""
        notes, origin = self._origin.notes, self._origin
        if not self._seen:
            return
        clouds_of = Counter[str]()
        for layout, count in self._seen.items():
            clouds_of[layout.description] += count
        most = clouds_of.most_common(1)[0][0]
        main = self._main or next(layout for layout in self._seen if layout.description == most)
        origin.known.facts.setdefault((origin.name, "points"), main)
        if main.description not in clouds_of:
            return  # no cloud has it: the second pass refuses them
        for other, count in clouds_of.items():
            if other != main.description:
                notes.leave_out(
                    f"{origin.what}: {origin.name}: {count} of {self._clouds} clouds",
                    f"points of {other}, not of {main.description}",
                )

    @property
    def _main(self) -> _Layout | None:
        return cast("_Layout | None", self._origin.known.facts.get((self._origin.name, "points")))

    def _layout(self, cloud: _Cloud, foxglove: bool) -> _Layout:
        key = cloud[:3]
        if key not in self._layouts:
            fields, step, big = key
            types = _FOXGLOVE_TYPES if foxglove else _ROS_TYPES
            known = [field for field in fields if field[2] in types and field[0]]
            for name, _, number, _ in set(fields) - set(known):
                why = f"its type has the number {number}, none of 1 to {len(types)}" if name else "it has no name"
                self._origin.notes.leave_out(f"{self._origin.name}: field {name!r}", why)
            self._layouts[key] = _Layout.of(known, types, step, big)
        return self._layouts[key]

    def read(self, messages: Decoded) -> Iterator[tuple[str, Samples]]:
        """Yields the streams of the clouds in messages."""
        origin, leaves, batch, main = self._origin, messages.leaves, messages.batch, self._main
        data, starts, bad = bytes_of(batch, leaves["data"])
        clouds = list(_described(leaves, batch, np.diff(starts).tolist()))
        if any(height > 1 for _, _, _, height, _, _ in clouds):
            origin.notes.leave_out(
                f"{origin.name}: height and width", "of clouds whose points are in rows like an image's"
            )
        if main is None:
            origin.notes.leave_out(f"{origin.what}: {origin.name}", "its clouds have no points that can be read")
            return
        lost: dict[int, object] = {int(messages.numbers[row]): why for row, why in bad.items()}
        fits = self._fits(main)
        rows: list[int] = []
        sizes: list[int] = []
        runs: list[_Run] = []
        for row, cloud in enumerate(clouds):
            if row in bad:
                continue
            height, width, row_step = cloud[3:]
            if int(starts[row + 1] - starts[row]) == height * width * cloud[1]:
                # The points have no gaps, so row_step is ignored: some drivers set it to 0 or to all bytes.
                height, width, row_step = 1, height * width, 0
            try:
                if height * width:
                    layout = self._layout(cloud, "point_stride" in leaves)
                    if layout.description != main.description:
                        if fits:
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
        cut = [run.layout.cut(data[run.begin : run.end], run.height, run.width, run.row_step) for run in runs]
        if not cut:
            cut = [main.cut(data[:0], 1, 0, 0)]
        bounds, time_ns = offsets_of(np.array(sizes, np.int64)), messages.time_ns[rows]
        for part in cut[0]:
            points = np.concatenate([piece[part] for piece in cut]) if len(cut) > 1 else cut[0][part]
            stream = f"{origin.name}/{part}" if part else origin.name
            features = main.names if not part else _COLOURS if part in main.packed else None
            yield stream, Ragged(time_ns, points, bounds, features, attributes=messages.attributes)
        if all(path in leaves for path in _POSE):  # the pose of the points' frame in frame_id
            pose = np.stack([batch.numbers(leaves[path]) for path in _POSE], axis=1)[rows]
            names = [path.removeprefix("pose.") for path in _POSE]
            yield f"{origin.name}/pose", Rows(time_ns, pose, names, attributes=messages.attributes)

    def _fits(self, main: _Layout) -> bool:
        return any(layout.description == main.description for layout in self._seen)


def is_cloud(leaves: Mapping[str, Leaf]) -> bool:
    """Whether a type with bytes `data` describes points in them."""
    fields = leaves.get("fields")
    if fields is None or fields.kind != "records":
        return False
    inner = {leaf.path for leaf in fields.fields}
    ros = {"height", "width", "point_step", "row_step", "is_bigendian"} <= leaves.keys() and "datatype" in inner
    return {"name", "offset"} <= inner and (ros or ("point_stride" in leaves and "type" in inner))


def _described(leaves: Mapping[str, Leaf], batch: Batch, sizes: Sequence[int] | None) -> Iterator[_Cloud]:
    """Yields the description of each message's cloud. `sizes` are the bytes of each, if known."""
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
        # Rounded up, so that the check finds too few bytes if they are not a whole number of points.
        shapes = [(step, False, 1, -(-size // max(1, step)), size) for step, size in zip(steps, sizes, strict=True)]
    else:
        paths = ("point_step", "is_bigendian", "height", "width", "row_step")
        shapes = list(zip(*(batch.numbers(leaves[path]).astype(np.int64).tolist() for path in paths), strict=True))
    for row, (step, big, height, width, row_step) in enumerate(shapes):
        yield tuple(fields[offsets[row] : offsets[row + 1]]), step, bool(big), height, width, row_step


@dataclass
class _Run:
    """Adjacent clouds in bytes [begin, end), without gaps between clouds and points, which are cut as one; or a single cloud
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
        """Appends another run if both are dense and adjacent; returns whether it did."""
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
    names: the features with the dtype of x; x, y and z come first. `together` are their fields and indices.
    own: the fields that become streams of their own: those of another dtype, and `packed` ones, colours in one number of
        four bytes.
    description: the layout in words.
    """

    dtype: np.dtype[Any]
    names: list[str]
    together: list[tuple[str, int | None]]
    own: list[str]
    packed: frozenset[str]
    description: str

    @classmethod
    def of(cls, fields: Sequence[_Field], types: Mapping[int, np.dtype[Any]], step: int, big: bool) -> _Layout:
        described, offsets = [], []
        for name, offset, number, count in fields:
            dtype = types[number].newbyteorder(">" if big else "<")
            count = max(1, count)  # some writers set it to 0
            if offset + count * dtype.itemsize > step:
                raise Error(f"field {name!r} ends at {offset + count * dtype.itemsize} in points of {step} bytes")
            described.append((name, dtype, count))
            offsets.append(offset)
        names = [name for name, _, _ in described]
        if not names or len(set(names)) != len(names) or step > 1 << 16:
            raise Error(f"fields {names} in points of {step} bytes")
        kinds = {name: (dtype, count) for name, dtype, count in described}
        packed = {
            name for name in ("rgb", "rgba") if name in kinds and kinds[name][1] == 1 and kinds[name][0].itemsize == 4
        }
        if len(packed) == len(names):
            packed = set()
        main = kinds["x"][0] if "x" in kinds else next(kinds[name][0] for name in names if name not in packed)
        same = [name for name in names if kinds[name][0] == main and name not in packed]
        same.sort(key=lambda name: "xyz".index(name) if name in ("x", "y", "z") else 3)
        together = [(name, i if kinds[name][1] > 1 else None) for name in same for i in range(kinds[name][1])]
        return cls(
            np.dtype(
                {
                    "names": names,
                    "formats": [(t, (c,)) if c > 1 else t for _, t, c in described],
                    "offsets": offsets,
                    "itemsize": step,
                }
            ),
            [name if i is None else f"{name}[{i}]" for name, i in together],
            together,
            [name for name in names if name not in same],
            frozenset(packed),
            ", ".join(
                f"{name} {dtype.newbyteorder('=').name}{f' x {count}' * (count > 1)}"
                for name, dtype, count in described
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
        """Returns the points of a checked cloud under "", and the fields in `own` under their names."""
        used = width * self.dtype.itemsize
        if height > 1 and row_step > used:
            data = data[: height * row_step].reshape(height, row_step)[:, :used].reshape(-1)
        points = np.ascontiguousarray(data[: used * height]).view(self.dtype)
        main = self._main(points)
        return {"": main} | {name: self._own(points, name) for name in self.own}

    def _own(self, points: np.ndarray, name: str) -> np.ndarray:
        values = points[name]
        if name in self.packed:
            packed = _native(np.ascontiguousarray(values).view(f"{values.dtype.byteorder}u4"))
            return np.stack([packed >> 16 & 255, packed >> 8 & 255, packed & 255, packed >> 24], 1).astype(np.uint8)
        return values.view(np.uint8) != 0 if values.dtype == np.bool_ else _native(values)

    def _main(self, points: np.ndarray) -> np.ndarray:
        first = self.dtype[self.together[0][0]].base
        size = first.itemsize
        fields = cast(Any, self.dtype.fields)
        offsets = [fields[name][1] + (i or 0) * size for name, i in self.together]
        if self.dtype.itemsize % size == 0 and all(offset % size == 0 for offset in offsets):
            flat = points.view(first).reshape(len(points), self.dtype.itemsize // size)
            start, columns = offsets[0] // size, [offset // size for offset in offsets]
            if columns == list(range(start, start + len(columns))):
                return _native(flat[:, start : start + len(columns)])
            return _native(flat[:, columns])
        return np.stack(
            [_native(points[name] if i is None else points[name][:, i]) for name, i in self.together], axis=1
        )


def _native(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))
