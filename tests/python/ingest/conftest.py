"""Makes the helpers of these tests importable, and a format for tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # makes `lerobot_files` importable


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """ingest() of a toy format whose reader is the given function; its source exists."""
    from toy_format import make_toy

    return make_toy(tmp_path, monkeypatch)
