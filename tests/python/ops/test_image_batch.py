"""image_batch: rules 41, 42 and 46, on the CPU and on CUDA."""

import math
from functools import partial

import numpy as np
import pytest
from reference import images
from reference.arithmetic import bfloat16, fma, round_to
from reference.compare import assert_same_bits, poisoned, to_numpy, to_torch

import robocache

torch = pytest.importorskip("torch")

BYTES = {"dtype": "uint8", "layout": "hwc"}
DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": bfloat16}


def random_frames(rng, *shape):
    """Returns random bytes, many of them 0 and 255, where clamping and rounding show."""
    frames = rng.integers(0, 256, shape, dtype=np.uint8)
    return np.where(rng.random(shape) < 0.2, rng.choice(np.uint8([0, 255]), shape), frames)


def coordinates(count, height, width):
    """Returns frames whose red and green are a pixel's row and column."""
    frame = np.zeros((height, width, 3), np.uint8)
    frame[..., 0], frame[..., 1] = np.arange(height)[:, None], np.arange(width)
    return np.broadcast_to(frame, (count, *frame.shape)).copy()


def batch(frames, rows=None, device="cpu", **options):
    """Calls robocache.image_batch with torch tensors on `device`, and returns its result as numpy."""
    rows = None if rows is None else torch.as_tensor(rows, device=device)
    return to_numpy(robocache.image_batch(to_torch(frames, device), rows, **options))


def corners(result):
    """Returns the row and column of the first pixel, [..., 2], decoded from the bytes of coordinates()."""
    return result[..., 0, 0, :2].astype(int)


# ---- Resizing ----


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, 1), (3, 5)),
        ((3, 5), (1, 1)),
        ((3, 5), (7, 4)),
        ((17, 13), (5, 8)),
        ((8, 9), (8, 9)),
        ((8, 9), (8, 4)),
        ((2, 64), (2, 3)),
        ((16, 12), (4, 6)),
        ((5, 5), (15, 10)),
    ],
)
def test_rule_41_a_resized_pixel_is_the_mean_rounded_once(rng, device, before, after, channels):
    frames = random_frames(rng, 3, *before, channels)
    result = batch(frames, device=device, size=after, **BYTES)
    assert_same_bits(result, np.stack([images.resized(frame, *after) for frame in frames]))


@pytest.mark.parametrize(
    ("before", "after"),
    [((480, 640), (224, 224)), ((256, 256), (224, 224)), ((100, 75), (333, 224)), ((719, 1281), (64, 97))],
)
def test_rule_41_resizing_equals_torchs_antialiased_bilinear(rng, device, before, after):
    """torch's uint8 rounds twice and has weights of 16 bits; its float64 is exact except for the last digits."""
    frames = random_frames(rng, 2, *before, 3)
    result = batch(frames, device=device, size=after, dtype="uint8").astype(np.int64)
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2)
    options = {"size": after, "mode": "bilinear", "antialias": True}
    exact = torch.nn.functional.interpolate(planes.double(), **options).numpy()
    assert np.abs(result - exact).max() <= 0.5 + 1e-9
    assert np.abs(result - torch.nn.functional.interpolate(planes, **options).numpy()).max() <= 1


def test_rule_41_a_uniform_frame_stays_uniform(device):
    """Weights add up to one for all sizes."""
    for value in (0, 1, 127, 254, 255):
        frames = np.full((1, 37, 53, 3), value, np.uint8)
        for size in ((11, 7), (64, 64), (37, 100)):
            for interpolation in ("bilinear", "bicubic", "area", "nearest"):
                options = {"size": size, "interpolation": interpolation, "dtype": "uint8"}
                assert (batch(frames, device=device, **options) == value).all()


SIZES = [
    ((48, 64), (22, 22)),
    ((31, 17), (64, 97)),
    ((97, 201), (224, 33)),
    ((1, 1), (3, 2)),
    ((5, 7), (5, 3)),
    ((48, 60), (12, 20)),
]


@pytest.mark.parametrize(("before", "after"), [*SIZES, ((480, 640), (224, 224)), ((1200, 30), (24, 30))])
def test_rule_41_bicubic_equals_torchs_antialiased(rng, device, before, after):
    """Weights are multiples of 2^-15 of the largest one; that changes a mean by less than 0.02."""
    frames = random_frames(rng, 2, *before, 3)
    result = batch(frames, device=device, size=after, interpolation="bicubic", dtype="uint8").astype(np.int64)
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2)
    exact = torch.nn.functional.interpolate(planes.double(), size=after, mode="bicubic", antialias=True).numpy()
    assert np.abs(result - exact.clip(0, 255)).max() <= 0.52
    assert_same_bits(result, batch(frames, size=after, interpolation="bicubic", dtype="uint8").astype(np.int64))


@pytest.mark.parametrize(("before", "after"), [((60, 80), (24, 33)), ((24, 33), (60, 80))])
def test_rule_41_bicubic_equals_pils(device, before, after):
    """PIL rounds after each axis."""
    image = pytest.importorskip("PIL.Image")
    y, x = np.mgrid[: before[0], : before[1]]
    frame = np.stack([120 + 90 * np.sin(y / 5), 128 + 70 * np.cos(x / 6), (3 * x + y) % 200 / 2 + 60], axis=-1)
    frame = frame.astype(np.uint8)
    result = batch(frame[None], device=device, size=after, interpolation="bicubic", **BYTES)[0].astype(int)
    expected = np.asarray(image.fromarray(frame).resize(after[::-1], image.Resampling.BICUBIC)).astype(int)
    assert np.abs(result - expected).max() <= 1


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_rule_41_area_is_the_mean_of_the_covered_pixels(rng, device, before, after):
    """The oracle repeats pixels until both grids divide the image; sums are then whole numbers."""
    frames = random_frames(rng, 2, *before, 3)
    result = batch(frames, device=device, size=after, interpolation="area", **BYTES)
    sums = frames.astype(np.int64)
    for axis in (1, 2):
        sums = np.repeat(sums, after[axis - 1], axis=axis)
        sums = sums.reshape(*sums.shape[:axis], after[axis - 1], before[axis - 1], *sums.shape[axis + 1 :])
        sums = sums.sum(axis=axis + 1)
    assert_same_bits(result, np.rint(sums / (before[0] * before[1])).astype(np.uint8))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_rule_41_nearest_copies_pixels(rng, device, before, after, channels):
    frames = random_frames(rng, 2, *before, channels)
    result = batch(frames, device=device, size=after, interpolation="nearest", **BYTES)
    assert_same_bits(result, np.stack([images.resized_nearest(frame, *after) for frame in frames]))
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2)
    assert_same_bits(
        result.transpose(0, 3, 1, 2), torch.nn.functional.interpolate(planes, size=after, mode="nearest-exact").numpy()
    )


