"""Simulates a part on a moving belt, a tool that comes down on it, and a camera whose frames arrive late.

The belt carries the part at 0.1 to 0.4 m/s, drawn for each episode. A gantry moves the tool to the commanded x and y. At LOWER_S the
cell lowers the tool; the position that its tip touches counts. The camera has a clock of its own, of about 30 Hz. A frame arrives some
tens of milliseconds after its moment. The delay changes slowly, with the load of the link, and frames arrive in order.
"""

import io
import os

os.environ.setdefault("MUJOCO_GL", "egl")  # renders without a display

import mujoco
import numpy as np
from PIL import Image

STEPS_HZ = 480  # the steps of the physics in a second
COMMAND_STEPS, ROW_STEPS = 4, 16  # a command comes every 1/120 s, a row every 1/30 s
SECONDS, LOWER_S = 1.3, 1.05
HEIGHT, WIDTH = 32, 96  # a frame's size; a pixel has 6.7 mm
LAG_S = 0.054  # the gantry's delay behind commands that move and are each held for 1/120 s
ABOVE_M, TOUCH_M = 0.06, 0.02  # the height of the waiting tool, and that of the part's top
NEAR_M = 0.003  # a tip less than this far from the part's centre has reached it
SPEED_M_S = (0.1, 0.4)
# The standard deviation of delays, as a share of their mean, and the time in which their correlation falls to 1/e.
DELAY_SPREAD, DELAY_MEMORY_S = 0.6, 0.3

SCENE = f"""
<mujoco>
  <option timestep="{1 / STEPS_HZ}" integrator="implicitfast" gravity="0 0 0"/>
  <visual><quality offsamples="4"/></visual>
  <default><geom contype="0" conaffinity="0"/><joint type="slide"/></default>
  <worldbody>
    <light pos="0 -1 3" dir="0 0.3 -1" castshadow="false"/>
    <camera name="belt" pos="0 -1.6 1.6" xyaxes="1 0 0 0 1 1" fovy="5.4"/>
    <geom type="box" size="0.6 0.12 0.01" pos="0 0 -0.01" rgba="0.15 0.15 0.17 1"/>
    <body name="part"><joint name="part_x" axis="1 0 0"/><joint name="part_y" axis="0 1 0"/>
      <geom type="cylinder" size="0.02 {TOUCH_M / 2}" pos="0 0 {TOUCH_M / 2}" mass="0.1" rgba="0.9 0.3 0.1 1"/></body>
    <body name="tool"><joint name="x" axis="1 0 0"/><joint name="y" axis="0 1 0"/><joint name="z" axis="0 0 1"/>
      <geom type="cylinder" size="0.004 0.1" pos="0 0 0.1" mass="1" rgba="0.6 0.7 0.8 1"/></body>
  </worldbody>
  <actuator>
    <position joint="x" kp="1600" kv="80"/><position joint="y" kp="1600" kv="80"/><position joint="z" kp="1600" kv="80"/>
  </actuator>
</mujoco>
"""


def time_ns(step):
    """Returns the stamp of a step of the physics. A recording begins at 1 s."""
    return 1_000_000_000 + round(step * 1_000_000_000 / STEPS_HZ)


class Camera:
    """Renders one episode after another, with one model and one OpenGL context."""

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(SCENE)
        self.renderer = mujoco.Renderer(self.model, HEIGHT, WIDTH)
        self.renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        self.renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self.above = None

    def png(self, data):
        self.renderer.update_scene(data, "belt")
        file = io.BytesIO()
        Image.fromarray(self.renderer.render()).save(file, "png", compress_level=1)
        return file.getvalue()

    def close_up(self, data):
        """Returns a view of the part from above, uint8 [96, 96, 3]; a pixel has a millimetre."""
        if self.above is None:
            self.above = mujoco.Renderer(self.model, 96, 96)
            self.model.vis.global_.fovy = 0.096
            self.view = mujoco.MjvCamera()
            self.view.azimuth, self.view.elevation, self.view.distance, self.view.orthographic = 90, -90, 1, 1
        self.view.lookat[:] = [*data.qpos[:2], 0]
        self.above.update_scene(data, self.view)
        return self.above.render()


