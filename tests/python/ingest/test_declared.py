"""Ingest notes or refuses a recording that declares other episodes, lengths or joints than ingest assumes."""

import h5py
import numpy as np
import pytest
from hdf5_files import encode_image, write_hdf5
from lerobot_files import Episode, write_lerobot
from outcomes import ingest_and_open, reasons
from robocache.ingest.declared import EpisodeFacts
from robocache.ingest.recording import Notes, Rows
from zarr_files import write_zarr

import robocache
from robocache import feature_names

ROWS = 40


def write_npz(folder, count=1, **arrays):
    folder.mkdir()
    for number in range(count):
        file_arrays = {name: values[number] if isinstance(values, list) else values for name, values in arrays.items()}
        rows = np.arange(ROWS * 2.0).reshape(ROWS, 2)
        np.savez(folder / f"e{number}.npz", state=rows, action=rows, **file_arrays)
    return folder


def ingest_npz(source, cache, **options):
    return robocache.ingest(source, cache, format="npz", rate_hz=10, **options)


def read_notes(report):
    return {what: reason for what, reason in reasons(report.assumed).items() if "rate" not in what}


def ingest_array(form, name, values, attributes, tmp_path):
    """Ingests an array with these attributes from HDF5 or zarr. Returns its stream and the report."""
    if form == "hdf5":
        stream = f"observations/{name}"
        datasets = {"action": np.zeros((len(values), 2)), stream: values}
        source = write_hdf5(tmp_path / "episode_0.hdf5", datasets, {stream: attributes})
    else:
        stream = name
        source = write_zarr(tmp_path / "z.zarr", {name: values}, attributes={f"data/{name}": attributes})
    report = robocache.ingest(source, tmp_path / "cache", rate_hz=10)
    return robocache.open(tmp_path / "cache")[stream], report


EPISODE_ENDS = np.arange(ROWS) % 20 == 19
STEP_COUNTS = np.r_[:25, :15]


