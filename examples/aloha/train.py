"""Trains with RoboCache's Loader: each batch has windows around moments of the recording, and takes one kernel launch."""

import copy
import importlib.util
import math
import os
import threading
import time
from pathlib import Path

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

import robocache
from examples import results
from robocache import actions

from .episode import ACTION, CAMERA, CUBE, STATE
from .policy import CHUNK, build, calibrate, loss_of
from .scene import TICK_S

WARMUP_STEPS = 200
AVERAGED = 0.1  # rollouts use an exponential average of the weights over about this share of the steps so far
RELATIVE = actions.Relative("joints", mask=([True] * 6 + [False]) * 2)  # grippers stay absolute


def make_loader(path, *, camera, batch_size, device, seed, image_size=0, shift=0, form="absolute", memory=None):
    """Returns a loader of the successful demonstrations.

    The anchors are the stamps of the camera's frames, because the observations of a rollout have the newest frame's stamp, too. Without
    a camera, the anchors are the commands.

    form: how commands become the policy's numbers, a key of `ACTION_FORMS` in __main__.py.
    """
    converted = {} if form == "absolute" else {"convert": [RELATIVE], "base": STATE}
    windows = {STATE: None, ACTION: robocache.Window([k * TICK_S for k in range(CHUNK)], **converted)}
    if camera:
        size = (image_size, image_size) if image_size else None
        pictures = robocache.ImageOptions(size=size, shift=shift, mean="imagenet", std="imagenet")
        windows[CAMERA] = robocache.Window(images=pictures)
    else:
        windows[CUBE] = None

    def loader(stats=None):
        return robocache.Loader(
            path,
            batch_size=batch_size,
            delta_timestamps=windows,
            default=robocache.Window(normalize="mean_std"),
            normalization=robocache.Normalization(norm_stats=stats),
            anchors=CAMERA if camera else ACTION,
            episodes={"success": True},
            drop_last=True,  # a CUDA graph has one batch size
            device=device,
            seed=seed,
            memory=memory,
        )

    if form == "per-step":
        return loader({ACTION: robocache.open(path).statistics(loader(), per_step=True)[ACTION]})
    if form == "absolute-statistics":
        recorded = robocache.open(path).stats[ACTION]
        return loader({ACTION: {"mean": recorded.mean, "std": recorded.std}})
    return loader()


def shift_images(images, most):
    """Moves each image of [batch, channels, height, width] by up to `most` pixels in each direction, and repeats its edges, as the
    Loader's shift does. torch draws the moves, which depend only on the seed and the step."""
    (count, channels, height, width), device = images.shape, images.device
    down, right = torch.randint(-most, most + 1, (2, count, 1), device=device)
    rows = (torch.arange(height, device=device) + down).clamp(0, height - 1)[:, None, :, None]
    columns = (torch.arange(width, device=device) + right).clamp(0, width - 1)[:, None, None, :]
    return images.gather(2, rows.expand(-1, channels, -1, width)).gather(3, columns.expand(-1, channels, height, -1))


class Step:
    """Takes steps of training: loss, gradients and AdamW. On CUDA, each step from the tenth on is one replay of a graph.

    ACT launches some thousand small kernels per step, and the CPU needs four times as long to launch them as the GPU to run them.
    `averaged` is the policy with the exponential average of the weights. shift: the most pixels by which frames are moved.
    """

    def __init__(self, policy, device, shift=0):
        self._policy = policy
        self._shift = shift
        self.averaged = copy.deepcopy(policy)
        self._is_cuda = str(device).startswith("cuda")
        self._rate = torch.zeros((), device=device) if self._is_cuda else 0.0
        self.optimizer = torch.optim.AdamW(
            policy.parameters(), lr=self._rate, weight_decay=1e-4, fused=True, capturable=self._is_cuda
        )
        self._taken = 0
        self._graph = None

    def __call__(self, batch, rate, weight=0.0):
        """Takes a step, and returns the loss, a tensor that the next step may overwrite.

        rate: the learning rate.
        weight: the share of this step's weights in the average.
        """
        loss = self._learn(batch, rate)
        get_ema_multi_avg_fn(1 - weight)([*self.averaged.parameters()], [*self._policy.parameters()], None)
        return loss

    def _learn(self, batch, rate):
        for group in self.optimizer.param_groups:
            if self._is_cuda:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._taken += 1
        if not self._is_cuda:
            return self._step(batch)
        batch = {key: batch[key] for key in (*self._policy_keys(batch), ACTION, "action_is_pad")}
        if self._taken < 10:  # the optimizer's state and the libraries' plans must exist before the capture
            side_stream = torch.cuda.Stream()
            side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side_stream):
                loss = self._step(batch)
            torch.cuda.current_stream().wait_stream(side_stream)
            return loss
        if self._graph is None:
            self._batch = {key: value.clone() for key, value in batch.items()}
            self._graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad(set_to_none=True)
            # thread_local, because the loader's thread uses the GPU at the same time.
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
        if self._shift:
            batch = {**batch, CAMERA: shift_images(batch[CAMERA], self._shift)}
        loss = loss_of(self._policy, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), 10.0)
        self.optimizer.step()
        return loss.detach()


class Utilisation(threading.Thread):
    """Samples, from the driver, the share of time in which a GPU runs a kernel."""

    def __init__(self, device):
        super().__init__(daemon=True)
        self._device, self._ended, self._samples = device, threading.Event(), []
        if importlib.util.find_spec("pynvml") is not None:
            self.start()

    def run(self):
        while not self._ended.wait(0.1):
            self._samples.append(torch.cuda.utilization(self._device))

    def end(self):
        """Returns the mean, from 0 to 1; None if there are no samples."""
        self._ended.set()
        return sum(self._samples) / len(self._samples) / 100 if self._samples else None


