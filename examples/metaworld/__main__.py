"""Records demonstrations of a metaworld task, trains a policy on them, and tests the policy from unseen starts.

    python -m examples.metaworld record        # scripted expert: 100 episodes
    python -m examples.metaworld train
    python -m examples.metaworld evaluate      # 200 starts, from the checkpoint and its spec alone

`compare` does all of this for several seeds. Everything is written to --folder, and an interrupted command resumes when it is run
again. It needs metaworld and torch: pip install '.[examples]' in the checkout.
"""

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import shlex
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

import robocache
from examples import results

from . import policy, robot

UNSEEN = 1  # the seed of the starts for evaluation; that of demonstrations is 0
STREAMS = {"hand": robot.HAND, "tracker": robot.TRACKED, "action": robot.COMMAND}


def record(options: argparse.Namespace) -> dict:
    """Writes the expert's episodes. In half of them the arm is pushed aside, so that the policy learns to come back."""
    path = options.folder / options.task / "demonstrations"
    recorded = len(robocache.open(path).episodes) if path.exists() else 0
    progress = results.Progress(f"recording {options.task}", options.episodes, recorded)
    if recorded < options.episodes:
        arm = robot.Robot(options.task)
        with robocache.Writer(path, append=path.exists()) as writer:
            for name, features in STREAMS.items():
                writer.stream(name, names=features)
            for number, start in enumerate(robot.starts(options.task, 0, options.episodes)):
                if number < recorded:
                    continue
                rows, success = demonstrate(arm, start, number)
                with writer.episode(task=options.task, success=success) as episode:
                    for stream, stamped in rows.items():
                        time_ns, values = zip(*stamped, strict=True)
                        episode.append(stream, np.array(time_ns), np.array(values, np.float32))
                if number % 25 == 24:
                    writer.commit()  # an interrupted run resumes after these episodes
                progress.show(number + 1)
    progress.done = options.episodes
    progress.end()
    success = robocache.open(path).episodes["success"].to_pylist()
    return {"successes": sum(success), "episodes": len(success)}


def demonstrate(arm: robot.Robot, start, number: int) -> tuple[dict, bool]:
    """Returns the rows of each stream with their stamps, and whether the expert succeeded. The episode ends 24 steps, 0.3 s, after the
    success."""
    rng = np.random.default_rng([7, number])
    arm.begin(start, rng)
    rows: dict[str, list] = {stream: [] for stream in STREAMS}
    steps_left = robot.LONGEST
    while steps_left > 0:
        for stream, time_ns, row in arm.rows():
            rows[stream].append((time_ns, row))
        command = arm.expert_command()
        rows["action"].append((arm.now, command))
        push = rng.normal(0, 0.003, 3) if number % 2 else np.zeros(3)
        arm.step(command + np.append(push, 0.0))
        steps_left = min(steps_left - 1, 24) if arm.success else steps_left - 1
    return rows, arm.success


def run_folder(options: argparse.Namespace, way: str, seed: int) -> Path:
    return options.folder / options.task / f"{way}-{seed}"


def train(options: argparse.Namespace) -> dict:
    torch.set_num_threads(options.threads)
    folder = run_folder(options, options.way, options.seed)
    demonstrations = options.folder / options.task / "demonstrations"
    if not demonstrations.exists():
        raise SystemExit(f"{demonstrations} does not exist: run record first")
    policy.train(
        demonstrations,
        folder,
        options.way,
        steps=options.steps,
        checkpoints_at={max(1, options.steps >> halvings) for halvings in range(options.checkpoints)},
        batch_size=256,
        seed=options.seed,
        device=options.device,
        progress=results.Progress(f"training {options.task}, {options.way}, seed {options.seed}", options.steps),
    )
    last = policy.checkpoints(folder)[-1]
    return {"checkpoint": str(last), **summarize(last)}


