"""The text of each sample's task."""

import numpy as np
import pytest

import robocache


def _write(path, columns, stream="joint"):
    with robocache.Writer(path) as writer:
        for e, metadata in enumerate(columns):
            with writer.episode(**metadata) as episode:
                episode.append(stream, np.arange(5) * 10**7 + e * 10**9, np.arange(5.0))
    return robocache.open(path)


@pytest.fixture
def kitchen(tmp_path):
    return _write(tmp_path / "kitchen", [{"task": "pick the cup"}, {}, {"task": "wipe — dry"}])


def _loader(*datasets, **options):
    sources = [robocache.Source(dataset) for dataset in datasets]
    return robocache.Loader(
        sources[0].dataset if len(sources) == 1 else sources,
        batch_size=4,
        delta_timestamps={"joint": None},
        task_text=True,
        **options,
    )


def test_the_episodes_column_tells(kitchen, device):
    texts = ["pick the cup", None, "wipe — dry"]
    loader = _loader(kitchen, device=device)
    for batch in loader:
        assert batch["task"] == [texts[e] for e in batch["episode_index"].tolist()]
    assert loader.gather([12, 1])["task"] == ["wipe — dry", "pick the cup"]


def test_each_source_has_its_own(kitchen, tmp_path):
    garage = _write(tmp_path / "garage", [{"tasks": ["drill", "screw"]}, {"tasks": []}])
    texts = [["pick the cup", None, "wipe — dry"], ["drill", None]]
    for batch in _loader(kitchen, garage):
        places = zip(batch["dataset_index"].tolist(), batch["episode_index"].tolist(), strict=True)
        assert batch["task"] == [texts[source][e] for source, e in places]


def test_what_has_no_tasks_is_refused(kitchen, tmp_path):
    plain = _write(tmp_path / "plain", [{"operator": "ann"}])
    with pytest.raises(
        robocache.ArgumentError, match=r"task_text: expected a column task or tasks .*plain, got .*operator"
    ):
        _loader(kitchen, plain)
    named = _write(tmp_path / "named", [{"task": "x"}], stream="task")
    with pytest.raises(robocache.ArgumentError, match="task_text: the batch's key 'task'"):
        robocache.Loader(named, batch_size=1, delta_timestamps={"task": None}, task_text=True)
    with pytest.raises(robocache.ArgumentTypeError, match="task_text: expected True or False, got 'yes'"):
        robocache.Loader(named, batch_size=1, delta_timestamps={"task": None}, task_text="yes")


def test_one_text_in_the_column_tasks(tmp_path):
    assert next(_loader(_write(tmp_path / "one", [{"tasks": "pick"}])))["task"] == ["pick"] * 4
