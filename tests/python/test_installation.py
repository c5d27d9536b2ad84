"""`robocache info`: each reason why CUDA cannot be used has its own message and remedy.

The tests compile a fake plugin, NVML and GPUs, which environment variables control.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import robocache
from robocache import installation

ROOT = Path(__file__).parents[2]
PLUGIN = """
#include <cstdlib>
#include <cstring>
#include "robocache/core/backend.hpp"
static int number(const char* name) { return std::getenv(name) ? std::atoi(std::getenv(name)) : 0; }
extern "C" const char* robocache_cuda_abi() { return std::getenv("FAKE_ABI"); }
extern "C" const robocache::CudaBackend* robocache_cuda_backend() {
  static robocache::CudaBackend table{};
  table.runtime_version = 13000;
  table.device_count = [](int32_t* count) { *count = number("FAKE_GPUS"); return number("FAKE_CODE"); };
  table.driver_version = [](int32_t* version) { *version = number("FAKE_DRIVER"); return 0; };
  table.error_text = [](int code) { return code == 100 ? "no CUDA-capable device is detected" : "as CUDA words it"; };
  table.device_info = [](int32_t, robocache::CudaDeviceInfo* info) {
    std::strcpy(info->name, "Fake T4");
    info->compute_major = number("FAKE_CAPABILITY") / 10;
    info->compute_minor = number("FAKE_CAPABILITY") % 10;
    return 0;
  };
  return &table;
}
"""
NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { return strncpy(text, "535.104.05", size) == 0; }
"""


@pytest.fixture(scope="module")
def fakes(tmp_path_factory):
    """The folder of the fake plugin and of libnvidia-ml.so.1."""
    folder = tmp_path_factory.mktemp("fakes")
    (folder / "plugin.cpp").write_text(PLUGIN)
    (folder / "nvml.c").write_text(NVML)
    for source, result in (("plugin.cpp", "librobocache_cuda.so"), ("nvml.c", "libnvidia-ml.so.1")):
        standard = ["-std=c++20"] if source.endswith("cpp") else []
        command = ["g++" if standard else "gcc", *standard, "-shared", "-fPIC", f"-I{ROOT / 'src'}"]
        subprocess.run([*command, folder / source, "-o", folder / result], check=True)
    return folder


# Importing torch would take seconds.
COMMAND = "import sys; sys.modules['torch'] = None; from robocache.cli import main; sys.exit(main(sys.argv[1:]))"


