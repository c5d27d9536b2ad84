"""Runs the example of a simulated arm, and checks its numbers."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import robocache

for package in ("mujoco", "torch", "matplotlib"):
    pytest.importorskip(package)

EXAMPLE = Path(__file__).parents[3] / "examples/live_arm/live_arm.py"


def test_the_aligner_follows_the_ball(tmp_path):
    out = tmp_path / "out"
    result = subprocess.run(
        [sys.executable, EXAMPLE, "--short", "--out", out], capture_output=True, text=True, timeout=500
    )
    assert result.returncode == 0, result.stderr
    aligned, latest = json.loads((out / "numbers.json").read_text()).values()
    assert aligned["success"] > latest["success"] + 0.2
    assert aligned["age_ms"] < 40 < 80 < latest["age_ms"]  # frames arrive 80 ms late
    assert "camera front: what the policy saw was" in result.stdout and (out / "ages.png").stat().st_size > 10_000
    recorded = robocache.open(out / "through_the_aligner", verify=True)
    assert recorded["front"].rows > 60 and recorded["policy.moment_ns"].rows > 20


def test_the_help_has_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--help"])
    with pytest.raises(SystemExit) as raised:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    output = capsys.readouterr().out
    assert raised.value.code == 0 and "--short" in output and "--delay-ms" in output
