"""ImageOptions(transform=): a caller's own function, the last step of a camera's images."""

import itertools
import pickle

import numpy as np
import pytest
from filmed import write_frames
from recordings import assert_same_batches, copied, joined

import robocache
from robocache import ImageOptions, Memory, Mixture, Ranks, Source, Window

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    rng = np.random.default_rng(4)
    recording = []
    for _ in range(2):
        rows = {
            "top": rng.integers(0, 256, (30, 10, 12, 3), dtype=np.uint8),
            "wrist": rng.integers(0, 256, (30, 8, 8, 3), dtype=np.uint8),
            "action": rng.normal(size=(30, 2)).astype(np.float32),
        }
        recording.append({name: (np.arange(30) * 20_000_000, values) for name, values in rows.items()})
    return write_frames(tmp_path_factory.mktemp("transform") / "cache", recording, {"top": "raw", "wrist": "jpeg"})


def add_seeds(images, seeds):
    """Returns values that depend on the images and the seeds."""
    assert images.dtype == torch.uint8 and seeds.dtype == torch.int64 and seeds.shape == images.shape[:1]
    assert images.device == seeds.device
    return images.double().flatten(1) + (seeds % 1000).double()[:, None]


def add_noise(images, seeds):
    """Adds random noise by torch's generator."""
    result = images.float()
    for image, seed in zip(result, seeds.tolist(), strict=True):
        image += torch.randn(image.shape, generator=torch.Generator().manual_seed(seed)).to(image.device)
    return result


def transform_arrays(images, seeds):
    assert isinstance(images, np.ndarray) and isinstance(seeds, np.ndarray)
    return images[..., ::2] + (seeds % 7).astype(np.uint8)[:, None, None, None]


def windows_of(transform, **options):
    return {
        "top": Window([-0.02, 0.0], images=ImageOptions(size=(7, 9), transform=transform, **options)),
        "wrist": Window(images=ImageOptions(transform=transform)),
        "action": None,
    }


def loader_of(dataset, windows, device="cpu", **options):
    options = {"batch_size": 16, "seed": 2, "device": device} | options
    return robocache.Loader(dataset, delta_timestamps=windows, **options)


def test_the_function_is_the_last_step(dataset, device):
    calls = {}

    def record(images, seeds):
        calls[images.shape[1:]] = images.clone(), seeds.clone()
        return images >> 1

    batch = next(loader_of(dataset, windows_of(record), device))
    windows = {
        "top": Window([-0.02, 0.0], images=ImageOptions(size=(7, 9), dtype="uint8")),
        "wrist": Window(images=ImageOptions(dtype="uint8")),
        "action": None,
    }
    raw = next(loader_of(dataset, windows, device))
    assert torch.equal(calls[2, 3, 7, 9][0], raw["top"]) and torch.equal(calls[3, 8, 8][0], raw["wrist"])
    assert torch.equal(batch["top"], raw["top"] >> 1) and torch.equal(batch["wrist"], raw["wrist"] >> 1)
    assert torch.equal(batch["top_is_pad"], raw["top_is_pad"]) and torch.equal(batch["action"], raw["action"])
    seeds = calls[3, 8, 8][1]
    assert torch.equal(seeds, calls[2, 3, 7, 9][1]) and str(seeds.device) == loader_of(dataset, windows, device).device
    assert len(seeds.unique()) == 16 and (seeds >= 0).all()


@pytest.mark.parametrize("transform", [add_seeds, add_noise])
def test_seeds_depend_on_the_sample_alone(dataset, device, transform):
    windows = windows_of(transform)
    expected = joined(loader_of(dataset, windows, batch_size=60))

    def check(batches):
        assert_same_batches([joined(batches)], [expected])

    check(loader_of(dataset, windows, device, batch_size=7))
    check(loader_of(dataset, windows, device, memory=Memory(prefetch=0)))
    check(map(copied, loader_of(dataset, windows, device, memory=Memory(reuse_buffers=True))))
    ranks = [loader_of(dataset, windows, device, batch_size=10, ranks=Ranks(rank=r, world_size=2)) for r in (0, 1)]
    check(itertools.chain(*zip(*ranks, strict=True)))
    loader = loader_of(dataset, windows, device)
    first, state = next(loader), loader.state_dict()
    resumed = loader_of(dataset, windows, device)
    resumed.load_state_dict(state)
    check([first, *resumed])
    check(pickle.loads(pickle.dumps(loader_of(dataset, windows, device))))
    two_epochs = loader_of(dataset, windows, device, batch_size=60)
    list(two_epochs)
    second_epoch = copied(next(two_epochs))
    order = [np.argsort(batch["anchor_index"]) for batch in (expected, second_epoch)]
    assert not np.array_equal(expected["wrist"][order[0]], second_epoch["wrist"][order[1]])  # another epoch draws anew


def test_gather_draws_by_the_anchor(dataset, device):
    loader = loader_of(dataset, windows_of(add_seeds), device)
    gathered = [loader_of(dataset, windows_of(add_seeds)).gather([anchor]) for anchor in (5, 9, 9, 44)]
    assert_same_batches([copied(loader.gather([5, 9, 9, 44]))], [joined(gathered)])


