"""Ingests in several processes of this machine: they convert the shards of a plan, which are then merged. A killed ingest resumes."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import dataset
from ..errors import ArgumentError, ArgumentTypeError, Error, FileError
from ..installation import num_threads, set_num_threads
from ..writer import Writer
from .driver import IngestReport, Progress, Work, report
from .files import is_readable
from .python_process import start
from .recording import Assumption, Notes, Omission, ShardsError, SourceError
from .shards import PLAN, Plan, convert, load_plan, merge_plan, remove, save, survey

# How long the processes of a killed run may take to end.
_WAIT_S = 10.0


def ingest_with_workers(
    work: Work, cache: Path, workers: int, *, overwrite: bool, progress: Progress | None
) -> IngestReport:
    """Does the work of :func:`ingest` with `workers`: plans, converts and merges in ``CACHE.shards``, which is removed at the end.

    Raises:
        ShardsError: only a single process can ingest this source.
    """
    started = time.perf_counter()
    if not os.path.lexists(cache):
        Writer(cache).abort()  # fails before the work if the cache cannot be made
    folder = cache.with_name(f"{cache.name}.shards")
    marker = folder / "merged"
    if os.path.lexists(cache) and not overwrite and not folder.exists():
        raise FileError(f"{cache}: it exists already; overwrite=True (--overwrite) replaces a cache")
    with _locked(folder) as lock:
        try:
            plan = _find_plan(work, folder, workers)
        except Error:
            if not (folder / PLAN).exists():
                remove(folder)
            raise
        if os.path.lexists(cache) and not overwrite:
            # merge_plan writes the cache's inode to the marker.
            is_finished = is_readable(marker) and marker.read_text() == str(os.stat(cache).st_ino)
            remove(folder)
            if not is_finished:
                raise FileError(f"{cache}: it exists already; overwrite=True (--overwrite) replaces a cache")
            return _make_report(work, cache, time.perf_counter() - started)
        try:
            _convert_all(plan, workers, progress, lock)
            merge_plan(plan, None, cache, overwrite, None, marker)
        except (SourceError, ShardsError, ArgumentError, ArgumentTypeError):
            remove(folder)  # a second run would raise these errors again
            raise
        remove(folder)
    return _make_report(work, cache, time.perf_counter() - started)


def _make_report(work: Work, cache: Path, seconds: float) -> IngestReport:
    provenance = dataset.open(cache).provenance
    notes = Notes(work.format.name, {}, work.on_error)
    notes.left_out = [Omission(**omission) for omission in provenance["left_out"]]
    notes.skipped = [Omission(**omission) for omission in provenance["skipped"]]
    notes.assumed = [Assumption(**fact) for fact in provenance.get("assumed", ())]
    return report(work, cache, notes, provenance.get("repair", {}).get("streams", {}), seconds)


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Makes the folder and holds its lock. The processes of the ingest inherit it, so it is free only when the last one has ended.

    Raises:
        FileError: another ingest holds the lock.
    """
    path = folder / "lock"
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # another process has just removed the folder
            continue
        except OSError as error:
            raise FileError(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
                break
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                raise FileError(f"{folder}: another ingest is at work on it") from None
            time.sleep(0.02)
        except OSError as error:
            os.close(lock)
            raise FileError(f"{path}: {error.strerror}") from error
        os.close(lock)
    try:
        yield lock
    finally:
        os.close(lock)


def _find_plan(work: Work, folder: Path, workers: int) -> Plan:
    """Returns the plan of a killed run if the source has not changed since; else empties the folder and returns a new plan."""
    plan = survey(work, folder, None, workers)
    with suppress(FileError):
        before = load_plan(folder)
        if {**before.described, "shards": 0} == {**plan.described, "shards": 0}:
            return before
    for entry in folder.iterdir():
        if entry.name != "lock":
            remove(entry)
    save(plan)
    return plan


def work_on(folder: str, threads: int, parent: int) -> None:
    """The program of a process that converts shards. It reads their numbers, one a line, and writes a line of JSON for each step."""
    # PR_SET_PDEATHSIG: this process is killed when its parent ends in any way.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        return
    set_num_threads(threads)
    to_parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps what a reader or its libraries print out of these lines

    def write(**line: Any) -> None:
        print(json.dumps(line), file=to_parent, flush=True)

    try:
        plan = load_plan(folder)
        for line in sys.stdin:
            shard = int(line)
            convert(plan, shard, progress=lambda done, total, what: write(done=done, what=what), jobs=threads)
            write(finished=shard)
    except Error as error:
        kind = next(kind for kind in _KINDS if isinstance(error, kind))
        write(error=str(error), kind=kind.__name__)


# Classes of errors that a process names to its parent, each before the class that it derives from.
_KINDS: tuple[type[Error], ...] = (ShardsError, SourceError, FileError, ArgumentError, ArgumentTypeError, Error)


@dataclass(eq=False)
class _Worker:
    """A process that converts shards, and the number of the shard that it is converting."""

    process: subprocess.Popen[str]
    shard: int | None = None

    def give(self, shard: int | None) -> None:
        """Sends the next shard; None ends the process."""
        self.shard = shard
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, and listen() reports that
            if shard is None:
                self.process.stdin.close()
            else:
                self.process.stdin.write(f"{shard}\n")
                self.process.stdin.flush()

    def listen(self, lines: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        """Puts each line of the process into the queue, and None when the process has ended."""
        assert self.process.stdout is not None
        with suppress(ValueError), self.process.stdout:  # a killed process may leave half a line
            for line in self.process.stdout:
                lines.put((self, json.loads(line)))
        lines.put((self, None))


def _convert_all(plan: Plan, count: int, progress: Progress | None, lock: int) -> None:
    """Converts the shards that are not finished, in `count` processes."""
    report = progress or (lambda done, total, what: None)
    unfinished = [shard for shard in range(plan.shards) if not plan.path(shard).exists()]
    done = {shard: plan.count(shard) for shard in range(plan.shards) if shard not in unfinished}
    waiting = iter(unfinished)
    lines: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = queue.SimpleQueue()
    workers: list[_Worker] = []
    try:
        for _ in range(min(count, len(unfinished))):
            threads = max(1, num_threads() // count)
            process = start(
                work_on,
                str(plan.folder),
                threads,
                os.getpid(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[lock],
            )
            worker = _Worker(process)
            workers.append(worker)
            worker.give(next(waiting))
            try:
                threading.Thread(target=worker.listen, args=(lines,), daemon=True).start()
            except RuntimeError as error:
                raise Error(f"workers: {error}; expected a thread for each process, ask for fewer workers") from error
        running = len(workers)
        while running:
            worker, line = lines.get()
            if line is None:
                running -= 1
                code = worker.process.wait()
                if worker.shard is not None:
                    raise FileError(
                        f"{plan.path(worker.shard)}: the process that converts it ended unexpectedly (exit code {code})"
                    )
            elif "error" in line:
                raise next(kind for kind in _KINDS if kind.__name__ == line["kind"])(line["error"])
            elif "finished" in line:
                done[line["finished"]] = plan.count(line["finished"])
                worker.give(next(waiting, None))
            elif worker.shard is not None:
                done[worker.shard] = line["done"] - plan.share(worker.shard).start
                report(sum(done.values()), plan.recordings, line["what"])
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            with suppress(BrokenPipeError), worker.process:
                worker.process.wait()
