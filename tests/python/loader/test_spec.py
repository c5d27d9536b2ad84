"""A Spec: the content of a loader's batches, as one value in a file."""

import copy
import json
import math
import os
import pickle
import struct

import numpy as np
import pytest
from filmed import random_stamps, smooth_frames
from hypothesis import given
from hypothesis import strategies as st
from recordings import write

import robocache
from robocache import Normalization, Source, Spec, Window

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
NS = st.integers(-(2**62), 2**62 - 1)
DURATIONS = st.none() | st.integers(0, 2**63 - 1)
FLOATS = st.sampled_from(["float16", "bfloat16", "float32", "float64"])
NO_RANGE = {"low_ns": st.just(0), "high_ns": st.just(0), "discount": st.just(0.0)}
FUTURE = {"low_ns": st.integers(0, 9), "high_ns": st.integers(10, 2**63 - 1), "discount": st.just(0.0)}
DISCOUNT = st.floats(0, 1, exclude_min=True, exclude_max=True)
MOMENTS = st.one_of(
    st.fixed_dictionaries({"kind": st.sampled_from(["last", "other"])} | NO_RANGE),
    st.fixed_dictionaries({"kind": st.just("future")} | FUTURE),
    st.fixed_dictionaries({"kind": st.just("geometric")} | NO_RANGE | {"discount": DISCOUNT}),
)
STEP_METHODS = ("nearest", "previous", "next")


@st.composite
def numbers_rows(draw, shape, causal, tolerance, in_rows, step_count):
    features = math.prod(shape)
    dtype = draw(FLOATS | st.sampled_from(["int64", "uint8", "bool"]))
    is_float = "float" in dtype
    step_methods = [method for method in STEP_METHODS if not (causal and method == "next")]
    methods = (
        step_methods if tolerance is not None or not is_float else [*step_methods, "linear", "pchip", "akima", "angle"]
    )
    if in_rows:
        methods = ["previous"]
    ends = [*sorted(draw(st.sets(st.integers(1, features - 1)))), features] if features > 1 else [features]
    parts = ("scale", "shift", "spread", "centre")
    # An affine for all steps, or one for each.
    count = features * draw(st.sampled_from([1, step_count]))
    affine = {part: draw(st.lists(NUMBERS, min_size=count, max_size=count)) for part in parts}
    affine = affine if is_float and draw(st.booleans()) else None
    return {
        "dtype": dtype,
        "shape": shape,
        "names": draw(st.just([]) | st.lists(st.text(), min_size=features, max_size=features)),
        "methods": [
            [begin, end, draw(st.sampled_from(methods))] for begin, end in zip([0, *ends[:-1]], ends, strict=True)
        ],
        "affine": affine,
        "clip": affine is not None and draw(st.booleans()),
        "codec": None,
        "unit_m": None,
        "intrinsics": [],
    }


@st.composite
def numbers_key(draw, name):
    shape = draw(st.lists(st.integers(1, 3), max_size=2))
    in_rows = draw(st.booleans())
    offsets = draw(st.lists(st.integers(-(2**30), 2**30) if in_rows else NS, min_size=1, max_size=4))
    causal, tolerance = draw(st.booleans()), draw(DURATIONS)
    rows = draw(st.none() | numbers_rows(shape, causal, tolerance, in_rows, len(offsets)))
    is_float = rows is None or "float" in rows["dtype"]
    return {
        "key": name,
        "stream": draw(st.text(min_size=1, max_size=5)),
        "moment": draw(st.none() | MOMENTS),
        "dtype": draw(FLOATS) if is_float else rows["dtype"],
        "shape": shape,
        "offsets_ns": [] if in_rows else offsets,
        "offsets_rows": offsets if in_rows else [],
        "one_step": len(offsets) == 1 and draw(st.booleans()),
        "offset_ns": draw(NS),
        "causal": causal,
        "max_gap_ns": None if in_rows else draw(DURATIONS),
        "tolerance_ns": tolerance,
        "convert": None,
        "images": None,
        "has_intrinsics": False,
        "rows": rows,
    }


