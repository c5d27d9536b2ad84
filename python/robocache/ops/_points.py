"""The operations on points for torch's transforms: shapes of results, gradients, vmap.

The number of occupied voxels depends on the data, unless `capacity` fixes the number of rows. Without it, torch.compile breaks
its graph at the call, unless `torch._dynamo.config.capture_dynamic_output_shape_ops` is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import _lib, errors
from .._operation import Operation
from ._streams import to_front, work_type

_dtype_of = _lib.function("voxel_mode_dtype")

_WITHOUT_FEATURES = "occupancy", "occupancy_bits", "count"


def _reduced_dtype(reduce: str, dtype: Any) -> str:
    """Returns the dtype of reduced features."""
    return str(_dtype_of(reduce, None if dtype is None else _lib.dtype_name(dtype)))


def _cloud_shape(call: Mapping[str, Any]) -> tuple[Any, ...]:
    offsets = call["batch_offsets"]
    return tuple(call["points"].shape[:-2]) if offsets is None else (offsets.shape[0] - 1,)


class VoxelizeOperation(Operation):
    """Dense grids: the results are one grid for each mode, then the number of dropped points."""

    gradients_of = ("features",)
    has_backward = True

    def for_torch(self, call: dict[str, Any]) -> dict[str, Any]:
        """Returns the call with columns 3.. of points as features. The positions of points have no gradient."""
        points, features = call["points"], call["features"]
        if not hasattr(points, "detach") or points.ndim == 0:
            return call  # the check of tensors, or the library, refuses it
        if features is None and points.shape[-1] > 3:
            features = points[..., 3:]
        return {**call, "points": points[..., :3].detach(), "features": features}

    def shapes(self, call: Mapping[str, Any], count: int) -> list[tuple[Any, Any]]:
        features, clouds = call["features"], _cloud_shape(call)
        x, y, z = call["grid_size"]
        shapes: list[tuple[Any, Any]] = []
        for mode in call["mode"]:
            grid = (x, y, (z + 31) // 32) if mode == "occupancy_bits" else (x, y, z)
            columns = () if mode in _WITHOUT_FEATURES or features is None else features.shape[-1:]
            shapes.append(
                ((*clouds, *grid, *columns), _reduced_dtype(mode, None if features is None else features.dtype))
            )
        return [*shapes, (clouds, "int64")]

    def count_of_outs(self, call: Mapping[str, Any], count: int) -> int:
        return count - 1

    def gradient_shapes(self, call: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        features = call["features"]
        return [(features.shape, work_type(features))]

    def results_to_keep(self, call: Mapping[str, Any], results: Sequence[Any]) -> list[Any]:
        return [out for mode, out in zip(call["mode"], results, strict=False) if mode in ("min", "max")]

    def add_gradients(
        self, call: Mapping[str, Any], out_gradients: Sequence[Any], kept: Sequence[Any], gradients: Sequence[Any]
    ) -> None:
        extrema = iter(kept)
        for mode, out_gradient in zip(call["mode"], out_gradients, strict=True):
            result_of_mode = next(extrema) if mode in ("min", "max") else None
            if mode in _WITHOUT_FEATURES:
                continue
            if mode == "mean":
                call_of_mode = {**call, "mode": ["count"], "fill": 0, "quantum": None}
                result_of_mode = self.run(call_of_mode, [None, False])[0]
            call_of_mode = {**call, "mode": [mode], "fill": 0, "quantum": None}
            arguments = self.flat(call_of_mode, [out_gradient.contiguous()])
            self._backward(*arguments, len(gradients), *gradients, result_of_mode)

    def fold(self, call: Mapping[str, Any], dims: Mapping[str, Any], size: int) -> tuple[dict[str, Any], Any]:
        if call["batch_offsets"] is not None:
            raise errors.ArgumentError("batch_offsets: expected none under vmap; pass points [B, N, 3] with lengths")
        points = to_front(call["points"], dims["points"], size)
        is_batched = points.ndim == 4
        rows = points.shape[1] if is_batched else None
        folded = {**call, "points": points.flatten(0, 1) if is_batched else points}
        if call["lengths"] is not None:
            folded["lengths"] = to_front(call["lengths"], dims["lengths"], size).reshape(-1)
        if call["features"] is not None:
            features = to_front(call["features"], dims["features"], size)
            folded["features"] = features.flatten(0, 1) if is_batched else features
        return folded, lambda array: array if rows is None else array.reshape(size, rows, *array.shape[1:])

    def fold_result(self, call: Mapping[str, Any], array: Any, dim: int | None, size: int) -> Any:
        array = to_front(array, dim, size)
        return array.flatten(0, 1) if array.ndim == 6 else array  # [calls, clouds, X, Y, Z, F]


class SparseOperation(Operation):
    """Occupied voxels."""

    gradients_of = "points", "features"

    def shapes(self, call: Mapping[str, Any], count: int) -> list[tuple[Any, Any]]:
        points, features, reduce = call["points"], call["features"], call["reduce"]
        most, capacity, clouds = call["max_points_per_voxel"], call["capacity"], _cloud_shape(call)
        voxels = _new_size() if capacity is None else capacity
        source = points if features is None else features
        points_per_voxel = 0
        if reduce is None:
            points_per_voxel = _new_size() if most is None else most
            out: tuple[Any, Any] = (voxels, points_per_voxel, source.shape[-1]), source.dtype
        else:
            columns = points.shape[-1] - 3 if features is None else features.shape[-1]
            out = (voxels, columns), _reduced_dtype(reduce, source.dtype)
        return [
            ((voxels, 3 + len(clouds)), "int32"),
            out,
            ((voxels,), "int32"),
            (points.shape[:-1], "int32"),
            (clouds, "int64"),
            ((), "int64"),
            (points.shape[:-1], "int32"),
            ((voxels, points_per_voxel), "int32"),
        ]

    def results_to_keep(self, call: Mapping[str, Any], results: Sequence[Any]) -> list[Any]:
        _, out, counts, point_to_voxel, _, _, kept, rows = results
        return [out, counts, point_to_voxel if kept is None else kept, rows]

    def gradients(self, call: Mapping[str, Any], kept: Sequence[Any], out_gradients: Sequence[Any]) -> dict[str, Any]:
        gradient = out_gradients[1]
        if gradient is None:
            return {}
        out, counts, voxel_of_point, rows = kept
        features, reduce = call["features"], call["reduce"]
        source = call["points"] if features is None else features
        flat = source.reshape(-1, source.shape[-1])
        if reduce is None:
            result = to_rows(gradient.reshape(-1, flat.shape[1]), rows.reshape(-1), len(flat))
        elif features is not None:
            result = reduce_gradient(reduce, flat, out, counts, voxel_of_point.reshape(-1), gradient)
        else:
            result = reduce_gradient(reduce, flat[:, 3:], out, counts, voxel_of_point.reshape(-1), gradient)
            result = result.new_zeros(flat.shape).index_copy(1, _columns(result, 3), result)
        return {"points" if features is None else "features": result.reshape(source.shape)}

    def fold(self, call: Mapping[str, Any], dims: Mapping[str, Any], size: int) -> tuple[dict[str, Any], Any]:
        raise _no_vmap()


class DownsampleOperation(Operation):
    """One point for each occupied voxel."""

    gradients_of = "points", "features"

    def shapes(self, call: Mapping[str, Any], count: int) -> list[tuple[Any, Any]]:
        points, features, voxels = call["points"], call["features"], _new_size()
        reduce = "mean" if call["method"] == "centroid" else "first"
        reduced: tuple[Any, Any] = (0,), "int32"
        if features is not None:
            reduced = (voxels, features.shape[-1]), _reduced_dtype(reduce, features.dtype)
        return [
            ((voxels, points.shape[-1] if features is None else 3), points.dtype),
            reduced,
            ((voxels,), "int32"),
            (points.shape[:1], "int32"),
            ((voxels,), "int32"),
        ]

    def results_to_keep(self, call: Mapping[str, Any], results: Sequence[Any]) -> list[Any]:
        return list(results[2:])

    def gradients(self, call: Mapping[str, Any], kept: Sequence[Any], out_gradients: Sequence[Any]) -> dict[str, Any]:
        points, features = call["points"], call["features"]
        counts, point_to_voxel, row = kept

        def gradient_of(source: Any, out_gradient: Any) -> Any:
            if call["method"] == "centroid":
                return mean_gradient(source, counts, point_to_voxel, out_gradient)
            return to_rows(out_gradient, row, len(source))

        gradients = {}
        if out_gradients[0] is not None:
            part = gradient_of(points[:, : 3 if features is not None else None], out_gradients[0])
            gradients["points"] = part.new_zeros(points.shape).index_copy(1, _columns(part, 0), part)
        if features is not None and out_gradients[1] is not None and features.is_floating_point():
            gradients["features"] = gradient_of(features, out_gradients[1])
        return gradients

    def fold(self, call: Mapping[str, Any], dims: Mapping[str, Any], size: int) -> tuple[dict[str, Any], Any]:
        raise _no_vmap()


class TsdfOperation(Operation):
    """Writes only to grid and weights."""

    writes_in_place = True
    results = "grid", "weights"

    def for_torch(self, call: dict[str, Any]) -> dict[str, Any]:
        """Returns the call with the sensors' poses and intrinsics, numbers of any kind, as tensors."""
        import torch

        def tensor(value: Any) -> Any:
            if value is None or isinstance(value, torch.Tensor):
                return value if value is None else value.to(torch.float64)
            return torch.as_tensor(value, dtype=torch.float64, device="cpu")

        return {**call, "T_world_sensor": tensor(call["T_world_sensor"]), "intrinsics": tensor(call["intrinsics"])}


