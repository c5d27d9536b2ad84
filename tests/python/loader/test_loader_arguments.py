"""Arguments that a Loader refuses by name, its reprs, and the precision that float32 loses."""

import copy
import dataclasses
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from loaders_by_keywords import loader_by_keywords
from recordings import assert_same_batches, batches_of, refused, small_loader, warnings_with, write

import robocache


def in_rows(offsets, **options):
    return {"delta_timestamps": {"action": robocache.Window(offsets, **{"rows": True} | options)}}


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
        ({"method": {"action": "cubicle"}}, ["method", "action", "cubicle", "linear", "previous"]),
        ({"method": {"nothing": "linear"}}, ["delta_timestamps", "nothing"]),
        ({"method": {"mode": "linear"}, "delta_timestamps": {"mode": [0.0]}}, ["mode", "linear", "int16"]),
        ({"normalize": {"action": "zscore"}}, ["normalize", "action", "zscore", "mean_std", "min_max", "q01_q99"]),
        ({"normalize": {"nothing": "mean_std"}}, ["delta_timestamps", "nothing"]),
        ({"anchor": "\ud800"}, ["anchor", "UTF-8", "ud800"]),
        ({"dtype": "\ud800"}, ["dtype", "UTF-8", "ud800"]),
        ({"device": "\ud800"}, ["device", "UTF-8", "ud800"]),
        ({"normalize": {"mode": "mean_std"}, "delta_timestamps": {"mode": [0.0]}}, ["normalize", "mode", "int16"]),
        ({"batch_size": 0}, ["batch_size", "0"]),
        ({"batch_size": -3}, ["batch_size", "-3"]),
        ({"batch_size": 2.5}, ["batch_size"]),
        ({"dtype": "int32"}, ["dtype", "int32"]),
        ({"dtype": "float8"}, ["dtype", "float8"]),
        ({"device": "tpu"}, ["device", "tpu"]),
        ({"anchor": "acton"}, ["anchor", "acton"]),
        ({"anchor": "action", "anchor_hz": 10}, ["anchors.stream", "anchors.rate_hz"]),
        ({"anchor_hz": 0}, ["anchors.rate_hz"]),
        ({"anchor_hz": -1.0}, ["anchors.rate_hz"]),
        ({"anchor_hz": float("nan")}, ["anchors.rate_hz"]),
        ({"episodes": [7]}, ["episodes", "7"]),
        ({"episodes": [-1]}, ["episodes", "-1"]),
        ({"episodes": []}, ["episodes"]),
        ({"episodes": [4], "anchor": "action"}, ["anchor"]),
        ({"snap_s": -1e-6}, ["snap_s"]),
        ({"snap_s": float("nan")}, ["snap_s"]),
        ({"max_gap_s": -1}, ["max_gap_s"]),
        ({"max_gap_s": float("nan")}, ["max_gap_s"]),
        ({"framework": "jacks"}, ["framework", "jacks", "numpy", "torch"]),
        ({"seed": "one"}, ["seed", "one"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"seed": 2**63}, ["seed", str(2**63)]),
        ({"seed": True}, ["seed", "True"]),
        ({"snap_s": -1e-50}, ["snap_s", "-1e-50"]),
        ({"max_gap_s": -1e-9}, ["delta_timestamps['action'].max_gap_s", "-1e-09"]),
        ({"anchor_hz": 1e-300}, ["anchors.rate_hz", "1e-300"]),
        ({"max_gap_s": "0.1"}, ["max_gap_s", "'0.1'"]),
        ({"shuffle": "yes"}, ["shuffle", "yes"]),
        ({"batch_size": None}, ["batch_size", "None"]),
        ({"batch_size": True}, ["batch_size", "True"]),
        ({"episodes": 3}, ["episodes", "3"]),
        ({"delta_timestamps": ["action"]}, ["delta_timestamps", "['action']"]),
        ({"delta_timestamps": {"action": "abc"}}, ["delta_timestamps", "abc"]),
        ({"episodes": [0.5]}, ["episodes", "0.5"]),
        ({"dtype": object()}, ["dtype", "object"]),
        ({"dtype": torch.tensor(0.5)}, ["dtype", "0.5"]),
        ({"shuffle": "\udc80"}, ["shuffle: expected True or False"]),
        ({"drop_last": 1}, ["drop_last: expected True or False"]),
        ({"method": object()}, ["default.method", "object"]),
        # Windows in seconds
        ({"causal": True, "method": "next"}, ["delta_timestamps['action'].causal", "next"]),
        (
            {"causal": {"action": True}, "method": {"action": [(slice(0, 2), "next")]}},
            ["delta_timestamps['action'].causal", "next"],
        ),
        ({"causal": "yes"}, ["causal", "'yes'"]),
        ({"causal": {"acton": True}}, ["delta_timestamps", "acton"]),
        ({"tolerance_s": 0.1}, ["delta_timestamps['action'].tolerance_s", "linear", "max_gap_s"]),
        ({"tolerance_s": -0.1, "method": "nearest"}, ["delta_timestamps['action'].tolerance_s", "-0.1"]),
        ({"tolerance_s": float("nan"), "method": "nearest"}, ["delta_timestamps['action'].tolerance_s", "nan"]),
        ({"tolerance_s": {"acton": 0.1}}, ["delta_timestamps", "acton"]),
        ({"offset_s": float("inf")}, ["delta_timestamps['action'].offset_s", "inf"]),
        (
            {"offset_s": {"action": 4.6e9}, "delta_timestamps": {"action": [4.6e9]}},
            ["delta_timestamps['action'].offset_s", "146 years"],
        ),
        ({"offset_s": {"action": "late"}}, ["delta_timestamps['action'].offset_s", "'late'"]),
        ({"edges": "cut"}, ["edges", "'cut'", "'pad'", "'drop'"]),
        ({"edges": None}, ["edges", "None"]),
        ({"drop_n_last": -1}, ["drop_n_last", "-1"]),
        ({"drop_n_last": 10**6}, ["anchor", "drop_n_last"]),
        ({"drop_n_last": 1.5}, ["drop_n_last", "1.5"]),
        ({"edges": "drop", "delta_timestamps": {"action": [-1e5, 0.0]}}, ["anchor", "edges"]),
        # Methods
        ({"method": {"action": "cubic"}}, ["delta_timestamps['action'].method", "cubic", "akima"]),
        ({"method": {"action": [(slice(0, 3), "cubic")]}}, ["['action'].method", "cubic", "akima"]),
        ({"method": {"action": [(slice(0, 3), "cubicle")]}}, ["['action'].method", "cubicle", "linear"]),
        ({"method": {"action": [(slice(0, 3), "pchip"), (slice(2, 5), "akima")]}}, ["['action'].method", "overlap"]),
        ({"method": {"action": [(slice(0, 18), "pchip")]}}, ["['action'].method", "slice(0, 18)"]),
        ({"method": {"action": [(slice(0, 6, 2), "pchip")]}}, ["['action'].method", "step 1", "slice(0, 6, 2)"]),
        ({"method": {"action": [(slice(0, 3), "slerp")]}}, ["['action'].method", "slerp", "4", "3"]),
        ({"method": {"action": "slerp"}}, ["['action'].method", "slerp", "17"]),
        ({"method": {"action": [("0:3", "pchip")]}}, ["['action'].method", "slice", "0:3"]),
        ({"method": {"action": ["pchip"]}}, ["['action'].method", "pchip"]),
        ({"method": {"action": 3}}, ["['action'].method", "int"]),
        ({"method": "angle", "delta_timestamps": {"mode": [0.0]}}, ["['mode'].method", "int16"]),
        (
            {"method": {"mode": [(slice(0, 1), "pchip")]}, "delta_timestamps": {"mode": [0.0]}},
            ["['mode'].method", "int16"],
        ),
        # Windows in rows
        (in_rows([0, 0.5]), ["delta_timestamps['action']: expected whole numbers of rows", "0.5"]),
        (in_rows([float("nan")]), ["whole numbers of rows"]),
        (in_rows([2**30 + 1]), ["at most 2^30"]),
        (in_rows([0], method="linear"), ["['action'].method: expected none with rows=True", "'linear'"]),
        (in_rows([0], method="nearest"), ["['action'].method: expected none with rows=True"]),
        (in_rows([0], method=[(slice(0, 2), "linear")]), ["['action'].method: expected none with rows=True", "slices"]),
        (in_rows([0], max_gap_s=0.1), ["['action'].max_gap_s: expected none with rows=True", "tolerance_s"]),
        (in_rows([0], tolerance_s=-1), ["['action'].tolerance_s: expected 0 or more"]),
        (in_rows([0], rows=1), ["['action'].rows: expected True or False"]),
        (in_rows([]), ["expected at least one offset"]),
        # Memory
        (
            {"residency": "disk"},
            ["memory.residency: expected 'auto', 'decoded', 'device', 'pinned' or 'mapped'", "'disk'"],
        ),
        ({"residency": {"action": "Device"}}, ["memory.residency['action']: expected 'auto'", "got 'Device'"]),
        ({"residency": {"actions": "device"}}, ["memory.residency: no stream 'actions'"]),
        ({"budget": 0.0}, ["memory.budget: expected bytes, an int, or a share in (0, 1]"]),
        ({"budget": 1.5}, ["memory.budget: expected bytes, an int, or a share in (0, 1]", "1.5"]),
        ({"budget": float("nan")}, ["memory.budget: expected", "nan"]),
        ({"budget": 2**70}, ["memory.budget: expected a whole number of 64 bits"]),
        ({"budget": -1}, ["memory.budget: expected at least 0 bytes, got -1"]),
        ({"budget": {"gpu": 0.5}}, ["memory.budget: expected 'device' and 'host', got 'gpu'"]),
        ({"residency": 3}, ["memory.residency: ", "int"]),
        ({"residency": ["device"]}, ["memory.residency: ", "list"]),
        ({"budget": "half"}, ["memory.budget: ", "'half'"]),
        ({"budget": True}, ["memory.budget: ", "True"]),
        ({"budget": [1]}, ["memory.budget: ", "[1]"]),
        ({"budget": {"host": "all"}}, ["memory.budget", "'all'"]),
        *(({"prefetch": x}, ["memory.prefetch: "]) for x in (-1, 33, 2**40, 1.5, None, True, "2")),
        *(({"reuse_buffers": x}, ["memory.reuse_buffers: "]) for x in (1, None, "yes")),
        *(({"stream": x}, ["memory.stream: expected a torch.cuda.Stream"]) for x in (3, "cuda", object())),
    ],
    ids=" ".join,
)
def test_invalid_arguments_are_refused_by_name(dataset, options, parts):
    with refused(*parts):
        small_loader(dataset, **options)


