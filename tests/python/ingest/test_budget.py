"""Small files that would take gigabytes of memory are refused by name."""

import io
import json
import re
import sqlite3
import struct
import subprocess
import sys
import zipfile
import zlib
from contextlib import closing
from functools import partial

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2
from lerobot_files import Episode, write_lerobot
from mcap.writer import CompressionType
from rlds_files import example, group, image, sequence, tensor, write_rlds
from robocache.cli import main
from ros_files import ROS1, START, message, write_bag1, write_channel, write_database, write_mcap

import robocache

Field = descriptor_pb2.FieldDescriptorProto
MB = 1 << 20
# The most memory that an ingest may take beyond its imports. Before ingest had memory_limit, each case took 1 GB to 30 GB.
MOST_MB = 800

CHILD = """
import json, os, resource, sys
sys.modules["torch"] = None  # the import would take most of the time, and no case needs torch
import numpy, pyarrow
import robocache

def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024

for line in sys.stdin:
    if os.fork():  # each case has its own process, because the peak of reader processes cannot be reset
        if os.wait()[1]:  # it died
            break
        continue
    source, cache, options = json.loads(line)
    robocache.set_num_threads(2)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak, VmHWM
    before = status("VmRSS")
    try:
        robocache.ingest(source, cache, **options)
        output = "done"
    except robocache.Error as error:
        output = str(error)
    reader_process = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps([output, max(status("VmHWM") - before, reader_process)]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def ingest():
    """Ingests in another process. Returns "done" or the error, and the peak of memory in MB."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CHILD], **pipes) as child:

        def run(source, cache, **options):
            print(json.dumps([str(source), str(cache), options]), file=child.stdin, flush=True)
            return json.loads(child.stdout.readline())

        yield run
        child.stdin.close()


def cdr(body):
    return b"\0\1\0\0" + body


def ros2(definition):
    return ("p/msg/T", "ros2msg", definition.encode())


def one_message(path, definition, body, encoding="cdr", schema=None):
    options = {"compression": CompressionType.ZSTD, "chunk_size": 1 << 40, "enable_crcs": False}
    return write_channel(path, encoding, schema or ros2(definition), [(START, body)], **options)


# ---- one file for each case ------------------------------------------------------------------------------------------

RECORD = f"A[] a\n{'=' * 80}\nMSG: p/A\n"


def a_chunk(folder):
    """Makes one chunk of 150 MB in zstd."""
    return one_message(folder / "a.mcap", "uint8[] x\n", cdr(struct.pack("<I", 150 * MB) + bytes(150 * MB)))


def many_chunks(folder):
    """Chunks of 60 MB that overlap in time, so all are in memory at once."""
    size = 60 * MB
    payloads = [(START + (0 if k % 2 else 9), cdr(struct.pack("<I", size) + bytes(size))) for k in range(8)]
    options = {"compression": CompressionType.ZSTD, "chunk_size": 1, "enable_crcs": False}
    return write_channel(folder / "a.mcap", "cdr", ros2("uint8[] x\n"), payloads, **options)


def empty_records(folder):
    """Makes a sequence of messages without fields."""
    return one_message(folder / "a.mcap", RECORD, cdr(struct.pack("<I", 60 * MB) + bytes(60 * MB)))


def empty_texts(folder):
    """Makes a sequence of empty texts."""
    return one_message(folder / "a.mcap", "string[] x\n", cdr(struct.pack("<I", 15 * MB) + bytes(60 * MB)))


def json_lists(folder):
    """Makes JSON of many empty lists."""
    body = b'{"x": [' + b"[]," * (20 * MB) + b"[]]}"
    return one_message(folder / "a.mcap", "", body, "json", ("T", "jsonschema", b"{}"))


