"""Mappings: choosing, renaming, slicing and describing streams."""

import io
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import outcomes
import pyarrow.parquet as pq
import pytest
from lerobot_files import Episode, write_lerobot
from PIL import Image
from robocache.cli import main
from robocache.ingest import preview
from robocache.ingest.mapping import load_mapping
from robocache.ingest.recording import Frames, Ragged, Recording, Rows, Texts

import robocache
from robocache import frames

VALUES = np.arange(24, dtype=np.float32).reshape(3, 8)
TIMES = np.arange(3, dtype=np.int64) * 50_000_000
IMAGES = np.arange(3, dtype=np.uint8)[:, None, None, None] * np.full((3, 4, 6, 3), 80, np.uint8)
ATTRIBUTES = {"units": list("ABCDEFGH"), "methods": [[1, 5, "angle"]], "frame_id": "base"}


def read(options, notes):
    notes.total = 2
    for number in range(2):
        streams = [
            ("state", Rows(TIMES, VALUES + number, list("abcdefgh"), attributes=ATTRIBUTES)),
            ("reward", Rows(TIMES, VALUES[:, 0])),
            ("top", Frames([(TIMES[:2], IMAGES[:2]), (TIMES[2:], IMAGES[2:])], codec="png")),
            ("task", Texts(TIMES[:1], ["pick"])),
            ("cloud", Ragged(TIMES, VALUES[:, :3], np.array([0, 1, 1, 3]))),
        ]
        yield Recording(f"episode {number}", "FILE", {"length": 3, "operator": "x"}, iter(streams))


def ingest_and_open(toy, tmp_path, mapping, **options):
    report = toy(read, mapping=mapping, overwrite=True, **options)
    return robocache.open(tmp_path / "cache"), report


SLICES = [
    {"name": "arm", "start": 0, "stop": 3, "units": "rad", "norm_group": "joints"},
    {"name": "hand", "start": 3, "stop": 7, "methods": "slerp"},
]


def test_slices_names_and_descriptions(toy, tmp_path):
    dataset, report = ingest_and_open(
        toy, tmp_path, {"streams": {"state": {"slices": SLICES}, "reward": {"name": "r"}}}
    )
    assert list(dataset.streams) == ["arm", "hand", "r", "top", "task", "cloud"]
    arm, hand = dataset.streams["arm"], dataset.streams["hand"]
    for episode in range(2):
        assert dataset.episode(episode)["arm"][1].tolist() == (VALUES + episode)[:, :3].tolist()
        assert dataset.episode(episode)["hand"][1].tolist() == (VALUES + episode)[:, 3:7].tolist()
    assert arm.time_ns.tolist() == [*TIMES, *TIMES]
    assert (list(arm.names), list(hand.names)) == (list("abc"), list("defg"))
    expected = {"frame_id": "base", "units": "rad", "norm_group": "joints", "methods": [[1, 3, "angle"]]}
    assert arm.attributes == expected
    assert hand.attributes == {"frame_id": "base", "units": list("DEFG"), "methods": [[0, 4, "slerp"]]}
    assert [(omission.what, omission.reason) for omission in report.left_out] == [
        ("state[7:8]", "in no slice of the mapping")
    ]
    assert dataset.provenance["mapping"]["streams"]["reward"] == {"name": "r"}


def test_a_stream_with_several_names(toy, tmp_path):
    dataset, _ = ingest_and_open(
        toy, tmp_path, {"streams": {"top": {"name": ["a", "b"]}, "reward": {"name": ["r", "reward"]}}}
    )
    for read_camera in "ab":
        assert dataset.streams[read_camera].values[:][:, 0, 0, 0].tolist() == [0, 80, 160] * 2
    assert dataset.streams["r"].values.tolist() == dataset.streams["reward"].values.tolist()


def test_streams_are_chosen_by_patterns(toy, tmp_path):
    dataset, report = ingest_and_open(toy, tmp_path, {"include": ["*a*", "t*"], "exclude": ["t[ao]?*", "cloud"]})
    assert list(dataset.streams) == ["state", "reward"]
    assert outcomes.reasons(report.left_out) == dict.fromkeys(["top", "task", "cloud"], "the mapping excludes it")


