"""Faults in a source: nothing hangs, nothing is lost without a word, and every error is robocache's own."""

import contextlib
import ctypes
import json
import os
import threading
from concurrent.futures import Future

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
from hdf5_files import make_droid, write_droid, write_hdf5
from lerobot_files import make_episodes, rewrite, with_column, write_json_lines, write_lerobot, write_table
from outcomes import assert_refused, assert_skipped, reasons
from robocache.cli import main
from robocache.ingest import convert, merge, plan
from ros_files import ROS1, message, strings, write_bag1, write_mcap

import robocache


def write_lines(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@contextlib.contextmanager
def without_privileges():
    """Makes permissions apply to root too, by dropping the capabilities that override them."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    reduced = (ctypes.c_uint32 * 6)(*before)
    reduced[0] &= ~0b110  # effective CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(header, reduced) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


@pytest.fixture
def in_time():
    """Runs a call in a thread, and fails if it does not end within 120 s."""

    def run(call):
        future = Future()

        def work():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future.result(120)

    return run


# ---- special files ----


def make_fifo(path):
    os.mkfifo(path)


def make_device(path):
    path.symlink_to("/dev/zero")  # never ends


def make_folder(path):
    path.mkdir()


def make_dangling(path):
    path.symlink_to(path.parent / "gone")


def make_loop(path):
    path.symlink_to(path.name)


SPECIAL_FILES = {
    make_fifo: "a FIFO",
    make_device: "a device",
    make_folder: "a folder",
    make_dangling: "gone, which does not exist",
    make_loop: "Too many levels of symbolic links",
}


@pytest.mark.parametrize("make", [make_fifo, make_device, make_dangling, make_loop])
@pytest.mark.parametrize(
    ("version", "name", "what", "other_names"),
    [
        ("v2.1", "data/chunk-000/episode_000001.parquet", "data/chunk-000/episode_000001.parquet", ["episodes 1"]),
        ("v2.1", "meta/tasks.jsonl", "meta/tasks", []),
        ("v2.1", "meta/episodes.jsonl", "meta/episodes", []),
        ("v3.0", "meta/tasks.parquet", "meta/tasks", []),
        ("v3.0", "meta/episodes/chunk-000/file-000.parquet", "meta/episodes", []),
    ],
)
def test_special_files_in_a_lerobot_dataset(make, version, name, what, other_names, rng, tmp_path, in_time):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4, 5)), version)
    (source / name).unlink()
    make(source / name)
    in_time(lambda: assert_refused(source, tmp_path / "cache", str(source / name), SPECIAL_FILES[make]))
    report = in_time(lambda: assert_skipped(source, tmp_path / "cache", what, *other_names))
    assert report.rows["action"] == (8 if other_names else 12)


@pytest.mark.parametrize(
    ("version", "name", "what"),
    [
        ("v2.1", "tasks.jsonl", "meta/tasks"),
        ("v2.1", "episodes.jsonl", "meta/episodes"),
        ("v3.0", "tasks.parquet", "meta/tasks"),
    ],
)
def test_a_folder_in_place_of_a_table(version, name, what, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4, 5)), version)
    (source / "meta" / name).unlink()
    (source / "meta" / name).mkdir()
    assert_refused(source, tmp_path / "cache", name, "a folder")
    assert assert_skipped(source, tmp_path / "cache", what).rows["action"] == 12


def test_a_folder_in_place_of_data(rng, tmp_path):
    """Some programs write a table as a folder of that name. Its files are read."""
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4, 5)))
    file = source / "data/chunk-000/episode_000001.parquet"
    file.rename(tmp_path / file.name)
    file.mkdir()
    assert_refused(source, tmp_path / "cache", "1 of the 3 episodes")
    (tmp_path / file.name).rename(file / file.name)
    assert robocache.ingest(source, tmp_path / "cache").rows["action"] == 12


@pytest.mark.parametrize("make", SPECIAL_FILES)
def test_special_files_as_videos(make, rng, tmp_path, in_time):
    pytest.importorskip("av", reason="no PyAV: pip install av")
    key = "observation.images.top"
    features = {key: {"dtype": "video", "shape": [480, 640, 3]}}
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)), features=features)
    videos = source / f"videos/chunk-000/{key}"
    videos.mkdir(parents=True)
    make(videos / "episode_000000.mp4")
    (videos / "episode_000001.mp4").write_bytes(b"frames" * 50)
    message_part = "no episode_000000.mp4" if make is make_folder else SPECIAL_FILES[make]
    in_time(lambda: assert_refused(source, tmp_path / "cache", message_part))
    report = in_time(lambda: assert_skipped(source, tmp_path / "cache", f"episode 0: {key}", f"episode 1: {key}"))
    assert report.rows == dict.fromkeys(report.rows, 7) and key not in report.rows
    report = in_time(lambda: robocache.ingest(source, tmp_path / "cache2", video=False))
    assert reasons(report.left_out)[key] == "video; files for 1 of 2 episodes"


@pytest.mark.parametrize("make", [make_fifo, make_device, make_dangling, make_loop])
def test_special_files_as_csv(make, tmp_path, in_time):
    write_lines(tmp_path / "logs/good.csv", "0.0,1", "0.1,2")
    make(tmp_path / "logs/imu.csv")
    in_time(lambda: assert_refused(tmp_path / "logs", tmp_path / "cache", "logs/imu.csv", SPECIAL_FILES[make]))
    assert assert_skipped(tmp_path / "logs", tmp_path / "cache", "imu.csv").rows == {"good": 2}
    (tmp_path / "logs/good.csv").unlink()
    assert_refused(tmp_path / "logs", tmp_path / "cache2", "logs/imu.csv", SPECIAL_FILES[make])


@pytest.mark.parametrize("make", [make_fifo, make_device, make_dangling, make_folder, make_loop])
def test_special_files_as_info(make, rng, tmp_path, in_time):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3,)))
    (source / "meta/info.json").unlink()
    make(source / "meta/info.json")
    in_time(lambda: assert_refused(source, tmp_path / "cache", "meta/info.json", SPECIAL_FILES[make], on_error="skip"))


def move_to_hub_cache(source, repo):
    """Moves a dataset into the cache layout of the Hugging Face Hub's client, where files are links to blobs."""
    snapshot = repo / "snapshots" / "0123abcd"
    (repo / "snapshots").mkdir(parents=True)
    (repo / "blobs").mkdir()
    source.rename(snapshot)
    for number, file in enumerate(sorted(snapshot.rglob("*.*"))):
        if file.is_file():
            file.rename(repo / f"blobs/{number}")
            file.symlink_to(os.path.relpath(repo / f"blobs/{number}", file.parent))
    return snapshot


@pytest.mark.parametrize("form", ["v2.1", "v3.0", "droid", "csv"])
def test_files_in_which_macos_keeps_attributes_are_left_out_by_number(form, rng, tmp_path):
    source = tmp_path / "source"
    if form == "droid":
        write_droid(source / "one", make_droid(rng, 5))
        (source / "one/recordings/MP4").mkdir(parents=True)
        (source / "one/recordings/MP4/._23404442.mp4").write_bytes(b"\0\5\x16\7\0\2\0\0")
    elif form == "csv":
        write_lines(source / "logs/imu.csv", "time_s,x", "0,1", "0.1,2")
    else:
        write_lerobot(source, make_episodes(rng), form)
    plain = robocache.ingest(source, tmp_path / "plain", video=False) if form == "droid" else None
    plain = plain or robocache.ingest(source, tmp_path / "plain")
    before = list(source.rglob("._*"))
    files = [file for file in source.rglob("*") if file.is_file() and file not in before]
    for file in files:
        (file.parent / f"._{file.name}").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    report = robocache.ingest(source, tmp_path / "cache")
    assert (report.episodes, report.rows, report.skipped) == (plain.episodes, plain.rows, [])
    assert "._*" in reasons(report.left_out)


@pytest.mark.parametrize("hidden", [".Trash-1000/files", ".ipynb_checkpoints", "$RECYCLE.BIN/S-1-5-21"])
@pytest.mark.parametrize("form", ["aloha", "csv", "lerobot"])
def test_deleted_recordings_in_hidden_folders_are_no_episodes(form, hidden, rng, tmp_path):
    source = tmp_path / ".data/source"  # the user chose it, so it may be hidden
    if form == "lerobot":
        write_lerobot(source, make_episodes(rng))
        kept, deleted = source / "data/chunk-000/episode_000000.parquet", source / "data" / hidden
    elif form == "aloha":
        kept, deleted = source / "episode_0.hdf5", source / hidden
        write_hdf5(kept, {"action": np.zeros((3, 2)), "observations/qpos": np.zeros((3, 2))})
    else:
        kept, deleted = write_lines(source / "logs/imu.csv", "time_s,x", "0,1", "0.1,2"), source / hidden
    deleted.mkdir(parents=True)
    (deleted / kept.name).write_bytes(kept.read_bytes())
    options = {"rate_hz": 50} if form == "aloha" else {}
    report = robocache.ingest(source, tmp_path / "cache", **options)
    assert (report.episodes, report.skipped) == (3 if form == "lerobot" else 1, [])
    name = deleted.relative_to(source).as_posix().removesuffix(hidden) + hidden.split("/")[0]
    assert reasons(report.left_out)[name] == "a hidden folder"


@pytest.mark.parametrize("form", ["aloha", "npz", "clouds", "mcap", "bag"])
def test_a_link_to_a_recording_beside_it_is_no_second_episode(form, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    options = {"rate_hz": 50} if form in ("aloha", "npz", "clouds") else {}
    for number in (0, 1):
        name = {"aloha": "episode_{}.hdf5", "npz": "{}.npz", "clouds": "{}.pcd.npy"}.get(
            form, f"run_{{}}.{form}"
        ).format(number)
        if form == "aloha":
            write_hdf5(source / name, {"action": np.zeros((3, 2)), "observations/qpos": np.zeros((3, 2))})
        elif form == "npz":
            np.savez(source / name, action=np.zeros((3, 2)), state=np.zeros((3, 2)))
        elif form == "clouds":
            np.save(source / name, np.zeros((5, 3)))
        elif form == "mcap":
            write_mcap(source / name, {"/say": strings("a", "b")})
        else:
            write_bag1(
                source / name, {"/x": ("std_msgs/msg/Float64", [(1, message("std_msgs/msg/Float64", ROS1, data=1))])}
            )
    suffix = name.partition(".")[2]
    (source / f"latest.{suffix}").symlink_to(name)
    if form in ("npz", "clouds"):
        options["format"] = form
    report = robocache.ingest(source, tmp_path / "cache", **options)
    assert report.episodes == (1 if form == "clouds" else 2)
    assert report.rows.get("points", 2) == 2
    assert reasons(report.left_out)[f"latest.{suffix}"] == f"the same file as {name}"
    assert robocache.ingest(source / f"latest.{suffix}", tmp_path / "one", **options).episodes == 1


def test_symlinks_of_the_hubs_cache_are_read(rng, tmp_path):
    source = move_to_hub_cache(
        write_lerobot(tmp_path / "source", make_episodes(rng), "v3.0"), tmp_path / "hub/datasets--robots--pusht"
    )
    (tmp_path / "link").symlink_to(source)
    for number, path in enumerate((source, tmp_path / "link")):
        report = robocache.ingest(path, tmp_path / f"cache{number}")
        assert (report.episodes, report.rows["action"], report.skipped) == (3, 20, [])
        assert not any("symlink" in omission.reason for omission in report.left_out)


def test_a_snapshot_of_the_hub_may_link_only_to_its_own_blobs(rng, tmp_path):
    source = move_to_hub_cache(
        write_lerobot(tmp_path / "source", make_episodes(rng), "v3.0"), tmp_path / "hub/datasets--robots--pusht"
    )
    other = tmp_path / "hub/datasets--robots--other/blobs/1"
    other.parent.mkdir(parents=True)
    link = next(source.glob("data/*/*.parquet"))
    link.resolve().rename(other)
    link.unlink()
    link.symlink_to(other)
    assert_refused(source, tmp_path / "cache", str(link), "out of the source", "--follow-links")
    assert robocache.ingest(source, tmp_path / "cache", follow_links=True).rows["action"] == 20


def test_files_without_read_permission(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)))
    (source / "data/chunk-000/episode_000001.parquet").chmod(0)
    (source / "meta/tasks.jsonl").chmod(0)
    write_lines(tmp_path / "logs/imu.csv", "0.0,1", "0.1,2")
    write_lines(tmp_path / "logs/joint.csv", "0.0,1", "0.1,2").chmod(0)
    with without_privileges():
        assert_refused(source, tmp_path / "cache", "meta/tasks.jsonl", "Permission denied")
        assert_skipped(source, tmp_path / "cache", "meta/tasks", "data/chunk-000/episode_000001.parquet", "episodes 1")
        assert_refused(tmp_path / "logs", tmp_path / "cache2", "logs/joint.csv", "Permission denied")
        assert assert_skipped(tmp_path / "logs", tmp_path / "cache2", "joint.csv").rows == {"imu": 2}


