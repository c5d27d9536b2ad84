"""Checks of stamps: rates, jitter, gaps, repeated stamps, bursts, and how streams lie against each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .report import Finding
from .streams import Clock, Survey, ranges

# All periods are against the stream's median period P. What a gap and a burst are stands in src/robocache/cache/scan_clock.hpp.
RATE_WARNING, RATE_ERROR = 0.01, 0.10  # the true rate against the declared one
RATE_CHANGE = 0.05  # an episode's rate against the stream's, in episodes of 20 periods and more
JITTER_NOTE, JITTER_WARNING = 0.10, 0.30  # root mean square of (period - P), gaps aside, in P
LOST_WARNING = 0.01  # of the stream's time, in gaps
DUPLICATES_WARNING = 0.001  # of the rows
BURST_WARNING = 0.01  # of the rows
UNCOVERED_PERIODS, UNCOVERED_S = 10, 0.2  # what a stream may lack at an episode's ends: the larger of the two
UNCOVERED_NOTE, UNCOVERED_WARNING = 0.02, 0.10  # and of the episode
DRIFT_PERIODS, DRIFT_NOISE, DRIFT_ROWS = 0.5, 8.0, 50


def check_nominal_clock(survey: Survey) -> Iterator[Finding]:
    """The stamps are index / rate: the recording's own clock is lost."""
    names = [name for name, clock in survey.clocks.items() if clock.stream.clock == "nominal"]
    if names:
        listed = "all streams" if len(names) == len(survey.clocks) else ", ".join(names)
        yield Finding(
            "note",
            "nominal-clock",
            f"the stamps are index / rate, the recording's own clock is lost: {listed}",
            stream=names[0] if len(names) == 1 else None,
            count=len(names),
            advice="Gaps, jitter and latency cannot be seen in it; where the recorder kept its stamps, ingest from there.",
        )


def check_declared_rate(survey: Survey) -> Iterator[Finding]:
    """The rate that the source says, against rows a second, gaps and bursts aside."""
    for name, clock in survey.distinct.items():
        declared, true = survey.declared_rate_hz(clock.stream), clock.true_rate_hz
        if declared is None or not clock.steady:
            continue
        off = abs(true / declared - 1)
        if off > RATE_WARNING:
            yield Finding(
                "error" if off > RATE_ERROR else "warning",
                "rate-not-as-declared",
                f"{true:.5g} rows a second, gaps and bursts aside, where the source says {declared:.5g}{survey.also(name)}",
                stream=name,
                value=true,
                expected=declared,
                advice="Believe the stamps or the rate, whichever was measured, and correct the other at the source.",
            )


