"""Action spaces: conversions of actions for a policy, each with its inverse for the policy's output.

They are plain functions on numpy arrays and torch tensors, on the CPU and on CUDA, with gradients. docs/actions.md has the
formulas, the conventions and a comparison with other code.
"""

from . import presets
from .conversions import BinarizeGripper, Conversion, Relative, Rescale, Rotate, StepDelta, convert, revert
from .grippers import binarize_gripper, rescale
from .rotations import convert_rotation
from .spaces import absolute, cumulate, reached_state, relative, step_delta

__all__ = [
    "BinarizeGripper",
    "Conversion",
    "Relative",
    "Rescale",
    "Rotate",
    "StepDelta",
    "absolute",
    "binarize_gripper",
    "convert",
    "convert_rotation",
    "cumulate",
    "presets",
    "reached_state",
    "relative",
    "rescale",
    "revert",
    "step_delta",
]
