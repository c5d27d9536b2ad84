"""Reads RLDS datasets: `tfrecord` reads the files and their Examples, `features` the features that these have, `dataset` yields episodes."""
