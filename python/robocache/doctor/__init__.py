"""Finds faults in a recording: :func:`doctor` checks a cache or a source and returns a report.

`clocks`, `values`, `rotations`, `episodes`, `latency`, `cameras` and `source` have the checks: small functions that take a
`Survey` and yield findings, with their thresholds at the top. `page` and `terminal` show a report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from .. import _lib, dataset
from .._check import truth, wholes
from .._temporary import temporary_folder
from ..errors import ArgumentError, ArgumentTypeError, FileError
from ..findings import DoctorWarning, Finding, Report, manifest_crc32, store
from . import cameras, clocks, episodes, latency, rotations, source, values
from .pictures import draw
from .streams import Survey

__all__ = ["DoctorWarning", "Finding", "Report", "doctor"]

_MODULES = (source, clocks, values, rotations, cameras, episodes, latency)
CHECKS = tuple(chain.from_iterable(module.CHECKS for module in _MODULES))


def doctor(
    path: str | os.PathLike[str],
    *,
    splits: Mapping[str, Sequence[int]] | None = None,
    save: bool = True,
    work: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> Report:
    """Finds faults in a cache, or in a source that could become one.

    All streams are read once, a few MB at a time. A source is first ingested into a temporary cache; anything that cannot be
    read is a finding too.

    Args:
        path: a cache, or a source for :func:`ingest`.
        splits: lists of episodes by name, as {"train": [...], "validation": [...]}, that must not overlap. By default the
            column ``split`` of the episodes table gives them, if there is one.
        save: write ``doctor.json`` into a cache, for :class:`Loader` and ``robocache inspect``. A read-only cache is checked too;
            `Report.not_stored` then gives the reason.
        work: the folder for a source's temporary cache, which is as large as its data; by default the source's folder.
        progress: for a source, as in :func:`ingest`.
        options: for a source, those of :func:`ingest` (`format`, `time_column`, ...); `on_error` is always "skip".

    Returns:
        A :class:`Report`.

    Raises:
        FileError: the path is neither a cache nor a source, or the cache is damaged.
        ArgumentError, ArgumentTypeError: as in :func:`ingest`, or a split has episodes that do not exist.

    Example:
        >>> report = robocache.doctor("cache")
        >>> report.summary
        '1 warning, 1 note'
        >>> report.findings[0].code, report.findings[0].where
        ('repeated-episode', 'episode 0')
    """
    from ..ingest import ingest  # ingest takes long to import, and a cache does not need it
    from ..ingest.driver import check_source, checked_path
    from ..ingest.registry import find_format

    root = checked_path("path", path)
    save = truth("save", save)
    checked_splits = _check_splits(splits)
    if os.path.exists(root / "manifest.json"):
        if options:
            raise ArgumentError(f"{next(iter(options))}: goes with a source, got the cache {root}")
        report = _check(root, checked_splits)
        if save:
            store(report, root)
        return report
    check_source(root)
    if options.get("format") is None:
        find_format(root)
    folder = checked_path("work", work) if work is not None else root.resolve().parent
    try:
        with temporary_folder(".robocache-doctor-", folder) as temporary:
            cache = temporary / "cache"
            try:
                ingest(root, cache, progress=progress, **{**options, "on_error": "skip"})
            except FileError as error:
                if str(temporary) in str(error):  # the temporary cache cannot be written; the source has no fault
                    raise FileError(
                        f"{error}; name another folder for the temporary cache with work (--work)"
                    ) from error
                report = Report(str(root), robocache_version=_lib.function("version")())
                report.add([source.unreadable(root.name, str(error))])
                return report
            report = _check(cache, checked_splits, root)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(
            f"{folder}: {error.strerror or error}; name another folder for the temporary cache with work (--work)"
        ) from error
    report.path, report.manifest_crc32 = str(root), None
    return report


def _check_splits(splits: Any) -> dict[str, list[int]]:
    if not isinstance(splits, Mapping | None):
        raise ArgumentTypeError(f"splits: expected {{name: episodes}}, got {splits!r}")
    episodes = {name: wholes(f"splits['{name}']", part) for name, part in (splits or {}).items()}
    return {name: sorted({*part.tolist()}) for name, part in episodes.items()}


def _check(cache: Path, splits: dict[str, list[int]], source: Path | None = None) -> Report:
    crc32 = manifest_crc32(cache)
    opened = dataset.open(cache)
    survey = Survey(opened, splits, source)
    for name, part in survey.splits.items():
        if part and not 0 <= part[0] <= part[-1] < len(opened):
            raise ArgumentError(f"splits['{name}']: expected episodes below {len(opened)}, got {part[0]} to {part[-1]}")
    report = Report(
        str(cache), episodes=len(opened), manifest_crc32=crc32, robocache_version=_lib.function("version")()
    )
    report.add(chain.from_iterable(check(survey) for check in CHECKS))
    report.streams = [_summary(clock) for clock in survey.clocks.values()]
    report.pictures = draw(survey)
    return report


def _summary(clock: Any) -> dict[str, Any]:
    stream = clock.stream
    return {
        "name": stream.name,
        "kind": stream.kind,
        "rows": stream.rows,
        "dtype": str(stream.dtype),
        "shape": list(stream.shape),
        "clock": stream.clock,
        "rate_hz": stream.rate_hz,
        "true_rate_hz": clock.true_rate_hz if clock.steady else None,
        "duration_s": float(clock.span_ns.sum()) / 1e9,
        "lost_s": clock.periods.lost_ns / 1e9 if clock.steady else None,
    }
