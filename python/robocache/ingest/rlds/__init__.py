"""RLDS: `tfrecord` reads the files and their Examples, `features` finds features in these by features.json, `dataset` yields episodes."""
