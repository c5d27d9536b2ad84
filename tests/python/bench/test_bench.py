"""The benchmarks run, their peers agree with robocache, and the pages show what the results hold."""

import importlib
import json
import os
import subprocess
import sys
import time
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


@pytest.fixture
def render(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("render")


def loader_result(**changes):
    streams = {"joint": "14 features at 50 Hz", "feature": "64 features at 30 Hz"}
    case = {
        "name": "batch 1024",
        "parameters": {
            "batch_size": 1024,
            "steps": 16,
            "episodes": 2000,
            "seconds": 20.0,
            "streams": streams,
            "dtype": "bfloat16",
        },
        "bytes": 7_772_160,
        "floor_us": 3.68,
        "times_the_copy": 4.13,
        "contenders": {
            "robocache": {
                "wall_us": 30.4,
                "gpu_us": 15.2,
                "host_us": 12.3,
                "samples_per_s": 33.7e6,
                "gpu_samples_per_s": 67.3e6,
            },
            "torch DataLoader, 16 workers": {"wall_us": 11524, "samples_per_s": 88_856.4},
        },
        "faster_than": {"torch DataLoader, 16 workers": 379.2},
        "failures": {"torch.compile": "RuntimeError: no"},
    }
    result = {
        "bench": "loader",
        "machine": {"name": "some-gpu", "gpu": "Some GPU", "cpu": "Some CPU", "threads": 16, "robocache": None},
        "command": "python bench/loader.py --device cuda",
        "commit": "0123456789ab",
        "date": "2026-01-02",
        "quick": False,
        "predicted": {
            "batch 1024": {"samples_per_s": 65e6, "faster_than": {"torch DataLoader": 550}},
            "batch 4096": {"gpu_us": 47},
        },
        "cases": [case],
    }
    return result | changes


def columns(text):
    """The table of a page: {first column: {header: cell}}."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    header, _, *rows = lines
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def test_the_readme_names_each_figure(render):
    text = render.readme([loader_result()])
    assert columns(text)["batch 1024"] == {
        "`next(loader)` in a loop": "33.7 M/s",
        "its kernel alone": "67.3 M/s",
        "host time of `next(loader)`": "12.3 us",
        "kernel's time over a copy": "4.13",
        "faster than torch DataLoader, 16 workers": "379x",
    }
    for part in (
        "Some GPU",
        "`python bench/loader.py --device cuda`",
        "0123456789ab",
        "14 features at 50 Hz",
        "bfloat16",
    ):
        assert part in text


def test_the_page_sets_what_came_beside_what_was_predicted(render):
    text = render.page([loader_result()])
    assert "| batch 1024 | samples/s, in a loop | 65.0 M/s | 33.7 M/s |" in text
    assert "| batch 1024 | faster than torch DataLoader, 16 workers | 550x | 379x |" in text
    assert "| batch 4096 | a call, device alone | 47.0 us |  |" in text  # it did not run
    assert "torch.compile failed: RuntimeError: no" in text
    assert "None" not in text


def test_what_failed_or_was_a_smoke_run_is_not_in_the_readme(render):
    failed = {"name": "batch 1024", "parameters": loader_result()["cases"][0]["parameters"], "error": "Boom: it broke"}
    for result in (loader_result(cases=[failed]), loader_result(cases=[]), loader_result(quick=True)):
        assert render.readme([result]) == render.NONE
    assert "Failed: Boom: it broke" in render.page([loader_result(cases=[failed])])


@pytest.mark.parametrize(
    ("samples_per_s", "text"),
    [(12.345, "12.3/s"), (999.5e3, "1,000 k/s"), (108.04e6, "108 M/s"), (2.4109e6, "2.41 M/s")],
)
def test_figures_have_three_digits(render, samples_per_s, text):
    assert render.rate(samples_per_s) == text


def test_a_host_figure_leaves_out_the_wait_for_the_device(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    measure = importlib.import_module("measure")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: time.sleep(0.02))
    calls = []
    timers = {timer: timer([lambda: calls.append(0)], count=10) for timer in (measure.wall_timer, measure.host_timer)}
    assert timers[measure.wall_timer]() >= 2000
    assert timers[measure.host_timer]() < 2000
    assert len(calls) == 20


def test_the_pages_show_the_results():
    code, text = run("bench/render.py", "--check")
    assert code == 0, text
