"""EuRoC folders: all sensors of a recording are one episode, each with its calibration and its own clock."""

import shutil

import numpy as np
import pytest
from robocache.ingest import registry
from yields import Yields, blobs, outcome

import robocache

ruamel = pytest.importorskip("ruamel.yaml")

MATRIX = "{rows: 2, cols: 2, data: [1, 2, 3, 4.5]}"
CAMERA = "sensor_type: camera\ncamera_model: pinhole\nintrinsics: [40.5, 50, 3, 2] # fu, fv, cu, cv\n"
POSES = (
    "#timestamp, p_RS_R_x [m], p_RS_R_y [m], p_RS_R_z [m], q_RS_w [], q_RS_x [], q_RS_y [], q_RS_z []\n"
    "1403715273262142976,1,2,3,1,0,0,0\n"
)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_sensor(folder, calibration, log):
    write(folder / "sensor.yaml", f"%YAML:1.0\n{calibration}")
    write(folder / "data.csv", log)


def write_camera(folder, picture, count=3, calibration=CAMERA, missing=()):
    """Writes a camera whose images are all `picture`; rows in `missing` have none. Returns its stamps."""
    stamps = range(1403715273262142976, 1403715273262142976 + count * 50_000_000, 50_000_000)
    write_sensor(folder, calibration, "#timestamp [ns],filename\n" + "".join(f"{t},{t}.png\n" for t in stamps))
    for row, t in enumerate(stamps):
        if row not in missing:
            (folder / "data").mkdir(exist_ok=True)
            shutil.copy(picture, folder / "data" / f"{t}.png")
    return list(stamps)


@pytest.fixture
def picture(tmp_path):
    """A PNG of 8x6."""
    encoded = robocache.frames.encode(np.arange(48, dtype=np.uint8).reshape(1, 6, 8, 1), codec="png")
    path = tmp_path / "picture.png"
    path.write_bytes(bytes(encoded.data))
    return path


@pytest.mark.parametrize(("unit", "exponent"), [("[s]", -9), ("[ms]", -6), ("[us]", -3), ("(ns)", 0), ("", 0)])
def test_stamps_have_the_unit_of_the_header(unit, exponent, tmp_path):
    stamps = [1403715273262000000 + 5_000_000 * k for k in range(4)]
    cells = [
        f"{stamp // 10**-exponent}.{stamp % 10**-exponent:0{-exponent}}" if exponent else str(stamp) for stamp in stamps
    ]
    log = f"#timestamp {unit},w_x [rad s^-1]\n" + "".join(f"{cell},{k}\n" for k, cell in enumerate(cells))
    write_sensor(tmp_path / "mav0/imu0", "rate_hz: 200\n", log)
    yields = Yields("euroc", tmp_path)
    assert yields.episodes["mav0"]["imu0"][0].tolist() == stamps


def test_stamps_that_can_be_no_nanoseconds_are_refused(tmp_path):
    log = "#timestamp,w_x [rad s^-1]\n" + "".join(f"{1403715273262000 + 5000 * k},{k}\n" for k in range(4))
    write_sensor(tmp_path / "mav0/imu0", "rate_hz: 200\n", log)
    with pytest.raises(robocache.FileError, match=r"4 rows lie within 15000 ns.*name it in the header"):
        robocache.ingest(tmp_path / "mav0", tmp_path / "cache", progress=None)


