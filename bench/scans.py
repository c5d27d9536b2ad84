"""Real scans from $ROBOCACHE_TEST_DATA: of an outdoor lidar, an airborne laser and a depth camera.

python bench/scans.py FOLDER       # writes the points as .npy, for a machine whose ROBOCACHE_TEST_DATA is FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from reference.scans import read_scan, scan_path, xyz

# The scans' names in the cases, and in the tests.
SCANS = {"outdoor lidar": "small_gicp", "airborne laser": "terrain", "depth camera": "kinect"}


def find_available() -> list[str]:
    """Returns the names of the available scans."""
    return [name for name in SCANS if _npy_path(name).exists() or scan_path(SCANS[name])]


def load(name: str) -> np.ndarray:
    """Returns float32 [N, 3]: x, y and z in the order of the scan. Points without a measurement stay NaN."""
    return np.load(_npy_path(name)) if _npy_path(name).exists() else xyz(read_scan(SCANS[name]))


def _npy_path(name: str) -> Path:
    return Path(os.environ.get("ROBOCACHE_TEST_DATA", "nowhere")) / f"{SCANS[name]}.npy"


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in find_available():
        path = folder / f"{SCANS[name]}.npy"
        np.save(path, load(name))
        print(path)


if __name__ == "__main__":
    main()
