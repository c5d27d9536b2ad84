"""resample_trajectories: out=, rule 16."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, name_of, poisoned, to_numpy, to_torch
from reference.random_streams import FLOATS
from reference.resample import resample as oracle
from reference.resample_calls import ramp, random_case

import robocache

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.int32), np.dtype(bool)], ids=name_of)
@pytest.mark.parametrize("features", [3, 16])
def test_rule_16_out_is_completely_written_and_returned(rng, device, dtype, features):
    method = "linear" if dtype in FLOATS else "previous"
    case = random_case(rng, dtype, np.dtype(np.float64), features=features)
    expected, expected_valid = oracle(*case, method=method, extrapolate="nan", causal=True)
    tensors = [to_torch(x, device) for x in case]
    shape = (3, 37, features)
    torch_dtype = tensors[0].dtype
    memory = poisoned((3, 37, features + 5), torch_dtype, device)
    for out in (
        poisoned(shape, torch_dtype, device),
        memory[..., 2 : features + 2],
        poisoned((37, 3, features), torch_dtype, device).transpose(0, 1),
        poisoned((3, 2 * 37, features), torch_dtype, device)[:, ::2],
    ):
        options = {"method": method, "extrapolate": "nan", "causal": True}
        assert robocache.resample_trajectories(*tensors, out=out, **options) is out
        assert_same_bits(to_numpy(out), expected)
        returned, valid = robocache.resample_trajectories(*tensors, out=out, return_valid=True, **options)
        assert returned is out
        assert_same_bits(to_numpy(valid), expected_valid)
    raw = memory.cpu().contiguous().view(torch.uint8).view(3, 37, features + 5, -1)
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
