"""Converts a loader's arguments for the library: to one JSON and a list of arrays. The library checks the values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import _lib, errors
from ._check import feature_blocks, listed, number, real, truth, whole, wholes
from .actions.conversions import Relative, StepDelta, conversions_to_json
from .actions.declared import (
    FeatureFacts,
    check_absolute,
    check_alike,
    check_declared,
    declared_relative,
    degrees_of,
    is_absolute,
    misplaced_features,
    relative_names,
    straight_angles,
    subtracted_rotations,
)
from .anchor_columns import AnchorColumns, as_columns, as_ranges
from .dataset import Dataset, Stats, Stream
from .episode_rates import notes_of_rates
from .feature_names import check_orders, compare, note_of_units
from .feature_words import in_one_spelling
from .image_options import ImageOptions
from .norm_stats import MIN_SPREAD, as_stats, check_names, misfits, warn_of_misfits
from .norm_stats import check_absolute as check_absolute_stats
from .norm_stats import check_units as check_units_of_stats
from .options import Anchors, Memory, Moment, Normalization, Ranks, Window
from .sources import (
    Keys,
    Mixture,
    Source,
    check_relative,
    check_rotations,
    check_units,
    own_methods,
    resolve_episodes,
    streams_of,
    units_of,
)
from .tasks import episode_tasks, texts_of_numbers
from .text_keys import TextKey, task_key, text_keys, without_missing

_open = _lib.function("loader_open")

# The library's fields of the loader, of a window and of a source: name -> type. The name `memory.budget` means the field `budget`
# of the argument `memory`. A field whose type is in _CONVERT is read from the argument or the dataclass field with its name.
_FIELDS: dict[str, dict[str, str]] = json.loads(_lib.function("loader_fields")())


def open_loader(
    sources: Sequence[Source],
    mixture: Mixture | None,
    arguments: Mapping[str, Any],
    *,
    device: str,
    rank: int,
    world_size: int,
) -> tuple[Any, dict[str, TextKey], list[str]]:
    """Opens the library's loader. Returns the loader, the keys of texts, which Python handles, and notes for the user.

    Args:
        arguments: the arguments of :class:`robocache.Loader` by name.
        mixture: None for one dataset.
        device, rank, world_size: the values in use, after defaults are found.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it.
    """
    names = [f"sources[{index}]." if mixture is not None else "" for index in range(len(sources))]
    if mixture is not None and arguments["episodes"] is not None:
        raise errors.ArgumentError(f"episodes: each Source has its own, got {arguments['episodes']!r}")
    sources = resolve_episodes(sources, names, arguments["episodes"])
    keys = Keys(sources)
    anchors = as_anchors(arguments["anchors"])
    filters = [_filter_of(*pair, anchors, mixture) for pair in zip(sources, names, strict=True)]
    normalization = of_type("normalization", arguments["normalization"], Normalization)
    memory = of_type("memory", arguments["memory"], Memory)
    ranks = of_type("ranks", arguments["ranks"], Ranks)
    default = _check_default(arguments["default"])
    windows = _as_windows(arguments["delta_timestamps"])
    snap_s = real("snap_s", arguments["snap_s"])
    snap_ns = round(snap_s * 1e9) if 0 <= snap_s <= 1e9 else 0  # the library refuses other values
    texts = _text_keys(sources, names, windows, default, arguments["task_text"], snap_ns)
    sources = without_missing(
        sources, names, {key: texts[key] for key in texts if key in windows}, arguments["missing"]
    )
    pairs = list(zip(sources, names, strict=True))
    windows = {key: window for key, window in windows.items() if key not in texts}
    keys.add_keys(
        {
            key: _lib.text(f"delta_timestamps['{key}'].stream", window.stream)
            for key, window in windows.items()
            if window.stream is not None
        }
    )
    has_other_moment = any(window.moment is not None and window.moment.kind == "other" for window in windows.values())
    if texts and not windows:
        raise errors.ArgumentError(
            f"delta_timestamps: expected a key of numbers or frames beside the texts, got {', '.join(texts)}"
        )
    flips = _flip_directions([default, *windows.values()])
    tiers = memory.residency if isinstance(memory.residency, Mapping) else {}
    for key in tiers:
        if key not in keys:
            raise keys.missing("memory.residency", key)
    notes = []
    for key, window in windows.items():
        stream = window.stream or key
        notes += [_check_orders(key, stream, pairs), _check_numbering(f"delta_timestamps['{key}']", stream, sources)]
    with_loaders_anchors = [pair for pair in pairs if pair[0].anchors is None]
    if anchors.where is not None and len(with_loaders_anchors) > 1:
        notes += _check_where(anchors.where, with_loaders_anchors)
    notes.append(note_of_units([(name, source.dataset, source.episodes) for source, name in pairs]))
    converted = {
        "device": device,
        "mixture": mixture is not None,
        "memory.residency": None if tiers is memory.residency else _lib.text("memory.residency", memory.residency),
        "memory.budget": _budget(memory.budget, device),
        "windows": [
            _convert_window(key, window, default, keys, tiers.get(key), flips) for key, window in windows.items()
        ],
        "sources": [
            _convert_fields("source", {"": source}, name)
            | {
                "rename": {
                    _lib.text(f"{name}rename", stream): _lib.text(f"{name}rename", key)
                    for stream, key in (source.rename or {}).items()
                    if key not in texts
                },
                "filter": _filter_numbers(options, f"{name}anchors."),
            }
            for (source, name), options in zip(pairs, filters, strict=True)
        ],
    }
    groups = {
        "anchors": anchors,
        "normalization": normalization,
        "memory": memory,
        "ranks": replace(ranks, rank=rank, world_size=world_size),
        "default": default,
    }
    groups[""] = SimpleNamespace(**arguments)
    request = _convert_fields("loader", {"": mixture}) | _convert_fields("loader", groups) | converted
    _check_normalization(normalization, [default, *windows.values()])
    if default.images is not None and not keys.cameras.intersection(windows):
        raise errors.ArgumentError("default.images: goes with a camera in the batch, got none")
    arrays: list[Any] = [len(sources)]
    raised: list[BaseException] = []
    for (source, name), options in zip(pairs, filters, strict=True):
        arrays += (
            source.dataset._handle,
            source.episodes,
            *_filter_arrays(options, f"{name}anchors.", source.dataset, snap_ns, raised),
            *_anchor_values(source, name, snap_ns, raised),
            episode_tasks(source.dataset) if has_other_moment else None,
        )
    arrays += _stats(-1, "normalization.norm_stats", normalization.norm_stats, keys, sources, windows, default)
    for index, (source, name) in enumerate(pairs):
        arrays += _stats(index, f"{name}norm_stats", source.norm_stats, keys, [source], windows, default)
    prefetch, reuse = whole("memory.prefetch", memory.prefetch), truth("memory.reuse_buffers", memory.reuse_buffers)
    tensors = [_lib.from_numpy(array) if isinstance(array, np.ndarray) else array for array in arrays]
    try:
        handle = _open(prefetch, reuse, json.dumps(request), *tensors)
    except errors.Error:
        if raised:
            raise raised[0] from None
        raise
    # After the library's checks, so that a note is not about refused arguments.
    notes += [note for key, window in windows.items() for note in _find_notes(key, window, default, keys)]
    return handle, texts, [*filter(None, notes), *notes_of_rates(windows, default, anchors, sources)]


def _check_default(window: Any) -> Window:
    """Returns the default window. Refuses fields that keys cannot share."""
    default: Window = of_type("default", window, Window)
    if (
        isinstance(default.method, list | tuple)
        or default.offsets is not None
        or default.rows is not None
        or any((default.stream, default.moment, default.convert, default.base, default.texts))
    ):
        raise errors.ArgumentError(
            f"default: expected no offsets or rows, one method, no conversions and no texts, since all keys share it, got {default!r}"
        )
    return default


def _check_orders(key: str, stream: str, sources: Sequence[tuple[Source, str]]) -> str | None:
    """Compares the names of features in all sources: see :func:`~.feature_names.check_orders`."""
    streams = [
        (name.replace(".", " "), match, source.dataset, source.episodes)
        for source, name in sources
        for match in streams_of(source, stream)
        if match.kind == "numbers"
    ]
    return check_orders(key, streams)


def _check_where(where: Any, sources: Sequence[tuple[Source, str]]) -> list[str]:
    """Compares the columns of a condition between the sources that share it. Each source comes with its name for errors. Returns notes.

    Raises:
        ArgumentError: in two sources, a column has different units, or its index means different features.
    """
    first: dict[str, tuple[str, Stream, list[str]]] = {}
    numbers: dict[str, None] = {}
    for source, name in sources:
        for column, (stream, feature) in AnchorColumns(source.dataset, 0).features_in("anchors.where", where).items():
            units = [in_one_spelling(unit) for unit in units_of(stream)]
            units = sorted(units) if feature is None else units[feature : feature + 1]
            place = f"{name.replace('.', ' ')}{source.dataset.path}"
            first_place, first_stream, first_units = first.setdefault(column, (place, stream, units))
            pairs = [(a, b) for a, b in zip(first_units, units, strict=False) if a and b and a != b]
            by_index = column == f"{stream.name}[{feature}]"
            if feature is not None and by_index and compare(first_stream.names, stream.names) == "order":
                first_name, feature_name = first_stream.names[feature], stream.names[feature]
                pairs += [(first_name, feature_name)] if first_name != feature_name else []
            if pairs:
                raise errors.ArgumentError(
                    f"anchors.where: expected columns with one meaning in all sources, got {column!r} of {pairs[0][0]!r} in "
                    f"{first_place} and of {pairs[0][1]!r} in {place}; give each Source its own condition by anchors="
                )
            numbers[stream.name] = None
    return [note for name in numbers if (note := _check_numbering("anchors.where", name, [x for x, _ in sources]))]


def _check_numbering(argument: str, key: str, sources: Sequence[Source]) -> str | None:
    """Returns a note if the same whole number of a key has different texts, or different words, in two sources."""
    first: dict[tuple[str, int], dict[str, None]] = {}
    for source in {id(source.dataset): source for source in sources}.values():
        for stream in streams_of(source, key):
            texts = texts_of_numbers(source.dataset, stream)
            meanings_of = {("", code): {text: None} for code, text in texts.items() if text is not None}
            meanings_of = meanings_of or _words(stream)
            for (feature, code), meanings in meanings_of.items():
                first_meanings = first.setdefault((feature, code), meanings)
                if first_meanings.keys().isdisjoint(meanings):
                    number = f"{feature} {code}" if feature else code
                    advice = "convert one of them"
                    if texts:
                        advice = 'Window(texts="indices") numbers the texts of all sources, and a condition may name the text'
                    return (
                        f"{argument}: its sources number {'texts' if texts else 'words'} differently: {number} is {next(iter(first_meanings))!r} in "
                        f"one and {next(iter(meanings))!r} in another; {advice}"
                    )
    return None


def _words(stream: Stream) -> dict[tuple[str, int], dict[str, None]]:
    """Returns the words of a stream's numbers by its attribute `words`, of each feature or of all ("")."""
    declared = stream.attributes.get("words")
    meanings_of: dict[tuple[str, int], dict[str, None]] = {}
    for name, codes in declared.items() if isinstance(declared, Mapping) else ():
        for word, code in codes.items() if isinstance(codes, Mapping) else ((name, codes),):
            if isinstance(code, int):
                meanings_of.setdefault((name if isinstance(codes, Mapping) else "", code), {})[word] = None
    return meanings_of


