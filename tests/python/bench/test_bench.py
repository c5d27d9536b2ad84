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


@pytest.mark.parametrize(
    ("bench", "count"), [("resample", 1), ("fuse", 1), ("loader", 1), ("tsdf", 1), ("voxelize", 7)]
)
def test_a_benchmark_runs_and_verifies_its_peers(tmp_path, device, bench, count):
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    result = quick(tmp_path, device, bench)
    cases = {case["name"]: case for case in result["cases"]}
    overhead = cases.pop("call overhead", None)
    assert len(cases) == count
    for case in cases.values():
        assert not case["failures"]
        assert case["bytes"] > 0
        assert case["floor_us"] > 0
        assert len(case["contenders"]) > 1
        for name, measures in case["contenders"].items():
            assert measures["wall_us"] > 0
            assert name == "robocache" or measures["largest_error_over_bound"] <= 1
    if overhead is not None:
        assert not overhead["failures"]
        assert all(measures["host_us"] > 0 for measures in overhead["contenders"].values())
        assert ("beyond_the_launch_us" in overhead) == (device == "cuda")


def test_the_sweep_runs_over_every_plane(tmp_path, device):
    pytest.importorskip("torch")
    result = quick(tmp_path, device, "sweep")
    assert len(result["cases"]) == 6
    for plane in result["cases"]:
        assert not plane["failures"], plane["name"]
        assert [len(plane["rows"]), len(plane["columns"])] == [2, 2]
        for key in ("bytes", "us", "ratios"):
            assert all(x > 0 for line in plane[key] for x in line), (plane["name"], key)


def quick(folder, device, bench):
    """What a benchmark's smoke run leaves."""
    code, text = run(f"bench/{bench}.py", "--quick", "--device", device, "--out", str(folder), "--machine", "here")
    assert code == 0, text
    result = json.loads((folder / f"here-{bench}.json").read_text())
    assert result["bench"] == bench
    assert result["commit"]
    assert str(folder) not in json.dumps(result)
    return result


def test_a_benchmark_may_run_in_parts(tmp_path):
    pytest.importorskip("torch")
    command = (
        "bench/voxelize.py",
        "--quick",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
        "--machine",
        "here",
        "--append",
    )
    for part in ("occupancy", "call overhead", "occupancy"):
        code, text = run(*command, "--only", part)
        assert code == 0, text
    result = json.loads((tmp_path / "here-voxelize.json").read_text())
    assert [case["name"] for case in result["cases"]] == ["call overhead", "occupancy"]
    both = [f"python bench/voxelize.py --quick --device cpu --only {part}" for part in ("occupancy", "'call overhead'")]
    assert result["command"] == "; ".join(both)


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
    only = ("--only", "B3")
    code, text = run("-c", program, "--quick", *only, "--device", "cpu", "--out", str(tmp_path), "--machine", "here")
    assert code == 1, text
    case = json.loads((tmp_path / "here-resample.json").read_text())["cases"][-1]
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


def test_an_aim_that_is_missed_stands_out(render):
    aims = {
        "batch 1024": {
            "gpu_us": 15.0,
            "samples_per_s": 30e6,
            "times_the_copy": 4.0,
            "faster_than": {"torch DataLoader": 300},
        },
        "batch 64": {"times_the_copy": 1.1},
    }
    text = render.page([loader_result(aims=aims)])
    assert "| batch 1024 | a call, device alone | at most 15.0 us | **15.2 us** |" in text
    assert "| batch 1024 | samples/s, in a loop | at least 30.0 M/s | 33.7 M/s |" in text
    assert "| batch 1024 | time over the copy | at most 4.00 | **4.13** |" in text
    assert "| batch 1024 | faster than torch DataLoader, 16 workers | at least 300x | 379x |" in text
    assert "| batch 64 | time over the copy | at most 1.10 |  |" in text  # it did not run


