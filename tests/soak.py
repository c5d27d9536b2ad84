"""The rounds of tests that attack: mutations, forgeries, kills, forks, many batches.

An ordinary run is short; `./dev attack` runs the same code ROBOCACHE_SOAK times as long.
"""

import os


def rounds(short: int) -> int:
    """Returns `short` in an ordinary run, ROBOCACHE_SOAK times as many in `./dev attack`."""
    return short * int(os.environ.get("ROBOCACHE_SOAK", "1"))
