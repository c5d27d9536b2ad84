"""Aligned windows by a torch DataLoader: sample by sample in NumPy, in worker processes, then collated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch


class Windows(torch.utils.data.Dataset):
    """An item is a sample: {stream: float32 [T, D], stream + "_is_pad": bool [T]}, interpolated and normalised.

    streams: {name: (time_ns [rows], values [rows, D], row_offsets [episodes + 1])}; delta_ns: int64 [T];
    affine: {name: (scale [D], shift [D])}; anchor: the stream whose ticks are the samples.
    """

    def __init__(self, streams: dict, delta_ns: np.ndarray, affine: dict, anchor: str, snap_ns: int) -> None:
        self.streams, self.delta_ns, self.affine, self.snap_ns = streams, delta_ns, affine, snap_ns
        self.anchor_ns, _, self.anchor_offsets = streams[anchor]

    def __len__(self) -> int:
        return len(self.anchor_ns)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        episode = int(np.searchsorted(self.anchor_offsets, index, side="right")) - 1
        return self.window(episode, int(self.anchor_ns[index]))

    def window(self, episode: int, anchor_ns: int) -> dict[str, np.ndarray]:
        target = anchor_ns + self.delta_ns
        sample = {}
        for name, (time_ns, values, offsets) in self.streams.items():
            begin, end = offsets[episode], offsets[episode + 1]
            clock, rows = time_ns[begin:end], values[begin:end]
            right = np.searchsorted(clock, target, side="right").clip(1, len(clock) - 1)
            left = right - 1
            start = clock[left]
            weight = ((target - start) / (clock[right] - start)).clip(0, 1).astype(np.float32)
            a, b = (rows[side].astype(np.float32, copy=False) for side in (left, right))
            x = a + weight[:, None] * (b - a)
            scale, shift = self.affine[name]
            sample[name] = x * scale + shift
            sample[f"{name}_is_pad"] = (clock[0] - target >= self.snap_ns) | (target - clock[-1] >= self.snap_ns)
        return sample


def collate(samples: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    batch = {key: torch.from_numpy(np.stack([sample[key] for sample in samples])) for key in samples[0]}
    return {key: x.to(torch.bfloat16) if x.dtype == torch.float32 else x for key, x in batch.items()}


class RandomBatches(torch.utils.data.Sampler):
    """Endless batches of random indices, without first shuffling a list of a million."""

    def __init__(self, samples: int, batch_size: int) -> None:
        self.samples, self.batch_size = samples, batch_size

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng(0)
        while True:
            yield rng.integers(0, self.samples, self.batch_size).tolist()


def dataloader(
    dataset: torch.utils.data.Dataset, batch_size: int, workers: int, pin_memory: bool, collate: Callable = collate
) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(
        dataset,
        batch_sampler=RandomBatches(len(dataset), batch_size),
        collate_fn=collate,
        num_workers=workers,
        pin_memory=pin_memory,
        prefetch_factor=2 if workers else None,
        multiprocessing_context="fork" if workers else None,
    )
