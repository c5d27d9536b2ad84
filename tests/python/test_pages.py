"""The docs' examples: the command accepts every command line, and every Python snippet not in test_examples runs."""

import io
import operator
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from robocache._arguments import make_parser
from robocache.ingest import ingest

import robocache

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# Snippets of each page that run here, by their first words. Others have their own tests.
RUN_HERE = {
    "doctor": ['report = robocache.doctor("cache")'],
    "export": ['report = robocache.export("cache"'],
    "format": ['offsets = np.load("streams/camera.top'],
    "images": [
        "images = robocache.ImageOptions(size=(240, 240)",
        'with robocache.Writer("recorded")',
        "images = robocache.ImageOptions(size=(224, 224), flip_horizontal",
        "def posterized(",
        "# openpi: 224 x 224",
    ],
    "ingest": ["report = robocache.ingest("],
    "ingest-clouds": ["_, clouds = "],
    "loader": [
        "import pyarrow.compute as pc",
        "parts = ds.split(",
        "memory = robocache.Memory(residency=",
        "from robocache import Window",
        "def clouds_at(",
        "stats = ds.statistics(parts",
        "stats = ds.statistics(loader)",
        "stats = robocache.merge_stats(",
        "loader.save_spec(",
    ],
    "live": ["loader.save_spec(", "chunks = live.Chunks(", "with live.Recorder(", 'key = "/joint_states'],
    "start": ['windows = {"/joint_states', 'loader = robocache.Loader("cache"'],
}


def snippets(page):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)


def run(page, begin, names):
    """Executes the snippet of `page` that begins with `begin`. `names["options"]` replaces `...` among its arguments."""
    assert begin in RUN_HERE[page]
    (code,) = [text for text in snippets(page) if text.startswith(begin)]
    exec(re.sub(r"(?<=[(,] )\.\.\.(?=[,)])", "**options", code), names)
    return names


def test_a_snippet_that_raises_is_found(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("```python\nloader = robocache.Loder(...)\n```\n")
    monkeypatch.setitem(globals(), "DOCS", tmp_path)
    monkeypatch.setitem(RUN_HERE, "page", ["loader = "])
    with pytest.raises(AttributeError, match="Loder"):
        run("page", "loader = ", {"robocache": robocache, "options": {}})


def test_every_snippet_is_run():
    tested_elsewhere = {
        "ingest": "import ray",
        "live": "import robocache_ros2",
        "start": ("import robocache", "with robocache.W", "robocache.resample"),
    }
    for page, beginnings in RUN_HERE.items():
        examples = [text for text in snippets(page) if not text.startswith(">>>")]
        expected = [text for text in examples if not text.startswith(tested_elsewhere.get(page, ">>>"))]
        assert len(expected) == len(beginnings), page
        assert all(any(text.startswith(begin) for begin in beginnings) for text in expected), page


# ---- command lines ----


def command_lines():
    """Returns {page or command: its lines `robocache ...`}, from blocks of pages and from the examples of --help."""
    lines_of = {}
    for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]:
        text = path.read_text()
        blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        code = "".join(block for language, block in blocks if language in ("", "bash"))
        lines_of[path.name] = [line for line in code.splitlines() if line.startswith("robocache ")]
    subparsers = make_parser()._subparsers._group_actions[0].choices
    for name, parser in subparsers.items():
        lines_of[f"{name} --help"] = re.findall(r"^ *(robocache .*)", parser.epilog, re.MULTILINE)
    return lines_of


COMMANDS = command_lines()


def test_pages_show_commands():
    assert len(COMMANDS["README.md"]) >= 3 and len(COMMANDS["ingest.md"]) >= 6
    assert all(
        COMMANDS[f"{name} --help"] for name in ("ingest", "append", "plan", "convert", "merge", "doctor", "export")
    )


@pytest.mark.parametrize("place", [place for place, lines in COMMANDS.items() if lines])
def test_the_command_accepts_command_lines_of_pages(place, capsys):
    for line in COMMANDS[place]:
        arguments = shlex.split(re.split(r" [|>] ", line)[0], comments=True)[1:]
        try:
            make_parser().parse_args(arguments)
        except SystemExit as raised:
            assert raised.code == 0, f"{place}: {line}: {capsys.readouterr().err}"


def test_names_on_pages_exist():
    names = {"robocache.formats"}  # a group of entry points
    for path in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for name in re.findall(r"(?<![\w./-])robocache(?:\.[A-Za-z_]\w*)+", path.read_text()):
            if name not in names:
                assert operator.attrgetter(name.partition(".")[2])(robocache) is not None, path.name
                names.add(name)
    assert len(names) > 20


# ---- snippets ----


