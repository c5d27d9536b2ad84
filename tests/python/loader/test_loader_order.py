"""The order of a Loader's samples, its states, and its copies."""

import json
import pickle
import signal

import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords
from recordings import (
    ALL_WINDOWS,
    anchors_of,
    assert_same_batches,
    batches_of,
    check,
    position_of,
    small_loader,
    ticks_of,
    write,
)

import robocache


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 255, 256, 257, 1000, 4099])
def test_the_order_is_a_bijection_for_any_number_of_anchors(tmp_path, device, rows):
    recording = [{"x": (np.arange(rows) * 1000, np.zeros(rows))}]
    dataset = write(tmp_path / "cache", recording)
    loader = loader_by_keywords(dataset, batch_size=64, delta_timestamps={"x": [0.0]}, device=device)
    for _ in range(3):
        assert sorted(anchors_of(loader)) == ticks_of(recording, "x")


def test_the_order_is_well_mixed(tmp_path):
    rows = 20_000
    recording = [{"x": (np.arange(rows), np.zeros((rows, 1), np.float32))}]
    loader = loader_by_keywords(
        write(tmp_path / "cache", recording), batch_size=1000, delta_timestamps={"x": [0.0]}, snap_s=0
    )
    orders = [np.array([t for _, t in anchors_of(loader)]) for _ in range(2)]
    for order in orders:
        # In a random permutation of n, |position - value| has mean n/3, and neighbours do not correlate (std 1/sqrt(n)).
        assert abs(np.abs(order - np.arange(rows)).mean() / rows - 1 / 3) < 0.01
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.04
        per_batch = np.sort(order.reshape(-1, 1000), axis=1)
        assert np.diff(per_batch, axis=1).max() < 400  # every batch has samples of every part
    assert abs(np.corrcoef(*orders)[0, 1]) < 0.04


def test_a_small_last_batch_equals_the_oracles(dataset, recording, device):
    check(dataset, recording, ALL_WINDOWS, device=device, batches=100, drop_last=False, anchor="gripper", batch_size=50)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"seed": 1, "epoch": 0},
        {"seed": 1, "epoch": -1, "samples": 0},
        {"seed": 1, "epoch": 0, "samples": -1},
        {"seed": 1, "epoch": 0, "samples": 10**9},
        {"seed": 1, "epoch": 0, "step": -1},
        {"seed": 1, "epoch": "0", "samples": 0},
        {"seed": 1, "epoch": 0.5, "samples": 0},
        None,
        [1, 0, 0],
    ],
)
def test_an_invalid_state_is_refused(dataset, state):
    loader = small_loader(dataset, seed=3)
    with pytest.raises(robocache.Error, match=r"(?i)state|seed|epoch|samples"):
        loader.load_state_dict(state)
    assert position_of(loader) == {"seed": 3, "epoch": 0, "samples": 0}


# ---- Copies ----


def test_a_state_has_plain_ints(dataset):
    loader = small_loader(dataset, batch_size=np.int64(16), seed=np.int32(4))
    next(loader)
    assert json.dumps(loader.state_dict()).startswith('{"seed": 4, "epoch": 0, "samples": 16, "fingerprint": "')


def test_a_pickled_loader_resumes(dataset):
    options = {"delta_timestamps": {"action": [0.0, 0.1]}, "method": {"action": [(slice(0, 3), "pchip")]}, "seed": 5}
    loader = small_loader(dataset, normalize="mean_std", episodes=np.array([0, 2, 3]), **options)
    next(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert position_of(copy) == position_of(loader) == {"seed": 5, "epoch": 0, "samples": 16}
    assert_same_batches(batches_of(copy, 100), batches_of(loader, 100))


@pytest.mark.parametrize("as_source", [False, True])
def test_a_loader_of_generators_pickles(dataset, as_source):
    deltas, chosen = {"action": (k / 10 for k in range(2))}, iter([0, 2])
    source = robocache.Source(dataset, episodes=chosen) if as_source else dataset
    loader = small_loader(source, delta_timestamps=deltas, **({} if as_source else {"episodes": chosen}))
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.num_anchors == loader.num_anchors == small_loader(dataset, episodes=[0, 2]).num_anchors
    assert_same_batches(batches_of(copy), batches_of(loader))


def test_a_copy_is_independent_of_the_original_and_its_arguments(dataset):
    deltas, chosen = {"action": [0.0]}, np.array([0, 2])
    loader = small_loader(dataset, delta_timestamps=deltas, episodes=chosen)
    deltas["mode"] = [0.0]
    deltas["action"].append(0.1)
    chosen[:] = 1
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.num_anchors == loader.num_anchors
    next(loader)
    assert copy.state_dict()["samples"] == 0
    assert next(copy)["action"].shape == (16, 1, 17)
    assert "mode" not in next(copy)


def test_a_signal_handler_can_read_the_state(dataset):
    loader = small_loader(dataset, batch_size=8, prefetch=0)
    samples = []
    handler = signal.signal(signal.SIGUSR1, lambda *_: samples.append(loader.state_dict()["samples"]))
    make_batch = loader._batch
    try:
        loader._batch = lambda position: (signal.raise_signal(signal.SIGUSR1), make_batch(position))[1]
        for _ in range(3):
            next(loader)
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert samples == [0, 8, 16]  # the samples returned before each signal


def test_set_epoch_keeps_a_loaded_position(dataset):
    """The loop ``for epoch in range(first, last): loader.set_epoch(epoch)`` may follow load_state_dict."""
    loader = small_loader(dataset)
    loader.load_state_dict({"seed": 0, "epoch": 3, "samples": 32})
    loader.set_epoch(3)
    assert position_of(loader) == {"seed": 0, "epoch": 3, "samples": 32}
    next(iter(loader))
    loader.set_epoch(3)  # a loop has begun: the epoch starts anew
    assert position_of(loader) == {"seed": 0, "epoch": 3, "samples": 0}
    loader.load_state_dict({"seed": 0, "epoch": 3, "samples": 32})
    loader.set_epoch(4)
    assert position_of(loader) == {"seed": 0, "epoch": 4, "samples": 0}
    next(loader)
    loader.set_epoch(4)  # no state was loaded since: reading a batch loses no samples
    assert position_of(loader) == {"seed": 0, "epoch": 4, "samples": 0}
