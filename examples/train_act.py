"""Trains an action-chunking policy on a LeRobot dataset with a camera. It predicts the next 16 actions from the frame and the state.

    python examples/train_act.py pusht --steps 2000 --picture loss.png     # saves policy.pt
    python examples/train_act.py pusht --run policy.pt                     # prints its actions for a frame of the dataset

The policy is LeRobot's ACT if LeRobot is installed, else the small policy in this file. The loader crops images at random and
normalises them. At the end, the share of time in which the loop waited for data is printed. The saved policy runs without the
dataset: see `load_policy`.
"""

import argparse
import importlib.util
import json
from datetime import date
from itertools import chain, islice, repeat
from pathlib import Path

import torch
from torch import nn

import robocache

RESIZED, CROPPED = (108, 108), (96, 96)  # height, width
IMAGES = robocache.ImageOptions(size=RESIZED, crop=CROPPED, crop_at="random", mean="imagenet", std="imagenet")
CHUNK = 16  # the number of actions that are predicted at once
STATE, ACTION = "observation.state", "action"


class SmallPolicy(nn.Module):
    """Has a few convolutions for each camera, and two layers from their outputs and the state to the chunk of actions."""

    def __init__(self, cameras, states, actions):
        super().__init__()
        self.cameras = cameras
        layers = []
        for inputs, outputs in ((3, 16), (16, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
        self.eye = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten())  # gives 64 x 3 x 3 numbers
        self.head = nn.Sequential(
            nn.Linear(len(cameras) * 64 * 9 + states, 256), nn.ReLU(), nn.Linear(256, CHUNK * actions)
        )

    def predict_action_chunk(self, batch):
        """Returns the next CHUNK actions, normalised."""
        seen = [self.eye(batch[camera]) for camera in self.cameras]
        return self.head(torch.cat([*seen, batch[STATE]], dim=1)).unflatten(1, (CHUNK, -1))

    def forward(self, batch):
        """Returns the loss as ACT does: the mean distance from the recorded actions; those after the episode's end do not count."""
        predicted = self.predict_action_chunk(batch)
        loss = (predicted - batch[ACTION]).abs()[~batch["action_is_pad"]].mean()
        return loss, {"l1_loss": loss.item()}


def act_policy(cameras, states, actions):
    """Returns LeRobot's ACT with random weights, in a size for images of 96 x 96. Nothing is downloaded."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    images = {camera: PolicyFeature(FeatureType.VISUAL, (3, *CROPPED)) for camera in cameras}
    return ACTPolicy(
        ACTConfig(
            input_features={STATE: PolicyFeature(FeatureType.STATE, (states,)), **images},
            output_features={ACTION: PolicyFeature(FeatureType.ACTION, (actions,))},
            chunk_size=CHUNK,
            n_action_steps=CHUNK,
            pretrained_backbone_weights=None,
            dim_model=256,
            dim_feedforward=1024,
        )
    )


def make_loader(options):
    """Returns a loader of LeRobot's batches, with the actions of CHUNK frames. The first call makes the dataset's cache."""
    fps = json.loads((options.dataset / "meta/info.json").read_text())["fps"]
    return robocache.Loader.from_lerobot(
        options.dataset,
        cache=options.cache,
        on_error=options.on_error,
        frames=options.frames,
        batch_size=options.batch_size,
        device=options.device,
        delta_timestamps={ACTION: [k / fps for k in range(CHUNK)]},
        default=robocache.Window(normalize="mean_std", images=IMAGES),
    )


POLICIES = {"act": act_policy, "small": SmallPolicy}


def save_policy(path, policy, name, sizes, loader):
    """Saves the weights, and the normalisation of the policy's inputs and outputs: x = centre + spread * y."""
    scales = {}
    for key in (STATE, ACTION):
        centre = loader.unnormalize(key, torch.zeros(loader.dataset.streams[key].shape))
        scales[key] = centre, loader.unnormalize(key, torch.ones_like(centre)) - centre
    torch.save({"name": name, "sizes": sizes, "weights": policy.state_dict(), "scales": scales}, path)


def load_policy(path, device="cpu"):
    """Returns the policy for a robot: a function that takes frames {camera: uint8 [H, W, 3]} and the state, and returns the next CHUNK
    actions, in the robot's units."""
    saved = torch.load(path, map_location=device, weights_only=True)
    policy = POLICIES[saved["name"]](*saved["sizes"]).to(device).eval()
    policy.load_state_dict(saved["weights"])
    (state_centre, state_spread), (action_centre, action_spread) = saved["scales"][STATE], saved["scales"][ACTION]

    @torch.no_grad()
    def act(frames, state):
        batch = {STATE: (torch.tensor(state, device=device, dtype=torch.float32) - state_centre)[None] / state_spread}
        for camera, frame in frames.items():
            batch[camera] = robocache.image_batch(
                torch.tensor(frame, device=device)[None],
                size=RESIZED,
                crop=CROPPED,
                crop_at="center",
                mean="imagenet",
                std="imagenet",
            )
        return action_centre + action_spread * policy.predict_action_chunk(batch)[0]

    return act


def run(options):
    """Runs the policy on the first row of the dataset, and prints its actions."""
    from robocache.lerobot import open_cache

    dataset = open_cache(options.dataset, cache=options.cache, on_error=options.on_error, frames=options.frames)
    act = load_policy(options.run, options.device or "cpu")
    streams = dataset.streams
    frames = {name: stream.frame(0) for name, stream in streams.items() if stream.frames is not None}
    actions = act(frames, streams[STATE].values[0])
    recorded = streams[ACTION].values[0]
    print(f"the next {len(actions)} actions; the first, and what was recorded:")
    for number, (predicted, recorded_value) in enumerate(zip(actions[0].tolist(), recorded.tolist(), strict=True)):
        print(f"{number:4d} {predicted:9.4f} {recorded_value:9.4f}")
    return actions


def draw(plt, losses):
    """Returns a figure with the loss of each step, and its running mean."""
    width = max(1, len(losses) // 20)
    smooth = torch.tensor(losses).unfold(0, width, 1).mean(1)
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot(range(1, len(losses) + 1), losses, color="C0", alpha=0.3, linewidth=0.8, label="each step")
    axes.plot(range(width, len(losses) + 1), smooth, color="C0", label=f"mean of {width} steps")
    axes.set(xlabel="step", ylabel="L1 loss of the actions, normalised")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, help="the folder of a LeRobot dataset (v2.0, v2.1 or v3.0)")
    parser.add_argument("--cache", type=Path, help="the cache's folder (default: in ~/.cache/robocache)")
    parser.add_argument("--policy", choices=["act", "small"], help="default: act if LeRobot is installed, else small")
    parser.add_argument(
        "--on-error",
        choices=["stop", "skip"],
        default="stop",
        help="skip: leave out episodes that cannot be read, and name them",
    )
    parser.add_argument("--frames", choices=["by-time", "by-index"], help="how a row's frame is found in a video")
    parser.add_argument("--save", type=Path, default="policy.pt", help="the policy's file (default: policy.pt)")
    parser.add_argument("--run", type=Path, help="instead of training, run this policy on the dataset's first frame")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: CUDA if it is usable)")
    parser.add_argument("--picture", type=Path, help="draw the loss to this file, such as loss.png")
    parser.add_argument("--record", type=Path, help="write the losses and times to this file, such as loss.json")
    options = parser.parse_args(arguments)
    try:
        if options.run:
            return run(options)
        loader = make_loader(options)
    except robocache.FileError as error:
        options_by_argument = {
            "on_error='skip'": "--on-error skip",
            "frames='by-index'": "--frames by-index",
            "cache=": "--cache",
        }
        message = str(error)
        for argument, option in options_by_argument.items():
            message = message.replace(argument, option)
        parser.exit(1, f"{message}\n")
    streams = loader.dataset.streams
    cameras = [name for name, stream in streams.items() if stream.frames is not None]
    torch.manual_seed(0)
    name = options.policy or ("act" if importlib.util.find_spec("lerobot") else "small")
    sizes = cameras, *streams[STATE].shape, *streams[ACTION].shape
    policy = POLICIES[name](*sizes).to(loader.device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4)
    print(f"{name} on {loader.device}: {loader.num_anchors} frames, cameras: {', '.join(cameras)}")

    losses = []
    batches = chain.from_iterable(repeat(loader))  # one epoch after another, each in its own order
    for step, batch in enumerate(islice(batches, options.steps), start=1):
        loss, parts = policy(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(parts["l1_loss"])  # ACT's term for its latent variable does not count
        if step % max(1, options.steps // 20) == 0:
            print(f"step {step:6}  loss {losses[-1]:.3f}")
    save_policy(options.save, policy, name, sizes, loader)
    print(f"saved {options.save}; --run {options.save} prints its actions for a frame")
    print(loader.meter)
    if options.record:
        gpu = torch.cuda.get_device_name(loader.device) if "cuda" in str(loader.device) else None
        record = {"date": str(date.today()), "gpu": gpu, "policy": name, "frames": loader.num_anchors}
        record |= {"cameras": cameras, "batch_size": options.batch_size, "steps": options.steps, "losses": losses}
        record |= {"waited_s": loader.meter.waited_s, "elapsed_s": loader.meter.elapsed_s}
        options.record.write_text(json.dumps(record) + "\n")
    if options.picture:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        draw(plt, losses).savefig(options.picture, dpi=120)
    return losses


if __name__ == "__main__":
    main()
