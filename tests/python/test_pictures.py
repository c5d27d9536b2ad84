"""The pictures of the pages show robocache's results, and links of the pages work."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pictures_are_current():
    process = subprocess.run([sys.executable, "docs/pictures.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_links_work_and_every_picture_is_shown():
    targets = set()
    for page in (ROOT / "README.md", ROOT / "src/robocache/README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            targets.add((page.parent / link).resolve())
            assert (page.parent / link).exists(), f"{page.name}: {link}"
    assert set((ROOT / "docs").glob("*.png")) <= targets
    assert set((ROOT / "docs").glob("*.md")) <= targets
