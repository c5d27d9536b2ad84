"""Compares the windows that a policy saw on the robot with the windows of a Loader on the same recording."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .. import dataset, errors
from .._check import whole
from .._printable import count
from ..spec import Spec
from .aligner import Aligner, Ring
from .recorder import ARRIVAL, MOMENTS

_SPAN_S = 1e8  # a ring that forgets nothing
_SPANS_SHOWN = 3


@dataclass
class SkewSpan:
    """A run of moments whose windows differ."""

    episode: int
    start_s: float  # since the episode's begin
    end_s: float
    windows: int


@dataclass
class KeySkew:
    """The result for one key.

    Attributes:
        camera: whether its rows are frames.
        windows: the number of compared windows.
        differ: the number of windows that differ from training's in a step that training has.
        older_ms: how much older the policy's newest row was than training's, at the last step of a window; the mean.
        oldest_ms: the same; the maximum.
        not_settled: the number of windows with steps that the aligner masks, because their rows had not arrived.
        delay_ms: a row's arrival minus its stamp; the median.
        longest_delay_ms: the same; the quantile 0.99.
        too_late: the number of rows that came later than the ring's `lateness_s`, so that it dropped them. The recorder counted
            them.
        spans: the spans of time in which windows differ, the one with the most windows first.
    """

    camera: bool
    windows: int
    differ: int
    older_ms: float
    oldest_ms: float
    not_settled: int
    delay_ms: float
    longest_delay_ms: float
    too_late: int
    spans: list[SkewSpan] = field(default_factory=list)


@dataclass
class Skew:
    """The report of :func:`skew`. ``print`` shows it.

    Attributes:
        recorded: the recording's path.
        moments: ``"recorded"``: the moments of the policy's batches; ``"now"``: drawn, as for a policy that always takes the
            present moment.
        compared: the number of compared moments.
        left_out: the number of other moments: their windows extend beyond the last row of a stream.
        behind_ms: the time at which the policy got a moment, minus the moment; the median.
        keys: ``{key: KeySkew}``, in descending order of `older_ms`, then of `delay_ms`.
        outputs: keys that are not compared: they are not recorded, or have steps in the future, which no policy sees.
    """

    recorded: str
    moments: str
    compared: int
    left_out: int
    behind_ms: float
    keys: dict[str, KeySkew]
    outputs: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as a dict for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        source = (
            "that the policy got"
            if self.moments == "recorded"
            else "of a policy that takes the present moment (none were recorded)"
        )
        lines = [
            f"{self.recorded}: {count(self.compared, 'moment')} {source}, {self.behind_ms:.1f} ms behind now (median)"
        ]
        if self.left_out:
            lines.append(f"  {count(self.left_out, 'moment')} more extend beyond the last row of a stream: left out")
        for name, key in self.keys.items():
            stream = f"{'camera' if key.camera else 'stream'} {name}"
            if key.differ:
                lines.append(
                    f"{stream}: what the policy saw was {key.older_ms:.1f} ms older than in training (mean; at most "
                    f"{key.oldest_ms:.1f} ms); {key.differ} of {count(key.windows, 'window')} differ"
                )
            else:
                lines.append(f"{stream}: {count(key.windows, 'window')}, none differs from training's")
            side = (
                "before their stamps: its clock is ahead of that of the arrivals"
                if key.delay_ms < 0
                else "after their stamps"
            )
            lines.append(
                f"  delay: its rows come {abs(key.delay_ms):.1f} ms {side} (median; {key.longest_delay_ms:.1f} ms at 99 %)"
            )
            for span in key.spans[:_SPANS_SHOWN]:
                lines.append(
                    f"  where: episode {span.episode}, {span.start_s:.2f} s to {span.end_s:.2f} s ({count(span.windows, 'window')})"
                )
            if len(key.spans) > _SPANS_SHOWN:
                lines.append(f"  where: {len(key.spans) - _SPANS_SHOWN} more parts")
            if key.differ:
                lines.append(
                    "  why: training has rows that had not arrived when the policy got the window; aligner.latest() returns the "
                    "newest moment that has them all"
                )
            if key.too_late:
                lines.append(
                    f"  {count(key.too_late, 'row')} came later than the ring's lateness_s and are in no window: make it longer"
                )
        if self.outputs:
            lines.append(f"not compared, since they are the policy's output or not recorded: {', '.join(self.outputs)}")
        return "\n".join(lines)


class _Rows(NamedTuple):
    """A stream's rows in an episode, in the order of their stamps."""

    time_ns: np.ndarray
    arrival_ns: np.ndarray
    values: np.ndarray
    lateness_s: float
    on_duplicate: str


