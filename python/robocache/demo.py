"""A demo: simulates and records an arm with a camera, caches the recording, and loads it in batches.

Every sensor runs at its own rate on its own clock, with jitter and dropouts, as on a real robot.
"""

from __future__ import annotations

import io
import itertools
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console
from rich.progress import track

from .dataset import Dataset, open
from .errors import ArgumentError, Error
from .image_options import ImageOptions
from .loader import Loader
from .options import Window
from .picture import pyplot
from .writer import Writer

_EPISODE_S = 10.0
_TIMESTEP_S = 1e-3
_STEPS = round(_EPISODE_S / _TIMESTEP_S)
_BATCH_SIZE = 256
_WORKERS = 2


@dataclass(frozen=True)
class _Sensor:
    """How a stream is sampled. A dropout loses several consecutive samples."""

    rate_hz: float
    jitter_s: float
    dropouts_per_s: float
    clock_offset_s: float


_SENSORS = {
    "joint.state": _Sensor(500, 0.1e-3, 0.3, 0.0),
    "imu": _Sensor(200, 0.4e-3, 0.2, -0.0021),
    "end_effector.pose": _Sensor(100, 0.8e-3, 0.2, 0.0047),
    "camera": _Sensor(30, 2.5e-3, 0.1, 0.0333),
}
_CAMERA = "camera"
_HEIGHT, _WIDTH = 96, 128
_COLOURS = {"table": (150, 120, 90), "ball": (200, 60, 50)}  # all other geoms are the arm's
_ARM, _SKY = (70, 95, 140), (226, 232, 238)
# 16 moments at 50 Hz around the anchor, the same for each stream of numbers, and two frames.
_WINDOW = {name: [k / 50 for k in range(-8, 8)] for name in _SENSORS if name != _CAMERA}
_FRAMES = [-0.1, 0.0]
_WINDOWS: dict[str, Any] = {**_WINDOW, _CAMERA: Window(_FRAMES, images=ImageOptions(dtype="uint8"))}


def run(
    out: str | Path = "demo", *, episodes: int = 24, seed: int = 0, console: Console | None = None
) -> dict[str, Any]:
    """Runs the demo, and prints each step on `console`.

    Args:
        out: the folder to fill: ``cache``, the cache; ``window.png``, the picture.
        episodes: the number of episodes to simulate, 10 s each.

    Returns:
        The measured `samples_per_second`, `dataloader_samples_per_second` (None without torch) and `largest_difference` between
        the two; and the paths `cache` and `picture`.

    Raises:
        Error: mujoco or matplotlib is not installed.
        ArgumentError: `seed` is below 0.
    """
    if seed < 0:
        raise ArgumentError(f"seed: expected 0 or more, got {seed}")
    console = console or Console()
    plt, physics = pyplot(), _Physics(seed)
    cache, picture = Path(out) / "cache", Path(out) / "window.png"
    cache.parent.mkdir(parents=True, exist_ok=True)

    with Writer(cache, overwrite=True) as writer:
        writer.provenance.update(source=f"MuJoCo simulation, seed {seed}", format="demo")
        for episode in track(
            range(episodes), "simulating", console=console, transient=True, disable=not console.is_terminal
        ):
            _record(physics, writer, episode, np.random.default_rng([seed, episode]))
    dataset = open(cache)
    _draw(dataset, plt, picture)

    loader = Loader(
        dataset, batch_size=_BATCH_SIZE, delta_timestamps=_WINDOWS, default=Window(normalize="mean_std"), seed=seed
    )
    windows = NumpyWindows(dataset, cast(str, loader.anchor))
    difference = _largest_difference(windows, next(loader))
    say = partial(console.print, highlight=False, soft_wrap=True)
    say(
        f"recorded  {episodes} episodes of {_EPISODE_S:g} s, a camera and {len(_WINDOW)} sensors on clocks of their own: {cache}"
    )
    say(f"checked   a batch of {_BATCH_SIZE} windows against numpy and Pillow: {difference:.1e} apart at most")
    say(f"drawn     what was recorded, and one window of that batch: {picture.resolve()}")
    rate, dataloader_rate = samples_per_second(loader, 2.0), None
    try:
        from torch.utils.data import DataLoader
    except ImportError:
        comparison = "torch is not installed, no DataLoader to compare with"
    else:
        dataloader = DataLoader(cast(Any, windows), _BATCH_SIZE, shuffle=True, num_workers=_WORKERS)
        dataloader_rate = samples_per_second(dataloader, 4.0)
        comparison = (
            f"{rate / dataloader_rate:.0f} times torch's DataLoader ({dataloader_rate:,.0f} with {_WORKERS} workers)"
        )
    device = "the CPU" if loader.device == "cpu" else loader.device
    say(f"\n[bold]{rate:,.0f} samples/s on {device}, {comparison}[/bold]")
    say(f"next      robocache doctor {cache} --html report.html; then your own data: robocache ingest DATASET CACHE")
    return {
        "samples_per_second": rate,
        "dataloader_samples_per_second": dataloader_rate,
        "largest_difference": difference,
        "cache": str(cache),
        "picture": str(picture),
    }


