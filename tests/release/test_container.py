"""The images of packaging/container, of a wheel and of the source, are built without a network, from a local base, and give
the stored results.

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
import tomllib

ROOT = Path(__file__).parents[2]


def run(*command, **options):
    completed = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert completed.returncode == 0, (
        f"{command} exited {completed.returncode}\n{completed.stdout[-3000:]}\n{completed.stderr[-3000:]}"
    )
    return completed.stdout


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
    """A function that makes an image of Debian 12 with Python and the packages named."""

    def image(name, *packages):
        folder = tmp_path_factory.mktemp("debian") / "root"
        packages = ",".join(("python3", "python3-venv", "python3-pip", *packages))
        run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", folder)
        container = buildah("from", "scratch").strip()
        buildah("add", container, folder, "/")
        buildah("commit", "-q", container, f"localhost/{name}")
        buildah("rm", container)
        shutil.rmtree(folder)
        return f"localhost/{name}"

    return image


def download(folder, *requirements):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "download", "-q", "--dest", folder, "--python-version", "3.11", "--only-binary=:all:", *requirements)


def build_and_run(buildah, context, target, **arguments):
    """Builds an image, and returns the result of its self-test."""
    arguments = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    options = ["-q", "--network", "none", "--pull-never", "--target", target, *arguments, "-t", target]
    buildah("bud", *options, "-f", context / "packaging/container/Dockerfile", context)
    configuration = json.loads(buildah("inspect", "--type", "image", target))["OCIv1"]["config"]
    assert configuration["User"] == "10001" and configuration["Entrypoint"] == ["robocache"]
    container = buildah("from", "--pull-never", target).strip()
    in_container = ["run", "--network", "none", container, "--"]
    assert buildah(*in_container, "id", "-u").strip() == "10001"
    return json.loads(buildah(*in_container, "robocache", "self-test", "--json"))


def newest(pattern):
    """Returns the newest file of dist/ with this name."""
    files = sorted((ROOT / "dist").glob(pattern), key=os.path.getmtime)
    if not files:
        pytest.skip(f"NOT RUN: dist/ has no {pattern}; ./dev wheel cpu")
    return files[-1]


def test_the_image_of_a_wheel_gives_the_stored_results(buildah, base, tmp_path):
    shutil.copytree(ROOT / "packaging/container", tmp_path / "packaging/container")
    download(tmp_path / "wheelhouse", newest(f"robocache_cpu-*_{platform.machine()}.whl"))
    result = build_and_run(buildah, tmp_path, "wheel", BASE=base("debian-python"), PACKAGE="robocache_cpu")
    assert result["ok"] and result["cases"] >= 100


def test_the_image_of_the_source_gives_the_stored_results(buildah, base, tmp_path):
    shutil.unpack_archive(newest("robocache-*.tar.gz"), tmp_path)
    (context,) = tmp_path.iterdir()
    project = tomllib.loads((context / "pyproject.toml").read_text())
    requirements = project["build-system"]["requires"] + project["project"]["dependencies"]
    download(context / "wheelhouse", *requirements, "cmake", "ninja")
    result = build_and_run(
        buildah,
        context,
        "source",
        BASE=base("debian-python"),
        BUILD_BASE=base("debian-compiler", "g++", "nlohmann-json3-dev", "libjpeg62-turbo-dev", "zlib1g-dev"),
    )
    assert result["ok"] and result["cases"] >= 100
