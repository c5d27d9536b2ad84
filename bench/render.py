"""Renders bench/results/*.json into README.md and pages of docs, between their markers.

python bench/render.py            # rewrite the pages; draw the sweep if matplotlib is installed
python bench/render.py --check    # exit 1 if a page is out of date
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from first_batch import SOURCE_AIM_S, WHEEL_AIM_S
from sweep_picture import PICTURED, draw, is_current, make_picture_path

ROOT = Path(__file__).resolve().parents[1]
TRAINING = ROOT / "bench/results/training-aloha-loaders.json"  # by examples.aloha compare
OURS = "robocache"
Results = dict[str, dict]  # by the file's name without .json

# The README's table: the result, its case, its name in words, and the measure of its speed.
HEADLINES = [
    (
        "nvidia-h200-resample",
        "B1024 S2048 T1024 D64",
        "`resample_trajectories`: 1024 x 2048 samples of 64 features to 1024 times, bfloat16",
        "gpu_us",
    ),
    ("nvidia-h200-fuse", "B64", "`fuse_multimodal`: 64 episodes of 3 streams to 50 times", "gpu_us"),
    (
        "nvidia-h200-voxelize",
        "occupancy, 10M uniform, 128^3",
        "`voxelize_pointcloud`: occupancy of 128^3 voxels by 10M points",
        "gpu_points_per_s",
    ),
    (
        "nvidia-h200-voxelize",
        "hard voxels, 250k lidar, 5 points each",
        "`voxelize_sparse`: 5 points a voxel of 250k lidar points",
        "gpu_points_per_s",
    ),
    (
        "intel-xeon-2-cores-voxelize",
        "downsample, 1M lidar, 0.1 m",
        "`voxel_downsample`: centroids of 1M lidar points",
        "points_per_s",
    ),
    (
        "nvidia-h200-tsdf",
        "depth carving, 256^3",
        "`integrate_tsdf`: a depth image of 640 x 480 into 256^3 voxels",
        "gpu_us",
    ),
    (
        "nvidia-h200-images",
        "decode, 1024 x 224x224",
        "`decode_jpeg`: 1024 JPEGs of 224 x 224 in device memory to pixels",
        "frames_per_s",
    ),
    (
        "nvidia-h200-images",
        "batches of 256, 2 cameras, device",
        "a training batch: 256 samples of state, 16 actions and two cameras of 224 x 224, from JPEGs",
        "samples_per_s",
    ),
]

# The title of each benchmark on the page, in the page's order.
TITLES = {
    "loader": "Loader",
    "loader_one_clock": "Loader, rows of one clock",
    "lerobot_train": "lerobot-train, with our dataset",
    "residency": "Loader, out of each tier",
    "ranks": "Loader, on several GPUs",
    "episodes": "Loader, of many episodes",
    "actions": "Loader, converted actions",
    "live": "Live",
    "ros2": "Live, out of ROS 2",
    "ros2_sets": "Live, frames with joints out of ROS 2",
    "statistics_of_windows": "Statistics of windows",
    "resample": "resample_trajectories",
    "sweep": "resample_trajectories over shapes, types and clocks",
    "fuse": "fuse_multimodal",
    "shapes": "Shapes drawn by a seed",
    "voxelize": "voxelize_pointcloud, voxelize_sparse, voxel_downsample",
    "tsdf": "integrate_tsdf",
    "images": "Cameras",
    "lerobot_batches": "Cameras, beside LeRobot",
    "videos": "Videos",
    "ingest": "Ingest",
}

# RoboCache's measures on the page, in the order of the columns.
COLUMNS = {
    "gpu_us": "device alone",
    "wall_us": "in a loop",
    "samples_per_s": "samples/s",
    "frames_per_s": "frames/s",
    "read_bytes_per_s": "bytes read/s",
}

# The benchmarks that are not on docs/benchmarks.md. docs/images.md, docs/formats.md and docs/live.md show the first five. The last
# two are only in the files.
ELSEWHERE = ("images", "lerobot_batches", "videos", "ingest", "ros2_sets", "loader_one_clock", "statistics_of_windows")

# Shares for which less is better.
ADDED = ("grown_by", "doctor_adds")

# Measures that are only in the files.
ONLY_IN_FILES = (
    "ingest_s",
    "doctor_adds",
    "share_of_writing",
    "writing_of_library",
    "library_bytes_per_s",
    "queued_us",
    "writer_share",
)

# A case with one of these in its name is a variant of another case. The page summarises the variants.
VARIANTS = [
    *("int64 clocks", "float32 values", "float16 values", "D7", "D14", "akima"),
    *("quantum", "gaussian", "500k", "10M uniform, 256^3", "mean and max", "depth camera", "downsample, outdoor lidar"),
    *("depth, 512^3", "depth carving, 512^3", "camera points", "lidar points, 512^3"),
    *("count, 10M lidar", "count, 1M lidar", "count, outdoor lidar", "mean of 8, 10M lidar"),
    *("B256 S500", "B64 S1000", "count, 1M uniform", "occupancy, 1M uniform", "depth, 256^3"),
]

# The same of cases without a copy: with the memory pinned, or after a sleep.
VARIANTS_WITHOUT_A_COPY = ("pinned", "of sleep")


def read_results(folder: Path) -> Results:
    """Returns the benchmarks' results in the order of TITLES, a GPU's before a CPU's."""
    paths = [path for path in sorted(folder.glob("*.json")) if "training" not in path.stem]
    results = {path.stem: json.loads(path.read_text()) for path in paths}
    order = list(TITLES)
    return dict(
        sorted(results.items(), key=lambda item: (order.index(item[1]["bench"]), "gpu" not in item[1]["machine"]))
    )


