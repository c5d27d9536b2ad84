"""Residency of a Loader's rows: the same bytes from every tier, the choice by memory, and explain()."""

import copy
import ctypes
import gc
import itertools
import os
import pickle
import re

import ml_dtypes
import numpy as np
import pytest
import torch
from loaders_by_keywords import loader_by_keywords
from recordings import ALL_WINDOWS, STREAMS, assert_same_batches, batches_of, write
from reference.compare import to_numpy

import robocache

TIERS = ["auto", "device", "pinned", "mapped"]
KEYS = ["observation.state", "action", "mode"]
WINDOWS = {"observation.state": [-0.05, 0.0], "action": [0.0, 0.021], "mode": None}

LOADERS = {
    "every_type": {"delta_timestamps": ALL_WINDOWS, "return_age": True},
    "normalised": {"delta_timestamps": ALL_WINDOWS, "normalize": "mean_std", "dtype": "bfloat16", "max_gap_s": 0.05},
    "curves": {
        "delta_timestamps": {"observation.state": [-0.03, 0.0, 0.011], "action": [0.0, 0.5], "observation.imu": [0.0]},
        "method": {"observation.state": "pchip", "action": "akima"},
    },
    "slices": {
        "delta_timestamps": {"action": [0.0, 0.013], "observation.state": [0.0]},
        "method": {
            "action": [(slice(3, 7), "slerp"), (slice(0, 1), "angle"), (slice(7, 14), "pose"), (slice(14, 16), "next")],
            "observation.state": "nearest",
        },
        "tolerance_s": {"observation.state": 0.02},
    },
    "one_step": {"delta_timestamps": dict.fromkeys(STREAMS), "causal": True, "offset_s": 0.004},
    "at_a_rate": {
        "delta_timestamps": {
            **{name: robocache.Window.steps(37, history=3) for name in STREAMS},
            "action": robocache.Window.steps(37, horizon=40),
        },
        "anchor_hz": 21,
        "edges": "drop",
    },
}


def loader_on(dataset, device, residency="auto", windows=WINDOWS, **options):
    return loader_by_keywords(
        dataset, batch_size=24, delta_timestamps=windows, device=device, residency=residency, **options
    )


def tiers_of(loader):
    return {placement.key: placement.tier for placement in loader.explain()}


# ---- The same bytes ----


# CPU and CUDA compute the arrays of these loaders alike.
SAME_ON_CUDA = "every_type", "normalised", "one_step"


@pytest.mark.parametrize("name", LOADERS)
def test_every_tier_gives_the_same_bytes(dataset, device, name):
    options = LOADERS[name]
    is_curve = name in ("curves", "slices")

    def batches(residency, device=device, **more_options):
        merged = {"batch_size": 24, "seed": 4, "device": device, **options, **more_options}
        return batches_of(loader_by_keywords(dataset, residency=residency, **merged), 5)

    expected = batches("device")
    # Rule 39: the CPU computes values of mapped rows.
    mapped_expected = batches("device", device="cpu") if is_curve else expected
    for prefetch in (0, 2):
        assert_same_batches(batches("pinned", prefetch=prefetch), expected)
        assert_same_batches(batches("auto", prefetch=prefetch), expected)
        assert_same_batches(batches("mapped", prefetch=prefetch), mapped_expected)
    if device == "cpu" or not is_curve:
        assert_same_batches(batches("auto", budget={"device": 0, "host": 30_000}), expected)


@pytest.mark.parametrize("options", [LOADERS[name] for name in SAME_ON_CUDA])
def test_every_combination_of_tiers_gives_the_cpus_bytes(dataset, device, options):
    expected = batches_of(loader_by_keywords(dataset, batch_size=24, device="cpu", **options), 3)
    for shift in range(3):
        tiers = {key: ("device", "pinned", "mapped")[(index + shift) % 3] for index, key in enumerate(STREAMS)}
        loader = loader_by_keywords(dataset, batch_size=24, device=device, residency=tiers, **options)
        if device == "cuda":
            assert tiers_of(loader) == tiers
        assert_same_batches(batches_of(loader, 3), expected)
        indices = [loader.num_anchors - 1, 0, 7, 7]
        cpu_loader = loader_by_keywords(dataset, batch_size=24, device="cpu", **options)
        assert_same_batches(batches_of([loader.gather(indices)]), batches_of([cpu_loader.gather(indices)]))


