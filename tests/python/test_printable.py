"""Names with escape sequences are escaped in errors, warnings, reprs and pictures."""

import traceback
import warnings

import numpy as np
import pytest

import robocache

HOSTILE = "a\x1b]0;title\x07\x9b2J\u202e\r\tb"
FORBIDDEN = set(HOSTILE) - set("ab]0;title2J")


@pytest.fixture
def cache(tmp_path):
    """A cache with a finding in doctor.json, whose path, stream, feature and episode column are named HOSTILE."""
    path = tmp_path / HOSTILE
    with robocache.Writer(path) as writer:
        writer.stream(HOSTILE, names=[HOSTILE, "x"])
        with writer.episode(**{HOSTILE: HOSTILE}) as episode:
            episode.append(HOSTILE, np.arange(9) * 10**7, np.array([[np.nan, 1.0]] * 3 + [[0.0, 1.0]] * 6))
    return path


def test_errors_and_their_tracebacks(tmp_path, cache):
    dataset = robocache.open(cache)
    for call in (
        lambda: robocache.open(tmp_path / f"none {HOSTILE}"),
        lambda: robocache.ingest(tmp_path / f"none {HOSTILE}", tmp_path / "c"),
        lambda: dataset.streams[f"none {HOSTILE}"],
        lambda: dataset.select({f"none {HOSTILE}": 1}),
        lambda: robocache.Loader(dataset, batch_size=1, delta_timestamps={f"none {HOSTILE}": [0.0]}, device="cpu"),
    ):
        with pytest.raises(robocache.Error) as raised:
            call()
        text = str(raised.value) + "".join(traceback.format_exception_only(raised.value)) + repr(raised.value)
        assert not FORBIDDEN & set(text) and "title" in text
    error = robocache.FileError("two\nlines")
    assert str(error) == "two\nlines"


def test_warnings_and_reprs(cache):
    dataset = robocache.open(cache)
    robocache.doctor(cache)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = robocache.Loader(
            dataset, batch_size=1, delta_timestamps={HOSTILE: [0.0]}, device="cpu", framework="numpy"
        )
    assert [warning.category for warning in caught] == [robocache.DoctorWarning] and caught[0].filename == __file__
    texts = [str(caught[0].message)]
    values = (dataset, dataset.streams, dataset.streams[HOSTILE], loader, loader.explain(), robocache.doctor(cache))
    for value in values:
        texts += [repr(value), str(value).replace("\n", "")]
    assert not FORBIDDEN & set("".join(texts))


def test_a_picture_escapes_names_and_formulas(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from robocache import picture

    names = ["$\\frac{1}$", "_hidden", "$x$", HOSTILE]
    with robocache.Writer(tmp_path / "$\\bad{$") as writer:
        for name in names:
            writer.stream(name, names=names)
        with writer.episode() as episode:
            for name in names:
                episode.append(name, np.arange(9) * 10**7, np.random.default_rng(0).normal(size=(9, 4)))
    figures = []
    savefig = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **options: figures.append(figure) or savefig(figure, *args, **options)
    )
    picture.plot(robocache.open(tmp_path / "$\\bad{$"), tmp_path / "picture.png")
    (figure,) = figures
    labels = [text.get_text().strip() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[:3] == names[:3] and not FORBIDDEN & set(labels[3])
