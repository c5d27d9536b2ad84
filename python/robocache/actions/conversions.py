"""Lists of conversions: convert() applies them in order, for the policy; revert() undoes them in reverse order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .. import errors
from ._arrays import feature_mask, framework_of, shape_text
from .grippers import binarize_gripper, number_pair, rescale
from .rotations import convert_rotation, rotation_width
from .spaces import absolute, cumulate, relative, step_delta


class Conversion(Protocol):
    """One step of a list of conversions."""

    def forward(self, x: Any, base: Any) -> Any:
        """Converts recorded actions for the policy."""
        ...

    def back(self, x: Any, base: Any) -> Any:
        """Converts the policy's output to recorded actions."""
        ...


@dataclass(frozen=True)
class Relative:
    """Makes actions relative to the state by :func:`relative`, and absolute again by :func:`absolute`. The fields are their arguments.

    The inverse accepts quaternions of any length, such as a policy's output.
    """

    kind: str
    mask: Sequence[bool] | None = None
    rotation: str = "quat_xyzw"
    angles: Sequence[bool] | None = None
    scale: tuple[float, float] | None = None
    normalize: bool = False

    def forward(self, x: Any, base: Any) -> Any:
        return relative(x, base, **vars(self))

    def back(self, x: Any, base: Any) -> Any:
        return absolute(x, base, **vars(self) | {"normalize": True})


@dataclass(frozen=True)
class StepDelta:
    """Applies :func:`step_delta`, with the state before step 0, and as its inverse :func:`cumulate`. The fields are their
    arguments."""

    mask: Sequence[bool] | None = None
    angles: Sequence[bool] | None = None

    def forward(self, x: Any, base: Any) -> Any:
        return step_delta(x, base, **vars(self))

    def back(self, x: Any, base: Any) -> Any:
        return cumulate(x, base, **vars(self))


@dataclass(frozen=True)
class Rotate:
    """Applies :func:`convert_rotation` to the rotation that begins at feature `start`. If the width changes, later features
    move."""

    start: int
    source: str
    target: str
    normalize: bool = False

    def forward(self, x: Any, base: Any) -> Any:
        return self._convert(x, self.source, self.target, normalize=self.normalize)

    def back(self, x: Any, base: Any) -> Any:
        return self._convert(x, self.target, self.source, normalize=True)

    def _convert(self, x: Any, source: str, target: str, *, normalize: bool) -> Any:
        end = self.start + rotation_width("source", source)
        if not 0 <= self.start < end <= x.shape[-1]:
            raise errors.ArgumentError(f"start: expected {source!r} within {x.shape[-1]} features, got {self.start}")
        turned = convert_rotation(x[..., self.start : end], source, target, normalize=normalize)
        return _concatenate([x[..., : self.start], turned, x[..., end:]])


@dataclass(frozen=True)
class Rescale:
    """Applies :func:`rescale` to some features. The other fields are its arguments. The inverse does not clip."""

    features: slice
    source: tuple[float, float]
    target: tuple[float, float]
    clip: bool = False

    def __post_init__(self) -> None:
        if number_pair("target", self.target)[0] == self.target[1]:
            raise errors.ArgumentError(f"target: expected two different numbers, got {self.target!r}")

    def forward(self, x: Any, base: Any) -> Any:
        return _change_features(x, self.features, lambda part: rescale(part, self.source, self.target, clip=self.clip))

    def back(self, x: Any, base: Any) -> Any:
        return _change_features(x, self.features, lambda part: rescale(part, self.target, self.source))


@dataclass(frozen=True)
class BinarizeGripper:
    """Applies :func:`binarize_gripper` to some features. The other fields are its arguments. The inverse changes nothing."""

    features: slice
    low: float
    high: float
    at_end: str = "nan"

    def forward(self, x: Any, base: Any) -> Any:
        def binarized(part: Any) -> Any:
            return binarize_gripper(part, low=self.low, high=self.high, at_end=self.at_end)

        return _change_features(x, self.features, binarized)

    def back(self, x: Any, base: Any) -> Any:
        return x


