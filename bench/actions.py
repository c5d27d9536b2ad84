"""Actions: batches of converted, normalised actions, compared with transforms that make the same numbers sample by sample.

    python bench/actions.py --device cpu --threads 2

The peers are the formulas of openpi, GR00T and LeRobot in numpy, on rows in memory, in torch's DataLoader with as many worker
processes as threads. A peer's batch is compared with ours before the peer is timed. The other cases compare a loader of three
converted keys with a loader of the same keys unconverted. Both loaders normalise.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measure import call_timer, endless, graph_timer, median_us
from record import Report, arguments, temporary_folder
from scipy.spatial.transform import Rotation

import robocache
from robocache import Memory, Normalization, Window, actions

EPISODES, ROWS, BATCH = 50, 500, 256
# Predictions and aims, written before the first measurement. faster_than is a peer's time divided by ours.
PREDICTED = {"openpi": {"openpi": 150.0}, "GR00T": {"GR00T": 500.0}, "LeRobot": {"LeRobot": 150.0}}
AIMS = {name: {"faster_than": {name: 50.0}} for name in PREDICTED}
KEYS, COST_BATCH = ("action0", "action1", "action2"), 1024
COSTS = ("three keys of joints", "three keys of poses, quaternions", "three keys of poses, 6D")
PREDICTED |= {name: {"times_unconverted": 1.3 if name == COSTS[0] else 3.0} for name in COSTS}
AIMS |= {name: {"times_unconverted": 1.1} for name in COSTS}
MEAN, STD = 0.1, 0.7


class Samples(torch.utils.data.Dataset):
    """A sample is a chunk of actions, normalised after `transform` made it relative to the state. A chunk that runs past the end
    of its episode repeats the episode's last row."""

    def __init__(self, state: np.ndarray, action: np.ndarray, horizon: int, transform: Callable) -> None:
        self.state, self.action, self.horizon, self.transform = state, action, horizon, transform

    def __len__(self) -> int:
        return EPISODES * ROWS

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        episode, row = divmod(index, ROWS)
        rows = episode * ROWS + np.minimum(row + np.arange(self.horizon), ROWS - 1)
        state, chunk = self.state[index], self.action[rows]
        converted = self.transform(state, chunk)
        return {"state": state, "action": ((converted - MEAN) / STD).astype(np.float32)}


def relative_joints(mask: np.ndarray, state: np.ndarray, chunk: np.ndarray) -> np.ndarray:
    """openpi's DeltaActions and LeRobot's relative actions: subtracts the state from the masked features."""
    chunk = chunk.copy()
    chunk[..., : len(mask)] -= np.where(mask, state[..., : len(mask)], 0)[None]
    return chunk


def matrices(pose: np.ndarray) -> np.ndarray:
    """Returns homogeneous matrices from x, y, z and the rotation's first two rows, by Gram-Schmidt."""
    a, b = pose[..., 3:6], pose[..., 6:9]
    a = a / np.linalg.norm(a, axis=-1, keepdims=True)
    b = b - (a * b).sum(-1, keepdims=True) * a
    b = b / np.linalg.norm(b, axis=-1, keepdims=True)
    result = np.tile(np.eye(4), (*pose.shape[:-1], 1, 1))
    result[..., :3, :3] = np.stack([a, b, np.cross(a, b)], -2)
    result[..., :3, 3] = pose[..., :3]
    return result


def relative_end_effectors(state: np.ndarray, chunk: np.ndarray) -> np.ndarray:
    """GR00T's relative end effectors, pose by pose: inv(T0) T."""
    base = np.linalg.inv(matrices(state))
    relative = [base @ matrices(pose) for pose in chunk]
    return np.stack([np.concatenate([m[:3, 3], m[:2, :3].reshape(6)]) for m in relative])


def random_poses(rng: np.random.Generator, rows: int) -> np.ndarray:
    rotation = Rotation.random(rows, random_state=int(rng.integers(1 << 30))).as_matrix()
    return np.concatenate([rng.standard_normal((rows, 3)), rotation[:, :2].reshape(-1, 6)], -1)


def mean_us(batches: Iterator, count: int) -> float:
    next(batches)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - start)
    return float(np.mean(times)) * 1e6


def relative_quaternion_poses(state: np.ndarray, chunk: np.ndarray) -> np.ndarray:
    """Returns poses x, y, z and a quaternion x, y, z, w relative to the state's: inv(T0) T, with w of 0 or more."""
    inverse = Rotation.from_quat(state[3:]).inv()
    turns = inverse * Rotation.from_quat(chunk[:, 3:])
    return np.concatenate([inverse.apply(chunk[:, :3] - state[:3]), turns.as_quat(canonical=True)], -1)


def record_streams(path: Path, streams: dict[str, np.ndarray]) -> robocache.Dataset:
    with robocache.Writer(path) as writer:
        for number in range(EPISODES):
            rows = slice(number * ROWS, (number + 1) * ROWS)
            with writer.episode() as episode:
                for stream, values in streams.items():
                    episode.append(stream, np.arange(ROWS) * 20_000_000, values[rows])
    return robocache.open(path)


