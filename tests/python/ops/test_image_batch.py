"""image_batch: rules 41, 42 and 46, on the CPU and on CUDA."""

import math

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
    """Bytes of which many are 0 and 255, where clamping and rounding show."""
    frames = rng.integers(0, 256, shape, dtype=np.uint8)
    return np.where(rng.random(shape) < 0.2, rng.choice(np.uint8([0, 255]), shape), frames)


def places(count, height, width):
    """Frames whose red and green say where a pixel lies."""
    frame = np.zeros((height, width, 3), np.uint8)
    frame[..., 0], frame[..., 1] = np.arange(height)[:, None], np.arange(width)
    return np.broadcast_to(frame, (count, *frame.shape)).copy()


def batch(frames, rows=None, device="cpu", **options):
    """robocache.image_batch through torch on `device`, as numpy."""
    rows = None if rows is None else torch.as_tensor(rows, device=device)
    return to_numpy(robocache.image_batch(to_torch(frames, device), rows, **options))


def corners(made):
    """Of bytes made of places(): the row and column of the first pixel, [..., 2]."""
    return made[..., 0, 0, :2].astype(int)


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
def test_rule_41_a_resized_pixel_is_the_exact_mean_rounded_once(rng, device, before, after, channels):
    frames = random_frames(rng, 3, *before, channels)
    made = batch(frames, device=device, size=after, **BYTES)
    assert_same_bits(made, np.stack([images.resized(frame, *after) for frame in frames]))


@pytest.mark.parametrize(
    ("before", "after"),
    [((480, 640), (224, 224)), ((256, 256), (224, 224)), ((100, 75), (333, 224)), ((719, 1281), (64, 97))],
)
def test_rule_41_resizing_is_torchs_antialiased_bilinear(rng, device, before, after):
    """torch's uint8 rounds twice and weighs in 16 bits; its float64 is exact but for its last digits."""
    frames = random_frames(rng, 2, *before, 3)
    made = batch(frames, device=device, size=after, dtype="uint8").astype(np.int64)
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2)
    options = {"size": after, "mode": "bilinear", "antialias": True}
    exact = torch.nn.functional.interpolate(planes.double(), **options).numpy()
    assert np.abs(made - exact).max() <= 0.5 + 1e-9
    assert np.abs(made - torch.nn.functional.interpolate(planes, **options).numpy()).max() <= 1


def test_rule_41_what_is_even_stays_even(device):
    """Weights add up to one, whatever the sides."""
    for value in (0, 1, 127, 254, 255):
        frames = np.full((1, 37, 53, 3), value, np.uint8)
        for size in ((11, 7), (64, 64), (37, 100)):
            for interpolation in ("bilinear", "bicubic", "area", "nearest"):
                options = {"size": size, "interpolation": interpolation, "dtype": "uint8"}
                assert (batch(frames, device=device, **options) == value).all()


SIZES = [((48, 64), (22, 22)), ((31, 17), (64, 97)), ((97, 201), (224, 33)), ((1, 1), (3, 2)), ((5, 7), (5, 3))]


@pytest.mark.parametrize(("before", "after"), [*SIZES, ((480, 640), (224, 224)), ((1200, 30), (24, 30))])
def test_rule_41_bicubic_is_torchs_antialiased(rng, device, before, after):
    """Weights are multiples of 2^-15 of the largest, which moves a mean by less than 0.02."""
    frames = random_frames(rng, 2, *before, 3)
    made = batch(frames, device=device, size=after, interpolation="bicubic", dtype="uint8").astype(np.int64)
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2)
    exact = torch.nn.functional.interpolate(planes.double(), size=after, mode="bicubic", antialias=True).numpy()
    assert np.abs(made - exact.clip(0, 255)).max() <= 0.52
    assert_same_bits(made, batch(frames, size=after, interpolation="bicubic", dtype="uint8").astype(np.int64))


