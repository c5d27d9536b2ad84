"""The examples in the README, in docs and in docstrings run as they are written."""

import contextlib
import doctest
import importlib
import inspect
import io
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from loaders_by_keywords import from_lerobot
from PIL import Image
from scipy.interpolate import PchipInterpolator

import robocache
from robocache import cli

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
START = (ROOT / "docs/start.md").read_text()


def snippets(language, text=README + START):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def snippet(language, part):
    """Returns the only snippet that contains `part`."""
    (text,) = [text for text in snippets(language) if part in text]
    return text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lerobot_files(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "ingest"))
    return importlib.import_module("lerobot_files")


# ---- README and docs/start.md ----


def test_the_first_screen(rng, folder):
    time_ns = np.arange(80) * 100_000_000
    with robocache.Writer("cache") as writer, writer.episode() as episode:
        for stream in ("observation.state", "action"):
            episode.append(stream, time_ns, rng.normal(size=(80, 7)).astype(np.float32))
        frames = rng.integers(0, 256, (80, 48, 64, 3), np.uint8)
        episode.append("observation.images.top", time_ns, frames, codec="jpeg")
    (example,) = snippets("python", README)
    assert len([line for line in example.splitlines() if line.startswith((">>>", "..."))]) <= 8
    run_examples(example, {})


