"""Checks that every import in the Python package follows the order of its rooms, without circles.

A module or subpackage of robocache imports only modules before it in ROOMS. Modules of one subpackage import each other in any
order, without circles. Imports in functions count too, unless UPWARD lists them with a reason. Imports under `if TYPE_CHECKING`
do not count, since they never run.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = {
    "text, errors and the library": "_command _printable _temporary _tvm_ffi errors notebook _lib",
    "operations": "_check _operation _torch _call image_options ops feature_words actions",
    "caches": "installation frames turns conditions dataset feature_names writer tasks anchor_columns",
    "what people read": "provenance view overview picture meter explanation findings",
    "files in and out": "sources episode_rates ingest export",
    "training": "norm_stats affine options text_keys spec live former_options loader_options iteration loader episode_batches window_statistics lerobot_cache lerobot",
    "the doctor": "doctor",
    "the package": "__init__",
    "the command": "demo self_test _arguments cli __main__",
}
UPWARD = {
    ("findings", "doctor.page"): "Report.html draws the doctor's page, whose plots nothing else needs",
    ("dataset", "window_statistics"): "Dataset.statistics takes a loader, which draws from datasets",
    ("loader", "lerobot"): "Loader.from_lerobot returns the subclass for LeRobot's datasets",
    ("ingest.driver", "ingest.workers"): "ingest hands its work to processes, each of which runs the driver",
}
ORDER = " ".join(ROOMS.values()).split()
PACKAGE = Path("python/robocache")


def find_imports(path: Path, module: str, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Yields the line and the module of each import of a module of robocache."""
    package = ["robocache"] if module == "__init__" else ["robocache", *module.split(".")]
    if path.name != "__init__.py":
        package.pop()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    for node in nodes:  # the loop appends the children of each node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
            continue
        nodes += ast.iter_child_nodes(node)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            names = [f"{source}.{alias.name}" for alias in node.names]
        for name in names:
            if name.split(".")[0] != "robocache":
                continue
            imported_module = name.removeprefix("robocache").removeprefix(".")
            if imported_module not in modules:  # the name of an object in a module
                imported_module = imported_module.rpartition(".")[0]
            yield node.lineno, imported_module or "__init__"


def find_mistakes(files: dict[str, Path]) -> Iterator[str]:
    """Yields the faults of the imports of these modules."""
    used_exceptions = set()
    siblings: dict[str, dict[str, int]] = {}  # {module: {imported module of the same subpackage: line}}
    for module, path in files.items():
        unit = module.split(".")[0]  # a module or subpackage in ORDER
        if unit not in ORDER:
            yield f"{path}: {unit} is in no room of {Path(__file__).name}"
            continue
        for line, name in find_imports(path, module, set(files)):
            target = name.split(".")[0]
            if (module, name) in UPWARD:
                used_exceptions.add((module, name))
            elif target == unit:
                siblings.setdefault(module, {}).setdefault(name, line)
            elif target not in ORDER:
                yield f"{path}:{line}: no module {name}"
            elif ORDER.index(target) > ORDER.index(unit):
                yield f"{path}:{line}: {module} imports {name}, which is above it"
    for circle in find_circles(siblings):
        yield f"{files[circle[0]]}:{siblings[circle[0]][circle[1]]}: a circle of imports: {' -> '.join(circle)}"
    for module, name in UPWARD.keys() - used_exceptions:
        if module in files:
            yield f"{files[module]}: does not import {name}; take that out of UPWARD"


def find_circles(imported: dict[str, dict[str, int]]) -> Iterator[list[str]]:
    """Yields the modules of a circle for each import that closes a circle."""
    visited: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> Iterator[list[str]]:
        path.append(module)
        for name in imported.get(module, {}):
            if name in path:
                yield [*path[path.index(name) :], name]
            elif name not in visited:
                yield from visit(name)
        visited.add(path.pop())

    for module in imported:
        if module not in visited:
            yield from visit(module)


def main() -> int:
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        files[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    faults = list(find_mistakes(files))
    print(*faults, f"import order: {len(files)} files, {len(faults)} mistakes", sep="\n")
    return 1 if faults or not files else 0


if __name__ == "__main__":
    sys.exit(main())
