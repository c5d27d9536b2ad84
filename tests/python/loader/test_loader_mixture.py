"""A Loader of several sources: its order, against the oracle's integers, and its batches."""

import collections
import contextlib
import itertools
import pickle

import ml_dtypes
import numpy as np
import pyarrow.compute as pc
import pytest
from loaders_by_keywords import loader_by_keywords
from recordings import anchors_of, assert_same_batches, batches_of, copied, position_of, refused, warnings_with, write
from reference.compare import to_numpy
from reference.mixture import BLOCK, Part, draw, mixture_batch, shares
from reference.window_batch import assert_batch
from soak import rounds

import robocache

# name: {stream: (rate in Hz, dtype, shape of one row)}
ROBOTS = {
    "one_arm": {
        "state": (50, np.float32, (7,)),
        "action": (50, np.float32, (7,)),
        "grip": (10, np.int16, (2,)),
        "image": (5, np.float32, (2, 3)),
    },
    "two_arms": {"qpos": (30, np.float64, (14,)), "command": (30, np.float64, (14,)), "force": (200, np.float32, (6,))},
    "base": {"state": (25, np.dtype(ml_dtypes.bfloat16), (7,)), "action": (20, np.float16, (7,))},
    "none": {"state": (4, np.float32, (7,)), "mode": (4, np.int64, ())},
}
DELTAS = {"state": [-0.04, 0.0], "action": [0.0, 0.021, 0.3], "grip": None, "force": [-0.005], "image": [0.0]}
TO_STATE_AND_ACTION = {"qpos": "state", "command": "action"}


def record(rng, streams, episodes):
    """Returns a robot's episodes. Streams have their own clocks, repeated stamps and gaps; some are missing in some episodes."""
    recording = []
    for number in range(episodes):
        start, seconds = 10**12 * number + int(rng.integers(10**9)), rng.uniform(0.4, 1.5)
        rows = {}
        for name, (rate, dtype, shape) in streams.items():
            times = np.sort(rng.uniform(0, seconds, max(2, int(seconds * rate))))
            times[1] = times[0]
            values = rng.normal(size=(len(times), *shape)) * 50 + 100
            rows[name] = (start + np.round(times * 1e9).astype(np.int64), values.astype(dtype))
        if number == 2:  # this episode has no action or command
            rows.pop("action", rows.pop("command", None))
        recording.append(rows)
    return recording


@pytest.fixture(scope="module")
def robots(tmp_path_factory):
    """{name: (dataset, recording)}."""
    rng, folder = np.random.default_rng(33), tmp_path_factory.mktemp("robots")
    recordings = {name: record(rng, streams, 5) for name, streams in ROBOTS.items()}
    return {name: (write(folder / name, recording), recording) for name, recording in recordings.items()}


def source(robots, name, **options):
    return robocache.Source(robots[name][0], **options)


def sources_of(robots, *chosen):
    return [source(robots, name, **options) for name, options in chosen]


def part_of(robots, name, *, anchor="state", episodes=None, rename=None, **_):
    """Returns the oracle's form of `source(robots, name, ...)`."""
    dataset, recording = robots[name]
    keys = {stream: (rename or {}).get(stream, stream) for stream in ROBOTS[name]}
    renamed = [{keys[stream]: rows for stream, rows in streams.items()} for streams in recording]
    chosen = range(len(recording)) if episodes is None else episodes
    stats = dataset.statistics(sorted(set(chosen)))  # rule 49; other tests check these statistics
    return Part(
        renamed,
        [(e, int(t)) for e in chosen for t in renamed[e].get(keys.get(anchor, anchor), ([],))[0]],
        {keys[stream]: np.dtype(dtype) for stream, (_, dtype, _) in ROBOTS[name].items()},
        {keys[stream]: shape for stream, (_, _, shape) in ROBOTS[name].items()},
        {keys[stream]: stats[stream] for stream in ROBOTS[name] if stream in stats},
    )


# Sources repeat datasets, rename and swap streams, have other widths, dtypes and clocks, and lack keys.
NINE_SOURCES = [
    ("one_arm", {"episodes": [0, 1, 2]}),
    ("two_arms", {"rename": TO_STATE_AND_ACTION}),
    ("one_arm", {"episodes": [3, 4, 2]}),
    ("base", {}),
    ("one_arm", {"rename": {"state": "action", "action": "state"}, "anchor": "grip"}),
    ("none", {}),
    ("two_arms", {"rename": {"qpos": "action", "command": "state"}, "episodes": [4], "anchor": "force"}),
    ("base", {"episodes": [1]}),
    ("none", {"episodes": [4, 0]}),
]
WEIGHTS = [0.5, 0.25, 3, 1e-2, 0.7, 1 / 3, 0.1, 2, 1]