def format_table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["|" + "|".join(line) + "|\n" for line in (header, *rows)]
    return "".join([lines[0], "|" + "---|" * len(header) + "\n", *lines[1:]])


def format_number(value: float) -> str:
    """Returns a number with three significant digits, and separators of thousands."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def format_duration(us: float) -> str:
    return f"{format_number(us)} us" if us < 1000 else f"{format_number(us / 1000)} ms"


def format_rate(per_s: float, noun: str = "") -> str:
    for unit, word in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_s >= unit:
            return f"{format_number(per_s / unit)}{word}{noun}/s"
    return f"{format_number(per_s)}{noun}/s"


def format_ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{format_number(ratio)}x"


def format_measure(measure: str, value: float | None) -> str:
    if value is None:
        return ""
    if measure.endswith("_per_s"):
        return format_rate(value)
    if measure.endswith("_us"):
        return format_duration(value)
    if measure.endswith("_s"):
        return f"{format_number(value)} s" if value >= 1 else format_duration(1e6 * value)
    if measure.endswith("_bytes"):
        return f"{format_number(value / 1e6)} MB"
    return f"{100 * value:.1f} %" if "share" in measure or measure in ADDED else format_number(value)


def describe_hardware(result: dict) -> str:
    machine = result["machine"]
    return machine["gpu"] if "gpu" in machine else f"{machine['cpu']}, {machine['threads']} threads"


# ---- README ----


def list_commits(result: dict) -> str:
    """Returns the commit, and the number of cases with each other commit."""
    others = Counter(case.get("commit", result["commit"]) for case in result["cases"])
    del others[result["commit"]]
    other_cases = ", ".join(f"{count} of {len(result['cases'])} cases {commit}" for commit, count in others.items())
    return f"{result['commit']} ({other_cases})" if other_cases else result["commit"]


def render_readme(results: Results) -> str:
    rows = []
    for file, name, noun, measure in HEADLINES:
        case = next((case for case in results[file]["cases"] if case["name"] == name), {})
        if results[file]["quick"] or measure not in case.get("contenders", {}).get(OURS, {}):
            raise SystemExit(f"{file}.json: expected {measure} of the case '{name}', which the README shows")
        faster = "; ".join(f"{format_ratio(ratio)} {peer}" for peer, ratio in case["faster_than"].items())
        ours = case["contenders"][OURS][measure]
        unit = measure.removeprefix("gpu_").removesuffix("_per_s")
        speed = format_rate(ours, f" {unit}") if measure.endswith("_per_s") else format_duration(ours)
        rows.append([noun, describe_hardware(results[file]), speed, format_number(case["times_the_copy"]), faster])
    return format_table(["what", "on", "speed", "time over a copy", "times as fast as"], rows)


def speed_and_ratio(results: Results, file: str, name: str) -> tuple[str, str, str]:
    """Returns the samples/s of a batch, the hardware, and the ratio to torch's DataLoader."""
    case = next(case for case in results[file]["cases"] if case["name"] == name)
    peer, ratio = next(reversed([item for item in case["faster_than"].items() if "DataLoader" in item[0]]))
    speed = format_rate(case["contenders"][OURS]["samples_per_s"], " samples")
    return speed, describe_hardware(results[file]), f"{format_ratio(ratio)} a {peer.replace(', ', ' with ')}"