class Episode:
    """Simulates one part on the belt. Equal seeds give equal parts, tools, moments of frames, and delays in units of their mean."""

    def __init__(self, camera, seed):
        rng = np.random.default_rng(seed)
        self.camera, self.data = camera, mujoco.MjData(camera.model)
        self.start = np.array([rng.uniform(-0.28, -0.2), rng.uniform(-0.05, 0.05)])
        self.speed = np.array([rng.uniform(*SPEED_M_S), 0.0])
        home = rng.uniform(-0.05, 0.05, 2)
        self.sway = rng.uniform(2, 9, 2)
        self.data.qpos[:] = [*self.start, *home, ABOVE_M]
        self.data.qvel[0] = self.speed[0]
        self.data.ctrl[:] = [*home, ABOVE_M]
        mujoco.mj_forward(camera.model, self.data)
        last = int(SECONDS * STEPS_HZ)
        self.frame_steps = np.round(
            np.arange(rng.uniform(0, ROW_STEPS), last, ROW_STEPS * rng.uniform(0.995, 1.005))
        ).astype(int)
        self.frame_steps = self.frame_steps[self.frame_steps < last]
        self.stamps = np.array([time_ns(step) for step in self.frame_steps])
        self.delays = draw_delays(rng, len(self.stamps))
        self.files = []  # the frames until now
        self.step, self.missed_m = 0, None

    def part_at(self, seconds):
        return self.start + self.speed * seconds

    def expert(self):
        """Returns the command that brings the tool above the part, by the part's true position."""
        return self.part_at(self.step / STEPS_HZ + LAG_S)

    def push(self):
        """Returns an offset of up to 4 cm that a demonstration adds to the command until 0.2 s before the tool comes down. It keeps the
        tool beside the part, so that the policy learns to look at the part."""
        seconds = self.step / STEPS_HZ
        return max(0.0, 1 - seconds / (LOWER_S - 0.2)) * 0.04 * np.sin(self.sway * seconds + self.sway[::-1])

    def arrivals(self, delay_s):
        """Returns when each frame arrives if the mean delay is `delay_s`."""
        return np.maximum.accumulate(self.stamps + np.round(1e9 * delay_s * self.delays).astype(np.int64))

    def look(self):
        """Takes a frame if one is due."""
        if len(self.files) < len(self.frame_steps) and self.frame_steps[len(self.files)] == self.step:
            self.files.append(self.camera.png(self.data))

    def advance(self, command):
        """Moves the tool towards a command (x, y) until the next command is due, and takes the frames."""
        self.data.ctrl[:] = [*command, ABOVE_M if self.step < LOWER_S * STEPS_HZ else -ABOVE_M]
        for _ in range(COMMAND_STEPS):
            self.look()
            mujoco.mj_step(self.camera.model, self.data)
            self.step += 1
            part_x, part_y, x, y, z = self.data.qpos
            if self.missed_m is None and z <= TOUCH_M:
                self.missed_m = float(np.hypot(x - part_x, y - part_y))

    @property
    def success(self):
        return self.missed_m is not None and self.missed_m < NEAR_M

    @property
    def done(self):
        return self.step >= SECONDS * STEPS_HZ


def draw_delays(rng, frames):
    """Returns log-normal delays with the mean 1; each is correlated with the one before."""
    correlation = np.exp(-ROW_STEPS / STEPS_HZ / DELAY_MEMORY_S)
    noise = rng.standard_normal(frames)
    for k in range(1, frames):
        noise[k] = correlation * noise[k - 1] + np.sqrt(1 - correlation**2) * noise[k]
    sigma = np.sqrt(np.log1p(DELAY_SPREAD**2))
    return np.exp(sigma * noise - sigma**2 / 2)
