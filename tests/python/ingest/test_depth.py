"""Units of depth declared in files, in each format that can declare them."""

import re

import numpy as np
import pytest
from hdf5_files import write_one_demo
from outcomes import ingest_and_open
from rlds_files import example, group, image, sequence, tensor, write_rlds
from zarr_files import write_zarr

import robocache
from robocache import frames

ROWS, STORED = 4, 1500


def write_hdf5(tmp_path, pixels, on_dataset=None, on_group=None, on_file=None):
    def write(demo):
        demo.create_dataset("obs/cam_depth", data=pixels).attrs.update(on_dataset or {})
        demo["obs"].attrs.update(on_group or {})
        demo.file.attrs.update(on_file or {})

    return write_one_demo(tmp_path, write), "obs/cam_depth", {}


def write_store(tmp_path, pixels, on_dataset=None, on_file=None):
    arrays = {"cam_depth": pixels, "state": np.arange(float(ROWS))}
    attributes = {"data/cam_depth": on_dataset or {}, "": on_file or {}}
    return write_zarr(tmp_path / "a.zarr", arrays, attributes=attributes), "cam_depth", {"rate_hz": 10}


def write_npz(tmp_path, pixels, on_file=None):
    np.savez(tmp_path / "a.npz", cam_depth=pixels, state=np.arange(float(ROWS)), fps=10, **(on_file or {}))
    return tmp_path / "a.npz", "cam_depth", {}


def write_tfds(tmp_path, pixels, on_file=None):
    on_file = on_file or {}
    is_image = pixels.dtype in (np.uint8, np.uint16)
    values = (
        [bytes(frames.encode(image[None], codec="png").data) for image in pixels] if is_image else pixels.reshape(-1)
    )
    pixel_feature = (
        image(*pixels.shape[1:], dtype=str(pixels.dtype)) if is_image else tensor(str(pixels.dtype), *pixels.shape[1:])
    )
    features = group(
        steps=sequence(group(observation=group(cam_depth=pixel_feature), is_first=tensor("bool"))),
        episode_metadata=group(**{name: tensor("float32") for name in on_file}),
    )
    lists = {"steps/observation/cam_depth": values, "steps/is_first": np.arange(ROWS) == 0}
    lists |= {f"episode_metadata/{name}": np.array([value], np.float32) for name, value in on_file.items()}
    write_rlds(tmp_path / "a", {"train": [[example(lists)]]}, features)
    return tmp_path / "a", "observation/cam_depth", {"rate_hz": 10}


def depth_pixels(side=32):
    pixels = np.full((ROWS, side, side, 1), STORED, np.uint16)
    pixels[:, 0, 0] = 0  # no measurement
    return pixels


@pytest.mark.parametrize(
    ("write", "unit", "metres"),
    [
        (write_hdf5, {"on_dataset": {"depth_scale": 0.001}}, 1.5),
        (write_hdf5, {"on_dataset": {"depth_unit": "mm"}}, 1.5),
        (write_hdf5, {"on_dataset": {"depth_units": [0.0001]}}, 0.15),
        (write_hdf5, {"on_dataset": {"scale_factor": 0.002}}, 3.0),
        (write_hdf5, {"on_dataset": {"scale_factor": 2.0, "units": "mm"}}, 3.0),
        (write_hdf5, {"on_dataset": {"scale_factor": 0.001, "add_offset": 0.25, "_FillValue": 0}}, 1.75),
        (write_hdf5, {"on_group": {"depth_scale": 0.001}}, 1.5),
        (write_hdf5, {"on_dataset": {"units": "cm"}, "on_group": {"depth_scale": 0.001}}, 15.0),
        (write_hdf5, {"on_file": {"depth_scale": 0.00025}}, 0.375),
        (write_hdf5, {"on_file": {"cam_depth_scale": 0.001, "wrist_depth_scale": 0.0001}}, 1.5),
        (write_hdf5, {"on_file": {"am_depth_scale": 0.0001, "depth_scale": 0.001}}, 1.5),
        (write_hdf5, {"on_file": {"cam_depth_scale": 0.0001, "obs_cam_depth_scale": 0.001}}, 1.5),
        (write_hdf5, {"on_file": {"camDepthScale": 0.001}}, 1.5),
        (write_store, {"on_dataset": {"depth_scale": 0.001}}, 1.5),
        (write_store, {"on_dataset": {"scale_factor": 0.001}}, 1.5),
        (write_store, {"on_dataset": {"units": "mm"}}, 1.5),
        (write_store, {"on_file": {"depth_scale": 0.001}}, 1.5),
        (write_npz, {"on_file": {"depth_scale": 0.001}}, 1.5),
        (write_npz, {"on_file": {"depth_unit": "mm"}}, 1.5),
        (write_tfds, {"on_file": {"depth_scale": 0.001}}, 1.5),
    ],
)
def test_integers_with_a_declared_unit_become_metres(write, unit, metres, tmp_path):
    source, stream, options = write(tmp_path, depth_pixels(), **unit)
    robocache.ingest(source, tmp_path / "cache", **options)
    depth_m = read_metres(tmp_path / "cache", stream)
    np.testing.assert_allclose(depth_m[:, 1:], metres, rtol=1e-6)
    if "_FillValue" in unit.get("on_dataset", {}):
        assert np.isnan(depth_m[:, 0, 0]).all()
    elif "add_offset" not in unit.get("on_dataset", {}):
        assert (depth_m[:, 0, 0] == 0).all()


