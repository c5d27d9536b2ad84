"""Tests integrations/ros2 with ROS 2, which environment.sh installs; other processes publish with rclpy."""

import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from lossy_network import lossy_network
from processes import HERE, PATIENCE_S, Ros, ask, is_installed, line_of, until

import robocache
from robocache import Window

JOINTS, IMAGE = "sensor_msgs/msg/JointState", "sensor_msgs/msg/Image"
KEY = "/joint_states/position"
NAMES = ["a", "b", "c", "d", "e", "f", "g"]


@pytest.fixture(scope="module")
def folder():
    """Returns the folder of environment.sh, which ROBOCACHE_ROS2 names."""
    path = os.environ.get("ROBOCACHE_ROS2")
    if not path or not is_installed(Path(path)):
        reason = f"ROS 2 is not installed: {HERE / 'environment.sh'} FOLDER installs it, ROBOCACHE_ROS2=FOLDER names the folder"
        warnings.warn(f"NOT RUN: {reason}", stacklevel=1)
        pytest.skip(reason)
    return Path(path).resolve()


@pytest.fixture
def ros(folder):
    ros = Ros(folder)
    yield ros
    ros.end()


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """Writes both.json, a spec with seven joints and a camera, and joints.json, a spec without the camera."""
    path = tmp_path_factory.mktemp("spec")
    with robocache.Writer(path / "cache") as writer:
        writer.stream(KEY, names=NAMES)
        with writer.episode() as episode:
            stamps = np.arange(1, 10) * 10**9
            episode.append(KEY, stamps, np.zeros((9, 7)))
            episode.append("/camera", stamps, np.zeros((9, 480, 640, 3), np.uint8), codec="raw")
    windows = {KEY: Window(method="previous", dtype="float64"), "/camera": Window(dtype="uint8")}
    for name, keys in (("both", windows), ("joints", {KEY: windows[KEY]})):
        loader = robocache.Loader(path / "cache", batch_size=1, delta_timestamps=keys, device="cpu", framework="numpy")
        loader.save_spec(path / f"{name}.json")
    return path


def has_all(counts):
    """Whether a report accounts for each of these numbers of messages."""
    return lambda report: all(report[key]["received"] + report[key]["lost"] >= sent for key, sent in counts.items())


def joint_stream(**more):
    return {
        "topic": "/joint_states",
        "type": JOINTS,
        "field": "position",
        "span_s": 60.0,
        "reliability": "reliable",
        "depth": 2000,
    } | more


def test_rows_equal_the_published_messages(ros, spec, tmp_path):
    camera = {"topic": "/camera", "type": IMAGE, "span_s": 60.0, "reliability": "reliable", "depth": 200}
    policy, _ = ros.policy(spec / "both.json", {KEY: joint_stream(), "/camera": camera})
    topics = {
        "/joint_states": {"kind": "joints", "hz": 500, "count": 1500, "names": NAMES, "depth": 1500},
        "/camera": {"kind": "image", "hz": 30, "count": 90, "size": [480, 640], "seed": 1},
    }
    publisher = ros.publish(tmp_path / "sent.npz", topics, policy)
    ros.finish(publisher, policy, has_all({topic: options["count"] for topic, options in topics.items()}))
    assert "error" not in ask(policy, wait=1)
    sent = np.load(tmp_path / "sent.npz")
    files = {}
    for key, topic in ((KEY, "/joint_states"), ("/camera", "/camera")):
        files[key] = str(tmp_path / f"{topic[1:]}.npy")
        np.save(files[key], sent[f"{topic} stamps"][:-1])  # the last row is not settled
    answer = ask(policy, rows=files, out=str(tmp_path / "rows.npz"))
    for topic, options in topics.items():
        report = answer["report"][topic]
        assert (report["received"], report["taken"], report["lost"]) == (options["count"], options["count"], 0), report
    rows = np.load(tmp_path / "rows.npz")
    np.testing.assert_array_equal(rows[KEY].reshape(-1, 7), sent["/joint_states values"][:-1])
    pictures = rows["/camera"].reshape(-1, 3, 480, 640)  # the channels come first, as from a loader
    np.testing.assert_array_equal(pictures[:, :, 0].transpose(0, 2, 1), sent["/camera values"][:-1])
    policy.stdin.close()
    assert policy.wait(PATIENCE_S) == 0, policy.stderr.read()


