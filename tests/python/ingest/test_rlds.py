"""RLDS TFRecords: every number, text and image as TFDS wrote it. The oracle for real shards is Google's parser."""

import io
import json
import struct
import zlib
from functools import partial

import numpy as np
import pytest
from damage import damage
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import assert_unread, ingest_and_open
from PIL import Image
from rlds_files import (
    crc,
    example,
    feature,
    field,
    group,
    image,
    label,
    record,
    sequence,
    tensor,
    text,
    write_rlds,
)
from soak import rounds
from yields import Yields, pixels

import robocache
from robocache import frames

OCTO = "rlds/octo_bridge_debug/bridge_dataset/1.0.0"
STEPS = 4


def png(value, height=6, width=8):
    encoded = frames.encode(np.full((1, height, width, 3), value, np.uint8), codec="png")
    return bytes(encoded.data)


def toy_features(**steps):
    return group(
        steps=sequence(
            group(
                action=tensor("float32", 2),
                is_first=tensor("bool"),
                language_instruction=text(),
                observation=group(state=tensor("float64", 3), image=image(6, 8, 3)),
                **steps,
            )
        ),
        episode_metadata=group(file_path=text(), success=tensor("bool"), pose=tensor("float32", 2)),
    )


def toy_example(value, steps=STEPS, **changed):
    """`changed`: lists that are replaced, or removed by None; in their names "__" stands for "/"."""
    lists = {
        "steps/action": np.arange(2 * steps, dtype=np.float32) + value,
        "steps/is_first": np.arange(steps) == 0,
        "steps/language_instruction": ["push"] * steps,
        "steps/observation/state": np.arange(3 * steps, dtype=np.float32) * value,
        "steps/observation/image": [png(value + step) for step in range(steps)],
        "episode_metadata/file_path": ["/data/é"],
        "episode_metadata/success": np.array([1]),
        "episode_metadata/pose": np.array([1.5, np.pi], np.float32),
    }
    lists.update({key.replace("__", "/"): values for key, values in changed.items()})
    return {key: values for key, values in lists.items() if values is not None}


def write_toy(folder, *examples, features=None, **options):
    examples = examples or (toy_example(1),)
    return write_rlds(
        folder, {"train": [[example(lists) for lists in examples]]}, features or toy_features(), **options
    )


assert_refused = partial(assert_unread, "rlds", rate_hz=5)


# ---- the content of records ----


def test_every_list_is_a_stream_of_its_shape(tmp_path):
    split = {"train": [[example(toy_example(1))], [example(toy_example(2, 7))]], "val": [[example(toy_example(3))]]}
    yields = Yields("rlds", write_rlds(tmp_path / "toy", split, toy_features()), rate_hz=8)
    assert list(yields.episodes) == [
        "toy-train.tfrecord-00000-of-00002: record 0",
        "toy-train.tfrecord-00001-of-00002: record 0",
        "toy-val.tfrecord-00000-of-00001: record 0",
    ]
    assert yields.notes.total == 3 and not yields.left_out and not yields.skipped
    assert set(yields.clocks.values()) == {"nominal"}
    for number, (value, steps) in enumerate([(1, 4), (2, 7), (3, 4)]):
        streams, expected = yields[number], toy_example(value, steps)
        names = ["action", "is_first", "language_instruction", "observation/state", "observation/image"]
        assert list(streams) == names
        time_ns = np.arange(steps) * 125_000_000
        for time, *_ in streams.values():
            np.testing.assert_array_equal(time, time_ns)
        np.testing.assert_array_equal(streams["action"][1], expected["steps/action"].reshape(steps, 2))
        assert streams["action"][1].dtype == np.float32
        assert streams["is_first"][1].dtype == np.bool_
        assert np.flatnonzero(streams["is_first"][1]).tolist() == [0]
        assert streams["observation/state"][1].dtype == np.float64
        np.testing.assert_array_equal(
            streams["observation/state"][1], expected["steps/observation/state"].reshape(-1, 3)
        )
        assert streams["language_instruction"][1] == ["push"] * steps
        (camera,) = streams["observation/image"][1]
        assert camera.codec == "png"
        np.testing.assert_array_equal(pixels([camera])[:, 0, 0, 0], value + np.arange(steps))
    metadata = yields.metadata["toy-train.tfrecord-00001-of-00002: record 0"]
    assert metadata == {
        "episode_metadata/file_path": "/data/é",
        "episode_metadata/success": True,
        "episode_metadata/pose": [1.5, float(np.float32(np.pi))],
        "tasks": ["push"],
        "split": "train",
        "source_file": "toy-train.tfrecord-00001-of-00002",
        "source_record": 0,
    }
    assert yields.provenance["rlds"]["splits"] == {"train": 2, "val": 1}
    assert yields.provenance["rlds"]["rate_hz"] == 8