def render_pitch(results: Results) -> str:
    """Returns RoboCache's purpose in one sentence, with the speed of batches with cameras."""
    speed, gpu, peer = speed_and_ratio(results, "nvidia-h200-images", "batches of 256, 2 cameras, device")
    text = (
        f"RoboCache turns robot recordings into aligned training batches on the GPU: **{speed}** of state, 16 actions and two "
        f"JPEG cameras of 224 x 224 on one {gpu}, {peer}."
    )
    return f"{textwrap.fill(text, 120)}\n"


def render_three_numbers(results: Results) -> str:
    """Returns three numbers: the speed on a GPU, on a CPU, and of a training compared with LeRobot's loader."""
    lines = []
    for file, noun in (
        ("nvidia-h200-loader", "windows of three sensors"),
        ("intel-xeon-2-cores-loader", "the same windows"),
    ):
        speed, machine, peer = speed_and_ratio(results, file, "batch 1024")
        lines.append(f"- **{speed}**: {noun}, on {machine}; {peer}\n")
    content = json.loads(TRAINING.read_text())
    policies = [
        [point["policy"] for arm in content["arms"] if arm["name"] == name for point in arm["curve"]]
        for name in ("LeRobot's loader", "ours, the same dataset")
    ]
    same_policies = "the same policies, bit for bit" if policies[0] == policies[1] else "the same rows"
    size = next(size for size in content["loading"]["sizes"] if size["batch_size"] == 64)
    batch_ms, step_ms = size["batch_ms"]["LeRobot's loader"], size["step_ms"]
    lines.append(
        f"- **{batch_ms / step_ms:.1f}x sooner**: ACT trained from a camera of 128x128 pixels, a step of {step_ms:.0f} ms instead of {batch_ms:.0f} "
        "ms with LeRobot's loader, on 16 cores and one NVIDIA H100; "
        f"[{same_policies}](docs/training.md#against-lerobots-loader-on-the-same-machine)\n"
    )
    return "".join(lines)


# ---- docs/benchmarks.md ----


def render_benchmarks(results: Results) -> str:
    return "\n".join(render_section(result) for result in results.values() if result["bench"] not in ELSEWHERE)


def render_section(result: dict) -> str:
    text = f"### {TITLES[result['bench']]}, {describe_hardware(result)}\n\n"
    programs = ", ".join(f"`{name}`" for name in dict.fromkeys(re.findall(r"bench/\w+\.py", result["command"])))
    text += f"{programs}, {result['date']}, commit {list_commits(result)}.\n"
    if result["quick"]:
        text += "\nA smoke run: its numbers mean nothing.\n"
    render = {"sweep": render_sweep, "shapes": render_shapes}.get(result["bench"])
    text += render(result) if render else compare_with_peers(result) + table_measures(result)
    text += list_missed_aims(result)
    for case in result["cases"]:
        failures = {"robocache": case["error"]} if "error" in case else case.get("failures", {})
        text += "".join(f"\n{case['name']}: {name} failed: {reason}\n" for name, reason in failures.items())
    return text


def compare_with_peers(result: dict) -> str:
    """Returns a table with a line for each case: our numbers, and their ratios to the numbers of each peer."""
    measured = [case for case in result["cases"] if "times_the_copy" in case]
    variants = [case for case in measured if any(variant in case["name"] for variant in VARIANTS)]
    cases = [case for case in measured if case not in variants]
    columns: dict[str, list[str]] = {}
    for measure, heading in COLUMNS.items():
        columns[heading] = [format_measure(measure, case["contenders"][OURS].get(measure)) for case in cases]
    columns["over a copy"] = [format_number(case["times_the_copy"]) for case in cases]
    for peer in dict.fromkeys(peer for case in cases for peer in case["faster_than"]):
        columns[f"x {peer}"] = [format_ratio(case["faster_than"].get(peer)) for case in cases]
    columns = {heading: cells for heading, cells in columns.items() if any(cells)}
    rows = [[case["name"], *cells] for case, *cells in zip(cases, *columns.values(), strict=True)]
    parts = [format_table(["", *columns], rows)] if rows else []
    if variants:
        ratios = [case["times_the_copy"] for case in variants]
        parts.append(
            f"{len(variants)} more in the file: {format_number(min(ratios))} to {format_number(max(ratios))} times a copy.\n"
        )
    return "".join(f"\n{part}" for part in [*parts, describe_host_time(result)] if part)


