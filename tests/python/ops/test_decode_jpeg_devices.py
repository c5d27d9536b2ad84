"""decode_jpeg and ResidentJpegs: the same pixels on every device."""

import numpy as np
import pytest
from robocache.ops.decode_jpeg import ResidentJpegs

import robocache
from robocache import frames

torch = pytest.importorskip("torch")


def pictures(rng, count, height=70, width=90, channels=3):
    """Returns pictures of smooth gradients and noise."""
    y, x = np.mgrid[:height, :width]
    base = 100 + 60 * np.sin(x / 11)[..., None] + 50 * np.cos(y / 7)[..., None] * np.arange(1, channels + 1) / channels
    noise = rng.normal(0, 15, (count, height, width, channels))
    return np.clip(base + noise, 0, 255).astype(np.uint8)


def tensors_on(device, encoded):
    return torch.from_numpy(encoded.data).to(device), torch.from_numpy(encoded.offsets).to(device)


def damage(encoded, frame):
    """Returns the frames with zeros between two restart markers of one frame: valid codes, but too few."""
    data = encoded.data.copy()
    file = data[encoded.offsets[frame] : encoded.offsets[frame + 1]]
    begin, end = (file.tobytes().index(marker) for marker in (b"\xff\xd2", b"\xff\xd3"))
    file[begin + 2 : end] = 0
    return encoded._replace(data=data)


@pytest.mark.parametrize("channels, subsampling", [(1, "4:4:4"), (3, "4:4:4"), (3, "4:2:0")])
@pytest.mark.parametrize("quality", [5, 95, 100])
def test_every_device_gives_the_same_pixels(device, rng, channels, subsampling, quality):
    encoded = frames.encode(pictures(rng, 5, channels=channels), quality=quality, subsampling=subsampling)
    expected = robocache.decode_jpeg(encoded.data, encoded.offsets)
    decoded = robocache.decode_jpeg(*tensors_on(device, encoded))
    assert decoded.device.type == device
    np.testing.assert_array_equal(decoded.cpu().numpy(), expected)
    out = torch.empty_like(decoded)
    assert robocache.decode_jpeg(*tensors_on(device, encoded), out=out) is out
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


def test_a_bad_frame_is_named(device, rng):
    encoded = frames.encode(pictures(rng, 4))
    blobs, offsets = tensors_on(device, damage(encoded, 2))
    with pytest.raises(robocache.FrameError, match=r"^frames\[2\]: JPEG"):
        robocache.decode_jpeg(blobs, offsets)
    blobs, offsets = tensors_on(device, encoded)
    with pytest.raises(robocache.FrameError, match=r"^frames\[0\]: "):
        robocache.decode_jpeg(blobs, offsets, out=torch.empty((4, 70, 91, 3), dtype=torch.uint8, device=device))
    with pytest.raises(robocache.FrameError, match=r"^frames\[3\]: JPEG"):
        robocache.decode_jpeg(blobs[:-40], offsets.clamp(max=blobs.numel() - 40))
    with pytest.raises(robocache.ArgumentError, match=r"^offsets: "):
        robocache.decode_jpeg(blobs[:-40], offsets)
    with pytest.raises(robocache.ArgumentError, match=r"^offsets: "):
        robocache.decode_jpeg(blobs, offsets[:0])


@pytest.mark.parametrize("tier", ["device", "pinned"])
def test_resident_frames_are_decoded_in_any_order(cuda, rng, tier):
    encoded = frames.encode(pictures(rng, 6))
    expected = robocache.decode_jpeg(encoded.data, encoded.offsets)
    resident = ResidentJpegs(encoded.data, encoded.offsets, tier=tier)
    assert len(resident) == 6
    assert resident.shape == (70, 90, 3)
    rows = torch.tensor([5, 0, -1, 3, 3, 99], device=cuda)
    out = torch.full((6, 70, 90, 3), 7, dtype=torch.uint8, device=cuda)
    status = torch.full((6,), 7, dtype=torch.int32, device=cuda)
    resident.decode(rows, out, status)
    assert status.tolist() == [0] * 6
    black = np.zeros_like(expected[0])
    for result, row in zip(out.cpu().numpy(), rows.tolist(), strict=True):
        np.testing.assert_array_equal(result, expected[row] if 0 <= row < 6 else black)


def test_a_damaged_resident_frame_is_black_and_marked(cuda, rng):
    encoded = frames.encode(pictures(rng, 4))
    expected = robocache.decode_jpeg(encoded.data, encoded.offsets)
    damaged = damage(encoded, 1)
    resident = ResidentJpegs(damaged.data, damaged.offsets)
    out = torch.empty((4, 70, 90, 3), dtype=torch.uint8, device=cuda)
    status = torch.empty(4, dtype=torch.int32, device=cuda)
    resident.decode(torch.arange(4, device=cuda), out, status)
    assert status.tolist() == [0, 1, 0, 0]
    expected[1] = 0
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


def test_resident_frames_refuse_invalid_arguments(cuda, rng):
    encoded = frames.encode(pictures(rng, 2))
    resident = ResidentJpegs(encoded.data, encoded.offsets)
    rows = torch.arange(2, device=cuda)
    out = torch.empty((2, 70, 90, 3), dtype=torch.uint8, device=cuda)
    status = torch.empty(2, dtype=torch.int32, device=cuda)
    for name, invalid in [("rows", rows.int()), ("out", out[:1]), ("out", out.cpu()), ("status", status.long())]:
        with pytest.raises(robocache.Error, match=f"^{name}: "):
            resident.decode(**{"rows": rows, "out": out, "status": status, name: invalid})


def test_invalid_devices_and_tiers_are_refused(rng):
    encoded = frames.encode(pictures(rng, 1))
    with pytest.raises(robocache.ArgumentError, match=r"^device: "):
        ResidentJpegs(encoded.data, encoded.offsets, device="cpu")
    with pytest.raises(robocache.ArgumentError, match=r"^tier: "):
        ResidentJpegs(encoded.data, encoded.offsets, tier="mapped")