def test_sensors_are_the_streams_of_one_episode(picture, tmp_path):
    mav = tmp_path / "MH_01/mav0"
    stamps = write_camera(mav / "cam0", picture)
    imu = "#timestamp [ns],w_x [rad s^-1],a_x [m s^-2]\n1403715273262142976,0.25,-1\n1403715273267142911,0.5,2\n"
    write_sensor(mav / "imu0", f"rate_hz: 200\nT_BS: {MATRIX}\nnoise: 1.5e-4\n", imu)
    write_sensor(mav / "state_groundtruth_estimate0", f"T_BS: {MATRIX}\n", POSES)
    write(mav / "body.yaml", "comment: x\n")
    yields = Yields("euroc", tmp_path / "MH_01")
    assert list(yields.episodes) == ["mav0"]
    streams = yields.only()
    assert streams["imu0"][0].tolist() == [1403715273262142976, 1403715273267142911]
    assert streams["imu0"][1].tolist() == [[0.25, -1], [0.5, 2]]
    assert yields.facts["imu0"] == {
        "names": ["w_x", "a_x"],
        "attributes": {
            "clock_source": "data.csv",
            "sensor": {"rate_hz": 200, "T_BS": [[1, 2], [3, 4.5]], "noise": 1.5e-4},
            "units": ["rad s^-1", "m s^-2"],
        },
    }
    poses = yields.facts["state_groundtruth_estimate0"]
    assert poses["names"] == ["p_RS_R_x", "p_RS_R_y", "p_RS_R_z", "q_RS_w", "q_RS_x", "q_RS_y", "q_RS_z"]
    assert poses["attributes"]["units"] == ["m", "m", "m", "", "", "", ""]
    assert streams["cam0"][0].tolist() == stamps
    assert yields.facts["cam0"]["intrinsics"] == [[40.5, 0, 3], [0, 50, 2], [0, 0, 1]]
    assert set(blobs(streams["cam0"][1])) == {picture.read_bytes()}
    assert yields.source_facts["sensors"]["mav0"]["imu0"]["noise"] == 1.5e-4
    assert yields.left_out == {"*.yaml": "not of a sensor: 1 file"}
    robocache.ingest(tmp_path / "MH_01", tmp_path / "cache")
    attributes = robocache.open(tmp_path / "cache").streams["state_groundtruth_estimate0"].attributes
    assert attributes["methods"] == [[3, 7, "slerp"]]


def test_recordings_become_episodes_in_natural_order(picture, tmp_path):
    for number in (10, 9):
        write_camera(tmp_path / f"set/V1_{number}/mav0/cam0", picture, count=number)
    report = robocache.ingest(tmp_path / "set", tmp_path / "cache")
    cache = robocache.open(tmp_path / "cache")
    assert (report.format, report.rows) == ("euroc", {"cam0": 19})
    assert cache.episodes["name"].to_pylist() == ["V1_9/mav0", "V1_10/mav0"]
    assert cache.streams["cam0"].frames.codec == "png"
    assert np.array_equal(cache.streams["cam0"].frames.intrinsics, [[40.5, 0, 3], [0, 50, 2], [0, 0, 1]])


@pytest.mark.parametrize("cell", ["{}, frame {}.png", "{},frame {}.png ", '{},"frame {}.png"'])
def test_names_of_images_with_spaces_in_and_around_them(cell, picture, tmp_path):
    folder, stamps = tmp_path / "mav0/cam 0", [1403715273262142976, 1403715273312142976]
    lines = [cell.format(stamp, stamp) for stamp in stamps]
    write_sensor(folder, CAMERA, "\n".join(["#timestamp [ns], filename", *lines]) + "\n")
    (folder / "data").mkdir()
    for stamp in stamps:
        shutil.copy(picture, folder / f"data/frame {stamp}.png")
    yields = Yields("euroc", tmp_path)
    time_ns, chunks = yields.only()["cam 0"]
    assert time_ns.tolist() == stamps and blobs(chunks) == [picture.read_bytes()] * 2


def test_calibrations_that_differ_stay_with_their_recordings(picture, tmp_path):
    write_camera(tmp_path / "a/mav0/cam0", picture)
    write_camera(tmp_path / "b/mav0/cam0", picture, calibration=CAMERA.replace("40.5", "41"))
    yields = Yields("euroc", tmp_path)
    assert yields.facts["cam0"]["intrinsics"] is None
    assert yields.facts["cam0"]["attributes"]["sensor"] == {"sensor_type": "camera", "camera_model": "pinhole"}
    assert yields.left_out["cam0: intrinsics"].startswith("differs between recordings")
    assert [sensors["cam0"]["intrinsics"][0] for sensors in yields.source_facts["sensors"].values()] == [40.5, 41]