@pytest.mark.parametrize("interpolation", ["bicubic", "area", "nearest"])
def test_rule_41_every_interpolation_combines_with_other_steps(rng, device, interpolation):
    frames = random_frames(rng, 2, 40, 30, 3)
    resized = partial(batch, device=device, interpolation=interpolation, **BYTES)
    cropped = resized(frames, size=(20, 17), crop=(9, 8), crop_at="center")
    assert_same_bits(cropped, resized(frames, size=(20, 17))[:, 5:14, 4:12])
    part = resized(frames, size=(20, 17), crop_scale=0.25, crop_at="center")
    assert_same_bits(part, resized(frames[:, 10:30, 7:22], size=(20, 17)))
    letterbox = resized(frames, size=(20, 20), fit="pad")
    assert_same_bits(letterbox[:, :, 2:17], resized(frames, size=(20, 15)))
    assert (letterbox[:, :, :2] == 0).all() and (letterbox[:, :, 17:] == 0).all()
    colours = {"brightness": 0.3, "contrast": 0.3, "hue": 0.2, "mean": 0.5, "seed": 4}
    options = {"size": (23, 31), "interpolation": interpolation, **colours}
    assert_same_bits(batch(frames, device=device, **options), batch(frames, **options))
    assert_same_bits(resized(frames, size=(40, 30)), frames)


def test_rule_46_depth_is_resized_by_nearest_with_any_interpolation_of_colour(rng, device):
    depth = rng.integers(0, 4000, (2, 30, 20, 1), dtype=np.uint16)
    plain = batch(depth, device=device, size=(11, 13), unit_m=0.001)
    assert_same_bits(batch(depth, device=device, size=(11, 13), unit_m=0.001, interpolation="nearest"), plain)
    for interpolation in ("bicubic", "area"):
        with pytest.raises(robocache.ArgumentError, match=r"^interpolation: .*nearest"):
            batch(depth, device=device, size=(11, 13), unit_m=0.001, interpolation=interpolation)


@pytest.mark.parametrize(
    ("before", "after"),
    [((48, 64), (22, 22)), ((64, 48), (22, 22)), ((5, 100), (16, 16)), ((10, 10), (30, 20)), ((1, 200), (9, 9))],
)
def test_rule_41_pad_equals_openpis_letterbox(rng, device, before, after):
    frames = random_frames(rng, 2, *before, 3)
    result = batch(frames, device=device, size=after, fit="pad", **BYTES)
    top, left, height, width = images.letterboxed(frames[0], *after)
    expected = np.zeros((2, *after, 3), np.uint8)
    for frame, padded in zip(frames, expected, strict=True):
        padded[top : top + height, left : left + width] = images.resized(frame, height, width)
    assert_same_bits(result, expected)


