"""The way to the helpers beside these tests and to the real robot data."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # makes `lerobot_files` importable


@pytest.fixture
def real_data():
    """Gives a folder of the real robot data by its name; the test is skipped where that is not there."""

    def find(name):
        root = os.environ.get("ROBOCACHE_TEST_DATA")
        if not root:
            pytest.skip("no real robot data: ROBOCACHE_TEST_DATA names no folder")
        folder = Path(root) / name
        if not folder.exists():
            pytest.skip(f"no real robot data: {folder} does not exist")
        return folder

    return find
