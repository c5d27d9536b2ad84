"""Renders docs/training.md and its pictures from bench/results/training-*.json. Needs matplotlib.

python docs/training.py            # rewrite the page and docs/training-*.png
python docs/training.py --check    # exit 1 if the page or a picture differs from the result files
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from pictures import update

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from examples import results  # noqa: E402

INTRODUCTION = """\
# A policy that succeeds

Each example records demonstrations, trains a policy with the Loader, and runs it, with its checkpoint and the loader's spec alone, from
starts that no demonstration had. `python docs/training.py` makes this page of `bench/results/`, where each run has its command, commit,
packages, seeds, and what was expected before.

A row is a way of training, with a policy for each seed:

- succeeded: rollouts of each policy's last checkpoint, from the same starts for all
- interval: the 95 % intervals (Wilson) of all its policies together; other seeds can differ by more
- more than the first: against the first row's policy of the same seed, start by start; in brackets the 95 % intervals
- 80 % after: training until the first checkpoint of which 80 % of the rollouts succeed
- waited: the highest share of training in which the next batch was not there yet
- GPU busy: the lowest share with a kernel running
"""

# The examples in the page's order: their headings and descriptions.
EXAMPLES = {
    "metaworld": (
        "Tasks of metaworld",
        """\
[examples/metaworld](../examples/metaworld/__main__.py): a simulated arm. Hand and commands come at 80 Hz, objects at 30 Hz on another
clock. A scripted expert demonstrates, every second time disturbed. A small network gives chunks of 20 commands from the
[live aligner](live.md). Success is the environment's own rule, within 2 s. Absolute and relative commands show no difference
([training-metaworld-actions.json](../bench/results/training-metaworld-actions.json)).

```bash
pip install '.[examples]'
python -m examples.metaworld compare --seeds 0      # or record, train and evaluate, one by one
```
""",
    ),
    "aloha": (
        "Transfer cube of ALOHA",
        """\
[examples/aloha](../examples/aloha/__main__.py): two ViperX arms hand a cube over, in gym-aloha's model. Joints come at 200 Hz, commands
at 50 Hz, camera frames at 30 Hz with jitter, some 33 ms late, 3 % lost. Failed demonstrations are kept, not trained on.

Success is stricter than the environment's rule, a touch (`touched` in the result files): after 8 s the cube has been between the left
fingers for 0.5 s and touched neither the right arm nor the table.

```bash
pip install '.[examples]' && pip install --no-deps gym-aloha
python -m examples.aloha record --episodes 200 --no-camera
python -m examples.aloha train --policy mlp --steps 2000 --batch-size 256 --lr 1e-3
python -m examples.aloha evaluate --policy mlp      # all three without options: LeRobot's ACT, from the camera
```
""",
    ),
    "conveyor": (
        "Why clocks: a moving belt",
        """\
[examples/conveyor](../examples/conveyor/__main__.py): a belt carries a part at 0.1 to 0.4 m/s. At 1.05 s a tool comes down; success is
a tip within 3 mm of the part's centre, chosen after a pilot. A camera's frames, 30 Hz, arrive 30 or 60 ms late on average. The policies
differ in data only:

| policy | its data |
| --- | --- |
| rows | a LeRobot dataset of 30 fps: each row has the newest frame that had arrived |
| stamps | the same, and the age of the row's frame as a feature |
| clocks | streams: frames have the camera's stamp, and the loader gives the age at any moment. One policy serves both delays |

What decides is whether the age is known.

```bash
pip install '.[examples]'
python -m examples.conveyor record      # then train, evaluate, compare
```
""",
    ),
}

REAL = """\
## LeRobot's trainer on real recordings

