"""Renders bench/results/*.json into README.md and the pages of docs that show figures, between their markers.

python bench/render.py            # rewrite them, and draw the sweep where matplotlib is
python bench/render.py --check    # exit 1 if one of them is out of date
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from sweep_picture import draw, is_current, picture_of

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
NONE = "No results yet: `./dev bench` makes them.\n"
OURS = "robocache"

# The cases that the README shows of each benchmark, in this order.
HEADLINES = {
    "loader": ["batch 1024", "batch 4096"],
    "resample": [
        "B32 S500 T250 D256",
        "B256 S500 T250 D32",
        "B64 S4096 T1024 D32",
        "B64 S1000 T512 D512",
        "B1024 S2048 T1024 D64",
    ],
    "fuse": ["B4", "B64", "B512"],
    "voxelize": [
        "count, 10M uniform, 128^3",
        "count, 10M gaussian, 256^3",
        "occupancy, 10M uniform, 128^3",
        "occupancy, 10M uniform, 256^3",
        "occupancy, 10M gaussian, 256^3",
        "mean of 8, 10M uniform, 128^3, quantum",
        "mean of 8, 10M uniform, 128^3",
        "mean of 8, 10M lidar, 128^3, quantum",
        "mean of 8, 10M lidar, 128^3",
        "occupancy, 500k uniform, 128^3",
        "count, 500k uniform, 128^3",
        "occupancy, 500k spread, 128^3",
        "count, 500k spread, 128^3",
        "count, 1M uniform, 128^3",
        "mean of 8, 1M lidar, 128^3",
        "hard voxels, 250k lidar, 5 points each",
        "downsample, 1M lidar, 0.1 m",
    ],
    "tsdf": ["depth carving, 256^3", "depth carving, 512^3", "camera points, 256^3", "lidar points, 512^3"],
    "sweep": [],
}

# The measures of a contender, in the order of the columns.
MEASURES = {
    "samples_per_s": "samples/s, in a loop",
    "gpu_samples_per_s": "samples/s, device alone",
    "points_per_s": "points/s, in a loop",
    "gpu_points_per_s": "points/s, device alone",
    "wall_us": "a call, in a loop",
    "cold_us": "a call, cold cache",
    "host_us": "a call, host alone",
    "gpu_us": "a call, device alone",
}


def results(folder: Path) -> list[dict]:
    """The result files, in the order of HEADLINES, the GPU's before the CPU's."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    order = list(HEADLINES)
    return sorted(found, key=lambda result: (order.index(result["bench"]), "gpu" not in result["machine"]))


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def number(value: float) -> str:
    """Three digits that count, with thousands where they help."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def duration(us: float) -> str:
    return f"{number(us)} us" if us < 1000 else f"{number(us / 1000)} ms"


def rate(per_s: float) -> str:
    for unit, word in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_s >= unit:
            return f"{number(per_s / unit)}{word}/s"
    return f"{number(per_s)}/s"


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{number(ratio)}x"


def measure(key: str, measures: dict) -> str:
    if key not in measures:
        return ""
    return show_of(key)(measures[key])


def show_of(key: str) -> Callable[[float], str]:
    return rate if key.endswith("_per_s") else duration


def counted(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def hardware(machine: dict) -> str:
    return machine["gpu"] if "gpu" in machine else f"{machine['cpu']}, {machine['threads']} threads"


def origin(result: dict) -> str:
    return f"`{result['command']}`, {result['date']}, commit {result['commit']}"


def work(result: dict) -> str:
    """What a case of the benchmark does, in words."""
    p = next((case for case in result["cases"] if "bytes" in case), result["cases"][0])["parameters"]
    if result["bench"] == "loader":
        streams = "; ".join(p["streams"].values())
        return (
            f"Windows of {p['steps']} steps drawn at random from {p['episodes']:,} episodes of {p['seconds']:g} s, "
            f"{len(p['streams'])} streams with clocks of their own ({streams}), interpolated, normalised, {p['dtype']}."
        )
    if result["bench"] == "fuse":
        return (
            f"B episodes of {len(p['streams'])} streams with clocks of their own ({'; '.join(p['streams'])}) to {p['T']} "
            f"target times each, side by side, {p['method']}, {p['dtype']}."
        )
    if result["bench"] == "voxelize":
        return (
            "Points of x, y and z in float32 into a grid of voxels; of 8: so many float32 features a point. Lidar: in the "
            "order of a spinning scan; quantum: given by the caller. Hard voxels gather the first points of each voxel, "
            "downsampling takes the centroid."
        )
    if result["bench"] == "tsdf":
        return (
            "A depth image of 640 x 480, its points, or 131,072 points of a lidar, into a cube of voxels, 4 of them the "
            "truncation; carving: free space too. The copy is of the whole grid and its weights."
        )
    if result["bench"] == "sweep":
        return "Time over a copy of the same bytes, two things varied at a time around one case."
    return (
        f"B episodes of S samples and D features to T target times each, unless said {p['method']}, {p['dtype']} values, "
        f"{p['clock']} clocks of their own."
    )


# ---- README ----


def readme(found: list[dict]) -> str:
    sections = [section for section in map(readme_section, found) if section]
    return "\n".join([*sections, NOTES]) if sections else NONE


def cost(*benches: str) -> Callable[[list[dict]], str]:
    """What the page of an operation in docs shows: the README's sections of these benchmarks."""

    def render(found: list[dict]) -> str:
        sections = [section for result in found if result["bench"] in benches and (section := readme_section(result))]
        return "\n".join(sections).replace("](docs/", "](") or NONE

    return render


