"""Every benchmark runs, on a GPU if there is one, and its peers agree with robocache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.__main__ import BENCHES  # noqa: E402

IN_OTHER_ENVIRONMENTS = {"lerobot_batches", "lerobot_train", "ros2", "ros2_sets"}


def faults(result):
    if not result["cases"]:
        yield "no case"
    for case in result["cases"]:
        yield from (f"{case['name']}: {case[key]}" for key in ("error", "failures") if case.get(key))
        for name, peer in case.get("contenders", {}).items():
            if not peer.get("largest_error_over_bound", 0) <= 1:
                yield f"{case['name']}: {name} differs by {peer['largest_error_over_bound']} bounds"


@pytest.mark.parametrize("bench", [bench for bench in BENCHES if bench not in IN_OTHER_ENVIRONMENTS])
def test_a_benchmark_runs_and_verifies_its_peers(bench, tmp_path):
    if bench == "videos" and not os.environ.get("ROBOCACHE_TEST_DATA"):
        pytest.skip("NOT RUN: ROBOCACHE_TEST_DATA names no recordings")
    command = [sys.executable, f"bench/{bench}.py", "--quick", "--out", str(tmp_path), "--machine", "here"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    assert list(faults(json.loads((tmp_path / f"here-{bench}.json").read_text()))) == []


@pytest.mark.parametrize(
    "fault, message",
    [
        ({"cases": []}, "no case"),
        ({"cases": [{"name": "a", "error": "ValueError"}]}, "a: ValueError"),
        ({"cases": [{"name": "a", "failures": ["b"]}]}, "a: ['b']"),
        ({"cases": [{"name": "a", "contenders": {"torch": {"largest_error_over_bound": 2.0}}}]}, "a: torch differs"),
        ({"cases": [{"name": "a", "contenders": {"torch": {"largest_error_over_bound": float("nan")}}}]}, "a: torch"),
    ],
)
def test_a_planted_fault_is_found(fault, message):
    (text,) = faults(fault)
    assert text.startswith(message)
