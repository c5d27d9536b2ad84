"""Rollouts of a policy from its checkpoint and spec alone: no dataset is opened.

Each rollout has rings and an aligner, as a robot would: rows are pushed when they have come, and the policy is given the
newest moment at which all of them are settled. Its chunk is laid out in time from that moment on.
"""

import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import torch

import robocache
from examples import results
from robocache import live

from .episode import ACTION, CAMERA, CUBE, STATE, WAIT_TICKS, Episode, to_ns
from .expert import TICKS
from .scene import FRAME_SIZE, TICK_S, Scene

FIRST_START = 1_000_000  # seeds of starts that no demonstration has


class Rollout:
    """One episode under a policy that is asked each `execute` ticks."""

    def __init__(self, seed, spec, execute, film=False):
        self.seed, self._spec, self._execute = seed, spec, execute
        self._episode = Episode(Scene(), seed)
        self.ticks = 0
        self.frames = []
        self.ages_s = []
        rings = {STATE: live.Ring((14,), "float32", span_s=1.0)}
        self._camera = CAMERA in spec.keys
        self._wanted = set()
        if self._camera:
            rings[CAMERA] = live.Ring((FRAME_SIZE, FRAME_SIZE, 3), "uint8", span_s=1.0, codec="jpeg")
            asked = (WAIT_TICKS + np.arange(0, TICKS, execute)) * TICK_S
            self._wanted = set((np.searchsorted(self._episode.arrived_s, asked, side="right") - 1).tolist())
        filmed = set(range(0, len(self._episode.exposed_s), 4)) if film else set()
        if CUBE in spec.keys:
            rings[CUBE] = live.Ring((3,), "float32", span_s=1.0)
        self._rings = rings
        self._filmed = filmed
        self._aligner = live.Aligner(spec, rings, outputs=[ACTION], framework="numpy")
        self._chunks = live.Chunks("newest", spec=spec, key=ACTION)
        self._sensors = {"on_joints": self._on_joints, "on_frame": self._on_frame, "frames": self._wanted | filmed}
        self._episode.stand_still(**self._sensors)

    def observe(self):
        """What the policy is given: {key: [1, ...]}."""
        now = self._episode.tick * TICK_S
        # The joints' row of this very moment has come too; it settles what lies up to it.
        self._on_joints(now, self._episode.scene.joints(), self._episode.scene.cube())
        batch = self._aligner.latest()
        self._batch = {"time_ns": int(batch["time_ns"][0])}
        self.ages_s.append((int(to_ns(now)) - self._batch["time_ns"]) / 1e9)
        return {key: batch[key].copy() for key in self._rings}

    def advance(self, actions):
        """Carries out the next `execute` ticks of the policy's output [CHUNK, 14]."""
        self._chunks.put(self._batch["time_ns"], None, actions, batch=self._batch)
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
        if index in self._wanted:
            encoded = robocache.frames.encode(picture[None], "jpeg")
            stamp, arrival = to_ns(self._episode.exposed_s[index]), to_ns(self._episode.arrived_s[index])
            self._rings[CAMERA].push(int(stamp), encoded.data.tobytes(), int(arrival))
        if index in self._filmed:
            self.frames.append(picture.copy())


def _work(pipe, seeds, spec_file, execute, filmed):
    """A process with some of the rollouts; it sends what all of them see and gets a chunk for each."""
    robocache.set_num_threads(1)
    spec = robocache.Spec.load(spec_file)
    rollouts = [Rollout(seed, spec, execute, seed in filmed) for seed in seeds]
    while rollouts[0].ticks < TICKS:
        seen = [rollout.observe() for rollout in rollouts]
        pipe.send({key: np.concatenate([one[key] for one in seen]) for key in seen[0]})
        for rollout, actions in zip(rollouts, pipe.recv(), strict=True):
            rollout.advance(actions)
    pipe.send([(rollout.result(), np.mean(rollout.ages_s), rollout.frames) for rollout in rollouts])


