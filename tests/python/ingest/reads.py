"""Recordings as a reader yields them, without a cache."""

from pathlib import Path

import numpy as np
from robocache.ingest import FORMATS
from robocache.ingest.options import make_options
from robocache.ingest.recording import Frames, Notes, Ragged, Rows, Texts, naming

from robocache import frames


class Reading:
    """All that a reader yields.

    episodes: {what: {stream: parts put together}}: of rows ``(time_ns, values)``, of ragged ones ``(time_ns, values, offsets)``,
        of texts ``(time_ns, list of str)``, of a camera ``(time_ns, list of Encoded)``.
    metadata, wheres: by `what`.
    """

    def __init__(self, format, source, on_error="stop", **options):
        self.provenance = {}
        self.notes = Notes(format, self.provenance, on_error)
        self.episodes, self.metadata, self.facts, self.clocks = {}, {}, {}, set()
        settings = make_options(FORMATS[format].options, format, options)
        with naming(source):
            for recording in FORMATS[format].load().read(Path(source), settings, self.notes):
                with self.notes.reading(recording.what, recording.where):
                    found = {}
                    for name, samples in recording.streams:
                        assert self.facts.setdefault(name, samples.facts) == samples.facts
                        self.clocks.add(samples.clock)
                        found.setdefault(name, []).append(_part(samples))
                    self.episodes[recording.what] = {name: _join(parts) for name, parts in found.items()}
                    self.metadata[recording.what] = recording.metadata

    @property
    def left_out(self):
        return {omission.what: omission.reason for omission in self.notes.left_out}

    @property
    def skipped(self):
        return {omission.what: omission.reason for omission in self.notes.skipped}

    def __getitem__(self, number):
        return list(self.episodes.values())[number]


def _part(samples):
    if isinstance(samples, Frames):
        chunks = list(samples.chunks)
        return np.concatenate([time_ns for time_ns, _ in chunks]), [encoded for _, encoded in chunks]
    assert samples.time_ns.dtype == np.int64
    if isinstance(samples, Rows):
        assert len(samples.time_ns) == len(samples.values)
        return samples.time_ns, np.array(samples.values)
    if isinstance(samples, Ragged):
        assert samples.offsets[-1] == len(samples.values) and len(samples.offsets) == len(samples.time_ns) + 1
        return samples.time_ns, np.array(samples.values), samples.offsets
    assert isinstance(samples, Texts) and len(samples.time_ns) == len(samples.texts)
    return samples.time_ns, list(samples.texts)


def _join(parts):
    joined = parts[0]
    for part in parts[1:]:
        time_ns = np.concatenate([joined[0], part[0]])
        if len(joined) == 3:
            offsets = np.concatenate([joined[2], part[2][1:] + joined[2][-1]])
            joined = (time_ns, np.concatenate([joined[1], part[1]]), offsets)
        else:
            values = joined[1] + part[1] if isinstance(joined[1], list) else np.concatenate([joined[1], part[1]])
            joined = (time_ns, values)
    return joined


def pixels(chunks):
    """The pixels of a camera's encoded chunks, ``[n, H, W, C]``."""
    decoded = []
    for chunk in chunks:
        count = chunk.data.nbytes // (int(np.prod(chunk.shape)) * chunk.dtype.itemsize)
        rows = range(count if chunk.codec == "raw" else len(chunk.offsets) - 1)
        decoded.append(frames.decode(chunk.codec, chunk.data, chunk.offsets, chunk.shape, chunk.dtype, rows))
    return np.concatenate(decoded)
