"""Other people's code in a wheel's libraries. The libraries state the versions. The licences and their texts come from the
packages that the build used."""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

CPU, CUDA = "robocache/lib/librobocache.so", "robocache/lib/librobocache_cuda.so"
GPL3 = Path("/usr/share/common-licenses/GPL-3")


@dataclass(frozen=True)
class Component:
    name: str
    licence: str  # an SPDX expression
    package: str  # Debian's package, or NVIDIA's on PyPI
    library: str  # the library that contains it
    stated_as: str  # the component's name in the text of linked.cpp


_GCC = "GPL-3.0-or-later WITH GCC-exception-3.1"
_NVIDIA = "LicenseRef-NVIDIA-Proprietary"
COMPONENTS = (
    Component("libjpeg-turbo", "BSD-3-Clause AND IJG AND Zlib", "libjpeg62-turbo-dev", CPU, "libjpeg-turbo"),
    Component("zlib", "Zlib", "zlib1g-dev", CPU, "zlib"),
    Component("nlohmann-json", "MIT", "nlohmann-json3-dev", CPU, "nlohmann-json"),
    Component("libstdc++", _GCC, "libstdc++-12-dev", CPU, "libstdc++"),
    Component("libgcc", _GCC, "libgcc-12-dev", CPU, "libstdc++"),
    Component("cudart", _NVIDIA, "nvidia-cuda-runtime", CUDA, "cudart"),
    Component("libdevice", _NVIDIA, "nvidia-nvvm", CUDA, "nvcc"),
    Component("CCCL", "Apache-2.0 WITH LLVM-exception AND BSD-3-Clause AND BSL-1.0", "nvidia-cuda-cccl", CUDA, "cccl"),
)
OWN_LICENCE = "Apache-2.0"


def read_linked_versions(library: bytes) -> dict[str, str]:
    """Returns the versions of components that a library states: {"zlib": "1.2.13", ...}."""
    texts = set(re.findall(rb"robocache-linked:([\x21-\x7e]+)", library))
    if len(texts) != 1:
        raise ValueError(f"states {len(texts)} times what is linked into it, not once")
    versions = dict(pair.split("=") for pair in texts.pop().decode().strip(";").split(";"))
    # NVIDIA's headers state versions as numbers: 13000 is 13.0, 3000001 is 3.0.1.
    for name, units in (("cudart", (1000, 10)), ("cccl", (1_000_000, 100, 1))):
        if name in versions:
            rest, numbers = int(versions[name]), []
            for unit in units:
                numbers.append(str(rest // unit))
                rest %= unit
            versions[name] = ".".join(numbers)
    return versions


def read_versions(libraries: Mapping[str, bytes]) -> dict[Component, str]:
    """Returns the version of each component of a wheel, from its libraries {path: bytes}."""
    versions_by_library = {path: read_linked_versions(library) for path, library in libraries.items()}
    return {c: versions_by_library[c.library][c.stated_as] for c in COMPONENTS if c.library in versions_by_library}


def make_licence_expression(components: Mapping[Component, str]) -> str:
    parts = {part for component in components for part in component.licence.split(" AND ")}
    return " AND ".join([OWN_LICENCE, *sorted(parts - {OWN_LICENCE})])


def make_purl(component: Component, toolkit: Path | None) -> str | None:
    """Returns the URL of the package that the build took the component from, for scanners; None for NVIDIA's own toolkit."""
    if component.library == CPU:
        command = ["dpkg-query", "-W", "-f", "${Version}", component.package]
        version = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return f"pkg:deb/debian/{component.package}@{quote(version, safe='~')}"
    folder = find_dist_info(component, toolkit)
    return folder and f"pkg:pypi/{component.package}@{folder.name.split('-')[1].removesuffix('.dist')}"


def find_dist_info(component: Component, toolkit: Path | None) -> Path | None:
    """Returns the folder of the PyPI package that this part of CUDA was installed from, or None."""
    assert toolkit is not None
    for parent in (toolkit / "dist-info", *toolkit.parents[:3]):
        for path in parent.glob(f"{component.package.replace('-', '_')}-*.dist-info"):
            return path
    return None


def make_bill(
    name: str,
    version: str,
    components: Mapping[Component, str],
    purls: Mapping[Component, str | None],
    tools: Mapping[str, str],
    time: str,
) -> str:
    """Returns the CycloneDX 1.6 document of a wheel."""
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "tools": {"components": [{"type": "application", "name": n, "version": v} for n, v in tools.items()]},
            "component": {
                "type": "library",
                "bom-ref": name,
                "name": name,
                "version": version,
                "licenses": [{"expression": OWN_LICENCE}],
                "purl": f"pkg:pypi/{name}@{version}",
            },
        },
        "components": [
            {
                "type": "library",
                "bom-ref": component.name,
                "name": component.name,
                "version": component_version,
                "licenses": [{"expression": component.licence}],
                **({"purl": purls[component]} if purls[component] else {}),
                "properties": [{"name": "robocache:library", "value": component.library}],
            }
            for component, component_version in components.items()
        ],
        "dependencies": [{"ref": name, "dependsOn": [component.name for component in components]}],
    }
    return json.dumps(document, indent=1) + "\n"


def read_licence(component: Component, toolkit: Path | None) -> str:
    """Returns the licence from the component's package. `toolkit` is CUDA's folder."""
    if component.library == CPU:
        text = Path("/usr/share/doc", component.package, "copyright").read_text(encoding="utf-8")
        return text + (GPL3.read_text(encoding="utf-8") if component.licence == _GCC else "")
    folder = find_dist_info(component, toolkit)
    path = next(folder.rglob("License.txt")) if folder else toolkit / "EULA.txt"
    return path.read_text(encoding="utf-8")


def find_toolkit(build: Path) -> Path | None:
    """Returns the CUDA toolkit with which a build folder was compiled."""
    for path in build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"):
        root = re.search(r'CMAKE_CUDA_COMPILER_TOOLKIT_ROOT "(.+)"', path.read_text(encoding="utf-8"))
        return Path(root[1]).resolve() if root else None
    return None


def read_compiler_versions(versions: Mapping[str, str]) -> dict[str, str]:
    gcc = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    return {"g++": gcc, **{tool: versions[tool] for tool in ("nvcc", "zig") if tool in versions}}