@pytest.mark.parametrize(("before", "after"), [((48, 64), (22, 22)), ((20, 31), (12, 9)), ((10, 10), (30, 20))])
def test_rule_41_fit_by_cropping_takes_the_middle(rng, device, before, after):
    frames = random_frames(rng, 1, *before, 3)
    result = batch(frames, device=device, size=after, fit="crop", **BYTES)
    factor = max(after[0] / before[0], after[1] / before[1])
    covering = [math.floor(side * factor + 1e-9) for side in before]
    top, left = ((a - b) // 2 for a, b in zip(covering, after, strict=True))
    expected = images.resized(frames[0], *covering)[top : top + after[0], left : left + after[1]]
    assert_same_bits(result[0], expected)


def test_rule_41_a_center_crop_by_area_equals_openvlas(rng, device):
    frames = random_frames(rng, 2, 32, 40, 3)
    result = batch(frames, device=device, crop_scale=0.9, crop_at="center", size=(14, 14), **BYTES)
    height, width = (round(side * math.sqrt(0.9)) for side in (32, 40))
    top, left = (32 - height) // 2, (40 - width) // 2
    expected = [images.resized(frame[top : top + height, left : left + width], 14, 14) for frame in frames]
    assert_same_bits(result, np.stack(expected))


def test_rule_41_without_a_size_a_crop_is_resized_to_the_frame(rng, device):
    frames = random_frames(rng, 1, 20, 20, 3)
    result = batch(frames, device=device, crop_scale=(0.9025, 0.9025), crop_at="center", **BYTES)
    assert_same_bits(result[0], images.resized(frames[0][:19, :19], 20, 20))


def test_rule_41_crops_are_drawn_by_area_at_any_position(device):
    """A crop resized to one pixel has the value of its middle, because the weights are symmetric."""
    count, side = 4000, 41
    result = batch(
        coordinates(1, side, side), np.zeros(count, np.int64), device, crop_scale=(0.25, 1.0), size=(1, 1), **BYTES
    )[:, 0, 0, :2].astype(float)
    # A quarter of the area is half of each side; its middle is at least a quarter of the side from the edges.
    assert result.min() >= side / 4 - 2 and result.max() <= side * 3 / 4 + 1
    # Five standard errors: the standard deviation is below 6.
    assert np.abs(result.mean(axis=0) - (side - 1) / 2).max() < 5 * 6 / math.sqrt(count)
    assert abs(np.corrcoef(result.T)[0, 1]) < 5 / math.sqrt(count)


def test_rule_41_resizing_then_cropping(rng, device):
    frames = random_frames(rng, 1, 30, 20, 3)
    result = batch(frames, device=device, size=(15, 16), crop=(7, 9), crop_at="center", **BYTES)
    assert_same_bits(result[0], images.resized(frames[0], 15, 16)[4:11, 3:12])


# ---- Cropping and shifting: exact ----


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (48, 64), (33, 31)])
@pytest.mark.parametrize("channels", [1, 3])
def test_rule_41_crops_equal_slices(rng, device, shape, channels):
    frames = random_frames(rng, 4, *shape, channels)
    for crop in {(1, 1), shape, (shape[0], 1), ((shape[0] + 1) // 2, (shape[1] + 1) // 2)}:
        top, left = (shape[0] - crop[0]) // 2, (shape[1] - crop[1]) // 2
        result = batch(frames, device=device, crop=crop, crop_at="center", **BYTES)
        assert_same_bits(result, frames[:, top : top + crop[0], left : left + crop[1]])


def test_rule_42_random_crops_are_slices_at_uniform_positions(rng, device):
    count = 9000
    result = batch(coordinates(1, 11, 10), np.zeros(count, np.int64), device, crop=(9, 8), **BYTES)
    corner = corners(result)
    for crop, (top, left) in zip(result[:50], corner[:50], strict=True):
        assert_same_bits(crop, coordinates(1, 11, 10)[0, top : top + 9, left : left + 8])
    counts = np.zeros((3, 3))
    np.add.at(counts, tuple(corner.T), 1)
    expected = count / 9
    assert (np.abs(counts - expected) < 5 * math.sqrt(expected)).all(), counts


def test_rule_41_shifts_repeat_the_edge_like_drq(rng, device):
    frames = random_frames(rng, 1, 12, 9, 3)
    shift, count = 3, 500
    result = batch(frames, np.zeros(count, np.int64), device, shift=shift, **BYTES)
    padded = np.pad(frames[0], ((shift, shift), (shift, shift), (0, 0)), mode="edge")
    frames_at = {
        (y, x): padded[shift + y : shift + y + 12, shift + x : shift + x + 9]
        for y in range(-shift, shift + 1)
        for x in range(-shift, shift + 1)
    }
    seen = {
        next((position for position, frame in frames_at.items() if (frame == image).all()), None) for image in result
    }
    assert None not in seen
    assert len(seen) == (2 * shift + 1) ** 2  # 500 draws miss one of 49 once in 600 times


def test_rule_41_shifts_beyond_the_frame(rng, device):
    frames = random_frames(rng, 1, 3, 2, 1)
    result = batch(frames, np.zeros(200, np.int64), device, shift=9, **BYTES)
    values = set(frames.ravel().tolist())
    assert set(result.ravel().tolist()) == values
    padded = np.pad(frames[0], ((9, 9), (9, 9), (0, 0)), mode="edge")
    allowed = {padded[y : y + 3, x : x + 2].tobytes() for y in range(19) for x in range(19)}
    assert {image.tobytes() for image in result} <= allowed


# ---- Draws ----


def test_rule_42_a_draw_depends_on_its_sample_alone(rng, device, threads):
    frames = random_frames(rng, 5, 20, 20, 3)
    rows = rng.integers(0, 5, 64)
    options = {
        "crop": (16, 16),
        "brightness": 0.3,
        "contrast": 0.3,
        "saturation": 0.3,
        "hue": 0.1,
        "seed": 7,
        "epoch": 2,
    }
    expected = batch(frames, rows, device, sample=100, **options)
    for begin, end in ((0, 1), (1, 17), (17, 64)):
        assert_same_bits(batch(frames, rows[begin:end], device, sample=100 + begin, **options), expected[begin:end])
    threads(1)
    assert_same_bits(batch(frames, rows, device, sample=100, **options), expected)
    assert_same_bits(batch(frames, rows, "cpu", sample=100, **options), expected)


def test_rule_42_a_draw_depends_on_seed_epoch_and_sample(device):
    frames, rows = coordinates(1, 64, 64), np.zeros(300, np.int64)
    drawn = [
        corners(batch(frames, rows, device, crop=(9, 9), seed=seed, epoch=epoch, sample=sample, **BYTES))
        for seed, epoch, sample in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 300), (-1, 0, 0), (1 << 40, 0, 0))
    ]
    for a in range(len(drawn)):
        for b in range(a):
            # There are 56 x 56 positions: two draws are equal once in 3136 times.
            assert (drawn[a] == drawn[b]).all(axis=1).sum() < 5
    rows, columns = np.concatenate(drawn).T
    assert abs(np.corrcoef(rows, columns)[0, 1]) < 5 / math.sqrt(len(rows))
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < 5 / math.sqrt(len(rows))


def test_rule_42_a_window_draws_once_unless_per_frame(device):
    frames, rows = coordinates(1, 40, 40), np.zeros((50, 4), np.int64)
    per_window = corners(batch(frames, rows, device, crop=(8, 8), **BYTES))
    assert (per_window == per_window[:, :1]).all()
    assert len(np.unique(per_window[:, 0], axis=0)) > 30
    per_frame = corners(batch(frames, rows, device, crop=(8, 8), per_frame=True, **BYTES))
    assert len(np.unique(per_frame.reshape(-1, 2), axis=0)) > 150


def test_rule_42_factors_are_uniform_in_their_range(device):
    frames = np.full((1, 1, 1, 1), 100, np.uint8)
    result = batch(frames, np.zeros(5000, np.int64), device, brightness=0.5, **BYTES).ravel()
    assert result.min() == 50 and result.max() == 150
    counts = np.histogram(result, bins=np.linspace(49.5, 150.5, 11))[0]
    expected = len(result) * np.diff(np.clip(np.linspace(49.5, 150.5, 11), 50, 150)) / 100
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all(), counts


