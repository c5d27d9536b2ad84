"""Recognises CALVIN datasets, which have a .npz for each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..options import option
from . import Format, RateOptions, proved_by_first_file

# The name of the table with each episode's first and last step.
EPISODES = "ep_start_end_ids.npy"


@dataclass(frozen=True)
class CalvinOptions(RateOptions):
    """The language annotations are pickles, which may run any code when they are loaded."""

    title: ClassVar[str] = "CALVIN dataset"

    trust_pickle: bool = option(
        False, help="load scene_info.npy and the language annotations: pickles, which run whatever code is in them"
    )


FORMAT = Format(
    name="calvin",
    title="CALVIN dataset",
    sign=EPISODES,
    find_sign=proved_by_first_file(lambda file: file.name == EPISODES),
    options=CalvinOptions,
    reader="robocache.ingest.calvin",
    install="pip install robocache",
)
