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

# In place of a full disk, the first argument limits the size of files in bytes; 0 is no limit.
_COMMAND = """
import resource, signal, sys
sys.modules["torch"] = None
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from robocache.cli import main
if int(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


def run_command(*arguments, max_file_bytes=0, **options):
    line = [sys.executable, "-c", _COMMAND, str(max_file_bytes), *map(str, arguments)]
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
    before, arguments, expected = COMMANDS[name]
    for line in before:
        assert main(line) == 0
    return arguments, folder / ("work/shard-000" if name == "convert" else "result"), expected


def check_repeated_run(name, folder, arguments, result, expected):
    """Runs the command again without the fault, and compares the result."""
    assert main(arguments) == 0
    if expected is not None:
        assert contents(result) == contents(folder / expected)
    elif name == "convert":
        robocache.open(result, verify=True)


@pytest.mark.parametrize(("name", "max_file_bytes"), [(name, 100 if name == "plan" else 30_000) for name in COMMANDS])
def test_a_full_disk(name, max_file_bytes, folder):
    arguments, result, expected = prepare(name, folder)
    before = contents(result)
    failed = run_command(*arguments, cwd=folder, max_file_bytes=max_file_bytes)
    assert failed.returncode == 1, failed
    assert "File too large" in failed.stderr and "Traceback" not in failed.stderr
    assert failed.stderr.startswith("robocache ")
    if name == "append":
        robocache.open(result, verify=True)
        assert contents(result) == before
    else:
        with pytest.raises(robocache.FileError):
            robocache.open(result)
    check_repeated_run(name, folder, arguments, result, expected)


@pytest.fixture
def unprivileged():
    """Returns options of subprocess.run with which permissions apply to a process, even to root's."""
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
def test_a_folder_without_write_permission(name, folder, unprivileged):
    arguments, result, expected = prepare(name, folder)
    before = contents(folder)
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    failed = run_command(*arguments, cwd=folder, **unprivileged)
    assert failed.returncode == 1, failed
    assert "Permission denied" in failed.stderr and "Traceback" not in failed.stderr
    named_path = {"convert": "work/"}.get(name, "result")
    assert named_path in failed.stderr
    assert contents(folder) == before
    for path in folders:
        path.chmod(0o755)
    check_repeated_run(name, folder, arguments, result, expected)


@pytest.mark.parametrize("name", ["ingest", "workers", "convert", "append"])
def test_a_file_without_read_permission(name, folder, unprivileged):
    arguments, result, expected = prepare(name, folder)
    before = contents(result)
    file = folder / ("more/2/imu.csv" if name == "append" else "logs/0/imu.csv")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    file.chmod(0)
    failed = run_command(*arguments, cwd=folder, **unprivileged)
    assert failed.returncode == 1, failed
    assert f"{file.relative_to(folder)}: Permission denied" in failed.stderr and "Traceback" not in failed.stderr
    assert contents(result) == before
    file.chmod(0o644)
    if name == "convert":  # the plan was made before; permissions do not count as a change
        check_repeated_run(name, folder, arguments, result, expected)


@pytest.mark.parametrize("name", ["convert", "merge"])
def test_a_source_that_changed_after_the_plan(name, folder):
    arguments, result, _ = prepare(name, folder)
    file = folder / "logs/1/imu.csv"
    file.write_text(file.read_text() + "900.0,1,2\n")
    failed = run_command(*arguments, cwd=folder)
    assert failed.returncode == 1 and "logs/1/imu.csv: changed since " in failed.stderr
    assert "plan the source anew" in failed.stderr and not result.exists()


@pytest.mark.parametrize("name", ["ingest", "append"])
def test_a_source_that_changes_while_it_is_read(name, folder, monkeypatch):
    """A file is deleted before it is read."""
    from robocache.ingest import csv

    _, result, _ = prepare(name, folder)
    before = contents(result)
    source = folder / ("more" if name == "append" else "logs")
    last_file = sorted(source.rglob("imu.csv"))[-1]
    read = csv.read

    def read_and_delete(*arguments):
        for recording in read(*arguments):
            last_file.unlink(missing_ok=True)
            yield recording

    monkeypatch.setattr(csv, "read", read_and_delete)
    with pytest.raises(robocache.FileError, match=r"imu\.csv: No such file"):
        robocache.ingest(source, result, append=name == "append")
    assert contents(result) == before