def skew(
    recorded: dataset.Dataset | str | os.PathLike[str], spec: Spec | str | os.PathLike[str], *, moments: int = 1000
) -> Skew:
    """Compares the windows that a policy saw with those of a Loader on the recording, moment by moment.

    Rows are replayed by their arrivals. For each moment two windows are made: from the rows that had arrived by then, and from
    all rows. The second window equals the Loader's bit for bit. Frames are compared by their indices, not by their pixels.

    Args:
        recorded: a cache that a :class:`Recorder` wrote, or its path. A key's stream has the name of the key, or else of the
            spec's stream.
        spec: ``loader.spec``, or the path of a file that :meth:`Loader.save_spec` wrote.
        moments: how many moments to draw at random if none are recorded (:meth:`Recorder.saw`). They are compared as if the
            policy took the present moment.

    Raises:
        ArgumentError: no key of the spec is recorded, a stream has no arrivals, rows have another shape or dtype than the spec's, or
            the policy's moments have another clock than the arrivals.
        FileError: the cache or the spec does not exist.

    Example:
        >>> print(robocache.live.skew("recorded", "spec.json"))
    """
    opened = recorded if isinstance(recorded, dataset.Dataset) else dataset.open(recorded)
    spec = spec if isinstance(spec, Spec) else Spec.load(spec)
    if whole("moments", moments) < 1:
        raise errors.ArgumentError(f"moments: expected at least 1, got {moments}")
    streams, outputs = _find_streams(opened, spec)
    comparable, cameras = _make_comparable_spec(spec, outputs)
    recorded_streams = opened.provenance.get("live", {})
    has_moments = MOMENTS in opened.streams
    compared: list[_Compared] = []
    left_out = 0
    lengths_ns = [_length_ns(opened, streams, episode) for episode in range(len(opened))]
    rng = np.random.default_rng(0)
    for episode in range(len(opened)):
        rows = {key: _read_rows(opened, stream, key in cameras, episode) for key, stream in streams.items()}
        if any(len(x.time_ns) == 0 for x in rows.values()):
            left_out += len(opened.episode(episode)[MOMENTS][0]) if has_moments else 0
            continue
        if has_moments:
            got_ns, moment_ns = (np.array(array) for array in opened.episode(episode)[MOMENTS])
            _check_clock(opened.path, episode, got_ns, rows)
        else:
            share = lengths_ns[episode] / max(1, sum(lengths_ns))
            first = max(int(x.arrival_ns.min()) for x in rows.values())
            last = max(first + 1, min(int(x.time_ns[-1]) for x in rows.values()))
            got_ns = moment_ns = np.sort(rng.integers(first, last, max(1, round(moments * share))))
        results, left_out_here = _compare(episode, comparable, rows, got_ns, moment_ns)
        left_out += left_out_here
        compared += results
    keys = {}
    for key, stream in streams.items():
        arrivals = opened[stream + ARRIVAL]
        delays = arrivals.values - arrivals.time_ns
        older = np.array([result.older_ns[key] for result in compared if key in result.older_ns], np.int64)
        ring_counts = recorded_streams.get(stream, {}).get("ring", {})
        keys[key] = KeySkew(
            camera=key in cameras,
            windows=len(compared),
            differ=sum(key in result.differ for result in compared),
            older_ms=float(older.mean() / 1e6) if len(older) else 0.0,
            oldest_ms=float(older.max() / 1e6) if len(older) else 0.0,
            not_settled=sum(key in result.not_settled for result in compared),
            delay_ms=float(np.median(delays) / 1e6) if len(delays) else 0.0,
            longest_delay_ms=float(np.quantile(delays, 0.99) / 1e6) if len(delays) else 0.0,
            too_late=int(ring_counts.get("too_late", 0)),
            spans=_make_spans([(result.episode, result.since_begin_ns, key in result.differ) for result in compared]),
        )
    return Skew(
        recorded=opened.path,
        moments="recorded" if has_moments else "now",
        compared=len(compared),
        left_out=left_out,
        behind_ms=float(np.median([result.behind_ns for result in compared]) / 1e6) if compared else 0.0,
        keys=dict(sorted(keys.items(), key=lambda item: (-item[1].older_ms, -item[1].delay_ms))),
        outputs=outputs,
    )


