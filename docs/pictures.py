"""Draws the pictures of the pages from robocache's results. The script needs matplotlib; ROBOCACHE_TEST_DATA for a scan and
recordings; and chromium for the doctor's pages.

python docs/pictures.py            # rewrite docs/*.png
python docs/pictures.py --check    # exit 1 if a picture shows other numbers than robocache computes now
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import clocks_picture
import frames_picture
import numpy as np
import report_pictures
import tiers_picture
import tsdf_picture

import robocache

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))
from reference.scans import read_scan, scan_path, xyz  # noqa: E402

# The samples are irregular: a burst, a long gap, a jump, a plateau.
TIMES = np.array([0.0, 0.3, 0.5, 0.7, 1.3, 1.55, 2.1, 2.35, 3.0, 3.5, 3.8])
VALUES = np.array([0.1, 0.45, 0.8, 0.6, 0.55, -0.35, -0.5, 0.35, 0.35, 0.35, 0.9])
TARGETS = np.linspace(-0.3, 4.1, 881)
STEPS = ["nearest", "previous", "next"]
METHODS = ["linear", *STEPS, "pchip", "akima", "cubic", "angle", "slerp", "pose"]
WRAPPED_VALUES = (VALUES + 1.6) % 2 - 1  # as an angle in half turns that wraps from 1 to -1


def resample_samples(method: str) -> np.ndarray:
    """Returns the resampled samples at TARGETS, [T, 1]. They are WRAPPED_VALUES for angle, angles of rotations for slerp, and
    x with such angles, [T, 2], for pose."""
    if method == "angle":
        return robocache.resample_trajectories(np.pi * WRAPPED_VALUES[:, None], TIMES, TARGETS, method="angle") / np.pi
    if method not in ("slerp", "pose"):
        return robocache.resample_trajectories(VALUES[:, None], TIMES, TARGETS, method=method)
    rotations = quaternions(VALUES)
    if method == "slerp":
        return angles(robocache.resample_trajectories(rotations, TIMES, TARGETS, method="slerp"))
    pose = np.concatenate([VALUES[:, None], np.zeros((len(TIMES), 2)), quaternions(VALUES - 0.5)], 1)
    resampled_poses = robocache.resample_trajectories(pose, TIMES, TARGETS, method="pose")
    return np.concatenate([resampled_poses[:, :1], angles(resampled_poses[:, 3:])], 1)


def quaternions(turns: np.ndarray) -> np.ndarray:
    """Returns x, y, z, w of rotations about the axis (1, 2, 2) / 3 by `turns` half turns."""
    half = np.pi / 2 * turns[:, None]
    return np.concatenate([np.sin(half) * np.array([1, 2, 2]) / 3, np.cos(half)], 1)


def angles(rotations: np.ndarray) -> np.ndarray:
    """Returns the half turns about the same axis: [T, 1]."""
    axis_part = rotations[:, :3] @ np.array([1, 2, 2]) / 3
    return np.arctan2(axis_part, rotations[:, 3])[:, None] / (np.pi / 2)


STREAMS = {  # the method of each stream, and its rate in Hz
    "camera at 10 Hz": ("linear", 10),
    "joint at 50 Hz, 0.2 s missing": ("linear", 50),
    "gripper when it moves": ("previous", 0),
}
FUSE_TARGETS = np.linspace(0.02, 0.98, 25)


def make_streams() -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns values [S, 1] and times [S] of each stream."""
    rng = np.random.default_rng(4)
    streams = []
    for name, (_, rate) in STREAMS.items():
        if rate:
            times = (np.arange(rate) + 0.5 + rng.uniform(-0.25, 0.25, rate)) / rate
            values = np.sin(2 * np.pi * times * (1 if rate < 20 else 2))
        else:
            times = np.array([0.04, 0.3, 0.33, 0.71])
            values = np.array([-1.0, 0.2, 1.0, -1.0])
        if "missing" in name:
            keep = (times < 0.5) | (times > 0.7)
            times, values = times[keep], values[keep]
        streams.append((values[:, None], times))
    return streams


