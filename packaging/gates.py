"""The gates of a wheel. A gate is a function that yields the faults of a wheel, with their files.

python packaging/gates.py dist/*.whl
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.parser import BytesParser
from functools import cached_property
from pathlib import Path

import components
from components import CPU, CUDA

ROOT = Path(__file__).parents[1]
NEWEST_GLIBC = (2, 28)
SYSTEM_LIBRARIES = r"lib(c|m|dl|pthread|rt)\.so\.\d|ld-linux-(x86-64|aarch64)\.so\.\d"
PROCESSORS = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}  # as readelf names them
ARCHITECTURES = {
    "x86_64": {"sm_80", "sm_90", "sm_100", "sm_120", "compute_90"},
    "aarch64": {"sm_90", "sm_100", "sm_110", "sm_120", "compute_90"},
}
MEGABYTES = {"robocache": 20.0, "robocache_cpu": 5.0}
# The functions that libc must define: results depend on the bits of log, pow and sin, and Zig's own memcpy may be slow.
LIBC_KEEPS = {CPU: {"memcpy", "memset", "log", "pow", "sin"}, CUDA: {"memcpy"}}
EXPORTED = {CPU: r"__tvm_ffi_\w+", CUDA: r"robocache_cuda_\w+"}
_WEAK = r"__cxa_pure_virtual|_ITM_\w+|__gmon_start__"  # symbols that may stay undefined
IMPORTED = {CPU: rf"TVMFFI\w+|{_WEAK}", CUDA: _WEAK}
BUILD_PATH = re.compile(rb"(?<![\w./-])/(?:home|root|work|tmp|build|builds|src|usr/src|usr/local|mnt|opt)/[\x21-\x7e]+")
GATES: list[Callable[["Wheel"], Iterator[str]]] = []


def gate(function: Callable[["Wheel"], Iterator[str]]) -> Callable[["Wheel"], Iterator[str]]:
    GATES.append(function)
    return function


@dataclass(frozen=True)
class Symbol:
    name: str
    version: str  # "" without a version
    defined: bool


class Wheel:
    def __init__(self, path: Path, folder: Path):
        self.path = path
        self.distribution, self.version, self.tag = re.fullmatch(r"([^-]+)-([^-]+)-(.+)\.whl", path.name).groups()
        self.machine = "aarch64" if self.tag.endswith("aarch64") else "x86_64"
        with zipfile.ZipFile(path) as archive:
            self.names = [name for name in archive.namelist() if not name.endswith("/")]
            self.files = {name: archive.read(name) for name in self.names}
        self.expected_libraries = [CPU] if self.distribution == "robocache_cpu" else [CPU, CUDA]
        self.libraries = [path for path in self.expected_libraries if path in self.files]
        self.dist_info = f"{self.distribution}-{self.version}.dist-info"
        self.folder = folder
        for library in self.libraries:
            (folder / Path(library).name).write_bytes(self.files[library])

    def readelf(self, library: str, *options: str) -> str:
        command = ["readelf", "-W", *options, str(self.folder / Path(library).name)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def symbols(self, library: str) -> list[Symbol]:
        symbols = []
        for fields in map(str.split, self.readelf(library, "--dyn-syms").splitlines()):
            if len(fields) >= 8 and fields[4] in ("GLOBAL", "WEAK"):
                name, _, version = fields[7].replace("@@", "@").partition("@")
                symbols.append(Symbol(name, version, fields[6] != "UND"))
        return symbols

    @cached_property
    def metadata(self) -> dict[str, list[str]]:
        message = BytesParser().parsebytes(self.files.get(f"{self.dist_info}/METADATA", b""))
        return {key: message.get_all(key, []) for key in message}

    @property
    def sbom_name(self) -> str:
        return f"{self.dist_info}/sboms/{self.distribution.replace('_', '-')}.cdx.json"


@gate
def search_path(wheel: Wheel) -> Iterator[str]:
    """No library has an RPATH, so that the loader finds libraries only in the package."""
    for library in wheel.libraries:
        for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", wheel.readelf(library, "-d")):
            yield f"{library}: searches {path}"


@gate
def needed(wheel: Wheel) -> Iterator[str]:
    for library in wheel.libraries:
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", wheel.readelf(library, "-d")):
            if not re.fullmatch(SYSTEM_LIBRARIES, name):
                yield f"{library}: needs {name}, which is not libc's"


@gate
def processor(wheel: Wheel) -> Iterator[str]:
    for library in wheel.libraries:
        machine = re.findall(r"^ +Machine: +(.+)$", wheel.readelf(library, "-h"), re.MULTILINE)
        if machine != [PROCESSORS[wheel.machine]]:
            yield f"{library}: is for {', '.join(machine)}; the wheel is for {wheel.machine}"


@gate
def undefined(wheel: Wheel) -> Iterator[str]:
    """Only libc and tvm-ffi define the undefined symbols. No such symbol is torch's or our own."""
    for library in wheel.libraries:
        imported = [symbol for symbol in wheel.symbols(library) if not symbol.defined]
        for symbol in imported:
            if not symbol.version.startswith("GLIBC_") and not re.fullmatch(IMPORTED[library], symbol.name):
                yield f"{library}: {symbol.name} is undefined, and is not libc's or tvm-ffi's"
        for name in sorted(LIBC_KEEPS[library] - {symbol.name for symbol in imported}):
            yield f"{library}: has its own {name} instead of libc's"