def summarize(checkpoint: Path) -> dict:
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    return {name: saved[name] for name in ("step", "wall_s", "cpu_s", "waited_s", "loss")}


def rollouts(pool, options: argparse.Namespace, checkpoint: Path, count: int) -> list[bool]:
    """Returns the outcomes from the first `count` unseen starts, and stores them beside the checkpoint."""
    file = checkpoint.with_suffix(".outcomes.json")
    is_current = file.exists() and file.stat().st_mtime >= checkpoint.stat().st_mtime
    outcomes = json.loads(file.read_text()) if is_current else []
    if len(outcomes) < count:
        begin = len(outcomes)
        starts = robot.starts(options.task, UNSEEN, count)[begin:]
        progress = results.Progress(f"{options.task}, {checkpoint.stem}", count, begin)
        runs = pool.map(
            functools.partial(policy.rollout, checkpoint, options.task), starts, range(begin, count), chunksize=5
        )
        for success, _ in runs:
            outcomes.append(success)
            progress.show(len(outcomes), f"{sum(outcomes)} succeeded")
        progress.end(f"{sum(outcomes)} succeeded")
        file.write_text(json.dumps(outcomes))
    return outcomes[:count]


def make_workers(options: argparse.Namespace) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn"))


def evaluate(options: argparse.Namespace) -> dict:
    folder = run_folder(options, options.way, options.seed)
    checkpoints = policy.checkpoints(folder)
    if not checkpoints:
        raise SystemExit(f"{folder} has no checkpoint: run train first")
    with make_workers(options) as pool:
        outcomes = rollouts(pool, options, checkpoints[-1], options.rollouts)
    if options.film:
        film(options, checkpoints[-1], outcomes)
    successes, count = sum(outcomes), len(outcomes)
    return {"successes": successes, "rollouts": count, "interval": results.wilson(successes, count)}


def film(options: argparse.Namespace, checkpoint: Path, outcomes: list[bool]) -> None:
    """Draws 16 rollouts: up to 8 failures, and the first successes."""
    failed = [number for number, success in enumerate(outcomes) if not success][:8]
    shown = failed + [number for number, success in enumerate(outcomes) if success][: 16 - len(failed)]
    progress = results.Progress("filming", len(shown))
    films = []
    arm = robot.Robot(options.task, render_mode="rgb_array", camera_name="corner2", width=224, height=224)
    for number, start in enumerate(robot.starts(options.task, UNSEEN, len(outcomes))):
        if number in shown:
            films.append(policy.film(checkpoint, arm, start, number, every=4))
            progress.show(len(films))
    progress.end()
    results.film(options.film, films, [outcomes[number] for number in sorted(shown)], fps=20)