def mixed(robots, count, weights=None, *, device="cpu", batch_size=50, deltas=DELTAS, **options):
    """Returns (a loader of `count` sources, which repeat NINE_SOURCES; the oracle's parts; the windows)."""
    chosen = list(itertools.islice(itertools.cycle(NINE_SOURCES), count))
    sources = [
        source(robots, name, **choice, weight=None if weights is None else weights[k])
        for k, (name, choice) in enumerate(chosen)
    ]
    deltas = {
        key: requested
        for key, requested in deltas.items()
        if any(key in (choice.get("rename") or {}).values() or key in ROBOTS[name] for name, choice in chosen)
    }
    options = {"anchor": "state", "pad_features": True} | options
    loader = loader_by_keywords(sources, batch_size=batch_size, delta_timestamps=deltas, device=device, **options)
    return loader, [part_of(robots, name, **choice) for name, choice in chosen], deltas


def expected_anchors(parts, positions, **options):
    anchors = [len(part.ticks) for part in parts]
    draws = [draw(position, anchors, **options) for position in positions]
    return [(source, *parts[source].ticks[anchor]) for source, anchor in draws]


# ---- What is drawn ----


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", range(1, 10))
def test_rule_35_every_epoch_equals_the_oracles(robots, device, count, weighted):
    seed = [0, 7, 2**63 - 1][count % 3]
    weights = WEIGHTS[:count] if weighted else None
    loader, parts, _ = mixed(robots, count, weights, seed=seed, device=device)
    anchors = [len(part.ticks) for part in parts]
    assert loader.num_anchors == loader.num_samples == sum(anchors)
    for epoch in range(3):
        expected = expected_anchors(parts, range(sum(anchors)), seed=seed, epoch=epoch, weights=weights)
        assert anchors_of(loader, "dataset_index") == expected
        if not weighted:
            all_anchors = [(k, *tick) for k, part in enumerate(parts) for tick in part.ticks]
            assert collections.Counter(expected) == collections.Counter(all_anchors)


# On a GPU each of a warp's 32 lanes has one source, if there are enough lanes.
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [32, 33])
def test_rule_35_many_sources(robots, device, count, weighted):
    weights = [(k % 7 + 1) / 3 for k in range(count)] if weighted else None
    loader, parts, _ = mixed(robots, count, weights, seed=3, device=device, deltas={"state": None}, batch_size=150)
    expected = expected_anchors(parts, range(150), seed=3, epoch=0, weights=weights)
    assert anchors_of([next(loader)], "dataset_index") == expected


def test_rule_35_without_shuffle(robots, device):
    loader, parts, _ = mixed(robots, 4, shuffle=False, device=device)
    all_anchors = [(k, *tick) for k, part in enumerate(parts) for tick in part.ticks]
    assert anchors_of(loader, "dataset_index") == anchors_of(loader, "dataset_index") == all_anchors
    loader, parts, _ = mixed(robots, 4, WEIGHTS[:4], shuffle=False, device=device, samples_per_epoch=1000)
    for epoch in range(2):
        options = {"weights": WEIGHTS[:4], "samples": 1000, "shuffle": False, "epoch": epoch}
        assert anchors_of(loader, "dataset_index") == expected_anchors(parts, range(1000), **options)


