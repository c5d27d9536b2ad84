"""Waits until /diagnostics has a message for every topic, and prints it as JSON, {name: [level, message, {key: value}]}; uses rclpy."""

import json
import time

import rclpy
from diagnostic_msgs.msg import DiagnosticArray


def main():
    rclpy.init(args=[])
    node = rclpy.create_node("listener")
    end = time.monotonic() + 30
    found = {}

    def take(message):
        statuses = {
            spec.name: [spec.level[0], spec.message, {v.key: v.value for v in spec.values}] for spec in message.status
        }
        if statuses and all(int(values["received"]) for _, _, values in statuses.values()):
            found.update(statuses)

    node.create_subscription(DiagnosticArray, "/diagnostics", take, 10)
    while not found and time.monotonic() < end:
        rclpy.spin_once(node, timeout_sec=0.1)
    print(json.dumps(found), flush=True)


main()
