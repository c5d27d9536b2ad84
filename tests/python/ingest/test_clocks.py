"""Clocks that step back, invalid stamps, and offsets: found in every format, repaired only by a policy."""

from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from robocache.ingest import clocks, nominal_time_ns
from robocache.ingest.recording import Frames, Ragged, Recording, Rows, SourceError, Texts

import robocache

NOW = 1_700_000_000_000_000_000


def one_stream(stamps, parts=1, name="imu", where="FILE"):
    """Returns a reader of one recording in `parts` parts. The values are the row numbers."""
    times, values = np.array(stamps, np.int64), np.arange(len(stamps), dtype=np.int32)

    def read(options, notes):
        row_parts = np.array_split(np.arange(len(times)), parts)
        yield Recording("one", where, {"name": "one"}, ((name, Rows(times[rows], values[rows])) for rows in row_parts))

    return read


def ingest_rows(toy, tmp_path, stamps, parts=1, **options):
    report = toy(one_stream(stamps, parts), overwrite=True, **options)
    dataset = robocache.open(tmp_path / "cache")
    rows = [dataset.episode(episode)["imu"] for episode in range(len(dataset))]
    return [(times.tolist(), values.tolist()) for times, values in rows], report


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_step_back_is_refused_by_name(toy, tmp_path, parts):
    with pytest.raises(SourceError) as caught:
        toy(one_stream([10, 20, 20, 15, 30], parts))
    assert str(caught.value).startswith(
        "FILE: stream 'imu': row 3 is at 15 ns, the row before it at 20 ns: a step back of"
    )
    for policy in ("repair='sort'", "'drop'", "'split'"):
        assert policy in str(caught.value)
    assert not (tmp_path / "cache").exists()

    def read_two(options, notes):
        yield from one_stream([2, 1], parts)(options, notes)
        yield from one_stream([1, 2], parts)(options, notes)

    report = toy(read_two, on_error="skip")
    assert [omission.what for omission in report.skipped] == ["one"]
    assert (report.episodes, report.rows, report.repaired) == (1, {"imu": 2}, {})


def test_equal_stamps_are_no_step_back(toy, tmp_path):
    assert ingest_rows(toy, tmp_path, [5, 5, 5, 6])[0] == [([5, 5, 5, 6], [0, 1, 2, 3])]


stamps_of_streams = st.lists(st.integers(-50, 50), min_size=1, max_size=40)


@settings(max_examples=25)
@given(stamps=stamps_of_streams, parts=st.integers(1, 4))
def test_sort_is_stable(stamps, parts, toy, tmp_path):
    episodes, report = ingest_rows(toy, tmp_path, stamps, parts, repair="sort")
    order = sorted(range(len(stamps)), key=lambda row: stamps[row])
    assert episodes == [([stamps[row] for row in order], order)]
    steps = sum(after < before for before, after in pairwise(stamps))
    assert report.repaired.get("imu", {}).get("backward_steps", 0) == steps
    moved = sum(row != index for index, row in enumerate(order))
    assert report.repaired.get("imu", {}).get("rows_moved", 0) == moved


@settings(max_examples=25)
@given(stamps=stamps_of_streams, parts=st.integers(1, 4))
def test_drop_removes_rows_before_the_latest_stamp(stamps, parts, toy, tmp_path):
    episodes, report = ingest_rows(toy, tmp_path, stamps, parts, repair="drop")
    kept = [row for row, stamp in enumerate(stamps) if stamp >= max(stamps[: row + 1])]
    assert episodes == [([stamps[row] for row in kept], kept)]
    assert report.repaired.get("imu", {}).get("rows_dropped", 0) == len(stamps) - len(kept)


