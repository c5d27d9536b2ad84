"""Makes actions of joints and poses relative to a state, and absolute again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import errors
from .._check import flag, number
from ._arrays import (
    cast,
    check_chunk,
    check_row,
    feature_mask,
    framework_of,
    in_work_type,
    quietly,
    roundoff,
    where_features,
)
from .rotations import (
    Components,
    check_parts,
    from_matrix,
    product,
    rotation_width,
    to_matrix,
    transposed,
    turned,
    within_half_a_turn,
)

KINDS = ("joints", "se3", "mixed", "base_frame")


def relative(
    x: Any,
    base: Any,
    kind: str,
    *,
    mask: Sequence[bool] | None = None,
    rotation: str = "quat_xyzw",
    angles: Sequence[bool] | None = None,
    scale: tuple[float, float] | None = None,
    normalize: bool = False,
) -> Any:
    """Makes absolute actions relative to a state. :func:`absolute` is the inverse.

    Args:
        x: ``[..., T, D]``, chunks of T actions, float64, float32, float16 or bfloat16, numpy or torch on any device.
        base: ``[..., D]``, the state of each chunk, with features in the order of x's.
        kind: ``"joints"``: x - base. The others take poses, x, y, z and a rotation; with base p0, R0 and action p, R:
            ``"se3"``: R0^T (p - p0), R0^T R, the pose in the base's own frame, which UMI and GR00T call relative;
            ``"mixed"``: p - p0, R0^T R, the position in the frame of p, the rotation in the base's;
            ``"base_frame"``: p - p0, R R0^T, both in the frame of p.
        mask: D bools. Features that are False stay as they are. For poses the other features are one pose, or several, one
            after another.
        rotation: the representation in x, base and the result: a name of :func:`convert_rotation`.
        angles: D bools, for joints: differences of these features go the shorter way round, in [-pi, pi).
        scale: for ``"base_frame"`` with ``rotation="rotvec"``: the (metres, radians) that become 1 in the result. robosuite
            uses (0.05, 0.5), and also clips to [-1, 1].
        normalize: as in :func:`convert_rotation`.

    Returns:
        ``[..., T, D]`` in x's dtype, framework and device, on torch with gradients to x and base. The arithmetic is in float64
        if x or base is, else in float32, and is rounded once. NaN marks padding: a NaN in an action or in its base gives NaN in
        the result, for joints in that feature, for poses in the whole pose.

    Raises:
        ArgumentError, ArgumentTypeError: a mask, a pose or a base has the wrong width or shape, or a rotation is one that
            convert_rotation refuses. The message names the argument and the row.

    Example:
        >>> relative(np.array([[1.0, 5.0], [2.0, 6.0]]), np.array([1.0, 4.0]), "joints", mask=[True, False])
        array([[0., 5.],
               [1., 6.]])
    """
    return _convert(x, base, kind, mask, rotation, angles, scale, normalize, back=False)


def absolute(
    x: Any,
    base: Any,
    kind: str,
    *,
    mask: Sequence[bool] | None = None,
    rotation: str = "quat_xyzw",
    angles: Sequence[bool] | None = None,
    scale: tuple[float, float] | None = None,
    normalize: bool = False,
) -> Any:
    """Makes relative actions absolute: the inverse of :func:`relative`, for a policy's output.

    Args:
        x: ``[..., T, D]``, relative actions.
        base: ``[..., D]``, the state that they are relative to: the base of :func:`relative`.
        kind, mask, rotation, angles, scale: as in :func:`relative`.
        normalize: accept quaternions of any length but 0, such as a policy's output. 6D does not need it.

    Returns:
        ``[..., T, D]``: base + x for joints; for poses p0 + R0 p, R0 R (``"se3"``), p0 + p, R0 R (``"mixed"``) or
        p0 + p, R R0 (``"base_frame"``). Types, gradients and NaN as in :func:`relative`.

    Raises:
        ArgumentError, ArgumentTypeError: as :func:`relative`.
    """
    return _convert(x, base, kind, mask, rotation, angles, scale, normalize, back=True)


def _convert(
    x: Any,
    base: Any,
    kind: Any,
    mask: Any,
    rotation: Any,
    angles: Any,
    scale: Any,
    normalize: Any,
    *,
    back: bool,
) -> Any:
    if kind not in KINDS:
        raise errors.ArgumentError(f"kind: expected {', '.join(map(repr, KINDS))}, got {kind!r}")
    flag("normalize", normalize)
    xp, (action, state) = in_work_type(x=x, base=base)
    check_chunk("x", x)
    check_row("base", base, "x", x)
    features = x.shape[-1]
    is_converted = feature_mask("mask", mask, features)
    if scale is not None and (kind != "base_frame" or rotation != "rotvec"):
        raise errors.ArgumentError(
            f"scale: expected only with kind='base_frame' and rotation='rotvec', got it with {kind!r} and {rotation!r}"
        )
    if kind == "joints":
        are_angles = [False] * features if angles is None else feature_mask("angles", angles, features)
        with quietly(xp):
            result = _convert_joints(xp, action, state[..., None, :], is_converted, are_angles, back)
        return cast(result, x.dtype)
    if angles is not None:
        raise errors.ArgumentError(f"angles: expected only with kind='joints', got it with {kind!r}")
    width = 3 + rotation_width("rotation", rotation)
    pose_features = [i for i, is_chosen in enumerate(is_converted) if is_chosen]
    if not pose_features or len(pose_features) % width:
        raise errors.ArgumentError(
            f"{'x' if mask is None else 'mask'}: expected poses of {width} features, x, y, z and {rotation!r},"
            f" got {len(pose_features)} features; mask= selects the features of poses"
        )
    factors = (1.0, 1.0) if scale is None else _check_scale(scale)
    leading = tuple(x.shape[:-1])
    chunks = math.prod(leading[:-1])
    action = action.reshape(chunks, leading[-1], features)
    state = state.reshape(chunks, 1, features)
    columns = [action[..., i] for i in range(features)]
    roundoffs = roundoff(x), roundoff(base)
    with quietly(xp):
        for start in range(0, len(pose_features), width):
            pose_indices = pose_features[start : start + width]
            pose = [columns[i] for i in pose_indices]
            base_pose = [state[..., i] for i in pose_indices]
            shapes = leading, leading[:-1]
            result = _convert_pose(xp, pose, base_pose, kind, rotation, factors, normalize, back, roundoffs, shapes)
            for i, column in zip(pose_indices, result, strict=True):
                columns[i] = column
        out = xp.stack(columns, -1)
    return cast(out.reshape(*leading, features), x.dtype)


def _convert_joints(xp: Any, x: Any, base: Any, mask: list[bool], angles: list[bool], back: bool) -> Any:
    result = x + base if back else x - base
    if any(angles):
        result = where_features(xp, angles, within_half_a_turn(xp, result), result)
    return where_features(xp, mask, result, x)


def _check_scale(scale: Any) -> tuple[float, float]:
    try:
        metres, radians = scale
    except (TypeError, ValueError):
        raise errors.ArgumentTypeError(f"scale: expected (metres, radians), got {scale!r}") from None
    factors = number("scale", metres), number("scale", radians)
    if not all(0 < factor < math.inf for factor in factors):
        raise errors.ArgumentError(f"scale: expected numbers above 0, got {scale!r}")
    return factors


def _convert_pose(
    xp: Any,
    pose: Components,
    base: Components,
    kind: str,
    rotation: str,
    scale: tuple[float, float],
    normalize: bool,
    back: bool,
    roundoffs: tuple[float, float],
    shapes: tuple[Sequence[int], Sequence[int]],
) -> Components:
    """Returns the components of a pose relative to `base`, or with `back` absolute. `roundoffs` and `shapes` are those of x and base."""
    p, p0 = pose[:3], base[:3]
    if back:
        pose = [*p, *(part * scale[1] for part in pose[3:])] if scale[1] != 1 else pose
        p = [part * scale[0] for part in p] if scale[0] != 1 else p
    parts, is_nan = check_parts(xp, "x", pose[3:], rotation, roundoffs[0], normalize, shapes[0], p)
    base_parts, base_is_nan = check_parts(xp, "base", base[3:], rotation, roundoffs[1], normalize, shapes[1], p0)
    is_nan = is_nan | base_is_nan
    p, p0 = ([xp.where(is_nan, 0.0, part) for part in vector] for vector in (p, p0))
    m, m0 = to_matrix(xp, parts, rotation), to_matrix(xp, base_parts, rotation)
    if kind == "base_frame":
        m = product(m, m0 if back else transposed(m0))
    else:
        m = product(m0 if back else transposed(m0), m)
    if back:
        p = turned(m0, p) if kind == "se3" else p
        p = [x + x0 for x, x0 in zip(p, p0, strict=True)]
    else:
        p = [x - x0 for x, x0 in zip(p, p0, strict=True)]
        p = turned(transposed(m0), p) if kind == "se3" else p
    result = [*p, *from_matrix(xp, m, rotation)]
    if not back and scale != (1.0, 1.0):
        result = [part / scale[i >= 3] for i, part in enumerate(result)]
    return [xp.where(is_nan, math.nan, part) for part in result]


def step_delta(x: Any, first: Any, *, mask: Sequence[bool] | None = None, angles: Sequence[bool] | None = None) -> Any:
    """Returns the difference of each step to the step before it. :func:`cumulate` is the inverse.

    Args:
        x: ``[..., T, D]``, absolute actions or states, float64, float32, float16 or bfloat16, numpy or torch.
        first: ``[..., D]``, the state before step 0.
        mask: D bools. Features that are False stay as they are.
        angles: D bools. Differences of these features go the shorter way round, in [-pi, pi).

    Returns:
        ``[..., T, D]`` in x's dtype, framework and device, on torch with gradients: x[0] - first, x[1] - x[0], and so on,
        by one subtraction in float64 if x or first is, else in float32. A difference with NaN is NaN.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
    """
    xp, (steps, start) = in_work_type(x=x, first=first)
    check_chunk("x", x)
    check_row("first", first, "x", x)
    features = x.shape[-1]
    is_converted = feature_mask("mask", mask, features)
    are_angles = [False] * features if angles is None else feature_mask("angles", angles, features)
    before = xp.concatenate([start[..., None, :], steps], -2)[..., :-1, :]
    with quietly(xp):
        return cast(_convert_joints(xp, steps, before, is_converted, are_angles, back=False), x.dtype)


def cumulate(d: Any, first: Any, *, mask: Sequence[bool] | None = None, angles: Sequence[bool] | None = None) -> Any:
    """Adds up steps, beginning with a state: the inverse of :func:`step_delta`.

    Args:
        d: ``[..., T, D]``, the difference of each step.
        first: ``[..., D]``, the state that step 0 is added to.
        mask, angles: as in :func:`step_delta`. Sums of angles end in [-pi, pi).

    Returns:
        ``[..., T, D]`` in d's dtype, framework and device, on torch with gradients: first + d[0], first + d[0] + d[1], and
        so on. The sums are always in float64, and each is rounded once, so float16 does not drift. Digits that the steps lost
        before stay lost. After a NaN the feature is NaN.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
    """
    xp, (_, _) = in_work_type(d=d, first=first)
    check_chunk("d", d)
    check_row("first", first, "d", d)
    features = d.shape[-1]
    is_converted = feature_mask("mask", mask, features)
    are_angles = [False] * features if angles is None else feature_mask("angles", angles, features)
    steps, start = cast(d, xp.float64), cast(first, xp.float64)
    with quietly(xp):
        sums = xp.cumsum(steps, -2) + start[..., None, :]
        if any(are_angles):
            sums = where_features(xp, are_angles, within_half_a_turn(xp, sums), sums)
        return cast(where_features(xp, is_converted, sums, steps), d.dtype)


def reached_state(states: Any) -> Any:
    """Returns, as the action of each step, the state that it reaches: s[t + 1].

    For differences use ``step_delta(reached_state(s), s[..., 0, :])``, with ``angles=`` for Euler angles.

    Args:
        states: ``[..., T, D]``, float64, float32, float16 or bfloat16, numpy or torch.

    Returns:
        ``[..., T, D]``, in states' dtype, framework and device. The last row is NaN.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
    """
    xp = framework_of("states", states)
    check_chunk("states", states)
    return xp.concatenate([states[..., 1:, :], xp.full_like(states[..., -1:, :], math.nan)], -2)
