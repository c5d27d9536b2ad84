"""Another process plays real recordings: an aligner's windows equal a Loader's, on the received rows and on the recording itself."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from lossy_network import lossy_network

import robocache
from robocache import Anchors, Window, live

HERE = Path(__file__).parent
LATE_S = 0.02
LATENESS_S = 0.12  # above the jitter of the recorded stamps, and below eight times LATE_S
POSITION = "std_msgs/Header header\n" + "".join(
    f"float32 {name}\n" for name in ("x_trans", "y_trans", "z_trans", "x_rot", "y_rot", "z_rot", "w")
)
POSITION += "string segment_name\nstring subject_name\nint32 frame_number\nstring translation_type\n"


class Recording:
    """A recording as a cache, and how another process plays it again."""

    def __init__(self, path, source, streams, *, topics=None, definition=None):
        definitions = {}
        if definition:
            (path / "types/vicon_receiver/msg").mkdir(parents=True)
            (path / "types/vicon_receiver/msg/Position.msg").write_text(definition)
            definitions["definitions"] = str(path / "types")
        robocache.ingest(source, path / "original", **definitions)
        self.dataset = robocache.open(path / "original")
        self.definition = definition
        self.streams = streams  # {stream: Window}
        self.topics = topics  # a bag's {topic: type}, to send messages; None: to send rows
        self.loader = loader_of(self.dataset, streams)
        if topics:
            self.play_options = {"bag": str(next(Path(source).glob("*.db3"))), "topics": list(topics)}
            return
        arrays = {}
        for stream in streams:
            arrays[f"{stream} time_ns"] = np.asarray(self.dataset[stream].time_ns)
            arrays[f"{stream} rows"] = np.asarray(self.dataset[stream].values)
        np.savez(path / "rows.npz", **arrays)
        self.play_options = {"rows": str(path / "rows.npz"), "topics": list(streams)}

    def takers(self, rings):
        """Returns for each topic a function that takes a message and its number, and the `Topic`s, None if rows are sent."""
        if self.topics is None:

            def pusher(stream):
                ring = rings[stream]
                return lambda message, number: ring.push(
                    struct.unpack_from("<q", message)[0],
                    np.frombuffer(message, ring.dtype, offset=8).reshape(ring.shape),
                )

            return [pusher(stream) for stream in self.streams], None
        topics = []
        for topic, schema in self.topics.items():
            topic_rings = {
                stream: ring for stream, ring in rings.items() if stream == topic or stream.startswith(f"{topic}/")
            }
            names = {key: self.loader.spec.keys[key]["rows"]["names"] for key in topic_rings}
            topics.append(
                live.Topic(
                    topic,
                    schema,
                    topic_rings,
                    names={key: ring_names for key, ring_names in names.items() if ring_names},
                    definition=self.definition,
                )
            )
        return [lambda m, n, topic=topic: topic.take(m, sequence=n) for topic in topics], topics


def loader_of(dataset, windows):
    return robocache.Loader(
        dataset,
        batch_size=1,
        delta_timestamps=windows,
        anchors=Anchors(stream=next(iter(windows))),
        return_age=True,
        framework="numpy",
        device="cpu",
        shuffle=False,
    )


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Returns a function from a name to a recording of the real data, which is made once."""
    root, result = os.environ.get("ROBOCACHE_TEST_DATA"), {}

    def get(name):
        if not root or not Path(root).exists():
            reason = "no real robot data: ROBOCACHE_TEST_DATA names no folder"
            warnings.warn(f"NOT RUN: {reason}", stacklevel=1)
            pytest.skip(reason)
        if name not in result:
            result[name] = RECORDINGS[name](tmp_path_factory.mktemp(name), Path(root))
        return result[name]

    return get


def imu_and_pose(path, root):
    return Recording(
        path,
        root / "rosbag2/plotjuggler",
        {
            "/imu": Window([-0.2, -0.05, 0.0], dtype="float64"),
            "/pose": Window([-0.1, 0.0], method="nearest", dtype="float64"),
            "/battery": Window([-0.3, 0.0], method="previous"),
        },
        topics={
            "/imu": "sensor_msgs/msg/Imu",
            "/pose": "geometry_msgs/msg/PoseStamped",
            "/battery": "sensor_msgs/msg/BatteryState",
        },
    )


def vicon(path, root):
    topic = "/vicon/UnitreeGo2/UnitreeGo2"
    return Recording(
        path,
        root / "rosbag2/unitree_go2/test_6/vicon_bag",
        {topic: Window([-0.05, -0.0101, 0.0], method="pchip", dtype="float64")},
        topics={topic: "vicon_receiver/msg/Position"},
        definition=POSITION,
    )


