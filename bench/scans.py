"""Real scans out of $ROBOCACHE_TEST_DATA: an outdoor lidar's, an airborne laser's, a depth camera's.

python bench/scans.py FOLDER       # the points alone, as .npy, for a machine that gets FOLDER as its ROBOCACHE_TEST_DATA
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

SCANS = {
    "outdoor lidar": "lidar/small_gicp/target.ply",  # 69,088 points
    "airborne laser": "lidar/pcl_terrain_als/CSite4_orig-utm.pcd",  # 518,056 points in UTM coordinates
    "depth camera": "lidar/pcl_mosd_kinect/learn/learn13.pcd",  # 640 by 480 pixels, NaN where nothing came back
}
_TYPES = {"F": "f", "U": "u", "I": "i"}  # PCD's letters and numpy's


def available() -> list[str]:
    """The scans that are there."""
    folder = os.environ.get("ROBOCACHE_TEST_DATA")
    return [name for name in SCANS if folder and any(path.exists() for path in _paths(Path(folder), name))]


def load(name: str) -> np.ndarray:
    """[N, 3] float32: x, y and z in the order of the file, NaN where it has them."""
    points, original = _paths(Path(os.environ["ROBOCACHE_TEST_DATA"]), name)
    if points.exists():
        return np.load(points)
    columns = (read_ply if original.suffix == ".ply" else read_pcd)(original.read_bytes())
    return np.stack([columns[axis].astype(np.float32, copy=False) for axis in "xyz"], 1)


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{SCANS[name]}.npy", folder / SCANS[name]


def read_ply(content: bytes) -> dict[str, np.ndarray]:
    """The columns of a binary little-endian PLY of float properties and vertices alone."""
    head, body = content.split(b"end_header\n", 1)
    lines = [line.split() for line in head.decode("ascii").splitlines()]
    if ["format", "binary_little_endian", "1.0"] not in lines:
        raise ValueError("expected a binary little-endian PLY")
    (rows,) = (int(line[2]) for line in lines if line[:2] == ["element", "vertex"])
    fields = [(line[2], "<f4") for line in lines if line[:2] == ["property", "float"]]
    table = np.frombuffer(body, np.dtype(fields), rows)
    return {name: table[name] for name, _ in fields}


def read_pcd(content: bytes) -> dict[str, np.ndarray]:
    """The columns of a PCD whose data are binary_compressed: one column after the other, by LZF."""
    marker = b"DATA binary_compressed\n"
    head, body = content.split(marker, 1)
    facts = {words[0]: words[1:] for line in head.decode("ascii").splitlines() if (words := line.split())}
    rows, place, columns = int(facts["POINTS"][0]), 0, {}
    packed, size = np.frombuffer(body, "<u4", 2)
    plain = lzf(body[8 : 8 + int(packed)], int(size))
    for name, letter, width in zip(facts["FIELDS"], facts["TYPE"], facts["SIZE"], strict=True):
        columns[name] = np.frombuffer(plain, f"<{_TYPES[letter]}{width}", rows, place)
        place += rows * int(width)
    return columns


def lzf(packed: bytes, size: int) -> bytes:
    """Unpacks LibLZF: runs of literals, and copies of what came before."""
    plain, at = bytearray(), 0
    while at < len(packed):
        control = packed[at]
        at += 1
        if control < 32:
            plain += packed[at : at + control + 1]
            at += control + 1
            continue
        length = control >> 5
        if length == 7:
            length += packed[at]
            at += 1
        start = len(plain) - ((control & 31) << 8) - packed[at] - 1
        at += 1
        length += 2
        while length > 0:  # a copy may reach into itself
            piece = plain[start : start + length]
            plain += piece
            start, length = start + len(piece), length - len(piece)
    if len(plain) != size:
        raise ValueError(f"expected {size} bytes, got {len(plain)}")
    return bytes(plain)


def main() -> None:
    folder = Path(sys.argv[1])
    for name in available():
        path = _paths(folder, name)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, load(name))
        print(path)


if __name__ == "__main__":
    main()
