"""Recognises RLDS datasets, such as those of Open X-Embodiment, in TFRecord files of TFDS."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from . import Format, RateOptions, proved_by_first_file

# Matches names such as bridge_dataset-train.tfrecord-00000-of-00512.
SHARD = re.compile(r"(?P<name>.+)-(?P<split>[^-]+)\.tfrecord-(?P<number>\d{5,9})-of-(?P<count>\d{5,9})")


@dataclass(frozen=True)
class RldsOptions(RateOptions):
    """Takes a rate, since the episodes may not declare it."""

    title: ClassVar[str] = "RLDS dataset"


FORMAT = Format(
    name="rlds",
    title="RLDS dataset (TFDS TFRecords, Open X-Embodiment)",
    sign="*.tfrecord-00000-of-00001",
    find_sign=proved_by_first_file(lambda file: SHARD.fullmatch(file.name) is not None),
    options=RldsOptions,
    reader="robocache.ingest.rlds.dataset",
    install="pip install 'robocache[rlds]'",
)
