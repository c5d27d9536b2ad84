"""The sources of a loader: datasets, their episodes, and the keys that their streams fill."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import errors
from ._check import wholes
from .actions.declared import declared_absolute, declared_relative, declared_rotations
from .dataset import Dataset, Stream
from .dataset import open as open_dataset
from .feature_words import in_one_spelling
from .frames import is_labels

if TYPE_CHECKING:
    from .options import Anchors


@dataclass(frozen=True, repr=False)
class Source:
    """A source of a mixture: episodes of a dataset.

    Args:
        dataset: a :class:`Dataset` or the path of a cache. Several sources may use one dataset.
        weight: the source's share of the draws, in any unit. Either all sources of a loader have a weight, or none.
        episodes: the episodes to draw from: their indices, or a condition as :meth:`Dataset.select` takes it. None: all.
        rename: ``{stream: key}``: the batch's key that a stream fills, if the key is not the stream's name.
        norm_stats: ``{key: statistics}`` for normalising, instead of the dataset's.
        anchor: the stream or key whose ticks are the anchors, instead of the loader's.
        anchors: an :class:`Anchors` whose keep, drop, where, first, last and every replace the loader's for this source.
        weight_by: a column of numbers, as in :class:`Anchors`, such as ``"return"`` of a stream or of the episodes. An anchor
            is drawn in proportion to its value, which is finite and not negative; one of 0 is neither drawn nor numbered. With
            more than 512 different weights, neighbouring ones form a group: it has the sum of their shares, and its anchors are
            drawn equally often. Shares are rounded to 1/65,536, but not to 0. The anchors of a group come once each before one
            comes twice.
        balance: a column, such as ``"task"``: each value of the column, null too, has the same share of the draws, to within
            one draw of 65,536. With `weight_by` or `balance`, sources without weights weigh as their anchors, and anchors are
            numbered group after group, by weight or as values come.
        name: the source's name for :meth:`Loader.set_weights`. None: the name of the dataset's folder.
    """

    dataset: Dataset
    weight: float | None = None
    episodes: Any = None
    rename: Mapping[str, str] | None = None
    norm_stats: Mapping[str, Any] | None = None
    anchor: str | None = None
    anchors: Anchors | None = None
    weight_by: str | None = None
    balance: str | None = None
    name: str | None = None

    if TYPE_CHECKING:  # as the dataclass, but a path is allowed and is opened as a dataset

        def __init__(
            self,
            dataset: Dataset | str | os.PathLike[str],
            weight: float | None = None,
            episodes: Sequence[int] | Mapping[str, Any] | Any = None,
            rename: Mapping[str, str] | None = None,
            norm_stats: Mapping[str, Any] | None = None,
            anchor: str | None = None,
            anchors: Anchors | None = None,
            weight_by: str | None = None,
            balance: str | None = None,
            name: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.dataset, str | os.PathLike):
            object.__setattr__(self, "dataset", open_dataset(self.dataset))
        if isinstance(self.episodes, Iterator):  # it is read more than once: by loaders, and by their pickles
            object.__setattr__(self, "episodes", list(self.episodes))

    def __repr__(self) -> str:
        """Shows the fields that are not None: lists by their length, statistics by their keys."""
        parts = [repr(self.dataset)]
        parts += [
            f"{name}={x!r}"
            for name in ("name", "weight", "rename", "anchor", "anchors", "weight_by", "balance")
            if (x := getattr(self, name)) is not None
        ]
        if self.episodes is not None:
            has_length = hasattr(self.episodes, "__len__") and not isinstance(self.episodes, Mapping)
            parts.append(f"{len(self.episodes)} episodes" if has_length else f"episodes={self.episodes!r}")
        parts += [] if self.norm_stats is None else [f"norm_stats of {', '.join(self.norm_stats)}"]
        return f"robocache.Source({', '.join(parts)})"


@dataclass(frozen=True)
class Mixture:
    """Several sources for a :class:`Loader`, drawn as one dataset.

    Without weights each anchor of all sources is drawn once an epoch. With weights each source has its exact share of every
    65,536 draws from the first on, by largest remainder, the earlier of equals; a share of 0 is refused. Epoch e begins with
    draw e times `samples_per_epoch`. Without shuffling a block holds the first source's draws, then the second's. A source's
    anchors are drawn one after the other, round after round, across epochs; :meth:`Loader.set_weights` changes the weights. A
    Loader also takes a list of sources.

    A source fills a key by the stream that its `rename` maps to it, else by the one of that name. Two streams for one key, a
    key in no source, and a source without any key are refused. A source without the key gives 0, ``is_pad`` and
    ``feature_is_pad`` true, and the age that is the least int64. A key has one dtype in all sources, or is floating in all; its
    methods, durations and offsets are the same in all.

    Refused are the same feature names in another order (of sources, statistics, a conversion's base), other units and relative
    beside absolute (of sources and statistics), another ``rotation_type`` (of sources), and a `where` for several sources if a
    column has other units or its index is another feature's. Other names, and columns that say other units, are a warning.
    Statistics from a file have neither names nor units.

    Args:
        sources: the list of :class:`Source`.
        temperature: instead of weights: a source's weight is its number of anchors to the power 1/`temperature`.
        samples_per_epoch: with weights or a temperature: the draws of an epoch. None: the number of all anchors.
        pad_features: streams of one key may differ in width between sources: rows of one axis are filled with 0
            up to the widest, after normalisation.
    """

    sources: Sequence[Source]
    temperature: float | None = None
    samples_per_epoch: int | None = None
    pad_features: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.sources, list):  # a copy: later changes by the caller have no effect
            object.__setattr__(self, "sources", list(self.sources))


def as_sources(dataset: Any) -> tuple[list[Source], Mixture | None]:
    """Returns the sources, and the mixture that holds them; None for one dataset."""
    if isinstance(dataset, Dataset | str | os.PathLike):
        return [Source(dataset)], None
    if isinstance(dataset, Source):
        dataset = [dataset]
    mixture = dataset if isinstance(dataset, Mixture) else Mixture(dataset)
    sources = mixture.sources
    if not isinstance(sources, list | tuple) or not sources:
        raise errors.ArgumentTypeError(
            "dataset: expected what robocache.open() gave, a path, a Mixture or a list of Source, got "
            f"{type(sources).__name__}"
        )
    for index, source in enumerate(sources):
        if not isinstance(source, Source):
            raise errors.ArgumentTypeError(f"sources[{index}]: expected a Source, got {type(source).__name__}")
        if not isinstance(source.dataset, Dataset):
            raise errors.ArgumentTypeError(
                f"sources[{index}].dataset: expected what robocache.open() gave, got {type(source.dataset).__name__}"
            )
    return list(sources), mixture


def resolve_episodes(sources: Sequence[Source], names: Sequence[str], episodes: Any) -> list[Source]:
    """Returns the sources with arrays of episodes. A source without its own episodes gets `episodes`. `names` begin the messages
    of errors, such as ``"sources[0]."``."""
    for source, name in zip(sources, names, strict=True):
        if source.rename is not None and not isinstance(source.rename, Mapping):
            raise errors.ArgumentTypeError(f"{name}rename: expected {{stream: key}}, got {source.rename!r}")
    resolved = []
    for source, name in zip(sources, names, strict=True):
        given = episodes if source.episodes is None else source.episodes
        chosen = select_episodes(source.dataset, f"{name}episodes", given)
        resolved.append(replace(source, episodes=None if chosen is None else wholes(f"{name}episodes", chosen)))
    return resolved


def select_episodes(dataset: Dataset, name: str, episodes: Any) -> Any:
    """Replaces a condition by the indices of its episodes, and returns anything else as it is.

    Raises:
        ArgumentError: no episode meets the condition.
    """
    if episodes is None or not (isinstance(episodes, Mapping) or type(episodes).__module__.startswith("pyarrow")):
        return episodes
    indices = dataset.select(episodes)
    if not indices:
        raise errors.ArgumentError(f"{name}: no episode of {dataset.path} meets the condition")
    return indices


def key_of(source: Source, stream: str) -> str:
    """Returns the batch's key that a source's stream fills."""
    return (source.rename or {}).get(stream, stream)


def streams_of(source: Source, key: str) -> list[Stream]:
    """Returns the streams of a source that fill a key."""
    return [stream for name, stream in source.dataset.streams.items() if key_of(source, name) == key]


class Keys(dict[str, int]):
    """The possible keys of a batch, with the number of features of a row.

    cameras, labels, ragged: the sets of keys of each kind; ragged keys include texts, and cameras include labels.
    numbers: the streams of numbers that fill each key.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.cameras: set[str] = set()
        self.labels: set[str] = set()
        self.ragged: set[str] = set()
        self.numbers: dict[str, list[Stream]] = {}
        for source in sources:
            for name, stream in source.dataset.streams.items():
                key = key_of(source, name)
                self[key] = max(self.get(key, 0), math.prod(stream.shape))
                if stream.kind == "frames" and is_labels(name, stream.attributes):
                    self.labels.add(key)
                if stream.kind == "numbers":
                    self.numbers.setdefault(key, []).append(stream)
                else:
                    (self.cameras if stream.kind == "frames" else self.ragged).add(key)
        self._where = sources[0].dataset.path if len(sources) == 1 else "any source"

    def add_keys(self, others: Mapping[str, str]) -> None:
        """Adds keys that another key's stream fills: ``{key: the other key}``. The library refuses an unknown stream."""
        features, numbers = dict(self), dict(self.numbers)
        kinds = [(kind, set(kind)) for kind in (self.cameras, self.labels, self.ragged)]
        for key, other in others.items():
            self[key] = features.get(other, 0)
            self.numbers.pop(key, None)
            if other in numbers:
                self.numbers[key] = numbers[other]
            for kind, keys_before in kinds:
                (kind.add if other in keys_before else kind.discard)(key)

    def missing(self, argument: str, key: Any) -> errors.ArgumentError:
        """Returns the error for an argument that names an unknown stream."""
        names = ", ".join(self) or "none"
        return errors.ArgumentError(f"{argument}: no stream {key!r} in {self._where}; there are {names}")


def check_units(key: str, streams: Sequence[Stream]) -> None:
    """Checks that the streams of a key have the same unit for each feature, if they name units.

    Raises:
        ArgumentError: their units differ.
    """
    first_units: dict[int, str] = {}
    for stream in streams:
        for feature, unit in enumerate(units_of(stream)):
            if not unit:
                continue
            first_unit = first_units.setdefault(feature, unit)
            if in_one_spelling(first_unit) != in_one_spelling(unit):
                raise errors.ArgumentError(
                    f"delta_timestamps['{key}']: expected sources of one unit, got {first_unit!r} and {unit!r} of feature "
                    f"{feature}, as the attributes of their streams say; convert one, or rename= gives it a key of its own"
                )


def check_rotations(key: str, streams: Sequence[Stream]) -> None:
    """Checks that the streams of a key have one form of rotations, if their attributes name it.

    Raises:
        ArgumentError: their forms differ.
    """
    first: dict[str, tuple[str, Any]] = {}
    for stream in streams:
        for attribute, form in declared_rotations(stream.attributes).items():
            value = stream.attributes[attribute]
            other, other_value = first.setdefault(attribute, (form, value))
            if form.partition("_")[0] == other:  # another form names its order too
                first[attribute] = form, value
            elif form not in (other, other.partition("_")[0]):
                raise errors.ArgumentError(
                    f"delta_timestamps['{key}']: expected sources of one form of rotations, got {attribute} = "
                    f"{other_value!r} and {value!r}, as the attributes of their streams say; rename= gives each a key of its "
                    "own, and convert= one form"
                )


def check_relative(key: str, streams: Sequence[Stream]) -> None:
    """Checks that the streams of a key are all relative or all absolute, if their attributes say which.

    Raises:
        ArgumentError: one is relative, another absolute.
    """
    relative, absolute = (
        next(filter(None, (declared(stream.attributes) for stream in streams)), "")
        for declared in (declared_relative, declared_absolute)
    )
    if relative and absolute:
        raise errors.ArgumentError(
            f"delta_timestamps['{key}']: expected sources that are all relative or all absolute, got {relative} and "
            f"{absolute}, as the attributes of their streams say; rename= gives each a key of its own"
        )


def units_of(stream: Stream) -> list[str]:
    """Returns the unit of each feature from the stream's attributes; "" for an unnamed unit."""
    units = stream.attributes.get("units")
    feature_units = units if isinstance(units, list) else [units] * math.prod(stream.shape)
    return [unit.strip() if isinstance(unit, str) else "" for unit in feature_units]


def own_methods(key: str, streams: Sequence[Stream]) -> list[tuple[slice, str]]:
    """Returns the methods of interpolation that a key's streams declare; [] if they declare none.

    Raises:
        ArgumentError: their methods differ, or are no list of [start, stop, method].
    """
    methods = streams[0].attributes.get("methods", [])
    for stream in streams:
        other = stream.attributes.get("methods", [])
        if other != methods:
            raise errors.ArgumentError(
                f"delta_timestamps['{key}'].method: expected one, since the attributes of its sources differ: {methods} and "
                f"{other}"
            )
    blocks = []
    for block in methods if isinstance(methods, list) else [methods]:
        match block:
            case [int(start), int(stop), str(method)]:
                blocks.append((slice(start, stop), method))
            case _:
                raise errors.ArgumentError(
                    f"stream '{streams[0].name}': attributes['methods']: expected [[start, stop, method], ...], got "
                    f"{methods!r}; method= of its Window overrides it"
                )
    return blocks