NOTES = """\
A peer does the whole job, and its output is compared with ours before anything is timed. *Time over a copy*: against
copying as many bytes as the job must read and write, so 1 is the fastest there can be. *In a loop*: what a program sees
that calls again and again, Python included. All cases, and how each figure is made:
[docs/benchmarks.md](docs/benchmarks.md).
"""


def readme_section(result: dict) -> str:
    if result["quick"]:
        return ""
    if result["bench"] == "sweep":
        return readme_sweep(result)
    on_gpu = "gpu" in result["machine"]
    cases = [c for c in result["cases"] if c["name"] in HEADLINES[result["bench"]] and "times_the_copy" in c]
    if result["bench"] == "voxelize" and on_gpu:  # not what waits for the device in the middle
        cases = [c for c in cases if "gpu_us" in c["contenders"][OURS]]
    if not cases:
        return ""
    if result["bench"] == "loader":
        title = "Training batches"
        ours = {"samples_per_s": "`next(loader)` in a loop"}
        if on_gpu:
            ours |= {"gpu_samples_per_s": "its kernel alone", "host_us": "host time of `next(loader)`"}
        else:
            ours |= {"wall_us": "time of `next(loader)`"}
        copy = "kernel's time over a copy" if on_gpu else "time over a copy"
    elif result["bench"] == "voxelize":
        title = "Voxels"
        ours = {"gpu_points_per_s": "points/s"} if on_gpu else {"points_per_s": "points/s"}
        ours |= {"gpu_us": "time of the kernels"} if on_gpu else {"wall_us": "time of a call"}
        copy = "time over a copy"
    else:
        title = {"resample": "resample_trajectories", "fuse": "fuse_multimodal", "tsdf": "integrate_tsdf"}[
            result["bench"]
        ]
        ours = {"gpu_us": "time of the kernel"} if on_gpu else {"wall_us": "time of a call"}
        copy = "time over a copy"
    columns: dict[str, list[str]] = {}
    for key, heading in ours.items():
        columns[heading] = [measure(key, case["contenders"][OURS]) for case in cases]
    columns[copy] = [number(case["times_the_copy"]) for case in cases]
    columns["aimed at"] = [aimed_at(result, case["name"]) for case in cases]
    for key, heading in FASTER.items():
        if result["bench"] == "voxelize" and key != "faster_than":
            continue
        for peer in dict.fromkeys(name for case in cases for name in case.get(key, {})):
            columns[f"{heading} {peer}"] = [times(case.get(key, {}).get(peer)) for case in cases]
    columns = {heading: cells for heading, cells in columns.items() if any(cells)}
    rows = [[case["name"], *cells] for case, *cells in zip(cases, *columns.values(), strict=True)]
    text = f"**{title}, {hardware(result['machine'])}.** {work(result)}\n\n{table(['', *columns], rows)}"
    text += "".join(f"\n{more}\n" for more in (variants(result, cases), beyond_the_launch(result)) if more)
    return f"{text}\nBy {origin(result)}.\n"


