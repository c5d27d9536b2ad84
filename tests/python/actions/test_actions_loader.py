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
    """Records episodes of poses and a gripper: the action at 50 Hz, the state at 30 Hz."""
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
    """Yields a loader that converts, and a loader of the same order that does not."""
    window, state = window or {}, state or {}
    options = {"batch_size": 64, "anchors": "tick", "device": device, "findings": None} | options
    for conversion_options in ({"convert": conversions, "base": base}, {}):
        window_options = {"offsets": OFFSETS, "method": "pose_or_linear"} | window | conversion_options
        if window_options["method"] == "pose_or_linear":
            window_options["method"] = [(slice(0, 7), "pose")]
        state_options = {"method": [(slice(0, 7), "pose")]} | state
        if not conversion_options:
            window_options["normalize"], options["normalization"] = "none", None
        yield robocache.Loader(
            dataset, delta_timestamps={"action": Window(**window_options), "state": Window(**state_options)}, **options
        )


def batches_of(*arguments, **options):
    """Returns the first batch with conversions, and the first batch without."""
    return tuple(next(loader) for loader in loaders(*arguments, **options))


def doubles(x):
    return x.cpu().to(torch.float64).numpy() if isinstance(x, torch.Tensor) else x.astype(np.float64)


def comparable(x, rotation):
    """Makes poses comparable by their numbers: Euler angles wrap, and jump at gimbal lock, so they become matrices."""
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
        expected = convert(plain["action"], plain["state"], conversions)
        is_valid = ~plain["action_is_pad"]
        if name in ("robosuite", "euler") or dtype == "float64" or device == "cuda":
            bound = 1e-5 if dtype == "float32" else 1e-12
            got_pose, expected_pose = (
                comparable(x[is_valid], "euler_ZYX" if name == "euler" else "") for x in (batch["action"], expected)
            )
            torch.testing.assert_close(got_pose, expected_pose, atol=bound, rtol=bound)
        else:
            assert torch.equal(batch["action"], expected)
        if has_base:
            assert torch.equal(batch["action_base"], plain["state"])
            is_valid = is_valid & ~plain["state_is_pad"][:, None]
        assert torch.equal(batch["state"], plain["state"])
        if name != "steps":
            assert torch.equal(~batch["action_is_pad"], is_valid)
        assert is_valid.any() and not is_valid.all()


@pytest.mark.parametrize(
    "rotation", ["quat_wxyz", "rot6d_rows", "rot6d_interleaved", "matrix", "rotvec", "euler_xyz", "euler_ZXZ"]
)
@pytest.mark.parametrize("kind", ["se3", "mixed", "base_frame"])
def test_poses_of_every_rotation(tmp_path, rng, device, kind, rotation):
    dataset = record(tmp_path / "c", rng, rotation=rotation)
    mask = [True] * (dataset.streams["action"].shape[0] - 1) + [False]
    conversions = [Relative(kind, mask=mask, rotation=rotation)]
    batch, plain = batches_of(dataset, conversions, device, window={"method": "nearest"}, state={"method": "nearest"})
    expected = convert(plain["action"], plain["state"], conversions)
    torch.testing.assert_close(
        comparable(batch["action"], rotation), comparable(expected, rotation), atol=2e-5, rtol=1e-5
    )
    is_exact = not rotation.startswith(("rotvec", "euler")) and device == "cpu"
    assert not is_exact or torch.equal(batch["action"], expected)


