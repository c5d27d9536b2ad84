"""The example of ALOHA's transfer cube: robots, recordings, training and rollouts of a policy."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from example_commands import example_commands
from soak import rounds

import robocache

torch = pytest.importorskip("torch")
mujoco = pytest.importorskip("mujoco")

ROOT = Path(__file__).parents[2]
IS_SOAK = rounds(1) > 1
EPISODES = 30 if IS_SOAK else 4
GYM_ALOHA_FOLDER = Path(sys.prefix) / "aloha"  # ./dev test installs gym-aloha's files here, without its dependencies
if GYM_ALOHA_FOLDER.exists():
    sys.path.append(str(GYM_ALOHA_FOLDER))
if importlib.util.find_spec("gym_aloha") is None:
    pytest.skip("NOT RUN: no gym_aloha; pip install --no-deps gym-aloha", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from examples.aloha import deviation, expert  # noqa: E402
from examples.aloha import train as training  # noqa: E402
from examples.aloha.__main__ import ACTION_FORMS, main  # noqa: E402
from examples.aloha.episode import ACTION, CAMERA, CUBE, STATE, Episode  # noqa: E402
from examples.aloha.record import demonstrate  # noqa: E402
from examples.aloha.rollout import Rollout  # noqa: E402
from examples.aloha.scene import HELD_TICKS, Scene  # noqa: E402
from examples.aloha.train import make_loader  # noqa: E402


def run_python(*arguments):
    # Importing torch would take seconds in each process.
    without_torch = {"ROBOCACHE_WITHOUT_TORCH": "1"} if {"record", "-c"} & {*arguments} else {}
    path = os.pathsep.join(filter(None, [str(GYM_ALOHA_FOLDER), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **without_torch},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stderr
    return result


def run(folder, *arguments):
    return run_python("-m", "examples.aloha", "--folder", folder, *arguments)


@pytest.mark.parametrize(("side", "arm", "first_joint"), [(-1, "left", 0), (1, "right", 8)])
def test_the_closed_form_equals_mujocos_kinematics(side, arm, first_joint):
    scene = Scene()
    rng = np.random.default_rng(0)
    for _ in range(20):
        joints = rng.uniform([-0.6, -1.2, 0.5, 0, -0.8, -1], [0.6, -0.2, 1.2, 0, 1.2, 1])
        scene.data.qpos[first_joint : first_joint + 6] = joints
        mujoco.mj_kinematics(scene.model, scene.data)
        hand = scene.data.body(f"vx300s_{arm}/gripper_link")
        tips = hand.xpos + hand.xmat.reshape(3, 3) @ [0.135, 0, 0]
        xyz, pitch = expert.forward(side, joints)
        np.testing.assert_allclose(xyz, tips, atol=1e-5)  # the right arm's mount is half a turn, rounded to six digits
        np.testing.assert_allclose(expert.solve(side, xyz[None], pitch, joints[5])[0], joints, atol=1e-6)


def carry_out(seed, change=lambda commands: commands):
    episode = Episode(Scene(), seed)
    commands = change(expert.plan(episode.scene.start, episode.scene.cube(), episode.rng))
    episode.stand_still()
    episode.run(commands)
    return episode.scene


def test_success_is_strict():
    scene = carry_out(0)
    assert scene.success and scene.touched and scene.held_ticks > HELD_TICKS
    # Both hands stop where they meet, and hold the cube: a touch, but no success.
    left, right = np.minimum(np.arange(400), 290), np.minimum(np.arange(400), 230)
    stuck = carry_out(0, lambda commands: np.column_stack([commands[left, :7], commands[right, 7:]]))
    assert stuck.touched and not stuck.success and stuck.held_ticks == 0
    # The left hand drops the cube at the end.
    dropped = carry_out(
        0,
        lambda commands: np.column_stack(
            [commands[:, :6], np.where(np.arange(400) > 370, 1, commands[:, 6]), commands[:, 7:]]
        ),
    )
    assert dropped.touched and not dropped.success
    # The left hand never moves.
    right_only = carry_out(0, lambda commands: np.column_stack([np.repeat(commands[:1, :7], 400, 0), commands[:, 7:]]))
    assert not right_only.touched and not right_only.success


def test_equal_seeds_give_equal_episodes():
    (first, first_facts), (second, second_facts), (other, _) = (demonstrate(seed, camera=False) for seed in (3, 3, 4))
    assert first_facts == second_facts and first_facts["success"]
    for stream, (time_ns, rows) in first.items():
        np.testing.assert_array_equal(time_ns, second[stream][0])
        np.testing.assert_array_equal(rows, second[stream][1])
    assert not np.array_equal(first[CUBE][1][0], other[CUBE][1][0])
    assert not np.array_equal(first[STATE][1][0], other[STATE][1][0])


def test_each_stream_has_its_own_clock():
    streams, _ = demonstrate(0, camera=False)
    joints_ms, commands_ms = (np.diff(streams[key][0]) / 1e6 for key in (STATE, ACTION))
    assert joints_ms.min() == pytest.approx(4) and joints_ms.max() == pytest.approx(6)  # 200 Hz on steps of 2 ms
    assert joints_ms.mean() == pytest.approx(5, abs=0.02)
    assert commands_ms.mean() == pytest.approx(20, abs=0.02) and 0.1 < commands_ms.std() < 1
    episode = Episode(Scene(), 0)
    periods = np.diff(episode.exposed_s)
    assert np.median(periods) == pytest.approx(1 / 30, abs=0.004)
    assert (periods > 0.05).any()  # frames are lost
    delays = episode.arrived_s - episode.exposed_s
    assert 0.02 < delays.min() < 0.04 < delays.max() < 0.1
    assert (np.diff(episode.arrived_s) >= 0).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aloha")
    run(folder, "record", "--episodes", EPISODES, "--no-camera", "--workers", 2)
    return folder


def test_recording_resumes(folder):
    seeds = robocache.open(folder / "demonstrations").episodes["seed"].to_pylist()
    assert seeds == list(range(EPISODES))
    counts = json.loads(run(folder, "record", "--episodes", EPISODES + 2, "--no-camera", "--workers", 2).stdout)
    dataset = robocache.open(folder / "demonstrations", verify=True)
    assert dataset.episodes["seed"].to_pylist() == list(range(EPISODES + 2))
    assert counts == {"successes": sum(dataset.episodes["success"].to_pylist()), "episodes": EPISODES + 2}
    assert counts["successes"] >= EPISODES + 1
    streams, _ = demonstrate(EPISODES + 1, camera=False)
    time_ns, rows = dataset.episode(EPISODES + 1)[STATE]
    np.testing.assert_array_equal(time_ns, streams[STATE][0])
    np.testing.assert_array_equal(rows, streams[STATE][1])


@pytest.mark.parametrize("form", ACTION_FORMS)
def test_outputs_of_a_policy_become_commands(folder, tmp_path, form):
    loader = make_loader(folder / "demonstrations", camera=False, batch_size=64, device="cpu", seed=0, form=form)
    loader.save_spec(tmp_path / "spec.json")
    rollout = Rollout(seed=1_000_000, spec=robocache.Spec.load(tmp_path / "spec.json"), execute=25)
    rollout.observe()
    base = 0.0 if form == "absolute" else rollout._batch[f"{ACTION}_base"][0]
    expected = rollout._episode.scene.start + 0.01 * np.arange(50)[:, None] / 50
    outputs = expected - base * (np.arange(14) % 7 < 6)
    rollout.advance(loader.normalize(ACTION, outputs[None].astype(np.float32))[0])
    for step in (30, 49):
        command = rollout._chunks.at(int(rollout._batch["time_ns"][0]) + step * 20_000_000)
        np.testing.assert_allclose(command, expected[step], atol=1e-4)


@pytest.fixture
def run_here(folder):
    """Runs commands in one process; `run` starts one for each."""
    path = os.pathsep.join(filter(None, [str(GYM_ALOHA_FOLDER), os.environ.get("PYTHONPATH")]))
    with example_commands("examples.aloha", PYTHONPATH=path, OMP_NUM_THREADS="1") as run:
        yield lambda *arguments: run("--folder", folder, *arguments)


@pytest.mark.soak
def test_a_policy_from_joints_and_cube(folder, run_here):
    """`./dev attack` trains the policy until it succeeds."""
    every, rollouts = (250, 12) if IS_SOAK else (10, 2)
    sizes = "--every", every, "--batch-size", 256, "--lr", 1e-3
    trained = json.loads(run_here("train", "--policy", "mlp", "--steps", 2 * every, *sizes, "--device", "cpu"))
    assert [point["step"] for point in trained["checkpoints"]] == [every, 2 * every]
    assert trained["checkpoints"][1]["loss"] < trained["checkpoints"][0]["loss"]
    # Rollouts need the checkpoint and the spec, but not the dataset.
    shutil.move(folder / "demonstrations", folder / "away")
    evaluate = "evaluate", "--policy", "mlp", "--rollouts", rollouts, "--workers", 2
    (policy,) = json.loads(run_here(*evaluate))["arms"]
    shutil.move(folder / "away", folder / "demonstrations")
    assert policy["rollouts"] == rollouts and policy["successes"] <= policy["touched"]
    assert not IS_SOAK or policy["successes"] >= 3, policy
    assert [point["step"] for point in policy["curve"]] == [every, 2 * every]
    # A policy that was trained and rolled out is not trained again.
    before = {file: file.stat().st_mtime_ns for file in (folder / "mlp-0").iterdir() if file.name != "spec.json"}
    assert len(before) == 4
    run_here("train", "--policy", "mlp", "--steps", 2 * every, "--device", "cpu")
    run_here(*evaluate, "--result", folder / "result.json")
    content = json.loads((folder / "result.json").read_text())
    assert content["arms"][0]["outcomes"] == policy["outcomes"]
    assert f"train --policy mlp --steps {2 * every} --batch-size 256 --lr 0.001" in content["command"]
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_weights_are_averaged_and_training_resumes_exactly(folder, tmp_path):
    def train_to_the_end(name):
        loader = make_loader(folder / "demonstrations", camera=False, batch_size=8, device="cpu", seed=0)
        training.train(loader, tmp_path / name, kind="mlp", steps=4, every=1)
        files = training.checkpoints(tmp_path / name)
        return [torch.load(file, weights_only=True) for file in files]

    uninterrupted = train_to_the_end("uninterrupted")
    for key, averaged in uninterrupted[-1]["weights"].items():
        expected = 0
        for step, state in enumerate(uninterrupted):
            expected += (state["training"][key].double().numpy() - expected) / (1 + 0.1 * step)
        np.testing.assert_allclose(averaged.numpy(), expected, atol=1e-6)
        assert not torch.equal(averaged, uninterrupted[-1]["training"][key])
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "uninterrupted" / "step_2.pt", tmp_path / "resumed")
    torch.manual_seed(99)
    resumed = train_to_the_end("resumed")[-1]
    for kind in ("weights", "training"):
        assert all(torch.equal(value, resumed[kind][key]) for key, value in uninterrupted[-1][kind].items())
    policy = training.load(tmp_path / "resumed" / "step_4.pt")
    assert all(torch.equal(value, uninterrupted[-1]["weights"][key]) for key, value in policy.state_dict().items())


@pytest.mark.parametrize(("form", "expected_share"), [("absolute", 0), ("per-step", 1)])
def test_the_share_of_a_deviation_that_a_constant_policy_keeps(folder, tmp_path, form, expected_share):
    """The joints of demonstrated moments are moved. Constant outputs then give the same absolute commands; relative commands
    move along."""
    loader = make_loader(folder / "demonstrations", camera=False, batch_size=8, device="cpu", seed=0, form=form)
    training.train(loader, tmp_path, kind="mlp", steps=2, every=2)
    (file,) = training.checkpoints(tmp_path)
    state = torch.load(file, weights_only=True)
    for value in state["weights"].values():
        value.zero_()
    torch.save(state, file)
    assert deviation.kept_shares(folder / "demonstrations", tmp_path, form, moments=64) == pytest.approx(
        [expected_share] * 3, abs=1e-4
    )


def test_the_pace_leaves_out_the_time_of_saving_checkpoints(folder, tmp_path, monkeypatch):
    saved = []
    clock = types.SimpleNamespace(perf_counter=lambda: time.perf_counter() + 1000 * len(saved))
    monkeypatch.setattr(training, "time", clock)
    monkeypatch.setattr(training, "_save", lambda file, state: saved.append(state))
    loader = make_loader(folder / "demonstrations", camera=False, batch_size=8, device="cpu", seed=0)
    training.train(loader, tmp_path / "run", kind="mlp", steps=40, every=10)
    pace = saved[-1]["pace"]
    assert pace["saving_s"] == pytest.approx(1000, rel=0.01)  # steps 21 to 40 are timed: one save is within
    assert 20 / pace["steps_per_s"] < 500  # so the pace has no save, of 1000 s


def test_a_step_crops_frames_like_the_loader():
    images = torch.arange(2 * 3 * 7 * 9, dtype=torch.float32).view(2, 3, 7, 9)
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    torch.manual_seed(0)
    seen_shifts = set()
    for _ in range(200):
        crops = training.shift_images(images, 2).numpy()
        for crop, image in zip(crops, padded, strict=True):
            shifts = [
                (y, x) for y in range(5) for x in range(5) if np.array_equal(crop, image[:, y : y + 7, x : x + 9])
            ]
            seen_shifts |= {*shifts}
            assert len(shifts) == 1
    assert len(seen_shifts) == 25
    # A draw depends on the seed and the step alone.
    torch.manual_seed(3)
    first = [training.shift_images(images, 2) for _ in range(3)]
    torch.manual_seed(3)
    assert all(torch.equal(crop, training.shift_images(images, 2)) for crop in first)


@pytest.fixture(scope="module")
def filmed(tmp_path_factory):
    pytest.importorskip(
        "mujoco.egl", reason="NOT RUN: EGL does not open; apt-get install libegl1 libgl1", exc_type=Exception
    )
    folder = tmp_path_factory.mktemp("filmed")
    recorded = run(folder, "record", "--episodes", 2, "--workers", 2)
    assert json.loads(recorded.stdout)["episodes"] == 2
    return folder


def test_the_camera_sees_the_cube_at_its_position(filmed):
    camera = robocache.open(filmed / "demonstrations").streams[CAMERA]
    episode = Episode(Scene(), 0)
    count = len(episode.exposed_s)
    assert camera.row_offsets[1] == count
    frame = camera.frame(0)
    assert frame.shape == (128, 128, 3)
    is_red = (frame[..., 0] > 150) & (frame[..., 1] < 100)
    rows, columns = np.nonzero(is_red)
    # The middle of the picture is at (0.05, 0.5).
    cube = episode.scene.cube()
    pixel_m = 2 * (0.8 - 0.04) * np.tan(np.radians(20)) / 128
    assert 0.05 + (columns.mean() - 63.5) * pixel_m == pytest.approx(cube[0], abs=0.01)
    assert 0.5 - (rows.mean() - 63.5) * pixel_m == pytest.approx(cube[1], abs=0.01)


OBSERVE = """
import json, sys
import numpy as np, robocache
from examples.aloha.rollout import CAMERA, TICK_S, Rollout