def _text_keys(
    sources: Sequence[Source],
    names: Sequence[str],
    windows: Mapping[str, Window],
    default: Window,
    task_text: Any,
    snap_ns: int,
) -> dict[str, TextKey]:
    """Returns the keys of the batch that are texts, including the key of `task_text`."""
    has_task = isinstance(task_text, str) or truth("task_text", task_text)
    if has_task and "task" in windows:
        raise errors.ArgumentError("task_text: the batch's key 'task' is already a stream's; rename that")
    texts = text_keys(sources, names, windows, default, snap_ns)
    if has_task:
        texts["task"] = task_key(sources, task_text if isinstance(task_text, str) else None, snap_ns)
    return texts


def as_anchors(anchors: Any) -> Anchors:
    return Anchors(stream=anchors) if isinstance(anchors, str) else of_type("anchors", anchors, Anchors)


def _filter_of(source: Source, name: str, anchors: Anchors, mixture: Mixture | None) -> Anchors:
    """Returns the options that choose among a source's anchors: its own, else the loader's."""
    if source.anchors is None:
        for argument in ("keep", "drop") if mixture is not None else ():
            if getattr(anchors, argument) is not None:
                raise errors.ArgumentError(
                    f"anchors.{argument}: expected none for several sources, since its episodes are of one dataset; set it "
                    "in the anchors of each Source"
                )
        return anchors
    options: Anchors = of_type(f"{name}anchors", source.anchors, Anchors)
    for argument in ("stream", "rate_hz", "edges", "drop_n_last"):
        if (value := getattr(options, argument)) != getattr(Anchors(), argument):
            raise errors.ArgumentError(
                f"{name}anchors.{argument}: expected keep, drop, where, first, last and every alone, got {value!r}; "
                + ("anchor= of the Source names a stream" if argument == "stream" else "all sources share the loader's")
            )
    return options


