"""Loader: what the loader refuses, by name."""

import json

import numpy as np
import pytest

import robocache


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"delta_timestamps": {"acton": [0.0]}}, ["acton", "action"]),
        ({"delta_timestamps": {}}, ["delta_timestamps"]),
        ({"delta_timestamps": {"action": []}}, ["delta_timestamps", "action"]),
        ({"delta_timestamps": {"action": [float("nan")]}}, ["delta_timestamps", "action"]),
        ({"delta_timestamps": {"action": [1e12]}}, ["delta_timestamps", "action"]),
        ({"delta_timestamps": {"action": 0.0}}, ["delta_timestamps", "action"]),
        ({"delta_timestamps": None}, ["delta_timestamps"]),
        ({"methods": {"action": "cubicle"}}, ["method", "action", "cubicle", "linear", "previous"]),
        ({"methods": {"action": "pchip"}}, ["method", "action", "pchip", "linear", "previous"]),
        ({"methods": {"nothing": "linear"}}, ["methods", "nothing"]),
        ({"methods": {"mode": "linear"}, "delta_timestamps": {"mode": [0.0]}}, ["mode", "linear", "int16"]),
        ({"normalize": {"action": "zscore"}}, ["normalize", "action", "zscore", "mean_std", "min_max", "q01_q99"]),
        ({"normalize": {"nothing": "mean_std"}}, ["normalize", "nothing"]),
        ({"normalize": {"mode": "mean_std"}, "delta_timestamps": {"mode": [0.0]}}, ["normalize", "mode", "int16"]),
        ({"batch_size": 0}, ["batch_size", "0"]),
        ({"batch_size": -3}, ["batch_size", "-3"]),
        ({"batch_size": 2.5}, ["batch_size"]),
        ({"dtype": "int32"}, ["dtype", "int32"]),
        ({"dtype": "float8"}, ["dtype", "float8"]),
        ({"device": "tpu"}, ["device", "tpu"]),
        ({"anchor": "acton"}, ["anchor", "acton"]),
        ({"anchor": "action", "anchor_hz": 10}, ["anchor", "anchor_hz"]),
        ({"anchor_hz": 0}, ["anchor_hz"]),
        ({"anchor_hz": -1.0}, ["anchor_hz"]),
        ({"anchor_hz": float("nan")}, ["anchor_hz"]),
        ({"rate_hz": 10, "history": 2}, ["rate_hz", "delta_timestamps"]),
        ({"rate_hz": 0, "history": 2, "delta_timestamps": None}, ["rate_hz"]),
        ({"rate_hz": 10, "delta_timestamps": None}, ["history"]),
        ({"rate_hz": 10, "history": 0, "horizon": 2, "delta_timestamps": None}, ["history"]),
        ({"rate_hz": 10, "history": {"acton": 1}, "delta_timestamps": None}, ["history", "acton"]),
        ({"episodes": [7]}, ["episodes", "7"]),
        ({"episodes": [-1]}, ["episodes", "-1"]),
        ({"episodes": []}, ["episodes"]),
        ({"episodes": [4], "anchor": "action"}, ["anchor"]),
        ({"snap_s": -1e-6}, ["snap_s"]),
        ({"snap_s": float("nan")}, ["snap_s"]),
        ({"max_gap_s": -1}, ["max_gap_s"]),
        ({"max_gap_s": float("nan")}, ["max_gap_s"]),
        ({"framework": "jacks"}, ["framework", "jacks", "numpy", "torch"]),
        ({"seed": "one"}, ["seed"]),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused_by_name(dataset, options, parts):
    options = {"batch_size": 8, "delta_timestamps": {"action": [0.0]}} | options
    with pytest.raises(robocache.Error) as caught:
        robocache.Loader(dataset, **options)
    assert isinstance(caught.value, (ValueError, TypeError))
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize("dataset_argument", ["a path", None, 3])
def test_a_loader_needs_a_dataset(dataset_argument):
    with pytest.raises(robocache.ArgumentTypeError, match=r"(?i)dataset"):
        robocache.Loader(dataset_argument, batch_size=8, delta_timestamps={"action": [0.0]})


def test_a_missing_gpu_is_said_plainly(dataset):
    if robocache.check_installation()["cuda"]["reason"] is None:
        pytest.skip("this machine has a GPU")
    with pytest.raises(robocache.Error, match=r"(?i)cuda"):
        robocache.Loader(dataset, batch_size=8, delta_timestamps={"action": [0.0]}, device="cuda")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"delta_timestamps": ["x"]}, "delta_timestamps"),
        ({"delta_timestamps": {"x": "abc"}}, "delta_timestamps"),
        ({"rate_hz": "5", "history": 2}, "rate_hz"),
        ({"rate_hz": 5, "history": 2.0}, "history"),
        ({"delta_timestamps": {"x": [0]}, "episodes": [0.5]}, "episodes"),
        ({"delta_timestamps": {"x": [0]}, "dtype": object()}, "dtype"),
        ({"delta_timestamps": {"x": [0]}, "methods": object()}, "options"),
    ],
)
def test_arguments_of_another_type_are_refused_as_such(options, name, tmp_path):
    with robocache.Writer(tmp_path / "cache") as w, w.episode() as ep:
        ep.append("x", np.arange(4), np.zeros(4))
    dataset = robocache.open(tmp_path / "cache")
    with pytest.raises(robocache.ArgumentTypeError, match=name):
        robocache.Loader(dataset, batch_size=2, **options)
    with pytest.raises(robocache.ArgumentTypeError, match="dataset"):
        robocache.Loader(str(tmp_path / "cache"), batch_size=2, **options)


def test_numbers_of_numpy_are_numbers(tmp_path):
    with robocache.Writer(tmp_path / "cache") as w, w.episode() as ep:
        ep.append("x", np.arange(4), np.zeros(4))
    dataset = robocache.open(tmp_path / "cache")
    robocache.Loader(
        dataset, batch_size=2, delta_timestamps={"x": [0]}, max_gap_s=np.float32(0.5), episodes=np.array([0])
    )