def table_measures(result: dict) -> str:
    """Returns a table of the cases that have neither a copy nor peers."""
    cases = [case for case in result["cases"] if "figures" in case]
    measures = [
        measure for measure in WORDS if measure not in ONLY_IN_FILES and any(measure in x["figures"] for x in cases)
    ]
    if measures == ["grown_by"]:
        bounds = [
            format_measure("grown_by", extreme(x["figures"]["grown_by"] for x in cases)) for extreme in (min, max)
        ]
        return f"\nA step grows by {' to '.join(bounds)}, of {len(cases)} cases.\n"
    variants = [case for case in cases if any(variant in case["name"] for variant in VARIANTS_WITHOUT_A_COPY)]
    rows = [
        [case["name"], *(format_measure(measure, case["figures"].get(measure)) for measure in measures)]
        for case in cases
        if case not in variants
    ]
    table = f"\n{format_table(['', *(WORDS[measure] for measure in measures)], rows)}" if rows else ""
    if not variants:
        return table
    ranges = []
    for measure in ("p50_us", "p99_us"):
        bounds = [
            format_measure(measure, extreme(case["figures"][measure] for case in variants)) for extreme in (min, max)
        ]
        ranges.append(f"{WORDS[measure]} {' to '.join(bounds)}")
    return f"{table}\n{len(variants)} more in the file, pinned or after a sleep: {', '.join(ranges)}.\n"


def describe_host_time(result: dict) -> str:
    case = next((case for case in result["cases"] if "beyond_the_launch_us" in case), None)
    if case is None:
        return ""
    us = {name: format_duration(x["host_us"]) for name, x in case["contenders"].items()}
    return (
        f"Host time of a call: {us[OURS]}, {format_duration(case['beyond_the_launch_us'])} beyond the bare launch; `torch.lerp` "
        f"{us['torch.lerp']}.\n"
    )


def list_missed_aims(result: dict) -> str:
    """Returns the number of missed aims, and the one missed by the largest factor."""
    cases = {case["name"]: case for case in result["cases"]}
    compared = [
        (missed_by, f"{name}, {measure}: {value} (aim {bound})")
        for name, aims in result.get("aims", {}).items()
        for measure, bound, missed_by, value in compare_with_aims(aims, cases.get(name, {}))
    ]
    missed = [aim for aim in compared if aim[0] > 1]
    return f"\nMissed aims: {len(missed)} of {len(compared)}. The farthest: {max(missed)[1]}.\n" if missed else ""


def compare_with_aims(aims: dict, case: dict) -> Iterator[tuple[str, str, float, str]]:
    """Yields each measured aim of a case: (measure, bound, the factor by which it was missed, value)."""
    for measure, aim in aims.items():
        if measure.endswith("faster_than"):
            prefix = "in a loop, times" if measure.startswith("in_a_loop") else "times"
            for peer, ratio in aim.items():
                for name, value in case.get(measure, {}).items():
                    if peer in (name, name.split(",")[0]):  # an aim may leave out the number of workers
                        yield f"{prefix} as fast as {name}", format_number(ratio), ratio / value, format_ratio(value)
        else:
            measured = {**case, **case.get("contenders", {}).get(OURS, {}), **case.get("figures", {})}
            if (value := measured.get(measure)) is not None:
                more_is_better = measure.endswith("_per_s") or "share" in measure
                missed_by = aim / value if more_is_better else value / aim
                yield WORDS[measure], format_measure(measure, aim), missed_by, format_measure(measure, value)