def _new_size() -> Any:
    import torch

    return torch.library.get_ctx().new_dynamic_size()


def _columns(array: Any, first: int) -> Any:
    import torch

    return torch.arange(first, first + array.shape[1], device=array.device)


def _no_vmap() -> errors.ArgumentError:
    return errors.ArgumentError(
        "points: expected no vmap, since the number of voxels differs between calls; pass the clouds as [B, N, 3]"
    )


# ---- Gradients of sparse results ----
# A gradient is gathered from voxels to points, or written to distinct rows. If rows tie, the least row gets the gradient, so the
# result is the same on every run.


def at_voxels(array: Any, voxel: Any, fill: int = 0) -> Any:
    """Returns array[voxel], with `fill` where voxel is -1."""
    import torch

    padded = torch.cat([array, array.new_full((1, *array.shape[1:]), fill)])
    return padded.index_select(0, torch.where(voxel < 0, len(array), voxel))


def to_rows(gradient: Any, row: Any, count: int) -> Any:
    """Returns [count, F]: gradient[i] stands in row `row[i]`. A gradient with row -1 is dropped."""
    import torch

    row = torch.where(row < 0, count, row).long()
    return gradient.new_zeros(count + 1, gradient.shape[-1]).index_copy(0, row, gradient)[:count]


