"""Reports what is installed, and whether it works."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from . import _lib
from ._check import whole
from .ops.resample import resample_trajectories


def set_num_threads(n: int) -> None:
    """Sets the number of threads for CPU work, including the caller's. No result depends on it.

    Raises ArgumentError unless 1 <= n <= 4096, and ArgumentTypeError if n is not an int.
    """
    _lib.function("set_num_threads")(whole("n", n))


def num_threads() -> int:
    """Returns the number of threads for CPU work, including the caller's: the number given to :func:`set_num_threads`, else
    ROBOCACHE_NUM_THREADS if set, else the cores that this process may use."""
    return cast(int, _lib.function("num_threads")())


def memory_available(device: str) -> int:
    """Returns how many bytes a process can still allocate on "cpu" or "cuda:N"."""
    if device != "cpu":
        return cast(int, _lib.function("cuda_device_memory_free")(int(device.partition(":")[2] or 0)))
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(facts["MemAvailable"].split()[0]) * 1024
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # a container's limit, by cgroup v2 or v1
            unused = int((_CGROUP / limit).read_text()) - int((_CGROUP / used).read_text())
            available = min(available, max(unused, 0))
    return available


_CGROUP = Path("/sys/fs/cgroup")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_with_cuda() -> Any | None:
    """Returns the module torch if it is installed and can use CUDA, else None."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _failure(make_array: Any) -> str | None:
    """Runs an operation on arrays that `make_array` makes; returns the reason why it fails, or None if it works."""
    try:
        out = float(resample_trajectories(make_array([[0.0], [8.0]]), make_array([0.0, 1.0]), make_array([0.25]))[0, 0])
    except RuntimeError as error:  # raised by this package or torch if the GPU is not supported or its memory is full
        return str(error)
    return None if out == 2.0 else f"resample_trajectories gave {out}, expected 2.0"


_OLDEST = 80  # compute capability 8.0


def lacks_kernels(capability: int) -> str | None:
    """Returns the reason why a device of this compute capability (80 for 8.0) runs no kernel, or None."""
    if capability >= _OLDEST:
        return None
    version = "{}.{}".format(*divmod(capability, 10))
    return (
        f'RoboCache has no kernels for compute capability {version}, only for 8.0 (Ampere) or later; use device="cpu"'
    )


def _device_failure(index: int, capability: int, torch: Any | None) -> str | None:
    """Returns the reason why a device does not work, or None."""
    if reason := lacks_kernels(capability):
        return reason
    failure = _failure(partial(torch.tensor, device=f"cuda:{index}")) if torch else None
    if failure and "no kernel image" in failure:  # cudaErrorNoKernelImageForDevice, of this package or of torch
        failure += f"; build with ROBOCACHE_CUDA_ARCHITECTURES={capability}-real, and take a torch for this GPU"
    return failure


