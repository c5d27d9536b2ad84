"""The tiers of camera frames: the same bytes from every tier and rank; frames that are shared, too large, or damaged."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from filmed import DELTAS, PERIOD_NS, smooth_frames, write_frames
from loaders_by_keywords import loader_by_keywords
from recordings import assert_same_batches, batches_of, copied, joined

import robocache

TESTS = Path(__file__).resolve().parents[2]

torch = pytest.importorskip("torch")
pytest.importorskip("PIL.Image")

TIERS = ["decoded", "device", "pinned", "mapped"]


@pytest.mark.parametrize("codec", ["raw", "jpeg", "png"])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("per_frame", [False, True])
def test_every_tier_of_a_gpu_gives_the_bytes_of_the_cpu(filmed, tmp_path, cuda, codec, tier, per_frame):
    matrices = {"top": {"intrinsics": [[20.0, 0.3, 13.1], [0, 21, 9.7], [0, 0, 1]]}}
    rows = dict.fromkeys(("top", "side"), filmed.episodes[0]["top"])
    datasets = [write_frames(tmp_path / name, [rows], codec, streams) for name, streams in (("a", matrices), ("b", {}))]
    sources = [robocache.Source(dataset) for dataset in datasets]
    image_options = {"brightness": 0.2, "mean": 0.5, "std": 0.3, "per_frame": per_frame}
    images = robocache.ImageOptions(crop_scale=(0.4, 1.0), size=(16, 20), crop=(11, 13), **image_options)
    options = {"batch_size": 5, "delta_timestamps": {"top": DELTAS, "side": None}, "images": images, "seed": 6}
    if codec == "png" and tier in ("device", "pinned"):
        with pytest.raises(
            robocache.ArgumentError, match=r"memory.residency\['top'\]: expected 'decoded', 'mapped' or"
        ):
            loader_by_keywords(sources, device=cuda, residency=tier, **options)
        return
    _, expected = _batches(sources, options, device="cpu", residency="mapped")
    for extra in ({"prefetch": 0}, {"prefetch": 3, "reuse_buffers": True}):
        loader, batches = _batches(sources, options, device=cuda, residency=tier, **extra)
        assert_same_batches(batches, expected)
    tiers = {placement.key: placement.tier for placement in loader.explain()}
    # Raw frames are pixels already.
    assert set(tiers.values()) == {"device" if (codec, tier) == ("raw", "decoded") else tier}
    if tier == "mapped":
        decoder = "host: PNG" if codec == "png" else "device"
        assert all(f"decoded by the {decoder}" in placement.why for placement in loader.explain())


def _batches(sources, options, **extra):
    """Returns (loader, its batches of two epochs and of some gathered samples)."""
    loader = loader_by_keywords(sources, **options, **extra)
    batches = [copied(batch) for _ in range(2) for batch in loader]
    return loader, batches + batches_of([loader.gather([10, 3, 3, 4])])


def _placement(loader, key):
    return next(placement for placement in loader.explain() if placement.key == key)


@pytest.mark.parametrize(
    ("options", "stored_size"),
    [
        ({"size": (9, 13)}, (9, 13)),
        ({"size": (10, 10), "fit": "pad", "crop": (7, 8)}, (10, 10)),
        ({"size": (8, 20), "fit": "crop", "shift": 3, "brightness": 0.3, "per_frame": True}, (8, 20)),
        ({"size": (11, 11), "fit": "pad", "contrast": 0.4, "saturation": 0.3, "mean": "imagenet"}, (11, 11)),
        ({"size": (11, 11), "hue": 0.1}, (11, 11)),
        ({"size": (36, 40), "crop": (30, 30)}, (18, 26)),  # larger than the stored frame
        ({"crop_scale": (0.5, 1.0), "size": (9, 9)}, (18, 26)),  # the random crop precedes the resizing
        ({"crop": (11, 13), "dtype": "uint8", "layout": "hwc"}, (18, 26)),
    ],
)
def test_decoded_frames_give_the_bytes_of_encoded_ones(filmed, filmed_dataset, device, options, stored_size):
    loader_options = {"batch_size": 7, "delta_timestamps": {"top": DELTAS, "joint": [0.0]}, "anchor": "top", "seed": 8}
    loader_options["images"] = robocache.ImageOptions(**options)
    _, expected = _batches(filmed_dataset, loader_options, device="cpu", residency="mapped")
    for extra in ({"residency": "decoded", "prefetch": 0}, {"residency": "auto"}):
        loader, batches = _batches(filmed_dataset, loader_options, device=device, **extra)
        assert_same_batches(batches, expected)
        placement = _placement(loader, "top")
        if filmed_dataset.streams["top"].frames.codec == "raw" and stored_size == (18, 26):
            assert placement.tier == "device"  # raw frames are pixels already
            continue
        rows = sum(len(streams["top"][0]) for streams in filmed.episodes)
        states = rows if device == "cpu" else 0  # a byte for each frame says whether it is decoded
        assert (placement.tier, placement.bytes) == ("decoded", rows * stored_size[0] * stored_size[1] * 3 + states)
        assert "pixels in" in placement.why


def test_depth_is_decoded_once(tmp_path, device):
    pixels = np.random.default_rng(4).integers(0, 5000, (12, 20, 30)).astype(np.uint16)
    rows = {"depth": (np.arange(12) * PERIOD_NS, pixels)}
    dataset = write_frames(tmp_path / "cache", [rows], "png", {"depth": {"unit_m": 0.001}})
    options = {"batch_size": 5, "delta_timestamps": {"depth": [-0.04, 0.0]}}
    options["images"] = robocache.ImageOptions(size=(10, 10), crop=(8, 8))
    _, expected = _batches(dataset, options, device="cpu", residency="mapped")
    loader, batches = _batches(dataset, options, device=device, residency="decoded")
    assert_same_batches(batches, expected)
    assert loader.explain()[0].tier == "decoded"


@pytest.mark.parametrize("tier", TIERS)
def test_sources_of_different_sizes_and_codecs_give_the_bytes_of_the_cpu(tmp_path, device, tier):
    rng = np.random.default_rng(5)
    sources = []
    times = np.arange(6) * PERIOD_NS
    for name, codec, height, width in (
        ("a", "jpeg", 20, 30),
        ("b", "raw", 16, 16),
        ("c", "jpeg", 12, 9),
        ("d", "", 0, 0),
    ):
        rows = {"joint": (times, np.arange(6.0))}
        if codec:
            rows["cam"] = times, smooth_frames(rng, 6, height, width)
        matrix = [[20.0, 0, width / 2], [0, 21, height / 2], [0, 0, 1]]
        streams = {"cam": {"intrinsics": matrix}} if name in "ac" else {}
        sources.append(robocache.Source(write_frames(tmp_path / name, [rows], codec, streams)))
    options = {"batch_size": 5, "delta_timestamps": {"joint": [0.0], "cam": [-0.04, 0.0]}, "anchor": "joint", "seed": 3}
    options["images"] = robocache.ImageOptions(size=(14, 14), crop=(11, 11), mean=0.5, std=0.25)
    _, expected = _batches(sources, options, device="cpu", residency="mapped")
    loader, batches = _batches(sources, options, device=device, residency={"cam": tier})
    assert_same_batches(batches, expected)
    placement = _placement(loader, "cam")
    assert placement.tier == tier
    if device != "cpu" and tier == "mapped":
        assert "decoded by the host: the sources' frames differ" in placement.why


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_ranks_decode_the_frames_of_their_own_episodes(filmed, tmp_path, device, codec):
    dataset = filmed.write(tmp_path / "cache", codec)
    for rank in range(2):
        options = {"batch_size": 4, "delta_timestamps": {"top": None, "joint": None}, "anchor": "top"}
        options |= {"shard_episodes": True, "rank": rank, "world_size": 2}
        _, expected = _batches(dataset, options, device="cpu", residency="mapped")
        for tier in TIERS[: 1 if codec == "png" else 4]:
            loader, batches = _batches(dataset, options, device=device, residency={"top": tier})
            assert_same_batches(batches, expected)
            placement = _placement(loader, "top")
            assert placement.tier == tier and "from this rank's first episode to its last" in placement.why


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_sources_of_one_dataset_decode_their_own_frames(filmed, tmp_path, device, codec):
    """With shard_episodes a source loads only the rows between its first and its last episode."""
    dataset = filmed.write(tmp_path / "cache", codec)
    sources = [robocache.Source(dataset, episodes=[0]), robocache.Source(dataset, episodes=[1, 2])]
    options = {"batch_size": 4, "delta_timestamps": {"top": None}, "shard_episodes": True, "world_size": 1, "rank": 0}
    _, expected = _batches(sources, options, device="cpu", residency="mapped")
    for tier in TIERS[: 1 if codec == "png" else 4]:
        _, batches = _batches(sources, options, device=device, residency={"top": tier})
        assert_same_batches(batches, expected)


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_loaders_on_one_dataset_share_decoded_frames(filmed, tmp_path, device, codec):
    filmed.write(tmp_path / "cache", codec)
    dataset = robocache.open(tmp_path / "cache")
    options = {"batch_size": 36, "delta_timestamps": {"top": None}, "residency": "decoded", "device": device}
    first = loader_by_keywords(dataset, **options)
    expected = next(first)["top"].cpu()
    file = tmp_path / "cache" / "streams" / "top" / "values.npy"
    with open(file, "r+b") as handle:
        handle.truncate(file.stat().st_size // 4)
    assert torch.equal(next(loader_by_keywords(dataset, seed=0, **options))["top"].cpu(), expected)
    cropping = loader_by_keywords(dataset, **options, images=robocache.ImageOptions(crop=(9, 9)))
    assert next(cropping)["top"].shape == (36, 3, 9, 9)  # crops come from the same pixels
    with pytest.raises(robocache.FileError, match=r"values\.npy: at byte"):
        next(loader_by_keywords(dataset, **options, images=robocache.ImageOptions(size=(9, 9))))


def _segment_prefix(file):
    """Returns how the names of shared memory with this file's frames begin. Simultaneous tests have other names."""
    return f"robocache-{os.getuid()}-{file.stat().st_dev}-{file.stat().st_ino}-"