def evaluate(policy, spec_file, *, rollouts, execute=25, workers=None, device="cpu", first=FIRST_START, filmed=0, show=print):
    """Rolls `policy` out from the starts `first`, `first` + 1, ...: the same for every policy.

    All processes stop at a chunk's end; their observations become one batch and one inference. Returns {"successes", "touched",
    "rollouts", "results", "age_s", "films", "evaluate_s"}; `films` are the frames of the first `filmed` rollouts.
    """
    began = time.perf_counter()
    seeds = list(range(first, first + rollouts))
    workers = min(workers or os.cpu_count() or 1, rollouts)
    context = multiprocessing.get_context("spawn")
    groups = [seeds[i::workers] for i in range(workers)]
    pipes, processes = [], []
    for group in groups:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, group, str(spec_file), execute, set(seeds[:filmed])), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    try:
        for asked in range(-(-TICKS // execute)):
            seen = [pipe.recv() for pipe in pipes]
            batch = {key: torch.from_numpy(np.concatenate([one[key] for one in seen])).to(device) for key in seen[0]}
            with torch.no_grad():
                chunks = policy.predict_action_chunk(batch).float().cpu().numpy()
            for pipe, share in zip(pipes, np.split(chunks, np.cumsum([len(g) for g in groups])[:-1]), strict=True):
                pipe.send(list(share))
            if asked % 4 == 3:
                spent = time.perf_counter() - began
                show(f"rolled out {(asked + 1) * execute} of {TICKS} ticks in {spent:.0f} s")
        ended = sorted((one for pipe in pipes for one in pipe.recv()), key=lambda one: one[0]["seed"])
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.terminate()
    results = [result for result, _, _ in ended]
    return {
        "successes": sum(result["success"] for result in results),
        "touched": sum(result["touched"] for result in results),
        "rollouts": rollouts,
        "results": results,
        "age_s": float(np.mean([age for _, age, _ in ended])),
        "films": [frames for _, _, frames in ended if frames],
        "evaluate_s": time.perf_counter() - began,
    }


def evaluate_run(folder, *, only_last=False, budget_s=None, film=None, show=print, **options):
    """Rolls out the checkpoints of a training run, the last one first. Returns an arm of a result file.

    Outcomes are kept beside each checkpoint, so that a run that was stopped goes on.
    """
    from .train import checkpoints, load

    folder = Path(folder)
    files = checkpoints(folder)
    if not files:
        raise SystemExit(f"{folder}: no checkpoint; run train first")
    state = torch.load(files[-1], map_location="cpu", weights_only=True)
    logged = {entry["step"]: entry for entry in state["log"]}
    began, curve, last = time.perf_counter(), [], None
    for file in reversed(files[-1:] if only_last else files):
        kept = file.with_suffix(".rollouts.json")
        found = json.loads(kept.read_text()) if kept.exists() else {}
        if found.get("options") != [options["rollouts"], options["execute"]]:
            spent = time.perf_counter() - began
            if last is not None and budget_s is not None and spent * (1 + 1 / (len(curve) or 1)) > budget_s:
                show(f"left out {file.stem}: {spent:.0f} of {budget_s:.0f} s are spent")
                continue
            policy = load(file, options.get("device", "cpu"))
            found = evaluate(policy, folder / "spec.json", filmed=16 if film and last is None else 0, show=show, **options)
            films = found.pop("films")
            if films:
                draw(film, films, [bool(one["success"]) for one in found["results"][: len(films)]])
            found["options"] = [options["rollouts"], options["execute"]]
            kept.write_text(json.dumps(found))
        show(f"{file.stem}: {found['successes']} of {found['rollouts']} strict, {found['touched']} by a touch")
        last = last or found
        step = int(file.stem.split("_")[1])
        curve.insert(0, {**logged[step], **{key: found[key] for key in ("successes", "touched", "rollouts")}})
    outcomes = [one["success"] for one in last["results"]]
    arm = results.arm(folder.name, state["seed"], outcomes, curve=curve, wait_share=state["wait_share"])
    return arm | {key: last[key] for key in ("touched", "age_s", "evaluate_s")} | {"execute": options["execute"]}


def draw(path, films, successes):
    """A GIF of the rollouts side by side, a green or a red edge for success or failure, and a PNG of its last picture."""
    from PIL import Image

    length = min(map(len, films))
    across = int(np.ceil(np.sqrt(len(films))))
    pictures = []
    for moment in range(length):
        tiles = []
        for film, success in zip(films, successes, strict=True):
            tile = film[moment].copy()
            tile[:3], tile[-3:], tile[:, :3], tile[:, -3:] = [[40, 160, 70] if success else [210, 40, 40]] * 4
            tiles.append(tile)
        tiles += [np.zeros_like(tiles[0])] * (-len(tiles) % across)
        rows = [np.concatenate(tiles[i : i + across], axis=1) for i in range(0, len(tiles), across)]
        pictures.append(Image.fromarray(np.concatenate(rows)))
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=130, loop=0)
    pictures[-1].save(Path(path).with_suffix(".png"))
