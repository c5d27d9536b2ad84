"""ROS 2: the time from a message's stamp until its row is in memory, for joints at 500 Hz beside images of 640x480 at 30 Hz.

    ROBOCACHE_ROS2=FOLDER python bench/ros2.py --json

tests/python/ros2/environment.sh makes FOLDER. Another process publishes with rclpy. The contender `robocache` is
integrations/ros2, whose rings receive the messages; `rclpy` takes them with rclpy's executor and copies them into arrays in a
callback. In the case "real time" all processes have SCHED_RR, as on a robot, so other work of the machine does not delay them.
`--json` also prints the cases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from record import Report, arguments, temporary_folder

import robocache
from robocache import Window

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "python" / "ros2"))
from processes import HERE, Ros, ask, is_installed, line_of

KEY, NAMES = "/joint_states/position", list("abcdefg")
DEPTH = 100
REAL_TIME = "Python idle, real time"
# Each case, and whether the policy has another thread that keeps Python busy.
IS_BUSY = {"Python idle": False, REAL_TIME: False, "beside a busy Python thread": True}
# Microseconds from the stamp of a joint message to its row in the ring. The predictions were written before the first measurement;
# none was written for real time.
PREDICTED = {
    "Python idle": {"p50_us": 200.0, "p99_us": 600.0},
    "beside a busy Python thread": {"p50_us": 200.0, "p99_us": 1000.0},
}
IDLE_AIMS = {"p50_us": 250.0, "p99_us": 600.0}
AIMS = {"Python idle": IDLE_AIMS, REAL_TIME: IDLE_AIMS, "beside a busy Python thread": {"p50_us": 250.0}}


def make_spec(folder: Path) -> Path:
    with robocache.Writer(folder / "cache") as writer:
        writer.stream(KEY, names=NAMES)
        with writer.episode() as episode:
            stamps = np.arange(1, 10) * 10**9
            episode.append(KEY, stamps, np.zeros((9, 7)))
            episode.append("/camera", stamps, np.zeros((9, 480, 640, 3), np.uint8), codec="raw")
    windows = {KEY: Window(), "/camera": Window()}
    loader = robocache.Loader(folder / "cache", batch_size=1, delta_timestamps=windows, device="cpu", return_age=True)
    loader.save_spec(folder / "spec.json")
    return folder / "spec.json"


def begin_policy(ros: Ros, contender: str, spec: Path, **options: object) -> subprocess.Popen:
    if contender == "robocache":
        qos = {"reliability": "reliable", "depth": DEPTH, "on_duplicate": "refuse"}
        joints = {"topic": "/joint_states", "type": "sensor_msgs/msg/JointState", "field": "position"}
        camera = {"topic": "/camera", "type": "sensor_msgs/msg/Image"}
        policy, answer = ros.policy(spec, {KEY: joints | qos, "/camera": camera | qos}, **options)
        if isinstance(answer, str):
            raise RuntimeError(f"policy.py did not start: {answer}")
        return policy
    requested = json.dumps({"names": NAMES, "depth": DEPTH, **options})
    child = ros.begin([ros.python, str(HERE / "rclpy_policy.py"), requested], ros.ros_env)
    if not line_of(child):
        raise RuntimeError(f"rclpy_policy.py did not start: {child.stderr.read()}")
    return child


def publish(ros: Ros, folder: Path, policy: subprocess.Popen, seconds: int, camera_late_s: float = 0.0) -> dict:
    """Publishes to a policy, and returns its answer at the end."""
    topics = {
        "/joint_states": {"kind": "joints", "hz": 500, "count": 500 * seconds, "names": NAMES},
        "/camera": {"kind": "image", "hz": 30, "count": 30 * seconds, "size": [480, 640], "ahead_s": -camera_late_s},
    }
    publisher = ros.publish(folder / "sent.npz", topics)
    time.sleep(seconds)  # a request for a report would wake the policy's Python, which is idle in some cases
    if (line := line_of(publisher)) != "sent":
        raise RuntimeError(f"publisher.py: expected the line 'sent', got {line!r}: it ended early")
    time.sleep(1)  # reliable messages may still be resent
    return ask(policy, report=True)


def run_case(environment: Path, folder: Path, spec: Path, busy: bool, seconds: int, case: dict) -> None:
    case["figures"] = {}
    for contender in ("robocache", "rclpy"):
        ros = Ros(environment)
        try:
            policy = begin_policy(ros, contender, spec, busy=busy)
            report = publish(ros, folder, policy, seconds)["report"]
        finally:
            ros.end()
        joints, camera = report["/joint_states"], report["/camera"]
        measured = {
            "p50_us": 1e3 * joints["latency_p50_ms"],
            "p99_us": 1e3 * joints["latency_p99_ms"],
            "camera_p50_us": 1e3 * camera["latency_p50_ms"],
            "camera_p99_us": 1e3 * camera["latency_p99_ms"],
            "lost_share": 1 - joints["received"] / (500 * seconds),
            "camera_lost_share": 1 - camera["received"] / (30 * seconds),
        }
        prefix = "" if contender == "robocache" else f"{contender}_"
        case["figures"] |= {prefix + measure: value for measure, value in measured.items()}
    print(f"  {case['figures']}", flush=True)


def in_real_time(work: Callable[[dict], None], case: dict) -> None:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    try:
        work(case)
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def find_environment() -> Path | None:
    """Returns the folder that ROBOCACHE_ROS2 names. Without ROS in it, says so and returns None."""
    environment = Path(os.environ.get("ROBOCACHE_ROS2", ""))
    if is_installed(environment):
        return environment.resolve()
    print("ROBOCACHE_ROS2: expected a folder made by tests/python/ros2/environment.sh", file=sys.stderr)
    return None


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the cases as JSON at the end")
    options = parser.parse_args()
    environment = find_environment()
    if environment is None:
        return 1
    report = Report("ros2", options, PREDICTED, AIMS)
    with temporary_folder() as folder:
        spec = make_spec(folder)
        seconds = 2 if options.quick else 20
        for name, busy in IS_BUSY.items():
            parameters = {"joints_hz": 500, "camera_hz": 30, "depth": DEPTH, "seconds": seconds, "busy": busy}
            work = partial(run_case, environment, folder, spec, busy, seconds)
            report.run(name, parameters, partial(in_real_time, work) if name == REAL_TIME else work)
    if options.json:
        print(json.dumps(report.content["cases"], indent=1))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
