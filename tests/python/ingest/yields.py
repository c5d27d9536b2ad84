"""What a reader yields, read directly: no cache is written."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from robocache.ingest import FORMATS
from robocache.ingest.options import make_options
from robocache.ingest.recording import Frames, Notes, Ragged, Rows, Texts, naming

import robocache


class Yields:
    """A source as its reader gives it.

    episodes: of each recording its streams: a list of (time_ns, values) parts that were put together again, where values are
        rows, a list of arrays (ragged), a list of str, or a list of encoded frames.
    facts: of each stream what the cache is told of it, which must be the same in all parts.
    """

    def __init__(self, format, source, on_error="stop", **options):
        self.provenance = {}
        self.notes = Notes(format, self.provenance, on_error)
        self.episodes, self.metadata, self.facts, self.clocks = {}, {}, {}, {}
        settings = make_options(FORMATS[format].options, format, options)
        reader = FORMATS[format].load()
        for recording in reader.read(Path(source), settings, self.notes):
            parts = {}
            with self.notes.reading(recording.what, recording.where):
                for name, samples in recording.streams:
                    assert self.facts.setdefault(name, samples.facts) == samples.facts
                    self.clocks[name] = samples.clock
                    parts.setdefault(name, []).extend(_parts(samples))
                self.episodes[recording.what] = {name: _joined(found) for name, found in parts.items()}
                self.metadata[recording.what] = recording.metadata
        getattr(reader, "finish", lambda *_: None)(Path(source), settings, self.notes)

    @property
    def told(self):
        (facts,) = self.provenance.values()
        return facts

    @property
    def left_out(self):
        return {omission.what: omission.reason for omission in self.notes.left_out}

    @property
    def skipped(self):
        return {omission.what: omission.reason for omission in self.notes.skipped}

    def only(self):
        """The streams of the only recording."""
        (streams,) = self.episodes.values()
        return streams


def outcome(format, source, **options):
    """Reads all of it, as the driver would: None, or the error's text where it names the source; whatever else fails the test."""
    try:
        with naming(source):
            Yields(format, source, **options)
    except robocache.FileError as error:
        assert str(source) in str(error) or Path(source).name in str(error), error
        return str(error)
    return None


def _parts(samples):
    match samples:
        case Rows():
            assert samples.time_ns.dtype == np.int64 and len(samples.time_ns) == len(samples.values)
            yield samples.time_ns, samples.values
        case Ragged():
            assert len(samples.offsets) == len(samples.time_ns) + 1 and samples.offsets[0] == 0
            assert samples.offsets[-1] == len(samples.values)
            yield samples.time_ns, [samples.values[start:end] for start, end in pairwise(samples.offsets)]
        case Texts():
            assert len(samples.time_ns) == len(samples.texts)
            yield samples.time_ns, list(samples.texts)
        case Frames():
            for time_ns, encoded in samples.chunks:
                ends = encoded.offsets.tolist()
                yield time_ns, [bytes(encoded.data[start:end]) for start, end in pairwise(ends)]


def _joined(parts):
    time_ns = np.concatenate([time_ns for time_ns, _ in parts])
    if isinstance(parts[0][1], list):
        return time_ns, [item for _, items in parts for item in items]
    assert len({values.dtype for _, values in parts}) == 1
    return time_ns, np.concatenate([values for _, values in parts])
