"""Writes LeRobot datasets by the format's own schema."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# The features that LeRobot adds to every dataset.
BOOKKEEPING = {
    name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
}
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:41250ae0\nsize 582\n"
VERSIONS = ("v2.0", "v2.1", "v3.0")


@dataclass
class Episode:
    """One episode's columns [rows, ...], its fields in meta/, and its stamps in seconds."""

    columns: dict
    tasks: list = field(default_factory=lambda: ["pick the cup"])
    extra: dict = field(default_factory=dict)
    timestamp: np.ndarray | None = None

    def __len__(self):
        return len(next(iter(self.columns.values())))


def make_episodes(rng, lengths=(7, 1, 12)):
    """Episodes with a feature of every kind."""
    return [
        Episode(
            {
                "observation.state": rng.normal(size=(n, 3)).astype(np.float32),
                "action": rng.normal(size=(n, 2)),
                "observation.touch": rng.normal(size=(n, 2, 4)).astype(np.float32),
                "next.reward": rng.normal(size=n).astype(np.float32),
                "next.done": np.arange(n) == n - 1,
                "observation.count": rng.integers(-(2**62), 2**62, n),
                "observation.level": rng.integers(0, 255, (n, 1)).astype(np.uint8),
            },
            extra={"success": bool(number % 2), "operator": f"p{number}", "weights": [0.5, number + 0.25]},
        )
        for number, n in enumerate(lengths)
    ]


def arrow_column(values, fixed=True):
    """Returns [n] as a plain column, [n, d, ...] as nested lists: of fixed size, as the package `datasets` writes them, or not."""
    if values.ndim == 1:
        return pa.array(values)
    inner = arrow_column(values.reshape(-1, *values.shape[2:]), fixed)
    if fixed:
        return pa.FixedSizeListArray.from_arrays(inner, values.shape[1])
    return pa.ListArray.from_arrays(np.arange(len(values) + 1, dtype=np.int32) * values.shape[1], inner)


def episode_table(episode, index, first_row, fps, version, task_index):
    n = len(episode)
    stamps = np.arange(n) / fps if episode.timestamp is None else episode.timestamp
    columns = {name: arrow_column(np.asarray(values), version != "v2.0") for name, values in episode.columns.items()}
    columns["timestamp"] = pa.array(np.asarray(stamps), pa.float32() if episode.timestamp is None else None)
    columns["frame_index"] = pa.array(np.arange(n))
    columns["episode_index"] = pa.array(np.full(n, index))
    columns["index"] = pa.array(np.arange(first_row, first_row + n))
    columns.setdefault("task_index", pa.array(np.full(n, task_index[episode.tasks[0]])))
    return pa.table(columns)


def write_json_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_table(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def tasks_table(tasks):
    """Returns the table of tasks as pandas writes it: a column, and an index without a name."""
    columns = [
        {"name": None if name.startswith("__") else name, "field_name": name, "pandas_type": kind, "numpy_type": numpy}
        for name, kind, numpy in (("task_index", "int64", "int64"), ("__index_level_0__", "unicode", "object"))
    ]
    pandas = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [],
        "columns": columns,
        "pandas_version": "2.3.3",
    }
    table = pa.table({"task_index": range(len(tasks)), "__index_level_0__": tasks})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def write_lerobot(root, episodes, version="v2.1", fps=30, indices=None, features=None, per_file=2, info=None):
    """Writes a LeRobot dataset of `episodes` with numbers `indices`; v3.0 has `per_file` episodes in a file."""
    root = Path(root)
    (root / "meta").mkdir(parents=True)
    indices = list(range(len(episodes))) if indices is None else indices
    tasks = list(dict.fromkeys(task for episode in episodes for task in episode.tasks))
    task_index = {task: number for number, task in enumerate(tasks)}
    first_rows = np.concatenate([[0], np.cumsum([len(episode) for episode in episodes])])
    tables = [
        episode_table(episode, index, first, fps, version, task_index)
        for episode, index, first in zip(episodes, indices, first_rows, strict=False)
    ]
    rows = [
        {"episode_index": index, "tasks": episode.tasks, "length": len(episode), **episode.extra}
        for episode, index in zip(episodes, indices, strict=True)
    ]
    if version == "v3.0":
        for number, row in enumerate(rows):
            row.update(
                {
                    "data/chunk_index": 0,
                    "data/file_index": number // per_file,
                    "dataset_from_index": int(first_rows[number]),
                    "dataset_to_index": int(first_rows[number + 1]),
                    "stats/action/mean": [0.5, 0.5],
                    "meta/episodes/chunk_index": 0,
                    "meta/episodes/file_index": 0,
                }
            )
        for file in range(0, len(tables), per_file):
            table = pa.concat_tables(tables[file : file + per_file])
            write_table(root / f"data/chunk-000/file-{file // per_file:03d}.parquet", table)
        write_table(root / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(rows))
        write_table(root / "meta/tasks.parquet", tasks_table(tasks))
        data_path = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    else:
        for table, index in zip(tables, indices, strict=True):
            write_table(root / f"data/chunk-000/episode_{index:06d}.parquet", table)
        write_json_lines(root / "meta/episodes.jsonl", rows)
        write_json_lines(root / "meta/tasks.jsonl", [{"task_index": n, "task": task} for n, task in enumerate(tasks)])
        data_path = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    if features is None:
        features = {
            name: {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": None}
            for name, values in episodes[0].columns.items()
        }
        features |= BOOKKEEPING
    info_fields = {
        "codebase_version": version,
        "robot_type": "test_arm",
        "fps": fps,
        "features": features,
        "total_episodes": len(episodes),
        "total_frames": int(first_rows[-1]),
        "total_tasks": len(tasks),
        "splits": {"train": f"0:{len(episodes)}"},
        "data_path": data_path,
        "video_path": None,
        **(info or {}),
    }
    (root / "meta/info.json").write_text(json.dumps(info_fields))
    return root


def rewrite(file, change):
    """Rewrites a Parquet file with `change(table)`."""
    write_table(file, change(pq.read_table(file)))


def data_files(root):
    return sorted((root / "data").rglob("*.parquet"))


def append_column(root, name, values, kind=None):
    """Appends a column to the only data file."""
    (file,) = data_files(root)
    rewrite(file, lambda table: table.append_column(name, pa.array(values, kind)))


def declare(root, features, **info):
    """Adds features and other fields to info.json."""
    path = root / "meta/info.json"
    info_fields = json.loads(path.read_text()) | info
    info_fields["features"] |= features
    path.write_text(json.dumps(info_fields))


def with_column(name, values):
    """Returns a change for rewrite() that replaces a column."""
    return lambda table: table.set_column(table.schema.get_field_index(name), name, pa.array(values))
