"""Defines the policy, trains it, and lets it drive a robot with only its checkpoint and the loader's spec."""

import functools
import itertools
import time
from pathlib import Path

import numpy as np
import torch

import robocache
from robocache import Anchors, Normalization, Window, actions, live

from . import robot

CHUNK = 20  # the number of commands, of 12.5 ms each, that are predicted at once
WINDOWS = {"hand": [-0.05, 0.0], "tracker": [0.0]}
ACTIONS_S = [k * robot.STEP_NS / 1e9 for k in range(CHUNK)]
THINK_STEPS = 6  # a new chunk is predicted every 75 ms
RELATIVE = [actions.Relative("joints", mask=[True, True, True, False])]  # the grip stays absolute

# The ways in which commands become the policy's numbers.
WAYS = {
    "per-step": "relative to the hand, each step of a chunk normalised by its own statistics",
    "pooled": "relative to the hand, normalised by the statistics of all steps together",
    "absolute-statistics": "relative to the hand, normalised by the statistics of the commands as recorded: a mistake easily made",
    "absolute": "as recorded, normalised by their statistics",
}


def make_loader(path: Path, way: str, *, batch_size: int, seed: int, device: str | None) -> robocache.Loader:
    dataset = robocache.open(path)

    def loader(norm_stats=None):
        converted = {} if way == "absolute" else {"convert": RELATIVE, "base": "hand"}
        return robocache.Loader(
            dataset,
            batch_size=batch_size,
            delta_timestamps={**WINDOWS, "action": Window(ACTIONS_S, normalize="mean_std", **converted)},
            normalization=Normalization(norm_stats=norm_stats),
            anchors=Anchors(stream="hand", edges="drop"),
            episodes={"success": True},
            seed=seed,
            device=device,
        )

    if way == "per-step":
        return loader({"action": dataset.statistics(loader(), per_step=True)["action"]})
    if way == "absolute-statistics":
        recorded = dataset.statistics()["action"]
        return loader({"action": {"mean": recorded.mean, "std": recorded.std}})
    return loader()


class Policy(torch.nn.Module):
    """Computes a chunk of normalised commands from the hand's state, and from the positions of the objects and the goal relative to the
    hand."""

    def __init__(self, inputs: int, features: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(inputs, 256), torch.nn.GELU(),
            torch.nn.Linear(256, 256), torch.nn.GELU(),
            torch.nn.Linear(256, CHUNK * features),
        )  # fmt: skip
        self.features = features

    def forward(self, batch: dict) -> torch.Tensor:
        hand, tracker = batch["hand"], batch["tracker"][:, 0]
        position = hand[:, -1, :3]
        points = (tracker[:, 0:3], tracker[:, 7:10], tracker[:, 14:17], hand[:, 0, :3])
        offsets = [10 * (point - position) for point in points]
        goal = 10 * (tracker[:, 14:17] - tracker[:, 0:3])
        inputs = torch.cat([*offsets, goal, 5 * position, 4 * hand[:, :, 3], tracker[:, 3:7], tracker[:, 10:14]], 1)
        return self.layers(inputs).unflatten(1, (CHUNK, self.features))


def new_policy(spec: robocache.Spec) -> Policy:
    return Policy(28, spec.keys["action"]["shape"][0])


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.pt"))


