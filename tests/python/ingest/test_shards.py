"""An ingest in shards gives the bytes of a single ingest, even if processes are killed."""

import contextlib
import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot_files import make_episodes, write_lerobot
from robocache.cli import main
from robocache.ingest import convert, load_plan, merge, plan, registry, workers
from robocache.ingest.formats import Format
from robocache.ingest.recording import Frames, Ragged, Recording, Rows, ShardsError, SourceError, Texts
from soak import rounds
from toy_format import ToyOptions, ToyReader

import robocache


def contents(cache):
    return {
        str(path.relative_to(cache)): path.read_bytes() for path in sorted(Path(cache).rglob("*")) if path.is_file()
    }


def assert_same(cache, other):
    a, b = contents(cache), contents(other)
    assert a.keys() == b.keys()
    assert [name for name in a if a[name] != b[name]] == []
    robocache.open(other, verify=True)


def ingest_in_shards(source, folder, shards, **arguments):
    """Plans, converts the shards in a random order, and merges them."""
    planned = plan(source, folder / "plan", shards=shards, **arguments)
    for shard in random.Random(shards).sample(range(shards), shards):
        convert(load_plan(planned.folder), shard)
    return merge(planned.folder, folder / "merged")


def write_logs(folder, episodes=5):
    """Writes CSV logs; some streams and files are malformed."""
    for number in range(episodes):
        log = folder / f"run_{number}"
        log.mkdir(parents=True)
        stamps = [0.1 * row for row in range(4 + number)]
        (log / "imu.csv").write_text("t [s],x,y,note\n" + "".join(f"{t:.3f},{t},{number},hm\n" for t in stamps))
        if number % 2:
            (log / "arm.csv").write_text("t [s],q\n" + "".join(f"{t:.3f},{number}\n" for t in stamps))
            (log / "notes.txt").write_text("x")
        if number == 3:
            (log / "cam.csv").write_text("t [s],file\n0.0,a.png\n0.1,b.png\n")
            (log / "a.png").write_bytes(robocache.frames.encode(np.zeros((1, 4, 6), np.uint8), "png").data.tobytes())
            (log / "broken.csv").write_text("t [s],x\n0.0,1\noh,2\n")
    return folder


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_of_csv_logs_give_the_same_bytes(shards, tmp_path):
    source = write_logs(tmp_path / "logs")
    single = robocache.ingest(source, tmp_path / "single", on_error="skip")
    report = ingest_in_shards(source, tmp_path, shards, on_error="skip")
    assert_same(tmp_path / "single", tmp_path / "merged")
    assert len(single.skipped) == 2 and len(single.left_out) == 1
    for field in ("format", "episodes", "rows", "left_out", "skipped", "repaired"):
        assert getattr(report, field) == getattr(single, field)


def test_a_plan_within_its_source_is_not_read(tmp_path):
    source = write_logs(tmp_path / "logs", 4)
    robocache.ingest(source, tmp_path / "single", on_error="skip")
    ingest_in_shards(source, source, 2, on_error="skip")
    assert_same(tmp_path / "single", source / "merged")


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_shards_of_lerobot_give_the_same_bytes(version, rng, tmp_path):
    """The dataset has a file that opens but cannot be read, an episode that is not listed, and an episode of another type."""
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (7, 1, 12, 3, 5, 2)), version, per_file=2)
    file = sorted((source / "data").rglob("*.parquet"))[1]
    content = bytearray(file.read_bytes())
    content[60:-4000] = bytes(len(content) - 4060)  # the footer stays
    file.write_bytes(content)
    single = robocache.ingest(source, tmp_path / "single", on_error="skip")
    assert single.skipped and single.episodes in (4, 5)
    for shards in (2, 3, 5):
        report = ingest_in_shards(source, tmp_path / str(shards), shards, on_error="skip")
        assert report.assumed == single.assumed
        assert_same(tmp_path / "single", tmp_path / str(shards) / "merged")