def video(path, root):
    return Recording(
        path,
        root / "mcap/depthai_recording/recording.mcap",
        {
            "video": Window([-0.1, -0.02, 0.0], dtype="float64", method="next"),
            "video/sequenceNumber": Window([0.0, -0.15], dtype="int64", causal=True),
        },
    )


RECORDINGS = {"imu and pose": imu_and_pose, "vicon": vicon, "video": video}


class Played:
    """A part of a recording, played to rings by another process while this one records them and asks an aligner."""

    def __init__(self, path, recording, *, speed, begin_s, seconds, lost=0.02, network=None, fault=None):
        span_s = 3.0 * max(1.0, speed)
        rows = {key: key_spec["rows"] for key, key_spec in recording.loader.spec.keys.items()}
        self.rings = {
            key: live.Ring(key_spec["shape"], key_spec["dtype"], span_s=span_s, lateness_s=LATENESS_S)
            for key, key_spec in rows.items()
        }
        takers, self.topics = recording.takers(self.rings)
        request = {
            **recording.play_options, "speed": speed, "begin_s": begin_s, "seconds": seconds, "seed": 5, "late_s": LATE_S,
            "much_late": 0.04, "lost": lost, "doubled": 0.02, "set_back": 5,
        }  # fmt: skip
        self.numbers = [[] for _ in takers]
        aligner = live.Aligner(recording.loader.spec, self.rings, framework="numpy")
        streams = {
            key: {"names": key_spec["names"], "attributes": recording.dataset[key].attributes}
            for key, key_spec in rows.items()
        }
        with live.Recorder(self.rings, path / "recorded", episode={}, streams=streams) as recorder:
            receiver, publisher = play(request) if network is None else network.run(lambda: play(request, network))
            thread = threading.Thread(target=self.receive, args=(receiver, publisher, takers))
            thread.start()
            self.batches, self.latest = ask(aligner, recording.loader, thread, fault)
            thread.join()
            recorder.stop()
        self.recorder_counts = recorder.counts
        self.recorded = robocache.open(path / "recorded")

    def receive(self, receiver, publisher, takers):
        receiver.settimeout(0.2)
        while True:
            try:
                message = receiver.recv(1 << 16)
            except TimeoutError:
                if publisher.poll() is None:
                    continue
                break
            topic, number = struct.unpack_from("<IQ", message)
            self.numbers[topic].append(number)
            takers[topic](message[12:], number)
        assert publisher.returncode == 0
        self.sent = json.loads(publisher.stdout.read())
        receiver.close()


