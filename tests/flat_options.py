"""Loaders of options by name, as a parametrised test has them: each goes into the Window, Anchors, Normalization, Memory,
Ranks, Mixture or Source that takes it. A window's option is one value for all keys, or {key: value}."""

import dataclasses
from collections.abc import Mapping

from robocache.sources import as_sources

import robocache
from robocache import Anchors, Memory, Mixture, Normalization, Ranks, Source, Window

WINDOW = {field.name for field in dataclasses.fields(Window)} - {"offsets", "stream", "moment"}
GROUPS = {
    "anchors": (Anchors, {"anchor": "stream", "anchor_hz": "rate_hz", "edges": "edges", "drop_n_last": "drop_n_last"}),
    "normalization": (Normalization, {x: x for x in ("norm_stats", "stats_of", "constant", "min_spread")}),
    "memory": (Memory, {x: x for x in ("residency", "prefetch", "reuse_buffers", "stream", "budget")}),
    "ranks": (Ranks, {x: x for x in ("rank", "world_size", "shard_episodes")}),
}


def options_of(**options):
    """The keyword arguments of a Loader."""
    if mixture := {x: options.pop(x) for x in ("temperature", "samples_per_epoch", "pad_features") if x in options}:
        options["dataset"] = Mixture(as_sources(options["dataset"])[0], **mixture)
    if rename := options.pop("rename", None):
        options["dataset"] = Source(options["dataset"], rename=rename)
    given = options.get("delta_timestamps")
    windows, default = dict(given) if isinstance(given, Mapping) else {}, {}
    for name in WINDOW.intersection(options):
        value = options.pop(name)
        if not isinstance(value, Mapping):
            default |= {} if value is None else {name: value}
            continue
        for key, of_key in value.items():
            window = windows.get(key)
            window = window if isinstance(window, Window) else Window(window)
            windows[key] = dataclasses.replace(window, **{name: of_key})
        options["delta_timestamps"] = windows
    if default:
        options["default"] = dataclasses.replace(options.get("default") or Window(), **default)
    for group, (kind, names) in GROUPS.items():
        if fields := {field: options.pop(name) for name, field in names.items() if name in options}:
            options[group] = kind(**fields)
    return options


def flat_loader(dataset, **flat):
    return robocache.Loader(**options_of(dataset=dataset, **flat))


def from_lerobot(path, **flat):
    return robocache.Loader.from_lerobot(path, **options_of(**flat))


def lerobot_dataset(path, *arguments, **flat):
    return robocache.LeRobotDataset(path, *arguments, **options_of(**flat))
