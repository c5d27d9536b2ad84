"""Randomly changed sources give a cache that verifies, or an error of robocache.

`./dev attack` runs it for longer.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import CHANGES
from lerobot_files import make_episodes, write_lerobot
from soak import rounds

import robocache

pytestmark = pytest.mark.soak

ODD_VALUES = [
    None, True, -1, 0, 2**31, 2**63, -(2**63), 10**400, 1e308, 5e-324, float("nan"), float("inf"), "", "x", "\0",
    "\ud800", "é" * 300, [], {}, [None], [[1]], {"": {}}, ["a", 1], "1e5", "v2.1", "../..",
]  # fmt: skip
ODD_CELLS = [
    "", " ", "nan", "-inf", "1.2.3", "word", "1e400", "1e-99999999999999999999", "0x10", '"', '"a,b"', "True", "-0",
    "9" * 400, "\0", "\ufeff", "é", "1,2", "#", "99999999999999999999", "2024-01-01T00:00:00", "1_000", "٣",
]  # fmt: skip


def change_json(content, rng):
    """Changes a value or a key somewhere in a line of JSON."""
    lines = content.split(b"\n")
    index = rng.integers(max(1, len(lines) - 1))
    root = {"root": json.loads(lines[index])}
    keys, stack = [], [root]
    while stack:
        node = stack.pop()
        for key in list(node if isinstance(node, dict) else range(len(node))):
            keys.append((node, key))
            if isinstance(node[key], dict | list):
                stack.append(node[key])
    node, key = keys[rng.integers(len(keys))]
    if isinstance(node, dict) and key != "root" and rng.random() < 0.3:
        node[str(ODD_VALUES[rng.integers(len(ODD_VALUES))])] = node.pop(key)
    else:
        node[key] = ODD_VALUES[rng.integers(len(ODD_VALUES))]
    lines[index] = json.dumps(root["root"]).encode()
    return b"\n".join(lines)


def change_column(content, rng):
    """Changes the type, values or name of a column of a Parquet table, removes it, or repeats it."""
    table = pq.read_table(pa.BufferReader(content))
    index = int(rng.integers(table.num_columns))
    name, column, n = table.column_names[index], table.column(index), len(table)
    replacements = [
        pa.nulls(n),
        pa.array(["x"] * n),
        pa.array([[1.0]] * n),
        pa.array([[]] * n, pa.list_(pa.float32())),
        pa.array([[k] * (k % 3) for k in range(n)]),
        pa.array([{"a": 1}] * n),
        pa.array([b"\xff"] * n),
        pa.array([None if k == n - 1 else k for k in range(n)]),
        pa.array([2**63] * n, pa.uint64()),
        pa.array([-(2**63)] * n),
        pa.array([np.inf] * n),
        pa.array([np.nan] * n, pa.float16()),
        pa.array([True] * n),
        pa.array(np.arange(n)[::-1].copy()),
        pa.array([10**18] * n, pa.timestamp("ns")),
        pa.array(["x"] * n).dictionary_encode(),
    ]
    choice = rng.integers(len(replacements) + 4)
    if choice < len(replacements):
        table = table.set_column(index, name, replacements[choice])
    elif choice == len(replacements):
        table = table.append_column(name, column)
    elif choice == len(replacements) + 1:
        table = table.drop_columns([name])
    elif choice == len(replacements) + 2:
        table = table.set_column(index, str(ODD_VALUES[rng.integers(len(ODD_VALUES))]).replace("\ud800", "?"), column)
    else:
        table = table.slice(0, rng.integers(n))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def change_cell(content, rng):
    lines = content.decode().split("\n")
    row = rng.integers(len(lines) - 1)
    cells = lines[row].split(",")
    cells[rng.integers(len(cells))] = ODD_CELLS[rng.integers(len(ODD_CELLS))]
    lines[row] = ",".join(cells)
    return "\n".join(lines).encode()


def changes_for(file):
    by_type = {".parquet": change_column, ".csv": change_cell, ".json": change_json, ".jsonl": change_json}
    return [*CHANGES, *[by_type[file.suffix]] * len(CHANGES)]


def make_logs(folder, rng):
    for run in range(3):
        (folder / f"run_{run}").mkdir(parents=True)
        for stream, header in {"imu": "t_s,ax,ay,ok", "joint": None}.items():
            rows = [f"{k / 10},{rng.normal()},{k},{k % 2 == 0}" for k in range(12)]
            lines = [header, *rows] if header else rows
            (folder / f"run_{run}/{stream}.csv").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("kind", ["v2.1", "v3.0", "csv"])
def test_randomly_changed_sources(kind, on_error, rng, tmp_path):
    source, cache = tmp_path / "source", tmp_path / "cache"
    if kind == "csv":
        make_logs(source, rng)
    else:
        write_lerobot(source, make_episodes(rng, (5, 6, 7, 4)), kind)
    files = sorted(file for file in source.rglob("*") if file.is_file())
    written = 0
    for _ in range(rounds(20)):
        file = files[rng.integers(len(files))]
        content = file.read_bytes()
        if rng.random() < 0.05:
            changed = files[rng.integers(len(files))].read_bytes()
        else:
            changes = changes_for(file)
            changed = changes[rng.integers(len(changes))](content, rng)
        file.write_bytes(changed)
        try:
            report = robocache.ingest(source, cache, on_error=on_error, overwrite=True)
        except robocache.Error as error:
            assert str(source) in str(error)
        except Exception as error:
            raise AssertionError(f"{file}: {changed!r}") from error
        else:
            robocache.open(cache).verify()
            assert on_error == "skip" or not report.skipped
            json.dumps(report.to_dict(), ensure_ascii=False).encode()
            written += 1
        finally:
            file.write_bytes(content)
    assert written > 0  # if no ingest or, without skipping, every ingest succeeds, the changes test nothing
    assert written < rounds(20) or on_error == "skip"
