"""The gates of a release. A gate is a function that yields the faults of a checkout. No gate publishes anything.

python packaging/release.py [GATE...]      all gates, or the named ones; --list describes them
"""

import hashlib
import inspect
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

Gate = Callable[[Path], Iterator[str]]
GATES: dict[str, Gate] = {}
# Other places of the version: (file, the text before the version).
VERSIONED = [
    ("CITATION.cff", "^version: "),
    ("packaging/chart/Chart.yaml", "^version: "),
    ("packaging/chart/Chart.yaml", "^appVersion: "),
    ("packaging/chart/values.yaml", "image: robocache:"),
    ("docs/cluster.md", "robocache:(?=[0-9])"),
    ("integrations/ros2/package.xml", "<version>"),
]
# check-jsonschema has these schemas.
SCHEMAS = {
    ".github/workflows/*.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    "CITATION.cff": "citation-file-format",
}


def gate(function: Gate) -> Gate:
    GATES[function.__name__] = function
    return function


def version_of(root: Path) -> str:
    """Returns the version, which is defined in CMakeLists.txt."""
    match = re.search(r"project\(robocache VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())
    assert match is not None
    return match[1]


def run(root: Path, *command: str, quiet: bool = False) -> str | None:
    """Returns why a command failed, or None if it succeeded. With `quiet` the reason includes the end of the output."""
    completed = subprocess.run(command, cwd=root, capture_output=quiet, text=True)
    if completed.returncode == 0:
        return None
    output = f": {' '.join((completed.stdout + completed.stderr).split())[-2000:]}" if quiet else ""
    return f"{' '.join(command)} exited {completed.returncode}{output}"


@gate
def version(root: Path) -> Iterator[str]:
    """CMakeLists.txt, the places in VERSIONED and the first entry of CHANGELOG.md have one version. The entry has a date."""
    expected = version_of(root)
    for name, text_before in VERSIONED:
        versions = re.findall(rf"{text_before}([\d.]+)", (root / name).read_text(), re.MULTILINE)
        for other in sorted({*(versions or ["none"])} - {expected}):
            yield f"{name}: expected version {expected}, got {other}"
    entry = re.search(r"^## (\S+) - (\S+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if entry is None or entry[1] != expected:
        yield f"CHANGELOG.md: expected a first entry for {expected}, got {entry[1] if entry else 'none'}"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", entry[2]):
        yield f"CHANGELOG.md: expected the date of {expected}, got {entry[2]}"


@gate
def tag(root: Path) -> Iterator[str]:
    """The commit has the tag of the version, and the tree has no change that is not committed."""
    expected = f"v{version_of(root)}"
    git = ["git", "-C", str(root)]
    tags = subprocess.run([*git, "tag", "--points-at", "HEAD"], capture_output=True, text=True).stdout.split()
    if expected not in tags:
        yield f"expected the tag {expected} on this commit, got {', '.join(tags) or 'none'}"
    changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True).stdout.splitlines()
    if changes:
        yield f"changes that are not committed: {', '.join(line[3:] for line in changes)}"


@gate
def interface(root: Path) -> Iterator[str]:
    """tests/interface.json has every public name, so that no name can be removed unnoticed later."""
    with tempfile.TemporaryDirectory() as folder:
        interface_file = Path(folder) / "interface.json"
        if fault := run(root, sys.executable, "tests/python/test_stability.py", str(interface_file), quiet=True):
            yield fault
        elif json.loads(interface_file.read_text()) != json.loads((root / "tests/interface.json").read_text()):
            yield "tests/interface.json: not today's: python tests/python/test_stability.py tests/interface.json"


@gate
def files(root: Path) -> Iterator[str]:
    """The workflows, issue forms and CITATION.cff are valid by their schemas. zizmor finds no hole in a workflow."""
    for pattern, schema in SCHEMAS.items():
        paths = sorted(str(path.relative_to(root)) for path in root.glob(pattern))
        if not paths:
            yield f"{pattern}: no such file"
        elif fault := run(
            root, sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *paths, quiet=True
        ):
            yield fault
    if fault := run(root, "zizmor", "--offline", "--no-progress", "--color=never", ".github", quiet=True):
        yield fault


# The commands that download. pip does not download if it only uses a folder.
FETCHES = re.compile(r"\b(curl|wget|git|apt|apt-get|apk|dnf|conda|uv|npm)\b|\bpip\d? (?!.*--no-index)\w+")


@gate
def container(root: Path) -> Iterator[str]:
    """The Dockerfile fetches nothing, takes its base by ARG, and ends as a user that is not root."""
    path = root / "packaging/container/Dockerfile"
    lines = re.sub(r"\\\n\s*", "", path.read_text()).splitlines()
    users: dict[str, str] = {}  # the user of each stage
    stage, user = "", "root"
    for number, line in enumerate(lines, 1):
        word, _, rest = line.partition(" ")
        where = f"{path.relative_to(root)}: line {number}"
        if word == "FROM":
            base, _, stage = rest.partition(" AS ")
            user = users.get(base, "root")
            if base not in users and not base.startswith("${"):
                yield f"{where}: expected a base by ARG, got {base}"
        elif word == "USER":
            user = rest
            if not re.fullmatch(r"[1-9]\d*", rest):
                yield f"{where}: expected the number of a user that is not root, got {rest}"
        elif (word == "RUN" and FETCHES.search(rest)) or (word == "ADD" and "://" in rest):
            yield f"{where}: fetches: {rest}"
        users[stage] = user
    for name in ("source", "wheel"):
        if users.get(name, "root") == "root":
            yield f"{path.relative_to(root)}: expected a stage {name} whose user is not root"


def add_dev_gate(name: str, description: str, *dev_arguments: str) -> None:
    """Adds a gate that fails if `./dev DEV_ARGUMENTS` fails."""

    def function(root: Path) -> Iterator[str]:
        if fault := run(root, "./dev", *dev_arguments):
            yield fault

    function.__doc__ = description
    GATES[name] = function


add_dev_gate("lint", "./dev lint.", "lint")


# PACKAGE matches reasons of skipped tests that name a package. ./dev test does not install the packages of NOT_INSTALLED: they
# are large, or ROS 2, whose tests ./dev ros2 runs.
PACKAGE = re.compile(r"could not import|not installed|(pip|apt-get) install|\bno (PyAV|Pillow)\b|NOT RUN")
NOT_INSTALLED = re.compile(r"\b(cupy|diffusers|jax|lerobot|pandas|ray|ROS 2)\b", re.IGNORECASE)


def count_skipped(results: Path) -> Counter[str]:
    """Returns the number of skipped tests by reason, from the JUnit files of a run."""
    counts: Counter[str] = Counter()
    for path in results.glob("*/*.xml"):
        report = ElementTree.parse(path).getroot()
        for entry in report.iter("property"):
            if entry.get("name") == "not_run":
                counts["no CUDA"] += int(entry.get("value", 0))
        for case in report.iter("testcase"):
            if (skip := case.find("skipped")) is not None:
                reason = skip.get("message") or skip.text or ""
                counts[re.sub(r"^\S+:\d+\n", "", reason.strip()).replace("\n", " ")] += 1  # googletest's file and line
    return counts


@gate
def tests(root: Path) -> Iterator[str]:
    """./dev test: every test, the wheel's too. Lists skipped tests; one that needs a package, or a GPU that is here, is a fault."""
    if fault := run(root, "./dev", "test"):
        yield fault
    gpu = run(root, "sh", "-c", "nvidia-smi -L", quiet=True) is None
    for reason, count in sorted(count_skipped(root / "build/results").items()):
        line = f"{count} skipped: {reason}"
        if (PACKAGE.search(reason) and not NOT_INSTALLED.search(reason)) or (gpu and "CUDA" in reason):
            yield line
        else:
            print(f"        {line}")


add_dev_gate("fuzz", "./dev fuzz: every parser of tests/fuzz for half a minute.", "fuzz", "--seconds", "30")
add_dev_gate(
    "soak", "./dev soak: every part for ten minutes, on the GPU where there is one.", "soak", "--minutes", "10"
)
add_dev_gate("docs", "./dev docs: the site without a warning.", "docs")


@gate
def links(root: Path) -> Iterator[str]:
    """lychee --offline: each link of the site and of the files of Markdown leads to a file, and to a heading in it."""
    command = ["lychee", "--offline", "--include-fragments=anchor-only", "--no-progress", "build/docs"]
    markdown_files = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    if fault := run(root, *command, *markdown_files.split(), quiet=True):
        yield fault


add_dev_gate(
    "wheels",
    "./dev wheel twice: the wheels and the sdist in dist/, through the gates of packaging/gates.py, this machine's the same twice.",
    *("wheel", "twice"),
)


@gate
def environments(root: Path) -> Iterator[str]:
    """tests/release: other Pythons and packages, Debian 11, the container, the chart, the benchmarks, the examples; a skipped test is a fault."""
    command = [sys.executable, "-m", "pytest", "-q", "-rsfE", "tests/release"]
    completed = subprocess.run(command, cwd=root, capture_output=True, text=True)
    yield from re.findall(r"^(?:SKIPPED|FAILED|ERROR) .*", completed.stdout, re.MULTILINE)
    if completed.returncode:
        yield f"{' '.join(command)} exited {completed.returncode}: {completed.stdout[-2000:]}"


def find_differing_files(sdist: Path, root: Path) -> Iterator[str]:
    """Yields the files of an sdist that are missing or different in the checkout."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            packed = archive.extractfile(member)
            if (
                packed
                and name != "PKG-INFO"
                and not ((root / name).is_file() and (root / name).read_bytes() == packed.read())
            ):
                yield name


@gate
def dist(root: Path) -> Iterator[str]:
    """dist/ has the sdist of this tree and the wheels of this version and nothing of another; SHA256SUMS has their hashes."""
    expected = version_of(root)
    paths = sorted(path for path in (root / "dist").glob("*") if path.name != "SHA256SUMS")
    names = [f"robocache-{expected}.tar.gz"]
    for machine in ("x86_64", "aarch64"):
        names += [f"robocache-{expected}-*{machine}.whl", f"robocache_cpu-{expected}-*{machine}.whl"]
    for expected_name in names:
        if not any(path.match(expected_name) for path in paths):
            yield f"dist/{expected_name}: no such file"
    yield from (f"dist/{path.name}: of another version than {expected}" for path in paths if expected not in path.name)
    sums = root / "dist/SHA256SUMS"
    hashes = dict(reversed(line.split("  ", 1)) for line in sums.read_text().splitlines()) if sums.exists() else {}
    for path in paths:
        if hashes.get(path.name) != hashlib.sha256(path.read_bytes()).hexdigest():
            yield f"dist/{path.name}: is not what SHA256SUMS says"
        elif path.suffix == ".gz" and (differing := list(find_differing_files(path, root))):
            yield f"dist/{path.name}: is of another tree; {len(differing)} files differ, {differing[0]} among them: ./dev wheel"


def main(names: list[str], root: Path) -> int:
    if unknown := set(names) - GATES.keys():
        print(f"no gate {', '.join(sorted(unknown))}; there are {', '.join(GATES)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or GATES:
        faults = list(GATES[name](root))
        print(f"FAILED  {name}" if faults else f"ok      {name}", *faults, sep="\n        ", flush=True)
        failed += [name] * bool(faults)
    left_out = f"; not asked for: {', '.join(name for name in GATES if name not in names)}" if names else ""
    print(f"{len(names or GATES) - len(failed)} gates passed, {len(failed)} failed{left_out}. Nothing was published.")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print(*(f"{name:14}{inspect.getdoc(function)}" for name, function in GATES.items()), sep="\n")
        sys.exit(0)
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parents[1]))
