"""In every format, values that a type, a name or a schema declares as a rotation or an angle are interpolated as such.

The oracle is scipy's Slerp.
"""

import json
from functools import partial

import numpy as np
import pytest
import test_ulog as ulog
from hdf5_files import make_droid, write_droid, write_robomimic
from lerobot_files import Episode, write_lerobot
from outcomes import reasons
from rlds_files import example, group, sequence, tensor, write_rlds
from robocache.feature_words import rotations_of
from robocache.ingest.methods import with_rotations
from robocache.ingest.recording import Notes, Rows
from ros_files import ROS1, START, header, message, write_bag1, write_channel, write_mcap
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from scipy.spatial.transform import Rotation, Slerp
from zarr_files import write_zarr

import robocache

ROWS, STEP = 9, 100_000_000
# A recorded clock of N rows.
N, FPS = 40, 20
TIMES_S = np.arange(N) / FPS + 0.001 * (np.arange(N) % 2)


@pytest.fixture
def quaternions():
    """Quaternions ``[n, 4]`` far apart, of both signs, not all of unit length."""
    q = Rotation.random(ROWS, random_state=7).as_quat()
    q[2] *= -1
    q[5] *= -3
    return q


def stamp(k):
    return START + k * STEP


def quaternion(q, store=None):
    return message(
        "geometry_msgs/msg/Quaternion", *([store] if store else []), **dict(zip("xyzw", q.tolist(), strict=True))
    )


def pose(q, k=0):
    point = message("geometry_msgs/msg/Point", x=float(k), y=2.0 * k, z=0.5)
    return message("geometry_msgs/msg/Pose", position=point, orientation=quaternion(q))


def check_rotation(dataset, quaternions, stream, starts, order=(0, 1, 2, 3), **window):
    """Asserts that blocks at `starts` are declared rotations, and interpolated as by scipy. order: the indices of x, y, z, w."""
    assert dataset[stream].attributes["methods"] == [[start, start + 4, "slerp"] for start in starts]
    offsets = [0.0, 0.031, 0.077]
    values = values_between(dataset, stream, offsets, ROWS, **window)
    expected = Slerp(np.arange(ROWS) * STEP / 1e9, Rotation.from_quat(quaternions))
    for start in starts:
        actual = values[..., start : start + 4][..., list(order)]
        np.testing.assert_allclose(np.linalg.norm(actual[:, 1:], axis=-1), 1, atol=1e-6)
        for k in range(ROWS - 1):
            difference = Rotation.from_quat(actual[k]) * expected(k * STEP / 1e9 + np.array(offsets)).inv()
            assert difference.magnitude().max() < 1e-6
    return values


def values_between(dataset, stream, offsets_s, n, **window):
    """Returns the loader's values at these times after each row but the last: ``[n - 1, offsets, features]``."""
    windows = {stream: robocache.Window(offsets_s, dtype="float64", **window)}
    loader = robocache.Loader(dataset, delta_timestamps=windows, anchors=stream, batch_size=n, shuffle=False)
    return np.asarray(next(loader)[stream])[: n - 1].reshape(n - 1, len(offsets_s), -1)


def ingest_and_open(source, tmp_path, **options):
    robocache.ingest(source, tmp_path / "cache", **options)
    return robocache.open(tmp_path / "cache")


def test_quaternions_in_messages_alone_and_in_poses(quaternions, tmp_path):
    def frames(k, q):
        name = "geometry_msgs/msg/TransformStamped"
        moved = message("geometry_msgs/msg/Transform", rotation=quaternion(q))
        transform = message(name, header=header(stamp(k), "map"), child_frame_id="base", transform=moved)
        return message("tf2_msgs/msg/TFMessage", transforms=[transform])

    fields = {
        "/imu": ("sensor_msgs/msg/Imu", lambda k, q: {"orientation": quaternion(q)}),
        "/pose": ("geometry_msgs/msg/PoseStamped", lambda k, q: {"pose": pose(q, k)}),
        "/turn": ("geometry_msgs/msg/QuaternionStamped", lambda k, q: {"quaternion": quaternion(q)}),
        "/odom": (
            "nav_msgs/msg/Odometry",
            lambda k, q: {"pose": message("geometry_msgs/msg/PoseWithCovariance", pose=pose(q, k))},
        ),
        "/poses": ("geometry_msgs/msg/PoseArray", lambda k, q: {"poses": [pose(q, k), pose(q, -k)]}),
    }
    topics = {}
    for topic, (kind, make_fields) in fields.items():
        messages = [message(kind, header=header(stamp(k)), **make_fields(k, q)) for k, q in enumerate(quaternions)]
        topics[topic] = (kind, [(stamp(k), sent) for k, sent in enumerate(messages)])
    topics["/tf"] = ("tf2_msgs/msg/TFMessage", [(stamp(k), frames(k, q)) for k, q in enumerate(quaternions)])
    topics["/robot/tf_static"] = topics["/tf"]
    quaternion_type = "geometry_msgs/msg/Quaternion"
    topics["/bare"] = (quaternion_type, [(stamp(k), quaternion(q)) for k, q in enumerate(quaternions)])
    dataset = ingest_and_open(write_mcap(tmp_path / "a.mcap", topics), tmp_path)
    for stream, start in {"/imu": 0, "/pose": 3, "/turn": 0, "/odom": 3, "/tf/map/base": 3, "/bare": 0}.items():
        values = check_rotation(dataset, quaternions, stream, [start])
        if stream == "/pose":
            np.testing.assert_allclose(values[:, 1, 0], np.arange(ROWS - 1) + 0.31)  # positions are linear
    static = dataset["/robot/tf_static/map/base"]
    assert static.attributes["methods"] == [[0, 7, "previous"]]  # valid until it is sent again
    assert dataset["/poses"].attributes["methods"] == [[3, 7, "slerp"]]  # in each element
    for stream in ("/imu/orientation_covariance", "/odom/pose.covariance", "/odom/twist.covariance"):
        assert "methods" not in dataset[stream].attributes


def test_quaternions_in_ros_1(quaternions, tmp_path):
    def make_imu(k, q):
        imu_header = header(stamp(k), store=ROS1)
        imu_header.seq = k
        return message("sensor_msgs/msg/Imu", ROS1, header=imu_header, orientation=quaternion(q, ROS1))

    messages = [(stamp(k), make_imu(k, q)) for k, q in enumerate(quaternions)]
    dataset = ingest_and_open(write_bag1(tmp_path / "a.bag", {"/imu": ("sensor_msgs/msg/Imu", messages)}), tmp_path)
    check_rotation(dataset, quaternions, "/imu", [0])


OWN_TEXT = f"\n{'=' * 80}\nMSG: ".join(
    [
        "geometry_msgs/Quaternion goal\ngeometry_msgs/Pose[2] pair\nVector4 gains\nfloat64 last",
        "geometry_msgs/Quaternion\nfloat64 x\nfloat64 y\nfloat64 z\nfloat64 w",
        "geometry_msgs/Pose\nPoint position\nQuaternion orientation",
        "geometry_msgs/Point\nfloat64 x\nfloat64 y\nfloat64 z",
        "own_msgs/Vector4\nfloat64 x\nfloat64 y\nfloat64 z\nfloat64 w\n",
    ]
)


def write_messages(tmp_path, kind, text, rows):
    """Writes an MCAP file of messages of a type of its own: `text` is its definition, `rows` the fields of each message."""
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg(text, kind))
    payloads = [(stamp(k), bytes(store.serialize_cdr(row(store.types), kind))) for k, row in enumerate(rows)]
    tmp_path.mkdir(exist_ok=True)
    return write_channel(tmp_path / "a.mcap", "cdr", (kind, "ros2msg", text.encode()), payloads)


