"""docs/training.md and its pictures show the result files."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_results():
    process = subprocess.run([sys.executable, "docs/training.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
