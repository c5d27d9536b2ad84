"""Copies messages into arrays in a callback of rclpy, to be compared with policy.py in benchmarks. Answers each command with a report.

With a "queue_size" it copies only pairs of joints and image, by the rule of ApproximateTime.
"""

import json
import sys
import threading
import time

import numpy as np
import rclpy
from approximate_time import ApproximateTime
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState

SLOP_NS = 10_000_000


def count():
    """Keeps Python busy, as a policy without a GPU does."""
    number = 0
    while True:
        number += 1


def stamp_of(message):
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec


def main():
    request = json.loads(sys.argv[1])
    rclpy.init(args=[])
    node = rclpy.create_node("policy")
    latencies = {"/joint_states": [], "/camera": []}
    rows, frame_ages_ns = {}, []

    def copy(topic, message):
        if topic == "/joint_states":
            rows[topic] = np.array([message.position[message.name.index(name)] for name in request["names"]])
        else:
            rows[topic] = np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3).copy()

    def copy_pair(joints, image):
        copy("/joint_states", joints)
        copy("/camera", image)
        frame_ages_ns.append(time.time_ns() - stamp_of(image))

    pairs = ApproximateTime(request.get("queue_size"), SLOP_NS, copy_pair)

    def take(topic, message):
        if "queue_size" in request:
            pairs.add(int(topic == "/camera"), stamp_of(message), message)
        else:
            copy(topic, message)
        latencies[topic].append(time.time_ns() - stamp_of(message))

    for topic, kind in (("/joint_states", JointState), ("/camera", Image)):
        qos = QoSProfile(depth=request["depth"], reliability=ReliabilityPolicy.RELIABLE)
        node.create_subscription(kind, topic, lambda message, topic=topic: take(topic, message), qos)
    threading.Thread(target=rclpy.spin, args=(node,), daemon=True).start()
    if request.get("busy"):
        threading.Thread(target=count, daemon=True).start()
    print("{}", flush=True)
    for _ in sys.stdin:
        report = {
            topic: {
                "received": len(values_ns),
                "latency_p50_ms": float(np.percentile(values_ns[-1000:], 50)) / 1e6,
                "latency_p99_ms": float(np.percentile(values_ns[-1000:], 99)) / 1e6,
            }
            for topic, values_ns in latencies.items()
            if values_ns
        }
        answer = {"report": report, "frame_ages_ns": frame_ages_ns, "processor_s": time.process_time()}
        print(json.dumps(answer), flush=True)


main()
