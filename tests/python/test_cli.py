"""The command robocache: its output and exit codes."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import PIL.Image
import pytest
from robocache.ingest import IngestReport
from robocache.ingest.recording import Assumption, Omission
from robocache.provenance import describe_group

import robocache
from robocache import cli, demo, overview, picture, view


def write_logs(folder, *, broken=False):
    """Writes two episodes: a 100 Hz stream of two columns, one of them constant, with a gap and a NaN; a 20 Hz stream."""
    rng = np.random.default_rng(0)
    for number in range(2):
        episode = folder / f"run_{number}"
        episode.mkdir(parents=True)
        times = np.delete(np.arange(200) / 100, np.s_[50:60])
        values = rng.normal(size=len(times)).astype(str)
        values[7] = "nan"
        rows = [f"{t:.9f},{v},4" for t, v in zip(times, values, strict=True)]
        (episode / "imu.csv").write_text("\n".join(["t_s,rate,flag", *rows]))
        (episode / "cam.csv").write_text("\n".join(f"{t:.9f},{t}" for t in np.arange(40) / 20))
    if broken:
        (folder / "run_1/cam.csv").write_text("")
    return folder


@pytest.fixture
def cache(tmp_path):
    robocache.ingest(write_logs(tmp_path / "logs"), tmp_path / "cache")
    return tmp_path / "cache"


def run(capsys, *arguments):
    """Runs a command in this process, and returns (exit code, stdout, stderr)."""
    capsys.readouterr()
    try:
        code = cli.main([str(argument) for argument in arguments])
    except SystemExit as raised:
        code = raised.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ---- ingest ----


def test_options_may_precede_the_cache(capsys, tmp_path):
    logs = write_logs(tmp_path / "logs")
    assert run(capsys, "ingest", logs, "--time-unit", "s", tmp_path / "cache", "--json")[0] == 0
    assert run(capsys, "ingest", "--json", logs, "--overwrite", tmp_path / "cache")[0] == 0
    assert run(capsys, "ingest", logs, "--dry-run", "--json")[0] == 0


def test_ingest_json_is_the_report(capsys, tmp_path):
    code, out, _ = run(capsys, "ingest", write_logs(tmp_path / "logs"), tmp_path / "cache", "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["format"], report["episodes"], report["rows"]) == ("csv", 2, {"cam": 80, "imu": 380})


def test_failures_as_json(capsys, cache, tmp_path, monkeypatch):
    broken = write_logs(tmp_path / "broken", broken=True)
    for folder in ("empty", "lerobot/meta"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lerobot/meta/info.json").write_text("{}")
    ambiguous = write_logs(tmp_path / "ambiguous")
    (ambiguous / "meta").mkdir()
    (ambiguous / "meta/info.json").write_text("{}")
    no_cache = f"{tmp_path}/empty: no cache: it has no manifest.json"
    offsets = ("--offset", "imu=1", "--offset", "imu=2")
    for code, error_type, message, *arguments in (
        (1, "FileError", "not a cache; ingest them first", "inspect", tmp_path),
        (1, "FileError", no_cache, "inspect", tmp_path / "empty"),
        (1, "FileError", no_cache, "export", tmp_path / "empty", tmp_path / "c", "--to", "mcap"),
        (1, "FileError", f"{cache}: expected recordings, got a cache", "ingest", cache, tmp_path / "c"),
        (1, "FileError", "; say which with format (--format)", "ingest", ambiguous, tmp_path / "c"),
        (1, "FileError", "overwrite=True (--overwrite) replaces a cache", "ingest", tmp_path / "logs", cache),
        (2, "ArgumentError", "time_unit", "ingest", tmp_path / "lerobot", tmp_path / "c", "--time-unit", "ms"),
        (2, "ArgumentError", "--offset: expected one per stream", "ingest", ambiguous, tmp_path / "c", *offsets),
        (1, "SourceError", "--on-error skip leaves it out and names it", "ingest", broken, tmp_path / "c"),
        (1, "FileError", "--overwrite", "ingest", broken, cache),
        (1, "FileError", "plan.json: No such file", "merge", tmp_path / "none", tmp_path / "c"),
        (1, "FileError", "no such file or directory", "doctor", tmp_path / "none"),
        (2, "ArgumentError", "SOURCE and CACHE", "ingest", broken),
        (2, "ArgumentError", "no stream 'x'", "export", cache, tmp_path / "c", "--to", "mcap", "--streams", "x"),
        (2, "ArgumentError", "unrecognized arguments: --fast", "bench", cache, "--fast"),
        (2, "ArgumentError", "invalid choice", "frobnicate"),
    ):
        exit_code, out, err = run(capsys, *arguments, "--json")
        error = json.loads(out)["error"]
        assert (exit_code, error["type"], error["exit_code"]) == (code, error_type, code), (arguments, out)
        assert message in error["message"] and error["message"] in err
        assert run(capsys, *arguments)[:2] == (code, "")
    monkeypatch.setattr(cli, "doctor", Mock(side_effect=KeyboardInterrupt))
    code, out, _ = run(capsys, "doctor", cache, "--json")
    assert (code, json.loads(out)["error"]["type"]) == (130, "KeyboardInterrupt")


def test_ingest_with_skips_exits_with_3(capsys, tmp_path):
    source = write_logs(tmp_path / "logs", broken=True)
    code, out, err = run(capsys, "ingest", source, tmp_path / "refused")
    assert code == 1
    assert "run_1/cam.csv" in err and "--on-error skip" in err
    assert not (tmp_path / "refused").exists()
    for options in (["--on-error", "stop"], ["--on-error=stop"]):
        _, _, err = run(capsys, "ingest", *options, source, tmp_path / "refused")
        assert "stop" not in err and err.endswith("--on-error skip\n")
    code, out, err = run(capsys, "ingest", source, tmp_path / "cache", "--on-error", "skip")
    assert (code, err) == (3, "")
    assert "run_1/cam.csv" in out.replace("\n", "")
    code, out, _ = run(capsys, "ingest", source, tmp_path / "cache2", "--on-error", "skip", "--json")
    assert code == 3
    assert [omission["what"] for omission in json.loads(out)["skipped"]] == ["run_1/cam.csv"]


def test_skipped_rows_are_named(capsys, tmp_path):
    (tmp_path / "logs/cam").mkdir(parents=True)
    PIL.Image.new("RGB", (4, 4)).save(tmp_path / "logs/cam/0.png")
    rows = "".join(f"{row},{row}.png\n" for row in range(9))
    (tmp_path / "logs/cam.csv").write_text(f"time [s],filename\n{rows}")
    code, out, _ = run(capsys, "ingest", tmp_path / "logs", tmp_path / "cache", "--on-error", "skip")
    assert code == 3 and "rows 1-8: " in " ".join(out.split())


def test_the_reason_of_a_skipped_file_names_the_command_line_option(capsys, tmp_path):
    stamps = 1_700_000_000_000_000_000 + np.arange(3) * 10**7
    for number, first_stamp in enumerate((stamps[0], 0)):
        (tmp_path / f"logs/run_{number}").mkdir(parents=True)
        rows = "".join(f"{time},1\n" for time in (first_stamp, *stamps[1:]))
        (tmp_path / f"logs/run_{number}/imu.csv").write_text(rows)
    code, out, _ = run(
        capsys, "ingest", tmp_path / "logs", tmp_path / "cache", "--time-unit", "ns", "--on-error", "skip"
    )
    text = " ".join(out.split())
    assert code == 3 and "repair='drop' (--repair drop) leaves out such rows" in text


def test_an_error_despite_skip_does_not_suggest_skip(capsys, tmp_path, monkeypatch):
    def ingest(*_, **__):
        raise cli.SourceError("logs: KeyError: 'lost'")

    monkeypatch.setattr(cli, "ingest", ingest)
    code, _, err = run(capsys, "ingest", write_logs(tmp_path / "logs"), tmp_path / "cache", "--on-error", "skip")
    assert (code, err.strip()) == (1, "robocache ingest: logs: KeyError: 'lost'")


def test_an_error_is_one_line_without_a_traceback(capsys, tmp_path):
    code, out, err = run(capsys, "ingest", tmp_path / "nowhere", tmp_path / "cache")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("robocache ingest: ") and "nowhere" in err and "Traceback" not in err
    with pytest.raises(robocache.FileError):
        cli.main(["ingest", str(tmp_path / "nowhere"), str(tmp_path / "cache"), "--debug"])


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "ingest", "fly", "ingest a b --on-error ignore", "ingest a b --time-unit h"),
        *("bench a --batch-size 0", "bench a --batch-size many"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    code, _, err = run(capsys, *arguments.split())
    assert code == 2
    assert "usage: robocache" in err


def test_csv_options_reach_the_reader(capsys, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/imu.csv").write_text("a,stamp\n1,30\n2,10\n3,20\n")
    options = ["--time-column", "stamp", "--time-unit", "ms", "--repair", "sort"]
    assert run(capsys, "ingest", tmp_path / "logs", tmp_path / "cache", *options)[0] == 0
    stream = robocache.open(tmp_path / "cache").streams["imu"]
    assert stream.time_ns.tolist() == [10_000_000, 20_000_000, 30_000_000]
    assert stream.values.tolist() == [[2], [3], [1]]
    assert run(capsys, "ingest", tmp_path / "logs", tmp_path / "by_number", "--time-column", "1", *options[2:])[0] == 0


# ---- inspect ----


def test_inspect_shows_streams_and_episodes(capsys, cache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(capsys, "inspect", cache)
    assert code == 0
    for word in ("imu", "cam", "float64", "recorded", "100", "20", "jitter", "gaps", "NaN", "constant", "logs"):
        assert word in out
    assert "q99" not in out and "q99" in run(capsys, "inspect", cache, "--stats")[1]


@pytest.mark.parametrize("command", ["inspect", "doctor"])
def test_a_terminal_that_cannot_encode_a_name(command, tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("präzise", np.arange(9) * 10**7, np.full(9, np.nan))
    result = subprocess.run(
        [sys.executable, "-m", "robocache", command, tmp_path / "cache"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (result.returncode, result.stderr) == (0, b"") and rb"pr\xe4zise" in result.stdout


def test_inspect_of_text_shows_no_rate(capsys, tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("note", np.array([0, 1, 2, 50]) * 10**9, ["ab"] * 4)
    for arguments, expected in (([], ["text", "4"]), (["--all"], ["text,", "mean", "2", "bytes", "4"])):
        _, out, _ = run(capsys, "inspect", tmp_path / "cache", *arguments)
        (line,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["note"])
        assert line == ["note", *expected] and "gap" not in out


def test_inspect_json(capsys, cache):
    code, out, _ = run(capsys, "inspect", cache, "--json")
    assert code == 0
    report = json.loads(out, parse_constant=pytest.fail)
    imu = report["streams"]["imu"]
    dataset = robocache.open(cache)
    assert (imu["rows"], imu["shape"], imu["dtype"], imu["clock"]) == (380, [2], "float64", "recorded")
    assert imu["names"] == ["rate", "flag"]
    assert imu["rate_hz"] == pytest.approx(100)
    assert (imu["findings"]["gaps"], imu["findings"]["nan_values"], imu["findings"]["constant_features"]) == (2, 2, [1])
    assert imu["stats"]["mean"] == dataset.stats["imu"].mean.tolist()
    assert imu["stats"]["count"] == [378, 380]
    assert [episode["name"] for episode in report["episodes"]] == ["run_0", "run_1"]
    assert report["provenance"]["format"] == "csv"


def test_inspect_shows_cameras(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    pixels = np.arange(5 * 24 * 32, dtype=np.uint16).reshape(5, 24, 32)
    with robocache.Writer(tmp_path / "cache") as writer:
        writer.stream("depth", unit_m=0.001, intrinsics=np.eye(3), resized={"fit": "pad"})
        with writer.episode() as episode:
            episode.append("depth", np.arange(5) * 10**8, pixels, codec="raw")
            episode.append("top", np.arange(5) * 10**8, (pixels >> 4).astype(np.uint8), codec="jpeg")
            episode.append("metres", np.arange(2) * 10**8, np.full((2, 3, 3), np.nan, np.float32), codec="raw")
        with writer.episode():
            pass
    out = run(capsys, "inspect", tmp_path / "cache")[1]
    assert ["top", "jpeg", "32x24", "gray", "5", "10", "0.000"] in [line.split() for line in out.splitlines()]
    code, out, _ = run(capsys, "inspect", tmp_path / "cache", "--all")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["depth", "raw", "depth", "32", "24", "1,536"] in lines
    assert ["metres", "raw", "depth", "3", "3", "36"] in lines
    assert any(line[:5] == ["top", "jpeg", "gray", "32", "24"] for line in lines)
    assert "depth: a unit is 0.001 m, intrinsics, fit pad" in out
    assert "statistics" not in out

    report = json.loads(run(capsys, "inspect", tmp_path / "cache", "--json")[1], parse_constant=pytest.fail)
    depth = report["streams"]["depth"]
    assert depth["stats"] is None and depth["frames"]["bytes"] == pixels.nbytes
    assert (depth["frames"]["codec"], depth["frames"]["unit_m"]) == ("raw", 0.001)
    assert depth["frames"]["intrinsics"] == np.eye(3).tolist()
    for number in range(2):
        picture_path = tmp_path / f"{number}.png"
        assert run(capsys, "inspect", tmp_path / "cache", "--plot", picture_path, "--episode", number)[0] == 0
        assert picture_path.stat().st_size > 10_000


def test_inspect_limits_statistics_unless_all(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("wide", np.arange(3) * 10**9, np.zeros((3, 20)))
    assert "14 more" in run(capsys, "inspect", tmp_path / "cache", "--stats")[1]
    assert "more" not in run(capsys, "inspect", tmp_path / "cache", "--all")[1]


def test_markup_and_escapes_in_names_are_not_interpreted(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with robocache.Writer(tmp_path / "[red]cache") as writer:
        writer.stream("arm[left]", names=["[bold]x"])
        with writer.episode() as episode:
            episode.append("arm[left]", [0, 10**9], [[0.0], [1.0]])
    assert "[red]cache" in run(capsys, "inspect", tmp_path / "[red]cache")[1]
    code, out, _ = run(capsys, "inspect", tmp_path / "[red]cache", "--all")
    assert code == 0
    assert "[red]cache" in out and "[bold]x" in out and out.count("arm[left]") == 2
    hostile = tmp_path / "\x1b[2Jcache"  # the escape would clear a terminal
    with robocache.Writer(hostile) as writer:
        writer.stream("\x1b[31mred", names=["\x1b[31mx"], attributes={"units": "\x1b[31m"})
        writer.provenance["left_out"] = [{"what": "\x1b[31m", "reason": "\x1b[31m"}]
        with writer.episode(**{"\x1b[31m": 1}) as episode:
            episode.append("\x1b[31mred", [0, 10**9], [[0.0], [1.0]])
    (hostile / "logs").mkdir()
    (hostile / "logs" / "\x1b[31mred.csv").write_text("t_s,\x1b[31mx\n0.0,1\n0.1,2\n")
    (tmp_path / "[red]logs").mkdir()
    (tmp_path / "[red]logs" / "arm[left].csv").write_text("0.0,1\n0.1,2\n")
    code, out, _ = run(capsys, "ingest", tmp_path / "[red]logs", tmp_path / "[blue]cache")
    assert code == 0
    assert "[red]logs" in out and "[blue]cache" in out and "arm[left]" in out
    for command in (
        ["inspect", hostile],
        ["inspect", hostile, "--all"],
        ["doctor", hostile],
        ["export", hostile, tmp_path / "\x1b[2Jexported", "--to", "mcap"],
        ["plan", hostile / "logs", hostile / "work", "--shards", "1"],
        ["convert", hostile / "work", "--shard", "0"],
        ["ingest", hostile / "logs", "--dry-run"],
        ["inspect", hostile, "--\x1b[2J"],
        ["ingest", hostile / "logs", hostile / "other"],
        ["ingest", hostile / "no", "x"],
    ):
        assert "\x1b" not in "".join(run(capsys, *command)[1:]), command


@pytest.mark.parametrize("command", ["inspect", "bench"])
def test_inspect_of_a_recording_suggests_ingest(command, capsys, tmp_path):
    logs = write_logs(tmp_path / "my logs")
    code, out, err = run(capsys, command, logs)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"not a cache; ingest them first: robocache ingest '{logs}' 'my logs.cache'" in err
    (tmp_path / "set/meta").mkdir(parents=True)
    (tmp_path / "set/meta/info.json").write_text("{}")
    assert "recordings (LeRobot dataset (v2" in run(capsys, command, tmp_path / "set")[2]


def test_no_name_is_cut_in_80_columns(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = ["observation.state", "annotation.human.action.task_description", "latency_runs__run_20260514_203014__data"]
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        for name in names:
            writer.stream(name, names=["left_shoulder_pitch_joint", "gripper"])
            episode.append(name, np.arange(300) * 33_333_333, np.full((300, 2), np.pi))
    code, out, _ = run(capsys, "inspect", tmp_path / "cache", "--all")
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines[1:])) <= 80  # the first line is the path
    assert {word for name in names for word in re.split(r"[._]+", name)} <= set(re.split(r"[^a-z0-9]+", out))
    assert re.search(r"observation\.state +float64 \[2\] +300 +30 +0.000 +33.33", out)
    assert run(capsys, "doctor", tmp_path / "cache")[0] == 0
    out = run(capsys, "doctor", tmp_path / "cache")[1]
    assert max(map(len, out.splitlines()[1:])) <= 80
    assert {word for name in names for word in re.split(r"[._]+", name)} <= set(re.split(r"[^a-z0-9]+", out))


def drawn_figure(monkeypatch, dataset, episode=1):
    """Returns the figure that picture.plot draws."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    picture.plot(dataset, "unused.png", episode=episode)
    figures[0].canvas.draw()
    return figures[0]