def test_a_source_that_vanishes_midway(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4, 5)))
    # Not the second file, which may already be read ahead.
    vanishing = source / "data/chunk-000/episode_000002.parquet"
    content = vanishing.read_bytes()

    def vanish(done, total, what):
        vanishing.unlink(missing_ok=True)

    error = assert_refused(source, tmp_path / "cache", "episode_000002.parquet", "No such file", progress=vanish)
    assert isinstance(error.__cause__, FileNotFoundError)
    vanishing.write_bytes(content)
    report = assert_skipped(source, tmp_path / "cache", "data/chunk-000/episode_000002.parquet", progress=vanish)
    assert report.rows["action"] == 7

    logs = [write_lines(tmp_path / f"logs/{number}/imu.csv", "0.0,1", "0.1,2") for number in range(3)]
    report = assert_skipped(
        tmp_path / "logs", tmp_path / "cache2", "2/imu.csv", progress=lambda *_: logs[2].unlink(missing_ok=True)
    )
    assert report.rows == {"imu": 4}


# ---- folders ----


LEADS_OUT = "a symlink out of the source (--follow-links)"


@pytest.fixture
def linked_logs(tmp_path):
    """Two runs. One run, and a file of the other, are links out of the source."""
    write_lines(tmp_path / "elsewhere/imu.csv", "0.0,3", "0.5,4")
    write_lines(tmp_path / "elsewhere.csv", "0.0,5", "0.5,6")
    write_lines(tmp_path / "logs/run_1/imu.csv", "0.0,1", "0.5,2")
    (tmp_path / "logs/run_0").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "logs/run_1/joint.csv").symlink_to("../../elsewhere.csv")
    return tmp_path / "logs"