# Measures of cases, in words.
WORDS = {
    "gpu_us": "time on the device",
    "wall_us": "time in a loop",
    "host_us": "host time",
    "gpu_points_per_s": "points/s",
    "samples_per_s": "samples/s",
    "times_the_copy": "time over a copy",
    "times_float32": "time over that of float32 values",
    "beyond_the_launch_us": "host time beyond the bare launch",
    "share_of_the_link": "share of the host link's speed",
    "share_of_the_lesser": "share of the slower of link and decoding",
    "share_of_reading": "share of reading alone",
    "share_of_libjpeg_turbo": "share of libjpeg-turbo",
    "frames_per_s": "frames/s",
    "share_of_linear": "share of linear",
    "trained_samples_per_s": "samples/s in training",
    "trained_share_of_linear": "share of linear in training",
    "trained_again_share_of_linear": "that without a loader",
    "lerobot_samples_per_s": "LeRobot's",
    "times_lerobot": "times as fast",
    "peer_us": "theirs",
    "times_peer": "times as fast",
    "unconverted_us": "unconverted",
    "times_unconverted": "time over unconverted",
    "grown_by": "a step grows by",
    "p50_us": "p50",
    "p99_us": "p99",
    "camera_p50_us": "camera p50",
    "camera_p99_us": "camera p99",
    "rclpy_p50_us": "rclpy p50",
    "rclpy_p99_us": "rclpy p99",
    "frames_share": "frames that got joints",
    "frame_age_p50_us": "age of the frame p50",
    "processor_share": "of a core",
    "load_beside": "other load",
    "p999_us": "p99.9",
    "queued_us": "until it is queued: median",
    "copied_p50_us": "copy p50",
    "copied_p99_us": "copy p99",
    "anchor_age_us": "age",
    "writer_share": "the writer's share of a core",
    "statistics_s": "statistics",
    "processor_s": "processor time",
    "open_s": "opens in",
    "open_bytes": "memory of that",
    "start_s": "a loader starts in",
    "ingest_s": "ingest",
    "ingested_bytes_per_s": "bytes/s",
    "library_bytes_per_s": "the library's bytes/s",
    "share_of_library": "of the library",
    "share_of_decoding": "of it with the fields",
    "share_of_writing": "share of writing's speed",
    "writing_of_library": "writing's share of the library's",
    "share_of_decoding_alone": "share of decoding alone",
    "doctor_adds": "the doctor adds",
    "peak_bytes": "peak memory",
}


# ---- docs/live.md ----


def render_sets(results: Results) -> str:
    """Returns how many late frames get joints, with an Aligner and with ApproximateTime, and for how much of a core."""
    cases = {case["name"]: case["figures"] for case in results["amd-epyc-2-cores-ros2_sets"]["cases"]}
    contenders = ("robocache", "ApproximateTime, queue 10", "ApproximateTime, queue 100")
    frames, core = (
        [format_measure(measure, cases[f"{name}, frames 40 ms late"][measure]) for name in contenders]
        for measure in ("frames_share", "processor_share")
    )
    text = (
        f"Of frames that come 40 ms after their stamps, {frames[0]} get joints out of 500 Hz interpolated at their moment, for {core[0]} of "
        f"a core. rclpy with the rule of message_filters' `ApproximateTimeSynchronizer` pairs {frames[1]} of them with a queue of 10 messages, "
        f"{frames[2]} with one of 100, for {core[1]} and {core[2]} "
        "([measured](../bench/results/amd-epyc-2-cores-ros2_sets.json))."
    )
    return f"{textwrap.fill(text, 140)}\n"


# ---- docs/images.md ----


TIERS = ["decoded", "device", "pinned", "mapped"]


def render_cameras(results: Results) -> str:
    """Returns the tables of the benchmarks of cameras. A line is a case, or a batch or step in all tiers. Other cases are only in
    the files."""
    parts = []
    for result in results.values():
        if result["bench"] not in ("images", "lerobot_batches", "videos") or result["quick"]:
            continue
        measured = f"{describe_hardware(result)}, `bench/{result['bench']}.py`, {result['date']}, commit {list_commits(result)}"
        if result["bench"] == "images":
            measured += f"; JPEGs of {format_number(result['bytes_a_frame'] / 1000)} KB"
        elif result["bench"] == "lerobot_batches":
            measured += f"; {result['source']}"
        rows: list[list[str]] = []
        by_tier: dict[str, dict[str, str]] = {}
        peers: dict[str, None] = {}
        for case in result["cases"]:
            name, _, tier = case["name"].rpartition(", ")
            if "1 camera" in name or "float32" in name:
                continue
            if tier in TIERS and name.startswith(("batches", "a step")):
                by_tier.setdefault(name, {})[tier] = format_tier(case)
                peers |= dict.fromkeys(case.get("faster_than", {}))
            elif tier == "cold" or result["bench"] == "videos" or "256 x" in case["name"]:
                rows.append([case["name"], format_speed_or_size(case), "; ".join(list_comparisons(case))])
        part = f"{measured}:\n"
        if rows:
            part += "\n" + format_table(["", "", "beside it"], rows)
        if by_tier:
            tiers = [tier for tier in TIERS if any(tier in cells for cells in by_tier.values())]
            lines = [[name, *(cells.get(tier, "") for tier in tiers)] for name, cells in by_tier.items()]
            part += "\n" + format_table([f"frames/s, times as fast as {'; '.join(peers)}", *tiers], lines)
        parts.append(part + list_missed_aims(result))
    return "\n".join(parts)


