"""Rows without a clock of their own: their rate, and the stamps that follow from it."""

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

# The names of a rate in the source; formats have no common one.
_RATES = (
    "control_freq", "control_frequency", "control_hz", "control_rate", "control_fps", "frequency", "freq", "fps", "hz", "rate_hz",
    "frame_rate", "framerate", "mocap_framerate", "mocap_frame_rate", "sample_rate", "sampling_rate", "record_frequency",
    "recording_frequency", "record_fps",
)  # fmt: skip
# These may also be a sensor's rate, such as a microphone's 16,000. A robot's rows have at most _MOST_OF_ANYTHING_HZ by one of these
# names, and at most _MOST_OF_ROWS_HZ by another.
_OF_ANYTHING = ("frequency", "freq", "hz", "sample_rate", "sampling_rate")
_MOST_OF_ANYTHING_HZ, _MOST_OF_ROWS_HZ = 1000, 10_000
# A rate below one of these words in a tree of facts is the sensor's own.
_SENSORS = re.compile(
    "mics?|microphones?|audio|sound|speech|imu|lidar|radar|gps|tactile|ft|wrench|sensors?|cams?|cameras?|images?|rgb|depth|video|gripper"
)
# Names of the seconds from one row to the next.
_PERIODS = ("dt", "control_dt", "control_timestep", "timestep")
# Beside a word of STEPS, these are the period of a simulation's step, and a row is that many steps.
_OF_SIMULATION = ("dt", "timestep", "sim_dt", "physics_dt", "sim_timestep", "physics_timestep")
STEPS = ("decimation", "frame_skip", "frameskip", "action_repeat", "control_decimation")
# Rates of two clocks are reported if they differ by more than OTHER_RATE, relative to one of them. They are refused if one is more
# than CONTRADICTION times the other, and an option can choose between them.
OTHER_RATE, CONTRADICTION = 0.02, 2.0
_WORDS = {*_RATES, *_PERIODS, *_OF_SIMULATION, *STEPS}
# Robots are not recorded more slowly: a longer period counts milliseconds, or something else.
_LONGEST_PERIOD_S = 1
_LONGEST_STEP_S = 10.0
# The most levels of objects in a description.
_DEEPEST = 8
_WITH_UNIT = re.compile(r"\s*(.*?)\s*(?:hz|fps)\s*", re.IGNORECASE)


def find_rate(
    asked_hz: float | None,
    source: object,
    why: str,
    said: Mapping[str, float] | None = None,
    notes: Notes | None = None,
) -> tuple[float, str]:
    """Returns the rows per second, and the origin of that rate: the user's `rate_hz`, or the source.

    why: begins the error if there is no rate.
    said: the source's rates, keyed by where they are declared.
    notes: receives the assumption if only an attribute's name declares the rate.

    Raises:
        FileError: there is no rate.
        SourceError: the source contradicts itself, or the user.
    """
    said = said or {}
    all_rates = [*said.values(), *([] if asked_hz is None else [asked_hz])]
    if not all_rates:
        raise FileError(f"{source}: {why}; give the rows a second with rate_hz (--rate-hz)")
    if max(all_rates) - min(all_rates) > 1e-6 * min(all_rates):
        rates = ", ".join(f"{by} says {rate_hz:g} Hz" for by, rate_hz in said.items())
        raise SourceError(
            f"{source}: {rates}{'' if asked_hz is None else f', rate_hz {asked_hz:g}'}: they contradict each other"
        )
    by, rate_hz = next(iter(said.items()), ("rate_hz", all_rates[0]))
    if not 1e-3 <= rate_hz <= 1e6:
        raise SourceError(f"{source}: {by}: expected 0.001 to 1e6 rows a second, got {rate_hz:g}")
    if asked_hz is not None:
        return asked_hz, "rate_hz"
    if notes is not None:
        notes.assume(f"rate {rate_hz:g} Hz", by)
    return rate_hz, by


def tell_rates(source: Path, options: RateOptions, notes: Notes) -> None:
    """Records the rate in the provenance: the user's, or the number of files with each rate."""
    rates = notes.counts.get("rates", {})
    if options.rate_hz is not None or not rates:
        notes.tell(source, rate_hz=options.rate_hz, rate_from="rate_hz")
    else:
        notes.tell(source, rates=rates)


def compare_rates(
    what: str, time_ns: np.ndarray, said: Mapping[str, float], notes: Notes, where: object = None
) -> None:
    """Reports rates that a source declares if its stamps have another one. The stamps stay the clock.

    what: the clock or the stream.
    said: as in :func:`find_rate`.
    where: the source, if its option `rate_hz` can replace the clock; else None.

    Raises:
        SourceError: `where` is given, and a rate contradicts the stamps.
    """
    rows_hz = 1e9 / median_period_ns(time_ns)
    for by, rate_hz in said.items():
        both = f"{rows_hz:.4g} rows a second (median), though {by} says {rate_hz:g}"
        if where is not None and max(rows_hz, rate_hz) > CONTRADICTION * min(rows_hz, rate_hz):
            raise SourceError(f"{where}: {what}: {both}: they contradict each other; rate_hz (--rate-hz) decides")
        if abs(rows_hz / rate_hz - 1) > OTHER_RATE:
            notes.assume(what, f"its stamps, {both}")


