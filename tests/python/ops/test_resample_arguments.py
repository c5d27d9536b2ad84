"""resample_trajectories: shapes, types, strides and lengths, rule 15."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, name_of, to_numpy, to_torch
from reference.random_streams import FLOATS
from reference.resample import resample as oracle
from reference.resample_calls import check, each_clock, random_case, resample

import robocache

torch = pytest.importorskip("torch")


def memory_forms(tensor):
    """Yields (name, the same values with other strides)."""
    yield "contiguous", tensor.contiguous()
    if tensor.ndim == 3:
        yield "batch and time swapped", tensor.transpose(0, 1).contiguous().transpose(0, 1)
        yield "time and feature swapped", tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if tensor.ndim > 1:
        wide = torch.empty(*tensor.shape[:-1], 2 * tensor.shape[-1] + 1, dtype=tensor.dtype, device=tensor.device)
        wide.copy_(torch.cat([tensor, tensor, tensor[..., :1]], -1).flip(-1))
        wide[..., : tensor.shape[-1]] = tensor
        yield "gaps between rows", wide[..., : tensor.shape[-1]]
    spread = torch.repeat_interleave(tensor, 2, dim=-1)
    yield "every second element", spread[..., ::2]
    for offset in (1, 2, 3):
        flat = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=tensor.device)
        view = flat[offset:].view(tensor.shape)
        view.copy_(tensor)
        yield f"misaligned by {offset} elements", view


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.uint8)], ids=name_of)
@pytest.mark.parametrize("features", [3, 16])
def test_rule_15_strides_and_alignment_change_nothing(rng, device, dtype, features):
    values, times, targets = random_case(rng, dtype, np.dtype(np.float64), features=features)
    method = "linear" if dtype in FLOATS else "nearest"
    expected, expected_valid = oracle(values, times, targets, method=method)
    tensors = [to_torch(x, device) for x in (values, times, targets)]
    for position in range(3):
        for name, form in memory_forms(tensors[position]):
            arguments = [*tensors[:position], form, *tensors[position + 1 :]]
            out, valid = robocache.resample_trajectories(*arguments, method=method, return_valid=True)
            assert_same_bits(to_numpy(out), expected, name)
            assert_same_bits(to_numpy(valid), expected_valid, name)


def test_rule_15_stride_0(rng, device):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float32), batch=1)
    single = [to_torch(x, device) for x in (values, times, targets)]
    out, valid = robocache.resample_trajectories(*(x.expand(6, *x.shape[1:]) for x in single), return_valid=True)
    expected, expected_valid = oracle(values, times, targets)
    for row in range(6):
        assert_same_bits(to_numpy(out)[row], expected[0])
        assert_same_bits(to_numpy(valid)[row], expected_valid[0])
    time_constant = single[0][:, :1].expand(-1, values.shape[1], -1)
    feature_constant = single[0][..., :1].expand(-1, -1, 4)
    for form in (time_constant, feature_constant):
        out = robocache.resample_trajectories(form, *single[1:])
        assert_same_bits(to_numpy(out), oracle(to_numpy(form), times, targets)[0])


def test_rule_15_a_stride_0_batch_is_not_copied(device):
    """A copy would have half a TiB."""
    values = torch.rand(1, 1024, 1024, device=device).expand(2**17, -1, -1)
    times = torch.arange(1024, dtype=torch.float32, device=device)
    out = robocache.resample_trajectories(values, times, times[:1] + 0.5)
    assert out.shape == (2**17, 1, 1024)
    assert torch.equal(out[0], out[-1])


def test_rule_15_negative_strides(rng):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    out = robocache.resample_trajectories(values[::-1, :, ::-1], times[::-1], targets[::-1])
    assert_same_bits(out, oracle(values[::-1, :, ::-1], times[::-1], targets[::-1])[0])


@each_clock
@pytest.mark.parametrize("samples", [7, 100])
def test_more_short_rows_than_a_gpu_runs_at_once(rng, device, clock, samples):
    """A block of threads takes several rows, the last block fewer."""
    for features, count in ((3, 5), (8, 2)):
        case = random_case(
            rng, np.dtype(np.float32), clock, batch=2117, samples=samples, targets=count, features=features
        )
        check(*case, device)


def test_rule_15_output_offsets_pass_2_31(device):
    samples, count, features = 3, 70_001, 10_300
    values = torch.randint(0, 255, (1, samples, features), dtype=torch.uint8, device=device).expand(3, -1, -1)
    times = torch.tensor([0, 10, 20], dtype=torch.int64, device=device)
    targets = torch.arange(count, device=device) % 27 - 3
    out = robocache.resample_trajectories(values, times, targets, method="previous")
    assert out.numel() > 2**31
    for row in (0, 2):
        for k in (0, 1, 2, 12, 12345, count - 1):
            sample = min(max(int(targets[k]) // 10, 0), 2)
            assert torch.equal(out[row, k], values[0, sample]), (row, k)


def test_rule_15_input_offsets_pass_2_31(tmp_path):
    samples, features = 300_000, 16_384
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(samples * features)
    values = np.memmap(path, np.uint8, "r+", shape=(samples, features))
    for s in (0, 131_072, 262_145, samples - 1):
        values[s] = np.arange(features) * (s + 1) % 251
    targets = np.array([0, 131_072, 262_145, samples - 1, samples + 5])
    out = robocache.resample_trajectories(values, np.arange(samples), targets, method="nearest")
    for k, s in enumerate([0, 131_072, 262_145, samples - 1, samples - 1]):
        np.testing.assert_array_equal(out[k], values[s])


def test_rule_15_a_clock_of_one_dimension_serves_every_row(rng, device):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    check(values, times[0], targets, device)
    check(values, times, targets[0], device)
    check(values, times[0], targets[0], device)
    check(values[0], times[0], targets[0], device)
    assert resample(values[0], times[0], targets[0], device)[0].shape == (37, 5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rule_15_lengths(rng, device, dtype):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64), batch=4)
    check(values, times, targets, device, lengths=np.array([0, 1, 16, 17], dtype))


def test_rule_15_samples_past_the_length_are_not_read(rng, device):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64), batch=4, special=False)
    lengths = np.array([3, 9, 1, 17])
    expected = resample(values, times, targets, device, lengths=lengths)
    for row, length in enumerate(lengths):
        values[row, length:], times[row, length:] = np.nan, -1e9
    for array, expected_array in zip(resample(values, times, targets, device, lengths=lengths), expected, strict=True):
        assert_same_bits(array, expected_array)


def test_rule_15_lengths_beyond_the_samples_are_cut_on_cuda(rng, cuda):
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    result = resample(values, times, targets, cuda, lengths=np.array([-5, 2**40, 4]))
    expected = oracle(values, times, targets, lengths=np.array([0, 17, 4]))
    for array, expected_array in zip(result, expected, strict=True):
        assert_same_bits(array, expected_array)
