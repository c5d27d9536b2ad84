"""Damages to the bytes of a file."""

import numpy as np


def damage(content, rng):
    """Returns content with one to four damages."""
    for _ in range(rng.integers(1, 5)):
        if content:
            content = CHANGES[rng.integers(len(CHANGES))](content, rng)
    return content


def flip_bits(content, rng):
    changed = bytearray(content)
    for index in rng.integers(len(changed), size=rng.integers(1, 9)):
        changed[index] ^= 1 << rng.integers(8)
    return bytes(changed)


def truncate(content, rng):
    return content[: rng.integers(len(content))]


def cut_out(content, rng):
    first, last = _span(content, rng)
    return content[:first] + content[last:]


def repeat(content, rng):
    first, last = _span(content, rng)
    return content[:last] + content[first:]


def zero(content, rng):
    first, last = _span(content, rng)
    return content[:first] + bytes(last - first) + content[last:]


def fill(content, rng):
    first, last = _span(content, rng)
    return content[:first] + b"\xff" * (last - first) + content[last:]


CHANGES = (flip_bits, truncate, cut_out, repeat, zero, fill)


def _span(content, rng):
    """Returns a random span [first, last). Half of the spans begin in the first 400 bytes, where sizes are stored."""
    first = int(rng.integers(min(len(content), 400) if rng.random() < 0.5 else len(content)))
    return first, min(len(content), first + int(2 ** rng.uniform(0, np.log2(len(content) + 1))))
