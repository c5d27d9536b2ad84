"""Columns of bool, enum or integer type are held between rows in every format, also beside floats. The oracle is numpy."""

import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from lerobot_files import make_episodes, write_lerobot
from robocache.ingest.messages import streams
from ros_files import START, CustomType, write_channel, write_json
from rosbags.rosbag1 import Writer as Bag1

import robocache

ROWS, STEP = 8, 100_000_000
Field = descriptor_pb2.FieldDescriptorProto
MODES = np.array([0, 4, 2, 2, 0, 1, 4, 0])
ARMED = MODES % 4 == 0
LEVEL = np.linspace(-1, 1, ROWS) ** 3
STATE = CustomType(
    "own_msgs/msg/State",
    "float64 level\nuint8 mode\nbool armed\nfloat32 load\nint32[2] codes\nbool[3] flags\nOther other\n",
    {"own_msgs/Other": "float32 gain\nint16 step\nbool on\n"},
)


def stamp(k):
    return START + k * STEP


def rows_between(dataset, stream, step=STEP, **window):
    """Returns the loader's values at 0, 0.31 and 0.77 of each step: ``[ROWS - 1, 3, features]``."""
    offsets = [0, 0.31 * step / 1e9, 0.77 * step / 1e9]
    windows = {stream: robocache.Window(offsets, **window)}
    options = {"default": robocache.Window(dtype="float64"), "anchors": stream, "batch_size": ROWS, "shuffle": False}
    loader = robocache.Loader(dataset, delta_timestamps=windows, **options)
    return np.asarray(next(iter(loader))[stream])[: ROWS - 1].reshape(ROWS - 1, 3, -1)


def read_held(values):
    return np.repeat(np.asarray(values, np.float64)[:-1, None], 3, axis=1)


def linear(values):
    values = np.asarray(values, np.float64)
    return values[:-1, None] + np.array([0, 0.31, 0.77]) * np.diff(values)[:, None]


def check(dataset, stream, columns, step=STEP):
    """Asserts that a stream has these columns: {name: expected values between rows}."""
    actual, names = rows_between(dataset, stream, step), dataset.streams[stream].names
    assert names == list(columns)
    for number, (name, expected) in enumerate(columns.items()):
        np.testing.assert_allclose(actual[..., number], expected, rtol=1e-6, atol=1e-6, err_msg=name)


def ingest_and_open(source, tmp_path, **options):
    robocache.ingest(source, tmp_path / "cache", **options)
    return robocache.open(tmp_path / "cache")


# ---- messages ----


def state(k):
    other = STATE.Other(float(LEVEL[k]), int(MODES[k]), bool(ARMED[k]))
    codes, flags = np.array([MODES[k], 7], np.int32), np.array([ARMED[k], True, not ARMED[k]])
    return STATE.State(float(LEVEL[k]), int(MODES[k]), bool(ARMED[k]), float(LEVEL[k]) / 2, codes, flags, other)


def write_ros(tmp_path, encoding):
    if encoding == "cdr":
        return STATE.write(tmp_path / "a.mcap", map(state, range(ROWS)), STEP)
    payloads = [(stamp(k), bytes(STATE.store.serialize_ros1(state(k), STATE.name))) for k in range(ROWS)]
    if encoding == "ros1":
        schema = ("own_msgs/State", "ros1msg", STATE.text.encode())
        return write_channel(tmp_path / "a.mcap", encoding, schema, payloads)
    with Bag1(tmp_path / "a.bag") as bag:
        connection = bag.add_connection("data", STATE.name, typestore=STATE.store)
        for time_ns, payload in payloads:
            bag.write(connection, time_ns, payload)
    return tmp_path / "a.bag"