@gate
def exports(wheel: Wheel) -> Iterator[str]:
    for library in wheel.libraries:
        exported = [symbol.name for symbol in wheel.symbols(library) if symbol.defined]
        if not any(re.fullmatch(EXPORTED[library], name) for name in exported):
            yield f"{library}: exports nothing of its own"
        for name in exported:
            if not re.fullmatch(EXPORTED[library], name):
                yield f"{library}: exports {name}"


@gate
def glibc(wheel: Wheel) -> Iterator[str]:
    for library in wheel.libraries:
        for symbol in wheel.symbols(library):
            needed_version = re.fullmatch(r"GLIBC_([\d.]+)", symbol.version)
            if needed_version and tuple(map(int, needed_version[1].split("."))) > NEWEST_GLIBC:
                yield f"{library}: {symbol.name} needs glibc {needed_version[1]}; the wheel is for 2.28"


def list_sources() -> set[str]:
    """Returns the files of the package's folder that git tracks, or all files where it tracks none (in an sdist)."""
    tracked = subprocess.run(["git", "ls-files", "python/robocache"], cwd=ROOT, capture_output=True, text=True).stdout
    paths = tracked.split() or [str(path.relative_to(ROOT)) for path in (ROOT / "python/robocache").rglob("*.*")]
    return {path.removeprefix("python/") for path in paths if "__pycache__" not in path}


def list_info_files(wheel: Wheel) -> set[str]:
    names = ["METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE"]
    texts = [
        f"licenses/third-party/{c.name}.txt" for c in components.COMPONENTS if c.library in wheel.expected_libraries
    ]
    return {f"{wheel.dist_info}/{name}" for name in (*names, *texts)} | {wheel.sbom_name}


@gate
def missing(wheel: Wheel) -> Iterator[str]:
    for name in sorted((list_sources() | set(wheel.expected_libraries) | list_info_files(wheel)) - set(wheel.names)):
        if "/licenses/" not in name and "/sboms/" not in name:  # licences and SBOMs have their own gates
            yield f"{name}: missing"


@gate
def strays(wheel: Wheel) -> Iterator[str]:
    for name in sorted(set(wheel.names) - list_sources() - set(wheel.expected_libraries) - list_info_files(wheel)):
        yield f"{name}: does not belong in a wheel"
    for name in sorted({name for name in wheel.names if wheel.names.count(name) > 1}):
        yield f"{name}: is in the wheel {wheel.names.count(name)} times"


