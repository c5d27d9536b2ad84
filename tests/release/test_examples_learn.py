"""Trains the policies of examples until they succeed, which takes minutes; metaworld's is in every run of the tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("example", ["aloha", "conveyor"])
def test_the_policy_of_an_example_succeeds(example):
    command = [sys.executable, "-m", "pytest", "-q", "-m", "soak", f"tests/python/test_example_{example}.py"]
    environment = os.environ | {"ROBOCACHE_SOAK": "2"}
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600)
    assert completed.returncode == 0 and "1 passed" in completed.stdout and "skipped" not in completed.stdout, (
        completed.stdout[-2000:]
    )