def exact_ns(stamps: np.ndarray, unit_ns: int) -> np.ndarray:
    """Returns stamps in a unit as int64 nanoseconds. Their product alone would be rounded, for seconds since 1970 to 256 ns."""
    whole = np.floor(stamps).astype(np.int64)
    fraction_ns = np.rint((stamps - whole).astype(np.float64) * unit_ns).astype(np.int64)
    time_ns: np.ndarray = whole * unit_ns + fraction_ns
    return time_ns


@lru_cache(maxsize=1)  # the streams of a recording need the same stamps
def nominal_time_ns(start: int, stop: int, rate_hz: float) -> np.ndarray:
    """Returns int64 nanoseconds of the rows ``start`` to ``stop - 1``, row 0 at 0; read-only."""
    stamps: np.ndarray = np.rint(np.arange(start, stop) * 1e9 / rate_hz).astype(np.int64)
    stamps.flags.writeable = False
    return stamps


def refuse_no_seconds(stamps: np.ndarray, where: object) -> None:
    """Raises if stamps in seconds would be more than 10 s apart: then they are milliseconds, or something else."""
    steps = np.diff(stamps)
    steps = steps[steps > 0]
    if len(steps) and (step := float(np.median(steps))) > _LONGEST_STEP_S:
        raise SourceError(
            f"{where}: expected seconds, got steps of {step:g}; rate_hz (--rate-hz) takes rows at a rate instead"
        )


def said_rates(facts: Mapping[str, Any], where: str, periods: bool = True) -> Iterator[tuple[str, float]]:
    """Yields rates in rows per second, each after its name. A text that is a JSON object is searched by its own keys.

    where: the prefix of the names.
    periods: whether a period alone counts; in the description of a simulation it is the simulation's own.
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
            most = _MOST_OF_ANYTHING_HZ if name in _OF_ANYTHING else _MOST_OF_ROWS_HZ
            if number <= most and (name.startswith("control") or not any(map(_SENSORS.fullmatch, words))):
                yield f"{where}{path}", number
            continue
        siblings = {
            _word(other): count for key, count in facts.items() for parent, other in [_split(key)] if parent == above
        }
        steps = {word: count for word in STEPS if (count := _number(siblings.get(word)))}
        if name in _OF_SIMULATION and steps:
            # Steps of the simulation are given as decimals: 0.005 * 4 is 50 Hz, not 49.99999999999999.
            for word, count in steps.items():
                yield f"{where}{path} and {word}", float(f"{1 / (number * count):.12g}")
        elif name in _OF_SIMULATION and any(other.lower().endswith("substeps") for other in facts):
            pass  # some simulators divide the period by the substeps, others multiply it
        elif name in _PERIODS and periods and number <= _LONGEST_PERIOD_S:
            yield f"{where}{path}", float(f"{1 / number:.12g}")


def described_rates(described: Mapping[str, Any], where: str) -> dict[str, float]:
    """Yields as :func:`said_rates`, from the description of an environment, with objects in objects. Deeper than its parts, a camera or a
    sensor may have its own rate: there only rates named control count, unless there are no others."""
    rates: dict[str, float] = {}
    others: dict[str, float] = {}
    level = [(where, described)]
    for depth in range(_DEEPEST):
        for path, part in level:
            for by, rate_hz in said_rates(part, path, periods=False):
                is_control = depth < 2 or by.rpartition(".")[2].lower().startswith("control")
                (rates if is_control else others)[by] = rate_hz
        level = [
            (f"{path}{key}.", {name: value for name, value in part.items() if _word(name) in STEPS} | inner)
            for path, part in level
            for key, inner in part.items()
            if isinstance(inner, dict)
        ]
    return rates or others


def _split(path: str) -> tuple[str, str]:
    """Returns the path above a fact, and the fact's own name."""
    last = path.rpartition("/")[2]
    return path[: len(path) - len(last)], last


def _word(name: str) -> str:
    """Returns the word of _WORDS that a name is: "frame_skip" of "frameSkip"; other names in lower case."""
    snake = in_snake_case(name)
    return snake if snake in _WORDS else name.lower()


def _number(value: Any) -> float | None:
    """Returns a rate or a period as a number. It may be alone in a list, or a text such as "20" or "20 Hz"."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, str) and (match := _WITH_UNIT.fullmatch(value)):
        value = match[1]
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        return None
    return number if 1e-6 <= number <= 1e9 else None