[examples/train_lerobot.py](../examples/train_lerobot.py): `lerobot-train` on 25 episodes of BridgeData V2 (two cameras of 64 pixels), with
its own dataset and with ours. The loss of 5 held-out episodes:
"""

# The result files that have no section.
NOT_ON_THE_PAGE = {"training-metaworld-actions"}

# Examples that draw a picture of all their result files: the module with draw(plt, contents).
PICTURE_MODULES = {"conveyor": "examples.conveyor.picture"}


def example_of_path(path: Path) -> str:
    return path.stem.split("-")[1]


def group_by_arm(content: dict) -> dict[str, list[dict]]:
    arms: dict[str, list[dict]] = {}
    for run in content["arms"]:
        arms.setdefault(run["name"], []).append(run)
    return arms


def time_of(content: dict) -> tuple[str, str]:
    """Returns the field of the times, and its name: CPU seconds if the file has them."""
    points = [point for run in content["arms"] for point in run["curve"]]
    has_cpu = points and all("cpu_s" in point for point in points)
    return ("cpu_s", "CPU seconds of training") if has_cpu else ("wall_s", "seconds of training")


def has_curves(content: dict) -> bool:
    """Returns whether the file has at least two arms and a curve of several checkpoints."""
    return len(group_by_arm(content)) > 1 and any(len(run["curve"]) > 1 for run in content["arms"])


# ---- The page ----


def format_percent(low: float, high: float, between: str = " to ") -> str:
    return f"{100 * low:.1f}{between}{100 * high:.1f}"


def mean(runs: list[dict], values: list[float | None]) -> str:
    return f"{sum(values) / len(runs):.1f}" if all(values) else ""


def make_cells(name: str, runs: list[dict], firsts: dict[int, dict], field: str) -> list[str]:
    """Returns the cells of an arm, over all its seeds."""
    counts = {run["rollouts"] for run in runs}
    if len(counts) == 1:
        succeeded = f"{', '.join(str(run['successes']) for run in runs)} of {counts.pop()}"
    else:
        succeeded = ", ".join(f"{run['successes']} of {run['rollouts']}" for run in runs)
    cells = [
        name,
        succeeded,
        format_percent(min(run["interval"][0] for run in runs), max(run["interval"][1] for run in runs)),
    ]
    pairs = [(run, firsts[run["seed"]]) for run in runs if run["seed"] in firsts]
    differences_and_intervals = [
        results.paired_difference(results.outcomes_of(run), results.outcomes_of(first))
        for run, first in pairs
        if run is not first and len(run["outcomes"]) == len(first["outcomes"])
    ]
    differences = ", ".join(f"{100 * difference:+.1f}" for difference, _ in differences_and_intervals)
    bounds = [bound for _, interval in differences_and_intervals for bound in interval]
    cells.append(f"{differences} ({format_percent(min(bounds), max(bounds))})" if differences else "")
    cells.append(mean(runs, [run["curve"][-1][field] if run["curve"] else None for run in runs]))
    if any(len(run["curve"]) > 1 for run in runs):
        times_of_success = [
            [point[field] for point in run["curve"] if point["successes"] >= 0.8 * point["rollouts"]] for run in runs
        ]
        fewest_rollouts = min(point["rollouts"] for run in runs for point in run["curve"])
        note = "" if fewest_rollouts == min(run["rollouts"] for run in runs) else f" (of {fewest_rollouts} rollouts)"
        cells.append(", ".join(f"{times[0]:.1f}" if times else "never" for times in times_of_success) + note)
    else:
        cells.append("")
    wait_shares = [run["wait_share"] for run in runs if run["wait_share"] is not None]
    cells.append(f"{100 * max(wait_shares):.1f} %" if wait_shares else "")
    cells.append(mean(runs, [run.get("steps_per_s") for run in runs]))
    busy = [run.get("gpu_busy") for run in runs]
    return [*cells, f"{100 * min(busy):.0f} %" if all(busy) else ""]


def make_table(arms: list[tuple[str, list[dict], dict[int, dict]]], field: str) -> str:
    """Returns a table with a row for each (name, runs, runs by seed to compare with), without empty columns."""
    unit = "CPU-s" if field == "cpu_s" else "s"
    head = ["", "succeeded", "interval, %", "more than the first, points", f"trained, {unit}"]
    rows = [[*head, f"80 % after, {unit}", "waited", "steps/s", "GPU busy"], ["---"] * 9]
    rows += [make_cells(*arm, field) for arm in arms]
    shown_columns = [k for k in range(9) if k < 3 or any(cells[k] for cells in rows[2:])]
    return format_rows([[cells[k] for k in shown_columns] for cells in rows])


def format_rows(rows: list[list[str]]) -> str:
    return "".join(f"|{'|'.join(cells)}|\n" for cells in rows)


def make_title(path: Path, content: dict) -> str:
    return content.get("title", " ".join(path.stem.split("-")[2:]).capitalize())


def describe_source(path: Path, content: dict) -> str:
    expert = content["expert"]
    return (
        f"{expert['successes']} of {expert['episodes']} demonstrations succeed. {content['machine']}; "
        f"[{path.name}](../bench/results/{path.name}).\n"
    )


def render_section(path: Path, content: dict, described: set[str]) -> str:
    """Returns a result file's part of the page, without descriptions of arms that are already in `described`."""
    arms = group_by_arm(content)
    firsts = {run["seed"]: run for run in next(iter(arms.values()))}
    explanations = [f"- {name}: {explanation}\n" for name, explanation in content.get("explained", {}).items()]
    lines = [
        f"### {make_title(path, content)}\n",
        f"![Success and loss against the time of training]({path.stem}.png)\n" if has_curves(content) else "",
        make_table([(name, runs, firsts) for name, runs in arms.items()], time_of(content)[0]),
        "".join(line for line in explanations if line not in described),
        describe_recipe(path, content),
        deviation(path),
        describe_source(path, content),
        loading(content),
    ]
    described.update(explanations)
    return "\n".join(filter(str.strip, lines))


