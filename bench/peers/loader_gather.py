"""Windows of rows by one gather per stream: ten lines of torch suffice if all streams are on one nominal clock."""

from __future__ import annotations

import torch


class GatheredWindows:
    """`rows`: each stream's rows [rows, features], in memory. `offsets`: each stream's steps, from the anchor's row."""

    def __init__(self, rows: dict[str, torch.Tensor], row_offsets: torch.Tensor, offsets: dict[str, range]) -> None:
        self.rows = rows
        self.offsets = {name: torch.tensor(list(steps)) for name, steps in offsets.items()}
        counts = row_offsets.diff()
        self.first = torch.repeat_interleave(row_offsets[:-1], counts)
        self.last = torch.repeat_interleave(row_offsets[1:] - 1, counts)

    def draw(self, batch_size: int) -> torch.Tensor:
        return torch.randint(len(self.first), (batch_size,))

    def gather(self, anchors: torch.Tensor) -> dict[str, torch.Tensor]:
        first, last = self.first[anchors, None], self.last[anchors, None]
        batch = {}
        for name, offsets in self.offsets.items():
            rows = anchors[:, None] + offsets
            clamped_rows = torch.minimum(torch.maximum(rows, first), last)
            batch[name], batch[f"{name}_is_pad"] = self.rows[name][clamped_rows], rows != clamped_rows
        return batch
