"""Merges statistics of datasets, and reads and writes the files of LeRobot, openpi and GR00T."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _lib, errors
from ._check import listed, real
from ._printable import warn
from ._temporary import write_whole
from .dataset import Stats
from .feature_words import in_one_spelling
from .ingest.files import read_whole
from .ingest.recording import naming

if TYPE_CHECKING:
    import numpy.typing as npt

# Normalisation treats a smaller spread as 0, unless the loader sets another limit.
MIN_SPREAD = 1e-4

_FILES = "meta/stats.json", "meta/episodes_stats.jsonl", "stats.json", "episodes_stats.jsonl", "norm_stats.json"
_OPENPI = "mean", "std", "q01", "q99"
_GROOT = "mean", "std", "min", "max", "q01", "q99"


class NormStatsWarning(UserWarning):
    """The statistics may not describe the values that they will normalise.

    A loader compares statistics given for a key without conversions with the rows that a source draws: these lie outside min
    and max by more than half the range, or wholly outside q01 to q99, or their mean is off by more than 1 + 3 / sqrt(episodes)
    stds, or their std is 5 times as large (in half of the features of three and more episodes, 20 times as small).
    """


# ---- Statistics as arguments -----------------------------------------------------------------------------------------


def as_stats(name: str, value: Any) -> Stats:
    """Converts statistics of one key to float64 arrays of one shape; missing fields are None.

    Args:
        name: the argument's name, for errors.
        value: a :class:`Stats`, a dict of its fields, or an object with such attributes, as in openpi. `count` may be
            one number for all features.

    Raises:
        ArgumentError, ArgumentTypeError: a field is invalid; the message names it.
    """
    of = getattr(value, "of", None)
    facts = value if isinstance(value, Stats) else Stats()
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if not isinstance(value, Mapping):
        raise errors.ArgumentTypeError(f"{name}: expected statistics, a dict of arrays, got {type(value).__name__}")
    fields = [*Stats._fields, *(field for field in value if _is_quantile(field) and field not in Stats._fields)]
    arrays = {field: _numbers(f"{name}.{field}", value[field]) for field in fields if value.get(field) is not None}
    shapes = {field: array.shape for field, array in arrays.items() if field != "count"}
    if not shapes:
        raise errors.ArgumentError(
            f"{name}: expected some of {', '.join(Stats._fields)}, got {', '.join(map(str, value)) or 'none'}"
        )
    first, shape = next(iter(shapes.items()))
    for field, other in shapes.items():
        if other != shape:
            raise errors.ArgumentError(f"{name}.{field}: expected the shape {shape} of {first}, got {other}")
    if "std" in arrays and (arrays["std"] < 0).any():
        raise errors.ArgumentError(f"{name}.std: expected 0 or more, got {np.nanmin(arrays['std']):g}")
    if "count" in arrays:
        count = arrays["count"]
        if count.shape != shape and count.size != 1:
            raise errors.ArgumentError(f"{name}.count: expected one number or the shape {shape}, got {count.shape}")
        if (wrong := count[~(np.isfinite(count) & (count >= 0))]).size:
            raise errors.ArgumentError(f"{name}.count: expected numbers of rows, got {wrong[0]:g}")
        arrays["count"] = np.broadcast_to(count if count.shape == shape else count.reshape(()), shape)
    return Stats(**arrays, of=of, names=facts.names, units=facts.units, absolute=facts.absolute)


def check_names(name: str, names: Sequence[str] | None, expected: Sequence[str] | None, owner: str) -> None:
    """Refuses features in another order than expected, and warns of other features. `owner` describes the owner of the expected
    names."""
    different = [pair for pair in zip(names or (), expected or (), strict=False) if pair[0] != pair[1]]
    if not different or names is None or expected is None:
        return
    got, wanted = different[0]
    difference = (
        f"feature {list(zip(names, expected, strict=False)).index((got, wanted))} is {got!r}, and {wanted!r} in {owner}"
    )
    if sorted(names) == sorted(expected):
        raise errors.ArgumentError(f"{name}: expected features in the order of {owner}; {difference}")
    warn(f"{name}: statistics of other features than {owner}: {difference}", NormStatsWarning)


# Rows whose std is this many times larger, or smaller, than that of the statistics are in another unit; a radian has 57 degrees.
_LARGER, _SMALLER = 5, 20


def check_absolute(name: str, absolute: bool | None, expected: bool | None, owner: str) -> None:
    """Refuses statistics of relative values where absolute values are expected, and the reverse, if both are known."""
    if None not in (absolute, expected) and absolute is not expected:
        got, wanted = ("absolute" if is_absolute else "relative" for is_absolute in (absolute, expected))
        raise errors.ArgumentError(
            f"{name}: expected statistics of {wanted} values, as of {owner}, got those of {got} ones"
        )


def check_units(name: str, units: Any, expected: Any, owner: str) -> None:
    """Refuses statistics of features in another unit than expected, if both are known. `owner` describes the owner of the
    expected unit."""
    got_units, expected_units = (x if isinstance(x, list) else [x] for x in (units, expected))
    width = max(len(got_units), len(expected_units))
    got_units, expected_units = (
        listed * width if len(listed) == 1 else listed for listed in (got_units, expected_units)
    )
    for feature, pair in enumerate(zip(got_units, expected_units, strict=False)):
        got, wanted = (in_one_spelling(unit) if isinstance(unit, str) else "" for unit in pair)
        if got and wanted and got != wanted:
            raise errors.ArgumentError(
                f"{name}: expected statistics in the unit of {owner}: feature {feature} is in {pair[0]!r}, and in {pair[1]!r} "
                "there"
            )


def beyond_pixels(stats: Mapping[str, Any]) -> float | None:
    """Returns the largest mean or max of a camera's statistics if it is above 1, the largest pixel of a batch; else None."""
    arrays = [np.asarray(stats[name], np.float64) for name in ("mean", "max") if stats.get(name) is not None]
    largest = max((float(np.nan_to_num(x).max(initial=0)) for x in arrays), default=0.0)
    return largest if largest > 1.001 else None


