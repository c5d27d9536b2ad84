"""CALVIN: every array of every step equals numpy's; pickles are loaded only with trust_pickle."""

import io
import pickle
import zipfile
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
from damage import damage
from outcomes import assert_unread, ingest_and_open
from soak import rounds
from yields import Yields, pixels

import robocache

RATE = "env:\n  control_freq: 30\n  cameras:\n    fps: 7\n"


def make_step(number, rng):
    return {
        "actions": np.full(7, number, np.float64),
        "rel_actions": rng.random(7),
        "robot_obs": rng.random(15),
        "scene_obs": rng.random(24),
        "rgb_static": rng.integers(0, 256, (12, 10, 3), np.uint8),
        "rgb_gripper": rng.integers(0, 256, (8, 8, 3), np.uint8),
        "rgb_tactile": rng.integers(0, 256, (6, 4, 6), np.uint8),
        "depth_static": rng.random((12, 10), np.float32),
        "depth_tactile": rng.random((6, 4, 2), np.float32),
    }


def write_calvin(folder, episodes, settings=RATE, extra=(), save=np.savez_compressed):
    """Writes a split; `extra` steps are in no episode. Returns {number of a step: its arrays}."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "ep_start_end_ids.npy", np.array(episodes))
    if settings is not None:
        (folder / ".hydra").mkdir(exist_ok=True)
        (folder / ".hydra" / "merged_config.yaml").write_text(settings)
    steps = {}
    for number in [step for first, last in episodes for step in range(first, last + 1)] + list(extra):
        steps[number] = make_step(number, rng)
        save(folder / f"episode_{number:07d}.npz", **steps[number])
    return steps


assert_refused = partial(assert_unread, "calvin")


def test_every_array_of_every_step(tmp_path):
    steps = write_calvin(tmp_path / "d" / "training", [[100, 169], [7, 9]], extra=[11, 500])
    write_calvin(tmp_path / "d" / "validation", [[0, 0]])
    yields = Yields("calvin", tmp_path / "d", image_codec="png")
    assert list(yields.episodes) == ["training: episode 0", "training: episode 1", "validation: episode 0"]
    assert yields.metadata["training: episode 1"] == {
        "split": "training",
        "source_episode_index": 1,
        "first_step": 7,
        "last_step": 9,
    }
    assert yields.notes.total == 3
    assert yields.left_out == {"training: 2 steps": "in no episode of ep_start_end_ids.npy"}
    assert yields.provenance["calvin"]["training"]["rate_hz"] == 30
    assert set(yields.clocks.values()) == {"nominal"}
    for number, numbers in enumerate([range(100, 170), range(7, 10)]):
        expected = {key: np.stack([steps[step][key] for step in numbers]) for key in steps[7]}
        streams = yields[number]
        time_ns = np.rint(np.arange(len(numbers)) * 1e9 / 30).astype(np.int64)
        for time, *_ in streams.values():
            np.testing.assert_array_equal(time, time_ns)
        for key in ("actions", "rel_actions", "robot_obs", "scene_obs"):
            np.testing.assert_array_equal(streams[key][1], expected[key])
        assert yields.facts["rel_actions"]["attributes"] == {"absolute": False}
        assert "attributes" not in yields.facts["actions"]
        for key in ("rgb_static", "rgb_gripper"):
            np.testing.assert_array_equal(pixels(streams[key][1]), expected[key])
        np.testing.assert_array_equal(pixels(streams["depth_static"][1])[..., 0], expected["depth_static"])
        for part in range(2):
            tactile = expected["rgb_tactile"][..., 3 * part : 3 * part + 3]
            np.testing.assert_array_equal(pixels(streams[f"rgb_tactile/{part}"][1]), tactile)
            depth = pixels(streams[f"depth_tactile/{part}"][1])[..., 0]
            np.testing.assert_array_equal(depth, expected["depth_tactile"][..., part])


def test_the_rate_is_in_the_settings_or_required(tmp_path):
    write_calvin(tmp_path / "a", [[0, 2]], None)
    assert_refused(tmp_path / "a", "control_freq", "--rate-hz")
    yields = Yields("calvin", tmp_path / "a", rate_hz=10)
    assert yields[0]["actions"][0].tolist() == [0, 100_000_000, 200_000_000]
    assert yields.provenance["calvin"]["a"] == {"rate_hz": 10, "rate_from": "rate_hz"}
    write_calvin(tmp_path / "b", [[0, 2]])
    assert Yields("calvin", tmp_path / "b", rate_hz=30).provenance["calvin"]["b"]["rate_hz"] == 30
    assert_refused(tmp_path / "b", "merged_config.yaml says 30 Hz, rate_hz 10: they contradict each other", rate_hz=10)
    write_calvin(tmp_path / "c", [[0, 2]], "control_freq: 30\ncontrol_freq: 15\n")
    assert_refused(tmp_path / "c", "control_freq")


def write_pickles(folder):
    (folder / "lang_annotations").mkdir(exist_ok=True)
    annotations = {
        "language": {
            "ann": ["open it", "push it", "lift it", "nowhere"],
            "task": ["open_drawer", "push", "lift", "none"],
            "emb": np.arange(4 * 3, dtype=np.float64).reshape(4, 1, 3),
        },
        "info": {"indx": [(4, 6), (0, 2), (11, 12), (50, 51)], "episodes": []},
    }
    np.save(folder / "lang_annotations" / "auto_lang_ann.npy", annotations)
    np.save(folder / "scene_info.npy", {"calvin_scene_A": [0, 9], "calvin_scene_B": [10, 20]})


def test_trusted_pickles_are_loaded(tmp_path):
    write_calvin(tmp_path / "d", [[0, 7], [10, 12]])
    write_pickles(tmp_path / "d")
    yields = Yields("calvin", tmp_path / "d", trust_pickle=True)
    streams = yields[0]
    time_ns = [0, round(4e9 / 30)]
    assert streams["language"] == (pytest.approx(time_ns, abs=1), ["push it", "open it"])
    assert streams["language/task"][1] == ["push", "open_drawer"]
    assert streams["task"] == (pytest.approx([0, 3e9 / 30, 4e9 / 30, 7e9 / 30], abs=1), ["push it", "", "open it", ""])
    assert streams["language/steps"][1].tolist() == [3, 3]
    assert streams["language/embedding"][1].tolist() == [[3, 4, 5], [0, 1, 2]]
    assert yields[1]["language"][0].tolist() == [round(1e9 / 30)]
    assert [metadata["scene"] for metadata in yields.metadata.values()] == ["calvin_scene_A", "calvin_scene_B"]
    assert [metadata["tasks"] for metadata in yields.metadata.values()] == [["push it", "open it"], ["lift it"]]
    assert "d: 1 annotations" in yields.left_out


def test_untrusted_pickles_are_not_loaded(tmp_path):
    write_calvin(tmp_path / "d", [[0, 2]])
    write_pickles(tmp_path / "d")
    touched = tmp_path / "ran"

    class Attack:
        def __reduce__(self):
            return touched.touch, ()

    for file in ("scene_info.npy", "lang_annotations/auto_lang_ann.npy", "episode_0000001.npz"):
        content = io.BytesIO()
        np.lib.format.write_array(content, np.array(Attack(), object), allow_pickle=True)
        if file.endswith("npz"):
            with zipfile.ZipFile(tmp_path / "d" / file, "w") as archive:
                archive.writestr("actions.npy", content.getvalue())
        else:
            (tmp_path / "d" / file).write_bytes(content.getvalue())
    assert_refused(tmp_path / "d", "episode_0000001.npz", "got objects, which are pickled")
    yields = Yields("calvin", tmp_path / "d", on_error="skip")
    assert {"scene_info.npy", "lang_annotations/auto_lang_ann.npy"} <= yields.left_out.keys()
    assert not touched.exists()
    np.save(tmp_path / "d" / "ep_start_end_ids.npy", np.array([Attack()], object))
    assert_refused(tmp_path / "d", "ep_start_end_ids.npy")
    assert not touched.exists()


def test_a_split_with_annotations_becomes_a_cache(tmp_path):
    steps = write_calvin(tmp_path / "d" / "training", [[0, 69], [70, 72]])
    write_pickles(tmp_path / "d" / "training")
    report = robocache.ingest(tmp_path / "d", tmp_path / "cache", trust_pickle=True)
    assert (report.format, report.episodes) == ("calvin", 2)
    dataset = robocache.open(tmp_path / "cache", verify=True)
    expected = np.stack([steps[step]["depth_static"] for step in range(70)])
    np.testing.assert_array_equal(np.asarray(dataset.episode(0)["depth_static"][1])[..., 0], expected)
    assert dataset.streams["depth_static"].frames.color_space == "depth"
    assert dataset.streams["rgb_tactile/1"].rows == 73
    assert list(dataset.episode(0)["language"][1]) == ["push it", "open it", "lift it", "nowhere"]
    assert dataset.streams["actions"].clock == "nominal"


def test_rule_47_an_annotation_holds_in_its_window(tmp_path):
    """Windows that overlap, contain each other, and end after the episode."""
    write_calvin(tmp_path / "d", [[10, 19], [20, 29], [30, 31]])
    windows = {"a": (11, 18), "b": (13, 14), "c": (17, 21), "d": (24, 40)}
    (tmp_path / "d/lang_annotations").mkdir()
    content = {
        "language": {"ann": [*windows], "task": [*windows], "emb": np.zeros((4, 1, 2))},
        "info": {"indx": [*windows.values()], "episodes": []},
    }
    np.save(tmp_path / "d/lang_annotations/auto_lang_ann.npy", content)
    dataset, _ = ingest_and_open(tmp_path / "d", tmp_path / "cache", trust_pickle=True)
    loader = robocache.Loader(
        dataset, batch_size=22, delta_timestamps={"actions": None}, task_text=True, shuffle=False, device="cpu"
    )
    expected = [
        next((text for text, (first, last) in reversed(windows.items()) if first <= step <= last), None)
        for step in range(10, 32)
    ]
    assert next(loader)["task"] == expected
    robocache.export(dataset, tmp_path / "out", to="lerobot", streams=["actions"])
    rows = pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet")["task_index"].to_pylist()
    texts = {row["task_index"]: row["task"] for row in pq.read_table(tmp_path / "out/meta/tasks.parquet").to_pylist()}
    assert [texts[number] for number in rows] == [text or "" for text in expected]


# ---- faults ----


def header(shape, dtype="<f8"):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": dtype, "fortran_order": False, "shape": shape})
    return content.getvalue()


def zipped(**members):
    """Returns a zip of {name: content}; in a name "__" stands for "."."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name.replace("__", "."), member)
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "message_part"),
    [
        (None, "No such file"),
        (b"", "zip"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (zipped(actions__npy=header((2**40, 2**20))), "expected at most"),
        (zipped(actions__npy=header((-7,))), "expected a shape, got (-7,)"),
        (zipped(actions__npy=header((7,)) + bytes(55)), "it ends in row 0"),
        (zipped(actions__npy=header((7,)) + bytes(10**7)), "there is more"),
        (zipped(actions__npy=b"\x93NUMPY\x09\x00"), "version"),
        (zipped(actions__npy=b"not it"), "magic"),
        (zipped(notes__txt=b"x"), "expected arrays"),
        (zipped(actions__npy=header((8,)) + bytes(64)), "actions: float64 [8], but float64 [7] in"),
        (pickle.dumps({}), "zip"),
    ],
)
def test_steps_that_cannot_be_read(content, message_part, tmp_path):
    write_calvin(tmp_path / "d", [[0, 1], [2, 4]])
    file = tmp_path / "d" / "episode_0000003.npz"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert_refused(tmp_path / "d", "episode_0000003.npz", message_part)
    yields = Yields("calvin", tmp_path / "d", on_error="skip")
    array_suffix = ": actions" if "[8]" in message_part else ""
    assert f"d: episode 1: steps 3{array_suffix}" in yields.skipped
    streams = yields.episodes["d: episode 1"]
    assert streams["actions"][0].tolist() == [0, 66_666_667] and streams["actions"][1][:, 0].tolist() == [2, 4]
    assert len(streams["robot_obs"][0]) == 2 and len(yields.episodes["d: episode 0"]["actions"][0]) == 2


