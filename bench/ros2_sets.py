"""ROS 2: frames of 640x480 at 30 Hz, each with the joints at its moment, out of 500 Hz.

    ROBOCACHE_ROS2=FOLDER python bench/ros2_sets.py

`robocache` is an Aligner on integrations/ros2: it interpolates joints. ApproximateTime is rclpy with the rule of message_filters
(tests/python/ros2/approximate_time.py), a slop of 10 ms and a queue of 10 or 100 messages: it takes the closest joints. All
processes have SCHED_RR; load_beside is the machine's other load.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
from record import Report, arguments, temporary_folder
from ros2 import Ros, ask, begin_policy, find_environment, in_real_time, make_spec, publish

CONTENDERS = {
    "robocache": {"looks": True},
    "ApproximateTime, queue 10": {"queue_size": 10},
    "ApproximateTime, queue 100": {"queue_size": 100},
}
LATE_S = {"": 0.0, ", frames 40 ms late": 0.04}
# Written before the first measurement.
PREDICTED = {
    "robocache": {"frames_share": 1.0, "frame_age_p50_us": 3000.0},
    "ApproximateTime, queue 10": {"frames_share": 1.0, "frame_age_p50_us": 2500.0},
    "ApproximateTime, queue 10, frames 40 ms late": {"frames_share": 0.0},
    "ApproximateTime, queue 100, frames 40 ms late": {"frames_share": 1.0, "frame_age_p50_us": 42500.0},
}


def run_case(
    environment: Path, folder: Path, spec: Path, contender: str, late_s: float, seconds: int, case: dict
) -> None:
    load = os.getloadavg()[0]  # of work without real-time priority
    ros = Ros(environment)
    try:
        policy = begin_policy(ros, contender, spec, **CONTENDERS[contender])
        began_s = ask(policy, report=True)["processor_s"]
        answer = publish(ros, folder, policy, seconds, late_s)
    finally:
        ros.end()
    ages_us = np.array(answer["frame_ages_ns"]) / 1e3
    case["figures"] = {
        "frames_share": len(ages_us) / (30 * seconds),
        "frame_age_p50_us": float(np.median(ages_us)) if len(ages_us) else None,
        "processor_share": (answer["processor_s"] - began_s) / seconds,
        "load_beside": load,
    }
    print(f"  {case['figures']}", flush=True)


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    environment = find_environment()
    if environment is None:
        return 1
    report = Report("ros2_sets", options, PREDICTED)
    with temporary_folder() as folder:
        spec = make_spec(folder)
        seconds = 2 if options.quick else 20
        for suffix, late_s in LATE_S.items():
            for contender in CONTENDERS:
                parameters = {"joints_hz": 500, "camera_hz": 30, "camera_late_s": late_s, "seconds": seconds}
                work = partial(run_case, environment, folder, spec, contender, late_s, seconds)
                report.run(contender + suffix, parameters, partial(in_real_time, work))
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