@settings(max_examples=25)
@given(stamps=stamps_of_streams, parts=st.integers(1, 4))
def test_split_begins_an_episode_at_each_step_back(stamps, parts, toy, tmp_path):
    episodes, report = ingest_rows(toy, tmp_path, stamps, parts, repair="split")
    runs = [[0]]
    for row in range(1, len(stamps)):
        runs.append([row]) if stamps[row] < stamps[row - 1] else runs[-1].append(row)
    assert episodes == [([stamps[row] for row in run], run) for run in runs]
    assert report.episodes == len(runs)
    table = robocache.open(tmp_path / "cache").episodes
    assert table["clock_run"].to_pylist() == list(range(len(runs)))
    assert table["name"].to_pylist() == ["one"] * len(runs)


def test_split_matches_runs_of_streams_by_their_index(toy, tmp_path):
    def read(options, notes):
        def streams():  # their parts alternate
            yield "a", Rows(np.array([1, 2, 1]), np.array([10, 11, 12]))
            yield "b", Rows(np.array([5]), np.array([20]))
            yield "a", Rows(np.array([4]), np.array([13]))
            yield "b", Rows(np.array([3, 8]), np.array([21, 22]))

        yield Recording("one", "FILE", {}, streams())

    report = toy(read, repair="split")
    dataset = robocache.open(tmp_path / "cache")
    assert {name: values.tolist() for name, (_, values) in dataset.episode(0).items()} == {"a": [10, 11], "b": [20]}
    assert {name: values.tolist() for name, (_, values) in dataset.episode(1).items()} == {"a": [12, 13], "b": [21, 22]}
    assert report.repaired == {name: {"backward_steps": 1, "episodes": 2} for name in "ab"}
    assert dataset.provenance["repair"] == {"policy": "split", "streams": report.repaired}


def test_streams_with_different_numbers_of_runs_are_named(toy, tmp_path):
    def read(options, notes):
        yield Recording(
            "one", "FILE", {}, [("a", Rows(np.array([1, 0]), np.zeros(2))), ("b", Rows(np.array([1, 2]), np.zeros(2)))]
        )
        yield Recording("two", "FILE", {}, [("a", Rows(np.array([1]), np.zeros(1)))])

    with pytest.raises(SourceError, match=r"^FILE: .*'a' 2, 'b' 1"):
        toy(read, repair="split")
    report = toy(read, repair="split", on_error="skip")
    assert (report.episodes, report.rows, report.repaired) == (1, {"a": 1}, {})


def test_a_fault_after_a_step_back_drops_the_whole_recording(toy, tmp_path):
    def read(options, notes):
        yield Recording(
            "one",
            "FILE",
            {},
            [("a", Rows(np.array([1, 2]), np.zeros(2))), ("a", Rows(np.array([1]), np.zeros((1, 2))))],
        )

    with pytest.raises(robocache.FileError, match=r"^FILE: after step back 1 "):
        toy(read, repair="split", on_error="skip")
    assert not (tmp_path / "cache").exists()


# ---- invalid stamps ----


@pytest.mark.parametrize("parts", [1, 3, 6])
@pytest.mark.parametrize(("stamp", "stamp_text"), [(0, "0"), (-1, "-1"), (2**63 - 1, "2^63-1"), (-(2**63), "-2^63")])
@pytest.mark.parametrize("index", [0, 2, 5])
def test_invalid_stamps_are_named_and_only_dropped(stamp, stamp_text, index, parts, toy, tmp_path):
    stamps = [NOW + row for row in range(6)]
    stamps[index] = stamp
    for repair in (None, "sort", "split"):
        with pytest.raises(SourceError) as caught:
            toy(one_stream(stamps, parts), repair=repair)
        assert f"FILE: stream 'imu': row {index} is at {stamp_text} ns, which is no time" in str(caught.value)
        assert f"{stamp_text} in 1 rows" in str(caught.value) and "repair='drop'" in str(caught.value)
    episodes, report = ingest_rows(toy, tmp_path, stamps, parts, repair="drop")
    other_rows = [row for row in range(6) if row != index]
    assert episodes == [([stamps[row] for row in other_rows], other_rows)]
    assert (report.repaired["imu"]["rows_dropped"], report.repaired["imu"]["stamps_unset"]) == (1, 1)


