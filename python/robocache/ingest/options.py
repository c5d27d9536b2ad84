"""Options of formats. The fields of a dataclass define what ``ingest(**options)`` accepts, and the arguments of the command line."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError


def option(default: Any, help: str) -> Any:
    """Returns a field of an options dataclass. The field's type is bool, str, int, float, Literal[...], or a union of the last four.

    On the command line a bool is ``--name``, or ``--no-name`` if it is true by default; `help` describes that flag.
    """
    return dataclasses.field(default=default, metadata={"help": help})


def make_options(kind: type[Any], format: str, values: dict[str, Any]) -> Any:
    """Checks values by the types of the options dataclass `kind`, and returns an instance of it.

    Raises:
        ArgumentError: the format has no such option, or a value is not among the option's choices.
        ArgumentTypeError: a value has another type than its option.
    """
    hints = get_type_hints(kind)
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    for name, value in values.items():
        if name not in hints:
            raise ArgumentError(f"{name}: not an option of format {format!r}")
        types, choices, may_be_none = _split_hint(hints[name])
        if value is None and may_be_none:
            continue
        if choices and not (isinstance(value, str) and value in choices):
            raise ArgumentError(
                f"{name}: expected one of {', '.join(choices)}{' or None' * may_be_none}, got {value!r}"
            )
        # In Python True is an int, but an option that is a number does not take it.
        if not choices and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
            expected = " or ".join(type.__name__ for type in types)
            raise ArgumentTypeError(f"{name}: expected {expected}{' or None' * may_be_none}, got {value!r}")
    return kind(**values)


def add_arguments(parser: argparse.ArgumentParser, title: str, kind: type[Any]) -> None:
    """Adds a group of arguments, one for each option that `kind` has but its base class lacks. The parsed namespace has only the
    options that the user gave."""
    fields = [field for field in dataclasses.fields(kind) if field.name in inspect.get_annotations(kind)]
    if not fields:
        return
    group = parser.add_argument_group(title)
    for field in fields:
        flag, text = f"--{field.name.replace('_', '-')}", field.metadata["help"]
        types, choices, _ = _split_hint(get_type_hints(kind)[field.name])
        if types == (bool,):
            action = "store_false" if field.default else "store_true"
            flag = flag.replace("--", "--no-", 1) if field.default else flag
            group.add_argument(flag, dest=field.name, action=action, default=argparse.SUPPRESS, help=text)
        elif choices:
            group.add_argument(flag, choices=choices, default=argparse.SUPPRESS, help=text)
        else:
            group.add_argument(flag, type=_make_converter(types), default=argparse.SUPPRESS, help=text)


def _split_hint(hint: Any) -> tuple[tuple[type, ...], tuple[str, ...], bool]:
    """Returns the types of a hint, its choices, and whether it may be None."""
    parts = (hint,) if get_origin(hint) is Literal else get_args(hint) or (hint,)
    choices = tuple(choice for part in parts if get_origin(part) is Literal for choice in get_args(part))
    types = tuple(part for part in parts if isinstance(part, type) and part is not type(None))
    if float in types and int not in types:
        types = (*types, int)  # an int may stand for a float, as in Python
    return types, choices, type(None) in parts


def _make_converter(types: tuple[type, ...]) -> Any:
    """Returns a function that converts the text of an argument to one of the types."""

    def convert(text: str) -> Any:
        if str in types:
            return int(text) if int in types and text.isdecimal() else text
        return types[0](text)

    convert.__name__ = types[0].__name__  # argparse writes this name in errors, as in "invalid int value"
    return convert
