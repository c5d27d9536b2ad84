"""Cameras in the batch: which frames (rules 24 and 43), what becomes of them, and frames that do not decode."""

import hashlib
import io
import os
import subprocess
import sys

import numpy as np
import pytest

import robocache

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

PERIOD_NS = 33_333_333


def _frames(rng, n, height=18, width=26, channels=3):
    """Smooth enough for JPEG to mean something, different in every row."""
    y, x = np.mgrid[:height, :width]
    phase = rng.uniform(0, 6, (n, 1, 1, channels))
    wave = np.sin(x[None, :, :, None] / 5 + phase) + np.cos(y[None, :, :, None] / 4 - phase)
    return np.clip(128 + 50 * wave + rng.normal(0, 4, (n, height, width, channels)), 0, 255).astype(np.uint8)


def _stamps(rng, n, period_ns, start=0):
    return start + np.cumsum(rng.integers(period_ns // 2, period_ns * 3 // 2, n))


class Recording:
    """Two cameras and joints on clocks of their own, three episodes; the second lacks the wrist camera."""

    def __init__(self, rng):
        self.episodes = []
        for e in range(3):
            start = 10**9 * e
            self.episodes.append(
                {
                    "joint": (t := _stamps(rng, 40, 10_000_000, start), rng.normal(size=(40, 3)).astype(np.float32)),
                    "top": (u := _stamps(rng, 12, PERIOD_NS, start), _frames(rng, len(u))),
                    **(
                        {}
                        if e == 1
                        else {"wrist": (v := _stamps(rng, 9, PERIOD_NS, start), _frames(rng, len(v), 10, 8))}
                    ),
                }
            )
            assert len(t) and len(u)

    def write(self, path, codec):
        with robocache.Writer(path) as writer:
            for streams in self.episodes:
                with writer.episode() as episode:
                    for name, (time_ns, values) in streams.items():
                        episode.append(name, time_ns, values, **({} if name == "joint" else {"codec": codec}))
        return robocache.open(path)


@pytest.fixture(scope="module")
def recording():
    return Recording(np.random.default_rng(15))


@pytest.fixture(scope="module", params=["raw", "jpeg", "png"])
def dataset(request, recording, tmp_path_factory):
    return recording.write(tmp_path_factory.mktemp("cameras") / "cache", request.param)


def _decoded(dataset, name):
    """Every row's pixels, by another decoder than ours."""
    stream = dataset.streams[name]
    if stream.frames.codec == "raw":
        return stream.values
    blobs, offsets = stream.values.data, stream.values.offsets
    return np.stack(
        [np.asarray(Image.open(io.BytesIO(blobs[offsets[i] : offsets[i + 1]].tobytes()))) for i in range(stream.rows)]
    )


def _previous(times, target):
    """The row before a target and whether it is padding."""
    row = np.searchsorted(times, target, side="right") - 1
    return max(row, 0), row < 0 or target > times[-1]


def _expected(dataset, name, batch, deltas_s):
    pixels, stream = _decoded(dataset, name), dataset.streams[name]
    steps = [round(s * 1e9) for s in deltas_s]
    out = np.zeros((len(batch["time_ns"]), len(steps), *stream.shape), np.uint8)
    is_pad = np.ones(out.shape[:2], bool)
    for b, (time, e) in enumerate(zip(batch["time_ns"].tolist(), batch["episode_index"].tolist(), strict=True)):
        begin, end = stream.row_offsets[e : e + 2]
        for k, delta in enumerate(steps):
            if begin < end:
                row, is_pad[b, k] = _previous(stream.time_ns[begin:end], time + delta)
                out[b, k] = pixels[begin + row]
    return out, is_pad


DELTAS = [-0.1, -0.017, 0.0, 0.05]


@pytest.mark.parametrize("residency", ["auto", "decoded", "mapped"])
def test_frames_are_those_that_the_clock_chooses(dataset, device, residency):
    loader = robocache.Loader(
        dataset,
        batch_size=7,
        delta_timestamps={"joint": [0.0], "top": DELTAS, "wrist": DELTAS},
        anchor="joint",
        images=robocache.ImageOptions(dtype="uint8", layout="hwc"),
        residency=residency,
        seed=3,
        device=device,
    )
    seen = 0
    for batch in loader:
        batch = {name: array.cpu().numpy() for name, array in batch.items()}
        for name in ("top", "wrist"):
            pixels, is_pad = _expected(dataset, name, batch, DELTAS)
            np.testing.assert_array_equal(batch[name], pixels)
            np.testing.assert_array_equal(batch[f"{name}_is_pad"], is_pad)
        seen += len(batch["time_ns"])
    assert seen == 120


def test_by_default_pixels_are_from_0_to_1_channels_first(dataset, device):
    loader = robocache.Loader(
        dataset, batch_size=30, delta_timestamps={"top": None, "joint": None}, anchor="joint", seed=1, device=device
    )
    batch = {name: array.cpu() for name, array in next(loader).items()}
    pixels, is_pad = _expected(dataset, "top", {n: a.numpy() for n, a in batch.items()}, [0.0])
    assert batch["top"].dtype == torch.float32 and batch["top"].shape == (30, 3, 18, 26)
    # One fma, constants from float64.
    expected = (pixels[:, 0].astype(np.float64) * float(np.float32(1 / 255))).astype(np.float32)
    np.testing.assert_array_equal(batch["top"].numpy(), expected.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(batch["top_is_pad"].numpy(), is_pad[:, 0])


def test_a_crop_is_exact_and_the_same_whatever_the_batch(dataset, device):
    def frames(batch_size, **options):
        loader = robocache.Loader(
            dataset,
            batch_size=batch_size,
            delta_timestamps={"top": [-0.04, 0.0]},
            images={"top": robocache.ImageOptions(crop=(11, 13), dtype="uint8", layout="hwc", **options)},
            device=device,
            seed=9,
        )
        return torch.cat([batch["top"].cpu() for batch in loader]).numpy()

    whole = robocache.Loader(
        dataset,
        batch_size=36,
        delta_timestamps={"top": [-0.04, 0.0]},
        images=robocache.ImageOptions(dtype="uint8", layout="hwc"),
        device=device,
        seed=9,
    )
    whole = next(whole)["top"].cpu().numpy()
    cropped = frames(36)
    np.testing.assert_array_equal(cropped, frames(5))
    np.testing.assert_array_equal(frames(36, crop_at="center"), whole[:, :, 3:14, 6:19])
    places = set()
    for sample, crop in zip(whole, cropped, strict=True):
        found = [
            (y, x)
            for y in range(8)
            for x in range(14)
            if np.array_equal(sample[:, y : y + 11, x : x + 13], crop)  # one place for all steps
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 15


def test_every_thread_count_and_depth_of_prefetch_gives_the_same_bytes(dataset, threads):
    def batches(prefetch):
        loader = robocache.Loader(
            dataset,
            batch_size=11,
            delta_timestamps={"top": DELTAS, "wrist": DELTAS},
            anchor="top",
            images=robocache.ImageOptions(size=(12, 12), crop=(9, 9), brightness=0.3, mean=0.5, std=0.2),
            seed=4,
            prefetch=prefetch,
            device="cpu",
        )
        return [array.numpy().copy() for batch in loader for array in batch.values()]

    threads(1)
    alone = batches(0)
    for count, prefetch in ((2, 2), (3, 5)):
        threads(count)
        for a, b in zip(alone, batches(prefetch), strict=True):
            np.testing.assert_array_equal(a, b)


def test_sources_whose_frames_differ_in_size_are_brought_to_one(recording, tmp_path, device):
    rng = np.random.default_rng(2)
    for name, height, width in (("a", 20, 30), ("b", 16, 16), ("c", 5, 9)):
        with robocache.Writer(tmp_path / name) as writer, writer.episode() as episode:
            if name == "c":
                episode.append("cam", np.arange(4), rng.normal(size=(4, 2)))
            else:
                episode.append("cam", np.arange(4) * PERIOD_NS, _frames(rng, 4, height, width), codec="png")
            episode.append("joint", np.arange(4) * PERIOD_NS, np.arange(4.0))
    a, b, c = (robocache.open(tmp_path / name) for name in "abc")
    windows = {"delta_timestamps": {"joint": [0.0], "cam": [0.0]}, "batch_size": 8, "anchor": "joint", "device": device}
    loader = robocache.Loader(
        [robocache.Source(a), robocache.Source(b)], images=robocache.ImageOptions(size=(8, 8)), **windows
    )
    assert next(loader)["cam"].shape == (8, 1, 3, 8, 8)
    with pytest.raises(robocache.ArgumentError, match=r"images\['cam'\].size: expected .* got \[3, 20, 30\] and"):
        robocache.Loader([robocache.Source(a), robocache.Source(b)], **windows)
    with pytest.raises(
        robocache.ArgumentError, match=r"expected numbers in all sources|expected frames in all sources"
    ):
        robocache.Loader([robocache.Source(a), robocache.Source(c)], **windows)
    # A source without the camera: black.
    loader = robocache.Loader(
        [robocache.Source(a), robocache.Source(b, rename={"cam": "other"})],
        images=robocache.ImageOptions(mean=0.5, std=0.25),
        **windows,
    )
    batch = next(loader)
    missing = batch["dataset_index"].cpu() == 1
    assert missing.any() and not missing.all()
    assert batch["cam_is_pad"].cpu()[missing].all()
    assert (batch["cam"].cpu()[missing] == -2).all()  # 0 normalised
    assert not (batch["cam"].cpu()[~missing] == -2).all()


def _spoil(path, name, row):
    """Overwrites the middle of a row's blob: its entropy-coded data end in the markers of another image."""
    offsets = np.load(path / "streams" / name / "blob_offsets.npy")
    file = path / "streams" / name / "values.npy"
    begin = file.stat().st_size - offsets[-1] + offsets[row]
    with open(file, "r+b") as to:
        to.seek(begin + (offsets[row + 1] - offsets[row]) * 2 // 3)
        to.write(b"\xff\xd8\xff\xd9" * 4)


def _write_with_matrices(recording, path, matrices, codec):
    with robocache.Writer(path) as writer:
        for name, matrix in matrices.items():
            writer.stream(name, intrinsics=matrix)
        with writer.episode() as episode:
            time_ns, frames = recording.episodes[0]["top"]
            for name in ("top", "side"):
                episode.append(name, time_ns, frames, codec=codec)
    return robocache.open(path)


TIERS = ["decoded", "device", "pinned", "mapped"]


@pytest.mark.parametrize("codec", ["raw", "jpeg", "png"])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("per_frame", [False, True])
def test_every_tier_of_a_gpu_gives_the_bytes_of_the_cpu(recording, tmp_path, cuda, codec, tier, per_frame):
    matrices = {"top": [[20.0, 0.3, 13.1], [0, 21, 9.7], [0, 0, 1]]}
    sources = [
        robocache.Source(_write_with_matrices(recording, tmp_path / "a", matrices, codec)),
        robocache.Source(_write_with_matrices(recording, tmp_path / "b", {}, codec)),
    ]
    options = {
        "batch_size": 5,
        "delta_timestamps": {"top": DELTAS, "side": None},
        "images": robocache.ImageOptions(
            crop_scale=(0.4, 1.0), size=(16, 20), crop=(11, 13), brightness=0.2, mean=0.5, std=0.3, per_frame=per_frame
        ),
        "seed": 6,
    }
    if codec == "png" and tier in ("device", "pinned"):
        refused = r"residency\['top'\]: expected 'decoded', 'mapped' or 'auto' for this camera, since PNG is decoded by"
        with pytest.raises(robocache.ArgumentError, match=refused):
            robocache.Loader(sources, device=cuda, residency=tier, **options)
        return
    _, expected = _batches(sources, options, device="cpu", residency="mapped")
    for more in ({"prefetch": 0}, {"prefetch": 3, "reuse_buffers": True}):
        loader, got = _batches(sources, options, device=cuda, residency=tier, **more)
        _assert_same(got, expected)
    tier_of = {placement.key: placement.tier for placement in loader.explain()}
    assert set(tier_of.values()) == {"device" if (codec, tier) == ("raw", "decoded") else tier}
    if tier == "mapped":
        by = "host: PNG" if codec == "png" else "device"
        assert all(f"decoded by the {by}" in placement.why for placement in loader.explain())


def _batches(sources, options, **more):
    """A loader, and of it two epochs and some gathered samples."""
    loader = robocache.Loader(sources, **options, **more)
    made = [{name: x.cpu().clone() for name, x in batch.items()} for _ in range(2) for batch in loader]
    return loader, [*made, {name: x.cpu() for name, x in loader.gather([10, 3, 3]).items()}]


def _assert_same(got, expected):
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, x in theirs.items():
            assert torch.equal(ours[name], x), name


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"size": (9, 13)}, (9, 13)),
        ({"size": (10, 10), "fit": "pad", "crop": (7, 8)}, (10, 10)),
        ({"size": (8, 20), "fit": "crop", "shift": 3, "brightness": 0.3, "per_frame": True}, (8, 20)),
        (
            {"size": (11, 11), "fit": "pad", "contrast": 0.4, "saturation": 0.3, "hue": 0.1, "mean": "imagenet"},
            (11, 11),
        ),
        ({"size": (36, 40), "crop": (30, 30)}, (18, 26)),  # larger than it is stored
        ({"crop_scale": (0.5, 1.0), "size": (9, 9)}, (18, 26)),  # a part is drawn first
        ({"crop": (11, 13), "dtype": "uint8", "layout": "hwc"}, (18, 26)),
    ],
)
def test_decoded_frames_give_the_bytes_of_encoded_ones(recording, dataset, device, options, kept):
    frames = {"top": DELTAS, "joint": [0.0]}
    loading = {
        "batch_size": 7,
        "delta_timestamps": frames,
        "anchor": "top",
        "seed": 8,
        "images": robocache.ImageOptions(**options),
    }
    _, expected = _batches(dataset, loading, device="cpu", residency="mapped")
    for more in ({"residency": "decoded", "prefetch": 0}, {"residency": "auto"}):
        loader, got = _batches(dataset, loading, device=device, **more)
        _assert_same(got, expected)
        placement = next(p for p in loader.explain() if p.key == "top")
        if dataset.streams["top"].frames.codec == "raw" and kept == (18, 26):
            assert placement.tier == "device"  # pixels they are already
            continue
        rows = sum(len(streams["top"][0]) for streams in recording.episodes)
        states = rows if device == "cpu" else 0
        assert (placement.tier, placement.bytes) == ("decoded", rows * kept[0] * kept[1] * 3 + states)
        assert "pixels in" in placement.why


def test_depth_is_decoded_once_too(tmp_path, device):
    rng = np.random.default_rng(4)
    with robocache.Writer(tmp_path / "cache") as writer:
        writer.stream("depth", unit_m=0.001)
        with writer.episode() as episode:
            pixels = rng.integers(0, 5000, (12, 20, 30)).astype(np.uint16)
            episode.append("depth", np.arange(12) * PERIOD_NS, pixels, codec="png")
    dataset = robocache.open(tmp_path / "cache")
    options = {
        "batch_size": 5,
        "delta_timestamps": {"depth": [-0.04, 0.0]},
        "images": robocache.ImageOptions(size=(10, 10), crop=(8, 8)),
    }
    _, expected = _batches(dataset, options, device="cpu", residency="mapped")
    loader, got = _batches(dataset, options, device=device, residency="decoded")
    _assert_same(got, expected)
    assert loader.explain()[0].tier == "decoded"


@pytest.mark.parametrize("tier", TIERS)
def test_sources_whose_sizes_and_codecs_differ_give_the_bytes_of_the_cpu(tmp_path, device, tier):
    rng = np.random.default_rng(5)
    sources = []
    for name, codec, height, width in (
        ("a", "jpeg", 20, 30),
        ("b", "raw", 16, 16),
        ("c", "jpeg", 12, 9),
        ("d", "", 0, 0),
    ):
        with robocache.Writer(tmp_path / name) as writer:
            if codec:
                matrix = [[20.0, 0, width / 2], [0, 21, height / 2], [0, 0, 1]]
                writer.stream("cam", **({"intrinsics": matrix} if name != "b" else {}))
            with writer.episode() as episode:
                if codec:
                    episode.append("cam", np.arange(6) * PERIOD_NS, _frames(rng, 6, height, width), codec=codec)
                episode.append("joint", np.arange(6) * PERIOD_NS, np.arange(6.0))
        sources.append(robocache.Source(robocache.open(tmp_path / name)))
    options = {
        "batch_size": 5,
        "delta_timestamps": {"joint": [0.0], "cam": [-0.04, 0.0]},
        "anchor": "joint",
        "images": robocache.ImageOptions(size=(14, 14), crop=(11, 11), mean=0.5, std=0.25),
        "seed": 3,
    }
    _, expected = _batches(sources, options, device="cpu", residency="mapped")
    loader, got = _batches(sources, options, device=device, residency={"cam": tier})
    _assert_same(got, expected)
    placement = next(p for p in loader.explain() if p.key == "cam")
    assert placement.tier == tier
    if device != "cpu" and tier == "mapped":
        assert "decoded by the host: the sources' frames differ" in placement.why


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_ranks_with_episodes_of_their_own_have_their_frames_decoded(recording, tmp_path, device, codec):
    dataset = recording.write(tmp_path / "cache", codec)
    for rank in range(2):
        options = {
            "batch_size": 4,
            "delta_timestamps": {"top": None, "joint": None},
            "anchor": "top",
            "shard_episodes": True,
            "rank": rank,
            "world_size": 2,
        }
        _, expected = _batches(dataset, options, device="cpu", residency="mapped")
        for tier in TIERS[: 1 if codec == "png" else 4]:
            loader, got = _batches(dataset, options, device=device, residency={"top": tier})
            _assert_same(got, expected)
            placement = next(p for p in loader.explain() if p.key == "top")
            assert placement.tier == tier and "of this rank's episodes alone" in placement.why


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_loaders_on_one_dataset_share_decoded_frames(recording, tmp_path, device, codec):
    recording.write(tmp_path / "cache", codec)
    dataset = robocache.open(tmp_path / "cache")
    options = {"batch_size": 36, "delta_timestamps": {"top": None}, "residency": "decoded", "device": device}
    first = robocache.Loader(dataset, **options)
    expected = next(first)["top"].cpu()
    file = tmp_path / "cache" / "streams" / "top" / "values.npy"
    with open(file, "r+b") as to:
        to.truncate(file.stat().st_size // 4)
    assert torch.equal(next(robocache.Loader(dataset, seed=0, **options))["top"].cpu(), expected)
    alike = robocache.Loader(dataset, **options, images=robocache.ImageOptions(crop=(9, 9)))
    assert next(alike)["top"].shape == (36, 3, 9, 9)  # crops are drawn from the same pixels
    with pytest.raises(robocache.FileError, match=r"values\.npy: at byte"):
        next(robocache.Loader(dataset, **options, images=robocache.ImageOptions(size=(9, 9))))


def test_ranks_of_one_host_share_decoded_frames(recording, tmp_path, monkeypatch):
    recording.write(tmp_path / "cache", "jpeg")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    options = {"batch_size": 36, "delta_timestamps": {"top": None}, "residency": "decoded", "device": "cpu"}
    loader = robocache.Loader(robocache.open(tmp_path / "cache"), **options)
    if "each rank has a copy of its own" in loader.explain()[0].why:
        pytest.skip("NOT TESTED: ranks that share memory, /dev/shm refuses")
    assert "one copy for all ranks of this host" in loader.explain()[0].why
    expected = next(loader)["top"].numpy().tobytes()
    alike = []  # in use at once
    for fit in ("stretch", "pad"):  # as many bytes, other pixels
        resized = {**options, "images": robocache.ImageOptions(size=(9, 9), fit=fit)}
        alike.append(robocache.Loader(loader.dataset, **resized))
        theirs = next(robocache.Loader(loader.dataset, **{**resized, "residency": "mapped"}))
        assert torch.equal(next(alike[-1])["top"], theirs["top"])
    file = tmp_path / "cache" / "streams" / "top" / "values.npy"
    with open(file, "r+b") as to:  # nobody can decode what is overwritten
        to.seek(1000)
        to.write(bytes(file.stat().st_size - 1000))
    program = (
        "import hashlib, sys, robocache\n"
        f"loader = robocache.Loader(robocache.open(sys.argv[1]), **{options!r})\n"
        "print(hashlib.sha256(next(loader)['top'].numpy().tobytes()).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "cache")], check=True, capture_output=True, text=True
    )
    assert other.stdout.strip() == hashlib.sha256(expected).hexdigest()
    del loader, alike
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"robocache-{os.getuid()}-")]


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_ranks_of_one_host_share_pinned_frames(recording, tmp_path, monkeypatch, cuda, codec):
    dataset = recording.write(tmp_path / "cache", codec)
    options = {"batch_size": 7, "delta_timestamps": {"top": DELTAS}, "seed": 2}
    _, expected = _batches(dataset, options, device="cpu", residency="mapped")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    # Of the second the words are there already, and it makes the tables alone; a dataset each, as in two processes.
    ranks = [
        _batches(robocache.open(dataset.path), options, device=cuda, residency="pinned", prefetch=0) for _ in range(2)
    ]
    for loader, got in ranks:
        _assert_same(got, expected)
        assert "one copy for all ranks" in loader.explain()[0].why or "a copy of its own" in loader.explain()[0].why


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_processes_on_one_gpu_share_one_pinned_copy(recording, tmp_path, monkeypatch, cuda, codec):
    dataset = recording.write(tmp_path / "cache", codec)
    options = {"batch_size": 7, "delta_timestamps": {"top": DELTAS}, "seed": 2, "device": cuda, "residency": "pinned"}
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    loader = robocache.Loader(dataset, **options)
    if "each rank has a copy of its own" in loader.explain()[0].why:
        pytest.skip("NOT TESTED: ranks that share memory, /dev/shm refuses")
    values = (tmp_path / "cache" / "streams" / "top" / "values.npy").stat()
    mine = f"robocache-{os.getuid()}-{values.st_dev}-{values.st_ino}-"  # other tests run beside this one
    shared = [name for name in os.listdir("/dev/shm") if name.startswith(mine)]
    assert len(shared) == 1
    expected = hashlib.sha256()
    for batch in loader:
        expected.update(batch["top"].cpu().numpy().tobytes())
    program = (
        "import hashlib, os, sys, robocache\n"
        f"loader = robocache.Loader(robocache.open(sys.argv[1]), **{options!r})\n"
        "seen = hashlib.sha256()\n"
        "for batch in loader: seen.update(batch['top'].cpu().numpy().tobytes())\n"
        "print(seen.hexdigest())\n"
        "print('one copy for all ranks of this host' in loader.explain()[0].why)\n"
        f"print([name for name in os.listdir('/dev/shm') if name.startswith({mine!r})])"
    )
    run = [sys.executable, "-c", program, str(tmp_path / "cache")]
    others = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for other in others:
        told = other.communicate(timeout=120)[0].splitlines()
        assert other.returncode == 0 and told == [expected.hexdigest(), "True", str(shared)]
    del loader


