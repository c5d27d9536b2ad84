"""The README and docs/benchmarks.md show what the results hold, shortly."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def render(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("render")


def case(name, gpu_us, points=None, **more):
    rate = {} if points is None else {"gpu_points_per_s": points / gpu_us * 1e6}
    return {
        "name": name,
        "parameters": {},
        "bytes": 1000,
        "floor_us": 32.0,
        "times_the_copy": gpu_us / 32,
        "contenders": {"robocache": {"gpu_us": gpu_us, "wall_us": 2 * gpu_us} | rate, "torch eager": {"gpu_us": 1e3}},
        "faster_than": {"torch eager": 1000 / gpu_us},
        "in_a_loop_faster_than": {"torch eager": 500 / gpu_us},
        "failures": {},
    } | more


def result(*cases, bench="voxelize", **changes):
    return {
        "bench": bench,
        "machine": {"name": "some-gpu", "gpu": "Some GPU", "cpu": "Some CPU", "threads": 16, "torch": "2.99"},
        "command": f"python bench/{bench}.py --device cuda",
        "commit": "0123456789ab",
        "date": "2026-01-02",
        "quick": False,
        "predicted": {},
        "aims": {},
        "cases": list(cases),
    } | changes


def columns(text):
    """The one table of a text: {first column: {header: cell}}."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    header, _, *rows = lines
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


# ---- The pages as they are ----


def test_the_pages_show_the_results():
    command = [sys.executable, "bench/render.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pages_stay_short(render):
    numbers = (ROOT / "README.md").read_text().split("## Numbers\n")[1].split("\n## ")[0]
    table = numbers.split("<!-- bench:begin -->")[1].split("<!-- bench:end -->")[0].strip().splitlines()
    assert 3 <= len(table) <= 12
    assert all(line.startswith("|") for line in table)
    assert numbers.count("\n|") == len(table)  # no other
    page = (ROOT / "docs/benchmarks.md").read_text().split()
    assert sum(bool(word.strip("|-:")) for word in page) <= 4000  # without the lines of its tables


def test_every_benchmark_runs_by_its_name_and_has_a_title(render, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    pytest.importorskip("torch")
    programs = {path.stem for path in (ROOT / "bench").glob("*.py") if " = Report(" in path.read_text()}
    assert set(importlib.import_module("bench.__main__").BENCHES) == set(render.TITLES) == programs


# ---- The README ----


def test_a_line_of_the_readme(render, monkeypatch):
    found = {"here": result(case("count, 10M", 80.0, 10_000_000), case("sum", 500.0))}
    headlines = [("here", "count, 10M", "counts", "gpu_points_per_s"), ("here", "sum", "sums", "gpu_us")]
    monkeypatch.setattr(render, "HEADLINES", headlines)
    assert columns(render.readme(found)) == {
        "counts": {
            "on": "Some GPU",
            "speed": "125 G points/s",
            "time over a copy": "2.50",
            "times as fast as": "12.5x torch eager",
        },
        "sums": {
            "on": "Some GPU",
            "speed": "500 us",
            "time over a copy": "15.6",
            "times as fast as": "2.00x torch eager",
        },
    }


@pytest.mark.parametrize(
    "changes", [{"quick": True}, {"cases": []}, {"cases": [{"name": "sum", "parameters": {}, "error": "Boom"}]}]
)
def test_a_line_of_the_readme_does_not_go_missing(render, monkeypatch, changes):
    monkeypatch.setattr(render, "HEADLINES", [("here", "sum", "sums", "gpu_us")])
    with pytest.raises(SystemExit, match=r"here\.json: expected gpu_us of the case 'sum'"):
        render.readme({"here": result(case("sum", 500.0)) | changes})


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(12.345, "12.3/s"), (999.5e3, "1,000 k/s"), (108.04e6, "108 M/s"), (2.4109e6, "2.41 M/s")],
)
def test_figures_have_three_digits(render, per_s, text):
    assert render.rate(per_s) == text


# ---- docs/benchmarks.md ----


