"""CALVIN: a folder with a .npz a step: the sign and the options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..options import option
from . import Format, RateOptions

# Says which steps are an episode's.
EPISODES = "ep_start_end_ids.npy"


@dataclass(frozen=True)
class CalvinOptions(RateOptions):
    """The language annotations are pickles, which may do anything when they are loaded."""

    title: ClassVar[str] = "CALVIN dataset"

    trust_pickle: bool = option(
        False, help="load scene_info.npy and the language annotations: pickles, which run whatever code is in them"
    )


def _find_episodes(source: Path, files: Sequence[Path]) -> Path | None:
    return next((file for file in files if file.name == EPISODES), None)


FORMAT = Format(
    "calvin",
    "CALVIN dataset",
    EPISODES,
    _find_episodes,
    CalvinOptions,
    "robocache.ingest.calvin",
    "pip install robocache",
)
