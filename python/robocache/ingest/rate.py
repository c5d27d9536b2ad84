"""Finds the rate of rows that have no stamps, and the stamps that follow from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..episode_rates import median_period_ns
from ..errors import FileError
from ..feature_names import read_object
from ..feature_words import in_snake_case
from .formats import RateOptions
from .recording import Notes, SourceError

# The names by which sources declare a rate.
_RATES = (
    "control_freq", "control_frequency", "control_hz", "control_rate", "control_fps", "frequency", "freq", "fps", "hz", "rate_hz",
    "frame_rate", "framerate", "mocap_framerate", "mocap_frame_rate", "sample_rate", "sampling_rate", "record_frequency",
    "recording_frequency", "record_fps",
)  # fmt: skip
# Rates by these names may be those of a sensor, such as a microphone's 16,000 Hz. Such a rate counts as that of the rows up to
# _MOST_GENERAL_HZ, a rate by another name up to _MOST_HZ.
_GENERAL = ("frequency", "freq", "hz", "sample_rate", "sampling_rate")
_MOST_GENERAL_HZ, _MOST_HZ = 1000, 10_000
# A rate whose path contains one of these words is that of a sensor.
_SENSORS = re.compile(
    "mics?|microphones?|audio|sound|speech|imu|lidar|radar|gps|tactile|ft|wrench|sensors?|cams?|cameras?|images?|rgb|depth|video|gripper"
    "|stereo|webcams?|realsense|kinect|zed|orbbec|oak|gelsight|viewer|render(er|ing)?|display|plot(ter)?"
)
# The names of the seconds from a row to the next.
_PERIODS = ("dt", "control_dt", "control_timestep", "timestep")
# The names of the seconds of a simulation's step, if a name of STEPS beside them gives the number of such steps per row.
_SIMULATION_PERIODS = ("dt", "timestep", "sim_dt", "physics_dt", "sim_timestep", "physics_timestep")
STEPS = ("decimation", "frame_skip", "frameskip", "action_repeat", "control_decimation")
# Two rates that differ by more than this share are reported.
OTHER_RATE = 0.02
# Two rates of which one is more than this many times the other are refused, if an option can choose between them.
CONTRADICTION = 2.0
_WORDS = {*_RATES, *_PERIODS, *_SIMULATION_PERIODS, *STEPS}
# The longest declared period that is taken as seconds: no robot is recorded more slowly, so a larger number has another unit.
_LONGEST_PERIOD_S = 1
# Matches units of a clock in seconds, also "seconds since 1970-01-01"; not those of a rate, such as "s^-1".
SECONDS = re.compile(r"(?i)\W*(s|secs?|seconds?)\b(?!\s*(?:[\d/*^]|-\s*\d))")
# The longest step between stamps that are taken as seconds.
_LONGEST_STEP_S = 10.0
# The most levels of objects in a description.
_DEEPEST = 8
# Matches a number with the unit of a rate.
_WITH_UNIT = re.compile(r"\s*(.*?)\s*(?:hz|fps)\s*", re.IGNORECASE)


def find_rate(
    asked_hz: float | None,
    source: object,
    why: str,
    declared: Mapping[str, float] | None = None,
    notes: Notes | None = None,
) -> tuple[float, str]:
    """Returns the rows per second, and where that rate comes from: "rate_hz", the user's, or a key of `declared`.

    why: the beginning of the error if there is no rate.
    declared: the rates that the source declares, keyed by where it does.
    notes: receives the assumption that a declared rate is that of the rows.

    Raises:
        FileError: there is no rate.
        SourceError: the source contradicts itself, or the user.
    """
    declared = declared or {}
    all_rates = [*declared.values(), *([] if asked_hz is None else [asked_hz])]
    if not all_rates:
        raise FileError(f"{source}: {why}; give the rows a second with rate_hz (--rate-hz)")
    if max(all_rates) - min(all_rates) > 1e-6 * min(all_rates):
        rates = ", ".join(f"{origin} says {rate_hz:g} Hz" for origin, rate_hz in declared.items())
        raise SourceError(
            f"{source}: {rates}{'' if asked_hz is None else f', rate_hz {asked_hz:g}'}: they contradict each other"
        )
    origin, rate_hz = next(iter(declared.items()), ("rate_hz", all_rates[0]))
    if not 1e-3 <= rate_hz <= 1e6:
        raise SourceError(f"{source}: {origin}: expected 0.001 to 1e6 rows a second, got {rate_hz:g}")
    if asked_hz is not None:
        return asked_hz, "rate_hz"
    if notes is not None:
        notes.assume(f"rate {rate_hz:g} Hz", origin)
    return rate_hz, origin


def tell_rates(source: Path, options: RateOptions, notes: Notes) -> None:
    """Adds to the provenance the user's rate, or the number of files with each rate. It is the `finish` of some readers."""
    rates = notes.counts.get("rates", {})
    if options.rate_hz is not None or not rates:
        notes.tell(source, rate_hz=options.rate_hz, rate_from="rate_hz")
    else:
        notes.tell(source, rates=rates)


