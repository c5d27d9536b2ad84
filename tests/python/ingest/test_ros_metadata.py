"""A bag's metadata decide the definitions and types of its messages. Bags of every distribution are written with
rosbags' own serialisation."""

import json
import sqlite3

import numpy as np
import pytest
import zstandard
from mcap.writer import Writer
from robocache.ingest.messages import passes, rosbag2
from robocache.ingest.recording import SourceError
from ros_files import START, header, message, read, strings, write_database, write_mcap, write_metadata
from rosbags.typesys import Stores, get_typestore

DISTRIBUTIONS = ["foxy", "galactic", "humble", "iron", "jazzy", "kilted"]
RANGE = "sensor_msgs/msg/Range"


def make_store(distro):
    return get_typestore(Stores[f"ROS2_{distro.upper()}"])


def make_ranges(store, n=6):
    return [
        (START + k, message(RANGE, store, header=header(START + k, store=store), min_range=0.5, range=1.0 + k))
        for k in range(n)
    ]


def make_markers(store, n=6, empty=0):
    """MarkerArrays; the first `empty` of them are empty."""
    kind = "visualization_msgs/msg/Marker"
    messages = [message(kind, store, id=k, text="cup", ns="objects") for k in range(n)]
    return [
        (START + k, message("visualization_msgs/msg/MarkerArray", store, markers=[marker] if k >= empty else []))
        for k, marker in enumerate(messages)
    ]


def write_bare(path, topics, store, records=()):
    """Writes a .db3 without definitions; `records` are tables with the bag's metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT);"
        "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB);"
    )
    for statement, row in records:
        table = statement.partition("(")[0]
        database.execute(f"CREATE TABLE {statement}")
        database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    for number, (topic, (name, messages)) in enumerate(topics.items(), 1):
        database.execute("INSERT INTO topics VALUES (?, ?, ?, 'cdr')", (number, topic, name))
        for time_ns, msg in messages:
            row = (number, time_ns, bytes(store.serialize_cdr(msg, name)))
            database.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", row)
    database.commit()
    database.close()
    return path


def write_without_schema(path, topics, store, records=(), with_chunks=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = Writer(file, use_chunking=with_chunks)
        writer.start(profile="ros2")
        for name, entries in records:
            writer.add_metadata(name, entries)
        for topic, (name, messages) in topics.items():
            channel = writer.register_channel(topic, "cdr", 0)
            for time_ns, msg in messages:
                writer.add_message(channel, time_ns, bytes(store.serialize_cdr(msg, name)), time_ns)
        writer.finish()
    return path


def make_metadata(topics, **more_fields):
    """rosbag2's metadata.yaml; JSON is valid YAML."""
    content = [
        {"topic_metadata": {"name": topic, "type": name, "serialization_format": "cdr"}, "message_count": len(messages)}
        for topic, (name, messages) in topics.items()
    ]
    return json.dumps(
        {"rosbag2_bagfile_information": {"version": 9, "topics_with_message_count": content, **more_fields}}
    )


def check_ranges(readout, n=6):
    stream = readout.only["/sonar"]
    rows = dict(zip(stream.names, np.array(stream.rows).T, strict=True))
    assert rows["range"].tolist() == [1.0 + k for k in range(n)]
    assert rows["min_range"].tolist() == [0.5] * n


@pytest.mark.parametrize("distro", DISTRIBUTIONS)
@pytest.mark.parametrize("metadata_in", ["schema", "table", "yaml", "nowhere", "unknown"])
def test_definitions_depend_on_the_distribution(metadata_in, distro, tmp_path):
    """A type got a field in Iron. Its definition follows the bag's metadata, or without them its messages."""
    store = make_store(distro)
    topics = {"/sonar": (RANGE, make_ranges(store))}
    kinds = {
        "schema": [("schema(schema_version INTEGER PRIMARY KEY, ros_distro TEXT)", (4, distro))],
        "unknown": [("schema(schema_version INTEGER PRIMARY KEY, ros_distro TEXT)", (4, "rolling"))],
        "table": [
            (
                "metadata(id INTEGER PRIMARY KEY, metadata_version INTEGER, metadata TEXT)",
                (1, 9, make_metadata(topics, ros_distro=distro)),
            )
        ],
    }
    write_bare(tmp_path / "bag/a.db3", topics, store, kinds.get(metadata_in, ()))
    if metadata_in == "yaml":
        content = make_metadata(topics, ros_distro=distro, relative_file_paths=["a.db3"])
        (tmp_path / "bag/metadata.yaml").write_text(content)
    readout = read(tmp_path / "bag")
    check_ranges(readout)
    assert ("variance" in readout.only["/sonar"].names) == (distro in ("iron", "jazzy", "kilted"))
    assert "/sonar" not in readout.left_out and not readout.skipped