def resample_case(ratio, name, **parameters):
    parameters = {
        "B": 2,
        "S": 5,
        "T": 4,
        "D": 64,
        "dtype": "bfloat16",
        "clock": "float32",
        "method": "linear",
    } | parameters
    return {
        "name": name,
        "parameters": parameters,
        "bytes": 1000,
        "floor_us": 2.0,
        "times_the_copy": ratio,
        "contenders": {"robocache": {"gpu_us": 2.0 * ratio}},
        "faster_than": {"torch eager": 9.0},
        "in_a_loop_faster_than": {"torch eager": 20.0},
        "failures": {},
    }


def test_the_readme_sets_the_variants_of_a_shape_beside_one_another(render, monkeypatch):
    monkeypatch.setitem(render.HEADLINES, "resample", ["B2", "B3"])
    cases = [
        resample_case(1.1, "B2"),
        resample_case(1.2, "B3", B=3, D=32),
        resample_case(1.3, "B2, int64 clocks", clock="int64"),
        resample_case(1.4, "B2 D7", D=7),
        resample_case(1.5, "B3 D7", B=3, D=7),
        resample_case(1.6, "B3, pchip", B=3, D=32, method="pchip"),
        {
            "name": "call overhead",
            "parameters": {},
            "contenders": {"robocache": {"host_us": 6.5}, "torch.lerp": {"host_us": 5.5}},
            "failures": {},
            "launch_us": 2.5,
            "beyond_the_launch_us": 4.0,
        },
    ]
    text = render.readme([loader_result(bench="resample", cases=cases, aims={"B2": {"times_the_copy": 1.3}})])
    shapes, others = text.split("Time over a copy of the same with")
    assert columns(shapes) == {
        "B2": {
            "time of the kernel": "2.20 us",
            "time over a copy": "1.10",
            "aimed at": "1.30",
            "faster than torch eager": "9.00x",
            "in a loop, faster than torch eager": "20.0x",
        },
        "B3": {
            "time of the kernel": "2.40 us",
            "time over a copy": "1.20",
            "aimed at": "",
            "faster than torch eager": "9.00x",
            "in a loop, faster than torch eager": "20.0x",
        },
    }
    assert columns(others) == {
        "B2": {"int64 clocks": "1.30", "D=7": "1.40", "pchip": ""},
        "B3": {"int64 clocks": "", "D=7": "1.50", "pchip": "1.60"},
    }
    assert "A call from Python keeps the host 6.50 us, of which 4.00 us are not the launch itself" in others
    assert "`torch.lerp` takes 5.50 us" in others


# ---- What the cases are made of ----