def test_from_a_lerobot_dataset_to_a_training_loop(rng, folder, lerobot_files, device):
    lengths = (700, 400)
    episodes = lerobot_files.make_episodes(rng, lengths)
    for episode in episodes:
        episode.columns["action"] = 50 * episode.columns["action"] + 700
    download, *commands = [shlex.split(line, comments=True) for line in snippet("bash", "hf download").splitlines()]
    assert download[:2] == ["hf", "download"]
    lerobot_files.write_lerobot(download[download.index("--local-dir") + 1], episodes, version="v3.0", fps=10)
    for program, *arguments in commands:
        assert program == "robocache"
        assert cli.main(arguments) == 0

    moments = []

    def policy(state, action, is_pad):
        assert state.shape == (1024, 2, 3)
        assert action.shape == (1024, 16, 2)
        assert is_pad.shape == (1024, 16)
        assert state.dtype == action.dtype == torch.float32
        assert {tensor.device.type for tensor in (state, action, is_pad)} == {device}
        assert state.isfinite().all()
        assert action.isfinite().all()
        assert not is_pad.all(1).any()  # the window begins on the anchor, which is a row
        anchor_actions = action[:, 0].double()  # almost all are rows of the recording
        moments.append((anchor_actions.mean().item(), anchor_actions.std().item()))
        return ((action - state.mean()) ** 2)[~is_pad].mean()

    source = snippet("python", "policy(")
    if device == "cpu" and robocache.check_installation()["cuda"]["reason"] is None:
        source = source.replace("Loader(ds, ", 'Loader(ds, device="cpu", ')  # without device= it would use a GPU
    names = {"policy": policy}
    exec(source, names)
    assert len(moments) == 10 * (sum(lengths) // 1024)
    np.testing.assert_allclose(moments, [(0, 1)] * len(moments), atol=0.1)
    state = names["loader"].state_dict()
    assert (state["seed"], state["epoch"], state["samples"]) == (0, 10, 0)


def test_a_custom_recorder(rng, folder):
    time_ns, values = np.arange(5) * 10**7, rng.normal(size=(5, 3)).astype(np.float32)
    exec(snippet("python", "robocache.Writer"), {"robocache": robocache, "time_ns": time_ns, "values": values})
    ds = robocache.open("recorded")
    assert ds.episodes["task"].to_pylist() == ["pick the cup"]
    assert ds.episodes["success"].to_pylist() == [True]
    np.testing.assert_array_equal(ds.episode(0)["joint.position"][0], time_ns)
    np.testing.assert_array_equal(ds.episode(0)["joint.position"][1], values)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_the_operations_alone(device, framework):
    lines = snippet("python", "resample_trajectories").strip().splitlines()
    resample, fuse, voxelize, voxelize_sparse, image_batch, integrate_tsdf = lines
    times, values, targets = [0.0, 0.1, 1.0], [[0.0], [10.0], [20.0]], [0.05, 0.55, 2.0]
    inputs = {"values": values, "times": times, "q": values, "t_q": times, "target_times": targets}
    inputs |= {"f": [[1.0, 2.0], [3.0, 4.0]], "t_f": [0.0, 0.5]}
    inputs |= {"points": [[-7.95, 0.05, 0.55], [-7.94, 0.06, 0.57], [9.0, 0.0, 0.0]]}
    inputs |= {"grid": [[[0.0] * 16]], "weights": [[[0.0] * 16]], "depth": [[0.07]]}
    names = {name: torch.tensor(array, device=device) for name, array in inputs.items()}
    if framework == "numpy":
        names = {name: tensor.cpu().numpy() for name, tensor in names.items()}
    names["robocache"] = robocache
    out, valid = eval(resample, names)
    assert type(out) is type(names["values"])
    curve = PchipInterpolator(times, values)(np.minimum(targets, times[-1]))
    np.testing.assert_allclose(out.tolist(), curve, rtol=1e-5)  # tests/python/ops checks the bound
    assert valid.tolist() == [True, False, False]  # the second in a gap, the third outside
    fused = eval(fuse, names)
    assert type(fused) is type(names["values"])
    expected = [[5.0, 1.0, 2.0], [15.0, 3.0, 4.0], [20.0, 3.0, 4.0]]
    np.testing.assert_allclose(fused.tolist(), expected, rtol=1e-6)
    counts = eval(voxelize, names)
    assert type(counts) is type(names["values"])
    assert tuple(counts.shape) == (160, 160, 32)
    assert (int(counts[0, 80, 15]), int(counts.sum())) == (2, 2)
    voxels = eval(voxelize_sparse, names)
    assert type(voxels.features) is type(names["values"])
    assert voxels.coords.tolist() == [[-80, 0, 5], [90, 0, 0]]
    assert voxels.counts.tolist() == [2, 1]
    assert tuple(voxels.features.shape) == (2, 5, 3)
    frames, rows = np.zeros((2, 240, 250, 3), np.uint8), np.array([1, 0])
    frames[1] = 255
    names |= {"frames": frames, "rows": rows}
    if framework == "torch":
        names |= {"frames": torch.tensor(frames, device=device), "rows": torch.tensor(rows, device=device)}
    images = eval(image_batch, names)
    assert type(images) is type(names["frames"]) and tuple(images.shape) == (2, 3, 224, 224)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    pixels = [images[sample, :, 7, 9].tolist() for sample in range(2)]
    np.testing.assert_allclose(pixels, [(1 - mean) / std, -mean / std], rtol=1e-6)
    names |= {"pose": np.eye(4), "camera": (1.0, 1.0, 0.0, 0.0)}
    names["pose"][:2, 3] = -0.995  # so that the camera looks along the only column of voxels
    assert eval(integrate_tsdf, names)[0] is names["grid"]
    distances = 0.07 - (np.arange(16) + 0.5) * 0.01
    is_updated = abs(distances) < 0.04
    np.testing.assert_allclose(names["grid"].tolist()[0][0], np.where(is_updated, distances, 0), atol=1e-7)
    assert names["weights"].tolist()[0][0] == is_updated.tolist()


# ---- docs ----

PAGES = ["resample", "fuse", "voxelize", "voxelize_sparse", "tsdf"]


@pytest.mark.parametrize("page", [*PAGES, "loader"])
def test_the_examples_of_a_page(folder, device, page):
    text = (ROOT / f"docs/{page}.md").read_text()
    examples = [code for code in snippets("python", text) if code.startswith(">>>")]
    assert len(examples) >= (7 if page == "loader" else 2)
    assert page == "loader" or any('device="cuda"' in example for example in examples)
    names = {}
    for example in examples:
        run_examples(example.replace('device="cuda"', f'device="{device}"'), names)


def test_the_example_of_upgrading(rng, folder, device):
    write_example_cache("cache", np.arange(20) * 10**8, rng.normal(size=(20, 7)).astype(np.float32))
    (example,) = snippets("python", (ROOT / "docs/upgrading.md").read_text())
    run_examples(example.replace('device="cuda"', f'device="{device}"'), {})


@pytest.mark.parametrize("page", [page for page in PAGES if page != "tsdf"])  # tsdf has none
def test_the_cpp_example_of_an_operations_page_exists(page):
    assert f"(../examples/{page}.cpp)" in (ROOT / f"docs/{page}.md").read_text()
    assert page in re.search(r"foreach\(example (.*?)\)", (ROOT / "examples/CMakeLists.txt").read_text()).group(1)


def run_examples(text, names):
    """Runs the >>> examples of a text, and checks what they print."""
    for example in doctest.DocTestParser().get_examples(text):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(example.source, "<example>", "single"), names)
        if example.want:
            assert printed.getvalue() == example.want.replace("<BLANKLINE>\n", "\n")


# ---- examples/train_act.py ----


