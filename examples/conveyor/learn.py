"""Trains the same kind of policy for all arms, each with a Loader of its own data."""

import time
from itertools import chain, repeat

import torch
from torch import nn

import robocache
from examples.conveyor.belt import HEIGHT, WIDTH
from examples.conveyor.demonstrations import ACTION, AGE, CAMERA
from examples.results import Progress
from robocache import Anchors, Window

FRAMES_S = [-0.2, -0.1, 0.0]
ACTIONS_S = [k / 30 for k in range(12)]
ARMS = ("rows", "stamps", "clocks")


def make_loader(demonstrations, arm, delay_ms, *, batch_size, seed, device):
    """Returns an arm's loader. That of "clocks" is the same for every delay, because its frames have the camera's stamps."""
    windows = {CAMERA: Window(FRAMES_S), ACTION: Window(ACTIONS_S, normalize="min_max")}
    if arm == "stamps":
        windows[AGE] = Window(FRAMES_S)
    return robocache.Loader(
        demonstrations / ("streams" if arm == "clocks" else f"rows_{delay_ms}ms"),
        batch_size=batch_size,
        delta_timestamps=windows,
        anchors=Anchors(stream=ACTION),
        return_age=arm == "clocks",
        drop_last=True,
        seed=seed,
        device=device,
    )


def ages_of(batch, arm):
    """Returns the age of each frame in tenths of a second, [B, frames]; 0 if the arm has no ages."""
    if arm == "clocks":
        return batch[f"{CAMERA}_age"].float() / 1e8
    return 10 * batch[AGE] if arm == "stamps" else torch.zeros_like(batch[f"{CAMERA}_is_pad"], dtype=torch.float32)


class Policy(nn.Module):
    """Computes a chunk of normalised commands from three frames, their ages, and whether the first two are missing.

    Two convolutions find a point in each frame for each channel: the mean position, weighted by a softmax.
    """

    def __init__(self, channels=8):
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(3, channels, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )  # fmt: skip
        self.sharpness = nn.Parameter(torch.ones(channels, 1))
        rows, columns = torch.meshgrid(
            torch.linspace(-1, 1, HEIGHT // 2), torch.linspace(-1, 1, WIDTH // 2), indexing="ij"
        )
        self.register_buffer("positions", torch.stack([rows.flatten(), columns.flatten()], 1))
        inputs = len(FRAMES_S) * (2 * channels + 2) - 1
        self.head = nn.Sequential(
            nn.Linear(inputs, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 2 * len(ACTIONS_S))
        )

    def forward(self, frames, ages, is_pad):
        heat = self.eye(frames.flatten(0, 1) - 0.15).flatten(2) * self.sharpness
        points = torch.softmax(heat, 2) @ self.positions
        inputs = torch.cat([points.reshape(len(frames), -1), ages, is_pad[:, :-1].float()], 1)
        return self.head(inputs).unflatten(1, (len(ACTIONS_S), 2))


def train(loader, arm, folder, *, steps, seed, device, every=500):
    """Trains until `steps`, from the last checkpoint in the folder if there is one. Writes the spec and, every `every` steps, a
    checkpoint from which training can continue, and the policy."""
    torch.manual_seed(seed)
    policy = Policy().to(device)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    parts = {"policy": policy, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    done, wall_s, curve = 0, 0.0, []
    folder.mkdir(parents=True, exist_ok=True)
    loader.save_spec(folder / "spec.json")
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt", weights_only=True, map_location=device)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        done, wall_s, curve = saved["done"], saved["wall_s"], saved["curve"]
    if done >= steps:
        return
    progress = Progress(f"training {folder.name}", steps, done)
    began_s, losses = time.monotonic() - wall_s, []
    batches = chain.from_iterable(repeat(loader))  # one epoch after another
    for step in range(done + 1, steps + 1):
        batch = next(batches)
        predicted = policy(batch[CAMERA], ages_of(batch, arm), batch[f"{CAMERA}_is_pad"])
        loss = (predicted - batch[ACTION]).abs()[~batch[f"{ACTION}_is_pad"]].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        progress.show(step)
        if step % every == 0 or step == steps:
            loss, losses = float(torch.stack(losses).mean()), []
            wall_s = time.monotonic() - began_s
            curve.append({"step": step, "wall_s": round(wall_s, 2), "loss": loss})
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"done": step, "wall_s": wall_s, "curve": curve, "wait_share": loader.meter.share}
            torch.save(policy.state_dict(), folder / f"step_{step}.pt")
            torch.save(state, folder / "checkpoint.partial")
            (folder / "checkpoint.partial").replace(folder / "checkpoint.pt")
    progress.done = steps
    progress.end(f"loss {curve[-1]['loss']:.4f}")
