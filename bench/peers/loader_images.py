"""Batches of cameras, state and actions by a torch DataLoader: one frame at a time, in worker processes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

try:
    from torchvision.io import ImageReadMode, decode_jpeg
except ImportError:
    decode_jpeg = None


def decoder_name() -> str:
    return "Pillow" if decode_jpeg is None else "torchvision"


class Rows(torch.utils.data.Dataset):
    """An item is a row: {"state": [D], "action": [chunk, D], camera: [3, H, W]}, normalised float32.

    folder: a cache with one episode whose streams are on one clock. The stored files are read directly.
    """

    def __init__(self, folder: Path, cameras: list[str], chunk: int, mean: tuple, std: tuple) -> None:
        stream = folder / "streams"
        self.cameras, self.chunk = cameras, chunk
        self.state, self.action = (np.load(stream / name / "values.npy") for name in ("state", "action"))
        self.offsets = {name: np.load(stream / name / "blob_offsets.npy") for name in cameras}
        self.paths = {name: stream / name / "values.npy" for name in cameras}
        self.mean, self.std = (torch.tensor(x).reshape(3, 1, 1) for x in (mean, std))
        self.files: dict = {}  # each worker opens its own

    def __len__(self) -> int:
        return len(self.state)

    def read_file(self, camera: str, row: int) -> bytes:
        if camera not in self.files:
            opened = open(self.paths[camera], "rb", buffering=0)  # noqa: SIM115  stays open
            header = self.paths[camera].stat().st_size - int(self.offsets[camera][-1])
            self.files[camera] = opened, header
        opened, header = self.files[camera]
        begin, end = self.offsets[camera][row : row + 2].tolist()
        opened.seek(header + begin)
        return opened.read(end - begin)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        steps = np.minimum(row + np.arange(self.chunk), len(self.action) - 1)
        sample = {"state": torch.from_numpy(self.state[row]), "action": torch.from_numpy(self.action[steps])}
        for camera in self.cameras:
            file = self.read_file(camera, row)
            if decode_jpeg is None:
                pixels = torch.from_numpy(np.asarray(Image.open(io.BytesIO(file)))).permute(2, 0, 1)
            else:
                pixels = decode_jpeg(torch.frombuffer(bytearray(file), dtype=torch.uint8), ImageReadMode.RGB)
            sample[camera] = (pixels.float() / 255 - self.mean) / self.std
        return sample


def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {key: torch.stack([sample[key] for sample in samples]).to(torch.bfloat16) for key in samples[0]}
