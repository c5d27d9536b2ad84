"""Cameras in the batch: the frame of a step (rules 24 and 43), transforms, and frames that do not decode."""

import io
from time import sleep

import numpy as np
import pytest
from filmed import DELTAS, PERIOD_NS, Recording, smooth_frames, write_frames
from loaders_by_keywords import loader_by_keywords
from recordings import batches_of, copied, joined

import robocache

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")


def _pixels(dataset, name):
    """Returns every row's pixels, decoded by Pillow."""
    stream = dataset.streams[name]
    if stream.frames.codec == "raw":
        return stream.values
    blobs, offsets = stream.values.data, stream.values.offsets
    return np.stack(
        [np.asarray(Image.open(io.BytesIO(blobs[offsets[i] : offsets[i + 1]].tobytes()))) for i in range(stream.rows)]
    )


def _expected(dataset, name, batch, deltas_s):
    pixels, stream = _pixels(dataset, name), dataset.streams[name]
    deltas_ns = [round(s * 1e9) for s in deltas_s]
    out = np.zeros((len(batch["time_ns"]), len(deltas_ns), *stream.shape), np.uint8)
    is_pad = np.ones(out.shape[:2], bool)
    for b, (time, e) in enumerate(zip(batch["time_ns"].tolist(), batch["episode_index"].tolist(), strict=True)):
        begin, end = stream.row_offsets[e : e + 2]
        for k, delta in enumerate(deltas_ns):
            if begin < end:
                times = stream.time_ns[begin:end]
                row = np.searchsorted(times, time + delta, side="right") - 1
                is_pad[b, k] = row < 0 or time + delta > times[-1]
                out[b, k] = pixels[begin + max(row, 0)]
    return out, is_pad


@pytest.mark.parametrize("residency", ["auto", "decoded", "mapped"])
def test_frames_are_chosen_by_the_clock(filmed_dataset, device, residency):
    loader = loader_by_keywords(
        filmed_dataset,
        batch_size=7,
        delta_timestamps={"joint": [0.0], "top": DELTAS, "wrist": DELTAS},
        anchor="joint",
        images=robocache.ImageOptions(dtype="uint8", layout="hwc"),
        residency=residency,
        seed=3,
        device=device,
    )
    samples = 0
    for batch in batches_of(loader, None):
        for name in ("top", "wrist"):
            pixels, is_pad = _expected(filmed_dataset, name, batch, DELTAS)
            np.testing.assert_array_equal(batch[name], pixels)
            np.testing.assert_array_equal(batch[f"{name}_is_pad"], is_pad)
        samples += len(batch["time_ns"])
    assert samples == 120