def train(
    path: Path,
    folder: Path,
    way: str,
    *,
    steps: int,
    checkpoints_at: set[int],
    batch_size: int,
    seed: int,
    device: str | None,
    progress,
) -> None:
    """Trains until `steps`, from the newest checkpoint in `folder` if there is one. Writes checkpoints and the batches' spec there."""
    saved_files = checkpoints(folder)
    saved = torch.load(saved_files[-1], map_location=device, weights_only=True) if saved_files else {"step": 0}
    if saved["step"] >= steps:
        return
    loader = make_loader(path, way, batch_size=batch_size, seed=seed, device=device)
    folder.mkdir(parents=True, exist_ok=True)
    loader.save_spec(folder / "spec.json")
    torch.manual_seed(seed)
    policy = new_policy(loader.spec).to(loader.device)
    optimizer = torch.optim.Adam(policy.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    step, wall_s, cpu_s, waited_s, losses = 0, 0.0, 0.0, 0.0, []
    if saved_files:
        policy.load_state_dict(saved["policy"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        loader.load_state_dict(saved["loader"])
        step, wall_s, cpu_s, waited_s = (saved[name] for name in ("step", "wall_s", "cpu_s", "waited_s"))
    spent_before = wall_s, cpu_s, waited_s
    began_s, cpu_began_s = time.monotonic(), time.process_time()
    while step < steps:
        for batch in loader:
            loss = torch.nn.functional.mse_loss(policy(batch), batch["action"])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
            step += 1
            if step % 20 == 0:
                progress.show(step, f"loss {losses[-1]:.4f}" if step % 200 == 0 else "")
            if step in checkpoints_at:
                spent = time.monotonic() - began_s, time.process_time() - cpu_began_s, loader.meter.waited_s
                wall_s, cpu_s, waited_s = map(sum, zip(spent_before, spent, strict=True))
                saved = {
                    "policy": policy.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "loader": loader.state_dict(),
                    "step": step,
                    "wall_s": wall_s,
                    "cpu_s": cpu_s,
                    "waited_s": waited_s,
                    "loss": float(torch.stack(losses).mean()),
                }
                losses = []
                partial = folder / "checkpoint.partial"
                torch.save(saved, partial)
                partial.rename(folder / f"checkpoint-{step:06d}.pt")
            if step == steps:
                break
    progress.done = step
    progress.end(f"loss {saved['loss']:.4f}, {100 * waited_s / wall_s:.1f} % of the time waited for data")


# ---- driving without the dataset ----


def load(checkpoint: Path) -> tuple[Policy, robocache.Spec]:
    spec = robocache.Spec.load(checkpoint.parent / "spec.json")
    policy = new_policy(spec)
    policy.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["policy"])
    return policy.eval(), spec


@torch.no_grad()
def drive(policy: Policy, spec: robocache.Spec, arm: robot.Robot, start, seed: int, each_step=None) -> tuple[bool, int]:
    """Lets the policy drive until it succeeds, for at most LONGEST steps. Returns whether it succeeded, and the number of steps.

    Rows go to rings with their stamps, the aligner makes the same windows of them as in training, and each command of a chunk is used
    at its own moment. So the policy sees the newest moment that all sensors have passed, at most 25 ms ago.
    """
    options = {"span_s": 1.0, "on_rewind": "segment", "on_duplicate": "refuse"}
    rings = {key: live.Ring(tuple(spec.keys[key]["shape"]), "float32", **options) for key in WINDOWS}
    aligner = live.Aligner(spec, rings, outputs=["action"])
    chunks = live.Chunks("newest", spec=spec, key="action")
    arm.begin(start, np.random.default_rng(seed))
    command = np.append(arm.target, -1.0)
    for step in range(robot.LONGEST):
        for stream, time_ns, row in arm.rows():
            rings[stream].push(time_ns, row, arrival_ns=time_ns)
        if step % THINK_STEPS == 0 or chunks.covered_until_ns is None:
            batch = aligner.latest(now_ns=arm.now)
            if batch is not None:
                chunks.put(int(batch["time_ns"][0]), None, policy(batch), batch=batch)
        next_command = chunks.at(arm.now)
        command = command if next_command is None else next_command
        arm.step(command)
        if each_step is not None:
            each_step()
        if arm.success:
            return True, step + 1
    return False, robot.LONGEST


# Each process that simulates keeps its robots and policies.
_robot = functools.cache(robot.Robot)


@functools.cache
def _load(checkpoint: Path) -> tuple[Policy, robocache.Spec]:
    torch.set_num_threads(1)
    return load(checkpoint)


def rollout(checkpoint: Path, task: str, start, seed: int) -> tuple[bool, int]:
    return drive(*_load(checkpoint), _robot(task), start, seed)


def film(checkpoint: Path, arm: robot.Robot, start, seed: int, every: int) -> list[np.ndarray]:
    """Returns frames of a rollout, uint8 [112, 112, 3]: one for every `every` steps, and the last. The arm must be able to render."""
    frames, steps = [], itertools.count()

    def see() -> None:
        if next(steps) % every == 0 or arm.success:
            frames.append(np.asarray(arm.env.render())[::-1][60:172, 36:148])  # the camera is upside down

    drive(*_load(checkpoint), arm, start, seed, see)
    return frames
