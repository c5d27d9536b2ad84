"""Real scans in ROBOCACHE_TEST_DATA: binary PLY and PCD files as structured NumPy arrays."""

import functools
import os
from pathlib import Path

import numpy as np

_PLY_TYPES = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "float": "f4",
    "double": "f8",
}

SCANS = {
    "small_gicp": "lidar/small_gicp/source.ply",  # a spinning lidar outdoors, 70k points with intensity
    "terrain": "lidar/pcl_terrain_als/CSite4_orig-utm.pcd",  # from the air, 518k points in UTM coordinates
    "kinect": "lidar/pcl_mosd_kinect/learn/learn13.pcd",  # 640 x 480, NaN without a return
}


def scan_path(name):
    """Returns the path of the scan of that name, or None if this machine has none."""
    root = os.environ.get("ROBOCACHE_TEST_DATA")
    path = None if root is None else Path(root) / SCANS[name]
    return path if path is not None and path.exists() else None


@functools.cache
def read_scan(name):
    """Returns the scan's columns as a structured array, read once in a process."""
    path = scan_path(name)
    scan = read_ply(path) if path.suffix == ".ply" else read_pcd(path)
    scan.flags.writeable = False
    return scan


def xyz(scan, dtype=np.float32):
    """Returns [N, 3] of a scan's columns."""
    return np.stack([scan[axis] for axis in "xyz"], axis=1).astype(dtype)


def read_ply(path):
    """Returns the vertices of a binary little-endian PLY file."""
    data = Path(path).read_bytes()
    end = data.index(b"end_header\n") + len(b"end_header\n")
    fields, count = [], 0
    for line in data[:end].decode("ascii").splitlines():
        words = line.split()
        if words[:2] == ["element", "vertex"]:
            count = int(words[2])
        elif words[0] == "property":
            fields.append((words[2], "<" + _PLY_TYPES[words[1]]))
    return np.frombuffer(data, np.dtype(fields), count, end)


def read_pcd(path):
    """Returns the points of a PCD file, `binary` or `binary_compressed`, with one number for each field."""
    data = Path(path).read_bytes()
    header, end = {}, 0
    while "DATA" not in header:
        line_end = data.index(b"\n", end)
        words = data[end:line_end].decode("ascii").split()
        if words and words[0] != "#":
            header[words[0]] = words[1:]
        end = line_end + 1
    kinds = {"F": "f", "U": "u", "I": "i"}
    fields = [
        (name, f"<{kinds[kind]}{size}")
        for name, kind, size in zip(header["FIELDS"], header["TYPE"], header["SIZE"], strict=True)
    ]
    count = int(header["POINTS"][0])
    if header["DATA"][0] == "binary":
        return np.frombuffer(data, np.dtype(fields), count, end)
    packed, unpacked = np.frombuffer(data, "<u4", 2, end)
    columns = lzf_decompressed(data[end + 8 : end + 8 + int(packed)], int(unpacked))
    points, offset = np.empty(count, np.dtype(fields)), 0
    for name, dtype in fields:  # compressed files have one field after the other
        points[name] = np.frombuffer(columns, dtype, count, offset)
        offset += count * np.dtype(dtype).itemsize
    return points


def lzf_decompressed(data, size):
    """Decompresses `size` bytes of LZF: literal runs, and copies of earlier output."""
    output, position = bytearray(), 0
    while position < len(data):
        control = data[position]
        position += 1
        if control < 32:
            output += data[position : position + control + 1]
            position += control + 1
            continue
        length = control >> 5
        if length == 7:
            length += data[position]
            position += 1
        length += 2
        start = len(output) - ((control & 31) << 8 | data[position]) - 1
        position += 1
        if start + length <= len(output):
            output += output[start : start + length]
        else:  # overlaps its own output: a repeating pattern
            pattern = output[start:]
            output += (pattern * (length // len(pattern) + 1))[:length]
    assert len(output) == size, f"{len(output)} bytes, expected {size}"
    return bytes(output)
