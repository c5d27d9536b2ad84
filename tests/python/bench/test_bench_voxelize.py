"""What the benchmark of voxels is made of: its clouds, its scans and its peers' check."""

import importlib
import os
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def bench(monkeypatch):
    """A module of bench by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


# ---- Clouds ----

CORNER, EXTENT = (-3.2, -1.6, 0.5), (6.4, 3.2, 1.6)


def make_cloud(bench, kind, points, seed=0):
    return bench("inputs").make_cloud(kind, points, CORNER, EXTENT, torch.Generator().manual_seed(seed), "cpu")


@pytest.mark.parametrize("kind", ["uniform", "gaussian"])
@pytest.mark.parametrize("voxels", [128, 1000])
def test_every_point_of_these_clouds_is_in_the_grid(bench, kind, voxels):
    points = make_cloud(bench, kind, 100_001).numpy()
    assert points.shape == (100_001, 3)
    assert points.dtype == np.float32
    size = np.array(EXTENT, np.float32) / np.float32(voxels)
    where = np.floor((points - np.array(CORNER, np.float32)) / size)
    assert (where >= 0).all()
    assert (where < voxels).all()


def test_the_clouds_are_spread_as_they_say(bench):
    unit = (make_cloud(bench, "gaussian", 200_000).numpy() - CORNER) / EXTENT
    # Cut at four sigma, which takes less than 0.001 of it; four standard errors of 200,000 samples are below 0.001 too.
    np.testing.assert_allclose(unit.mean(0), 0.5, atol=0.001)
    np.testing.assert_allclose(unit.std(0), 1 / 8, atol=0.001)
    points = make_cloud(bench, "spread", 200_000).numpy()
    inside = ((points >= CORNER) & (points < np.add(CORNER, EXTENT))).all(1).mean()
    expected = np.prod(EXTENT) / 20**3
    assert abs(inside - expected) < 5 * np.sqrt(expected / 200_000)
    assert not torch.equal(make_cloud(bench, "uniform", 9), make_cloud(bench, "uniform", 9, seed=1))


def test_the_lidar_scans_column_after_column(bench):
    inputs = bench("inputs")
    points = inputs.spinning_lidar(2 * inputs.AZIMUTHS * inputs.BEAMS, torch.Generator().manual_seed(0), "cpu").double()
    assert points.isfinite().all()
    half = inputs.YARD_M / 2 + 0.2  # ten sigma of the range's noise
    assert (points[:, :2].abs() <= half).all()
    assert (points[:, 2] >= -0.2).all()
    assert (points[:, 2] <= inputs.WALL_M).all()

    turns = points.view(2, inputs.AZIMUTHS, inputs.BEAMS, 3)
    heading = 1.5 / 5 * torch.arange(2 * inputs.AZIMUTHS) / (10 * inputs.AZIMUTHS)
    eye = torch.stack([5 * heading.cos(), 5 * heading.sin(), torch.full_like(heading, 1.8)], 1).view(2, -1, 1, 3)
    ray = turns - eye
    azimuth = torch.atan2(ray[..., 1], ray[..., 0])
    steps = torch.remainder(azimuth[:, 1:] - azimuth[:, :-1], 2 * torch.pi) - 2 * torch.pi  # clockwise
    # A float32 coordinate of up to 32 m is 2e-6 m off, at no less than 3 m across the ray.
    torch.testing.assert_close(steps, torch.full_like(steps, -2 * torch.pi / inputs.AZIMUTHS), rtol=0, atol=1e-5)
    elevation = torch.atan2(ray[..., 2], ray[..., :2].norm(dim=-1))
    assert (elevation.diff(dim=-1) > 0).all()
    distance = ray.norm(dim=-1)
    assert (distance < 8).double().mean() > 0.2  # dense near, and still some far
    assert (distance > 25).double().mean() > 0.1


# ---- Scans ----


def test_scans_travel_as_arrays(bench, rng, tmp_path, monkeypatch):
    scans = bench("scans")
    monkeypatch.delenv("ROBOCACHE_TEST_DATA", raising=False)
    assert scans.available() == []
    points = rng.normal(size=(77, 3)).astype(np.float32)
    (tmp_path / "here").mkdir()
    np.save(tmp_path / "here/kinect.npy", points)
    for folder, other in (("here", "there"), ("there", "further")):
        monkeypatch.setenv("ROBOCACHE_TEST_DATA", str(tmp_path / folder))
        assert scans.available() == ["depth camera"]
        np.testing.assert_array_equal(scans.load("depth camera"), points)
        monkeypatch.setattr("sys.argv", ["scans.py", str(tmp_path / other)])
        scans.main()


def test_the_real_scans(bench):
    if "ROBOCACHE_TEST_DATA" not in os.environ:
        pytest.skip("ROBOCACHE_TEST_DATA is not set")
    scans = bench("scans")
    found = {name: scans.load(name) for name in scans.available()}
    assert {name: points.shape for name, points in found.items()} == {
        "outdoor lidar": (69_792, 3),
        "airborne laser": (518_056, 3),
        "depth camera": (640 * 480, 3),
    }
    assert np.isfinite(found["outdoor lidar"]).all()
    east, north, height = found["airborne laser"].T  # of a site near Stuttgart, in UTM zone 32
    assert (east > 513_000).all() and (east < 514_000).all()
    assert (north > 5_403_000).all() and (north < 5_404_000).all()
    assert (height > 180).all() and (height < 360).all()
    lost = np.isnan(found["depth camera"])
    assert (lost[:, 2] == lost.any(1)).all()
    assert 0.1 < lost.any(1).mean() < 0.9


# ---- What is checked before anything is timed ----

GRID = {"grid_min": (0.0, 0.0, 0.0), "voxel_size": (0.3, 0.3, 0.3), "grid_size": (4, 3, 5)}
MODES = ("count", "occupancy", "mean", "max")


@pytest.fixture
def checked(bench, rng):
    """A check, and an answer that passes it."""
    points = rng.uniform(-0.2, 1.6, (500, 3)).astype(np.float32)
    features = torch.from_numpy(rng.normal(size=(500, 2)).astype(np.float32))
    check = bench("voxelize_check").DenseCheck(GRID, MODES, points, features, None)
    answer = {mode: grid.clone() for mode, grid in check.expected.items()}
    answer["mean"] = answer["mean"].float()
    assert check.ours(answer)["largest_error_over_bound"] <= 1
    assert check.peer(answer, answer, moved=0) == {"largest_error_over_bound": 0.0}
    assert int(answer["count"].sum()) not in (0, 500)
    return check, answer


@pytest.mark.parametrize("mode", MODES)
def test_one_wrong_voxel_is_found(checked, mode):
    check, answer = checked
    wrong = {name: grid.clone() for name, grid in answer.items()}
    voxel = wrong[mode][1, 2, 3]
    wrong[mode][1, 2, 3] = ~voxel if mode == "occupancy" else voxel + 1 if mode == "count" else voxel * (1 + 2.0**-20)
    with pytest.raises(AssertionError, match=f"{mode} differs from robocache in 1 voxels, 0 may"):
        check.ours(wrong)
    if mode != "mean":  # a peer's may be that far off
        with pytest.raises(AssertionError, match="in 1 voxels"):
            check.peer(answer, wrong, moved=0)
    check.peer(answer, wrong, moved=1)
    wrong[mode] = wrong[mode].double() * float("nan") if mode == "mean" else ~wrong[mode].bool()
    with pytest.raises(AssertionError, match=f"{mode} differs"):
        check.peer(answer, wrong, moved=1)


def test_the_peers_agree_with_one_another(bench, rng):
    numpy, peer = bench("peers.voxelize_numpy"), bench("peers.voxelize_torch")
    points = rng.uniform(-0.2, 1.6, (700, 4)).astype(np.float32)
    points[3, 1] = np.nan
    points[4, 2] = np.inf
    cell = numpy.cells(points, *GRID.values())
    grid = peer.grid_on(torch.from_numpy(points), *GRID.values())
    np.testing.assert_array_equal(peer.cells(torch.from_numpy(points), grid), cell)
    by_hand = np.zeros((4, 3, 5), np.int32)
    for p in points[:, :3]:
        where = np.floor((p - np.float32(0)) / np.float32(0.3))
        if np.isfinite(where).all() and (where >= 0).all() and (where < (4, 3, 5)).all():
            by_hand[tuple(where.astype(int))] += 1
    for count in (numpy.count, numpy.count_by_add_at):
        np.testing.assert_array_equal(count(cell, (4, 3, 5)), by_hand)
    for mine, theirs in zip(
        numpy.hard(points, *GRID.values(), 3), peer.hard(torch.from_numpy(points), grid, 3), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


HardVoxels = namedtuple("HardVoxels", "coords features counts num_voxels")


def test_hard_voxels_are_compared_bit_for_bit(bench, rng):
    check = bench("voxelize_check").check_hard
    points = rng.uniform(-0.2, 1.6, (700, 4)).astype(np.float32)
    parts = bench("peers.voxelize_numpy").hard(points, *GRID.values(), 3)
    room = [torch.from_numpy(np.concatenate([part, np.zeros_like(part[:5])])) for part in parts]
    check(HardVoxels(*room, torch.tensor(len(parts[0]))), parts)
    with pytest.raises(AssertionError, match="voxels where robocache has"):
        check(HardVoxels(*room, torch.tensor(len(parts[0]) - 1)), parts)
    for place, name in enumerate(("coords", "features", "counts")):
        other = [part.copy() for part in parts]
        other[place].reshape(-1)[-1] += 1
        with pytest.raises(AssertionError, match=f"{name} differ"):
            check(HardVoxels(*room, torch.tensor(len(parts[0]))), tuple(other))


def test_centroids_are_compared_voxel_by_voxel(bench, rng):
    check = bench("voxelize_check").check_centroids
    points = torch.from_numpy(rng.uniform(-2, 2, (700, 3)).astype(np.float32))
    made = bench("peers.voxelize_numpy").centroids(points.numpy(), (-3.0,) * 3, 0.5)
    options = {"origin": (-3.0,) * 3, "voxel_m": 0.5, "points": points}
    ours = torch.from_numpy(made.astype(np.float32))
    assert check(ours, made[::-1].copy(), moved=0, **options)["largest_error_over_bound"] <= 1
    with pytest.raises(AssertionError, match="in 1 voxels"):
        check(ours, made[1:], moved=0, **options)
    made[0, 0] += 0.01 * np.sign(np.floor(made[0, 0]) + 0.25 - made[0, 0] % 0.5)  # stays in its voxel
    with pytest.raises(AssertionError, match="in 1 voxels"):
        check(ours, made, moved=0, **options)