def test_default_pixels_are_0_to_1_channels_first(filmed_dataset, device):
    windows = {"top": None, "joint": None}
    loader = loader_by_keywords(
        filmed_dataset, batch_size=30, delta_timestamps=windows, anchor="joint", seed=1, device=device
    )
    batch = copied(next(loader))
    pixels, is_pad = _expected(filmed_dataset, "top", batch, [0.0])
    assert batch["top"].dtype == np.float32 and batch["top"].shape == (30, 3, 18, 26)
    # The float64 product is exact, so it is rounded once, as in the fma of the loader.
    expected = (pixels[:, 0].astype(np.float64) * float(np.float32(1 / 255))).astype(np.float32)
    np.testing.assert_array_equal(batch["top"], expected.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(batch["top_is_pad"], is_pad[:, 0])


def test_crops_are_slices_and_do_not_depend_on_the_batch(filmed_dataset, device):
    def frames(batch_size, **options):
        images = {"top": robocache.ImageOptions(dtype="uint8", layout="hwc", **options)}
        loader_options = {"delta_timestamps": {"top": [-0.04, 0.0]}, "seed": 9, "device": device}
        return joined(loader_by_keywords(filmed_dataset, batch_size=batch_size, images=images, **loader_options))["top"]

    uncropped, cropped = frames(36), frames(36, crop=(11, 13))
    np.testing.assert_array_equal(cropped, frames(5, crop=(11, 13)))
    np.testing.assert_array_equal(frames(36, crop=(11, 13), crop_at="center"), uncropped[:, :, 3:14, 6:19])
    positions = set()
    for sample, crop in zip(uncropped, cropped, strict=True):
        matches = [
            (y, x)
            for y in range(8)
            for x in range(14)
            if np.array_equal(sample[:, y : y + 11, x : x + 13], crop)  # one position for all steps
        ]
        assert len(matches) == 1
        positions.add(matches[0])
    assert len(positions) > 15


def test_bytes_do_not_depend_on_threads_or_prefetch(filmed_dataset, threads):
    def batches(prefetch):
        images = robocache.ImageOptions(size=(12, 12), crop=(9, 9), brightness=0.3, mean=0.5, std=0.2)
        options = {"batch_size": 11, "anchor": "top", "images": images, "seed": 4, "prefetch": prefetch}
        windows = {"top": DELTAS, "wrist": DELTAS}
        loader = loader_by_keywords(filmed_dataset, delta_timestamps=windows, device="cpu", **options)
        return [array for batch in loader for array in copied(batch).values()]

    threads(1)
    expected = batches(0)
    for count, prefetch in ((2, 2), (3, 5)):
        threads(count)
        for a, b in zip(expected, batches(prefetch), strict=True):
            np.testing.assert_array_equal(a, b)


def test_frames_of_different_sizes_are_resized_to_one(filmed, tmp_path, device):
    rng = np.random.default_rng(2)
    times = np.arange(4) * PERIOD_NS
    a, b, c = (
        write_frames(tmp_path / name, [{"cam": (times, values), "joint": (times, np.arange(4.0))}], "png")
        for name, values in (
            ("a", smooth_frames(rng, 4, 20, 30)),
            ("b", smooth_frames(rng, 4, 16, 16)),
            ("c", rng.normal(size=(4, 2))),
        )
    )
    windows = {"delta_timestamps": {"joint": [0.0], "cam": [0.0]}, "batch_size": 8, "anchor": "joint", "device": device}
    loader = loader_by_keywords(
        [robocache.Source(a), robocache.Source(b)], images=robocache.ImageOptions(size=(8, 8)), **windows
    )
    assert next(loader)["cam"].shape == (8, 1, 3, 8, 8)
    with pytest.raises(robocache.ArgumentError, match=r"delta_timestamps\['cam'\].images.size: expected"):
        loader_by_keywords([robocache.Source(a), robocache.Source(b)], **windows)
    with pytest.raises(robocache.ArgumentError, match=r"expected numbers in all sources|expected frames in all"):
        loader_by_keywords([robocache.Source(a), robocache.Source(c)], **windows)
    # A source without the camera gives black frames.
    loader = loader_by_keywords(
        [robocache.Source(a), robocache.Source(b, rename={"cam": "other"})],
        images=robocache.ImageOptions(mean=0.5, std=0.25),
        **windows,
    )
    batch = next(loader)
    is_missing = batch["dataset_index"].cpu() == 1
    assert is_missing.any() and not is_missing.all()
    assert batch["cam_is_pad"].cpu()[is_missing].all()
    assert (batch["cam"].cpu()[is_missing] == -2).all()  # 0 after the normalisation
    assert not (batch["cam"].cpu()[~is_missing] == -2).all()


def _damage_frame(path, name, row):
    """Overwrites the middle of a row's blob, so that its entropy-coded data end with markers of another image."""
    offsets = np.load(path / "streams" / name / "blob_offsets.npy")
    file = path / "streams" / name / "values.npy"
    begin = file.stat().st_size - offsets[-1] + offsets[row]
    with open(file, "r+b") as handle:
        handle.seek(begin + (offsets[row + 1] - offsets[row]) * 2 // 3)
        handle.write(b"\xff\xd8\xff\xd9" * 4)


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_an_undecodable_frame_is_an_error_or_padding(filmed, tmp_path, codec, device):
    filmed.write(tmp_path / "cache", codec)
    _damage_frame(tmp_path / "cache", "top", 15)
    dataset = robocache.open(tmp_path / "cache")
    options = {"batch_size": 36, "delta_timestamps": {"top": None}, "shuffle": False, "device": device}
    with pytest.raises(robocache.FrameError, match=r"stream 'top', episode 1, row 3: .*on_bad_frame='pad'"):
        for batch in loader_by_keywords(dataset, **options):
            torch.as_tensor(batch["top"]).cpu()
    loader = loader_by_keywords(dataset, on_bad_frame="pad", prefetch=0, **options)
    batch = next(loader)
    assert batch["top_is_pad"].nonzero().tolist() == [[15]]
    assert (batch["top"][15] == 0).all() and not (batch["top"][14] == 0).all()
    assert loader.bad_frames == 1


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 3}, {"prefetch": 3, "residency": "mapped"}])
def test_bad_frames_counts_returned_batches_only(filmed, tmp_path, options, device):
    """Batches that are prefetched, or made and dropped, do not count."""
    filmed.write(tmp_path / "cache", "png")  # the host decodes PNG, also for CUDA
    _damage_frame(tmp_path / "cache", "top", 15)
    loader = loader_by_keywords(
        robocache.open(tmp_path / "cache"),
        batch_size=4,
        delta_timestamps={"top": None},
        shuffle=False,
        on_bad_frame="pad",
        device=device,
        **options,
    )
    for _ in range(2):
        for _ in range(3):
            next(loader)
            sleep(0.02)  # time to make the next batches
            assert loader.bad_frames == 0
        loader.load_state_dict({"seed": 0, "epoch": 0, "samples": 0})
    bad_samples = 0
    for batch in loader:
        bad_samples += int(batch["top_is_pad"].sum())
        assert loader.bad_frames == bad_samples
    assert bad_samples == 1
    loader.gather([14, 15])
    assert loader.bad_frames == 2


