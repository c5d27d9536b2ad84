"""Clouds of points, which lie in bytes as their fields say: ragged rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ...errors import Error
from ..recording import Ragged, Samples
from .batches import offsets_of
from .known import Decoded, Origin

# The numbers of PointField.
_POINT_TYPES = {
    number: np.dtype(name)
    for number, name in enumerate(("int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"), 1)
}


def read_clouds(origin: Origin, messages: Decoded) -> Iterator[tuple[str, Samples]]:
    """The clouds of messages."""
    leaves, batch = messages.leaves, messages.batch
    data, starts = batch.sequences(leaves["data"])
    fields, offsets = batch.records(leaves["fields"])
    inner = {leaf.path: leaf for leaf in leaves["fields"].fields}
    names = fields.texts(inner["name"])
    columns = [fields.numbers(inner[path]).tolist() for path in ("offset", "datatype", "count")]
    described = list(zip(names, *columns, strict=True))
    paths = ("height", "width", "row_step", "point_step", "is_bigendian")
    sizes = list(zip(*(batch.numbers(leaves[path]).tolist() for path in paths), strict=True))
    if any(height > 1 for height, *_ in sizes):
        origin.notes.leave_out(f"{origin.name}: height and width", "of clouds whose points lie in rows as an image's")
    lost: dict[int, Error] = {}
    rows: list[int] = []
    runs: list[_Run] = []
    layouts: dict[Any, _Layout] = {}
    for row, (height, width, row_step, step, big) in enumerate(sizes):
        try:
            key = *described[offsets[row] : offsets[row + 1]], step, bool(big)
            if key not in layouts:
                layouts[key] = _layout(origin, key[:-2], step, bool(big))
            run = _Run(layouts[key], int(starts[row]), int(starts[row + 1]), height, width, row_step)
            if not runs or not runs[-1].go_on(run):
                runs.append(run)
            rows.append(row)
        except Error as error:
            lost[int(messages.numbers[row])] = error
    origin.lose(lost)
    if not rows:
        return
    clouds = [run.layout.cut(data[run.begin : run.end], run.height, run.width, run.row_step) for run in runs]
    bounds = offsets_of(np.array([sizes[row][0] * sizes[row][1] for row in rows], np.int64))
    for part in clouds[0]:
        points = np.concatenate([cloud[part] for cloud in clouds]) if len(clouds) > 1 else clouds[0][part]
        stream, features = (f"{origin.name}/{part}", None) if part else (origin.name, runs[-1].layout.names)
        yield stream, Ragged(messages.time_ns[rows], points, bounds, features, attributes=messages.attributes)


def _layout(origin: Origin, fields: Sequence[tuple[str, int, int, int]], step: int, big: bool) -> _Layout:
    """How points lie; their fields must be those of all clouds before."""
    layout = _Layout.of(fields, step, big)
    known = origin.known.facts.setdefault((origin.name, "points"), layout.says)
    if layout.says != known:
        raise Error(f"points of {layout.says}, but of {known} before")
    return layout


@dataclass
class _Run:
    """Clouds that lie one behind the other, in bytes [begin, end), with nothing between them and between their points, so that
    they are cut as one; or a single one, as it says."""

    layout: _Layout
    begin: int
    end: int
    height: int
    width: int
    row_step: int

    def __post_init__(self) -> None:
        self.layout.check(self.end - self.begin, self.height, self.width, self.row_step)

    def go_on(self, run: _Run) -> bool:
        """Takes another one in, if it can."""
        if not (self._is_dense and run._is_dense and self.end == run.begin and self.layout is run.layout):
            return False
        self.height, self.width, self.end = 1, self.height * self.width + run.height * run.width, run.end
        return True

    @property
    def _is_dense(self) -> bool:
        return self.end - self.begin == self.height * self.width * self.layout.dtype.itemsize


@dataclass(frozen=True)
class _Layout:
    """How a cloud's points lie in its bytes.

    dtype: of a point.
    names: of the features that share x's dtype: x, y and z first.
    own: fields of another dtype.
    says: the same in words.
    """

    dtype: np.dtype[Any]
    names: list[str]
    together: list[tuple[str, int | None]]
    own: list[str]
    says: str

    @classmethod
    def of(cls, fields: Sequence[tuple[str, int, int, int]], step: int, big: bool) -> _Layout:
        described, offsets = [], []
        for name, offset, number, count in fields:
            if number not in _POINT_TYPES:
                raise Error(f"field {name!r} of type {number}, which is none of 1 to 8")
            dtype = _POINT_TYPES[number].newbyteorder(">" if big else "<")
            count = max(1, count)  # some writers say 0
            if offset + count * dtype.itemsize > step:
                raise Error(f"field {name!r} ends at {offset + count * dtype.itemsize} in points of {step} bytes")
            described.append((name, dtype, count))
            offsets.append(offset)
        names = [name for name, _, _ in described]
        if not names or len(set(names)) != len(names) or "" in names or step > 1 << 16:
            raise Error(f"fields {names} in points of {step} bytes")
        kinds = {name: (dtype, count) for name, dtype, count in described}
        main = kinds["x"][0] if "x" in kinds else described[0][1]
        same = [name for name in names if kinds[name][0] == main]
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
            ", ".join(
                f"{name} {dtype.newbyteorder('=').name}{f' x {count}' * (count > 1)}"
                for name, dtype, count in described
            ),
        )

    def check(self, size: int, height: int, width: int, row_step: int) -> None:
        """Raises Error where so many bytes do not hold a cloud of that size."""
        step = self.dtype.itemsize
        if height > 1 and row_step < width * step:
            raise Error(f"rows of {width} points of {step} bytes in {row_step} bytes")
        if size < (height * row_step if height > 1 else height * width * step):
            raise Error(f"expected {height}x{width} points of {step} bytes in rows of {row_step}, got {size} bytes")

    def cut(self, data: np.ndarray, height: int, width: int, row_step: int) -> dict[str, np.ndarray]:
        """The points of a cloud that was checked, and under their names the fields of other dtypes."""
        used = width * self.dtype.itemsize
        if height > 1 and row_step > used:
            data = data[: height * row_step].reshape(height, row_step)[:, :used].reshape(-1)
        points = np.ascontiguousarray(data[: used * height]).view(self.dtype)
        main = self._main(points)
        return {"": main} | {name: _native(points[name]) for name in self.own}

    def _main(self, points: np.ndarray) -> np.ndarray:
        first = self.dtype[self.together[0][0]].base
        size = first.itemsize
        fields = cast(Any, self.dtype.fields)
        places = [fields[name][1] + (i or 0) * size for name, i in self.together]
        if self.dtype.itemsize % size == 0 and all(place % size == 0 for place in places):
            flat = points.view(first).reshape(len(points), self.dtype.itemsize // size)
            start, columns = places[0] // size, [place // size for place in places]
            if columns == list(range(start, start + len(columns))):
                return _native(flat[:, start : start + len(columns)])
            return _native(flat[:, columns])
        return np.stack(
            [_native(points[name] if i is None else points[name][:, i]) for name, i in self.together], axis=1
        )


def _native(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))