@pytest.mark.parametrize(("before", "after"), [((60, 80), (24, 33)), ((24, 33), (60, 80))])
def test_rule_41_bicubic_is_pils(device, before, after):
    """PIL rounds after each axis."""
    image = pytest.importorskip("PIL.Image")
    y, x = np.mgrid[: before[0], : before[1]]
    frame = np.stack([120 + 90 * np.sin(y / 5), 128 + 70 * np.cos(x / 6), (3 * x + y) % 200 / 2 + 60], axis=-1)
    frame = frame.astype(np.uint8)
    made = batch(frame[None], device=device, size=after, interpolation="bicubic", **BYTES)[0].astype(int)
    expected = np.asarray(image.fromarray(frame).resize(after[::-1], image.Resampling.BICUBIC)).astype(int)
    assert np.abs(made - expected).max() <= 1


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_rule_41_area_is_the_mean_of_what_a_pixel_covers(rng, device, before, after):
    """Each pixel repeated so often that both grids divide it; their sums are whole numbers."""
    frames = random_frames(rng, 2, *before, 3)
    made = batch(frames, device=device, size=after, interpolation="area", **BYTES)
    sums = frames.astype(np.int64)
    for axis in (1, 2):
        sums = np.repeat(sums, after[axis - 1], axis=axis)
        sums = sums.reshape(*sums.shape[:axis], after[axis - 1], before[axis - 1], *sums.shape[axis + 1 :])
        sums = sums.sum(axis=axis + 1)
    assert_same_bits(made, np.rint(sums / (before[0] * before[1])).astype(np.uint8))


def test_rule_41_area_is_torchs_where_sides_divide(rng, device):
    frames = random_frames(rng, 2, 48, 60, 3)
    made = batch(frames, device=device, size=(12, 20), interpolation="area", dtype="uint8")
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2).double()
    exact = torch.nn.functional.interpolate(planes, size=(12, 20), mode="area").numpy()
    assert np.abs(made - exact).max() <= 0.5 + 1e-9


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_rule_41_nearest_keeps_values(rng, device, before, after, channels):
    frames = random_frames(rng, 2, *before, channels)
    made = batch(frames, device=device, size=after, interpolation="nearest", **BYTES)
    assert_same_bits(made, np.stack([images.resized_nearest(frame, *after) for frame in frames]))
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2)
    assert_same_bits(
        made.transpose(0, 3, 1, 2), torch.nn.functional.interpolate(planes, size=after, mode="nearest-exact").numpy()
    )


@pytest.mark.parametrize("interpolation", ["bicubic", "area", "nearest"])
def test_rule_41_every_interpolation_goes_with_the_other_steps(rng, device, interpolation):
    frames = random_frames(rng, 2, 40, 30, 3)
    plain = batch(frames, device=device, size=(20, 17), interpolation=interpolation, **BYTES)
    cropped = batch(
        frames, device=device, size=(20, 17), interpolation=interpolation, crop=(9, 8), crop_at="center", **BYTES
    )
    assert_same_bits(cropped, plain[:, 5:14, 4:12])
    part = batch(
        frames, device=device, crop_scale=0.25, crop_at="center", size=(20, 17), interpolation=interpolation, **BYTES
    )
    assert_same_bits(
        part, batch(frames[:, 10:30, 7:22], device=device, size=(20, 17), interpolation=interpolation, **BYTES)
    )
    letterbox = batch(frames, device=device, size=(20, 20), fit="pad", interpolation=interpolation, **BYTES)
    assert_same_bits(
        letterbox[:, :, 2:17], batch(frames, device=device, size=(20, 15), interpolation=interpolation, **BYTES)
    )
    assert (letterbox[:, :, :2] == 0).all() and (letterbox[:, :, 17:] == 0).all()
    options = {
        "size": (23, 31),
        "interpolation": interpolation,
        "brightness": 0.3,
        "contrast": 0.3,
        "hue": 0.2,
        "mean": 0.5,
    }
    assert_same_bits(batch(frames, device=device, seed=4, **options), batch(frames, seed=4, **options))
    assert_same_bits(batch(frames, device=device, size=(40, 30), interpolation=interpolation, **BYTES), frames)


