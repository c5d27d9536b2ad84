"""Damaged frames are decoded or refused with FrameError; nothing else happens."""

import numpy as np
import pytest
from soak import rounds

import robocache
from robocache import frames

pytest.importorskip("PIL", reason="no Pillow to write frames with")
from pictures import picture, pillow_file


def attack(file, rng):
    """Returns `file` with up to four bytes changed, a part removed, or a part repeated."""
    result = bytearray(file)
    for _ in range(rng.integers(1, 5)):
        index = int(rng.integers(len(result)))
        match rng.integers(6):
            case 0:
                result[index] ^= 1 << int(rng.integers(8))
            case 1:
                result[index] = int(rng.integers(256))
            case 2:
                result[index : index + 2] = bytes([0xFF, int(rng.integers(0xC0, 0x100))])
            case 3:
                del result[index : index + int(rng.integers(1, 60))]
            case 4:
                result[index:index] = result[int(rng.integers(len(result))) :][: int(rng.integers(1, 60))]
            case _:
                del result[max(index, 2) :]
        if len(result) < 2:
            break
    return bytes(result)


@pytest.mark.soak
def test_attacked_frames_are_decoded_or_refused(rng):
    files = [pillow_file(picture(rng, 40, 56), "JPEG", **options) for options in ({}, {"progressive": True})]
    files += [frames.encode(picture(rng, 33, 50)[None]).data.tobytes()]
    files += [pillow_file(picture(rng, 20, 30, channels), "PNG") for channels in (1, 3)]
    decoded = refused = 0
    for index in range(rounds(2500)):
        file = attack(files[index % len(files)], rng)
        try:
            taken = frames.take([file])
        except robocache.FrameError as error:
            assert str(error).startswith("frames[0]: ")
            refused += 1
            continue
        decoded += 1
        # take() accepted the file, so it decodes.
        frames.decode(taken.codec, taken.data, taken.offsets, taken.shape, taken.dtype, [0])
    assert decoded > rounds(2500) / 50 and refused > rounds(2500) / 4


def test_a_bad_frame_is_named_by_any_number_of_threads(rng, threads):
    result = frames.encode(np.stack([picture(rng, 16, 16) for _ in range(50)]))
    data = result.data.copy()
    for row in (31, 32, 49):
        data[result.offsets[row] + 200 : result.offsets[row + 1]] = 0xFF
    for count in (1, 2, 5):
        threads(count)
        with pytest.raises(robocache.FrameError, match=r"^frames\[31\]: JPEG"):
            robocache.decode_jpeg(data, result.offsets)
