"""Actions: batches of converted, normalised actions, compared with transforms that make the same numbers sample by sample.

    python bench/actions.py --device cpu --threads 2

The peers are the formulas of openpi, GR00T and LeRobot in numpy, on rows in memory, in torch's DataLoader with as many worker
processes as threads. Each makes the same batch, which is compared with ours before it is timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measure import endless
from record import Report, arguments, temporary_folder
from scipy.spatial.transform import Rotation

import robocache
from robocache import Memory, Normalization, Window, actions

EPISODES, ROWS, BATCH = 50, 500, 256
# The peers' time over ours; predictions and aims were written before the first measurement.
PREDICTED = {"openpi": {"openpi": 150.0}, "GR00T": {"GR00T": 500.0}, "LeRobot": {"LeRobot": 150.0}}
AIMS = {name: {"faster_than": {name: 50.0}} for name in PREDICTED}
MEAN, STD = 0.1, 0.7


class Samples(torch.utils.data.Dataset):
    """Samples are chunks of actions, held at the episode's edge, that `transform` makes relative to the state, normalised."""

    def __init__(self, state: np.ndarray, action: np.ndarray, horizon: int, transform: Callable) -> None:
        self.state, self.action, self.horizon, self.transform = state, action, horizon, transform

    def __len__(self) -> int:
        return EPISODES * ROWS

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        episode, t = divmod(index, ROWS)
        rows = episode * ROWS + np.minimum(t + np.arange(self.horizon), ROWS - 1)
        state, chunk = self.state[index], self.action[rows]
        converted = self.transform(state, chunk)
        return {"state": state, "action": ((converted - MEAN) / STD).astype(np.float32)}


def joints(mask: np.ndarray, state: np.ndarray, chunk: np.ndarray) -> np.ndarray:
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


def end_effectors(state: np.ndarray, chunk: np.ndarray) -> np.ndarray:
    """GR00T's relative end effectors, pose by pose: inv(T0) T."""
    base = np.linalg.inv(matrices(state))
    near = [base @ matrices(pose) for pose in chunk]
    return np.stack([np.concatenate([m[:3, 3], m[:2, :3].reshape(6)]) for m in near])


def poses(rng: np.random.Generator, rows: int) -> np.ndarray:
    turn = Rotation.random(rows, random_state=int(rng.integers(1 << 30))).as_matrix()
    return np.concatenate([rng.standard_normal((rows, 3)), turn[:, :2].reshape(-1, 6)], -1)


def timed(batches: Iterator, count: int) -> float:
    next(batches)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - start)
    return float(np.mean(times)) * 1e6


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
    with robocache.Writer(folder / name) as writer:
        for number in range(EPISODES):
            rows = slice(number * ROWS, (number + 1) * ROWS)
            with writer.episode() as episode:
                for stream, values in (("state", state), ("action", action)):
                    episode.append(stream, np.arange(ROWS) * 20_000_000, values[rows])
    stats = {"action": {"mean": np.full(action.shape[-1], MEAN), "std": np.full(action.shape[-1], STD)}}
    window = Window(range(horizon), rows=True, normalize="mean_std", base="state", convert=conversions)
    ours = robocache.Loader(
        robocache.open(folder / name),
        batch_size=BATCH,
        delta_timestamps={"state": Window(), "action": window},
        normalization=Normalization(norm_stats=stats),
        anchors="state",
        device=options.device,
        memory=Memory(prefetch=0),
        findings=None,
    )
    samples = Samples(state, action, horizon, transform)
    indices = list(range(0, len(samples), len(samples) // BATCH))[:BATCH]
    expected = np.stack([samples[i]["action"] for i in indices])
    np.testing.assert_allclose(ours.gather(indices)["action"].cpu().numpy(), expected, atol=2e-5)
    theirs = torch.utils.data.DataLoader(
        samples, BATCH, shuffle=True, num_workers=options.threads, persistent_workers=True, drop_last=True
    )
    ours_us = timed(endless(ours), 20 if options.quick else 400)
    theirs_us = timed(endless(theirs), 3 if options.quick else 60)
    ratio = theirs_us / ours_us
    case["figures"] = {"wall_us": ours_us, "peer_us": theirs_us, "times_peer": ratio}
    case["faster_than"] = {name: ratio}


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    report = Report("actions", options, PREDICTED, AIMS)
    rng = np.random.default_rng(0)
    rows = EPISODES * ROWS
    aloha = np.array([True] * 6 + [False] + [True] * 6 + [False])
    arm = np.array([True] * 6 + [False])
    two = [rng.standard_normal((rows, 14)).astype(np.float32) for _ in range(2)]
    one = [x[:, :7].copy() for x in two]
    eef = [poses(rng, rows).astype(np.float32) for _ in range(2)]
    cases = {
        "openpi": (*two, 50, partial(joints, aloha), actions.presets.openpi(aloha.tolist(), 14)),
        "GR00T": (*eef, 16, end_effectors, actions.presets.groot("relative", "eef", "xyz+rot6d")),
        "LeRobot": (*one, 50, partial(joints, arm), [actions.Relative("joints", mask=arm.tolist())]),
    }
    with temporary_folder() as folder:
        for name, case in cases.items():
            parameters = {"batch": BATCH, "steps": case[2], "features": case[1].shape[-1]}
            report.run(name, parameters, partial(run_case, folder, name, *case, options))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
