"""Each test and file named in docs/support.md and docs/stability.md exists, so that these pages claim only tested facts."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import robocache
from robocache import installation

ROOT = Path(__file__).parents[2]
SUPPORT, STABILITY = ROOT / "docs/support.md", ROOT / "docs/stability.md"
# Modules of Python and functions of libc that open connections.
MODULES = {"ftplib", "http", "httpx", "requests", "smtplib", "ssl", "telnetlib", "urllib.request", "urllib3", "xmlrpc"}
SYMBOLS = {"socket", "connect", "getaddrinfo", "gethostbyname"}


def missing(text):
    """Returns the names in backticks of tests and files that do not exist."""
    names = []
    for name in re.findall(r"`((?:tests|scripts|bench|\.ci|docs|python|src)/[^`\s]+)`", text):
        path, _, test = name.partition("::")
        if not (ROOT / path).exists():
            names.append(name)
        elif test:
            tree = ast.parse((ROOT / path).read_text())
            if test not in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}:
                names.append(name)
    return names


def untested(text):
    """Returns the rows of the table that neither name a test nor say that it was never run."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 20 and all(len(row) == 3 for row in rows)
    return [row[1].strip() for row in rows if "*not run here*" not in row[2] and not re.search(r"`[\w.]+/", row[2])]


@pytest.mark.parametrize("page", [SUPPORT, STABILITY], ids=lambda page: page.name)
def test_each_named_test_exists(page):
    text = page.read_text()
    assert len(re.findall(r"`tests/", text)) >= 5
    assert missing(text) == []


def test_each_row_names_its_test():
    assert untested(SUPPORT.read_text()) == []


def test_a_missing_test_and_a_row_without_one_are_found():
    text = SUPPORT.read_text()
    assert missing(text.replace("::test_no_driver`", "::test_no_such_driver`")) == [
        "tests/python/test_installation.py::test_no_such_driver"
    ]
    assert missing(text.replace("`tests/cpp/core/cpu_isa_test.cpp`", "`tests/cpp/core/isa_test.cpp`")) == [
        "tests/cpp/core/isa_test.cpp"
    ]
    assert untested(text.replace("| | aarch64 machines | *not run here* |", "| | aarch64 machines | yes |")) == [
        "aarch64 machines"
    ]


def test_versions_equal_those_in_the_code():
    text = SUPPORT.read_text()
    project = (ROOT / "pyproject.toml").read_text()
    rows = dict(re.findall(r"^\| (apache-tvm-ffi|numpy) \| ([\d.]+) \|", text, re.MULTILINE))
    assert rows == dict(re.findall(r'^  "(apache-tvm-ffi|numpy)>=([\d.]+)', project, re.MULTILINE))
    pyarrow, rich = re.search(r"\| pyarrow, rich \| (\S+), (\S+)\.0 \|", text).groups()
    assert f'"pyarrow>={pyarrow}"' in project and f'"rich>={rich}"' in project
    assert re.search(r"\| \| 3\.10, 3\.13 \|", text) and 'requires-python = ">=3.10"' in project
    driver_version = re.search(r'version (\d+) or later \("', (ROOT / "src/robocache/core/backend.cpp").read_text())[1]
    assert f"version {driver_version} or later" in text and f"| older than {driver_version} |" in text
    assert f"| older than {installation._OLDEST / 10} |" in text


def connections(text):
    """Yields names in a module's source that can open a connection. Sockets between its own processes do not count."""
    for node in ast.walk(ast.parse(text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        yield from (name for name in names if name in MODULES or name.split(".")[0] in MODULES)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("socket."):
            call = ast.unparse(node)
            if not call.startswith(("socket.socketpair()", "socket.socket(fileno=")):
                yield call


def test_no_module_can_open_a_connection():
    files = list(Path(robocache.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    assert {str(path): names for path in files if (names := list(connections(path.read_text())))} == {}
    library = robocache.check_installation()["library"]
    symbols = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    undefined = {line.split()[-1].partition("@")[0] for line in symbols.stdout.splitlines()}
    assert "open" in undefined and undefined & SYMBOLS == set()


@pytest.mark.parametrize(
    "source", ["import urllib.request", "from http import client", "s = socket.create_connection((h, 80))"]
)
def test_a_connection_is_found(source):
    assert len(list(connections(source))) == 1
