"""Reads the HDF5 files of robomimic and its relatives (MimicGen, Isaac Lab and others): each episode is a group ``data/demo_N``.

The schema follows robomimic/scripts/dataset_states_to_obs.py and file_utils.py, and Isaac Lab's
isaaclab/utils/datasets/hdf5_dataset_file_handler.py. There is no clock: row k is at k / rate.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...feature_names import declaring
from ...feature_words import as_flag
from ...tasks import NAMES
from ..files import natural
from ..formats import RateOptions
from ..images import Kinds
from ..rate import described_rates, find_rate, said_rates
from ..recording import Notes, Recording, Samples, SourceError, as_utf8, naming
from .columns import Clock, Column, count_rows, nominal, take_constants
from .datasets import (
    Dataset,
    Tree,
    another_layout,
    attributes,
    check_links,
    child,
    escaped,
    find_files,
    links,
    location,
    open_file,
    read_attribute,
    walk,
)
from .episodes import tell_files

finish = tell_files

_NEXT = "next_obs"
_LEFT_OUT = {_NEXT: "its keys that obs has are the next row's obs, a row of obs too, except after the last row"}
# Lists of any length that MimicGen writes for a whole episode.
_LISTS = ("src_demo_inds",)
# The most demos of a file; each becomes an episode.
_MOST_DEMOS = 1 << 20
# The most bytes of a demo's actions that are compared between files.
_HASHED_BYTES = 1 << 24
# Isaac Lab's group for the state after the reset.
_INITIAL = "initial_state"
# The attribute in which LIBERO's writer stores robosuite's macros.IMAGE_CONVENTION, which the simulator's pictures follow.
_CONVENTION = "macros_image_convention"
_MODEL = {"model_file": "the simulator's XML; its SHA-256 is in the column model_sha256"}


def read(source: Path, options: RateOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every demo of every file."""
    listing, files = find_files(source, notes)
    listing.leave_out_others(files, "not read", notes)
    kinds = Kinds()
    by_actions: dict[str, str] = {}  # the first file whose first demo has these actions
    for path, name in files.items():
        with notes.reading(name, path), open_file(path) as file:
            data = _find_data(path, file)
            facts = attributes(data, notes)
            file_attributes = attributes(file, notes)
            env_args: dict[str, Any] = {}
            with notes.reading(f"{name}: data: attribute env_args", path):
                env_args = _parse_env_args(path, facts)
            rates = _find_file_rates(file_attributes, facts, env_args)
            is_relative = set(_find_relative(env_args))
            action_attributes = {"absolute": not min(is_relative)} if len(is_relative) == 1 else {}
            shared_columns = declaring({**file_attributes, **facts})
            tasks = (
                named[key] for named in (facts, file_attributes) for key in NAMES if isinstance(named.get(key), str)
            )
            instruction = _read_instruction(data, "problem_info", "language_instruction") or next(tasks, None)
            notes.see("files", name, {**facts, **_describe_rate(path, rates, facts, options.rate_hz)})
            if facts.get(_CONVENTION) == "opengl":
                why = f"they are stored bottom up, as {_CONVENTION} 'opengl' says, and as this simulator gives them to a policy"
                notes.leave_out("cameras: pictures the right way up", why)
            demo_links = links(data)
            demos = sorted(demo_links, key=natural)
            masks = _read_masks(path, file, demos, notes)
            notes.total += len(demos)
            prefix = "" if len(files) == 1 else f"{name}: "
            rows = 0
            where = location(path, data)
            for demo in demos:
                what = prefix + escaped(demo)
                with notes.reading(what, where):
                    group = child(data, demo, demo_links[demo])
                    if not isinstance(group, h5py.Group):
                        notes.leave_out(f"data/{escaped(demo)}", "no group, so no demo")
                        continue
                    metadata = {"name": escaped(demo), "source_file": name, "filters": masks.get(demo, [])}
                    metadata |= shared_columns | attributes(group, notes, _MODEL) | _hash_model(group)
                    task = _read_instruction(group, "ep_meta", "lang") or instruction
                    if task and not any(metadata.get(key) for key in NAMES):  # an attribute of the demo has priority
                        metadata["task"] = task
                    tree = walk(path, group, what, notes, _LEFT_OUT)
                    for key in _find_without_obs(group, tree):
                        notes.leave_out(key, f"not read, and obs{key.removeprefix(_NEXT)} does not exist")
                    if (
                        demo == demos[0]
                        and (earlier := by_actions.setdefault(_hash_actions(tree) or name, name)) != name
                    ):
                        why = f"beside those of {earlier}, whose first has the same actions: if both files have the same demos, ingest one"
                        notes.assume(f"demos of {name}", why)
                    lists = {key: _take_list(tree, key) for key in _LISTS if key in tree.datasets}
                    demo_rows = _count_rows(tree, metadata)
                    metadata |= take_constants(tree, demo_rows, notes, (_INITIAL,))
                    demo_rates = rates | dict(said_rates({**metadata, **tree.facts}, f"{what}: "))
                    rate_hz, _ = _find_rate(path, demo_rates, facts, options.rate_hz, notes)
                    rows += demo_rows
                    metadata |= tree.facts | lists
                    clock = nominal(demo_rows, rate_hz)
                    streams = _read_streams(tree, what, clock, action_attributes, options, kinds, notes)
                    yield Recording(what, tree.base, metadata, streams)
            total = facts.get("total")
            if isinstance(total, int) and total != rows:
                notes.leave_out(f"{name}: data: attribute total", f"says {total}, the demos have {rows} rows")
            _leave_out_rest(file, notes)


