"""Cameras at ingest: the frame of each row, the frames in the cache, and faults of videos."""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import outcomes
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot_files import BOOKKEEPING, LFS_POINTER, Episode, write_lerobot, write_table
from robocache.cli import main

import robocache

av = pytest.importorskip("av", reason="no PyAV: pip install av")

from robocache.ingest import driver, video  # noqa: E402
from video_files import (  # noqa: E402
    HEIGHT,
    WIDTH,
    image_bytes,
    number_of,
    picture,
    read_video,
    restored_scheduling,
    write_video,
)

TOP = "observation.images.top"


def write_set(root, lengths=(7, 5, 9), version="v2.1", fps=30, cameras=(TOP,), dtype="video", **more):
    """Writes a LeRobot dataset with episodes of `lengths` rows and declared cameras; the caller writes their files."""
    episodes = [
        Episode({"action": np.arange(n, dtype=np.float32)}, extra=extra)
        for n, extra in zip(lengths, more.pop("extras", [{} for _ in lengths]), strict=True)
    ]
    for episode, stamps in zip(episodes, more.pop("timestamps", [None] * len(lengths)), strict=True):
        episode.timestamp = stamps
    features = {"action": {"dtype": "float32", "shape": [1], "names": None}, **BOOKKEEPING}
    features |= {camera: {"dtype": dtype, "shape": [HEIGHT, WIDTH, 3], "names": None} for camera in cameras}
    return write_lerobot(root, episodes, version, fps=fps, features=features, **more)


def video_path(root, episode, camera=TOP):
    return root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"


def numbers(episode, n):
    """Returns the numbers that an episode's pictures show."""
    return [100 * episode + k for k in range(n)]


def write_videos(root, lengths=(7, 5, 9), camera=TOP, **options):
    for episode, n in enumerate(lengths):
        write_video(video_path(root, episode, camera), numbers(episode, n), **options)
    return root


def read_shown(cache, camera=TOP):
    """Returns for each episode the numbers that a camera's frames show, and their stamps in ns."""
    dataset = robocache.open(cache)
    stream = dataset.streams[camera]
    episodes = []
    for begin, end in zip(stream.row_offsets, stream.row_offsets[1:], strict=False):
        shown = [number_of(stream.frame(row)) for row in range(begin, end)]
        episodes.append((shown, stream.time_ns[begin:end].tolist()))
    return episodes


def nominal_ns(rows, fps=30):
    return [round(k * 10**9 / fps) for k in rows]


assert_refused = partial(outcomes.assert_refused, jobs=1)


def skip_reasons(source, cache, **options):
    """Returns {name: reason} of what was skipped."""
    report = robocache.ingest(source, cache, on_error="skip", jobs=1, **options)
    return outcomes.reasons(report.skipped)


# ---- the frame of a row ----


@settings(max_examples=200)
@given(st.lists(st.integers(-50, 300)), st.lists(st.integers(0, 200)), st.sampled_from([0, 0.5, 3, 17]))
def test_rule_45_the_nearest_frame_within_the_tolerance(rows, frames, tolerance):
    rows, frames = sorted(rows), sorted(set(frames))
    picked = video.match(np.array(rows, np.int64), np.array(frames, np.int64), tolerance)
    for row, frame in zip(rows, picked.tolist(), strict=True):
        best = min(range(len(frames)), key=lambda k: (abs(frames[k] - row), k), default=None)
        assert frame == (-1 if best is None or abs(frames[best] - row) > tolerance else best)


