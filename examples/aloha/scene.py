"""Simulates ALOHA's transfer cube in plain MuJoCo: two ViperX arms, a cube, and the rules for a successful handover.

The model is that of gym-aloha. Only the package's XML and meshes are read; none of its code runs.
"""

import functools
import importlib.util
import os
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "egl")  # read when mujoco is imported

import mujoco
import numpy as np

TICK_S = 0.02  # the period of commands
STEP_S = 0.002  # the period of the physics
STEPS = 10  # the steps of the physics in a tick
FEATURES = [
    f"{arm}_{joint}"
    for arm in ("left", "right")
    for joint in ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
]
ARM_AT_START = np.array([0.0, -0.96, 1.16, 0.0, -0.3, 0.0])
GRIPPER_AT_START = 0.1
CLOSED_M, OPEN_M = 0.01844, 0.058  # a finger's position when the gripper is at 0 and at 1
FRAME_SIZE = 128
HELD_TICKS = 25  # the left fingers must hold the cube for this many ticks, 0.5 s


def model_path():
    """Returns the path of gym-aloha's XML of the cube transfer, without importing gym-aloha."""
    spec = importlib.util.find_spec("gym_aloha")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "gym_aloha: not installed; its XML and meshes are all that is needed: pip install --no-deps gym-aloha"
        )
    return Path(spec.submodule_search_locations[0]) / "assets" / "bimanual_viperx_transfer_cube.xml"


@functools.cache
def load_model():
    """Returns the model, one for all scenes of a process."""
    model = mujoco.MjModel.from_xml_path(str(model_path()))
    top = model.camera("top").id
    model.cam_mode[top] = mujoco.mjtCamLight.mjCAMLIGHT_FIXED
    model.cam_pos[top], model.cam_quat[top] = [0.05, 0.5, 0.8], [1, 0, 0, 0]
    model.cam_fovy[top] = 40  # the camera sees the area of the handover; at 128 pixels, a pixel has 4.5 mm
    model.light_castshadow[:] = False  # makes rendering twice as fast
    return model


@functools.cache
def renderer(height, width):
    """Returns the renderer, one for all scenes of a process. It uses EGL unless MUJOCO_GL is set."""
    return mujoco.Renderer(load_model(), height, width)


class Scene:
    """Simulates the robots and the cube. `reset(seed)` draws their start; equal seeds have equal starts."""

    def __init__(self, frame_size=(FRAME_SIZE, FRAME_SIZE)):
        self.frame_size = frame_size  # height, width
        self.model = load_model()
        self.data = mujoco.MjData(self.model)
        names = [self.model.geom(i).name for i in range(self.model.ngeom)]
        self._box, self._table = names.index("red_box"), names.index("table")
        self._right_arm = {i for i, name in enumerate(names) if name.startswith("vx300s_right/")}
        self._left_finger = names.index("vx300s_left/10_left_gripper_finger")
        self._left_fingers = {self._left_finger, names.index("vx300s_left/10_right_gripper_finger")}

    def reset(self, seed):
        """Sets the arms and the cube to the seed's start. Returns the generator, which the episode continues to use."""
        rng = np.random.default_rng(seed)
        mujoco.mj_resetData(self.model, self.data)
        arms = [ARM_AT_START + rng.uniform(-0.05, 0.05, 6) for _ in range(2)]
        self.start = np.concatenate([np.append(arm, GRIPPER_AT_START) for arm in arms])
        self.data.ctrl[:] = _controls(self.start)
        self.data.qpos[:16] = self.data.ctrl
        self.data.qpos[16:] = [rng.uniform(0.0, 0.2), rng.uniform(0.4, 0.6), 0.02, 1, 0, 0, 0]
        mujoco.mj_forward(self.model, self.data)
        self.held_ticks = 0  # since the left fingers began to hold the cube
        self._loose_ticks = 100  # since both left fingers last touched the cube
        self.touched = False
        return rng

    def command(self, action):
        """Sets the arms' targets, [14]: joints in radians, and grippers from 0 (closed) to 1."""
        self.data.ctrl[:] = _controls(action)

    def step(self):
        """Runs one step of the physics."""
        mujoco.mj_step(self.model, self.data)

    def judge(self):
        """Checks the contacts. It must be called at the end of each tick."""
        touching = set()
        for contact in self.data.contact:
            pair = {int(contact.geom1), int(contact.geom2)}
            if self._box in pair:
                touching |= pair - {self._box}
        is_off_table = self._table not in touching
        # Both fingers must touch the cube, because it may lie on one finger of an open hand. Even a firm grip loses a contact for a
        # tick or two.
        self._loose_ticks = 0 if self._left_fingers <= touching else self._loose_ticks + 1
        is_held = self._loose_ticks <= 5 and is_off_table and not touching & self._right_arm
        self.held_ticks = self.held_ticks + 1 if is_held else 0
        self.touched |= is_off_table and self._left_finger in touching

    @property
    def success(self):
        """Whether the left fingers alone have held the cube off the table for the last 0.5 s."""
        return self.held_ticks >= HELD_TICKS

    def joints(self):
        """Returns the state, float32 [14], in the order of FEATURES."""
        q = self.data.qpos
        gripper = (q[[6, 14]] - CLOSED_M) / (OPEN_M - CLOSED_M)
        return np.concatenate([q[:6], gripper[:1], q[8:14], gripper[1:]]).astype(np.float32)

    def cube(self):
        """Returns the cube's centre, float32 [3], in metres."""
        return self.data.qpos[16:19].astype(np.float32)

    def frame(self):
        """Returns what the camera above the table sees now: uint8 [height, width, 3]."""
        frame_renderer = renderer(*self.frame_size)
        frame_renderer.update_scene(self.data, camera="top")
        return frame_renderer.render()


def _controls(action):
    action = np.asarray(action, dtype=np.float64)
    left, right = CLOSED_M + np.clip(action[[6, 13]], 0, 1) * (OPEN_M - CLOSED_M)
    return np.concatenate([action[:6], [left, -left], action[7:13], [right, -right]])