def test_a_scaled_base_frame(tmp_path, rng, device):
    dataset = record(tmp_path / "c", rng, rotation="rotvec")
    conversions = [Relative("base_frame", mask=[True] * 6 + [False], rotation="rotvec", scale=(0.05, 0.5))]
    batch, plain = batches_of(dataset, conversions, device, window={"method": "nearest"}, state={"method": "nearest"})
    expected = convert(plain["action"], plain["state"], conversions)
    torch.testing.assert_close(batch["action"], expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_values_are_rounded_once_to_the_keys_dtype(tmp_path, rng, device, dtype):
    dataset = record(tmp_path / "c", rng)
    converting, _ = loaders(dataset, LISTS["6D"], device, window={"dtype": dtype})
    _, plain = loaders(dataset, LISTS["6D"], device)
    batch, plain = next(converting), next(plain)
    expected = convert(plain["action"], plain["state"], LISTS["6D"]).to(getattr(torch, dtype))
    assert batch["action"].dtype == expected.dtype and batch["action_base"].dtype == torch.float32
    torch.testing.assert_close(batch["action"], expected, atol=1e-5, rtol=1e-2 if dtype == "bfloat16" else 1e-3)


def test_the_step_after_padding_is_padding(tmp_path, rng, device):
    dataset = record(tmp_path / "c", rng)
    batch, plain = batches_of(dataset, LISTS["steps"], device, batch_size=300, shuffle=False)
    pad, base_pad = plain["action_is_pad"], plain["state_is_pad"][:, None]
    previous_pad = torch.cat([torch.zeros_like(pad[:, :1]), pad[:, :-1]], 1)
    assert torch.equal(batch["action_is_pad"], pad | previous_pad | base_pad)
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
    batch, plain = batches_of(dataset, LISTS["se3"], device, state={"offsets": [-0.1, 0.0]})
    assert torch.equal(batch["action_base"], plain["state"][:, 1])
    expected = convert(plain["action"], plain["state"][:, 1], LISTS["se3"])
    torch.testing.assert_close(batch["action"], expected, atol=1e-5, rtol=1e-5)


# ---- Missing rows and invalid quaternions ----


@pytest.mark.parametrize("missing", ["state", "action"])
def test_without_action_or_state_all_is_0_and_padding(tmp_path, rng, device, missing):
    dataset = record(tmp_path / "c", rng, without=[(missing, 1)])
    with pytest.warns(robocache.LoaderWarning, match="have no row"):
        batch, plain = batches_of(dataset, LISTS["6D"], device, batch_size=300, shuffle=False)
    is_lacking = batch["episode_index"] == 1
    assert is_lacking.any() and batch["action_is_pad"][is_lacking].all() and (batch["action"][is_lacking] == 0).all()
    is_present = ~is_lacking
    torch.testing.assert_close(
        batch["action"][is_present],
        convert(plain["action"][is_present], plain["state"][is_present], LISTS["6D"]),
        atol=1e-5,
        rtol=1e-5,
    )


def with_invalid_rotations(stream, number, values):
    """Gives some rows quaternions of other lengths, or NaN."""
    if stream == "action" and number == 0:
        values[20, 3:7] *= 1.1
        values[30, 0] = np.nan
        values[40, 3:7] = np.nan
    if stream == "state" and number == 1:
        values[:, 3:7] *= 2


INVALID_OPTIONS = {"batch_size": 300, "shuffle": False, "state": {"method": "nearest"}}


@pytest.mark.parametrize("name", ["se3", "rotate"])
def test_a_stored_quaternion_of_another_length_is_refused(tmp_path, rng, device, name):
    dataset = record(tmp_path / "c", rng, change=with_invalid_rotations)
    conversions = LISTS[name]
    base = "state" if name == "se3" else None
    with pytest.raises(robocache.ArgumentError, match=r"'action'\]\.convert: .*length 1, got length 1\.\d+ in row 20"):
        next(loaders(dataset, conversions, device, base=base))
    if name == "se3":
        with pytest.raises(robocache.ArgumentError, match=r"length (2|1\.99999)\S* in row 0 of 'state' in episode 1"):
            next(loaders(dataset, conversions, device, episodes=[1, 2]))
    next(loaders(dataset, conversions, device, base=base, episodes=[2]))


@pytest.mark.parametrize("name", ["se3", "rotate"])
def test_quaternions_are_normalised_with_the_option(tmp_path, rng, device, name):
    dataset = record(tmp_path / "c", rng, change=with_invalid_rotations)
    conversions = [Relative("se3", mask=GRIPPER, normalize=True)]
    if name == "rotate":
        conversions = [Rotate(3, "quat_xyzw", "rot6d_rows", normalize=True)]
    window = {"offsets": [0.0, 0.02], "method": "nearest"}
    base = "state" if name == "se3" else None
    converting, raw = loaders(dataset, conversions, device, window=window, base=base, **INVALID_OPTIONS)
    batch, plain = next(converting), next(raw)
    expected = convert(plain["action"], plain["state"] if base else None, conversions)
    assert torch.equal(torch.nan_to_num(batch["action"], 9.0), torch.nan_to_num(expected, 9.0))
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
    window = {"offsets": [0.0, 0.01], "method": "linear"}  # a quaternion between two rows is not of length 1
    batch, plain = batches_of(dataset, LISTS["se3"], device, window=window, **INVALID_OPTIONS)
    action, pad = doubles(batch["action"]), batch["action_is_pad"].cpu().numpy()
    lengths = np.linalg.norm(doubles(plain["action"])[..., 3:7], axis=-1)
    is_bad, is_fine = np.abs(lengths - 1) > 1.1e-3, np.abs(lengths - 1) < 0.9e-3
    is_nan = np.isnan(doubles(plain["action"])[..., 0])
    assert (is_bad & ~is_nan).sum() > 60 and pad[is_bad & ~is_nan].all() and (action[is_bad & ~is_nan] == 0).all()
    assert (pad[is_fine] == plain["action_is_pad"].cpu().numpy()[is_fine]).all()
    assert np.isnan(action[is_nan][:, :7]).all() and is_nan.any() and not np.isnan(action[~is_nan]).any()


# ---- Normalisation and to_absolute ----


def stats_of(x, rng):
    flat = doubles(x).reshape(-1, x.shape[-1])
    return {"mean": flat.mean(0), "std": flat.std(0) + rng.uniform(0.1, 1, flat.shape[-1])}


@pytest.mark.parametrize("name", ["joints", "6D", "steps", "euler"])
@pytest.mark.parametrize("one_step", [False, True])
def test_to_absolute_inverts_the_conversions(tmp_path, rng, device, name, one_step):
    dataset, conversions = record(tmp_path / "c", rng), LISTS[name]
    window = {"offsets": None} if one_step else {}
    _, raw = loaders(dataset, conversions, device, window=window)
    plain = next(raw)
    chunk = plain["action"][:, None] if one_step else plain["action"]
    converted = convert(chunk, plain["state"], conversions)
    stats = {"action": stats_of(converted, rng)}
    converting, _ = loaders(
        dataset,
        conversions,
        device,
        normalization=Normalization(norm_stats=stats),
        window=window | {"normalize": "mean_std"},
    )
    batch = next(converting)
    expected = (doubles(converted) - stats["action"]["mean"]) / stats["action"]["std"]
    np.testing.assert_allclose(doubles(batch["action"]), expected[:, 0] if one_step else expected, atol=1e-4)
    x = batch["action"].clone().requires_grad_()
    back = converting.to_absolute("action", x, batch)
    assert back.shape == plain["action"].shape and back.dtype == torch.float32
    got, recorded = doubles(back.detach()), doubles(plain["action"])
    features = [0, 1, 2] if name == "6D" else [0, 1, 2, 7]  # Rescale clips the gripper of 6D
    np.testing.assert_allclose(got[..., features], recorded[..., features], atol=2e-4)
    alignment = np.abs((got[..., 3:7] * recorded[..., 3:7]).sum(-1))
    np.testing.assert_allclose(alignment, 1, atol=1e-3)
    back.sum().backward()
    assert x.grad.isfinite().all()
    # At deployment there is neither a batch nor a dataset, only the robot's state in the recording's units.
    at_deployment = {"action_base": batch["action_base"]}
    assert torch.equal(converting.to_absolute("action", batch["action"], at_deployment), back.detach())
    converting.save_spec(tmp_path / "spec.json")
    spec = robocache.Spec.load(tmp_path / "spec.json")
    assert torch.equal(spec.to_absolute("action", batch["action"], at_deployment), back.detach())


def with_signs_of(poses, others):
    """Returns poses whose quaternions have the signs of the others': q and -q are one rotation."""
    signs = np.where((poses[..., 3:7] * others[..., 3:7]).sum(-1, keepdims=True) < 0, -1, 1)
    return np.concatenate([poses[..., :3], signs * poses[..., 3:7], poses[..., 7:]], -1)


FORMS = {
    "joints": "quat_xyzw",
    "se3": "quat_xyzw",
    "mixed": "rotvec",
    "base_frame": "euler_xyz",
    "6D": "rot6d_rows",
    "matrix": "matrix",
    "steps": "rotvec",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("missing", ["state", "action"])
@pytest.mark.parametrize("one_step", [False, True])
def test_rule_52_samples_without_either_become_nan_in_every_form(tmp_path, rng, device, form, missing, one_step):
    """The other samples, and all gradients, are as without them."""
    rotation = FORMS[form]
    dataset = record(tmp_path / "c", rng, rotation=rotation, without=[(missing, 1)])
    mask = [True] * (dataset.streams["action"].shape[0] - 1) + [False]
    kind = {"6D": "se3", "matrix": "mixed"}.get(form, form)
    conversions = [StepDelta(mask=mask) if form == "steps" else Relative(kind, mask=mask, rotation=rotation)]
    window = {"offsets": None if one_step else OFFSETS, "method": "nearest"}
    options = {"window": window, "state": {"method": "nearest"}, "batch_size": 300, "shuffle": False}
    with pytest.warns(robocache.LoaderWarning):
        converting, raw = loaders(dataset, conversions, device, **options)
    batch, plain = next(converting), next(raw)
    is_absent = batch["episode_index"].cpu() == 1
    assert 0 < is_absent.sum() < len(is_absent)
    x = batch["action"].clone().requires_grad_()
    back = converting.to_absolute("action", x, batch)
    assert back[is_absent].isnan().all() and back[~is_absent].isfinite().all()
    if not rotation.startswith("euler"):
        recorded = doubles(plain["action"])[~is_absent]
        got = doubles(back.detach())[~is_absent]
        got = with_signs_of(got, recorded) if form == "se3" else got
        np.testing.assert_allclose(got, recorded, atol=1e-4)
    back.nan_to_num().sum().backward()
    assert x.grad.isfinite().all() and (x.grad[is_absent] == 0).all()
    arrays = {name: array.cpu().numpy() for name, array in batch.items()}
    for by_spec in (
        converting.spec.to_absolute("action", batch["action"], batch).cpu().numpy(),
        converting.spec.to_absolute("action", arrays["action"], arrays),
    ):
        np.testing.assert_allclose(by_spec, back.detach().cpu().numpy(), atol=1e-4)
    with pytest.raises(robocache.ArgumentError, match="batch: expected 'action_is_pad' with a row for each chunk of x"):
        converting.spec.to_absolute(
            "action", arrays["action"], {**arrays, "action_is_pad": arrays["action_is_pad"][:3]}
        )


@pytest.mark.parametrize("normalize", ["none", "mean_std"])
def test_rule_52_steps_of_invalid_rotations_become_nan(tmp_path, rng, device, normalize):
    """A quaternion between two rows is not of length 1: 0 and padding in the batch."""
    window = {"offsets": [0.0, 0.01], "method": "linear", "normalize": normalize}
    stats = {"action": {"mean": np.full(8, 0.5), "std": np.full(8, 2.0)}}
    converting, raw = loaders(
        record(tmp_path / "c", rng),
        LISTS["se3"],
        device,
        window=window,
        normalization=Normalization(norm_stats=stats) if normalize != "none" else None,
        **INVALID_OPTIONS,
    )
    batch, plain = next(converting), next(raw)
    back = with_signs_of(doubles(converting.to_absolute("action", batch["action"], batch)), doubles(plain["action"]))
    is_lost = (doubles(batch["action"]) == 0).all(-1)
    assert 60 < is_lost.sum() < is_lost.size / 2 and batch["action_is_pad"].cpu().numpy()[is_lost].all()
    assert np.isnan(back[is_lost]).all()
    np.testing.assert_allclose(back[~is_lost], doubles(plain["action"])[~is_lost], atol=2e-3)


def test_statistics_of_another_width_are_refused(tmp_path, rng):
    dataset = record(tmp_path / "c", rng)
    with pytest.raises(robocache.ArgumentError, match=r"norm_stats\['action'\].*10"):
        eight_features = {"action": {"mean": np.zeros(8), "std": np.ones(8)}}
        options = {"normalization": Normalization(norm_stats=eight_features), "window": {"normalize": "mean_std"}}
        next(loaders(dataset, LISTS["6D"], "cpu", **options))


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
    converted = convert(plain["action"], plain["state"], LISTS["joints"])
    for source in (0, 1):
        expected = (doubles(converted[source_of == source]) - stats[source]["mean"]) / stats[source]["std"]
        np.testing.assert_allclose(doubles(batch["action"][source_of == source]), expected, atol=1e-5)
    for source in (2, 3):
        assert batch["action_is_pad"][source_of == source].all() and (batch["action"][source_of == source] == 0).all()
    has_both = source_of < 2
    base = {"action_base": batch["action_base"][has_both]}
    back = converting.to_absolute("action", batch["action"][has_both], base, batch["dataset_index"][has_both])
    torch.testing.assert_close(back, plain["action"][has_both], atol=1e-5, rtol=1e-5)


# ---- The same result by every route ----


@pytest.mark.parametrize("name", LISTS)
def test_a_spec_holds_the_conversions(tmp_path, rng, name):
    dataset, conversions = record(tmp_path / "c", rng), LISTS[name]
    base = "state" if isinstance(conversions[0], Relative | StepDelta) else None
    converting, _ = loaders(dataset, conversions, "cpu", base=base)
    batch = next(converting)
    by_spec = robocache.Spec(converting.spec.to_json()).to_absolute("action", batch["action"], batch)
    assert torch.equal(by_spec, converting.to_absolute("action", batch["action"], batch))


@pytest.mark.parametrize(
    "residency", ["device", "pinned", "mapped", {"state": "mapped"}, {"action": "mapped", "state": "device"}]
)
def test_every_tier_gives_the_same(tmp_path, rng, device, residency):
    dataset = record(tmp_path / "c", rng)
    converting, _ = loaders(dataset, LISTS["6D"], device, memory=Memory(residency=residency))
    on_cpu, _ = loaders(dataset, LISTS["6D"], "cpu")
    for _ in range(3):
        batch, expected = next(converting), next(on_cpu)
        assert batch.keys() == expected.keys()
        for key in expected:
            torch.testing.assert_close(batch[key].cpu(), expected[key], atol=5e-5, rtol=1e-5)  # rule 8.1 for slerp
            assert device == "cuda" or torch.equal(batch[key], expected[key])


def test_threads_prefetch_buffers_gather_and_copies_give_the_same(tmp_path, rng, threads):
    dataset = record(tmp_path / "c", rng)
    plain, _ = loaders(dataset, LISTS["6D"], "cpu")
    ahead, _ = loaders(dataset, LISTS["6D"], "cpu", memory=Memory(prefetch=2, reuse_buffers=True))
    as_numpy, _ = loaders(dataset, LISTS["6D"], "cpu", framework="numpy", return_age=True)
    threads(1)
    copy = pickle.loads(pickle.dumps(plain))
    for number in range(3):
        expected = next(plain)
        threads(1 + number)
        for loader in (ahead, as_numpy, copy):
            batch = next(loader)
            for key in ("action", "action_is_pad", "action_base", "state"):
                assert (np.asarray(batch[key]) == expected[key].numpy()).all()
    age = next(as_numpy)["action_age"]
    assert age.shape == (64, len(OFFSETS)) and (age > np.iinfo(np.int64).min).all()
    gathered = plain.gather([5, 0, 77])
    in_order, _ = loaders(dataset, LISTS["6D"], "cpu", shuffle=False, batch_size=100)
    assert torch.equal(gathered["action"], next(in_order)["action"][[5, 0, 77]])


def test_two_keys_share_a_base(tmp_path, rng, device):
    dataset = record(tmp_path / "c", rng)
    options = {"method": [(slice(0, 7), "pose")]}
    windows = {
        "state": Window([-0.1, 0.0], convert=LISTS["se3"], base="state", **options),
        "action": Window(OFFSETS, convert=LISTS["joints"], base="state", **options),
    }
    batch = next(robocache.Loader(dataset, batch_size=64, delta_timestamps=windows, anchors="tick", device=device))
    assert torch.equal(batch["state_base"], batch["action_base"])
    at_the_anchor = doubles(batch["state"][:, 1, :7])
    np.testing.assert_allclose(at_the_anchor, np.broadcast_to([0, 0, 0, 0, 0, 0, 1], at_the_anchor.shape), atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3, 16, 40])
@pytest.mark.parametrize("name", ["joints", "se3", "6D", "steps"])
def test_windows_of_any_length(tmp_path, rng, device, name, steps):
    dataset = record(tmp_path / "c", rng)
    window = {"offsets": np.arange(steps) * 0.02, "method": "nearest"}
    batch, plain = batches_of(dataset, LISTS[name], device, window=window, state={"method": "nearest"})
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
    converting, on_cpu = (
        robocache.Loader(
            dataset,
            delta_timestamps=windows,
            normalization=Normalization(norm_stats=stats),
            device=place,
            **options,
        )
        for place in (device, "cpu")
    )
    as_recorded = {"action": Window(windows["action"].offsets, method="linear"), "state": windows["state"]}
    raw = robocache.Loader(dataset, delta_timestamps=as_recorded, device="cpu", **options)
    for _ in range(3):
        batch, cpu_batch, plain = next(converting), next(on_cpu), next(raw)
        for key, value in cpu_batch.items():
            assert torch.equal(batch[key].cpu(), value), key
        is_pad = plain["action_is_pad"] | plain["state_is_pad"][:, None]
        assert torch.equal(cpu_batch["action_is_pad"], is_pad)
        base = doubles(plain["state"])
        assert torch.equal(cpu_batch["action_base"], plain["state"])
        expected = doubles(plain["action"]) - np.where(mask, base, 0)[:, None]
        expected = (expected - stats["action"]["mean"]) / stats["action"]["std"]
        has_state = np.array([episode != 2 for episode in plain["episode_index"]])
        np.testing.assert_allclose(doubles(cpu_batch["action"])[has_state], expected[has_state], rtol=1e-5, atol=1e-5)
        assert not cpu_batch["action"][~has_state].any()


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
    for is_converted in (True, False):
        conversions = [{"convert": LISTS[list_name], "base": "state"} if is_converted else {} for list_name in lists]
        methods = [(slice(0, 3), "nearest"), (slice(3, 7), "nearest"), (slice(7, 8), "previous")]
        windows = {
            name: Window(np.arange(16) * 0.02, method=methods, **options)
            for name, options in zip(names, conversions, strict=True)
        }
        batches.append(
            next(
                robocache.Loader(dataset, batch_size=64, delta_timestamps=windows | {"state": Window()}, device=device)
            )
        )
    batch, plain = batches
    for name, list_name in zip(names, lists, strict=True):
        assert torch.equal(batch[name], convert(plain[name], plain["state"], LISTS[list_name])), name


# ---- Refusals and warnings ----


@pytest.mark.parametrize(
    ("conversions", "base", "error", "message"),
    [
        ([Relative("joints")], None, ValueError, r"'action'\]\.base: expected the key of the state"),
        ([Relative("joints")], "tick", ValueError, "base: .*'tick'"),
        (None, "state", ValueError, "base: goes with convert"),
        ([], "state", ValueError, "base: goes with convert"),
        (LISTS["rotate"], "state", ValueError, "base: goes with a conversion that compares"),
        (LISTS["se3"], ("state", [0, 1]), ValueError, "base: expected 8 features of 'state'.*got 2"),
        (LISTS["se3"], ("state", [0] * 7 + [8]), ValueError, r"base: expected .* 'state' in \[0, 8\), got 8"),
        (LISTS["se3"], ("state", "x"), TypeError, "base: expected"),
        (LISTS["se3"], 5, TypeError, "base: expected"),
        ([Relative("se3")], "state", ValueError, r"'action'\]\.convert: x: expected poses of 7 features"),
        ([Relative("joints", mask=[True])], "state", ValueError, "convert: mask: expected 8 bools"),
        ([Rotate(3, "quat", "matrix")], None, ValueError, "convert: source: expected .*quat_xyzw"),
        ([Rotate(6, "quat_xyzw", "matrix")], None, ValueError, "convert: start: expected"),
        ([Rescale(slice(8, 9), (0, 1), (1, 0))], None, ValueError, "convert: features: expected"),
        ([Rotate(3, "quat_xyzw", "rotvec"), StepDelta()], "state", ValueError, "StepDelta first"),
        ([BinarizeGripper(slice(7, 8), 0.1, 0.9)], None, ValueError, "BinarizeGripper, which needs the rest"),
        (Relative("joints"), "state", TypeError, "convert: conversions: expected a list"),
        (["se3"], "state", TypeError, "expected those of robocache.actions"),
    ],
)
def test_invalid_conversions_are_refused(tmp_path, rng, conversions, base, error, message):
    dataset = record(tmp_path / "c", rng, episodes=1)
    with pytest.raises(error, match=message) as caught:
        windows = {"action": Window(OFFSETS, convert=conversions, base=base), "state": Window()}
        robocache.Loader(dataset, batch_size=4, delta_timestamps=windows, device="cpu", anchors=Anchors(stream="tick"))
    assert isinstance(caught.value, robocache.Error)


def write_described(
    path, names, *, units=None, attributes=None, action="action", state="state", state_names=None, state_units=None
):
    """Writes a dataset of a state and an action, with these names, units and attributes."""
    with robocache.Writer(path) as writer, writer.episode() as episode:
        for stream, features, unit in ((state, state_names or names, state_units or units), (action, names, units)):
            facts = {} if unit is None else {"units": unit}
            writer.stream(stream, names=features.split(), attributes=(attributes or {}) | facts)
            episode.append(stream, np.arange(10) * 20_000_000, rotations_in(len(features.split())))
    return path


def rotations_in(width):
    """Returns rows whose last numbers are a valid rotation in every representation of this width."""
    turn = Rotation.random(10, random_state=3)
    by_width = {6: np.tile([1.0, 0, 0, 0, 1, 0], (10, 1)), 9: turn.as_matrix().reshape(10, 9)}
    rotation = by_width.get(width, turn.as_quat() if width in (4, 5, 7) else np.full((10, min(width, 3)), 0.1))
    return np.concatenate([np.ones((10, width - rotation.shape[1])), rotation], -1)


def open_with(path, facts, conversions, base="state"):
    write_described(path, **facts)
    base_options = {"base": base} if isinstance(conversions[0], Relative | StepDelta) else {}
    windows = {
        facts.get("state", "state"): Window(),
        facts.get("action", "action"): Window([0.0, 0.02], convert=conversions, **base_options),
    }
    next(robocache.Loader(path, batch_size=4, delta_timestamps=windows, findings=None))


def check_refusal(path, facts, conversions, message, option="convert", base="state"):
    if message is None:
        open_with(path, facts, conversions, base)
        return
    with pytest.raises(robocache.ArgumentError, match=re.escape(message)) as caught:
        open_with(path, facts, conversions, base)
    assert str(caught.value).startswith(f"delta_timestamps['{facts.get('action', 'action')}'].{option}: ")


def rotate(source, target="rotvec", start=0):
    return [Rotate(start, source, target)]


SE3, JOINTS, STEPS = [Relative("se3")], [Relative("joints")], [StepDelta()]
ROW = "r00 r01 r02 r10 r11 r12 r20 r21 r22"
COLUMN = "r00 r10 r20 r01 r11 r21 r02 r12 r22"
SIX = " ".join(f"rot6d_{k}" for k in range(6))
IN_DEGREES = Rescale(slice(0, 3), (-180, 180), (-np.pi, np.pi))


@pytest.mark.parametrize(
    ("names", "facts", "conversions", "message"),
    [
        # By the names of features.
        ("x y z qw qx qy qz", {}, SE3, "'quat_wxyz'"),
        ("x y z qw qx qy qz", {}, [Relative("se3", rotation="quat_wxyz")], None),
        ("x y z qx qy qz qw", {}, [Relative("mixed")], None),
        ("x y z q.w q.x q.y q.z", {}, rotate("quat_xyzw", start=3), "'quat_wxyz'"),
        ("g q[x] q[y] q[z] q[w]", {}, rotate("quat_xyzw", "rot6d_rows", 1) + rotate("rot6d_rows", start=1), None),
        ("a b c d e f g", {}, SE3, None),
        ("x y z qw_world qx_world qy_world qz_world", {}, SE3, "'quat_wxyz'"),
        ("x.left y.left z.left w.left", {}, rotate("quat_wxyz"), "'quat_xyzw'"),
        ("world_a world_b world_c world_d", {}, rotate("quat_wxyz"), None),
        ("yaw pitch roll", {}, rotate("euler_xyz"), "axes zyx"),
        ("euler_z euler_y euler_x", {}, rotate("euler_xyz"), "axes zyx"),
        ("heading pitch roll", {}, rotate("euler_xyz"), "axes zyx"),
        ("rx ry rz", {}, rotate("euler_xyz"), None),
        ("rx ry rz", {}, rotate("rotvec", "euler_xyz"), None),
        ("roll_deg pitch_deg yaw_deg", {}, rotate("euler_xyz"), "radians, got 'roll_deg'"),
        ("axis_angle_x axis_angle_y axis_angle_z", {}, rotate("euler_xyz"), "'rotvec'"),
        ("roll pitch yaw", {}, rotate("rotvec", "euler_xyz"), "Euler angles"),
        ("yaw pitch roll", {}, rotate("euler_ZYX"), None),
        ("qx qy qz qw x y z", {}, SE3, "expected"),
        ("roll pitch yaw x y z", {}, [Relative("se3", rotation="euler_xyz")], "expected"),
        ("r00 r10 r20 r01 r11 r21", {}, rotate("rot6d_rows", "matrix"), "'rot6d_columns'"),
        ("r00 r10 r20 r01 r11 r21", {}, rotate("rot6d_columns", "matrix"), None),
        ("r11 r21 r31 r12 r22 r32", {}, rotate("rot6d_interleaved", "matrix"), "'rot6d_columns'"),
        ("R_11 R_12 R_13 R_21 R_22 R_23", {}, rotate("rot6d_columns", "matrix"), "'rot6d_rows'"),
        ("rot[0,0] rot[0,1] rot[1,0] rot[1,1] rot[2,0] rot[2,1]", {}, rotate("rot6d_rows"), "'rot6d_interleaved'"),
        ("xx yx zx xy yy zy", {}, rotate("rot6d_rows", "matrix"), "'rot6d_columns'"),
        (ROW, {}, rotate("matrix"), None),
        (COLUMN, {}, rotate("matrix"), "row after row"),
        (ROW, {}, rotate("rot6d_rows"), None),
        (SIX, {}, rotate("rot6d_rows"), None),
        (SIX, {}, rotate("rotvec", "matrix"), "'rot6d_rows', 'rot6d_columns'"),
        ("qw qx qy qz", {}, rotate("rotvec", "matrix", 1), "'quat_xyzw' or 'quat_wxyz'"),
        ("qr qi qj qk", {}, rotate("quat_xyzw", "matrix"), "'quat_wxyz'"),
        ("controller_rx controller_ry controller_rz", {}, rotate("rotvec", "matrix"), None),
        ("eefRoll eefPitch eefYaw", {}, rotate("euler_zyx", "matrix"), "axes xyz"),
        ("j0_deg j1_deg j2_deg", {}, [Relative("joints", angles=[True] * 3)], "expected radians"),
        ("j0_deg j1_deg j2_deg", {}, [StepDelta(angles=[False] * 3)], None),
        # By an earlier conversion.
        ("a b c d e f g", {}, SE3 + rotate("quat_wxyz", start=3), "'quat_xyzw' from feature 3 on"),
        ("a b c d", {}, rotate("quat_xyzw", "rot6d_rows") + rotate("rot6d_columns"), "'rot6d_rows' from"),
        # By units.
        ("roll pitch yaw", {"units": "deg"}, rotate("euler_xyz"), "radians, got 'deg'"),
        ("roll pitch yaw", {"units": ["rad", "rad", "degrees"]}, rotate("euler_xyz"), "radians, got 'degrees'"),
        ("roll pitch yaw", {"units": "deg"}, [IN_DEGREES, *rotate("euler_xyz")], None),
        # By the stream's name.
        ("a b c d e f g", {"action": "tcp_xyz_wxyz"}, SE3, "'quat_wxyz', as the name of stream 'tcp_xyz_wxyz'"),
        ("a b c d e f g", {"action": "tcp_xyz_wxyz"}, [Relative("se3", rotation="quat_wxyz")], None),
        (
            "a b c d e f g",
            {"action": "obs.tcpPoseXYZW"},
            [Relative("se3", rotation="quat_wxyz")],
            "'quat_xyzw'",
        ),
        ("a b c d", {"action": "tcp_xyzw"}, rotate("quat_wxyz"), "'quat_xyzw', as the name"),
        ("a b c d", {"action": "tcp_xyzw", "attributes": {"rotation": "quat_wxyz"}}, rotate("quat_wxyz"), None),
        ("a b c", {"action": "tcp_axis_angle"}, rotate("euler_xyz", "quat_xyzw"), "'rotvec', as the name"),
        ("a b c d e f", {"action": "tcp_6d_pose"}, rotate("euler_xyz", "quat_xyzw", 3), None),
        ("a b c d", {"action": "tcp_quat"}, rotate("quat_wxyz"), None),
        ("a b c d", {"action": "wxyz_of_xyzw"}, rotate("quat_wxyz"), None),
        ("p_wxyz_0 p_wxyz_1 p_wxyz_2 p_wxyz_3", {"action": "log"}, rotate("quat_xyzw"), "'quat_wxyz', as the f"),
        # Words inside other words mean no rotation; compounds that end with one do.
        ("equation_x squat_y carrot_vec_z a b c d", {}, SE3, None),
        ("a b c", {"action": "equation_pose"}, rotate("rotvec", "matrix"), None),
        ("a b c", {"action": "aquatic_vehicle"}, rotate("rotvec", "matrix"), None),
        ("a b c", {"action": "carrot_vector"}, rotate("euler_xyz", "matrix"), None),
        ("a b c d e f", {"action": "carrot_6d"}, rotate("euler_xyz", "matrix"), None),
        ("a b c", {"action": "tcpquat"}, rotate("rotvec", "matrix"), "'quat_xyzw' or 'quat_wxyz', as the name"),
        ("a b c", {"action": "RPYAngles"}, rotate("rotvec", "matrix"), "expected 'euler_xyz'"),
    ],
)
def test_conversions_are_checked_by_names_and_units(tmp_path, names, facts, conversions, message):
    check_refusal(tmp_path / "c", {"names": names, **facts}, conversions, message)


@pytest.mark.parametrize(
    ("names", "attributes", "conversions", "message"),
    [
        ("a b c d", {"rotation_type": "axis_angle"}, rotate("quat_xyzw"), "expected 'rotvec', as the attribute"),
        ("a b c d", {"rotation_type": "quaternion"}, rotate("quat_xyzw"), None),
        ("a b c d", {"rotation": "quat_wxyz"}, rotate("quat_xyzw"), "'quat_wxyz', as the attribute rotation"),
        ("a b c d", {"quaternion_order": "scalar_first"}, rotate("quat_xyzw"), "'quat_wxyz'"),
        ("a b c d", {"quaternionOrder": "wxyz"}, rotate("quat_xyzw"), "as the attribute quaternionOrder"),
        ("a b c d", {"quat_convention": "scalarFirst"}, rotate("quat_xyzw"), "'quat_wxyz'"),
        ("a b c", {"rotationType": "axisAngle"}, rotate("euler_xyz", "matrix"), "expected 'rotvec'"),
        ("a b c d", {"quaternion_order": "xyzw"}, rotate("quat_xyzw"), None),
        ("a b c", {"quaternion_order": "xyzw"}, rotate("rotvec", "matrix"), None),
        ("a b c", {"rotation_type": "euler_angles_rpy"}, rotate("euler_xyz", "matrix"), None),
        ("a b c", {"rotation_type": "euler_angles_rpy"}, rotate("euler_zyx", "matrix"), "expected 'euler_xyz'"),
        ("a b c", {"rotation_type": "euler_angles_rpy"}, rotate("rotvec", "matrix"), "expected 'euler_xyz'"),
        ("a b c", {"rotation_type": "axis_angle"}, rotate("euler_xyz", "matrix"), "expected 'rotvec'"),
        ("a b c d e f", {"rotation_type": "rotation_6d"}, rotate("rot6d_rows", "matrix"), None),
        ("a b c d e f", {"rotation_type": "matrix"}, rotate("rot6d_rows", "matrix"), "expected 'matrix'"),
        ("a b c d e f g", {"methods": [[3, 7, "slerp"]]}, SE3, None),
        ("a b c d e f g", {"methods": [[0, 7, "pose"]]}, SE3, None),
        ("a b c d e f g", {"methods": [[0, 4, "slerp"]]}, SE3, "'quat_xyzw' or 'quat_wxyz' in features 0 to 4"),
        ("a b c d e f g", {"methods": [[3, 7, "slerp"]]}, rotate("quat_xyzw", start=2), "features 3 to 7"),
        ("a b c d e f", {"methods": [[3, 6, "angle"]]}, [Relative("se3", rotation="rotvec")], "Euler angles"),
        ("a b c d e f", {"methods": [[3, 6, "angle"]]}, [Relative("se3", rotation="euler_xyz")], None),
        ("a b c d", {"methods": [[0, 4, "slerp"]]}, rotate("rotvec", "matrix"), "'quat_xyzw' or 'quat_wxyz'"),
        ("a b", {"absolute": True, "control_delta": False, "control_mode": "pd_joint_pos"}, JOINTS, None),
        ("a b", {"absolute": True, "control_delta": False, "control_mode": "pd_joint_pos"}, STEPS, None),
    ],
)
def test_conversions_are_checked_by_the_streams_attributes(tmp_path, names, attributes, conversions, message):
    check_refusal(tmp_path / "c", {"names": names, "attributes": attributes}, conversions, message)


@pytest.mark.parametrize("conversion", [*JOINTS, *STEPS, Relative("joints", mask=[False, True])])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("absolute", False),
        ("control_delta", True),
        ("use_relative_actions", True),
        ("action_type", "delta"),
        ("control_mode", "pd_ee_delta_pose"),
        ("isAbsolute", False),
        ("absolute", 0),
        ("controlDelta", 1),
        ("useDelta", "True"),
        ("controlMode", "pdEeDeltaPose"),
    ],
)
def test_a_stream_declared_relative_is_not_made_relative_again(tmp_path, name, value, conversion):
    message = f"relative already as its attribute {name} = {value!r}"
    check_refusal(tmp_path / "c", {"names": "a b", "attributes": {name: value}}, [conversion], message)