@pytest.mark.parametrize(("model", "has_intrinsics"), [("PinHole", True), ("omni", False)])
def test_only_pinhole_cameras_have_intrinsics(model, has_intrinsics, picture, tmp_path):
    write_camera(tmp_path / "mav0/cam0", picture, calibration=CAMERA.replace("pinhole", model))
    yields = Yields("euroc", tmp_path)
    assert (yields.facts["cam0"]["intrinsics"] is not None) == has_intrinsics
    assert yields.left_out.get("cam0: intrinsics", "").startswith("" if has_intrinsics else "of camera_model 'omni'")


def test_a_declared_rate_that_stamps_contradict_is_noted(tmp_path):
    rates = {"imu0": (200, 200), "imu1": (20, 200), "imu2": (200, 190)}
    for name, (declared, hz) in rates.items():
        rows = "".join(f"{1403715273262142976 + k * 10**9 // hz},{k}\n" for k in range(20))
        write_sensor(tmp_path / "mav0" / name, f"rate_hz: {declared}\n", f"#timestamp [ns],a\n{rows}")
    reasons = {
        note.what: note.reason for note in Yields("euroc", tmp_path).notes.assumed if note.what.startswith("clock of")
    }
    assert reasons == {
        "clock of imu1": "its stamps, 200 rows a second (median), though sensor.yaml: rate_hz says 20",
        "clock of imu2": "its stamps, 190 rows a second (median), though sensor.yaml: rate_hz says 200",
    }


def test_frames_of_another_size_have_no_intrinsics(picture, tmp_path):
    write_camera(tmp_path / "mav0/cam0", picture)
    yields = Yields("euroc", tmp_path, image_size="4x4")
    assert yields.facts["cam0"]["intrinsics"] is None
    assert yields.facts["cam0"]["resized"]["from"] == [6, 8]
    assert "cam0: intrinsics" in yields.left_out


def test_missing_listed_images_are_refused_or_named(picture, tmp_path):
    stamps = write_camera(tmp_path / "mav0/cam0", picture, count=4, missing=(0, 2))
    write_camera(tmp_path / "mav0/cam1", picture, count=4, missing=range(4))
    assert f"{stamps[0]}.png" in outcome("euroc", tmp_path)
    yields = Yields("euroc", tmp_path, on_error="skip")
    assert yields.only()["cam0"][0].tolist() == [stamps[1], stamps[3]]
    assert list(yields.skipped) == ["mav0/cam0/data.csv: cam0: rows 0, 2"]
    reason = "no image that mav0/cam1/data.csv names exists; its 4 rows are the text cam1.filename"
    assert yields.left_out["cam1"] == reason and len(yields.only()["cam1.filename"][0]) == 4


@pytest.mark.parametrize("filled_run", [0, 1])
def test_a_column_empty_in_one_recording_has_the_type_of_others(filled_run, tmp_path):
    for run in (0, 1):
        note = "grasp" if run == filled_run else ""
        log = f"#timestamp [ns],a,note\n1403715273262142976,{run},{note}\n"
        write_sensor(tmp_path / f"run_{run}/mav0/imu0", "rate_hz: 200\n", log)
    robocache.ingest(tmp_path, tmp_path / "cache", format="euroc")
    dataset = robocache.open(tmp_path / "cache")
    for run in (0, 1):
        assert dataset.episode(run)["imu0"][1].tolist() == [[run]]
        assert list(dataset.episode(run)["imu0.note"][1]) == (["grasp"] if run == filled_run else [])


def test_an_image_outside_its_folder_is_refused(picture, tmp_path):
    write_camera(tmp_path / "mav0/cam0", picture)
    file = tmp_path / "mav0/cam0/data.csv"
    for name in ("../../../picture.png", str(picture)):
        file.write_text(file.read_text() + f"1403715274000000000,{name}\n")
        assert "expected the name of an image in" in outcome("euroc", tmp_path)