def samples_per_second(batches: Any, seconds: float) -> float:
    """Iterates `batches`, epoch after epoch, for `seconds`. Returns the samples per second, without the first three batches.

    Args:
        batches: a Loader, or another iterable with a length whose batches hold ``time_ns``.

    Raises:
        ArgumentError: there is no batch.
    """
    if len(batches) == 0:
        raise ArgumentError("no samples to load")
    endless = itertools.chain.from_iterable(itertools.repeat(batches))
    for _ in range(3):
        batch = next(endless)
    int(batch["time_ns"][0])  # waits until a GPU has finished its queue
    samples, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        batch = next(endless)
        samples += len(batch["time_ns"])
    int(batch["time_ns"][0])
    return samples / (time.perf_counter() - start)


# ---- recording ----


class _Physics:
    """The simulated arm, which reaches for a ball. It knows every sensor's true value at every millisecond."""

    def __init__(self, seed: int) -> None:
        try:
            import mujoco
        except ImportError as error:
            raise Error("the demo needs MuJoCo; pip install 'robocache[demo]'") from error
        self._mujoco = mujoco
        self._model = mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("demo_arm.xml")))
        self._data = mujoco.MjData(self._model)

    def reach(self, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], bool]:
        """Simulates an episode. Returns each stream's values [steps, features], and whether the hand reached the ball."""
        model, data = self._model, self._data
        low, high = model.jnt_range.T
        ball = np.zeros(3)
        while not (ball[2] > 0.1 and np.hypot(*ball[:2]) > 0.2):  # above the table, away from the arm's foot
            goal = rng.uniform(low, high)
            ball = self._tip_position(goal)
        self._mujoco.mj_resetData(model, data)
        data.mocap_pos[0] = ball
        # Minimum jerk to the goal, then a rest.
        phase = np.clip(np.arange(_STEPS) * _TIMESTEP_S / rng.uniform(3.0, 6.0), 0, 1)
        progress = phase**3 * (10 - 15 * phase + 6 * phase**2)
        wobble = 0.02 * np.sin(np.arange(_STEPS)[:, None] * _TIMESTEP_S * rng.uniform(4, 12, goal.shape))
        state, sensors = np.empty((_STEPS, 2 * model.nq)), np.empty((_STEPS, model.nsensordata))
        for step in range(_STEPS):
            data.ctrl[:] = progress[step] * goal + wobble[step]
            self._mujoco.mj_step(model, data)
            state[step] = np.concatenate([data.qpos, data.qvel])
            sensors[step] = data.sensordata
        imu, pose = sensors[:, :6], sensors[:, 6:]
        streams = {"joint.state": state, "imu": imu, "end_effector.pose": pose}
        return streams, bool(np.linalg.norm(pose[-1, :3] - ball) < 0.05)

    def _tip_position(self, joints: np.ndarray) -> np.ndarray:
        self._data.qpos[:] = joints
        self._mujoco.mj_forward(self._model, self._data)
        return np.array(self._data.site("tip").xpos)

    def film(self, joints: np.ndarray) -> np.ndarray:
        """Returns the camera's frames ``[n, H, W, 3]`` of the arm at these joints ``[n, q]``, drawn without a GPU."""
        frames = np.empty((len(joints), _HEIGHT, _WIDTH, 3), np.uint8)
        for frame, position in zip(frames, joints, strict=True):
            self._data.qpos[:] = position
            self._mujoco.mj_kinematics(self._model, self._data)
            self._mujoco.mj_camlight(self._model, self._data)
            frame[:] = self._draw_picture()
        return frames

    def _draw_picture(self) -> np.ndarray:
        """Draws each capsule and ball as a thick line where the camera sees it, the farthest first."""
        model, data = self._model, self._data
        camera = data.camera("watching")
        focal = _HEIGHT / 2 / np.tan(np.radians(model.camera("watching").fovy[0]) / 2)
        rotation = camera.xmat.reshape(3, 3)
        rows, columns = np.mgrid[:_HEIGHT, :_WIDTH].astype(np.float64)

        def project(points: np.ndarray) -> np.ndarray:
            """Returns points [n, 3] of the world as column, row and depth."""
            x, y, z = ((points - camera.xpos) @ rotation).T
            return np.stack([_WIDTH / 2 + focal * x / -z, _HEIGHT / 2 - focal * y / -z, -z], axis=1)

        picture = np.full((_HEIGHT, _WIDTH, 3), _SKY, np.float64)
        lines = []
        for geom in range(model.ngeom):
            centre, size = data.geom_xpos[geom], model.geom_size[geom]
            body = model.body(model.geom_bodyid[geom]).name
            if model.geom(geom).name == "table":
                corners = centre + size * [[-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1]]
                outline = project(corners)[:, :2]
                edges = np.roll(outline, -1, axis=0) - outline
                sides = [
                    edge[0] * (rows - row) - edge[1] * (columns - column)
                    for edge, (column, row) in zip(edges, outline, strict=True)
                ]
                is_inside = np.all(np.array(sides) <= 0, axis=0) | np.all(np.array(sides) >= 0, axis=0)
                picture[is_inside] = _COLOURS["table"]
                continue
            axis = data.geom_xmat[geom].reshape(3, 3)[:, 2] * (size[1] if body != "ball" else 0.0)
            (x0, y0, z0), (x1, y1, z1) = project(np.array([centre - axis, centre + axis]))
            lines.append(((z0 + z1) / 2, x0, y0, x1 - x0, y1 - y0, focal * size[0] * 2 / (z0 + z1), body))
        for _, x, y, along_x, along_y, radius, body in sorted(lines, reverse=True):
            length = max(along_x**2 + along_y**2, 1e-9)
            fraction = (((columns - x) * along_x + (rows - y) * along_y) / length).clip(0, 1)
            distance = np.hypot(columns - x - fraction * along_x, rows - y - fraction * along_y) / radius
            shade = (1.15 - 0.55 * distance)[..., None] * np.array(_COLOURS.get(body, _ARM))
            picture = np.where(distance[..., None] < 1, shade, picture)
        return picture.clip(0, 255).astype(np.uint8)


