"""Prints a report on a terminal."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._printable import count, printable
from ..findings import SEVERITIES, Finding, Report
from ..overview import cut_end, cut_middle
from ..view import WrappedText

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_WIDEST = 100
# The number of findings of a code that are shown by default. Of notes only the first is shown, on at most two lines.
_SHOWN = 3


def show(report: Report, console: Console, *, lines: int | None = None) -> None:
    """Prints the verdict, then the findings by severity and code, the worst first.

    lines: the number of findings shown for each code. None: 3 errors and warnings, and the first note without its advice.
    """
    width = min(console.width, _WIDEST)
    counts = report.counts
    worst = next((severity for severity in SEVERITIES if counts[severity]), "note")
    console.print(Text(report.verdict, _STYLES[worst]), width=width)
    console.print(Text(cut_middle(report.path, width)))
    for severity in SEVERITIES:
        if not counts[severity]:
            continue
        console.print(Text(f"\n{count(counts[severity], severity)}", _STYLES[severity]))
        findings = [finding for finding in report.findings if finding.severity == severity]
        for code, group in groupby(findings, key=lambda finding: finding.code):
            group_findings = list(group)
            number = len(group_findings) + report.more.get(code, 0)
            title = code if number == 1 else f"{code} ({number})"
            if severity == "note" and lines is None:
                console.print(
                    WrappedText(cut_end(f"{title}: {_with_location(group_findings[0])}", 2 * width - 30)), width=width
                )
                continue
            shown = group_findings[: lines or _SHOWN]
            table = Table.grid(padding=(0, 1))
            for finding in shown:
                table.add_row(" -", WrappedText(_with_location(finding)))
            if more := number - len(shown):
                table.add_row("", Text(f"and {more} more", "dim"))
            if advice := group_findings[0].advice:
                table.add_row(Text(" →", "dim"), Text(advice.splitlines()[0], "dim"))
            console.print(Text(title, "bold"))
            console.print(table, width=width)
        # Whole lines, for copying. Several findings of a stream have the same line.
        for line in dict.fromkeys(line for finding in findings for line in finding.advice.split("\n")[1:]):
            console.print(Text(printable(line)), soft_wrap=True)
    rows = sum(stream["rows"] for stream in report.streams)
    checked = (
        f"{count(report.episodes, 'episode')}, {count(len(report.streams), 'stream')}, {count(rows, 'row')}"
        if report.streams or report.manifest_crc32 is not None
        else "no cache was written"
    )
    console.print(Text(f"\nlooked at: {checked}"))
    if report.findings and lines is None:
        console.print(Text("all findings, and what to do: --lines 50, --html FILE or --json", "dim"))
    if report.manifest_crc32 is not None:
        console.print(Text("checksums: not compared; robocache inspect CACHE --verify compares them", "dim"))
    if report.not_stored:
        console.print(Text(f"not stored: {printable(report.not_stored)}", "dim"))


def _with_location(finding: Finding) -> str:
    return f"{finding.where}: {finding.message}" if finding.where else finding.message
