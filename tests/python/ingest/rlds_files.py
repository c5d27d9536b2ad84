"""Writes TFRecords and features.json as TFDS does, byte by byte."""

import json
import struct

import google_crc32c
import numpy as np

TFDS = "tensorflow_datasets.core.features."


def varint(number):
    number &= 2**64 - 1
    content = b""
    while number > 127:
        content += bytes([number & 127 | 128])
        number >>= 7
    return content + bytes([number])


def field(number, content):
    """Returns a field of wire type 2: a length and its bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values, packed=True):
    """Returns a list of bytes, floats or integers as a tf.train.Feature."""
    if isinstance(values, list):
        return field(1, b"".join(field(1, value.encode() if isinstance(value, str) else value) for value in values))
    values = np.asarray(values).reshape(-1)
    if values.dtype.kind == "f":
        raw = values.astype("<f4").tobytes()
        return field(
            2,
            field(1, raw)
            if packed
            else b"".join(b"\x0d" + raw[offset : offset + 4] for offset in range(0, len(raw), 4)),
        )
    numbers = [varint(int(value)) for value in values]
    return field(3, field(1, b"".join(numbers)) if packed else b"".join(b"\x08" + number for number in numbers))


def example(features, packed=True):
    """Returns a serialized tf.train.Example."""
    entries = (field(1, field(1, key.encode()) + field(2, feature(values, packed))) for key, values in features.items())
    return field(1, b"".join(entries))


def crc(content):
    """Returns the masked CRC-32C of TFRecord."""
    value = google_crc32c.value(content)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(payload):
    length = struct.pack("<Q", len(payload))
    return length + crc(length) + payload + crc(payload)


def tensor(dtype, *shape, encoding="none"):
    sizes = {"dimensions": [str(-1 if size is None else size) for size in shape]} if shape else {}
    return {
        "pythonClassName": TFDS + "tensor_feature.Tensor",
        "tensor": {"shape": sizes, "dtype": dtype, "encoding": encoding},
    }


def image(*shape, dtype="uint8"):
    content = {"shape": {"dimensions": [str(size) for size in shape]}, "dtype": dtype, "encodingFormat": "png"}
    return {"pythonClassName": TFDS + "image_feature.Image", "image": content}


def text():
    return {"pythonClassName": TFDS + "text_feature.Text", "text": {}}


def label():
    return {"pythonClassName": TFDS + "class_label_feature.ClassLabel", "classLabel": {"numClasses": "3"}}


def group(**features):
    return {"pythonClassName": TFDS + "features_dict.FeaturesDict", "featuresDict": {"features": features}}


def sequence(feature):
    return {"pythonClassName": TFDS + "dataset_feature.Dataset", "sequence": {"feature": feature, "length": "-1"}}


def write_rlds(folder, shards, features=None, lengths=None, name="toy"):
    """shards: {split: [[Example as bytes, ...], ...]}. lengths: {split: [records of each shard]} for dataset_info.json, which False leaves out."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, files in shards.items():
        for number, records in enumerate(files):
            path = folder / f"{name}-{split}.tfrecord-{number:05d}-of-{len(files):05d}"
            path.write_bytes(b"".join(map(record, records)))
    if features is not None:
        (folder / "features.json").write_text(json.dumps(features))
    if lengths is not False:
        counts = lengths or {split: [len(records) for records in files] for split, files in shards.items()}
        splits = [{"name": split, "shardLengths": [str(length) for length in counts[split]]} for split in counts]
        info = {"name": name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}
        (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder
