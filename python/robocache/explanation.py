"""Explains in a table where a loader holds its rows, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ._printable import printable
from .notebook import table_html


class Placement(NamedTuple):
    """One key of a batch: the memory tier of its rows, their size in all sources together, and the reason."""

    key: str
    tier: str
    bytes: int
    why: str


def size_text(size: float) -> str:
    """Returns text such as ``"1.5 GiB"``."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


class Explanation(list[Placement]):
    """The result of :meth:`Loader.explain`.

    Attributes:
        anchors: how many anchors are drawn, and the options that chose them; "" if all are drawn.
        on_cpu: whether the batches are made on the CPU. Its table says "memory" for "device" and "pinned", which are the same there.
    """

    def __init__(self, placements: Iterable[Placement] = (), anchors: str = "", on_cpu: bool = False) -> None:
        super().__init__(placements)
        self.anchors, self.on_cpu = anchors, on_cpu

    def _tier_text(self, tier: str) -> str:
        return "memory" if self.on_cpu and tier in ("device", "pinned") else tier

    def _repr_html_(self) -> str:
        rows = [(p.key, self._tier_text(p.tier), size_text(p.bytes), p.why) for p in self]
        return table_html(("key", "tier", "size", "why"), rows, count=len(rows), numbers=(2,))

    def __str__(self) -> str:
        rows = [
            ("key", "tier", "size", "why"),
            *((printable(p.key), self._tier_text(p.tier), size_text(p.bytes), printable(p.why)) for p in self),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{key:<{widths[0]}}  {tier:<{widths[1]}}  {size:>{widths[2]}}  {why}".rstrip()
            for key, tier, size, why in rows
        ]
        return "\n".join([*lines, *([printable(self.anchors)] if self.anchors else [])])
