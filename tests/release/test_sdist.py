"""The sdist outside git, compiled by pip with PyPI's nvcc for one architecture: it has the CUDA plugin, and gives a first batch within a
limit of CPU seconds.

`./dev release` runs it, after `./dev wheel`. Packages come from PyPI.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
# Variables that other tests, ./dev and a compiler cache set; a user has none of them.
OF_OTHER_BUILDS = ("PYTHONPATH", "CMAKE_", "CUDA", "ROBOCACHE_")


@pytest.fixture(scope="module")
def sdist():
    sdists = sorted((ROOT / "dist").glob("robocache-*.tar.gz"))
    if not sdists:
        pytest.skip("NOT RUN: needs the sdist of ./dev wheel")
    return sdists[-1]


@pytest.fixture(scope="module")
def toolkit(sdist, tmp_path_factory):
    """The folder of PyPI's nvcc, in the versions that the sdist names."""
    folder = tmp_path_factory.mktemp("nvcc")
    with tarfile.open(sdist) as archive:
        (name,) = (name for name in archive.getnames() if name.endswith("/packaging/nvcc.txt"))
        (folder / "nvcc.txt").write_bytes(archive.extractfile(name).read())
    options = ["--no-deps", "--require-hashes", "--target", folder, "-r", folder / "nvcc.txt"]
    subprocess.run([*PIP, "install", "-q", *options], check=True)
    return folder / "nvidia/cu13"


@pytest.fixture
def bench(monkeypatch):
    """bench/first_batch.py, in an environment that only says which nvcc compiles for which GPU."""
    for name in os.environ:
        if name.startswith(OF_OTHER_BUILDS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    monkeypatch.setenv("ROBOCACHE_CUDA", "ON")
    monkeypatch.setenv("ROBOCACHE_CUDA_ARCHITECTURES", "90-real")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("first_batch")


def use(toolkit, monkeypatch):
    monkeypatch.setenv("CUDACXX", str(toolkit / "bin/nvcc"))
    monkeypatch.setenv("LIBRARY_PATH", str(toolkit / "lib"))


def test_the_sdist_gives_a_batch_within_its_aim(sdist, toolkit, bench, tmp_path, monkeypatch):
    use(toolkit, monkeypatch)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    git = subprocess.run(["git", "-C", tmp_path, "rev-parse"], capture_output=True)
    assert git.returncode != 0  # pip compiles in a folder in tmp_path, which is outside git
    cpu_seconds = bench.first_batch(tmp_path, sdist)
    print(f"source to first batch: {cpu_seconds:.0f} s of CPU time")
    (package,) = (tmp_path / "new").rglob("site-packages/robocache/lib")
    assert {path.name for path in package.iterdir()} == {"librobocache.so", "librobocache_cuda.so"}
    info = [tmp_path / "new/bin/robocache", "info", "--json"]
    information = json.loads(subprocess.run(info, capture_output=True, text=True, check=True).stdout)
    assert information["cuda"]["plugin_loaded"] and information["cuda"]["runtime"] == "13.0"
    assert cpu_seconds < bench.SOURCE_AIM_S


def test_a_toolkit_without_a_package_compiles_nothing(sdist, toolkit, bench, tmp_path, monkeypatch):
    incomplete = shutil.copytree(toolkit, tmp_path / "nvcc")
    shutil.rmtree(incomplete / "nvvm")  # of the package nvidia-nvvm
    use(incomplete, monkeypatch)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "new"], check=True)
    pip = [tmp_path / "new/bin/python", "-m", "pip", "--disable-pip-version-check", "install", sdist]
    completed = subprocess.run(pip, capture_output=True, text=True)
    assert (
        completed.returncode != 0 and "ROBOCACHE_CUDA=ON, and no nvcc was found" in completed.stdout + completed.stderr
    )
