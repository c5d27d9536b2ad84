"""Formats text for messages: escapes unprintable characters, shortens long texts, and writes counts, ranges and JSON."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import numpy as np

# Errors and reports show at most this many characters of a text, since a name in a file may have millions.
_MOST_SHOWN = 1 << 14


def shortened(text: str) -> str:
    """Returns the text; if it is very long, only its beginning and its end."""
    left_out = len(text) - _MOST_SHOWN
    return text if left_out <= 0 else f"{text[: _MOST_SHOWN // 2]} [{left_out} characters] {text[-_MOST_SHOWN // 2 :]}"


def printable(text: str, keep: str = "") -> str:
    """Returns the text with unprintable characters escaped, except those in `keep`."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns with the line that called this package as the location. Unlike warnings.warn it escapes control characters."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(f"{__package__}."):
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(message, keep="\n"), category, stacklevel=level)


def count(number: int, what: str) -> str:
    """Returns "1 episode", "3 episodes"."""
    return f"{number} {what}{'s' * (number != 1)}"


def ranges(numbers: list[int], limit: int | None = None) -> str:
    """Returns [1, 2, 3, 7] as "1-3, 7". If there are more runs than the limit, only the first are listed."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    more = "" if limit is None or len(runs) <= limit else f" and {len(runs) - limit} more"
    return ", ".join("-".join(map(str, run)) for run in runs[:limit]) + more


def to_json_value(value: Any) -> Any:
    """Returns a value as JSON can hold it; None for NaN and infinity."""
    if isinstance(value, dict):
        return {key: to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