class Pace:
    """Times the steps after the warm-up; the saving of checkpoints does not count. On CUDA it then times steps that repeat the last
    batch, which need no wait for data: a step's further time was such a wait."""

    def __init__(self, device):
        self._device, self._is_cuda = device, str(device).startswith("cuda")
        self._utilisation = Utilisation(device) if self._is_cuda else None
        self._saving_s = 0.0
        self._began_s = self._now_s()

    def _now_s(self):
        if self._is_cuda:
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def leave_out(self, saving_s):
        self._saving_s += saving_s

    def end(self, steps, take_step, batch, waited_s):
        """Returns {"steps_per_s", "wait_share", "gpu_busy", "saving_s"}. On CUDA it takes further steps, with a learning rate of 0."""
        took_s = self._now_s() - self._began_s - self._saving_s
        pace = {"steps_per_s": steps / took_s, "saving_s": self._saving_s}
        if not self._is_cuda:
            return pace | {"wait_share": waited_s / took_s, "gpu_busy": None}
        busy = self._utilisation.end()
        began_s = self._now_s()
        for _ in range(50):
            take_step(batch, 0.0)
        step_s = (self._now_s() - began_s) / 50
        return pace | {"wait_share": max(0.0, 1 - step_s * steps / took_s), "gpu_busy": busy}


def train(
    loader,
    folder,
    *,
    kind,
    steps,
    lr=2e-4,
    seed=0,
    every=500,
    image_size=128,
    calibration=None,
    shift=0,
    trained_with="",
):
    """Trains until `steps`, from the newest checkpoint in `folder` if there is one. Saves a checkpoint every `every` steps.

    A checkpoint is `step_N.pt`; with `spec.json` beside it, it is all that evaluation needs. ACT's backbone is calibrated by the
    batch `calibration`, by default the loader's first. shift: the most pixels by which each step moves its frames, if the loader does
    not move them.

    Returns {"steps", "checkpoints": [{"step", "wall_s", "loss"}], "pace"}.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    device, camera = torch.device(loader.device), kind == "act"
    loader.save_spec(folder / "spec.json")
    torch.manual_seed(seed)
    keys = {key: loader.dataset.streams[key].shape[-1] for key in (STATE, ACTION) + (() if camera else (CUBE,))}
    shape = {"kind": kind, "keys": keys, "image_size": image_size if camera else 0}
    policy = build(**shape).to(device)
    noise = torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator
    step, spent_s, log, pace, timer = 0, 0.0, [], None, None
    saved = checkpoints(folder)
    if camera and not saved:
        calibrate(policy, next(loader) if calibration is None else calibration)
    take_step = Step(policy, device, shift)
    if saved:
        state = torch.load(saved[-1], map_location=device, weights_only=True)
        policy.load_state_dict(state["training"])
        take_step.averaged.load_state_dict(state["weights"])
        take_step.optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        noise.set_state(state["noise"].cpu())
        step, spent_s, log, pace = state["step"], state["spent_s"], state["log"], state["pace"]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    policy.train()
    progress = results.Progress("training", steps, step)
    loss_sum, loss_count, waited_s = torch.zeros((), device=device), 0, 0.0
    timed_from = min(step + WARMUP_STEPS, (step + steps) // 2)
    began_s = asked_s = time.perf_counter()
    while step < steps:
        for batch in loader:
            waited_s += time.perf_counter() - asked_s
            if step == timed_from:
                timer, waited_s = Pace(device), 0.0
            rate = lr * min(1, (step + 1) / WARMUP_STEPS) * max(0.01, 0.5 + 0.5 * math.cos(math.pi * step / steps))
            loss_sum += take_step(batch, rate, 1 / (1 + AVERAGED * step))
            step += 1
            loss_count += 1
            progress.show(step, f"loss {log[-1]['loss']:.4f}" if log else "")
            if step % every == 0 or step == steps:
                loss = round(float(loss_sum) / loss_count, 5)
                log.append({"step": step, "wall_s": round(spent_s + time.perf_counter() - began_s, 2), "loss": loss})
                loss_sum.zero_()
                loss_count = 0
                if step == steps:
                    pace = timer.end(steps - timed_from, take_step, batch, waited_s)
                save_began_s = time.perf_counter()
                _save(
                    folder / f"step_{step}.pt",
                    {
                        **shape,
                        "weights": take_step.averaged.state_dict(),
                        "training": policy.state_dict(),
                        "noise": noise.get_state(),
                        "optimizer": take_step.optimizer.state_dict(),
                        "loader": loader.state_dict(),
                        "step": step,
                        "spent_s": log[-1]["wall_s"],
                        "log": log,
                        "seed": seed,
                        "trained_with": trained_with,
                        "pace": pace,
                    },
                )
                if timer is not None:
                    timer.leave_out(time.perf_counter() - save_began_s)
            if step == steps:
                break
            asked_s = time.perf_counter()
    progress.end(f"loss {log[-1]['loss']:.4f}")
    return {"steps": step, "checkpoints": log, "pace": pace}


def checkpoints(folder):
    """Returns the checkpoints of a run, in the order of their steps."""
    return sorted(Path(folder).glob("step_*.pt"), key=lambda file: int(file.stem.split("_")[1]))


def _save(file, state):
    partial = file.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, file)


def load(file, device="cpu"):
    """Returns the policy of a checkpoint, for inference."""
    state = torch.load(file, map_location=device, weights_only=True)
    policy = build(state["kind"], state["keys"], state["image_size"]).to(device).eval()
    policy.load_state_dict(state["weights"])
    return policy