def test_shards_of_a_real_dataset_with_video_a_mapping_and_offsets(real_data, tmp_path):
    source = Path(real_data("lerobot_v2/gr00t_gr1_pnp_sim"))
    arguments = {"mapping": source / "meta/modality.json", "offsets": {"action.waist": 0.5}, "image_size": "32x24"}
    robocache.ingest(source, tmp_path / "single", **arguments)
    ingest_in_shards(source, tmp_path, 3, **arguments)
    assert_same(tmp_path / "single", tmp_path / "merged")


@pytest.mark.parametrize("format", ["droid", "aloha"])
def test_shards_open_only_the_files_of_their_episodes(format, rng, tmp_path, monkeypatch):
    """The source also has an invalid file, files that no reader opens, and video."""
    from hdf5_files import SERIALS, make_aloha, make_droid, write_aloha, write_droid
    from robocache.ingest.hdf5 import aloha, datasets, droid
    from video_files import write_video

    source = tmp_path / "source"
    for number in range(6):
        if format == "droid":
            folder = write_droid(source / f"lab/{number}", make_droid(rng, 4 + number), metadata=number != 3)
            path = folder / "trajectory.h5"
            if number in (1, 5):
                write_video(folder / f"recordings/MP4/{SERIALS['ext1']}.mp4", range(4 + number), fps=60)
        else:
            path = source / f"episode_{number}.hdf5"
            write_aloha(path, make_aloha(rng, 4 + number))
        (path.parent / f"notes_{number}.txt").write_text("x")
        if number == 2:
            path.write_bytes(b"none")
    arguments = {"on_error": "skip"} | ({"rate_hz": 50} if format == "aloha" else {})
    single = robocache.ingest(source, tmp_path / "single", **arguments)
    assert (single.episodes, len(single.skipped)) == (5, 1)
    opened = []
    open_file = datasets.open_file
    for module in (aloha, droid):
        monkeypatch.setattr(module, "open_file", lambda path: opened.append(path) or open_file(path))
    for shards in (2, 4):
        opened.clear()
        ingest_in_shards(source, tmp_path / str(shards), shards, **arguments)
        assert len(opened) == 6
        assert_same(tmp_path / "single", tmp_path / str(shards) / "merged")


# ---- every kind of stream, with toy readers ----


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """Returns a function that makes `read` the reader of a toy format, and returns a source."""

    def register(read, finish=None):
        (tmp_path / "source.toy").write_text("toy")
        find = lambda source, files: source if source.suffix == ".toy" else None  # noqa: E731
        monkeypatch.setitem(registry.FORMATS, "toy", Format("toy", "toy", "*.toy", find, ToyOptions, "", ""))
        reader = ToyReader(read)
        if finish is not None:
            reader.finish = finish
        monkeypatch.setattr(Format, "load", lambda entry: reader)
        return tmp_path / "source.toy"

    return register


def make_streams(number):
    rng = np.random.default_rng(number)
    times = np.arange(6, dtype=np.int64) * 10**8
    depth = rng.integers(0, 4000, (6, 5, 7), dtype=np.uint16)
    if number == 1:
        yield "late", Rows(times, rng.normal(size=(6, 2)).astype(np.float16), clock="nominal")
    if number != 2:
        yield "empty", Rows(times[:0], np.zeros((0, 3), np.int16))
    yield (
        "a",
        Rows(times, rng.normal(size=(6, 3)), list("xyz"), "recorded" if number == 3 else "nominal", {"units": "m"}),
    )
    yield "flag", Rows(times, rng.random(6) > 0.5)
    yield "cloud", Ragged(times[:4], rng.normal(size=(9, 3)).astype(np.float32), np.array([0, 2, 2, 7, 9]), list("xyz"))
    yield "task", Texts(times[:2], ["pick", "päck"] if number else ["", "x"])
    yield "none", Texts(times[:0], [])
    if number:
        yield "depth", Frames([(times, depth)], "png", unit_m=0.001, intrinsics=[[1, 0, 2], [0, 1, 2], [0, 0, 1]])
        yield "raw", Frames([(times[:3], depth[:3].astype(np.uint8))], "raw", resized={"fit": "pad"})
    yield "rgb", Frames([(times[:2], rng.integers(0, 255, (2, 16, 24, 3), dtype=np.uint8))], "jpeg")


