"""What the sparse operations have in common on torch's side: results of a size that is data, and their gradients.

How many voxels there are is data, unless a `capacity` says how many rows there shall be: without one, torch.compile breaks
its graph at the call, or takes it in where `torch._dynamo.config.capture_dynamic_output_shape_ops` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import _lib, errors

_dtype_of = _lib.function("voxel_mode_dtype")


def tensors(points: Tensor, made: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """What is not there as an empty tensor: an operator returns no None."""
    return tuple(points.new_empty(0, dtype=torch.int32) if array is None else array for array in made)


def reduced_dtype(reduce: str, dtype: torch.dtype) -> torch.dtype:
    made = getattr(torch, _dtype_of(reduce, _lib.dtype_name(dtype)))
    assert isinstance(made, torch.dtype)
    return made


def refuse_vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
    raise errors.ArgumentError(
        "points: expected no vmap, since each call has voxels of its own number; pass the clouds as [B, N, 3]"
    )


# ---- Gradients ----
# Each row takes what it gave; all of it is gathered, or put to rows of which no two are the same, but for the least row of
# those that tie: so it is the same on every run.


def of_voxels(array: Tensor, voxel: Tensor, absent: int = 0) -> Tensor:
    """array[voxel], and `absent` for -1."""
    padded = torch.cat([array, array.new_full((1, *array.shape[1:]), absent)])
    return padded.index_select(0, torch.where(voxel < 0, len(array), voxel))


def to_rows(gradient: Tensor, row: Tensor, count: int) -> Tensor:
    """[count, F], row row[i] being gradient[i]; -1 goes nowhere."""
    row = torch.where(row < 0, count, row).long()
    return gradient.new_zeros(count + 1, gradient.shape[-1]).index_copy(0, row, gradient)[:count]


def _least_row(candidates: Tensor, voxel: Tensor, voxels: int, largest: bool = False) -> Tensor:
    """[voxels, F]: of the rows that are candidates [N, F] the least of each voxel, or the largest."""
    count = len(voxel)
    rows = torch.arange(count, device=voxel.device)[:, None].expand_as(candidates)
    nobody = -1 if largest else count
    voxel = torch.where(voxel < 0, voxels, voxel).long()[:, None].expand_as(candidates)
    made = rows.new_full((voxels + 1, candidates.shape[1]), nobody)
    return made.scatter_reduce(0, voxel, torch.where(candidates, rows, nobody), "amax" if largest else "amin")[:voxels]


def mean_gradient(source: Tensor, counts: Tensor, kept: Tensor, gradient: Tensor) -> Tensor:
    """As :func:`reduce_gradient`, of a mean."""
    wide = of_voxels(gradient, kept).to(torch.float64 if source.dtype == torch.float64 else torch.float32)
    return (wide / of_voxels(counts, kept, absent=1)[:, None]).to(source.dtype)


def reduce_gradient(reduce: str, source: Tensor, out: Tensor, counts: Tensor, kept: Tensor, gradient: Tensor) -> Tensor:
    """Of source [N, F], kept [N] naming the row of out [M, F] that each row went into, or -1."""
    if reduce == "mean":
        return mean_gradient(source, counts, kept, gradient)
    at_row = of_voxels(gradient, kept)
    if reduce == "sum":
        return at_row.to(source.dtype)
    candidates = (kept >= 0)[:, None].expand_as(source)
    if reduce in ("min", "max"):
        of_row = of_voxels(out, kept)
        same = (source == of_row) & (source.signbit() == of_row.signbit())  # -0 is below +0
        candidates = candidates & (same | (source.isnan() & of_row.isnan()))
    chosen = _least_row(candidates, kept, len(out), largest=reduce == "last")
    rows = torch.arange(len(source), device=source.device)[:, None]
    return torch.where(rows == of_voxels(chosen, kept, absent=-1), at_row, 0).to(source.dtype)