# ---- The recording and the spec ----


def _find_streams(opened: dataset.Dataset, spec: Spec) -> tuple[dict[str, str], list[str]]:
    """Returns the recorded stream of each key that a policy sees, and the keys that are not compared."""
    streams, outputs = {}, []
    for key, fields in spec.keys.items():
        if fields["moment"] is not None or fields["rows"] is None:
            continue  # a goal, which the caller chooses, or a stream that training did not have
        name = next((name for name in (key, fields["stream"]) if name in opened.streams), None)
        if name is None or max([*fields["offsets_ns"], *fields["offsets_rows"], 0]) > 0:
            outputs.append(key)
            continue
        if name + ARRIVAL not in opened.streams:
            raise errors.ArgumentError(
                f"recorded: expected a stream '{name}{ARRIVAL}' in {opened.path}, as robocache.live.Recorder writes it, got none"
            )
        streams[key] = name
    if not streams:
        raise errors.ArgumentError(
            f"recorded: expected streams of the spec's keys, {', '.join(spec.keys)}, got {', '.join(opened.streams) or 'none'}"
        )
    return streams, outputs


def _make_comparable_spec(spec: Spec, outputs: list[str]) -> tuple[Spec, set[str]]:
    """Returns the spec without outputs and conversions, and the set of its cameras. A camera's values are the indices of its
    frames."""
    described = json.loads(spec.to_json()) | {"pad_features": False, "dataset_index": None, "return_age": False}
    described["keys"] = [
        key
        for key in described["keys"]
        if key["key"] not in outputs and key["moment"] is None and key["rows"] is not None
    ]
    cameras = set()
    for key in described["keys"]:
        rows = key["rows"]
        if key["images"] is not None:
            cameras.add(key["key"])
            rows |= {"dtype": "int64", "shape": [1], "codec": None, "unit_m": None, "intrinsics": [], "names": []}
            key |= {"dtype": "int64", "images": None, "has_intrinsics": False}
        if key["key"] in cameras or key["convert"] is not None:
            rows |= {"affine": None, "clip": False}
        key |= {"convert": None, "shape": rows["shape"]}
    return Spec(json.dumps(described)), cameras


def _read_rows(opened: dataset.Dataset, stream: str, is_camera: bool, episode: int) -> _Rows:
    rows = opened.episode(episode)
    time_ns, values = rows[stream]
    arrival_ns = np.array(rows[stream + ARRIVAL][1])
    if len(time_ns) != len(arrival_ns):
        raise errors.FileError(
            f"{opened.path}: expected as many rows of '{stream}{ARRIVAL}' as of '{stream}' in episode {episode}, "
            f"{len(time_ns)}, got {len(arrival_ns)}"
        )
    recorded = opened.provenance.get("live", {}).get(stream, {})
    indices = np.arange(len(time_ns), dtype=np.int64)[:, None]
    return _Rows(
        np.array(time_ns),
        arrival_ns,
        indices if is_camera else np.asarray(values),
        float(recorded.get("lateness_s", 0.0)),
        recorded.get("on_duplicate", "keep"),
    )


def _check_clock(path: str, episode: int, got_ns: np.ndarray, rows: Mapping[str, _Rows]) -> None:
    """Refuses moments of another clock: against them all rows would seem to have arrived, or none."""
    arrivals = np.concatenate([x.arrival_ns for x in rows.values()])
    apart_ns = np.maximum(got_ns - arrivals.max(), arrivals.min() - got_ns)
    if len(got_ns) and apart_ns.min() > 60 * 10**9:
        raise errors.ArgumentError(
            f"recorded: expected that the policy's moments in {path} are by the clock of the arrivals, got moments at "
            f"{got_ns[0]} ns and arrivals from {arrivals.min()} to {arrivals.max()} ns in episode {episode}; pass now_ns= to "
            "Recorder.saw, or arrival_ns= to Ring.push, by one clock"
        )


def _length_ns(opened: dataset.Dataset, streams: Mapping[str, str], episode: int) -> int:
    rows = opened.episode(episode)
    stamps = [rows[stream][0] for stream in streams.values() if len(rows[stream][0])]
    return max((int(x[-1]) for x in stamps), default=0) - min((int(x[0]) for x in stamps), default=0)


