"""What torch's transforms have to know of the operations on streams: results, gradients, vmap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._operation import Operation


class StreamsOperation(Operation):
    """Of one stream."""

    gradients_of = "values", "times", "target_times"
    has_one_result = True

    def shapes(self, call: Mapping[str, Any], count: int) -> list[tuple[Any, Any]]:
        rows = *call["values"].shape[:-2], call["target_times"].shape[-1]
        return [((*rows, call["values"].shape[-1]), call["values"].dtype), (rows, "bool")]

    def count_of_outs(self, call: Mapping[str, Any], count: int) -> int:
        return 1

    def gradient_shapes(self, call: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        batch = (1, *call["values"].shape)[-3]
        return [
            ((batch, *call["values"].shape[-2:]), work_type(call["values"])),
            ((batch, call["times"].shape[-1]), "float64"),
            ((batch, call["target_times"].shape[-1]), "float64"),
        ]

    def fold(self, call: Mapping[str, Any], dims: Mapping[str, Any], size: int) -> tuple[dict[str, Any], Any]:
        batched = call["values"].ndim == (3 if dims["values"] is None else 4)
        values = fold_values(call["values"], dims["values"], size)
        batch = values.shape[0] // size
        folded = {name: fold_clock(call[name], dims[name], size, batch) for name in ("times", "target_times")}
        folded |= {name: fold_lengths(call[name], dims[name], size) for name in ("lengths", "target_lengths")}
        return {**call, "values": values, **folded}, lambda array: unfold(array, size, batched)

    def fold_result(self, array: Any, dim: int | None, size: int, folded: Mapping[str, Any]) -> Any:
        return fold_values(array, dim, size)


def work_type(values: Any) -> str:
    """Of a gradient with respect to values."""
    return "float64" if str(values.dtype) == "torch.float64" else "float32"


# ---- vmap: one more batch dimension, folded into the rows ----


def in_front(array: Any, dim: int | None, size: int) -> Any:
    return array.expand(size, *array.shape) if dim is None else array.movedim(dim, 0)


def fold_values(array: Any, dim: int | None, size: int) -> Any:
    array = in_front(array, dim, size)
    return array.reshape(-1, *array.shape[-2:])


def fold_clock(array: Any, dim: int | None, size: int, batch: int) -> Any:
    if dim is None and array.ndim == 1:
        return array  # serves every row of every call
    array = in_front(array, dim, size)
    if array.ndim == 2:
        array = array[:, None].expand(size, batch, -1)
    return array.reshape(size * batch, array.shape[-1])


def fold_lengths(array: Any, dim: int | None, size: int) -> Any:
    return None if array is None else in_front(array, dim, size).reshape(-1)


def unfold(array: Any, size: int, batched: bool) -> Any:
    array = array.reshape(size, array.shape[0] // size, *array.shape[1:])
    return array if batched else array[:, 0]