def read_everything(options, notes):
    notes.total = 6
    notes.tell("FILE", colour="red")
    for number in range(6):
        if number == 4:
            notes.skip("a file between", SourceError("FILE: lost"))
        metadata = {"number": number, "weight": number if number < 4 else number / 2, "tags": ["x"] * number}

        def streams(number=number):
            notes.count("met", "odd" if number % 2 else "even")
            notes.leave_out("topic", "no number")
            notes.assume("clock 't'", f"seconds, by its steps of 0.0{number + 1}", "a", f"of {number % 4}")
            for name, samples in make_streams(number):
                yield name, samples
                if number == 5:
                    raise ValueError("damaged")

        yield Recording(f"episode {number}", "FILE", metadata, streams())


def finish_everything(source, options, notes):
    notes.tell(source, met=notes.counts["met"])


def test_every_kind_of_stream_gives_the_same_bytes(toys, tmp_path):
    source = toys(read_everything, finish_everything)
    single = robocache.ingest(source, tmp_path / "single", on_error="skip")
    assert robocache.open(tmp_path / "single").provenance["toy"] == {"colour": "red", "met": {"even": 3, "odd": 3}}
    assert [omission.what for omission in single.skipped] == ["a file between", "episode 5"]
    (assumed,) = single.assumed
    assert (assumed.what, assumed.reason) == ("clock 't'", "seconds, by its steps of 0.01")
    assert assumed.streams == ["a", "of 0", "of 1", "of 2", "of 3"]
    assert robocache.open(tmp_path / "single").provenance["assumed"] == [asdict(assumed)]
    assert list(single.rows)[:2] == ["empty", "a"] and single.rows["late"] == 6
    for shards in (1, 2, 3, 6, 9):
        ingest_in_shards(source, tmp_path / str(shards), shards, on_error="skip")
        assert_same(tmp_path / "single", tmp_path / str(shards) / "merged")


@pytest.mark.parametrize("repair", ["sort", "drop", "split"])
def test_repairs_are_added_up(repair, toys, tmp_path):
    def read(options, notes):
        notes.total = 4
        for number in range(4):
            times = np.array([0, 1, 2, 1 if number else 3, 5])
            yield Recording(
                str(number), "FILE", {}, [("a", Rows(times, np.arange(5))), ("b", Rows(times, np.arange(5)))]
            )

    source = toys(read)
    single = robocache.ingest(source, tmp_path / "single", repair=repair)
    report = ingest_in_shards(source, tmp_path, 3, repair=repair)
    assert report.repaired == single.repaired and single.repaired["a"]["backward_steps"] == 3
    assert_same(tmp_path / "single", tmp_path / "merged")


def test_a_shard_reads_only_its_own_streams(toys, tmp_path):
    numbers_read = []

    def read_streams(number):
        numbers_read.append(number)
        yield "a", Rows(np.arange(2), np.zeros(2))

    def read(options, notes):
        notes.total = 7
        for number in range(7):
            yield Recording(str(number), "FILE", {}, read_streams(number))

    planned = plan(toys(read), tmp_path / "plan", shards=3)
    assert numbers_read == []
    for shard, expected in enumerate(([0, 1], [2, 3], [4, 5, 6])):
        convert(planned, shard)
        assert numbers_read == expected
        numbers_read.clear()


