"""The shipped aarch64 wheel under qemu: every operation and a loader against stored answers, which are x86-64's too.

`./dev release` runs it, after `./dev wheel`.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEBIAN = "python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libexpat1 zlib1g libssl3 libffi8 liblzma5"
DEBIAN += " libbz2-1.0 libuuid1 libstdc++6 libgcc-s1"
PYPI = ("numpy", "apache-tvm-ffi", "pyarrow", "rich", "typing_extensions", "markdown-it-py", "mdurl", "pygments")


def test_self_test(tmp_path):
    wheels = sorted((ROOT / "dist").glob("robocache_cpu-*_aarch64.whl"))
    if not wheels or not shutil.which("qemu-aarch64-static") or not shutil.which("apt-get"):
        pytest.skip("NOT RUN: needs qemu-user-static, apt-get and the wheels of ./dev wheel")
    root, site, downloads = tmp_path / "root", tmp_path / "site", tmp_path / "downloads"
    subprocess.run([ROOT / "packaging/unpack_arm64", root, *DEBIAN.split()], check=True)
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps", "-d", downloads]
    wanted = [f"{name}=={version(name)}" for name in PYPI]
    subprocess.run([*pip, "--only-binary=:all:", "--python-version=3.11", *platforms, *wanted], check=True)
    for wheel in (*downloads.iterdir(), wheels[-1]):
        zipfile.ZipFile(wheel).extractall(site)
    command = ["qemu-aarch64-static", "-L", root, root / "usr/bin/python3.11", "-m", "robocache", "self-test", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    environment.pop("ROBOCACHE_LIBRARY", None)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["cases"] >= 100
