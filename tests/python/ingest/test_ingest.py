"""ingest: paths, formats, the driver, and options on the command line and in Python."""

import argparse
import math
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, get_type_hints

import numpy as np
import pytest
from lerobot_files import make_episodes, write_lerobot
from robocache.ingest import driver, merge, plan, registry
from robocache.ingest.formats import Format
from robocache.ingest.options import add_arguments, make_options
from robocache.ingest.recording import Notes, Ragged, Recording, Rows, SourceError
from toy_format import ToyOptions

import robocache
from robocache import cli


def write_logs(folder):
    folder.mkdir(parents=True)
    (folder / "imu.csv").write_text("0.0,1\n0.1,2\n")
    return folder


# ---- paths ----


def test_invalid_paths_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(write_logs(tmp_path / "logs"))
    for argument in ("source", "cache"):
        paths = {"source": ".", "cache": str(tmp_path / "cache")}
        for path, error in {
            "": robocache.ArgumentError,
            "a\0b": robocache.ArgumentError,
            None: robocache.ArgumentTypeError,
            3: robocache.ArgumentTypeError,
            b"logs": robocache.ArgumentTypeError,
        }.items():
            with pytest.raises(error, match=f"^{argument}: expected .* got "):
                robocache.ingest(**{**paths, argument: path})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]


def test_the_path_of_the_cache_may_contain_a_missing_folder(tmp_path, monkeypatch):
    write_logs(tmp_path / "logs")
    monkeypatch.chdir(tmp_path)
    report = robocache.ingest("logs", "missing/../cache")
    assert report.cache == str(tmp_path / "cache")
    assert len(robocache.open(report.cache)) == 1


def test_a_cache_within_its_source_is_not_read(tmp_path):
    source = tmp_path / "scans"
    source.mkdir()
    clouds = np.arange(40, dtype=np.float32).reshape(2, 5, 4)
    for number, cloud in enumerate(clouds):
        np.save(source / f"{number}.npy", cloud)
    caches_left_out = []
    for name, options in (
        ("a", {}),
        ("b", {}),
        ("b", {"overwrite": True}),
        ("c", {"workers": 2}),
        ("a", {"append": True}),
    ):
        report = robocache.ingest(source, source / name, format="clouds", rate_hz=10, **options)
        assert (report.episodes, report.rows) == (1, {"points": 2})
        caches_left_out.append(
            [(omission.what, omission.reason) for omission in report.left_out if omission.reason == "a cache"]
        )
    assert caches_left_out == [[(name, "a cache") for name in names] for names in ("", "a", "ab", "ab", "abc")]
    assert sorted(path.name for path in source.iterdir()) == ["0.npy", "1.npy", "a", "b", "c"]
    with pytest.raises(robocache.FileError, match="got a cache"):  # an appended cache has other files
        robocache.ingest(source / "a", tmp_path / "cache")
    for number in range(2):
        (source / f"{number}.npy").unlink()
    with pytest.raises(robocache.FileError, match=r"found none beside a cache, .*scans/a"):
        robocache.ingest(source, tmp_path / "cache")


def test_a_path_like_an_id_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(robocache.FileError) as caught:
        robocache.ingest("lerobot/pusht", "cache")
    assert "nothing is downloaded" in str(caught.value)
    assert "hf download lerobot/pusht --repo-type dataset --local-dir pusht" in str(caught.value)
    with pytest.raises(robocache.FileError, match=r"no such file or directory$"):
        robocache.ingest("a/folder/pusht", "cache")


# ---- formats ----