@pytest.fixture
def train_act(folder, monkeypatch):
    """A function that runs the example on a dataset, and returns its losses."""
    pytest.importorskip("av", reason="no PyAV: pip install av")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    main = importlib.import_module("train_act").main
    return lambda dataset, *options: main([str(dataset), "--cache", "cache", "--device", "cpu", *options])


@pytest.fixture
def camera_dataset(rng, folder, monkeypatch, lerobot_files):
    """A LeRobot dataset with 28 frames of a camera, whose actions follow from the state."""
    pytest.importorskip("av", reason="no PyAV: pip install av")
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "ingest"))
    video_files = importlib.import_module("video_files")
    camera, episodes = "observation.images.top", []
    for number, rows in enumerate((18, 10)):
        state = rng.normal(size=(rows, 3)).astype(np.float32).cumsum(0)
        episodes.append(lerobot_files.Episode({"observation.state": state, "action": state[:, :2]}))
        path = folder / f"pusht/videos/chunk-000/{camera}/episode_{number:06d}.mp4"
        video_files.write_video(path, range(100 * number, 100 * number + rows))
    features = {
        name: {"dtype": "float32", "shape": [values.shape[1]], "names": None}
        for name, values in episodes[0].columns.items()
    }
    shape = [video_files.HEIGHT, video_files.WIDTH, 3]
    features[camera] = {"dtype": "video", "shape": shape, "names": ["height", "width", "rgb"]}
    features |= lerobot_files.BOOKKEEPING
    return lerobot_files.write_lerobot(folder / "pusht", episodes, "v2.1", features=features)


@pytest.mark.parametrize("policy", ["small", "act"])
def test_training_on_a_dataset_with_a_camera(camera_dataset, train_act, folder, policy, capsys):
    if policy == "act":
        pytest.importorskip("lerobot.policies.act.modeling_act", reason="LeRobot is not installed: pip install lerobot")
    steps = {"small": 12, "act": 2}[policy]
    options = f"--policy {policy} --steps {steps} --batch-size 8 --picture a.png --record a.json"
    losses = train_act(camera_dataset, *options.split())
    assert len(losses) == steps
    assert np.isfinite(losses).all()
    if policy == "small":
        assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])  # three epochs of four batches
    first_line, *_, last_line = capsys.readouterr().out.splitlines()
    assert first_line == f"{policy} on cpu: 28 frames, cameras: observation.images.top"
    assert last_line.startswith(f"{steps} batches: ") and "waited for data" in last_line
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((folder / "a.json").read_text())
    np.testing.assert_allclose(record["losses"], losses, atol=1e-5)
    facts = {"gpu": None, "policy": policy, "cameras": ["observation.images.top"], "frames": 28, "batch_size": 8}
    assert facts.items() <= record.items() and record["steps"] == steps
    assert 0 < record["waited_s"] < record["elapsed_s"]


def test_a_trained_policy_runs_without_the_dataset(camera_dataset, train_act, folder, capsys):
    train_act(camera_dataset, "--policy", "small", "--steps", "3", "--batch-size", "8", "--save", "arm.pt")
    actions = train_act(camera_dataset, "--run", "arm.pt")
    lines = capsys.readouterr().out.splitlines()
    assert "the next 16 actions; the first, and what was recorded:" in lines and len(lines[-1].split()) == 3
    module = importlib.import_module("train_act")
    streams = robocache.open("cache").streams
    frame, state = streams["observation.images.top"].frame(0), streams["observation.state"].values[0]
    repeated = module.load_policy("arm.pt")({"observation.images.top": frame}, state)
    torch.testing.assert_close(repeated, actions)
    # As an oracle, the loader normalises the state and the frame's middle, and unnormalises the actions.
    images = robocache.ImageOptions(size=(108, 108), crop=(96, 96), crop_at="center", mean="imagenet", std="imagenet")
    loader = from_lerobot(
        camera_dataset, cache="cache", batch_size=1, shuffle=False, device="cpu", images=images, normalize="mean_std"
    )
    saved = torch.load("arm.pt", weights_only=True)
    policy = module.SmallPolicy(*saved["sizes"]).eval()
    policy.load_state_dict(saved["weights"])
    with torch.no_grad():
        expected = loader.unnormalize("action", policy.predict_action_chunk(next(loader))[0])
    torch.testing.assert_close(actions, expected, rtol=1e-4, atol=1e-4)


