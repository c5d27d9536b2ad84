"""robocache.decode_jpeg: numpy and torch in, pixels out, against Pillow."""

import sys

import numpy as np
import pytest

import robocache

pytest.importorskip("PIL", reason="no Pillow to compare pixels with")
from pictures import picture, pillow_file, pillow_pixels


@pytest.fixture
def jpegs(rng):
    """Returns (blobs, offsets, pixels) of five frames without restart markers."""
    files = [pillow_file(picture(rng, 33, 47), "JPEG", quality=90) for _ in range(5)]
    blobs = np.frombuffer(b"".join(files), np.uint8)
    return blobs, np.cumsum([0, *map(len, files)]), np.stack([pillow_pixels(file) for file in files])


def test_numpy(jpegs):
    blobs, offsets, pixels = jpegs
    result = robocache.decode_jpeg(blobs, offsets)
    assert type(result) is np.ndarray and result.dtype == np.uint8
    np.testing.assert_array_equal(result, pixels)
    out = np.zeros_like(pixels)
    assert robocache.decode_jpeg(blobs, offsets, out=out) is out
    np.testing.assert_array_equal(out, pixels)


def test_torch(jpegs):
    torch = pytest.importorskip("torch")
    blobs, offsets, pixels = jpegs
    blobs, offsets = torch.tensor(blobs), torch.tensor(offsets)
    result = robocache.decode_jpeg(blobs, offsets)
    assert isinstance(result, torch.Tensor) and result.dtype == torch.uint8
    np.testing.assert_array_equal(result.numpy(), pixels)
    out = torch.zeros_like(result)
    assert robocache.decode_jpeg(blobs, offsets, out) is out
    assert torch.equal(out, result)


def test_grey_frames_and_no_frames(rng):
    file = pillow_file(picture(rng, 9, 7, 1), "JPEG")
    result = robocache.decode_jpeg(np.frombuffer(file, np.uint8), np.array([0, len(file)]))
    np.testing.assert_array_equal(result[0], pillow_pixels(file))
    out = np.zeros((0, 9, 7, 1), np.uint8)
    assert robocache.decode_jpeg(np.zeros(0, np.uint8), np.array([0]), out) is out


def test_offsets_may_skip_the_first_frames(jpegs):
    blobs, offsets, pixels = jpegs
    result = robocache.decode_jpeg(blobs, offsets[2:])
    np.testing.assert_array_equal(result, pixels[2:])


def test_invalid_arguments_are_refused(jpegs):
    blobs, offsets, pixels = jpegs
    out = np.zeros_like(pixels)
    read_only = out.copy()
    read_only.flags.writeable = False
    damaged = blobs.copy()
    damaged[offsets[3] + 300 : offsets[3] + 320] = 0xFF
    for arguments, error, message in [
        ((blobs.astype(np.int8), offsets), robocache.ArgumentTypeError, "blobs: expected uint8, got int8"),
        ((blobs[:10].reshape(2, 5), offsets), robocache.ArgumentError, r"blobs: expected \[bytes\], got \[2, 5\]"),
        ((blobs[::2], offsets), robocache.ArgumentError, "blobs: expected a dense array"),
        ((blobs, offsets.astype(np.int32)), robocache.ArgumentTypeError, "offsets: expected int64, got int32"),
        ((blobs, offsets[:0]), robocache.ArgumentError, r"offsets: expected \[N \+ 1\]"),
        ((blobs, offsets[:1]), robocache.ArgumentError, "offsets: expected at least one frame"),
        ((blobs, offsets + 10**6), robocache.ArgumentError, "offsets: expected to ascend from 0"),
        ((blobs, offsets[::-1].copy()), robocache.ArgumentError, "offsets: expected to ascend from 0"),
        ((blobs, offsets - 1), robocache.ArgumentError, "offsets: expected to ascend from 0"),
        ((blobs[:-9], offsets), robocache.ArgumentError, "offsets: expected to ascend from 0 to at most"),
        ((blobs, offsets, out[:4]), robocache.ArgumentError, r"out: expected \[5, height, width, channels\]"),
        ((blobs, offsets, out[:, ::2]), robocache.ArgumentError, "out: expected a dense array"),
        ((blobs, offsets, out.view(np.int8)), robocache.ArgumentTypeError, "out: expected uint8, got int8"),
        ((blobs, offsets, read_only), robocache.ArgumentError, "out: expected an array that can be written"),
        ((blobs, offsets, out[:, :, :40].copy()), robocache.FrameError, r"frames\[0\]: JPEG: expected \[33, 40, 3\]"),
        ((damaged, offsets), robocache.FrameError, r"frames\[3\]: JPEG of \d+ bytes: .*, near byte \d+"),
        (("blobs", offsets), robocache.ArgumentTypeError, "blobs: expected an array"),
    ]:
        with pytest.raises(error, match=message):
            robocache.decode_jpeg(*arguments)


def test_needs_no_torch(jpegs, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert robocache.decode_jpeg(*jpegs[:2]).shape == jpegs[2].shape
