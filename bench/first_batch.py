"""Measures what an installation costs in a new environment: the CPU time from a wheel or a checkout to the first batch, the size on
disk, the CPU time of an import. CPU time hardly depends on other programs.

    python3 bench/first_batch.py dist/robocache-*x86_64.whl --commit COMMIT --into bench/results/first_batch/wheel-debian-12.json

It needs a Python with venv, and nothing else, so that it also runs in a bare system.
"""

import argparse
import json
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

WHEEL_AIM_S, SOURCE_AIM_S = 30, 480  # of CPU time to the first batch

BATCH = """
import numpy as np, robocache
with robocache.Writer("cache") as writer, writer.episode() as episode:
    episode.append("joint", np.arange(1000) * 10**7, np.zeros((1000, 7), np.float32))
loader = robocache.Loader(robocache.open("cache"), batch_size=64, delta_timestamps={"joint": [-0.1, 0.0]}, device="cpu")
assert next(iter(loader))["joint"].shape == (64, 2, 7)
"""

IMPORT = """
import time, numpy, tvm_ffi
begin = time.process_time()
import robocache
print(time.process_time() - begin)
"""


def first_batch(folder: Path, *install: object) -> float:
    """Makes an environment in `folder`/new, installs there with pip, and makes a batch. Returns the CPU time in seconds."""
    begin, python = resource.getrusage(resource.RUSAGE_CHILDREN), folder / "new/bin/python"
    subprocess.run([sys.executable, "-m", "venv", folder / "new"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *install], check=True)
    subprocess.run([python, "-I", "-c", BATCH], cwd=folder, check=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def installed_bytes(folder: Path) -> int:
    """Returns the size of the package in the environment that first_batch made, without its .pyc files."""
    files = [path for path in (folder / "new").rglob("robocache*/**/*") if path.suffix != ".pyc" and path.is_file()]
    return sum(path.stat().st_size for path in files)


def import_s(folder: Path) -> float:
    """Returns the CPU time in seconds of `import robocache` after numpy and tvm_ffi: the least of 9 processes."""
    command = [folder / "new/bin/python", "-I", "-c", IMPORT]
    return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "install", nargs="+", help="for pip install: a wheel's file or a checkout's folder, and options"
    )
    parser.add_argument("--into", type=Path, required=True, help="the JSON file of the result")
    parser.add_argument("--commit", required=True, help="the commit of the wheel or the checkout")
    options, pip_options = parser.parse_known_args()
    load, begin = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        cpu_s = first_batch(Path(folder), *options.install, *pip_options)
        wall_s = time.perf_counter() - begin
        package_bytes, package_import_s = installed_bytes(Path(folder)), import_s(Path(folder))
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    install = [Path(word).name if "/" in word else word for word in (*options.install, *pip_options)]
    names = ("ROBOCACHE_CUDA", "ROBOCACHE_CUDA_ARCHITECTURES")  # the variables that change what pip compiles
    settings = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    result = {
        "machine": {"cpu": cpu.group(1) if cpu else platform.machine(), "cores": os.cpu_count()},
        "system": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Python {platform.python_version()}",
        "command": shlex.join([*settings, "pip", "install", *install]),
        "commit": options.commit,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "cpu_s": round(cpu_s, 1),
        "wall_s": round(wall_s, 1),
        "load": round(load, 1),
        "installed_bytes": package_bytes,
        "import_s": round(package_import_s, 4),
    }
    options.into.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
