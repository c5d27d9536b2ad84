"""lerobot-train with our dataset instead of LeRobot's: the time of a step, including the batch. Needs LeRobot.

    python bench/lerobot_train.py --threads 2

The dataset is written by LeRobot: 50 episodes of 200 frames, with 14 features of state, 6 of the environment and 14 of action
at 50 Hz, without images. The policy is an ACT with 1 layer of 32 features and chunks of 100 actions, trained on the CPU. Each
contender trains in a separate process, without workers and with as many workers as threads. Only the faster time counts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from record import Report, arguments, temporary_folder

FEATURES = {"observation.state": 14, "observation.environment_state": 6, "action": 14}
FPS = 50
BATCH_SIZES = [8, 64]
WARM_UP = 20  # steps

AIMS = {f"batch {size}": {"faster_than": {"LeRobot's own": 3}} for size in BATCH_SIZES}


def write_dataset(root: Path, episodes: int, frames: int) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    rng = np.random.default_rng(0)
    features = {key: {"dtype": "float32", "shape": (width,), "names": None} for key, width in FEATURES.items()}
    dataset = LeRobotDataset.create("bench/low", FPS, features, root=root, use_videos=False)
    for _ in range(episodes):
        for _ in range(frames):
            row = {key: rng.standard_normal(width, np.float32) for key, width in FEATURES.items()}
            dataset.add_frame({**row, "task": "bench"})
        dataset.save_episode()
    dataset.finalize()


def train(root: str, ours: str, batch_size: str, workers: str, steps: str, threads: str) -> None:
    """Trains in this process, which measure_step_s starts. Prints the seconds from each step to the next."""
    import lerobot.datasets.factory
    import lerobot.scripts.lerobot_train as trainer
    import robocache.lerobot
    import torch

    torch.set_num_threads(int(threads))
    robocache.set_num_threads(int(threads))
    if ours == "ours":
        lerobot.datasets.factory.make_dataset = trainer.make_dataset = robocache.lerobot.make_dataset
    step_starts = []
    update_policy = trainer.update_policy

    def time_update(*arguments, **options):
        step_starts.append(time.perf_counter())
        return update_policy(*arguments, **options)

    trainer.update_policy = time_update
    policy = "type=act device=cpu push_to_hub=false dim_model=32 n_heads=2 dim_feedforward=32 n_encoder_layers=1 "
    policy += "n_vae_encoder_layers=1 chunk_size=100 n_action_steps=100"
    with tempfile.TemporaryDirectory() as out:
        trainer_options = (
            f"--dataset.root={root} --dataset.repo_id=bench/low --output_dir={out}/train --wandb.enable=false --seed=0 "
        )
        trainer_options += f"--steps={steps} --batch_size={batch_size} --num_workers={workers} --save_checkpoint=false --log_freq={steps}"
        sys.argv = ["lerobot-train", *trainer_options.split(), *(f"--policy.{option}" for option in policy.split())]
        trainer.main()
    print("step times", json.dumps(np.diff(step_starts).tolist()))


def measure_step_s(root: Path, ours: bool, batch_size: int, workers: int, steps: int, threads: int) -> float:
    command = [
        sys.executable,
        __file__,
        "train",
        root,
        "ours" if ours else "theirs",
        batch_size,
        workers,
        steps,
        threads,
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    completed = subprocess.run([str(x) for x in command], capture_output=True, text=True, env=environment)
    if completed.returncode != 0:
        raise RuntimeError(completed.stderr[-2000:])
    step_times_s = json.loads(completed.stdout.rsplit("step times ", 1)[1])
    return statistics.median(step_times_s[WARM_UP:])


def run_case(root: Path, batch_size: int, quick: bool, threads: int, case: dict) -> None:
    steps = WARM_UP + (10 if quick else 200)
    step_s_by_workers = {
        name: {workers: measure_step_s(root, ours, batch_size, workers, steps, threads) for workers in (0, threads)}
        for name, ours in (("robocache", True), ("LeRobot's own", False))
    }
    case["step_s_by_workers"] = step_s_by_workers
    ours, theirs = (min(step_s_by_workers[name].values()) for name in ("robocache", "LeRobot's own"))
    case["figures"] = {
        "trained_samples_per_s": batch_size / ours,
        "lerobot_samples_per_s": batch_size / theirs,
        "times_lerobot": theirs / ours,
    }
    case["faster_than"] = {"LeRobot's own": theirs / ours}
    print(f"  {step_s_by_workers}", flush=True)


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    if importlib.util.find_spec("lerobot") is None:
        print("lerobot_train: left out, LeRobot is not installed: pip install lerobot")
        return 0
    options.device = "cpu"
    report = Report("lerobot_train", options, {}, AIMS)
    with temporary_folder() as folder:
        os.environ["HF_HOME"] = os.environ["XDG_CACHE_HOME"] = folder
        root = folder / "low"
        write_dataset(root, *((2, 120) if options.quick else (50, 200)))
        for batch_size in BATCH_SIZES[:1] if options.quick else BATCH_SIZES:
            parameters = {"batch_size": batch_size, "features": FEATURES, "fps": FPS, "policy": "ACT"}
            work = partial(run_case, root, batch_size, options.quick, options.threads)
            report.run(f"batch {batch_size}", parameters, work)
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(train(*sys.argv[2:]) if sys.argv[1:2] == ["train"] else main())