def compare_rates(
    what: str, time_ns: np.ndarray, declared: Mapping[str, float], notes: Notes, where: object = None
) -> None:
    """Reports each rate that a source declares, if its stamps have another rate. The stamps stay the clock.

    what: the name of the clock or the stream.
    declared: as in :func:`find_rate`.
    where: the source, if its format has the option `rate_hz`, which can replace the clock; else None.

    Raises:
        SourceError: `where` is given, and a rate contradicts the stamps.
    """
    rows_hz = 1e9 / median_period_ns(time_ns)
    for origin, rate_hz in declared.items():
        contrast = f"{rows_hz:.4g} rows a second (median), though {origin} says {rate_hz:g}"
        if where is not None and max(rows_hz, rate_hz) > CONTRADICTION * min(rows_hz, rate_hz):
            raise SourceError(f"{where}: {what}: {contrast}: they contradict each other; rate_hz (--rate-hz) decides")
        if abs(rows_hz / rate_hz - 1) > OTHER_RATE:
            notes.assume(what, f"its stamps, {contrast}")


def exact_ns(stamps: np.ndarray, unit_ns: int) -> np.ndarray:
    """Converts stamps in a unit of `unit_ns` nanoseconds to int64 nanoseconds. A mere product would be rounded: for seconds since 1970 to
    256 ns."""
    floors = np.floor(stamps).astype(np.int64)
    fraction_ns = np.rint((stamps - floors).astype(np.float64) * unit_ns).astype(np.int64)
    time_ns: np.ndarray = floors * unit_ns + fraction_ns
    return time_ns


@lru_cache(maxsize=1)  # all streams of a recording need the same stamps
def nominal_time_ns(start: int, stop: int, rate_hz: float) -> np.ndarray:
    """Returns the stamps of the rows [start, stop), int64 nanoseconds, read-only. Row 0 is at 0."""
    stamps: np.ndarray = np.rint(np.arange(start, stop) * 1e9 / rate_hz).astype(np.int64)
    stamps.flags.writeable = False
    return stamps


def refuse_no_seconds(stamps: np.ndarray, where: object) -> None:
    """Raises if stamps that are taken as seconds are more than 10 s apart, so that they are milliseconds, or no stamps."""
    steps = np.diff(stamps)
    steps = steps[steps > 0]
    if len(steps) and (step := float(np.median(steps))) > _LONGEST_STEP_S:
        raise SourceError(
            f"{where}: expected seconds, got steps of {step:g}; give the rows a second with rate_hz (--rate-hz) instead"
        )


def said_rates(facts: Mapping[str, Any], where: str, periods: bool = True) -> Iterator[tuple[str, float]]:
    """Yields the names of facts that declare rates, and the rates in rows per second. A fact that is a text with a JSON object is searched
    too.

    where: the prefix of the names.
    periods: whether a period without a number of steps counts. In the description of a simulation it does not: it may be the period of
        the simulation's step.
    """
    for path, value in facts.items():
        if isinstance(value, str) and value.lstrip().startswith("{"):
            yield from described_rates(read_object(value), f"{where}{path}.").items()
            continue
        (above, last), number = _split(path), _number(value)
        name = _word(last)
        if number is None:
            continue
        if name in _RATES:
            words = re.split(r"[^a-z]+", in_snake_case(f"{where.rpartition(': ')[2]}{above}"))
            most = _MOST_GENERAL_HZ if name in _GENERAL else _MOST_HZ
            if number <= most and (name.startswith("control") or not any(map(_SENSORS.fullmatch, words))):
                yield f"{where}{path}", number
            continue
        siblings = {
            _word(other): count for key, count in facts.items() for parent, other in [_split(key)] if parent == above
        }
        steps = {word: count for word in STEPS if (count := _number(siblings.get(word)))}
        if name in _SIMULATION_PERIODS and steps:
            # The result is rounded to 12 digits, since periods are decimals: 4 steps of 0.005 s are 50 Hz, not 49.99999999999999.
            for word, count in steps.items():
                yield f"{where}{path} and {word}", float(f"{1 / (number * count):.12g}")
        elif name in _SIMULATION_PERIODS and any(other.lower().endswith("substeps") for other in facts):
            pass  # some simulators divide the period by the substeps, others multiply it
        elif name in _PERIODS and periods and number <= _LONGEST_PERIOD_S:
            yield f"{where}{path}", float(f"{1 / number:.12g}")


def described_rates(description: Mapping[str, Any], where: str) -> dict[str, float]:
    """Returns rates as :func:`said_rates` yields them, from the description of an environment with objects in objects. From two
    levels down a rate may be that of a camera or a sensor. So only rates whose names begin with "control" count there, unless no
    other rates do."""
    rates: dict[str, float] = {}
    deep_rates: dict[str, float] = {}
    level = [(where, description)]
    for depth in range(_DEEPEST):
        for path, part in level:
            for name, rate_hz in said_rates(part, path, periods=False):
                counts = depth < 2 or name.rpartition(".")[2].lower().startswith("control")
                (rates if counts else deep_rates)[name] = rate_hz
        level = [
            (f"{path}{key}.", {name: value for name, value in part.items() if _word(name) in STEPS} | inner)
            for path, part in level
            for key, inner in part.items()
            if isinstance(inner, dict)
        ]
    return rates or deep_rates


def _split(path: str) -> tuple[str, str]:
    """Splits the path of a fact into the path above it and its name."""
    last = path.rpartition("/")[2]
    return path[: len(path) - len(last)], last


def _word(name: str) -> str:
    """Returns a name in snake case if _WORDS has that, such as "frame_skip" for "frameSkip", else in lower case."""
    snake = in_snake_case(name)
    return snake if snake in _WORDS else name.lower()


def _number(value: Any) -> float | None:
    """Returns a rate or a period as a number; None if it is none. It may be the only item of a list, or a text such as "20" or "20 Hz"."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, str) and (match := _WITH_UNIT.fullmatch(value)):
        value = match[1]
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        return None
    return number if 1e-6 <= number <= 1e9 else None
