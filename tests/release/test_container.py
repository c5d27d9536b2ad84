"""The image of packaging/container is built without a network, from a local base, and gives the stored results.

`./dev release` runs it. No daemon is needed: buildah works in a chroot, as root.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, **options):
    completed = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert completed.returncode == 0, (
        f"{command} exited {completed.returncode}\n{completed.stdout[-3000:]}\n{completed.stderr[-3000:]}"
    )
    return completed.stdout


@pytest.fixture(scope="module")
def wheel():
    """Returns the newest wheel for this machine's processor."""
    wheels = sorted((ROOT / "dist").glob(f"robocache_cpu-*_{platform.machine()}.whl"), key=os.path.getmtime)
    if not wheels:
        pytest.skip("NOT RUN: dist/ has no wheel for this processor; ./dev wheel cpu")
    return wheels[-1]


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """A function that calls buildah, with images in a folder of this test."""
    if os.geteuid() or not (shutil.which("buildah") and shutil.which("debootstrap")):
        pytest.skip("NOT RUN: needs root, buildah and debootstrap")
    folder = tmp_path_factory.mktemp("images")
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
    storage = ["--root", folder / "root", "--runroot", folder / "run"]
    yield lambda *arguments: run("buildah", *storage, *arguments, env=environment)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def base(buildah, tmp_path_factory):
    """An image of Debian 12 with Python."""
    folder = tmp_path_factory.mktemp("debian") / "root"
    run("debootstrap", "--variant=minbase", "--include=python3,python3-venv,python3-pip", "bookworm", folder)
    container = buildah("from", "scratch").strip()
    buildah("add", container, folder, "/")
    buildah("commit", "-q", container, "localhost/debian-python")
    buildah("rm", container)
    return "localhost/debian-python"


def test_the_image_gives_the_stored_results_as_another_user(buildah, base, wheel, tmp_path):
    shutil.copytree(ROOT / "packaging/container", tmp_path / "packaging/container")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    target = ["--dest", tmp_path / "wheelhouse", "--python-version", "3.11", "--only-binary=:all:"]
    run(*pip, "download", "-q", *target, wheel)
    dockerfile = tmp_path / "packaging/container/Dockerfile"
    arguments = ["--build-arg", f"BASE={base}", "--build-arg", "PACKAGE=robocache_cpu"]
    buildah("bud", "-q", "--network", "none", "--pull-never", *arguments, "-f", dockerfile, "-t", "robocache", tmp_path)
    configuration = json.loads(buildah("inspect", "--type", "image", "robocache"))["OCIv1"]["config"]
    assert configuration["User"] == "10001" and configuration["Entrypoint"] == ["robocache"]
    container = buildah("from", "--pull-never", "robocache").strip()
    in_container = ["run", "--network", "none", container, "--"]
    assert buildah(*in_container, "id", "-u").strip() == "10001"
    result = json.loads(buildah(*in_container, "robocache", "self-test", "--json"))
    assert result["ok"] and result["cases"] >= 100
