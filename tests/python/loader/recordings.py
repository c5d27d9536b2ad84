"""Makes recordings, compares their loaders with the oracle, and expects errors and warnings."""

import contextlib
import itertools
import os
import pickle
import re
import signal
import warnings

import ml_dtypes
import numpy as np
import pytest
from loaders_by_keywords import loader_by_keywords
from reference.compare import assert_same_bits, to_numpy
from reference.window_batch import assert_batch, window_batch

import robocache

FLOATS = [np.dtype(name) for name in ("float64", "float32", "float16", ml_dtypes.bfloat16)]
# Lets a test fork a process that has threads.
FORKS = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
EPOCH_NS = 1_700_000_000_123_456_789

# stream: (rate in Hz, dtype, shape of one sample)
STREAMS = {
    "observation.state": (50, np.dtype(np.float32), (7,)),
    "observation.imu": (200, np.dtype(np.float64), (6,)),
    "observation.feature": (30, np.dtype(np.float16), (2, 3)),
    "observation.tactile": (80, np.dtype(ml_dtypes.bfloat16), (5,)),
    "gripper": (10, np.dtype(np.float32), ()),
    "mode": (5, np.dtype(np.int16), (2,)),
    "button": (20, np.dtype(bool), ()),
    "ticks": (25, np.dtype(np.int64), (1,)),
    "action": (50, np.dtype(np.float32), (17,)),
}
FLOAT_STREAMS = [name for name, (_, dtype, _) in STREAMS.items() if dtype in FLOATS]
ALL_WINDOWS = {name: [-0.21, -0.0333, 0.0, 0.0101, 0.35] for name in STREAMS}


def random_values(rng, count, dtype, shape):
    if dtype.kind == "b":
        return rng.random((count, *shape)) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, (count, *shape), dtype, endpoint=True)
    scale = np.exp2(rng.integers(-3, 8, shape))
    return (rng.standard_normal((count, *shape)) * scale + scale).astype(dtype)


def position_of(loader):
    """Returns the state without its fingerprint and weights."""
    state = loader.state_dict()
    assert set(state) - {"weights"} == {"seed", "epoch", "samples", "fingerprint"}
    return {key: state[key] for key in ("seed", "epoch", "samples")}


