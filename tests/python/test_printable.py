"""Names with escape sequences are escaped in errors, warnings, reprs and pictures."""

import traceback
import warnings

import numpy as np
import pytest

import robocache

ODD = "a\x1b]0;title\x07\x9b2J\u202e\r\tb"
RAW = set(ODD) - set("ab]0;title2J")


@pytest.fixture
def cache(tmp_path):
    """A cache whose path, stream, feature and episode column have such a name, with an error in doctor.json."""
    path = tmp_path / ODD
    with robocache.Writer(path) as writer:
        writer.stream(ODD, names=[ODD, "x"])
        with writer.episode(**{ODD: ODD}) as episode:
            episode.append(ODD, np.arange(9) * 10**7, np.array([[np.nan, 1.0]] * 3 + [[0.0, 1.0]] * 6))
    return path


def test_errors_and_their_tracebacks(tmp_path, cache):
    dataset = robocache.open(cache)
    for refused in (
        lambda: robocache.open(tmp_path / f"none {ODD}"),
        lambda: robocache.ingest(tmp_path / f"none {ODD}", tmp_path / "c"),
        lambda: dataset.streams[f"none {ODD}"],
        lambda: dataset.select({f"none {ODD}": 1}),
        lambda: robocache.Loader(dataset, batch_size=1, delta_timestamps={f"none {ODD}": [0.0]}, device="cpu"),
    ):
        with pytest.raises(robocache.Error) as raised:
            refused()
        shown = str(raised.value) + "".join(traceback.format_exception_only(raised.value)) + repr(raised.value)
        assert not RAW & set(shown) and "title" in shown
    error = robocache.FileError("two\nlines")
    assert str(error) == "two\nlines"


def test_warnings_and_reprs(cache):
    dataset = robocache.open(cache)
    robocache.doctor(cache)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = robocache.Loader(dataset, batch_size=1, delta_timestamps={ODD: [0.0]}, device="cpu", framework="numpy")
    assert [warning.category for warning in caught] == [robocache.DoctorWarning] and caught[0].filename == __file__
    shown = [str(caught[0].message)]
    for thing in (dataset, dataset.streams, dataset.streams[ODD], loader, loader.explain(), robocache.doctor(cache)):
        shown += [repr(thing), str(thing).replace("\n", "")]
    assert not RAW & set("".join(shown))


def test_a_picture_escapes_names_and_formulas(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from robocache import picture

    names = ["$\\frac{1}$", "_hidden", "$x$", ODD]
    with robocache.Writer(tmp_path / "$\\bad{$") as writer:
        for name in names:
            writer.stream(name, names=names)
        with writer.episode() as episode:
            for name in names:
                episode.append(name, np.arange(9) * 10**7, np.random.default_rng(0).normal(size=(9, 4)))
    figures = []
    savefig = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **rest: figures.append(figure) or savefig(figure, *args, **rest)
    )
    picture.plot(robocache.open(tmp_path / "$\\bad{$"), tmp_path / "picture.png")
    (figure,) = figures
    labels = [text.get_text().strip() for legend in [figure.axes[0].get_legend()] for text in legend.get_texts()]
    assert labels[:3] == names[:3] and not RAW & set(labels[3])
