"""The images of packaging/container, of a wheel and of the source, are built without a network, from a local base, and give
the stored results. The one for 64-bit ARM, as a Jetson runs it, does so under qemu.

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
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


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

    def image(name, *packages, architecture=ARCHITECTURE):
        folder = tmp_path_factory.mktemp("debian") / "root"
        packages = ",".join(("python3", "python3-venv", "python3-pip", *packages))
        run("debootstrap", f"--arch={architecture}", "--variant=minbase", f"--include={packages}", "bookworm", folder)
        container = buildah("from", f"--arch={architecture}", "scratch").strip()
        buildah("add", container, folder, "/")
        buildah("commit", "-q", container, f"localhost/{name}")
        buildah("rm", container)
        shutil.rmtree(folder)
        return f"localhost/{name}"

    return image


@pytest.fixture
def arm64():
    """Until the test ends, this machine runs programs for 64-bit ARM with qemu."""
    formats = Path("/proc/sys/fs/binfmt_misc")
    if ARCHITECTURE == "arm64" or (formats / "qemu-aarch64").exists():
        yield
        return
    registration = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")
    if os.geteuid() or not registration.exists():
        pytest.skip("NOT RUN: needs root and qemu-user-static")
    if not (formats / "register").exists():
        run("mount", "-t", "binfmt_misc", "none", formats)
    (formats / "register").write_text(registration.read_text())
    yield
    (formats / "qemu-aarch64").write_text("-1")


def download(folder, *requirements, machine=None):
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (17, 24, 26, 27, 28) if machine]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--dest", folder]
    run(*pip, "--python-version", "3.11", "--only-binary=:all:", *platforms, *requirements)


def build_and_run(buildah, context, target, architecture=ARCHITECTURE, **arguments):
    """Builds an image, and returns the results of its `info` and of its self-test."""
    arguments = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    options = ["-q", "--network", "none", "--pull-never", f"--arch={architecture}", "--target", target, *arguments]
    image = f"{target}-{architecture}"
    buildah("bud", *options, "-t", image, "-f", context / "packaging/container/Dockerfile", context)
    configuration = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]
    assert configuration["architecture"] == architecture
    assert configuration["config"]["User"] == "10001" and configuration["config"]["Entrypoint"] == ["robocache"]
    container = buildah("from", "--pull-never", f"--arch={architecture}", image).strip()
    in_container = ["run", "--network", "none", container, "--"]
    assert buildah(*in_container, "id", "-u").strip() == "10001"
    return [json.loads(buildah(*in_container, "robocache", name, "--json")) for name in ("info", "self-test")]


def newest(pattern):
    """Returns the newest file of dist/ with this name."""
    files = sorted((ROOT / "dist").glob(pattern), key=os.path.getmtime)
    if not files:
        pytest.skip(f"NOT RUN: dist/ has no {pattern}; ./dev wheel cpu")
    return files[-1]


def test_the_image_of_a_wheel_gives_the_stored_results(buildah, base, tmp_path):
    shutil.copytree(ROOT / "packaging/container", tmp_path / "packaging/container")
    download(tmp_path / "wheelhouse", newest(f"robocache_cpu-*_{platform.machine()}.whl"))
    _, result = build_and_run(buildah, tmp_path, "wheel", BASE=base("debian-python"), PACKAGE="robocache_cpu")
    assert result["ok"] and result["cases"] >= 100


def test_the_image_of_the_wheel_for_arm64_gives_the_stored_results(arm64, buildah, base, tmp_path):
    shutil.copytree(ROOT / "packaging/container", tmp_path / "packaging/container")
    download(tmp_path / "wheelhouse", newest("robocache-*_aarch64.whl"), machine="aarch64")
    debian = base("debian-arm64", architecture="arm64")
    info, result = build_and_run(buildah, tmp_path, "wheel", "arm64", BASE=debian, PACKAGE="robocache")
    assert result["ok"] and result["cases"] >= 100
    assert info["cuda"]["plugin_loaded"] and info["cuda"]["reason"].startswith("no NVIDIA driver")


def test_the_image_of_the_source_gives_the_stored_results(buildah, base, tmp_path):
    shutil.unpack_archive(newest("robocache-*.tar.gz"), tmp_path)
    (context,) = tmp_path.iterdir()
    project = tomllib.loads((context / "pyproject.toml").read_text())
    requirements = project["build-system"]["requires"] + project["project"]["dependencies"]
    download(context / "wheelhouse", *requirements, "cmake", "ninja")
    _, result = build_and_run(
        buildah,
        context,
        "source",
        BASE=base("debian-python"),
        BUILD_BASE=base("debian-compiler", "g++", "nlohmann-json3-dev", "libjpeg62-turbo-dev", "zlib1g-dev"),
    )
    assert result["ok"] and result["cases"] >= 100