def test_calvins_relative_actions_are_not_made_relative_twice(tmp_path):
    features = group(
        steps=sequence(group(observation=group(rel_actions=tensor("float32", 7), robot_obs=tensor("float32", 7))))
    )
    lists = {f"steps/observation/{name}": np.ones(7 * STEPS, np.float32) for name in ("rel_actions", "robot_obs")}
    write_rlds(tmp_path / "a", {"train": [[example(lists)]]}, features)
    robocache.ingest(tmp_path / "a", tmp_path / "cache", rate_hz=10)
    action, state = "observation/rel_actions", "observation/robot_obs"
    convert = [robocache.actions.Relative("joints")]
    windows = {action: robocache.Window([0.0], convert=convert, base=state), state: robocache.Window([0.0])}
    with pytest.raises(robocache.ArgumentError, match="relative already as its attribute absolute = False"):
        robocache.Loader(tmp_path / "cache", batch_size=2, delta_timestamps=windows, device="cpu")


def test_a_declared_rate_is_used_and_may_not_be_contradicted(tmp_path):
    features = toy_features()
    features["featuresDict"]["features"]["episode_metadata"]["featuresDict"]["features"]["fps"] = tensor("float32")
    episodes = (toy_example(1, episode_metadata__fps=np.array([rate], np.float32)) for rate in (20, 5))
    source = write_toy(tmp_path / "toy", *episodes, features=features)
    yields = Yields("rlds", source, rate_hz=None)
    clocks = [streams["action"][0].tolist() for streams in yields.episodes.values()]
    assert clocks == [[row * 10**9 // rate for row in range(STEPS)] for rate in (20, 5)]
    assert yields.provenance["rlds"]["rates"] == {f"{rate} Hz, episode_metadata/fps": 1 for rate in (20, 5)}
    assert_refused(source, "record 1", "episode_metadata/fps says 5 Hz, rate_hz 20", rate_hz=20)
    assert_refused(write_toy(tmp_path / "without"), "without", "--rate-hz", rate_hz=None)
    yields_at_20 = Yields("rlds", source, on_error="skip", rate_hz=20)
    assert len(yields_at_20.episodes) == 1 and len(yields_at_20.skipped) == 1


@pytest.mark.parametrize("packed", [True, False])
def test_numbers_packed_or_not(packed, tmp_path):
    numbers = np.array([0, 1, 127, 128, 2**31 - 1, -1, -(2**31), 300], np.int64)
    features = toy_features(number=tensor("int32", 2), small=tensor("int64"), big=tensor("uint64"))
    lists = toy_example(1, steps__number=numbers, steps__small=numbers[:4], steps__big=-numbers[:4])
    folder = write_rlds(tmp_path / "toy", {"train": [[example(lists, packed)]]}, features)
    streams = Yields("rlds", folder, rate_hz=1)[0]
    assert streams["number"][1].dtype == np.int32
    np.testing.assert_array_equal(streams["number"][1], numbers.reshape(4, 2))
    np.testing.assert_array_equal(streams["small"][1], numbers[:4])
    np.testing.assert_array_equal(streams["big"][1], (-numbers[:4]).view(np.uint64))
    np.testing.assert_array_equal(streams["action"][1].reshape(-1), np.arange(8) + 1)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50), st.booleans())
@settings(max_examples=40)
def test_integers_of_all_sizes(numbers, packed):
    from robocache.ingest.rlds.tfrecord import parse_example

    values = parse_example(example({"x": np.array(numbers, np.int64)}, packed))["x"]
    assert values.dtype == np.int64 and values.tolist() == numbers


