"""One adapter per rival. Each does the whole job of a case; its output is checked against robocache's before timing."""
