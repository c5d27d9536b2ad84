"""docs/coming-from.md: each of our snippets runs, and its batches equal the other library's formulas, written here in numpy."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hdf5_files import write_robomimic
from PIL import Image
from scipy.spatial.transform import Rotation

import robocache
from robocache import Anchors, Normalization, Window, actions

torch = pytest.importorskip("torch")

PAGE = (Path(__file__).parents[3] / "docs/coming-from.md").read_text()


def run(begin, **names):
    """Executes our snippet that begins with `begin`. Loaders are unshuffled, with every moment in one batch."""
    (code,) = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if text.startswith(begin)]
    code = code.replace("batch_size=64", 'batch_size=4096, shuffle=False, drop_last=False, device="cpu", findings=None')
    namespace = {"robocache": robocache, "Window": Window, "Normalization": Normalization, "Anchors": Anchors}
    namespace |= {"actions": actions, "np": np} | names
    exec(code, namespace)
    return namespace


def chunk(x, t, offsets):
    """Rows of an episode at t + offsets; outside it, its first or last row."""
    return x[np.clip(t + np.asarray(offsets), 0, len(x) - 1)]


@pytest.mark.parametrize("robot", ["ALOHA", "LIBERO"])
def test_openpi(tmp_path, rng, monkeypatch, robot):
    """openpi's norm_stats.json, prompt and pixels, which Pillow resizes."""
    monkeypatch.chdir(tmp_path)
    is_aloha = robot == "ALOHA"
    mask, state_width, horizon = ([1] * 6 + [0] + [1] * 6 + [0], 14, 50) if is_aloha else ([1] * 6 + [0], 8, 10)
    state_key, key = ("observation.state", "action") if is_aloha else ("state", "actions")
    lengths = (70, 20)
    states = [rng.normal(size=(n, state_width)).astype(np.float32) for n in lengths]
    episode_actions = [rng.normal(size=(n, len(mask))).astype(np.float32) for n in lengths]
    frames = [rng.integers(0, 256, (n, 60, 100, 3)).astype(np.uint8) for n in lengths]
    with robocache.Writer("cache") as writer:
        for number, (s, a, pixels) in enumerate(zip(states, episode_actions, frames, strict=True)):
            with writer.episode(task=f"task {number}") as episode:
                times = np.arange(len(s)) * 20_000_000
                episode.append(state_key, times, s)
                episode.append(key, times, a)
                episode.append("observation.images.top", times, pixels, codec="png")
    # openpi, src/openpi/transforms.py: DeltaActions subtracts the state's first dims from the actions by the mask; Normalize
    # is (x - mean) / (std + 1e-6), or by quantiles (x - q01) / (q99 - q01 + 1e-6) * 2 - 1.
    relative_actions = []
    for s, a in zip(states, episode_actions, strict=True):
        for t in range(len(s)):
            x = chunk(a, t, range(horizon)).copy()
            x -= np.where(mask, s[t, : len(mask)], 0)
            relative_actions.append(x)
    relative_actions, all_states = np.stack(relative_actions), np.concatenate(states)
    stats = {}
    for name, x in (("state", all_states), ("actions", relative_actions.reshape(-1, len(mask)))):
        q01, q99 = np.quantile(x, [0.01, 0.99], axis=0)
        values = {"mean": x.mean(0), "std": x.std(0), "q01": q01, "q99": q99}
        stats[name] = {statistic: number.tolist() for statistic, number in values.items()}
    Path("norm_stats.json").write_text(json.dumps({"norm_stats": stats}))

    def normal(x, name):
        mean, std, q01, q99 = (np.array(stats[name][statistic]) for statistic in ("mean", "std", "q01", "q99"))
        return (x - mean) / (std + 1e-6) if is_aloha else (x - q01) / (q99 - q01 + 1e-6) * 2 - 1

    with pytest.warns(robocache.NormStatsWarning):
        namespace = run("# ours\nmask" if is_aloha else "# ours: LIBERO (", ds=robocache.open("cache"))
    np.testing.assert_allclose(namespace["batch"][key].numpy(), normal(relative_actions, "actions"), atol=2e-4)
    np.testing.assert_allclose(namespace["batch"][state_key].numpy(), normal(all_states, "state"), atol=2e-4)
    recorded = np.stack([chunk(a, t, range(horizon)) for a in episode_actions for t in range(len(a))])
    np.testing.assert_allclose(namespace["absolute"].numpy(), recorded, atol=1e-5)
    if is_aloha:
        assert namespace["batch"]["task"] == ["task 0"] * 70 + ["task 1"] * 20
        # openpi_client/image_tools.py, resize_with_pad scales by the larger of both ratios, rounds the size down, and centres the
        # image on black; model.py: / 255 * 2 - 1.
        resized = np.zeros((90, 224, 224, 3))
        height, width = int(60 / (100 / 224)), 224
        for number, frame in enumerate(np.concatenate(frames)):
            top = (224 - height) // 2
            image = Image.fromarray(frame).resize((width, height), Image.BILINEAR)
            resized[number, top : top + height] = image
        pixels = namespace["batch"]["observation.images.top"].numpy().transpose(0, 2, 3, 1)
        assert np.abs((pixels + 1) * 127.5 - resized).max() < 1 + 1e-3  # Pillow rounds after each of its two passes


