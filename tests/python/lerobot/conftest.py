"""Fixtures of LeRobot datasets, whose items are compared with LeRobot's rules and with LeRobot itself."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))  # makes `lerobot_files` importable
sys.path.insert(0, str(Path(__file__).parent))  # makes `sets` importable


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """Gives each test its own cache folder of the user, and returns RoboCache's folder in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "robocache"


@pytest.fixture
def source(rng, tmp_path):
    """Writes a LeRobot v3.0 dataset with a feature of every kind that LeRobot reads."""
    from sets import write

    return write(tmp_path / "source", rng)


@pytest.fixture(params=["v2.0", "v2.1", "v3.0", "lerobot_v2/gr00t_gr1_pnp_sim", "lerobot_v2/unitree_g1_real"])
def any_source(request, rng, tmp_path, real_data):
    """Gives datasets of each version, synthetic and real."""
    from sets import write

    if request.param.startswith("v"):
        return write(tmp_path / "source", rng, request.param)
    return real_data(request.param)