def misfits(stats: Mapping[str, Any], rows: Stats, beyond: float, off: float, few: bool = False) -> list[str]:
    """Returns sentences about features whose statistics cannot be those of the rows.

    Values may lie outside min and max by at most `beyond` times their range, some must lie between q01 and q99, and the mean may
    be off by at most `off` stds. A much larger std of the rows in one feature, or a much smaller one in half of the features,
    shows another unit; `few` rows may have a small std. If the numbers of features differ, the common features are compared,
    since openpi pads its statistics.
    """
    fields = {name: np.ravel(x) for name, x in stats.items() if name in _GROOT and x is not None}
    least, most, mean, spread = (np.ravel(x) for x in (rows.min, rows.max, rows.mean, rows.std))
    names = rows.names or [f"feature {index}" for index in range(len(least))]
    sentences, shares = [], []
    for feature in range(min([len(least), *map(len, fields.values())])):
        low, high, center = least[feature], most[feature], mean[feature]
        values = {name: float(x[feature]) for name, x in fields.items()}
        slack = MIN_SPREAD * max(1, abs(low), abs(high))
        span = f"the rows go from {low:.6g} to {high:.6g}"
        if {"min", "max"} <= values.keys():
            outside = max(values["min"] - low, high - values["max"])
            if outside > slack + beyond * (values["max"] - values["min"]):
                sentences.append(
                    f"{names[feature]}: {span}, its min and max are {values['min']:.6g} and {values['max']:.6g}"
                )
                continue
        if {"q01", "q99"} <= values.keys() and (values["q99"] < low - slack or values["q01"] > high + slack):
            sentences.append(
                f"{names[feature]}: {span}, its q01 and q99 are {values['q01']:.6g} and {values['q99']:.6g}"
            )
        elif {"mean", "std"} <= values.keys():
            is_far = abs(center - values["mean"]) > off * values["std"] + slack
            if is_far or spread[feature] > _LARGER * values["std"] + slack:
                numbers = f"its mean and std are {values['mean']:.6g} and {values['std']:.6g}"
                sentences.append(
                    f"{names[feature]}: the rows' mean is {center:.6g} and std {spread[feature]:.6g}, {numbers}"
                )
            elif values["std"] > slack and spread[feature] > 0:
                shares.append(spread[feature] / values["std"])
    if not sentences and not few and shares and (share := float(np.median(shares))) < 1 / _SMALLER:
        sentences.append(f"half of the features: the rows' std is {share:.2g} times that of the statistics, or less")
    return sentences