def _least_row(eligible: Any, voxel: Any, voxel_count: int, largest: bool = False) -> Any:
    """Returns [voxel_count, F]: for each voxel the least, or the largest, of the rows that are eligible [N, F]."""
    import torch

    count = len(voxel)
    rows = torch.arange(count, device=voxel.device)[:, None].expand_as(eligible)
    no_row = -1 if largest else count
    voxel = torch.where(voxel < 0, voxel_count, voxel).long()[:, None].expand_as(eligible)
    chosen = rows.new_full((voxel_count + 1, eligible.shape[1]), no_row)
    chosen = chosen.scatter_reduce(0, voxel, torch.where(eligible, rows, no_row), "amax" if largest else "amin")
    return chosen[:voxel_count]


def mean_gradient(source: Any, counts: Any, voxel: Any, gradient: Any) -> Any:
    """Returns the gradient of source [N, F] for a mean, as :func:`reduce_gradient`."""
    import torch

    row_gradients = at_voxels(gradient, voxel).to(torch.float64 if source.dtype == torch.float64 else torch.float32)
    return (row_gradients / at_voxels(counts, voxel, fill=1)[:, None]).to(source.dtype)


def reduce_gradient(reduce: str, source: Any, out: Any, counts: Any, voxel: Any, gradient: Any) -> Any:
    """Returns the gradient of source [N, F]. voxel [N] is the row of out [M, F] that each row was reduced into, or -1."""
    import torch

    if reduce == "mean":
        return mean_gradient(source, counts, voxel, gradient)
    row_gradients = at_voxels(gradient, voxel)
    if reduce == "sum":
        return row_gradients.to(source.dtype)
    candidates = (voxel >= 0)[:, None].expand_as(source)
    if reduce in ("min", "max"):
        row_results = at_voxels(out, voxel)
        is_equal = (source == row_results) & (source.signbit() == row_results.signbit())  # -0 is below +0
        candidates = candidates & (is_equal | (source.isnan() & row_results.isnan()))
    chosen = _least_row(candidates, voxel, len(out), largest=reduce == "last")
    rows = torch.arange(len(source), device=source.device)[:, None]
    return torch.where(rows == at_voxels(chosen, voxel, fill=-1), row_gradients, 0).to(source.dtype)