@pytest.mark.parametrize(
    ("streams", "key"),
    [
        (["a", "a_is_pad"], "a_is_pad"),
        (["time_ns"], "time_ns"),
        (["episode_index"], "episode_index"),
        (["anchor_index"], "anchor_index"),
    ],
)
def test_streams_that_share_a_key_of_the_batch_are_refused(tmp_path, streams, key):
    recording = [{name: (np.arange(3), np.zeros((3, 1), np.float32)) for name in [*streams, "b"]}]
    dataset = write(tmp_path / "cache", recording)
    with pytest.raises(robocache.ArgumentError, match=f"delta_timestamps: .*'{key}'") as caught:
        loader_by_keywords(dataset, batch_size=1, delta_timestamps={name: [0.0] for name in streams})
    for name in streams:
        assert f"'{name}'" in str(caught.value)
    loader_by_keywords(dataset, batch_size=1, delta_timestamps={"b": [0.0]})


def test_a_path_opens_its_dataset(dataset, tmp_path, monkeypatch):
    options = {"batch_size": 8, "delta_timestamps": {"action": [0.0]}, "device": "cpu"}
    expected = batches_of(loader_by_keywords(dataset, **options))
    monkeypatch.chdir(Path(dataset.path).parent)
    name = Path(dataset.path).name
    for path in (dataset.path, Path(dataset.path), name):
        loader = loader_by_keywords(path, **options)
        assert isinstance(loader.dataset, robocache.Dataset) and loader.dataset.path == dataset.path
        assert "dataset_index" not in next(copy.deepcopy(loader))
        assert repr(dataset.path) in repr(loader)
        unpickled = pickle.loads(pickle.dumps(loader))
        assert_same_batches(batches_of(loader), expected)
        assert_same_batches(batches_of(unpickled), expected)
        source = robocache.Source(path, episodes=[0])
        assert source.dataset.path == dataset.path
        assert dataclasses.replace(source, weight=1.0).dataset is source.dataset
        mixture = loader_by_keywords([source, robocache.Source(dataset)], **options)
        assert set(next(mixture)["dataset_index"].tolist()) <= {0, 1}
    for call in (lambda path: loader_by_keywords(path, **options), robocache.Source):
        with pytest.raises(robocache.FileError, match="nowhere"):
            call(tmp_path / "nowhere")
        with pytest.raises(robocache.FileError, match=r"no cache: it has no manifest.json; `robocache ingest` makes"):
            call(tmp_path)


