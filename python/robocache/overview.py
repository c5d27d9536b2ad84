"""Summarises a cache, or an ingest, in at most 20 lines of a terminal; `robocache inspect CACHE --all` shows everything."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from ._printable import count, printable
from .dataset import Dataset, row_of
from .notebook import table_html, title_html
from .provenance import assumed_lines, describe_group, group_alike, ingests
from .view import episode_seconds, oddities

if TYPE_CHECKING:
    from .ingest import IngestReport

LINES, _STREAMS_LEAST = 20, 2
_SKIPPED_SHOWN, _LEFT_OUT_SHOWN, _ODD_SHOWN = 3, 3, 4
_ASSUMED_LINES = 10  # with their heading
_ASSUMED = "assumed, since the files do not say it (options or a mapping can):"


class Line(NamedTuple):
    """One line and its style."""

    text: str
    style: str = ""


def show(lines: Iterable[Line], console: Console) -> None:
    for line in lines:
        console.print(printable(line.text), style=line.style, highlight=False, markup=False, soft_wrap=True)


def cache_lines(dataset: Dataset, width: int, doctor: str | None) -> list[Line]:
    """Returns the lines for a cache: its content, its streams and any oddities. `doctor` is the summary of its doctor.json."""
    seconds = episode_seconds(dataset)
    rows = sum(stream.rows for stream in dataset.streams.values())
    streams = count(len(dataset.streams), "stream")
    head = [
        Line(f"{count(len(dataset), 'episode')}, {seconds.sum():,.1f} s; {streams}, {count(rows, 'row')}", "bold"),
        Line(cut_middle(f"in {dataset.path}", width)),
    ]
    foot = [_length_line(seconds)] if len(seconds) > 1 else []
    foot += _clock_lines(dataset, width) + _odd_lines(dataset, width)
    foot.append(Line(cut_end(f"columns of the episodes: {', '.join(dataset.episodes.column_names)}", width)))
    records = list(ingests(dataset.provenance))
    foot += [Line(cut_middle(f"made from {printable(records[0].source)}", width))] if records[0].source else []
    foot += [Line(f"appended to {count(len(records) - 1, 'time')}")] if len(records) > 1 else []
    omitted = [
        f"{what} {number}"
        for what, number in (
            ("skipped", sum(len(record.skipped) for record in records)),
            ("left out", sum(len(record.left_out) for record in records)),
            ("assumed", sum(len(record.assumed) for record in records)),
            ("streams repaired", sum(len(record.repaired) for record in records)),
        )
        if number
    ]
    foot += [Line(f"of the source: {', '.join(omitted)}")] if omitted else []
    foot.append(Line(cut_end(f"doctor: {doctor or 'has not looked at it'}", width)))
    foot.append(Line("more: --stats, statistics; --all, everything; --plot FILE, a picture", "dim"))
    foot += [Line(line) for line in command_lines("", ["robocache", "doctor", dataset.path], width)] * (not doctor)
    return head + _stream_lines(dataset, width, LINES - len(head) - len(foot)) + foot


def ingest_lines(report: IngestReport, dataset: Dataset, width: int, arguments: Sequence[str] | None) -> list[Line]:
    """Returns the lines for an ingest: a verdict, the cache's content, the omissions, and the next command.

    arguments: the arguments of the command; None if it cannot simply be run again.
    """
    head = [Line(verdict(report, len(dataset) - report.episodes), "bold yellow" if report.skipped else "bold green")]
    route = f"{printable(report.source)} ({report.format}) -> {printable(report.cache)}"
    if cell_len(route) <= width:
        head.append(Line(route))
    else:
        head.append(Line(cut_middle(f"from {printable(report.source)} ({report.format})", width)))
        head.append(Line(cut_middle(f"to {printable(report.cache)}", width)))
    foot = _clock_lines(dataset, width) + _odd_lines(dataset, width)
    for name, counts in list(report.repaired.items())[:2]:
        repairs = ", ".join(f"{number} {what.replace('_', ' ')}" for what, number in counts.items())
        foot.append(Line(cut_end(f"repaired {printable(name)}: {repairs}", width), "yellow"))
    shorten = shorten_paths(report.source)
    groups = group_alike((omission.what, shorten(omission.reason)) for omission in report.skipped)
    next_lines = _next_command(report, arguments, width)
    left_out = group_alike((omission.what, shorten(omission.reason)) for omission in report.left_out)
    room = LINES - len(head) - len(foot) - len(next_lines) - _STREAMS_LEAST - 2 - bool(report.assumed)
    needed = 2 * len(groups[:_SKIPPED_SHOWN]) + (len(groups) > _SKIPPED_SHOWN) + min(len(left_out), _LEFT_OUT_SHOWN)
    is_tight = needed > room  # if so, a reason gets one line
    for group in groups[:_SKIPPED_SHOWN]:
        text = f"skipped {describe_group(group)}"
        foot += [Line(line, "yellow") for line in ([cut_end(text, width)] if is_tight else wrapped(text, width))]
    if more := sum(map(len, groups[_SKIPPED_SHOWN:])):
        foot.append(Line(f"skipped {more} more of other kinds", "yellow"))
    if len(left_out) > (1 if is_tight else _LEFT_OUT_SHOWN):
        names = ", ".join(printable(omission.what) for omission in report.left_out)
        foot.append(Line(cut_end(f"left out {len(report.left_out)}: {names}", width), "dim"))
    else:
        foot += [Line(cut_end(f"left out {describe_group(group)}", width), "dim") for group in left_out]
    room = LINES - len(head) - len(foot) - len(next_lines) - _STREAMS_LEAST - 2
    foot += _assumed_lines(report, width, min(room, _ASSUMED_LINES))
    room = LINES - len(head) - len(foot) - len(next_lines)
    return head + _stream_lines(dataset, width, room) + foot + next_lines


def _assumed_lines(report: IngestReport, width: int, room: int) -> list[Line]:
    """Returns the assumptions under a heading, in at most `room` lines."""
    groups = assumed_lines((assumption.what, assumption.reason, assumption.streams) for assumption in report.assumed)
    if not groups:
        return []
    lines = [line for group in groups for line in wrapped(f"  {group}", width)]
    if len(lines) >= room:
        lines = [cut_end(f"  {group}", width) for group in groups]
    if room < 3 and len(lines) >= room:
        return [
            Line(
                cut_end(f"assumed {count(len(groups), 'thing')} that the files do not say: {groups[0]}", width),
                "yellow",
            )
        ]
    if len(lines) >= room:
        lines = [*lines[: room - 2], f"  and {len(lines) - room + 2} more: robocache inspect CACHE --all"]
    return [Line(cut_end(_ASSUMED, width), "yellow"), *map(Line, lines)]


def verdict(report: IngestReport, earlier: int = 0) -> str:
    """Returns "complete: 5 episodes, 9 streams, 2096 frames in 2.1 s", or "incomplete" and the number of skipped things."""
    content = count(report.episodes, "episode") + (f" behind {earlier}" if earlier else "")
    content += f", {count(sum(number > 0 for number in report.rows.values()), 'stream')}"
    frames = sum(camera["frames"] for camera in report.cameras.values())
    content += f", {count(frames or sum(report.rows.values()), 'frame' if frames else 'row')} in {report.seconds:.1f} s"
    skipped = len(report.skipped)
    return f"incomplete: {content}; skipped {count(skipped, 'thing')}" if skipped else f"complete: {content}"


def report_html(report: IngestReport) -> str:
    """Returns the report as HTML for a notebook."""
    shorten = shorten_paths(report.source)
    rows = []
    for kind, omissions in (("skipped", report.skipped), ("left out", report.left_out)):
        groups = group_alike((omission.what, shorten(omission.reason)) for omission in omissions)
        rows += [(kind, str(len(group)), describe_group(group)) for group in groups]
    assumed = assumed_lines((assumption.what, assumption.reason, assumption.streams) for assumption in report.assumed)
    rows += [("assumed", "", line) for line in assumed]
    for name, counts in report.repaired.items():
        rows.append(("repaired", "", f"{name}: {counts}"))
    streams = [(name, f"{number:,}") for name, number in report.rows.items()]
    return (
        title_html(verdict(report), f"{report.source} ({report.format}) → {report.cache}")
        + table_html(("stream", "rows"), streams, count=len(streams), numbers=(1,))
        + (table_html(("", "how many", "what, and why"), rows, count=len(rows), numbers=(1,)) if rows else "")
    )


def _next_command(report: IngestReport, arguments: Sequence[str] | None, width: int) -> list[Line]:
    """Returns the next command: the same ingest if something was skipped, with the option that the reasons name."""
    if not report.skipped or arguments is None:
        return [Line(line) for line in command_lines("next: ", ["robocache", "doctor", report.cache], width)]
    # Reasons name options as "frames='by-index' (--frames by-index)". One without its value cannot be run.
    options = [set(re.findall(r"\((--[a-z-]+ [^ )]+|--no-[a-z-]+)\)", skipped.reason)) for skipped in report.skipped]
    common_options = set.intersection(*options)
    command = ["robocache", *arguments, *(["--overwrite"] if "--overwrite" not in arguments else [])]
    if len(common_options) == 1:
        (option,) = common_options
        return [Line(line) for line in command_lines("or: ", [*command, *option.split()], width)]
    return [Line(line) for line in command_lines("once it is corrected: ", command, width)]


def command_lines(before: str, words: Sequence[str], width: int) -> list[str]:
    """Returns the words as a command for a shell, over several lines if it is long."""
    lines = [before.rstrip()] if before and cell_len(before + shlex.join(words)) > width else []
    text = "" if lines else before
    for index, word in enumerate(words):
        quoted = printable(shlex.quote(word))
        is_last = index == len(words) - 1
        if text.strip() and cell_len(f"{text}{quoted}") > width - (0 if is_last else 2):
            lines.append(f"{text}\\")
            text = "    "
        text += quoted + ("" if is_last else " ")
    return [*lines, text]


def shorten_paths(source: str) -> Callable[[str], str]:
    """Returns a function that removes the source's path, which is shown above, from a text."""
    folder = source.rstrip("/")

    def shorten(text: str) -> str:
        return text.replace(f"{folder}: ", "").replace(f"{folder}/", "")

    return shorten if folder else lambda text: text