def test_reading_a_cut_file_is_an_error(filmed, tmp_path):
    filmed.write(tmp_path / "cache", "jpeg")
    loader = loader_by_keywords(
        robocache.open(tmp_path / "cache"),
        batch_size=36,
        delta_timestamps={"top": None},
        residency="mapped",
        prefetch=0,
        device="cpu",
    )
    file = tmp_path / "cache" / "streams" / "top" / "values.npy"
    with open(file, "r+b") as handle:
        handle.truncate(file.stat().st_size // 2)
    with pytest.raises(robocache.FileError, match=r"values\.npy: at byte"):
        next(loader)


def test_intrinsics_follow_the_crop(filmed, tmp_path, device):
    streams = {"top": {"intrinsics": [[20.0, 0, 13], [0, 21, 9], [0, 0, 1]]}}
    rows = dict.fromkeys(("top", "side"), filmed.episodes[0]["top"])
    dataset = write_frames(tmp_path / "cache", [rows], "raw", streams)
    images = robocache.ImageOptions(crop=(10, 20), crop_at="center")
    windows = {"top": [0.0], "side": [0.0]}
    batch = next(loader_by_keywords(dataset, batch_size=4, delta_timestamps=windows, images=images, device=device))
    expected = np.array([[20, 0, 10], [0, 21, 5], [0, 0, 1]], np.float32)
    np.testing.assert_allclose(batch["top_intrinsics"].cpu().numpy(), np.broadcast_to(expected, (4, 3, 3)))
    assert "side_intrinsics" not in batch


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": {"top": "linear"}}, r"timestamps\['top'\].method: expected 'previous' or 'nearest' for a camera"),
        ({"normalize": {"top": "mean_std"}}, r"timestamps\['top'\].normalize: expected none for a camera"),
        ({"images": {"joint": robocache.ImageOptions()}}, r"timestamps\['joint'\].images: expected a camera's key"),
        ({"images": {"nothing": robocache.ImageOptions()}}, "delta_timestamps: no stream 'nothing'"),
        ({"images": {"top": {"size": 3}}}, r"timestamps\['top'\].images: expected .*ImageOptions"),
        ({"images": {"top": robocache.ImageOptions(crop=(99, 9))}}, r"timestamps\['top'\].images\.crop: .*"),
        ({"images": robocache.ImageOptions(together=("wrist",))}, r"timestamps\['top'\].images\.together: expected"),
        ({"dtype": {"top": "float64"}}, r"timestamps\['top'\].images\.dtype: .*float64"),
        ({"on_bad_frame": "ignore"}, "on_bad_frame: expected 'error' or 'pad', got 'ignore'"),
    ],
)
def test_invalid_options_of_cameras_are_refused(filmed_dataset, options, message):
    windows = {"joint": [0.0], "top": [0.0]}
    with pytest.raises(robocache.Error, match=message):
        loader_by_keywords(
            filmed_dataset, batch_size=4, delta_timestamps=windows, anchor="joint", device="cpu", **options
        )