# ---- Moments ----


class _Compared(NamedTuple):
    """One compared moment: the keys whose windows differ or are not settled, and how much older each key is."""

    episode: int
    since_begin_ns: int
    behind_ns: int
    differ: set[str]
    not_settled: set[str]
    older_ns: dict[str, int]


def _make_rings(rows: Mapping[str, _Rows], *, with_lateness: bool) -> dict[str, Ring]:
    rings = {}
    for key, stream in rows.items():
        lateness_s = stream.lateness_s
        if with_lateness:  # the recording has no row that came too late, so the ring must drop none
            by_arrival = stream.time_ns[np.argsort(stream.arrival_ns, kind="stable")]
            lateness_s = max(lateness_s, int((np.maximum.accumulate(by_arrival) - by_arrival).max()) / 1e9)
        rings[key] = Ring(
            stream.values.shape[1:],
            stream.values.dtype,
            span_s=_SPAN_S,
            lateness_s=lateness_s if with_lateness else 0.0,
            on_duplicate=stream.on_duplicate,
            most_ahead_s=1e9,
        )
    return rings


def _compare(
    episode: int, spec: Spec, rows: Mapping[str, _Rows], got_ns: np.ndarray, moment_ns: np.ndarray
) -> tuple[list[_Compared], int]:
    """Compares the windows of an episode's moments. Returns the results, and how many moments were left out."""
    all_rows, arrived_rows = _make_rings(rows, with_lateness=False), _make_rings(rows, with_lateness=True)
    training = Aligner(spec, all_rows, framework="numpy")
    policy = Aligner(spec, arrived_rows, framework="numpy")
    begin_ns = min(int(stream.time_ns[0]) for stream in rows.values())
    for key, stream in rows.items():
        for stamp, row in zip(stream.time_ns.tolist(), stream.values, strict=True):
            all_rows[key].push(stamp, row, arrival_ns=stamp)
    frontier = training.frontier()
    orders = {key: np.argsort(stream.arrival_ns, kind="stable") for key, stream in rows.items()}
    pushed = dict.fromkeys(rows, 0)
    last_ns = {key: fields["offset_ns"] + max(fields["offsets_ns"] or [0]) for key, fields in spec.keys.items()}
    compared = []
    left_out = 0
    for got, moment in sorted(zip(got_ns.tolist(), moment_ns.tolist(), strict=True)):
        for key, stream in rows.items():
            order = orders[key]
            while pushed[key] < len(order) and stream.arrival_ns[order[pushed[key]]] <= got:
                row = int(order[pushed[key]])
                arrived_rows[key].push(
                    int(stream.time_ns[row]), stream.values[row], arrival_ns=int(stream.arrival_ns[row])
                )
                pushed[key] += 1
        if frontier is None or moment > frontier:
            left_out += 1
            continue
        expected, window = training.at(moment), policy.at(moment)
        differ, not_settled, older_ns = set(), set(), {}
        for key, stream in rows.items():
            is_pad = expected[key + "_is_pad"]
            is_same = window[key][~is_pad].tobytes() == expected[key][~is_pad].tobytes()
            differ |= set() if is_same else {key}
            not_settled |= {key} if (window[key + "_is_pad"] & ~is_pad).any() else set()
            newest = int(np.searchsorted(stream.time_ns, moment + last_ns[key], "right")) - 1
            newest_arrived = newest
            while newest_arrived >= 0 and stream.arrival_ns[newest_arrived] > got:
                newest_arrived -= 1
            if newest_arrived >= 0:
                older_ns[key] = int(stream.time_ns[newest] - stream.time_ns[newest_arrived])
        compared.append(_Compared(episode, moment - begin_ns, got - moment, differ, not_settled, older_ns))
    return compared, left_out


def _make_spans(moments: list[tuple[int, int, bool]]) -> list[SkewSpan]:
    """Returns the runs of moments that differ, the one with the most windows first."""
    spans: list[SkewSpan] = []
    previous: tuple[int, bool] | None = None
    for episode, since_ns, differs in moments:
        if differs and previous == (episode, True):
            spans[-1].end_s = since_ns / 1e9
            spans[-1].windows += 1
        elif differs:
            spans.append(SkewSpan(episode, since_ns / 1e9, since_ns / 1e9, 1))
        previous = (episode, differs)
    return sorted(spans, key=lambda span: -span.windows)