def fuse_streams() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns out [T, 3], valid [T, 3], age [T, 3]."""
    return robocache.fuse_multimodal(
        make_streams(),
        FUSE_TARGETS,
        method=[method for method, _ in STREAMS.values()],
        max_gap=[0.15, 0.05, None],
        return_valid=True,
        return_age=True,
    )


VOXEL_M, CORNER, SIZE = 0.25, (-12.0, -12.0, -3.0), (96, 80, 24)  # the near part of an outdoor scan


def voxelize_scan() -> list[np.ndarray] | None:
    """Returns for a real scan: its points [N, 3]; occupancy [X, Y, Z]; and for columns of voxels the count [X, Y] and the mean
    and the largest height [X, Y], NaN in empty columns. None without ROBOCACHE_TEST_DATA."""
    if scan_path("small_gicp") is None:
        return None
    points = xyz(read_scan("small_gicp"))
    grid = {"grid_min": CORNER, "voxel_size": VOXEL_M, "grid_size": SIZE}
    columns = {**grid, "voxel_size": (VOXEL_M, VOXEL_M, VOXEL_M * SIZE[2]), "grid_size": (*SIZE[:2], 1)}
    occupied = robocache.voxelize_pointcloud(points, **grid)
    results_of_columns = robocache.voxelize_pointcloud(
        points, points[:, 2:], mode=["count", "mean", "max"], fill=np.nan, **columns
    )
    return [points, occupied, *(array.reshape(SIZE[:2]) for array in results_of_columns.values())]


# The picture of windows: streams, their windows, and two anchors, one near the recording's end. Every step has a sample.
WINDOW = [-0.2, -0.1, 0.0, 0.1, 0.2, 0.3]
WINDOW_STREAMS = {  # the mean rate in Hz, and the options of the window
    "arm: linear, max_gap_s=0.12": (14, {"max_gap_s": 0.12}),
    "force: linear, offset_s=0.06, causal=True": (9, {"offset_s": 0.06, "causal": True}),
    "gripper: nearest, tolerance_s=0.06": (5, {"method": "nearest", "tolerance_s": 0.06}),
}
WINDOW_SHOWN = (0.2, 1.9)  # seconds
WINDOW_ANCHORS_NS = np.array([650_000_000, 1_520_000_000])


def make_window_rows() -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns time_ns [n] and values [n] of each stream; the arm has a dropout."""
    rng = np.random.default_rng(12)
    rows = []
    for number, (rate, _) in enumerate(WINDOW_STREAMS.values()):
        seconds = np.sort(0.1 + (np.arange(int(1.65 * rate)) + rng.uniform(-0.4, 0.4, int(1.65 * rate))) / rate)
        if number == 0:
            seconds = seconds[(seconds < 0.72) | (seconds > 0.92)]
        rows.append((np.round(seconds * 1e9).astype(np.int64), np.sin(2 * np.pi * seconds * (0.9 - 0.2 * number))))
    return rows


def load_windows() -> list[np.ndarray]:
    """Returns values, is_pad and age in ns for each stream, each array as [anchors, steps]."""
    names = [title.split(":")[0] for title in WINDOW_STREAMS]
    windows = {
        name: robocache.Window(WINDOW, **options)
        for name, (_, options) in zip(names, WINDOW_STREAMS.values(), strict=True)
    }
    with tempfile.TemporaryDirectory() as folder:
        with robocache.Writer(f"{folder}/cache") as writer, writer.episode() as episode:
            episode.append("anchor", WINDOW_ANCHORS_NS, np.zeros(len(WINDOW_ANCHORS_NS)))
            for name, (time_ns, values) in zip(names, make_window_rows(), strict=True):
                episode.append(name, time_ns, values)
        loader = robocache.Loader(
            robocache.open(f"{folder}/cache"),
            batch_size=len(WINDOW_ANCHORS_NS),
            delta_timestamps=windows,
            default=robocache.Window(dtype="float64"),
            anchors="anchor",
            shuffle=False,
            return_age=True,
            framework="numpy",
        )
        batch = next(loader)
    return [batch[name + part] for name in names for part in ("", "_is_pad", "_age")]


# ---- Drawing ----


def draw_methods(plt, numbers: list[np.ndarray]):
    figure, panels = plt.subplots(2, 5, figsize=(11, 4.4), sharex=True, sharey=True, layout="constrained")
    titles = {"angle": "angle: the shorter way", "slerp": "slerp: a rotation's angle"}
    for panel, method, lines in zip(panels.flat, METHODS, numbers, strict=True):
        for number, line in enumerate(lines.T):
            jumps = np.abs(np.diff(line, prepend=line[0])) > {"angle": 1}.get(method, 0 if method in STEPS else np.inf)
            panel.plot(TARGETS, np.where(jumps, np.nan, line), color=f"C{number}", label=["position", "angle"][number])
        for sample in {"angle": [WRAPPED_VALUES], "pose": [VALUES, VALUES - 0.5]}.get(method, [VALUES]):
            panel.plot(TIMES, sample, "o", color="black", markersize=4)
        panel.axvspan(TARGETS[0], TIMES[0], color="0.92", zorder=0)
        panel.axvspan(TIMES[-1], TARGETS[-1], color="0.92", zorder=0)
        panel.set_title(titles.get(method, method), fontsize=10)
    panels.flat[METHODS.index("pose")].legend(fontsize=8, loc="upper center", ncols=2)
    panels[0, 0].set(xlim=TARGETS[[0, -1]], ylim=(-1.35, 1.35))
    return figure


