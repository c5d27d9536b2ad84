"""Draws pictures as SVG strings. Their colours are the page's, so they follow its light and dark modes."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from .._printable import printable
from .pictures import Pictures, StreamPicture
from .streams import EDGES

_WIDTH, _LEFT, _RIGHT, _TOP = 350, 52, 10, 12


def periods_plot(picture: StreamPicture) -> str:
    """Draws the time between rows: the least, the mean and the largest of each part of the rows; higher gaps in red."""
    height, bottom = 170, 140
    p = picture.period_ns
    known = picture.high[~np.isnan(picture.high)]
    if not len(known) or p <= 0:
        return ""
    top = float(min(max(known.max(), 1.5 * p), 4 * p)) * 1.05
    scale, unit = (1e9, "s") if p >= 1e9 else (1e6, "ms") if p >= 1e5 else (1e3, "µs")
    plot = _Plot(height, bottom, 0, len(picture.mean), 0, top / scale)
    parts = [plot.frame(f"{unit} between rows", "rows, from the first to the last")]
    runs = np.split(np.arange(len(picture.mean)), np.flatnonzero(np.diff(np.isnan(picture.mean).astype(int))) + 1)
    for run in runs:
        if np.isnan(picture.mean[run[0]]):
            continue
        upper = [plot.at(i + 0.5, min(picture.high[i], top) / scale) for i in run]
        lower = [plot.at(i + 0.5, min(picture.low[i], top) / scale) for i in reversed(run)]
        middle = [plot.at(i + 0.5, min(picture.mean[i], top) / scale) for i in run]
        parts.append(f'<polygon class="band" points="{_points(upper + lower)}"/>')
        parts.append(f'<polyline class="line" points="{_points(middle)}"/>')
    for i in np.flatnonzero(np.nan_to_num(picture.high) > top).tolist():
        x, _ = plot.at(i + 0.5, 0)
        parts.append(f'<path class="gap" d="M{x - 3:.1f} {_TOP + 1}h6l-3 7z"/>')
    x, y = plot.at(0, p / scale)
    parts.append(f'<line class="median" x1="{x}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
    return _svg(height, f"{picture.name}: time between rows over the recording, median {p / scale:.4g} {unit}", parts)


def histogram_plot(picture: StreamPicture) -> str:
    """Draws how often each period occurs, in median periods. Both axes are logarithmic."""
    height, bottom = 170, 140
    counts = picture.histogram
    if not counts.sum():
        return ""
    plot = _Plot(height, bottom, math.log(EDGES[0]), math.log(EDGES[-1]), 0, math.log10(counts.max() + 1) * 1.05)
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>']
    for decade in range(int(math.log10(counts.max() + 1)) + 1):
        _, y = plot.at(0, math.log10(10**decade + 1))
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4}">{10**decade:,}</text>')
    for count, low, high in zip(counts.tolist(), EDGES[:-1], EDGES[1:], strict=True):
        if count:
            x, y = plot.at(math.log(low), math.log10(count + 1))
            right, _ = plot.at(math.log(high), 0)
            # Periods are gaps from 1.5 P on, and long gaps from 10 P on.
            kind = "bar" if low < 1.49 else "bar odd" if low < 9.99 else "bar bad"
            parts.append(
                f'<rect class="{kind}" x="{x}" y="{y}" width="{max(right - x - 0.8, 1):.1f}" height="{bottom - y:.1f}"/>'
            )
    for ratio in (0.1, 0.5, 1, 1.5, 10):
        x, _ = plot.at(math.log(ratio), 0)
        parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="tick mid" x="{x}" y="{bottom + 16}">{ratio:g}</text>')
    parts.append(
        f'<text class="label mid" x="{(_LEFT + _WIDTH) / 2}" y="{height - 1}">time between rows, in medians P</text>'
    )
    zeros = f", and {picture.zeros:,} of 0" if picture.zeros else ""
    return _svg(height, f"{picture.name}: how often each time between rows occurs{zeros}", parts)


def ranges_plot(picture: StreamPicture) -> str:
    """Draws each feature on its own scale: a thin line from min to max, a thick one from q01 to q99, and the median."""
    features = [f for f in picture.features if all(math.isfinite(x) for x in f[1:])]
    if not features:
        return ""
    left, right, row = 178, 60, 17
    height, width = _TOP + row * len(features) + 4, _WIDTH - left - right
    parts = []
    for index, (name, least, q01, middle, q99, most) in enumerate(features):
        y = _TOP + row * index + row / 2
        a, b, c = (round(left + width * (value - least) / (most - least), 1) for value in (q01, middle, q99))
        parts.append(f'<text class="tick end" x="{left - 76}" y="{y + 4}">{_shorten(name, 16)}</text>')
        parts.append(f'<text class="tick end" x="{left - 6}" y="{y + 4}">{least:.3g}</text>')
        parts.append(f'<line class="thin" x1="{left}" x2="{left + width}" y1="{y}" y2="{y}"/>')
        parts.append(f'<rect class="bar" x="{a}" y="{y - 4}" width="{max(c - a, 1):.1f}" height="8" rx="2"/>')
        parts.append(f'<line class="mark" x1="{b}" x2="{b}" y1="{y - 5}" y2="{y + 5}"/>')
        parts.append(f'<text class="tick" x="{left + width + 6}" y="{y + 4}">{most:.3g}</text>')
    return _svg(height, f"{picture.name}: the range of each feature, from its least to its largest value", parts)


def timeline_plot(pictures: Pictures) -> str:
    """Draws a lane per stream over all episodes, one after another; long gaps in red."""
    width, left, lane = 960, 190, 20
    height = _TOP + lane * len(pictures.streams) + 24
    bottom = _TOP + lane * len(pictures.streams)

    def x(part: float) -> float:
        return round(left + (width - left - 12) * part, 1)

    parts = []
    for index, (begin, end) in enumerate(zip(pictures.borders[:-1], pictures.borders[1:], strict=True)):
        if index % 2 == 0:
            wide = max(x(end) - x(begin), 0.2)
            parts.append(f'<rect class="shade" x="{x(begin)}" y="{_TOP}" width="{wide:.1f}" height="{bottom - _TOP}"/>')
    for index, picture in enumerate(pictures.streams):
        y = _TOP + lane * index
        parts.append(
            f'<text class="tick end" x="{left - 8}" y="{y + lane / 2 + 4}">{_shorten(picture.name, 28)}</text>'
        )
        for begin, end in picture.spans:
            wide = max(x(end) - x(begin), 0.6)
            parts.append(f'<rect class="bar" x="{x(begin)}" y="{y + 5}" width="{wide:.1f}" height="{lane - 10}"/>')
        for position in picture.gaps:
            parts.append(f'<rect class="gap" x="{x(position) - 0.75}" y="{y + 2}" width="1.5" height="{lane - 4}"/>')
    for tick in _ticks(0, pictures.seconds, 8):
        position = x(tick / pictures.seconds)
        parts.append(f'<text class="tick mid" x="{position}" y="{bottom + 16}">{tick:g} s</text>')
    return _svg(
        height, f"the times when each stream has rows, in {pictures.episodes} episodes one after another", parts, width
    )


class _Plot:
    """Maps values to positions in a picture."""

    def __init__(self, height: int, bottom: int, x0: float, x1: float, y0: float, y1: float) -> None:
        self.height, self.bottom = height, bottom
        self.x0, self.x1, self.y0, self.y1 = x0, x1, y0, y1

    def at(self, x: float, y: float) -> tuple[float, float]:
        x_share = (x - self.x0) / (self.x1 - self.x0)
        y_share = (y - self.y0) / (self.y1 - self.y0)
        return (
            round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * x_share, 1),
            round(self.bottom - (self.bottom - _TOP) * y_share, 1),
        )

    def frame(self, y_label: str, x_label: str) -> str:
        parts = []
        for tick in _ticks(self.y0, self.y1, 4):
            _, y = self.at(self.x0, tick)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4}">{tick:g}</text>')
        middle = (_TOP + self.bottom) / 2
        parts.append(
            f'<text class="label mid" transform="rotate(-90)" x="{-middle}" y="11">{y_label}</text>'
            f'<text class="label mid" x="{(_LEFT + _WIDTH) / 2}" y="{self.height - 8}">{x_label}</text>'
        )
        return "".join(parts)


def _svg(height: float, title: str, parts: list[str], width: int = _WIDTH) -> str:
    label = escape(printable(title))
    return f'<svg viewBox="0 0 {width} {height:g}" role="img" aria-label="{label}"><title>{label}</title>{"".join(parts)}</svg>'


def _points(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


def _ticks(low: float, high: float, number: int) -> list[float]:
    """Returns about `number` round numbers between low and high."""
    if not high > low:
        return [low]
    rough = (high - low) / number
    step = 10 ** math.floor(math.log10(rough))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round((first + i) * step, 12) for i in range(math.floor((high - first * step) / step + 1e-9) + 1)]


def _shorten(text: str, length: int) -> str:
    """Returns the text, with its middle cut out if it is too long; an SVG title then holds the whole text."""
    text = printable(text)
    if len(text) <= length:
        return escape(text)
    half = (length - 1) // 2
    return f"{escape(text[:half])}…{escape(text[-half:])}<title>{escape(text)}</title>"