PROGRAM = f"""
import hashlib, os, sys, robocache
sys.path.insert(0, {str(TESTS)!r})
from loaders_by_keywords import loader_by_keywords

loader = loader_by_keywords(robocache.open(sys.argv[1]), **eval(sys.argv[2]))
digest = hashlib.sha256()
for batch in loader:
    top = batch["top"]
    digest.update((top.cpu().numpy() if hasattr(top, "cpu") else top).tobytes())
print(digest.hexdigest())
print("one copy for all ranks of this host" in loader.explain()[0].why)
print([name for name in os.listdir("/dev/shm") if name.startswith(sys.argv[3])])
"""


def test_ranks_of_one_host_share_decoded_frames(filmed, tmp_path, monkeypatch):
    filmed.write(tmp_path / "cache", "jpeg")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    options = {"batch_size": 36, "delta_timestamps": {"top": None}, "residency": "decoded", "device": "cpu"}
    loader = loader_by_keywords(robocache.open(tmp_path / "cache"), **options)
    if "each rank has a copy of its own" in loader.explain()[0].why:
        pytest.skip("NOT TESTED: ranks that share memory; /dev/shm refuses it")
    assert "one copy for all ranks of this host" in loader.explain()[0].why
    expected = hashlib.sha256(next(loader)["top"].numpy().tobytes())
    loaders = []  # keeps all loaders alive at once
    for resizing in ({"fit": "stretch"}, {"fit": "pad"}, {"interpolation": "area"}):  # equal sizes, different pixels
        resized = {**options, "images": robocache.ImageOptions(size=(9, 9), **resizing)}
        loaders.append(loader_by_keywords(loader.dataset, **resized))
        mapped_batch = next(loader_by_keywords(loader.dataset, **{**resized, "residency": "mapped"}))
        assert torch.equal(next(loaders[-1])["top"], mapped_batch["top"])
    file = tmp_path / "cache" / "streams" / "top" / "values.npy"
    prefix = _segment_prefix(file)
    assert len([name for name in os.listdir("/dev/shm") if name.startswith(prefix)]) == 4
    with open(file, "r+b") as handle:  # overwritten files cannot be decoded again
        handle.seek(1000)
        handle.write(bytes(file.stat().st_size - 1000))
    without_torch = "import sys; sys.modules['torch'] = None" + PROGRAM  # importing torch would take most of the time
    command = [sys.executable, "-c", without_torch, str(tmp_path / "cache"), repr(options), prefix]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    assert process.stdout.splitlines()[:2] == [expected.hexdigest(), "True"]
    del loader, loaders
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_ranks_of_one_host_share_pinned_frames(filmed, tmp_path, monkeypatch, cuda, codec):
    dataset = filmed.write(tmp_path / "cache", codec)
    options = {"batch_size": 7, "delta_timestamps": {"top": DELTAS}, "seed": 2}
    _, expected = _batches(dataset, options, device="cpu", residency="mapped")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    # Each loader has its own dataset, as in two processes. The second one shares the first one's copy of the coded frames.
    ranks = [
        _batches(robocache.open(dataset.path), options, device=cuda, residency="pinned", prefetch=0) for _ in range(2)
    ]
    for loader, batches in ranks:
        assert_same_batches(batches, expected)
        assert "one copy for all ranks" in loader.explain()[0].why or "a copy of its own" in loader.explain()[0].why


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_processes_on_one_gpu_share_one_pinned_copy(filmed, tmp_path, monkeypatch, cuda, codec):
    dataset = filmed.write(tmp_path / "cache", codec)
    options = {"batch_size": 7, "delta_timestamps": {"top": DELTAS}, "seed": 2, "device": cuda, "residency": "pinned"}
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    loader = loader_by_keywords(dataset, **options)
    if "each rank has a copy of its own" in loader.explain()[0].why:
        pytest.skip("NOT TESTED: ranks that share memory; /dev/shm refuses it")
    prefix = _segment_prefix(tmp_path / "cache/streams/top/values.npy")
    shared = [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]
    assert len(shared) == 1
    expected = hashlib.sha256()
    for batch in loader:
        expected.update(batch["top"].cpu().numpy().tobytes())
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache"), repr(options), prefix]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        lines = process.communicate(timeout=300)[0].splitlines()
        assert process.returncode == 0 and lines == [expected.hexdigest(), "True", str(shared)]
    del loader