def play(request, network=None):
    """Returns a socket, and a process that plays the recording to the socket."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receiver.bind(("127.0.0.1", 0))
    request = json.dumps({**request, "port": receiver.getsockname()[1]})
    if network is not None:
        network.lose(receiver.getsockname()[1])
    return receiver, subprocess.Popen(
        [sys.executable, str(HERE / "republish.py"), request], stdout=subprocess.PIPE, text=True
    )


def ask(aligner, loader, thread, fault):
    """Asks for every moment once its rows are settled. Returns copies of these batches, and of the batches halfway and of `latest()`."""
    moments = np.array([loader.gather([i])["time_ns"][0] for i in range(loader.num_anchors)])
    batches, latest, next_index, is_playing = {}, {}, 0, True
    while is_playing:
        is_playing = thread.is_alive()  # asks once more after the last message
        frontier = aligner.frontier()
        if frontier is None:
            time.sleep(0.001)
            continue
        if fault == "now":  # like a policy that ignores the frontier
            frontier = max(ring.newest_ns for ring in aligner.rings.values())
        end = int(np.searchsorted(moments, frontier, side="right"))
        for moment in moments[max(next_index, end - 1) if fault == "now" else next_index : end].tolist():
            batch = aligner.at(moment, settled=fault != "now")
            batches[moment] = {key: array.copy() for key, array in batch.items() if key != "anchor_age_ns"}
        for halfway in (moments[next_index : end - 1] + moments[next_index + 1 : end]) // 2 if fault is None else ():
            latest[int(halfway)] = {key: array.copy() for key, array in aligner.at(int(halfway)).items()}
        next_index = max(next_index, end)
        newest = aligner.latest()
        latest[int(newest["time_ns"][0])] = {key: array.copy() for key, array in newest.items()}
        time.sleep(0.001)
    return batches, latest


def gather_all(loader):
    batches = {}
    for index in range(loader.num_anchors):
        batch = loader.gather([index])
        batches[int(batch["time_ns"][0])] = {key: array.copy() for key, array in batch.items()}
    return batches


def differences(batches, expected, moments):
    """Returns the moments at which a byte differs, with the names of the arrays."""
    keys_by_moment = {
        moment: [key for key, array in batches[moment].items() if array.tobytes() != expected[moment][key].tobytes()]
        for moment in moments
    }
    return {moment: keys for moment, keys in keys_by_moment.items() if keys}


def moments_without_gaps(recording, recorded, moments):
    """Returns the moments whose windows read no lost row: two rows on each side of every target were received."""
    is_complete = np.ones(len(moments), bool)
    for stream, window in recording.streams.items():
        original = np.unique(np.asarray(recording.dataset[stream].time_ns))
        is_recorded = np.isin(original, np.asarray(recorded[stream].time_ns))
        for delta in np.atleast_1d(window.offsets):
            target = np.asarray(moments) + round(1e9 * delta)
            after = np.searchsorted(original, target)
            for index in (after - 2, after - 1, after, after + 1, after + 2):
                is_complete &= is_recorded[np.clip(index, 0, len(original) - 1)]
    return [moment for moment, complete in zip(moments, is_complete, strict=True) if complete]


def check_counts(played, recording):
    """Checks that every message is accounted for, from the publisher to the cache."""
    for index, numbers in enumerate(played.numbers):
        assert len(set(numbers)) == len(numbers)
        gaps = max(numbers) - min(numbers) + 1 - len(numbers)
        if played.topics:
            counts = played.topics[index].counts
            assert counts == {"received": len(numbers), "taken": len(numbers), "refused": 0, "lost": gaps}, (
                played.topics[index].refusal
            )
        streams = [
            stream
            for stream in played.rings
            if stream == recording.play_options["topics"][index]
            or (recording.topics and stream.startswith(recording.play_options["topics"][index] + "/"))
        ]
        for stream in streams:
            counts = played.rings[stream].counts
            assert counts["pushed"] == len(numbers)
            assert counts["pushed"] == counts["kept"] + counts["reordered"] + counts["too_late"] + counts["refused"]
            assert counts["segments"] == 0 and played.recorder_counts[stream]["lost"] == 0
            assert played.recorded[stream].rows == counts["kept"] + counts["reordered"]


def check_windows(played, recording, *, least_count, least_complete):
    expected = gather_all(loader_of(played.recorded, recording.streams))
    moments = [moment for moment in played.batches if moment in expected]  # the anchor's row may be lost
    assert len(moments) > least_count, len(moments)
    assert differences(played.batches, expected, moments) == {}
    complete = moments_without_gaps(recording, played.recorded, moments)
    assert least_complete < len(complete) < len(moments)
    assert differences(played.batches, gather_all(recording.loader), complete) == {}


def compare_latest(played, recording):
    """Compares values between rows, halfway and at the frontier, with NumPy's. Returns the number of comparisons."""
    compared = 0
    snap_ns = json.loads(recording.loader.spec.to_json())["snap_ns"]
    for stream, window in recording.streams.items():
        stamps = np.asarray(played.recorded[stream].time_ns)
        rows = np.asarray(played.recorded[stream].values, np.float64).reshape(len(stamps), -1)
        for moment, batch in played.latest.items():
            for step, delta in enumerate(np.atleast_1d(window.offsets)):
                target = moment + round(1e9 * delta)
                if batch[f"{stream}_is_pad"][0, step] or np.abs(stamps - target).min() <= snap_ns:
                    continue
                for begin, end, method in recording.loader.spec.keys[stream]["rows"]["methods"]:
                    got = batch[stream][0, step].reshape(-1)[begin:end]
                    after = np.searchsorted(stamps, target)
                    if method == "previous":
                        np.testing.assert_array_equal(got, rows[after - 1, begin:end].astype(got.dtype))
                    elif method == "linear":
                        weight = (target - stamps[after - 1]) / (stamps[after] - stamps[after - 1])
                        expected = rows[after - 1] + weight * (rows[after] - rows[after - 1])
                        np.testing.assert_allclose(got, expected[begin:end], rtol=1e-9, atol=1e-9)
                    else:
                        continue
                    compared += 1
    return compared


PARTS = {  # (name, speed): (begin_s, seconds, the least number of compared moments)
    ("imu and pose", 1): (10.0, 5.0, 60),
    ("imu and pose", 20): (2.0, 60.0, 800),
    ("vicon", 1): (3.0, 4.0, 800),
    ("vicon", 20): (2.0, 20.0, 4000),
    ("video", 1): (0.0, 4.0, 60),
    ("video", 20): (0.0, 4.0, 20),
}


