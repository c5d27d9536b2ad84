"""Makes the shipped wheel from the wheel that pip built. The script sets the tag and the name, adds the SBOM and the licences
of linked components, and gives equal contents equal bytes.

    python packaging/finish_wheel.py BUILT.whl BUILD_FOLDER OUT_FOLDER

A wheel without the CUDA plugin is called robocache-cpu. An index has only one wheel for a name, version and platform, and
`pip install robocache` must not install one without CUDA.
"""

import base64
import hashlib
import os
import re
import sys
import zipfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import components

GLIBC = "2_28"


def make_record(files: Mapping[str, bytes], name: str) -> bytes:
    """Returns the RECORD of `files`. The path of the RECORD itself is `name`."""
    lines = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in sorted(files.items())]
    return "\n".join([*lines, f"{name},,", ""]).encode()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def write(path: Path, files: Mapping[str, bytes], epoch: int) -> None:
    """Writes a wheel of `files`, sorted, with its dist-info last and a new RECORD."""
    dist_info = next(name.split("/")[0] for name in files if name.endswith(".dist-info/WHEEL"))
    files = {name: content for name, content in files.items() if name != f"{dist_info}/RECORD"}
    files[f"{dist_info}/RECORD"] = make_record(files, f"{dist_info}/RECORD")
    date = datetime.fromtimestamp(epoch, timezone.utc).timetuple()[:6]
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(files, key=lambda name: (name.startswith(dist_info), name)):
            info = zipfile.ZipInfo(name, date)
            info.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name], compresslevel=9)


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def write_sums(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def finish(built_wheel: Path, build_folder: Path, out_folder: Path, epoch: int) -> Path:
    files = read(built_wheel)
    libraries = {path: files[path] for path in (components.CPU, components.CUDA) if path in files}
    versions = components.read_versions(libraries)
    version = built_wheel.name.split("-")[1]
    name = "robocache" if components.CUDA in files else "robocache-cpu"
    if name != "robocache":
        for path in [path for path in files if path.endswith(".py")]:
            files[path] = files[path].replace(b"pip install 'robocache[", f"pip install '{name}[".encode())
    built_dist_info, dist_info = f"robocache-{version}.dist-info", f"{name.replace('-', '_')}-{version}.dist-info"
    files = {path.replace(built_dist_info, dist_info): content for path, content in files.items()}

    toolkit = components.find_toolkit(build_folder)
    licences = {f"third-party/{c.name}.txt": components.read_licence(c, toolkit) for c in versions}
    for path, text in licences.items():
        files[f"{dist_info}/licenses/{path}"] = text.encode()
    metadata = files[f"{dist_info}/METADATA"].decode()
    head, readme = metadata.split("\n\n", 1)
    readme = readme.replace("pip install 'robocache[", f"pip install '{name}[")
    head = head.replace("Name: robocache\n", f"Name: {name}\n").replace("Dist: robocache[", f"Dist: {name}[")
    if components.CUDA not in files:
        head = re.sub("^Classifier: Environment :: GPU.*\n", "", head, flags=re.M)
    head = re.sub(
        "^License-Expression: .*$",
        f"License-Expression: {components.make_licence_expression(versions)}",
        head,
        flags=re.M,
    )
    head = head.replace("\nLicense-File: NOTICE", "".join(f"\nLicense-File: {p}" for p in ("NOTICE", *licences)))
    files[f"{dist_info}/METADATA"] = f"{head}\n\n{readme}".encode()

    built_platform = built_wheel.stem.split("-")[-1]
    platform = re.sub("^linux", f"manylinux_{GLIBC}", built_platform)
    wheel = files[f"{dist_info}/WHEEL"].decode()
    files[f"{dist_info}/WHEEL"] = wheel.replace(f"-{built_platform}\n", f"-{platform}\n").encode()

    stated_versions = {
        tool: v for library in libraries.values() for tool, v in components.read_linked_versions(library).items()
    }
    time = datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    purls = {component: components.make_purl(component, toolkit) for component in versions}
    bill = components.make_bill(
        name, version, versions, purls, components.read_compiler_versions(stated_versions), time
    )
    files[f"{dist_info}/sboms/{name}.cdx.json"] = bill.encode()

    path = out_folder / f"{name.replace('-', '_')}-{version}-py3-none-{platform}.whl"
    write(path, files, epoch)
    path.with_suffix(".cdx.json").write_text(bill, encoding="utf-8")
    return path


def main() -> None:
    built_wheel, build_folder, out_folder = map(Path, sys.argv[1:])
    out_folder.mkdir(parents=True, exist_ok=True)
    print(finish(built_wheel, build_folder, out_folder, int(os.environ["SOURCE_DATE_EPOCH"])))
    write_sums(out_folder)


if __name__ == "__main__":
    main()
