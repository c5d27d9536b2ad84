"""Counts the instructions that jobs of the CPU library take, on aarch64 and on x86-64 with AVX2, both emulated by qemu.

    python3 bench/instructions.py --aarch64 build/dist-aarch64 --x86_64 build/release --commit COMMIT --into bench/results/instructions/qemu.json

The arguments are folders with librobocache.a. A count is exact and the same on every machine, but says little about time: an
instruction of AVX2 handles 32 bytes, one of aarch64 16.
"""

import argparse
import json
import subprocess
import tempfile
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# For each machine its compiler, its emulator, and where its libjpeg.a and libz.a are.
MACHINES = {
    "aarch64": (
        "aarch64-linux-gnu-g++",
        ["qemu-aarch64-static"],
        ROOT / "build/aarch64-root/usr/lib/aarch64-linux-gnu",
    ),
    "x86_64": ("g++", ["qemu-x86_64-static", "-cpu", "max"], Path("/usr/lib/x86_64-linux-gnu")),
}


def compile_jobs(machine: str, build: Path, program: Path) -> None:
    """Compiles bench/instructions.cpp with the library in `build`."""
    compiler, _, libraries = MACHINES[machine]
    command = [compiler, "-std=c++20", "-O2", "-static", f"-I{ROOT / 'src'}", ROOT / "bench/instructions.cpp"]
    archives = [build / "librobocache.a", libraries / "libjpeg.a", libraries / "libz.a"]
    subprocess.run([*command, *archives, "-o", program], check=True, capture_output=True)


def list_jobs(machine: str, program: Path) -> list[str]:
    command = [*MACHINES[machine][1], program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def count(machine: str, program: Path, job: str) -> float:
    """Returns the instructions an element: those of doing the job twice, less those of doing it once."""
    counts, elements = [], 1
    for repetitions in ("1", "2"):
        # Blocks of one instruction, each reported when it runs.
        trace = ["-singlestep", "-d", "nochain,exec", "-D", "/dev/stdout"]
        environment = ["env", "ROBOCACHE_NUM_THREADS=1"]
        command = [*environment, *MACHINES[machine][1], *trace, program, job, repetitions]
        instructions = 0
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(b"Trace"):
                    instructions += 1
                elif line.strip().isdigit():
                    elements = int(line)
        if process.returncode:
            raise SystemExit(f"{job}: {program.name} exited {process.returncode}")
        counts.append(instructions)
    return (counts[1] - counts[0]) / elements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for machine in MACHINES:
        parser.add_argument(f"--{machine}", type=Path, required=True, help="the folder of its librobocache.a")
    parser.add_argument("--commit", required=True, help="the commit of the libraries")
    parser.add_argument("--into", type=Path, required=True, help="the JSON file of the result")
    options = parser.parse_args()
    instructions: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for machine in MACHINES:
            program = Path(folder) / machine
            compile_jobs(machine, getattr(options, machine), program)
            for job in list_jobs(machine, program):
                instructions.setdefault(job, {})[machine] = round(count(machine, program, job), 2)
                print(machine, job, instructions[job][machine], flush=True)
    version = subprocess.run(["qemu-aarch64-static", "--version"], check=True, capture_output=True, text=True).stdout
    result = {
        "counted_by": version.splitlines()[0],
        "commit": options.commit,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "instructions_an_element": instructions,
    }
    options.into.parent.mkdir(exist_ok=True)
    options.into.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
