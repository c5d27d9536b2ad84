"""Every benchmark runs, on the GPU where there is one, and its peers agree with robocache."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "bench",
    [
        *("resample", "fuse", "voxelize", "tsdf", "loader", "loader_one_clock", "images", "residency", "ranks"),
        *("episodes", "actions", "live", "statistics_of_windows", "ingest", "sweep", "shapes"),
    ],
)
def test_a_benchmark_runs_and_verifies_its_peers(bench, tmp_path):
    command = [sys.executable, f"bench/{bench}.py", "--quick", "--out", str(tmp_path), "--machine", "here"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    result = json.loads((tmp_path / f"here-{bench}.json").read_text())
    assert result["cases"]
    for case in result["cases"]:
        assert not case.get("failures") and "error" not in case, case["name"]
        for peer in case.get("contenders", {}).values():
            assert peer.get("largest_error_over_bound", 0) <= 1