@st.composite
def specs(draw):
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3, unique=True))
    return {
        "version": 1,
        "snap_ns": draw(st.integers(0, 2**63 - 1)),
        "return_age": draw(st.booleans()),
        "pad_features": draw(st.booleans()),
        "dataset_index": draw(st.none() | st.integers(0, 9)),
        "keys": [draw(numbers_key(name)) for name in names],
    }


def comparable(value):
    """Returns the value with floats as bytes and other leaves with their types: -0.0 is not 0.0, and 1 is not 1.0."""
    match value:
        case float():
            return struct.pack("<d", value)
        case dict():
            return {name: comparable(part) for name, part in value.items()}
        case list():
            return [comparable(part) for part in value]
    return type(value), value


@given(specs())
def test_every_spec_round_trips(spec):
    parsed = Spec(json.dumps(spec))
    assert comparable(json.loads(parsed.to_json())) == comparable(spec)
    assert Spec(parsed.to_json()) == parsed == pickle.loads(pickle.dumps(parsed)) == copy.copy(parsed)
    assert hash(Spec(parsed.to_json())) == hash(parsed)
    assert list(parsed.keys) == [key["key"] for key in spec["keys"]]


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("spec") / "cache"
    times = np.arange(60) * 20_000_000
    with robocache.Writer(path) as writer:
        writer.stream("joint", names=[f"j{i}" for i in range(7)])
        writer.stream("top", intrinsics=[[20.0, 0, 13], [0, 20, 9], [0, 0, 1]])
        with writer.episode() as episode:
            episode.append("joint", times, rng.standard_normal((60, 7)))
            episode.append("other", times, rng.standard_normal((60, 7)))
            episode.append("ticks", times, np.arange(60))
            episode.append("top", random_stamps(rng, 30, 40_000_000), smooth_frames(rng, 30), codec="png")
    return robocache.open(path)


def loader_of(arm, **options):
    joint = {"method": [(slice(3, 7), "slerp")], "offset_s": 0.004, "max_gap_s": 0.05}
    windows = {
        "joint": Window([-0.1, 1e-9, 0.0335], normalize="mean_std", dtype="float16", **joint),
        "ticks": Window(causal=True, tolerance_s=0.02),
        "top": Window([0.0], images=robocache.ImageOptions(size=(12, 16), crop=(10, 14), crop_at="random", hue=0.1)),
    }
    options = {"batch_size": 2, "delta_timestamps": windows, "return_age": True, "device": "cpu"} | options
    return robocache.Loader(arm, **options)