def test_two_keys_of_one_field_have_their_own_joints(ros, tmp_path):
    arms = {"left": ["c", "a"], "right": ["d", "b"], "again": ["c", "a"]}
    with robocache.Writer(tmp_path / "cache") as writer:
        for key, names in arms.items():
            writer.stream(key, names=names)
        with writer.episode() as episode:
            for key in arms:
                episode.append(key, np.arange(1, 10) * 10**9, np.zeros((9, 2)))
    windows = {key: Window(method="previous", dtype="float64") for key in arms}
    options = {"batch_size": 1, "device": "cpu", "framework": "numpy", "anchors": "left"}
    robocache.Loader(tmp_path / "cache", delta_timestamps=windows, **options).save_spec(tmp_path / "spec.json")
    policy, answer = ros.policy(tmp_path / "spec.json", dict.fromkeys(arms, joint_stream()))
    assert isinstance(answer, dict), answer
    topics = {"/joint_states": {"kind": "joints", "hz": 200, "count": 100, "names": list("abcd")}}
    publisher = ros.publish(tmp_path / "sent.npz", topics, policy)
    ros.finish(publisher, policy, has_all({"/joint_states": 100, "/joint_states (right)": 100}))
    sent = np.load(tmp_path / "sent.npz")
    np.save(tmp_path / "stamps.npy", sent["/joint_states stamps"][:-1])
    answer = ask(policy, rows=dict.fromkeys(arms, str(tmp_path / "stamps.npy")), out=str(tmp_path / "rows.npz"))
    assert set(answer["report"]) == {"/joint_states", "/joint_states (right)"}
    rows = np.load(tmp_path / "rows.npz")
    for key, names in arms.items():
        columns = ["abcd".index(name) for name in names]
        np.testing.assert_array_equal(rows[key].reshape(-1, 2), sent["/joint_states values"][:-1][:, columns])


def test_every_loss_is_counted(ros, spec, tmp_path):
    policy, _ = ros.policy(spec / "joints.json", {KEY: joint_stream(reliability="best_effort", depth=1)})
    count = 20_000
    topics = {"/joint_states": {"kind": "joints", "hz": 0, "count": count, "names": NAMES, "reliable": False}}
    publisher = ros.publish(tmp_path / "sent.npz", topics, policy)
    answer = ros.finish(publisher, policy, has_all({"/joint_states": count}))
    report = answer["report"]["/joint_states"]
    assert report["received"] + report["lost"] == count, report
    assert report["lost"] > 0 and report["taken"] == report["received"]


PLAYED = {
    "/imu": (
        "sensor_msgs/msg/Imu",
        Window([-0.2, -0.05, 0.0], dtype="float64", method=[(slice(0, 4), "slerp"), (slice(4, 10), "linear")]),
    ),
    "/pose": ("geometry_msgs/msg/PoseStamped", Window([-0.1, 0.0], dtype="float64", method="nearest")),
    "/battery": ("sensor_msgs/msg/BatteryState", Window([-0.3, 0.0], method="previous")),
}


def gathered(path):
    """Returns a loader of a recording's windows, and a batch of each of its moments."""
    loader = robocache.Loader(
        path,
        batch_size=1,
        delta_timestamps={key: window for key, (_, window) in PLAYED.items()},
        anchors="/imu",
        device="cpu",
        framework="numpy",
        shuffle=False,
    )
    batches = [{key: array.copy() for key, array in loader.gather([i]).items()} for i in range(loader.num_anchors)]
    return loader, {int(batch["time_ns"][0]): batch for batch in batches}


