"""Computes and draws docs/frames.png, for docs/pictures.py: one action by each kind of robocache.actions.relative, in a plane."""

from __future__ import annotations

import numpy as np

from robocache import actions

KINDS = {
    "se3": "both in the base pose's frame",
    "mixed": "p in the world's frame, R in the base pose's",
    "base_frame": "both in the world's frame",
}
STATE = np.array([1.0, 0.8, 0.0, 0.0, 0.0, np.pi / 3])  # x, y, z and a rotation vector
ACTION = np.array([[2.2, 1.3, 0.0, 0.0, 0.0, np.pi * 0.6]])


def compute_numbers() -> list[np.ndarray]:
    """Returns the action relative to the state, by each kind."""
    return [actions.relative(ACTION, STATE, kind, rotation="rotvec")[0] for kind in KINDS]


def draw(plt, numbers: list[np.ndarray]):
    figure, panels = plt.subplots(1, len(KINDS), figsize=(11, 3.6), layout="constrained", sharey=True)
    for panel, (kind, text), relative in zip(panels, KINDS.items(), numbers, strict=True):
        turn = STATE[5] if kind == "se3" else 0.0
        axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        corner = STATE[:2]
        for pose, name, colour in ((np.zeros(6), "world", "0.5"), (STATE, "state", "C0"), (ACTION[0], "action", "C1")):
            for angle in (pose[5], pose[5] + np.pi / 2):
                end = pose[:2] + 0.4 * np.array([np.cos(angle), np.sin(angle)])
                panel.annotate("", end, pose[:2], arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.8})
            panel.text(pose[0] + 0.08, pose[1] - 0.22, name, color=colour, fontsize=9)
        for part, axis in zip(relative[:2], axes, strict=True):  # one line along each axis of the frame
            panel.plot(*zip(corner, corner + part * axis, strict=True), "--", color="C2", linewidth=1.4)
            corner = corner + part * axis
        panel.set_title(
            f'"{kind}": {text}\n({relative[0]:.2f}, {relative[1]:.2f}), {np.degrees(relative[5]):.0f} degrees',
            fontsize=9,
        )
        panel.set(xlim=(-0.3, 3.0), ylim=(-0.4, 2.2), aspect="equal", xticks=[], yticks=[])
    return figure