@pytest.mark.parametrize(
    ("name", "values", "message_part"),
    [
        ("dones", EPISODE_ENDS, "set in 1 rows before others (row 19)"),
        ("timeouts", EPISODE_ENDS.astype("float32"), "set in 1 rows before others (row 19)"),
        ("is_first", np.arange(ROWS) % 10 == 0, "set in 3 rows behind the first (row 10)"),
        ("episode_index", np.arange(ROWS) // 10, "4 values, and changes first at row 10"),
        ("mask", np.arange(ROWS) < 30, "changes once, at row 30 of 40"),
        ("mask", 255 * (np.arange(ROWS) < 30), "changes once, at row 30 of 40"),
        ("pad_mask", np.arange(ROWS) < 30, "changes once, at row 30 of 40"),
        ("action_is_pad", np.arange(ROWS) >= 30, "changes once, at row 30 of 40"),
        ("attention_mask", np.arange(ROWS) < 30, "changes once, at row 30 of 40"),
        ("is_init", np.arange(ROWS) % 20 == 0, "set in 1 rows behind the first (row 20)"),
        ("traj_lengths", np.array([15, 25]), "tells of 2"),
        ("episode_ends", np.array([15, 40]), "tells of 2"),
        ("num_steps", 30, "says 30, but e0.npz has 40 rows"),
        *((name, 30, "says 30, but e0.npz has 40 rows") for name in ("seq_len", "valid_len", "T", "horizon", "length")),
        ("horizon", 16, "those behind are padding if it is a length and no setting of a policy or simulator"),
        ("num_valid_frames", 30.0, "says 30, but e0.npz has 40 rows"),
        *(
            (name, STEP_COUNTS, "begins again in 1 rows (row 25)")
            for name in ("step", "frame_index", "t", "env/timestep")
        ),
        ("frame_idx", STEP_COUNTS.astype("float32") + 1, "begins again in 1 rows (row 25)"),
        ("time", STEP_COUNTS / 10, "begins again in 1 rows (row 25)"),
        *(
            (name, np.arange(ROWS) // 10, "4 values, and changes first at row 10")
            for name in ("trial", "ep_idx", "demo_num")
        ),
        ("episode", np.repeat(["a", "b"], ROWS // 2), "2 values, and changes first at row 20"),
        ("starts", np.array([0, 15]), "tells of 2"),
        ("ep_start_idx", np.array([0, 15, 30]), "tells of 3"),
        ("ends", np.array([14, 39]), "tells of 2"),
        ("seq_lens", np.array([10, 10, 20]), "tells of 3"),
    ],
)
def test_declared_episodes_and_lengths_are_noted(name, values, message_part, tmp_path):
    report = ingest_npz(write_npz(tmp_path / "s", **{name: values}), tmp_path / "cache")
    ((what, reason),) = read_notes(report).items()
    assert repr(name) in what and message_part in reason


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("dones", np.arange(ROWS) >= 30),  # done stays set
        ("is_first", np.arange(ROWS) == 0),
        ("episode_index", np.full(ROWS, 3)),
        ("mask", np.ones(ROWS)),
        ("mask", EPISODE_ENDS),  # no episode ends early
        ("episode_id", np.random.default_rng(0).integers(0, 9, ROWS)),  # not consecutive
        ("lengths", np.array([15, 26])),
        ("num_steps", ROWS),
        ("horizon", 100),
        ("step", np.arange(ROWS) + 7),
        ("step", np.arange(ROWS) % 2),  # a flag
        ("counter", (np.arange(ROWS, dtype=np.uint8) + 240)),  # wraps at eight bits
        ("index", np.random.default_rng(0).integers(0, 9, ROWS)),
        ("starts", np.array([1, 15])),
    ],
)
def test_agreeing_declarations_have_no_note(name, values, tmp_path):
    assert not read_notes(ingest_npz(write_npz(tmp_path / "s", **{name: values}), tmp_path / "cache"))


def test_columns_of_a_log_declare_episodes(tmp_path):
    lines = [f"{k / 10},{'ab'[k // 20]},{int(k % 20 == 19)},{k}" for k in range(ROWS)]
    (tmp_path / "log.csv").write_text("\n".join(["time_s,episode,done,x", *lines, ""]))
    notes = read_notes(robocache.ingest(tmp_path / "log.csv", tmp_path / "cache"))
    assert "2 values, and changes first at row 20" in notes["episodes of 'log.episode'"]
    assert "set in 1 rows before others (row 19)" in notes["episodes of 'done'"]


@pytest.mark.parametrize("second", [["b", "a"], ["a", "c"]])
def test_other_joints_in_a_later_file_are_refused_or_skipped(second, tmp_path):
    source = write_npz(tmp_path / "s", 2, joint_names=[np.array(["a", "b"]), np.array(second)])
    with pytest.raises(robocache.FileError, match=r"e1.npz: joint_names is .*, but \['a', 'b'\] in the recordings"):
        ingest_npz(source, tmp_path / "cache")
    report = ingest_npz(source, tmp_path / "cache", on_error="skip")
    assert (report.episodes, len(report.skipped)) == (1, 1)


def test_other_joints_in_a_later_demo_are_refused(tmp_path):
    demos = {"data/demo_0": ["a", "b"], "data/demo_1": ["b", "a"]}
    datasets = {f"{demo}/{name}": np.zeros((5, 2)) for demo in demos for name in ("actions", "obs/joint_pos")}
    write_hdf5(tmp_path / "d.hdf5", datasets, {demo: {"joint_names": names} for demo, names in demos.items()})
    with pytest.raises(robocache.FileError, match="demo_1: joint_names is"):
        robocache.ingest(tmp_path / "d.hdf5", tmp_path / "cache", rate_hz=10)


@pytest.mark.parametrize("column", ["joint_names", "body_names", "joint_order"])
def test_other_joints_in_an_appended_source_are_refused(column, tmp_path):
    for folder, names in (("a", ["a", "b"]), ("b", ["b", "a"])):
        write_npz(tmp_path / folder, **{column: np.array(names)})
    ingest_npz(tmp_path / "a", tmp_path / "cache")
    with pytest.raises(robocache.FileError, match=f"{column} is .*'b', 'a'"):
        ingest_npz(tmp_path / "b", tmp_path / "cache", append=True)
    assert len(robocache.open(tmp_path / "cache").episodes) == 1


def test_other_objects_in_a_later_file_are_accepted(tmp_path):
    source = write_npz(tmp_path / "s", 2, object_names=[np.array(["cup", "box"]), np.array(["box", "cup"])])
    assert ingest_npz(source, tmp_path / "cache").episodes == 2


# ---- stamps beside a rate ----

STAMPS = np.arange(ROWS) / 10.0


def write_with_stamps(folder, form, name, stamps, fps):
    """Writes a recording with a declared rate and stamps."""
    rows = np.zeros((ROWS, 2))
    if form == "npz":
        folder.mkdir()
        np.savez(folder / "e.npz", state=rows, action=rows, fps=fps, **{name: stamps})
    elif form == "aloha":
        datasets = {"observations/qpos": rows, "action": rows, f"observations/{name}": stamps}
        write_hdf5(folder / "episode_0.hdf5", datasets, {"/": {"control_freq": fps}})
    elif form == "robomimic":
        datasets = {"data/demo_0/actions": rows, f"data/demo_0/obs/{name}": stamps}
        write_hdf5(folder / "d.hdf5", datasets, {"data": {"fps": fps}})
    else:
        write_zarr(folder / "z.zarr", {"state": rows + 1, name: 1 + stamps}, attributes={"": {"fps": fps}})
    return folder


@pytest.mark.parametrize("form", ["npz", "aloha", "robomimic", "zarr"])
@pytest.mark.parametrize(
    ("name", "stamps"),
    [
        ("timestamps", STAMPS),
        ("timestamp_ms", (1000 * STAMPS).astype(np.int64)),
        ("time", (1e9 * STAMPS).astype(np.int64) + 1_700_000_000_000_000_000),
        ("sim_time", STAMPS.astype(np.float32)[:, None]),
        ("t", STAMPS),
    ],
)
def test_a_rate_that_stamps_contradict_is_refused_or_noted(form, name, stamps, tmp_path):
    source = write_with_stamps(tmp_path / "s", form, name, stamps, 25)
    with pytest.raises(robocache.FileError, match=rf"10 rows a second by '.*{name}'.*25 by the rate.*rate-hz"):
        robocache.ingest(source, tmp_path / "cache")
    report = robocache.ingest(source, tmp_path / "cache", rate_hz=25)
    assert [note.reason for note in report.assumed if "clock beside" in note.what]
    near_source = write_with_stamps(tmp_path / "near", form, name, stamps, 11)
    report = robocache.ingest(near_source, tmp_path / "cache2")
    (reason,) = [note.reason for note in report.assumed if "clock beside" in note.what]
    assert "10 rows a second" in reason and "11 by the rate" in reason


@pytest.mark.parametrize(
    ("name", "stamps"),
    [
        ("timestamps", STAMPS + np.random.default_rng(0).normal(0, 1e-3, ROWS)),
        ("timestamp", np.arange(ROWS)),  # counts rows
        ("t", 2 * np.arange(ROWS)),  # counts steps
        ("time_of_day", STAMPS * 7),
    ],
)
def test_stamps_that_agree_with_the_rate_have_no_note(name, stamps, tmp_path):
    report = robocache.ingest(write_with_stamps(tmp_path / "s", "npz", name, stamps, 10), tmp_path / "cache")
    assert not read_notes(report)


def test_stamps_with_a_pause_are_noted(tmp_path):
    stamps = STAMPS + 9.0 * (np.arange(ROWS) > 20)
    report = robocache.ingest(write_with_stamps(tmp_path / "s", "npz", "timestamps", stamps, 10), tmp_path / "cache")
    assert "mean 3.023" in read_notes(report)["clock beside 'timestamps'"]


# ---- names of features ----


def write_aloha(path, names, holder="file", attribute="joint_names", count=2):
    """Writes ALOHA's layout. The names are an attribute of the file, a group or the dataset, or a dataset."""
    qpos, zeros = np.arange(10.0 * count).reshape(10, count), np.zeros((10, count))
    datasets = {"observations/qpos": qpos, "observations/eef_pose": zeros, "action": zeros}
    attributes = {"/": {"fps": 50}, "observations": {}, "observations/qpos": {}}
    if holder == "a dataset beside":
        datasets[attribute] = names
    else:
        attributes[{"file": "/", "group": "observations", "dataset": "observations/qpos"}[holder]][attribute] = names
    return write_hdf5(path, datasets, attributes)


TEXTS = [
    ["a", "b"],
    np.array([b"a", b"b"]),
    "a,b",
    "a, b",
    "a b",
    '["a", "b"]',
    "('a', 'b')",
    "a|b",
    np.array(["a,b"], "O"),
]


@pytest.mark.parametrize("names", TEXTS, ids=map(str, range(len(TEXTS))))
@pytest.mark.parametrize("holder", ["file", "group", "dataset", "a dataset beside"])
def test_names_in_attributes_become_feature_names(holder, names, tmp_path):
    streams = ingest_and_open(write_aloha(tmp_path / "episode_0.hdf5", names, holder), tmp_path / "cache")[0].streams
    assert streams["observations/qpos"].names == ["a", "b"]
    assert streams["observations/eef_pose"].names == []


@pytest.mark.parametrize(
    "attribute",
    ["labels", "names", "columns", "keys", "fields", "joints", "motor_names", "qpos_names", "Feature_Names"],
)
def test_other_attributes_with_names(attribute, tmp_path):
    source = write_aloha(tmp_path / "episode_0.hdf5", ["a", "b"], "file", attribute)
    report = robocache.ingest(source, tmp_path / "cache")
    assert robocache.open(tmp_path / "cache")["observations/qpos"].names == ["a", "b"]
    assert any("observations/qpos" in note.streams for note in report.assumed if repr(attribute) in note.what)


@pytest.mark.parametrize("holder", ["file", "group", "dataset"])
@pytest.mark.parametrize("attribute", ["joint_names", "labels"])
@pytest.mark.parametrize("names", [(["a", "b"], ["b", "a"]), ("a,b", "b,a")])
@pytest.mark.parametrize("append", [False, True])
def test_files_with_differently_ordered_names_are_refused(append, names, attribute, holder, tmp_path):
    for number, file_names in enumerate(names):
        write_aloha(tmp_path / f"s{number * append}/episode_{number}.hdf5", file_names, holder, attribute)
    with pytest.raises(robocache.Error, match=r"episode_1.hdf5|expected the names that it has"):
        robocache.ingest(tmp_path / "s0", tmp_path / "cache")
        assert append  # otherwise both files are in s0, and ingest has raised
        robocache.ingest(tmp_path / "s1", tmp_path / "cache", append=True)


@pytest.mark.parametrize("first", [0, 1])
def test_files_with_and_without_names_go_together(first, tmp_path):
    write_aloha(tmp_path / f"s/episode_{first}.hdf5", ["a", "b"])
    write_aloha(tmp_path / f"s/episode_{1 - first}.hdf5", ["x"])
    report = robocache.ingest(tmp_path / "s", tmp_path / "cache", format="aloha")
    assert report.episodes == 2
    assert robocache.open(tmp_path / "cache")["observations/qpos"].names == (["a", "b"] if first == 0 else [])
    assert bool(first) == any("names of its features" in note.what for note in report.left_out)


def test_names_of_components_declare_a_rotation(tmp_path):
    source = write_aloha(tmp_path / "episode_0.hdf5", "x y z qx qy qz qw", "dataset", "columns", 7)
    assert ingest_and_open(source, tmp_path / "cache")[0]["observations/qpos"].attributes["methods"] == [
        [3, 7, "slerp"]
    ]


@pytest.mark.parametrize("names", ["a,b", np.array(["a b"]), np.array(["a", "b"])])
def test_npz_names_its_features(names, tmp_path):
    ingest_npz(write_npz(tmp_path / "s", labels=names), tmp_path / "cache")
    assert robocache.open(tmp_path / "cache")["state"].names == ["a", "b"]


@pytest.mark.parametrize("key", ["", "data", "data/state"])
def test_zarr_names_its_features(key, tmp_path):
    attributes = {"joint_names": "a b", "units": "deg", "note": "x"}
    write_zarr(tmp_path / "z.zarr", {"state": np.ones((10, 2))}, [5, 10], {key: attributes})
    stream = ingest_and_open(tmp_path / "z.zarr", tmp_path / "cache", rate_hz=10)[0]["state"]
    assert stream.names == ["a", "b"]
    assert (stream.attributes.get("units") == "deg") == ("state" in key)


@pytest.mark.parametrize("attribute", ["name", "label", "order", "task", "object_names", "state_name"])
def test_texts_about_other_things_are_no_feature_names(attribute, tmp_path):
    """For example, an episode's name has two words, and the state has two features."""
    source = write_npz(tmp_path / "s", 2, **{attribute: [np.array("run 1"), np.array("1 run")]})
    ingest_npz(source, tmp_path / "cache")
    dataset = robocache.open(tmp_path / "cache")
    assert dataset["state"].names == []
    robocache.Loader(dataset, delta_timestamps={"state": None}, batch_size=4)


def test_an_excluded_column_gives_no_feature_names(tmp_path):
    source = write_npz(tmp_path / "s", 2, joint_names=[np.array(["a", "b"]), np.array(["b", "a"])])
    ingest_npz(source, tmp_path / "cache", mapping={"episodes": {"exclude": ["joint_names"]}})
    assert robocache.open(tmp_path / "cache")["state"].names == []


def test_differently_ordered_joints_in_another_shard_are_refused(tmp_path):
    source = write_npz(tmp_path / "s", 2, joint_names=[np.array(["a", "b", "c"]), np.array(["c", "b", "a"])])
    with pytest.raises(robocache.FileError, match=r"e1.npz: joint_names is"):
        ingest_npz(source, tmp_path / "cache", workers=2)


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize(
    ("attribute", "values"),
    [
        ("units", ("rad", "deg")),
        ("angle_unit", ("rad", "deg")),
        ("angleUnit", ("rad", "deg")),
        ("use_degrees", (False, True)),
        ("use_degrees", (0, 1)),
        ("useDegrees", ("false", "True")),
        ("meta", ('{"unit": "rad"}', '{"unit": "degrees"}')),
    ],
)
def test_another_unit_than_before_is_refused(attribute, values, append, tmp_path):
    for number, value in enumerate(values):
        (tmp_path / f"s{number * append}").mkdir(exist_ok=True)
        rows = np.zeros((ROWS, 2))
        np.savez(
            tmp_path / f"s{number * append}/e{number}.npz", state=rows, action=rows, **{attribute: np.array(value)}
        )
    with pytest.raises(robocache.FileError, match=r"e1.npz: .*'deg', but 'rad' in"):
        ingest_npz(tmp_path / "s0", tmp_path / "cache")
        assert append  # otherwise both files are in s0, and ingest has raised
        ingest_npz(tmp_path / "s1", tmp_path / "cache", append=True)


@pytest.mark.parametrize("holder", ["dataset", "file"])
def test_units_of_hdf5_become_attributes_and_others_are_refused(holder, tmp_path):
    for number, unit in enumerate(("rad", "deg")):
        write_aloha(tmp_path / f"s{number}/episode_0.hdf5", unit, holder, "units")
    attributes = ingest_and_open(tmp_path / "s0", tmp_path / "cache")[0]["observations/qpos"].attributes
    assert attributes == ({"units": "rad"} if holder == "dataset" else {})
    with pytest.raises(robocache.Error, match="rad"):
        robocache.ingest(tmp_path / "s1", tmp_path / "cache", append=True)


@pytest.mark.parametrize("form", ["hdf5", "zarr"])
@pytest.mark.parametrize(
    ("name", "value", "units"),
    [
        ("Units", "deg", "deg"),
        ("UNIT", "rad", "rad"),
        ("angle_unit", "deg", None),
        ("units", ["m", "s"], None),
        ("joint_names", ["a", "b"], None),
    ],
)
def test_units_and_names_in_attributes_are_used_or_noted(name, value, units, form, tmp_path):
    stream, report = ingest_array(form, "qpos", np.ones((3, 6)), {name: value}, tmp_path)
    assert stream.attributes.get("units") == units
    assert (f"{stream.name}: attribute {name}" in reasons(report.left_out)) == (units is None)


@pytest.mark.parametrize("own_units", [{}, {"units": "rad"}])
def test_units_of_a_group_are_noted_unless_its_streams_have_their_own(own_units, tmp_path):
    datasets = {"action": np.zeros((3, 2)), "observations/qpos": np.zeros((3, 6))}
    attributes = {"observations": {"joint_units": "rad"}, "observations/qpos": own_units}
    source = write_hdf5(tmp_path / "episode_0.hdf5", datasets, attributes)
    report = robocache.ingest(source, tmp_path / "cache", rate_hz=10)
    assert ("attribute joint_units of a group" in reasons(report.left_out)) == (not own_units)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("append", [False, True])
def test_files_with_and_without_units_go_together(append, first, tmp_path):
    for number, word in enumerate(("units", "note") if first == 0 else ("note", "units")):
        write_aloha(tmp_path / f"s{number * append}/episode_{number}.hdf5", "rad", "dataset", word)
    report = robocache.ingest(tmp_path / "s0", tmp_path / "cache")
    if append:
        report = robocache.ingest(tmp_path / "s1", tmp_path / "cache", append=True)
    dataset = robocache.open(tmp_path / "cache")
    assert len(dataset.episodes) == 2
    assert dataset["observations/qpos"].attributes == ({"units": "rad"} if first == 0 else {})
    assert bool(first) == any("its units" in note.what for note in report.left_out)
    assert (first == 0) == any("declare none: taken as rad" in note.reason for note in report.assumed)


def test_a_rate_in_a_column_that_no_stream_has_is_noted():
    notes = Notes("csv", {}, "stop")
    for fps in (10, 30):
        facts = EpisodeFacts("a", notes)
        facts.see("arm", Rows(np.arange(5) * 10**8, np.zeros((5, 1))))
        facts.see("counted", Rows(np.arange(5) * 10**7, np.zeros((5, 1)), clock="nominal"))
        facts.say({"fps": fps, "frequency of what": 3, "ends": []}, "a", None)
    assert [(note.what, note.reason) for note in notes.assumed] == [
        ("rate by column fps", "30, but no stream comes at it; the nearest, arm, has 10 rows a second (median)")
    ]


# ---- packed numbers, colours, dimensions ----


@pytest.mark.parametrize(
    "attributes",
    [
        {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -999},
        {"_FillValue": -999},
        {"missing_value": -999},
        {"missing_value": [-1, -999]},
        {"valid_min": 0},
        {"valid_range": [-998, 500], "_FillValue": 7},
        {"scale_factor": 0.5, "add_offset": 10.0, "valid_range": [-998, 500]},
        {"scale_factor": 0.5, "add_offset": 10.0, "valid_min": -489.0},  # a float limit applies to the scaled value
    ],
)
@pytest.mark.parametrize("form", ["hdf5", "zarr"])
def test_scale_and_offset_attributes_are_applied(form, attributes, tmp_path):
    """The CF conventions: stored * scale_factor + add_offset; NaN for fill values and beyond the limits."""
    stored = np.array([[100, 200], [-999, 300], [400, 500]], np.int16)
    stream, _ = ingest_array(form, "qpos", stored, attributes, tmp_path)
    is_scaled = "scale_factor" in attributes
    expected = np.where(stored == -999, np.nan, stored * 0.5 + 10 if is_scaled else stored)
    np.testing.assert_array_equal(stream.values, expected)
    # Integers are held between rows, although NaN needs floats.
    assert stream.attributes.get("methods") == (None if is_scaled else [[0, 2, "previous"]])


@pytest.mark.parametrize(
    ("stored", "attributes", "expected"),
    [
        (np.int16([[1, 2]]), {"scale_factor": [0.1, 0.2]}, "a number, got [0.1, 0.2]"),
        (np.int16([[1, 2]]), {"add_offset": "0.5"}, "a number, got '0.5'"),
        (np.int16([[1, 2]]), {"_FillValue": [1, 2]}, "a number, got [1, 2]"),
        (np.int16([[1, 2]]), {"missing_value": "NA"}, "numbers, got 'NA'"),
        (np.int16([[1, 2]]), {"valid_range": 7}, "two numbers, got 7"),
        (np.full((1, 40, 40, 3), 7, np.uint8), {"scale_factor": 0.5}, "not applied to images of 8 bits"),
        (np.bool_([[True, False]]), {"scale_factor": 0.5}, "not applied to bool"),
    ],
)
@pytest.mark.parametrize("form", ["hdf5", "zarr"])
def test_scales_and_fill_values_that_are_not_applied_are_named(form, stored, attributes, expected, tmp_path):
    stream, report = ingest_array(form, "qpos", stored, attributes, tmp_path)
    assert stream.dtype == stored.dtype
    ((name, reason),) = [item for item in reasons(report.left_out).items() if next(iter(attributes)) in item[0]]
    assert name.startswith(stream.name) and expected in reason


@pytest.mark.parametrize("form", ["hdf5", "zarr"])
def test_a_scale_may_lead_beyond_float16(form, tmp_path):
    stream, _ = ingest_array(
        form, "qpos", np.float16([[60000], [-1]]), {"scale_factor": 2.0, "_FillValue": -1.0}, tmp_path
    )
    np.testing.assert_array_equal(stream.values, [[120000], [np.nan]])


def test_the_scale_of_ragged_rows_and_columns_is_applied(tmp_path):
    scale = {"scale_factor": 0.5, "add_offset": 1.0, "_FillValue": np.int16(-1), "units": "m"}
    file = write_hdf5(
        tmp_path / "episode_0.hdf5",
        {"action": np.zeros((6, 2)), "gains": np.int16([4, 6]), "mass": np.int16(8), "lost": np.int16(-1)},
        dict.fromkeys(("gains", "mass", "lost"), scale),
    )
    rows = [[2, 4, -1], [], [6], [], [], []]
    with h5py.File(file, "a") as opened:
        lists = opened.create_dataset("observations/contacts", (6,), h5py.vlen_dtype(np.int16))
        lists.attrs.update(scale)
        for number, row in enumerate(rows):
            lists[number] = np.array(row, np.int16)
    dataset, _ = ingest_and_open(file, tmp_path / "cache", rate_hz=10)
    stream = dataset["observations/contacts"]
    np.testing.assert_array_equal(stream.values, [2, 3, np.nan, 4])
    assert stream.offsets.tolist() == [0, 3, 3, 4, 4, 4, 4] and stream.attributes == {"units": "m"}
    (columns,) = dataset.episodes.to_pylist()
    assert (columns["gains"], columns["mass"], columns.get("lost")) == ([3, 4], 5, None)


@pytest.mark.parametrize(
    ("stored", "attributes", "expected"),
    [
        *(
            (np.array([0, 127, -128, -1], np.int8), attributes, expected)
            for attributes, expected in (
                ({}, [0, 127, 128, 255]),
                ({"_FillValue": -1}, [0, 127, 128, np.nan]),
                ({"scale_factor": 0.5}, [0, 63.5, 64, 127.5]),
                ({"valid_max": 200}, [0, 127, 128, np.nan]),
            )
        ),
        (np.array([-2, 300], ">i2"), {}, [65534, 300]),
    ],
)
@pytest.mark.parametrize("form", ["hdf5", "zarr"])
def test_signed_integers_that_are_declared_unsigned(form, stored, attributes, expected, tmp_path):
    """netCDF's convention: -1 of 8 bits is 255, also as a fill value."""
    stream, _ = ingest_array(form, "qpos", stored, {"_Unsigned": "true", **attributes}, tmp_path)
    np.testing.assert_array_equal(stream.values, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.float32])
@pytest.mark.parametrize("form", ["hdf5", "zarr"])
def test_values_with_declared_meanings_are_held_and_keep_their_words(form, dtype, tmp_path):
    """The CF conventions' flags: between OK and ERROR there is no WARNING."""
    attributes = {"flag_values": [0, 1, 2], "flag_meanings": "OK WARNING ERROR"}
    stream, report = ingest_array(form, "qpos", np.array([0, 2, 1], dtype), attributes, tmp_path)
    assert stream.attributes["words"] == {"OK": 0, "WARNING": 1, "ERROR": 2}
    assert stream.attributes.get("methods") == (None if dtype is np.int8 else [[0, 1, "previous"]])
    assert not any("flag" in note.reason for note in report.left_out)


@pytest.mark.parametrize(
    "attributes",
    [
        {"flag_values": [0, 1, 2], "flag_meanings": "OK WARNING"},
        {"flag_values": [0, 1, 2], "flag_meanings": "OK OK WARNING"},
        {"flag_values": [0, 0.5, np.inf], "flag_meanings": "OK WARNING ERROR"},
        {"flag_meanings": "OK WARNING ERROR"},
    ],
)
@pytest.mark.parametrize("form", ["hdf5", "zarr"])
def test_meanings_that_do_not_match_their_values_are_named(form, attributes, tmp_path):
    stream, report = ingest_array(form, "qpos", np.array([0, 2, 1], np.float32), attributes, tmp_path)
    assert "words" not in stream.attributes and stream.attributes["methods"] == [[0, 1, "previous"]]
    assert any("a word for each whole number" in note.reason for note in report.left_out)


def test_matlabs_order_of_dimensions_is_noted(tmp_path):
    """MATLAB's .mat files of version 7.3 are HDF5 with reversed dimensions: [steps, features] is stored as [features, steps]."""
    datasets = dict.fromkeys(("action", "observations/qpos"), np.zeros((14, 50)))
    write_hdf5(tmp_path / "episode_0.hdf5", datasets, {"action": {"MATLAB_class": np.bytes_("double")}})
    report = robocache.ingest(tmp_path, tmp_path / "cache", rate_hz=10)
    assert [(note.what, note.streams) for note in report.assumed] == [("steps of action", ["action"])]


@pytest.mark.parametrize("attribute", ["_FillValue", "scale_factor"])
def test_declarations_of_the_second_recording_alone_are_applied_or_noted(attribute, tmp_path):
    """A fill value leaves the modes held between rows, as integers are. Numbers with two scales are noted."""
    stored = [np.array([[1, 5], [3, 9], [1, 5]], np.int16), np.array([[2, -999], [4, 6], [2, 8]], np.int16)]
    declared = {attribute: {"_FillValue": -999, "scale_factor": 0.5}[attribute]}
    for number, (values, attributes) in enumerate(zip(stored, ({}, declared), strict=True)):
        datasets = {"action": np.zeros((3, 2)), "observations/mode": values}
        write_hdf5(tmp_path / f"episode_{number}.hdf5", datasets, {"observations/mode": attributes})
    report = robocache.ingest(tmp_path, tmp_path / "cache", rate_hz=10)
    stream = robocache.open(tmp_path / "cache")["observations/mode"]
    value_reasons = [note.reason for note in report.assumed if note.what == "values of observations/mode"]
    if attribute == "scale_factor":
        assert any("none in others, whose numbers are kept as they are stored" in reason for reason in value_reasons)
        return
    expected = np.concatenate(stored).astype(float)
    expected[3, 1] = np.nan
    np.testing.assert_array_equal(stream.values, expected)
    assert stream.attributes["methods"] == [[0, 2, "previous"]]
    assert value_reasons == ["_FillValue -999: NaN, so float64"]
    assert not any("its methods" in note.what for note in report.left_out)


@pytest.mark.parametrize("second", ["same", "without", "other"])
def test_the_words_of_an_enumeration_are_kept(second, tmp_path):
    words = {"OPEN": 0, "CLOSED": 1}
    types = {"same": words, "without": None, "other": {"CLOSED": 0, "OPEN": 1}}
    for number, enumeration in enumerate((words, types[second])):
        dtype = np.dtype(np.uint8) if enumeration is None else h5py.enum_dtype(enumeration, basetype=np.uint8)
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["action"] = np.zeros((3, 2))
            file.create_dataset("observations/gripper", data=np.array([0, 1, 0], np.uint8), dtype=dtype)
            lists = file.create_dataset("observations/lists", (3,), h5py.vlen_dtype(dtype))
            lists[0] = np.array([1, 0], np.uint8)
            file.create_dataset("first", data=np.uint8(1), dtype=dtype)
            file.attrs.create("last", np.uint8(0), dtype=dtype)
    if second == "other":
        with pytest.raises(
            robocache.Error, match=r"'observations/gripper'.*OPEN.*but in .*episode_0[.]hdf5 attributes"
        ):
            robocache.ingest(tmp_path, tmp_path / "cache", rate_hz=10)
        return
    report = robocache.ingest(tmp_path, tmp_path / "cache", rate_hz=10)
    stream = robocache.open(tmp_path / "cache")["observations/gripper"]
    assert robocache.open(tmp_path / "cache")["observations/lists"].attributes == {"words": words}
    assert stream.attributes == {"words": words} and stream.values.reshape(-1).tolist() == [0, 1, 0] * 2
    assert any("its words" in note.what for note in report.assumed) == (second == "without")
    left_out = reasons(report.left_out)
    assert left_out["first: words"] == left_out["attribute last: words"] == "its number is kept: 0 OPEN, 1 CLOSED"


def test_integers_beyond_float64_are_refused_with_a_fill_value(tmp_path):
    with pytest.raises(robocache.FileError, match="observations/serial: expected whole numbers that float64 holds"):
        ingest_array("hdf5", "serial", np.arange(3) + 2**53 + 1, {"_FillValue": -1}, tmp_path)


@pytest.mark.parametrize("holder", ["/", "observations", "observations/images/top"])
@pytest.mark.parametrize("attribute", ["encoding", "color_space", "channel_order", "image_format"])
def test_pictures_declared_bgr_are_noted(attribute, holder, rng, tmp_path):
    pixels = rng.integers(0, 255, (3, 32, 32, 3), np.uint8)
    datasets = {"action": np.zeros((3, 2)), "observations/images/top": pixels}
    source = write_hdf5(tmp_path / "episode_0.hdf5", datasets, {holder: {attribute: "BGR8"}})
    report = robocache.ingest(source, tmp_path / "cache", rate_hz=10)
    (note,) = [note for note in report.assumed if attribute in note.what]
    assert note.streams == ["observations/images/top"] and 'channels = "bgr"' in note.reason


@pytest.mark.parametrize("form", ["hdf5", "zarr"])
@pytest.mark.parametrize(
    ("attribute", "is_noted"),
    [
        *((attribute, True) for attribute in ("HSV", "ycrcb", "yuv444", "CIE Lab", "WHC")),
        *((attribute, False) for attribute in ("rgb8", "HWC", "label", "jpeg")),
    ],
)
def test_pictures_declared_in_another_colour_space_are_noted(attribute, is_noted, form, tmp_path):
    word = {"hdf5": "encoding", "zarr": "layout"}[form]
    _, report = ingest_array(form, "top", np.zeros((3, 32, 32, 3), np.uint8), {word: attribute}, tmp_path)
    assert is_noted == any(f"though it says {attribute!r}" in note.reason for note in report.assumed)


@pytest.mark.parametrize(
    ("shape", "is_noted"), [((4, 40, 3), True), ((3, 40), True), ((40, 4, 3), False), ((40, 3), False)]
)
def test_arrays_whose_second_dimension_may_be_steps_are_noted(shape, is_noted, tmp_path):
    (tmp_path / "s").mkdir()
    np.savez(tmp_path / "s/e.npz", fps=10, q=np.zeros(shape), v=np.zeros(shape))
    assert is_noted == bool(read_notes(robocache.ingest(tmp_path / "s", tmp_path / "cache")))


# ---- 16 bits ----


@pytest.mark.parametrize("form", ["npz", "hdf5"])
@pytest.mark.parametrize(
    ("name", "side", "kind", "message_part"),
    [
        ("depth", 8, "frames", "depth by its name, without a known unit"),
        ("ir_image", 40, "frames", "an image, not depth"),
        ("tactile", 8, "numbers", None),
        ("segmentation", 8, "frames", None),
    ],
)
def test_16_bit_arrays_are_depth_by_name_else_images_or_numbers(form, name, side, kind, message_part, rng, tmp_path):
    pixels, rows = rng.integers(0, 65535, (12, side, side, 1), np.uint16), np.zeros((12, 2))
    if form == "npz":
        np.savez(tmp_path / "e.npz", state=rows, action=rows, **{name: pixels})
        report = ingest_npz(tmp_path / "e.npz", tmp_path / "cache")
    else:
        datasets = {"data/demo_0/actions": rows, f"data/demo_0/obs/{name}": pixels}
        report = robocache.ingest(write_hdf5(tmp_path / "d.hdf5", datasets), tmp_path / "cache", rate_hz=10)
    dataset = robocache.open(tmp_path / "cache")
    (stream,) = [stream for stream in dataset.streams.values() if stream.name.endswith(name)]
    assert stream.kind == kind
    if kind == "numbers":
        np.testing.assert_array_equal(stream.values, pixels)
    stream_reasons = [note.reason for note in report.assumed if note.what == stream.name]
    assert len(stream_reasons) == (message_part is not None) and all(
        message_part in reason for reason in stream_reasons
    )


def test_signed_numbers_of_a_small_array_are_kept(rng, tmp_path):
    """The array is no depth, so negative numbers are accepted."""
    values = rng.integers(-500, 500, (12, 8, 8, 1), np.int16)
    datasets = {"data/demo_0/actions": np.zeros((12, 2)), "data/demo_0/obs/taxels": values}
    np.testing.assert_array_equal(
        ingest_and_open(write_hdf5(tmp_path / "d.hdf5", datasets), tmp_path / "cache", rate_hz=10)[0][
            "obs/taxels"
        ].values,
        values,
    )


# ---- a name with another meaning in another dataset ----


@pytest.mark.parametrize("in_degrees", [False, True])
def test_six_numbers_with_droids_name_are_angles_within_a_turn(in_degrees, tmp_path):
    angles = np.linspace(170.0, 190.0, 12) * (1 if in_degrees else np.pi / 180)
    pose = np.stack([angles] * 6, axis=1).astype(np.float32)
    name = "observation.state.cartesian_position"
    features = {name: {"dtype": "float32", "shape": [6], "names": None}}
    write_lerobot(tmp_path / "set", [Episode({name: pose})], features=features)
    report = robocache.ingest(tmp_path / "set", tmp_path / "cache")
    attributes = robocache.open(tmp_path / "cache")[name].attributes or {}
    assert attributes.get("methods") == (None if in_degrees else [[3, 6, "angle"]])
    (assumption,) = [note.reason for note in report.assumed if note.what == f"{name}: rotation"]
    assert ("values up to 190" in assumption) == in_degrees


@pytest.mark.parametrize("form", ["hdf5", "npz"])
@pytest.mark.parametrize("kind", ["GIF", "WebP", "TIFF", "BMP", "JPEG2000", "PNG", "JPEG"])
def test_picture_files_that_become_no_camera_are_noted(kind, form, tmp_path):
    rows = np.tile(np.frombuffer(encode_image(np.zeros((32, 32, 3), np.uint8), kind), np.uint8), (3, 1))
    if form == "hdf5":
        stream, report = ingest_array("hdf5", "images/top", rows, {}, tmp_path)
    else:
        np.savez(tmp_path / "a.npz", top=rows, state=np.zeros((3, 2)))
        report = ingest_npz(tmp_path / "a.npz", tmp_path / "cache")
        stream = robocache.open(tmp_path / "cache")["top"]
    is_noted = any(note.what == stream.name and "kept as bytes" in note.reason for note in report.assumed)
    is_camera = stream.kind == "frames"
    assert is_noted != is_camera and is_camera == (form == "hdf5" and kind in ("PNG", "JPEG"))
    assert not stream.attributes.get("methods")


# ---- words inside other words ----


def test_words_inside_other_words_declare_nothing():
    flags = {"is_degraded": True, "use_radar": True, "is_rad": False, "inDegrees": True}
    assert feature_names.units_in("units", flags) == {"units.is_rad": "deg", "units.inDegrees": "deg"}
    declared = {"obs_names": list("abc"), "action_names": list("def")}
    assert [
        feature_names.names_for(stream, (3,), declared) for stream in ("observation", "obs_buf", "action", "actions")
    ] == [*("obs_names", "obs_names", "action_names", "action_names")]
    assert {feature_names.names_for(stream, (3,), declared) for stream in ("obstacles", "reaction", "traction")} == {
        None
    }
    declared |= {"state_names": list("ghi"), "command_names": list("jkl")}
    assert [
        feature_names.names_for(stream, (3,), declared) for stream in ("stateVector", "commands", "robotstate")
    ] == [*("state_names", "command_names", "state_names")]
    others = ("statement", "stately", "actionable", "commander", "observatory")
    assert {feature_names.names_for(stream, (3,), declared) for stream in others} == {None}
