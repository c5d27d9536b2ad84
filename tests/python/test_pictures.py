"""The pictures of the pages show what robocache computes, and the pages lead to what is there."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pictures_show_the_numbers_of_today():
    done = subprocess.run([sys.executable, "docs/pictures.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_lead_somewhere_and_every_picture_is_shown():
    reached = set()
    for page in (ROOT / "README.md", ROOT / "src/robocache/README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            reached.add((page.parent / link).resolve())
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    assert set((ROOT / "docs").glob("*.png")) <= reached
    assert set((ROOT / "docs").glob("*.md")) <= reached
