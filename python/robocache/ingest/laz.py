"""Unpacks LAZ by lazrs in a reader process: damage may make lazrs recurse until its stack is full, which ends the process."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .reader_process import reader_process
from .recording import SourceError


class Unpacker:
    """laspy's ``LazBackend`` and its reader in one, for one file. laspy calls its methods, and closes it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._open = ExitStack()
        self._size = 0
        self._unpacked = bytearray()  # the points that lazrs unpacked but laspy has not taken

    def is_available(self) -> bool:
        return find_spec("lazrs") is not None

    def create_reader(self, source: Any, header: Any, decompression_selection: Any = None) -> Unpacker:
        del decompression_selection
        self._open.callback(source.close)
        self._process = self._open.enter_context(reader_process())
        self._size = header.point_format.size
        record = header.vlrs[header.vlrs.index("LasZipVlr")].record_data
        self._ask("laz_open", str(self._file), header.offset_to_point_data, header.point_count, self._size, record)
        return self

    def read_n_points(self, count: int) -> bytes:
        """Returns the bytes of the next points.

        Raises:
            SourceError: the file has fewer points, or cannot be unpacked.
        """
        while len(self._unpacked) < count * self._size:
            part = self._ask("laz_next")
            if not part:
                raise SourceError(f"{self._file}: damaged: {len(self._unpacked)} bytes, expected {count * self._size}")
            self._unpacked += part
        points = bytes(self._unpacked[: count * self._size])
        del self._unpacked[: count * self._size]
        return points

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return self._process.ask(self._file, function, *arguments)
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"{self._file}: damaged: {error}") from error

    def close(self) -> None:
        """Closes the process and the file that laspy opened."""
        self._open.close()
