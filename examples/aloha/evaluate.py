"""Rollouts of a policy from its checkpoint and spec alone: no dataset is opened."""

import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import torch

from examples import results

from . import rollout
from .expert import TICKS

FIRST_START = 1_000_000  # seeds of starts that no demonstration has


class Rollouts:
    """Rollouts from the starts FIRST_START, FIRST_START + 1, ..., the same for every policy, in processes that all stop at a
    chunk's end: what they see then becomes one batch and one inference."""

    def __init__(self, spec_file, count, execute, workers=None):
        self.count, self.execute = count, execute
        seeds = list(range(FIRST_START, FIRST_START + count))
        workers = min(workers or os.cpu_count() or 1, count)
        self._groups = [seeds[i::workers] for i in range(workers)]
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for _ in self._groups:
            here, there = context.Pipe()
            context.Process(target=rollout.work, args=(there, str(spec_file), execute), daemon=True).start()
            there.close()
            self._pipes.append(here)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pipe in self._pipes:
            pipe.send(None)

    def run(self, policy, device="cpu", filmed=0, show=print):
        """Returns {"successes", "touched", "rollouts", "results", "age_s", "evaluate_s"}, and the films of the first `filmed`."""
        began = time.perf_counter()
        ends = np.cumsum([len(group) for group in self._groups])[:-1]
        for pipe, group in zip(self._pipes, self._groups, strict=True):
            pipe.send((group, range(FIRST_START, FIRST_START + filmed)))
        for asked in range(-(-TICKS // self.execute)):
            seen = [pipe.recv() for pipe in self._pipes]
            batch = {key: torch.from_numpy(np.concatenate([one[key] for one in seen])).to(device) for key in seen[0]}
            with torch.no_grad():
                chunks = policy.predict_action_chunk(batch).float().cpu().numpy()
            for pipe, share in zip(self._pipes, np.split(chunks, ends), strict=True):
                pipe.send(share)
            spent = time.perf_counter() - began
            if spent > 10 and asked % 4 == 3:
                show(f"rolled out {(asked + 1) * self.execute} of {TICKS} ticks in {spent:.0f} s")
        ended = sorted((one for pipe in self._pipes for one in pipe.recv()), key=lambda one: one[0]["seed"])
        outcomes = [result for result, _, _ in ended]
        found = {
            "successes": sum(result["success"] for result in outcomes),
            "touched": sum(result["touched"] for result in outcomes),
            "rollouts": self.count,
            "results": outcomes,
            "age_s": float(np.mean([age for _, age, _ in ended])),
            "evaluate_s": time.perf_counter() - began,
        }
        return found, [frames for _, _, frames in ended if frames]


def evaluate_run(
    folder,
    *,
    rollouts,
    execute,
    workers=None,
    device="cpu",
    only_last=False,
    budget_s=None,
    film=None,
    show=print,
):
    """Rolls out the checkpoints of a training run, the last one first, then from the first on. Returns an arm of a result file.

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
    with Rollouts(folder / "spec.json", rollouts, execute, workers) as starts:
        for file in files[-1:] if only_last else [files[-1], *files[:-1]]:
            kept = file.with_suffix(".rollouts.json")
            found = json.loads(kept.read_text()) if kept.exists() else {}
            if found.get("options") != [rollouts, execute]:
                spent = time.perf_counter() - began
                if last is not None and budget_s is not None and spent * (1 + 1 / len(curve)) > budget_s:
                    show(f"left out {file.stem}: {spent:.0f} of {budget_s:.0f} s are spent")
                    continue
                filmed = 16 if film and last is None else 0
                found, films = starts.run(load(file, device), device, filmed, show)
                if films:
                    results.film(film, films, [one["success"] for one in found["results"][: len(films)]], fps=7.5)
                found["options"] = [rollouts, execute]
                kept.write_text(json.dumps(found))
            show(f"{file.stem}: {found['successes']} of {rollouts} strict, {found['touched']} by a touch")
            last = last or found
            step = int(file.stem.split("_")[1])
            curve.append(logged[step] | {key: found[key] for key in ("successes", "touched", "rollouts")})
    curve.sort(key=lambda point: point["step"])
    outcomes = [one["success"] for one in last["results"]]
    arm = results.arm(state["kind"], state["seed"], outcomes, curve=curve, wait_share=state["wait_share"])
    return (
        arm
        | {key: last[key] for key in ("touched", "age_s", "evaluate_s")}
        | {"execute": execute, "trained_with": state["trained_with"]}
    )
