"""64-bit ARM under qemu: the shipped wheel gives the stored results of x86-64; the one with CUDA opens its plugin; the C++
tests pass; Python's `cache`, `ops` and `loader` tests pass; loops take no more instructions than bench/results/instructions has.

`./dev release` runs these tests, after `./dev wheel`. They take an hour.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = "python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libexpat1 zlib1g libssl3 libffi8 liblzma5"
PYTHON += " libbz2-1.0 libuuid1 libstdc++6 libgcc-s1 libsqlite3-0"
VERSION_OF_GOOGLETEST = ["dpkg-query", "-W", "-f", "${Package}=${Version}", "libgtest-dev"]
WHEEL_DEPENDENCIES = (
    "numpy",
    "apache-tvm-ffi",
    "pyarrow",
    "rich",
    "typing_extensions",
    "markdown-it-py",
    "mdurl",
    "pygments",
)
# Packages for the tests, with their dependencies, and torch's last release for aarch64 without CUDA.
TEST_PACKAGES = ("pytest", "pytest-xdist", "hypothesis", "scipy", "pillow", "ml_dtypes", "mcap", "matplotlib")
TEST_PACKAGES += ("sympy", "networkx", "jinja2", "filelock", "fsspec")
TORCH = "torch==2.10.0"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("qemu-aarch64-static", "apt-get", "aarch64-linux-gnu-g++"))),
    reason="NOT RUN: needs apt-get, qemu-user-static and g++-aarch64-linux-gnu",
)


def emulate(script, root, program):
    """Writes a script that runs an aarch64 program. sys.executable is the script, so child processes run it too."""
    script.write_text(f'#!/bin/sh\nexec qemu-aarch64-static -0 {script} -L {root} {program} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Returns Python for aarch64, and the environment in which it finds the wheel and its dependencies."""
    wheels = sorted((ROOT / "dist").glob("robocache_cpu-*_aarch64.whl"), key=os.path.getmtime)
    if not wheels:
        pytest.skip("NOT RUN: needs the wheels of ./dev wheel")
    folder = tmp_path_factory.mktemp("aarch64")
    root = folder / "root"
    subprocess.run([ROOT / "packaging/unpack_arm64", root, *PYTHON.split()], check=True)
    install(folder / "site", "--no-deps", *(f"{name}=={version(name)}" for name in WHEEL_DEPENDENCIES))
    zipfile.ZipFile(wheels[-1]).extractall(folder / "site")
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "PYTHONHOME": str(root / "usr")}
    environment.pop("ROBOCACHE_LIBRARY", None)
    return emulate(folder / "python", root, root / "usr/bin/python3.11"), environment


def install(folder, *requirements):
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile", "--upgrade"]
    subprocess.run(
        [*pip, "--target", folder, "--only-binary=:all:", "--python-version=3.11", *platforms, *requirements],
        check=True,
    )


def test_self_test(python, tmp_path):
    program, environment = python
    command = [program, "-m", "robocache", "self-test", "--json"]
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert json.loads(completed.stdout)["cases"] >= 100


def test_a_changed_result_is_found(python, tmp_path):
    """The test changes a result that was stored on x86-64."""
    program, environment = python
    shutil.copytree(Path(environment["PYTHONPATH"]) / "robocache", tmp_path / "robocache")
    results = tmp_path / "robocache/self_test.json"
    results.write_text(json.dumps({**json.loads(results.read_text()), "fuse concat": "0" * 16}))
    environment = {**environment, "PYTHONPATH": f"{tmp_path}:{environment['PYTHONPATH']}"}
    command = [program, "-m", "robocache", "self-test"]
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert completed.returncode == 1 and "fuse concat: expected 0000" in completed.stdout, (
        completed.stdout + completed.stderr
    )


