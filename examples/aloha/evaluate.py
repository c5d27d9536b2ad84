"""Rolls out a policy from only its checkpoint and spec; no dataset is opened."""

import hashlib
import json
import multiprocessing
import time
from pathlib import Path

import numpy as np
import torch

from examples import results

from . import rollout
from .expert import TICKS

FIRST_START = 1_000_000  # demonstrations have smaller seeds
FILMED = 16  # rollouts


class Rollouts:
    """Runs rollouts in several processes, from the starts FIRST_START, FIRST_START + 1, ..., which are the same for every policy.

    All processes wait at a chunk's end, so that their observations become one batch for the policy.
    """

    def __init__(self, spec_file, count, execute, workers=None):
        self.count, self.execute = count, execute
        seeds = list(range(FIRST_START, FIRST_START + count))
        workers = min(workers or results.cores(), count)
        self._groups = [seeds[i::workers] for i in range(workers)]
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for _ in self._groups:
            parent, child = context.Pipe()
            context.Process(target=rollout.work, args=(child, str(spec_file), execute), daemon=True).start()
            child.close()
            self._pipes.append(parent)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pipe in self._pipes:
            pipe.send(None)

    def run(self, policy, device="cpu", filmed=0):
        """Returns {"successes", "touched", "rollouts", "results", "age_s", "evaluate_s"}, and the films of the first `filmed`.

        "age_s" is the mean time from an observation's moment to the tick at which the policy gets it.
        """
        began_s = time.perf_counter()
        ends = np.cumsum([len(group) for group in self._groups])[:-1]
        for pipe, group in zip(self._pipes, self._groups, strict=True):
            pipe.send((group, range(FIRST_START, FIRST_START + filmed)))
        progress = results.Progress(f"{self.count} rollouts, ticks", TICKS)
        for chunk in range(-(-TICKS // self.execute)):
            observations = [pipe.recv() for pipe in self._pipes]
            batch = {
                key: torch.from_numpy(np.concatenate([part[key] for part in observations])).to(device)
                for key in observations[0]
            }
            with torch.no_grad():
                chunks = policy.predict_action_chunk(batch).float().cpu().numpy()
            for pipe, share in zip(self._pipes, np.split(chunks, ends), strict=True):
                pipe.send(share)
            progress.show(min((chunk + 1) * self.execute, TICKS))
        progress.end()
        # Each process sends (outcome, age in seconds, frames) of its rollouts.
        ended = sorted((part for pipe in self._pipes for part in pipe.recv()), key=lambda part: part[0]["seed"])
        outcomes = [outcome for outcome, _, _ in ended]
        result = {
            "successes": sum(outcome["success"] for outcome in outcomes),
            "touched": sum(outcome["touched"] for outcome in outcomes),
            "rollouts": self.count,
            "results": outcomes,
            "age_s": float(np.mean([age for _, age, _ in ended])),
            "evaluate_s": time.perf_counter() - began_s,
        }
        return result, [frames for _, _, frames in ended if frames]


def hash_policy(file):
    """Returns a hash of a checkpoint's policy: of its weights and of the spec beside it. Equal policies have equal rollouts."""
    hasher = hashlib.sha256(file.with_name("spec.json").read_bytes())
    state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    for name, value in sorted(state["weights"].items()):
        hasher.update(name.encode() + value.numpy().tobytes())
    return hasher.hexdigest()[:16]


def evaluate_run(folder, *, rollouts, execute, workers=None, device="cpu", film=None):
    """Rolls out the checkpoints of a training run, the last one first. Returns the run's entry of a result file
    (:func:`examples.results.arm`).

    Outcomes are stored beside each checkpoint, so that an interrupted run can continue. A policy is not rolled out again if another
    run beside `folder` has it, too.
    """
    from .train import checkpoints, load

    folder = Path(folder)
    files = checkpoints(folder)
    if not files:
        raise SystemExit(f"{folder}: no checkpoint; run train first")
    state = torch.load(files[-1], map_location="cpu", weights_only=True)
    logged = {entry["step"]: entry for entry in state["log"]}
    options = {file: [hash_policy(file), rollouts, execute] for file in files}
    stored = [json.loads(path.read_text()) for path in folder.parent.glob("*/step_*.rollouts.json")]
    rolled_out = {file: content for file in files for content in stored if content["options"] == options[file]}
    if missing := [file for file in reversed(files) if file not in rolled_out]:
        with Rollouts(folder / "spec.json", rollouts, execute, workers) as runner:
            for file in missing:
                filmed = FILMED if film and file == files[-1] else 0
                content, films = runner.run(load(file, device), device, filmed)
                if films:
                    results.film(
                        film, films, [result["success"] for result in content["results"][: len(films)]], fps=7.5
                    )
                rolled_out[file] = {**content, "options": options[file]}
                file.with_suffix(".rollouts.json").write_text(json.dumps(rolled_out[file]))
    last = rolled_out[files[-1]]
    curve = [
        logged[int(file.stem.split("_")[1])]
        | {key: rolled_out[file][key] for key in ("successes", "touched", "rollouts")}
        | {"policy": options[file][0]}
        for file in files
    ]
    outcomes = [result["success"] for result in last["results"]]
    paces = ("steps_per_s", "gpu_busy", "saving_s")
    pace = state["pace"] or dict.fromkeys((*paces, "wait_share"))  # it is None if training was interrupted
    arm = results.arm(state["kind"], state["seed"], outcomes, curve=curve, wait_share=pace["wait_share"])
    return (
        arm
        | {key: last[key] for key in ("touched", "age_s", "evaluate_s")}
        | {key: pace[key] for key in paces}
        | {"execute": execute, "trained_with": state["trained_with"]}
    )