def aimed_at(result: dict, name: str) -> str:
    aim = result.get("aims", {}).get(name, {})
    if result["bench"] != "voxelize":
        return number(aim["times_the_copy"]) if "times_the_copy" in aim else ""
    return next((measure(key, aim) for key in ("gpu_points_per_s", "gpu_us") if key in aim), "")


# How a case compares with its peers, and how a column of it begins.
FASTER = {"faster_than": "faster than", "in_a_loop_faster_than": "in a loop, faster than"}


def variants(result: dict, cases: list[dict]) -> str:
    """Time over the copy's of the same episodes with other types, widths and methods."""
    if result["bench"] != "resample":
        return ""
    usual = {(p["B"], p["S"], p["T"]): p for p in (case["parameters"] for case in cases)}
    columns: dict[str, dict[tuple, str]] = {}
    for case in result["cases"]:
        p = case["parameters"]
        episodes = tuple(p.get(key) for key in "BST")
        if case in cases or episodes not in usual or "times_the_copy" not in case:
            continue
        changes = [change.format(p[key]) for key, change in CHANGES.items() if p[key] != usual[episodes][key]]
        columns.setdefault(", ".join(changes), {})[episodes] = number(case["times_the_copy"])
    if not columns:
        return ""
    names = [case["name"] for case in cases]
    rows = [[name, *(cells.get(of, "") for cells in columns.values())] for name, of in zip(names, usual, strict=True)]
    return "Time over a copy of the same with\n\n" + table(["", *columns], rows).rstrip()


# What a variant of a case may change, and how the column of it is called.
CHANGES = {"dtype": "{} values", "clock": "{} clocks", "D": "D={}", "method": "{}"}


def beyond_the_launch(result: dict) -> str:
    case = next((case for case in result["cases"] if "beyond_the_launch_us" in case), None)
    if case is None:
        return ""
    us = {name: duration(x["host_us"]) for name, x in case["contenders"].items()}
    lerp = f"; `torch.lerp` takes {us['torch.lerp']}" if "torch.lerp" in us else ""
    return (
        f"A call from Python keeps the host {us[OURS]}, of which {duration(case['beyond_the_launch_us'])} are not the "
        f"launch itself{lerp}."
    )


def readme_sweep(result: dict) -> str:
    planes = [case for case in result["cases"] if known(case)]
    if not planes:
        return ""
    ratios = sorted(ratio for case in planes for ratio in known(case))
    cliffs = sum(len(case["cliffs"]) for case in planes)
    drawn = f" ([heat map](docs/{picture_of(result).name}))" if picture_of(result).exists() else ""
    return (
        f"Over {len(ratios)} shapes, types and clocks on {hardware(result['machine'])} the time over a copy is "
        f"{number(ratios[len(ratios) // 2])} in the median and {number(ratios[-1])} at most"
        f"{drawn}; {counted(cliffs, 'pair')} of neighbours "
        f"differ by more than a factor of 2. "
        f"By {origin(result)}.\n"
    )


def known(case: dict) -> list[float]:
    return [ratio for line in case.get("ratios", []) for ratio in line if ratio is not None]


# ---- docs/benchmarks.md ----


def page(found: list[dict]) -> str:
    return "\n".join(page_section(result) for result in found) or NONE


