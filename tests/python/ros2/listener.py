"""Waits with rclpy until /diagnostics shows messages of every topic, and prints it as JSON: {name: [level, message, {key: value}]}."""

import json
import time

import rclpy
from diagnostic_msgs.msg import DiagnosticArray


def main():
    rclpy.init(args=[])
    node = rclpy.create_node("listener")
    end = time.monotonic() + 120
    complete = {}

    def take(message):
        statuses = {
            status.name: [status.level[0], status.message, {value.key: value.value for value in status.values}]
            for status in message.status
        }
        if statuses and all(int(values["received"]) for _, _, values in statuses.values()):
            complete.update(statuses)

    node.create_subscription(DiagnosticArray, "/diagnostics", take, 10)
    while not complete and time.monotonic() < end:
        rclpy.spin_once(node, timeout_sec=0.1)
    print(json.dumps(complete), flush=True)


main()
