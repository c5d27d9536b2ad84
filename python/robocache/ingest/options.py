"""Options of formats: from the fields of a dataclass come the checks of ``ingest(**options)`` and the command line."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError


def option(default: Any, help: str) -> Any:
    """Returns a field of an options dataclass. Its type is bool, or str, int, float, Literal[...] and unions of them.

    On the command line a bool is ``--name``, or ``--no-name`` if it is true by default; `help` describes the flag.
    """
    return dataclasses.field(default=default, metadata={"help": help})


def make_options(kind: type[Any], format: str, values: dict[str, Any]) -> Any:
    """Returns an instance of the options dataclass `kind`, checked.

    Raises:
        ArgumentError: the format has no such option, or the value is not one of its choices.
        ArgumentTypeError: the value has another type.
    """
    hints = get_type_hints(kind)
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    for name, value in values.items():
        if name not in hints:
            raise ArgumentError(f"{name}: not an option of format {format!r}")
        kinds, choices, optional = _parts(hints[name])
        if value is None and optional:
            continue
        if choices and not (isinstance(value, str) and value in choices):
            raise ArgumentError(f"{name}: expected one of {', '.join(choices)}{' or None' * optional}, got {value!r}")
        # True is an int in Python, but no number here.
        if not choices and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ArgumentTypeError(f"{name}: expected {expected}{' or None' * optional}, got {value!r}")
    return kind(**values)


def add_arguments(parser: argparse.ArgumentParser, title: str, kind: type[Any]) -> None:
    """Adds a group of arguments, one for each option that `kind` has and its base does not. The parsed namespace has only the
    given ones."""
    fields = [field for field in dataclasses.fields(kind) if field.name in inspect.get_annotations(kind)]
    if not fields:
        return
    group = parser.add_argument_group(title)
    for field in fields:
        flag, text = f"--{field.name.replace('_', '-')}", field.metadata["help"]
        kinds, choices, _ = _parts(get_type_hints(kind)[field.name])
        if kinds == (bool,):
            action = "store_false" if field.default else "store_true"
            flag = flag.replace("--", "--no-", 1) if field.default else flag
            group.add_argument(flag, dest=field.name, action=action, default=argparse.SUPPRESS, help=text)
        elif choices:
            group.add_argument(flag, choices=choices, default=argparse.SUPPRESS, help=text)
        else:
            group.add_argument(flag, type=_converter(kinds), default=argparse.SUPPRESS, help=text)


def _parts(hint: Any) -> tuple[tuple[type, ...], tuple[str, ...], bool]:
    """Returns the types of a hint, its choices, and whether it may be None."""
    parts = (hint,) if get_origin(hint) is Literal else get_args(hint) or (hint,)
    choices = tuple(choice for part in parts if get_origin(part) is Literal for choice in get_args(part))
    kinds = tuple(part for part in parts if isinstance(part, type) and part is not type(None))
    if float in kinds and int not in kinds:
        kinds = (*kinds, int)  # an int may stand for a float, as in Python
    return kinds, choices, type(None) in parts


def _converter(kinds: tuple[type, ...]) -> Any:
    def convert(text: str) -> Any:
        if str in kinds:
            return int(text) if int in kinds and text.isdecimal() else text
        return kinds[0](text)

    convert.__name__ = kinds[0].__name__  # argparse writes it in "invalid int value"
    return convert