def test_a_section_has_a_line_a_case(render):
    waits = {"contenders": {"robocache": {"wall_us": 400.0}}, "faster_than": {"numpy": 0.5}}
    overhead = {
        "name": "call overhead",
        "contenders": {"robocache": {"host_us": 6.5}, "torch.lerp": {"host_us": 5.5}},
        "launch_us": 2.5,
        "beyond_the_launch_us": 4.0,
    }
    broken = {"name": "max", "parameters": {}, "error": "Boom: it broke"}
    failing = case("sum", 500.0, failures={"torch.compile": "RuntimeError: no"})
    text = render.section(result(failing, case("downsample", 400.0, **waits), overhead, broken))
    assert columns(text) == {
        "sum": {
            "device alone": "500 us",
            "in a loop": "1.00 ms",
            "over a copy": "15.6",
            "x torch eager": "2.00x",
            "x numpy": "",
        },
        "downsample": {
            "device alone": "",
            "in a loop": "400 us",
            "over a copy": "12.5",
            "x torch eager": "",
            "x numpy": "0.500x",
        },
    }
    assert "`python bench/voxelize.py --device cuda`, 2026-01-02, commit 0123456789ab, torch 2.99" in text
    assert "keeps the host 6.50 us, 4.00 us of them beyond the bare launch; `torch.lerp` 5.50 us" in text
    assert "sum: torch.compile failed: RuntimeError: no" in text
    assert "max: robocache failed: Boom: it broke" in text
    assert "Short of the aim" not in text
    assert "smoke run" in render.section(result(quick=True))


def test_cases_kept_of_another_commit_are_told(render):
    text = render.section(result(case("sum", 500.0), case("max", 500.0, commit="fedcba987654")))
    assert "commit 0123456789ab (1 of 2 cases fedcba987654), torch 2.99" in text


def test_variants_of_cases_are_summed_up(render):
    cases = [case("B2", 64.0), case("B2, int64 clocks", 80.0), case("B2 D14", 48.0)]
    text = render.section(result(*cases, bench="resample"))
    assert list(columns(text)) == ["B2"]
    assert "2 more, with int64 clocks, D14, take 1.50 to 2.50 times a copy" in text


def test_missed_aims_of_a_kind_are_one_line(render):
    aims = {
        "a": {"gpu_points_per_s": 150e9, "faster_than": {"torch eager": 5.0}, "times_the_copy": 2.5},
        "b": {"faster_than": {"torch eager": 5.0}, "in_a_loop_faster_than": {"torch eager": 5.0}},
        "c": {"faster_than": {"torch eager": 5.0, "numpy": 1.0}, "gpu_us": 7.0},
        "d": {"faster_than": {"torch DataLoader": 500.0}},
        "did not run": {"gpu_us": 8.0},
    }
    workers = case("d", 80.0, faster_than={"torch DataLoader, 2 workers": 400.0, "torch DataLoader, 0 workers": 600.0})
    cases = [case("a", 80.0, 10_000_000), case("b", 500.0), case("c", 250.0), workers]
    text = render.section(result(*cases, aims=aims))
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        "- points/s, at least 150 G/s: a (125 G/s)",
        "- times as fast as torch eager, at least 5.00: 2 of 3, the worst b (2.00x)",
        "- in a loop, times as fast as torch eager, at least 5.00: b (1.00x)",
        "- time on the device, at most 7.00 us: c (250 us)",
        "- times as fast as torch DataLoader, 2 workers, at least 500: d (400x)",
    ]


def test_figures_without_a_copy_beside_them_have_a_table_of_their_own(render):
    def ranks(name, **figures):
        return {"name": name, "parameters": {}, "figures": figures}

    cases = [
        ranks("1 rank", samples_per_s=100e6, share_of_linear=1.0),
        ranks("2 ranks", samples_per_s=186e6, share_of_linear=0.93, grown_by=-0.004),
        ranks("opened", open_s=2.5, open_bytes=14e6, start_s=0.31),
    ]
    aims = {"2 ranks": {"share_of_linear": 0.95, "grown_by": 0.02}, "opened": {"open_s": 2.0, "open_bytes": 200e6}}
    text = render.section(result(*cases, bench="ranks", aims=aims))
    rows = columns(text.split("Short of the aim")[0])
    assert rows["1 rank"] == {
        "samples/s": "100 M/s",
        "share of linear": "100.0 %",
        "a step grows by": "",
        "opens in": "",
        "memory of that": "",
        "a loader starts in": "",
    }
    assert (rows["2 ranks"]["share of linear"], rows["2 ranks"]["a step grows by"]) == ("93.0 %", "-0.4 %")
    assert list(rows["opened"].values())[3:] == ["2.50 s", "14.0 MB", "310 ms"]
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        "- share of linear, at least 95.0 %: 2 ranks (93.0 %)",
        "- opens in, at most 2.00 s: opened (2.50 s)",
    ]