def _find_data(path: Path, file: h5py.File) -> h5py.Group:
    if "data" not in list(file):
        raise another_layout(path, file, "robomimic", "a group data with demos in it")
    data = child(file, "data")
    if not isinstance(data, h5py.Group):
        raise SourceError(f"{path}: expected a group data with demos in it, found a dataset of shape {data.shape}")
    check_links(path, data, most=_MOST_DEMOS)
    return data


def _leave_out_rest(file: h5py.File, notes: Notes) -> None:
    for name in file:
        if name not in ("data", "mask"):
            notes.leave_out(escaped(name), "beside the demos")
    if len(file.attrs):
        notes.leave_out("attributes of the file", ", ".join(map(escaped, file.attrs)))


# ---- the rate ----


def _find_rate(
    path: Path, rates: Mapping[str, float], facts: Mapping[str, Any], asked_hz: float | None, notes: Notes | None = None
) -> tuple[float, str]:
    """Returns the rows per second, and where that rate comes from."""
    env_args = f"env_args: {facts.get('env_args', 'none')!s:.200}"
    why = f"no clock, and its attributes name no rate (control_freq, fps, or dt and decimation; {env_args})"
    return find_rate(asked_hz, path, why, rates, notes)


def _describe_rate(
    path: Path, rates: Mapping[str, float], facts: Mapping[str, Any], asked_hz: float | None
) -> dict[str, Any]:
    """Returns the file's rate for the provenance; {} if the file names none and the user gives none."""
    if not rates and asked_hz is None:
        return {}
    rate_hz, rate_from = _find_rate(path, rates, facts, asked_hz)
    return {"rate_hz": rate_hz, "rate_from": rate_from}


def _find_file_rates(
    file_attributes: Mapping[str, Any], facts: Mapping[str, Any], env_args: Mapping[str, Any]
) -> dict[str, float]:
    """Returns the rates that the file declares for all its demos."""
    others = {key: value for key, value in facts.items() if key != "env_args"}
    rates = dict(said_rates(file_attributes, "attribute "))
    rates |= said_rates(others, "data: attribute ")
    return rates | described_rates(env_args, "env_args.")


