"""Reads ManiSkill's trajectories: an HDF5 file with a group ``traj_N`` for each episode, and a JSON file of the same name.

The schema follows ManiSkill's documentation of datasets and mani_skill/utils/wrappers/record.py. ``actions``, ``terminated``,
``truncated``, ``success``, ``rewards`` have a row for each step; ``obs`` and ``env_states`` have one more row, after the last step.
There is no clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py

from ...feature_names import declaring
from ...feature_words import says_relative
from ..files import natural
from ..formats import RateOptions
from ..images import Kinds
from ..rate import described_rates, find_rate, said_rates
from ..recording import Frames, Notes, Recording, Samples, SourceError
from .beside import read_json
from .columns import Column, nominal, take_constants
from .datasets import (
    Tree,
    another_layout,
    attributes,
    child,
    escaped,
    find_files,
    links,
    location,
    open_file,
    walk,
)
from .episodes import tell_files

finish = tell_files

# The beginnings of paths whose datasets have a row more than there are steps.
_STATES = ("obs/", "env_states/", "env_states")
# ManiSkill2 stores metres multiplied by 1024 as whole numbers (its record.py); ManiSkill3 stores millimetres.
_OLD_CAMERAS, _OLD_UNIT_M = "obs/image/", 1 / 1024
_WHY = "no clock, and its JSON names no rate (control_freq in env_kwargs or sim_config)"


def read(source: Path, options: RateOptions, notes: Notes) -> Generator[Recording, None, None]:
    """Yields every trajectory of every file."""
    listing, files = find_files(source, notes)
    json_files = {path: path.with_suffix(".json") for path in files}
    listing.leave_out_others([*files, *json_files.values()], "not read", notes)
    kinds = Kinds()
    for path, name in files.items():
        with notes.reading(name, path), open_file(path) as file:
            trajectory_links = links(file)
            trajectories = [key for key in sorted(trajectory_links, key=natural) if key.startswith("traj_")]
            if not trajectories:
                raise another_layout(path, file, "maniskill", "groups traj_*")
            for key in trajectory_links.keys() - {*trajectories}:
                notes.leave_out(escaped(key), "beside the trajectories")
            notes.total += len(trajectories)
            description: dict[str, Any] = {}
            with notes.reading(f"{name}: metadata", json_files[path]):
                description = _read_json(json_files[path])
            file_facts, episodes = _describe(description)
            env_info = description.get("env_info")
            env_info = env_info if isinstance(env_info, dict) else {}
            file_attributes = attributes(file, notes)
            rates = described_rates(env_info, "env_info.") | dict(said_rates(file_attributes, "attribute "))
            file_facts |= declaring(file_attributes)
            env_kwargs = _scalars(env_info.get("env_kwargs"))
            file_facts |= {key: value for key, value in env_kwargs.items() if key == "control_mode"}
            rate_hz, rate_from = find_rate(options.rate_hz, path, _WHY, rates, notes)
            notes.see("files", name, {**file_facts, "rate_hz": rate_hz, "rate_from": rate_from})
            prefix = "" if len(files) == 1 else f"{name}: "
            for key in trajectories:
                what = prefix + escaped(key)
                with notes.reading(what, location(path, file)):
                    group = child(file, key, trajectory_links[key])
                    if not isinstance(group, h5py.Group):
                        notes.leave_out(escaped(key), "no group, so no trajectory")
                        continue
                    metadata = {"name": escaped(key), "source_file": name, **file_facts, **attributes(group, notes)}
                    if key in episodes:
                        metadata |= episodes[key]
                    elif description:
                        notes.leave_out(f"{what}: metadata", f"{json_files[path].name} has no episode of that number")
                    tree = walk(path, group, what, notes)
                    metadata |= tree.facts
                    steps = _count_steps(tree)
                    declared_steps = metadata.get("elapsed_steps")
                    if isinstance(declared_steps, int) and declared_steps != steps:
                        raise SourceError(
                            f"{tree.base}: {json_files[path].name} says {declared_steps} steps, got {steps}"
                        )
                    streams = _read_streams(tree, what, steps, rate_hz, metadata, options, kinds, notes)
                    yield Recording(what, tree.base, metadata, streams)


# ---- the JSON file ----


def _read_json(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected an object, got {content!s:.60}")
    return content


def _describe(description: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns the columns that all trajectories have in common, and the columns of each trajectory by its name."""
    info = description.get("env_info")
    env_id = info.get("env_id") if isinstance(info, dict) else None
    file_facts = {
        key: description[key] for key in ("source_type", "source_desc") if isinstance(description.get(key), str)
    }
    if isinstance(env_id, str):
        file_facts |= {"task": env_id, "env_id": env_id}
    episodes: dict[str, dict[str, Any]] = {}
    entries = description.get("episodes")
    for episode in entries if isinstance(entries, list) else []:
        if not isinstance(episode, dict) or not isinstance(episode.get("episode_id"), int):
            continue
        facts = _scalars(episode.get("info"))  # the last step's info, so its success or failure is that of the episode
        columns = {key if key in ("success", "fail") else f"info_{key}": value for key, value in facts.items()}
        episodes[f"traj_{episode['episode_id']}"] = {**columns, **_scalars(episode)}
    return file_facts, episodes