def test_symlinks_out_of_the_source_are_left_out_by_name(linked_logs, tmp_path):
    report = robocache.ingest(linked_logs, tmp_path / "cache")
    assert report.rows == {"imu": 2} and robocache.open(tmp_path / "cache").episode(0)["imu"][1].tolist() == [[1], [2]]
    assert reasons(report.left_out) == {"run_0": LEADS_OUT, "run_1/joint.csv": LEADS_OUT}


def test_symlinks_out_of_the_source_are_followed_with_the_option(linked_logs, tmp_path):
    assert robocache.ingest(linked_logs, tmp_path / "cache", follow_links=True).rows == {"imu": 4, "joint": 2}
    dataset = robocache.open(tmp_path / "cache")
    assert dataset.episodes["name"].to_pylist() == ["run_0", "run_1"]
    assert dataset.episode(0)["imu"][1].tolist() == [[3], [4]]


@pytest.mark.parametrize("follow_links", [False, True])
def test_every_route_follows_links_alike(follow_links, linked_logs, tmp_path, capsys):
    expected = {"imu": 4, "joint": 2} if follow_links else {"imu": 2}
    option = ["--follow-links"] * follow_links

    def rows(cache):
        return {name: stream.rows for name, stream in robocache.open(tmp_path / cache).streams.items()}

    assert robocache.ingest(linked_logs, tmp_path / "a", workers=2, follow_links=follow_links).rows == expected
    assert robocache.ingest(linked_logs, tmp_path / "a", append=True, follow_links=follow_links).rows == expected
    planned = plan(linked_logs, tmp_path / "plan", shards=2, follow_links=follow_links)
    for shard in range(2):
        convert(planned, shard)
    merge(tmp_path / "plan", tmp_path / "b")
    assert rows("b") == expected
    assert main(["plan", str(linked_logs), str(tmp_path / "plan2"), "--shards", "1", *option]) == 0
    assert main(["convert", str(tmp_path / "plan2"), "--shard", "0"]) == 0
    assert main(["merge", str(tmp_path / "plan2"), str(tmp_path / "c")]) == 0
    assert main(["ingest", str(linked_logs), str(tmp_path / "d"), *option]) == 0
    assert ("out of the source (--follow-links)" in capsys.readouterr().out) == (not follow_links)
    assert rows("c") == rows("d") == expected
    assert main(["ingest", str(linked_logs), "--dry-run", "--json", *option]) == 0
    preview = json.loads(capsys.readouterr().out)
    assert preview["recordings"] == 1 + follow_links
    main(["doctor", str(linked_logs), "--json", *option])
    assert ("out of the source" in capsys.readouterr().out) == (not follow_links)