def test_tensors_of_bytes_and_ragged_tensors(tmp_path):
    rng = np.random.default_rng(0)
    depth = rng.random((STEPS, 5, 6), np.float32)
    clouds = [rng.random((count, 3)) for count in (2, 0, 5, 1)]
    features = toy_features(
        depth=tensor("float32", 5, 6, encoding="zlib"),
        mask=tensor("uint8", 5, 6, encoding="bytes"),
        cloud=tensor("float64", None, 3, encoding="bytes"),
        contacts=sequence(tensor("float32", 2)),
        pixels=tensor("uint8", 5, 6, 3),
        kind=label(),
    )
    photo = rng.integers(0, 256, (STEPS, 5, 6, 3), np.uint8)
    lists = toy_example(
        1,
        steps__depth=[zlib.compress(row.tobytes()) for row in depth],
        steps__mask=[(row * 255).astype(np.uint8).tobytes() for row in depth],
        steps__cloud=[row.tobytes() for row in clouds],
        steps__contacts__ragged_flat_values=np.arange(12, dtype=np.float32),
        steps__contacts__ragged_row_lengths_0=np.array([1, 0, 3, 2]),
        steps__pixels=photo,
        steps__kind=np.array([0, 2, 1, 2]),
    )
    streams = Yields("rlds", write_toy(tmp_path / "toy", lists, features=features), rate_hz=1, image_codec="png")[0]
    np.testing.assert_array_equal(streams["depth"][1], depth)
    np.testing.assert_array_equal(streams["mask"][1], (depth * 255).astype(np.uint8))
    assert [len(points) for points in streams["cloud"][1]] == [2, 0, 5, 1]
    np.testing.assert_array_equal(np.concatenate(streams["cloud"][1]), np.concatenate(clouds))
    assert [len(contacts) for contacts in streams["contacts"][1]] == [1, 0, 3, 2]
    np.testing.assert_array_equal(np.concatenate(streams["contacts"][1]), np.arange(12).reshape(6, 2))
    np.testing.assert_array_equal(pixels(streams["pixels"][1]), photo)
    assert streams["kind"][1].tolist() == [0, 2, 1, 2]


@pytest.mark.parametrize("name", ["language_instruction", "goal"])
def test_rule_47_each_step_has_its_instruction(name, tmp_path):
    texts = ["push", "push", "", "pull"]
    write_toy(tmp_path / "toy", toy_example(1, steps__language_instruction=texts))
    mapping = {"streams": {"language_instruction": {"name": name}}}
    dataset, _ = ingest_and_open(tmp_path / "toy", tmp_path / "cache", rate_hz=1, mapping=mapping)
    assert list(dataset.episode(0)[name][1]) == texts
    assert dataset.episodes["tasks"].to_pylist() == [["push", "pull"]]
    options = {"task_text": True, "shuffle": False, "device": "cpu"}
    loader = robocache.Loader(dataset, batch_size=4, delta_timestamps={"action": None}, **options)
    assert next(loader)["task"] == ["push", "push", None, "pull"]


def test_lists_of_an_episode_are_columns(tmp_path):
    features = toy_features()
    children = features["featuresDict"]["features"]
    children |= {
        "words": sequence(text()),
        "numbers": sequence(tensor("int64")),
        "flag": tensor("bool"),
        "split": text(),
    }
    examples = [
        toy_example(1, words=["a"], numbers=np.array([], np.int64), flag=np.array([0]), split=["x"]),
        toy_example(1, words=["b", "c"], numbers=np.array([3]), flag=np.array([1]), split=["x"]),
    ]
    yields = Yields("rlds", write_toy(tmp_path / "toy", *examples, features=features), rate_hz=1)
    first, second = yields.metadata.values()
    assert (first["words"], first["numbers"], first["flag"], first["split"]) == (["a"], [], False, "train")
    assert (second["words"], second["numbers"], second["flag"]) == (["b", "c"], [3], True)
    assert yields.left_out == {"split": "the episodes table has a column of that name"}


def test_empty_images_are_rows_without_a_frame(tmp_path):
    images = [b"", png(2), b"", png(4)]
    yields = Yields("rlds", write_toy(tmp_path / "toy", toy_example(1, steps__observation__image=images)), rate_hz=10)
    time_ns, chunks = yields[0]["observation/image"]
    assert time_ns.tolist() == [100_000_000, 300_000_000]
    assert pixels(chunks)[:, 0, 0, 0].tolist() == [2, 4]
    assert "observation/image: rows whose image is empty" in yields.left_out


@pytest.mark.parametrize("declared_feature", [text(), tensor("string")])
def test_strings_of_pictures_are_a_camera(declared_feature, tmp_path):
    features = toy_features(wrist=declared_feature, note=declared_feature)
    features["featuresDict"]["features"]["map"] = text()
    files = [[b"", png(2), png(3), png(4)], [b""] * STEPS]
    notes = ["", "\x89PNG", "é", "x"]
    examples = [toy_example(1, steps__wrist=images, steps__note=notes, map=[png(1)]) for images in files]
    yields = Yields("rlds", write_toy(tmp_path / "toy", *examples, features=features), rate_hz=10)
    time_ns, chunks = yields[0]["wrist"]
    assert time_ns.tolist() == [100_000_000, 200_000_000, 300_000_000]
    assert pixels(chunks)[:, 0, 0, 0].tolist() == [2, 3, 4]
    assert "wrist" not in yields[1] and yields[0]["note"][1] == notes
    assert [note.what for note in yields.notes.assumed if "though features.json says text" in note.reason] == ["wrist"]
    assert yields.left_out["map"] == "images, but not one for each step"


