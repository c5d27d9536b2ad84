"""The pages show the results of benchmarks, and each benchmark runs. tests/release/test_benchmarks.py plants faults in them."""

import csv
import importlib
import re
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


def test_the_counters_are_of_all_kernels(monkeypatch):
    """ncu compares the names with their namespaces."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    counters = importlib.import_module("counters")
    for path in (ROOT / "src").rglob("*.cu"):
        text = path.read_text()
        if "__global__" in text:
            namespaces = re.findall(r"^namespace ([\w:]+) {", text, re.MULTILINE)
            assert namespaces and all(re.search(counters.KERNELS, f"{name}::kernel") for name in namespaces), path
    assert not re.search(counters.KERNELS, "void at::native::vectorized_elementwise_kernel<4>")
    assert "--kernel-name-base demangled" in counters.ncu_command(None)


def test_the_rows_of_a_counters_file_are_those_of_each_calls_second_time(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    counters = importlib.import_module("counters")
    columns = ["Kernel Name", "Grid Size", *counters.METRICS]

    def read(kernels):
        with (tmp_path / "counters.csv").open("w", newline="") as file:
            rows = [[kernel, str(number), *counters.METRICS] for number, kernel in enumerate(kernels)]
            csv.writer(file).writerows([["==PROF== connected"], columns, ["unit"] * len(columns), *rows])
        return [
            [row["Kernel Name"] + row["Grid Size"] for row in call]
            for call in counters.read_calls(tmp_path / "counters.csv")
        ]

    assert read("ABABCC") == [["A2", "B3"], ["C5"]]
    with pytest.raises(
        SystemExit, match=r"counters\.csv: expected the kernels of each call twice; from row 5 of 5, 'C', no sequence"
    ):
        read("ABABC")
