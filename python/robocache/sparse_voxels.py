"""Voxels of which only those that hold points are stored, and one point for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _lib, errors
from .ops import _argument, _optional

_voxelize_sparse = _lib.function("voxelize_sparse")
_voxel_downsample = _lib.function("voxel_downsample")
_sparse_array = _lib.function("sparse_array")


class SparseVoxels(NamedTuple):
    """What :func:`voxelize_sparse` answers; M voxels, or `capacity` rows of which the first `num_voxels` are voxels."""

    coords: Any
    """int32 ``[M, 3]``, x, y, z (or z, y, x); ``[M, 4]`` with the cloud in front where there are clouds."""
    features: Any
    """``[M, F]``, or ``[M, P, F]`` where `reduce` is None."""
    counts: Any
    """int32 ``[M]``, points in the voxel, at most `max_points_per_voxel`."""
    point_to_voxel: Any
    """int32 ``[N]`` or ``[B, N]``, the row of `coords` of each point, or -1."""
    dropped: Any
    """int64, points that are in no voxel; ``[B]`` where there are clouds."""
    num_voxels: Any
    """int64, None without `capacity`; beyond `capacity` so many voxels were turned away."""


def _numbers(name: str, value: Any, count: int) -> tuple[float, ...]:
    """`count` numbers, or one for all."""
    try:
        numbers = (
            np.asarray(value, np.float64) if not hasattr(value, "tolist") else np.asarray(value.tolist(), np.float64)
        )
    except (TypeError, ValueError):
        raise errors.ArgumentTypeError(f"{name}: expected numbers, got {value!r}") from None
    if numbers.ndim == 0 and count == 3:
        return (float(numbers),) * 3
    if numbers.shape != (count,):
        either = "a number or three of them" if count == 3 else f"{count} numbers"
        raise errors.ArgumentError(f"{name}: expected {either}, got shape {list(numbers.shape)}")
    return tuple(numbers.tolist())


def _whole(name: str, value: Any) -> Any:
    return int(value) if isinstance(value, np.integer) else value


def voxelize_sparse(
    points: Any,
    features: Any = None,
    *,
    voxel_size: float | Sequence[float],
    point_range: Sequence[float] | None = None,
    lengths: Any = None,
    batch_offsets: Any = None,
    max_voxels: int | None = None,
    max_points_per_voxel: int | None = None,
    capacity: int | None = None,
    reduce: str | None = "mean",
    order: str = "first",
    coord_order: str = "xyz",
) -> SparseVoxels:
    """The voxels that points lie in, and what lies in each; the grid itself is never stored.

    Args:
        points: ``[N, 3 + C]`` or ``[B, N, 3 + C]``, float32 or float64; x, y, z first.
        features: ``[N, F]`` or ``[B, N, F]``; None: the columns 3.. of `points`.
        voxel_size: a number or three, in the points' unit.
        point_range: ``(x0, y0, z0, x1, y1, z1)``; points outside are dropped, cells count from its lower corner. None:
            cells are ``floor(p / voxel_size)``, negative ones too.
        lengths: ``[B]`` int32/int64, rows of each cloud ``[B, N, ...]`` that are points.
        batch_offsets: ``[B + 1]`` int32/int64, rows ``[offsets[b], offsets[b + 1])`` of ``[N, ...]`` are cloud b.
        max_voxels: keep so many of each cloud, those whose first point comes earliest.
        max_points_per_voxel: keep the first so many points of each voxel.
        capacity: rows of coords, features and counts. Nothing waits for the device then, and `num_voxels` says how many
            are in use; rows behind have coords -1, count 0 and features 0. None: as many rows as voxels, for which a call
            on CUDA waits once.
        reduce: ``"mean"``, ``"sum"``, ``"min"``, ``"max"``, ``"first"`` or ``"last"`` of each voxel's points; None
            gathers the points themselves in input order, zeros behind the last: `features`, or all columns of `points`.
        order: of the voxels: ``"first"``, by their first points; ``"linear"``, by (cloud, x, y, z); ``"morton"``.
        coord_order: ``"xyz"``, or ``"zyx"`` as spconv and mmcv have it.

    Returns:
        :class:`SparseVoxels`, of points' framework and device. The whole contract is
        src/robocache/ops/voxelize_sparse/voxelize_sparse.hpp. The same bits on every run, on the CPU and on CUDA.
        Gradients go to `features`, or to `points` as far as its columns are features or gathered.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.
        DeviceError: the device refused.

    Example:
        >>> points = np.array([[0.1, 0.2, 0.3, 7.0], [5.0, 5.0, 5.0, 1.0], [0.4, 0.2, 0.1, 9.0]])
        >>> voxels = robocache.voxelize_sparse(points, voxel_size=1.0)
        >>> voxels.coords, voxels.features
        (array([[0, 0, 0],
               [5, 5, 5]], dtype=int32), array([[8.],
               [1.]]))
    """
    made = _voxelize_sparse(
        _argument("points", points),
        _optional("features", features),
        *_numbers("voxel_size", voxel_size, 3),
        _optional("lengths", lengths),
        _optional("batch_offsets", batch_offsets),
        _whole("max_voxels", max_voxels),
        _whole("max_points_per_voxel", max_points_per_voxel),
        _whole("capacity", capacity),
        reduce,
        order,
        coord_order,
        *(() if point_range is None else _numbers("point_range", point_range, 6)),
    )
    return SparseVoxels(*_arrays(made, points, 6))


def _arrays(made: Any, points: Any, count: int) -> list[Any]:
    argument = _argument("points", points)
    arrays = (_sparse_array(made, argument, place) for place in range(count))
    return [None if array is None else _lib.in_framework_of(points, array) for array in arrays]


def voxel_downsample(
    points: Any,
    features: Any = None,
    *,
    voxel_size: float | Sequence[float],
    method: str = "centroid",
    seed: int | None = None,
    origin: float | Sequence[float] = 0,
) -> Any:
    """One point for each voxel that points lie in, in the order of the voxels' first points.

    Args:
        points: ``[N, 3 + C]``, float32 or float64; x, y, z first. Those that are not finite are left out.
        features: ``[N, F]``; None: the columns 3.. of `points` are features and come out with them.
        voxel_size: a number or three, in the points' unit.
        method: ``"centroid"``, the mean of points and features; ``"first"``, the first point of each voxel in input
            order; ``"random"``, one of its points by `seed`.
        seed: an int, for ``"random"``: the same seed and rows give the same points, on any device.
        origin: a number or three: a corner of some cell.

    Returns:
        ``[M, 3 + C]``; with `features` the tuple ``([M, 3], [M, F])``. Of points' dtype, framework and device; the mean
        of integer features is float32. The whole contract is src/robocache/ops/voxelize_sparse/voxel_downsample.hpp. On
        CUDA the call waits for the device once, to learn M.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.
        DeviceError: the device refused.

    Example:
        >>> points = np.array([[0.25, 0.0, 0.0], [5.0, 5.0, 5.0], [0.75, 0.5, 0.0]])
        >>> robocache.voxel_downsample(points, voxel_size=1.0)
        array([[0.5 , 0.25, 0.  ],
               [5.  , 5.  , 5.  ]])
    """
    made = _voxel_downsample(
        _argument("points", points),
        _optional("features", features),
        *_numbers("voxel_size", voxel_size, 3),
        *_numbers("origin", origin, 3),
        method,
        _whole("seed", seed),
    )
    taken, of_features = _arrays(made, points, 2)
    return taken if features is None else (taken, of_features)
