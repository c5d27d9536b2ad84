"""Writes and reads result files of the examples that train policies, computes intervals of success rates, and shows progress.

A result is a file ``bench/results/training-<example>-<what>.json``. docs/training.py renders docs/training.md from these files.
"""

import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

import robocache

Z = 1.959963984540054  # the two-sided 95 % quantile of a normal distribution
FIELDS = ("machine", "commit", "versions", "command", "seeds", "expert", "arms", "predictions")
ARM_FIELDS = ("name", "seed", "successes", "rollouts", "interval", "outcomes", "curve", "wait_share")


def wilson(successes: int, rollouts: int) -> list[float]:
    """Returns the lower and the upper end of Wilson's 95 % interval of a success rate."""
    if not 0 <= successes <= rollouts or rollouts == 0:
        raise ValueError(
            f"successes, rollouts: expected 0 <= successes <= rollouts > 0, got {successes} and {rollouts}"
        )
    share = successes / rollouts
    scale = 1 + Z**2 / rollouts
    centre = (share + Z**2 / (2 * rollouts)) / scale
    half = Z * math.sqrt(share * (1 - share) / rollouts + Z**2 / (4 * rollouts**2)) / scale
    return [max(0.0, centre - half), min(1.0, centre + half)]


def paired_difference(first: Sequence[bool], second: Sequence[bool]) -> tuple[float, list[float]]:
    """Returns the difference of the success rates of `first` and `second` on the same starts, and its 95 % interval.

    The interval is by method 10 of Newcombe, "Improved confidence intervals for the difference between binomial proportions based on
    paired data", 1998. It holds for these two policies; those of other training seeds may differ more.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"first, second: expected the same starts, got {len(first)} and {len(second)} outcomes")
    count = len(first)
    both = sum(bool(a and b) for a, b in zip(first, second, strict=True))
    neither = sum(not (a or b) for a, b in zip(first, second, strict=True))
    wins, losses = sum(map(bool, first)), sum(map(bool, second))
    only_first, only_second = wins - both, losses - both
    p, q = wins / count, losses / count
    (p_low, p_high), (q_low, q_high) = wilson(wins, count), wilson(losses, count)
    covariance = both * neither - only_first * only_second
    if covariance > 0:
        covariance = max(0.0, covariance - count / 2)
    spread = math.sqrt(wins * (count - wins) * losses * (count - losses))
    phi = covariance / spread if spread else 0.0

    def half(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    return p - q, [max(-1.0, p - q - half(p - p_low, q_high - q)), min(1.0, p - q + half(p_high - p, q - q_low))]


def arm(
    name: str, seed: int, outcomes: Sequence[bool], *, curve: Sequence[dict] = (), wait_share: float | None = None
) -> dict:
    """Returns the entry of one training run in a result file.

    Args:
        outcomes: whether each rollout of the last checkpoint succeeded, in the order of the starts, so that arms can be compared start
            by start.
        curve: a dict for each evaluated checkpoint: step, wall_s of the training until then, successes, rollouts and loss.
        wait_share: the share of the training's time that was spent waiting for data, 0 to 1.
    """
    successes = sum(map(bool, outcomes))
    return {
        "name": name,
        "seed": seed,
        "successes": successes,
        "rollouts": len(outcomes),
        "interval": wilson(successes, len(outcomes)),
        "outcomes": "".join("01"[bool(outcome)] for outcome in outcomes),
        "curve": list(curve),
        "wait_share": wait_share,
    }


def outcomes_of(arm: dict) -> list[bool]:
    return [outcome == "1" for outcome in arm["outcomes"]]


def write(
    path: str | os.PathLike,
    *,
    command: str,
    seeds: Sequence[int],
    expert: dict,
    arms: Sequence[dict],
    predictions: str,
    packages: Sequence[str] = (),
    commit: str | None = None,
    **more: object,
) -> None:
    """Writes a result file, which appears only when it is complete.

    Args:
        command: the command line that reproduces these numbers.
        expert: the numbers of the demonstrations, {"successes", "episodes"}.
        arms: results of :func:`arm`.
        predictions: what was expected before the runs.
        packages: further packages whose versions are stored, beside numpy, torch and robocache.
        commit: the commit, if the checkout has no git, as in a copy on another machine.
        more: further fields of the example.
    """
    content = {
        "machine": machine(),
        "commit": commit or checkout_commit(),
        "versions": versions(["numpy", "torch", *packages]),
        "command": command,
        "seeds": list(seeds),
        "expert": expert,
        "arms": list(arms),
        "predictions": predictions,
        **more,
    }
    check(content, path)
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.replace(file)


def read(path: str | os.PathLike) -> dict:
    """Returns the content of a result file.

    Raises:
        ValueError: a field is missing, or numbers contradict each other. The message names the file and the field.
    """
    content = json.loads(Path(path).read_text())
    check(content, path)
    return content


def check(content: dict, path: str | os.PathLike) -> None:
    for field in FIELDS:
        if field not in content:
            raise ValueError(f"{path}: expected the field {field!r}")
    if not content["expert"].keys() >= {"successes", "episodes"}:
        raise ValueError(f"{path}: expert: expected successes and episodes, got {content['expert']}")
    for number, entry in enumerate(content["arms"]):
        if missing := [field for field in ARM_FIELDS if field not in entry]:
            raise ValueError(f"{path}: arms[{number}]: expected the field {missing[0]!r}")
        if entry["seed"] not in content["seeds"]:
            raise ValueError(f"{path}: arms[{number}].seed: expected one of {content['seeds']}, got {entry['seed']}")
        counts = (entry["outcomes"].count("1"), len(entry["outcomes"]))
        if counts != (entry["successes"], entry["rollouts"]):
            raise ValueError(
                f"{path}: arms[{number}]: outcomes have {counts[0]} of {counts[1]}, successes and rollouts say otherwise"
            )
        if [round(end, 9) for end in entry["interval"]] != [round(end, 9) for end in wilson(*counts)]:
            raise ValueError(f"{path}: arms[{number}].interval: expected {wilson(*counts)}, got {entry['interval']}")
        for point in entry["curve"]:
            if not point.keys() >= {"step", "wall_s", "successes", "rollouts", "loss"}:
                raise ValueError(f"{path}: arms[{number}].curve: expected step, wall_s, successes, rollouts, loss")


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> str:
    """Returns the processor and the cores that this process may use, and the GPU that torch sees."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    processor = f"{model.group(1) if model else platform.machine()}, {cores()} cores"
    if cores() < (os.cpu_count() or 1):
        processor = processor.replace(" cores", f" of {os.cpu_count()} cores")
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return processor
    return f"{processor}, {torch.cuda.get_device_name()}"