def test_a_mapping_that_excludes_all_is_named(toy):
    def read_with_a_note(options, notes):
        notes.leave_out("bag", "no messages")
        yield from read(options, notes)

    with pytest.raises(robocache.FileError, match="nothing to keep; state: the mapping excludes it"):
        toy(read_with_a_note, mapping={"exclude": ["*"]})


def test_columns_of_the_episodes(toy, tmp_path):
    columns = {"rename": {"length": "frames"}, "constants": {"robot": "gr1", "site": 4}, "exclude": ["operator"]}
    dataset, report = ingest_and_open(toy, tmp_path, {"episodes": columns})
    rows = dataset.episodes.to_pylist()
    assert [{key: row[key] for key in row if key[:2] not in ("ep", "st", "en")} for row in rows] == [
        {"frames": 3, "robot": "gr1", "site": 4}
    ] * 2
    assert [omission.what for omission in report.left_out] == ["episodes.operator"]


def test_methods_of_features(toy, tmp_path):
    methods = [[0, 2, "angle"], [2, 6, "slerp"], [7, 8, "previous"]]
    dataset, _ = ingest_and_open(toy, tmp_path, {"streams": {"state": {"methods": methods}}})
    assert dataset.streams["state"].attributes["methods"] == methods
    dataset, _ = ingest_and_open(toy, tmp_path, {"streams": {"state": {"methods": "nearest"}}})
    assert dataset.streams["state"].attributes["methods"] == [[0, 8, "nearest"]]
    dataset, _ = ingest_and_open(toy, tmp_path, {"streams": {"state": {"methods": [[0, 7, "pose"]]}}})
    assert dataset.streams["state"].attributes["methods"] == [[0, 7, "pose"]]