def _parse_env_args(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        env_args = json.loads(facts.get("env_args", "{}"))
    except (ValueError, TypeError, RecursionError) as error:
        raise SourceError(f"{path}: /data: attribute env_args: expected JSON: {error}") from error
    return env_args if isinstance(env_args, dict) else {}


def _find_relative(value: Any) -> Iterator[bool]:
    """Yields for each of robosuite's controllers in env_args, at any depth, whether its actions are relative to the state.

    Controllers of the types OSC_* are so by default.
    """
    if isinstance(value, dict):
        if (is_delta := as_flag(value.get("control_delta"))) is not None:
            yield is_delta
        elif value.get("input_type") in ("delta", "absolute"):
            yield value["input_type"] == "delta"
        elif str(value.get("type")).startswith("OSC_"):
            yield True
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        yield from _find_relative(item)


# ---- demos ----


def _read_masks(path: Path, file: h5py.File, demos: list[str], notes: Notes) -> dict[str, list[str]]:
    """Returns for each demo the names of the filters, in the group `mask`, that list the demo."""
    masks: dict[str, list[str]] = defaultdict(list)
    if "mask" not in list(file):
        return masks
    with notes.reading("mask", path):
        tree = walk(path, child(file, "mask"), "mask", notes)
        # A filter with one demo is a single text.
        by_filter = {key: [value] for key, value in tree.facts.items()}
        for key, dataset in tree.datasets.items():
            with notes.reading(f"mask/{key}", tree.where(key)):
                by_filter[key] = _read_names(tree.where(key), dataset)
        existing = set(demos)
        for key, names in sorted(by_filter.items()):
            for demo in dict.fromkeys(names):
                if demo in existing:
                    masks[demo].append(key)
                else:
                    notes.leave_out(f"mask/{key}: {demo}", "no such demo")
    return masks


def _read_names(where: str, dataset: Dataset) -> list[str]:
    size = math.prod(dataset.shape) * dataset.dtype.itemsize
    if not h5py.check_string_dtype(dataset.dtype) or len(dataset.shape) != 1 or size > 1 << 26:
        raise SourceError(f"{where}: expected names of demos, got {list(dataset.shape)} of {dataset.dtype}")
    return [name.decode(errors="backslashreplace") for name in map(bytes, dataset[:])]


def _hash_model(group: h5py.Group) -> dict[str, str]:
    if not h5py.h5a.exists(group.id, b"model_file"):
        return {}
    with naming(f"{group.file.filename}: {escaped(group.name)}: attribute model_file"):
        model = read_attribute(group, "model_file")
        return {"model_sha256": hashlib.sha256(model if isinstance(model, bytes) else str(model).encode()).hexdigest()}


def _hash_actions(tree: Tree) -> str | None:
    """Returns a hash of a demo's actions; None if they are missing, large or damaged."""
    actions = tree.datasets.get("actions")
    if actions is None or actions.dtype.kind not in "iuf":
        return None
    if max(math.prod(actions.shape), math.prod(actions.chunks or ())) * actions.dtype.itemsize > _HASHED_BYTES:
        return None
    with suppress(OSError):
        values = np.asarray(actions[:])
        return hashlib.sha256(values.tobytes()).hexdigest() if values.any() else None
    return None


def _read_instruction(group: h5py.Group, attribute: str, key: str) -> str | None:
    """Returns the instruction at `key` in an attribute that holds JSON, as RoboCasa's demos and LIBERO's data have it; None if there is
    none."""
    if not h5py.h5a.exists(group.id, attribute.encode()):
        return None
    with naming(f"{group.file.filename}: {escaped(group.name)}: attribute {attribute}"):
        value = read_attribute(group, attribute)
        try:
            parsed = json.loads(value) if isinstance(value, str | bytes) else None
        except (ValueError, RecursionError):  # no JSON: the whole attribute is a column
            return None
        text = parsed.get(key) if isinstance(parsed, dict) else None
        if isinstance(text, list) and all(isinstance(part, str) for part in text):  # a list of words, or of letters
            text = (" " if any(len(part) > 1 for part in text) else "").join(text)
        return as_utf8(text.strip().strip('"')) or None if isinstance(text, str) else None


def _find_without_obs(demo: h5py.Group, tree: Tree, below: str = "") -> Iterator[str]:
    """Yields the paths in next_obs that obs does not have.

    below: the path of a group in both, such as "/camera".
    """
    names: list[dict[str, Any]] = []
    for start in (_NEXT, "obs"):
        node: Any = demo
        for part in f"{start}{below}".split("/"):
            with suppress(SourceError):  # a link that leads nowhere has no names
                node = child(node, part) if isinstance(node, h5py.Group) and part in links(node) else None
        names.append(links(node) if isinstance(node, h5py.Group) else {})
    for name in names[0]:
        path = f"{below}/{name}"
        if name not in names[1]:
            yield escaped(f"{_NEXT}{path}")
        elif any(key.startswith(f"obs{path}/") for key in tree.datasets):
            yield from _find_without_obs(demo, tree, path)


def _take_list(tree: Tree, key: str) -> list[Any]:
    """Removes the dataset of a list from the tree; returns the list."""
    dataset = tree.datasets.pop(key)
    if len(dataset.shape) != 1 or dataset.dtype.kind not in "iuf" or dataset.shape[0] > 4096:
        raise SourceError(
            f"{tree.where(key)}: expected a list of numbers, got {list(dataset.shape)} of {dataset.dtype}"
        )
    values: list[Any] = np.asarray(dataset[:]).tolist()
    return values


def _count_rows(tree: Tree, metadata: Mapping[str, Any]) -> int:
    """Returns the number of rows that most datasets of a demo have."""
    rows, dataset = count_rows(tree, _is_action, (_INITIAL,))
    declared_rows = metadata.get("num_samples")
    # Isaac Lab writes 0 if there are no actions.
    may_differ = not declared_rows and not _is_action(dataset)
    if dataset and isinstance(declared_rows, int) and declared_rows != rows and not may_differ:
        raise SourceError(f"{tree.base}: attribute num_samples says {declared_rows}, {dataset} has {rows} rows")
    return rows


def _is_action(key: str) -> bool:
    return key == "actions" or key.startswith("actions/")


def _read_streams(
    tree: Tree,
    what: str,
    clock: Clock,
    action_attributes: Mapping[str, Any],
    options: RateOptions,
    kinds: Kinds,
    notes: Notes,
) -> Iterator[tuple[str, Samples]]:
    if clock.rows == 0:
        return
    for stream, dataset in tree.datasets.items():
        # The state after the reset is a single row, at the time of row 0.
        stream_clock = Clock(1, clock.time_ns, clock.kind) if stream.startswith(f"{_INITIAL}/") else clock
        column = Column(stream, what, tree.where(stream), dataset, stream_clock, notes)
        for name, samples in column.samples(options, kinds):
            if name == "actions" and action_attributes:
                samples = replace(samples, attributes={**action_attributes, **samples.attributes})
            yield name, samples