def _scalars(value: Any) -> dict[str, Any]:
    """Returns the items of a JSON object that columns can hold; none if `value` is no object."""
    scalars: dict[str, Any] = {}
    for key, item in value.items() if isinstance(value, dict) else ():
        if isinstance(item, list) and len(item) == 1:  # a value for each of several parallel environments
            (item,) = item
        is_number = isinstance(item, float) and math.isfinite(item)
        if isinstance(item, bool | str) or is_number or (isinstance(item, int) and abs(item) < 2**63):
            scalars[key] = item
    return scalars


# ---- a trajectory ----


def _is_state(key: str) -> bool:
    return key.startswith(_STATES)


def _count_steps(tree: Tree) -> int:
    """Returns the number of steps that most datasets of a trajectory have. Of equally frequent numbers, that of `actions` is taken."""
    counts = Counter(dataset.shape[0] - _is_state(key) for key, dataset in tree.datasets.items())
    if not counts:
        return 0
    most = max(counts.values())
    frequent = [steps for steps, count in counts.items() if count == most]
    actions = tree.datasets.get("actions")
    return int(actions.shape[0] if actions is not None and actions.shape[0] in frequent else max(frequent))


def _read_streams(
    tree: Tree,
    what: str,
    steps: int,
    rate_hz: float,
    metadata: dict[str, Any],
    options: RateOptions,
    kinds: Kinds,
    notes: Notes,
) -> Iterator[tuple[str, Samples]]:
    """Yields the streams. At k / rate are observation k, the action taken on it, and the results of that action."""
    metadata |= take_constants(tree, steps, notes)
    # Some recorders omit the row after the last step, for all datasets of a group.
    with_last_row = {stream.split("/")[0] for stream, dataset in tree.datasets.items() if dataset.shape[0] == steps + 1}
    for stream, dataset in tree.datasets.items():
        rows = steps + (_is_state(stream) and (stream.split("/")[0] in with_last_row or dataset.shape[0] != steps))
        column = Column(stream, what, tree.where(stream), dataset, nominal(rows, rate_hz), notes)
        for name, samples in column.samples(options, kinds):
            if isinstance(samples, Frames) and name.endswith("/depth") and dataset.dtype.kind in "iu":
                samples = replace(samples, unit_m=_OLD_UNIT_M if name.startswith(_OLD_CAMERAS) else 0.001)
            if name == "actions" and says_relative(str(metadata.get("control_mode"))):
                samples = replace(samples, attributes={"absolute": False, **samples.attributes})
            yield name, samples