def test_rule_46_depth_takes_the_nearest_pixels_whatever_colour_takes(rng, device):
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
def test_rule_41_pad_is_openpis_letterbox(rng, device, before, after):
    frames = random_frames(rng, 2, *before, 3)
    made = batch(frames, device=device, size=after, fit="pad", **BYTES)
    top, left, height, width = images.letterboxed(frames[0], *after)
    expected = np.zeros((2, *after, 3), np.uint8)
    for frame, into in zip(frames, expected, strict=True):
        into[top : top + height, left : left + width] = images.resized(frame, height, width)
    assert_same_bits(made, expected)


@pytest.mark.parametrize(("before", "after"), [((48, 64), (22, 22)), ((20, 31), (12, 9)), ((10, 10), (30, 20))])
def test_rule_41_fit_by_cropping_is_the_middle_of_a_frame_that_covers(rng, device, before, after):
    frames = random_frames(rng, 1, *before, 3)
    made = batch(frames, device=device, size=after, fit="crop", **BYTES)
    factor = max(after[0] / before[0], after[1] / before[1])
    covering = [math.floor(side * factor + 1e-9) for side in before]
    top, left = ((a - b) // 2 for a, b in zip(covering, after, strict=True))
    expected = images.resized(frames[0], *covering)[top : top + after[0], left : left + after[1]]
    assert_same_bits(made[0], expected)


def test_rule_41_a_part_of_the_area_then_resized_as_openvla_evaluates(rng, device):
    frames = random_frames(rng, 2, 32, 40, 3)
    made = batch(frames, device=device, crop_scale=0.9, crop_at="center", size=(14, 14), **BYTES)
    height, width = (round(side * math.sqrt(0.9)) for side in (32, 40))
    top, left = (32 - height) // 2, (40 - width) // 2
    expected = [images.resized(frame[top : top + height, left : left + width], 14, 14) for frame in frames]
    assert_same_bits(made, np.stack(expected))


def test_rule_41_without_a_size_a_part_becomes_a_frame_again(rng, device):
    frames = random_frames(rng, 1, 20, 20, 3)
    made = batch(frames, device=device, crop_scale=(0.9025, 0.9025), crop_at="center", **BYTES)
    assert_same_bits(made[0], images.resized(frames[0][:19, :19], 20, 20))


def test_rule_41_parts_are_drawn_by_area_and_lie_anywhere(device):
    """A part made one pixel is its middle, since the tent weighs evenly about it."""
    count, side = 4000, 41
    made = batch(
        places(1, side, side), np.zeros(count, np.int64), device, crop_scale=(0.25, 1.0), size=(1, 1), **BYTES
    )[:, 0, 0, :2].astype(float)
    # A quarter of the area is half of each side, whose middle is at least a quarter of the side from the edges.
    assert made.min() >= side / 4 - 2 and made.max() <= side * 3 / 4 + 1
    assert np.abs(made.mean(axis=0) - (side - 1) / 2).max() < 5 * 6 / math.sqrt(count)
    assert abs(np.corrcoef(made.T)[0, 1]) < 5 / math.sqrt(count)


def test_rule_41_resizing_then_cropping(rng, device):
    frames = random_frames(rng, 1, 30, 20, 3)
    made = batch(frames, device=device, size=(15, 16), crop=(7, 9), crop_at="center", **BYTES)
    assert_same_bits(made[0], images.resized(frames[0], 15, 16)[4:11, 3:12])


# ---- Cropping and shifting: exact ----


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (48, 64), (33, 31)])
@pytest.mark.parametrize("channels", [1, 3])
def test_rule_41_crops_are_slices(rng, device, shape, channels):
    frames = random_frames(rng, 4, *shape, channels)
    for crop in {(1, 1), shape, (shape[0], 1), ((shape[0] + 1) // 2, (shape[1] + 1) // 2)}:
        top, left = (shape[0] - crop[0]) // 2, (shape[1] - crop[1]) // 2
        made = batch(frames, device=device, crop=crop, crop_at="center", **BYTES)
        assert_same_bits(made, frames[:, top : top + crop[0], left : left + crop[1]])


def test_rule_42_random_crops_are_slices_at_every_place_alike(rng, device):
    count = 9000
    made = batch(places(1, 11, 10), np.zeros(count, np.int64), device, crop=(9, 8), **BYTES)
    at = corners(made)
    for crop, (top, left) in zip(made[:50], at[:50], strict=True):
        assert_same_bits(crop, places(1, 11, 10)[0, top : top + 9, left : left + 8])
    counts = np.zeros((3, 3))
    np.add.at(counts, tuple(at.T), 1)
    expected = count / 9
    assert (np.abs(counts - expected) < 5 * math.sqrt(expected)).all(), counts


def test_rule_41_shifts_repeat_the_edge_as_drq(rng, device):
    frames = random_frames(rng, 1, 12, 9, 3)
    shift, count = 3, 500
    made = batch(frames, np.zeros(count, np.int64), device, shift=shift, **BYTES)
    padded = np.pad(frames[0], ((shift, shift), (shift, shift), (0, 0)), mode="edge")
    moved = {
        (y, x): padded[shift + y : shift + y + 12, shift + x : shift + x + 9]
        for y in range(-shift, shift + 1)
        for x in range(-shift, shift + 1)
    }
    seen = {next((at for at, frame in moved.items() if (frame == one).all()), None) for one in made}
    assert None not in seen
    assert len(seen) == (2 * shift + 1) ** 2  # one of 49 is missing in 500 draws once in 600 times


def test_rule_41_shifts_beyond_the_frame(rng, device):
    frames = random_frames(rng, 1, 3, 2, 1)
    made = batch(frames, np.zeros(200, np.int64), device, shift=9, **BYTES)
    values = set(frames.ravel().tolist())
    assert set(made.ravel().tolist()) == values
    padded = np.pad(frames[0], ((9, 9), (9, 9), (0, 0)), mode="edge")
    allowed = {padded[y : y + 3, x : x + 2].tobytes() for y in range(19) for x in range(19)}
    assert {one.tobytes() for one in made} <= allowed


# ---- Draws ----


def test_rule_42_a_draw_belongs_to_its_sample(rng, device, threads):
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
    whole = batch(frames, rows, device, sample=100, **options)
    for begin, end in ((0, 1), (1, 17), (17, 64)):
        assert_same_bits(batch(frames, rows[begin:end], device, sample=100 + begin, **options), whole[begin:end])
    threads(1)
    assert_same_bits(batch(frames, rows, device, sample=100, **options), whole)
    assert_same_bits(batch(frames, rows, "cpu", sample=100, **options), whole)


def test_rule_42_seed_epoch_and_sample_all_count(device):
    frames, rows = places(1, 64, 64), np.zeros(300, np.int64)
    drawn = [
        corners(batch(frames, rows, device, crop=(9, 9), seed=seed, epoch=epoch, sample=sample, **BYTES))
        for seed, epoch, sample in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 300), (-1, 0, 0), (1 << 40, 0, 0))
    ]
    for a in range(len(drawn)):
        for b in range(a):
            # Of 56 x 56 places two draws share one in 3136 times.
            assert (drawn[a] == drawn[b]).all(axis=1).sum() < 5
    rows, columns = np.concatenate(drawn).T
    assert abs(np.corrcoef(rows, columns)[0, 1]) < 5 / math.sqrt(len(rows))
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < 5 / math.sqrt(len(rows))