def table_of_single_arms(contents: dict[Path, dict]) -> str:
    """Returns one table of the result files that have only one arm."""
    arms = [(make_title(path, content), content["arms"], {}) for path, content in contents.items()]
    fields = {time_of(content)[0] for content in contents.values()}
    if len(fields) > 1:
        raise SystemExit(f"{', '.join(path.name for path in contents)}: expected times of one kind")
    files = ", ".join(f"`{path.name}`" for path in contents)
    machines = ", ".join(dict.fromkeys(content["machine"] for content in contents.values()))
    heading = "One policy each" if len(arms) > 1 else arms[0][0]
    return f"### {heading}\n\n{make_table(arms, fields.pop())}\n{machines}; {files}.\n"


# Parts of a comparison of loaders: the field that varies, its name, the format of its values, and the fixed conditions.
SPEEDS = {
    "sizes": ("batch_size", "batch", "batches of {}", "{cores} cores, frames of 128x128 pixels:"),
    "frames": (
        "frame_size",
        "frame, pixels",
        "frames of {}",
        "{cores} cores, batches of {batch}, 8 episodes; ours decodes each frame from its JPEG on the GPU:",
    ),
    "cores": (
        "cores",
        "cores",
        "{} cores",
        "Batches of {batch}, frames of 128x128 pixels; LeRobot's loader has a worker for each core:",
    ),
}


def loading(content: dict) -> str:
    """Returns the times of the loaders' batches alone, and of a step of the policy."""
    if "loading" not in content:
        return ""
    measured = content["loading"]
    cores = measured["best"]["workers"]
    tables, ratios = [], []
    for part, (field, name, case_name, heading) in SPEEDS.items():
        entries = sorted(measured.get(part, []), key=lambda entry: [int(size) for size in str(entry[field]).split("x")])
        if not entries:
            continue
        loaders = list(entries[0]["batch_ms"])
        head = [name, *(f"{loader}, ms" for loader in loaders), "a step, ms", "sooner with ours"]
        rows = [head, ["---"] * len(head)]
        for entry in entries:
            lerobot_ms, our_ms, step_ms = *(entry["batch_ms"][loader] for loader in loaders[:2]), entry["step_ms"]
            ratios.append((max(lerobot_ms, step_ms) / max(our_ms, step_ms), case_name.format(entry[field])))
            times = [f"{ms:.2f}" for ms in (*entry["batch_ms"].values(), step_ms)]
            rows.append([str(entry[field]), *times, f"{ratios[-1][0]:.1f}x"])
        tables.append(f"{heading.format(cores=cores, batch=entries[0].get('batch_size'))}\n\n{format_rows(rows)}")
    equal_cases = " and ".join(case for ratio, case in ratios if ratio == 1)
    smallest, largest = (f"{ratio:.1f}x with {case}" for ratio, case in (min(ratios), max(ratios)))
    smallest_gain = (
        f"ours brings nothing with {equal_cases}, where the step is slower than LeRobot's batch"
        if equal_cases
        else smallest
    )
    return (
        "A batch alone and a step of the policy alone. They run side by side, so the slower one sets the pace; how much sooner a "
        "training ends is computed from that.\n\n"
        + "\n".join(tables)
        + f"\nIt depends on the work: {smallest_gain}; at most it is {largest}. {measured['equal_samples']} samples of both are equal, bit for bit.\n"
    )