@pytest.mark.parametrize("url", ["s3://bucket/folder", "gs://bucket/folder", "https://example.org/folder"])
@pytest.mark.parametrize(
    "argument, call",
    [
        ("source", lambda url: robocache.ingest(url, "cache")),
        ("cache", lambda url: robocache.ingest("source", url)),
        ("source", lambda url: plan(url, "work", shards=1)),
        ("folder", lambda url: plan("source", url, shards=1)),
        ("cache", lambda url: merge("work", url)),
        ("path", lambda url: robocache.open(url)),
        ("path", lambda url: robocache.Writer(url)),
        ("path", lambda url: robocache.doctor(url)),
        ("cache", lambda url: robocache.export(url, "out", to="lerobot")),
        ("destination", lambda url: robocache.export(robocache.open("made"), url, to="lerobot")),
    ],
)
def test_a_url_is_refused_with_a_hint(argument, call, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/arm.csv").write_text("time_s,x\n0,1\n1,2\n")
    robocache.ingest("source", "made")
    before = sorted(tmp_path.iterdir())
    for path in (url, Path(url)):  # pathlib keeps one of the two slashes
        with pytest.raises(robocache.ArgumentError, match=f"^{argument}: expected a path .*aws s3 sync.*fsspec"):
            call(path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_may_have_the_name_of_a_scheme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:/arm.csv").write_text("time_s,x\n0,1\n1,2\n")
    robocache.ingest("s3:/arm.csv", "s3:/cache")
    assert len(robocache.open(Path("s3://cache"))) == 1


def test_two_formats_that_claim_a_folder_are_named(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3,)))
    write_logs(source / "extra")
    with pytest.raises(robocache.FileError) as caught:
        robocache.ingest(source, tmp_path / "cache")
    assert "lerobot (source/meta/info.json) and csv (source/extra/imu.csv)" in str(caught.value)
    assert "format" in str(caught.value)
    assert robocache.ingest(source, tmp_path / "a", format="lerobot").rows["action"] == 3
    assert robocache.ingest(source, tmp_path / "b", format="csv").rows == {"imu": 2}


def test_a_given_format_accepts_any_name(tmp_path):
    (tmp_path / "log.txt").write_text("0.0,1\n0.1,2\n")
    with pytest.raises(robocache.FileError, match="found none"):
        robocache.ingest(tmp_path / "log.txt", tmp_path / "cache")
    assert robocache.ingest(tmp_path / "log.txt", tmp_path / "cache", format="csv").rows == {"log": 2}
    (tmp_path / "bare").mkdir()
    with pytest.raises(robocache.FileError, match=r"\*\.csv"):
        robocache.ingest(tmp_path / "bare", tmp_path / "cache2", format="csv")