CODECS = {
    "mpeg4": {},
    "libx264": {"bf": "3"},
    "libx265": {"x265-params": "log-level=none:pools=1:bframes=3"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    "libsvtav1": {"preset": "11"},
}


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_pyavs_pixels(codec, tmp_path):
    lengths = (30, 41)
    source = write_set(tmp_path / "source", lengths)
    write_videos(source, lengths, codec=codec, options=CODECS[codec])
    report = robocache.ingest(source, tmp_path / "cache", image_codec="raw", jobs=1)
    assert (report.skipped, report.rows[TOP]) == ([], 71)
    assert read_shown(tmp_path / "cache") == [(numbers(e, n), nominal_ns(range(n))) for e, n in enumerate(lengths)]
    stream = robocache.open(tmp_path / "cache", verify=True).streams[TOP]
    expected = np.concatenate([read_video(video_path(source, episode))[1] for episode in (0, 1)])
    np.testing.assert_array_equal(stream.values[:], expected)
    assert (stream.frames.codec, stream.frames.color_space, stream.clock) == ("raw", "rgb", "nominal")


def test_many_episodes_in_a_file(tmp_path):
    """v3.0: an episode's frames begin at from_timestamp, which may be between keyframes."""
    lengths = (20, 1, 33, 14)
    starts = np.concatenate([[0], np.cumsum(lengths)]) / 30
    extras = [
        {
            f"videos/{TOP}/chunk_index": 0,
            f"videos/{TOP}/file_index": int(episode == 3),
            f"videos/{TOP}/from_timestamp": float(starts[episode]) if episode < 3 else 0.0,
            f"videos/{TOP}/to_timestamp": float(starts[episode + 1]) if episode < 3 else lengths[3] / 30,
        }
        for episode in range(4)
    ]
    source = write_set(tmp_path / "source", lengths, "v3.0", extras=extras)
    shown = [numbers(episode, n) for episode, n in enumerate(lengths)]
    folder = source / f"videos/{TOP}/chunk-000"
    write_video(folder / "file-000.mp4", shown[0] + shown[1] + shown[2], codec="libx264", gop=8, options={"bf": "2"})
    write_video(folder / "file-001.mp4", shown[3], codec="libx264", gop=8, options={"bf": "2"})
    for jobs in (1, 2):
        report = robocache.ingest(source, tmp_path / f"cache{jobs}", jobs=jobs)
        assert (report.skipped, report.cameras[TOP]["frames"]) == ([], 68)
        assert read_shown(tmp_path / f"cache{jobs}") == [
            (shown[episode], nominal_ns(range(n))) for episode, n in enumerate(lengths)
        ]


def columns_of_one_file(bounds, camera=TOP):
    """Returns the columns of meta/ for episodes in one file of v3.0; bounds: [(from_timestamp, to_timestamp)]."""
    names = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    return [
        {
            f"videos/{camera}/{name}": value
            for name, value in zip(names, (0, 0, *bound), strict=True)
            if value is not None
        }
        for bound in bounds
    ]


def write_shared(root, lengths, bounds, shown, fps=30, times=None):
    """Writes a set of v3.0 whose episodes are in one file; its frames show `shown`. bounds: as in :func:`columns_of_one_file`."""
    source = write_set(root, lengths, "v3.0", fps=fps, extras=columns_of_one_file(bounds))
    write_video(source / f"videos/{TOP}/chunk-000/file-000.mp4", shown, times=times)
    return source


def test_rule_45_to_timestamp_is_no_bound(tmp_path):
    """Some converters write the last frame's time as to_timestamp, others round it, and it may be missing."""
    lengths = (20, 1, 33, 14)
    starts = np.concatenate([[0], np.cumsum(lengths)]) / 30
    for name, ends in {"last": starts[1:] - 1 / 30, "early": starts[:-1], "none": [None] * 4}.items():
        bounds = zip(starts[:-1].tolist(), [end if end is None else float(end) for end in ends], strict=True)
        shown = [numbers(episode, n) for episode, n in enumerate(lengths)]
        source = write_shared(tmp_path / name, lengths, bounds, chain.from_iterable(shown))
        report = robocache.ingest(source, tmp_path / f"{name}.cache", jobs=1)
        assert (report.skipped, report.cameras[TOP]["frames"]) == ([], 68)
        assert [frames for frames, _ in read_shown(tmp_path / f"{name}.cache")] == shown


@pytest.mark.parametrize("drift_s", [0.004, 0.008, -0.008])
def test_rule_45_drifting_starts_never_give_another_episodes_frames(drift_s, tmp_path):
    """Converters sum rounded durations. After a drift of half a period, the nearest frame may be another episode's."""
    lengths = (9,) * 8
    starts = np.concatenate([[0], np.cumsum(lengths)]) / 30 + drift_s * np.arange(9)
    bounds = list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
    shown = [numbers(episode, n) for episode, n in enumerate(lengths)]
    source = write_shared(tmp_path / "source", lengths, bounds, chain.from_iterable(shown))
    drifting = [episode for episode in range(8) if abs(drift_s) * episode > 0.5 / 30]
    reasons = skip_reasons(source, tmp_path / "cache")
    assert list(reasons) == [f"episode {episode}: {TOP}" for episode in drifting]
    assert all("drift" in reason and "frames='by-index'" in reason for reason in reasons.values())
    frames_read = [frames for frames, _ in read_shown(tmp_path / "cache")]
    assert frames_read == [[] if episode in drifting else shown[episode] for episode in range(8)]
    report = robocache.ingest(source, tmp_path / "by-index", frames="by-index", jobs=1)
    assert not report.skipped and [frames for frames, _ in read_shown(tmp_path / "by-index")] == shown


def test_rule_45_episodes_with_one_start_in_a_file_have_no_frames(tmp_path):
    """A converter writes 0 for each episode: the frames of all episodes in the file are unknown."""
    bounds = [(0.0, 0.2), (0.004, 0.2), (0.4, 0.7)]
    source = write_shared(tmp_path / "source", (7, 5, 9), bounds, numbers(0, 12) + numbers(2, 9))
    reasons = skip_reasons(source, tmp_path / "cache")
    assert list(reasons) == [f"episode {episode}: {TOP}" for episode in range(3)]
    assert all("2 episodes begin at 0" in reason and "from_timestamp" in reason for reason in reasons.values())
    assert TOP not in robocache.open(tmp_path / "cache").streams


def write_wrongly_merged(root, starts, frames_in_last_file=11):
    """Writes four episodes in two files, wrongly merged: meta/ has all of them in the last file."""
    lengths = (5, 6, 7, 4)
    extras = [
        {f"videos/{TOP}/chunk_index": 0, f"videos/{TOP}/file_index": 1, f"videos/{TOP}/from_timestamp": start}
        for start in starts
    ]
    source = write_set(root, lengths, "v3.0", fps=10, extras=extras)
    folder = source / f"videos/{TOP}/chunk-000"
    write_video(folder / "file-000.mp4", numbers(0, 5) + numbers(1, 6), fps=10)
    write_video(folder / "file-001.mp4", (numbers(2, 7) + numbers(3, 99))[:frames_in_last_file], fps=10)
    return source


@pytest.mark.parametrize(
    ("starts", "frames_in_last_file", "message_part"),
    [
        ([0.0, 0.5, 1.1, 1.8], 11, "its last frame is at 1.0000 s, the last row of its episodes at 2.1000 s"),
        ([0.0, 0.5, 1.1, 1.8], 20, "its last frame is at 1.9000 s, the last row of its episodes at 2.1000 s"),
        ([0.0, 0.5, 0.0, 0.7], 11, "2 episodes begin at 0 s"),
    ],
)
def test_a_file_too_short_for_its_episodes_gives_no_frames(starts, frames_in_last_file, message_part, tmp_path):
    """After a faulty merge all episodes point to the last file. Rows that find a frame there would get another episode's frame."""
    source = write_wrongly_merged(tmp_path / "source", starts, frames_in_last_file)
    assert_refused(source, tmp_path / "cache", "file-001.mp4", message_part)
    for options in ({}, {"frames": "by-index"}):
        reasons = skip_reasons(source, tmp_path / f"cache{len(options)}", **options)
        assert list(reasons) == [f"episode {episode}: {TOP}" for episode in range(4)]
        assert all("file-001.mp4" in reason and message_part in reason for reason in reasons.values())


def test_an_unused_video_file_is_named(tmp_path):
    """The last file is long enough for all episodes, so only the unused file shows the fault."""
    report = robocache.ingest(
        write_wrongly_merged(tmp_path / "source", [0.0, 0.5, 1.1, 1.8], 40), tmp_path / "cache", jobs=1
    )
    left_out = outcomes.reasons(report.left_out)
    assert left_out[f"{TOP}: video files"] == f"no episode points to videos/{TOP}/chunk-000/file-000.mp4"
    source = write_videos(write_set(tmp_path / "v2.1"), (7, 5, 9, 4))
    write_videos(source, (7, 5, 9), "extra")
    left_out = outcomes.reasons(robocache.ingest(source, tmp_path / "cache2", jobs=1).left_out)
    assert left_out["video files of no feature"].startswith("3, such as videos/chunk-000/extra/episode_000000.mp4")
    assert left_out[f"{TOP}: video files"].endswith(f"{TOP}/episode_000003.mp4")


def test_rule_45_episodes_of_a_file_with_frames_between_them_and_rounded_starts(tmp_path):
    """Half a second of frames between two episodes belongs to no row; a start rounded to 10 ms finds the same frames."""
    starts = [0.0, round(22 / 30, 2)]
    shown = numbers(0, 7) + numbers(2, 15) + numbers(1, 5) + numbers(3, 4)
    source = write_shared(tmp_path / "source", (7, 5), [(start, start + 0.1) for start in starts], shown)
    report = robocache.ingest(source, tmp_path / "cache", jobs=1)
    assert report.skipped == []
    assert [shown for shown, _ in read_shown(tmp_path / "cache")] == [numbers(0, 7), numbers(1, 5)]
    assert outcomes.reasons(report.left_out)[f"{TOP}: frames"] == "19 of 31 are no row's"


def test_rule_45_video_at_twice_the_rate_of_the_rows(tmp_path):
    bounds = [(0.0, 13 / 30), (14 / 30, 0.75)]
    source = write_shared(tmp_path / "source", (7, 5), bounds, numbers(0, 14) + numbers(1, 10), fps=15)
    assert robocache.ingest(source, tmp_path / "cache", jobs=1).skipped == []
    assert [shown for shown, _ in read_shown(tmp_path / "cache")] == [numbers(0, 14)[::2], numbers(1, 10)[::2]]


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_camera_is_searched_only_below_the_source(version, tmp_path):
    """Folders above the source have the name of another camera."""
    lengths, cameras = (4, 3), ("image", "wrist_image")
    extras = [{}, {}]
    for camera in cameras if version == "v3.0" else ():
        for extra, columns in zip(extras, columns_of_one_file([(0.0, 4 / 30), (4 / 30, 7 / 30)], camera), strict=True):
            extra |= columns
    source = tmp_path / "image" / "wrist_image" / "source"
    write_set(source, lengths, version, cameras=cameras, extras=extras)
    shown = {
        camera: [[500 * index + number for number in numbers(e, n)] for e, n in enumerate(lengths)]
        for index, camera in enumerate(cameras)
    }
    for camera in cameras:
        if version == "v3.0":
            write_video(source / f"videos/{camera}/chunk-000/file-000.mp4", chain.from_iterable(shown[camera]))
        else:
            for e in range(len(lengths)):
                write_video(video_path(source, e, camera), shown[camera][e])
    robocache.ingest(source, tmp_path / "cache", jobs=1)
    for camera in cameras:
        assert [frames for frames, _ in read_shown(tmp_path / "cache", camera)] == shown[camera]


def test_two_video_files_of_an_episode_are_refused(tmp_path):
    """For example a backup beside the video, with other frames."""
    source = write_videos(write_set(tmp_path / "source"))
    write_video(source / "videos/old" / TOP / "episode_000001.mp4", [300] * 5)
    assert_refused(source, tmp_path / "cache", "episode 1", "expected one file episode_000001.mp4", "videos/old")
    reasons = skip_reasons(source, tmp_path / "cache")
    assert list(reasons) == [f"episode 1: {TOP}"]
    assert [frames for frames, _ in read_shown(tmp_path / "cache")] == [numbers(0, 7), [], numbers(2, 9)]


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_rows_cut_at_the_front_keep_the_frames_of_their_stamps(version, tmp_path):
    """The first row of an episode is missing: its stamps begin at 1 / fps, but frame_index at 0."""
    stamps = [(np.arange(n) + 1) / 30 for n in (6, 4)]
    more = {"extras": columns_of_one_file([(0.0, 7 / 30), (7 / 30, 0.4)])} if version == "v3.0" else {}
    source = write_set(tmp_path / "source", (6, 4), version, timestamps=stamps, **more)
    if version == "v3.0":
        write_video(source / f"videos/{TOP}/chunk-000/file-000.mp4", [*numbers(0, 7), *numbers(1, 5)])
    else:
        write_videos(source, (7, 5))
    robocache.ingest(source, tmp_path / "cache", jobs=1)
    assert [frames for frames, _ in read_shown(tmp_path / "cache")] == [numbers(0, 7)[1:], numbers(1, 5)[1:]]


def test_frames_at_uneven_times_are_chosen_by_stamps(rng, tmp_path):
    """Rows on another clock take the nearest frame, some twice, some never."""
    frame_times = np.cumsum(rng.uniform(0.02, 0.05, 50))
    row_times = np.sort(rng.uniform(frame_times[0] - 0.015, frame_times[-1] + 0.015, 40))
    source = write_set(tmp_path / "source", (40,), timestamps=[row_times])
    file = write_video(video_path(source, 0), range(50), times=frame_times, codec="libx264", options={"bf": "3"})
    stamps, _ = read_video(file)
    rows_ns = np.rint(row_times * 1e9).astype(int).tolist()
    nearest = [min(range(50), key=lambda k: (abs(stamps[k] - Fraction(row, 10**9)), k)) for row in rows_ns]
    nearness = [
        abs(stamps[k] - Fraction(row, 10**9)) <= Fraction(1, 60) for k, row in zip(nearest, rows_ns, strict=True)
    ]
    reasons = skip_reasons(source, tmp_path / "cache")
    expected = [(k, row) for k, row, is_near in zip(nearest, rows_ns, nearness, strict=True) if is_near]
    assert len(expected) < 40 and len({k for k, _ in expected}) < len(expected)
    ((shown, times),) = read_shown(tmp_path / "cache")
    assert list(zip(shown, times, strict=True)) == expected
    assert [f"of {40 - len(expected)} of the rows" in reason for reason in reasons.values()] == [True]


def test_stamps_that_begin_at_one_period_begin_at_0(tmp_path):
    source = write_set(tmp_path / "source", (6,), timestamps=[(np.arange(6) + 1) / 30])
    write_videos(source, (6,))
    assert robocache.ingest(source, tmp_path / "cache", jobs=1).skipped == []
    assert read_shown(tmp_path / "cache") == [(numbers(0, 6), nominal_ns(range(6)))]


# ---- the frames in the cache ----


def test_jpeg_of_quality_95_is_the_default(tmp_path):
    source = write_videos(write_set(tmp_path / "source"))
    robocache.ingest(source, tmp_path / "cache", jobs=1)
    robocache.ingest(source, tmp_path / "png", image_codec="png", jobs=1)
    robocache.ingest(source, tmp_path / "worse", image_codec="jpeg:30", jobs=1)
    jpeg, png, worse = (robocache.open(tmp_path / name).streams[TOP] for name in ("cache", "png", "worse"))
    assert [stream.frames.codec for stream in (jpeg, png, worse)] == ["jpeg", "png", "jpeg"]
    expected = np.concatenate([read_video(video_path(source, episode))[1] for episode in range(3)])
    np.testing.assert_array_equal(png.values[:], expected)
    encoded = robocache.frames.encode(expected, codec="jpeg", quality=95)
    np.testing.assert_array_equal(
        jpeg.values[:],
        robocache.frames.decode("jpeg", encoded.data, encoded.offsets, encoded.shape, np.uint8, range(21)),
    )
    assert np.abs(worse.values[:].astype(int) - expected).mean() > np.abs(jpeg.values[:].astype(int) - expected).mean()


@pytest.mark.parametrize("fit", ["stretch", "pad", "crop"])
def test_resized_frames(fit, tmp_path):
    source = write_videos(write_set(tmp_path / "source"))
    robocache.ingest(source, tmp_path / "cache", image_size="40x24", image_fit=fit, image_codec="raw", jobs=1)
    stream = robocache.open(tmp_path / "cache").streams[TOP]
    expected = np.concatenate([read_video(video_path(source, episode))[1] for episode in range(3)])
    np.testing.assert_array_equal(
        stream.values[:], robocache.image_batch(expected, size=(24, 40), fit=fit, dtype="uint8", layout="hwc")
    )
    assert stream.frames.resized == {"size": [24, 40], "fit": fit, "from": [HEIGHT, WIDTH]}


def test_the_cache_does_not_depend_on_the_number_of_processes(tmp_path):
    cameras = (TOP, "observation.images.wrist")
    lengths = (130, 5, 70)
    source = write_set(tmp_path / "source", lengths, cameras=cameras)
    write_videos(source, lengths, codec="libx264", options={"bf": "2"})
    write_videos(source, lengths, cameras[1], codec="libx264", gop=300)
    file = video_path(source, 0)
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2 : len(damaged) // 2 + 40] = bytes(40)
    file.write_bytes(damaged)
    for jobs in (1, 2, 3):
        report = robocache.ingest(source, tmp_path / f"cache{jobs}", on_error="skip", jobs=jobs)
        assert report.skipped
    caches = [
        {path.relative_to(cache): path.read_bytes() for path in cache.rglob("*") if path.is_file()}
        for cache in (tmp_path / "cache1", tmp_path / "cache2", tmp_path / "cache3")
    ]
    assert caches[0] == caches[1] == caches[2]


def test_cameras_are_left_out_with_the_option(tmp_path):
    source = write_set(tmp_path / "source")
    video_path(source, 0).parent.mkdir(parents=True)
    video_path(source, 0).write_text("no video")
    report = robocache.ingest(source, tmp_path / "cache", video=False)
    assert TOP in [omission.what for omission in report.left_out]
    assert (report.rows["action"], TOP in report.rows, report.cameras) == (21, False, {})


@pytest.mark.parametrize("workers", [None, 2])
def test_the_mapping_of_a_dry_run_applies_without_cameras(workers, tmp_path):
    from robocache.ingest import preview

    source = write_videos(write_set(tmp_path / "source"))
    found = preview(source).mapping
    assert f'[streams."{TOP}"]' in found
    (tmp_path / "map.toml").write_text(found.replace('include = ["*"]', f'include = ["action", "{TOP}", "*index"]'))
    options = {"mapping": tmp_path / "map.toml", "video": False, "workers": workers}
    report = robocache.ingest(source, tmp_path / "cache", **options)
    assert report.rows["action"] == 21 and TOP not in report.rows
    assert TOP in [omission.what for omission in report.left_out]
    (tmp_path / "map.toml").write_text('[streams."observation.images.tpo"]\nname = "top"\n')
    with pytest.raises(robocache.ArgumentError, match=r"images\.tpo: no such stream among"):
        robocache.ingest(source, tmp_path / "other", **options)


def test_a_declared_camera_without_any_file_is_left_out(tmp_path):
    source = write_videos(write_set(tmp_path / "source", cameras=(TOP, "observation.images.planned")))
    report = robocache.ingest(source, tmp_path / "cache", jobs=1)
    assert outcomes.reasons(report.left_out)["observation.images.planned"] == "video; files for 0 of 3 episodes"
    assert report.rows[TOP] == 21


def test_other_videos_of_a_file_are_named(tmp_path):
    source = write_videos(write_set(tmp_path / "source"))
    expected = robocache.ingest(source, tmp_path / "cache", jobs=1)
    one = video_path(source, 1)
    paths = one, video_path(source, 2)
    with av.open(str(tmp_path / "two.mp4"), "w") as both, contextlib.ExitStack() as stack:
        containers = [stack.enter_context(av.open(str(path))) for path in paths]
        tracks = [both.add_stream_from_template(container.streams.video[0]) for container in containers]
        for container, track in zip(containers, tracks, strict=True):
            for packet in container.demux(video=0):
                if packet.dts is not None:
                    packet.stream = track
                    both.mux(packet)
    (tmp_path / "two.mp4").replace(one)
    report = robocache.ingest(source, tmp_path / "two", jobs=1)
    assert outcomes.reasons(report.left_out)[f"{TOP}: video tracks"].startswith("of several in the file the first")
    assert len(report.left_out) == len(expected.left_out) + 1
    assert read_shown(tmp_path / "two") == read_shown(tmp_path / "cache")


def test_unused_frames_are_counted(tmp_path):
    source = write_set(tmp_path / "source")
    for episode, frames in enumerate((7, 8, 11)):
        write_video(video_path(source, episode), numbers(episode, frames))
    report = robocache.ingest(source, tmp_path / "cache", jobs=1)
    assert outcomes.reasons(report.left_out)[f"{TOP}: frames"] == "5 of 26 are no row's"
    assert read_shown(tmp_path / "cache") == [(numbers(e, n), nominal_ns(range(n))) for e, n in enumerate((7, 5, 9))]


# ---- depth ----

LOSSLESS = {"x265-params": "lossless=1:log-level=none"}


def write_codes(path, codes, pixels, fps=30):
    """Writes lossless video whose luma is these 12-bit codes, uint16 [n, H, W]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx265", rate=fps, options=LOSSLESS)
        stream.height, stream.width, stream.pix_fmt = *codes.shape[1:], pixels
        for k, picture in enumerate(codes):
            frame = av.VideoFrame(stream.width, stream.height, pixels)
            for number, plane in enumerate(frame.planes):
                lines = np.full((plane.buffer_size // plane.line_size, plane.line_size // 2), 2048, np.uint16)
                if number == 0:
                    lines[: len(picture), : picture.shape[1]] = picture
                plane.update(lines.tobytes())
            frame.pts = k
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_depth_set(root, info, codes, pixels="gray12le", camera=TOP):
    """Writes a dataset of one episode; info.json has `info` for its camera."""
    source = write_set(root, (len(codes),))
    path = source / "meta/info.json"
    info_fields = json.loads(path.read_text())
    info_fields["features"][camera] |= {"shape": [*codes.shape[1:], 1]} | info
    path.write_text(json.dumps(info_fields))
    write_codes(video_path(source, 0, camera), codes, pixels)
    return source


def dequantize(codes, low, high, shift, use_log):
    """Returns millimetres as LeRobot's dequantize_depth does, in float32."""
    if use_log:
        first, last = np.log(low + shift), np.log(high + shift)
        metres = np.exp((codes * ((last - first) / 4095) + first).astype(np.float32)) - np.float32(shift)
    else:
        metres = (codes * ((high - low) / 4095) + low).astype(np.float32)
    return np.rint(np.clip(metres, low, high) * 1000)


@pytest.mark.parametrize("pixels", ["gray12le", "yuv420p12le"])
@pytest.mark.parametrize(
    ("info", "scale"),
    [
        (
            {
                "info": {"is_depth_map": True, "video.use_log": True}
                | {"video.depth_min": 0.2, "video.depth_max": 4.0, "video.shift": 1.5}
            },
            (0.2, 4.0, 1.5, True),
        ),
        (
            {"info": {"video.is_depth_map": True, "depth_min": 0.05, "depth_max": 20, "shift": 0.0, "use_log": False}},
            (0.05, 20.0, 0.0, False),
        ),
        ({"video_info": {"video.is_depth_map": True}}, (0.01, 10.0, 3.5, True)),
    ],
    ids=["log", "linear", "defaults"],
)
def test_video_of_depth_is_millimetres(info, scale, pixels, rng, tmp_path):
    codes = rng.integers(1, 4096, (5, HEIGHT, WIDTH)).astype(np.uint16)
    codes[:, 0], codes[:, 1] = 0, 4095
    source = write_depth_set(tmp_path / "source", info, codes, pixels)
    for jobs in (1, 2):
        report = robocache.ingest(source, tmp_path / f"cache{jobs}", jobs=jobs)
        assert report.skipped == []
        stream = robocache.open(tmp_path / f"cache{jobs}").streams[TOP]
        assert (stream.dtype, stream.frames.color_space, stream.frames.unit_m) == (np.uint16, "depth", 0.001)
        depth_mm = np.stack([stream.frame(row) for row in range(5)])[..., 0]
        assert (depth_mm[:, 0] == 0).all()  # code 0 means no measurement
        difference = depth_mm[:, 1:] - dequantize(codes[:, 1:].astype(np.float64), *scale)
        # Except where float32 rounds to the other side.
        assert np.abs(difference).max() <= 1 and (difference == 0).mean() > 0.999
    undeclared = [omission.what for omission in report.left_out if "depth_min" in omission.what]
    assert undeclared == ([f"{TOP}: depth_min, depth_max, shift, use_log"] if "video_info" in info else [])


@pytest.mark.parametrize(
    ("info", "pixels", "message_part"),
    [
        ({"is_depth_map": True}, "yuv420p", "frames are in yuv420p: expected codes of 12 bits"),
        ({"is_depth_map": True, "video.depth_max": 80.0}, "gray12le", "depth_max"),
        ({"is_depth_map": True, "video.shift": -1.0}, "gray12le", "shift: expected depth_min [+] shift above 0"),
        ({"is_depth_map": True, "video.depth_min": "near"}, "gray12le", "depth_min: expected metres, got 'near'"),
        ({"is_depth_map": True, "video.use_log": 2}, "gray12le", "use_log: expected true or false"),
    ],
)
def test_depth_with_unknown_parameters_is_left_out_by_name(info, pixels, message_part, tmp_path):
    source = write_set(tmp_path / "source")
    info_fields = json.loads((source / "meta/info.json").read_text())
    info_fields["features"][TOP]["info"] = info
    (source / "meta/info.json").write_text(json.dumps(info_fields))
    write_videos(source, codec="libx265", pixels=pixels, options={"x265-params": "log-level=none"})
    report = robocache.ingest(source, tmp_path / "cache", jobs=1)
    assert (report.skipped, TOP in report.rows, report.rows["action"]) == ([], False, 21)
    (reason,) = [omission.reason for omission in report.left_out if omission.what == TOP]
    assert re.search(message_part, reason) and reason.startswith("depth, as info.json says; ")


@pytest.mark.parametrize(("pixels", "bits"), [("gray12le", 12), ("yuv420p12le", 12), ("yuv444p10le", 10)])
def test_more_bits_are_no_depth(pixels, bits, tmp_path):
    """A camera that info.json does not call depth is a picture; a warning says that it loses bits."""
    source = write_set(tmp_path / "source")
    write_videos(source, codec="libx265", pixels=pixels, options={"x265-params": "log-level=none"})
    report = robocache.ingest(source, tmp_path / "cache", jobs=1)
    assert report.skipped == []
    assert [shown for shown, _ in read_shown(tmp_path / "cache")] == [numbers(e, n) for e, n in enumerate((7, 5, 9))]
    assert robocache.open(tmp_path / "cache").streams[TOP].dtype == np.uint8
    reasons = outcomes.reasons(report.left_out)
    assert reasons[f"{TOP}: bits"].startswith(f"8 of {bits} of {pixels} are kept")


def test_a_depth_camera_with_an_invalid_second_file(tmp_path):
    codes = np.full((7, HEIGHT, WIDTH), 100, np.uint16)
    source = write_depth_set(tmp_path / "source", {"info": {"is_depth_map": True}}, codes)
    other = write_set(tmp_path / "other", (7, 7))
    shutil.copytree(other / "data", source / "data", dirs_exist_ok=True)
    shutil.copy(other / "meta/episodes.jsonl", source / "meta")
    write_video(video_path(source, 1), numbers(1, 7))
    assert_refused(source, tmp_path / "cache", "episode_000001.mp4: frames in yuv420p: expected depth in 12 bits")
    assert list(skip_reasons(source, tmp_path / "cache")) == [f"episode 1: {TOP}"]


@pytest.mark.parametrize(
    ("dtype", "format", "unit", "unit_m"),
    [
        (np.uint16, "TIFF", "mm", 0.001),
        (np.uint16, "TIFF", None, 0.001),
        (np.uint16, "PNG", "mm", 0.001),
        (np.uint16, "PNG", "m", 1.0),
        (np.uint16, "PNG", "Millimeters", 0.001),
        (np.float32, "TIFF", "m", None),
        (np.float32, "TIFF", "mm", None),
        (np.float32, "TIFF", None, None),
        (">u2", "TIFF", "mm", 0.001),
    ],
)
def test_images_of_depth(dtype, format, unit, unit_m, rng, tmp_path):
    depth = (rng.random((9, HEIGHT, WIDTH)) * 5000).astype(dtype)
    depth[:, 0] = 0
    source = write_images(tmp_path / "source", [image_bytes(depth[k], format) for k in range(9)])
    info_fields = json.loads((source / "meta/info.json").read_text())
    info_fields["features"][TOP]["info"] = {"is_depth_map": True, "depth_unit": unit}
    (source / "meta/info.json").write_text(json.dumps(info_fields))
    report = robocache.ingest(source, tmp_path / "cache")
    assert report.skipped == []
    reasons = [note.reason for note in report.assumed if note.what == f"{TOP}: depth without a depth_unit"]
    assert [reason.split(",")[0] for reason in reasons] == (
        [] if unit else ["metres" if unit_m is None else "millimetres"]
    )
    stream = robocache.open(tmp_path / "cache").streams[TOP]
    assert (stream.frames.color_space, stream.frames.unit_m) == ("depth", unit_m)
    pixels = np.stack([stream.frame(row) for row in range(9)])[..., 0]
    expected = depth / np.float32(1000) if unit == "mm" and dtype == np.float32 else depth
    np.testing.assert_array_equal(pixels, expected)


def test_images_of_depth_in_an_unknown_unit_are_left_out(tmp_path):
    depth = np.full((HEIGHT, WIDTH), 150, np.uint16)
    source = write_images(tmp_path / "source", [image_bytes(depth, "PNG")] * 9)
    info_fields = json.loads((source / "meta/info.json").read_text())
    info_fields["features"][TOP]["info"] = {"is_depth_map": True, "depth_unit": "cm"}
    (source / "meta/info.json").write_text(json.dumps(info_fields))
    report = robocache.ingest(source, tmp_path / "cache")
    assert any(note.what == TOP and "depth_unit 'cm': expected m or mm" in note.reason for note in report.left_out)
    assert TOP not in robocache.open(tmp_path / "cache").streams


@pytest.mark.parametrize("flag", ["false", "False", 0])
def test_images_that_are_no_depth_by_a_flag_in_text(flag, tmp_path):
    source = write_images(tmp_path / "source", [image_bytes(picture(k)) for k in range(9)])
    info_fields = json.loads((source / "meta/info.json").read_text())
    info_fields["features"][TOP]["info"] = {"is_depth_map": flag}
    (source / "meta/info.json").write_text(json.dumps(info_fields))
    robocache.ingest(source, tmp_path / "cache")
    assert robocache.open(tmp_path / "cache").streams[TOP].frames.color_space == "rgb"


def test_images_of_other_types_are_no_depth(tmp_path):
    images = [image_bytes(picture(k)) for k in range(9)]
    images[4] = b"II*\0" + b"\xff" * 40
    source = write_images(tmp_path / "source", images)
    info_fields = json.loads((source / "meta/info.json").read_text())
    info_fields["features"][TOP]["info"] = {"is_depth_map": True}
    (source / "meta/info.json").write_text(json.dumps(info_fields))
    assert_refused(source, tmp_path / "cache", f"{TOP}: row 0: ", "expected depth, uint16 or float32 of one channel")
    assert list(skip_reasons(source, tmp_path / "cache")) == [f"episode 0: {TOP}: rows 0-8"]


# ---- faults of videos ----


@pytest.mark.parametrize(
    ("damage", "message_part"),
    {
        "no file": (lambda file: file.unlink(), "no episode_000001.mp4"),
        "a dangling symlink": (
            lambda file: (file.unlink(), file.symlink_to("nowhere")),
            "nowhere, which does not exist",
        ),
        "an LFS pointer": (lambda file: file.write_text(LFS_POINTER), "git lfs pull"),
        "no video": (lambda file: file.write_bytes(b"frames" * 50), "not a video that can be read"),
        "an empty file": (lambda file: file.write_bytes(b""), "not a video that can be read"),
        "a folder": (lambda file: (file.unlink(), file.mkdir()), "no episode_000001.mp4"),
        "without its end": (lambda file: os.truncate(file, file.stat().st_size - 400), "not a video that can be read"),
        "only sound": (lambda file: write_sound(file), "no video in it"),
        "an unknown codec": (lambda file: rename_codec(file), "codec"),
        "another size": (lambda file: write_video(file, numbers(1, 5), size=(96, 128)), f"{WIDTH}x{HEIGHT}"),
    }.values(),
    ids=lambda value: None if callable(value) else value[:20],
)
def test_an_unreadable_video_leaves_its_episode_without_the_camera(damage, message_part, tmp_path):
    source = write_videos(write_set(tmp_path / "source"))
    damage(video_path(source, 1))
    assert_refused(source, tmp_path / "cache", message_part)
    reasons = skip_reasons(source, tmp_path / "cache")
    assert list(reasons) == [f"episode 1: {TOP}"]
    assert message_part in reasons[f"episode 1: {TOP}"]
    assert [len(shown) for shown, _ in read_shown(tmp_path / "cache")] == [7, 0, 9]
    assert robocache.open(tmp_path / "cache").streams["action"].rows == 21


def write_sound(file):
    with av.open(str(file), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=48_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo")
        frame.sample_rate = 48_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())


def rename_codec(file):
    file.write_bytes(file.read_bytes().replace(b"mp4v", b"zzzz").replace(b"\x04\x80\x80\x80", b"\x00\x80\x80\x80"))


def test_a_file_shorter_than_its_rows(tmp_path):
    source = write_videos(write_set(tmp_path / "source"))
    write_video(video_path(source, 2), numbers(2, 6))
    message_part = "9 rows and 6 frames: no frame within 16.67 ms of 3 of the rows, the first row 6 at 0.2000 s"
    assert_refused(source, tmp_path / "cache", "episode_000002.mp4", message_part)
    reasons = skip_reasons(source, tmp_path / "cache")
    assert list(reasons) == [f"episode 2: {TOP}: rows 6-8"]
    assert read_shown(tmp_path / "cache")[2] == (numbers(2, 6), nominal_ns(range(6)))


def test_video_that_drifts_against_its_rows_is_refused(tmp_path):
    """As many frames as rows, recorded at 29 Hz and declared as 30."""
    lengths = (40, 7)
    source = write_videos(write_set(tmp_path / "source", lengths), lengths, fps=29)
    assert_refused(source, tmp_path / "cache", "episode_000000.mp4", "drift", "+0.0000", "+0.0448", "frames='by-index'")
    reasons = skip_reasons(source, tmp_path / "cache")
    assert list(reasons) == [f"episode 0: {TOP}"]
    assert [len(shown) for shown, _ in read_shown(tmp_path / "cache")] == [0, 7]
    assert robocache.ingest(source, tmp_path / "index", frames="by-index", jobs=1).skipped == []
    assert read_shown(tmp_path / "index") == [(numbers(e, n), nominal_ns(range(n))) for e, n in enumerate(lengths)]


def test_frames_by_index_skip_rows_in_gaps(tmp_path):
    """The video lost frames in the middle, and its rate differs from that of the rows, so times alone do not match them."""
    source = write_set(tmp_path / "source", (10, 10, 10))
    frames_kept = [k for k in range(10) if k not in (4, 7)]
    write_video(video_path(source, 0), frames_kept, fps=29, times=[k / 29 for k in frames_kept])
    frames_kept = [k for k in range(11) if k != 4]  # as many frames as rows: the gap has no row
    write_video(video_path(source, 1), frames_kept, times=[k / 30 for k in frames_kept])
    varied = np.cumsum([0, 1, 1.4, 2.1, 0.7, 1, 1.6, 2, 1])  # on no grid: any row may be without a frame
    write_video(video_path(source, 2), numbers(2, 9), times=(varied / 30).tolist())
    report = robocache.ingest(source, tmp_path / "cache", frames="by-index", on_error="skip", jobs=1)
    assert [omission.what for omission in report.skipped] == [
        f"episode 0: {TOP}: rows 4, 7",
        f"episode 2: {TOP}",
    ]
    reasons = outcomes.reasons(note for note in report.assumed if note.what.endswith(TOP))
    assert (
        list(reasons) == [f"episode 1: {TOP}"] and "holes (1, the first after frame 3)" in reasons[f"episode 1: {TOP}"]
    )
    rows_kept = [k for k in range(10) if k not in (4, 7)]
    assert read_shown(tmp_path / "cache") == [
        (rows_kept, nominal_ns(rows_kept)),
        (frames_kept, nominal_ns(range(10))),
        ([], []),
    ]


def test_frames_by_index_in_a_shared_file_skip_rows_in_gaps(tmp_path):
    shown = [k for k in range(8) if k != 2] + [100 + k for k in range(6) if k != 3]
    times = [(k if k < 100 else k - 92) / 30 for k in shown]
    source = write_shared(tmp_path / "source", (8, 6), [(0.0, 8 / 30), (8 / 30, 14 / 30)], shown, times=times)
    reasons = skip_reasons(source, tmp_path / "cache", frames="by-index")
    assert list(reasons) == [f"episode 0: {TOP}: rows 2", f"episode 1: {TOP}: rows 3"]
    assert [frames for frames, _ in read_shown(tmp_path / "cache")] == [shown[:7], shown[7:]]


ROWS_30 = np.arange(9) * 1e9 / 30


@pytest.mark.parametrize(
    ("row_ns", "times", "expected", "holes"),
    [
        (ROWS_30, [0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8], []),
        (ROWS_30, [0, 1, 2, 3, 5, 6, 7, 8], [0, 1, 2, 3, -1, 4, 5, 6, 7], []),
        (ROWS_30, [0, 1, 4, 5, 8], [0, 1, -1, -1, 2, 3, -1, -1, 4], []),
        (ROWS_30, [0, 1, 2, 3, 5, 6, 7], [0, 1, 2, 3, -1, 4, 5, 6, -1], []),
        (ROWS_30, [0, 1, 2, 4, 5, 7, 8, 9], [0, 1, 2, 3, 4, 5, 6, 7, -1], [2, 4]),
        (ROWS_30, [0, 1, 2, 3, 4, 5, 6, 7, 8, 10], [0, 1, 2, 3, 4, 5, 6, 7, 8], []),  # the last frame is after the rows
        (ROWS_30, [0, 1, 2.1, 3, 5.1, 6, 7, 8], [0, 1, 2, 3, -1, 4, 5, 6, 7], []),  # jitter
        (ROWS_30, [0, 1, 2.5, 3, 5, 6.3, 7, 8], [0, 1, 2, 3, 4, 5, 6, 7, -1], []),  # on no grid
        # The rows' clock has the same gap, and the video ends one frame early.
        (np.delete(ROWS_30, 4), [0, 1, 2, 3, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, -1], []),
        (ROWS_30, [0], [0, *[-1] * 8], []),
        (ROWS_30, [], [-1] * 9, []),
        (ROWS_30[:0], [0, 1, 3], [], []),
    ],
)
def test_matching_of_frames_and_rows_by_index(row_ns, times, expected, holes):
    frame_ns = np.rint(np.array(times, np.float64) * 1e9 / 60 + 5e8).astype(np.int64)
    matching = video.match_by_index(row_ns.astype(np.int64), frame_ns)
    assert (matching.frames.tolist(), matching.holes.tolist()) == (expected, holes)


@pytest.mark.parametrize("seed", range(20))
def test_jittery_times_never_match_another_rows_frame(seed):
    rng = np.random.default_rng(seed)
    frames_kept = np.flatnonzero(rng.random(120) > 0.1)
    frames_kept = frames_kept[np.maximum.accumulate(frames_kept > 0)] if frames_kept[0] else frames_kept
    jitter = rng.uniform(-0.3, 0.3, len(frames_kept))
    frame_ns = np.rint((frames_kept + jitter + 3) * 1e9 / 29.5).astype(np.int64)
    matching = video.match_by_index(np.rint(np.arange(120) * 1e9 / 30).astype(np.int64), frame_ns)
    expected = np.full(120, -1)
    expected[frames_kept - frames_kept[0]] = np.arange(len(frames_kept))
    assert matching.undecided or matching.frames.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("times", "start_ns", "expected", "undecided"),
    [
        ([2, 3, 4, 5, 6, 7, 8], 0, [-1, -1, 0, 1, 2, 3, 4, 5, 6], 0),  # lost at the start, known by the frames' times
        ([2, 3, 5, 6, 7], 0, [-1, -1, 0, 1, -1, 2, 3, 4, -1], 0),
        ([0, 1, 2, 3, 4, 5, 6], 0, [0, 1, 2, 3, 4, 5, 6, -1, -1], 0),
        ([12, 13, 14, 15, 16, 17, 18, 19, 20], 0, [0, 1, 2, 3, 4, 5, 6, 7, 8], 0),  # equal numbers: an offset
        ([0, 1, 2, 3, 4, 5, 6], None, None, 2),  # lost frames may be the first two or the last two
        ([0, 1, 2, 3, 4, 5, 6, 7], None, [0, 1, 2, 3, 4, 5, 6, 7, -1], 0),  # the export ends one frame early
        ([0, 1, 3.5, 3.9, 5.5, 8, 8.1, 9.6], None, None, 1),
    ],
)
def test_frames_lost_at_the_start_are_found_only_by_their_times(times, start_ns, expected, undecided):
    frame_ns = np.rint(np.array(times) * 1e9 / 30).astype(np.int64)
    matching = video.match_by_index(ROWS_30.astype(np.int64), frame_ns, start_ns)
    assert matching.undecided == undecided and (expected is None or matching.frames.tolist() == expected)


