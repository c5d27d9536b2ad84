"""A benchmark's results: one JSON file, rewritten after every case, so that an interrupted run keeps its results."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch
from measure import wait_for_device

import robocache

HERE = Path(__file__).resolve().parent


def arguments(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="folder for the JSON file; bench/results, or build/bench with --quick")
    parser.add_argument("--quick", action="store_true", help="small cases and few rounds, to see whether it runs")
    parser.add_argument("--only", help="run the cases with this in their names; results go to build/bench")
    parser.add_argument("--append", action="store_true", help="keep the other cases of the existing file")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads of robocache and of torch on the CPU"
    )
    parser.add_argument("--machine", help="the machine's name in the file's name; by default the GPU's or the CPU's")
    parser.add_argument("--commit", default=os.environ.get("ROBOCACHE_COMMIT"), help="the commit, if git cannot tell")
    return parser


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields a new folder, and removes it when the device has finished."""
    with tempfile.TemporaryDirectory(prefix="robocache-bench-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            wait_for_device()


class Report:
    """Collects the cases of one benchmark.

    File: {bench, machine: {...}, command, commit, date, quick, predicted: {...}, aims: {...}, cases: [{name, ...}]}.
    A case has "parameters", "bytes" (the fewest that must move, stated before timing), "floor_us" (a copy of as many bytes),
    "contenders": {name: {"<measure>": value}}, robocache first, and "seconds", its total time; "error" if it failed; and its
    own "commit" if it is from an earlier run. Predictions and aims: {case: {measure: value}}.
    """

    def __init__(self, bench: str, options: argparse.Namespace, predicted: dict, aims: dict | None = None) -> None:
        torch.set_num_threads(options.threads)
        robocache.set_num_threads(options.threads)
        if options.device == "cpu":
            keep_freed_memory()
        machine = describe_machine(options)
        self.only = options.only or ""
        is_partial = options.quick or self.only
        folder = options.out or (HERE.parent / "build/bench" if is_partial else HERE / "results")
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{machine['name']}-{bench}.json"
        self.content = {
            "bench": bench,
            "machine": machine,
            "command": f"python {shlex.join(['bench/' + Path(sys.argv[0]).name, *public_arguments(sys.argv[1:])])}",
            "commit": options.commit or find_commit(),
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            "quick": options.quick,
            "predicted": predicted,
            "aims": aims or {},
            "cases": [],
        }
        if options.append and self.path.exists():
            earlier = json.loads(self.path.read_text())
            self.content["cases"] = [{"commit": earlier["commit"], **case} for case in earlier["cases"]]
            self.content["command"] = "; ".join(
                dict.fromkeys([*earlier["command"].split("; "), self.content["command"]])
            )
        print(f"{bench} on {machine['name']}, {self.content['commit']} -> {self.path}", flush=True)

    def run(self, name: str, parameters: dict, work: Callable[[dict], None]) -> None:
        """Runs one case. `work` fills the case's dict. If it fails, the part that it filled stays."""
        if self.only not in name:
            return
        print(f"{name} ...", flush=True)
        case = {"name": name, "parameters": parameters}
        self.content["cases"] = [*(other for other in self.content["cases"] if other["name"] != name), case]
        start = time.perf_counter()
        try:
            work(case)
        except Exception as error:
            case["error"] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        case["seconds"] = round(time.perf_counter() - start, 1)
        self.write()
        for contender, measures in case.get("contenders", {}).items():
            print(
                f"  {contender:28s}" + "  ".join(f"{key} {format_value(value)}" for key, value in measures.items()),
                flush=True,
            )
        if "floor_us" in case:
            print(
                f"  {'copy of as many bytes':28s}{case['floor_us']:.2f} us for {case['bytes'] / 1e6:.1f} MB", flush=True
            )
        print(f"  {case['seconds']} s", flush=True)

    def case(self, name: str) -> dict:
        """Returns the case of this name if it has run, or an empty dict."""
        return next((case for case in self.content["cases"] if case["name"] == name), {})

    def write(self) -> None:
        new_file = self.path.with_suffix(".partial")
        new_file.write_text(json.dumps(self.content, indent=1) + "\n")
        new_file.replace(self.path)

    @property
    def failed(self) -> bool:
        """Whether a case failed, or a contender in one."""
        return any("error" in case or case.get("failures") for case in self.content["cases"])


def format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def public_arguments(argv: list[str]) -> list[str]:
    """Returns the command's arguments without the folders and names that exist only on this machine."""
    public, skip = [], False
    for argument in argv:
        if argument == "--append":
            continue
        if skip or argument.split("=")[0] in ("--out", "--commit", "--cache", "--machine"):
            skip = not skip and "=" not in argument
            continue
        public.append(argument)
    return public


def find_commit() -> str:
    def git(*command: str) -> str:
        completed = subprocess.run(["git", *command], cwd=HERE, capture_output=True, text=True, check=True)
        return completed.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def keep_freed_memory() -> None:
    """Makes glibc keep the memory of freed arrays, as it does in a process that has run for long. Otherwise it may return the
    memory to the system, and every new output would cost page faults. Does nothing without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    m_trim_threshold, m_mmap_threshold = -1, -3  # malloc.h
    mallopt(m_trim_threshold, 1 << 30)
    mallopt(m_mmap_threshold, 32 << 20)


def describe_machine(options: argparse.Namespace) -> dict:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cpu = cpu.group(1) if cpu else platform.machine()
    facts = {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": options.threads,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "robocache": robocache.check_installation()["versions"]["robocache"],
    }
    name = f"{cpu} {os.cpu_count()} cores"
    if options.device == "cuda":
        name = torch.cuda.get_device_name()
        facts |= {"gpu": name, "driver": find_driver_version(), "cuda": torch.version.cuda}
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)|processor|cpu", "", name.lower())).strip("-")
    return {"name": options.machine or slug, **facts}


def find_driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return (
            subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.split("\n")[0].strip()
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