@pytest.mark.parametrize("dataset_argument", [b"bytes", None, 3, ["a path"], {}])
def test_a_loader_needs_a_dataset(dataset_argument):
    with pytest.raises(robocache.ArgumentTypeError, match=r"(?i)dataset|sources"):
        loader_by_keywords(dataset_argument, batch_size=8, delta_timestamps={"action": [0.0]})


def test_a_missing_gpu_is_named(dataset):
    if robocache.check_installation()["cuda"]["reason"] is None:
        pytest.skip("this machine has a GPU")
    with pytest.raises(robocache.Error, match=r"(?i)cuda"):
        loader_by_keywords(dataset, batch_size=8, delta_timestamps={"action": [0.0]}, device="cuda")


@pytest.mark.parametrize("argument", ["ranks", "memory", "normalization", "anchors", "default"])
def test_invalid_groups_of_options_are_refused_by_name(argument, dataset):
    with pytest.raises(robocache.ArgumentTypeError, match=f"{argument}: expected a .*, got 2"):
        robocache.Loader(dataset, batch_size=2, delta_timestamps={"action": [0.0]}, **{argument: 2})


@pytest.mark.parametrize(
    "kind",
    [tuple, set, iter, np.array, lambda x: np.array(x, ">i4")],
    ids=["tuple", "set", "iterator", "array", "big endian"],
)
def test_episodes_of_every_kind_of_list_are_accepted(dataset, kind):
    windows = {"action": [0.0]}
    expected = robocache.Loader(dataset, batch_size=2, delta_timestamps=windows, episodes=[1]).num_anchors
    loaders = [
        robocache.Loader(source, batch_size=2, delta_timestamps=windows, episodes=episodes)
        for source, episodes in ((dataset, kind([1])), ([robocache.Source(dataset, episodes=kind([1]))], None))
    ]
    assert [loader.num_anchors for loader in loaders] == [expected, expected]


