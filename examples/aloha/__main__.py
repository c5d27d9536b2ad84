"""Records ALOHA handing over a cube, trains a policy on it, and tests the policy from unseen starts.

    python -m examples.aloha record                      # the expert's demonstrations, with a camera: 1000 episodes
    python -m examples.aloha train                       # LeRobot's ACT, from the camera
    python -m examples.aloha evaluate                    # 200 starts for each checkpoint, from checkpoint and spec alone
    python -m examples.aloha compare --result act.json   # ACT by LeRobot's loader and by ours

With --policy mlp the policy sees the cube's position instead of the camera, and two CPU cores suffice. Everything is written to
--folder, and an interrupted command resumes when it is run again. It needs mujoco, torch and gym-aloha's files (pip install
--no-deps gym-aloha); ACT needs LeRobot, and compare 'lerobot[dataset]'.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

from examples import results

PREDICTED = {
    "act": "80 % strict, waiting for data at most 2 %",
    "mlp": "at least 95 % strict after 2,000 steps of batch 256",
    "actions": "per-step statistics at least as good as pooled ones, absolute commands within 5 points of per-step, the absolute "
    "action's statistics at least 10 points below",
}
TITLES = {"act": "From the camera, LeRobot's ACT", "mlp": "From joints and the cube's position"}
EXECUTE = 25  # so many ticks of a chunk of 50 are executed before the policy runs again; with 10 it may stand still
# How commands become the policy's numbers.
ACTION_FORMS = {
    "absolute": "as recorded, normalised by their statistics",
    "per-step": "relative to the joints, each step of a chunk normalised by its own statistics",
    "pooled": "relative to the joints, normalised by the statistics of all steps together",
    "absolute-statistics": "relative to the joints, normalised by the statistics of the commands as recorded: a mistake easily made",
}


# Each subcommand imports its modules itself, because processes that it starts import this file again, and need no torch.


def record(options):
    from . import record as recording

    return recording.record(
        options.folder / "demonstrations", options.episodes, camera=not options.no_camera, workers=options.workers
    )


def run_folder(options, form, seed):
    return options.folder / (f"{options.policy}-{seed}" if form == "absolute" else f"{options.policy}-{form}-{seed}")


def find_demonstrations(options):
    path = options.folder / "demonstrations"
    if not path.exists():
        raise SystemExit(f"{path}: does not exist; run record first")
    return path


def train(options):
    from . import train as training

    loader = training.make_loader(
        find_demonstrations(options),
        camera=options.policy == "act",
        batch_size=options.batch_size,
        device=options.device,
        seed=options.seed,
        image_size=options.image_size,
        shift=options.shift,
        form=options.actions,
    )
    return training.train(
        loader,
        run_folder(options, options.actions, options.seed),
        kind=options.policy,
        steps=options.steps,
        lr=options.lr,
        seed=options.seed,
        every=options.every,
        image_size=options.image_size,
        trained_with=f"--steps {options.steps} --batch-size {options.batch_size} --lr {options.lr:g} --image-size {options.image_size} "
        f"--shift {options.shift}",
    )


def evaluate(options):
    """Rolls out the checkpoints that have no rollouts yet."""
    from . import evaluate as evaluation

    has_several_forms = len(options.actions) > 1
    arms = []
    for form, seed in itertools.product(options.actions, options.seeds):
        arm = evaluation.evaluate_run(
            run_folder(options, form, seed),
            rollouts=options.rollouts,
            execute=options.execute,
            workers=options.workers,
            device=options.device,
            film=None if arms else options.film,
        )
        arms.append(arm | ({"name": form} if has_several_forms else {}))
        low, high = arm["interval"]
        print(
            f"{form}, seed {seed}: strict {arm['successes']} of {arm['rollouts']}, 95 % interval {low:.1%} to {high:.1%}; "
            f"a touch: {arm['touched']}",
            file=sys.stderr,
        )
    if options.result:
        expert = json.loads((options.folder / "demonstrations.json").read_text())
        forms = f"--actions {' '.join(options.actions)} " if has_several_forms else ""
        title = "How commands become numbers" if has_several_forms else TITLES[options.policy]
        results.write(
            options.result,
            command=f"python -m examples.aloha record --episodes {expert['episodes']}; for each run train --policy {options.policy} "
            f"{arms[0]['trained_with']}; evaluate --policy {options.policy} {forms}--seeds {' '.join(map(str, options.seeds))} "
            f"--rollouts {options.rollouts} --execute {options.execute}",
            seeds=options.seeds,
            expert=expert,
            arms=arms,
            predictions=PREDICTED["actions" if has_several_forms else options.policy],
            packages=["mujoco", "lerobot"] if options.policy == "act" else ["mujoco"],
            commit=options.commit,
            title=title + ("" if options.execute == EXECUTE else f", {options.execute} of 50 commands carried out"),
            **({"explained": {form: ACTION_FORMS[form] for form in options.actions}} if has_several_forms else {}),
        )
    return {"arms": arms}


def compare(options):
    from . import compare as comparison

    find_demonstrations(options)
    return comparison.compare(options, EXECUTE)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m examples.aloha", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default="aloha", help="the folder for all output (default: aloha)")
    commands = parser.add_subparsers(required=True, metavar="record | train | evaluate | compare")

    command = commands.add_parser("record", help="write the expert's demonstrations to a cache")
    command.add_argument("--episodes", type=int, default=1000)
    command.add_argument(
        "--no-camera", action="store_true", help="joints and cube position are enough for --policy mlp"
    )
    command.add_argument("--workers", type=int, help="processes (default: one per core)")
    command.set_defaults(run=record)

    command = commands.add_parser(
        "train", help="train a policy with robocache.Loader; checkpoints have averaged weights"
    )
    command.add_argument("--policy", choices=["act", "mlp"], default="act")
    command.add_argument("--steps", type=int, default=8000)
    command.add_argument("--batch-size", type=int, default=64)
    command.add_argument("--lr", type=float, default=2e-4)
    command.add_argument("--every", type=int, default=500, help="steps from checkpoint to checkpoint")
    command.add_argument("--image-size", type=int, default=128, help="pixels that a frame is resized to in the batch")
    command.add_argument(
        "--shift", type=int, default=4, help="the most pixels by which a frame is moved at random (default: 4)"
    )
    command.add_argument("--seed", type=int, default=0)
    command.add_argument(
        "--actions", choices=ACTION_FORMS, default="absolute", help="how commands become the policy's numbers"
    )
    command.add_argument("--device", help="cpu, cuda, cuda:1 (default: CUDA where it is usable)")
    command.set_defaults(run=train)

    command = commands.add_parser("evaluate", help="roll out each checkpoint from the same starts")
    command.add_argument("--policy", choices=["act", "mlp"], default="act")
    command.add_argument("--seeds", type=int, nargs="+", default=[0], help="the seeds of the training runs")
    command.add_argument(
        "--actions",
        choices=ACTION_FORMS,
        nargs="+",
        default=["absolute"],
        help="how commands became the policy's numbers",
    )
    command.add_argument("--rollouts", type=int, default=200)
    command.add_argument("--execute", type=int, default=EXECUTE, help="ticks of a chunk of 50 that are executed")
    command.add_argument("--workers", type=int, help="processes (default: one per core)")
    command.add_argument("--device", default="cpu", help="the policy's device (default: cpu)")
    command.add_argument("--film", type=Path, help="draw 16 rollouts of the first seed: FILM.png and FILM.gif")
    command.add_argument("--result", type=Path, help="write a result file")
    command.add_argument("--commit", help="for the result file, where the checkout has no git")
    command.set_defaults(run=evaluate)

    command = commands.add_parser(
        "compare", help="train ACT with LeRobot's loader, with ours on its dataset, and with ours on the recording"
    )
    command.add_argument(
        "--seeds", type=int, nargs="*", default=[0, 1, 2], help="without a seed, only the loaders' speed is measured"
    )
    command.add_argument("--steps", type=int, default=8000)
    command.add_argument("--every", type=int, default=2000, help="steps from checkpoint to checkpoint")
    command.add_argument("--batch-size", type=int, default=64)
    command.add_argument(
        "--sweep", type=int, nargs="*", default=[8, 32, 64, 256], help="batch sizes for the loaders' speed"
    )
    command.add_argument(
        "--frame-sizes",
        nargs="*",
        default=["96x96", "192x192", "256x256", "480x640"],
        help="heights and widths of recorded frames",
    )
    command.add_argument("--cores", type=int, nargs="*", default=[2, 4, 8, 16], help="numbers of cores for the loaders")
    command.add_argument("--rollouts", type=int, default=200)
    command.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[4, 8, 16],
        help="workers of the DataLoader; the fastest number is used",
    )
    command.add_argument("--seconds", type=float, default=3.0, help="how long each speed is measured")
    command.add_argument("--device", help="cpu, cuda, cuda:1 (default: CUDA where it is usable)")
    command.add_argument("--result", type=Path, required=True, help="the result file to write")
    command.add_argument("--commit", help="for the result file, where the checkout has no git")
    command.set_defaults(run=compare)

    options = parser.parse_args(arguments)
    result = options.run(options)
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
