"""Publishes joint states with Cyclone DDS, without ROS: cyclone.py COUNT DOMAIN OUT.

Message k has the positions k, k + 1, ... When there is a subscription, it writes "ready" and waits for a line. The stamps are written to
OUT; then it writes "sent", and ends when its input does.
"""

import sys
import time
from dataclasses import dataclass

import numpy as np
from cyclonedds.core import Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import float64, int32, sequence, uint32
from cyclonedds.pub import DataWriter
from cyclonedds.topic import Topic
from cyclonedds.util import duration


@dataclass
class Time(IdlStruct, typename="builtin_interfaces::msg::dds_::Time_"):
    sec: int32
    nanosec: uint32


@dataclass
class Header(IdlStruct, typename="std_msgs::msg::dds_::Header_"):
    stamp: Time
    frame_id: str


@dataclass
class JointState(IdlStruct, typename="sensor_msgs::msg::dds_::JointState_"):
    header: Header
    name: sequence[str]
    position: sequence[float64]
    velocity: sequence[float64]
    effort: sequence[float64]


def main():
    count, domain, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    qos = Qos(Policy.Reliability.Reliable(duration(seconds=1)), Policy.History.KeepLast(1000))
    participant = DomainParticipant(domain)
    writer = DataWriter(participant, Topic(participant, "rt/joint_states", JointState, qos=qos), qos=qos)
    stamps = []
    end = time.monotonic() + 60
    while writer.get_matched_subscriptions() == [] and time.monotonic() < end:
        time.sleep(0.02)
    print("ready", flush=True)
    sys.stdin.readline()
    for k in range(count):
        stamps.append(time.time_ns())
        writer.write(
            JointState(
                Header(Time(*divmod(stamps[-1], 10**9)), "base"),
                list("gfedcba"),
                [float(k + i) for i in range(7)],
                [],
                [],
            )
        )
        time.sleep(0.002)
    np.save(out, np.array(stamps))
    print("sent", flush=True)
    sys.stdin.read()


main()
