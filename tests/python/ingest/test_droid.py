"""DROID's trajectories with their real clocks, metadata and videos."""

import json

import numpy as np
import pytest
from hdf5_files import SERIALS, assert_refused, make_droid, read_all, write_droid
from outcomes import ingest_and_open, reasons
from video_files import number_of, write_video
from yields import pixels

import robocache


def test_droid_has_real_clocks(rng, tmp_path):
    trajectory = make_droid(rng, 9)
    folder = write_droid(tmp_path / "raw/AUTOLab/success/2023-07-22/Sat_Jul_22_13:08:00_2023", trajectory)
    [(recording, streams)], notes = read_all(tmp_path / "raw")
    assert recording.what == "AUTOLab/success/2023-07-22/Sat_Jul_22_13:08:00_2023"
    stamps = {key.rsplit("/", 1)[1]: trajectory[key] * 1_000_000 for key in trajectory if "/timestamp/" in key}
    for key, clock in {
        "observation/robot_state/joint_positions": "read_end",
        "observation/camera_extrinsics/wrist_left": "read_end",
        "action/cartesian_position": "control_start",
        "action/robot_state/joint_positions": "control_start",
        "observation/controller_info/success": "step_start",
        "observation/timestamp/cameras/ext2_frame_received": "step_start",
    }.items():
        assert streams[key][0].tolist() == stamps[clock].tolist(), key
    for key, expected in trajectory.items():
        name = key
        for role, serial in SERIALS.items():
            name = name.replace(serial, role)
        np.testing.assert_array_equal(streams[name][1], expected)
        assert streams[name][1].dtype == expected.dtype
    assert len(streams) == len(trajectory)
    metadata = recording.metadata
    assert (metadata["success"], metadata["current_task"]) == (True, "put the marker in the cup")
    assert (metadata["building"], metadata["wrist_cam_serial"]) == ("lab", SERIALS["wrist"])
    assert metadata["wrist_cam_extrinsics"] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert not notes.left_out and not notes.skipped
    dataset, _ = ingest_and_open(folder, tmp_path / "cache")
    action = dataset.streams["action/gripper_position"]
    assert action.clock == "recorded"
    assert action.attributes == {"clock_source": "observation/timestamp/control/control_start"}


def test_droid_cameras_are_recognised_without_metadata(rng, tmp_path):
    folder = write_droid(tmp_path / "raw/a", make_droid(rng, 3), metadata=False)
    [(recording, streams)], notes = read_all(folder)
    assert {f"observation/camera_type/{role}" for role in SERIALS} < set(streams)
    assert recording.metadata["success"] is True  # from the file itself
    assert "a: metadata" in reasons(notes.left_out)


def read_droid_video(rng, tmp_path, frames, rows=6, name=SERIALS["ext1"], listed=None, times=None, **options):
    """Reads a trajectory with a video. `listed`: the rows whose stamps a list beside it has, -1 for a stamp of no row."""
    trajectory = make_droid(rng, rows)
    folder = write_droid(tmp_path / "a", trajectory)
    write_video(folder / f"recordings/MP4/{name}.mp4", frames, fps=60, times=times)
    if listed is not None:
        received = trajectory[f"observation/timestamp/cameras/{SERIALS['ext1']}_frame_received"]
        stamps = [int(received[row]) if row >= 0 else 1 for row in listed]
        (folder / f"recordings/MP4/{SERIALS['ext1']}_timestamps.json").write_text(json.dumps(stamps))
    recordings, notes = read_all(folder, jobs=1, **options)
    captured = trajectory[f"observation/timestamp/cameras/{SERIALS['ext1']}_estimated_capture"] * 1_000_000
    return recordings[0][1], notes, captured.tolist()


def times_and_numbers(stream):
    time_ns, encoded = stream
    return time_ns.tolist(), [number_of(image) for image in pixels(encoded)]


@pytest.mark.parametrize(
    ("frames", "suffix", "note"),
    [
        ([3, 1, 4, 1, 5, 9], "", None),
        (range(6), "-stereo", None),  # both eyes side by side are a stream of their own
        (range(5), "", ("observation/image/ext1: last rows", "one frame less")),
        (range(8), "", ("a: observation/image/ext1: frames", "2 are no row's")),
    ],
)
def test_droid_frame_k_is_row_k(frames, suffix, note, rng, tmp_path):
    streams, notes, captured = read_droid_video(rng, tmp_path, frames, name=f"{SERIALS['ext1']}{suffix}")
    stream = streams[f"observation/image/ext1{suffix.replace('-', '_')}"]
    assert times_and_numbers(stream) == (captured[: len(frames)], list(frames)[:6])
    assert not notes.skipped and [*reasons(notes.left_out)] == ([note[0]] if note else [])
    assert note is None or note[1] in reasons(notes.left_out)[note[0]]