def checkout_commit() -> str:
    """Returns the commit of the checkout, with "+changes" if files differ from it; "unknown" without git."""

    def git(*command: str) -> str:
        done = subprocess.run(["git", *command], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions(packages: Sequence[str]) -> dict[str, str]:
    result = {
        "python": platform.python_version(),
        "robocache": robocache.check_installation()["versions"]["robocache"],
    }
    for package in packages:
        try:
            result[package] = version(package)
        except PackageNotFoundError:
            result[package] = "unknown"
    return result


def film(
    path: str | os.PathLike,
    rollouts: Sequence[Sequence[np.ndarray]],
    successes: Sequence[bool],
    *,
    fps: float,
    words: str | None = None,
) -> None:
    """Draws rollouts as an animated grid, PATH.gif, and their last frames, PATH.png. At a rollout's end its border becomes green for a
    success, else red.

    Args:
        rollouts: the frames of each rollout, uint8 [height, width, 3]; the last one stays.
        words: the caption in docs/training.md; the default says that the film shows one policy.
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    columns, edge = 4, 3
    moments = []
    for moment in range(max(map(len, rollouts))):
        tiles = []
        for frames, success in zip(rollouts, successes, strict=True):
            frame = frames[min(moment, len(frames) - 1)].copy()
            has_ended = moment >= len(frames) - 1
            colour = ((40, 170, 60) if success else (215, 40, 40)) if has_ended else (90, 90, 90)
            frame[:edge], frame[-edge:], frame[:, :edge], frame[:, -edge:] = (colour,) * 4
            tiles.append(frame)
        tiles += [np.zeros_like(tiles[0])] * (-len(tiles) % columns)
        rows = [np.concatenate(tiles[k : k + columns], 1) for k in range(0, len(tiles), columns)]
        moments.append(Image.fromarray(np.concatenate(rows)))
    description = PngInfo()
    if words is not None:
        description.add_text("Description", words)
    moments[-1].save(Path(path).with_suffix(".png"), optimize=True, pnginfo=description)
    palette = moments[-1].quantize(96)
    images = [moment.quantize(palette=palette, dither=Image.Dither.NONE) for moment in moments]
    times_ms = [round(1000 / fps)] * (len(images) - 1) + [2500]
    images[0].save(
        Path(path).with_suffix(".gif"),
        save_all=True,
        append_images=images[1:],
        duration=times_ms,
        loop=0,
        optimize=True,
    )


class Progress:
    """Shows a progress line on stderr: the task, its progress, and the time left. On a terminal the line is updated; otherwise a line
    is written every ten seconds.

    Example:
        >>> progress = Progress("training", 4000)
        >>> progress.show(400, "loss 0.031")
        >>> progress.end("loss 0.002")
    """

    def __init__(self, doing: str, total: int, done: int = 0) -> None:
        self.doing, self.total, self.done, self.before = doing, total, done, done
        self.began = self.shown = time.monotonic()
        self.live = sys.stderr.isatty()

    def show(self, done: int, note: str = "") -> None:
        self.done, now = done, time.monotonic()
        if now - self.shown < (0.2 if self.live else 10):
            return
        self.shown = now
        rate = (done - self.before) / (now - self.began)
        time_left = f", {(self.total - done) / rate:.0f} s left" if rate else ""
        line = f"{self.doing}: {done} of {self.total}{time_left}{', ' if note else ''}{note}"
        self._write(line, end="" if self.live else "\n")

    def end(self, note: str = "") -> None:
        took_s = time.monotonic() - self.began
        line = f"{self.doing}: {self.done} of {self.total} in {took_s:.1f} s{', ' if note else ''}{note}"
        self._write(line, end="\n")

    def _write(self, line: str, end: str) -> None:
        print(f"\r\x1b[K{line}" if self.live else line, end=end, file=sys.stderr, flush=True)
