"""Runs every benchmark in turn, or the named ones, and then renders the pages. Unless named, the sweep and the shapes run only
with a GPU, and lerobot_batches, lerobot_train and ros2, which need their own environments, do not run.

python -m bench [resample] [fuse] [voxelize] [tsdf] [images] [lerobot_batches] [videos] [sweep] [shapes] [loader]
                [loader_one_clock] [lerobot_train] [residency] [ranks] [episodes] [actions] [live] [ros2]
                [statistics_of_windows] [ingest] [options of the benchmarks]
"""

import runpy
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
BENCHES = [
    "resample",
    "fuse",
    "voxelize",
    "tsdf",
    "images",
    "lerobot_batches",
    "videos",
    "sweep",
    "shapes",
    "loader",
    "loader_one_clock",
    "lerobot_train",
    "residency",
    "ranks",
    "episodes",
    "actions",
    "live",
    "ros2",
    "statistics_of_windows",
    "ingest",
]


def main() -> int:
    sys.path.insert(0, str(HERE))
    names = [argument for argument in sys.argv[1:] if argument in BENCHES]
    if not names:
        left_out = {
            "lerobot_batches",
            "lerobot_train",
            "ros2",
            *([] if torch.cuda.is_available() else ["sweep", "shapes"]),
        }
        names = [name for name in BENCHES if name not in left_out]
    options = [argument for argument in sys.argv[1:] if argument not in BENCHES]
    if "--help" in options or "-h" in options:
        print(__doc__)
        names = names[:1]
    failed = 0
    for name in names:
        sys.argv = [str(HERE / f"{name}.py"), *options]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as exit:
            failed |= bool(exit.code)
    elsewhere = any(option.startswith(("--out", "--only")) for option in options)
    if not {"--quick", "--help", "-h"} & set(options) and not elsewhere:
        sys.argv = [str(HERE / "render.py")]
        runpy.run_path(sys.argv[0])["main"]()
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