def test_a_source_of_no_format_is_refused_with_its_files(tmp_path):
    for name in ("a.txt", "b/c.txt", "d.txt", "e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    with pytest.raises(robocache.FileError) as caught:
        robocache.ingest(tmp_path, tmp_path / "cache")
    assert "found none among 4 files (a.txt, b/c.txt, d.txt, ...)" in str(caught.value)
    assert ", ".join(registry.FORMATS) in str(caught.value)
    assert len(str(caught.value)) < len(str(tmp_path)) + 360
    (tmp_path / "empty").mkdir()
    with pytest.raises(robocache.FileError, match=r"found none in an empty folder$"):
        robocache.ingest(tmp_path / "empty", tmp_path / "cache")


def test_the_help_lists_every_format_and_its_files(capsys):
    with pytest.raises(SystemExit):
        cli.main(["ingest", "--help"])
    text = " ".join(capsys.readouterr().out.split())  # joins wrapped lines
    for entry in registry.FORMATS.values():
        assert f"{entry.name} " in text and f"{entry.title}: {entry.sign}" in text


def run_python(code):
    without_torch = "import sys; sys.modules['torch'] = None\n"  # importing torch would take most of the time
    return subprocess.run(
        [sys.executable, "-c", without_torch + code], capture_output=True, text=True, check=True
    ).stdout


def test_finding_the_format_imports_nothing(rng, tmp_path):
    logs, dataset = write_logs(tmp_path / "logs"), write_lerobot(tmp_path / "lerobot", make_episodes(rng, (3,)))
    assert (
        run_python(
            "import sys, pathlib\n"
            "from robocache.ingest import registry\n"
            f"names = [registry.find_format(pathlib.Path(p)).name for p in ({str(logs)!r}, {str(dataset)!r})]\n"
            "print(names, 'pyarrow' in sys.modules)\n"
        )
        == "['csv', 'lerobot'] False\n"
    )


def test_a_missing_package_is_named_with_its_install_command(tmp_path):
    output = run_python(
        "import sys, robocache\n"
        "sys.modules['pyarrow'] = None\n"
        f"try: robocache.ingest({str(write_logs(tmp_path / 'logs'))!r}, {str(tmp_path / 'cache')!r})\n"
        "except robocache.Error as error: print(error)\n"
    )
    assert "format 'csv'" in output and "pyarrow" in output and "pip install pyarrow" in output
    assert not (tmp_path / "cache").exists()


def test_an_error_inside_a_package_is_no_missing_package():
    entry = Format("toy", "toy", "", lambda source, files: None, ToyOptions, "robocache.ingest.toy", "pip install toy")
    with pytest.raises(ModuleNotFoundError):
        entry.load()


# ---- the driver, with toy readers ----


def make_rows(n, **options):
    return Rows(np.arange(n), np.zeros((n, 2)), **options)


def test_recordings_are_written_while_they_are_read(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "_REPORT_EVERY_S", math.inf)  # on a slow machine more steps would be shown
    events = []

    def streams(number):
        for part in range(2):
            events.append((number, part))
            yield "a", Rows(np.arange(3) + 3 * part, np.full((3, 2), 10.0 * number + part), names=["x", "y"])

    def recordings(options, notes):
        notes.total = options.episodes
        for number in range(options.episodes):
            events.append(number)
            yield Recording(f"episode {number}", "here", {"number": number}, streams(number))
        notes.tell("here", colour="red")

    steps = []
    report = toy(recordings, episodes=3, progress=lambda *step: steps.append((*step, events[-1])))
    assert events == [0, (0, 0), (0, 1), 1, (1, 0), (1, 1), 2, (2, 0), (2, 1)]
    assert steps == [(number, 3, f"episode {number}", number) for number in range(3)]
    dataset = robocache.open(tmp_path / "cache")
    assert (report.format, report.episodes, report.rows) == ("toy", 3, {"a": 18})
    assert dataset.episode(2)["a"][1].tolist() == [[20, 20]] * 3 + [[21, 21]] * 3
    assert list(dataset.streams["a"].names) == ["x", "y"]
    assert dataset.provenance["toy"] == {"colour": "red"}


def test_progress_of_a_long_recording_counts_rows(toy, monkeypatch):
    monkeypatch.setattr(driver, "_REPORT_EVERY_S", 0.0)

    def streams():
        for part in range(3):
            yield "a", Rows(np.arange(5) + 5 * part, np.zeros(5))

    def recordings(options, notes):
        yield Recording("one", "one", {}, streams())

    steps = []
    toy(recordings, progress=lambda *step: steps.append(step))
    assert [step[:2] for step in steps] == [(0, 0)] * 4
    assert [re.sub(r", [\d,]+ ", " # ", step[2]) for step in steps] == ["one", *["one # rows/s"] * 3]


def test_a_stream_is_nominal_if_it_is_in_every_kept_episode(toy, tmp_path):
    def recordings(options, notes):
        yield Recording("0", "here", {}, [("a", make_rows(2, clock="nominal")), ("b", make_rows(2, clock="nominal"))])
        yield Recording("1", "here", {}, [("a", make_rows(2)), ("b", make_rows(2, clock="nominal"))])
        yield Recording("2", "here", {}, [("b", make_rows(2)), ("a", Rows(np.arange(3), np.zeros(2)))])

    report = toy(recordings, on_error="skip")
    assert [omission.what for omission in report.skipped] == ["2"]
    streams = robocache.open(tmp_path / "cache").streams
    assert {name: stream.clock for name, stream in streams.items()} == {"a": "recorded", "b": "nominal"}


@pytest.mark.parametrize(
    ("metadata", "streams"),
    [
        ({"operator": "ann"}, [("a", make_rows(2))]),
        ({"operator": object()}, [("a", make_rows(2))]),
        ({0: 1}, [("a", make_rows(2))]),
        ({}, [("a", Rows(np.array([1, 0]), np.zeros((2, 2))))]),
        ({}, [("a", Rows(np.arange(2), np.zeros((2, 3))))]),
        ({}, [("a", make_rows(2, names=["y", "x"]))]),
        ({}, [("b", make_rows(2, names=["x", ""]))]),
        ({}, [("b", make_rows(2, names=["x"]))]),
        ({}, [("b", make_rows(2, names=[3, 4]))]),
        ({}, [("", make_rows(2))]),
        ({}, [("\udcff", make_rows(2))]),
        ({}, [("b", Rows(np.arange(2), np.array([object()] * 2)))]),
        ({}, (1 / 0 for _ in range(2))),
        ({}, None),
    ],
)
def test_unexpected_errors_skip_one_episode(metadata, streams, toy, tmp_path):
    def recordings(options, notes):
        for number in range(3):
            if number == 1:
                yield Recording("odd", "FILE", metadata, streams)
            else:
                yield Recording(str(number), "here", {"operator": 1}, [("a", make_rows(2, names=["x", "y"]))])

    with pytest.raises(SourceError, match=r"^FILE: ") as caught:
        toy(recordings)
    assert caught.value.__cause__ is not None
    assert not (tmp_path / "cache").exists()
    streams = streams if isinstance(streams, list | None) else (1 / 0 for _ in range(2))
    report = toy(recordings, on_error="skip")
    assert [omission.what for omission in report.skipped] == ["odd"]
    assert report.skipped[0].reason == str(caught.value)
    assert (report.episodes, report.rows) == (2, {"a": 4})


def test_an_error_between_recordings_ends_the_ingest(toy, tmp_path):
    def recordings(options, notes):
        yield Recording("0", "here", {}, [("a", make_rows(2))])
        raise KeyError("lost")

    with pytest.raises(SourceError, match=r"source\.toy: KeyError: 'lost'") as caught:
        toy(recordings, on_error="skip")
    assert isinstance(caught.value.__cause__, KeyError)
    assert not (tmp_path / "cache").exists()


def test_an_error_of_the_progress_is_not_attributed_to_the_reader(toy, tmp_path):
    def recordings(options, notes):
        yield Recording("0", "here", {}, [("a", make_rows(2))])

    with pytest.raises(ZeroDivisionError):
        toy(recordings, on_error="skip", progress=lambda *_: 1 / 0)
    assert not (tmp_path / "cache").exists()


def test_notes_take_constant_time():
    notes = Notes("toy", {}, "stop")
    started = time.process_time()
    for number in range(30_000):
        for _ in range(2):
            notes.leave_out(f"episode {number}: note", "text")
    assert time.process_time() - started < 5  # a linear search of all notes takes minutes
    assert len(notes.left_out) == 30_000


def test_an_episode_without_rows_is_left_out_by_name(toy, tmp_path):
    def recordings(options, notes):
        yield Recording("0", "here", {}, [("a", make_rows(2))])
        yield Recording("1", "here", {}, [])

    report = toy(recordings)
    assert report.episodes == 1
    assert [(omission.what, omission.reason) for omission in report.left_out] == [("1", "nothing in it to keep")]


def test_a_readers_invalid_provenance_is_refused_at_once(toy, tmp_path):
    reads = []

    def recordings(options, notes):
        notes.tell("FILE", size=float("inf"))
        reads.append(1)
        yield Recording("0", "here", {}, [("a", make_rows(2))])

    with pytest.raises(robocache.FileError, match=r"^FILE: .*finite"):
        toy(recordings)
    assert not reads


def test_without_kept_episodes_the_error_has_the_most_frequent_reason(tmp_path):
    for number, text in enumerate(("", "1,1\n0.5,1\n", "2,1\n1.5,1\n")):
        (tmp_path / f"logs/run_{number}").mkdir(parents=True)
        (tmp_path / f"logs/run_{number}/imu.csv").write_text(text)
    with pytest.raises(robocache.FileError, match=r"nothing to keep; .*run_1: stream 'imu': row 1 is at 500000000 ns"):
        robocache.ingest(tmp_path / "logs", tmp_path / "cache", on_error="skip", time_unit="s")


# ---- options ----


@pytest.mark.parametrize(
    ("options", "error", "message_part"),
    [
        ({"colour": 1}, robocache.ArgumentError, "colour: not an option of format 'toy'"),
        ({"unit": "h"}, robocache.ArgumentError, "unit: expected one of m, mm or None, got 'h'"),
        ({"episodes": "2"}, robocache.ArgumentTypeError, "episodes: expected int, got '2'"),
        ({"episodes": True}, robocache.ArgumentTypeError, "episodes: expected int, got True"),
        ({"episodes": None}, robocache.ArgumentTypeError, "episodes: expected int, got None"),
        ({"column": 1.5}, robocache.ArgumentTypeError, "column: expected str or int, got 1.5"),
        ({"loud": "yes"}, robocache.ArgumentTypeError, "loud: expected bool, got 'yes'"),
        ({"rate_hz": "fast"}, robocache.ArgumentTypeError, "rate_hz: expected float or int, got 'fast'"),
    ],
)
def test_options_are_checked(options, error, message_part, toy):
    with pytest.raises(error) as caught:
        toy(lambda options, notes: iter(()), **options)
    assert str(caught.value) == message_part


def test_numpy_numbers_and_texts_are_accepted(tmp_path):
    (tmp_path / "imu.csv").write_text("0,1\n1,1\n")
    options = {"time_column": np.int64(0), "time_unit": np.str_("s"), "workers": np.int64(1)}
    assert robocache.ingest(tmp_path, tmp_path / "cache", **options).rows == {"imu": 2}


def test_the_command_line_has_the_options(capsys):
    parser = argparse.ArgumentParser()
    add_arguments(parser, "toy", ToyOptions)

    def parse(*arguments):
        return make_options(ToyOptions, "toy", vars(parser.parse_args(arguments)))

    assert parse() == ToyOptions()
    parsed = parse("--episodes", "3", "--rate-hz", "2", "--unit", "mm", "--column", "4", "--loud")
    assert parsed == ToyOptions(3, 2.0, "mm", 4, True)
    assert parse("--column", "stamp") == replace(ToyOptions(), column="stamp")
    for bad in (["--episodes", "x"], ["--unit", "h"], ["--rate-hz", "fast"]):
        with pytest.raises(SystemExit):
            parse(*bad)
        assert bad[0] in capsys.readouterr().err
    assert "how many" in parser.format_help()


def test_every_format_has_its_options_on_the_command_line():
    parser = argparse.ArgumentParser()
    registry.add_arguments(parser)
    arguments = parser.parse_args(["--time-column", "2", "--index-columns"])
    assert registry.given_options(arguments) == {"time_column": 2, "index_columns": True}


# ---- real data ----


def test_every_real_source_is_recognised(real_data):
    for folder, name in {
        "lerobot_v2/gr00t_gr1_pnp_sim": "lerobot",
        "lerobot_v2/lfs_pointers_only": "lerobot",
        "logs_csv/euroc_micro": "euroc",
        "mcap/keelson": "mcap",
        "rosbag1/realsense": "rosbag1",
        "rosbag2/ros2_wbag_split_mcap": "rosbag2",
    }.items():
        assert registry.find_format(Path(real_data(folder))).name == name
    with pytest.raises(robocache.FileError, match=r"rosbag2 \(.*metadata.yaml\) and csv \(.*\.csv\);"):
        registry.find_format(Path(real_data("rosbag2/unitree_go2")))


# ---- declarations of one stream in several recordings ----


def test_of_many_different_names_the_first_is_reported(toy):
    names = [f"state[{i}]" for i in range(100)]

    def read(options, notes):
        for number, declared in enumerate((names, [*names[:60], "mode", *names[60:-1]])):
            rows = Rows(np.arange(2), np.zeros((2, 100)), declared, attributes={"schema": "status"})
            yield Recording(f"{number}", f"FILE {number}", {}, [("status", rows)])

    with pytest.raises(SourceError) as caught:
        toy(read)
    expected = "100 names, [60] 'mode', but in FILE 0 100 names, [60] 'state[60]'"
    advice = "ingest this recording into a cache of its own, for a list of Sources"
    assert str(caught.value) == f"FILE 1: stream 'status': {expected}; {advice}"


def test_fewer_names_and_other_attributes_are_all_reported(toy):
    def read(options, notes):
        for number, (declared, units) in enumerate(((["a", "b"], "m"), (["a"], "mm"))):
            rows = Rows(np.arange(2), np.zeros((2, len(declared))), declared, attributes={"units": units})
            yield Recording(f"{number}", f"FILE {number}", {}, [("s", rows)])

    with pytest.raises(SourceError) as caught:
        toy(read)
    assert "1 names, attributes {'units': 'mm'}, but in FILE 0 2 names, [1] 'b', attributes {'units': 'm'}" in str(
        caught.value
    )


def test_the_oldest_python_reads_every_formats_options():
    """Python 3.10 does not evaluate a ClassVar without a type."""
    for entry in registry.FORMATS.values():
        assert get_type_hints(entry.options)["title"] == ClassVar[str], entry.name


# ---- recordings of different dtypes ----

TIMES = np.arange(3, dtype=np.int64) * 10**8


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3], [0.5, 1.5, 2.5], "float64"),
        ([0.5, 1.5, 2.5], [1, 2, 3], "float64"),
        (np.float32([0.1, 0.2, 0.3]), [0.1, 0.2, 0.3], "float64"),
        ([0.1, 0.2, 0.3], np.float32([0.1, 0.2, 0.3]), "float64"),
        (np.uint8([1, 2, 3]), np.int16([-1, 300, 2]), "int16"),
        (np.uint8([1, 2, 3]), np.int64([1, 2, 3]), "uint8"),
        ([True, False, True], np.float32([0, 1, 0.5]), "float32"),
        (np.int32([1, 2, 2**31 - 1]), np.float32([0.5, 1, 2]), "float64"),
        ([1, 2, 3], [np.nan, 1.0, 2.0], "float64"),
        ((np.arange(3) / 3).astype(">f8"), np.arange(3) / 3, "float64"),
        (np.uint8([0, 1, 255]), np.int8([-128, 0, 127]), "int16"),
        (np.int8([-128, 0, 127]), np.uint32([0, 1, 2**32 - 1]), "int64"),
        (np.int64([-1, 0, 1]), np.uint64([0, 1, 2**63 - 1]), "int64"),
        (np.int64([-1, 0, 1]), np.uint64([0, 1, 2**63]), "float64"),
        (np.uint64([0, 1, 2**64 - 1]), np.int8([0, 1, 127]), "uint64"),
        ([1, 2, 3], [1, 2, 2.0**64], "float64"),
    ],
)
@pytest.mark.parametrize("ragged", [False, True])
def test_recordings_of_two_dtypes_get_one_that_holds_both(first, second, expected, ragged, toy, tmp_path):
    def read(options, notes):
        for name, values in (("a", first), ("b", second), ("c", first)):
            values = np.asarray(values)
            rows = Ragged(TIMES, values, np.arange(4)) if ragged else Rows(TIMES, values)
            yield Recording(name, "FILE", {}, [("x", rows)])

    report = toy(read)
    stream = robocache.open(tmp_path / "cache").streams["x"]
    assert stream.dtype == expected and report.episodes == 3
    numbers = [number for part in (first, second, first) for number in np.asarray(part).tolist()]
    np.testing.assert_array_equal(stream.values, np.array(numbers, expected))
    reasons = [omission.reason for omission in report.left_out if omission.what == "x: its own type"]
    differ = {np.asarray(values).dtype.newbyteorder("=").name for values in (first, second)} - {expected}
    assert sorted(reason.split()[0] for reason in reasons) == sorted(differ)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([2**53 + 1, 0, 1], [0.5, 1, 2], "FILE a: stream 'x': int64, but float64, chosen for FILE a and FILE b"),
        ([0.5, 1, 2], [2**53 + 1, 0, 1], "FILE b: stream 'x': int64, but float64, as in FILE a"),
        (
            np.uint64([2**64 - 1, 0, 1]),
            [-1, 0, 1],
            "FILE a: stream 'x': uint64, but float64, chosen for FILE a and FILE b",
        ),
        (
            np.int64([-(2**63), 0, 1]),
            np.uint64([2**64 - 1, 0, 1]),
            "FILE b: stream 'x': uint64, but float64, chosen for FILE a and FILE b",
        ),
    ],
)
def test_recordings_without_a_common_dtype_are_refused_by_name(first, second, expected, toy, tmp_path):
    def read(options, notes):
        for name, values in (("a", first), ("b", second)):
            yield Recording(name, f"FILE {name}", {}, [("x", Rows(TIMES, np.asarray(values)))])

    with pytest.raises(robocache.FileError, match=f"{expected}, cannot hold all values; ingest recordings of"):
        toy(read)
    assert toy(read, on_error="skip").episodes == 1