def chosen_by(sources: Sequence[Source], loaders_anchors: Any, drawn: int, total: int) -> str:
    """Returns a text with the numbers of drawn and of all anchors, and the options that chose them; "" if no option did."""

    def text(anchors: Anchors) -> str:
        ranges = {
            name: len(as_columns(name, x)["episode"])
            for name in ("keep", "drop")
            if (x := anchors.filters.get(name)) is not None
        }
        options = {name: f"{ranges[name]} ranges" if name in ranges else x for name, x in anchors.filters.items()}
        return ", ".join(f"{name}={x}" for name, x in options.items())

    texts = [text(as_anchors(loaders_anchors))] if any(source.anchors is None for source in sources) else []
    texts += [f"sources[{i}]: {text(s.anchors) or 'all'}" for i, s in enumerate(sources) if s.anchors is not None]
    return "; ".join([f"anchors: {drawn} of {total}", *filter(None, texts)]) if any(texts) else ""


def _filter_numbers(anchors: Anchors, name: str) -> dict[str, Any]:
    numbers = {field: _optional(whole, name + field, getattr(anchors, field)) for field in ("first", "last")}
    return {**numbers, "every": whole(f"{name}every", anchors.every)}


def _filter_arrays(
    anchors: Anchors, name: str, dataset: Dataset, snap_ns: int, raised: list[BaseException]
) -> Iterator[Any]:
    """Yields, for keep and for drop, the ranges and whether they count rows; then the condition as a function for the library.
    Errors of that function are appended to `raised`."""
    for argument in ("keep", "drop"):
        table = getattr(anchors, argument)
        ranges, are_rows = (None, False) if table is None else as_ranges(name + argument, table, dataset)
        yield ranges
        yield are_rows
    if anchors.where is None:
        yield None
        return
    true_indices = AnchorColumns(dataset, snap_ns).where(f"{name}where", anchors.where)

    def where(episodes: np.ndarray, times: np.ndarray) -> np.ndarray:
        is_kept = np.zeros(len(times), np.uint8)
        is_kept[true_indices(episodes, times)] = 1
        return is_kept

    yield _as_callback(where, np.dtype(np.uint8), raised)


