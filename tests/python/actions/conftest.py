"""Fixture: arrays of each framework and on each device. Makes `rotations_by_scipy` importable."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))


class Arrays:
    """Makes arrays of one framework, and converts results to numpy's float64."""

    def __init__(self, device):
        self.device = device

    def __call__(self, x, dtype="float64"):
        if self.device is None:
            return np.asarray(x).astype(dtype)
        return torch.as_tensor(np.asarray(x, np.float64), dtype=getattr(torch, dtype), device=self.device)

    def numpy(self, x):
        return x.astype(np.float64) if self.device is None else x.detach().cpu().to(torch.float64).numpy()


@pytest.fixture(params=["numpy", "torch", pytest.param("cuda", marks=pytest.mark.cuda)])
def arrays(request):
    if request.param == "cuda":
        request.getfixturevalue("cuda")
    return Arrays({"numpy": None, "torch": "cpu", "cuda": "cuda"}[request.param])
