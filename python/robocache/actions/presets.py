"""The conversions of other codebases as lists. They follow their public code and are tested against its formulas."""

from __future__ import annotations

from collections.abc import Sequence

from .. import errors
from ._arrays import feature_mask
from .conversions import BinarizeGripper, Conversion, Relative, Rescale, Rotate


def openpi(mask: Sequence[bool], features: int) -> list[Conversion]:
    """openpi's DeltaActions and AbsoluteActions (src/openpi/transforms.py): action - state where `mask` is True.

    Args:
        mask: a result of ``make_bool_mask(6, -1)``: [True] * 6 + [False]. Features beyond it stay absolute.
        features: the width of the action.
    """
    if len(mask) > features:
        raise errors.ArgumentError(f"mask: expected at most {features} bools, got {len(mask)}")
    return [Relative("joints", feature_mask("mask", [*mask, *[False] * (features - len(mask))], features))]


def lerobot(action_names: Sequence[str], exclude_joints: Sequence[str] = ()) -> list[Conversion]:
    """LeRobot's RelativeActionsProcessorStep (src/lerobot/processor/relative_action_processor.py): action - state.

    Args:
        action_names: the features' names in the dataset.
        exclude_joints: words in upper or lower case; features whose names contain one of them stay absolute.
    """
    words = [word.lower() for word in exclude_joints if word]
    mask = [not any(word in name.lower() for word in words) for name in action_names]
    return [Relative("joints", mask)]


_GROOT_ROTATIONS = {"xyz+rot6d": "rot6d_rows", "xyz+rotvec": "rotvec"}


def groot(rep: str, type: str, format: str) -> list[Conversion]:
    """One action key of GR00T N1.6's ActionConfig (gr00t/data/types.py), relative to the last state of its state_key.

    Args:
        rep: ``"relative"``; ``"absolute"`` and ``"delta"`` change nothing.
        type: ``"eef"``, an end effector's pose, or ``"non_eef"``, joints.
        format: ``"default"``, for joints; ``"xyz+rot6d"``, with the matrix's first two rows; ``"xyz+rotvec"``.
    """
    for name, value, known in (
        ("rep", rep, ("relative", "absolute", "delta")),
        ("type", type, ("eef", "non_eef")),
        ("format", format, ("default", *_GROOT_ROTATIONS)),
    ):
        if value not in known:
            raise errors.ArgumentError(f"{name}: expected {', '.join(map(repr, known))}, got {value!r}")
    if rep != "relative":
        return []
    if (type == "eef") == (format == "default"):
        raise errors.ArgumentError(f"format: expected one for {type!r}, got {format!r}, which GR00T refuses")
    if type == "non_eef":
        return [Relative("joints")]
    return [Relative("se3", rotation=_GROOT_ROTATIONS[format])]


def umi(pose_repr: str, rotation: str) -> list[Conversion]:
    """UMI's poses (diffusion_policy/common/pose_repr_util.py, umi/common/pose_util.py): x, y, z and 6D rows.

    Args:
        pose_repr: ``"relative"``: inv(T0) T; ``"abs"``: as recorded. UMI's ``"rel"`` is its "legacy buggy implementation",
            kept there for old policies: p - p0, R R0^T. It is ``Relative("base_frame", ...)`` here.
        rotation: the representation in the recorded poses; UMI's poses have ``"rotvec"``.
    """
    if pose_repr not in ("relative", "abs"):
        raise errors.ArgumentError(f"pose_repr: expected 'relative' or 'abs', got {pose_repr!r}")
    first: list[Conversion] = [Relative("se3", rotation=rotation)] if pose_repr == "relative" else []
    return [*first, Rotate(3, rotation, "rot6d_rows")]


_OPENVLA: dict[str, list[Conversion]] = {
    "bridge_orig": [BinarizeGripper(slice(6, 7), 0.05, 0.95, "last_value")],
    "libero": [Rescale(slice(6, 7), (0, 1), (1, 0), clip=True)],
}


def openvla(dataset: str) -> list[Conversion]:
    """The gripper of OpenVLA's actions (prismatic/vla/datasets/rlds/oxe/transforms.py): 1 is open, 0 is closed.

    The other six features are recorded deltas; those of BridgeData are differences of the reached state (:func:`reached_state`).

    Args:
        dataset: ``"bridge_orig"``: binarised over the whole episode; ``"libero"``: 1 - clip(g, 0, 1), since -1 opens LIBERO's gripper.
    """
    if dataset not in _OPENVLA:
        raise errors.ArgumentError(f"dataset: expected {', '.join(map(repr, _OPENVLA))}, got {dataset!r}")
    return list(_OPENVLA[dataset])
