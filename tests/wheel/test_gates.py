"""Each gate of a wheel finds its planted fault and names the file; the other gates pass."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "packaging"))

import components  # noqa: E402
import finish_wheel  # noqa: E402
import gates  # noqa: E402
import index_readme  # noqa: E402

CPU, CUDA = components.CPU, components.CUDA
EPOCH = 1_700_000_000
Files = dict[str, bytes]

pytestmark = pytest.mark.skipif(
    not Path("/usr/share/doc/zlib1g-dev").exists(),
    reason="NOT RUN: licences are read as Debian has them; apt-get install zlib1g-dev",
)

# The smallest library that passes: it has an export, calls libc and tvm-ffi, and lists what it was linked with, as the real ones do.
LIBRARY = r"""
#include <math.h>
#include <string.h>
__asm__(".symver log,log@GLIBC_2.2.5");
__asm__(".symver pow,pow@" POW);
__asm__(".symver sin,sin@GLIBC_2.2.5");
extern void TVMFFIEnvGetStream(void);
__attribute__((visibility("default"))) double EXPORTED(double x, void* to, const void* from) {
  memset(to, 0, 8);
  memcpy(to, from, 4);
  EXTRA_CALL;
  return pow(log(x), sin(x));
}
__attribute__((used)) static const char linked[] = LINKED;
"""
CPU_LINKED = "robocache-linked:libjpeg-turbo=2.1.5;zlib=1.2.13;nlohmann-json=3.11.2;libstdc++=12.2.0;zig=0.17.1;"
CUDA_LINKED = "robocache-linked:nvcc=13.0.88;cudart=13000;cccl=3000001;libstdc++=12.2.0;zig=0.17.1;"


def library(
    folder: Path,
    cuda: bool = False,
    *,
    options: Sequence[str] = (),
    declarations: str = "",
    call: str = "",
    pow_version: str = "2.2.5",
) -> bytes:
    source, out = folder / "library.c", folder / "library.so"
    source.write_text(f"#define EXTRA_CALL {call}\n{declarations}\n{LIBRARY}")
    exported, linked = ("robocache_cuda_one", CUDA_LINKED) if cuda else ("__tvm_ffi_one", CPU_LINKED)
    defines = [f"-DEXPORTED={exported}", f'-DLINKED="{linked}"', f'-DPOW="GLIBC_{pow_version}"']
    command = ["gcc", "-shared", "-fPIC", "-O1", "-fno-builtin", "-fvisibility=hidden", "-nostartfiles", *defines]
    subprocess.run([*command, str(source), "-o", str(out), "-lm", *options], check=True, cwd=folder)
    return out.read_bytes()


def make_wheel(folder: Path, cpu: bytes, cuda: bytes | None = None, machine: str = "x86_64") -> Path:
    """Makes a wheel of this checkout's modules and these libraries with finish_wheel."""
    built, dist = folder / f"robocache-1.2.3-py3-none-linux_{machine}.whl", folder / "dist"
    readme = index_readme.make_index_page((ROOT / "README.md").read_text(encoding="utf-8"))
    head = "Metadata-Version: 2.4\nName: robocache\nVersion: 1.2.3\nLicense-Expression: Apache-2.0\n"
    head += "Classifier: Environment :: GPU :: NVIDIA CUDA :: 13\nClassifier: Operating System :: POSIX :: Linux\n"
    head += "License-File: LICENSE\nLicense-File: NOTICE\nRequires-Dist: robocache[yaml]; extra == 'euroc'\n"
    info = "robocache-1.2.3.dist-info"
    files = {name: (ROOT / "python" / name).read_bytes() for name in gates.list_sources()}
    files |= {f"{info}/licenses/{name}": (ROOT / name).read_bytes() for name in ("LICENSE", "NOTICE")}
    files |= {f"{info}/METADATA": f"{head}\n{readme}".encode(), f"{info}/entry_points.txt": b""}
    files |= {f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: py3-none-linux_{machine}\n".encode(), CPU: cpu}
    if cuda:
        files[CUDA] = cuda
    finish_wheel.write(built, files, EPOCH)
    dist.mkdir()
    wheel = finish_wheel.finish(built, folder, dist, EPOCH)
    finish_wheel.write_sums(dist)
    return wheel


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toolkit")
    (folder / "EULA.txt").write_text("End User License Agreement")
    return folder


@pytest.fixture(scope="module")
def cpu_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cpu")
    return make_wheel(folder, library(folder))


def make_cuda_wheel(folder: Path, toolkit: Path, machine: str = "x86_64") -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(components, "find_toolkit", lambda build: toolkit)
        return make_wheel(folder, library(folder), library(folder, True), machine)


@pytest.fixture(scope="module")
def cuda_wheel(tmp_path_factory: pytest.TempPathFactory, toolkit: Path) -> Path:
    return make_cuda_wheel(tmp_path_factory.mktemp("cuda"), toolkit)


def copy_wheel(wheel: Path, folder: Path, change: Callable[[Files], None] = lambda files: None) -> Path:
    """Copies the wheel and the files beside it, applies `change`, and writes correct RECORD and SHA256SUMS."""
    files = finish_wheel.read(wheel)
    change(files)
    copy = folder / wheel.name
    finish_wheel.write(copy, files, EPOCH)
    shutil.copy(wheel.with_suffix(".cdx.json"), folder)
    finish_wheel.write_sums(folder)
    return copy


def faults_but_architectures(wheel: Path) -> dict[str, list[str]]:
    """Returns the faults except for architectures, which the small plugin lacks."""
    return {name: texts for name, texts in gates.find_faults(wheel).items() if name != "architectures"}


def info(files: Files, name: str) -> str:
    return next(path for path in files if path.endswith(f".dist-info/{name}"))


def test_a_good_wheel_passes_every_gate(cpu_wheel: Path, cuda_wheel: Path, tmp_path: Path) -> None:
    assert gates.find_faults(cpu_wheel) == {}
    assert faults_but_architectures(cuda_wheel) == {}
    assert gates.find_faults(copy_wheel(cpu_wheel, tmp_path)) == {}


def test_a_wheel_without_the_plugin_has_another_name(cpu_wheel: Path, cuda_wheel: Path) -> None:
    assert cpu_wheel.name == "robocache_cpu-1.2.3-py3-none-manylinux_2_28_x86_64.whl"
    assert cuda_wheel.name == "robocache-1.2.3-py3-none-manylinux_2_28_x86_64.whl"
    files = finish_wheel.read(cpu_wheel)
    metadata = files[info(files, "METADATA")].decode()
    assert "\nName: robocache-cpu\n" in metadata and "Requires-Dist: robocache-cpu[yaml]" in metadata
    assert re.findall("^Classifier: (.*)", metadata, re.MULTILINE) == ["Operating System :: POSIX :: Linux"]
    assert not [name for name, content in files.items() if b"pip install 'robocache[" in content]


def test_the_same_contents_are_the_same_bytes(cpu_wheel: Path, tmp_path: Path) -> None:
    second_wheel = make_wheel(tmp_path, finish_wheel.read(cpu_wheel)[CPU])
    assert second_wheel.read_bytes() == cpu_wheel.read_bytes()
    assert second_wheel.with_suffix(".cdx.json").read_bytes() == cpu_wheel.with_suffix(".cdx.json").read_bytes()


@pytest.mark.parametrize("second_build", ["same", "other"])
def test_the_sdist_builds_the_same_wheel(tmp_path: Path, second_build: str) -> None:
    # ./dev's function same_again builds the wheel a second time, from the sdist. ON: with CUDA.
    same_again = re.search(r"^same_again\(\) {\n.*?^}\n", (ROOT / "dev").read_text(), re.DOTALL | re.MULTILINE)
    assert same_again is not None
    wheel = tmp_path / "dist/robocache-1.2.3-py3-none-manylinux_2_28_x86_64.whl"
    wheel.parent.mkdir()
    wheel.write_text("same")
    (tmp_path / "robocache-1.2.3").mkdir()
    with tarfile.open(tmp_path / "dist/robocache-1.2.3.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "robocache-1.2.3", "robocache-1.2.3")
    script = f"""set -euo pipefail
        say() {{ echo "$*"; }}; die() {{ echo "$*" >&2; exit 1; }}
        shipped_wheel() {{ test -d "$4" && mkdir "$3" && echo -n {second_build} >"$3/{wheel.name}"; }}
        {same_again[0]}
        same_again ON {wheel}"""
    completed = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    if second_build == "same":
        assert completed.returncode == 0 and f"the sdist gives the same {wheel.name}" in completed.stdout, (
            completed.stderr
        )
    else:
        assert completed.returncode == 1 and completed.stderr.endswith(f"built from the sdist, differs from {wheel}\n")


# name: (the gate, arguments of library())
LIBRARY_FAULTS = {
    "RPATH": ("search_path", {"options": ["-Wl,-rpath,$ORIGIN/../../elsewhere"]}),
    "NEEDED libjpeg": ("needed", {"options": ["-Wl,--no-as-needed", "-ljpeg"]}),
    "torch's symbol": ("undefined", {"declarations": "extern void _ZN2at5emptyEv(void);", "call": "_ZN2at5emptyEv()"}),
    "no source defines it": (
        "undefined",
        {"declarations": "extern void _ZN9robocache4lostEv(void);", "call": "_ZN9robocache4lostEv()"},
    ),
    "a memcpy of its own": (
        "undefined",
        {"declarations": "void* memcpy(void* to, const void* from, unsigned long n) { return to; }"},
    ),
    "an exported stranger": (
        "exports",
        {"declarations": '__attribute__((visibility("default"))) int stranger(void) { return 1; }'},
    ),
    "GLIBC_2.29": ("glibc", {"pow_version": "2.29"}),
    "a build path": (
        "build_path",
        {"declarations": '__attribute__((used)) static const char path[] = "/home/builder/robocache/src/a.cpp";'},
    ),
}


@pytest.mark.parametrize("cuda", [False, True], ids=["cpu", "cuda"])
@pytest.mark.parametrize("fault", LIBRARY_FAULTS)
def test_faults_of_libraries(cpu_wheel: Path, cuda_wheel: Path, tmp_path: Path, fault: str, cuda: bool) -> None:
    gate, arguments = LIBRARY_FAULTS[fault]
    faulty_library = library(tmp_path, cuda, **arguments)
    (tmp_path / "dist").mkdir()
    path = CUDA if cuda else CPU
    wheel = copy_wheel(
        cuda_wheel if cuda else cpu_wheel, tmp_path / "dist", lambda files: files.update({path: faulty_library})
    )
    faults = faults_but_architectures(wheel)
    assert list(faults) == [gate]
    assert all(text.startswith(f"{path}: ") for text in faults[gate])


def replace_in(files: Files, name: str, old: bytes, new: bytes) -> None:
    assert old in files[name]
    files[name] = files[name].replace(old, new)


def grow(files: Files) -> None:
    files[CPU] += os.urandom(6_000_000 - len(files[CPU]))


# name: (the gate, the file that it names, a function that plants the fault)
FILE_FAULTS: dict[str, tuple[str, str, Callable[[Files], None]]] = {
    "a stray module": ("strays", "robocache/left_over.py", lambda f: f.update({"robocache/left_over.py": b""})),
    "a stray folder": ("strays", "tests/conftest.py", lambda f: f.update({"tests/conftest.py": b""})),
    "the plugin in the CPU wheel": ("strays", CUDA, lambda f: f.update({CUDA: b"\x7fELF"})),
    "a missing module": ("missing", "robocache/loader.py", lambda f: f.pop("robocache/loader.py")),
    "missing data": ("missing", "robocache/self_test.json", lambda f: f.pop("robocache/self_test.json")),
    "no entry points": ("missing", "entry_points.txt", lambda f: f.pop(info(f, "entry_points.txt"))),
    "1 MB over the limit": ("size", CPU, grow),
    "no SBOM": ("bill_of_materials", "sboms/", lambda f: f.pop(info(f, "sboms/robocache-cpu.cdx.json"))),
    "an SBOM of a false version": (
        "bill_of_materials",
        "zlib",
        lambda f: replace_in(f, info(f, "sboms/robocache-cpu.cdx.json"), b'"1.2.13"', b'"1.3.1"'),
    ),
    "NOTICE without nlohmann-json": (
        "licences",
        "licenses/NOTICE",
        lambda f: replace_in(f, info(f, "licenses/NOTICE"), b"nlohmann-json", b"json"),
    ),
    "a licence's text missing": (
        "licences",
        "third-party/zlib.txt",
        lambda f: f.pop(info(f, "licenses/third-party/zlib.txt")),
    ),
    "a licence not in the expression": (
        "licences",
        "METADATA",
        lambda f: replace_in(f, info(f, "METADATA"), b" AND IJG", b""),
    ),
    "a dead link": (
        "metadata",
        "METADATA",
        lambda f: replace_in(f, info(f, "METADATA"), b"\n# ", b"\n[x](docs/x.md)\n# "),
    ),
    "a classifier for GPUs in the CPU wheel": (
        "metadata",
        "Environment :: GPU",
        lambda f: replace_in(f, info(f, "METADATA"), b"\nLicense-", b"\nClassifier: Environment :: GPU\nLicense-"),
    ),
    "a command of a checkout": (
        "metadata",
        "./dev",
        lambda f: replace_in(f, info(f, "METADATA"), b"\n# ", b"\n`./dev test`\n# "),
    ),
    "another wheel's install line": (
        "metadata",
        "does not say pip install 'robocache-cpu[",
        lambda f: replace_in(f, info(f, "METADATA"), b"pip install 'robocache-cpu[", b"pip install 'robocache["),
    ),
    "another version": ("metadata", "METADATA", lambda f: replace_in(f, info(f, "METADATA"), b"1.2.3", b"1.2.4")),
    "another tag": ("metadata", "WHEEL", lambda f: replace_in(f, info(f, "WHEEL"), b"manylinux_2_28", b"linux")),
}


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_faults_of_files(cpu_wheel: Path, tmp_path: Path, fault: str) -> None:
    gate, name, plant = FILE_FAULTS[fault]
    faults = gates.find_faults(copy_wheel(cpu_wheel, tmp_path, plant))
    assert list(faults) == [gate]
    assert any(name in text for text in faults[gate])


def test_a_missing_plugin(cuda_wheel: Path, tmp_path: Path) -> None:
    faults = gates.find_faults(copy_wheel(cuda_wheel, tmp_path, lambda files: files.pop(CUDA)))
    assert faults == {"missing": [f"{CUDA}: missing"]}


def test_libraries_of_another_processor(toolkit: Path, tmp_path: Path) -> None:
    wheel = make_cuda_wheel(tmp_path, toolkit, "aarch64")
    assert wheel.name == "robocache-1.2.3-py3-none-manylinux_2_28_aarch64.whl"
    assert faults_but_architectures(wheel) == {
        "processor": [f"{path}: is for Advanced Micro Devices X86-64; the wheel is for aarch64" for path in (CPU, CUDA)]
    }


def test_a_repeated_file(cpu_wheel: Path, tmp_path: Path) -> None:
    wheel = copy_wheel(cpu_wheel, tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("robocache/loader.py", archive.read("robocache/loader.py"))
    finish_wheel.write_sums(tmp_path)
    assert gates.find_faults(wheel) == {"strays": ["robocache/loader.py: is in the wheel 2 times"]}


@pytest.mark.parametrize(
    "name, component, version", [("robocache-cpu", "zlib", "1.2.13"), ("robocache", "cudart", "13.0")]
)
def test_an_sbom_without_a_component(
    cpu_wheel: Path, cuda_wheel: Path, tmp_path: Path, name: str, component: str, version: str
) -> None:
    def remove_component(files: Files) -> None:
        path = info(files, f"sboms/{name}.cdx.json")
        bill = json.loads(files[path])
        bill["components"] = [part for part in bill["components"] if part["name"] != component]
        files[path] = json.dumps(bill).encode()

    wheel = copy_wheel(cpu_wheel if name == "robocache-cpu" else cuda_wheel, tmp_path, remove_component)
    files = finish_wheel.read(wheel)
    wheel.with_suffix(".cdx.json").write_bytes(files[info(files, f"sboms/{name}.cdx.json")])
    finish_wheel.write_sums(tmp_path)
    faults = faults_but_architectures(wheel)
    assert list(faults) == ["bill_of_materials"]
    assert f"lists {component} not at all; linked is {version}" in faults["bill_of_materials"][0]


def test_a_changed_byte(cpu_wheel: Path, tmp_path: Path) -> None:
    # First a file differs from RECORD, then the wheel differs from SHA256SUMS.
    wheel = copy_wheel(cpu_wheel, tmp_path)
    old_files = finish_wheel.read(wheel)
    name = info(old_files, "RECORD")
    files = {**old_files, "robocache/__init__.py": old_files["robocache/__init__.py"] + b" "}
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, old_files[name] if path == name else content)
    finish_wheel.write_sums(tmp_path)
    assert gates.find_faults(wheel) == {"unchanged": ["robocache/__init__.py: is not what RECORD says"]}

    wheel = copy_wheel(cpu_wheel, tmp_path)
    sums = tmp_path / "SHA256SUMS"
    sums.write_text(re.sub("^.", lambda c: "0" if c[0] != "0" else "1", sums.read_text(), flags=re.MULTILINE))
    assert gates.find_faults(wheel) == {"unchanged": [f"{wheel.name}: SHA256SUMS beside it does not have its hash"]}


def test_an_sdist_without_a_header_and_with_an_unknown_file(tmp_path: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:
        pytest.skip("NOT RUN: git does not know this folder")
    header = "src/robocache/core/dtype.hpp"
    names = {name for name in tracked if not name.startswith(gates.NOT_IN_SDIST)} | {"PKG-INFO"}
    for members, fault in (
        (names, []),
        (names - {header}, [f"{header}: missing"]),
        (names | {"build/left.o"}, ["build/left.o: is not the project's"]),
    ):
        with tarfile.open(tmp_path / "robocache-1.2.3.tar.gz", "w:gz") as archive:
            for name in members:
                archive.addfile(tarfile.TarInfo(f"robocache-1.2.3/{name}"))
        faults = gates.find_faults(tmp_path / "robocache-1.2.3.tar.gz")
        assert faults == ({"contents_of_sdist": fault} if fault else {})


def cuobjdump() -> str | None:
    for folder in (Path(p) for p in sys.path):
        if (path := folder / "nvidia/cu13/bin/cuobjdump").exists():
            return str(path)
    return shutil.which("cuobjdump")


@pytest.mark.skipif(not cuobjdump() or not shutil.which("nvcc"), reason="NOT RUN: needs nvcc and cuobjdump")
@pytest.mark.parametrize("machine, numbers", [("x86_64", (80, 90, 100, 120)), ("aarch64", (90, 100, 110, 120))])
def test_a_missing_architecture(
    toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, numbers: tuple[int, ...]
) -> None:
    monkeypatch.setenv("CUOBJDUMP", str(cuobjdump()))
    (tmp_path / "kernel.cu").write_text("__global__ void kernel(int* x) { *x = 1; }\n")
    codes = {f"sm_{n}": f"-gencode=arch=compute_{n},code=sm_{n}" for n in numbers}
    codes["compute_90"] = "-gencode=arch=compute_90,code=compute_90"
    nvcc = ["nvcc", "-shared", "-Xcompiler=-fPIC", "kernel.cu", "-o", "k.so"]
    for folder in ("good", "copy"):
        (tmp_path / folder).mkdir()
    good_wheel = make_cuda_wheel(tmp_path / "good", toolkit, machine)
    for left_out in ([], ["compute_90", f"sm_{numbers[2]}"]):
        options = [option for name, option in codes.items() if name not in left_out]
        subprocess.run([*nvcc, *options], check=True, cwd=tmp_path)
        plugin = (tmp_path / "k.so").read_bytes()
        wheel = copy_wheel(good_wheel, tmp_path / "copy", lambda files, plugin=plugin: files.update({CUDA: plugin}))
        faults = list(gates.architectures(gates.Wheel(wheel, tmp_path)))
        assert faults == [f"{CUDA}: has no code for {name}" for name in left_out]