@pytest.mark.parametrize(("name", "speed"), PARTS)
def test_windows_of_a_replayed_recording(recordings, tmp_path, name, speed):
    begin_s, seconds, least_count = PARTS[name, speed]
    recording = recordings(name)
    played = Played(tmp_path, recording, speed=speed, begin_s=begin_s, seconds=seconds)
    check_counts(played, recording)
    counts = [ring.counts for ring in played.rings.values()]
    for kind in ("reordered", "refused", "duplicates", "too_late"):
        assert sum(count[kind] for count in counts) > 0, (kind, counts)
    check_windows(played, recording, least_count=least_count, least_complete=least_count // 4)
    assert compare_latest(played, recording) > 20 or name == "vicon"  # NumPy has no pchip, vicon's method


@pytest.mark.parametrize("name", ["imu and pose", "vicon"])
def test_every_datagram_that_a_network_loses_is_counted(recordings, tmp_path, name):
    recording, network = recordings(name), lossy_network(0.04)
    played = Played(tmp_path, recording, speed=20, begin_s=2.0, seconds=20.0, lost=0.0, network=network)
    received = [len(numbers) for numbers in played.numbers]
    assert network.dropped() == sum(played.sent) - sum(received) > 0.02 * sum(played.sent)
    for sent, numbers, topic in zip(played.sent, played.numbers, played.topics, strict=True):
        unnoticed = min(numbers) + sent - 1 - max(numbers)  # losses before the first message and after the last
        assert sent == topic.counts["received"] + topic.counts["lost"] + unnoticed and topic.counts["lost"] > 0
    check_counts(played, recording)
    check_windows(played, recording, least_count=200, least_complete=20)


def rewrite(path, played, recording, change):
    """Rewrites the recorded cache with `change` applied to each stream, as a faulty recorder would. Returns the new cache's batches."""
    with robocache.Writer(path) as writer:
        for stream in recording.streams:
            writer.stream(stream, names=played.recorded[stream].names, attributes=recording.dataset[stream].attributes)
        with writer.episode() as episode:
            for stream in recording.streams:
                rows = [np.asarray(x) for x in (played.recorded[stream].time_ns, played.recorded[stream].values)]
                arrivals = np.asarray(played.recorded[stream + ".arrival_ns"].values).reshape(-1)
                episode.append(stream, *change(*rows, arrivals))
    return gather_all(loader_of(robocache.open(path), recording.streams))


def sorted_by_arrival(stamps, rows, arrivals):
    return stamps, rows[np.argsort(arrivals, kind="stable")]


def without_late_rows(stamps, rows, arrivals):
    in_order = np.argsort(arrivals, kind="stable")
    newest = np.maximum.accumulate(stamps[in_order])
    in_time = np.sort(in_order[stamps[in_order] == newest])
    return stamps[in_time], rows[in_time]


def with_one_bit_changed(stamps, rows, arrivals):
    changed = rows.copy()
    middle = len(rows) // 2
    changed[middle, 0] = np.nextafter(changed[middle, 0], np.inf, dtype=rows.dtype)
    return stamps, changed


def test_the_comparison_finds_planted_faults(recordings, tmp_path):
    """The faults: a policy asks for the present moment; a recorder sorts rows by arrival, drops late rows, or changes a bit."""
    recording = recordings("vicon")
    played = Played(tmp_path / "a", recording, speed=20, begin_s=2.0, seconds=10.0)
    check_windows(played, recording, least_count=1000, least_complete=200)
    for change, least_count in ((sorted_by_arrival, 500), (without_late_rows, 500), (with_one_bit_changed, 1)):
        expected = rewrite(tmp_path / change.__name__, played, recording, change)
        different = differences(played.batches, expected, [moment for moment in played.batches if moment in expected])
        assert len(different) >= least_count, (change.__name__, len(different))
    unchanged = rewrite(tmp_path / "same", played, recording, lambda stamps, rows, arrivals: (stamps, rows))
    assert differences(played.batches, unchanged, [moment for moment in played.batches if moment in unchanged]) == {}
    played_for_now = Played(tmp_path / "now", recording, speed=4, begin_s=2.0, seconds=10.0, fault="now")
    expected = gather_all(loader_of(played_for_now.recorded, recording.streams))
    moments = [moment for moment in played_for_now.batches if moment in expected]
    assert len(differences(played_for_now.batches, expected, moments)) > 0.9 * len(moments) > 20
