"""Plays a recording again over UDP: a sensor's process. Its argument is JSON:

{"bag": rosbag2 file, .db3, "topics": [...]} or {"rows": file, .npz, "topics": [...]} with `<topic> time_ns` and `<topic> rows`;
"port"; "speed"; "begin_s", "seconds": the part of the recording; "seed"; "late_s": each message comes up to so much after its stamp;
"much_late": the share that comes eight times so late; "lost", "doubled": shares; "set_back": how many times the clock is wrong.

A datagram is the topic's index (uint32), the message's number (uint64, each topic counts its own), and the message: of a bag its bytes,
of rows their stamp (int64) and bytes. At the end it prints how many messages each topic had, lost ones included, as JSON.
"""

import json
import socket
import sqlite3
import struct
import sys
import time

import numpy as np

WRONG_S = 1000  # a clock that is set back is wrong by so much


def from_bag(asked):
    """Yields for each message when it was recorded, the topic's index, and its bytes."""
    bag = sqlite3.connect(f"file:{asked['bag']}?mode=ro&immutable=1", uri=True)
    topics = dict(bag.execute("SELECT id, name FROM topics"))
    for topic, time_ns, data in bag.execute("SELECT topic_id, timestamp, data FROM messages"):
        if topics[topic] in asked["topics"]:
            yield time_ns, asked["topics"].index(topics[topic]), data


def from_rows(asked):
    arrays = np.load(asked["rows"])
    for index, topic in enumerate(asked["topics"]):
        for time_ns, row in zip(arrays[f"{topic} time_ns"].tolist(), arrays[f"{topic} rows"], strict=True):
            yield time_ns, index, struct.pack("<q", time_ns) + row.tobytes()


def set_back(message, is_of_bag):
    """A message whose stamp is wrong. In these types a header is first: the seconds of its stamp follow the 4 bytes of CDR."""
    if is_of_bag:
        return message[:4] + struct.pack("<i", struct.unpack_from("<i", message, 4)[0] - WRONG_S) + message[8:]
    return struct.pack("<q", struct.unpack_from("<q", message)[0] - WRONG_S * 10**9) + message[8:]


def events(asked):
    """Returns when each message comes by the clock of the recording, the topic's index and its bytes; and when the first came."""
    rng = np.random.default_rng(asked["seed"])
    messages = list((from_bag if "bag" in asked else from_rows)(asked))
    begin = min(time_ns for time_ns, _, _ in messages) + round(1e9 * asked["begin_s"])
    messages = [one for one in messages if begin <= one[0] < begin + 1e9 * asked["seconds"]]
    made = []
    for time_ns, topic, message in messages:
        late = asked["late_s"] * (8 if rng.random() < asked["much_late"] else rng.random())
        came = time_ns + round(1e9 * late)
        made.append((came, topic, message))
        if rng.random() < asked["doubled"]:
            made.append((came + round(1e9 * asked["late_s"] * rng.random() / 4), topic, message))
    for time_ns, topic, message in [messages[i] for i in rng.integers(0, len(messages), asked["set_back"])]:
        made.append((time_ns, topic, set_back(message, "bag" in asked)))
    return sorted(made, key=lambda event: event[0]), begin


def play(asked, send):
    """Calls send(topic's index, message) for each message when it comes, at `speed`."""
    messages, begin = events(asked)
    started = time.monotonic()
    for came, topic, message in messages:
        wait = started + (came - begin) / 1e9 / asked["speed"] - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        send(topic, message)


def main():
    asked = json.loads(sys.argv[1])
    lost = np.random.default_rng(asked["seed"] + 1)
    numbers = [0] * len(asked["topics"])
    to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    to.connect(("127.0.0.1", asked["port"]))

    def send(topic, message):
        number = numbers[topic]
        numbers[topic] += 1
        if lost.random() >= asked["lost"]:
            to.send(struct.pack("<IQ", topic, number) + message)

    play(asked, send)
    print(json.dumps(numbers), flush=True)


if __name__ == "__main__":
    main()
