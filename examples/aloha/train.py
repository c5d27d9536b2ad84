"""Training by RoboCache's Loader: batches of windows around moments of the recording, one kernel launch each."""

import math
import os
import time
from pathlib import Path

import torch

import robocache

from .episode import ACTION, CAMERA, CUBE, STATE
from .policy import CHUNK, build, calibrate, loss_of
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
        drop_last=True,  # a graph has one batch size
        device=device,
        seed=seed,
    )


class Step:
    """A step of training: loss, gradients and AdamW. On CUDA, from the tenth on, it is one replay of a graph.

    ACT launches some thousand small kernels a step, which takes a processor four times as long as the GPU needs for them.
    """

    def __init__(self, policy, device, graph):
        self._policy = policy
        self._on_cuda = str(device).startswith("cuda")
        self._wants_graph = graph and self._on_cuda
        self._rate = torch.zeros((), device=device) if self._on_cuda else 0.0
        self.optimizer = torch.optim.AdamW(
            policy.parameters(), lr=self._rate, weight_decay=1e-4, fused=True, capturable=self._on_cuda
        )
        self._taken = 0
        self._graph = None

    def __call__(self, batch, rate):
        """Returns the loss, a tensor that the next step may overwrite."""
        for group in self.optimizer.param_groups:
            if self._on_cuda:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._taken += 1
        if not self._wants_graph:
            return self._step(batch)
        batch = {key: batch[key] for key in (*self._policy_keys(batch), ACTION, "action_is_pad")}
        if self._taken < 10:  # the optimizer has made its state, and libraries their plans, before the capture
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                loss = self._step(batch)
            torch.cuda.current_stream().wait_stream(beside)
            return loss
        if self._graph is None:
            self._batch = {key: value.clone() for key, value in batch.items()}
            self._graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad(set_to_none=True)
            # thread_local: the loader's thread goes on meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._loss = self._step(self._batch, zero=False)
        for key, value in batch.items():
            self._batch[key].copy_(value)
        self._graph.replay()
        return self._loss

    @staticmethod
    def _policy_keys(batch):
        return [key for key in (STATE, CUBE, CAMERA) if key in batch]

    def _step(self, batch, zero=True):
        if zero:
            self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self._policy, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), 10.0)
        self.optimizer.step()
        return loss.detach()


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
    graph=True,
    show=print,
):
    """Trains until `steps`, saves each `every` steps, and goes on from the newest checkpoint in `folder`.

    A checkpoint is `step_N.pt` with `spec.json` beside it: all that evaluation needs. With budget_s it stops after so
    many seconds, at a checkpoint; the learning rate falls along a cosine to whichever end comes first. Returns
    {"steps", "checkpoints": [{"step", "wall_s", "loss"}], "meter"}.
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
    step_of = Step(policy, device, graph)
    step, spent, log = 0, 0.0, []
    saved = checkpoints(folder)
    if saved:
        state = torch.load(saved[-1], map_location=device, weights_only=True)
        policy.load_state_dict(state["weights"])
        step_of.optimizer.load_state_dict(state["optimizer"])
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
            rate = lr * min(1, (step + 1) / WARMUP) * max(0.01, 0.5 + 0.5 * math.cos(math.pi * min(share, 1)))
            total += step_of(batch, rate)
            step += 1
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
                        "optimizer": step_of.optimizer.state_dict(),
                        "loader": loader.state_dict(),
                        "step": step,
                        "spent_s": wall,
                        "log": log,
                        "seed": seed,
                        "trained_with": f"--steps {steps} --batch-size {batch_size} --lr {lr:g} --image-size {image_size}"
                        + ("" if budget_s is None else f" --budget-s {budget_s:g}"),
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
