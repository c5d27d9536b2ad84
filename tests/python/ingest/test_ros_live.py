"""Live topics: a plan in C++ reads the same rows from serialised messages as ingest."""

import ctypes
import io
import mmap
import re

import numpy as np
import pytest
from PIL import Image
from ros_files import MS, ROS2, START, definition, header, image, joints, message, serialize, write_mcap
from rosbags.interfaces import Nodetype
from rosbags.typesys import get_types_from_msg

import robocache
from robocache import Anchors, Window
from robocache.live import Aligner, Ring, Topic

SPAN = {"span_s": 60.0}
TYPES = [
    "geometry_msgs/msg/AccelWithCovarianceStamped",
    "geometry_msgs/msg/PointStamped",
    "geometry_msgs/msg/Pose",
    "geometry_msgs/msg/PoseStamped",
    "geometry_msgs/msg/PoseWithCovarianceStamped",
    "geometry_msgs/msg/Twist",
    "geometry_msgs/msg/WrenchStamped",
    "nav_msgs/msg/MapMetaData",
    "nav_msgs/msg/Odometry",
    "sensor_msgs/msg/BatteryState",
    "sensor_msgs/msg/Imu",
    "sensor_msgs/msg/Joy",
    "sensor_msgs/msg/LaserScan",
    "sensor_msgs/msg/MagneticField",
    "sensor_msgs/msg/NavSatFix",
    "sensor_msgs/msg/Range",
    "std_msgs/msg/Float32",
    "std_msgs/msg/Float64MultiArray",
    "std_msgs/msg/Int32MultiArray",
    "stereo_msgs/msg/DisparityImage",
    "trajectory_msgs/msg/JointTrajectoryPoint",
]


def random_message(rng, name, time_ns, path=""):
    """Returns a message with random numbers. The length of a sequence or text depends on its path; all have the same frames."""
    if name == "std_msgs/msg/Header":
        return header(time_ns, "odom")
    fields = {}
    for field, (node, details) in ROS2.fielddefs[name][1]:
        field_path = f"{path}.{field}"
        length = 1 + sum(map(ord, field_path)) % 5
        if node == Nodetype.BASE:
            fields[field] = random_base(rng, details[0], field_path)
        elif node == Nodetype.NAME:
            fields[field] = random_message(rng, details, time_ns, field_path)
        else:
            (inner, item_type), count = details
            count = count if node == Nodetype.ARRAY else 0 if "dim" in field_path else length
            if inner == Nodetype.NAME or item_type[0] == "string":
                make_item = random_message if inner == Nodetype.NAME else random_base
                fields[field] = [
                    make_item(rng, item_type if inner == Nodetype.NAME else item_type[0], time_ns) for _ in range(count)
                ]
            else:
                fields[field] = np.array(
                    [random_base(rng, item_type[0], field_path) for _ in range(count)], item_type[0]
                )
    return ROS2.types[name](**fields)


def random_base(rng, name, path):
    if name == "string":
        return "odom" if str(path).endswith("frame_id") else "x" * int(rng.integers(9))
    if name == "bool":
        return bool(rng.integers(2))
    if name.startswith("float"):
        return float(np.dtype(name).type(rng.standard_normal()))
    limits = np.iinfo(name)
    return int(rng.integers(max(limits.min, -9), 9))


def get_field(msg, path):
    for name in path.split("."):
        msg = getattr(msg, name)
    return msg


def ingest_messages(tmp_path, topic, name, messages, big_endian=False, **options):
    """Writes a cache of the messages. Returns a loader of all numbers, and for each stream a ring and the names."""
    write_mcap(tmp_path / "bags" / "run.mcap", {topic: (name, messages)}, big_endian=big_endian)
    robocache.ingest(tmp_path / "bags", tmp_path / "cache", **options)
    dataset = robocache.open(tmp_path / "cache")
    streams = [stream for stream in dataset.streams if dataset.streams[stream].kind in ("numbers", "frames")]
    loader = robocache.Loader(
        dataset,
        batch_size=1,
        delta_timestamps={stream: Window([0.0], dtype=get_dtype(dataset.streams[stream])) for stream in streams},
        anchors=Anchors(stream=streams[0]),
        framework="numpy",
        device="cpu",
        shuffle=False,
    )
    rows = {key: key_spec["rows"] for key, key_spec in loader.spec.keys.items()}
    rings = {
        key: Ring(key_spec["shape"], key_spec["dtype"], codec=key_spec["codec"], **SPAN)
        for key, key_spec in rows.items()
    }
    return loader, rings, {key: key_spec["names"] for key, key_spec in rows.items() if key_spec["names"]}


