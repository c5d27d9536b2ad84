"""Makes a robot of an arm that metaworld simulates: its sensors have clocks of their own, and commands are positions to move to."""

import warnings
from collections.abc import Iterator

import metaworld
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.policies import ENV_POLICY_MAP

# metaworld warns of the experts' high gains; they do no harm, because commands are clipped.
warnings.filterwarnings("ignore", message="Constant.*may be too high")

STEP_NS = 12_500_000  # the period of commands, and of the hand's rows
TRACKER_NS = 33_333_333  # the mean period of the rows of the tracker, which sees the objects and the goal
LONGEST = 160  # the most steps of a rollout, for 2 s; the experts need 44 to 99
BEGIN_NS = 1_000_000_000
HAND = ["x", "y", "z", "opening"]
COMMAND = ["x", "y", "z", "grip"]
OBJECTS = [f"{name}.{part}" for name in ("first", "second") for part in ("x", "y", "z", "qx", "qy", "qz", "qw")]
TRACKED = [*OBJECTS, "goal.x", "goal.y", "goal.z"]


def starts(task: str, seed: int, count: int) -> list:
    """Returns starts and goals of a task. The seed draws them from a continuous range."""
    drawn = []
    while len(drawn) < count:  # MT1 draws 50
        drawn += metaworld.MT1(task, seed=seed * 1000 + len(drawn) // 50).train_tasks
    return drawn[:count]


class Robot:
    """Simulates the arm of a task. `rows` yields (stream, stamp, row) for each row that the sensors sent since the last step."""

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
        if self.now >= self.tracker_due:  # a row has the stamp of a step, so the periods of rows vary
            self.tracker_due += TRACKER_NS
            yield "tracker", self.now, np.concatenate([observation[4:18], observation[36:39]])

    @property
    def target(self) -> np.ndarray:
        """The position that the arm moves to."""
        return self.env.data.mocap_pos[0].copy()

    def expert_command(self) -> np.ndarray:
        """Returns the command of metaworld's scripted expert: a position in metres, and how hard to grip, from -1 (open) to 1."""
        action = np.clip(self.expert.get_action(self.observation), -1, 1)
        target = self.target + action[:3] * self.env.action_scale
        return np.append(np.clip(target, self.env.mocap_low, self.env.mocap_high), action[3])

    def step(self, command: np.ndarray) -> None:
        """Moves towards a command, at most 1 cm per step on each axis."""
        action = np.append((command[:3] - self.target) / self.env.action_scale, command[3])
        self.observation, _, _, _, info = self.env.step(np.clip(action, -1, 1).astype(np.float32))
        self.now += STEP_NS
        self.success = self.success or bool(info["success"])