def test_names_of_classes_are_kept(tmp_path):
    features = toy_features(phase=label(), other=label())
    features["featuresDict"]["features"]["scene"] = label()
    numbers = np.array([0, 2, 1, 0])
    episode = toy_example(1, steps__phase=numbers, steps__other=numbers, scene=np.array([1]))
    folder = write_toy(tmp_path / "toy", episode, features=features)
    for name, class_names in {"steps-phase": "reach grasp lift", "state": "reach", "scene": "kitchen office"}.items():
        (folder / f"{name}.labels.txt").write_text("".join(f"{class_name}\n" for class_name in class_names.split()))
    yields = Yields("rlds", folder, rate_hz=10)
    assert yields.facts["phase"]["attributes"] == {"words": {"reach": 0, "grasp": 1, "lift": 2}}
    assert yields[0]["phase"][1].tolist() == numbers.tolist()
    assert "attributes" not in yields.facts["other"]
    assert [what for what in yields.left_out if "labels" in what] == ["state.labels.txt"]
    assert [episode["scene"] for episode in yields.metadata.values()] == [1]
    assert yields.left_out["scene: words"] == "its number is kept: 0 kitchen, 1 office"


def test_without_features_json_shapes_are_flat(tmp_path):
    folder = write_toy(tmp_path / "toy")
    (folder / "features.json").unlink()
    yields = Yields("rlds", folder, rate_hz=1)
    streams = yields[0]
    assert streams["action"][1].shape == (STEPS, 2) and streams["observation/state"][1].dtype == np.float32
    assert streams["is_first"][1].tolist() == [1, 0, 0, 0]
    assert pixels(streams["observation/image"][1]).shape == (STEPS, 6, 8, 3)
    assert streams["language_instruction"][1] == ["push"] * STEPS
    assert "features.json" in yields.left_out


def test_left_out_features_are_named(tmp_path):
    features = toy_features(
        sound={"pythonClassName": "x.Audio", "audio": {}},
        words=sequence(text()),
        deep=sequence(sequence(tensor("float32"))),
        hdr=image(6, 8, 3, dtype="float32"),
        rgba=image(6, 8, 4),
        odd=tensor("complex64"),
        open=tensor("float32", 2, None),
    )
    lists = toy_example(1, steps__sound=[b"x"] * STEPS, steps__extra=np.zeros(4, np.float32))
    lists["episode_metadata/pose"] = np.array([np.nan, 1], np.float32)
    yields = Yields("rlds", write_toy(tmp_path / "toy", lists, features=features), rate_hz=1)
    names = ("sound", "words", "deep", "hdr", "rgba", "odd", "open", "extra")
    assert yields.left_out.keys() == {"episode_metadata/pose", *(f"steps/{name}" for name in names)}
    assert not {*names} & yields[0].keys()


def test_a_single_shard(tmp_path):
    folder = write_rlds(
        tmp_path / "toy", {"train": [[example(toy_example(1))], [example(toy_example(2))]]}, toy_features()
    )
    yields = Yields("rlds", folder / "toy-train.tfrecord-00001-of-00002", rate_hz=1)
    np.testing.assert_array_equal(yields[0]["action"][1].reshape(-1), np.arange(8) + 2)


# ---- faults ----


def test_missing_shards_and_records_are_named(tmp_path):
    shards = [[example(toy_example(value))] * 2 for value in range(6)]
    folder = write_rlds(
        tmp_path / "toy", {"train": shards}, toy_features(), lengths={"train": [2, 2, 2, 2, 3, 2], "val": [4]}
    )
    for number in (1, 2, 5):
        (folder / f"toy-train.tfrecord-{number:05d}-of-00006").unlink()
    assert_refused(folder, "toy-train", "expected 6 shards, 1-2, 5 are not there")
    yields = Yields("rlds", folder, on_error="skip", rate_hz=1)
    assert len(yields.episodes) == 6
    assert yields.skipped["toy-train.tfrecord-00004-of-00006: number of records"].endswith(
        "expected 3 records, by dataset_info.json, got 2"
    )
    assert "split 'val' of 4 records has no shards here" in yields.skipped["split val"]