def _cuda_version(number: int) -> str | None:
    """Returns "13.0" for CUDA's number 13000; None for 0."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _describe_device(index: int, torch: Any | None) -> dict[str, Any]:
    function = _lib.function
    capability = function("cuda_device_compute_capability")(index)
    failure = _device_failure(index, capability, torch)
    return {
        "index": index,
        "name": function("cuda_device_name")(index),
        "compute_capability": "{}.{}".format(*divmod(capability, 10)),
        "memory_total": function("cuda_device_memory_total")(index),
        "memory_free": function("cuda_device_memory_free")(index),
        "works": False if failure else None if torch is None else True,
        "failure": failure,
    }


def check_installation() -> dict[str, Any]:
    """Runs an operation on every device and reports the result.

    Returns:
        A JSON-able dict:

        - ``versions``: of this package, Python, the platform and packages, by name.
        - ``library``, ``cuda_library``: their paths; None without the CUDA library.
        - ``cpu``: ``threads``, ``memory_total`` in bytes, ``works``.
        - ``cuda``: ``plugin_loaded``; ``reason``, why CUDA cannot be used and what to do, or None; ``runtime`` and ``driver``,
          the CUDA versions; ``devices``, a list.
        - ``ok``: whether the CPU works and no device fails.

        Each of ``devices`` has ``index``, ``name``, ``compute_capability``, ``memory_total`` and ``memory_free`` in bytes;
        ``works``, which is False for a device without kernels, else None if torch cannot use CUDA, since torch makes the arrays of
        the test; and ``failure``, the reason if it does not work, else None.
    """
    function = _lib.function
    plugin = _plugin()
    count = function("cuda_device_count")()
    torch = _torch_with_cuda() if count else None
    cuda: dict[str, Any] = {
        "plugin_loaded": function("cuda_plugin_loaded")(),
        "reason": function("cuda_unavailable_reason")() or None,
        "runtime": _cuda_version(function("cuda_runtime_version")()),
        "driver": _cuda_version(function("cuda_driver_version")()),
        "devices": [_describe_device(index, torch) for index in range(count)],
    }
    works = _failure(np.array) is None
    return {
        "versions": {
            "robocache": _lib.function("version")(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            **{name: _version(name) for name in ("apache-tvm-ffi", "numpy", "pyarrow", "torch")},
        },
        "library": str(_lib.path),
        "cuda_library": str(plugin) if plugin.exists() else None,
        "cpu": {
            "threads": num_threads(),
            "memory_total": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "works": works,
        },
        "cuda": cuda,
        "ok": works and all(device["works"] is not False for device in cuda["devices"]),
    }


def _plugin() -> Path:
    """Returns the path where the library with CUDA is expected."""
    return Path(os.environ.get("ROBOCACHE_CUDA_LIBRARY") or _lib.path.with_name("librobocache_cuda.so"))


# ---- a bug report ----

# Packages whose versions a report lists if they are installed, and the beginnings of environment variables that it lists.
_OPTIONAL = ["rich", "av", "h5py", "imagecodecs", "jax", "lerobot", "mcap", "ml_dtypes", "numcodecs", "rosbags", "zarr"]
_ENVIRONMENT = ("ROBOCACHE_", "CUDA_", "NVIDIA_", "LD_", "OMP_", "WORLD_SIZE", "SLURM_JOB_NUM_NODES")


def report_facts() -> dict[str, Any]:
    """Returns the result of :func:`check_installation` with further facts about the machine for a bug report. JSON-able."""
    result = check_installation()
    with suppress(OSError):
        result["versions"]["system"] = platform.freedesktop_os_release()["PRETTY_NAME"]
    result["versions"]["libc"] = " ".join(platform.libc_ver())
    result["versions"] |= {name: version for name in _OPTIONAL if (version := _version(name))}
    cpu_lines = dict.fromkeys(line.strip() for line in Path("/proc/cpuinfo").read_text().splitlines())
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in cpu_lines)}
    instructions = [name for name in ("avx2", "fma", "f16c", "avx512f") if name in facts.get("flags", "").split()]
    result["cpu"] |= {"model": facts.get("model name", platform.machine()), "instructions": instructions}
    result["cpu"]["memory_available"] = memory_available("cpu")
    with suppress(OSError):
        result["cuda"]["kernel_module"] = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    result["environment"] = {
        name: "a path" if "/" in value else value
        for name, value in sorted(os.environ.items())
        if name.startswith(_ENVIRONMENT)
    }
    return result


def without_user_paths(value: Any) -> Any:
    """Returns a JSON-able value with the folders of this user and this installation replaced in every text."""
    folders = {
        str(_plugin().parent): "PLUGIN",
        str(_lib.path.parent): "LIBRARY",
        str(Path(__file__).parent): "robocache",
        sys.prefix: "PYTHON",
        os.getcwd(): "CWD",
        str(Path.home()): "~",
    }
    if isinstance(value, str):
        for folder in sorted(folders.keys() - {"/", "."}, key=len, reverse=True):
            value = value.replace(folder, folders[folder])
        return value
    if isinstance(value, dict):
        return {key: without_user_paths(inner) for key, inner in value.items()}
    return [without_user_paths(inner) for inner in value] if isinstance(value, list) else value