def _anchor_values(source: Source, name: str, snap_ns: int, raised: list[BaseException]) -> tuple[Any, bool]:
    """Returns the function for the anchors' weights, or for the codes of their balanced values, and whether it returns
    codes."""
    if source.weight_by is None and source.balance is None:
        return None, False
    if source.weight_by is not None and source.balance is not None:
        raise errors.ArgumentError(f"{name}weight_by, balance: expected only one of them, got both")
    columns = AnchorColumns(source.dataset, snap_ns)
    if source.balance is not None:
        return _as_callback(columns.codes(f"{name}balance", source.balance), np.dtype(np.float64), raised), True
    return _as_callback(columns.weights(f"{name}weight_by", source.weight_by), np.dtype(np.float64), raised), False


def _as_callback(values_at: Any, dtype: np.dtype, raised: list[BaseException]) -> Any:
    """Returns a function for the library. The library calls it with the number of anchors and the addresses of their episodes,
    times and values."""

    def callback(count: int, episodes: int, times: int, values: int) -> bool:
        try:
            anchors = [_lib.array_at(None, x, (count,), np.dtype(np.int64), read_only=True) for x in (episodes, times)]
            _lib.array_at(None, values, (count,), dtype, read_only=False)[:] = values_at(*anchors)
        except BaseException as error:
            raised.append(error)
            return False
        return True

    return callback


def as_window(key: str, entry: Any) -> Window:
    """Returns a key's entry of `delta_timestamps` as a Window. The entry may be a list of offsets."""
    return entry if isinstance(entry, Window) else Window(entry)