def test_a_source_may_be_a_symlink_or_below_one(tmp_path, monkeypatch):
    write_lines(tmp_path / "real/run_1/imu.csv", "0.0,1", "0.5,2")
    (tmp_path / "real/run_2").symlink_to(tmp_path / "real/run_1")
    (tmp_path / "real/run_1/joint.csv").symlink_to("imu.csv")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file.csv").symlink_to("real/run_1/imu.csv")
    monkeypatch.chdir(tmp_path)
    for number, source in enumerate(("link", tmp_path / "link", "link/.", "link/run_1", "real/../link")):
        report = robocache.ingest(source, tmp_path / f"cache{number}")
        assert report.rows == {"imu": 2, "joint": 2} and LEADS_OUT not in reasons(report.left_out).values()
    assert robocache.ingest("file.csv", tmp_path / "cache").rows == {"file": 2}


def test_a_source_of_links_alone_names_the_option(tmp_path):
    write_lines(tmp_path / "imu.csv", "0.0,1", "0.5,2")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/imu.csv").symlink_to(tmp_path / "imu.csv")
    assert_refused(tmp_path / "logs", tmp_path / "cache", f"{tmp_path}/logs/imu.csv: {LEADS_OUT}")
    assert_refused(tmp_path / "logs", tmp_path / "cache", f"{tmp_path}/logs/imu.csv: {LEADS_OUT}", format="csv")