def test_training_accepts_sources_of_ingest(camera_dataset, train_act, folder, capsys):
    (video,) = (folder / "pusht").rglob("episode_000001.mp4")
    video.unlink()
    with pytest.raises(SystemExit):
        train_act(camera_dataset, "--policy", "small", "--steps", "1")
    assert "episode_000001.mp4" in (output := capsys.readouterr().err) and "--on-error skip" in output
    with pytest.warns(UserWarning, match="1 of 2 episodes lack rows"):
        train_act(camera_dataset, "--policy", "small", "--steps", "1", "--on-error", "skip", "--frames", "by-index")
    assert "18 frames" in capsys.readouterr().out
    robocache.ingest(folder / "pusht", folder / "ingested", on_error="skip", jobs=1)
    modified_ns = (folder / "ingested").stat().st_mtime_ns
    with pytest.warns(UserWarning, match="batches lack them"):
        train_act(camera_dataset, "--policy", "small", "--steps", "1", "--on-error", "skip", "--cache", "ingested")
    assert (folder / "ingested").stat().st_mtime_ns == modified_ns


@pytest.mark.filterwarnings("ignore:cameras without frames")
def test_training_on_a_real_dataset(real_data, train_act):
    dataset = real_data("lerobot_v2/gr00t_gr1_pnp_sim")
    losses = train_act(dataset, "--policy", "small", "--steps", "30", "--batch-size", "8")
    assert np.mean(losses[-10:]) < 0.95 * np.mean(losses[:5])


def test_the_page_shows_the_training_command(camera_dataset, train_act, folder):
    (command,) = [text for text in snippets("bash", (ROOT / "docs/images.md").read_text()) if "train_act" in text]
    python, program, dataset, *options = shlex.split(command, comments=True)
    assert (python, program) == ("python", "examples/train_act.py") and (ROOT / program).exists()
    options[options.index("--steps") + 1] = "1"
    assert len(train_act(dataset, *options, "--policy", "small")) == 1
    assert (folder / options[options.index("--picture") + 1]).exists()


# ---- Docstrings ----


def objects_with_examples():
    """Returns every public object and method with an example, as parameters of a test."""
    parameters = []
    for name in robocache.__all__:
        value = getattr(robocache, name)
        members = inspect.getmembers(value, inspect.isroutine) if inspect.isclass(value) else []
        for path, item in [(name, value), *((f"{name}.{member}", routine) for member, routine in members)]:
            if ">>>" in (inspect.getdoc(item) or ""):
                parameters.append(pytest.param(item, id=path))
    return parameters


def write_example_cache(path, time_ns, values):
    with robocache.Writer(path) as writer:
        for number in range(4):
            task = "calibrate" if number == 1 else "pick the cup"
            with writer.episode(task=task, success=number < 3) as episode:
                for stream in ("joint.position", "observation.state", "action"):
                    episode.append(stream, time_ns, values)


VALUES = np.random.default_rng(0).normal(size=(200, 7)).astype(np.float32)
STAMPS = np.arange(200) * 20_000_000


@pytest.fixture(scope="module")
def files_of_examples(tmp_path_factory):
    """A folder with the files that examples read."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("logs", "photos", "assets/trossen", "assets/arm"):
        (folder / name).mkdir(parents=True)
    for name in ("other", "cache"):
        write_example_cache(folder / name, STAMPS, VALUES)
    for name, rows in (("imu", 13312), ("joints", 33280)):
        (folder / "logs" / f"{name}.csv").write_text("".join(f"{k},{k}\n" for k in range(rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent / "ingest"))
        lerobot_files = importlib.import_module("lerobot_files")
        episodes = lerobot_files.make_episodes(np.random.default_rng(1), (50, 30))
        lerobot_files.write_lerobot(folder / "pusht", episodes, version="v3.0", fps=10)
    stats = robocache.open(folder / "other").stats
    stats = {"actions": stats["action"], "state": stats["observation.state"]}
    robocache.save_norm_stats(folder / "assets/trossen/norm_stats.json", stats, "openpi")
    for number in range(10):
        Image.new("RGB", (640, 480), (number, 0, 0)).save(folder / "photos" / f"{number}.jpg")
    return folder


@pytest.mark.parametrize("value", objects_with_examples())
def test_the_examples_of_docstrings(folder, files_of_examples, value):
    shutil.copytree(files_of_examples, folder, dirs_exist_ok=True)
    if value in (robocache.Writer, robocache.ingest):  # these make the cache
        shutil.rmtree("cache")
    ds = robocache.open("other")
    names = {"robocache": robocache, "np": np, "ds": ds, "time_ns": STAMPS, "values": VALUES}
    names |= {"kitchen": ds, "garage": ds, "folder": folder / "photos"}
    run_examples(inspect.getdoc(value), names)
