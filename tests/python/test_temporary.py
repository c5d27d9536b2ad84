"""Temporary folders of several processes at once."""

from robocache import _temporary


def test_a_folder_that_another_process_removes_before_its_lock_is_made_again(tmp_path, monkeypatch):
    lock = _temporary._lock

    def lock_late(file):
        monkeypatch.setattr(_temporary, "_lock", lock)
        with _temporary.temporary_folder("x-", tmp_path):  # removes the folder that is not locked yet
            assert len(list(tmp_path.iterdir())) == 1
        lock(file)

    monkeypatch.setattr(_temporary, "_lock", lock_late)
    with _temporary.temporary_folder("x-", tmp_path) as folder:
        (folder / "file").write_text("text")
        with _temporary.temporary_folder("x-", tmp_path):  # a locked folder stays
            assert (folder / "file").read_text() == "text"
    assert not list(tmp_path.iterdir())