def page_section(result: dict) -> str:
    machine = result["machine"]
    facts = [f"{key} {value}" for key, value in machine.items() if key != "name" and value is not None]
    text = f"### {result['bench']}, {hardware(machine)}\n\n"
    text += f"{origin(result)}: {', '.join(facts)}.\n"
    if result["quick"]:
        text += "\nA smoke run: the figures mean nothing.\n"
    if result["cases"]:
        text += f"\n{work(result)}\n"
    if result["bench"] == "sweep" and picture_of(result).exists():
        text += f"\n![heat maps]({picture_of(result).name})\n"
    for case in result["cases"]:
        text += f"\n**{case['name']}**\n\n"
        if "error" in case:
            text += f"Failed: {case['error']}\n"
        if "contenders" in case:
            text += contenders(case, on_gpu="gpu" in machine)
        if known(case):
            text += plane(case)
        text += "".join(f"\n{name} failed: {reason}\n" for name, reason in case.get("failures", {}).items())
    for key, (words, heading) in STATED.items():
        if result.get(key):
            text += f"\n{words}:\n\n"
            text += table(["", "", heading, "measured"], stated(result, key))
    return text


# What was written down before a measurement: what introduces its table, and the heading of its column.
STATED = {
    "predicted": ("What was predicted before the first measurement, and what came", "predicted"),
    "aims": ("What was aimed at, and what came, **bold** where it falls short", "aimed at"),
}


def contenders(case: dict, on_gpu: bool) -> str:
    keys = [key for key in MEASURES if any(key in measures for measures in case["contenders"].values())]
    rows = [
        [
            f"{name}, measured before" if measures.get("measured_before") else name,
            *(measure(key, measures) for key in keys),
            times(case.get("faster_than", {}).get(name)),
        ]
        for name, measures in case["contenders"].items()
    ]
    if "floor_us" in case:
        copy = {"gpu_us" if on_gpu else "wall_us": case["floor_us"]}
        rows.append([f"a copy of {number(case['bytes'] / 1e6)} MB", *(measure(key, copy) for key in keys), ""])
    text = table(["", *(MEASURES[key] for key in keys), "robocache is faster by"], rows)
    if "times_the_copy" in case:
        text += f"\nTime over the copy: {number(case['times_the_copy'])}"
        if "times_the_read" in case:
            text += f"; over a copy of the {number(case['read_bytes'] / 1e6)} MB read alone: "
            text += number(case["times_the_read"])
        text += ".\n"
    if "launch_us" in case:
        text += (
            f"\nA bare launch takes {duration(case['launch_us'])}, "
            f"the rest of robocache's call {duration(case['beyond_the_launch_us'])}.\n"
        )
    if "times_float32" in case:
        text += f"\nTime over that of float32 values: {number(case['times_float32'])}.\n"
    return text


def plane(case: dict) -> str:
    held = ", ".join(f"{key} {value}" for key, value in case["parameters"].items())
    text = f"{held}: {number(min(known(case)))} to {number(max(known(case)))} times the copy"
    if not case["cliffs"]:
        return f"{text}, no cliff.\n"
    rows = [[cliff["at"], cliff["beside"], times(cliff["factor"])] for cliff in case["cliffs"][:10]]
    return f"{text}; {counted(len(case['cliffs']), 'cliff')}, the worst first:\n\n{table(['slower', 'faster', 'by'], rows)}"


def stated(result: dict, key: str) -> list[list[str]]:
    """[case, what, as stated, measured] of every prediction or aim, those of a case that did not run too."""
    cases = {case["name"]: case for case in result["cases"]}
    rows = []
    for name, statements in result[key].items():
        for what, value, came, shown in compared(statements, cases.get(name, {})):
            cells = [shown(value), "" if came is None else shown(came)]
            if key == "aims":
                more_is_better = what.startswith(tuple(FASTER.values())) or shown is rate
                cells[0] = f"{'at least' if more_is_better else 'at most'} {cells[0]}"
                if came is not None and (came < value if more_is_better else came > value):
                    cells[1] = f"**{cells[1]}**"
            rows.append([name, what, *cells])
    return rows


