"""A notebook shows objects as small tables. The bar of an ingest is shown only on a terminal or below a cell."""

import io
import sys
import types

import numpy as np
import pytest
from html_page import Page
from rich.console import Console
from robocache.errors import ArgumentTypeError

import robocache
from robocache import view

HOSTILE_NAME = "<script>alert(1)</script>\x1b[2J&amp;'\""


@pytest.fixture
def logs(tmp_path):
    for number in range(30):
        folder = tmp_path / f"logs/{number} {HOSTILE_NAME.replace('/', '|')}"
        folder.mkdir(parents=True)
        (folder / "imu.csv").write_text("t [s],x\n1,2\n2,nan\n3,1\n" if number % 3 else "")
    return tmp_path / "logs"


def test_objects_are_small_and_escaped(logs, tmp_path):
    report = robocache.ingest(logs, tmp_path / "<b>cache", on_error="skip")
    with robocache.Writer(tmp_path / "many") as writer:
        writer.stream(HOSTILE_NAME, names=[HOSTILE_NAME])
        with writer.episode() as episode:
            episode.append(HOSTILE_NAME, np.arange(9) * 10**7, np.full((9, 1), np.nan))
            episode.append("cam", np.arange(2) * 10**8, np.zeros((2, 16, 16, 3), np.uint8), codec="jpeg")
            episode.append("said", [0], [HOSTILE_NAME])
            for number in range(400):
                episode.append(f"{HOSTILE_NAME} {number}", np.arange(9) * 10**7, np.full((9, 50), np.nan))
    dataset = robocache.open(tmp_path / "many")
    keys = {f"{HOSTILE_NAME} {number}": [0.0] for number in range(100)}
    loader = robocache.Loader(dataset, batch_size=1, delta_timestamps=keys, device="cpu", framework="numpy")
    empty = tmp_path / "empty"
    with robocache.Writer(empty):
        pass
    for value, expected_words in (
        (report, ["incomplete: 20 episodes", "skipped", "10"]),
        (dataset, ["1 episode, 403 streams", "383 more", "jpeg 16x16 rgb"]),
        (robocache.doctor(tmp_path / "many"), ["look at the warnings", "no-values", "blank-frames"]),
        (robocache.open(empty), ["0 episodes, 0 streams"]),
        (robocache.doctor(empty), ["no findings"]),
        (loader.explain(), ["key", "tier", "80 more"]),
    ):
        html = value._repr_html_()
        page = Page(html)
        assert len(html) < 30_000 and page.open == [] and "\x1b" not in html
        assert set(page.tags) <= {"div", "b", "br", "table", "thead", "tbody", "tr", "th", "td"}
        assert all(word in page.text for word in expected_words), page.text


def test_a_bar_only_on_a_terminal(logs, tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(view, "progress_bar", lambda: calls.append(1) or pytest.fail("a bar was shown"))
    for number, progress in enumerate((False, None, lambda *_: None)):
        robocache.ingest(logs, tmp_path / str(number), on_error="skip", progress=progress)
    assert not calls
    monkeypatch.undo()
    robocache.ingest(logs, tmp_path / "silent", on_error="skip")
    assert capsys.readouterr() == ("", "")
    terminal = io.StringIO()
    monkeypatch.setattr(
        view, "Console", lambda **_: Console(file=terminal, force_terminal=True, force_jupyter=False, width=80)
    )
    robocache.ingest(logs, tmp_path / "bar", on_error="skip")
    assert "/30" in terminal.getvalue() and "\x1b[2J" not in terminal.getvalue()
    assert terminal.getvalue().rfind("\x1b[?25h") > terminal.getvalue().rfind("\x1b[?25l") >= 0


@pytest.mark.parametrize("progress", [5, "yes", 0, [print]])
def test_progress_of_another_type_is_refused(progress, logs, tmp_path):
    with pytest.raises(ArgumentTypeError, match="progress: expected a function, True, False or None"):
        robocache.ingest(logs, tmp_path / "cache", on_error="skip", progress=progress)
    assert not (tmp_path / "cache").exists()


def test_a_bar_below_a_cell(logs, tmp_path, monkeypatch, capsys):
    updates = []

    class Handle:
        def update(self, html):
            updates.append(html)

    module = types.ModuleType("IPython.display")
    module.HTML, module.display = str, lambda html, display_id: Handle()
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(view, "Console", lambda **_: Console(file=io.StringIO(), force_jupyter=True))
    robocache.ingest(logs, tmp_path / "cache", on_error="skip")
    assert updates and all(set(Page(text).tags) == {"progress"} and "\x1b" not in text for text in updates)
    assert "/30" in updates[-1] and capsys.readouterr() == ("", "")
