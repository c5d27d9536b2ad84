"""Recordings that the tests of the loader share and never change."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))  # makes `recordings` importable


@pytest.fixture(scope="session")
def recording():
    from recordings import record

    return record(np.random.default_rng(20))


@pytest.fixture(scope="session")
def dataset(recording, tmp_path_factory):
    from recordings import write

    return write(tmp_path_factory.mktemp("cache") / "cache", recording)


@pytest.fixture(scope="session")
def filmed():
    from filmed import Recording

    return Recording(np.random.default_rng(15))


@pytest.fixture(scope="session", params=["raw", "jpeg", "png"])
def filmed_dataset(request, filmed, tmp_path_factory):
    """The cache of `filmed`, with frames in each codec."""
    return filmed.write(tmp_path_factory.mktemp("cameras") / "cache", request.param)
