"""voxelize_sparse: finds the voxels that contain points; the grid itself is never stored."""

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
    from typing_extensions import NamedTuple  # one that can be generic; apache-tvm-ffi brings it

if TYPE_CHECKING:
    from typing_extensions import Unpack

_voxelize = SparseOperation("voxelize_sparse")


class SparseVoxels(NamedTuple, Generic[Array]):
    """The result of :func:`voxelize_sparse`: M voxels, or `capacity` rows of which the first `num_voxels` are voxels."""

    coords: Array
    """int32 ``[M, 3]``, x, y, z (or z, y, x); ``[M, 4]`` with the cloud in front where there are clouds."""
    features: Array
    """``[M, F]``, or ``[M, P, F]`` where `reduce` is None."""
    counts: Array
    """int32 ``[M]``, points in the voxel, at most `max_points_per_voxel`."""
    point_to_voxel: Array
    """int32 ``[N]`` or ``[B, N]``, the row of `coords` of each point, or -1."""
    dropped: Array
    """int64, points that are in no voxel; ``[B]`` where there are clouds."""
    num_voxels: Array | None
    """int64, the number of voxels found; above `capacity` some were left out. None without `capacity`."""


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
    """Finds the voxels that points lie in, and what each contains; the grid itself is never stored.

    Args:
        points: ``[N, 3 + C]`` or ``[B, N, 3 + C]``, float32 or float64; x, y, z first.
        features: ``[N, F]`` or ``[B, N, F]``; None: the columns 3.. of `points`.
        voxel_size: a number or three, in the points' unit.
        point_range: ``(x0, y0, z0, x1, y1, z1)``; points outside are dropped, those on an upper end too. Cells
            count from its lower corner, and their number along an axis is rounded. None: cells are
            ``floor(p / voxel_size)``, negative ones too, and points in cells beyond int32 are dropped.
        lengths: ``[B]`` int32/int64, rows of each cloud ``[B, N, ...]`` that are points.
        batch_offsets: ``[B + 1]`` int32/int64, rows ``[offsets[b], offsets[b + 1])`` of ``[N, ...]`` are cloud b.
        max_voxels: keep so many of each cloud, those whose first point comes earliest.
        max_points_per_voxel: keep the first so many points of each voxel.
        capacity: the number of rows of coords, features and counts. The call then does not wait for the device, and
            `num_voxels` says how many rows are in use; the others have coords -1, count 0 and features 0. None: as many
            rows as voxels; a call on CUDA then waits once.
        reduce: ``"mean"``, ``"sum"``, ``"min"``, ``"max"``, ``"first"`` or ``"last"`` of each voxel's points; None
            gathers the points themselves in input order, zeros after the last: `features`, or all columns of `points`.
        order: of the voxels: ``"first"``, by their first points; ``"linear"``, by (cloud, x, y, z); ``"morton"``.
        coord_order: ``"xyz"``, or ``"zyx"`` as spconv and mmcv have it.

    Returns:
        :class:`SparseVoxels`, of points' framework and device. The whole contract is
        src/robocache/points/voxelize_sparse/voxelize_sparse.hpp. The same bits on every run, on the CPU and on CUDA.
        Gradients go to `features`, or to `points` as far as its columns are features or gathered.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        DeviceError: the device refused.

    Example:
        >>> points = np.array([[0.1, 0.2, 0.3, 7.0], [5.0, 5.0, 5.0, 1.0], [0.4, 0.2, 0.1, 9.0]])
        >>> voxels = robocache.voxelize_sparse(points, voxel_size=1.0)
        >>> voxels.coords, voxels.features
        (array([[0, 0, 0],
               [5, 5, 5]], dtype=int32), array([[8.],
               [1.]]))
    """
    given = {"points": points, "features": features, "voxel_size": voxel_size, **options}
    if options.get("point_range") is not None:
        given["point_range"] = _range(options["point_range"])
    reduced, limited = given.get("reduce", "mean") is not None, given.get("max_points_per_voxel") is not None
    for_gradients = [None if reduced and limited else False, False if reduced else None]
    num_voxels = False if given.get("capacity") is None else None  # False: not asked for
    results = call(_voxelize, [None, None, None, None, None, num_voxels, *for_gradients], **given)
    return SparseVoxels(*results[:6])


def _range(value: Any) -> list[float]:
    expected = "point_range: expected x0, y0, z0, x1, y1, z1, got"
    try:
        corners = list(value)
    except TypeError:
        raise errors.ArgumentTypeError(f"{expected} {type(value).__name__}") from None
    if len(corners) != 6:
        raise errors.ArgumentError(f"{expected} {len(corners)} numbers")
    return [number("point_range", one) for one in corners]