def of_type(name: str, value: Any, kind: Any) -> Any:
    """Returns the argument, which must be of this dataclass; for None the dataclass with its defaults."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise errors.ArgumentTypeError(f"{name}: expected a {kind.__name__}, got {value!r}")
    return value


def _as_windows(entries: Any) -> dict[str, Window]:
    if not isinstance(entries, Mapping):
        raise errors.ArgumentTypeError(f"delta_timestamps: expected {{key: offsets or Window}}, got {entries!r}")
    windows = {_lib.text("delta_timestamps", key): as_window(key, window) for key, window in entries.items()}
    for key, window in windows.items():
        if window.moment is not None and not isinstance(window.moment, Moment):
            raise errors.ArgumentTypeError(
                f"delta_timestamps['{key}'].moment: expected the moment of Window.future, last, geometric or other, "
                f"got {window.moment!r}"
            )
    return windows


def _find_notes(key: str, window: Window, default: Window, keys: Keys) -> Iterator[str]:
    """Yields notes about a window that contradicts its stream's attributes about rotations, angles and held numbers."""
    streams = keys.numbers.get(key, [])
    declared = streams[0].attributes.get("methods", []) if streams else []
    methods = [x for x in declared if isinstance(x, list) and len(x) == 3] if isinstance(declared, list) else []
    method = default.method if window.method is None else window.method
    if not window.rows and method in ("linear", "pchip", "akima") and any(block[2] != method for block in methods):
        blocks = [f"{block_method} [{start}:{stop}]" for start, stop, block_method in methods]
        examples = ", ".join(blocks[:4]) + ", ..." * (len(blocks) > 4)
        yield (
            f"delta_timestamps['{key}'].method: '{method}' overrides the stream's own methods, {examples}: between rows these "
            "features are interpolated one by one, and the result is no rotation; leave method out for the stream's own, or "
            "set [(slice, method), ...]"
        )
    relative_by = [declared_relative(stream.attributes) for stream in streams]
    if any(relative_by) and not all(relative_by):
        yield (
            f"delta_timestamps['{key}']: {relative_by.count('')} of {len(relative_by)} sources do not say that they are "
            f"relative, but another does ({next(filter(None, relative_by))}): absolute and relative numbers are different "
            "quantities; rename= gives each its own key"
        )
    if straight := straight_angles(window.convert or (), methods, keys.get(key, 0)):
        yield (
            f"delta_timestamps['{key}'].convert: features {straight} are angles by the stream's methods: their differences "
            "jump by 2 pi where an angle wraps; angles=[...] of the conversion takes the shorter way round"
        )
    features = keys.get(key, 0)
    relative = [name for stream in streams for name in relative_names(window.convert or (), _facts(stream), features)]
    if relative:
        yield (
            f"delta_timestamps['{key}'].convert: {list(dict.fromkeys(relative))} are relative already by their names: a "
            "conversion makes them relative twice; leave it out, or set absolute = true in the attributes of a mapping if "
            "the names are wrong"
        )
    base, base_indices = (
        window.base if isinstance(window.base, list | tuple) and len(window.base) == 2 else (window.base, None)
    )
    base_streams = keys.numbers.get(base, []) if isinstance(base, str) else []
    base_facts = [
        _facts(x).select(range(math.prod(x.shape)) if base_indices is None else base_indices) for x in base_streams
    ]
    if relative := [name for facts in base_facts for name in relative_names(window.convert or (), facts, features)]:
        yield (
            f"delta_timestamps['{key}'].base: {list(dict.fromkeys(relative))} of '{base}' are relative by their names, so "
            "they are no state; take another base, or set absolute = true in the attributes of a mapping if the names are "
            "wrong"
        )
    for base_stream in base_streams if streams else ():
        indices = range(features) if base_indices is None else base_indices
        for feature_name, base_name in misplaced_features(
            window.convert or (), _facts(streams[0]), _facts(base_stream), indices, features
        )[:1]:
            yield (
                f"delta_timestamps['{key}'].base: {feature_name!r} is compared with {base_name!r} of '{base}', which has "
                f"{feature_name!r} too; base=(key, [indices]) names its features in this key's order"
            )
    rotations = subtracted_rotations(window.convert or (), _facts(streams[0]), keys.get(key, 0)) if streams else []
    if rotations:
        yield (
            f"delta_timestamps['{key}'].convert: features {rotations} are a rotation's by the stream's names or methods, and "
            "are subtracted one by one, so the result is no rotation; use Relative('se3', rotation=...), or exclude them by "
            "mask=[...]"
        )