def get_dtype(stream):
    """Returns the window's dtype: numbers keep theirs, frames get the loader's default."""
    return None if stream.kind == "frames" or stream.dtype == "bool" else stream.dtype


def replay(loader, rings, topic, name, messages, big_endian=False):
    """Sends the messages and compares all settled batches with the loader's. Returns the batches."""
    aligner = Aligner(loader.spec, rings, framework="numpy")
    assert loader.num_anchors == len(messages)
    for k, (log_ns, msg) in enumerate(messages):
        topic.take(serialize(name, msg, big_endian), log_ns, publisher=7, sequence=k + 1)
    assert topic.counts == {"received": len(messages), "taken": len(messages), "refused": 0, "lost": 0}, topic.refusal
    batches = []
    for k in range(len(messages) - 1):
        expected = {key: array.copy() for key, array in loader.gather([k]).items()}
        batch = aligner.at(int(expected["time_ns"][0]), settled=True)
        batches.append(expected)
        for key in rings:
            for array in (key, f"{key}_is_pad"):
                assert batch[array].tobytes() == expected[array].tobytes(), (array, batch[array], expected[array])
    return batches


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_rows_equal_those_of_ingest(tmp_path, name, big_endian):
    rng = np.random.default_rng(len(name))
    messages = []
    for k in range(30):
        msg = random_message(rng, name, START + 5 * k * MS)
        if name == "sensor_msgs/msg/Imu":
            for field in ("orientation", "angular_velocity", "linear_acceleration"):
                getattr(msg, f"{field}_covariance")[0] = rng.choice([-1.0, 0.5])
        if name == "sensor_msgs/msg/NavSatFix":
            msg.status.status = int(rng.choice([-1, 2]))
        messages.append((START + 5 * k * MS + MS, msg))
    loader, rings, names = ingest_messages(tmp_path, "/t", name, messages, big_endian)
    assert rings
    batches = replay(
        loader, rings, Topic("/t", name, rings, names=names, definition=definition(name)), name, messages, big_endian
    )
    for (_, msg), batch in zip(messages, batches, strict=False):
        decoded = ROS2.deserialize_cdr(serialize(name, msg, big_endian), name)
        for key in rings:
            paths = names.get(key) or [key.removeprefix("/t/") if key != "/t" else "data"]
            expected = np.concatenate([np.atleast_1d(get_field(decoded, path)) for path in paths]).astype(
                batch[key].dtype
            )
            is_absent = absent_fields(decoded, paths)
            np.testing.assert_array_equal(
                batch[key].reshape(-1), np.where(is_absent, np.nan, expected) if any(is_absent) else expected
            )


def absent_fields(msg, paths):
    """Returns a mask of the fields that an Imu or a NavSatFix declares absent."""
    is_absent = np.zeros(len(paths), bool)
    for i, path in enumerate(paths if len(paths) > 1 else ()):
        covariance = getattr(msg, f"{path.split('.')[0]}_covariance", None)
        is_absent[i] = covariance is not None and covariance[0] == -1 and type(msg).__name__.endswith("Imu")
        if hasattr(msg, "latitude"):
            is_absent[i] = path in ("latitude", "longitude", "altitude") and msg.status.status == -1
    return is_absent


# ---- joints ----

JOINTS = "sensor_msgs/msg/JointState"


def joint_topic(joints=("a", "b", "c"), streams=("position", "velocity", "effort")):
    rings = {f"/j/{stream}": Ring((len(joints),), "float64", **SPAN) for stream in streams}
    return Topic("/j", JOINTS, rings, names=dict.fromkeys(rings, joints)), rings


