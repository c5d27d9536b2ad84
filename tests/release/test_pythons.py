"""The self-test in a new environment of each Python, and torch's tests with the oldest torch and the newest, with the oldest allowed
packages or the newest.

`./dev release` runs it: each environment takes a minute and needs PyPI. The library is the same for all Pythons.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import robocache

ROOT = Path(__file__).parents[2]
REQUIREMENTS = re.findall(
    r'^  "(.+)",$',
    (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("]")[0],
    re.MULTILINE,
)


def interpreter(version):
    paths = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")) or [shutil.which(f"python{version}")]
    if paths[-1] is None:
        pytest.skip(f"NOT RUN: Python {version} is not here")
    return paths[-1]


def oldest(requirement):
    """Returns the oldest release that a requirement allows: "numpy>=1.24" becomes "numpy==1.24.*"."""
    return re.sub(r">=(\d+)(\.[\d.]+)?(,<[\d.]+)?", lambda v: f"=={v[1]}{v[2] or ''}.*", requirement)


def with_this_package(folder):
    """Returns the environment variables with which another Python finds this package, in `folder`/robocache-alone."""
    (folder / "robocache-alone").mkdir()  # the package's own folder may have packages for another Python beside it
    (folder / "robocache-alone/robocache").symlink_to(Path(robocache.__file__).parent)
    library = robocache.check_installation()["library"]
    return {**os.environ, "PYTHONPATH": str(folder / "robocache-alone"), "ROBOCACHE_LIBRARY": library}


@pytest.mark.parametrize("version, packages", [("3.10", "oldest"), ("3.12", "newest"), ("3.13", "newest")])
def test_self_test(version, packages, tmp_path):
    python = tmp_path / "bin/python"
    subprocess.run([interpreter(version), "-m", "venv", tmp_path], check=True)
    requirements = [oldest(requirement) for requirement in REQUIREMENTS] if packages == "oldest" else REQUIREMENTS
    # The pip of the environment is necessary: Debian 12's does not run in Python 3.12.
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "--upgrade", *requirements], check=True)
    environment = with_this_package(tmp_path)

    def run(*command):
        arguments = [python, "-m", "robocache", *command, "--json"]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True)

    completed = run("self-test")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert json.loads(completed.stdout)["cases"] >= 100
    # An angle that never wraps: the library returns an empty table, which NumPy views.
    (tmp_path / "arm.csv").write_text("time,joint_rad\n" + "".join(f"{k / 100},{k / 1000}\n" for k in range(50)))
    completed = run("ingest", tmp_path / "arm.csv", tmp_path / "cache")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    versions = json.loads(run("info").stdout)["versions"]
    assert versions["python"].startswith(version) and versions["torch"] is None
    if packages == "oldest":
        assert versions["numpy"].startswith("1.24.") and versions["apache-tvm-ffi"] == "0.1.9"
        (tmp_path / "robocache-alone/robocache").unlink()
        shutil.copytree(Path(robocache.__file__).parent, tmp_path / "robocache-alone/robocache")
        with (tmp_path / "robocache-alone/robocache/loader.py").open("a") as module:
            module.write("\ntype Newer = int\n")  # syntax of Python 3.12
        completed = run("self-test")
        assert completed.returncode != 0 and "loader.py" in completed.stderr and "SyntaxError" in completed.stderr, (
            completed.stderr
        )


TORCH_TESTS = [f"tests/python/ops/test_{name}.py" for name in ("frameworks", "torch_compile")]


# torch's wheels for x86_64 need 3 GB of CUDA's libraries.
@pytest.mark.parametrize("torch, tvm_ffi", [("torch==2.10.*", "0.1.9"), ("torch", "0.1.*")], ids=["oldest", "newest"])
def test_torch(torch, tvm_ffi, tmp_path):
    python = tmp_path / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    packages = [torch, f"apache-tvm-ffi=={tvm_ffi}", *REQUIREMENTS, "hypothesis", "ml_dtypes", "pytest", "scipy"]
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile"]
    subprocess.run([*pip, *packages], check=True)
    environment = with_this_package(tmp_path)

    def run_tests():
        command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TORCH_TESTS]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    completed = run_tests()
    assert completed.returncode == 0, completed.stdout[-5000:] + completed.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", completed.stdout)[1]) > 50
    (tmp_path / "robocache-alone/robocache").unlink()
    shutil.copytree(Path(robocache.__file__).parent, tmp_path / "robocache-alone/robocache")
    with (tmp_path / "robocache-alone/robocache/__init__.py").open("a") as module:
        module.write("\nimport torch.of_another_release\n")
    completed = run_tests()
    assert completed.returncode != 0 and "torch.of_another_release" in completed.stdout + completed.stderr


def test_self_test_with_the_next_debians_python(tmp_path):
    """Uses the shipped wheel, since the library of this machine needs its glibc."""
    wheels = sorted((ROOT / "dist").glob(f"robocache_cpu-*_{platform.machine()}.whl"), key=os.path.getmtime)
    if not wheels or not shutil.which("debootstrap") or os.geteuid() != 0:
        pytest.skip("NOT RUN: needs root, debootstrap and the wheel of ./dev wheel")
    debian = tmp_path / "debian"
    # The default mirror, and the script of sid: older versions of debootstrap have none for forky.
    bootstrap = ["debootstrap", "--variant=minbase", "--include=python3.14", "forky", debian, "", "sid"]
    subprocess.run(bootstrap, check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--only-binary=:all:"]
    platforms = [f"--platform=manylinux_2_{minor}_{platform.machine()}" for minor in (17, 24, 26, 27, 28)]
    site = ["--python-version=3.14", *platforms, "--target", debian / "site", wheels[-1]]
    subprocess.run([*pip, *site], check=True)
    inside = f"chroot {debian} env -i PYTHONPATH=/site python3.14 -m robocache self-test --json"
    command = ["unshare", "--mount", "sh", "-c", f"mount -t proc proc {debian}/proc && {inside}"]
    completed = subprocess.run(command, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert json.loads(completed.stdout)["cases"] >= 100


def test_the_oldest_release_of_a_requirement():
    assert [
        oldest(requirement)
        for requirement in ("numpy>=1.24", "a>=0.1.9,<0.2", "b>=14", "c>=2; python_version < '3.11'")
    ] == [
        "numpy==1.24.*",
        "a==0.1.9.*",
        "b==14.*",
        "c==2.*; python_version < '3.11'",
    ]