def test_a_coming_batch_is_fetched_and_a_wrong_guess_changes_no_byte(recording, tmp_path, cuda):
    sources = []
    for name in ("a", "b"):
        sources.append(robocache.Source(recording.write(tmp_path / name, "jpeg"), weight=len(sources) + 1))
    options = {
        "delta_timestamps": {"top": DELTAS, "wrist": [0.0], "joint": None},
        "anchor": "joint",
        "images": robocache.ImageOptions(crop=(8, 8), brightness=0.2),
        "seed": 3,
        "samples_per_epoch": 50,
    }

    def steps(loader):
        """An epoch and a part, samples by number between, a jump back, one ahead, and other epochs."""
        made = list(loader)
        for batch in loader:
            made.append(batch)
            if len(made) % 4 == 0:
                state = loader.state_dict()
                break
        made += [next(iter(loader)), loader.gather([5, 2])]
        loader.load_state_dict(state)
        made += [next(iter(loader)), next(iter(loader))]
        loader.set_epoch(7)
        made += loader
        loader.load_state_dict({"seed": 9, "epoch": 2, "samples": 13})
        made += loader
        return [{name: x.cpu().clone() for name, x in batch.items()} for batch in made]

    for batch_size in (7, 20):
        expected = steps(robocache.Loader(sources, batch_size=batch_size, device="cpu", **options))
        for more in ({}, {"stream": torch.cuda.Stream()}, {"prefetch": 0}, {"memory_budget": {"device": 0}}):
            if "memory_budget" in more:
                more["memory_budget"]["host"] = 2**30
            loader = robocache.Loader(
                sources,
                batch_size=batch_size,
                device=cuda,
                residency={"top": "pinned", "wrist": "pinned", "joint": "mapped" if batch_size == 7 else "pinned"},
                **options,
                **more,
            )
            why = {placement.key: placement.why for placement in loader.explain()}
            word = "read across the link, since the budget lacks" if "memory_budget" in more else "copied a batch ahead"
            assert word in why["top"] and word in why["wrist"] and word not in why["joint"]
            _assert_same(steps(loader), expected)