def serialize_with_stamp(msg, k):
    msg.header = header(START + k * MS)
    return serialize(JOINTS, msg)


def test_joints_are_found_by_name(tmp_path):
    rng = np.random.default_rng(2)
    messages = []
    for k in range(40):
        names = ["a", "b", "c"] if k == 0 else [str(name) for name in rng.permutation(["a", "b", "c"])]
        msg = joints(k, names, velocity=k % 5 > 0)
        msg.header = header(START + k * MS)
        messages.append((START + k * MS, msg))
    loader, rings, names = ingest_messages(tmp_path, "/j", JOINTS, messages)
    assert set(rings) == {"/j/position", "/j/velocity"}
    batches = replay(loader, rings, Topic("/j", JOINTS, rings, names=names), JOINTS, messages)
    for (_, msg), batch in zip(messages, batches, strict=False):
        expected = [msg.position[msg.name.index(name)] for name in "abc"]
        np.testing.assert_array_equal(batch["/j/position"].reshape(-1), expected)


@pytest.mark.parametrize("names_are_unique", [True, False])
def test_elements_are_found_by_the_names_beside_them(names_are_unique, tmp_path):
    """If one message has a name twice, neither ingest nor the live topic takes the texts as names."""
    name = "pkg/msg/DofCommand"
    if name not in ROS2.types:
        ROS2.register(get_types_from_msg("std_msgs/Header header\nstring[] dof_names\nfloat64[] values\n", name))
    messages = []
    for k in range(12):
        order = "ab" if k < 6 else "ba" if names_are_unique or k != 8 else "aa"
        values = np.array([10.0 * k + 100 * (n == "b") for n in order])
        msg = message(name, header=header(START + k * MS), dof_names=list(order), values=values)
        messages.append((START + k * MS, msg))
    loader, rings, names = ingest_messages(tmp_path, "/t", name, messages)
    assert names == ({"/t/values": ["a", "b"]} if names_are_unique else {})
    topic = Topic("/t", name, rings, names=names, definition=definition(name))
    for k, batch in enumerate(replay(loader, rings, topic, name, messages)):
        expected = [10.0 * k, 10.0 * k + 100] if names_are_unique else messages[k][1].values
        np.testing.assert_array_equal(batch["/t/values"].reshape(-1), expected)


def test_elements_chosen_by_index_are_warned_about(tmp_path):
    name = "pkg/msg/FixedCommand"
    if name not in ROS2.types:
        ROS2.register(get_types_from_msg("string[2] dof_names\nfloat64[2] values\n", name))
    messages = [(START + k * MS, message(name, dof_names=["a", "b"], values=np.array([k, -k]))) for k in range(3)]
    _, rings, names = ingest_messages(tmp_path, "/t", name, messages)
    with pytest.warns(UserWarning, match="values are taken by their indices: dof_names must have"):
        Topic("/t", name, rings, names=names, definition=definition(name))


def test_other_joints_of_a_message_are_ignored():
    topic, rings = joint_topic(("c", "a"), ["position"])
    topic.take(serialize_with_stamp(joints(1, ("a", "b", "c", "d")), 1))
    assert topic.counts["taken"] == 1 and rings["/j/position"].counts["kept"] == 1


@pytest.mark.parametrize(
    ("msg", "expected_message"),
    [
        (joints(1, ("a", "b")), r"joints \['a', 'b'\], without \['c'\]"),
        (joints(1, ("a", "b", "c", "a")), "'a' is there twice"),
        (joints(1, ("a", "b", "c"), n=2), "position: expected a number for each of 3 joints, got 2"),
        (joints(1, ()), r"without \['a', 'b', 'c'\]"),
    ],
)
def test_a_message_without_the_joints_is_refused(msg, expected_message):
    topic, rings = joint_topic()
    topic.take(serialize_with_stamp(joints(0), 1))
    topic.take(serialize_with_stamp(msg, 2))
    topic.take(serialize_with_stamp(joints(2, ("c", "b", "a")), 3))
    assert topic.counts == {"received": 3, "taken": 2, "refused": 1, "lost": 0}
    assert re.search(expected_message, topic.refusal), topic.refusal
    assert rings["/j/position"].counts["pushed"] == 2


