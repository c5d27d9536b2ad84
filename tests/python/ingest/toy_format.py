"""A toy format, whose reader is a function of the test."""

from dataclasses import dataclass
from typing import Literal

from robocache.ingest import registry
from robocache.ingest.formats import Format
from robocache.ingest.options import option

import robocache


@dataclass(frozen=True)
class ToyOptions:
    """An option of every kind."""

    episodes: int = option(2, help="how many")
    rate_hz: float = option(10.0, help="of the clock")
    unit: Literal["m", "mm"] | None = option(None, help="of lengths")
    column: str | int = option(0, help="which")
    loud: bool = option(False, help="tell more")


class ToyReader:
    """Yields the recordings of `recordings(options, notes)`."""

    def __init__(self, recordings):
        self.read = lambda source, options, notes: recordings(options, notes)


def _find_toy(source, files):
    return source if source.suffix == ".toy" else None


def make_toy(folder, monkeypatch):
    """Writes a source. Returns a function that ingests it as the recordings that `recordings(options, notes)` yields."""
    (folder / "source.toy").write_text("toy")

    def run(recordings, **options):
        entry = Format("toy", "toy", "*.toy", _find_toy, ToyOptions, "", "")
        monkeypatch.setitem(registry.FORMATS, "toy", entry)
        monkeypatch.setattr(Format, "load", lambda entry: ToyReader(recordings))
        return robocache.ingest(folder / "source.toy", folder / "cache", **options)

    return run