def test_pixels_that_do_not_fit_stay_encoded(recording, tmp_path, device):
    dataset = recording.write(tmp_path / "cache", "jpeg")
    options = {"batch_size": 4, "delta_timestamps": {"top": None, "joint": None}, "anchor": "top", "device": device}

    def placement(budget, **more):
        loader = robocache.Loader(dataset, memory_budget=budget, **{**options, **more})
        return next(p for p in loader.explain() if p.key == "top")

    files = placement(2**40, residency="device").bytes
    pixels = placement(2**40).bytes
    assert files < pixels
    assert placement(2**40).tier == "decoded"
    short = placement(pixels - 1)
    assert short.tier == "device" and short.bytes == files
    assert "pixels, " in short.why and "over budget (" in short.why
    with pytest.raises(robocache.DeviceError, match=rf"'top' as 'decoded' needs {pixels} bytes of"):
        placement(pixels - 1, residency="decoded")


@pytest.mark.parametrize("tier", TIERS)
def test_damage_that_decoding_alone_finds_is_told_in_every_tier(recording, tmp_path, device, tier):
    recording.write(tmp_path / "cache", "jpeg")
    offsets = np.load(tmp_path / "cache" / "streams" / "top" / "blob_offsets.npy")
    file = tmp_path / "cache" / "streams" / "top" / "values.npy"
    content = bytearray(file.read_bytes())
    begin = len(content) - offsets[-1] + offsets[15]
    first, second = content.index(b"\xff\xd0", begin), content.index(b"\xff\xd1", begin)
    content[first + 2 : second] = bytes(second - first - 2)  # codes, but too few of them
    file.write_bytes(content)
    dataset = robocache.open(tmp_path / "cache")
    options = {"batch_size": 4, "delta_timestamps": {"top": None}, "shuffle": False, "device": device}
    if tier == "decoded" and device != "cpu":  # found before the first batch: by name refused, else as it is stored
        with pytest.raises(robocache.FrameError, match=r"stream 'top', episode 1, row 3: JPEG"):
            robocache.Loader(dataset, residency=tier, **options)
        tier = "auto"
    with pytest.raises(robocache.FrameError, match=r"stream 'top', episode 1, row 3: JPEG.*on_bad_frame='pad'"):
        for batch in robocache.Loader(dataset, residency=tier, **options):
            torch.as_tensor(batch["top"]).cpu()
    loader = robocache.Loader(dataset, on_bad_frame="pad", residency=tier, **options)
    if tier == "auto":
        assert loader.explain()[0].tier == "device" and "episode 1, row 3" in loader.explain()[0].why
    for epoch in range(2):  # it is no better when it is drawn again
        batches = [{name: x.cpu() for name, x in batch.items()} for batch in loader]
        assert torch.cat([batch["top_is_pad"] for batch in batches]).nonzero().tolist() == [[15]]
        top = torch.cat([batch["top"] for batch in batches])
        assert (top[15] == 0).all() and not (top[14] == 0).all() and not (top[16] == 0).all()
        assert device != "cpu" or loader.bad_frames >= epoch + 1
    loader = robocache.Loader(dataset, on_bad_frame="pad", residency=tier, prefetch=0, **options)
    for _ in loader:
        pass
    assert loader.bad_frames == 1


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_a_frame_that_does_not_decode_is_named_or_padding(recording, tmp_path, codec, device):
    recording.write(tmp_path / "cache", codec)
    _spoil(tmp_path / "cache", "top", 15)
    dataset = robocache.open(tmp_path / "cache")
    options = {"batch_size": 36, "delta_timestamps": {"top": None}, "shuffle": False, "device": device}
    with pytest.raises(robocache.FrameError, match=r"stream 'top', episode 1, row 3: .*on_bad_frame='pad'"):
        for batch in robocache.Loader(dataset, **options):
            torch.as_tensor(batch["top"]).cpu()
    loader = robocache.Loader(dataset, on_bad_frame="pad", prefetch=0, **options)
    batch = next(loader)
    assert batch["top_is_pad"].nonzero().tolist() == [[15]]
    assert (batch["top"][15] == 0).all() and not (batch["top"][14] == 0).all()
    assert loader.bad_frames == 1