def format_tier(case: dict) -> str:
    if "grown_by" in case.get("figures", {}):
        return f"{100 * case['figures']['grown_by']:+.1f} %"
    ours = {**case.get("figures", {}), **case.get("contenders", {}).get(OURS, {})}
    return ", ".join(
        [format_rate(ours["frames_per_s"]), *(format_ratio(ratio) for ratio in case.get("faster_than", {}).values())]
    )


def format_speed_or_size(case: dict) -> str:
    figures = case.get("figures", {})
    if "grown_by" in figures:
        return f"a step grows by {format_measure('grown_by', figures['grown_by'])}"
    if "decibels" in figures:
        return f"{format_number(figures['bytes_a_frame'] / 1000)} KB a frame, {format_number(figures['decibels'])} dB"
    per_s = {**figures, **case.get("contenders", {}).get(OURS, {})}.get("frames_per_s")
    return "" if per_s is None else format_rate(per_s, " frames")


def list_comparisons(case: dict) -> Iterator[str]:
    case = {**case, **case.get("figures", {})}
    for bound, us in case.get("bounds_us", {}).items():
        yield f"{bound} alone {format_duration(us)}"
    for peer, ratio in case.get("faster_than", {}).items():
        yield f"{format_ratio(ratio)} {peer}"
    for measure, words in WORDS.items():
        if "share" in measure and measure in case and measure != "share_of_libjpeg_turbo":  # also a peer
            yield f"{format_measure(measure, case[measure])}, {words}"


def render_sweep(result: dict) -> str:
    planes = [case for case in result["cases"] if "ratios" in case]
    ratios = sorted(ratio for case in planes for line in case["ratios"] for ratio in line if ratio is not None)
    if not ratios:
        return ""
    text = f"\n{len(ratios)} cases: {format_number(ratios[len(ratios) // 2])} times a copy in the median, at most {format_number(ratios[-1])}."
    cliffs = [cliff for case in planes for cliff in case["cliffs"]]
    if cliffs:
        worst = max(cliffs, key=lambda cliff: cliff["factor"])
        text += (
            f" {len(cliffs)} pairs of neighbours differ by more than a factor of 2, the most {worst['at']} and "
            f"{worst['beside']} ({format_ratio(worst['factor'])})."
        )
    if make_picture_path(result).exists():
        text += f"\n\n![heat maps of the time over a copy]({make_picture_path(result).name})"
    return f"{text}\n"


