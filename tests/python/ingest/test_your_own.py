"""Formats of other packages, found by their entry points: the example in the docs, and broken ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import robocache

DOCS = Path(__file__).parents[3] / "docs/ingest-your-own.md"


@pytest.fixture
def packages(tmp_path):
    """Returns functions: one installs a module with an entry point, the other runs the command line, which finds it."""
    folder = tmp_path / "packages"

    def install(name, code, point="FORMAT"):
        (folder / f"{name}-1.0.dist-info").mkdir(parents=True)
        (folder / f"{name}.py").write_text(code)
        (folder / f"{name}-1.0.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        points = f"[robocache.formats]\n{name.removesuffix('_format')} = {name}:{point}\n"
        (folder / f"{name}-1.0.dist-info/entry_points.txt").write_text(points)

    def run(*arguments):
        path = os.pathsep.join([str(folder), *filter(None, sys.path)])
        return subprocess.run(
            [sys.executable, "-c", "import sys; sys.modules['torch'] = None; from robocache.cli import main; sys.exit(main())",
             *map(str, arguments)],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=300,
        )  # fmt: skip

    return install, run


def documented_code():
    (code,) = [part for part in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "FORMAT" in part]
    return code


def write_toys(folder):
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(3):
        joint, camera = rng.normal(size=(70, 2)), rng.integers(0, 255, (70, 6, 8, 3), dtype=np.uint8)
        np.savez(folder / f"{number}.toy.npz", joint=joint, camera=camera, task=f"pick {number}", success=number != 1)
    return folder


def test_the_example_of_the_docs_is_a_format(packages, tmp_path):
    install, run = packages
    assert len(documented_code().splitlines()) < 40
    install("toy_format", documented_code())
    toys = write_toys(tmp_path / "toys")
    output = run("ingest", toys, tmp_path / "cache")
    assert output.returncode == 1 and "0.toy.npz: toys have no clock; give the rows a second" in output.stderr
    output = run("ingest", toys, tmp_path / "cache", "--rate-hz", "20")
    assert output.returncode == 0, output.stderr
    dataset = robocache.open(tmp_path / "cache")
    assert (len(dataset), dataset.provenance["format"]) == (3, "toy")
    for number in range(3):
        arrays, episode = np.load(toys / f"{number}.toy.npz"), dataset.episode(number)
        assert np.array_equal(episode["joint"][1], arrays["joint"])
        assert np.array_equal(episode["camera"][1][:], arrays["camera"])
        assert episode["joint"][0].tolist() == [50_000_000 * row for row in range(70)]
        assert list(episode["task"][1]) == [f"pick {number}"]
    assert dataset.streams["joint"].attributes == {"units": "rad"}
    output = run("ingest", toys, tmp_path / "shared", "--rate-hz", "20", "--workers", "2")
    assert output.returncode == 0, output.stderr
    for file in (path for path in (tmp_path / "cache").rglob("*") if path.is_file()):
        assert (tmp_path / "shared" / file.relative_to(tmp_path / "cache")).read_bytes() == file.read_bytes()
    help = run("ingest", "--help").stdout
    assert "--success-only" in help and "toy" in help
    (toys / "1.toy.npz").write_bytes(b"none")
    output = run("ingest", toys, tmp_path / "more", "--rate-hz", "20", "--success-only")
    assert output.returncode == 1 and f"{toys}/1.toy.npz" in output.stderr


def test_output_of_a_reader_in_a_worker_goes_to_stderr(packages, tmp_path):
    install, run = packages
    install(
        "toy_format",
        documented_code().replace("    arrays = np.load(", "    print('opens', file)\n    arrays = np.load("),
    )
    toys = write_toys(tmp_path / "toys")
    output = run("ingest", toys, tmp_path / "cache", "--rate-hz", "20", "--workers", "2")
    assert output.returncode == 0, output.stderr
    assert [output.stderr.count(f"opens {toys}/{number}.toy.npz\n") for number in range(3)] == [1, 1, 1]
    assert len(robocache.open(tmp_path / "cache")) == 3


BROKEN = {
    "absent_format": ("import a_library_that_is_not_there", "ModuleNotFoundError: No module named 'a_library"),
    "wrong_format": ("FORMAT = 3", "TypeError: expected a robocache.ingest.Format"),
    "taken_format": (
        "from robocache.ingest import FORMATS\nFORMAT = FORMATS['csv']",
        "ValueError: another format has the name 'csv'",
    ),
    "options_format": (
        documented_code().replace("success_only", "time_unit"),
        "ArgumentError: argument --time-unit: conflicting option string",
    ),
    "exits_format": ("raise RuntimeError('not today')", "RuntimeError: not today"),
}


def test_a_format_that_does_not_load_breaks_no_other(packages, tmp_path):
    install, run = packages
    for name, (code, _) in BROKEN.items():
        install(name, code)
    sign_code = documented_code().replace("return next(", "return 1 // 0 or next(").replace('"toy"', '"sign"')
    install("sign_format", sign_code.replace("toy_format", "sign_format").replace("success_only", "sign_only"))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/imu.csv").write_text("t [s],x\n0.0,1\n0.1,2\n")
    output = run("ingest", tmp_path / "logs", tmp_path / "cache")
    assert output.returncode == 0, output.stderr
    (tmp_path / "bare").mkdir()
    output = run("ingest", tmp_path / "bare", tmp_path / "other")
    assert output.returncode == 1
    for name, (_, reason) in BROKEN.items():
        format = name.removesuffix("_format")
        assert f"format '{format}': its entry point {name}:FORMAT of {name} does not load: {reason}" in output.stderr
    assert "format 'sign': its find_sign: ZeroDivisionError" in output.stderr
    output = run("ingest", tmp_path / "logs", tmp_path / "other", "--format", "exits")
    assert "format 'exits': its entry point exits_format:FORMAT" in output.stderr
    code = (
        "import sys; sys.modules['torch'] = None; import robocache; robocache.ingest('logs', 'other', format='exits')"
    )
    path = os.pathsep.join([str(tmp_path / "packages"), *filter(None, sys.path)])
    output_in_python = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "robocache.errors.Error: format 'exits': its entry point exits_format:FORMAT" in output_in_python.stderr


def test_a_reader_that_does_not_load_is_named(packages, tmp_path):
    install, run = packages
    install("toy_format", documented_code().replace('ToyOptions, "toy_format"', 'ToyOptions, "toy_reader"'))
    toys = write_toys(tmp_path / "toys")
    output = run("ingest", toys, tmp_path / "cache", "--rate-hz", "20")
    assert output.returncode == 1
    assert "format 'toy': No module named 'toy_reader'; pip install toy-format" in output.stderr
    (tmp_path / "packages/toy_reader.py").write_text("def read(:\n")
    assert "format 'toy': toy_reader: SyntaxError" in run("ingest", toys, tmp_path / "cache", "--rate-hz", "20").stderr
