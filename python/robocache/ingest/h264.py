"""Finds pictures that are missing in H.264 video. A decoder shows other pictures in their stead, without an error.

ITU-T H.264 defines the names and layouts: clause 7.3 the syntax, 7.4.3 frame_num.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# The profiles whose parameter sets declare a chroma format.
_HIGH_PROFILES = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))
# The types of NAL units: a slice, a slice of an IDR picture (at which frame_num starts anew), and a sequence parameter set.
_SLICE, _IDR_SLICE, _SPS = 1, 5, 7
# The first bytes of a slice, which hold its frame_num, and the most bytes of a parameter set.
_SLICE_HEAD, _MOST_SPS = 32, 4096


@dataclass(frozen=True)
class _Numbering:
    """How a sequence numbers its pictures.

    bits: the bits of frame_num.
    skip: the bits of a slice's header between pic_parameter_set_id and frame_num.
    may_skip: whether the encoder may skip numbers, so a gap does not show that a picture is missing.
    """

    bits: int
    skip: int
    may_skip: bool


class FrameNumbers:
    """Follows frame_num from picture to picture: it rises by 1 after each picture on which others depend.

    extradata: the codec's parameters. In mp4 (avcC) they declare the size of the lengths of NAL units; elsewhere start codes
        separate the units.
    """

    def __init__(self, extradata: bytes = b"") -> None:
        self._length_size = 0
        self._numberings: dict[int, _Numbering] = {}
        self._last: int | None = None
        if extradata[:1] == b"\x01" and len(extradata) > 6:
            self._length_size = (extradata[4] & 3) + 1
            offset = 6
            for _ in range(extradata[5] & 31):
                size = int.from_bytes(extradata[offset : offset + 2], "big")
                self._learn_numbering(extradata[offset + 2 : offset + 2 + size])
                offset += 2 + size
        else:
            self.lacks(extradata)  # reads the parameter sets in it

    def lacks(self, packet: bytes) -> bool:
        """Whether a picture is missing between the packet of the last call and this one."""
        is_missing = False
        for unit in self._units(packet):
            kind = unit[0] & 31
            if kind == _SPS:
                self._learn_numbering(unit)
            elif kind in (_SLICE, _IDR_SLICE) and len(set(self._numberings.values())) == 1:
                (numbering,) = set(self._numberings.values())
                is_missing |= self._is_gap(unit, numbering)
        return is_missing

    def _is_gap(self, unit: bytes, numbering: _Numbering) -> bool:
        bits = _Bits(unit[1:_SLICE_HEAD])
        for _ in range(3):  # first_mb_in_slice, slice_type, pic_parameter_set_id
            bits.unsigned()
        bits.take(numbering.skip)
        number, last = bits.take(numbering.bits), self._last
        is_idr, is_reference = unit[0] & 31 == _IDR_SLICE, unit[0] >> 5 & 3
        if is_reference:
            self._last = number
        if last is None or is_idr or numbering.may_skip:
            return False
        return number not in (last, (last + 1) % (1 << numbering.bits))

    def _learn_numbering(self, unit: bytes) -> None:
        try:
            number, numbering = _read_sps(unit)
        except IndexError:  # the set was cut off, so its pictures do not decode
            return
        self._numberings[number] = numbering

    def _units(self, packet: bytes) -> Iterator[bytes]:
        if not self._length_size:
            for unit in re.split(b"\0\0\1", packet)[1:]:
                if unit:
                    yield unit
            return
        offset = 0
        while offset + self._length_size < len(packet):
            start = offset + self._length_size
            offset = start + int.from_bytes(packet[offset:start], "big")
            if offset > start:
                yield packet[start:offset]


class _Bits:
    """Reads bits of a NAL unit's content; raises IndexError beyond the end."""

    def __init__(self, content: bytes) -> None:
        raw = content.replace(b"\0\0\3", b"\0\0")  # without emulation prevention bytes
        self._text = "".join(f"{byte:08b}" for byte in raw)
        self._position = 0

    def take(self, count: int) -> int:
        start, self._position = self._position, self._position + count
        if self._position > len(self._text):
            raise IndexError(count)
        return int(self._text[start : self._position] or "0", 2)

    def unsigned(self) -> int:
        """Reads a number in the code ue(v) of clause 9.1."""
        end = self._text.find("1", self._position)
        if end < 0:
            raise IndexError(self._position)
        zeros, self._position = end - self._position, end
        return self.take(zeros + 1) - 1

    def signed(self) -> int:
        """Reads a number in the code se(v)."""
        code = self.unsigned()
        return (code + 1) // 2 if code % 2 else -(code // 2)


def _read_sps(unit: bytes) -> tuple[int, _Numbering]:
    """Reads a sequence parameter set. Returns its number, and the numbering of its pictures."""
    bits = _Bits(unit[1:_MOST_SPS])
    profile = bits.take(8)
    bits.take(16)  # constraint flags and level_idc
    number, skip = bits.unsigned(), 0
    if profile in _HIGH_PROFILES:
        chroma = bits.unsigned()
        if chroma == 3:
            skip = 2 * bits.take(1)  # colour_plane_id
        bits.unsigned()  # bit_depth_luma_minus8
        bits.unsigned()  # bit_depth_chroma_minus8
        bits.take(1)  # qpprime_y_zero_transform_bypass_flag
        if bits.take(1):  # seq_scaling_matrix_present_flag
            for k in range(8 if chroma != 3 else 12):
                if bits.take(1):
                    _pass_scaling_list(bits, 16 if k < 6 else 64)
    frame_num_bits = bits.unsigned() + 4
    order = bits.unsigned()  # pic_order_cnt_type
    if order == 0:
        bits.unsigned()  # log2_max_pic_order_cnt_lsb_minus4
    elif order == 1:
        bits.take(1)  # delta_pic_order_always_zero_flag
        bits.signed()  # offset_for_non_ref_pic
        bits.signed()  # offset_for_top_to_bottom_field
        for _ in range(bits.unsigned()):
            bits.signed()  # offset_for_ref_frame
    bits.unsigned()  # max_num_ref_frames
    return number, _Numbering(frame_num_bits, skip, bool(bits.take(1)))


def _pass_scaling_list(bits: _Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.signed()) % 256
        last = following or last
