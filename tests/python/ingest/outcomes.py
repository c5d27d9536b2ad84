"""Asserts how an ingest, or a reader alone, ends: with an error, or with skipped parts."""

import os

import pytest
from yields import Yields

import robocache


def assert_refused(source, cache, *words, **options):
    """Asserts that ingest raises a FileError with these words and leaves no cache. Returns the error."""
    with pytest.raises(robocache.FileError) as caught:
        robocache.ingest(source, cache, **options)
    assert not list(cache.parent.glob(f"{cache.name}*"))
    assert_words(caught, words)
    return caught.value


def ingest_and_open(source, cache, **options):
    """Ingests a source. Returns the cache, opened, and the report."""
    report = robocache.ingest(source, cache, **options)
    return robocache.open(cache), report


def assert_unread(format, source, *words, **options):
    """Asserts that the reader raises a FileError with these words."""
    with pytest.raises(robocache.FileError) as caught:
        Yields(format, source, **options)
    assert_words(caught, words)


def reasons(notes):
    """Returns {what: reason} of notes: what was left out, skipped or assumed."""
    return {note.what: note.reason for note in notes}


def assert_words(caught, words):
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


def assert_skipped(source, cache, *names, **options):
    """Asserts that ingest skips exactly these names, and that the cache lists them in its provenance. Returns the report."""
    report = robocache.ingest(source, cache, on_error="skip", **options)
    assert [omission.what for omission in report.skipped] == list(names)
    parent_folder = f"{os.path.dirname(source)}/"  # the cache does not name folders above the source
    reported = [{**skip, "reason": skip["reason"].replace(parent_folder, "")} for skip in report.to_dict()["skipped"]]
    assert robocache.open(cache).provenance["skipped"] == reported
    return report