@pytest.mark.parametrize("residency", TIERS[1:])
def test_a_mixture_whose_sources_differ(rng, tmp_path, device, residency):
    """A key has 7 float64 features in one source, 3 bfloat16 ones in another, and is missing in a third."""
    sources = []
    for number, (name, features, dtype) in enumerate(
        [("state", 7, np.float64), ("qpos", 3, ml_dtypes.bfloat16), ("other", 2, np.float32)]
    ):
        times, ticks = np.arange(50) * 20_000_000, np.arange(40) * 25_000_000 + number
        recording = [
            {name: (times, rng.normal(size=(50, features)).astype(dtype)), "tick": (ticks, rng.integers(0, 9, 40))}
            for _ in range(3)
        ]
        dataset = write(tmp_path / name, recording)
        sources.append(robocache.Source(dataset, weight=1 + number, rename={"qpos": "state"} if number == 1 else None))
    arguments = {
        "batch_size": 32,
        "delta_timestamps": {"state": [-0.013, 0.0], "tick": [0.0, 0.1]},
        "anchor": "tick",
        "pad_features": True,
        "normalize": {"state": "min_max"},
    }
    expected = batches_of(loader_by_keywords(sources, device="cpu", residency="device", **arguments), 6)
    loader = loader_by_keywords(sources, device=device, residency={"state": residency, "tick": "device"}, **arguments)
    assert_same_batches(batches_of(loader, 6), expected)
    state = loader.explain()[0]
    assert (state.key, state.bytes) == ("state", 3 * 50 * (7 * 8 + 3 * 2))


# ---- The choice of tiers ----


def test_on_the_cpu_rows_are_copied_to_memory(dataset):
    for residency in ("auto", "device", "pinned"):
        tiers = tiers_of(loader_on(dataset, "cpu", residency))
        assert set(tiers.values()) == {"pinned" if residency == "pinned" else "device"}
    assert set(tiers_of(loader_on(dataset, "cpu", "mapped")).values()) == {"mapped"}


def test_a_tier_for_each_key(dataset, device):
    residency = {"observation.state": "mapped", "mode": "auto"}
    expected = {"observation.state": "mapped", "action": "device", "mode": "device"}
    assert tiers_of(loader_on(dataset, device, residency)) == expected


def needed_bytes(loader, keys, clocks):
    return clocks + sum(placement.bytes for placement in loader.explain() if placement.key in keys)


def clock_bytes(dataset, keys):
    """Returns the bytes of clocks: a time for every row, and 32 bytes for every episode."""
    return sum(8 * len(dataset.streams[key].time_ns) + 32 * len(dataset) for key in keys)


def test_auto_maps_the_largest_first(dataset):
    keys = ["action", "observation.state", "mode"]  # in descending size
    unlimited = loader_on(dataset, "cpu")
    sizes = [placement.bytes for key in keys for placement in unlimited.explain() if placement.key == key]
    assert sizes == sorted(sizes, reverse=True)
    clocks = clock_bytes(dataset, keys)
    for mapped_count in range(4):
        budget = needed_bytes(unlimited, keys[mapped_count:], clocks)
        for missing_bytes in (0, 1):
            mapped = min(mapped_count + missing_bytes, 3)
            tiers = tiers_of(loader_on(dataset, "cpu", budget=budget - missing_bytes))
            assert [tiers[key] for key in keys] == ["mapped"] * mapped + ["device"] * (3 - mapped), (
                mapped_count,
                missing_bytes,
            )


def test_auto_goes_from_the_device_to_pinned_memory_to_files(dataset, cuda):
    keys = ["action", "observation.state", "mode"]
    unlimited = loader_on(dataset, cuda)
    clocks = clock_bytes(dataset, keys)
    device, host = needed_bytes(unlimited, ["mode"], clocks), needed_bytes(unlimited, ["observation.state"], clocks)
    loader = loader_on(dataset, cuda, budget={"device": device, "host": host})
    assert tiers_of(loader) == {"action": "mapped", "observation.state": "pinned", "mode": "device"}
    assert_same_batches(batches_of(loader), batches_of(loader_on(dataset, "cpu")))
    assert set(tiers_of(loader_on(dataset, cuda, budget=0)).values()) == {"pinned"}
    assert set(tiers_of(loader_on(dataset, cuda, budget={"device": 0, "host": 0})).values()) == {"mapped"}


def test_a_budget_is_bytes_or_a_share(dataset, device):
    for budget in (1.0, np.float32(0.25), 10**9, np.int64(10**9), {"host": 0.5}, {"device": 0.5, "host": 10**9}, {}):
        assert set(tiers_of(loader_on(dataset, device, budget=budget)).values()) == {"device"}
    # 1 is one byte, not the whole memory. A tiny share has no room either.
    for budget in (1, 0, 1e-9):
        loader = loader_on(dataset, device, budget={"device": budget, "host": budget})
        assert set(tiers_of(loader).values()) == {"mapped"}