def test_the_plugin_opens_and_finds_no_driver(python, tmp_path):
    wheels = sorted((ROOT / "dist").glob("robocache-*_aarch64.whl"), key=os.path.getmtime)
    if not wheels:
        pytest.skip("NOT RUN: needs the wheels of ./dev wheel")
    program, environment = python
    zipfile.ZipFile(wheels[-1]).extractall(tmp_path)
    environment = {**environment, "PYTHONPATH": f"{tmp_path}:{environment['PYTHONPATH']}"}
    environment.pop("ROBOCACHE_CUDA_LIBRARY", None)
    command = [program, "-m", "robocache", "info", "--json"]
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    information = json.loads(completed.stdout)
    assert information["cuda_library"] == str(tmp_path / "robocache/lib/librobocache_cuda.so")
    assert information["cuda"]["plugin_loaded"] and information["cuda"]["runtime"] == "13.0"
    assert information["cuda"]["reason"].startswith("no NVIDIA driver; install version 580 or later")


def test_cpp(tmp_path):
    """Runs the C++ tests in the build of the wheel."""
    root, build = ROOT / "build/aarch64-root", ROOT / "build/dist-aarch64"
    if not (root.exists() and build.exists()):
        pytest.skip("NOT RUN: needs what ./dev wheel built")
    googletest = subprocess.run(VERSION_OF_GOOGLETEST, capture_output=True, text=True, check=True).stdout
    subprocess.run([ROOT / "packaging/unpack_arm64", root, googletest], check=True)
    subprocess.run(["cmake", "-S", ROOT, "-B", build, "-DROBOCACHE_TESTS=ON", "-DROBOCACHE_CUDA=OFF"], check=True)
    subprocess.run(["cmake", "--build", build], check=True)
    passed = 0
    for program in sorted((build / "tests/cpp").glob("robocache_*_test")):
        script = emulate(tmp_path / program.name, "/usr/aarch64-linux-gnu", program)
        completed = subprocess.run([script, "--gtest_filter=-*cuda*"], capture_output=True, text=True)
        assert completed.returncode == 0, f"{program.name}: {completed.stdout[-5000:]}{completed.stderr[-2000:]}"
        passed += int(re.search(r"\[  PASSED  \] (\d+) tests?\.", completed.stdout)[1])
    assert passed >= 325  # of 334 that pass on x86-64 without CUDA


def more_instructions(counts, recorded):
    """Returns the jobs that take a tenth more instructions than recorded. The loader's vary by some hundredths."""
    return [job for job, count in counts.items() if count > 1.1 * recorded[job]["aarch64"]]


def test_loops_take_no_more_instructions(tmp_path, monkeypatch):
    build = ROOT / "build/dist-aarch64"
    if not (build / "librobocache.a").exists():
        pytest.skip("NOT RUN: needs what ./dev wheel built")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    bench = importlib.import_module("instructions")
    bench.compile_jobs("aarch64", build, tmp_path / "jobs")
    jobs = bench.list_jobs("aarch64", tmp_path / "jobs")
    recorded = json.loads((ROOT / "bench/results/instructions/qemu.json").read_text())["instructions_an_element"]
    assert jobs == sorted(recorded)
    counts = {job: bench.count("aarch64", tmp_path / "jobs", job) for job in jobs}
    assert more_instructions(counts, recorded) == []
    # Before its conversions were vector code, this job took 11.4.
    assert more_instructions({"resample_linear_float16": 11.4}, recorded) == ["resample_linear_float16"]


@pytest.mark.parametrize("room", ["cache", "ops", "loader"])
def test_python(room, python, tmp_path):
    program, environment = python
    test_site = ROOT / "build/aarch64-site"  # large, and the same for all runs
    if not (test_site / "torch").exists():
        install(test_site, *(f"{name}=={version(name)}" for name in TEST_PACKAGES))
        install(test_site, "--no-deps", TORCH)
    paths = f"{test_site}:{environment['PYTHONPATH']}"
    completed = subprocess.run(
        [program, "-m", "pytest", "-q", "-n", str(os.cpu_count()), "-p", "no:cacheprovider", f"tests/python/{room}"],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": paths, "CI": "1"},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stdout[-5000:] + completed.stderr[-2000:]