def convert(x: Any, base: Any, conversions: Sequence[Conversion]) -> Any:
    """Converts recorded actions for the policy, by each conversion in turn.

    Args:
        x: ``[..., T, D]``, recorded actions.
        base: ``[..., D]``, the recorded state of each chunk, with features in the order of x's. May be None if no conversion is
            a :class:`Relative` or a :class:`StepDelta`.
        conversions: :class:`Relative`, :class:`StepDelta`, :class:`Rotate`, :class:`Rescale`, :class:`BinarizeGripper`. The
            first two compare with the recorded state, so they must precede the others.

    Returns:
        ``[..., T, E]`` in x's dtype, framework and device; each conversion rounds once.

    Raises:
        ArgumentError, ArgumentTypeError: as in the functions that the conversions apply.
    """
    for conversion in _check_list(base, conversions):
        x = conversion.forward(x, base)
    return x


def revert(x: Any, base: Any, conversions: Sequence[Conversion]) -> Any:
    """Converts a policy's output to recorded actions: the inverse of :func:`convert`, with the same arguments."""
    for conversion in reversed(_check_list(base, conversions)):
        x = conversion.back(x, base)
    return x


def conversions_to_json(name: str, conversions: Any, features: int) -> list[dict[str, Any]]:
    """Returns the conversions of a key in a batch, as JSON for the library.

    Raises:
        ArgumentError, ArgumentTypeError: a conversion refuses rows of this width, or is not possible in a batch.
    """
    nan_chunk = np.full((1, 1, features), np.nan)
    try:
        described = []
        converted = nan_chunk
        for conversion in _check_list(nan_chunk[:, 0], conversions):
            if isinstance(conversion, BinarizeGripper):
                raise errors.ArgumentError(
                    "expected conversions of one step, got BinarizeGripper, which needs the rest of the episode;"
                    " use binarize_gripper() before a recording is stored"
                )
            described.append(_to_json(conversion, converted.shape[-1]))
            converted = conversion.forward(converted, nan_chunk[:, 0])
    except errors.Error as error:
        raise type(error)(f"{name}: {error}") from None
    return described


def _to_json(conversion: Conversion, features: int) -> dict[str, Any]:
    if isinstance(conversion, Rotate):
        rotation_fields = {"begin": conversion.start, "rotation": conversion.source, "target": conversion.target}
        return {"step": "rotate", **rotation_fields, "normalize": conversion.normalize}
    if isinstance(conversion, Rescale):
        begin, end, _ = conversion.features.indices(features)
        (a, b), (c, d) = number_pair("source", conversion.source), number_pair("target", conversion.target)
        fields: dict[str, Any] = {"from_first": a, "from_last": b, "to_first": c, "to_last": d, "clip": conversion.clip}
        return fields | {"step": "rescale", "begin": begin, "end": end}
    assert isinstance(conversion, Relative | StepDelta)
    mask = feature_mask("mask", conversion.mask, features)
    angles = [] if conversion.angles is None else feature_mask("angles", conversion.angles, features)
    fields = {
        "features": [i for i, is_converted in enumerate(mask) if is_converted],
        "angles": [i for i, is_angle in enumerate(angles) if is_angle],
    }
    if isinstance(conversion, StepDelta):
        return fields | {"step": "step_delta"}
    metres, radians = conversion.scale or (1.0, 1.0)
    fields |= {"scale_metres": float(metres), "scale_radians": float(radians)}
    return fields | {"step": conversion.kind, "rotation": conversion.rotation, "normalize": conversion.normalize}


def conversions_from_json(described: Sequence[Mapping[str, Any]], features: int) -> list[Conversion]:
    """Returns the conversions from the JSON of :func:`conversions_to_json`, for a key with `features` features."""
    conversions: list[Conversion] = []
    for step in described:
        mask = [i in step["features"] for i in range(features)]
        angles = [i in step["angles"] for i in range(features)] if step["angles"] else None
        if step["step"] == "rotate":
            conversions.append(Rotate(step["begin"], step["rotation"], step["target"], step["normalize"]))
        elif step["step"] == "rescale":
            source, target = (step["from_first"], step["from_last"]), (step["to_first"], step["to_last"])
            conversions.append(Rescale(slice(step["begin"], step["end"]), source, target, step["clip"]))
        elif step["step"] == "step_delta":
            conversions.append(StepDelta(mask, angles))
        else:
            factors = step["scale_metres"], step["scale_radians"]
            scale = factors if factors != (1.0, 1.0) else None
            conversions.append(Relative(step["step"], mask, step["rotation"], angles, scale, step["normalize"]))
    return conversions