def test_offsets_use_the_new_names(toy, tmp_path):
    dataset, _ = ingest_and_open(toy, tmp_path, {"streams": {"reward": {"name": "r"}}}, offsets={"r": "0.25"})
    assert dataset.streams["r"].time_ns.tolist() == [*(TIMES + 250_000_000)] * 2


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"stream": {}}, "mapping: stream: expected one of episodes, exclude, include, streams"),
        ({"streams": {"state": {"nmae": "x"}}}, "mapping: streams.state: nmae: expected one of"),
        ({"streams": {"state": {"nmae": "x"}}}, "methods, name, norm_group, slices, units"),
        ({"streams": {"state": {"name": ""}}}, "streams.state: name: expected text"),
        ({"streams": {"state": {"name": []}}}, "streams.state: name: expected one at least; exclude leaves a stream out"),
        ({"streams": {"state": {"name": "a"}, "reward": {"name": "a"}}}, "the new name 'a' occurs twice"),
        ({"streams": {"state": {"methods": "linaer"}}}, "methods: expected one of linear, "),
        ({"streams": {"state": {"methods": [[0, 3, "slerp"]]}}}, "slerp takes 4 features, got 0 to 3"),
        ({"streams": {"state": {"slices": [{**SLICES[0], "methods": "pose"}]}}}, "pose takes 7 features, got 3"),
        ({"streams": {"state": {"methods": [[0, 3, "next"], [2, 4, "next"]]}}}, "next from 2 to 4 overlaps next from 0 to 3"),
        ({"streams": {"state": {"attributes": {"methods": [[1]]}}}}, "methods: expected [start, stop, method], got [1]"),
        ({"streams": {"state": {"slices": [{**SLICES[0], "attributes": {"methods": [["a", "b", "next"]]}}]}}}, "whole numbers"),
        ({"state": {"arm": {"start": 0, "end": 2, "methods": [[1]]}}}, "state.arm: methods: expected [start, stop, method]"),
        ({"streams": {"state": {"slices": []}}}, "slices: expected a list"),
        ({"streams": {"state": {"slices": [{"name": "a", "start": 0}]}}}, "slices[0]: expected stop too"),
        ({"streams": {"state": {"slices": [{"name": "a", "start": 3, "stop": 3}]}}}, "expected 0 <= start < stop"),
        ({"streams": {"state": {"slices": [{"name": "a", "start": -1, "stop": 3}]}}}, "expected 0 <= start < stop"),
        (
            {"streams": {"state": {"slices": [*SLICES, {"name": "x", "start": 6, "stop": 8}]}}},
            "x from 6 to 8 overlaps hand from 3 to 7",
        ),
        ({"streams": {"state": {"slices": [{**SLICES[0], "units": ["m"]}]}}}, "units: expected 3, got 1"),
        ({"streams": {"state": {"slices": [{**SLICES[0], "methods": "slerp"}]}}}, "slerp takes 4 features, got 3"),
        ({"streams": {"state": {}}, "exclude": ["st*"]}, "include and exclude leave this stream out"),
        ({"episodes": {"rename": {"length": "a"}, "constants": {"a": 1}}}, "the new name 'a' occurs twice"),
        ({"include": "state"}, "include: expected a list of text"),
        ({"streams": ["state"]}, "streams: expected a table"),
        ({"episodes": {"constants": {"when": object()}}}, "expected only values that JSON has"),
        (3, "mapping: expected a path or a dict, got 3"),
    ],
)  # fmt: skip
def test_invalid_mappings_are_refused_before_reading(mapping, message, toy, tmp_path):
    def must_not_be_read(options, notes):
        raise AssertionError

    with pytest.raises((robocache.ArgumentError, robocache.ArgumentTypeError)) as caught:
        toy(must_not_be_read, mapping=mapping)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"streams": {"state": {"slices": [{"name": "a", "start": 4, "stop": 9}]}}}, "a from 4 to 9, but a row has 8"),
        (
            {"streams": {"reward": {"slices": [{"name": "a", "start": 0, "stop": 1}]}}},
            "streams.reward: slices: expected",
        ),
        ({"streams": {"top": {"slices": [{"name": "a", "start": 0, "stop": 1}]}}}, "got frames"),
        ({"streams": {"state": {"methods": [[6, 9, "next"]]}}}, "next from 6 to 9, but there are 8"),
        ({"streams": {"task": {"methods": "next"}}}, "methods: expected numbers"),
        ({"streams": {"state": {"units": ["m"]}}}, "units: expected 8, got 1"),
        ({"streams": {"state": {"name": "reward"}}}, "'state' and 'reward' both have the new name 'reward'"),
        ({"streams": {"stat": {"name": "x"}}}, "streams.stat: no such stream among 'state', 'reward'"),
        ({"exclude": ["nothing*"]}, "'nothing*' matches no stream"),
        ({"include": ["nothing*"]}, "'nothing*' matches no stream"),
        ({"episodes": {"rename": {"lenght": "n"}}}, "no column 'lenght'"),
        ({"episodes": {"rename": {"length": "operator"}}}, "two columns have the new name 'operator'"),
    ],
)
def test_mappings_that_contradict_the_streams_end_the_ingest(mapping, message, toy, tmp_path):
    for on_error in ("stop", "skip"):
        with pytest.raises((robocache.FileError, robocache.ArgumentError)) as caught:
            toy(read, mapping=mapping, on_error=on_error)
        assert str(caught.value).startswith("mapping: ") and message in str(caught.value)
        assert not (tmp_path / "cache").exists()


