"""Rule 19: gradients of curves and rotations, against finite differences."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.gradient_calls import (
    CALLS,
    CURVES,
    DTYPES,
    ROUNDING,
    each_dtype,
    gradients,
    jittered_clocks,
    random_gradient,
    width,
)

import robocache

torch = pytest.importorskip("torch")


each_curve = pytest.mark.parametrize("options", CURVES, ids=lambda o: "-".join(o.values()))


@each_curve
@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 9])
def test_rule_19_gradcheck_of_curves(rng, device, options, samples):
    times, targets = jittered_clocks(rng, 2, samples, 12, np.dtype(np.float64), duplicates=False, hits=False)
    values = rng.standard_normal((2, samples, width(options)))
    inputs = [to_torch(x, device).requires_grad_() for x in (values, times * 100, targets * 100)]

    def call(*tensors):
        return torch.nan_to_num(robocache.resample_trajectories(*tensors, **options), nan=0.0)

    assert torch.autograd.gradcheck(call, inputs, nondet_tol=1e-12 if device == "cuda" else 0)


@each_curve
def test_rule_19_gradcheck_of_curves_over_repeated_times_and_hits(rng, device, options):
    times, targets = jittered_clocks(rng, 2, 12, 15, np.dtype(np.float64))
    values = to_torch(rng.standard_normal((2, 12, width(options))), device).requires_grad_()
    times, targets = to_torch(times * 100, device), to_torch(targets * 100, device)

    def call(values):
        out = robocache.resample_trajectories(values, times, targets, max_gap=1.5, **options)
        return torch.nan_to_num(out, nan=0.0)

    assert torch.autograd.gradcheck(call, (values,))


@pytest.mark.parametrize("method", ["pchip", "akima", "cubic"])
def test_rule_19_a_hit_moves_with_the_slope_of_the_curve(rng, device, method):
    """At a sample a curve has one slope, so finite differences on both sides agree."""
    times, _ = jittered_clocks(rng, 2, 9, 1, np.dtype(np.float64), duplicates=False)
    times = times * 100
    values = rng.standard_normal((2, 9, 3))
    out_gradient = rng.standard_normal((2, 7, 3))
    hits = times[:, 1:-1]
    result = gradients(device, values, times, hits, out_gradient, method=method)
    tensors = [to_torch(x, device) for x in (values, times)]

    def central_difference(step):
        after, before = (
            robocache.resample_trajectories(*tensors, to_torch(hits + move, device), method=method)
            for move in (step, -step)
        )
        return (to_numpy(after - before) * out_gradient).sum(2) / (2 * step)

    # The second derivative jumps at a sample. That is an error of first order in the step, which two steps cancel.
    slope = 2 * central_difference(0.5e-5) - central_difference(1e-5)
    np.testing.assert_allclose(result[2], slope, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result[1][:, 1:-1], -slope, rtol=1e-5, atol=1e-5)
    assert_same_bits(result[0][:, 1:-1], out_gradient)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda dtype: dtype.name)
@each_curve
def test_rule_19_gradients_of_curves_of_other_types_equal_float64s(rng, device, options, dtype):
    """Bound: derivatives are computed in float64, so only these roundings differ: the weight's to float32,
    times a derivative below 32; each sum's; and the last one."""
    times, targets = jittered_clocks(rng, 2, 9, 21, np.dtype(np.float64))
    values = rng.standard_normal((2, 9, width(options))).astype(dtype)
    out_gradient = rng.standard_normal((2, 21, width(options))).astype(dtype)
    result = gradients(device, values, times, targets, out_gradient, ("values",), **options)
    exact = gradients(
        device, values.astype(np.float64), times, targets, out_gradient.astype(np.float64), ("values",), **options
    )
    size = np.abs(out_gradient.astype(np.float64)).sum(axis=(1, 2), keepdims=True)
    bound = (32 + 21) * 32 * 2.0**-24 * size + ROUNDING[dtype] * np.abs(exact[0])
    assert (np.abs(result[0].astype(np.float64) - exact[0]) <= bound).all()


def test_rule_19_each_block_of_features_has_the_gradient_of_its_method(rng, device):
    times, targets = jittered_clocks(rng, 2, 9, 12, np.dtype(np.float64))
    values, out_gradient = rng.standard_normal((2, 9, 15)), rng.standard_normal((2, 12, 15))
    blocks = [
        (slice(0, 3), "pchip"),
        (slice(3, 7), "slerp"),
        (slice(7, 11), "slerp"),
        (slice(11, 12), "nearest"),
        (slice(12, 14), "cubic"),
        (slice(14, 15), "linear"),
    ]
    result = gradients(device, values, times, targets, out_gradient, methods=blocks[:-1])
    separate = [
        gradients(device, values[..., features], times, targets, out_gradient[..., features], method=method)
        for features, method in blocks
    ]
    np.testing.assert_allclose(
        result[0], np.concatenate([block[0] for block in separate], axis=2), rtol=1e-12, atol=1e-12
    )
    for index in (1, 2):
        np.testing.assert_allclose(result[index], sum(block[index] for block in separate), rtol=1e-9, atol=1e-9)


def test_rule_19_targets_past_their_length_give_no_gradient(rng, device):
    times, targets = jittered_clocks(rng, 2, 9, 12, np.dtype(np.float64))
    values, out_gradient = rng.standard_normal((2, 9, 3)), rng.standard_normal((2, 12, 3))
    lengths = torch.tensor([5, 0], device=device)
    result = gradients(device, values, times, targets, out_gradient, target_lengths=lengths)
    out_gradient[0, 5:] = out_gradient[1] = 0
    for gradient, expected in zip(result, gradients(device, values, times, targets, out_gradient), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-12)


@each_dtype
def test_rule_19_values_gradient_has_the_same_bits_on_cpu_and_cuda(rng, cuda, dtype):
    times, targets = jittered_clocks(rng, 5, 300, 700, np.dtype(np.float32))
    values = rng.standard_normal((5, 300, 24)).astype(dtype)
    out_gradient = random_gradient(rng, (5, 700, 24), dtype)
    # Rotations are left out: their sines differ by an ulp.
    curves = [options for options in CURVES if options["method"] in ("pchip", "akima", "cubic")]
    for options in CALLS + curves:
        arrays = values, times, targets, out_gradient, ("values",)
        assert_same_bits(gradients(cuda, *arrays, **options)[0], gradients("cpu", *arrays, **options)[0], str(options))