IN_MM = {"names": "a b c d e f g", "units": ["rad"] * 6 + ["m"], "state_units": ["rad"] * 6 + ["mm"]}


@pytest.mark.parametrize(
    ("facts", "conversions", "base", "message"),
    [
        ({"state_names": "x y z qw qx qy qz"}, SE3, "state", "'quat_wxyz'"),
        ({"state_names": "x y z qw qx qy qz"}, SE3, ("state", [0, 1, 2, 4, 5, 6, 3]), None),
        ({"state_names": "x y z qx qy qz qw"}, SE3, ("state", [0, 1, 2, 6, 3, 4, 5]), "'quat_wxyz'"),
        ({"state_names": "x y z qx qy qz qw"}, SE3, "state", None),
        ({"units": "rad", "state_units": "deg"}, JOINTS, "state", "got 'rad' of the key and 'deg' of the base for 'a'"),
        ({"units": "rad", "state_units": "deg"}, STEPS, "state", "'deg' of the base"),
        ({"units": "rad", "state_units": "radians"}, JOINTS, "state", None),
        (IN_MM, JOINTS, "state", "'mm' of the base for 'g'"),
        (IN_MM, [Relative("joints", mask=[True] * 6 + [False])], "state", None),
        ({"units": "metres", "state_units": "m"}, JOINTS, "state", None),
        ({"units": "rad/s", "state_units": "rad"}, JOINTS, "state", "got 'rad/s' of the key and 'rad' of the base"),
        ({"units": "rad_per_s", "state_units": "rad/sec"}, JOINTS, "state", None),
        ({"units": "degC", "state_units": "deg"}, JOINTS, "state", "got 'degC' of the key and 'deg' of the base"),
        ({"units": "ns", "state_units": "N"}, JOINTS, "state", "got 'ns' of the key and 'N' of the base"),
        ({"units": "mrad", "state_units": "rad"}, JOINTS, "state", "got 'mrad' of the key and 'rad' of the base"),
        ({"units": "rad"}, JOINTS, "state", None),
    ],
)
def test_the_base_is_checked_by_its_own_names_and_units(tmp_path, facts, conversions, base, message):
    check_refusal(tmp_path / "c", {"names": "a b c d e f g"} | facts, conversions, message, "base", base)