def test_formats_are_shown_by_their_shares_and_on_their_own_page(render):
    def ingested(name, **figures):
        return {"name": name, "parameters": {}, "figures": figures}

    cases = [
        ingested("CSV", ingest_s=2.0, ingested_bytes_per_s=60e6, share_of_library=0.4, doctor_adds=0.3, peak_bytes=5e8),
        ingested(
            "ULog", ingest_s=0.5, ingested_bytes_per_s=90e6, share_of_library=3.0, doctor_adds=0.1, peak_bytes=3e8
        ),
        {"name": "MCAP", "parameters": {}, "error": "ModuleNotFoundError: No module named 'mcap'"},
    ]
    aim = {"share_of_library": 0.5, "doctor_adds": 0.25, "peak_bytes": 1e9}
    found = {
        "here-ingest": result(*cases, bench="ingest", aims={"CSV": aim, "ULog": aim}),
        "here-voxelize": result(case("count", 80.0)),
    }
    text = render.formats(found)
    assert columns(text.split("Short of the aim")[0])["CSV"] == {
        "ingest": "2.00 s",
        "bytes/s": "60.0 M/s",
        "share of the library's speed": "40.0 %",
        "the doctor adds": "30.0 %",
        "peak memory": "500 MB",
    }
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        "- share of the library's speed, at least 50.0 %: 1 of 2, the worst CSV (40.0 %)",
        "- the doctor adds, at most 25.0 %: 1 of 2, the worst CSV (30.0 %)",
    ]
    assert "MCAP: robocache failed: ModuleNotFoundError" in text
    assert "count" not in text
    assert "CSV" not in render.page(found)
    assert "python -m bench ingest" in render.formats({})


def test_batches_of_cameras_have_one_line_for_all_tiers(render):
    def batches(name, per_s, ratio):
        ours = {"robocache": {"frames_per_s": per_s}}
        return {"name": name, "parameters": {}, "contenders": ours, "faster_than": {"torch DataLoader": ratio}}

    cases = [
        batches("decode, 64", 1e6, 40.0),
        batches("batches of 64, decoded", 2e6, 300.0),
        batches("batches of 64, mapped", 3e5, 60.0),
        {"name": "a step, mapped", "parameters": {}, "figures": {"grown_by": 0.03}},
    ]
    aims = {"batches of 64, mapped": {"faster_than": {"torch DataLoader": 100.0}}, "a step, mapped": {"grown_by": 0.02}}
    text = render.cameras({"here": result(*cases, bench="images", aims=aims, bytes_a_frame=18200)})
    alone, batched = text.split("Frames/s, and times as fast as torch DataLoader:")
    assert columns(alone)["decode, 64"] == {"": "1.00 M frames/s", "beside it": "40.0x torch DataLoader"}
    batched, missed = batched.split("Short of the aim:")
    assert columns(batched) == {
        "batches of 64": {"decoded": "2.00 M/s, 300x", "mapped": "300 k/s, 60.0x"},
        "a step": {"decoded": "", "mapped": "grows by 3.0 %"},
    }
    assert "at least 100: batches of 64, mapped (60.0x)" in missed
    assert "a step grows by, at most 2.0 %: a step, mapped (3.0 %)" in missed


