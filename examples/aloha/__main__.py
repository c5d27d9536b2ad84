"""Records ALOHA handing over a cube, trains a policy on it, and lets it do so from starts that it has not seen.

    python -m examples.aloha record                      # the expert's demonstrations, with a camera: 200 episodes
    python -m examples.aloha train                       # LeRobot's ACT, from the camera
    python -m examples.aloha evaluate                    # 200 starts for each checkpoint, from checkpoint and spec alone
    python -m examples.aloha compare --result act.json   # the runs of several seeds in one result file

With --policy mlp the policy sees the cube's position instead of the camera, and two CPU cores suffice. All is written below
--folder, and what was interrupted goes on where it stood. It needs mujoco, torch and gym-aloha's files (pip install --no-deps
gym-aloha); ACT needs LeRobot.
"""

import argparse
import json
import sys
from pathlib import Path

from examples import results

PREDICTED = {
    "act": "80 % strict, waiting for data at most 2 %",
    "mlp": "at least 95 % strict after 2,000 steps of batch 256",
}
TITLES = {"act": "From the camera, LeRobot's ACT", "mlp": "From joints and the cube's position"}
EXECUTE = 25  # ticks of a chunk of 50 that are carried out before the policy is asked again; with 10 it can stand still


def show(line):
    print(line, file=sys.stderr, flush=True)


def run_of(given):
    return given.folder / f"{given.policy}-{given.seed}"


# Each subcommand imports its own modules: the processes that it starts import this file anew, and need no torch.


def record(given):
    from . import record as recording

    return recording.record(
        given.folder / "demonstrations",
        given.episodes,
        camera=not given.no_camera,
        workers=given.workers,
        show=show,
    )


def train(given):
    from . import train as training

    path = given.folder / "demonstrations"
    if not path.exists():
        raise SystemExit(f"{path}: does not exist; run record first")
    return training.train(
        path,
        run_of(given),
        kind=given.policy,
        steps=given.steps,
        batch_size=given.batch_size,
        lr=given.lr,
        device=given.device,
        seed=given.seed,
        every=given.every,
        image_size=given.image_size,
        budget_s=given.budget_s,
        graph=not given.no_graph,
        show=show,
    )


def evaluate(given):
    """The last checkpoint first, then the others of the curve; what was rolled out before is not again."""
    from . import evaluate as rolling

    arm = rolling.evaluate_run(
        run_of(given),
        rollouts=given.rollouts,
        execute=given.execute,
        workers=given.workers,
        device=given.device,
        budget_s=given.budget_s,
        only_last=given.only_last,
        film=given.film,
        show=show,
    )
    low, high = arm["interval"]
    show(
        f"strict: {arm['successes']} of {arm['rollouts']}, 95 % interval {low:.1%} to {high:.1%}; a touch: {arm['touched']}"
    )
    return arm


def compare(given):
    """What was rolled out of each seed's run, in one result file."""
    from . import evaluate as rolling

    arms = [
        rolling.evaluate_run(
            given.folder / f"{given.policy}-{seed}",
            rollouts=given.rollouts,
            execute=given.execute,
            device=given.device,
            budget_s=0,
            show=show,
        )
        for seed in given.seeds
    ]
    for arm in arms:
        if (
            len(arms) > 1
        ):  # a training that ends by time has its checkpoints at other steps: each seed is a line of its own
            arm["name"] += f", seed {arm['seed']}"
        low, high = arm["interval"]
        show(f"seed {arm['seed']}: {arm['successes']} of {arm['rollouts']} ({low:.1%} to {high:.1%})")
    expert = json.loads((given.folder / "demonstrations.json").read_text())
    results.write(
        given.result,
        command=f"python -m examples.aloha record --episodes {expert['episodes']}; for each seed train --policy {given.policy} "
        f"{arms[0]['trained_with']} and evaluate --rollouts {given.rollouts} --execute {given.execute}; compare",
        seeds=given.seeds,
        expert=expert,
        arms=arms,
        predictions=PREDICTED[given.policy],
        packages=["mujoco", "lerobot"] if given.policy == "act" else ["mujoco"],
        commit=given.commit,
        title=TITLES[given.policy]
        + ("" if given.execute == EXECUTE else f", {given.execute} of 50 commands carried out"),
    )
    return {"result": str(given.result)}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m examples.aloha", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default="aloha", help="where everything is written (default: aloha)")
    commands = parser.add_subparsers(required=True, metavar="record | train | evaluate | compare")

    command = commands.add_parser("record", help="the expert's demonstrations, into a cache")
    command.add_argument("--episodes", type=int, default=200)
    command.add_argument(
        "--no-camera", action="store_true", help="joints and cube position are enough for --policy mlp"
    )
    command.add_argument("--workers", type=int, help="processes (default: one a core)")
    command.set_defaults(run=record)

    command = commands.add_parser("train", help="a policy, by robocache.Loader")
    command.add_argument("--policy", choices=["act", "mlp"], default="act")
    command.add_argument("--steps", type=int, default=8000)
    command.add_argument("--batch-size", type=int, default=64)
    command.add_argument("--lr", type=float, default=2e-4)
    command.add_argument("--every", type=int, default=500, help="steps from checkpoint to checkpoint")
    command.add_argument("--image-size", type=int, default=128, help="pixels that a frame is resized to in the batch")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--device", help="cpu, cuda, cuda:1 (default: CUDA where it is usable)")
    command.add_argument("--budget-s", type=float, help="stop after so many seconds, at a checkpoint")
    command.add_argument("--no-graph", action="store_true", help="launch each kernel by itself on CUDA")
    command.set_defaults(run=train)

    command = commands.add_parser("evaluate", help="rollouts of the checkpoints, from the same starts each")
    command.add_argument("--policy", choices=["act", "mlp"], default="act")
    command.add_argument("--seed", type=int, default=0, help="of the training run")
    command.add_argument("--rollouts", type=int, default=200)
    command.add_argument("--execute", type=int, default=EXECUTE, help="ticks of a chunk of 50 that are carried out")
    command.add_argument("--workers", type=int, help="processes (default: one a core)")
    command.add_argument("--device", default="cpu", help="of the policy (default: cpu)")
    command.add_argument("--budget-s", type=float, help="leave out checkpoints of the curve after so many seconds")
    command.add_argument("--only-last", action="store_true", help="no curve: the last checkpoint alone")
    command.add_argument("--film", type=Path, help="draw 16 rollouts: FILM.png and FILM.gif")
    command.set_defaults(run=evaluate)

    command = commands.add_parser("compare", help="the runs of several seeds, in one result file")
    command.add_argument("--policy", choices=["act", "mlp"], default="act")
    command.add_argument("--seeds", type=int, nargs="+", default=[0])
    command.add_argument("--rollouts", type=int, default=200)
    command.add_argument("--execute", type=int, default=EXECUTE)
    command.add_argument(
        "--device", default="cpu", help="of the policy, where a last checkpoint has still to be rolled out"
    )
    command.add_argument("--result", type=Path, required=True, help="where the result file is written")
    command.add_argument("--commit", help="for the result file, where the checkout has no git")
    command.set_defaults(run=compare)

    given = parser.parse_args(arguments)
    found = given.run(given)
    print(json.dumps(found))
    return found


if __name__ == "__main__":
    main()
