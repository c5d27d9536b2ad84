"""Rule 19: gradients of views, under masks, on threads."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.gradient_calls import gradients, jittered_clocks

import robocache

torch = pytest.importorskip("torch")


def test_rule_19_any_strides(rng, device):
    times, target_times = jittered_clocks(rng, 4, 9, 12, np.dtype(np.float64))
    values, out_gradient = rng.standard_normal((4, 9, 6)), rng.standard_normal((4, 12, 6))
    expected = gradients(device, values, times, target_times, out_gradient)

    permuted = to_torch(values.transpose(2, 0, 1), device).requires_grad_()
    every_other = to_torch(np.repeat(times, 2, axis=1), device).requires_grad_()
    targets = to_torch(target_times.T, device).requires_grad_()
    out = robocache.resample_trajectories(permuted.permute(1, 2, 0), every_other[:, ::2], targets.T)
    out.backward(to_torch(out_gradient.transpose(1, 2, 0), device).permute(2, 0, 1))
    assert_same_bits(to_numpy(permuted.grad).transpose(1, 2, 0), expected[0])
    np.testing.assert_allclose(to_numpy(every_other.grad)[:, ::2], expected[1], rtol=1e-12, atol=1e-9)
    assert not to_numpy(every_other.grad)[:, 1::2].any()
    np.testing.assert_allclose(to_numpy(targets.grad).T, expected[2], rtol=1e-12, atol=1e-9)


def test_rule_19_expanded_inputs_sum_their_gradients(rng, device):
    times, target_times = jittered_clocks(rng, 1, 9, 12, np.dtype(np.float64))
    row = to_torch(rng.standard_normal((9, 3)), device).requires_grad_()
    clock = to_torch(times[0], device).requires_grad_()
    targets = to_torch(target_times[0], device).requires_grad_()
    out = robocache.resample_trajectories(row.expand(5, -1, -1), clock.expand(5, -1), targets.expand(5, -1))
    expanded = torch.autograd.grad(out.sum(), (row, clock, targets))
    shared = torch.autograd.grad(
        robocache.resample_trajectories(row.expand(5, -1, -1), clock, targets).sum(), (row, clock, targets)
    )
    single = torch.autograd.grad(robocache.resample_trajectories(row, clock, targets).sum(), (row, clock, targets))
    for a, b, c in zip(expanded, shared, single, strict=True):
        torch.testing.assert_close(a, 5 * c, rtol=1e-12, atol=1e-9)
        torch.testing.assert_close(b, 5 * c, rtol=1e-12, atol=1e-9)


def test_rule_19_views_with_torchs_negative_bit(device):
    values = torch.complex(torch.zeros(4, 2), torch.ones(4, 2)).to(device).requires_grad_()
    times = torch.arange(4.0, device=device)
    out = robocache.resample_trajectories(values.conj().imag, times, times)
    assert out.tolist() == [[-1, -1]] * 4
    (result,) = torch.autograd.grad(out.sum(), values)
    assert result.imag.tolist() == [[-1, -1]] * 4


def test_rule_19_masked_results_give_no_nan_gradient(device):
    values = np.array([[1.0], [np.nan], [3.0], [4.0]])
    times, target_times = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.5, 1.5, 2.5])
    out_gradient = np.array([[0.0], [0.0], [1.0]])
    values_gradient, times_gradient, targets_gradient = gradients(device, values, times, target_times, out_gradient)
    assert values_gradient.ravel().tolist() == [0, 0, 0.5, 0.5]
    assert times_gradient.tolist() == [0, 0, -0.5, -0.5]
    assert targets_gradient.tolist() == [0, 0, 1]


@pytest.mark.parametrize("method", ["pchip", "akima", "slerp"])
def test_rule_19_zero_gradients_take_no_nan_from_curves(rng, device, method):
    times = np.arange(12.0)
    target_times = rng.uniform(0, 11, 40)
    values = rng.standard_normal((12, 4))
    values[3] = np.nan
    out_gradient = rng.standard_normal((40, 4))
    out_gradient[target_times < 6] = 0  # all targets that may use sample 3
    result = gradients(device, values, times, target_times, out_gradient, method=method)
    values[3] = 7
    for a, b in zip(result, gradients(device, values, times, target_times, out_gradient, method=method), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_rule_19_a_hit_takes_its_gradient_beside_nan(device):
    values, times = np.array([[1.0], [2.0], [np.nan], [4.0]]), np.array([0.0, 1.0, 2.0, 3.0])
    for method in ("linear", "pchip", "akima", "nearest"):
        (result,) = gradients(
            device, values, times, times[[1, 3]], np.array([[1.0], [2.0]]), ("values",), method=method
        )
        assert result.ravel().tolist() == [0, 1, 0, 2]


def test_rule_19_the_cpu_gives_the_same_bits_on_any_number_of_threads(rng, threads):
    times, target_times = jittered_clocks(rng, 16, 200, 300, np.dtype(np.float32))
    values = rng.standard_normal((16, 200, 33)).astype(np.float32)
    out_gradient = rng.standard_normal((16, 300, 33)).astype(np.float32)
    results = []
    for count in (1, 2, 7):
        threads(count)
        results.append(gradients("cpu", values, times, target_times, out_gradient))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_same_bits(b, a)
