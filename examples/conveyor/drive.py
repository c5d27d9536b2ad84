"""Runs a trained policy on the belt: rings get the rows, an aligner makes the policy's windows of them, and chunks give the commands."""

import numpy as np
import torch

from examples.conveyor.belt import COMMAND_STEPS, ROW_STEPS, SECONDS, STEPS_HZ, Camera, Episode, time_ns
from examples.conveyor.demonstrations import ACTION, AGE, CAMERA, row_of
from examples.conveyor.learn import ACTIONS_S, ages_of
from examples.results import Progress
from robocache import Spec, live

FILM_FROM_S = 0.5
FINE_S = np.arange(0, ACTIONS_S[-1], 0.001)  # commands are interpolated linearly to these times of a chunk


class Robot:
    """Runs one rollout as the process on a robot would."""

    def __init__(self, episode, spec, arm, delay_s):
        self.episode, self.arm = episode, arm
        self.arrivals = episode.arrivals(delay_s)
        frame = spec.keys[CAMERA]["rows"]
        options = {"span_s": 2.0, "on_duplicate": "refuse"}
        self.rings = {CAMERA: live.Ring(frame["shape"], frame["dtype"], codec=frame["codec"], **options)}
        if arm == "stamps":
            self.rings[AGE] = live.Ring((), "float32", **options)
        self.aligner = live.Aligner(spec, self.rings, outputs=[ACTION])
        self.chunks = live.Chunks("newest")
        self.command = episode.data.ctrl[:2].copy()
        self.pushed, self.ages_ms = 0, []
        self.film, self.touched = [], False  # the film ends when the tip has come down

    def window(self):
        """Returns the policy's window, every 1/30 s; None before the first frame.

        With clocks, a frame is pushed with its own stamp when it arrives, and the window is at the newest settled moment. With rows,
        the newest frame that has arrived is pushed as the row of this moment, as a recorder would store it.
        """
        now = time_ns(self.episode.step)
        if self.arm == "clocks":
            while self.pushed < len(self.arrivals) and self.arrivals[self.pushed] <= now:
                stamp, file = int(self.episode.stamps[self.pushed]), self.episode.files[self.pushed]
                self.rings[CAMERA].push(stamp, file, arrival_ns=int(self.arrivals[self.pushed]))
                self.pushed += 1
            batch = self.aligner.latest()
        else:
            row = row_of(self.episode.step // ROW_STEPS, self.arrivals, self.episode.stamps)
            if row is None:
                return None
            frame, age_s = row
            self.rings[CAMERA].push(now, self.episode.files[frame], arrival_ns=now)
            if self.arm == "stamps":
                self.rings[AGE].push(now, np.float32(age_s), arrival_ns=now)
            batch = self.aligner.at(now)
        if batch is None:
            return None
        newest = int(np.searchsorted(self.arrivals, now, "right")) - 1
        self.ages_ms.append((now - self.episode.stamps[newest]) / 1e6)
        return {"time_ns": int(batch["time_ns"][0]), "ages": ages_of(batch, self.arm)[0].clone(),
                "frames": batch[CAMERA][0].clone(), "is_pad": batch[f"{CAMERA}_is_pad"][0].clone()}  # fmt: skip

    def take(self, moment_ns, actions):
        fine = np.stack([np.interp(FINE_S, ACTIONS_S, feature) for feature in actions.T], 1)
        self.chunks.put(moment_ns, FINE_S, fine)

    def advance(self):
        command = self.chunks.at(time_ns(self.episode.step))
        self.command = self.command if command is None else command
        self.episode.advance(self.command)


def roll_out(policy, spec_path, arm, delay_ms, *, rollouts, seed, device, note, filmed=0):
    """Lets the policy reach for `rollouts` parts at the same time. Returns the misses in mm, the ages of the newest frames in ms, and
    the films of the first `filmed` rollouts."""
    spec, camera = Spec.load(spec_path), Camera()
    robots = [Robot(Episode(camera, [seed, number]), spec, arm, delay_ms / 1e3) for number in range(rollouts)]
    progress = Progress(note, int(SECONDS * STEPS_HZ))
    policy = policy.to(device).eval()
    for step in range(0, int(SECONDS * STEPS_HZ), COMMAND_STEPS):
        if step % ROW_STEPS == 0:
            windows = {robot: window for robot in robots if (window := robot.window())}
            if windows:
                inputs = [
                    torch.stack([window[name] for window in windows.values()]).to(device)
                    for name in ("frames", "ages", "is_pad")
                ]
                with torch.no_grad():
                    chunks = spec.unnormalize(ACTION, policy(*inputs).cpu().double()).numpy()
                for robot, window, chunk in zip(windows, windows.values(), chunks, strict=True):
                    robot.take(window["time_ns"], chunk)
        for robot in robots:
            robot.advance()
        for robot in robots[:filmed]:
            if step >= FILM_FROM_S * STEPS_HZ and step % ROW_STEPS == 0 and not robot.touched:
                robot.film.append(robot.episode.camera.close_up(robot.episode.data))
                robot.touched = robot.episode.missed_m is not None
        progress.show(step)
    progress.done = progress.total
    misses = [round(1e3 * robot.episode.missed_m, 3) for robot in robots]
    progress.end()
    return misses, [age for robot in robots for age in robot.ages_ms], [robot.film for robot in robots[:filmed]]
