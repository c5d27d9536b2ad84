"""The action at a moment, from a policy's chunks, against a loop over all steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robocache
from robocache import Window
from robocache.live import Chunks

MS = 1_000_000
FADE = 40 * MS


def expected_action(chunks, moment, mode, decay, fade_begins):
    """Returns the action at a moment, from the last step of each chunk at or before the moment, unless the chunk is over.

    `fade_begins` keeps the first moment at which each chunk was used; None if no other chunk was used then, so nothing fades.
    """
    used = []
    for chunk in sorted(chunks, key=lambda chunk: chunk[0] + chunk[1][0]):
        anchor, offsets, actions = chunk
        stamps = [anchor + offset for offset in offsets]
        ends = [*stamps[1:], stamps[-1] + (stamps[-1] - stamps[-2] if len(stamps) > 1 else 1)]
        for begin, end, action in zip(stamps, ends, actions, strict=True):
            if begin <= moment < end:
                fade_begins.setdefault(id(chunk), moment if used else None)
                used.append((fade_begins[id(chunk)], action))
    if not used:
        return None
    if mode == "newest":
        return used[-1][1]
    if mode == "cross-fade":
        result = used[0][1]
        for begin, action in used[1:]:
            share = 1 if begin is None else min(1, (moment - begin) / FADE)
            result = (1 - share) * result + share * action
        return result
    weights = [np.exp(-decay * i) for i in range(len(used))]
    return sum(w * a for w, (_, a) in zip(weights, used, strict=True)) / sum(weights)


@settings(max_examples=90, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    mode=st.sampled_from(["newest", "ensemble", "cross-fade"]),
    decay=st.sampled_from([0.3, -0.3]),
)
def test_the_action_follows_the_rule(seed, mode, decay):
    rng = np.random.default_rng(seed)
    chunks, all_chunks, fade_begins = Chunks(mode, decay=decay, fade_s=FADE / 1e9), [], {}
    moment = 10**9
    starved = 0
    for _ in range(40):
        if rng.random() < 0.4:
            steps = int(rng.integers(1, 6))
            offsets = np.cumsum(rng.integers(1, 30, steps)) * MS - 10 * MS
            anchor = moment - int(rng.integers(0, 60)) * MS
            actions = rng.standard_normal((steps, 2))
            all_chunks.append((anchor, offsets.tolist(), actions))
            chunks.put(anchor, offsets / 1e9, actions)
        moment += int(rng.integers(0, 20)) * MS
        action, expected = chunks.at(moment), expected_action(all_chunks, moment, mode, decay, fade_begins)
        assert (action is None) == (expected is None)
        if expected is None:
            starved += 1
        else:
            np.testing.assert_allclose(action, expected, rtol=1e-11, atol=1e-13)
        assert chunks.starved == starved


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_actions_may_be_tensors(dtype):
    torch = pytest.importorskip("torch")
    chunks = Chunks("newest")
    chunks.put(0, [0, 0.1], torch.tensor([[[0.5], [2.0]]], dtype=getattr(torch, dtype), requires_grad=True))
    assert chunks.at(0) == 0.5 and chunks.at(100 * MS) == 2.0


def test_a_fade_goes_from_the_previous_chunk_to_the_newest():
    chunks = Chunks("cross-fade", fade_s=0.1)
    chunks.put(0, [0, 0.1, 0.2, 0.3], np.zeros((4, 1)))
    assert chunks.at(100 * MS) == 0
    chunks.put(110 * MS, [0, 0.1, 0.2, 0.3], np.ones((4, 1)))
    got = [chunks.at((120 + k) * MS)[0] for k in (0, 25, 50, 100, 150)]
    np.testing.assert_allclose(got, [0, 0.25, 0.5, 1, 1])


def test_a_new_chunk_continues_a_running_fade():
    chunks = Chunks("cross-fade", fade_s=0.1)
    for number, anchor in enumerate((0, 100, 150)):
        chunks.put(anchor * MS, [0, 1.0], np.full((2, 1), float(number)))
        got = chunks.at(anchor * MS)[0]
    assert got == 0.5
    assert chunks.at(175 * MS)[0] == 0.75 + 0.25 * (2 - 0.75)
    # A moment before the first request after a chunk's arrival does not use the chunk.
    chunks = Chunks("cross-fade", fade_s=0.1)
    for number in range(2):
        chunks.put(number * MS, [0, 1.0], np.full((2, 1), float(number)))
        chunks.at(50 * MS)
    assert chunks.at(20 * MS) == 0 and chunks.at(60 * MS)[0] == pytest.approx(0.1)
    # An older chunk that arrives late changes nothing after the fade to a newer chunk.
    chunks = Chunks("cross-fade", fade_s=0.1)
    chunks.put(100 * MS, [0, 1.0], np.ones((2, 1)))
    assert chunks.at(110 * MS) == 1
    chunks.put(0, [0, 1.0], np.zeros((2, 1)))
    assert chunks.at(120 * MS) == 1


@pytest.mark.parametrize("mode", ["ensemble", "cross-fade"])
@pytest.mark.parametrize("declared_by", ["method", "convert"])
def test_rotations_and_angles_are_mixed_the_shorter_way(tmp_path, rng, mode, declared_by):
    """A plain mean would be 0 for a quaternion and its negative, and would point backwards for 179 and -179 degrees."""
    scipy = pytest.importorskip("scipy.spatial.transform")
    turns = scipy.Rotation.random(200, random_state=4)
    rows = np.concatenate([rng.normal(size=(200, 3)), turns.as_quat(), rng.uniform(-3, 3, (200, 1))], 1)
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("action", np.arange(200) * 20 * MS, rows)
    if declared_by == "method":
        window = {"method": [(slice(0, 7), "pose"), (slice(7, 8), "angle")]}
    else:
        window = {
            "convert": [robocache.actions.Rotate(3, "quat_xyzw", "rot6d_rows")],
            "method": [(slice(7, 8), "angle")],
        }
    spec = robocache.Loader(
        tmp_path / "cache",
        batch_size=1,
        delta_timestamps={"action": Window.steps(50, horizon=2, **window)},
        device="cpu",
    ).spec
    nearby = turns[0] * scipy.Rotation.from_rotvec([0, 0.2, 0])
    first = np.array([1.0, 2, 3, *turns[0].as_quat(), np.radians(179)])
    second = np.array([3.0, 2, 1, *-nearby.as_quat(), np.radians(-177)])
    chunks = Chunks(mode, decay=0.0, fade_s=0.1, spec=spec, key="action")
    chunks.put(0, [0, 1.0], np.stack([first, first]))
    np.testing.assert_array_equal(chunks.at(0), first)
    chunks.put(10 * MS, [0, 1.0], np.stack([second, second]))
    chunks.at(20 * MS)
    action = chunks.at(70 * MS)  # the middle of the fade
    np.testing.assert_allclose(action[:3], [2, 2, 2])
    halfway = turns[0] * scipy.Rotation.from_rotvec([0, 0.1, 0])
    assert np.linalg.norm(action[3:7]) == pytest.approx(1)
    assert (scipy.Rotation.from_quat(action[3:7]).inv() * halfway).magnitude() < 1e-6
    assert action[7] == pytest.approx(np.radians(-179))


@pytest.mark.parametrize("mode", ["ensemble", "cross-fade"])
@pytest.mark.parametrize(
    "form", ["rotvec", "euler_xyz", "euler_ZYX", "matrix", "rot6d_rows", "rot6d_columns", "quat_wxyz"]
)
@pytest.mark.parametrize("conversion", ["se3", "rotate"])
def test_a_mixture_of_rotations_of_any_form_is_a_rotation(tmp_path, mode, form, conversion):
    """The plain means of numbers near half a turn are other rotations, or none."""
    scipy = pytest.importorskip("scipy.spatial.transform")

    def numbers(rotation):
        matrix = rotation.as_matrix()
        if form.startswith("euler"):
            return rotation.as_euler(form.removeprefix("euler_"))
        flat = {"rot6d_rows": matrix[:2].ravel(), "rot6d_columns": matrix[:, :2].T.ravel(), "matrix": matrix.ravel()}
        return {"rotvec": rotation.as_rotvec(), "quat_wxyz": rotation.as_quat()[[3, 0, 1, 2]], **flat}[form]

    def rotation_of(values):
        if form.startswith("euler"):
            return scipy.Rotation.from_euler(form.removeprefix("euler_"), values)
        if form in ("rotvec", "quat_wxyz"):
            return (
                scipy.Rotation.from_rotvec(values)
                if form == "rotvec"
                else scipy.Rotation.from_quat(values[[1, 2, 3, 0]])
            )
        rows = values.reshape(-1, 3)[:2] if form != "rot6d_columns" else values.reshape(2, 3)
        matrix = np.stack([*rows, np.cross(*rows)])
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-12)
        if form == "matrix":
            np.testing.assert_allclose(values[6:], matrix[2], atol=1e-12)
        return scipy.Rotation.from_matrix(matrix if form != "rot6d_columns" else matrix.T)

    turns = scipy.Rotation.from_rotvec([[0, 0, np.pi - 0.1], [0, 0, -np.pi + 0.3]])  # 0.4 apart
    axis = scipy.Rotation.from_rotvec([0.3, -0.2, 0.1])
    rows = np.array([[1.0, 2, 3, *numbers(axis * turn)] for turn in turns])
    rows[1, :3] = [3, 2, 1]
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        for key in ("state", "action"):
            episode.append(key, np.arange(60) * 20 * MS, np.repeat(rows, 30, 0))
    convert = {
        "se3": [robocache.actions.Relative("se3", rotation=form)],
        "rotate": [robocache.actions.Rotate(3, form, "rotvec" if form != "rotvec" else "matrix")],
    }[conversion]
    held = {"method": [(slice(3, rows.shape[1]), "previous")]}
    spec = robocache.Loader(
        tmp_path / "cache",
        batch_size=1,
        delta_timestamps={
            "state": Window(method="previous"),
            "action": Window.steps(
                50, horizon=2, convert=convert, **held, **({"base": "state"} if conversion == "se3" else {})
            ),
        },
        device="cpu",
    ).spec
    chunks = Chunks(mode, decay=0.0, fade_s=0.1, spec=spec, key="action")
    chunks.put(0, [0, 1.0], rows[[0, 0]])
    np.testing.assert_array_equal(chunks.at(0), rows[0])
    chunks.put(10 * MS, [0, 1.0], rows[[1, 1]])
    chunks.at(20 * MS)
    action = chunks.at(70 * MS)  # the middle of the fade
    np.testing.assert_allclose(action[:3], [2, 2, 2])
    half = axis * scipy.Rotation.from_rotvec([0, 0, np.pi + 0.1])
    assert (rotation_of(action[3:]).inv() * half).magnitude() < 1e-7


def test_chunks_that_nobody_asks_for_are_forgotten():
    chunks = Chunks("ensemble", decay=0.0)
    for k in range(1500):
        chunks.put(k, [0.0, 1.0], np.full((2, 1), float(k)))
    assert chunks.at(2000) == np.arange(1500 - 1024, 1500).mean()


def test_remaining_and_frozen_steps():
    chunks = Chunks()
    assert chunks.at(5) is None and chunks.starved == 1 and chunks.covered_until_ns is None and chunks.frozen(9) == 0
    chunks.put(0, [0.0, 0.02, 0.04, 0.06], np.arange(4.0)[:, None])
    stamps, actions = chunks.leftover(20 * MS)
    assert stamps.tolist() == [40 * MS, 60 * MS] and actions.tolist() == [[2], [3]]
    assert chunks.frozen(45 * MS) - chunks.frozen(20 * MS) == 1
    assert chunks.covered_until_ns == 80 * MS
    assert chunks.at(79 * MS) == [3] and chunks.at(80 * MS) is None and chunks.starved == 2


def test_a_policys_output_is_converted_to_recorded_values(tmp_path, rng):
    time_ns = np.arange(200) * 20 * MS
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        for name in ("state", "action"):
            episode.append(name, time_ns, rng.normal(3, 2, (200, 3)).astype(np.float32))
    windows = {
        "state": Window(),
        "action": Window.steps(50, horizon=4, normalize="mean_std"),
    }
    loader = robocache.Loader(
        tmp_path / "cache", batch_size=1, delta_timestamps=windows, framework="numpy", device="cpu", shuffle=False
    )
    batch = loader.gather([7])
    chunks = Chunks(spec=loader.spec, key="action")
    chunks.put(int(batch["time_ns"][0]), None, batch["action"], batch=batch)
    rows = robocache.open(tmp_path / "cache").episode(0)["action"][1]
    for step in range(4):
        np.testing.assert_allclose(chunks.at((7 + step) * 20 * MS), rows[7 + step], atol=2e-6)
    with pytest.raises(robocache.ArgumentError, match=r"expected the one of the moment 160000000,"):
        chunks.put(8 * 20 * MS, None, batch["action"], batch=batch)


def test_steps_in_rows_have_no_seconds(tmp_path):
    with robocache.Writer(tmp_path / "cache") as writer, writer.episode() as episode:
        episode.append("action", np.arange(200) * 20 * MS, np.ones((200, 3), np.float32))
    window = Window(range(4), rows=True)
    spec = robocache.Loader(tmp_path / "cache", batch_size=1, delta_timestamps={"action": window}, device="cpu").spec
    chunks = Chunks(spec=spec, key="action")
    with pytest.raises(robocache.ArgumentError, match="offsets_s: expected seconds, since the steps of 'action'"):
        chunks.put(0, None, np.ones((4, 3)))
    chunks.put(0, [0.0, 0.02, 0.04, 0.06], np.ones((4, 3)))
    assert chunks.at(0).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, [0.0, 0.0], np.zeros((2, 1))), "offsets_s: expected ascending"),
        ((0, [np.nan, -0.1], np.zeros((2, 1))), r"offsets_s: expected \[T\] seconds within \+-1e9, got \[nan, -0\.1\]"),
        ((0, [-np.inf, -0.1], np.zeros((2, 1))), r"offsets_s: expected \[T\] seconds within"),
        ((0, [0.0, 1e10], np.zeros((2, 1))), r"offsets_s: expected \[T\] seconds within"),
        ((0, [[0.0], [0.1]], np.zeros((2, 1))), r"offsets_s: expected \[T\] seconds within"),
        ((2**63 - 1, [0.0], np.zeros((1, 1))), r"time_ns: expected stamps between -2\^62 and 2\^62 ns"),
        ((2**63 - 1, [0.0, 0.1], np.zeros((2, 1))), "time_ns: expected ascending"),
        ((0, [0.0], np.zeros((2, 1))), r"actions: expected \[1, D\], got \[2, 1\]"),
        ((0, [0.0], np.zeros((1, 2))), "actions: expected 1 features, got 2"),
        ((0, [0.0], np.full((1, 1), np.nan)), "actions: expected finite"),
        ((0, None, np.zeros((1, 1))), "offsets_s: expected seconds"),
    ],
)
def test_invalid_chunks_are_refused(arguments, message):
    chunks = Chunks()
    chunks.put(0, [0.0, 0.1], np.zeros((2, 1)))
    with pytest.raises(robocache.ArgumentError, match=message):
        chunks.put(*arguments)
    for actions in ([["a"]], [[0.0], [0.0, 1.0]]):
        with pytest.raises(robocache.ArgumentTypeError, match="actions: expected an array of numbers, got "):
            chunks.put(0, [0.0, 0.1], actions)
    with pytest.raises(robocache.ArgumentError, match="mode: expected 'newest', 'ensemble'"):
        Chunks("mean")
    with pytest.raises(robocache.ArgumentError, match="expected both or none"):
        Chunks(key="action")


def test_long_chunks_are_kept_exactly():
    chunks, offsets = Chunks(), np.arange(800) * 0.001
    for k in range(20):
        actions = np.random.default_rng(k).random((800, 3))
        chunks.put(k * 20 * MS, offsets, actions)
        stamps, remaining = chunks.leftover(k * 20 * MS - 1)
        np.testing.assert_array_equal(stamps, k * 20 * MS + np.arange(800) * MS)
        np.testing.assert_array_equal(remaining, actions)
