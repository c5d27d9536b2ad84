"""Pictures of labels, recognised by their names: pixels are never mixed, at ingest or in a batch."""

import io

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hdf5_files import write_one_demo, write_robomimic
from lerobot_files import Episode, write_lerobot
from PIL import Image
from rlds_files import example, group, image, sequence, tensor, write_rlds
from robocache.frames import is_labels
from ros_files import START, header, message, write_mcap
from ros_files import image as ros_image
from test_zarr import write_store

import robocache

ROWS, HEIGHT, WIDTH, STEP = 4, 40, 48, 100_000_000
SMALL = (14, 18)


@pytest.fixture
def masks(rng):
    """uint8 ``[ROWS, HEIGHT, WIDTH, 1]``: patches of a few labels, which a JPEG or a mean would mix."""
    patches = rng.choice(np.array([0, 3, 4, 9, 200], np.uint8), (ROWS, HEIGHT // 4, WIDTH // 4, 1))
    return patches.repeat(4, axis=1).repeat(4, axis=2)


def resize_nearest(frames, height, width):
    """Resizes by nearest: the pixel at the middle of each new pixel."""
    rows, columns = (
        np.floor((np.arange(n) + 0.5) * old / n).astype(int) for n, old in ((height, HEIGHT), (width, WIDTH))
    )
    return frames[:, rows][:, :, columns]


def write_robomimic_masks(folder, masks):
    pictures = {"obs/front_segmentation_instance": masks, "obs/front_seg_colour": masks.repeat(3, axis=-1)}
    write_robomimic(folder / "a.hdf5", {"demo_0": {"actions": np.zeros((ROWS, 2)), **pictures}})
    return folder / "a.hdf5", ["obs/front_segmentation_instance", "obs/front_seg_colour"]


def write_npz_masks(folder, masks):
    np.savez(folder / "a.npz", fps=10, mask=masks, joints=np.zeros((ROWS, 2)))
    return folder / "a.npz", ["mask"]


def write_rlds_masks(folder, masks):
    files = [bytes(robocache.frames.encode(mask[None], codec="png").data) for mask in masks]
    features = group(steps=sequence(group(action=tensor("float32", 2), instance_mask=image(HEIGHT, WIDTH, 1))))
    steps = {"steps/instance_mask": files, "steps/action": np.zeros(2 * ROWS, np.float32)}
    return write_rlds(folder / "toy", {"train": [[example(steps)]]}, features), ["instance_mask"]


def write_ros_masks(folder, masks):
    topic = "/camera/segmentation/image_raw"
    messages = [(START + k * STEP, ros_image(mask, "mono8", time_ns=START + k * STEP)) for k, mask in enumerate(masks)]
    return write_mcap(folder / "a.mcap", {topic: ("sensor_msgs/msg/Image", messages)}), [topic]


@pytest.mark.parametrize("write", [write_robomimic_masks, write_npz_masks, write_rlds_masks, write_ros_masks])
def test_labels_are_stored_exactly_and_resized_by_nearest(write, masks, tmp_path):
    source, streams = write(tmp_path, masks)
    options = {"rate_hz": 10} if write is write_rlds_masks else {}
    robocache.ingest(source, tmp_path / "cache", **options)
    robocache.ingest(source, tmp_path / "small", image_size=f"{SMALL[1]}x{SMALL[0]}", **options)
    for stream in streams:
        frames = masks.repeat(robocache.open(tmp_path / "cache").streams[stream].shape[-1], axis=-1)
        for name, expected in (("cache", frames), ("small", resize_nearest(frames, *SMALL))):
            np.testing.assert_array_equal(robocache.open(tmp_path / name).streams[stream].values[:], expected)
        images = robocache.ImageOptions(size=SMALL, dtype="uint8", layout="hwc")
        loader = robocache.Loader(
            robocache.open(tmp_path / "cache"),
            delta_timestamps={stream: robocache.Window(images=images)},
            batch_size=ROWS,
            shuffle=False,
        )
        batch = np.asarray(next(iter(loader))[stream]).reshape(-1, *SMALL, frames.shape[-1])
        np.testing.assert_array_equal(batch, resize_nearest(frames, *SMALL))


def test_names_of_labels():
    for name in ("front_seg", "obs/x_segmentation_class", "/cam/semantic/image", "FrontMask", "labels", "a.mask.b"):
        assert is_labels(name)
    for name in ("front_segmentations", "topSegMap", "segmask_left", "panoptic/image", "semantics", "labelMap"):
        assert is_labels(name)
    for name in ("observation.images.top", "/camera/color/image_raw", "segway", "unmasked", "labelled", "mast"):
        assert not is_labels(name)


@pytest.mark.parametrize(
    "name",
    [
        "front_depth",
        "normals",
        "tactile_left",
        "opticalFlow",
        "thermal",
        "topdepth",
        "depthMap",
        "disparities",
        "tactile_forces",
    ],
)
def test_pictures_of_measurements_are_stored_without_loss(name, rng, tmp_path):
    pixels = rng.integers(0, 256, (ROWS, HEIGHT, WIDTH, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", fps=10, **{name: pixels, "top": pixels, "joints": np.zeros((ROWS, 2))})
    robocache.ingest(tmp_path / "a.npz", tmp_path / "cache")
    streams = robocache.open(tmp_path / "cache").streams
    np.testing.assert_array_equal(streams[name].values[:], pixels)
    assert np.any(streams["top"].values[:] != pixels)  # a photograph is a JPEG
    robocache.ingest(tmp_path / "a.npz", tmp_path / "asked", image_codec="jpeg")
    assert np.any(robocache.open(tmp_path / "asked").streams[name].values[:] != pixels)


def write_hdf5(folder, name, pixels):
    write_robomimic(folder / "a.hdf5", {"demo_0": {"actions": np.zeros((ROWS, 2)), f"obs/{name}": pixels}})
    return folder / "a.hdf5", f"obs/{name}"


def write_hdf5_channels_first(folder, name, pixels):
    return write_hdf5(folder, name, np.moveaxis(pixels, -1, 1))


def write_npz(folder, name, pixels):
    np.savez(folder / "a.npz", fps=10, **{name: pixels, "joints": np.zeros((ROWS, 2))})
    return folder / "a.npz", name


def write_zarr(folder, name, pixels):
    others = {"action": np.zeros((ROWS, 2)), "state": np.zeros(ROWS)}
    return write_store(folder / "a.zarr", others | {name: pixels}, [ROWS]), name


@pytest.mark.parametrize("write", [write_hdf5, write_hdf5_channels_first, write_npz, write_zarr])
@pytest.mark.parametrize("side", [16, 31, 32, 40])
def test_pixels_of_small_arrays_are_exact_and_loss_is_noted(write, side, rng, tmp_path):
    pixels = rng.integers(0, 256, (ROWS, 36, side, 3), dtype=np.uint8)
    source, name = write(tmp_path, "top", pixels)
    assumed = {}
    options = {} if "hdf5" in write.__name__ else {"rate_hz": 10}
    for codec in (None, "png", "jpeg:80"):
        report = robocache.ingest(source, tmp_path / f"{codec}", image_codec=codec, **options)
        assumed[codec] = [note for note in report.assumed if note.what == "pixels"]
    assert assumed["png"] == assumed["jpeg:80"] == []
    pixels_read = robocache.open(tmp_path / "None").streams[name].values[:]
    assert np.array_equal(pixels_read, pixels) == (side < 32)
    assert [note.streams for note in assumed[None]] == ([[name]] if side >= 32 else [])
    if side >= 32:
        assert "--image-codec png" in assumed[None][0].reason and "quality 95" in assumed[None][0].reason


def test_an_attribute_declares_labels(masks, tmp_path):
    np.savez(tmp_path / "a.npz", fps=10, mask=masks, ids=masks, joints=np.zeros((ROWS, 2)))
    assert not is_labels("mask", {"labels": "false"})
    mapping = {"streams": {name: {"attributes": {"labels": name == "ids"}} for name in ("mask", "ids")}}
    robocache.ingest(tmp_path / "a.npz", tmp_path / "cache", mapping=mapping, image_codec="png")
    dataset = robocache.open(tmp_path / "cache")

    def batch(stream, **options):
        images = robocache.ImageOptions(size=SMALL, dtype="uint8", layout="hwc", **options)
        windows = {stream: robocache.Window(images=images)}
        loader = robocache.Loader(dataset, delta_timestamps=windows, batch_size=ROWS, shuffle=False)
        return np.asarray(next(iter(loader))[stream]).reshape(-1, *SMALL, 1)

    np.testing.assert_array_equal(batch("ids"), resize_nearest(masks, *SMALL))
    assert not np.isin(batch("mask"), masks).all()
    assert not np.isin(batch("ids", interpolation="area"), masks).all()  # a requested "area" is used
    with pytest.raises(robocache.ArgumentError, match=r"'ids'.*brightness.*labels.*mapping"):
        batch("ids", brightness=0.5)


@pytest.mark.parametrize("compressed", [False, True])
def test_labels_of_16_bits_are_no_millimetres(compressed, masks, tmp_path):
    """REP 118 says that 16UC1 is depth in millimetres, but these are labels."""
    wide_masks = masks.astype(np.uint16) * 300
    topic, kind, messages = "/semantic/labels", "sensor_msgs/msg/Image", []
    for k, labels in enumerate(wide_masks):
        time_ns = START + k * STEP
        if compressed:
            file = np.frombuffer(robocache.frames.encode(labels[None], codec="png").data, np.uint8)
            kind = "sensor_msgs/msg/CompressedImage"
            messages.append(
                (time_ns, message(kind, header=header(time_ns), format="16UC1; png compressed ", data=file))
            )
        else:
            messages.append((time_ns, ros_image(labels, "16UC1", time_ns=time_ns)))
    robocache.ingest(write_mcap(tmp_path / "a.mcap", {topic: (kind, messages)}), tmp_path / "cache")
    dataset = robocache.open(tmp_path / "cache")
    np.testing.assert_array_equal(dataset.streams[topic].values[:], wide_masks)
    assert dataset.streams[topic].frames.unit_m is None
    # A batch can hold distances or bytes, not labels of 16 bits.
    with pytest.raises(robocache.ArgumentError, match=f"'{topic}'.*unit_m"):
        robocache.Loader(dataset, delta_timestamps={topic: robocache.Window()}, batch_size=ROWS)


def palette_files(indices, bits=8):
    """Returns PNGs of mode P with one colour for each class."""
    files = []
    for labels in indices:
        picture = Image.fromarray(labels[..., 0]).convert("P")
        picture.putdata(labels.reshape(-1).tolist())
        picture.putpalette(np.random.default_rng(0).integers(0, 256, 3 * 2**bits, dtype=np.uint8).tobytes())
        file = io.BytesIO()
        picture.save(file, "PNG", bits=bits)
        files.append(file.getvalue())
        assert files[-1][24:26] == bytes([bits, 3])
    return files


def write_files_to_hdf5(folder, name, files):
    def write(demo):
        rows = demo.create_dataset(f"obs/{name}", (ROWS,), h5py.vlen_dtype(np.uint8))
        for row, file in enumerate(files):
            rows[row] = np.frombuffer(file, np.uint8)

    return write_one_demo(folder, write), f"obs/{name}", {}


def write_files_to_rlds(folder, name, files):
    features = group(steps=sequence(group(action=tensor("float32", 2), **{name: image(HEIGHT, WIDTH, 3)})))
    steps = {f"steps/{name}": files, "steps/action": np.zeros(2 * ROWS, np.float32)}
    return write_rlds(folder / "toy", {"train": [[example(steps)]]}, features), name, {"rate_hz": 10}


def write_files_to_ros(folder, name, files, format="png"):
    messages = []
    for k, file in enumerate(files):
        time_ns, data = START + k * STEP, np.frombuffer(file, np.uint8)
        messages.append(
            (time_ns, message("sensor_msgs/msg/CompressedImage", header=header(time_ns), format=format, data=data))
        )
    return write_mcap(folder / "a.mcap", {f"/{name}": ("sensor_msgs/msg/CompressedImage", messages)}), f"/{name}", {}


def write_bgr_files_to_ros(folder, name, files):
    return write_files_to_ros(folder, name, files, "bgr8; png compressed bgr8")


def write_files_to_csv(folder, name, files):
    (folder / "log" / name).mkdir(parents=True)
    for k, file in enumerate(files):
        (folder / "log" / name / f"{k}.png").write_bytes(file)
    rows = [f"{k / 10},{k}.png" for k in range(ROWS)]
    (folder / f"log/{name}.csv").write_text("\n".join(["t [s],file", *rows]))
    return folder / "log", f"{name}.file", {}


def write_files_to_lerobot(folder, name, files):
    column = pa.array([{"bytes": file, "path": f"{k}.png"} for k, file in enumerate(files)])
    episode = Episode({"action": np.zeros((ROWS, 2), np.float32), name: column})
    write_lerobot(folder / "source", [episode], features={name: {"dtype": "image", "shape": [HEIGHT, WIDTH, 3]}})
    return folder / "source", name, {}


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    "write",
    [
        write_files_to_hdf5,
        write_files_to_rlds,
        write_files_to_ros,
        write_bgr_files_to_ros,
        write_files_to_csv,
        write_files_to_lerobot,
    ],
)
def test_the_indices_of_a_palette_are_the_labels(write, bits, masks, tmp_path):
    masks = masks & (2**bits - 1)
    for name, is_mask in (("front_mask", True), ("front", False)):
        (tmp_path / name).mkdir()
        source, stream, options = write(tmp_path / name, name, palette_files(masks, bits))
        report = robocache.ingest(source, tmp_path / name / "cache", **options)
        pixels = robocache.open(tmp_path / name / "cache").streams[stream].values[:]
        reasons = [note.reason for note in report.assumed if "colours of PNGs with a palette" in note.reason]
        assert len(reasons) == (0 if is_mask else 1) and pixels.shape[-1] == (1 if is_mask else 3)
        if is_mask:
            np.testing.assert_array_equal(pixels, masks)
            assert f"{stream}: colours of a palette" in [note.what for note in report.left_out]


@pytest.mark.parametrize("bits", [8, 4])
def test_a_writer_keeps_palette_indices_for_labels(bits, masks, tmp_path):
    masks = masks & (2**bits - 1)
    files = palette_files(masks, bits)
    time_ns = np.arange(len(files)) * 10**8
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        for name in ("front_mask", "front"):
            episode.append(name, time_ns, files)
        with pytest.raises(robocache.FrameError, match="'side_mask'"):
            episode.append("side_mask", time_ns, [file[:60] for file in files])
    streams = robocache.open(tmp_path / "cache").streams
    np.testing.assert_array_equal(streams["front_mask"].values[:], masks)
    colours = np.stack([np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])
    np.testing.assert_array_equal(streams["front"].values[:], colours)
