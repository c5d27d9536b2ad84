"""fuse_multimodal: shapes, strides and lengths, rule 15."""

import itertools

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.fuse import fuse as oracle
from reference.fuse_calls import INT64, check, fuse, stream_of, targets_of
from reference.random_streams import CLOCKS, FLOATS

import robocache

torch = pytest.importorskip("torch")


def test_rule_15_a_clock_of_one_dimension_serves_every_row(rng, device):
    streams = [stream_of(rng, np.dtype(np.float32), clock) for clock in CLOCKS]
    targets = targets_of(rng, np.dtype(np.float64))
    check([(v, t[0]) for v, t in streams], targets, device)
    check(streams, targets[0], device)
    check([streams[0], (streams[1][0], streams[1][1][1]), streams[2]], targets[1], device)
    check([(v[0], t[0]) for v, t in streams], targets[0], device)
    check([(v[0], t[0]) for v, t in streams], targets[0], device, output="dict", target_lengths=np.array([7]))


def test_rule_15_strides_and_alignment_change_nothing(rng, device):
    streams = [
        stream_of(rng, dtype, np.dtype(np.float64), features=d) for dtype, d in zip(FLOATS, (3, 16, 8, 5), strict=True)
    ]
    targets = targets_of(rng, np.dtype(np.float64))
    expected = oracle(streams, targets, dtype=np.float32)

    def layouts(tensor):
        yield tensor
        yield tensor.transpose(0, 1).contiguous().transpose(0, 1)
        yield tensor.transpose(-2, -1).contiguous().transpose(-2, -1)
        yield torch.repeat_interleave(tensor, 2, dim=-1)[..., ::2]
        for offset in (1, 3):
            view = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=tensor.device)[offset:]
            yield view.view(tensor.shape).copy_(tensor)

    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]
    for values_form, times_form, targets_form in zip(
        zip(*(layouts(v) for v, _ in tensors), strict=True),
        zip(*(layouts(t) for _, t in tensors), strict=True),
        layouts(to_torch(targets, device)),
        strict=True,
    ):
        result = robocache.fuse_multimodal(
            list(zip(values_form, times_form, strict=True)),
            targets_form,
            dtype="float32",
            return_valid=True,
            return_age=True,
        )
        for array, expected_array in zip(result, expected, strict=True):
            assert_same_bits(to_numpy(array), expected_array)


def test_rule_15_stride_0(rng, device):
    (values, times), targets = (
        stream_of(rng, np.dtype(np.float32), np.dtype(np.float64), batch=1),
        np.linspace(3, 3.2, 9),
    )
    single = to_torch(values, device), to_torch(times, device)
    expanded = single[0].expand(6, -1, -1), single[1].expand(6, -1)
    fused = robocache.fuse_multimodal([expanded, expanded], to_torch(targets, device))
    expected = oracle([(values, times)] * 2, targets)[0]
    for row in range(6):
        assert_same_bits(to_numpy(fused)[row], expected[0])


def test_more_short_rows_than_a_gpu_runs_at_once(rng, device):
    """A block of threads takes several rows of a narrow stream, the last block fewer."""
    clock, dtype = np.dtype(np.float32), np.dtype(np.float32)
    sizes = ((9, 64), (30, 3), (5, 8))
    streams = [stream_of(rng, dtype, clock, batch=301, samples=samples, features=d) for samples, d in sizes]
    check(streams, targets_of(rng, clock, batch=301, count=6), device)


def test_rule_15_output_offsets_pass_2_31(device):
    count, features = 70_001, 10_300
    values = torch.randint(0, 255, (1, 3, features), dtype=torch.uint8, device=device).expand(3, -1, -1)
    times = torch.tensor([0, 10, 20], dtype=torch.int64, device=device)
    targets = torch.arange(count, device=device) % 27 - 3
    fused = robocache.fuse_multimodal(
        [(values[..., :300], times), (values[..., 300:], times)], targets, method="previous"
    )
    assert fused.numel() > 2**31
    for row, k in itertools.product((0, 2), (0, 1, 12, 12345, count - 1)):
        sample = min(max(int(targets[k]) // 10, 0), 2)
        assert torch.equal(fused[row, k], values[0, sample]), (row, k)


def test_rule_15_lengths_and_target_lengths(rng, device):
    streams = [stream_of(rng, np.dtype(np.float32), clock) for clock in CLOCKS]
    targets = targets_of(rng, np.dtype(np.int64))
    lengths = np.array([0, 9, 17], np.int32)
    check(streams, targets, device, lengths=lengths)
    check(streams, targets, device, options=[{"lengths": lengths}, {}, {"lengths": np.array([17, 0, 1])}])
    for target_lengths in (np.array([0, 11, 23]), np.array([23, 1, 0], np.int32)):
        check(streams, targets, device, target_lengths=target_lengths)
        out, valid, age = fuse(streams, targets, device, target_lengths=target_lengths)
        for row, length in enumerate(target_lengths):
            assert np.isnan(out[row, length:]).all()
            assert not valid[row, length:].any()
            assert (age[row, length:] == INT64.min).all()


def test_rule_15_lengths_beyond_the_samples_are_cut_on_cuda(rng, cuda):
    streams = [stream_of(rng, np.dtype(np.float32), np.dtype(np.float64))]
    targets = targets_of(rng, np.dtype(np.float64))
    lengths, cut = np.array([-5, 2**40, 4]), np.array([0, 17, 4])
    result = fuse(streams, targets, cuda, lengths=lengths, target_lengths=lengths)
    expected = oracle(streams, targets, lengths=cut, target_lengths=np.minimum(np.maximum(lengths, 0), 23))
    for array, expected_array in zip(result, expected, strict=True):
        assert_same_bits(array, expected_array)