def test_an_image_behind_a_symlink_out_of_the_source(tmp_path):
    image = PIL.Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    (tmp_path / "logs/cam").mkdir(parents=True)
    for path in ("logs/cam/0.png", "out.png"):
        image.save(tmp_path / path)
    (tmp_path / "logs/cam/1.png").symlink_to(tmp_path / "out.png")
    write_lines(tmp_path / "logs/cam.csv", "time,file", "0.0,cam/0.png", "0.5,cam/1.png")
    assert_refused(tmp_path / "logs", tmp_path / "cache", f"{tmp_path}/logs/cam/1.png: {LEADS_OUT}")
    assert robocache.ingest(tmp_path / "logs", tmp_path / "cache", follow_links=True).rows == {"cam.file": 2}


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("v2.1", "data/chunk-000/episode_000001.parquet"),
        ("v2.1", "data/chunk-000"),
        ("v2.1", "data"),
        ("v2.1", "meta/tasks.jsonl"),
        ("v2.1", "meta/info.json"),
        ("v3.0", "meta/episodes"),
    ],
)
def test_a_lerobot_dataset_with_a_symlink_that_leads_out_of_it(version, name, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4, 5)), version)
    (source / name).rename(tmp_path / "out")
    (source / name).symlink_to(tmp_path / "out")
    assert_refused(source, tmp_path / "cache", f"{source / name}: {LEADS_OUT}")
    assert robocache.ingest(source, tmp_path / "cache", follow_links=True).rows["action"] == 12


@pytest.mark.parametrize("follow_links", [0.5, "yes", None])
def test_follow_links_must_be_a_bool(follow_links, linked_logs, tmp_path):
    with pytest.raises(robocache.ArgumentTypeError, match="follow_links"):
        robocache.ingest(linked_logs, tmp_path / "cache", follow_links=follow_links)


def test_no_folder_is_read_twice(tmp_path):
    write_lines(tmp_path / "logs/run_1/imu.csv", "0.0,1", "0.5,2")
    (tmp_path / "logs/latest").symlink_to("run_1")
    (tmp_path / "logs/run_1/up").symlink_to("..")
    report = robocache.ingest(tmp_path / "logs", tmp_path / "cache")
    assert report.rows == {"imu": 2}
    assert reasons(report.left_out) == {"latest": "the same folder as run_1", "run_1/up": "the same folder as ."}


@pytest.mark.parametrize("where", ["run_1", "chunk-000"])
def test_a_folder_without_read_permission(where, rng, tmp_path):
    if where == "run_1":
        source = tmp_path / "logs"
        for number in range(3):
            write_lines(source / f"run_{number}/imu.csv", "0.0,1", "0.5,2")
        folder, other_names = source / "run_1", []
    else:
        source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)))
        folder, other_names = source / "data/chunk-001", ["episodes 1"]
        folder.mkdir()
        (source / "data/chunk-000/episode_000001.parquet").rename(folder / "episode_000001.parquet")
    folder.chmod(0)
    with without_privileges():
        assert_refused(source, tmp_path / "cache", str(folder), "Permission denied")
        assert_skipped(source, tmp_path / "cache", str(folder.relative_to(source)), *other_names)
        source.chmod(0)
        assert_refused(source, tmp_path / "cache2", str(source), "Permission denied")
        assert_refused(source / "run_0", tmp_path / "cache2", str(source), "Permission denied")
    source.chmod(0o700)
    folder.chmod(0o700)


# ---- CSV ----