def test_shards_of_different_kinds_are_refused_by_name(toys, tmp_path):
    """A single process skips the second recording; a shard does not know the streams of other shards."""

    def read(options, notes):
        notes.total = 3
        for number in range(3):
            yield Recording(str(number), "FILE", {}, [("a", Rows(np.arange(2), np.zeros((2, 2 + (number == 1)))))])

    source = toys(read)
    with pytest.raises(ShardsError, match=r"shard-001: does not fit the other shards: stream 'a'"):
        ingest_in_shards(source, tmp_path, 3, on_error="skip")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    "values",
    [
        ([1, 2, 3], [0.5, 1, 2], [4, 5, 6]),
        ([0.5, 1, 2], [1, 2, 3], [2**53, 0, 1]),
        (np.float32([0.5, 1, 2]), [1, 2, 2**24 + 1], np.int8([1, 2, 3])),
        (np.int64([1, 2, 3]), np.float32([1, 2, 3]), np.int8([1, 2, 3])),
        (np.uint8([0, 1, 255]), np.int8([-128, 0, 127]), np.int32([1, 2, 3])),
    ],
)
@pytest.mark.parametrize("ragged", [False, True])
def test_types_that_differ_become_one_by_every_route(values, ragged, toys, tmp_path):
    def read(options, notes):
        notes.total = len(values)
        for number, numbers in enumerate(map(np.asarray, values)):
            times = np.arange(3, dtype=np.int64)
            rows = Ragged(times, numbers, np.arange(4)) if ragged else Rows(times, numbers)
            yield Recording(str(number), "FILE", {}, [("x", rows)])

    source = toys(read)
    single = robocache.ingest(source, tmp_path / "single")
    expected = robocache.open(tmp_path / "single").streams["x"].values
    for shards in (1, 2, 3):
        report = ingest_in_shards(source, tmp_path / str(shards), shards)
        merged = robocache.open(tmp_path / str(shards) / "merged").streams["x"].values
        assert merged.dtype == expected.dtype and np.array_equal(merged, expected)
        assert "x: its own type" in {note.what for note in report.left_out}
    assert np.array_equal(expected, np.concatenate(values))
    assert "x: its own type" in {note.what for note in single.left_out}


def test_shards_without_a_common_type_are_refused_with_what_to_do(toys, tmp_path):
    def read(options, notes):
        notes.total = 2
        for number, numbers in enumerate(([2**53 + 1, 0], [0.5, 1])):
            yield Recording(str(number), "FILE", {}, [("x", Rows(np.arange(2), np.array(numbers)))])

    with pytest.raises(ShardsError, match=r"stream 'x': int64, which float64 .*; robocache ingest without --workers"):
        ingest_in_shards(toys(read), tmp_path, 2)


def test_shards_whose_declarations_differ_are_both_named(toys, tmp_path):
    def read(options, notes):
        notes.total = 3
        for number, units in enumerate(("m", "m", "mm")):
            rows = Rows(np.arange(2), np.zeros(2), attributes={"units": units})
            yield Recording(str(number), f"FILE {number}", {}, [("x", rows)])

    expected = "shard-002: stream 'x': attributes {'units': 'mm'}, but in shard-000 attributes {'units': 'm'}; robocache ingest without --workers"
    with pytest.raises(ShardsError, match=expected):
        ingest_in_shards(toys(read), tmp_path, 3)
    with pytest.raises(
        robocache.FileError, match=r"FILE 2: stream 'x': .*'mm'}, but in FILE 0 .*; ingest this recording"
    ):
        robocache.ingest(toys(read), tmp_path / "single")


def test_shards_without_any_type_for_both_are_named(toys, tmp_path):
    def read(options, notes):
        notes.total = 2
        for number, numbers in enumerate(([0.5, 1], [2**53 + 1, 0])):
            yield Recording(str(number), "FILE", {}, [("x", Rows(np.arange(2), np.array(numbers)))])

    expected = (
        "shard-001: stream 'x': int64, but float64 because of shard-000, and no type holds all values; robocache ingest"
    )
    with pytest.raises(ShardsError, match=expected):
        ingest_in_shards(toys(read), tmp_path, 2)


def test_a_reader_with_notes_at_its_end_is_refused_in_shards(toys, tmp_path):
    def read(options, notes):
        for number in range(3):
            yield Recording(str(number), "FILE", {}, [("a", Rows(np.arange(2), np.zeros(2)))])
        notes.tell("FILE", total=3)

    source = toys(read)
    with pytest.raises(ShardsError, match="format 'toy' reports facts of all recordings at its end"):
        ingest_in_shards(source, tmp_path, 2)
    robocache.ingest(source, tmp_path / "cache")


# ---- plans ----


