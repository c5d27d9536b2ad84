"""Batches of an aligner equal those of a Loader on the same rows, bit for bit."""

import time

import numpy as np
import pytest

import robocache
from robocache import Anchors, Window, actions
from robocache.live import Aligner, Ring

NS = 1_000_000_000


def arrivals(rng, seconds, hz, jitter_s, late_s, *, loss=0.0, doubled=0.0, start=NS):
    """Returns a sensor's stamps and their arrivals, in order of arrival: with jitter, some late, lost or doubled."""
    ticks = np.arange(1, int(seconds * hz)) / hz
    stamps = start + (1e9 * (ticks + rng.uniform(0, jitter_s, len(ticks)))).astype(np.int64)
    stamps = np.sort(stamps)[rng.random(len(stamps)) >= loss]
    stamps = np.sort(np.concatenate([stamps, stamps[rng.random(len(stamps)) < doubled]]))
    arrivals_ns = stamps + (1e9 * rng.uniform(0, late_s, len(stamps))).astype(np.int64)
    order = np.argsort(arrivals_ns, kind="stable")
    return stamps[order], arrivals_ns[order]


def replay(streams, aligner, rings, expected, moments):
    """Pushes rows by arrival; compares every moment when the frontier reaches it. Returns the number of comparisons."""
    events = sorted(
        (arrival, name, i) for name, (_, arrivals_ns, _) in streams.items() for i, arrival in enumerate(arrivals_ns)
    )
    compared = 0
    for arrival, name, i in events:
        stamps, _, rows = streams[name]
        rings[name].push(int(stamps[i]), rows[i], arrival_ns=int(arrival))
        frontier = aligner.frontier()
        while frontier is not None and compared < len(moments) and moments[compared] <= frontier:
            batch = aligner.at(int(moments[compared]), settled=True)
            for key, array in batch.items():
                if key == "anchor_age_ns":
                    continue
                np.testing.assert_array_equal(
                    np.ascontiguousarray(array if isinstance(array, np.ndarray) else array.cpu().numpy())
                    .view(np.uint8)
                    .ravel(),
                    np.ascontiguousarray(expected[key][compared : compared + 1]).view(np.uint8).ravel(),
                    err_msg=f"{key} at moment {compared}",
                )
            compared += 1
    return compared


def record(path, streams):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        for name, (stamps, _, rows) in streams.items():
            order = np.argsort(stamps, kind="stable")  # of equal stamps the last arrival is last
            episode.append(name, stamps[order], rows[order])
    return robocache.open(path)


def load(dataset, windows, **options):
    return robocache.Loader(
        dataset, batch_size=64, delta_timestamps=windows, framework="numpy", device="cpu", shuffle=False, **options
    )


