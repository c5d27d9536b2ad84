"""The windows of training while the robot runs: rows into rings, batches out of an aligner, a policy's chunks into actions, and
all of it into a recording."""

from .aligner import Aligner, Ring
from .chunks import Chunks
from .recorder import LostRowsWarning, Recorder
from .skew import KeySkew, Skew, SkewSpan, skew
from .topic import Topic

__all__ = ["Aligner", "Chunks", "KeySkew", "LostRowsWarning", "Recorder", "Ring", "Skew", "SkewSpan", "Topic", "skew"]