def test_a_finished_shard_is_not_converted_again(tmp_path):
    planned = plan(write_logs(tmp_path / "logs"), tmp_path / "plan", shards=2, on_error="skip")
    path = convert(planned, 1)
    before = {name: (path / name).stat().st_ino for name in contents(path)}
    assert convert(load_plan(tmp_path / "plan"), 1) == path
    assert {name: (path / name).stat().st_ino for name in contents(path)} == before
    with pytest.raises(robocache.FileError, match=r"shard-000: not converted yet; robocache convert .*plan --shard 0"):
        merge(planned.folder, tmp_path / "cache")
    convert(planned, 0)
    merge([planned.path(1), planned.path(0)], tmp_path / "cache")
    assert robocache.open(tmp_path / "cache").provenance.keys() == {
        "csv",
        "source",
        "source_id",
        "format",
        "left_out",
        "skipped",
    }
    with pytest.raises(robocache.FileError, match="shards 0 of its plan are missing"):
        merge([planned.path(1)], tmp_path / "other")
    with pytest.raises(robocache.FileError, match="expected a shard of an ingest, got another cache"):
        merge([tmp_path / "cache"], tmp_path / "other")
    other = plan(tmp_path / "logs", tmp_path / "plan2", shards=3, on_error="skip")
    shutil.copytree(planned.path(0), other.path(0))
    for attempt in (lambda: convert(other, 0), lambda: merge([other.path(0), convert(other, 1)], tmp_path / "other")):
        with pytest.raises(robocache.FileError, match=r"another plan|missing"):
            attempt()
    with pytest.raises(robocache.FileError, match="it exists already; expected a new folder"):
        plan(tmp_path / "logs", tmp_path / "plan", shards=2)


@pytest.mark.parametrize("change", ["grown", "gone", "new"])
def test_a_source_that_changed_is_refused_by_name(change, tmp_path):
    source = write_logs(tmp_path / "logs", 3)
    planned = plan(source, tmp_path / "plan", shards=2)
    convert(planned, 0)
    file = source / "run_1/imu.csv"
    if change == "grown":
        file.write_text(file.read_text() + "9.0,1,1,x\n")
    elif change == "gone":
        file.unlink()
    else:
        file = source / "run_1/more.csv"
        file.write_text("t [s],a\n0.0,1\n")
    fault = {"grown": "changed", "gone": "gone", "new": "new"}[change]
    for attempt in (lambda: convert(planned, 1), lambda: merge(planned.folder, tmp_path / "cache")):
        with pytest.raises(robocache.FileError) as caught:
            attempt()
        assert str(caught.value).startswith(f"{file}: {fault} since ")
    assert sorted(path.name for path in planned.folder.iterdir()) == ["plan.json", "shard-000"]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"robocache_plan": 2}', '{"robocache_plan": 1, "source": 3}', "\xff"]
)
def test_files_that_are_no_plan_are_refused_by_name(text, tmp_path):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(robocache.FileError, match=r"plan\.json: "):
        load_plan(tmp_path)


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a FIFO"), (os.mkdir, "a folder")])
def test_a_plan_that_is_no_regular_file_is_refused_at_once(make, kind, tmp_path):
    make(tmp_path / "plan.json")
    with pytest.raises(robocache.FileError, match=f"plan.json: expected a regular file, got {kind}") as caught:
        load_plan(tmp_path)
    assert not isinstance(caught.value, SourceError)


@pytest.mark.parametrize("name", ["values.npy", "time_ns.npy"])
def test_a_damaged_shard_is_not_merged(name, tmp_path):
    """The merged cache gets new checksums, which would hide the damage."""
    write_logs(tmp_path / "logs")
    planned = plan(tmp_path / "logs", tmp_path / "plan", shards=2, on_error="skip")
    for shard in range(2):
        convert(planned, shard)
    file = planned.path(1) / "streams/imu" / name
    content = bytearray(file.read_bytes())
    content[130] ^= 0x40  # behind the header
    file.write_bytes(content)
    with pytest.raises(robocache.FileError, match=f"{file}: at byte 128: .*damaged; remove {planned.path(1)}"):
        merge(planned.folder, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    shutil.rmtree(planned.path(1))
    convert(planned, 1)
    merge(planned.folder, tmp_path / "cache")
    robocache.ingest(tmp_path / "logs", tmp_path / "at once", on_error="skip")
    assert_same(tmp_path / "cache", tmp_path / "at once")


def test_arguments_of_another_type_are_refused(tmp_path):
    logs = write_logs(tmp_path / "logs", 2)
    for call in (
        lambda: plan(logs, 3, shards=2),
        lambda: plan(logs, tmp_path / "plan", shards="2"),
        lambda: load_plan(None),
        lambda: convert(tmp_path / "plan", 0),
        lambda: convert(plan(logs, tmp_path / "plan", shards=np.int64(2)), "0"),
        lambda: merge(3, tmp_path / "cache"),
        lambda: merge([3], tmp_path / "cache"),
    ):
        with pytest.raises(robocache.ArgumentTypeError, match=r"^(folder|shards?|made): expected "):
            call()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "plan"]


