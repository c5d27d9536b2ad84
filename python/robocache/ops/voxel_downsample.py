"""voxel_downsample: returns one point for each occupied voxel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, overload

from .. import _lib
from ._call import (
    argument,
    arrays_of,
    by_dispatcher,
    goes_by_torch,
    has_hidden_memory,
    optional,
    refuse_tangents,
    three,
    whole,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._call import Array

_downsample = _lib.function("voxel_downsample")


class _Size(TypedDict):
    voxel_size: float | Sequence[float]


class _Options(_Size, total=False):
    """What voxel_downsample takes by name, for its overloads."""

    method: str
    seed: int | None
    origin: float | Sequence[float]


@overload
def voxel_downsample(points: Array, features: None = ..., **options: Unpack[_Options]) -> Array: ...
@overload
def voxel_downsample(points: Array, features: Array, **options: Unpack[_Options]) -> tuple[Array, Array]: ...
@overload
def voxel_downsample(points: Any, features: Any = ..., **options: Unpack[_Options]) -> Any: ...
def voxel_downsample(
    points: Any,
    features: Any = None,
    *,
    voxel_size: float | Sequence[float],
    method: str = "centroid",
    seed: int | None = None,
    origin: float | Sequence[float] = 0,
) -> Any:
    """Returns one point for each occupied voxel, in the order of the voxels' first points.

    Args:
        points: ``[N, 3 + C]``, float32 or float64; x, y, z first. A point that is not finite, or more than 2^62 voxels from
            `origin`, is left out.
        features: ``[N, F]``; if None, the columns 3.. of `points` are the features, and the result has them too.
        voxel_size: a number or three, in the points' unit.
        method: ``"centroid"``, the mean of points and features; ``"first"``, the first point of each voxel in input
            order; ``"random"``, one of its points by `seed`.
        seed: an int, for ``"random"``: the same seed and rows give the same points, on any device.
        origin: a number or three: a corner of some cell.

    Returns:
        ``[M, 3 + C]``; with `features` the tuple ``([M, 3], [M, F])``. It has the dtype, framework and device of `points`, but
        the mean of integer features is float32. The whole contract is src/robocache/points/voxelize_sparse/voxel_downsample.hpp. On
        CUDA the call waits for the device once, to learn M.

    Raises:
        ArgumentError, ArgumentTypeError: the error names the argument, what was expected and what came.
        DeviceError: the device failed.

    Example:
        >>> points = np.array([[0.25, 0.0, 0.0], [5.0, 5.0, 5.0], [0.75, 0.5, 0.0]])
        >>> robocache.voxel_downsample(points, voxel_size=1.0)
        array([[0.5 , 0.25, 0.  ],
               [5.  , 5.  , 5.  ]])
    """
    size, corner = three("voxel_size", voxel_size, scalar=True), three("origin", origin, scalar=True)
    seed = None if seed is None else whole("seed", seed)

    def named() -> dict[str, Any]:
        return {"points": points, "features": features, "method": method}

    refuse_tangents(named)
    made: list[Any] | None = None
    if not goes_by_torch(points, features):
        try:
            like = argument("points", points)
            arrays = _downsample(like, optional("features", features), *size, *corner, method, seed)
            made = [x if x is None else _lib.in_framework_of(points, x) for x in arrays_of(arrays, like, 2)]
        except Exception as error:
            if not has_hidden_memory(error, named()):
                raise
    if made is None:
        from ._torch import voxel_downsample as of_torch  # defines torch's operator, so not before it is wanted

        made = by_dispatcher(of_torch.voxel_downsample, named, points, features, size, corner, method, seed)
    return made[0] if features is None else (made[0], made[1])