def test_the_spec_of_a_loader(arm, tmp_path):
    loader = loader_of(arm)
    spec = loader.spec
    joint, ticks, top = spec.keys.values()
    assert list(spec.keys) == ["joint", "ticks", "top"]
    assert (joint["dtype"], joint["shape"], joint["one_step"]) == ("float16", [7], False)
    assert (joint["offsets_ns"], joint["offset_ns"]) == ([-100_000_000, 1, 33_500_000], 4_000_000)
    assert (joint["max_gap_ns"], joint["tolerance_ns"], joint["causal"]) == (50_000_000, None, False)
    assert joint["rows"]["dtype"] == "float64"
    assert joint["rows"]["names"] == [f"j{i}" for i in range(7)]
    assert joint["rows"]["methods"] == [[0, 3, "linear"], [3, 7, "slerp"]]
    values = np.asarray(arm.streams["joint"].values)
    affine = {part: np.array(numbers) for part, numbers in joint["rows"]["affine"].items()}
    np.testing.assert_allclose(affine["centre"], values.mean(0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(affine["spread"], values.std(0), rtol=1e-12)
    assert np.array_equal(affine["scale"], 1 / affine["spread"])
    assert np.array_equal(affine["shift"], -affine["centre"] * affine["scale"])
    assert (ticks["dtype"], ticks["shape"], ticks["one_step"], ticks["offsets_ns"]) == ("int64", [], True, [0])
    assert (ticks["causal"], ticks["tolerance_ns"], ticks["rows"]["affine"]) == (True, 20_000_000, None)
    assert (top["shape"], top["dtype"], top["has_intrinsics"]) == ([3, 10, 14], "float32", True)
    assert (top["rows"]["shape"], top["rows"]["codec"]) == ([18, 26, 3], "png")
    assert top["rows"]["intrinsics"] == [20.0, 0, 13, 0, 20, 9, 0, 0, 1]
    batch = next(loader)
    for name, key in spec.keys.items():
        steps = [] if key["one_step"] else [len(key["offsets_ns"])]
        assert list(batch[name].shape) == [2, *steps, *key["shape"]]
        assert str(batch[name].dtype) == "torch." + key["dtype"]
    assert repr(spec) == "robocache.Spec(joint [3, 7] float16, ticks [] int64, top [1, 3, 10, 14] float32)"
    loader.save_spec(tmp_path / "spec.json")
    assert Spec.load(tmp_path / "spec.json") == spec
    assert os.listdir(tmp_path) == ["spec.json"]


def test_augmentation_is_off_in_a_spec(arm):
    def images(**options):
        window = Window(images=robocache.ImageOptions(**options))
        return loader_of(arm, delta_timestamps={"top": window}).spec.keys["top"]["images"]

    jitter = {"brightness": 0.2, "contrast": (0.5, 2.0), "saturation": 0.1, "hue": 0.05}
    assert images(size=(12, 16), crop=(10, 14), **jitter) == images(size=(12, 16), crop=(10, 14), crop_at="center")
    assert images(crop_scale=(0.5, 0.9)) == images(crop_scale=0.9, crop_at="center")
    assert images(shift=3) == images()
    assert images(mean="imagenet", layout="hwc", dtype="bfloat16") != images()
    assert images(size=(9, 9), interpolation="area") != images(size=(9, 9))


def test_a_spec_has_only_the_options_that_change_samples(arm):
    spec = loader_of(arm).spec
    for options in ({"batch_size": 5}, {"seed": 3}, {"shuffle": False}, {"memory": robocache.Memory(prefetch=0)}):
        assert loader_of(arm, **options).spec == spec
    normalization = Normalization(stats_of="dataset", min_spread=9)
    for other in ({"return_age": False}, {"snap_s": 2e-6}, {"normalization": normalization}):
        assert loader_of(arm, **other).spec != spec


def converting_loader(arm):
    steps = [robocache.actions.Relative("joints"), robocache.actions.Rescale(slice(0, 7), (-0.1, 1 / 3), (0, 1))]
    ahead = Window([0.0, 0.1], convert=steps, base=("joint", [6, 5, 4, 3, 2, 1, 0]), normalize="mean_std")
    normalization = Normalization(norm_stats={"ahead": {"mean": np.arange(7.0), "std": np.full(7, 0.3)}})
    source = Source(arm, rename={"other": "ahead"})
    return loader_of(source, delta_timestamps={"joint": None, "ahead": ahead}, normalization=normalization)


def test_conversions_are_part_of_a_spec(arm):
    loader = converting_loader(arm)
    spec = loader.spec
    ahead = spec.keys["ahead"]
    convert = ahead["convert"]
    assert (convert["base"], convert["base_features"]) == ("joint", [6, 5, 4, 3, 2, 1, 0])
    assert (convert["dtype"], convert["tolerance"]) == ("float64", 1e-3 + 2**-24)
    assert [step["step"] for step in convert["steps"]] == ["joints", "rescale"]
    assert comparable(convert["steps"][1]["from_last"]) == comparable(1 / 3)
    assert ahead["rows"]["affine"]["centre"] == list(range(7))
    assert Spec(spec.to_json()) == spec
    assert loader_of(arm).spec.keys["joint"]["convert"] is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("steps", 0, "speed"), 1, r"convert.steps\[0\].speed: no such field"),
        (("speed",), 1, r"convert.speed: no such field"),
        (("steps",), [], r"convert.steps: expected at least one"),
        (("steps", 0, "features"), [7], "convert.steps"),
        (("steps", 1, "end"), 2**32 + 5, r"convert.steps.*a range of features below 7, got one from"),
        (("steps", 0, "step"), "jump", r"steps\[0\].step: expected 'joints'"),
        (("base",), "none", r"convert.base: expected a key of the spec, got 'none'"),
        (("base_features",), [0], r"convert.base_features: expected 7 features of 'joint'"),
        (("base_features", 3), 7, r"convert.base_features: expected 7 features of 'joint'"),
        (("dtype",), "float16", "expected float32 or float64"),
        (("tolerance",), "nan", "a tolerance of 0 or more"),
    ],
)
def test_invalid_conversions_are_refused(arm, path, value, message):
    with pytest.raises(robocache.ArgumentError, match=message):
        Spec(change_spec(converting_loader(arm).spec, ("keys", 1, "convert", *path), value))


