"""Checksums of a cache's files, and manifests with these, by docs/format.md and without the library.

`append_files` writes frames that are no pictures, for tests that never decode them.
"""

import json
import os
import zlib
from pathlib import Path

import numpy as np

from robocache import _lib

BLOCK_BYTES = 2**20
GROWING = {"time_ns.npy", "values.npy", "blob_offsets.npy"}  # these may be longer than in the manifest


def header_bytes(content):
    """Returns the length of a .npy file's header."""
    return 10 + int.from_bytes(content[8:10], "little")


def checksums(name, content):
    """Checksums in the form that the manifest has since version 2."""
    checked_from = header_bytes(content) if Path(name).name in GROWING else 0
    return [
        f"{zlib.crc32(content[max(begin, checked_from) : begin + BLOCK_BYTES]):08x}"
        for begin in range(0, len(content), BLOCK_BYTES)
    ]


def write_manifest(path, manifest):
    """Writes the manifest with its correct checksum, and renames it over the existing one."""
    manifest = {key: value for key, value in manifest.items() if key != "crc32"}
    text = json.dumps(manifest, indent=2)[:-2] + ",\n"
    new = path / "manifest.json.new"
    new.write_text(f'{text}  "crc32": "{zlib.crc32(text.encode()):08x}"\n}}\n')
    os.replace(new, path / "manifest.json")


def append_files(episode, stream, time_ns, files, *, codec="png", color_space="rgb", shape=(2, 3, 3), dtype="uint8"):
    """Appends `files`, bytes that are never decoded, as frames."""
    offsets = np.cumsum([0, *map(len, files)]) if codec != "raw" else np.empty(0, np.int64)
    data = np.frombuffer(b"".join(files), np.uint8)
    times = np.asarray(time_ns, np.int64)
    append = _lib.function("writer_append_frames")
    clock, *rest = (_lib.from_numpy(array) for array in (times, data, offsets))
    append(episode._writer, stream, clock, codec, color_space, dtype, json.dumps(shape), *rest)


def sign(cache, name):
    """Writes a changed file's checksum into the manifest, like a program that changed the file."""
    manifest = json.loads((cache / "manifest.json").read_text())
    manifest["files"][name]["crc32"] = checksums(name, (cache / name).read_bytes())
    write_manifest(cache, manifest)