@pytest.mark.parametrize("samples", [1, 17, 3000, 50_000, BLOCK, 200_000])
def test_rule_35_blocks_continue_across_epochs(robots, device, samples):
    weights = [3.0, 1.0, 0.01]
    options = {"samples_per_epoch": samples, "seed": 5}
    loader, parts, _ = mixed(robots, 3, weights, batch_size=128, deltas={"state": None}, device=device, **options)
    assert loader.num_samples == samples
    assert len(loader) == -(-samples // 128)
    for epoch in [0, 1, 2, 5, 2**40, 2**62]:
        # Starts are the begin and the end of the epoch, and 100 draws before a block ends.
        for start in {0, max(samples - 150, 0), min((-epoch * samples - 100) % BLOCK, samples - 1)}:
            loader.load_state_dict({"seed": 5, "epoch": epoch, "samples": start})
            stop = min(start + 256, samples)
            expected = expected_anchors(
                parts, range(start, stop), seed=5, epoch=epoch, weights=weights, samples=samples
            )
            assert anchors_of(itertools.islice(loader, 2), "dataset_index") == expected


@pytest.mark.parametrize("weights", [[1, 1, 1], [3, 1, 0.01], [1e300, 1e300, 1e296], [0.4, 0.15, 0.45]])
def test_rule_35_shares_of_a_block_are_exact(robots, device, weights):
    """In each block of 65,536 draws every source has its exact share, and repeats no anchor before it has drawn all."""
    options = {"samples_per_epoch": BLOCK, "batch_size": 4096, "deltas": {"state": None}, "device": device}
    loader, parts, _ = mixed(robots, 3, weights, **options)
    drawn = [[] for _ in parts]
    for block in range(1, 3):
        for k, *tick in anchors_of(loader, "dataset_index"):
            drawn[k].append(tuple(tick))
        assert [len(ticks) for ticks in drawn] == [block * share for share in shares(weights)]
    for k, part in enumerate(parts):
        all_anchors, complete = sorted(part.ticks), len(drawn[k]) // len(part.ticks) * len(part.ticks)
        for begin in range(0, complete, len(all_anchors)):
            assert sorted(drawn[k][begin : begin + len(all_anchors)]) == all_anchors


def test_rule_35_shares_are_the_largest_remainders(robots):
    """The loader's draws are counted for many weights. Integer weights give equal remainders."""
    rng = np.random.default_rng(8)
    cases = [[5, 12, 15, 8, 13, 3], [5, 19, 18, 14], [1, 2, 3, 1], [1e300, 3e300, 3e300]]
    for _ in range(rounds(4)):
        cases += [np.exp(rng.uniform(-4, 4, 4)).tolist(), rng.integers(1, 30, 5).tolist()]
    for weights in cases:
        options = {"samples_per_epoch": BLOCK, "batch_size": BLOCK, "deltas": {"state": None}, "prefetch": 0}
        loader, _, _ = mixed(robots, len(weights), weights, **options)
        assert np.bincount(to_numpy(next(loader)["dataset_index"])).tolist() == shares(weights)


@pytest.mark.parametrize("temperature", [0.5, 1, 3.7, 1e9])
def test_rule_35_temperature_weighs_by_the_number_of_anchors(robots, device, temperature):
    loader, parts, _ = mixed(robots, 5, temperature=temperature, deltas={"state": None}, device=device, seed=3)
    weights = [len(part.ticks) ** (1 / temperature) for part in parts]
    expected = expected_anchors(parts, range(loader.num_samples), seed=3, weights=weights)
    assert anchors_of(loader, "dataset_index") == expected


# ---- Batches ----


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("count", range(1, 10))
def test_every_batch_of_a_mixture_equals_the_oracles(robots, device, count, dtype):
    options = {"return_age": count % 2 == 1, "offset_s": 0.003, "max_gap_s": 0.2, "dtype": dtype}
    if count == 9:
        options |= {"method": {"state": "pchip", "action": "akima", "grip": "nearest"}, "causal": {"force": True}}
    if count % 3 == 0:
        options["normalize"] = "mean_std"  # each source by its own statistics
    loader, parts, deltas = mixed(robots, count, WEIGHTS[:count], batch_size=40, seed=count, device=device, **options)
    if "normalize" in options:
        options["normalize"] = {key: "mean_std" for key in ("state", "action", "force", "image") if key in deltas}
    options["dtype"] = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    anchors = [len(part.ticks) for part in parts]
    for number, batch in enumerate(itertools.islice(loader, 2)):
        positions = range(40 * number, min(40 * number + 40, loader.num_samples))
        drawn = [draw(position, anchors, seed=count, weights=WEIGHTS[:count]) for position in positions]
        assert_batch(batch, mixture_batch(parts, drawn, deltas, pad_features=True, **options))
        assert {array.device.type for array in batch.values()} == {device}


def test_a_mixture_without_pad_features_has_no_mask_of_features(robots, device):
    sources = [source(robots, "one_arm"), source(robots, "base"), source(robots, "none")]
    deltas = {"state": [0.0], "action": None, "mode": [0.0, 0.1]}
    loader = loader_by_keywords(sources, batch_size=64, delta_timestamps=deltas, anchor="state", device=device)
    parts = [part_of(robots, name) for name in ("one_arm", "base", "none")]
    drawn = [draw(position, [len(part.ticks) for part in parts]) for position in range(64)]
    batch = next(loader)
    assert_batch(batch, mixture_batch(parts, drawn, deltas))
    is_lacking = to_numpy(batch["dataset_index"]) != 2
    assert is_lacking.any()
    assert to_numpy(batch["mode_is_pad"])[is_lacking].all()
    assert not to_numpy(batch["mode"])[is_lacking].any()


@pytest.mark.parametrize("steps", [[0.0], [0.0, 0.1, 100.0]])
def test_a_row_without_features_is_no_padding(tmp_path, device, steps):
    """With width 0 the features are padding, not the steps."""
    sources, time_ns = [], np.arange(4) * 10**8
    for width in (0, 6):
        recording = [{"x": (time_ns, np.ones((4, width), np.float32))}]
        sources.append(robocache.Source(write(tmp_path / str(width), recording)))
    options = {"pad_features": True, "return_age": True, "shuffle": False, "device": device}
    batch = next(loader_by_keywords(sources, batch_size=8, delta_timestamps={"x": steps}, **options))
    arrays = copied(batch)
    for key in ("x_is_pad", "x_age"):
        np.testing.assert_array_equal(arrays[key][:4], arrays[key][4:])
    assert not arrays["x_is_pad"][0, 0]
    assert not arrays["x"][:4].any()
    assert arrays["x"][4:].all()
    np.testing.assert_array_equal(arrays["x_feature_is_pad"], np.repeat([True, False], 4)[:, None] & np.ones(6, bool))


def test_a_list_of_one_source_is_a_mixture_but_a_dataset_is_not(robots, device):
    options = {"batch_size": 32, "delta_timestamps": {"state": [0.0]}, "device": device}
    dataset = robots["one_arm"][0]
    dataset_loader = loader_by_keywords(dataset, **options)
    for sources in ([robocache.Source(dataset)], robocache.Source(dataset), (robocache.Source(dataset, weight=2),)):
        batches = batches_of(loader_by_keywords(sources, **options))
        assert all((batch["dataset_index"] == 0).all() for batch in batches)
    batches = batches_of(loader_by_keywords([robocache.Source(dataset)], **options))
    for batch in batches:
        del batch["dataset_index"]
    assert_same_batches(batches, batches_of(dataset_loader))


def test_gather_takes_indices_over_all_sources(robots, device):
    loader, parts, deltas = mixed(robots, 6, WEIGHTS[:6], device=device, return_age=True)
    all_anchors = [(k, anchor) for k, part in enumerate(parts) for anchor in range(len(part.ticks))]
    rng = np.random.default_rng(2)
    for indices in ([0, len(all_anchors) - 1], rng.integers(0, len(all_anchors), 50).tolist()):
        expected = mixture_batch(parts, [all_anchors[i] for i in indices], deltas, pad_features=True, return_age=True)
        assert_batch(loader.gather(indices), expected)
    with pytest.raises(robocache.ArgumentError, match=rf"indices\[0\].*\[0, {len(all_anchors)}\)"):
        loader.gather([len(all_anchors)])


@pytest.mark.parametrize("by_feature", [False, True])
@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"CLOSED": 0, "OPEN": 1}, "0 is 'OPEN' in one and 'CLOSED' in another"),
        ({"OPEN": 0, "SHUT": 1, "CLOSED": 1, "MOVING": 2}, None),  # one number may have two words
        (None, None),
    ],
)
def test_sources_whose_numbers_have_other_words_are_warned_of(other, difference, by_feature, tmp_path, recwarn):
    sources = []
    for name, words in (("a", {"OPEN": 0, "CLOSED": 1}), ("b", other)):
        attributes = {"words": {"mode": words} if by_feature else words}
        streams = {"grip": {"names": ["mode"], "attributes": attributes}} if words else {}
        rows = {"grip": (np.arange(3) * 10**7, np.array([[0], [1], [0]]))}
        sources.append(robocache.Source(write(tmp_path / name, [rows], streams=streams)))
    for anchors in ("grip", robocache.Anchors(where=pc.field("grip") == 0)):
        robocache.Loader(sources, batch_size=2, delta_timestamps={"grip": None}, anchors=anchors, device="cpu")
    texts = [str(warning.message) for warning in recwarn if "number words differently" in str(warning.message)]
    if by_feature:
        difference = difference and f"mode {difference}"
    arguments = {"anchors.where", "delta_timestamps['grip']"}
    assert {text.split(":")[0] for text in texts} == (arguments if difference else set())
    assert all(difference in text for text in texts)