def record(rng, episodes=7):
    """Returns [{stream: (stamps, values)}], with jitter, dropouts and repeated stamps; some streams are missing or have one row."""
    recording = []
    for number in range(episodes):
        start = EPOCH_NS + 10**12 * number
        duration = rng.uniform(0.4, 1.6)
        episode = {}
        for name, (rate, dtype, shape) in STREAMS.items():
            count = max(2, int(duration * rate))
            seconds = np.arange(count) / rate + rng.normal(0, 0.15 / rate, count) + rng.uniform(-0.05, 0.05)
            keep = rng.random(count) > 0.05
            if count > 12:
                keep[count // 3 : count // 3 + count // 8] = False  # a dropout
            seconds = np.sort(seconds[keep])
            if len(seconds) > 4:
                seconds[3] = seconds[2]
            time_ns = start + np.round(seconds * 1e9).astype(np.int64)
            episode[name] = (time_ns, random_values(rng, len(time_ns), dtype, shape))
        recording.append(episode)
    del recording[1]["observation.imu"], recording[1]["mode"], recording[4]["action"], recording[4]["gripper"]
    for name in ("observation.feature", "ticks"):
        time_ns, values = recording[2][name]
        recording[2][name] = (time_ns[:1], values[:1])
    return recording


def write(path, recording, nominal=(), *, streams=None, columns=None, provenance=(), **options):
    """Writes a cache of [{stream: (stamps, values)}].

    nominal: streams with a nominal clock. streams: {name: arguments of Writer.stream}. columns: the metadata of each
    episode, by default two alternating tasks.
    """
    with robocache.Writer(path, **options) as writer:
        writer.provenance.update(provenance)
        for name in nominal:
            writer.stream(name, clock="nominal")
        for name, declared in (streams or {}).items():
            writer.stream(name, **declared)
        for number, rows in enumerate(recording):
            with writer.episode(**(columns[number] if columns else {"task": f"task {number % 2}"})) as episode:
                for name, (time_ns, values) in rows.items():
                    episode.append(name, time_ns, values)
    return robocache.open(path)


def write_one_stream(path, rows, dtype=np.float64):
    """Writes episodes of these rows of the stream `x`, with different stamps. Returns the dataset, and (episode, stamp) of each row."""
    rng = np.random.default_rng(3)
    recording = [
        {"x": (10**9 * e + np.arange(n) * 1000, rng.normal(size=(n, 3)).astype(dtype))} for e, n in enumerate(rows)
    ]
    return write(path, recording), ticks_of(recording, "x")


def write_texts(path, episodes, counts=None, *, attributes=None, columns=None, tables=()):
    """Writes [{stream: [(time, text or index)]}], with times in units of 0.1 s from the episode's start.

    The stream `joint` has a row every 0.1 s, `counts[episode]` or 10 of them. attributes: {stream: its attributes}.
    tables: provenance with tables of texts.
    """
    recording = []
    for number, (texts, count) in enumerate(zip(episodes, counts or [10] * len(episodes), strict=True)):
        start = (9 - number) * 10**10
        rows = {"joint": (start + np.arange(count) * 10**8, np.arange(float(count)))}
        for stream, moments in texts.items():
            stamps, values = zip(*moments, strict=True)
            stamps = start + np.round(np.array(stamps) * 10**8).astype(np.int64)
            rows[stream] = stamps, list(values) if isinstance(values[0], str) else np.array(values)
        recording.append(rows)
    streams = {stream: {"attributes": values} for stream, values in (attributes or {}).items()}
    return write(path, recording, streams=streams, columns=columns or [{}] * len(episodes), provenance=tables)


@contextlib.contextmanager
def refused(*parts):
    """Expects a ValueError or TypeError of robocache with all these parts in its message."""
    with pytest.raises(robocache.Error) as caught:
        yield
    assert isinstance(caught.value, ValueError | TypeError)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@contextlib.contextmanager
def no_warning(category=robocache.LoaderWarning):
    with warnings.catch_warnings():
        warnings.simplefilter("error", category)
        yield


@contextlib.contextmanager
def warnings_with(part, expected):
    """Expects one warning with `part` in its message, which the pattern `expected` matches; no such warning if `expected` is None."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(warning.message) for warning in caught if part in str(warning.message)]
    assert len(texts) == (1 if expected is not None else 0) and all(re.search(expected, text) for text in texts), texts


def oracle_batch(dataset, recording, batch, delta_timestamps, **options):
    """Returns what the oracle expects at the anchors of `batch`."""
    dtype = options.pop("dtype", "float32")
    return window_batch(
        recording,
        anchors_of([batch]),
        delta_timestamps,
        dtypes={name: dtype for name, (_, dtype, _) in STREAMS.items()},
        shapes={name: shape for name, (_, _, shape) in STREAMS.items()},
        stats=dataset.stats,
        dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype,
        **options,
    )


def check(dataset, recording, delta_timestamps, *, batches=2, batch_size=24, device="cpu", **options):
    """Compares a loader's first batches with the oracle. Returns the loader."""
    loader = loader_by_keywords(
        dataset, batch_size=batch_size, delta_timestamps=delta_timestamps, device=device, **options
    )
    oracle_options = {
        name: value
        for name, value in options.items()
        if name
        in ("method", "max_gap_s", "offset_s", "causal", "tolerance_s", "return_age", "snap_s", "normalize", "dtype")
    }
    for batch in itertools.islice(loader, batches):
        assert_batch(batch, oracle_batch(dataset, recording, batch, delta_timestamps, **oracle_options))
        assert {array.device.type for array in batch.values()} == {device}
    return loader


def anchors_of(batches, *names):
    """Returns (*values of `names`, episode, time) of every sample, in order."""
    names = (*names, "episode_index", "time_ns")
    return [row for batch in batches for row in zip(*(to_numpy(batch[name]).tolist() for name in names), strict=True)]


def ticks_of(recording, stream, episodes=None):
    chosen = range(len(recording)) if episodes is None else episodes
    return [(e, int(t)) for e in chosen for t in recording[e].get(stream, ([],))[0]]


def batches_of(loader, count=3):
    return [{key: to_numpy(value) for key, value in batch.items()} for batch in itertools.islice(loader, count)]


def assert_same_batches(batches, expected):
    assert len(batches) == len(expected)
    for a, b in zip(batches, expected, strict=True):
        assert set(a) == set(b)
        for key in a:
            assert_same_bits(a[key], b[key], key)


def small_loader(dataset, **options):
    options = {"batch_size": 16, "delta_timestamps": {"action": [0.0]}, "device": "cpu"} | options
    return loader_by_keywords(dataset, **options)


def loader_of(dataset, windows, **options):
    return robocache.Loader(dataset, delta_timestamps=windows, **{"batch_size": 8} | options)


def make_loader(dataset, device="cpu", **options):
    """Returns a loader with windows of several rates."""
    windows = {"observation.state": [-0.05, 0.0], "action": [0.0, 0.021], "mode": None}
    options = {"batch_size": 24, "delta_timestamps": windows, "anchor": "action", "device": device} | options
    return loader_by_keywords(dataset, **options)


def copied(batch):
    return {key: to_numpy(x).copy() for key, x in batch.items()}


def joined(batches):
    """Returns one batch with the samples of all batches, in order."""
    batches = batches_of(batches, None)
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


def run_forked(call):
    """Returns the result of a call in a forked child, or the child's error."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            with os.fdopen(write_end, "wb") as pipe:
                try:
                    result = call()
                except BaseException as error:
                    result = error
                pickle.dump(result, pipe)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        result = pickle.load(pipe)
    assert os.waitpid(child, 0)[1] == 0
    return result


def forever(loader):
    return itertools.chain.from_iterable(itertools.repeat(loader))