def _convert_window(
    key: str, window: Window, default: Window, keys: Keys, residency: Any, flips: set[str]
) -> dict[str, Any]:
    name = f"delta_timestamps['{key}']"
    one_step = window.offsets is None
    offsets = [0.0] if one_step else listed(real, name, window.offsets, np.float64).tolist()
    if window.images is not None and not isinstance(window.images, ImageOptions):
        raise errors.ArgumentTypeError(f"{name}.images: expected ImageOptions, got {window.images!r}")
    blocks: Any = []
    method_is_asked = True
    if isinstance(window.method, list | tuple):
        blocks, window = window.method, replace(window, method=None)
    elif window.method is None and default.method is None and key in keys.numbers:
        blocks, method_is_asked = own_methods(key, keys.numbers[key]), False
    check_units(key, keys.numbers.get(key, ()))
    check_rotations(key, keys.numbers.get(key, ()))
    check_relative(key, keys.numbers.get(key, ()))
    fields = _convert_fields("window", {"": replace(window, base=None)}, f"{name}.")
    images = window.images or (default.images if key in keys.cameras else None)
    if window.mirror is not None and key in keys.cameras:
        raise errors.ArgumentError(
            f"{name}.mirror: expected none for a camera, whose images flip, got {window.mirror!r}"
        )
    if images is not None and images.dtype is None:
        default_dtype = "uint8" if images.transform is not None else _optional(_dtype, "default.dtype", default.dtype)
        dtype = fields["dtype"] or default_dtype
        images = replace(images, dtype="float32" if dtype == "float64" and window.dtype is None else dtype)
    if images is not None and key in keys.labels:
        images = _options_for_labels(f"{name}.images", images)
    argument, features = f"{name}.method", keys.get(key, 0)
    methods = [
        [
            0 if start is None else whole(argument, start),
            features if stop is None else whole(argument, stop),
            _lib.text(argument, method),
        ]
        for start, stop, method in feature_blocks(argument, blocks)
    ]
    method = default.method if window.method is None and not methods else window.method
    _check_radians(argument, [*methods, [0, features, method]], keys.numbers.get(key, ()))
    return fields | {
        "key": key,
        "offsets_s": [_json_number(offset) for offset in offsets],
        "one_step": one_step,
        "methods": methods,
        "method_asked": method_is_asked,
        "images": None if images is None else json.loads(images.to_json()),
        "residency": _optional(_lib.text, f"memory.residency['{key}']", residency),
        "moment": window.moment
        and {
            name: value if name == "kind" else _json_number(real(f"{name}.moment", value))
            for name, value in vars(window.moment).items()
        },
        **_conversion_fields(name, window, key, keys),
        **(
            {}
            if key in keys.cameras
            else _mirror_fields(name, default.mirror if window.mirror is None else window.mirror, flips)
        ),
    }


def _flip_directions(windows: Iterable[Window]) -> set[str]:
    images = [window.images for window in windows if isinstance(window.images, ImageOptions)]
    return {flip for flip in ("horizontal", "vertical") if any(getattr(x, f"flip_{flip}") for x in images)}


def _mirror_fields(name: str, mirror: Any, flips: set[str]) -> dict[str, Any]:
    """Returns the features that each flip mirrors. A list is allowed if images flip in one direction only."""
    if mirror is None:
        return {}
    if not isinstance(mirror, Mapping):
        mirror = wholes(f"{name}.mirror", mirror).tolist()
        if mirror and flips == {"horizontal", "vertical"}:
            raise errors.ArgumentError(
                f"{name}.mirror: expected {{'horizontal': [...], 'vertical': [...]}}, since the images flip both ways, got "
                f"{mirror!r}"
            )
        mirror = dict.fromkeys(("horizontal", "vertical"), mirror)
    for flip in mirror:
        if flip not in ("horizontal", "vertical"):
            raise errors.ArgumentError(f"{name}.mirror: expected 'horizontal' and 'vertical', got {flip!r}")
    return {f"mirror_{flip}": wholes(f"{name}.mirror", features).tolist() for flip, features in mirror.items()}


def _options_for_labels(name: str, images: ImageOptions) -> ImageOptions:
    """Returns the image options for frames of labels, which must not mix or change pixel values."""
    for option in ("blur", "brightness", "contrast", "saturation", "hue", "erase"):
        if getattr(images, option) not in (None, 0):
            raise errors.ArgumentError(
                f"{name}.{option}: expected none for labels, by the stream's name or its attribute 'labels'; give this key "
                "its own ImageOptions, or set labels = false in the attributes of a mapping"
            )
    return replace(images, interpolation="nearest") if images.interpolation == "bilinear" else images