def check_rate_of_episodes(survey: Survey) -> Iterator[Finding]:
    """Episodes whose rate is another than the stream's."""
    for name, clock in survey.distinct.items():
        if not clock.steady:
            continue
        number, total = clock.periods.regular
        usable = np.flatnonzero((number >= 20) & (total > 0))
        if len(usable) < 2:
            continue
        rates = 1e9 * number[usable] / total[usable]
        usual = float(np.sort(rates)[(len(rates) - 1) // 2])
        for episode, rate in zip(usable.tolist(), rates.tolist(), strict=True):
            if abs(rate / usual - 1) > RATE_CHANGE:
                yield Finding(
                    "warning",
                    "rate-of-episode",
                    f"{rate:.5g} rows a second; {usual:.5g} in the median episode{survey.also(name)}",
                    episode=episode,
                    stream=name,
                    value=rate,
                    expected=usual,
                    advice="Recorded under other settings, or by a machine that did not keep up: train on it apart, or not.",
                )


def check_steadiness(survey: Survey) -> Iterator[Finding]:
    """Streams without a steady rate, and the jitter of those with one."""
    for name, clock in survey.distinct.items():
        if not clock.steady:
            if clock.stream.rows >= 20:
                yield Finding(
                    "note",
                    "no-steady-rate",
                    f"fewer than 8 of 10 periods are within half of the median, {_ms(clock.period_ns)}{survey.also(name)}",
                    stream=name,
                    value=clock.period_ns,
                    advice="Gaps and jitter are not looked for. Use method 'previous', and max_gap_s where its age matters.",
                )
            continue
        jitter = clock.stream.findings["jitter_ns"] / clock.period_ns
        if jitter > JITTER_NOTE:
            yield Finding(
                "warning" if jitter > JITTER_WARNING else "note",
                "jitter",
                f"periods vary by {jitter:.0%} of {_ms(clock.period_ns)}, root mean square, gaps aside{survey.also(name)}",
                stream=name,
                value=jitter,
                expected=JITTER_NOTE,
                advice="Stamp at the sensor rather than on arrival. Windows by time, as the loader makes them, bear it; "
                "windows by row number do not.",
            )


def check_gaps(survey: Survey) -> Iterator[Finding]:
    """Periods over 1.5 P, told once a stream; over 10 P, told once an episode."""
    for name, clock in survey.distinct.items():
        if not clock.steady or not clock.stream.findings["gaps"]:
            continue
        short, worst, worst_row = clock.periods.short_gaps
        lost_ns = clock.periods.lost_ns
        lost = lost_ns / max(clock.span_ns.sum(), 1.0)
        if short:
            yield Finding(
                "warning" if lost > LOST_WARNING else "note",
                "gap",
                f"{_count(short, 'gap')} of 1.5 to 10 periods of {_ms(clock.period_ns)}, the longest {_ms(worst)}; all gaps "
                f"together lose {lost_ns / 1e9:.3g} s, {lost:.2%} of the time{survey.also(name)}",
                **clock.place(worst_row),
                count=short,
                value=worst,
                expected=clock.period_ns,
                advice="Set the loader's max_gap_s: what is interpolated across a longer gap is then marked in is_pad.",
            )
        for number, longest, behind in clock.periods.long_gaps:
            if not number:
                continue
            place = clock.place(int(behind))
            yield Finding(
                "warning",
                "long-gap",
                f"{_count(int(number), 'gap')} of over 10 periods of {_ms(clock.period_ns)}, the longest {_ms(longest)} before "
                f"row {place['row']}{survey.also(name)}",
                **place,
                count=int(number),
                value=longest,
                expected=clock.period_ns,
                advice="Set the loader's max_gap_s, or split the recording there: no window should reach across.",
            )


def check_duplicates(survey: Survey) -> Iterator[Finding]:
    """Rows with the stamp of the row before."""
    for name, clock in survey.distinct.items():
        number = clock.stream.findings["duplicates"]
        if not number:
            continue
        share = number / clock.stream.rows
        yield Finding(
            "warning" if share > DUPLICATES_WARNING else "note",
            "repeated-stamp",
            f"{_count(number, 'row')} with the stamp of the row before, {share:.2%} of {name}{survey.also(name)}",
            **clock.place(clock.periods.first_zero_row),
            count=number,
            value=share,
            expected=0.0,
            advice="Of each such moment a batch sees the last row alone; a recorder that stamps on arrival in coarse units does it.",
        )


def check_bursts(survey: Survey) -> Iterator[Finding]:
    """Rows that come one right behind the other: three periods and more under P / 4 in a row."""
    for name, clock in survey.distinct.items():
        if not clock.steady:
            continue
        bursts, rows, longest, at = clock.periods.bursts
        if bursts:
            place = clock.place(at)
            yield Finding(
                "warning" if rows > BURST_WARNING * clock.stream.rows else "note",
                "burst",
                f"{_count(bursts, 'burst')} of rows less than a quarter of {_ms(clock.period_ns)} apart, the longest of "
                f"{longest + 1} rows{survey.also(name)}",
                **place,
                end_row=place["row"] + longest + 1,
                count=bursts,
                value=longest + 1,
                advice="They were held back on their way and stamped on arrival: use the sensor's own stamps, or an offset.",
            )


def check_coverage(survey: Survey) -> Iterator[Finding]:
    """Streams that begin after the others of their episode, end before them, or have no moment in common with them."""
    clocks = {name: clock for name, clock in survey.distinct.items() if clock.steady}
    if len(clocks) < 2:
        return
    names = list(clocks)
    rows = np.array([clocks[name].rows for name in names])
    first, last = (np.array([getattr(clocks[name], end) for name in names]) for end in ("first_ns", "last_ns"))
    there = rows >= 2
    for episode in np.flatnonzero(there.sum(0) >= 2).tolist():
        within = np.flatnonzero(there[:, episode])
        begins, ends = first[within, episode], last[within, episode]
        # Held against the one with most others around it, of those the longest.
        common = (begins[:, None] <= ends) & (ends[:, None] >= begins)
        main = int(np.lexsort((ends - begins, common.sum(1)))[-1])
        apart = (begins > ends[main]) | (ends < begins[main])
        for at in np.flatnonzero(apart).tolist():
            seconds = float(begins[at] - begins[main]) / 1e9
            yield Finding(
                "error",
                "no-common-time",
                f"no moment in common with {names[within[main]]}: it begins {abs(seconds):.6g} s "
                f"{'after' if seconds > 0 else 'before'} that{survey.also(names[within[at]])}",
                episode=episode,
                stream=names[within[at]],
                value=seconds,
                expected=0.0,
                advice="Their clocks have different zeros: shift one at the source, or give the loader its offset.",
            )
        kept = np.flatnonzero(~apart)
        begin, end = int(begins[kept].min()), int(ends[kept].max())
        for at in kept.tolist():
            name = names[within[at]]
            for code, lack, which in (
                ("late-start", int(begins[at]) - begin, int(np.argmin(begins[kept]))),
                ("early-end", end - int(ends[at]), int(np.argmax(ends[kept]))),
            ):
                share = lack / max(end - begin, 1)
                if lack > max(UNCOVERED_PERIODS * clocks[name].period_ns, UNCOVERED_S * 1e9) and share > UNCOVERED_NOTE:
                    other = names[within[kept[which]]]
                    late = code == "late-start"
                    yield Finding(
                        "warning" if share > UNCOVERED_WARNING else "note",
                        code,
                        f"{'begins' if late else 'ends'} {lack / 1e9:.4g} s {'after' if late else 'before'} {other}, "
                        f"{share:.0%} of the episode{survey.also(name)}",
                        episode=episode,
                        stream=name,
                        row=0 if late else int(rows[within[at], episode]) - 1,
                        value=lack / 1e9,
                        expected=0.0,
                        advice="Windows there are padded (is_pad); edges='drop' draws none of them. The same in every episode is "
                        "a latency: give the loader its offset.",
                    )


def check_drift(survey: Survey) -> Iterator[Finding]:
    """Streams of one rate that have row for row the same moments, and whose stamps run away from each other.

    The lag of row i is the difference of the two stamps; a line through the lags by least squares is drift where it moves by
    half a period and more over the episode, and by 8 times what the lags scatter around it.
    """
    steady = [(name, clock) for name, clock in survey.distinct.items() if clock.steady]
    compared: list[tuple[str, Clock]] = []
    for name, clock in steady:
        for other, reference in compared:
            if abs(clock.true_rate_hz / reference.true_rate_hz - 1) < 0.02:
                yield from _drift(name, clock, other, reference)
                break
        else:
            compared.append((name, clock))


def _drift(name: str, clock: Clock, other: str, reference: Clock) -> Iterator[Finding]:
    for episode in np.flatnonzero((clock.rows == reference.rows) & (clock.rows >= DRIFT_ROWS)).tolist():
        time, base = (c.stream.time_ns[slice(*c.stream.row_offsets[episode : episode + 2])] for c in (clock, reference))
        if np.array_equal(time, base):
            continue
        lag = (time - base).astype(np.float64)
        at = (base - base[0]).astype(np.float64)
        slope, start = np.polyfit(at, lag, 1)
        moved = slope * at[-1]
        noise = float(np.std(lag - start - slope * at))
        if abs(moved) > max(DRIFT_PERIODS * clock.period_ns, DRIFT_NOISE * noise):
            yield Finding(
                "warning",
                "clock-drift",
                f"its clock runs {abs(slope) * 1e6:.0f} ppm {'slower' if slope < 0 else 'faster'} than {other}'s: "
                f"{_ms(abs(moved))} by the episode's end",
                episode=episode,
                stream=name,
                value=slope * 1e6,
                expected=0.0,
                advice="Synchronise the machines' clocks (PTP, NTP), or stamp both on one of them.",
            )


def check_frame_counts(survey: Survey) -> Iterator[Finding]:
    """Cameras against the streams of the same rate: as many frames as rows.

    By one they may differ where each has its own clock.
    """
    met: list[str] = []
    for camera in survey.cameras:
        clock = survey.clocks[camera.name]
        for name, other in survey.sensors.items():
            if name == camera.name or name in met or not other.period_ns or not clock.period_ns:
                continue
            if abs(clock.period_ns / other.period_ns - 1) > 0.02 or other.stream.kind == "arrays":
                continue
            allowed = 0 if "nominal" in (camera.clock, other.stream.clock) else 1
            both = (clock.rows > 0) & (other.rows > 0)
            unequal = np.flatnonzero(both & (np.abs(clock.rows - other.rows) > allowed))
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
                    advice="Frames were lost, or the recordings were cut differently: go by the stamps, never by the row number.",
                )
            if len(unequal):
                break
        met.append(camera.name)


def check_missing_streams(survey: Survey) -> Iterator[Finding]:
    """Episodes without any row, and episodes that lack a stream which others have."""
    if not survey.clocks:
        return
    rows = np.array([clock.rows for clock in survey.clocks.values()])
    empty = rows.sum(0) == 0
    if empty.any():
        numbers = np.flatnonzero(empty).tolist()
        yield Finding(
            "warning",
            "empty-episode",
            f"{_count(len(numbers), 'episode')} without a row: {ranges(numbers)}",
            episode=numbers[0],
            count=len(numbers),
            advice="Remove them at the source.",
        )
    for name, count in zip(survey.clocks, rows, strict=True):
        if name in survey.sensors and name not in survey.distinct:
            continue
        numbers = np.flatnonzero((count == 0) & ~empty).tolist()
        if numbers:
            text = name not in survey.sensors
            yield Finding(
                "note" if text else "warning",
                "missing-stream",
                f"no rows in {len(numbers)} of {len(count)} episodes: {ranges(numbers)}"
                + (survey.also(name) if name in survey.distinct else ""),
                episode=numbers[0],
                stream=name,
                count=len(numbers),
                value=len(count) - len(numbers),
                expected=len(count),
                advice="Nothing was said in them, or it was lost: look whether they need it."
                if text
                else "A batch of them has zeros and is_pad there; draw from the others with episodes= or where=.",
            )


def _ms(ns: float) -> str:
    return f"{ns / 1e9:.4g} s" if ns >= 1e9 else f"{ns / 1e6:.4g} ms"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


CHECKS = (
    check_nominal_clock,
    check_declared_rate,
    check_rate_of_episodes,
    check_steadiness,
    check_gaps,
    check_duplicates,
    check_bursts,
    check_coverage,
    check_drift,
    check_frame_counts,
    check_missing_streams,
)
