"""Naive oracle of `robocache.voxelize_sparse` and `robocache.voxel_downsample`: a loop over points, a dict of voxels.

The oracle of dense grids reduces a voxel's rows.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from .arithmetic import is_floating, mix_bits
from .voxelize import reduce_features

ENDS = np.iinfo(np.int32)


@dataclass
class Voxels:
    coords: np.ndarray
    counts: np.ndarray
    point_to_voxel: np.ndarray
    dropped: np.ndarray
    num_voxels: int
    rows: list  # the kept rows of each voxel, in input order
    features: np.ndarray


def cells_of(points, voxel_size, origin=0.0):
    """Rule 25 by NumPy: integers in float64; NaN and infinities for points without a cell."""
    kind = points.dtype.type
    size, origin = (np.broadcast_to(np.asarray(x, np.float64), 3).astype(kind) for x in (voxel_size, origin))
    with np.errstate(all="ignore"):
        return np.floor((points[..., :3] - origin) / size).astype(np.float64)


def holds(cells):
    """Returns whether int32 holds each cell, bool [N]."""
    return (np.isfinite(cells) & (cells >= ENDS.min) & (cells <= ENDS.max)).all(axis=1)


def split_rows(points, lengths, batch_offsets):
    """Returns the range of rows of each cloud; rows of [B, N, ...] are counted through all clouds."""
    if points.ndim == 3:
        clouds, count = points.shape[:2]
        lengths = [count] * clouds if lengths is None else lengths
        return [range(b * count, b * count + int(lengths[b])) for b in range(clouds)]
    if batch_offsets is not None:
        return [range(int(a), int(b)) for a, b in itertools.pairwise(batch_offsets)]
    return [range(len(points))]


def morton_code(x, y, z):
    bits = (f"{c + 2**31:032b}" for c in (z, y, x))
    return int("".join(itertools.chain.from_iterable(zip(*bits, strict=True))), 2)


def voxelize_sparse(
    points,
    features=None,
    *,
    voxel_size,
    point_range=None,
    lengths=None,
    batch_offsets=None,
    max_voxels=None,
    max_points_per_voxel=None,
    capacity=None,
    reduce="mean",
    order="first",
    coord_order="xyz",
):
    batched = points.ndim == 3 or batch_offsets is not None
    all_points = points.reshape(int(np.prod(points.shape[:-1])), points.shape[-1])
    grid = None
    origin = 0.0
    if point_range is not None:
        low, high = np.asarray(point_range, np.float64).reshape(2, 3)
        grid = np.round((high - low) / np.broadcast_to(np.asarray(voxel_size, np.float64), 3))
        origin = low
    cells = cells_of(all_points, voxel_size, origin)
    is_inside = holds(cells)
    if grid is not None:
        is_inside &= ((cells >= 0) & (cells < grid) & (all_points[:, :3] < high.astype(all_points.dtype))).all(axis=1)
    cells = np.where(is_inside[:, None], cells, 0).astype(np.int64).tolist()

    voxels = {}  # (cloud, x, y, z) -> rows, in order of their first rows
    ranges = split_rows(points, lengths, batch_offsets)
    for cloud, rows in enumerate(ranges):
        before = len(voxels)
        for row in rows:
            key = (cloud, *cells[row])
            is_full = max_voxels is not None and len(voxels) - before == max_voxels
            if is_inside[row] and (key in voxels or not is_full):
                voxels.setdefault(key, []).append(row)

    keys = list(voxels)[:capacity]
    if order == "linear":
        keys.sort()
    elif order == "morton":
        keys.sort(key=lambda key: (key[0], morton_code(*key[1:])))
    size = len(keys) if capacity is None else capacity

    coords = np.full((size, 4), -1, np.int32)
    counts = np.zeros(size, np.int32)
    point_to_voxel = np.full(len(all_points), -1, np.int32)
    rows = [[] for _ in range(size)]
    for voxel, key in enumerate(keys):
        cloud, *xyz = key
        coords[voxel] = [cloud, *(xyz if coord_order == "xyz" else xyz[::-1])]
        point_to_voxel[voxels[key]] = voxel
        rows[voxel] = voxels[key][:max_points_per_voxel]
        counts[voxel] = len(rows[voxel])
    dropped = np.array([np.count_nonzero(point_to_voxel[rows.start : rows.stop] == -1) for rows in ranges], np.int64)

    if reduce is None:
        source = all_points if features is None else features.reshape(len(all_points), features.shape[-1])
        points_per_voxel = max(counts, default=0) if max_points_per_voxel is None else max_points_per_voxel
        result = np.zeros((size, points_per_voxel, source.shape[-1]), source.dtype)
        for voxel, voxel_rows in enumerate(rows):
            result[voxel, : len(voxel_rows)] = source[voxel_rows]
    else:
        source = all_points[:, 3:] if features is None else features.reshape(len(all_points), features.shape[-1])
        result = reduce_features_of_rows(source, rows, reduce)
    return Voxels(
        coords if batched else coords[:, 1:],
        counts,
        point_to_voxel.reshape(points.shape[:-1]),
        dropped if batched else dropped.reshape(()),
        len(voxels),
        rows,
        result,
    )


def reduce_features_of_rows(source, rows, reduce):
    """Returns [voxels, F] from source [N, F]: the reduced features of each voxel's rows, or 0 without rows."""
    dtype = source.dtype
    if not is_floating(dtype):
        dtype = {"sum": np.dtype(np.int64), "mean": np.dtype(np.float32)}.get(reduce, dtype)
    result = np.zeros((len(rows), source.shape[1]), dtype)
    for voxel, voxel_rows in enumerate(rows):
        if voxel_rows:
            result[voxel] = reduce_features(source[voxel_rows], reduce)
    return result


def voxel_downsample(points, features=None, *, voxel_size, method="centroid", seed=None, origin=0.0):
    """Returns points, features or None, and the rows of each voxel."""
    cells = cells_of(points, voxel_size, origin)
    voxels = {}
    for row in np.flatnonzero((np.abs(cells) <= 2.0**62).all(axis=1)).tolist():
        voxels.setdefault(tuple(cells[row]), []).append(row)
    rows = list(voxels.values())
    sources = [points if features is None else points[:, :3], *([] if features is None else [features])]
    if method == "centroid":
        results = [reduce_features_of_rows(source, rows, "mean") for source in sources]
    else:
        pick = {"first": min, "random": lambda rows: min(rows, key=lambda row: sample_priority(seed, row))}[method]
        chosen = np.array([pick(voxel_rows) for voxel_rows in rows], np.int64)
        results = [source[chosen] for source in sources]
    return results[0], results[1] if features is not None else None, rows


def sample_priority(seed, row):
    """Returns the priority of a row for `random`, which takes a voxel's least one; the upper 32 bits decide, then the row."""
    step = 0x9E3779B97F4A7C15
    hashed = mix_bits((mix_bits((seed + step) % 2**64) + step * row) % 2**64)
    return hashed >> 32, row