def test_a_cut_file_is_an_error_where_it_is_read(recording, tmp_path):
    recording.write(tmp_path / "cache", "jpeg")
    loader = robocache.Loader(
        robocache.open(tmp_path / "cache"),
        batch_size=36,
        delta_timestamps={"top": None},
        residency="mapped",
        prefetch=0,
        device="cpu",
    )
    file = tmp_path / "cache" / "streams" / "top" / "values.npy"
    with open(file, "r+b") as to:
        to.truncate(file.stat().st_size // 2)
    with pytest.raises(robocache.FileError, match=r"values\.npy: at byte"):
        next(loader)


def test_intrinsics_follow_the_crop(recording, tmp_path, device):
    matrix = [[20.0, 0, 13], [0, 21, 9], [0, 0, 1]]
    with robocache.Writer(tmp_path / "cache") as writer:
        writer.stream("top", intrinsics=matrix)
        with writer.episode() as episode:
            time_ns, frames = recording.episodes[0]["top"]
            episode.append("top", time_ns, frames, codec="raw")
            episode.append("side", time_ns, frames, codec="raw")
    dataset = robocache.open(tmp_path / "cache")
    loader = robocache.Loader(
        dataset,
        batch_size=4,
        delta_timestamps={"top": [0.0], "side": [0.0]},
        images=robocache.ImageOptions(crop=(10, 20), crop_at="center"),
        device=device,
    )
    batch = next(loader)
    expected = np.array([[20, 0, 10], [0, 21, 5], [0, 0, 1]], np.float32)
    np.testing.assert_allclose(batch["top_intrinsics"].cpu().numpy(), np.broadcast_to(expected, (4, 3, 3)))
    assert "side_intrinsics" not in batch


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": {"top": "linear"}}, r"methods\['top'\]: expected 'previous' or 'nearest' for a camera"),
        ({"normalize": {"top": "mean_std"}}, r"normalize\['top'\]: expected none for a camera"),
        ({"images": {"joint": robocache.ImageOptions()}}, r"images\['joint'\]: expected a camera's key"),
        ({"images": {"nothing": robocache.ImageOptions()}}, "images: no stream 'nothing'"),
        ({"images": {"top": {"size": 3}}}, r"images\['top'\]: expected .*ImageOptions"),
        ({"images": {"top": robocache.ImageOptions(crop=(99, 9))}}, r"images\['top'\]\.crop: .*"),
        ({"images": {"wrist": robocache.ImageOptions()}}, "images: expected keys of delta_timestamps, got 'wrist'"),
        (
            {"images": robocache.ImageOptions(together=("wrist",))},
            r"images\['top'\]\.together: expected cameras of the batch",
        ),
        ({"dtype": {"top": "float64"}}, r"images\['top'\]\.dtype: .*float64"),
        ({"on_bad_frame": "ignore"}, "on_bad_frame: expected 'error' or 'pad', got 'ignore'"),
    ],
)
def test_what_does_not_fit_a_camera_is_refused(dataset, options, message):
    with pytest.raises(robocache.Error, match=message):
        robocache.Loader(
            dataset,
            batch_size=4,
            delta_timestamps={"joint": [0.0], "top": [0.0]},
            anchor="joint",
            device="cpu",
            **options,
        )


