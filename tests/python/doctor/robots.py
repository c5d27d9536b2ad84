"""Synthetic recordings without a fault, and functions that plant a fault and read the doctor's report."""

import copy

import numpy as np

import robocache

RATES_HZ = {"observation.state": 50, "action": 50, "imu": 200, "top": 10}


def make_recording(rng, seconds=6.0, jitter=0.02, features=4, camera=True):
    """Returns one episode, {stream: (time_ns, values)}: smooth motion and noise; each stream has a clock of its own, with jitter."""
    streams = {}
    base = int(rng.integers(1_600_000_000, 1_800_000_000)) * 10**9
    for name, rate in RATES_HZ.items():
        period = 1e9 / rate
        n = int(seconds * rate)
        phase = rng.uniform(0, 1) * period
        time = base + np.sort(np.arange(n) * period + phase + rng.uniform(-jitter, jitter, n) * period).astype(np.int64)
        if name == "top":
            if camera:
                streams[name] = (time, rng.integers(0, 256, (n, 16, 16, 3), np.uint8))
            continue
        width = 6 if name == "imu" else features
        seconds_of_rows = np.arange(n)[:, None] / rate
        waves = sum(
            rng.uniform(0.2, 1, width)
            * np.sin(2 * np.pi * rng.uniform(0.1, 1.5, width) * seconds_of_rows + rng.uniform(0, 7, width))
            for _ in range(3)
        )
        streams[name] = (time, (waves + rng.normal(0, 0.01, waves.shape)).astype(np.float32))
    return streams


def make_recordings(rng, episodes=4, **options):
    """Returns recordings of similar length."""
    return [make_recording(rng, seconds=float(rng.uniform(5.5, 6.5)), **options) for _ in range(episodes)]


def write(path, recordings, metadata=None, describe=None, provenance=None, **options):
    """Writes the recordings as a cache."""
    with robocache.Writer(path, **options) as writer:
        for name, facts in (describe or {}).items():
            writer.stream(name, **facts)
        for number, streams in enumerate(recordings):
            with writer.episode(**(metadata[number] if metadata else {})) as episode:
                for name, (time, values) in streams.items():
                    if len(time) and name.startswith("top"):
                        episode.append(name, time, values, codec="png")
                    elif len(time):
                        episode.append(name, time, values)
        writer.provenance.update(provenance or {})
    return path


def examine(path, recordings, *arguments, **options):
    """Returns the doctor's report on a cache of the recordings."""
    return robocache.doctor(write(path, recordings, *arguments, **options))


def findings(report, *codes):
    return [finding for finding in report.findings if finding.code in codes]


def locations(report):
    """Returns (code, episode, stream, row) of each finding."""
    return [(f.code, f.episode, f.stream, f.row) for f in report.findings]


def with_fault(recordings, plant):
    """Returns a copy of the recordings in which `plant` has planted a fault."""
    result = copy.deepcopy(recordings)
    plant(result)
    return result