@gate
def architectures(wheel: Wheel) -> Iterator[str]:
    if CUDA not in wheel.libraries:
        return
    cuobjdump = os.environ.get("CUOBJDUMP") or shutil.which("cuobjdump")
    if cuobjdump is None:
        yield f"{CUDA}: not checked: found no cuobjdump; set CUOBJDUMP to its path"
        return
    library = str(wheel.folder / Path(CUDA).name)
    listing = subprocess.run([cuobjdump, "--list-elf", "--list-ptx", library], capture_output=True, text=True).stdout
    architecture_names = set(re.findall(r"\.(sm_\d+)\.cubin", listing))
    architecture_names |= {f"compute_{number}" for number in re.findall(r"\.sm_(\d+)\.ptx", listing)}
    for name in sorted(ARCHITECTURES[wheel.machine] - architecture_names):
        yield f"{CUDA}: has no code for {name}"


@gate
def size(wheel: Wheel) -> Iterator[str]:
    megabytes, limit = wheel.path.stat().st_size / 1e6, MEGABYTES[wheel.distribution]
    if megabytes > limit:
        largest = max(wheel.files, key=lambda name: len(wheel.files[name]))
        yield f"{wheel.path.name}: has {megabytes:.1f} MB, {limit} at most; its largest file is {largest}"


@gate
def build_path(wheel: Wheel) -> Iterator[str]:
    for library in wheel.libraries:
        for path in sorted(set(BUILD_PATH.findall(wheel.files[library]))):
            yield f"{library}: names {path.decode()}, a path of the machine that built it"


@gate
def bill_of_materials(wheel: Wheel) -> Iterator[str]:
    """The SBOM lists each component with the version that the library states. A copy is beside the wheel."""
    name = wheel.sbom_name
    if name not in wheel.files:
        yield f"{name}: missing"
        return
    bill = json.loads(wheel.files[name])
    if (bill.get("bomFormat"), bill.get("specVersion")) != ("CycloneDX", "1.6"):
        yield f"{name}: is not CycloneDX 1.6"
    listed_versions = {part["name"]: part["version"] for part in bill["components"]}
    linked_versions = components.read_versions({path: wheel.files[path] for path in wheel.libraries})
    expected = {component.name: version for component, version in linked_versions.items()}
    absent_components = {
        c.name
        for c in components.COMPONENTS
        if c.library in wheel.expected_libraries and c.library not in wheel.libraries
    }
    for part in sorted((listed_versions.keys() | expected.keys()) - absent_components):
        if listed_versions.get(part) != expected.get(part):
            yield f"{name}: lists {part} {listed_versions.get(part, 'not at all')}; linked is {expected.get(part, 'none')}"
    copy_beside = wheel.path.with_suffix(".cdx.json")
    if not copy_beside.exists() or copy_beside.read_bytes() != wheel.files[name]:
        yield f"{copy_beside.name}: missing, or not a copy of the SBOM in the wheel"


@gate
def licences(wheel: Wheel) -> Iterator[str]:
    """The licence of each component is in the expression, its text is in the wheel, and the component's name is in NOTICE."""
    expected_components = [
        component for component in components.COMPONENTS if component.library in wheel.expected_libraries
    ]
    expected = components.make_licence_expression(dict.fromkeys(expected_components, ""))
    if wheel.metadata.get("License-Expression") != [expected]:
        yield f"{wheel.dist_info}/METADATA: License-Expression is not {expected}"
    notice = wheel.files.get(f"{wheel.dist_info}/licenses/NOTICE", b"").decode()
    for component in expected_components:
        if component.name not in notice:
            yield f"{wheel.dist_info}/licenses/NOTICE: does not name {component.name}"
        text = f"third-party/{component.name}.txt"
        if not wheel.files.get(f"{wheel.dist_info}/licenses/{text}"):
            yield f"{wheel.dist_info}/licenses/{text}: missing"
    for listed in wheel.metadata.get("License-File", []):
        if f"{wheel.dist_info}/licenses/{listed}" not in wheel.files:
            yield f"{wheel.dist_info}/licenses/{listed}: missing, though METADATA names it"
    for file in ("LICENSE", "NOTICE"):
        if wheel.files.get(f"{wheel.dist_info}/licenses/{file}") != (ROOT / file).read_bytes():
            yield f"{wheel.dist_info}/licenses/{file}: is not the project's"


