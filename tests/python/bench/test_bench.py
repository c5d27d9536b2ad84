"""The benchmarks run, their peers agree with robocache, and their cases are what they say."""

import importlib
import json
import random
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


# Has imported what all benchmarks import, and forks for each: a child runs its command as Python would.
FORKS = """
import json, os, runpy, signal, sys
import torch, robocache
for line in sys.stdin:
    command, output = json.loads(line)
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    raise SystemExit
signal.alarm(600)
written = os.open(output, os.O_WRONLY | os.O_CREAT)
os.dup2(written, 1)
os.dup2(written, 2)
sys.argv = command
if command[0] == "-c":
    sys.argv = ["-c", *command[2:]]
    exec(command[1])
elif command[0] == "-m":
    sys.argv = command[1:]
    runpy.run_module(command[1], run_name="__main__", alter_sys=True)
else:
    sys.path.insert(0, os.path.dirname(command[0]))
    runpy.run_path(command[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs `python COMMAND...` at the root of the checkout: its exit status and what it printed."""
    pytest.importorskip("torch")
    output = tmp_path_factory.mktemp("bench") / "output"
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forks:

        def run(*command):
            if "cuda" in command:  # which no fork may use
                done = subprocess.run(
                    [sys.executable, *command],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=600,
                )
                return done.returncode, done.stdout
            output.unlink(missing_ok=True)
            forks.stdin.write(json.dumps([command, str(output)]) + "\n")
            forks.stdin.flush()
            return int(forks.stdout.readline()), output.read_text()

        yield run
        forks.stdin.close()


@pytest.fixture
def quick(run, tmp_path):
    """Runs a benchmark's smoke run: what it leaves."""

    def quick(device, bench):
        options = ("--quick", "--device", device, "--out", str(tmp_path), "--machine", "here")
        code, text = run(f"bench/{bench}.py", *options)
        assert code == 0, text
        result = json.loads((tmp_path / f"here-{bench}.json").read_text())
        assert result["bench"] == bench
        assert result["commit"]
        assert str(tmp_path) not in json.dumps(result)
        return result

    return quick


@pytest.mark.parametrize(
    ("bench", "count"), [("resample", 1), ("fuse", 1), ("loader", 1), ("tsdf", 1), ("voxelize", 7)]
)
def test_a_benchmark_runs_and_verifies_its_peers(quick, device, bench, count):
    pytest.importorskip("scipy")
    result = quick(device, bench)
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


def test_the_benchmark_of_cameras_runs_and_verifies_its_peers(quick, device):
    pytest.importorskip("PIL")
    result = quick(device, "images")
    assert result["bytes_a_frame"] > 0
    assert len(result["cases"]) == (19 if device == "cuda" else 9)
    for case in result["cases"]:
        assert not case.get("failures")
        if "figures" in case:
            assert case["figures"]["step_us"] > 0
            continue
        assert case["contenders"]["robocache"]["frames_per_s"] > 0
        for name, measures in case["contenders"].items():
            assert name in ("robocache", "reading alone") or measures["largest_error_over_bound"] <= 1


def test_the_gather_of_rows_gives_the_same_bytes(quick):
    [case] = quick("cpu", "loader_one_clock")["cases"]
    assert case["faster_than"]["torch gather"] > 0
    assert case["floor_us"] > 0
    assert case["times_the_copy"] > 0
    assert len(case["contenders"]) == 4


def test_the_sweep_runs_over_every_plane(quick, device):
    result = quick(device, "sweep")
    assert len(result["cases"]) == 6
    for plane in result["cases"]:
        assert not plane["failures"], plane["name"]
        assert [len(plane["rows"]), len(plane["columns"])] == [2, 2]
        for key in ("bytes", "us", "ratios"):
            assert all(x > 0 for line in plane[key] for x in line), (plane["name"], key)


def test_shapes_are_drawn_of_every_operation_and_of_the_loader(quick, device):
    cases = quick(device, "shapes")["cases"]
    assert [case["name"].split(",")[0] for case in cases] == ["resample", "fuse", "voxelize", "tsdf", "loader"]
    for case in cases:
        assert not case["failures"], case["name"]
        assert case["shapes"]
        for shape in case["shapes"]:
            assert shape["name"]
            assert min(shape["bytes"], shape["us"], shape["times_the_copy"]) > 0