def warn_of_misfits(name: str, sentences: Sequence[str], advice: str) -> None:
    """Warns of the results of :func:`misfits`, with the first three features."""
    if sentences:
        more = f"; and {len(sentences) - 3} more" if len(sentences) > 3 else ""
        warn(
            f"{name}: these statistics do not fit the rows: {'; '.join(sentences[:3])}{more}. {advice}",
            NormStatsWarning,
        )


def _is_quantile(field: Any) -> bool:
    return isinstance(field, str) and re.fullmatch(r"q(\d\d(\.\d+)?|100)", field) is not None


def _numbers(name: str, value: Any) -> npt.NDArray[np.float64]:
    torch = _lib.torch_module()
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            raise ValueError(f"{array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(f"{name}: expected an array of numbers, got {error}") from None


def _known_fields(stats: Stats) -> list[str]:
    return [field for field, array in stats._asdict().items() if array is not None]


def _resolve_keys(keys: Mapping[str, str] | None, names: Iterable[str]) -> dict[str, str]:
    """Returns {ours: theirs}; by default every key, under its own name."""
    if keys is None:
        return {key: key for key in names}
    if not isinstance(keys, Mapping):
        raise errors.ArgumentTypeError(f"keys: expected {{ours: theirs}}, got {keys!r}")
    return {_lib.text("keys", ours): _lib.text(f"keys[{ours!r}]", theirs) for ours, theirs in keys.items()}


# ---- Merging ---------------------------------------------------------------------------------------------------------


def merge_stats(stats: Sequence[Mapping[str, Any]], *, weights: Sequence[float] | None = None) -> dict[str, Stats]:
    """Merges the statistics of several datasets. Each row counts once, or each dataset by a weight.

    Args:
        stats: mappings by key, such as ``dataset.stats`` or a result of :func:`load_norm_stats`. A key may be missing in some.
            If several have a key, all of them need its `count`; the result has the fields that all have.
        weights: the share of each dataset, such as its source's weight in a mixture, so that the result describes the drawn
            samples. They need not add up to 1. The datasets without a key do not count for it. None: each dataset weighs as its
            number of rows.

    Returns:
        dict: by key, a :class:`Stats`. `min`, `max` and `count` are exact, `mean` and `std` within the bounds of rule 38.1 of
        docs/rules.md. Quantiles assume that each dataset's rows are spread evenly between its known `min`, `q01`, ..., `q99`,
        `max`; each lies in the same bracket as the true quantile. The order of the datasets does not matter.

    Raises:
        ArgumentError, ArgumentTypeError: there is no dataset, a key has no `count`, shapes differ, or the weights are not one
            number of at least 0 for each dataset, with one above 0.

    Example:
        >>> norm_stats = robocache.merge_stats([kitchen.stats, garage.stats])
        >>> loader = robocache.Loader(
        ...     kitchen, batch_size=64, delta_timestamps={"action": [0.0]}, default=robocache.Window(normalize="mean_std"),
        ...     normalization=robocache.Normalization(norm_stats=norm_stats),
        ... )
    """
    if isinstance(stats, Mapping | str) or not isinstance(stats, Iterable) or getattr(stats, "ndim", 1) == 0:
        raise errors.ArgumentTypeError(f"stats: expected a list of {{key: statistics}}, got {type(stats).__name__}")
    parts: dict[str, dict[str, Stats]] = {}
    stats = list(stats)
    if not stats:
        raise errors.ArgumentError("stats: expected those of one dataset at least, got none")
    for index, by_key in enumerate(stats):
        if not isinstance(by_key, Mapping):
            raise errors.ArgumentTypeError(
                f"stats[{index}]: expected {{key: statistics}}, such as dataset.stats, got {type(by_key).__name__}"
            )
        for key, value in by_key.items():
            name = f"stats[{index}][{key!r}]"
            parts.setdefault(key, {})[name] = as_stats(name, value)
    shares = None if weights is None else _weights_of(weights, len(stats))
    indices = {key: [index for index, by_key in enumerate(stats) if key in by_key] for key in parts}
    return {key: _merge(group, None if shares is None else shares[indices[key]]) for key, group in parts.items()}


def _weights_of(weights: Sequence[float], count: int) -> npt.NDArray[np.float64]:
    numbers = listed(real, "weights", weights, np.float64)
    if len(numbers) != count or not np.isfinite(numbers).all() or (numbers < 0).any() or not (numbers > 0).any():
        raise errors.ArgumentError(
            f"weights: expected {count} finite numbers of at least 0, one of them above 0, got {numbers.tolist()}"
        )
    numbers /= numbers.max()  # so that no sum of them is infinite
    return numbers


def _merge(parts: Mapping[str, Stats], weights: npt.NDArray[np.float64] | None = None) -> Stats:
    """Merges the parts of one key, by their weights or counts. The keys of `parts` are the names for errors."""
    (first, head), *others = parts.items()
    if not others:
        return head
    shape = next(array for array in head if array is not None).shape
    for name, part in parts.items():
        got = next(array for array in part if array is not None).shape
        # A scalar may have the shape () or, as in LeRobot, [1].
        if got != shape and not math.prod(got) == math.prod(shape) == 1:
            raise errors.ArgumentError(f"{name}: expected the shape {shape} of {first}, got {got}")
        if part.count is None:
            raise errors.ArgumentError(
                f"{name}: expected count, the number of rows, to merge it with others, got {', '.join(_known_fields(part))}"
            )
        if head.of != part.of and None not in (head.of, part.of):
            raise errors.ArgumentError(
                f"{name}: expected statistics of {head.of}, as in {first}, got those of {part.of}"
            )
    facts: dict[str, Any] = {}
    for fact, check in (("names", check_names), ("units", check_units), ("absolute", check_absolute)):
        values = {name: getattr(part, fact) for name, part in parts.items() if getattr(part, fact) is not None}
        owner, facts[fact] = next(iter(values.items()), ("", None))  # of the first part that has the fact
        for name, value in values.items():
            check(name, value, facts[fact], owner)
    of = head.of if all(part.of for part in parts.values()) else None
    fields = list(dict.fromkeys(field for part in parts.values() for field in _known_fields(part)))
    common = [field for field in fields if all(getattr(part, field, None) is not None for part in parts.values())]
    if "mean" not in common and "std" in common:
        common.remove("std")
    columns = {field: np.array([np.ravel(getattr(part, field)) for part in parts.values()]) for field in common}
    merged: dict[str, Any] = {field: np.full(columns["count"].shape[1], np.nan) for field in common}
    for feature in range(columns["count"].shape[1]):
        has_rows = columns["count"][:, feature] > 0
        if weights is not None:
            has_rows &= weights > 0
        column = {field: columns[field][has_rows, feature] for field in common}
        with np.errstate(invalid="ignore", over="ignore"):  # ends and means may be infinite
            merged_feature = _merge_feature(column, column["count"] if weights is None else weights[has_rows])
        for field, value in merged_feature.items():
            merged[field][feature] = value
    for field in merged:
        merged[field] = merged[field].reshape(shape)
    return Stats(**merged, of=of, **facts)


def _merge_feature(parts: dict[str, npt.NDArray[np.float64]], weights: npt.NDArray[np.float64]) -> dict[str, float]:
    """Merges one feature: each field has one number per part, and every count and weight is above 0."""
    merged = {"count": math.fsum(parts["count"])}
    if not merged["count"]:
        return merged
    weight = weights / math.fsum(weights)
    if "mean" in parts:
        merged["mean"] = _sum(weight * parts["mean"])
    if "std" in parts:
        merged["std"] = math.sqrt(_sum(weight * (parts["std"] ** 2 + (parts["mean"] - merged["mean"]) ** 2)))
    if "min" in parts:
        merged["min"] = parts["min"].min()
    if "max" in parts:
        merged["max"] = parts["max"].max()
    quantile_fields = [field for field in parts if _is_quantile(field)]
    if quantile_fields:
        knots = {_percent(field): numbers for field, numbers in parts.items() if _percent(field) is not None}
        even_rows = _EvenRows(dict(sorted(knots.items())), weights)
        for field in quantile_fields:
            finite = np.isfinite(parts[field]).all()  # else the quantile would come from the other parts' rows alone
            merged[field] = even_rows.quantile(_percent(field)) if finite else math.nan
    return merged


def _percent(field: str) -> Any:
    """Returns the percentage of rows at or below a field's value; None for fields without one."""
    return {"min": 0, "max": 100}.get(field, float(field[1:]) if _is_quantile(field) else None)


def _sum(terms: npt.NDArray[np.float64]) -> float:
    """Returns a sum that is rounded once, so that the order does not matter. With infinities, for which fsum raises, numpy
    sums."""
    return math.fsum(terms) if np.isfinite(terms).all() else float(terms.sum())


class _EvenRows:
    """The rows of all parts, as if each part's were spread evenly between its knots (its known percentiles). A part has as many
    rows as its weight.

    Rows beyond the outermost finite knot are treated as if they were on it.
    """

    def __init__(self, knots: Mapping[float, npt.NDArray[np.float64]], weights: npt.NDArray[np.float64]) -> None:
        finite = {percent: values for percent, values in knots.items() if np.isfinite(values).all()}
        self._percents = np.array([*finite], np.float64)
        # LeRobot merges quantiles by averaging them, so they may be out of order.
        self._knots = np.maximum.accumulate(np.stack([*finite.values()], 1), axis=1) if finite else np.empty((0, 0))
        self._weights = weights

    def quantile(self, percent: float) -> float:
        """Returns the least value with that percentage of the rows at or below it; NaN if no knot is finite."""
        values = np.unique(self._knots).tolist()
        if not values:
            return math.nan
        target = percent * math.fsum(self._weights)
        index = bisect_left(values, target, hi=len(values) - 1, key=lambda value: self._below(value, "right"))
        value: float = values[index]
        below = self._below(value, "left")
        if index == 0 or below < target:
            return value  # the percentage is reached by rows with this very value
        previous: float = values[index - 1]
        up_to_previous = self._below(previous, "right")
        return min(value, previous + (value - previous) * ((target - up_to_previous) / (below - up_to_previous)))

    def _below(self, value: float, side: str) -> float:
        """Returns 100 times the number of rows below a value; with side="right", at or below it."""
        knots_passed = (self._knots <= value if side == "right" else self._knots < value).sum(1)
        last = self._knots.shape[1] - 1
        left, right = np.clip(knots_passed - 1, 0, last), np.clip(knots_passed, 0, last)
        rows = np.arange(len(knots_passed))
        start, end = self._knots[rows, left], self._knots[rows, right]
        share = np.where(end > start, (value - start) / np.where(end > start, end - start, 1), 0)
        percents = self._percents[left] + (self._percents[right] - self._percents[left]) * share
        percents = np.where(knots_passed == 0, 0, np.where(knots_passed > last, 100, percents))
        return math.fsum(self._weights * percents)


# ---- Files -----------------------------------------------------------------------------------------------------------


def load_norm_stats(path: str | os.PathLike[str], keys: Mapping[str, str] | None = None) -> dict[str, Stats]:
    """Loads statistics from a file of LeRobot, openpi or GR00T. The file's content shows its format.

    Args:
        path: LeRobot's `meta/stats.json` (v2.0, v2.1, v3.0) or `meta/episodes_stats.jsonl` (v2.1: merged as in
            :func:`merge_stats`), openpi's `norm_stats.json`; GR00T's `stats.json`, or its `relative_stats.json`, with
            statistics for each step of relative actions, ``[steps, features]``; or the folder of a dataset or asset.
        keys: ``{ours: theirs}``: the keys to load and their new names; by default all keys, under their own names.

    Returns:
        dict: by key, a :class:`Stats` in the file's shapes (LeRobot has `[1]` for one number); missing fields are None. openpi
            may pad statistics with zeros to its model's width; a loader accepts that.

    Warns:
        NormStatsWarning: openpi's statistics of actions describe the output of its transforms, often actions minus the state
            (DeltaActions).

    Raises:
        FileError: the file is missing or has other content; the message names file and key. Or a folder has both of LeRobot's
            files, and they differ; this happens if a v2.1 set keeps the file of v2.0.
        ArgumentError: `keys` names a missing key.

    Example:
        >>> norm_stats = robocache.load_norm_stats("assets/trossen", keys={"action": "actions", "observation.state": "state"})
    """
    location = Path(_lib.path_text(path))
    file = _find_file(location)
    with naming(file):
        tables, openpi = _read_tables(file)
        keys_of_file = list(dict.fromkeys(key for _, table in tables for key in table))
    chosen = _resolve_keys(keys, keys_of_file)
    loaded = {}
    for ours, theirs in chosen.items():
        if theirs not in keys_of_file:
            raise errors.ArgumentError(
                f"keys[{ours!r}]: expected one of {', '.join(keys_of_file)} of {file}, got {theirs!r}"
            )
        with naming(file):
            parts = {f"{line}{theirs!r}": table[theirs] for line, table in tables if theirs in table}
            loaded[ours] = _merge({name: as_stats(name, value) for name, value in parts.items()})
    episodes_file = file.with_name("episodes_stats.jsonl")
    if file != location and file.name == "stats.json" and episodes_file.exists():
        _check_same(file, {chosen[ours]: stats for ours, stats in loaded.items()}, episodes_file)
    actions = [theirs for theirs in chosen.values() if theirs.startswith("action")]
    if openpi and actions:
        warn(
            f"{file}: openpi's statistics of {', '.join(map(repr, actions))} describe the output of its "
            "transforms, often actions minus the state (DeltaActions); they only fit streams with the same values",
            NormStatsWarning,
        )
    return loaded


def _find_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for file in _FILES:
        if (path / file).exists():
            return path / file
    raise errors.FileError(f"{path}: expected a file of statistics, or a folder with one of {', '.join(_FILES)}")


def _check_same(file: Path, loaded: Mapping[str, Stats], other: Path) -> None:
    """Raises FileError if the statistics of a set and of its episodes do not describe the same rows."""
    episode_stats = load_norm_stats(other)
    for key in loaded.keys() & episode_stats.keys():
        rows = episode_stats[key]
        if any(getattr(rows, field) is None for field in ("mean", "std", "min", "max")):
            continue
        sentences = misfits(loaded[key]._asdict(), rows, beyond=0.01, off=0.1)
        if sentences:
            raise errors.FileError(
                f"{file.parent}: expected statistics of the same rows, got different ones in {file.name} and {other.name} "
                f"({key}: {sentences[0]}); give the file instead of the folder: LeRobot v2.1 reads {other.name}"
            )


def _read_tables(file: Path) -> tuple[list[tuple[str, Mapping[str, Any]]], bool]:
    """Returns (line, statistics by key) for each table in the file, and whether the file is openpi's."""
    text = read_whole(file).decode("utf-8-sig")
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2:
            raise
        # An episode that was recorded again has several lines. LeRobot keeps the last.
        tables: dict[Any, tuple[str, Mapping[str, Any]]] = {}
        for number, line in lines:
            with naming(f"{file}: line {number}"):
                parsed = _check_object("", json.loads(line))
                episode = parsed.get("episode_index")
                key = episode if isinstance(episode, int) else (number,)
                tables[key] = f"line {number}: ", _check_object("stats", parsed.get("stats"))
        return list(tables.values()), False
    parsed = _check_object("", parsed)
    if "norm_stats" in parsed:
        return [("", _check_object("norm_stats", parsed["norm_stats"]))], True
    if "episode_index" in parsed and "stats" in parsed:  # a data set of one episode
        return [("line 1: ", _check_object("stats", parsed["stats"]))], False
    return [("", parsed)], False


def _check_object(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise errors.ArgumentTypeError(
        f"{name}{': ' if name else ''}expected an object by key, got {json.dumps(value):.40}"
    )


def save_norm_stats(
    path: str | os.PathLike[str],
    stats: Mapping[str, Any],
    format: str = "lerobot",
    keys: Mapping[str, str] | None = None,
) -> None:
    """Writes statistics as LeRobot's `meta/stats.json`, openpi's `norm_stats.json`, or GR00T's `stats.json` and
    `relative_stats.json`. A file that is read again gives the same numbers, bit for bit.

    Args:
        path: the file. An existing file is replaced when the new one is complete.
        stats: by key, such as ``dataset.stats`` or a result of :func:`merge_stats`.
        format: ``"lerobot"``: every field, one number as `[1]`, the largest `count` of a key's features; ``"openpi"``: mean,
            std, and q01 and q99 if known, for keys of one dimension; ``"groot"``: mean, std, min, max, q01 and q99,
            ``[features]`` or ``[steps, features]``. GR00T computes its own from windows without padding, as with
            ``Anchors(edges="drop")``.
        keys: ``{ours: theirs}``: the keys to write and their names in the file; by default all keys, under their own names.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid, and nothing is written; the message names the key.
        FileError: the file cannot be written.

    Example:
        >>> robocache.save_norm_stats("assets/arm/norm_stats.json", ds.stats, "openpi", keys={"action": "actions"})
    """
    formats = {"lerobot": _lerobot_fields, "openpi": _openpi_fields, "groot": _groot_fields}
    if _lib.text("format", format) not in formats:
        raise errors.ArgumentError(f"format: expected 'lerobot', 'openpi' or 'groot', got {format!r}")
    if not isinstance(stats, Mapping):
        raise errors.ArgumentTypeError(f"stats: expected {{key: statistics}}, got {type(stats).__name__}")
    chosen = _resolve_keys(keys, stats)
    if len(set(chosen.values())) < len(chosen):
        raise errors.ArgumentError(f"keys: expected different names, got {', '.join(chosen.values())}")
    written = {}
    for ours, theirs in chosen.items():
        if ours not in stats:
            raise errors.ArgumentError(f"keys: expected some of {', '.join(stats)}, got {ours!r}")
        name = f"stats[{ours!r}]"
        written[theirs] = formats[format](name, as_stats(name, stats[ours]))
    text = json.dumps({"norm_stats": written} if format == "openpi" else written, indent=2)
    file = Path(_lib.path_text(path))
    with naming(file):
        write_whole(file, text)


def _lerobot_fields(name: str, stats: Stats) -> dict[str, Any]:
    fields = {
        field: np.atleast_1d(getattr(stats, field)).tolist() for field in _known_fields(stats) if field != "count"
    }
    return fields if stats.count is None else {**fields, "count": [int(stats.count.max(initial=0))]}


def _openpi_fields(name: str, stats: Stats) -> dict[str, Any]:
    fields = {field: getattr(stats, field) for field in _OPENPI}
    for field in ("mean", "std"):
        if fields[field] is None:
            raise errors.ArgumentError(
                f"{name}: expected mean and std for openpi, got {', '.join(_known_fields(stats))}"
            )
    if fields["mean"].ndim > 1:
        raise errors.ArgumentError(f"{name}: expected one dimension for openpi, got the shape {fields['mean'].shape}")
    return {field: None if array is None else np.atleast_1d(array).tolist() for field, array in fields.items()}


def _groot_fields(name: str, stats: Stats) -> dict[str, Any]:
    fields = {field: getattr(stats, field) for field in _GROOT}
    if any(array is None for array in fields.values()):
        raise errors.ArgumentError(
            f"{name}: expected {', '.join(_GROOT)} for GR00T, got {', '.join(_known_fields(stats))}"
        )
    if fields["mean"].ndim > 2:
        raise errors.ArgumentError(
            f"{name}: expected [features] or [steps, features] for GR00T, got the shape {fields['mean'].shape}"
        )
    return {field: np.atleast_1d(array).tolist() for field, array in fields.items()}