def cut_middle(text: str, width: int) -> str:
    """Returns the text; if it is too long, without its middle."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    half = max((width - 3) // 2, 1)
    tail = set_cell_size(text[::-1], max(width - 3 - half, 1))[::-1]
    return f"{set_cell_size(text, half)}...{tail}"


def cut_end(text: str, width: int) -> str:
    """Returns the text; if it is too long, without its end."""
    text = printable(text)
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(width - 4, 1)).rstrip()} ..."


def wrapped(text: str, width: int) -> list[str]:
    """Returns at most three lines, indented except the first."""
    lines = textwrap.wrap(
        printable(text), width, max_lines=3, placeholder=" ...", subsequent_indent="  ", break_on_hyphens=False
    )
    return [cut_end(line, width) for line in lines]


def _length_line(seconds: np.ndarray) -> Line:
    return Line(f"episode lengths: {seconds.min():.2f} to {seconds.max():.2f} s, median {np.median(seconds):.2f}")


def _stream_lines(dataset: Dataset, width: int, room: int) -> list[Line]:
    """Returns a table of at most `room` lines, including its heading. If streams are left out, cameras and the longest streams
    stay."""
    streams = list(dataset.streams.values())
    if not streams:
        return []
    shown = streams
    if len(streams) > room - 1:
        largest_first = sorted(streams, key=lambda stream: (stream.kind != "frames", -stream.rows))
        kept = largest_first[: max(room - 2, _STREAMS_LEAST)]
        shown = [stream for stream in streams if stream in kept]
    shows_jitter = any(stream.clock == "recorded" for stream in shown)
    headings = ["stream", "a row", "rows", "Hz", *["jitter ms"] * shows_jitter]
    table = [headings]
    for stream in shown:
        rate = "" if stream.kind == "text" or not stream.rate_hz else f"{stream.rate_hz:.4g}"
        jitter_ms = f"{stream.findings['jitter_ns'] / 1e6:.3f}" if rate else ""
        table.append([printable(stream.name), row_of(stream), str(stream.rows), rate, *[jitter_ms] * shows_jitter])
    widths = [max(cell_len(row[column]) for row in table) for column in range(len(headings))]
    widths[1] = min(widths[1], 24)
    widths[0] = min(widths[0], max(width - sum(widths[1:]) - 2 * len(widths[1:]), 16))
    lines = []
    for index, row in enumerate(table):
        cells = [set_cell_size(cut_middle(cell, size), size) for cell, size in zip(row[:2], widths, strict=False)]
        cells += [cell.rjust(size) for cell, size in zip(row[2:], widths[2:], strict=True)]
        lines.append(Line("  ".join(cells).rstrip(), "" if index else "dim"))
    if len(shown) < len(streams):
        lines.append(Line(f"and {count(len(streams) - len(shown), 'more stream')}", "dim"))
    return lines


def _clock_lines(dataset: Dataset, width: int) -> list[Line]:
    lines = []
    for clock, meaning in (("recorded", "recorded clocks"), ("nominal", "nominal clocks (index / rate)")):
        names = [name for name, stream in dataset.streams.items() if stream.clock == clock]
        if names:
            is_every_stream = len(names) == len(dataset.streams)
            lines.append(Line(cut_end(f"{meaning}: {'all streams' if is_every_stream else _list_names(names)}", width)))
    return lines


def _odd_lines(dataset: Dataset, width: int) -> list[Line]:
    """Returns a line for each kind of oddity, with the streams and their numbers."""
    odd: dict[str, list[str]] = {}
    for name, stream in dataset.streams.items():
        for what, number in oddities(stream).items():
            if number:
                odd.setdefault(f"{what}s", []).append(f"{printable(name)} {number}")
    order = ("NaN values", "infinite values", "gaps", "repeated stamps", "empty episodes", "constant features")
    lines = [Line(cut_end(f"{what}: {_list_names(odd[what])}", width)) for what in order if what in odd]
    return lines[:_ODD_SHOWN]


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 4 else ""
    return ", ".join(printable(name) for name in names[: 3 if more else 4]) + more