def test_nearest_looks_ahead(dataset):
    loader = robocache.Loader(
        dataset,
        batch_size=120,
        delta_timestamps={"top": None, "joint": None},
        anchor="joint",
        methods={"top": "nearest"},
        images=robocache.ImageOptions(dtype="uint8", layout="hwc"),
        device="cpu",
    )
    batch = {name: array.numpy() for name, array in next(loader).items()}
    stream, pixels = dataset.streams["top"], _decoded(dataset, "top")
    for b, (time, e) in enumerate(zip(batch["time_ns"], batch["episode_index"], strict=True)):
        begin, end = stream.row_offsets[e : e + 2]
        row = begin + np.argmin(np.abs(stream.time_ns[begin:end] - time))
        np.testing.assert_array_equal(batch["top"][b], pixels[row])


def test_state_and_gather_know_cameras(dataset, device):
    images = robocache.ImageOptions(crop=(9, 9), dtype="uint8")
    options = {"batch_size": 6, "delta_timestamps": {"top": [0.0]}, "images": images, "seed": 5, "device": device}
    loader = robocache.Loader(dataset, **options)
    batches = [batch["top"].cpu().numpy().copy() for batch in loader]
    resumed = robocache.Loader(dataset, **options)
    resumed.load_state_dict({"seed": 5, "epoch": 0, "samples": 12})
    np.testing.assert_array_equal(next(resumed)["top"].cpu().numpy(), batches[2])
    a, b = loader.gather([3, 30]), loader.gather([30])
    np.testing.assert_array_equal(a["top"][1].cpu().numpy(), b["top"][0].cpu().numpy())


