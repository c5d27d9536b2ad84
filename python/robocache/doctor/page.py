"""Writes a report as one HTML page. It loads nothing: styles and pictures are inside, and there is no script."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import Any

from .._printable import printable
from ..findings import SEVERITIES, Finding, Report
from .plots import histogram_plot, periods_plot, ranges_plot, timeline_plot

_SHOWN = 12  # findings of a code that are shown; the rest is folded

_STYLE = """
:root { color-scheme: light dark;
  --page: #fbfaf8; --card: #ffffff; --text: #1d2127; --soft: #59616d; --line: #dcdfe4; --shade: #f1f1ee;
  --accent: #2d6db5; --band: #b9d0ea; --odd: #b96f00; --error: #b3261e; --warning: #8a5a00; --note: #2a6478; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171b; --card: #1c2026; --text: #e8eaed; --soft: #a3abb7; --line: #343b45; --shade: #22272e;
  --accent: #7db2f0; --band: #31537a; --odd: #e6a23c; --error: #ff8f85; --warning: #f0b95a; --note: #79c3d9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 19px; margin: 36px 0 10px; }
h3 { font-size: 16px; margin: 0 0 2px; overflow-wrap: anywhere; }
.path { color: var(--soft); overflow-wrap: anywhere; margin: 2px 0 18px; }
.counts { display: flex; flex-wrap: wrap; gap: 12px; padding: 0; margin: 0; list-style: none; }
.counts li { background: var(--card); border: 1px solid var(--line); border-left: 5px solid; border-radius: 6px; padding: 8px 18px; min-width: 120px; }
.counts b { font-size: 24px; display: block; line-height: 1.2; }
.error { border-left-color: var(--error) !important; } .warning { border-left-color: var(--warning) !important; }
.note { border-left-color: var(--note) !important; } .plain { border-left-color: var(--line) !important; }
table { width: 100%; border-collapse: collapse; background: var(--card); border: 1px solid var(--line); }
th, td { text-align: left; vertical-align: top; padding: 6px 10px; border-top: 1px solid var(--line); overflow-wrap: break-word; }
thead th { font-size: 13px; color: var(--soft); font-weight: 600; } caption { text-align: left; color: var(--soft); padding: 4px 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.group { background: var(--card); border: 1px solid var(--line); border-left: 5px solid; border-radius: 6px; margin: 10px 0; padding: 10px 14px 12px; }
.group thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.group table { border: 0; table-layout: fixed; } th[scope=row] { overflow-wrap: anywhere; min-width: 140px; } .where { width: 34%; }
.group h3 span { color: var(--soft); font-weight: 400; } .advice { margin: 2px 0 8px; color: var(--soft); }
.stream { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 12px 16px 14px; margin: 12px 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(310px, 1fr)); gap: 14px 22px; align-items: start; }
figure { margin: 8px 0 0; } figcaption { font-size: 13px; color: var(--soft); } summary { cursor: pointer; color: var(--soft); }
pre { overflow-x: auto; margin: 8px 10px 0; } .strip { display: flex; flex-wrap: wrap; gap: 4px 12px; } .strip img { display: block; max-width: 100%; height: auto; }
.scroll { overflow-x: auto; } svg { display: block; width: 100%; height: auto; } .facts { color: var(--soft); margin: 0; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; } .end { text-anchor: end; } .mid { text-anchor: middle; }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); } .shade { fill: var(--shade); }
.band { fill: var(--band); } .bar { fill: var(--accent); } .odd { fill: var(--odd); } .bad, .gap { fill: var(--error); }
.line { fill: none; stroke: var(--accent); stroke-width: 1.4; } .median { stroke: var(--soft); stroke-dasharray: 3 4; }
.thin { stroke: var(--soft); } .mark { stroke: var(--card); stroke-width: 2; }
footer { color: var(--soft); margin-top: 40px; font-size: 13px; }
@media print { body { background: none; } .stream, .group { break-inside: avoid; } }
"""


def page(report: Report) -> str:
    """Returns the page as UTF-8 HTML."""
    parts = [
        f'<header><h1>Report of the doctor</h1><p class="path">{_text(report.path)}</p>'
        f"<p><strong>{_text(report.verdict)}</strong></p>{_counts(report)}</header>",
        _timeline(report),
        _findings(report),
        _cameras(report),
        _streams(report),
        f"<footer>RoboCache {_text(report.robocache_version)}. Rates and periods are those of each stream's own clock. "
        "docs/doctor.md explains each finding and its thresholds. robocache inspect --verify compares checksums.</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>Doctor: {_text(report.path)}</title><style>{_STYLE}</style></head>\n<body><main>"
        + "\n".join(parts)
        + "</main></body></html>\n"
    )


def _text(value: Any) -> str:
    return escape(printable(str(value)))


def _counts(report: Report) -> str:
    rows = sum(stream["rows"] for stream in report.streams)
    seconds = max((stream["duration_s"] for stream in report.streams), default=0.0)
    numbers = [(number, severity, severity) for severity, number in report.counts.items()]
    numbers += [(report.episodes, "episode", "plain"), (len(report.streams), "stream", "plain"), (rows, "row", "plain")]
    facts = [(*_many(number, noun).split(), kind) for number, noun, kind in numbers]
    facts.append((_duration(seconds), "recorded", "plain"))
    return (
        '<ul class="counts">'
        + "".join(f'<li class="{kind}"><b>{n}</b>{noun}</li>' for n, noun, kind in facts)
        + "</ul>"
    )


def _findings(report: Report) -> str:
    parts = ['<section aria-labelledby="findings"><h2 id="findings">Findings</h2>']
    if not report.findings:
        parts.append("<p>None.</p>")
    for severity in SEVERITIES:
        findings = [finding for finding in report.findings if finding.severity == severity]
        for code, group in groupby(findings, key=lambda finding: finding.code):
            parts.append(_group(code, severity, list(group), report.more.get(code, 0)))
    return "".join(parts) + "</section>"


def _group(code: str, severity: str, findings: list[Finding], more: int) -> str:
    shown, folded = findings[:_SHOWN], findings[_SHOWN:]
    advice = findings[0].advice.partition("\n")[0]
    lines = dict.fromkeys(_text(line) for finding in findings for line in finding.advice.split("\n")[1:])
    lines_to_copy = f"<pre>{chr(10).join(lines)}</pre>" if lines else ""
    rest = f"<p>and {more:,} more</p>" if more else ""
    if folded:
        rest = f"<details><summary>{len(folded):,} more</summary>{_table(folded)}</details>{rest}"
    return (
        f'<article class="group {severity}"><h3>{_text(code)} <span>· {_many(len(findings) + more, severity)}</span></h3>'
        f'<p class="advice">{_text(advice)}</p>{_table(shown)}{rest}{lines_to_copy}</article>'
    )


def _table(findings: list[Finding]) -> str:
    rows = "".join(f"<tr><td>{_text(f.where) or 'all of it'}</td><td>{_text(f.message)}</td></tr>" for f in findings)
    return f'<table><colgroup><col class="where"/><col/></colgroup><thead><tr><th scope="col">where</th><th scope="col">what</th></tr></thead><tbody>{rows}</tbody></table>'


def _timeline(report: Report) -> str:
    if report.pictures is None or not report.pictures.streams:
        return ""
    shown = report.pictures.episodes
    part = f"the first {shown} of {report.episodes} episodes" if shown < report.episodes else _many(shown, "episode")
    return (
        '<section aria-labelledby="timeline"><h2 id="timeline">Episodes</h2><figure class="stream"><div class="scroll">'
        f"{timeline_plot(report.pictures)}</div><figcaption>The times when each stream has rows: {part} one after another, every "
        "second one shaded; long gaps in red.</figcaption></figure></section>"
    )


def _cameras(report: Report) -> str:
    strips = report.pictures.strips if report.pictures is not None else []
    if not strips:
        return ""
    parts = ['<section aria-labelledby="cameras"><h2 id="cameras">Cameras</h2>']
    for strip in strips:
        images = "".join(
            f'<figure><img alt="{_text(f"{strip.name}, episode {episode}, row {row}")}" '
            f'src="data:image/jpeg;base64,{jpeg}"/><figcaption>episode {episode}, row {row}</figcaption></figure>'
            for episode, row, jpeg in strip.frames
        )
        parts.append(f'<article class="stream"><h3>{_text(strip.name)}</h3><div class="strip">{images}</div></article>')
    return "".join(parts) + "</section>"


def _streams(report: Report) -> str:
    if not report.streams:
        return ""
    headings = ("stream", "values", "rows", "Hz", "true Hz", "clock", "lost in gaps", "findings")
    numeric = {"rows", "Hz", "true Hz", "lost in gaps", "findings"}
    heads = "".join(f'<th scope="col"{_number_class(h in numeric)}>{h}</th>' for h in headings)
    rows = []
    for stream in report.streams:
        true_rate_hz, lost_s = stream["true_rate_hz"], stream["lost_s"]
        is_text = stream["kind"] == "text"  # has no rate
        cells = (
            _values(stream),
            f"{stream['rows']:,}",
            "" if is_text else f"{stream['rate_hz']:.5g}",
            "" if is_text else "not steady" if true_rate_hz is None else f"{true_rate_hz:.5g}",
            stream["clock"],
            "" if is_text or lost_s is None else f"{lost_s:.3g} s",
            str(sum(finding.stream == stream["name"] for finding in report.findings)),
        )
        columns = "".join(
            f"<td{_number_class(h in numeric)}>{_text(cell)}</td>" for h, cell in zip(headings[1:], cells, strict=True)
        )
        rows.append(f'<tr><th scope="row">{_text(stream["name"])}</th>{columns}</tr>')
    parts = [
        '<section aria-labelledby="streams"><h2 id="streams">Streams</h2><div class="scroll"><table><thead><tr>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    ]
    texts = {stream["name"] for stream in report.streams if stream["kind"] == "text"}
    for picture in report.pictures.streams if report.pictures is not None else []:
        if picture.name in texts:
            continue
        more = f"; {picture.more} more are not drawn" if picture.more else ""
        more += f"; {picture.constant} are constant" if picture.constant else ""
        figures = (
            (
                periods_plot(picture),
                "Time between rows: the mean, and the range from the least to the largest; gaps beyond it in red.",
            ),
            (
                histogram_plot(picture),
                "How often each period occurs; from 1.5 P on it is a gap, from 10 P on a long gap.",
            ),
            (
                ranges_plot(picture),
                f"Values, each on its own scale: min to max, q01 to q99, and the median{more}.",
            ),
        )
        drawn = "".join(f"<figure>{svg}<figcaption>{caption}</figcaption></figure>" for svg, caption in figures if svg)
        if drawn:
            parts.append(
                f'<article class="stream"><h3>{_text(picture.name)}</h3><div class="figures">{drawn}</div></article>'
            )
    return "".join(parts) + "</section>"


def _values(stream: dict[str, Any]) -> str:
    """Describes a row of the stream."""
    if stream["kind"] == "text":
        return "text"
    return f"{'ragged ' * (stream['kind'] == 'arrays')}{stream['dtype']} {stream['shape']}"


def _number_class(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