def test_a_bad_cell_among_numbers_is_refused_by_name(tmp_path):
    for number in range(3):
        write_lines(
            tmp_path / f"logs/run_{number}/imu.csv", "t,a,b", "0.0,1,2", "0.1,1.2.3,2" if number == 1 else "0.1,2,2"
        )
    assert_refused(tmp_path / "logs", tmp_path / "cache", "run_1/imu.csv", "Row #3", "1.2.3")
    assert assert_skipped(tmp_path / "logs", tmp_path / "cache", "run_1/imu.csv: line 3").rows == {"imu": 5}
    for cells in (["1.2.3", "1"], ["1.2.3", "1", "2"], ["", "1", "x"], ["True", "yes", "False"], ["nan", "inf", "bad"]):
        write_lines(tmp_path / "alone/imu.csv", "t,a", *(f"{row}.5,{cell}" for row, cell in enumerate(cells)))
        assert_refused(tmp_path / "alone", tmp_path / "cache2", "alone/imu.csv", "Row #")


def test_a_column_that_is_text_in_one_run(tmp_path):
    """Whichever run has the text, no rows are lost silently."""
    for text_run in (0, 1):
        for number in range(2):
            cells = ["word", "word"] if number == text_run else ["1", "2"]
            write_lines(tmp_path / f"logs/run_{number}/imu.csv", *(f"{row}.5,{cell}" for row, cell in enumerate(cells)))
        assert_refused(tmp_path / "logs", tmp_path / "cache", "run_1/imu.csv", "columns ['1']", "texts ['1']")


@pytest.mark.parametrize(
    "quoted", ['"push', '"push" it', '"push\n0.4,2,pull\n0.5,3,"go'], ids=["to the end", "beyond", "up to the next"]
)
def test_an_open_quote_loses_no_rows(quoted, tmp_path):
    lines = ["t_s,x,label", "0.1,0,go", f"0.2,1,{quoted}", "0.6,4,stop", "0.7,5,go"]
    write_lines(tmp_path / "logs/run/log.csv", *lines)
    if quoted.endswith("it"):  # without a line break nothing is lost
        assert robocache.ingest(tmp_path / "logs", tmp_path / "cache").rows == {"log": 4, "log.label": 4}
        return
    assert_refused(
        tmp_path / "logs", tmp_path / "cache", "log.csv: line 3: expected a quote to be closed behind its cell"
    )


def test_a_cell_of_several_lines_is_one_cell(tmp_path):
    write_lines(
        tmp_path / "logs/run/log.csv", "t_s,x,label", "0.1,0,go", '0.2,1,"push', 'and ""pull"""', "", "0.3,2,stop"
    )
    assert robocache.ingest(tmp_path / "logs", tmp_path / "cache").rows == {"log": 3, "log.label": 3}
    labels = robocache.open(tmp_path / "cache").episode(0)["log.label"][1]
    assert list(labels) == ["go", 'push\nand "pull"', "stop"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_another_encoding_than_utf_8(encoding, tmp_path):
    write_lines(tmp_path / "logs/good.csv", "0.0,1", "0.1,2")
    (tmp_path / "logs/imu.csv").write_text("t,temperature °C\n0.0,1\n0.1,2\n", encoding=encoding)
    assert_refused(tmp_path / "logs", tmp_path / "cache", "logs/imu.csv", "UTF-8")
    assert assert_skipped(tmp_path / "logs", tmp_path / "cache", "imu.csv").rows == {"good": 2}


def test_a_column_without_a_name_is_numbered(tmp_path):
    write_lines(tmp_path / "logs/imu.csv", "t,,a,", "0.0,1,2,", "0.1,3,4,")
    robocache.ingest(tmp_path / "logs", tmp_path / "cache")
    stream = robocache.open(tmp_path / "cache").streams["imu"]
    assert list(stream.names) == ["1", "a", "3"]
    np.testing.assert_array_equal(stream.values, [[1, 2, np.nan], [3, 4, np.nan]])


@pytest.mark.parametrize("stamp", ["1e-99999999999999999999", "1e99999999999999999999"])
def test_stamps_with_absurd_exponents(stamp, tmp_path):
    write_lines(tmp_path / "logs/imu.csv", "t_s,a", "0.0,1", f"{stamp},2")
    assert_refused(tmp_path / "logs", tmp_path / "cache", "logs/imu.csv", "line 3", stamp)
    write_lines(tmp_path / "logs/imu.csv", "t_s,a", "0.0,1", "1e-99999,2", "1e-9,3")
    robocache.ingest(tmp_path / "logs", tmp_path / "cache", time_unit="s")
    assert robocache.open(tmp_path / "cache").streams["imu"].time_ns.tolist() == [0, 0, 1]


def test_file_names_that_are_no_utf_8(tmp_path):
    write_lines(tmp_path / "logs/good.csv", "0.0,1", "0.1,2")
    write_lines(tmp_path / os.fsdecode(b"logs/imu_\xff.csv"), "0.0,1", "0.1,2")
    write_lines(tmp_path / os.fsdecode(b"logs/run_\xff/imu.csv"), "0.0,1", "0.1,2")
    write_lines(tmp_path / os.fsdecode(b"logs/notes.\xff"), "x")
    assert_refused(tmp_path / "logs", tmp_path / "cache", "xff", "UTF-8")
    report = assert_skipped(tmp_path / "logs", tmp_path / "cache", "imu_\\udcff.csv", "run_\\udcff/imu.csv")
    assert report.rows == {"good": 2}
    assert "*.\\udcff" in reasons(report.left_out)
    with pytest.raises(robocache.ArgumentError, match=r"source: .*UTF-8"):
        robocache.ingest(os.fsdecode(bytes(tmp_path) + b"/logs/run_\xff"), tmp_path / "cache2")


# ---- LeRobot ----


def test_an_unreadable_first_file_does_not_hide_columns_of_the_others(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4, 5)))
    name = "data/chunk-000/episode_000000.parquet"
    rewrite(source / name, lambda t: t.slice(0, 0).drop_columns(["action"]))
    assert assert_skipped(source, tmp_path / "cache", name, "episodes 0").rows["action"] == 9


