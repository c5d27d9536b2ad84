"""Rule 19: the tensors in torch's graph and refusals."""

import weakref

import numpy as np
import pytest
from reference.compare import to_torch

import robocache

torch = pytest.importorskip("torch")


def ramp(device):
    values = torch.arange(10.0, device=device, dtype=torch.float64).reshape(5, 2).requires_grad_()
    return values, torch.arange(5.0, device=device, dtype=torch.float64)


def test_no_grad_makes_no_graph(device):
    values, times = ramp(device)
    with torch.no_grad():
        assert not robocache.resample_trajectories(values, times, times).requires_grad
    with torch.inference_mode():
        assert not robocache.resample_trajectories(values, times, times).requires_grad
    assert not robocache.resample_trajectories(values.detach(), times, times).requires_grad


def test_valid_has_no_gradient(device):
    values, times = ramp(device)
    out, valid = robocache.resample_trajectories(values, times, times + 0.5, return_valid=True)
    assert out.requires_grad and not valid.requires_grad
    assert valid.tolist() == [True] * 4 + [False]
    out.sum().backward()
    assert values.grad is not None and times.grad is None


def test_integer_values_have_no_gradient(device):
    values = torch.arange(5, device=device)[:, None]
    times = torch.arange(5.0, device=device).requires_grad_()
    assert not robocache.resample_trajectories(values, times, times, method="nearest").requires_grad


def test_a_tensor_changed_after_the_call_is_noticed(device):
    values, times = ramp(device)
    times = times.clone()
    out = robocache.resample_trajectories(values, times, times + 0.5)
    times += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_second_derivative_is_refused(device):
    values, times = ramp(device)
    (gradient,) = torch.autograd.grad(
        robocache.resample_trajectories(values, times, times).square().sum(), values, create_graph=True
    )
    with pytest.raises(robocache.ArgumentError, match="first derivatives"):
        gradient.sum().backward()


def test_tensors_are_saved_by_torchs_hooks_alone(device):
    """Hooks can move the tensors, checkpoints recompute them, and nothing else holds them until the backward pass."""
    values, times = ramp(device)
    inputs = values.detach() * 1, times * 1  # only the call holds them
    references = [weakref.ref(x) for x in inputs]
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.detach().cpu().numpy().copy(), lambda x: to_torch(x, device)
    ):
        out = robocache.fuse_multimodal([(values, times), inputs], times + 0.5)
    del inputs
    assert [x() for x in references] == [None, None]
    (gradient,) = torch.autograd.grad(out[:4].sum(), values)
    assert gradient.ravel().tolist() == [0.5, 0.5, 1, 1, 1, 1, 1, 1, 0.5, 0.5]

    def call(values):
        return robocache.resample_trajectories(values, times, times + 0.5)

    checkpoint = torch.utils.checkpoint.checkpoint
    result = torch.autograd.grad(checkpoint(call, values, use_reentrant=False).sum(), values)
    assert torch.equal(result[0], torch.autograd.grad(call(values).sum(), values)[0])


def test_a_retained_graph_gives_the_same_gradient_again(device):
    values, times = ramp(device)
    loss = robocache.resample_trajectories(values, times, times + 0.5, extrapolate="clamp").square().sum()
    expected = torch.autograd.grad(loss, values, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, values)[0], expected)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_out_carries_no_gradient(device):
    values, times = ramp(device)
    out = torch.empty_like(values, requires_grad=False)
    with pytest.raises(robocache.ArgumentError, match="out: "):
        robocache.resample_trajectories(values, times, times, out=out)
    with torch.no_grad():
        robocache.resample_trajectories(values, times, times, out=out)
    assert torch.equal(out, values)


def test_arrays_of_another_framework_carry_no_gradient(device):
    times = torch.arange(4.0, dtype=torch.float64, requires_grad=True)
    with pytest.raises(robocache.ArgumentTypeError, match=r"values: .*torch"):
        robocache.resample_trajectories(np.zeros((4, 2)), times, times)