def test_images_without_a_camera_are_refused_and_float64_is_for_numbers(dataset):
    options = {"batch_size": 4, "device": "cpu"}
    with pytest.raises(robocache.ArgumentError, match="images: goes with a camera in the batch, got none"):
        robocache.Loader(dataset, delta_timestamps={"joint": None}, images=robocache.ImageOptions(), **options)
    batch = next(robocache.Loader(dataset, delta_timestamps={"joint": None, "top": None}, dtype="float64", **options))
    assert (batch["joint"].dtype, batch["top"].dtype) == (torch.float64, torch.float32)


def test_cameras_that_draw_together_are_cropped_alike(recording, tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        time_ns, frames = recording.episodes[0]["top"]
        for name in ("left", "right"):
            episode.append(name, time_ns, frames, codec="raw")
    dataset = robocache.open(tmp_path / "cache")

    def batch(**more):
        images = robocache.ImageOptions(crop=(7, 7), **more)
        windows = {"left": None, "right": None}
        return next(robocache.Loader(dataset, batch_size=12, delta_timestamps=windows, images=images, device="cpu"))

    together, apart = batch(together=("left", "right")), batch()
    assert torch.equal(together["left"], together["right"])
    assert not torch.equal(apart["left"], apart["right"])


def test_several_sources_of_one_dataset_and_camera(dataset, tmp_path):
    other = Recording(np.random.default_rng(16)).write(tmp_path / "other", "raw")
    of_source = [dataset, other, dataset]  # the last one's frames are the first one's, not those behind the second's
    loader = robocache.Loader(
        [robocache.Source(of, episodes=[e]) for of, e in zip(of_source, (2, 0, 1), strict=True)],
        batch_size=36,
        delta_timestamps={"top": None},
        images=robocache.ImageOptions(dtype="uint8", layout="hwc"),
        device="cpu",
    )
    batch = {name: array.numpy() for name, array in next(loader).items()}
    for source, of in enumerate(of_source):
        mine = {name: array[batch["dataset_index"] == source] for name, array in batch.items()}
        assert len(mine["top"]) == 12
        pixels, _ = _expected(of, "top", mine, [0.0])
        np.testing.assert_array_equal(mine["top"], pixels[:, 0])
