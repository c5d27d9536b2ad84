"""Checks RoboCache's results on this machine: compares every operation and a loader with stored results."""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import actions, dataset, errors, frames
from .image_options import ImageOptions
from .installation import check_installation
from .live.aligner import Aligner, Ring
from .loader import Loader
from .ops.decode_jpeg import decode_jpeg
from .ops.fuse import fuse_multimodal
from .ops.image_batch import image_batch
from .ops.integrate_tsdf import integrate_tsdf
from .ops.resample import resample_trajectories
from .ops.voxel_downsample import voxel_downsample
from .ops.voxelize import voxelize_pointcloud
from .ops.voxelize_sparse import voxelize_sparse
from .options import Anchors, Window
from .writer import Writer

# {case: hash}, or {case: {"cpu": hash, "cuda": hash}} if the rules allow a difference.
_ANSWERS = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class CaseResult:
    """The result of a case on a device: its hash, or the error instead of it, and the stored hash."""

    device: str
    case: str
    got: str
    expected: str

    @property
    def passed(self) -> bool:
        return self.got == self.expected


@dataclass(frozen=True)
class SelfTest:
    """The results of :func:`self_test`, case by case, and their time in seconds."""

    results: list[CaseResult]
    seconds: float

    @property
    def failures(self) -> list[CaseResult]:
        return [result for result in self.results if not result.passed]

    @property
    def devices(self) -> list[str]:
        return sorted({result.device for result in self.results})

    def to_json(self) -> dict[str, Any]:
        """Returns ``ok``, ``cases``, ``seconds``, ``devices`` and the ``failures`` as a JSON-able dict."""
        return {
            "ok": not self.failures,
            "cases": len(self.results),
            "seconds": round(self.seconds, 3),
            "devices": self.devices,
            "failures": [asdict(result) for result in self.failures],
        }


def self_test() -> SelfTest:
    """Runs every operation and a loader on the CPU and on each CUDA device, and compares the bytes with stored results.

    The inputs are whole numbers from a hash, so they are the same everywhere. CUDA devices need torch. A case that raises an
    error counts as failed, with the error instead of its hash.
    """
    answers: dict[str, Any] = json.loads(_ANSWERS.read_text())
    begin = time.monotonic()
    devices = check_installation()["cuda"]["devices"]
    results = []
    for device in ["cpu", *(f"cuda:{device['index']}" for device in devices if device["works"] is not None)]:
        for case, got in _run_cases(device).items():
            expected = answers.get(case, "no stored answer")
            if isinstance(expected, dict):
                expected = expected[device.partition(":")[0]]
            results.append(CaseResult(device, case, got, expected))
    return SelfTest(results, time.monotonic() - begin)


def _run_cases(device: str) -> dict[str, str]:
    """Returns the hash of each case on a device."""
    got = {}
    for case, run in [*_operations(device), *_gradients(device), *_conversions(device), *_loaders(device)]:
        try:
            got[case] = _hash(run())
        except errors.Error as error:
            got[case] = f"{type(error).__name__}: {error}"
    return got


# ---- Inputs ----