# ---- images ----

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"


@pytest.mark.parametrize("codec", ["raw", "png", "jpeg:80"])
@pytest.mark.parametrize(
    "encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "8UC3", "8UC4", "mono8", "8UC1", "16UC1", "32FC1"]
)
def test_images_equal_those_of_ingest(tmp_path, encoding, codec):
    rng = np.random.default_rng(4)
    channels = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "8UC3": 3, "8UC4": 4}.get(encoding, 1)
    dtype = np.float32 if encoding == "32FC1" else np.uint16 if "16" in encoding else np.uint8
    messages = []
    for k in range(4):
        pixels = rng.integers(0, 256, (6, 10, channels)).astype(dtype)
        padding = (3 if dtype == np.uint8 else 8) * (k % 2)
        msg = image(pixels, encoding, padding, big_endian=k > 1, time_ns=START + k * MS)
        messages.append((START + k * MS, msg))
    loader, rings, names = ingest_messages(tmp_path, "/cam", IMAGE, messages, image_codec=codec)
    topic = Topic("/cam", IMAGE, rings, names=names, quality=80)
    replay(loader, rings, topic, IMAGE, messages)


@pytest.mark.parametrize("file_type", ["jpeg", "png", "gray png", "progressive"])
def test_image_files_equal_those_of_ingest(tmp_path, file_type):
    rng = np.random.default_rng(5)
    messages = []
    for k in range(4):
        pixels = np.cumsum(rng.integers(0, 9, (16, 24, 3)), axis=1).astype(np.uint8)
        file = io.BytesIO()
        picture = Image.fromarray(pixels[..., 0] if file_type == "gray png" else pixels)
        picture.save(file, "png" if "png" in file_type else "jpeg", progressive=file_type == "progressive")
        data = np.frombuffer(file.getvalue(), np.uint8)
        image_format = "png" if "png" in file_type else "bgr8; jpeg compressed bgr8"
        messages.append(
            (START + k * MS, message(COMPRESSED, header=header(START + k * MS), format=image_format, data=data))
        )
    loader, rings, names = ingest_messages(tmp_path, "/cam", COMPRESSED, messages)
    replay(loader, rings, Topic("/cam", COMPRESSED, rings, names=names), COMPRESSED, messages)


@pytest.mark.parametrize(
    ("msg", "expected_message"),
    [
        (image(np.zeros((4, 6, 3), np.uint8), "rgb8"), "expected images of"),
        (image(np.zeros((6, 10, 1), np.uint8), "mono8"), "expected images of"),
        (image(np.zeros((6, 10, 2), np.uint8), "yuv422"), "encoding: expected one of"),
        (message(IMAGE, height=6, width=10, step=30, encoding="rgb8", data=np.zeros(179, np.uint8)), "got 179 bytes"),
        (
            message(IMAGE, height=6, width=10, step=29, encoding="rgb8", data=np.zeros(174, np.uint8)),
            "rows of 29 bytes",
        ),
        (message(IMAGE, height=6, width=10, step=2**32 - 1, encoding="rgb8", data=np.zeros(200, np.uint8)), "got 200"),
        (message(IMAGE), "encoding: expected one of"),
    ],
)
def test_other_images_are_refused(msg, expected_message):
    ring = Ring((6, 10, 3), "uint8", codec="raw", **SPAN)
    topic = Topic("/cam", IMAGE, {"/cam": ring})
    topic.take(serialize(IMAGE, msg))
    assert topic.counts["refused"] == 1 and expected_message in topic.refusal
    assert ring.counts["pushed"] == 0