def draw_fusion(plt, numbers: list[np.ndarray]):
    out, valid, age = numbers
    figure, panels = plt.subplots(4, 1, figsize=(11, 6.6), sharex=True, layout="constrained")
    for stream, (name, (values, times)) in enumerate(zip(STREAMS, make_streams(), strict=True)):
        panel, color, is_valid = panels[stream], f"C{stream}", valid[:, stream]
        method, _ = STREAMS[name]
        panel.plot(times, values[:, 0], ".", color="black", markersize=5, label="sample")
        panel.plot(FUSE_TARGETS[is_valid], out[is_valid, stream], "o", color=color, markersize=6, label="valid")
        panel.plot(
            FUSE_TARGETS[~is_valid], out[~is_valid, stream], "o", color=color, mfc="none", markersize=6, label="invalid"
        )
        panel.set_title(f"{name}: {method}", fontsize=10)
        panel.set_ylim(-1.4, 1.4)
        panels[3].plot(FUSE_TARGETS, age[:, stream] * 1e3, "o-", color=color, markersize=4, linewidth=1)
    for panel in panels:
        panel.set_xticks(FUSE_TARGETS, minor=True)
        panel.grid(axis="x", which="minor", color="0.9", linewidth=0.8)
    panels[0].legend(fontsize=8, loc="lower left", ncols=3)
    panels[3].set_title("age: target minus the sample used", fontsize=10)
    panels[3].set(ylabel="ms", xlabel="s")
    return figure


def draw_voxels(plt, numbers: list[np.ndarray]):
    from matplotlib.colors import LogNorm

    points, occupied, count, mean, largest = numbers
    figure = plt.figure(figsize=(11, 8.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.9])
    low, high = np.array(CORNER), np.array(CORNER) + VOXEL_M * np.array(SIZE)
    heights = {"vmin": -2.5, "vmax": 1.5, "cmap": "viridis"}
    panels = top.subplots(1, 4, sharex=True, sharey=True)
    panels[0].scatter(points[:, 0], points[:, 1], c=points[:, 2], s=0.1, **heights)
    panels[0].set_title("the points", fontsize=10)
    grids = {
        "count": (np.where(count > 0, count, np.nan), {"norm": LogNorm(1, 1000), "cmap": "magma"}),
        "mean height, m": (mean, heights),
        "max height, m": (largest, heights),
    }
    extent = (low[0], high[0], low[1], high[1])
    for panel, (title, (grid, colours)) in zip(panels[1:], grids.items(), strict=True):
        image = panel.imshow(grid.T, origin="lower", extent=extent, **colours)
        top.colorbar(image, ax=panel, shrink=0.7)
        panel.set_title(title, fontsize=10)
    for panel in panels:
        panel.set(aspect="equal", xlim=extent[:2], ylim=extent[2:])
    space = bottom.add_subplot(projection="3d")
    corners = np.meshgrid(*(np.linspace(low[k], high[k], SIZE[k] + 1) for k in range(3)), indexing="ij")
    height = (corners[2][:-1, :-1, :-1] - heights["vmin"]) / (heights["vmax"] - heights["vmin"])
    space.voxels(*corners, occupied, facecolors=plt.get_cmap(heights["cmap"])(height))
    space.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    space.set_box_aspect(np.array(SIZE), zoom=1.45)
    space.view_init(elev=38, azim=-55)
    bottom.suptitle(f"occupancy: {int(occupied.sum()):,} voxels of {VOXEL_M} m", fontsize=10)
    return figure


