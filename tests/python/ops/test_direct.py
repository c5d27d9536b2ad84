"""Calls on torch's tensors go to the library by a way of their own: the same arrays and errors, and nothing kept."""

import gc
import os
import sys
import threading
import weakref
from pathlib import Path

import pytest
from reference.compare import assert_same_bits, to_numpy

import robocache
from robocache import _lib, errors

torch = pytest.importorskip("torch")

_OPERATIONS = "fuse", "integrate_tsdf", "resample", "voxelize"


@pytest.fixture
def direct():
    if _lib._torch_parts() is None:
        pytest.skip("this torch hands its tensors to nobody in C")
    return _lib.direct("resample_trajectories")


def _inputs(device):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 9, 4, generator=generator).to(device)
    times = torch.rand(3, 9, generator=generator).sort().values.to(device)
    return values, times, torch.linspace(-0.1, 1.1, 7, device=device)


_OPTIONS = "linear", "clamp", False, None, None, None, None, None, None, "not-a-knot"


def _calls(device):
    values, times, targets = _inputs(device)
    points = values.reshape(-1, 4)
    streams, named = [(values, times)] * 3, {"a": (values, times), "b": (values[..., :1], times)}
    grid = {"grid_min": (-1.0, -1, -1.0), "voxel_size": 0.5, "grid_size": (4, 4, 5)}
    tsdf = {"grid_min": (-2.0, -2.0, -2.0), "voxel_size": 0.5, "truncation": 1.0}
    modes = ["sum", "count"]

    def integrated(pose):
        arrays = torch.zeros(8, 8, 8, device=device), torch.zeros(8, 8, 8, device=device)
        robocache.integrate_tsdf(*arrays, points[:, :3].contiguous(), pose, **tsdf)
        return arrays

    fuse, voxelize = robocache.fuse_multimodal, robocache.voxelize_pointcloud
    return [
        robocache.resample_trajectories(values, times, targets, max_gap=0.2, extrapolate="nan"),
        robocache.resample_trajectories(values, times, targets, method="previous", tolerance=1, return_valid=True),
        robocache.resample_trajectories(values, times, targets, out=torch.empty(3, 7, 4, device=device)),
        fuse(streams, targets),
        fuse(streams, targets, return_valid=True, return_age=True, scale=2.0),
        fuse(named, targets, output="dict", return_age=True, method={"b": "next"}),
        fuse(streams, targets, out=torch.empty(3, 7, 12, device=device), return_valid=True),
        voxelize(points, **grid),
        voxelize(points, **grid, mode=modes, return_dropped=True),
        voxelize(points, **grid, mode="mean", fill=7, out=torch.empty(4, 4, 5, 1, device=device)),
        integrated(torch.eye(4, dtype=torch.float64)),
        integrated(torch.eye(4, device=device)),
    ]


def _arrays(made):
    if isinstance(made, torch.Tensor):
        return [made]
    return [array for part in (made.values() if isinstance(made, dict) else made) for array in _arrays(part)]


def test_both_ways_give_the_same(monkeypatch, direct, device):
    taken = []
    for name in _OPERATIONS:
        modules = {"resample": "resample_trajectories", "fuse": "fuse_multimodal", "voxelize": "voxelize_pointcloud"}
        module = sys.modules[f"robocache.ops.{name}"]
        of_library = _lib.direct(modules.get(name, name))

        def seen(*arguments, of_library=of_library):
            made = of_library(*arguments)
            taken.append(made is not NotImplemented)
            return made

        monkeypatch.setattr(module, f"_{name.removesuffix('_tsdf')}_directly", seen)
    one_way = _calls(device)
    assert taken.count(True) == 11  # one stream's option goes the other way
    for name in _OPERATIONS:
        module = sys.modules[f"robocache.ops.{name}"]
        monkeypatch.setattr(module, f"_{name.removesuffix('_tsdf')}_directly", lambda *_: NotImplemented)
    other_way = _calls(device)
    for made, expected in zip(one_way, other_way, strict=True):
        assert type(made) is type(expected)
        for a, b in zip(_arrays(made), _arrays(expected), strict=True):
            assert a.device == b.device
            assert a.is_contiguous()
            assert_same_bits(to_numpy(a), to_numpy(b))


