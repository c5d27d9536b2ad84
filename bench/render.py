"""Renders bench/results/*.json into README.md and docs/benchmarks.md, between their markers.

python bench/render.py            # rewrite both
python bench/render.py --check    # exit 1 if either is out of date
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
NONE = "No results yet: `./dev bench` makes them.\n"
OURS = "robocache"

# What the README shows of each benchmark, in this order.
HEADLINES = {
    "loader": ["batch 1024", "batch 4096"],
    "resample": ["B32 S500 T250 D256", "B64 S4096 T1024 D32", "B64 S1000 T512 D512"],
}

# The measures of a contender, in the order of the columns.
MEASURES = {
    "samples_per_s": "samples/s, in a loop",
    "gpu_samples_per_s": "samples/s, device alone",
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


def rate(samples_per_s: float) -> str:
    for unit, word in ((1e6, " M"), (1e3, " k")):
        if samples_per_s >= unit:
            return f"{number(samples_per_s / unit)}{word}/s"
    return f"{number(samples_per_s)}/s"


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{number(ratio)}x"


def measure(key: str, measures: dict) -> str:
    if key not in measures:
        return ""
    return rate(measures[key]) if key.endswith("samples_per_s") else duration(measures[key])


def hardware(machine: dict) -> str:
    return machine["gpu"] if "gpu" in machine else f"{machine['cpu']}, {machine['threads']} threads"


def origin(result: dict) -> str:
    return f"`{result['command']}`, {result['date']}, commit {result['commit']}"


def work(result: dict) -> str:
    """What a case of the benchmark does, in words."""
    p = result["cases"][0]["parameters"]
    if result["bench"] == "loader":
        streams = "; ".join(p["streams"].values())
        return (
            f"Windows of {p['steps']} steps drawn at random from {p['episodes']:,} episodes of {p['seconds']:g} s, "
            f"{len(p['streams'])} streams with clocks of their own ({streams}), interpolated, normalised, {p['dtype']}."
        )
    return (
        f"B episodes of S samples and D features to T target times each, {p['method']}, {p['dtype']}, "
        f"{p['clock']} clocks of their own."
    )


# ---- README ----


def readme(found: list[dict]) -> str:
    sections = [section for section in map(readme_section, found) if section]
    return "\n".join([*sections, NOTES]) if sections else NONE


NOTES = """\
A peer does the whole job, and its output is compared with ours before anything is timed. *Time over a copy*: against
copying as many bytes as the job must read and write, so 1 is the fastest there can be. *In a loop*: what a program sees
that calls again and again, Python included. All cases, and how each figure is made:
[docs/benchmarks.md](docs/benchmarks.md).
"""


def readme_section(result: dict) -> str:
    cases = [c for c in result["cases"] if c["name"] in HEADLINES[result["bench"]] and "times_the_copy" in c]
    if not cases or result["quick"]:
        return ""
    on_gpu = "gpu" in result["machine"]
    if result["bench"] == "loader":
        title = "Training batches"
        ours = {"samples_per_s": "`next(loader)` in a loop"}
        if on_gpu:
            ours |= {"gpu_samples_per_s": "its kernel alone", "host_us": "host time of `next(loader)`"}
        else:
            ours |= {"wall_us": "time of `next(loader)`"}
        copy = "kernel's time over a copy" if on_gpu else "time over a copy"
    else:
        title = "resample_trajectories"
        ours = {"gpu_us": "time of the kernel"} if on_gpu else {"wall_us": "time of a call"}
        copy = "time over a copy"
    peers = list(dict.fromkeys(name for case in cases for name in case["faster_than"]))
    rows = [
        [
            case["name"],
            *(measure(key, case["contenders"][OURS]) for key in ours),
            number(case["times_the_copy"]),
            *(times(case["faster_than"].get(peer)) for peer in peers),
        ]
        for case in cases
    ]
    header = ["", *ours.values(), copy, *(f"faster than {peer}" for peer in peers)]
    return (
        f"**{title}, {hardware(result['machine'])}.** {work(result)}\n\n{table(header, rows)}\nBy {origin(result)}.\n"
    )


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
    for case in result["cases"]:
        text += f"\n**{case['name']}**\n\n"
        if "error" in case:
            text += f"Failed: {case['error']}\n"
        if "contenders" in case:
            text += contenders(case, on_gpu="gpu" in machine)
        text += "".join(f"\n{name} failed: {reason}\n" for name, reason in case.get("failures", {}).items())
    if result["predicted"]:
        text += "\nWhat was predicted before the first measurement, and what came:\n\n"
        text += table(["", "", "predicted", "measured"], predictions(result))
    return text


def contenders(case: dict, on_gpu: bool) -> str:
    keys = [key for key in MEASURES if any(key in measures for measures in case["contenders"].values())]
    rows = [
        [name, *(measure(key, measures) for key in keys), times(case.get("faster_than", {}).get(name))]
        for name, measures in case["contenders"].items()
    ]
    if "floor_us" in case:
        copy = {"gpu_us" if on_gpu else "wall_us": case["floor_us"]}
        rows.append([f"a copy of {number(case['bytes'] / 1e6)} MB", *(measure(key, copy) for key in keys), ""])
    text = table(["", *(MEASURES[key] for key in keys), "robocache is faster by"], rows)
    if "times_the_copy" in case:
        text += f"\nTime over the copy: {number(case['times_the_copy'])}.\n"
    return text


def predictions(result: dict) -> list[list[str]]:
    """[case, what, predicted, measured] of every prediction, those of a case that did not run too."""
    cases = {case["name"]: case for case in result["cases"]}
    rows = []
    for name, predicted in result["predicted"].items():
        case = cases.get(name, {})
        ours = case.get("contenders", {}).get(OURS, {})
        for key, value in predicted.items():
            if key == "faster_than":
                for peer, ratio in value.items():
                    # A prediction may leave open what a peer's name ends with: how many workers it had.
                    came = {n: r for n, r in case.get("faster_than", {}).items() if n.split(",")[0] == peer}
                    rows += [[name, f"faster than {n}", times(ratio), times(r)] for n, r in came.items()]
                    if not came:
                        rows.append([name, f"faster than {peer}", times(ratio), ""])
            elif key == "times_the_copy":
                came = number(case[key]) if key in case else ""
                rows.append([name, "time over the copy", number(value), came])
            else:
                rows.append([name, MEASURES[key], measure(key, predicted), measure(key, ours)])
    return rows


# ---- The pages ----


def replaced(path: Path, block: str) -> str:
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{path}: expected one {BEGIN} and one {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{block}{END}{rest.split(END)[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    options = parser.parse_args()
    found = results(ROOT / "bench/results")
    stale = 0
    for name, render in {"README.md": readme, "docs/benchmarks.md": page}.items():
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
