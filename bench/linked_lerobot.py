"""Converts real LeRobot datasets of version 2 to v3.0, the only version that LeRobot reads now. Videos are linked, not
copied."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUMBERS = ["observation.state", "action"]


def link_as_v3(root: Path, source: Path, cameras: list[str], repeats: int = 1) -> tuple[float, np.ndarray]:
    """Writes the episodes of `source` that have a video, `repeats` times in a row. All `cameras` get the videos of the source's
    first camera.

    Returns the frames per second, and the first row of each episode.
    """
    info = json.loads((source / "meta/info.json").read_text())
    fps = info["fps"]
    camera_folder = sorted((source / "videos/chunk-000").iterdir())[0]
    videos = sorted(camera_folder.glob("*.mp4")) * repeats
    tables, rows, first_row = [], [], 0
    for episode, video in enumerate(videos):
        table = pq.read_table(source / f"data/chunk-000/{video.stem}.parquet")
        n = table.num_rows
        row = {"episode_index": episode, "tasks": ["task"], "length": n, "data/chunk_index": 0, "data/file_index": 0}
        row |= {"dataset_from_index": first_row, "dataset_to_index": first_row + n}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        for key in cameras:
            row |= {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": episode}
            row |= {f"videos/{key}/from_timestamp": 0.0, f"videos/{key}/to_timestamp": n / fps}
            link = root / f"videos/{key}/chunk-000/file-{episode:03d}.mp4"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(video.resolve())
        rows.append(row)
        numbers = {
            "timestamp": (np.arange(n) / fps).astype(np.float32),
            "frame_index": np.arange(n),
            "episode_index": np.full(n, episode),
            "index": np.arange(first_row, first_row + n),
            "task_index": np.zeros(n, np.int64),
        }
        tables.append(pa.table({key: table[key] for key in NUMBERS} | {key: pa.array(x) for key, x in numbers.items()}))
        first_row += n
    tasks = pa.table({"task_index": pa.array([0]), "__index_level_0__": pa.array(["task"])})
    pandas = {  # as pandas writes a column and an index without a name
        "index_columns": ["__index_level_0__"],
        "column_indexes": [],
        "columns": [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
            {"name": None, "field_name": "__index_level_0__", "pandas_type": "unicode", "numpy_type": "object"},
        ],
        "pandas_version": "2.3.3",
    }
    for path, content in {
        "data/chunk-000/file-000.parquet": pa.concat_tables(tables),
        "meta/episodes/chunk-000/file-000.parquet": pa.Table.from_pylist(rows),
        "meta/tasks.parquet": tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}),
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(content, root / path)
    scalar = {"shape": [1], "names": None}
    features = {key: info["features"][key] for key in NUMBERS} | {"timestamp": scalar | {"dtype": "float32"}}
    features |= dict.fromkeys(["frame_index", "episode_index", "index", "task_index"], scalar | {"dtype": "int64"})
    features |= dict.fromkeys(cameras, info["features"][camera_folder.name])
    info |= {"codebase_version": "v3.0", "features": features, "total_tasks": 1, "total_episodes": len(rows)}
    info |= {"total_frames": first_row, "splits": {"train": f"0:{len(rows)}"}}
    info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    (root / "meta/info.json").write_text(json.dumps(info))
    return fps, np.array([row["dataset_from_index"] for row in rows])