class _Numbers:
    """Pseudo-random numbers that are the same for every version of numpy: SplitMix64 of a counter."""

    def __init__(self, seed: int) -> None:
        self._next = seed << 32

    def whole(self, shape: tuple[int, ...], below: int) -> npt.NDArray[np.int64]:
        count = int(np.prod(shape))
        x = np.arange(self._next, self._next + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._next += count
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return np.asarray(((x ^ (x >> np.uint64(31))) >> np.uint64(33)) % np.uint64(below), np.int64).reshape(shape)

    def real(self, shape: tuple[int, ...], low: float, high: float) -> npt.NDArray[np.float64]:
        return low + (high - low) * (self.whole(shape, 1 << 30) / (1 << 30))

    def clock(self, rows: int, samples: int) -> npt.NDArray[np.float64]:
        """Returns ascending seconds with jitter, in which one stamp occurs twice."""
        seconds = np.cumsum(self.real((rows, samples), 0.2, 1.8), axis=1)
        seconds[:, 4] = seconds[:, 3]
        return seconds


def _put(device: str, array: npt.NDArray[Any]) -> Any:
    if device == "cpu":
        return array
    import torch

    return torch.from_numpy(array).to(device)


def _hash(result: Any) -> str:
    """Hashes arrays in any nesting: their dtypes, shapes and bytes."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            for key in sorted(value):
                digest.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        elif value is not None:
            array = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            digest.update(array.tobytes())

    add(result)
    return digest.hexdigest()[:16]


# ---- Cases: names, and functions to call ----

_Case = tuple[str, Callable[[], Any]]


def _operations(device: str) -> Iterator[_Case]:
    numbers = _Numbers(1)
    seconds = numbers.clock(3, 40)
    targets = numbers.real((3, 25), -1, 42)
    targets[:, 0] = seconds[:, 9]
    values = numbers.real((3, 40, 7), -4, 4)
    resample: Any = resample_trajectories
    methods = ("linear", "nearest", "previous", "next", "pchip", "akima", "cubic", "angle", "pose")
    for dtype, method, unit in itertools.product(("float32", "float64", "float16"), methods, ("seconds", "ns")):
        clocks = (seconds, targets) if unit == "seconds" else (_ns(seconds), _ns(targets))
        arrays = [_put(device, array) for array in (values.astype(dtype), *clocks)]
        yield f"resample {method} {dtype} {unit}", partial(resample, *arrays, method=method, return_valid=True)
    arrays = [_put(device, array) for array in (values.astype("float32"), seconds, targets)]
    options: dict[str, dict[str, Any]] = {
        "causal": {"causal": True},
        "nan": {"extrapolate": "nan"},
        "extrapolated": {"extrapolate": "linear"},
        "max_gap": {"max_gap": 1.1},
        "tolerance": {"method": "nearest", "tolerance": 0.4},
        "slices": {"methods": [(slice(3, 7), "slerp"), (slice(0, 1), "nearest")]},
    }
    for name, arguments in options.items():
        yield f"resample {name}", partial(resample, *arrays, return_valid=True, **arguments)
    streams = {
        name: (
            _put(device, numbers.real((3, samples, features), -9, 9).astype(dtype)),
            _put(device, numbers.clock(3, samples)),
        )
        for name, samples, features, dtype in (
            ("arm", 40, 7, "float32"),
            ("imu", 90, 3, "float32"),
            ("mode", 12, 2, "float64"),
        )
    }
    options = {
        "concat": {"dtype": "float32"},
        "dict": {"output": "dict", "return_valid": True, "return_age": True, "method": {"mode": "previous"}},
        "scaled": {"output": "dict", "scale": {"arm": 0.3}, "shift": {"imu": 1.7}, "offset": {"imu": 0.11}},
    }
    for name, arguments in options.items():
        yield f"fuse {name}", partial(fuse_multimodal, streams, arrays[2], **arguments)
    yield from _points(device, numbers)
    pixels = numbers.whole((4, 37, 53, 3), 256).astype(np.uint8)
    options = {
        "plain": {},
        "resized": {"size": (24, 30), "fit": "pad", "layout": "hwc"},
        "cropped": {"crop_scale": (0.5, 1.0), "size": (18, 18), "dtype": "float16"},
        "coloured": {"brightness": 0.3, "contrast": 0.2, "saturation": 0.4, "hue": 0.1, "mean": "imagenet", "std": 0.2},
        "shifted": {"shift": 4, "dtype": "uint8"},
        "bicubic": {"size": (24, 61), "interpolation": "bicubic", "dtype": "uint8"},
        "area": {"size": (24, 61), "interpolation": "area", "dtype": "uint8"},
        "turned": {"flip_horizontal": 0.5, "rotation": 20, "dtype": "uint8"},
        "blurred": {"blur": (0.1, 3), "blur_kernel": 15, "erase": 0.5, "dtype": "float16"},
    }
    for name, arguments in options.items():
        yield f"image_batch {name}", partial(image_batch, _put(device, pixels), seed=3, sample=7, **arguments)
    encoded = frames.encode(pixels, "jpeg", 90)
    yield "decode_jpeg", partial(decode_jpeg, *(_put(device, np.array(x)) for x in (encoded.data, encoded.offsets)))


def _ns(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.round(seconds * 1e9).astype(np.int64)


def _points(device: str, numbers: _Numbers) -> Iterator[_Case]:
    xyz = numbers.real((3000, 3), -1, 9).astype(np.float32)
    xyz[::97] = np.nan
    points = _put(device, xyz)
    voxelize: Any = partial(voxelize_pointcloud, points, grid_min=(0, 0, 0), voxel_size=0.5, grid_size=(16, 15, 17))
    sparse: Any = partial(voxelize_sparse, points, voxel_size=0.5)
    downsample: Any = partial(voxel_downsample, points, voxel_size=0.5)
    for mode in ("occupancy", "count", "occupancy_bits"):
        yield f"voxelize {mode}", partial(voxelize, mode=mode)
    for dtype in ("float32", "int32", "float16"):
        features = _put(device, numbers.real((3000, 4), -20, 20).astype(dtype))
        for mode in ("sum", "mean", "min", "max", "first", "last"):
            yield f"voxelize {mode} {dtype}", partial(voxelize, features, mode=mode)
        for reduce, order in (("mean", "first"), ("max", "linear"), ("sum", "morton")):
            yield f"voxelize_sparse {reduce} {dtype}", partial(sparse, features, reduce=reduce, order=order)
    for method, seed in (("centroid", None), ("first", None), ("random", 5)):
        yield f"voxel_downsample {method}", partial(downsample, method=method, seed=seed)
    surface = numbers.real((4000, 3), 0.3, 1.7).astype(np.float32)
    depth = numbers.real((48, 64), 0.5, 2).astype(np.float32)
    yield "integrate_tsdf points", partial(_integrate, device, surface)
    yield "integrate_tsdf depth", partial(_integrate, device, depth, (50.0, 50.0, 31.5, 23.5))


def _integrate(device: str, measured: npt.NDArray[Any], *camera: tuple[float, ...]) -> tuple[Any, Any]:
    distances = _put(device, np.ones((20, 21, 22), np.float32))
    weights = _put(device, np.zeros((20, 21, 22), np.float32))
    pose = np.eye(4)
    pose[:3, 3] = 0.1, 0.2, -0.3
    integrate_tsdf(
        distances,
        weights,
        _put(device, measured),
        pose,
        *camera,
        grid_min=(0, 0, 0),
        voxel_size=0.1,
        truncation=0.3,
    )
    return distances, weights


def _gradients(device: str) -> Iterator[_Case]:
    """Yields gradients with respect to values and features, not to times, whose gradients CUDA sums in any order."""
    try:
        import torch
    except ImportError:
        return
    numbers = _Numbers(3)

    def put(array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    def gradient(operation: Callable[[Any], Any], array: npt.NDArray[Any], upstream: npt.NDArray[Any]) -> Any:
        differentiated = put(array).requires_grad_()
        operation(differentiated).backward(put(upstream.astype(array.dtype)))
        return differentiated.grad

    clock, targets = put(numbers.clock(3, 40)), put(numbers.real((3, 25), -1, 42))
    values, upstream = numbers.real((3, 40, 7), -4, 4), numbers.real((3, 25, 7), -1, 1)
    for method, dtype in itertools.product(
        ("linear", "previous", "pchip", "akima", "cubic", "pose"), ("float32", "float64")
    ):
        resample: Any = partial(resample_trajectories, times=clock, target_times=targets, method=method)
        yield f"gradient resample {method} {dtype}", partial(gradient, resample, values.astype(dtype), upstream)
    imu = put(numbers.real((3, 40, 3), -9, 9).astype(np.float32))

    def fuse(arm: Any) -> Any:
        return fuse_multimodal({"arm": (arm, clock), "imu": (imu, clock)}, targets)

    upstream = numbers.real((3, 25, 10), -1, 1)
    yield "gradient fuse", partial(gradient, fuse, values.astype(np.float32), upstream)
    points = put(numbers.real((500, 3), 0, 8).astype(np.float32))
    features, upstream = numbers.real((500, 4), -20, 20), numbers.real((16, 16, 16, 4), -1, 1)
    grid: dict[str, Any] = {"grid_min": (0, 0, 0), "voxel_size": 0.5, "grid_size": (16, 16, 16)}
    for mode in ("sum", "mean", "min", "max", "first", "last"):
        voxelize = partial(voxelize_pointcloud, points, mode=mode, **grid)
        yield f"gradient voxelize {mode}", partial(gradient, voxelize, features.astype(np.float32), upstream)


def _conversions(device: str) -> Iterator[_Case]:
    """Yields conversions without sines, whose last bit differs between numpy and torch."""
    numbers = _Numbers(4)
    chunks = _put(device, numbers.real((6, 9, 8), -3, 3).astype(np.float32))
    states = _put(device, numbers.real((6, 8), -3, 3).astype(np.float32))
    pose = [True] * 7 + [False]
    rotate = actions.Rotate(3, "quat_xyzw", "rot6d_rows", normalize=True)
    gripper = actions.Rescale(slice(-1, None), (-3, 3), (0, 1), clip=True)
    lists: dict[str, list[actions.Conversion]] = {
        kind: [actions.Relative(kind, pose, normalize=True), rotate, gripper] for kind in ("se3", "mixed", "base_frame")
    }
    lists["joints"] = [actions.Relative("joints", pose, angles=[False] * 4 + [True] * 4), gripper]
    lists["step_delta"] = [actions.StepDelta(pose)]
    lists["binarize"] = [actions.BinarizeGripper(slice(6, 8), -1.0, 1.0, "hold")]
    for name, conversions in lists.items():
        yield f"convert {name}", partial(actions.convert, chunks, states, conversions)
    for name in ("se3", "mixed", "base_frame"):
        policy = _put(device, numbers.real((6, 9, 10), -2, 2).astype(np.float32))
        yield f"revert {name}", partial(actions.revert, policy, states, lists[name])
    yield "revert step_delta", partial(actions.revert, chunks, states, lists["step_delta"])


def _loaders(device: str) -> Iterator[_Case]:
    windows = {key: [-0.21, -0.033, 0.0, 0.01, 0.35] for key in ("state", "gripper", "action")}
    camera = {"camera": [-0.1, 0.0]}
    flipped = {"camera": Window(images=ImageOptions(flip_horizontal=0.5)), "action": Window([0.0, 0.35], mirror=[1])}
    converted = {
        "action": Window([0.0, 0.1, 0.35], convert=[actions.StepDelta()], base=("state", [0, 1, 2, 3, 4])),
        "state": Window([-0.2, 0.0], convert=[actions.Rotate(3, "quat_xyzw", "rot6d_rows", normalize=True)]),
    }
    augmented = ImageOptions(size=(16, 20), crop=(12, 12), brightness=0.2, hue=0.05, mean="imagenet", std="imagenet")
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "windows": (windows, {"return_age": True}),
        "normalised": (windows, {"default": Window(normalize="mean_std", dtype="float16")}),
        "causal": (windows, {"default": Window(causal=True, max_gap_s=0.5), "anchors": Anchors(rate_hz=17.0)}),
        "camera": (camera, {}),
        "camera augmented": (camera, {"default": Window(images=augmented)}),
        "camera mirrored": (flipped, {}),
        "converted": (converted, {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        recording = _write_recording(Path(folder))
        for name, (delta_timestamps, arguments) in cases.items():
            loader = Loader(recording, batch_size=24, delta_timestamps=delta_timestamps, device=device, **arguments)
            yield f"loader {name}", partial(list, itertools.islice(loader, 3))
            if name in ("windows", "camera augmented"):
                yield f"live {name}", partial(_align_first_episode, loader, recording, device)


def _align_first_episode(loader: Loader, recording: dataset.Dataset, device: str) -> list[dict[str, Any]]:
    """Returns the batches of an aligner while the first episode's rows arrive."""
    rows = []
    rings = {}
    for key in loader.spec.keys:
        stream, (time_ns, values) = recording[key], recording.episode(0)[key]
        rings[key] = Ring(stream.shape, stream.dtype, span_s=9.0, codec=stream.frames and stream.frames.codec)
        rows += [(int(ns), key, values.file(i) if stream.frames else values[i]) for i, ns in enumerate(time_ns)]
    aligner = Aligner(loader.spec, rings, device=device)
    batches = []
    for number, (ns, key, row) in enumerate(sorted(rows, key=lambda row: row[:2])):
        rings[key].push(ns, row, arrival_ns=ns)
        if number % 9 == 8 and (batch := aligner.latest()):  # the next batch overwrites its memory
            batches.append({name: x.copy() if isinstance(x, np.ndarray) else x.clone() for name, x in batch.items()})
    return batches


def _write_recording(folder: Path) -> dataset.Dataset:
    numbers = _Numbers(2)
    rates = {
        "state": (50, 7, "float32"),
        "gripper": (10, 1, "float32"),
        "action": (30, 5, "float64"),
        "mode": (5, 2, "int16"),
    }
    with Writer(folder / "cache") as writer:
        for number in range(4):
            start = 1_700_000_000_123_456_789 + 10**12 * number
            with writer.episode(task=f"task {number % 2}") as episode:
                for name, (rate, features, dtype) in rates.items():
                    rows = int(numbers.whole((1,), rate)[0]) + rate // 2 + 5
                    stamps = start + _ns(numbers.clock(1, rows)[0] / rate)
                    episode.append(name, stamps, numbers.real((rows, features), -30, 30).astype(dtype))
                pixels = numbers.whole((14, 26, 34, 3), 40) + np.linspace(0, 200, 34, dtype=np.int64)[:, None]
                episode.append(
                    "camera", start + _ns(numbers.clock(1, 14)[0] / 30), pixels.astype(np.uint8), codec="jpeg"
                )
    return dataset.open(folder / "cache")


def write_answers(cuda: Mapping[str, str] | None = None) -> None:
    """Stores the CPU's hashes as the expected results, with a CUDA device's hashes that differ."""
    cpu = _run_cases("cpu")
    answers = {
        case: got if cuda is None or cuda[case] == got else {"cpu": got, "cuda": cuda[case]}
        for case, got in cpu.items()
    }
    _ANSWERS.write_text(json.dumps(answers, indent=0, sort_keys=True) + "\n")
