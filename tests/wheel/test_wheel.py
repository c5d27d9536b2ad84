"""The gates of the built wheel: its files, its dependencies, and that it works without other packages.

`./dev test` builds the wheel in build/release first; ROBOCACHE_BUILD names another build folder.
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ.get("ROBOCACHE_BUILD", ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "packaging"))

import gates  # noqa: E402

RESAMPLE = """
import numpy as np
import robocache
values = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
times = np.arange(4, dtype=np.float64)[None]
out = robocache.resample_trajectories(values, times, np.array([[0.5, 3.0]]))
assert type(out) is np.ndarray and out.dtype == np.float32
assert out.tolist() == [[[1.5, 2.5, 3.5], [9.0, 10.0, 11.0]]], out
"""

# Only the wheel's own library decodes it.
JPEG = """
import numpy as np
import robocache
from robocache import frames
made = frames.encode(np.full((1, 16, 16, 3), 90, np.uint8))
assert (robocache.decode_jpeg(made.data, made.offsets) == 90).all()
"""

RESAMPLE_TORCH = """
import torch
import robocache
values = torch.arange(12, dtype=torch.bfloat16).reshape(1, 4, 3)
times = torch.arange(4, dtype=torch.float64)[None]
out = robocache.resample_trajectories(values, times, torch.tensor([[0.5, 3.0]], dtype=torch.float64))
assert isinstance(out, torch.Tensor) and out.dtype == torch.bfloat16
assert out.tolist() == [[[1.5, 2.5, 3.5], [9.0, 10.0, 11.0]]], out
"""


def run(*command: object, **options: object) -> str:
    completed = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert completed.returncode == 0, f"{command} exited {completed.returncode}\n{completed.stdout}\n{completed.stderr}"
    return completed.stdout


@pytest.fixture(scope="module")
def wheel() -> Path:
    wheels = list((BUILD / "wheel").glob("robocache-*.whl"))
    assert len(wheels) == 1, f"expected one wheel in {BUILD / 'wheel'}, got {wheels}"
    return wheels[0]


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python outside the checkout with the wheel, its oldest allowed tvm-ffi, and no torch."""
    folder = tmp_path_factory.mktemp("clean")
    python = folder / "bin/python"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile", wheel, "apache-tvm-ffi==0.1.9"
    )
    return python


def test_one_tag_for_every_python(wheel: Path) -> None:
    assert re.fullmatch(r"robocache-[0-9.]+-py3-none-(many)?linux_\w+\.whl", wheel.name)


@pytest.mark.parametrize(
    "gate", [gates.search_path, gates.needed, gates.undefined, gates.exports, gates.missing, gates.strays]
)
def test_gates_that_every_wheel_passes(
    wheel: Path, tmp_path: Path, gate: Callable[[gates.Wheel], Iterator[str]]
) -> None:
    opened = gates.Wheel(wheel, tmp_path)
    assert len(opened.libraries) == 2
    assert list(gate(opened)) == []


@pytest.mark.parametrize("isa", ["baseline", "v3", "v4"])
def test_kernels_share_no_code_with_other_instruction_sets(isa: str) -> None:
    # The linker keeps one copy of an inline function; one built for AVX-512 would then run on every processor.
    objects = sorted((BUILD / "CMakeFiles" / f"robocache_kernels_{isa}.dir").rglob("*.o"))
    assert objects
    for path in objects:
        shared = re.findall(r"^[0-9a-f]* [DRTWVui] (.+)$", run("nm", "-C", "--defined-only", path), re.MULTILINE)
        assert shared, f"{path} defines no kernel"
        assert [name for name in shared if f"robocache::{isa}::" not in name] == []


def test_runs_with_numpy_alone(clean_python: Path, tmp_path: Path) -> None:
    run(clean_python, "-I", "-c", RESAMPLE, cwd=tmp_path)
    run(clean_python, "-I", "-c", JPEG, cwd=tmp_path)


def test_reports_its_installation(clean_python: Path, tmp_path: Path) -> None:
    run(clean_python, "-I", "-m", "robocache", "info", cwd=tmp_path)
    run(clean_python.parent / "robocache", "--help", cwd=tmp_path)


def test_knows_its_version(wheel: Path, clean_python: Path, tmp_path: Path) -> None:
    code = "import importlib.metadata, robocache; print(robocache.__version__, importlib.metadata.version('robocache'))"
    version = wheel.name.split("-")[1]
    assert run(clean_python, "-I", "-c", code, cwd=tmp_path).split() == [version, version]


def test_runs_with_torch(clean_python: Path, tmp_path: Path) -> None:
    # This Python's torch and its dependencies come last on the path, since a second copy takes a minute to install.
    folder = run(clean_python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(folder) / "torch.pth").write_text(sysconfig.get_path("purelib"))
    code = "import tvm_ffi, robocache; print(tvm_ffi.__version__, robocache.__file__)"
    assert run(clean_python, "-I", "-c", code, cwd=tmp_path).split() == ["0.1.9", f"{folder}/robocache/__init__.py"]
    run(clean_python, "-I", "-c", RESAMPLE_TORCH, cwd=tmp_path)
    run(clean_python, "-I", "-c", RESAMPLE, cwd=tmp_path)