@pytest.mark.parametrize("fault", ["missing", "damaged", "wider", "another array"])
def test_a_faulty_first_step_hides_no_other(fault, tmp_path):
    steps = write_calvin(tmp_path / "d", [[0, 9], [10, 29]])
    file = tmp_path / "d" / "episode_0000000.npz"
    if fault == "missing":
        file.unlink()
    elif fault == "damaged":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        name = "actions" if fault == "wider" else "more"
        np.savez(file, **(steps[0] | {name: np.zeros(8)}))
    yields = Yields("calvin", tmp_path / "d", on_error="skip")
    rows = {"missing": 9, "damaged": 9, "wider": 9, "another array": 10}[fault]
    assert len(yields.episodes["d: episode 0"]["actions"][0]) == rows
    assert len(yields.episodes["d: episode 0"]["robot_obs"][0]) == (9 if fault in ("missing", "damaged") else 10)
    assert len(yields.episodes["d: episode 1"]["actions"][0]) == 20 and len(yields.skipped) == 1
    assert "more" not in yields.episodes["d: episode 0"]


def test_a_zip_bomb_is_not_decompressed(tmp_path):
    """A member's declared size is less than its data."""
    write_calvin(tmp_path / "d", [[0, 0]])
    content = bytearray(zipped(actions__npy=header((7,)) + bytes(3 * 10**8)))
    small = (len(header((7,))) + 56).to_bytes(4, "little")
    big = (len(header((7,))) + 3 * 10**8).to_bytes(4, "little")
    assert content.count(big) == 2
    (tmp_path / "d" / "episode_0000000.npz").write_bytes(content.replace(big, small))
    import tracemalloc

    tracemalloc.start()
    assert_refused(tmp_path / "d", "episode_0000000.npz")
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("table", "message_part"),
    [
        (np.array([[0, 1, 2]]), "[episodes, 2]"),
        (np.array([[0.0, 1.0]]), "[episodes, 2]"),
        (np.array([[5, 2]]), "row 0: expected a first and a last step, got [5, 2]"),
        (np.array([[-5, 2]]), "row 0"),
        (np.zeros((0, 2), int), "[episodes, 2]"),
        (np.array([[0, 2], [1, 3]]), "overlap"),
        (np.array([[0, 10**17]]), "episode_0000004.npz"),
    ],
)
def test_invalid_tables_are_refused(table, message_part, tmp_path):
    write_calvin(tmp_path / "d", [[0, 3]])
    np.save(tmp_path / "d" / "ep_start_end_ids.npy", table)
    assert_refused(tmp_path / "d", "ep_start_end_ids.npy" if "npz" not in message_part else "", message_part)


def test_a_split_without_steps_or_a_table_is_refused(tmp_path):
    write_calvin(tmp_path / "d", [[0, 1]])
    for file in (tmp_path / "d").glob("*.npz"):
        file.unlink()
    assert_refused(tmp_path / "d", "expected a file a step")
    (tmp_path / "d" / "ep_start_end_ids.npy").unlink()
    assert_refused(tmp_path / "d", "expected ep_start_end_ids.npy")


@pytest.mark.soak
def test_changed_bytes_are_named(tmp_path, rng):
    write_calvin(tmp_path / "d", [[0, 0], [1, 1]], save=np.savez)
    write_pickles(tmp_path / "d")
    files = [tmp_path / "d" / name for name in ("episode_0000001.npz", "ep_start_end_ids.npy")]
    contents = [file.read_bytes() for file in files]
    for _ in range(rounds(60)):
        index = int(rng.integers(2))
        files[index].write_bytes(damage(contents[index], rng))
        try:
            Yields("calvin", tmp_path / "d")
        except robocache.FileError as error:
            assert str(tmp_path / "d") in str(error)
        files[index].write_bytes(contents[index])