def _conversion_fields(name: str, window: Window, key: str, keys: Keys) -> dict[str, Any]:
    """Returns the fields of a window's conversions and of their base."""
    features = keys.get(key, 0)
    base: Any = window.base
    base_indices: list[int] = []
    if base is not None and not isinstance(base, str):
        try:
            base, indices = base
            base_indices = wholes(f"{name}.base", indices).tolist()
        except (TypeError, ValueError):
            raise errors.ArgumentTypeError(
                f"{name}.base: expected a key, or (key, [indices]), got {window.base!r}"
            ) from None
    convert = None if window.convert is None else conversions_to_json(f"{name}.convert", window.convert, features)
    declared = [_facts(stream) for stream in keys.numbers.get(key, ()) if convert]
    for facts in declared:
        check_absolute(f"{name}.convert", window.convert, facts)
        check_declared(f"{name}.convert", window.convert, facts)
    comparisons = [x for x in window.convert or () if isinstance(x, Relative | StepDelta)]
    for stream in keys.numbers.get(base, ()) if comparisons and isinstance(base, str) else ():
        read_indices = base_indices or list(range(math.prod(stream.shape)))
        if len(read_indices) != features:  # the library refuses it
            continue
        base_facts = _facts(stream).select(read_indices)
        check_absolute(f"{name}.base: '{base}'", comparisons, base_facts)
        check_declared(f"{name}.base: '{base}'", comparisons, base_facts)
        for facts in declared:
            if compare(facts.names, base_facts.names) == "order":
                index = next(i for i, (a, b) in enumerate(zip(facts.names, base_facts.names, strict=False)) if a != b)
                raise errors.ArgumentError(
                    f"{name}.base: expected features of '{base}' in the order of this key's, got feature {index} is "
                    f"{facts.names[index]!r} and {base_facts.names[index]!r}; base=(key, [indices]) gives their order"
                )
            check_alike(f"{name}.base", comparisons, facts, base_facts)
    return {
        "convert": convert,
        "base": _optional(_lib.text, f"{name}.base", base),
        "base_features": base_indices,
    }


def _check_radians(name: str, blocks: Sequence[Any], streams: Sequence[Stream]) -> None:
    """Refuses the method "angle", which wraps at 2 pi, for features in degrees by their names or units."""
    for begin, end, method in blocks:
        for stream in streams if method == "angle" else ():
            features = range(math.prod(stream.shape))[begin:end]
            if word := degrees_of(_facts(stream), features):
                raise errors.ArgumentError(
                    f"{name}: expected radians for 'angle', got {word!r} by the units or names of stream '{stream.name}'; "
                    "use 'previous' for degrees, or convert them to radians before they are stored"
                )


def _facts(stream: Stream) -> FeatureFacts:
    return FeatureFacts(stream.names, units_of(stream), stream.attributes, stream.name)


def _check_normalization(normalization: Normalization, windows: Sequence[Window]) -> None:
    if any(window.normalize not in (None, "none") for window in windows):
        return
    is_set = {
        "norm_stats": normalization.norm_stats is not None,
        "constant": normalization.constant != "center",
        "stats_of": normalization.stats_of != "selection",
        "min_spread": normalization.min_spread != MIN_SPREAD,
        "clip": normalization.clip,
    }
    for name in (name for name, value in is_set.items() if value):
        raise errors.ArgumentError(f"normalization.{name}: expected a Window with normalize=, got none")


def _budget(budget: Any, device: str) -> dict[str, Any]:
    """Returns the bytes or shares of the device's memory and of the host's."""
    if not isinstance(budget, Mapping):
        budget = {"device" if device.startswith("cuda") else "host": budget}
    for memory in budget:
        if memory not in ("device", "host"):
            raise errors.ArgumentError(f"memory.budget: expected 'device' and 'host', got {memory!r}")
    return {memory: _optional(_json_share, "memory.budget", value) for memory, value in budget.items()}


def _stats(
    source: int,
    name: str,
    by_key: Any,
    keys: Keys,
    sources: Sequence[Source],
    windows: Mapping[str, Window],
    default: Window,
) -> list[Any]:
    """Returns the statistics for keys of the batch that `sources` fill, as arguments for the library."""
    if by_key is None:
        return []
    if not isinstance(by_key, Mapping):
        raise errors.ArgumentTypeError(f"{name}: expected {{key: statistics}}, got {by_key!r}")
    if not any(key in keys for key in by_key):
        got = ", ".join(map(str, by_key))
        raise errors.ArgumentError(f"{name}: expected statistics of {', '.join(keys)}, got of {got}")
    arrays: list[Any] = []
    streams = Keys(sources).numbers
    for key, value in by_key.items():
        if key in keys:
            stats = as_stats(f"{name}[{key!r}]", value)
            for stream in streams.get(windows[key].stream or key, ()) if key in windows else ():
                owner = f"the stream '{stream.name}'"
                check_names(f"{name}[{key!r}]", stats.names, stream.names, owner)
                check_units_of_stats(f"{name}[{key!r}]", stats.units, stream.attributes.get("units"), owner)
                if not windows[key].convert:
                    expected = is_absolute(stream.attributes)
                    check_absolute_stats(f"{name}[{key!r}]", stats.absolute, expected, owner)
            fields = {field: array for field, array in stats._asdict().items() if array is not None}
            table = np.stack([array.ravel() for array in fields.values()])
            steps = _steps_of(next(iter(fields.values())).shape, keys.numbers.get(key, []), windows.get(key))
            if key in windows and not steps:
                _check_rows(f"{name}[{key!r}]", key, stats, sources, windows[key], default)
            arrays += source, key, stats.of or "", steps, ",".join(fields), table
    return arrays