def test_edges_apply_to_each_source(robots, device):
    """A source without actions is drawn completely. In a source with actions, an episode without them is not drawn."""
    sources = [source(robots, "base"), source(robots, "none")]
    deltas = {"state": [-0.1, 0.0], "action": [0.0, 0.1]}
    loader = loader_by_keywords(
        sources, batch_size=16, delta_timestamps=deltas, edges="drop", anchor="state", shuffle=False, device=device
    )
    expected = []
    for k, name in enumerate(("base", "none")):
        for episode, rows in enumerate(robots[name][1]):
            requested = {key: offsets for key, offsets in deltas.items() if key in ROBOTS[name]}
            for t in rows["state"][0].tolist():
                if all(  # snap_s is 1000 ns
                    key in rows and rows[key][0][0] - 999 <= t + round(offset * 1e9) <= rows[key][0][-1] + 999
                    for key, offsets in requested.items()
                    for offset in offsets
                ):
                    expected.append((k, episode, t))
    assert {k for k, _, _ in expected} == {0, 1}
    assert (0, 2) not in {anchor[:2] for anchor in expected}
    assert anchors_of(loader, "dataset_index") == expected


def test_bytes_do_not_depend_on_tier_or_threads(robots, device, threads):
    results = []
    for number, residency in ((1, "auto"), (2, "mapped"), (7, {"state": "mapped", "action": "pinned"})):
        threads(number)
        options = {"batch_size": 200, "normalize": "mean_std", "residency": residency, "device": device}
        loader, _, _ = mixed(robots, 9, WEIGHTS, **options)
        results.append(batches_of(loader) + batches_of([loader.gather(range(100, 250))]))
    assert_same_batches(results[0], results[1])
    assert_same_batches(results[0], results[2])


