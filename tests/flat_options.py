"""Loaders of options by name, as a parametrised test has them: each goes into the Window, Anchors, Normalization, Memory,
Ranks or Mixture that takes it. A window's option is one value for all keys, or {key: value}."""

import dataclasses
from collections.abc import Mapping

import robocache

_WINDOW = [field.name for field in dataclasses.fields(robocache.Window) if field.name != "offsets"]
_ANCHORS = {"anchor": "stream", "anchor_hz": "rate_hz", "edges": "edges", "drop_n_last": "drop_n_last"}
_GROUPS = {
    "normalization": (robocache.Normalization, ["norm_stats", "stats_of", "constant", "min_spread"]),
    "memory": (robocache.Memory, ["residency", "budget", "prefetch", "reuse_buffers", "stream"]),
    "ranks": (robocache.Ranks, ["rank", "world_size", "shard_episodes"]),
}
_MIXTURE = ["temperature", "samples_per_epoch", "pad_features"]


def options_of(**flat):
    """The keyword arguments of a Loader."""
    given = dict(flat)
    windows = given.get("delta_timestamps")
    default, own = {}, {}
    for name in _WINDOW:
        value = given.pop(name, None)
        if isinstance(value, Mapping):
            for key, x in value.items():
                own.setdefault(key, {})[name] = x
        elif value is not None:
            default[name] = value
    if default:
        given["default"] = robocache.Window(**default)
    if own:
        windows = dict(windows or {})
        for key, fields in own.items():
            window = windows.get(key)
            window = window if isinstance(window, robocache.Window) else robocache.Window(window)
            windows[key] = dataclasses.replace(window, **fields)
        given["delta_timestamps"] = windows
    anchors = {field: given.pop(name) for name, field in _ANCHORS.items() if name in given}
    if anchors:
        given["anchors"] = robocache.Anchors(**anchors)
    for group, (kind, names) in _GROUPS.items():
        fields = {name: given.pop(name) for name in names if name in given}
        if fields:
            given[group] = kind(**fields)
    return given


def flat_loader(dataset, **flat):
    mixture = {name: flat.pop(name) for name in _MIXTURE if name in flat}
    if mixture:
        dataset = robocache.Mixture(dataset if isinstance(dataset, list) else [robocache.Source(dataset)], **mixture)
    return robocache.Loader(dataset, **options_of(**flat))


def from_lerobot(path, **flat):
    return robocache.Loader.from_lerobot(path, **options_of(**flat))


def lerobot_dataset(path, *arguments, **flat):
    return robocache.LeRobotDataset(path, *arguments, **options_of(**flat))
