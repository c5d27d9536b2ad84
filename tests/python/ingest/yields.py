"""Collects the rows of a reader directly: no cache is written."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from robocache.ingest import FORMATS, registry
from robocache.ingest.options import make_options
from robocache.ingest.recording import Frames, Notes, Ragged, Rows, Texts, naming

import robocache
from robocache import frames


class NoteReasons:
    """The reasons in `notes`: {name: reason} of left out and skipped things."""

    @property
    def left_out(self):
        return {omission.what: omission.reason for omission in self.notes.left_out}

    @property
    def skipped(self):
        return {omission.what: omission.reason for omission in self.notes.skipped}


class Yields(NoteReasons):
    """The rows that a reader yields for a source. A `format` of None is found as by ingest.

    recordings: the recordings read.
    episodes: {recording: {stream: (time_ns, values)}}, of all parts. Values are rows, a list of arrays (ragged), a list
        of str, or a list of a camera's :class:`Encoded` chunks.
    facts: {stream: its description in the cache}, which must be the same in all parts.
    clocks, first: {stream: its clock}, {stream: its first samples}.
    """

    def __init__(self, format, source, on_error="stop", **options):
        source = Path(source)
        entry = registry.find_format(source) if format is None else FORMATS[format]
        settings = make_options(entry.options, entry.name, options)
        self.provenance = {}
        self.notes = Notes(entry.name, self.provenance, on_error)
        self.recordings, self.episodes = [], {}
        self.facts, self.clocks, self.first = {}, {}, {}
        reader = entry.load()
        with naming(source):
            for recording in reader.read(source, settings, self.notes):
                assert recording.what not in self.episodes
                parts = {}
                with self.notes.reading(recording.what, recording.where):
                    for name, samples in recording.streams:
                        assert self.facts.setdefault(name, samples.facts) == samples.facts
                        self.clocks[name] = samples.clock
                        self.first.setdefault(name, samples)
                        parts.setdefault(name, []).extend(_parts(samples))
                    self.episodes[recording.what] = {
                        name: _concatenate(stream_parts) for name, stream_parts in parts.items()
                    }
                    self.recordings.append(recording)
            getattr(reader, "finish", lambda *_: None)(source, settings, self.notes)

    def __getitem__(self, number):
        return list(self.episodes.values())[number]

    @property
    def metadata(self):
        return {recording.what: recording.metadata for recording in self.recordings}

    @property
    def source_facts(self):
        (facts,) = self.provenance.values()
        return facts

    def only(self):
        """Returns the streams of the only recording."""
        (streams,) = self.episodes.values()
        return streams


def outcome(format, source, **options):
    """Reads the whole source like the driver. Returns None, or the text of an error that names the source; other errors fail."""
    try:
        Yields(format, source, **options)
    except robocache.FileError as error:
        assert str(source) in str(error) or Path(source).name in str(error), error
        return str(error)
    return None


def pixels(chunks):
    """Returns the pixels of a camera's encoded chunks, ``[n, H, W, C]``."""
    decoded = []
    for chunk in chunks:
        count = chunk.data.nbytes // (int(np.prod(chunk.shape)) * chunk.dtype.itemsize)
        rows = range(count if chunk.codec == "raw" else len(chunk.offsets) - 1)
        decoded.append(frames.decode(chunk.codec, chunk.data, chunk.offsets, chunk.shape, chunk.dtype, rows))
    return np.concatenate(decoded)


def blobs(chunks):
    """Returns the stored JPEG or PNG files."""
    return [bytes(chunk.data[start:end]) for chunk in chunks for start, end in pairwise(chunk.offsets.tolist())]


def _parts(samples):
    if isinstance(samples, Frames):
        return list(samples.chunks)
    assert samples.time_ns.dtype == np.int64
    match samples:
        case Rows():
            assert samples.values.dtype.isnative and len(samples.time_ns) == len(samples.values)
            return [(samples.time_ns, np.array(samples.values))]
        case Ragged():
            assert samples.values.dtype.isnative and len(samples.offsets) == len(samples.time_ns) + 1
            assert samples.offsets[0] == 0 and samples.offsets[-1] == len(samples.values)
            return [(samples.time_ns, [samples.values[start:end] for start, end in pairwise(samples.offsets)])]
        case Texts():
            assert len(samples.time_ns) == len(samples.texts)
            return [(samples.time_ns, list(samples.texts))]


def _concatenate(parts):
    time_ns = np.concatenate([time_ns for time_ns, _ in parts])
    values = [values for _, values in parts]
    if hasattr(values[0], "codec"):
        return time_ns, values
    if isinstance(values[0], list):
        return time_ns, [item for items in values for item in items]
    assert len({part.dtype for part in values}) == 1
    return time_ns, np.concatenate(values)
