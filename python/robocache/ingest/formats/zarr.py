"""Recognises zarr stores of diffusion_policy's ReplayBuffer and UMI, in folders and zip files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ..options import option
from . import Format, RateOptions, proved_by_first_file

# The array with the ends of episodes, in zarr v2 and in v3. v3 is recognised only to refuse it with a clear error.
EPISODE_ENDS = (("meta", "episode_ends", ".zarray"), ("meta", "episode_ends", "zarr.json"))


@dataclass(frozen=True)
class ZarrOptions(RateOptions):
    """Facts that a store may lack."""

    title: ClassVar[str] = "zarr store of episodes"

    missing_chunks: Literal["error", "fill"] = option(
        "error",
        help="missing chunks: an error (default), or full of the array's fill value, as zarr reads them",
    )


def is_store(file: Path) -> bool:
    """Whether a file belongs to a store, or is the zip file of one."""
    return file.parts[-3:] in EPISODE_ENDS or file.name.lower().endswith(".zarr.zip")


FORMAT = Format(
    name="zarr",
    title="zarr store of episodes (diffusion_policy, UMI)",
    sign="meta/episode_ends or *.zarr.zip",
    find_sign=proved_by_first_file(is_store),
    options=ZarrOptions,
    reader="robocache.ingest.zarr",
    install="pip install 'robocache[zarr]'",
)
