"""Prints a report on a terminal."""

from __future__ import annotations

from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._printable import count, printable
from ..findings import SEVERITIES, Report
from ..overview import middle
from ..view import Name

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def show(report: Report, console: Console, *, lines: int = 5) -> None:
    """Prints the findings, the worst first, at most `lines` per code."""
    counts = report.counts
    worst = next((severity for severity in SEVERITIES if counts[severity]), "note")
    console.print(Text(report.verdict, _STYLES[worst]))
    console.print(Text(middle(report.path, console.width)))
    for severity in SEVERITIES:
        if not counts[severity]:
            continue
        title = Text(f"{counts[severity]} {severity}{'s' * (counts[severity] != 1)}", _STYLES[severity])
        table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, expand=True)
        table.add_column("finding", no_wrap=True)
        table.add_column("where", ratio=2, overflow="fold")
        table.add_column("what", ratio=5, overflow="fold")
        found = [finding for finding in report.findings if finding.severity == severity]
        for code, group in groupby(found, key=lambda finding: finding.code):
            alike = list(group)
            for index, finding in enumerate(alike[:lines]):
                table.add_row(code if index == 0 else "", Name(finding.where), Name(finding.message))
            more = len(alike[lines:]) + report.more.get(code, 0)
            if more:
                table.add_row("", "", Text(f"and {more} more", "dim"))
            if alike[0].advice:
                table.add_row("", "", Text(f"→ {alike[0].advice.splitlines()[0]}", "dim"))
        console.print(table)
        for finding in found:  # prints whole lines, for copying
            for line in finding.advice.split("\n")[1:]:
                console.print(Text(printable(line)), soft_wrap=True)
    rows = sum(stream["rows"] for stream in report.streams)
    looked = (
        f"{count(report.episodes, 'episode')}, {count(len(report.streams), 'stream')}, {count(rows, 'row')}"
        if report.streams or report.manifest_crc32 is not None
        else "no cache was written"
    )
    console.print(Text(f"looked at: {looked}"))
    if report.manifest_crc32 is not None:
        console.print(Text("checksums: not compared; robocache inspect CACHE --verify compares them", "dim"))
    if report.not_stored:
        console.print(Text(f"not stored: {printable(report.not_stored)}", "dim"))
