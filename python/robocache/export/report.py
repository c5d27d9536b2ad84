"""The result of an export."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..ingest.recording import Omission


@dataclass
class ExportReport:
    """The result of an export.

    `rows` counts the written rows of each stream. `left_out` lists the data that the format cannot hold, or changes, with the
    reasons.
    """

    cache: str
    destination: str
    format: str
    episodes: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    left_out: list[Omission] = field(default_factory=list)

    def leave_out(self, what: str, reason: str) -> None:
        """Adds an omission unless it is listed already."""
        if Omission(what, reason) not in self.left_out:
            self.left_out.append(Omission(what, reason))

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON-able values."""
        return asdict(self)