@gate
def metadata(wheel: Wheel) -> Iterator[str]:
    name = f"{wheel.dist_info}/METADATA"
    for key, expected in (("Name", wheel.distribution.replace("_", "-")), ("Version", wheel.version)):
        if wheel.metadata.get(key) != [expected]:
            yield f"{name}: {key} is {wheel.metadata.get(key)}; the file's name says {expected}"
    if not re.fullmatch(r"py3-none-manylinux_2_28_(x86_64|aarch64)", wheel.tag):
        yield f"{wheel.path.name}: is tagged {wheel.tag}"
    if f"\nTag: {wheel.tag}\n" not in wheel.files.get(f"{wheel.dist_info}/WHEEL", b"").decode():
        yield f"{wheel.dist_info}/WHEEL: has another tag than the file's name"
    for classifier in wheel.metadata.get("Classifier", []):
        if "GPU" in classifier and CUDA not in wheel.expected_libraries:
            yield f"{name}: has the classifier {classifier}, but the wheel has no CUDA"
    text = wheel.files.get(name, b"").decode()
    for link in re.findall(r"\]\((?![a-z]+:)([^()]*)\)", text):
        yield f"{name}: the link {link} leads nowhere on an index"
    for command in re.findall(r"\./dev\b|pip install '?\.|python -m examples\b", text):
        yield f"{name}: {command} needs a checkout, which a reader of an index does not have"
    install = f"pip install '{wheel.distribution.replace('_', '-')}["
    if install not in text:
        yield f"{name}: does not say {install}...]'"


@gate
def unchanged(wheel: Wheel) -> Iterator[str]:
    """RECORD has the hash of each file. SHA256SUMS beside the wheel has the hash of the wheel."""
    name = f"{wheel.dist_info}/RECORD"
    recorded = dict(line.rsplit(",", 2)[:2] for line in wheel.files.get(name, b"").decode().splitlines())
    for path in sorted(set(wheel.names) | recorded.keys()):
        digest = hashlib.sha256(wheel.files.get(path, b"")).digest()
        expected = "" if path == name else f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        if recorded.get(path) != expected:
            yield f"{path}: is not what RECORD says"
    sums = wheel.path.with_name("SHA256SUMS")
    line = f"{hashlib.sha256(wheel.path.read_bytes()).hexdigest()}  {wheel.path.name}"
    if not sums.exists() or line not in sums.read_text(encoding="utf-8").splitlines():
        yield f"{wheel.path.name}: SHA256SUMS beside it does not have its hash"


# ---- the sdist -------------------------------------------------------------------------------------------------------
NOT_IN_SDIST = (".ci/", "bench/results/")


def contents_of_sdist(path: Path) -> Iterator[str]:
    """The sdist has every file that git tracks, except NOT_IN_SDIST, and no other file except its metadata."""
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {name for name in tracked.splitlines() if not name.startswith(NOT_IN_SDIST)} | {"PKG-INFO"}
    for name in sorted(expected - names):
        yield f"{name}: missing"
    for name in sorted(names - expected):
        yield f"{name}: is not the project's"


def find_faults(path: Path) -> dict[str, list[str]]:
    """Returns {gate: its faults} for the gates with faults."""
    if path.suffix == ".gz":
        faults_by_gate = {"contents_of_sdist": list(contents_of_sdist(path))}
    else:
        with tempfile.TemporaryDirectory() as folder:
            wheel = Wheel(path, Path(folder))
            faults_by_gate = {function.__name__: list(function(wheel)) for function in GATES}
    return {name: texts for name, texts in faults_by_gate.items() if texts}


def main() -> int:
    failed = False
    for path in map(Path, sys.argv[1:]):
        faults_by_gate = find_faults(path)
        failed = failed or bool(faults_by_gate)
        print(f"{path.name}: {'refused by ' + ', '.join(faults_by_gate) if faults_by_gate else 'every gate passed'}")
        for name, texts in faults_by_gate.items():
            print(*(f"  {name}: {text}" for text in texts), sep="\n")
    return 1 if failed or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
