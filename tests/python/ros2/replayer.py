"""Publishes a recording with rclpy, with the timing of live/republish.py.

The argument is that of live/republish.py with two more keys: "types", those of the topics, and "reliable". When each topic has a
subscription, it writes "ready" and waits for a line. At the end it writes the numbers of messages as JSON, and ends when its input does.
"""

import importlib
import json
import sys
import time
from pathlib import Path

import rclpy
from rclpy.qos import QoSProfile, ReliabilityPolicy

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))

from republish import play


def main():
    request = json.loads(sys.argv[1])
    rclpy.init(args=[])
    node = rclpy.create_node("publisher")
    reliability = ReliabilityPolicy.RELIABLE if request["reliable"] else ReliabilityPolicy.BEST_EFFORT
    publishers = []
    for topic, name in zip(request["topics"], request["types"], strict=True):
        package, _, kind = name.split("/")
        message_type = getattr(importlib.import_module(f"{package}.msg"), kind)
        publishers.append(node.create_publisher(message_type, topic, QoSProfile(depth=10_000, reliability=reliability)))
    while any(publisher.get_subscription_count() == 0 for publisher in publishers):
        time.sleep(0.01)
    print("ready", flush=True)
    sys.stdin.readline()
    sent = [0] * len(publishers)

    def send(topic, message):
        publishers[topic].publish(message)
        sent[topic] += 1

    play(request, send)
    print(json.dumps(sent), flush=True)
    sys.stdin.read()  # meanwhile lost messages are resent
    node.destroy_node()
    rclpy.shutdown()


main()
