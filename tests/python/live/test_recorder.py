"""Recordings of rings: the cache has the pushed rows, however the process ends."""

import io
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import PIL.Image
import pytest

import robocache
from robocache import Anchors, Window, live

NS = 1_000_000_000


def make_rows(rng, ring, seconds, hz, late_s):
    """Makes rows for a ring that arrive out of the order of their stamps. Returns stamps, arrivals and rows, by arrival."""
    stamps = NS + (1e9 * np.arange(1, int(seconds * hz)) / hz).astype(np.int64)
    arrivals = stamps + (1e9 * rng.uniform(0, late_s, len(stamps))).astype(np.int64)
    order = np.argsort(arrivals, kind="stable")
    stamps, arrivals = stamps[order], arrivals[order]
    rows = rng.standard_normal((len(stamps), *ring.shape)).astype(ring.dtype)
    return stamps, arrivals, rows


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_recording_has_the_rows_by_stamp_with_their_arrivals(tmp_path):
    rng = np.random.default_rng(1)
    rings = {
        "joint": live.Ring((7,), "float32", span_s=5, lateness_s=0.006),
        "scalar": live.Ring((), "float64", span_s=5, lateness_s=0.006),
    }
    sent = {name: make_rows(rng, ring, 1.5, 500, 0.005) for name, ring in rings.items()}
    path = tmp_path / "cache"
    with live.Recorder(
        rings, path, episode={"task": "reach"}, streams={"joint": {"names": list("abcdefg")}}
    ) as recorder:
        for name, (stamps, arrivals, rows) in sent.items():
            for stamp, arrival, row in zip(stamps, arrivals, rows, strict=True):
                rings[name].push(int(stamp), row, arrival_ns=int(arrival))
        recorder.saw(NS + 5, now_ns=NS + 10)
        recorder.saw(NS + 7, now_ns=NS + 12)
        recorder.stop(success=True)
        # stop() returns after the episode is written.
        assert robocache.open(path).episodes["success"].to_pylist() == [True]
    dataset = robocache.open(path, verify=True)
    assert dataset.episodes["task"].to_pylist() == ["reach"] and dataset["joint"].names == list("abcdefg")
    for name, (stamps, arrivals, rows) in sent.items():
        order = np.argsort(stamps, kind="stable")
        np.testing.assert_array_equal(dataset[name].time_ns, stamps[order])
        np.testing.assert_array_equal(dataset[name].values, rows[order])
        np.testing.assert_array_equal(dataset[name + ".arrival_ns"].time_ns, stamps[order])
        np.testing.assert_array_equal(dataset[name + ".arrival_ns"].values, arrivals[order])
        assert recorder.counts[name] == {"kept": len(stamps), "lost": 0, "bad_frames": 0}
        provenance = dataset.provenance["live"][name]
        assert provenance["ring"] == rings[name].counts and provenance["recorder"] == recorder.counts[name]
    assert dataset["policy.moment_ns"].values.tolist() == [NS + 5, NS + 7]
    assert dataset["policy.moment_ns"].time_ns.tolist() == [NS + 10, NS + 12]


def file_of(pixels, kind):
    file = io.BytesIO()
    PIL.Image.fromarray(pixels.squeeze()).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("codec", ["raw", "png", "jpeg", "depth"])
