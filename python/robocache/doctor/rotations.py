"""Finds numbers that may be rotations: four neighbouring features of length 1, and matrices, without an interpolation method."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from ..dataset import Stream
from ..feature_words import letters_of
from ..findings import Finding
from .streams import Survey, feature_names
from .values import mapping_line, methods_of

UNIT = 1e-3  # the length of each row may differ from 1 by this much
ROWS_LEAST = 20
# Methods that do not interpolate the numbers of a rotation one by one.
_WHOLE = {"slerp", "pose", "previous", "nearest", "next"}
# The names of four features, one a line, that number the components from 0 to 3.
_NUMBERED = re.compile(r"(?i).*q\D*0\]?\n.*q\D*1\]?\n.*q\D*2\]?\n.*q\D*3\]?")
_FLIP = -0.5  # a quaternion whose product with the row before is below this changes its sign, as in cache/scan.hpp
_NUMBERS = 1 << 20  # numbers checked at once


def check_unit_lengths(survey: Survey) -> Iterator[Finding]:
    """Finds blocks of four features that have length 1 in every row and no method, and matrices that are rotations in every row.
    The advice has a mapping that gives them a method.

    A block is no rotation if fewer than two of its features change, or if each row has one 1 and three 0.
    """
    for stream in survey.floats:
        features = math.prod(stream.shape)
        if features < 4 or stream.rows < ROWS_LEAST:
            continue
        methods = list(methods_of(stream))
        covered = {f for start, stop, method in methods if method in _WHOLE for f in range(start, stop)}
        if stream.shape[-2:] in ((3, 3), (3, 4), (4, 4)) and not covered and _are_rotations(survey, stream):
            yield Finding(
                "warning",
                "matrix-without-method",
                "rotations as matrices in every row, interpolated entry by entry: between two rows that is no rotation",
                stream=stream.name,
                advice=f"Ingest with --mapping FILE, which contains\n{mapping_line(stream.name, [[0, features, 'previous']])}",
            )
            continue
        blocks = [f for f in range(features - 3) if covered.isdisjoint(range(f, f + 4))]
        stats = survey.dataset.stats[stream.name]
        changes = np.ravel(stats.min) < np.ravel(stats.max)
        blocks = [f for f in blocks if changes[f : f + 4].sum() >= 2]
        unit_blocks = _unit_blocks(survey, stream, blocks)
        chosen: list[int] = []
        # First blocks with the letters w, x, y and z, then blocks whose lengths deviate least; they may not overlap.
        for start in sorted(
            unit_blocks, key=lambda f: (sorted(letters_of(stream.names[f : f + 4])) != list("wxyz"), unit_blocks[f][1])
        ):
            if all(abs(start - other) > 3 for other in chosen):
                chosen.append(start)
        chosen.sort()
        if not chosen:
            continue
        described = [feature_names(stream, list(range(start, start + 4))) for start in chosen[:3]]
        more = f" and {len(chosen) - 3} more" if len(chosen) > 3 else ""
        sign_changes = sum(unit_blocks[start][0] for start in chosen)
        new_blocks: list[list[int | str]] = [[start, start + 4, "slerp"] for start in chosen]
        new_blocks += [[start, stop, method] for start, stop, method in methods if not _overlap(start, stop, chosen)]
        new_blocks.sort(key=lambda block: int(block[0]))
        yield Finding(
            "warning",
            "quaternion-without-method",
            f"four numbers of length 1 in every row, like a quaternion, interpolated one by one: {'; '.join(described)}{more}"
            + (
                f"; all four change their sign {sign_changes} times: q and -q are the same rotation"
                if sign_changes
                else ""
            ),
            stream=stream.name,
            count=len(chosen),
            value=sign_changes,
            advice="If they are a rotation, ingest with --mapping FILE, which contains"
            + (" (by the stream's name in the source)" if "mapping" in survey.dataset.provenance else "")
            + f":\n{mapping_line(stream.name, new_blocks)}"
            + (
                "\n# of components 0 to 3 the first is w in most sources"
                if any(_NUMBERED.fullmatch("\n".join(stream.names[f : f + 4])) for f in chosen)
                else ""
            ),
        )


def _are_rotations(survey: Survey, stream: Stream) -> bool:
    """Whether every matrix is a rotation in its first three rows and columns, and the rotations differ from row to row."""
    step, first_matrix = max(_NUMBERS // math.prod(stream.shape), 1), None
    changes = False
    for start in range(0, stream.rows, step):
        rows = slice(start, min(start + step, stream.rows))
        values = stream.values[rows].reshape(rows.stop - start, -1, *stream.shape[-2:])
        matrices = values[..., :3, :3].astype(np.float64)
        survey.forget(stream, rows)
        with np.errstate(invalid="ignore", over="ignore"):
            if not (np.abs(matrices @ matrices.swapaxes(2, 3) - np.eye(3)) <= UNIT).all():
                return False
        if (np.linalg.det(matrices) < 0).any():  # mirrored
            return False
        first_matrix = matrices[:1] if first_matrix is None else first_matrix
        changes = changes or bool((matrices != first_matrix).any())
    return changes


def _overlap(start: int, stop: int, blocks: list[int]) -> bool:
    return any(start < block + 4 and block < stop for block in blocks)


def _unit_blocks(survey: Survey, stream: Stream, blocks: list[int]) -> dict[int, tuple[int, float]]:
    """Returns each block of four with length 1 in every row, by its first feature: how often its sign changes from row to row, and the
    largest deviation of its length from 1. Two blocks that overlap may both have length 1."""
    candidates = np.array(blocks, np.int64)
    sign_changes = np.zeros(len(candidates), np.int64)
    worst = np.zeros(len(candidates))
    mixed = np.zeros(len(candidates), bool)  # whether some row is not one 1 and three 0
    step = max(_NUMBERS // math.prod(stream.shape), 2)
    is_first_row = np.zeros(stream.rows + 1, bool)
    is_first_row[stream.row_offsets] = True
    last_row = None
    for start in range(0, stream.rows, step):
        if not len(candidates):
            break
        rows = slice(start, min(start + step, stream.rows))
        table = stream.values[rows].reshape(rows.stop - rows.start, -1).astype(np.float64)
        survey.forget(stream, rows)
        components = table[:, candidates[:, None] + np.arange(4)]  # [rows, blocks, 4]
        with np.errstate(invalid="ignore", over="ignore"):
            deviations = np.abs(np.sqrt((components * components).sum(2)) - 1)
            is_unit = (deviations <= UNIT).all(0)
        components, candidates, sign_changes, mixed = (
            components[:, is_unit],
            candidates[is_unit],
            sign_changes[is_unit],
            mixed[is_unit],
        )
        worst = np.maximum(worst[is_unit], deviations[:, is_unit].max(0))
        mixed |= (np.abs(components).max(2) < 1 - UNIT).any(0)
        consecutive = components if last_row is None else np.concatenate([last_row[:, is_unit], components])
        dots = (consecutive[1:] * consecutive[:-1]).sum(2)
        is_same_episode = ~is_first_row[rows.start + (last_row is None) : rows.stop]
        sign_changes += ((dots < _FLIP) & is_same_episode[:, None]).sum(0)
        last_row = components[-1:]
    return {
        int(f): (int(n), float(deviation))
        for f, n, deviation, is_mixed in zip(candidates, sign_changes, worst, mixed, strict=True)
        if is_mixed
    }


CHECKS = (check_unit_lengths,)