def test_rule_42_a_window_draws_once_unless_per_frame(device):
    frames, rows = places(1, 40, 40), np.zeros((50, 4), np.int64)
    together = corners(batch(frames, rows, device, crop=(8, 8), **BYTES))
    assert (together == together[:, :1]).all()
    assert len(np.unique(together[:, 0], axis=0)) > 30
    apart = corners(batch(frames, rows, device, crop=(8, 8), per_frame=True, **BYTES))
    assert len(np.unique(apart.reshape(-1, 2), axis=0)) > 150


def test_rule_42_factors_are_drawn_evenly_from_their_range(device):
    frames = np.full((1, 1, 1, 1), 100, np.uint8)
    made = batch(frames, np.zeros(5000, np.int64), device, brightness=0.5, **BYTES).ravel()
    assert made.min() == 50 and made.max() == 150
    counts = np.histogram(made, bins=np.linspace(49.5, 150.5, 11))[0]
    expected = len(made) * np.diff(np.clip(np.linspace(49.5, 150.5, 11), 50, 150)) / 100
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all(), counts


# ---- Colour: torchvision's formulas in float64 ----

ROUNDED = 0.5 + 1e-4  # float32 has four digits behind the point of a byte


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7, 40.0])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_rule_41_factors_of_colour(rng, device, name, factor):
    frames = random_frames(rng, 3, 13, 21, 3)
    made = batch(frames, device=device, **{name: (factor, factor)}, **BYTES)
    formula = {"brightness": images.brightened, "contrast": images.contrasted, "saturation": images.saturated}[name]
    for frame, one in zip(frames, made, strict=True):
        # The weights of red, green and blue are multiples of 2^-16, and so is a mean.
        assert np.abs(one - formula(frame, factor)).max() <= ROUNDED + abs(1 - factor) * 255 * 2 * 2**-16
    if factor == 1:
        assert_same_bits(made, frames)


