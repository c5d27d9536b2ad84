"""voxelize_sparse: finds the voxels that contain points, without storing the grid."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, overload

from .. import errors
from .._call import call
from .._check import number
from .._operation import Array
from ._points import SparseOperation

if sys.version_info >= (3, 11):
    from typing import NamedTuple
else:
    from typing_extensions import NamedTuple  # can be generic; apache-tvm-ffi depends on it

if TYPE_CHECKING:
    from typing_extensions import Unpack

_voxelize = SparseOperation("voxelize_sparse")


class SparseVoxels(NamedTuple, Generic[Array]):
    """The result of :func:`voxelize_sparse`: M voxels; with `capacity` M rows, whose first `num_voxels` are voxels."""

    coords: Array
    """int32 ``[M, 3]``, x, y, z (or z, y, x); with several clouds ``[M, 4]`` with the cloud in front."""
    features: Array
    """``[M, F]``, or ``[M, P, F]`` if `reduce` is None."""
    counts: Array
    """int32 ``[M]``, the number of points in the voxel, at most `max_points_per_voxel`."""
    point_to_voxel: Array
    """int32 ``[N]`` or ``[B, N]``, the row of `coords` of each point, or -1."""
    dropped: Array
    """int64, the number of points in no voxel; ``[B]`` with several clouds."""
    num_voxels: Array | None
    """int64, the number of voxels found; if it exceeds `capacity`, some were left out. None without `capacity`."""


class _Size(TypedDict):
    voxel_size: float | Sequence[float]


class _Options(_Size, total=False):
    point_range: Sequence[float] | None
    lengths: Any
    batch_offsets: Any
    max_voxels: int | None
    max_points_per_voxel: int | None
    capacity: int | None
    reduce: str | None
    order: str
    coord_order: str


@overload
def voxelize_sparse(points: Array, features: Any = ..., **options: Unpack[_Options]) -> SparseVoxels[Array]: ...
@overload
def voxelize_sparse(points: Any, features: Any = ..., **options: Unpack[_Options]) -> SparseVoxels[Any]: ...
@_voxelize.documents
def voxelize_sparse(
    points: Any, features: Any = None, *, voxel_size: float | Sequence[float], **options: Any
) -> SparseVoxels[Any]:
    """Finds the voxels that contain points, and reduces or gathers the points of each. The grid is never stored.

    Args:
        points: ``[N, 3 + C]`` or ``[B, N, 3 + C]``, float32 or float64; x, y, z first.
        features: ``[N, F]`` or ``[B, N, F]``; None: the columns 3.. of `points`.
        voxel_size: a number or three, in the points' unit.
        point_range: ``(x0, y0, z0, x1, y1, z1)``. Points outside, or on an upper end, are dropped. Cells are counted from the
            lower corner; their number along an axis is rounded. None: cells are ``floor(p / voxel_size)`` and may be
            negative; points in cells beyond int32 are dropped.
        lengths: ``[B]`` int32/int64, the number of valid points in each cloud of ``[B, N, ...]``.
        batch_offsets: ``[B + 1]`` int32/int64: cloud b is the rows ``[offsets[b], offsets[b + 1])`` of ``[N, ...]``.
        max_voxels: the most voxels of a cloud; the voxels whose first points come earliest are kept.
        max_points_per_voxel: the most points of a voxel; the first ones are kept.
        capacity: the number of rows of coords, features and counts. The call then does not wait for the device. `num_voxels` is
            the number of rows in use; the others have coords -1, count 0 and features 0. None: one row per voxel; a call on
            CUDA then waits once.
        reduce: ``"mean"``, ``"sum"``, ``"min"``, ``"max"``, ``"first"`` or ``"last"`` of each voxel's points. None gathers the
            points in input order, with zeros after the last: `features`, or all columns of `points`.
        order: the order of the voxels: ``"first"``, by their first points; ``"linear"``, by (cloud, x, y, z); ``"morton"``.
        coord_order: ``"xyz"``, or ``"zyx"`` as in spconv and mmcv.

    Returns:
        :class:`SparseVoxels`, in points' framework and on their device, with the same bits on every run, on the CPU and on
        CUDA. The whole contract is src/robocache/points/voxelize_sparse/voxelize_sparse.hpp. Gradients go to `features`, or to
        the columns of `points` that are features or gathered.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        DeviceError: the device failed.

    Example:
        >>> points = np.array([[0.1, 0.2, 0.3, 7.0], [5.0, 5.0, 5.0, 1.0], [0.4, 0.2, 0.1, 9.0]])
        >>> voxels = robocache.voxelize_sparse(points, voxel_size=1.0)
        >>> voxels.coords, voxels.features
        (array([[0, 0, 0],
               [5, 5, 5]], dtype=int32), array([[8.],
               [1.]]))
    """
    if options.get("point_range") is not None:
        options["point_range"] = _check_range(options["point_range"])
    is_reduced, is_limited = options.get("reduce", "mean") is not None, options.get("max_points_per_voxel") is not None
    # For each result None if it is wanted, False if not.
    for_gradients = [None if is_reduced and is_limited else False, False if is_reduced else None]
    wanted = [None] * 5 + [False if options.get("capacity") is None else None, *for_gradients]
    results = call(_voxelize, wanted, points=points, features=features, voxel_size=voxel_size, **options)
    return SparseVoxels(*results[:6])


def _check_range(value: Any) -> list[float]:
    expected = "point_range: expected x0, y0, z0, x1, y1, z1, got"
    try:
        corners = list(value)
    except TypeError:
        raise errors.ArgumentTypeError(f"{expected} {type(value).__name__}") from None
    if len(corners) != 6:
        raise errors.ArgumentError(f"{expected} {len(corners)} numbers")
    return [number("point_range", corner) for corner in corners]
