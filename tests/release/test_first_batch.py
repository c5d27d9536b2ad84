"""In a new environment, the shipped wheel is imported and gives a first batch within limits of CPU seconds. Other programs on
the machine hardly change these.

`./dev release` runs it, after `./dev wheel`. Packages come from a folder.
"""

import importlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_wheel_gives_a_batch_within_its_aim(tmp_path, monkeypatch):
    wheels = sorted((ROOT / "dist").glob(f"robocache-*_{platform.machine()}.whl"), key=os.path.getmtime)
    if not wheels:
        pytest.skip("NOT RUN: needs the wheels of ./dev wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "-q", "--dest", tmp_path / "wheelhouse", wheels[-1]], check=True)
    wheelhouse = ["--no-index", "--find-links", tmp_path / "wheelhouse"]
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    bench = importlib.import_module("first_batch")
    cpu_seconds = bench.first_batch(tmp_path, *wheelhouse, "robocache")
    print(f"wheel to first batch: {cpu_seconds:.1f} s of CPU time")
    assert cpu_seconds < bench.WHEEL_AIM_S
    megabytes = bench.installed_bytes(tmp_path) / 1e6
    print(f"installed: {megabytes:.1f} MB")
    assert megabytes < 40
    cpu_seconds = bench.import_s(tmp_path)
    print(f"import beyond numpy and tvm_ffi: {1000 * cpu_seconds:.1f} ms of CPU time")
    assert cpu_seconds < 0.025
    (package,) = (tmp_path / "new").rglob("site-packages/robocache/__init__.py")
    with package.open("a") as module:
        module.write("\nimport time\nwhile time.process_time() < 1: pass\n")
    assert bench.import_s(tmp_path) > 0.025  # a slow import is noticed