def test_quaternions_in_custom_types(quaternions, tmp_path):
    """A field of any name with a quaternion's type, and poses in a fixed-length array. Four numbers of another type are no rotation."""

    def make_message(q, types):
        turn = types["geometry_msgs/msg/Quaternion"](*q)
        pose = types["geometry_msgs/msg/Pose"](types["geometry_msgs/msg/Point"](1.0, 2.0, 3.0), turn)
        return types["own_msgs/msg/Own"](turn, [pose, pose], types["own_msgs/msg/Vector4"](*q), 1.0)

    path = write_messages(tmp_path, "own_msgs/msg/Own", OWN_TEXT, [partial(make_message, q) for q in quaternions])
    values = check_rotation(ingest_and_open(path, tmp_path), quaternions, "data", [0, 7, 14])
    linear = quaternions[:-1] + 0.31 * (quaternions[1:] - quaternions[:-1])
    np.testing.assert_allclose(values[:, 1, 18:22], linear)


def test_a_message_of_one_array_has_its_fields_name(quaternions, tmp_path):
    kind = "own_msgs/msg/One"
    rows = [lambda types, q=q: types[kind](q) for q in quaternions]
    path = write_messages(tmp_path, kind, "float64[] quaternion\n", rows)
    check_rotation(ingest_and_open(path, tmp_path), quaternions, "data", [0])


def test_components_that_json_writes_as_integers(tmp_path):
    """A turn in the plane: x and y are 0 in all messages, but are no integers beside z and w."""
    half = np.linspace(0.1, 2.8, ROWS)
    quaternions = np.stack([np.zeros(ROWS), np.zeros(ROWS), np.sin(half), np.cos(half)], axis=1)
    rows = [
        {"position": {"x": k, "y": 0, "z": 0}, "orientation": {"x": 0, "y": 0, "z": q[2], "w": q[3]}, "count": k}
        for k, q in enumerate(quaternions.tolist())
    ]
    payloads = [(stamp(k), json.dumps(row).encode()) for k, row in enumerate(rows)]
    dataset = ingest_and_open(
        write_channel(tmp_path / "a.mcap", "json", ("own", "jsonschema", b"{}"), payloads), tmp_path
    )
    values = check_rotation(dataset, quaternions, "data", [3])
    np.testing.assert_allclose(values[:, 1, 0], np.arange(ROWS - 1) + 0.31)
    assert dataset["data/count"].dtype == np.int64


def test_a_sensor_without_a_rotation_gives_zeros(tmp_path):
    messages = [(stamp(k), message("sensor_msgs/msg/Imu", header=header(stamp(k)))) for k in range(ROWS)]
    dataset = ingest_and_open(write_mcap(tmp_path / "a.mcap", {"/imu": ("sensor_msgs/msg/Imu", messages)}), tmp_path)
    loader = robocache.Loader(dataset, delta_timestamps={"/imu": [0.03]}, batch_size=4)
    assert (np.asarray(next(iter(loader))["/imu"]) == 0).all()