@pytest.mark.parametrize(
    ("name", "is_depth"),
    [
        *(("stereo_left", False), ("rgbd/mono", False), ("stereo", True), ("rgbd", True)),
        *(("stereo_left_depth", True), ("left_range", True)),
    ],
)
def test_the_pictures_of_a_stereo_camera_are_no_depth(name, is_depth, tmp_path):
    """A unit for all depth of a file does not make a grey picture depth."""

    def write(demo):
        demo.create_dataset(f"obs/{name}", data=np.full((ROWS, 32, 32, 1), 150, np.uint8))
        demo.file.attrs["depth_scale"] = 0.001

    robocache.ingest(write_one_demo(tmp_path, write), tmp_path / "cache")
    color_space = robocache.open(tmp_path / "cache").streams[f"obs/{name}"].frames.color_space
    assert color_space == ("depth" if is_depth else "gray")


@pytest.mark.parametrize(
    ("name", "is_depth"),
    [
        *(("depthwise_rgb", False), ("in_depthwise", False), ("indepth", False), ("colordepth", False)),
        *(("frontdepth", True), ("DepthImage", True), ("depth2", True), ("depth_confidence", False)),
    ],
)
def test_images_of_floats_are_depth_by_a_whole_word(name, is_depth, tmp_path):
    def write(demo):
        demo.create_dataset(f"obs/{name}", data=np.full((ROWS, 32, 32, 1), 0.5, np.float32))

    robocache.ingest(write_one_demo(tmp_path, write), tmp_path / "cache")
    assert (robocache.open(tmp_path / "cache").streams[f"obs/{name}"].kind == "frames") == is_depth


@pytest.mark.parametrize(
    ("write", "unit", "metres"),
    [
        (write_hdf5, {"on_dataset": {"depth_scale": 0.01}}, 1.5),
        (write_hdf5, {"on_dataset": {"units": "cm"}}, 1.5),
        (write_hdf5, {"on_group": {"depth_scale": 0.01}}, 1.5),
        (write_hdf5, {"on_file": {"cam_depth_scale": 0.01}}, 1.5),
        (write_hdf5, {"on_dataset": {"scale_factor": 0.02}}, 3.0),
        (write_tfds, {"on_file": {"depth_scale": 0.01}}, 1.5),
        (write_hdf5, {}, None),
        (write_hdf5, {"on_dataset": {"depth_scale": 100.0}}, None),
        (write_tfds, {}, None),
    ],
)
def test_8_bits_with_a_declared_unit_become_metres(write, unit, metres, tmp_path):
    """Without a unit they are brightness, as pictures of depth are."""
    pixels = np.where(depth_pixels() == STORED, 150, 0).astype(np.uint8)
    source, stream, options = write(tmp_path, pixels, **unit)
    robocache.ingest(source, tmp_path / "cache", **options)
    color_space = robocache.open(tmp_path / "cache").streams[stream].frames.color_space
    if metres is None:
        assert color_space == "gray"
        return
    depth_m = read_metres(tmp_path / "cache", stream)
    np.testing.assert_allclose(depth_m[:, 1:], metres, rtol=1e-6)
    assert color_space == "depth" and (depth_m[:, 0, 0] == 0).all()


@pytest.mark.parametrize(("dtype", "metres"), [(np.uint16, 1.5), (np.uint8, 0.15)])
@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ({"on_dataset": {"depth_scale": 0.001}}, 1),
        ({"on_dataset": {"units": "mm"}}, 1),
        ({"on_dataset": {"depth_scale": 0.001}, "on_group": {"depth_scale": 0.01}}, 1),
        ({"on_group": {"depth_scale": 0.01}}, 10),
        ({"on_file": {"depth_scale": 0.01}}, 10),
    ],
)
def test_files_in_a_dataset_have_its_unit(dtype, metres, unit, factor, tmp_path):
    pixels = np.where(depth_pixels() == STORED, 1000 * metres, 0).astype(dtype)
    files = [np.frombuffer(bytes(frames.encode(image[None], codec="png").data), np.uint8) for image in pixels]
    source, stream, options = write_hdf5(tmp_path, np.stack(files), **unit)
    robocache.ingest(source, tmp_path / "cache", **options)
    depth_m = read_metres(tmp_path / "cache", stream)
    np.testing.assert_allclose(depth_m[:, 1:], factor * metres, rtol=1e-6)
    assert (depth_m[:, 0, 0] == 0).all()


