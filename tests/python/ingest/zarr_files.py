"""Writes zarr v2 stores file by file, without the package zarr."""

import json

import numpy as np

DESCRIPTION = {"zarr_format": 2, "compressor": None, "fill_value": 0, "order": "C", "filters": None}


def write_zarr(store, arrays, ends=None, attributes=None):
    """arrays: {name in data/: values}. ends: where episodes end, by default one at the last row. attributes: {key: its
    attributes}; the key of the store is ""."""
    ends = [len(next(iter(arrays.values())))] if ends is None else ends
    stored = {f"data/{name}": values for name, values in arrays.items()} | {"meta/episode_ends": np.array(ends)}
    for key, values in stored.items():
        facts = {"shape": values.shape, "chunks": values.shape, "dtype": values.dtype.str}
        (store / key).mkdir(parents=True)
        (store / key / ".zarray").write_text(json.dumps(DESCRIPTION | facts))
        (store / key / ".".join("0" * values.ndim)).write_bytes(values.tobytes())
    for key, attrs in (attributes or {}).items():
        (store / key / ".zattrs").write_text(json.dumps(attrs))
    return store
