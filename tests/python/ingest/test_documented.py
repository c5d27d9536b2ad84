"""The pages' claims about formats hold: each line of the table has its tests, each folder of real data is read or refused by name."""

import ast
import contextlib
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader
from PIL import Image
from robocache.ingest.registry import FORMATS
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore
from yields import Yields, pixels

import robocache

ROOT = Path(__file__).parents[3]
TESTS = Path(__file__).parent

# For each folder of real data, the test that compares it with the format's own library, or with known facts.
REAL = {
    "depth/nvblox_human": "test_documented::test_depth_images_with_a_list_are_a_log",
    "lerobot_v2/gr00t_gr1_pnp_sim": "test_lerobot::test_gr00t_simulation",
    "lerobot_v2/lfs_pointers_only": "test_lerobot::test_a_clone_without_its_lfs_files_is_refused",
    "lerobot_v2/unitree_g1_real": "test_lerobot::test_unitree_with_missing_episodes",
    "lidar/laspy": "test_clouds::test_real_las_equals_laspy",
    "lidar/ouster_pcap": "test_documented::test_packets_of_a_lidar_are_refused_by_name",
    "lidar/pcl_mosd_kinect": "test_clouds::test_a_real_pcd",
    "lidar/pcl_terrain_als": "test_clouds::test_a_real_pcd",
    "lidar/small_gicp": "test_clouds::test_a_real_ply",
    "logs_csv/euroc_micro": "test_euroc::test_the_real_slice",
    "logs_csv/gtsam": "test_csv::test_unusual_gtsam_logs",
    "logs_csv/lerobot_so100_inference": "test_csv::test_so100_inference_logs",
    "mcap/depthai_recording": "test_ros_real::test_a_real_json_file_beside_a_video_of_another_length",
    "mcap/keelson": "test_ros_real::test_a_real_protobuf_file_equals_its_library",
    "motion/unitree_g1_lerobot": "test_npz::test_real_motions_equal_numpys",
    "npz_obs/openpi_droid_sim": "test_npz::test_one_observation_is_no_recording",
    "rlds/octo_bridge_debug": "test_rlds::test_octo_bridge_against_protobuf",
    "rosbag1/realsense": "test_ros_real::test_real_frames_of_realsense",
    "rosbag1/robot_localization": "test_ros_real::test_real_bags_equal_rosbags",
    "rosbag2/plotjuggler": "test_ros_real::test_real_bags_equal_rosbags",
    "rosbag2/ros2_empty_bag": "test_documented::test_a_bag_without_messages",
    "rosbag2/ros2_topics_and_services": "test_documented::test_events_and_services_are_read_by_their_stamps",
    "rosbag2/ros2_wbag_split_mcap": "test_ros_real::test_real_bags_equal_rosbags",
    "rosbag2/ros2_wbag_split_sqlite": "test_ros_real::test_real_bags_equal_rosbags",
    "rosbag2/unitree_go2": "test_csv::test_unitree_go2",
    "ulog/pyulog": "test_ulog::test_real_logs_equal_pyulog",
}