def test_prefetched_batches_are_used_and_wrong_guesses_change_no_byte(filmed, tmp_path, cuda):
    sources = [robocache.Source(filmed.write(tmp_path / str(w), "jpeg"), weight=w) for w in (1, 2)]
    options = {
        "delta_timestamps": {"top": DELTAS, "wrist": [0.0], "joint": None},
        "anchor": "joint",
        "images": robocache.ImageOptions(crop=(8, 8), brightness=0.2),
        "seed": 3,
        "samples_per_epoch": 50,
    }

    def drawn_batches(loader):
        """Returns batches drawn in every way: by epochs, by a loop left early, by gather, and after jumps back and ahead."""
        result = list(loader)
        for batch in loader:
            result.append(batch)
            if len(result) % 4 == 0:
                state = loader.state_dict()
                break
        result += [next(iter(loader)), loader.gather([5, 2])]
        loader.load_state_dict(state)
        result += [next(iter(loader)), next(iter(loader))]
        loader.set_epoch(7)
        result += loader
        loader.load_state_dict({"seed": 9, "epoch": 2, "samples": 13})
        result += loader
        return [copied(batch) for batch in result]

    for batch_size in (7, 20):
        expected = drawn_batches(loader_by_keywords(sources, batch_size=batch_size, device="cpu", **options))
        for extra in ({}, {"stream": torch.cuda.Stream()}, {"prefetch": 0}, {"budget": {"device": 0, "host": 2**30}}):
            loader = loader_by_keywords(
                sources,
                batch_size=batch_size,
                device=cuda,
                residency={"top": "pinned", "wrist": "pinned", "joint": "mapped" if batch_size == 7 else "pinned"},
                **options,
                **extra,
            )
            reasons = {placement.key: placement.why for placement in loader.explain()}
            reason = "read across the link: copying ahead would take" if "budget" in extra else "copied a batch ahead"
            assert reason in reasons["top"] and reason in reasons["wrist"] and reason not in reasons["joint"]
            assert_same_batches(drawn_batches(loader), expected)


