"""Checks of stamps: rates, jitter, gaps, repeated stamps, bursts, and the timing of streams against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .._printable import count
from ..episode_rates import rates_of_stamps
from ..findings import Finding
from ..provenance import ingests
from .streams import Clock, Survey, ranges

# P is the stream's median period. src/robocache/cache/scan_clock.hpp defines gaps and bursts.
RATE_WARNING, RATE_ERROR = 0.01, 0.10  # relative difference between the true rate and the declared one
RATE_CHANGE = 0.05  # relative difference of an episode's rate from the stream's, in episodes of at least 20 periods
OWN_SHARE = 0.8  # an episode has its own rate if this share of its periods is within 50 % of their median
JITTER_NOTE, JITTER_WARNING = 0.10, 0.30  # root mean square of (period - P) without gaps, in P
GAP_PERIODS, LONG_GAP_PERIODS = 1.5, 10
STALL_PERIODS = 3  # a stream's gap may exceed the recorder's stall by this many P
LOST_WARNING = 0.01  # share of the stream's time in gaps
DUPLICATES_WARNING = 0.001  # share of the rows
BURST_WARNING = 0.01  # share of the rows
UNCOVERED_PERIODS, UNCOVERED_S = 10, 0.2  # a stream may miss the larger of the two at an episode's ends
UNCOVERED_NOTE, UNCOVERED_WARNING = 0.02, 0.10  # share of the episode
NEAR_ZERO_NS, DATES_NS = 10**15, 10**18  # a stamp below the first (12 days) is no date, one above the second (2001) is
# Names of streams that hold stamps, and the number of their episodes that are checked.
OWN_STAMPS, OWN_STAMPS_EPISODES = {"t", "time", "times", "timestamp", "timestamps", "stamp", "stamps"}, 20
_CHUNK_ROWS = 1 << 22
DRIFT_PERIODS, DRIFT_NOISE, DRIFT_ROWS = 0.5, 8.0, 50  # check_drift explains them


def check_nominal_clock(survey: Survey) -> Iterator[Finding]:
    """Finds streams whose stamps are index / rate: the recording's own clock is lost."""
    names = [name for name, clock in survey.clocks.items() if clock.stream.clock == "nominal"]
    if names:
        listed = "all streams" if len(names) == len(survey.clocks) else ", ".join(names)
        yield Finding(
            "note",
            "nominal-clock",
            f"the stamps are index / rate, the recording's own clock is lost: {listed}",
            stream=names[0] if len(names) == 1 else None,
            count=len(names),
            advice="It cannot show gaps, jitter or latency. If the recorder kept its stamps, ingest from there.",
        )


def check_declared_rate(survey: Survey) -> Iterator[Finding]:
    """Compares the declared rate with the measured rows a second, without gaps and bursts."""
    for name, clock in survey.distinct.items():
        declared, measured = survey.declared_rate_hz(clock.stream), clock.true_rate_hz
        if declared is None or not clock.steady:
            continue
        difference = abs(measured / declared - 1)
        if difference > RATE_WARNING:
            yield Finding(
                "error" if difference > RATE_ERROR else "warning",
                "rate-not-as-declared",
                f"{measured:.5g} rows a second without gaps and bursts, but the source says {declared:.5g}{survey.also(name)}",
                stream=name,
                value=measured,
                expected=declared,
                advice="Believe the stamps or the rate, whichever was measured, and correct the other at the source.",
            )


