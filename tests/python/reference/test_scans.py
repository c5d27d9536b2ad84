"""The readers of scans, on files with known content."""

import struct

import numpy as np
import pytest
from reference import scans


def literals(plain):
    """LZF without back references: literal runs of at most 32 bytes."""
    pieces = [plain[k : k + 32] for k in range(0, len(plain), 32)]
    return b"".join(bytes([len(piece) - 1]) + piece for piece in pieces)


@pytest.mark.parametrize(
    ("packed", "plain"),
    [
        (b"\x02abc", b"abc"),
        (b"\x02abc" + b"\x20\x02", b"abcabc"),  # 3 bytes from 3 back
        (b"\x00a" + b"\xe0\x03\x00", b"a" * 13),  # 12 bytes from 1 back, overlapping
        (b"\x01ab" + b"\x60\x01" + b"\x00c", b"ababab" + b"ac"),  # 5 bytes from 2 back
        (literals(bytes(300)) + b"\x21\x2b", bytes(303)),  # 3 bytes from 300 back
    ],
)
def test_lzf(packed, plain):
    assert scans.lzf_decompressed(packed, len(plain)) == plain
    with pytest.raises(AssertionError):
        scans.lzf_decompressed(packed, len(plain) + 1)


def test_ply(rng, tmp_path):
    table = np.zeros(7, [("intensity", "<f4"), ("x", "<f8"), ("y", "<f8"), ("z", "<f8"), ("ring", "u1")])
    for name in table.dtype.names:
        table[name] = rng.integers(0, 200, 7)
    kinds = {"intensity": "float", "ring": "uchar"}
    head = "ply\nformat binary_little_endian 1.0\ncomment made up\nelement vertex 7\n"
    head += "".join(f"property {kinds.get(name, 'double')} {name}\n" for name in table.dtype.names)
    (tmp_path / "scan.ply").write_bytes(head.encode() + b"end_header\n" + table.tobytes())
    read = scans.read_ply(tmp_path / "scan.ply")
    np.testing.assert_array_equal(read, table)
    np.testing.assert_array_equal(scans.xyz(read, np.float64), np.stack([table["x"], table["y"], table["z"]], 1))


@pytest.mark.parametrize("packed", [False, True])
def test_pcd(rng, tmp_path, packed):
    table = np.zeros(77, [("label", "<u4"), ("x", "<f4"), ("y", "<f4"), ("z", "<f4")])
    for name in table.dtype.names:
        table[name] = rng.integers(0, 200, 77)
    table["z"][3] = np.nan
    head = "# made up\nVERSION 0.7\nFIELDS label x y z\nSIZE 4 4 4 4\nTYPE U F F F\nCOUNT 1 1 1 1\nWIDTH 77\nHEIGHT 1\n"
    body = table.tobytes()
    if packed:  # one field after the other
        plain = b"".join(table[name].tobytes() for name in table.dtype.names)
        body = struct.pack("<II", len(literals(plain)), len(plain)) + literals(plain)
    kind = "binary_compressed" if packed else "binary"
    (tmp_path / "scan.pcd").write_bytes(f"{head}POINTS 77\nDATA {kind}\n".encode() + body)
    read = scans.read_pcd(tmp_path / "scan.pcd")
    for name in table.dtype.names:
        np.testing.assert_array_equal(read[name], table[name])