def test_rule_41_contrast_of_grey(rng, device):
    frames = random_frames(rng, 2, 9, 7, 1)
    made = batch(frames, device=device, contrast=(1.4, 1.4), **BYTES)
    for frame, one in zip(frames, made, strict=True):
        assert np.abs(one - images.contrasted(frame, 1.4)).max() <= ROUNDED


@pytest.mark.parametrize("turns", [-0.5, -0.21, 0.0, 0.05, 1 / 3, 0.5])
def test_rule_41_hue_is_turned_as_colorsys_has_it(rng, device, turns):
    frames = random_frames(rng, 1, 40, 50, 3)
    frames[0, :8] = rng.choice(
        np.uint8([0, 255]), (8, 50, 3)
    )  # the corners of the cube: greys, primaries, black, white
    made = batch(frames, device=device, hue=(turns, turns), **BYTES)
    assert np.abs(made[0] - images.hue_turned(frames[0], turns)).max() <= ROUNDED
    if turns == 0:
        assert_same_bits(made, frames)


def test_rule_41_colour_follows_the_order_brightness_contrast_saturation_hue(rng, device):
    frames = random_frames(rng, 2, 16, 24, 3)
    steps = {"brightness": (1.3, 1.3), "contrast": (0.6, 0.6), "saturation": (1.8, 1.8), "hue": (0.1, 0.1)}
    one_by_one = frames
    for name, factor in steps.items():
        one_by_one = batch(one_by_one, device=device, **{name: factor}, **BYTES)
    assert_same_bits(batch(frames, device=device, **steps, **BYTES), one_by_one)
    # After what is done to the geometry: the mean is that of the crop.
    cropped = batch(frames[:, 2:14, 3:21], device=device, **steps, **BYTES)
    assert_same_bits(batch(frames, device=device, crop=(12, 18), crop_at="center", **steps, **BYTES), cropped)


