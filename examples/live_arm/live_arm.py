"""Lets a simulated arm follow a ball twice: the policy gets its windows from robocache.live, or the latest row of every sensor.

The arm runs in a process of its own: MuJoCo at 500 Hz, joints without delay, and a camera at 30 Hz whose frames come late. The policy
is trained with a Loader on demonstrations, in which a frame is beside the joints of the same moment. Through an aligner it gets the
same windows on the robot. Its chunks have stamps, so each action is applied at its own moment.

    python examples/live_arm/live_arm.py            # about a minute; writes live_arm/ages.png, and prints what skew says
    python examples/live_arm/live_arm.py --short

It needs mujoco, torch and matplotlib. It needs no OpenGL, because numpy draws the camera's frames.
"""

import argparse
import json
import multiprocessing
import threading
import time
from collections import deque
from pathlib import Path

import matplotlib.pyplot as plt
import mujoco
import numpy as np
import torch

import robocache
from robocache import Anchors, ImageOptions, Window, live

ARM = """
<mujoco>
  <compiler angle="radian"/>
  <option timestep="0.002" integrator="implicitfast"/>
  <default><geom type="capsule" size="0.02" contype="0" conaffinity="0"/><joint axis="0 0 1" damping="0.5"/></default>
  <worldbody>
    <body><joint name="shoulder"/><geom fromto="0 0 0 0.3 0 0"/>
      <body pos="0.3 0 0"><joint name="elbow"/><geom fromto="0 0 0 0.3 0 0"/><site name="tip" pos="0.3 0 0"/></body>
    </body>
  </worldbody>
  <actuator><position joint="shoulder" kp="60" kv="3"/><position joint="elbow" kp="40" kv="2"/></actuator>
</mujoco>
"""
STEP_NS = 2_000_000
FRAME_STEPS, ACTION_STEPS = 17, 5  # a frame comes every 34 ms, a command every 10 ms
LEAD_S = 0.06  # the arm's delay behind its command
PIXELS, VIEW_M = 24, 1.1  # the side of a frame, in pixels and in meters
NEAR_M = 0.03  # a tip at most this far from the ball has reached it
FRAMES_S = [-0.204, -0.102, 0.0]
ACTIONS_S = [k / 50 for k in range(15)]


def ball_path(rng):
    """Returns the path of a ball on a circle, a function from seconds to the ball's position."""
    center = np.array([0.38, 0.0]) + rng.uniform(-0.04, 0.04, 2)
    radius, speed, phase = rng.uniform(0.08, 0.14), rng.choice([-1, 1]) * rng.uniform(2.5, 4), rng.uniform(0, 6.28)
    return lambda seconds: (
        center + radius * np.array([np.cos(speed * seconds + phase), np.sin(speed * seconds + phase)])
    )


def joints_of(point):
    """Returns the joint angles that bring the tip to a point."""
    distance = np.hypot(*point)
    elbow = np.arccos(np.clip((distance**2 - 0.18) / 0.18, -1, 1))
    return np.array([np.arctan2(point[1], point[0]) - elbow / 2, elbow])


def frame_of(ball):
    """Returns the image, uint8 [PIXELS, PIXELS, 1], of a camera above the table, in which the ball is a bright spot."""
    x, y = (np.arange(PIXELS) + 0.5) / PIXELS * VIEW_M - [[VIEW_M / 2 - 0.3], [VIEW_M / 2]]
    brightness = np.exp(-((x[None] - ball[0]) ** 2 + (y[:, None] - ball[1]) ** 2) / 0.08**2)
    return (255 * brightness).astype(np.uint8)[..., None]


class Arm:
    """Simulates the arm."""

    def __init__(self, ball):
        self.model = mujoco.MjModel.from_xml_string(ARM)
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:] = self.data.ctrl[:] = joints_of(ball(0))

    def step(self, command):
        """Runs a step of the physics. Returns the joints' angles and the tip's position."""
        self.data.ctrl[:] = command
        mujoco.mj_step(self.model, self.data)
        return self.data.qpos.astype(np.float32), self.data.site_xpos[0, :2].copy()


# ---- Training ----


def record_demonstrations(path, episodes, seconds, seed):
    with robocache.Writer(path, overwrite=True) as writer:
        for number in range(episodes):
            rng = np.random.default_rng([seed, number])
            ball = ball_path(rng)
            arm = Arm(ball)
            stamps = 1_000_000_000 + np.arange(int(seconds * 1e9 / STEP_NS)) * STEP_NS
            times_s = (stamps - stamps[0]) / 1e9
            commands = np.array([joints_of(ball(time_s + LEAD_S)) for time_s in times_s], np.float32)
            # The arm is pushed aside, so that the policy learns to come back to the ball, and to look at the ball instead of the arm.
            pushes = np.sum(
                [0.15 * np.sin(np.outer(times_s, rng.uniform(1, 9, 2)) + rng.uniform(0, 6, 2)) for _ in range(3)], 0
            )
            joints = np.array([arm.step(command)[0] for command in commands + pushes])
            frames = np.array([frame_of(ball(time_s)) for time_s in times_s[::FRAME_STEPS]])
            with writer.episode(task="follow the ball") as episode:
                episode.append("joint", stamps, joints)
                episode.append("front", stamps[::FRAME_STEPS], frames, codec="raw")
                episode.append("action", stamps[::ACTION_STEPS], commands[::ACTION_STEPS])


