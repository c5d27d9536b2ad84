"""The pictures of the pages show what robocache computes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pictures_show_the_numbers_of_today():
    done = subprocess.run([sys.executable, "docs/pictures.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
