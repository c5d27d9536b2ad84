"""docs/stability.md: the interface has every recorded name.

``python tests/python/test_stability.py tests/interface.json`` records new names, at the latest for a release.
"""

import argparse
import contextlib
import copy
import inspect
import io
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
from robocache.ingest.registry import GROUP

import robocache
from robocache import _arguments, cli, errors

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/interface.json"


def parameters_of(function):
    """Returns the names of a function's parameters, keyword-only ones with a star; None if Python does not know them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [("*" if p.kind is p.KEYWORD_ONLY else "") + p.name for p in parameters if p.name != "self"]


def members(value):
    """Returns a class's public methods, with their parameters, and its properties and fields."""
    names = {name for base in value.__mro__ if base.__module__.startswith("robocache") for name in vars(base)}
    names |= set(getattr(value, "__dataclass_fields__", ())) | set(value._fields if issubclass(value, tuple) else ())
    return {
        name: parameters_of(getattr(value, name)) if inspect.isroutine(getattr(value, name, None)) else None
        for name in sorted(names)
        if not name.startswith("_")
    }


def python_names():
    names = {}
    for module in (robocache, robocache.actions, robocache.live):
        for name in module.__all__:
            value = getattr(module, name)
            path = f"{module.__name__}.{name}"
            if inspect.isclass(value):
                names[path] = {"parameters": parameters_of(value), "members": members(value)}
            else:
                names[path] = parameters_of(value) if callable(value) else None
    return names


def error_classes():
    classes = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    return {name: [base.__name__ for base in value.__bases__] for name, value in classes.items()}


def command_line():
    subcommands = next(
        action for action in _arguments.make_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    return {
        command: sorted(name for action in parser._actions for name in (action.option_strings or [action.dest]))
        for command, parser in subcommands.choices.items()
    }


def keys(value):
    """Returns the keys of JSON: "a.b" for a key of a nested dict, "a[]" for keys of a list's first item."""
    if isinstance(value, list):
        return ["[]" + key for key in keys(value[0])] if value else []
    if not isinstance(value, dict):
        return []
    nested = ((name, keys(item)) for name, item in value.items() if name not in ("streams", "environment"))
    return sorted({*value, *(f"{name}.{key}" for name, nested_keys in nested for key in nested_keys)})


def json_keys(folder):
    """Returns the keys of each command's JSON, for a small cache."""
    with robocache.Writer(folder / "cache") as writer, writer.episode(task="pick") as episode:
        episode.append("joint", np.arange(40) * 10**7, np.zeros((40, 2), np.float32))
    (folder / "log.csv").write_text("time_s,a\n" + "".join(f"{i / 10},{i}\n" for i in range(20)))
    commands = {
        "info": ["info"],
        "self-test": ["self-test"],
        "inspect": ["inspect", folder / "cache"],
        "doctor": ["doctor", folder / "cache", "--no-save"],
        "bench": ["bench", folder / "cache", "--device", "cpu", "--seconds", "0.01", "--batch-size", "4"],
        "ingest": ["ingest", folder / "log.csv", folder / "new"],
        "error": ["inspect", folder / "nowhere"],
    }
    keys_of = {}
    for name, command in commands.items():
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            cli.main([*map(str, command), "--json"])
        keys_of[name] = keys(json.loads(out.getvalue()))
    return keys_of


def interface():
    project = (ROOT / "pyproject.toml").read_text()
    scripts = re.findall(r"^(\S+) = \"(\S+)\"$", project.partition("[project.scripts]")[2].partition("\n[")[0], re.M)
    exit_codes = {name: getattr(cli, name) for name in ("_DONE", "_REFUSED", "_USAGE", "_SKIPPED", "_INTERRUPTED")}
    headers = re.findall(r'^#include "(.+)"', (ROOT / "src/robocache/robocache.hpp").read_text(), re.M)
    with tempfile.TemporaryDirectory() as folder:
        keys_of = json_keys(Path(folder))
    return {
        "python": python_names(),
        "errors": error_classes(),
        "command line": command_line(),
        "exit codes": exit_codes,
        "json": keys_of,
        "entry points": {**dict(scripts), "formats": GROUP},
        "headers": ["robocache/robocache.hpp", *headers],
    }


def changes(recorded, current, name=""):
    """Yields a line for each recorded name that is missing or has changed."""
    if isinstance(recorded, dict) and isinstance(current, dict):
        for key in recorded:
            path = f"{name}: {key}" if name else key
            yield from changes(recorded[key], current[key], path) if key in current else [f"{path} is gone"]
    elif isinstance(recorded, list) and isinstance(current, list):
        yield from (f"{name}: {item} is gone" for item in recorded if item not in current)
        kept = [item for item in current if item in recorded and not item.startswith("*")]
        if "parameters" in name and kept != [item for item in recorded if item in kept]:
            yield f"{name}: another order"
    elif recorded != current:
        yield f"{name}: {recorded} became {current}"


def test_every_recorded_name_exists():
    assert list(changes(json.loads(RECORDED.read_text()), json.loads(json.dumps(interface())))) == []


def test_missing_names_are_named():
    recorded = json.loads(RECORDED.read_text())
    current = copy.deepcopy(recorded)
    assert list(changes(recorded, current)) == []
    del current["python"]["robocache.fuse_multimodal"]
    current["python"]["robocache.Loader"]["parameters"].remove("*seed")
    current["python"]["robocache.Window"]["parameters"].reverse()
    current["python"]["robocache.Loader"]["members"].pop("state_dict")
    current["python"]["robocache.new"] = None
    current["errors"]["FileError"].remove("OSError")
    current["command line"]["inspect"].remove("--plot")
    current["exit codes"]["_SKIPPED"] = 4
    current["json"]["error"].remove("error.message")
    current["headers"].pop(1)
    assert set(changes(recorded, current)) == {
        "command line: inspect: --plot is gone",
        "errors: FileError: OSError is gone",
        "exit codes: _SKIPPED: 3 became 4",
        f"headers: {recorded['headers'][1]} is gone",
        "json: error: error.message is gone",
        "python: robocache.Loader: members: state_dict is gone",
        "python: robocache.Loader: parameters: *seed is gone",
        "python: robocache.Window: parameters: another order",
        "python: robocache.fuse_multimodal is gone",
    }


if __name__ == "__main__":
    text = json.dumps(interface(), indent=1, sort_keys=True)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda match: " ".join(match[0].split()), text)  # puts each list on one line
    Path(sys.argv[1]).write_text(text + "\n")