def test_every_type_that_changed_between_distributions_is_read(tmp_path):
    stores = {distro: make_store(distro) for distro in DISTRIBUTIONS}
    changed = [
        (distro, name)
        for distro, store in stores.items()
        for name, definition in store.fielddefs.items()
        if name in stores["kilted"].fielddefs and definition[1] != stores["kilted"].fielddefs[name][1]
    ]
    assert len({name for _, name in changed}) >= 6
    for distro, name in changed:
        store = stores[distro]
        topics = {"/x": (name, [(START + k, message(name, store)) for k in range(3)])}
        tables = [("schema(schema_version INTEGER PRIMARY KEY, ros_distro TEXT)", (4, distro))]
        readout = read(write_bare(tmp_path / f"{distro}-{name.replace('/', '-')}.db3", topics, store, tables))
        assert not readout.skipped and "/x" not in readout.left_out, (distro, name, readout.left_out)
        assert readout.only, (distro, name)


def test_a_distribution_that_contradicts_the_messages_is_ignored(tmp_path):
    """A bag copied by tools of a later distribution names the later one."""
    store = make_store("humble")
    tables = [("schema(schema_version INTEGER PRIMARY KEY, ros_distro TEXT)", (4, "jazzy"))]
    check_ranges(read(write_bare(tmp_path / "a.db3", {"/sonar": (RANGE, make_ranges(store))}, store, tables)))


def test_one_damaged_message_does_not_decide_the_definition(tmp_path):
    store = make_store("humble")
    path = write_bare(tmp_path / "a.db3", {"/sonar": (RANGE, make_ranges(store))}, store)
    with sqlite3.connect(path) as database:  # four more bytes: the length of a later distribution's message
        ((data,),) = database.execute("SELECT data FROM messages WHERE id = 1").fetchall()
        database.execute("UPDATE messages SET data = ? WHERE id = 1", (data + bytes(4),))
    database.close()
    readout = read(path, on_error="skip")
    assert np.array(readout.only["/sonar"].rows)[:, -1].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert list(readout.skipped) == ["a.db3: /sonar: messages 0"]


@pytest.mark.parametrize("held_in_memory", [True, False])
@pytest.mark.parametrize("distro", ["foxy", "humble"])
def test_empty_messages_decide_no_definition(distro, held_in_memory, tmp_path, monkeypatch):
    """The first part of the bag fits the definitions of all distributions."""
    monkeypatch.setattr(rosbag2, "_AT_ONCE", 40)
    monkeypatch.setattr(rosbag2, "_FETCHED", 40)
    monkeypatch.setattr(passes, "_SMALL", 96 << 20 if held_in_memory else 1)
    store = make_store(distro)
    topics = {
        "/m": ("visualization_msgs/msg/MarkerArray", make_markers(store, empty=4)),
        "/sonar": (RANGE, make_ranges(store)),
    }
    readout = read(write_bare(tmp_path / "a.db3", topics, store))
    check_ranges(readout)
    assert not readout.skipped
    markers = readout.only["/m"]
    assert [len(row) for row in markers.rows] == [0, 0, 0, 0, 1, 1]
    number = markers.names.index("id")
    assert [row[0][number] for row in markers.rows[4:]] == [4, 5]


def test_messages_that_fit_several_distributions_need_an_option(tmp_path):
    """Galactic added a bool in bytes that are padding in Foxy, so the bytes do not decide."""
    store, name = make_store("foxy"), "rcl_interfaces/msg/ParameterDescriptor"
    topics = {
        "/p": (name, [(START + k, message(name, store, type=3, name="speed")) for k in range(3)]),
        "/say": strings("x"),
    }
    path = write_bare(tmp_path / "a.db3", topics, store)
    readout = read(path)
    assert (
        "fit those of" in readout.left_out["/p"]
        and "foxy" in readout.left_out["/p"]
        and "definitions" in readout.left_out["/p"]
    )
    assert not any(stream.startswith("/p") for stream in readout.only) and "/say" in readout.only
    folder = tmp_path / "own/rcl_interfaces/msg"
    folder.mkdir(parents=True)
    (folder / "ParameterDescriptor.msg").write_text(store.generate_msgdef(name)[0].split("=====")[0])
    readout = read(path, definitions=str(tmp_path / "own"))
    assert "dynamic_typing" not in readout.only["/p"].names and "/p" not in readout.left_out


# ---- channels without a schema ----


@pytest.mark.parametrize("with_chunks", [True, False])
@pytest.mark.parametrize("distro", ["humble", "jazzy"])
@pytest.mark.parametrize("metadata_in", ["yaml", "record", "ROS_DISTRO"])
def test_types_of_channels_without_a_schema_are_from_the_metadata(metadata_in, distro, with_chunks, tmp_path):
    store = make_store(distro)
    topics = {"/sonar": (RANGE, make_ranges(store))}
    records = {
        "record": [("rosbag2", {"serialized_metadata": make_metadata(topics, ros_distro=distro)})],
        "ROS_DISTRO": [("rosbag2", {"ROS_DISTRO": distro})],
    }
    write_without_schema(tmp_path / "bag/a.mcap", topics, store, records.get(metadata_in, ()), with_chunks)
    if metadata_in != "record":
        (tmp_path / "bag/metadata.yaml").write_text(make_metadata(topics, relative_file_paths=["a.mcap"]))
    readout = read(tmp_path / "bag")
    check_ranges(readout)
    assert readout.only["/sonar"].attributes["schema"] == RANGE