@pytest.mark.parametrize("residency", ["device", "pinned"])
def test_a_requested_tier_without_room_is_refused_with_both_sizes(dataset, device, residency):
    budget = {"device": 20_000, "host": 20_000}
    with pytest.raises(robocache.DeviceError) as refusal:
        loader_on(dataset, device, {"action": residency}, budget=budget)
    [action] = [p for p in loader_on(dataset, device).explain() if p.key == "action"]
    memory_name = r"cuda:\d+" if device == "cuda" and residency == "device" else "host memory"
    assert re.match(
        rf"memory.residency: 'action' as '{residency}' needs {action.bytes} bytes of {memory_name}, the memory budget of 20000 "
        r"has \d+ left; ",
        str(refusal.value),
    )
    loader_on(dataset, device, {"action": "auto"}, budget=budget)


# ---- explain ----


def test_explain_is_a_list_and_a_table(dataset):
    explained = loader_on(dataset, "cpu", {"mode": "mapped"}, budget=30_000).explain()
    reasons = {
        "mode": "asked for: its files, read ahead",
        "observation.state": "a copy in memory",
        "action": "over budget (29.30 KiB of host memory): its files, read ahead",
    }
    assert [placement.key for placement in explained] == KEYS
    for key, _, size, why in explained:
        assert size == dataset.streams[key].values.nbytes
        assert why == reasons[key]
    lines = str(explained).splitlines()
    assert lines[0].split() == ["key", "tier", "size", "why"]
    assert len(lines) == 1 + len(KEYS)
    assert max(map(len, lines)) <= 120
    tiers = {"mode": "mapped", "observation.state": "memory", "action": "mapped"}
    assert {line.split()[0]: line.split()[1] for line in lines[1:]} == tiers
    assert ">memory<" in explained._repr_html_() and "device" not in explained._repr_html_()
    column = lines[0].index("why")
    for line, placement in zip(lines[1:], explained, strict=True):
        assert line.startswith(placement.key)
        assert line[column:] == placement.why
    for copy_of_list in (pickle.loads(pickle.dumps(explained)), copy.deepcopy(explained)):
        assert copy_of_list == explained
        assert type(copy_of_list) is type(explained)
        assert str(copy_of_list) == str(explained)


@pytest.mark.parametrize(
    ("size", "message"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (3 << 30, "3.0 GiB"), (5 << 50, "5,120.0 TiB")],
)
def test_sizes_in_the_table(size, message):
    from robocache.explanation import Explanation, Placement

    assert message in str(Explanation([Placement("a", "mapped", size, "asked for")]))


def test_changes_of_explains_result_have_no_effect(dataset):
    loader = loader_on(dataset, "cpu")
    loader.explain().clear()
    assert len(loader.explain()) == len(KEYS)


# ---- Memory ----

WIDE_MIB = 48


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    rows = WIDE_MIB * 2**20 // 4096
    values = np.arange(rows * 1024, dtype=np.float32).reshape(rows, 1024)
    return write(tmp_path_factory.mktemp("wide") / "cache", [{"wide": (np.arange(rows) * 10**6, values)}])


def used_mib(device):
    gc.collect()
    if device == "cuda":
        if "PYTEST_XDIST_WORKER" in os.environ:
            pytest.skip("NOT TESTED: other processes use this device's memory, too")
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**20
    ctypes.CDLL(None).malloc_trim(0)  # frees memory that the allocator keeps from earlier tests
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024


def test_loaders_on_one_dataset_share_its_rows(wide, device):
    def make(**options):
        options = {"batch_size": 8, "delta_timestamps": {"wide": [0.0]}, "device": device, "prefetch": 0} | options
        return loader_by_keywords(wide, **options)

    next(make(batch_size=4, episodes=[0]))
    before_mib = used_mib(device)
    train = make()
    one_loader_mib = used_mib(device)
    assert one_loader_mib - before_mib > 0.9 * WIDE_MIB
    other_loaders = [make(seed=1), make(batch_size=16), make(residency="device"), pickle.loads(pickle.dumps(train))]
    assert used_mib(device) - one_loader_mib < 1.3 * WIDE_MIB  # the unpickled loader has another dataset
    first_values = to_numpy(next(train)["wide"])
    del train, other_loaders[0], other_loaders[-1]
    assert used_mib(device) - before_mib < 1.3 * WIDE_MIB
    assert to_numpy(next(other_loaders[-1])["wide"]).shape == (8, 1, 1024)
    assert first_values.shape == (8, 1, 1024)
    other_loaders.clear()
    assert used_mib(device) - before_mib < 0.2 * WIDE_MIB


def test_a_mapped_key_takes_no_memory(wide, device):
    loader = loader_by_keywords(wide, batch_size=8, delta_timestamps={"wide": [0.0]}, device=device, residency="mapped")
    next(loader)
    before_mib = used_mib(device)
    for _ in itertools.islice(loader, 50):
        pass
    assert used_mib(device) - before_mib < 0.2 * WIDE_MIB