def make_loader(
    dataset: robocache.Dataset, keys: tuple[str, ...], horizon: int, conversions: list | None, batch_size: int, device
) -> robocache.Loader:
    """Returns a loader of the state and of normalised windows of the keys, relative to the state if there are conversions."""
    features = dataset.streams[keys[0]].shape[-1]
    stats = {"mean": np.full(features, MEAN), "std": np.full(features, STD)}
    relative = {} if conversions is None else {"base": "state", "convert": conversions}
    window = Window(range(horizon), rows=True, normalize="mean_std", **relative)
    return robocache.Loader(
        dataset,
        batch_size=batch_size,
        delta_timestamps={"state": Window()} | dict.fromkeys(keys, window),
        normalization=Normalization(norm_stats=dict.fromkeys(keys, stats)),
        anchors="state",
        device=device,
        memory=Memory(prefetch=0),
        findings=None,
    )


def check(ours: robocache.Loader, key: str, samples: Samples) -> None:
    """Compares a batch of our loader, spread over all episodes, with the peer's samples."""
    indices = list(range(0, len(samples), len(samples) // BATCH))[:BATCH]
    expected = np.stack([samples[i]["action"] for i in indices])
    np.testing.assert_allclose(ours.gather(indices)[key].cpu().numpy(), expected, atol=2e-5)


def run_case(
    folder: Path,
    name: str,
    state: np.ndarray,
    action: np.ndarray,
    horizon: int,
    transform: Callable,
    conversions: list,
    options,
    case: dict,
) -> None:
    dataset = record_streams(folder / name, {"state": state, "action": action})
    ours = make_loader(dataset, ("action",), horizon, conversions, BATCH, options.device)
    samples = Samples(state, action, horizon, transform)
    check(ours, "action", samples)
    theirs = torch.utils.data.DataLoader(
        samples, BATCH, shuffle=True, num_workers=options.threads, persistent_workers=True, drop_last=True
    )
    ours_us = mean_us(endless(ours), 20 if options.quick else 400)
    theirs_us = mean_us(endless(theirs), 3 if options.quick else 60)
    ratio = theirs_us / ours_us
    case["figures"] = {"wall_us": ours_us, "peer_us": theirs_us, "times_peer": ratio}
    case["faster_than"] = {name: ratio}


def run_cost(
    folder: Path,
    name: str,
    state: np.ndarray,
    action: np.ndarray,
    transform: Callable,
    conversions: list,
    options,
    case: dict,
) -> None:
    dataset = record_streams(folder / name, {"state": state} | dict.fromkeys(KEYS, action))
    converted, unconverted = (
        make_loader(dataset, KEYS, 16, loader_conversions, COST_BATCH, options.device)
        for loader_conversions in (conversions, None)
    )
    check(converted, KEYS[-1], Samples(state, action, 16, transform))
    timer_of = graph_timer if options.device == "cuda" else call_timer
    timers = {
        label: timer_of([partial(next, endless(loader))])
        for label, loader in (("converted", converted), ("unconverted", unconverted))
    }
    times_us = median_us(timers, 3 if options.quick else 31, apart=options.device == "cpu" and not options.quick)
    case["figures"] = {
        "gpu_us" if options.device == "cuda" else "wall_us": times_us["converted"],
        "unconverted_us": times_us["unconverted"],
        "times_unconverted": times_us["converted"] / times_us["unconverted"],
    }


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    report = Report("actions", options, PREDICTED, AIMS)
    rng = np.random.default_rng(0)
    rows = EPISODES * ROWS
    aloha = np.array([True] * 6 + [False] + [True] * 6 + [False])
    arm = np.array([True] * 6 + [False])
    two_arms = [rng.standard_normal((rows, 14)).astype(np.float32) for _ in range(2)]
    one_arm = [x[:, :7].copy() for x in two_arms]
    eef = [random_poses(rng, rows).astype(np.float32) for _ in range(2)]
    cases = {
        "openpi": (*two_arms, 50, partial(relative_joints, aloha), actions.presets.openpi(aloha.tolist(), 14)),
        "GR00T": (*eef, 16, relative_end_effectors, actions.presets.groot("relative", "eef", "xyz+rot6d")),
        "LeRobot": (*one_arm, 50, partial(relative_joints, arm), [actions.Relative("joints", mask=arm.tolist())]),
    }
    orientations = [Rotation.random(rows, random_state=seed).as_quat(canonical=True) for seed in (1, 2)]
    quaternion_pair = [
        np.concatenate([x[:, :3], orientation], -1).astype(np.float32)
        for x, orientation in zip(two_arms, orientations, strict=True)
    ]
    costs = (
        (*one_arm, partial(relative_joints, arm), [actions.Relative("joints", mask=arm.tolist())]),
        (*quaternion_pair, relative_quaternion_poses, [actions.Relative("se3", rotation="quat_xyzw")]),
        (*eef, relative_end_effectors, [actions.Relative("se3", rotation="rot6d_rows")]),
    )
    with temporary_folder() as folder:
        for name, case in cases.items():
            parameters = {"batch": BATCH, "steps": case[2], "features": case[1].shape[-1]}
            report.run(name, parameters, partial(run_case, folder, name, *case, options))
        for name, case in zip(COSTS, costs, strict=True):
            parameters = {"batch": COST_BATCH, "steps": 16, "features": case[1].shape[-1]}
            report.run(name, parameters, partial(run_cost, folder, name, *case, options))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
