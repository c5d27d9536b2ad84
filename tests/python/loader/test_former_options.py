"""A loader's former options give the batches of the current form, with a DeprecationWarning that shows this form."""

import itertools
import warnings

import numpy as np
import pyarrow.compute as pc
import pytest
from recordings import assert_same_batches, batches_of, copied, write

import robocache
from robocache import Anchors, Memory, Mixture, Normalization, Ranks, Source, Window

WINDOWS = {"state": [0.0, 0.01], "action": [0.0]}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    rng = np.random.default_rng(5)
    recording = [
        {name: (np.arange(n) * 10**7, rng.normal(size=(n, width))) for name, width in (("state", 4), ("action", 2))}
        for n in (90, 70)
    ]
    columns = [{"rows": 90}, {"rows": 70}]
    return write(tmp_path_factory.mktemp("former") / "cache", recording, columns=columns)


def loader_of(cache, **options):
    return robocache.Loader(cache, **{"batch_size": 8, "delta_timestamps": WINDOWS} | options)


# name: (former options, the same options in the current form)
CASES = {
    "methods": ({"methods": "nearest"}, {"default": Window(method="nearest")}),
    "methods of keys": (
        {"methods": {"state": [(slice(0, 2), "nearest")]}},
        {"delta_timestamps": {**WINDOWS, "state": Window([0.0, 0.01], method=[(slice(0, 2), "nearest")])}},
    ),
    "offset": (
        {"offset": {"action": 0.004}, "causal": True},
        {"delta_timestamps": {**WINDOWS, "action": Window([0.0], offset_s=0.004)}, "default": Window(causal=True)},
    ),
    "gaps": (
        {"methods": "nearest", "tolerance_s": 0.1, "max_gap_s": 0.02},
        {"default": Window(method="nearest", tolerance_s=0.1, max_gap_s=0.02)},
    ),
    "normalize": (
        {"normalize": {"state": "mean_std"}, "constant": "openpi", "stats_of": "dataset", "min_spread": 0.0},
        {
            "delta_timestamps": {**WINDOWS, "state": Window([0.0, 0.01], normalize="mean_std")},
            "normalization": Normalization(constant="openpi", stats_of="dataset", min_spread=0.0),
        },
    ),
    "dtype": ({"dtype": "float16"}, {"default": Window(dtype="float16")}),
    "anchor": (
        {"anchor": "action", "edges": "drop", "drop_n_last": 3},
        {"anchors": Anchors(stream="action", edges="drop", drop_n_last=3)},
    ),
    "anchor_hz": ({"anchor_hz": 30.0}, {"anchors": Anchors(rate_hz=30.0)}),
    "memory": (
        {"residency": "mapped", "memory_budget": 0.25, "prefetch": 0, "reuse_buffers": True},
        {"memory": Memory(residency="mapped", budget=0.25, prefetch=0, reuse_buffers=True)},
    ),
    "ranks": (
        {"rank": 1, "world_size": 2, "shard_episodes": True},
        {"ranks": Ranks(rank=1, world_size=2, shard_episodes=True)},
    ),
    "where": ({"where": pc.field("rows") < 80}, {"episodes": [1]}),
    "steps": (
        {"delta_timestamps": None, "rate_hz": 50, "history": {"state": 2}, "horizon": {"action": 3}},
        {"delta_timestamps": {"state": Window.steps(50, history=2), "action": Window.steps(50, horizon=3)}},
    ),
    "steps of all keys": (
        {"delta_timestamps": None, "rate_hz": 50, "history": 2, "horizon": 3},
        {"delta_timestamps": {"state": Window.steps(50, history=2), "action": Window.steps(50, horizon=3)}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_batches_equal_those_of_the_current_form(cache, case):
    former, current = CASES[case]
    with pytest.warns(DeprecationWarning, match="now") as caught:
        loader = loader_of(cache, **former)
    assert [x.filename for x in caught if x.category is DeprecationWarning] == [__file__]
    expected = map(copied, itertools.islice(loader_of(cache, **current), 3))
    assert_same_batches([copied(batch) for batch in itertools.islice(loader, 3)], list(expected))


def test_former_options_of_a_mixture(cache):
    sources = [Source(cache, weight=1.0, rename={"state": "s"}), Source(cache, weight=2.0)]
    options = {"batch_size": 8, "delta_timestamps": {"s": None}}
    with pytest.warns(DeprecationWarning, match="samples_per_epoch=: now dataset=Mixture"):
        loader = robocache.Loader(sources, samples_per_epoch=50, rename={"state": "s"}, **options)
    mixture = Mixture([sources[0], Source(cache, weight=2.0, rename={"state": "s"})], samples_per_epoch=50)
    assert_same_batches(batches_of(loader), batches_of(robocache.Loader(mixture, **options)))


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"prefetch": 0, "memory": Memory()}, "memory"),
        ({"rate_hz": 10, "horizon": 2}, "delta_timestamps"),
        ({"history": 2}, "history"),
        ({"where": pc.field("rows") < 80, "episodes": [0]}, "where"),
        ({"delta_timestamps": None, "rate_hz": 10}, "delta_timestamps"),
    ],
)
def test_invalid_former_options_are_refused(cache, options, argument):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(robocache.ArgumentError, match=argument):
            loader_of(cache, **options)


def test_a_horizon_for_a_missing_action_is_refused(cache):
    with pytest.raises(robocache.ArgumentError, match=r"^horizon: expected a key action or actions"):
        source = Source(cache, rename={"action": "command"})
        robocache.Loader([source], batch_size=8, rate_hz=10, history=1, horizon=2)


def test_an_unknown_option_is_refused(cache):
    with pytest.raises(TypeError, match="prefetched"):
        loader_of(cache, prefetched=2)
