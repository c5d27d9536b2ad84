"""The windows of training while the robot runs: rows into rings, batches out of an aligner, a policy's chunks into actions."""

from .aligner import Aligner, Ring
from .chunks import Chunks

__all__ = ["Aligner", "Chunks", "Ring"]
