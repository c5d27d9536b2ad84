"""Appending a source to a cache: the result is as if both were ingested together, or the cache does not change."""

import json

import h5py
import numpy as np
import pytest
from hdf5_files import make_aloha, write_aloha
from lerobot_files import Episode, make_episodes, write_json_lines, write_lerobot
from loaders_by_keywords import loader_by_keywords

import robocache
from robocache import cli


def write_log(path, rows, first=0.0, columns="a,b"):
    path.mkdir(parents=True, exist_ok=True)
    width = columns.count(",") + 1
    lines = [f"{first + i / 10:.1f}," + ",".join(str(i + c) for c in range(width)) for i in range(rows)]
    (path / "joints.csv").write_text("\n".join([f"time,{columns}", *lines]) + "\n")


@pytest.fixture
def cache(tmp_path):
    write_log(tmp_path / "one", 30)
    robocache.ingest(tmp_path / "one", tmp_path / "cache", time_unit="s")
    return tmp_path / "cache"


def test_append_reports_what_it_wrote(cache, tmp_path):
    write_log(tmp_path / "two", 20)
    (tmp_path / "two" / "notes.txt").write_text("x")
    report = robocache.ingest(tmp_path / "two", cache, time_unit="s", append=True)
    assert (report.episodes, report.rows) == (1, {"joints": 20})
    ds = robocache.open(cache, verify=True)
    assert len(ds) == 2 and ds.streams["joints"].row_offsets.tolist() == [0, 30, 50]
    assert ds.provenance["source"].endswith("one") and ds.provenance["format"] == "csv"
    (appended,) = ds.provenance["appended"]
    assert appended["source"].endswith("two") and appended["format"] == "csv" and "streams" in appended["csv"]
    assert [omission["what"] for omission in appended["left_out"]] == ["*.txt"] and ds.provenance["left_out"] == []
    write_log(tmp_path / "three", 5)
    robocache.ingest(tmp_path / "three", cache, append=True)
    assert len(robocache.open(cache).provenance["appended"]) == 2
    assert robocache.open(cache).stats["joints"].count.tolist() == [55, 55]


def test_unfit_sources_do_not_change_the_cache(cache, tmp_path):
    before = {file: file.read_bytes() for file in cache.rglob("*") if file.is_file()}
    write_log(tmp_path / "two", 20, columns="a,c")
    with pytest.raises(robocache.FileError, match=r"joints.*expected the names that it has in"):
        robocache.ingest(tmp_path / "two", cache, append=True)
    write_log(tmp_path / "three", 20, columns="a,b,c")
    with pytest.raises(robocache.FileError, match="joints"):
        robocache.ingest(tmp_path / "three", cache, append=True)
    assert {file: file.read_bytes() for file in cache.rglob("*") if file.is_file()} == before


def test_a_recorded_clock_stays_recorded(cache, tmp_path):
    write_log(tmp_path / "two", 20)
    robocache.ingest(tmp_path / "two", cache, append=True)
    assert robocache.open(cache).streams["joints"].clock == "recorded"


