"""A recording with two cameras, whose frames differ in every row."""

import numpy as np

import robocache

PERIOD_NS = 33_333_333
DELTAS = [-0.1, -0.017, 0.0, 0.05]


def smooth_frames(rng, n, height=18, width=26, channels=3):
    """Returns frames smooth enough for JPEG, different in every row."""
    y, x = np.mgrid[:height, :width]
    phase = rng.uniform(0, 6, (n, 1, 1, channels))
    wave = np.sin(x[None, :, :, None] / 5 + phase) + np.cos(y[None, :, :, None] / 4 - phase)
    return np.clip(128 + 50 * wave + rng.normal(0, 4, (n, height, width, channels)), 0, 255).astype(np.uint8)


def random_stamps(rng, n, period_ns, start=0):
    return start + np.cumsum(rng.integers(period_ns // 2, period_ns * 3 // 2, n))


def write_frames(path, recording, codec, streams=None):
    """Writes [{stream: (stamps, values)}]. Values with three or more axes are frames.

    codec: one for all cameras, or {stream: codec}. streams: {name: arguments of Writer.stream}.
    """
    with robocache.Writer(path) as writer:
        for name, declared in (streams or {}).items():
            writer.stream(name, **declared)
        for rows in recording:
            with writer.episode() as episode:
                for name, (time_ns, values) in rows.items():
                    options = {"codec": codec[name] if isinstance(codec, dict) else codec} if values.ndim > 2 else {}
                    episode.append(name, time_ns, values, **options)
    return robocache.open(path)


class Recording:
    """Two cameras and joints, each with its own clock; three episodes, the second without the wrist camera."""

    def __init__(self, rng):
        self.episodes = []
        for start in (0, 10**9, 2 * 10**9):
            joint_ns = random_stamps(rng, 40, 10_000_000, start)
            rows = {"joint": (joint_ns, rng.normal(size=(40, 3)).astype(np.float32))}
            rows["top"] = random_stamps(rng, 12, PERIOD_NS, start), smooth_frames(rng, 12)
            if start != 10**9:
                rows["wrist"] = random_stamps(rng, 9, PERIOD_NS, start), smooth_frames(rng, 9, 10, 8)
            self.episodes.append(rows)

    def write(self, path, codec):
        return write_frames(path, self.episodes, codec)