def test_each_source_of_a_mixture_has_its_own_spec(tmp_path):
    times = np.arange(30) * 10**8
    values = [np.arange(60, dtype=np.float32).reshape(30, 2) * scale for scale in (1, 4)]
    first_dataset = write(tmp_path / "a", [{"x": (times, values[0]), "y": (times, values[0])}])
    second_dataset = write(tmp_path / "b", [{"x": (times, values[1])}])
    windows = {"x": Window([0.0], normalize="min_max"), "y": [0.0]}
    loader = loader_of([Source(first_dataset), Source(second_dataset)], delta_timestamps=windows)
    with pytest.raises(robocache.ArgumentError, match=r"spec: .*2 sources.*spec_of\(source\)"):
        loader.save_spec(tmp_path / "spec.json")
    specs = [loader.spec_of(source) for source in range(2)]
    assert [json.loads(spec.to_json())["dataset_index"] for spec in specs] == [0, 1]
    spreads = [spec.keys["x"]["rows"]["affine"]["spread"] for spec in specs]
    assert spreads == [[29.0, 29.0], [116.0, 116.0]]
    assert specs[0].keys["y"]["rows"]["dtype"] == "float32"
    assert specs[1].keys["y"]["rows"] is None
    for source in (-1, 2):
        with pytest.raises(robocache.ArgumentError, match="source: expected"):
            loader.spec_of(source)


# ---- refusals ----


def change_spec(spec, path, value):
    """Returns the spec's JSON with another value at a path. None removes the field."""
    parsed = json.loads(spec.to_json())
    node = parsed
    for name in path[:-1]:
        node = node[name]
    if value is None:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return json.dumps(parsed)


