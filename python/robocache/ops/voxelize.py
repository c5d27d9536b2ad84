"""voxelize_pointcloud: converts point clouds to dense grids of voxels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from .. import errors
from .._call import call
from .._check import flag
from ._points import VoxelizeOperation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._operation import Array

_voxelize = VoxelizeOperation("voxelize_pointcloud")


class _Grid(TypedDict):
    grid_min: Sequence[float]
    voxel_size: float | Sequence[float]
    grid_size: Sequence[int]


class _Options(_Grid, total=False):
    lengths: Any
    batch_offsets: Any
    fill: float
    quantum: float | None
    out: Any


@overload
def voxelize_pointcloud(
    points: Array,
    features: Any = ...,
    *,
    mode: str = ...,
    return_dropped: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Array: ...
@overload
def voxelize_pointcloud(
    points: Array, features: Any = ..., *, mode: str = ..., return_dropped: Literal[True], **options: Unpack[_Options]
) -> tuple[Array, Array]: ...
@overload
def voxelize_pointcloud(
    points: Array,
    features: Any = ...,
    *,
    mode: list[str] | tuple[str, ...],
    return_dropped: Literal[False] = ...,
    **options: Unpack[_Options],
) -> dict[str, Array]: ...
@overload
def voxelize_pointcloud(
    points: Array,
    features: Any = ...,
    *,
    mode: list[str] | tuple[str, ...],
    return_dropped: Literal[True],
    **options: Unpack[_Options],
) -> tuple[dict[str, Array], Array]: ...
@overload
def voxelize_pointcloud(
    points: Any,
    features: Any = ...,
    *,
    mode: str | Sequence[str] = ...,
    return_dropped: bool = ...,
    **options: Unpack[_Options],
) -> Any: ...
@_voxelize.documents
def voxelize_pointcloud(
    points: Any,
    features: Any = None,
    *,
    grid_min: Sequence[float],
    voxel_size: float | Sequence[float],
    grid_size: Sequence[int],
    mode: str | Sequence[str] = "occupancy",
    return_dropped: bool = False,
    out: Any = None,
    **options: Any,
) -> Any:
    """Reduces points to a dense grid of voxels, in any number of modes, in one pass over the points.

    A point's voxel is ``floor((p - grid_min) / voxel_size)``, in the points' dtype. Points outside the grid, NaN and infinite
    points are in no voxel; a point on a face is in the upper one. The result has the same bits on every run and GPU, on the CPU
    and on any number of threads.

    Args:
        points: ``[N, 3]``, or ``[N, 3 + C]``, whose columns from 3 on are the features if `features` is None; ``[B, N, ...]``
            for B clouds. float32, or float64 as UTM coordinates need. Any stride from row to row.
        features: ``[N, F]`` or ``[B, N, F]``: float64/32/16, bfloat16, bool, integers of 8 to 32 bits, int64.
        grid_min: the grid's lowest corner, x, y, z.
        voxel_size: one number, or three.
        grid_size: the number of voxels along x, y, z; may be 0.
        mode: one of these, or a list of them for a dict of results: ``"occupancy"`` bool, ``"count"`` int32;
            ``"occupancy_bits"`` uint32 ``[X, Y, ceil(Z / 32)]``, z in word z // 32, bit z % 32; ``"sum"``, ``"mean"``,
            ``"min"``, ``"max"``, ``"first"``, ``"last"`` of the features, in their dtype; sums of integers are int64, means
            float32. -0 is below +0. A NaN makes the result NaN.
        lengths: ``[B]`` int32/int64, the number of valid points in each cloud of ``[B, N, ...]``.
        batch_offsets: ``[B + 1]`` int32/int64 for points ``[N, ...]``: cloud b has the rows from ``batch_offsets[b]`` up to
            ``batch_offsets[b + 1]``. The CPU refuses wrong lengths and offsets. CUDA clamps lengths; wrong offsets give
            undefined results, without reads outside the arrays.
        fill: the value of a voxel without points in mean, min, max, first and last; an integer dtype must hold it exactly. In
            the other modes it is 0, and a call with only those modes refuses `fill`.
        quantum: sums and means of floats add multiples of this power of two, instead of each voxel's own quantum, which saves a
            pass. Each feature is off by at most half of it. A sum beyond 2^63 multiples is NaN. Refused if no mode sums floats.
        return_dropped: True: return ``(out, dropped)``; dropped is the number of points in no voxel, int64 ``[B]``, or ``[]``
            for one cloud.
        out: the dense array to write to; for a list of modes a dict of arrays.

    Returns:
        ``[X, Y, Z]``, for features ``[X, Y, Z, F]``, with B in front for a batch, row-major, in the framework and on the device
        of the points. If `mode` is a list, a dict by mode in its order. The whole contract is
        src/robocache/points/voxelize/voxelize.hpp; rules 25 to 29 of docs/rules.md apply.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        DeviceError: the device failed, or has too little memory for the grid.

    Example:
        >>> points = np.array([[0.1, 0.2, 0.3, 10.0], [0.4, 0.1, 0.2, 30.0], [-1.0, 0.0, 0.0, 50.0]])
        >>> out, dropped = robocache.voxelize_pointcloud(
        ...     points, grid_min=(0, 0, 0), voxel_size=0.5, grid_size=(2, 1, 1), mode=["count", "mean"], return_dropped=True)
        >>> out["count"].ravel(), out["mean"].ravel(), dropped
        (array([2, 0], dtype=int32), array([20.,  0.]), array(1))
    """
    has_modes = not isinstance(mode, str)
    modes = [mode] if isinstance(mode, str) else _check_modes(mode)
    outs = [None] * len(modes) if out is None else _check_outs(out, modes) if has_modes else [out]
    dropped = None if flag("return_dropped", return_dropped) else False
    *results, dropped = call(
        _voxelize,
        [*outs, dropped],
        points=points,
        features=features,
        mode=modes,
        grid_min=grid_min,
        voxel_size=voxel_size,
        grid_size=grid_size,
        **options,
    )
    if out is None:
        out = dict(zip(modes, results, strict=True)) if has_modes else results[0]
    return (out, dropped) if return_dropped else out


def _check_modes(mode: Any) -> list[str]:
    if not isinstance(mode, Sequence) or not all(isinstance(name, str) for name in mode):
        raise errors.ArgumentTypeError(f"mode: expected a name or a list of names, got {mode!r}")
    return list(mode)


def _check_outs(out: Any, modes: list[str]) -> list[Any]:
    if not isinstance(out, Mapping) or set(out) != set(modes):
        got = sorted(map(str, out)) if isinstance(out, Mapping) else type(out).__name__
        raise errors.ArgumentError(f"out: expected a dict with an array for each of {', '.join(modes)}, got {got}")
    return [out[mode] for mode in modes]