def test_gaps_of_times_in_whole_milliseconds():
    """33 ms is 1 % below 1/30 s, so a long gap counted in steps of 33 ms would be one frame longer."""
    frames_kept = np.delete(np.arange(200), np.arange(40, 140))
    matching = video.match_by_index(
        np.arange(200) * 33_333_333, np.rint(frames_kept * 1e3 / 30).astype(np.int64) * 10**6
    )
    assert np.flatnonzero(matching.frames >= 0).tolist() == frames_kept.tolist() and not len(matching.holes)


@pytest.mark.parametrize("end", [0.2, 8 / 30])
@pytest.mark.parametrize("frames", ["by-time", "by-index"])
def test_no_row_gets_a_frame_of_the_next_episode(frames, end, tmp_path):
    """to_timestamp may include the next episode's first frame, which still belongs to that episode."""
    source = write_shared(tmp_path / "source", (8, 6), [(0.0, end), (0.2, 0.4)], numbers(0, 6) + numbers(1, 6))
    reasons = skip_reasons(source, tmp_path / "cache", frames=frames)
    assert list(reasons) == [f"episode 0: {TOP}: rows 6-7"]
    assert [shown for shown, _ in read_shown(tmp_path / "cache")] == [numbers(0, 6), numbers(1, 6)]


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_undecodable_frames_are_named_and_never_replaced(codec, tmp_path):
    lengths = (60,)
    source = write_videos(write_set(tmp_path / "source", lengths), lengths, codec=codec, options=CODECS[codec], gop=10)
    file = video_path(source, 0)
    _, expected = read_video(file)
    with av.open(str(file)) as container:
        packets = sorted((packet.pts, packet.pos, packet.size) for packet in container.demux(video=0) if packet.size)
    content = bytearray(file.read_bytes())
    _, begin, _ = packets[23]
    content[begin : begin + 4] = b"\xff" * 4  # an invalid length of a NAL unit, and header of an OBU
    file.write_bytes(content)
    assert_refused(source, tmp_path / "cache", "episode_000000.mp4: frame 2", "does not decode")
    ((name, _),) = skip_reasons(source, tmp_path / "cache", image_codec="raw").items()
    assert name.startswith(f"episode 0: {TOP}: frames 2")
    stream = robocache.open(tmp_path / "cache").streams[TOP]
    rows = [round(ns * 30 / 1e9) for ns in stream.time_ns.tolist()]
    assert set(range(20)) | set(range(30, 60)) <= set(rows) and 23 not in rows
    np.testing.assert_array_equal(stream.values[:], expected[rows])