def test_mapping_files_of_every_format(monkeypatch, tmp_path):
    expected = {"streams": {"a/b": {"name": "c", "methods": [[0, 2, "angle"]]}}, "exclude": ["x"]}
    (tmp_path / "m.json").write_text(json.dumps(expected))
    (tmp_path / "m.toml").write_text('exclude = ["x"]\n[streams."a/b"]\nname = "c"\nmethods = [[0, 2, "angle"]]\n')
    (tmp_path / "m.yaml").write_text("exclude: [x]\nstreams:\n  a/b: {name: c, methods: [[0, 2, angle]]}\n")
    assert load_mapping(tmp_path / "m.json").given == load_mapping(str(tmp_path / "m.toml")).given == expected
    assert load_mapping(tmp_path / "m.yaml").given == expected
    for text, message_part in {
        "a = ": "expected TOML",
        "a = 2020-01-01": "expected only values that JSON has",
        "\xff": "TOML",
    }.items():
        (tmp_path / "bad.toml").write_bytes(text.encode("latin-1"))
        with pytest.raises((robocache.FileError, robocache.ArgumentTypeError), match=message_part) as caught:
            load_mapping(tmp_path / "bad.toml")
        assert str(caught.value).startswith(str(tmp_path / "bad.toml"))
    for text in ("[]", "{", "[" * 100_000, '{"exclude": ["a"], "exclude": ["b"]}', '{"streams": {"a": {}, "a": {}}}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(robocache.FileError, match=r"bad\.json: expected"):
            load_mapping(tmp_path / "bad.json")
    for text, message_part in {
        "a: [": "bad.yml: ",
        "- a": "expected keys",
        "a: &b 1\nc: *b": "aliases",
        "a: 2020-01-01": "JSON",
    }.items():
        (tmp_path / "bad.yml").write_text(text)
        with pytest.raises((robocache.FileError, robocache.ArgumentTypeError), match=message_part) as caught:
            load_mapping(tmp_path / "bad.yml")
        assert str(caught.value).startswith(str(tmp_path / "bad.yml"))
    for name in ("none.toml", "none.yaml"):
        with pytest.raises(robocache.FileError, match=f"{name}: "):
            load_mapping(tmp_path / name)
    monkeypatch.setitem(sys.modules, "robocache.ingest.yaml", None)
    with pytest.raises(robocache.Error, match=r"m\.yaml: .*robocache\[yaml\]"):
        load_mapping(tmp_path / "m.yaml")


# ---- a draft, on the command line ----


def write_logs(folder):
    folder.mkdir()
    (folder / "imu.csv").write_text("t [s],x,y,z,w\n0.0,1,2,3,4\n0.1,2,3,4,5\n0.2,3,4,5,6\n")
    return folder


def test_a_dry_run_prints_an_identity_mapping(capsys, tmp_path):
    logs = write_logs(tmp_path / "it's logs")
    (logs / "note.csv").write_text("t [s],said\n0.0,go\n0.1,stop\n")
    assert main(["ingest", str(logs), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert '[streams."imu"]  # float64 [4], 10 Hz, recorded clock' in text
    assert '[streams."note.said"]  # text, recorded clock\n' in text  # text has no rate and no dtype
    assert ", 1 recording;" in text
    assert "shlex" not in text and "'\"'\"'s logs' CACHE" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it's logs"]
    (tmp_path / "m.toml").write_text(text)
    assert main(["ingest", str(logs), str(tmp_path / "a")]) == 0
    assert main(["ingest", str(logs), str(tmp_path / "b"), "--mapping", str(tmp_path / "m.toml")]) == 0
    capsys.readouterr()
    a, b = (robocache.open(tmp_path / cache).streams["imu"] for cache in "ab")
    assert (a.values.tolist(), a.names) == (b.values.tolist(), b.names)
    lines = text.replace('name = "imu"\n', "").replace("# slices", "slices").replace("imu.part", "imu.q").splitlines()
    (tmp_path / "m.toml").write_text("\n".join(lines))  # slices, as the comment in the draft says
    assert main(["ingest", str(logs), str(tmp_path / "c"), "--mapping", str(tmp_path / "m.toml")]) == 0
    assert list(robocache.open(tmp_path / "c").streams) == ["imu.q", "note.said"]


def test_a_draft_guesses_no_unit_and_repeats_none(toy, tmp_path):
    def read_hand_and_arm(options, notes):
        streams = [("hand", Rows(TIMES, VALUES)), ("arm", Rows(TIMES, VALUES, attributes=ATTRIBUTES))]
        yield Recording("only", "FILE", {}, iter(streams))

    toy(read_hand_and_arm)
    hand, arm = preview(tmp_path / "source.toy").mapping.split("[streams.")[1:]
    assert '# units = ""  # such as' in hand and '# methods = [[0, 8, "linear"]]' in hand and '= "rad"' not in hand
    assert 'units = ["A", ' in arm and arm.count("units =") == arm.count("methods =") == 1


def test_a_dry_run_with_any_letters_is_toml(capsys, tmp_path):
    (tmp_path / "\x85\u202elogs").mkdir()
    (tmp_path / "\x85\u202elogs/rob\U0001f916t\x9b.csv").write_text("t_s,ä\x7f\U0001f916\n0,1\n1,2\n")
    assert main(["ingest", str(tmp_path / "\x85\u202elogs"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)
    (tmp_path / "streams.toml").write_text(out)
    report = robocache.ingest(tmp_path / "\x85\u202elogs", tmp_path / "cache", mapping=tmp_path / "streams.toml")
    assert list(report.rows) == ["rob\U0001f916t\x9b"]


def test_a_dry_run_as_json(capsys, tmp_path):
    assert main(["ingest", str(write_logs(tmp_path / "logs")), "--dry-run", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["format"], output["recordings"], output["columns"]) == ("csv", 1, {"name": "logs"})
    assert output["streams"]["imu"] == {
        "kind": "numbers", "dtype": "float64", "shape": [4], "names": list("xyzw"), "clock": "recorded",
        "attributes": {"clock_source": "t [s], s"}, "rows": 3, "rate_hz": 10.0,
    }  # fmt: skip
    assert '[streams."imu"]' in output["mapping"]
    assert main(["ingest", str(tmp_path / "logs")]) == 2


def test_a_dry_run_skips_unreadable_files_with_the_option(capsys, tmp_path):
    for number, rows in enumerate(("", "0.0,1\n0.1,2\n")):
        (tmp_path / f"logs/run_{number}").mkdir(parents=True)
        (tmp_path / f"logs/run_{number}/imu.csv").write_text(rows)
    command = ["ingest", str(tmp_path / "logs"), "--dry-run"]
    assert main(command) == 1 and "run_0/imu.csv" in capsys.readouterr().err
    assert main([*command, "--on-error", "skip"]) == 0
    output = capsys.readouterr().out
    assert "these are the streams of run_1" in output and '[streams."imu"]' in output
    (tmp_path / "logs/run_1/imu.csv").write_text("")
    assert main([*command, "--on-error", "skip"]) == 1
    assert "nothing to keep in any of 2 recordings; " in (stderr := capsys.readouterr().err) and "imu.csv" in stderr


def test_every_kind_of_stream_is_in_a_preview(toy, tmp_path, monkeypatch):
    toy(read)
    draft = preview(tmp_path / "source.toy")
    kinds = {name: (stream.kind, stream.dtype, stream.shape, stream.rate_hz) for name, stream in draft.streams.items()}
    assert kinds == {
        "state": ("numbers", "float32", [8], 20.0),
        "reward": ("numbers", "float32", [], 20.0),
        "top": ("frames", "uint8", [4, 6, 3], 20.0),
        "task": ("text", "str", [], None),
        "cloud": ("arrays", "float32", [3], 20.0),
    }


# ---- GR00T's ----


def test_the_modality_of_a_real_dataset(real_data, tmp_path):
    source = Path(real_data("lerobot_v2/gr00t_gr1_pnp_sim"))
    modality = json.loads((source / "meta/modality.json").read_text())
    report = robocache.ingest(source, tmp_path / "cache", mapping=source / "meta/modality.json", image_size="32x32")
    dataset = robocache.open(tmp_path / "cache")
    parts = {f"{kind}.{part}": span for kind in ("state", "action") for part, span in modality[kind].items()}
    assert len(parts) == 16
    for episode, file in enumerate(sorted(source.glob("data/*/*.parquet"))):
        table = pq.read_table(file)
        rows = dataset.episode(episode)
        for name, span in parts.items():
            column = "observation.state" if name.startswith("state") else "action"
            expected = np.stack(table[column].to_numpy())[:, span["start"] : span["end"]]
            assert np.array_equal(rows[name][1], expected)
        task = table["annotation.human.action.task_description"].to_pylist()
        assert rows["annotation.human.action.task_description"][1].tolist() == task
        assert rows["annotation.human.coarse_action"][1].tolist() == task
    assert dataset.streams["video.ego_view"].frames is not None
    assert not {"observation.state", "action", "observation.images.ego_view"} & set(dataset.streams)
    assert "next.reward" in dataset.streams
    assert report.rows["state.left_arm"] == 2096


def test_a_modality_of_an_unread_column_is_noted(real_data, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(real_data("lerobot_v2/gr00t_gr1_pnp_sim"), source)
    report = robocache.ingest(source, tmp_path / "cache", mapping=source / "meta/modality.json", video=False)
    assert any(
        omission.what == "observation.images.ego_view" and "modality.json" in omission.reason
        for omission in report.left_out
    )
    overlapping = {"state": {"a": {"start": 0, "end": 7}, "b": {"start": 6, "end": 9}}}
    with pytest.raises(robocache.ArgumentError, match=r"state\.b from 6 to 9 overlaps state\.a"):
        load_mapping(overlapping)
    loaded = load_mapping({"action": {"q": {"start": 0, "end": 4, "rotation_type": "quaternion", "absolute": False}}})
    (part,) = loaded.streams["action"]
    assert part.attributes == {"rotation_type": "quaternion", "absolute": False, "methods": "slerp"}


def test_the_example_of_the_docs(tmp_path):
    text = (Path(__file__).parents[3] / "docs/ingest.md").read_text()
    (tmp_path / "m.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    mapping = load_mapping(tmp_path / "m.toml")
    names = [part.names[0] for parts in mapping.streams.values() for part in parts]
    assert names == ["imu", "observation.images.wrist", "state.arm", "state.tool"]
    assert (mapping.rename, mapping.constants) == ({"length": "frames"}, {"robot": "arm 1"})


def test_a_missing_mapping_is_refused_despite_skip(tmp_path, capsys):
    (tmp_path / "imu.csv").write_text("0.0,1\n0.1,2\n")
    code = main(["ingest", str(tmp_path), str(tmp_path / "cache"), "--mapping", str(tmp_path / "none.toml")])
    assert code == 1
    assert capsys.readouterr().err == f"robocache ingest: {tmp_path}/none.toml: No such file or directory\n"


# ---- red and blue ----


def make_jpeg(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=95)
    return stream.getvalue()


@pytest.mark.parametrize("names", ["top", ["one", "other"]])
@pytest.mark.parametrize("stored", ["array", "raw", "png files", "jpeg files", "encoded"])
def test_red_and_blue_are_exchanged_by_a_mapping(stored, names, toy, tmp_path):
    smooth = [np.asarray(Image.new("RGB", (32, 24), colour)) for colour in ((250, 10, 90), (20, 200, 60), (0, 0, 255))]
    pixels = np.stack(smooth)
    chunks = {
        "array": pixels,
        "raw": pixels,
        "png files": [frames.encode(image[None], codec="png").data.tobytes() for image in smooth],
        "jpeg files": [make_jpeg(image) for image in smooth],
        "encoded": frames.encode(pixels, codec="jpeg"),
    }[stored]

    def read_camera(options, notes):
        notes.total = 1
        codec = "raw" if stored == "raw" else "png"
        yield Recording("episode 0", "FILE", {}, iter([("top", Frames([(TIMES, chunks)], codec=codec))]))

    toy(read_camera, mapping={"streams": {"top": {"name": names, "channels": "bgr"}}})
    dataset = robocache.open(tmp_path / "cache")
    for name in [names] if isinstance(names, str) else names:
        pixels_read = dataset.episode(0)[name][1][:].astype(int)
        loss = 6 if stored in ("jpeg files", "encoded") else 0
        assert np.abs(pixels_read - pixels[..., ::-1]).max() <= loss
        assert dataset.streams[name].frames.codec == {"raw": "raw", "jpeg files": "jpeg", "encoded": "jpeg"}.get(
            stored, "png"
        )


def test_channels_of_streams_without_colour_are_refused(toy, tmp_path):
    with pytest.raises(robocache.ArgumentError, match="channels: expected 'rgb' or 'bgr', got 'gbr'"):
        toy(read, mapping={"streams": {"top": {"channels": "gbr"}}})
    with pytest.raises(robocache.FileError, match=r"streams\.state: channels: expected a camera, got rows"):
        toy(read, mapping={"streams": {"state": {"channels": "bgr"}}})

    def read_depth(options, notes):
        notes.total = 1
        image = np.zeros((3, 4, 6), np.uint16)
        yield Recording("episode 0", "FILE", {}, iter([("depth", Frames([(TIMES, image)], codec="png"))]))

    with pytest.raises(robocache.FileError, match="channels: expected frames of three, got 1"):
        toy(read_depth, mapping={"streams": {"depth": {"channels": "bgr"}}})
    assert toy(read, mapping={"streams": {"top": {"channels": "rgb"}}}, overwrite=True).rows["top"] == 6


def write_pose(folder, rng):
    names = ["x", "y", "z", "qx", "qy", "qz", "qw", "grip"]
    features = {"observation.state": {"dtype": "float32", "shape": [8], "names": names}}
    state = rng.normal(size=(9, 8)).astype(np.float32)
    return write_lerobot(folder, [Episode({"observation.state": state})], features=features)


@pytest.mark.parametrize(
    ("stream_mapping", "is_assumed"),
    [
        ({}, True),
        ({"methods": [[3, 7, "slerp"]]}, False),
        ({"methods": "previous"}, False),
        ({"units": "m"}, True),
        ({"slices": [{"name": "q", "start": 3, "stop": 7, "methods": "slerp"}]}, False),
        (
            {
                "slices": [
                    {"name": "p", "start": 0, "stop": 3, "methods": "linear"},
                    {"name": "q", "start": 3, "stop": 8},
                ]
            },
            True,
        ),
    ],
)
def test_methods_of_a_mapping_are_no_assumption(stream_mapping, is_assumed, rng, tmp_path):
    source = write_pose(tmp_path / "set", rng)
    report = robocache.ingest(
        source,
        tmp_path / "cache",
        mapping={"streams": {"observation.state": stream_mapping}} if stream_mapping else None,
    )
    assert [note.reason for note in report.assumed] == (["a quaternion, by name"] if is_assumed else [])


def test_methods_of_a_mapping_precede_the_subject_column(tmp_path):
    (tmp_path / "logs").mkdir()
    lines = [f"{k / 10},{k % 2},{100 * (k % 2) + k}" for k in range(40)]
    (tmp_path / "logs/range.csv").write_text("\n".join(["time_s,anchor_id,range", *lines, ""]))
    for mapping, count in ((None, 1), ({"streams": {"range": {"methods": "nearest"}}}, 0)):
        report = robocache.ingest(tmp_path / "logs", tmp_path / "cache", mapping=mapping, overwrite=True)
        assert len([note for note in report.assumed if "subject" in note.reason]) == count


def test_a_slice_that_cuts_a_rotation_is_noted(rng, tmp_path):
    slices = [{"name": "a", "start": 0, "stop": 5}, {"name": "b", "start": 5, "stop": 8}]
    mapping = {"streams": {"observation.state": {"slices": slices}}}
    report = robocache.ingest(write_pose(tmp_path / "set", rng), tmp_path / "cache", mapping=mapping)
    reasons = outcomes.reasons(note for note in report.left_out if "slerp" in note.what)
    assert list(reasons) == [f"{part}: slerp of features 3 to 7 of observation.state" for part in "ab"]
    assert "interpolated number by number" in reasons["a: slerp of features 3 to 7 of observation.state"]


@pytest.mark.parametrize("in_degrees", [False, True])
def test_euler_angles_of_a_modality_beyond_a_turn_are_noted(in_degrees, rng, tmp_path):
    state = (np.linspace(170, 190, 9)[:, None] * (1 if in_degrees else np.pi / 180) + np.zeros(3)).astype(np.float32)
    features = {"observation.state": {"dtype": "float32", "shape": [3], "names": None}}
    source = write_lerobot(tmp_path / "set", [Episode({"observation.state": state})], features=features)
    state_parts = {
        "rpy": {"start": 0, "end": 3, "rotation_type": "euler_angles_rpy", "original_key": "observation.state"}
    }
    (tmp_path / "modality.json").write_text(json.dumps({"state": state_parts}))
    report = robocache.ingest(source, tmp_path / "cache", mapping=tmp_path / "modality.json")
    reasons = [note.reason for note in report.assumed if "more than a turn" in note.reason]
    assert len(reasons) == in_degrees and all("up to 190" in reason for reason in reasons)
