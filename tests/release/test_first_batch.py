"""In a new environment, the shipped wheel is imported and gives a first batch within limits of CPU seconds. Other programs on
the machine hardly change these.

`./dev release` runs it, after `./dev wheel`. Packages come from a folder.
"""

import importlib
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORT = """
import time, numpy, tvm_ffi
begin = time.process_time()
import robocache
print(time.process_time() - begin)
"""


def import_seconds(python):
    command = [python, "-I", "-c", IMPORT]
    return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(9))


def test_a_wheel_gives_a_batch_within_half_a_minute(tmp_path, monkeypatch):
    wheels = sorted((ROOT / "dist").glob(f"robocache-*_{platform.machine()}.whl"))
    if not wheels:
        pytest.skip("NOT RUN: needs the wheels of ./dev wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "-q", "--dest", tmp_path / "wheelhouse", wheels[-1]], check=True)
    wheelhouse = ["--no-index", "--find-links", tmp_path / "wheelhouse"]
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    first_batch = importlib.import_module("first_batch").first_batch
    cpu_seconds, python = first_batch(tmp_path, *wheelhouse, "robocache"), tmp_path / "new/bin/python"
    print(f"wheel to first batch: {cpu_seconds:.1f} s of CPU time")
    assert cpu_seconds < 30
    installed = [path for path in (tmp_path / "new").rglob("robocache*/**/*") if path.suffix != ".pyc"]
    megabytes = sum(path.stat().st_size for path in installed if path.is_file()) / 1e6
    print(f"installed: {megabytes:.1f} MB")
    assert megabytes < 40
    cpu_seconds = import_seconds(python)
    print(f"import beyond numpy and tvm_ffi: {1000 * cpu_seconds:.1f} ms of CPU time")
    assert cpu_seconds < 0.025
    (package,) = (tmp_path / "new").rglob("site-packages/robocache/__init__.py")
    with package.open("a") as module:
        module.write("\nimport time\nwhile time.process_time() < 1: pass\n")
    assert import_seconds(python) > 0.025  # a slow import is noticed
