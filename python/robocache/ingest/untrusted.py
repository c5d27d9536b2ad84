"""The program of a reader process (see `reader_process`), which runs HDF5 and lazrs on files that may be damaged or malicious.

It imports nothing of this package, so it starts in a tenth of a second.
"""

from __future__ import annotations

import io
import pickle
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Any

_LINKS_PER_STEP = 1000
_cpu_s = 0  # the most processor time of a step, because damage can make HDF5 read for ever
_file: Any = None
_points: Iterator[bytes]


def _begin_step() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + _cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


# ---- HDF5 ----


def hdf5_open(path: str) -> None:
    """Opens a file."""
    global _file
    import h5py

    # Some shared or read-only file systems have no locks; the file is then opened without one.
    _file = h5py.File(path, "r", locking="best-effort")


def hdf5_links(group: bytes) -> list[tuple[bytes, tuple[int, int]]]:
    """Returns the names in a group, in its order, each with its link's kind and address.

    Opens every object once: if damage makes HDF5 hang or die, that happens here.
    """
    import h5py

    links: list[tuple[int, bytes, tuple[int, int]]] = []

    def add(name: bytes, info: Any) -> None:
        links.append((info.corder if info.corder_valid else 0, name, (info.type, info.u)))

    opened = h5py.h5g.open(_file.id, group)
    opened.links.iterate(add, info=True)
    for number, (_, name, (kind, _)) in enumerate(links):
        if number % _LINKS_PER_STEP == 0:
            _begin_step()
        if kind == h5py.h5l.TYPE_HARD and b"/" not in name and name != b".":
            try:
                h5py.h5o.open(opened, name)
            except Exception:  # the reader opens it too, and reports it
                continue
    return [(name, link) for _, name, link in sorted(links, key=itemgetter(0))]


def hdf5_attribute(node: bytes, name: str) -> Any:
    """Returns the value of an attribute of a group or dataset."""
    import h5py

    opened = h5py.h5o.open(_file.id, node)
    kind = h5py.Dataset if isinstance(opened, h5py.h5d.DatasetID) else h5py.Group
    return kind(opened).attrs[name]


def hdf5_rows(dataset: bytes, rows: Any) -> Any:
    """Returns these rows of a dataset."""
    import h5py

    return h5py.Dataset(h5py.h5d.open(_file.id, dataset), readonly=True)[rows]


# ---- LAZ ----


def laz_open(path: str, start: int, points: int, size: int, record: bytes) -> None:
    """Begins to unpack a file's points, of `size` bytes each, which are stored from byte `start` on."""
    import lazrs

    stored = lazrs.LazVlr(record).item_size()
    if stored != size:
        raise ValueError(f"points of {stored} bytes, where the header says {size}")

    def unpack() -> Iterator[bytes]:
        with open(path, "rb") as source:
            source.seek(start)
            unpacker = lazrs.LasZipDecompressor(source, record)
            for first in range(0, points, 1 << 16):
                part = bytearray(min(points - first, 1 << 16) * size)
                unpacker.decompress_many(part)
                yield bytes(part)

    global _points
    _points = unpack()


def laz_next() -> bytes:
    """Returns the next points; b"" after the last."""
    return next(_points, b"")


# ---- the process ----


def close() -> None:
    """Closes the file, so that other programs may write it again."""
    global _file
    _file = None


def _limit_memory(more: int) -> None:
    with open("/proc/self/status") as status:
        facts = dict(line.split(":", 1) for line in status)
    used = int(facts["VmData"].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + more, resource.RLIM_INFINITY))


def main(stream: io.BufferedRWPair) -> None:
    """Answers requests until the other end is closed."""
    global _cpu_s
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and then closes this process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path[:], _cpu_s = pickle.load(stream)
    functions: dict[str, Callable[..., Any]] = {
        function.__name__: function
        for function in (hdf5_open, hdf5_links, hdf5_attribute, hdf5_rows, laz_open, laz_next, close)
    }
    while True:
        name, memory, arguments = pickle.load(stream)
        if name.endswith("_open"):
            _limit_memory(memory)
        _begin_step()
        try:
            answer = pickle.dumps((True, functions[name](*arguments)), 5)
        except BaseException as error:  # a panic of lazrs is no Exception
            kind = type(error) if type(error).__module__ == "builtins" else RuntimeError
            answer = pickle.dumps((False, kind(str(error))))
        stream.write(answer)
        stream.flush()


if __name__ == "__main__":
    with suppress(EOFError, OSError), socket.socket(fileno=int(sys.argv[1])) as end, end.makefile("rwb") as ours:
        main(ours)