def test_damaged_and_exchanged_files_are_refused():
    file = io.BytesIO()
    Image.fromarray(np.zeros((6, 10, 3), np.uint8)).save(file, "jpeg")
    ring = Ring((6, 10, 3), "uint8", codec="jpeg", **SPAN)
    topic = Topic("/cam", COMPRESSED, {"/cam": ring})
    exchanged = [("rgb8; jpeg compressed ", None), ("BGR8; jpeg compressed rgb8", None)]
    for k, (image_format, end) in enumerate([("jpeg", None), ("jpeg", -40), ("jpeg", 0), *exchanged]):
        data = np.frombuffer(file.getvalue()[:end], np.uint8)
        msg = message(COMPRESSED, header=header(START + k), format=image_format, data=data)
        topic.take(serialize(COMPRESSED, msg))
    assert topic.counts["taken"] == 1 and ring.counts["kept"] == 1


# ---- invalid messages ----


@pytest.fixture(scope="module")
def at_the_end():
    """Returns a function that copies bytes to the end of a page before an unreadable one."""
    size = 1 << 16
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + size), mmap.PAGESIZE, 0) == 0

    def copy(data):
        memory[size - len(data) : size] = data
        return memoryview(memory)[size - len(data) : size]

    return copy


@pytest.mark.parametrize("name", [*TYPES, JOINTS, IMAGE, COMPRESSED])
def test_truncated_and_damaged_messages_are_refused(name, at_the_end):
    rng = np.random.default_rng(6)
    if name in (IMAGE, COMPRESSED):
        rings = {"/t": Ring((6, 10, 3), "uint8", codec="raw" if name == IMAGE else "jpeg", **SPAN)}
        topic = Topic("/t", name, rings)
        msg = image(np.zeros((6, 10, 3), np.uint8), "rgb8")
        if name == COMPRESSED:
            file = io.BytesIO()
            Image.fromarray(np.zeros((6, 10, 3), np.uint8)).save(file, "jpeg")
            msg = message(name, header=header(START), format="jpeg", data=np.frombuffer(file.getvalue(), np.uint8))
    elif name == JOINTS:
        topic, rings = joint_topic()
        msg = joints(0)
    else:
        msg = random_message(rng, name, START)
        topic = Topic("/t", name, first_ring(name), definition=definition(name))
    content = serialize(name, msg)
    topic.take(at_the_end(content))
    assert topic.counts["taken"] == 1, topic.refusal
    for size in range(min(len(content) - 3, 2000)):
        topic.take(at_the_end(content[:size]))
    counts = topic.counts
    # The whole message is taken, and those that lack some of its last bytes, which are padding, may be.
    assert counts["taken"] <= 1 + 3 and counts["received"] == counts["taken"] + counts["refused"]
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(len(damaged))] = rng.choice([0, 1, 127, 255, int(rng.integers(256))])
        topic.take(at_the_end(bytes(damaged)))
    counts = topic.counts
    assert counts["received"] == counts["taken"] + counts["refused"] and counts["refused"] > 0
    topic.take(at_the_end(content + bytes(4)))
    assert "but its type ends at" in topic.refusal


def test_a_sequence_of_messages_is_no_live_stream():
    with pytest.raises(robocache.errors.ArgumentError, match="got '/t/poses'"):
        Topic("/t", "nav_msgs/msg/Path", {"/t/poses": Ring((7,), "float64", **SPAN)})


def first_ring(name):
    """Returns a ring for one of the type's streams. The error messages say its name and shape, but no length of a sequence."""
    try:
        Topic("/t", name, {"?": Ring((1,), "bool", **SPAN)}, definition=definition(name))
    except robocache.errors.ArgumentError as error:
        stream = str(error).split("which are '")[1].split("'")[0]
    try:
        Topic("/t", name, {stream: Ring((0, 1), "bool", **SPAN)}, definition=definition(name))
    except robocache.errors.ArgumentError as error:
        shape, dtype = str(error).split("rows of [")[1].split(", got")[0].split("] ")
    lengths = {"std_msgs/msg/Float64MultiArray": 2, "std_msgs/msg/Int32MultiArray": 2, "sensor_msgs/msg/Joy": 5}
    return {stream: Ring((lengths.get(name) or int(shape),), dtype, **SPAN)}


# ---- counts and errors ----


