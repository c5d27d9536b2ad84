"""Writes synthetic recordings of every format by the library of the format, which also reads them for comparison.

Each writer writes `rows` rows into an empty folder and returns a :class:`Source`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import robocache

START_NS = 1_700_000_000 * 10**9


@dataclass(frozen=True)
class Source:
    """The data to ingest, and the library's calls that read them.

    read: reads everything with the library, and returns the number of rows or messages of `stream`.
    options: options for :func:`robocache.ingest`.
    decode: reads like `read`, and also decodes the fields of each message, which `read` leaves as bytes (rosbags).
    """

    path: Path
    read: Callable[[], int]
    stream: str
    options: dict[str, Any] = field(default_factory=dict)
    decode: Callable[[], int] | None = None

    @property
    def bytes(self) -> int:
        files = [self.path] if self.path.is_file() else self.path.rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file())


def make_values(rows: int, features: int, dtype: str = "float32") -> np.ndarray:
    """Returns random values [rows, features]."""
    return np.random.default_rng(0).standard_normal((rows, features), np.float32).astype(dtype)


def make_pictures(count: int, height: int, width: int) -> np.ndarray:
    """Returns uint8 [count, height, width, 3]: different pictures of soft patches with a camera's noise."""
    rng = np.random.default_rng(0)
    patches = rng.integers(0, 256, (16, 16, 3), np.uint8)
    large_picture = np.kron(patches, np.ones((-(-height // 8), -(-width // 8), 1), np.uint8))
    noise = rng.integers(0, 6, (height, width, 3), np.uint8)
    rows, columns = (rng.integers(0, size + 1, count) for size in (height, width))
    crops = (
        large_picture[row : row + height, column : column + width] for row, column in zip(rows, columns, strict=True)
    )
    return np.stack([np.where(crop > 249, crop, crop + noise) for crop in crops])


def make_jpegs(count: int, height: int, width: int) -> list[bytes]:
    encoded = robocache.frames.encode(make_pictures(count, height, width), quality=95)
    data, offsets = encoded.data.tobytes(), encoded.offsets.tolist()
    return [data[begin:end] for begin, end in pairwise(offsets)]


def split_into_ranges(rows: int, size: int) -> Iterator[tuple[int, int]]:
    return ((begin, min(rows, begin + size)) for begin in range(0, rows, size))


# ---- tables ----


def lerobot(folder: Path, rows: int) -> Source:
    """32 float32 per row, episodes of 1024 rows, 100 episodes per file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    values, episode = make_values(rows, 32), np.arange(rows) // 1024
    frame_index = np.arange(rows) % 1024
    table = pa.table(
        {
            "observation.state": pa.FixedSizeListArray.from_arrays(values.reshape(-1), 32),
            "timestamp": (frame_index / 50).astype(np.float32),
            "frame_index": frame_index,
            "episode_index": episode,
            "index": np.arange(rows),
            "task_index": np.zeros(rows, np.int64),
        }
    )
    for number, (begin, end) in enumerate(split_into_ranges(rows, 100 * 1024)):
        file = folder / f"data/chunk-000/file-{number:03d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(begin, end - begin), file)
    episode_rows = [
        {"episode_index": number, "tasks": ["lift the cube"], "length": end - begin}
        for number, (begin, end) in enumerate(split_into_ranges(rows, 1024))
    ]
    (folder / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(episode_rows), folder / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.table({"task_index": [0], "task": ["lift the cube"]}), folder / "meta/tasks.parquet")
    scalar = {"shape": [1], "names": None}
    features = {"observation.state": {"dtype": "float32", "shape": [32], "names": None}}
    features |= {"timestamp": scalar | {"dtype": "float32"}}
    features |= dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), scalar | {"dtype": "int64"})
    info = {"codebase_version": "v3.0", "fps": 50, "features": features, "total_episodes": len(episode_rows)}
    (folder / "meta/info.json").write_text(json.dumps(info))

    def read() -> int:
        return sum(pq.read_table(file).num_rows for file in sorted(folder.glob("data/*/*.parquet")))

    return Source(folder, read, "observation.state")


def csv(folder: Path, rows: int) -> Source:
    """12 columns of 9 digits at 1 kHz, in files of 100,000 rows."""
    import pyarrow as pa
    import pyarrow.csv

    values = make_values(rows, 12, "float64").round(9)
    for begin, end in split_into_ranges(rows, 100_000):
        columns = {"t [ns]": START_NS + np.arange(begin, end) * 10**6}
        columns |= {f"x{column}": values[begin:end, column] for column in range(12)}
        (folder / f"run_{begin}").mkdir()
        pa.csv.write_csv(pa.table(columns), folder / f"run_{begin}" / "joints.csv")

    def read() -> int:
        return sum(pa.csv.read_csv(file).num_rows for file in folder.glob("*/*.csv"))

    return Source(folder, read, "joints")


def euroc(folder: Path, rows: int) -> Source:
    """An IMU at 200 Hz and a camera at 20 Hz, whose images are PNGs of 752 x 480."""
    import pyarrow.csv

    imu, camera = folder / "mav0/imu0", folder / "mav0/cam0"
    (camera / "data").mkdir(parents=True)
    imu.mkdir()
    axes = [f"{name}_{axis} [{unit}]" for name, unit in (("w", "rad s^-1"), ("a", "m s^-2")) for axis in "xyz"]
    values = np.column_stack([START_NS + np.arange(rows) * 5_000_000, make_values(rows, 6).astype(object)])
    lines = (",".join(map(str, line)) for line in values.tolist())
    (imu / "data.csv").write_text("\n".join(["#timestamp [ns]," + ",".join(axes), *lines]) + "\n")
    (imu / "sensor.yaml").write_text("%YAML:1.0\nsensor_type: imu\nrate_hz: 200\n")
    (camera / "sensor.yaml").write_text("%YAML:1.0\nsensor_type: camera\nrate_hz: 20\n")
    pictures = make_pictures(min(16, rows), 480, 752)[..., :1]
    encoded = robocache.frames.encode(np.ascontiguousarray(pictures), codec="png")
    stamps = [START_NS + row * 50_000_000 for row in range(rows // 10)]
    for row, stamp in enumerate(stamps):
        begin, end = encoded.offsets[row % len(pictures) :][:2]
        (camera / "data" / f"{stamp}.png").write_bytes(encoded.data[begin:end].tobytes())
    stamp_lines = "".join(f"{stamp},{stamp}.png\n" for stamp in stamps)
    (camera / "data.csv").write_text(f"#timestamp [ns],filename\n{stamp_lines}")

    def read() -> int:
        for file in (camera / "data").iterdir():
            file.read_bytes()
        return pyarrow.csv.read_csv(imu / "data.csv").num_rows

    return Source(folder, read, "imu0")


# ---- HDF5, zarr, numpy ----


def read_hdf5(files: list[Path], suffix: str) -> int:
    """Reads all datasets. Returns the number of rows of all datasets whose path ends with `suffix`."""
    import h5py

    rows = 0

    def visit(name: str, item: Any) -> None:
        nonlocal rows
        if isinstance(item, h5py.Dataset):
            values = item[()]
            rows += len(values) if name.endswith(suffix) else 0

    for path in files:
        with h5py.File(path) as file:
            file.visititems(visit)
    return rows


def write_robomimic(folder: Path, rows: int, arrays: dict[str, np.ndarray], **options: Any) -> Source:
    import h5py

    path = folder / "demos.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": 20}})
        for number, (begin, end) in enumerate(split_into_ranges(rows, 400)):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = end - begin
            for name, values in arrays.items():
                demo.create_dataset(name, data=values[begin:end])
    return Source(path, lambda: read_hdf5([path], "/actions"), "actions", options)


def robomimic(folder: Path, rows: int) -> Source:
    """7 actions and 57 numbers of observation, demos of 400 rows."""
    values = make_values(rows, 64)
    return write_robomimic(folder, rows, {"actions": values[:, :7], "obs/object": values[:, 7:]})


def robomimic_frames(folder: Path, rows: int) -> Source:
    """Raw pixels of 84 x 84, stored raw."""
    frames = make_pictures(400, 84, 84)[np.arange(rows) % 400]
    arrays = {"actions": make_values(rows, 7), "obs/agentview_image": frames}
    return write_robomimic(folder, rows, arrays, image_codec="raw")


def aloha(folder: Path, rows: int) -> Source:
    """JPEGs of 480 x 640, padded to one length, stored unchanged; episodes of 400 rows."""
    import h5py

    jpegs = make_jpegs(min(24, rows), 480, 640)
    longest = max(map(len, jpegs))
    padded = np.stack([np.frombuffer(jpeg.ljust(longest, b"\0"), np.uint8) for jpeg in jpegs])
    files = []
    for number, (begin, end) in enumerate(split_into_ranges(rows, 400)):
        files.append(folder / f"episode_{number}.hdf5")
        values = make_values(end - begin, 14)
        with h5py.File(files[-1], "w") as file:
            file.attrs.update(sim=False, compress=True)
            file["observations/qpos"] = values
            file["action"] = values
            frames = padded[np.arange(begin, end) % len(padded)]
            file.create_dataset("observations/images/cam_high", data=frames, chunks=(1, longest))
    return Source(folder, lambda: read_hdf5(files, "action"), "action", {"rate_hz": 50})


def droid(folder: Path, rows: int) -> Source:
    """The 32 datasets of trajectory.h5, one chunk per row as DROID's recorder writes them; episodes of 400 rows."""
    import h5py

    files = []
    for number, (begin, end) in enumerate(split_into_ranges(rows, 400)):
        step_ms = START_NS // 10**6 + begin * 1000 + np.arange(end - begin) * 66
        datasets = {
            f"observation/robot_state/part_{part}": make_values(end - begin, 7, "float64") for part in range(20)
        }
        datasets |= {f"action/part_{part}": make_values(end - begin, 7, "float64") for part in range(6)}
        datasets |= {f"observation/timestamp/robot_state/{name}": step_ms + 1 for name in ("read_start", "read_end")}
        control = ("step_start", "policy_start", "control_start", "step_end")
        datasets |= {f"observation/timestamp/control/{name}": step_ms for name in control}
        files.append(folder / f"episode_{number:03d}" / "trajectory.h5")
        files[-1].parent.mkdir()
        with h5py.File(files[-1], "w") as file:
            for name, values in datasets.items():
                size = values.shape[1:]
                file.create_dataset(name, data=values, chunks=(1, *size), maxshape=(None, *size))
    return Source(folder, lambda: read_hdf5(files, "action/part_0"), "action/part_0")


def write_zarr(folder: Path, rows: int, arrays: dict[str, np.ndarray], **options: Any) -> Source:
    import zarr

    path = folder / "replay.zarr"
    root = zarr.open_group(str(path), mode="w", zarr_format=2)
    arrays = {f"data/{name}": values for name, values in arrays.items()}
    arrays["meta/episode_ends"] = np.array([end for _, end in split_into_ranges(rows, 400)])
    for name, values in arrays.items():
        chunk = max(1, min(len(values), (1 << 20) // max(1, values[0].nbytes)))
        array = root.create_array(name, shape=values.shape, chunks=(chunk, *values.shape[1:]), dtype=values.dtype)
        array[...] = values

    def read() -> int:
        data = zarr.open_group(str(path), mode="r")["data"]
        return {name: len(array[...]) for name, array in data.arrays()}["action"]

    return Source(path, read, "action", {"rate_hz": 10, **options})


def zarr_numbers(folder: Path, rows: int) -> Source:
    """7 actions and 57 numbers of state, in chunks of 1 MB."""
    values = make_values(rows, 64)
    return write_zarr(folder, rows, {"action": values[:, :7], "state": values[:, 7:]})


def zarr_frames(folder: Path, rows: int) -> Source:
    """Raw pixels of 96 x 96, in chunks of 1 MB, stored raw."""
    frames = make_pictures(400, 96, 96)[np.arange(rows) % 400]
    return write_zarr(folder, rows, {"action": make_values(rows, 2), "img": frames}, image_codec="raw")


def calvin(folder: Path, rows: int) -> Source:
    """One .npz per step, with depth and raw pixels of 200 x 200 and 84 x 84, stored raw."""
    split = folder / "training"
    split.mkdir()
    np.save(split / "ep_start_end_ids.npy", np.array([[0, rows - 1]]))
    values, depth = make_values(rows, 46, "float64"), make_values(200, 200)
    static, gripper = make_pictures(min(100, rows), 200, 200), make_pictures(min(100, rows), 84, 84)
    for row in range(rows):
        actions, robot, scene = np.split(values[row], [7, 22])
        frames = {"rgb_static": static[row % len(static)], "rgb_gripper": gripper[row % len(gripper)]}
        step = {"actions": actions, "robot_obs": robot, "scene_obs": scene, **frames, "depth_static": depth}
        np.savez(split / f"episode_{row:07d}.npz", **step)

    def read() -> int:
        files = sorted(split.glob("*.npz"))
        for file in files:
            with np.load(file) as step:
                for name in step.files:
                    step[name]
        return len(files)

    return Source(folder, read, "actions", {"rate_hz": 30, "image_codec": "raw"})


def npz(folder: Path, rows: int) -> Source:
    """One file for each motion of 1000 steps: 29 joints and 14 bodies in float32."""
    joints, bodies = make_values(rows, 29), make_values(rows, 42).reshape(-1, 14, 3)
    for begin, end in split_into_ranges(rows, 1000):
        motion = {"joint_pos": joints[begin:end], "joint_vel": joints[begin:end], "body_pos": bodies[begin:end]}
        np.savez(folder / f"motion_{begin:08d}.npz", fps=50, **motion)

    def read() -> int:
        rows_read = 0
        for file in sorted(folder.glob("*.npz")):
            with np.load(file) as motion:
                rows_read += len({name: motion[name] for name in motion.files}["joint_pos"])
        return rows_read

    return Source(folder, read, "joint_pos")


# ---- TFRecords ----


def example_class() -> Any:
    """Returns tf.train.Example with its map as a list of entries, which has the same bytes."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="bench/example.proto", package="bench", syntax="proto3")
    field_proto = descriptor_pb2.FieldDescriptorProto

    def message(name: str, **fields: tuple[int, Any]) -> None:
        message_type = file.message_type.add(name=name)
        for number, (key, (kind, label)) in enumerate(fields.items(), 1):
            named_type = {"type": field_proto.TYPE_MESSAGE, "type_name": f".bench.{kind}"}
            type_fields = {"type": kind} if isinstance(kind, int) else named_type
            message_type.field.add(name=key, number=number, label=label, **type_fields)

    optional, repeated = field_proto.LABEL_OPTIONAL, field_proto.LABEL_REPEATED
    message("BytesList", value=(field_proto.TYPE_BYTES, repeated))
    message("FloatList", value=(field_proto.TYPE_FLOAT, repeated))
    message("Int64List", value=(field_proto.TYPE_INT64, repeated))
    message(
        "Feature",
        bytes_list=("BytesList", optional),
        float_list=("FloatList", optional),
        int64_list=("Int64List", optional),
    )
    message("Entry", key=(field_proto.TYPE_STRING, optional), value=("Feature", optional))
    message("Features", feature=("Entry", repeated))
    message("Example", features=("Features", optional))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Example"))


def masked_crc(content: bytes) -> bytes:
    import google_crc32c

    value = google_crc32c.value(content)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def write_rlds(folder: Path, rows: int, size: int, steps: Callable[[int, int], dict], features: dict) -> Source:
    """Writes episodes of `size` steps to one shard. `steps` returns the fields of the steps from a first row to an end."""
    example = example_class()
    path = folder / "toy-train.tfrecord-00000-of-00001"
    episodes = list(split_into_ranges(rows, size))
    with path.open("wb") as file:
        for begin, end in episodes:
            episode = example()
            for key, values in steps(begin, end).items():
                feature = episode.features.feature.add(key=f"steps/{key}").value
                if isinstance(values, list):
                    feature.bytes_list.value.extend(values)
                else:
                    floats = values.dtype.kind == "f"
                    value_list = feature.float_list if floats else feature.int64_list
                    value_list.value.extend(values.reshape(-1).astype(float if floats else int).tolist())
            record = episode.SerializeToString()
            length = struct.pack("<Q", len(record))
            file.write(length + masked_crc(length) + record + masked_crc(record))
    core = "tensorflow_datasets.core.features."
    inner = {"pythonClassName": f"{core}features_dict.FeaturesDict", "featuresDict": {"features": features}}
    sequence = {"pythonClassName": f"{core}dataset_feature.Dataset", "sequence": {"feature": inner, "length": "-1"}}
    outer = {"pythonClassName": f"{core}features_dict.FeaturesDict", "featuresDict": {"features": {"steps": sequence}}}
    (folder / "features.json").write_text(json.dumps(outer))
    split = {"name": "train", "shardLengths": [str(len(episodes))]}
    info = {"name": "toy", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))

    def read() -> int:
        rows_read = 0
        with path.open("rb") as file:
            while head := file.read(12):
                record = file.read(struct.unpack("<Q", head[:8])[0])
                if head[8:] != masked_crc(head[:8]) or file.read(4) != masked_crc(record):
                    raise ValueError("a checksum differs")
                for entry in example.FromString(record).features.feature:
                    value_list = entry.value
                    if value_list.HasField("bytes_list"):
                        values: Any = list(value_list.bytes_list.value)
                    elif value_list.HasField("float_list"):
                        values = np.array(value_list.float_list.value, np.float32)
                    else:
                        values = np.array(value_list.int64_list.value, np.int64)
                    rows_read += len(values) if entry.key == "steps/is_first" else 0
        return rows_read

    return Source(folder, read, "is_first", {"rate_hz": 5})


def tensor_feature(dtype: str, *shape: int) -> dict:
    sizes = {"dimensions": [str(size) for size in shape]} if shape else {}
    return {
        "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
        "tensor": {"shape": sizes, "dtype": dtype, "encoding": "none"},
    }


def rlds(folder: Path, rows: int) -> Source:
    """64 float32 per step, episodes of 400 steps."""
    values = make_values(rows, 64)

    def steps(begin: int, end: int) -> dict:
        return {"action": values[begin:end], "is_first": np.arange(end - begin) == 0}

    return write_rlds(
        folder, rows, 400, steps, {"action": tensor_feature("float32", 64), "is_first": tensor_feature("bool")}
    )


def rlds_frames(folder: Path, rows: int) -> Source:
    """JPEGs of 256 x 256, stored unchanged, episodes of 100 steps."""
    values, jpegs = make_values(rows, 7), make_jpegs(min(100, rows), 256, 256)
    image = {"shape": {"dimensions": ["256", "256", "3"]}, "dtype": "uint8", "encodingFormat": "jpeg"}
    features = {
        "action": tensor_feature("float32", 7),
        "is_first": tensor_feature("bool"),
        "image": {"pythonClassName": "tensorflow_datasets.core.features.image_feature.Image", "image": image},
    }

    def steps(begin: int, end: int) -> dict:
        frames = [jpegs[row % len(jpegs)] for row in range(begin, end)]
        return {"action": values[begin:end], "is_first": np.arange(end - begin) == 0, "image": frames}

    return write_rlds(folder, rows, 100, steps, features)


# ---- recorded messages ----


def typestore(ros: int = 2) -> Any:
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS2_HUMBLE if ros == 2 else Stores.ROS1_NOETIC)


def imu_messages(rows: int, ros: int = 2) -> Iterator[tuple[int, bytes]]:
    """Yields sensor_msgs/Imu at 1 kHz as (stamp, message), 316 bytes each in CDR."""
    head = [("cdr", "V4")] if ros == 2 else [("seq", "<u4")]
    frame = [("length", "<u4"), ("frame", "S4" if ros == 2 else "S3")]
    messages = np.zeros(rows, [*head, ("sec", "<u4"), ("nanosec", "<u4"), *frame, ("values", "<f8", 37)])
    stamps = START_NS + np.arange(rows) * 10**6
    messages["sec"], messages["nanosec"] = stamps // 10**9, stamps % 10**9
    messages["length"], messages["frame"], messages["values"] = (4 if ros == 2 else 3), b"imu", make_values(rows, 37)
    if ros == 2:
        messages["cdr"] = np.void(b"\0\1\0\0")
    size, data = messages.itemsize, messages.tobytes()
    for row, stamp in enumerate(stamps.tolist()):
        yield stamp, data[row * size : (row + 1) * size]


def cloud_messages(rows: int) -> Iterator[tuple[int, bytes]]:
    """Yields sensor_msgs/PointCloud2 of 16,384 points, 256 KiB, as (stamp, message)."""
    store = typestore()
    types = store.types
    points = make_values(16_384, 4)
    floats = [types["sensor_msgs/msg/PointField"](name, 4 * n, 7, 1) for n, name in enumerate(("x", "y", "z", "i"))]
    for row in range(rows):
        points += 1
        data, stamp = points.view(np.uint8).reshape(-1), START_NS + row * 10**7
        header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](*divmod(stamp, 10**9)), "lidar")
        cloud = types["sensor_msgs/msg/PointCloud2"](header, 1, 16_384, floats, False, 16, len(data), data, True)
        yield stamp, bytes(store.serialize_cdr(cloud, "sensor_msgs/msg/PointCloud2"))


def jpeg_messages(rows: int) -> Iterator[tuple[int, bytes]]:
    """Yields sensor_msgs/CompressedImage of 720 x 1280 as (stamp, message)."""
    store = typestore()
    types, images = store.types, make_jpegs(min(8, rows), 720, 1280)
    for row in range(rows):
        stamp, data = START_NS + row * 10**7, np.frombuffer(images[row % len(images)], np.uint8)
        header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](*divmod(stamp, 10**9)), "camera")
        image = types["sensor_msgs/msg/CompressedImage"](header, "jpeg", data)
        yield stamp, bytes(store.serialize_cdr(image, "sensor_msgs/msg/CompressedImage"))


def write_mcap(path: Path, topic: str, name: str, messages: Iterator[tuple[int, bytes]]) -> Source:
    from mcap.reader import make_reader
    from mcap.writer import CompressionType, Writer

    with path.open("wb") as file:
        writer = Writer(file, compression=CompressionType.NONE)
        writer.start(profile="ros2")
        text = typestore().generate_msgdef(name, ros_version=2)[0]
        schema = writer.register_schema(name=name, encoding="ros2msg", data=text.encode())
        channel = writer.register_channel(topic=topic, message_encoding="cdr", schema_id=schema)
        for stamp, data in messages:
            writer.add_message(channel, stamp, data, stamp)
        writer.finish()

    def read() -> int:
        with path.open("rb") as file:
            return sum(1 for _ in make_reader(file).iter_messages())

    return Source(path, read, topic)


def mcap(folder: Path, rows: int) -> Source:
    """sensor_msgs/Imu, 316 bytes per message."""
    from mcap.reader import make_reader

    name, store = "sensor_msgs/msg/Imu", typestore()
    source = write_mcap(folder / "imu.mcap", "/imu", name, imu_messages(rows))

    def decode() -> int:
        with source.path.open("rb") as file:
            messages = make_reader(file).iter_messages()
            return sum(1 for _, _, message in messages if store.deserialize_cdr(message.data, name))

    return replace(source, decode=decode)


def mcap_clouds(folder: Path, rows: int) -> Source:
    """Clouds of 256 KiB."""
    return write_mcap(folder / "lidar.mcap", "/points", "sensor_msgs/msg/PointCloud2", cloud_messages(rows))


def mcap_jpeg(folder: Path, rows: int) -> Source:
    """JPEGs of 720 x 1280, stored unchanged."""
    return write_mcap(folder / "camera.mcap", "/camera", "sensor_msgs/msg/CompressedImage", jpeg_messages(rows))


def write_bag(writer: Any, reader: Callable[[], Any], ros: int, rows: int) -> Source:
    """Writes sensor_msgs/Imu with a writer of rosbags. `reader` opens the written bag."""
    store = typestore(ros)
    deserialize = store.deserialize_cdr if ros == 2 else store.deserialize_ros1
    with writer:
        connection = writer.add_connection("/imu", "sensor_msgs/msg/Imu", typestore=store)
        for stamp, data in imu_messages(rows, ros):
            writer.write(connection, stamp, data)

    def read() -> int:
        with reader() as bag:
            return sum(1 for _ in bag.messages())

    def decode() -> int:
        with reader() as bag:
            return sum(1 for connection, _, data in bag.messages() if deserialize(data, connection.msgtype))

    return Source(writer.path, read, "/imu", decode=decode)


def rosbag2(folder: Path, rows: int) -> Source:
    """sensor_msgs/Imu in SQLite."""
    from rosbags.rosbag2 import Reader, Writer

    return write_bag(Writer(folder / "bag", version=9), lambda: Reader(folder / "bag"), 2, rows)


def rosbag1(folder: Path, rows: int) -> Source:
    """sensor_msgs/Imu, in uncompressed chunks."""
    from rosbags.rosbag1 import Reader, Writer

    return write_bag(Writer(folder / "imu.bag"), lambda: Reader(folder / "imu.bag"), 1, rows)


def ulog(folder: Path, rows: int) -> Source:
    """A topic of 12 floats, 61 bytes per message. It is written here, since no library writes ULog."""
    from pyulog import ULog

    def ulog_message(kind: bytes, content: bytes) -> bytes:
        return struct.pack("<H", len(content)) + kind + content

    data = np.zeros(rows, [("size", "<u2"), ("kind", "S1"), ("id", "<u2"), ("timestamp", "<u8"), ("values", "<f4", 12)])
    data["size"], data["kind"], data["timestamp"] = data.itemsize - 3, b"D", 10**6 + np.arange(rows) * 1000
    data["values"] = make_values(rows, 12)
    fields = "".join(f"float x{number};" for number in range(12))
    path = folder / "log.ulg"
    path.write_bytes(
        b"ULog\x01\x12\x35\x01"
        + struct.pack("<Q", 10**6)
        + ulog_message(b"B", bytes(40))
        + ulog_message(b"F", f"motors:uint64_t timestamp;{fields}".encode())
        + ulog_message(b"A", b"\0\0\0motors")
        + data.tobytes()
    )
    return Source(path, lambda: len(ULog(str(path)).data_list[0].data["timestamp"]), "motors")


# ---- clouds ----


def clouds(folder: Path, rows: int) -> Source:
    """KITTI's .bin of 100,000 points."""
    points = make_values(100_000, 4)
    (folder / "velodyne").mkdir()
    for row in range(rows):
        (points + np.float32(row)).tofile(folder / "velodyne" / f"{row:06d}.bin")

    def read() -> int:
        return len([np.fromfile(file, np.float32).reshape(-1, 4) for file in (folder / "velodyne").iterdir()])

    return Source(folder, read, "points", {"rate_hz": 10})


def clouds_las(folder: Path, rows: int) -> Source:
    """LAS of 500,000 points with time and colour."""
    import laspy

    cloud = laspy.create(point_format=3, file_version="1.2")
    cloud.header.scales, cloud.header.offsets = [0.001] * 3, [0.0] * 3
    cloud.xyz = make_values(500_000, 3, "float64")
    for row in range(rows):
        cloud.intensity = np.full(500_000, row, np.uint16)
        cloud.write(str(folder / f"{row:06d}.las"))

    def read() -> int:
        files = list(folder.glob("*.las"))
        for file in files:
            las = laspy.read(file)
            np.asarray(las.xyz)
            for name in las.point_format.dimension_names:
                np.asarray(las[name])
        return len(files)

    return Source(folder, read, "points", {"rate_hz": 10})