@settings(max_examples=40)
@given(data=st.data())
def test_a_changed_plan_is_read_or_refused_by_name(data, tmp_path):
    if not (tmp_path / "logs").exists():
        plan(write_logs(tmp_path / "logs", 2), tmp_path / "plan", shards=2, mapping={"exclude": ["arm"]})
    content = json.loads((tmp_path / "plan/plan.json").read_text())
    key = data.draw(st.sampled_from(sorted(content)))
    content[key] = data.draw(
        st.none() | st.integers() | st.text() | st.lists(st.integers()) | st.dictionaries(st.text(), st.text())
    )
    (tmp_path / "other").mkdir(exist_ok=True)
    (tmp_path / "other/plan.json").write_text(json.dumps(content))
    try:
        assert load_plan(tmp_path / "other").shards == content["shards"]
    except robocache.FileError as error:
        assert str(error).startswith(f"{tmp_path}/other/plan.json: ")


def test_the_commands_plan_convert_and_merge(capsys, tmp_path):
    source, work = write_logs(tmp_path / "logs", 4), str(tmp_path / "work")
    assert main(["plan", str(source), work, "--shards", "2", "--on-error", "skip"]) == 0
    assert "4 recordings in 2 shards" in capsys.readouterr().out
    assert main(["merge", work, str(tmp_path / "cache")]) == 1
    assert "--shard 0" in capsys.readouterr().err
    assert main(["convert", work, "--shard", "1/3"]) == 2
    assert f"--shard 1/3: {work} is cut into 2 shards" in capsys.readouterr().err
    for shard in ("1/2", "0"):
        assert main(["convert", work, "--shard", shard]) == 0
    capsys.readouterr()
    assert main(["convert", work, "--shard", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shard": 1, "path": f"{work}/shard-001"}
    assert main(["convert", work, "--shard", "2"]) == 2
    assert main(["merge", work, str(tmp_path / "cache")]) == 3
    assert main(["ingest", str(source), str(tmp_path / "single"), "--on-error", "skip"]) == 3
    assert_same(tmp_path / "single", tmp_path / "cache")
    for shard in ("x", "1/x", "1/"):
        with pytest.raises(SystemExit):
            main(["convert", work, "--shard", shard])
    for count in ("0", "-1", "x"):
        with pytest.raises(SystemExit):
            main(["plan", str(source), str(tmp_path / "more"), "--shards", count])


# ---- processes ----


def test_workers_give_the_same_bytes_and_leave_no_files(tmp_path):
    source = write_logs(tmp_path / "logs", 9)
    steps = []
    robocache.ingest(source, tmp_path / "single", on_error="skip")
    report = robocache.ingest(
        source, tmp_path / "cache", on_error="skip", workers=2, progress=lambda *step: steps.append(step)
    )
    assert_same(tmp_path / "single", tmp_path / "cache")
    assert len(report.skipped) == 2
    assert steps and all(0 <= done <= 9 and total == 9 for done, total, _ in steps)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "logs", "single"]
    with pytest.raises(robocache.FileError, match="exists already"):
        robocache.ingest(source, tmp_path / "cache", on_error="skip", workers=2)
    for count in (0, True, "2"):
        with pytest.raises((robocache.ArgumentError, robocache.ArgumentTypeError), match="workers: expected"):
            robocache.ingest(source, tmp_path / "more", workers=count)


def test_workers_share_the_threads_of_this_process(tmp_path, monkeypatch):
    """This process may have fewer threads than the machine has cores."""
    threads_of_workers = []

    def start(function, folder, threads, parent, **options):
        threads_of_workers.append(threads)
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "start", start)
    before = robocache.num_threads()
    try:
        for threads in (6, 1):
            robocache.set_num_threads(threads)
            with pytest.raises(KeyboardInterrupt):
                robocache.ingest(write_logs(tmp_path / f"logs{threads}", 4), tmp_path / "cache", workers=2)
    finally:
        robocache.set_num_threads(before)
    assert threads_of_workers == [3, 1]


