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

# What the README shows of each benchmark, in this order.
HEADLINES = {
    "loader": ["batch 1024", "batch 4096"],
    "resample": ["B32 S500 T250 D256", "B64 S4096 T1024 D32", "B64 S1000 T512 D512"],
}


def results(folder: Path) -> list[dict]:
    """The result files, the GPU's before the CPU's."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return sorted(
        found, key=lambda result: (result["bench"], "gpu" not in result["machine"], result["machine"]["name"])
    )


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def number(value: float) -> str:
    """Three digits that count, with thousands where they help."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(us: float) -> str:
    return f"{number(us)} us" if us < 1000 else f"{number(us / 1000)} ms"


def rate(samples_per_s: float) -> str:
    million = samples_per_s >= 1e6
    return f"{number(samples_per_s / (1e6 if million else 1e3))} {'M' if million else 'k'}/s"


def hardware(machine: dict) -> str:
    return machine["gpu"] if "gpu" in machine else f"{machine['cpu']}, {machine['threads']} threads"


def speedups(case: dict) -> str:
    return ", ".join(f"{number(ratio)}x {name}" for name, ratio in case.get("faster_than", {}).items())


def measured(case: dict) -> str:
    """What robocache took: samples a second for batches, time on the device or the wall for operations."""
    ours = case["contenders"]["robocache"]
    if "samples_per_s" in ours:
        return f"{rate(ours['samples_per_s'])} samples"
    return duration(ours.get("gpu_us", ours["wall_us"]))


def readme(found: list[dict]) -> str:
    rows = []
    for bench, names in HEADLINES.items():
        for result in (r for r in found if r["bench"] == bench):
            for case in (c for c in result["cases"] if c["name"] in names and "times_the_copy" in c):
                rows.append(
                    [
                        f"{bench}, {case['name']}, {case['parameters']['dtype']}",
                        hardware(result["machine"]),
                        measured(case),
                        number(case["times_the_copy"]),
                        speedups(case),
                        f"`{result['command']}`",
                    ]
                )
    if not rows:
        return NONE
    header = ["benchmark", "on", "robocache", "time over a copy of the same bytes", "faster than", "command"]
    return table(header, rows)


MEASURES = {
    "gpu_us": "on the device",
    "wall_us": "wall",
    "cold_us": "wall, cold cache",
    "host_us": "on the host",
    "samples_per_s": "samples, wall",
    "gpu_samples_per_s": "samples, device",
}


def page(found: list[dict]) -> str:
    return "\n".join(section(result) for result in found) or NONE


def section(result: dict) -> str:
    machine = result["machine"]
    facts = [f"{key} {value}" for key, value in machine.items() if key != "name"]
    text = f"### {result['bench']}, {hardware(machine)}\n\n"
    text += f"`{result['command']}`, {result['date']}, commit {result['commit']}: {', '.join(facts)}.\n"
    if result["quick"]:
        text += "\nA smoke run: the figures mean nothing.\n"
    for case in result["cases"]:
        text += f"\n**{case['name']}** ({', '.join(f'{k} {v}' for k, v in flat(case['parameters']))})\n\n"
        if "error" in case:
            text += f"Failed: {case['error']}\n"
        if "contenders" not in case:
            continue
        keys = [key for key in MEASURES if any(key in measures for measures in case["contenders"].values())]
        rows = []
        for name, measures in case["contenders"].items():
            faster = case.get("faster_than", {}).get(name)
            rows.append([name, *(cell(key, measures) for key in keys), "" if faster is None else f"{number(faster)}x"])
        if "floor_us" in case:
            copy = {"gpu_us" if "gpu" in machine else "wall_us": case["floor_us"]}
            rows.append([f"a copy of {case['bytes'] / 1e6:.1f} MB", *(cell(key, copy) for key in keys), ""])
        text += table(["", *(MEASURES[key] for key in keys), "robocache is faster by"], rows)
        text += "".join(f"\n{name} failed: {reason}\n" for name, reason in case.get("failures", {}).items())
        predicted = result["predicted"].get(case["name"])
        if predicted:
            text += f"\nPredicted before measuring: {', '.join(f'{k} {shown(v)}' for k, v in flat(predicted))}"
            text += (
                f"; measured: time over the copy {number(case['times_the_copy'])}.\n"
                if "times_the_copy" in case
                else ".\n"
            )
    return text


def cell(key: str, measures: dict) -> str:
    if key not in measures:
        return ""
    return rate(measures[key]) if key.endswith("samples_per_s") else duration(measures[key])


def flat(values: dict) -> list[tuple[str, object]]:
    pairs = []
    for key, value in values.items():
        word = key.replace("_", " ")
        pairs += [(f"{word} {k}", v) for k, v in flat(value)] if isinstance(value, dict) else [(word, value)]
    return pairs


def shown(value: object) -> str:
    return number(value) if isinstance(value, (int, float)) else str(value)


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