def test_the_append_command(cache, tmp_path, capsys):
    write_log(tmp_path / "two", 20)
    (tmp_path / "two" / "notes.txt").write_text("x")
    assert cli.main(["append", str(tmp_path / "two"), str(cache), "--time-unit", "s"]) == 0
    output = capsys.readouterr().out
    assert "1 episode behind 1" in " ".join(output.split()) and "left out *.txt" in output
    assert cli.main(["append", str(tmp_path / "two"), str(cache), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == {"joints": 20}
    assert cli.main(["inspect", str(cache), "--all"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert output.count("appended ") == 2 and output.count("left out *.txt") == 2
    assert cli.main(["append", str(tmp_path / "two"), str(tmp_path / "none")]) == 1
    assert "none: expected a cache to append to, got none" in capsys.readouterr().err


def test_the_report_of_an_appended_source_is_stored(cache, tmp_path, capsys):
    write_log(tmp_path / "two" / "good", 20)
    write_log(tmp_path / "two" / "bad", 0)
    file = tmp_path / "two" / "good" / "joints.csv"
    first, *rows = file.read_text().splitlines()
    file.write_text("\n".join([first, rows[1], rows[0], *rows[2:]]) + "\n")
    robocache.ingest(tmp_path / "two", cache, append=True, on_error="skip", repair="sort")
    assert cli.main(["inspect", str(cache), "--all"]) == 0
    assert "repaired joints: 1 backward steps, 2 rows moved" in capsys.readouterr().out
    findings = {finding.code: finding.message for finding in robocache.doctor(cache).findings}
    assert findings["repaired"] == "by 'sort': joints: backward_steps 1, rows_moved 2"
    assert "bad/joints.csv: no rows" in findings["unreadable"]


def test_statistics_of_a_dataset_are_not_compared_with_appended_rows(lerobot, tmp_path, rng):
    source, cache = lerobot
    stats = {
        "action": {name: value.tolist() for name, value in robocache.open(cache).stats["action"]._asdict().items()}
    }
    (source / "meta" / "stats.json").write_text(json.dumps(stats))
    assert "source-statistics" not in {finding.code for finding in robocache.doctor(cache).findings}
    write_lerobot(tmp_path / "more", make_episodes(np.random.default_rng(7)))
    robocache.ingest(tmp_path / "more", cache, append=True)
    assert "source-statistics" not in {finding.code for finding in robocache.doctor(cache).findings}


def test_overwrite_and_append_exclude_each_other(cache, tmp_path):
    with pytest.raises(robocache.ArgumentError, match="append: goes without overwrite"):
        robocache.ingest(tmp_path / "one", cache, overwrite=True, append=True)
    with pytest.raises(robocache.ArgumentError, match="append: expected no workers, got 2"):
        robocache.ingest(tmp_path / "one", cache, workers=2, append=True)


@pytest.fixture
def lerobot(tmp_path, rng):
    write_lerobot(tmp_path / "lerobot", make_episodes(rng))
    robocache.ingest(tmp_path / "lerobot", tmp_path / "lerobot.cache")
    return tmp_path / "lerobot", tmp_path / "lerobot.cache"


def test_lerobots_tasks_keep_their_indices(lerobot, tmp_path, rng):
    source, cache = lerobot
    before = robocache.open(cache)
    robocache.ingest(source, cache, append=True)
    ds = robocache.open(cache, verify=True)
    assert len(ds) == 6 and ds.streams["action"].rows == 40
    assert np.array_equal(ds.streams["action"].values[20:], before.streams["action"].values)
    assert ds.provenance["lerobot"] == before.provenance["lerobot"]

    episodes = make_episodes(rng, (4, 5))
    episodes[1].tasks = ["place it"]
    write_lerobot(tmp_path / "more", episodes)
    robocache.ingest(tmp_path / "more", cache, append=True)
    ds = robocache.open(cache)
    assert ds.provenance["lerobot"]["tasks"] == {"0": "pick the cup", "1": "place it"}
    loader = robocache.Loader(ds, delta_timestamps={"action": [0.0]}, task_text=True, batch_size=49, device="cpu")
    batch = next(loader)
    assert {task for e, task in zip(batch["episode_index"].tolist(), batch["task"], strict=True) if e == 7} == {
        "place it"
    }

    episodes[0].tasks = ["something else"]
    write_lerobot(tmp_path / "other", episodes)
    with pytest.raises(robocache.FileError, match=r"task_index 0 is 'something else', but 'pick the cup' in the cache"):
        robocache.ingest(tmp_path / "other", cache, append=True)
    assert len(robocache.open(cache, verify=True)) == 8


def test_rule_47_appended_texts_keep_their_indices(tmp_path):
    """Appends a LeRobot dataset to one with other subtasks, and to a cache with a text for each step."""

    def write(name, subtasks):
        episode = Episode({"action": np.arange(4.0), "subtask_index": np.arange(4) % 2})
        source = write_lerobot(tmp_path / name, [episode])
        rows = [{"subtask_index": number, "subtask": text} for number, text in enumerate(subtasks)]
        write_json_lines(source / "meta/subtasks.jsonl", rows)
        return source

    first = write("first", ["reach", "lift"])
    robocache.ingest(first, tmp_path / "cache")
    robocache.ingest(write("second", ["reach", "lift", "wipe"]), tmp_path / "cache", append=True)
    assert robocache.open(tmp_path / "cache").provenance["lerobot"]["subtasks"] == {
        "0": "reach",
        "1": "lift",
        "2": "wipe",
    }
    with pytest.raises(robocache.FileError, match=r"subtask_index 0 is 'drop', but 'reach' in the cache.*Sources"):
        robocache.ingest(write("third", ["drop"]), tmp_path / "cache", append=True)

    without_texts = write_lerobot(
        tmp_path / "lacking", [Episode({"action": np.arange(2.0), "task_index": np.array([0, 1])})]
    )
    robocache.ingest(without_texts, tmp_path / "lacks")
    more = write_lerobot(tmp_path / "more", [Episode({"action": np.arange(2.0)}, tasks=["pick the cup", "wipe"])])
    with pytest.raises(robocache.FileError, match=r"lerobot.tasks has texts for numbers that occur without a text in"):
        robocache.ingest(more, tmp_path / "lacks", append=True)

    with robocache.Writer(tmp_path / "own") as writer, writer.episode() as episode:
        episode.append("action", np.arange(2) * 10**8, np.zeros(2))
        episode.append("said", np.arange(2) * 10**8, ["a", "b"])
        writer.stream("said", attributes={"task": True})
    robocache.ingest(first, tmp_path / "own", append=True)
    dataset = robocache.open(tmp_path / "own")
    for name, texts in (
        (True, ["a", "b", *["pick the cup"] * 4]),
        ("subtask_index", [None, None, *["reach", "lift"] * 2]),
    ):
        loader = loader_by_keywords(
            dataset,
            batch_size=6,
            delta_timestamps={"action": None},
            method="previous",
            task_text=name,
            shuffle=False,
            device="cpu",
        )
        assert next(loader)["task"] == texts


def test_index_columns_are_refused(lerobot, tmp_path):
    source, cache = lerobot
    with pytest.raises(robocache.ArgumentError, match="append: expected no index_columns"):
        robocache.ingest(source, cache, append=True, index_columns=True)
    robocache.ingest(source, tmp_path / "indexed", index_columns=True)
    with pytest.raises(robocache.ArgumentError, match="has the index columns of one LeRobot dataset"):
        robocache.ingest(source, tmp_path / "indexed", append=True)


def test_no_folder_above_the_source_is_in_shared_files(tmp_path, monkeypatch):
    """A user's name, for example, must not be in the cache, its doctor.json or an export."""
    pytest.importorskip("mcap")
    home = tmp_path / "home" / "ann-bell"
    for name in ("one", "two"):
        (home / name).mkdir(parents=True)
        (home / name / "imu.csv").write_text("t [s],x\n1,2\n2,3\n3,3\n")
        (home / name / "bad.csv").write_text("t [s],x\n1,2\noh,3\n")
    cache = home / "cache"
    robocache.ingest(home / "one", cache, on_error="skip")
    monkeypatch.chdir(home)
    report = robocache.ingest("two", cache, on_error="skip", append=True)
    assert report.skipped[0].reason.startswith("two/bad.csv: line 3")
    before = robocache.open(cache).provenance
    assert (before["source"], before["appended"][0]["source"]) == ("one", "two")
    assert before["skipped"][0]["reason"].startswith("one/bad.csv: line 3")
    assert robocache.doctor(cache).path == str(cache)
    robocache.export(cache, home / "out", to="mcap")
    robocache.ingest(home / "one", home / "shards", on_error="skip", workers=2)
    file_count = 0
    for folder in ("cache", "out", "shards"):
        for file in (home / folder).rglob("*"):
            if file.is_file():
                file_count += 1
                assert b"ann-bell" not in file.read_bytes(), file
    assert file_count > 10
    assert b"provenance" in next((home / "out").iterdir()).read_bytes()  # not compressed: the search above sees it


def test_a_rate_other_than_the_caches_is_warned_about(tmp_path):
    """At another rate, a window of rows spans another time in the appended episodes."""
    for name, period in (("one", 0.01), ("two", 0.1), ("three", 0.012)):
        (tmp_path / name).mkdir()
        lines = [f"{k * period:.6f},{k}" for k in range(50)]
        (tmp_path / name / "imu.csv").write_text("\n".join(["time_s,x", *lines, ""]))
    robocache.ingest(tmp_path / "one", tmp_path / "cache")
    for name, count in (("three", 0), ("two", 1)):
        report = robocache.ingest(tmp_path / name, tmp_path / "cache", append=True)
        warnings = [note.reason for note in report.assumed if note.what == "rate of imu"]
        assert len(warnings) == count
    assert "10 Hz in the appended rows, 90.91 Hz in the cache" in warnings[0]


def test_stamps_are_offset_like_those_in_the_cache(tmp_path):
    write_log(tmp_path / "one", 5)
    offsets = {"joints": 0.25}
    robocache.ingest(tmp_path / "one", tmp_path / "moved", time_unit="s", offsets=offsets)
    robocache.ingest(tmp_path / "one", tmp_path / "as they are", time_unit="s")
    with pytest.raises(robocache.FileError, match=r"joints.*moved by 0 s, those in the cache by 0\.25 s.*--offset"):
        robocache.ingest(tmp_path / "one", tmp_path / "moved", time_unit="s", append=True)
    with pytest.raises(robocache.FileError, match=r"joints.*moved by 0\.25 s, those in the cache by 0 s"):
        robocache.ingest(tmp_path / "one", tmp_path / "as they are", time_unit="s", append=True, offsets=offsets)
    robocache.ingest(tmp_path / "one", tmp_path / "moved", time_unit="s", append=True, offsets=offsets)
    assert [robocache.open(tmp_path / "moved").episode(e)["joints"][0][0] for e in range(2)] == [250_000_000] * 2


def test_red_and_blue_are_exchanged_like_in_the_cache(tmp_path, rng):
    episode = make_aloha(rng, 3)
    write_aloha(tmp_path / "one/episode_0.hdf5", episode)
    (camera,) = (name for name, values in episode.items() if values.ndim == 4)
    mapping = {
        channels: {"streams": {camera: {"channels": channels}}} if channels else None
        for channels in ("rgb", "bgr", None)
    }
    options = {"rate_hz": 50, "image_codec": "png", "format": "aloha"}
    for before, now, is_reported in (
        ("bgr", "bgr", False), ("bgr", "rgb", True), ("rgb", "bgr", True), (None, "bgr", True), (None, None, False), ("rgb", None, False)
    ):  # fmt: skip
        cache = tmp_path / f"{before}{now}"
        robocache.ingest(tmp_path / "one", cache, mapping=mapping[before], **options)
        report = robocache.ingest(tmp_path / "one", cache, append=True, mapping=mapping[now], **options)
        assert is_reported == any("red and blue" in note.reason for note in report.assumed)
        for number, channels in enumerate((before, now)):
            frames = robocache.open(cache).episode(number)[camera][1][:]
            np.testing.assert_array_equal(frames, episode[camera][..., ::-1] if channels == "bgr" else episode[camera])
    for cache in (tmp_path / "bgrbgr", tmp_path / "Nonebgr"):
        with pytest.raises(robocache.FileError, match=r"cam_high.*a mapping exchanged red and blue in the cache"):
            robocache.ingest(tmp_path / "one", cache, append=True, **options)


def test_depth_without_a_unit_cannot_follow_depth_with_one(tmp_path):
    for name, attributes in (("one", {"depth_scale": 0.001}), ("two", {}), ("three", {"depth_scale": 0.001})):
        (tmp_path / name).mkdir()
        with h5py.File(tmp_path / name / "demo.hdf5", "w") as file:
            file["data/demo_0/actions"] = np.zeros((3, 2))
            file["data/demo_0/obs/depth"] = np.full((3, 40, 40), 1000, np.uint16)
            file["data/demo_0/obs/depth"].attrs.update(attributes)
    cache = tmp_path / "cache"
    robocache.ingest(tmp_path / "one", cache, rate_hz=10)
    with pytest.raises(robocache.FileError, match=r"obs/depth.*without unit_m, those in the cache have unit_m 0.001"):
        robocache.ingest(tmp_path / "two", cache, rate_hz=10, append=True)
    robocache.ingest(tmp_path / "three", cache, rate_hz=10, append=True)
    (tmp_path / "units.toml").write_text('[streams."obs/depth"]\nunits = "mm"\n')
    robocache.ingest(tmp_path / "two", cache, rate_hz=10, append=True, mapping=tmp_path / "units.toml")
    assert len(robocache.open(cache)) == 3