def info(*arguments, **environment):
    """Returns the exit code and output of the command, in a process whose environment has no other variable of CUDA."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "ROBOCACHE_CUDA"))}
    inherited["PYTHONPATH"] = str(Path(robocache.__file__).parents[1])
    command = [sys.executable, "-c", COMMAND, "info", *arguments]
    process = subprocess.run(command, env={**inherited, **environment}, capture_output=True, text=True)
    return process.returncode, process.stdout + process.stderr


def reason(**environment):
    code, out = info("--json", **environment)
    information = json.loads(out)
    assert code == 0 and information["ok"] and information["cuda"]["devices"] == []  # the CPU works
    return information["cuda"]["reason"]


@pytest.fixture(scope="module")
def plugin(fakes):
    """Environment variables for a plugin of this build."""
    variables = {"ROBOCACHE_CUDA_LIBRARY": str(fakes / "librobocache_cuda.so")}
    abi = re.search("this library's is ([0-9a-f]{16})", reason(**variables, FAKE_ABI="another")).group(1)
    return {**variables, "FAKE_ABI": abi}


@pytest.fixture
def library(tmp_path):
    """A copy of the library, in a folder without a plugin."""
    return Path(shutil.copy(robocache.check_installation()["library"], tmp_path / "librobocache.so"))


def test_no_plugin(library):
    assert reason(ROBOCACHE_LIBRARY=str(library)) == (
        f"no CUDA plugin: {library.parent}/librobocache_cuda.so does not exist; install the wheel robocache in place of "
        "robocache-cpu, or compile where nvcc is"
    )


def test_a_plugin_of_another_build(library, fakes):
    shutil.copy(fakes / "librobocache_cuda.so", library.parent)
    message = reason(ROBOCACHE_LIBRARY=str(library), FAKE_ABI="0123456789abcdef")
    assert re.fullmatch(
        re.escape(f"{library.parent}/librobocache_cuda.so belongs to another build of RoboCache: its interface is ")
        + "0123456789abcdef, this library's is [0-9a-f]{16}; build or install both together",
        message,
    )


def test_a_damaged_plugin(library):
    (library.parent / "librobocache_cuda.so").write_bytes(b"\x7fELF, and no more")
    assert re.search("does not open: .*; reinstall robocache$", reason(ROBOCACHE_LIBRARY=str(library)))


@pytest.mark.parametrize(
    "path, fault",
    [
        ("/nowhere/librobocache_cuda.so", "does not exist"),
        ("/proc/self/status", "does not open: .*"),
        ("libm.so.6", "is no CUDA plugin of this version of RoboCache: .*"),
    ],
)
def test_a_wrong_path_in_the_environment(path, fault):
    remedy = "unset it, or name the plugin that was built with this library"
    assert re.fullmatch(f"ROBOCACHE_CUDA_LIBRARY: {path} {fault}; {remedy}", reason(ROBOCACHE_CUDA_LIBRARY=path))


def test_an_empty_path_in_the_environment_is_ignored():
    assert "ROBOCACHE_CUDA_LIBRARY" not in (reason(ROBOCACHE_CUDA_LIBRARY="") or "")


def test_no_driver(plugin):
    assert reason(**plugin, FAKE_CODE="35") == (
        "no NVIDIA driver; install version 580 or later (CUDA 13.0), or start the container with --gpus all"
    )


def test_an_old_driver_is_named_with_the_needed_version(plugin, fakes):
    environment = {**plugin, "FAKE_CODE": "35", "FAKE_DRIVER": "12020"}
    message = "the NVIDIA driver {} is too old; install version 580 or later (CUDA 13.0)"
    assert reason(**environment, LD_LIBRARY_PATH=str(fakes)) == message.format("535.104.05 (CUDA 12.2)")
    if not Path("/proc/driver/nvidia").exists():  # else the machine's NVML would answer
        assert reason(**environment) == message.format("for CUDA 12.2")


@pytest.mark.parametrize("code", ["0", "100"])
def test_no_device(plugin, code):
    environment = {**plugin, "FAKE_CODE": code, "FAKE_DRIVER": "13000"}
    fault = "no CUDA device" + ": no CUDA-capable device is detected" * (code == "100")
    assert reason(**environment) == f"{fault}; make nvidia-smi list one first"
    message = f"{fault}; CUDA_VISIBLE_DEVICES=7 hides the devices that it does not name; unset it"
    assert reason(**environment, CUDA_VISIBLE_DEVICES="7") == message


def test_a_device_without_kernels(plugin):
    environment = {**plugin, "FAKE_GPUS": "1", "FAKE_DRIVER": "13000", "FAKE_CAPABILITY": "75"}
    code, out = info("--json", **environment)
    device = json.loads(out)["cuda"]["devices"][0]
    assert code == 1 and device["works"] is False and device["compute_capability"] == "7.5"
    assert device["failure"] == (
        'RoboCache has no kernels for compute capability 7.5, only for 8.0 (Ampere) or later; use device="cpu"'
    )
    code, out = info(**environment)
    assert code == 1 and "Fake T4, sm 7.5" in out and "does not work: RoboCache has no kernels" in out


# torch as it is where it finds one GPU.
LOADER = """
import torch
torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 0
import sys, robocache
def device_of(device):
    try:
        return robocache.Loader(sys.argv[1], batch_size=4, delta_timestamps={"joint": [0.0]}, device=device).device
    except robocache.errors.DeviceError as error:
        return str(error)