TIME_NS = np.arange(240) * 100_000_000
FRAMES = np.random.default_rng(0).integers(0, 256, (240, 24, 32, 3), np.uint8)


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """A folder with caches that have all streams on the pages."""
    rng, folder, time_ns = np.random.default_rng(1), tmp_path_factory.mktemp("caches"), TIME_NS
    with robocache.Writer(folder / "cache") as writer:
        for number in range(8):
            task = ["pick", "calibrate"][number % 2]
            with writer.episode(task=task, tasks=["push the block"], success=number % 4 == 0) as episode:
                for stream, width in (("observation.state", 7), ("action", 7), ("observation.lidar", 64)):
                    episode.append(stream, time_ns, rng.normal(size=(240, width)).astype(np.float32))
    with robocache.Writer(folder / "filmed") as writer, writer.episode() as episode:
        for stream in ("observation.state", "action"):
            episode.append(stream, time_ns, rng.normal(size=(240, 7)).astype(np.float32))
        episode.append("observation.images.top", time_ns, FRAMES, codec="jpeg")
    with robocache.Writer(folder / "scanned") as writer:
        for _ in range(4):
            with writer.episode() as episode:
                for stream in ("points", "lidar.points"):
                    points = rng.normal(size=(1000, 3)).astype(np.float32)
                    episode.append(stream, time_ns[:10], points, offsets=np.arange(11) ** 2 * 10)
    with robocache.Writer(folder / "clouded") as writer:
        for _ in range(3):
            with writer.episode() as episode:
                episode.append("action", time_ns[:30], rng.normal(size=(30, 7)).astype(np.float32))
                points = rng.normal(size=(45, 3)).astype(np.float32)
                offsets = np.array([0, 1, 3, 6, 10, 15, 21, 28, 36, 36, 45])
                episode.append("lidar.points", time_ns[:10] * 3 + 150_000_000, points, offsets=offsets)
    return folder


