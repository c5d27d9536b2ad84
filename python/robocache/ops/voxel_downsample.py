"""voxel_downsample: returns one point for each occupied voxel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, overload

from .._call import call
from ._points import DownsampleOperation

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._operation import Array

_downsample = DownsampleOperation("voxel_downsample")


class _Size(TypedDict):
    voxel_size: float | Sequence[float]


class _Options(_Size, total=False):
    method: str
    seed: int | None
    origin: float | Sequence[float]


@overload
def voxel_downsample(points: Array, features: None = ..., **options: Unpack[_Options]) -> Array: ...
@overload
def voxel_downsample(points: Array, features: Array, **options: Unpack[_Options]) -> tuple[Array, Array]: ...
@overload
def voxel_downsample(points: Any, features: Any = ..., **options: Unpack[_Options]) -> Any: ...
@_downsample.documents
def voxel_downsample(
    points: Any,
    features: Any = None,
    *,
    voxel_size: float | Sequence[float],
    origin: float | Sequence[float] = 0,
    **options: Any,
) -> Any:
    """Returns one point for each occupied voxel, in the order of the voxels' first points.

    Args:
        points: ``[N, 3 + C]``, float32 or float64; x, y, z first. Points that are not finite, or more than 2^62 voxels from
            `origin`, are left out.
        features: ``[N, F]``. None: the columns 3.. of `points` are the features, and the result keeps them.
        voxel_size: a number or three, in the points' unit.
        method: ``"centroid"``, the mean of points and features; ``"first"``, the first point of each voxel in input
            order; ``"random"``, one of its points by `seed`.
        seed: an int, for ``"random"``. The same seed and rows give the same points, on any device.
        origin: a corner of some cell: a number or three.

    Returns:
        ``[M, 3 + C]``; with `features` the tuple ``([M, 3], [M, F])``. It has the dtype, framework and device of `points`; only
        the mean of integer features is float32. The whole contract is
        src/robocache/points/voxelize_sparse/voxel_downsample.hpp. On CUDA the call waits for the device once, to learn M.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
        DeviceError: the device failed.

    Example:
        >>> points = np.array([[0.25, 0.0, 0.0], [5.0, 5.0, 5.0], [0.75, 0.5, 0.0]])
        >>> robocache.voxel_downsample(points, voxel_size=1.0)
        array([[0.5 , 0.25, 0.  ],
               [5.  , 5.  , 5.  ]])
    """
    centroid = options.get("method", "centroid") == "centroid"
    # For each result None if it is wanted, False if not.
    for_gradients = [None, None, False] if centroid else [False, False, None]
    results = [None, False if features is None else None, *for_gradients]
    arguments = {"points": points, "features": features, "voxel_size": voxel_size, "origin": origin, **options}
    new_points, new_features, *_ = call(_downsample, results, **arguments)
    return new_points if features is None else (new_points, new_features)