def test_lost_messages_are_counted_for_each_publisher():
    topic, _ = joint_topic(streams=["position"])
    numbers = [(1, 5), (1, 6), (2, 100), (1, 9), (2, 101), (2, 103), (1, 10), (1, 1), (1, 2)]
    for k, (publisher, sequence) in enumerate(numbers):
        topic.take(serialize_with_stamp(joints(k), k), publisher=publisher, sequence=sequence)
    assert topic.counts == {"received": 9, "taken": 9, "refused": 0, "lost": 3}
    assert len(topic.latencies_ns) == 9


def test_a_second_sensor_on_one_topic_is_refused():
    name = "sensor_msgs/msg/Range"
    ring = Ring((1,), "float32", **SPAN)
    topic = Topic("/r", name, {"/r": ring}, names={"/r": ["range"]}, definition=definition(name))
    for k, frame in enumerate(["left", "/left", "right"]):
        topic.take(serialize(name, message(name, header=header(START + k, frame), range=1.0)))
    assert topic.counts["taken"] == 2 and "'right', but 'left' in the first message" in topic.refusal


def test_the_stamp_is_the_messages_or_its_arrival():
    for stamp, expected in (("auto", START), ("log", START + 7)):
        ring = Ring((3,), "float64", **SPAN)
        topic = Topic("/j", JOINTS, {"/j/position": ring}, names={"/j/position": [*"abc"]}, stamp=stamp)
        topic.take(serialize_with_stamp(joints(0), 0), START + 7)
        assert ring.newest_ns == expected and ring.arrival_ns == START + 7


@pytest.mark.parametrize(
    ("rings", "other_options", "expected_message"),
    [
        (
            {"/j/positions": (3, "float64")},
            {},
            "which are '/j/position', '/j/velocity', '/j/effort', got '/j/positions'",
        ),
        ({"/j/position": (3, "float64")}, {"names": {}}, "names.*expected the joints of a row"),
        ({"/j/position": (2, "float64")}, {}, "one for each of 2 features, got 3"),
        ({"/j/position": (3, "float32")}, {}, r"rows of \[3\] float64, got \[3\] float32"),
        ({"/j/position": (3, "float64")}, {"names": {"/j/position": [*"aab"]}}, "expected each once"),
        ({"/j/position": (3, "float64")}, {"names": {"/k": "abc"}}, "names: expected streams of rings"),
        ({"/j/position": (3, "float64")}, {"stamp": "header"}, "stamp: expected 'auto' or 'log'"),
        ({"/j/position": (3, "float64")}, {"definition": "float64[ x"}, "schema: the definition of"),
        ({}, {}, "rings: expected {stream: Ring}"),
    ],
)
def test_invalid_plans_are_errors_before_the_first_message(rings, other_options, expected_message):
    live_rings = {name: Ring((size,), dtype, **SPAN) for name, (size, dtype) in rings.items()}
    options = {"names": {"/j/position": [*"abc"]} if "/j/position" in rings else {}, **other_options}
    with pytest.raises(robocache.errors.Error, match=expected_message):
        Topic("/j", JOINTS, live_rings, **options)


@pytest.mark.parametrize("schema", ["sensor_msgs/msg/Nothing", "x"])
def test_an_unknown_type_is_refused_with_a_hint(schema):
    with pytest.raises(robocache.errors.ArgumentError, match="schema: no definition of"):
        Topic("/j", schema, {"/j": Ring((3,), "float64", **SPAN)})


def test_names_choose_the_features_of_a_vector():
    name = "sensor_msgs/msg/Imu"
    names = ["angular_velocity.z", "orientation.w"]
    ring = Ring((2,), "float64", **SPAN)
    topic = Topic("/imu", name, {"/imu": ring}, names={"/imu": names})
    msg = message(name, header=header(START))
    msg.angular_velocity.z, msg.orientation.w = 3.0, 4.0
    topic.take(serialize(name, msg))
    assert topic.counts["taken"] == 1
    with pytest.raises(robocache.errors.ArgumentError, match=r"expected orientation\.x, .*got"):
        Topic("/imu", name, {"/imu": Ring((2,), "float64", **SPAN)}, names={"/imu": ["yaw", "pitch"]})
