"""Fuses streams in torch: resamples each, then concatenates them."""

import torch

from peers import resample_torch


def fuse(streams: list[tuple[torch.Tensor, torch.Tensor]], targets: torch.Tensor) -> torch.Tensor:
    """[(values [B,S,D], times [B,S])], targets [B,T] -> [B,T,sum of D]. A target beyond an episode's times gets its first or last
    sample."""
    return torch.cat([resample_torch.resample(values, times, targets) for values, times in streams], -1)
