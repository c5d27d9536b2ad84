"""The provenance of appended sources, and the check that a source can be appended to a cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..dataset import Dataset, Stream
from ..errors import ArgumentError, FileError
from ..tasks import find_table, table_name
from .mapping import parse_mapping
from .recording import Frames, Notes, Samples

# Names of the tables of texts that sources may have.
TABLES = ("lerobot.tasks", "lerobot.subtasks")


def check_appendable(cache: Dataset, settings: Any) -> None:
    """Refuses LeRobot's index columns, which number frames and episodes within one dataset.

    Args:
        settings: the format's options for the source.

    Raises:
        ArgumentError: the cache has them, or the options ask for them.
    """
    if cache.provenance.get("lerobot", {}).get("index_columns"):
        raise ArgumentError(f"append: {cache.path} has the index columns of one LeRobot dataset, expected none")
    if getattr(settings, "index_columns", False):
        raise ArgumentError(
            "append: expected no index_columns=True (--index-columns), since they count within one dataset"
        )


def check_as_held(stream: Stream, samples: Samples, exchanges: bool | None, held_exchanges: bool, notes: Notes) -> None:
    """Refuses a source that differs from the cache: in the offset of stamps, in a resize, in a missing unit of depth, or in the order
    of colours if its mapping does not give it.

    Args:
        exchanges: whether the mapping exchanges red and blue of the source's camera; None if it does not say.
        held_exchanges: whether the cache's mapping exchanged them.

    Raises:
        ArgumentError: they differ.
    """
    before_ns, now_ns = (either.attributes.get("offset_ns", 0) for either in (stream, samples))
    if before_ns != now_ns:
        raise ArgumentError(
            f"stream {stream.name!r}: its stamps are moved by {now_ns / 1e9:g} s, those in the cache by {before_ns / 1e9:g} s: expected the "
            f"same; offsets={{{stream.name!r}: {before_ns / 1e9:g}}} (--offset), or a cache of its own in a list of Sources"
        )
    for fact in ("unit_m", "resized") if isinstance(samples, Frames) and stream.frames is not None else ():
        if getattr(samples, fact) is None and (held := getattr(stream.frames, fact)) is not None:
            raise ArgumentError(
                f"stream {stream.name!r}: frames without {fact}, those in the cache have {fact} {held}: expected the same; a mapping's "
                "units declare a unit, a cache of its own in a list of Sources takes other frames"
            )
    if stream.frames is not None and exchanges is None and held_exchanges:
        raise ArgumentError(
            f"stream {stream.name!r}: a mapping exchanged red and blue in the cache, but no mapping declares their order in this source: expected "
            "the same mapping, or channels = 'rgb' in one"
        )
    if stream.frames is not None and exchanges is not None and exchanges != held_exchanges:
        notes.assume(
            f"colours of {stream.name}", "red and blue are exchanged in the cache or here, as mappings say", stream.name
        )


def exchanged_in(cache: Dataset) -> set[str]:
    """Returns the cameras whose red and blue a mapping exchanged when the cache was written."""
    mappings = [
        source["mapping"]
        for source in (cache.provenance, *cache.provenance.get("appended", []))
        if source.get("mapping")
    ]
    found = [parse_mapping(given, "mapping").exchanges for given in mappings]
    return {name for exchanges in found for name, is_bgr in exchanges.items() if is_bgr}


def joined_provenance(source: Path, cache: Dataset, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the cache's provenance with a source's facts appended to its list ``appended``. Tables of texts, to which rows refer by
    number, are merged.

    Raises:
        FileError: a number has another text in the cache, or none.
    """
    provenance = cache.provenance
    appended = provenance.get("appended", [])
    joined = {**provenance, "appended": [*appended, dict(facts)]}
    for name in TABLES:
        known = {k: text for before in (provenance, *appended) for k, text in find_table(before, name).items()}
        texts = find_table(facts, name)
        for number, text in texts.items():
            if known.get(number, text) != text:
                raise FileError(
                    f"{source}: {name.rpartition('.')[2].removesuffix('s')}_index {number} is {text!r}, but {known[number]!r} in "
                    "the cache: expected the same numbers; a cache of its own, beside this one in a list of Sources, takes it"
                )
        new = [int(number) for number in texts.keys() - known.keys()]
        for stream in cache.streams.values():
            if table_name(stream) == name and np.isin(stream.values, new).any():
                raise FileError(
                    f"{source}: {name} has texts for numbers that occur without a text in the cache's {stream.name}: "
                    "expected the same numbers"
                )
        table = name.rpartition(".")[2]
        if "lerobot" in provenance and (known or texts):
            joined["lerobot"] = {**joined["lerobot"], table: {**known, **texts}}
    return joined
