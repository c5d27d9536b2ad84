"""Runs a rollout, and is the program of a process with several. It does not use torch, whose import would take longer than a rollout.

Each rollout has rings and an aligner, as a robot has: rows are pushed when they arrive, and the policy gets the newest moment at which
all rows are settled. Its chunk begins at that moment.
"""

import numpy as np

import robocache
from robocache import live

from .episode import ACTION, CAMERA, CUBE, STATE, WAIT_TICKS, Episode, to_ns
from .expert import TICKS
from .scene import FRAME_SIZE, TICK_S, Scene


class Rollout:
    """Runs one episode with a policy, which predicts a chunk every `execute` ticks."""

    def __init__(self, seed, spec, execute, film=False):
        self.seed, self._spec, self._execute = seed, spec, execute
        self._episode = Episode(Scene(), seed)
        self.ticks = 0
        self.frames = []
        self.ages_s = []
        rings = {STATE: live.Ring((14,), "float32", span_s=1.0)}
        self._observed = set()
        if CAMERA in spec.keys:
            rings[CAMERA] = live.Ring(
                (FRAME_SIZE, FRAME_SIZE, 3), "uint8", span_s=1.0, codec="jpeg", on_duplicate="refuse"
            )
            observed_s = (WAIT_TICKS + np.arange(0, TICKS, execute)) * TICK_S
            self._observed = set((np.searchsorted(self._episode.arrived_s, observed_s, side="right") - 1).tolist())
        filmed = set(range(0, len(self._episode.exposed_s), 4)) if film else set()
        if CUBE in spec.keys:
            rings[CUBE] = live.Ring((3,), "float32", span_s=1.0)
        self._rings = rings
        self._filmed = filmed
        self._aligner = live.Aligner(spec, rings, outputs=[ACTION], framework="numpy")
        self._chunks = live.Chunks("newest", spec=spec, key=ACTION)
        self._sensors = {"on_joints": self._on_joints, "on_frame": self._on_frame, "frames": self._observed | filmed}
        self._episode.stand_still(**self._sensors)

    def observe(self):
        """Returns the policy's input: an array [1, ...] for each key."""
        batch = self._aligner.latest()
        self._batch = {key: batch[key].copy() for key in ("time_ns", f"{ACTION}_base") if key in batch}
        now_ns = int(to_ns(self._episode.tick * TICK_S))
        self.ages_s.append((now_ns - int(batch["time_ns"][0])) / 1e9)
        return {key: batch[key].copy() for key in self._rings}

    def advance(self, actions):
        """Executes `execute` ticks of the policy's output [CHUNK, 14]."""
        self._chunks.put(int(self._batch["time_ns"][0]), None, actions[None], batch=self._batch)
        ticks = min(self._execute, TICKS - self.ticks)
        moments = to_ns((self._episode.tick + np.arange(ticks)) * TICK_S)
        self._episode.run([self._chunks.at(int(moment)) for moment in moments], **self._sensors)
        self.ticks += ticks

    def result(self):
        scene = self._episode.scene
        return {"seed": self.seed, "success": bool(scene.success), "touched": bool(scene.touched)}

    def _on_joints(self, t_s, joints, cube):
        self._rings[STATE].push(int(to_ns(t_s)), joints)
        if CUBE in self._rings:
            self._rings[CUBE].push(int(to_ns(t_s)), cube)

    def _on_frame(self, index, picture):
        if index in self._observed:
            encoded = robocache.frames.encode(picture[None], "jpeg")
            stamp_ns, arrival_ns = to_ns(self._episode.exposed_s[index]), to_ns(self._episode.arrived_s[index])
            self._rings[CAMERA].push(int(stamp_ns), encoded.data.tobytes(), int(arrival_ns))
        if index in self._filmed:
            self.frames.append(picture.copy())


def work(pipe, spec_file, execute):
    """The program of a process with some of the rollouts. It receives (seeds, filmed), which begins rollouts, or None, which ends it.

    It sends the observations of all rollouts, receives a chunk for each, and at the end sends their outcomes.
    """
    robocache.set_num_threads(1)
    spec = robocache.Spec.load(spec_file)
    while (request := pipe.recv()) is not None:
        seeds, filmed = request
        rollouts = [Rollout(seed, spec, execute, seed in filmed) for seed in seeds]
        while rollouts[0].ticks < TICKS:
            observations = [rollout.observe() for rollout in rollouts]
            pipe.send(
                {key: np.concatenate([observation[key] for observation in observations]) for key in observations[0]}
            )
            for rollout, actions in zip(rollouts, pipe.recv(), strict=True):
                rollout.advance(actions)
        pipe.send([(rollout.result(), float(np.mean(rollout.ages_s)), rollout.frames) for rollout in rollouts])
