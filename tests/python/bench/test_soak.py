"""A short soak of every part, and leaks planted on purpose, each of which fails it by name."""

import importlib.util
import json
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    spec = importlib.util.spec_from_file_location("soak_of_bench", ROOT / "bench/soak.py")  # tests/soak.py is another
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_no_part_leaves_anything_behind(device, tmp_path):
    result = tmp_path / "soak.json"
    options = ["--minutes", "0.25", "--device", device, "--json", str(result)]
    done = subprocess.run(
        [sys.executable, ROOT / "bench/soak.py", *options], capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    found = json.loads(result.read_text())
    assert found["rounds"] >= 12 and len(found["parts"]) == 10
    # Memory still rises in the first rounds: ./dev soak judges it over minutes.
    assert not [one for one in found["failures"] if "memory_bytes" not in str(one)], done.stdout + done.stderr


class Leaks:
    """Keeps one more of a kind in each call."""

    def __init__(self, kind):
        self.kind, self.kept, self.ends = kind, [], threading.Event()

    def __call__(self, stage):
        if self.kind == "memory_bytes":
            self.kept.append(np.ones(1 << 20, np.uint8))
        elif self.kind == "descriptors":
            self.kept.append(os.open("/dev/null", os.O_RDONLY))
        elif self.kind == "mappings":
            protection = (
                mmap.PROT_READ if len(self.kept) % 2 else mmap.PROT_READ | mmap.PROT_WRITE
            )  # neighbours stay apart
            self.kept.append(mmap.mmap(-1, 4096, prot=protection))
        elif self.kind == "threads":
            self.kept.append(threading.Thread(target=self.ends.wait))
            self.kept[-1].start()
        elif self.kind == "processes":
            self.kept.append(subprocess.Popen(["sleep", "100"]))
        else:
            (stage.folder / f"left-{len(self.kept)}").touch()
            self.kept.append(None)

    def close(self):
        self.ends.set()
        for one in self.kept:
            if self.kind == "descriptors":
                os.close(one)
            elif self.kind == "threads":
                one.join()
            elif self.kind == "processes":
                one.kill()
                one.wait()


KEPT = []


def once(stage):
    """Keeps much, once: no leak."""
    if stage.round == 10:
        KEPT.append(np.ones(32 << 20, np.uint8))


@pytest.mark.parametrize("kind", ["memory_bytes", "descriptors", "mappings", "threads", "processes", "files"])
def test_a_planted_leak_fails_with_the_name_of_its_part(soak, kind):
    leaks = Leaks(kind)
    parts = {"still": lambda stage: "the same", "once": once, "leaking": leaks}
    try:
        result = soak.run(parts, 0, "cpu", least_rounds=18)
    finally:
        leaks.close()
    assert result["growth"][kind]["grows"]
    assert [failure for failure in result["failures"] if failure.startswith(f"leaking: {kind} grows by ")]
    assert not [failure for failure in result["failures"] if not failure.startswith("leaking: ")]


def test_parts_that_do_not_leak_pass(soak):
    result = soak.run({"still": lambda stage: "the same", "once": once}, 0, "cpu", least_rounds=18)
    assert result["failures"] == [] and result["rounds"] == 18


def test_another_result_and_an_exception_fail(soak):
    def fails(stage):
        raise ValueError("on purpose")

    result = soak.run({"turns": lambda stage: stage.round // 2, "fails": fails}, 0, "cpu", least_rounds=3)
    assert "turns: round 2 gave 1, the first 0" in result["failures"]
    assert "fails: round 0: ValueError: on purpose" in result["failures"]