def test_appended_rows_have_the_dtype_of_the_cache(toy, tmp_path):
    values = iter(([1, 2, 3], [4.0, 5.0, 6.0], [0.5, 1.5, 2.5]))

    def read(options, notes):
        yield Recording("one", "FILE", {}, [("x", Rows(TIMES, np.asarray(next(values))))])

    toy(read)
    toy(read, append=True)
    with pytest.raises(robocache.FileError, match="stream 'x': float64, but int64, as in the cache, cannot hold all"):
        toy(read, append=True)
    assert robocache.open(tmp_path / "cache").streams["x"].values.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("workers", [None, 2])
def test_files_of_two_dtypes_are_one_stream_with_any_workers(workers, tmp_path):
    for number, state in enumerate(([[1], [2], [3]], [[0.5], [1], [2]])):
        np.savez(tmp_path / f"{number}.npz", state=np.asarray(state), action=np.zeros((3, 2)), fps=10)
    report = robocache.ingest(tmp_path, tmp_path / "cache", format="npz", workers=workers)
    assert report.episodes == 2
    state = robocache.open(tmp_path / "cache").streams["state"]
    assert state.dtype == "float64" and state.values.reshape(-1).tolist() == [1, 2, 3, 0.5, 1, 2]


@pytest.mark.parametrize(
    "name",
    [
        *("a.hdf5", "a.mcap", "a.db3", "a.bag", "a.npz", "a.ulg", "a.ply", "a.las", "a.laz", "a.bin", "a.npy", "a.csv"),
        *("a.zarr.zip", "a.tfrecord-00000-of-00001", "a.mcap.zstd", "a.db3.zstd", "a.jpg", "a.mp4", "a.parquet"),
    ],
)
@pytest.mark.parametrize("is_file", [True, False])
def test_a_git_lfs_pointer_of_any_name_is_named(name, is_file, tmp_path):
    file = tmp_path / "source" / name
    file.parent.mkdir()
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:41250ae0\nsize 582\n")
    with pytest.raises(robocache.FileError, match=rf"{re.escape(str(file))}: a Git LFS pointer.*git lfs pull"):
        robocache.ingest(file if is_file else file.parent, tmp_path / "cache")


@pytest.mark.parametrize(("missing", "name"), [("laspy", "a.las"), ("laspy", "a.laz"), ("lazrs", "a.laz")])
def test_a_missing_las_package_is_named(missing, name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, missing, None)
    (tmp_path / name).write_bytes(b"LASF" + bytes(400))
    with pytest.raises(robocache.Error, match=rf"{missing}.*pip install 'robocache\[lidar\]'"):
        robocache.ingest(tmp_path / name, tmp_path / "cache")