def write_without(path, lost):
    """Rewrites the file without packets `lost`, counted in decoding order."""
    original = path.rename(path.with_suffix(".whole"))
    with av.open(str(original)) as old, av.open(str(path), "w", format="mp4") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        packets = [packet for packet in old.demux(video=0) if packet.dts is not None]
        for number, packet in enumerate(packets):
            if number not in lost:
                packet.stream = stream
                new.mux(packet)
    original.unlink()


@pytest.mark.parametrize("bframes", ["0", "2"])
@pytest.mark.parametrize("lost", [3, 8, 11])
def test_h264_frames_after_a_lost_one_are_lost_until_the_next_keyframe(lost, bframes, tmp_path):
    """The decoder silently shows other pictures in place of those that depend on the lost one."""
    source = write_set(tmp_path / "source", (24,))
    write_videos(source, (24,), codec="libx264", gop=8, options={"bf": bframes, "sc_threshold": "0"})
    write_without(video_path(source, 0), {lost})
    report = robocache.ingest(source, tmp_path / "cache", on_error="skip", jobs=1)
    ((shown, time_ns),) = read_shown(tmp_path / "cache")
    assert time_ns == [nominal_ns([number])[0] for number in shown]
    assert len(shown) < 24
    if bframes == "0":
        assert any("a frame before it is missing" in omission.reason for omission in report.skipped)


