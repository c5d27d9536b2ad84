"""The way to the helpers beside these tests, and a format of their own."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # makes `lerobot_files` importable


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """ingest() of a format whose reader is the given function, from a source that is there."""
    from toy_format import make_toy

    return make_toy(tmp_path, monkeypatch)
