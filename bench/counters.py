"""Makes calls for Nsight Compute (ncu) to profile. Each call is made twice, and the second time counts.

ncu --clock-control none --kernel-name-base demangled -k 'regex:KERNELS' --csv --page raw --metrics ... --log-file counters.csv python bench/counters.py
python bench/counters.py --read counters.csv

--command prints the whole command of ncu. --only selects calls by a part of their names; give it to both programs. --read
writes the counters in ncu's CSV file to bench/results/counters/; run it on the machine on which ncu ran, whose name it stores.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path

import fuse
import torch
import voxelize
from inputs import CLOUDS, make_clock, make_targets
from record import HERE, arguments, describe_machine, find_commit

import robocache


def call_resample(batch: int, samples: int, targets: int, features: int, **options: object) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    values = torch.randn(batch, samples, features, device="cuda", generator=generator).to(torch.bfloat16)
    times = make_clock("50% jitter", batch, samples, torch.float32, generator, "cuda")
    target_times = make_targets(batch, targets, torch.float32, "cuda")
    call_twice(robocache.resample_trajectories, values, times, target_times, **options)


def call_twice(call: Callable, *inputs: object, **options: object) -> None:
    torch.cuda.synchronize()
    for _ in range(2):
        call(*inputs, **options)
    torch.cuda.synchronize()


def call_fuse(batch: int) -> None:
    call_twice(robocache.fuse_multimodal, *fuse.make_inputs(batch, "cuda", seed=0))


def call_voxelize(case: voxelize.Case) -> None:
    call_twice(voxelize.make_our_call(case), voxelize.Cloud(case, "cuda", seed=0))


CALLS = {
    "resample B256 S500 T250 D32": partial(call_resample, 256, 500, 250, 32),
    "resample B256 S500 T250 D7": partial(call_resample, 256, 500, 250, 7),
    "resample B1024 S2048 T1024 D7": partial(call_resample, 1024, 2048, 1024, 7),
    "pchip B1024 S2048 T1024 D64": partial(call_resample, 1024, 2048, 1024, 64, method="pchip"),
    "akima B1024 S2048 T1024 D64": partial(call_resample, 1024, 2048, 1024, 64, method="akima"),
    "slerp B1024 S2048 T1024 D64": partial(
        call_resample, 1024, 2048, 1024, 64, methods=[(slice(d, d + 4), "slerp") for d in range(0, 64, 4)]
    ),
    **{f"fuse B{batch}": partial(call_fuse, batch) for batch in (64, 512)},
    **{case.name: partial(call_voxelize, case) for case in voxelize.CASES["cuda"] if case.cloud in CLOUDS},
}

# A regular expression for the demangled names of kernels: it matches RoboCache's, which are in this namespace.
KERNELS = "robocache::"
METRICS = [
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__time_duration.sum",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "lts__ltcfabric2ltc_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed.avg.per_cycle_active",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "smsp__inst_executed.sum",
]


def ncu_command(only: str | None) -> str:
    return (
        f"ncu --clock-control none --kernel-name-base demangled -k 'regex:{KERNELS}' --csv --page raw "
        f"--metrics {','.join(METRICS)} --log-file counters.csv python bench/counters.py"
        + (f" --only {shlex.quote(only)}" if only else "")
    )


def read_calls(path: Path) -> Iterator[list[dict]]:
    """Yields for each call the rows of its kernels, {column: value}, as measured when the call was made the second time. The file
    has the rows of both times: the kernels A and B of a call are A, B, A, B."""
    with path.open(newline="") as file:
        lines = [row for row in csv.reader(file) if len(row) > len(METRICS)]
    rows = [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]  # lines[1] holds units
    names = [row["Kernel Name"] for row in rows]
    index = 0
    while index < len(rows):
        lengths = range(1, (len(rows) - index) // 2 + 1)
        count = next((n for n in lengths if names[index : index + n] == names[index + n : index + 2 * n]), 0)
        if count == 0:
            raise SystemExit(
                f"{path}: expected the kernels of each call twice; from row {index + 1} of {len(rows)}, {names[index]!r}, no "
                "sequence of kernels comes twice; run ncu again"
            )
        yield rows[index + count : index + 2 * count]
        index += 2 * count


def read(options: argparse.Namespace) -> None:
    machine = describe_machine(options)
    chosen = [name for name in CALLS if (options.only or "") in name]
    calls = list(read_calls(options.read))
    if len(calls) != len(chosen):
        raise SystemExit(
            f"{options.read}: expected the kernels of {len(chosen)} calls, got {len(calls)}; give --only as to ncu. A call that launches "
            "a kernel twice in a row looks like two calls"
        )
    cases = []
    for call, rows in zip(chosen, calls, strict=True):
        for row in rows:
            # Removes the parameters, the return type and the namespaces from the demangled name.
            kernel = re.sub(r"void |\w+::|<?unnamed>::", "", row["Kernel Name"].split("(")[0])
            counters = {metric: float(row[metric].replace(",", "")) for metric in METRICS}
            name = call if len(rows) == 1 else f"{call}: {kernel.split('<')[0]}"
            cases.append({"name": name, "kernel": kernel, "grid": row["Grid Size"], "counters": counters})
    result = {"bench": "counters", "machine": machine, "command": ncu_command(options.only)}
    result["commit"] = options.commit or find_commit()
    folder = options.out or HERE / "results/counters"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{machine['name']}.json"
    path.write_text(json.dumps(result | {"date": f"{date.today()}", "cases": cases}, indent=1) + "\n")
    print(path)


def main() -> None:
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--read", type=Path, metavar="CSV", help="store the counters of ncu")
    parser.add_argument("--command", action="store_true", help="print the whole command")
    options = parser.parse_args()
    if options.command:
        print(ncu_command(options.only))
    elif options.read:
        read(options)
    else:
        for name, call in CALLS.items():
            if (options.only or "") in name:
                print(name, flush=True)
                call()


if __name__ == "__main__":
    main()
