"""Training's windows on a running robot: rings take rows, an aligner makes batches, chunks give actions, and a recorder writes
the rows to a cache."""

from .aligner import Aligner, Ring
from .chunks import Chunks
from .recorder import LostRowsWarning, Recorder
from .skew import KeySkew, Skew, SkewSpan, skew
from .topic import Topic

__all__ = ["Aligner", "Chunks", "KeySkew", "LostRowsWarning", "Recorder", "Ring", "Skew", "SkewSpan", "Topic", "skew"]
