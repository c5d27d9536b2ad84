"""The options that a loader had before Window, Anchors, Normalization, Memory, Ranks and Mixture.

They still work, with a DeprecationWarning that names the new form.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from . import errors
from .dataset import Dataset
from .options import Anchors, Memory, Normalization, Ranks, Window
from .sources import Keys, Mixture, Source, as_sources

_Parameters = ParamSpec("_Parameters")

# The former option -> the field that takes it.
_WINDOW = {field.name: field.name for field in dataclasses.fields(Window)}
for _new in ("offsets", "convert", "base", "stream", "moment"):
    del _WINDOW[_new]
_WINDOW |= {"methods": "method", "offset": "offset_s"}
_GROUPS: dict[str, tuple[Any, dict[str, str]]] = {
    "anchors": (
        Anchors,
        {"anchor": "stream", "anchor_hz": "rate_hz", "edges": "edges", "drop_n_last": "drop_n_last"},
    ),
    "normalization": (
        Normalization,
        {name: name for name in ("norm_stats", "stats_of", "constant", "min_spread")},
    ),
    "memory": (
        Memory,
        {name: name for name in ("residency", "prefetch", "reuse_buffers", "stream", "budget")}
        | {"memory_budget": "budget"},
    ),
    "ranks": (Ranks, {name: name for name in ("rank", "world_size", "shard_episodes")}),
}
_MIXTURE = {"temperature", "samples_per_epoch", "pad_features"}
_STEPS = {"rate_hz", "history", "horizon"}
FORMER = {*_WINDOW, *_MIXTURE, *_STEPS, "rename", "where"}.union(*(names for _, names in _GROUPS.values()))


def takes_former_options(init: Callable[_Parameters, None]) -> Callable[_Parameters, None]:
    """Returns an ``__init__(self, dataset, **options)`` that also takes the former options."""

    names = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def wrapper(*args: _Parameters.args, **options: _Parameters.kwargs) -> None:
        if FORMER.isdisjoint(options):
            return init(*args, **options)
        former = sorted(FORMER.intersection(options))
        positional: tuple[Any, ...] = args
        arguments: dict[str, Any] = {**dict(zip(names, positional[1:], strict=False)), **options}
        current_options: Any = current(arguments)
        new = ", ".join(
            f"{name}={value!r}" for name, value in current_options.items() if value is not arguments.get(name)
        )
        warnings.warn(f"{', '.join(f'{name}=' for name in former)}: now {new}", DeprecationWarning, stacklevel=2)
        return init(positional[0], **current_options)

    return wrapper


def current(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a loader's keyword arguments, in the former or the current form, to the current form.

    A window's option is one value for all keys, or ``{key: value}``.

    Raises:
        ArgumentError: a former option is used with its current form, or `delta_timestamps` with `rate_hz`.
    """
    options = dict(arguments)
    if mixture := {name: options.pop(name) for name in _MIXTURE if name in options}:
        sources, _ = as_sources(options.get("dataset"))
        options["dataset"] = Mixture(sources, **mixture)
    if rename := options.pop("rename", None):
        options["dataset"] = _rename(options.get("dataset"), rename)
    if "where" in options:
        if options.get("episodes") is not None:
            raise errors.ArgumentError("where: expected no episodes beside it; use Dataset.select for both")
        options["episodes"] = options.pop("where")
    _replace_steps(options)
    _replace_window_options(options)
    for group, (kind, names) in _GROUPS.items():
        fields = {field: options.pop(name) for name, field in names.items() if name in options}
        if fields and options.get(group) is not None:
            raise errors.ArgumentError(f"{group}: expected {kind.__name__} alone, got {', '.join(fields)} beside it")
        if fields:
            options[group] = kind(**fields)
    return options


def _replace_steps(options: dict[str, Any]) -> None:
    """Replaces `rate_hz`, `history` and `horizon` by `delta_timestamps`."""
    rate, history, horizon = (options.pop(name, None) for name in ("rate_hz", "history", "horizon"))
    if rate is None:
        if history is not None or horizon is not None:
            raise errors.ArgumentError("history, horizon: go with rate_hz, got none")
        return
    if options.get("delta_timestamps") is not None:
        raise errors.ArgumentError(f"delta_timestamps: expected none beside rate_hz={rate!r}")
    keys: list[str] = []
    if isinstance(history, int) or isinstance(horizon, int):
        if "dataset" not in options:
            raise errors.ArgumentError("history, horizon: expected {key: steps}, or Window.steps() for each key")
        keys_of_sources = Keys(as_sources(options["dataset"])[0])
        keys = [key for key in keys_of_sources if key not in keys_of_sources.ragged]
    windows = {}
    for key in dict.fromkeys(
        [*(x for steps in (history, horizon) if isinstance(steps, Mapping) for x in steps), *keys]
    ):
        is_action = key.split(".")[0] in ("action", "actions")
        # One number of steps is the history of states, or the horizon of actions.
        before = history.get(key, 0) if isinstance(history, Mapping) else 0 if is_action else history or 0
        after = horizon.get(key, 0) if isinstance(horizon, Mapping) else horizon or 0 if is_action else 0
        if before or after:
            windows[key] = Window.steps(rate, history=before, horizon=after)
    if isinstance(horizon, int) and not any(key.split(".")[0] in ("action", "actions") for key in windows):
        raise errors.ArgumentError(f"horizon: expected a key action or actions, there are {', '.join(keys)}")
    options["delta_timestamps"] = windows


def _replace_window_options(options: dict[str, Any]) -> None:
    """Replaces a window's former options by fields of `default` and of each key's Window."""
    delta_timestamps = options.get("delta_timestamps")
    windows = dict(delta_timestamps) if isinstance(delta_timestamps, Mapping) else {}
    default_fields: dict[str, Any] = {}
    for name in [name for name in options if name in _WINDOW]:
        value, field = options.pop(name), _WINDOW[name]
        if not isinstance(value, Mapping):
            if value is not None:
                default_fields[field] = value
            continue
        for key, key_value in value.items():
            window = windows.get(key)
            window = window if isinstance(window, Window) else Window(window)
            windows[key] = dataclasses.replace(window, **{field: key_value})
        options["delta_timestamps"] = windows
    if default_fields:
        options["default"] = dataclasses.replace(options.get("default") or Window(), **default_fields)


def _rename(dataset: Any, rename: Mapping[str, str]) -> Any:
    """Returns the dataset as a Source with `rename`, or a mixture whose sources have it too; their own `rename` takes
    precedence."""
    if isinstance(dataset, Dataset | str | os.PathLike):
        return Source(dataset, rename=rename)
    sources, mixture = as_sources(dataset)
    renamed = [
        dataclasses.replace(
            source,
            rename={
                **{name: key for name, key in rename.items() if name in source.dataset.streams},
                **(source.rename or {}),
            },
        )
        for source in sources
    ]
    return dataclasses.replace(mixture or Mixture(renamed), sources=renamed)