# ---- Values ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("mean", "std"),
    [(None, None), ("imagenet", "imagenet"), (0.5, 0.5), ((0.1, 0.2, 0.3), 0.25), (None, (0.2, 0.3, 0.4)), (0.4, None)],
)
def test_rule_41_values_are_one_fma_and_one_rounding(device, dtype, mean, std):
    frames = np.stack([np.arange(256)] * 3, axis=-1).astype(np.uint8).reshape(1, 16, 16, 3)
    made = batch(frames, device=device, mean=mean, std=std, dtype=dtype, layout="hwc")
    named = {"imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])}.get(mean, (mean, std))
    mean, std = (
        np.broadcast_to(np.float64(none if x is None else x), 3) for x, none in zip(named, (0, 1), strict=True)
    )
    scale, offset = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
    expected = round_to(fma(frames.astype(np.float32), scale, offset, np.float32), DTYPES[dtype])
    assert_same_bits(made, expected)


@pytest.mark.parametrize("dtype", ["uint8", *DTYPES])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (16, 24), (9, 33)])
@pytest.mark.parametrize("channels", [1, 3])
def test_layouts_hold_the_same(rng, device, dtype, shape, channels):
    """Widths that are and are not whole vectors, from rows that begin at every byte of a word."""
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
    made = batch(frames, np.int64([[2, -1], [-7, 0]]), device, mean="imagenet", std="imagenet", **options)
    assert made.shape[:3] == (2, 2, 3)
    black = batch(np.zeros_like(frames), np.int64([[0]]), device, mean="imagenet", std="imagenet", **options)[0, 0]
    assert_same_bits(made[0, 1], black)
    assert_same_bits(made[1, 0], black)
    assert not (made[0, 0] == black).all()


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
def test_rule_46_depth_is_resized_by_nearest_and_what_is_no_measurement_stays(rng, device, size):
    metres = depth_frames(rng, 2, 9, 14, 1)
    assert_same_bits(
        batch(metres, device=device, size=size, layout="hwc"),
        np.stack([images.resized_nearest(frame, *size) for frame in metres]),
    )
    units = rng.integers(0, 2**16, (2, 9, 14, 1), dtype=np.uint16)
    made = batch(units, device=device, size=size, layout="hwc", unit_m=0.001)
    nearest = np.stack([images.resized_nearest(frame, *size) for frame in units])
    assert_same_bits(made, (nearest * np.float64(0.001)).astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rule_46_depth_is_rounded_once(rng, device, dtype):
    units = rng.integers(0, 2**16, (1, 64, 64, 1), dtype=np.uint16)
    made = batch(units, device=device, unit_m=0.0001, dtype=dtype, layout="hwc")
    assert_same_bits(made, round_to(units * np.float64(0.0001), DTYPES[dtype]))


def test_rule_46_depth_follows_the_geometry_and_pads_with_nothing(rng, device):
    metres = depth_frames(rng, 1, 9, 20, 1)
    made = batch(metres, np.int64([0, -1]), device, size=(10, 10), fit="pad", layout="hwc")
    top, left, height, width = images.letterboxed(metres[0], 10, 10)
    expected = np.zeros((2, 10, 10, 1), np.float32)
    expected[0, top : top + height, left : left + width] = images.resized_nearest(metres[0], height, width)
    assert_same_bits(made, expected)
    shifted = batch(metres, np.zeros(20, np.int64), device, shift=2, layout="hwc")
    padded = np.pad(metres[0], ((2, 2), (2, 2), (0, 0)), mode="edge")
    allowed = {padded[y : y + 9, x : x + 20].tobytes() for y in range(5) for x in range(5)}
    assert {one.tobytes() for one in shifted} <= allowed


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
def test_refusals_name_the_option(frames, options, message):
    with pytest.raises((robocache.ArgumentError, robocache.ArgumentTypeError), match=f"^{message}"):
        robocache.image_batch(frames, **options)


def test_options_are_checked_where_they_are_made():
    with pytest.raises(robocache.ArgumentError, match=r"^hue: "):
        robocache.ImageOptions(hue=2)
    with pytest.raises(TypeError, match="brigthness"):
        robocache.ImageOptions(brigthness=0.2)
    with pytest.raises(robocache.ArgumentTypeError, match=r"^size: .*object"):
        robocache.ImageOptions(size=object())
    made = robocache.ImageOptions(size=np.array([4, 5]), mean=[0.5], dtype=torch.bfloat16, together=["left", "right"])
    assert made.size == (4, 5) and made.dtype == "bfloat16"
    assert made == robocache.ImageOptions(size=(4, 5), mean=(0.5,), dtype="bfloat16", together=("left", "right"))
    assert hash(made) == hash(
        robocache.ImageOptions(size=(4, 5), mean=(0.5,), dtype="bfloat16", together=("left", "right"))
    )


def test_options_go_whole_or_as_keywords(rng):
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


def test_rule_18_numpy_in_numpy_out(rng):
    frames = random_frames(rng, 2, 5, 5, 3)
    frames.flags.writeable = False
    made = robocache.image_batch(frames, np.int64([1, 0]), **BYTES)
    assert type(made) is np.ndarray
    assert_same_bits(made, frames[::-1])
    made[...] = 0
    read_only = np.zeros((2, 3, 5, 5), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(robocache.ArgumentError, match=r"^out: "):
        robocache.image_batch(frames, out=read_only)