def deviation(path: Path) -> str:
    """Returns the share of a joint's deviation that a policy keeps, for the page below the arms that it explains."""
    measured = json.loads((HERE.parent / "bench/results/aloha-training-deviation.json").read_text())
    if path.stem != "training-aloha-actions":
        return ""
    moved_by, step = f"{1000 * measured['deviation_rad']:.0f} mrad", measured["steps"][-1]
    per_step, absolute = (f"{100 * measured['kept'][way][-1]:.0f} %" for way in ("per-step", "absolute"))
    return (
        f"A possible reason, by one seed each: if joints are moved by {moved_by}, the command of step {step} goes along by {per_step} of that "
        f"with per-step, by {absolute} with absolute ([aloha-training-deviation.json](../bench/results/aloha-training-deviation.json)).\n"
    )


def describe_recipe(path: Path, content: dict) -> str:
    """Returns how the comparison of loaders ran, and whether its policies reached what was expected."""
    if path.stem != "training-aloha-loaders":
        return ""
    reached = sum(
        any(point["successes"] >= 0.8 * point["rollouts"] for point in run["curve"]) for run in content["arms"]
    )
    return (
        "The three seeds ran side by side on one host, each with its own GPU and 16 cores, a training without a GPU on 16 more. All "
        f"{len(content['arms'])} policies were expected to reach 80 % with 160 to 185 of 200 in the end; {reached} reach it. LeRobot's "
        "loader was expected to do 31 to 34 steps/s, as on a host with one GPU. Earlier policies succeeded less often: their rollouts saw frames "
        "0.5 s old.\n"
    )


def describe_real_recordings(path: Path) -> str:
    """Returns the mean losses on held-out episodes of LeRobot's trainer with both loaders."""
    if not path.exists():
        return ""
    content = json.loads(path.read_text())
    seeds = {run["seed"] for run in content["runs"]}
    rows = [["policy", "loader", f"mean of {len(seeds)} seeds"], ["---"] * 3]
    losses: dict[tuple[str, str], list[float]] = {}
    for run in content["runs"]:
        losses.setdefault((run["policy"], run["loader"]), []).append(run["validation_loss"])
    for (policy, loader), values in losses.items():
        rows.append([policy, loader, f"{sum(values) / len(values):.4f}"])
    seed_difference = max(max(values) - min(values) for values in losses.values())
    means = [sum(values) / len(values) for values in losses.values()]
    loader_difference = max(abs(first - second) for first, second in zip(means[::2], means[1::2], strict=True))
    return (
        REAL
        + "\n"
        + format_rows(rows)
        + f"\nThe means of the two loaders differ by at most {loader_difference:.4f}, the seeds of a loader by up to {seed_difference:.4f}.\n"
        + f"\n{content['machine']}; [{path.name}](../bench/results/{path.name}).\n"
    )


def rollouts(example: str) -> str:
    """Returns the grid of rollouts that `evaluate --film` has drawn, if there is one."""
    picture = HERE / f"training-{example}-rollouts.png"
    if not picture.exists():
        return ""
    gif = picture.with_suffix(".gif")
    image_line = f"![Rollouts, with the failures in them]({(gif if gif.exists() else picture).name})\n"
    from PIL import Image

    description = Image.open(picture).info.get("Description", "One policy: up to 8 failures, red, and successes, green")
    caption = f"\n{description} ([their last moments]({picture.name})).\n" if gif.exists() else f"\n{description}.\n"
    return image_line + caption