def test_a_fault_in_a_worker_is_the_same_error(tmp_path):
    source = write_logs(tmp_path / "logs", 4)
    with pytest.raises(SourceError) as single:
        robocache.ingest(source, tmp_path / "cache")
    with pytest.raises(SourceError) as shared:
        robocache.ingest(source, tmp_path / "cache", workers=2)
    assert str(single.value) == str(shared.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]


def test_sources_that_cannot_be_sharded_are_read_by_one_process(tmp_path):
    for number, header in enumerate(("t [s],x", "t [s],y", "t [s],x")):
        (tmp_path / f"logs/{number}").mkdir(parents=True)
        (tmp_path / f"logs/{number}/imu.csv").write_text(f"{header}\n0.0,1\n0.1,2\n")
    robocache.ingest(tmp_path / "logs", tmp_path / "single", on_error="skip")
    report = robocache.ingest(tmp_path / "logs", tmp_path / "cache", on_error="skip", workers=2)
    assert len(report.skipped) == 1
    assert_same(tmp_path / "single", tmp_path / "cache")
    assert not (tmp_path / "cache.shards").exists()


def test_a_second_simultaneous_ingest_is_refused(tmp_path, monkeypatch):
    import fcntl

    from robocache.ingest import workers

    monkeypatch.setattr(workers, "_WAIT_S", 0.1)
    (tmp_path / "cache.shards").mkdir()
    with open(tmp_path / "cache.shards/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(robocache.FileError, match=r"cache\.shards: another ingest is at work on it"):
            robocache.ingest(write_logs(tmp_path / "logs", 2), tmp_path / "cache", workers=2)


_INGEST = """
import sys
sys.modules["torch"] = None  # its import takes seconds, and nothing here needs it
import robocache
robocache.ingest(sys.argv[1], sys.argv[2], on_error="skip", workers=2, overwrite=sys.argv[3] == "overwrite")
"""


def start_ingest(source, cache, overwrite=False):
    command = [sys.executable, "-c", _INGEST, str(source), str(cache), "overwrite" if overwrite else ""]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_killed_worker_is_an_error_and_the_next_run_resumes(tmp_path):
    source = write_logs(tmp_path / "logs", 6)
    robocache.ingest(source, tmp_path / "single", on_error="skip")
    killed = []

    def kill_one(done, total, what):
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                is_worker = b"robocache.ingest.workers" in path.with_name("cmdline").read_bytes()
                is_ours = int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid()
                if is_worker and is_ours and not killed:
                    killed.append(int(path.parent.name))
                    os.kill(killed[0], signal.SIGKILL)

    started = time.monotonic()
    with pytest.raises(robocache.FileError, match=r"cache\.shards/.*: the process that converts it ended"):
        robocache.ingest(source, tmp_path / "cache", on_error="skip", workers=2, progress=kill_one)
    assert time.monotonic() - started < 60 and killed
    assert not (tmp_path / "cache").exists()
    robocache.ingest(source, tmp_path / "cache", on_error="skip", workers=2)
    assert_same(tmp_path / "single", tmp_path / "cache")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "logs", "single"]


def attack(source, expected, cache, kills, seed, overwrite=False):
    """Kills an ingest at random moments, `kills` times or until it is done."""
    draw = random.Random(seed)
    started = time.monotonic()
    assert start_ingest(source, cache, overwrite).wait(120) == 0
    duration_s = time.monotonic() - started
    for _ in range(kills):
        if cache.exists() and not overwrite:
            assert_same(expected, cache)  # a cache at this path is complete
            shutil.rmtree(cache)
        process = start_ingest(source, cache, overwrite)
        try:
            process.wait(draw.uniform(0.3, 1) * duration_s)
            assert process.returncode == 0 or "exists already" in process.stderr.read()
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    if cache.exists() and not overwrite:
        assert_same(expected, cache)
        shutil.rmtree(cache)
    process = start_ingest(source, cache, overwrite)
    assert process.wait(120) == 0, process.stderr.read()
    assert_same(expected, cache)
    assert not cache.with_name(f"{cache.name}.shards").exists()
    assert not cache.with_name(f"{cache.name}.partial").exists()


