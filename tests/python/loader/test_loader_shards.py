"""Ranks with their own episodes."""

import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords
from recordings import anchors_of, assert_same_batches, batches_of, joined, position_of, ticks_of, write

import robocache


def recording_of(rng, lengths, width=3):
    return [
        {"x": (1000 * np.arange(n, dtype=np.int64) + 10**6 * e, rng.normal(size=(n, width)).astype(np.float32))}
        for e, n in enumerate(lengths)
    ]


def ranks_of(source, world_size, **options):
    options = {"batch_size": 8, "delta_timestamps": {"x": [0.0, 1e-6]}, "shard_episodes": True} | options
    return [loader_by_keywords(source, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


@pytest.mark.parametrize("tier", ["device", "pinned", "mapped"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_each_rank_draws_from_its_own_episodes(rng, tmp_path, device, world_size, tier):
    recording = recording_of(rng, (50, 7, 0, 60, 33, 40, 3, 55, 21))
    dataset = write(tmp_path / "cache", recording)
    loaders = ranks_of(dataset, world_size, device=device, residency=tier)
    episodes, sizes = [], set()
    for loader in loaders:
        drawn = [anchors_of(loader) for _ in range(2)]
        rank_episodes = sorted({episode for epoch in drawn for episode, _ in epoch})
        episodes += rank_episodes
        ticks = ticks_of(recording, "x", rank_episodes)
        assert loader.num_anchors == len(ticks)
        for epoch in drawn:
            assert len(set(epoch)) == len(epoch) == loader.num_samples // world_size
            assert set(epoch) <= set(ticks)
        assert drawn[0] != drawn[1]
        sizes.add((len(loader), loader.num_samples))
    assert episodes == [0, 1, 3, 4, 5, 6, 7, 8]  # each rank has neighbouring episodes
    assert len(sizes) == 1
    fewest = min(loader.num_anchors for loader in loaders)
    assert sizes.pop()[1] == fewest * world_size
    assert fewest >= 269 // world_size - 60  # 269 rows; episodes, of up to 60 rows, are not split


def test_values_equal_those_of_a_loader_of_all_episodes(rng, tmp_path, device):
    """A rank that loads only its own episodes has them at other addresses."""
    recording = recording_of(rng, (40, 30, 50, 45))
    dataset = write(tmp_path / "cache", recording)
    all_rows = joined(loader_by_keywords(dataset, batch_size=165, delta_timestamps={"x": [0.0, 1e-6]}, device=device))
    values = dict(zip(anchors_of([all_rows]), all_rows["x"], strict=True))
    for loader in ranks_of(dataset, 2, device=device):
        assert loader.explain()[0].bytes < 4 * 3 * 165
        batch = joined(loader)
        np.testing.assert_array_equal(batch["x"], [values[anchor] for anchor in anchors_of([batch])])


def test_a_rank_resumes(rng, tmp_path, device):
    dataset = write(tmp_path / "cache", recording_of(rng, (40, 30, 50, 45)))
    loader, resumed = (ranks_of(dataset, 2, device=device, seed=3)[1] for _ in range(2))
    loop = iter(loader)
    next(loop)
    next(loop)
    assert position_of(loader) == {"seed": 3, "epoch": 0, "samples": 32}
    resumed.load_state_dict(loader.state_dict())
    assert_same_batches(batches_of(resumed, 100), batches_of(loop, 100))


def test_weights_hold_within_each_rank(rng, tmp_path):
    large = write(tmp_path / "large", recording_of(rng, (400, 300, 500, 450)))
    small = write(tmp_path / "small", recording_of(rng, (100, 90)))
    sources = [robocache.Source(large, weight=3), robocache.Source(small, weight=1)]
    for loader in ranks_of(sources, 2, samples_per_epoch=2**17, batch_size=2**10, device="cpu"):
        assert loader.num_samples == 2**17
        assert np.bincount(joined(loader)["dataset_index"]).tolist() == [3 * 2**14, 2**14]


@pytest.mark.parametrize("samples", [0, -4])
def test_an_epoch_without_draws_is_refused(rng, tmp_path, samples):
    dataset = write(tmp_path / "cache", recording_of(rng, (40, 30)))
    with pytest.raises(robocache.ArgumentError, match="samples_per_epoch: expected from 1"):
        ranks_of([robocache.Source(dataset, weight=1)], 2, samples_per_epoch=samples, device="cpu")


def test_a_rank_without_anchors_is_refused(rng, tmp_path):
    dataset = write(tmp_path / "cache", recording_of(rng, (40, 30)))
    weighted = [robocache.Source(dataset, weight=1)]
    for rank in range(4):  # every rank raises, so none waits for others
        for source, options in ((dataset, {}), (weighted, {"samples_per_epoch": 100})):
            options |= {"batch_size": 8, "delta_timestamps": {"x": [0.0]}, "shard_episodes": True, "device": "cpu"}
            with pytest.raises(robocache.ArgumentError, match=r"anchor: expected a tick .* episodes of rank \d"):
                loader_by_keywords(source, rank=rank, world_size=4, **options)


def test_a_state_of_another_number_of_ranks_is_refused(rng, tmp_path):
    loader = ranks_of(write(tmp_path / "cache", recording_of(rng, (40, 30, 50))), 2, device="cpu")[0]
    with pytest.raises(robocache.ArgumentError, match="samples: expected a multiple of 2, the number of ranks"):
        loader.load_state_dict({"seed": 0, "epoch": 0, "samples": 15})
