"""Normalises a policy's input, and undoes the normalisation of its output, with the arithmetic of batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _lib, errors
from ._check import whole
from ._operation import Array
from .norm_stats import MIN_SPREAD, as_stats

if TYPE_CHECKING:
    import numpy.typing as npt

_affines = _lib.function("normalisation_affines")


class Affine:
    """The normalisation of one key: ``y = fma(x, scale, shift)``, with `clip` clamped to [-1, 1], and back ``x = fma(y, spread,
    centre)``.

    Attributes:
        scale, shift, spread, centre: ``[sources, *shape]`` of the work type: float64 for streams of float64, else float32. If
            statistics are per step, `shape` begins with the steps.
    """

    def __init__(
        self,
        scale: npt.NDArray[Any],
        shift: npt.NDArray[Any],
        spread: npt.NDArray[Any],
        centre: npt.NDArray[Any],
        *,
        clip: bool = False,
    ) -> None:
        self.clip = clip
        self.scale, self.shift, self.spread, self.centre = scale, shift, spread, centre
        self._sources_are_alike = all((part == part[:1]).all() for part in (scale, shift, spread, centre))
        self._on_device: dict[Any, list[Any]] = {}

    @classmethod
    def of(
        cls,
        stats: Any,
        normalize: str | None,
        *,
        shape: Sequence[int],
        dtype: str = "float32",
        constant: str = "center",
        min_spread: float = MIN_SPREAD,
        name: str = "norm_stats",
    ) -> Affine:
        """Returns the affine of one source.

        Args:
            stats: a :class:`Stats` or a dict of its fields; None for a source without this key, whose values stay unchanged.
            normalize: ``"mean_std"``, ``"min_max"``, two quantiles such as ``"q01_q99"``; None for no normalisation.
            shape: the shape of one row's value.
            dtype: the stream's dtype.
            constant: ``"center"``, ``"lerobot"`` or ``"openpi"``, for features without spread.
            min_spread: a smaller spread counts as 0.
            name: the name of the statistics in errors.

        Raises:
            ArgumentError, ArgumentTypeError: the mode needs a field that the statistics lack, or their width differs.
        """
        if stats is None or normalize is None:
            return cls.of_table(np.repeat([[1.0], [0.0], [1.0], [0.0]], math.prod(shape), axis=1), shape, dtype)
        fields = {field: array for field, array in as_stats(name, stats)._asdict().items() if array is not None}
        numbers = np.stack([array.ravel() for array in fields.values()])
        table = _affines(
            ",".join(fields), _lib.from_numpy(numbers), math.prod(shape), dtype, normalize, constant, min_spread, name
        )
        return cls.of_table(_lib.to_numpy(table), shape, dtype)

    @classmethod
    def of_table(
        cls, table: npt.NDArray[np.float64], shape: Sequence[int], dtype: str, *, clip: bool = False
    ) -> Affine:
        """Returns the affine of one source from the library's ``[4, numbers]``: scale, shift, spread and centre."""
        work = np.float64 if dtype == "float64" else np.float32
        return cls(*table.astype(work).reshape(4, 1, *shape), clip=clip)

    @classmethod
    def of_key(cls, key: Mapping[str, Any]) -> Affine:
        """Returns the affine of a key of a spec. Features that its source lacks stay unchanged."""
        rows = key["rows"] or {"affine": None, "clip": False, "shape": key["shape"], "dtype": "float32"}
        shape, source_shape = key["shape"], key["shape"] if key["convert"] else rows["shape"]
        numbers = None
        if rows["affine"]:
            numbers = np.array([rows["affine"][part] for part in ("scale", "shift", "spread", "centre")])
            if numbers.shape[1] > math.prod(source_shape):  # statistics per step
                steps = len(key["offsets_ns"] or key["offsets_rows"])
                shape, source_shape = [steps, *shape], [steps, *source_shape]
        parts = np.repeat([[1.0], [0.0], [1.0], [0.0]], math.prod(shape), axis=1).reshape(4, *shape)
        if numbers is not None:
            parts[tuple(map(slice, (4, *source_shape)))] = numbers.reshape(4, *source_shape)
        return cls.of_table(parts, shape, (key["convert"] or rows)["dtype"], clip=rows["clip"])

    @classmethod
    def of_sources(cls, affines: Sequence[Affine]) -> Affine:
        """Joins the affines of several sources, in their order; float64 if one of them is.

        Features that a source lacks, at the end of an axis, stay unchanged. If one source has statistics per step, all get the
        steps.
        """
        axes = max(a.scale.ndim for a in affines)
        steps = max(a.scale.shape[1:2] for a in affines if a.scale.ndim == axes)
        affines = [a if a.scale.ndim == axes else a._at_every_step(*steps) for a in affines]
        tables = [np.concatenate([a.scale, a.shift, a.spread, a.centre]) for a in affines]
        shape = np.max([table.shape for table in tables], axis=0)
        parts = np.zeros((len(tables), *shape), np.result_type(*tables))
        parts[:, ::2] = 1  # scale and spread; shift and centre are 0
        for part, table in zip(parts, tables, strict=True):
            part[tuple(map(slice, table.shape))] = table
        return cls(*np.swapaxes(parts, 0, 1), clip=any(a.clip for a in affines))

    def _at_every_step(self, steps: int) -> Affine:
        parts = (np.repeat(part[:, None], steps, axis=1) for part in (self.scale, self.shift, self.spread, self.centre))
        return Affine(*parts, clip=self.clip)

    def normalize(self, x: Array, dataset_index: Any = None) -> Array:
        """Normalises recorded values as :meth:`Loader.normalize`. On CUDA an invalid `dataset_index` is clamped."""
        result: Array = self._apply(x, dataset_index, 0)
        return result

    def unnormalize(self, x: Array, dataset_index: Any = None) -> Array:
        """The inverse of :meth:`normalize`, within rule 38 of docs/rules.md."""
        result: Array = self._apply(x, dataset_index, 2)
        return result

    def _apply(self, x: Any, dataset_index: Any, start: int) -> Any:
        """Returns fma(x, scale, shift) if `start`, the index of the first part, is 0; fma(x, spread, centre) if it is 2."""
        torch = _lib.torch_module()
        is_torch = torch is not None and isinstance(x, torch.Tensor)
        if not is_torch and not isinstance(x, np.ndarray):
            raise errors.ArgumentTypeError(f"x: expected a numpy array or a torch tensor, got {type(x).__name__}")
        if not (x.is_floating_point() if is_torch else x.dtype.kind == "f" or x.dtype.name == "bfloat16"):
            raise errors.ArgumentTypeError(f"x: expected floats, got {x.dtype}")
        _lib.refuse_mask(x)
        sources, *shape = self.scale.shape
        if list(x.shape[x.ndim - len(shape) :]) != shape:
            raise errors.ArgumentError(f"x: expected [..., {', '.join(map(str, shape))}], got {tuple(x.shape)}")
        rows = self._rows(x, dataset_index, sources, is_torch)
        clips = self.clip and start == 0
        factor, summand = (part[rows] for part in self._parts(x.device if is_torch else None)[start : start + 2])
        if factor.ndim > len(shape):
            inner_axes = [1] * (x.ndim - factor.ndim)
            factor, summand = (part.reshape(len(part), *inner_axes, *shape) for part in (factor, summand))
        with np.errstate(all="ignore"):
            y = (x.double() if is_torch else x.astype(np.float64)) * factor + summand
            y = y.clip(-1, 1) if clips else y
            return y.to(x.dtype) if is_torch else np.asarray(y.astype(x.dtype))

    def _rows(self, x: Any, dataset_index: Any, sources: int, is_torch: bool) -> Any:
        """Returns the source's index for all of x, or an array with the index of each row's source."""
        if dataset_index is None:
            if not self._sources_are_alike:
                raise errors.ArgumentError(
                    f"dataset_index: expected the source of each row, since {sources} sources are normalised differently"
                )
            return 0
        if not getattr(dataset_index, "ndim", isinstance(dataset_index, list | tuple)):
            number = whole("dataset_index", dataset_index)
            if not 0 <= number < sources:
                raise errors.ArgumentError(f"dataset_index: expected in [0, {sources}), got {number}")
            return number
        torch: Any = _lib.torch_module()
        rows: Any = dataset_index
        if torch is None or not isinstance(rows, torch.Tensor):
            rows = np.asarray(rows, None if len(rows) else np.int64)
        if "int" not in str(rows.dtype):
            raise errors.ArgumentTypeError(f"dataset_index: expected integers, got {rows.dtype}")
        if tuple(rows.shape) != tuple(x.shape[:1]) or x.ndim < self.scale.ndim:
            raise errors.ArgumentError(
                f"dataset_index: expected [B] for x of [B, ..., *shape], got {tuple(rows.shape)} for {tuple(x.shape)}"
            )
        on_cuda = not isinstance(rows, np.ndarray) and rows.is_cuda
        if not on_cuda and len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < sources:
            raise errors.ArgumentError(
                f"dataset_index: expected in [0, {sources}), got from {int(rows.min())} to {int(rows.max())}"
            )
        if not is_torch:
            return np.asarray(rows)
        return torch.as_tensor(rows, dtype=torch.int64, device=x.device).clamp(0, sources - 1)

    def _parts(self, device: Any) -> Sequence[Any]:
        """Returns scale, shift, spread and centre on a device. They are copied there once."""
        parts = [self.scale, self.shift, self.spread, self.centre]
        if device is None:
            return parts
        if device not in self._on_device:
            import torch

            self._on_device[device] = [torch.as_tensor(part, device=device) for part in parts]
        return self._on_device[device]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_on_device": {}}


class AffineOf(dict[str, Affine]):
    """The affine of each floating key, computed at its first use.

    Args:
        keys_of: returns the keys of a source's spec (:attr:`robocache.Spec.keys`), by the source's index.
        sources: the number of sources.
    """

    def __init__(self, keys_of: Callable[[int], Mapping[str, Any]], sources: int) -> None:
        self._keys_of, self._sources = keys_of, sources

    def __missing__(self, name: str) -> Affine:
        affines = []
        for keys in map(self._keys_of, range(self._sources)):
            if name not in keys:
                raise errors.ArgumentError(f"key: expected one of {', '.join(keys)}, got {name!r}")
            affines.append(Affine.of_key(keys[name]))
        self[name] = Affine.of_sources(affines)
        return self[name]