def check_own_stamps(survey: Survey) -> Iterator[Finding]:
    """Compares a nominal clock with stamps that the recording keeps as a separate stream, in any unit."""
    for stream in survey.numbers:
        last_part = re.split(r"[/.]", stream.name)[-1].lower()
        if stream.clock != "nominal" or last_part not in OWN_STAMPS or int(np.prod(stream.shape)) != 1:
            continue
        starts = stream.row_offsets
        for episode in range(min(len(starts) - 1, OWN_STAMPS_EPISODES)):
            rows = slice(int(starts[episode]), int(starts[episode + 1]))
            rates = rates_of_stamps(stream.values[rows].reshape(-1), stream.time_ns[rows])
            if rates is None:
                continue
            rate, _, expected = rates
            difference = abs(rate / expected - 1)
            if difference > RATE_WARNING:
                yield Finding(
                    "error" if difference > RATE_ERROR else "warning",
                    "rate-not-as-declared",
                    f"its values are stamps of {rate:.5g} rows a second, and the clock is index / rate of {expected:.5g}",
                    episode=episode,
                    stream=stream.name,
                    value=rate,
                    expected=expected,
                    advice="Believe the stamps or the rate, whichever was measured, and correct the other at the source.",
                )
                break


def check_rate_of_episodes(survey: Survey) -> Iterator[Finding]:
    """Finds episodes whose rate differs from the stream's."""
    for name, clock in survey.distinct.items():
        # A nominal clock has a rate in each episode, even where the stream has no steady rate.
        if not (clock.steady or clock.stream.clock == "nominal"):
            continue
        regular_counts, regular_ns = (array.copy() for array in clock.periods.regular)
        for episode in np.flatnonzero((clock.rows > 20) & (regular_counts < OWN_SHARE * (clock.rows - 1))).tolist():
            time = clock.stream.time_ns[slice(*clock.stream.row_offsets[episode : episode + 2])]
            steps = np.diff(time).astype(np.float64)
            median = np.median(steps)
            regular = steps[np.abs(steps - median) <= median / 2]
            # Bursts have a small median too, but they cover little of the time.
            if len(regular) >= OWN_SHARE * len(steps) and regular.sum() >= clock.span_ns[episode] / 2:
                regular_counts[episode], regular_ns[episode] = len(regular), regular.sum()
        usable = np.flatnonzero((regular_counts >= 20) & (regular_ns > 0))
        if len(usable) < 2:
            continue
        rates = 1e9 * regular_counts[usable] / regular_ns[usable]
        usual_rate = float(np.sort(rates)[(len(rates) - 1) // 2])
        for episode, rate in zip(usable.tolist(), rates.tolist(), strict=True):
            if abs(rate / usual_rate - 1) > RATE_CHANGE:
                yield Finding(
                    "warning",
                    "rate-of-episode",
                    f"{rate:.5g} rows a second; {usual_rate:.5g} in the median episode{survey.also(name)}",
                    episode=episode,
                    stream=name,
                    value=rate,
                    expected=usual_rate,
                    advice="The settings were different, or the machine was too slow: train on these episodes separately, or leave them out.",
                )


def check_steadiness(survey: Survey) -> Iterator[Finding]:
    """Finds streams without a steady rate, and jitter in the others."""
    for name, clock in survey.distinct.items():
        if not clock.steady:
            if clock.stream.rows >= 20:
                yield Finding(
                    "note",
                    "no-steady-rate",
                    f"fewer than 8 of 10 periods are within 50 % of the median, {_ms(clock.period_ns)}{survey.also(name)}",
                    stream=name,
                    value=clock.period_ns,
                    advice="Gaps and jitter are not checked. Use method 'previous', and max_gap_s if the age of a value matters.",
                )
            continue
        jitter = clock.stream.findings["jitter_ns"] / clock.period_ns
        if jitter > JITTER_NOTE:
            yield Finding(
                "warning" if jitter > JITTER_WARNING else "note",
                "jitter",
                f"periods vary by {jitter:.0%} of {_ms(clock.period_ns)}, root mean square, without gaps{survey.also(name)}",
                stream=name,
                value=jitter,
                expected=JITTER_NOTE,
                advice="Stamp at the sensor rather than on arrival. Windows by time, as in the loader, tolerate jitter; "
                "windows by row number do not.",
            )


@dataclass
class _Gaps:
    """The gaps of one stream, periods over 1.5 P.

    rows: the row after each gap.
    begins, lengths: in ns.
    is_stall: whether the recorder stalled, so that the gap is not this stream's own.
    """

    name: str
    clock: Clock
    rows: np.ndarray
    episodes: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    is_stall: np.ndarray


def check_gaps(survey: Survey) -> Iterator[Finding]:
    """Finds gaps over 1.5 P (one finding per stream), gaps over 10 P (one per episode) and stalls of all streams (one each)."""
    all_gaps = [
        _find_gaps(name, clock)
        for name, clock in survey.distinct.items()
        if clock.steady and clock.stream.findings["gaps"] and clock.stream.clock == "recorded"
    ]
    yield from _find_stalls(survey, all_gaps)
    for gaps in all_gaps:
        yield from _report_gaps(survey, gaps)


def _find_gaps(name: str, clock: Clock) -> _Gaps:
    time, offsets = clock.stream.time_ns, clock.stream.row_offsets
    rows = []
    for start in range(1, clock.stream.rows, _CHUNK_ROWS):
        part = time[start - 1 : start + _CHUNK_ROWS]
        rows.append(start + np.flatnonzero(np.diff(part) > GAP_PERIODS * clock.period_ns))
    after = np.concatenate(rows) if rows else np.empty(0, np.int64)
    after = after[~np.isin(after, offsets)]  # the time between two episodes is not a gap
    begins = time[after - 1]
    lengths = (time[after] - begins).astype(np.float64)
    return _Gaps(name, clock, after, clock.episode_of(after), begins, lengths, np.zeros(len(after), bool))


def _find_stalls(survey: Survey, all_gaps: list[_Gaps]) -> Iterator[Finding]:
    """Finds times of over 10 P in which several streams have a gap and no stream has a row: the recorder stalled."""
    if len(all_gaps) < 2:
        return
    stream_indices = np.concatenate([np.full(len(gaps.rows), index) for index, gaps in enumerate(all_gaps)])
    gap_indices = np.concatenate([np.arange(len(gaps.rows)) for gaps in all_gaps])
    episodes, begins = (np.concatenate([getattr(gaps, name) for gaps in all_gaps]) for name in ("episodes", "begins"))
    ends = begins + np.concatenate([gaps.lengths for gaps in all_gaps]).astype(np.int64)
    order = np.lexsort((begins, episodes))
    group: list[int] = []
    for gap in [*order.tolist(), -1]:  # -1 ends the last group
        if group and (gap < 0 or episodes[gap] != episodes[group[0]] or begins[gap] >= ends[group].min()):
            yield from _check_stall(
                survey,
                all_gaps,
                stream_indices[group],
                gap_indices[group],
                int(begins[group].max()),
                int(ends[group].min()),
            )
            group = []
        group.append(gap)


def _check_stall(
    survey: Survey,
    all_gaps: list[_Gaps],
    stream_indices: np.ndarray,
    gap_indices: np.ndarray,
    begin: int,
    end: int,
) -> Iterator[Finding]:
    """Yields a finding if the time that these gaps share, [begin, end), is a stall of the recorder."""
    # A gap that is much longer than the shared time has its own cause.
    is_shared = [
        all_gaps[stream].lengths[gap] - (end - begin) <= STALL_PERIODS * all_gaps[stream].clock.period_ns
        for stream, gap in zip(stream_indices.tolist(), gap_indices.tolist(), strict=True)
    ]
    stream_indices, gap_indices = stream_indices[is_shared], gap_indices[is_shared]
    stalled = [all_gaps[stream] for stream in dict.fromkeys(stream_indices.tolist())]
    if len(stalled) < 2 or end - begin <= LONG_GAP_PERIODS * min(gaps.clock.period_ns for gaps in stalled):
        return
    episode = int(stalled[0].episodes[gap_indices[0]])
    first = min(int(clock.first_ns[episode]) for clock in survey.sensors.values() if clock.rows[episode])
    for clock in survey.distinct.values():
        time = clock.stream.time_ns[slice(*clock.stream.row_offsets[episode : episode + 2])]
        low, high = np.searchsorted(time, begin, side="right"), np.searchsorted(time, end, side="left")
        if high > low:
            return  # another stream has rows in this time
        covers = (
            clock.steady and clock.stream.clock == "recorded" and len(time) and time[0] <= begin and time[-1] >= end
        )
        if covers and end - begin > GAP_PERIODS * clock.period_ns and clock not in [gaps.clock for gaps in stalled]:
            return
    for stream, gap in zip(stream_indices.tolist(), gap_indices.tolist(), strict=True):
        all_gaps[stream].is_stall[gap] = True
    names = [gaps.name for gaps in stalled]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    yield Finding(
        "warning",
        "stall",
        f"no stream has a row for {_ms(end - begin)}, from {(begin - first) / 1e9:.4g} s of the episode on: "
        f"{', '.join(names[:4])}{more}",
        episode=episode,
        count=1,
        value=float(end - begin),
        advice="The recorder or its machine stopped: set the loader's max_gap_s, or split the recording there.",
    )


def _report_gaps(survey: Survey, gaps: _Gaps) -> Iterator[Finding]:
    clock, not_stalled = gaps.clock, ~gaps.is_stall
    rows, episodes, lengths = gaps.rows[not_stalled], gaps.episodes[not_stalled], gaps.lengths[not_stalled]
    is_long = lengths > LONG_GAP_PERIODS * clock.period_ns
    if not is_long.all():
        worst = int(np.argmax(np.where(is_long, 0, lengths)))
        lost_ns = float((lengths - clock.period_ns).sum())
        lost = lost_ns / max(clock.span_ns.sum(), 1.0)
        number = int((~is_long).sum())
        yield Finding(
            "warning" if lost > LOST_WARNING else "note",
            "gap",
            f"{count(number, 'gap')} of 1.5 to 10 periods of {_ms(clock.period_ns)}, the longest {_ms(lengths[worst])}; all "
            f"gaps together lose {lost_ns / 1e9:.3g} s, {lost:.2%} of the time{survey.also(gaps.name)}",
            **clock.locate(int(rows[worst])),
            count=number,
            value=float(lengths[worst]),
            expected=clock.period_ns,
            advice="Set the loader's max_gap_s: values interpolated across longer gaps are then marked in is_pad.",
        )
    for episode in np.unique(episodes[is_long]).tolist():
        in_episode = np.flatnonzero(is_long & (episodes == episode))
        worst = int(in_episode[np.argmax(lengths[in_episode])])
        location = clock.locate(int(rows[worst]))
        yield Finding(
            "warning",
            "long-gap",
            f"{count(len(in_episode), 'gap')} of over 10 periods of {_ms(clock.period_ns)}, the longest {_ms(lengths[worst])} before "
            f"row {location['row']}{survey.also(gaps.name)}",
            **location,
            count=len(in_episode),
            value=float(lengths[worst]),
            expected=clock.period_ns,
            advice="Set the loader's max_gap_s, or split the recording there: no window should cross a gap.",
        )


def check_duplicates(survey: Survey) -> Iterator[Finding]:
    """Finds rows with the same stamp as the previous row."""
    for name, clock in survey.distinct.items():
        number = clock.stream.findings["duplicates"]
        if not number:
            continue
        share = number / clock.stream.rows
        yield Finding(
            "warning" if share > DUPLICATES_WARNING else "note",
            "repeated-stamp",
            f"{count(number, 'row')} with the stamp of the previous row, {share:.2%} of {name}{survey.also(name)}",
            **clock.locate(clock.periods.first_zero_row),
            count=number,
            value=share,
            expected=0.0,
            advice="Batches only see the last row with each stamp. Recorders that stamp on arrival in coarse units cause this.",
        )


def check_bursts(survey: Survey) -> Iterator[Finding]:
    """Finds bursts: three or more periods under P / 4 in a row."""
    for name, clock in survey.distinct.items():
        if not clock.steady:
            continue
        bursts, rows, longest, first_row = clock.periods.bursts
        if bursts:
            location = clock.locate(first_row)
            yield Finding(
                "warning" if rows > BURST_WARNING * clock.stream.rows else "note",
                "burst",
                f"{count(bursts, 'burst')} of rows less than a quarter of {_ms(clock.period_ns)} apart, the longest of "
                f"{longest + 1} rows{survey.also(name)}",
                **location,
                end_row=location["row"] + longest + 1,
                count=bursts,
                value=longest + 1,
                advice="The rows were delayed on their way and stamped on arrival: use the sensor's own stamps, or an offset.",
            )


def check_simulation_time(survey: Survey) -> Iterator[Finding]:
    """Finds clocks that begin near 0 beside clocks with dates, or in ROS recordings."""
    near_zero = [name for name, clock in survey.distinct.items() if _is_near_zero(clock)]
    dates = [
        name for name, clock in survey.distinct.items() if clock.stream.rows and int(clock.stream.time_ns[0]) > DATES_NS
    ]
    is_ros = survey.dataset.provenance.get("format") in ("mcap", "rosbag1", "rosbag2")
    others = f"{dates[0]}{f' and {len(dates) - 1} more' * (len(dates) > 1)}" if dates else ""
    if near_zero and dates:
        yield Finding(
            "error",
            "simulation-time",
            f"{count(len(near_zero), 'stream')} of simulation time, which begins near 0 (use_sim_time), beside {others} of wall time: "
            f"{', '.join(near_zero[:4])}{f' and {len(near_zero) - 4} more' * (len(near_zero) > 4)}",
            stream=near_zero[0] if len(near_zero) == 1 else None,
            count=len(near_zero),
            advice="The two never overlap: ingest with one clock for all streams (--stamp log for bags), or record with use_sim_time.",
        )
    elif near_zero and is_ros:
        yield Finding(
            "note",
            "simulation-time",
            f"the clock begins near 0, at {int(survey.distinct[near_zero[0]].first_ns[0]) / 1e9:.3f} s: simulation time (use_sim_time), "
            "or time since the robot started",
            count=len(near_zero),
            advice="This is right for a simulation: rates and gaps are in simulation time, and rows with the same stamp are one tick of it.",
        )
    reasons = [(text, reason) for ingest in ingests(survey.dataset.provenance) for text, reason in ingest.left_out]
    topics = [text for text, reason in reasons if " as the clock" in text and _STAMPS_NEAR_ZERO.search(reason)]
    if topics and not near_zero:
        yield Finding(
            "note",
            "simulation-time",
            f"{count(len(topics), 'topic')} whose own stamps begin near 0 while the bag's log times are dates, as with use_sim_time: the "
            "log time is their clock",
            count=len(topics),
            advice="If a simulator recorded them, --stamp header uses the stamps of the simulation.",
        )


_STAMPS_NEAR_ZERO = re.compile(r"from the log time in .* by 1\.\d+e\+09 to ")  # a date is 1 to 2 * 10^9 s after 0


def _is_near_zero(clock: Clock) -> bool:
    rows = clock.stream.rows
    return bool(rows and clock.stream.clock == "recorded" and 0 <= int(clock.stream.time_ns[0]) < NEAR_ZERO_NS)


def check_coverage(survey: Survey) -> Iterator[Finding]:
    """Finds streams that begin late, end early, or share no moment with the other streams of their episode."""
    steady = {name: clock for name, clock in survey.distinct.items() if clock.steady}
    for near_zero in (True, False):  # simulation time and wall time cannot be compared
        yield from _compare_spans(
            survey, {name: clock for name, clock in steady.items() if _is_near_zero(clock) == near_zero}
        )


def _compare_spans(survey: Survey, clocks: dict[str, Clock]) -> Iterator[Finding]:
    if len(clocks) < 2:
        return
    names = list(clocks)
    rows = np.array([clocks[name].rows for name in names])
    first, last = (np.array([getattr(clocks[name], field) for name in names]) for field in ("first_ns", "last_ns"))
    has_rows = rows >= 2
    for episode in np.flatnonzero(has_rows.sum(0) >= 2).tolist():
        present = np.flatnonzero(has_rows[:, episode])
        begins, ends = first[present, episode], last[present, episode]
        # The reference is the stream that overlaps the most streams; among equals, the longest stream.
        overlaps = (begins[:, None] <= ends) & (ends[:, None] >= begins)
        reference = int(np.lexsort((ends - begins, overlaps.sum(1)))[-1])
        disjoint = (begins > ends[reference]) | (ends < begins[reference])
        for index in np.flatnonzero(disjoint).tolist():
            seconds = float(begins[index] - begins[reference]) / 1e9
            yield Finding(
                "error",
                "no-common-time",
                f"no moment in common with {names[present[reference]]}: it begins {abs(seconds):.6g} s "
                f"{'after' if seconds > 0 else 'before'} that{survey.also(names[present[index]])}",
                episode=episode,
                stream=names[present[index]],
                value=seconds,
                expected=0.0,
                advice="Their clocks start at different times: shift one at the source, or give the loader its offset.",
            )
        in_common = np.flatnonzero(~disjoint)
        begin, end = int(begins[in_common].min()), int(ends[in_common].max())
        for index in in_common.tolist():
            name = names[present[index]]
            for code, missing, outermost in (
                ("late-start", int(begins[index]) - begin, int(np.argmin(begins[in_common]))),
                ("early-end", end - int(ends[index]), int(np.argmax(ends[in_common]))),
            ):
                share = missing / max(end - begin, 1)
                if (
                    missing > max(UNCOVERED_PERIODS * clocks[name].period_ns, UNCOVERED_S * 1e9)
                    and share > UNCOVERED_NOTE
                ):
                    other = names[present[in_common[outermost]]]
                    is_start = code == "late-start"
                    yield Finding(
                        "warning" if share > UNCOVERED_WARNING else "note",
                        code,
                        f"{'begins' if is_start else 'ends'} {missing / 1e9:.4g} s {'after' if is_start else 'before'} {other}, "
                        f"{share:.0%} of the episode{survey.also(name)}",
                        episode=episode,
                        stream=name,
                        row=0 if is_start else int(rows[present[index], episode]) - 1,
                        value=missing / 1e9,
                        expected=0.0,
                        advice="Windows there are padded (is_pad), and edges='drop' skips them. If it is the same in every "
                        "episode, it is a latency: give the loader its offset.",
                    )


def check_drift(survey: Survey) -> Iterator[Finding]:
    """Finds two streams with the same rate and the same number of rows whose stamps drift apart.

    The lag of row i is the difference of the two stamps. A line is fitted to the lags by least squares. The line shows drift if it
    changes over the episode by more than half a period and by more than 8 times the scatter of the lags around it. Episodes of
    fewer than 50 rows are not compared.
    """
    steady = [(name, clock) for name, clock in survey.distinct.items() if clock.steady]
    compared: list[tuple[str, Clock]] = []
    for name, clock in steady:
        for other, reference in compared:
            if abs(clock.true_rate_hz / reference.true_rate_hz - 1) < 0.02:
                yield from _compare_stamps(name, clock, other, reference)
                break
        else:
            compared.append((name, clock))


def _compare_stamps(name: str, clock: Clock, other: str, reference: Clock) -> Iterator[Finding]:
    for episode in np.flatnonzero((clock.rows == reference.rows) & (clock.rows >= DRIFT_ROWS)).tolist():
        time, base = (c.stream.time_ns[slice(*c.stream.row_offsets[episode : episode + 2])] for c in (clock, reference))
        if np.array_equal(time, base):
            continue
        lag = (time - base).astype(np.float64)
        elapsed = (base - base[0]).astype(np.float64)
        slope, start = np.polyfit(elapsed, lag, 1)
        drift_ns = slope * elapsed[-1]
        noise = float(np.std(lag - start - slope * elapsed))
        if abs(drift_ns) > max(DRIFT_PERIODS * clock.period_ns, DRIFT_NOISE * noise):
            yield Finding(
                "warning",
                "clock-drift",
                f"its clock runs {abs(slope) * 1e6:.0f} ppm {'slower' if slope < 0 else 'faster'} than {other}'s: "
                f"{_ms(abs(drift_ns))} by the episode's end",
                episode=episode,
                stream=name,
                value=slope * 1e6,
                expected=0.0,
                advice="Synchronise the machines' clocks (PTP, NTP), or stamp both on one of them.",
            )


def check_frame_counts(survey: Survey) -> Iterator[Finding]:
    """Compares the frames of a camera with the rows of streams of the same rate.

    The numbers may differ by one if each stream has its own clock.
    """
    compared: list[str] = []
    for camera in survey.cameras:
        clock = survey.clocks[camera.name]
        for name, other in survey.sensors.items():
            if name == camera.name or name in compared or not other.period_ns or not clock.period_ns:
                continue
            if abs(clock.period_ns / other.period_ns - 1) > 0.02 or other.stream.kind == "arrays":
                continue
            allowed = 0 if "nominal" in (camera.clock, other.stream.clock) else 1
            has_both = (clock.rows > 0) & (other.rows > 0)
            unequal = np.flatnonzero(has_both & (np.abs(clock.rows - other.rows) > allowed))
            for episode in unequal.tolist():
                frames, rows = int(clock.rows[episode]), int(other.rows[episode])
                yield Finding(
                    "warning",
                    "frame-count",
                    f"{frames} frames, but {rows} rows of {name} at the same rate",
                    episode=episode,
                    stream=camera.name,
                    count=1,
                    value=frames,
                    expected=rows,
                    advice="Frames were lost, or the recordings were cut differently: match rows by stamps, never by row number.",
                )
            if len(unequal):
                break
        compared.append(camera.name)


def check_missing_streams(survey: Survey) -> Iterator[Finding]:
    """Finds episodes without any row, and episodes that lack a stream which others have."""
    if not survey.clocks:
        return
    rows = np.array([clock.rows for clock in survey.clocks.values()])
    empty = rows.sum(0) == 0
    if empty.any():
        numbers = np.flatnonzero(empty).tolist()
        yield Finding(
            "warning",
            "empty-episode",
            f"{count(len(numbers), 'episode')} without a row: {ranges(numbers)}",
            episode=numbers[0],
            count=len(numbers),
            advice="Remove them at the source.",
        )
    for name, counts in zip(survey.clocks, rows, strict=True):
        if name in survey.sensors and name not in survey.distinct:
            continue  # the finding of the stream with the same stamps names it
        numbers = np.flatnonzero((counts == 0) & ~empty).tolist()
        if numbers:
            is_text = name not in survey.sensors
            is_sent_once = int(counts.max()) <= 1  # such as a camera's parameters
            yield Finding(
                "note" if is_text or is_sent_once else "warning",
                "missing-stream",
                f"no rows in {len(numbers)} of {len(counts)} episodes: {ranges(numbers)}"
                + (survey.also(name) if name in survey.distinct else ""),
                episode=numbers[0],
                stream=name,
                count=len(numbers),
                value=len(counts) - len(numbers),
                expected=len(counts),
                advice="Nothing was said in these episodes, or it was lost: check whether they need it."
                if is_text
                else "Batches of these episodes have zeros and is_pad there; draw from the others with episodes=.",
            )


def _ms(ns: float) -> str:
    return f"{ns / 1e9:.4g} s" if ns >= 1e9 else f"{ns / 1e6:.4g} ms"


CHECKS = (
    check_nominal_clock,
    check_declared_rate,
    check_own_stamps,
    check_rate_of_episodes,
    check_steadiness,
    check_gaps,
    check_duplicates,
    check_bursts,
    check_simulation_time,
    check_coverage,
    check_drift,
    check_frame_counts,
    check_missing_streams,
)
