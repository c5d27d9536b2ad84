"""A short soak of every part, and the faults that a soak names."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    spec = importlib.util.spec_from_file_location("soak_of_bench", ROOT / "bench/soak.py")  # not tests/soak.py
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_no_part_leaks(device):
    program = f"import json, soak; print(json.dumps(soak.run(soak.PARTS, 0, {device!r}, least_rounds=6)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, cwd=ROOT / "bench"
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["rounds"] == 6 and len(result["parts"]) == 10
    # Memory still rises in the first rounds; ./dev soak judges it over minutes.
    assert all("memory_bytes" in failure for failure in result["failures"]), result["failures"]


def test_a_leak_a_wrong_result_and_an_exception_are_named(soak):
    opened = []

    def fails(stage):
        if stage.round == 0:
            raise ValueError("on purpose")

    parts = {
        "still": lambda stage: "the same",
        "leaking": lambda stage: opened.append(os.open("/dev/null", os.O_RDONLY)),
        "turns": lambda stage: stage.round // 12,
        "fails": fails,
    }
    try:
        failures = soak.run(parts, 0, "cpu", least_rounds=18)["failures"]
    finally:
        for descriptor in opened:
            os.close(descriptor)
    assert "turns: round 12 gave 1, the first 0" in failures
    assert "fails: round 0: ValueError: on purpose" in failures
    assert [failure for failure in failures if failure.startswith("leaking: descriptors grows by ")]
    assert not [failure for failure in failures if failure.startswith("still: ")]
