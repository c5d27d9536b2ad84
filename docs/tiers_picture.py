"""Draws docs/tiers.png, for docs/pictures.py: the memory of the rows in each tier, and their way to the batch."""

from __future__ import annotations

import numpy as np

# Each memory: left, bottom, width, height, name.
MEMORIES = [
    (0.0, 0.0, 2.6, 4.6, "disk"),
    (3.2, 0.0, 4.6, 4.6, "host memory"),
    (8.6, 0.0, 5.6, 4.6, "GPU memory"),
]
# Each box: left, bottom, width, height, text, the tier to which it belongs or None.
BOXES = [
    (9.0, 3.2, 2.0, 0.8, 'rows\n"device"', "device"),
    (3.5, 1.8, 2.0, 0.8, 'rows\n"pinned"', "pinned"),
    (0.3, 0.4, 2.0, 0.8, 'rows\n"mapped"', "mapped"),
    (3.5, 0.4, 1.6, 0.8, "threads:\nwindows", "mapped"),
    (5.9, 0.4, 1.6, 0.8, "ready,\nahead of time", "mapped"),
    (9.0, 1.8, 2.0, 0.8, "one kernel:\nwindows", None),
    (12.0, 1.8, 1.9, 0.8, "batch", None),
    (3.5, 3.2, 2.0, 0.8, "clocks,\nepisodes", None),
    (11.9, 3.2, 2.0, 0.8, "clocks,\nepisodes", None),
]
# Each arrow: the tier or None, the corners, a text and its position.
ARROWS = [
    ("device", [(9.6, 3.2), (9.6, 2.6)], "", (0, 0)),
    ("pinned", [(5.5, 2.2), (9.0, 2.2)], "read across the link by the kernel", (5.62, 2.3)),
    ("mapped", [(2.3, 0.8), (3.5, 0.8)], "pread", (2.62, 0.9)),
    ("mapped", [(5.1, 0.8), (5.9, 0.8)], "", (0, 0)),
    ("mapped", [(7.5, 0.8), (12.95, 0.8), (12.95, 1.8)], "copied across the link on a stream beside", (8.72, 0.9)),
    (None, [(11.0, 2.2), (12.0, 2.2)], "", (0, 0)),
    (None, [(12.9, 3.2), (12.9, 2.9), (10.4, 2.9), (10.4, 2.6)], "", (0, 0)),
    (None, [(3.5, 3.6), (3.35, 3.6), (3.35, 1.0), (3.5, 1.0)], "", (0, 0)),
]
COLOURS = {"device": "C0", "pinned": "C2", "mapped": "C1", None: "0.35"}


def compute_numbers() -> list[np.ndarray]:
    """Returns all numbers and letters of the picture. If they change, docs/pictures.py draws it again."""
    return [np.frombuffer(repr((MEMORIES, BOXES, ARROWS)).encode(), np.uint8)]


def draw(plt, numbers: list[np.ndarray]):
    figure, panel = plt.subplots(figsize=(11, 3.9), layout="constrained")
    for left, bottom, width, height, text in MEMORIES:
        panel.add_patch(plt.Rectangle((left, bottom), width, height, color="0.94", zorder=0))
        panel.text(left + 0.15, bottom + height - 0.15, text, va="top", fontsize=10, color="0.3")
    for left, bottom, width, height, text, tier in BOXES:
        panel.add_patch(
            plt.Rectangle((left, bottom), width, height, fc="white", ec=COLOURS[tier], linewidth=1.8, zorder=2)
        )
        panel.text(left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=9, zorder=3)
    for tier, corners, text, position in ARROWS:
        x, y = zip(*corners, strict=True)
        panel.plot(x, y, color=COLOURS[tier], linewidth=1.8, zorder=1)
        arrow = {"arrowstyle": "-|>", "color": COLOURS[tier], "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
        panel.annotate("", corners[-1], corners[-2], arrowprops=arrow, zorder=4)
        panel.text(*position, text, fontsize=8, color=COLOURS[tier], va="bottom", zorder=3)
    panel.set(xlim=(-0.05, 14.25), ylim=(-0.05, 4.65), aspect="equal")
    panel.axis("off")
    return figure
