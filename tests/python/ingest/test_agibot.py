"""Episodes in the documented layout of AgiBot World."""

import json

import h5py
import numpy as np
import pytest
from hdf5_files import assert_refused, read_all
from outcomes import ingest_and_open, reasons

import robocache

pytest.importorskip("av")
from video_files import image_bytes, number_of, write_video

START = 1_728_000_000_123_456_789


def make_datasets(rng, rows):
    stamps = START + np.cumsum(rng.integers(33_000_000, 34_000_000, rows))
    return {
        "timestamp": stamps.astype(np.int64),
        "state/joint/position": rng.normal(size=(rows, 14)),
        "state/joint/velocity": np.zeros(0, np.float32),
        "state/effector/position": rng.normal(size=(rows, 2)).astype(np.float32),
        "state/end/position": rng.normal(size=(rows, 2, 3)),
        "state/end/orientation": rng.normal(size=(rows, 2, 4)),
        "action/joint/position": rng.normal(size=(rows, 14)),
        "action/joint/index": np.arange(2, rows, 2),
        "action/effector/index": np.zeros(0, np.int64),
    }


STEPS = [
    {"start_frame": 1, "end_frame": 3, "action_text": "Pick the cup.", "skill": "Pick"},
    {"start_frame": 5, "end_frame": 7, "action_text": "Place it.", "skill": "Place"},
]


def write(root, rng, task, episodes, depth=True):
    """Writes the episodes of a task, {episode: number of rows}. Returns their datasets."""
    written = {}
    for episode, rows in episodes.items():
        written[episode] = make_datasets(rng, rows)
        folder = root / f"proprio_stats/{task}/{episode}"
        folder.mkdir(parents=True)
        with h5py.File(folder / "proprio_stats.h5", "w") as file:
            for key, values in written[episode].items():
                file[key] = values
        observations = root / f"observations/{task}/{episode}"
        for number, camera in enumerate(("head_color", "hand_left_color")):
            write_video(observations / f"videos/{camera}.mp4", [100 * number + k for k in range(rows)])
        for row in range(rows if depth else 0):
            (observations / "depth").mkdir(exist_ok=True)
            image = np.full((12, 16), 500 + row, np.uint16)
            (observations / f"depth/head_depth_{row:06d}.png").write_bytes(image_bytes(image))
    tasks = [
        {
            "episode_id": episode,
            "task_name": "Tidy the table",
            "init_scene_text": "A cup on a table.",
            "label_info": {"action_config": STEPS},
        }
        for episode in episodes
    ]
    (root / "task_info").mkdir(exist_ok=True)
    (root / f"task_info/task_{task}.json").write_text(json.dumps(tasks))
    return written


def test_two_episodes(rng, tmp_path):
    root = tmp_path / "agibot"
    written = write(root, rng, 327, {648642: 8, 648649: 9})
    (root / "parameters/327").mkdir(parents=True)
    (root / "parameters/327/camera.json").write_text("{}")
    dataset, report = ingest_and_open(root, tmp_path / "cache", jobs=1)
    assert (report.format, report.skipped) == ("agibot", [])
    assert dataset.episodes["name"].to_pylist() == ["327/648642", "327/648649"]
    assert dataset.episodes["task"].to_pylist() == ["Tidy the table"] * 2
    assert dataset.episodes["init_scene_text"].to_pylist() == ["A cup on a table."] * 2
    for index, datasets in enumerate(written.values()):
        stamps, episode = datasets["timestamp"], dataset.episode(index)
        for key in ("state/joint/position", "state/end/orientation", "action/joint/position"):
            time_ns, values = episode[key]
            np.testing.assert_array_equal(values, datasets[key])
            assert time_ns.tolist() == stamps.tolist()
        action_rows = datasets["action/joint/index"]
        assert episode["action/joint/index"][0].tolist() == stamps[action_rows].tolist()
        assert episode["action/joint/index"][1].ravel().tolist() == action_rows.tolist()
        for number, camera in enumerate(("head_color", "hand_left_color")):
            time_ns, frames = episode[f"videos/{camera}"]
            assert time_ns.tolist() == stamps.tolist()
            assert [number_of(frame) for frame in frames[:]] == [100 * number + k for k in range(len(stamps))]
        time_ns, depth = episode["depth/head_depth"]
        assert time_ns.tolist() == stamps.tolist() and depth[:][:, 0, 0, 0].tolist() == [
            500 + k for k in range(len(stamps))
        ]
        time_ns, texts = episode["task"]
        assert list(texts) == ["Pick the cup.", "", "Place it.", ""]
        assert time_ns.tolist() == stamps[[1, 3, 5, 7]].tolist()
        assert list(episode["skill"][1]) == ["Pick", "", "Place", ""]
    assert {stream.clock for stream in dataset.streams.values()} == {"recorded"}
    names = {omission.what for omission in report.left_out}
    assert {"state/joint/velocity", "*.json"} <= names