def protobuf_records(folder):
    """Makes Protobuf of many records without fields."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="t.proto", package="p", syntax="proto3")
    file.message_type.add(name="A")
    file.message_type.add(name="T").field.add(
        name="a", number=1, type=Field.TYPE_MESSAGE, label=Field.LABEL_REPEATED, type_name=".p.A"
    )
    body = b"\x0a\x00" * (40 * MB)
    return one_message(folder / "a.mcap", "", body, "protobuf", ("p.T", "protobuf", files.SerializeToString()))


def bag1(compression, folder):
    values = message("std_msgs/msg/UInt8MultiArray", ROS1, data=np.zeros(100 * MB, np.uint8))
    rows = [(START + k, values) for k in range(3)]
    return write_bag1(folder / "a.bag", {"/t": ("std_msgs/msg/UInt8MultiArray", rows)}, compression)


def generated_column(kind, folder):
    """Makes a bag whose column `data` SQLite computes on each read (VIRTUAL) or stores (STORED: no row, or the file would be large)."""
    database = sqlite3.connect(folder / "a.db3")
    database.execute("CREATE TABLE topics(id INTEGER, name TEXT, type TEXT, serialization_format TEXT)")
    database.execute("INSERT INTO topics VALUES (1, '/t', 'std_msgs/msg/UInt8MultiArray', 'cdr')")
    column = f"data BLOB GENERATED ALWAYS AS (zeroblob(250000000)) {kind}"
    database.execute(f"CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, {column})")
    if kind == "VIRTUAL":
        database.execute(f"INSERT INTO messages(topic_id, timestamp) VALUES (1, {START})")
    database.commit()
    database.close()
    return folder / "a.db3"


def long_topic(suffix, folder):
    """Makes a topic whose name has 60 MB, or 100 kB in a bag of ROS 1."""
    topics = {
        "/" + "x" * (100_000 if suffix == ".bag" else 60 * MB): (
            "std_msgs/msg/Bool",
            [(START, message("std_msgs/msg/Bool", data=True))],
        )
    }
    write_bag = {".mcap": write_mcap, ".bag": write_bag1, ".db3": write_database}[suffix]
    write_bag(folder / f"a{suffix}", topics)
    return folder / f"a{suffix}"


def topic_of_bytes(folder):
    """Makes a topic whose name is a blob of 100 MB, before the topic /kept."""
    topic = ("std_msgs/msg/Bool", [(START, message("std_msgs/msg/Bool", data=True))])
    write_database(folder / "b.db3", {"/t": topic, "/kept": topic})
    with closing(sqlite3.connect(folder / "b.db3")) as database, database:
        database.execute("UPDATE topics SET name = zeroblob(100000000) WHERE id = 1")
    return folder / "b.db3"


def npz(arrays, folder):
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for key, (dtype, shape) in arrays.items():
            head = io.BytesIO()
            header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(head, header)
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                member.write(head.getvalue())
                remaining = int(np.prod(shape)) * np.dtype(dtype).itemsize
                while remaining:
                    remaining -= member.write(bytes(min(remaining, MB)))
    return folder / "a.npz"


def hdf5(folder):
    file = h5py.File(folder / "a.hdf5", "w")
    file.create_group("data").attrs["env_args"] = '{"env_kwargs": {"control_freq": 20}}'
    demo = file["data"].create_group("demo_0")
    demo.attrs["num_samples"] = 4
    demo["actions"] = np.zeros((4, 2))
    return file, demo


def text_length(attribute, folder):
    """Makes a text attribute with a declared length of 3.7 GB."""
    file, demo = hdf5(folder)
    demo.attrs[attribute] = "abc"
    file.close()
    content = bytearray((folder / "a.hdf5").read_bytes())
    # The attribute holds the text's length (3), then the offset of the heap that holds the text. The length is replaced.
    heap = content.rfind(b"GCOL")
    offset = content.find(struct.pack("<IQ", 3, heap))
    assert offset > 0
    content[offset : offset + 4] = struct.pack("<I", 0xE0000003)
    (folder / "a.hdf5").write_bytes(content)
    return folder / "a.hdf5"


def png(side):
    """Makes a PNG of zeros."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    pixels = zlib.compressobj(1)
    row = bytes(side * 3 + 1)
    packed = b"".join(pixels.compress(row) for _ in range(side)) + pixels.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def rlds_png(folder):
    """Makes three frames of 16000 x 16000."""
    steps = {"is_first": np.array([1, 0, 0]), "img": [png(16000)] * 3}
    features = sequence(group(img=image(16000, 16000, 3), is_first=tensor("bool")))
    features = group(steps=features)
    content = example({f"steps/{name}": values for name, values in steps.items()})
    return write_rlds(folder, {"train": [[content]]}, features)