# ---- Colour: torchvision's formulas in float64 ----

ROUNDING = 0.5 + 1e-4  # float32 keeps four decimals of a byte


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7, 40.0])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_rule_41_colour_factors_equal_torchvisions(rng, device, name, factor):
    frames = random_frames(rng, 3, 13, 21, 3)
    result = batch(frames, device=device, **{name: (factor, factor)}, **BYTES)
    formula = {"brightness": images.brightened, "contrast": images.contrasted, "saturation": images.saturated}[name]
    for frame, image in zip(frames, result, strict=True):
        # The weights of red, green and blue are multiples of 2^-16, and so is a mean.
        assert np.abs(image - formula(frame, factor)).max() <= ROUNDING + abs(1 - factor) * 255 * 2 * 2**-16
    if factor == 1:
        assert_same_bits(result, frames)


def test_rule_41_contrast_of_grey_frames(rng, device):
    frames = random_frames(rng, 2, 9, 7, 1)
    result = batch(frames, device=device, contrast=(1.4, 1.4), **BYTES)
    for frame, image in zip(frames, result, strict=True):
        assert np.abs(image - images.contrasted(frame, 1.4)).max() <= ROUNDING


@pytest.mark.parametrize("turns", [-0.5, -0.21, 0.0, 0.05, 1 / 3, 0.5])
def test_rule_41_hue_equals_colorsys(rng, device, turns):
    frames = random_frames(rng, 1, 40, 50, 3)
    frames[0, :8] = rng.choice(np.uint8([0, 255]), (8, 50, 3))  # the corners of the colour cube
    result = batch(frames, device=device, hue=(turns, turns), **BYTES)
    assert np.abs(result[0] - images.hue_turned(frames[0], turns)).max() <= ROUNDING
    if turns == 0:
        assert_same_bits(result, frames)


def test_rule_41_colour_steps_have_a_fixed_order(rng, device):
    frames = random_frames(rng, 2, 16, 24, 3)
    steps = {"brightness": (1.3, 1.3), "contrast": (0.6, 0.6), "saturation": (1.8, 1.8), "hue": (0.1, 0.1)}
    one_by_one = frames
    for name, factor in steps.items():
        one_by_one = batch(one_by_one, device=device, **{name: factor}, **BYTES)
    assert_same_bits(batch(frames, device=device, **steps, **BYTES), one_by_one)
    # Colour follows geometry: the mean is the crop's.
    cropped = batch(frames[:, 2:14, 3:21], device=device, **steps, **BYTES)
    assert_same_bits(batch(frames, device=device, crop=(12, 18), crop_at="center", **steps, **BYTES), cropped)


# ---- Flips, rotation, blur, erasing ----


def test_rule_41_flips_reverse_columns_and_rows(rng, device):
    frames = random_frames(rng, 3, 9, 14, 3)
    assert_same_bits(batch(frames, device=device, flip_horizontal=1, **BYTES), frames[:, :, ::-1])
    assert_same_bits(batch(frames, device=device, flip_vertical=1, **BYTES), frames[:, ::-1])
    both = batch(frames, device=device, flip_horizontal=1, flip_vertical=1.0, **BYTES)
    assert_same_bits(both, frames[:, ::-1, ::-1])
    # Flips follow all steps that choose pixels.
    options = {"crop_scale": (0.3, 1), "size": (12, 10), "crop": (7, 8), "seed": 3}
    plain = batch(frames, device=device, **options, **BYTES)
    assert_same_bits(batch(frames, device=device, flip_horizontal=1, **options, **BYTES), plain[:, :, ::-1])


def test_rule_42_flips_are_drawn_once_a_sample_by_their_probability(rng, device):
    frames = random_frames(rng, 2, 5, 6, 3)
    rows = np.tile([0, 1], (2000, 1))
    result = batch(frames, rows, device, flip_horizontal=0.3, flip_vertical=0.5, per_frame=True, seed=5, **BYTES)
    counts = {}
    for name, expected in (
        ("neither", frames),
        ("columns", frames[:, :, ::-1]),
        ("rows", frames[:, ::-1]),
        ("both", frames[:, ::-1, ::-1]),
    ):
        counts[name] = int((result == expected).all(axis=(1, 2, 3, 4)).sum())
    assert sum(counts.values()) == 2000  # both frames of a window flip alike, even with per_frame
    for name, share in (("neither", 0.35), ("columns", 0.15), ("rows", 0.35), ("both", 0.15)):
        assert abs(counts[name] - 2000 * share) < 5 * math.sqrt(2000 * share * (1 - share)), counts
    # Other options do not change the draw.
    upright = np.repeat(np.uint8([[[[255]], [[0]]]]), 3, axis=2)
    plain = batch(upright, np.zeros(2000, np.int64), device, flip_vertical=0.5, brightness=(0.9, 1), seed=5, **BYTES)
    reversed_rows = [(result[:, 0] == frame).all(axis=(1, 2, 3)) for frame in (frames[0, ::-1], frames[0, ::-1, ::-1])]
    np.testing.assert_array_equal(plain[:, 0, 0, 0] == 0, np.any(reversed_rows, axis=0))


@pytest.mark.parametrize("turns", [1, 2, -1])
def test_rule_41_quarter_turns_are_exact_and_counter_clockwise(rng, device, turns):
    frames = random_frames(rng, 2, 15, 15, 3)
    result = batch(frames, device=device, rotation=(90 * turns, 90 * turns), **BYTES)
    assert_same_bits(result, np.rot90(frames, turns, axes=(1, 2)))


