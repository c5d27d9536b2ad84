"""Point clouds into dense grids of voxels."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import _lib, errors
from .ops import _argument, _memory_is_hidden, _optional, _writable

_voxelize = _lib.function("voxelize_pointcloud")
_array_of = _lib.function("array_of")
_NUMBERS = int, float, np.number


def voxelize_pointcloud(
    points: Any,
    features: Any = None,
    *,
    grid_min: Sequence[float],
    voxel_size: float | Sequence[float],
    grid_size: Sequence[int],
    mode: str | Sequence[str] = "occupancy",
    lengths: Any = None,
    batch_offsets: Any = None,
    fill: float = 0,
    quantum: float | None = None,
    determinism: str = "gpu_to_gpu",
    return_dropped: bool = False,
    out: Any = None,
) -> Any:
    """Points into a dense grid of voxels, any number of results in one pass over the points.

    A point's voxel is ``floor((p - grid_min) / voxel_size)``, in the points' own type; points outside the grid, NaN and
    infinite ones are in none.

    Args:
        points: ``[N, 3]``, or ``[N, 3 + C]`` whose further columns are the features where `features` is None; ``[B, N,
            ...]`` for B clouds. float32 or float64 (UTM coordinates need it). Any stride from row to row.
        features: ``[N, F]`` or ``[B, N, F]``: float64/32/16, bfloat16, bool, integers of 8 to 32 bits, int64.
        grid_min: the grid's lowest corner, x, y, z.
        voxel_size: one number, or three.
        grid_size: voxels along x, y, z.
        mode: one of these, or a list of them for a dict of results:
            ``"occupancy"`` bool, ``"count"`` int32; ``"occupancy_bits"`` uint32 ``[X, Y, ceil(Z / 32)]``, z in word
            z // 32, bit z % 32;
            ``"sum"``, ``"mean"``, ``"min"``, ``"max"``, ``"first"``, ``"last"`` of the features, in their dtype; of
            integers sums are int64 and means float32. -0 is below +0, NaN wins.
        lengths: ``[B]`` int32/int64, the points of each cloud of ``[B, N, ...]`` that exist.
        batch_offsets: ``[B + 1]`` int32/int64 for points ``[N, ...]``: cloud b has the rows from ``batch_offsets[b]`` up
            to ``batch_offsets[b + 1]``.
        fill: what a voxel without points holds in mean, min, max, first and last; the other modes hold 0.
        quantum: sums and means of floats add up in multiples of this power of two instead of each voxel's own quantum,
            which saves a pass; beyond 2^63 of them a sum is NaN.
        determinism: what is asked of the bits: ``"gpu_to_gpu"`` (the same on every run, GPU and CPU), ``"run_to_run"`` or
            ``"not_guaranteed"``. Every result satisfies the first: sums are exact integers, whatever the order.
        return_dropped: return ``(out, dropped)``, the number of points in no voxel: int64 ``[B]``, or ``[]`` for one cloud.
        out: where to write, a dense array; for a list of modes a dict of them.

    Returns:
        ``[X, Y, Z]``, of features ``[X, Y, Z, F]``, with B in front for a batch; framework and device of the points. A
        dict by mode, in the order asked, where `mode` is a list. The whole contract is
        src/robocache/ops/voxelize/voxelize.hpp, the rules are 25 to 29 of docs/rules.md.

    Raises:
        ArgumentError, ArgumentTypeError: naming the argument, what was expected and what came.
        DeviceError: the device refused, or has not the memory for the grid.

    Example:
        >>> points = np.array([[0.1, 0.2, 0.3, 10.0], [0.4, 0.1, 0.2, 30.0], [-1.0, 0.0, 0.0, 50.0]])
        >>> out, dropped = robocache.voxelize_pointcloud(
        ...     points, grid_min=(0, 0, 0), voxel_size=0.5, grid_size=(2, 1, 1), mode=["count", "mean"], return_dropped=True)
        >>> out["count"].ravel(), out["mean"].ravel(), dropped
        (array([2, 0], dtype=int32), array([20.,  0.]), array(1))
    """
    several = not isinstance(mode, str)
    modes = _modes(mode) if several else (mode,)
    options = (
        *_three("grid_min", grid_min),
        *_three("voxel_size", voxel_size, scalar=True),
        *_three("grid_size", grid_size, whole=True),
        _number("fill", fill),
        None if quantum is None else _number("quantum", quantum),
        determinism,
    )
    outs = [] if out is None else _outs(out, modes) if several else [_writable("out", out)]
    count = (0 if outs else len(modes)) + return_dropped
    torch = _lib.torch_module()
    hidden = _goes_by_torch(torch, points if features is None else features)
    if not hidden:
        arrays = _argument("points", points), _optional("features", features)
        further = _optional("lengths", lengths), _optional("batch_offsets", batch_offsets)
        try:
            made = _voxelize(*arrays, *further, *options, return_dropped, len(modes), len(outs), *modes, *outs)
        except Exception:
            if torch is None or not _memory_is_hidden(_named(points, features, lengths, batch_offsets, modes, outs)):
                raise
            hidden = True
    if hidden:
        made = _by_dispatcher(points, features, lengths, batch_offsets, options, modes, return_dropped, outs)
    else:
        made = [made] if count == 1 else [_array_of(made, arrays[0], place) for place in range(count)]
        made = [_lib.in_framework_of(points, array) for array in made]
    if out is None:
        out = dict(zip(modes, made, strict=False)) if several else made[0]
    return (out, made[-1]) if return_dropped else out


def _goes_by_torch(torch: Any, *arrays: Any) -> bool:
    """Whether torch traces a graph, or records gradients of these arrays."""
    return torch is not None and (
        torch.compiler.is_compiling()
        or torch.autograd.forward_ad._current_level >= 0
        or (torch.is_grad_enabled() and any(getattr(array, "requires_grad", False) for array in arrays))
    )


def _by_dispatcher(points: Any, features: Any, lengths: Any, batch_offsets: Any, *rest: Any) -> list[Any]:
    from . import torch_ops, torch_voxels  # define torch's operators, so not before torch is there and they are wanted

    if torch_voxels.torch.compiler.is_compiling():
        return torch_voxels.voxelize_pointcloud(points, features, lengths, batch_offsets, *rest)
    try:
        return torch_voxels.voxelize_pointcloud(points, features, lengths, batch_offsets, *rest)
    except Exception:
        _, modes, _, outs = rest
        torch_ops.check_memory(_named(points, features, lengths, batch_offsets, modes, outs))
        raise


def _named(points: Any, features: Any, lengths: Any, batch_offsets: Any, modes: Any, outs: Any) -> dict[str, Any]:
    named = {"points": points, "features": features, "lengths": lengths, "batch_offsets": batch_offsets}
    return named | {f"out[{mode!r}]": array for mode, array in zip(modes, outs, strict=False)}


def _modes(mode: Any) -> tuple[str, ...]:
    if not isinstance(mode, Sequence) or not all(isinstance(one, str) for one in mode):
        raise errors.ArgumentTypeError(f"mode: expected a name or a list of names, got {mode!r}")
    return tuple(mode)


def _three(name: str, value: Any, *, scalar: bool = False, whole: bool = False) -> list[Any]:
    """x, y and z of an argument, as Python's numbers."""
    convert = _whole if whole else _number
    if scalar and (isinstance(value, _NUMBERS) or getattr(value, "ndim", None) == 0):
        return [convert(name, value)] * 3
    expected = "a number, or three for x, y, z" if scalar else "three numbers, for x, y, z"
    try:
        along = list(value)
    except TypeError:
        raise errors.ArgumentTypeError(f"{name}: expected {expected}, got {type(value).__name__}") from None
    if len(along) != 3:
        raise errors.ArgumentError(f"{name}: expected {expected}, got {len(along)}")
    return [convert(name, one) for one in along]


def _number(name: str, value: Any) -> float:
    if type(value) in (int, float):
        return value
    if isinstance(value, str | bool):
        raise errors.ArgumentTypeError(f"{name}: expected a number, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return float(value)
    except (TypeError, ValueError):
        raise errors.ArgumentTypeError(f"{name}: expected a number, got {value!r}") from None


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise errors.ArgumentTypeError(f"{name}: expected whole numbers, got {value!r}") from None


def _outs(out: Any, modes: tuple[str, ...]) -> list[Any]:
    if not isinstance(out, Mapping) or set(out) != set(modes):
        got = sorted(map(str, out)) if isinstance(out, Mapping) else type(out).__name__
        raise errors.ArgumentError(f"out: expected a dict with an array for each of {', '.join(modes)}, got {got}")
    return [_writable(f"out[{mode!r}]", out[mode]) for mode in modes]