@pytest.mark.parametrize(("speed", "seconds", "lost"), [(1, 5.0, 0.0), (20, 60.0, 0.0), (20, 60.0, 0.05)])
def test_a_replayed_recording(ros, real_data, tmp_path, speed, seconds, lost):
    """Windows equal those of the cache that was recorded live and, where no row was lost, those of the replayed recording."""
    bag = real_data("rosbag2/plotjuggler")
    robocache.ingest(bag, tmp_path / "original")
    loader, original = gathered(tmp_path / "original")
    loader.save_spec(tmp_path / "spec.json")
    streams = {
        key: {"topic": key, "type": name, "span_s": 200.0, "lateness_s": 0.12, "depth": 10_000,
              "reliability": "best_effort" if lost else "reliable"}
        for key, (name, _) in PLAYED.items()
    }  # fmt: skip
    if lost:
        ros.network = lossy_network(lost)
        ros.network.lose("1024-65535")  # with the ports of discovery, which sends lost packets again
    policy, answer = ros.policy(tmp_path / "spec.json", streams)
    assert isinstance(answer, dict), answer
    ask(policy, record=str(tmp_path / "recorded"))
    publisher = ros.replay({
        "bag": str(bag / "rosbag2_test_0.db3"), "topics": list(PLAYED), "types": [name for name, _ in PLAYED.values()],
        "reliable": not lost, "speed": speed, "begin_s": 1.0, "seconds": seconds, "seed": 3, "late_s": 0.02, "much_late": 0.04,
        "doubled": 0.02, "set_back": 5,
    }, policy)  # fmt: skip
    sent = dict(zip(PLAYED, json.loads(line_of(publisher)), strict=True))
    until(policy, has_all({key: number - 5 * bool(lost) for key, number in sent.items()}))
    publisher.stdin.close()
    assert publisher.wait(PATIENCE_S) == 0
    np.save(tmp_path / "moments.npy", np.array(sorted(original)))
    answer = ask(policy, moments=str(tmp_path / "moments.npy"), out=str(tmp_path / "batches.npz"))
    _, recorded = gathered(tmp_path / "recorded")
    dataset, cache = robocache.open(tmp_path / "original"), robocache.open(tmp_path / "recorded")
    for key in PLAYED:
        report, counts = answer["report"][key], answer["rings"][key]
        assert report["received"] == report["taken"] == counts["pushed"]
        if lost:
            # Losses before the first received message and after the last are not counted.
            assert 0 <= sent[key] - report["received"] - report["lost"] <= 5 and report["lost"] > 0.01 * sent[key]
        else:
            assert (report["received"], report["lost"]) == (sent[key], 0)
        assert counts["pushed"] == counts["kept"] + counts["reordered"] + counts["too_late"] + counts["refused"]
        assert counts["refused"] > 0 and counts["too_late"] > 0 and counts["reordered"] > 0
        assert cache[key].rows == counts["kept"] + counts["reordered"] and answer["recorded"][key]["lost"] == 0
    batches = np.load(tmp_path / "batches.npz")
    compared, complete = 0, 0
    for index, moment in enumerate(batches["time_ns"].tolist()):
        if moment not in recorded:
            continue  # the anchor's row was lost, or not played
        compared += 1
        arrays = [f"{key}{suffix}" for key in PLAYED for suffix in ("", "_is_pad")]
        live = {name: batches[name][index].tobytes() for name in arrays}
        assert live == {name: recorded[moment][name].tobytes() for name in arrays}
        if has_all_rows(dataset, cache, moment):
            complete += 1
            assert live == {name: original[moment][name].tobytes() for name in arrays}
    assert compared > 0.6 * 25 * seconds and 10 < complete < compared


def has_all_rows(dataset, cache, moment):
    """Whether the cache has the two rows of the recording on each side of every target."""
    for key, (_, window) in PLAYED.items():
        stamps = np.asarray(dataset[key].time_ns)
        is_recorded = np.isin(stamps, np.asarray(cache[key].time_ns))
        for delta in window.offsets:
            after = int(np.searchsorted(stamps, moment + round(1e9 * delta)))
            if not is_recorded[max(after - 2, 0) : after + 3].all():
                return False
    return True


# Makes Cyclone DDS use only the loopback, as ROS_AUTOMATIC_DISCOVERY_RANGE makes the node.
ON_LOOPBACK = """<General><Interfaces><NetworkInterface name="lo"/></Interfaces><AllowMulticast>false</AllowMulticast></General>
<Discovery><ParticipantIndex>auto</ParticipantIndex><Peers><Peer address="127.0.0.1"/></Peers></Discovery>"""


def test_cyclone_dds_publishes_to_the_node(ros, folder, spec, tmp_path):
    policy, _ = ros.policy(spec / "joints.json", {KEY: joint_stream()})
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"CYCLONEDDS_URI": ON_LOOPBACK}
    python = str(folder / "cyclone" / "bin" / "python")
    command = [python, str(HERE / "cyclone.py"), "500", ros.env["ROS_DOMAIN_ID"], str(tmp_path / "sent.npy")]
    ros.finish(ros.let_go(command, env, policy), policy, has_all({"/joint_states": 500}))
    stamps = np.load(tmp_path / "sent.npy")
    np.save(tmp_path / "stamps.npy", stamps[:-1])
    answer = ask(policy, rows={KEY: str(tmp_path / "stamps.npy")}, out=str(tmp_path / "rows.npz"))
    report = answer["report"]["/joint_states"]
    assert (report["taken"], report["refused"], report["lost"]) == (500, 0, 0), report
    rows = np.load(tmp_path / "rows.npz")[KEY].reshape(-1, 7)
    # Cyclone DDS publishes the names in reverse order.
    np.testing.assert_array_equal(rows, np.arange(499)[:, None] + np.arange(7)[::-1])


