"""ALOHA's transfer cube in plain MuJoCo: two ViperX arms, a cube, and the rules that say when it was handed over.

The model is gym-aloha's: its XML and meshes are read from that package's files, and none of its code runs.
"""

import functools
import importlib.util
import os
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "egl")  # read when mujoco is imported

import mujoco
import numpy as np

TICK_S = 0.02  # commands come at 50 Hz
STEP_S = 0.002  # a step of the physics
STEPS = 10  # of the physics in a tick
FEATURES = [
    f"{arm}_{joint}"
    for arm in ("left", "right")
    for joint in ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
]
ARM_AT_START = np.array([0.0, -0.96, 1.16, 0.0, -0.3, 0.0])
GRIPPER_AT_START = 0.1
CLOSED_M, OPEN_M = 0.01844, 0.058  # where a finger is at gripper 0 and 1
FRAME_SIZE = 128
HELD_TICKS = 25  # the last 0.5 s


def model_path():
    """gym-aloha's XML of the transfer of a cube; no module of gym-aloha is imported."""
    spec = importlib.util.find_spec("gym_aloha")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "gym_aloha: not installed; its XML and meshes are all that is needed: pip install --no-deps gym-aloha"
        )
    return Path(spec.submodule_search_locations[0]) / "assets" / "bimanual_viperx_transfer_cube.xml"


@functools.cache
def load_model():
    """One model for all scenes of a process."""
    model = mujoco.MjModel.from_xml_path(str(model_path()))
    top = model.camera("top").id
    model.cam_mode[top] = mujoco.mjtCamLight.mjCAMLIGHT_FIXED
    model.cam_pos[top], model.cam_quat[top] = [0.05, 0.5, 0.8], [1, 0, 0, 0]
    model.cam_fovy[top] = 40  # where the cube is moved, 4.5 mm a pixel at 128 pixels
    model.light_castshadow[:] = False  # twice as many frames a second
    return model


@functools.cache
def renderer(height, width):
    """One renderer for all scenes of a process. MUJOCO_GL says by what: EGL, unless it is set."""
    return mujoco.Renderer(load_model(), height, width)


class Scene:
    """The simulated robots and the cube. `reset(seed)` draws where all begin; equal seeds begin equally."""

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
        """Start pose and cube of this seed. Returns the generator that drew them, for what else is drawn an episode."""
        rng = np.random.default_rng(seed)
        mujoco.mj_resetData(self.model, self.data)
        arms = [ARM_AT_START + rng.uniform(-0.05, 0.05, 6) for _ in range(2)]
        self.start = np.concatenate([np.append(arm, GRIPPER_AT_START) for arm in arms])
        self.data.ctrl[:] = _controls(self.start)
        self.data.qpos[:16] = self.data.ctrl
        self.data.qpos[16:] = [rng.uniform(0.0, 0.2), rng.uniform(0.4, 0.6), 0.02, 1, 0, 0, 0]
        mujoco.mj_forward(self.model, self.data)
        self.held_for = 0  # ticks in a row
        self._loose_for = 100  # ticks since both left fingers touched the cube
        self.touched = False
        return rng

    def command(self, action):
        """What the arms shall reach from now on: [14], radians and grippers from 0 (closed) to 1."""
        self.data.ctrl[:] = _controls(action)

    def step(self):
        """One step of the physics."""
        mujoco.mj_step(self.model, self.data)

    def judge(self):
        """Looks at the contacts; called at the end of each tick."""
        touching = set()
        for contact in self.data.contact:
            pair = {int(contact.geom1), int(contact.geom2)}
            if self._box in pair:
                touching |= pair - {self._box}
        off_table = self._table not in touching
        # Between both fingers: on one alone the cube may lie, in an open hand. A firm grip too loses a contact for a tick or two.
        self._loose_for = 0 if self._left_fingers <= touching else self._loose_for + 1
        held = self._loose_for <= 5 and off_table and not touching & self._right_arm
        self.held_for = self.held_for + 1 if held else 0
        self.touched |= off_table and self._left_finger in touching

    @property
    def success(self):
        """Held between the left fingers alone, off the table, for the last 0.5 s."""
        return self.held_for >= HELD_TICKS

    def joints(self):
        """[14] float32, as FEATURES names them."""
        q = self.data.qpos
        gripper = (q[[6, 14]] - CLOSED_M) / (OPEN_M - CLOSED_M)
        return np.concatenate([q[:6], gripper[:1], q[8:14], gripper[1:]]).astype(np.float32)

    def cube(self):
        """The cube's centre, [3] float32, metres."""
        return self.data.qpos[16:19].astype(np.float32)

    def frame(self):
        """What the camera above the table sees now: uint8 [height, width, 3]."""
        drawn = renderer(*self.frame_size)
        drawn.update_scene(self.data, camera="top")
        return drawn.render()


def _controls(action):
    action = np.asarray(action, dtype=np.float64)
    left, right = CLOSED_M + np.clip(action[[6, 13]], 0, 1) * (OPEN_M - CLOSED_M)
    return np.concatenate([action[:6], [left, -left], action[7:13], [right, -right]])