@pytest.mark.parametrize(
    ("damaged", "episodes", "message_part"),
    [
        ("the first length", [], "checksum of its length"),
        ("the second payload", [0, 2], "checksum of its"),
        ("the last checksum", [0, 1], "checksum of its"),
    ],
)
def test_checksums(damaged, episodes, message_part, tmp_path):
    records = [example(toy_example(value)) for value in range(3)]
    folder = write_rlds(tmp_path / "toy", {"train": [records]}, toy_features())
    (shard,) = folder.glob("*tfrecord*")
    content = bytearray(shard.read_bytes())
    offsets = {"the first length": 0, "the second payload": len(record(records[0])) + 40, "the last checksum": -2}
    content[offsets[damaged]] ^= 4
    shard.write_bytes(content)
    assert_refused(folder, str(shard), "byte", message_part)
    yields = Yields("rlds", folder, on_error="skip", rate_hz=1)
    assert [int(streams["action"][1][0, 0]) for streams in yields.episodes.values()] == episodes
    assert yields.skipped


def test_a_length_beyond_the_file_takes_no_memory(tmp_path):
    folder = write_toy(tmp_path / "toy")
    (shard,) = folder.glob("*tfrecord*")
    length = struct.pack("<Q", 2**62)
    content = shard.read_bytes()
    shard.write_bytes(content + length + crc(length) + b"x" * 40)
    assert_refused(folder, f"byte {len(content)}: record 1: expected {2**62} bytes, the file has 36 more")
    yields = Yields("rlds", folder, on_error="skip", rate_hz=1)
    assert len(yields.episodes) == 1 and list(yields.skipped) == [f"{shard.name}: record 1 and all after it"]


@pytest.mark.parametrize(
    ("changed", "message_part"),
    [
        ({"steps__action": np.zeros(7, np.float32)}, "steps/action: 7 values are no rows of [2]"),
        ({"steps__action": np.zeros(6, np.float32)}, "steps, but"),
        ({"steps__action": None}, "steps/action: declared in features.json, but not in the record"),
        ({"steps__action": np.zeros(8, np.int64)}, "declared as numbers of float32, but stored as int64"),
        ({"steps__action": [b"x"] * 8}, "stored as bytes"),
        ({"steps__is_first": np.full(4, 2)}, "steps/is_first: value 0 is 2, expected bool"),
        ({"steps__observation__image": [b"x" * 30] * 4}, "observation/image: row 0"),
        ({"steps__observation__image": [png(1)] * 3 + [png(1, 8, 8)]}, "observation/image: row 3: frames of 8x8"),
        ({"steps__small": np.full(4, 300)}, "steps/small: value 0 is 300, expected uint8"),
        (
            {"steps__zip": [zlib.compress(bytes(10**6))] * 4},
            "steps/zip: row 0: expected a complete zlib stream of at most 4 bytes",
        ),
        ({"steps__zip": [zlib.compress(bytes(4))[:-2]] * 4}, "steps/zip: row 0"),
        ({"steps__zip": [b"no"] * 4}, "steps/zip: row 0"),
        ({"steps__raw": [b"123"] * 4}, "steps/raw: row 0: expected float32 [1], got 3 bytes"),
        ({"steps__list__ragged_row_lengths_0": np.array([1, 2, 3, 4])}, "steps/list: 4 values"),
        ({"steps__list__ragged_row_lengths_0": np.array([-1, 5, 0, 0])}, "steps/list: 4 values"),
    ],
)
def test_records_that_contradict_the_declaration(changed, message_part, tmp_path):
    extra_lists = {
        "steps__small": np.zeros(4, np.int64),
        "steps__zip": [zlib.compress(bytes(4))] * 4,
        "steps__raw": [bytes(4)] * 4,
        "steps__list__ragged_flat_values": np.zeros(4, np.float32),
        "steps__list__ragged_row_lengths_0": np.ones(4, np.int64),
    }
    features = toy_features(
        small=tensor("uint8"),
        zip=tensor("float32", 1, encoding="zlib"),
        raw=tensor("float32", 1, encoding="bytes"),
        list=sequence(tensor("float32")),
    )
    intact, contradictory = toy_example(1, **extra_lists), toy_example(2, **(extra_lists | changed))
    folder = write_toy(tmp_path / "toy", intact, contradictory, features=features)
    assert_refused(folder, "toy-train.tfrecord-00000-of-00001: record 1", message_part)
    yields = Yields("rlds", folder, on_error="skip", rate_hz=1)
    assert yields.skipped and "toy-train.tfrecord-00000-of-00001: record 0" in yields.episodes
    (name,) = changed
    feature_name = name.replace("__", "/").removesuffix("/ragged_row_lengths_0").removeprefix("steps/")
    intact_streams, damaged_streams = yields.episodes.values()
    if feature_name != "observation/image":
        assert set(intact_streams) - set(damaged_streams) == {feature_name}
        assert all(what.startswith("toy-train.tfrecord-00000-of-00001: record 1: ") for what in yields.skipped)