@pytest.mark.parametrize(
    ("units", "is_read"), [("s", True), ("seconds", True), ("ms", False), ("microseconds", False), ("ns", False)]
)
@pytest.mark.parametrize("is_of_simulation", [True, False])
def test_stamps_whose_units_contradict_their_numbers_are_refused(units, is_read, is_of_simulation, rng, tmp_path):
    stamps = write(tmp_path / "a", rng, 1, {2: 8}, depth=False)[2]["timestamp"]
    with h5py.File(tmp_path / "a/proprio_stats/1/2/proprio_stats.h5", "a") as file:
        if is_of_simulation:
            del file["timestamp"]
            file["timestamp"] = np.arange(8) / 32
            stamps = np.arange(8) * 31_250_000
        file["timestamp"].attrs["units"] = units
    if is_read if is_of_simulation else units == "ns":
        assert read_all(tmp_path / "a", video=False)[0][0][1]["state/joint/position"][0].tolist() == stamps.tolist()
    else:
        expected = f"units: expected {'s' if is_of_simulation else 'ns'}, by the numbers, got '{units}'"
        assert_refused(tmp_path / "a", expected, "rate_hz", video=False)


def test_where_steps_overlap_the_latest_start_counts(rng, tmp_path):
    stamps = write(tmp_path / "a", rng, 1, {2: 8}, depth=False)[2]["timestamp"]
    info = tmp_path / "a/task_info/task_1.json"
    labels = json.loads(info.read_text())
    labels[0]["label_info"]["action_config"] = [
        {"start_frame": 3, "end_frame": 5, "action_text": "Open the lid.", "skill": "Open"},
        {"start_frame": 0, "end_frame": 7, "action_text": "Tidy.", "skill": "Place"},
    ]
    info.write_text(json.dumps(labels))
    time_ns, texts = ingest_and_open(tmp_path / "a", tmp_path / "cache", video=False)[0].episode(0)["task"]
    assert list(texts) == ["Tidy.", "Open the lid.", "Tidy.", ""]
    assert time_ns.tolist() == stamps[[0, 3, 5, 7]].tolist()


def test_stamps_of_simulated_episodes_are_seconds(rng, tmp_path):
    write(tmp_path / "a", rng, 1, {2: 8}, depth=False)
    with h5py.File(tmp_path / "a/proprio_stats/1/2/proprio_stats.h5", "a") as file:
        del file["timestamp"]
        file["timestamp"] = np.arange(8, dtype=np.float32) / 32
    [(_, streams)], _ = read_all(tmp_path / "a", video=False)
    assert streams["state/joint/position"][0].tolist() == [k * 31_250_000 for k in range(8)]
    with h5py.File(tmp_path / "a/proprio_stats/1/2/proprio_stats.h5", "a") as file:
        file["timestamp"][:] = np.arange(8) * 33.3
    assert_refused(tmp_path / "a", "expected seconds, got steps of 33.3", "rate_hz", video=False)
    with h5py.File(tmp_path / "a/proprio_stats/1/2/proprio_stats.h5", "a") as file:
        del file["timestamp"]
    assert_refused(tmp_path / "a", "no timestamp", "rate_hz", video=False)
    [(_, streams)], _ = read_all(tmp_path / "a", video=False, rate_hz=20)
    assert streams["state/joint/position"][0].tolist() == [k * 50_000_000 for k in range(8)]


