"""Findings as JSON, on the page, in the terminal, from the command, and as a cache stores them."""

import ast
import base64
import dataclasses
import fcntl
import io
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import robots
from html_page import Page
from robocache.doctor import pictures, plots
from robocache.findings import Finding, Report, load

import robocache
from robocache import cli

HOSTILE = '<script>alert("x")</script>&amp;\x1b[31m'


@pytest.fixture
def cache(rng, tmp_path):
    """A cache with an error, a warning and a note."""
    recordings = robots.make_recordings(rng)
    recordings[1]["imu"][1][7, 0] = np.nan
    recordings[2]["imu"][0][400:] += 10**8
    for streams in recordings:
        streams["imu"][1][:, 2] = 1
    return robots.write(tmp_path / "cache", recordings)


@pytest.fixture
def good(rng, tmp_path):
    return robots.write(tmp_path / "good", robots.make_recordings(rng, 2))


def run(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ---- JSON ----


def test_json_schema(cache):
    report = robocache.doctor(cache).to_dict()
    fields = "format schema_version robocache_version path manifest_crc32 episodes counts findings more streams"
    assert list(report) == fields.split()
    assert (report["format"], report["schema_version"], report["episodes"]) == ("robocache-doctor", 1, 4)
    assert report["counts"] == {"error": 1, "warning": 1, "note": 1}
    assert json.loads((cache / "manifest.json").read_text())["crc32"] == report["manifest_crc32"]
    for finding in report["findings"]:
        fields = "severity code message episode stream row end_row count value expected file advice"
        assert list(finding) == fields.split()
    for stream in report["streams"]:
        fields = "name kind rows dtype shape clock rate_hz true_rate_hz duration_s lost_s"
        assert list(stream) == fields.split()
    assert [(f["code"], f["episode"], f["row"]) for f in report["findings"]] == [
        ("nan", 1, 7),
        ("long-gap", 2, 400),
        ("constant", None, None),
    ]
    text = json.dumps(report, allow_nan=False)
    assert Report.from_dict(json.loads(text)).to_dict() == report


def test_text_is_shown_as_text_without_a_rate(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("joint", np.arange(60) * 10**7, np.arange(60.0))
        episode.append("note", np.arange(60) * 10**7, ["grasp"] * 60)
    report = robocache.doctor(tmp_path / "cache")
    assert [stream["kind"] for stream in report.streams] == ["numbers", "text"]
    page = report.html()
    rows_of_page = {
        name: page.partition(f'<th scope="row">{name}</th>')[2].partition("</tr>")[0] for name in ("joint", "note")
    }
    cells = {name: re.findall(r"<td[^>]*>(.*?)</td>", row) for name, row in rows_of_page.items()}
    assert cells["joint"][:4] == ["float64 []", "60", "100", "100"]
    assert cells["note"] == ["text", "60", "", "", "recorded", "", "0"]
    assert "<h3>joint</h3>" in page and "<h3>note</h3>" not in page


# ---- the record in the cache ----


def test_a_record_keeps_the_names_of_streams_that_begin_with_the_caches_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = "robot/joint", f"{tmp_path}/robot/imu"
    robots.write("robot/cache", [{name: (np.arange(9) * 10**8, np.full(9, np.nan)) for name in names}])
    report = robocache.doctor("robot/cache")
    stored = load("robot/cache")
    assert {finding.stream for finding in report.findings} >= {*names}
    assert stored.streams == report.streams
    assert [finding.stream for finding in stored.findings] == [finding.stream for finding in report.findings]


def test_a_record_is_valid_until_the_cache_changes(cache, rng):
    report = robocache.doctor(cache)
    assert report.stored == str(cache / "doctor.json")
    assert not list(cache.glob("*.partial"))
    loaded = load(cache)
    assert loaded.findings == report.findings and loaded.summary == "1 error, 1 warning, 1 note"
    robocache.open(cache, verify=True)  # readers ignore the record's file
    robots.write(cache, robots.make_recordings(rng, 2), overwrite=True)
    assert not (cache / "doctor.json").exists() and load(cache) is None
    (cache / "doctor.json").write_text(json.dumps(report.to_dict()))
    assert load(cache) is None  # the record of the former cache


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"format": 1}', "[" * 100_000, "\ud800"])
def test_a_damaged_record_is_ignored(damage, cache):
    robocache.doctor(cache)
    (cache / "doctor.json").write_bytes(damage.encode("utf-8", "surrogatepass"))
    assert load(cache) is None


@pytest.mark.parametrize("more", [{"no-such-code": 3}, {"nan": "3"}, {"nan": None}])
def test_a_record_with_invalid_numbers_is_ignored(more, cache):
    report = robocache.doctor(cache).to_dict()
    assert any(finding["code"] == "nan" for finding in report["findings"])
    (cache / "doctor.json").write_text(json.dumps(report | {"more": more}))
    assert load(cache) is None
    (cache / "doctor.json").write_text(json.dumps(report | {"more": {"nan": 3}}))
    assert load(cache).counts["error"] >= 3


@pytest.mark.parametrize("odd", [5, -1.5, True, None, "x", [1], {"a": 1}, "\x1b[2J"])
def test_a_record_with_other_types_is_ignored_or_shown(odd, cache, capsys, recwarn):
    report = robocache.doctor(cache).to_dict()
    fields = [field.name for field in dataclasses.fields(Finding)]
    records = [{**report, "findings": [{**report["findings"][0], name: odd}], "more": {}} for name in fields]
    for record in [*records, *({**report, key: odd} for key in report if key != "manifest_crc32")]:
        (cache / "doctor.json").write_text(json.dumps(record))
        if load(cache) is None:  # as without a record, to every reader
            continue
        load_by(cache)
        assert "\x1b" not in "".join(run(capsys, "inspect", cache)[1:])
        assert run(capsys, "inspect", cache, "--all")[0] == 0
    assert all("\x1b" not in str(warning.message) for warning in recwarn.list)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_record_that_is_no_regular_file_is_not_opened(make, good):
    make(good / "doctor.json")
    assert load(good) is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("largest", [np.float64(1e308), np.float32(3e38), np.float64(np.inf), np.float64(np.nan)])
def test_overflowing_sums_give_no_numpy_warnings(largest, rng, tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("joint", np.arange(60) * 10**7, largest * rng.choice([-1, 1], (60, 2)).astype(largest.dtype))
    assert "joint" in robocache.doctor(tmp_path / "cache").html()


def test_a_read_only_cache(cache, monkeypatch, capsys):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    report = robocache.doctor(cache)
    assert report.stored is None and report.not_stored == f"{cache}/doctor.json: Permission denied"
    assert sorted(path.name for path in cache.iterdir()) == ["episodes.jsonl", "manifest.json", "streams"]
    assert "not stored: " in run(capsys, "doctor", cache)[1]
    assert robocache.doctor(cache, save=False).not_stored is None


def test_inspect_shows_the_doctors_verdict(cache, capsys):
    assert "doctor: has not looked at it" in run(capsys, "inspect", cache)[1]
    robocache.doctor(cache)
    assert "doctor: 1 error, 1 warning, 1 note\n" in run(capsys, "inspect", cache)[1]
    assert "doctor: 1 error, 1 warning, 1 note" in run(capsys, "inspect", cache, "--all")[1]


# ---- the loader ----


def load_by(cache, **options):
    return robocache.Loader(
        robocache.open(cache), batch_size=2, delta_timestamps={"imu": [0.0]}, device="cpu", framework="numpy", **options
    )


def test_the_loader_warns_of_errors(cache, good, recwarn):
    load_by(cache)
    robocache.doctor(good)
    load_by(good)
    assert not recwarn.list  # `cache` has no record yet, and `good` has no error
    robocache.doctor(cache)
    with pytest.warns(robocache.DoctorWarning, match=r"nan \(episode 1, imu, row 7\); see: robocache doctor") as caught:
        load_by(cache)
    assert len(caught) == 1 and caught[0].filename == __file__
    recwarn.clear()
    load_by(cache, findings=None)
    assert not recwarn.list


def test_a_strict_loader_refuses(cache, good, rng):
    with pytest.raises(
        robocache.FileError, match=r"expected doctor\.json of the cache.s present content; run: robocache"
    ):
        load_by(good, findings="strict")
    robocache.doctor(good)
    load_by(good, findings="strict")
    robocache.doctor(cache)
    with pytest.raises(robocache.FileError, match=r"nan \(episode 1, imu, row 7\)"):
        load_by(cache, findings="strict")
    with pytest.raises(robocache.ArgumentError, match="findings: "):
        load_by(good, findings="maybe")


# ---- the page ----


def test_the_page_is_complete_and_loads_nothing(cache):
    text = robocache.doctor(cache).html()
    page = Page(text)
    assert not page.open
    assert not page.references
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.tags)
    assert "url(" not in text and "@import" not in text and "http" not in text
    assert page.tags.count("svg") == 1 + 3 * 3 + 2  # episodes, three for each stream of numbers, two for the camera
    for word in (
        "nan",
        "long-gap",
        "constant",
        "episode 1, imu, row 7",
        "Report of the doctor",
        "prefers-color-scheme",
    ):
        assert word in text
    xml.etree.ElementTree.fromstring(text.partition("\n")[2])  # well-formed as XML after the doctype
    for table in re.findall(r"<table>.*?</table>", text, re.S):
        assert 'scope="col"' in table
    assert all('role="img"' in svg and "<title>" in svg for svg in re.findall(r"<svg.*?</svg>", text, re.S))


def test_periods_are_gaps_from_one_and_a_half_medians_on():
    for period, kind in ((1.0, "bar"), (1.49, "bar"), (1.51, "bar odd"), (9.9, "bar odd"), (10.1, "bar bad")):
        histogram, _ = np.histogram([period], plots.EDGES)
        nothing = np.empty(0)
        svg = plots.histogram_plot(pictures.StreamPicture("s", 1.0, nothing, nothing, nothing, histogram))
        assert re.findall('rect class="([^"]*)"', svg) == [kind]


def test_a_mapping_of_several_findings_is_shown_once(rng, tmp_path, capsys):
    turns = np.cumsum(0.05 + rng.normal(size=(400, 2)) * 0.005, axis=0)
    angles = np.mod(turns + np.pi, 2 * np.pi) - np.pi
    cache = robots.write(tmp_path / "cache", [{"s": (np.arange(400) * 10**7, angles)}])
    report = robocache.doctor(cache)
    assert [f.code for f in report.findings] == ["angle-wrap"] * 2
    assert report.html().count("methods = [[0, 1,") == 1
    assert run(capsys, "doctor", cache)[1].count("methods = [[0, 1,") == 1


def test_the_longest_episode_has_a_duration(tmp_path):
    stamps = np.array([-(2**62), 2**62], np.int64)
    report = robots.examine(tmp_path / "cache", [{"s": (stamps, np.arange(2.0))}])
    assert report.streams[0]["duration_s"] == 2**63 / 1e9


def test_the_page_of_one_episode_counts_one_episode(tmp_path):
    report = robots.examine(tmp_path / "cache", [{"s": (np.arange(1), np.arange(1.0))}])
    for noun in ("episode", "stream", "row"):
        assert f"<b>1</b>{noun}<" in report.html()


def test_the_page_counts_thousands(cache):
    report = robocache.doctor(cache)
    report.more["nan"] = 1233
    assert report.counts["error"] == 1234 and "<b>1,234</b>errors" in report.html()


def test_the_page_shows_some_frames_of_each_camera(rng, tmp_path):
    levels = np.linspace(40, 220, 30).astype(np.uint8)
    frames = np.broadcast_to(levels[:, None, None, None], (30, 300, 400, 3)).copy()
    frames[:, :, :200, 0] //= 2
    depth = np.broadcast_to(np.linspace(500, 3000, 64, dtype=np.uint16), (30, 48, 64)).copy()
    with robocache.Writer(tmp_path / "cache") as writer:
        for part in (slice(0, 10), slice(10, 30)):
            with writer.episode() as episode:
                times = np.arange(part.stop - part.start) * 10**8
                episode.append(HOSTILE, times, frames[part], codec="jpeg")
                episode.append("depth", times, depth[part], codec="png")
    text = robocache.doctor(tmp_path / "cache").html()
    images = re.findall(r'<img alt="([^"]*)" src="data:image/jpeg;base64,([^"]*)"', text)
    assert len(images) == 12 and "script" not in Page(text).tags
    for alt, data in images:
        picture = PIL.Image.open(io.BytesIO(base64.b64decode(data)))
        assert picture.width <= 160 and picture.height <= 120
        episode, row = map(int, re.search(r"episode (\d+), row (\d+)$", alt).groups())
        if not alt.startswith("depth"):
            level = int(levels[episode * 10 + row])
            pixels = np.asarray(picture).astype(int)
            assert abs(pixels[50, 120] - level).max() <= 6 and abs(pixels[50, 20, 0] - level // 2) <= 12


def test_hostile_names_are_escaped(rng, tmp_path):
    recordings = [{HOSTILE: streams["imu"]} for streams in robots.make_recordings(rng)]
    recordings[1][HOSTILE][1][3, 2] = np.nan
    cache = robots.write(
        tmp_path / "<b>&'\"", recordings, describe={HOSTILE: {"names": [f"<i>{f}\n" for f in range(6)]}}
    )
    report = robocache.doctor(cache)
    page = Page(report.html())
    assert "script" not in page.tags and "b" in page.tags and "i" not in page.tags
    assert "<script>alert" in page.text
    assert "\x1b" not in report.html()
    xml.etree.ElementTree.fromstring(report.html().partition("\n")[2])


def test_a_page_of_a_nearly_empty_cache(tmp_path):
    with robocache.Writer(tmp_path / "none"):
        pass
    with robocache.Writer(tmp_path / "one") as writer, writer.episode() as episode:
        episode.append("x", [5], [1.0])
    with robocache.Writer(tmp_path / "empty") as writer, writer.episode():
        pass
    for name in ("none", "one", "empty"):
        report = robocache.doctor(tmp_path / name)
        assert not report.findings
        assert not Page(report.html()).open


@pytest.mark.parametrize("theme", [r":root \{(.*?)\}", r"dark\) \{ :root \{(.*?)\}"])
def test_text_has_contrast(theme, good):
    """WCAG: text has a contrast of 4.5 to 1, on the page and its cards, in light and dark themes."""
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", re.search(theme, robocache.doctor(good).html(), re.S)[1]))

    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for text in ("text", "soft"):
        for ground in ("page", "card"):
            light, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5


# ---- the command ----


def test_exit_codes(cache, good, capsys, tmp_path):
    assert run(capsys, "doctor", good)[0] == 0
    assert run(capsys, "doctor", good, "--strict")[0] == 0
    assert run(capsys, "doctor", cache)[0] == 1
    assert run(capsys, "doctor", tmp_path / "nowhere")[0] == 1
    with pytest.raises(SystemExit) as error:
        run(capsys, "doctor", cache, "--lines", "0")
    assert error.value.code == 2
    assert run(capsys, "doctor", cache, "--time-unit", "ns")[0] == 2  # only sources take this option


def test_strict_fails_on_warnings(rng, tmp_path, capsys):
    recordings = robots.make_recordings(rng, 2)
    recordings[1]["imu"][0][400:] += 10**8
    cache = robots.write(tmp_path / "cache", recordings)
    assert run(capsys, "doctor", cache)[0] == 0
    assert run(capsys, "doctor", cache, "--strict")[0] == 1


def test_the_commands_output(cache, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = run(capsys, "doctor", cache, "--html", tmp_path / "page.html")
    assert (code, err) == (1, "")
    for word in ("1 error", "nan", "episode 1, imu, row 7", "1 warning", "long-gap", "1 note", "constant", "page.html"):
        assert word in out
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    code, out, _ = run(capsys, "doctor", cache, "--json", "--no-save")
    assert json.loads(out, parse_constant=pytest.fail)["counts"] == {"error": 1, "warning": 1, "note": 1}
    # Refused before the doctor runs.
    code, out, err = run(capsys, "doctor", cache, "--html", tmp_path / "no" / "page.html")
    assert (code, out) == (1, "") and "page.html: expected a folder that exists" in err
    code, out, err = run(capsys, "doctor", cache, "--html", tmp_path)
    assert (code, out) == (1, "") and f"{tmp_path}: expected a file to write, got a folder" in err


def test_a_page_is_written_completely_or_not_at_all(cache, capsys, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("the page of yesterday")
    (tmp_path / "link.html").symlink_to(page)
    before = {path.name for path in tmp_path.iterdir()}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        code, _, err = run(capsys, "doctor", cache, "--html", page, "--no-save")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert code == 1 and err == f"robocache doctor: {page}: File too large\n"
    assert page.read_text() == "the page of yesterday"
    assert {path.name for path in tmp_path.iterdir()} == before
    run(capsys, "doctor", cache, "--html", tmp_path / "link.html", "--no-save")
    assert (tmp_path / "link.html").is_symlink() and page.read_text().startswith("<!DOCTYPE html>")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)  # the pipe holds the whole page
    run(capsys, "doctor", cache, "--html", tmp_path / "pipe", "--no-save")
    assert os.read(reader, 15) == b"<!DOCTYPE html>"
    os.close(reader)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"splits": ["train"]}, "splits: "),
        ({"splits": {"train": 3}}, r"splits\['train'\]: "),
        ({"splits": {"train": [0.5]}}, r"splits\['train'\]: "),
        ({"save": "no"}, "save: "),
        ({"work": 3}, "work: "),
    ],
)
def test_arguments_of_another_type_are_refused(arguments, message, cache, logs):
    with pytest.raises(robocache.ArgumentTypeError, match=f"^{message}"):
        robocache.doctor(logs if "work" in arguments else cache, **arguments)


