"""One adapter for each peer. It does the whole job of a case. Its output is compared with robocache's before timing."""