@pytest.mark.parametrize("encoding", ["cdr", "ros1", "bag"])
def test_ros_messages(encoding, tmp_path):
    dataset = ingest_and_open(write_ros(tmp_path, encoding), tmp_path)
    (stream,) = (name for name in dataset.streams if "/" not in name.strip("/"))
    gain = np.float32(LEVEL)
    columns = {"level": linear(LEVEL), "mode": read_held(MODES), "armed": read_held(ARMED), "load": linear(LEVEL / 2)}
    check(
        dataset,
        stream,
        columns | {"other.gain": linear(gain), "other.step": read_held(MODES), "other.on": read_held(ARMED)},
    )
    assert dataset.streams[stream].attributes["methods"] == [[1, 3, "previous"], [5, 7, "previous"]]
    for name, first in (("codes", MODES), ("flags", ARMED)):
        actual = rows_between(dataset, f"{stream}/{name}")
        np.testing.assert_array_equal(actual[..., 0], read_held(first))
    requested = rows_between(dataset, stream, method="linear")  # a requested method is used
    np.testing.assert_allclose(requested[..., 1], linear(MODES))


def test_protobuf_messages_with_enums_and_wrappers(tmp_path):
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="p", syntax="proto3")
    enum = file.enum_type.add(name="Mode")
    for number in (0, 1, 2, 4):
        enum.value.add(name=f"M{number}", number=number)
    file.message_type.add(name="Flag").field.add(name="value", number=1, type=Field.TYPE_BOOL)
    state = file.message_type.add(name="State")
    types = {
        "level": (Field.TYPE_DOUBLE, None),
        "mode": (Field.TYPE_ENUM, ".p.Mode"),
        "armed": (Field.TYPE_BOOL, None),
        "count": (Field.TYPE_INT32, None),
        "flag": (Field.TYPE_MESSAGE, ".p.Flag"),
    }
    for number, (name, (type, type_name)) in enumerate(types.items(), 1):
        state.field.add(name=name, number=number, type=type, type_name=type_name)
    pool = DescriptorPool()
    pool.Add(file)
    make_state = GetMessageClass(pool.FindMessageTypeByName("p.State"))
    payloads = []
    for k, (mode, armed) in enumerate(zip(MODES.tolist(), ARMED.tolist(), strict=True)):
        message = make_state(level=LEVEL[k], mode=mode, armed=armed, count=mode, flag={"value": armed})
        payloads.append((stamp(k), message.SerializeToString()))
    schema = ("p.State", "protobuf", descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    dataset = ingest_and_open(write_channel(tmp_path / "a.mcap", "protobuf", schema, payloads), tmp_path)
    check(
        dataset,
        "data",
        {
            "level": linear(LEVEL),
            "mode": read_held(MODES),
            "armed": read_held(ARMED),
            "count": read_held(MODES),
            "flag.value": read_held(ARMED),
        },
    )
    words = {"mode": {"M0": 0, "M1": 1, "M2": 2, "M4": 4}}
    assert [s.attributes["words"] for s in dataset.streams.values() if "words" in s.attributes] == [words]


@pytest.mark.parametrize(
    "mode",
    [
        {"enum": [0, 1, 2, 4]},
        {"type": "number", "enum": [0, 1, 2, 4, None]},
        {"oneOf": [{"const": number, "title": f"M{number}"} for number in (0, 1, 2, 4)]},
        {"type": "number", "anyOf": [{"enum": [0, 1, 2, 4]}, {"type": "null"}]},
        {"$ref": "#/$defs/Mode"},
    ],
)
def test_whole_numbers_that_a_json_schema_lists_are_held(mode, tmp_path):
    schema = {"type": "object", "properties": {"mode": mode}, "$defs": {"Mode": {"enum": [0, 1, 2, 4]}}}
    rows = [{"level": level, "mode": number} for level, number in zip(LEVEL.tolist(), MODES.tolist(), strict=True)]
    rows += [{"level": 0.5}]  # mode is NaN there, after all compared rows
    dataset = ingest_and_open(write_json(tmp_path / "a.mcap", rows, schema=schema, step=STEP), tmp_path)
    check(dataset, "data", {"level": linear(LEVEL), "mode": read_held(MODES)})


def test_bools_in_json_and_what_its_schema_declares(tmp_path):
    """In JSON, integers with gaps become floats. They are interpolated unless the schema declares integer or boolean."""
    optional_mode = {"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]}  # like pydantic's optional enum
    schema = {
        "type": "object",
        "properties": {"mode": optional_mode, "code": {"type": ["integer", "null"]}, "n": {"type": "number"}},
        "$defs": {"Mode": {"enum": [0, 1, 2, 4], "type": "integer"}},
    }
    rows = [
        {"level": level, "armed": armed, "ready": armed, "mode": mode, "code": mode, "n": mode, "plain": mode}
        for level, armed, mode in zip(LEVEL.tolist(), ARMED.tolist(), MODES.tolist(), strict=True)
    ]
    rows += [{"level": 0.5, "armed": True}]  # other fields are NaN there, after all compared rows
    dataset = ingest_and_open(write_json(tmp_path / "a.mcap", rows, schema=schema, step=STEP), tmp_path)
    columns = {"level": linear(LEVEL), "armed": read_held(ARMED), "ready": read_held(ARMED), "mode": read_held(MODES)}
    check(dataset, "data", columns | {"code": read_held(MODES), "n": linear(MODES), "plain": linear(MODES)})


def test_lists_in_json_with_gaps(tmp_path):
    schema = {"properties": {"codes": {"items": {"type": "integer"}}, "plain": {"items": {"type": "number"}}}}
    rows = [{"codes": [m, 1], "plain": [m, 1], "flags": [m == 0, True]} for m in MODES.tolist()]
    rows += [{"codes": [None, 1], "plain": [None, 1], "flags": [None, True]}]
    dataset = ingest_and_open(write_json(tmp_path / "a.mcap", rows, schema=schema, step=STEP), tmp_path)
    for name, expected in (("codes", read_held(MODES)), ("plain", linear(MODES)), ("flags", read_held(MODES == 0))):
        np.testing.assert_allclose(rows_between(dataset, f"data/{name}")[..., 0], expected)


def test_recordings_with_other_declarations_are_kept_and_noted(tmp_path):
    for name, on in (("a", ARMED), ("b", MODES + 0.5)):
        rows = [{"level": float(level), "on": value} for level, value in zip(LEVEL, on.tolist(), strict=True)]
        write_json(tmp_path / f"bags/{name}.mcap", rows, step=STEP)
    report = robocache.ingest(tmp_path / "bags", tmp_path / "cache")
    dataset = robocache.open(tmp_path / "cache")
    assert len(dataset) == 2 and dataset.streams["data"].attributes["methods"] == [[1, 2, "previous"]]
    (omission,) = (omission for omission in report.left_out if "methods" in omission.what)
    assert omission.what == "data: its methods None" and "[[1, 2, 'previous']]" in omission.reason


def test_a_rotation_beside_a_flag_and_a_scattered_one(tmp_path):
    custom = CustomType("own_msgs/msg/Turn", "float64 qx\nfloat64 qy\nfloat64 qz\nfloat64 qw\nuint8 mode\n")
    turns = [custom.Turn(0.0, 0.0, 0.6, 0.8, int(mode)) for mode in MODES]
    dataset = ingest_and_open(custom.write(tmp_path / "a.mcap", turns, STEP), tmp_path)
    assert dataset.streams["data"].attributes["methods"] == [[0, 4, "slerp"], [4, 5, "previous"]]
    rows = [{"qx": 0.0, "qy": 0.0, "on": True, "qz": 0.6, "qw": 0.8}] * ROWS
    (tmp_path / "json").mkdir()
    path = write_json(tmp_path / "json/a.mcap", rows, step=STEP)
    report = robocache.ingest(path, tmp_path / "json/cache")
    assert any("not adjacent" in omission.reason for omission in report.left_out)
    dataset = robocache.open(tmp_path / "json/cache")
    assert dataset.streams["data"].attributes["methods"] == [[2, 3, "previous"]]


# ---- logs ----


def test_px4_logs(tmp_path):
    """A topic of ULog is a stream of floats, even with integers alone; 64-bit integers are a separate stream."""

    def message(kind, payload):
        return struct.pack("<HB", len(payload), ord(kind)) + payload

    formats = {
        "mixed": "uint64_t timestamp;float level;uint8_t mode;bool armed;double load;int16_t[2] codes;uint64_t counter;",
        "whole": "uint64_t timestamp;uint8_t mode;bool armed;",
    }
    parts = [message("F", f"{name}:{format}".encode()) for name, format in formats.items()]
    parts += [message("A", struct.pack("<BH", 0, number) + name.encode()) for number, name in enumerate(formats)]
    for k, (mode, armed) in enumerate(zip(MODES.tolist(), ARMED.tolist(), strict=True)):
        us = 1000 + k * STEP // 1000
        row = struct.pack("<HQfB?dhhQ", 0, us, LEVEL[k], mode, armed, LEVEL[k], mode, -mode, 2**60 + mode)
        parts += [message("D", row), message("D", struct.pack("<HQB?", 1, us, mode, armed))]
    log = tmp_path / "log.ulg"
    head = b"ULog\x01\x12\x35\x01" + struct.pack("<Q", 1000) + message("B", bytes(40))
    log.write_bytes(head + b"".join(parts))
    dataset = ingest_and_open(log, tmp_path)
    columns = {"level": linear(LEVEL), "mode": read_held(MODES), "armed": read_held(ARMED), "load": linear(LEVEL)}
    check(dataset, "mixed", columns | {"codes[0]": read_held(MODES), "codes[1]": read_held(-MODES)})
    check(dataset, "whole", {"mode": read_held(MODES), "armed": read_held(ARMED)})
    counters = np.asarray(dataset.streams["mixed/uint64"].values).ravel()
    assert counters.tolist() == [2**60 + mode for mode in MODES.tolist()]
    assert "methods" not in dataset.streams["mixed/uint64"].attributes


def test_true_and_false_in_csv(tmp_path):
    """In CSV, integers are numbers; only the words true and false declare a type."""
    lines = ["time [s],level,armed,mode"]
    lines += [f"{100 + k / 10:.1f},{LEVEL[k]:.6f},{ARMED[k]},{MODES[k]}" for k in range(ROWS)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    check(
        ingest_and_open(tmp_path / "log.csv", tmp_path),
        "log",
        {"level": linear(LEVEL), "armed": read_held(ARMED), "mode": linear(MODES)},
    )


# ---- tables ----


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_types_declared_in_lerobots_info(dtype, tmp_path, rng):
    """pandas writes integers as double if one is missing. info.json has the type."""
    root = tmp_path / "set"
    write_lerobot(root, make_episodes(rng), features={"mode": {"dtype": dtype, "shape": [1], "names": None}})
    for file in (root / "data").rglob("*.parquet"):
        rows = pq.read_table(file)
        pq.write_table(rows.append_column("mode", pa.array(np.arange(len(rows)) % 2, pa.float64())), file)
    stream = ingest_and_open(root, tmp_path).streams["mode"]
    assert stream.dtype == "float64" and stream.attributes["methods"] == [[0, 1, "previous"]]


# ---- mappings, appends, exports ----


def test_a_mapping_of_some_features_leaves_the_others_held(tmp_path):
    source = write_ros(tmp_path, "cdr")
    mapping = {"streams": {"data": {"methods": [[0, 1, "pchip"], [1, 2, "nearest"]]}}}
    dataset = ingest_and_open(source, tmp_path, mapping=mapping)
    expected = [[0, 1, "pchip"], [1, 2, "nearest"], [2, 3, "previous"], [5, 7, "previous"]]
    assert dataset.streams["data"].attributes["methods"] == expected
    slices = {
        "streams": {"data": {"slices": [{"name": "a", "start": 0, "stop": 2}, {"name": "b", "start": 2, "stop": 7}]}}
    }
    robocache.ingest(source, tmp_path / "cut", mapping=slices)
    parts = robocache.open(tmp_path / "cut").streams
    assert parts["a"].attributes["methods"] == [[1, 2, "previous"]]
    assert parts["b"].attributes["methods"] == [[0, 1, "previous"], [3, 5, "previous"]]


def test_a_gr00t_modality_that_declares_a_dtype(tmp_path, rng):
    root = write_lerobot(tmp_path / "set", make_episodes(rng))
    modality = {
        "state": {"arm": {"start": 0, "end": 1}, "mode": {"start": 1, "end": 2, "dtype": "int32"}},
        "action": {"all": {"start": 0, "end": 2, "dtype": "float32"}},
    }
    (root / "meta/modality.json").write_text(json.dumps(modality))
    parts = ingest_and_open(root, tmp_path, mapping=root / "meta/modality.json").streams
    assert parts["state.mode"].attributes["methods"] == [[0, 1, "previous"]]
    assert "methods" not in parts["state.arm"].attributes and "methods" not in parts["action.all"].attributes


def test_appending_keeps_the_caches_methods_with_a_note(tmp_path, monkeypatch):
    source = write_ros(tmp_path, "cdr")
    with monkeypatch.context() as patch:
        patch.setattr(streams, "with_held", lambda methods, is_whole: methods)
        robocache.ingest(source, tmp_path / "cache")
    report = robocache.ingest(source, tmp_path / "cache", append=True)
    dataset = robocache.open(tmp_path / "cache")
    assert len(dataset) == 2 and "methods" not in dataset.streams["data"].attributes
    (omission,) = (omission for omission in report.left_out if "methods" in omission.what)
    assert omission.reason.startswith("the cache has None, which are kept; to change them")


@pytest.mark.parametrize("method", [None, "linear", "pchip"])
def test_an_export_to_lerobot_holds_modes_and_bools(method, tmp_path):
    dataset = ingest_and_open(write_ros(tmp_path, "cdr"), tmp_path)
    methods = None if method is None else {"data": method}
    rename = {"data": "observation.state"}
    robocache.export(dataset, tmp_path / "out", to="lerobot", fps=40, streams=["data"], methods=methods, rename=rename)
    (file,) = (tmp_path / "out/data").rglob("*.parquet")
    state = np.array(pq.read_table(file)["observation.state"].to_pylist())
    rows_before = np.arange(len(state)) * 25 // 100
    np.testing.assert_array_equal(state[:, 1], MODES[rows_before])
    np.testing.assert_array_equal(state[:, 2], ARMED[rows_before])
    np.testing.assert_array_equal(state[:, 5], MODES[rows_before])
    if method != "pchip":
        expected = np.interp(np.arange(len(state)) * 25e6, np.arange(ROWS) * STEP, LEVEL)
        np.testing.assert_allclose(state[:, 0], expected, rtol=1e-6, atol=1e-6)


def test_many_alternating_columns_load_and_export(tmp_path):
    """For example a hand with 80 motors, each with a mode and a torque: more blocks than one call of resample accepts."""
    motor_fields = {"own_msgs/Motor": "float32 torque\nuint8 mode\n"}
    custom = CustomType("own_msgs/msg/Hand", "Motor[80] motors\n", motor_fields)
    rows = [[custom.Motor(float(LEVEL[k]) + j, int(MODES[k])) for j in range(80)] for k in range(ROWS)]
    dataset = ingest_and_open(custom.write(tmp_path / "a.mcap", map(custom.Hand, rows), STEP), tmp_path)
    actual = rows_between(dataset, "data")
    np.testing.assert_array_equal(actual[..., 1::2], np.repeat(read_held(MODES)[..., None], 80, axis=2))
    torques = linear(np.float32(LEVEL))[..., None] + np.arange(80)
    np.testing.assert_allclose(actual[..., ::2], torques, rtol=1e-6, atol=1e-5)
    robocache.export(dataset, tmp_path / "out", to="lerobot", fps=40, streams=["data"])
    (file,) = (tmp_path / "out/data").rglob("*.parquet")
    state = np.array(pq.read_table(file)["data"].to_pylist())
    np.testing.assert_array_equal(state[:, 1::2], np.repeat(MODES[np.arange(len(state)) * 25 // 100][:, None], 80, 1))
