"""resample_trajectories: out=, rule 16."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, poisoned, to_numpy, to_torch
from reference.random_streams import FLOATS
from reference.resample import resample as oracle
from reference.resample_calls import name_of, ramp, random_case

import robocache

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int32), np.dtype(bool)], ids=name_of)
@pytest.mark.parametrize("features", [3, 16])
def test_rule_16_out_is_written_whole_and_returned(rng, device, dtype, features):
    method = "linear" if dtype in FLOATS else "previous"
    case = random_case(rng, dtype, np.dtype(np.float64), features=features)
    expected, expected_valid = oracle(*case, method=method, extrapolate="nan", causal=True)
    tensors = [to_torch(x, device) for x in case]
    shape = (3, 37, features)
    kind = tensors[0].dtype
    gaps = poisoned((3, 37, features + 5), kind, device)
    for out in (
        poisoned(shape, kind, device),
        gaps[..., 2 : features + 2],
        poisoned((37, 3, features), kind, device).transpose(0, 1),
        poisoned((3, 2 * 37, features), kind, device)[:, ::2],
    ):
        options = {"method": method, "extrapolate": "nan", "causal": True}
        assert robocache.resample_trajectories(*tensors, out=out, **options) is out
        assert_same_bits(to_numpy(out), expected)
        returned, valid = robocache.resample_trajectories(*tensors, out=out, return_valid=True, **options)
        assert returned is out
        assert_same_bits(to_numpy(valid), expected_valid)
    raw = gaps.cpu().contiguous().view(torch.uint8).view(3, 37, features + 5, -1)
    untouched = torch.cat([raw[:, :, :2], raw[:, :, features + 2 :]], 2)
    assert (untouched == 0xA5).all(), "the gaps between out's rows were written"


def test_rule_16_out_as_numpy(rng):
    case = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    out = np.full((3, 37, 5), 77, np.float32)
    assert robocache.resample_trajectories(*case, out=out) is out
    assert_same_bits(out, oracle(*case)[0])
    wide = np.full((3, 37, 9), 77, np.float32)
    robocache.resample_trajectories(*case, out=wide[..., 2:7])
    assert_same_bits(wide[..., 2:7], oracle(*case)[0])
    assert (wide[..., :2] == 77).all()
    assert (wide[..., 7:] == 77).all()


def test_rule_16_out_of_two_dimensions(device):
    values, times = ramp()
    tensors = [to_torch(x, device) for x in (values, times, times + np.float32(0.5))]
    out = poisoned((5, 2), torch.float32, device)
    robocache.resample_trajectories(*tensors, out=out)
    assert_same_bits(to_numpy(out), oracle(values, times, times + np.float32(0.5))[0])


def test_rule_16_overlap_with_an_input_is_refused(device):
    storage = torch.zeros(4096, device=device)
    times = torch.arange(8, dtype=torch.float32, device=device)
    values = storage[:32].view(8, 4)
    for start in (0, 1, 31):
        with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*\bout\b)(?=.*overlap)"):
            robocache.resample_trajectories(values, times, times, out=storage[start : start + 32].view(8, 4))
    robocache.resample_trajectories(values, times, times, out=storage[32:64].view(8, 4))  # next to it is fine
    clock_storage = torch.arange(64, dtype=torch.float32, device=device)
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*\bout\b)(?=.*overlap)"):
        robocache.resample_trajectories(values, clock_storage[:8], times, out=clock_storage[4:36].view(8, 4))
    with pytest.raises(robocache.ArgumentError, match=r"(?s)(?=.*\bout\b)(?=.*overlap)"):
        robocache.resample_trajectories(values, times, clock_storage[:8], out=clock_storage[4:36].view(8, 4))


def test_rule_16_out_must_be_writable():
    values, times = ramp()
    out = np.zeros((5, 2), np.float32)
    out.flags.writeable = False
    with pytest.raises(robocache.ArgumentError, match=r"(?s)\bout\b.*(read-only|writ)"):
        robocache.resample_trajectories(values, times, times, out=out)


def test_rule_16_out_must_not_lie_over_itself(device):
    values, times = (to_torch(x, device) for x in ramp())
    with pytest.raises(robocache.ArgumentError, match=r"\bout\b"):
        robocache.resample_trajectories(values, times, times, out=torch.zeros(1, 2, device=device).expand(5, 2))


@pytest.mark.parametrize("elsewhere", ["times", "target_times", "lengths", "out"])
def test_rule_16_everything_is_on_one_device(cuda, elsewhere):
    tensors = {
        "values": torch.zeros(1, 4, 2, device=cuda),
        "times": torch.arange(4.0, device=cuda),
        "target_times": torch.arange(4.0, device=cuda),
        "lengths": torch.tensor([4], device=cuda),
        "out": torch.zeros(1, 4, 2, device=cuda),
    }
    tensors[elsewhere] = tensors[elsewhere].cpu()
    with pytest.raises(robocache.Error, match=rf"(?s)(?=.*{elsewhere})(?=.*cpu)(?=.*cuda)") as caught:
        robocache.resample_trajectories(**tensors)
    assert isinstance(caught.value, ValueError | TypeError)
