"""A Loader's goals and other moments, against a Python oracle that draws by the same hash."""

import collections
import itertools
import json
import pickle
import struct
from fractions import Fraction

import numpy as np
import pytest
from recordings import EPOCH_NS, STREAMS, batches_of, joined, loader_of, write
from reference.arithmetic import mix_bits
from reference.compare import assert_same_bits, to_numpy

import robocache
from robocache import Anchors, Memory, Mixture, Normalization, Ranks, Source, Window, actions

pytestmark = pytest.mark.filterwarnings("ignore::robocache.LoaderWarning")
NO_OFFSET = -(2**63)
REACH = 999  # ns: a tick closer than snap_s, 1 us, to an end of a range counts as on it
UINT64_MAX = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15  # the increment of SplitMix64

WINDOWS = {
    "future": Window.future("same episode", 0.0, 0.3),
    "later": Window.future("same episode", 0.2, float("inf")),
    "last": Window.last(),
    "geometric": Window.geometric(0.9),
    "near": Window.geometric(1e-9),
    "far": Window.geometric(1 - 2**-53),
    "other": Window.other(),
}


# ---- The oracle ----


def hash_of(*parts):
    state = 0
    for part in parts:
        state = mix_bits((state ^ (part & UINT64_MAX)) + GOLDEN & UINT64_MAX)
    return state


def range_and_hash_key(moment):
    """Returns ([low, high] in ns, the hash key of a moment's draws)."""
    kind = ("future", "last", "geometric", "other").index(moment.kind)
    ns = [2**63 - 1 if s == float("inf") else round(s * 1e9) for s in (moment.low_s, moment.high_s)]
    return ns, hash_of(kind + 1, *ns, int.from_bytes(struct.pack("<d", moment.discount), "little"))


def geometric(discount, count, bits):
    """Returns the least i in [1, count] with discount^i < 1 - u (1 - discount^count). `bits` give u; products are rounded."""
    powers = [discount]
    for _ in range(61):
        powers.append(powers[-1] * powers[-1])
    last_power = 1.0
    for i in range(count.bit_length()):
        if count >> i & 1:
            last_power *= powers[i]
    u = (bits >> 11) * 2.0**-53
    threshold = float(1 - Fraction(u) * Fraction(1 - last_power))
    steps, power = 0, 1.0
    for i in reversed(range(62)):
        if steps + 2**i < count and power * powers[i] >= threshold:
            steps, power = steps + 2**i, power * powers[i]
    return steps + 1


def expected_moment(window, seed, epoch, draw, episode, time_ns, ticks, tasks):
    """Returns (episode, index of the tick) of an anchor's moment, or None. ticks: {episode: times of its ticks}."""
    (low_ns, high_ns), key = range_and_hash_key(window.moment)
    state = hash_of(seed, epoch, draw, key)
    bits = mix_bits(state + GOLDEN & UINT64_MAX)
    times = ticks[episode]
    match window.moment.kind:
        case "future":
            candidates = [i for i, t in enumerate(times) if time_ns + low_ns + REACH < t <= time_ns + high_ns + REACH]
            return (episode, candidates[bits % len(candidates)]) if candidates else None
        case "last":
            return episode, len(times) - 1
        case "geometric":
            passed = int(np.searchsorted(times, time_ns, "right"))
            remaining = len(times) - passed
            return (episode, passed - 1 + geometric(window.moment.discount, remaining, bits)) if remaining else None
    peers = sorted(e for e in ticks if tasks[e] is not None and tasks[e] == tasks[episode] and len(ticks[e]))
    if len(peers) < 2:
        return None
    index = bits % (len(peers) - 1)
    other = [e for e in peers if e != episode][index]
    return other, mix_bits(state + 2 * GOLDEN & UINT64_MAX) % len(ticks[other])