def test_openpi_adapt_to_pi(tmp_path, rng):
    """openpi, src/openpi/policies/aloha_policy.py: _decode_state, _encode_actions_inv and _encode_actions."""
    state, action = rng.uniform(0.1, 0.9, (2, 12, 14)).astype(np.float32)
    sign, grips = np.ones(14), np.array([6, 13])
    sign[[1, 2, 8, 9]] = -1
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        names = {"episode": episode, "state": state, "action": action, "time_ns": np.arange(12) * 20_000_000}
        robots = run("# ours: adapt_to_pi", **names)["robots"]
    dataset = robocache.open(tmp_path / "cache")

    def angular(g):
        arm, horn, linear = 0.036, 0.022, g * (0.05800 - 0.01844) + 0.01844
        sine = (horn**2 + linear**2 - arm**2) / (2 * horn * linear)
        return (np.arcsin(np.clip(sine, -1, 1)) - 0.5476) / (1.6296 - 0.5476)

    expected_state, expected_action = state * sign, action * sign
    expected_state[:, grips] = angular(expected_state[:, grips])
    expected_action[:, grips] = expected_action[:, grips] * (1.4910 - -0.6213) + -0.6213 - 0.5476
    windows = {"observation.state": Window(), "action": Window()}
    batch = next(
        robocache.Loader(dataset, batch_size=12, delta_timestamps=windows, shuffle=False, device="cpu", findings=None)
    )
    np.testing.assert_allclose(batch["observation.state"].numpy(), expected_state, atol=1e-5)
    np.testing.assert_allclose(batch["action"].numpy(), expected_action, atol=1e-5)
    np.testing.assert_allclose(robots(batch["action"].numpy()), action, atol=1e-5)