@pytest.fixture
def names(caches, tmp_path, monkeypatch):
    """The names for snippets, with a dataset `ds`, in a working folder with the caches."""
    shutil.copytree(caches, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    options = {"batch_size": 16, "delta_timestamps": {"action": [0.0, 0.1]}, "device": "cpu"}
    names = {"robocache": robocache, "np": np, "torch": torch, "ds": robocache.open("cache"), "options": options}
    return names | {"time_ns": TIME_NS, "frames": FRAMES}


def test_loader_which_episodes(names):
    ds = names["ds"]
    run("loader", "import pyarrow.compute as pc", names)
    assert ds.select({"success": True}) == [0, 4]
    run("loader", "parts = ds.split(", names)
    assert (len(names["parts"]["train"]), names["train"].num_samples) == (7, 7 * 240)


def test_loader_spec(names):
    loader = names["loader"] = robocache.Loader(names["ds"], **names["options"])
    run("loader", "loader.save_spec(", names)
    assert (names["spec"], names["offsets_ns"]) == (loader.spec, [0, 100_000_000])


def test_loader_where_rows_lie(names):
    names["options"]["delta_timestamps"]["observation.lidar"] = [0.0]
    run("loader", "memory = robocache.Memory(residency=", names)
    assert "mapped" in str(names["loader"].explain())


def test_loader_normalisation(names):
    names["options"] = {"delta_timestamps": {"action": [0.0], "observation.state": [0.0]}, "device": "cpu"}
    names["policy"] = lambda state: state
    run("loader", "from robocache import Window", names)
    assert names["action"].shape == (256, 1, 7)


def test_loader_statistics_of_a_split(names):
    names["parts"] = names["ds"].split({"train": 0.75, "val": 0.25})
    run("loader", "stats = ds.statistics(parts", names)
    rows = np.concatenate([names["ds"].episode(e)["action"][1] for e in names["parts"]["train"]])
    x = np.zeros((1, 7), np.float32)
    for loader in (names["train"], names["val"]):
        expected = -rows.mean(0, dtype=np.float64) / rows.std(0, dtype=np.float64)
        np.testing.assert_allclose(loader.normalize("action", x)[0], expected, rtol=1e-5, atol=1e-6)


def test_loader_statistics_of_windows(names):
    names["parts"] = names["ds"].split({"train": 0.75, "val": 0.25})
    windows = {"action": robocache.Window([0.0, 0.1], method="nearest")}
    names["loader"] = robocache.Loader(names["ds"], batch_size=8, delta_timestamps=windows, device="cpu")
    names["loader"].save_spec("spec.json")
    run("loader", "stats = ds.statistics(loader)", names)
    assert names["stats"]["action"].mean.shape == (7,)


def test_loader_clouds(names):
    """A sample has the points of the last row at or before its anchor, found here by a linear search."""
    names["ds"] = robocache.open("clouded")
    windows = {"action": [0.0]}
    names["loader"] = robocache.Loader(names["ds"], batch_size=90, delta_timestamps=windows, device="cpu")
    run("loader", "def clouds_at(", names)
    batch, offsets, age_ns = names["batch"], names["offsets"].numpy(), np.array(names["age_ns"])
    for sample in range(90):
        time_ns, clouds = names["ds"].episode(int(batch["episode_index"][sample]))["lidar.points"]
        before = np.flatnonzero(time_ns <= int(batch["time_ns"][sample]))
        points = names["points"][offsets[sample] : offsets[sample + 1]].numpy()
        if len(before):
            np.testing.assert_array_equal(points, clouds[before[-1]])
            assert age_ns[sample] == int(batch["time_ns"][sample]) - time_ns[before[-1]]
        else:
            assert len(points) == 0 and age_ns[sample] == -1
    assert (age_ns == -1).any() and not (age_ns == -1).all()
    cells = {
        (sample, *np.floor(point / np.float32(0.2)).astype(int))
        for sample in range(90)
        for point in names["points"][offsets[sample] : offsets[sample + 1]].numpy()
    }
    assert {tuple(row) for row in names["voxels"].coords.tolist()} == cells


def test_loader_statistics(names, tmp_path):
    ds = names["ds"]
    names |= {"kitchen": ds, "garage": ds}
    (tmp_path / "pusht/meta").mkdir(parents=True)
    (tmp_path / "assets/trossen").mkdir(parents=True)
    robocache.save_norm_stats("pusht/meta/stats.json", ds.stats, "lerobot")
    openpi_stats = {"actions": ds.stats["action"], "state": ds.stats["observation.state"]}
    robocache.save_norm_stats("assets/trossen/norm_stats.json", openpi_stats, "openpi")
    with pytest.warns(robocache.NormStatsWarning):
        run("loader", "stats = robocache.merge_stats(", names)
    assert (tmp_path / "norm_stats.json").exists()


def test_images(names):
    names["ds"] = robocache.open("filmed")
    run("images", "images = robocache.ImageOptions(size=(240, 240)", names)
    assert names["batch"]["observation.images.top"].shape == (64, 2, 3, 224, 224)
    depth = np.zeros((240, 24, 32), np.uint16)
    names |= {"depth": depth, "jpegs": [jpeg(frame) for frame in names["frames"]]}
    run("images", 'with robocache.Writer("recorded")', names)
    assert robocache.open("recorded").streams["camera.wrist"].frames.codec == "jpeg"
    names["offsets"] = [i / 10 for i in range(16)]
    run("images", "images = robocache.ImageOptions(size=(224, 224), flip_horizontal", names)
    windows = {key: names["windows"][key] for key in ("observation.images.top", "action")}
    batch = next(robocache.Loader(names["ds"], batch_size=64, delta_timestamps=windows, device="cpu"))
    assert batch["action"].shape == (64, 16, 7)
    run("images", "def posterized(", names)
    top = {"observation.images.top": robocache.Window([0.0], images=names["images"])}
    batch = next(robocache.Loader(names["ds"], batch_size=64, delta_timestamps=top, device="cpu"))
    assert batch["observation.images.top"].dtype == torch.uint8
    run("images", "# openpi: 224 x 224", {"ImageOptions": robocache.ImageOptions})


def jpeg(frame):
    file = io.BytesIO()
    PIL.Image.fromarray(frame).save(file, "jpeg")
    return file.getvalue()


def test_format(names, monkeypatch):
    with robocache.Writer("a") as writer, writer.episode() as episode:
        episode.append("camera.top", names["time_ns"], names["frames"], codec="jpeg")
    monkeypatch.chdir("a")
    run("format", 'offsets = np.load("streams/camera.top', names | {"PIL": PIL, "io": io})


def test_start(names, rng):
    time_ns, frames = names["time_ns"], names["frames"]
    with robocache.Writer("cache", overwrite=True) as writer, writer.episode() as episode:
        episode.append("/joint_states/position", time_ns, rng.normal(size=(240, 7)).astype(np.float32))
        episode.append("/camera/color/image_raw/compressed", time_ns, frames, codec="jpeg")
    batch = next(run("start", 'windows = {"/joint_states', names)["loader"])
    shapes = {key: tuple(batch[key].shape[:2]) for key in names["windows"]}
    assert shapes == {"/joint_states/position": (64, 2), "/camera/color/image_raw/compressed": (64, 1)}


def test_start_from_csv(names):
    Path("logs").mkdir()
    rows = "".join(f"{k / 100},{k / 10},{-k / 10}\n" for k in range(300))
    Path("logs/joint_states.csv").write_text(f"time,shoulder,elbow\n{rows}")
    ingest("logs", "cache", overwrite=True)
    batch = next(run("start", 'loader = robocache.Loader("cache"', names)["loader"])
    times = batch["time_ns"].numpy()[:, None] / 1e9 + [-0.1, 0.0]
    values = np.where(batch["joint_states_is_pad"].numpy(), 0, np.round(times * 100) / 10)
    np.testing.assert_allclose(batch["joint_states"].numpy(), np.stack([values, -values], -1), atol=1e-9)


def test_clouds(names, monkeypatch):
    Path("cache").rename("other")
    Path("scanned").rename("cache")
    run("ingest-clouds", "_, clouds = ", names)
    assert names["grid"].shape == (10, 500, 500, 40)


def test_ingest_doctor_export(names, tmp_path):
    (tmp_path / "path/to/dataset").mkdir(parents=True)
    for name in ("imu", "top"):
        rows = "".join(f"{row / 40:.3f},{row}\n" for row in range(90))
        (tmp_path / f"path/to/dataset/{name}.csv").write_text(rows)
    Path("cache").rename("other")
    run("ingest", "report = robocache.ingest(", names)
    assert names["report"].rows == {"imu": 90, "top": 90} and not names["report"].repaired
    run("export", 'report = robocache.export("cache"', names)
    assert names["report"].rows["imu"] == names["report"].rows["top"] > 60
    Path("cache").rename("logs")
    Path("other").rename("cache")
    run("doctor", 'report = robocache.doctor("cache")', names)
    assert names["report"].summary == "no findings"


def test_live(names):
    with robocache.Writer("arm") as writer, writer.episode() as episode:
        for stream in ("joint", "action"):
            episode.append(stream, names["time_ns"][:9], np.zeros((9, 7), np.float32))
        episode.append("camera", names["time_ns"][:9:4], np.zeros((3, 480, 640, 3), np.uint8), codec="raw")
    windows = {"joint": [-0.1, 0.0], "camera": None, "action": [0.0, 0.1]}
    names["loader"] = robocache.Loader("arm", batch_size=1, delta_timestamps=windows, device="cpu")
    names |= {"time_ns": 10**18, "row": np.ones(7, np.float32)}
    run("live", "loader.save_spec(", names)
    assert names["batch"] is None and names["rings"]["joint"].newest_ns == 10**18
    windows = {"joint": [-0.1, 0.0], "action": [0.0, 0.1]}
    spec = robocache.Loader("arm", batch_size=1, delta_timestamps=windows, device="cpu").spec
    ring = robocache.live.Ring((7,), "float32", span_s=5.0)
    for k in range(9):
        ring.push(10**18 + k * 100_000_000, names["row"], arrival_ns=2 * 10**18)
    aligner = robocache.live.Aligner(spec, {"joint": ring}, outputs=["action"])
    names |= {"aligner": aligner, "batch": aligner.latest(), "policy": lambda batch: batch["joint"]}
    names["now_ns"] = int(names["batch"]["time_ns"][0])
    run("live", "chunks = live.Chunks(", names)
    assert names["action"].tolist() == [1] * 7
    names["rings"] = {"joint": ring}
    run("live", "with live.Recorder(", names)
    recorded = robocache.open("recorded")
    assert recorded.episodes["success"].to_pylist() == [True] and recorded["policy.moment_ns"].rows == 1


def test_live_topics(names):
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    key, types = "/joint_states/position", store.types
    with robocache.Writer("arm") as writer:
        writer.stream(key, names=["a", "b"])
        with writer.episode() as episode:
            episode.append(key, names["time_ns"][:9], np.zeros((9, 2)))
    spec = robocache.Loader("arm", batch_size=1, delta_timestamps={key: None}, device="cpu").spec
    stamp = types["builtin_interfaces/msg/Time"](1, 0)
    state = types["sensor_msgs/msg/JointState"](
        types["std_msgs/msg/Header"](stamp, ""), ["b", "a"], np.array([2.0, 1.0]), np.empty(0), np.empty(0)
    )
    message = bytes(store.serialize_cdr(state, "sensor_msgs/msg/JointState"))
    rings = {key: robocache.live.Ring((2,), "float64", span_s=5.0)}
    aligner = robocache.live.Aligner(spec, rings)
    names |= {"aligner": aligner, "rings": rings, "live": robocache.live, "message": message, "number": 1}
    run("live", 'key = "/joint_states', names)
    assert names["topic"].counts["taken"] == 1 and rings[key].newest_ns == 10**9
