"""Runs as the process of a policy. Its first argument, JSON, describes the node. It answers each command, a line of JSON, with a line.

{"wait": seconds} waits for a row of each ring; {"report": true} only reports, as every answer does.
{"rows": {key: .npy file of stamps}, "out": file} saves the aligner's values at these stamps.
{"record": folder} begins a recording; {"moments": .npy file of stamps, "out": file} saves the batches at settled moments and ends it.
"""

import json
import sys
import threading
import time

import numpy as np
import robocache_ros2

import robocache
from robocache.live import Aligner, Recorder


def count():
    """Keeps Python busy, as a policy without a GPU does."""
    number = 0
    while True:
        number += 1


def look(aligner, frame_ages_ns):
    """Takes a batch whenever the frontier has moved, as a policy that looks every millisecond. Notes how old each frame is then."""
    newest, frame = None, 0
    while True:
        time.sleep(0.001)
        if (moment := aligner.frontier()) == newest:
            continue
        newest = moment
        stamp = moment - aligner.at(moment)["/camera_age"].item()
        if stamp > frame:
            frame = stamp
            frame_ages_ns.append(time.time_ns() - stamp)


def main():
    request = json.loads(sys.argv[1])
    streams = request["streams"] and {
        key: robocache_ros2.Stream(**options) for key, options in request["streams"].items()
    }
    node = robocache_ros2.Node(request.get("spec"), streams, args=sys.argv[1:], diagnostics_s=0.2)
    assert "rclpy" not in sys.modules
    aligner = Aligner(node.spec, node.rings, framework="numpy")
    if request.get("busy"):
        threading.Thread(target=count, daemon=True).start()
    frame_ages_ns = []
    if request.get("looks"):
        threading.Thread(target=look, args=(aligner, frame_ages_ns), daemon=True).start()
    print(json.dumps({"parameters": node.parameters}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = {"report": node.report(), "rings": {key: ring.counts for key, ring in node.rings.items()}}
        answer |= {"frame_ages_ns": frame_ages_ns, "processor_s": time.process_time()}
        if "wait" in command:
            try:
                node.wait(command["wait"])
            except robocache.errors.Error as error:
                answer["error"] = f"{type(error).__name__}: {error}"
        if "record" in command:
            streams = {
                key: {"names": options["rows"]["names"]}
                for key, options in node.spec.keys.items()
                if options["rows"]["names"]
            }
            recorder = Recorder(node.rings, command["record"], episode={}, streams=streams)
        if "moments" in command:
            moments = np.load(command["moments"])
            moments = moments[moments <= aligner.frontier()]
            batches = [
                {key: array.copy() for key, array in aligner.at(int(moment), settled=True).items()}
                for moment in moments
            ]
            np.savez(command["out"], **{key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]})
            recorder.close()
            answer["recorded"] = recorder.counts
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