def render_shapes(result: dict) -> str:
    """Returns a row for each operation, over all seeds, and the names of the slower cases."""
    shapes_of_operations: dict[str, list[dict]] = {}
    for case in result["cases"]:
        shapes_of_operations.setdefault(case["name"].split(", seed ")[0], []).extend(case.get("shapes", []))
    rows, slower_shapes = [], []
    for operation, drawn_shapes in shapes_of_operations.items():
        ratios = sorted(shape["times_the_copy"] for shape in drawn_shapes)
        if not ratios:
            continue
        ratios_to_peer = sorted(shape["faster_than"] for shape in drawn_shapes if "faster_than" in shape)
        peer = (
            [format_ratio(ratios_to_peer[len(ratios_to_peer) // 2]), format_ratio(ratios_to_peer[0])]
            if ratios_to_peer
            else ["", ""]
        )
        rows.append(
            [operation, str(len(ratios)), format_number(ratios[len(ratios) // 2]), format_number(ratios[-1]), *peer]
        )
        slower = [shape for shape in drawn_shapes if shape.get("faster_than", 1) < 1]
        slower_shapes += [f"{operation} {shape['name']} ({format_ratio(shape['faster_than'])})" for shape in slower]
    columns = ["", "shapes", "over a copy, median", "at most", "x torch.compile, median", "at least"]
    text = "\n" + format_table(columns, rows) if rows else ""
    if slower_shapes:
        text += f"\nSlower than torch.compile: {'; '.join(slower_shapes)}.\n"
    if make_picture_path(result).exists():
        text += f"\n![time over a copy, by bytes]({make_picture_path(result).name})\n"
    return text


# ---- docs/start.md ----


def render_first_batch(folder: Path = ROOT / "bench/results/first_batch") -> str:
    """Returns the table of the results of bench/first_batch.py."""
    rows = sorted((json.loads(path.read_text()) for path in folder.glob("*.json")), key=lambda row: row["cpu_s"])
    measures = ("cpu_s", "import_s", "installed_bytes")
    shown_rows = []
    for row in rows:
        command = re.sub(r"-\d\S*[.](whl|tar[.]gz)", r"-*.\1", row["command"])
        cells = [format_measure(measure, row.get(measure)) for measure in measures]
        aim_s = SOURCE_AIM_S if command.endswith(".tar.gz") else WHEEL_AIM_S
        if row["cpu_s"] > aim_s:
            cells[0] += f", aim {aim_s} s"
        shown_rows.append([f"`{command}`", row["system"], *cells])
    columns = ["", "on", "CPU time to the first batch", "of an import beyond numpy and tvm_ffi", "package installed"]
    return format_table(columns, shown_rows)


# ---- docs/benchmarks.md, at its end ----


def render_instructions(path: Path = ROOT / "bench/results/instructions/qemu.json") -> str:
    """Returns the ratios of the two machines in the result of bench/instructions.py."""
    result = json.loads(path.read_text())
    ratios = sorted(
        (counts["aarch64"] / counts["x86_64"], job.replace("_", " "))
        for job, counts in result["instructions_an_element"].items()
    )
    (least, least_job), (median, _), (most, most_job) = ratios[0], ratios[len(ratios) // 2], ratios[-1]
    text = (
        f"An element takes {format_number(median)} times the instructions of x86-64 with AVX2, in the median of {len(ratios)} jobs, from "
        f"{format_number(least)} ({least_job}) to {format_number(most)} ({most_job}). `bench/instructions.py`, {result['date']}, commit "
        f"{result['commit']}, counted by {result['counted_by']}."
    )
    return f"{textwrap.fill(text, 140)}\n"


# ---- docs/formats.md ----


def render_formats(results: Results) -> str:
    """Returns the speed of each format, or how to measure it."""
    measured = [render_section(result) for result in results.values() if result["bench"] == "ingest"]
    return "\n".join(measured) or "Not measured on a machine of its own so far: `python -m bench ingest`.\n"


# ---- The pages ----


def replace_block(path: Path, name: str, block: str) -> str:
    text = path.read_text()
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{path}: expected one {begin} and one {end}")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{block}{end}{rest.split(end)[1]}"


# For each block its page, the name in its markers, and the function that renders it.
BLOCKS = [
    ("README.md", "pitch", render_pitch),
    ("README.md", "three", render_three_numbers),
    ("README.md", "bench", render_readme),
    ("docs/benchmarks.md", "bench", render_benchmarks),
    ("docs/benchmarks.md", "instructions", lambda _: render_instructions()),
    ("docs/live.md", "sets", render_sets),
    ("docs/images.md", "bench", render_cameras),
    ("docs/formats.md", "bench", render_formats),
    ("docs/start.md", "first batch", lambda _: render_first_batch()),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    options = parser.parse_args()
    results = read_results(ROOT / "bench/results")
    stale = 0
    for result in results.values():  # the pictures first, since the page shows the existing ones
        if result["bench"] not in PICTURED or is_current(result):
            continue
        stale, path = 1, make_picture_path(result)
        if options.check or importlib.util.find_spec("matplotlib") is None:
            print(f"{path.name} is out of date: run python bench/render.py with matplotlib installed")
        else:
            draw(result, path)
            print(f"{path.name} drawn")
    for page_name, name, render in BLOCKS:
        path = ROOT / page_name
        text = replace_block(path, name, render(results))
        if text == path.read_text():
            continue
        stale = 1
        if options.check:
            print(f"{page_name} is out of date: run python bench/render.py")
        else:
            path.write_text(text)
            print(f"{page_name} rewritten")
    return stale if options.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
