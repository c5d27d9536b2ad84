"""A loader refuses ragged streams, and uses the methods that streams declare."""

import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords
from recordings import write

import robocache


@pytest.fixture
def dataset(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer:
        writer.stream("pose", attributes={"methods": [[3, 7, "slerp"]]})
        writer.stream("heading", attributes={"methods": [[0, 1, "angle"]]})
        with writer.episode() as episode:
            time_ns = np.arange(20) * 100_000_000
            turn = np.linspace(0, 1.5, 20)
            zero = np.zeros(20)
            episode.append("pose", time_ns, np.stack([turn, zero, zero, zero, zero, np.sin(turn), np.cos(turn)], 1))
            episode.append("heading", time_ns, (np.arange(20) % 2 * 6.2 - 3.1)[:, None])
            episode.append("lidar", time_ns, np.zeros((40, 4), np.float32), offsets=np.arange(21) * 2)
            episode.append("said", time_ns, ["go"] * 20)
    return robocache.open(tmp_path / "cache")


def loader_of(dataset, **options):
    options = {"batch_size": 4, "device": "cpu", "framework": "numpy", "shuffle": False, "dtype": "float64", **options}
    return loader_by_keywords(dataset, **options)


def test_ragged_streams_are_refused_by_name(dataset):
    with pytest.raises(robocache.ArgumentError, match=r"delta_timestamps\['lidar'\]: expected rows of one"):
        loader_of(dataset, delta_timestamps={"pose": [0.0], "lidar": [0.0]})


def test_a_source_with_a_ragged_key_is_refused(dataset):
    sources = [robocache.Source(dataset), robocache.Source(dataset, rename={"pose": "other", "lidar": "pose"})]
    with pytest.raises(robocache.ArgumentError, match=r"delta_timestamps\['pose'\]: expected rows of one size"):
        loader_of(sources, delta_timestamps={"pose": [0.0]})


def test_the_clock_of_a_ragged_stream_can_be_the_anchor(dataset):
    assert loader_of(dataset, delta_timestamps={"pose": [0.0]}, anchor="lidar").num_anchors == 20


DELTAS = {"pose": [0.05], "heading": [0.05]}


def have_equal_values(a, b):
    return all(np.array_equal(a[key], b[key]) for key in DELTAS)


def test_declared_methods_are_the_default(dataset):
    methods = {"pose": [(slice(3, 7), "slerp")], "heading": "angle"}
    by_default = next(loader_of(dataset, delta_timestamps=DELTAS))
    assert have_equal_values(by_default, next(loader_of(dataset, delta_timestamps=DELTAS, method=methods)))
    assert np.allclose(np.linalg.norm(by_default["pose"][..., 3:], axis=-1), 1)
    assert np.all(np.abs(by_default["heading"]) > 3)  # the shorter way round


def test_the_callers_methods_precede_declared_ones(dataset):
    with pytest.warns(robocache.LoaderWarning, match=r"\['pose'\].method: 'linear' overrides .*, slerp \[3:7\]"):
        linear = next(loader_of(dataset, delta_timestamps=DELTAS, method="linear"))
    with pytest.warns(robocache.LoaderWarning, match=r"\['heading'\].method: 'pchip' overrides .*, angle \[0:1\]"):
        loader_of(dataset, delta_timestamps=DELTAS, method={"heading": "pchip"})
    assert np.all(np.abs(linear["heading"]) < 1e-9)
    heading_linear = next(loader_of(dataset, delta_timestamps=DELTAS, method={"heading": "linear"}))
    by_default = next(loader_of(dataset, delta_timestamps=DELTAS))
    assert np.array_equal(heading_linear["heading"], linear["heading"])
    assert np.array_equal(heading_linear["pose"], by_default["pose"])
    assert not np.array_equal(linear["pose"], by_default["pose"])


@pytest.mark.parametrize("methods", ["slerp", [["slerp"]], [[0, "slerp", 4]], [[0, 1, 2]], {"a": 1}, 3])
def test_invalid_declared_methods_are_refused_when_used(tmp_path, methods):
    rows = dict.fromkeys("xy", ([0, 1], [1.0, 2.0]))
    dataset = write(tmp_path / "odd", [rows], streams={"x": {"attributes": {"methods": methods}}})
    with pytest.raises(robocache.ArgumentError, match=r"stream 'x': attributes\['methods'\]: expected \[\[start, stop"):
        loader_of(dataset, delta_timestamps={"x": [0.0]})
    loader_of(dataset, delta_timestamps={"x": [0.0]}, method="linear")
    loader_of(dataset, delta_timestamps={"y": [0.0]})


def test_sources_with_different_methods_are_refused(dataset):
    sources = [robocache.Source(dataset), robocache.Source(dataset, rename={"pose": "x", "heading": "pose"})]
    with pytest.raises(robocache.ArgumentError, match=r"delta_timestamps\['pose'\].method: expected one, since"):
        loader_of(sources, delta_timestamps={"pose": [0.0]}, pad_features=True)
    loader_of(sources, delta_timestamps={"pose": [0.0]}, pad_features=True, method={"pose": "linear"})