def assert_goals(batch, key, window, ticks, tasks, values, *, seed, draws, epoch=0):
    """Compares a key without steps, whose stream has the rows ``values[episode][tick]``. Returns the expected moments.

    draws: the numbers that the random draws of the samples depend on.
    """
    batch = {name: to_numpy(array) for name, array in batch.items()}
    moments = []
    for i, draw in enumerate(draws):
        episode, time_ns = int(batch["episode_index"][i]), int(batch["time_ns"][i])
        moment = expected_moment(window, seed, epoch, draw, episode, time_ns, ticks, tasks)
        moments.append(moment)
        assert batch[f"{key}_is_pad"][i] == (moment is None)
        if moment is None:
            assert batch[f"{key}_offset_ns"][i] == NO_OFFSET
            assert not batch[key][i].any()
        else:
            assert batch[f"{key}_offset_ns"][i] == int(ticks[moment[0]][moment[1]]) - time_ns
            np.testing.assert_array_equal(batch[key][i], values[moment[0]][moment[1]])
        if window.moment.kind == "other":
            assert batch[f"{key}_episode_index"][i] == (-1 if moment is None else moment[0])
    return moments


# ---- Recordings ----


def recording_of(rng, lengths, names=("state",), jitter=True, period_ns=33_333_333):
    result = []
    for number, n in enumerate(lengths):
        periods = rng.integers(10**7, 6 * 10**7, n) if jitter else np.full(n, period_ns)
        times = EPOCH_NS + 10**12 * number + np.cumsum(periods)
        result.append({name: (times, rng.standard_normal((n, 3)).astype(np.float32)) for name in names})
    return result


LENGTHS = [40, 1, 17, 2, 60, 1, 30, 5]  # the two tasks alternate


def oracle_data(recording, task=lambda episode: f"task {episode % 2}"):
    ticks = {e: streams["state"][0] for e, streams in enumerate(recording)}
    values = {e: streams["state"][1] for e, streams in enumerate(recording)}
    return ticks, [task(e) for e in range(len(recording))], values


def with_stream(window, stream="state", **fields):
    return Window(window.offsets, moment=window.moment, stream=stream, **fields)


def goals(*names, **fields):
    return {"state": Window(), **{name: with_stream(WINDOWS[name], **fields) for name in names or WINDOWS}}


# ---- Which moments ----


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_every_moment_equals_the_oracles(tmp_path, rng, device, seed):
    recording = recording_of(rng, LENGTHS)
    dataset = write(tmp_path / "cache", recording)
    loader = loader_of(dataset, goals(), batch_size=16, seed=seed, device=device)
    for epoch in range(2):
        position = 0
        for batch in loader:
            draws = range(position, position + len(batch["time_ns"]))
            position += len(batch["time_ns"])
            for name, window in WINDOWS.items():
                assert_goals(batch, name, window, *oracle_data(recording), seed=seed, draws=draws, epoch=epoch)


def test_repeated_stamps_and_grids(tmp_path, rng, device):
    """The ends of a range snap to ticks: k / 30 s in whole ns may be 1 ns before or after a tick."""
    times = np.round(np.arange(120) * 1e9 / 30).astype(np.int64)
    repeated = np.repeat(times[:40], 3)
    recording = [
        {"state": (t, rng.standard_normal((len(t), 3)).astype(np.float32))} for t in (times, repeated, times[:50])
    ]
    dataset = write(tmp_path / "cache", recording)
    windows = {
        "state": Window(),
        "one": with_stream(Window.future("same episode", 0.0, 1 / 30)),
        "tenth": with_stream(Window.future("same episode", 10 / 30, 11 / 30)),
        "geometric": with_stream(WINDOWS["geometric"]),
    }
    loader = loader_of(dataset, windows, batch_size=290, seed=3, device=device)
    batch = next(loader)
    ticks, tasks, values = oracle_data(recording, lambda _: "")
    # The last of the rows with equal stamps counts.
    values = {e: rows[np.searchsorted(ticks[e], ticks[e], "right") - 1] for e, rows in values.items()}
    for name in ("one", "tenth", "geometric"):
        moments = assert_goals(batch, name, windows[name], ticks, tasks, values, seed=3, draws=range(290))
        assert any(moments)
    episode, time = to_numpy(batch["episode_index"]), to_numpy(batch["time_ns"])
    offset = to_numpy(batch["one_offset_ns"])
    is_last = time == np.array([ticks[e][-1] for e in episode])
    np.testing.assert_array_equal(offset == NO_OFFSET, is_last)
    assert set(offset[~is_last]) == {33_333_333, 33_333_334}