def test_lists_of_one_number_are_numbers(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3,)))
    for name in ("timestamp", "frame_index", "episode_index"):
        rewrite(
            source / "data/chunk-000/episode_000000.parquet",
            lambda t, name=name: with_column(name, [[value] for value in t[name].to_pylist()])(t),
        )
    robocache.ingest(source, tmp_path / "cache")
    assert robocache.open(tmp_path / "cache").streams["action"].time_ns.tolist() == [0, 33333333, 66666667]


def test_a_column_whose_name_is_no_utf_8(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)))
    file = source / "data/chunk-000/episode_000001.parquet"
    content = file.read_bytes()
    assert b"next.reward" in content
    file.write_bytes(content.replace(b"next.reward", b"next.\xffeward"))
    assert_refused(source, tmp_path / "cache", "episode_000001.parquet")
    assert_skipped(source, tmp_path / "cache", "data/chunk-000/episode_000001.parquet", "episodes 1")


@pytest.mark.parametrize("chunk", [None, "0", 2.5])
def test_a_video_without_a_path(chunk, rng, tmp_path):
    pytest.importorskip("av", reason="no PyAV: pip install av")
    key = "observation.images.top"
    episodes = make_episodes(rng, (3, 3))
    for episode in episodes:
        episode.extra = {f"videos/{key}/chunk_index": chunk, f"videos/{key}/file_index": 0}
    features = {key: {"dtype": "video", "shape": [480, 640, 3]}}
    source = write_lerobot(tmp_path / "source", episodes, "v3.0", features=features)
    (source / f"videos/{key}/chunk-000").mkdir(parents=True)
    (source / f"videos/{key}/chunk-000/file-000.mp4").write_bytes(b"frames" * 50)
    assert_refused(source, tmp_path / "cache", "episode 0: ", f"does not say which file of {key} has it")
    assert_skipped(source, tmp_path / "cache", f"episode 0: {key}", f"episode 1: {key}")
    report = robocache.ingest(source, tmp_path / "cache2", video=False)
    assert reasons(report.left_out)[key] == "video; files for 0 of 2 episodes"


def test_metadata_of_changing_type(rng, tmp_path):
    episodes = make_episodes(rng, (3, 4, 5))
    for episode, operator in zip(episodes, (1, "ann", 2), strict=True):
        episode.extra = {"operator": operator}
    source = write_lerobot(tmp_path / "source", episodes)
    assert_refused(source, tmp_path / "cache", "episode_000001.parquet: episode 1", "operator")
    assert assert_skipped(source, tmp_path / "cache", "episode 1").rows["action"] == 8
    assert robocache.open(tmp_path / "cache").episodes["operator"].to_pylist() == [1, 2]


DEEP = "[" * 2000 + "]" * 2000
HUGE = "1" + "0" * 400


