"""A recording with two cameras, whose frames differ in every row."""

import numpy as np

import robocache

PERIOD_NS = 33_333_333
DELTAS = [-0.1, -0.017, 0.0, 0.05]


def smooth_frames(rng, n, height=18, width=26, channels=3):
    """Frames smooth enough for JPEG, different in every row."""
    y, x = np.mgrid[:height, :width]
    phase = rng.uniform(0, 6, (n, 1, 1, channels))
    wave = np.sin(x[None, :, :, None] / 5 + phase) + np.cos(y[None, :, :, None] / 4 - phase)
    return np.clip(128 + 50 * wave + rng.normal(0, 4, (n, height, width, channels)), 0, 255).astype(np.uint8)


def random_stamps(rng, n, period_ns, start=0):
    return start + np.cumsum(rng.integers(period_ns // 2, period_ns * 3 // 2, n))


class Recording:
    """Two cameras and joints, each with its own clock; three episodes, the second without the wrist camera."""

    def __init__(self, rng):
        self.episodes = []
        for e in range(3):
            start = 10**9 * e
            self.episodes.append(
                {
                    "joint": (
                        t := random_stamps(rng, 40, 10_000_000, start),
                        rng.normal(size=(40, 3)).astype(np.float32),
                    ),
                    "top": (u := random_stamps(rng, 12, PERIOD_NS, start), smooth_frames(rng, len(u))),
                    **(
                        {}
                        if e == 1
                        else {
                            "wrist": (v := random_stamps(rng, 9, PERIOD_NS, start), smooth_frames(rng, len(v), 10, 8))
                        }
                    ),
                }
            )
            assert len(t) and len(u)

    def write(self, path, codec):
        with robocache.Writer(path) as writer:
            for streams in self.episodes:
                with writer.episode() as episode:
                    for name, (time_ns, values) in streams.items():
                        episode.append(name, time_ns, values, **({} if name == "joint" else {"codec": codec}))
        return robocache.open(path)
