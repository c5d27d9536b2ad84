"""Batches of an aligner, bit for bit those of a Loader of the same rows."""

import numpy as np
import pytest

import robocache
from robocache import Anchors, Window

NS = 1_000_000_000


def arrivals(rng, seconds, hz, jitter_s, late_s, *, loss=0.0, doubled=0.0, start=NS):
    """Stamps of a sensor and when they come: jittered, some late, lost or twice, in the order of arrival."""
    ticks = np.arange(1, int(seconds * hz)) / hz
    stamps = start + (1e9 * (ticks + rng.uniform(0, jitter_s, len(ticks)))).astype(np.int64)
    stamps = np.sort(stamps)[rng.random(len(stamps)) >= loss]
    stamps = np.sort(np.concatenate([stamps, stamps[rng.random(len(stamps)) < doubled]]))
    came = stamps + (1e9 * rng.uniform(0, late_s, len(stamps))).astype(np.int64)
    order = np.argsort(came, kind="stable")
    return stamps[order], came[order]


def replay(streams, aligner, rings, expected, moments):
    """Pushes rows by arrival; compares every moment as soon as the frontier has reached it. Returns how many were compared."""
    events = sorted((came, name, i) for name, (_, cames, _) in streams.items() for i, came in enumerate(cames))
    compared = 0
    for came, name, i in events:
        stamps, _, rows = streams[name]
        rings[name].push(int(stamps[i]), rows[i], arrival_ns=int(came))
        frontier = aligner.frontier()
        while frontier is not None and compared < len(moments) and moments[compared] <= frontier:
            batch = aligner.at(int(moments[compared]), settled=True)
            for key, array in batch.items():
                if key == "anchor_age_ns":
                    continue
                np.testing.assert_array_equal(
                    np.ascontiguousarray(array).view(np.uint8).ravel(),
                    np.ascontiguousarray(expected[key][compared : compared + 1]).view(np.uint8).ravel(),
                    err_msg=f"{key} at moment {compared}",
                )
            compared += 1
    return compared


def recorded(path, streams):
    with robocache.Writer(path) as writer, writer.episode() as episode:
        for name, (stamps, _, rows) in streams.items():
            order = np.argsort(stamps, kind="stable")  # of equal stamps the last to come is last
            episode.append(name, stamps[order], rows[order])
    return robocache.open(path)


WINDOWS = {
    "linear": dict(method="linear"),
    "previous": dict(method="previous"),
    "nearest": dict(method="nearest"),
    "next": dict(method="next"),
    "pchip": dict(method="pchip"),
    "akima": dict(method="akima"),
    "causal": dict(causal=True),
    "gap": dict(max_gap_s=0.0012),
    "tolerance": dict(method="nearest", tolerance_s=0.0004),
    "latency": dict(offset_s=0.0031),
    "float64": dict(dtype="float64", normalize="mean_std"),
    "float16": dict(dtype="float16", normalize="min_max"),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("seed", range(2))
def test_a_settled_batch_is_the_loaders(tmp_path, name, seed):
    rng = np.random.default_rng(seed)
    streams = {}
    for stream, hz, dtype in (("joint", 1000, np.float32), ("force", 230, np.float64), ("button", 40, np.int32)):
        stamps, came = arrivals(rng, 0.6, hz, 0.3 / hz, 0.004, loss=0.05, doubled=0.05)
        rows = (1000 * rng.standard_normal((len(stamps), 3))).astype(dtype)
        streams[stream] = stamps, came, rows
    dataset = recorded(tmp_path / "cache", streams)
    options = WINDOWS[name]
    floats = Window([-0.02, -0.0101, 0.0], **options)
    loader = robocache.Loader(
        dataset,
        batch_size=64,
        delta_timestamps={"joint": floats, "force": floats, "button": Window([-0.03, 0.0])},
        anchors=Anchors(stream="joint"),
        return_age=True,
        framework="numpy",
        device="cpu",
        shuffle=False,
    )
    batches = [loader.gather(range(i, min(i + 64, loader.num_anchors))) for i in range(0, loader.num_anchors, 64)]
    expected = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
    rings = {
        key: robocache.live.Ring((3,), rows.dtype, span_s=0.2, lateness_s=0.0045)
        for key, (_, _, rows) in streams.items()
    }
    aligner = robocache.live.Aligner(loader.spec, rings, framework="numpy")
    compared = replay(streams, aligner, rings, expected, expected["time_ns"])
    assert compared > 0.9 * len(expected["time_ns"])
    for key, ring in rings.items():
        assert ring.counts["too_late"] == 0 and ring.counts["pushed"] == len(streams[key][0])
        assert ring.counts["reordered"] > 0 or key != "joint"
