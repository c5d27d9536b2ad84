"""docs/training.md and its pictures show the result files."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_results():
    done = subprocess.run([sys.executable, "docs/training.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