def test_frames_are_kept_and_bad_frames_left_out(tmp_path, codec):
    rng = np.random.default_rng(2)
    is_depth = codec == "depth"
    shape, dtype = ((12, 16, 1), "uint16") if is_depth else ((12, 16, 3), "uint8")
    pixels = rng.integers(0, 255, (20, *shape)).astype(dtype)
    kind = "png" if is_depth else codec
    rows = list(pixels) if codec == "raw" else [file_of(frame, kind) for frame in pixels]
    ring = live.Ring(shape, dtype, span_s=5, lateness_s=0.05, codec=kind)
    streams = {"cam": {"unit_m": 0.001}} if is_depth else None
    bad_files = [] if codec == "raw" else [b"no frame", rows[0][: len(rows[0]) // 2]]
    path = tmp_path / "cache"
    with live.Recorder({"cam": ring}, path, episode={}, streams=streams) as recorder:
        for i, row in enumerate(rows):
            ring.push(NS + 10_000_000 * i, row, arrival_ns=2 * NS)
            if i < len(bad_files):
                ring.push(NS + 3_000_000 + 10_000_000 * i, bad_files[i], arrival_ns=2 * NS)
        recorder.stop()
        if bad_files:
            with pytest.warns(live.LostRowsWarning, match=f"20 rows kept, 0 lost, {len(bad_files)} bad frames"):
                recorder.close()
    assert recorder.counts["cam"] == {"kept": 20, "lost": 0, "bad_frames": len(bad_files)}
    stored = robocache.open(path, verify=True)["cam"]
    assert stored.frames.codec == kind and (stored.frames.unit_m == 0.001) == is_depth
    expected = pixels
    if codec == "jpeg":
        expected = np.stack([np.asarray(PIL.Image.open(io.BytesIO(file))) for file in rows])
        assert np.abs(stored.values[:].astype(int) - expected).max() <= 4  # decoders differ by a few steps
    else:
        np.testing.assert_array_equal(stored.values[:], expected)
    if codec in ("png", "depth"):
        assert [stored.values.file(row).tobytes() for row in range(20)] == rows


KILLED = """
import sys, time, numpy as np
sys.modules["torch"] = None  # importing torch takes most of the time, and the script does not need it
import robocache
from robocache import Anchors, Window, live
ring = live.Ring((2,), "float32", span_s=5, lateness_s=0.01)
camera = live.Ring((8, 8, 1), "uint8", span_s=5, codec="png")
file = robocache.frames.encode(np.zeros((1, 8, 8), np.uint8), "png").data.tobytes()
recorder = live.Recorder({"joint": ring, "camera": camera}, sys.argv[1], episode={"task": "first"}, commit_s=0.01)
i = 0
while True:
    i += 1
    if i == 300:
        recorder.stop(success=True)
        recorder.start(task="second")
    ring.push(10**9 + i * 2_000_000, np.full(2, i, np.float32), arrival_ns=10**9 + i * 2_000_000)
    if i % 20 == 0:
        camera.push(10**9 + i * 2_000_000, file, arrival_ns=10**9 + i * 2_000_000)
    print(i, flush=True)
    time.sleep(0.001)
"""


def test_a_killed_process_leaves_the_committed_rows(tmp_path):
    path = tmp_path / "cache"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    printed = []
    try:
        drain = threading.Thread(target=lambda: printed.extend(int(line) for line in process.stdout))
        drain.start()

        def has_grown():
            try:
                dataset = robocache.open(path)
                return len(dataset) == 2 and dataset["joint"].rows > 350
            except robocache.FileError:
                return False

        wait_until(has_grown, 60)
        before = robocache.open(path)
        rows = np.array(before["joint"].values)
        wait_until(lambda: robocache.open(path)["joint"].rows > len(rows) + 50, 60)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        drain.join()
    dataset = robocache.open(path, verify=True)
    stored = dataset["joint"].values
    assert len(rows) + 50 < len(stored) <= len(printed)
    np.testing.assert_array_equal(stored[:, 0], np.arange(1, len(stored) + 1))
    np.testing.assert_array_equal(before["joint"].values, rows)  # an open dataset does not change
    episodes = dataset.episodes.to_pydict()
    assert episodes["task"] == ["first", "second"] and episodes["success"] == [True, None]
    assert episodes["end_ns"][1] == dataset["joint"].time_ns[-1]
    assert dataset["camera"].values[:].shape == (dataset["camera"].rows, 8, 8, 1)
    ring = live.Ring((2,), "float32", span_s=5)
    with live.Recorder({"joint": ring}, path, append=True, episode={"task": "third"}):
        ring.push(NS, np.zeros(2, np.float32), arrival_ns=NS)
    appended = robocache.open(path, verify=True)
    assert appended.episodes["task"].to_pylist() == ["first", "second", "third"]
    np.testing.assert_array_equal(appended["joint"].values[:-1], stored)


def test_rows_that_a_ring_forgot_are_counted(tmp_path):
    ring = live.Ring((1,), "int64", span_s=0.1)
    with live.Recorder({"joint": ring}, tmp_path / "cache", episode={}) as recorder:
        # The lock holds the recorder back, like a slow disk.
        with recorder._lock, pytest.warns(live.LostRowsWarning, match="'joint' has forgotten"):
            for i in range(1, 1001):
                ring.push(NS + i * 1_000_000, np.array([i]), arrival_ns=NS + i * 1_000_000)
            recorder._take_all(unsettled=True)
        recorder.stop()
        with pytest.warns(live.LostRowsWarning, match="rows kept, .* lost"):
            recorder.close()
    counts = recorder.counts["joint"]
    assert counts["kept"] + counts["lost"] == 1000 and 100 <= counts["kept"] <= 110
    stored = robocache.open(tmp_path / "cache")
    assert stored["joint"].values[:, 0].tolist() == list(range(counts["lost"] + 1, 1001))
    assert stored.provenance["live"]["joint"]["recorder"] == counts


def test_rows_between_episodes_are_dropped(tmp_path):
    ring = live.Ring((), "int64", span_s=5, lateness_s=0.02)

    def push(*values):
        for value in values:
            ring.push(NS + value * 1_000_000, np.int64(value), arrival_ns=2 * NS)

    with live.Recorder({"joint": ring}, tmp_path / "cache") as recorder:
        push(10, 11)
        with pytest.raises(robocache.ArgumentError, match="expected an open episode"):
            recorder.stop()
        recorder.start(task="a")
        push(12, 13, 5, 14)  # 5 came late: it is before the episode
        recorder.stop()
        push(15, 16)
        recorder.start(task="b")
        with pytest.raises(robocache.ArgumentError, match="expected no open episode"):
            recorder.start()
        push(17, 19, 18, 19)
    dataset = robocache.open(tmp_path / "cache")
    assert dataset["joint"].values.tolist() == [12, 13, 14, 17, 18, 19, 19]
    assert dataset["joint"].row_offsets.tolist() == [0, 3, 7]
    with pytest.raises(robocache.ArgumentError, match="closed"):
        recorder.start()


@pytest.mark.filterwarnings("ignore::robocache.live.LostRowsWarning")
def test_a_clock_that_is_set_back_begins_an_episode(tmp_path):
    ring = live.Ring((), "int64", span_s=0.1, on_rewind="segment")
    other = live.Ring((), "int64", span_s=0.1)
    with live.Recorder({"joint": ring, "other": other}, tmp_path / "cache", episode={"task": "a"}) as recorder:
        for begin in (5 * NS, NS):
            for i in range(50):
                ring.push(begin + i * 1_000_000, np.int64(i), arrival_ns=6 * NS)
            wait_until(lambda: recorder.counts["joint"]["kept"] >= 49)
        other.push(NS, np.int64(7), arrival_ns=NS)
    dataset = robocache.open(tmp_path / "cache")
    assert dataset.episodes["task"].to_pylist() == ["a", "a"]
    counts = recorder.counts["joint"]
    assert counts["kept"] + counts["lost"] == 100 and counts["lost"] <= 1  # the row that was not final at the jump
    stamps = dataset["joint"].time_ns
    assert (np.diff(stamps) < 0).sum() == 1 and stamps[-1] == NS + 49_000_000
    assert dataset["other"].values.tolist() == [7]


def test_a_clock_that_is_set_back_passes_its_old_time(tmp_path):
    ring = live.Ring((), "int64", span_s=5, lateness_s=0.5, on_rewind="segment")

    def push(stamps):
        for stamp in stamps.tolist():
            ring.push(stamp, np.int64(stamp), arrival_ns=stamp)

    push(np.arange(1000, 1010) * (NS // 10))
    with live.Recorder({"joint": ring}, tmp_path / "cache", episode={}) as recorder:
        parts = np.split(np.arange(900, 1100) * (NS // 10), 10)
        for number, stamps in enumerate(parts):
            push(stamps)
            wait_until(lambda kept=20 * number + 10: recorder.counts["joint"]["kept"] >= kept)
    assert robocache.open(tmp_path / "cache")["joint"].time_ns.tolist() == np.concatenate(parts).tolist()


def test_a_failing_writer_is_an_error_and_committed_rows_stay(tmp_path):
    ring = live.Ring((2,), "float32", span_s=5)
    path = tmp_path / "cache"
    recorder = live.Recorder({"joint": ring}, path, episode={"task": "a"})
    ring.push(NS, np.zeros(2, np.float32), arrival_ns=NS)
    recorder.stop()
    recorder.start(task="b")
    with recorder._lock, pytest.warns(UserWarning, match="recorder: it has stopped"):
        # A lambda cannot raise: the generator raises when throw() is called.
        recorder._episode.append = lambda *_, **__: (_ for _ in ()).throw(robocache.FileError("disk full"))
        ring.push(NS + 5, np.zeros(2, np.float32), arrival_ns=NS + 5)
        ring.push(NS + 6, np.zeros(2, np.float32), arrival_ns=NS + 6)
        recorder._lock.release()
        recorder._thread.join()
        recorder._lock.acquire()
    for call in (recorder.stop, recorder.start, recorder.close):
        with pytest.raises(robocache.FileError, match="disk full"):
            call()
    assert robocache.open(path, verify=True)["joint"].rows == 1


def test_bad_arguments_of_a_recorder_are_refused(tmp_path):
    ring = live.Ring((2,), "float32", span_s=5)
    for arguments, message in (
        ({"rings": {}}, "rings: expected"),
        ({"rings": [ring]}, "rings: expected"),
        ({"rings": {"a": ring, "a.arrival_ns": ring}}, "no name of the recorder.s own streams, got 'a.arrival_ns'"),
        ({"streams": {"arm": {}}}, "streams: expected names of rings, a, got 'arm'"),
        ({"commit_s": 0}, "commit_s: expected above 0"),
        ({"episode": {"task": object()}}, "task"),
        ({"append": True}, "expected a cache to append to"),
    ):
        with pytest.raises(robocache.Error, match=message):
            live.Recorder(**{"rings": {"a": ring}, "path": tmp_path / "none", **arguments})
    assert not (tmp_path / "none").exists()
    with live.Recorder({"a": ring}, tmp_path / "cache"), pytest.raises(robocache.FileError):
        live.Recorder({"a": ring}, tmp_path / "cache")


def test_an_aligners_batches_equal_a_loaders_of_the_recording(tmp_path):
    """Rows arrive with jitter, late, twice, too late, with a clock set back, or never. Aligner and loader see the same bytes."""
    rng = np.random.default_rng(5)
    pixels = rng.integers(0, 255, (120, 8, 8, 3)).astype(np.uint8)
    files = [file_of(frame, "png") for frame in pixels]

    def loader_of(path):
        windows = {
            "joint": Window([-0.03, -0.0101, 0.0]),
            "force": Window([-0.02, 0.0], method="previous"),
            "camera": Window([-0.05, 0.0], images=robocache.ImageOptions(size=(4, 4))),
        }
        return robocache.Loader(
            robocache.open(path), batch_size=1, delta_timestamps=windows, anchors=Anchors(stream="joint"),
            return_age=True, framework="numpy", device="cpu", shuffle=False,
        )  # fmt: skip

    stamps = NS + np.arange(1, 50) * 10_000_000
    with robocache.Writer(tmp_path / "training") as writer, writer.episode() as episode:
        episode.append("joint", stamps, np.zeros((49, 2), np.float32))
        episode.append("force", stamps, np.zeros((49, 3), np.float64))
        episode.append("camera", stamps, files[:49])
    spec = loader_of(tmp_path / "training").spec
    rings = {
        "joint": live.Ring((2,), "float32", span_s=20, lateness_s=0.004, on_rewind="segment"),
        "force": live.Ring((3,), "float64", span_s=20, lateness_s=0.002, on_rewind="segment"),
        "camera": live.Ring((8, 8, 3), "uint8", span_s=20, lateness_s=0.01, codec="png", on_rewind="segment"),
    }
    aligner = live.Aligner(spec, rings, framework="numpy")
    served = {}
    path = tmp_path / "recorded"
    with live.Recorder(rings, path, episode={"number": 0}, commit_s=0.05) as recorder:
        for begin in (40 * NS, 2 * NS):  # every clock is set back
            events = []
            for name, hz, late_s in (("joint", 200, 0.006), ("force", 90, 0.0015), ("camera", 40, 0.02)):
                stamps = begin + (1e9 * np.arange(1, 3 * hz) / hz + rng.uniform(0, 2e6, 3 * hz - 1)).astype(np.int64)
                stamps = stamps[rng.random(len(stamps)) > 0.1]
                stamps = np.concatenate([stamps, stamps[rng.random(len(stamps)) < 0.05]])
                events += [(int(t + 1e9 * rng.uniform(0, late_s)), name, int(t)) for t in stamps]
            for number, (arrival, name, stamp) in enumerate(sorted(events)):
                row = files[number % len(files)] if name == "camera" else rng.standard_normal(rings[name].shape)
                row = row if name == "camera" else row.astype(rings[name].dtype)
                rings[name].push(stamp, row, arrival_ns=arrival)
                frontier = aligner.frontier()
                if len({ring.counts["segments"] for ring in rings.values()}) > 1:
                    continue  # not all clocks are set back yet
                if name == "joint" and frontier is not None and stamp <= frontier + 30_000_000:
                    moments = [m for _, key, m in events if key == "joint" and frontier - 8_000_000 < m <= frontier]
                    for moment in moments:
                        batch = aligner.at(moment, settled=True)
                        served[moment] = {
                            key: array.tobytes() for key, array in batch.items() if key != "anchor_age_ns"
                        }
                if number % 50 == 0:
                    time.sleep(0.01)
            recorder.stop()
            if begin == 40 * NS:
                recorder.start(number=1)
    loader = loader_of(path)
    assert loader.spec == spec and recorder.counts["joint"]["lost"] == 0
    assert rings["joint"].counts["too_late"] > 5 and rings["joint"].counts["duplicates"] > 5
    compared = [0, 0]  # a count for each episode
    for i in range(loader.num_anchors):
        expected = loader.gather([i])
        batch = served.get(int(expected["time_ns"][0]))
        if batch is None:
            continue
        compared[int(expected["episode_index"][0])] += 1
        for key, content in batch.items():
            assert content == expected[key].tobytes(), (key, i)
    assert min(compared) > 80