print(*map(device_of, (None, "cuda", "cuda:0", "cpu")), sep="\\n")
"""


def test_a_loader_beside_a_device_without_kernels_is_on_the_cpu(plugin, tmp_path):
    pytest.importorskip("torch")
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("joint", np.arange(10) * 10**7, np.zeros((10, 2), np.float32))
    environment = {**os.environ, **plugin, "FAKE_GPUS": "1", "FAKE_DRIVER": "13000", "FAKE_CAPABILITY": "75"}
    environment["PYTHONPATH"] = str(Path(robocache.__file__).parents[1])
    command = [sys.executable, "-c", LOADER, tmp_path / "cache"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    refusal = f"device: 'cuda:0' cannot be used: {installation.lacks_kernels(75)}"
    assert output.splitlines() == ["cpu", refusal, refusal, "cpu"]


def test_a_device_of_another_architecture(monkeypatch):
    class Torch:
        @staticmethod
        def tensor(values, device):
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    failure = installation._device_failure(0, 86, Torch)
    assert failure.endswith("; build with ROBOCACHE_CUDA_ARCHITECTURES=86-real, and take a torch for this GPU")
    assert installation._device_failure(0, 80, None) is None


# ---- --report ----


def test_a_report_has_no_path_of_the_user(tmp_path):
    home = tmp_path / "Jane Doe"
    for folder in ("lib", "work"):
        (home / folder).mkdir(parents=True)
    library = shutil.copy(robocache.check_installation()["library"], home / "lib/librobocache.so")
    environment = {
        "HOME": str(home),
        "ROBOCACHE_LIBRARY": library,
        "ROBOCACHE_CUDA_LIBRARY": str(home / "work/nowhere.so"),
        "ROBOCACHE_NUM_THREADS": "2",
    }
    (code, text), (json_code, as_json) = (info("--report", *options, **environment) for options in ([], ["--json"]))
    for out in (text, as_json):
        assert "Jane" not in out and str(tmp_path) not in out and sys.prefix not in out
        assert "ROBOCACHE_CUDA_LIBRARY: PLUGIN/nowhere.so does not exist" in out
    lines = text.splitlines()
    assert code == json_code == 0 and all(": " in line for line in lines)
    assert {f"versions.robocache: {robocache.__version__}", "self_test.ok: True"} <= set(lines)
    report = json.loads(as_json)
    assert report["library"] == "LIBRARY/librobocache.so"
    assert report["environment"]["ROBOCACHE_NUM_THREADS"] == "2"
    assert report["environment"]["ROBOCACHE_LIBRARY"] == "a path"
    assert report["self_test"]["ok"] and report["versions"]["libc"].startswith("glibc ")
    assert {"threads", "memory_available", "model", "instructions"} <= report["cpu"].keys()


# ---- the fake plugin answers like CUDA's runtime ----

DRIVER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
int cuDriverGetVersion(int* version) { *version = atoi(getenv("FAKE_DRIVER")); return 0; }
int cuInit(unsigned flags) { return 100; }
int cuGetExportTable(const void** table, const void* id) { return 500; }
static int unknown(void) { return 999; }
int cuGetProcAddress_v2(const char* name, void** found, int version, unsigned long long flags, int* status) {
  *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  if (!*found) *found = (void*)unknown;
  if (status) *status = 0;
  return 0;
}
int cuGetProcAddress(const char* name, void** found, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, found, version, flags, 0);
}
"""
RUNTIME = """
#include <cuda_runtime_api.h>
#include <cstdio>
int main() {
  int version = -1, count = 0;
  cudaDriverGetVersion(&version);
  std::printf("%d %d", version, static_cast<int>(cudaGetDeviceCount(&count)));
}
"""


def cuda_folders():
    """Returns CUDA's folder and that of its static libraries, from the machine or from PyPI's packages."""
    compiler = os.environ.get("CUDACXX") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    for folder in (Path(compiler).resolve().parents[1], ROOT / ".venv/cuda/nvidia/cu13", Path("/usr/local/cuda-13.0")):
        for name in ("lib", "lib64"):
            if (folder / name / "libcudart_static.a").exists():
                return folder, folder / name
    return pytest.skip("NOT RUN: CUDA's static runtime is not here")


def test_cudas_runtime_answers_like_the_fake_plugin(tmp_path):
    folder, libraries = cuda_folders()
    (tmp_path / "driver.c").write_text(DRIVER)
    (tmp_path / "runtime.cpp").write_text(RUNTIME)
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "driver.c", "-o", tmp_path / "libcuda.so.1"], check=True)
    command = ["g++", f"-I{folder / 'include'}", tmp_path / "runtime.cpp", libraries / "libcudart_static.a"]
    subprocess.run([*command, "-ldl", "-lpthread", "-lrt", "-o", tmp_path / "runtime"], check=True)

    def run_runtime(**variables):
        result = subprocess.run([tmp_path / "runtime"], env={**os.environ, **variables}, capture_output=True, text=True)
        return result.stdout.split()

    with_driver = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert run_runtime(FAKE_DRIVER="12020", **with_driver) == ["12020", "35"]
    assert run_runtime(FAKE_DRIVER="13000", **with_driver) == ["13000", "100"]
    if not Path("/proc/driver/nvidia").exists():
        assert run_runtime() == ["0", "35"]