@pytest.mark.parametrize("stamps", [[0, 10, 20], [-1, 0, 1], [0, 0, 0], [0], [-5, -1, 0]])
def test_zero_is_a_stamp_if_the_others_are_near(stamps, toy, tmp_path):
    for parts in (1, len(stamps)):
        assert ingest_rows(toy, tmp_path, stamps, parts)[0] == [(stamps, list(range(len(stamps))))]


# ---- every kind of stream ----


def test_all_kinds_of_rows_are_dropped_and_sorted():
    """Ragged rows, texts and frames, encoded or raw, are compared with rows that numpy picks."""
    rng = np.random.default_rng(3)
    times = np.array([5, 3, 9, 1, 7], np.int64)
    images = rng.integers(0, 255, (5, 8, 8, 3), dtype=np.uint8)
    lengths = np.array([2, 0, 3, 1, 4])
    points = rng.normal(size=(lengths.sum(), 3))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    encoded = robocache.frames.encode(images, "png")
    files = [encoded.data[a:b].tobytes() for a, b in zip(encoded.offsets, encoded.offsets[1:], strict=False)]
    kinds = {
        "ragged": lambda rows: Ragged(times[rows], np.concatenate([points[offsets[r] : offsets[r + 1]] for r in rows]),
                                      np.concatenate([[0], np.cumsum(lengths[rows])])),
        "text": lambda rows: Texts(times[rows], [f"row {row}" for row in rows]),
        "array": lambda rows: Frames([(times[rows], images[rows])], codec="png"),
        "files": lambda rows: Frames([(times[rows], [files[row] for row in rows])]),
        "encoded": lambda rows: Frames([(times[rows], robocache.frames.encode(images[rows], "png"))]),
        "raw": lambda rows: Frames([(times[rows], robocache.frames.encode(images[rows], "raw"))]),
    }  # fmt: skip

    def content(samples):
        if isinstance(samples, Texts):
            return list(samples.texts)
        if isinstance(samples, Ragged):
            return [samples.values[a:b].tolist() for a, b in zip(samples.offsets, samples.offsets[1:], strict=False)]
        ((_, stored),) = samples.chunks
        if isinstance(stored, list):
            stored = robocache.frames.take(stored)
        if isinstance(stored, np.ndarray):
            return stored.tolist()
        count = len(clocks.stamps(samples))
        return robocache.frames.decode(
            stored.codec, stored.data, stored.offsets, stored.shape, stored.dtype, range(count)
        ).tolist()

    for name, make_samples in kinds.items():
        all_rows = content(make_samples(np.arange(5)))
        for repair, expected in {"sort": [3, 1, 0, 4, 2], "drop": [0, 2]}.items():
            order = clocks.Order(repair)
            parts = [
                samples for rows in ([0, 1], [2, 3, 4]) for _, samples in order.take(name, make_samples(np.array(rows)))
            ]
            parts += [samples for _, _, samples in order.end()]
            assert [stamp for part in parts for stamp in clocks.stamps(part).tolist()] == times[expected].tolist(), (
                name,
                repair,
            )
            assert [row for part in parts for row in content(part)] == [all_rows[row] for row in expected], (
                name,
                repair,
            )


def test_frames_are_sorted_as_files(toy, tmp_path):
    levels = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.full((5, 6, 8, 1), 40, np.uint8)
    stamps = np.array([3, 1, 4, 0, 2], np.int64)

    def read(options, notes):
        chunks = ((stamps[rows], levels[rows]) for rows in ([0, 1], [2, 3, 4]))
        yield Recording("one", "FILE", {}, [("cam", Frames(chunks, codec="png"))])

    with pytest.raises(SourceError, match="stream 'cam': row 1 is at 1 ns"):
        toy(read)
    report = toy(read, repair="sort")
    stream = robocache.open(tmp_path / "cache").streams["cam"]
    assert stream.time_ns.tolist() == [0, 1, 2, 3, 4]
    assert stream.values[:][:, 0, 0, 0].tolist() == [120, 40, 160, 0, 80]
    assert report.repaired == {"cam": {"backward_steps": 2, "rows_moved": 4}}


