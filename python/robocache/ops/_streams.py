"""The operations on streams for torch's transforms: shapes of results, gradients, vmap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .. import errors
from .._operation import Operation


class StreamsOperation(Operation):
    """An operation on one stream."""

    gradients_of = "values", "times", "target_times"
    has_backward = True
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
        is_batched = call["values"].ndim == (3 if dims["values"] is None else 4)
        values = fold_values(call["values"], dims["values"], size)
        batch = values.shape[0] // size
        folded = {name: fold_clock(call[name], dims[name], size, batch) for name in ("times", "target_times")}
        folded |= {name: fold_lengths(call[name], dims[name], size) for name in ("lengths", "target_lengths")}
        return {**call, "values": values, **folded}, lambda array: unfold(array, size, is_batched)

    def fold_result(self, call: Mapping[str, Any], array: Any, dim: int | None, size: int) -> Any:
        return fold_values(array, dim, size)


class FuseOperation(StreamsOperation):
    """An operation on several streams: each field of a stream is a list."""

    has_one_result = False

    def named_arrays(self, call: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for index, name in enumerate(call["streams"]):
            for field in ("values", "times", "lengths", "scale", "shift"):
                array = call[field][index] if call[field] else None
                if array is not None and not isinstance(array, int | float | str):
                    yield f"streams[{index if name is None else name!r}].{field}", array
        for field in ("target_times", "target_lengths"):
            if call[field] is not None:
                yield field, call[field]

    def shapes(self, call: Mapping[str, Any], count: int) -> list[tuple[Any, Any]]:
        values = call["values"]
        rows = *values[0].shape[:-2], call["target_times"].shape[-1]
        dtypes = [
            x.dtype if dtype is None else dtype
            for x, dtype in zip(values, call["dtype"] or [None] * len(values), strict=True)
        ]
        if count == 3:
            outs = [((*rows, sum(x.shape[-1] for x in values)), dtypes[0])]
        else:
            outs = [((*rows, x.shape[-1]), dtype) for x, dtype in zip(values, dtypes, strict=True)]
        rows = *rows, len(values)
        return [*outs, (rows, "bool"), (rows, call["target_times"].dtype)]

    def count_of_outs(self, call: Mapping[str, Any], count: int) -> int:
        return count - 2

    def gradient_shapes(self, call: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        batch = (1, *call["values"][0].shape)[-3]
        return [
            *(((batch, *x.shape[-2:]), work_type(x)) for x in call["values"]),
            *(((batch, x.shape[-1]), "float64") for x in [*call["times"], call["target_times"]]),
        ]

    def fold(self, call: Mapping[str, Any], dims: Mapping[str, Any], size: int) -> tuple[dict[str, Any], Any]:
        def fold_each(name: str, fold: Any) -> list[Any]:
            axes = dims[name] or [None] * len(call[name])
            return [fold(array, axis, size) for array, axis in zip(call[name], axes, strict=True)]

        is_batched = call["values"][0].ndim == (3 if not dims["values"] or dims["values"][0] is None else 4)
        values = fold_each("values", fold_values)
        batch = values[0].shape[0] // size
        folded = {
            "values": values,
            "times": fold_each("times", lambda array, dim, size: fold_clock(array, dim, size, batch)),
            "target_times": fold_clock(call["target_times"], dims["target_times"], size, batch),
            "lengths": fold_each("lengths", fold_lengths),
            "target_lengths": fold_lengths(call["target_lengths"], dims["target_lengths"], size),
            "scale": fold_each("scale", _check_shared),
            "shift": fold_each("shift", _check_shared),
        }
        return {**call, **folded}, lambda array: unfold(array, size, is_batched)


def _check_shared(array: Any, dim: int | None, size: int) -> Any:
    if dim is not None:
        raise errors.ArgumentError("scale, shift: expected the same for every call under vmap")
    return array


def work_type(values: Any) -> str:
    """Returns the dtype of a gradient with respect to values."""
    return "float64" if str(values.dtype) == "torch.float64" else "float32"


# ---- vmap: folds one more batch dimension into the rows ----


def to_front(array: Any, dim: int | None, size: int) -> Any:
    """Returns the array with the axis of the calls first; an array that all calls share is repeated."""
    return array.expand(size, *array.shape) if dim is None else array.movedim(dim, 0)


def fold_values(array: Any, dim: int | None, size: int) -> Any:
    array = to_front(array, dim, size)
    return array.reshape(-1, *array.shape[-2:])


def fold_clock(array: Any, dim: int | None, size: int, batch: int) -> Any:
    if dim is None and array.ndim == 1:
        return array  # one clock for every row of every call
    array = to_front(array, dim, size)
    if array.ndim == 2:
        array = array[:, None].expand(size, batch, -1)
    return array.reshape(size * batch, array.shape[-1])


def fold_lengths(array: Any, dim: int | None, size: int) -> Any:
    return None if array is None else to_front(array, dim, size).reshape(-1)


def unfold(array: Any, size: int, is_batched: bool) -> Any:
    array = array.reshape(size, array.shape[0] // size, *array.shape[1:])
    return array if is_batched else array[:, 0]