def _record(physics: _Physics, writer: Writer, number: int, rng: np.random.Generator) -> None:
    """Simulates an episode and writes each sensor's samples with stamps of the sensor's own clock."""
    truth, success = physics.reach(rng)
    started_ns = 1_700_000_000_000_000_000 + number * 60_000_000_000
    with writer.episode(task="reach the ball", success=success) as episode:
        for name, sensor in _SENSORS.items():
            taken_s = np.arange(1, (_EPISODE_S - 0.1) * sensor.rate_hz) / sensor.rate_hz
            taken_s += rng.normal(0, sensor.jitter_s, len(taken_s)).clip(-0.4 / sensor.rate_hz, 0.4 / sensor.rate_hz)
            is_lost = np.zeros(len(taken_s), bool)
            for first in np.flatnonzero(rng.random(len(is_lost)) < sensor.dropouts_per_s / sensor.rate_hz):
                is_lost[first : first + rng.integers(1, 12)] = True
            taken_s = taken_s[~is_lost]
            step, fraction = np.divmod(taken_s / _TIMESTEP_S, 1)
            step = step.astype(int)
            source = truth["joint.state" if name == _CAMERA else name]
            values = source[step] + fraction[:, None] * (source[step + 1] - source[step])
            time_ns = started_ns + np.rint((taken_s + sensor.clock_offset_s) * 1e9).astype(np.int64)
            if name == _CAMERA:
                episode.append(name, time_ns, physics.film(values[:, : values.shape[1] // 2]), codec="jpeg")
            else:
                episode.append(name, time_ns, values.astype(np.float32))


# ---- the same windows by a torch DataLoader ----


class NumpyWindows:
    """A typical map-style dataset, which aligns one window with numpy and decodes its frames with Pillow."""

    def __init__(self, dataset: Dataset, anchor: str) -> None:
        anchors = dataset.streams[anchor]
        self.time_ns = np.asarray(anchors.time_ns)
        self.episode_index = np.repeat(np.arange(len(dataset)), np.diff(anchors.row_offsets))
        self.offsets_ns = {name: np.rint(np.array(offsets) * 1e9).astype(np.int64) for name, offsets in _WINDOW.items()}
        self.streams = {name: dataset.streams[name] for name in _WINDOW}
        self.camera = dataset.streams[_CAMERA]
        self.norms = {name: (dataset.stats[name].mean, dataset.stats[name].std) for name in _WINDOW}

    def __len__(self) -> int:
        return len(self.time_ns)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.window(self.episode_index[index], self.time_ns[index])

    def window(self, episode: int, anchor_ns: int) -> dict[str, Any]:
        """Returns the window around a moment, as one sample of a batch."""
        sample: dict[str, Any] = {"time_ns": anchor_ns, "episode_index": episode}
        for name, stream in self.streams.items():
            rows = slice(*stream.row_offsets[episode : episode + 2])
            times, values = stream.time_ns[rows], stream.values[rows]
            target = anchor_ns + self.offsets_ns[name]
            after = np.searchsorted(times, target, side="right").clip(1, len(times) - 1)
            before = after - 1
            weight = ((target - times[before]) / (times[after] - times[before])).clip(0, 1)[:, None]
            aligned = values[before] + weight * (values[after] - values[before])
            mean, std = self.norms[name]
            sample[name] = ((aligned - mean) / np.where(std > 0, std, 1)).astype(np.float32)
            sample[f"{name}_is_pad"] = (target < times[0] - 1000) | (target > times[-1] + 1000)
        first, last = self.camera.row_offsets[episode : episode + 2]
        times = self.camera.time_ns[first:last]
        target = anchor_ns + np.rint(np.array(_FRAMES) * 1e9).astype(np.int64)
        newest = (np.searchsorted(times, target, side="right") - 1).clip(0)
        sample[_CAMERA] = np.stack([self._decode(first + row) for row in newest])
        sample[f"{_CAMERA}_is_pad"] = (target < times[0]) | (target > times[-1])
        return sample

    def _decode(self, row: int) -> np.ndarray:
        from PIL import Image

        with Image.open(io.BytesIO(cast(Any, self.camera.values).file(row))) as image:
            return cast(np.ndarray, np.asarray(image).transpose(2, 0, 1))


def _largest_difference(windows: NumpyWindows, batch: dict[str, Any]) -> float:
    """Returns the largest difference between a loader's batch and the same windows by numpy. Raises Error if it is too
    large."""
    batch = {key: np.asarray(array.cpu() if hasattr(array, "cpu") else array) for key, array in batch.items()}
    difference = 0.0
    for row, (episode, anchor_ns) in enumerate(zip(batch["episode_index"], batch["time_ns"], strict=True)):
        expected = windows.window(episode, anchor_ns)
        for name in _SENSORS:
            if not np.array_equal(batch[f"{name}_is_pad"][row], expected[f"{name}_is_pad"]):
                raise Error(f"{name}_is_pad differs from numpy's in episode {episode} at {anchor_ns} ns")
        if np.abs(batch[_CAMERA][row].astype(int) - expected[_CAMERA]).max() > 2:
            raise Error(f"the camera's frames differ from Pillow's in episode {episode} at {anchor_ns} ns")
        for name in _WINDOW:
            difference = max(difference, float(np.abs(batch[name][row] - expected[name]).max()))
    if not difference < 1e-4:
        raise Error(f"the loader's values differ from numpy's by {difference}")
    return difference


# ---- the picture ----


def _draw(dataset: Dataset, plt: Any, path: Path) -> None:
    """Draws the camera's frames and each stream's samples around the middle of episode 0, with the loader's window there."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    moments = len(dataset.episode(0)[_CAMERA][0])  # the slowest stream has the anchors
    loader = Loader(
        dataset, batch_size=moments, delta_timestamps=_WINDOWS, episodes=[0], shuffle=False, framework="numpy"
    )
    batch = next(loader)
    times, _ = dataset.episode(0)["joint.state"]
    gap_ns = times[np.argmax(np.diff(times))]
    chosen = np.abs(batch["time_ns"] - gap_ns).argmin()
    anchor_ns = batch["time_ns"][chosen]
    heights = [1.6] + [1.0] * len(_WINDOW)
    figure, axes = plt.subplots(
        len(_SENSORS), 1, figsize=(11, 9), sharex=True, layout="constrained", height_ratios=heights
    )
    figure.suptitle("what was recorded on four clocks, and one aligned window of the batch")
    frame_axis, *axes = axes
    since_ms = (dataset.episode(0)[_CAMERA][0] - anchor_ns) / 1e6
    near_ms = since_ms[np.abs(since_ms) < 220]
    frame_axis.plot(near_ms, np.full(len(near_ms), 0.03), "|", color="0.3", transform=frame_axis.get_xaxis_transform())
    for offset, frame in zip(_FRAMES, batch[_CAMERA][chosen], strict=True):
        picture = OffsetImage(frame.transpose(1, 2, 0), zoom=1.05)
        position = (offset * 1e3, 0.56)
        transform = frame_axis.get_xaxis_transform()
        frame_axis.add_artist(AnnotationBbox(picture, position, xycoords=transform, bboxprops={"edgecolor": "C3"}))
        frame_axis.axvline(offset * 1e3, color="C3", alpha=0.3, linewidth=0.8)
    frame_axis.set_yticks([])
    frame_axis.set_title(f"{_CAMERA}: 30 Hz, jitter 2.5 ms, JPEG {_WIDTH} x {_HEIGHT}", loc="left", fontsize=9)
    for axis, (name, offsets) in zip(axes, _WINDOW.items(), strict=True):
        times, values = dataset.episode(0)[name]
        since_ms = (times - anchor_ns) / 1e6
        is_near = np.abs(since_ms) < 220
        axis.plot(
            since_ms[is_near], values[is_near, 0], ".-", color="0.6", linewidth=0.6, markersize=4, label="recorded"
        )
        axis.plot(
            since_ms[is_near], np.full(is_near.sum(), 0.03), "|", color="0.3", transform=axis.get_xaxis_transform()
        )
        is_pad = batch[f"{name}_is_pad"][chosen]
        offsets_ms = np.array(offsets) * 1e3
        aligned = batch[name][chosen, :, 0]
        axis.plot(offsets_ms[~is_pad], aligned[~is_pad], "o", color="C3", fillstyle="none", label="aligned")
        if is_pad.any():
            axis.plot(offsets_ms[is_pad], aligned[is_pad], "x", color="C3", label="aligned, is_pad")
        for offset in offsets_ms:
            axis.axvline(offset, color="C3", alpha=0.15, linewidth=0.8)
        sensor = _SENSORS[name]
        axis.set_title(f"{name}[0]: {sensor.rate_hz:g} Hz, jitter {sensor.jitter_s * 1e3:g} ms", loc="left", fontsize=9)
    axes[0].legend(loc="upper right", ncols=3, fontsize=8)
    axes[-1].set_xlabel("ms from the anchor")
    figure.savefig(path, dpi=120)
    plt.close(figure)
