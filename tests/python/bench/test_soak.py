"""A short soak of every part, and the faults that a soak names."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
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
    opened, kept = [], []

    def fails(stage):
        if stage.round == 0:
            raise ValueError("on purpose")

    parts = {
        "still": lambda stage: "the same",
        "leaking": lambda stage: opened.append(os.open("/dev/null", os.O_RDONLY)),
        "keeping": lambda stage: kept.append(np.ones(1 << 20, np.uint8)),
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
    assert [failure for failure in failures if failure.startswith("keeping: memory_bytes grows by ")]
    assert not [failure for failure in failures if failure.startswith("still: ")]


@pytest.mark.parametrize("noise_mb", [0, 0.5])
def test_a_leak_differs_from_a_long_warm_up(soak, noise_mb):
    rng, short, long = np.random.default_rng(1), np.arange(43), np.arange(136)

    def warm_up(rounds):
        """900 MB in round 14, 931 MB in round 42, there 0.4 MB a round, as one run on a GPU had it."""
        return 932.6 - 32.6 * np.exp(-(rounds - 14) / 9.3)

    def judge(megabytes):
        measured = megabytes + rng.normal(0, noise_mb, len(megabytes))
        judged = soak.judge((1e6 * measured).astype(int).tolist(), soak.LIMITS["memory_bytes"])
        return judged["grows"], judged["slows"]

    for _ in range(20):
        assert judge(warm_up(short)) == (False, True)
        assert judge(warm_up(long)) == (False, False)
        assert judge(900 + 0.4 * short) == (True, False)
        assert judge(warm_up(long) + 0.4 * long) == (True, False)  # a short run's warm-up hides this leak
        assert judge(np.full(43, 900.0)) == (False, False)
