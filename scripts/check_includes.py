"""Checks that every include follows the order of the rooms, so that there are no circles.

The order is core < interpolation < actions < ops < cache < source < image < sample < align < batch < live < ffi. A room
includes itself and the rooms before it. points is beside the rooms: it includes itself and core, and only ffi includes it.
Sampling and alignment read rows through source/ and never include cache/. Operations never include each other. robocache.hpp,
which programs include, has only includes. CUDA headers are only in *_cuda.cu and *_cuda.cuh, nlohmann_json only in .cpp files,
the headers of tvm-ffi only in ffi/, and torch in no C++ file.
"""

import re
import sys
from pathlib import Path

ORDER = [
    "core",
    "interpolation",
    "actions",
    "ops",
    "cache",
    "source",
    "image",
    "sample",
    "align",
    "batch",
    "live",
    "ffi",
]
BESIDE = "points"  # includes core, and is included by ffi
NO_FILES = {"sample", "align"}
SOURCES = Path("src/robocache")
UMBRELLA = SOURCES / "robocache.hpp"  # in no room, and no room includes it
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
CUDA = re.compile(r"^(cuda|cub/|thrust/|cooperative_groups|nv/|mma\.h)")
TORCH = re.compile(r"^(torch|ATen|c10|pybind11)/")


def find_mistakes(path: Path) -> list[str]:
    """Returns the faults of the includes of one source file."""
    relative_path = path.relative_to(SOURCES)
    room = relative_path.parts[0]
    operation = relative_path.parts[1] if room == "ops" and len(relative_path.parts) > 2 else None
    allowed = (
        {BESIDE, "core"} if room == BESIDE else {*ORDER[: ORDER.index(room) + 1], *([BESIDE] if room == "ffi" else [])}
    )
    is_cuda = path.stem.endswith("_cuda") and path.suffix in (".cu", ".cuh")
    faults = []
    if path.suffix == ".cu" and not is_cuda:
        faults.append("a CUDA source is named *_cuda.cu")
    for include in INCLUDE.findall(path.read_text()):
        parts = include.split("/")
        if TORCH.match(include):
            faults.append(f"{include}: torch and pybind11 stay out of the C++ library")
        elif CUDA.match(include) and not is_cuda:
            faults.append(f"{include}: CUDA headers belong in *_cuda.cu")
        elif parts[0] == "nlohmann" and path.suffix != ".cpp":
            faults.append(f"{include}: nlohmann_json belongs in .cpp files")
        elif parts[0] in ("tvm", "dlpack") and room != "ffi":
            faults.append(f"{include}: the headers of tvm-ffi belong in ffi/")
        elif parts[0] == "robocache":
            if not (SOURCES.parent / include).is_file():
                faults.append(f"{include}: no such file")
            elif parts[1] not in allowed:
                faults.append(f"{include}: {room} may not include {parts[1]}")
            elif room in NO_FILES and parts[1] == "cache":
                faults.append(f"{include}: {room} knows rows by source/, not the cache")
            elif operation and parts[1] == "ops" and len(parts) > 3 and parts[2] != operation:
                faults.append(f"{include}: operation {operation} includes operation {parts[2]}")
        elif (path.parent / include).is_file():
            faults.append(f'{include}: write "robocache/{(relative_path.parent / include).as_posix()}"')
    return faults


def main() -> int:
    files = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".hpp", ".cpp", ".cu", ".cuh"))
    mistake_count = 0
    for path in files:
        if path == UMBRELLA:
            lines = path.read_text().split("#pragma once\n")[-1].split("\n")
            for line in lines:
                if line and not (re.fullmatch(r'#include "robocache/(\w+)/.*\.hpp"', line) and "/ffi/" not in line):
                    print(f"{path}: {line}: expected includes of rooms alone, and not of ffi")
                    mistake_count += 1
            continue
        if path.relative_to(SOURCES).parts[0] not in (*ORDER, BESIDE):
            print(f"{path}: not in a room of {' < '.join(ORDER)}, or {BESIDE}")
            mistake_count += 1
            continue
        for mistake in find_mistakes(path):
            print(f"{path}: {mistake}")
            mistake_count += 1
    print(f"include order: {len(files)} files, {mistake_count} mistakes")
    return 1 if mistake_count or not files else 0


if __name__ == "__main__":
    sys.exit(main())