@pytest.mark.parametrize("clock", ["recorded", "nominal"])
def test_a_picture_has_values_and_recorded_clocks(clock, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    values = np.random.default_rng(0).normal(size=(50, 6))
    values[:, 1] = 3.0
    values[:, 4] /= 100
    with robocache.Writer(tmp_path / "cache") as writer:
        writer.stream("arm", clock=clock, names=list("abcdef"))
        for start in (0, 7):
            with writer.episode() as episode:
                episode.append("arm", np.arange(50) * 33_333_333 + start, values)
                episode.append("gripper", [start, start + 10**9], [False, True])
        writer.stream("gripper", clock="nominal")
    figure = drawn_figure(monkeypatch, robocache.open(tmp_path / "cache"))
    arm, gripper, lengths, *clocks = figure.axes
    assert [line.get_label() for line in arm.get_lines()] == ["a", "c", "d", "f"]  # the features that vary most
    for line, feature in zip(arm.get_lines(), (0, 2, 3, 5), strict=True):
        np.testing.assert_allclose(line.get_xdata(), np.arange(50) * 0.033333333)
        np.testing.assert_array_equal(line.get_ydata(), values[:, feature])
    assert arm.get_legend().get_window_extent().x0 >= arm.get_window_extent().x1  # the legend hides no line
    assert [line.get_ydata().tolist() for line in gripper.get_lines()] == [[0, 1]]
    assert [bar.get_height() for bar in lengths.patches] == pytest.approx([49 * 0.033333333] * 2)
    assert len(clocks) == (2 if clock == "recorded" else 0)
    for axis in clocks:
        labels = [label.get_text() for label in axis.get_yticklabels() if label.get_text()]
        assert labels and all(re.fullmatch(r"[0-9.,]+", label) for label in labels)


def test_a_picture_begins_with_cameras_and_ends_with_still_streams(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    rng, times = np.random.default_rng(0), np.arange(20) * 10**8
    order = ["camera", "cloud", "arm", "counter", "note", "pose_covariance", "still", "nan", "still here", "absent"]
    with robocache.Writer(tmp_path / "cache") as writer:
        for number in range(2):
            with writer.episode() as episode:
                for name in reversed(order[-9:]):  # the picture has room for 8 streams
                    if name == "absent" and number:
                        continue
                    values = {"still": np.ones((20, 2)), "nan": np.full(20, np.nan), "counter": np.arange(20)}.get(name)
                    if name == "cloud":
                        episode.append(name, times, rng.normal(size=(60, 3)), offsets=np.arange(21) * 3)
                    elif name == "note":
                        episode.append(name, times, ["x"] * 20)
                    elif name == "still here":
                        episode.append(name, times, np.full(20, number))
                    else:
                        episode.append(name, times, rng.normal(size=(20, 2)) if values is None else values)
                episode.append("camera", times, np.zeros((20, 8, 8, 3), np.uint8), codec="jpeg")
    figure = drawn_figure(monkeypatch, robocache.open(tmp_path / "cache"))
    titles = [re.split("[,:]", axis.get_title(loc="left"))[0] for axis in figure.axes[:8]]
    assert [*titles[:2], *sorted(titles[2:4]), *titles[4:6]] == order[:6] and set(titles[6:]) <= set(order[6:])


def test_a_picture_of_many_clocks_draws_the_ten_with_the_most_rows(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    with robocache.Writer(tmp_path / "cache") as writer:
        for _ in range(2):
            with writer.episode() as episode:
                for number in range(70):
                    rows = 2 + number % 35
                    stamps = np.arange(rows) * 10**8 + number
                    episode.append(f"sensor {number}", stamps, np.zeros(rows))
                    if number == 34:
                        episode.append("another feature of it", stamps, np.zeros(rows))
    figure = drawn_figure(monkeypatch, robocache.open(tmp_path / "cache"))
    *_, periods, _ = figure.axes
    assert periods.get_title().startswith("10 of 70 recorded clocks")
    labels = [f"sensor {number}" for number in (*range(30, 34), *range(65, 70))]
    labels.insert(4, "sensor 34 and 1 more")  # one line for streams of one clock
    assert [line.get_label() for line in periods.get_lines()] == labels


def test_inspect_plots(capsys, cache, tmp_path, recwarn):
    pytest.importorskip("matplotlib")
    code, out, _ = run(capsys, "inspect", cache, "--plot", tmp_path / "picture.png", "--episode", "1")
    assert code == 0
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "picture.png" in out
    code, out, err = run(capsys, "inspect", cache, "--plot", tmp_path / "none.png", "--episode", "2")
    assert (code, out, err) == (2, "", "robocache inspect: episode: expected one from -2 to 1, got 2\n")
    with robocache.Writer(tmp_path / "letters") as writer, writer.episode() as episode:
        episode.append("かな\x1b", [0, 10**9], [0.0, 1.0])
    assert run(capsys, "inspect", tmp_path / "letters", "--plot", tmp_path / "picture.png")[0] == 0
    assert not recwarn.list


@pytest.mark.parametrize("rows", [0, 1])
def test_inspect_of_a_nearly_empty_cache(rows, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("joint", np.zeros(rows, np.int64), np.full((rows, 1), np.nan))
    assert run(capsys, "inspect", tmp_path / "cache", "--plot", tmp_path / "picture.png")[0] == 0
    code, out, _ = run(capsys, "inspect", tmp_path / "cache", "--json")
    assert code == 0
    json.loads(out, parse_constant=pytest.fail)


# ---- bench, info, help ----


def test_bench_measures(capsys, cache):
    options = ["--batch-size", "16", "--seconds", "0.05", "--device", "cpu"]
    code, out, _ = run(capsys, "bench", cache, *options, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["samples_per_second"] > 0
    assert (report["batch_size"], report["device"], report["anchors"]) == (16, "cpu", 80)
    code, out, _ = run(capsys, "bench", cache, *options)
    assert code == 0
    assert "samples/s" in out


def test_bench_of_nominal_clocks_without_common_rows(capsys, tmp_path):
    with robocache.Writer(tmp_path / "nominal") as writer:
        for name in ("slow", "fast"):
            writer.stream(name, clock="nominal")
        with writer.episode() as episode:
            episode.append("slow", np.arange(40) * 50_000_000, np.arange(40, dtype=np.float32)[:, None])
            episode.append("fast", np.round(np.arange(60) * 1e9 / 30).astype(np.int64), np.zeros((60, 1), np.float32))
    options = ["--batch-size", "8", "--seconds", "0.05", "--device", "cpu"]
    assert run(capsys, "bench", tmp_path / "nominal", *options)[0] == 0


def test_bench_of_few_and_no_anchors(capsys, cache, tmp_path):
    options = ["--seconds", "0.05", "--device", "cpu"]
    assert run(capsys, "bench", cache, *options, "--batch-size", "100000")[0] == 0
    with robocache.Writer(tmp_path / "empty") as writer, writer.episode() as episode:
        episode.append("joint", np.zeros(0, np.int64), np.zeros((0, 1)))
    code, _, err = run(capsys, "bench", tmp_path / "empty", *options)
    assert code in (1, 2)
    assert err.startswith("robocache bench: ")


@pytest.mark.parametrize(("free_bytes", "expected"), [(1 << 20, 1), (1 << 24, 10), (1 << 40, 1024)])
def test_bench_chooses_a_batch_that_fits_memory(free_bytes, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "memory_available", lambda device: free_bytes)
    frames = np.random.default_rng(0).integers(0, 255, (20, 64, 64, 3), np.uint8)
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("cam", np.arange(20) * 10**8, frames, codec="jpeg")
        episode.append("joint", np.arange(2000) * 10**6, np.zeros((2000, 7)))
    options = ["--seconds", "0.01", "--device", "cpu", "--json", "--steps", "2"]
    code, out, _ = run(capsys, "bench", tmp_path / "cache", *options)
    batch_size = json.loads(out)["batch_size"]
    sample_bytes = 2 * (64 * 64 * 3 + 7) * 4
    assert code == 0 and batch_size <= max(1, free_bytes / 4 / sample_bytes)
    assert batch_size == expected
    code, out, _ = run(capsys, "bench", tmp_path / "cache", *options, "--batch-size", "3")
    assert json.loads(out)["batch_size"] == 3


def test_info(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    code, out, _ = run(capsys, "info")
    assert code == 0 and "robocache" in out and "CUDA" in out
    assert robocache.check_installation()["library"] in "".join(out.split())  # complete even on a narrow terminal
    code, out, _ = run(capsys, "info", "--json")
    assert code == 0 and json.loads(out)["ok"] is True
    assert json.loads(out)["versions"]["robocache"] == robocache.__version__


def test_failures_of_inspect_and_bench_are_one_line(capsys, cache, tmp_path):
    with robocache.Writer(tmp_path / "empty"):
        pass
    code, out, err = run(capsys, "bench", tmp_path / "empty")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "streams" in err
    pytest.importorskip("matplotlib")
    code, out, err = run(capsys, "inspect", cache, "--plot", tmp_path / "picture.xyz")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "picture.xyz" in err and "supported formats" in err
    (tmp_path / "full.png").symlink_to("/dev/full")
    for name, reason in (("nowhere/a.png", "No such file or directory"), ("full.png", "No space left on device")):
        path = tmp_path / name
        assert run(capsys, "inspect", cache, "--plot", path) == (1, "", f"robocache inspect: {path}: {reason}\n")


# ---- as a process ----


@pytest.mark.parametrize("command", ["", *cli._COMMANDS])
def test_help_has_examples_and_fits_into_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, *command.split(), "--help")
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert f"robocache {command or 'ingest'}" in out.partition("examples:")[2]


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"robocache {robocache.__version__}\n", "")


def test_demo_json(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "run", lambda out, **options: options["console"].print("drawn") or {"picture": out})
    code, out, err = run(capsys, "demo", "--out", tmp_path, "--json")
    assert (code, json.loads(out), err) == (0, {"picture": str(tmp_path)}, "drawn\n")


def test_python_m_robocache(cache):
    result = subprocess.run(
        [sys.executable, "-m", "robocache", "inspect", cache, "--json"], capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["streams"].keys() == {"imu", "cam"}
    result = subprocess.run([sys.executable, "-m", "robocache", "inspect", "nowhere"], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("robocache inspect: nowhere")


def imported_modules(*command):
    """Runs a command in a new process, and returns the names of the modules that it imports."""
    result = subprocess.run([sys.executable, "-X", "importtime", *command], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-1000:]
    return {line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line.startswith("import time:")}


@pytest.fixture
def script(tmp_path):
    """A script like the one that pip installs for the command."""
    path = tmp_path / "bin" / "robocache"
    path.parent.mkdir()
    path.write_text("import sys\n\nfrom robocache.cli import main\n\nsys.exit(main())\n")
    return path


def test_commands_on_files_do_not_import_torch(cache, script):
    pytest.importorskip("torch")
    for command in (["-m", "robocache", "inspect", cache], ["-mrobocache", "--help"], [script, "--version"]):
        modules = imported_modules(*command)
        assert "robocache._lib" in modules and "torch.nn" not in modules
    assert "torch.nn" in imported_modules("-m", "robocache", "bench", cache, "--seconds", "0.01", "--device", "cpu")


def test_a_closed_pipe(cache):
    command = f"{sys.executable} -m robocache inspect {cache} --json | head -c 10"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [("inspect cache", ""), ("inspect cache --json", "1"), ("inspect none --json", "1"), ("inspect --help", "")],
)
def test_an_unwritable_output(arguments, unbuffered, cache):
    def run_redirected(redirection):
        command = f"{sys.executable} -m robocache {arguments} {redirection}"
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": os.pathsep.join(sys.path)}
        result = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, cwd=cache.parent, env=environment
        )
        assert "Traceback" not in result.stderr and "Exception" not in result.stderr
        return result

    result = run_redirected("> /dev/full")
    assert result.returncode == 1
    assert result.stderr.endswith("robocache: standard output: No space left on device\n")
    assert run_redirected(">&-").returncode == (1 if "none" in arguments else 0)
    run_redirected("| true")


def run_on_a_terminal(*arguments, is_time_to_stop=None, signal_number=signal.SIGTERM):
    """Returns (exit code, terminal output) of a command, which gets the signal when `is_time_to_stop` returns True."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="80")
        os.execv(sys.executable, [sys.executable, "-m", "robocache", *map(str, arguments)])
    out, signal_sent = b"", False
    with suppress(OSError):  # reading fails when the command has ended
        while chunk := os.read(terminal, 65536):
            out += chunk
            if is_time_to_stop is not None and not signal_sent and is_time_to_stop():
                os.kill(pid, signal_number)
                signal_sent = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out


def test_names_are_escaped_on_a_terminal(tmp_path):
    for number in range(20):
        folder = tmp_path / f"logs/{number}\x1b]0;title\x07\x9b2J"
        folder.mkdir(parents=True)
        (folder / "imu.csv").write_text("t [s],x\n1,2\n2,nan\n")
    for arguments in (["ingest", tmp_path / "logs", tmp_path / "cache"], ["doctor", tmp_path / "logs"]):
        code, out = run_on_a_terminal(*arguments)
        assert code == (1 if "doctor" in arguments else 0) and b"\x1b]0;" not in out and b"\xc2\x9b" not in out
        assert arguments[0] == "doctor" or rb"\x1b]0;title" in out  # the bar shows the escaped name


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_command_cleans_up(signal_number, tmp_path):
    rows = "".join(f"{row},{row}\n" for row in range(2000))
    for number in range(600):
        (tmp_path / f"logs/{number}").mkdir(parents=True)
        (tmp_path / f"logs/{number}/imu.csv").write_text(f"t [s],x\n{rows}")
    code, out = run_on_a_terminal(
        "doctor",
        tmp_path / "logs",
        is_time_to_stop=lambda: any(tmp_path.glob(".robocache-doctor-*/*")),
        signal_number=signal_number,
    )
    assert code == 128 + signal_number and sorted(path.name for path in tmp_path.iterdir()) == ["logs"]
    assert out.rfind(b"\x1b[?25h") > out.rfind(b"\x1b[?25l") >= 0  # the cursor is shown again
    assert b"Traceback" not in out


def write_wide_cache(path):
    """Writes a cache with hundreds of unusual streams with long names, and the provenance of an ingest."""
    with robocache.Writer(path) as writer:
        writer.provenance.update(
            source=f"/data/{'long/' * 30}set",
            left_out=[{"what": f"topic {'x' * n}", "reason": "no messages " * 9} for n in range(50)],
            skipped=[{"what": f"run {n}", "reason": "no such file " * 9} for n in range(50)],
        )
        for _ in range(2):
            with writer.episode(**{f"column_{n}": n for n in range(30)}) as episode:
                for number in range(200):
                    times = np.cumsum([0, 10**7, 10**7, 10**9, 0, 10**7])
                    values = np.full((6, 30), np.nan) if number % 2 else np.ones((6, 30))
                    episode.append(f"/robot/left_arm/joint_states/{'part_' * (number % 12)}{number}", times, values)
    return path


def test_inspect_fits_into_20_lines_of_80_columns(capsys, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with robocache.Writer(tmp_path / "empty"):
        pass
    for path in (cache, write_wide_cache(tmp_path / "wide"), tmp_path / "empty"):
        for has_findings in (False, True):
            if has_findings:
                run(capsys, "doctor", path)
            code, out, _ = run(capsys, "inspect", path)
            lines = out.splitlines()
            assert code == 0 and len(lines) <= 20, out
            assert all(len(line) <= 80 or line.strip() == str(path) for line in lines), out  # a path is not broken
            assert re.match(r"\d+ episodes?, [\d,.]+ s; \d+ streams?, \d+ rows?$", lines[0])
    assert len(run(capsys, "inspect", tmp_path / "wide", "--all")[1].splitlines()) > 200


def test_ingest_with_many_notes_fits_into_20_lines(tmp_path):
    path = write_wide_cache(tmp_path / "wide")
    omissions = [
        Omission(f"run_{n}.csv", f"{reason} " * 20) for n, reason in enumerate(("no text", "no row", "no stamp"))
    ]
    report = IngestReport(source="/data/set", format="csv", cache=str(path), episodes=2, seconds=1.0)
    report.skipped, report.left_out = omissions, [*omissions, Omission("notes.txt", "no CSV")]
    command = ["ingest", "/data/set", f"/cache/{'long/' * 8}wide", "--on-error", "skip"]
    report.assumed = [Assumption(f"clock 't{n}'", f"{'by' * n} its name", ["a", f"of {n}"]) for n in range(12)]
    lines = [line.text for line in overview.ingest_lines(report, robocache.open(path), 80, command)]
    assert len(lines) <= 20 and max(map(len, lines)) <= 80, lines
    assert sum(line.startswith("assumed") for line in lines) == 1
    for number in range(3):
        assert any(line.startswith(f"skipped run_{number}.csv") for line in lines), lines


@pytest.mark.parametrize(
    ("reason", "last_line"),
    [
        ("no chunk; missing_chunks='fill' (--missing-chunks fill) reads them", "or: robocache ingest a b --overwrite --missing-chunks fill"),
        ("no av; leave cameras out with video=False (--no-video)", "or: robocache ingest a b --overwrite --no-video"),
        ("give the rows a second with rate_hz (--rate-hz) instead", "once it is corrected: robocache ingest a b --overwrite"),
    ],
)  # fmt: skip
def test_the_next_command_has_the_options_value(reason, last_line, cache):
    report = IngestReport(source="/a", format="zarr", cache=str(cache), episodes=2, seconds=1.0)
    report.skipped = [Omission("episode 3", reason)]
    lines = overview.ingest_lines(report, robocache.open(cache), 120, ["ingest", "a", "b"])
    assert lines[-1].text == last_line


def test_omissions_keep_the_names_of_numbered_files():
    names = [f"file-{number:03}.parquet" for number in (0, 1, 10)]
    assert describe_group([(name, f"{name}: no row") for name in names]) == f"{', '.join(names)}: no row"
    episodes = [f"episode {number}" for number in (0, 10, 9, 9, 11)]
    assert describe_group([(name, "no row") for name in episodes]) == "episodes 0, 9-11: no row"


def test_a_picture_of_an_episode_from_the_end(cache, monkeypatch):
    dataset = robocache.open(cache)
    figure = drawn_figure(monkeypatch, dataset, episode=-1)
    assert figure.subfigs[0].get_suptitle() == "values of episode 1"
    with pytest.raises(robocache.ArgumentError, match="episode: expected one from -2 to 1, got -3"):
        picture.plot(dataset, "x.png", episode=-3)


def test_seconds_between_the_ends_of_int64(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("x", [-(2**63), 2**63 - 1], [0.0, 1.0])
    assert view.episode_seconds(robocache.open(tmp_path / "cache")).tolist() == [(2**64 - 1) / 1e9]


def test_assumptions_are_grouped_and_stored(capsys, tmp_path):
    for number, step in enumerate((0.005, 0.01, 0.02)):
        folder = tmp_path / f"logs/run_{number}"
        folder.mkdir(parents=True)
        for stream in ("a", "b"):
            (folder / f"{stream}.csv").write_text("t,x\n" + "".join(f"{k * step:.3f},{k}\n" for k in range(9)))
    code, out, _ = run(capsys, "ingest", tmp_path / "logs", tmp_path / "cache")
    lines = out.splitlines()
    first_line = next(index for index, line in enumerate(lines) if line.startswith("assumed"))
    assert code == 0 and lines[first_line + 1] == "  clock 't' (2 streams): seconds, by its steps of 0.005"
    assert lines[first_line + 2].startswith("next:")
    assumptions = [{"what": "clock 't'", "reason": "seconds, by its steps of 0.005", "streams": ["a", "b"]}]
    code, out, _ = run(capsys, "ingest", tmp_path / "logs", tmp_path / "cache", "--overwrite", "--json")
    assert json.loads(out)["assumed"] == assumptions == robocache.open(tmp_path / "cache").provenance["assumed"]
    assert "of the source: assumed 1" in run(capsys, "inspect", tmp_path / "cache")[1]
    assert "assumed clock 't' (2 streams): seconds" in run(capsys, "inspect", tmp_path / "cache", "--all")[1]
    (assumed,) = (finding for finding in robocache.doctor(tmp_path / "cache").findings if finding.code == "assumed")
    assert assumed.severity == "note" and "clock 't' (2 streams): seconds" in assumed.message
    assert "assumed" in out and robocache.ingest(tmp_path / "logs", tmp_path / "with_unit", time_unit="s").assumed == []


def test_ingest_reports_in_20_lines_with_the_next_command(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    write_logs(tmp_path / "whole")
    for number in range(40):
        (tmp_path / f"whole/run_{number}").mkdir(exist_ok=True)
        (tmp_path / f"whole/run_{number}/wheel.csv").write_text("t_s,turns\n0,1\n1,2\n")
    for broken_files in (0, 30):
        for number in range(broken_files):
            (tmp_path / f"whole/run_{number}/wheel.csv").write_text("")
        code, out, err = run(capsys, "ingest", "whole", f"cache {broken_files}", "--on-error", "skip")
        lines = out.splitlines()
        assert err == "" and len(lines) <= 20 and max(map(len, lines)) <= 80, out
        if not broken_files:
            assert code == 0 and lines[0].startswith("complete: 40 episodes")
            assert lines[-1] == "next: robocache doctor 'cache 0'"
        else:
            assert code == 3 and lines[0].startswith("incomplete: 12 episodes") and "30" in lines[0]
            (skipped_line,) = (line for line in lines if line.startswith("skipped"))
            assert "run_0-29/wheel.csv" in skipped_line
            begin = next(index for index, line in enumerate(lines) if "robocache ingest" in line)
            command = "".join(lines[begin:]).replace("\\", "").partition("robocache ")[2]
    for number in range(30):
        (tmp_path / f"whole/run_{number}/wheel.csv").write_text("t_s,turns\n0,1\n1,2\n")
    code, out, _ = run(capsys, *shlex.split(command))
    assert code == 0 and out.startswith("complete: 40 episodes")
    (tmp_path / "whole/run_7/wheel.csv").write_text("")
    code, _, err = run(capsys, "ingest", "whole", "cache 1")
    message, *command = err.splitlines()
    assert code == 1 and "run_7/wheel.csv" in message
    code, out, _ = run(capsys, *shlex.split("".join(command).replace("\\", ""))[1:])
    assert code == 3 and out.startswith("incomplete: 39 episodes")


def test_a_provenance_of_another_form_is_ignored(capsys, tmp_path):
    values = [7, "x", None, True, [1, [2]], {"a": 1}, [{"what": 1, "reason": [2]}, {"what": 3}], {"streams": {"x": 5}}]
    for index, value in enumerate(values):
        path = tmp_path / str(index)
        with robocache.Writer(path) as writer:
            writer.stream("x", attributes={"rate_hz": value, "limits": value, "methods": value, "units": value})
            for number in range(2):
                with writer.episode(source_episode_index=[[1], [2]][number], split=[1, 2]) as episode:
                    episode.append("x", np.arange(9) * 10**7, np.arange(9.0))
            for key in ("source", "left_out", "skipped", "repair", "appended", "lerobot"):
                writer.provenance[key] = value
            writer.provenance["lerobot"] = {"splits": value, "fps": value} if index % 2 else value
            writer.provenance["format"] = value if index % 2 else "lerobot"
        for arguments in (["inspect", path], ["inspect", path, "--all"], ["doctor", path], ["inspect", path, "--json"]):
            code, _, err = run(capsys, *arguments)
            assert code in ((0, 1) if "doctor" in arguments else (0,)) and err == "", (value, arguments)


def test_progress_goes_to_a_terminal_only(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "robocache", "ingest", write_logs(tmp_path / "logs"), tmp_path / "cache", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "xterm"},
        cwd=Path.cwd(),
    )
    assert (result.returncode, result.stderr) == (0, "")
    json.loads(result.stdout)
