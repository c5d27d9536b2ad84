"""Trains LeRobot's ACT and Diffusion with lerobot-train on real recordings of two cameras, by LeRobot's loader and by ours.

    python examples/train_lerobot.py bridge --folder out --steps 300 --result lerobot-bridge.json

`bridge` is a folder of BridgeData V2 in RLDS, from which robocache.ingest and robocache.export make a LeRobot dataset. The last fifth
of its episodes is held out. LeRobot's `from_pretrained` loads each checkpoint, and LeRobot's dataset loads the held-out samples. The
validation loss is ACT's mean distance from the normalised actions, and Diffusion's loss with fixed noise. It needs LeRobot 0.6.1: pip
install 'lerobot[dataset,training,diffusion]'.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from robocache.lerobot import open_cache

import robocache

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples import results

RENAMED = {
    "observation/image_0": "observation.images.first",
    "observation/image_1": "observation.images.second",
    "observation/state": "observation.state",
    "action": "action",
}
RATE_HZ = 5  # the rate of BridgeData V2
POLICIES = {
    "act": "chunk_size=8 n_action_steps=8 dim_model=128 n_heads=4 dim_feedforward=512 n_encoder_layers=2",
    "diffusion": "horizon=8 n_action_steps=4 drop_n_last_frames=3 down_dims=[64,128] n_groups=8",
}
LOADERS = ("LeRobot's", "ours")
PREDICTED = (
    "within a policy, the loaders' mean losses differ by less than the seeds of one loader do, since frames have gone through "
    "JPEG once more and nothing else differs"
)


def prepare(source, folder):
    """Makes the LeRobot dataset. Returns its folder, and the numbers of the episodes to train on and to hold out."""
    if not (folder / "set").exists():
        robocache.ingest(source, folder / "recorded", rate_hz=RATE_HZ, progress=False)
        robocache.export(
            folder / "recorded", folder / "set", to="lerobot", streams=list(RENAMED), rename=RENAMED, video=True
        )
    splits = robocache.open(folder / "recorded").episodes["split"].to_pylist()
    numbers = [number for number, split in enumerate(splits) if split == "train"]  # "val" has the same episodes
    held_out = max(1, len(numbers) // 5)
    return folder / "set", numbers[:-held_out], numbers[-held_out:]


def train(root, out, policy, loader, seed, episodes, steps, batch_size, device):
    """Runs lerobot-train in this process."""
    import lerobot.datasets.factory
    import robocache.lerobot

    if loader == "ours":
        lerobot.datasets.factory.make_dataset = robocache.lerobot.make_dataset
    import lerobot.scripts.lerobot_train as trainer

    arguments = (
        f"--dataset.root={root} --dataset.repo_id=robocache/bridge --dataset.episodes={json.dumps(episodes, separators=(',', ':'))} "
        f"--output_dir={out} --wandb.enable=false --seed={seed} --steps={steps} --save_freq={steps} --batch_size={batch_size} "
        f"--num_workers={0 if loader == 'ours' else 2} --log_freq={steps} --policy.type={policy} --policy.device={device} "
        "--policy.push_to_hub=false --policy.pretrained_backbone_weights=null "
    )
    sys.argv = ["lerobot-train", *arguments.split(), *(f"--policy.{option}" for option in POLICIES[policy].split())]
    trainer.main()


def validate(root, checkpoint, policy, episodes, device):
    """Returns the loss on held-out episodes. LeRobot's code loads the policy and the samples."""
    import torch
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.datasets.factory import resolve_delta_timestamps
    from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    config = PreTrainedConfig.from_pretrained(checkpoint)
    config.device = device
    loaded = get_policy_class(policy).from_pretrained(checkpoint, config=config).eval()
    overrides = {"device_processor": {"device": device}}
    preprocess, _ = make_pre_post_processors(config, pretrained_path=str(checkpoint), preprocessor_overrides=overrides)
    meta = LeRobotDatasetMetadata("robocache/bridge", root=root)
    windows = resolve_delta_timestamps(config, meta)
    samples = LeRobotDataset("robocache/bridge", root=root, episodes=episodes, delta_timestamps=windows)
    torch.manual_seed(0)
    losses = []
    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(samples, batch_size=16):
            batch = preprocess(batch)
            if policy == "act":
                is_recorded = ~batch["action_is_pad"]
                distances = (loaded.predict_action_chunk(batch) - batch["action"]).abs().mean(2)
                losses += distances[is_recorded].tolist()
            else:
                losses.append(loaded.forward(batch)[0].item())
    return sum(losses) / len(losses)


def run(options, root, trained, held_out, policy, loader, seed):
    """Runs one training and its validation in a process of its own. Returns the entry of the result file.

    trained, held_out: the numbers of the episodes.
    """
    arguments = {
        "root": str(root),
        "out": str(options.folder / f"{policy}-{LOADERS.index(loader)}-{seed}"),
        "policy": policy,
        "loader": loader,
        "seed": seed,
        "trained": trained,
        "held_out": held_out,
        "steps": options.steps,
        "batch_size": options.batch_size,
        "device": options.device,
    }
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(options.folder)}
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(arguments)], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{policy}, {loader}, seed {seed}: {done.stderr[-3000:]}")
    loss = float(done.stdout.rsplit("validation loss", 1)[1])
    print(f"{policy}, {loader}, seed {seed}: {loss:.5f}", file=sys.stderr, flush=True)
    return {"policy": policy, "loader": loader, "seed": seed, "validation_loss": loss}


def train_and_validate(arguments):
    """Runs in a process of its own: trains if there is no checkpoint yet, and prints the validation loss."""
    root, out = Path(arguments["root"]), Path(arguments["out"])
    policy, device = arguments["policy"], arguments["device"]
    checkpoint = out / "checkpoints/last/pretrained_model"
    if not checkpoint.exists():
        settings = (arguments[name] for name in ("loader", "seed", "trained", "steps", "batch_size"))
        train(root, out, policy, *settings, device)
    print("validation loss", validate(root, checkpoint, policy, arguments["held_out"], device))


def main():
    if sys.argv[1:2] == ["--one"]:
        return train_and_validate(json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("lerobot-bridge"))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="the number of trainings that run at the same time")
    parser.add_argument("--result", type=Path)
    parser.add_argument("--commit", help="the commit for the result file, if the checkout has no git")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    root, trained, held_out = prepare(options.source, options.folder)
    os.environ["XDG_CACHE_HOME"] = str(options.folder)  # all processes share one cache
    open_cache(root)
    combinations = list(itertools.product(options.policies, LOADERS, options.seeds))
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(lambda combination: run(options, root, trained, held_out, *combination), combinations))
    content = {
        "machine": results.machine(),
        "commit": options.commit or results.checkout_commit(),
        "versions": results.versions(["numpy", "torch", "lerobot"]),
        "command": f"python examples/train_lerobot.py bridge --steps {options.steps} --batch-size {options.batch_size} "
        f"--device {options.device}",
        "predictions": PREDICTED,
        "rows": {"trained": len(trained), "held out": len(held_out)},
        "policies": POLICIES,
        "runs": runs,
    }
    if options.result:
        options.result.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content["runs"]))


if __name__ == "__main__":
    main()