def test_tiers_are_measured_against_the_link_and_a_pool_of_workers(quick, device):
    cases = {case["name"]: case for case in quick(device, "residency")["cases"]}
    assert {"in memory", "mapped, warm", "mapped, cold"} <= cases.keys()
    assert len(cases) == (3 if device == "cpu" else 11)
    for name, case in cases.items():
        assert not case.get("failures"), name
        if name.startswith("a step"):
            assert case["figures"]["fed_step_us"] > 0
            continue
        assert case["bytes"] > 0
        assert case["floor_us"] > 0
        assert all(measures.get("wall_us", measures.get("gpu_us")) > 0 for measures in case["contenders"].values())
    for state in ("warm", "cold"):
        case = cases[f"mapped, {state}"]
        alone = ["reads alone, 64 at once"] if state == "cold" else []
        assert list(case["faster_than"]) == ["torch DataLoader, 2 workers", *alone]
        assert case["contenders"]["torch DataLoader, 2 workers"]["largest_error_over_bound"] <= 1
        assert "vision" in case["explained"]
        assert "mapped" in case["explained"]
    if device == "cuda":
        for asked in ("rows", "between rows"):
            assert cases[f"pinned, {asked}"]["share_of_the_link"] > 0


def test_ranks_share_an_epoch_as_one_process_has_it(quick):
    cases = quick("cpu", "ranks")["cases"]
    assert [case["name"] for case in cases] == ["1 rank", "2 ranks"]
    for case in cases:
        assert case["found"]["verified"] == 9 * 75  # all anchors of all episodes
        assert case["figures"]["samples_per_s"] > 0
        assert case["figures"]["share_of_linear"] > 0


def test_ranks_that_have_other_samples_are_found_out(run, tmp_path):
    """Were each rank to think that it is alone, they would all have the same."""
    script = tmp_path / "ranks_of_their_own.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r})\n"
        "import ranks\n"
        "right = ranks.make_loader\n"
        "import robocache\n"
        "alone = robocache.Ranks(rank=0, world_size=1)\n"
        "ranks.make_loader = lambda *arguments: right(*arguments[:3], alone)\n"
        "ranks.__file__ = __file__  # what torchrun is to run\n"
        "raise SystemExit(ranks.main())\n"
    )
    options = ("--quick", "--device", "cpu", "--ranks", "2", "--out", str(tmp_path), "--machine", "here")
    code, text = run(str(script), *options)
    assert code == 1
    assert "other samples than a single process's" in text
    assert "error" in json.loads((tmp_path / "here-ranks.json").read_text())["cases"][0]


def test_opening_many_episodes_is_measured(quick, device):
    (case,) = quick(device, "episodes")["cases"]
    assert case["name"] == "2,000 episodes"
    for measure in ("open_s", "open_bytes", "start_s"):
        assert case["figures"][measure] > 0, measure


def test_every_format_is_ingested_beside_its_library(quick):
    for module in ("torch", "google_crc32c", "h5py", "laspy", "mcap", "numcodecs", "pyulog", "rosbags", "yaml", "zarr"):
        pytest.importorskip(module)
    from robocache.ingest.registry import FORMATS

    cases = {case["name"]: case["figures"] for case in quick("cpu", "ingest")["cases"]}
    for entry in FORMATS.values():
        if entry.name in {"robotwin", "agibot", "maniskill"}:  # HDF5, read by the code that robomimic and ALOHA measure
            continue
        words = {"rosbag2": "ROS 2", "rosbag1": "ROS 1"}.get(entry.name, entry.name).lower()
        assert any(name.lower().startswith(words) for name in cases), entry.name
    for name, figures in cases.items():
        measures = ("ingest_s", "ingested_bytes_per_s", "library_bytes_per_s", "share_of_library", "share_of_writing")
        for measure in (*measures, "writing_of_library", "doctor_adds"):
            assert figures[measure] > 0, (name, measure)
    assert 50e6 < next(iter(cases.values()))["peak_bytes"] < 1e9


