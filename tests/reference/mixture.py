"""Naive oracle of a mixture: the source and anchor of each draw, in integers, and the batch of draws.

The order is rule 24.6's Feistel network and rule 35's blocks, written from their definitions, with draws counted one by one.
"""

import functools
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from .arithmetic import is_floating, mix_bits
from .window_batch import Window, window_batch

BLOCK = 65_536
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


@functools.lru_cache(4096)
def round_keys(seed, epoch):
    start = mix_bits((seed + GOLDEN) & MASK) ^ epoch
    return [mix_bits((start + k * GOLDEN) & MASK) for k in range(1, 9)]


def permute(position, n, seed, epoch):
    """Permutes a position in [0, n): eight rounds over the least power of two >= max(n, 256), repeated until below n."""
    keys = round_keys(seed & MASK, epoch & MASK)
    bits = (max(n, 256) - 1).bit_length()
    low_bits = bits - bits // 2
    while True:
        high, low = divmod(position, 1 << low_bits)
        for k in range(0, 8, 2):
            high ^= mix_bits((low + keys[k]) & MASK) % (1 << bits - low_bits)
            low ^= mix_bits((high + keys[k + 1]) & MASK) % (1 << low_bits)
        position = (high << low_bits) + low
        if position < n:
            return position


def shares(weights):
    """Returns each source's draws in a block, by largest remainder; of two equal remainders the earlier source wins."""
    return list(_shares(tuple(weights)))


@functools.lru_cache(256)
def _shares(weights):
    exact = [Fraction(weight) * BLOCK / sum(map(Fraction, weights)) for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda k: (counts[k] - exact[k], k))
    for source in by_remainder[: BLOCK - sum(counts)]:
        counts[source] += 1
    return tuple(counts)


@functools.lru_cache(16)
def turns(share, seed, block, shuffle):
    """Returns int64 [BLOCK, 2]: the source of each draw of a block, and the number of this source's earlier draws in the block."""
    key = mix_bits(mix_bits(seed) ^ block)
    index = np.arange(BLOCK)
    if shuffle:
        index = sum((index >> bit & 1) << 15 - bit for bit in range(16)) + key % BLOCK  # reverses the 16 bits
        for part in (16, 32, 48):
            index = index * (key >> part & 0xFFFF | 1) % BLOCK
            index ^= index * 0x5A3E % BLOCK
        index %= BLOCK
    source = np.searchsorted(np.cumsum(share), index, side="right")
    earlier_draws = np.empty(BLOCK, np.int64)
    for k, count in enumerate(share):
        earlier_draws[source == k] = np.arange(count)
    return np.stack([source, earlier_draws], axis=1)


def draw(position, anchors, *, seed=0, epoch=0, weights=None, samples=None, shuffle=True):
    """Returns the source and the index of its anchor at a position of an epoch.

    anchors: the number of each source. With weights an epoch has `samples` draws, by default as many as anchors.
    """
    if weights is None:
        anchor = permute(position, sum(anchors), seed, epoch) if shuffle else position
        return _part_of(anchor, anchors)
    number = epoch * (sum(anchors) if samples is None else samples) + position & MASK
    block, index = divmod(number, BLOCK)
    share = _shares(tuple(weights))
    source, earlier_draws = map(int, turns(share, seed, block, shuffle)[index])
    pass_number, anchor = divmod(block * share[source] + earlier_draws, anchors[source])
    if shuffle:
        anchor = permute(anchor, anchors[source], mix_bits(seed ^ mix_bits(source + 1)), pass_number)
    return source, anchor


def changed_draws(count, anchors, changes, *, begin=0, seed=0, shuffle=True):
    """Returns (source, anchor) of the draws from `begin` to `count`, counted one by one from 0.

    changes: [(first draw, weights)].
    """
    draws, drawn, changes = [], [0] * len(anchors), [(first, _shares(tuple(weights))) for first, weights in changes]
    for number in range(count):
        share = [share for first, share in changes if first <= number][-1]
        block, index = divmod(number, BLOCK)
        source = int(turns(share, seed, block, shuffle)[index][0])
        pass_number, anchor = divmod(drawn[source], anchors[source])
        drawn[source] += 1
        if number < begin:
            continue
        if shuffle:
            anchor = permute(anchor, anchors[source], mix_bits(seed ^ mix_bits(source + 1)), pass_number)
        draws.append((source, anchor))
    return draws


def _part_of(index, sizes):
    """Returns the part that contains `index` and the index within it, for consecutive parts of `sizes`."""
    for part, size in enumerate(sizes):
        if index < size:
            return part, index
        index -= size
    raise AssertionError


class Part(NamedTuple):
    """A source, with its streams named by their keys."""

    recording: list[dict[str, Any]]  # the form of window_batch
    ticks: list[tuple[int, int]]  # (episode, time) of each anchor, in order
    dtypes: dict[str, np.dtype]
    shapes: dict[str, tuple[int, ...]]
    stats: dict[str, Any]


def mixture_batch(parts, drawn, deltas, *, pad_features=False, return_age=False, dtype=np.float32, **options):
    """Returns the batch of draws [(source, anchor)]; options are those of window_batch."""
    count = len(drawn)
    batch = {"dataset_index": np.array([source for source, _ in drawn], np.int64)}
    firsts = np.cumsum([0, *(len(part.ticks) for part in parts)])
    batch["anchor_index"] = np.array([firsts[source] + anchor for source, anchor in drawn], np.int64)
    batch |= {name: np.zeros(count, np.int64) for name in ("time_ns", "episode_index")}
    window_keys = set()
    for key, requested in deltas.items():
        steps = (count,) if requested is None else (count, len(requested))
        parts_with_key = [part for part in parts if key in part.dtypes]
        stored = parts_with_key[0].dtypes[key]
        shape = max((part.shapes[key] for part in parts_with_key), key=np.prod)
        out = np.zeros((*steps, *shape), dtype if is_floating(stored) else stored)
        batch[key] = Window(out, *(np.zeros(out.shape) for _ in range(3)))
        batch[key + "_is_pad"] = np.ones(steps, bool)
        if return_age:
            batch[key + "_age"] = np.full(steps, -(2**63), np.int64)
        if pad_features and len(shape) == 1:
            batch[key + "_feature_is_pad"] = np.ones((count, *shape), bool)
    for source, part in enumerate(parts):
        samples = [index for index, draw in enumerate(drawn) if draw[0] == source]
        part_batch = window_batch(
            part.recording,
            [part.ticks[drawn[index][1]] for index in samples],
            {key: requested for key, requested in deltas.items() if key in part.dtypes},
            dtypes=part.dtypes,
            shapes=part.shapes,
            stats=part.stats,
            return_age=return_age,
            dtype=dtype,
            **options,
        )
        for name, rows in part_batch.items():
            if name not in part.dtypes:
                batch[name][samples] = rows
                continue
            window_keys |= {name} if isinstance(rows, Window) else set()
            windows = rows if isinstance(rows, Window) else (rows,)
            for target, result in zip(batch[name][: len(windows)], windows, strict=True):
                padded = np.zeros((len(samples), *target.shape[1:]), target.dtype)
                padded[tuple(map(slice, result.shape))] = result
                target[samples] = padded
            if name + "_feature_is_pad" in batch:
                batch[name + "_feature_is_pad"][samples] = np.arange(target.shape[-1]) >= part.shapes[name][0]
    return batch | {key: batch[key].out for key in deltas if key not in window_keys}