def compare(options: argparse.Namespace) -> dict:
    """Trains and evaluates a policy for each way and seed. The last checkpoint is tested from more starts than earlier ones."""
    began, cpu_began = time.monotonic(), sum(os.times()[:4])
    expert = record(options)
    arms = []
    with make_workers(options) as pool:
        for way, seed in itertools.product(options.ways, options.seeds):
            options.way, options.seed = way, seed
            train(options)
            curve = []
            for checkpoint in policy.checkpoints(run_folder(options, options.way, options.seed)):
                outcomes = rollouts(pool, options, checkpoint, options.curve_rollouts)
                trained = summarize(checkpoint)
                curve.append({**trained, "successes": sum(outcomes), "rollouts": len(outcomes)})
            outcomes = rollouts(pool, options, checkpoint, options.rollouts)
            wait_share = trained["waited_s"] / trained["wall_s"]
            arms.append(results.arm(way, seed, outcomes, curve=curve, wait_share=wait_share))
    spent = {"wall_s": time.monotonic() - began, "cpu_s": sum(os.times()[:4]) - cpu_began}
    if options.result:
        results.write(
            options.result,
            command=f"python -m examples.metaworld {options.line}",
            seeds=options.seeds,
            expert=expert,
            arms=arms,
            predictions=options.predictions,
            packages=["metaworld", "mujoco"],
            task=options.task,
            explained={way: policy.WAYS[way] for way in options.ways},
            spent=spent,
        )
    shown = [{name: arm[name] for name in ("name", "seed", "successes", "rollouts", "interval")} for arm in arms]
    return {"expert": expert, "arms": shown, **spent}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.metaworld", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    common.add_argument("--folder", type=Path, default=Path("metaworld_example"), help="the folder for all output")
    common.add_argument("--task", default="pick-place-v3", help="a task of metaworld 3")
    common.add_argument("--json", action="store_true", help="print the result as JSON")
    recording = argparse.ArgumentParser(add_help=False)
    recording.add_argument("--episodes", type=int, default=100)
    training = argparse.ArgumentParser(add_help=False)
    training.add_argument("--steps", type=int, default=2000)
    training.add_argument(
        "--checkpoints", type=int, default=1, help="the number of checkpoints: after all steps, a half, a quarter, ..."
    )
    training.add_argument("--device", default="cpu", help="cpu or cuda; the policy is small, so cpu is enough")
    training.add_argument(
        "--threads", type=int, default=1, help="torch's threads; the policy is small, so one is enough"
    )
    rolling = argparse.ArgumentParser(add_help=False)
    rolling.add_argument("--rollouts", type=int, default=200)
    rolling.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that simulate")
    filming = argparse.ArgumentParser(add_help=False)
    filming.add_argument("--film", type=Path, help="draw 16 rollouts: FILM.png and FILM.gif; needs MUJOCO_GL=egl")
    run = argparse.ArgumentParser(add_help=False)
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--way", choices=policy.WAYS, default="per-step", help="how commands become the policy's numbers")
    shown = {"formatter_class": argparse.ArgumentDefaultsHelpFormatter}
    commands.add_parser("record", parents=[common, recording], help="record the expert's demonstrations", **shown)
    commands.add_parser("train", parents=[common, training, run], help="train a policy on the demonstrations", **shown)
    commands.add_parser(
        "evaluate", parents=[common, rolling, filming, run], help="test the policy from unseen starts", **shown
    )
    comparing = commands.add_parser(
        "compare", parents=[common, recording, training, rolling], help="do all of this for ways and seeds", **shown
    )
    comparing.add_argument("--ways", choices=policy.WAYS, nargs="+", default=["per-step"])
    comparing.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    comparing.add_argument(
        "--curve-rollouts", type=int, default=100, help="rollouts of each checkpoint except the last"
    )
    comparing.add_argument("--result", type=Path, help="a result file, such as bench/results/training-metaworld-x.json")
    comparing.add_argument("--predictions", default="none", help="what you expect; it is stored in the result file")
    return parser


def main(arguments=None) -> None:
    options = parser().parse_args(arguments)
    options.line = command_line(sys.argv[1:] if arguments is None else arguments)
    result = {"record": record, "train": train, "evaluate": evaluate, "compare": compare}[options.command](options)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        if name == "arms":
            for arm in value:
                print(f"{arm['name']}, seed {arm['seed']}: {describe(arm)}")
        elif name == "successes" and "rollouts" in result:
            print(describe(result))
        elif name not in ("rollouts", "interval"):
            print(f"{name}: {value}")


def command_line(arguments: list[str]) -> str:
    """Returns the command without this run's paths, and without the prediction, which the result file has as a field."""
    shown = list(arguments)
    for name in ("--folder", "--result", "--predictions", "--json"):
        while name in shown:
            index = shown.index(name)
            del shown[index : index + 1 + (name != "--json")]
    return shlex.join(shown)


def describe(arm: dict) -> str:
    low, high = arm["interval"]
    return f"{arm['successes']} of {arm['rollouts']} succeeded ({100 * low:.1f} to {100 * high:.1f} %)"


if __name__ == "__main__":
    main()