@pytest.mark.parametrize(
    ("key", "values", "message_part"),
    [
        ("episode_metadata/file_path", None, "declared in features.json, but not in the record"),
        ("episode_metadata/pose", np.array([1, 2]), "declared as numbers of float32, but stored as int64"),
        ("episode_metadata/success", np.array([7]), "value 0 is 7, expected bool"),
        ("steps/language_instruction", None, "declared in features.json, but not in the record"),
    ],
)
def test_an_invalid_field_of_an_episode_loses_that_field_alone(key, values, message_part, tmp_path):
    """A declared `episode_id` that no record holds must not hide every step."""
    name = key.removeprefix("steps/")
    changed = {key.replace("/", "__"): values}
    folder = write_toy(
        tmp_path / "toy", *(toy_example(value, **changed) for value in (1, 2)), toy_example(3), features=toy_features()
    )
    shard = "toy-train.tfrecord-00000-of-00001"
    assert_refused(folder, f"{shard}: record 0", key, message_part)
    dataset, _ = ingest_and_open(folder, tmp_path / "cache", rate_hz=5, on_error="skip", progress=None)
    yields = Yields("rlds", folder, on_error="skip", rate_hz=5)
    assert list(yields.skipped) == [f"{shard}: record {number}: {key}" for number in (0, 1)]
    assert all(message_part in reason for reason in yields.skipped.values())
    columns = dataset.episodes.to_pylist()
    assert [column["source_record"] for column in columns] == [0, 1, 2]
    if key.startswith("steps/"):
        assert [column["tasks"] for column in columns] == [[], [], ["push"]]
        assert [len(dataset.episode(number)[name][0]) for number in range(3)] == [0, 0, STEPS]
    else:
        assert [column[name] is None for column in columns] == [True, True, False]
    for number, value in enumerate((1, 2, 3)):
        _, rows = dataset.episode(number)["action"]
        np.testing.assert_array_equal(np.ravel(rows), np.arange(2 * STEPS, dtype=np.float32) + value)


@pytest.mark.parametrize("fault", ["wider", "fewer lists", "no steps", "damaged"])
def test_a_faulty_first_record_hides_no_other(fault, tmp_path):
    """Without features.json all records are read before a feature is decided."""
    first = {
        "wider": toy_example(0, steps__action=np.zeros(12, np.float32)),
        "fewer lists": toy_example(0, steps__action=None),
        "no steps": toy_example(0, steps__is_first=None, steps__reward=None),
        "damaged": toy_example(0),
    }[fault]
    folder = write_toy(
        tmp_path / "toy", first, *(toy_example(number) for number in range(1, 7)), features=toy_features()
    )
    (folder / "features.json").unlink()
    if fault == "damaged":
        (shard,) = folder.glob("*.tfrecord-*")
        content = bytearray(shard.read_bytes())
        content[40] ^= 1  # in the first payload
        shard.write_bytes(content)
    yields = Yields("rlds", folder, on_error="skip", rate_hz=1)
    shapes = [streams["action"][1].shape for streams in yields.episodes.values() if "action" in streams]
    assert shapes[-6:] == [(4, 2)] * 6 and yields.skipped


@pytest.mark.parametrize(
    ("payload", "message_part"),
    [
        (b"\x0b\x0c", "no field is of kind 3"),
        (b"\x0a\xff\xff\xff\xff\x0f", "expected 4294967295 bytes, 0 are left"),
        (b"\x12\x00", "expected Example of tf.train.Example, got field 2"),
        (b"\xff" * 20, "a number without its end"),
        (field(1, field(1, field(1, b"a") + field(2, feature(np.ones(1)))) * 2), "'a' is there twice"),
        (field(1, field(1, field(1, b"\xff"))), "utf-8"),
        (field(1, field(1, field(2, field(2, field(1, b"abc"))))), "expected float32s"),
        (field(1, field(1, field(2, field(3, field(1, b"\x80"))))), "a number without its end"),
        (field(1, field(1, field(2, field(3, field(1, b"\x80" * 12 + b"\x01"))))), "more than 64 bits"),
        (field(1, field(1, field(2, field(1, b"") + field(2, b"")))), "expected one list"),
        (b"", "not in the record"),
        pytest.param(
            field(1, field(1, field(2, field(1, field(1, b"") * (2**20 + 1))))),
            "more than 1048576 strings",
            id="strings",
        ),
    ],
)
def test_payloads_that_are_not_an_example(payload, message_part, tmp_path):
    folder = write_rlds(tmp_path / "toy", {"train": [[payload]]}, toy_features())
    assert_refused(folder, "record 0", message_part)


