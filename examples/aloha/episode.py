"""Runs an episode with the sensors' clocks: joints at 200 Hz, commands at 50 Hz, and a camera that is late and loses frames."""

import numpy as np

from .expert import TICKS
from .scene import STEP_S, STEPS, TICK_S

STATE, CUBE, CAMERA, ACTION = (
    "observation.state",
    "observation.environment_state",
    "observation.images.top",
    "action",
)
WAIT_TICKS = 5  # the arms stand still until the camera's first frame has arrived
LENGTH_S = (WAIT_TICKS + TICKS) * TICK_S
START_NS = 1_700_000_000_000_000_000
JOINT_STEPS = {round(i / 200 / STEP_S) for i in range(int(LENGTH_S * 200) + 1)}  # 200 Hz, on the physics' own steps


def to_ns(seconds):
    return START_NS + np.round(np.asarray(seconds) * 1e9).astype(np.int64)


def camera_clock(rng):
    """Returns when frames are exposed and when they arrive, in seconds. Exposures are at 30 Hz with jitter; frames are delayed, and 3 %
    of them lost."""
    count = int(LENGTH_S * 30)
    exposed = np.arange(count) / 30 + rng.uniform(0.0, 0.006, count)
    exposed = np.round(exposed / STEP_S) * STEP_S  # there is no moment between the steps of the physics
    arrived = np.maximum.accumulate(exposed + 0.025 + rng.exponential(0.008, count).clip(max=0.03))
    is_kept = rng.random(count) >= 0.03
    is_kept[0] = True
    return exposed[is_kept], arrived[is_kept]


class Episode:
    """Runs a scene from the start of a seed. Each call of `run` continues where the last one stopped."""

    def __init__(self, scene, seed):
        self.scene = scene
        self.rng = scene.reset(seed)
        self.exposed_s, self.arrived_s = camera_clock(np.random.default_rng([seed, 1]))
        self.tick = 0  # the number of executed commands, with those for standing still
        self._frame = 0  # the index of the frame that is exposed next

    def run(self, commands, on_joints=None, on_frame=None, frames=None):
        """Executes commands [n, 14], one per tick.

        on_joints(t_s, joints, cube) gets each sample. on_frame(index, picture) gets each frame whose index is in `frames`, by default
        every frame.
        """
        scene = self.scene
        for command in commands:
            scene.command(command)
            for step in range(self.tick * STEPS, (self.tick + 1) * STEPS):
                if on_joints is not None and step in JOINT_STEPS:
                    on_joints(step * STEP_S, scene.joints(), scene.cube())
                if self._frame < len(self.exposed_s) and self.exposed_s[self._frame] <= (step + 0.5) * STEP_S:
                    if on_frame is not None and (frames is None or self._frame in frames):
                        on_frame(self._frame, scene.frame())
                    self._frame += 1
                scene.step()
            scene.judge()
            self.tick += 1

    def stand_still(self, **sensors):
        """Runs the first ticks, with commands that move no arm."""
        self.run([self.scene.start] * WAIT_TICKS, **sensors)
