"""Runs every benchmark in turn, or the named ones, and then renders the pages. Unless named, the sweep and the shapes run only
with a GPU, and lerobot_batches, lerobot_train, ros2 and ros2_sets, which need their own environments, do not run.

python -m bench [NAME ...] [options of the benchmarks]      # the names are the keys of TITLES in bench/render.py
"""

import runpy
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from render import TITLES  # noqa: E402

BENCHES = list(TITLES)
ONLY_BY_NAME = {"lerobot_batches", "lerobot_train", "ros2", "ros2_sets"}


def main() -> int:
    left_out = ONLY_BY_NAME | (set() if torch.cuda.is_available() else {"sweep", "shapes"})
    names = [argument for argument in sys.argv[1:] if argument in BENCHES]
    names = names or [name for name in BENCHES if name not in left_out]
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
    writes_elsewhere = any(option.startswith(("--out", "--only")) for option in options)
    if not {"--quick", "--help", "-h"} & set(options) and not writes_elsewhere:
        sys.argv = [str(HERE / "render.py")]
        runpy.run_path(sys.argv[0])["main"]()
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