@pytest.mark.parametrize("degrees", [0.0, 3.5, -17.0, 45.0, 77.7, -138.25, 180.0])
@pytest.mark.parametrize("shape", [(31, 44), (64, 64), (9, 120)])
def test_rule_41_rotation_equals_torchs_grid_sample(rng, device, degrees, shape):
    """torchvision's rotate samples this grid."""
    frames = random_frames(rng, 2, *shape, 3)
    result = batch(frames, device=device, rotation=(degrees, degrees), **BYTES).astype(np.float64)
    height, width = shape
    y, x = np.mgrid[:height, :width].astype(np.float64) - np.reshape([(height - 1) / 2, (width - 1) / 2], (2, 1, 1))
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    grid = np.stack([(cosine * x - sine * y) / (width / 2), (sine * x + cosine * y) / (height / 2)], axis=-1)
    exact = torch.nn.functional.grid_sample(
        torch.from_numpy(frames).permute(0, 3, 1, 2).double(),
        torch.from_numpy(np.stack([grid] * 2)),
        mode="bilinear",
        padding_mode="zeros",
        align_corners=False,
    )
    # Weights are multiples of 2^-16.
    assert np.abs(result - exact.permute(0, 2, 3, 1).numpy()).max() <= 0.5 + 4 * 255 * 2**-16
    assert_same_bits(result, batch(frames, rotation=(degrees, degrees), **BYTES).astype(np.float64))


def test_rule_41_masks_and_depth_rotate_by_nearest(rng, device):
    angle = math.radians(28)
    y, x = np.mgrid[:21, :34].astype(np.float64) - np.reshape([10, 16.5], (2, 1, 1))
    rows = np.rint(math.sin(angle) * x + math.cos(angle) * y + 10).astype(int)
    columns = np.rint(math.cos(angle) * x - math.sin(angle) * y + 16.5).astype(int)
    inside = (rows >= 0) & (rows < 21) & (columns >= 0) & (columns < 34)
    rows, columns = rows.clip(0, 20), columns.clip(0, 33)
    mask = rng.integers(0, 256, (2, 21, 34, 1), dtype=np.uint8)
    result = batch(mask, device=device, rotation=(28, 28), interpolation="nearest", **BYTES)
    assert_same_bits(result, np.where(inside[..., None], mask[:, rows, columns], 0).astype(np.uint8))
    depth = rng.integers(0, 9000, (2, 21, 34, 1), dtype=np.uint16)
    result = batch(depth, device=device, rotation=(28, 28), unit_m=0.5, layout="hwc")
    assert_same_bits(result, np.where(inside[..., None], depth[:, rows, columns] * 0.5, 0).astype(np.float32))
    flipped = batch(depth, device=device, size=(11, 17), flip_horizontal=1, unit_m=0.5, layout="hwc")
    assert_same_bits(flipped, batch(depth, device=device, size=(11, 17), unit_m=0.5, layout="hwc")[:, :, ::-1])