def test_numpy_scalars_are_accepted(dataset):
    small_loader(dataset, batch_size=np.int32(2), max_gap_s=np.float32(0.5), episodes=np.array([0]), shuffle=np.True_)
    threads = robocache.num_threads()
    robocache.set_num_threads(np.int64(threads))
    with pytest.raises(robocache.ArgumentTypeError, match="n: expected a whole number, got True"):
        robocache.set_num_threads(True)


@pytest.mark.parametrize("option", ["delta_timestamps", "rename"])
def test_a_cache_without_streams(tmp_path, option):
    source = robocache.Source(write(tmp_path / "cache", []), rename={"action": "a"} if option == "rename" else None)
    with pytest.raises(robocache.ArgumentError, match=r"there are none$|rename: no stream 'action'"):
        loader_by_keywords([source], batch_size=1, delta_timestamps={"action": [0.0]}, device="cpu")


def test_the_repr_of_a_loader_and_its_sources(tmp_path):
    dataset = write(tmp_path / "cache", [{"state": (np.arange(10) * 10**8, np.zeros((10, 2)))}] * 3)
    options = {"batch_size": 4, "delta_timestamps": {"state": [0.0]}, "device": "cpu"}
    loader = loader_by_keywords(dataset, **options)
    assert repr(loader).startswith(f"robocache.Loader({dataset.path!r}, 30 samples in batches of 4 on cpu: ")
    assert "state" in repr(loader).partition("cpu: ")[2]
    sources = [
        robocache.Source(dataset, weight=0.5, episodes=range(2)),
        robocache.Source(dataset, 1, norm_stats=dataset.stats),
    ]
    assert repr(sources[0]) == f"robocache.Source({dataset!r}, weight=0.5, 2 episodes)"
    assert repr(sources[1]) == f"robocache.Source({dataset!r}, weight=1, norm_stats of state)"
    assert "robocache.Loader(2 sources, " in repr(loader_by_keywords(sources, **options))


