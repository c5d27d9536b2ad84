"""The pictures of the pages show robocache's results, and links of the pages work."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pictures_are_current():
    done = subprocess.run([sys.executable, "docs/pictures.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_work_and_every_picture_is_shown():
    reached = set()
    for page in (ROOT / "README.md", ROOT / "src/robocache/README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            reached.add((page.parent / link).resolve())
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    assert set((ROOT / "docs").glob("*.png")) <= reached
    assert set((ROOT / "docs").glob("*.md")) <= reached
