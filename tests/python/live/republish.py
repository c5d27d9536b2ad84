"""Plays a recording again over UDP: a sensor's process. Its argument is JSON:

{"bag": rosbag2 file, .db3, "topics": [...]} or {"rows": file, .npz, "topics": [...]} with `<topic> time_ns` and `<topic> rows`;
"port"; "speed"; "begin_s", "seconds": the part of the recording; "seed"; "late_s": the largest delay of a message after its stamp;
"much_late": the share with eight times that delay; "lost", "doubled": shares; "set_back": how many times the clock is wrong.

A datagram is the topic's index (uint32), the message's number within its topic (uint64), and the message: its bytes from a bag,
or a row's stamp (int64) and bytes. At the end it prints the number of messages of each topic, lost ones included, as JSON.
"""

import json
import socket
import sqlite3
import struct
import sys
import time

import numpy as np

WRONG_S = 1000  # seconds by which a clock that is set back is wrong


def from_bag(requested):
    """Yields for each message the time of its recording, the topic's index, and its bytes."""
    bag = sqlite3.connect(f"file:{requested['bag']}?mode=ro&immutable=1", uri=True)
    topics = dict(bag.execute("SELECT id, name FROM topics"))
    for topic, time_ns, data in bag.execute("SELECT topic_id, timestamp, data FROM messages"):
        if topics[topic] in requested["topics"]:
            yield time_ns, requested["topics"].index(topics[topic]), data


def from_rows(requested):
    arrays = np.load(requested["rows"])
    for index, topic in enumerate(requested["topics"]):
        for time_ns, row in zip(arrays[f"{topic} time_ns"].tolist(), arrays[f"{topic} rows"], strict=True):
            yield time_ns, index, struct.pack("<q", time_ns) + row.tobytes()


def set_back(message, is_of_bag):
    """Returns the message with a wrong stamp. These types begin with a header: the stamp's seconds follow the 4 bytes of CDR."""
    if is_of_bag:
        return message[:4] + struct.pack("<i", struct.unpack_from("<i", message, 4)[0] - WRONG_S) + message[8:]
    return struct.pack("<q", struct.unpack_from("<q", message)[0] - WRONG_S * 10**9) + message[8:]


def events(requested):
    """Returns [(arrival on the recording's clock, topic's index, bytes)], and the first arrival."""
    rng = np.random.default_rng(requested["seed"])
    messages = list((from_bag if "bag" in requested else from_rows)(requested))
    begin = min(time_ns for time_ns, _, _ in messages) + round(1e9 * requested["begin_s"])
    messages = [message for message in messages if begin <= message[0] < begin + 1e9 * requested["seconds"]]
    arrivals = []
    for time_ns, topic, message in messages:
        late = requested["late_s"] * (8 if rng.random() < requested["much_late"] else rng.random())
        arrival = time_ns + round(1e9 * late)
        arrivals.append((arrival, topic, message))
        if rng.random() < requested["doubled"]:
            arrivals.append((arrival + round(1e9 * requested["late_s"] * rng.random() / 4), topic, message))
    for time_ns, topic, message in [messages[i] for i in rng.integers(0, len(messages), requested["set_back"])]:
        arrivals.append((time_ns, topic, set_back(message, "bag" in requested)))
    return sorted(arrivals, key=lambda event: event[0]), begin


def play(requested, send):
    """Calls send(topic's index, message) at each message's arrival, at `speed`."""
    messages, begin = events(requested)
    started = time.monotonic()
    for arrival, topic, message in messages:
        wait = started + (arrival - begin) / 1e9 / requested["speed"] - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        send(topic, message)


def main():
    request = json.loads(sys.argv[1])
    rng = np.random.default_rng(request["seed"] + 1)
    numbers = [0] * len(request["topics"])
    sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sending.connect(("127.0.0.1", request["port"]))

    def send(topic, message):
        number = numbers[topic]
        numbers[topic] += 1
        if rng.random() >= request["lost"]:
            sending.send(struct.pack("<IQ", topic, number) + message)

    play(request, send)
    print(json.dumps(numbers), flush=True)


if __name__ == "__main__":
    main()
