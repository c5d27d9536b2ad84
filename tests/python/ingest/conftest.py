"""Makes the helper modules of these tests importable, and gives them a format for tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # makes `lerobot_files` importable


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Returns a function that ingests a toy format by the reader that it is given."""
    from toy_format import make_toy

    return make_toy(tmp_path, monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def one_reader_process():
    """Uses one process for the HDF5 and LAZ files of a module's tests; to start one takes longer than most tests."""
    from robocache.ingest.reader_process import reader_processes

    with reader_processes():
        yield
