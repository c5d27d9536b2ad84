"""Draws bench/results/*-sweep.json as heat maps and *-shapes.json as ratios over bytes, to docs/<bench>-<machine>.png. Needs
matplotlib.

python bench/sweep_picture.py            # bench/render.py also draws them, if matplotlib is installed
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURED = "sweep", "shapes"
COLOURS = 1.0, 4.0  # the smallest and the largest ratio of the scale


def make_picture_path(result: dict) -> Path:
    return ROOT / f"docs/{result['bench']}-{result['machine']['name']}.png"


def digest(result: dict) -> str:
    """Returns a hash of all drawn numbers. The picture stores it, so that :func:`is_current` recognises an outdated picture."""
    keys = "rows", "columns", "ratios", "shapes"
    drawn_numbers = [[case["name"], *(case[key] for key in keys if key in case)] for case in result["cases"]]
    return hashlib.sha256(json.dumps(drawn_numbers).encode()).hexdigest()


def is_current(result: dict) -> bool:
    path = make_picture_path(result)
    return path.exists() and digest(result).encode() in path.read_bytes()


def draw(result: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = draw_shapes(result, plt) if result["bench"] == "shapes" else draw_planes(result, plt)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80, metadata={"Description": digest(result)})
    plt.close(figure)


def draw_shapes(result: dict, plt: Any) -> Any:
    """Draws a point for each shape, with a ring around it if torch.compile is faster."""
    figure, axes = plt.subplots(figsize=(11, 6), layout="constrained")
    operations: dict[str, list[dict]] = {}
    for case in result["cases"]:
        operations.setdefault(case["name"].split(",")[0], []).extend(case.get("shapes", []))
    for operation, shapes in operations.items():
        axes.scatter([x["bytes"] for x in shapes], [x["times_the_copy"] for x in shapes], s=14, label=operation)
    slower = [x for shapes in operations.values() for x in shapes if x.get("faster_than", 1) < 1]
    if slower:
        sizes, ratios = [x["bytes"] for x in slower], [x["times_the_copy"] for x in slower]
        axes.scatter(sizes, ratios, s=90, facecolors="none", edgecolors="red", label="torch.compile is faster")
    axes.set(xscale="log", yscale="log", xlabel="bytes that must move", ylabel="time over a copy of as many bytes")
    axes.set_yticks([1, 1.5, 2, 3, 4, 6, 8], ["1", "1.5", "2", "3", "4", "6", "8"])
    axes.grid(alpha=0.3)
    axes.legend()
    machine = result["machine"]
    figure.suptitle(f"shapes drawn by seeds, {machine.get('gpu', machine['cpu'])}")
    return figure


def draw_planes(result: dict, plt: Any) -> Any:
    from matplotlib.colors import LogNorm

    planes = [case for case in result["cases"] if any(x is not None for line in case.get("ratios", []) for x in line)]
    line_count = math.ceil(len(planes) / 2)
    heights = [
        max(2, 0.45 * max(len(case["rows"]) for case in planes[2 * k : 2 * k + 2])) + 0.9 for k in range(line_count)
    ]
    figure, all_axes = plt.subplots(
        line_count,
        2,
        figsize=(20, sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axes in all_axes.flat[len(planes) :]:
        axes.set_visible(False)
    norm = LogNorm(*COLOURS)
    for axes, case in zip(all_axes.flat, planes, strict=False):
        ratios = [[math.nan if x is None else x for x in line] for line in case["ratios"]]
        image = axes.imshow(ratios, norm=norm, cmap="RdYlGn_r", aspect="auto")
        axes.set_xticks(range(len(case["columns"])), case["columns"])
        axes.set_yticks(range(len(case["rows"])), case["rows"])
        axes.set(xlabel=case["column_axis"], ylabel=case["row_axis"])
        constants = ", ".join(f"{key} {value}" for key, value in case["parameters"].items())
        axes.set_title(constants, fontsize=9)
        for i, line in enumerate(ratios):
            for j, ratio in enumerate(line):
                if not math.isnan(ratio):
                    axes.text(j, i, f"{ratio:.2g}", ha="center", va="center", fontsize=7)
    figure.colorbar(image, ax=all_axes, shrink=0.4, ticks=[1, 1.5, 2, 3, 4], format="%g", extend="both")
    machine = result["machine"]
    figure.suptitle(f"resample_trajectories: time over a copy of the same bytes, {machine.get('gpu', machine['cpu'])}")
    return figure


def main() -> int:
    for path in sorted(path for bench in PICTURED for path in (ROOT / "bench/results").glob(f"*-{bench}.json")):
        result = json.loads(path.read_text())
        draw(result, make_picture_path(result))
        print(f"{make_picture_path(result).relative_to(ROOT)} drawn")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
