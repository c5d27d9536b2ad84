"""Publishes topics with rclpy. Its argument is JSON: {"topics": {name: {"kind": "joints" or "image", "hz", "count", ...}}, "out": file}.

When each topic has a subscription, or is "alone", it writes "ready" and waits for a line. When it has sent all messages and written
stamps and values by topic to `out`, it writes "sent", and ends when its input does.
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
    pixels = np.zeros((height, width, 3), np.uint8)
    if not spec.get("frozen"):
        pixels[:] = k % 256
        pixels[0, :, 0] = rng.integers(0, 256, width)
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.data.frombytes(pixels.tobytes())
    return message, pixels[0]


def publisher_of(node, topic, spec):
    kind = JointState if spec["kind"] == "joints" else Image
    reliability = ReliabilityPolicy.RELIABLE if spec.get("reliable", True) else ReliabilityPolicy.BEST_EFFORT
    publisher = node.create_publisher(kind, topic, QoSProfile(depth=spec.get("depth", 1000), reliability=reliability))
    while publisher.get_subscription_count() == 0 and not spec.get("alone"):
        time.sleep(0.01)
    return publisher


def publish(publisher, topic, spec, done):
    make = joints if spec["kind"] == "joints" else images
    rng = np.random.default_rng(spec.get("seed", 0))
    stamps, values = [], []
    begin = time.monotonic()
    for k in range(spec["count"]):
        message, value = make(rng, spec, k)
        if spec["hz"]:
            time.sleep(max(0.0, begin + k / spec["hz"] - time.monotonic()))
        elif min(k, spec["count"] - 1 - k) < 10:
            time.sleep(0.05)  # slow at both ends of a burst, so that its first and last messages are not lost
        stamp = time.time_ns() + round(1e9 * spec.get("ahead_s", 0))
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
    publishers = {topic: publisher_of(node, topic, spec) for topic, spec in request["topics"].items()}
    print("ready", flush=True)
    sys.stdin.readline()
    threads = [
        threading.Thread(target=publish, args=(publishers[topic], topic, spec, done))
        for topic, spec in request["topics"].items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrays = {}
    for topic, (stamps, values) in done.items():
        arrays |= {f"{topic} stamps": stamps, f"{topic} values": values}
    np.savez(request["out"], **arrays)
    print("sent", flush=True)
    sys.stdin.read()  # meanwhile lost messages are resent
    node.destroy_node()
    rclpy.shutdown()


main()