def test_an_empty_cache(capsys, tmp_path):
    with robocache.Writer(tmp_path / "cache"):
        pass
    code, out, _ = run(capsys, "doctor", tmp_path / "cache")
    assert code == 0 and "0 episodes, 0 streams, 0 rows" in out


def test_many_findings_of_a_code_are_cut(rng, tmp_path, capsys):
    recordings = robots.make_recordings(rng, 60, camera=False)
    for streams in recordings:
        streams["imu"][1][5, 0] = np.nan
    cache = robots.write(tmp_path / "cache", recordings)
    assert "and 57 more" in run(capsys, "doctor", cache, "--lines", "3")[1]
    assert "48 more" not in run(capsys, "doctor", cache, "--lines", "60")[1]


def test_80_columns_show_the_verdict_first_and_short_notes(rng, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    recordings = robots.make_recordings(rng, 30, camera=False)
    for streams in recordings:
        for number in range(12):
            times, _ = streams["imu"]
            streams[f"a/long/name/of/a_sensor_{number}"] = (
                times,
                np.where(np.arange(len(times)) == 5, np.nan, 1.5)[:, None],
            )
    cache = robots.write(tmp_path / "cache", recordings)
    _, out, _ = run(capsys, "doctor", cache)
    lines = out.splitlines()
    assert lines[0].startswith("360 errors") and "do not train" in " ".join(lines[:2])
    assert max(map(len, lines)) <= 80 and len(lines) < 50
    assert "nan (360)" in lines and "and 357 more" in out and " → " in out
    # Notes are one short line.
    assert any(line.startswith("constant (12): a/long/name/of/a_sensor_0: ") for line in lines)
    _, full, _ = run(capsys, "doctor", cache, "--lines", "12")
    assert "constant (12)" in full.splitlines() and "a_sensor_11: one value" in " ".join(full.split())


# ---- sources ----


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, values in (("arm", np.sin(np.arange(400) / 9)), ("imu", np.cos(np.arange(400) / 7))):
        rows = [f"{row * 20_000_000},{value}" for row, value in enumerate(values)]
        (folder / f"{name}.csv").write_text("t [ns],value\n" + "\n".join(rows) + "\n")
    return folder


def test_a_source_leaves_no_files(logs, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    report = robocache.doctor(logs)
    assert (report.findings, report.path, report.stored, report.episodes) == ([], str(logs), None, 1)
    assert report.manifest_crc32 is None
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "work").mkdir()
    steps = []
    report = robocache.doctor(logs, work=tmp_path / "work", time_unit="ns", progress=lambda *step: steps.append(step))
    assert report.findings == [] and steps[0][:2] == (0, 1)
    assert list((tmp_path / "work").iterdir()) == []


def test_rows_out_of_order_are_a_finding(logs, capsys):
    lines = (logs / "imu.csv").read_text().splitlines()
    lines[100], lines[200] = lines[200], lines[100]
    (logs / "imu.csv").write_text("\n".join([*lines, ""]))
    report = robocache.doctor(logs)
    findings = [f for f in report.findings if f.severity == "error"]
    assert [(f.code, f.stream, f.row) for f in findings] == [("times-out-of-order", "imu", 100)]
    assert findings[0].file.startswith(str(logs)) and "repair" in findings[0].message
    code, out, _ = run(capsys, "doctor", logs)
    assert code == 1 and "repair='sort' (--repair sort) sorts its rows" in " ".join(out.split())
    assert run(capsys, "doctor", logs, "--repair", "sort")[0] == 0
    mended = robocache.doctor(logs, repair="sort")
    assert [(f.severity, f.code, f.stream) for f in mended.findings] == [("note", "repaired", "imu")]


def test_an_unreadable_source(logs, capsys):
    for name in ("imu", "arm"):
        (logs / f"{name}.csv").write_text("t [ns],value\n1,2,3\n")
    report = robocache.doctor(logs)
    assert [(f.severity, f.code) for f in report.findings] == [("error", "unreadable")]
    assert run(capsys, "doctor", logs)[0] == 1
    assert not Page(report.html()).open


def test_options_that_the_user_must_give_are_no_findings(logs):
    (logs / "imu.csv").write_text("t,value\n0,1\n1,2\n")
    (logs / "arm.csv").unlink()
    (finding,) = robocache.doctor(logs).findings
    assert "say which with time_unit" in finding.message and "not damaged" in finding.advice


def test_files_of_another_layout(tmp_path):
    for run_name, header in (("run_0", "t [ns],a,b"), ("run_1", "t [ns],a,c")):
        (tmp_path / "logs" / run_name).mkdir(parents=True)
        rows = [f"{row * 20_000_000},{np.sin(row / 9)},{np.cos(row / 7)}" for row in range(300)]
        (tmp_path / "logs" / run_name / "arm.csv").write_text("\n".join([header, *rows]))
    report = robocache.doctor(tmp_path / "logs")
    assert [(f.severity, f.code) for f in report.findings if f.severity == "error"] == [("error", "schema-change")]
    assert "run_1/arm.csv" in report.findings[0].file


def test_a_missing_source(tmp_path):
    with pytest.raises(robocache.FileError, match="no such file or directory"):
        robocache.doctor(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(robocache.FileError, match="found none"):
        robocache.doctor(tmp_path)


def test_no_room_for_the_temporary_cache(logs, tmp_path, capsys):
    with pytest.raises(robocache.FileError, match="name another folder for the temporary cache with work"):
        robocache.doctor(logs, work=tmp_path / "missing")
    assert cli.main(["doctor", str(logs), "--work", str(tmp_path / "missing")]) == 1
    assert "name another folder for the temporary cache with work (--work)" in capsys.readouterr().err
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limit[1]))
    try:
        with pytest.raises(robocache.FileError, match="File too large; name another folder for the temporary cache"):
            robocache.doctor(logs, work=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


_KILLED_WHILE_IT_WRITES = """
import os, signal, sys
sys.modules["torch"] = None  # importing torch takes most of the time, and the script does not need it
import robocache
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
"""
_WRITES = {
    "doctor.json": "robocache.doctor({cache!r})",
    "stats.json": "robocache.save_norm_stats({cache!r} + '/stats.json', robocache.open({cache!r}).stats, 'lerobot')",
}


@pytest.mark.parametrize("name", _WRITES)
def test_the_next_run_removes_files_of_a_killed_run(name, cache):
    write = _WRITES[name].format(cache=str(cache))
    killed = subprocess.run([sys.executable, "-c", _KILLED_WHILE_IT_WRITES + write])
    assert killed.returncode == -signal.SIGKILL
    (leftover,) = cache.glob("*.partial")
    users_files = [cache / f"{name}.mine.partial", cache / f"{name}.{'0' * 16}.copy.partial"]
    for file in users_files:
        file.write_text("the user's own")
    with leftover.open("r+") as alive:  # a file that a living process locks stays
        fcntl.flock(alive, fcntl.LOCK_EX)
        exec(write)
        assert leftover.exists()
    exec(write)
    assert (cache / name).stat().st_size > 100
    assert sorted(cache.glob("*.partial")) == sorted(users_files)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_rights(cache):
    cache.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert "Permission denied" in robocache.doctor(cache).not_stored


def test_every_code_is_documented():
    root = Path(__file__).parents[3]
    codes = set()
    for module in (root / "python/robocache/doctor").glob("*.py"):
        for call in ast.walk(ast.parse(module.read_text())):
            is_finding = isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding" and call.args[1:]
            if is_finding and isinstance(call.args[1], ast.Constant):
                codes.add(call.args[1].value)
    assert len(codes) > 25
    documented = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", (root / "docs/doctor.md").read_text()))
    assert codes <= documented


def test_the_report_says_how_to_compare_checksums(capsys, good):
    """The doctor cannot see a flipped byte: the value is a number like others."""
    (file,) = good.glob("streams/imu/values.npy")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    out = run(capsys, "doctor", good)[1]
    assert "robocache inspect CACHE --verify" in out
    assert "robocache inspect --verify" in robocache.doctor(good).html()
    code, _, message = run(capsys, "inspect", good, "--verify")
    assert code == 1 and "values.npy" in message
