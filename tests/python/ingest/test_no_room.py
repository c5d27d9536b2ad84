"""A full disk, folders without write permission, files without read permission, and sources that change. For every command the error
names the path, no incomplete result opens, and the same command later gives the same bytes."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from robocache.cli import main

import robocache

# A limit on the size of files stands for the full disk: its first argument in bytes, 0 for none.
_COMMAND = """
import resource, signal, sys
sys.modules["torch"] = None
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from robocache.cli import main
if int(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


def command(*arguments, room=0, **options):
    line = [sys.executable, "-c", _COMMAND, str(room), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, **options)


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def write_log(folder, first, rows=3000):
    folder.mkdir(parents=True)
    lines = "".join(f"{first + row / 100:.2f},{row},{row * row}\n" for row in range(rows))
    (folder / "imu.csv").write_text("t [s],x,y\n" + lines)


@pytest.fixture
def folder(request, monkeypatch):
    """A folder that every user may enter, with logs and their caches."""
    folder = Path(tempfile.mkdtemp(prefix="robocache-no-room-", dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o755)
    monkeypatch.chdir(folder)
    for number in range(2):
        write_log(folder / f"logs/{number}", 100 * number)
    write_log(folder / "more/2", 300)
    robocache.ingest(folder / "logs", folder / "whole")
    shutil.copytree(folder / "whole", folder / "longer")
    robocache.ingest(folder / "more", folder / "longer", append=True)
    return folder


# Each command: (commands before it, its arguments, the cache that its result must equal).
COMMANDS = {
    "ingest": ([], ["ingest", "logs", "result"], "whole"),
    "workers": ([], ["ingest", "logs", "result", "--workers", "2"], "whole"),
    "plan": ([], ["plan", "logs", "result", "--shards", "2"], None),
    "convert": ([["plan", "logs", "work", "--shards", "2"]], ["convert", "work", "--shard", "0"], None),
    "merge": (
        [["plan", "logs", "work", "--shards", "2"], *(["convert", "work", "--shard", shard] for shard in "01")],
        ["merge", "work", "result"],
        "whole",
    ),
    "append": ([["ingest", "logs", "result"]], ["append", "more", "result"], "longer"),
    "mcap": ([], ["export", "whole", "result", "--to", "mcap"], None),
    "lerobot": ([], ["export", "whole", "result", "--to", "lerobot", "--fps", "100"], None),
}


def prepare(name, folder):
    before, arguments, wanted = COMMANDS[name]
    for line in before:
        assert main(line) == 0
    return arguments, folder / ("work/shard-000" if name == "convert" else "result"), wanted


def check(name, folder, arguments, result, wanted):
    """Runs the command again, now with room: it finishes what the first run could not."""
    assert main(arguments) == 0
    if wanted is not None:
        assert contents(result) == contents(folder / wanted)
    elif name == "convert":
        robocache.open(result, verify=True)


@pytest.mark.parametrize(("name", "room"), [(name, 100 if name == "plan" else 30_000) for name in COMMANDS])
def test_a_full_disk(name, room, folder):
    arguments, result, wanted = prepare(name, folder)
    before = contents(result)
    failed = command(*arguments, cwd=folder, room=room)
    assert failed.returncode == 1, failed
    assert "File too large" in failed.stderr and "Traceback" not in failed.stderr
    assert failed.stderr.startswith("robocache ")
    if name == "append":
        robocache.open(result, verify=True)
        assert contents(result) == before
    else:
        with pytest.raises(robocache.FileError):
            robocache.open(result)
    check(name, folder, arguments, result, wanted)


@pytest.fixture
def bound():
    """Options of subprocess.run for a process of root to which permissions apply."""
    if os.geteuid():
        return {}
    options = {"preexec_fn": _drop_rights}
    try:
        subprocess.run(["true"], check=True, **options)
    except subprocess.SubprocessError:
        pytest.skip("root's rights cannot be dropped here")
    return options


def _drop_rights():
    """Drops CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH from the bounding set, which takes effect after exec."""
    for capability in (1, 2):
        if ctypes.CDLL(None).prctl(24, capability, 0, 0, 0):
            raise OSError


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_without_write_permission(name, folder, bound):
    arguments, result, wanted = prepare(name, folder)
    before = contents(folder)
    closed = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for part in closed:
        part.chmod(0o555)
    failed = command(*arguments, cwd=folder, **bound)
    assert failed.returncode == 1, failed
    assert "Permission denied" in failed.stderr and "Traceback" not in failed.stderr
    folder_named = {"convert": "work/"}.get(name, "result")
    assert folder_named in failed.stderr
    assert contents(folder) == before
    for part in closed:
        part.chmod(0o755)
    check(name, folder, arguments, result, wanted)


@pytest.mark.parametrize("name", ["ingest", "workers", "convert", "append"])
def test_a_file_without_read_permission(name, folder, bound):
    arguments, result, wanted = prepare(name, folder)
    before = contents(result)
    file = folder / ("more/2/imu.csv" if name == "append" else "logs/0/imu.csv")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    file.chmod(0)
    failed = command(*arguments, cwd=folder, **bound)
    assert failed.returncode == 1, failed
    assert f"{file.relative_to(folder)}: Permission denied" in failed.stderr and "Traceback" not in failed.stderr
    assert contents(result) == before
    file.chmod(0o644)
    if name == "convert":  # the plan was made before; permissions do not count as a change
        check(name, folder, arguments, result, wanted)


@pytest.mark.parametrize("name", ["convert", "merge"])
def test_a_source_that_changed_after_the_plan(name, folder):
    arguments, result, _ = prepare(name, folder)
    file = folder / "logs/1/imu.csv"
    file.write_text(file.read_text() + "900.0,1,2\n")
    failed = command(*arguments, cwd=folder)
    assert failed.returncode == 1 and "logs/1/imu.csv: changed since " in failed.stderr
    assert "plan the source anew" in failed.stderr and not result.exists()


@pytest.mark.parametrize("name", ["ingest", "append"])
def test_a_source_that_changes_while_it_is_read(name, folder, monkeypatch):
    """A file is gone, or shorter, when it is read."""
    from robocache.ingest import csv

    _, result, _ = prepare(name, folder)
    before = contents(result)
    source = folder / ("more" if name == "append" else "logs")
    last = sorted(source.rglob("imu.csv"))[-1]
    read = csv.read

    def losing(*arguments):
        for recording in read(*arguments):
            last.unlink(missing_ok=True)
            yield recording

    monkeypatch.setattr(csv, "read", losing)
    with pytest.raises(robocache.FileError, match=r"imu\.csv: No such file"):
        robocache.ingest(source, result, append=name == "append")
    assert contents(result) == before