JOINT, TOP = ("keys", 0), ("keys", 2)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 2, "version: expected 1, got 2, which a newer RoboCache wrote"),
        (("version",), None, "version: expected this field"),
        (("convert",), [], "convert: no such field"),
        ((*JOINT, "converts"), [], r"keys\[0\].converts: no such field"),
        ((*JOINT, "rows", "rate"), 3, r"keys\[0\].rows.rate: no such field"),
        ((*TOP, "images", "sharpen"), 3, r"keys\[2\].images.sharpen: no such option"),
        ((*JOINT, "offset_ns"), None, r"keys\[0\].offset_ns: expected this field"),
        ((*JOINT, "offset_ns"), 4e6, r"keys\[0\].offset_ns: expected a whole number"),
        ((*JOINT, "offset_ns"), 2**63, r"keys\[0\].offset_ns: expected a whole number of 64 bits"),
        ((*JOINT, "offset_ns"), 2**63 - 1, r"keys\['joint'\].offsets_ns: expected 64 bits together"),
        ((*JOINT, "max_gap_ns"), -1, r"keys\['joint'\].max_gap_ns: expected 0 or more"),
        ((*JOINT, "offsets_ns"), [], r"keys\['joint'\].offsets_ns: expected at least one"),
        ((*JOINT, "one_step"), True, r"keys\['joint'\].offsets_ns: expected one offset, got 3"),
        ((*JOINT, "key"), "ticks", "keys: expected each key once, got 'ticks' twice"),
        ((*JOINT, "shape"), [8], r"keys\['joint'\].rows.shape: expected \[8\] as in the batch, got \[7\]"),
        ((*JOINT, "dtype"), "int64", r"keys\['joint'\].rows.dtype"),
        ((*JOINT, "tolerance_ns"), 5, r"keys\['joint'\].rows.methods: tolerance_ns"),
        ((*JOINT, "rows", "methods"), [[0, 3, "linear"]], "expected methods for 7 features, got 3"),
        ((*JOINT, "rows", "methods"), [[0, 7, "slerp"]], "expected methods that fit the features, got 'slerp'"),
        ((*JOINT, "rows", "methods"), [[0, 7, "cubic"]], "expected methods that fit the features, got 'cubic'"),
        ((*JOINT, "rows", "names"), ["a"], r"rows.names: expected one for each of 7 features, got 1"),
        ((*JOINT, "rows", "codec"), "png", r"rows.codec: .*go with images"),
        ((*JOINT, "rows", "affine", "shift"), [0.0], r"affine.shift: expected a number for each feature, got 1"),
        ((*JOINT, "rows", "affine", "shift", 2), "nan", r"affine: expected finite"),
        ((*JOINT, "rows", "affine", "shift", 2), "inf", r"affine: expected finite"),
        ((*TOP, "rows", "codec"), "gif", r"keys\[2\].rows.codec"),
        ((*TOP, "rows", "shape"), [18, 26], r"rows.shape: expected \[height, width, channels\]"),
        ((*TOP, "shape"), [3, 10, 15], r"rows.shape: expected frames that become \[3, 10, 15\]"),
        ((*TOP, "images", "crop_at"), "middle", r"images.crop_at"),
        ((*TOP, "rows", "intrinsics"), [1.0], r"rows.intrinsics: expected 9"),
        (("keys",), [], "keys: expected at least one"),
        (("snap_ns",), -1, "snap_ns: expected 0 or more"),
    ],
)
def test_invalid_fields_are_refused_by_name(arm, tmp_path, path, value, message):
    text = change_spec(loader_of(arm).spec, path, value)
    with pytest.raises((robocache.ArgumentError, robocache.ArgumentTypeError), match=message):
        Spec(text)
    file = tmp_path / "spec.json"
    file.write_text(text)
    with pytest.raises(robocache.FileError, match=message) as error:
        Spec.load(file)
    assert str(error.value).startswith(str(file))


@pytest.mark.parametrize("text", ["", "[]", "null", '{"version": 1', "\x00", "{}"])
def test_files_that_are_no_spec_are_refused(tmp_path, text):
    file = tmp_path / "spec.json"
    file.write_text(text)
    with pytest.raises(robocache.FileError, match=r"spec\.json"):
        Spec.load(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(robocache.FileError, match=r"spec\.json"):
        Spec.load(file)
    with pytest.raises(robocache.FileError, match=r"none\.json"):
        Spec.load(tmp_path / "none.json")


def test_a_repeated_field_is_refused(arm):
    text = loader_of(arm).spec.to_json().replace('"offset_ns"', '"offset_ns": 1, "offset_ns"', 1)
    with pytest.raises(robocache.ArgumentError, match="expected each field once, got 'offset_ns' twice"):
        Spec(text)


def test_a_spec_that_cannot_be_written_leaves_the_old_file(arm, tmp_path, monkeypatch):
    spec = loader_of(arm).spec
    file = tmp_path / "spec.json"
    file.write_text("old")

    def raise_error(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", raise_error)
    with pytest.raises(robocache.FileError, match=r"spec.json.*No space left"):
        spec.save(file)
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["spec.json"]
