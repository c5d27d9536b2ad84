"""Checks that a source can be appended to a cache, and keeps the provenance of appended sources."""

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


def check_like_cache(
    stream: Stream, samples: Samples, exchanges: bool | None, cache_exchanges: bool, notes: Notes
) -> None:
    """Refuses a stream that differs from the cache's: in the offset added to its stamps, in the size of its frames, in
    intrinsics or a unit of depth that it lacks, or in the order of its colours, if the source's mapping does not declare that order.

    Args:
        exchanges: whether the source's mapping exchanges red and blue of this camera; None if it does not declare their order.
        cache_exchanges: whether a mapping exchanged them in the cache.

    Raises:
        ArgumentError: the streams differ.
    """
    cache_ns, source_ns = stream.attributes.get("offset_ns", 0), samples.attributes.get("offset_ns", 0)
    if cache_ns != source_ns:
        raise ArgumentError(
            f"stream {stream.name!r}: its stamps are moved by {source_ns / 1e9:g} s, those in the cache by {cache_ns / 1e9:g} s: expected the "
            f"same; offsets={{{stream.name!r}: {cache_ns / 1e9:g}}} (--offset), or a cache of its own in a list of Sources"
        )
    facts = ("unit_m", "resized", "intrinsics") if isinstance(samples, Frames) and stream.frames is not None else ()
    for fact in facts:
        if getattr(samples, fact) is None and (value := getattr(stream.frames, fact)) is not None:
            value = value.tolist() if isinstance(value, np.ndarray) else value
            raise ArgumentError(
                f"stream {stream.name!r}: frames without {fact}, those in the cache have {fact} {value}: expected the same; a mapping's "
                "units declare a unit, a cache of its own in a list of Sources takes other frames"
            )
    if stream.frames is not None and exchanges is None and cache_exchanges:
        raise ArgumentError(
            f"stream {stream.name!r}: a mapping exchanged red and blue in the cache, but no mapping declares their order in this source: expected "
            "the same mapping, or channels = 'rgb' in one"
        )
    if stream.frames is not None and exchanges is not None and exchanges != cache_exchanges:
        notes.assume(
            f"colours of {stream.name}",
            "a mapping exchanges red and blue either in the cache or in this source, not in both",
            stream.name,
        )


def find_exchanged(cache: Dataset) -> set[str]:
    """Returns the cameras whose red and blue a mapping exchanged when the cache was written."""
    mappings = [
        source["mapping"]
        for source in (cache.provenance, *cache.provenance.get("appended", []))
        if source.get("mapping")
    ]
    parsed = [parse_mapping(mapping, "mapping") for mapping in mappings]
    return {name for mapping in parsed for name, is_bgr in mapping.exchanges.items() if is_bgr}


def merge_provenance(source: Path, cache: Dataset, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the cache's provenance with a source's facts appended to its list ``appended``. Merges the tables of texts; rows refer
    to these texts by number.

    Raises:
        FileError: a number of the source has another text in the cache, or occurs in the cache without a text.
    """
    provenance = cache.provenance
    appended = provenance.get("appended", [])
    merged = {**provenance, "appended": [*appended, dict(facts)]}
    for name in TABLES:
        known = {number: text for part in (provenance, *appended) for number, text in find_table(part, name).items()}
        texts = find_table(facts, name)
        for number, text in texts.items():
            if known.get(number, text) != text:
                raise FileError(
                    f"{source}: {name.rpartition('.')[2].removesuffix('s')}_index {number} is {text!r}, but {known[number]!r} in "
                    "the cache: expected the same numbers; a cache of its own, beside this one in a list of Sources, takes it"
                )
        new_numbers = [int(number) for number in texts.keys() - known.keys()]
        for stream in cache.streams.values():
            if table_name(stream) == name and np.isin(stream.values, new_numbers).any():
                raise FileError(
                    f"{source}: {name} has texts for numbers that occur without a text in the cache's {stream.name}: "
                    "expected the same numbers"
                )
        table = name.rpartition(".")[2]
        if "lerobot" in provenance and (known or texts):
            merged["lerobot"] = {**merged["lerobot"], table: {**known, **texts}}
    return merged