def as_recorded(
    key: str,
    given: Any,
    x: Any,
    batch: Mapping[str, Any],
    conversions: Sequence[Conversion],
    *,
    one_step: bool,
    has_base: bool,
) -> Any:
    """Returns the result of :func:`revert` for a key of a batch. With `one_step` x lacks the axis of steps.

    given: x before its normalisation was undone.
    """
    base = None
    if has_base:
        base = batch.get(f"{key}_base")
        if base is None:
            raise errors.ArgumentError(f"batch: expected '{key}_base', the state at the anchor, got {', '.join(batch)}")
    is_pad = batch.get(f"{key}_is_pad")
    if one_step:
        given, x, is_pad = given[..., None, :], x[..., None, :], None if is_pad is None else is_pad[..., None]
    if is_pad is not None:
        x, base = _with_nan(key, given, x, base, is_pad, conversions)
    reverted = revert(x, base, conversions)
    return reverted[..., 0, :] if one_step else reverted


def _with_nan(
    key: str, given: Any, x: Any, base: Any, is_pad: Any, conversions: Sequence[Conversion]
) -> tuple[Any, Any]:
    """Returns x and the state with NaN in place of what a batch lacks: samples without rows of either, and steps whose rotation is
    invalid. A batch has 0 there, and padding."""
    xp = framework_of("x", x)
    if not isinstance(is_pad, np.ndarray if xp is np else xp.Tensor):
        return x, base
    if tuple(is_pad.shape[:-1]) != tuple(x.shape[:-2]):
        raise errors.ArgumentError(
            f"batch: expected '{key}_is_pad' with a row for each chunk of x {shape_text(x.shape)}, got {shape_text(is_pad.shape)}"
        )
    is_pad, is_zero = is_pad != 0, (given == 0).all(-1)
    is_absent = is_zero.all(-1)
    if base is not None:
        is_absent = is_absent | (base == 0).all(-1)
    is_absent = is_absent & is_pad.all(-1)
    is_lost = is_absent[..., None]
    if is_pad.shape == is_zero.shape and any(map(_may_be_invalid, conversions)):
        is_lost = is_lost | (is_pad & is_zero)
    if base is not None:
        base = xp.where(is_absent[..., None], math.nan, base)
    return xp.where(is_lost[..., None], math.nan, x), base


def _may_be_invalid(conversion: Conversion) -> bool:
    """Whether a conversion reads rotations of which some are invalid, as 0 is: all but rotation vectors and Euler angles."""
    if isinstance(conversion, Rotate):
        names = [conversion.source, conversion.target]
    else:
        names = [conversion.rotation] if isinstance(conversion, Relative) and conversion.kind != "joints" else []
    return any(rotation_width("rotation", name) > 3 for name in names)


def _check_list(base: Any, conversions: Sequence[Conversion]) -> list[Conversion]:
    if not isinstance(conversions, Sequence) or isinstance(conversions, str):
        raise errors.ArgumentTypeError(f"conversions: expected a list, got {type(conversions).__name__}")
    previous: Conversion | None = None
    for conversion in conversions:
        if not isinstance(conversion, Relative | StepDelta | Rotate | Rescale | BinarizeGripper):
            raise errors.ArgumentTypeError(f"conversions: expected those of robocache.actions, got {conversion!r}")
        if isinstance(conversion, Relative | StepDelta):
            if previous is not None:
                raise errors.ArgumentError(
                    f"conversions: expected {type(conversion).__name__} first, since the state is not converted,"
                    f" got it after {type(previous).__name__}"
                )
            if base is None:
                raise errors.ArgumentError(
                    f"base: expected the state, which {type(conversion).__name__} needs, got None"
                )
        previous = conversion
    return list(conversions)


def _change_features(x: Any, features: slice, change: Any) -> Any:
    start, stop, step = features.indices(x.shape[-1])
    if step != 1 or start >= stop:
        raise errors.ArgumentError(f"features: expected consecutive features of {x.shape[-1]}, got {features!r}")
    return _concatenate([x[..., :start], change(x[..., start:stop]), x[..., stop:]])


def _concatenate(parts: list[Any]) -> Any:
    return framework_of("x", parts[0]).concatenate(parts, -1)
