"""How an ingest, or a reader alone, ends: refused with words, or with skipped names."""

import os

import pytest
from yields import Yields

import robocache


def refused(source, cache, *words, **options):
    """Asserts that ingest raises a FileError with these words and leaves no cache. Returns the error."""
    with pytest.raises(robocache.FileError) as caught:
        robocache.ingest(source, cache, **options)
    assert not list(cache.parent.glob(f"{cache.name}*"))
    assert_words(caught, words)
    return caught.value


def ingested(source, cache, **options):
    """Ingests a source. Returns the cache, opened, and the report."""
    report = robocache.ingest(source, cache, **options)
    return robocache.open(cache), report


def unread(format, source, *words, **options):
    """Asserts that the reader raises a FileError with these words."""
    with pytest.raises(robocache.FileError) as caught:
        Yields(format, source, **options)
    assert_words(caught, words)


def reasons(notes):
    """Returns the reasons of left out, skipped or assumed things by their names."""
    return {note.what: note.reason for note in notes}


def assert_words(caught, words):
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


def skipped(source, cache, *names, **options):
    """Asserts that ingest skips exactly these names, and that the cache holds them. Returns the report."""
    report = robocache.ingest(source, cache, on_error="skip", **options)
    assert [omission.what for omission in report.skipped] == list(names)
    above = f"{os.path.dirname(source)}/"  # the cache does not name folders above the source
    reported = [{**skip, "reason": skip["reason"].replace(above, "")} for skip in report.to_dict()["skipped"]]
    assert robocache.open(cache).provenance["skipped"] == reported
    return report
