"""Aligned windows by torch code without a loop over samples: all data on the device, one searchsorted per stream for the whole batch."""

from __future__ import annotations

import numpy as np
import torch


class ResidentWindows:
    """Makes a batch of any anchors from tensors that stay on the device.

    Each episode's clock is shifted to a separate range. So one ascending tensor holds all episodes of a stream, and one
    searchsorted finds every target of the batch. Arguments as in loader_numpy.Windows.
    """

    def __init__(
        self, streams: dict, delta_ns: np.ndarray, affine: dict, anchor: str, snap_ns: int, device: str
    ) -> None:
        starts = np.min([time_ns[offsets[:-1]] for time_ns, _, offsets in streams.values()], axis=0)
        span = max(int((time_ns[offsets[1:] - 1] - starts).max()) for time_ns, _, offsets in streams.values())
        # Episodes are 4 s apart, more than the windows reach beyond an episode's ends.
        self.shift_ns = torch.from_numpy(np.arange(len(starts)) * (span + 4 * 10**9) - starts).to(device)
        self.delta_ns = torch.from_numpy(delta_ns).to(device)
        self.snap_ns = snap_ns
        self.streams = {}
        for name, (time_ns, values, offsets) in streams.items():
            offsets = torch.from_numpy(np.array(offsets))
            clock = torch.from_numpy(np.array(time_ns)).to(device)
            clock += torch.repeat_interleave(self.shift_ns, offsets.diff().to(device))
            scale, shift = (torch.from_numpy(x).to(device) for x in affine[name])
            rows = torch.from_numpy(np.array(values)).to(device)
            self.streams[name] = (clock, rows, offsets[:-1].to(device), offsets[1:].to(device) - 1, scale, shift)
        clock, _, first, last, _, _ = self.streams[anchor]
        self.anchor_clock = clock
        self.anchor_episode = torch.repeat_interleave(torch.arange(len(starts), device=device), last - first + 1)

    def __len__(self) -> int:
        return len(self.anchor_clock)

    def draw(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws random anchors: (episode [B], time on the shifted clock [B])."""
        index = torch.randint(len(self), (batch_size,), device=self.anchor_clock.device)
        return self.anchor_episode[index], self.anchor_clock[index]

    def align(self, episode: torch.Tensor, anchor: torch.Tensor) -> dict[str, torch.Tensor]:
        target = anchor[:, None] + self.delta_ns
        batch = {}
        for name, (clock, rows, first, last, scale, shift) in self.streams.items():
            low, high = first[episode][:, None], last[episode][:, None]
            right = torch.searchsorted(clock, target, right=True)
            right = torch.minimum(torch.maximum(right, low + 1), high)
            left = right - 1
            start = clock[left]
            weight = ((target - start).float() / (clock[right] - start).float()).clamp(0, 1)
            x = torch.lerp(rows[left], rows[right], weight[..., None])
            batch[name] = torch.addcmul(shift, x, scale).to(torch.bfloat16)
            batch[f"{name}_is_pad"] = (clock[low] - target >= self.snap_ns) | (target - clock[high] >= self.snap_ns)
        return batch
