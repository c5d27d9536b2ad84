"""Plays a recording again over UDP: a sensor's process. Its argument is JSON:

{"bag": rosbag2 file, .db3, "topics": [...]} or {"rows": file, .npz, "topics": [...]} with `<topic> time_ns` and `<topic> rows`;
"port"; "speed"; "begin_s", "seconds": the part of the recording; "seed"; "late_s": the largest delay of a message after its stamp;
"much_late": the share with eight times that delay; "lost", "doubled": shares; "set_back": how many messages also come with a wrong stamp.

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


def from_bag(request):
    """Yields for each message the time of its recording, the topic's index, and its bytes."""
    bag = sqlite3.connect(f"file:{request['bag']}?mode=ro&immutable=1", uri=True)
    topics = dict(bag.execute("SELECT id, name FROM topics"))
    for topic, time_ns, data in bag.execute("SELECT topic_id, timestamp, data FROM messages"):
        if topics[topic] in request["topics"]:
            yield time_ns, request["topics"].index(topics[topic]), data


def from_rows(request):
    """Yields for each row its stamp, the topic's index, and the stamp and the row as bytes."""
    arrays = np.load(request["rows"])
    for index, topic in enumerate(request["topics"]):
        for time_ns, row in zip(arrays[f"{topic} time_ns"].tolist(), arrays[f"{topic} rows"], strict=True):
            yield time_ns, index, struct.pack("<q", time_ns) + row.tobytes()


def set_back(message, is_of_bag):
    """Returns the message with a wrong stamp. A bag's message begins with 4 bytes of CDR and the seconds of its header's stamp."""
    if is_of_bag:
        return message[:4] + struct.pack("<i", struct.unpack_from("<i", message, 4)[0] - WRONG_S) + message[8:]
    return struct.pack("<q", struct.unpack_from("<q", message)[0] - WRONG_S * 10**9) + message[8:]


def events(request):
    """Returns [(arrival on the recording's clock, topic's index, bytes)], and the moment at which the played part begins."""
    rng = np.random.default_rng(request["seed"])
    messages = list((from_bag if "bag" in request else from_rows)(request))
    begin = min(time_ns for time_ns, _, _ in messages) + round(1e9 * request["begin_s"])
    messages = [message for message in messages if begin <= message[0] < begin + 1e9 * request["seconds"]]
    arrivals = []
    for time_ns, topic, message in messages:
        delay_s = request["late_s"] * (8 if rng.random() < request["much_late"] else rng.random())
        arrival = time_ns + round(1e9 * delay_s)
        arrivals.append((arrival, topic, message))
        if rng.random() < request["doubled"]:
            arrivals.append((arrival + round(1e9 * request["late_s"] * rng.random() / 4), topic, message))
    for time_ns, topic, message in [messages[i] for i in rng.integers(0, len(messages), request["set_back"])]:
        arrivals.append((time_ns, topic, set_back(message, "bag" in request)))
    return sorted(arrivals, key=lambda event: event[0]), begin


def play(request, send):
    """Calls send(topic's index, message) at each message's arrival, at `speed`."""
    messages, begin = events(request)
    started = time.monotonic()
    for arrival, topic, message in messages:
        wait_s = started + (arrival - begin) / 1e9 / request["speed"] - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        send(topic, message)


def main():
    request = json.loads(sys.argv[1])
    rng = np.random.default_rng(request["seed"] + 1)
    sent_counts = [0] * len(request["topics"])
    sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sending.connect(("127.0.0.1", request["port"]))

    def send(topic, message):
        number = sent_counts[topic]
        sent_counts[topic] += 1
        if rng.random() >= request["lost"]:
            sending.send(struct.pack("<IQ", topic, number) + message)

    play(request, send)
    print(json.dumps(sent_counts), flush=True)


if __name__ == "__main__":
    main()
