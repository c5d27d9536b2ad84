"""CSV logs become caches with exact stamps and numbers."""

import contextlib
import csv
import math
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import assert_refused, assert_skipped, reasons
from robocache.ingest import preview

import robocache


def write_lines(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def ingest_csv(tmp_path, *lines, stream="imu", **options):
    """Ingests a log of these lines; returns (cache, report)."""
    source = write_lines(tmp_path / f"log/{stream}.csv", *lines)
    report = robocache.ingest(source.parent, tmp_path / "cache", overwrite=True, **options)
    return robocache.open(tmp_path / "cache"), report


def ingest_lines(tmp_path, *lines, **options):
    """Ingests a log of these lines; returns (time_ns as a list, values)."""
    time_ns, values = ingest_csv(tmp_path, *lines, **options)[0].episode(0)["imu"]
    return time_ns.tolist(), np.asarray(values)


def refuse_csv(tmp_path, lines, *message_part, stream="imu", **options):
    """Asserts that a log of these lines is refused with these words and the file's name; returns the error."""
    source = write_lines(tmp_path / f"log/{stream}.csv", *lines)
    return assert_refused(source.parent, tmp_path / "cache", f"{stream}.csv", *message_part, **options)


def read_unit(cache):
    (stream,) = robocache.open(cache).provenance["csv"]["streams"].values()
    return stream["time_unit"]


# ---- layout ----


def test_folders_are_episodes_and_files_are_streams(tmp_path):
    for number in (10, 2):
        write_lines(tmp_path / f"logs/run_{number}/imu.csv", f"0.0,{number}", "0.5,7")
    write_lines(tmp_path / "logs/run_2/joint.csv", "t,a,b", "0.25,1,2")
    write_lines(tmp_path / "logs/run_2/notes.txt", "x")
    write_lines(tmp_path / "logs/run_2/.hidden.csv", "x")
    report = robocache.ingest(tmp_path / "logs", tmp_path / "cache")
    dataset = robocache.open(tmp_path / "cache")
    assert (report.format, report.episodes, report.rows) == ("csv", 2, {"imu": 4, "joint": 1})
    assert dataset.episodes["name"].to_pylist() == ["run_2", "run_10"]
    assert dataset.episode(0)["imu"][1].tolist() == [[2.0], [7.0]]
    assert dataset.episode(1)["imu"][1].tolist() == [[10.0], [7.0]]
    assert len(dataset.episode(1)["joint"][0]) == 0
    assert list(dataset.streams["joint"].names) == ["a", "b"]
    assert not dataset.streams["imu"].names
    assert {stream.clock for stream in dataset.streams.values()} == {"recorded"}
    assert ("*.txt", "not CSV: 1 file") in [(omission.what, omission.reason) for omission in report.left_out]


def test_folders_that_sort_alike_stay_separate(tmp_path):
    for name in ("run_1", "run_01", "run_²"):
        for stream in ("a", "b"):
            write_lines(tmp_path / f"logs/{name}/{stream}.csv", "0.0,1", "0.5,2")
    report = robocache.ingest(tmp_path / "logs", tmp_path / "cache")
    assert (report.episodes, report.rows) == (3, {"a": 6, "b": 6})


def test_two_files_of_one_stream_are_refused_or_skipped(tmp_path):
    """The second file's rows are later; they must not extend the first file's stream."""
    for suffix, first in ((".csv", 0), (".tsv", 10)):
        separator = "," if suffix == ".csv" else "\t"
        write_lines(tmp_path / f"logs/imu{suffix}", *(f"{first + k / 10}{separator}{k}" for k in range(4)))
    assert_refused(tmp_path / "logs", tmp_path / "cache", "imu.tsv", "the name of imu.csv's", time_unit="s")
    report = robocache.ingest(tmp_path / "logs", tmp_path / "cache", time_unit="s", on_error="skip")
    assert report.rows == {"imu": 4} and len(report.skipped) == 1


def test_the_source_may_be_an_episode_or_a_file(tmp_path):
    file = write_lines(tmp_path / "run/imu.csv", "0.0,1", "0.5,2")
    for source in (file.parent, file):
        assert robocache.ingest(source, tmp_path / "cache", overwrite=True).rows == {"imu": 2}
        assert robocache.open(tmp_path / "cache").episodes["name"].to_pylist() == [source.name]


@pytest.mark.parametrize("header", ["time [\u03bcs]", "time [\u00b5s]", "t_\u03bcsec", "time (\u00b5sec)"])
def test_both_micro_signs(tmp_path, header):
    time_ns, _ = ingest_lines(tmp_path, f"{header},x", "0,1", "10000,2", "20000,3")
    assert time_ns == [0, 10_000_000, 20_000_000]


@pytest.mark.parametrize(
    "header", ["time [min]", "t_hours", "time_h", "t (days)", "time_100ns", "time [10us]", "time_ps", "ticks"]
)
def test_a_clock_in_another_unit_needs_the_option(tmp_path, header):
    lines = [f"{header},x", "0.00,1", "0.01,2", "0.02,3"]
    refuse_csv(tmp_path, lines, repr(header), "--time-unit")
    assert ingest_lines(tmp_path, *lines, time_unit="s")[0] == [0, 10_000_000, 20_000_000]


@pytest.mark.parametrize(("unit", "factor"), [("ms", 10**6), ("[us]", 10**3), ("s", 10**9)])
def test_a_line_of_units_below_the_header(tmp_path, unit, factor):
    """The numbers alone do not show the unit: steps of 1100 look like microseconds."""
    dataset, report = ingest_csv(tmp_path, "time,x,y", f"{unit},m,", "100,3,4", "1200,5,6", "2300,7,8")
    stream = dataset["imu"]
    assert stream.time_ns.tolist() == [100 * factor, 1200 * factor, 2300 * factor]
    assert stream.values.tolist() == [[3, 4], [5, 6], [7, 8]]
    assert not report.left_out and stream.attributes["units"] == ["m", ""]


def test_a_line_of_other_units_in_a_later_file_is_refused(tmp_path):
    for name, unit in (("a", "rad"), ("b", "deg")):
        write_lines(tmp_path / "logs" / name / "imu.csv", "time,x", f"s,{unit}", "0.0,1", "0.1,2")
    with pytest.raises(robocache.Error, match=r"deg.*rad"):
        robocache.ingest(tmp_path / "logs", tmp_path / "cache")


def test_unknown_units_of_a_clock_are_refused(tmp_path):
    refuse_csv(tmp_path, ["time,x", "min,m", "0.00,1", "0.01,2"], "'min'", "--time-unit")


# ---- stamps ----


@settings(max_examples=30)
@given(stamps=st.lists(st.integers(-(2**61), 2**59), min_size=1, max_size=100))
def test_nanoseconds_are_exact(stamps, tmp_path):
    stamps.sort()
    assert ingest_lines(tmp_path, *(f"{t},1" for t in stamps), time_unit="ns")[0] == stamps


@settings(max_examples=30)
@given(
    stamps=st.lists(st.decimals(-2 * 10**9, 9 * 10**8, allow_nan=False, places=None), min_size=1, max_size=100),
    unit=st.sampled_from(["s", "ms", "us", "ns"]),
)
def test_decimal_stamps_are_rounded_once(stamps, unit, tmp_path):
    stamps.sort()
    scale = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
    expected = [round(Fraction(t) * scale) for t in stamps]
    assert ingest_lines(tmp_path, *(f"{t},1" for t in stamps), time_unit=unit)[0] == expected


@pytest.mark.parametrize("cell", ["1." + "0" * 42, "0" * 42 + "1", "1000000000e-9", "+1.0", "1.000000000", "1."])
@pytest.mark.parametrize(("unit", "ns"), [("s", 10**9), ("ms", 10**6), ("us", 1000), ("ns", 1)])
def test_numbers_in_any_notation(unit, ns, cell, tmp_path):
    assert ingest_lines(tmp_path, f"{cell},1", "2,1", time_unit=unit)[0] == [ns, 2 * ns]


def test_a_time_just_beyond_int64_is_refused(tmp_path):
    refuse_csv(tmp_path, ["1,1", "9500000000000000000,1"], "does not fit int64", time_unit="ns")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse_csv(tmp_path, ["1e300,1", "2e300,2"], "a time of 2e+300 s does not fit int64", time_unit="s")


def test_a_fraction_of_a_nanosecond_is_rounded_half_to_even(tmp_path):
    cells = ["2.7428249467277521923e-49", "14e-39", "0.5", "1.5", "2.51", "9007199254740993.5"]
    times = ingest_lines(tmp_path, *(f"{cell},1" for cell in cells), time_unit="ns")[0]
    assert times == [0, 0, 0, 2, 3, 9007199254740994]


@pytest.mark.parametrize(
    ("header", "stamps", "unit", "first_ns"),
    [
        (None, ["1764964007921042763", "1764964007923069782"], "ns", 1764964007921042763),
        (None, ["1764964007921042", "1764964007923069"], "us", 1764964007921042000),
        (None, ["1764964007921", "1764964007923"], "ms", 1764964007921000000),
        (None, ["1764964007", "1764964008"], "s", 1764964007000000000),
        (None, ["1764964007.921042763", "1764964007.923"], "s", 1764964007921042763),
        (None, ["1764964007921.042763", "1764964007923.1"], "ms", 1764964007921042763),
        (None, ["1.764964007921042763e+18", "1.764964007923e+18"], "ns", 1764964007921042763),
        (None, ["1764964007.5"], "s", 1764964007500000000),
        (None, ["0.0", "0.005", "0.01"], "s", 0),
        (None, ["5.000000000000000104e-03", "1.000000000000000021e-02"], "s", 5_000_000),
        (None, ["117735250000", "117737750000"], "ns", 117735250000),
        (None, ["0", "33333", "66666"], "us", 0),
        (None, ["2400000000", "2400005000"], "us", 2_400_000_000_000),  # 40 minutes of uptime, not the year 2046
        ("timestamp [ns]", ["5", "6"], "ns", 5),
        ("#timestamp [ns]", ["5", "6"], "ns", 5),
        ("t_rel_s", ["5", "6"], "s", 5_000_000_000),
        ("Time (msec)", ["5", "6"], "ms", 5_000_000),
        ("stamp_us", ["5000", "6000"], "us", 5_000_000),
        ("timeMs", ["5.0", "10.0"], "ms", 5_000_000),
        ("TimeMS", ["1000", "2000"], "ms", 1_000_000_000),
        ("elapsedMs", ["1000", "2000"], "ms", 1_000_000_000),
        ("TimeUS", ["1000000", "2000000"], "us", 1_000_000_000),
        ("timeSec", ["3", "4"], "s", 3_000_000_000),
        ("hostTimeNanos", ["1000000", "2000000"], "ns", 1_000_000),
        ("timestampNs", ["500000.0", "1000000.0"], "ns", 500_000),
        ("millis()", ["5000", "5020"], "ms", 5_000_000_000),
        ("ms_since_boot", ["5000.5", "6000.5"], "ms", 5_000_500_000),
        ("Time_ms_", ["1000", "2000"], "ms", 1_000_000_000),
        ("microSecondsSinceBoot", ["1000", "2000"], "us", 1_000_000),
        ("bootTimeuS", ["1000", "2000"], "us", 1_000_000),
        ("timestampus", ["1000", "2000"], "us", 1_000_000),
        ("mstime", ["5.5", "15.5"], "ms", 5_500_000),
        ("TIMESTAMPMS", ["5.0", "15.0"], "ms", 5_000_000),
        ("Log Time(mSec)", ["5.25", "6.25"], "ms", 5_250_000),
        ("wallclock_sec_utc", ["1764964007", "1764964107"], "s", 1764964007000000000),  # since 1970, with long steps
        ("%time", ["117735250000", "117737750000"], "ns", 117735250000),
    ],
)
def test_the_unit_of_the_clock_is_found(header, stamps, unit, first_ns, tmp_path):
    lines = [f"{header},x"] if header else []
    time_ns, values = ingest_lines(tmp_path, *lines, *(f"{t},{row}" for row, t in enumerate(stamps)))
    assert read_unit(tmp_path / "cache") == unit
    assert time_ns[0] == first_ns
    assert values.tolist() == [[row] for row in range(len(stamps))]


@pytest.mark.parametrize(
    "stamps",
    [
        ["0", "1", "2"],  # seconds or milliseconds
        ["0", "33", "66"],
        ["0.0", "33.3", "66.7"],
        ["0.0", "1.0", "2.0"],
        ["0.000000e+00", "5.000000e+00", "1.000000e+01"],
        ["739000.00000012", "739000.00000024", "739000.00000036"],  # days of MATLAB's datenum at 100 Hz
        ["45123.5", "45123.500001157", "45123.500002315"],  # days of Excel at 10 Hz
        ["0.0", "0.00001157", "0.00002315"],  # days since the first row, at 1 Hz
        ["5"],
        ["1700000000000000", "1700000005000000"],  # microseconds since 1970, or nanoseconds of uptime
    ],
)
def test_an_ambiguous_unit_is_refused(stamps, tmp_path):
    lines = [f"{t},1" for t in stamps]
    refuse_csv(tmp_path, lines, "time_unit", "days")
    assert ingest_lines(tmp_path, *lines, time_unit="us")[0] == [round(Fraction(t) * 1000) for t in stamps]


@pytest.mark.parametrize(
    ("header", "stamps", "message_part"),
    [
        ("timeSec", ["0", "1000", "2000"], "names s, but in steps of 1000 s"),
        ("time_s", ["0", "20", "40"], "names s"),
        ("timeMs", ["0.0", "0.005", "0.01"], "names ms"),
        ("tNs", ["0", "5000", "10000"], "2e+05 rows a second"),
        ("time_us_ms", ["0", "1000", "2000"], "several units: us, ms"),
        ("elapsedMinutes", ["0.0", "0.01", "0.02"], "is in 'minutes'"),
        ("timeMin", ["0.0", "0.01", "0.02"], "is in 'min'"),
        ("Ticks since boot", ["0", "1000", "2000"], "is in 'ticks'"),
    ],
)
def test_a_unit_in_a_name_that_contradicts_the_steps_is_refused(header, stamps, message_part, tmp_path):
    lines = [f"{header},x", *(f"{t},1" for t in stamps)]
    refuse_csv(tmp_path, lines, header, message_part, "time_unit")
    assert ingest_lines(tmp_path, *lines, time_unit="ms")[0] == [round(Fraction(t) * 10**6) for t in stamps]


@pytest.mark.parametrize(
    ("header", "stamps", "expected"),
    [
        ("timeMs", ["0", "20", "40"], [("clock 'timeMs'", "milliseconds, by its name")]),
        ("t", ["0.0", "0.005", "0.01"], [("clock 't'", "seconds, by its steps of 0.005")]),
        ("t", ["0", "2000", "4000"], [("clock 't'", "microseconds, by its steps of 2000")]),
        (None, ["0.0", "0.005", "0.01"], [("clock 'column 0'", "seconds, by its steps of 0.005")]),
        ("t [ms]", ["0", "20", "40"], []),
        ("t", ["2024-05-31T13:45:00Z", "2024-05-31T13:45:01Z"], []),
        ("t", ["2024-05-31T13:45:00", "2024-05-31T13:45:01"], [("clock 't'", "UTC, since it says no zone")]),
    ],
)
def test_assumptions_about_a_clock_are_noted(header, stamps, expected, tmp_path):
    lines = [f"{header},x"] if header else []
    _, report = ingest_csv(tmp_path, *lines, *(f"{t},1" for t in stamps))
    assert [(note.what, note.reason, note.streams) for note in report.assumed] == [
        (*pair, ["imu"]) for pair in expected
    ]


@pytest.mark.parametrize("header", ["t,zone", "time,Time Zone", "t,utc_offset", "time (UTC+2),x", "local_time,x"])
def test_a_zone_that_another_column_may_declare_is_noted(header, tmp_path):
    _, report = ingest_csv(tmp_path, f"{header},y", *(f"2024-05-31T13:45:0{k},2,1" for k in range(4)))
    (reason,) = [note.reason for note in report.assumed if note.what.startswith("clock")]
    assert reason.startswith("UTC, though ") and "may say another zone" in reason and "no zone" not in reason


ISO_NS = 1_704_067_200_123_456_789  # 2024-01-01T00:00:00.123456789Z


@pytest.mark.parametrize(
    ("first", "second", "ns"),
    [
        ("2024-01-01T00:00:00.123456789Z", "2024-01-01T00:00:01Z", ISO_NS),
        ("2024-01-01T02:00:00.123456789+02:00", "2024-01-01T00:00:01Z", ISO_NS),
        ("2023-12-31 18:30:00.123456789-0530", "2024-01-01 00:00:01+00", ISO_NS),
        ("2024-01-01T00:00:00.123456789", "2024-01-01T00:00:01", ISO_NS),
        (" 2024-01-01 00:00:00.1234567", "2024-01-01 00:01", ISO_NS - 89),
        ('"2024-01-01 00:00:00,123"', '"2024-01-01 00:01:00,5"', ISO_NS - 456_789),
        ("1677-09-21T00:12:44", "2262-04-11T23:47:16.854775806", -9_223_372_036 * 10**9),
    ],
)
@pytest.mark.parametrize("header", [True, False])
def test_stamps_in_iso_8601_are_exact(first, second, ns, header, tmp_path):
    dataset, _ = ingest_csv(tmp_path, *["t,a"] * header, f"{first},1", f"{second},2")
    stream = dataset["imu"]
    assert stream.time_ns[0] == ns and stream.values.tolist() == [[1], [2]]
    has_zone = first.strip('"')[-6:].strip()[0] in "+-" or first.endswith(("Z", "0530"))
    form = "ISO 8601" if has_zone else "ISO 8601 without a zone, read as UTC"
    assert read_unit(tmp_path / "cache") == form
    assert stream.attributes == {"clock_source": f"{'t' if header else 'column 0'}, {form}"}


@pytest.mark.parametrize(
    ("cells", "message_part"),
    [
        (["2024-01-01T00:00:00", "2024-01-01T00:00:01Z"], ["line 3", "without a zone", "01Z"]),
        (["2024-01-01T00:00:00Z", "2024-01-01T00:00:01"], ["line 3", "with a zone"]),
        (["2024-01-01T00:00:00", "2024-02-30T00:00:00"], ["line 3", "2024-02-30"]),
        (["2024-01-01T00:00:00", "2262-04-11T23:47:16.854775808"], ["line 3", "the years 1678 to 2261", "2262"]),
        (["1600-01-01T00:00:00", "2024-01-01T00:00:00"], ["line 2", "the years 1678 to 2261", "1600"]),
        (["2024-01-01T00:00:00", "2016-12-31T23:59:60"], ["line 3", "no leap second", "59:60"]),
        (["2024-01-01T00:00:00Z", "2016-12-31T24:00:00Z"], ["line 3", "no 24:00", "24:00"]),
        (["2024-01-01T00:00:00Z", "2016-12-31T22:00:00-00:99"], ["line 3", "have", "-00:99"]),
        (["2024-01-01T00:00:00", "2024-01-01T00:00:00.0123456789"], ["line 3", "0123456789"]),
        (["2024-01-01T00:00:00", "5"], ["line 3", "'5'"]),
        (["5", "2024-01-01T00:00:00"], ["line 3", "2024", "all in ISO 8601"]),
        (["2024-01-01", "2024-01-02"], ["line 2", "2024-01-01", "ISO 8601", "next column"]),
        (["12:00:01.5", "12:00:02"], ["line 2", "12:00:01.5"]),
    ],
)
def test_stamps_of_mixed_iso_forms_are_refused(cells, message_part, tmp_path):
    refuse_csv(tmp_path, ["t,a", *(f"{cell},1" for cell in cells)], *message_part)


@pytest.mark.parametrize(
    ("lines", "ns"),
    [
        (["Date;Time;a", "2024-01-01;00:00:00,123456789;0.5", "2024-01-01;00:00:01;2"], ISO_NS),
        (["2024-01-01, 00:00:00 ,0.5", "2024-01-01,00:00:01,2"], ISO_NS - 123_456_789),
        (["date\ttime\ta", "2024-01-01\t02:00:00.123456789+02:00\t0.5", "2024-01-01\t00:00:01Z\t2"], ISO_NS),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_day_and_time_in_two_columns(lines, ns, suffix, tmp_path):
    source = write_lines(tmp_path / f"log/imu.{suffix}", *lines)
    robocache.ingest(source.parent, tmp_path / "cache")
    stream = robocache.open(tmp_path / "cache").streams["imu"]
    assert stream.time_ns.tolist() == [ns, 1_704_067_201_000_000_000]
    assert stream.values.tolist() == [[0.5], [2]]
    header = not lines[0][0].isdigit()
    assert stream.names == (["a"] if header else [])
    columns = " and ".join(lines[0].replace(";", "\t").split("\t")[:2]) if header else "column 0 and column 1"
    assert stream.attributes["clock_source"].startswith(f"{columns}, ISO 8601")


def test_an_invalid_time_after_a_day_is_named(tmp_path):
    refuse_csv(tmp_path, ["date,time,a", "2024-01-01,00:00:00,1", ",00:00:01,2"], "line 3", "'T00:00:01'")


@pytest.mark.parametrize("column", [2, "stamp", "%stamp"])
def test_the_clock_may_be_any_column(column, tmp_path):
    lines = ["a,b,stamp,c", "1,2,0.5,3", "4,5,0.75,6"]
    if column == "%stamp":
        lines = ["%stamp,a,b,c", "0.5,1,2,3", "0.75,4,5,6"]
    stream = ingest_csv(tmp_path, *lines, time_column=column)[0]["imu"]
    assert stream.time_ns.tolist() == [500_000_000, 750_000_000]
    assert stream.values.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert stream.names == ["a", "b", "c"]


def test_rows_out_of_order_are_named_or_sorted(tmp_path):
    lines = ["0.0,1", "0.5,2", "0.25,3", "0.5,4"]
    source = write_lines(tmp_path / "log/imu.csv", *lines).parent
    assert_refused(source, tmp_path / "cache", "log", "stream 'imu'", "2", "repair='sort'")
    time_ns, values = ingest_lines(tmp_path, *lines, repair="sort")
    assert time_ns == [0, 250_000_000, 500_000_000, 500_000_000]
    assert values.tolist() == [[1], [3], [2], [4]]


# ---- values ----


def test_empty_cells_and_nan_are_nan(tmp_path):
    _, values = ingest_lines(tmp_path, "t,a,b", "0.0,1,", "0.1,nan,2", "0.2,NaN,-inf", "0.3,,1e-3")
    np.testing.assert_array_equal(values, [[1, np.nan], [np.nan, 2], [np.nan, -np.inf], [np.nan, 1e-3]])


@pytest.mark.parametrize(
    "word", ["-", "--", "None", "?", "nil", "#DIV/0!", "null", "n/a", " - ", "none", "#VALUE!", "\\N"]
)
@pytest.mark.parametrize("is_late", [False, True])
def test_words_for_a_missing_value_are_nan_and_counted(word, is_late, tmp_path):
    """is_late: the words come after the first megabyte, by which pyarrow decides the types."""
    rows = 70_000 if is_late else 6
    cells = ["1.5"] * rows
    cells[-4] = cells[-2] = word
    flags = ["true"] * rows
    flags[-3] = word
    lines = [f"{row / 100},{cell},{flag},2.5" for row, (cell, flag) in enumerate(zip(cells, flags, strict=True))]
    assert (len("\n".join(lines)) > 2**20) == is_late
    dataset, report = ingest_csv(tmp_path, "time_s,x,flag,y", *lines)
    values = np.asarray(dataset["imu"].values)
    assert np.argwhere(np.isnan(values)).tolist() == [[rows - 4, 0], [rows - 3, 1], [rows - 2, 0]]
    assert (values[:, 2] == 2.5).all()
    column_reasons = {note.what: note.reason for note in report.assumed if note.what.startswith("column")}
    counts = {"column 'x'": 2, "column 'flag'": 1}
    is_named = word not in ("null", "n/a")  # pyarrow knows these words
    assert column_reasons == {
        what: f"NaN in {count} rows: {word.strip()!r} ({count})" for what, count in counts.items() if is_named
    }


def test_words_for_a_missing_value_are_texts_among_texts(tmp_path):
    lines = ["time_s,fault,sparse", "0.0,None,-", "0.1,None,-", "0.2,None,-", "0.3,None,7"]
    episode = ingest_csv(tmp_path, *lines)[0].episode(0)
    assert list(episode["imu.fault"][1]) == ["None"] * 4
    np.testing.assert_array_equal(episode["imu"][1], [[np.nan]] * 3 + [[7.0]])


def test_a_bad_cell_among_words_for_a_missing_value_is_named(tmp_path):
    refuse_csv(tmp_path, ["time_s,x", "0.0,1", "0.1,-", "0.2,3", "0.3,1.2.3", "0.4,3"], "1.2.3")


def test_large_integers_among_words_for_a_missing_value_are_refused(tmp_path):
    lines = [f"{row / 100},{cell}" for row, cell in enumerate(["1"] * 130_000 + ["-", "9007199254740993"])]
    refuse_csv(tmp_path, ["time_s,x", *lines], "9007199254740993")


@settings(max_examples=30)
@given(rows=st.lists(st.lists(st.floats(allow_nan=False, width=64), min_size=3, max_size=3), min_size=1, max_size=50))
def test_numbers_are_read_exactly(rows, tmp_path):
    lines = [",".join([str(row), *map(repr, cells)]) for row, cells in enumerate(rows)]
    np.testing.assert_array_equal(ingest_lines(tmp_path, *lines, time_unit="s")[1], rows)


def test_text_is_its_own_stream_and_unfit_numbers_are_left_out_by_name(tmp_path):
    lines = ["t,frame,ok,seq,a", f"0.0,base,True,{2**53 + 1},1", '0.1,"a, b",False,2,2', "0.2,,,,"]
    dataset, report = ingest_csv(tmp_path, *lines)
    streams = dataset.episode(0)
    assert dataset["imu"].names == ["ok", "a"]
    np.testing.assert_array_equal(streams["imu"][1], [[1, 1], [0, 2], [np.nan, np.nan]])
    assert streams["imu.frame"][0].tolist() == [0, 10**8]  # an empty cell is no text
    assert list(streams["imu.frame"][1]) == ["base", "a, b"]
    ((what, reason),) = reasons(report.left_out).items()
    assert what == "imu: seq" and "2^53" in reason


@pytest.mark.parametrize("filled_run", [0, 1, 2])
@pytest.mark.parametrize("workers", [None, 3])
def test_a_column_empty_in_one_file_has_the_type_of_other_files(filled_run, workers, tmp_path):
    for run in range(3):
        cells = f"grasp,{2**53 + 1},True" if run == filled_run else ",,"
        write_lines(tmp_path / f"logs/run_{run}/imu.csv", "t,a,note,seq,ok,none", f"0.0,{run},{cells},", "0.1,5,,,,")
    write_lines(tmp_path / "logs/run_3/imu.csv", "t,a,b", "0.0")  # its only row is too short: the file gives no types
    report = assert_skipped(tmp_path / "logs", tmp_path / "cache", "run_3/imu.csv", workers=workers)
    assert [(omission.what, "2^53" in omission.reason) for omission in report.left_out][:1] == [("imu: seq", True)]
    dataset = robocache.open(tmp_path / "cache")
    assert dataset.streams["imu"].names == ["a", "ok", "none"]
    for run in range(3):
        rows = dataset.episode(run)
        assert list(rows["imu.note"][1]) == (["grasp"] if run == filled_run else [])
        ok = 1.0 if run == filled_run else np.nan
        np.testing.assert_array_equal(rows["imu"][1], [[run, ok, np.nan], [5, np.nan, np.nan]])


@pytest.mark.parametrize(("cell", "values"), [("grasp", []), ("0.25", [[0.25]]), ("true", [[1.0]])])
def test_a_column_that_begins_after_the_first_megabyte(cell, values, tmp_path):
    lines = ["t,event", *(f"{row}.000000000," for row in range(70_000)), f"70000.5,{cell}"]
    assert len("\n".join(lines)) > 2**20
    streams = ingest_csv(tmp_path, *lines)[0].episode(0)
    if values:
        assert streams["imu"][1][70_000:].tolist() == values and np.isnan(streams["imu"][1][:70_000]).all()
    else:
        assert list(streams) == ["imu.event"] and list(streams["imu.event"][1]) == [cell]
        assert streams["imu.event"][0].tolist() == [70_000_500_000_000]


@pytest.mark.parametrize("cell", ["2024-01-0{}", "12:00:0{}", "2024-01-01 12:00:0{}"])
def test_dates_are_text(cell, tmp_path):
    cells = [cell.format(row) for row in range(3)]
    dataset, _ = ingest_csv(tmp_path, "t,a,day", *(f"0.{row},{row},{cell}" for row, cell in enumerate(cells)))
    assert list(dataset.episode(0)["imu.day"][1]) == cells


def test_text_columns_of_equal_names_are_numbered(tmp_path):
    streams = ingest_csv(tmp_path, "t,a,a,2", "0.0,u,v,w")[0].episode(0)
    assert {name: streams[name][1][0] for name in streams} == {"imu.1": "u", "imu.2": "v", "imu.3": "w"}


def test_invalid_utf_8_is_refused_by_name(tmp_path):
    write_lines(tmp_path / "log/imu.csv", "t,a,note", "0.0,1,b")
    with (tmp_path / "log/imu.csv").open("ab") as file:
        file.write(b"0.1,2,\xe9\n")
    assert_refused(tmp_path / "log", tmp_path / "cache", "imu.csv: In CSV column #2", "invalid UTF8")


@pytest.mark.parametrize(
    "cell", [str(2**53 + 1), f"-{2**60 + 1}", "123456789012345678901", f" {2**53 + 3} ", "9" * 400]
)
def test_unfit_integers_after_the_first_megabyte_are_refused(cell, tmp_path):
    rows = [f"{row}.5,{row},0.25" for row in range(65_000)]
    lines = ["t,count,x", *rows, "", f"65000.5,{cell},1.5", "65001.5,NA,2"]
    assert len("\n".join(lines)) > 2**20
    refuse_csv(tmp_path, lines, "imu.csv: line 65002: column count", "2^53", cell.strip())
    write_lines(tmp_path / "log/good.csv", "0.0,1", "0.1,2")
    assert_skipped(tmp_path / "log", tmp_path / "cache", "imu.csv")


@pytest.mark.parametrize("cells", [[str(2**53), str(2**60)], [f"{1e300:.0f}"], ["0.5", str(2**53 + 1)], ["-inf", "7"]])
def test_large_numbers_that_float64_holds_are_accepted(cells, tmp_path):
    rows = [*range(90_000), *cells]
    lines = ["t,a", *(f"{number}.5,{cell}" for number, cell in enumerate(rows))]
    assert len("\n".join(lines)) > 2**20
    assert ingest_lines(tmp_path, *lines)[1][90_000:, 0].tolist() == [float(cell) for cell in cells]


def test_a_file_without_numbers_is_text_or_left_out(tmp_path):
    write_lines(tmp_path / "log/imu.csv", "0.0,1", "0.1,2")
    write_lines(tmp_path / "log/cam.csv", "0.0,a.png", "0.1,b.png")
    write_lines(tmp_path / "log/none.csv", "0.0", "0.1")
    report = robocache.ingest(tmp_path / "log", tmp_path / "cache")
    assert report.rows == {"imu": 2, "cam.1": 2}
    assert list(robocache.open(tmp_path / "cache").episode(0)["cam.1"][1]) == ["a.png", "b.png"]
    assert [(omission.what, omission.reason) for omission in report.left_out] == [
        ("none", "no column beside the clock")
    ]


def test_a_column_that_names_images_beside_the_file_is_a_camera(tmp_path):
    """Rows are sorted with their images; a missing image is skipped by name."""
    write_lines(tmp_path / "log/cam.csv", "t [s],gain,file", "0.2,2,c.png", "0.0,0,a.png", "0.1,1,b.png", "0.3,3,d.png")
    (tmp_path / "log/cam").mkdir()
    for level, name in enumerate("abc"):
        picture = np.full((1, 4, 6, 1), 60 * level, np.uint8)
        (tmp_path / f"log/cam/{name}.png").write_bytes(robocache.frames.encode(picture, codec="png").data.tobytes())
    assert_refused(tmp_path / "log", tmp_path / "cache", "stream 'cam'")
    assert_refused(tmp_path / "log", tmp_path / "cache", "d.png: No such file", repair="sort")
    report = assert_skipped(tmp_path / "log", tmp_path / "cache", "cam.csv: cam.file: rows 3", repair="sort")
    assert (report.rows, report.left_out) == ({"cam": 4, "cam.file": 3}, [])
    stream = robocache.open(tmp_path / "cache").streams["cam.file"]
    assert stream.time_ns.tolist() == [0, 100_000_000, 200_000_000]
    assert (stream.frames.codec, stream.frames.color_space, stream.clock) == ("png", "gray", "recorded")
    assert stream.values[:][:, 0, 0, 0].tolist() == [0, 60, 120]


@pytest.mark.parametrize(
    ("lines", "values"),
    [
        (["t,a,a", "0.0,1,2", "0.1,3,4"], [[1, 2], [3, 4]]),  # two columns of one name
        (["\ufefft,a\r", "0.0,1\r", "0.1,3\r"], [[1], [3]]),  # a byte order mark, and lines that end in CRLF
    ],
)
def test_odd_headers_and_lines_are_read(lines, values, tmp_path):
    assert ingest_lines(tmp_path, *lines)[1].tolist() == values


# ---- separators and comments ----


@pytest.mark.parametrize("separator", [";", "\t", ","])
@pytest.mark.parametrize("header", ["t|a|note", '"t"|"a (x;y)"|note', "#t|a|note", None])
def test_the_separator_is_found_and_noted(separator, header, tmp_path):
    texts = ["go", "stop; now" if separator == "," else "stop, now"]
    lines = ([] if header is None else [header]) + [f"0.0|1|{texts[0]}", f"0.5|2|{texts[1]}"]
    dataset, _ = ingest_csv(tmp_path, *(line.replace("|", separator) for line in lines))
    stream = dataset["imu"]
    assert (stream.time_ns.tolist(), stream.values.tolist()) == ([0, 500_000_000], [[1], [2]])
    assert list(dataset.episode(0)[f"imu.{'note' if header else 2}"][1]) == texts
    assert f'# clock_source: "{"t" if header else "column 0"}, s"' in preview(tmp_path / "log").mapping


def test_each_file_has_its_own_separator(tmp_path):
    for run, separator in enumerate(",;\t"):
        write_lines(
            tmp_path / f"logs/run{run}/imu.csv", *(f"{row}|{run}".replace("|", separator) for row in ("0.0", "0.5"))
        )
    robocache.ingest(tmp_path / "logs", tmp_path / "cache")
    assert robocache.open(tmp_path / "cache").streams["imu"].values.tolist() == [[0], [0], [1], [1], [2], [2]]


@pytest.mark.parametrize(
    "lines",
    [
        ["t;a", "0,0;1", "0,5;2"],
        ["0,5;1,2;3", "0,75;1,5;4"],
        ["0,5;1,2", "0,75;1,5"],
        ["t;a", "0;1", "1;1.234,5"],
        ["Zeit;Ort (x,y)", "0;1,5", "1;2,5"],
        ["t\ta", "0.0\t1,5", "0.5\t2"],
        ["t;a", *(f"{row};" for row in range(9)), "9;-,5"],
        ["t,a,b", '0,"0,5",1', '1,"1,25",2'],
        ["t,a,b", '0,"1,234",1', '1,"12,345",2'],
        ['"t","a"', '"0,0","0,5"', '"0,1","1,5"'],
    ],
)
def test_decimal_commas_are_refused_by_name(lines, tmp_path):
    message = str(refuse_csv(tmp_path, lines, time_unit="s"))
    assert "decimal point" in message or "a decimal number" in message


@pytest.mark.parametrize("header", ["t,a", "#t,a", None])
@pytest.mark.parametrize(
    "comments", [["# a log"], ["# robot: arm; left", "#", '# it is "fast', "# x, y, z"], ["# a log", "", "# b"]]
)
def test_comments_before_the_header(comments, header, tmp_path):
    last = "# the last" if header is None else header
    dataset, report = ingest_csv(tmp_path, *comments, last, "0.25,1", "0.5,2")
    stream = dataset["imu"]
    assert (stream.time_ns.tolist(), stream.values.tolist()) == ([250_000_000, 500_000_000], [[1], [2]])
    assert stream.names == (["a"] if header else [])
    assert [omission.what for omission in report.left_out] == ["imu: comments"]
    assert "# left out: imu: comments" in preview(tmp_path / "log").mapping


@pytest.mark.parametrize(
    ("lines", "message_part"),
    [
        (["t,a", "0.0,1", "later,2"], ["line 6", "later"]),
        (["t,a", "0.0,1", "0.5,2,3"], ["Row #6"]),
        (["t,a", '0.0,"1', '0.5,"2"'], ["line 5", "quote"]),
        (["#t,a", "later,1", "0.5,2"], ["line 5", "later"]),  # "later,1" is a row, not a header after a comment
        ([], ["no rows"]),
    ],
)
def test_a_bad_cell_after_comments_is_named_by_its_line(lines, message_part, tmp_path):
    refuse_csv(tmp_path, ["# one", "# two", "# three", *lines], *message_part)


def test_an_empty_column_has_the_type_of_its_name(tmp_path):
    """Files may have the columns in another order, so the index does not decide."""
    write_lines(tmp_path / "logs/1/imu.csv", "t,a,note,x", "0.0,1,,2")
    write_lines(tmp_path / "logs/2/imu.csv", "t,note,a,x", "0.0,go,1,2")
    robocache.ingest(tmp_path / "logs", tmp_path / "cache", time_unit="s")
    dataset = robocache.open(tmp_path / "cache")
    assert dataset.streams["imu"].names == ["a", "x"]
    assert dataset.streams["imu"].values.tolist() == [[1, 2], [1, 2]]
    assert [list(dataset.episode(run)["imu.note"][1]) for run in range(2)] == [[], ["go"]]


# ---- unreadable files and rows ----


@pytest.mark.parametrize(
    ("lines", "message_part"),
    [
        ([], ["empty"]),
        (["t,a"], ["no rows"]),
        (["t,a", "0.0,1", "0.1,2,3", "0.2"], ["Row #3", "Expected 2 columns, got 3"]),
        (["0.0,1", "later,2", "later,3"], ["line 2", "later"]),
        (["1e30,1"], ["int64"]),
        (["version https://git-lfs.github.com/spec/v1", "oid sha256:41250ae0"], ["git lfs pull"]),
    ],
)
def test_a_file_that_cannot_be_read(lines, message_part, tmp_path):
    write_lines(tmp_path / "log/good.csv", "0.0,1", "0.1,2")
    refuse_csv(tmp_path, lines, *message_part, time_unit="s")
    report = assert_skipped(tmp_path / "log", tmp_path / "cache", "imu.csv", time_unit="s")
    assert report.rows == {"good": 2}


@pytest.mark.parametrize(
    ("bad", "message_part"),
    [
        ("0.3,2,3", ["Row #4", "Expected 2 columns, got 3"]),
        ("0.3", ["Row #4", "Expected 2 columns, got 1"]),
        (",2", ["line 4", "''"]),
        ("nan,2", ["line 4", "nan"]),
        ("later,2", ["line 4", "later"]),
        ("0.3,+", ["Row #4", "+"]),
        ("0.3,1.5e", ["Row #4", "1.5e"]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\n0.4,4\n0.5,5\n", ""])
def test_an_unreadable_row_is_left_out_by_its_line(end, bad, message_part, tmp_path):
    source = tmp_path / "log/imu.csv"
    source.parent.mkdir()
    source.write_text(f"t,a\n0.1,1\n0.2,2\n{bad}{end}")
    assert_refused(source, tmp_path / "cache", "imu.csv", *message_part, time_unit="s")
    assert_skipped(source, tmp_path / "cache", "imu.csv: line 4", time_unit="s")
    time_ns, values = robocache.open(tmp_path / "cache").episode(0)["imu"]
    rows = [1, 2, *([4, 5] if "5" in end else [])]
    assert (time_ns // 10**8).tolist() == rows and values[:, 0].tolist() == rows


def test_all_rows_after_unreadable_ones_are_kept(tmp_path):
    rows = [f"{row / 100},{row},{row}.5,go,true" for row in range(50_000)]
    rows[700], rows[30_000], rows[40_000] = "7.0,1", "300.0,x,1,go,true", "400.0,1,1,go,maybe"
    dataset, report = ingest_csv(tmp_path, "t,a,b,note,on", *rows, on_error="skip", time_unit="s")
    assert [omission.what for omission in report.skipped] == ["imu.csv: lines 702, 30002, 40002"]
    readable_rows = np.delete(np.arange(50_000), [700, 30_000, 40_000])
    np.testing.assert_array_equal(
        dataset["imu"].values, np.stack([readable_rows, readable_rows + 0.5, np.ones(len(readable_rows))], 1)
    )
    np.testing.assert_array_equal(dataset["imu"].time_ns, readable_rows * 10**7)


# ---- a file that was cut off ----


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_file_that_may_be_cut_off_is_noted(cut, tmp_path):
    """The file does not show whether its last number is complete."""
    text = "t,a\n0.1,1.25\n0.2,2.125\n0.3,3.5625\n"
    source = tmp_path / "log/imu.csv"
    source.parent.mkdir()
    source.write_text(text[:-cut])
    report = robocache.ingest(source, tmp_path / "cache", on_error="skip", time_unit="s")
    omissions = [omission for omission in (*report.left_out, *report.skipped) if "imu" in omission.what]
    assert "without a line end" in omissions[0].reason and "imu.csv" in omissions[0].reason
    values = robocache.open(tmp_path / "cache").episode(0)["imu"][1][:, 0]
    assert values[:2].tolist() == [1.25, 2.125]


def test_a_file_that_ends_with_a_line_end_is_complete(tmp_path):
    for end in ("\n", "\r\n"):
        source = tmp_path / "log/imu.csv"
        source.parent.mkdir(exist_ok=True)
        source.write_bytes(f"t,a{end}0.1,1{end}0.2,2{end}".encode())
        report = robocache.ingest(source, tmp_path / "cache", overwrite=True, time_unit="s")
        assert not report.left_out and not report.skipped


# ---- a stamp in two columns ----


@pytest.mark.parametrize(
    ("seconds", "fraction", "per_second"),
    [
        ("header.stamp.secs", "header.stamp.nsecs", 10**9),
        ("header.stamp.sec", "header.stamp.nanosec", 10**9),
        ("seconds", "nanoseconds", 10**9),
        ("%secs", "nsecs", 10**9),
        ("tv_sec", "tv_usec", 10**6),
        ("stampSec", "stampNsec", 10**9),
        ("headerStampSecs", "headerStampNanosecs", 10**9),
        ("bootTimeS", "bootTimeuS", 10**6),
        ("stamp [s]", "stamp [ms]", 10**3),
    ],
)
@pytest.mark.parametrize("is_swapped", [False, True])
def test_seconds_and_nanoseconds_in_two_columns_are_one_clock(is_swapped, seconds, fraction, per_second, tmp_path):
    stamps = [1_700_000_000 * per_second + k * per_second // 8 + k for k in range(30)]
    rows = [(stamp // per_second, stamp % per_second) for stamp in stamps]
    if is_swapped:
        rows = [(b, a) for a, b in rows]
        seconds, fraction = fraction, seconds.lstrip("%")
    lines = [f"{a},{b},{k}" for k, (a, b) in enumerate(rows)]
    time_ns, values = ingest_lines(tmp_path, f"{seconds},{fraction},x", *lines)
    assert time_ns == [stamp * (10**9 // per_second) for stamp in stamps]
    assert values.tolist() == [[k] for k in range(30)]
    assert "and" in robocache.open(tmp_path / "cache").streams["imu"].attributes["clock_source"]


@pytest.mark.parametrize("column", ["header.stamp.secs", "header.stamp.nsecs", 2])
def test_naming_one_column_finds_the_pair(column, tmp_path):
    lines = [f"{k},{1700000000 + k // 2},{k % 2 * 500000000}.0" for k in range(6)]
    header = "x,header.stamp.secs,header.stamp.nsecs"
    time_ns, _ = ingest_lines(tmp_path, header, *lines, time_column=column)
    assert np.diff(time_ns).tolist() == [500_000_000] * 5


def test_two_columns_of_complete_stamps_are_no_pair(tmp_path):
    for header, cells in (("t_s,t_ns,x", "{0},{1},1"), ("t_ns,t_s,x", "{1},{0},1")):
        lines = [cells.format(k / 10, k * 10**8) for k in range(6)]
        time_ns, values = ingest_lines(tmp_path, header, *lines)
        assert time_ns == [k * 10**8 for k in range(6)] and values.shape == (6, 2)


def test_integer_seconds_beside_a_complete_stamp_are_refused(tmp_path):
    rows = [f"{1700000000 + k // 10},{1700000000000000000 + k * 10**8},{k}" for k in range(30)]
    lines = ["secs,nsecs,x", *rows]
    refuse_csv(tmp_path, lines, "'secs' and 'nsecs'", "time_column")
    for column, steps in (("nsecs", {10**8}), ("secs", {0, 10**9})):
        assert {*np.diff(ingest_lines(tmp_path, *lines, time_column=column)[0])} == steps


@pytest.mark.parametrize("header", [None, "t,rest,x", "time,nsec,x"])
def test_a_pair_that_no_header_names_is_refused(header, tmp_path):
    lines = [f"{1700000000 + k // 10},{k % 10 * 100000000},{k}" for k in range(30)]
    lines = ([] if header is None else [header]) + lines
    refuse_csv(tmp_path, lines, "whole seconds that repeat", "time_unit")
    assert ingest_csv(tmp_path, *lines, time_unit="s")[1].rows == {"imu": 30}


def test_a_pair_with_an_invalid_row_is_refused_by_its_line(tmp_path):
    lines = [f"{k},5,{'x' * 100}" for k in range(20_000)]
    lines[15_000] = f"15000,1000000000,{'x' * 100}"
    refuse_csv(tmp_path, ["secs,nsecs,note", *lines], "line 15002", "less than one in ns", "1000000000")


def test_text_far_down_a_column_of_numbers_is_refused(tmp_path):
    rows = [f"{row / 100},{row}" for row in range(150_000)]
    rows[100_000] = "1000.0,broken"
    refuse_csv(tmp_path, rows, "Row #100001", "broken")


def test_other_columns_in_a_later_episode_are_refused(tmp_path):
    for number, header in ((1, "t,a,b"), (2, "t,b,a")):
        write_lines(tmp_path / f"log/{number}/imu.csv", header, "0.0,1,2", "0.1,1,2")
    assert_refused(tmp_path / "log", tmp_path / "cache", "2/imu.csv", "'b', 'a'")
    assert assert_skipped(tmp_path / "log", tmp_path / "cache", "2/imu.csv").episodes == 1


def test_an_unknown_clock_is_refused(tmp_path):
    refuse_csv(tmp_path, ["t,a", "0.0,1"], "no column 'stamp'", "t, a", time_column="stamp")
    refuse_csv(tmp_path, ["t,a", "0.0,1"], "no column 7", time_column=7)


def test_without_readable_rows_no_cache_is_written(tmp_path):
    refuse_csv(tmp_path, [], "empty", on_error="skip")
    write_lines(tmp_path / "log/imu.csv", "0.0", "0.1")
    assert_refused(tmp_path / "log", tmp_path / "cache", "nothing")


# ---- the call itself ----


def test_arguments_are_checked(tmp_path):
    source = write_lines(tmp_path / "log/imu.csv", "0.0,1", "0.1,2").parent
    for message, options in {
        "format": {"format": "hdf5"},
        "format: expected": {"format": ["csv"]},
        "on_error": {"on_error": "ignore"},
        "time_unit": {"time_unit": "h"},
        "colour": {"colour": "red"},
    }.items():
        with pytest.raises(robocache.ArgumentError, match=message):
            robocache.ingest(source, tmp_path / "cache", **options)
    assert_refused(tmp_path / "nowhere", tmp_path / "cache", "nowhere")
    (tmp_path / "bare").mkdir()
    assert_refused(tmp_path / "bare", tmp_path / "cache", "known format", "an empty folder")
    assert_refused(source, tmp_path / "cache", "meta/info.json", format="lerobot")


def test_an_existing_cache_stays_without_overwrite(tmp_path):
    source = write_lines(tmp_path / "log/imu.csv", "0.0,1", "0.1,2").parent
    robocache.ingest(source, tmp_path / "cache")
    with pytest.raises(robocache.FileError, match="cache"):
        robocache.ingest(source, tmp_path / "cache")
    write_lines(source / "imu.csv", "0.0,1", "oops,2")
    with pytest.raises(robocache.FileError, match="oops"):
        robocache.ingest(source, tmp_path / "cache", overwrite=True)
    assert len(robocache.open(tmp_path / "cache").streams["imu"].time_ns) == 2
    write_lines(source / "imu.csv", "0.0,1")
    assert robocache.ingest(source, tmp_path / "cache", overwrite=True, time_unit="s").rows == {"imu": 1}


# ---- real data ----


def read_directly(file):
    """Reads a log by the csv module. Returns the stamps as Python ints, and the other cells as floats."""
    with file.open(newline="") as lines:
        rows = list(csv.reader(lines))
    return [int(row[0]) for row in rows], np.array([[float(cell) for cell in row[1:]] for row in rows])


def test_unitree_go2(real_data, tmp_path):
    source = real_data("rosbag2/unitree_go2")
    report = robocache.ingest(source, tmp_path / "cache", format="csv")
    dataset = robocache.open(tmp_path / "cache")
    files = sorted(source.rglob("*.csv"))
    assert report.episodes == len({file.parent for file in files})
    assert report.skipped == []
    inexact = 0
    for number, name in enumerate(dataset.episodes["name"].to_pylist()):
        episode = dataset.episode(number)
        for file in (source / name).glob("*.csv"):
            stamps, values = read_directly(file)
            assert episode[file.stem][0].tolist() == stamps
            np.testing.assert_array_equal(episode[file.stem][1], values)
            inexact += sum(int(float(t)) != t for t in stamps)
    assert inexact > 100_000  # stamps that float64 cannot hold
    assert {"*.db3", "*.yaml"} <= {omission.what for omission in report.left_out}
    rates = {name: stream.rate_hz for name, stream in dataset.streams.items()}
    assert rates["command_history"] == pytest.approx(500, rel=0.05)
    assert rates["vicon_history"] == pytest.approx(300, rel=0.05)
    assert rates["policy_command_history"] == pytest.approx(50, rel=0.05)


def test_so100_inference_logs(real_data, tmp_path):
    source = real_data("logs_csv/lerobot_so100_inference")
    robocache.ingest(source, tmp_path / "cache")
    dataset = robocache.open(tmp_path / "cache")
    for file in source.glob("*.csv"):
        with file.open(newline="") as lines:
            header, *rows = csv.reader(lines)
        stream = dataset.streams[file.stem]
        assert stream.time_ns.tolist() == [round(Fraction(row[0]) * 10**9) for row in rows]
        assert list(stream.names) == header[1:]
        expected = [[{"True": 1, "False": 0}.get(cell, cell) for cell in row[1:]] for row in rows]
        np.testing.assert_array_equal(stream.values, np.array(expected, float))


def test_euroc_imu(real_data, tmp_path):
    source = real_data("logs_csv/euroc_micro/mav0/imu0")
    robocache.ingest(source, tmp_path / "cache")
    with (source / "data.csv").open(newline="") as lines:
        _, *rows = csv.reader(lines)
    stream = robocache.open(tmp_path / "cache").streams["data"]
    assert stream.time_ns.tolist() == [int(row[0]) for row in rows]
    np.testing.assert_array_equal(stream.values, np.array([row[1:] for row in rows], float))


def test_euroc_camera(real_data, tmp_path):
    """The log has 95 stamps, the folder 10 images."""
    source = real_data("logs_csv/euroc_micro/mav0/cam0")
    assert_refused(source, tmp_path / "cache", "data/14037152737", "No such file")
    report = robocache.ingest(source, tmp_path / "cache", on_error="skip")
    assert report.rows == {"data.filename": 10}
    stream = robocache.open(tmp_path / "cache").streams["data.filename"]
    images = sorted((source / "data").glob("*.png"))
    assert stream.time_ns.tolist() == [int(image.stem) for image in images]
    assert (stream.frames.height, stream.frames.width, stream.frames.color_space) == (480, 752, "gray")
    for row, image in enumerate(images):
        assert stream.values.data[slice(*stream.values.offsets[row : row + 2])].tobytes() == image.read_bytes()


def test_unusual_gtsam_logs(real_data, tmp_path):
    source = real_data("logs_csv/gtsam")
    assert_refused(source, tmp_path / "cache", "imuAndGPSdata.csv", "Expected 11 columns")
    report = robocache.ingest(source, tmp_path / "cache", on_error="skip")
    assert [Path(omission.what).name for omission in report.skipped] == ["imuAndGPSdata.csv"]
    stream = robocache.open(tmp_path / "cache").streams["quadraped_imu_data"]
    assert len(stream.time_ns) == 2635
    assert stream.findings["duplicates"] == 248


def test_a_first_line_that_is_too_long_is_refused(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/blob.csv").write_text("a" * 200_000)
    with pytest.raises(robocache.FileError, match=r"blob\.csv: line 1: field larger"):
        robocache.ingest(tmp_path / "logs", tmp_path / "cache")


@pytest.mark.parametrize("header", ["t,a", '"t","a"', '"t",a', 't,"a,b"', "\ufefft,a"])
@pytest.mark.parametrize("row", ['0.5,"2', '"0.5,2', '0.5,2"'])
def test_an_open_quote_is_refused_with_any_header(header, row, tmp_path):
    refuse_csv(tmp_path, [header, "0.25,1", row, "0.75,3", "1.0,4"])


@pytest.mark.parametrize("header", ['t,a"b,"c', 't,"a', '"t",""a"', '"t,"'])
def test_an_open_quote_in_the_header_loses_no_row(header, tmp_path):
    with contextlib.suppress(robocache.FileError):
        assert ingest_csv(tmp_path, header, "0.25,1", "0.5,2", "0.75,3")[1].rows == {"imu": 3}


def test_a_quote_in_the_first_line_loses_no_row(tmp_path):
    first, lines = '0.25,1,"go', [f"{row},{row},go" for row in range(1, 9)]
    refuse_csv(tmp_path, [first, *lines], time_column=0)
    _, report = ingest_csv(tmp_path, first + '"', *lines, time_column=0)
    assert report.rows == {"imu": 9, "imu.2": 9}


_STAMPS = st.one_of(
    st.integers(0, 2**64).map(str),
    st.integers(-(2**63), 2**63).map(str),
    st.integers(1, 10**19).map(lambda stamp: f" {stamp:025d} "),
    st.sampled_from(["0x10", "+5", "1e3", "5.", "", "-0", "1_000", "\u0661"]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_STAMPS, min_size=1, max_size=4), st.sampled_from(["s", "ms", "us", "ns"]))
def test_integer_stamps_equal_those_of_the_general_parser(stamps, unit):
    """The fast path for integers gives the same stamps as the general one."""
    import pyarrow as pa
    from robocache.ingest import stamps as reader

    def read():
        try:
            time_ns, unit_read = reader.read_stamps(pa.chunked_array([stamps]), "t", unit, Path("f.csv"), 1)
            return time_ns.tolist(), unit_read
        except robocache.FileError as error:
            return str(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_parse_whole_numbers", lambda text: None)
        expected = read()
    assert read() == expected


@pytest.mark.parametrize(
    ("bad", "message_part"), [("-5", "-5, below 0"), ("1500000000", "1500000000, more than a second")]
)
def test_an_invalid_part_of_a_second_is_named(bad, message_part, tmp_path):
    lines = ["secs,nsecs,a", "1,0,1", f"1,{bad},2", "2,3,3"]
    message = str(refuse_csv(tmp_path, lines, "'secs' and 'nsecs' look like one stamp", message_part, "time_column"))
    assert "below 0, more" not in message


@pytest.mark.parametrize(("rows", "is_named"), [(12, True), (4, False)])
def test_mostly_repeated_stamps_are_named(rows, is_named, tmp_path):
    stamps = [1_732_340_000] * rows + [1_732_340_000 + k for k in range(1, 8)]
    _, report = ingest_csv(tmp_path, "timestamp,x", *(f"{stamp},{k}" for k, stamp in enumerate(stamps)))
    assert is_named == any(omission.what.startswith("imu: ") for omission in report.left_out)


# ---- several clocks, several subjects ----


def values_after(dataset, stream, offset_s):
    """Returns the values of a stream `offset_s` after each of its rows."""
    loader = robocache.Loader(
        dataset,
        delta_timestamps={stream: robocache.Window([offset_s], dtype="float64")},
        anchors=stream,
        batch_size=dataset.streams[stream].rows,
        shuffle=False,
    )
    return np.asarray(next(iter(loader))[stream])[:, 0]


CLOCKS = {"t": np.arange(40) * 0.01, "t_acc": np.arange(16) * 0.025, "pose.timestamp": np.arange(8) * 0.05 + 0.013}


@pytest.mark.parametrize("layout", ["side by side", "interleaved", "cut to one length"])
@pytest.mark.parametrize("dates", [False, True])
def test_columns_of_further_clocks_are_separate_streams(layout, dates, tmp_path):
    """The oracle is numpy's interpolation of each sensor's columns."""
    clocks = {name: times[:8] if layout.startswith("cut") else times for name, times in CLOCKS.items()}
    base = np.datetime64("2024-01-01T00:00:00", "ns")
    rows = max(map(len, clocks.values())) if layout != "interleaved" else sum(map(len, clocks.values()))
    columns, first = {}, 0
    for name, times in clocks.items():
        cells, values = [""] * rows, [""] * rows
        for k, time in enumerate(times.tolist()):
            row = first + k if layout == "interleaved" else k
            cells[row] = f"{base + np.timedelta64(round(time * 1e9), 'ns')}Z" if dates else f"{time:.6f}"
            values[row] = f"{math.sin(7 * time):.9f}"
        columns |= {name: cells, f"of {name}": values}
        first += len(times)
    write_lines(
        tmp_path / "log/run.csv", ",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))
    )
    robocache.ingest(tmp_path / "log", tmp_path / "cache")
    dataset = robocache.open(tmp_path / "cache")
    assert set(dataset.streams) == {"run", "run.t_acc", "run.pose.timestamp"}
    for stream, (name, times) in zip(("run", "run.t_acc", "run.pose.timestamp"), clocks.items(), strict=True):
        sensor = dataset.streams[stream]
        assert sensor.names == [f"of {name}"]
        start_ns = base.astype(np.int64) if dates else 0
        np.testing.assert_allclose((sensor.time_ns - start_ns) / 1e9, times, atol=1e-9)
        expected = np.interp(times + 0.004, times, np.sin(7 * times))
        np.testing.assert_allclose(values_after(dataset, stream, 0.004)[:-1, 0], expected[:-1], atol=1e-6)


def test_texts_have_the_clock_of_the_nearest_column_before_them(tmp_path):
    lines = ["t,x,t_events,event,flag"]
    lines += [f"{k / 10},{k},{f'{k / 2},e{k},{str(k % 2 == 0).lower()}' if k < 4 else ',,'}" for k in range(20)]
    dataset, _ = ingest_csv(tmp_path, *lines)
    time_ns, texts = dataset.episode(0)["imu.event"]
    assert (time_ns.tolist(), list(texts)) == ([k * 500_000_000 for k in range(4)], ["e0", "e1", "e2", "e3"])
    flags = dataset["imu.t_events"]
    assert flags.values.tolist() == [[1], [0], [1], [0]] and flags.attributes["methods"] == [[0, 1, "previous"]]


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("time_ns", lambda k: k * 10_000_000),  # the same time in another unit
        ("t_sent", lambda k: k / 100 - 0.003),  # stamps of the same rows
        ("t_x", lambda k: k / 7 + 0.5),  # a translation
        ("t_base [m]", lambda k: k / 7),
        ("cpu_time", lambda k: k / 300),
        ("time_left", lambda k: 40 - k),
        ("distance", lambda k: k / 7),
    ],
)
def test_other_columns_beside_the_clock_stay_columns(name, second, tmp_path):
    lines = [f"t,a,{name},b", *(f"{k / 100},{k},{second(k)},{k * 2}" for k in range(30))]
    assert ingest_csv(tmp_path, *lines)[0]["imu"].names == ["a", name, "b"]


@pytest.mark.parametrize("name", ["moving_time_s", "sailing_time_s", "gyroTime", "t_home", "exposureTime"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_duration_is_no_clock(name, sparse, tmp_path):
    """The column advances at another rate than the clock, and has a number in all rows or in every third."""
    lines = [f"{k / 10},{k},{'' if sparse and k % 3 else k * 0.07},{k / 100}" for k in range(60)]
    dataset, report = ingest_csv(tmp_path, f"t,a,{name},gain", *lines)
    (stream,) = dataset.streams.values()
    assert stream.names == ["a", name, "gain"] and stream.time_ns.tolist() == [k * 10**8 for k in range(60)]
    if name not in ("moving_time_s", "exposureTime"):  # by their words, these are known not to be clocks
        assert reasons(report.assumed)[f"column {name!r}"] == "a value, not a clock of the columns behind it"


def test_a_sparse_delayed_stamp_is_a_clock_and_noted(tmp_path):
    lines = [f"{k / 10},{k},{'' if k % 3 else k / 10 - 0.03},{'' if k % 3 else k}" for k in range(60)]
    dataset, report = ingest_csv(tmp_path, "t,a,gps_timestamp,height", *lines)
    stream = dataset["imu.gps_timestamp"]
    assert stream.names == ["height"] and stream.time_ns.tolist() == [k * 10**8 - 30_000_000 for k in range(0, 60, 3)]
    reason = reasons(report.assumed)["clock 'gps_timestamp'"]
    assert reason == "of the columns behind it, by its name and its times, in s"


@pytest.mark.parametrize("counter", ["frame_id", "frame", "sampleIndex", "Unnamed: 0", "", "row", "x"])
@pytest.mark.parametrize("cell", ["{}.0", "{:.18e}", "{}000"])
def test_a_column_named_like_a_time_is_the_clock(counter, cell, tmp_path):
    rows = [f"{cell.format(k)},{1_700_000_000 + k / 20:.2f},{5 + k / 100},{k / 10}" for k in range(40)]
    dataset, report = ingest_csv(tmp_path, f"{counter},timestamp,exposure_time,gain", *rows)
    (stream,) = dataset.streams.values()
    assert stream.names == [counter or "0", "exposure_time", "gain"]
    assert stream.time_ns.tolist() == [1_700_000_000 * 10**9 + k * 50_000_000 for k in range(40)]
    assert [note.what for note in report.assumed] == ["clock 'timestamp'"] * 2
    assert "is named a time" in report.assumed[0].reason


@pytest.mark.parametrize(
    "header",
    [
        *("speed_m_s", "wheel_rad_s", "meters_s", "force_N_s", "accel_m_s2", "exposure_us", "latency_ms", "tofMs"),
        *("time_constant", "timeConstant", "runtime", "lifetime", "timeout_s", "response_time", "timestamp_valid"),
        *("timestampCount", "stamp_error", "ts_drift", "time_zone"),
    ],
)
def test_a_rate_a_duration_or_a_fact_about_a_time_is_no_clock(header, tmp_path):
    rows = [f"{0.01 * k},{1_700_000_000 + k / 20:.2f},{k}" for k in range(40)]
    dataset, report = ingest_csv(tmp_path / "a", f"{header},timestamp,z", *rows)
    (stream,) = dataset.streams.values()
    assert stream.names == [header, "z"]
    assert stream.time_ns.tolist() == [1_700_000_000 * 10**9 + k * 50_000_000 for k in range(40)]
    assert "is named a time" in report.assumed[0].reason
    rows = [f"{k},{0.01 * k},{1_700_000_000 + k / 20:.2f}" for k in range(40)]  # the counter does not precede it
    dataset, _ = ingest_csv(tmp_path / "b", f"frame,{header},camera_timestamp", *rows)
    (stream,) = dataset.streams.values()
    assert stream.names == ["frame", header]


@pytest.mark.parametrize(
    "header", ["valid_timestamp", "source_stamp", "left_time_s", "exposure_timestamp", "current_ms"]
)
def test_a_time_of_another_thing_is_still_a_time(header, tmp_path):
    rows = [f"{20 * k},{k},{k / 10}" for k in range(40)]
    dataset, _ = ingest_csv(tmp_path, f"{header},y,z", *rows, time_unit="ms")
    (stream,) = dataset.streams.values()
    assert stream.names == ["y", "z"]
    assert stream.time_ns.tolist() == [k * 20_000_000 for k in range(40)]


@pytest.mark.parametrize("header", ["x", "root_x", "distance_m", "pos", "joint1", "qx"])
def test_a_quantity_that_rises_is_no_clock(header, tmp_path):
    """A robot walks forward; the log has no clock, and x rises by about a centimetre a row."""
    rows = [f"{0.01 * k + 0.001 * (k % 3)},{k},{k / 10}" for k in range(40)]
    refuse_csv(tmp_path, [f"{header},y,z", *rows], repr(header), "is no time", "time_column", "time_unit")
    dataset, _ = ingest_csv(tmp_path, f"{header},t_s,z", *rows, time_unit="s")
    assert dataset["imu"].names == [header, "z"]


@pytest.mark.parametrize(
    ("header", "cell"),
    [("frame", "{}.0"), ("index", "{:.18e}"), ("step", "{}000"), ("sample_no", "{}000000"), ("frameNumber", "0.{}")],
)
@pytest.mark.parametrize("others", ["x", "x,cam_timestamp,imu_timestamp"])
def test_a_row_counter_alone_is_refused_as_a_clock(header, cell, others, tmp_path):
    other_cells = ",".join(["1"] * (1 + others.count(",")))
    lines = [f"{header},{others}", *(f"{cell.format(k)},{other_cells}" for k in range(9))]
    refuse_csv(tmp_path, lines, repr(header), "counts rows", "time_column", "time_unit")
    time_ns, _ = ingest_lines(tmp_path, *lines, time_unit="ms")
    assert time_ns == [round(Fraction(cell.format(k)) * 10**6) for k in range(9)]


@pytest.mark.parametrize(
    ("header", "subjects"),
    [
        ("drone_id", ["cf0", "cf1"]),
        ("anchor", ["A0", "A1", "A2"]),
        ("Name", ["arm/pos", "arm/volt", "gyro/yaw"]),
        ("anchor", [0, 1, 2]),
        ("robot", [7, 3]),
        ("topic", ["/imu", "/odom"]),
        ("frame_id", ["cam", "lidar", "base"]),
        ("tag", ["a", "a", "a", "b", "b", "b"]),
        ("sensor", [1, 1, 2, 2]),
    ],
)
def test_rows_of_alternating_subjects_are_held_if_numbers_jump(header, subjects, tmp_path):
    levels = (1.5, 20.0, 7.0)
    distinct = list(dict.fromkeys(subjects))
    values = [levels[distinct.index(subjects[k % len(subjects)])] + k / 1000 for k in range(60)]
    lines = [f"{k / 100},{subjects[k % len(subjects)]},{value}" for k, value in enumerate(values)]
    dataset, report = ingest_csv(tmp_path, f"t,{header},range", *lines)
    np.testing.assert_array_equal(values_after(dataset, "imu", 0.005)[:, -1], values)
    reason = reasons(report.left_out)["imu: values between rows"]
    assert reason.startswith(f"{header} says that rows are of several subjects") and "a file for each subject" in reason
    assert any(note.what == f"column {header!r}" and note.streams == ["imu"] for note in report.assumed)


@pytest.mark.parametrize(
    ("header", "cells", "value"),
    [
        ("event", ["left", "left", "right"], lambda k: 10.0 * (k % 3 > 1)),  # an event, no subject
        ("phase", ["a", "b", "c"], lambda k: k * 1.0),  # the numbers continue
        ("note", ["x"] * 30 + ["y"] * 30, lambda k: 5.0 * (k > 29)),  # the subjects do not alternate
        ("contact", [0] * 9 + [1] * 11, lambda k: 10.0 * (k % 20 > 8)),
        ("count", range(60), lambda k: (-1.0) ** k),
    ],
)
def test_rows_of_one_subject_stay_interpolated(header, cells, value, tmp_path):
    values = np.array([value(k) for k in range(60)])
    lines = [f"{k / 100},{cells[k % len(cells)]},{values[k]}" for k in range(60)]
    interpolated = values_after(ingest_csv(tmp_path, f"t,{header},x", *lines)[0], "imu", 0.005)[:-1, -1]
    np.testing.assert_allclose(interpolated, (values[1:] + values[:-1]) / 2)


@pytest.mark.parametrize("name", ["gripper_current", "tag"])
def test_a_measurement_of_few_integers_is_no_subject(name, rng, tmp_path):
    """The voltage changes when the current does; the arm's joints do not jump then."""
    lines = [f"t,q0,q1,q2,{name},voltage"]
    for k, n in enumerate(rng.integers(0, 3, 200)):
        lines.append(f"{k / 100},{math.sin(k / 9)},{math.cos(k / 9)},{math.sin(k / 5)},{n},{12 - n}")
    dataset, report = ingest_csv(tmp_path, *lines)
    assert not report.left_out and [note.what for note in report.assumed] == ["clock 't'"]
    assert "methods" not in dataset["imu"].attributes


def test_rows_of_alternating_ids_are_held(tmp_path):
    ranges = [(2, 8, 5)[k % 3] for k in range(30)]
    lines = [f"{1.7e9 + k / 100:.2f},{value}.0,10,{k % 3}" for k, value in enumerate(ranges)]
    dataset, report = ingest_csv(tmp_path, "timestamp,range,from_id,to_id", *lines)
    np.testing.assert_array_equal(values_after(dataset, "imu", 0.005)[:, 0], ranges)
    reason = reasons(report.left_out)["imu: values between rows"]
    assert reason.startswith("to_id says that rows are of several subjects")


@pytest.mark.parametrize(
    ("name", "ids"), [("to_id", [3] * 30), ("id", range(30)), ("mode_id", [0, 1] * 15), ("leg_id", [0] * 15 + [1] * 15)]
)
def test_other_integers_are_no_subjects(name, ids, tmp_path):
    lines = [f"t,x,{name}", *(f"{k / 100},{k}.5,{value}" for k, value in enumerate(ids))]
    values = values_after(ingest_csv(tmp_path, *lines)[0], "imu", 0.005)
    np.testing.assert_allclose(values[:-1, 0], np.arange(29) + 1.0)


@pytest.mark.parametrize(("header", "crosses"), [("longitude", True), ("gps_lon_deg", True), ("longitude", False)])
def test_a_longitude_that_crosses_180_degrees_is_noted(header, crosses, tmp_path):
    last = -179.9995 if crosses else 179.9996
    lines = [f"time_s,latitude,{header}", "1000.0,5,179.9990", "1000.1,5,179.9995", f"1000.2,5,{last}"]
    _, report = ingest_csv(tmp_path, *lines)
    crossing_reasons = [
        note.reason for note in report.assumed if "from 180 to -180 at row 2 of episode 0" in note.reason
    ]
    assert len(crossing_reasons) == crosses and all(
        reason.endswith('.methods = [[1, 2, "previous"]]') for reason in crossing_reasons
    )


@pytest.mark.parametrize("header", ["yaw (deg)", "yaw [deg]", "yaw[degrees]", "yaw (\N{DEGREE SIGN})"])
def test_units_in_brackets_of_a_header_are_units(header, tmp_path):
    lines = [f"t,q[0],{header},x (left),v [m/s]", "0.0,1,2,3,4", "0.1,3,4,5,6"]
    dataset, _ = ingest_csv(tmp_path, *lines, time_unit="s")
    assert dataset["imu"].attributes["units"] == ["", header.strip("yaw ()[]"), "", "m/s"]
    mapping = {"streams": {"imu": {"methods": [[1, 2, "angle"]]}}}
    with pytest.raises(robocache.Error, match="angle takes radians, got units"):
        ingest_csv(tmp_path, *lines, time_unit="s", mapping=mapping)
