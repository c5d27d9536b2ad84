"""The action at a moment, out of a policy's chunks, against a loop over all steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robocache
from robocache import Window
from robocache.live import Chunks

MS = 1_000_000


def expected(chunks, moment, mode, decay):
    """By the rule alone: of each chunk the last step at or before the moment, unless it is over."""
    found = []
    for anchor, offsets, actions in sorted(chunks, key=lambda chunk: chunk[0] + chunk[1][0]):
        stamps = [anchor + offset for offset in offsets]
        ends = [*stamps[1:], stamps[-1] + (stamps[-1] - stamps[-2] if len(stamps) > 1 else 1)]
        found += [action for begin, end, action in zip(stamps, ends, actions, strict=True) if begin <= moment < end]
    if not found:
        return None
    if mode == "newest":
        return found[-1]
    weights = [np.exp(-decay * i) for i in range(len(found))]
    return sum(w * a for w, a in zip(weights, found, strict=True)) / sum(weights)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), mode=st.sampled_from(["newest", "ensemble"]))
def test_the_action_is_the_rules(seed, mode):
    rng = np.random.default_rng(seed)
    chunks, put = Chunks(mode, decay=0.3), []
    moment = 10**9
    starved = 0
    for _ in range(40):
        if rng.random() < 0.4:
            steps = int(rng.integers(1, 6))
            offsets = np.cumsum(rng.integers(1, 30, steps)) * MS - 10 * MS
            anchor = moment - int(rng.integers(0, 60)) * MS
            actions = rng.standard_normal((steps, 2))
            put.append((anchor, offsets.tolist(), actions))
            chunks.put(anchor, offsets / 1e9, actions)
        moment += int(rng.integers(0, 20)) * MS
        got, wanted = chunks.at(moment), expected(put, moment, mode, 0.3)
        assert (got is None) == (wanted is None)
        if wanted is None:
            starved += 1
        else:
            np.testing.assert_allclose(got, wanted, rtol=1e-12)
        assert chunks.starved == starved


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_actions_may_be_tensors_of_a_policy(dtype):
    torch = pytest.importorskip("torch")
    chunks = Chunks("newest")
    chunks.put(0, [0, 0.1], torch.tensor([[[0.5], [2.0]]], dtype=getattr(torch, dtype), requires_grad=True))
    assert chunks.at(0) == 0.5 and chunks.at(100 * MS) == 2.0


def test_a_fade_goes_from_the_chunk_before_to_the_newest():
    chunks = Chunks("cross-fade", fade_s=0.1)
    chunks.put(0, [0, 0.1, 0.2, 0.3], np.zeros((4, 1)))
    assert chunks.at(100 * MS) == 0
    chunks.put(110 * MS, [0, 0.1, 0.2, 0.3], np.ones((4, 1)))
    got = [chunks.at((120 + k) * MS)[0] for k in (0, 25, 50, 100, 150)]
    np.testing.assert_allclose(got, [0, 0.25, 0.5, 1, 1])


def test_what_is_left_and_what_is_frozen():
    chunks = Chunks()
    assert chunks.at(5) is None and chunks.starved == 1 and chunks.covered_until_ns is None and chunks.frozen(9) == 0
    chunks.put(0, [0.0, 0.02, 0.04, 0.06], np.arange(4.0)[:, None])
    stamps, actions = chunks.leftover(20 * MS)
    assert stamps.tolist() == [40 * MS, 60 * MS] and actions.tolist() == [[2], [3]]
    assert chunks.frozen(45 * MS) - chunks.frozen(20 * MS) == 1
    assert chunks.covered_until_ns == 80 * MS
    assert chunks.at(79 * MS) == [3] and chunks.at(80 * MS) is None and chunks.starved == 2


def test_a_policys_output_is_as_recorded(tmp_path, rng):
    time_ns = np.arange(200) * 20 * MS
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        for name in ("state", "action"):
            episode.append(name, time_ns, rng.normal(3, 2, (200, 3)).astype(np.float32))
    windows = {
        "state": Window(),
        "action": Window.steps(50, horizon=4, normalize="mean_std"),
    }
    loader = robocache.Loader(
        tmp_path / "cache", batch_size=1, delta_timestamps=windows, framework="numpy", device="cpu", shuffle=False
    )
    batch = loader.gather([7])
    chunks = Chunks(spec=loader.spec, key="action")
    chunks.put(int(batch["time_ns"][0]), None, batch["action"], batch=batch)
    rows = robocache.open(tmp_path / "cache").episode(0)["action"][1]
    for step in range(4):
        np.testing.assert_allclose(chunks.at((7 + step) * 20 * MS), rows[7 + step], atol=2e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, [0.0, 0.0], np.zeros((2, 1))), "offsets_s: expected ascending"),
        ((0, [0.0], np.zeros((2, 1))), r"actions: expected \[1, D\], got \[2, 1\]"),
        ((0, [0.0], np.zeros((1, 2))), "actions: expected 1 features, got 2"),
        ((0, [0.0], np.full((1, 1), np.nan)), "actions: expected finite"),
        ((0, None, np.zeros((1, 1))), "offsets_s: expected seconds"),
    ],
)
def test_chunks_that_are_none(arguments, words):
    chunks = Chunks()
    chunks.put(0, [0.0, 0.1], np.zeros((2, 1)))
    with pytest.raises(robocache.ArgumentError, match=words):
        chunks.put(*arguments)
    with pytest.raises(
        robocache.ArgumentError, match="mode: expected 'newest', 'ensemble' or 'cross-fade', got 'mean'"
    ):
        Chunks("mean")
    with pytest.raises(robocache.ArgumentError, match="expected both or none"):
        Chunks(key="action")


def test_long_chunks_are_kept_as_they_were_given():
    chunks, offsets = Chunks(), np.arange(800) * 0.001
    for k in range(20):
        actions = np.random.default_rng(k).random((800, 3))
        chunks.put(k * 20 * MS, offsets, actions)
        stamps, left = chunks.leftover(k * 20 * MS - 1)
        np.testing.assert_array_equal(stamps, k * 20 * MS + np.arange(800) * MS)
        np.testing.assert_array_equal(left, actions)
