"""Calls of the library's operations: the arguments by their fields, and the results.

Only the library lists the fields (`fields_of`): name, type, default. Arrays may be of any framework: numpy's are passed by
their memory, all others through DLPack. Results are of the arguments' framework.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from . import _lib, errors
from ._check import LISTS, feature_blocks, number, three, whole

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

# A result has the framework of the arguments; arrays of frameworks other than torch and numpy are Any.
Array = TypeVar("Array", "torch.Tensor", "npt.NDArray[Any]")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_array_of = _lib.function("array_of")
_fields_of = _lib.function("fields_of")


class Field(NamedTuple):
    """One argument of a call."""

    name: str
    type: str
    default: Any


# Fields of x, y and z that may be one number for all three.
_SCALARS = "voxel_size", "origin"

# Converts a value for the library, by the type of its field. A type that is not listed needs no conversion.
_CONVERT: dict[str, Callable[[str, Any], Any]] = {
    "block[]": feature_blocks,
    "float": number,
    "float?": lambda name, value: None if value is None else number(name, value),
    "float[3]": lambda name, value: three(name, value, scalar=name in _SCALARS),
    "int": whole,
    "int?": lambda name, value: None if value is None else whole(name, value),
    "int[3]": lambda name, value: three(name, value, convert=whole),
    "number": number,
}

# Arguments of other types are arrays, or values that the library refuses.
_PLAIN = frozenset((type(None), bool, int, float, str))

# How a field's value is passed to the library's function: as one argument, as its numbers, or as lengths and elements.
_ONE, _NUMBERS, _LIST, _BLOCKS, _BLOCKS_OF_STREAMS = range(5)


def _form(kind: str) -> int:
    if kind == "block[]":
        return _BLOCKS
    if kind == "block[][]":
        return _BLOCKS_OF_STREAMS
    if kind.endswith("[]"):
        return _LIST
    return _NUMBERS if "[" in kind else _ONE


OPERATIONS: list[Operation] = []


class Operation:
    """One of the library's operations.

    Subclasses add the parts for torch's transforms: shapes of results, gradients, vmap. There all arrays of a call are torch
    tensors. `shapes` and `gradient_shapes` return (shape, dtype) of each result and of each gradient's rows.
    """

    gradients_of: tuple[str, ...] = ()  # names of the arrays that have gradients
    has_backward = False  # whether the library computes the gradients; else `gradients` does
    has_one_result = False  # whether there is one result, and it has a gradient
    writes_in_place = False  # whether the caller passes all results
    results: tuple[str, ...] = ()  # the results' names in errors; if empty, "out"

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields = [Field(*field) for field in json.loads(_fields_of(name))]
        self._library = _lib.function(name)
        if self.has_backward:
            self._backward = _lib.function(f"{name}_backward")
        # An empty list means the default for every stream.
        self._defaults = {name: [] if kind.endswith("[]") else default for name, kind, default in self.fields}
        self._conversions = [(field.name, _CONVERT[field.type]) for field in self.fields if field.type in _CONVERT]
        self._forms = [(field.name, _form(field.type)) for field in self.fields]
        self._first_array = next(name for name, kind, _ in self.fields if kind.startswith("tensor"))
        OPERATIONS.append(self)

    def documents(self, function: _Function) -> _Function:
        """Replaces ``**options`` in the function's signature by the operation's options with their defaults, for help()."""
        signature = inspect.signature(function)
        parameters = [x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None if "block" in kind else default)
            for name, kind, default in self.fields
            if name not in signature.parameters and kind not in ("tensor", "tensor[]")
        ]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    # ---- Calls of the library ----

    def call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns a value for each field, in the fields' order."""
        call = {**self._defaults, **arguments}
        if len(call) > len(self.fields):
            unknown = next(name for name in arguments if name not in self._defaults)
            raise TypeError(f"{self.name}() got an unexpected keyword argument {unknown!r}")
        for name, convert in self._conversions:
            call[name] = convert(name, call[name])
        return call

    def flat(self, call: Mapping[str, Any], results: Sequence[Any]) -> list[Any]:
        """Returns the arguments of the library's function. A list becomes its length and its elements, a triple its three
        numbers."""
        flat: list[Any] = []
        for name, form in self._forms:
            value = call[name]
            if form == _ONE or value is None:
                flat.append(value)
                continue
            if form != _NUMBERS:
                flat.append(len(value))
            if form == _BLOCKS:
                for block in value:
                    flat += block
            elif form == _BLOCKS_OF_STREAMS:
                for blocks in value:
                    flat.append(len(blocks))
                    for block in blocks:
                        flat += block
            else:
                flat += value
        flat.append(len(results))
        flat += results
        return flat

    def run(self, call: Mapping[str, Any], results: Sequence[Any]) -> list[Any]:
        """Returns the results of a call; None for a result that is not wanted.

        `results` has for each result an array to write to, None for a new array, or False if it is not wanted.
        """
        flat = self.flat(call, results)
        return self.by_library(call, flat, results, objects(flat))

    def by_library(
        self, call: Mapping[str, Any], flat: list[Any], results: Sequence[Any], arrays: Sequence[Any]
    ) -> list[Any]:
        """Returns the same as :meth:`run`, for a caller that has already computed ``flat(call, results)`` and the
        :func:`objects` in it."""
        for array in arrays:
            if isinstance(array, np.ndarray):
                flat = self._without_numpy(call, flat, results)
                break
        try:
            returned = self._library(*flat)
        except UnicodeEncodeError as error:  # a lone surrogate, from os.fsdecode of a name that is not UTF-8
            name = next(name for name, value in call.items() if _contains(value, error.object))
            raise errors.ArgumentError(f"{name}: expected UTF-8, got {error.object!r}") from None
        except errors.Error:
            raise
        except (TypeError, BufferError) as error:  # an array refuses its own export, as pyarrow's does with nulls
            names = ", ".join(name for name, array in self.named_arrays(call) if not isinstance(array, np.ndarray))
            raise errors.ArgumentTypeError(f"{names}: {error}") from error
        if returned is None:
            return [None if out is False else out for out in results]
        like = call[self._first_array]
        like = like[0] if type(like) is list else like
        count = sum([out is None for out in results])
        if count == 1:
            new_arrays = iter((_lib.in_framework_of(like, returned),))
        else:
            first = next(x for x in flat if hasattr(x, "__dlpack__"))
            tensors = [_array_of(returned, first, index) for index in range(count)]
            new_arrays = iter([x if x is None else _lib.in_framework_of(like, x) for x in tensors])
        return [next(new_arrays) if out is None else None if out is False else out for out in results]

    def _without_numpy(self, call: Mapping[str, Any], flat: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """Returns `flat` with numpy's arrays converted for the library."""
        arguments = []
        for value in flat:
            if isinstance(value, np.ndarray):
                index = next((i for i, out in enumerate(results) if out is value), None)
                if index is not None:
                    value = writable(self.results[index] if self.results else "out", value)
                else:
                    name = next((name for name, array in self.named_arrays(call) if array is value), None)
                    value = value if name is None else argument(name, value)  # an option, which the library refuses
            arguments.append(value)
        return arguments

    def named_arrays(self, call: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yields the arrays of a call with their names in errors."""
        for name, kind, _ in self.fields:
            if kind.startswith("tensor") and call[name] is not None:
                yield name, call[name]

    # ---- For torch's transforms ----

    def for_torch(self, call: dict[str, Any]) -> dict[str, Any]:
        """Returns the call with all arrays as torch tensors."""
        return call

    def shapes(self, call: Mapping[str, Any], count: int) -> list[tuple[Any, Any]]:
        raise NotImplementedError

    def gradient_shapes(self, call: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        raise NotImplementedError

    def count_of_outs(self, call: Mapping[str, Any], count: int) -> int:
        """Returns how many of the `count` results have gradients. They come first."""
        return count

    def results_to_keep(self, call: Mapping[str, Any], results: Sequence[Any]) -> list[Any]:
        """Returns the results that the gradients are computed from."""
        return []

    def gradients(self, call: Mapping[str, Any], kept: Sequence[Any], out_gradients: Sequence[Any]) -> dict[str, Any]:
        """Returns the gradients of arrays by name, from the kept results. An out_gradient is None if the loss does not depend
        on the result."""
        return {}

    def add_gradients(
        self, call: Mapping[str, Any], out_gradients: Sequence[Any], kept: Sequence[Any], gradients: Sequence[Any]
    ) -> None:
        """Adds this call's gradients, as the library computes them, to the arrays in `gradients` that are not None."""
        self._backward(*self.flat(call, out_gradients), len(gradients), *gradients)

    def fold(self, call: Mapping[str, Any], dims: Mapping[str, Any], size: int) -> tuple[dict[str, Any], Any]:
        """Returns `size` calls as one, and the function that splits a result again. `dims` has the axis of the calls in each
        array."""
        raise NotImplementedError

    def fold_result(self, call: Mapping[str, Any], array: Any, dim: int | None, size: int) -> Any:
        raise NotImplementedError


def objects(flat: Sequence[Any]) -> list[Any]:
    """Returns the arguments of a call that may be arrays."""
    return [x for x in flat if type(x) not in _PLAIN]


def argument(name: str, value: Any) -> Any:
    """Converts an array for the library: numpy by its memory, everything else through DLPack."""
    if isinstance(value, np.ndarray):
        try:
            return _lib.from_numpy(value)
        except errors.Error as error:
            raise type(error)(f"{name}: {error}") from None
    if hasattr(value, "__dlpack__"):
        return value
    raise errors.ArgumentTypeError(
        f"{name}: expected an array (torch, numpy or anything with DLPack), got {type(value).__name__}"
    )


def optional(name: str, value: Any) -> Any:
    return None if value is None else argument(name, value)


def writable(name: str, out: Any) -> Any:
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise errors.ArgumentError(f"{name}: expected an array that can be written, got a read-only one")
    return argument(name, out)


def _contains(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return value == text
    return isinstance(value, LISTS) and any(_contains(part, text) for part in value)