def draw_windows(plt, numbers: list[np.ndarray]):
    count = len(WINDOW_STREAMS)
    figure, panels = plt.subplots(
        count + 1, 1, figsize=(11, 7.2), sharex=True, layout="constrained", height_ratios=[1] * count + [0.8]
    )
    targets = WINDOW_ANCHORS_NS[:, None] / 1e9 + np.array(WINDOW)
    for number, ((title, (_, options)), (time_ns, samples)) in enumerate(
        zip(WINDOW_STREAMS.items(), make_window_rows(), strict=True)
    ):
        panel, (values, is_pad, age) = panels[number], numbers[3 * number : 3 * number + 3]
        latency = options.get("offset_s", 0)
        sample_times = time_ns / 1e9 - latency
        if latency:
            panel.plot(time_ns / 1e9, samples, ".", color="0.75", markersize=5)
        panel.plot(sample_times, samples, ".", color="black", markersize=5)
        used_times = targets - age / 1e9
        for row in range(len(targets)):
            for step in range(len(WINDOW)):
                sample = int(np.argmin(abs(sample_times - used_times[row, step])))
                end = (targets[row, step], values[row, step])
                panel.plot([sample_times[sample], end[0]], [samples[sample], end[1]], color=f"C{row}", linewidth=1.2)
            is_valid = ~is_pad[row]
            panel.plot(targets[row, is_valid], values[row, is_valid], "o", color=f"C{row}", markersize=6)
            panel.plot(targets[row, ~is_valid], values[row, ~is_valid], "o", color=f"C{row}", mfc="none", markersize=6)
            bars = targets[row] + 0.012 * (number - 1)
            panels[count].bar(bars, age[row] / 1e6, 0.011, color=["0.2", "0.5", "0.75"][number])
        panel.set_title(title, fontsize=10)
        panel.set_ylim(-1.35, 1.35)
        panel.axvspan(sample_times[-1], WINDOW_SHOWN[1], color="0.94", zorder=0)
        panel.axvspan(WINDOW_SHOWN[0], sample_times[0], color="0.94", zorder=0)
    for panel in panels:
        panel.set_xticks(targets.ravel(), minor=True)
        panel.grid(axis="x", which="minor", color="0.88", linewidth=0.8)
        for row, anchor in enumerate(WINDOW_ANCHORS_NS / 1e9):
            panel.axvline(anchor, color=f"C{row}", linestyle="--", linewidth=1.2)
    handles = [
        plt.Line2D([], [], color=color, marker=marker, mfc=face, linestyle=line, label=label)
        for color, marker, face, line, label in [
            ("black", ".", "black", "", "a sample, when it was taken"),
            ("0.75", ".", "0.75", "", "the same, as stamped"),
            ("0.4", "", "none", "--", "an anchor"),
            ("0.4", "o", "0.4", "", "a step's value"),
            ("0.4", "o", "none", "", "is_pad"),
            ("0.4", "", "none", "-", "from the sample used"),
        ]
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=6, fontsize=8)
    panels[count].set_title("age: what a step aims at less the sample used; arm, force, gripper", fontsize=10)
    panels[count].axhline(0, color="black", linewidth=0.8)
    panels[count].set(ylabel="ms", xlabel="s", xlim=WINDOW_SHOWN)
    return figure


# For each picture: the function that draws it, and the function that computes its numbers, or None if their source is missing.
PICTURES: dict[str, tuple[Callable, Callable[[], list[np.ndarray] | None]]] = {
    "resample-methods.png": (draw_methods, lambda: [resample_samples(method) for method in METHODS]),
    "fuse.png": (draw_fusion, lambda: list(fuse_streams())),
    "voxelize.png": (draw_voxels, voxelize_scan),
    "window.png": (draw_windows, load_windows),
    "clocks.png": (clocks_picture.draw, clocks_picture.compute_numbers),
    "tiers.png": (tiers_picture.draw, tiers_picture.compute_numbers),
    "frames.png": (frames_picture.draw, frames_picture.compute_numbers),
    "tsdf.png": (tsdf_picture.draw, tsdf_picture.compute_numbers),
}


def digest(numbers: list[np.ndarray]) -> str:
    """Returns a hash of a picture's numbers. The picture stores the hash."""
    text = "\n".join(",".join(f"{x:.6f}" for x in array.astype(float).ravel() + 0.0) for array in numbers)
    return hashlib.sha256(text.encode()).hexdigest()


def is_stale(path: Path, numbers: list[np.ndarray]) -> bool:
    """Returns whether a picture shows other numbers than `numbers`, and prints so."""
    if path.exists() and digest(numbers).encode() in path.read_bytes():
        return False
    print(f"{path.name} is out of date: run python docs/pictures.py")
    return True


def update(path: Path, draw: Callable, numbers: list[np.ndarray], check: bool) -> bool:
    """Draws a picture; with `check` only returns whether it is stale."""
    if check:
        return is_stale(path, numbers)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = draw(plt)
    figure.savefig(path, dpi=90, metadata={"Description": digest(numbers)})
    plt.close(figure)
    print(f"{path.name} drawn")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a picture is out of date")
    options = parser.parse_args()
    stale = False
    for name, (draw, compute) in PICTURES.items():
        numbers = compute()
        if numbers is None:
            print(f"{name} is left as it is: it shows a scan that is not here")
        else:
            stale |= update(HERE / name, functools.partial(draw, numbers=numbers), numbers, options.check)
    for name in report_pictures.NAMES:
        numbers = report_pictures.compute_numbers(name)
        path = HERE / name
        if numbers is None:
            print(f"{name} is left as it is: it shows a recording that is not here")
        elif options.check:
            stale |= is_stale(path, numbers)
        elif report_pictures.draw(name, path, digest(numbers)):
            print(f"{name} drawn")
        else:
            print(f"{name} is left as it is: chromium, Pillow and matplotlib draw it")
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
