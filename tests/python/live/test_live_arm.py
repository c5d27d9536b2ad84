"""Runs the example of a simulated arm, and checks its numbers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import robocache

for needed in ("mujoco", "torch", "matplotlib"):
    pytest.importorskip(needed)

EXAMPLE = Path(__file__).parents[3] / "examples/live_arm/live_arm.py"


def test_the_aligner_follows_the_ball(tmp_path):
    out = tmp_path / "out"
    ran = subprocess.run(
        [sys.executable, EXAMPLE, "--short", "--out", out], capture_output=True, text=True, timeout=500
    )
    assert ran.returncode == 0, ran.stderr
    aligned, latest = json.loads((out / "numbers.json").read_text()).values()
    assert aligned["success"] > latest["success"] + 0.2
    assert aligned["age_ms"] < 40 < 80 < latest["age_ms"]  # frames arrive 80 ms late
    assert "camera front: what the policy saw was" in ran.stdout and (out / "ages.png").stat().st_size > 10_000
    recorded = robocache.open(out / "through_the_aligner", verify=True)
    assert recorded["front"].rows > 60 and recorded["policy.moment_ns"].rows > 20


def test_the_help_has_the_command():
    ran = subprocess.run([sys.executable, EXAMPLE, "--help"], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0 and "--short" in ran.stdout and "--delay-ms" in ran.stdout