@pytest.fixture
def inputs(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("inputs")


@pytest.mark.parametrize(("method", "reach"), [("linear", 0), ("slerp", 0), ("pchip", 1), ("akima", 2), ("cubic", 999)])
@pytest.mark.parametrize(("samples", "targets", "features"), [(50, 20, 7), (50, 3, 16), (300, 2, 1), (2, 9, 40)])
def test_the_bytes_of_a_case_are_those_of_the_sectors_it_touches(inputs, method, reach, samples, targets, features):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(samples)
    times = inputs.make_clock("50% jitter", 2, samples, torch.float32, generator, "cpu")
    asked = inputs.make_targets(2, targets, torch.float32, "cpu")
    values = torch.zeros(2, samples, features, dtype=torch.bfloat16)

    sectors, row_bytes = set(), 2 * features
    for row in range(2):
        for target in asked[row].tolist():
            right = sum(time <= target for time in times[row].tolist())
            right = min(max(right, 1), samples - 1)
            for sample in range(max(0, right - 1 - reach), min(samples, right + reach + 1)):
                begin = (row * samples + sample) * row_bytes
                sectors |= {byte // 64 for byte in range(begin, begin + row_bytes)}
    looked_at = {(50, 20): 50, (50, 3): 21, (300, 2): 20, (2, 9): 2}[samples, targets]  # of each clock
    expected = 64 * len(sectors) + 2 * 4 * looked_at + 2 * 4 * targets + 2 * targets * row_bytes
    assert inputs.bytes_moved(values, times, asked, method) == expected


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("jitter", ["uniform", "30% jitter", "50% jitter", "bursts", "random"])
def test_clocks_ascend_from_the_first_target_to_the_last(inputs, jitter, dtype):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, dtype)
    for samples in (2, 3, 9, 1000):
        times = inputs.make_clock(jitter, 3, samples, dtype, torch.Generator().manual_seed(0), "cpu")
        asked = inputs.make_targets(3, 5, dtype, "cpu")
        assert times.dtype == asked.dtype == dtype
        assert (times.diff(dim=1) >= 0).all()
        assert times[:, 0].tolist() == asked[:, 0].tolist()
        assert times[:, -1].tolist() == asked[:, -1].tolist()


# ---- The sweep ----


@pytest.fixture
def sweep(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("sweep")


def test_a_cliff_is_a_pair_of_neighbours_more_than_a_factor_of_two_apart(sweep):
    rows, columns = sweep.sizes("B", [1, 2]), sweep.sizes("D", [1, 2, 4])
    plane = {"rows": ["1", "2"], "columns": ["1", "2", "4"], "ratios": [[1.0, 2.0, 4.5], [3.0, None, 4.0]]}
    assert sweep.cliffs(rows, columns, plane) == [
        {"at": "B 2, D 1", "beside": "B 1, D 1", "factor": 3.0},
        {"at": "B 1, D 4", "beside": "B 1, D 2", "factor": 2.25},
    ]
    methods = sweep.Axis("method", {"linear": {}, "cubic": {}}, alike=False)
    assert [cliff["factor"] for cliff in sweep.cliffs(methods, columns, plane)] == [2.25]


def sweep_result():
    plane = {
        "name": "B by D",
        "parameters": {"S": 1024},
        "row_axis": "B",
        "column_axis": "D",
        "rows": ["1", "2"],
        "columns": ["1", "2"],
        "ratios": [[1.0, 1.5], [None, 3.5]],
        "cliffs": [{"at": "B 2, D 2", "beside": "B 1, D 2", "factor": 3.5 / 1.5}],
        "failures": {},
    }
    return loader_result(bench="sweep", predicted={}, cases=[plane])


def test_a_picture_of_other_figures_is_found_out(render, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pictures = importlib.import_module("sweep_picture")
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    result = sweep_result()
    assert not pictures.is_current(result)
    pictures.draw(result, pictures.picture_of(result))
    assert pictures.is_current(result)
    result["cases"][0]["ratios"][0][0] = 1.25
    assert not pictures.is_current(result)


@pytest.mark.parametrize("drawn", [True, False])
def test_the_pages_tell_of_the_cliffs_and_show_the_picture_that_is_there(render, tmp_path, monkeypatch, drawn):
    monkeypatch.setattr(importlib.import_module("sweep_picture"), "ROOT", tmp_path)
    if drawn:
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs/sweep-some-gpu.png").write_bytes(b"")
    text = render.page([sweep_result()])
    assert ("![heat maps](sweep-some-gpu.png)" in text) == drawn
    assert "1.00 to 3.50 times the copy; 1 cliff, the worst first" in text
    assert "| B 2, D 2 | B 1, D 2 | 2.33x |" in text
    text = render.readme([sweep_result()])
    assert "Over 3 shapes" in text
    picture = " ([heat map](docs/sweep-some-gpu.png))" if drawn else ""
    assert f"1.50 in the median and 3.50 at most{picture}; 1 pair of neighbours" in text


def test_the_sweep_leaves_one_file(tmp_path):
    pytest.importorskip("torch")
    command = ("-m", "bench", "sweep", "--quick", "--device", "cpu", "--only", "B by D")
    code, text = run(*command, "--out", str(tmp_path), "--machine", "here")
    assert code == 0, text
    assert [path.name for path in tmp_path.iterdir()] == ["here-sweep.json"]


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
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    measure = importlib.import_module("measure")
    monkeypatch.setattr(measure, "wait_for_device", lambda: time.sleep(0.02))
    calls = []
    timers = {timer: timer([lambda: calls.append(0)], count=10) for timer in (measure.wall_timer, measure.host_timer)}
    assert timers[measure.wall_timer]() >= 2000
    assert timers[measure.host_timer]() < 2000
    assert len(calls) == 20


def test_the_pages_show_the_results():
    code, text = run("bench/render.py", "--check")
    assert code == 0, text
