"""Training by RoboCache's Loader: batches of windows around moments of the recording, one kernel launch each."""

import math
import os
import time
from pathlib import Path

import torch

import robocache

from .episode import ACTION, CAMERA, CUBE, STATE
from .policy import CHUNK, build, calibrate
from .scene import TICK_S

WARMUP = 200  # steps


def make_loader(path, *, camera, batch_size, device, seed, image_size):
    """Batches of the demonstrations that succeeded.

    The anchors are the camera's frames, at the moment of their exposure, because that is where the policy will stand: its
    newest settled moment is that of the newest frame. Without a camera they are the commands.
    """
    windows = {
        STATE: None,
        ACTION: robocache.Window([k * TICK_S for k in range(CHUNK)]),
    }
    if camera:
        pictures = robocache.ImageOptions(size=(image_size, image_size), mean="imagenet", std="imagenet")
        windows[CAMERA] = robocache.Window(images=pictures)
    else:
        windows[CUBE] = None
    return robocache.Loader(
        path,
        batch_size=batch_size,
        delta_timestamps=windows,
        default=robocache.Window(normalize="mean_std"),
        anchors=CAMERA if camera else ACTION,
        episodes={"success": True},
        device=device,
        seed=seed,
    )


def train(
    path,
    folder,
    *,
    kind,
    steps,
    batch_size=64,
    lr=2e-4,
    device=None,
    seed=0,
    every=500,
    image_size=128,
    budget_s=None,
    show=print,
):
    """Trains until `steps`, saves each `every` steps, and goes on from the newest checkpoint in `folder`.

    A checkpoint is `step_N.pt` with `spec.json` beside it: all that evaluation needs. With budget_s it stops after so
    many seconds, at a checkpoint; the learning rate falls along a cosine to whichever end comes first. Returns {"steps", "checkpoints": [{"step", "wall_s", "loss"}], "meter"}.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    camera = kind == "act"
    loader = make_loader(path, camera=camera, batch_size=batch_size, device=device, seed=seed, image_size=image_size)
    device = loader.device
    loader.save_spec(folder / "spec.json")
    torch.manual_seed(seed)
    keys = {key: loader.dataset.streams[key].shape[-1] for key in (STATE, ACTION) + (() if camera else (CUBE,))}
    shape = {"kind": kind, "keys": keys, "image_size": image_size if camera else 0}
    policy = build(**shape).to(device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr, weight_decay=1e-4, fused=True)
    step, spent, log = 0, 0.0, []
    saved = checkpoints(folder)
    if saved:
        state = torch.load(saved[-1], map_location=device, weights_only=True)
        policy.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step, spent, log = state["step"], state["spent_s"], state["log"]
    elif camera:
        calibrate(policy, next(loader))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    policy.train()
    total, counted = torch.zeros((), device=device), 0
    began = time.perf_counter()
    out_of_time = False
    while step < steps and not out_of_time:
        for batch in loader:
            now = time.perf_counter() - began
            share = step / steps if budget_s is None else max(step / steps, now / budget_s)
            for group in optimizer.param_groups:
                group["lr"] = (
                    lr * min(1, (step + 1) / WARMUP) * max(0.01, 0.5 + 0.5 * math.cos(math.pi * min(share, 1)))
                )
            loss, _ = policy(batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
            optimizer.step()
            step += 1
            total += loss.detach()
            counted += 1
            out_of_time = budget_s is not None and now > budget_s
            if step % every == 0 or step == steps or out_of_time:
                wall = spent + time.perf_counter() - began
                log.append({"step": step, "wall_s": round(wall, 2), "loss": round(float(total) / counted, 5)})
                total.zero_()
                counted = 0
                _save(
                    folder / f"step_{step}.pt",
                    {
                        **shape,
                        "weights": policy.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),
                        "step": step,
                        "spent_s": wall,
                        "log": log,
                        "seed": seed,
                        "wait_share": loader.meter.waited_s / max(loader.meter.elapsed_s, 1e-9),
                    },
                )
                left = wall / step * (steps - step)
                show(f"step {step} of {steps}: loss {log[-1]['loss']:.4f}, {wall:.0f} s, {left:.0f} s left")
            if step == steps or out_of_time:
                break
    return {"steps": step, "checkpoints": log, "meter": str(loader.meter)}


def checkpoints(folder):
    """The checkpoints of a run, the one of the most steps last."""
    return sorted(Path(folder).glob("step_*.pt"), key=lambda file: int(file.stem.split("_")[1]))


def _save(file, state):
    partial = file.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, file)


def load(file, device="cpu"):
    """The policy of a checkpoint, ready to be asked."""
    state = torch.load(file, map_location=device, weights_only=True)
    policy = build(state["kind"], state["keys"], state["image_size"]).to(device).eval()
    policy.load_state_dict(state["weights"])
    return policy
