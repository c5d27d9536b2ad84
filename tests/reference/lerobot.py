"""Naive oracle of LeRobot's items: its rules applied to rows of the Parquet files, one row and key at a time.

A window is rows, not times: row + round(offset * fps), clamped to the episode's first and last row; `<key>_is_pad` where it
was clamped. Values become Python objects before torch, so floats are float32 and integers int64. Rows are in the order of
the files' names.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

NUMBERS = (bool, int, float)


def _first_number(value):
    while isinstance(value, list) and value:
        value = value[0]
    return value


class Items:
    """`items[i]` is item i of a LeRobot dataset without cameras, for all or some episodes."""

    def __init__(self, root, delta_timestamps=None, episodes=None):
        root = Path(root)
        info = json.loads((root / "meta/info.json").read_text())
        tables = [pq.read_table(file) for file in sorted(root.glob("data/*/*.parquet"))]
        rows = [row for table in tables for row in table.to_pylist()]
        keys = [key for key, value in rows[0].items() if isinstance(_first_number(value), NUMBERS)]
        self.rows = [
            {key: row[key] for key in keys} for row in rows if episodes is None or row["episode_index"] in episodes
        ]
        self.steps = {
            key: [round(offset * info["fps"]) for offset in offsets]
            for key, offsets in (delta_timestamps or {}).items()
        }
        self.ends = {}
        for index, row in enumerate(self.rows):
            first, _ = self.ends.get(row["episode_index"], (index, index))
            self.ends[row["episode_index"]] = (first, index)
        self.tasks = _read_tasks(root)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        first, last = self.ends[row["episode_index"]]
        item = {}
        for key in row:
            if key not in self.steps:
                item[key] = torch.tensor(row[key])
                continue
            indices = [index + step for step in self.steps[key]]
            item[key] = torch.stack([torch.tensor(self.rows[min(max(x, first), last)][key]) for x in indices])
            item[f"{key}_is_pad"] = torch.tensor([x < first or x > last for x in indices])
        item["task"] = self.tasks[row["task_index"]]
        return item


def _read_tasks(root):
    if (root / "meta/tasks.jsonl").exists():
        rows = [json.loads(line) for line in (root / "meta/tasks.jsonl").read_text().splitlines()]
        return {row["task_index"]: row["task"] for row in rows}
    table = pq.read_table(root / "meta/tasks.parquet")
    text = "task" if "task" in table.column_names else "__index_level_0__"
    return dict(zip(table["task_index"].to_pylist(), table[text].to_pylist(), strict=True))


def assert_same_item(item, expected):
    """The same keys, types, shapes and bits; NaN is one value."""
    assert item.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, str):
            assert item[key] == value, key
            continue
        assert (item[key].dtype, item[key].shape) == (value.dtype, value.shape), key
        ours, theirs = (np.atleast_1d(x.cpu().numpy()) for x in (item[key], value))
        bits = f"u{ours.dtype.itemsize}"
        same = ours.view(bits) == theirs.view(bits)
        if ours.dtype.kind == "f":
            same |= np.isnan(ours) & np.isnan(theirs)
        assert same.all(), f"{key}: {ours[~same][:3]}, expected {theirs[~same][:3]}"