def _check_rows(name: str, key: str, stats: Stats, sources: Sequence[Source], window: Window, default: Window) -> None:
    """Warns of statistics that cannot describe the drawn rows, such as those in another unit, or from an outdated file.

    The rows may exceed min and max by half their range, as a validation set's rows do.
    """
    if window.convert or window.normalize == "none" or (window.normalize or default.normalize or "none") == "none":
        return
    for source in sources:
        if source.norm_stats is not None and key in source.norm_stats and not name.startswith("sources["):
            continue  # the source has its own statistics
        for stream in (x.name for x in streams_of(source, window.stream or key) if x.kind == "numbers"):
            messages = _misfits(stats, source.dataset.stats[stream], len(source.dataset))
            if messages and source.episodes is not None and (episodes := len(source.episodes)):
                messages = _misfits(stats, source.dataset.statistics(episodes=source.episodes)[stream], episodes)
            advice = f"Normalise by the dataset's own: leave {key!r} out of norm_stats"
            warn_of_misfits(name, messages, advice)


def _misfits(stats: Stats, rows: Stats, episodes: int) -> list[str]:
    """Compares statistics with those of the rows. The mean may be off by one standard deviation and three standard errors. A standard
    error is that of as many samples as there are episodes, since the rows of an episode are alike."""
    return misfits(stats._asdict(), rows, beyond=0.5, off=1 + 3 / math.sqrt(max(episodes, 1)), few=episodes < 3)


def _steps_of(shape: tuple[int, ...], streams: Sequence[Stream], window: Window | None) -> int:
    """Returns the number of steps of statistics whose first axis is steps; 0 if they have no such axis."""
    if window is None or not streams:
        return 0
    axis_count = len(streams[0].shape)
    if axis_count == 0:  # a scalar may have the shape [1]
        steps = 1 if window.offsets is None else len(window.offsets)
        return steps if len(shape) > 1 or shape == (steps,) != (1,) else 0
    return shape[0] if len(shape) == axis_count + 1 else 0


# ---- one value ----


def _number(name: str, value: Any) -> Any:
    return _json_number(real(name, value))


def _json_number(value: float) -> Any:
    """Returns the number for JSON. Infinity and NaN, which JSON lacks, become text."""
    return value if math.isfinite(value) else str(value)


def _json_share(name: str, value: Any) -> Any:
    share = number(name, value)
    return whole(name, share) if isinstance(share, int) else _json_number(share)


def _dtype(name: str, value: Any) -> str:
    try:
        return _lib.dtype_name(value)
    except errors.ArgumentTypeError:
        raise errors.ArgumentTypeError(f"{name}: expected a dtype or its name, got {value!r}") from None


def _optional(convert: Any, name: str, value: Any) -> Any:
    return None if value is None else convert(name, value)


# Converts a value for the library, by the type of its field.
_CONVERT: dict[str, Any] = {"bool": truth, "int": whole, "float": _number, "text": _lib.text, "dtype": _dtype}


def _convert_fields(kind: str, groups: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the library's fields of a kind by name, from attributes of the groups. None stays None if it is the default.

    Args:
        groups: the objects with the fields, by the prefix before the dot in a field's name, or by "".
        prefix: precedes the field's name in errors.
    """
    converted = {}
    for name, type_ in _FIELDS[kind].items():
        group, _, attribute = name.rpartition(".")
        holder = groups.get(group)
        if type_ in _CONVERT and hasattr(holder, attribute):
            value = getattr(holder, attribute)
            is_default = value is None and getattr(type(holder), attribute, "") is None
            converted[name] = None if is_default else _CONVERT[type_](prefix + name, value)
    return converted