def test_a_killed_process_loses_only_its_current_video(tmp_path, monkeypatch):
    start = video.start
    monkeypatch.setattr(video, "start", lambda function, *arguments, **options: start(os.abort, **options))
    source = write_videos(write_set(tmp_path / "source"))
    with pytest.raises(robocache.FileError, match=r"frame 0 does not decode: the process that decoded it died \(-6\)"):
        robocache.ingest(source, tmp_path / "cache", jobs=2)
    report = robocache.ingest(source, tmp_path / "cache", jobs=2, on_error="skip")
    assert len(report.skipped) == 3 and report.rows["action"] == 21


def child_pids(pid):
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                pids.append(int(stat.parent.name))
    return pids


@pytest.mark.parametrize("sent_signal", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_leaves_no_process(sent_signal, tmp_path):
    """Ctrl-C ends the child processes; if the parent is killed, they end by themselves."""
    lengths = (300,) * 12
    source = write_set(tmp_path / "source", lengths)
    first = write_video(video_path(source, 0), range(300), size=(480, 640))
    for episode in range(1, 12):
        os.link(first, video_path(source, episode))
    command = [sys.executable, "-m", "robocache", "ingest", str(source), str(tmp_path / "cache"), "--jobs", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(workers := child_pids(process.pid)) < 2 or not list(tmp_path.glob("cache.partial/streams/*/values*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(sent_signal)
    assert process.wait(120) == (130 if sent_signal == signal.SIGINT else -signal.SIGKILL)
    while any(Path(f"/proc/{pid}").exists() and pid_lives(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not (tmp_path / "cache").exists()


def pid_lives(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_without_pyav_the_error_has_the_install_command(tmp_path):
    source = write_videos(write_set(tmp_path / "source"))
    program = "import sys; sys.modules['av'] = sys.modules['torch'] = None\nfrom robocache.cli import main\nsys.exit(main(sys.argv[1:]))"

    def run(*options):
        command = [sys.executable, "-c", program, "ingest", str(source), str(tmp_path / "cache"), *options]
        return subprocess.run(command, capture_output=True, text=True)

    output = run()
    assert output.returncode == 1
    assert TOP in output.stderr and "pip install av" in output.stderr and "--no-video" in output.stderr
    assert run("--no-video").returncode == 0


# ---- images in the rows ----


def write_images(root, images, version="v2.1", column=None):
    """Writes a dataset of one episode whose rows have these images."""
    source = write_set(root, (len(images),), version, dtype="image")
    (file,) = source.glob("data/chunk-000/*.parquet")
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells = [image if isinstance(image, dict | None) else {"bytes": image, "path": None} for image in images]
    write_table(file, pq.read_table(file).append_column(TOP, pa.array(cells, kind)))
    return source


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_images_keep_their_bytes(version, tmp_path):
    pictures = [picture(k) for k in range(70)]
    png = write_images(tmp_path / "png", [image_bytes(p) for p in pictures], version)
    robocache.ingest(png, tmp_path / "a")
    stream = robocache.open(tmp_path / "a").streams[TOP]
    assert (stream.frames.codec, stream.rows, stream.clock) == ("png", 70, "nominal")
    np.testing.assert_array_equal(stream.values[:], pictures)
    jpeg = write_images(tmp_path / "jpeg", [image_bytes(p, "JPEG", quality=90) for p in pictures], version)
    robocache.ingest(jpeg, tmp_path / "b")
    assert robocache.open(tmp_path / "b").streams[TOP].frames.codec == "jpeg"
    assert read_shown(tmp_path / "b") == [(list(range(70)), nominal_ns(range(70)))]


def test_images_in_another_codec_or_size(tmp_path):
    pictures = np.stack([picture(k) for k in range(5)])
    source = write_images(tmp_path / "source", [image_bytes(p) for p in pictures])
    robocache.ingest(source, tmp_path / "raw", image_codec="raw")
    np.testing.assert_array_equal(robocache.open(tmp_path / "raw").streams[TOP].values, pictures)
    robocache.ingest(source, tmp_path / "small", image_size="32x24")
    small = robocache.open(tmp_path / "small").streams[TOP]
    assert (small.frames.codec, small.frames.resized["from"]) == ("png", [HEIGHT, WIDTH])
    np.testing.assert_array_equal(
        small.values[:], robocache.image_batch(pictures, size=(24, 32), dtype="uint8", layout="hwc")
    )


def test_images_beside_the_table(tmp_path):
    cells = [{"bytes": None, "path": f"images/{TOP}/frame_{k}.png"} for k in range(4)]
    source = write_images(tmp_path / "source", cells)
    for k, cell in enumerate(cells):
        (source / cell["path"]).parent.mkdir(parents=True, exist_ok=True)
        (source / cell["path"]).write_bytes(image_bytes(picture(k)))
    robocache.ingest(source, tmp_path / "cache")
    assert [shown for shown, _ in read_shown(tmp_path / "cache")] == [list(range(4))]
    (source / cells[2]["path"]).unlink()
    with pytest.raises(robocache.FileError, match=r"frame_2.png: No such file"):
        robocache.ingest(source, tmp_path / "cache2")


def test_unreadable_images_are_skipped_by_name(tmp_path):
    files = [image_bytes(picture(k)) for k in range(8)]
    cells = [
        files[0],
        None,
        files[2][:60],
        b"no image",
        {"bytes": None, "path": None},
        {"bytes": None, "path": "../outside.png"},
        image_bytes(picture(6, 96, 128)),
        files[7],
    ]
    source = write_images(tmp_path / "source", cells)
    refused_by = pytest.raises(robocache.FileError, match=f"episode_000000.parquet: episode 0: {TOP}: row 1: ")
    with refused_by:
        robocache.ingest(source, tmp_path / "cache")
    report = robocache.ingest(source, tmp_path / "cache", on_error="skip")
    assert [omission.what for omission in report.skipped] == [f"episode 0: {TOP}: rows 1-6"]
    assert read_shown(tmp_path / "cache") == [([0, 7], nominal_ns([0, 7]))]


# ---- arguments, the command line ----


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("image_size", "224"),
        ("image_size", "0x224"),
        ("image_size", "224X224"),
        ("image_fit", "letterbox"),
        ("image_codec", "jpeg:101"),
        ("image_codec", "webp"),
        ("jobs", 0),
        ("frames", "by-luck"),
    ],
)
def test_invalid_options_are_refused(option, value, tmp_path):
    source = write_set(tmp_path / "source")
    with pytest.raises(robocache.ArgumentError, match=f"{option}: expected .* got '?{value}"):
        robocache.ingest(source, tmp_path / "cache", **{option: value})


def test_the_command_lines_output_about_cameras(tmp_path, capsys):
    source = write_videos(write_set(tmp_path / "source"))
    options = ["--image-size", "32x24", "--image-fit", "pad", "--image-codec", "jpeg:90", "--jobs", "1"]
    assert main(["ingest", str(source), str(tmp_path / "cache"), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "3 episodes, 3 streams, 21 frames in " in lines[0]
    (line,) = [line for line in lines if line.startswith(TOP)]
    assert line.split()[:4] == [TOP, "jpeg", "32x24", "rgb"]
    assert main(["ingest", str(source), str(tmp_path / "cache2"), *options, "--json"]) == 0
    camera = json.loads(capsys.readouterr().out)["cameras"][TOP]
    assert {key: camera[key] for key in ("frames", "width", "height", "codec", "color_space")} == {
        "frames": 21,
        "width": 32,
        "height": 24,
        "codec": "jpeg",
        "color_space": "rgb",
    }
    assert camera["bytes_per_frame"] > 100 and camera["frames_per_second"] > 0


def test_progress_counts_frames(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "_REPORT_EVERY_S", math.inf)  # on a slow machine more steps would be shown
    source = write_videos(write_set(tmp_path / "source"))
    lines = []
    robocache.ingest(source, tmp_path / "cache", jobs=1, progress=lambda *step: lines.append(step))
    assert [step for step in lines if "frames/s" not in step[2]] == [(k, 3, f"episode {k}") for k in range(3)]
    assert [step[0] for step in lines if "frames/s" in step[2]] == [0, 1, 2]


# ---- real data ----


def psnr(a, b):
    return 10 * np.log10(255**2 / np.mean((a.astype(np.float64) - b) ** 2))


@pytest.mark.parametrize(
    ("name", "camera", "episodes"),
    [
        ("lerobot_v2/gr00t_gr1_pnp_sim", "observation.images.ego_view", (0, 4)),
        ("lerobot_v2/unitree_g1_real", "observation.images.cam_high", (29,)),
    ],
)
def test_real_robots_video(name, camera, episodes, real_data, tmp_path):
    source = real_data(name)
    trimmed = tmp_path / "source"
    write_subset(source, trimmed, camera, episodes)
    robocache.ingest(trimmed, tmp_path / "raw", image_codec="raw", follow_links=True)
    report = robocache.ingest(trimmed, tmp_path / "jpeg", follow_links=True)
    raw, jpeg = (robocache.open(tmp_path / codec).streams[camera] for codec in ("raw", "jpeg"))
    action = robocache.open(tmp_path / "raw").streams["action"]
    np.testing.assert_array_equal(raw.time_ns, action.time_ns)
    first = 0
    for episode in episodes:
        (file,) = source.glob(f"videos/*/{camera}/episode_{episode:06d}.mp4")
        stamps, expected = read_video(file)
        rows = slice(first, first + len(expected))
        period = 1e9 / json.loads((source / "meta/info.json").read_text())["fps"]
        assert np.abs(raw.time_ns[rows] - np.array([float(s) * 1e9 for s in stamps])).max() < period / 100
        np.testing.assert_array_equal(raw.values[rows], expected)
        assert psnr(jpeg.values[rows][::8], expected[::8]) > 38
        first += len(expected)
    assert (first, report.rows[camera]) == (raw.rows, raw.rows)


def write_subset(source, target, camera, episodes):
    """Links some episodes of a dataset, with their lines of meta/."""
    for pattern in ("data/*/episode_{:06d}.parquet", "videos/*/" + camera + "/episode_{:06d}.mp4"):
        for episode in episodes:
            (file,) = source.glob(pattern.format(episode))
            link = target / file.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
    (target / "meta").mkdir()
    (target / "meta/info.json").write_bytes((source / "meta/info.json").read_bytes())
    (target / "meta/tasks.jsonl").write_bytes((source / "meta/tasks.jsonl").read_bytes())
    lines = (source / "meta/episodes.jsonl").read_text().splitlines()
    lines_kept = [line for line in lines if json.loads(line)["episode_index"] in episodes]
    (target / "meta/episodes.jsonl").write_text("\n".join(lines_kept) + "\n")


def test_a_video_with_more_sidecar_stamps_than_frames(real_data):
    """124 stamps in 4.1 s, but 103 frames in 3.1 s at 10000/303 Hz: rows after the video's end have no frame."""
    index = video.index_video(real_data("mcap/depthai_recording") / "recording.mp4")
    stamps, _ = read_video(index.path)
    assert (len(index), index.declared, len(stamps)) == (103, 103, 103)
    assert index.time_ns.tolist() == [round(stamp * 10**9) for stamp in stamps]
    rows = np.arange(124) * 33_200_000
    picked = video.match(rows, index.time_ns, 16_600_000)
    last = int(index.time_ns[-1]) + 16_600_000
    assert [int(k) for k in np.flatnonzero(picked < 0)] == [k for k in range(124) if rows[k] > last]
    assert picked.max() == 102 and (picked < 0).sum() > 20


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize(("matrix", "red", "blue"), [(1, 0.2126, 0.0722), (6, 0.299, 0.114)])
def test_colours_follow_the_videos_matrix_and_range(codec, full_range, matrix, red, blue, tmp_path):
    if codec not in av.codecs_available:
        pytest.skip(f"PyAV has no {codec}")
    path = tmp_path / "a.mp4"
    with restored_scheduling(), av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=30, width=64, height=64, pix_fmt="yuv420p", options={"crf": "5"})
        stream.codec_context.color_range, stream.codec_context.colorspace = 2 if full_range else 1, matrix
        frame = av.VideoFrame(64, 64, "yuv420p")
        for plane, level in zip(frame.planes, (120, 90, 180), strict=True):
            plane.update(bytes([level]) * plane.buffer_size)
        frame.pts, frame.time_base = 0, Fraction(1, 30)
        frame.color_range, frame.colorspace = 2 if full_range else 1, matrix
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    with av.open(str(path)) as container:
        decoded = next(container.decode(video=0))
    y, u, v = (np.frombuffer(plane, np.uint8)[0].astype(float) for plane in decoded.planes)
    # ITU-T H.273, 8.3: 8-bit luma and colour differences, and the matrix by its weights of red and blue.
    luma = y / 255 if full_range else (y - 16) / 219
    to_blue, to_red = ((x - 128) / (255 if full_range else 224) for x in (u, v))
    r, b = luma + 2 * (1 - red) * to_red, luma + 2 * (1 - blue) * to_blue
    g = (luma - red * r - blue * b) / (1 - red - blue)
    # libswscale's error is up to 2.
    assert np.abs(video.to_rgb(decoded)[5, 5] - 255 * np.clip([r, g, b], 0, 1)).max() < 2.5


@pytest.mark.parametrize(("codec", "unspecified_is_limited"), [("ffv1", False), ("libx264", True), ("libx265", True)])
@pytest.mark.parametrize("declared", [None, "limited", "full"])
def test_grey_follows_the_videos_range(codec, unspecified_is_limited, declared, tmp_path):
    """H.264 and H.265 without a declared range are limited by their standards; FFV1 has no such default."""
    if codec not in av.codecs_available:
        pytest.skip(f"PyAV has no {codec}")
    options = {"libx264": {"qp": "0"}, "libx265": {"x265-params": "lossless=1:log-level=none"}}.get(codec, {})
    ramp = np.tile(np.arange(256, dtype=np.uint8), (64, 1))
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=30, width=256, height=64, pix_fmt="gray", options=options)
        frames = [av.VideoFrame.from_ndarray(ramp, format="gray") for _ in range(3)]
        for number, frame in enumerate(frames):
            frame.pts = number
            if declared is not None:
                stream.codec_context.color_range = frame.color_range = {"limited": 1, "full": 2}[declared]
        for packet in [packet for frame in [*frames, None] for packet in stream.encode(frame)]:
            container.mux(packet)
    is_limited = declared == "limited" or (declared is None and unspecified_is_limited)
    expected = np.clip((ramp - 16.0) * 255 / 219, 0, 255) if is_limited else ramp
    decoded = video._Decoder().decode(
        video.cut_up(video.index_video(path), np.array([0]), video.Storage("raw", 95, None, "stretch"))[0]
    )
    pixels = decoded.parts[0][1].data.reshape(64, 256, 3)
    assert np.abs(pixels - expected[..., None]).max() <= 1