def write(path, episodes, hz=50):
    """Writes episodes {stream: rows}."""
    with robocache.Writer(path) as writer:
        for streams in episodes:
            with writer.episode() as episode:
                for name, x in streams.items():
                    episode.append(name, np.arange(len(x)) * (1_000_000_000 // hz), x)
    return robocache.open(path)


def homogeneous(positions, rotations):
    result = np.tile(np.eye(4), (len(positions), 1, 1))
    result[:, :3, :3], result[:, :3, 3] = rotations.as_matrix(), positions
    return result


def test_groot(tmp_path, rng):
    episodes, expected = [], []
    for rows in (40, 25):
        poses = {}
        for kind in ("state", "action"):
            positions, rotations = (
                rng.normal(size=(rows, 3)),
                Rotation.random(rows, random_state=int(rng.integers(1 << 30))),
            )
            poses[kind] = homogeneous(positions, rotations)
        # gr00t/data/state_action: xyz + rot6d is the position and the matrix's first two rows; relative is inv(T0) T.
        # sharded_single_step_dataset.py: no window crosses the end.
        for t in range(rows - 15):
            relative = np.linalg.inv(poses["state"][t]) @ chunk(poses["action"], t, range(16))
            expected.append(np.concatenate([relative[:, :3, 3], relative[:, :2, :3].reshape(-1, 6)], -1))
        streams = {
            f"{kind}.eef": np.concatenate([x[:, :3, 3], x[:, :2, :3].reshape(-1, 6)], -1) for kind, x in poses.items()
        }
        grips = {f"{kind}.gripper": rng.uniform(size=(rows, 1)) for kind in poses}
        episodes.append({name: x.astype(np.float32) for name, x in (streams | grips).items()})
    batch = run("# ours: ingest with --mapping", ds=write(tmp_path / "cache", episodes))["batch"]

    # gr00t/data/utils.py, normalize_values_minmax; state_action_processor.py clips to [-1, 1]. stats.py: relative actions
    # have a min and max for each step of the window, everything else has those over all rows.
    def scale(x, low, high):
        return np.clip(2 * (x - low) / (high - low) - 1, -1, 1)

    expected = np.stack(expected)
    np.testing.assert_allclose(
        batch["action.eef"].numpy(), scale(expected, expected.min(0), expected.max(0)), atol=1e-4
    )
    for name, steps in (("action.gripper", 16), ("state.gripper", 1), ("state.eef", 1)):
        all_rows = np.concatenate([episode[name] for episode in episodes])
        windows = np.stack(
            [chunk(episode[name], t, range(steps)) for episode in episodes for t in range(len(episode[name]) - 15)]
        )
        if steps == 1:
            windows = windows[:, 0]
        np.testing.assert_allclose(batch[name].numpy(), scale(windows, all_rows.min(0), all_rows.max(0)), atol=1e-4)


def test_openvla_libero(tmp_path, rng):
    episode_actions = [rng.uniform(-1, 1, (rows, 7)).astype(np.float32) for rows in (20, 9)]
    batch = run("# ours: LIBERO, with", ds=write(tmp_path / "cache", [{"action": x} for x in episode_actions]))["batch"]
    # transforms.py, libero_dataset_transform: invert_gripper_actions(clip(g, 0, 1)) is 1 - clip(g, 0, 1)
    for x in episode_actions:
        x[:, 6] = 1 - np.clip(x[:, 6], 0, 1)
    # data_utils.py, BOUNDS_Q99: all but the gripper between the quantiles of all rows, clipped. traj_transforms.py, chunk_act_obs:
    # after the last row the gripper is repeated, the others are 0.
    q01, q99 = np.quantile(np.concatenate(episode_actions)[:, :6], [0.01, 0.99], axis=0)
    scaled = [np.clip(2 * (x[:, :6] - q01) / (q99 - q01 + 1e-8) - 1, -1, 1) for x in episode_actions]
    expected = [
        np.concatenate([np.concatenate([deltas, np.zeros((8, 6))])[t : t + 8], chunk(x[:, 6:], t, range(8))], -1)
        for x, deltas in zip(episode_actions, scaled, strict=True)
        for t in range(len(x))
    ]
    np.testing.assert_allclose(batch["action"].numpy(), np.stack(expected), atol=2e-6)


def test_openvla_bridge(tmp_path, rng):
    state, action = rng.normal(size=(30, 7)), rng.uniform(0, 1, (30, 7))
    # prismatic/vla/datasets/rlds/utils/data_utils.py, binarize_gripper_actions: below 0.05 closed, above 0.95 open; in
    # between the next value that is open or closed, or if none follows the last row's number. relabel_actions: the difference to
    # the next state, without the last step.
    gripper, carry = np.zeros(30), float(action[-1, 6])
    for t in reversed(range(30)):
        g = action[t, 6]
        carry = 1.0 if g > 0.95 else 0.0 if g < 0.05 else carry
        gripper[t] = carry
    expected = np.concatenate([np.diff(state[:, :6], axis=0), gripper[:-1, None]], -1)
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        run("# ours: BridgeData", episode=episode, state=state, action=action, time_ns=np.arange(30) * 200_000_000)
    dataset = robocache.open(tmp_path / "cache")
    options = {"delta_timestamps": {"action": Window()}, "shuffle": False, "device": "cpu", "findings": None}
    batch = next(robocache.Loader(dataset, batch_size=29, **options))
    np.testing.assert_allclose(batch["action"].numpy(), expected, atol=1e-12)


def test_umi(tmp_path, rng):
    episodes, pose_windows, action_windows, is_pad = [], [], [], []
    offsets = range(0, 48, 3)
    for rows in (60, 50):
        positions, rotations = (
            rng.normal(size=(rows, 3)),
            Rotation.random(rows, random_state=int(rng.integers(1 << 30))),
        )
        x = homogeneous(positions, rotations)
        # pose_repr_util.convert_pose_mat_rep, "relative": inv(base) @ pose; pose_util.mat_to_pose10d: xyz and two rows. sampler.py:
        # poses before the start are the first row's; actions after the end repeat the last action
        # of the window that the episode has.
        for t in range(rows):
            is_pad.append([t + k >= rows for k in offsets])
            for windows, steps in (
                (pose_windows, np.clip([t - 3, t], 0, None)),
                (action_windows, np.arange(t, rows, 3)[:16]),
            ):
                relative = np.linalg.inv(x[t]) @ x[steps]
                if windows is action_windows:
                    relative = np.concatenate([relative, relative[-1:].repeat(16 - len(steps), 0)])
                windows.append(np.concatenate([relative[:, :3, 3], relative[:, :2, :3].reshape(-1, 6)], -1))
        pose = np.concatenate([positions, rotations.as_rotvec()], -1).astype(np.float32)
        episodes.append({"pose": pose, "action": pose})
    batch = run("# ours: `pose` is", ds=write(tmp_path / "cache", episodes))["batch"]
    np.testing.assert_allclose(batch["pose"].numpy(), np.stack(pose_windows), atol=1e-4)
    is_pad = np.array(is_pad)
    assert (batch["action_is_pad"].numpy() == is_pad).all()
    np.testing.assert_allclose(batch["action"].numpy()[~is_pad], np.stack(action_windows)[~is_pad], atol=1e-4)


def test_robomimic(tmp_path, rng):
    demos = {
        f"demo_{i}": {"actions": rng.normal(size=(n, 7)), "obs/robot0_eef_pos": rng.normal(size=(n, 3))}
        for i, n in enumerate((30, 4))
    }
    robocache.ingest(write_robomimic(tmp_path / "low_dim_v141.hdf5", demos), tmp_path / "cache")
    batch = run('# ours\nwindows = {"obs/', ds=robocache.open(tmp_path / "cache"))["batch"]
    # robomimic/utils/dataset.py, get_sequence_from_demo: outside the demo the first and last rows are repeated; pad_mask is
    # False there.
    rows = [(demo, t) for demo in demos.values() for t in range(len(demo["actions"]))]
    expected = np.stack([chunk(demo["actions"], t, range(10)) for demo, t in rows])
    expected_positions = np.stack([chunk(demo["obs/robot0_eef_pos"], t, range(-1, 10)) for demo, t in rows])
    mask = np.stack([t + np.arange(10) < len(demo["actions"]) for demo, t in rows])
    np.testing.assert_allclose(batch["actions"].numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(batch["obs/robot0_eef_pos"].numpy(), expected_positions, atol=1e-6)
    assert (~batch["actions_is_pad"].numpy() == mask).all()


def write_zarr(path, arrays):
    """Writes a store of zarr v2: every array is one uncompressed chunk."""
    for name, x in arrays.items():
        folder = path / name
        folder.mkdir(parents=True)
        header = {"zarr_format": 2, "shape": x.shape, "chunks": x.shape, "dtype": x.dtype.str, "compressor": None}
        (folder / ".zarray").write_text(json.dumps(header | {"fill_value": 0, "order": "C", "filters": None}))
        (folder / ".".join("0" * x.ndim)).write_bytes(x.tobytes())
    for folder in (path, path / "data", path / "meta"):
        (folder / ".zgroup").write_text('{"zarr_format": 2}')
    return path


def test_diffusion_policy(tmp_path, rng):
    pytest.importorskip("numcodecs")
    ends = np.array([30, 55])
    arrays = {"data/state": rng.normal(size=(55, 5)), "data/action": rng.normal(size=(55, 2))}
    arrays = {name: x.astype(np.float32) for name, x in arrays.items()}
    store = write_zarr(tmp_path / "pusht_cchi_v7_replay.zarr", arrays | {"meta/episode_ends": ends})
    robocache.ingest(store, tmp_path / "cache", rate_hz=10)
    batch = run("# ours: robocache ingest pusht", ds=robocache.open(tmp_path / "cache"))["batch"]
    # diffusion_policy/common/sampler.py, create_indices: starts are -pad_before to length - horizon + pad_after; rows outside
    # repeat the edge. normalizer.py, limits: (x - min) * 2 / (max - min) - 1 over the whole buffer.
    for name in ("state", "action"):
        x = arrays[f"data/{name}"]
        scaled = (x - x.min(0)) * 2 / (x.max(0) - x.min(0)) - 1
        expected = [
            chunk(episode, start, range(16))
            for episode in np.split(scaled, ends[:-1])
            for start in range(-1, len(episode) - 16 + 7 + 1)
        ]
        np.testing.assert_allclose(batch[name].numpy(), np.stack(expected), atol=1e-4)


def test_the_page_has_as_many_snippets_of_ours_as_run_above():
    ours = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if text.startswith("# ours")]
    assert len(ours) == 9
    assert len(re.findall(r"^## ", PAGE, re.MULTILINE)) == 6