# A word of each warning.
REL, BY_NAME, OTHER, ANGLES, TURNED = "relative already", ".base: ", "is compared with", "shorter way", "no rotation"
ARM = {"names": "j1 j2 gripper", "state_names": "x y j1 j2"}
POSE = {"names": "x y z qx qy qz qw"}
AXES = {"names": "x y z axis_angle_x axis_angle_y axis_angle_z g"}
YAW = {"names": "yaw x", "attributes": {"methods": [[0, 1, "angle"]]}}
RELS = {"names": "a b c", "action": "rel_actions"}
DELTAS = {"names": "a b c", "state": "delta_state"}
ABSOLUTE = {"attributes": {"absolute": True}}
POSES = {"names": "a b c d e f g", "attributes": {"methods": [[0, 7, "pose"]]}}


def joints(**options):
    return [Relative("joints", **options)]


FIRST_TWO = joints(mask=[True, True, False])


@pytest.mark.parametrize(
    ("facts", "conversions", "base", "kind", "message"),
    [
        # Only a name says that the action, or its base, is relative.
        (RELS, JOINTS, "state", REL, "['rel_actions'] are"),
        (RELS | ABSOLUTE, JOINTS, "state", REL, None),
        ({"names": "a b c", "action": "action.eefDelta"}, STEPS, "state", REL, "['action.eefDelta'] are"),
        ({"names": "delta_x delta_y g"}, JOINTS, "state", REL, "['delta_x', 'delta_y'] are"),
        ({"names": "delta_x y g"}, joints(mask=[False, True, True]), "state", REL, None),
        ({"names": "a b c", "action": "release"}, JOINTS, "state", REL, None),
        (DELTAS, JOINTS, "delta_state", BY_NAME, "['delta_state'] of 'delta_state' are relative by"),
        (DELTAS | ABSOLUTE, JOINTS, "delta_state", BY_NAME, None),
        ({"names": "a b c"}, JOINTS, "state", BY_NAME, None),
        # A feature is compared with another one of the state.
        (ARM, FIRST_TWO, ("state", [0, 1, 0]), OTHER, "'j1' is compared with 'x' of 'state', which has 'j1'"),
        (ARM, FIRST_TWO, ("state", [0, 3, 0]), OTHER, "'j1' is compared with 'x' of 'state'"),
        (ARM, joints(mask=[False, True, False]), ("state", [2, 1, 0]), OTHER, "'j2' is compared with 'y' of 'state'"),
        (ARM, FIRST_TWO, ("state", [2, 3, 0]), OTHER, None),
        (ARM, joints(mask=[False, False, True]), ("state", [0, 1, 0]), OTHER, None),  # the state has no gripper
        # Angles and rotations are subtracted as numbers.
        (YAW, JOINTS, "state", ANGLES, "features [0]"),
        (YAW, joints(angles=[True, False]), "state", ANGLES, None),
        (POSE, JOINTS, "state", TURNED, "features [3, 4, 5, 6] are a rotation's"),
        (POSE, STEPS, "state", TURNED, "features [3, 4, 5, 6] are a rotation's"),
        (AXES, JOINTS, "state", TURNED, "features [3, 4, 5] are a rotation's"),
        (POSES, JOINTS, "state", TURNED, "features [3, 4, 5, 6] are a rotation's"),
        (POSE, joints(mask=[True] * 3 + [False] * 4), "state", TURNED, None),
        (POSE, SE3, "state", TURNED, None),
        ({"names": "q0 q1 q2 q3 q4 q5 q6"}, JOINTS, "state", TURNED, None),
    ],
)
def test_conversions_that_look_wrong_are_warned_of(tmp_path, recwarn, facts, conversions, base, kind, message):
    open_with(tmp_path / "c", facts, conversions, base)
    messages = [str(warning.message) for warning in recwarn if kind in str(warning.message)]
    assert len(messages) == (1 if message is not None else 0) and all(message in text for text in messages)