def test_pixels_that_do_not_fit_stay_encoded(filmed, tmp_path, device):
    dataset = filmed.write(tmp_path / "cache", "jpeg")
    options = {"batch_size": 4, "delta_timestamps": {"top": None, "joint": None}, "anchor": "top", "device": device}

    def placement(budget, **extra):
        return _placement(loader_by_keywords(dataset, budget=budget, **{**options, **extra}), "top")

    encoded_bytes = placement(2**40, residency="device").bytes
    pixel_bytes = placement(2**40).bytes
    assert encoded_bytes < pixel_bytes
    assert placement(2**40).tier == "decoded"
    too_large = placement(pixel_bytes - 1)
    assert too_large.tier == "device" and too_large.bytes == encoded_bytes
    assert "pixels, " in too_large.why and "over budget (" in too_large.why
    with pytest.raises(robocache.DeviceError, match=rf"'top' as 'decoded' needs {pixel_bytes} bytes of"):
        placement(pixel_bytes - 1, residency="decoded")


@pytest.mark.parametrize("tier", TIERS)
def test_damage_found_by_decoding_is_reported_in_every_tier(filmed, tmp_path, device, tier):
    filmed.write(tmp_path / "cache", "jpeg")
    offsets = np.load(tmp_path / "cache" / "streams" / "top" / "blob_offsets.npy")
    file = tmp_path / "cache" / "streams" / "top" / "values.npy"
    content = bytearray(file.read_bytes())
    begin = len(content) - offsets[-1] + offsets[15]
    # The data between the first two restart markers become valid codes, but too few.
    first_marker, second_marker = content.index(b"\xff\xd0", begin), content.index(b"\xff\xd1", begin)
    content[first_marker + 2 : second_marker] = bytes(second_marker - first_marker - 2)
    file.write_bytes(content)
    dataset = robocache.open(tmp_path / "cache")
    options = {"batch_size": 4, "delta_timestamps": {"top": None}, "shuffle": False, "device": device}
    # On a GPU all frames are decoded before the first batch: "decoded" is refused, and "auto" keeps the frames encoded.
    if tier == "decoded" and device != "cpu":
        with pytest.raises(robocache.FrameError, match=r"stream 'top', episode 1, row 3: JPEG"):
            loader_by_keywords(dataset, residency=tier, **options)
        tier = "auto"
    with pytest.raises(robocache.FrameError, match=r"stream 'top', episode 1, row 3: JPEG.*on_bad_frame='pad'"):
        for batch in loader_by_keywords(dataset, residency=tier, **options):
            torch.as_tensor(batch["top"]).cpu()
    loader = loader_by_keywords(dataset, on_bad_frame="pad", residency=tier, **options)
    if tier == "auto":
        assert loader.explain()[0].tier == "device" and "episode 1, row 3" in loader.explain()[0].why
    for epoch in range(2):  # the frame fails again in the next epoch
        batch = joined(loader)
        assert np.flatnonzero(batch["top_is_pad"]).tolist() == [15]
        assert [batch["top"][row].any() for row in (14, 15, 16)] == [True, False, True]
        assert device != "cpu" or loader.bad_frames == epoch + 1
    loader = loader_by_keywords(dataset, on_bad_frame="pad", residency=tier, prefetch=0, **options)
    for _ in loader:
        pass
    assert loader.bad_frames == 1