def all_samples(loader):
    parts = np.array_split(np.arange(loader.num_anchors), -(-loader.num_anchors // 64))
    batches = [loader.gather(indices) for indices in parts]
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


WINDOWS = {
    "linear": {"method": "linear"},
    "previous": {"method": "previous"},
    "nearest": {"method": "nearest"},
    "next": {"method": "next"},
    "pchip": {"method": "pchip"},
    "akima": {"method": "akima"},
    "causal": {"causal": True},
    "gap": {"max_gap_s": 0.0012},
    "tolerance": {"method": "nearest", "tolerance_s": 0.0004},
    "latency": {"offset_s": 0.0031},
    "rows": {"rows": True},
    "float64": {"dtype": "float64", "normalize": "mean_std"},
    "float16": {"dtype": "float16", "normalize": "min_max"},
    "statistics per step": {"method": "pchip", "normalize": "q02_q98"},
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("seed", range(2))
def test_a_settled_batch_equals_the_loaders(tmp_path, name, seed):
    rng = np.random.default_rng(seed)
    streams = {}
    for stream, hz, dtype in (("joint", 1000, np.float32), ("force", 230, np.float64), ("button", 40, np.int32)):
        stamps, arrived = arrivals(rng, 0.6, hz, 0.3 / hz, 0.004, loss=0.05, doubled=0.05)
        rows = (1000 * rng.standard_normal((len(stamps), 3))).astype(dtype)
        streams[stream] = stamps, arrived, rows
    dataset = record(tmp_path / "cache", streams)
    options = WINDOWS[name]
    float_window = Window([-7, -1, 0] if name == "rows" else [-0.02, -0.0101, 0.0], **options)
    normalization = None
    if name == "statistics per step":
        joint = {"q02": -1e3 * rng.uniform(0.5, 1, (3, 3)), "q98": 1e3 * rng.uniform(0.5, 1, (3, 3))}
        normalization = robocache.Normalization(norm_stats={"joint": joint}, clip=True)
    loader = load(
        dataset,
        {"joint": float_window, "force": float_window, "button": Window([-0.03, 0.0])},
        normalization=normalization,
        anchors=Anchors(stream="joint"),
        return_age=True,
    )
    expected = all_samples(loader)
    rings = {key: Ring((3,), rows.dtype, span_s=0.2, lateness_s=0.0045) for key, (_, _, rows) in streams.items()}
    aligner = Aligner(loader.spec, rings, framework="numpy")
    compared = replay(streams, aligner, rings, expected, expected["time_ns"])
    assert compared > 0.9 * len(expected["time_ns"])
    for key, ring in rings.items():
        assert ring.counts["too_late"] == 0 and ring.counts["pushed"] == len(streams[key][0])
        assert ring.counts["reordered"] > 0 or key != "joint"


@pytest.mark.parametrize(
    "window",
    [Window([-1, 0, 2], rows=True), Window([-0.01, 0.0003], method="previous", max_gap_s=0.0012)],
    ids=["rows after", "held over a gap"],
)
@pytest.mark.parametrize("on_duplicate", ["keep", "refuse"])
def test_rows_after_the_target_that_are_late(tmp_path, window, on_duplicate):
    """A counted row after the anchor's, and the row that ends a gap, may be late."""
    rng = np.random.default_rng(8)
    stamps, arrived = arrivals(rng, 1.0, 1000, 0.0008, 0.004, loss=0.05)
    rows = rng.standard_normal((len(stamps), 3)).astype(np.float32)
    streams = {"joint": (stamps, arrived, rows)}
    loader = load(record(tmp_path / "cache", streams), {"joint": window}, return_age=True)
    expected = all_samples(loader)
    rings = {"joint": Ring((3,), "float32", span_s=0.2, lateness_s=0.004, on_duplicate=on_duplicate)}
    aligner = Aligner(loader.spec, rings, framework="numpy")
    assert replay(streams, aligner, rings, expected, expected["time_ns"]) > 0.9 * len(stamps)
    assert rings["joint"].counts["too_late"] == 0 and rings["joint"].counts["reordered"] > 100


def make_joint_and_camera(rng, seconds=0.5):
    """Returns a joint at 200 Hz, and the stamps and arrivals of a camera at 30 Hz, whose frames are delayed more."""
    stamps, arrived = arrivals(rng, seconds, 200, 0.001, 0.002)
    joint = stamps, arrived, rng.standard_normal((len(stamps), 2)).astype(np.float32)
    stamps, arrived = arrivals(rng, seconds, 30, 0.004, 0.03)
    return joint, stamps, arrived


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("codec", ["raw", "png", "jpeg", "depth"])
def test_frames_equal_the_loaders(tmp_path, codec, device):
    rng = np.random.default_rng(3)
    joint, stamps, arrived = make_joint_and_camera(rng)
    is_depth = codec == "depth"
    shape = (12, 16, 1) if is_depth else (12, 16, 3)
    smooth = np.cumsum(rng.integers(0, 9, (len(stamps), *shape)), axis=2)
    pixels = smooth.astype(np.uint16 if is_depth else np.uint8)
    order = np.argsort(stamps, kind="stable")
    with robocache.Writer(tmp_path / "cache") as writer:
        if is_depth:
            writer.stream("cam", unit_m=0.001, intrinsics=[[10, 0, 8], [0, 10, 6], [0, 0, 1]])
        with writer.episode() as episode:
            by_stamp = np.argsort(joint[0], kind="stable")
            episode.append("joint", joint[0][by_stamp], joint[2][by_stamp])
            episode.append("cam", stamps[order], pixels[order], codec="png" if is_depth else codec)
    dataset = robocache.open(tmp_path / "cache")
    camera = Window([-0.05, -0.04, 0.0], images=robocache.ImageOptions(size=(8, 8)), tolerance_s=0.2)
    loader = load(
        dataset, {"joint": Window([-0.01, 0.0]), "cam": camera}, anchors=Anchors(stream="joint"), return_age=True
    )
    expected = all_samples(loader)
    stored = dataset["cam"]
    # The frames in the order of their arrival.
    files = [stored.values.file(int(row)) for row in np.argsort(order)] if codec != "raw" else list(pixels)
    rings = {
        "joint": Ring((2,), "float32", span_s=0.2, lateness_s=0.003),
        "cam": Ring(shape, pixels.dtype, span_s=0.3, lateness_s=0.031, codec="png" if is_depth else codec),
    }
    aligner = Aligner(loader.spec, rings, device=device, framework="numpy" if device == "cpu" else "torch")
    compared = replay({"joint": joint, "cam": (stamps, arrived, files)}, aligner, rings, expected, expected["time_ns"])
    assert compared > 0.7 * len(expected["time_ns"]) and aligner.bad_frames == 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("codec", ["raw", "jpeg"])
@pytest.mark.parametrize("joint_window", [{}, {"method": "previous"}, {"rows": True}, {"causal": True}])
@pytest.mark.parametrize("frame_window", [{}, {"method": "nearest"}, {"max_gap_s": 0.05}])
def test_a_frame_is_seen_when_it_arrives(tmp_path, frame_window, joint_window, codec, device):
    """A camera never gives two frames one stamp, so its newest frame is settled at once: the moment is the frame's."""
    rng = np.random.default_rng(4)
    joint_ns = NS + np.arange(400) * 2_000_000
    frame_ns = NS + 7_000_000 + np.arange(22) * 33_000_000 + rng.integers(0, 4_000_000, 22)
    joint = rng.standard_normal((400, 2)).astype(np.float32)
    pixels = np.cumsum(rng.integers(0, 9, (22, 12, 16, 3)), axis=2).astype(np.uint8)
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("joint", joint_ns, joint)
        episode.append("cam", frame_ns, pixels, codec=codec)
    dataset = robocache.open(tmp_path / "cache")
    camera = Window([-0.04, 0.0], images=robocache.ImageOptions(size=(8, 8)), **frame_window)
    loader = load(
        dataset,
        {"joint": Window([-2, 0] if "rows" in joint_window else [-0.005, 0.0], **joint_window), "cam": camera},
        anchors=Anchors(stream="cam"),
        return_age=True,
    )
    expected = all_samples(loader)
    assert expected["time_ns"].tolist() == frame_ns.tolist()
    files = list(pixels) if codec == "raw" else [dataset["cam"].values.file(row) for row in range(len(pixels))]

    def ring(key, **options):
        row = loader.spec.keys[key]["rows"]
        return Ring(row["shape"], row["dtype"], span_s=0.3, codec=row["codec"], **options)

    rings = {"joint": ring("joint"), "cam": ring("cam", on_duplicate="refuse")}
    aligner = Aligner(loader.spec, rings, device=device, framework="numpy" if device == "cpu" else "torch")
    sent = 0
    for number, (stamp, file) in enumerate(zip(frame_ns.tolist(), files, strict=True)):
        arrival = stamp + 60_000_000  # the joints have passed the frame when it comes
        while sent < len(joint_ns) and joint_ns[sent] <= arrival:
            rings["joint"].push(int(joint_ns[sent]), joint[sent], arrival_ns=int(joint_ns[sent]))
            sent += 1
        assert rings["cam"].push(stamp, file, arrival_ns=arrival) == "kept"
        assert rings["cam"].push(stamp, files[0], arrival_ns=arrival) == "refused"
        assert aligner.frontier() == stamp
        for batch in (aligner.latest(), aligner.at(stamp, settled=True)):
            for key, array in batch.items():
                got = np.asarray(array if device == "cpu" else array.cpu())
                assert key == "anchor_age_ns" or got.tobytes() == expected[key][number : number + 1].tobytes(), key
    assert rings["cam"].counts == {
        "pushed": 44, "kept": 22, "reordered": 0, "too_late": 0, "refused": 22, "segments": 0, "duplicates": 22, "repeated": 0,
    }  # fmt: skip
    # If a stamp may come twice, a frame is settled only by the next frame.
    twice = {"joint": rings["joint"], "cam": ring("cam")}
    for stamp, file in zip(frame_ns.tolist()[-2:], files[-2:], strict=True):
        twice["cam"].push(stamp, file, arrival_ns=stamp)
    assert frame_ns[-2] <= Aligner(loader.spec, twice, framework="numpy").frontier() < frame_ns[-1]


def test_values_at_now_differ_from_training(tmp_path):
    """Values read before they are settled differ, so the comparison above would find a frontier that is too new."""
    rng = np.random.default_rng(5)
    stamps, arrived = arrivals(rng, 0.4, 500, 0.0005, 0.003)
    rows = rng.standard_normal((len(stamps), 2)).astype(np.float32)
    dataset = record(tmp_path / "cache", {"joint": (stamps, arrived, rows)})
    loader = load(dataset, {"joint": [0.0]}, snap_s=0)
    ring = Ring((2,), "float32", span_s=0.2, lateness_s=0.0035)
    aligner = Aligner(loader.spec, {"joint": ring}, framework="numpy")
    moments = loader.gather([0])["time_ns"][0] + np.arange(len(stamps)) * 1_000_000
    order = np.argsort(stamps, kind="stable")
    expected = np.stack(
        [np.interp(moments, stamps[order], rows[order, feature].astype(float)) for feature in range(2)], axis=1
    )
    settled, wrong = 0, 0
    for stamp, arrival, row in zip(stamps, arrived, rows, strict=True):
        ring.push(int(stamp), row, arrival_ns=int(arrival))
        for moment, value in zip(moments, expected, strict=True):
            if not arrival - 9_000_000 <= moment <= arrival:
                continue
            batch = aligner.at(int(moment))
            is_pad, values = batch["joint_is_pad"][0, 0], batch["joint"][0, 0]
            frontier = aligner.frontier()
            assert is_pad == (frontier is None or moment > frontier)
            settled += not is_pad
            if is_pad:
                wrong += bool(np.abs(values - value).max() > 1e-3)
            else:
                np.testing.assert_allclose(values, value, atol=1e-5)
    assert settled > 20 and wrong > 100


def spec_of(tmp_path, **window):
    dataset = record(
        tmp_path / "cache",
        {"joint": (np.arange(1, 30) * 10_000_000, None, np.arange(58, dtype=np.float32).reshape(29, 2))},
    )
    return load(dataset, {"joint": Window([-0.05, 0.0], **window)}).spec


def test_rings_that_contradict_the_spec_are_refused(tmp_path):
    spec = spec_of(tmp_path)
    ring = Ring((2,), "float32", span_s=1)
    cases = [
        ({}, "rings: expected one for each key of the spec, got none for 'joint'"),
        ({"joint": ring, "arm": ring}, r"rings\['arm'\]: expected a key of the spec, which has 'joint'"),
        (
            {"joint": Ring((3,), "float32", span_s=1)},
            r"rings\['joint'\]: expected rows of \[2\] float32",
        ),
        ({"joint": Ring((2,), "float64", span_s=1)}, r"got \[2\] float64"),
        (
            {"joint": Ring((2,), "float32", span_s=0.04)},
            r"rings\['joint'\].span_s: expected at least 0.05",
        ),
    ]
    for rings, message in cases:
        with pytest.raises(robocache.ArgumentError, match=message):
            Aligner(spec, rings)
    with pytest.raises(robocache.ArgumentTypeError, match="rings: expected"):
        Aligner(spec, [ring])
    with pytest.raises(robocache.ArgumentError, match="device: expected 'cpu' with numpy"):
        Aligner(spec, {"joint": ring}, device="cuda", framework="numpy")


def test_features_in_another_order_than_the_spec(tmp_path):
    names = ["arm.a", "arm.b"]
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        writer.stream("joint", names=names)
        episode.append("joint", np.arange(4) * 10**7, np.zeros((4, 2), np.float32))
    window = {"joint": Window([0.0])}
    loader = load(robocache.open(tmp_path / "cache"), window)
    spec = loader.spec

    def ring(names):
        return Ring((2,), "float32", span_s=1, names=names)

    for accepted in (names, ["a", "b"], None):
        new_ring = ring(accepted)
        Aligner(spec, {"joint": new_ring})
        assert new_ring.names == (accepted or names)
    for refused in (["b", "a"], ["arm.b", "arm.a"], ["x", "y"]):
        with pytest.raises(robocache.ArgumentError, match=r"rings\['joint'\].*got \['arm.a', 'arm.b'\]"):
            Aligner(spec, {"joint": ring(refused)})
    with pytest.raises(robocache.ArgumentError, match="names: expected one for each of 2 features, got 3"):
        ring(["a", "b", "c"])
    for names in ("ab", np.array(["a", "b"]), 2):
        with pytest.raises(robocache.ArgumentTypeError, match="names: expected a list of names, got "):
            ring(names)


def test_rows_that_contradict_the_ring_are_refused():
    ring = Ring((2,), "float32", span_s=1)
    for row in (np.zeros(3, np.float32), np.zeros(2), np.zeros((1, 2), np.float32)):
        with pytest.raises(robocache.ArgumentError, match=r"row: expected \[2\] float32"):
            ring.push(NS, row)
    torch = pytest.importorskip("torch")
    with pytest.raises(robocache.ArgumentTypeError, match="row: expected an array of numpy, got Tensor"):
        ring.push(NS, torch.zeros(2, requires_grad=True))
    with pytest.raises(robocache.ArgumentError, match="span_s: expected"):
        Ring((2,), "float32", span_s=0)
    with pytest.raises(robocache.ArgumentError, match="lateness_s: expected"):
        Ring((2,), "float32", span_s=1, lateness_s=1)
    for name in ("on_rewind", "on_duplicate"):
        with pytest.raises(robocache.ArgumentError, match=f"{name}: expected"):
            Ring((2,), "float32", span_s=1, **{name: "ignore"})
    assert ring.newest_ns is None and ring.arrival_ns is None and ring.counts["pushed"] == 0


def test_a_negative_number_of_rows_is_refused():
    ring = Ring((2,), "float32", span_s=1)
    ring.push(NS, np.zeros(2, np.float32))
    with pytest.raises(robocache.ArgumentError, match="most: expected 0 or more, got -1"):
        ring.take(0, most=-1)


def test_nothing_settled_yet_and_stale_streams(tmp_path):
    spec = spec_of(tmp_path)
    ring = Ring((2,), "float32", span_s=1, lateness_s=0.02)
    aligner = Aligner(spec, {"joint": ring}, framework="numpy")
    assert aligner.latest() is None and aligner.frontier() is None
    for k in range(1, 9):
        assert ring.push(k * 10_000_000 + NS, np.full(2, k, np.float32), arrival_ns=NS * 2) == "kept"
    batch = aligner.latest()
    assert batch["time_ns"].tolist() == [NS + 50_000_000]  # the newest row that is older than 80 - 20 ms
    assert batch["joint"].tolist() == [[[1, 1], [5, 5]]] and batch["joint_is_pad"].tolist() == [[True, False]]
    assert batch["anchor_age_ns"].tolist() == [30_000_000]
    assert ring.push(NS + 75_000_000, np.zeros(2, np.float32), arrival_ns=NS * 2) == "reordered"
    assert ring.push(NS + 59_999_999, np.zeros(2, np.float32), arrival_ns=NS * 2) == "too_late"
    assert ring.push(NS + 80_000_000, np.zeros(2, np.float32), arrival_ns=NS * 2) == "kept"
    assert ring.push(0, np.zeros(2, np.float32)) == "refused"
    assert ring.counts == {
        "pushed": 12, "kept": 9, "reordered": 1, "too_late": 1, "refused": 1, "segments": 0, "duplicates": 1, "repeated": 0,
    }  # fmt: skip
    with pytest.raises(robocache.StaleError, match="up to the frontier"):
        aligner.at(NS + 70_000_000, settled=True)


def test_a_silent_stream_is_named(tmp_path):
    stamps = np.arange(1, 30) * 10_000_000
    rows = np.zeros((29, 2), np.float32)
    dataset = record(tmp_path / "cache", {"joint": (stamps, None, rows), "force": (stamps, None, rows)})
    spec = load(dataset, {"joint": None, "force": None}).spec
    rings = {key: Ring((2,), "float32", span_s=1) for key in ("joint", "force")}
    aligner = Aligner(spec, rings, framework="numpy", max_age_s=0.05)
    for k in range(1, 20):
        rings["joint"].push(NS + k * 10_000_000, rows[0], arrival_ns=2 * NS)
        if k < 12:
            rings["force"].push(NS + k * 10_000_000, rows[0], arrival_ns=2 * NS)
        if k >= 17:
            with pytest.raises(robocache.StaleError, match=r"rings\['force'\]: .* got one that is 0\.0[6-8] s behind"):
                aligner.latest(now_ns=2 * NS)
        elif k > 2:
            assert aligner.latest(now_ns=2 * NS) is not None


@pytest.mark.parametrize("codec", [None, "raw", "jpeg"])
def test_a_frozen_sensor_with_new_stamps_is_named(tmp_path, codec):
    shape, rng = (8, 16, 3), np.random.default_rng(6)
    stamps = NS + np.arange(12) * 33_000_000
    pixels = rng.integers(0, 256, (12, *shape), dtype=np.uint8)
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("cam", stamps, pixels, codec=codec)
    dataset = robocache.open(tmp_path / "cache")
    window = {} if codec else {"method": "previous"}
    spec = load(dataset, {"cam": Window(**window)}).spec
    ring = Ring(shape, "uint8", span_s=1, codec=codec, on_duplicate="refuse")
    aligner = Aligner(spec, {"cam": ring}, framework="numpy", max_unchanged_s={"cam": 0.1})
    rows = [dataset["cam"].values.file(row) for row in range(12)] if codec == "jpeg" else pixels
    assert aligner.latest() is None and ring.unchanged_ns is None
    for k, frame in enumerate([0, 1, 2, 3, 3, 3, 3, 3, 3, 4, 4, 5]):
        assert ring.push(int(stamps[k]), rows[frame], arrival_ns=int(stamps[k])) == "kept"
        if 7 <= k <= 8:
            with pytest.raises(
                robocache.StaleError,
                match=r"rings\['cam'\]: expected other bytes within 0\.1 s, got the same for 0\.1[36]",
            ):
                aligner.latest()
            assert aligner.at(int(stamps[k]))["cam_is_pad"].sum() == 0  # only latest() looks
        else:
            assert aligner.latest()["time_ns"] == stamps[k]
        assert ring.unchanged_ns == stamps[k] - stamps[[0, 1, 2, 3, 3, 3, 3, 3, 3, 9, 9, 11][k]]
    assert ring.counts["repeated"] == 6
    assert Aligner(spec, {"cam": ring}, framework="numpy").latest() is not None


def test_limits_of_unchanged_rows_are_checked(tmp_path):
    spec, rings = spec_of(tmp_path), {"joint": Ring((2,), "float32", span_s=1)}
    for limits, error, why in [
        (0.5, robocache.ArgumentTypeError, r"max_unchanged_s: expected \{key: seconds\}, got 0\.5"),
        ({"cam": 1}, robocache.ArgumentError, "max_unchanged_s: expected keys of rings, 'joint', got 'cam'"),
        ({"joint": -1}, robocache.ArgumentError, r"max_unchanged_s\['joint'\]: expected seconds in \[0, 1e9\], got -1"),
    ]:
        with pytest.raises(error, match=why):
            Aligner(spec, rings, framework="numpy", max_unchanged_s=limits)


def test_streams_that_are_all_silent_are_named(tmp_path):
    spec = spec_of(tmp_path)
    ring = Ring((2,), "float32", span_s=1)
    aligner = Aligner(spec, {"joint": ring}, framework="numpy", max_age_s=0.3)
    assert aligner.latest() is None
    time.sleep(0.35)
    with pytest.raises(robocache.StaleError, match=r"rings\['joint'\]: expected a newer row within 0\.3 s,"):
        aligner.latest()
    for k in range(1, 9):
        ring.push(NS + k * 10_000_000, np.zeros(2, np.float32), arrival_ns=2 * NS + k)
    assert aligner.latest(now_ns=2 * NS + 300_000_008) is not None
    ring.push(NS + 80_000_000, np.zeros(2, np.float32), arrival_ns=3 * NS)  # a frozen sensor sends the last row again
    with pytest.raises(robocache.StaleError, match=r"got none for 0\.300000001 s"):
        aligner.latest(now_ns=2 * NS + 300_000_009)
    assert ring.arrival_ns == 2 * NS + 8 and ring.counts["duplicates"] == 1


@pytest.mark.parametrize("window", [{}, {"method": "pchip"}, {"causal": True}, {"method": "akima"}])
def test_a_row_that_the_ring_forgot_is_an_error(tmp_path, window):
    """The slowest stream holds the frontier back, so the span must include its delay."""
    stamps = np.arange(1, 200) * 2_000_000
    slow = np.arange(1, 20) * 20_000_000
    rows = np.random.default_rng(0).standard_normal((len(stamps), 2)).astype(np.float32)
    streams = {"joint": (stamps, None, rows), "force": (slow, None, rows[: len(slow)])}
    dataset = record(tmp_path / "cache", streams)
    loader = load(
        dataset,
        {"joint": Window([-0.1, 0.0], **window), "force": Window([0.0], method="previous")},
        anchors=Anchors(stream="joint"),
    )
    errors, compared = 0, 0
    for span_s in (0.11, 0.3):
        rings = {"joint": Ring((2,), "float32", span_s=span_s)}
        rings["force"] = Ring((2,), "float32", span_s=1)
        aligner = Aligner(loader.spec, rings, framework="numpy")
        events = [(int(t), "joint", i) for i, t in enumerate(stamps)]
        events += [(int(t) + 80_000_000, "force", i) for i, t in enumerate(slow)]
        for now, key, i in sorted(events):
            rings[key].push(int(streams[key][0][i]), rows[i], arrival_ns=now)
            try:
                batch = aligner.latest()
            except robocache.StaleError as error:
                assert span_s == 0.11 and "rings['joint'].span_s: expected rows as old as" in str(error)
                errors += 1
                continue
            if batch is None:
                continue
            nearest = int(np.argmin(np.abs(stamps - batch["time_ns"][0])))
            batch = aligner.at(int(stamps[nearest - 1]))
            expected = loader.gather([nearest - 1])
            for name in ("joint", "joint_is_pad"):
                assert batch[name].tobytes() == expected[name].tobytes()
            compared += 1
    assert errors > 50 and compared > 100


def test_batches_after_an_error_are_correct(tmp_path):
    """The error is raised after rows of another ring were copied."""
    stamps = np.arange(1, 400) * 5_000_000
    rows = np.random.default_rng(0).standard_normal((len(stamps), 2)).astype(np.float32)
    dataset = record(tmp_path / "cache", {"joint": (stamps, None, rows), "force": (stamps, None, rows)})
    spec = load(dataset, {"force": Window([-0.4, 0.0]), "joint": Window([0.0])}).spec
    rings = {
        "force": Ring((2,), "float32", span_s=9),
        "joint": Ring((2,), "float32", span_s=0.2),
    }
    aligner = Aligner(spec, rings, framework="numpy")
    for k, stamp in enumerate(stamps.tolist()):
        for ring in rings.values():
            ring.push(stamp, rows[k], arrival_ns=stamp)
        if k == 30:
            aligner.at(int(stamps[26]))  # the window reads many rows of joint, few of force
    with pytest.raises(robocache.StaleError):
        aligner.at(int(stamps[200]))
    for k in (390, 380, 385):
        np.testing.assert_array_equal(aligner.at(int(stamps[k]))["force"][0], rows[[k - 80, k]])


def test_nothing_is_settled_before_the_first_final_row(tmp_path):
    """A late or repeated row may become the first row, whose value also holds before its stamp."""
    dataset = record(
        tmp_path / "cache", {"button": (np.arange(1, 99) * NS, None, np.arange(98, dtype=np.int32)[:, None])}
    )
    loader = load(dataset, {"button": Window([-2.0])})
    ring = Ring((1,), "int32", span_s=9)
    aligner = Aligner(loader.spec, {"button": ring}, framework="numpy")
    ring.push(NS, np.array([-1], np.int32), arrival_ns=NS)
    assert aligner.frontier() is None and aligner.latest() is None
    for k in range(2):
        ring.push((k + 1) * NS, np.array([k], np.int32), arrival_ns=3 * NS)
    batch = aligner.at(NS, settled=True)
    assert batch["button"].tobytes() == loader.gather([0])["button"].tobytes() and batch["button_is_pad"].all()


def test_counted_rows_that_a_ring_forgot_are_an_error(tmp_path):
    dataset = record(
        tmp_path / "cache",
        {"joint": (np.arange(1, 99) * 10_000_000, None, np.arange(196, dtype=np.float32).reshape(98, 2))},
    )
    spec = load(dataset, {"joint": Window([-40, 0], rows=True)}).spec
    ring = Ring((2,), "float32", span_s=0.2)
    aligner = Aligner(spec, {"joint": ring}, framework="numpy")
    for k in range(1, 99):
        ring.push(NS + k * 10_000_000, np.full(2, k, np.float32), arrival_ns=2 * NS)
        if k > 30:
            with pytest.raises(robocache.StaleError, match=r"rings\['joint'\]\.span_s"):
                aligner.latest()
        elif 2 < k < 20:  # nothing is forgotten: rows before the first are padding
            assert aligner.latest()["joint_is_pad"].tolist() == [[True, False]]


def test_moments_and_stamps_at_the_ends_of_int64(tmp_path):
    spec = spec_of(tmp_path)
    ring = Ring((2,), "float32", span_s=1)
    aligner = Aligner(spec, {"joint": ring}, framework="numpy")
    row = np.zeros(2, np.float32)
    for stamp in (2**63 - 1, 2**62 + 1, -(2**63), -1, 0):
        assert ring.push(stamp, row, arrival_ns=2**63 - 1) == "refused"
    assert ring.push(2**62, row, arrival_ns=2**63 - 1) == "kept" and ring.counts["refused"] == 5
    for moment in (2**63 - 1, 2**62 + 1, -(2**63)):
        with pytest.raises(robocache.ArgumentError, match="time_ns: expected a moment within"):
            aligner.at(moment)
    assert aligner.at(2**62)["joint_is_pad"].tolist() == [[True, True]]


def test_frames_that_contradict_the_ring_are_refused():
    def file(codec, *shape, dtype=np.uint8):
        return robocache.frames.encode(np.zeros((1, *shape), dtype), codec).data.tobytes()

    ring = Ring((8, 16, 3), "uint8", span_s=1, codec="jpeg")
    for row, message in (
        (file("jpeg", 16, 8, 3), r"expected jpeg of \[8, 16, 3\] uint8, got jpeg of \[16, 8, 3\] uint8"),
        (file("jpeg", 8, 16), r"got jpeg of \[8, 16, 1\]"),
        (file("png", 8, 16, 3), r"got png of \[8, 16, 3\]"),
    ):
        with pytest.raises(robocache.ArgumentError, match=message):
            ring.push(NS, row)
    for row in (np.zeros((8, 16, 3), np.uint8), "file", None, [1, 2], np.zeros(9, np.int8)):
        with pytest.raises(robocache.ArgumentTypeError, match="row: expected the bytes of a file"):
            ring.push(NS, row)
    assert ring.push(NS, file("jpeg", 8, 16, 3)) == "kept" and ring.push(NS + 1, b"damaged") == "kept"
    assert ring.push(NS + 2, np.frombuffer(file("jpeg", 8, 16, 3), np.uint8)) == "kept"
    every_second = np.frombuffer(file("jpeg", 8, 16, 3), np.uint8).repeat(2)[::2]
    for number, row in enumerate((every_second, memoryview(every_second)), 3):
        assert ring.push(NS + number, row) == "kept"
        assert ring.take(0, most=9, unsettled=True).rows[-1] == file("jpeg", 8, 16, 3)
    depth = Ring((8, 16, 1), "uint16", span_s=1, codec="png")
    with pytest.raises(robocache.ArgumentError, match=r"got png of \[8, 16, 1\] uint8"):
        depth.push(NS, file("png", 8, 16))
    assert depth.push(NS, file("png", 8, 16, dtype=np.uint16)) == "kept"
    with pytest.raises(robocache.ArgumentError, match=r"shape: expected \[height, width, channels\]"):
        Ring((8, 16), "uint8", span_s=1, codec="raw")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_batch_of_each_framework(tmp_path, framework):
    spec = spec_of(tmp_path)
    spec.save(tmp_path / "spec.json")
    ring = Ring((2,), "float32", span_s=1)
    aligner = Aligner(tmp_path / "spec.json", {"joint": ring}, framework=framework)
    for k in range(1, 9):
        ring.push(NS + k * 10_000_000, np.full(2, k, np.float32), arrival_ns=2 * NS)
    batch = aligner.latest()
    assert set(batch) == {"joint", "joint_is_pad", "time_ns", "anchor_age_ns"}
    assert np.asarray(batch["joint"]).tolist() == [[[2, 2], [7, 7]]]
    assert str(batch["joint"].dtype).removeprefix("torch.") == "float32"


@pytest.mark.cuda
def test_the_batch_on_a_device(tmp_path):
    spec = spec_of(tmp_path)
    ring = Ring((2,), "float32", span_s=1)
    on_cpu = Aligner(spec, {"joint": ring})
    on_device = Aligner(spec, {"joint": ring}, device=pytest.importorskip("torch").device("cuda"))
    assert on_device.device.startswith("cuda:")
    for k in range(1, 90):
        ring.push(NS + k * 10_000_000, np.full(2, k, np.float32), arrival_ns=2 * NS)
        if k > 2:
            expected, got = on_cpu.latest(), on_device.latest()
            assert all(got[key].device.type == "cuda" and (got[key].cpu() == expected[key]).all() for key in expected)


def test_a_segment_ends_at_a_clock_that_is_set_back(tmp_path):
    spec = spec_of(tmp_path)
    ring = Ring((2,), "float32", span_s=0.1, on_rewind="segment")
    aligner = Aligner(spec, {"joint": ring}, framework="numpy")
    for k in range(1, 9):
        ring.push(9 * NS + k * 10_000_000, np.full(2, k, np.float32), arrival_ns=10 * NS)
    assert ring.push(NS, np.full(2, 100, np.float32), arrival_ns=10 * NS) == "segment"
    assert aligner.latest() is None
    ring.push(NS + 10_000_000, np.full(2, 110, np.float32), arrival_ns=10 * NS)
    batch = aligner.latest()
    assert batch["joint"].tolist() == [[[100, 100], [100, 100]]] and batch["joint_is_pad"].tolist() == [[True, False]]


def test_an_output_has_no_ring_but_a_base(tmp_path):
    rng = np.random.default_rng(7)
    stamps, arrived = arrivals(rng, 0.5, 200, 0.001, 0.003)
    rows = {name: rng.standard_normal((len(stamps), 4)).astype(np.float32) for name in ("state", "action")}
    dataset = record(tmp_path / "cache", {name: (stamps, arrived, values) for name, values in rows.items()})
    state = Window([-0.02, 0.0], normalize="mean_std", offset_s=0.002)
    relative = [actions.Relative("joints", mask=[True, True, False, True])]
    action = Window([0.0, 0.02, 0.04], convert=relative, base=("state", [2, 0, 3, 1]))
    loader = load(dataset, {"state": state, "action": action})
    expected = all_samples(loader)
    ring = Ring((4,), "float32", span_s=0.2, lateness_s=0.0035)
    aligner = Aligner(loader.spec, {"state": ring}, outputs=["action"], framework="numpy")
    streams = {"state": (stamps, arrived, rows["state"])}
    assert replay(streams, aligner, {"state": ring}, expected, expected["time_ns"]) > 80
    batch = aligner.latest()
    assert set(batch) == {"state", "state_is_pad", "action_base", "time_ns", "anchor_age_ns"}
    result = loader.spec.to_absolute("action", np.zeros((1, 3, 4), np.float32), batch)
    np.testing.assert_array_equal(result[0, 0], batch["action_base"][0] * [1, 1, 0, 1])
    for outputs, message in (
        (["arm"], "outputs: expected keys of the spec"),
        (["state"], "expected none, since the policy"),
    ):
        with pytest.raises(robocache.ArgumentError, match=message):
            Aligner(loader.spec, {"state": ring}, outputs=outputs)


CONVERSIONS = {
    "joints": ([actions.Relative("joints", mask=[True] * 6 + [False] * 2)], {}),
    "joints normalised": ([actions.Relative("joints")], {"normalize": "mean_std"}),
    "joints clipped": ([actions.Relative("joints")], {"normalize": "q10_q90"}),
    "poses": ([actions.Relative("se3", mask=[True] * 7 + [False])], {}),
    "rotated poses": (
        [
            actions.Relative("mixed", mask=[True] * 7 + [False]),
            actions.Rotate(3, "quat_xyzw", "rot6d_columns"),
        ],
        {"normalize": "min_max"},
    ),
    "steps": ([actions.StepDelta()], {}),
    "rescaled": ([actions.Rescale(slice(7, 8), (-1, 1), (0, 5))], {}),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_converted_keys_equal_the_loaders(tmp_path, name, dtype):
    conversions, window = CONVERSIONS[name]
    rng = np.random.default_rng(11)
    streams = {}
    for key, hz in (("state", 200), ("past", 100)):
        stamps, arrived = arrivals(rng, 0.5, hz, 0.002, 0.004)
        rows = rng.standard_normal((len(stamps), 8)).astype(dtype)
        rows[:, 3:7] += [0, 0, 0, 5]
        rows[:, 3:7] /= np.linalg.norm(rows[:, 3:7], axis=1, keepdims=True)
        streams[key] = stamps, arrived, rows
    dataset = record(tmp_path / "cache", streams)
    has_base = name != "rescaled"
    slerp = {"method": [(slice(3, 7), "slerp")]}
    # The state's history relative to its newest value, and another stream relative to the same value.
    base = {"base": "state"} if has_base else {}
    windows = {
        "state": Window([-0.03, -0.0101, 0.0], convert=conversions, offset_s=0.003, **base, **slerp, **window),
        "past": Window([-0.02, 0.0], convert=conversions, **base, **slerp, **window),
    }
    normalization = robocache.Normalization(clip=True) if name == "joints clipped" else None
    loader = load(dataset, windows, normalization=normalization, anchors=Anchors(stream="state"), return_age=True)
    expected = all_samples(loader)
    rings = {key: Ring((8,), dtype, span_s=0.3, lateness_s=0.0065) for key in streams}
    aligner = Aligner(loader.spec, rings, framework="numpy")
    assert replay(streams, aligner, rings, expected, expected["time_ns"]) > 0.8 * len(expected["time_ns"])
    assert set(aligner.latest()) == set(expected) - {"episode_index", "anchor_index"} | {"anchor_age_ns"}
    # If the base is not settled, values relative to the base are padding.
    newest = aligner.at(int(max(stamps.max() for stamps, _, _ in streams.values())))
    assert newest["state_is_pad"][0, -1] and newest["past_is_pad"][0].all() == has_base
    # An output's base is the recorded value, not the converted value.
    ring = Ring((8,), dtype, span_s=0.3, lateness_s=0.0065)
    without_past = Aligner(loader.spec, {"state": ring}, outputs=["past"], framework="numpy")
    assert replay({"state": streams["state"]}, without_past, {"state": ring}, expected, expected["time_ns"]) > 50
    assert ("past_base" in without_past.latest()) == has_base