@pytest.mark.parametrize("rate_hz", [7.0, 100.0])
def test_ticks_of_a_rate(tmp_path, rng, device, rate_hz):
    recording = recording_of(rng, LENGTHS)
    windows = goals("future", "last", "geometric", "other")
    anchors = Anchors(rate_hz=rate_hz)
    dataset = write(tmp_path / "cache", recording)
    shared = {"anchors": anchors, "device": device, "default": Window(method="linear")}
    (all_rows,) = batches_of(loader_of(dataset, windows, batch_size=10_000, shuffle=False, **shared), 1)
    ticks = {e: all_rows["time_ns"][all_rows["episode_index"] == e] for e in range(len(LENGTHS))}
    values = {e: all_rows["state"][all_rows["episode_index"] == e] for e in range(len(LENGTHS))}
    batch = next(loader_of(dataset, windows, batch_size=1000, seed=5, **shared))
    tasks = oracle_data(recording)[1]
    for name in ("future", "last", "geometric", "other"):
        draws = range(len(batch["time_ns"]))
        assert_goals(batch, name, WINDOWS[name], ticks, tasks, values, seed=5, draws=draws)


def test_ticks_that_are_no_anchors_can_be_goals(tmp_path, rng):
    """edges and drop_n_last remove anchors, not goals; goals remove no anchors."""
    recording = recording_of(rng, LENGTHS)
    dataset = write(tmp_path / "cache", recording)
    for anchors, count in ((Anchors(edges="drop"), sum(max(n - 3, 0) for n in LENGTHS)), (Anchors(drop_n_last=4), 132)):
        windows = goals("last", "geometric", "other") | {"state": Window(range(4), rows=True)}
        loader = loader_of(dataset, windows, anchors=anchors, batch_size=500, seed=2)
        assert loader.num_anchors == count
        batch = next(loader)
        for name in ("last", "geometric", "other"):
            assert all(assert_goals(batch, name, WINDOWS[name], *oracle_data(recording), seed=2, draws=range(count)))


def test_goals_of_other_episodes_are_from_selected_episodes(tmp_path, rng):
    recording = recording_of(rng, LENGTHS)
    dataset = write(tmp_path / "cache", recording)
    episodes = [6, 0, 3, 0]
    loader = loader_of(dataset, goals("other"), batch_size=200, episodes=episodes, seed=1)
    ticks, tasks, values = oracle_data(recording)
    ticks = {e: ticks[e] for e in set(episodes)}
    batch = next(loader)
    moments = assert_goals(batch, "other", WINDOWS["other"], ticks, tasks, values, seed=1, draws=range(112))
    pairs = {(e, goal and goal[0]) for e, goal in zip(batch["episode_index"].tolist(), moments, strict=True)}
    assert pairs == {(6, 0), (0, 6), (3, None)}


def test_tasks_are_the_first_text_of_each_episode(tmp_path, rng):
    lengths = [6, 6, 6, 6, 6, 6]
    texts = [["pick", "pour"], ["", "pour"], ["pick"], None, ["pour", "pick"], [""]]
    recording = recording_of(rng, lengths)
    for streams, episode_texts in zip(recording, texts, strict=True):
        if episode_texts is not None:
            streams["said"] = streams["state"][0][: len(episode_texts)], episode_texts
    declared = {"said": {"attributes": {"task": True}}}
    dataset = write(tmp_path / "cache", recording, streams=declared, columns=[{}] * 6)
    loader = loader_of(dataset, goals("other"), batch_size=36, seed=1)
    tasks = ["pick", "pour", "pick", None, "pour", None]
    ticks, _, values = oracle_data(recording)
    assert_goals(next(loader), "other", WINDOWS["other"], ticks, tasks, values, seed=1, draws=range(36))


def test_without_texts_all_episodes_have_one_task(tmp_path, rng):
    recording = recording_of(rng, [4, 5, 1])
    loader = loader_of(write(tmp_path / "cache", recording, columns=[{}] * 3), goals("other"), batch_size=10, seed=1)
    ticks, tasks, values = oracle_data(recording, lambda _: "")
    assert all(assert_goals(next(loader), "other", WINDOWS["other"], ticks, tasks, values, seed=1, draws=range(10)))