def test_a_pickled_mixture_resumes(robots, device):
    loader, _, _ = mixed(robots, 9, WEIGHTS, seed=4, samples_per_epoch=170, device=device)
    next(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert position_of(copy) == position_of(loader) == {"seed": 4, "epoch": 0, "samples": 50}
    assert_same_batches(batches_of(copy, 100), batches_of(loader, 100))
    assert copy.num_samples == 170


def test_a_mixture_copies_its_list_of_sources(robots):
    """Later changes of the caller's list have no effect."""
    sources = [source(robots, "one_arm"), source(robots, "base")]
    loader = loader_by_keywords(sources, batch_size=8, delta_timestamps={"state": [0.0]}, device="cpu")
    sources.pop()
    assert_same_batches(batches_of(pickle.loads(pickle.dumps(loader))), batches_of(loader))


def test_a_source_is_not_changed_by_its_loader(robots):
    original = source(robots, "two_arms", weight=0.5, rename=TO_STATE_AND_ACTION)
    loader_by_keywords([original], batch_size=8, delta_timestamps={"state": [0.0]}, device="cpu")
    assert original == source(robots, "two_arms", weight=0.5, rename=TO_STATE_AND_ACTION)


# ---- Refusals ----


@pytest.mark.parametrize(
    ("chosen", "options", "parts"),
    [
        ([("base", {"weight": 1}), ("base", {})], {}, ["sources[1].weight", "none"]),
        ([("base", {"weight": 0}), ("base", {"weight": 1})], {}, ["sources[0].weight", "0"]),
        ([("base", {"weight": -1})], {}, ["sources[0].weight", "-1"]),
        ([("base", {"weight": float("nan")})], {}, ["sources[0].weight", "nan"]),
        ([("base", {"weight": float("inf")})], {}, ["sources[0].weight", "inf"]),
        ([("base", {"weight": "much"})], {}, ["sources[0].weight", "'much'"]),
        ([("base", {"weight": 1}), ("base", {"weight": 1e-6})], {}, ["sources[1].weight", "65536", "1e-06"]),
        ([("base", {"weight": 1})], {"temperature": 2}, ["temperature", "weights"]),
        ([("base", {})], {"temperature": 0}, ["temperature", "0"]),
        ([("base", {})], {"temperature": float("inf")}, ["temperature", "inf"]),
        ([("base", {})], {"samples_per_epoch": 100}, ["samples_per_epoch", "weights"]),
        ([("base", {"weight": 1})], {"samples_per_epoch": 0}, ["samples_per_epoch", "0"]),
        ([("base", {"weight": 1})], {"samples_per_epoch": 2**63 - 1}, ["samples_per_epoch", str(2**63 - 1)]),
        ([("base", {"weight": 1})], {"samples_per_epoch": 1.5}, ["samples_per_epoch", "1.5"]),
        ([("base", {"weight": 1})], {"samples_per_epoch": 3, "drop_last": True}, ["batch_size", "3", "8"]),
        ([("base", {}), ("two_arms", {"rename": TO_STATE_AND_ACTION})], {}, ["state", "[7]", "[14]", "pad_features"]),
        ([("one_arm", {}), ("two_arms", {"rename": {"force": "image", "qpos": "state"}})], {"pad_features": True, "delta_timestamps": {"image": [0.0]}}, ["image", "pad_features", "[2, 3]", "[6]"]),
        ([("base", {}), ("one_arm", {"rename": {"state": "x", "grip": "state"}})], {}, ["state", "bfloat16", "int16"]),
        ([("one_arm", {}), ("none", {"rename": {"mode": "grip"}})], {"delta_timestamps": {"grip": [0.0]}}, ["grip", "int16", "int64"]),
        ([("two_arms", {"rename": {"qpos": "force"}})], {}, ["sources[0].rename", "'force'"]),
        ([("two_arms", {"rename": {"qpos": "x", "command": "x"}})], {}, ["sources[0].rename", "'x'"]),
        ([("two_arms", {"rename": {"knees": "state"}})], {}, ["sources[0].rename", "knees"]),
        ([("two_arms", {"rename": {"qpos": ""}})], {}, ["sources[0].rename['qpos']"]),
        ([("two_arms", {"rename": ["qpos"]})], {}, ["sources[0].rename"]),
        ([("two_arms", {"rename": {"qpos": 3}})], {}, ["sources[0].rename", "int"]),
        ([("base", {"rename": 5})], {}, ["rename", "5"]),
        ([("base", {}), ("two_arms", {})], {}, ["sources[1]", "qpos", "force"]),
        ([("base", {}), ("one_arm", {"anchor": "qpos"})], {}, ["sources[1].anchor", "qpos", "grip"]),
        ([("base", {}), ("none", {})], {"anchor": "action"}, ["anchor", "action", "mode"]),
        ([("base", {}), ("base", {"episodes": []})], {}, ["sources[1].episodes"]),
        ([("base", {"episodes": [5]})], {}, ["sources[0].episodes", "[0, 5)", "5"]),
        ([("base", {"episodes": "1"})], {}, ["sources[0].episodes", "'1'"]),
        ([("base", {})], {"episodes": [0]}, ["episodes", "Source"]),
        ([("one_arm", {"rename": {"state": "dataset_index"}})], {"delta_timestamps": {"dataset_index": None}}, ["'dataset_index'"]),
        ([("base", {})], {"delta_timestamps": {"qpos": [0.0]}}, ["qpos", "state", "action"]),
        ([("base", {"anchor": "action", "episodes": [2]})], {}, ["sources[0].anchor"]),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_mixtures_are_refused_by_name(robots, chosen, options, parts):
    options = {"batch_size": 8, "delta_timestamps": {"state": [0.0]}, "device": "cpu"} | options
    with refused(*parts):
        loader_by_keywords(sources_of(robots, *chosen), **options)


def test_values_that_are_no_source_are_refused(robots):
    options = {"batch_size": 8, "delta_timestamps": {"state": [0.0]}, "device": "cpu"}
    dataset = robots["base"][0]
    for sources, part in (
        ([], "dataset"),
        ([dataset], r"sources\[0\]: expected a Source, got Dataset"),
        ([robocache.Source(dataset), "base"], r"sources\[1\]: expected a Source, got str"),
        ([robocache.Source(3)], r"sources\[0\]\.dataset"),
        ({"base": dataset}, "dataset"),
    ):
        with pytest.raises(robocache.ArgumentTypeError, match=part):
            loader_by_keywords(sources, **options)


# ---- names of features ----

LEFT_RIGHT = ["left_0", "left_1", "right_0", "right_1"]


def write_named(path, names, state=None):
    """Writes eight rows of actions and states with these names of features."""
    streams = {"action": {"names": names}, "state": {"names": state}}
    widths = {name: len(declared["names"] or LEFT_RIGHT) for name, declared in streams.items()}
    rows = {name: (np.arange(8) * 10**8, np.tile(np.arange(n, dtype=np.float32), (8, 1))) for name, n in widths.items()}
    return write(path, [rows], streams=streams)


def loader_of(datasets, keys=("action",), **options):
    return robocache.Loader(
        [robocache.Source(dataset) for dataset in datasets],
        batch_size=4,
        delta_timestamps={key: [0.0] for key in keys},
        framework="numpy",
        device="cpu",
        **options,
    )


def test_the_same_features_in_another_order_are_refused(tmp_path):
    a = write_named(tmp_path / "a", LEFT_RIGHT)
    b = write_named(tmp_path / "b", LEFT_RIGHT[2:] + LEFT_RIGHT[:2])
    with pytest.raises(robocache.ArgumentError, match=r"\['action'\].*one order.*feature 0 is 'left_0'"):
        loader_of([a, b])
    loader_of([a, b], ["state"])  # a key whose features have no names
    normalized = {"default": robocache.Window(normalize="mean_std")}
    for norm_stats in (a.stats, a.statistics([0]), robocache.merge_stats([a.stats, a.stats])):
        normalization = robocache.Normalization(norm_stats=norm_stats)
        with pytest.raises(robocache.ArgumentError, match=r"norm_stats\['action'\]: expected features in the order"):
            loader_of([b], normalization=normalization, **normalized)
        loader_of([a], normalization=normalization, **normalized)
        loader_of([b], ["state"], normalization=normalization, **normalized)
    with pytest.raises(robocache.ArgumentError, match=r"stats\[1\]\['action'\]: .* feature 0"):
        robocache.merge_stats([a.stats, b.stats])
    spec = loader_of([a]).spec
    assert robocache.merge_stats([a.statistics(spec), a.statistics(spec)])["action"].names == LEFT_RIGHT
    with pytest.raises(robocache.ArgumentError, match="order of"):
        b.statistics(spec)


def test_different_feature_names_are_warned_of(tmp_path):
    a, b = write_named(tmp_path / "a", LEFT_RIGHT), write_named(tmp_path / "b", ["left_0", "x", "y", "z"])
    with pytest.warns(robocache.LoaderWarning, match=r"\['action'\].*feature 1 is 'left_1' and 'x'.*rename"):
        loader_of([a, b])
    with pytest.warns(robocache.NormStatsWarning, match="feature 1 is 'left_1', and 'x'"):
        normalized = {"default": robocache.Window(normalize="mean_std")}
        loader_of([b], normalization=robocache.Normalization(norm_stats=a.stats), **normalized)
    with pytest.warns(robocache.NormStatsWarning, match="feature 1 is 'x', and 'left_1'"):
        robocache.merge_stats([a.stats, b.stats])


def test_a_state_in_another_order_is_refused(tmp_path):
    dataset = write_named(tmp_path / "a", LEFT_RIGHT, LEFT_RIGHT[2:] + LEFT_RIGHT[:2])

    def relative(base):
        window = robocache.Window([0.0], convert=[robocache.actions.Relative("joints")], base=base)
        windows = {"action": window, "state": [0.0]}
        return robocache.Loader(dataset, batch_size=4, delta_timestamps=windows, framework="numpy")

    with pytest.raises(robocache.ArgumentError, match=r"base: .*order of this key's.*feature 0 is 'left_0'"):
        relative("state")
    batch = next(iter(relative(("state", [2, 3, 0, 1]))))
    np.testing.assert_array_equal(batch["action_base"][0], [2, 3, 0, 1])


@pytest.mark.parametrize(
    ("names", "state_names", "is_refused"),
    [
        (["action.x", "action.y", "action.z"], ["state.y", "state.x", "state.z"], True),
        (["x_cmd", "y_cmd", "z_cmd"], ["x.pos", "z.pos", "y.pos"], True),
        (["action.x", "action.y", "action.z"], ["state.x", "state.y", "state.z"], False),
        (["joint_0", "joint_1", "joint_2"], ["motor_1", "motor_2", "motor_3"], False),
    ],
)
def test_common_prefixes_of_names_do_not_hide_their_order(names, state_names, is_refused, tmp_path):
    dataset = write_named(tmp_path / "a", names, state_names)
    relative = robocache.Window([0.0], convert=[robocache.actions.Relative("joints")], base="state")
    windows = {"action": relative, "state": [0.0]}
    with refused("base: ", "order of this key's") if is_refused else contextlib.nullcontext():
        robocache.Loader(dataset, batch_size=4, delta_timestamps=windows)


def source_with_attributes(path, **attributes):
    """Writes four rows of `q` with two features, and returns their source."""
    return robocache.Source(
        write(path, [{"q": (np.arange(4), np.ones((4, 2)))}], streams={"q": {"attributes": attributes}})
    )


@pytest.mark.parametrize(
    ("one_unit", "other_unit", "message"),
    [
        ("rad", "deg", "got 'rad' and 'deg' of feature 0"),
        (["m", "rad"], ["m", "deg"], "got 'rad' and 'deg' of feature 1"),
        ("rad", ["rad", "Nm"], "got 'rad' and 'Nm' of feature 1"),
        ("m", "mm", "got 'm' and 'mm' of feature 0"),
        ("rad", "radians", ""),
        (["rad", "m"], ["Radian", "metres"], ""),
        ("rad", None, ""),
        (None, ["rad", ""], ""),
    ],
)
def test_sources_of_different_units_in_one_key_are_refused(one_unit, other_unit, message, tmp_path):
    sources = [
        source_with_attributes(tmp_path / name, **({} if units is None else {"units": units}))
        for name, units in (("one", one_unit), ("other", other_unit))
    ]
    if not message:
        assert len(next(robocache.Loader(sources, delta_timestamps={"q": None}, batch_size=8, shuffle=False))["q"]) == 8
        assert robocache.merge_stats([source.dataset.stats for source in sources])["q"].count.tolist() == [8, 8]
        return
    first, second = (source.dataset for source in sources)
    without_unit = source_with_attributes(tmp_path / "without_unit").dataset
    for norm_stats in (first.stats, first.statistics([0]), robocache.merge_stats([first.stats, first.statistics([0])])):
        with pytest.raises(robocache.ArgumentError, match=r"stats\[1\]\['q'\]: expected statistics in the unit"):
            robocache.merge_stats([norm_stats, second.stats])
        with pytest.raises(robocache.ArgumentError, match=r"stats\[2\]\['q'\]: expected statistics in the unit"):
            robocache.merge_stats([without_unit.stats, norm_stats, second.stats])
        normalization = robocache.Normalization(norm_stats=norm_stats)
        with pytest.raises(robocache.ArgumentError, match=r"norm_stats\['q'\]: expected statistics in the unit"):
            window = robocache.Window(normalize="mean_std")
            robocache.Loader(second, delta_timestamps={"q": window}, batch_size=8, normalization=normalization)
    with pytest.raises(robocache.ArgumentError, match=rf"delta_timestamps\['q'\].*{message}.*rename="):
        robocache.Loader(sources, delta_timestamps={"q": None}, batch_size=8)
    separate = [sources[0], robocache.Source(sources[1].dataset, rename={"q": "other"}, anchor="other")]
    robocache.Loader(separate, delta_timestamps={"q": None, "other": None}, batch_size=4, missing="pad")


def test_statistics_of_relative_values_do_not_apply_to_absolute_ones(tmp_path):
    absolute, relative, unmarked = (
        source_with_attributes(tmp_path / str(number), **attributes).dataset
        for number, attributes in enumerate([{"absolute": True}, {"absolute": False}, {}])
    )
    options = {"delta_timestamps": {"q": robocache.Window(normalize="mean_std")}, "batch_size": 4}
    for stats in (relative.stats, relative.statistics([0]), robocache.merge_stats([relative.stats, unmarked.stats])):
        with pytest.raises(robocache.ArgumentError, match=r"stats\[1\]\['q'\]: expected .* of relative values"):
            robocache.merge_stats([stats, absolute.stats])
        normalization = robocache.Normalization(norm_stats=stats)
        with pytest.raises(robocache.ArgumentError, match=r"norm_stats\['q'\]: expected .* of absolute values"):
            robocache.Loader(absolute, normalization=normalization, **options)
        for dataset in (relative, unmarked):
            next(robocache.Loader(dataset, normalization=normalization, **options))


def write_names(path, names, column=None, shape=(2,), stream="q"):
    """Writes two episodes whose features are named by the stream, or by a column of the episodes."""
    rows = {stream: (np.arange(4) * 10**8, np.ones((4, *shape), np.float32))}
    if not column:
        return write(path, [rows] * 2, streams={stream: {"names": names}})
    return write(path, [rows] * 2, columns=[{} if value is None else {column: value} for value in names])


AB, BA = ["a", "b"], ["b", "a"]


@pytest.mark.parametrize(
    ("column", "one_order", "other_order", "shape", "stream"),
    [
        (None, AB, BA, (2,), "q"),
        (None, ["a", "b", "c"], ["b", "a", "d"], (3,), "q"),
        ("joint_names", [AB, AB], [BA, BA], (2,), "q"),
        ("joint_names", [AB, AB], [AB, BA], (2,), "q"),  # the order of the second source's episodes
        ("joint_names", ["a,b", "a, b"], ["b,a", "b,a"], (2,), "q"),
        ("motors", ["a b", "a b"], ["b a", "b a"], (2,), "q"),
        ("labels", [AB, AB], [BA, BA], (2,), "q"),
        ("action_names", [AB, AB], [BA, BA], (2,), "actions"),
        ("body_names", [AB, AB], [BA, BA], (2, 3), "body_pos_w"),
    ],
)
def test_sources_with_differently_ordered_features_are_refused(column, one_order, other_order, shape, stream, tmp_path):
    """A column of the batch would mix quantities."""
    first = write_names(tmp_path / "one", one_order, column, shape, stream)
    second = write_names(tmp_path / "other", other_order, column, shape, stream)
    sources = [robocache.Source(first), robocache.Source(second)]
    with pytest.raises(robocache.ArgumentError, match=r"one order.*rename=") as raised:
        robocache.Loader(sources, delta_timestamps={stream: None}, batch_size=4)
    assert all(str(part) in str(raised.value) for part in (stream, tmp_path / "other", "sources[1]"))
    assert column is None or (str(AB) in str(raised.value) and str(BA) in str(raised.value))
    separate = [sources[0], robocache.Source(second, episodes=[0], rename={stream: "other"}, anchor="other")]
    robocache.Loader(separate, delta_timestamps={stream: None, "other": None}, batch_size=4, missing="pad")


def test_episodes_with_differently_ordered_features_are_refused(tmp_path):
    dataset = write_names(tmp_path / "one", [AB, BA], "joint_names")
    with pytest.raises(robocache.ArgumentError, match="one order"):
        robocache.Loader(dataset, delta_timestamps={"q": None}, batch_size=4)
    robocache.Loader(dataset, delta_timestamps={"q": None}, batch_size=4, episodes=[1])


@pytest.mark.parametrize(
    ("column", "one_order", "other_order", "stream", "warning"),
    [
        (None, AB, AB, "q", None),
        (None, AB, None, "q", None),
        (None, ["a", "a"], ["a", "a"], "q", None),
        (None, AB, ["a", "c"], "q", "'b'"),
        ("joint_names", [AB, AB], [["a", "c"], ["a", "c"]], "q", "'b'"),
        ("joint_names", [AB, AB], [BA, BA], "eef_pos", None),  # "eef_pos" has no joints
        ("objects", [AB, AB], [BA, BA], "q", None),
        ("joint_names", [AB, None], [AB, AB], "q", None),
    ],
)
def test_matching_or_unrelated_names_are_accepted(column, one_order, other_order, stream, warning, tmp_path):
    """Unrelated names may be synonyms, so they are only a warning."""
    orders = {"one": one_order, "other": other_order}
    datasets = [write_names(tmp_path / name, order, column, stream=stream) for name, order in orders.items()]
    with warnings_with("features", warning):
        robocache.Loader([robocache.Source(x) for x in datasets], delta_timestamps={stream: None}, batch_size=4)


@pytest.mark.parametrize(("column", "values"), [("units", ("rad", "deg")), ("use_degrees", (False, True))])
def test_columns_with_different_units_are_warned_of(column, values, tmp_path):
    rows = {"q": (np.arange(4) * 10**8, np.ones((4, 2), np.float32))}
    sources = [robocache.Source(write(tmp_path / str(x), [rows], columns=[{column: x}])) for x in values]
    for chosen, expected in ((sources[:1] * 2, None), (sources, r"'rad' in sources\[0\].*'deg' in sources\[1\]")):
        with warnings_with(f"'{column}' says", expected):
            robocache.Loader(chosen, delta_timestamps={"q": None}, batch_size=4)


def test_units_of_fewer_features_than_a_stream_has(tmp_path):
    sources = [source_with_attributes(tmp_path / str(units), units=units) for units in (["rad"], ["rad", "m"])]
    anchors = robocache.Anchors(where=pc.field("q[1]") > 0)
    loader = robocache.Loader(sources, batch_size=4, delta_timestamps={"q": None}, anchors=anchors)
    assert loader.num_anchors == 8


def test_rotations_differ_although_the_first_source_names_no_order(tmp_path):
    forms = "quaternion", "quaternion_xyzw", "quaternion_wxyz"
    sources = [source_with_attributes(tmp_path / form, rotation_type=form) for form in forms]
    for indices, is_refused in [((0, 1), False), ((0, 1, 2), True), ((1, 0, 2), True)]:
        chosen = [sources[index] for index in indices]
        with refused("'quaternion_xyzw' and 'quaternion_wxyz'") if is_refused else contextlib.nullcontext():
            robocache.Loader(chosen, batch_size=2, delta_timestamps={"q": None})


def test_anchors_that_every_source_replaces_are_not_explained(tmp_path):
    source = source_with_attributes(tmp_path / "cache")
    sources = [robocache.Source(source.dataset, anchors=robocache.Anchors(every=2))]
    options = {"batch_size": 2, "delta_timestamps": {"q": None}, "anchors": robocache.Anchors(first=3)}
    assert str(robocache.Loader(sources, **options).explain()).endswith("anchors: 2 of 4; sources[0]: every=2")