def sources_with(folder, attributes):
    paths = [write_described(folder / str(i), "a b c d", attributes=facts) for i, facts in enumerate(attributes)]
    return Mixture([Source(path) for path in paths])


@pytest.mark.parametrize(
    ("names", "values", "message"),
    [
        ("rotation_type", ("quat_xyzw", "quat_wxyz"), "rotation_type = 'quat_xyzw' and 'quat_wxyz'"),
        ("rotation_type", ("quaternion", "quat_wxyz"), None),
        ("rotation_type", ("axis_angle", "euler_angles_rpy"), "rotation_type = 'axis_angle' and 'euler_angles_rpy'"),
        ("rotation_type", ("axis_angle", "rotation_vector"), None),
        ("rotation_type", ("euler_angles_rpy", "euler_xyz"), None),
        ("rotation_type", ("euler_angles_rpy", "euler_angles_ypr"), "'euler_angles_rpy' and 'euler_angles_ypr'"),
        ("absolute", (False, True), "got absolute = False and absolute = True"),
        ("absolute", (False, False), None),
        ("control_delta", (False, True), "got control_delta = True and control_delta = False"),
        ("absolute control_mode", (True, "pd_joint_delta_pos"), "got control_mode = 'pd_joint_delta_pos'"),
    ],
)
def test_sources_that_contradict_each_other_are_refused(tmp_path, names, values, message):
    sources = sources_with(tmp_path, [{name: value} for name, value in zip(2 * names.split(), values, strict=False)])
    options = {"batch_size": 4, "delta_timestamps": {"action": Window()}, "findings": None}
    if message is None:
        next(robocache.Loader(sources, **options))
        return
    with pytest.raises(robocache.ArgumentError, match=re.escape(message)):
        robocache.Loader(sources, **options)


def test_relative_sources_beside_an_undeclared_one_are_warned_of(tmp_path):
    sources = sources_with(tmp_path, ({"absolute": False}, {}, None))
    with pytest.warns(robocache.LoaderWarning, match="2 of 3 sources do not say that they are relative"):
        robocache.Loader(sources, batch_size=4, delta_timestamps={"action": Window()}, findings=None)


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