def assert_likely(counts, expected):
    """Asserts that chi-square is less than five standard deviations above its mean."""
    freedom = len(counts) - 1
    assert ((np.array(counts) - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


def test_draws_have_the_given_probabilities(tmp_path, rng):
    rows = {"state": (np.arange(12) * 10**8, np.arange(12, dtype=np.float32)[:, None])}
    dataset = write(tmp_path / "cache", [rows] * 4, columns=[{"task": "one"}] * 4)
    windows = {
        "state": Window(),
        "future": with_stream(Window.future("same episode", 0.1, 0.8)),
        "geometric": with_stream(Window.geometric(0.7)),
        "other": with_stream(Window.other()),
    }
    loader = loader_of(dataset, windows, batch_size=48, shuffle=False, memory=Memory(prefetch=0), seed=11)
    counts = collections.defaultdict(collections.Counter)
    epochs = 2000
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        batch = next(loader)
        row = batch["state"][:, 0].tolist()
        for name in ("future", "geometric"):
            steps = batch[f"{name}_offset_ns"].tolist()
            counts[name].update((r, s // 10**8) for r, s in zip(row, steps, strict=True) if s != NO_OFFSET)
        columns = (batch["episode_index"], batch["other_episode_index"], batch["other"][:, 0])
        counts["other"].update(zip(*(column.tolist() for column in columns), strict=True))
    for row in range(12):
        remaining = 11 - row
        expected = {
            "future": dict.fromkeys(range(2, min(remaining, 8) + 1), 1.0),
            "geometric": {k: 0.7**k for k in range(1, remaining + 1)},
        }
        for name, shares in expected.items():
            got = {k: c for (r, k), c in counts[name].items() if r == row}
            assert set(got) <= set(shares)
            if len(shares) < 2:
                continue
            total = sum(shares.values())
            assert_likely([got.get(k, 0) for k in shares], [4 * epochs * p / total for p in shares.values()])
    pairs = [(a, b, r) for a in range(4) for b in range(4) if a != b for r in range(12)]
    assert set(counts["other"]) == set(pairs)
    # In an epoch the 12 rows of episode a each draw one of 3 episodes, and one of its 12 rows.
    assert_likely([counts["other"][pair] for pair in pairs], [epochs * 12 / 3 / 12] * len(pairs))


# ---- Keys of one moment ----


def test_keys_of_one_moment_share_the_draw(filmed_dataset, filmed, device):
    """An image and two windows of the state have the same moment, in any tier."""
    goal = Window.future("same episode", 0.0, 0.2, [-0.05, 0.0]).moment
    windows = {
        "joint": Window(),
        "goal.joint": Window([-0.05, 0.0], stream="joint", moment=goal),
        "goal.rows": Window(range(3), rows=True, stream="joint", moment=goal),
        "goal.top": Window(stream="top", moment=goal),
    }
    shared = {"anchors": "joint", "device": device}
    frames = batches_of(loader_of(filmed_dataset, {"top": None, "joint": None}, batch_size=120, **shared), 1)[0]
    for residency in ("auto", {"goal.top": "mapped", "joint": "auto"}, "mapped", {"goal.joint": "mapped"}):
        memory = Memory(residency=residency)
        loader = loader_of(filmed_dataset, windows, batch_size=40, return_age=True, memory=memory, seed=4, **shared)
        for batch in batches_of(loader, None):
            for name in ("goal.rows", "goal.top"):
                np.testing.assert_array_equal(batch[f"{name}_offset_ns"], batch["goal.joint_offset_ns"])
            for i, offset in enumerate(batch["goal.joint_offset_ns"].tolist()):
                episode = int(batch["episode_index"][i])
                if offset == NO_OFFSET:
                    assert batch["goal.top_is_pad"][i] and batch["goal.joint_is_pad"][i].all()
                    assert not batch["goal.top"][i].any()
                    continue
                moment_ns = int(batch["time_ns"][i]) + offset
                times, rows = filmed.episodes[episode]["joint"]
                tick = int(np.searchsorted(times, moment_ns))
                assert times[tick] == moment_ns
                np.testing.assert_array_equal(batch["goal.joint"][i, 1], rows[tick])
                three_rows = rows[np.minimum(tick + np.arange(3), len(rows) - 1)]
                np.testing.assert_array_equal(batch["goal.rows"][i], three_rows)
                is_goal = (frames["episode_index"] == episode) & (frames["time_ns"] == moment_ns)
                np.testing.assert_array_equal(batch["goal.top"][i], frames["top"][is_goal][0])


def test_a_goal_is_normalised_like_the_state(dataset, device):
    """Statistics given for the state normalise the goal, too."""
    windows = {
        "observation.state": Window(normalize="mean_std"),
        "goal": Window.last([0.0], stream="observation.state", normalize="mean_std"),
    }
    stats = {"observation.state": {"mean": np.arange(7.0), "std": np.arange(1.0, 8.0)}}
    for given in (None, stats):
        loader = loader_of(dataset, windows, normalization=Normalization(norm_stats=given), device=device)
        keys = loader.spec.keys
        assert keys["goal"]["rows"]["affine"] == keys["observation.state"]["rows"]["affine"]
        assert keys["goal"]["stream"] == "observation.state"
        x = np.random.default_rng(1).standard_normal((2, 7)).astype(np.float32)
        assert_same_bits(loader.normalize("goal", x), loader.normalize("observation.state", x), "affine")


def test_goals_relative_to_the_current_state_and_to_their_own(tmp_path, rng, device):
    """A key that is a base keeps its own moment."""
    recording = recording_of(rng, LENGTHS)
    relative = {"convert": [actions.Relative("joints")]}
    last = Window.last().moment
    windows = {
        "state": Window(),
        "then": Window(stream="state", moment=last),
        "from now": Window(stream="state", moment=last, base="state", **relative),
        "from then": Window([-0.1], stream="state", moment=last, base="then", **relative, method="previous"),
    }
    batch = batches_of(loader_of(write(tmp_path / "c", recording), windows, batch_size=156, device=device))[0]
    np.testing.assert_array_equal(batch["from now"], batch["then"] - batch["state"])
    np.testing.assert_array_equal(batch["from then_base"], batch["then"])
    for i, episode in enumerate(batch["episode_index"]):
        times, values = recording[episode]["state"]
        row = int(np.searchsorted(times, times[-1] - 10**8, "right")) - 1
        if row >= 0:
            np.testing.assert_array_equal(batch["from then"][i, 0], values[row] - values[-1])


# ---- Order, ranks and resuming ----


def test_goals_do_not_depend_on_ranks_batch_size_resuming_or_prefetch(tmp_path, rng, device):
    dataset = write(tmp_path / "cache", recording_of(rng, LENGTHS))

    def make_loader(windows=None, **options):
        return loader_of(dataset, windows or goals(), **{"batch_size": 24, "seed": 6, "device": device} | options)

    expected = joined(make_loader())

    def check(batches, start=0):
        batch = joined(batches)
        for key, array in expected.items():
            assert_same_bits(batch[key], array[start : start + len(batch[key])], key)

    for options in (
        {"batch_size": 7},
        {"memory": Memory(prefetch=0)},
        {"memory": Memory(residency="mapped", prefetch=2)},
    ):
        check(make_loader(**options))
    ranks = [itertools.islice(make_loader(batch_size=12, ranks=Ranks(rank=rank, world_size=2)), 6) for rank in range(2)]
    check(itertools.chain(*zip(*ranks, strict=True)))
    loader = make_loader()
    for _ in range(2):
        next(loader)
    resumed = make_loader(batch_size=11, seed=0)
    resumed.load_state_dict(loader.state_dict())
    for other in (resumed, pickle.loads(pickle.dumps(loader))):
        check(other, 48)
    assert make_loader({"state": None}).state_dict() == make_loader().state_dict()


def test_gather_draws_by_the_anchors_index(tmp_path, rng, device):
    """The draw depends on the anchor's index alone, like the draw of a random crop."""
    recording = recording_of(rng, LENGTHS)
    loader = loader_of(write(tmp_path / "cache", recording), goals(), batch_size=64, seed=8, device=device)
    chosen = [100, 3, 3, 155, 41]
    batch = loader.gather(chosen)
    for name, window in WINDOWS.items():
        assert_goals(batch, name, window, *oracle_data(recording), seed=8, draws=chosen)


@pytest.mark.parametrize("weights", [(None, None), (0.3, 0.7)])
def test_mixtures_draw_within_a_source(tmp_path, rng, device, weights):
    recordings = [recording_of(rng, lengths) for lengths in (LENGTHS, [5, 9, 1, 30])]
    for streams in recordings[1]:
        times, values = streams["state"]
        streams["state"] = times, values[:, :2]
    sources = [
        Source(write(tmp_path / str(i), recording), weight=weight)
        for i, (recording, weight) in enumerate(zip(recordings, weights, strict=True))
    ]
    mixture = Mixture(sources, pad_features=True, samples_per_epoch=200 if weights[0] else None)
    loader = loader_of(mixture, goals(), batch_size=100, seed=9, device=device)
    position = 0
    for batch in batches_of(loader, 2):
        draws = np.arange(position, position + len(batch["time_ns"]))
        position += len(draws)
        for source, recording in enumerate(recordings):
            mask = batch["dataset_index"] == source
            samples = {key: array[mask] for key, array in batch.items()}
            ticks, tasks, values = oracle_data(recording)
            values = {e: np.pad(rows, ((0, 0), (0, 3 - rows.shape[1]))) for e, rows in values.items()}
            for name, window in WINDOWS.items():
                assert_goals(samples, name, window, ticks, tasks, values, seed=9, draws=draws[mask].tolist())
                np.testing.assert_array_equal(samples[f"{name}_feature_is_pad"], samples["state_feature_is_pad"])


def test_streams_of_every_type_and_missing_streams(dataset, recording, device):
    windows = {f"goal {name}": Window.last([-1, 0], stream=name, rows=True) for name in STREAMS}
    windows |= {"action": Window()}
    batch = batches_of(loader_of(dataset, windows, batch_size=60, anchors="observation.state", device=device))[0]
    for name in STREAMS:
        for i, episode in enumerate(batch["episode_index"]):
            last = recording[episode]["observation.state"][0][-1]
            times, values = recording[episode].get(name, ((), None))
            if not len(times):
                assert batch[f"goal {name}_is_pad"][i].all() and not batch[f"goal {name}"][i].any()
                continue
            row = int(np.searchsorted(times, last + REACH, "right")) - 1
            rows = np.array([row - 1, row])
            dtype = batch[f"goal {name}"].dtype
            np.testing.assert_array_equal(batch[f"goal {name}"][i], values[np.maximum(rows, 0)].astype(dtype))
            np.testing.assert_array_equal(batch[f"goal {name}_is_pad"][i], rows < 0)


def test_a_batch_with_goals_alone(tmp_path, rng, device):
    recording = recording_of(rng, LENGTHS)
    dataset = write(tmp_path / "cache", recording)
    window = WINDOWS["geometric"]
    for residency in ("auto", "mapped"):
        options = {"batch_size": 50, "memory": Memory(residency=residency), "seed": 2, "device": device}
        batch = next(loader_of(dataset, {"state": window}, **options))
        assert_goals(batch, "state", window, *oracle_data(recording), seed=2, draws=range(50))


# ---- Statistics, the spec, errors ----


def test_statistics_of_goals(tmp_path, rng):
    recording = recording_of(rng, LENGTHS)
    dataset = write(tmp_path / "cache", recording)
    goal = with_stream(WINDOWS["last"], base="state", convert=[actions.Relative("joints")])
    loader = loader_of(dataset, {"state": Window(), "goal": goal})
    values = np.concatenate([s["state"][1][-1] - s["state"][1] for s in recording]).astype(np.float64)
    for loader_or_spec in (loader, loader.spec):
        stats = dataset.statistics(loader_or_spec)["goal"]
        np.testing.assert_allclose(stats.mean, values.mean(0), rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(stats.max, values.max(0))


def test_the_spec_has_the_rule_of_goals(tmp_path, rng):
    dataset = write(tmp_path / "cache", recording_of(rng, LENGTHS))
    loader = loader_of(dataset, goals("later", "geometric"))
    keys = loader.spec.keys
    assert (keys["state"]["stream"], keys["state"]["moment"]) == ("state", None)
    assert keys["later"]["moment"] == {"kind": "future", "low_ns": 200_000_000, "high_ns": 2**63 - 1, "discount": 0.0}
    assert keys["geometric"]["moment"] == {"kind": "geometric", "low_ns": 0, "high_ns": 0, "discount": 0.9}
    loader.save_spec(tmp_path / "spec.json")
    assert robocache.Spec.load(tmp_path / "spec.json") == loader.spec
    for rule in (
        {"kind": "last", "low_ns": 1, "high_ns": 0, "discount": 0.0},
        {"kind": "geometric", "low_ns": 0, "high_ns": 0, "discount": 1.0},
    ):
        spec = json.loads(loader.spec.to_json())
        spec["keys"][1]["moment"] = rule
        with pytest.raises(robocache.ArgumentError, match="moment: expected low_ns < high_ns for 'future'"):
            robocache.Spec(json.dumps(spec))


@pytest.mark.parametrize(
    ("make_window", "match"),
    [
        (lambda: Window.future("next episode", 0, 1), "where: expected 'same episode', got 'next episode'"),
        (lambda: Window.future("same episode", 1.0, 1.0), r"\['goal'\].moment: expected 0 <= low_s < high_s, got 1"),
        (lambda: Window.future("same episode", -1.0, 1.0), "expected 0 <= low_s < high_s"),
        (lambda: Window.future("same episode", float("nan"), 1.0), "expected 0 <= low_s < high_s"),
        (lambda: Window.future("same episode", 1.0, 1e30), "moment.high_s: expected finite seconds"),
        (lambda: Window.future("same episode", "0", 1), "low_s: expected a number"),
        (lambda: Window.geometric(1.0), "moment: expected a discount between 0 and 1, got 1"),
        (lambda: Window.geometric(0), "expected a discount between 0 and 1"),
        (lambda: Window(moment="last"), r"\['goal'\].moment: expected the moment of Window.future, last"),
        (lambda: Window(stream="nothing"), r"\['goal'\].stream: no stream 'nothing'"),
        (lambda: Window(), "delta_timestamps: no stream 'goal'"),
    ],
)
def test_invalid_moments_are_refused(dataset, make_window, match):
    with pytest.raises((robocache.ArgumentError, robocache.ArgumentTypeError), match=match):
        window = make_window()
        if window.moment is not None and window.stream is None:
            window = with_stream(window, "observation.state")
        loader_of(dataset, {"observation.state": None, "goal": window})


def test_a_default_has_no_moment(dataset):
    for default in (Window.last(), Window(stream="action")):
        with pytest.raises(robocache.ArgumentError, match="default: expected no"):
            loader_of(dataset, {"action": [0.0]}, default=default)


def test_two_windows_of_one_stream(dataset, device):
    two_windows = {"action": Window([0.0, 0.1]), "before": Window([-0.1], stream="action")}
    one_window = {"action": Window([-0.1, 0.0, 0.1])}
    options = {"batch_size": 32, "default": Window(method="linear"), "device": device}
    separate, single = (joined(loader_of(dataset, windows, **options)) for windows in (two_windows, one_window))
    assert_same_bits(np.concatenate([separate["before"], separate["action"]], 1), single["action"], "action")


@pytest.mark.parametrize("options", [{"balance": "task"}, {"weight_by": "weight"}], ids=str)
def test_weighted_anchors_keep_each_keys_source(tmp_path, rng, device, options):
    """Weights split a source into several parts; goals, conversions and normalisation are still the source's."""
    recording = recording_of(rng, [30, 20, 9, 12], names=("state", "action"))
    for streams in recording:
        times = streams["state"][0]
        streams["weight"] = times, (1 + np.arange(len(times)) % 3).astype(np.float32)
    dataset = write(tmp_path / "cache", recording)
    windows = {
        "state": Window(),
        "action": Window([0.0], convert=[actions.Relative("joints")], base="state", normalize="mean_std"),
        "goal": with_stream(WINDOWS["last"], base="state", convert=[actions.Relative("joints")], normalize="mean_std"),
    }
    plain, batch = (
        batches_of(loader_of(Mixture([source]), windows, batch_size=71, device=device), 1)[0]
        for source in (Source(dataset), Source(dataset, **options))
    )
    index_of = {key: i for i, key in enumerate(zip(plain["episode_index"], plain["time_ns"], strict=True))}
    indices = [index_of[key] for key in zip(batch["episode_index"], batch["time_ns"], strict=True)]
    for name in ("state", "action", "goal", "goal_offset_ns", "dataset_index"):
        assert_same_bits(batch[name], plain[name][indices], name)