def test_an_ingest_that_lost_rows_is_found_out(run, tmp_path):
    for module in ("torch", "h5py"):
        pytest.importorskip(module)
    program = (
        "import sys; sys.path.insert(0, 'bench'); sys.argv = ['ingest.py', *sys.argv[1:]]\n"
        "import ingest, sources\n"
        "right = sources.read_hdf5\n"
        "sources.read_hdf5 = lambda *arguments: right(*arguments) + 1\n"
        "raise SystemExit(ingest.main())\n"
    )
    options = ("--quick", "--only", "robomimic, numbers", "--out", str(tmp_path), "--machine", "here")
    code, text = run("-c", program, *options)
    assert code == 1, text
    (case,) = json.loads((tmp_path / "here-ingest.json").read_text())["cases"]
    assert "the library read 501 rows of actions" in case["error"]


def test_a_benchmark_may_run_in_parts(run, tmp_path):
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
    for number, part in enumerate(("occupancy", "call overhead", "occupancy")):
        code, text = run(*command, "--only", part, "--commit", f"commit {number}")
        assert code == 0, text
    result = json.loads((tmp_path / "here-voxelize.json").read_text())
    assert [(case["name"], case.get("commit")) for case in result["cases"]] == [
        ("call overhead", "commit 1"),
        ("occupancy", None),
    ]
    assert result["commit"] == "commit 2"
    both = [f"python bench/voxelize.py --quick --device cpu --only {part}" for part in ("occupancy", "'call overhead'")]
    assert result["command"] == "; ".join(both)


def test_a_wrong_peer_is_reported_and_not_timed(run, tmp_path):
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


@pytest.mark.parametrize("asked", ["rows", "between rows"])
def test_the_bytes_of_a_tier_are_those_of_the_rows_its_batches_are_made_of(inputs, asked, tmp_path):
    residency = importlib.import_module("residency")
    files = residency.Files(tmp_path / "cache", 0.001)
    batch = next(files.loader("cpu", asked, 32))
    stream, (period_ns, method) = files.dataset.streams["vision"], residency.ASKED[asked]
    rows = 0
    for episode, anchor_ns in zip(batch["episode_index"].tolist(), batch["time_ns"].tolist(), strict=True):
        begin, end = stream.row_offsets[episode : episode + 2].tolist()
        times, used = stream.time_ns[begin:end].tolist(), set()
        for target in (anchor_ns + k * period_ns for k in range(residency.STEPS)):
            last = max(row for row, time_ns in enumerate(times) if time_ns <= target)
            used |= {last} if method == "previous" else {last, min(last + 1, len(times) - 1)}
        rows += len(used)
    assert files.bytes_read(batch, asked) == 2 * 768 * rows
    assert len(files.dataset) * 600 * 768 * 2 + len(files.dataset) * 1000 * 14 * 4 == files.bytes


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


def test_a_seed_draws_its_own_shapes_and_the_slower_ones_are_losers(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    shapes = importlib.import_module("shapes")
    streams, most, _, _ = shapes.OPERATIONS["fuse"]
    drawn = [[shapes.draw(random.Random(seed), streams, most, "cpu") for _ in range(20)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    for shape in drawn[0]:
        assert 2 <= len(shape.streams) <= 12
        assert shape.bytes() <= shapes.LARGEST_BYTES["cpu"]
    found = [{"faster_than": x} for x in (1.5, 0.9, 0.5, 1.0)] + [{}]
    assert [lost["faster_than"] for lost in shapes.losers({"shapes": found})] == [0.5, 0.9]


def test_the_sweep_leaves_one_file(run, tmp_path):
    command = ("-m", "bench", "sweep", "--quick", "--device", "cpu", "--only", "B by D")
    code, text = run(*command, "--out", str(tmp_path), "--machine", "here")
    assert code == 0, text
    assert [path.name for path in tmp_path.iterdir()] == ["here-sweep.json"]


def test_a_host_figure_leaves_out_the_wait_for_the_device(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    measure = importlib.import_module("measure")
    now, calls = [0], []

    def passes(ns):
        now[0] += ns

    monkeypatch.setattr(measure, "time", types.SimpleNamespace(perf_counter_ns=lambda: now[0]))
    monkeypatch.setattr(measure, "wait_for_device", lambda: passes(20_000_000))
    work = [lambda: calls.append(0) or passes(3_000)]
    assert measure.wall_timer(work, count=10)() == 2003
    assert measure.host_timer(work, count=10)() == 3
    assert len(calls) == 20
