"""Files of a source that a thread reads ahead."""

import sys
import threading

import pytest
from robocache.ingest.files import Ahead
from robocache.ingest.recording import SourceError


def test_files_are_read_ahead_in_their_order(tmp_path):
    files = [tmp_path / f"{number}" for number in range(5)]
    for number, file in enumerate(files):
        file.write_text(str(number))
    files_read = []

    def read_file(file):
        files_read.append(file)
        if file == files[2]:
            raise SourceError(f"{file}: damaged")
        return file.read_text()

    with Ahead(read_file, files) as ahead:
        assert ahead.read(files[0]) == "0"
        assert ahead.read(files[1]) == "1"
        with pytest.raises(SourceError, match=r"2: damaged"):
            ahead.read(files[2])
        assert ahead.read(files[4]) == "4"  # the result of files[3] is dropped
    assert set(files_read) - {files[3]} == {
        *files[:3],
        files[4],
    }  # files[3] may have been passed over before it was read
    files_read.clear()
    with Ahead(read_file, files) as ahead:
        assert ahead.read(files[0]) == "0"
    assert sorted(files_read) in (files[:1], files[:2])  # the thread may have begun with the next file


def test_a_large_file_is_not_read_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[Ahead.__module__], "_AHEAD_BYTES", 3)
    files = [tmp_path / "small", tmp_path / "large", tmp_path / "last"]
    for file in files:
        file.write_text(file.name[:3] if file.name != "large" else "large")
    threads = {}

    def read_file(file):
        threads[file.name] = threading.current_thread().name
        return file.read_text()

    with Ahead(read_file, files) as ahead:
        assert [ahead.read(file) for file in files] == ["sma", "large", "las"]
    this_thread = threading.current_thread().name
    assert threads["small"] == threads["large"] == this_thread
    assert threads["last"] != this_thread