def test_droid_missing_frames_are_named(rng, tmp_path):
    with pytest.raises(robocache.FileError, match="6 rows and 3 frames"):
        read_droid_video(rng, tmp_path, range(3))
    streams, notes, _ = read_droid_video(rng, tmp_path, range(3), on_error="skip")
    assert "observation/image/ext1" not in streams  # missing frames may be the first three or the last three
    ((what, reason),) = reasons(notes.skipped).items()
    assert what == "a: observation/image/ext1"
    assert "3 rows have none, and no time, hole or list of stamps shows which" in reason


def test_droid_rows_at_gaps_of_the_video_have_no_frame(rng, tmp_path):
    kept_frames, all_but_2 = [0, 1, 3, 4, 5], [0, 1, 3, 4, 5, 6]
    with pytest.raises(robocache.FileError, match="no frame: 6 rows and 5 frames"):
        read_droid_video(rng, tmp_path / "stop", kept_frames, times=[k / 60 for k in kept_frames])
    streams, notes, captured = read_droid_video(
        rng, tmp_path / "a", kept_frames, times=[k / 60 for k in kept_frames], on_error="skip"
    )
    assert times_and_numbers(streams["observation/image/ext1"]) == ([captured[k] for k in kept_frames], kept_frames)
    assert list(reasons(notes.skipped)) == ["a: observation/image/ext1: rows 2"] and not notes.left_out
    streams, notes, captured = read_droid_video(rng, tmp_path / "b", all_but_2, times=[k / 60 for k in all_but_2])
    assert times_and_numbers(streams["observation/image/ext1"]) == (captured, all_but_2)
    assumed = reasons(notes.assumed)
    assert "holes (1, the first after frame 1)" in assumed["a: observation/image/ext1"]


def test_droid_a_list_of_stamps_matches_frames_and_rows(rng, tmp_path):
    streams, notes, captured = read_droid_video(
        rng, tmp_path, range(7), listed=[-1, 0, 1, 2, 4, 5, -1], on_error="skip"
    )
    assert times_and_numbers(streams["observation/image/ext1"]) == (
        [captured[row] for row in (0, 1, 2, 4, 5)],
        [1, 2, 3, 4, 5],
    )
    assert list(reasons(notes.skipped)) == ["a: observation/image/ext1: rows 3"]
    assert reasons(notes.left_out)["a: observation/image/ext1: frames"].startswith("2 are no row's")
    assert "*.json" not in reasons(notes.left_out)  # the list was read


def test_droid_more_stamps_than_frames_need_gaps_or_one_frame_less(rng, tmp_path):
    kept_frames = [0, 1, 3, 4, 5]
    times = [k / 60 for k in kept_frames]
    streams, notes, captured = read_droid_video(
        rng, tmp_path / "holes", kept_frames, listed=range(6), times=times, on_error="skip"
    )
    assert times_and_numbers(streams["observation/image/ext1"]) == ([captured[row] for row in kept_frames], kept_frames)
    assert list(reasons(notes.skipped)) == ["a: observation/image/ext1: rows 2"]
    streams, notes, captured = read_droid_video(rng, tmp_path / "end", range(5), listed=range(6))
    assert times_and_numbers(streams["observation/image/ext1"]) == (captured[:5], [0, 1, 2, 3, 4])
    streams, notes, _ = read_droid_video(rng, tmp_path / "unknown", range(2, 6), listed=range(6), on_error="skip")
    assert "observation/image/ext1" not in streams  # missing frames may be the first two or the last two
    assert list(reasons(notes.skipped)) == ["a: observation/image/ext1"]


def test_droid_without_video(rng, tmp_path):
    streams, notes, _ = read_droid_video(rng, tmp_path, range(6), video=False)
    assert "observation/image/ext1" not in streams
    assert reasons(notes.left_out)["observation/image/ext1"] == "video; left out with video=False (--no-video)"


def test_droid_faults_are_named(rng, tmp_path):
    trajectory = make_droid(rng, 4)
    folder = write_droid(tmp_path / "raw/a", trajectory)
    (metadata,) = folder.glob("metadata_*")
    original = metadata.read_text()
    for content in ("{", "[]", '{"a": "\\ud800"}', "[" * 100_000, "\xff"):
        metadata.write_bytes(content.encode("latin-1"))
        assert_refused(folder, str(metadata))
    metadata.write_text(json.dumps(json.loads(original) | {"trajectory_length": 9, "nested": {}, "mixed": [1, None]}))
    _, notes = read_all(folder)
    assert {"metadata: nested", "metadata: mixed", "a: trajectory_length"} == set(reasons(notes.left_out))
    metadata.write_text(original)
    clock_key = "observation/timestamp/control/control_start"
    write_droid(folder, trajectory | {clock_key: trajectory[clock_key] // 1000})
    assert_refused(folder, f"/{clock_key}", "expected milliseconds since 1970")
    write_droid(folder, trajectory | {"action/cartesian_position": np.zeros((3, 6))})
    assert_refused(folder, "/action/cartesian_position: 3 rows, expected 4")
    write_droid(folder, {key: values for key, values in trajectory.items() if "/timestamp/" not in key})
    assert_refused(folder, "no stamps for")