def test_a_channel_without_a_type_is_noted(tmp_path):
    store = make_store("jazzy")
    records = [("rosbag2", {"serialized_metadata": "a: [1"})]
    path = write_without_schema(tmp_path / "a.mcap", {"/sonar": (RANGE, make_ranges(store))}, store, records)
    readout = read(path)
    assert "no schema" in readout.left_out["/sonar"] and "metadata.yaml" in readout.left_out["/sonar"]
    assert readout.left_out["a.mcap: metadata 'rosbag2'"].startswith(str(path))


# ---- messages that were compressed one by one ----


def pack_rows(path):
    with sqlite3.connect(path) as database:
        for number, data in database.execute("SELECT id, data FROM messages").fetchall():
            database.execute("UPDATE messages SET data = ? WHERE id = ?", (zstandard.compress(data), number))
    database.close()
    return path


def pack_messages(path, topics, store):
    """Writes an MCAP file whose messages are in zstd."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start(profile="ros2")
        for topic, (name, messages) in topics.items():
            schema = writer.register_schema(name, "ros2msg", store.generate_msgdef(name, ros_version=2)[0].encode())
            channel = writer.register_channel(topic, "cdr", schema)
            for time_ns, msg in messages:
                data = zstandard.compress(bytes(store.serialize_cdr(msg, name)))
                writer.add_message(channel, time_ns, data, time_ns)
        writer.finish()
    return path


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("in_metadata", [True, False])
@pytest.mark.parametrize("kind", ["db3", "mcap"])
def test_messages_in_zstd_are_read_in_every_storage(kind, in_metadata, is_small, tmp_path, monkeypatch):
    if not is_small:
        monkeypatch.setattr(passes, "_SMALL", 1)
    store = make_store("jazzy")
    topics = {"/sonar": (RANGE, make_ranges(store))}
    if kind == "db3":
        pack_rows(write_bare(tmp_path / "bag/a.db3", topics, store))
    else:
        pack_messages(tmp_path / "bag/a.mcap", topics, store)
    if in_metadata:
        content = {"compression_mode": "message", "compression_format": "zstd", "relative_file_paths": [f"a.{kind}"]}
        (tmp_path / "bag/metadata.yaml").write_text(make_metadata(topics, **content))
    readout = read(tmp_path / "bag")
    check_ranges(readout)
    assert not readout.skipped


def test_a_damaged_compressed_message_is_named_and_the_rest_kept(tmp_path):
    store = make_store("jazzy")
    path = pack_rows(write_bare(tmp_path / "bag/a.db3", {"/sonar": (RANGE, make_ranges(store))}, store))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE messages SET data = substr(data, 1, 20) WHERE id = 3")
    database.close()
    with pytest.raises(SourceError, match="/sonar: message 2: "):
        read(path)
    readout = read(path, on_error="skip")
    assert readout.only["/sonar"].time_ns == [START + k for k in (0, 1, 3, 4, 5)]
    assert list(readout.skipped) == ["a.db3: /sonar: messages 2"]


def test_another_compression_of_messages_is_refused_by_name(tmp_path):
    write_mcap(tmp_path / "bag/a.mcap", {"/say": strings("x")})
    content = {"compression_mode": "MESSAGE", "compression_format": "lz4", "relative_file_paths": ["a.mcap"]}
    (tmp_path / "bag/metadata.yaml").write_text(make_metadata({"/say": strings("x")}, **content))
    with pytest.raises(SourceError, match="compressed one by one as 'lz4', expected 'zstd'"):
        read(tmp_path / "bag")


# ---- damage ----


@pytest.mark.parametrize("column", ["topic_id", "timestamp", "data"])
def test_a_row_of_invalid_utf8_hides_no_other(column, tmp_path):
    path = write_database(tmp_path / "a.db3", {"/say": strings("x", "y", "z")})
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE messages SET {column} = CAST(x'fffe' AS TEXT) WHERE id = 2")
    database.close()
    readout = read(path, on_error="skip")
    assert readout.only["/say"].rows == ["x", "z"]
    assert list(readout.skipped) == ["a.db3: a.db3: message 2"]


def test_files_are_read_despite_unreadable_metadata(tmp_path):
    write_database(tmp_path / "bag/a.db3", {"/say": strings("x", "y")})
    write_metadata(tmp_path / "bag", ["a.db3"], {"/say": 2})
    text = (tmp_path / "bag/metadata.yaml").read_text()
    (tmp_path / "bag/metadata.yaml").write_text(text[:60] + "\n  : [")
    with pytest.raises(SourceError, match=r"metadata\.yaml"):
        read(tmp_path / "bag")
    readout = read(tmp_path / "bag", on_error="skip")
    assert readout.only["/say"].rows == ["x", "y"]
    assert list(readout.skipped) == ["bag: metadata.yaml"]
