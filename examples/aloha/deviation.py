"""Measures how much of a joint's deviation a trained policy keeps in its commands. It does not correct the kept part.

    python -m examples.aloha.deviation --folder aloha --result bench/results/aloha-training-deviation.json

It needs two policies, trained by train --policy mlp with --actions absolute and with --actions per-step.
"""

import argparse
import json
from pathlib import Path

import torch

from examples import results

from .episode import ACTION, STATE
from .train import RELATIVE, checkpoints, load, make_loader

DEVIATION_RAD = 0.01
STEPS = (0, 12, 24)  # of a chunk


def kept_shares(path, run, form, seed=0, moments=2048):
    """Moves the joints of demonstrated moments at random. Returns, for each of STEPS, the share of the move that the commands make,
    too."""
    loader = make_loader(path, camera=False, batch_size=moments, device="cpu", seed=seed, form=form)
    policy = load(checkpoints(run)[-1])
    batch = next(loader)
    state = loader.unnormalize(STATE, batch[STATE])
    is_joint = torch.tensor(RELATIVE.mask)  # grippers are not moved
    moves = DEVIATION_RAD * torch.randn(state.shape, generator=torch.Generator().manual_seed(seed)) * is_joint

    def commands(state):
        moved_batch = batch | {STATE: loader.normalize(STATE, state), f"{ACTION}_base": state}
        with torch.no_grad():
            numbers = policy.predict_action_chunk(moved_batch)
        if form == "absolute":
            return loader.unnormalize(ACTION, numbers)
        return loader.to_absolute(ACTION, numbers, moved_batch)

    difference = commands(state + moves) - commands(state)
    return [float((difference[:, step] * moves).sum() / moves.square().sum()) for step in STEPS]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default="aloha")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    demonstrations = options.folder / "demonstrations"
    runs = {"per-step": options.folder / "mlp-per-step-0", "absolute": options.folder / "mlp-0"}
    trained = torch.load(checkpoints(runs["absolute"])[-1], weights_only=True)
    expert = json.loads((options.folder / "demonstrations.json").read_text())
    content = {
        "machine": results.machine(),
        "commit": results.checkout_commit(),
        "versions": results.versions(["numpy", "torch", "mujoco"]),
        "command": f"python -m examples.aloha record --episodes {expert['episodes']} --no-camera; train --policy mlp "
        f"{trained['trained_with']} --actions absolute, then per-step; python -m examples.aloha.deviation",
        "deviation_rad": DEVIATION_RAD,
        "steps": STEPS,
        "kept": {form: kept_shares(demonstrations, run, form) for form, run in runs.items()},
    }
    options.result.write_text(json.dumps(content, indent=1) + "\n")
    print(content["kept"])


if __name__ == "__main__":
    main()
