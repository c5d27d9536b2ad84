"""Fixtures of all Python tests."""

import functools
import gc
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # makes `reference` importable

# The processes of a test run share the cores. torch's threads wait by spinning; several for each core would
# take most of the time. robocache has its own threads. Set before torch is imported, here and in child processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Background jobs of a shell ignore Ctrl-C, and nohup ignores SIGHUP; children of the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile(
    "robocache",
    deadline=None,  # busy cores are no failure
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("robocache")


gc.disable()  # until all tests are collected: garbage collection would take a quarter of that time


@functools.cache
def _why_no_cuda():
    """Returns the reason why robocache finds no GPU; None if it does, or if ROBOCACHE_REQUIRE_CUDA=1 makes that a failure."""
    import robocache

    reason = robocache.check_installation()["cuda"]["reason"]
    if reason is not None and os.environ.get("ROBOCACHE_REQUIRE_CUDA") == "1":
        pytest.fail(f"ROBOCACHE_REQUIRE_CUDA=1, but there is no CUDA: {reason}")
    return reason


def _require_cuda():
    if (reason := _why_no_cuda()) is not None:
        pytest.skip(f"no CUDA: {reason}")


def pytest_itemcollected(item):
    """`-m cuda` also selects tests with the fixture `cuda`."""
    if "cuda" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.cuda)


_not_run = pytest.StashKey[tuple[int, str]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Without a GPU, counts the thousands of tests that need one; to skip each would take half a minute."""
    cuda_items = [item for item in items if item.get_closest_marker("cuda")]
    if cuda_items and os.environ.get("ROBOCACHE_REQUIRE_CUDA") != "1" and (reason := _why_no_cuda()) is not None:
        config.stash[_not_run] = len(cuda_items), str(reason)
        items[:] = [item for item in items if not item.get_closest_marker("cuda")]


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """A worker of pytest-xdist reports the number of tests that it did not run; so does the file of results."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["not_run"] = config.stash.get(_not_run, None)
    elif _not_run in config.stash:
        for plugin in config.pluginmanager.get_plugins():
            if hasattr(plugin, "add_global_property"):
                plugin.add_global_property("not_run", config.stash[_not_run][0])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    if (not_run := getattr(node, "workeroutput", {}).get("not_run")) is not None:
        node.config.stash[_not_run] = tuple(not_run)


def pytest_terminal_summary(terminalreporter, config):
    if _not_run in config.stash:
        count, reason = config.stash[_not_run]
        terminalreporter.section(f"{count:,} tests need CUDA and were NOT RUN: no CUDA: {reason}", yellow=True)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    """Runs the test on the CPU and on CUDA."""
    if request.param == "cuda":
        _require_cuda()
    return request.param


@pytest.fixture
def cuda():
    """For tests that need a GPU."""
    _require_cuda()
    return "cuda"


@pytest.fixture
def threads():
    """Gives set_num_threads, and restores the number of threads after the test."""
    import robocache

    before = robocache.num_threads()
    yield robocache.set_num_threads
    robocache.set_num_threads(before)


@pytest.fixture
def fresh_compiler():
    """Drops what torch.compile has compiled, before and after the test."""
    import torch

    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def rng(request):
    """A generator seeded by the test's name: the same data in every run and order, other data in every test."""
    return np.random.default_rng(list(request.node.nodeid.encode()))


@pytest.fixture
def real_data():
    """Gives a function from a name to its folder of real robot data; skips the test if the folder is missing."""

    def find(name):
        root = os.environ.get("ROBOCACHE_TEST_DATA")
        if not root:
            pytest.skip("no real robot data: ROBOCACHE_TEST_DATA names no folder")
        folder = Path(root) / name
        if not folder.exists():
            pytest.skip(f"no real robot data: {folder} does not exist")
        return folder

    return find