def test_training_is_told_by_its_record(render):
    losses = [0.5, 0.3, *[0.25] * 296, 0.06, 0.04, 0.04]
    record = {"date": "2026-01-02", "gpu": "Some GPU", "policy": "small", "cameras": ["top"], "frames": 2096}
    record |= {"batch_size": 64, "steps": 301, "losses": losses, "waited_s": 0.25, "elapsed_s": 12.5}
    lines = render.training(record).splitlines()
    text = " ".join(lines)
    assert max(map(len, lines)) <= 120
    assert text.startswith(
        "Some GPU, `--policy small --steps 301 --batch-size 64`, 2026-01-02: 2,096 frames of 1 camera."
    )
    assert "the first 3 steps is 0.350, of the last 0.0467; all took 12.5 s, of which 250 ms, 2.0 %, " in text


def test_what_a_tier_reads_is_shown_in_bytes(render):
    pinned = case("pinned, rows", 40.0, share_of_the_link=0.8)
    pinned["contenders"]["robocache"]["read_bytes_per_s"] = 43e9
    text = render.section(result(pinned, bench="residency", aims={"pinned, rows": {"share_of_the_link": 0.9}}))
    assert columns(text)["pinned, rows"]["bytes read/s"] == "43.0 G/s"
    assert "- share of the host link's speed, at least 90.0 %: pinned, rows (80.0 %)" in text


def test_of_each_case_that_was_counted_the_longest_kernel(render, monkeypatch, tmp_path):
    def kernel(name, us, memory):
        counted = dict.fromkeys(render.COUNTERS, 50.0) | {
            render.TIME_NS: 1000 * us,
            next(iter(render.COUNTERS)): memory,
        }
        return {"name": name, "counters": counted}

    monkeypatch.setattr(render, "COUNTED", ["mean", "count"])
    kernels = [
        kernel("count", 3, 30.0),
        kernel("mean: sort", 40, 10.0),
        kernel("mean: add", 90, 20.0),
        kernel("x", 1, 1.0),
    ]
    (tmp_path / "some-gpu.json").write_text(json.dumps(result(*kernels, bench="counters")))
    (text,) = render.counters(tmp_path)
    found = columns(text)
    assert list(found) == ["mean: add", "count"]
    assert [found["mean: add"]["time"], found["mean: add"]["memory busy, %"]] == ["90.0 us", "20.0"]


# ---- The sweep ----


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
    return result(plane, {"name": "S by T", "parameters": {}, "error": "Boom: it broke"}, bench="sweep")


def shapes_result():
    shapes = [
        {"name": "B1", "bytes": 10**6, "us": 2.0, "times_the_copy": 1.25, "faster_than": 3.0},
        {"name": "B2", "bytes": 10**8, "us": 50.0, "times_the_copy": 2.5, "faster_than": 0.75},
    ]
    cases = [
        {"name": f"fuse, seed {seed}", "parameters": {}, "shapes": [shape], "failures": {}}
        for seed, shape in zip((3, 4), shapes, strict=True)
    ]
    return result(*cases, bench="shapes")


def test_shapes_that_lose_are_named_and_ringed(render, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pictures = importlib.import_module("sweep_picture")
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    of_shapes = shapes_result()
    pictures.draw(of_shapes, pictures.picture_of(of_shapes))
    assert pictures.is_current(of_shapes)
    text = render.section(of_shapes)
    assert "(shapes-some-gpu.png)" in text
    assert columns(text)["fuse"]["at most"] == "2.50"
    assert columns(text)["fuse"]["shapes"] == "2"
    assert "Slower than torch.compile: fuse B2 (0.750x)." in text
    of_shapes["cases"][0]["shapes"][0]["times_the_copy"] = 1.5
    assert not pictures.is_current(of_shapes)


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
def test_the_page_tells_of_the_cliffs_and_shows_the_picture_that_is_there(render, tmp_path, monkeypatch, drawn):
    monkeypatch.setattr(importlib.import_module("sweep_picture"), "ROOT", tmp_path)
    if drawn:
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs/sweep-some-gpu.png").write_bytes(b"")
    text = render.section(sweep_result())
    assert ("(sweep-some-gpu.png)" in text) == drawn
    assert "3 cases, two things varied at a time: the time over a copy is 1.50 in the median and 3.50 at most." in text
    assert "more than a factor of 2: 1, the worst B 2, D 2 beside B 1, D 2 (2.33x)." in text
    assert "S by T: robocache failed: Boom: it broke" in text
