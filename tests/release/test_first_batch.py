"""From the shipped wheel to the first batch in a new environment, and the time of an import, in CPU seconds: other programs hardly change them.

`./dev release` runs it, after `./dev wheel`. Packages come from a folder.
"""

import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_BATCH = """
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


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def import_seconds(python):
    command = [python, "-I", "-c", IMPORT]
    return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(9))


def test_a_wheel_gives_a_batch_within_half_a_minute(tmp_path):
    wheels = sorted((ROOT / "dist").glob(f"robocache-*_{platform.machine()}.whl"))
    if not wheels:
        pytest.skip("NOT RUN: needs the wheels of ./dev wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "-q", "--dest", tmp_path / "wheelhouse", wheels[-1]], check=True)
    python, begin = tmp_path / "new/bin/python", cpu_seconds()
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "new"], check=True)
    install = [python, "-m", "pip", "install", "-q", "--no-index", "--find-links", tmp_path / "wheelhouse", "robocache"]
    subprocess.run(install, check=True)
    subprocess.run([python, "-I", "-c", FIRST_BATCH], cwd=tmp_path, check=True)
    took = cpu_seconds() - begin
    print(f"wheel to first batch: {took:.1f} s of CPU time")
    assert took < 30
    installed = [path for path in (tmp_path / "new").rglob("robocache*/**/*") if path.suffix != ".pyc"]
    megabytes = sum(path.stat().st_size for path in installed if path.is_file()) / 1e6
    print(f"installed: {megabytes:.1f} MB")
    assert megabytes < 40
    took = import_seconds(python)
    print(f"import beyond numpy and tvm_ffi: {1000 * took:.1f} ms of CPU time")
    assert took < 0.025
    (package,) = (tmp_path / "new").rglob("site-packages/robocache/__init__.py")
    with package.open("a") as module:
        module.write("\nimport time\nwhile time.process_time() < 1: pass\n")
    assert import_seconds(python) > 0.025