class Policy(torch.nn.Module):
    """Computes a chunk of commands from the joints and the spot's position in each frame."""

    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.linspace(-1, 1, PIXELS))
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2 * len(FRAMES_S) + 2, 128), torch.nn.GELU(),
            torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Linear(128, 2 * len(ACTIONS_S)),
        )  # fmt: skip

    def forward(self, batch):
        frames = batch["front"][:, :, 0]  # [B, frames, PIXELS, PIXELS]
        weight = frames / frames.sum((2, 3), keepdim=True)
        spots = 4 * torch.stack([(weight.sum(2) * self.positions).sum(2), (weight.sum(3) * self.positions).sum(2)], 2)
        return self.layers(torch.cat([spots.flatten(1), batch["joint"][:, 0]], 1)).unflatten(1, (len(ACTIONS_S), 2))


def train(path, steps, seed):
    """Returns the policy, the loader's spec, and the ages in ms of the windows' newest frames."""
    loader = robocache.Loader(
        path,
        batch_size=128,
        delta_timestamps={
            "joint": [0.0],
            "front": Window(FRAMES_S, images=ImageOptions(size=(PIXELS, PIXELS))),
            "action": ACTIONS_S,
        },
        anchors=Anchors(stream="joint", edges="drop"),
        return_age=True,
        seed=seed,
        device="cpu",
    )
    torch.manual_seed(seed)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    done, ages = 0, []
    while done < steps:
        for batch in loader:
            loss = torch.nn.functional.mse_loss(policy(batch), batch["action"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            ages.append(batch["front_age"][:, -1].clone())
            done += 1
            if done == steps:
                break
    print(f"trained {steps} steps: commands are {loss.detach().sqrt():.4f} rad off")
    return policy.eval(), loader.spec, torch.cat(ages).numpy() / 1e6


# ---- The robot ----


def robot(pipe, seed, seconds, delay_s):
    """The program of the arm's process. It sends each row as ("joint" or "front", stamp, row), receives commands, and at the end sends
    the tip's distances from the ball."""
    rng = np.random.default_rng(seed)
    ball = ball_path(rng)
    arm = Arm(ball)
    command = arm.data.ctrl.copy()
    frames = deque()  # (arrival, stamp, frame) of each frame that has not arrived
    distances = []
    began_ns, step = time.time_ns(), 0
    while step * STEP_NS < seconds * 1e9:
        now_ns = time.time_ns()
        while began_ns + step * STEP_NS <= now_ns:
            while pipe.poll():
                command = pipe.recv()
            joints, tip = arm.step(command)
            stamp = began_ns + step * STEP_NS
            ball_position = ball(step * STEP_NS / 1e9)
            distances.append(np.hypot(*(tip - ball_position)))
            pipe.send(("joint", stamp, joints))
            if step % FRAME_STEPS == 0:
                frames.append((stamp + (delay_s + rng.uniform(0, 0.004)) * 1e9, stamp, frame_of(ball_position)))
            step += 1
        while frames and frames[0][0] <= now_ns:
            pipe.send(("front", *frames.popleft()[1:]))
        time.sleep(0.0005)
    pipe.send(("end", began_ns, np.array(distances)))


def latest_of_everything(rows, now_ns):
    """Returns a batch with the newest joints and the frames 7, 4 and 1 from the end, whatever their stamps, as most deployments do."""
    if len(rows["front"]) < 7 or not rows["joint"]:
        return None
    frames = np.stack([rows["front"][i][1] for i in (-7, -4, -1)]).transpose(0, 3, 1, 2)
    return {
        "front": torch.tensor(frames[None] / 255, dtype=torch.float32),
        "joint": torch.tensor(rows["joint"][-1][1])[None, None],
        "front_age": torch.tensor([[now_ns - rows["front"][-1][0]]]),
        "time_ns": torch.tensor([now_ns]),
    }


def drive(policy, spec, recorded, *, aligned, seconds, delay_s, seed):
    """Lets the arm follow a ball. Returns the tip's distance from the ball at each step, and the ages in ms of the policy's newest
    frames."""
    rings = {
        "joint": live.Ring((2,), "float32", span_s=5.0, on_duplicate="refuse"),
        "front": live.Ring((PIXELS, PIXELS, 1), "uint8", span_s=5.0, codec="raw", on_duplicate="refuse"),
    }
    aligner = live.Aligner(spec, rings, outputs=["action"])
    chunks = live.Chunks("newest", spec=spec, key="action")
    rows = {"joint": deque(maxlen=1), "front": deque(maxlen=7)}
    context = multiprocessing.get_context("spawn")
    pipe, robot_pipe = context.Pipe()
    process = context.Process(target=robot, args=(robot_pipe, seed, seconds, delay_s), daemon=True)
    distances = []

    def receive():
        while True:
            stream, stamp, row = pipe.recv()
            if stream == "end":
                distances.append(row)
                return
            rings[stream].push(stamp, row)
            rows[stream].append((stamp, row))

    receiver = threading.Thread(target=receive, daemon=True)
    process.start()
    receiver.start()
    ages, next_request_ns = [], 0
    with (
        live.Recorder(rings, recorded, episode={"task": "follow the ball", "aligned": aligned}) as recorder,
        torch.no_grad(),
    ):
        while receiver.is_alive():
            now_ns = time.time_ns()
            if now_ns >= next_request_ns:
                batch = aligner.latest() if aligned else latest_of_everything(rows, now_ns)
                if batch is not None:
                    moment = int(batch["time_ns"][0])
                    chunks.put(moment, None, policy(batch))
                    recorder.saw(moment, now_ns=now_ns)
                    ages.append(int(batch["front_age"][0, -1]) / 1e6)
                    next_request_ns = now_ns + 40_000_000
            action = chunks.at(now_ns)
            if action is not None and receiver.is_alive():
                pipe.send(action)
            time.sleep(0.01)
    process.join()
    return distances[0], np.array(ages)


def draw(path, trained, runs):
    figure, (ages, distance, success) = plt.subplots(1, 3, figsize=(12, 3.2), width_ratios=[2, 3, 1])
    bins = np.linspace(0, max(60, *(run["ages"].max() for run in runs.values())), 40)
    ages.hist(trained, bins, density=True, color="0.8", label="in training")
    for color, (name, run) in zip(("tab:green", "tab:red"), runs.items(), strict=True):
        ages.hist(run["ages"], bins, density=True, histtype="step", color=color, label=name)
        distance.plot(np.arange(len(run["distances"])) * STEP_NS / 1e9, 100 * run["distances"], color=color, label=name)
        success.bar(name.replace(" ", "\n"), 100 * run["success"], color=color)
    distance.axhline(100 * NEAR_M, color="0.6", linestyle=":")
    ages.set(xlabel="age of the newest frame, ms", yticks=[])
    distance.set(xlabel="s", ylabel="tip to ball, cm")
    success.set(ylabel=f"% of the time within {100 * NEAR_M:g} cm", ylim=(0, 100))
    ages.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("live_arm"), help="the folder for all output (default live_arm)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="the length of each of the two drives (default 10)")
    parser.add_argument("--delay-ms", type=float, default=80.0, help="the delay of frames (default 80)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="train and drive for a few seconds only")
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"--out: {options.out} exists already")
    episodes, steps = (20, 1500) if options.short else (60, 8000)
    seconds = min(options.seconds, 3.0) if options.short else options.seconds
    torch.set_num_threads(1)
    options.out.mkdir(parents=True)
    record_demonstrations(options.out / "demonstrations", episodes, 4.0, options.seed)
    policy, spec, trained = train(options.out / "demonstrations", steps, options.seed)
    spec.save(options.out / "spec.json")
    runs = {}
    for name, aligned in (("through the aligner", True), ("latest of everything", False)):
        recorded = options.out / name.replace(" ", "_")
        distances, ages = drive(
            policy,
            spec,
            recorded,
            aligned=aligned,
            seconds=seconds,
            delay_s=options.delay_ms / 1e3,
            seed=options.seed + 1000,
        )
        settled = distances[len(distances) // 4 :]  # the start does not count
        runs[name] = {"distances": distances, "ages": ages, "success": float((settled < NEAR_M).mean())}
        print(
            f"{name}: {100 * runs[name]['success']:.0f} % of the time within {100 * NEAR_M:g} cm, {100 * np.median(settled):.1f} cm "
            f"apart (median); frames {np.median(ages):.0f} ms old (in training {np.median(trained):.0f} ms)"
        )
        print(live.skew(recorded, spec))
    draw(options.out / "ages.png", trained, runs)
    numbers = {name: {"success": run["success"], "age_ms": float(np.median(run["ages"]))} for name, run in runs.items()}
    (options.out / "numbers.json").write_text(json.dumps(numbers, indent=2))
    print(f"picture: {options.out / 'ages.png'}")


if __name__ == "__main__":
    main()
