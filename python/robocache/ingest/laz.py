"""LAZ, unpacked by lazrs in a process of its own: damage can make it call itself without end, and then no exception tells."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .recording import SourceError

_PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
path, file, start, points, size = sys.argv[1:]
sys.path.insert(0, path)
import lazrs
record = sys.stdin.buffer.read()
if lazrs.LazVlr(record).item_size() != int(size):
    sys.exit(f"points of {lazrs.LazVlr(record).item_size()} bytes, where the header says {size}")
with open(file, "rb") as source:
    source.seek(int(start))
    unpacker, left = lazrs.LasZipDecompressor(source, record), int(points)
    while left > 0:
        part = bytearray(min(left, 1 << 16) * int(size))
        unpacker.decompress_many(part)
        sys.stdout.buffer.write(part)
        left -= 1 << 16
"""


class Unpacker:
    """What laspy takes for a ``LazBackend`` and its reader, of one file. laspy closes it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        self._size = 0

    def is_available(self) -> bool:
        return find_spec("lazrs") is not None

    def create_reader(self, source: Any, header: Any, decompression_selection: Any = None) -> Unpacker:
        self._source = source
        del decompression_selection
        spec = find_spec("lazrs")
        assert spec is not None and spec.origin is not None
        self._size = header.point_format.size
        told = (Path(spec.origin).parents[1], self._file, header.offset_to_point_data, header.point_count, self._size)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _PROGRAM, *map(str, told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as record:  # it died, which read_n_points tells
            record.write(header.vlrs[header.vlrs.index("LasZipVlr")].record_data)
        return self

    def read_n_points(self, count: int) -> bytes:
        """The bytes of the next points.

        Raises:
            SourceError: there are fewer, with what lazrs said of it.
        """
        assert self._process is not None and self._process.stdout is not None and self._process.stderr is not None
        points = self._process.stdout.read(count * self._size)
        if len(points) == count * self._size:
            return points
        said = self._process.stderr.read().decode(errors="replace").split("\n")
        ended = self._process.wait()
        died = f"lazrs died of {signal.strsignal(-ended)}" if ended < 0 else f"lazrs ended with {ended}"
        raise SourceError(f"{self._file}: damaged: {next(filter(None, reversed(said)), died)}")

    def close(self) -> None:
        """Ends the process, and what laspy opened."""
        if self._process is not None:
            self._process.kill()
            with self._process:
                self._source.close()