def test_quaternions_of_px4_in_logs_and_messages(quaternions, tmp_path):
    """`q` has w first, and so have fields with q and a prefix or suffix; four numbers of a sensor are no rotation."""
    wxyz = np.ascontiguousarray(quaternions[:, [3, 0, 1, 2]], np.float32)
    rounded = wxyz.astype(np.float64)[:, [1, 2, 3, 0]]
    topic = "vehicle_attitude"
    rows = [ulog.data(0, 1000 + k * STEP // 1000, "12f", *q, *q, *q) for k, q in enumerate(wxyz)]
    format_message = ulog.format_message(
        f"{topic}:uint64_t timestamp;float[4] q;float[4] delta_q_reset;float[4] other;"
    )
    dataset = ingest_and_open(ulog.write_log(tmp_path, format_message, ulog.announce(0, topic), *rows), tmp_path)
    check_rotation(dataset, rounded, topic, [0, 4], order=(1, 2, 3, 0))
    kind = "px4_msgs/msg/VehicleAttitude"
    text = "uint64 timestamp\nfloat32[4] q\nfloat32[4] gains\n"
    messages = [lambda types, k=k, q=q: types[kind](k, q, q) for k, q in enumerate(wxyz)]
    dataset = ingest_and_open(write_messages(tmp_path / "ros", kind, text, messages), tmp_path / "ros")
    check_rotation(dataset, rounded, "data/q", [0], order=(1, 2, 3, 0))
    assert "methods" not in dataset["data/gains"].attributes


@pytest.mark.parametrize(
    ("header_line", "starts", "order"),
    [
        ("t,x,y,z,qx,qy,qz,qw", [3], (0, 1, 2, 3)),
        ("t,a,b,c,q_RS_w [],q_RS_x [],q_RS_y [],q_RS_z []", [3], (1, 2, 3, 0)),
        ("t,x,y,z,w,rx,ry,rz", [3], (1, 2, 3, 0)),
        ("t,x,y,z,rx,ry,rz,w", [3], (0, 1, 2, 3)),
        ("t,ee.x,ee.y,ee.z,ee.rz,ee.w,ee.rx,ee.ry", [3], (2, 3, 0, 1)),
        ("t,x [m],y [m],z [m],w [],qx [],qy [],qz []", [3], (1, 2, 3, 0)),
        ("t,x,y,z,rw,rx,ry,rz", [3], (1, 2, 3, 0)),
        ("t,a,b,c,qr,qi,qj,qk", [3], (1, 2, 3, 0)),
        ("t,a,b,c,qi_hand,qj_hand,qk_hand,qr_hand", [3], (0, 1, 2, 3)),
        ("t,a,b,c,qs,qx,qy,qz", [3], (1, 2, 3, 0)),
        ("t,a,b,c,pose.orientation.x,pose.orientation.y,pose.orientation.z,pose.orientation.w", [3], (0, 1, 2, 3)),
    ],
)
def test_columns_of_a_csv_log(header_line, starts, order, quaternions, tmp_path):
    columns = np.empty((ROWS, 4))
    columns[:, list(order)] = quaternions
    lines = [f"{k / 10:.1f},1,2,3,{','.join(map(repr, q))}" for k, q in enumerate(columns.tolist())]
    (tmp_path / "log.csv").write_text("\n".join([header_line, *lines, ""]))
    dataset = ingest_and_open(tmp_path / "log.csv", tmp_path, time_unit="s")
    check_rotation(dataset, quaternions, "log", starts, order)


@pytest.mark.parametrize(
    ("stream", "names", "shape", "spans"),
    [
        ("data", "R11 R12 R13 R21 R22 R23 R31 R32 R33", None, [(0, 9)]),
        ("data", "x r00 r10 r20 r01 r11 r21 g", None, [(1, 7)]),
        ("data", "r11 r12 r13 tx r21 r22 r23 ty r31 r32 r33 tz", None, [(0, 3), (4, 7), (8, 11)]),
        ("data", " ".join(f"T[{i},{j}]" for i in range(4) for j in range(4)), None, [(0, 16)]),
        ("data", "rot6d_0 rot6d_1 rot6d_2 rot6d_3 rot6d_4 rot6d_5 gripper", None, [(0, 6)]),
        ("robot0_eef_rot6d", "", (6,), [(0, 6)]),
        ("obs/ee_rotation_6d", "", (2, 6), [(0, 12)]),
        ("ee_rot_mat", "", (9,), [(0, 9)]),
        ("O_T_EE", "", (16,), [(0, 16)]),
        ("R", "", (3, 3), [(0, 9)]),
        ("T_WC", "", (4, 4), [(0, 16)]),
        ("site_xmat", "", (5, 9), [(0, 45)]),
        ("data", "j11 j12 j13 j21 j22 j23", None, []),
        ("data", "r11 r12 r13", None, []),
        ("cov_matrix", "", (9,), []),
        ("joint_pos", "", (9,), []),
        ("action_t", "", (16,), []),
        ("action_t", "", (4, 4), []),
        ("observation/head_camera/cam2world_gl", "", (4, 4), [(0, 16)]),  # ManiSkill and RoboTwin
        ("extrinsic_cv", "", (3, 4), [(0, 12)]),
        ("rotation", "", (3, 3), [(0, 9)]),
        ("datagen_info/object_poses/cube", "", (4, 4), [(0, 16)]),  # MimicGen and Isaac Lab
        ("object_poses/mask", "", (4, 5), []),
        ("rotation_covariance", "", (3, 3), []),
        ("tactile", "", (4, 4), []),
        ("base_rotation_matrix", "", (4, 4), [(0, 16)]),
        ("ee_orientation_6d", "", (6,), [(0, 6)]),
        ("6DRotation", "", (6,), [(0, 6)]),
        # Words inside other words.
        ("carrot_6d", "", (6,), []),
        ("protocol_6d", "", (6,), []),
        ("rotor_force_6d", "", (6,), []),
        ("carrot_vec", "", (3,), []),
        ("data", "carrot_6d_0 carrot_6d_1", None, []),
        ("pose_weights", "rot6d_0 rot6d_1 rot6d_2 rot6d_3 rot6d_4 rot6d_5", None, []),
    ],
)
def test_matrices_and_6d_rotations_are_held_by_their_names(stream, names, shape, spans):
    names = names.split()
    assert read_methods("npz", stream, names, shape or (len(names),)) == [[a, b, "previous"] for a, b in spans]


def read_methods(format, stream, names, shape):
    """Returns the methods that ingest finds for a stream."""
    rows = Rows(np.arange(2), np.zeros((2, *shape)), names or None)
    ((_, samples),) = with_rotations([(stream, rows)], Notes(format, {}, "stop"))
    return samples.attributes.get("methods", [])


@pytest.mark.parametrize(
    ("header_line", "order"),
    [
        ("t,qw,px,qx,py,qy,pz,qz", "wxyz"),
        ("t,qx,a,b,qz,c,qy,qw", "xzyw"),
        ("t,qx_body,a,qz_body,b,qy_body,c,qw_body", "xzyw"),
        ("t,a,pose.orientation.x,pose.orientation.y,b,pose.orientation.z,pose.orientation.w,c", "xyzw"),
    ],
)
def test_scattered_columns_of_a_rotation_are_put_side_by_side(header_line, order, quaternions, tmp_path):
    names = header_line.split(",")[1:]
    components = dict(zip("xyzw", quaternions.T, strict=True))
    columns = []
    for k, name in enumerate(names):
        letter = name[1] if name[0] == "q" else name[-1] if "." in name else ""
        columns.append(components.get(letter, np.full(ROWS, float(k))))
    rows = [f"{k / 10:.1f},{','.join(map(repr, row))}" for k, row in enumerate(np.transpose(columns).tolist())]
    (tmp_path / "log.csv").write_text("\n".join([header_line, *rows, ""]))
    report = robocache.ingest(tmp_path / "log.csv", tmp_path / "cache", time_unit="s")
    assert "side by side" in reasons(report.left_out)["log: the order of columns"]
    dataset = robocache.open(tmp_path / "cache")
    stream = dataset["log"]
    first = next(k for k, name in enumerate(names) if "q" in name or "." in name)
    assert [name.removesuffix("_body")[-1] for name in stream.names[first : first + 4]] == list(order)
    for k, name in enumerate(names):
        np.testing.assert_array_equal(stream.values[:, stream.names.index(name)], columns[k])
    check_rotation(dataset, quaternions, "log", [first], [order.index(letter) for letter in "xyzw"])


def write_state(root, state, names):
    """Writes a LeRobot dataset of one episode with named features."""
    features = {"observation.state": {"dtype": "float32", "shape": [len(names)], "names": names}}
    return write_lerobot(root, [Episode({"observation.state": state.astype(np.float32)})], features=features)


def test_a_rotation_of_scattered_features_is_noted(quaternions, tmp_path):
    names = ["qx", "qy", "gripper", "qz", "qw"]
    source = write_state(tmp_path / "set", np.insert(quaternions, 2, 0.5, axis=1), names)
    report = robocache.ingest(source, tmp_path / "cache")
    reason = reasons(report.left_out)["observation.state: a rotation"]
    assert "qx [0], qy [1], qz [3], qw [4] are not adjacent" in reason
    assert robocache.open(tmp_path / "cache")["observation.state"].names == names


def test_declared_names_in_other_formats(quaternions, rng, tmp_path):
    demo = {"actions": rng.normal(size=(ROWS, 7)), "obs/robot0_eef_quat": quaternions, "obs/object": quaternions}
    dataset = ingest_and_open(write_robomimic(tmp_path / "hdf5/a.hdf5", {"demo_0": demo}), tmp_path / "hdf5")
    assert dataset["obs/robot0_eef_quat"].attributes["methods"] == [[0, 4, "slerp"]]
    assert "methods" not in dataset["obs/object"].attributes

    bodies = np.stack([quaternions, quaternions, quaternions], axis=1).astype(np.float32)
    np.savez(tmp_path / "motion.npz", fps=50, body_quat_w=bodies, joint_pos=quaternions, body_ang_vel_w=bodies[..., :3])
    dataset = ingest_and_open(tmp_path / "motion.npz", tmp_path / "npz")
    assert dataset["body_quat_w"].attributes["methods"] == [[a, a + 4, "slerp"] for a in (0, 4, 8)]
    assert "methods" not in dataset["joint_pos"].attributes
    with pytest.raises(robocache.ArgumentError, match="clock is nominal"):  # values between rows were not requested
        robocache.Loader(dataset, delta_timestamps={"body_quat_w": [0.01]}, batch_size=4)

    state = np.concatenate([np.zeros((ROWS, 3)), quaternions], axis=1)
    source = write_state(tmp_path / "set", state, ["x", "y", "z", "qx", "qy", "qz", "qw"])
    assert ingest_and_open(source, tmp_path)["observation.state"].attributes["methods"] == [[3, 7, "slerp"]]


def test_a_mapping_and_the_loader_precede_declarations(quaternions, tmp_path):
    messages = [
        (stamp(k), message("sensor_msgs/msg/Imu", header=header(stamp(k)), orientation=quaternion(q)))
        for k, q in enumerate(quaternions)
    ]
    path = write_mcap(tmp_path / "a.mcap", {"/imu": ("sensor_msgs/msg/Imu", messages)})
    mapping = tmp_path / "m.toml"
    mapping.write_text('[streams."/imu"]\nmethods = [[0, 4, "previous"]]\n')
    dataset = ingest_and_open(path, tmp_path, mapping=mapping)
    assert dataset["/imu"].attributes["methods"] == [[0, 4, "previous"]]
    values = values_between(ingest_and_open(path, tmp_path / "plain"), "/imu", [0.05], ROWS, method="linear")
    np.testing.assert_allclose(values[:, 0, :4], (quaternions[:-1] + quaternions[1:]) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("stream", "names", "shape", "starts"),
    [
        ("s", ["Q_W", "Q_X", "Q_Y", "Q_Z"], (4,), [0]),
        ("s", ["left_qx", "left_qy", "left_qz", "left_qw", "grip"], (5,), [0]),
        ("s", ["a_quat_0", "a_quat_1", "a_quat_2", "a_quat_3"], (4,), [0]),
        ("s", ["eefQuatX", "eefQuatY", "eefQuatZ", "eefQuatW"], (4,), [0]),
        ("s", ["Orientation X (-)", "Orientation Y (-)", "Orientation Z (-)", "Orientation W (-)"], (4,), [0]),
        ("s", [f"t{c}_world_device" for c in "xyz"] + [f"q{c}_world_device" for c in "xyzw"], (7,), [3]),
        ("s", [f"{c}_orientation_imu" for c in "wxyz"], (4,), [0]),
        ("s", [f"quat_{c}_1" for c in "xyzw"] + [f"quat_{c}_2" for c in "xyzw"], (8,), [0, 4]),
        ("s", [f"max_q [{c}]" for c in "xyzw"], (4,), [0]),
        ("s", [f"q{c}_rate" for c in "xyzw"], (4,), []),
        ("s", ["x_world", "y_world", "z_world", "w_world"], (4,), []),
        ("s", ["qx_a", "qy_b", "qz_a", "qw_b"], (4,), []),
        ("s", ["x", "y", "z", "w"], (4,), []),
        ("s", ["q0", "q1", "q2", "q3"], (4,), []),  # may also be positions of joints
        ("s", ["color.x", "color.y", "color.z", "color.w"], (4,), []),
        ("s", ["quat_vel_x", "quat_vel_y", "quat_vel_z", "quat_vel_w"], (4,), []),
        ("s", ["ax_qx", "b_qy", "c_qz", "d_qw"], (4,), []),
        ("s", [f"quat[{i}]" for i in range(8)], (8,), []),
        ("obs/eef_quat", [], (4,), [0]),
        ("obs/eef_quat", [], (2, 4), [0, 4]),
        ("obs/eef_quat", [], (3,), []),
        ("obs/wheel_rotation", [], (4,), []),
        ("body_rotations", [], (3, 4), [0, 4, 8]),
        ("s", ["x", "y", "z", "rx", "ry", "rz", "rw", "gripper"], (8,), [3]),
        ("s", ["TX", "TY", "TZ", "RX", "RY", "RZ", "RW"], (7,), [3]),
        ("s", ["x", "y", "z", "ow", "ox", "oy", "oz"], (7,), [3]),
        ("quat/joints", [], (4,), []),
        ("data/robot_0_tcp_xyz_wxyz", [], (7,), [3]),
        ("robot0_eef_pose_xyzw", [], (7,), [3]),
        ("tcp_pose_quat_wxyz", [], (7,), [3]),
        ("eefPosQuat", [], (7,), [3]),
        ("quat_pos", [], (7,), [0]),
        ("pos_quat_gripper", [], (16,), [3, 11]),
        ("tcp_pose_xyzw", [], (8,), [3]),
        ("arm_poses.pose_xyzw", [], (2, 7), [3, 10]),
        ("tcp_wxyz", [], (4,), [0]),
        ("log", [f"tcp_pose_quat_wxyz_{i}" for i in range(7)] + ["g"], (8,), [3]),
        ("log", ["g", *(f"tcp_xyzw[{i}]" for i in range(4))], (5,), [1]),
        ("position_xyzw", [], (4,), []),
        ("points_xyzw", [], (10, 4), []),
        ("obs/pointcloud/xyzw", [], (10, 4), []),  # ManiSkill: homogeneous points
        ("states.end.orientation", [f"{side}_{c}" for side in ("left", "right") for c in "xyzw"], (8,), [0, 4]),
        ("states.end.position", [f"{side}_{c}" for side in ("left", "right") for c in "xyzw"], (8,), []),
        ("orientation", ["vel_x", "vel_y", "vel_z", "vel_w", "t"], (5,), []),
        ("tcp_pose", [], (7,), []),
        ("tcp_xyz_wxyz_vel", [], (7,), []),
        ("tcp_pose_xyzw", [], (9,), []),
        ("pose.orientation", [], (4,), [0]),
        ("object_rot", [], (4,), [0]),
        ("base_rotation", [], (4,), [0]),
        ("log", [f"imu.orientation[{i}]" for i in range(4)], (4,), [0]),
        ("orientation_error", [], (4,), []),
        ("rotation_speed", [], (4,), []),
        ("quat_velocities", [], (4,), []),
        ("quat_speeds", [], (4,), []),
        ("orientation_accelerations", [], (2, 4), []),
        ("action_mask", ["x", "y", "z", "qx", "qy", "qz", "qw"], (7,), []),
        ("stateStd", ["x", "y", "z", "qx", "qy", "qz", "qw"], (7,), []),
        ("robot_status", ["x", "y", "z", "qx", "qy", "qz", "qw"], (7,), [3]),
        ("quat_torques", [], (4,), []),
        ("orientation_valid", [], (4,), []),
        ("torque_sensor_quat", [], (4,), [0]),
        *(
            ("s", [f"{stem}_{c}" for c in "xyzw"], (4,), [0] if is_rotation else [])
            for stem, is_rotation in (
                *(("r_torque", False), ("r_hand", False), ("q_speed", False), ("o_gripper", False)),
                *(("quat_torque", False), ("orientation_weight", False), ("rotation_count", False)),
                *(
                    ("q", True),
                    ("world_q", True),
                    ("force_sensor_quat", True),
                    ("r_hand_q", True),
                    ("weight_orn", True),
                ),
            )
        ),
        *(
            ("s", [f"{stem}_{k}" for k in range(4)], (4,), [0] if is_rotation else [])
            for stem, is_rotation in (
                *(("leg_orientation", False), ("wheel_ori", False), ("attitude_control", False), ("quat_valid", False)),
                *(("attitude", True), ("body_orientation", True), ("leg_quat", True)),
            )
        ),
        ("rotation_axis_angle", [], (4,), []),  # the axis, then the angle
        ("rotVec", [], (4,), []),
        ("data", ["x", "y", "z", "l", "h", "w", "rx", "ry", "rz"], (9,), []),  # a box and its three angles
        ("data", ["x", "y", "z", "w", "vx", "vy", "vz"], (7,), []),
        ("data", ["qr", "qi", "qj"], (3,), []),
        ("data", ["w", "left.rx", "left.ry", "left.rz"], (4,), []),
    ],
)
def test_rotations_are_found_by_names(stream, names, shape, starts):
    assert rotations_of(stream, names, shape) == [[start, start + 4, "slerp"] for start in starts]


@pytest.mark.parametrize(
    ("names", "methods"),
    [
        (["axis_angle1", "axis_angle2", "axis_angle3"], [[3, 6, "previous"]]),
        (["rotvec[1]", "rotvec[2]", "rotvec[3]"], [[3, 6, "previous"]]),
        (["axis_angle_0", "axis_angle_1", "axis_angle_2"], [[3, 6, "previous"]]),
        (["rx", "ry", "rz"], [[3, 6, "previous"]]),
        (["wx", "wy", "wz"], [[3, 6, "previous"]]),
        (["rot_x", "rot_y", "rot_z"], [[3, 6, "previous"]]),
        (["vx", "wy", "wz"], None),
        (["wx", "wy", "gripper"], None),
    ],
)
def test_rotation_vectors_after_a_position_are_held(names, methods, rng, tmp_path):
    """Names in LeRobot's LIBERO datasets, its kinematics, and other converters."""
    source = write_state(tmp_path / "set", rng.normal(size=(8, 7)), ["x", "y", "z", *names, "gripper2"])
    assert ingest_and_open(source, tmp_path)["observation.state"].attributes.get("methods") == methods


@pytest.mark.parametrize("prefix", ["ee.", "left_ee."])
@pytest.mark.parametrize("with_speeds", [False, True])
def test_wx_beside_a_position_is_a_rotation_vector_and_beside_a_velocity_a_speed(prefix, with_speeds, rng, tmp_path):
    names = [f"{prefix}{part}" for part in (*"xyz", "wx", "wy", "wz", *(("vx", "vy", "vz") if with_speeds else ()))]
    source = write_state(tmp_path / "set", rng.normal(size=(8, len(names))), names)
    report = robocache.ingest(source, tmp_path / "cache")
    stream = robocache.open(tmp_path / "cache")["observation.state"]
    assert stream.attributes.get("methods") == (None if with_speeds else [[3, 6, "previous"]])
    assert len([note for note in report.assumed if "rotation vector" in note.reason]) == (0 if with_speeds else 1)


def write_timed_zarr(store, arrays):
    """Writes a store whose rows have a clock."""
    rows = len(next(iter(arrays.values())))
    return write_zarr(store, arrays | {"timestamp": np.arange(rows) * STEP / 1e9})


def test_npz_and_zarr(quaternions, tmp_path):
    arrays = {"action": np.arange(2.0 * ROWS).reshape(ROWS, 2), "robot0_eef_quat": quaternions}
    np.savez(tmp_path / "run.npz", fps=10, **arrays)
    from_zarr = ingest_and_open(write_timed_zarr(tmp_path / "store.zarr", arrays), tmp_path / "zarr")
    check_rotation(from_zarr, quaternions, "robot0_eef_quat", [0])
    for dataset in (from_zarr, ingest_and_open(tmp_path / "run.npz", tmp_path / "npz")):
        assert dataset["robot0_eef_quat"].attributes["methods"] == [[0, 4, "slerp"]]
        assert "methods" not in dataset["action"].attributes


def test_rlds(quaternions, tmp_path):
    """Rotations are found by the names of features at any depth; four joints are no rotation."""
    states = np.concatenate([np.zeros((ROWS, 3)), quaternions], axis=1)
    lists = {
        "steps/action": np.zeros(ROWS * 2, np.float32),
        "steps/observation/eef_quat": quaternions.astype(np.float32),
        "steps/observation/arm/pose_quaternion": quaternions.astype(np.float32),
        "steps/observation/joints": quaternions.astype(np.float32),
        "steps/observation/state": states.astype(np.float32),
    }
    arm = group(pose_quaternion=tensor("float32", 4))
    observation = group(eef_quat=tensor("float32", 4), arm=arm, joints=tensor("float32", 4), state=tensor("float32", 7))
    features = group(steps=sequence(group(action=tensor("float32", 2), observation=observation)))
    write_rlds(tmp_path / "toy", {"train": [[example(lists)]]}, features)
    dataset = ingest_and_open(tmp_path / "toy", tmp_path, rate_hz=10)
    for name in ("observation/eef_quat", "observation/arm/pose_quaternion"):
        assert dataset[name].attributes["methods"] == [[0, 4, "slerp"]]
        np.testing.assert_allclose(dataset[name].values, quaternions, rtol=1e-6)
    for name in ("observation/joints", "observation/state", "action"):
        assert "methods" not in dataset[name].attributes
    check_rotation(dataset, quaternions.astype(np.float32), "observation/eef_quat", [0], method="slerp")


# ---- angles and rotation vectors ----


def wrap(angles):
    return (angles + np.pi) % (2 * np.pi) - np.pi


def turning_angles(n=N):
    """Angles ``[n]`` that cross half a turn twice, 0.2 rad a row."""
    return wrap(2.0 + 0.2 * np.arange(n))


def value_after(dataset, stream, offset_s, feature, n):
    return values_between(dataset, stream, [offset_s], n)[:, 0, feature]


def check_angle(dataset, stream, feature, angles, step_s):
    """Asserts that between rows the angle goes the shorter way, within [-pi, pi)."""
    n = len(angles)
    actual = value_after(dataset, stream, step_s / 4, feature, n)
    expected = np.unwrap(angles)[:-1] + np.diff(np.unwrap(angles)) / 4
    np.testing.assert_allclose(np.abs(wrap(actual - expected)), 0, atol=1e-5)
    assert (np.abs(actual) <= np.pi + 1e-6).all()


def check_held(dataset, stream, features, values, step_s):
    for feature, column in zip(features, np.transpose(values), strict=True):
        np.testing.assert_array_equal(value_after(dataset, stream, step_s / 4, feature, len(values)), column[:-1])


def test_euler_poses_of_droid(rng, tmp_path):
    trajectory = make_droid(rng, N)
    pose = np.stack([*rng.random((3, N)), turning_angles(), turning_angles() / 3, turning_angles()], axis=1)
    trajectory["observation/robot_state/cartesian_position"] = pose
    trajectory["action/cartesian_position"] = trajectory["action/target_cartesian_position"] = pose
    for stamps in [key for key in trajectory if key.startswith("observation/timestamp/")]:
        trajectory[stamps] = trajectory[stamps][0] + 60 * np.arange(N)
    dataset = ingest_and_open(write_droid(tmp_path / "source", trajectory), tmp_path, video=False)
    for stream in ("observation/robot_state/cartesian_position", "action/cartesian_position"):
        assert dataset[stream].attributes["methods"] == [[3, 6, "angle"]]
        check_angle(dataset, stream, 3, pose[:, 3], 0.06)
        check_angle(dataset, stream, 5, pose[:, 5], 0.06)
        np.testing.assert_allclose(value_after(dataset, stream, 0.03, 0, N), (pose[1:, 0] + pose[:-1, 0]) / 2)
    extrinsics = [name for name in dataset.streams if name.startswith("observation/camera_extrinsics/")]
    assert extrinsics and all(dataset[name].attributes["methods"] == [[3, 6, "angle"]] for name in extrinsics)


def write_jittered(root, *states, name="observation.state", **columns):
    """Writes a LeRobot dataset with an episode for each state, and a recorded clock."""
    episodes = [Episode({name: state.astype(np.float32)} | columns, timestamp=TIMES_S) for state in states]
    return write_lerobot(root, episodes, fps=FPS)


def test_gr00ts_declared_rotations(tmp_path):
    vectors = Rotation.from_euler("z", turning_angles()[:, None]).as_rotvec()
    matrices = Rotation.from_rotvec(vectors).as_matrix().reshape(N, 9)[:, :6]
    euler = np.stack([turning_angles(), turning_angles() / 3, turning_angles()], axis=1)
    state = np.concatenate([euler, vectors, matrices], axis=1)
    source = write_jittered(tmp_path / "source", state, action=state.astype(np.float32))
    kinds = {"euler": (0, 3, "euler_angles_rpy"), "vector": (3, 6, "axis_angle"), "six": (6, 12, "rotation_6d")}
    parts = {name: {"start": a, "end": b, "rotation_type": kind} for name, (a, b, kind) in kinds.items()}
    report = robocache.ingest(source, tmp_path / "cache", mapping={"state": parts, "action": parts})
    dataset = robocache.open(tmp_path / "cache")
    methods = {name: dataset[f"state.{name}"].attributes["methods"] for name in parts}
    assert methods == {"euler": [[0, 3, "angle"]], "vector": [[0, 3, "previous"]], "six": [[0, 6, "previous"]]}
    held_parts = {omission.what for omission in report.left_out if "no method" in omission.reason}
    assert held_parts == {
        f"{part}.{name}: values between rows" for part in ("state", "action") for name in ("vector", "six")
    }
    actual = value_after(dataset, "state.euler", 0.02, 0, N)
    expected = np.interp(TIMES_S[:-1] + 0.02, TIMES_S, np.unwrap(euler[:, 0]))
    np.testing.assert_allclose(wrap(actual - expected), 0, atol=1e-5)


@pytest.mark.parametrize(
    ("start", "end", "rotation_type", "methods", "reason"),
    [
        (0, 4, "QUATERNION", [[0, 4, "slerp"]], None),
        (4, 7, "Euler_Angles_RPY", [[0, 3, "angle"]], None),
        (7, 10, "gibbs", [[0, 3, "previous"]], "rotation_type 'gibbs' is none of quaternion, euler_angles_rpy"),
        (4, 5, None, None, None),
    ],
)
def test_gr00ts_rotation_types_in_any_case(start, end, rotation_type, methods, reason, tmp_path):
    quaternions = Rotation.from_euler("z", turning_angles()[:, None]).as_quat()
    state = np.concatenate([quaternions, np.stack([turning_angles()] * 3, axis=1), quaternions[:, :3]], axis=1)
    source = write_jittered(tmp_path / "source", state)
    mapping = {"state": {"part": {"start": start, "end": end, "rotation_type": rotation_type}}}
    report = robocache.ingest(source, tmp_path / "cache", mapping=mapping)
    dataset = robocache.open(tmp_path / "cache")
    assert dataset["state.part"].attributes.get("methods") == methods
    held_reasons = [note.reason for note in report.left_out if "held" in note.reason]
    assert len(held_reasons) == (1 if reason is not None else 0) and all(reason in text for text in held_reasons)
    if rotation_type == "QUATERNION":
        angles_between = np.interp(TIMES_S[:-1] + 0.02, TIMES_S, np.unwrap(turning_angles()))
        expected = Rotation.from_euler("z", angles_between[:, None]).as_quat()
        actual = values_between(dataset, "state.part", [0.02], N)[:, 0]
        np.testing.assert_allclose(np.abs(actual), np.abs(expected), atol=1e-4)


@pytest.mark.parametrize("units", [None, "deg"])
def test_euler_angles_of_gr00t_in_degrees_are_held(tmp_path, units):
    """angle interpolation is in radians, so degrees would pass through wrong angles."""
    degrees = np.rad2deg(turning_angles()) if units is None else np.linspace(0, 5, N)
    source = write_jittered(tmp_path / "source", np.stack([degrees] * 3, axis=1))
    field = {"start": 0, "end": 3, "rotation_type": "euler_angles_rpy"} | ({"units": units} if units else {})
    report = robocache.ingest(source, tmp_path / "cache", mapping={"state": {"rpy": field}})
    dataset = robocache.open(tmp_path / "cache")
    assert dataset["state.rpy"].attributes["methods"] == [[0, 3, "previous"]]
    np.testing.assert_array_equal(value_after(dataset, "state.rpy", 0.02, 0, N), degrees[:-1].astype(np.float32))
    assert [note for note in report.assumed if "degrees have no method" in note.reason]


@pytest.mark.parametrize(
    ("part", "rotation_type", "names"),
    [
        ("rpy", "euler_angles_deg", ["a", "b", "c"]),
        ("rpyDeg", "euler_angles_rpy", ["a", "b", "c"]),
        ("rpy", "euler_angles_rpy", ["roll_deg", "pitch_deg", "yaw_deg"]),
        ("rpy", "euler_angles_rpy", ["rollMrad", "pitchMrad", "yawMrad"]),
    ],
)
def test_euler_angles_of_gr00t_in_another_unit_by_name_are_held(part, rotation_type, names, tmp_path):
    source = write_state(tmp_path / "source", np.stack([np.linspace(0, 5, ROWS)] * 3, axis=1), names)
    field = {"start": 0, "end": 3, "rotation_type": rotation_type}
    robocache.ingest(source, tmp_path / "cache", mapping={"state": {part: field}})
    methods = robocache.open(tmp_path / "cache")[f"state.{part}"].attributes["methods"]
    assert methods == [[0, 3, "previous"]]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("declared_by", ["modality.json", "DROID"])
def test_angles_are_decided_by_all_episodes(declared_by, workers, tmp_path):
    name = "observation.state.cartesian_position"
    states = [np.tile(np.linspace(0, largest, N)[:, None], (1, 6)) for largest in (3.0, 170.0, 2.0)]
    source = write_jittered(tmp_path / "source", *states, name=name)
    options = {"workers": workers}
    if declared_by == "modality.json":
        field = {"start": 3, "end": 6, "rotation_type": "euler_angles_rpy", "original_key": name}
        options["mapping"], name = {"state": {"rpy": field}}, "state.rpy"
    report = robocache.ingest(source, tmp_path / "cache", **options)
    methods = robocache.open(tmp_path / "cache")[name].attributes.get("methods")
    assert methods == ([[0, 3, "previous"]] if declared_by == "modality.json" else None)
    assert not any("which are kept" in note.reason for note in report.left_out)
    assert [note for note in report.assumed if "up to 170" in note.reason]


def test_degrees_are_refused_as_angles(tmp_path):
    (tmp_path / "log.csv").write_text("t,yaw_deg\n" + "".join(f"{k / 10},{350 + k}\n" for k in range(20)))
    mapping = {"streams": {"log": {"units": "deg", "methods": "angle"}}}
    with pytest.raises(robocache.Error, match="angle takes radians, got units 'deg'"):
        ingest_and_open(tmp_path / "log.csv", tmp_path, time_unit="s", mapping=mapping)
    dataset = ingest_and_open(tmp_path / "log.csv", tmp_path, time_unit="s")
    for method in ("angle", [(slice(0, 1), "angle")]):
        windows = {"log": robocache.Window([0.01], method=method)}
        with pytest.raises(robocache.ArgumentError, match=r"method: expected radians for 'angle', got 'yaw_deg'"):
            robocache.Loader(dataset, batch_size=4, delta_timestamps=windows, findings=None)


@pytest.mark.parametrize(
    ("name", "attributes", "got"),
    [
        ("yawDeg", {}, "yawDeg"),
        ("HeadingDegrees", {}, "HeadingDegrees"),
        ("yaw_mrad", {}, "yaw_mrad"),
        ("yaw", {"units": "mrad"}, "mrad"),
        ("yaw", {"units": ["grad"]}, "grad"),
        ("yaw", {"units": "turns"}, "turns"),
        ("yaw", {"unit": "deg"}, "deg"),
        ("yaw", {"angleUnit": "deg"}, "deg"),
        ("yaw", {"angle_units": "gradians"}, "gradians"),
        ("yaw", {"rotation_units": "degrees"}, "degrees"),
        ("yaw", {"useDegrees": True}, "useDegrees"),
        ("yaw", {"is_rad": False}, "is_rad"),
        ("yaw", {"in_degrees": 1}, "in_degrees"),
        ("yaw", {"in_radians": "true"}, ""),
        ("yaw", {"rectangle_unit": "deg"}, ""),
        ("yaw", {"camera_fov_unit": "deg"}, ""),
        ("yaw", {"units": "rad"}, ""),
        ("degrees_of_freedom_1", {}, ""),
        ("polygon_gradient", {}, ""),
        ("angle_at_temp_degC", {}, ""),
    ],
)
def test_other_units_than_radians_are_refused_as_angles(name, attributes, got, tmp_path):
    with robocache.Writer(tmp_path / "c") as writer, writer.episode() as episode:
        writer.stream("s", names=[name], attributes=attributes)
        episode.append("s", np.arange(10) * STEP, np.linspace(0, 1, 10)[:, None])
    windows = {"s": robocache.Window([0.01], method="angle")}

    def load():
        return next(robocache.Loader(tmp_path / "c", batch_size=4, delta_timestamps=windows, findings=None))

    if not got:
        assert np.isfinite(np.asarray(load()["s"])).all()
        return
    with pytest.raises(robocache.ArgumentError, match=f"method: expected radians for 'angle', got '{got}'"):
        load()


@pytest.mark.parametrize("unit", ["mrad", "grad", "turns", "\N{DEGREE SIGN}"])
def test_a_mapping_to_angles_of_other_units_is_refused(unit, tmp_path):
    (tmp_path / "log.csv").write_text("t,yaw\n" + "".join(f"{k / 10},{k}\n" for k in range(20)))
    mapping = {"streams": {"log": {"units": unit, "methods": "angle"}}}
    with pytest.raises(robocache.Error, match="angle takes radians, got units"):
        ingest_and_open(tmp_path / "log.csv", tmp_path, time_unit="s", mapping=mapping)


def test_rotation_vectors_of_umi_and_diffusion_policy_are_held(rng, tmp_path):
    vectors = Rotation.from_euler("z", turning_angles()[:, None]).as_rotvec()
    pose = np.concatenate([rng.random((N, 3)), vectors], axis=1)
    axis_angle_stream = "robot0_eef_rot_axis_angle"
    arrays = {"robot_eef_pose": pose, "action": pose, axis_angle_stream: vectors, "robot0_eef_pos": pose[:, :3]}
    report = robocache.ingest(write_timed_zarr(tmp_path / "store.zarr", arrays), tmp_path / "cache")
    dataset = robocache.open(tmp_path / "cache")
    for stream in ("robot_eef_pose", "action"):
        check_held(dataset, stream, (3, 4, 5), vectors, 0.1)
        np.testing.assert_allclose(value_after(dataset, stream, 0.05, 0, N), (pose[1:, 0] + pose[:-1, 0]) / 2)
    check_held(dataset, axis_angle_stream, (0, 1, 2), vectors, 0.1)
    assert "methods" not in dataset["robot0_eef_pos"].attributes
    assert reasons(report.left_out).keys() >= {
        f"{name}: values between rows" for name in ("robot_eef_pose", axis_angle_stream)
    }


def test_actions_without_a_pose_are_numbers(rng, tmp_path):
    source = write_timed_zarr(tmp_path / "store.zarr", {"action": rng.random((40, 6))})
    assert "methods" not in ingest_and_open(source, tmp_path)["action"].attributes


def test_arrays_named_as_position_and_quaternion_are_interpolated_as_poses(quaternions, tmp_path):
    poses = np.concatenate([np.zeros((ROWS, 3)), quaternions[:, [3, 0, 1, 2]]], 1)
    source = write_timed_zarr(tmp_path / "a.zarr", {"tcp_xyz_wxyz": poses})
    check_rotation(ingest_and_open(source, tmp_path), quaternions, "tcp_xyz_wxyz", [3], (1, 2, 3, 0))


def test_rotations_declared_only_by_names_are_noted():
    def read_assumptions(stream, names, width, **attributes):
        notes = Notes("csv", {}, "stop")
        rows = Rows(np.arange(2), np.zeros((2, width)), names, attributes=attributes)
        list(with_rotations([(stream, rows), (f"{stream}/b", rows)], notes))
        return [(note.what, note.reason, note.streams) for note in notes.assumed]

    both_streams = ["pose", "pose/b"]
    names = ["x", "qx", "qy", "qz", "qw"]
    assert read_assumptions("pose", names, 5) == [("qx to qw", "a quaternion, by name", both_streams)]
    assert read_assumptions("pose", names, 5, methods=[[1, 5, "slerp"]]) == []
    assert read_assumptions("imu_quat", None, 4)[0] == ("imu_quat", "a quaternion, by name", ["imu_quat"])
    assert read_assumptions("pose", ["rotvec_x", "rotvec_y", "rotvec_z"], 3) == [
        ("rotvec_x to rotvec_z", "a rotation vector, Euler angles or a matrix, which is held, by name", both_streams)
    ]
    px4 = {"methods": [[0, 1, "angle"]], "schema": "px4_msgs/msg/VehicleLocalPosition"}
    assert read_assumptions("pose", ["heading", "x"], 2, **px4) == [
        ("heading", "an angle in radians, by name", both_streams)
    ]
    assert read_assumptions("pose", ["theta", "x"], 2, methods=[[0, 1, "angle"]], schema="turtlesim/msg/Pose") == []


def test_angles_in_px4_logs(tmp_path):
    angles = turning_angles()
    messages = [
        ulog.format_message(
            "vehicle_local_position:uint64_t timestamp;float x;float heading;float delta_heading;bool heading_good;"
        ),
        ulog.announce(0, "vehicle_local_position"),
        ulog.format_message("vehicle_rates_setpoint:uint64_t timestamp;float roll;float yaw;"),
        ulog.announce(1, "vehicle_rates_setpoint"),
    ]
    for k, angle in enumerate(angles):
        messages.append(ulog.data(0, 1000 + k * 100_000, "fff?", k, angle, angle, True))
        messages.append(ulog.data(1, 1000 + k * 100_000, "ff", 9.0 * k, -9.0 * k))
    dataset = ingest_and_open(ulog.write_log(tmp_path, *messages), tmp_path)
    check_angle(dataset, "vehicle_local_position", 1, angles, 0.1)
    check_angle(dataset, "vehicle_local_position", 2, angles, 0.1)  # a delta of headings is an angle
    assert dataset.streams["vehicle_local_position"].attributes["methods"] == [[1, 3, "angle"], [3, 4, "previous"]]
    assert "methods" not in dataset.streams["vehicle_rates_setpoint"].attributes  # rad/s, beyond pi


@pytest.mark.parametrize(
    ("topic", "field"),
    [
        ("estimator_innovation_test_ratios", "heading"),
        ("estimator_innovation_variances", "heading"),
        ("estimator_innovations", "heading"),
        ("tecs_status", "pitch_integ"),
        ("rate_ctrl_status", "yaw_weight"),
        ("manual_control_setpoint", "yaw"),
        ("drone_state", "yaw_timeout"),
        ("drone_state", "yawAccel"),
        ("drone_state", "heading_cdeg"),
        ("drone_state", "headingDegs"),
        ("drone_state", "yaw_mrad"),
        ("drone_state", "heading_reset_counter"),
    ],
)
def test_px4_ratios_integrals_and_sticks_are_no_angles(topic, field, tmp_path):
    values = 4.0 + np.arange(20) % 2
    messages = [ulog.format_message(f"{topic}:uint64_t timestamp;float {field};"), ulog.announce(0, topic)]
    messages += [ulog.data(0, 1000 + k * 100_000, "f", value) for k, value in enumerate(values)]
    dataset = ingest_and_open(ulog.write_log(tmp_path, *messages), tmp_path)
    assert "methods" not in (dataset.streams[topic].attributes or {})
    np.testing.assert_allclose(value_after(dataset, topic, 0.05, 0, 20), 4.5)


def test_px4_topics_of_several_subjects_are_held(tmp_path):
    messages = [
        ulog.format_message("debug_key_value:uint64_t timestamp;char[10] key;float value;"),
        ulog.announce(0, "debug_key_value"),
        *(ulog.data(0, 1000 + k * 100_000, "10sf", b"ab"[k % 2 : k % 2 + 1], 10.0 * k) for k in range(20)),
    ]
    dataset = ingest_and_open(ulog.write_log(tmp_path, *messages), tmp_path)
    check_held(dataset, "debug_key_value", (0,), 10.0 * np.arange(20)[:, None], 0.1)


def test_angles_in_ros_messages(tmp_path):
    angles = turning_angles()
    pose2d, position_type = "geometry_msgs/msg/Pose2D", "px4_msgs/msg/VehicleLocalPosition"
    poses = [(stamp(k), message(pose2d, x=1.0 * k, y=0.0, theta=a)) for k, a in enumerate(angles)]
    dataset = ingest_and_open(write_mcap(tmp_path / "b.mcap", {"/pose": (pose2d, poses)}), tmp_path)
    check_angle(dataset, "/pose", 2, angles, 0.1)
    np.testing.assert_allclose(value_after(dataset, "/pose", 0.05, 0, N), np.arange(N - 1) + 0.5)
    text = "uint64 timestamp\nfloat32 x\nfloat32 heading\nbool heading_good_for_control\n"
    rows = [lambda types, k=k, a=a: types[position_type](k, 0.0, a, True) for k, a in enumerate(angles)]
    dataset = ingest_and_open(write_messages(tmp_path / "px4", position_type, text, rows), tmp_path / "px4")
    (stream,) = [name for name, candidate in dataset.streams.items() if "heading" in candidate.names]
    check_angle(dataset, stream, dataset[stream].names.index("heading"), angles, 0.1)


@pytest.mark.parametrize(
    ("format", "stream", "names", "shape", "methods"),
    [
        ("agibot", "state/end/orientation", [], (2, 4), [[0, 4, "slerp"], [4, 8, "slerp"]]),
        ("npz", "root_rot", [], (4,), [[0, 4, "slerp"]]),
        ("npz", "global_orient", [], (3,), [[0, 3, "previous"]]),
        ("npz", "poses", [], (72,), [[0, 72, "previous"]]),
        ("npz", "body_pose", [], (23, 3), [[0, 69, "previous"]]),
        ("agibot", "action/robot/orientation", [], (4,), [[0, 4, "slerp"]]),
        ("agibot", "state/end/position", [], (2, 3), []),
        ("calvin", "robot_obs", [], (15,), [[3, 6, "angle"]]),
        ("calvin", "scene_obs", [], (24,), [[9, 12, "angle"], [15, 18, "angle"], [21, 24, "angle"]]),
        ("calvin", "rel_actions", [], (7,), []),
        ("rlds", "observation/robot_obs", [], (15,), [[3, 6, "angle"]]),
        ("rlds", "action_dict/cartesian_position", [], (6,), [[3, 6, "angle"]]),
        ("rlds", "action_dict/cartesian_velocity", [], (6,), []),
        ("lerobot", "observation.state.cartesian_position", [], (6,), [[3, 6, "angle"]]),
        ("robomimic", "obs/ee_ori", [], (3,), [[0, 3, "previous"]]),
        ("robomimic", "obs/ee_states", [], (6,), [[3, 6, "previous"]]),
        ("robomimic", "robot_states", [], (9,), [[5, 9, "slerp"]]),
        ("robomimic", "initial_state/articulation/robot/root_pose", [], (7,), [[3, 7, "slerp"]]),
        ("robotwin", "endpose/left_endpose", [], (7,), [[3, 7, "slerp"]]),
        ("maniskill", "obs/extra/tcp_pose", [], (7,), [[3, 7, "slerp"]]),
        ("maniskill", "obs/extra/left_arm_tcp", [], (7,), [[3, 7, "slerp"]]),
        ("maniskill", "obs/extra/tip_poses", [], (21,), [[3, 7, "slerp"], [10, 14, "slerp"], [17, 21, "slerp"]]),
        ("maniskill", "obs/extra/tip_poses", [], (28,), [[start, start + 4, "slerp"] for start in (3, 10, 17, 24)]),
        ("maniskill", "env_states/actors/cube", [], (13,), [[3, 7, "slerp"]]),
        ("maniskill", "env_states/articulations/panda", [], (31,), [[3, 7, "slerp"]]),
        ("maniskill", "obs/agent/qpos", [], (9,), []),
        ("maniskill", "obs/extra/purpose", [], (7,), []),
        ("npz", "poses", [], (156,), [[0, 156, "previous"]]),
        ("npz", "poses", [], (7,), []),
        ("robomimic", "action_dict/abs_rot_axis_angle", [], (3,), [[0, 3, "previous"]]),
        ("robomimic", "action_dict/rel_rot_axis_angle", [], (3,), []),
        ("csv", "tcp", ["x", "rotvec_x", "rotvec_y", "rotvec_z"], (4,), [[1, 4, "previous"]]),
        ("csv", "ur", [f"actual_TCP_pose_{k}" for k in range(6)], (6,), [[3, 6, "previous"]]),
        ("csv", "arm", ["left_hip_pitch", "left_hip_roll", "yaw"], (3,), []),
        ("csv", "log", ["ax", "/imu/header/stamp/nanosec", "/imu/header/stamp/sec"], (3,), [[1, 3, "previous"]]),
        ("hdf5", "log", ["stamp.secs", "stamp.nsecs", "ax"], (3,), [[0, 2, "previous"]]),
        ("csv", "log", ["run_sec", "other_nsec"], (2,), []),
        *(
            ("npz", "body_rotations", [], (bodies, 4), [[4 * i, 4 * i + 4, "slerp"] for i in range(bodies)])
            for bodies in (3, 4)
        ),
    ],
)
def test_schemas_and_names(format, stream, names, shape, methods):
    assert read_methods(format, stream, names, shape) == methods


@pytest.mark.parametrize(
    ("unit", "method"),
    [(np.pi, '[[0, 1, "angle"], [2, 3, "angle"]]'), (180.0, '[[0, 1, "previous"], [2, 3, "previous"]]')],
)
def test_undeclared_wrapping_euler_angles_are_noted_with_a_mapping(unit, method, tmp_path):
    angles_between = np.linspace(0, 5 * unit, 60)
    wrapping = [wrap(sign * angles_between / unit * np.pi) / np.pi * unit for sign in (1, -1)]
    angles = np.stack([wrapping[0], angles_between / 6, wrapping[1]], 1)
    rows = [f"{k / 10},{','.join(map(repr, row))}" for k, row in enumerate(angles.tolist())]
    (tmp_path / "euler.csv").write_text("\n".join(["time_s,a,b,c", *rows]))
    report = robocache.ingest(tmp_path / "euler.csv", tmp_path / "cache")
    (assumption,) = [note for note in report.assumed if "interpolated as numbers" in note.reason]
    assert assumption.what == "euler: a, c" and assumption.streams == ["euler"]
    assert assumption.reason.endswith(f'unless a mapping has streams."euler".methods = {method}')
    (tmp_path / "mapping.toml").write_text(assumption.reason.partition("a mapping has ")[2])
    report = robocache.ingest(tmp_path / "euler.csv", tmp_path / "mended", mapping=tmp_path / "mapping.toml")
    assert not [note for note in report.assumed if "interpolated as numbers" in note.reason]
    if unit == np.pi:
        check_angle(robocache.open(tmp_path / "mended"), "euler", 0, angles_between, 0.1)