def test_nearest_looks_ahead(filmed_dataset):
    loader = loader_by_keywords(
        filmed_dataset,
        batch_size=120,
        delta_timestamps={"top": None, "joint": None},
        anchor="joint",
        method={"top": "nearest"},
        images=robocache.ImageOptions(dtype="uint8", layout="hwc"),
        device="cpu",
    )
    batch = copied(next(loader))
    stream, pixels = filmed_dataset.streams["top"], _pixels(filmed_dataset, "top")
    for b, (time, e) in enumerate(zip(batch["time_ns"], batch["episode_index"], strict=True)):
        begin, end = stream.row_offsets[e : e + 2]
        row = begin + np.argmin(np.abs(stream.time_ns[begin:end] - time))
        np.testing.assert_array_equal(batch["top"][b], pixels[row])


def test_state_and_gather_with_cameras(filmed_dataset, device):
    images = robocache.ImageOptions(crop=(9, 9), dtype="uint8")
    options = {"batch_size": 6, "delta_timestamps": {"top": [0.0]}, "images": images, "seed": 5, "device": device}
    loader = loader_by_keywords(filmed_dataset, **options)
    batches = batches_of(loader, None)
    resumed = loader_by_keywords(filmed_dataset, **options)
    resumed.load_state_dict({"seed": 5, "epoch": 0, "samples": 12})
    np.testing.assert_array_equal(copied(next(resumed))["top"], batches[2]["top"])
    pair, single = (copied(loader.gather(indices))["top"] for indices in ([3, 30], [30]))
    np.testing.assert_array_equal(pair[1], single[0])


def test_images_need_a_camera_and_float64_is_for_numbers(filmed_dataset):
    options = {"batch_size": 4, "device": "cpu"}
    with pytest.raises(robocache.ArgumentError, match="images: goes with a camera in the batch, got none"):
        loader_by_keywords(filmed_dataset, delta_timestamps={"joint": None}, images=robocache.ImageOptions(), **options)
    batch = next(
        loader_by_keywords(filmed_dataset, delta_timestamps={"joint": None, "top": None}, dtype="float64", **options)
    )
    assert (batch["joint"].dtype, batch["top"].dtype) == (torch.float64, torch.float32)


def test_cameras_with_shared_draws_are_cropped_alike(filmed, tmp_path):
    dataset = write_frames(tmp_path / "cache", [dict.fromkeys(("left", "right"), filmed.episodes[0]["top"])], "raw")

    def batch(**options):
        images = robocache.ImageOptions(crop=(7, 7), **options)
        windows = {"left": None, "right": None}
        return next(loader_by_keywords(dataset, batch_size=12, delta_timestamps=windows, images=images, device="cpu"))

    shared, separate = batch(together=("left", "right")), batch()
    assert torch.equal(shared["left"], shared["right"])
    assert not torch.equal(separate["left"], separate["right"])


def test_several_sources_of_one_dataset_and_camera(filmed_dataset, tmp_path):
    other = Recording(np.random.default_rng(16)).write(tmp_path / "other", "raw")
    # The third source reads the frames of the first one, not the rows that follow the second one's.
    datasets = [filmed_dataset, other, filmed_dataset]
    loader = loader_by_keywords(
        [robocache.Source(source_dataset, episodes=[e]) for source_dataset, e in zip(datasets, (2, 0, 1), strict=True)],
        batch_size=36,
        delta_timestamps={"top": None},
        images=robocache.ImageOptions(dtype="uint8", layout="hwc"),
        device="cpu",
    )
    batch = copied(next(loader))
    for source, source_dataset in enumerate(datasets):
        samples = {name: array[batch["dataset_index"] == source] for name, array in batch.items()}
        assert len(samples["top"]) == 12
        pixels, _ = _expected(source_dataset, "top", samples, [0.0])
        np.testing.assert_array_equal(samples["top"], pixels[:, 0])