@pytest.mark.parametrize(("sigma", "kernel"), [(0.1, 3), (0.8, 5), (2.0, 23), (7.5, 63), (900.0, 9)])
@pytest.mark.parametrize("channels", [1, 3])
def test_rule_41_blur_equals_scipys_gaussian(rng, device, sigma, kernel, channels):
    ndimage = pytest.importorskip("scipy.ndimage")
    frames = random_frames(rng, 2, 70, 41, channels)
    result = batch(frames, device=device, blur=sigma, blur_kernel=kernel, **BYTES)
    exact = ndimage.gaussian_filter(frames.astype(float), sigma, mode="mirror", radius=kernel // 2, axes=(1, 2))
    # Weights are multiples of 2^-15 of the largest one.
    assert np.abs(result - exact).max() <= 0.5 + 255 * 4 * kernel * 2**-16 / min(kernel, max(1, 2 * sigma))
    assert_same_bits(result, batch(frames, blur=sigma, blur_kernel=kernel, **BYTES))


def test_rule_42_blur_and_rotation_are_uniform(rng, device):
    impulse = np.zeros((1, 31, 31, 1), np.uint8)
    impulse[0, 15, 15] = 255
    result = batch(impulse, np.zeros(3000, np.int64), device, blur=(0.3, 2.0), blur_kernel=15, **BYTES)
    # The middle pixel, 255 times the largest weight squared, falls with sigma.
    offsets = np.arange(-7, 8)
    middles = [255 / np.exp(-0.5 * (offsets / s) ** 2).sum() ** 2 for s in np.linspace(0.3, 2.0, 11)]
    counts = np.histogram(result[:, 15, 15, 0], bins=[middles[-1] - 1, *middles[9:0:-1], middles[0] + 1])[0]
    assert (np.abs(counts - 300) < 6 * math.sqrt(300) + 30).all(), counts
    dot = np.zeros((1, 101, 101, 1), np.uint8)
    dot[0, 50, 90] = 255
    rotated = batch(dot, np.zeros(3000, np.int64), device, rotation=60, **BYTES)[..., 0].astype(float)
    y, x = np.mgrid[:101, :101] - 50
    angles = np.degrees(np.arctan2(-(rotated * y).sum(axis=(1, 2)), (rotated * x).sum(axis=(1, 2))))
    assert angles.min() > -61 and angles.max() < 61
    counts = np.histogram(angles, bins=np.linspace(-60, 60, 11))[0]
    assert (np.abs(counts - 300) < 6 * math.sqrt(300)).all(), counts


def test_rule_41_erasing_is_one_rectangle_like_torchvisions(device):
    frames = np.full((1, 60, 90, 3), 200, np.uint8)
    rows = np.zeros(4000, np.int64)
    result = batch(frames, rows, device, erase=0.5, erase_value=(1.0, 0.0, 0.25), **BYTES)
    erased = (result != 200).all(axis=-1)
    boxes = []
    for frame, mask in zip(result, erased, strict=True):
        if not mask.any():
            continue
        ys, xs = np.where(mask.any(axis=1))[0], np.where(mask.any(axis=0))[0]
        box = frame[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1]
        assert (box == [255, 0, 64]).all() and mask.sum() == box[..., 0].size
        height, width, _ = box.shape
        boxes.append((height * width / (60 * 90), height / width, ys[0] / (60 - height + 1)))
    # A rectangle as large as the frame is drawn again, up to ten times.
    assert abs(len(boxes) - 2000) < 5 * math.sqrt(1000)
    shares, ratios, tops = np.array(boxes).T
    assert shares.min() > 0.017 and shares.max() < 0.34 and ratios.min() > 0.25 and ratios.max() < 4
    # Ratios are uniform in their logarithm, from 0.3 to 3.3.
    small = np.log(ratios[shares < 0.1])
    assert abs(small.mean() - np.log(0.3 * 3.3) / 2) < 5 * 0.7 / math.sqrt(len(small))
    assert abs(tops.mean() - 0.5) < 5 * 0.3 / math.sqrt(len(tops))


@pytest.mark.parametrize("dtype", ["uint8", *DTYPES])
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_rule_41_erased_values_are_normalised(rng, device, dtype, layout):
    frames = random_frames(rng, 2, 20, 30, 3)
    normal = {} if dtype == "uint8" else {"mean": "imagenet", "std": "imagenet"}
    options = {"erase": 1, "erase_scale": 0.5, "erase_ratio": 1, "dtype": dtype, "layout": layout, **normal}
    result = batch(frames, device=device, erase_value="imagenet", **options)
    mean = np.rint(255 * np.array([0.485, 0.456, 0.406])).astype(np.uint8)
    fill = batch(np.broadcast_to(mean, frames.shape).copy(), dtype=dtype, layout=layout, **normal)
    plain = batch(frames, dtype=dtype, layout=layout, **normal)
    assert ((result == fill) | (result == plain)).all()
    assert (result == fill).mean() > 0.45


def test_rule_41_augmentations_have_a_fixed_order(rng, device):
    """Flips, rotation, blur, colours, erasing: applied one by one they give the same as at once."""
    frames = random_frames(rng, 2, 24, 32, 3)
    steps = [
        {"size": (20, 27), "interpolation": "bilinear"},
        {"flip_horizontal": 0.5, "flip_vertical": 0.5},
        {"rotation": 30},
        {"blur": (0.5, 2), "blur_kernel": 7},
        {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.1},
        {"erase": 0.8, "erase_value": 0.3},
    ]
    for seed in range(8):
        one_by_one = frames
        for step in steps:
            one_by_one = batch(one_by_one, device=device, seed=seed, **step, **BYTES)
        together = {name: value for step in steps for name, value in step.items()}
        assert_same_bits(batch(frames, device=device, seed=seed, **together, **BYTES), one_by_one)
        expected = batch(frames, np.array([[0, -1], [1, 1]]), device, seed=seed, per_frame=True, **together)
        assert_same_bits(batch(frames, np.array([[0, -1], [1, 1]]), seed=seed, per_frame=True, **together), expected)


# ---- Values ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("mean", "std"),
    [(None, None), ("imagenet", "imagenet"), (0.5, 0.5), ((0.1, 0.2, 0.3), 0.25), (None, (0.2, 0.3, 0.4)), (0.4, None)],
)
def test_rule_41_normalisation_is_one_fma_and_one_rounding(device, dtype, mean, std):
    frames = np.stack([np.arange(256)] * 3, axis=-1).astype(np.uint8).reshape(1, 16, 16, 3)
    result = batch(frames, device=device, mean=mean, std=std, dtype=dtype, layout="hwc")
    named = {"imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])}.get(mean, (mean, std))
    mean, std = (
        np.broadcast_to(np.float64(default if x is None else x), 3) for x, default in zip(named, (0, 1), strict=True)
    )
    scale, offset = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
    expected = round_to(fma(frames.astype(np.float32), scale, offset, np.float32), DTYPES[dtype])
    assert_same_bits(result, expected)


@pytest.mark.parametrize("dtype", ["uint8", *DTYPES])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (16, 24), (9, 33)])
@pytest.mark.parametrize("channels", [1, 3])
def test_layouts_have_the_same_values(rng, device, dtype, shape, channels):
    """Some widths are multiples of a vector. Rows begin at every byte of a word."""
    frames = random_frames(rng, 7, shape[0], shape[1] + 3, channels)
    options = {"crop": shape, "dtype": dtype}
    pixels = batch(frames, device=device, layout="hwc", **options)
    planes = batch(frames, device=device, **options)
    assert planes.shape == (7, channels, *shape)
    assert_same_bits(planes.transpose(0, 2, 3, 1), pixels)
    if dtype == "float32":
        as_bytes = batch(frames, device=device, crop=shape, **BYTES)
        assert_same_bits(pixels, fma(as_bytes.astype(np.float32), np.float32(1 / 255), np.float32(0), np.float32))


@pytest.mark.parametrize(
    "options", [{}, {"crop": (4, 6)}, {"size": (5, 9), "fit": "pad"}, {"brightness": 0.5, "contrast": 0.5}]
)
def test_rule_43_an_absent_frame_is_black_before_normalisation(rng, device, options):
    frames = random_frames(rng, 3, 8, 10, 3)
    result = batch(frames, np.int64([[2, -1], [-7, 0]]), device, mean="imagenet", std="imagenet", **options)
    assert result.shape[:3] == (2, 2, 3)
    black = batch(np.zeros_like(frames), np.int64([[0]]), device, mean="imagenet", std="imagenet", **options)[0, 0]
    assert_same_bits(result[0, 1], black)
    assert_same_bits(result[1, 0], black)
    assert not (result[0, 0] == black).all()


def test_rows_choose_frames(rng, device):
    frames = random_frames(rng, 6, 4, 4, 3)
    rows = np.int64([[5, 0, 5], [1, 2, 3]])
    assert_same_bits(batch(frames, rows, device, **BYTES), frames[rows])
    assert_same_bits(batch(frames, device=device, **BYTES), frames)
    for empty in (np.zeros(0, np.int64), np.zeros((0, 3), np.int64), np.zeros((3, 0), np.int64)):
        assert batch(frames, empty, device).shape == (*empty.shape, 3, 4, 4)


# ---- Depth ----