def test_a_mapping_gives_the_unit_of_8_bits(tmp_path):
    source, stream, _ = write_hdf5(tmp_path, np.full((ROWS, 32, 32), 150, np.uint8))
    mapping = {"streams": {stream: {"units": "cm"}}}
    dataset, _ = ingest_and_open(source, tmp_path / "cache", mapping=mapping)
    assert dataset.streams[stream].frames.unit_m == 0.01
    report = robocache.ingest(source, tmp_path / "resized", mapping=mapping, image_size="16x16")
    assert robocache.open(tmp_path / "resized").streams[stream].frames.color_space == "gray"
    assert "its 8 bits were resized" in {note.what: note.reason for note in report.assumed}[stream]
    report = robocache.ingest(source, tmp_path / "lossy", mapping=mapping, image_codec="jpeg:95")
    assert "depth from JPEGs" in {note.what: note.reason for note in report.assumed}[stream]


def read_metres(cache, stream):
    """Returns the depth in the first batch of two, ``[2, 32, 32]``."""
    loader = robocache.Loader(cache, batch_size=2, delta_timestamps={stream: None}, device="cpu")
    return np.asarray(next(loader)[stream]).reshape(2, 32, 32)


@pytest.mark.parametrize("name", ["_FillValue", "missing_value"])
@pytest.mark.parametrize("write", [write_hdf5, write_store])
def test_integers_declared_as_fill_values_are_no_measurement(write, name, tmp_path):
    pixels = depth_pixels()
    pixels[:, 1, 1] = 65535
    source, stream, options = write(tmp_path, pixels, on_dataset={"units": "mm", name: 65535})
    report = robocache.ingest(source, tmp_path / "cache", **options)
    assert [note.what for note in report.assumed if f"{name} 65535" in note.reason] == [f"depth of {stream}"]
    expected = np.where(pixels[:2, ..., 0] == STORED, 1.5, 0)
    np.testing.assert_allclose(read_metres(tmp_path / "cache", stream), expected, rtol=1e-6)


@pytest.mark.parametrize("write", [write_hdf5, write_store, write_npz, write_tfds])
@pytest.mark.parametrize("scale", [1000.0, 5000.0, 0.1])
def test_an_ambiguous_unit_is_refused_by_name(write, scale, tmp_path):
    source, stream, options = write(tmp_path, depth_pixels(), on_file={"depth_scale": scale})
    report = robocache.ingest(source, tmp_path / "cache", **options)
    (reason,) = [note.reason for note in report.assumed if note.what.startswith("depth beside")]
    assert float(re.search("it is ([0-9.]+)", reason)[1]) == pytest.approx(scale)
    with pytest.raises(robocache.Error, match="unit"):
        read_metres(tmp_path / "cache", stream)


@pytest.mark.parametrize("write", [write_hdf5, write_store, write_npz, write_tfds])
def test_a_mapping_gives_the_unit_if_the_file_does_not(write, tmp_path):
    source, stream, options = write(tmp_path, depth_pixels())
    mapping = {"streams": {stream: {"units": "mm"}}}
    dataset, _ = ingest_and_open(source, tmp_path / "cache", mapping=mapping, **options)
    assert dataset.streams[stream].frames.unit_m == 0.001


def test_images_of_other_quantities_keep_their_numbers(tmp_path):
    others = {"thermal": {"units": "K", "scale_factor": 0.01}, "mask": {"depth_scale": 0.001}}

    def write(demo):
        for name, attributes in others.items():
            demo.create_dataset(f"obs/{name}", data=depth_pixels()).attrs.update(attributes)

    report = robocache.ingest(write_one_demo(tmp_path, write), tmp_path / "cache")
    streams = robocache.open(tmp_path / "cache").streams
    assert streams["obs/thermal"].frames.unit_m is streams["obs/mask"].frames.unit_m is None
    assert [note.reason for note in report.left_out if note.what == "obs/thermal: scale_factor"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("units", [None, "mm"])
def test_float_depth_of_hdf5_is_a_camera_in_metres(dtype, units, tmp_path):
    source, stream, _ = write_hdf5(tmp_path, depth_pixels().astype(dtype), {"units": units} if units else {})
    report = robocache.ingest(source, tmp_path / "cache")
    depth_m = read_metres(tmp_path / "cache", stream)
    np.testing.assert_allclose(depth_m[:, 1:], 1.5 if units else 1500.0, rtol=1e-6)
    reasons = [note.reason for note in report.assumed if note.what == stream]
    assert len(reasons) == (1 if units is None else 0)
    assert all("the middle pixel is at 1500, as in millimetres" in reason for reason in reasons)


@pytest.mark.parametrize("write", [write_store, write_npz, write_tfds])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_depth_kept_as_numbers_is_noted(write, dtype, tmp_path):
    source, _, options = write(tmp_path, depth_pixels(8).astype(dtype))
    report = robocache.ingest(source, tmp_path / "cache", **options)
    (assumption,) = [note.reason for note in report.assumed if note.what.endswith("cam_depth: depth by its name")]
    assert "in no declared unit: the middle one is 1500, the largest 1500" in assumption