def test_what_is_not_torchs_own_or_is_differentiated_is_left_alone(direct):
    values, times, targets = _inputs("cpu")
    taken = values, times, targets, *_OPTIONS
    assert direct(*taken) is not NotImplemented

    def with_first(first):
        return direct(first, *taken[1:])

    class Text(str):
        pass

    recorded = values.clone().requires_grad_()
    mirrored = torch.complex(values, values).conj().imag
    for other in (values.numpy(), torch.nn.Parameter(values, requires_grad=False), recorded, mirrored, [], 2**63):
        assert with_first(other) is NotImplemented
    for other in (values.to_sparse(), values.to("meta"), Text("linear"), "a\0b", "\ud800", b"linear", object()):
        assert with_first(other) is NotImplemented
    assert direct() is NotImplemented
    assert direct(1, 2.0, "three") is NotImplemented
    assert direct(*[values] * 33) is NotImplemented
    assert direct(*[None] * 200, values) is NotImplemented
    with torch.autograd.forward_ad.dual_level():
        assert direct(*taken) is NotImplemented
    with torch.no_grad():
        assert with_first(recorded) is not NotImplemented
    assert torch.func.vmap(lambda x: torch.tensor(with_first(x) is NotImplemented))(values[None]).all()
    assert sys.exc_info() == (None, None, None)


def test_errors_are_those_of_the_other_way(direct):
    values, times, targets = _inputs("cpu")
    of_library = _lib.function("resample_trajectories")
    wrong = [
        (values, times[:2], targets, *_OPTIONS),
        (values, times, targets, "lineär", *_OPTIONS[1:]),
        (values, times.half(), targets, *_OPTIONS),
        (values, 1, targets, *_OPTIONS),
        (values, None, targets, *_OPTIONS),
        (values, times, targets, *_OPTIONS[:2], 1.5, *_OPTIONS[3:]),
        (values, times, targets),
    ]
    for arguments in wrong:
        with pytest.raises(errors.Error) as expected:
            of_library(*arguments)
        with pytest.raises(type(expected.value)) as came:
            direct(*arguments)
        assert type(came.value) is type(expected.value)
        assert str(came.value) == str(expected.value)


def test_nothing_of_a_call_is_kept(direct):
    values, times, targets = _inputs("cpu")
    method = "".join(["lin", "ear"])  # a str of its own
    calls = [
        (values, times, targets, method, *_OPTIONS[1:]),
        (values, times, targets, method, *_OPTIONS[1:-1], values.numpy()),
        (values, times[:2], targets, method, *_OPTIONS[1:]),
    ]
    watched = values, times, targets, method, None, False, torch.Tensor, NotImplemented

    def counts():
        gc.collect()
        return [sys.getrefcount(one) for one in watched]

    def call_all():
        for arguments in calls:
            try:
                made = direct(*arguments)
            except errors.ArgumentError:
                continue
            if made is not NotImplemented:
                gone = weakref.ref(made)
                del made
                assert gone() is None

    call_all()
    before = counts()
    for _ in range(200):
        call_all()
    after = counts()
    assert max(b - a for a, b in zip(before, after, strict=True)) < 100


def test_the_memory_of_what_a_call_made_goes_with_it(direct):
    values, times, targets = torch.ones(2, 1), torch.arange(2.0), torch.zeros(1 << 20)

    def call_all():
        for _ in range(40):
            direct(values, times, targets, *_OPTIONS)
            robocache.fuse_multimodal([(values, times)], targets, return_valid=True)
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    before = call_all()
    assert call_all() - before < 60e6  # of 360 MB made


def test_threads_call_at_the_same_time(direct):
    values, times, targets = _inputs("cpu")
    expected = direct(values, times, targets, *_OPTIONS)
    wrong = []

    def work():
        for _ in range(300):
            if not torch.equal(direct(values, times, targets, *_OPTIONS), expected):
                wrong.append("values")
            with pytest.raises(errors.ArgumentError, match="times"):
                direct(values, times[:2], targets, *_OPTIONS)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_work_is_queued_on_the_current_stream(direct, device):
    if device == "cpu":
        pytest.skip("the CPU has no streams")
    values, times, targets = _inputs(device)
    expected = direct(values, times, targets, *_OPTIONS)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        late = values * 2
        made = direct(late, times, targets, *_OPTIONS)
        assert not side.query()
    side.synchronize()
    assert torch.equal(made, expected * 2)
