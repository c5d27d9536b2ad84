"""The shipped CPU library under glibc 2.31, in a root of Debian 11. `./dev release` runs it, after `./dev wheel`."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import tvm_ffi

ROOT = Path(__file__).parents[2]

# Debian 11 has Python 3.9, which the package is not for: the library is called by its C names. A call without arguments
# raises in C++ and comes back as -1, if the exception finds its way.
CALLS = """
import ctypes, platform
ctypes.CDLL("/tmp/libtvm_ffi.so", ctypes.RTLD_GLOBAL)
library = ctypes.CDLL("/tmp/librobocache.so", 2)
result = (ctypes.c_char * 16)()
print(platform.libc_ver()[1], getattr(library, "__tvm_ffi_cuda_plugin_loaded")(None, None, 0, result),
      getattr(library, "__tvm_ffi_topic_sink")(None, None, 0, result))
"""


def test_the_library_loads_answers_and_raises(tmp_path):
    wheels = sorted((ROOT / "dist").glob("robocache_cpu-*.whl"))
    if not wheels or not shutil.which("debootstrap") or os.geteuid() != 0:
        pytest.skip("NOT RUN: needs root, debootstrap and the wheel of ./dev wheel")
    debian = tmp_path / "debian"
    subprocess.run(["debootstrap", "--variant=minbase", "--include=python3", "bullseye", debian], check=True)
    (debian / "tmp/librobocache.so").write_bytes(zipfile.ZipFile(wheels[-1]).read("robocache/lib/librobocache.so"))
    shutil.copy(next(Path(tvm_ffi.__file__).parent.rglob("libtvm_ffi.so")), debian / "tmp")
    done = subprocess.run(["chroot", debian, "python3", "-c", CALLS], capture_output=True, text=True)
    assert done.stdout.split() == ["2.31", "0", "-1"], done.stderr