def test_more_rows_than_memory_holds_are_refused(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(clocks, "HELD_BYTES", 1 << 20)
    stamps = list(range(200_000))
    with pytest.raises(SourceError, match=r"^FILE: stream 'imu': more than 1 MiB of the recording .* repair='sort'"):
        toy(one_stream(stamps), repair="sort")
    assert toy(one_stream(stamps), repair="drop").rows == {"imu": 200_000}


# ---- offsets ----


@settings(max_examples=20)
@given(seconds=st.decimals(-(10**9), 10**9, places=9))
def test_an_offset_is_exact(seconds):
    ns = int(seconds * 10**9)
    assert clocks.offset_ns("imu", seconds) == clocks.offset_ns("imu", str(seconds)) == ns


def test_offsets_move_a_stream_s_clock(toy, tmp_path):
    def read(options, notes):
        streams = [("imu", Rows(NOW + np.arange(3), np.zeros(3))), ("arm", Rows(NOW + np.arange(3), np.zeros(3)))]
        yield Recording("one", "FILE", {}, streams)

    toy(read, offsets={"imu": 0.1})
    dataset = robocache.open(tmp_path / "cache")
    assert dataset.streams["imu"].time_ns.tolist() == (NOW + 100_000_000 + np.arange(3)).tolist()
    assert dataset.streams["arm"].time_ns.tolist() == (NOW + np.arange(3)).tolist()
    assert dataset.provenance["offsets_ns"] == {"imu": 100_000_000}
    assert dataset.streams["imu"].attributes == {"offset_ns": 100_000_000}
    with pytest.raises(robocache.ArgumentError, match="no stream 'leg' among 'imu', 'arm'"):
        toy(read, offsets={"leg": 1}, overwrite=True)
    with pytest.raises(SourceError, match="leads out of int64"):
        toy(read, offsets={"arm": 8_000_000_000}, overwrite=True)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"repair": "fix"}, robocache.ArgumentError, "repair: expected one of sort, drop, split or None, got 'fix'"),
        ({"offsets": {"imu": "soon"}}, robocache.ArgumentError, "offsets['imu']: expected seconds"),
        ({"offsets": {"imu": Decimal("1e-10")}}, robocache.ArgumentError, "whole nanoseconds"),
        ({"offsets": {"imu": float("nan")}}, robocache.ArgumentError, "offsets['imu']"),
        ({"offsets": {"imu": True}}, robocache.ArgumentTypeError, "offsets['imu']: expected seconds, got True"),
        ({"offsets": ["imu"]}, robocache.ArgumentTypeError, "offsets: expected {stream: seconds}"),
    ],
)
def test_arguments_are_checked(arguments, error, message, toy):
    with pytest.raises(error) as caught:
        toy(one_stream([1]), **arguments)
    assert message in str(caught.value)


def test_a_shuffled_real_log_is_sorted(real_data, tmp_path):
    log = next(Path(real_data("logs_csv/euroc_micro")).rglob("imu0/data.csv"))
    header, *lines = log.read_text().splitlines()
    (tmp_path / "log").mkdir()
    (tmp_path / "log/imu.csv").write_text("\n".join([header, *lines]) + "\n")
    (tmp_path / "mixed").mkdir()
    shuffled = np.random.default_rng(0).permutation(len(lines))
    (tmp_path / "mixed/imu.csv").write_text("\n".join([header, *(lines[i] for i in shuffled)]) + "\n")
    robocache.ingest(tmp_path / "log", tmp_path / "a", time_unit="ns")
    robocache.ingest(tmp_path / "mixed", tmp_path / "b", time_unit="ns", repair="sort")
    a, b = (robocache.open(tmp_path / cache).streams["imu"] for cache in "ab")
    assert np.array_equal(a.time_ns, b.time_ns) and np.array_equal(a.values, b.values)


def test_shared_nominal_stamps_are_read_only():
    stamps = nominal_time_ns(0, 3, 50.0)
    assert stamps.tolist() == [0, 20_000_000, 40_000_000]
    with pytest.raises(ValueError, match="read-only"):
        stamps += 1