def test_damaged_parts_are_named_and_the_rest_kept(rng, tmp_path):
    root = tmp_path / "a"
    write(root, rng, 1, {2: 8, 3: 8, 4: 8}, depth=False)
    with h5py.File(root / "proprio_stats/1/2/proprio_stats.h5", "a") as file:
        del file["action/joint/position"], file["action/joint/index"]
        file["action/joint/position"] = np.zeros((9, 14))
        file["action/joint/index"] = np.array([0, 99])
    (root / "observations/1/3/videos/head_color.mp4").write_bytes(b"no video")
    (root / "proprio_stats/1/4/proprio_stats.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    tasks = json.loads((root / "task_info/task_1.json").read_text())
    tasks[1]["label_info"]["action_config"][1]["start_frame"] = "x"
    (root / "task_info/task_1.json").write_text(json.dumps(tasks))
    report = robocache.ingest(root, tmp_path / "cache", on_error="skip", jobs=1)
    assert {omission.what for omission in report.skipped} == {
        "1/2: action/joint/position",
        "1/2: action/joint/index",
        "1/3: videos/head_color",
        "1/3: task",
        "1/3: skill",
        "1/4",
    }
    dataset = robocache.open(tmp_path / "cache")
    assert (
        len(dataset.episode(1)["videos/hand_left_color"][0]) == len(dataset.episode(1)["state/joint/position"][0]) == 8
    )


def test_rows_at_gaps_of_a_video_have_no_frame(rng, tmp_path):
    stamps = write(tmp_path / "a", rng, 1, {2: 9}, depth=False)[2]["timestamp"]
    fewer_frames, as_many_frames = [0, 1, 2, 3, 5, 6, 7, 8], [0, 1, 2, 3, 5, 6, 7, 8, 9]
    for camera, numbers in (("head_color", fewer_frames), ("hand_left_color", as_many_frames)):
        write_video(tmp_path / f"a/observations/1/2/videos/{camera}.mp4", numbers, times=[k / 30 for k in numbers])
    report = robocache.ingest(tmp_path / "a", tmp_path / "cache", on_error="skip", jobs=1)
    assert [omission.what for omission in report.skipped] == ["1/2: videos/head_color: rows 4"]
    assumed = reasons(report.assumed)
    assert "hand_left_color.mp4 have holes (1, the first after frame 3)" in assumed["1/2: videos/hand_left_color"]
    episode = robocache.open(tmp_path / "cache").episode(0)
    for camera, numbers, rows in (
        ("head_color", fewer_frames, fewer_frames),
        ("hand_left_color", as_many_frames, range(9)),
    ):
        time_ns, frames = episode[f"videos/{camera}"]
        assert time_ns.tolist() == stamps[list(rows)].tolist()
        assert [number_of(frame) for frame in frames[:]] == numbers


def test_a_single_episode(rng, tmp_path):
    write(tmp_path / "a", rng, 1, {2: 8}, depth=False)
    (tmp_path / "a/proprio_stats/1/2/proprio_stats.h5").rename(tmp_path / "a/observations/1/2/proprio_stats.h5")
    [(recording, streams)], notes = read_all(tmp_path / "a/observations/1/2", jobs=1)
    assert {"videos/head_color", "state/joint/position"} <= set(streams)
    assert recording.metadata["episode_id"] == "2" and not reasons(notes.skipped)