@pytest.mark.parametrize(
    ("more", "published", "why"),
    [
        ({}, {"names": NAMES[:-1]}, r"messages refused, the last: joints .*, without \['g'\]"),
        (
            {},
            {"names": NAMES, "reliable": False, "alone": True},
            "1 publishers, none of which fits sensor_msgs/msg/JointState and the QoS",
        ),
        ({"topic": "/nothing"}, None, "/nothing: no message of 0 publishers"),
    ],
)
def test_a_stream_without_rows_has_a_reason(ros, spec, tmp_path, more, published, why):
    policy, _ = ros.policy(spec / "joints.json", {KEY: joint_stream(**more)})
    if published is not None:
        topics = {"/joint_states": {"kind": "joints", "hz": 50, "count": 200, **published}}
        ros.publish(tmp_path / "sent.npz", topics, None if published.get("alone") else policy)
        until(policy, lambda report: all(topic["publishers"] for topic in report.values()))
        if not published.get("alone"):
            until(policy, lambda report: all(topic["refused"] for topic in report.values()))
    error = ask(policy, wait=1)["error"]
    assert error.startswith("StaleError: rings: expected a row of each within 1")
    assert re.search(why, error), error


def test_rows_refused_for_their_stamps_are_reported(ros, spec, tmp_path):
    policy, _ = ros.policy(spec / "joints.json", {KEY: joint_stream()})
    topics = {"/joint_states": {"kind": "joints", "hz": 20, "count": 2000, "names": NAMES, "ahead_s": 100}}
    listener = ros.listen()
    ros.publish(tmp_path / "sent.npz", topics, policy)
    level, message, values = json.loads(listener.communicate(timeout=PATIENCE_S)[0])["robocache: /joint_states"]
    assert level == 1 and re.fullmatch(r"\d+ rows refused", message), message
    assert values["rows_refused"] == values["taken"] != "0"
    assert "of whose rows the ring has {'pushed': " in ask(policy, wait=0.1)["error"]


def test_frames_that_repeat_are_reported(ros, spec, tmp_path):
    camera = {"topic": "/camera", "type": IMAGE, "reliability": "reliable"}
    policy, _ = ros.policy(spec / "both.json", {KEY: joint_stream(), "/camera": camera})
    topics = {
        "/joint_states": {"kind": "joints", "hz": 20, "count": 2000, "names": NAMES},
        "/camera": {"kind": "image", "hz": 20, "count": 2000, "size": [480, 640], "frozen": True},
    }
    ros.publish(tmp_path / "sent.npz", topics, policy)
    until(policy, lambda report: report["/camera"]["frames_repeated"] > 2)
    statuses = json.loads(ros.listen().communicate(timeout=PATIENCE_S)[0])
    level, message, values = statuses["robocache: /camera"]
    assert level == 1 and re.fullmatch(r"\d+ frames repeated", message), message
    assert int(values["frames_repeated"]) == int(values["taken"]) - 1
    assert statuses["robocache: /joint_states"][:2] == [0, "all taken"]


def test_parameters_and_diagnostics(ros, spec, tmp_path):
    (tmp_path / "arm.yaml").write_text(
        f"robocache:\n  ros__parameters:\n    spec: {spec / 'joints.json'}\n    streams: ['{KEY}']\n    '{KEY}':\n"
        f"      topic: /joint_states\n      type: {JOINTS}\n      field: position\n      lateness_s: 0.006\n      depth: 2000\n      reliability: reliable\n"
    )
    args = ["--ros-args", "--params-file", str(tmp_path / "arm.yaml"), "-r", "/joint_states:=/arm/joint_states"]
    policy, answer = ros.policy(None, None, *args)
    assert isinstance(answer, dict), answer
    assert answer["parameters"][f"{KEY}.lateness_s"] == 0.006 and answer["parameters"]["streams"] == [KEY], answer
    listener = ros.listen()
    topics = {"/arm/joint_states": {"kind": "joints", "hz": 20, "count": 2000, "names": NAMES}}
    ros.publish(tmp_path / "sent.npz", topics, policy)
    assert "error" not in ask(policy, wait=30)
    level, message, values = json.loads(listener.communicate(timeout=PATIENCE_S)[0])["robocache: /joint_states"]
    assert (level, message) == (0, "all taken") and values["lost"] == "0" and float(values["latency_p50_ms"]) > 0


@pytest.mark.parametrize(
    ("streams", "why"),
    [
        (
            {"other": joint_stream()},
            "streams: expected keys of the spec, which are '/joint_states/position', got 'other'",
        ),
        ({KEY: joint_stream(type="nothing_msgs/msg/Nothing")}, "schema: no definition of nothing_msgs/msg/Nothing"),
        ({KEY: joint_stream(field="velocities")}, "which are '/joint_states/position'"),
        ({KEY: joint_stream(topic="/joint states")}, "topic /joint states: "),
        ({KEY: joint_stream(reliability="sure")}, "reliability: expected 'best_effort' or 'reliable', got 'sure'"),
        (None, "streams: expected {key: Stream}, or the parameter 'streams', got none"),
    ],
)
def test_invalid_specs_are_errors_at_once(ros, spec, streams, why):
    child, error = ros.policy(spec / "joints.json", streams)
    assert child.returncode == 1 and why in error, error