@pytest.mark.parametrize("value", [DEEP, HUGE, "1e400", '"\\ud800"', '"\udcff"', "1" * 5000])
@pytest.mark.parametrize("name", ["tasks", "episodes"])
def test_json_values_that_a_cache_cannot_hold(value, name, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)))
    file = source / f"meta/{name}.jsonl"
    lines = file.read_text().splitlines()
    lines[-1] = lines[-1][:-1] + f', "odd": {value}}}'
    file.write_text("\n".join(lines), errors="surrogateescape")
    assert_refused(source, tmp_path / "cache", f"{name}.jsonl", f"line {len(lines)}")
    assert assert_skipped(source, tmp_path / "cache", f"meta/{name}").rows["action"] == 7


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("value", [DEEP, "[" * 500 + "]" * 500, HUGE, "1e400", '"\\ud800"', '"\udcff"', "1" * 5000])
@pytest.mark.parametrize("key", ["fps", "robot_type"])
def test_info_that_a_cache_cannot_hold_is_refused_at_once(key, value, on_error, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3,)))
    info = json.loads((source / "meta/info.json").read_text())
    info[key] = "ODD"
    (source / "meta/info.json").write_text(json.dumps(info).replace('"ODD"', value), errors="surrogateescape")
    steps = []
    assert_refused(
        source, tmp_path / "cache", "info.json", on_error=on_error, progress=lambda *step: steps.append(step)
    )
    assert steps == []


@pytest.mark.parametrize("fps", [True, -1, 1e-300])
def test_invalid_rates_are_refused(fps, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3,)), info={"fps": fps})
    assert_refused(source, tmp_path / "cache", str(source))


@pytest.mark.parametrize("names", [["", "b", "c"], ["a", "b"], ["a", 1, "c"]])
def test_invalid_feature_names_are_left_out(names, rng, tmp_path):
    features = {"observation.state": {"dtype": "float32", "shape": [3], "names": names}}
    report = robocache.ingest(
        write_lerobot(tmp_path / "source", make_episodes(rng), features=features), tmp_path / "cache"
    )
    assert "expected 3" in reasons(report.left_out)["observation.state: names of its features"]
    assert not robocache.open(tmp_path / "cache").streams["observation.state"].names


def test_an_unnamed_column_is_refused(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3,)))
    rewrite(source / "data/chunk-000/episode_000000.parquet", lambda t: t.append_column("", t["next.reward"]))
    assert_refused(source, tmp_path / "cache", "episode_000000.parquet", "stream")


def test_meta_tables_with_times(rng, tmp_path):
    """A column of any Parquet type that is neither text nor numbers is left out by name."""
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)), "v3.0")
    rewrite(
        source / "meta/episodes/chunk-000/file-000.parquet",
        lambda t: t.append_column("at", pa.array([0, 10**18], pa.timestamp("ns"))).append_column(
            "seed", pa.array([2**64 - 1, 0], pa.uint64())
        ),
    )
    assert_refused(source, tmp_path / "cache", "episode 0", "int64")
    report = assert_skipped(source, tmp_path / "cache", "episode 0")
    assert "episodes.at" in reasons(report.left_out)


@pytest.mark.parametrize("task", [float("nan"), 3, ["pick"], b"pick"])
def test_tasks_that_are_no_text(task, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)), "v3.0")
    write_table(source / "meta/tasks.parquet", pa.table({"task_index": [0], "task": [task]}))
    assert_refused(source, tmp_path / "cache", "expected text for task 0")
    assert assert_skipped(source, tmp_path / "cache", "meta/tasks").rows["action"] == 7


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("second", ["place", "pick", None])
def test_a_task_index_with_two_texts_is_refused(version, second, rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3, 4)), version)
    if version == "v3.0":
        table = pa.table({"task_index": [0, 0], "task": ["pick", second]})
        write_table(source / "meta/tasks.parquet", table)
    else:
        rows = [{"task_index": 0, "task": "pick"}, {"task_index": 0, "task": second}]
        write_json_lines(source / "meta/tasks.jsonl", rows)
    if second == "pick":
        robocache.ingest(source, tmp_path / "cache")
    else:
        assert_refused(source, tmp_path / "cache", f"expected one text for task 0, got 'pick' and {second!r}")


def test_deeply_nested_features_are_refused_at_once(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3,)))
    info = json.loads((source / "meta/info.json").read_text())
    info["features"]["observation.images.top"] = {"dtype": "video", "shape": "ODD"}
    (source / "meta/info.json").write_text(json.dumps(info).replace('"ODD"', "[" * 500 + "]" * 500))
    steps = []
    assert_refused(source, tmp_path / "cache", "meta", on_error="skip", progress=lambda *step: steps.append(step))
    assert steps == []


def test_json_lines_with_a_byte_order_mark(rng, tmp_path):
    source = write_lerobot(tmp_path / "source", make_episodes(rng, (3,)))
    (source / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "pick"}\n', encoding="utf-8-sig")
    write_json_lines(source / "meta/episodes.jsonl", [{"episode_index": 0}])
    robocache.ingest(source, tmp_path / "cache")
    assert robocache.open(tmp_path / "cache").provenance["lerobot"]["tasks"] == {"0": "pick"}
