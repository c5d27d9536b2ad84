"""The benchmarks run, their peers agree with robocache, and the pages show what the results hold."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(*command, **environment):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("bench", ["resample", "loader"])
def test_a_benchmark_runs_and_verifies_its_peers(tmp_path, device, bench):
    pytest.importorskip("torch")
    code, text = run(f"bench/{bench}.py", "--quick", "--device", device, "--out", str(tmp_path), "--machine", "here")
    assert code == 0, text
    result = json.loads((tmp_path / f"here-{bench}.json").read_text())
    assert result["bench"] == bench
    assert result["commit"]
    assert str(tmp_path) not in json.dumps(result)
    (case,) = result["cases"]
    assert not case["failures"]
    assert case["bytes"] > 0
    assert case["floor_us"] > 0
    assert len(case["contenders"]) > 1
    for name, measures in case["contenders"].items():
        assert measures["wall_us"] > 0
        assert name == "robocache" or measures["largest_error_over_bound"] <= 1


def test_a_wrong_peer_is_reported_and_not_timed(tmp_path):
    pytest.importorskip("torch")
    program = (
        "import sys; sys.path.insert(0, 'bench'); sys.argv = ['resample.py', *sys.argv[1:]]\n"
        "import resample\n"
        "from peers import resample_torch\n"
        "right = resample_torch.resample\n"
        "resample_torch.resample = lambda *tensors: right(*tensors) * 1.001\n"
        "raise SystemExit(resample.main())\n"
    )
    code, text = run("-c", program, "--quick", "--device", "cpu", "--out", str(tmp_path), "--machine", "here")
    assert code == 1, text
    (case,) = json.loads((tmp_path / "here-resample.json").read_text())["cases"]
    assert "differs from robocache" in case["failures"]["torch eager"]
    assert "torch eager" not in case["contenders"]
    assert "numpy" in case["contenders"]


def test_the_pages_show_the_results():
    code, text = run("bench/render.py", "--check")
    assert code == 0, text
