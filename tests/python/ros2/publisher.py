"""Publishes topics with rclpy. Its argument is JSON: {"topics": {name: {"kind": "joints" or "image", "hz", "count", ...}}, "out": file}.

It waits until each topic has a subscription, and writes the stamps and values of each topic to `out`.
"""

import json
import sys
import threading
import time

import numpy as np
import rclpy
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState


def joints(rng, spec, k):
    order = rng.permutation(len(spec["names"]))
    values = rng.standard_normal(len(order))
    message = JointState(name=[spec["names"][i] for i in order], position=values.tolist())
    return message, values[np.argsort(order)]


def images(rng, spec, k):
    height, width = spec["size"]
    pixels = np.full((height, width, 3), k % 256, np.uint8)
    pixels[0, :, 0] = rng.integers(0, 256, width)
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.data.frombytes(pixels.tobytes())
    return message, pixels[0]


def publish(node, topic, spec, done):
    make, kind = (joints, JointState) if spec["kind"] == "joints" else (images, Image)
    reliability = ReliabilityPolicy.RELIABLE if spec.get("reliable", True) else ReliabilityPolicy.BEST_EFFORT
    publisher = node.create_publisher(kind, topic, QoSProfile(depth=1000, reliability=reliability))
    while publisher.get_subscription_count() == 0 and not spec.get("alone"):
        time.sleep(0.01)
    time.sleep(0.5)  # until the subscription knows the publisher, too
    rng = np.random.default_rng(spec.get("seed", 0))
    stamps, values = [], []
    begin = time.monotonic()
    for k in range(spec["count"]):
        message, value = make(rng, spec, k)
        if spec["hz"]:
            time.sleep(max(0.0, begin + k / spec["hz"] - time.monotonic()))
        elif min(k, spec["count"] - 1 - k) < 10:
            time.sleep(0.05)  # a burst begins and ends slowly, so that its first and last messages are not lost
        stamp = time.time_ns()
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp, 10**9)
        publisher.publish(message)
        stamps.append(stamp)
        values.append(value)
    done[topic] = np.array(stamps), np.array(values)


def main():
    request = json.loads(sys.argv[1])
    rclpy.init(args=[])
    node = rclpy.create_node("publisher")
    done = {}
    threads = [
        threading.Thread(target=publish, args=(node, topic, spec, done)) for topic, spec in request["topics"].items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrays = {}
    for topic, (stamps, values) in done.items():
        arrays |= {f"{topic} stamps": stamps, f"{topic} values": values}
    np.savez(request["out"], **arrays)
    time.sleep(request.get("linger_s", 1.0))  # lost messages of a reliable topic are sent again
    node.destroy_node()
    rclpy.shutdown()


main()
