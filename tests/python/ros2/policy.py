"""A policy's process. Its first argument, JSON, describes the node. It answers each command, a line of JSON, with a line.

{"wait": seconds}, {"report": true}, {"rows": {key: file of stamps, .npy}, "out": file}: the aligner's values at these stamps.
"""

import json
import sys
import threading

import numpy as np
import robocache_ros2

import robocache
from robocache.live import Aligner


def count():
    """Keeps Python busy, as a policy without a GPU does."""
    number = 0
    while True:
        number += 1


def main():
    asked = json.loads(sys.argv[1])
    streams = asked["streams"] and {key: robocache_ros2.Stream(**of) for key, of in asked["streams"].items()}
    node = robocache_ros2.Node(asked.get("spec"), streams, args=sys.argv[1:], diagnostics_s=0.2)
    assert "rclpy" not in sys.modules
    aligner = Aligner(node.spec, node.rings, framework="numpy")
    if asked.get("busy"):
        threading.Thread(target=count, daemon=True).start()
    print(json.dumps({"parameters": node.parameters}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = {"report": node.report(), "rings": {key: ring.counts for key, ring in node.rings.items()}}
        if "wait" in command:
            try:
                node.wait(command["wait"])
            except robocache.errors.Error as error:
                answer["error"] = f"{type(error).__name__}: {error}"
        if "rows" in command:
            values = {}
            for key, file in command["rows"].items():
                values[key] = []
                for stamp in np.load(file).tolist():
                    batch = aligner.at(stamp)
                    assert not batch[f"{key}_is_pad"].any(), (key, stamp)
                    values[key].append(batch[key].copy())
            np.savez(command["out"], **{key: np.array(rows) for key, rows in values.items()})
        print(json.dumps(answer), flush=True)
    node.close()


main()
