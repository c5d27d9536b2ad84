"""Linear resampling in torch without a loop: one batched searchsorted, two row gathers, a lerp in float32."""

import torch


def resample(values: torch.Tensor, times: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """values [B,S,D], times [B,S], targets [B,T] -> [B,T,D]. A target beyond an episode's times gets its first or last sample."""
    batch, samples, features = values.shape
    right = torch.searchsorted(times, targets, right=True).clamp(1, samples - 1)
    left = right - 1
    start = times.gather(1, left)
    weight = ((targets - start) / (times.gather(1, right) - start)).clamp(0, 1)
    rows = values.view(batch * samples, features)
    first = torch.arange(0, batch * samples, samples, device=values.device)[:, None]
    a = rows.index_select(0, (left + first).view(-1)).float()
    b = rows.index_select(0, (right + first).view(-1)).float()
    return torch.lerp(a, b, weight.to(a.dtype).view(-1, 1)).to(values.dtype).view(batch, -1, features)