def render_page(contents: dict[Path, dict]) -> str:
    parts = [INTRODUCTION]
    for example, (heading, description) in EXAMPLES.items():
        files = {path: content for path, content in contents.items() if example_of_path(path) == example}
        if files:
            described: set[str] = set()
            single_arms = {path: content for path, content in files.items() if len(group_by_arm(content)) == 1}
            parts += [
                f"## {heading}\n",
                description,
                f"![{heading}](training-{example}.png)\n" if example in PICTURE_MODULES else "",
                rollouts(example),
                *(render_section(*item, described) for item in files.items() if item[0] not in single_arms),
                table_of_single_arms(single_arms) if single_arms else "",
            ]
    parts.append(describe_real_recordings(HERE.parent / "bench/results/lerobot-training-bridge.json"))
    return "\n".join(filter(None, parts))


# ---- The pictures ----


def compute_curves(content: dict) -> list[np.ndarray]:
    """Returns the time, the share of successes and the loss of each arm: [seeds, checkpoints, 3]."""
    field, _ = time_of(content)
    arrays = []
    for runs in group_by_arm(content).values():
        length = min(len(run["curve"]) for run in runs)
        points = [
            (point[field], point["successes"] / point["rollouts"], point["loss"])
            for run in runs
            for point in run["curve"][:length]
        ]
        arrays.append(np.array(points, float).reshape(len(runs), length, 3))
    return arrays


def draw(plt, content: dict):
    from matplotlib.ticker import LogLocator

    figure, (success, loss) = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
    for number, (name, points) in enumerate(zip(group_by_arm(content), compute_curves(content), strict=True)):
        if not points.size:
            continue
        times, color = points[:, :, 0].mean(0), f"C{number}"
        for axes, values in ((success, 100 * points[:, :, 1]), (loss, points[:, :, 2])):
            axes.fill_between(times, values.min(0), values.max(0), color=color, alpha=0.2, linewidth=0)
            axes.plot(times, values.mean(0), "o-", color=color, markersize=3, label=name)
    longest = max((points[:, :, 0].mean(0) for points in compute_curves(content)), key=len)
    _, label = time_of(content)
    success.set(xlabel=label, ylabel="success, %", ylim=(-3, 103))
    loss.set(xlabel=label, ylabel="loss since the checkpoint before", ylim=(0, None))
    for axes in (success, loss):
        if len(longest) and longest[-1] > 20 * longest[0] > 0:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
        axes.grid(color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    success.legend(frameon=False)
    return figure


def pictures(results_by_path: dict[Path, dict]) -> Iterator[tuple[Path, Callable, list[np.ndarray]]]:
    """Yields each picture's path, the function that draws it, and the numbers that it shows."""
    for path, content in results_by_path.items():
        if has_curves(content):
            yield HERE / f"{path.stem}.png", functools.partial(draw, content=content), compute_curves(content)
    for example, module in PICTURE_MODULES.items():
        contents = [content for path, content in results_by_path.items() if example_of_path(path) == example]
        if contents:
            drawing = functools.partial(importlib.import_module(module).draw, contents=contents)
            yield HERE / f"training-{example}.png", drawing, [np.frombuffer(json.dumps(contents).encode(), np.uint8)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if the page or a picture is out of date"
    )
    options = parser.parse_args()
    paths = sorted((HERE.parent / "bench/results").glob("training-*.json"))
    if unknown := [path for path in paths if example_of_path(path) not in EXAMPLES]:
        raise SystemExit(f"{unknown[0].name}: expected training-<example>-<what>.json of one of {', '.join(EXAMPLES)}")
    contents = {path: results.read(path) for path in paths if path.stem not in NOT_ON_THE_PAGE}
    stale = False
    for picture, drawing, numbers in pictures(contents):
        stale |= update(picture, drawing, numbers, options.check)
    target, text = HERE / "training.md", render_page(contents)
    if not target.exists() or target.read_text() != text:
        if options.check:
            print("training.md is out of date: run python docs/training.py")
            return True
        target.write_text(text)
        print("training.md rewritten")
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
