"""The pages show the results of benchmarks, and each benchmark runs. tests/release/test_benchmarks.py plants faults in them."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]


def run(*command):
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    return done.returncode, done.stdout


def test_the_pages_show_the_results():
    code, text = run("bench/render.py", "--check")
    assert code == 0, text


def test_every_benchmark_runs_by_its_name_and_has_a_title(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    programs = {path.stem for path in (ROOT / "bench").glob("*.py") if " = Report(" in path.read_text()}
    assert set(importlib.import_module("bench.__main__").BENCHES) == programs
