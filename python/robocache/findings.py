"""The results of a doctor: :class:`Finding`, :class:`Report`, and ``doctor.json``, their file in a cache."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Any

from ._printable import to_json_value, warn
from ._temporary import write_whole
from .errors import ArgumentError, FileError
from .notebook import table_html, title_html

SEVERITIES = ("error", "warning", "note")
FILE = "doctor.json"
_FORMAT, _SCHEMA_VERSION = "robocache-doctor", 1
# A report keeps this many findings of a code and stream, and counts the others.
_KEPT = 50


class DoctorWarning(UserWarning):
    """The ``doctor.json`` of a cache in use has errors."""


@dataclass(frozen=True)
class Finding:
    """A fault, or a fact worth knowing.

    Attributes:
        severity: "error": it breaks training or contradicts the cache; "warning": look at it before training; "note".
        code: the kind of finding, the same in all versions: docs/doctor.md lists them.
        message: the finding in words.
        episode, stream, row: the location; None means all of them. `row` counts within the episode.
        end_row: one after the last row, if the finding is about several.
        count: the number of equal findings; this one is the first or the worst.
        value, expected: the measured value and the reference.
        file: a source's file or folder.
        advice: what to do; further lines are ready to copy.
    """

    severity: str
    code: str
    message: str
    episode: int | None = None
    stream: str | None = None
    row: int | None = None
    end_row: int | None = None
    count: int = 1
    value: Any = None
    expected: Any = None
    file: str | None = None
    advice: str = ""

    @property
    def where(self) -> str:
        """The known parts of the location, such as "episode 3, action, rows 10-20"."""
        parts = [] if self.episode is None else [f"episode {self.episode}"]
        parts += [self.stream] if self.stream is not None else []
        if self.row is not None:
            last = self.row if self.end_row is None else self.end_row - 1
            parts.append(f"row {self.row}" if last == self.row else f"rows {self.row}-{last}")
        return ", ".join(parts) or (self.file or "")

    def _order(self) -> tuple[Any, ...]:
        location = (self.episode, self.row)
        return (
            SEVERITIES.index(self.severity),
            self.code,
            self.stream or "",
            *(-1 if x is None else x for x in location),
        )


@dataclass
class Report:
    """The result of :func:`robocache.doctor`.

    Attributes:
        path: the checked cache or source.
        findings: the worst first, at most 50 of each code and stream.
        more: by code, the number of further findings.
        episodes: the number of episodes.
        streams: a dict for each stream: ``name``, ``kind`` (:class:`Stream`'s), ``rows``, ``dtype``, ``shape``, ``clock``,
            ``rate_hz`` (of the median period), ``true_rate_hz`` (rows a second, without gaps and bursts; None without a steady
            rate), ``duration_s``, ``lost_s`` (in gaps).
        manifest_crc32: the checksum of the checked cache's manifest; None for a source.
        stored: the path of the stored report, or None.
        not_stored: the reason if it could not be stored, else None.
    """

    path: str
    findings: list[Finding] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)
    episodes: int = 0
    streams: list[dict[str, Any]] = field(default_factory=list)
    manifest_crc32: str | None = None
    robocache_version: str = ""
    stored: str | None = None
    not_stored: str | None = None
    pictures: Any = field(default=None, repr=False, compare=False)

    def add(self, findings: Iterable[Finding]) -> None:
        """Adds findings, and sorts all. It keeps the first 50 of each code and stream, and counts the others."""
        kept: list[Finding] = []
        counts: Counter[tuple[str, str | None]] = Counter()
        more = Counter(self.more)
        for finding in sorted([*self.findings, *findings], key=Finding._order):
            counts[finding.code, finding.stream] += 1
            if counts[finding.code, finding.stream] > _KEPT:
                more[finding.code] += 1
            else:
                kept.append(finding)
        self.findings, self.more = kept, dict(more)

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings of each severity, with those in `more`."""
        severity_of = {finding.code: finding.severity for finding in reversed(self.findings)}
        counts = Counter(finding.severity for finding in self.findings)
        for code, number in self.more.items():
            counts[severity_of[code]] += number
        return {severity: counts[severity] for severity in SEVERITIES}

    @property
    def summary(self) -> str:
        """The counts in words: "2 errors, 5 warnings, 1 note", or "no findings"."""
        counts = [f"{number} {kind}{'s' * (number != 1)}" for kind, number in self.counts.items() if number]
        return ", ".join(counts) or "no findings"

    @property
    def verdict(self) -> str:
        """The summary, and whether to train on the data."""
        counts = self.counts
        if counts["error"]:
            return f"{self.summary}: do not train on it before the errors are mended"
        if counts["warning"]:
            return f"{self.summary}: look at the warnings before training on it"
        return f"{self.summary}: nothing speaks against training on it"

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON-able values, as in ``--json`` and doctor.json."""
        return {
            "format": _FORMAT,
            "schema_version": _SCHEMA_VERSION,
            "robocache_version": self.robocache_version,
            "path": self.path,
            "manifest_crc32": self.manifest_crc32,
            "episodes": self.episodes,
            "counts": self.counts,
            "findings": [to_json_value(asdict(finding)) for finding in self.findings],
            "more": self.more,
            "streams": to_json_value(self.streams),
        }

    @classmethod
    def from_dict(cls, report: Mapping[str, Any]) -> Report:
        """Returns the report from a dict: the inverse of :meth:`to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the dict is no report.
        """
        if (report["format"], report["schema_version"]) != (_FORMAT, _SCHEMA_VERSION):
            raise ValueError(f"expected {_FORMAT} {_SCHEMA_VERSION}, got {report['format']} {report['schema_version']}")
        report_fields = {name: _check(name, report[name], kind) for name, kind in _REPORT_TYPES.items()}
        findings = [
            Finding(**{f.name: _check(f.name, x[f.name], _JSON_TYPES[f.type]) for f in fields(Finding) if f.name in x})
            for x in report["findings"]
        ]
        if any(finding.severity not in SEVERITIES for finding in findings):
            raise ValueError("expected severities " + ", ".join(SEVERITIES))
        more = dict(report["more"])
        if not more.keys() <= {finding.code for finding in findings} or any(type(n) is not int for n in more.values()):
            raise ValueError("more: expected numbers of findings by code")
        streams = [_check("streams", stream, (dict,)) for stream in report["streams"]]
        return cls(findings=findings, more=more, streams=streams, **report_fields)

    def _repr_html_(self) -> str:
        rows = []
        for (severity, code), group in groupby(self.findings, key=lambda finding: (finding.severity, finding.code)):
            same_code = list(group)
            number = len(same_code) + self.more.get(code, 0)
            first = same_code[0]
            where = f"{first.where}: " if first.where else ""
            rows.append((severity, code, f"{number:,}", f"{where}{first.message}", first.advice))
        headings = "", "finding", "how many", "the first", "what to do"
        table = table_html(headings, rows, count=len(rows), numbers=(2,)) if rows else ""
        return title_html(self.verdict, self.path) + table

    def html(self) -> str:
        """Returns one self-contained page, without scripts or external files."""
        from .doctor.page import page

        return page(self)


# The JSON types of a finding's fields, by their annotations, and of a report's fields.
_JSON_TYPES: dict[Any, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "str | None": (str, NoneType),
    "int | None": (int, NoneType),
    "Any": (object,),
}
_REPORT_TYPES = {"path": (str,), "episodes": (int,), "manifest_crc32": (str, NoneType), "robocache_version": (str,)}


def _check(name: str, value: Any, types: tuple[type, ...]) -> Any:
    if not isinstance(value, types) or (isinstance(value, bool) and object not in types):
        raise TypeError(f"{name}: expected {' or '.join(kind.__name__ for kind in types)}, got {value!r:.60}")
    return value


# ---- doctor.json in a cache ----


def manifest_crc32(cache: str | os.PathLike[str]) -> str | None:
    """Returns the checksum at the end of a cache's manifest, which changes with every change of the cache; None if there is
    none."""
    path = Path(cache, "manifest.json")
    if not path.is_file():  # to open a FIFO would wait for ever
        return None
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
            match = re.search(rb'"crc32": "([0-9a-f]{8})"\n}\n\Z', file.read())
    except OSError:
        return None
    return match[1].decode() if match else None


def store(report: Report, cache: str | os.PathLike[str]) -> None:
    """Writes doctor.json into the cache. It appears only when it is complete. If it cannot be written, `not_stored` has the
    reason."""
    path = Path(cache, FILE)
    stored = report.to_dict() | {"path": Path(cache).resolve().name}
    for folder in {Path(cache).absolute().parent, Path(cache).resolve().parent} - {Path("/")}:
        for finding in stored["findings"]:  # the folder is private, and the cache may be given to others
            texts = {key: x for key, x in finding.items() if isinstance(x, str) and key != "stream"}
            finding.update({key: text.replace(f"{folder}{os.sep}", "") for key, text in texts.items()})
    try:
        write_whole(path, json.dumps(stored, indent=1, allow_nan=False) + "\n")
        report.stored, report.not_stored = str(path), None
    except OSError as error:
        report.not_stored = f"{path}: {error.strerror or error}"


def load(cache: str | os.PathLike[str]) -> Report | None:
    """Returns the report in doctor.json; None if the file is missing or belongs to another state of the cache."""
    path = Path(cache, FILE)
    if not path.is_file():  # to open a FIFO would wait for ever
        return None
    try:
        report = Report.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    current = manifest_crc32(cache)
    if current is None or report.manifest_crc32 != current:
        return None
    report.path, report.stored = str(cache), str(path)
    return report


def enforce(caches: Iterable[str], findings: str | None) -> None:
    """Checks the stored findings of caches before batches are drawn from them.

    Args:
        findings: ``"warn"``: errors are a :class:`DoctorWarning`; caches without findings pass. ``"strict"``: errors are refused,
            and so are caches without findings. None: no check.

    Raises:
        FileError: ``"strict"`` refuses a cache.
        ArgumentError: `findings` is another value.
    """
    if findings is None:
        return
    if findings not in ("warn", "strict"):
        raise ArgumentError(f"findings: expected 'warn', 'strict' or None, got {findings!r}")
    for cache in dict.fromkeys(caches):
        report = load(cache)
        if report is None:
            if findings == "strict":
                raise FileError(
                    f"{cache}: expected {FILE} of the cache's present content; run: robocache doctor {cache}"
                )
            continue
        errors = [finding for finding in report.findings if finding.severity == "error"]
        if errors:
            first = "; ".join(f"{finding.code} ({finding.where})" for finding in errors[:3])
            more = report.counts["error"] - len(errors[:3])
            message = f"{cache}: {first}{f' and {more} more errors' if more else ''}; see: robocache doctor {cache}"
            if findings == "strict":
                raise FileError(message)
            warn(message, DoctorWarning)