@pytest.mark.parametrize(
    ("file", "content", "message_part"),
    [
        ("features.json", b"{", "features.json: JSONDecodeError"),
        ("features.json", b"[" * 100_000, "features.json"),
        ("features.json", b'{"type": "x", "content": {}}', "pythonClassName"),
        ("features.json", json.dumps(group(a=tensor("float32", -7))).encode(), "expected a shape"),
        ("features.json", json.dumps(group(a=tensor("float32", 2**60))).encode(), "expected a shape"),
        ("features.json", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("dataset_info.json", b"[]", "dataset_info.json: expected an object"),
        ("dataset_info.json", b'{"splits": [{"name": 1}]}', "dataset_info.json"),
    ],
)
def test_unreadable_descriptions(file, content, message_part, tmp_path):
    folder = write_toy(tmp_path / "toy")
    (folder / file).write_bytes(content)
    assert_refused(folder, file, message_part)


def test_two_datasets_are_refused(tmp_path):
    write_toy(tmp_path / "both" / "1.0.0")
    write_toy(tmp_path / "both" / "1.1.0")
    assert_refused(tmp_path / "both", "1.0.0", "1.1.0", "ingest one of them")


# ---- in a cache ----


def test_a_split_becomes_a_cache(tmp_path):
    shards = {"train": [[example(toy_example(1)), example(toy_example(2, 7))]]}
    source = write_rlds(tmp_path / "data" / "toy" / "1.0.0", shards, toy_features())
    report = robocache.ingest(tmp_path / "data", tmp_path / "cache", rate_hz=8)
    assert (report.format, report.episodes, report.rows["action"]) == ("rlds", 2, 11)
    dataset = robocache.open(tmp_path / "cache", verify=True)
    assert {stream.clock for stream in dataset.streams.values()} == {"nominal"}
    assert dataset.episodes["tasks"].to_pylist() == [["push"], ["push"]]
    np.testing.assert_array_equal(dataset.episode(1)["action"][1].reshape(-1), np.arange(14) + 2)
    assert list(dataset.episode(1)["language_instruction"][1]) == ["push"] * 7
    (source / "toy-train.tfrecord-00000-of-00001").unlink()
    with pytest.raises(robocache.FileError):
        robocache.ingest(tmp_path / "data", tmp_path / "none", rate_hz=8)
    assert not (tmp_path / "none").exists()


def test_records_are_shared_among_shards(tmp_path):
    """Each process reads only its own records, also after unreadable ones."""
    records = [example(toy_example(value)) for value in range(6)]
    records[1] = records[1][:-9]
    source = write_rlds(tmp_path / "toy", {"train": [records[:4], records[4:]]}, toy_features())
    for name, workers in (("one", 1), ("two", 2)):
        report = robocache.ingest(source, tmp_path / name, rate_hz=8, on_error="skip", workers=workers)
        assert [omission.what for omission in report.skipped] == ["toy-train.tfrecord-00000-of-00002: record 1"]
        dataset = robocache.open(tmp_path / name, verify=True)
        assert dataset.episodes["source_record"].to_pylist() == [0, 2, 3, 0, 1]
        assert [dataset.episode(number)["action"][1][0, 0] for number in range(5)] == [0, 2, 3, 4, 5]


# ---- real data ----


def payload_at(content, offset=0):
    """Returns the payload of the record at `offset`, and the offset of the next record."""
    (length,) = struct.unpack_from("<Q", content, offset)
    start = offset + 12  # after the length and its checksum
    return content[start : start + length], start + length + 4


def test_octo_bridge_against_protobuf(real_data):
    """Each step, compared with Google's parser."""
    parse = protobuf_parser()
    yields = Yields("rlds", real_data(OCTO), rate_hz=5)
    assert len(yields.episodes) == yields.notes.total == 50
    assert not yields.left_out and not yields.skipped
    for recording, streams in yields.episodes.items():
        shard, _, number = recording.partition(": record ")
        content, offset = (real_data(OCTO) / shard).read_bytes(), 0
        for _ in range(int(number) + 1):
            payload, offset = payload_at(content, offset)
        lists = parse(payload)
        for key, values in lists.items():
            if not key.startswith("steps/"):
                assert [yields.metadata[recording][key]] == [
                    value.decode() if isinstance(value, bytes) else value for value in values
                ]
                continue
            time_ns, values_read = streams.pop(key.removeprefix("steps/"))
            assert time_ns.tolist() == [step * 200_000_000 for step in range(10)]
            if "image" in key:
                expected = np.stack([np.asarray(Image.open(io.BytesIO(value))) for value in values])
                np.testing.assert_array_equal(pixels(values_read), expected)
            elif isinstance(values[0], bytes):
                assert values_read == [value.decode() for value in values]
            else:
                np.testing.assert_array_equal(np.asarray(values_read).reshape(-1), np.array(values, values_read.dtype))
        assert not streams
        instruction = lists["steps/language_instruction"][0].decode()
        assert yields.metadata[recording]["tasks"] == ([instruction] if instruction else [])


def protobuf_parser():
    """Returns a function from a serialized Example to {name: list}, by the package `protobuf`."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="x", syntax="proto3")
    Field = descriptor_pb2.FieldDescriptorProto

    def message(owner, name, *members):
        result = owner.add(name=name)
        for number, (member, kind, cardinality, type_name) in enumerate(members, 1):
            result.field.add(name=member, number=number, type=kind, label=cardinality, type_name=type_name)
        return result

    repeated, optional, message_type = Field.LABEL_REPEATED, Field.LABEL_OPTIONAL, Field.TYPE_MESSAGE
    for name, kind in (("B", Field.TYPE_BYTES), ("F", Field.TYPE_FLOAT), ("I", Field.TYPE_INT64)):
        message(file.message_type, name, ("value", kind, repeated, None))
    message(file.message_type, "Feature", *((name, message_type, optional, f".x.{name.upper()}") for name in "bfi"))
    features = message(file.message_type, "Features", ("feature", message_type, repeated, ".x.Features.FeatureEntry"))
    entry = message(
        features.nested_type,
        "FeatureEntry",
        ("key", Field.TYPE_STRING, optional, None),
        ("value", message_type, optional, ".x.Feature"),
    )
    entry.options.map_entry = True
    message(file.message_type, "Example", ("features", message_type, optional, ".x.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    Example = message_factory.GetMessageClass(pool.FindMessageTypeByName("x.Example"))

    def parse(content):
        parsed = Example.FromString(content)
        return {
            key: list(getattr(value, value.ListFields()[0][0].name).value)
            for key, value in parsed.features.feature.items()
        }

    return parse


@pytest.mark.soak
def test_changed_bytes_are_named(real_data, tmp_path, rng):
    """Randomly changed real shards give an error that names the file, or the remaining records."""
    source = next(real_data(OCTO).glob("*train*"))
    content = source.read_bytes()[:500_000]
    (tmp_path / "features.json").write_bytes((real_data(OCTO) / "features.json").read_bytes())
    shard = tmp_path / source.name
    for _ in range(rounds(25)):
        shard.write_bytes(damage(content, rng))
        assert_named(tmp_path, shard)


@pytest.mark.soak
def test_changed_examples_are_named(real_data, tmp_path, rng):
    """As above, but with correct checksums, so that only the parser can find a change."""
    payload, _ = payload_at(next(real_data(OCTO).glob("*train*")).read_bytes())
    (tmp_path / "features.json").write_bytes((real_data(OCTO) / "features.json").read_bytes())
    shard = tmp_path / "x-train.tfrecord-00000-of-00001"
    for _ in range(rounds(40)):
        shard.write_bytes(record(damage(payload, rng)))
        assert_named(tmp_path, shard)


def assert_named(source, shard):
    try:
        Yields("rlds", source, on_error="skip", rate_hz=1)
    except robocache.FileError as error:
        assert str(source) in str(error)
    try:
        Yields("rlds", source, rate_hz=1)
    except robocache.FileError as error:
        assert shard.name in str(error)


@pytest.mark.parametrize(
    ("last", "is_marked", "is_named"), [(0.0, True, True), (0.0, False, False), (1.0, True, False)]
)
def test_an_action_of_zeros_where_is_last_is_true_is_named(last, is_marked, is_named, tmp_path):
    action = np.arange(1, 2 * STEPS + 1, dtype=np.float32).reshape(STEPS, 2)
    action[-1] = last
    is_last = (np.arange(STEPS) == STEPS - 1) & is_marked
    lists = toy_example(1, steps__action=action.ravel(), steps__is_last=is_last)
    write_toy(tmp_path / "toy", lists, features=toy_features(is_last=tensor("bool")))
    report = robocache.ingest(tmp_path / "toy", tmp_path / "cache", rate_hz=5, progress=False)
    assert is_named == any("the row that is_last marks" in omission.what for omission in report.left_out)
    np.testing.assert_array_equal(robocache.open(tmp_path / "cache")["action"].values, action)
