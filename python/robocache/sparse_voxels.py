"""Voxels of which only those that hold points are stored, and one point for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _lib, errors
from .ops import _argument, _memory_is_hidden, _optional
from .voxels import _goes_by_torch, _number, _three, _whole

_call_voxelize = _lib.function("voxelize_sparse")
_call_downsample = _lib.function("voxel_downsample")
_array_of = _lib.function("array_of")


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
    arrays = {"points": points, "features": features, "lengths": lengths, "batch_offsets": batch_offsets}
    limits = {"max_voxels": max_voxels, "max_points_per_voxel": max_points_per_voxel, "capacity": capacity}
    return SparseVoxels(
        *_run(
            "voxelize_sparse",
            arrays,
            _three("voxel_size", voxel_size, scalar=True),
            *(None if limit is None else _whole(name, limit) for name, limit in limits.items()),
            reduce,
            order,
            coord_order,
            [] if point_range is None else _range(point_range),
        )
    )


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
    taken, of_features = _run(
        "voxel_downsample",
        {"points": points, "features": features},
        _three("voxel_size", voxel_size, scalar=True),
        _three("origin", origin, scalar=True),
        method,
        None if seed is None else _whole("seed", seed),
    )
    return taken if features is None else (taken, of_features)


def _range(value: Any) -> list[Any]:
    try:
        corners = list(value)
    except TypeError:
        raise errors.ArgumentTypeError(
            f"point_range: expected x0, y0, z0, x1, y1, z1, got {type(value).__name__}"
        ) from None
    if len(corners) != 6:
        raise errors.ArgumentError(f"point_range: expected x0, y0, z0, x1, y1, z1, got {len(corners)} numbers")
    return [_number("point_range", one) for one in corners]


def _run(operation: str, arrays: dict[str, Any], *options: Any) -> Any:
    """By the library; by torch's dispatcher where gradients are recorded, a graph is traced or memory is hidden."""
    torch = _lib.torch_module()
    if not _goes_by_torch(torch, *arrays.values()):
        try:
            return _by_library(operation, arrays, *options)
        except Exception:
            if torch is None or not _memory_is_hidden(arrays):
                raise
    from . import torch_sparse_voxels  # defines torch's operators, so not before they are wanted

    return getattr(torch_sparse_voxels, operation)(arrays, *options)


def _by_library(operation: str, arrays: dict[str, Any], *options: Any) -> Any:
    call, count = (call_voxelize, 6) if operation == "voxelize_sparse" else (call_downsample, 2)
    made = call(*arrays.values(), *options)[:count]
    return [None if array is None else _lib.in_framework_of(arrays["points"], array) for array in made]


def call_voxelize(
    points: Any,
    features: Any,
    lengths: Any,
    batch_offsets: Any,
    voxel_size: list,
    max_voxels: int | None,
    max_points_per_voxel: int | None,
    capacity: int | None,
    reduce: str | None,
    order: str,
    coord_order: str,
    point_range: list,
) -> list[Any]:
    """The six arrays of a SparseVoxels, and two for gradients: `kept`, the map without the points that took no part, None
    where that is the map; and the rows that a gather took."""
    argument = _argument("points", points)
    made = _call_voxelize(
        argument,
        _optional("features", features),
        _optional("lengths", lengths),
        _optional("batch_offsets", batch_offsets),
        *voxel_size,
        max_voxels,
        max_points_per_voxel,
        capacity,
        reduce,
        order,
        coord_order,
        *point_range,
    )
    there = [True] * 5 + [capacity is not None, None not in (reduce, max_points_per_voxel), reduce is None]
    return _taken(made, argument, there)


def call_downsample(
    points: Any, features: Any, voxel_size: list, origin: list, method: str, seed: int | None
) -> list[Any]:
    """points, features or None, and for gradients: counts and map of a centroid, else the rows taken."""
    argument = _argument("points", points)
    made = _call_downsample(argument, _optional("features", features), *voxel_size, *origin, method, seed)
    centroid = method == "centroid"
    return _taken(made, argument, [True, features is not None, centroid, centroid, not centroid])


def _taken(made: Any, argument: Any, there: list[bool]) -> list[Any]:
    """The arrays that the library made, None where it makes none."""
    places = iter(range(len(there)))
    return [_array_of(made, argument, next(places)) if one else None for one in there]