@pytest.mark.parametrize(
    ("text", "message_part"),
    [
        ("", "expected keys and values"),
        ("- 1\n", "expected keys and values"),
        ("a: [1\n", "ParserError"),
        ("a: &x [1]\nb: *x\n", "without aliases"),
        ("a: !!python/object/apply:os.system [ls]\n", "ConstructorError"),
        ("T_BS: {rows: 4, cols: 4, data: [1]}\n", "cannot reshape"),
        ("T_BS: {rows: 1, cols: 1, data: [x]}\n", "ValueError"),
        ("a: " + "[" * 5000 + "]" * 5000, "at most 32 lists within one another"),
        ("- " * 20_000, "at most 32 lists within one another"),
        ("a: " + "x" * 3_000_000, "at most 2097152 bytes"),
        ("a: 1\na: 2\n", "DuplicateKeyError"),
        ("\x00", "ReaderError"),
    ],
)
def test_a_calibration_that_cannot_be_read_is_refused_or_named(text, message_part, tmp_path):
    write_sensor(tmp_path / "mav0/pose0", text, POSES)
    assert message_part in outcome("euroc", tmp_path)
    yields = Yields("euroc", tmp_path, on_error="skip")
    assert list(yields.skipped) == ["mav0/pose0/sensor.yaml"]
    assert len(yields.only()["pose0"][0]) == 1


def test_yaml_values_without_a_json_type_become_text(tmp_path):
    write_sensor(
        tmp_path / "mav0/pose0", "on: 2020-01-01\nno: .nan\nbig: 99999999999999999999\n2: null\nnoise: 1e-3\n", POSES
    )
    report = robocache.ingest(tmp_path, tmp_path / "cache", on_error="stop")
    assert report.rows == {"pose0": 1}
    facts = Yields("euroc", tmp_path).source_facts["sensors"]["mav0"]["pose0"]
    assert facts == {"on": "2020-01-01", "no": "nan", "big": "99999999999999999999", "2": None, "noise": 0.001}


def test_euroc_is_recognised_by_its_sensors(tmp_path):
    write_sensor(tmp_path / "set/mav0/imu0", "a: 1\n", POSES)
    assert registry.find_format(tmp_path / "set").name == "euroc"
    assert registry.find_format(tmp_path / "set/mav0").name == "euroc"
    assert registry.find_format(tmp_path / "set/mav0/imu0").name == "csv"  # a single sensor is a log
    assert "expected folders with data.csv" in outcome("euroc", tmp_path / "set/mav0/imu0")


def test_the_real_slice(real_data):
    source = real_data("logs_csv/euroc_micro")
    yields = Yields("euroc", source, on_error="skip")
    streams = yields.only()
    assert sorted(streams) == ["cam0", "cam1.filename", "imu0"]
    listed = [line.split(",") for line in (source / "mav0/cam1/data.csv").read_text().splitlines()[1:]]
    assert streams["cam1.filename"][0].tolist() == [int(stamp) for stamp, _ in listed]
    assert streams["cam1.filename"][1] == [name for _, name in listed]
    lines = (source / "mav0/imu0/data.csv").read_text().splitlines()[1:]
    assert streams["imu0"][0].tolist() == [int(line.split(",")[0]) for line in lines]
    assert streams["imu0"][1].tolist() == [[float(cell) for cell in line.split(",")[1:]] for line in lines]
    images = sorted((source / "mav0/cam0/data").iterdir())
    assert streams["cam0"][0].tolist() == [int(image.stem) for image in images]
    assert blobs(streams["cam0"][1]) == [image.read_bytes() for image in images]
    expected = ruamel.YAML(typ="safe", pure=True).load(
        (source / "mav0/cam0/sensor.yaml").read_text().removeprefix("%YAML:1.0")
    )
    sensor = yields.facts["cam0"]["attributes"]["sensor"]
    assert np.array_equal(sensor["T_BS"], np.reshape(expected["T_BS"]["data"], (4, 4)))
    assert sensor["distortion_coefficients"] == expected["distortion_coefficients"]
    assert "its 99 rows are the text cam1.filename" in yields.left_out["cam1"]