def list_functions(module):
    tree = ast.parse((TESTS / f"{module}.py").read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_folder_of_real_data_has_its_test(real_data):
    root = Path(real_data("."))
    present = {f"{kind.name}/{folder.name}" for kind in root.iterdir() if kind.is_dir() for folder in kind.iterdir()}
    assert present == set(REAL)
    for folder, test in REAL.items():
        module, _, name = test.partition("::")
        assert name in list_functions(module), test
        assert folder.split("/")[1] in (TESTS / f"{module}.py").read_text(), folder


# ---- folders that no other test reads ----


def test_packets_of_a_lidar_are_refused_by_name(real_data, tmp_path):
    source = Path(real_data("lidar/ouster_pcap"))
    with pytest.raises(robocache.FileError, match=r"ouster_pcap: expected recordings of a known format, .*\.pcap"):
        robocache.ingest(source, tmp_path / "cache")
    # The user names the format.
    with pytest.raises(robocache.FileError, match="ouster_pcap: expected point clouds"):
        robocache.ingest(source, tmp_path / "cache", format="clouds")


def test_depth_images_with_a_list_are_a_log(real_data, tmp_path):
    """docs/formats.md says this about folders of depth images."""
    source = Path(real_data("depth/nvblox_human"))
    with pytest.raises(robocache.FileError, match="nvblox_human: expected recordings of a known format"):
        robocache.ingest(source, tmp_path / "cache")
    names = sorted(file.name for file in source.glob("*.png"))
    for name in names:
        (tmp_path / name).write_bytes((source / name).read_bytes())
    (tmp_path / "data.csv").write_text("timestamp [ns],filename\n" + "".join(f"{k},{n}\n" for k, n in enumerate(names)))
    streams = Yields("csv", tmp_path).only()
    depth = pixels(streams["data.filename"][1])[..., 0]
    np.testing.assert_array_equal(depth, [np.array(Image.open(source / name)) for name in names])
    assert depth.dtype == np.uint16 and depth.max() == 32307


def test_a_bag_without_messages(real_data):
    source = Path(real_data("rosbag2/ros2_empty_bag"))
    with AnyReader([source], default_typestore=get_typestore(Stores.ROS2_HUMBLE)) as reader:
        assert reader.message_count == 0
    yields = Yields("rosbag2", source)
    assert yields.only() == {} and set(yields.left_out.values()) == {"no messages"} and not yields.skipped
    with pytest.raises(robocache.FileError, match=r"ros2_empty_bag: nothing to keep; ros2_empty_bag: /.*: no messages"):
        robocache.ingest(source, "unused")
    with pytest.raises(robocache.FileError, match=r"test_303bytes\.mcap: nothing to keep$"):  # a file without topics
        robocache.ingest(real_data("mcap/keelson/test_303bytes.mcap"), "unused")


@pytest.mark.parametrize("storage", ["mcap", "db3"])
def test_events_and_services_are_read_by_their_stamps(storage, real_data):
    source = Path(real_data("rosbag2/ros2_topics_and_services")) / f"topics_and_services.{storage}"
    yields = Yields("rosbag2", source, stamp="log")
    expected = {}
    for topic, time_ns in stored_messages(source):
        expected.setdefault(topic, []).append(time_ns)
    assert expected and not yields.skipped
    for topic, stamps in expected.items():
        streams = [rows for name, rows in yields.only().items() if name == topic or name.startswith(f"{topic}/")]
        assert streams or any(topic in what for what in yields.left_out), topic
        assert all(rows[0].tolist() == stamps for rows in streams), topic
    assert sum(map(len, expected.values())) == 13


def stored_messages(source):
    """Returns (topic, log time) of all messages in order, by the storage's own library."""
    if source.suffix == ".mcap":
        with source.open("rb") as file:
            return [(channel.topic, result.log_time) for _, channel, result in make_reader(file).iter_messages()]
    with contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro&immutable=1", uri=True)) as database:
        return database.execute(
            "SELECT name, timestamp FROM messages JOIN topics ON topics.id = topic_id ORDER BY timestamp, messages.id"
        ).fetchall()


# ---- the table ----


def lines_of_the_table():
    text = (ROOT / "docs/formats.md").read_text()
    lines = [line for line in text.splitlines() if re.match(r"\| `\w+` \| \[", line)]
    return {line.split("`")[1]: [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines}


def test_the_table_has_every_format_and_its_tests():
    table = lines_of_the_table()
    assert set(table) == {name for name, entry in FORMATS.items() if entry.reader.startswith("robocache.")}
    for name, cells in table.items():
        assert len(cells) == 3, name
        tests = re.findall(r"`([\w*./]+)`", cells[-1])
        assert tests, name
        for pattern in tests:
            files = list(TESTS.glob(pattern)) + list(TESTS.parent.glob(pattern))
            assert files, f"{name}: {pattern}"
        code = "".join(file.read_text() for pattern in tests for file in TESTS.glob(pattern) if file.is_file())
        assert re.search(rf"[\"'/]{name}[\"'/]", code) or f"import {name}" in code, f"{name}: no test of it in {tests}"
        # Its page, and the anchor in it.
        for page, anchor in re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", " ".join(cells)):
            content = (ROOT / "docs" / page).read_text()
            titles = {
                re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in content.splitlines()
                if line.startswith("#")
            }
            assert not anchor or anchor in titles, f"{name}: {page}#{anchor}"


def test_the_readme_names_every_family():
    text = (ROOT / "README.md").read_text().lower()
    phrases = {
        "mcap": "mcap",
        "rosbag1": "ros 1 and 2 bags",
        "rosbag2": "ros 1 and 2 bags",
        "clouds": "point clouds",
        "zarr": "zarr stores",
    }
    assert [name for name in lines_of_the_table() if phrases.get(name, name) not in text] == []
