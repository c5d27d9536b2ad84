"""A simulated arm of metaworld as a robot: its sensors have their own clocks, and commands are positions to move to."""

import warnings
from collections.abc import Iterator

import metaworld
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.policies import ENV_POLICY_MAP

warnings.filterwarnings("ignore", message="Constant.*may be too high")  # an expert's gain; commands are clipped anyway

STEP_NS = 12_500_000  # a command and a row of the hand every 12.5 ms
TRACKER_NS = 33_333_333  # the tracker of objects and goal has about 30 Hz
LONGEST = 160  # the most steps of a rollout: 2 s; the experts need 44 to 99
BEGIN_NS = 1_000_000_000
HAND = ["x", "y", "z", "opening"]
COMMAND = ["x", "y", "z", "grip"]
OBJECTS = [f"{name}.{part}" for name in ("first", "second") for part in ("x", "y", "z", "qx", "qy", "qz", "qw")]
TRACKED = [*OBJECTS, "goal.x", "goal.y", "goal.z"]


def starts(task: str, seed: int, count: int) -> list:
    """Returns starts and goals of a task, drawn by the seed from a continuous range."""
    drawn = []
    while len(drawn) < count:  # a benchmark has 50
        drawn += metaworld.MT1(task, seed=seed * 1000 + len(drawn) // 50).train_tasks
    return drawn[:count]


class Robot:
    """A task's arm. `rows` yields the rows that the sensors sent since the last step, as (stream, stamp, row)."""

    def __init__(self, task: str, **rendering: object) -> None:
        self.env = ALL_V3_ENVIRONMENTS[task](**rendering)
        self.expert = ENV_POLICY_MAP[task]()

    def begin(self, start, rng: np.random.Generator) -> None:
        self.env.set_task(start)
        self.observation, _ = self.env.reset()
        self.now = BEGIN_NS
        self.tracker_due = self.now + int(rng.uniform(0, TRACKER_NS))
        self.success = False

    def rows(self) -> Iterator[tuple[str, int, np.ndarray]]:
        observation = self.observation.astype(np.float32)
        yield "hand", self.now, observation[:4]
        if self.now >= self.tracker_due:  # a row has the stamp of the step, so the periods vary
            self.tracker_due += TRACKER_NS
            yield "tracker", self.now, np.concatenate([observation[4:18], observation[36:39]])

    @property
    def target(self) -> np.ndarray:
        """The position that the arm moves to."""
        return self.env.data.mocap_pos[0].copy()

    def expert_command(self) -> np.ndarray:
        """Returns the command of metaworld's scripted expert: a position in metres, and how hard to grip, -1 (open) to 1."""
        action = np.clip(self.expert.get_action(self.observation), -1, 1)
        target = self.target + action[:3] * self.env.action_scale
        return np.append(np.clip(target, self.env.mocap_low, self.env.mocap_high), action[3])

    def step(self, command: np.ndarray) -> None:
        """Moves towards a command, at most 1 cm per step on each axis."""
        action = np.append((command[:3] - self.target) / self.env.action_scale, command[3])
        self.observation, _, _, _, info = self.env.step(np.clip(action, -1, 1).astype(np.float32))
        self.now += STEP_NS
        self.success = self.success or bool(info["success"])