@pytest.mark.cuda
def test_the_function_runs_on_the_loaders_stream(dataset, cuda):
    windows = windows_of(add_seeds)
    on_stream = loader_of(dataset, windows, "cuda", memory=Memory(stream=torch.cuda.Stream()))
    assert_same_batches([joined(on_stream)], [joined(loader_of(dataset, windows))])


def test_a_mixture_and_the_default(dataset, device):
    default = Window(images=ImageOptions(transform=add_seeds))
    sources = Mixture([Source(dataset, weight=1), Source(dataset, weight=2)])
    batch = next(loader_of(sources, {"wrist": None, "action": None}, device, default=default))
    assert batch["wrist"].shape == (16, 192) and batch["action"].shape == (16, 2)


def test_the_function_may_change_dtype_and_layout(dataset, device):
    calls = []

    def record(images, seeds):
        calls.append(images)
        return images

    images = ImageOptions(transform=record, dtype="bfloat16", layout="hwc", mean=0.5)
    next(loader_of(dataset, {"wrist": Window(images=images)}, device, default=Window(dtype="float16")))
    assert calls[0].shape == (16, 8, 8, 3) and calls[0].dtype == torch.bfloat16


def test_numpy_gives_numpy(dataset):
    windows = {"wrist": Window(images=ImageOptions(transform=transform_arrays)), "action": None}
    recorded = {"wrist": Window(images=ImageOptions(dtype="uint8")), "action": None}
    result, raw = (next(loader_of(dataset, w, framework="numpy"))["wrist"] for w in (windows, recorded))
    assert isinstance(result, np.ndarray) and result.shape == (16, 3, 8, 4)
    offsets = result - raw[..., ::2]
    assert (offsets == offsets[:, :1, :1, :1]).all() and len(np.unique(offsets)) > 2


def test_a_spec_has_the_images_before_the_function(dataset):
    with_transform = loader_of(dataset, windows_of(add_noise)).spec
    raw = windows_of(None)
    raw["top"] = Window([-0.02, 0.0], images=ImageOptions(size=(7, 9), dtype="uint8"))
    raw["wrist"] = Window(images=ImageOptions(dtype="uint8"))
    assert with_transform == loader_of(dataset, raw).spec


@pytest.mark.parametrize(
    ("transform", "got"),
    [
        (lambda images, seeds: None, "None"),
        (lambda images, seeds: images[1:], r"\(15, 3, 8, 8\) on cpu"),
        (lambda images, seeds: images.numpy(), "array"),
        (lambda images, seeds: images.sum(), r"\(\) on cpu"),
    ],
)
def test_invalid_results_of_the_function_are_refused(dataset, transform, got):
    loader = loader_of(dataset, {"wrist": Window(images=ImageOptions(transform=transform))})
    with pytest.raises(robocache.ArgumentError, match=rf"\['wrist'\].images.transform: .*16 samples.*{got}"):
        next(loader)


def test_invalid_transforms_are_refused(dataset):
    with pytest.raises(robocache.ArgumentTypeError, match=r"^transform: expected a function"):
        ImageOptions(transform="blur")
    with pytest.raises(robocache.ArgumentError, match=r"^transform: expected none"):
        robocache.image_batch(np.zeros((1, 4, 4, 3), np.uint8), transform=add_noise)
    with pytest.raises(robocache.ArgumentError, match="mean: goes with a floating dtype"):
        loader_of(dataset, {"wrist": Window(images=ImageOptions(transform=add_noise, mean=0.5))})


def grey(images, seeds):
    """Returns three equal channels that share memory, as torchvision's Grayscale(3) does."""
    if isinstance(images, np.ndarray):
        return np.broadcast_to(images[..., :1, :, :], images.shape)
    return images[..., :1, :, :].expand(images.shape)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_padded_segments_take_results_that_share_memory(dataset, device, framework):
    device = "cpu" if framework == "numpy" else device
    options = {"max_steps": 12, "min_steps": 3, "batch_size": 3, "seed": 5, "device": device, "framework": framework}
    padded, packed = (
        copied(next(robocache.EpisodeLoader(dataset, delta_timestamps=windows_of(grey), form=form, **options)))
        for form in ("padded", "packed")
    )
    lengths = packed["lengths"].tolist()
    assert len(set(lengths)) > 1
    for key in ("top", "wrist"):
        for segment, (begin, length) in enumerate(zip(packed["offsets"].tolist(), lengths, strict=False)):
            np.testing.assert_array_equal(padded[key][segment, :length], packed[key][begin : begin + length])
            assert not padded[key][segment, length:].any()


def test_padding_leaves_the_array_that_a_transform_returned(dataset, device):
    returned = []

    def ones(images, seeds):
        returned.append(torch.ones(len(images), 2, device=images.device))
        return returned[-1]

    options = {"max_steps": 12, "min_steps": 3, "batch_size": 3, "seed": 5, "device": device, "framework": "torch"}
    batch = next(robocache.EpisodeLoader(dataset, delta_timestamps=windows_of(ones), **options))
    assert batch["is_pad"].any() and not batch["top"][batch["is_pad"]].any()
    assert all(array.all() for array in returned)