@pytest.mark.soak
@pytest.mark.parametrize(("logs", "share", "overwrite"), [(6, 3, False), (12, 1, True)])
def test_an_ingest_killed_at_random_resumes_with_the_same_bytes(logs, share, overwrite, tmp_path):
    source = write_logs(tmp_path / "logs", logs)
    robocache.ingest(source, tmp_path / "single", on_error="skip")
    attack(source, tmp_path / "single", tmp_path / "cache", rounds(share), 1 + overwrite, overwrite=overwrite)


def test_a_finished_shard_of_a_killed_run_is_not_converted_again(tmp_path):
    source = write_logs(tmp_path / "logs", 8)
    robocache.ingest(source, tmp_path / "single", on_error="skip")
    planned = plan(source, tmp_path / "cache.shards", shards=3, on_error="skip")
    convert(planned, 1)
    (planned.folder / "shard-002.partial").mkdir()  # an unfinished shard
    steps = []
    robocache.ingest(source, tmp_path / "cache", on_error="skip", workers=2, progress=lambda *step: steps.append(step))
    assert_same(tmp_path / "single", tmp_path / "cache")
    assert {what.split(",")[0] for _, _, what in steps} == {f"run_{number}" for number in (0, 1, 5, 6, 7)}
    assert not planned.folder.exists()


def test_a_source_changed_after_a_killed_run_is_converted_anew(tmp_path):
    source = write_logs(tmp_path / "logs", 3)
    planned = plan(source, tmp_path / "cache.shards", shards=2)
    convert(planned, 0)
    (source / "run_0/imu.csv").write_text("t [s],x,y,note\n0.0,7,7,hm\n")
    robocache.ingest(source, tmp_path / "single")
    robocache.ingest(source, tmp_path / "cache", workers=2)
    assert_same(tmp_path / "single", tmp_path / "cache")


_FULL = """
import resource, signal, sys
sys.modules["torch"] = None
import robocache
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    robocache.ingest(sys.argv[1], sys.argv[2], workers=2)
except robocache.FileError as error:
    print(type(error).__name__, error)
"""


def test_a_full_disk_is_a_file_error_without_an_incomplete_cache(tmp_path):
    for number in range(3):
        (tmp_path / f"logs/{number}").mkdir(parents=True)
        rows = "".join(f"{row / 100:.2f},{row}\n" for row in range(3000 if number < 2 else 40_000))
        (tmp_path / f"logs/{number}/imu.csv").write_text("t [s],x\n" + rows)
    command = [sys.executable, "-c", _FULL, str(tmp_path / "logs"), str(tmp_path / "cache")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.stdout.startswith("FileError "), process
    assert "File too large" in process.stdout
    assert not (tmp_path / "cache").exists()
    robocache.ingest(tmp_path / "logs", tmp_path / "single")
    robocache.ingest(tmp_path / "logs", tmp_path / "cache", workers=2)
    assert_same(tmp_path / "single", tmp_path / "cache")
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 200_000


def test_the_file_of_a_plan(tmp_path):
    planned = plan(write_logs(tmp_path / "logs", 3), tmp_path / "plan", shards=2, time_unit="s", offsets={"imu": "0.5"})
    content = json.loads((tmp_path / "plan/plan.json").read_text())
    assert (content["format"], content["recordings"], content["shards"]) == ("csv", 3, 2)
    assert (content["options"]["time_unit"], content["offsets_ns"]) == ("s", {"imu": 500_000_000})
    assert content["file_states"]["run_0/imu.csv"][0] == (tmp_path / "logs/run_0/imu.csv").stat().st_size
    assert load_plan(tmp_path / "plan").described == planned.described


def test_a_plan_is_picklable(tmp_path):
    planned = plan(write_logs(tmp_path / "logs", 2), tmp_path / "plan", shards=1, mapping={"exclude": ["arm"]})
    assert pickle.loads(pickle.dumps(planned)) == planned
