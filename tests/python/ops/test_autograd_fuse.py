"""Rule 19: gradients of fuse_multimodal."""

import itertools

import numpy as np
import pytest
from reference.compare import to_torch
from reference.gradient_calls import jittered_clocks

import robocache

torch = pytest.importorskip("torch")


def streams_of(rng, device, targets=9):
    """Returns streams for methods of every kind, each with its own clock, target times, and the options to fuse them."""
    widths = {"arm": 3, "hand": 2, "head": 4, "wheels": 2, "base": 7}
    streams = {}
    for name, width in widths.items():
        times, _ = jittered_clocks(rng, 2, 8, 1, np.dtype(np.float64), duplicates=False)
        values = rng.standard_normal((2, 8, width))
        streams[name] = tuple(to_torch(x, device).requires_grad_() for x in (values, times * 100))
    first, last = (max(float(times.min()) for _, times in streams.values()) + shift for shift in (-0.5, 7))
    target_times = to_torch(rng.uniform(first, last, (2, targets)), device).requires_grad_()
    options = {
        "method": {"hand": "pchip", "head": "slerp", "wheels": "cubic", "base": "pose"},
        "scale": {"arm": torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64, device=device), "hand": 3.0},
        "shift": {"arm": 1.0},
        "offset": {"hand": 0.25},
        "lengths": {"arm": torch.tensor([5, 8], device=device)},
        "extrapolate": {"arm": "linear", "wheels": "linear"},
    }
    return streams, target_times, options


@pytest.mark.parametrize("output", ["concat", "dict"])
def test_rule_19_gradcheck_of_fuse(rng, device, output):
    streams, target_times, options = streams_of(rng, device)
    names = list(streams)

    def call(target_times, *arrays):
        pairs = zip(arrays[::2], arrays[1::2], strict=True)
        result = robocache.fuse_multimodal(dict(zip(names, pairs, strict=True)), target_times, output=output, **options)
        return tuple(result.values()) if output == "dict" else result

    inputs = (target_times, *itertools.chain.from_iterable(streams.values()))
    assert torch.autograd.gradcheck(call, inputs, nondet_tol=1e-12 if device == "cuda" else 0)


def test_rule_19_gradients_of_fuse_equal_those_of_each_stream(rng, device):
    streams, target_times, _ = streams_of(rng, device)
    upstream = to_torch(rng.standard_normal((2, 9, 5)), device)
    arm, hand = streams["arm"], streams["hand"]
    fused = robocache.fuse_multimodal([arm, hand], target_times, method=["linear", "akima"])
    result = torch.autograd.grad(fused, (*arm, *hand, target_times), upstream)
    separate = [
        torch.autograd.grad(
            robocache.resample_trajectories(*stream, target_times, method=method), (*stream, target_times), part
        )
        for stream, method, part in ((arm, "linear", upstream[..., :3]), (hand, "akima", upstream[..., 3:]))
    ]
    expected = *separate[0][:2], *separate[1][:2], separate[0][2] + separate[1][2]
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-9)


def test_rule_19_gradients_of_times_have_each_clocks_unit(device):
    """Targets in seconds for a stream in nanoseconds: a slope of 10 per second stays 10 per second."""
    values = torch.tensor([[0.0], [10.0]], dtype=torch.float64, device=device)
    stamps = torch.tensor([0, 1_000_000_000], device=device)
    target_times = torch.tensor([0.25], dtype=torch.float64, device=device, requires_grad=True)
    robocache.fuse_multimodal([(values, stamps)], target_times).sum().backward()
    assert target_times.grad.tolist() == [10]

    times = torch.tensor([0.0, 1.0], dtype=torch.float64, device=device, requires_grad=True)
    target_times = torch.tensor([250_000_000], device=device)
    robocache.fuse_multimodal([(values, times)], target_times).sum().backward()
    assert times.grad.tolist() == [-7.5, -2.5]


def test_rule_19_fuse_of_other_types_rounds_once(rng, device):
    """Each gradient has the type of its input: 16-bit values, a float32 clock, int32 counts scaled to a float."""
    values = to_torch(rng.standard_normal((2, 8, 3)), device).to(torch.bfloat16).requires_grad_()
    counts = torch.arange(8, dtype=torch.int32, device=device)[:, None].expand(2, 8, 1)
    times = torch.arange(8.0, device=device).requires_grad_()
    target_times = torch.tensor([0.5, 2.25, 6.75], dtype=torch.float64, device=device, requires_grad=True)
    fused = robocache.fuse_multimodal(
        [(values, times), (counts, times)],
        target_times,
        method=["linear", "previous"],
        scale=[None, 0.5],
        dtype="float32",
    )
    result = torch.autograd.grad(fused.sum(), (values, times, target_times))
    assert [x.dtype for x in result] == [torch.bfloat16, torch.float32, torch.float64]
    expected = torch.zeros(8, device=device)
    for left, weight in ((0, 0.5), (2, 0.25), (6, 0.75)):
        expected[left] += 1 - weight
        expected[left + 1] += weight
    assert torch.equal(result[0].float(), expected[None, :, None].expand(2, 8, 3))


def test_rule_19_inputs_of_fuse_without_a_gradient(rng, device):
    streams, target_times, _ = streams_of(rng, device)
    (values, times), target_times = streams["arm"], target_times.detach()
    out, valid, age = robocache.fuse_multimodal([(values, times)], target_times, return_valid=True, return_age=True)
    assert out.requires_grad and not valid.requires_grad and not age.requires_grad
    scale = torch.ones(3, dtype=torch.float64, device=device, requires_grad=True)
    with pytest.raises(robocache.ArgumentError, match="scale: "):
        robocache.fuse_multimodal([(values, times)], target_times, scale=scale)
    with pytest.raises(robocache.ArgumentError, match="out: "):
        robocache.fuse_multimodal([(values, times)], target_times, out=torch.empty_like(out))
    with torch.no_grad():
        assert not robocache.fuse_multimodal([(values, times)], target_times, scale=scale).requires_grad
    (gradient,) = torch.autograd.grad(out.square().sum(), values, create_graph=True)
    with pytest.raises(robocache.ArgumentError, match="first derivatives"):
        gradient.sum().backward()