# ---- precision that float32 loses ----


def load_columns(tmp_path, columns, expected, names=None, stored_dtype=np.float64, **window):
    """Returns (a batch's values, the columns it was loaded from). Expects a warning of lost precision that `expected` matches."""
    values = np.stack(columns, axis=1).astype(stored_dtype)
    rows = {"fix": (np.arange(len(values)) * 10**8, values)}
    dataset = write(tmp_path / "cache", [rows], streams={"fix": {"names": names}}, overwrite=True)
    windows = {"fix": robocache.Window(**window)}
    with warnings_with("float64", expected):
        loader = robocache.Loader(
            dataset, batch_size=len(values), delta_timestamps=windows, shuffle=False, framework="numpy"
        )
    return next(loader)["fix"], values


STEPS = np.arange(200)
LARGE = {
    "latitude": 47.397742 + 1e-7 * STEPS,
    "northing": 5_250_000.0 + 0.5 * STEPS,
    "epoch": 1.7e9 + 0.1 * STEPS,
}


@pytest.mark.parametrize("name", LARGE)
def test_precision_that_float32_loses_is_warned_of(name, tmp_path):
    columns, names = [STEPS % 7 + 0.5, LARGE[name]], ["small", name]
    largest_error = 2.0**-24 * np.abs(LARGE[name]).max()
    part = f"'fix'[1] ({name}) by up to {largest_error:.3g}, {largest_error / LARGE[name].std():.3g} of its std"
    values, exact = load_columns(tmp_path, columns, re.escape(part) + ".*dtype=", names)
    assert np.abs(values[:, 1].astype(np.float64) - exact[:, 1]).max() <= largest_error
    np.testing.assert_array_equal(*load_columns(tmp_path, columns, None, names, dtype="float64"))


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (STEPS / 7, {}),
        (np.full(200, 47.397742), {}),  # a constant
        (LARGE["epoch"], {"normalize": "mean_std"}),
        (LARGE["epoch"], {"dtype": "float32"}),  # the caller chose float32
        (LARGE["northing"], {"stored_dtype": np.float32}),
    ],
)
def test_values_that_float32_holds_or_a_caller_asks_for_are_not_warned_of(column, options, tmp_path):
    load_columns(tmp_path, [column], None, **options)


@pytest.mark.parametrize("argument", ["anchors", "default"])
@pytest.mark.parametrize("value", [0, False, {}, []])
def test_an_empty_value_is_no_dataclass_of_options(argument, value, dataset):
    with pytest.raises(robocache.ArgumentTypeError, match=f"^{argument}: expected a "):
        robocache.Loader(dataset, batch_size=2, delta_timestamps={"action": None}, **{argument: value})


def test_whole_numbers_beyond_float64_are_refused(dataset, tmp_path):
    huge = 10**400
    source = robocache.Source(dataset, 1, name="a")
    loader = robocache.Loader([source], batch_size=2, delta_timestamps={"action": None})
    calls = {
        r"weights\['a'\]": lambda: loader.set_weights({"a": huge}),
        "weights": lambda: robocache.merge_stats([{"x": {"mean": [0.0]}}], weights=[huge]),
        "stream 'top': unit_m": lambda: robocache.Writer(tmp_path / "cache").stream("top", unit_m=huge),
        "rate_hz": lambda: robocache.Window.steps(huge, horizon=1),
    }
    for argument, call in calls.items():
        with pytest.raises(robocache.ArgumentError, match=f"^{argument}: expected a number that float64 holds"):
            call()
