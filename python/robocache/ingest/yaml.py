"""Reads YAML files beside recordings: calibrations, and the metadata of bags."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.events import AliasEvent

from .files import check_file
from .recording import SourceError, naming

# A parser in Python reads 70 KB a second; the metadata.yaml of a bag of a thousand files has 300 KB.
_MOST_BYTES = 1 << 21
_MOST_LEVELS = 32


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML 1.2 file of keys and values, which are dicts, lists, texts, numbers and dates.

    Raises:
        SourceError: the file is no such YAML, is larger or more deeply nested than any useful file, or has aliases, which can turn a
            few bytes into any amount.
    """
    check_file(path)
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise SourceError(f"{path}: expected YAML of at most {_MOST_BYTES} bytes, got {size}")
    with naming(path):
        return parse_yaml(path.read_text(encoding="utf-8-sig"), path)


def parse_yaml(text: str, where: object) -> dict[str, Any]:
    """Reads a text in the same way; errors begin with `where`."""
    with naming(where):
        if len(text) > _MOST_BYTES:
            raise SourceError(f"{where}: expected YAML of at most {_MOST_BYTES} characters, got {len(text)}")
        parser = YAML(typ="safe", pure=True)
        parser.Composer = _Composer
        values = parser.load(re.sub(r"\A%YAML:.*", "", text))  # OpenCV's header, which is no YAML
        if not isinstance(values, dict):
            raise SourceError(f"{where}: expected keys and values, got {type(values).__name__}")
        return values


class _Composer(Composer):
    """Refuses aliases and deep nesting before it makes any value."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.parser.check_event(AliasEvent):
            raise ValueError("expected YAML without aliases")
        if self._depth == _MOST_LEVELS:
            raise ValueError(f"expected at most {_MOST_LEVELS} lists within one another")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node
