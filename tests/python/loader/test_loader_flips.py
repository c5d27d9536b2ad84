"""Flipped images in a batch, and the features that Window(mirror=) negates with them (rules 41 and 42)."""

import itertools
import pickle

import numpy as np
import pytest
from filmed import write_frames
from recordings import assert_same_batches, copied, joined

import robocache
from robocache import ImageOptions, Memory, Ranks, Window, actions

torch = pytest.importorskip("torch")

MATRIX = np.array([[50.0, 2.0, 11.5], [0.0, 48.0, 7.25], [0.0, 0.0, 1.0]])
OFFSETS = [0.0, 0.015, 0.04]
FLIPS = {"flip_horizontal": 0.5, "dtype": "uint8", "layout": "hwc"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    rng = np.random.default_rng(3)
    recording = []
    for _ in range(3):
        rows = {
            "top": rng.integers(0, 256, (40, 12, 20, 3), dtype=np.uint8),
            "wrist": rng.integers(0, 256, (40, 9, 9, 1), dtype=np.uint8),
            "depth": rng.integers(0, 9000, (40, 16, 24, 1), dtype=np.uint16),
            "action": rng.normal(1, 2, (40, 4)).astype(np.float32),
            "state": rng.normal(-1, 1, (40, 4)),
            "button": rng.integers(0, 2, (40, 1)),
        }
        recording.append({name: (np.arange(40) * 20_000_000, values) for name, values in rows.items()})
    streams = {"depth": {"unit_m": 0.001, "intrinsics": MATRIX}}
    return write_frames(tmp_path_factory.mktemp("flips") / "cache", recording, "raw", streams)


def loader_of(dataset, windows, device="cpu", **options):
    options = {"batch_size": 64, "seed": 7, "anchors": "action", "device": device} | options
    return robocache.Loader(dataset, delta_timestamps=windows, **options)


def windows_of(images, **action):
    return {
        "top": Window(images=ImageOptions(**images)),
        "wrist": Window([0.0, 0.02], images=ImageOptions(per_frame=True, **images)),
        "action": Window(OFFSETS, **action),
        "button": None,
    }


def flipped_of(result, unflipped):
    """Returns whether each sample of `result` is the mirror image of `unflipped`'s; both cameras must agree."""
    flips = {}
    for key in ("top", "wrist"):
        upright = (result[key] == unflipped[key]).reshape(len(result[key]), -1).all(axis=1)
        mirrored = (result[key] == unflipped[key][..., ::-1, :]).reshape(len(result[key]), -1).all(axis=1)
        assert (upright != mirrored).all()
        flips[key] = mirrored
    np.testing.assert_array_equal(flips["top"], flips["wrist"])
    return flips["top"]


def test_all_cameras_of_a_sample_flip_together_and_features_change_their_signs(dataset, device):
    unflipped = copied(next(loader_of(dataset, windows_of({"dtype": "uint8", "layout": "hwc"}), device)))
    result = copied(next(loader_of(dataset, windows_of(FLIPS, mirror=[0, 3]), device)))
    flipped = flipped_of(result, unflipped)
    assert 15 < flipped.sum() < 49
    signs = np.where(flipped[:, None, None], np.float32([-1, 1, 1, -1]), np.float32(1))
    np.testing.assert_array_equal(result["action"], unflipped["action"] * signs)
    np.testing.assert_array_equal(result["button"], unflipped["button"])
    np.testing.assert_array_equal(result["action_is_pad"], unflipped["action_is_pad"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_signs_change_before_normalisation(dataset, device, dtype):
    window = {"normalize": "mean_std", "dtype": dtype}
    upright = next(loader_of(dataset, windows_of({"dtype": "uint8", "layout": "hwc"}, **window), device))
    recorded = copied(next(loader_of(dataset, windows_of({"dtype": "uint8", "layout": "hwc"}))))
    result = next(loader_of(dataset, windows_of(FLIPS, mirror=[1], **window), device))
    assert result["action"].dtype == getattr(torch, dtype)
    upright["action"], result["action"] = upright["action"].float(), result["action"].float()
    result, upright = copied(result), copied(upright)
    flipped = flipped_of(result, recorded)
    np.testing.assert_array_equal(result["action"][~flipped], upright["action"][~flipped])  # the same bits
    np.testing.assert_array_equal(result["action"][..., [0, 2, 3]], upright["action"][..., [0, 2, 3]])
    values = dataset.streams["action"].values[:, 1].astype(np.float64)
    expected = (-recorded["action"][flipped][..., 1] - values.mean()) / values.std()
    np.testing.assert_allclose(
        result["action"][flipped][..., 1], expected, rtol=2**-8 if dtype == "bfloat16" else 1e-5, atol=1e-5
    )


def test_a_relative_action_is_relative_to_the_mirrored_state(dataset, device):
    def windows(images, mirrors):
        relative = {"convert": [actions.Relative("joints")], "base": "state", "dtype": "float64"}
        action, state = Window(OFFSETS, **relative, **mirrors["action"]), Window(dtype="float64", **mirrors["state"])
        return windows_of(images) | {"action": action, "state": state}

    recorded = {"action": Window(OFFSETS, dtype="float64"), "state": Window(dtype="float64")}
    recorded = copied(next(loader_of(dataset, windows_of({"dtype": "uint8", "layout": "hwc"}) | recorded)))
    loader = loader_of(dataset, windows(FLIPS, {"action": {"mirror": [0]}, "state": {"mirror": [0, 2]}}), device)
    batch = next(loader)
    result = copied(batch)
    flipped = flipped_of(result, recorded)[:, None]
    action = recorded["action"] * np.where(flipped[..., None], [-1, 1, 1, 1], 1)
    state = recorded["state"] * np.where(flipped, [-1, 1, -1, 1], 1)
    np.testing.assert_array_equal(result["state"], state)
    np.testing.assert_array_equal(result["action_base"], state)
    np.testing.assert_array_equal(result["action"], action - state[:, None])
    np.testing.assert_allclose(loader.to_absolute("action", batch["action"], batch).cpu().numpy(), action, rtol=1e-14)


def test_two_flips_reverse_a_sign_twice(dataset, device):
    images = {"flip_horizontal": 0.5, "flip_vertical": 0.5, "dtype": "uint8", "layout": "hwc"}
    windows = {
        "top": Window(images=ImageOptions(**images)),
        "action": Window(mirror={"horizontal": [0, 1], "vertical": (1, 2)}),
    }
    upright = {"top": Window(images=ImageOptions(dtype="uint8", layout="hwc")), "action": None}
    unflipped = copied(next(loader_of(dataset, upright)))
    result = copied(next(loader_of(dataset, windows, device)))
    flips = set()
    pairs = zip(result["top"], result["action"], unflipped["top"], unflipped["action"], strict=True)
    for image, action, *recorded in pairs:
        ((h, v),) = [(h, v) for h in (1, -1) for v in (1, -1) if np.array_equal(image, recorded[0][::v, ::h])]
        flips.add((h, v))
        np.testing.assert_array_equal(action, recorded[1] * np.float32([h, h * v, v, 1]))
    assert len(flips) == 4


def test_the_draw_depends_on_the_sample_alone(dataset, device):
    windows = windows_of(FLIPS, mirror=[0, 1], normalize="min_max")
    all_samples = copied(next(loader_of(dataset, windows, batch_size=120)))

    def check(batches, expected=all_samples):
        assert_same_batches([joined(batches)], [expected])

    check(loader_of(dataset, windows, device, batch_size=7))
    ranks = [loader_of(dataset, windows, device, batch_size=20, ranks=Ranks(rank=r, world_size=2)) for r in (0, 1)]
    check(itertools.chain(*zip(*ranks, strict=True)))
    loader = loader_of(dataset, windows, device, batch_size=40)
    first, state = next(loader), loader.state_dict()
    resumed = loader_of(dataset, windows, device, batch_size=40, memory=Memory(prefetch=0))
    resumed.load_state_dict(state)
    check([first, *resumed])
    check(pickle.loads(pickle.dumps(loader_of(dataset, windows, device, batch_size=40))))
    gathered = [loader_of(dataset, windows).gather([anchor]) for anchor in (5, 17, 17, 3)]
    check(gathered, copied(loader_of(dataset, windows, device).gather([5, 17, 17, 3])))
    two_epochs = loader_of(dataset, windows, device, batch_size=120)
    list(two_epochs)
    later = copied(next(two_epochs))  # the next epoch
    assert not np.array_equal(np.sort(later["action"], axis=0), np.sort(all_samples["action"], axis=0))


def test_intrinsics_describe_the_mirrored_world(dataset, device):
    """A point of the mirrored world projects to its pixel of the flipped image; focal lengths stay positive."""
    point = np.array([0.2, -0.1, 1.5])

    def pixel(matrix, point):
        x, y, z = matrix.astype(np.float64) @ point
        return np.array([x / z, y / z])

    before = pixel(MATRIX, point)  # in the recorded image of 24 x 16 pixels
    for images, mirrored, after in (
        ({"flip_horizontal": 1}, [-1, 1, 1], [23 - before[0], before[1]]),
        ({"flip_vertical": 1}, [1, -1, 1], [before[0], 15 - before[1]]),
        ({"flip_vertical": 1, "flip_horizontal": 1}, [-1, -1, 1], [23 - before[0], 15 - before[1]]),
        ({"rotation": (90, 90)}, [1, 1, 1], [before[1] + 4, 19 - before[0]]),
        (
            {"crop": (12, 10), "crop_at": "center", "flip_horizontal": 1},
            [-1, 1, 1],
            [9 - (before[0] - 7), before[1] - 2],
        ),
        (
            {"size": (8, 12), "flip_horizontal": 1},
            [-1, 1, 1],
            [11 - ((before[0] + 0.5) / 2 - 0.5), (before[1] + 0.5) / 2 - 0.5],
        ),
    ):
        windows = {"depth": Window(images=ImageOptions(**images)), "action": Window(mirror=[])}
        matrices = copied(next(loader_of(dataset, windows, device)))["depth_intrinsics"]
        assert (matrices[:, 0, 0] > 0).all() or "rotation" in images
        for matrix in matrices[:5]:
            np.testing.assert_allclose(pixel(matrix, point * mirrored), after, atol=1e-4)


def test_statistics_and_the_spec_are_of_recorded_values(dataset):
    unaugmented = loader_of(dataset, windows_of({}, normalize="mean_std"))
    augmented = {"flip_horizontal": 0.5, "rotation": 5, "blur": 1, "blur_kernel": 3, "erase": 0.1}
    assert loader_of(dataset, windows_of(augmented, mirror=[0], normalize="mean_std")).spec == unaugmented.spec
    means = []
    for images, mirror in (({}, {}), ({"flip_horizontal": 0.5}, {"mirror": [0]})):
        windows = windows_of(images, convert=[actions.Relative("joints")], base="state", **mirror)
        loader = loader_of(dataset, windows | {"state": Window(**mirror)})
        means.append(dataset.statistics(loader)["action"].mean)
    np.testing.assert_array_equal(*means)


def test_a_mirror_changes_nothing_without_flips(dataset, device):
    """Evaluation may use the windows of training."""
    without_mirror = copied(next(loader_of(dataset, windows_of({}), device)))
    with_mirror = copied(next(loader_of(dataset, windows_of({}, mirror=[0]), device)))
    for name, array in without_mirror.items():
        np.testing.assert_array_equal(with_mirror[name], array)


def test_with_an_empty_mirror_cameras_may_flip_differently(dataset):
    windows = windows_of({}, mirror=[]) | {"top": Window(images=ImageOptions(flip_horizontal=1))}
    result, unflipped = next(loader_of(dataset, windows)), next(loader_of(dataset, windows_of({})))
    assert torch.equal(result["top"], unflipped["top"].flip(-1)) and torch.equal(result["wrist"], unflipped["wrist"])
    assert torch.equal(result["action"], unflipped["action"])


MIRRORED = windows_of(FLIPS, mirror=[1])


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (windows_of(FLIPS), r"\['action'\].mirror: .*flip_horizontal of 'top'.*got none"),
        (windows_of(FLIPS, mirror={"vertical": [0]}), r"\['action'\].mirror: .*flip_horizontal"),
        (windows_of(FLIPS, mirror=[4]), r"\['action'\].mirror: .*below 4, got 4"),
        (windows_of(FLIPS, mirror=[2, 1]), r"\['action'\].mirror: .*ascending.*got 1"),
        (windows_of(FLIPS, mirror=[-1]), r"\['action'\].mirror: .*got -1"),
        (windows_of(FLIPS, mirror=[0.5]), r"\['action'\].mirror: "),
        (windows_of(FLIPS, mirror=3), r"\['action'\].mirror: "),
        (windows_of(FLIPS, mirror={"x": [1]}), r"\['action'\].mirror: expected 'horizontal' and 'vertical'"),
        (windows_of({**FLIPS, "flip_vertical": 0.5}, mirror=[1]), r"\['action'\].mirror: expected \{'horizontal'"),
        (MIRRORED | {"button": Window(mirror=[0])}, r"\['button'\].mirror: expected \[\]"),
        (MIRRORED | {"top": Window(mirror=[0], images=ImageOptions(**FLIPS))}, r"\['top'\].mirror: expected none"),
        (
            MIRRORED | {"wrist": Window(images=ImageOptions(flip_horizontal=0.25))},
            r"\['wrist'\].images.flip_horizontal: ",
        ),
        (MIRRORED | {"wrist": Window()}, r"\['wrist'\].images.flip_horizontal: expected 0.5 as for 'top'"),
    ],
)
def test_missing_and_impossible_mirrors_are_refused(dataset, windows, message):
    with pytest.raises((robocache.ArgumentError, robocache.ArgumentTypeError), match=f"^delta_timestamps{message}"):
        loader_of(dataset, windows)


def test_keys_without_a_mirror_take_the_default(dataset):
    flips = Window(mirror=[], images=ImageOptions(flip_horizontal=1))
    batch = next(loader_of(dataset, {"top": None, "action": None, "state": None}, default=flips))
    unflipped = next(loader_of(dataset, {"top": None, "action": None, "state": None}))
    assert torch.equal(batch["top"], unflipped["top"].flip(-1))
    assert torch.equal(batch["action"], unflipped["action"]) and torch.equal(batch["state"], unflipped["state"])


@pytest.mark.parametrize("form", ["packed", "padded"])
def test_the_steps_of_a_segment_share_their_draws(dataset, device, form):
    def batch_of(images, windows):
        top = {"top": Window(images=ImageOptions(dtype="uint8", layout="hwc", **images))}
        options = {"batch_size": 4, "form": form, "min_steps": 2, "max_steps": 9, "seed": 3, "device": device}
        return copied(next(iter(robocache.EpisodeLoader(dataset, delta_timestamps=top | windows, **options))))

    unflipped = batch_of({}, {"action": None})
    result = batch_of({"flip_horizontal": 0.5}, {"action": Window(mirror=[0])})
    cropped = batch_of({"crop": (6, 10)}, {"action": None})["top"]
    ends = np.cumsum(unflipped["lengths"])
    seen_flips = set()
    for i, length in enumerate(unflipped["lengths"]):
        steps = np.s_[ends[i] - length : ends[i]] if form == "packed" else np.s_[i, :length]
        flipped = np.array_equal(result["top"][steps], unflipped["top"][steps][:, :, ::-1])
        assert flipped or np.array_equal(result["top"][steps], unflipped["top"][steps])
        seen_flips.add(flipped)
        signs = np.float32([-1, 1, 1, 1]) if flipped else np.float32(1)
        np.testing.assert_array_equal(result["action"][steps], unflipped["action"][steps] * signs)
        crops = [unflipped["top"][steps][:, y : y + 6, x : x + 10] for y in range(7) for x in range(11)]
        assert sum(np.array_equal(crop, cropped[steps]) for crop in crops) == 1
    assert len(seen_flips) == 2
