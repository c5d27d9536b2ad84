"""The shipped CPU library under glibc 2.31, in a root of Debian 11. `./dev release` runs it, after `./dev wheel`."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import tvm_ffi

import robocache

ROOT = Path(__file__).parents[2]

# Debian 11 has Python 3.9, which the package does not support, so the library's C functions are called. A call without
# arguments raises in C++ and returns -1, if exceptions work.
CALLS = """
import ctypes, platform
ctypes.CDLL("/tmp/libtvm_ffi.so", ctypes.RTLD_GLOBAL)
library = ctypes.CDLL("/tmp/librobocache.so", 2)
result = (ctypes.c_char * 16)()
print(platform.libc_ver()[1], getattr(library, "__tvm_ffi_cuda_plugin_loaded")(None, None, 0, result),
      getattr(library, "__tvm_ffi_topic_sink")(None, None, 0, result))
"""


@pytest.fixture(scope="module")
def run_in_debian11(tmp_path_factory):
    """A function that calls a library in Debian 11."""
    if not shutil.which("debootstrap") or os.geteuid() != 0:
        pytest.skip("NOT RUN: needs root and debootstrap")
    debian = tmp_path_factory.mktemp("bullseye") / "debian"
    subprocess.run(["debootstrap", "--variant=minbase", "--include=python3", "bullseye", debian], check=True)
    shutil.copy(next(Path(tvm_ffi.__file__).parent.rglob("libtvm_ffi.so")), debian / "tmp")

    def call(library):
        (debian / "tmp/librobocache.so").write_bytes(library)
        return subprocess.run(["chroot", debian, "python3", "-c", CALLS], capture_output=True, text=True)

    return call


def test_the_library_loads_and_raises(run_in_debian11):
    wheels = sorted((ROOT / "dist").glob("robocache_cpu-*_x86_64.whl"), key=os.path.getmtime)
    if not wheels:
        pytest.skip("NOT RUN: needs the wheel of ./dev wheel")
    completed = run_in_debian11(zipfile.ZipFile(wheels[-1]).read("robocache/lib/librobocache.so"))
    assert completed.stdout.split() == ["2.31", "0", "-1"], completed.stderr


def test_the_library_of_a_newer_debian_does_not_load(run_in_debian11):
    completed = run_in_debian11(Path(robocache.check_installation()["library"]).read_bytes())
    assert completed.returncode != 0 and "version `GLIBC_2.3" in completed.stderr
