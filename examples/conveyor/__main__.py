"""Shows why clocks matter: a tool reaches a part on a moving belt, seen by a camera whose frames arrive late.

    python -m examples.conveyor record                 # 200 demonstrations: streams, and rows as LeRobot datasets
    python -m examples.conveyor train                  # three arms, two delays, three seeds: 15 policies
    python -m examples.conveyor evaluate               # 200 rollouts of each
    python -m examples.conveyor compare                # a table, and a result file for each delay

An interrupted command resumes when it is run again. The arms have the same demonstrations, policy and training steps:
  rows     rows of a fixed 30 fps in LeRobot's format: each row has the newest frame that had arrived at its moment
  stamps   the same rows, with each frame's age as a feature added by hand
  clocks   streams on their own clocks: frames with the camera's stamps, ages from the loader, one policy for every delay
On the belt each arm gets its windows from robocache.live.Aligner. It needs mujoco, torch and Pillow; frames are rendered
without a display through EGL (Debian: libegl1 and libgl1), or as MUJOCO_GL says.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from examples import results
from examples.conveyor import belt, demonstrations, drive, learn

PREDICTIONS = (
    "a pilot of 40 demonstrations, 1,000 steps and 50 rollouts at 30 ms had medians of 2.9 mm (rows), 0.6 mm (stamps) "
    "and 1.4 mm (clocks) between tip and part; 54, 94 and 90 % came within 3 mm. So at 30 ms we expect rows 45 to 65 %, stamps and clocks "
    "95 % or more; at 60 ms rows 20 to 40 %, stamps and clocks within 5 points of 30 ms. Stamps and clocks differ by less than 5 points. "
    "Before the checkpoints were rolled out: stamps and clocks 80 % or more after 1,000 steps at both delays, rows at most 60 % after any."
)
WITHIN_MM, NEAR_MM = range(1, 13), 1e3 * belt.NEAR_M


def find_runs(options):
    """Yields the arm, the delay, the seed and the folder of each policy. The arm "clocks" has one policy for all delays."""
    for arm in options.arms:
        for delay in options.delays_ms[:1] if arm == "clocks" else options.delays_ms:
            for seed in options.seeds:
                yield arm, delay, seed, run_folder(options, arm, delay, seed)


def run_folder(options, arm, delay, seed):
    return options.folder / "runs" / (f"{arm}-{seed}" if arm == "clocks" else f"{arm}-{delay}ms-{seed}")


def record(options):
    file = options.folder / "recorded.json"
    settings = {"episodes": options.episodes, "delays_ms": options.delays_ms, "seed": options.seed}
    if file.exists() and settings.items() <= json.loads(file.read_text()).items():
        print(f"{options.folder}: recorded already")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    reached = demonstrations.record(
        options.folder / "demonstrations", options.episodes, options.delays_ms, options.seed
    )
    file.write_text(json.dumps(settings | {"successes": reached}))


def train(options):
    for arm, delay, seed, folder in find_runs(options):
        loader = learn.make_loader(
            options.folder / "demonstrations",
            arm,
            delay,
            batch_size=options.batch_size,
            seed=seed,
            device=options.device,
        )
        learn.train(loader, arm, folder, steps=options.steps, seed=seed, device=options.device)


def load(options, folder, step):
    policy = learn.Policy()
    policy.load_state_dict(torch.load(folder / f"step_{step}.pt", weights_only=True, map_location=options.device))
    return policy


def load_checkpoint(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True, map_location="cpu")


def film(options):
    """Draws how the arms "rows" and "clocks" reach for the first 8 parts, at the last delay."""
    delay, films, successes = options.delays_ms[-1], [], []
    for arm in ("rows", "clocks"):
        folder = run_folder(options, arm, delay, options.seeds[0])
        steps = load_checkpoint(folder)["done"]
        misses, _, frames = drive.roll_out(
            load(options, folder, steps), folder / "spec.json", arm, delay, rollouts=8, seed=options.rollouts_seed, device=options.device,
            note=f"film of {folder.name}", filmed=8,
        )  # fmt: skip
        films += frames
        successes += [miss < NEAR_MM for miss in misses]
    words = f"The same 8 parts, {delay} ms: rows above, clocks below, after {steps} steps of training; red where the tip missed"
    results.film(options.film, films, successes, fps=7.5, words=words)


def evaluate(options):
    for arm, trained_delay, _, folder in find_runs(options):
        for delay in options.delays_ms if arm == "clocks" else [trained_delay]:
            file = folder / f"evaluated_{delay}ms.json"
            checkpoint, curve = load_checkpoint(folder), []
            settings = {"step": checkpoint["done"], "rollouts": options.rollouts, "seed": options.rollouts_seed}
            if file.exists() and settings.items() <= json.loads(file.read_text()).items():
                continue
            for point in checkpoint["curve"]:
                misses, ages, _ = drive.roll_out(
                    load(options, folder, point["step"]), folder / "spec.json", arm, delay, rollouts=options.rollouts,
                    seed=options.rollouts_seed, device=options.device, note=f"rollouts of {folder.name} at {delay} ms",
                )  # fmt: skip
                curve.append(point | {"successes": sum(miss < NEAR_MM for miss in misses), "rollouts": len(misses)})
            counts = Counter(int(age // 5) * 5 for age in ages)
            file.write_text(json.dumps({
                **settings, "curve": curve, "wait_share": checkpoint["wait_share"],
                "miss_mm": misses,
                "ages_ms": {age: counts[age] for age in sorted(counts)},
            }))  # fmt: skip
    if options.film:
        film(options)


def compare(options):
    recorded = json.loads((options.folder / "recorded.json").read_text())
    for delay in options.delays_ms:
        arms, ages = [], Counter()
        for arm in options.arms:
            for seed in options.seeds:
                evaluated = run_folder(options, arm, delay, seed) / f"evaluated_{delay}ms.json"
                run = json.loads(evaluated.read_text())
                misses = np.array(run["miss_mm"])
                outcomes = misses < NEAR_MM
                result = results.arm(arm, seed, outcomes, curve=run["curve"], wait_share=run["wait_share"])
                result["miss_mm"] = {f"{q} %": float(np.percentile(misses, q)) for q in (10, 50, 90, 99)}
                result["within_mm"] = {mm: int((misses < mm).sum()) for mm in WITHIN_MM}
                arms.append(result)
                ages.update({int(age): count for age, count in run["ages_ms"].items()})
            seed_results = [result for result in arms if result["name"] == arm]
            successes, rollouts = (sum(result[field] for result in seed_results) for field in ("successes", "rollouts"))
            low, high = results.wilson(successes, rollouts)
            rates = ", ".join(f"{100 * result['successes'] / result['rollouts']:.1f}" for result in seed_results)
            print(
                f"{delay} ms {arm:7} {100 * successes / rollouts:5.1f} % of {rollouts} [{100 * low:.1f}, {100 * high:.1f}]; seeds {rates}; "
                f"half of the misses below {np.mean([result['miss_mm']['50 %'] for result in seed_results]):.1f} mm"
            )
        results.write(
            options.out / f"training-conveyor-{delay}ms.json",
            command=f"python -m examples.conveyor: record, train --steps {run['step']}, evaluate --rollouts {run['rollouts']}, compare",
            seeds=options.seeds,
            expert={"successes": recorded["successes"], "episodes": recorded["episodes"]},
            arms=arms,
            predictions=PREDICTIONS,
            packages=["mujoco"],
            title=f"Frames {delay} ms late on average",
            delay_ms=delay,
            near_mm=NEAR_MM,
            frame_age_ms={age: ages[age] for age in sorted(ages)},
        )


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m examples.conveyor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="record | train | evaluate | compare")
    for function, about in (
        (record, "let the expert reach parts"),
        (train, "train the policies"),
        (evaluate, "let the policies reach parts that none was trained on"),
        (compare, "print a table and write the result files"),
    ):
        command = commands.add_parser(function.__name__, help=about, description=about)
        command.set_defaults(function=function)
        command.add_argument(
            "--folder", type=Path, default=Path("conveyor"), help="the folder for all output (conveyor)"
        )
        command.add_argument("--delays-ms", type=int, nargs="+", default=[30, 60], help="mean delays of frames (30 60)")
        if function is record:
            command.add_argument("--episodes", type=int, default=200, help="demonstrations (200)")
            command.add_argument("--seed", type=int, default=0, help="the demonstrations' seed (0)")
            continue
        command.add_argument("--arms", nargs="+", default=list(learn.ARMS), choices=learn.ARMS, metavar="ARM",
                             help="rows, stamps, clocks (all)")  # fmt: skip
        command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="the training's seeds (0 1 2)")
        if function is compare:
            command.add_argument(
                "--out",
                type=Path,
                default=Path("bench/results"),
                help="the folder for the result files (bench/results)",
            )
            continue
        command.add_argument("--device", default="cpu", help="cpu (default) or cuda")
        command.add_argument("--threads", type=int, default=1, help="torch's threads on the CPU (1)")
        if function is train:
            command.add_argument("--steps", type=int, default=3000)
            command.add_argument("--batch-size", type=int, default=64)
        else:
            command.add_argument("--rollouts", type=int, default=200)
            command.add_argument(
                "--rollouts-seed", type=int, default=1_000_000, help="the seed of parts and delays (1000000)"
            )
            command.add_argument(
                "--film", type=Path, help="draw 8 rollouts each of rows and clocks: FILM.png and FILM.gif"
            )
    options = parser.parse_args(arguments)
    torch.set_num_threads(getattr(options, "threads", 1))
    options.function(options)


if __name__ == "__main__":
    main()
