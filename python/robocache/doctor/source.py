"""Findings from the notes of ingest about its source, and from a LeRobot dataset's own statistics."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..findings import Finding
from ..norm_stats import beyond_pixels
from ..provenance import Ingested, describe_group, group_alike, ingests
from .episodes import source_episodes
from .streams import Survey

# Patterns in the reasons that readers and ingest give, with the finding's code and advice.
_KINDS = (
    (
        r"\bsay (how many|which)\b.* with ",
        "unreadable",
        "The files lack this fact, but are not damaged. Give the option.",
    ),
    ("which is no time", "stamp-without-time", "The recorder had no time there. --repair drop leaves such rows out."),
    (
        "a step back of|do not decrease",
        "times-out-of-order",
        "Ingest's --repair sorts, drops or splits there. It is better to correct the recorder.",
    ),
    ("but before it", "schema-change", "Ingest the files separately, or convert them to one layout at the source."),
    ("Git LFS pointer", "not-downloaded", "Run git lfs pull in the source's repository."),
    (
        "No such file|no episode_|have no rows",
        "missing-file",
        "Part of the source is missing: fetch it, or ingest without it.",
    ),
)
TOLERANCE = 1e-3  # relative to the column's range
# Errors allowed relative to the largest value are 2^-24 for each row, the rounding of float32 sums, but at least the first of
# these, for JSON with few digits, and at most the second.
ROUNDING = 1e-5, 1e-3


def check_source(survey: Survey) -> Iterator[Finding]:
    """Reports what each ingest into the cache skipped, repaired or left out."""
    for record in ingests(survey.dataset.provenance):
        yield from _findings_of_ingest(record)


def _findings_of_ingest(record: Ingested) -> Iterator[Finding]:
    by_pattern: dict[str, list[tuple[str, str]]] = {}
    for what, reason in record.skipped:
        by_pattern.setdefault(re.sub(r"\d+", "#", f"{what}: {reason}"), []).append((what, reason))
    for (what, reason), *more in by_pattern.values():
        finding = unreadable(what, reason)
        others = f"; and {len(more)} more like it, {more[-1][0]} the last" if more else ""
        yield replace(finding, message=finding.message + others, count=1 + len(more))
    if streams := record.repaired:
        counts = {
            name: ", ".join(f"{what} {n}" for what, n in repairs.items() if n) for name, repairs in streams.items()
        }
        yield Finding(
            "note",
            "repaired",
            f"by {record.policy!r}: " + "; ".join(f"{name}: {repairs}" for name, repairs in counts.items()),
            stream=next(iter(streams)) if len(streams) == 1 else None,
            count=len(streams),
            advice="The stamps were wrong, and the repaired ones are only as good as the policy.",
        )
    left_out = [(what, reason) for what, reason in record.left_out if "names of its features" not in what]
    if left_out:
        yield Finding(
            "note",
            "left-out",
            f"the cache does not hold {'; '.join(describe_group(group) for group in group_alike(left_out))}",
            count=len(left_out),
            file=record.source or None,
            advice="It is left out by design, or the cache has no form for it. If you do not need it, there is nothing to do.",
        )

    if record.assumed:
        yield Finding(
            "note",
            "assumed",
            f"ingest assumed what the files do not say: {'; '.join(record.assumed)}",
            count=len(record.assumed),
            file=record.source or None,
            advice="Compare it with the robot. If it is wrong, ingest again with --time-unit, --time-column or --rate-hz, or with a "
            "mapping that has units and methods.",
        )


def unreadable(name: str, reason: str) -> Finding:
    """Returns a finding for something that could not be read."""
    code, advice = next(
        ((code, advice) for pattern, code, advice in _KINDS if re.search(pattern, reason)),
        ("unreadable", "Repair or remove the file. --on-error skip ingests everything else."),
    )
    file = re.match(r"(/.*?|[^:\s]\S*?):( |$)", reason)
    row = re.search(r"\bindex (\d+)\b", reason) or re.search(r"\brow (\d+)\b", reason)
    stream = re.search(r"\bstream '([^']+)': ", reason)
    return Finding(
        "warning" if code == "missing-file" else "error",
        code,
        reason if name in reason else f"{name}: {reason}",
        stream=stream[1] if stream else None,
        row=int(row[1]) if row else None,
        file=file[1] if file else None,
        advice=advice,
    )


def check_source_statistics(survey: Survey) -> Iterator[Finding]:
    """Compares the statistics of the cache's LeRobot dataset, if it still exists, with the cache's rows.

    Mean, std, min and max must agree within a thousandth of the column's range plus the rounding of float32 sums. v2.1's
    meta/episodes_stats.jsonl is compared episode by episode. A cache with appended sources is not compared. A cache with only some
    of the episodes is not compared with meta/stats.json.
    """
    provenance = survey.dataset.provenance
    from ..ingest.files import is_source  # imported here, because ingest takes long to import

    source = survey.source or Path(survey.dataset.path).parent / str(provenance.get("source") or "")
    if not is_source(provenance, source):  # it moved, or another source has its path
        return
    meta = source / "meta"
    if provenance.get("format") != "lerobot" or provenance.get("appended") or not meta.is_dir():
        return
    statistics, findings = _read_json(meta / "stats.json"), list[Finding | None]()
    info = _read_json(meta / "info.json")
    total = info.get("total_frames") if isinstance(info, dict) else None
    if isinstance(statistics, dict):
        for stream in survey.numbers:
            declared = statistics.get(stream.name)
            is_part = isinstance(total, int) and stream.rows < total
            if isinstance(declared, dict) and not is_part:
                stats = survey.dataset.stats[stream.name]
                rows = {key: np.ravel(getattr(stats, key)) for key in ("mean", "std", "min", "max")}
                findings.append(_find_disagreement(meta / "stats.json", stream.name, None, declared, rows, stream.rows))
        findings += _pixel_statistics(survey, meta / "stats.json", None, statistics)
    per_episode = meta / "episodes_stats.jsonl"
    episodes = source_episodes(survey.dataset)
    for line in _read_lines(per_episode) if episodes else ():
        number = line.get("episode_index")
        episode = episodes.get(number) if isinstance(number, int) else None
        if episode is None or not isinstance(line.get("stats"), dict):
            continue
        findings += _pixel_statistics(survey, per_episode, episode, line["stats"])
        for stream in survey.numbers:
            declared = line["stats"].get(stream.name)
            values = stream.values[slice(*stream.row_offsets[episode : episode + 2].tolist())]
            if not isinstance(declared, dict) or not len(values):
                continue
            table = values.reshape(len(values), -1).astype(np.float64)
            table[np.isinf(table)] = np.nan
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # for features without a finite number
                rows = {key: getattr(np, f"nan{key}")(table, axis=0) for key in ("mean", "std", "min", "max")}
            findings.append(_find_disagreement(per_episode, stream.name, episode, declared, rows, len(table)))
    yield from filter(None, findings)


def _pixel_statistics(survey: Survey, file: Path, episode: int | None, statistics: dict[str, Any]) -> Iterator[Finding]:
    for camera in survey.cameras:
        try:
            largest = beyond_pixels(statistics[camera.name]) if camera.dtype == np.uint8 else None
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        if largest is not None:
            yield Finding(
                "warning",
                "source-statistics",
                f"the largest value in {file.name} is {largest:.6g}, but the pixels of a batch are from 0 to 1",
                episode=episode,
                stream=camera.name,
                value=largest,
                expected=1.0,
                file=str(file),
                advice="LeRobot normalises pixels from 0 to 1 by these statistics: divide them by 255, or compute them anew.",
            )


@np.errstate(over="ignore", invalid="ignore")
def _find_disagreement(
    file: Path, name: str, episode: int | None, statistics: dict[str, Any], rows: dict[str, np.ndarray], row_count: int
) -> Finding | None:
    largest = np.maximum(np.abs(rows["min"]), np.abs(rows["max"]))
    rounding = min(max(ROUNDING[0], row_count * 2.0**-24), ROUNDING[1])
    allowed = TOLERANCE * (rows["max"] - rows["min"]) + rounding * largest
    for key, computed in rows.items():
        try:
            stored = np.ravel(np.asarray(statistics[key], np.float64))
        except (KeyError, TypeError, ValueError):
            continue
        if stored.shape != computed.shape or np.isnan(computed).any():
            continue
        error = np.abs(stored - computed)
        is_within = error <= allowed
        if key == "std":  # it may be the root of mean(x^2) - mean(x)^2, both rounded
            is_within |= error * (stored + computed) <= 2 * rounding * largest**2
        if not is_within.all():
            error = np.where(is_within, 0, error / np.maximum(allowed, 1e-300))
            worst = int(np.argmax(np.nan_to_num(error, nan=np.inf)))
            return Finding(
                "warning",
                "source-statistics",
                f"{key} of feature {worst} is {stored[worst]:.6g} in {file.name}, but {computed[worst]:.6g} in the rows",
                episode=episode,
                stream=name,
                value=float(stored[worst]),
                expected=float(computed[worst]),
                file=str(file),
                advice="They belong to other rows, such as the whole dataset of which this is a part, or were computed differently: "
                "normalise by the cache's own statistics, as the loader does.",
            )
    return None


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict):
                yield line


CHECKS = (check_source, check_source_statistics)