def compared(statements: dict, case: dict) -> Iterator[tuple[str, float, float | None, Callable[[float], str]]]:
    """What was stated of a case: (what, as stated, measured or None, how to show both)."""
    ours = case.get("contenders", {}).get(OURS, {})
    for what, value in statements.items():
        if what in FASTER:
            for peer, ratio in value.items():
                # It may leave open what a peer's name ends with: how many workers it had.
                came = {n: r for n, r in case.get(what, {}).items() if n.split(",")[0] == peer} or {peer: None}
                yield from ((f"{FASTER[what]} {n}", ratio, r, times) for n, r in came.items())
        elif what in OF_A_CASE:
            heading, shown = OF_A_CASE[what]
            yield heading, value, case.get(what), shown
        else:
            yield MEASURES[what], value, ours.get(what), show_of(what)


# Measures of a case as a whole.
OF_A_CASE = {
    "times_the_copy": ("time over the copy", number),
    "times_float32": ("time over that of float32 values", number),
    "beyond_the_launch_us": ("a call, host alone, less a bare launch", duration),
}


# What Nsight Compute counted, in the order of the columns.
COUNTERS = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory busy, %",
    "lts__ltcfabric2ltc_cycles_active.avg.pct_of_peak_sustained_elapsed": "between L2's halves busy, %",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "multiprocessors busy, %",
    "sm__inst_executed.avg.per_cycle_active": "instructions a cycle, of 4",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps resident, %",
}
STALLED, PER_ISSUE = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"


def counters() -> str:
    text = ""
    for path in sorted((ROOT / "bench/results/counters").glob("*.json")):
        result = json.loads(path.read_text())
        rows = []
        for case in result["cases"]:
            counted = case["counters"]
            most = max((name for name in counted if name.startswith(STALLED)), key=counted.get)
            reason = most.removeprefix(STALLED).removesuffix(PER_ISSUE).replace("_", " ")
            microseconds = number(counted["gpu__time_duration.sum"] / 1000)
            rows.append([case["name"], microseconds, *(number(counted[name]) for name in COUNTERS), reason])
        text += f"\n### Counters of kernels, {result['machine'].get('gpu', path.stem)}\n\n"
        text += f"By the command in `{path.relative_to(ROOT)}`, {result['date']}, commit {result['commit']}.\n\n"
        text += table(["", "us", *COUNTERS.values(), "stalled most by"], rows)
    return text


# ---- The pages ----


def replaced(path: Path, block: str) -> str:
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{path}: expected one {BEGIN} and one {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{block}{END}{rest.split(END)[1]}"


PAGES = {
    "README.md": readme,
    "docs/benchmarks.md": lambda found: page(found) + counters(),
    "docs/resample.md": cost("resample", "sweep"),
    "docs/fuse.md": cost("fuse"),
    "docs/voxelize.md": cost("voxelize"),
    "docs/tsdf.md": cost("tsdf"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    options = parser.parse_args()
    found = results(ROOT / "bench/results")
    stale = 0
    for result in found:  # first the pictures, since the pages show those that are there
        if result["bench"] != "sweep" or is_current(result):
            continue
        stale, path = 1, picture_of(result)
        if options.check or importlib.util.find_spec("matplotlib") is None:
            print(f"{path.name} is out of date: run python bench/render.py where matplotlib is")
        else:
            draw(result, path)
            print(f"{path.name} drawn")
    for name, render in PAGES.items():
        path = ROOT / name
        text = replaced(path, render(found))
        if text == path.read_text():
            continue
        stale = 1
        if options.check:
            print(f"{name} is out of date: run python bench/render.py")
        else:
            path.write_text(text)
            print(f"{name} rewritten")
    return stale if options.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