class Watched(Rollout):
    pictures = {}
    def _on_frame(self, index, picture):
        self.pictures[index] = picture.copy()
        super()._on_frame(index, picture)

rollout = Watched(7, robocache.Spec.load(sys.argv[1]), 25)
for _ in range(4):
    episode = rollout._episode
    newest = np.flatnonzero(episode.arrived_s <= episode.tick * TICK_S)[-1]
    image = rollout.observe()[CAMERA][0].transpose(1, 2, 0) * [0.229, 0.224, 0.225] + [0.485, 0.456, 0.406]
    age_s = episode.tick * TICK_S - episode.exposed_s[newest]
    print(json.dumps([abs(255 * image - rollout.pictures[newest]).mean(), rollout.ages_s[-1] - age_s]))
    rollout.advance(np.zeros((50, 14), np.float32))
"""


def test_a_policy_sees_the_newest_frame_that_arrived(filmed, tmp_path):
    spec = tmp_path / "spec.json"
    make_loader(filmed / "demonstrations", camera=True, batch_size=2, device="cpu", seed=0).save_spec(spec)
    observations = run_python("-c", OBSERVE, spec).stdout.splitlines()
    assert len(observations) == 4
    for pixel_error, age_error_s in map(json.loads, observations):
        assert pixel_error < 2  # in levels of 255: JPEG's error; another frame differs by more
        assert age_error_s == pytest.approx(0, abs=1e-6)


def test_contenders_of_the_comparison_have_the_same_batches(filmed):
    """Batches of LeRobot's dataset have the order that its loader is given, and the normalisation of the recording's batches."""
    pytest.importorskip("av")
    from examples.aloha.compare import Demonstrations, Normalized

    demonstrations = Demonstrations(filmed)
    demonstrations.prepare()
    on_recording, on_lerobot_dataset = demonstrations.ours(16, "cpu"), demonstrations.on_theirs(16, "cpu", seed=3)
    order = demonstrations.order(3, 16, seed=3)
    assert [next(on_lerobot_dataset)["index"].tolist() for _ in order] == order
    raw = next(demonstrations.on_theirs(16, "cpu"))
    batch = next(iter(Normalized([raw], on_recording)))
    stats = robocache.open(filmed / "demonstrations").stats[ACTION]
    expected = (raw[ACTION].double().numpy() - stats.mean) / stats.std
    np.testing.assert_allclose(batch[ACTION].numpy(), expected, atol=1e-5)
    # A frame of the dataset is the recorded frame nearest in time.
    frames = (batch[CAMERA] * batch[CAMERA].new_tensor([0.229, 0.224, 0.225]).view(3, 1, 1)).numpy()
    frames = 255 * (frames + np.array([0.485, 0.456, 0.406], np.float32)[:, None, None])
    np.testing.assert_allclose(frames, raw[CAMERA].numpy(), atol=1e-3)
    recorded = robocache.open(filmed / "demonstrations").episode(int(raw["episode_index"][0]))[CAMERA]
    begin_ns = max(
        robocache.open(filmed / "demonstrations").episode(int(raw["episode_index"][0]))[key][0][0]
        for key in (STATE, ACTION, CAMERA)
    )
    nearest_row = int(np.abs(recorded[0] - begin_ns - round(float(raw["timestamp"][0]) * 1e9)).argmin())
    difference = np.abs(np.asarray(recorded[1][nearest_row], np.float32) - raw[CAMERA][0].permute(1, 2, 0).numpy())
    assert difference.mean() < 3


def test_the_comparison_with_lerobots_loader(filmed, tmp_path):
    pytest.importorskip(
        "lerobot.datasets.lerobot_dataset", reason="NOT RUN: no LeRobot; pip install 'lerobot[dataset]==0.6.1'"
    )
    options = (
        "--steps 2 --every 1 --batch-size 2 --sweep 2 --frame-sizes 96x128 --cores 1 --rollouts 2 --workers 1 --seconds 0.05 "
        "--device cpu"
    )
    result = tmp_path / "training-aloha-loaders.json"
    run(filmed, "compare", "--seeds", 0, *options.split(), "--result", result)
    content = json.loads(result.read_text())
    assert [len(policy["curve"]) for policy in content["arms"]] == [2, 2, 2]
    losses = [policy["curve"][0]["loss"] for policy in content["arms"]]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # the same rows and weights
    loading = content["loading"]
    assert loading["equal_samples"] > 0
    assert [len(loading[part]) for part in ("sizes", "frames", "cores")] == [1, 1, 1]
    # The first two contenders are the same policy at each checkpoint; the second is not rolled out.
    policies = [[point["policy"] for point in contender["curve"]] for contender in content["arms"]]
    assert policies[0] == policies[1] and len({*policies[0], *policies[2]}) == 4
    assert "bit for bit" in content["explained"]["ours, the same dataset"]
    assert [len([*(filmed / f"compare-{number}-0").glob("*.rollouts.json")]) for number in range(3)] == [2, 0, 2]
    # A second seed is trained, and the first is kept.
    before = {file: file.stat().st_mtime_ns for file in filmed.glob("compare-*-0/*.pt")}
    run(filmed, "compare", "--seeds", 0, 1, *options.split(), "--result", result)
    resumed = json.loads(result.read_text())
    assert resumed["loading"] == loading and resumed["arms"][:3] == content["arms"]
    assert [contender["seed"] for contender in resumed["arms"]] == [0, 0, 0, 1, 1, 1]
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_record_ends_without_gym_aloha(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="gym_aloha: not installed"):
        main(["--folder", str(tmp_path), "record", "--episodes", "1"])


def test_missing_parts_are_named(tmp_path):
    for command, message in (("train", "run record first"), ("evaluate", "run train first")):
        with pytest.raises(SystemExit, match=message):
            main(["--folder", str(tmp_path), command])


@pytest.mark.parametrize("command", ["record", "train", "evaluate", "compare"])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as raised:
        main([command, "--help"])
    assert raised.value.code == 0 and "--" in capsys.readouterr().out
