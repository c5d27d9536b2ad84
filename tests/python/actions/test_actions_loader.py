"""Window(convert=, base=) and Loader.to_absolute against the functions, applied to a batch without conversions."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

import robocache
from robocache import Anchors, Memory, Mixture, Normalization, Source, Window, actions
from robocache.actions import (
    BinarizeGripper,
    Relative,
    Rescale,
    Rotate,
    StepDelta,
    convert,
    convert_rotation,
)

OFFSETS = [-0.05, 0.0, 0.01, 0.02, 0.035, 0.3]
GRIPPER = [True] * 7 + [False]


def record(path, rng, *, dtype="float32", rotation="quat_xyzw", episodes=3, without=(), change=None, width=None):
    """Episodes of poses and a gripper: the action at 50 Hz, the state at 30 Hz."""
    with robocache.Writer(path) as writer:
        for number in range(episodes):
            with writer.episode() as episode:
                for stream, hz in (("action", 50), ("state", 30)):
                    rows = int(2.1 * hz)
                    p = np.cumsum(rng.standard_normal((rows, 3)) / hz, 0)
                    turn = Rotation.from_rotvec(np.cumsum(rng.standard_normal((rows, 3)) / 5, 0)).as_quat()
                    turn = convert_rotation(turn, "quat_xyzw", rotation)
                    values = np.concatenate([p, turn, rng.uniform(0, 1, (rows, 1))], -1)
                    if width is not None:
                        values = values[:, : width[stream]]
                    if change is not None:
                        change(stream, number, values)
                    if (stream, number) not in without and stream not in without:
                        time_ns = np.arange(rows) * 1_000_000_000 // hz
                        episode.append(stream, time_ns, values.astype(dtype))
                episode.append("tick", np.arange(100) * 20_000_000, np.zeros((100, 1), np.float32))
    return robocache.open(path)


def loaders(dataset, conversions, device, *, window=None, state=None, base="state", **options):
    """A loader that converts, and one with the same order that does not."""
    window, state = window or {}, state or {}
    options = {"batch_size": 64, "anchors": "tick", "device": device, "findings": None} | options
    for convert_words in ({"convert": conversions, "base": base}, {}):
        words = {"offsets": OFFSETS, "method": "pose_or_linear"} | window | convert_words
        if words["method"] == "pose_or_linear":
            words["method"] = [(slice(0, 7), "pose")]
        of_state = {"method": [(slice(0, 7), "pose")]} | state
        if not convert_words:
            words["normalize"], options["normalization"] = "none", None
        yield robocache.Loader(
            dataset, delta_timestamps={"action": Window(**words), "state": Window(**of_state)}, **options
        )


def numbers(x):
    return x.cpu().to(torch.float64).numpy() if isinstance(x, torch.Tensor) else x.astype(np.float64)


def comparable(x, rotation):
    """Poses as numbers that can be compared: Euler angles wrap, and jump at gimbal lock, so they become matrices."""
    if not rotation.startswith("euler"):
        return x
    turn = convert_rotation(x[..., 3:6], rotation, "matrix")
    return torch.cat([x[..., :3], turn, x[..., 6:]], -1)


LISTS = {
    "joints": [Relative("joints", mask=GRIPPER)],
    "angles": [Relative("joints", mask=GRIPPER, angles=[True] * 3 + [False] * 5)],
    "se3": [Relative("se3", mask=GRIPPER)],
    "mixed": [Relative("mixed", mask=GRIPPER)],
    "base_frame": [Relative("base_frame", mask=GRIPPER)],
    "6D": [
        Relative("se3", mask=GRIPPER),
        Rotate(3, "quat_xyzw", "rot6d_columns"),
        Rescale(slice(9, 10), (0.1, 0.8), (1, -1), clip=True),
    ],
    "rotate": [
        Rotate(3, "quat_xyzw", "matrix"),
        Rotate(3, "matrix", "quat_wxyz"),
        Rescale(slice(0, 3), (0, 2), (-1, 1)),
    ],
    "steps": [StepDelta(mask=GRIPPER)],
    "robosuite": [Rotate(3, "quat_xyzw", "rotvec"), Rescale(slice(0, 3), (-0.05, 0.05), (-1, 1))],
    "euler": [Relative("base_frame", mask=GRIPPER), Rotate(3, "quat_xyzw", "euler_ZYX")],
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_equal_the_functions_of_batches_without_conversions(tmp_path, rng, device, name, dtype):
    dataset, conversions = record(tmp_path / "c", rng, dtype=dtype), LISTS[name]
    has_base = isinstance(conversions[0], Relative | StepDelta)
    converting, raw = loaders(
        dataset,
        conversions,
        device,
        window={"dtype": dtype},
        state={"dtype": dtype},
        base="state" if has_base else None,
    )
    for _ in range(3):
        batch, plain = next(converting), next(raw)
        want = convert(plain["action"], plain["state"], conversions)
        off = ~plain["action_is_pad"]
        if name in ("robosuite", "euler") or dtype == "float64" or device == "cuda":
            bound = 1e-5 if dtype == "float32" else 1e-12
            made_so, wanted = (
                comparable(x[off], "euler_ZYX" if name == "euler" else "") for x in (batch["action"], want)
            )
            torch.testing.assert_close(made_so, wanted, atol=bound, rtol=bound)
        else:
            assert torch.equal(batch["action"], want)
        if has_base:
            assert torch.equal(batch["action_base"], plain["state"])
            off = off & ~plain["state_is_pad"][:, None]
        assert torch.equal(batch["state"], plain["state"])
        if name != "steps":
            assert torch.equal(~batch["action_is_pad"], off)
        assert off.any() and not off.all()


@pytest.mark.parametrize(
    "rotation", ["quat_wxyz", "rot6d_rows", "rot6d_interleaved", "matrix", "rotvec", "euler_xyz", "euler_ZXZ"]
)
@pytest.mark.parametrize("kind", ["se3", "mixed", "base_frame"])
def test_poses_of_every_rotation(tmp_path, rng, device, kind, rotation):
    dataset = record(tmp_path / "c", rng, rotation=rotation)
    mask = [True] * (dataset.streams["action"].shape[0] - 1) + [False]
    conversions = [Relative(kind, mask=mask, rotation=rotation)]
    converting, raw = loaders(dataset, conversions, device, window={"method": "nearest"}, state={"method": "nearest"})
    batch, plain = next(converting), next(raw)
    want = convert(plain["action"], plain["state"], conversions)
    torch.testing.assert_close(comparable(batch["action"], rotation), comparable(want, rotation), atol=2e-5, rtol=1e-5)
    exact = not rotation.startswith(("rotvec", "euler")) and device == "cpu"
    assert not exact or torch.equal(batch["action"], want)


def test_a_scaled_base_frame(tmp_path, rng, device):
    dataset = record(tmp_path / "c", rng, rotation="rotvec")
    conversions = [Relative("base_frame", mask=[True] * 6 + [False], rotation="rotvec", scale=(0.05, 0.5))]
    converting, raw = loaders(dataset, conversions, device, window={"method": "nearest"}, state={"method": "nearest"})
    batch, plain = next(converting), next(raw)
    want = convert(plain["action"], plain["state"], conversions)
    torch.testing.assert_close(batch["action"], want, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_values_are_rounded_once_to_the_keys_dtype(tmp_path, rng, device, dtype):
    dataset = record(tmp_path / "c", rng)
    converting, _ = loaders(dataset, LISTS["6D"], device, window={"dtype": dtype})
    _, plain = loaders(dataset, LISTS["6D"], device)
    batch, plain = next(converting), next(plain)
    want = convert(plain["action"], plain["state"], LISTS["6D"]).to(getattr(torch, dtype))
    assert batch["action"].dtype == want.dtype and batch["action_base"].dtype == torch.float32
    torch.testing.assert_close(batch["action"], want, atol=1e-5, rtol=1e-2 if dtype == "bfloat16" else 1e-3)


def test_the_step_after_padding_is_padding(tmp_path, rng, device):
    dataset = record(tmp_path / "c", rng)
    converting, raw = loaders(dataset, LISTS["steps"], device, batch_size=300, shuffle=False)
    batch, plain = next(converting), next(raw)
    pad, base = plain["action_is_pad"], plain["state_is_pad"][:, None]
    before = torch.cat([torch.zeros_like(pad[:, :1]), pad[:, :-1]], 1)
    assert torch.equal(batch["action_is_pad"], pad | before | base)
    assert (pad != batch["action_is_pad"]).any()


def test_base_features_are_chosen_by_index(tmp_path, rng, device):
    dataset = record(tmp_path / "c", rng, width={"action": 3, "state": 8})
    converting, _ = loaders(
        dataset,
        [Relative("joints")],
        device,
        base=("state", [2, 0, 7]),
        window={"method": "linear"},
        state={"normalize": "mean_std", "offset_s": 0.01},
    )
    _, plain = loaders(dataset, [], device, window={"method": "linear"}, state={"offset_s": 0.01}, base=None)
    batch, plain = next(converting), next(plain)
    base = plain["state"][:, [2, 0, 7]]
    assert torch.equal(batch["action"], plain["action"] - base[:, None])
    assert torch.equal(batch["action_base"], base) and not torch.equal(batch["state"], plain["state"])


def test_the_base_is_the_state_at_the_anchor(tmp_path, rng, device):
    dataset = record(tmp_path / "c", rng)
    converting, raw = loaders(dataset, LISTS["se3"], device, state={"offsets": [-0.1, 0.0]})
    batch, plain = next(converting), next(raw)
    assert torch.equal(batch["action_base"], plain["state"][:, 1])
    want = convert(plain["action"], plain["state"][:, 1], LISTS["se3"])
    torch.testing.assert_close(batch["action"], want, atol=1e-5, rtol=1e-5)


# ---- Missing rows and invalid quaternions ----


@pytest.mark.parametrize("missing", ["state", "action"])
def test_without_action_or_state_all_is_0_and_padding(tmp_path, rng, device, missing):
    dataset = record(tmp_path / "c", rng, without=[(missing, 1)])
    with pytest.warns(robocache.LoaderWarning, match="have no row"):
        converting, raw = loaders(dataset, LISTS["6D"], device, batch_size=300, shuffle=False)
    batch, plain = next(converting), next(raw)
    lacking = batch["episode_index"] == 1
    assert lacking.any() and batch["action_is_pad"][lacking].all() and (batch["action"][lacking] == 0).all()
    present = ~lacking
    torch.testing.assert_close(
        batch["action"][present],
        convert(plain["action"][present], plain["state"][present], LISTS["6D"]),
        atol=1e-5,
        rtol=1e-5,
    )


def odd(stream, number, values):
    """Quaternions of other lengths, and NaN."""
    if stream == "action" and number == 0:
        values[20, 3:7] *= 1.1
        values[30, 0] = np.nan
        values[40, 3:7] = np.nan
    if stream == "state" and number == 1:
        values[:, 3:7] *= 2


ODD_WORDS = {"batch_size": 300, "shuffle": False, "state": {"method": "nearest"}}


@pytest.mark.parametrize("name", ["se3", "rotate"])
def test_a_stored_quaternion_of_another_length_is_refused(tmp_path, rng, device, name):
    dataset = record(tmp_path / "c", rng, change=odd)
    conversions = LISTS[name]
    base = "state" if name == "se3" else None
    with pytest.raises(robocache.ArgumentError, match=r"'action'\]\.convert: .*length 1, got length 1\.\d+ in row 20"):
        next(loaders(dataset, conversions, device, base=base))
    if name == "se3":
        with pytest.raises(robocache.ArgumentError, match=r"length 2\S* in row 0 of 'state' in episode 1"):
            next(loaders(dataset, conversions, device, episodes=[1, 2]))
    next(loaders(dataset, conversions, device, base=base, episodes=[2]))


@pytest.mark.parametrize("name", ["se3", "rotate"])
def test_quaternions_are_normalised_with_the_option(tmp_path, rng, device, name):
    dataset = record(tmp_path / "c", rng, change=odd)
    conversions = [Relative("se3", mask=GRIPPER, normalize=True)]
    if name == "rotate":
        conversions = [Rotate(3, "quat_xyzw", "rot6d_rows", normalize=True)]
    window = {"offsets": [0.0, 0.02], "method": "nearest"}
    base = "state" if name == "se3" else None
    converting, raw = loaders(dataset, conversions, device, window=window, base=base, **ODD_WORDS)
    batch, plain = next(converting), next(raw)
    want = convert(plain["action"], plain["state"] if base else None, conversions)
    assert torch.equal(torch.nan_to_num(batch["action"], 9.0), torch.nan_to_num(want, 9.0))
    assert (
        batch["action"].isnan().any()
        and robocache.Spec(converting.spec.to_json()).to_json() == converting.spec.to_json()
    )

    def zero(stream, number, values):
        if stream == "action" and number == 2:
            values[7, 3:7] = 0

    dataset = record(tmp_path / "zero", rng, change=zero)
    with pytest.raises(robocache.ArgumentError, match="length 0 in row 7 of 'action' in episode 2"):
        next(loaders(dataset, conversions, device, window=window, base=base))


def test_an_interpolated_non_rotation_is_padding_and_nan_stays(tmp_path, rng, device):
    def change(stream, number, values):
        if stream == "action" and number == 0:
            values[30, 0] = np.nan

    dataset = record(tmp_path / "c", rng, change=change)
    window = {"offsets": [0.0, 0.01], "method": "linear"}  # not of unit length between two quaternions
    converting, raw = loaders(dataset, LISTS["se3"], device, window=window, **ODD_WORDS)
    batch, plain = next(converting), next(raw)
    action, pad = numbers(batch["action"]), batch["action_is_pad"].cpu().numpy()
    lengths = np.linalg.norm(numbers(plain["action"])[..., 3:7], axis=-1)
    bad, fine = np.abs(lengths - 1) > 1.1e-3, np.abs(lengths - 1) < 0.9e-3
    nan = np.isnan(numbers(plain["action"])[..., 0])
    assert (bad & ~nan).sum() > 60 and pad[bad & ~nan].all() and (action[bad & ~nan] == 0).all()
    assert (pad[fine] == plain["action_is_pad"].cpu().numpy()[fine]).all()
    assert np.isnan(action[nan][:, :7]).all() and nan.any() and not np.isnan(action[~nan]).any()


# ---- Normalisation and to_absolute ----


def stats_of(x, rng):
    flat = numbers(x).reshape(-1, x.shape[-1])
    return {"mean": flat.mean(0), "std": flat.std(0) + rng.uniform(0.1, 1, flat.shape[-1])}


@pytest.mark.parametrize("name", ["joints", "6D", "steps", "euler"])
@pytest.mark.parametrize("one_step", [False, True])
def test_to_absolute_inverts_the_conversions(tmp_path, rng, device, name, one_step):
    dataset, conversions = record(tmp_path / "c", rng), LISTS[name]
    window = {"offsets": None} if one_step else {}
    _, raw = loaders(dataset, conversions, device, window=window)
    plain = next(raw)
    chunk = plain["action"][:, None] if one_step else plain["action"]
    seen = convert(chunk, plain["state"], conversions)
    stats = {"action": stats_of(seen, rng)}
    converting, _ = loaders(
        dataset,
        conversions,
        device,
        normalization=Normalization(norm_stats=stats),
        window=window | {"normalize": "mean_std"},
    )
    batch = next(converting)
    want = (numbers(seen) - stats["action"]["mean"]) / stats["action"]["std"]
    np.testing.assert_allclose(numbers(batch["action"]), want[:, 0] if one_step else want, atol=1e-4)
    x = batch["action"].clone().requires_grad_()
    back = converting.to_absolute("action", x, batch)
    assert back.shape == plain["action"].shape and back.dtype == torch.float32
    got, recorded = numbers(back.detach()), numbers(plain["action"])
    kept = [0, 1, 2] if name == "6D" else [0, 1, 2, 7]  # its gripper was held at its ends
    np.testing.assert_allclose(got[..., kept], recorded[..., kept], atol=2e-4)
    turned = np.abs((got[..., 3:7] * recorded[..., 3:7]).sum(-1))
    np.testing.assert_allclose(turned, 1, atol=1e-3)
    back.sum().backward()
    assert x.grad.isfinite().all()
    # Deployment has neither a batch nor a dataset, only the robot's state, as it was recorded.
    at_deployment = {"action_base": batch["action_base"]}
    assert torch.equal(converting.to_absolute("action", batch["action"], at_deployment), back.detach())
    converting.save_spec(tmp_path / "spec.json")
    spec = robocache.Spec.load(tmp_path / "spec.json")
    assert torch.equal(spec.to_absolute("action", batch["action"], at_deployment), back.detach())


def test_statistics_of_another_width_are_refused(tmp_path, rng):
    dataset = record(tmp_path / "c", rng)
    with pytest.raises(robocache.ArgumentError, match=r"norm_stats\['action'\].*10"):
        of_eight = {"action": {"mean": np.zeros(8), "std": np.ones(8)}}
        words = {"normalization": Normalization(norm_stats=of_eight), "window": {"normalize": "mean_std"}}
        next(loaders(dataset, LISTS["6D"], "cpu", **words))


def test_sources_of_a_mixture_have_their_own_statistics_and_missing_streams(tmp_path, rng, device):
    whole, stateless = record(tmp_path / "a", rng), record(tmp_path / "b", rng, without=["state"])
    actionless = record(tmp_path / "d", rng, without=["action"])
    stats = [{"mean": np.full(8, k), "std": np.full(8, 1.0 + k)} for k in (0.5, 2.0)]
    sources = [
        Source(whole, norm_stats={"action": stats[0]}),
        Source(whole, norm_stats={"action": stats[1]}),
        Source(stateless, norm_stats={"action": stats[0]}),
        Source(actionless),
    ]
    window = {"normalize": "mean_std"}
    with pytest.warns(robocache.LoaderWarning):
        converting, raw = loaders(Mixture(sources), LISTS["joints"], device, batch_size=512, window=window)
    batch, plain = next(converting), next(raw)
    source_of = batch["dataset_index"]
    seen = convert(plain["action"], plain["state"], LISTS["joints"])
    for source in (0, 1):
        want = (numbers(seen[source_of == source]) - stats[source]["mean"]) / stats[source]["std"]
        np.testing.assert_allclose(numbers(batch["action"][source_of == source]), want, atol=1e-5)
    for source in (2, 3):
        assert batch["action_is_pad"][source_of == source].all() and (batch["action"][source_of == source] == 0).all()
    some = source_of < 2
    base = {"action_base": batch["action_base"][some]}
    back = converting.to_absolute("action", batch["action"][some], base, batch["dataset_index"][some])
    torch.testing.assert_close(back, plain["action"][some], atol=1e-5, rtol=1e-5)


# ---- The same result by every route ----


@pytest.mark.parametrize("name", LISTS)
def test_a_spec_holds_the_conversions(tmp_path, rng, name):
    dataset, conversions = record(tmp_path / "c", rng), LISTS[name]
    base = "state" if isinstance(conversions[0], Relative | StepDelta) else None
    converting, _ = loaders(dataset, conversions, "cpu", base=base)
    batch = next(converting)
    again = robocache.Spec(converting.spec.to_json()).to_absolute("action", batch["action"], batch)
    assert torch.equal(again, converting.to_absolute("action", batch["action"], batch))


@pytest.mark.parametrize(
    "residency", ["device", "pinned", "mapped", {"state": "mapped"}, {"action": "mapped", "state": "device"}]
)
def test_every_tier_gives_the_same(tmp_path, rng, device, residency):
    dataset = record(tmp_path / "c", rng)
    converting, _ = loaders(dataset, LISTS["6D"], device, memory=Memory(residency=residency))
    on_cpu, _ = loaders(dataset, LISTS["6D"], "cpu")
    for _ in range(3):
        batch, want = next(converting), next(on_cpu)
        assert batch.keys() == want.keys()
        for key in want:
            torch.testing.assert_close(batch[key].cpu(), want[key], atol=5e-5, rtol=1e-5)  # rule 8.1 for slerp
            assert device == "cuda" or torch.equal(batch[key], want[key])


def test_threads_prefetch_buffers_gather_and_copies_give_the_same(tmp_path, rng, threads):
    dataset = record(tmp_path / "c", rng)
    plain, _ = loaders(dataset, LISTS["6D"], "cpu")
    ahead, _ = loaders(dataset, LISTS["6D"], "cpu", memory=Memory(prefetch=2, reuse_buffers=True))
    as_numpy, _ = loaders(dataset, LISTS["6D"], "cpu", framework="numpy", return_age=True)
    threads(1)
    copy = pickle.loads(pickle.dumps(plain))
    for number in range(3):
        want = next(plain)
        threads(1 + number)
        for loader in (ahead, as_numpy, copy):
            batch = next(loader)
            for key in ("action", "action_is_pad", "action_base", "state"):
                assert (np.asarray(batch[key]) == want[key].numpy()).all()
    age = batch_age = next(as_numpy)["action_age"]
    assert age.shape == (64, len(OFFSETS)) and (batch_age > np.iinfo(np.int64).min).all()
    some = plain.gather([5, 0, 77])
    in_order, _ = loaders(dataset, LISTS["6D"], "cpu", shuffle=False, batch_size=100)
    assert torch.equal(some["action"], next(in_order)["action"][[5, 0, 77]])


def test_two_keys_share_a_base(tmp_path, rng, device):
    dataset = record(tmp_path / "c", rng)
    words = {"method": [(slice(0, 7), "pose")]}
    windows = {
        "state": Window([-0.1, 0.0], convert=LISTS["se3"], base="state", **words),
        "action": Window(OFFSETS, convert=LISTS["joints"], base="state", **words),
    }
    batch = next(robocache.Loader(dataset, batch_size=64, delta_timestamps=windows, anchors="tick", device=device))
    assert torch.equal(batch["state_base"], batch["action_base"])
    at_the_anchor = numbers(batch["state"][:, 1, :7])
    np.testing.assert_allclose(at_the_anchor, np.broadcast_to([0, 0, 0, 0, 0, 0, 1], at_the_anchor.shape), atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3, 16, 40])
@pytest.mark.parametrize("name", ["joints", "se3", "6D", "steps"])
def test_windows_of_any_length(tmp_path, rng, device, name, steps):
    dataset = record(tmp_path / "c", rng)
    words = {"offsets": np.arange(steps) * 0.02, "method": "nearest"}
    converting, raw = loaders(dataset, LISTS[name], device, window=words, state={"method": "nearest"})
    batch, plain = next(converting), next(raw)
    pad = plain["action_is_pad"].clone()
    if name == "steps":
        pad[:, 1:] |= plain["action_is_pad"][:, :-1]
    assert torch.equal(batch["action"], convert(plain["action"], plain["state"], LISTS[name]))
    assert torch.equal(batch["action_is_pad"], pad | plain["state_is_pad"][:, None])


@pytest.mark.parametrize("width", [1, 7, 14, 125])
@pytest.mark.parametrize(("size", "steps"), [(1, 1), (1, 33), (64, 16), (33, 33)])
def test_joints_of_any_width_and_mask(tmp_path, rng, device, width, size, steps):
    """The state begins later than the action, ends earlier, and is missing in one episode. Where it is padding, so is the action."""
    with robocache.Writer(tmp_path / "c") as writer:
        for number in range(4):
            with writer.episode() as episode:
                episode.append("tick", np.arange(60) * 20_000_000, np.zeros((60, 1), np.float32))
                episode.append("action", np.arange(60) * 20_000_000, rng.standard_normal((60, width), np.float32))
                if number != 2:
                    time_ns = 200_000_000 + np.arange(20) * 30_000_000
                    episode.append("state", time_ns, rng.standard_normal((20, width), np.float32))
    dataset = robocache.open(tmp_path / "c")
    mask = [f % 3 != 1 for f in range(width)]
    stats = {"action": {"mean": rng.standard_normal(width), "std": rng.uniform(0.5, 2, width)}}
    windows = {
        "action": Window(
            np.arange(steps) * 0.02 - 0.05,
            method="linear",
            convert=[Relative("joints", mask=mask)],
            base="state",
            normalize="mean_std",
        ),
        "state": Window(method="linear"),
    }
    options = {"batch_size": size, "anchors": "tick", "findings": None, "seed": 3}
    converting, here = (
        robocache.Loader(
            dataset,
            delta_timestamps=windows,
            normalization=Normalization(norm_stats=stats),
            device=one,
            **options,
        )
        for one in (device, "cpu")
    )
    as_recorded = {"action": Window(windows["action"].offsets, method="linear"), "state": windows["state"]}
    raw = robocache.Loader(dataset, delta_timestamps=as_recorded, device="cpu", **options)
    for _ in range(3):
        batch, own, plain = next(converting), next(here), next(raw)
        for key, value in own.items():
            assert torch.equal(batch[key].cpu(), value), key
        is_pad = plain["action_is_pad"] | plain["state_is_pad"][:, None]
        assert torch.equal(own["action_is_pad"], is_pad)
        base = numbers(plain["state"])
        assert torch.equal(own["action_base"], plain["state"])
        want = numbers(plain["action"]) - np.where(mask, base, 0)[:, None]
        want = (want - stats["action"]["mean"]) / stats["action"]["std"]
        known = np.array([episode != 2 for episode in plain["episode_index"]])
        np.testing.assert_allclose(numbers(own["action"])[known], want[known], rtol=1e-5, atol=1e-5)
        assert not own["action"][~known].any()


def test_a_plan_of_many_groups_converts_every_key(tmp_path, rng, device):
    names = [f"action.{i}" for i in range(14)]  # each has three segments, and a group has at most 32
    with robocache.Writer(tmp_path / "c") as writer:
        for _ in range(3):
            with writer.episode() as episode:
                for name in ["state", *names]:
                    turn = Rotation.random(100, random_state=rng.integers(1 << 30)).as_quat()
                    values = np.concatenate([rng.standard_normal((100, 3)), turn, rng.uniform(0, 1, (100, 1))], -1)
                    episode.append(name, np.arange(100) * 20_000_000, values.astype(np.float32))
    dataset = robocache.open(tmp_path / "c")
    lists = [list(LISTS)[i % 6] for i in range(14)]
    batches = []
    for converted in (True, False):
        words = [{"convert": LISTS[one], "base": "state"} if converted else {} for one in lists]
        methods = [(slice(0, 3), "nearest"), (slice(3, 7), "nearest"), (slice(7, 8), "previous")]
        windows = {
            name: Window(np.arange(16) * 0.02, method=methods, **own) for name, own in zip(names, words, strict=True)
        }
        batches.append(
            next(
                robocache.Loader(dataset, batch_size=64, delta_timestamps=windows | {"state": Window()}, device=device)
            )
        )
    batch, plain = batches
    for name, one in zip(names, lists, strict=True):
        assert torch.equal(batch[name], convert(plain[name], plain["state"], LISTS[one])), name


# ---- Refusals and warnings ----


@pytest.mark.parametrize(
    ("window", "state", "error", "message"),
    [
        ({"convert": [Relative("joints")]}, {}, "ArgumentError", r"'action'\]\.base: expected the key of the state"),
        ({"convert": [Relative("joints")], "base": "tick"}, {}, "ArgumentError", "base: .*'tick'"),
        ({"base": "state"}, {}, "ArgumentError", "base: goes with convert"),
        ({"convert": [], "base": "state"}, {}, "ArgumentError", "base: goes with convert"),
        (
            {"convert": LISTS["rotate"], "base": "state"},
            {},
            "ArgumentError",
            "base: goes with a conversion that compares",
        ),
        (
            {"convert": LISTS["se3"], "base": ("state", [0, 1])},
            {},
            "ArgumentError",
            "base: expected 8 features of 'state'.*got 2",
        ),
        (
            {"convert": LISTS["se3"], "base": ("state", [0] * 7 + [8])},
            {},
            "ArgumentError",
            r"base: expected features of 'state' in \[0, 8\), got 8",
        ),
        ({"convert": LISTS["se3"], "base": ("state", "x")}, {}, "ArgumentTypeError", "base: expected"),
        ({"convert": LISTS["se3"], "base": 5}, {}, "ArgumentTypeError", "base: expected"),
        (
            {"convert": [Relative("se3")], "base": "state"},
            {},
            "ArgumentError",
            r"'action'\]\.convert: x: expected poses of 7 features",
        ),
        (
            {"convert": [Relative("joints", mask=[True])], "base": "state"},
            {},
            "ArgumentError",
            "convert: mask: expected 8 bools",
        ),
        ({"convert": [Rotate(3, "quat", "matrix")]}, {}, "ArgumentError", "convert: source: expected .*quat_xyzw"),
        ({"convert": [Rotate(6, "quat_xyzw", "matrix")]}, {}, "ArgumentError", "convert: start: expected"),
        ({"convert": [Rescale(slice(8, 9), (0, 1), (1, 0))]}, {}, "ArgumentError", "convert: features: expected"),
        (
            {"convert": [Rotate(3, "quat_xyzw", "rotvec"), StepDelta()], "base": "state"},
            {},
            "ArgumentError",
            "StepDelta first",
        ),
        (
            {"convert": [BinarizeGripper(slice(7, 8), 0.1, 0.9)]},
            {},
            "ArgumentError",
            "BinarizeGripper, which needs the rest",
        ),
        (
            {"convert": Relative("joints"), "base": "state"},
            {},
            "ArgumentTypeError",
            "convert: conversions: expected a list",
        ),
        ({"convert": ["se3"], "base": "state"}, {}, "ArgumentTypeError", "expected those of robocache.actions"),
    ],
)
def test_invalid_conversions_are_refused(tmp_path, rng, window, state, error, message):
    dataset = record(tmp_path / "c", rng, episodes=1)
    with pytest.raises(getattr(robocache, error), match=message):
        windows = {"action": Window(OFFSETS, **window), "state": Window(**state)}
        robocache.Loader(dataset, batch_size=4, delta_timestamps=windows, device="cpu", anchors=Anchors(stream="tick"))


@pytest.mark.parametrize(
    ("names", "units", "conversions", "message"),
    [
        ("x y z qw qx qy qz", None, [Relative("se3")], "'quat_wxyz'"),
        ("x y z qw qx qy qz", None, [Relative("se3", rotation="quat_wxyz")], None),
        ("x y z qx qy qz qw", None, [Relative("mixed")], None),
        ("x y z q.w q.x q.y q.z", None, [Rotate(3, "quat_xyzw", "rotvec")], "'quat_wxyz'"),
        (
            "g q[x] q[y] q[z] q[w]",
            None,
            [Rotate(1, "quat_xyzw", "rot6d_rows"), Rotate(1, "rot6d_rows", "rotvec")],
            None,
        ),
        ("a b c d e f g", None, [Relative("se3")], None),
        ("x y z qw_world qx_world qy_world qz_world", None, [Relative("se3")], "'quat_wxyz'"),
        ("x.left y.left z.left w.left", None, [Rotate(0, "quat_wxyz", "rotvec")], "'quat_xyzw'"),
        ("world_a world_b world_c world_d", None, [Rotate(0, "quat_wxyz", "rotvec")], None),
        ("yaw pitch roll", None, [Rotate(0, "euler_xyz", "rotvec")], "axes zyx"),
        ("euler_z euler_y euler_x", None, [Rotate(0, "euler_xyz", "rotvec")], "axes zyx"),
        ("rx ry rz", None, [Rotate(0, "euler_xyz", "rotvec")], None),
        ("rx ry rz", None, [Rotate(0, "rotvec", "euler_xyz")], None),
        ("heading pitch roll", None, [Rotate(0, "euler_xyz", "rotvec")], "axes zyx"),
        ("roll_deg pitch_deg yaw_deg", None, [Rotate(0, "euler_xyz", "rotvec")], "radians, got 'roll_deg'"),
        ("axis_angle_x axis_angle_y axis_angle_z", None, [Rotate(0, "euler_xyz", "rotvec")], "'rotvec'"),
        ("roll pitch yaw", None, [Rotate(0, "rotvec", "euler_xyz")], "Euler angles"),
        ("yaw pitch roll", None, [Rotate(0, "euler_ZYX", "rotvec")], None),
        ("roll pitch yaw", "deg", [Rotate(0, "euler_xyz", "rotvec")], "radians, got 'deg'"),
        ("roll pitch yaw", ["rad", "rad", "degrees"], [Rotate(0, "euler_xyz", "rotvec")], "radians, got 'degrees'"),
        (
            "roll pitch yaw",
            "deg",
            [Rescale(slice(0, 3), (-180, 180), (-np.pi, np.pi)), Rotate(0, "euler_xyz", "rotvec")],
            None,
        ),
    ],
)
def test_conversions_are_checked_by_the_names_and_units_of_features(tmp_path, rng, names, units, conversions, message):
    names = names.split()
    turn = Rotation.random(10, random_state=3).as_quat()
    values = np.concatenate([np.ones((10, len(names) - 4)), turn], -1) if len(names) > 4 else turn[:, : len(names)]
    with robocache.Writer(tmp_path / "c") as writer:
        for stream in ("state", "action"):
            writer.stream(stream, names=names, attributes={} if units is None else {"units": units})
        with writer.episode() as episode:
            for stream in ("state", "action"):
                episode.append(stream, np.arange(10) * 20_000_000, values)
    base = {"base": "state"} if isinstance(conversions[0], Relative) else {}
    windows = {"state": Window(), "action": Window([0.0, 0.02], convert=conversions, **base)}
    if message is None:
        next(robocache.Loader(tmp_path / "c", batch_size=4, delta_timestamps=windows, findings=None))
        return
    with pytest.raises(robocache.ArgumentError, match=re.escape(message)) as caught:
        robocache.Loader(tmp_path / "c", batch_size=4, delta_timestamps=windows, findings=None)
    assert str(caught.value).startswith("delta_timestamps['action'].convert: ")


ROW = "r00 r01 r02 r10 r11 r12 r20 r21 r22"


def described(path, *, units=None, base_units=None, names, base_names=None, attributes=None, action="action"):
    """A dataset of a state and an action, with these names, units and attributes."""
    names = names.split()
    with robocache.Writer(path) as writer:
        for stream, own_names, own in (
            ("state", (base_names or " ".join(names)).split(), base_units or units),
            (action, names, units),
        ):
            facts = (attributes or {}) | ({} if own is None else {"units": own})
            writer.stream(stream, names=own_names, attributes=facts)
        with writer.episode() as episode:
            for stream in ("state", action):
                episode.append(stream, np.arange(10) * 20_000_000, rotations_in(len(names)))
    return path


def rotations_in(width):
    """Rows that end with numbers that are a valid rotation in every representation of this width."""
    turn = Rotation.random(10, random_state=3)
    tail = {4: turn.as_quat(), 6: np.tile([1.0, 0, 0, 0, 1, 0], (10, 1)), 9: turn.as_matrix().reshape(10, 9)}
    end = tail.get(width, tail[4] if width == 7 else np.full((10, 3), 0.1))
    return np.concatenate([np.ones((10, width - end.shape[1])), end], -1)


def opened_with(path, conversions, base="state", stream="action"):
    compares = isinstance(conversions[0], Relative | StepDelta)
    action = Window([0.0, 0.02], convert=conversions, **({"base": base} if compares else {}))
    next(robocache.Loader(path, batch_size=4, delta_timestamps={"state": Window(), stream: action}, findings=None))


@pytest.mark.parametrize(
    ("stream", "names", "attributes", "conversion", "message"),
    [
        ("tcp_xyz_wxyz", "a b c d e f g", None, Relative("se3"), "'quat_wxyz', as the name of stream 'tcp_xyz_wxyz'"),
        ("tcp_xyz_wxyz", "a b c d e f g", None, Relative("se3", rotation="quat_wxyz"), None),
        ("obs.tcpPoseXYZW", "a b c d e f g", None, Relative("se3", rotation="quat_wxyz"), "'quat_xyzw', as the name"),
        ("tcp_xyzw", "a b c d", None, Rotate(0, "quat_wxyz", "rotvec"), "'quat_xyzw', as the name"),
        ("tcp_xyzw", "a b c d", {"rotation": "quat_wxyz"}, Rotate(0, "quat_wxyz", "rotvec"), None),
        ("tcp_axis_angle", "a b c", None, Rotate(0, "euler_xyz", "quat_xyzw"), "'rotvec', as the name"),
        ("tcp_6d_pose", "a b c d e f", None, Rotate(3, "euler_xyz", "quat_xyzw"), None),
        ("tcp_quat", "a b c d", None, Rotate(0, "quat_wxyz", "rotvec"), None),
        ("wxyz_of_xyzw", "a b c d", None, Rotate(0, "quat_wxyz", "rotvec"), None),
        ("log", "p_wxyz_0 p_wxyz_1 p_wxyz_2 p_wxyz_3", None, Rotate(0, "quat_xyzw", "rotvec"), "'quat_wxyz', as the f"),
    ],
)
def test_conversions_are_checked_by_the_streams_name(tmp_path, stream, names, attributes, conversion, message):
    path = described(tmp_path / "c", names=names, attributes=attributes, action=stream)
    if message is None:
        opened_with(path, [conversion], stream=stream)
        return
    with pytest.raises(robocache.ArgumentError, match=re.escape(message)):
        opened_with(path, [conversion], stream=stream)


@pytest.mark.parametrize("conversion", [Relative("joints"), StepDelta(), Relative("joints", mask=[False, True])])
@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"absolute": False}, "absolute = False"),
        ({"control_delta": True}, "control_delta = True"),
        ({"use_relative_actions": True}, "use_relative_actions = True"),
        ({"action_type": "delta"}, "action_type = 'delta'"),
        ({"control_mode": "pd_ee_delta_pose"}, "control_mode = 'pd_ee_delta_pose'"),
        ({"absolute": True, "control_delta": False, "control_mode": "pd_joint_pos"}, None),
    ],
)
def test_a_stream_declared_relative_is_not_made_relative_again(tmp_path, attributes, words, conversion):
    with robocache.Writer(tmp_path / "c") as writer:
        writer.stream("action", attributes=attributes)
        with writer.episode() as episode:
            for stream in ("state", "action"):
                episode.append(stream, np.arange(10) * 20_000_000, np.ones((10, 2)))
    if words is None:
        opened_with(tmp_path / "c", [conversion])
        return
    with pytest.raises(robocache.ArgumentError, match="relative already as its attribute " + re.escape(words)):
        opened_with(tmp_path / "c", [conversion])


@pytest.mark.parametrize(
    ("stream", "names", "attributes", "conversion", "warning_text"),
    [
        ("rel_actions", "a b c", None, Relative("joints"), ["rel_actions"]),
        ("action.eefDelta", "a b c", None, StepDelta(), ["action.eefDelta"]),
        ("action", "delta_x delta_y g", None, Relative("joints"), ["delta_x", "delta_y"]),
        ("action", "delta_x y g", None, Relative("joints", mask=[False, True, True]), []),
        ("rel_actions", "a b c", {"absolute": True}, Relative("joints"), []),
        ("release", "a b c", None, Relative("joints"), []),
    ],
)
def test_a_stream_that_only_names_call_relative_is_warned_of(
    tmp_path, recwarn, stream, names, attributes, conversion, warning_text
):
    path = described(tmp_path / "c", names=names, attributes=attributes, action=stream)
    opened_with(path, [conversion], stream=stream)
    found = [str(warning.message) for warning in recwarn if "relative already" in str(warning.message)]
    assert len(found) == bool(warning_text) and all(
        f".convert: {warning_text} are relative already" in one for one in found
    )


@pytest.mark.parametrize(
    ("base", "attributes", "warning_text"),
    [("delta_state", {}, True), ("delta_state", {"absolute": True}, False), ("state", {}, False)],
)
def test_a_base_that_only_its_name_calls_relative_is_warned_of(tmp_path, recwarn, base, attributes, warning_text):
    with robocache.Writer(tmp_path / "c") as writer:
        writer.stream(base, attributes=attributes)
        with writer.episode() as episode:
            for stream in (base, "action"):
                episode.append(stream, np.arange(10) * 20_000_000, np.ones((10, 3)))
    windows = {
        "action": robocache.Window([0.0], convert=[Relative("joints")], base=(base, [0, 1, 2])),
        base: robocache.Window([0.0]),
    }
    robocache.Loader(tmp_path / "c", batch_size=2, delta_timestamps=windows, device="cpu")
    found = [str(warning.message) for warning in recwarn if ".base: " in str(warning.message)]
    assert len(found) == warning_text and all(
        "['delta_state'] of 'delta_state' are relative by their names" in one for one in found
    )


@pytest.mark.parametrize(
    ("names", "attributes", "conversions", "message"),
    [
        (
            "a b c d",
            {"rotation_type": "axis_angle"},
            [Rotate(0, "quat_xyzw", "rotvec")],
            "expected 'rotvec', as the attribute",
        ),
        ("a b c d", {"rotation_type": "quaternion"}, [Rotate(0, "quat_xyzw", "rotvec")], None),
        (
            "a b c d",
            {"rotation": "quat_wxyz"},
            [Rotate(0, "quat_xyzw", "rotvec")],
            "'quat_wxyz', as the attribute rotation",
        ),
        ("a b c d", {"quaternion_order": "scalar_first"}, [Rotate(0, "quat_xyzw", "rotvec")], "'quat_wxyz'"),
        ("a b c d", {"quaternion_order": "xyzw"}, [Rotate(0, "quat_xyzw", "rotvec")], None),
        ("a b c", {"quaternion_order": "xyzw"}, [Rotate(0, "rotvec", "matrix")], None),
        ("a b c", {"rotation_type": "euler_angles_rpy"}, [Rotate(0, "euler_xyz", "matrix")], None),
        ("a b c", {"rotation_type": "euler_angles_rpy"}, [Rotate(0, "euler_zyx", "matrix")], "expected 'euler_xyz'"),
        ("a b c", {"rotation_type": "euler_angles_rpy"}, [Rotate(0, "rotvec", "matrix")], "expected 'euler_xyz'"),
        ("a b c", {"rotation_type": "axis_angle"}, [Rotate(0, "euler_xyz", "matrix")], "expected 'rotvec'"),
        ("a b c d e f", {"rotation_type": "rotation_6d"}, [Rotate(0, "rot6d_rows", "matrix")], None),
        ("a b c d e f", {"rotation_type": "matrix"}, [Rotate(0, "rot6d_rows", "matrix")], "expected 'matrix'"),
        ("a b c d e f g", {"methods": [[3, 7, "slerp"]]}, [Relative("se3")], None),
        ("a b c d e f g", {"methods": [[0, 7, "pose"]]}, [Relative("se3")], None),
        (
            "a b c d e f g",
            {"methods": [[0, 4, "slerp"]]},
            [Relative("se3")],
            "'quat_xyzw' or 'quat_wxyz' in features 0 to 4",
        ),
        ("a b c d e f g", {"methods": [[3, 7, "slerp"]]}, [Rotate(2, "quat_xyzw", "rotvec")], "features 3 to 7"),
        ("a b c d e f", {"methods": [[3, 6, "angle"]]}, [Relative("se3", rotation="rotvec")], "Euler angles"),
        ("a b c d e f", {"methods": [[3, 6, "angle"]]}, [Relative("se3", rotation="euler_xyz")], None),
        ("a b c d", {"methods": [[0, 4, "slerp"]]}, [Rotate(0, "rotvec", "matrix")], "'quat_xyzw' or 'quat_wxyz'"),
        ("qx qy qz qw x y z", None, [Relative("se3")], "expected"),
        ("roll pitch yaw x y z", None, [Relative("se3", rotation="euler_xyz")], "expected"),
        ("r00 r10 r20 r01 r11 r21", None, [Rotate(0, "rot6d_rows", "matrix")], "'rot6d_columns'"),
        ("r00 r10 r20 r01 r11 r21", None, [Rotate(0, "rot6d_columns", "matrix")], None),
        ("r11 r21 r31 r12 r22 r32", None, [Rotate(0, "rot6d_interleaved", "matrix")], "'rot6d_columns'"),
        ("R_11 R_12 R_13 R_21 R_22 R_23", None, [Rotate(0, "rot6d_columns", "matrix")], "'rot6d_rows'"),
        (
            "rot[0,0] rot[0,1] rot[1,0] rot[1,1] rot[2,0] rot[2,1]",
            None,
            [Rotate(0, "rot6d_rows", "matrix")],
            "'rot6d_interleaved'",
        ),
        ("xx yx zx xy yy zy", None, [Rotate(0, "rot6d_rows", "matrix")], "'rot6d_columns'"),
        (ROW, None, [Rotate(0, "matrix", "rotvec")], None),
        (
            " ".join(ROW.split()[i] for i in (0, 3, 6, 1, 4, 7, 2, 5, 8)),
            None,
            [Rotate(0, "matrix", "rotvec")],
            "row after row",
        ),
        ("r00 r01 r02 r10 r11 r12 r20 r21 r22", None, [Rotate(0, "rot6d_rows", "rotvec")], None),
        ("rot6d_0 rot6d_1 rot6d_2 rot6d_3 rot6d_4 rot6d_5", None, [Rotate(0, "rot6d_rows", "rotvec")], None),
        (
            "rot6d_0 rot6d_1 rot6d_2 rot6d_3 rot6d_4 rot6d_5",
            None,
            [Rotate(0, "rotvec", "matrix")],
            "'rot6d_rows', 'rot6d_columns'",
        ),
        ("qw qx qy qz", None, [Rotate(1, "rotvec", "matrix")], "'quat_xyzw' or 'quat_wxyz'"),
        ("qr qi qj qk", None, [Rotate(0, "quat_xyzw", "matrix")], "'quat_wxyz'"),
        ("controller_rx controller_ry controller_rz", None, [Rotate(0, "rotvec", "matrix")], None),
        ("eefRoll eefPitch eefYaw", None, [Rotate(0, "euler_zyx", "matrix")], "axes xyz"),
        ("a b c d e f g", None, [Relative("se3"), Rotate(3, "quat_wxyz", "rotvec")], "'quat_xyzw' from feature 3 on"),
        (
            "a b c d",
            None,
            [Rotate(0, "quat_xyzw", "rot6d_rows"), Rotate(0, "rot6d_columns", "rotvec")],
            "'rot6d_rows' from",
        ),
        ("j0_deg j1_deg j2_deg", None, [Relative("joints", angles=[True] * 3)], "expected radians"),
        ("j0_deg j1_deg j2_deg", None, [StepDelta(angles=[False] * 3)], None),
    ],
)
def test_conversions_are_checked_by_the_streams_attributes(tmp_path, names, attributes, conversions, message):
    path = described(tmp_path / "c", names=names, attributes=attributes)
    if message is None:
        opened_with(path, conversions)
        return
    with pytest.raises(robocache.ArgumentError, match=re.escape(message)) as caught:
        opened_with(path, conversions)
    assert str(caught.value).startswith("delta_timestamps['action'].convert: ")


@pytest.mark.parametrize(
    ("facts", "conversion", "base", "message"),
    [
        ({"base_names": "x y z qw qx qy qz"}, Relative("se3"), "state", "'quat_wxyz'"),
        ({"base_names": "x y z qw qx qy qz"}, Relative("se3"), ("state", [0, 1, 2, 4, 5, 6, 3]), None),
        ({"base_names": "x y z qx qy qz qw"}, Relative("se3"), ("state", [0, 1, 2, 6, 3, 4, 5]), "'quat_wxyz'"),
        ({"base_names": "x y z qx qy qz qw"}, Relative("se3"), "state", None),
        (
            {"units": "rad", "base_units": "deg"},
            Relative("joints"),
            "state",
            "got 'rad' of the key and 'deg' of the base for 'a'",
        ),
        ({"units": "rad", "base_units": "deg"}, StepDelta(), "state", "'deg' of the base"),
        ({"units": "rad", "base_units": "radians"}, Relative("joints"), "state", None),
        (
            {"units": ["rad"] * 6 + ["m"], "base_units": ["rad"] * 6 + ["mm"]},
            Relative("joints"),
            "state",
            "'mm' of the base for 'g'",
        ),
        (
            {"units": ["rad"] * 6 + ["m"], "base_units": ["rad"] * 6 + ["mm"]},
            Relative("joints", mask=[True] * 6 + [False]),
            "state",
            None,
        ),
        ({"units": "metres", "base_units": "m"}, Relative("joints"), "state", None),
        ({"units": "rad"}, Relative("joints"), "state", None),
    ],
)
def test_the_base_is_checked_by_its_own_names_and_units(tmp_path, facts, conversion, base, message):
    path = described(tmp_path / "c", names="a b c d e f g", **facts)
    if message is None:
        opened_with(path, [conversion], base)
        return
    with pytest.raises(robocache.ArgumentError, match=re.escape(message)) as caught:
        opened_with(path, [conversion], base)
    assert str(caught.value).startswith("delta_timestamps['action'].base: ")


@pytest.mark.parametrize(
    ("base", "mask", "words"),
    [
        (("state", [0, 1, 0]), [True, True, False], "'j1' is compared with 'x' of 'state', which has 'j1' too"),
        (("state", [0, 3, 0]), [True, True, False], "'j1' is compared with 'x' of 'state'"),
        (("state", [2, 1, 0]), [False, True, False], "'j2' is compared with 'y' of 'state'"),
        (("state", [2, 3, 0]), [True, True, False], None),
        (("state", [0, 1, 0]), [False, False, True], None),  # the state has no gripper
    ],
)
def test_a_feature_relative_to_another_feature_of_the_state_is_warned_of(tmp_path, recwarn, base, mask, words):
    with robocache.Writer(tmp_path / "c") as writer:
        for stream, names in (("state", ["x", "y", "j1", "j2"]), ("action", ["j1", "j2", "gripper"])):
            writer.stream(stream, names=names)
        with writer.episode() as episode:
            for stream, width in (("state", 4), ("action", 3)):
                episode.append(stream, np.arange(10) * 20_000_000, np.ones((10, width)))
    relative = Window([0.0, 0.02], convert=[Relative("joints", mask=mask)], base=base)
    robocache.Loader(
        tmp_path / "c", batch_size=4, delta_timestamps={"state": Window(), "action": relative}, findings=None
    )
    warned = [str(warning.message) for warning in recwarn if "is compared with" in str(warning.message)]
    assert len(warned) == (words is not None) and all(words in one for one in warned)


@pytest.mark.parametrize(("angles", "warned"), [(None, True), ([True, False], False)])
def test_differences_of_angles_without_the_shorter_way_are_warned_of(tmp_path, recwarn, angles, warned):
    with robocache.Writer(tmp_path / "c") as writer:
        for stream in ("state", "action"):
            writer.stream(stream, names=["yaw", "x"], attributes={"methods": [[0, 1, "angle"]]})
        with writer.episode() as episode:
            for stream in ("state", "action"):
                episode.append(stream, np.arange(10) * 20_000_000, np.ones((10, 2)))
    relative = Window([0.0, 0.02], convert=[Relative("joints", angles=angles)], base="state")
    robocache.Loader(
        tmp_path / "c", batch_size=4, delta_timestamps={"state": Window(), "action": relative}, findings=None
    )
    said = [str(warning.message) for warning in recwarn if "shorter way" in str(warning.message)]
    assert len(said) == warned and all("features [0]" in one for one in said)


@pytest.mark.parametrize(
    ("names", "attributes", "conversion", "features"),
    [
        ("x y z qx qy qz qw", None, Relative("joints"), "[3, 4, 5, 6]"),
        ("x y z qx qy qz qw", None, StepDelta(), "[3, 4, 5, 6]"),
        ("x y z axis_angle_x axis_angle_y axis_angle_z g", None, Relative("joints"), "[3, 4, 5]"),
        ("a b c d e f g", {"methods": [[0, 7, "pose"]]}, Relative("joints"), "[3, 4, 5, 6]"),
        ("x y z qx qy qz qw", None, Relative("joints", mask=[True] * 3 + [False] * 4), None),
        ("x y z qx qy qz qw", None, Relative("se3"), None),
        ("q0 q1 q2 q3 q4 q5 q6", None, Relative("joints"), None),
    ],
)
def test_rotations_subtracted_as_numbers_are_warned_of(tmp_path, recwarn, names, attributes, conversion, features):
    opened_with(described(tmp_path / "c", names=names, attributes=attributes), [conversion])
    warned = [str(warning.message) for warning in recwarn if "the result is no rotation; use" in str(warning.message)]
    assert len(warned) == (features is not None) and all(
        f"features {features} are a rotation's" in one for one in warned
    )


@pytest.mark.parametrize(
    ("rotation", "other_rotation", "is_refused"),
    [
        ("quat_xyzw", "quat_wxyz", True),
        ("quaternion", "quat_wxyz", False),
        ("axis_angle", "euler_angles_rpy", True),
        ("axis_angle", "rotation_vector", False),
        ("euler_angles_rpy", "euler_xyz", False),
        ("euler_angles_rpy", "euler_angles_ypr", True),
    ],
)
def test_sources_with_different_rotations_are_refused(tmp_path, rotation, other_rotation, is_refused):
    sources = [
        Source(described(tmp_path / str(i), names="a b c d", attributes={"rotation_type": one}))
        for i, one in enumerate((rotation, other_rotation))
    ]
    options = {"batch_size": 4, "delta_timestamps": {"action": Window()}, "findings": None}
    if not is_refused:
        next(robocache.Loader(Mixture(sources), **options))
        return
    with pytest.raises(
        robocache.ArgumentError, match=re.escape(f"rotation_type = {rotation!r} and {other_rotation!r}")
    ):
        robocache.Loader(Mixture(sources), **options)


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"absolute": False}, {"absolute": True}, "got absolute = False and absolute = True"),
        ({"absolute": True}, {"control_mode": "pd_joint_delta_pos"}, "got control_mode = 'pd_joint_delta_pos'"),
        ({"control_delta": False}, {"control_delta": True}, "got control_delta = True and control_delta = False"),
    ],
)
def test_a_relative_and_an_absolute_source_are_refused(one, other, message, tmp_path):
    sources = [
        Source(described(tmp_path / str(i), names="a b c d", attributes=each)) for i, each in enumerate((one, other))
    ]
    options = {"batch_size": 4, "delta_timestamps": {"action": Window()}, "findings": None}
    with pytest.raises(robocache.ArgumentError, match=re.escape(message)):
        robocache.Loader(Mixture(sources), **options)
    for source in sources:
        next(robocache.Loader(Mixture([source, source]), **options))


def test_relative_sources_beside_an_undeclared_one_are_warned_of(tmp_path):
    sources = [
        Source(described(tmp_path / str(i), names="a b c d", attributes=each))
        for i, each in enumerate(({"absolute": False}, {}, None))
    ]
    options = {"batch_size": 4, "delta_timestamps": {"action": Window()}, "findings": None}
    with pytest.warns(robocache.LoaderWarning, match="2 of 3 sources do not say that they are relative"):
        robocache.Loader(Mixture(sources), **options)


def test_other_refusals(tmp_path, rng):
    narrow, wide = record(tmp_path / "a", rng, width={"action": 3, "state": 3}), record(tmp_path / "b", rng)
    with pytest.raises(robocache.ArgumentError, match="as wide in all sources, got"):
        sources = Mixture([Source(narrow), Source(wide)], pad_features=True)
        windows = {"action": Window(OFFSETS, convert=[Rescale(slice(0, 1), (0, 1), (1, 0))])}
        robocache.Loader(sources, batch_size=4, delta_timestamps=windows, device="cpu", anchors="tick")
    with pytest.raises(robocache.ArgumentError, match="default: expected no offsets or rows, one method,"):
        default = Window(convert=[Relative("joints")], base="state")
        robocache.Loader(wide, batch_size=4, delta_timestamps={"action": OFFSETS}, default=default, device="cpu")
    converting, raw = loaders(wide, LISTS["se3"], "cpu")
    batch = next(converting)
    with pytest.raises(robocache.ArgumentError, match="key: expected one with conversions,"):
        converting.to_absolute("state", batch["state"], batch)
    with pytest.raises(robocache.ArgumentError, match="which are 'action', got 'state'"):
        converting.spec.to_absolute("state", batch["state"], batch)
    with pytest.raises(robocache.ArgumentError, match="batch: expected 'action_base'"):
        converting.spec.to_absolute("action", batch["action"], {})
    with pytest.raises(robocache.ArgumentError, match="which are none"):
        raw.to_absolute("action", batch["action"], batch)
    with pytest.raises(robocache.ArgumentError, match="batch: expected 'action_base'"):
        converting.to_absolute("action", batch["action"], {"state": batch["state"]})


def test_the_snippets_of_the_page_run(tmp_path, rng):
    page = Path(__file__).parents[3] / "docs/actions.md"
    (code,) = [text for text in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "Loader(" in text]
    time_ns = np.arange(100) * 20_000_000
    with robocache.Writer(tmp_path / "c") as writer, writer.episode() as episode:
        for stream in ("observation.state", "action"):
            episode.append(stream, time_ns, rng.standard_normal((100, 7)).astype(np.float32))
    names = {"robocache": robocache, "Window": Window, "actions": actions, "ds": robocache.open(tmp_path / "c")}
    exec(code, names)
    assert names["action"].shape == (64, 16, 7) and not torch.equal(names["action"], names["batch"]["action"])