def depth_frames(rng, *shape):
    frames = rng.uniform(0.1, 5, shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.3, rng.choice(np.float32([0, np.nan, np.inf, -np.inf]), shape), frames)


@pytest.mark.parametrize("size", [(3, 4), (20, 31), (9, 9), (1, 1)])
def test_rule_46_depth_is_resized_by_nearest_and_invalid_pixels_stay(rng, device, size):
    metres = depth_frames(rng, 2, 9, 14, 1)
    assert_same_bits(
        batch(metres, device=device, size=size, layout="hwc"),
        np.stack([images.resized_nearest(frame, *size) for frame in metres]),
    )
    units = rng.integers(0, 2**16, (2, 9, 14, 1), dtype=np.uint16)
    result = batch(units, device=device, size=size, layout="hwc", unit_m=0.001)
    nearest = np.stack([images.resized_nearest(frame, *size) for frame in units])
    assert_same_bits(result, (nearest * np.float64(0.001)).astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rule_46_depth_is_rounded_once(rng, device, dtype):
    units = rng.integers(0, 2**16, (1, 64, 64, 1), dtype=np.uint16)
    result = batch(units, device=device, unit_m=0.0001, dtype=dtype, layout="hwc")
    assert_same_bits(result, round_to(units * np.float64(0.0001), DTYPES[dtype]))


def test_rule_46_depth_follows_the_geometry_and_pads_with_0(rng, device):
    metres = depth_frames(rng, 1, 9, 20, 1)
    result = batch(metres, np.int64([0, -1]), device, size=(10, 10), fit="pad", layout="hwc")
    top, left, height, width = images.letterboxed(metres[0], 10, 10)
    expected = np.zeros((2, 10, 10, 1), np.float32)
    expected[0, top : top + height, left : left + width] = images.resized_nearest(metres[0], height, width)
    assert_same_bits(result, expected)
    shifted = batch(metres, np.zeros(20, np.int64), device, shift=2, layout="hwc")
    padded = np.pad(metres[0], ((2, 2), (2, 2), (0, 0)), mode="edge")
    allowed = {padded[y : y + 9, x : x + 20].tobytes() for y in range(5) for x in range(5)}
    assert {image.tobytes() for image in shifted} <= allowed


# ---- Arguments ----

FRAMES = np.zeros((2, 8, 10, 3), np.uint8)
GREY = np.zeros((2, 8, 10, 1), np.uint8)
DEPTH = np.zeros((2, 8, 10, 1), np.uint16)


@pytest.mark.parametrize(
    ("frames", "options", "message"),
    [
        (FRAMES, {"size": (0, 4)}, "size: "),
        (FRAMES, {"size": (4, 16385)}, r"size: .*16385"),
        (FRAMES, {"size": 4}, "size: "),
        (FRAMES, {"size": (4, 4.5)}, "size: "),
        (FRAMES, {"fit": "pad"}, "fit: "),
        (FRAMES, {"fit": "cover", "size": (4, 4)}, "fit: "),
        (FRAMES, {"interpolation": "lanczos", "size": (4, 4)}, "interpolation: "),
        (FRAMES, {"crop": (9, 4)}, "crop: "),
        (FRAMES, {"crop": (4, 4), "size": (3, 9)}, "crop: "),
        (FRAMES, {"crop": (4, 4), "shift": 2}, "shift: "),
        (FRAMES, {"shift": -1}, r"shift: .*-1"),
        (FRAMES, {"crop_at": "middle"}, "crop_at: "),
        (FRAMES, {"crop_scale": 0}, "crop_scale: "),
        (FRAMES, {"crop_scale": (0.5, 1.5)}, "crop_scale: "),
        (FRAMES, {"crop_scale": (0.9, 0.5)}, "crop_scale: "),
        (FRAMES, {"brightness": (-0.1, 1)}, "brightness: "),
        (FRAMES, {"contrast": -0.5}, "contrast: "),
        (FRAMES, {"saturation": "much"}, "saturation: "),
        (FRAMES, {"hue": 0.6}, "hue: "),
        (FRAMES, {"flip_horizontal": 1.5}, "flip_horizontal: "),
        (FRAMES, {"flip_vertical": True}, "flip_vertical: "),
        (FRAMES, {"rotation": 200}, "rotation: "),
        (FRAMES, {"rotation": (10, -10)}, "rotation: "),
        (FRAMES, {"blur": 1.0}, "blur_kernel: with blur, expected an odd number .* got 0"),
        (FRAMES, {"blur_kernel": 3}, "blur_kernel: goes with blur, got none"),
        (FRAMES, {"blur": 1.0, "blur_kernel": 4}, "blur_kernel: .*odd.*4"),
        (FRAMES, {"blur": 0, "blur_kernel": 3}, "blur: "),
        (FRAMES, {"blur": 1.0, "blur_kernel": 17}, r"blur_kernel: expected at most 15 for images of 8 x 10, got 17"),
        (FRAMES, {"erase": 2}, "erase: "),
        (FRAMES, {"erase_value": 0.5}, "erase_value: goes with erase"),
        (FRAMES, {"erase": 0.5, "erase_value": 128}, "erase_value: .*from 0.*to 1"),
        (FRAMES, {"erase": 0.5, "erase_value": (0.1, 0.2)}, "erase_value: "),
        (FRAMES, {"erase": 0.5, "erase_ratio": (0, 2)}, "erase_ratio: "),
        (FRAMES, {"erase": 0.5, "erase_scale": (0.5, 2)}, "erase_scale: "),
        (FRAMES, {"mean": (0.1, 0.2)}, "mean: "),
        (FRAMES, {"mean": "cifar"}, "mean: "),
        (FRAMES, {"std": 0}, "std: "),
        (FRAMES, {"mean": float("nan")}, "mean: "),
        (FRAMES, {"mean": 0.5, "dtype": "uint8"}, "mean: "),
        (FRAMES, {"dtype": "float64"}, "dtype: "),
        (FRAMES, {"layout": "nchw"}, "layout: "),
        (FRAMES, {"together": "left"}, "together: "),
        (FRAMES, {"per_frame": 1}, "per_frame: "),
        (FRAMES, {"unit_m": 0.001}, "unit_m: "),
        (GREY, {"hue": 0.1}, "hue: "),
        (GREY, {"saturation": 0.1}, "saturation: "),
        (GREY, {"mean": "imagenet"}, r"mean: .*got 3"),
        (DEPTH, {}, "unit_m: "),
        (DEPTH, {"unit_m": 0.0}, "unit_m: "),
        (DEPTH, {"unit_m": 0.001, "brightness": 0.1}, "brightness: "),
        (DEPTH, {"unit_m": 0.001, "blur": 1.0, "blur_kernel": 3}, "blur: "),
        (DEPTH, {"unit_m": 0.001, "erase": 0.5}, "erase: "),
        (DEPTH, {"unit_m": 0.001, "std": 2}, "std: "),
        (DEPTH, {"unit_m": 0.001, "dtype": "uint8"}, "dtype: "),
        (FRAMES[..., :2], {}, "frames: "),
        (FRAMES.astype(np.int16), {}, "frames: "),
        (FRAMES[0], {}, "frames: "),
        (FRAMES[:, ::2], {}, "frames: "),
        (FRAMES[:, :0], {}, "frames: "),
        (np.zeros((1, 2, 9000, 1), np.uint8), {"size": (1, 3)}, r"size: 1 x 3 cannot be made of 2 x 9000"),
        (
            np.zeros((1, 900, 9000, 1), np.uint8),
            {"size": (9, 40), "interpolation": "bicubic"},
            r"size: 9 x 40 cannot be made of 900 x 9000",
        ),
    ],
)
def test_invalid_options_are_refused_by_name(frames, options, message):
    with pytest.raises((robocache.ArgumentError, robocache.ArgumentTypeError), match=f"^{message}"):
        robocache.image_batch(frames, **options)


def test_options_are_checked_at_construction():
    with pytest.raises(robocache.ArgumentError, match=r"^hue: "):
        robocache.ImageOptions(hue=2)
    with pytest.raises(TypeError, match="brigthness"):
        robocache.ImageOptions(brigthness=0.2)
    with pytest.raises(robocache.ArgumentTypeError, match=r"^size: .*object"):
        robocache.ImageOptions(size=object())
    given = robocache.ImageOptions(size=np.array([4, 5]), mean=[0.5], dtype=torch.bfloat16, together=["left", "right"])
    assert given.size == (4, 5) and given.dtype == "bfloat16"
    equal = robocache.ImageOptions(size=(4, 5), mean=(0.5,), dtype="bfloat16", together=("left", "right"))
    assert given == equal and hash(given) == hash(equal)


def test_options_are_an_object_or_keywords(rng):
    frames = random_frames(rng, 2, 8, 8, 3)
    options = robocache.ImageOptions(size=(5, 5), mean=0.5, std=0.5)
    assert_same_bits(
        robocache.image_batch(frames, options=options), robocache.image_batch(frames, size=(5, 5), mean=0.5, std=0.5)
    )
    with pytest.raises(robocache.ArgumentError, match=r"^options: "):
        robocache.image_batch(frames, options=options, crop=(2, 2))
    with pytest.raises(robocache.ArgumentTypeError, match=r"^options: "):
        robocache.image_batch(frames, options={"size": (5, 5)})


def test_rows_are_checked(device):
    frames = torch.zeros(3, 4, 4, 3, dtype=torch.uint8, device=device)
    with pytest.raises(robocache.ArgumentTypeError, match=r"^rows: "):
        robocache.image_batch(frames, torch.zeros(2, dtype=torch.int32, device=device))
    with pytest.raises(robocache.ArgumentError, match=r"^rows: "):
        robocache.image_batch(frames, torch.zeros(2, 2, 2, dtype=torch.int64, device=device))
    beyond = torch.tensor([0, 3], device=device)
    if device == "cpu":
        with pytest.raises(robocache.ArgumentError, match=r"^rows: "):
            robocache.image_batch(frames, beyond)
    else:
        assert (robocache.image_batch(frames + 9, beyond)[1] == 0).all()


def test_rule_16_out(rng, device):
    frames = to_torch(random_frames(rng, 3, 6, 7, 3), device)
    expected = robocache.image_batch(frames, crop=(4, 4), dtype="bfloat16")
    out = poisoned((3, 3, 4, 4), torch.bfloat16, device)
    assert robocache.image_batch(frames, crop=(4, 4), dtype="bfloat16", out=out) is out
    assert_same_bits(to_numpy(out), to_numpy(expected))
    with pytest.raises(robocache.ArgumentTypeError, match=r"^out.*bfloat16"):
        robocache.image_batch(frames, crop=(4, 4), dtype="bfloat16", out=out.float())
    with pytest.raises(robocache.ArgumentError, match=r"^out.*\[3, 3, 4, 4\]"):
        robocache.image_batch(frames, crop=(4, 4), dtype="bfloat16", out=out[:2])
    with pytest.raises(robocache.ArgumentError, match=r"^out.*dense"):
        wide = poisoned((3, 3, 4, 8), torch.bfloat16, device)
        robocache.image_batch(frames, crop=(4, 4), dtype="bfloat16", out=wide[..., :4])
    with pytest.raises(robocache.ArgumentError, match=r"^out: .*frames"):
        robocache.image_batch(frames, **BYTES, out=frames)


def test_rule_18_numpy_gives_numpy(rng):
    frames = random_frames(rng, 2, 5, 5, 3)
    frames.flags.writeable = False
    result = robocache.image_batch(frames, np.int64([1, 0]), **BYTES)
    assert type(result) is np.ndarray
    assert_same_bits(result, frames[::-1])
    result[...] = 0
    read_only = np.zeros((2, 3, 5, 5), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(robocache.ArgumentError, match=r"^out: "):
        robocache.image_batch(frames, out=read_only)