CASES = [
    a_chunk,
    many_chunks,
    empty_records,
    empty_texts,
    json_lists,
    protobuf_records,
    partial(bag1, "lz4"),
    partial(bag1, "bz2"),
    pytest.param(partial(npz, {"a": ("u1", (3, 8_000_000)), "b": ("f8", (3, 3))}), id="npz_wide"),
    pytest.param(partial(npz, {"a": ("u1", (2_600_000, 100))}), id="npz_rows"),
    pytest.param(partial(npz, {"a": ("u1", (2, 300_000_000)), "b": ("f8", (2, 3))}), id="npz_one_row"),
]


@pytest.mark.parametrize("write", CASES, ids=lambda write: getattr(write, "__name__", None))
def test_small_files_that_need_much_memory_are_refused_by_name(write, ingest, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    file = write(source)
    assert file.stat().st_size < 4 * MB
    rate = {"format": "npz", "rate_hz": 30} if file.suffix == ".npz" else {}
    output, peak = ingest(file, tmp_path / "cache", **rate)
    assert peak < MOST_MB
    assert str(file) in output and "memory_limit=" in output and "--memory-limit" in output


def long_texts(root):
    """Makes a thousand rows of one text, which Parquet stores once."""
    return with_column(root, "data", "language_instruction", pa.array(["x" * MB] * 1000))


def long_tasks(root):
    tasks = pa.table({"task_index": range(2000), "task": ["y" * 500_000] * 2000})
    pq.write_table(tasks, root / "meta/tasks.parquet", compression="zstd")
    return root / "meta/tasks.parquet"


def long_note(root):
    return with_column(root, "meta/episodes", "note", pa.array(["q" * 300 * MB]))


def long_list(root):
    return with_column(root, "meta/episodes", "note", pa.array([np.zeros(30_000_000)]))


def many_numbers(root):
    return with_column(root, "data", "wide", pa.array(list(np.zeros((1000, 200_000), np.float32))))


def with_column(root, folder, name, values):
    (file,) = (root / folder).rglob("*.parquet")
    pq.write_table(pq.read_table(file).append_column(name, values), file, compression="zstd")
    return file


@pytest.mark.parametrize(
    "write", [long_texts, long_tasks, long_note, long_list, many_numbers], ids=lambda x: x.__name__
)
def test_a_small_table_of_a_lerobot_set_that_becomes_large_is_refused_by_name(write, ingest, tmp_path):
    episodes = [Episode({"action": np.zeros((1000, 2), np.float32)})]
    file = write(write_lerobot(tmp_path / "set", episodes, "v3.0"))
    assert file.stat().st_size < MB
    output, peak = ingest(tmp_path / "set", tmp_path / "cache")
    assert peak < MOST_MB
    assert str(file) in output and "memory_limit=" in output and "--memory-limit" in output


def test_texts_that_repeat_are_read_whole(tmp_path):
    """Parquet stores a repeated text once. Such texts are read in small batches, because every row may be long."""
    texts = [f"{'do it ' * 2000}{number % 3}" for number in range(2000)]
    root = write_lerobot(tmp_path / "set", [Episode({"action": np.zeros((2000, 2), np.float32)})], "v3.0")
    with_column(root, "data", "said", pa.array(texts))
    robocache.ingest(root, tmp_path / "cache")
    assert robocache.open(tmp_path / "cache").episode(0)["said"][1][:] == texts


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (partial(generated_column, "VIRTUAL"), "messages: expected columns that are stored, 'data' is generated"),
        (partial(generated_column, "STORED"), "messages: expected columns that are stored, 'data' is generated"),
        (
            partial(text_length, "note"),
            "/data/demo_0: attribute note: more than 1073741824 bytes in memory; memory_limit",
        ),
        (
            partial(text_length, "model_file"),
            "/data/demo_0: attribute model_file: more than 1073741824 bytes in memory; memory_limit",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_large_declared_sizes_are_refused_before_reading(write, message, ingest, tmp_path):
    file = write(tmp_path)
    output, peak = ingest(file, tmp_path / "cache")
    assert peak < MOST_MB
    assert output.startswith(str(file))
    assert re.search(message, output)


def test_a_topic_whose_name_is_a_blob_is_refused_alone(ingest, tmp_path):
    source = topic_of_bytes(tmp_path)
    output, peak = ingest(source, tmp_path / "no")
    assert output == f"{source}: topic 1: expected texts as name and type, got bytes, str"
    assert peak < MOST_MB
    output, peak = ingest(source, tmp_path / "cache", on_error="skip")
    assert output == "done" and peak < MOST_MB
    ((name, stream),) = robocache.open(tmp_path / "cache").streams.items()
    assert name == "/kept" and stream.values.tolist() == [[True]]


@pytest.mark.parametrize("suffix", [".mcap", ".bag", ".db3"])
def test_a_long_name_of_a_topic_is_shortened(suffix, ingest, tmp_path):
    output, peak = ingest(long_topic(suffix, tmp_path), tmp_path / "cache")
    assert output == "done" and peak < MOST_MB
    cache = robocache.open(tmp_path / "cache")
    ((name, stream),) = cache.streams.items()
    assert name.startswith("/xxx") and len(name) < 100 and stream.values.tolist() == [[True]]
    reasons = [omission["reason"] for omission in cache.provenance["left_out"]]
    assert "more than 4096 characters: it is shortened" in reasons


def test_errors_shorten_long_texts():
    text = str(robocache.FileError(f"a.csv: {'x' * 100_000}: no number"))
    assert len(text) < 20_000
    assert text.startswith("a.csv: xxx") and text.endswith("xxx: no number") and " [83634 characters] " in text


def test_more_streams_than_any_robot_has_are_refused(tmp_path):
    np.save(array := io.BytesIO(), np.zeros(1, np.uint8))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for key in range(8193):
            archive.writestr(f"k{key}.npy", array.getvalue())
    options = {"format": "npz", "rate_hz": 30}
    with pytest.raises(robocache.FileError, match=r"a\.npz: more than 8192 streams; select some by a mapping"):
        robocache.ingest(tmp_path / "a.npz", tmp_path / "cache", **options)
    mapping = {"include": ["k7"]}
    robocache.ingest(tmp_path / "a.npz", tmp_path / "cache", mapping=mapping, **options)
    assert list(robocache.open(tmp_path / "cache").streams) == ["k7"]


def test_frames_that_are_too_large_are_refused_by_their_headers(ingest, tmp_path):
    pytest.importorskip("google_crc32c")
    (tmp_path / "1.0.0").mkdir()
    output, peak = ingest(rlds_png(tmp_path / "1.0.0"), tmp_path / "cache", rate_hz=5)
    assert peak < MOST_MB
    assert "a frame of 16000x16000: 768000000 bytes in memory" in output and "memory_limit=768000000" in output


def test_memory_limit_raises_the_limit(tmp_path, capsys):
    file = npz({"a": ("u1", (3, 900_000)), "b": ("f8", (3, 3))}, tmp_path)
    with pytest.raises(robocache.FileError, match=r"a: statistics of 900000 features a row: 144.* bytes in memory"):
        robocache.ingest(file, tmp_path / "cache", format="npz", rate_hz=30)
    with pytest.raises(robocache.FileError, match="expected at most 1000;"):
        robocache.ingest(file, tmp_path / "cache", format="npz", rate_hz=30, memory_limit=1000)
    robocache.ingest(file, tmp_path / "cache", format="npz", rate_hz=30, memory_limit=1 << 30)
    assert robocache.open(tmp_path / "cache", verify=True).streams["a"].shape == (900_000,)
    arguments = [str(file), str(tmp_path / "again"), "--format", "npz", "--rate-hz", "30"]
    assert main(["ingest", *arguments]) == 1
    assert "--memory-limit" in capsys.readouterr().err
    assert main(["ingest", *arguments, "--memory-limit", str(1 << 30)]) == 0
    for limit in (0, -1):
        with pytest.raises(robocache.ArgumentError, match="memory_limit: expected a number of bytes above 0"):
            robocache.ingest(file, tmp_path / "no", memory_limit=limit)
    with pytest.raises(robocache.ArgumentTypeError, match="memory_limit"):
        robocache.ingest(file, tmp_path / "no", memory_limit="1G")


def test_a_file_may_become_a_hundred_times_its_size(tmp_path):
    """The limit of a file is 128 MiB plus 100 times its size: these 143 MB of a file of 2.3 MB need the second part."""
    rows = 2_200_000
    noise = np.random.default_rng(0).integers(0, 256, (rows, 1), np.uint8)
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros((rows, 8)), noise=noise)
    robocache.ingest(tmp_path / "a.npz", tmp_path / "cache", format="npz", rate_hz=30)
    assert robocache.open(tmp_path / "cache").streams["a"].rows == rows
